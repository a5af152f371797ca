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
mod shared_rx;

pub use bind::BindOptions;
pub(crate) use bind::builder_with_queues;
pub use builder::EndpointBuilder;
pub(crate) use builder::set_once;
pub use connected::Connect;
pub use shared_rx::{SharedRxContext, SharedRxContextBuilder};

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use fabric_core::completion::{CompletionLevel, OpKind};
use fabric_core::flags::Caps;
use fabric_core::info::Info;
use fabric_core::stats::EndpointStats;
use fabric_core::transport::{EpId, FastPath, TxOp};
use fabric_core::tree::{DependencyGuard, ObjectNode};
use fabric_core::{Address, FiAddr, Result};
use fabric_reactor::{CompletionTarget, CreditMode, PostResult};

use connected::ConnectedPeer;

use crate::av::{AddressVector, AvInner, ToAddress};
use crate::close::CloseError;
use crate::cq::CompletionQueue;
use crate::domain::{Domain, DomainCore, DomainInner};
use crate::eq::EventQueue;
use crate::flush::flush;
use crate::op::Operation;
use crate::resolve;
use crate::thread_model::{Shared, ThreadModel};

/// An endpoint (`fid_ep`): sends and receives messages.
///
/// Made by [`Endpoint::bind`], with everything around it, or by [`Domain::endpoint`], step by step.
/// Cheap to clone; it closes with its last clone, or with [`Endpoint::close`] for all of them.
///
/// Only its clones keep an endpoint open. What it has made does not: an operation that was
/// started, a stream of messages, a probe, a permit and a claimed message end, or are refused, when
/// the last clone is dropped. See [what keeps an object open](crate::guide::errors#handles).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
/// use fabric_async::{Endpoint, Error};
/// let ep = Endpoint::bind("shm://").await?;
/// let receive = ep.recv_into(Vec::with_capacity(64)).start()?;
/// drop(ep);
/// let failed = receive.await.unwrap_err();
/// assert_eq!(failed.error, Error::Canceled);
/// assert_eq!(failed.buf.capacity(), 64);       // the buffer comes back
/// # Ok(()) }
/// ```
#[doc(alias = "fid_ep")]
pub struct Endpoint<M: ThreadModel = Shared> {
    pub(crate) inner: Arc<EndpointInner>,
    pub(crate) open: Arc<OpenEndpoint>,
    model: PhantomData<M>,
}

/// Keeps an endpoint open: its handles share one, and so do the endpoints that share its receives.
/// The endpoint closes when the last reference goes.
///
/// Everything that an endpoint keeps open is here, and nothing of it in [`EndpointInner`], which
/// operations refer to: a future that is never polled again keeps no object open.
pub(crate) struct OpenEndpoint {
    pub(crate) inner: Arc<EndpointInner>,
    domain: Arc<DomainInner>,
    pub(crate) av: Arc<AvInner>,
    /// The shared receive context, if it receives with one.
    _shared: Option<Arc<OpenEndpoint>>,
    /// What it is bound to cannot be closed before it.
    holds: Mutex<Vec<DependencyGuard>>,
    /// The queues that `bind` made and that were not taken yet.
    own: Mutex<OwnedQueues>,
}

/// What an endpoint keeps open while it is open itself.
pub(super) struct Dependencies {
    pub(super) domain: Arc<DomainInner>,
    pub(super) av: Arc<AvInner>,
    pub(super) shared: Option<Arc<OpenEndpoint>>,
    pub(super) holds: Vec<DependencyGuard>,
    pub(super) own: OwnedQueues,
}

/// An endpoint, open or closed. Operations refer to it.
pub(crate) struct EndpointInner {
    pub(crate) node: Arc<ObjectNode>,
    pub(crate) id: EpId,
    pub(crate) domain: Arc<DomainCore>,
    /// None of a shared receive context, which is the receive side of others.
    name: Option<Address>,
    /// Whom it is connected with, if it is of that kind.
    connected_peer: Option<ConnectedPeer>,
    pub(crate) info: Info,
    /// What it may be asked to do.
    caps: Caps,
    /// Success of what is posted to the transmit queue is reported only when asked for; likewise,
    /// of receives.
    pub(crate) selective_tx: bool,
    pub(crate) selective_rx: bool,
    /// When messages have ended, unless they say otherwise.
    pub(crate) completion_level: CompletionLevel,
    /// What is done at once goes this way.
    fast_path: Option<Arc<dyn FastPath>>,
    /// It receives with a shared receive context.
    shares_receives: bool,
}

/// Queues that belong to an endpoint from `bind`.
#[derive(Default)]
pub(crate) struct OwnedQueues {
    pub(crate) completions: Option<CompletionQueue>,
    pub(crate) events: Option<EventQueue>,
}

