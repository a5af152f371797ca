//! Endpoints: creation, parts, requests.
//!
//! `endpoint_inner` has the part of an endpoint that operations refer to, with the checks of
//! operations against capabilities and limits.
//!
//! | file | subject |
//! |---|---|
//! | `mod` | the endpoint: its parts, `add_peer`, `flush`, `close` |
//! | `builder`, `bind` | creation: step by step, or with fabric, domain and queues in one call |
//! | `connect`, `connected` | connection attempts and accepting; connected endpoints |
//! | `shared_rx` | shared receive contexts |
//! | `messages`, `onesided`, `batch` | operations: messages, one-sided operations, batches |

mod batch;
mod bind;
mod builder;
mod connect;
mod connected;
mod messages;
mod onesided;
mod shared_rx;

pub use bind::BindOptions;
pub(crate) use bind::builder_with_queues;
pub use builder::EndpointBuilder;
pub(crate) use builder::{check_msg_type, set_once};
pub use connect::Connect;
pub use connected::ConnectedEndpoint;
pub use shared_rx::{SharedRxContext, SharedRxContextBuilder};

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use fabric_core::completion::OpKind;
use fabric_core::info::Info;
use fabric_core::stats::EndpointStats;
use fabric_core::transport::TxOp;
use fabric_core::tree::DependencyGuard;
use fabric_core::{Address, FiAddr, Result};
use fabric_reactor::{CompletionTarget, CreditMode, PostResult};

use crate::av::{AddressVector, AvInner, ToAddress};
use crate::close::{CloseError, close_object};
use crate::cq::CompletionQueue;
use crate::domain::Domain;
use crate::domain_inner::DomainInner;
use crate::endpoint_inner::EndpointInner;
use crate::eq::EventQueue;
use crate::flush::flush;
use crate::op::{AsEndpoint, Operation, sealed};
use crate::resolve;
use crate::thread_model::{Shared, ThreadModel};

/// An endpoint (`fid_ep`): sends and receives messages and accesses memory of peers.
///
/// Created by [`Endpoint::bind`], with its own fabric, domain and queues, or by
/// [`Domain::endpoint`], step by step. Cheap to clone; it closes with its last clone, or with
/// [`Endpoint::close`] for all of them.
///
/// Only its clones keep an endpoint open. Started operations, streams of messages, probes, permits
/// and claimed messages do not: they end with an error when the last clone is dropped. See
/// [handles](crate::guide::errors#handles).
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
#[derive(Clone)]
#[doc(alias = "fid_ep")]
pub struct Endpoint<M: ThreadModel = Shared> {
    pub(crate) inner: Arc<EndpointInner>,
    pub(crate) open: Arc<OpenEndpoint<M>>,
    domain: Domain<M>,
}

/// Keeps an endpoint, or a shared receive context, open. The handles of an endpoint share one
/// `OpenEndpoint`; endpoints that use a shared receive context share that of the context. The
/// endpoint closes when the last reference is dropped.
///
/// The references that keep other objects open are here, and none in [`EndpointInner`], to which
/// operations refer: a future that is never polled again keeps no object open.
pub(crate) struct OpenEndpoint<M: ThreadModel> {
    pub(crate) inner: Arc<EndpointInner>,
    _domain: Arc<DomainInner>,
    pub(crate) av: Arc<AvInner>,
    /// The shared receive context, if the endpoint uses one.
    _shared_rx: Option<Arc<OpenEndpoint<M>>>,
    /// Objects that the endpoint is bound to, which cannot be closed before it.
    guards: Mutex<Vec<DependencyGuard>>,
    /// The queues that `bind`, `connect` or `accept` created and that were not taken yet.
    owned_queues: Mutex<OwnedQueues<M>>,
}

/// The queues of an endpoint that was opened in one call: by `bind`, `connect` or `accept`. `None`
/// after a queue was taken.
pub(crate) struct OwnedQueues<M: ThreadModel> {
    pub(crate) completions: Option<CompletionQueue<M>>,
    pub(crate) events: Option<EventQueue>,
}

impl<M: ThreadModel> OwnedQueues<M> {
    pub(crate) const NONE: Self = Self {
        completions: None,
        events: None,
    };
}

