//! Endpoints.
//!
//! | file | subject |
//! |---|---|
//! | `mod` | an endpoint: its parts, its peers, its end |
//! | `builder`, `bind` | how it is made: step by step, or with everything around it |
//! | `connected` | one that is connected with one peer, or is going to be |
//! | `shared` | contexts that several of them receive with |
//! | `messages`, `onesided`, `batch` | what it does: one by one, or many together |
//! | `checks` | what it may be asked to do |

mod batch;
mod bind;
mod builder;
mod checks;
mod connected;
mod messages;
mod onesided;
mod shared;

pub use bind::BindOptions;
pub(crate) use bind::equipped;
pub use builder::EndpointBuilder;
pub(crate) use builder::set;
pub use connected::Connect;
pub use shared::{SharedReceive, SharedReceiveBuilder};

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use fabric_core::completion::{CompletionLevel, OpKind};
use fabric_core::flags::Caps;
use fabric_core::info::Info;
use fabric_core::provider::{EpId, Express, SendSpec};
use fabric_core::stats::EndpointStats;
use fabric_core::tree::{Hold, Node};
use fabric_core::{Address, FiAddr, Result};
use fabric_reactor::{Credit, Posted, Route};

use connected::Connection;

use crate::av::{AddressVector, AvInner, ToAddress};
use crate::close::CloseError;
use crate::cq::CompletionQueue;
use crate::domain::{Domain, DomainInner};
use crate::eq::EventQueue;
use crate::model::{Shared, ThreadModel};
use crate::op::Operation;
use crate::resolve;

/// An endpoint (`fid_ep`): sends and receives messages.
///
/// Made by [`Endpoint::bind`], with everything around it, or by [`Domain::endpoint`], step by step.
/// Cheap to clone; it closes with its last clone, or with [`Endpoint::close`] for all of them.
#[doc(alias = "fid_ep")]
pub struct Endpoint<M: ThreadModel = Shared> {
    pub(crate) inner: Arc<EndpointInner>,
    model: PhantomData<M>,
}

pub(crate) struct EndpointInner {
    pub(crate) node: Arc<Node>,
    pub(crate) id: EpId,
    pub(crate) domain: Arc<DomainInner>,
    /// None of a shared receive context, which is the receive side of others.
    name: Option<Address>,
    /// Whom it is connected with, if it is of that kind.
    connection: Option<Connection>,
    pub(crate) info: Info,
    /// What it may be asked to do.
    caps: Caps,
    /// Success of what is posted to the transmit queue is reported only when asked for; likewise,
    /// of receives.
    pub(crate) quiet_tx: bool,
    pub(crate) quiet_rx: bool,
    /// When messages have ended, unless they say otherwise.
    pub(crate) level: CompletionLevel,
    /// What is done at once goes this way.
    express: Option<Arc<dyn Express>>,
    av: Arc<AvInner>,
    /// Where it receives, if not by itself.
    shared: Option<Arc<EndpointInner>>,
    /// What it is bound to cannot be closed before it.
    holds: Mutex<Vec<Hold>>,
    /// The queues that `bind` made and nobody has asked for yet.
    own: Mutex<Own>,
}

/// Queues that belong to an endpoint from `bind`.
#[derive(Default)]
pub(crate) struct Own {
    pub(crate) completions: Option<CompletionQueue>,
    pub(crate) events: Option<EventQueue>,
}

impl<M: ThreadModel> Endpoint<M> {
    pub(crate) fn from_inner(inner: EndpointInner) -> Self {
        Self {
            inner: Arc::new(inner),
            model: PhantomData,
        }
    }

    /// Gives a peer a number, and makes the connection: the first message finds it ready. When that
    /// fails, a number that was new is taken back.
    ///
    /// The number is your own until you [remove](AddressVector::remove) it. It stands for the name,
    /// and survives the death and the restart of the peer. A peer that has a number keeps it; that
    /// of a guest, which a welcoming address vector would take back, becomes permanent. See
    /// [`guide::client_server`](crate::guide::client_server).
    ///
    /// Waits until the peer makes progress and answers: over `shm` for as long as that takes, over
    /// `tcp` for ten seconds. `tokio::time::timeout` limits it.
    ///
    /// With the name of a host, as in `tcp://localhost:7000`, its addresses of this endpoint's
    /// family are tried one after the other; see [`resolve`](crate::resolve()). The number stands
    /// for the one that answered.
    ///
    /// # Errors
    /// [`Error::NoSuchPeer`](crate::Error::NoSuchPeer) when nobody is there,
    /// [`Error::TimedOut`](crate::Error::TimedOut) when nobody answers,
    /// [`Error::Unreachable`](crate::Error::Unreachable) when no way leads there;
    /// [`Error::OtherUser`](crate::Error::OtherUser), [`Error::Refused`](crate::Error::Refused);
    /// [`Error::NoSuchHost`](crate::Error::NoSuchHost); and those of [`AddressVector::insert`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves the number in the address vector; the connection is made
    /// nevertheless.
    #[doc(alias = "fi_av_insert")]
    pub async fn lookup(&self, peer: impl ToAddress) -> Result<FiAddr> {
        // Of a host with several addresses, the one where somebody is.
        let is_ipv4 = self.name().socket().is_none_or(|at| at.is_ipv4());
        let found = resolve::found(&peer, self.inner.domain.scheme(), |at| {
            at.is_ipv4() == is_ipv4
        })
        .await?;
        let (last, others) = found.split_last().expect("there is one at least");
        for address in others {
            if let Ok(peer) = self.meet(address).await {
                return Ok(peer);
            }
        }
        self.meet(last).await
    }

