//! Connected endpoints (`FI_EP_MSG`).

use std::fmt;
use std::sync::Arc;

use bytes::BytesMut;
use fabric_core::atomic::{AtomicOp, AtomicType, AtomicValues};
use fabric_core::buf::{IoBuf, IoBufMut, LoanedBuf, PooledBuf};
use fabric_core::info::Info;
use fabric_core::stats::EndpointStats;
use fabric_core::transport::ProcessCredentials;
use fabric_core::{Address, FiAddr, Result};

use super::Endpoint;
use crate::close::CloseError;
use crate::cq::CompletionQueue;
use crate::domain::Domain;
use crate::endpoint_inner::EndpointInner;
use crate::eq::EventQueue;
use crate::op::{
    AsEndpoint, BatchError, BatchOp, Fetching, MultiRecvOp, NoFetch, ProbeOp, ReadFrom, ReadOp,
    RecvOp, RemoteAtomicOp, Request, Reserving, SendOp, WriteOp, WriteTo, sealed,
};
use crate::remote_region::{RemoteAddr, RemoteRegion};
use crate::thread_model::{Shared, ThreadModel};
use crate::window::RemoteWindow;

/// A connected endpoint (`fid_ep` of type `FI_EP_MSG`): sends and receives messages and accesses
/// memory of its one peer.
///
/// Created by [`ConnectedEndpoint::connect`] and [`ConnectionRequest::accept`], with its own
/// queues, or by [`EndpointBuilder::connect`] and [`EndpointBuilder::accept`]. Cheap to clone; it
/// closes with its last clone, or with [`close`](Self::close) for all of them.
///
/// The calls are those of an [`Endpoint`], without the peer as argument and without an address
/// vector. The requests have the same types. A message has no [source](crate::Done::source): every
/// message is from the [peer](Self::peer).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
/// use fabric_async::{ConnectedEndpoint, PassiveEndpoint};
///
/// let mut listener = PassiveEndpoint::bind("tcp://127.0.0.1:0").await?;
/// let name = listener.name().clone();
/// tokio::spawn(async move {
///     let ep = listener.accept().await?.accept("")?;
///     let message = ep.recv().await?;
///     ep.send(message.into_bytes()).await?;
///     Ok::<_, fabric_async::Error>(())
/// });
/// let ep = ConnectedEndpoint::connect(&name).await?;
/// assert_eq!(ep.peer(), &name);
/// ep.send("hello").await?;
/// assert_eq!(&ep.recv().await?[..], b"hello");
/// # Ok(()) }
/// ```
///
/// [`ConnectionRequest::accept`]: crate::ConnectionRequest::accept
/// [`EndpointBuilder::connect`]: crate::EndpointBuilder::connect
/// [`EndpointBuilder::accept`]: crate::EndpointBuilder::accept
#[derive(Clone)]
#[doc(alias = "fid_ep")]
#[doc(alias = "FI_EP_MSG")]
pub struct ConnectedEndpoint<M: ThreadModel = Shared> {
    /// An endpoint whose address vector has only the peer.
    ep: Endpoint<M>,
    /// The address handle of the peer.
    peer: FiAddr,
    peer_info: Arc<PeerInfo>,
}

/// The address and the credentials of the peer, and the private data that the peer sent when the
/// connection was established.
struct PeerInfo {
    address: Address,
    private_data: Vec<u8>,
    credentials: Option<ProcessCredentials>,
}

impl<M: ThreadModel> ConnectedEndpoint<M> {
    /// Wraps an endpoint that is connected to `peer`.
    pub(super) fn new(
        ep: Endpoint<M>,
        peer: FiAddr,
        address: Address,
        (private_data, credentials): (Vec<u8>, Option<ProcessCredentials>),
    ) -> Self {
        let peer_info = Arc::new(PeerInfo {
            address,
            private_data,
            credentials,
        });
        Self {
            ep,
            peer,
            peer_info,
        }
    }

    /// Returns the endpoint with its peer as one that has an address vector.
    pub(crate) fn endpoint_and_peer(&self) -> (&Endpoint<M>, FiAddr) {
        (&self.ep, self.peer)
    }

