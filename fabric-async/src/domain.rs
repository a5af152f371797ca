//! Domains and their builder.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use fabric_core::info::{self, Hints, Info, Scope};
use fabric_core::stats::DomainStats;
use fabric_core::transport::{DomainConfig, MessageModel, SocketIo, ThreadMode, WaitPolicy};
use fabric_core::tree::{ChildLimits, Children, Class, ObjectNode};
use fabric_core::{Error, Result, SocketOptions};
use fabric_reactor::{self as reactor, DriverKind, WaitFd};

use crate::av::AddressVector;
use crate::close::{CloseError, close_object, dependency_on};
use crate::counter::Counter;
use crate::cq::CompletionQueue;
use crate::domain_inner::{DomainCore, DomainInner, DomainSetup, RegistrationMode};
use crate::driver::ManualDriver;
use crate::endpoint::{EndpointBuilder, SharedRxContextBuilder};
use crate::eq::EventQueue;
use crate::fabric::Fabric;
use crate::flush::flush;
use crate::open_domains;
use crate::resource_domain::ResourceDomainBuilder;
use crate::thread_model::{self, Pinned, Shared, ThreadModel};
use crate::try_wait::TryWait;

/// A domain (`fid_domain`): the scope within which endpoints, queues, address vectors, memory
/// regions and counters work together, and the unit of progress.
///
/// Cheap to clone. Handles and children keep a domain open, operations do not (see
/// [handles](crate::guide::errors#handles)); [`Domain::close`] fails while children are open.
/// `Debug` prints class, id, parent, provider, capabilities, limits and the number of children by
/// class.
#[derive(Clone)]
#[doc(alias = "fid_domain")]
pub struct Domain<M: ThreadModel = Shared> {
    pub(crate) inner: Arc<DomainInner>,
    model: PhantomData<M>,
}

/// A builder of a domain, with options.
#[derive(Debug)]
#[must_use = "nothing is opened before `open`"]
pub struct DomainBuilder<'a, M: ThreadModel = Shared> {
    fabric: &'a Fabric,
    info: &'a Info,
    config: DomainConfig,
    context: u64,
    driver: ManualDriver,
    model: PhantomData<M>,
}

impl<'a> DomainBuilder<'a> {
    pub(crate) fn new(fabric: &'a Fabric, info: &'a Info) -> Self {
        Self {
            fabric,
            info,
            config: DomainConfig::default(),
            context: 0,
            driver: ManualDriver::Task,
            model: PhantomData,
        }
    }
}

impl<'a> DomainBuilder<'a> {
    /// Gives the domain to this thread, as model `Pinned` does, with the same conditions, although
    /// the type of its handles says `Shared`: a use by another thread panics. For tests and
    /// benchmarks that are compiled once for both models.
    #[doc(hidden)]
    pub fn owned_by_this_thread(mut self) -> Self {
        self.config.thread_mode = ThreadMode::Pinned;
        self
    }

    /// Opens the domain for one thread at a time, as model `Serial` does, with the same conditions,
    /// although the type of its handles says `Shared`. For tests and benchmarks that are compiled
    /// once for both models.
    #[doc(hidden)]
    pub fn used_by_one_thread_at_a_time(mut self) -> Self {
        self.config.thread_mode = ThreadMode::Serial;
        self
    }
}

impl<'a, M: ThreadModel> DomainBuilder<'a, M> {
    pub(crate) fn config(self, config: DomainConfig) -> Self {
        Self { config, ..self }
    }

    pub(crate) fn driver(self, driver: ManualDriver) -> Self {
        Self { driver, ..self }
    }

    /// Sets the wait policy; [`WaitPolicy::Adaptive`] by default.
    pub fn wait_policy(mut self, policy: WaitPolicy) -> Self {
        self.config.wait_policy = policy;
        self
    }

