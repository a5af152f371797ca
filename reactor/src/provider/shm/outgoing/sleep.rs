//! What a connection waits for before it moves again.

use super::super::desk::{Desk, REQUEST_BYTES};
use super::Queued;
use super::wires::{NOTICE_BYTES, Wires};

impl Wires {
    /// Before sleeping with this operation in front: false when something could move now.
    pub(super) fn arm(&mut self, front: Option<&Queued>) -> bool {
        if self.borrowed.has_fetched() {
            return false;
        }
        // Asked once: an answer that comes between two questions would be waited for by nobody.
        let awaits_answer = self.desk.as_ref().is_some_and(Desk::is_waiting);
        let room = match front.map(|front| self.room_for(front, awaits_answer)) {
            Some(Some(0)) => return false,
            Some(room) => room,
            None => None,
        };
        let (is_fetching, is_confirmed) = (self.borrowed.is_fetching(), !self.receipts.is_empty());
        let desk = self.desk.as_ref().filter(|_| awaits_answer);
        if room.is_none() && !is_fetching && !is_confirmed && desk.is_none() {
            return true;
        }
        self.ring.arm(|ring| {
            room.is_some_and(|len| ring.fits(len))
                || (is_fetching && ring.memory().has_returned())
                || (is_confirmed && ring.memory().is_confirming())
                || desk.is_some_and(|desk| !desk.is_waiting())
        })
    }

    /// How many bytes of the ring this operation waits for, if it does; 0 when it could move now.
    fn room_for(&mut self, front: &Queued, awaits_answer: bool) -> Option<usize> {
        let Some(remote) = &front.spec.remote else {
            return Some(self.ring.shape().longest());
        };
        // An answer comes over the socket, which is watched.
        if self.windows.awaits(remote.key) {
            return None;
        }
        if self.windows.serves(remote.key).is_some() {
            return (!awaits_answer).then_some(NOTICE_BYTES + REQUEST_BYTES);
        }
        let told = self
            .windows
            .get(remote.key)
            .is_some_and(|window| window.tells(&front.spec));
        Some(if told { NOTICE_BYTES } else { 0 })
    }

    /// Whether something waits until the peer has fetched or confirmed it.
    pub(super) fn awaits_peer(&self) -> bool {
        self.borrowed.is_fetching() || !self.receipts.is_empty()
    }
}
