//! Records of a ring: whole messages, first fragments, further fragments, and notifications.
//!
//! A message that fits into one record is a [`MESSAGE`]. A longer one is a [`FIRST_FRAGMENT`],
//! which holds the full length, and [`FRAGMENT`]s. A [`LOAN`] is a message that is passed on
//! instead of copied, a [`CMA_OFFER`] one that the receiver copies from the sender's memory. An
//! [`RMA_NOTIFICATION`] reports a one-sided operation with its length and the key of the region; an
//! [`RMA_REQUEST`] asks the receiver to execute one. The header is followed by optional words of
//! eight bytes, each present only if a flag or the kind says so: the tag, the completion data, and
//! the full length. The payload follows them, at the next line if it is long.
//!
//! A message that requests an ack is never a `MESSAGE`, however short: the ack id is in the upper
//! bits of the full length, so it costs other messages nothing.

use fabric_core::completion::CompletionLevel;
use fabric_core::matching::AckRequest;

use super::ring::HEADER_LEN;

/// A message in one record.
pub(crate) const MESSAGE: u8 = 1;
/// The first record of a message that takes several records.
pub(crate) const FIRST_FRAGMENT: u8 = 2;
/// A further record of such a message.
pub(crate) const FRAGMENT: u8 = 3;

/// A notification, not a message: the sender has accessed the receiver's memory.
pub(crate) const RMA_NOTIFICATION: u8 = 4;

/// A message in a chunk of memory that the sender lends: the full length, and as payload the name
/// of the chunk and the slot by which it is returned.
pub(crate) const LOAN: u8 = 5;

/// A message that the receiver copies from the sender's process: the full length, and as payload
/// the address and the slot by which the buffer is returned.
pub(crate) const CMA_OFFER: u8 = 6;

/// A request to access a region whose owner is the receiver: the words of an RMA request.
pub(crate) const RMA_REQUEST: u8 = 7;

/// Bytes of the payload of a `LOAN` or `CMA_OFFER`: the location and the slot.
pub(crate) const LOCATION_LEN: usize = 16;

/// The record has a tag.
pub(crate) const TAGGED: u8 = 1;
/// The record has completion data.
pub(crate) const CQ_DATA: u8 = 2;
/// The one-sided operation was a read.
pub(crate) const RMA_READ: u8 = 4;

/// Ack ids of a connection: more than an endpoint can have sends under way.
pub(crate) const MAX_ACKS: usize = 4096;
/// Bits of the full-length word: position of the ack id, ack requested at the match rather than at
/// delivery, and ack requested at all.
const ACK_ID_SHIFT: u32 = 48;
const ACK_AT_MATCH_BIT: u64 = 1 << 60;
const ACK_BIT: u64 = 1 << 61;

/// Encodes the full length of a message and its ack request as one word.
pub(crate) fn encode_len_and_ack(len: usize, ack: Option<AckRequest>) -> u64 {
    let Some(AckRequest { ack_id, level }) = ack else {
        return len as u64;
    };
    let at_match = if level == CompletionLevel::Matched {
        ACK_AT_MATCH_BIT
    } else {
        0
    };
    len as u64 | u64::from(ack_id) << ACK_ID_SHIFT | at_match | ACK_BIT
}

/// Decodes a full-length word. An impossible length is returned as it is, for the caller to reject.
pub(crate) fn decode_len_and_ack(word: u64) -> (usize, Option<AckRequest>) {
    let len = |len: u64| usize::try_from(len).unwrap_or(usize::MAX);
    // With any higher bit set, the word is only a length that is too long.
    if word & !(ACK_BIT - 1) != ACK_BIT {
        return (len(word), None);
    }
    let ack_id = (word >> ACK_ID_SHIFT) as u32 % MAX_ACKS as u32;
    let at_match = word & ACK_AT_MATCH_BIT != 0;
    let level = if at_match {
        CompletionLevel::Matched
    } else {
        CompletionLevel::Delivered
    };
    (
        len(word & ((1 << ACK_ID_SHIFT) - 1)),
        Some(AckRequest { ack_id, level }),
    )
}

