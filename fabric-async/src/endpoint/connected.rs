//! Endpoints that are connected with one peer.

use std::future::{Future, IntoFuture, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use fabric_core::info::EpType;
use fabric_core::transport::{ConnectMode, ConnectParams, Connected, EpId};
use fabric_core::tree::ObjectNode;
use fabric_core::{Address, Error, FiAddr, Result, Scheme};

use super::bind::builder_with_queues;
use super::{BindOptions, Endpoint, EndpointBuilder};
use crate::av::{AvInner, ToAddress};
use crate::domain::DomainInner;
use crate::passive::ConnectionRequest;
use crate::resolve::AddressOrHost;
use crate::thread_model::{Shared, ThreadModel};

/// How long an answer is waited for, unless said otherwise.
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Whom an endpoint is connected with.
pub(super) struct ConnectedPeer {
    fi_addr: FiAddr,
    address: Address,
    private_data: Vec<u8>,
}

/// An endpoint that is to be connected (`fi_connect`): begins when it is awaited.
///
/// # Cancel safety
/// Dropping the future gives the attempt up, and closes the endpoint: the peer may see a connection
/// that ends at once.
#[doc(alias = "fi_connect")]
#[must_use = "nothing happens before it is awaited"]
pub struct Connect<M: ThreadModel = Shared> {
    builder: Result<EndpointBuilder<M>>,
    target: Result<AddressOrHost>,
    private_data: Vec<u8>,
    peer_supports_tags: bool,
    timeout: Duration,
}

impl<M: ThreadModel> Connect<M> {
    pub(super) fn new(builder: Result<EndpointBuilder<M>>, target: Result<AddressOrHost>) -> Self {
        Self {
            builder,
            target,
            private_data: Vec::new(),
            peer_supports_tags: false,
            timeout: DEFAULT_CONNECT_TIMEOUT,
        }
    }

    /// What the peer is told with the request: up to [`MAX_PRIVATE_DATA`](crate::MAX_PRIVATE_DATA)
    /// bytes.
    pub fn private_data(mut self, data: impl Into<Vec<u8>>) -> Self {
        self.private_data = data.into();
        self
    }

    /// The peer takes tagged messages, although it does not say so: a libfabric program whose
    /// endpoint has a shared receive context. See [the guide](crate::guide::connected_endpoints#tags).
    /// Peers of this library say so themselves, or that they do not, and then this means nothing.
    pub fn peer_supports_tags(mut self) -> Self {
        self.peer_supports_tags = true;
        self
    }

    /// How long an answer is waited for; ten seconds unless said otherwise. Then it is
    /// [`Error::TimedOut`].
    pub fn timeout(mut self, patience: Duration) -> Self {
        self.timeout = patience;
        self
    }
}

/// # Errors
/// [`Error::NoSuchPeer`] when nobody listens there; [`Error::NoSuchHost`], with the name, when a
/// host has no address of the family of the [source](EndpointBuilder::name), if there is one;
/// [`Error::Rejected`] with the private data of a program that does not want to;
/// [`Error::TimedOut`]; [`Error::Protocol`] when what answers is not one of these;
/// [`Error::PeerGone`] when it hangs up instead of answering; [`Error::TooLong`] above the limit of
/// private data; [`Error::BadAddress`], [`Error::WrongScheme`]; [`Error::Invalid`] when the info is
/// of another type of endpoint; [`Error::Unbound`] when it asks for a shared receive context, and
/// none is bound; [`Error::Closed`], [`Error::Os`].
impl<M: ThreadModel> IntoFuture for Connect<M> {
    type Output = Result<Endpoint<M>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let (builder, to) = (self.builder?, self.target?);
            let own = builder.address.as_ref().and_then(Address::socket_addr);
            let found = to
                .resolve(|at| own.is_none_or(|own| own.is_ipv4() == at.is_ipv4()))
                .await?;
            let mut nobody = None;
            for to in found {
                match builder
                    .try_connect(
                        &to,
                        (&self.private_data, self.peer_supports_tags),
                        self.timeout,
                    )
                    .await
                {
                    Ok((attempt, joined)) => {
                        let data = joined.data.clone();
                        return attempt.into_endpoint(builder, joined, to, data);
                    }
                    Err(error @ (Error::NoSuchPeer(_) | Error::TimedOut(_))) => {
                        nobody = Some(error)
                    }
                    Err(error) => return Err(error),
                }
            }
            Err(nobody.expect("there is one address at least"))
        })
    }
}

/// An endpoint that is not connected yet.
struct UnconnectedEndpoint {
    node: Arc<ObjectNode>,
    av: Arc<AvInner>,
    fi_addr: FiAddr,
    close_guard: CloseOnDrop,
}

/// It is closed with this.
struct CloseOnDrop {
    domain: Arc<DomainInner>,
    id: EpId,
    disarmed: bool,
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if !self.disarmed {
            self.domain.core.close_endpoint(self.id);
        }
    }
}