impl<M: ThreadModel> Endpoint<M> {
    /// Inserts a peer into the address vector and connects to it, so that the first message finds
    /// the connection ready. On failure, a handle that was new is removed again.
    ///
    /// The handle is valid until you [remove](AddressVector::remove) it. The handle stands for the
    /// peer's name, and survives the death and restart of the peer. A peer that is in the address
    /// vector keeps its handle; the handle of an auto-inserted peer becomes permanent. See
    /// [`guide::client_server`](crate::guide::client_server).
    ///
    /// Waits until the peer makes progress and answers: over `shm` without limit, over `tcp` for at
    /// most ten seconds. Over `shm`, a peer whose backlog is full, or that has as many handshakes
    /// of this process as it takes, is tried again for ten seconds. `tokio::time::timeout` sets a
    /// shorter limit. Over `udp` there are no connections, and the peer is only inserted.
    /// [`AddressVector::insert`] inserts a peer without connecting.
    ///
    /// For a host name, as in `tcp://localhost:7000`, its addresses of this endpoint's family are
    /// tried in order; see [`resolve`](crate::resolve()). The handle stands for the address that
    /// answered.
    ///
    /// # Errors
    /// [`Error::NoSuchPeer`](crate::Error::NoSuchPeer) when nothing listens at the address,
    /// [`Error::TimedOut`](crate::Error::TimedOut) when the peer does not answer,
    /// [`Error::Unreachable`](crate::Error::Unreachable) without a route;
    /// [`Error::OtherUser`](crate::Error::OtherUser),
    /// [`Error::ConnectionRefused`](crate::Error::ConnectionRefused);
    /// [`Error::NoSuchHost`](crate::Error::NoSuchHost); and those of [`AddressVector::insert`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves the peer in the address vector, and the connection attempt
    /// continues.
    #[doc(alias = "fi_av_insert")]
    pub async fn add_peer(&self, peer: impl ToAddress) -> Result<FiAddr> {
        let is_ipv4 = self.name().socket_addr().is_none_or(|at| at.is_ipv4());
        let addresses = resolve::resolve_filtered(&peer, self.inner.domain.scheme(), |at| {
            at.is_ipv4() == is_ipv4
        })
        .await?;
        resolve::try_addresses(addresses, |address| self.insert_and_connect(address)).await
    }

    /// Inserts the address and waits for a connection to it. On failure, removes a new address
    /// again.
    async fn insert_and_connect(&self, address: Address) -> Result<FiAddr> {
        let av = self.address_vector();
        let (peer, is_new) = av.inner.insert(&address)?;
        let tx_op = TxOp::new(OpKind::Connect, peer);
        let engine = &self.inner.domain.engine;
        let connected = match engine.send(
            self.inner.id,
            tx_op,
            Vec::new(),
            CompletionTarget::Future,
            CreditMode::Wait,
        ) {
            Ok(PostResult::Pending(key)) => {
                Operation::<Vec<u8>, M>::posted(self.inner.clone(), key, false)
                    .await
                    .map(drop)
            }
            Ok(_) => Ok(()),
            Err(failed) => Err(failed),
        };
        if let Err(failed) = connected {
            if is_new {
                // Fails if the address vector removed the handle itself, when the peer connected
                // and disconnected in the meantime.
                let _ = av.remove(peer);
            }
            return Err(failed.error);
        }
        Ok(peer)
    }

    /// Returns the address by which peers reach this endpoint (`fi_getname`). The address prints
    /// with libfabric's prefix, as in `fi_shm://echo` for `shm://echo`; [`Endpoint::add_peer`] and
    /// [`Endpoint::bind`] take both forms.
    #[doc(alias = "fi_getname")]
    #[must_use]
    pub fn name(&self) -> &Address {
        self.inner
            .name
            .as_ref()
            .expect("the application has no Endpoint handle of a shared receive context")
    }

    /// Returns counters since the endpoint was enabled; all 0 when it is closed.
    #[must_use]
    pub fn stats(&self) -> EndpointStats {
        self.inner.domain.engine.endpoint_stats(self.inner.id)
    }

