//! Flushes under way.

use fabric_core::transport::{EpId, OpKey};

use super::domain_state::DomainState;
use super::ops::{OpPhase, OpState};

/// Flushes under way: tasks that wait until everything posted has left.
#[derive(Debug, Default)]
pub(crate) struct Flushes(Vec<Flush>);

impl Flushes {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A flush under way.
#[derive(Debug)]
struct Flush {
    /// The operation that completes with the flush.
    key: OpKey,
    /// The operations that had not left when the flush began. One that has left is removed when it
    /// is the last in the list.
    waits_for: Vec<OpKey>,
}

impl DomainState {
    /// Begins a flush of one endpoint or of all endpoints. It completes at once if there is nothing
    /// to wait for.
    pub(crate) fn begin_flush(&mut self, ep: Option<EpId>) -> OpKey {
        let waits_for = self.ops.keys_where(|op| {
            let in_scope = ep.is_none_or(|ep| op.ep == ep);
            in_scope && op.is_unsent()
        });
        // The flush of an endpoint outlives the endpoint.
        let key = self.ops.insert(OpState::wait(None, OpPhase::Waiting));
        self.flushes.0.push(Flush { key, waits_for });
        self.end_flushes();
        key
    }

    /// Completes the flushes that have nothing left to wait for, and removes those that were
    /// dropped.
    #[cold]
    pub(crate) fn end_flushes(&mut self) {
        let Self { flushes, ops, .. } = self;
        let mut ended = Vec::new();
        flushes.0.retain_mut(|Flush { key, waits_for }| {
            let is_dropped = ops.get(*key).is_none();
            // Only the last operation is checked, until it has left; then the one before it.
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
            self.end_wait(key);
        }
    }
}