    /// Returns whether both handles are of one endpoint.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.peer_info, &other.peer_info)
    }

    /// Returns the address of the peer (`fi_getpeer`), also after it has disconnected. For an
    /// accepted endpoint this is an address of the client at which no endpoint listens.
    #[doc(alias = "fi_getpeer")]
    #[must_use]
    pub fn peer(&self) -> &Address {
        &self.peer_info.address
    }

    /// Returns the private data that the peer sent with its request or answer.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.peer_info.private_data
    }

    /// Returns the user, group and process of the peer over `shm`, as the kernel reported them when
    /// the connection was established (`SO_PEERCRED`); `None` over `tcp`.
    ///
    /// The user is always that of this process, because no other user can connect. The process id
    /// may be that of another process once the peer has died.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
    /// use fabric_async::stream::{FabricListener, FabricStream};
    /// let mut listener = FabricListener::bind("shm://").await?;
    /// let connect = FabricStream::connect(listener.local_addr().clone());
    /// let (client, server) = tokio::try_join!(connect, listener.accept())?;
    /// for stream in [client, server] {
    ///     let peer = stream.endpoint().peer_credentials().expect("known over shm");
    ///     assert_eq!(peer.pid, Some(std::process::id() as i32));
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "SO_PEERCRED")]
    #[must_use]
    pub fn peer_credentials(&self) -> Option<ProcessCredentials> {
        self.peer_info.credentials
    }

    /// Returns the address of this endpoint (`fi_getname`). For an endpoint that has connected this
    /// is the address of its socket, which does not listen.
    #[doc(alias = "fi_getname")]
    #[must_use]
    pub fn name(&self) -> &Address {
        self.ep.name()
    }

    /// Returns counters since the endpoint was opened; all 0 when it is closed.
    #[must_use]
    pub fn stats(&self) -> EndpointStats {
        self.ep.stats()
    }

    /// Returns the attributes that the endpoint was opened with.
    #[must_use]
    pub fn info(&self) -> &Info {
        self.ep.info()
    }

    /// Returns the id by which events name this endpoint
    /// ([`Event::object_id`](crate::Event::object_id)).
    #[must_use]
    pub fn id(&self) -> u64 {
        self.ep.id()
    }

    /// Returns the context value of the endpoint's events, as [`Endpoint::context`].
    #[must_use]
    pub fn context(&self) -> u64 {
        self.ep.context()
    }

    /// Returns the domain of this endpoint.
    #[must_use]
    pub fn domain(&self) -> &Domain<M> {
        self.ep.domain()
    }

    /// Cancels the oldest operation that was [posted](crate::Request::post) to a queue of this
    /// endpoint with this context and has not begun (`fi_cancel`), as [`Endpoint::cancel`]. Returns
    /// false if there is none.
    ///
    /// # Errors
    /// [`Error::Closed`](crate::Error::Closed).
    #[doc(alias = "fi_cancel")]
    pub fn cancel(&self, context: u64) -> Result<bool> {
        self.ep.cancel(context)
    }

    /// Waits until everything that was posted before has left this process, as
    /// [`Endpoint::flush`].
    ///
    /// # Errors
    /// As [`Endpoint::flush`].
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing: posted operations continue.
    pub async fn flush(&self) -> Result<()> {
        self.ep.flush().await
    }

    /// Shuts down the connection (`fi_shutdown`); the endpoint stays open.
    ///
    /// Completed sends are still delivered, over tcp in the background and for at most five
    /// seconds. Pending sends and receives end with [`Error::Canceled`](crate::Error::Canceled).
    /// Messages that have arrived can still be received. Both sides get the event
    /// [`Shutdown`](crate::EventKind::Shutdown). Later sends, writes, reads and atomic operations,
    /// and receives that find no message, fail with [`Error::ShutDown`](crate::Error::ShutDown). A
    /// second call, or a call after the peer has disconnected, does nothing.
    ///
    /// # Errors
    /// [`Error::Closed`](crate::Error::Closed) when the endpoint is closed.
    #[doc(alias = "fi_shutdown")]
    pub fn shutdown(&self) -> Result<()> {
        self.ep.inner.node.check_open()?;
        self.ep.inner.domain.engine.shutdown(self.ep.inner.id)
    }

    /// Closes the endpoint, for all its clones (`fi_close`), as [`Endpoint::close`]. The connection
    /// ends as with [`shutdown`](Self::shutdown), but only the peer gets the event: a closed
    /// endpoint has no events.
    ///
    /// # Errors
    /// [`Error::Closed`](crate::Error::Closed) when the endpoint was closed before.
    #[doc(alias = "fi_close")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        let Self {
            ep,
            peer,
            peer_info,
        } = self;
        ep.close().map_err(|refused| {
            refused.map_handle(|ep| Self {
                ep,
                peer,
                peer_info,
            })
        })
    }
}

impl<M: ThreadModel> ConnectedEndpoint<M> {
    /// Takes the completion queue of an endpoint from [`ConnectedEndpoint::connect`] or
    /// [`ConnectionRequest::accept`](crate::ConnectionRequest::accept). Returns `None` after the
    /// first call, and for endpoints from an [`EndpointBuilder`](crate::EndpointBuilder).
    #[must_use]
    pub fn take_completions(&self) -> Option<CompletionQueue<M>> {
        self.ep.take_completions()
    }

