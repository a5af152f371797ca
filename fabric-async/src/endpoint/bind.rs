//! Endpoints with their own fabric, domain, queues and address vector, in one call.

use std::marker::PhantomData;
use std::time::Duration;

use fabric_core::flags::{Caps, CqBind};
use fabric_core::info::{EpType, Hints, Info, Progress, Protocol, Threading};
use fabric_core::transport::{DomainConfig, MessageModel, SocketIo, ThreadMode, WaitPolicy};
use fabric_core::{Address, Result, Scheme, SocketOptions};

use super::{Endpoint, EndpointBuilder, OwnedQueues};
use crate::av::ToAddress;
use crate::cq::CompletionQueue;
use crate::discover::discover;
use crate::domain::Domain;
use crate::driver::ManualDriver;
use crate::eq::EventQueue;
use crate::fabric::Fabric;
use crate::resolve;
use crate::thread_model::{self, Pinned, Shared, ThreadModel};

/// Capacity of the completion queue, in entries.
const DEFAULT_CQ_CAPACITY: usize = 1024;
/// Capacity of the event queue, in events.
const DEFAULT_EQ_CAPACITY: usize = 256;

/// Options for opening an endpoint in one call, from [`Endpoint::options`].
///
/// | call | opens |
/// |---|---|
/// | [`bind`](Self::bind) | an [`Endpoint`] |
/// | [`listen`](Self::listen) | a [`PassiveEndpoint`](crate::PassiveEndpoint) |
/// | [`connect`](Self::connect) | a [`ConnectedEndpoint`](crate::ConnectedEndpoint) |
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
/// use fabric_async::{Endpoint, Progress, WaitPolicy};
/// let options = Endpoint::options().wait_policy(WaitPolicy::Park).progress(Progress::Auto);
/// let ep = options.bind("shm://").await?;
/// # drop(ep); Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct BindOptions<M: ThreadModel = Shared> {
    progress: Progress,
    pub(crate) config: DomainConfig,
    protocol: Option<Protocol>,
    pub(crate) context: u64,
    /// The longest message of the endpoint; `None` for the limit of the provider.
    max_msg_size: Option<usize>,
    driver: ManualDriver,
    model: PhantomData<M>,
}

impl Endpoint {
    /// Opens an endpoint at this address, or at a free address if the name is empty, with its own
    /// fabric, domain, completion queue, event queue and auto-insert address vector.
    ///
    /// The call does these steps: discover the provider of the scheme with untagged and tagged
    /// messages, and with one-sided and atomic operations if it offers them (or with
    /// [datagrams](crate::guide::udp) if it offers only these); open its fabric and domain; open
    /// the queues and the vector; bind; enable. [`Endpoint::domain`],
    /// [`Endpoint::take_completions`], [`Endpoint::take_events`] and [`Endpoint::address_vector`]
    /// return the parts.
    ///
    /// For a host name, as in `tcp://localhost:0`, the endpoint gets the first address of the host
    /// that can be bound here; see [`resolve`](crate::resolve()).
    ///
    /// A peer that writes to memory here [with data](crate::Request::data) fills an entry of the
    /// completion queue: read the queue, or take it and drop it. While the queue is full, later
    /// writes with data and messages of that peer wait, without an error or event. Without such
    /// writes, the queue has only completions of operations that were posted to it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// let ep = fabric_async::Endpoint::bind("shm://").await?;
    /// println!("reach me at {}", ep.name());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::BadAddress`](crate::Error::BadAddress),
    /// [`Error::AddressInUse`](crate::Error::AddressInUse),
    /// [`Error::Runtime`](crate::Error::Runtime) outside of a Tokio runtime with I/O,
    /// [`Error::NoSuchHost`](crate::Error::NoSuchHost), [`Error::Os`](crate::Error::Os).
    ///
    /// Tokio panics when a descriptor is registered on a runtime without I/O. That panic is caught
    /// and becomes [`Error::Runtime`](crate::Error::Runtime). To hide it from the program's panic
    /// hook, the first domain under manual progress wraps the hook, once in each process. With
    /// `panic = "abort"` the panic cannot be caught: there, manual progress on such a runtime ends
    /// the process.
    ///
    /// # Cancel safety
    /// Safe: nothing is held across an await.
    pub async fn bind(at: impl ToAddress) -> Result<Self> {
        Self::options().bind(at).await
    }

