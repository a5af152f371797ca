//! Receive contexts that several endpoints share (`fi_srx_context`).
//!
//! There is one matching engine, one list of posted receives and one budget. The endpoints bring
//! their messages here; the engine posts receives, and does what an endpoint does for a context of
//! its own. An endpoint that closes takes away only what had not arrived whole.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::address::Address;
use crate::buf::BufferPool;
use crate::error::Error;
use crate::matching::PeerKey;
use crate::transport::{EngineContext, EpId};
use crate::tree::Class;

use super::{PartialId, RxQueue};

/// A receive context that several endpoints share.
///
/// Its lock is taken under that of the domain only, so nobody ever waits for it.
#[derive(Clone, Debug)]
pub struct SharedRxQueue(Arc<Mutex<RxQueue>>);

impl SharedRxQueue {
    /// A context that no endpoint shares yet. `id` is its own, in the numbering of endpoints.
    #[must_use]
    pub fn new(id: EpId, pool: Arc<BufferPool>) -> Self {
        Self(Arc::new(Mutex::new(RxQueue::new(id, 0, pool))))
    }

    /// The context. A second call of the same thread never returns.
    pub fn lock(&self) -> MutexGuard<'_, RxQueue> {
        // No user code runs under it, so a panic elsewhere does not spoil it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RxQueue {
    /// The budget is that of the endpoint that has the largest.
    pub(super) fn raise_budget(&mut self, budget: usize) {
        self.budget = self.budget.max(budget);
    }

    /// A peer has connected to one of the endpoints.
    pub(super) fn peer_connected(&mut self, peer: PeerKey, name: Address, ep: EpId) {
        self.connected_peers.push((peer, name, ep));
    }

    /// Whether a peer of this name is connected to one of the endpoints.
    pub(super) fn is_peer_connected(&self, name: &Address) -> bool {
        self.connected_peers
            .iter()
            .any(|(_, present, _)| present == name)
    }

    /// Hands over what senders that are connected to this endpoint wait to hear. To those that are
    /// gone nothing is said.
    pub(super) fn move_acks(&mut self, ep: EpId, to: &mut Self) {
        let present = &self.connected_peers;
        self.pending_acks.retain(|receipt| {
            let at = present
                .iter()
                .find(|(key, ..)| *key == receipt.0)
                .map(|(.., at)| *at);
            if at == Some(ep) {
                to.pending_acks.push(*receipt);
            }
            at.is_some_and(|at| at != ep)
        });
    }

    /// Whether a message was declined since this was asked last: what was changed since may make it
    /// welcome.
    pub fn take_declined(&mut self) -> bool {
        self.declined.take()
    }

    /// An endpoint closes. Messages of which it does not have all yet will never be complete; those
    /// that it has wait on.
    pub(super) fn endpoint_closed(&mut self, host: &mut dyn EngineContext, ep: EpId) {
        let error = Error::Closed(Class::Endpoint);
        let of_it = |(.., at): &mut (PeerKey, Address, EpId)| *at == ep;
        for (key, name, _) in self
            .connected_peers
            .extract_if(.., of_it)
            .collect::<Vec<_>>()
        {
            self.fail_unmapped_from(host, key, &error);
            let copied = |id| self.peer_copies.iter().any(|(copied, _)| *copied == id);
            let landings = self
                .partials
                .iter()
                .filter(|(id, landing)| landing.envelope.peer == key && !copied(*id));
            for id in landings.map(|(id, _)| id).collect::<Vec<_>>() {
                self.fail_partial(host, PartialId(id), error.clone());
            }
            self.peer_departed(key, name);
        }
    }
}
