//! Messages that lie in memory of their sender's: given on as they are, or copied by and by.
//!
//! Memory that is mapped here stays, whatever becomes of the sender: a message in it waits where it
//! lies. Memory that is not mapped is *fleeting*. Its message is copied as well if nobody has asked
//! for it, as far as the budget goes: two peers that each send before they receive must not wait
//! for each other. Beyond the budget it waits with its sender, and holds up nothing else.

use std::mem::MaybeUninit;
use std::sync::Arc;

use super::landing::{Landing, LandingId, Target};
use super::lost::{Filling, OnLoss};
use super::multi::Match;
use super::receipts::confirm_match;
use super::{OVERHEAD, RxContext, Unexpected};
use crate::buf::{LentMemory, Source};
use crate::error::Error;
use crate::matching::{Envelope, PeerKey, WaitKey};
use crate::provider::{Host, OpKey};

/// Bytes of a lent message that are copied in one go. A longer one is copied by and by.
pub(super) const COPIED_AT_ONCE: usize = 256 << 10;

/// A message that waits in memory which is not mapped here.
#[derive(Clone, Copy)]
pub(super) struct Fleeting {
    pub(super) arrival: u64,
    pub(super) key: WaitKey,
    pub(super) len: usize,
}

/// Part of lent memory.
struct Piece<'a> {
    memory: &'a dyn LentMemory,
    from: usize,
    len: usize,
}

impl Source for Piece<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn copy_to<'d>(&self, from: usize, dst: &'d mut [MaybeUninit<u8>]) -> &'d mut [u8] {
        self.memory.copy_to(self.from + from, dst)
    }

    fn copy_over(&self, from: usize, dst: &mut [u8]) {
        self.memory.copy_over(self.from + from, dst);
    }
}

/// A lent message, as bytes to be copied or held.
struct Held<'a>(&'a Arc<dyn LentMemory>);

impl Source for Held<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn copy_to<'d>(&self, from: usize, dst: &'d mut [MaybeUninit<u8>]) -> &'d mut [u8] {
        self.0.copy_to(from, dst)
    }

    fn copy_over(&self, from: usize, dst: &mut [u8]) {
        self.0.copy_over(from, dst);
    }

    fn lent(&self) -> Option<Arc<dyn LentMemory>> {
        Some(self.0.clone())
    }
}

impl Unexpected {
    /// Whether it goes with its sender.
    pub(super) fn is_fleeting(&self) -> bool {
        self.lent.as_ref().is_some_and(|memory| !memory.is_mapped())
    }
}

impl RxContext {
    /// A whole message arrives in memory that can be held instead of copied. False: it must stay
    /// where it is.
    pub fn lend(
        &mut self,
        host: &mut dyn Host,
        mut envelope: Envelope,
        memory: &Arc<dyn LentMemory>,
    ) -> bool {
        if envelope.len <= COPIED_AT_ONCE && memory.is_mapped() {
            return self.deliver(host, envelope, &Held(memory));
        }
        match self.matched_among(host, &envelope) {
            Match::Receive(receive) => {
                envelope.arrival = self.matcher.next_arrival();
                self.share(host, receive, envelope, memory.clone());
                true
            }
            Match::Held => self.decline(),
            Match::Nobody => self.deliver(host, envelope, &Held(memory)),
        }
    }

    /// Gives lent memory to a receive: as it is, or copied by and by.
    pub(super) fn share(
        &mut self,
        host: &mut dyn Host,
        (op, on_loss): (OpKey, OnLoss),
        mut envelope: Envelope,
        memory: Arc<dyn LentMemory>,
    ) {
        if memory.is_mapped() && (envelope.len <= COPIED_AT_ONCE || host.shares(op, envelope.len)) {
            host.deliver(op, &envelope, &Held(&memory));
            return self.owe_receipt(&envelope);
        }
        confirm_match(&mut self.receipts, &mut envelope);
        let room = match host.expect(op, envelope.len) {
            Ok(room) => room,
            Err(error) => return self.refuse(host, op, &envelope, error),
        };
        let target = Target::Receive {
            op,
            room,
            placed: 0,
        };
        let id = self.landings.insert(Landing::new(envelope, target));
        self.filling.push(Filling {
            op,
            landing: id,
            on_loss,
        });
        self.copying.push_back((id, memory));
    }

