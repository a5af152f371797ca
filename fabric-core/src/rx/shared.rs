//! Receive contexts that several endpoints share (`fi_srx_context`).
//!
//! There is one matching engine, one list of posted receives and one budget. The endpoints bring
//! their messages here; the engine posts receives, and does what an endpoint does for a context of
//! its own. An endpoint that closes takes away only what had not arrived whole.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::address::Address;
use crate::buf::Pool;
use crate::error::Error;
use crate::matching::PeerKey;
use crate::provider::{EpId, Host};
use crate::tree::Class;

use super::{LandingId, RxContext};

/// A receive context that several endpoints share.
///
/// Its lock is taken under that of the domain only, so nobody ever waits for it.
#[derive(Clone, Debug)]
pub struct SharedContext(Arc<Mutex<RxContext>>);

impl SharedContext {
    /// A context that no endpoint shares yet. `id` is its own, in the numbering of endpoints.
    #[must_use]
    pub fn new(id: EpId, pool: Arc<Pool>) -> Self {
        Self(Arc::new(Mutex::new(RxContext::new(id, 0, pool))))
    }

    /// The context. A second call of the same thread never returns.
    pub fn lock(&self) -> MutexGuard<'_, RxContext> {
        // No user code runs under it, so a panic elsewhere does not spoil it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RxContext {
    /// The budget is that of the endpoint that has the largest.
    pub(super) fn grow_budget(&mut self, budget: usize) {
        self.budget = self.budget.max(budget);
    }

    /// A peer has connected to one of the endpoints.
    pub(super) fn join(&mut self, peer: PeerKey, name: Address, ep: EpId) {
        self.present.push((peer, name, ep));
    }

    /// Whether a peer of this name is connected to one of the endpoints.
    pub(super) fn is_present(&self, name: &Address) -> bool {
        self.present.iter().any(|(_, present, _)| present == name)
    }

    /// Hands over what senders that are connected to this endpoint wait to hear. To those that are
    /// gone nothing is said.
    pub(super) fn hand_over(&mut self, ep: EpId, to: &mut Self) {
        let present = &self.present;
        self.receipts.retain(|receipt| {
            let at = present
                .iter()
                .find(|(key, ..)| *key == receipt.0)
                .map(|(.., at)| *at);
            if at == Some(ep) {
                to.receipts.push(*receipt);
            }
            at.is_some_and(|at| at != ep)
        });
    }

    /// Whether a message was declined since this was asked last: what was changed since may make it
    /// welcome.
    pub fn has_declined(&mut self) -> bool {
        self.declined.take()
    }

    /// An endpoint closes. Messages of which it does not have all yet will never be complete; those
    /// that it has wait on.
    pub(super) fn leave(&mut self, host: &mut dyn Host, ep: EpId) {
        let error = Error::Closed(Class::Endpoint);
        let of_it = |(.., at): &mut (PeerKey, Address, EpId)| *at == ep;
        for (key, name, _) in self.present.extract_if(.., of_it).collect::<Vec<_>>() {
            self.lose(host, key, &error);
            let copied = |id| self.copying.iter().any(|(copied, _)| *copied == id);
            let landings = self
                .landings
                .iter()
                .filter(|(id, landing)| landing.envelope.peer == key && !copied(*id));
            for id in landings.map(|(id, _)| id).collect::<Vec<_>>() {
                self.fail(host, LandingId(id), error.clone());
            }
            self.depart(key, name);
        }
    }
}
