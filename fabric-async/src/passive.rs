//! Passive endpoints and their connection requests.
//!
//! A [`PassiveEndpoint`] has an engine of its own, which accepts connections and queues their
//! requests. A [`ConnectionRequest`] belongs to no domain until it is accepted in one.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use fabric_core::info::Info;
use fabric_core::transport::{ConnReq, DomainConfig, EpId, MAX_PRIVATE_DATA, WaitPolicy};
use fabric_core::tree::{Class, DependencyGuard};
use fabric_core::{Address, Error, Result, Scheme, SocketOptions};
use fabric_reactor::{Bindings, CounterBindings};
use futures_core::Stream;
use tokio::task::coop;

use crate::av::ToAddress;
use crate::close::{CloseError, close_object, dependency_on};
use crate::domain::Domain;
use crate::domain_inner::{DomainInner, RegistrationMode};
use crate::endpoint::{
    BindOptions, ConnectedEndpoint, Endpoint, builder_with_queues, check_msg_type, set_once,
};
use crate::eq::{EventQueue, EventQueueInner};
use crate::fabric::Fabric;
use crate::resolve;

/// A passive endpoint (`fid_pep`): listens for connections. [`accept`](Self::accept) and the stream
/// return the connection requests one by one.
///
/// The providers `shm` and `tcp` have passive endpoints. Created by [`PassiveEndpoint::bind`], with
/// its own fabric and domain, or by [`Fabric::passive_endpoint`]. A passive endpoint has a driver
/// of its own, as a domain has, so a request may be accepted in any domain of the provider. Up to
/// 128 requests are queued, including those of clients that have disconnected meanwhile; further
/// connections wait in the kernel's backlog. A client has ten seconds after connecting to send its
/// request. At most 256 connections without a request are kept: a further one evicts the oldest,
/// over `shm` that of the process with the most if it has more than 8. Over `shm`, another process
/// has at most 64 of these connections and 64 requests, and those of this process have no limit. A
/// connection that is rejected for a protocol error or a limit is an event,
/// [`InboundRefused`](crate::EventKind::InboundRefused).
///
/// When the passive endpoint is dropped or closed, it stops listening, and queued requests are
/// rejected. Accepted endpoints continue.
///
/// # Cancel safety
/// Dropping a pending [`accept`](Self::accept) or `next` of the stream loses no request.
#[doc(alias = "fid_pep")]
#[doc(alias = "fi_passive_ep")]
pub struct PassiveEndpoint {
    id: EpId,
    /// Boxed to keep the handle small.
    name: Box<Address>,
    info: Arc<Info>,
    /// The domain whose progress accepts connections. In the object tree this domain has the class
    /// of a passive endpoint.
    domain: Arc<DomainInner>,
    /// The domain of endpoints from `ConnectionRequest::accept`; `None` if the passive endpoint is
    /// from `Fabric::passive_endpoint`.
    accept_domain: Option<Domain>,
}

/// A passive endpoint that does not listen yet.
#[must_use = "a passive endpoint does nothing before it listens"]
pub struct PassiveEndpointBuilder {
    fabric: Fabric,
    info: Info,
    address: Option<Address>,
    context: u64,
    config: DomainConfig,
    eq: Option<(Arc<EventQueueInner>, DependencyGuard)>,
}

impl Fabric {
    /// Returns a builder for a passive endpoint (`fi_passive_ep`), from an info of type
    /// [`EpType::Msg`](crate::EpType::Msg).
    ///
    /// # Errors
    /// [`Error::Invalid`] when the info is of another type, provider or fabric; [`Error::NoMatch`]
    /// when the info asks for more than the provider offers; [`Error::Closed`].
    #[doc(alias = "fi_passive_ep")]
    pub fn passive_endpoint(&self, info: &Info) -> Result<PassiveEndpointBuilder> {
        self.check_info(info)?;
        check_msg_type(info)?;
        let (fabric, info, address) = (self.clone(), info.clone(), info.src_addr.clone());
        let config = DomainConfig::default();
        Ok(PassiveEndpointBuilder {
            fabric,
            info,
            address,
            context: 0,
            config,
            eq: None,
        })
    }
}

impl PassiveEndpointBuilder {
    /// Sets the address to listen at (`fi_setname`). The default is the info's `src_addr`, in which
    /// port 0 stands for a free port; without a `src_addr`, a free port of the loopback address.
    /// Host names are not resolved here: see [`resolve`](crate::resolve()).
    ///
    /// # Errors
    /// [`Error::BadAddress`], also for an address of an IP version that the
    /// [address format](crate::info::AddrFormat) of the info excludes.
    #[doc(alias = "fi_setname")]
    pub fn name(mut self, at: impl ToAddress) -> Result<Self> {
        let scheme = Scheme::from_provider(self.fabric.inner.transport.name());
        let address = scheme.map_or_else(|| at.to_address(), |of| at.to_address_for(of))?;
        self.info.addr_format.check(&address)?;
        self.address = Some(address);
        Ok(self)
    }