    async fn meet(&self, address: &Address) -> Result<FiAddr> {
        let av = self.address_vector();
        let known = av.peers().iter().any(|(_, known)| known == address);
        let peer = av.insert(address)?;
        let spec = SendSpec::new(OpKind::Connect, peer);
        let core = &self.inner.domain.core;
        let connected =
            match core.send(self.inner.id, spec, Vec::new(), Route::Future, Credit::Wait) {
                Ok(Posted::Pending(key)) => {
                    Operation::posted(self.inner.clone(), key).await.map(drop)
                }
                Ok(_) => Ok(()),
                Err(failed) => Err(failed),
            };
        if let Err(failed) = connected {
            if !known {
                // Gone already if the peer knocked and left meanwhile.
                let _ = av.remove(peer);
            }
            return Err(failed.error);
        }
        Ok(peer)
    }

    /// The address by which peers reach this endpoint (`fi_getname`).
    #[doc(alias = "fi_getname")]
    #[must_use]
    pub fn name(&self) -> &Address {
        self.inner
            .name
            .as_ref()
            .expect("only what is inside of a shared receive context has none")
    }

    /// What the endpoint has done since it was enabled; nothing when it is closed.
    #[must_use]
    pub fn stats(&self) -> EndpointStats {
        self.inner.domain.core.endpoint_stats(self.inner.id)
    }

    /// The attributes it was opened with.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.inner.info
    }

    /// Its number in events.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.inner.node.id()
    }

    /// The address vector it is bound to.
    #[must_use]
    pub fn address_vector(&self) -> AddressVector<M> {
        AddressVector::from_inner(self.inner.av.clone())
    }

    /// The domain it belongs to.
    #[must_use]
    pub fn domain(&self) -> Domain<M> {
        Domain::from_inner(self.inner.domain.clone())
    }

    /// Closes the endpoint, for all its clones (`fi_close`). Operations that are posted end with
    /// [`Error::Canceled`](crate::Error::Canceled), and peers are told.
    ///
    /// # Errors
    /// [`Error::Closed`](crate::Error::Closed) when it was closed before.
    #[doc(alias = "fi_close")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        match self.inner.node.close() {
            Ok(()) => {
                self.inner.domain.core.close_endpoint(self.inner.id);
                self.inner
                    .holds
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clear();
                Ok(())
            }
            Err(error) => Err(CloseError {
                error,
                handle: self,
            }),
        }
    }
}

impl Endpoint {
    /// The completion queue of an endpoint from [`Endpoint::bind`]; `None` after the first call,
    /// and for endpoints that were bound to queues by hand.
    #[must_use]
    pub fn completions(&self) -> Option<CompletionQueue> {
        self.inner.own.lock().ok()?.completions.take()
    }

    /// The event queue of an endpoint from [`Endpoint::bind`]; `None` after the first call, and for
    /// endpoints that were bound to queues by hand.
    #[must_use]
    pub fn events(&self) -> Option<EventQueue> {
        self.inner.own.lock().ok()?.events.take()
    }
}

impl<M: ThreadModel> Clone for Endpoint<M> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            model: PhantomData,
        }
    }
}

impl Drop for EndpointInner {
    fn drop(&mut self) {
        self.domain.core.close_endpoint(self.id);
        self.node.retire();
    }
}

impl<M: ThreadModel> fmt::Debug for Endpoint<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("id", &self.inner.node.id())
            .field(
                "parent",
                &self.inner.node.parent().map(|parent| parent.id()),
            )
            .field("name", &format_args!("{}", self.name()))
            .field("caps", &self.inner.info.caps)
            .finish()
    }
}