    /// Takes the event queue, as [`take_completions`](Self::take_completions) the completion queue.
    #[must_use]
    pub fn take_events(&self) -> Option<EventQueue> {
        self.ep.take_events()
    }
}

/// # Messages
impl<M: ThreadModel> ConnectedEndpoint<M> {
    /// Returns a request to send a message to the peer (`fi_send`), as [`Endpoint::send`].
    ///
    /// # Cancel safety
    /// As [`Endpoint::send`].
    #[doc(alias = "fi_send")]
    #[doc(alias = "fi_sendmsg")]
    #[doc(alias = "fi_tsendmsg")]
    #[inline]
    pub fn send<B>(&self, buf: B) -> Request<'_, SendOp, B, M> {
        self.ep.send(self.peer, buf)
    }

    /// Returns a request to receive a message of any length into a [`PooledBuf`]
    /// (`fi_recv`), as [`Endpoint::recv`].
    ///
    /// When the connection ends, the receive fails with
    /// [`Error::PeerGone`](crate::Error::PeerGone), after the messages that have arrived.
    ///
    /// # Cancel safety
    /// Safe: a message whose receive is dropped goes to the next receive.
    #[doc(alias = "fi_recv")]
    pub fn recv(&self) -> Request<'_, RecvOp, PooledBuf, M> {
        self.ep.recv()
    }

    /// Returns a request to receive into this buffer (`fi_recv`), as [`Endpoint::recv_into`].
    ///
    /// # Cancel safety
    /// As [`Endpoint::recv_into`].
    #[doc(alias = "fi_recv")]
    #[doc(alias = "fi_recvmsg")]
    #[doc(alias = "fi_trecvmsg")]
    pub fn recv_into<B: IoBufMut>(&self, buf: B) -> Request<'_, RecvOp, B, M> {
        self.ep.recv_into(buf)
    }

    /// Returns a request to receive several messages into this buffer (`FI_MULTI_RECV`), as
    /// [`Endpoint::recv_multi`].
    ///
    /// # Cancel safety
    /// Safe: see [`MultiRecv`](crate::MultiRecv).
    #[doc(alias = "FI_MULTI_RECV")]
    pub fn recv_multi(&self, buf: BytesMut) -> Request<'_, MultiRecvOp, BytesMut, M> {
        self.ep.recv_multi(buf)
    }

    /// Returns a request for the length and tag of a message before it is received (`FI_PEEK`,
    /// `FI_CLAIM`), as [`Endpoint::probe`].
    #[doc(alias = "FI_PEEK")]
    #[doc(alias = "FI_CLAIM")]
    pub fn probe(&self) -> Request<'_, ProbeOp, (), M> {
        self.ep.probe()
    }

    /// Returns a request to receive a message in place, as [`Endpoint::recv_loan`].
    ///
    /// # Cancel safety
    /// Safe, as [`recv`](Self::recv).
    pub fn recv_loan(&self) -> Request<'_, RecvOp, LoanedBuf, M> {
        self.ep.recv_loan()
    }

    /// Waits for a transmit credit, which the returned [`Permit`](crate::Permit) holds, as
    /// [`Endpoint::reserve`].
    ///
    /// # Errors
    /// As [`Endpoint::reserve`].
    ///
    /// # Cancel safety
    /// Dropping the future gives up its place in the queue.
    pub fn reserve(&self) -> Reserving<'_, M> {
        self.ep.reserve(self.peer)
    }
}

