//! What the records of a ring say: whole messages, beginnings, and pieces.
//!
//! A message that fits into one record is [`WHOLE`]. A longer one is a [`BEGIN`], which tells the
//! full length, and [`PIECE`]s. A [`LOAN`] is a message that is not copied, a [`FETCH`] one that
//! its receiver copies. A [`NOTICE`] tells of a one-sided operation, of how many bytes it was about
//! and in which region; a [`REQUEST`] asks for one. Behind the header come, each only where its
//! flag or kind asks for it: the tag, the data for the receiver's completion, and the full length,
//! eight bytes each; then the payload, at the next line if it is long.
//!
//! A message whose sender waits for word of it is never a `WHOLE`, however short: above its full
//! length there is the receipt, which so costs the other messages nothing.

use fabric_core::completion::CompletionLevel;
use fabric_core::matching::Receipt;

use super::ring::HEADER;

/// A message in one record.
pub(crate) const WHOLE: u8 = 1;
/// The first record of a message that takes several.
pub(crate) const BEGIN: u8 = 2;
/// A further record of it.
pub(crate) const PIECE: u8 = 3;

/// No message: the sender has done something to the receiver's memory.
pub(crate) const NOTICE: u8 = 4;

/// A message that lies in memory which the sender lends: the full length, and as payload the name
/// of the memory and the number under which it is given back.
pub(crate) const LOAN: u8 = 5;

/// A message that the receiver copies out of the sender's own memory: the full length, and as
/// payload where it lies and the number under which it is given back.
pub(crate) const FETCH: u8 = 6;

/// Something to be done to a region that the receiver serves: the words of a request.
pub(crate) const REQUEST: u8 = 7;

/// The payload of a loan, or of a message to be fetched: which memory, and which slot.
pub(crate) const PLACE_BYTES: usize = 16;

/// The record has a tag.
pub(crate) const TAGGED: u8 = 1;
/// The record has completion data.
pub(crate) const DATA: u8 = 2;
/// What the sender did was to read.
pub(crate) const HAS_READ: u8 = 4;

/// Receipts of a connection: more than an endpoint can have sends under way.
pub(crate) const RECEIPTS: usize = 4096;
/// In the word of the full length: where the number of the receipt is, that the match is enough,
/// and that there is one.
const NUMBER_AT: u32 = 48;
const MATCH_BIT: u64 = 1 << 60;
const RECEIPT_BIT: u64 = 1 << 61;

/// The full length of a message with its receipt, as a record says it.
pub(crate) fn total_word(len: usize, receipt: Option<Receipt>) -> u64 {
    let Some(Receipt { number, level }) = receipt else {
        return len as u64;
    };
    let at_match = if level == CompletionLevel::Matched {
        MATCH_BIT
    } else {
        0
    };
    len as u64 | u64::from(number) << NUMBER_AT | at_match | RECEIPT_BIT
}

/// What such a word says. A length that cannot be is left as it is.
pub(crate) fn from_total_word(word: u64) -> (usize, Option<Receipt>) {
    let len = |len: u64| usize::try_from(len).unwrap_or(usize::MAX);
    // With any bit above, it is only too long.
    if word & !(RECEIPT_BIT - 1) != RECEIPT_BIT {
        return (len(word), None);
    }
    let number = (word >> NUMBER_AT) as u32 % RECEIPTS as u32;
    let at_match = word & MATCH_BIT != 0;
    let level = if at_match {
        CompletionLevel::Matched
    } else {
        CompletionLevel::Delivered
    };
    (
        len(word & ((1 << NUMBER_AT) - 1)),
        Some(Receipt { number, level }),
    )
}

/// Where the parts of a record lie, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) tag: Option<usize>,
    pub(crate) data: Option<usize>,
    pub(crate) total: Option<usize>,
    pub(crate) payload: usize,
}

/// Payloads from this size on start on a line of their own, so that copying is aligned.
pub(crate) const ALIGNED: usize = 512;

/// Where the payload lies in a record that has nothing else, of this many bytes.
#[inline]
pub(crate) fn plain_payload(len: usize) -> usize {
    if len >= super::ring::LINE + ALIGNED {
        super::ring::LINE
    } else {
        HEADER
    }
}

impl Layout {
    /// The layout of a record with these flags; `long` when its payload is.
    fn of(kind: u8, flags: u8, long: bool) -> Self {
        let mut at = HEADER;
        let mut next = |present: bool| {
            present.then(|| {
                at += 8;
                at - 8
            })
        };
        let tag = next(flags & TAGGED != 0);
        let data = next(flags & DATA != 0);
        let total = next(matches!(kind, BEGIN | NOTICE | LOAN | FETCH));
        Self {
            tag,
            data,
            total,
            payload: if long { super::ring::LINE } else { at },
        }
    }

    /// The layout for a payload of this many bytes.
    pub(crate) fn for_payload(kind: u8, flags: u8, payload: usize) -> Self {
        Self::of(kind, flags, payload >= ALIGNED)
    }

    /// The layout of a record of this many bytes, as its reader works it out; `None` when it is too
    /// short for what its flags promise.
    pub(crate) fn for_record(kind: u8, flags: u8, len: usize) -> Option<Self> {
        let long = len >= super::ring::LINE + ALIGNED;
        let layout = Self::of(kind, flags, long);
        (len >= layout.payload).then_some(layout)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn writer_and_reader_agree_on_every_length() {
        for kind in [WHOLE, BEGIN, PIECE, NOTICE, LOAN, FETCH, REQUEST] {
            for flags in 0..8 {
                for payload in 0..2000 {
                    let written = Layout::for_payload(kind, flags, payload);
                    let read = Layout::for_record(kind, flags, written.payload + payload);
                    assert_eq!(
                        read,
                        Some(written),
                        "kind {kind}, flags {flags}, payload {payload}"
                    );
                    if (kind, flags) == (WHOLE, 0) {
                        assert_eq!(plain_payload(written.payload + payload), written.payload);
                    }
                }
            }
        }
        assert_eq!(Layout::for_record(WHOLE, TAGGED, HEADER + 7), None);
    }

    #[test]
    fn a_length_and_a_receipt_share_a_word() {
        for len in [0, 1, 1 << 40] {
            assert_eq!(from_total_word(total_word(len, None)), (len, None));
            for level in [CompletionLevel::Matched, CompletionLevel::Delivered] {
                for number in [0, 1, RECEIPTS as u32 - 1] {
                    let receipt = Some(Receipt { number, level });
                    assert_eq!(from_total_word(total_word(len, receipt)), (len, receipt));
                }
            }
        }
        for word in [u64::MAX, 1 << 63, 1 << 62 | RECEIPT_BIT, 1 << 60] {
            assert_eq!(from_total_word(word), (word as usize, None));
        }
    }
}
