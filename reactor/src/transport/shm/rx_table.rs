//! The connections that came in, and which of them are looked at.
//!
//! A pass looks at every *attended* caller. One that has said nothing for a long time, while others
//! are attended, is left alone: its flag stays raised, so that it rings when it says something.
//! However many callers are left alone, a pass looks at one of them, in turn, so that a ring need
//! not be waited for by somebody who makes passes all the time.
//!
//! **Invariant.** A caller is left alone only while its flag was raised and nothing new was found
//! after that, or its ring is in the socket, which is watched. What its socket has to say makes it
//! attended, and so does what a pass finds. Hence no message waits longer than that of a peer that
//! sleeps: who goes to sleep itself has nothing to do for those left alone. A peer that takes the
//! flag down without ringing holds up its own messages, until its turn comes.

use std::collections::VecDeque;

use slab::Slab;

use super::rx_connection::{PendingHandshake, RxConnection};

/// Callers that are always attended.
pub(crate) const ALWAYS_ACTIVE: usize = 8;
/// Passes without a word after which a caller is left alone, if a few are attended. In a crowd
/// passes take longer, and fewer of them are as long a silence.
const IDLE_PASSES: usize = 1024;
const MIN_IDLE_PASSES: usize = 64;

/// A connection that came in.
#[derive(Debug)]
pub(crate) enum RxSlot {
    Handshaking(PendingHandshake),
    Established(Box<RxConnection>),
}

impl RxSlot {
    pub(crate) fn established(&self) -> Option<&RxConnection> {
        match self {
            Self::Established(peer) => Some(peer),
            Self::Handshaking(_) => None,
        }
    }

    fn established_mut(&mut self) -> Option<&mut RxConnection> {
        match self {
            Self::Established(peer) => Some(peer),
            Self::Handshaking(_) => None,
        }
    }
}

/// All connections that came in.
#[derive(Debug, Default)]
pub(crate) struct RxConnections {
    slots: Slab<RxSlot>,
    active: Vec<usize>,
    idle: VecDeque<usize>,
    /// Those that have not said hello, oldest first.
    handshaking: VecDeque<usize>,
    /// Passes made, and which of the attended is asked next how long it has been silent.
    passes: u32,
    demotion_cursor: usize,
}

impl RxConnections {
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Where the next caller will be.
    pub(crate) fn vacant_key(&self) -> usize {
        self.slots.vacant_key()
    }

    pub(crate) fn is_handshaking(&self, at: usize) -> bool {
        matches!(self.slots.get(at), Some(RxSlot::Handshaking(_)))
    }

    /// A caller that has not said hello yet.
    pub(crate) fn insert_handshake(&mut self, stranger: PendingHandshake) {
        let at = self.slots.insert(RxSlot::Handshaking(stranger));
        self.handshaking.push_back(at);
    }

    /// Takes a stranger out, to be met. A slab gives its place to who is added next.
    pub(crate) fn take_handshake(&mut self, at: usize) -> Option<PendingHandshake> {
        if !self.is_handshaking(at) {
            return None;
        }
        self.handshaking.retain(|stranger| *stranger != at);
        match self.slots.remove(at) {
            RxSlot::Handshaking(stranger) => Some(stranger),
            RxSlot::Established(_) => None,
        }
    }

    /// Lets the strangers that have waited longest go, if there are more than so many.
    pub(crate) fn evict_oldest_handshakes(&mut self, most: usize) {
        while self.handshaking.len() > most {
            if let Some(at) = self.handshaking.pop_front() {
                self.slots.try_remove(at);
            }
        }
    }

    /// A caller that has said hello.
    pub(crate) fn insert_established(&mut self, mut peer: Box<RxConnection>) -> usize {
        peer.last_active = self.passes;
        let at = self.slots.insert(RxSlot::Established(peer));
        self.active.push(at);
        at
    }

