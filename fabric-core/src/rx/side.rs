//! The receive side of an endpoint as its provider holds it: a context of its own, or one that it
//! shares.
//!
//! Only what brings messages, and what ends with a peer, goes to a shared context. All else that an
//! endpoint does, posting, taking back, copying by and by, it does for its own; for those that are
//! shared the engine does it.

use std::sync::Arc;

use crate::address::{Address, FiAddr};
use crate::buf::Pool;
use crate::error::Error;
use crate::matching::PeerKey;
use crate::provider::{EpId, Host};

use super::{RxContext, SharedContext};

/// What an endpoint that is being opened receives with.
#[derive(Clone, Copy, Debug)]
pub enum Receiving<'a> {
    /// A context of its own, with buffers of this pool.
    Own(&'a Arc<Pool>),
    /// This one, as others do.
    Shared(&'a SharedContext),
}

impl Receiving<'_> {
    /// The receive side of this endpoint, which buffers at most `budget` bytes of unexpected
    /// messages; where endpoints share a context, all of them together.
    #[must_use]
    pub fn side(self, ep: EpId, budget: usize) -> ReceiveSide {
        let own = |pool: &Arc<Pool>| RxContext::new(ep, budget, pool.clone());
        match self {
            Self::Own(pool) => ReceiveSide {
                own: own(pool),
                shared: None,
            },
            Self::Shared(context) => {
                let mut rx = context.lock();
                rx.grow_budget(budget);
                ReceiveSide {
                    own: own(&rx.pool),
                    shared: Some((ep, context.clone())),
                }
            }
        }
    }
}

/// The receive side of one endpoint.
#[derive(Debug)]
pub struct ReceiveSide {
    /// The endpoint's own context. Empty, and without anything to do, where another one is shared:
    /// only what brings messages has to look which it is.
    pub own: RxContext,
    shared: Option<(EpId, SharedContext)>,
}

impl ReceiveSide {
    /// Whether messages go elsewhere.
    #[must_use]
    #[inline(always)] // on the way of a small message
    pub fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Does something with the context that messages go to. Not within another such call.
    pub fn with<T>(&mut self, act: impl FnOnce(&mut RxContext) -> T) -> T {
        match &self.shared {
            None => act(&mut self.own),
            Some((_, context)) => act(&mut context.lock()),
        }
    }

    /// Looks at the context that messages go to.
    pub fn view<T>(&self, look: impl FnOnce(&RxContext) -> T) -> T {
        match &self.shared {
            None => look(&self.own),
            Some((_, context)) => look(&context.lock()),
        }
    }

    /// A peer has connected to the endpoint, which calls it by this key. Returns the key it is to
    /// be called by: endpoints that share a context must not use the same.
    #[must_use]
    pub fn joined(&mut self, host: &mut dyn Host, peer: PeerKey, name: &Address) -> PeerKey {
        let Some((ep, context)) = &self.shared else {
            return peer;
        };
        let peer = host.shared_peer(*ep);
        context.lock().join(peer, name.clone(), *ep);
        peer
    }

    /// A peer has gone, and everything it sent to the endpoint has been taken in.
    pub fn departed(&mut self, peer: PeerKey, name: Address) {
        self.with(|rx| rx.depart(peer, name));
    }

    /// Receives directed at this peer will get nothing: it is gone from this endpoint, and from the
    /// others that share the context.
    pub fn fail_directed(
        &mut self,
        host: &mut dyn Host,
        source: FiAddr,
        name: &Address,
        error: &Error,
    ) {
        self.with(|rx| {
            // An auto-inserted handle whose name another peer has is that of this peer alone.
            if !rx.is_present(name) || host.address_of(rx.ep, source).is_err() {
                rx.fail_directed(host, source, error);
            }
        });
    }

    /// Takes what senders to this endpoint wait to hear over to its own context, from the shared
    /// one.
    pub fn gather(&mut self) {
        if let Some((ep, context)) = &self.shared {
            context.lock().hand_over(*ep, &mut self.own);
        }
    }

    /// The endpoint closes. Its own context ends with it; a shared one goes on.
    pub fn close(&mut self, host: &mut dyn Host) {
        self.own.close(host);
        if let Some((ep, context)) = &self.shared {
            context.lock().leave(host, *ep);
        }
    }
}
