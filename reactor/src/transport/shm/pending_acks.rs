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
use fabric_core::transport::OpKey;
use slab::Slab;

use super::record::MAX_ACKS;
use super::segment::Segment;

/// A message that waits for the peer's word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnackedMessage {
    pub(crate) op: OpKey,
    pub(crate) transfer: Transfer,
    /// Nothing of it is needed here any more.
    sent: bool,
    acked: bool,
}

/// The messages of a connection that wait for the peer's word, by the number of the receipt.
#[derive(Debug, Default)]
pub(crate) struct PendingAcks {
    messages: Slab<UnackedMessage>,
    /// Words in which the peer can have said something.
    used_words: usize,
}

impl PendingAcks {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The number that the next message gets; nothing when all are in use.
    pub(crate) fn vacant_id(&self) -> Option<u32> {
        let number = self.messages.vacant_key();
        (number < MAX_ACKS).then_some(number as u32)
    }

    /// A message with this number, which was vacant, has begun to be sent.
    pub(crate) fn insert(&mut self, number: u32, op: OpKey, transfer: Transfer) {
        let entry = self.messages.vacant_entry();
        debug_assert_eq!(entry.key(), number as usize);
        entry.insert(UnackedMessage {
            op,
            transfer,
            sent: false,
            acked: false,
        });
        self.used_words = self.used_words.max(number as usize / 64 + 1);
    }

    /// Nothing of this message is needed here any more. Returns it if it has ended.
    pub(crate) fn mark_sent(&mut self, number: u32) -> Option<UnackedMessage> {
        self.messages.get_mut(number as usize)?.sent = true;
        self.take_completed(number as usize)
    }

    /// The operation of the message with this number.
    pub(crate) fn op(&self, number: u32) -> Option<OpKey> {
        self.messages.get(number as usize).map(|message| message.op)
    }

    /// Takes in what the peer has said, and shows the messages that have ended.
    pub(crate) fn collect_acked(&mut self, segment: &Segment, mut end: impl FnMut(UnackedMessage)) {
        if !segment.take_has_acks() {
            return;
        }
        for word in 0..self.used_words {
            let mut bits = segment.take_acks(word);
            while bits != 0 {
                let number = 64 * word + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if let Some(message) = self.messages.get_mut(number) {
                    message.acked = true;
                }
                self.take_completed(number).into_iter().for_each(&mut end);
            }
        }
    }

    /// The messages that wait for nothing but the peer's word, when that will not come any more.
    /// The others are forgotten.
    pub(crate) fn take_unacked(&mut self) -> impl Iterator<Item = UnackedMessage> {
        std::mem::take(&mut self.messages)
            .into_iter()
            .map(|(_, message)| message)
            .filter(|message| message.sent)
    }

    fn take_completed(&mut self, number: usize) -> Option<UnackedMessage> {
        let ended = self
            .messages
            .get(number)
            .is_some_and(|message| message.sent && message.acked);
        ended.then(|| self.messages.remove(number))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn op_key(index: u32) -> OpKey {
        OpKey {
            index,
            generation: 1,
        }
    }

    fn insert_message(receipts: &mut PendingAcks, index: u32) -> u32 {
        let number = receipts.vacant_id().unwrap();
        receipts.insert(number, op_key(index), Transfer::sent(1, None));
        number
    }

    fn collect_indices(receipts: &mut PendingAcks, segment: &Segment) -> Vec<u32> {
        let mut ended = Vec::new();
        receipts.collect_acked(segment, |message| ended.push(message.op.index));
        ended
    }

    #[test]
    fn message_completes_when_sent_and_acked() {
        let (segment, _fd) = Segment::create(64).unwrap();
        let mut receipts = PendingAcks::default();
        let (first, second) = (
            insert_message(&mut receipts, 1),
            insert_message(&mut receipts, 2),
        );
        assert!(receipts.mark_sent(first).is_none(), "not confirmed");
        segment.set_ack(second as usize);
        assert!(
            collect_indices(&mut receipts, &segment).is_empty(),
            "not sent"
        );
        assert_eq!(
            receipts.mark_sent(second).map(|message| message.op),
            Some(op_key(2))
        );
        segment.set_ack(first as usize);
        assert!(segment.has_acks());
        assert_eq!(collect_indices(&mut receipts, &segment), [1]);
        assert!(receipts.is_empty() && !segment.has_acks());
    }

    #[test]
    fn unsolicited_and_repeated_acks_are_ignored() {
        let (segment, _fd) = Segment::create(64).unwrap();
        let mut receipts = PendingAcks::default();
        let number = insert_message(&mut receipts, 1);
        for strange in [1, 63, 64, MAX_ACKS - 1] {
            segment.set_ack(strange);
        }
        assert!(collect_indices(&mut receipts, &segment).is_empty());
        receipts.mark_sent(number);
        segment.set_ack(number as usize);
        assert_eq!(collect_indices(&mut receipts, &segment), [1]);
        segment.set_ack(number as usize);
        assert!(
            collect_indices(&mut receipts, &segment).is_empty(),
            "it has ended"
        );
        let unsent = insert_message(&mut receipts, 2);
        let sent = insert_message(&mut receipts, 3);
        assert!(unsent != sent && receipts.mark_sent(sent).is_none());
        assert_eq!(
            receipts
                .take_unacked()
                .map(|message| message.op.index)
                .collect::<Vec<_>>(),
            [3]
        );
        assert!(receipts.is_empty());
    }

    #[test]
    fn ack_slots_cover_the_tx_queue_size() {
        let offers = fabric_core::transport::Transport::offers(&super::super::ShmTransport);
        assert!(offers.iter().all(|offer| offer.tx.size <= MAX_ACKS));
        let mut receipts = PendingAcks::default();
        (0..MAX_ACKS as u32).for_each(|index| {
            insert_message(&mut receipts, index);
        });
        assert_eq!(receipts.vacant_id(), None);
    }
}