    pub(crate) fn remove(&mut self, at: usize) -> Option<RxConnection> {
        self.slots.get(at)?.established()?;
        self.active.retain(|attended| *attended != at);
        self.idle.retain(|alone| *alone != at);
        match self.slots.try_remove(at)? {
            RxSlot::Established(peer) => Some(*peer),
            RxSlot::Handshaking(_) => None,
        }
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut RxConnection> {
        self.slots.get_mut(at)?.established_mut()
    }

    /// All that have said hello.
    pub(crate) fn peers(&self) -> impl Iterator<Item = &RxConnection> {
        self.slots
            .iter()
            .filter_map(|(_, caller)| caller.established())
    }

    pub(crate) fn peers_mut(&mut self) -> impl Iterator<Item = &mut RxConnection> {
        self.slots
            .iter_mut()
            .filter_map(|(_, caller)| caller.established_mut())
    }

    /// Shows all that have said hello.
    pub(crate) fn for_each_peer(&mut self, mut act: impl FnMut(usize, &mut RxConnection)) {
        for (at, caller) in &mut self.slots {
            if let RxSlot::Established(peer) = caller {
                act(at, peer);
            }
        }
    }

    // ---- passes

    /// A pass over the attended callers begins: its number.
    #[inline]
    pub(crate) fn begin_pass(&mut self) -> u32 {
        self.passes = self.passes.wrapping_add(1);
        self.passes
    }

    /// The attended caller of this number, and where it is.
    #[inline]
    pub(crate) fn active_mut(&mut self, number: usize) -> Option<(usize, &mut RxConnection)> {
        let at = *self.active.get(number)?;
        match self.slots.get_mut(at) {
            Some(RxSlot::Established(peer)) => Some((at, peer)),
            _ => None,
        }
    }

    /// One of those left alone, to be looked at in turn.
    #[inline]
    pub(crate) fn next_idle(&mut self) -> Option<usize> {
        self.idle.pop_front()
    }

    /// One of those left alone was looked at: it is attended from now on if it `moved`.
    #[cold]
    pub(crate) fn on_idle_polled(&mut self, at: usize, moved: bool) {
        let passes = self.passes;
        let Some(peer) = self.get_mut(at) else { return };
        if !moved && peer.may_become_idle() {
            self.idle.push_back(at);
            return;
        }
        peer.idle = false;
        peer.disarm();
        peer.last_active = passes;
        self.active.push(at);
    }

    /// Attends to this caller from now on.
    pub(crate) fn activate(&mut self, at: usize) {
        let Some(peer) = self.slots.get_mut(at).and_then(RxSlot::established_mut) else {
            return;
        };
        if std::mem::take(&mut peer.idle) {
            peer.disarm();
            peer.last_active = self.passes;
            self.idle.retain(|alone| *alone != at);
            self.active.push(at);
        }
    }

    pub(crate) fn active_count(&self) -> usize {
        self.active.len()
    }

    /// Leaves one of the attended alone, if it has been silent for long; `crowd` is how many there
    /// are in a pass. True when it just said something instead.
    #[cold]
    pub(crate) fn demote_idle(&mut self, crowd: usize) -> bool {
        let silence =
            (IDLE_PASSES * ALWAYS_ACTIVE / crowd.max(ALWAYS_ACTIVE)).max(MIN_IDLE_PASSES) as u32;
        self.demotion_cursor = if self.demotion_cursor + 1 < self.active.len() {
            self.demotion_cursor + 1
        } else {
            0
        };
        let Some(&at) = self.active.get(self.demotion_cursor) else {
            return false;
        };
        let Some(peer) = self.slots.get_mut(at).and_then(RxSlot::established_mut) else {
            return false;
        };
        if self.passes.wrapping_sub(peer.last_active) < silence || !peer.may_become_idle() {
            return false;
        }
        peer.idle = peer.arm();
        if peer.idle {
            self.active.swap_remove(self.demotion_cursor);
            self.idle.push_back(at);
            return false;
        }
        peer.disarm();
        true
    }

    // ---- sleeping

    /// Before sleeping: false when something could move now. Those left alone will ring anyway.
    pub(crate) fn arm(&mut self) -> bool {
        let mut quiet = true;
        for &at in &self.active {
            quiet &= self
                .slots
                .get_mut(at)
                .and_then(RxSlot::established_mut)
                .is_none_or(RxConnection::arm);
        }
        quiet
    }

    pub(crate) fn disarm(&mut self) {
        for &at in &self.active {
            if let Some(peer) = self.slots.get_mut(at).and_then(RxSlot::established_mut) {
                peer.disarm();
            }
        }
    }
}
