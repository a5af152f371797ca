//! Receive queues that several endpoints share (`fi_srx_context`).
//!
//! The endpoints share one matcher, one list of posted receives and one budget. The transport
//! delivers the messages of all of them to the shared queue. Closing an endpoint discards only those
//! messages of its peers that are not complete.

use std::sync::Arc;

use crate::address::{Address, FiAddr};
use crate::buf::BufferPool;
use crate::error::Error;
use crate::matching::PeerKey;
use crate::transport::{EngineContext, EpId, PartialId};
use crate::tree::Class;

use super::RxQueue;

impl RxQueue {
    /// Creates a queue that endpoints can share. `id` identifies the queue among the endpoints of
    /// the domain. The queue has no budget before the first endpoint
    /// [raises](Self::raise_budget) it.
    #[must_use]
    pub fn shared(id: EpId, pool: Arc<BufferPool>) -> Self {
        Self {
            shared: true,
            ..Self::new(id, 0, pool)
        }
    }

    /// Returns whether endpoints share the queue.
    #[must_use]
    #[inline(always)] // on the fast path of small messages
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// Raises the budget for unexpected messages to `budget` bytes, if the budget is smaller: a
    /// shared queue has the largest budget of its endpoints.
    pub fn raise_budget(&mut self, budget: usize) {
        self.budget = self.budget.max(budget);
    }

    /// Records that a peer has connected to `ep`, which identifies the peer by `peer`. Returns the
    /// key to use for the peer: endpoints that share a queue must not use the same keys.
    #[must_use]
    pub fn peer_connected(
        &mut self,
        engine: &mut impl EngineContext,
        ep: EpId,
        peer: PeerKey,
        name: &Address,
    ) -> PeerKey {
        if !self.shared {
            return peer;
        }
        let peer = engine.new_shared_peer_key(ep);
        self.connected_peers.push((peer, name.clone(), ep));
        peer
    }

    /// Fails receives directed to this peer, which has disconnected from one endpoint, unless the
    /// peer is still connected to another endpoint that shares the queue.
    pub fn fail_directed_to_disconnected(
        &mut self,
        engine: &mut impl EngineContext,
        source: FiAddr,
        name: &Address,
        error: &Error,
    ) {
        let is_connected = self
            .connected_peers
            .iter()
            .any(|(_, connected, _)| connected == name);
        // `address_of` fails for an auto-inserted handle whose peer is gone, even while another peer
        // of the same name is connected.
        if !is_connected || engine.address_of(self.ep, source).is_err() {
            self.fail_directed(engine, source, error);
        }
    }

    /// Takes an ack to send to a peer of this endpoint. Acks for disconnected peers are discarded.
    pub(super) fn pop_shared_ack(&mut self, ep: EpId) -> Option<(PeerKey, u32)> {
        let connected_peers = &self.connected_peers;
        let endpoint_of = |peer: PeerKey| {
            let connected = connected_peers.iter().find(|(key, ..)| *key == peer);
            connected.map(|(.., ep)| *ep)
        };
        self.unsent_acks
            .retain(|(peer, _)| endpoint_of(*peer).is_some());
        let position = self
            .unsent_acks
            .iter()
            .position(|(peer, _)| endpoint_of(*peer) == Some(ep))?;
        Some(self.unsent_acks.swap_remove(position))
    }

    /// Returns whether a message was declined since the last call. If so, the caller lets the
    /// transport retry after a change of the queue.
    pub fn take_declined(&mut self) -> bool {
        self.declined.take()
    }

    /// Fails the incomplete messages of the peers of an endpoint that closes and shares the queue;
    /// complete messages stay queued.
    pub fn sharer_closed(&mut self, engine: &mut impl EngineContext, ep: EpId) {
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
