//! The kinds of records in a ring, and their layout.
//!
//! A record has the header of `ring`, up to three optional words of eight bytes, and the payload.
//! The words are, in this order, the tag, the completion data, and the full length of the message;
//! the flags and the kind of the record say which are present. A long payload starts on the next
//! line. `tx_connection` writes records, `rx_connection` reads them.
//!
//! A message that requests an ack is never a [`MESSAGE`], even if it is short: the ack id is in the
//! upper bits of the full-length word, so messages without an ack carry no ack id.

use fabric_core::completion::CompletionLevel;
use fabric_core::matching::AckRequest;

use super::ring::HEADER_LEN;

/// Maximum bytes of a message.
pub(crate) const MAX_MSG_SIZE: usize = 1 << 40;

// Kinds of records.

/// A message in one record.
pub(crate) const MESSAGE: u8 = 1;
/// The first record of a message in several records, with the full length. A message in one record
/// that requests an ack has this kind too.
pub(crate) const FIRST_FRAGMENT: u8 = 2;
/// A further record of a message in several records.
pub(crate) const FRAGMENT: u8 = 3;
/// A notification that the sender has accessed the receiver's memory: the length of the access as
/// full length, and as payload the key of the region.
pub(crate) const RMA_NOTIFICATION: u8 = 4;
/// A message in a chunk that the sender lends: the full length, and as payload the key of the chunk
/// and the slot by which the receiver returns the chunk.
pub(crate) const LOAN: u8 = 5;
/// A message that the receiver copies from the sender's process: the full length, and as payload
/// the address and the slot by which the receiver returns the buffer.
pub(crate) const CMA_OFFER: u8 = 6;
/// A request that the receiver accesses its own region; the payload is an `RmaRequest`.
pub(crate) const RMA_REQUEST: u8 = 7;

/// Bytes of the payload of a `LOAN` or `CMA_OFFER`: the key or address, and the slot.
pub(crate) const LOCATION_LEN: usize = 16;

// Flags of records.

/// The record has a tag.
pub(crate) const TAGGED: u8 = 1;
/// The record has completion data.
pub(crate) const CQ_DATA: u8 = 2;
/// The access of an `RMA_NOTIFICATION` has read the receiver's memory.
pub(crate) const RMA_READ: u8 = 4;

/// Number of ack ids of a connection: at least as many as an endpoint can have pending sends.
pub(crate) const MAX_ACKS: usize = 4096;

// Bits of the full-length word. Bits 0 to 47 are the length.

/// Position of the ack id, of 12 bits.
const ACK_ID_SHIFT: u32 = 48;
/// The ack is requested at the match, and not at delivery.
const ACK_AT_MATCH_BIT: u64 = 1 << 60;
/// An ack is requested.
const ACK_BIT: u64 = 1 << 61;

/// Encodes the full-length word: the length of a message and its ack request.
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
    // A word with a higher bit than `ACK_BIT` is decoded as a length, which is too long.
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

/// Positions of the parts of a record, in bytes from its start; `None` for absent words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordLayout {
    pub(crate) tag: Option<usize>,
    pub(crate) data: Option<usize>,
    /// The full-length word.
    pub(crate) full_len: Option<usize>,
    pub(crate) payload: usize,
}

/// Length from which payloads start on a line of their own, so that copies are aligned.
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
    /// Returns the layout of a record; `is_long` if its payload starts on a line of its own.
    fn of(kind: u8, flags: u8, is_long: bool) -> Self {
        let mut at = HEADER_LEN;
        let mut next = |present: bool| {
            present.then(|| {
                at += 8;
                at - 8
            })
        };
        let tag = next(flags & TAGGED != 0);
        let data = next(flags & CQ_DATA != 0);
        let full_len = next(matches!(
            kind,
            FIRST_FRAGMENT | RMA_NOTIFICATION | LOAN | CMA_OFFER
        ));
        Self {
            tag,
            data,
            full_len,
            payload: if is_long { super::ring::LINE_LEN } else { at },
        }
    }

    /// Returns the layout of a record with a payload of `payload_len` bytes, for the sender.
    pub(crate) fn for_payload(kind: u8, flags: u8, payload_len: usize) -> Self {
        Self::of(kind, flags, payload_len >= ALIGN_PAYLOAD_FROM)
    }

    /// Returns the layout of a record of `len` bytes, for the receiver; `None` if the record is too
    /// short for the words that its kind and flags require.
    pub(crate) fn for_record(kind: u8, flags: u8, len: usize) -> Option<Self> {
        let is_long = len >= super::ring::LINE_LEN + ALIGN_PAYLOAD_FROM;
        let layout = Self::of(kind, flags, is_long);
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
    fn full_length_word_round_trips_with_ack_request() {
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
