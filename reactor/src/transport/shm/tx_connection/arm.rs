//! Arming of a connection: what it waits for before it can progress.

use super::super::rma_bounce::{REQUEST_LEN, RmaBounceBuffer};
use super::QueuedTx;
use super::channel::{MAX_NOTIFICATION_LEN, TxChannel};

impl TxChannel {
    /// Arms the doorbell, with this operation in front. Returns false if something can progress
    /// now.
    pub(super) fn arm(&mut self, front: Option<&QueuedTx>) -> bool {
        if self.outstanding.has_returned_cma_offers() {
            return false;
        }
        // Read once: with two reads, a response that comes between them would not be waited for.
        let awaits_response = self
            .rma_bounce
            .as_ref()
            .is_some_and(RmaBounceBuffer::is_pending);
        let room = match front.map(|front| self.room_needed(front, awaits_response)) {
            Some(Some(0)) => return false,
            Some(room) => room,
            None => None,
        };
        let (awaits_slots, awaits_acks) = (
            self.outstanding.has_cma_offers() || self.outstanding.has_awaited_loans(),
            !self.pending_acks.is_empty(),
        );
        let bounce_buffer = self.rma_bounce.as_ref().filter(|_| awaits_response);
        if room.is_none() && !awaits_slots && !awaits_acks && bounce_buffer.is_none() {
            return true;
        }
        self.ring.arm(|ring| {
            room.is_some_and(|len| ring.fits(len))
                || (awaits_slots && ring.memory().has_returned_slots())
                || (awaits_acks && ring.memory().has_acks())
                || bounce_buffer.is_some_and(|bounce_buffer| !bounce_buffer.is_pending())
        })
    }

    /// Returns the room in the ring that this operation waits for, if it does; 0 if it can progress
    /// now.
    fn room_needed(&mut self, front: &QueuedTx, awaits_response: bool) -> Option<usize> {
        let Some(remote) = &front.tx_op.remote else {
            return Some(self.ring.geometry().max_record_len());
        };
        // The response comes over the socket, which is watched.
        if self.mapped_regions.is_map_request_pending(remote.key) {
            return None;
        }
        if self.mapped_regions.served_region(remote.key).is_some() {
            return (!awaits_response).then_some(MAX_NOTIFICATION_LEN + REQUEST_LEN);
        }
        let notifies = self
            .mapped_regions
            .get(remote.key)
            .is_some_and(|region| region.needs_notification(&front.tx_op));
        Some(if notifies { MAX_NOTIFICATION_LEN } else { 0 })
    }

    /// Returns whether some sent operation waits for an ack or for a returned slot, or somebody for
    /// the return of a loan.
    pub(super) fn awaits_peer(&self) -> bool {
        self.outstanding.has_cma_offers()
            || self.outstanding.has_awaited_loans()
            || !self.pending_acks.is_empty()
    }
}