    /// Sets the length in bytes from which messages are copied once, directly between the memory of
    /// the two processes, instead of twice through the ring.
    ///
    /// The single copy is used unless the peer's domain has turned it off. 0 applies it to all
    /// messages that do not fit into one record of the ring. `usize::MAX` turns it off in both
    /// directions: this domain then reads no memory of peers and lets no peer read its own.
    ///
    /// By default, messages of 64 KiB and more are copied once when no other data is queued for the
    /// same peer, provided that the kernel of this machine copies fast enough, which each process
    /// measures once. Consecutive messages go through the ring, where both sides work in parallel.
    ///
    /// Where the kernel denies the access, or the provider has no single copy, messages go through
    /// the ring. [`EndpointStats`](crate::stats::EndpointStats) counts both ways. See
    /// [`guide::memory`](crate::guide::memory#single-copy).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::{Fabric, Hints, discover};
    /// let info = discover(&Hints::new().provider("shm"))?;
    /// let fabric = Fabric::open(&info[0])?;
    /// let domain = fabric.domain_builder(&info[0]).single_copy_threshold(1 << 20).open()?;
    /// # drop(domain); Ok(()) }
    /// ```
    pub fn single_copy_threshold(mut self, len: usize) -> Self {
        self.config.single_copy_threshold = Some(len);
        self
    }