/// Positions of the parts of a record, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordLayout {
    pub(crate) tag: Option<usize>,
    pub(crate) data: Option<usize>,
    pub(crate) total: Option<usize>,
    pub(crate) payload: usize,
}

/// Payloads of at least this size start on a line of their own, so that copies are aligned.
pub(crate) const ALIGN_PAYLOAD_FROM: usize = 512;

/// Returns the position of the payload in a record of `len` bytes that has no optional words.
#[inline]
pub(crate) fn plain_payload_offset(len: usize) -> usize {
    if len >= super::ring::LINE_LEN + ALIGN_PAYLOAD_FROM {
        super::ring::LINE_LEN
    } else {
        HEADER_LEN
    }
}

impl RecordLayout {
    /// Returns the layout of a record with these flags; `long` if its payload starts on its own
    /// line.
    fn of(kind: u8, flags: u8, long: bool) -> Self {
        let mut at = HEADER_LEN;
        let mut next = |present: bool| {
            present.then(|| {
                at += 8;
                at - 8
            })
        };
        let tag = next(flags & TAGGED != 0);
        let data = next(flags & CQ_DATA != 0);
        let total = next(matches!(
            kind,
            FIRST_FRAGMENT | RMA_NOTIFICATION | LOAN | CMA_OFFER
        ));
        Self {
            tag,
            data,
            total,
            payload: if long { super::ring::LINE_LEN } else { at },
        }
    }

    /// Returns the layout for a payload of this many bytes.
    pub(crate) fn for_payload(kind: u8, flags: u8, payload: usize) -> Self {
        Self::of(kind, flags, payload >= ALIGN_PAYLOAD_FROM)
    }

    /// Returns the layout of a record of `len` bytes, as its reader computes it; `None` if the
    /// record is too short for the words that its flags promise.
    pub(crate) fn for_record(kind: u8, flags: u8, len: usize) -> Option<Self> {
        let long = len >= super::ring::LINE_LEN + ALIGN_PAYLOAD_FROM;
        let layout = Self::of(kind, flags, long);
        (len >= layout.payload).then_some(layout)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn record_layout_round_trips_for_every_length() {
        for kind in [
            MESSAGE,
            FIRST_FRAGMENT,
            FRAGMENT,
            RMA_NOTIFICATION,
            LOAN,
            CMA_OFFER,
            RMA_REQUEST,
        ] {
            for flags in 0..8 {
                for payload in 0..2000 {
                    let written = RecordLayout::for_payload(kind, flags, payload);
                    let read = RecordLayout::for_record(kind, flags, written.payload + payload);
                    assert_eq!(
                        read,
                        Some(written),
                        "kind {kind}, flags {flags}, payload {payload}"
                    );
                    if (kind, flags) == (MESSAGE, 0) {
                        assert_eq!(
                            plain_payload_offset(written.payload + payload),
                            written.payload
                        );
                    }
                }
            }
        }
        assert_eq!(
            RecordLayout::for_record(MESSAGE, TAGGED, HEADER_LEN + 7),
            None
        );
    }

    #[test]
    fn total_word_holds_length_and_ack_request() {
        for len in [0, 1, 1 << 40] {
            assert_eq!(
                decode_len_and_ack(encode_len_and_ack(len, None)),
                (len, None)
            );
            for level in [CompletionLevel::Matched, CompletionLevel::Delivered] {
                for ack_id in [0, 1, MAX_ACKS as u32 - 1] {
                    let ack = Some(AckRequest { ack_id, level });
                    assert_eq!(decode_len_and_ack(encode_len_and_ack(len, ack)), (len, ack));
                }
            }
        }
        for word in [u64::MAX, 1 << 63, 1 << 62 | ACK_BIT, 1 << 60] {
            assert_eq!(decode_len_and_ack(word), (word as usize, None));
        }
    }
}