    /// Returns options for opening an endpoint, a passive endpoint or a connected endpoint in one
    /// call.
    pub fn options() -> BindOptions {
        BindOptions {
            progress: Progress::Manual,
            config: DomainConfig::default(),
            protocol: None,
            context: 0,
            max_msg_size: None,
            driver: ManualDriver::Task,
            model: PhantomData,
        }
    }
}

impl<M: ThreadModel> BindOptions<M> {
    /// Sets the wait policy; [`WaitPolicy::Adaptive`] by default.
    pub fn wait_policy(mut self, policy: WaitPolicy) -> Self {
        self.config.wait_policy = policy;
        self
    }

    /// Sets whether latency or bandwidth matters more, as
    /// [`DomainBuilder::message_model`](crate::DomainBuilder::message_model).
    pub fn message_model(mut self, model: MessageModel) -> Self {
        self.config.message_model = model;
        self
    }

    /// Sets manual or automatic progress; [`Progress::Manual`] by default.
    pub fn progress(mut self, progress: Progress) -> Self {
        self.progress = progress;
        self
    }

    /// Sets the length in bytes from which messages are copied once instead of twice, as
    /// [`DomainBuilder::single_copy_threshold`](crate::DomainBuilder::single_copy_threshold).
    pub fn single_copy_threshold(mut self, len: usize) -> Self {
        self.config.single_copy_threshold = Some(len);
        self
    }