    /// Sets how long an arriving message may make no progress; 30 seconds by default. Then the
    /// domain ends the connection of its sender with
    /// [`DownReason::Stalled`](crate::DownReason::Stalled). Progress is 4 KiB, or the end of the
    /// message. `None` sets no limit, and messages keep their receives.
    ///
    /// A message that arrives in pieces fills a receive or a buffer, so a peer that stops in the
    /// middle would hold the receive for ever. After 100 milliseconds without progress (an eighth
    /// of a timeout below 0.8 seconds), a whole message of another peer may take the receive. The
    /// stalled message then goes on in the next receive that accepts it, or is buffered (within the
    /// peer's share of the [budget](crate::guide::memory#unexpected-messages)). If the stalled
    /// message does not fit and another one waits for the receive, its connection ends after an
    /// eighth of the timeout. A message that fills a part of a multi-receive keeps the part for the
    /// whole timeout. A connection over `tcp` does not end while this side delays the message. Time
    /// in which the program does not poll the domain does not count.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use std::time::Duration;
    /// use fabric_async::Endpoint;
    /// let options = Endpoint::options().progress_timeout(Some(Duration::from_secs(5)));
    /// let ep = options.bind("tcp://").await?;
    /// # drop(ep); Ok(()) }
    /// ```
    pub fn progress_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.config.progress_timeout = Some(timeout);
        self
    }

    /// Sets the largest size in bytes of the domain's memory for [loans](crate::Domain::loan),
    /// whether held by the application, lent to peers or free. The default and maximum is 4 GiB,
    /// the minimum 4 KiB. A loan takes a power of two, or the whole limit. Providers without shared
    /// memory copy loans and have no limit but that of one loan, 4 GiB.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::{Endpoint, Error};
    /// let ep = Endpoint::options().loan_limit(1 << 20).bind("shm://").await?;
    /// let (first, _second) = (ep.domain().loan(500_000).await?, ep.domain().loan(500_000).await?);
    /// assert!(matches!(ep.domain().try_loan(1), Err(Error::WouldBlock(_))));
    /// assert!(matches!(ep.domain().loan(2 << 20).await, Err(Error::TooLong { .. })));
    /// let (third, ()) = tokio::join!(ep.domain().loan(1), async { drop(first) });
    /// assert_eq!(third?.len(), 1);
    /// # Ok(()) }
    /// ```
    pub fn loan_limit(mut self, bytes: usize) -> Self {
        self.config.loan_limit = Some(bytes);
        self
    }

    /// Sets how sockets are polled, for providers with sockets; [`SocketIo::Auto`] by default. See
    /// [`guide::tcp`](crate::guide::tcp#epoll-and-io_uring).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::{Fabric, Hints, SocketIo, discover};
    /// let info = discover(&Hints::new().provider("tcp"))?;
    /// let fabric = Fabric::open(&info[0])?;
    /// let domain = fabric.domain_builder(&info[0]).socket_io(SocketIo::Epoll).open()?;
    /// # drop(domain); Ok(()) }
    /// ```
    #[doc(alias = "FI_TCP_IO_URING")]
    pub fn socket_io(mut self, io: SocketIo) -> Self {
        self.config.socket_io = io;
        self
    }

    /// Sets options of the domain's sockets, for providers with sockets. The traffic class is set
    /// with [hints](crate::Hints::tclass) instead. See
    /// [`guide::tcp`](crate::guide::tcp#sockets).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::{Fabric, Hints, SocketOptions, discover};
    /// let info = discover(&Hints::new().provider("tcp"))?;
    /// let fabric = Fabric::open(&info[0])?;
    /// let options = SocketOptions::new().congestion_control("reno").send_buffer(1 << 20);
    /// let domain = fabric.domain_builder(&info[0]).socket_options(options).open()?;
    /// # drop(domain); Ok(()) }
    /// ```
    pub fn socket_options(mut self, options: SocketOptions) -> Self {
        self.config.socket_options = options;
        self
    }

    /// Sets the thread model; [`Shared`] by default. [`Serial`](thread_model::Serial) and
    /// [`Pinned`] need an info with [`Threading::Domain`](crate::info::Threading::Domain), `Pinned`
    /// also manual progress and a current-thread runtime; else [`open`](Self::open) fails.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::info::Threading;
    /// use fabric_async::thread_model::Pinned;
    /// use fabric_async::{Fabric, Hints, discover};
    /// let info = discover(&Hints::new().provider("shm").threading(Threading::Domain))?;
    /// let fabric = Fabric::open(&info[0])?;
    /// let domain = fabric.domain_builder(&info[0]).thread_model::<Pinned>().open()?;
    /// # drop(domain); Ok(()) }
    /// ```
    pub fn thread_model<N: ThreadModel>(self) -> DomainBuilder<'a, N> {
        DomainBuilder {
            fabric: self.fabric,
            info: self.info,
            config: DomainConfig {
                thread_mode: thread_model::mode::<N>(),
                ..self.config
            },
            context: self.context,
            driver: self.driver,
            model: PhantomData,
        }
    }

    /// Sets whether latency or bandwidth matters more; [`MessageModel::Default`] by default.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::resource_domain::MessageModel;
    /// use fabric_async::{Fabric, Hints, discover};
    /// let info = discover(&Hints::new().provider("tcp"))?.swap_remove(0);
    /// let fabric = Fabric::open(&info)?;
    /// let builder = fabric.domain_builder(&info).message_model(MessageModel::HighBandwidth);
    /// # drop(builder.open()?); Ok(()) }
    /// ```
    #[doc(alias = "ibv_exp_msg_model")]
    pub fn message_model(mut self, model: MessageModel) -> Self {
        self.config.message_model = model;
        self
    }

    /// Opens the domain without a driver: an event loop of the program drives the domain. Such a
    /// domain needs manual progress, and no Tokio runtime.
    ///
    /// The program makes progress with [`Domain::progress`], or by reading a queue, and waits on a
    /// descriptor after `prepare_wait` of the domain, a queue or a counter returned
    /// [`TryWait::Block`]. Between these calls the domain makes no progress: queued sends stay
    /// queued, acknowledgements are not read, connections are not accepted, and futures of the
    /// domain are not woken. See [`guide::event_loops`](crate::guide::event_loops).
    pub fn driven_by_event_loop(mut self) -> Self {
        self.driver = ManualDriver::EventLoop;
        self
    }

    /// Sets the context value of the domain's events.
    ///
    /// ```
    /// # fn main() -> fabric_async::Result<()> {
    /// use fabric_async::{EventKind, Fabric, Hints, discover};
    /// let info = discover(&Hints::new().provider("shm"))?.swap_remove(0);
    /// let fabric = Fabric::open(&info)?;
    /// let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    /// let domain = runtime.block_on(async { fabric.domain_builder(&info).context(7).open() })?;
    /// let mut eq = fabric.event_queue(16)?;
    /// domain.bind_eq(&eq)?;
    ///
    /// drop(runtime);                                   // the domain's driver is a task of it
    /// let event = eq.try_read().expect("an event of the domain");
    /// assert_eq!((event.object_id, event.context), (domain.id(), 7));
    /// assert_eq!(event.kind, EventKind::DriverEnded);
    /// # Ok(()) }
    /// ```
    pub fn context(mut self, context: u64) -> Self {
        self.context = context;
        self
    }

    /// Opens the domain (`fi_domain`).
    ///
    /// The steps are: check `info` against this fabric and against the offers of its provider, as
    /// [`discover`](crate::discover()) does; let the provider allocate; spawn the driver; add the
    /// domain to the object tree. If a step fails, all earlier steps are undone.
    ///
    /// The driver is a task on the current Tokio runtime under manual progress, and a thread under
    /// automatic progress; a domain that [an event loop drives](Self::driven_by_event_loop) has
    /// none. The driver sleeps while there is nothing to do, and ends with the domain.
    ///
    /// # Errors
    /// [`Error::Invalid`] when `info` describes another provider or fabric, or does not allow the
    /// thread model, for socket options that this machine does not have, or for an event loop with
    /// automatic progress; [`Error::TooLong`] for socket buffers above the system's limit;
    /// [`Error::NoMatch`] when `info` asks for more than the provider offers, also because its
    /// network or address has vanished since discovery; [`Error::Closed`] when the fabric is
    /// closed; [`Error::Runtime`] when progress is manual and no Tokio runtime with I/O is running
    /// here (with `panic = "abort"`, a runtime without I/O ends the process instead), or, for
    /// `Pinned`, a multi-thread runtime; [`Error::Os`], with the call `io_uring_setup` where
    /// [`SocketIo::IoUring`] was requested and the kernel refuses it; [`Error::NotReserved`] with
    /// [`MessageModel::ForceLowLatency`].
    pub fn open(self) -> Result<Domain<M>> {
        self.open_as(Class::Domain).map(Domain::from_inner)
    }

    /// Opens the domain as an object of this class: `Class::Domain`, or `Class::PassiveEndpoint`
    /// for the domain in which a passive endpoint makes progress.
    pub(crate) fn open_as(self, class: Class) -> Result<Arc<DomainInner>> {
        self.fabric.check_info(self.info)?;
        let driver_kind = self.driver.kind(self.info)?;
        thread_model::check_info(self.config.thread_mode, self.info)?;
        let provider = self.fabric.inner.transport;
        let attr = &self.info.domain;
        let mut limits = ChildLimits::NONE
            .with(Class::Endpoint, attr.ep_cnt)
            .with(Class::CompletionQueue, attr.cq_cnt)
            .with(Class::Counter, attr.cntr_cnt);
        // Local registrations are the only ones where the provider has no regions: `mr_cnt` is 0.
        if provider.check_has_regions().is_ok() {
            limits = limits.with(Class::MemoryRegion, attr.mr_cnt);
        }
        let parent = Some(self.fabric.inner.node.clone());
        let node = ObjectNode::with_limits(class, parent, limits);
        let name = format!("{}-{}", provider.name(), node.id());
        let driver = (driver_kind, &*name);
        let engine = reactor::DomainHandle::open(provider, self.info, &self.config, driver)?;
        self.driver.spawn(&engine, self.config.thread_mode)?;
        node.attach_to_parent()?;
        if class == Class::Domain {
            open_domains::add(node.id(), self.info.clone());
        }
        let state = DomainCore {
            node,
            engine,
            fabric: self.fabric.clone(),
            info: self.info.clone(),
            context: self.context,
        };
        let setup = DomainSetup {
            config: self.config,
            driver: self.driver,
        };
        Ok(Arc::new(DomainInner::new(state, setup, None)))
    }
}