impl UnconnectedEndpoint {
    fn into_endpoint<M: ThreadModel>(
        mut self,
        builder: EndpointBuilder<M>,
        joined: Connected,
        name: Address,
        data: Vec<u8>,
    ) -> Result<Endpoint<M>> {
        self.close_guard.disarmed = true;
        let connection = ConnectedPeer {
            fi_addr: self.fi_addr,
            address: name,
            private_data: data,
        };
        builder.into_endpoint(
            self.node,
            (self.close_guard.id, joined.name),
            self.av,
            Some(connection),
        )
    }
}

impl<M: ThreadModel> EndpointBuilder<M> {
    /// Connects with whoever listens at this address (`fi_connect`), from an info of type
    /// [`EpType::Msg`]. The endpoint is there when the peer has accepted; its event queue says so
    /// too, as [`Connected`](crate::EventKind::Connected) or
    /// [`ConnectFailed`](crate::EventKind::ConnectFailed). The addresses of a
    /// [host](Endpoint::connect) are attempts of their own, and so are their events.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::{CqBind, EpType, EventKind, Fabric, Hints, discover};
    ///
    /// let info = discover(&Hints::new().provider("tcp").ep_type(EpType::Msg)).await?.swap_remove(0);
    /// let fabric = Fabric::open(&info)?;
    /// let (domain, mut eq) = (fabric.domain(&info)?, fabric.event_queue(64)?);
    /// domain.bind_eq(&eq)?;
    /// let cq = domain.completion_queue(256)?;
    ///
    /// let mut door = fabric.passive_endpoint(&info)?.bind_eq(&eq)?.listen()?;
    /// let calling = domain.endpoint(&info)?.bind_cq(&cq, CqBind::TRANSMIT | CqBind::RECV)?.connect(door.name());
    /// let answering = async {
    ///     let request = door.next().await.expect("a passive endpoint that is open");
    ///     let ep = domain.endpoint(request.info())?.bind_cq(&cq, CqBind::TRANSMIT | CqBind::RECV)?;
    ///     ep.accept(request, b"welcome").await
    /// };
    /// let (client, server) = tokio::try_join!(calling, answering)?;
    /// assert_eq!(client.private_data(), b"welcome");
    /// server.send(server.peer()?, "hello").await?;
    /// assert_eq!(&client.recv().await?[..], b"hello");
    /// assert!(matches!(eq.next().await.kind, EventKind::ConnectionRequest { .. }));
    /// assert!(matches!(eq.next().await.kind, EventKind::Connected { .. }));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`Connect`], when it is awaited.
    #[doc(alias = "fi_connect")]
    pub fn connect(self, to: impl ToAddress) -> Connect<M> {
        let to = AddressOrHost::parse(&to, self.domain.inner.scheme());
        Connect::new(Ok(self), to)
    }

    /// Accepts a request (`fi_accept`), from an info of type [`EpType::Msg`], which may be [that of
    /// the request](ConnectionRequest::info). The peer is told this, up to
    /// [`MAX_PRIVATE_DATA`](crate::MAX_PRIVATE_DATA) bytes.
    ///
    /// # Errors
    /// [`Error::PeerGone`] when it has not waited; [`Error::TooLong`]; [`Error::Invalid`] when the
    /// request, or the info, is of another kind; [`Error::Unbound`] when the info asks for a shared
    /// receive context, and none is bound; [`Error::Closed`], [`Error::Os`]. The request has been
    /// refused then.
    ///
    /// # Cancel safety
    /// Nothing is held across an await.
    #[doc(alias = "fi_accept")]
    pub async fn accept(
        self,
        request: ConnectionRequest,
        data: impl AsRef<[u8]>,
    ) -> Result<Endpoint<M>> {
        let (request, takes_tags) = request.into_parts();
        let told = (data.as_ref(), takes_tags);
        let attempt =
            self.open_connected(&request.peer, told, ConnectMode::Accept(request.handle))?;
        let joined = attempt
            .close_guard
            .domain
            .core
            .take_connect_result(attempt.close_guard.id);
        let joined = joined.unwrap_or_else(|| Err(Error::PeerGone(request.peer.clone())))?;
        attempt.into_endpoint(self, joined, request.peer, request.data)
    }

    /// Asks whoever listens at this address, and waits for the answer.
    async fn try_connect(
        &self,
        to: &Address,
        told: (&[u8], bool),
        patience: Duration,
    ) -> Result<(UnconnectedEndpoint, Connected)> {
        to.check_peer()?;
        let attempt = self.open_connected(
            to,
            told,
            ConnectMode::Connect {
                from: self.address.as_ref(),
                timeout: patience,
            },
        )?;
        let joined = poll_fn(|cx| {
            attempt
                .close_guard
                .domain
                .core
                .poll_connected(attempt.close_guard.id, cx)
        })
        .await?;
        Ok((attempt, joined))
    }