    /// Returns the attributes that the endpoint was opened with.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.inner.info
    }

    /// Returns the id by which events name this endpoint
    /// ([`Event::object_id`](crate::Event::object_id)).
    #[must_use]
    pub fn id(&self) -> u64 {
        self.inner.node.id()
    }

    /// Returns the context value of the endpoint's events, set with [`EndpointBuilder::context`] or
    /// [`BindOptions::context`].
    #[must_use]
    pub fn context(&self) -> u64 {
        self.inner.context
    }

    /// Returns the address vector that the endpoint is bound to.
    #[must_use]
    pub fn address_vector(&self) -> AddressVector<M> {
        AddressVector::from_inner(self.open.av.clone())
    }

    /// Returns the domain of this endpoint.
    #[must_use]
    pub fn domain(&self) -> &Domain<M> {
        &self.domain
    }

    /// Cancels the oldest operation that was [posted](crate::Request::post) to a queue of this
    /// endpoint with this context and has not begun (`fi_cancel`). Returns false if there is none.
    ///
    /// The canceled operation is reported to its queue, with
    /// [`Error::Canceled`](crate::Error::Canceled) and its buffer, also with selective completion.
    /// A receive has begun when a message has matched it, any other operation when its first byte
    /// is on its way; such an operation completes as without this call. A multi-receive takes
    /// no more messages, and its release is the entry with the error. To cancel all operations of a
    /// context, call it until it returns false. The call searches the operations of this endpoint
    /// that have not begun, under the domain's lock.
    ///
    /// Operations with a future are canceled by [`Operation::cancel`](crate::Operation::cancel).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::{Endpoint, Error};
    /// use futures_util::StreamExt;
    /// let ep = Endpoint::bind("shm://").await?;
    /// let mut queue = ep.take_completions().expect("the first call gets the queue");
    /// ep.recv_into(Vec::with_capacity(100)).context(1).post()?;
    ///
    /// assert!(ep.cancel(1)?);
    /// let mut canceled = queue.next().await.expect("the queue is open");
    /// assert_eq!((canceled.context, canceled.error.as_deref()), (1, Some(&Error::Canceled)));
    /// assert_eq!(canceled.take_buf::<Vec<u8>>().expect("its buffer").capacity(), 100);
    /// assert!(!ep.cancel(1)?, "no other operation has this context");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Closed`](crate::Error::Closed).
    #[doc(alias = "fi_cancel")]
    pub fn cancel(&self, context: u64) -> Result<bool> {
        self.inner.node.check_open()?;
        let engine = &self.inner.domain.engine;
        Ok(engine.cancel_posted(self.inner.id, context))
    }

    /// Ends the connections with a peer, in both directions, and discards what the peer has sent
    /// and no receive has taken. Returns whether there was a connection.
    ///
    /// Pass the `peer` field of an event such as
    /// [`PeerOverBudget`](crate::EventKind::PeerOverBudget), or the name that
    /// [`lookup`](crate::AddressVector::lookup) returns for a handle. Messages of the peer that the
    /// peer saw complete can be lost; those that were buffered are reported by
    /// [`MessagesDiscarded`](crate::EventKind::MessagesDiscarded). An auto-inserted handle of the
    /// peer becomes invalid. Queued operations for the peer, and receives from its handle, fail
    /// with [`Error::PeerGone`](crate::Error::PeerGone). A receive from any source in which a
    /// message of the peer was arriving waits for another message. The event is a
    /// [`PeerDown`](crate::EventKind::PeerDown) with the reason
    /// [`DownReason::Disconnected`](crate::DownReason::Disconnected). The peer is not barred: its
    /// next operation connects again, and so does the next one here. Only
    /// [`max_inbound`](crate::SocketOptions::max_inbound) refuses it: with 0, peers that the
    /// program has not inserted cannot connect. Over `udp` there is no connection.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::Endpoint;
    /// let (ep, other) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
    /// let to_ep = other.add_peer(ep.name()).await?;
    /// other.send(to_ep, "taken").await?;
    /// let message = ep.recv().await?;
    /// other.send(to_ep, "not taken").await?;
    ///
    /// let peer = ep.address_vector().lookup(message.source()?)?;
    /// assert!(ep.disconnect(&peer)?);
    /// assert!(!ep.disconnect(&peer)?, "the peer is no longer connected");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Closed`](crate::Error::Closed).
    pub fn disconnect(&self, peer: &Address) -> Result<bool> {
        self.inner.node.check_open()?;
        self.inner.domain.engine.disconnect(self.inner.id, peer)
    }

    /// Waits until every send, write and non-fetching atomic operation that was posted on this
    /// endpoint before, including injected ones, has left this process: the operation has ended, or
    /// the kernel (over shared memory: the peer's ring) has all its bytes. The end of the process
    /// does not lose it then, with one exception: over `tcp` the kernel discards bytes that it has
    /// not sent yet if the process ends while bytes of that peer are unread in the socket. Receive
    /// what the peer sent before, or wait for the peer's reply.
    ///
    /// Use this for operations that are not awaited: those that were
    /// [injected](crate::Request::inject), [posted](crate::Request::post), or
    /// [started](crate::Request::start) and dropped. An awaited send has left the process when its
    /// future resolves.
    ///
    /// The result does not tell whether operations succeeded: their completions and events do. The
    /// flush does not wait for an acknowledgement of the peer, as
    /// [`delivery_complete`](crate::Request::delivery_complete) does. But where the peer reads
    /// a long message from this process, the flush waits until the peer has it: over `shm` where
    /// messages are [copied once](crate::guide::memory#single-copy), over `tcp` for RXM messages
    /// above 16 KiB and for [zero-copy sends](crate::SocketOptions::zero_copy_threshold). Reads and
    /// fetching atomic operations are not waited for.
    ///
    /// # Errors
    /// [`Error::Closed`](crate::Error::Closed) when the endpoint is closed. When it is closed
    /// during the flush, the flush ends, because its operations do.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing: posted operations continue.
    pub async fn flush(&self) -> Result<()> {
        self.inner.node.check_open()?;
        flush(&self.inner.domain, Some(self.inner.id)).await
    }

    /// Closes the endpoint, for all its clones (`fi_close`). Pending operations end with
    /// [`Error::Canceled`](crate::Error::Canceled) and their buffers, and peers are notified.
    /// Unread events of the endpoint are removed from its [event queue](crate::EventQueue).
    /// Dropping the last clone does the same.
    ///
    /// # Errors
    /// [`Error::Busy`](crate::Error::Busy) while a memory region is bound to the endpoint;
    /// [`Error::Closed`](crate::Error::Closed) when the endpoint was closed before.
    #[doc(alias = "fi_close")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        let ep = close_object(self, |ep| &ep.inner.node)?;
        ep.inner.domain.engine.close_endpoint(ep.inner.id);
        let mut guards = ep
            .open
            .guards
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        guards.clear();
        Ok(())
    }
}