    /// Sets the context value of the passive endpoint's events.
    pub fn context(mut self, context: u64) -> Self {
        self.context = context;
        self
    }

    /// Sets the wait policy; [`WaitPolicy::Adaptive`] by default.
    pub fn wait_policy(mut self, policy: WaitPolicy) -> Self {
        self.config.wait_policy = policy;
        self
    }

    /// Sets options of the listening socket and of accepted connections, as
    /// [`DomainBuilder::socket_options`](crate::DomainBuilder::socket_options).
    ///
    /// Options of the domain that accepts a request, and the [traffic
    /// class](crate::info::TrafficClass) of the endpoint's info, take precedence; options that they
    /// leave open keep the value set here.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::{EpType, Fabric, Hints, SocketOptions, discover};
    /// let hints = Hints::new().provider("tcp").ep_type(EpType::Msg);
    /// let info = discover(&hints)?.swap_remove(0);
    /// let options = SocketOptions::new().port_range(42_000..=42_999).receive_buffer(1 << 20);
    /// let listener = Fabric::open(&info)?.passive_endpoint(&info)?.socket_options(options);
    /// let listener = listener.listen()?;
    /// assert!((42_000..=42_999).contains(&listener.name().socket_addr().unwrap().port()));
    /// # Ok(()) }
    /// ```
    pub fn socket_options(mut self, options: SocketOptions) -> Self {
        self.config.socket_options = options;
        self
    }

    /// Reports requests to this event queue too (`fi_pep_bind`), as
    /// [`ConnectionRequest`](crate::EventKind::ConnectionRequest). A task that reads the queue
    /// takes the requests with [`PassiveEndpoint::try_accept`], in the same order.
    ///
    /// # Errors
    /// [`Error::Invalid`] when a queue is bound already; [`Error::WrongParent`] when the queue is
    /// of another fabric; [`Error::Closed`].
    #[doc(alias = "fi_pep_bind")]
    pub fn bind_eq(mut self, eq: &EventQueue) -> Result<Self> {
        let fabric = &self.fabric.inner;
        let guard = dependency_on(&eq.inner.node, &fabric.node, Class::PassiveEndpoint)?;
        set_once("event queue", &mut self.eq, (eq.inner.clone(), guard))?;
        Ok(self)
    }

    /// Starts listening (`fi_listen`): peers can connect from now on.
    ///
    /// # Errors
    /// [`Error::AddressInUse`], [`Error::AddressNotLocal`], [`Error::WrongScheme`];
    /// [`Error::NotSupported`] by the provider; [`Error::NoMatch`] when the network has vanished;
    /// [`Error::Runtime`] when progress is manual and no Tokio runtime with I/O is running here;
    /// [`Error::Invalid`] and [`Error::TooLong`] for invalid socket options; [`Error::Closed`],
    /// [`Error::Os`].
    #[doc(alias = "fi_listen")]
    pub fn listen(self) -> Result<PassiveEndpoint> {
        let builder = self.fabric.domain_builder(&self.info).config(self.config);
        let domain = builder
            .context(self.context)
            .open_as(Class::PassiveEndpoint)?;
        if let Some((eq, guard)) = self.eq {
            domain.bind_eq(&eq, RegistrationMode::Synchronous, guard)?;
            eq.attach_domain(&domain);
        }
        let av = domain.engine.open_av(false)?;
        let bound = Bindings {
            object_id: domain.node.id(),
            context: domain.context,
            av,
            tx_cq: None,
            rx_cq: None,
            counters: CounterBindings::default(),
            shared_rx: None,
            eq: None,
            tx_size: 1,
            rx_size: 1,
            max_msg_size: 0,
            inject_size: 0,
            source_err: false,
        };
        let (id, name) = domain
            .engine
            .listen(&self.info, self.address.as_ref(), bound)?;
        Ok(PassiveEndpoint {
            id,
            name: Box::new(name),
            info: self.info.into(),
            domain,
            accept_domain: None,
        })
    }
}