    /// Sets the time after which an arriving message that makes no progress ends its connection, as
    /// [`DomainBuilder::progress_timeout`](crate::DomainBuilder::progress_timeout).
    pub fn progress_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.config.progress_timeout = Some(timeout);
        self
    }

    /// Sets the largest size in bytes of the domain's memory for loans, as
    /// [`DomainBuilder::loan_limit`](crate::DomainBuilder::loan_limit).
    pub fn loan_limit(mut self, bytes: usize) -> Self {
        self.config.loan_limit = Some(bytes);
        self
    }

    /// Sets how sockets are polled, as
    /// [`DomainBuilder::socket_io`](crate::DomainBuilder::socket_io).
    pub fn socket_io(mut self, io: SocketIo) -> Self {
        self.config.socket_io = io;
        self
    }

    /// Sets socket options, as
    /// [`DomainBuilder::socket_options`](crate::DomainBuilder::socket_options).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::{Endpoint, SocketOptions};
    /// // The firewall admits only these ports.
    /// let options = SocketOptions::new().port_range(41_000..=41_999);
    /// let ep = Endpoint::options().socket_options(options).bind("tcp://").await?;
    /// assert!((41_000..=41_999).contains(&ep.name().socket_addr().unwrap().port()));
    /// # Ok(()) }
    /// ```
    pub fn socket_options(mut self, options: SocketOptions) -> Self {
        self.config.socket_options = options;
        self
    }

    /// Sets the wire protocol for connections to peers, for providers with several; by default the
    /// first that the provider offers, which is [`Protocol::Tcp`] over `tcp`. [`Protocol::Rxm`]
    /// selects [the RXM protocol](crate::guide::tcp#the-rxm-protocol). Connections from peers use
    /// the protocol that the peer chose.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::{Endpoint, Protocol};
    /// let server = Endpoint::bind("tcp://").await?;
    /// let client = Endpoint::options().protocol(Protocol::Rxm).bind("tcp://").await?;
    /// let peer = client.add_peer(server.name()).await?;
    /// client.send(peer, "over RXM").await?;
    /// assert_eq!(&server.recv().await?[..], b"over RXM");
    /// # Ok(()) }
    /// ```
    #[doc(alias = "FI_PROTO_RXM")]
    #[doc(alias = "ofi_rxm")]
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = Some(protocol);
        self
    }

    /// Sets the context value of the events of the endpoint, passive endpoint or connected
    /// endpoint.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::Endpoint;
    /// let ep = Endpoint::options().context(7).bind("shm://").await?;
    /// let mut events = ep.take_events().expect("the first call gets the queue");
    /// let other = Endpoint::bind("shm://").await?;
    /// other.add_peer(ep.name()).await?;
    /// let connected = events.read().await;
    /// assert_eq!((connected.object_id, connected.context), (ep.id(), 7));
    /// # Ok(()) }
    /// ```
    pub fn context(mut self, context: u64) -> Self {
        self.context = context;
        self
    }

    /// Sets the length in bytes of the longest message of the endpoint, or of connected endpoints
    /// (`max_msg_size`), if it is below the limit of the provider.
    ///
    /// A longer send fails with [`Error::TooLong`](crate::Error::TooLong). A longer message from
    /// the peer is truncated, so receives use no more memory than this.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::{ConnectedEndpoint, Endpoint, Error};
    /// let mut listener = Endpoint::options().max_msg_size(100).listen("shm://").await?;
    /// let name = listener.name().clone();
    /// let client = tokio::spawn(async move {
    ///     let ep = ConnectedEndpoint::connect(&name).await?;
    ///     ep.send(vec![0; 101]).await?;
    ///     ep.recv().await?;
    ///     Ok::<_, Error>(())
    /// });
    /// let ep = listener.accept().await?.accept("")?;
    /// let failed = ep.recv().await.unwrap_err();
    /// assert_eq!(failed.error, Error::Truncated { len: 100, lost: 1 });
    /// let failed = ep.send(vec![0; 101]).await.unwrap_err();
    /// assert!(matches!(failed.error, Error::TooLong { limit: 100, .. }));
    /// # drop((ep, client)); Ok(()) }
    /// ```
    pub fn max_msg_size(mut self, bytes: usize) -> Self {
        self.max_msg_size = Some(bytes);
        self
    }

    /// As [`max_msg_size`](Self::max_msg_size), unless a size is set.
    pub(crate) fn or_max_msg_size(mut self, bytes: usize) -> Self {
        self.max_msg_size.get_or_insert(bytes);
        self
    }

    /// Sets the thread model; [`Shared`] by default. With [`Serial`](thread_model::Serial) one
    /// thread at a time may use the endpoint, with [`Pinned`](thread_model::Pinned) only the thread
    /// that opens it. For both, the hints have [`Threading::Domain`].
    pub fn thread_model<N: ThreadModel>(self) -> BindOptions<N> {
        BindOptions {
            progress: self.progress,
            config: DomainConfig {
                thread_mode: thread_model::mode::<N>(),
                ..self.config
            },
            protocol: self.protocol,
            context: self.context,
            max_msg_size: self.max_msg_size,
            driver: self.driver,
            model: PhantomData,
        }
    }

    /// Gives the domain to this thread, as
    /// [`DomainBuilder::owned_by_this_thread`](crate::DomainBuilder::owned_by_this_thread).
    #[doc(hidden)]
    pub fn owned_by_this_thread(mut self) -> Self {
        self.config.thread_mode = ThreadMode::Pinned;
        self
    }

    /// Opens the domain for one thread at a time, as this method of
    /// [`DomainBuilder`](crate::DomainBuilder).
    #[doc(hidden)]
    pub fn used_by_one_thread_at_a_time(mut self) -> Self {
        self.config.thread_mode = ThreadMode::Serial;
        self
    }

    /// Opens the endpoint, as [`Endpoint::bind`].
    ///
    /// # Errors
    /// As [`Endpoint::bind`]; [`Error::NotReserved`](crate::Error::NotReserved) with
    /// [`MessageModel::ForceLowLatency`]; for [`Pinned`](thread_model::Pinned)
    /// [`Error::Invalid`](crate::Error::Invalid) with automatic progress, and
    /// [`Error::Runtime`](crate::Error::Runtime) on a multi-thread runtime.
    pub async fn bind(self, at: impl ToAddress) -> Result<Endpoint<M>> {
        let found = resolve::resolve_filtered(&at, Scheme::Tcp, |_| true).await?;
        resolve::try_addresses(found, |at| std::future::ready(self.bind_at(&at))).await
    }

    /// Opens an endpoint at one address.
    fn bind_at(&self, at: &Address) -> Result<Endpoint<M>> {
        let hints = self.hints(at.scheme());
        let discover_rdm = |caps| discover(&hints.clone().ep_type(EpType::Rdm).caps(caps));
        let messages = Caps::MSG | Caps::TAGGED | Caps::DIRECTED_RECV | Caps::SOURCE;
        let datagrams = Caps::MSG | Caps::SOURCE | Caps::MULTICAST;
        // The first of these sets of capabilities that the provider offers.
        let mut info = discover_rdm(messages | Caps::RMA | Caps::ATOMIC)
            .or_else(|_| discover_rdm(messages))
            .or_else(|refused| {
                discover(&hints.clone().ep_type(EpType::Dgram).caps(datagrams)).map_err(|_| refused)
            })?
            .swap_remove(0);
        self.limit_messages(&mut info);
        let domain = self.open_domain(&info)?;
        let (completions, events) = open_queues(&domain)?;
        domain.bind_eq(&events)?;
        domain
            .endpoint(&info)?
            .name(at)?
            .context(self.context)
            .bind_cq(&completions, CqBind::TRANSMIT | CqBind::RECV)?
            .bind_av(&domain.auto_insert_address_vector()?)?
            .owned_queues(OwnedQueues {
                completions: Some(completions),
                events: Some(events),
            })
            .enable()
    }

    /// Opens a domain for connected endpoints with addresses of this scheme.
    pub(crate) fn open_msg_domain(&self, scheme: Scheme) -> Result<Domain<M>> {
        let hints = self.hints(scheme).ep_type(EpType::Msg);
        let mut info = discover(&hints)?.swap_remove(0);
        self.limit_messages(&mut info);
        self.open_domain(&info)
    }

    /// Applies [`max_msg_size`](Self::max_msg_size).
    fn limit_messages(&self, info: &mut Info) {
        let limit = self.max_msg_size.unwrap_or(usize::MAX);
        info.ep.max_msg_size = info.ep.max_msg_size.min(limit);
    }

    /// Returns the hints for an endpoint with an address of this scheme.
    fn hints(&self, scheme: Scheme) -> Hints {
        let provider = scheme.provider();
        let mut hints = Hints::new().provider(provider).progress(self.progress);
        if self.config.thread_mode != ThreadMode::Shared {
            hints = hints.threading(Threading::Domain);
        }
        match self.protocol {
            Some(protocol) => hints.protocol(protocol),
            None => hints,
        }
    }

    /// Opens a fabric and a domain with these options.
    fn open_domain(&self, info: &Info) -> Result<Domain<M>> {
        Fabric::open(info)?
            .domain_builder(info)
            .thread_model()
            .config(self.config.clone())
            .driver(self.driver)
            .open()
    }
}

