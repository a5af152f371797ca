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

use super::incoming::{Incoming, Stranger};

/// Callers that are always attended.
pub(crate) const FEW: usize = 8;
/// Passes without a word after which a caller is left alone, if a few are attended. In a crowd
/// passes take longer, and fewer of them are as long a silence.
const SILENCE: usize = 1024;
const SHORTEST_SILENCE: usize = 64;

/// A connection that came in.
#[derive(Debug)]
pub(crate) enum Caller {
    Stranger(Stranger),
    Peer(Box<Incoming>),
}

impl Caller {
    pub(crate) fn peer(&self) -> Option<&Incoming> {
        match self {
            Self::Peer(peer) => Some(peer),
            Self::Stranger(_) => None,
        }
    }

    fn peer_mut(&mut self) -> Option<&mut Incoming> {
        match self {
            Self::Peer(peer) => Some(peer),
            Self::Stranger(_) => None,
        }
    }
}

/// All connections that came in.
#[derive(Debug, Default)]
pub(crate) struct Callers {
    all: Slab<Caller>,
    attended: Vec<usize>,
    alone: VecDeque<usize>,
    /// Those that have not said hello, oldest first.
    strangers: VecDeque<usize>,
    /// Passes made, and which of the attended is asked next how long it has been silent.
    passes: u32,
    next: usize,
}

impl Callers {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Where the next caller will be.
    pub(crate) fn vacant(&self) -> usize {
        self.all.vacant_key()
    }

    pub(crate) fn is_stranger(&self, at: usize) -> bool {
        matches!(self.all.get(at), Some(Caller::Stranger(_)))
    }

    /// A caller that has not said hello yet.
    pub(crate) fn add_stranger(&mut self, stranger: Stranger) {
        let at = self.all.insert(Caller::Stranger(stranger));
        self.strangers.push_back(at);
    }

    /// Takes a stranger out, to be met. A slab gives its place to who is added next.
    pub(crate) fn take_stranger(&mut self, at: usize) -> Option<Stranger> {
        if !self.is_stranger(at) {
            return None;
        }
        self.strangers.retain(|stranger| *stranger != at);
        match self.all.remove(at) {
            Caller::Stranger(stranger) => Some(stranger),
            Caller::Peer(_) => None,
        }
    }

    /// Lets the strangers that have waited longest go, if there are more than so many.
    pub(crate) fn limit_strangers(&mut self, most: usize) {
        while self.strangers.len() > most {
            if let Some(at) = self.strangers.pop_front() {
                self.all.try_remove(at);
            }
        }
    }

    /// A caller that has said hello.
    pub(crate) fn add(&mut self, mut peer: Box<Incoming>) -> usize {
        peer.heard = self.passes;
        let at = self.all.insert(Caller::Peer(peer));
        self.attended.push(at);
        at
    }

    pub(crate) fn remove(&mut self, at: usize) -> Option<Incoming> {
        self.all.get(at)?.peer()?;
        self.attended.retain(|attended| *attended != at);
        self.alone.retain(|alone| *alone != at);
        match self.all.try_remove(at)? {
            Caller::Peer(peer) => Some(*peer),
            Caller::Stranger(_) => None,
        }
    }

    pub(crate) fn get(&mut self, at: usize) -> Option<&mut Incoming> {
        self.all.get_mut(at)?.peer_mut()
    }

    /// All that have said hello.
    pub(crate) fn peers(&self) -> impl Iterator<Item = &Incoming> {
        self.all.iter().filter_map(|(_, caller)| caller.peer())
    }

    pub(crate) fn peers_mut(&mut self) -> impl Iterator<Item = &mut Incoming> {
        self.all
            .iter_mut()
            .filter_map(|(_, caller)| caller.peer_mut())
    }

    /// Shows all that have said hello.
    pub(crate) fn each(&mut self, mut act: impl FnMut(usize, &mut Incoming)) {
        for (at, caller) in &mut self.all {
            if let Caller::Peer(peer) = caller {
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
    pub(crate) fn attended_mut(&mut self, number: usize) -> Option<(usize, &mut Incoming)> {
        let at = *self.attended.get(number)?;
        match self.all.get_mut(at) {
            Some(Caller::Peer(peer)) => Some((at, peer)),
            _ => None,
        }
    }

    /// One of those left alone, to be looked at in turn.
    #[inline]
    pub(crate) fn next_alone(&mut self) -> Option<usize> {
        self.alone.pop_front()
    }

    /// One of those left alone was looked at: it is attended from now on if it `moved`.
    #[cold]
    pub(crate) fn visited(&mut self, at: usize, moved: bool) {
        let passes = self.passes;
        let Some(peer) = self.get(at) else { return };
        if !moved && peer.may_be_left() {
            self.alone.push_back(at);
            return;
        }
        peer.alone = false;
        peer.disarm();
        peer.heard = passes;
        self.attended.push(at);
    }

    /// Attends to this caller from now on.
    pub(crate) fn attend(&mut self, at: usize) {
        let Some(peer) = self.all.get_mut(at).and_then(Caller::peer_mut) else {
            return;
        };
        if std::mem::take(&mut peer.alone) {
            peer.disarm();
            peer.heard = self.passes;
            self.alone.retain(|alone| *alone != at);
            self.attended.push(at);
        }
    }

    pub(crate) fn attended(&self) -> usize {
        self.attended.len()
    }

    /// Leaves one of the attended alone, if it has been silent for long; `crowd` is how many there
    /// are in a pass. True when it just said something instead.
    #[cold]
    pub(crate) fn leave_one(&mut self, crowd: usize) -> bool {
        let silence = (SILENCE * FEW / crowd.max(FEW)).max(SHORTEST_SILENCE) as u32;
        self.next = if self.next + 1 < self.attended.len() {
            self.next + 1
        } else {
            0
        };
        let Some(&at) = self.attended.get(self.next) else {
            return false;
        };
        let Some(peer) = self.all.get_mut(at).and_then(Caller::peer_mut) else {
            return false;
        };
        if self.passes.wrapping_sub(peer.heard) < silence || !peer.may_be_left() {
            return false;
        }
        peer.alone = peer.arm();
        if peer.alone {
            self.attended.swap_remove(self.next);
            self.alone.push_back(at);
            return false;
        }
        peer.disarm();
        true
    }

    // ---- sleeping

    /// Before sleeping: false when something could move now. Those left alone will ring anyway.
    pub(crate) fn arm(&mut self) -> bool {
        let mut quiet = true;
        for &at in &self.attended {
            quiet &= self
                .all
                .get_mut(at)
                .and_then(Caller::peer_mut)
                .is_none_or(Incoming::arm);
        }
        quiet
    }

    pub(crate) fn disarm(&mut self) {
        for &at in &self.attended {
            if let Some(peer) = self.all.get_mut(at).and_then(Caller::peer_mut) {
                peer.disarm();
            }
        }
    }
}
