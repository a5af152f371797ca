//! Sends that complete when the peer acknowledges them (`match_complete`, `delivery_complete`).
//!
//! Such a send always goes to the queue. It gets an id, which its first record carries and which
//! stays with the message through matching, buffering, claims and fragments. The peer acknowledges
//! it by a bit in the segment and rings if the sender sleeps. There is one bit for each send that
//! an endpoint can have under way, so an ack needs no room, waits for nothing, and may come in any
//! order: two peers with full rings acknowledge each other's messages. A message may be
//! acknowledged before all of it was sent, since a receive can match its first fragment; the send
//! completes when both have happened.
//!
//! Both levels wait for a receive. libfabric lets a delivery complete when the message is buffered
//! at the peer; then `delivery_complete` would say less than `match_complete`, and hardly more than
//! that the message was sent.
//!
//! # Trust
//!
//! A peer that acknowledges what it has not received, or twice, deceives its own sender; one that
//! never does keeps the send waiting until the connection ends. Bits are looked up here, and those
//! without a send are ignored.

use fabric_core::completion::Transfer;
use fabric_core::transport::OpKey;
use slab::Slab;

use super::record::MAX_ACKS;
use super::segment::Segment;

/// A message that waits for the peer's ack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnackedMessage {
    pub(crate) op: OpKey,
    pub(crate) transfer: Transfer,
    /// Whether the message has been sent completely.
    sent: bool,
    acked: bool,
}

/// The messages of a connection that wait for the peer's ack, by ack id.
#[derive(Debug, Default)]
pub(crate) struct PendingAcks {
    messages: Slab<UnackedMessage>,
    /// Words of the segment that may hold acks.
    used_words: usize,
}

impl PendingAcks {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Returns the ack id of the next message; `None` if all are in use.
    pub(crate) fn vacant_id(&self) -> Option<u32> {
        let ack_id = self.messages.vacant_key();
        (ack_id < MAX_ACKS).then_some(ack_id as u32)
    }

    /// Adds a message with this ack id, which was vacant: its transmission has begun.
    pub(crate) fn insert(&mut self, ack_id: u32, op: OpKey, transfer: Transfer) {
        let entry = self.messages.vacant_entry();
        debug_assert_eq!(entry.key(), ack_id as usize);
        entry.insert(UnackedMessage {
            op,
            transfer,
            sent: false,
            acked: false,
        });
        self.used_words = self.used_words.max(ack_id as usize / 64 + 1);
    }

    /// Marks a message as sent completely. Returns the message if it has completed.
    pub(crate) fn mark_sent(&mut self, ack_id: u32) -> Option<UnackedMessage> {
        self.messages.get_mut(ack_id as usize)?.sent = true;
        self.take_completed(ack_id as usize)
    }

    /// Returns the operation of the message with this ack id.
    pub(crate) fn op(&self, ack_id: u32) -> Option<OpKey> {
        self.messages.get(ack_id as usize).map(|message| message.op)
    }

    /// Collects the acks of the peer, and calls `on_complete` with the messages that have
    /// completed.
    pub(crate) fn collect_acked(
        &mut self,
        segment: &Segment,
        mut on_complete: impl FnMut(UnackedMessage),
    ) {
        if !segment.take_has_acks() {
            return;
        }
        for word in 0..self.used_words {
            let mut bits = segment.take_acks(word);
            while bits != 0 {
                let ack_id = 64 * word + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if let Some(message) = self.messages.get_mut(ack_id) {
                    message.acked = true;
                }
                self.take_completed(ack_id)
                    .into_iter()
                    .for_each(&mut on_complete);
            }
        }
    }

    /// Takes the messages that only wait for an ack, when acks will not come any more. The other
    /// messages are forgotten.
    pub(crate) fn take_unacked(&mut self) -> impl Iterator<Item = UnackedMessage> {
        std::mem::take(&mut self.messages)
            .into_iter()
            .map(|(_, message)| message)
            .filter(|message| message.sent)
    }

    fn take_completed(&mut self, ack_id: usize) -> Option<UnackedMessage> {
        let completed = self
            .messages
            .get(ack_id)
            .is_some_and(|message| message.sent && message.acked);
        completed.then(|| self.messages.remove(ack_id))
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

    fn insert_message(acks: &mut PendingAcks, index: u32) -> u32 {
        let ack_id = acks.vacant_id().unwrap();
        acks.insert(ack_id, op_key(index), Transfer::sent(1, None));
        ack_id
    }

    fn collect_indices(acks: &mut PendingAcks, segment: &Segment) -> Vec<u32> {
        let mut completed = Vec::new();
        acks.collect_acked(segment, |message| completed.push(message.op.index));
        completed
    }

    #[test]
    fn message_completes_when_sent_and_acked() {
        let (segment, _fd) = Segment::create(64).unwrap();
        let mut acks = PendingAcks::default();
        let (first, second) = (insert_message(&mut acks, 1), insert_message(&mut acks, 2));
        assert!(acks.mark_sent(first).is_none(), "not acknowledged");
        segment.set_ack(second as usize);
        assert!(collect_indices(&mut acks, &segment).is_empty(), "not sent");
        assert_eq!(
            acks.mark_sent(second).map(|message| message.op),
            Some(op_key(2))
        );
        segment.set_ack(first as usize);
        assert!(segment.has_acks());
        assert_eq!(collect_indices(&mut acks, &segment), [1]);
        assert!(acks.is_empty() && !segment.has_acks());
    }

    #[test]
    fn unsolicited_and_repeated_acks_are_ignored() {
        let (segment, _fd) = Segment::create(64).unwrap();
        let mut acks = PendingAcks::default();
        let ack_id = insert_message(&mut acks, 1);
        for unsolicited in [1, 63, 64, MAX_ACKS - 1] {
            segment.set_ack(unsolicited);
        }
        assert!(collect_indices(&mut acks, &segment).is_empty());
        acks.mark_sent(ack_id);
        segment.set_ack(ack_id as usize);
        assert_eq!(collect_indices(&mut acks, &segment), [1]);
        segment.set_ack(ack_id as usize);
        assert!(
            collect_indices(&mut acks, &segment).is_empty(),
            "already completed"
        );
        let unsent = insert_message(&mut acks, 2);
        let sent = insert_message(&mut acks, 3);
        assert!(unsent != sent && acks.mark_sent(sent).is_none());
        assert_eq!(
            acks.take_unacked()
                .map(|message| message.op.index)
                .collect::<Vec<_>>(),
            [3]
        );
        assert!(acks.is_empty());
    }

    #[test]
    fn ack_slots_cover_the_tx_queue_size() {
        let offers = fabric_core::transport::Transport::offers(&super::super::ShmTransport);
        assert!(offers.iter().all(|offer| offer.tx.size <= MAX_ACKS));
        let mut acks = PendingAcks::default();
        (0..MAX_ACKS as u32).for_each(|index| {
            insert_message(&mut acks, index);
        });
        assert_eq!(acks.vacant_id(), None);
    }
}