    /// Meets a peer that is told this, and of which it is known whether it takes tags.
    fn open_connected(
        &self,
        peer: &Address,
        (data, takes_tags): (&[u8], bool),
        way: ConnectMode<'_>,
    ) -> Result<UnconnectedEndpoint> {
        if self.info.ep.ep_type != EpType::Msg {
            let why = format!(
                "the info is of type {:?}, and connections are of type Msg",
                self.info.ep.ep_type
            );
            return Err(Error::Invalid {
                what: "endpoint to be connected",
                why,
            });
        }
        let domain = self.domain.inner.clone();
        let (av, number) = AvInner::with_peer(&domain, peer);
        let (node, bound) = self.bindings(av.id)?;
        let meeting = ConnectParams {
            fi_addr: number,
            peer,
            data,
            peer_supports_tags: takes_tags,
            mode: way,
        };
        let id = domain.core.open_connected(&self.info, meeting, bound)?;
        Ok(UnconnectedEndpoint {
            node,
            av,
            fi_addr: number,
            close_guard: CloseOnDrop {
                domain,
                id,
                disarmed: false,
            },
        })
    }
}

impl Endpoint {
    /// Connects with whoever listens at this address, with a fabric, a domain, a completion queue
    /// and an event queue of its own, as [`bind`](Self::bind) has them. With the name of a host, as
    /// in `tcp://localhost:7000`, its addresses are tried one after the other until somebody is
    /// there, who may refuse; see [`resolve`](crate::resolve()). The other side is a
    /// [`PassiveEndpoint`](crate::PassiveEndpoint), or a program with libfabric that has one.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::{Endpoint, PassiveEndpoint};
    ///
    /// let mut door = PassiveEndpoint::bind("tcp://127.0.0.1:0").await?;
    /// let name = door.name().clone();
    /// let server = tokio::spawn(async move {
    ///     let request = door.next().await.expect("a passive endpoint that is open");
    ///     assert_eq!(request.private_data(), b"let me in");
    ///     request.accept("welcome").await
    /// });
    /// let client = Endpoint::connect(name).private_data("let me in").await?;
    /// assert_eq!(client.private_data(), b"welcome");
    /// let server = server.await.expect("a task that ends")?;
    /// client.send(client.peer()?, "hello").await?;
    /// assert_eq!(&server.recv().await?[..], b"hello");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`Connect`] and of [`Endpoint::bind`], when it is awaited; [`Error::NoMatch`] of
    /// providers without connected endpoints.
    #[doc(alias = "fi_connect")]
    pub fn connect(to: impl ToAddress) -> Connect {
        Self::options().connect(to)
    }
}

impl BindOptions {
    /// Connects with whoever listens at this address, as [`Endpoint::connect`].
    ///
    /// # Errors
    /// As [`Endpoint::connect`].
    pub fn connect(self, to: impl ToAddress) -> Connect {
        let to = AddressOrHost::parse(&to, Scheme::Tcp);
        let builder = to.clone().and_then(|to| {
            let domain = self.open_msg_domain(to.scheme())?;
            builder_with_queues(&domain, domain.info())
        });
        Connect::new(builder, to)
    }
}

impl<M: ThreadModel> Endpoint<M> {
    /// The number of the one peer of a connected endpoint: what sends take, and what is the source
    /// of all messages. Its [address vector](Self::address_vector) has nobody else in it, and stays
    /// as it is.
    ///
    /// # Errors
    /// [`Error::NotSupported`] of endpoints that talk with many.
    pub fn peer(&self) -> Result<FiAddr> {
        Ok(self.connected_peer()?.fi_addr)
    }

    /// The address of the one peer of a connected endpoint (`fi_getpeer`), also when it has gone.
    /// Of one that has called here it is the address of its socket, where nobody listens.
    ///
    /// # Errors
    /// [`Error::NotSupported`] of endpoints that talk with many.
    #[doc(alias = "fi_getpeer")]
    pub fn peer_name(&self) -> Result<&Address> {
        Ok(&self.connected_peer()?.address)
    }

    /// What the peer of a connected endpoint has asked, or answered, with; nothing of endpoints
    /// that talk with many.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        self.inner
            .connected_peer
            .as_ref()
            .map_or(&[], |connection| &connection.private_data)
    }

    /// Ends the connection of a connected endpoint (`fi_shutdown`), which stays open. Sends that
    /// have ended still arrive, handed over in the background for up to five seconds; those that
    /// have not, and receives, end with [`Error::Canceled`]. Messages that had come are still
    /// received. Both sides hear of it as [`Shutdown`](crate::EventKind::Shutdown). What is posted
    /// afterwards is [`Error::Closed`]. Again, or when the peer has gone, it does nothing.
    ///
    /// # Errors
    /// [`Error::NotSupported`] of endpoints that talk with many; [`Error::Closed`] when the
    /// endpoint is.
    #[doc(alias = "fi_shutdown")]
    pub fn shutdown(&self) -> Result<()> {
        self.inner.node.check_open()?;
        self.connected_peer()?;
        self.inner.domain.core.shutdown(self.inner.id)
    }

    fn connected_peer(&self) -> Result<&ConnectedPeer> {
        let none = || {
            Error::NotSupported(
                "the one peer, and its connection, of an endpoint that talks with many",
            )
        };
        self.inner.connected_peer.as_ref().ok_or_else(none)
    }
}