impl PassiveEndpoint {
    /// Listens at this address, or at a free port, with its own fabric and domain. Accepted
    /// endpoints belong to that domain, each with a completion queue and an event queue of its own.
    /// [`ConnectedEndpoint::connect`] has an example.
    ///
    /// For a host name, as in `tcp://localhost:0`, the passive endpoint listens at the first
    /// address of the host that can be bound on this machine; see [`resolve`](crate::resolve()).
    ///
    /// # Errors
    /// [`Error::NoMatch`] for providers without connected endpoints; [`Error::BadAddress`],
    /// [`Error::NoSuchHost`]; and those of [`listen`](PassiveEndpointBuilder::listen).
    ///
    /// # Cancel safety
    /// Safe: nothing is held across an await.
    pub async fn bind(at: impl ToAddress) -> Result<Self> {
        Endpoint::options().listen(at).await
    }

    /// Waits for the next connection request and returns it. [`ConnectionRequest::accept`] or
    /// [`EndpointBuilder::accept`](crate::EndpointBuilder::accept) establishes the connection.
    ///
    /// # Errors
    /// [`Error::Closed`] when the passive endpoint has stopped listening.
    ///
    /// # Cancel safety
    /// Safe: no request is lost.
    pub async fn accept(&mut self) -> Result<ConnectionRequest> {
        let request = std::future::poll_fn(|cx| self.poll_connreq(cx)).await;
        request.ok_or(Error::Closed(Class::PassiveEndpoint))
    }

    /// Makes progress once and returns the next connection request if there is one.
    pub fn try_accept(&mut self) -> Option<ConnectionRequest> {
        let connreq = self.domain.engine.try_connreq(self.id)?;
        Some(self.connection_request(connreq))
    }

    /// Returns the address that this passive endpoint listens at (`fi_getname`).
    #[doc(alias = "fi_getname")]
    #[must_use]
    pub fn name(&self) -> &Address {
        &self.name
    }

    /// Returns the attributes that this passive endpoint was opened with.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Returns the id by which events name this passive endpoint
    /// ([`Event::object_id`](crate::Event::object_id)).
    #[must_use]
    pub fn id(&self) -> u64 {
        self.domain.node.id()
    }

    /// Returns the context value of the passive endpoint's events, set with
    /// [`PassiveEndpointBuilder::context`] or [`BindOptions::context`].
    #[must_use]
    pub fn context(&self) -> u64 {
        self.domain.context
    }

    /// Closes the passive endpoint (`fi_close`), as a drop does: queued requests are rejected, and
    /// their events are removed from the event queue.
    ///
    /// # Errors
    /// None: no other object uses a passive endpoint, and a passive endpoint has one handle.
    #[doc(alias = "fi_close")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        close_object(self, |pep| &pep.domain.node).map(drop)
    }

    /// Wraps a request that the transport has received.
    fn connection_request(&self, connreq: ConnReq) -> ConnectionRequest {
        let (info, accept_domain) = (self.info.clone(), self.accept_domain.clone());
        ConnectionRequest {
            connreq,
            peer_supports_tags: false,
            info,
            accept_domain,
            context: 0,
        }
    }

    /// Returns the next request; `None` when the passive endpoint has stopped listening.
    fn poll_connreq(&mut self, cx: &mut Context<'_>) -> Poll<Option<ConnectionRequest>> {
        let budget = ready!(coop::poll_proceed(cx));
        let connreq = ready!(self.domain.engine.poll_connreq(self.id, cx));
        budget.made_progress();
        Poll::Ready(connreq.map(|connreq| self.connection_request(connreq)))
    }
}

impl BindOptions {
    /// Listens at this address and returns a passive endpoint with its own fabric and domain, as
    /// [`PassiveEndpoint::bind`].
    ///
    /// # Errors
    /// As [`PassiveEndpoint::bind`].
    #[doc(alias = "fi_listen")]
    pub async fn listen(self, at: impl ToAddress) -> Result<PassiveEndpoint> {
        let found = resolve::resolve_filtered(&at, Scheme::Tcp, |_| true).await?;
        resolve::try_addresses(found, |at| std::future::ready(self.listen_at(&at))).await
    }

    /// Listens at one address. Accepted endpoints belong to a new domain.
    fn listen_at(&self, at: &Address) -> Result<PassiveEndpoint> {
        let domain = self.open_msg_domain(at.scheme())?;
        let DomainConfig {
            wait_policy,
            socket_options,
            ..
        } = self.config.clone();
        let listener = domain
            .fabric()
            .passive_endpoint(domain.info())?
            .wait_policy(wait_policy)
            .context(self.context)
            .name(at)?;
        let mut listener = listener.socket_options(socket_options).listen()?;
        listener.accept_domain = Some(domain);
        Ok(listener)
    }
}

impl Stream for PassiveEndpoint {
    type Item = ConnectionRequest;

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<ConnectionRequest>> {
        self.poll_connreq(cx)
    }
}