impl<M: ThreadModel> Endpoint<M> {
    /// Takes the completion queue of an endpoint from [`Endpoint::bind`]. Returns `None` after the
    /// first call, and for endpoints from an [`EndpointBuilder`].
    #[must_use]
    pub fn take_completions(&self) -> Option<CompletionQueue<M>> {
        self.open.owned_queues.lock().ok()?.completions.take()
    }

    /// Takes the event queue of an endpoint from [`Endpoint::bind`]. Returns `None` after the first
    /// call, and for endpoints from an [`EndpointBuilder`].
    #[must_use]
    pub fn take_events(&self) -> Option<EventQueue> {
        self.open.owned_queues.lock().ok()?.events.take()
    }
}

impl<M: ThreadModel> Drop for OpenEndpoint<M> {
    fn drop(&mut self) {
        // Fails only if the endpoint was closed before: endpoints that use it as their shared
        // receive context hold references.
        let _ = self.inner.node.close();
        self.inner.domain.engine.close_endpoint(self.inner.id);
        self.inner.node.detach_from_parent();
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

impl<M: ThreadModel> sealed::Sealed for Endpoint<M> {}
impl<M: ThreadModel> AsEndpoint<M> for Endpoint<M> {
    fn inner(&self) -> &Arc<EndpointInner> {
        &self.inner
    }
}
