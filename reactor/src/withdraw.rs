//! Taking operations back that have not begun, and leaving those to themselves for which nobody
//! waits any more.

use fabric_core::Error;
use fabric_core::buf::AnyBuf;
use fabric_core::completion::OpKind;
use fabric_core::event::EventKind;
use fabric_core::provider::{Host, OpKey};

use crate::domain::Domain;
use crate::engine::Locked;
use crate::hub::FollowUp;
use crate::ops::{Phase, Route};

impl Locked<'_> {
    /// Takes an operation back that has not begun; its slot stays.
    pub(crate) fn withdraw(&mut self, key: OpKey) -> bool {
        let state = &mut **self;
        let Some(op) = state.hub.ops.get(key) else {
            return false;
        };
        let ep = op.ep;
        match op.phase {
            Phase::Waiting => {
                if let Ok(bound) = state.hub.ep(ep) {
                    bound.transmit.leave(key);
                    bound.hold();
                    if !bound.transmit.is_idle() {
                        // It may have been a fence.
                        state.hub.follow_ups.push(FollowUp::Grant(ep));
                    }
                }
                true
            }
            Phase::Posted => state.cancel(ep, key),
            Phase::Done => false,
        }
    }

    pub(crate) fn abandon(&mut self, key: OpKey) {
        let state = &mut **self;
        let Some(op) = state.hub.ops.get(key) else {
            return;
        };
        let (ep, kind) = (op.ep, op.kind);
        let is_atomic = matches!(kind, OpKind::Atomic | OpKind::FetchAtomic);
        match op.phase {
            // Nobody has been told that it was accepted, and it is not one that takes effect
            // whoever looks.
            Phase::Waiting if !op.credit && op.route == Route::Future && !is_atomic => {
                self.withdraw(key);
                self.hub.discard(key);
            }
            Phase::Posted if kind == OpKind::Recv => {
                state.abandon_recv(ep, key);
                state.hub.discard(key);
            }
            // One that waits and has a credit is fenced, and was accepted; so was one that was
            // posted to a queue.
            Phase::Waiting | Phase::Posted => {
                let Some(op) = state.hub.ops.get_mut(key) else {
                    return;
                };
                op.route = Route::Nobody;
                let waiter = op.waker.take();
                state.hub.drop_waiter(waiter);
            }
            Phase::Done => {
                let outcome = &op.outcome;
                let placed = outcome.transfer.len;
                let message = match outcome.error.as_deref() {
                    None => Some(outcome.transfer.envelope(0)),
                    Some(Error::Truncated { lost, .. }) => Some(outcome.transfer.envelope(*lost)),
                    Some(_) => None,
                };
                if let Some(envelope) = message.filter(|_| kind == OpKind::Recv) {
                    let (source, bytes) = (envelope.source, state.hub.reclaim(key, placed));
                    state.put_back(ep, envelope, bytes);
                    state.hub.seen(source);
                }
                let failed = state
                    .hub
                    .ops
                    .get(key)
                    .filter(|op| op.kind != OpKind::Recv && !op.permit);
                let failed = failed.and_then(|op| {
                    let error = op
                        .outcome
                        .error
                        .as_deref()
                        .filter(|error| **error != Error::Canceled)?;
                    Some((op.spec.map(|spec| spec.peer), error.clone()))
                });
                if let Some((peer, error)) = failed {
                    state
                        .hub
                        .event(ep, EventKind::OperationFailed { peer, error });
                }
                self.hub.discard(key);
            }
        }
    }
}

impl Domain {
    /// Gives a permit back, with its credit; or only forgets the permit when its credit has been
    /// used.
    pub fn release_permit(&self, key: OpKey, used: bool) {
        self.with(|locked| {
            if used && let Some(op) = locked.hub.ops.get_mut(key) {
                op.credit = false;
            }
            locked.withdraw(key);
            locked.hub.discard(key);
        });
    }

    /// Takes an operation back if it has not begun. `Ok`: here is its buffer; it will not complete.
    /// `Err`: it has begun, or has ended, and will complete.
    ///
    /// # Errors
    /// The unit, when it is too late.
    #[allow(clippy::result_unit_err)] // "too late" has nothing more to say
    pub fn cancel(&self, key: OpKey) -> Result<AnyBuf, ()> {
        self.with(|locked| {
            let withdrawn = locked.withdraw(key);
            let mut op = withdrawn
                .then(|| locked.hub.ops.remove(key))
                .flatten()
                .ok_or(())?;
            locked.hub.forget_waker(&mut op);
            locked.hub.give_back(&mut op);
            Ok(op.buf)
        })
    }

    /// Nobody waits for this operation any more. A receive loses no message; a send goes on.
    pub fn abandon(&self, key: OpKey) {
        self.with(|locked| locked.abandon(key));
    }
}
