//! What a connection waits for before it moves again.

use super::super::rma_bounce::{REQUEST_LEN, RmaBounceBuffer};
use super::QueuedTx;
use super::channel::{MAX_NOTIFICATION_LEN, TxChannel};

impl TxChannel {
    /// Before sleeping with this operation in front: false when something could move now.
    pub(super) fn arm(&mut self, front: Option<&QueuedTx>) -> bool {
        if self.outstanding.has_completed_cma() {
            return false;
        }
        // Asked once: an answer that comes between two questions would be waited for by nobody.
        let awaits_answer = self
            .rma_bounce
            .as_ref()
            .is_some_and(RmaBounceBuffer::is_pending);
        let room = match front.map(|front| self.room_needed(front, awaits_answer)) {
            Some(Some(0)) => return false,
            Some(room) => room,
            None => None,
        };
        let (is_fetching, is_confirmed) = (
            self.outstanding.has_cma_offers(),
            !self.pending_acks.is_empty(),
        );
        let desk = self.rma_bounce.as_ref().filter(|_| awaits_answer);
        if room.is_none() && !is_fetching && !is_confirmed && desk.is_none() {
            return true;
        }
        self.ring.arm(|ring| {
            room.is_some_and(|len| ring.fits(len))
                || (is_fetching && ring.memory().has_returned_slots())
                || (is_confirmed && ring.memory().has_acks())
                || desk.is_some_and(|desk| !desk.is_pending())
        })
    }

    /// How many bytes of the ring this operation waits for, if it does; 0 when it could move now.
    fn room_needed(&mut self, front: &QueuedTx, awaits_answer: bool) -> Option<usize> {
        let Some(remote) = &front.spec.remote else {
            return Some(self.ring.geometry().max_record_len());
        };
        // An answer comes over the socket, which is watched.
        if self.mapped_regions.is_query_pending(remote.key) {
            return None;
        }
        if self.mapped_regions.served_by_owner(remote.key).is_some() {
            return (!awaits_answer).then_some(MAX_NOTIFICATION_LEN + REQUEST_LEN);
        }
        let told = self
            .mapped_regions
            .get(remote.key)
            .is_some_and(|window| window.notifies(&front.spec));
        Some(if told { MAX_NOTIFICATION_LEN } else { 0 })
    }

    /// Whether something waits until the peer has fetched or confirmed it.
    pub(super) fn awaits_peer(&self) -> bool {
        self.outstanding.has_cma_offers() || !self.pending_acks.is_empty()
    }
}