    /// Copies a piece of a lent message that is being copied. Returns whether there was one.
    pub fn copy_on(&mut self, host: &mut dyn Host) -> bool {
        self.let_go = false;
        self.buffer_fleeting();
        let Some((id, memory)) = self.copying.pop_front() else {
            return false;
        };
        if !self.copy_piece(host, LandingId(id), &*memory) {
            // Everybody gets a turn.
            self.copying.push_back((id, memory));
        }
        true
    }

    /// Whether [`RxContext::serve`] or [`RxContext::copy_on`] have something to do, or senders
    /// something to hear.
    #[must_use]
    #[inline]
    pub fn has_chores(&self) -> bool {
        let copies = !self.copying.is_empty() || self.let_go || self.is_serving();
        copies || self.owes_receipts() || self.bufferable().is_some()
    }

    /// What this peer has not mapped here is lost, and discarded; its sender knows that it has not
    /// arrived. The receives that it was being copied to fail if they are directed, and wait for the
    /// next message otherwise.
    pub fn lose(&mut self, host: &mut dyn Host, peer: PeerKey, error: &Error) {
        let mut lost = Vec::new();
        self.copying.retain(|(id, memory)| {
            let from_there = self
                .landings
                .get(*id)
                .is_some_and(|landing| landing.envelope.peer == peer);
            let is_lost = from_there && !memory.is_mapped();
            lost.extend(is_lost.then_some(*id));
            !is_lost
        });
        self.lose_claims(peer, error);
        let of_peer = |envelope: &Envelope, message: &Unexpected| {
            envelope.peer == peer && message.is_fleeting()
        };
        for (envelope, message) in self.matcher.take_where(of_peer) {
            self.used = self.used.saturating_sub(message.cost(&envelope));
            self.unnote(envelope.arrival);
        }
        // Last: a receive that waits again must not find another message of this peer.
        for id in lost {
            self.fail(host, LandingId(id), error.clone());
        }
    }

    /// Copies the next piece of this message; true when it is over with, for good or ill.
    fn copy_piece(&mut self, host: &mut dyn Host, id: LandingId, memory: &dyn LentMemory) -> bool {
        let Some(landing) = self.landings.get(id.0) else {
            return true;
        };
        let (from, rest) = (landing.arrived, memory.len() - landing.arrived);
        let is_full = match landing.target {
            Target::Receive { room, placed, .. } => room == placed,
            Target::Nobody => true,
            Target::Buffer(_) | Target::Claim(_) => false,
        };
        // What nobody has room for is not copied.
        let len = if is_full {
            rest
        } else {
            rest.min(COPIED_AT_ONCE)
        };
        self.place(host, id, &Piece { memory, from, len }, len);
        match memory.check() {
            Ok(()) => self.arrived(host, id, len),
            Err(error) => {
                if let Some(Target::Claim(claim)) =
                    self.landings.get(id.0).map(|landing| landing.target)
                    && let Some(message) = self.asked.message(claim)
                {
                    // Whoever claimed it gets what was good.
                    message.bytes.vec_mut().truncate(from);
                }
                self.fail(host, id, error);
                true
            }
        }
    }

    /// Begins to copy what waits in memory that is not mapped, as far as the budget goes.
    fn buffer_fleeting(&mut self) {
        while let Some(at) = self.bufferable() {
            let Fleeting { key, len, .. } = self.fleeting.remove(at);
            let Some((envelope, message)) = self.matcher.message_mut(key) else {
                continue;
            };
            let Some(memory) = message.lent.take() else {
                continue;
            };
            let target = Target::Buffer(key);
            let id = self.landings.insert(Landing::new(envelope.clone(), target));
            message.landing = Some(id);
            self.used += len;
            self.copying.push_back((id, memory));
        }
    }

    /// The first of them that the budget has room for.
    fn bufferable(&self) -> Option<usize> {
        self.fleeting
            .iter()
            .position(|fleeting| self.admits(fleeting.len))
    }

    /// Such a message waits.
    pub(super) fn note_fleeting(&mut self, fleeting: Fleeting) {
        if fleeting.len + OVERHEAD <= self.budget {
            self.fleeting.push(fleeting);
        }
    }

    /// It does not wait any more.
    pub(super) fn unnote(&mut self, arrival: u64) {
        self.fleeting.retain(|fleeting| fleeting.arrival != arrival);
    }
}
