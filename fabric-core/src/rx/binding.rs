//! The receive queue of an endpoint as its transport holds it: its own, or a shared one.
//!
//! The transport gives a shared queue only messages, and the peers that connect and disconnect. The
//! engine posts and cancels the receives of a shared queue, and copies its messages in chunks; for
//! the endpoint's own queue the transport does so.

use std::sync::Arc;

use crate::address::{Address, FiAddr};
use crate::buf::BufferPool;
use crate::error::Error;
use crate::matching::PeerKey;
use crate::transport::{EngineContext, EpId};

use super::{RxQueue, SharedRxQueue};

/// The receive queue that an endpoint is opened with.
#[derive(Clone, Copy, Debug)]
pub enum RxSource<'a> {
    /// A queue of the endpoint's own, with buffers of this pool.
    Own(&'a Arc<BufferPool>),
    /// A queue that several endpoints share.
    Shared(&'a SharedRxQueue),
}

impl RxSource<'_> {
    /// Creates the binding of this endpoint, which buffers at most `budget` bytes of unexpected
    /// messages. The budget of a shared queue is the largest of its endpoints' budgets.
    #[must_use]
    pub fn bind(self, ep: EpId, budget: usize) -> RxBinding {
        let own = |pool: &Arc<BufferPool>| RxQueue::new(ep, budget, pool.clone());
        match self {
            Self::Own(pool) => RxBinding {
                own: own(pool),
                shared: None,
            },
            Self::Shared(queue) => {
                let mut rx = queue.lock();
                rx.raise_budget(budget);
                RxBinding {
                    own: own(&rx.pool),
                    shared: Some((ep, queue.clone())),
                }
            }
        }
    }
}

/// An endpoint's binding to its receive queue.
#[derive(Debug)]
pub struct RxBinding {
    /// The endpoint's own queue. If the endpoint shares a queue, the own queue holds no messages and
    /// receives, so that only the delivery of messages must distinguish the two queues.
    pub own: RxQueue,
    /// The shared queue, and the endpoint that this binding belongs to.
    shared: Option<(EpId, SharedRxQueue)>,
}

impl RxBinding {
    /// Returns whether messages go to a shared queue.
    #[must_use]
    #[inline(always)] // on the fast path of small messages
    pub fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Calls `act` with the queue that messages go to. `act` must not use the binding: a shared
    /// queue is locked during the call.
    pub fn with_queue<T>(&mut self, act: impl FnOnce(&mut RxQueue) -> T) -> T {
        match &self.shared {
            None => act(&mut self.own),
            Some((_, queue)) => act(&mut queue.lock()),
        }
    }

    /// As [`with_queue`](Self::with_queue), with a shared reference.
    pub fn with_queue_ref<T>(&self, act: impl FnOnce(&RxQueue) -> T) -> T {
        match &self.shared {
            None => act(&self.own),
            Some((_, queue)) => act(&queue.lock()),
        }
    }

    /// Records that a peer, which the endpoint identifies by `peer`, has connected. Returns the key
    /// to use for the peer: endpoints that share a queue must not use the same keys.
    #[must_use]
    pub fn peer_connected(
        &mut self,
        engine: &mut impl EngineContext,
        peer: PeerKey,
        name: &Address,
    ) -> PeerKey {
        let Some((ep, queue)) = &self.shared else {
            return peer;
        };
        let peer = engine.new_shared_peer_key(*ep);
        queue.lock().peer_connected(peer, name.clone(), *ep);
        peer
    }

    /// Records that a peer has disconnected, and that all its messages were delivered.
    pub fn peer_disconnected(&mut self, peer: PeerKey, name: Address) {
        self.with_queue(|rx| rx.peer_disconnected(peer, name));
    }

    /// Fails receives directed to this peer, which has disconnected from this endpoint, unless the
    /// peer is still connected to another endpoint that shares the queue.
    pub fn fail_directed(
        &mut self,
        engine: &mut impl EngineContext,
        source: FiAddr,
        name: &Address,
        error: &Error,
    ) {
        self.with_queue(|rx| {
            // `address_of` fails for an auto-inserted handle whose peer is gone, even while another
            // peer of the same name is connected.
            if !rx.is_peer_connected(name) || engine.address_of(rx.ep, source).is_err() {
                rx.fail_directed(engine, source, error);
            }
        });
    }

    /// Moves unsent acks for this endpoint's peers from the shared queue to the own queue.
    pub fn collect_acks(&mut self) {
        if let Some((ep, queue)) = &self.shared {
            queue.lock().move_acks(*ep, &mut self.own);
        }
    }

    /// Closes the endpoint's own queue. A shared queue stays open and loses the endpoint's peers.
    pub fn close(&mut self, engine: &mut impl EngineContext) {
        self.own.close(engine);
        if let Some((ep, queue)) = &self.shared {
            queue.lock().endpoint_closed(engine, *ep);
        }
    }
}