impl Drop for PassiveEndpoint {
    fn drop(&mut self) {
        self.domain.engine.close_endpoint(self.id);
    }
}

impl fmt::Debug for PassiveEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PassiveEndpoint")
            .field("id", &self.id())
            .field("name", &format_args!("{}", self.name))
            .field("state", &format_args!("{}", self.domain.engine.describe()))
            .finish_non_exhaustive()
    }
}

/// A connection request (`FI_CONNREQ`): accept it, reject it, or drop it, which rejects it without
/// data.
///
/// A request belongs to no domain, and its connection is not monitored. Over `shm`, accepting the
/// request shows whether the client still waits. Over `tcp`, a request of a client that has given
/// up can be accepted; the first receive then fails with [`Error::PeerGone`].
#[doc(alias = "FI_CONNREQ")]
#[must_use = "a request that is dropped is rejected"]
pub struct ConnectionRequest {
    connreq: ConnReq,
    /// Whether the application asserts that the client supports tagged messages.
    peer_supports_tags: bool,
    /// The info of the passive endpoint.
    info: Arc<Info>,
    /// The domain of the endpoint from `accept`.
    accept_domain: Option<Domain>,
    /// The context of the endpoint from `accept`.
    context: u64,
}

impl ConnectionRequest {
    /// Returns the source address of the request, at which no endpoint listens.
    #[must_use]
    pub fn peer(&self) -> &Address {
        &self.connreq.peer
    }

    /// Returns the private data that the client sent.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.connreq.data
    }

    /// Asserts that the client supports tagged messages although its request does not say so: as
    /// [`Connect::peer_supports_tags`](crate::Connect::peer_supports_tags).
    pub fn peer_supports_tags(mut self) -> Self {
        self.peer_supports_tags = true;
        self
    }

    /// Sets the context value of the events of the endpoint that [`accept`](Self::accept) opens.
    pub fn context(mut self, context: u64) -> Self {
        self.context = context;
        self
    }

    /// Returns the info of the passive endpoint. Open the endpoint that accepts the request from
    /// this info.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Accepts the request (`fi_accept`) and returns the connected endpoint. The endpoint belongs
    /// to the domain that [`PassiveEndpoint::bind`] opened, and has a completion queue and an event
    /// queue of its own. `data` is sent to the client, up to
    /// [`MAX_PRIVATE_DATA`](crate::MAX_PRIVATE_DATA) bytes.
    ///
    /// # Errors
    /// In each case the request has been rejected: [`Error::PeerGone`] when the client has
    /// disconnected (over `tcp` possibly reported only by the first receive); [`Error::TooLong`];
    /// [`Error::Unbound`] when the passive endpoint is from [`Fabric::passive_endpoint`] and has no
    /// domain (use [`EndpointBuilder::accept`](crate::EndpointBuilder::accept)); [`Error::Closed`],
    /// [`Error::Os`].
    #[doc(alias = "fi_accept")]
    pub fn accept(self, data: impl AsRef<[u8]>) -> Result<ConnectedEndpoint> {
        let accept_domain = self
            .accept_domain
            .as_ref()
            .ok_or(Error::Unbound(Class::Domain))?;
        let builder = builder_with_queues(accept_domain, &self.info)?;
        builder.context(self.context).accept(self, data)
    }

    /// Rejects the request (`fi_reject`): the client gets [`Error::RejectedByPeer`] with these
    /// bytes.
    ///
    /// # Errors
    /// [`Error::TooLong`] above [`MAX_PRIVATE_DATA`](crate::MAX_PRIVATE_DATA) bytes; the request is
    /// rejected without data then.
    #[doc(alias = "fi_reject")]
    pub fn reject(self, data: impl AsRef<[u8]>) -> Result<()> {
        let data = data.as_ref();
        if data.len() > MAX_PRIVATE_DATA {
            return Err(Error::TooLong {
                what: "private data",
                len: data.len(),
                limit: MAX_PRIVATE_DATA,
            });
        }
        self.connreq.handle.reject(data);
        Ok(())
    }

    /// Splits the connection request into the transport's request and whether the application
    /// asserts that the client supports tags.
    pub(crate) fn into_parts(self) -> (ConnReq, bool) {
        (self.connreq, self.peer_supports_tags)
    }
}

impl fmt::Debug for ConnectionRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionRequest")
            .field("peer", &format_args!("{}", self.peer()))
            .field("private_data", &self.private_data().len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for PassiveEndpointBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PassiveEndpointBuilder")
            .field("address", &self.address)
            .field("context", &self.context)
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}