impl DomainBuilder<'_, Pinned> {
    /// Opens the domain, as [`open`](DomainBuilder::open). Its driver is a task of the
    /// [`LocalSet`](tokio::task::LocalSet) or [`LocalRuntime`](tokio::runtime::LocalRuntime) in
    /// which this call runs, which may be one on a thread of a multi-thread runtime.
    ///
    /// # Errors
    /// As [`open`](DomainBuilder::open).
    ///
    /// # Panics
    /// Outside of a `LocalSet` and `LocalRuntime`.
    pub fn open_local(mut self) -> Result<Domain<Pinned>> {
        if self.driver == ManualDriver::Task {
            self.driver = ManualDriver::LocalTask;
        }
        self.open()
    }
}

impl<M: ThreadModel> Domain<M> {
    pub(crate) fn from_inner(inner: Arc<DomainInner>) -> Self {
        Self {
            inner,
            model: PhantomData,
        }
    }

    /// Returns a builder for a resource domain: a part of this domain with a lock, a driver and
    /// progress of its own (`ibv_exp_create_res_domain`). See
    /// [`resource_domain`](crate::resource_domain).
    #[doc(alias = "ibv_exp_create_res_domain")]
    pub fn resource_domain(&self) -> ResourceDomainBuilder<'_, M> {
        ResourceDomainBuilder::new(&self.inner)
    }

    /// Returns a builder for an endpoint (`fi_endpoint`).
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::Invalid`] when `info` describes another provider or fabric, or
    /// states an attribute of the domain that this domain does not serve, such as automatic
    /// progress in a domain with manual progress; [`Error::NoMatch`] when `info` asks for more than
    /// the provider offers.
    #[doc(alias = "fi_endpoint")]
    pub fn endpoint(&self, info: &Info) -> Result<EndpointBuilder<M>> {
        self.check_child(info)?;
        Ok(EndpointBuilder::new(
            self.clone(),
            info.clone(),
            Class::Endpoint,
        ))
    }

    /// Returns a builder for a receive context that endpoints of this domain share
    /// (`fi_srx_context`).
    ///
    /// # Errors
    /// As [`endpoint`](Self::endpoint).
    #[doc(alias = "fi_srx_context")]
    pub fn shared_rx_context(&self, info: &Info) -> Result<SharedRxContextBuilder<M>> {
        self.check_child(info)?;
        Ok(SharedRxContextBuilder::new(self.clone(), info.clone()))
    }

    /// Checks that an object of this domain may be opened from `info`.
    fn check_child(&self, info: &Info) -> Result<()> {
        self.inner.node.check_open()?;
        self.inner.fabric.check_info(info)?;
        // A resource domain has a thread model of its own, and opens what its domain opens.
        let of = self.inner.parent().map_or(&self.inner.info, |of| &of.info);
        info::check_child(of, info)
    }

    /// Opens a completion queue for up to `capacity` completions (`fi_cq_open`).
    ///
    /// # Errors
    /// [`Error::Invalid`] when the capacity is 0 or above 2^20; [`Error::TooMany`] when the domain
    /// has `cq_cnt` queues; [`Error::Closed`].
    #[doc(alias = "fi_cq_open")]
    pub fn completion_queue(&self, capacity: usize) -> Result<CompletionQueue<M>> {
        CompletionQueue::open(self, capacity)
    }

    /// Opens an empty address vector (`fi_av_open`).
    ///
    /// # Errors
    /// [`Error::Closed`].
    #[doc(alias = "fi_av_open")]
    pub fn address_vector(&self) -> Result<AddressVector<M>> {
        AddressVector::open(self, false)
    }

    /// Opens an address vector that automatically inserts peers which connect, so that the
    /// application can reply to them. The vector removes an auto-inserted peer when the peer has
    /// disconnected and its last message has been received and consumed.
    ///
    /// After the removal, uses of the peer's handle fail with [`Error::StaleAddress`]. The handle
    /// stands for the endpoint that connected: another process that takes the same name gets
    /// another handle, and sends to the first one fail. A peer that the application inserts, by
    /// [`AddressVector::insert`] or [`Endpoint::add_peer`](crate::Endpoint::add_peer), before it
    /// connects or while it is auto-inserted, is not removed. See
    /// [`guide::client_server`](crate::guide::client_server).
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn auto_insert_address_vector(&self) -> Result<AddressVector<M>> {
        AddressVector::open(self, true)
    }

    /// Opens a counter (`fi_cntr_open`).
    ///
    /// # Errors
    /// [`Error::TooMany`] when the domain has `cntr_cnt` counters; [`Error::Closed`].
    #[doc(alias = "fi_cntr_open")]
    pub fn counter(&self) -> Result<Counter<M>> {
        Counter::open(self)
    }

    /// Returns counters of what the domain has done since it was opened, and of its pending work.
    #[must_use]
    pub fn stats(&self) -> DomainStats {
        self.inner.engine.stats()
    }

    /// Returns [`DomainStats::concurrent_uses`] without using the domain. For tests, which cannot
    /// see otherwise that a thread waits.
    #[doc(hidden)]
    #[must_use]
    pub fn concurrent_uses(&self) -> u64 {
        self.inner.engine.concurrent_uses()
    }

    /// Binds the default event queue of the domain and its endpoints (`fi_domain_bind`). A domain
    /// can be bound once.
    ///
    /// # Errors
    /// [`Error::Invalid`] when a queue is bound already; [`Error::WrongParent`] when the queue is
    /// of another fabric; [`Error::Closed`].
    #[doc(alias = "fi_domain_bind")]
    pub fn bind_eq(&self, eq: &EventQueue) -> Result<()> {
        self.bind_eq_as(eq, RegistrationMode::Synchronous)
    }

    pub(crate) fn bind_eq_as(&self, eq: &EventQueue, registration: RegistrationMode) -> Result<()> {
        let fabric = &self.inner.fabric.inner;
        let guard = dependency_on(&eq.inner.node, &fabric.node, Class::Domain)?;
        self.inner.bind_eq(&eq.inner, registration, guard)?;
        eq.inner.attach_domain(&self.inner);
        Ok(())
    }

    /// Makes progress once, without waiting. Returns whether anything was done.
    ///
    /// Under manual progress every poll of an operation or queue also drives the domain, so this
    /// call is for applications that poll nothing or drive the domain themselves.
    #[allow(clippy::must_use_candidate)] // most callers ignore the result
    pub fn progress(&self) -> bool {
        self.inner.engine.progress()
    }

    /// Returns the domain's descriptor for an event loop (`FI_GETWAIT`): the same at each call.
    ///
    /// Block on the descriptor only after [`prepare_wait`](Self::prepare_wait).
    ///
    /// # Errors
    /// [`Error::NotSupported`] when the domain has a driver: wait on its queues and counters
    /// instead.
    #[doc(alias = "FI_GETWAIT")]
    pub fn wait_fd(&self) -> Result<WaitFd> {
        self.check_event_loop()?;
        Ok(self.inner.engine.wait_fd())
    }

    /// Makes progress once, and returns whether the program may block on the
    /// [descriptor](Self::wait_fd) (`fi_trywait(3)`).
    ///
    /// After [`TryWait::Block`] everything that needs progress makes the descriptor readable: a
    /// message, an acknowledgement, a new connection, the end of a peer. Completions that are in a
    /// queue do not: call `prepare_wait` of the queue. Progress by another thread does not make the
    /// descriptor readable; it wakes the tasks and queues that wait for the completions.
    ///
    /// # Errors
    /// [`Error::NotSupported`] when the domain has a driver.
    #[doc(alias = "fi_trywait")]
    pub fn prepare_wait(&self) -> Result<TryWait> {
        self.check_event_loop()?;
        Ok(TryWait::from_may_block(self.inner.engine.prepare_wait()))
    }

    /// Checks that the domain was opened with [`DomainBuilder::driven_by_event_loop`].
    fn check_event_loop(&self) -> Result<()> {
        if self.inner.engine.driver_kind() == DriverKind::EventLoop {
            return Ok(());
        }
        Err(Error::NotSupported(
            "waiting on the descriptor of a domain that the event loop does not drive \
             (see DomainBuilder::driven_by_event_loop)",
        ))
    }

    /// Waits until everything that was posted before on any endpoint of this domain has left this
    /// process, as [`Endpoint::flush`](crate::Endpoint::flush) does for one endpoint.
    ///
    /// # Errors
    /// [`Error::Closed`] when the domain is closed.
    ///
    /// # Cancel safety
    /// As [`Endpoint::flush`](crate::Endpoint::flush).
    pub async fn flush(&self) -> Result<()> {
        self.inner.node.check_open()?;
        flush(&self.inner, None).await
    }

    /// Returns the id of the domain, unique among the objects of this process.
    #[must_use]
    #[doc(alias = "fid")]
    pub fn id(&self) -> u64 {
        self.inner.node.id()
    }

    /// Returns the class of the object, [`Class::Domain`] or [`Class::ResourceDomain`]
    /// (`fid_type`).
    #[must_use]
    #[doc(alias = "fclass")]
    pub fn class(&self) -> Class {
        self.inner.node.class()
    }

    /// Returns the info that this domain was opened with: provider, capabilities, mode bits and
    /// limits.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.inner.info
    }

    /// Returns the fabric of this domain, its parent in the object tree.
    #[must_use]
    pub fn fabric(&self) -> &Fabric {
        &self.inner.fabric
    }

    /// Returns the context value of the domain's events, set with [`DomainBuilder::context`].
    #[must_use]
    pub fn context(&self) -> u64 {
        self.inner.context
    }

    /// Returns the number of open children, by class. Their total is the reference count of the
    /// domain: it can be closed when the total is 0.
    #[must_use]
    #[doc(alias = "ref_count")]
    pub fn children(&self) -> Children {
        self.inner.node.children()
    }

    /// Closes the domain, for all its clones (`fi_close`). The driver ends with the last clone.
    ///
    /// # Errors
    /// [`Error::Busy`] while children are open; [`Error::Closed`] when the domain was closed
    /// before.
    #[doc(alias = "fi_close")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        let domain = close_object(self, |domain| &domain.inner.node)?;
        open_domains::remove(domain.id());
        domain.inner.unbind_eq();
        domain.inner.engine.end_loan_waits();
        Ok(())
    }
}

impl<M: ThreadModel> Scope for Domain<M> {
    fn restrict(&self, hints: Hints) -> Hints {
        let inner = self.inner.parent().unwrap_or(&self.inner);
        let hints = inner.fabric.restrict(hints);
        let name = &inner.info.domain.name;
        hints.domain_name(name).domain(inner.node.id())
    }
}

impl<M: ThreadModel> fmt::Debug for Domain<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (node, attr) = (&self.inner.node, &self.inner.info.domain);
        f.debug_struct("Domain")
            .field("class", &node.class())
            .field("id", &node.id())
            .field("parent", &node.parent().map(|parent| parent.id()))
            .field("provider", &self.inner.info.fabric.provider)
            .field("caps", &self.inner.info.caps)
            .field("mode", &self.inner.info.mode)
            .field("threading", &attr.threading)
            .field("progress", &attr.data_progress)
            .field("wait", &self.inner.engine.wait_policy())
            .field("mr_mode", &attr.mr_mode)
            .field("mr_key_size", &attr.mr_key_size)
            .field("cq_data_size", &attr.cq_data_size)
            .field("cq_cnt", &attr.cq_cnt)
            .field("ep_cnt", &attr.ep_cnt)
            .field("cntr_cnt", &attr.cntr_cnt)
            .field("mr_cnt", &attr.mr_cnt)
            .field("children", &format_args!("{}", node.children()))
            .field("state", &format_args!("{}", self.inner.engine.describe()))
            .field("context", &self.inner.context)
            .finish()
    }
}
