//! Arming of an outgoing connection: whether this side can sleep, and what wakes it.

use super::super::rma_bounce::RmaBounceBuffer;
use super::QueuedTx;
use super::channel::{MAX_NOTIFICATION_LEN, MAX_REQUEST_AND_NOTIFICATION_LEN, TxChannel};

/// What the operation at the front of the queue waits for.
enum FrontWait {
    /// Nothing: the operation can progress now.
    Nothing,
    /// Room in the ring for a record of this many bytes.
    RingRoom(usize),
    /// The response to a map request, which arrives over the watched socket, or to an RMA request.
    Response,
}

impl TxChannel {
    /// Arms the doorbell; `front` is the operation at the front of the queue. Returns false if
    /// something can progress now, and leaves the doorbell disarmed then.
    pub(super) fn arm(&mut self, front: Option<&QueuedTx>) -> bool {
        if self.outstanding.has_returned_cma_offers() {
            return false;
        }
        // `is_pending` is read once here. If `front_wait` read it again, a response that arrived
        // between the two reads would be missed.
        let awaits_response = self
            .rma_bounce
            .as_ref()
            .is_some_and(RmaBounceBuffer::is_pending);
        let room = match front.map(|front| self.front_wait(front, awaits_response)) {
            Some(FrontWait::Nothing) => return false,
            Some(FrontWait::RingRoom(len)) => Some(len),
            Some(FrontWait::Response) | None => None,
        };
        let awaits_slots = self.awaits_slots();
        let awaits_acks = !self.pending_acks.is_empty();
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

    /// Returns what this operation, at the front of the queue, waits for; `awaits_response` if an
    /// RMA request has no response yet.
    fn front_wait(&mut self, front: &QueuedTx, awaits_response: bool) -> FrontWait {
        let Some(remote) = &front.tx_op.remote else {
            return FrontWait::RingRoom(self.ring.max_record_len());
        };
        if self.mapped_regions.is_map_request_pending(remote.key) {
            return FrontWait::Response;
        }
        if self.mapped_regions.served_region(remote.key).is_some() {
            return if awaits_response {
                FrontWait::Response
            } else {
                FrontWait::RingRoom(MAX_REQUEST_AND_NOTIFICATION_LEN)
            };
        }
        let needs_notification = self
            .mapped_regions
            .get(remote.key)
            .is_some_and(|region| region.needs_notification(&front.tx_op));
        if needs_notification {
            FrontWait::RingRoom(MAX_NOTIFICATION_LEN)
        } else {
            FrontWait::Nothing
        }
    }

    /// Returns whether an operation waits for an ack, or for a slot that the peer holds.
    pub(super) fn awaits_peer(&self) -> bool {
        self.awaits_slots() || !self.pending_acks.is_empty()
    }

    /// Returns whether a CMA offer, or a loan that is waited for, is held by the peer.
    fn awaits_slots(&self) -> bool {
        self.outstanding.has_cma_offers() || self.outstanding.has_awaited_loans()
    }
}