impl<M: ThreadModel> Endpoint<M> {
    /// The first handle of an endpoint that was opened.
    pub(super) fn opened(inner: EndpointInner, on: Dependencies) -> Self {
        let inner = Arc::new(inner);
        let open = OpenEndpoint {
            inner: inner.clone(),
            domain: on.domain,
            av: on.av,
            _shared: on.shared,
            holds: Mutex::new(on.holds),
            own: Mutex::new(on.own),
        };
        Self {
            inner,
            open: Arc::new(open),
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
    /// [`Error::OtherUser`](crate::Error::OtherUser), [`Error::ConnectionRefused`](crate::Error::ConnectionRefused);
    /// [`Error::NoSuchHost`](crate::Error::NoSuchHost); and those of [`AddressVector::insert`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves the number in the address vector; the connection is made
    /// nevertheless.
    #[doc(alias = "fi_av_insert")]
    pub async fn add_peer(&self, peer: impl ToAddress) -> Result<FiAddr> {
        // Of a host with several addresses, the one where somebody is.
        let is_ipv4 = self.name().socket_addr().is_none_or(|at| at.is_ipv4());
        let found = resolve::resolve_filtered(&peer, self.inner.domain.scheme(), |at| {
            at.is_ipv4() == is_ipv4
        })
        .await?;
        let (last, others) = found.split_last().expect("there is one at least");
        for address in others {
            if let Ok(peer) = self.insert_and_connect(address).await {
                return Ok(peer);
            }
        }
        self.insert_and_connect(last).await
    }

    async fn insert_and_connect(&self, address: &Address) -> Result<FiAddr> {
        let av = self.address_vector();
        let known = av.peers().iter().any(|(_, known)| known == address);
        let peer = av.insert(address)?;
        let spec = TxOp::new(OpKind::Connect, peer);
        let core = &self.inner.domain.core;
        let connected = match core.send(
            self.inner.id,
            spec,
            Vec::new(),
            CompletionTarget::Future,
            CreditMode::Wait,
        ) {
            Ok(PostResult::Pending(key)) => {
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
        AddressVector::from_inner(self.open.av.clone())
    }

    /// The domain it belongs to.
    #[must_use]
    pub fn domain(&self) -> Domain<M> {
        Domain::from_inner(self.open.domain.clone())
    }

    /// Waits until every send, write and atomic operation that was posted on this endpoint before,
    /// injected ones among them, has left this process: it has ended, or the kernel (or, over
    /// shared memory, the peer's ring) has all its bytes. After that the end of the process loses
    /// nothing of them.
    ///
    /// This is for operations that are not awaited: those that were
    /// [injected](Self::inject), [posted](crate::SendRequest::post), or
    /// [started](crate::SendRequest::start) and dropped. A send that was awaited has left already.
    ///
    /// It says nothing about how operations have ended: their completions and events do. It does not
    /// wait for the peer's word, as [`delivery_complete`](crate::SendRequest::delivery_complete)
    /// does. A long message that the peer fetches from this process is handed over when the peer
    /// has it, so a flush waits for the peer then: over `shm` where messages are [copied
    /// once](crate::guide::memory), over `tcp` of messages above 16 KiB in RXM and of
    /// [those without a copy](crate::SocketOptions::zero_copy_threshold). Reads are not waited for.
    ///
    /// # Errors
    /// [`Error::Closed`](crate::Error::Closed) when the endpoint is closed. When it is closed
    /// meanwhile the flush ends, since its operations do.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing: what was posted goes on.
    pub async fn flush(&self) -> Result<()> {
        self.inner.node.check_open()?;
        flush(&self.inner.domain, Some(self.inner.id)).await
    }

    /// Closes the endpoint, for all its clones (`fi_close`). Operations that have not completed end
    /// with [`Error::Canceled`](crate::Error::Canceled) and their buffers, and peers are told.
    /// Dropping the last clone does the same.
    ///
    /// # Errors
    /// [`Error::Closed`](crate::Error::Closed) when it was closed before.
    #[doc(alias = "fi_close")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        match self.inner.node.close() {
            Ok(()) => {
                self.inner.domain.core.close_endpoint(self.inner.id);
                self.open
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
        self.open.own.lock().ok()?.completions.take()
    }

    /// The event queue of an endpoint from [`Endpoint::bind`]; `None` after the first call, and for
    /// endpoints that were bound to queues by hand.
    #[must_use]
    pub fn events(&self) -> Option<EventQueue> {
        self.open.own.lock().ok()?.events.take()
    }
}

impl<M: ThreadModel> Clone for Endpoint<M> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            open: self.open.clone(),
            model: PhantomData,
        }
    }
}

impl Drop for OpenEndpoint {
    fn drop(&mut self) {
        // Fails only when it was closed before: what shares its receives has a reference to this.
        let _ = self.inner.node.close();
        self.inner.domain.core.close_endpoint(self.inner.id);
        self.inner.node.uncount();
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
