//! What the records of a ring say: whole messages, beginnings, and pieces.
//!
//! A message that fits into one record is [`MESSAGE`]. A longer one is a [`FIRST_FRAGMENT`], which tells the
//! full length, and [`PIECE`]s. A [`LOAN`] is a message that is not copied, a [`FETCH`] one that
//! its receiver copies. A [`RMA_NOTIFICATION`] tells of a one-sided operation, of how many bytes it was about
//! and in which region; a [`REQUEST`] asks for one. Behind the header come, each only where its
//! flag or kind asks for it: the tag, the data for the receiver's completion, and the full length,
//! eight bytes each; then the payload, at the next line if it is long.
//!
//! A message whose sender waits for word of it is never a `MESSAGE`, however short: above its full
//! length there is the receipt, which so costs the other messages nothing.

use fabric_core::completion::CompletionLevel;
use fabric_core::matching::AckRequest;

use super::ring::HEADER_LEN;

/// A message in one record.
pub(crate) const MESSAGE: u8 = 1;
/// The first record of a message that takes several.
pub(crate) const FIRST_FRAGMENT: u8 = 2;
/// A further record of it.
pub(crate) const FRAGMENT: u8 = 3;

/// No message: the sender has done something to the receiver's memory.
pub(crate) const RMA_NOTIFICATION: u8 = 4;

/// A message that lies in memory which the sender lends: the full length, and as payload the name
/// of the memory and the number under which it is given back.
pub(crate) const LOAN: u8 = 5;

/// A message that the receiver copies out of the sender's own memory: the full length, and as
/// payload where it lies and the number under which it is given back.
pub(crate) const CMA_MESSAGE: u8 = 6;

/// Something to be done to a region that the receiver serves: the words of a request.
pub(crate) const RMA_REQUEST: u8 = 7;

/// The payload of a loan, or of a message to be fetched: which memory, and which slot.
pub(crate) const LOCATION_LEN: usize = 16;

/// The record has a tag.
pub(crate) const TAGGED: u8 = 1;
/// The record has completion data.
pub(crate) const CQ_DATA: u8 = 2;
/// What the sender did was to read.
pub(crate) const RMA_READ: u8 = 4;

/// Receipts of a connection: more than an endpoint can have sends under way.
pub(crate) const MAX_ACKS: usize = 4096;
/// In the word of the full length: where the number of the receipt is, that the match is enough,
/// and that there is one.
const ACK_ID_SHIFT: u32 = 48;
const ACK_AT_MATCH_BIT: u64 = 1 << 60;
const ACK_BIT: u64 = 1 << 61;

/// The full length of a message with its receipt, as a record says it.
pub(crate) fn encode_total(len: usize, receipt: Option<AckRequest>) -> u64 {
    let Some(AckRequest { number, level }) = receipt else {
        return len as u64;
    };
    let at_match = if level == CompletionLevel::Matched {
        ACK_AT_MATCH_BIT
    } else {
        0
    };
    len as u64 | u64::from(number) << ACK_ID_SHIFT | at_match | ACK_BIT
}

/// What such a word says. A length that cannot be is left as it is.
pub(crate) fn decode_total(word: u64) -> (usize, Option<AckRequest>) {
    let len = |len: u64| usize::try_from(len).unwrap_or(usize::MAX);
    // With any bit above, it is only too long.
    if word & !(ACK_BIT - 1) != ACK_BIT {
        return (len(word), None);
    }
    let number = (word >> ACK_ID_SHIFT) as u32 % MAX_ACKS as u32;
    let at_match = word & ACK_AT_MATCH_BIT != 0;
    let level = if at_match {
        CompletionLevel::Matched
    } else {
        CompletionLevel::Delivered
    };
    (
        len(word & ((1 << ACK_ID_SHIFT) - 1)),
        Some(AckRequest { number, level }),
    )
}

/// Where the parts of a record lie, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordLayout {
    pub(crate) tag: Option<usize>,
    pub(crate) data: Option<usize>,
    pub(crate) total: Option<usize>,
    pub(crate) payload: usize,
}

/// Payloads from this size on start on a line of their own, so that copying is aligned.
pub(crate) const ALIGN_PAYLOAD_FROM: usize = 512;

/// Where the payload lies in a record that has nothing else, of this many bytes.
#[inline]
pub(crate) fn plain_payload_offset(len: usize) -> usize {
    if len >= super::ring::LINE_LEN + ALIGN_PAYLOAD_FROM {
        super::ring::LINE_LEN
    } else {
        HEADER_LEN
    }
}

impl RecordLayout {
    /// The layout of a record with these flags; `long` when its payload is.
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
            FIRST_FRAGMENT | RMA_NOTIFICATION | LOAN | CMA_MESSAGE
        ));
        Self {
            tag,
            data,
            total,
            payload: if long { super::ring::LINE_LEN } else { at },
        }
    }

    /// The layout for a payload of this many bytes.
    pub(crate) fn for_payload(kind: u8, flags: u8, payload: usize) -> Self {
        Self::of(kind, flags, payload >= ALIGN_PAYLOAD_FROM)
    }

    /// The layout of a record of this many bytes, as its reader works it out; `None` when it is too
    /// short for what its flags promise.
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
            CMA_MESSAGE,
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
            assert_eq!(decode_total(encode_total(len, None)), (len, None));
            for level in [CompletionLevel::Matched, CompletionLevel::Delivered] {
                for number in [0, 1, MAX_ACKS as u32 - 1] {
                    let receipt = Some(AckRequest { number, level });
                    assert_eq!(decode_total(encode_total(len, receipt)), (len, receipt));
                }
            }
        }
        for word in [u64::MAX, 1 << 63, 1 << 62 | ACK_BIT, 1 << 60] {
            assert_eq!(decode_total(word), (word as usize, None));
        }
    }
}
