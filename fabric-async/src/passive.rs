//! Passive endpoints, and those who call.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use fabric_core::info::{EpType, Info};
use fabric_core::transport::{ConnReq, EpId, MAX_PRIVATE_DATA};
use fabric_core::tree::{Class, DependencyGuard};
use fabric_core::{Address, Error, Result, Scheme, SocketOptions};
use fabric_reactor::{Bindings, Counters, WaitPolicy};
use futures_core::Stream;
use tokio::task::coop;

use crate::av::ToAddress;
use crate::domain::{Domain, DomainInner, DomainOptions};
use crate::endpoint::{BindOptions, Endpoint, builder_with_queues, set_once};
use crate::eq::{EventQueue, EventQueueInner};
use crate::fabric::Fabric;
use crate::resolve;

/// A passive endpoint (`fid_pep`): listens, and yields those who want to be connected, as a stream.
///
/// Made by [`PassiveEndpoint::bind`], with everything around it, or by
/// [`Fabric::passive_endpoint`]. It makes progress by itself as a domain does, so that a request
/// may be accepted in any domain. Up to 128 requests wait here, those of programs that have hung up
/// meanwhile among them; who calls beyond that waits with the kernel until some were taken.
/// Somebody who has connected has ten seconds to say what it wants, and of those who have not at
/// most 256 are waited for: the one that has waited longest makes room. What is wrong with one who
/// is turned away is an event, [`Rejected`](crate::EventKind::Rejected).
///
/// When it is dropped, or closed, nobody can call any more, and requests that wait are refused.
/// Endpoints that were accepted go on.
///
/// # Cancel safety
/// Dropping a pending `next` loses no request.
#[doc(alias = "fid_pep")]
#[doc(alias = "fi_passive_ep")]
pub struct PassiveEndpoint {
    id: EpId,
    name: Address,
    info: Arc<Info>,
    /// What moves it, which is in the object tree as the passive endpoint.
    domain: Arc<DomainInner>,
    /// Where requests are accepted that nobody takes elsewhere.
    accept_domain: Option<Domain>,
    _eq_guard: Option<DependencyGuard>,
}

/// A passive endpoint that does not listen yet.
#[must_use = "a passive endpoint does nothing before it listens"]
pub struct PassiveEndpointBuilder {
    fabric: Fabric,
    info: Info,
    address: Option<Address>,
    context: u64,
    options: DomainOptions,
    eq: Option<(Arc<EventQueueInner>, DependencyGuard)>,
}

impl Fabric {
    /// A passive endpoint to be bound, from an info of type [`EpType::Msg`] (`fi_passive_ep`).
    ///
    /// # Errors
    /// [`Error::Invalid`] when the info is of another type, provider or fabric; [`Error::NoMatch`]
    /// when it asks for more than the provider offers; [`Error::Closed`].
    #[doc(alias = "fi_passive_ep")]
    pub fn passive_endpoint(&self, info: &Info) -> Result<PassiveEndpointBuilder> {
        self.check_info(info)?;
        if info.ep.ep_type != EpType::Msg {
            let why = format!(
                "the info is of type {:?}, and connections are of type Msg",
                info.ep.ep_type
            );
            return Err(Error::Invalid {
                what: "passive endpoint",
                why,
            });
        }
        let (fabric, info, at) = (self.clone(), info.clone(), info.src_addr.clone());
        let engine = DomainOptions::default();
        Ok(PassiveEndpointBuilder {
            fabric,
            info,
            address: at,
            context: 0,
            options: engine,
            eq: None,
        })
    }
}

impl PassiveEndpointBuilder {
    /// The address to be called at (`fi_setname`); a fresh one unless said. Names of hosts are not
    /// looked up here: see [`resolve`](crate::resolve()).
    ///
    /// # Errors
    /// [`Error::BadAddress`].
    #[doc(alias = "fi_setname")]
    pub fn name(mut self, at: impl ToAddress) -> Result<Self> {
        let scheme = Scheme::from_provider(self.fabric.inner.transport.name());
        self.address =
            Some(scheme.map_or_else(|| at.to_address(), |scheme| at.to_address_for(scheme))?);
        Ok(self)
    }

    /// A number that comes with the events of the passive endpoint.
    pub fn context(mut self, context: u64) -> Self {
        self.context = context;
        self
    }

    /// How waiting is done: [`WaitPolicy::Adaptive`] unless said otherwise.
    pub fn wait_policy(mut self, policy: WaitPolicy) -> Self {
        self.options.wait_policy = policy;
        self
    }

