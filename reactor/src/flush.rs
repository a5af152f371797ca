//! Waiting until everything that was posted has left.

use std::task::{Context, Poll};

use fabric_core::Result;
use fabric_core::buf::AnyBuf;
use fabric_core::completion::OpKind;
use fabric_core::transport::{EpId, OpKey};

use crate::domain::DomainHandle;
use crate::domain_state::DomainState;
use crate::ops::{CompletionTarget, OpPhase, OpState};

/// The endpoint of a flush: a flush of a domain is of no endpoint, and one of an endpoint outlives
/// it.
const NO_ENDPOINT: EpId = EpId(u32::MAX);

/// A flush that is under way.
#[derive(Debug)]
pub(crate) struct Flush {
    /// The operation that ends with it.
    key: OpKey,
    /// What it waits for. What has left is taken out when it is the last one here.
    waits_for: Vec<OpKey>,
}

impl OpState {
    /// Whether bytes that it gives away are still to be handed over.
    fn is_unsent(&self) -> bool {
        let gives = matches!(self.kind, OpKind::Send | OpKind::Write | OpKind::Atomic);
        gives && !self.no_transfer && !self.has_left && self.phase != OpPhase::Done
    }
}

impl DomainState {
    /// Begins a flush, of an endpoint or of all. It ends at once where there is nothing to wait
    /// for.
    fn begin_flush(&mut self, ep: Option<EpId>) -> OpKey {
        let waits_for = self.ops.keys_of(|op| {
            let is_meant = ep.is_none_or(|ep| op.ep == ep);
            is_meant && op.is_unsent()
        });
        let mut op = OpState::new(
            NO_ENDPOINT,
            OpKind::Send,
            CompletionTarget::Future,
            AnyBuf::None,
        );
        op.no_transfer = true;
        op.phase = OpPhase::Queued;
        let key = self.ops.insert(op);
        self.flushes.push(Flush { key, waits_for });
        self.end_flushes();
        key
    }

    /// Ends the flushes that have nothing left to wait for, and forgets those that were dropped.
    #[cold]
    pub(crate) fn end_flushes(&mut self) {
        let Self { flushes, ops, .. } = self;
        let mut ended = Vec::new();
        flushes.retain_mut(|Flush { key, waits_for }| {
            let is_dropped = ops.get(*key).is_none();
            // What is at the end of the list stands for all of it: each operation is looked at
            // until it has left, and never again.
            while !is_dropped
                && let Some(last) = waits_for.last()
                && !ops.get(*last).is_some_and(OpState::is_unsent)
            {
                waits_for.pop();
            }
            if !is_dropped && waits_for.is_empty() {
                ended.push(*key);
            }
            !is_dropped && !waits_for.is_empty()
        });
        for key in ended {
            self.complete_future(key);
        }
    }
}

impl DomainHandle {
    /// Begins to wait until everything that was posted, on this endpoint or on all of the domain,
    /// has been handed over; [`DomainHandle::poll_flush`] waits, and [`DomainHandle::detach`] forgets it.
    #[must_use]
    pub fn flush(&self, ep: Option<EpId>) -> OpKey {
        self.with_engine(|locked| {
            locked.write_collected();
            locked.domain.begin_flush(ep)
        })
    }

    /// Drives until a flush has ended. It is still to be [abandoned](Domain::abandon).
    pub fn poll_flush(&self, key: OpKey, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.poll_permit(key, cx)
    }
}
