//! Sends that complete when the peer acknowledges them (`match_complete`, `delivery_complete`).
//!
//! Such a send always goes to the queue. The first record of the message holds an ack id, which
//! stays with the message through matching, buffering, claims and fragments. The receiver
//! acknowledges the message by setting the bit of the ack id in the segment, and rings the doorbell
//! if the sender sleeps. The segment has a bit for each send that an endpoint can have pending. So
//! an ack needs no room in a ring and may arrive in any order: two peers with full rings can
//! acknowledge each other's messages. A message may be acknowledged before all of it was sent,
//! since a receive can match its first fragment; the send completes when the message is sent and
//! acknowledged.
//!
//! Both completion levels wait for a matching receive. libfabric permits a delivery to complete
//! when the peer has buffered the message; `delivery_complete` would then guarantee less than
//! `match_complete`.
//!
//! # Trust
//!
//! A receiver that acknowledges a message early completes the send early. A receiver that never
//! acknowledges keeps the send pending until the connection ends. Ack bits without a pending send
//! are ignored.

use fabric_core::completion::Transfer;
use fabric_core::transport::OpKey;
use slab::Slab;

use super::record::MAX_ACKS;
use super::segment::Segment;

/// A message that was not sent completely, or that the peer has not acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnackedMessage {
    pub(crate) op: OpKey,
    /// What the completion of the send reports.
    pub(crate) transfer: Transfer,
    stage: AckStage,
}

/// How far a message is that the peer acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AckStage {
    /// Neither sent completely nor acknowledged.
    Sending,
    /// Acknowledged before it was sent completely.
    AckedEarly,
    /// Sent completely and not acknowledged.
    AwaitingAck,
}

/// The messages of a connection that wait for the peer's ack, by ack id.
#[derive(Debug, Default)]
pub(crate) struct PendingAcks {
    messages: Slab<UnackedMessage>,
    /// Number of words of the ack bitmap that contain ids in use or used before.
    used_words: usize,
}

impl PendingAcks {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Returns the ack id of the next message; `None` if all ack ids are in use.
    pub(crate) fn vacant_id(&self) -> Option<u32> {
        let ack_id = self.messages.vacant_key();
        (ack_id < MAX_ACKS).then_some(ack_id as u32)
    }

    /// Adds a message whose first record was sent; `ack_id` is from [`vacant_id`](Self::vacant_id).
    pub(crate) fn insert(&mut self, ack_id: u32, op: OpKey, transfer: Transfer) {
        let entry = self.messages.vacant_entry();
        debug_assert_eq!(entry.key(), ack_id as usize);
        entry.insert(UnackedMessage {
            op,
            transfer,
            stage: AckStage::Sending,
        });
        self.used_words = self.used_words.max(ack_id as usize / 64 + 1);
    }

    /// Marks a message as sent completely. Removes and returns the message if it was acknowledged.
    pub(crate) fn mark_sent(&mut self, ack_id: u32) -> Option<UnackedMessage> {
        self.advance(ack_id as usize, AckStage::AwaitingAck, AckStage::AckedEarly)
    }

    /// Returns the operation of the message with this ack id.
    pub(crate) fn op(&self, ack_id: u32) -> Option<OpKey> {
        self.messages.get(ack_id as usize).map(|message| message.op)
    }

    /// Collects the acks of the peer. Removes the messages that are sent and acknowledged, and
    /// calls `on_complete` with each.
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
                self.advance(ack_id, AckStage::AckedEarly, AckStage::AwaitingAck)
                    .into_iter()
                    .for_each(&mut on_complete);
            }
        }
    }

    /// Removes all messages, because the connection ends. Returns those that were sent completely.
    pub(crate) fn take_unacked(&mut self) -> impl Iterator<Item = UnackedMessage> {
        std::mem::take(&mut self.messages)
            .into_iter()
            .map(|(_, message)| message)
            .filter(|message| message.stage == AckStage::AwaitingAck)
    }

    /// Sets the stage of a message to `reached`. Removes and returns the message if its stage is
    /// `other`, so that it is now sent and acknowledged.
    fn advance(
        &mut self,
        ack_id: usize,
        reached: AckStage,
        other: AckStage,
    ) -> Option<UnackedMessage> {
        let message = self.messages.get_mut(ack_id)?;
        if message.stage == other {
            return Some(self.messages.remove(ack_id));
        }
        message.stage = reached;
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use fabric_core::info::Hints;
    use fabric_core::transport::Transport;

    use super::super::ShmTransport;
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
        assert!(acks.mark_sent(first).is_none(), "not acknowledged yet");
        segment.set_ack(second as usize);
        assert!(
            collect_indices(&mut acks, &segment).is_empty(),
            "not sent completely yet"
        );
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
        // Only the message that was sent completely is returned.
        assert_eq!(
            acks.take_unacked()
                .map(|message| message.op.index)
                .collect::<Vec<_>>(),
            [3]
        );
        assert!(acks.is_empty());
    }

    #[test]
    fn ack_ids_suffice_for_the_tx_queue_size() {
        let offers = ShmTransport.offers(&Hints::new()).unwrap();
        assert!(offers.iter().all(|offer| offer.tx.size <= MAX_ACKS));
        let mut acks = PendingAcks::default();
        (0..MAX_ACKS as u32).for_each(|index| {
            insert_message(&mut acks, index);
        });
        assert_eq!(acks.vacant_id(), None);
    }
}
