//! Opening connected endpoints (`FI_EP_MSG`): connecting and accepting.

use std::fmt;
use std::future::{Future, IntoFuture, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use fabric_core::flags::Caps;
use fabric_core::transport::{ConnectMode, ConnectParams, Connected, EpId};
use fabric_core::tree::ObjectNode;
use fabric_core::{Address, Error, FiAddr, Result, Scheme};

use super::bind::builder_with_queues;
use super::builder::check_msg_type;
use super::{BindOptions, ConnectedEndpoint, Endpoint, EndpointBuilder};
use crate::av::{AvInner, ToAddress};
use crate::domain_inner::DomainInner;
use crate::passive::ConnectionRequest;
use crate::resolve::{AddressOrHost, try_addresses};
use crate::thread_model::{Pinned, Serial, Shared, ThreadModel};

/// Default connect timeout.
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection attempt (`fi_connect`), to be awaited: resolves to a [`ConnectedEndpoint`]. The
/// attempt starts with the first poll. Before, nothing is opened, resolved or sent, and a drop has
/// no effect.
///
/// # Errors
/// * [`Error::NoSuchPeer`] when nothing listens at the address;
/// * [`Error::NoSuchHost`], with the name, when a host has no address of the family of the [source
///   address](EndpointBuilder::name);
/// * [`Error::RejectedByPeer`] with the private data of the peer when the peer rejects the request;
/// * [`Error::TimedOut`];
/// * [`Error::Protocol`] when the answer violates the protocol;
/// * [`Error::PeerGone`] when the peer disconnects without an answer;
/// * over shm, [`Error::ConnectionRefused`] when the endpoint there is not a passive one, or takes
///   no connection of this process within the time limit, and [`Error::OtherUser`];
/// * [`Error::TooLong`] above the limit of private data;
/// * [`Error::BadAddress`], [`Error::WrongScheme`];
/// * [`Error::Invalid`] when the info is of another endpoint type;
/// * [`Error::Unbound`] when the info asks for a shared receive context, and none is bound;
/// * [`Error::Closed`], [`Error::Os`].
///
/// # Cancel safety
/// Dropping the future cancels the attempt and closes the endpoint. The peer may see a connection
/// that ends at once.
#[doc(alias = "fi_connect")]
#[must_use = "a connection attempt starts when it is awaited"]
pub struct Connect<M: ThreadModel = Shared> {
    open_builder: OpenBuilder<M>,
    /// The passive endpoint to connect to, or the error of its text.
    target: Result<AddressOrHost>,
    private_data: Vec<u8>,
    peer_supports_tags: bool,
    timeout: Duration,
}

/// What an endpoint is connected from.
enum OpenBuilder<M: ThreadModel> {
    Builder(Box<EndpointBuilder<M>>),
    /// The endpoint gets its own domain and queues, at the first poll.
    Options(Box<BindOptions<M>>),
}

impl<M: ThreadModel> OpenBuilder<M> {
    /// Returns the builder of the endpoint, given the scheme of the peer.
    fn open(self, scheme: Scheme) -> Result<EndpointBuilder<M>> {
        match self {
            Self::Builder(builder) => Ok(*builder),
            Self::Options(options) => {
                let domain = options.open_msg_domain(scheme)?;
                let builder = builder_with_queues(&domain, domain.info())?;
                Ok(builder.context(options.context))
            }
        }
    }
}

impl<M: ThreadModel> Connect<M> {
    fn new(open_builder: OpenBuilder<M>, target: Result<AddressOrHost>) -> Self {
        Self {
            open_builder,
            target,
            private_data: Vec::new(),
            peer_supports_tags: false,
            timeout: DEFAULT_CONNECT_TIMEOUT,
        }
    }

    /// Sets the private data of the request, for the peer: up to
    /// [`MAX_PRIVATE_DATA`](crate::MAX_PRIVATE_DATA) bytes.
    pub fn private_data(mut self, data: impl Into<Vec<u8>>) -> Self {
        self.private_data = data.into();
        self
    }

    /// Asserts that the peer supports tagged messages although its answer does not say so, as of a
    /// libfabric program whose endpoint has a shared receive context. See [the
    /// guide](crate::guide::connected_endpoints#tags). Peers of this library always tell, which
    /// overrides this.
    pub fn peer_supports_tags(mut self) -> Self {
        self.peer_supports_tags = true;
        self
    }

    /// Sets the time limit of the attempt at each address, after which it fails with
    /// [`Error::TimedOut`]; ten seconds by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Tries the addresses of the target in order.
    async fn run(self) -> Result<ConnectedEndpoint<M>> {
        let to = self.target?;
        let builder = self.open_builder.open(to.scheme())?;
        let source = builder.address.as_ref().and_then(Address::socket_addr);
        let found = to
            .resolve(|at| source.is_none_or(|source| source.is_ipv4() == at.is_ipv4()))
            .await?;
        let options = (&self.private_data[..], self.peer_supports_tags);
        let (to, attempt, connected) = try_addresses(found, |to| {
            let builder = &builder;
            async move {
                let (attempt, connected) = builder.try_connect(&to, options, self.timeout).await?;
                Ok((to, attempt, connected))
            }
        })
        .await?;
        let data = connected.data.clone();
        attempt.into_endpoint(builder, connected, to, data)
    }
}

// The states of resolution and attempts are those of async functions: the futures are boxed.
impl IntoFuture for Connect {
    type Output = Result<ConnectedEndpoint>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl IntoFuture for Connect<Serial> {
    type Output = Result<ConnectedEndpoint<Serial>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl IntoFuture for Connect<Pinned> {
    type Output = Result<ConnectedEndpoint<Pinned>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

/// An endpoint whose connection the application has not got yet. A drop closes the endpoint.
struct UnconnectedEndpoint {
    node: Arc<ObjectNode>,
    domain: Arc<DomainInner>,
    id: EpId,
    av: Arc<AvInner>,
    fi_addr: FiAddr,
    /// Whether an [`Endpoint`] closes the endpoint instead.
    is_handed_over: bool,
}

impl Drop for UnconnectedEndpoint {
    fn drop(&mut self) {
        if !self.is_handed_over {
            self.domain.engine.close_endpoint(self.id);
        }
    }
}

impl UnconnectedEndpoint {
    /// Creates the handle of an established connection. `peer` is the address of the peer, `data`
    /// its private data.
    fn into_endpoint<M: ThreadModel>(
        mut self,
        builder: EndpointBuilder<M>,
        connected: Connected,
        peer: Address,
        data: Vec<u8>,
    ) -> Result<ConnectedEndpoint<M>> {
        self.is_handed_over = true;
        let unsupported = (Caps::TAGGED | Caps::ATOMIC) - connected.tx_caps;
        let tx_caps = builder.info.caps - unsupported;
        let (node, av) = (self.node.clone(), self.av.clone());
        let ep = builder.into_endpoint(node, self.id, Some(connected.name), av, tx_caps)?;
        let credentials = connected.credentials;
        Ok(ConnectedEndpoint::new(
            ep,
            self.fi_addr,
            peer,
            (data, credentials),
        ))
    }
}

impl<M: ThreadModel> EndpointBuilder<M> {
    /// Connects to the passive endpoint at this address (`fi_connect`), from an info of type
    /// [`EpType::Msg`](crate::EpType::Msg).
    ///
    /// The future resolves when the peer has accepted. The event queue reports the result too, as
    /// [`Connected`](crate::EventKind::Connected) or
    /// [`ConnectFailed`](crate::EventKind::ConnectFailed), once for each address of a
    /// [host](ConnectedEndpoint::connect).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::{CqBind, EpType, EventKind, Fabric, Hints, discover};
    ///
    /// let hints = Hints::new().provider("tcp").ep_type(EpType::Msg);
    /// let info = discover(&hints)?.swap_remove(0);
    /// let fabric = Fabric::open(&info)?;
    /// let (domain, mut eq) = (fabric.domain(&info)?, fabric.event_queue(64)?);
    /// domain.bind_eq(&eq)?;
    /// let cq = domain.completion_queue(256)?;
    ///
    /// let mut listener = fabric.passive_endpoint(&info)?.bind_eq(&eq)?.listen()?;
    /// let both = CqBind::TRANSMIT | CqBind::RECV;
    /// let connect = domain.endpoint(&info)?.bind_cq(&cq, both)?.connect(listener.name());
    /// let accept = async {
    ///     let request = listener.accept().await?;
    ///     let ep = domain.endpoint(request.info())?.bind_cq(&cq, both)?;
    ///     ep.accept(request, b"welcome")
    /// };
    /// let (client, server) = tokio::try_join!(connect, accept)?;
    /// assert_eq!(client.private_data(), b"welcome");
    /// server.send("hello").await?;
    /// assert_eq!(&client.recv().await?[..], b"hello");
    /// assert!(matches!(eq.read().await.kind, EventKind::ConnectionRequest { .. }));
    /// assert!(matches!(eq.read().await.kind, EventKind::Connected { .. }));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`Connect`], when the returned attempt is awaited.
    #[doc(alias = "fi_connect")]
    pub fn connect(self, to: impl ToAddress) -> Connect<M> {
        let to = AddressOrHost::parse(&to, self.domain.inner.scheme());
        Connect::new(OpenBuilder::Builder(Box::new(self)), to)
    }

    /// Accepts a connection request (`fi_accept`), from an info of type
    /// [`EpType::Msg`](crate::EpType::Msg), such as [that of the request](ConnectionRequest::info).
    /// `data` is sent to the peer, up to [`MAX_PRIVATE_DATA`](crate::MAX_PRIVATE_DATA) bytes.
    ///
    /// # Errors
    /// In each case the request has been rejected: [`Error::PeerGone`] when the client has
    /// disconnected (over `tcp` possibly reported only by the first receive); [`Error::TooLong`];
    /// [`Error::Invalid`] when the request is of another provider, or the info of another type;
    /// [`Error::Unbound`] when the info asks for a shared receive context, and none is bound;
    /// [`Error::Closed`], [`Error::Os`].
    #[doc(alias = "fi_accept")]
    pub fn accept(
        self,
        request: ConnectionRequest,
        data: impl AsRef<[u8]>,
    ) -> Result<ConnectedEndpoint<M>> {
        let (request, peer_supports_tags) = request.into_parts();
        let options = (data.as_ref(), peer_supports_tags);
        let attempt =
            self.open_connected(&request.peer, options, ConnectMode::Accept(request.handle))?;
        let connected = attempt.domain.engine.take_connect_result(attempt.id);
        let connected = connected.unwrap_or_else(|| Err(Error::PeerGone(request.peer.clone())))?;
        attempt.into_endpoint(self, connected, request.peer, request.data)
    }

    /// Sends a connection request to this address and waits for the answer. `options` has the
    /// private data and whether the application asserts that the peer supports tags.
    async fn try_connect(
        &self,
        to: &Address,
        options: (&[u8], bool),
        timeout: Duration,
    ) -> Result<(UnconnectedEndpoint, Connected)> {
        to.check_peer()?;
        self.info.addr_format.check(to)?;
        let attempt = self.open_connected(
            to,
            options,
            ConnectMode::Connect {
                from: self.address.as_ref(),
                timeout,
            },
        )?;
        let engine = &attempt.domain.engine;
        let connected = poll_fn(|cx| engine.poll_connected(attempt.id, cx)).await?;
        Ok((attempt, connected))
    }

    /// Opens the endpoint in the engine. `private_data` is sent to the peer; `peer_supports_tags`
    /// is the application's assertion.
    fn open_connected(
        &self,
        peer: &Address,
        (data, peer_supports_tags): (&[u8], bool),
        mode: ConnectMode<'_>,
    ) -> Result<UnconnectedEndpoint> {
        check_msg_type(&self.info)?;
        let domain = self.domain.inner.clone();
        let (av, fi_addr) = AvInner::with_peer(&domain, peer)?;
        let (node, bound) = self.endpoint_bindings(&av)?;
        let params = ConnectParams {
            fi_addr,
            peer,
            data,
            peer_supports_tags,
            mode,
        };
        let id = domain.engine.open_connected(&self.info, params, bound)?;
        Ok(UnconnectedEndpoint {
            node,
            domain,
            id,
            av,
            fi_addr,
            is_handed_over: false,
        })
    }
}

impl ConnectedEndpoint {
    /// Connects to the passive endpoint at this address, with its own fabric, domain, completion
    /// queue and event queue, as [`Endpoint::bind`].
    ///
    /// For a host name, as in `tcp://localhost:7000`, its addresses are tried in order until one
    /// accepts; see [`resolve`](crate::resolve()). The peer is a
    /// [`PassiveEndpoint`](crate::PassiveEndpoint) or a libfabric program with a `fid_pep`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::{ConnectedEndpoint, PassiveEndpoint};
    ///
    /// let mut listener = PassiveEndpoint::bind("tcp://127.0.0.1:0").await?;
    /// let name = listener.name().clone();
    /// let server = tokio::spawn(async move {
    ///     let request = listener.accept().await?;
    ///     assert_eq!(request.private_data(), b"let me in");
    ///     request.accept("welcome")
    /// });
    /// let client = ConnectedEndpoint::connect(name).private_data("let me in").await?;
    /// assert_eq!(client.private_data(), b"welcome");
    /// let server = server.await.expect("the task does not panic")?;
    /// client.send("hello").await?;
    /// assert_eq!(&server.recv().await?[..], b"hello");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`Connect`] and of [`Endpoint::bind`], when the returned attempt is awaited;
    /// [`Error::NoMatch`] for providers without connected endpoints.
    #[doc(alias = "fi_connect")]
    pub fn connect(to: impl ToAddress) -> Connect {
        Endpoint::options().connect(to)
    }
}

impl<M: ThreadModel> BindOptions<M> {
    /// Connects to the passive endpoint at this address and resolves to a [`ConnectedEndpoint`], as
    /// [`ConnectedEndpoint::connect`].
    ///
    /// # Errors
    /// As [`ConnectedEndpoint::connect`].
    pub fn connect(self, to: impl ToAddress) -> Connect<M> {
        let to = AddressOrHost::parse(&to, Scheme::Tcp);
        Connect::new(OpenBuilder::Options(Box::new(self)), to)
    }
}

impl<M: ThreadModel> fmt::Debug for Connect<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connect")
            .field("timeout", &self.timeout)
            .field("private_data_len", &self.private_data.len())
            .finish_non_exhaustive()
    }
}