/// # One-sided operations
///
/// One-sided operations access memory of the peer's domain, as those of an
/// [`Endpoint`](Endpoint#one-sided-operations).
impl<M: ThreadModel> ConnectedEndpoint<M> {
    /// Returns a request to write these bytes to one or several ranges of the peer's memory
    /// (`fi_write`), as [`Endpoint::write`].
    ///
    /// # Cancel safety
    /// As [`Endpoint::write`].
    #[doc(alias = "fi_write")]
    pub fn write<B>(&self, to: impl Into<WriteTo>, buf: B) -> Request<'_, WriteOp, B, M> {
        self.ep.write(self.peer, to, buf)
    }

    /// Returns a request to read one or several ranges of the peer's memory into a
    /// [`PooledBuf`] (`fi_read`), as [`Endpoint::read`].
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    #[doc(alias = "fi_read")]
    pub fn read(&self, from: impl Into<ReadFrom>) -> Request<'_, ReadOp, PooledBuf, M> {
        self.ep.read(self.peer, from)
    }

    /// Returns a request to read one or several ranges of the peer's memory into this buffer
    /// (`fi_read`), as [`Endpoint::read_into`].
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing; the buffer is dropped.
    #[doc(alias = "fi_read")]
    pub fn read_into<B: IoBufMut>(
        &self,
        from: impl Into<ReadFrom>,
        buf: B,
    ) -> Request<'_, ReadOp, B, M> {
        self.ep.read_into(self.peer, from, buf)
    }

    /// Maps a region of the peer (`ucp_rkey_ptr`), as [`Endpoint::window`].
    ///
    /// # Errors
    /// As [`Endpoint::window`].
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    #[doc(alias = "ucp_rkey_ptr")]
    pub async fn window(&self, region: RemoteRegion) -> Result<RemoteWindow> {
        self.ep.window(self.peer, region).await
    }

    /// Returns a request for an atomic operation on the peer's memory (`fi_atomic`), as
    /// [`Endpoint::atomic`].
    #[doc(alias = "fi_atomic")]
    pub fn atomic<R: AtomicValues>(
        &self,
        at: RemoteAddr,
        op: AtomicOp,
        operands: R,
    ) -> Request<'_, RemoteAtomicOp<R, NoFetch>, R, M> {
        self.ep.atomic(self.peer, at, op, operands)
    }

    /// Returns a request for an atomic operation that returns the previous values
    /// (`fi_fetch_atomic`), as [`Endpoint::fetch_atomic`].
    #[doc(alias = "fi_fetch_atomic")]
    pub fn fetch_atomic<R: AtomicValues>(
        &self,
        at: RemoteAddr,
        op: AtomicOp,
        operands: R,
    ) -> Request<'_, RemoteAtomicOp<R, Fetching>, R, M> {
        self.ep.fetch_atomic(self.peer, at, op, operands)
    }

    /// Returns a request for an atomic operation with comparands (`fi_compare_atomic`), as
    /// [`Endpoint::compare_atomic`].
    #[doc(alias = "fi_compare_atomic")]
    pub fn compare_atomic<R: AtomicValues>(
        &self,
        at: RemoteAddr,
        op: AtomicOp,
        operands: R,
        comparands: R,
    ) -> Request<'_, RemoteAtomicOp<R, Fetching>, R, M> {
        self.ep
            .compare_atomic(self.peer, at, op, operands, comparands)
    }

    /// Returns a request to add to a value in the peer's memory (`FI_SUM`), which resolves to the
    /// previous value.
    pub fn fetch_add<T: AtomicType>(
        &self,
        at: RemoteAddr,
        add: T,
    ) -> Request<'_, RemoteAtomicOp<T, Fetching>, T, M> {
        self.ep.fetch_add(self.peer, at, add)
    }

    /// Returns a request to replace a value in the peer's memory by `new` if it equals `expected`
    /// (`FI_CSWAP`). The request resolves to the previous value, which is `expected` on success.
    pub fn compare_swap<T: AtomicType>(
        &self,
        at: RemoteAddr,
        expected: T,
        new: T,
    ) -> Request<'_, RemoteAtomicOp<T, Fetching>, T, M> {
        self.ep.compare_swap(self.peer, at, expected, new)
    }
}

/// # Batches
///
/// As those of an [`Endpoint`](Endpoint#batches).
impl<M: ThreadModel> ConnectedEndpoint<M> {
    /// Sends copies of borrowed bytes, each as a message (`fi_inject` with `FI_MORE`), as
    /// [`Endpoint::inject_all`].
    ///
    /// # Errors
    /// As [`Endpoint::inject_all`].
    #[doc(alias = "FI_MORE")]
    pub fn inject_all<'b>(
        &self,
        messages: impl IntoIterator<Item = &'b [u8]>,
    ) -> (usize, Result<()>) {
        self.ep.inject_all(self.peer, messages)
    }

    /// Posts requests of this endpoint together, as [`Endpoint::post_all`]. Returns their number.
    ///
    /// # Errors
    /// As [`Endpoint::post_all`].
    #[doc(alias = "FI_MORE")]
    pub fn post_all<'a, O: BatchOp<B>, B: IoBuf>(
        &'a self,
        requests: impl IntoIterator<Item = Request<'a, O, B, M>>,
    ) -> Result<usize, BatchError<Request<'a, O, B, M>>> {
        self.ep.post_all(requests)
    }
}

impl<M: ThreadModel> fmt::Debug for ConnectedEndpoint<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = &self.ep.inner.node;
        f.debug_struct("ConnectedEndpoint")
            .field("id", &node.id())
            .field("parent", &node.parent().map(|parent| parent.id()))
            .field("name", &format_args!("{}", self.name()))
            .field("peer", &format_args!("{}", self.peer()))
            .field("caps", &self.info().caps)
            .finish()
    }
}

impl<M: ThreadModel> sealed::Sealed for ConnectedEndpoint<M> {}
impl<M: ThreadModel> AsEndpoint<M> for ConnectedEndpoint<M> {
    fn inner(&self) -> &Arc<EndpointInner> {
        &self.ep.inner
    }
}