    /// What is set on the socket that listens, and on the connections that it takes: as
    /// [`DomainBuilder::socket_options`](crate::DomainBuilder::socket_options). The domain where a
    /// request is accepted has a say of its own: what its options and the [traffic
    /// class](crate::TrafficClass) of the endpoint's info say goes before what is said here, and
    /// what they do not say stays.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::{EpType, Fabric, Hints, SocketOptions, discover};
    /// let info = discover(&Hints::new().provider("tcp").ep_type(EpType::Msg)).await?.swap_remove(0);
    /// let options = SocketOptions::new().port_range(42_000..=42_999).receive_buffer(1 << 20);
    /// let door = Fabric::open(&info)?.passive_endpoint(&info)?.socket_options(options).listen()?;
    /// assert!((42_000..=42_999).contains(&door.name().socket_addr().unwrap().port()));
    /// # Ok(()) }
    /// ```
    pub fn socket_options(mut self, options: SocketOptions) -> Self {
        self.options.socket_options = options;
        self
    }

    /// Tells this queue of requests as well (`fi_pep_bind`), as
    /// [`ConnectionRequest`](crate::EventKind::ConnectionRequest): whoever waits there is to take
    /// the request with [`PassiveEndpoint::try_next`], in the same order.
    ///
    /// # Errors
    /// [`Error::Invalid`] when one is bound; [`Error::WrongDomain`] when it is of another fabric;
    /// [`Error::Closed`].
    #[doc(alias = "fi_pep_bind")]
    pub fn bind_eq(mut self, eq: &EventQueue) -> Result<Self> {
        let hold = eq
            .inner
            .dependency_for(&self.fabric, Class::PassiveEndpoint)?;
        set_once("event queue", &mut self.eq, (eq.inner.clone(), hold))?;
        Ok(self)
    }

    /// Listens (`fi_listen`): from now on peers reach it.
    ///
    /// # Errors
    /// [`Error::AddressInUse`], [`Error::WrongScheme`], [`Error::NotSupported`] by the provider,
    /// [`Error::Runtime`] when progress is manual and no Tokio runtime with I/O is running here,
    /// [`Error::Invalid`] and [`Error::TooLong`] for options that cannot be, [`Error::Closed`],
    /// [`Error::Os`].
    #[doc(alias = "fi_listen")]
    pub fn listen(self) -> Result<PassiveEndpoint> {
        let engine = self.fabric.domain_builder(&self.info).options(self.options);
        let engine = engine.open_as(Class::PassiveEndpoint)?;
        let (eq, hold) = self.eq.unzip();
        if let Some(eq) = &eq {
            eq.attach_domain(&engine);
        }
        let bound = Bindings {
            object_id: engine.node.id(),
            context: self.context,
            av: engine.core.open_av(false),
            tx_cq: None,
            rx_cq: None,
            counters: Counters::default(),
            shared_rx: None,
            eq: eq.map(|eq| eq.state.clone()),
            tx_size: 1,
            rx_size: 1,
            max_msg_size: 0,
            inject_size: 0,
        };
        let (id, name) = engine
            .core
            .listen(&self.info, self.address.as_ref(), bound)?;
        Ok(PassiveEndpoint {
            id,
            name,
            info: self.info.into(),
            domain: engine,
            accept_domain: None,
            _eq_guard: hold,
        })
    }
}

impl PassiveEndpoint {
    /// Listens at this address, or at a fresh one if it has no port, with a fabric and a domain of
    /// its own: accepted endpoints live in that domain, each with a completion queue and an event
    /// queue of its own. [`Endpoint::connect`] has an example.
    ///
    /// With the name of a host, as in `tcp://localhost:0`, this is its first address where it can
    /// listen; see [`resolve`](crate::resolve()).
    ///
    /// # Errors
    /// [`Error::NoMatch`] of providers without connected endpoints; [`Error::BadAddress`],
    /// [`Error::NoSuchHost`]; and those of [`listen`](PassiveEndpointBuilder::listen).
    ///
    /// # Cancel safety
    /// Nothing is held across an await.
    pub async fn bind(at: impl ToAddress) -> Result<Self> {
        Endpoint::options().listen(at).await
    }

    /// The next request, once there is one; `None` never, as long as it is open. The same as the
    /// stream.
    ///
    /// # Cancel safety
    /// Safe: no request is lost.
    pub async fn next(&mut self) -> Option<ConnectionRequest> {
        std::future::poll_fn(|cx| self.poll_connreq(cx)).await
    }

    /// The next request if there is one, after looking once.
    pub fn try_next(&mut self) -> Option<ConnectionRequest> {
        let request = self.domain.core.try_connreq(self.id)?;
        Some(self.connection_request(request))
    }

    /// The address it listens at (`fi_getname`).
    #[doc(alias = "fi_getname")]
    #[must_use]
    pub fn name(&self) -> &Address {
        &self.name
    }

