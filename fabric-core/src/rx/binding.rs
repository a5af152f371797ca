//! The receive side of an endpoint as its provider holds it: a context of its own, or one that it
//! shares.
//!
//! Only what brings messages, and what ends with a peer, goes to a shared context. All else that an
//! endpoint does, posting, taking back, copying by and by, it does for its own; for those that are
//! shared the engine does it.

use std::sync::Arc;

use crate::address::{Address, FiAddr};
use crate::buf::BufferPool;
use crate::error::Error;
use crate::matching::PeerKey;
use crate::transport::{EngineContext, EpId};

use super::{RxQueue, SharedRxQueue};

/// What an endpoint that is being opened receives with.
#[derive(Clone, Copy, Debug)]
pub enum RxSource<'a> {
    /// A context of its own, with buffers of this pool.
    Own(&'a Arc<BufferPool>),
    /// This one, as others do.
    Shared(&'a SharedRxQueue),
}

impl RxSource<'_> {
    /// The receive side of this endpoint, which buffers at most `budget` bytes of unexpected
    /// messages; where endpoints share a context, all of them together.
    #[must_use]
    pub fn bind(self, ep: EpId, budget: usize) -> RxBinding {
        let own = |pool: &Arc<BufferPool>| RxQueue::new(ep, budget, pool.clone());
        match self {
            Self::Own(pool) => RxBinding {
                own: own(pool),
                shared: None,
            },
            Self::Shared(context) => {
                let mut rx = context.lock();
                rx.raise_budget(budget);
                RxBinding {
                    own: own(&rx.pool),
                    shared: Some((ep, context.clone())),
                }
            }
        }
    }
}

/// The receive side of one endpoint.
#[derive(Debug)]
pub struct RxBinding {
    /// The endpoint's own context. Empty, and without anything to do, where another one is shared:
    /// only what brings messages has to look which it is.
    pub own: RxQueue,
    shared: Option<(EpId, SharedRxQueue)>,
}

impl RxBinding {
    /// Whether messages go elsewhere.
    #[must_use]
    #[inline(always)] // on the way of a small message
    pub fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Does something with the context that messages go to. Not within another such call.
    pub fn with_queue<T>(&mut self, act: impl FnOnce(&mut RxQueue) -> T) -> T {
        match &self.shared {
            None => act(&mut self.own),
            Some((_, context)) => act(&mut context.lock()),
        }
    }

    /// Looks at the context that messages go to.
    pub fn with_queue_ref<T>(&self, look: impl FnOnce(&RxQueue) -> T) -> T {
        match &self.shared {
            None => look(&self.own),
            Some((_, context)) => look(&context.lock()),
        }
    }

    /// A peer has connected to the endpoint, which calls it by this key. Returns the key it is to
    /// be called by: endpoints that share a context must not use the same.
    #[must_use]
    pub fn peer_connected(
        &mut self,
        host: &mut dyn EngineContext,
        peer: PeerKey,
        name: &Address,
    ) -> PeerKey {
        let Some((ep, context)) = &self.shared else {
            return peer;
        };
        let peer = host.new_shared_peer_key(*ep);
        context.lock().peer_connected(peer, name.clone(), *ep);
        peer
    }

    /// A peer has gone, and everything it sent to the endpoint has been taken in.
    pub fn peer_departed(&mut self, peer: PeerKey, name: Address) {
        self.with_queue(|rx| rx.peer_departed(peer, name));
    }

    /// Receives directed at this peer will get nothing: it is gone from this endpoint, and from the
    /// others that share the context.
    pub fn fail_directed(
        &mut self,
        host: &mut dyn EngineContext,
        source: FiAddr,
        name: &Address,
        error: &Error,
    ) {
        self.with_queue(|rx| {
            // An auto-inserted handle whose name another peer has is that of this peer alone.
            if !rx.is_peer_connected(name) || host.address_of(rx.ep, source).is_err() {
                rx.fail_directed(host, source, error);
            }
        });
    }

    /// Takes what senders to this endpoint wait to hear over to its own context, from the shared
    /// one.
    pub fn collect_acks(&mut self) {
        if let Some((ep, context)) = &self.shared {
            context.lock().move_acks(*ep, &mut self.own);
        }
    }

    /// The endpoint closes. Its own context ends with it; a shared one goes on.
    pub fn close(&mut self, host: &mut dyn EngineContext) {
        self.own.close(host);
        if let Some((ep, context)) = &self.shared {
            context.lock().endpoint_closed(host, *ep);
        }
    }
}
