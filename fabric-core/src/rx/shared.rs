//! Receive queues that several endpoints share (`fi_srx_context`).
//!
//! The endpoints share one matcher, one list of posted receives and one budget. Transports deliver
//! messages to the shared queue. The engine posts receives, and does the other work that a
//! transport does for an endpoint's own queue. Closing an endpoint discards only those messages of
//! its peers that are not complete.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::address::Address;
use crate::buf::BufferPool;
use crate::error::Error;
use crate::matching::PeerKey;
use crate::transport::{EngineContext, EpId};
use crate::tree::Class;

use super::{PartialId, RxQueue};

/// A receive queue that several endpoints share.
///
/// The lock of the queue is taken only under the lock of the domain, so it is never contended.
#[derive(Clone, Debug)]
pub struct SharedRxQueue(Arc<Mutex<RxQueue>>);

impl SharedRxQueue {
    /// Creates a queue that no endpoint shares yet. `id` identifies the queue among the endpoints
    /// of the domain.
    #[must_use]
    pub fn new(id: EpId, pool: Arc<BufferPool>) -> Self {
        Self(Arc::new(Mutex::new(RxQueue::new(id, 0, pool))))
    }

    /// Locks the queue. A second call of the same thread deadlocks.
    pub fn lock(&self) -> MutexGuard<'_, RxQueue> {
        // No user code runs under the lock, so a poisoned queue is consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RxQueue {
    /// Raises the budget to `budget` bytes, if it is smaller.
    pub(super) fn raise_budget(&mut self, budget: usize) {
        self.budget = self.budget.max(budget);
    }

    /// Records that a peer has connected to one of the endpoints.
    pub(super) fn peer_connected(&mut self, peer: PeerKey, name: Address, ep: EpId) {
        self.connected_peers.push((peer, name, ep));
    }

    /// Returns whether a peer of this name is connected to one of the endpoints.
    pub(super) fn is_peer_connected(&self, name: &Address) -> bool {
        self.connected_peers
            .iter()
            .any(|(_, connected, _)| connected == name)
    }

    /// Moves the unsent acks for the peers of this endpoint to `to`. Acks for disconnected peers
    /// are discarded.
    pub(super) fn move_acks(&mut self, ep: EpId, to: &mut Self) {
        let connected_peers = &self.connected_peers;
        self.unsent_acks.retain(|ack| {
            let connected_to = connected_peers
                .iter()
                .find(|(key, ..)| *key == ack.0)
                .map(|(.., ep)| *ep);
            if connected_to == Some(ep) {
                to.unsent_acks.push(*ack);
            }
            connected_to.is_some_and(|other| other != ep)
        });
    }

    /// Returns whether a message was declined since the last call. If so, the caller lets the
    /// transports retry after a change of the queue.
    pub fn take_declined(&mut self) -> bool {
        self.declined.take()
    }

    /// Fails the incomplete messages of a closing endpoint's peers; complete messages stay queued.
    pub(super) fn endpoint_closed(&mut self, engine: &mut impl EngineContext, ep: EpId) {
        let error = Error::Closed(Class::Endpoint);
        let is_peer_of_ep = |(.., other): &mut (PeerKey, Address, EpId)| *other == ep;
        for (key, name, _) in self
            .connected_peers
            .extract_if(.., is_peer_of_ep)
            .collect::<Vec<_>>()
        {
            self.fail_unmapped_from(engine, key, &error);
            // Mapped memory outlives the connection, so copies from it continue.
            let is_copied = |id| self.peer_copies.iter().any(|(copied, _)| *copied == id);
            let lost: Vec<_> = self
                .partials
                .iter()
                .filter(|(_, partial)| partial.envelope.peer == key)
                .map(|(index, _)| PartialId(index))
                .filter(|id| !is_copied(*id))
                .collect();
            for id in lost {
                self.fail_partial(engine, id, error.clone());
            }
            self.peer_disconnected(key, name);
        }
    }
}
