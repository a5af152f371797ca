//! Receive queues that several endpoints share (`fi_srx_context`).
//!
//! The endpoints share one matcher, one list of posted receives and one budget. The transport
//! delivers the messages of all of them to the shared queue. Closing an endpoint discards only
//! those messages of its peers that are not complete.

use crate::address::{Address, FiAddr};
use crate::error::Error;
use crate::matching::PeerKey;
use crate::op::EpId;
use crate::tree::Class;

use super::RxQueue;
use super::engine::RxEngine;

impl RxQueue {
    /// Creates a queue that endpoints can share. `id` identifies the queue among the endpoints of
    /// the domain. The queue has no budget before the first endpoint
    /// [raises](Self::raise_budget) it.
    #[must_use]
    pub fn shared(id: EpId) -> Self {
        Self {
            shared: true,
            ..Self::new(id, 0)
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
        self.budget.raise(budget);
        self.beyond_budget.raise(budget);
    }

    /// Records that a peer has connected to `ep`, which identifies the peer by `peer`. Returns the
    /// key to use for the peer: endpoints that share a queue must not use the same keys.
    #[must_use]
    pub fn connect_peer(
        &mut self,
        engine: &mut impl RxEngine,
        ep: EpId,
        peer: PeerKey,
        name: &Address,
    ) -> PeerKey {
        if !self.shared {
            return peer;
        }
        let peer = engine.new_shared_peer_key(ep);
        self.peers.connect(peer, name.clone(), ep);
        peer
    }

    /// Fails receives directed to this peer, which has disconnected from one endpoint, unless the
    /// peer is still connected to another endpoint that shares the queue.
    pub fn fail_directed_to_disconnected(
        &mut self,
        engine: &mut impl RxEngine,
        source: FiAddr,
        name: &Address,
        error: &Error,
    ) {
        let is_connected = self.peers.is_connected(name);
        // `address_of` fails for an auto-inserted handle whose peer is gone, even while another
        // peer of the same name is connected.
        if !is_connected || engine.address_of(self.ep, source).is_err() {
            self.fail_directed(engine, source, error);
        }
    }

    /// Fails the incomplete messages of the peers of an endpoint that closes and shares the queue;
    /// complete messages stay queued.
    pub fn on_sharing_endpoint_closed(&mut self, engine: &mut impl RxEngine, ep: EpId) {
        let error = Error::Closed(Class::Endpoint);
        for (key, name) in self.peers.take_peers_of(ep) {
            self.fail_unmapped_from(engine, key, &error);
            // Mapped memory outlives the connection, so copies from it continue.
            let partials = self.partials.iter();
            let lost: Vec<_> = partials
                .filter(|(_, partial)| partial.envelope.peer == key && !partial.is_copied())
                .map(|(id, _)| id)
                .collect();
            for id in lost {
                self.fail_partial(engine, id, error.clone());
            }
            engine.sender_disconnected(self.ep, key);
            self.disconnect_peer(key, name);
        }
    }
}
