//! Messages that have not ended before the peer has said so.
//!
//! Each has a number, which goes with its record. The peer confirms it by a bit in the segment, so
//! there is always room for that, and nothing has to be read in order. A message may be confirmed
//! before all of it is out of this side's hands: a receive can match its first piece. It ends when
//! it is both.
//!
//! # Trust
//!
//! A peer that confirms what it has not received, or twice, deceives its own sender; one that never
//! does keeps the send waiting until the connection ends. The bits are looked up here, so those of
//! no message mean nothing.

use fabric_core::completion::Transfer;
use fabric_core::provider::OpKey;
use slab::Slab;

use super::record::RECEIPTS;
use super::segment::Segment;

/// A message that waits for the peer's word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unconfirmed {
    pub(crate) op: OpKey,
    pub(crate) transfer: Transfer,
    /// Nothing of it is needed here any more.
    sent: bool,
    confirmed: bool,
}

/// The messages of a connection that wait for the peer's word, by the number of the receipt.
#[derive(Debug, Default)]
pub(crate) struct Receipts {
    all: Slab<Unconfirmed>,
    /// Words in which the peer can have said something.
    words: usize,
}

impl Receipts {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The number that the next message gets; nothing when all are in use.
    pub(crate) fn vacant(&self) -> Option<u32> {
        let number = self.all.vacant_key();
        (number < RECEIPTS).then_some(number as u32)
    }

    /// A message with this number, which was vacant, has begun to be sent.
    pub(crate) fn expect(&mut self, number: u32, op: OpKey, transfer: Transfer) {
        let entry = self.all.vacant_entry();
        debug_assert_eq!(entry.key(), number as usize);
        entry.insert(Unconfirmed {
            op,
            transfer,
            sent: false,
            confirmed: false,
        });
        self.words = self.words.max(number as usize / 64 + 1);
    }

    /// Nothing of this message is needed here any more. Returns it if it has ended.
    pub(crate) fn sent(&mut self, number: u32) -> Option<Unconfirmed> {
        self.all.get_mut(number as usize)?.sent = true;
        self.ended(number as usize)
    }

    /// The operation of the message with this number.
    pub(crate) fn op(&self, number: u32) -> Option<OpKey> {
        self.all.get(number as usize).map(|message| message.op)
    }

    /// Takes in what the peer has said, and shows the messages that have ended.
    pub(crate) fn collect(&mut self, segment: &Segment, mut end: impl FnMut(Unconfirmed)) {
        if !segment.has_confirmed() {
            return;
        }
        for word in 0..self.words {
            let mut bits = segment.take_confirmed(word);
            while bits != 0 {
                let number = 64 * word + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if let Some(message) = self.all.get_mut(number) {
                    message.confirmed = true;
                }
                self.ended(number).into_iter().for_each(&mut end);
            }
        }
    }

    /// The messages that wait for nothing but the peer's word, when that will not come any more.
    /// The others are forgotten.
    pub(crate) fn abandoned(&mut self) -> impl Iterator<Item = Unconfirmed> {
        std::mem::take(&mut self.all)
            .into_iter()
            .map(|(_, message)| message)
            .filter(|message| message.sent)
    }

    fn ended(&mut self, number: usize) -> Option<Unconfirmed> {
        let ended = self
            .all
            .get(number)
            .is_some_and(|message| message.sent && message.confirmed);
        ended.then(|| self.all.remove(number))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn op(index: u32) -> OpKey {
        OpKey {
            index,
            generation: 1,
        }
    }

    fn expect(receipts: &mut Receipts, index: u32) -> u32 {
        let number = receipts.vacant().unwrap();
        receipts.expect(number, op(index), Transfer::sent(1, None));
        number
    }

    fn collected(receipts: &mut Receipts, segment: &Segment) -> Vec<u32> {
        let mut ended = Vec::new();
        receipts.collect(segment, |message| ended.push(message.op.index));
        ended
    }

    #[test]
    fn a_message_ends_when_it_is_sent_and_confirmed() {
        let (segment, _fd) = Segment::create(64).unwrap();
        let mut receipts = Receipts::default();
        let (first, second) = (expect(&mut receipts, 1), expect(&mut receipts, 2));
        assert!(receipts.sent(first).is_none(), "not confirmed");
        segment.confirm(second as usize);
        assert!(collected(&mut receipts, &segment).is_empty(), "not sent");
        assert_eq!(receipts.sent(second).map(|message| message.op), Some(op(2)));
        segment.confirm(first as usize);
        assert!(segment.is_confirming());
        assert_eq!(collected(&mut receipts, &segment), [1]);
        assert!(receipts.is_empty() && !segment.is_confirming());
    }

    #[test]
    fn what_was_not_asked_or_said_before_means_nothing() {
        let (segment, _fd) = Segment::create(64).unwrap();
        let mut receipts = Receipts::default();
        let number = expect(&mut receipts, 1);
        for strange in [1, 63, 64, RECEIPTS - 1] {
            segment.confirm(strange);
        }
        assert!(collected(&mut receipts, &segment).is_empty());
        receipts.sent(number);
        segment.confirm(number as usize);
        assert_eq!(collected(&mut receipts, &segment), [1]);
        segment.confirm(number as usize);
        assert!(
            collected(&mut receipts, &segment).is_empty(),
            "it has ended"
        );
        let unsent = expect(&mut receipts, 2);
        let sent = expect(&mut receipts, 3);
        assert!(unsent != sent && receipts.sent(sent).is_none());
        assert_eq!(
            receipts
                .abandoned()
                .map(|message| message.op.index)
                .collect::<Vec<_>>(),
            [3]
        );
        assert!(receipts.is_empty());
    }

    #[test]
    fn there_are_receipts_for_all_sends_of_an_endpoint() {
        let offers = fabric_core::provider::Provider::offers(&super::super::ShmProvider);
        assert!(offers.iter().all(|offer| offer.tx.size <= RECEIPTS));
        let mut receipts = Receipts::default();
        (0..RECEIPTS as u32).for_each(|index| {
            expect(&mut receipts, index);
        });
        assert_eq!(receipts.vacant(), None);
    }
}