impl BindOptions<Pinned> {
    /// Makes the driver of the domain a task of the [`LocalSet`](tokio::task::LocalSet) or
    /// [`LocalRuntime`](tokio::runtime::LocalRuntime) in which the endpoint is opened, as
    /// [`DomainBuilder::open_local`](crate::DomainBuilder::open_local): for a `LocalSet` on a
    /// thread of a multi-thread runtime.
    ///
    /// ```
    /// # fn main() -> fabric_async::Result<()> {
    /// use fabric_async::Endpoint;
    /// use fabric_async::thread_model::Pinned;
    /// use tokio::task::LocalSet;
    /// let runtime = tokio::runtime::Runtime::new().expect("a multi-thread runtime");
    /// let got = LocalSet::new().block_on(&runtime, async {
    ///     let options = Endpoint::options().thread_model::<Pinned>().local_driver();
    ///     let ep = options.bind("shm://").await?;
    ///     let me = ep.add_peer(ep.name()).await?;
    ///     let (sent, got) = tokio::join!(ep.send(me, "hello"), ep.recv());
    ///     sent?;
    ///     Ok::<_, fabric_async::Error>(got?.into_buf())
    /// })?;
    /// assert_eq!(&got[..], b"hello");
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    /// Opening panics outside of a `LocalSet` and `LocalRuntime`.
    pub fn local_driver(mut self) -> Self {
        self.driver = ManualDriver::LocalTask;
        self
    }
}

/// Opens a completion queue and an event queue with the default capacities.
fn open_queues<M: ThreadModel>(domain: &Domain<M>) -> Result<(CompletionQueue<M>, EventQueue)> {
    Ok((
        domain.completion_queue(DEFAULT_CQ_CAPACITY)?,
        domain.fabric().event_queue(DEFAULT_EQ_CAPACITY)?,
    ))
}

/// Returns a builder for a connected endpoint of this domain, with its own queues.
pub(crate) fn builder_with_queues<M: ThreadModel>(
    domain: &Domain<M>,
    info: &Info,
) -> Result<EndpointBuilder<M>> {
    let (completions, events) = open_queues(domain)?;
    let ep = domain
        .endpoint(info)?
        .bind_cq(&completions, CqBind::TRANSMIT | CqBind::RECV)?;
    Ok(ep.bind_eq(&events)?.owned_queues(OwnedQueues {
        completions: Some(completions),
        events: Some(events),
    }))
}