    /// The attributes it was opened with.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Its number in events.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.domain.node.id()
    }

    /// Closes it (`fi_close`), as dropping it does: requests that wait are refused. Nothing holds
    /// it open.
    #[doc(alias = "fi_close")]
    pub fn close(self) {}

    fn connection_request(&self, request: ConnReq) -> ConnectionRequest {
        let (info, home) = (self.info.clone(), self.accept_domain.clone());
        ConnectionRequest {
            connreq: request,
            peer_supports_tags: false,
            info,
            accept_domain: home,
        }
    }

    fn poll_connreq(&mut self, cx: &mut Context<'_>) -> Poll<Option<ConnectionRequest>> {
        let budget = ready!(coop::poll_proceed(cx));
        let request = ready!(self.domain.core.poll_connreq(self.id, cx));
        budget.made_progress();
        Poll::Ready(request.map(|request| self.connection_request(request)))
    }
}

impl BindOptions {
    /// Listens at this address, as [`PassiveEndpoint::bind`].
    ///
    /// # Errors
    /// As [`PassiveEndpoint::bind`].
    #[doc(alias = "fi_listen")]
    pub async fn listen(self, at: impl ToAddress) -> Result<PassiveEndpoint> {
        let found = resolve::resolve_filtered(&at, Scheme::Tcp, |_| true).await?;
        let (last, others) = found.split_last().expect("there is one at least");
        others
            .iter()
            .find_map(|at| self.listen_at(at).ok())
            .map_or_else(|| self.listen_at(last), Ok)
    }

    fn listen_at(&self, at: &Address) -> Result<PassiveEndpoint> {
        let domain = self.open_msg_domain(at.scheme())?;
        let DomainOptions {
            wait_policy,
            socket_options,
            ..
        } = self.options.clone();
        let door = domain
            .fabric()
            .passive_endpoint(domain.info())?
            .wait_policy(wait_policy)
            .name(at)?;
        let mut door = door.socket_options(socket_options).listen()?;
        door.accept_domain = Some(domain);
        Ok(door)
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
        self.domain.core.close_endpoint(self.id);
    }
}

impl fmt::Debug for PassiveEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PassiveEndpoint")
            .field("id", &self.id())
            .field("name", &format_args!("{}", self.name))
            .field("state", &format_args!("{}", self.domain.core.describe()))
            .finish_non_exhaustive()
    }
}

/// Somebody who wants to be connected (`FI_CONNREQ`): accepted, rejected, or dropped, which rejects
/// it without data.
///
/// It belongs to no domain, and is not watched: whether its program still waits shows when it is
/// accepted.
#[doc(alias = "FI_CONNREQ")]
#[must_use = "a request that is dropped is rejected"]
pub struct ConnectionRequest {
    connreq: ConnReq,
    peer_supports_tags: bool,
    info: Arc<Info>,
    accept_domain: Option<Domain>,
}

impl ConnectionRequest {
    /// Where it calls from: the address of its socket, where nobody listens.
    #[must_use]
    pub fn peer(&self) -> &Address {
        &self.connreq.peer
    }

    /// What it says.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.connreq.data
    }

    /// Who asks takes tagged messages, although it does not say so: as
    /// [`Connect::peer_supports_tags`](crate::Connect::peer_supports_tags).
    pub fn peer_supports_tags(mut self) -> Self {
        self.peer_supports_tags = true;
        self
    }

    /// What an endpoint can be opened from to accept it: the info of the passive endpoint.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Accepts it (`fi_accept`), in the domain of a passive endpoint from
    /// [`PassiveEndpoint::bind`], with a completion queue and an event queue of its own. The peer
    /// is told this, up to [`MAX_PRIVATE_DATA`](crate::MAX_PRIVATE_DATA) bytes.
    ///
    /// # Errors
    /// [`Error::PeerGone`] when it has not waited; [`Error::TooLong`]; [`Error::Unbound`] when the
    /// passive endpoint is from [`Fabric::passive_endpoint`], and has no domain: there it is
    /// [`EndpointBuilder::accept`](crate::EndpointBuilder::accept); [`Error::Closed`],
    /// [`Error::Os`]. It has been refused then.
    ///
    /// # Cancel safety
    /// Nothing is held across an await.
    #[doc(alias = "fi_accept")]
    pub async fn accept(self, data: impl AsRef<[u8]>) -> Result<Endpoint> {
        let home = self
            .accept_domain
            .as_ref()
            .ok_or(Error::Unbound(Class::Domain))?;
        builder_with_queues(home, &self.info)?
            .accept(self, data)
            .await
    }

    /// Rejects it (`fi_reject`): who has called gets [`Error::Rejected`] with these bytes.
    ///
    /// # Errors
    /// [`Error::TooLong`] above [`MAX_PRIVATE_DATA`](crate::MAX_PRIVATE_DATA) bytes; it is rejected
    /// without data then.
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

    /// The request, and whether the program knows that who asks takes tags.
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
