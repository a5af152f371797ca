//! Asynchronous registration of memory (`FI_REG_MR`).
//!
//! [`Domain::alloc_async`](crate::Domain::alloc_async), `alloc_from_async`, `register_async` and
//! `register_memfd_async` return a [`RegionRequest`]: `.await` returns the region, and
//! [`post`](RegionRequest::post) returns a [`PendingRegion`], which owns the registration until the
//! program takes the region.

// A thread of the process (`run_in_background`) allocates and fills the memory without a lock.
// Under the lock of the registration it then opens the key and reports the event. So a handle that
// is dropped before has no event, and one that is dropped after removes its event. The taker of the
// region restores its buffer, without the lock. No code of the program runs under it.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use fabric_core::buf::RegionBuf;
use fabric_core::completion::Failed;
use fabric_core::event::EventKind;
use fabric_core::flags::Access;
use fabric_core::tree::{Class, ObjectNode};
use fabric_core::{Error, Result};
use fabric_reactor::{Memfd, ReservedEvent, run_in_background};

use crate::domain::Domain;
use crate::domain_inner::{DomainInner, RegistrationMode};
use crate::eq::EventQueue;
use crate::mr::{CopiedBuffer, MemfdInPlace, MemoryRegion, ZeroedMemory};
use crate::registered::{BufferInPlace, RegisteredBuffer};
use crate::registration::{MrRegistration, PreparedMemory, RegionSource};

/// A request to register memory asynchronously (`FI_REG_MR`), from
/// [`Domain::alloc_async`](crate::Domain::alloc_async),
/// [`alloc_from_async`](crate::Domain::alloc_from_async),
/// [`register_async`](crate::Domain::register_async) or
/// [`register_memfd_async`](crate::Domain::register_memfd_async).
///
/// `.await` registers and returns the region `R`, without an event. [`post`](Self::post) returns at
/// once, and the end of the registration is an event. Both do the work on a thread of the crate.
///
/// # Cancel safety
/// Dropping the future closes the region: see [`PendingRegion`].
#[must_use = "a request does nothing before it is awaited or posted"]
pub struct RegionRequest<R, E = Error> {
    pending: PendingRegion<R, E>,
    context: u64,
}

/// The future of a [`RegionRequest`]. Nothing is registered before the first poll.
#[must_use = "a future does nothing before it is awaited"]
pub struct RegionFuture<R, E = Error> {
    pending: PendingRegion<R, E>,
    is_started: bool,
}

/// A posted registration of memory: the handle of the region until the program
/// [takes](Self::try_take) the region.
///
/// Dropping the handle closes the region (`fi_close`), removes its unread event, and returns its
/// place in `mr_cnt`. Memory that a thread is allocating at this moment is freed afterwards.
///
/// The registration holds an entry of the event queue until its event is read.
#[must_use = "dropping the handle closes the region, without an event"]
#[doc(alias = "fid_mr")]
pub struct PendingRegion<R, E = Error> {
    shared: Arc<AsyncRegistration<R, E>>,
}

/// A registration, shared by its handle and the thread that registers.
struct AsyncRegistration<R, E> {
    node: Arc<ObjectNode>,
    access: Access,
    state: Mutex<RegistrationState<R, E>>,
}

struct RegistrationState<R, E> {
    phase: Phase<R, E>,
    /// The waker of the task that awaits the end.
    waker: Option<Waker>,
}

/// What a registration needs besides its memory.
struct RegistrationParams {
    domain: Arc<DomainInner>,
    key: Option<u64>,
    /// The entry of the event queue, if the registration was posted.
    event: Option<ReservedEvent>,
}

enum Phase<R, E> {
    /// No thread has begun.
    Waiting(RegistrationParams, Box<dyn RegionSource<R, E>>),
    /// A thread prepares the memory.
    Preparing(RegistrationParams),
    /// The registration has ended.
    Ended(Ended<R, E>),
    /// The region was taken, or its handle was dropped.
    Closed,
}

/// What the thread found when it registered.
struct Ended<R, E> {
    source: Box<dyn RegionSource<R, E>>,
    registered: Result<Box<MrRegistration>>,
    /// The event of a failure. A registration has its own.
    _failure_event: Option<ReservedEvent>,
}

impl<R, E> Ended<R, E> {
    /// Returns the handle of the region, or the failure. Restores buffers, so the caller holds no
    /// lock.
    fn into_result(self) -> Result<R, E> {
        match self.registered {
            Ok(registration) => Ok(self.source.open(registration)),
            Err(error) => Err(self.source.fail(error)),
        }
    }
}

/// # Asynchronous registration
///
/// A thread of the crate opens the regions, so domains of the models
/// [`Serial`](crate::thread_model::Serial) and [`Pinned`](crate::thread_model::Pinned) have no
/// asynchronous registration.
impl Domain {
    /// Allocates a memory region of `len` zeroed bytes asynchronously, as [`alloc`](Self::alloc) in
    /// other respects.
    ///
    /// A thread of the crate allocates the memory, which takes time in proportion to the length.
    /// The request is awaited, which needs no event queue, or posted in a domain that is [bound
    /// with `FI_REG_MR`](Self::bind_eq_reg_mr).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::{Access, Endpoint};
    /// let ep = Endpoint::bind("shm://").await?;
    /// let region = ep.domain().alloc_async(1 << 20, Access::REMOTE_READ).await?;
    /// assert_eq!(region.remote().len, 1 << 20);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Of the request: as [`alloc`](Self::alloc); [`Error::Key`] when a requested key is in use;
    /// [`Error::Os`] when no thread can be started.
    ///
    /// # Cancel safety
    /// Dropping the future closes the region: see
    /// [`PendingRegion`].
    #[doc(alias = "FI_REG_MR")]
    pub fn alloc_async(&self, len: usize, access: Access) -> RegionRequest<MemoryRegion> {
        RegionRequest::new(&self.inner, access, ZeroedMemory(len))
    }

    /// Allocates a memory region with the bytes of a buffer asynchronously, as
    /// [`alloc_from`](Self::alloc_from). A thread of the crate allocates and copies.
    ///
    /// # Errors
    /// Of the request, with the buffer: as [`alloc_async`](Self::alloc_async); [`Error::Invalid`]
    /// when a method of a custom buffer panics.
    ///
    /// # Cancel safety
    /// As [`alloc_async`](Self::alloc_async). The buffer is dropped with the region.
    #[doc(alias = "fi_mr_reg")]
    #[doc(alias = "FI_REG_MR")]
    pub fn alloc_from_async<B: RegionBuf>(
        &self,
        buf: B,
        access: Access,
    ) -> RegionRequest<MemoryRegion<B>, Failed<B>> {
        RegionRequest::new(&self.inner, access, CopiedBuffer(buf))
    }

    /// Registers a buffer in place asynchronously, as [`register`](Self::register).
    ///
    /// # Errors
    /// Of the request, with the buffer: as [`register`](Self::register); [`Error::Os`] when no
    /// thread can be started.
    ///
    /// # Cancel safety
    /// As [`alloc_async`](Self::alloc_async). The buffer is dropped with the region.
    #[doc(alias = "fi_mr_reg")]
    #[doc(alias = "FI_REG_MR")]
    pub fn register_async<B: RegionBuf>(
        &self,
        buf: B,
        access: Access,
    ) -> RegionRequest<RegisteredBuffer<B>, Failed<B>> {
        RegionRequest::new(&self.inner, access, BufferInPlace::new(&self.inner, buf))
    }

    /// Registers memory of the program in place asynchronously, as
    /// [`register_memfd`](Self::register_memfd).
    ///
    /// # Errors
    /// Of the request: as [`register_memfd`](Self::register_memfd); [`Error::Os`] when no thread
    /// can be started.
    ///
    /// # Cancel safety
    /// As [`alloc_async`](Self::alloc_async).
    #[doc(alias = "FI_REG_MR")]
    pub fn register_memfd_async(
        &self,
        memory: &Memfd,
        access: Access,
    ) -> RegionRequest<MemoryRegion<Memfd>> {
        RegionRequest::new(&self.inner, access, MemfdInPlace(memory.clone()))
    }

    /// Binds the default event queue, as [`bind_eq`](Self::bind_eq), with `FI_REG_MR`: from now on
    /// this domain registers memory asynchronously only.
    ///
    /// Regions are requested with [`alloc_async`](Self::alloc_async),
    /// [`alloc_from_async`](Self::alloc_from_async), [`register_async`](Self::register_async) and
    /// [`register_memfd_async`](Self::register_memfd_async).
    /// The end of a [posted](RegionRequest::post) registration is an event of this queue:
    /// [`MrComplete`](crate::EventKind::MrComplete) or [`MrFailed`](crate::EventKind::MrFailed).
    /// The synchronous calls fail with [`Error::Invalid`], except
    /// [`register_local`](Self::register_local), which allocates no page and is complete when the
    /// call returns. Regions that exist stay.
    ///
    /// # Errors
    /// As [`bind_eq`](Self::bind_eq).
    #[doc(alias = "fi_domain_bind")]
    #[doc(alias = "FI_REG_MR")]
    pub fn bind_eq_reg_mr(&self, eq: &EventQueue) -> Result<()> {
        self.bind_eq_as(eq, RegistrationMode::Asynchronous)
    }
}

impl<R, E> RegionRequest<R, E> {
    pub(crate) fn new(
        domain: &Arc<DomainInner>,
        access: Access,
        source: impl RegionSource<R, E> + 'static,
    ) -> Self {
        let params = RegistrationParams {
            domain: domain.clone(),
            key: None,
            event: None,
        };
        let shared = Arc::new(AsyncRegistration {
            node: ObjectNode::new(Class::MemoryRegion, Some(domain.node.clone())),
            access,
            state: Mutex::new(RegistrationState {
                phase: Phase::Waiting(params, Box::new(source)),
                waker: None,
            }),
        });
        Self {
            pending: PendingRegion { shared },
            context: 0,
        }
    }

    /// Requests this key, instead of a free one. A key that is in use fails the registration with
    /// [`Error::Key`], as does any in a domain that requires
    /// [`MrMode::PROV_KEY`](crate::info::MrMode::PROV_KEY).
    pub fn key(self, key: u64) -> Self {
        if let Phase::Waiting(params, _) = &mut self.pending.shared.lock().phase {
            params.key = Some(key);
        }
        self
    }

    /// Sets the context value of the event when the request is [posted](Self::post).
    pub fn context(self, context: u64) -> Self {
        Self { context, ..self }
    }
}

impl<R: Send + 'static, E: Send + 'static> RegionRequest<R, E> {
    /// Begins the registration (`fi_mr_reg` in a domain with `FI_REG_MR`), and returns before it is
    /// complete. Its end is an [`EventKind::MrComplete`] or [`EventKind::MrFailed`] of the domain's
    /// event queue with the region's [id](PendingRegion::id) and the [context](Self::context).
    ///
    /// The entry in the queue is reserved: the queue holds as many of these events as its capacity,
    /// beside others.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::{Access, EventKind, Fabric, Hints, discover};
    /// let info = discover(&Hints::new().provider("shm"))?.swap_remove(0);
    /// let fabric = Fabric::open(&info)?;
    /// let (domain, mut eq) = (fabric.domain(&info)?, fabric.event_queue(16)?);
    /// domain.bind_eq_reg_mr(&eq)?;
    /// let request = domain.alloc_async(1 << 20, Access::REMOTE_WRITE);
    /// let mut pending = request.context(7).post()?;
    /// let event = eq.read().await;
    /// assert_eq!((event.object_id, event.context), (pending.id(), 7));
    /// let region = pending.try_take().expect("the registration has ended")?;
    /// assert_eq!(event.kind, EventKind::MrComplete { key: region.key() });
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unbound`] when the domain has no event queue; [`Error::Invalid`] when it was bound
    /// without [`FI_REG_MR`](crate::Domain::bind_eq_reg_mr); [`Error::WouldBlock`] with
    /// [`Resource::EventEntry`](crate::Resource::EventEntry) when all entries for registrations are
    /// in use; [`Error::NotSupported`] when the provider has no memory regions; [`Error::TooMany`]
    /// when the domain has `mr_cnt` regions; [`Error::Os`] when no thread can be started;
    /// [`Error::Closed`]. All other failures are events.
    #[doc(alias = "fi_mr_reg")]
    #[doc(alias = "FI_REG_MR")]
    pub fn post(self) -> Result<PendingRegion<R, E>, E> {
        self.pending.start(Some(self.context))?;
        Ok(self.pending)
    }
}

/// # Errors
/// Those of the registration; [`Error::TooMany`] when the domain has `mr_cnt` regions;
/// [`Error::Os`] when no thread can be started; [`Error::Closed`].
impl<R: Send + 'static, E: Send + 'static> IntoFuture for RegionRequest<R, E> {
    type Output = Result<R, E>;
    type IntoFuture = RegionFuture<R, E>;

    fn into_future(self) -> RegionFuture<R, E> {
        RegionFuture {
            pending: self.pending,
            is_started: false,
        }
    }
}

impl<R: Send + 'static, E: Send + 'static> Future for RegionFuture<R, E> {
    type Output = Result<R, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if !std::mem::replace(&mut self.is_started, true) {
            self.pending.start(None)?;
        }
        let mut state = self.pending.shared.lock();
        if let Some(ended) = state.phase.take_ended() {
            drop(state);
            return Poll::Ready(ended.into_result());
        }
        let replaced = state.waker.replace(cx.waker().clone());
        drop(state);
        drop(replaced);
        Poll::Pending
    }
}

impl<R, E> PendingRegion<R, E> {
    /// Returns the region, or the failure of the registration, with the buffer where one was
    /// registered; `None` while the registration is pending, and after the first result. Before
    /// that the region has no key (`FI_KEY_NOTAVAIL`).
    #[doc(alias = "FI_KEY_NOTAVAIL")]
    pub fn try_take(&mut self) -> Option<Result<R, E>> {
        let ended = self.shared.lock().phase.take_ended();
        ended.map(Ended::into_result)
    }

    /// Returns the id of the region, unique among the objects of this process.
    #[must_use]
    #[doc(alias = "fid")]
    pub fn id(&self) -> u64 {
        self.shared.node.id()
    }
}

impl<R: Send + 'static, E: Send + 'static> PendingRegion<R, E> {
    /// Counts the region as a child of the domain and begins the registration: with the context of
    /// its event, if it is posted.
    fn start(&self, posted: Option<u64>) -> Result<(), E> {
        self.try_start(posted).map_err(|error| {
            self.shared.node.detach_from_parent();
            let phase = std::mem::replace(&mut self.shared.lock().phase, Phase::Closed);
            match phase {
                Phase::Waiting(_, source) => source.fail(error),
                _ => unreachable!("no thread has begun"),
            }
        })
    }

    fn try_start(&self, posted: Option<u64>) -> Result<()> {
        if let Phase::Waiting(params, _) = &self.shared.lock().phase {
            params.domain.check_has_regions()?;
        }
        self.shared.node.attach_to_parent()?;
        if let Some(context) = posted
            && let Phase::Waiting(params, _) = &mut self.shared.lock().phase
        {
            let queue = params.domain.registration_eq()?;
            params.event = Some(queue.reserve(self.id(), context)?);
        }
        let shared = self.shared.clone();
        run_in_background(move || shared.run())
    }
}

impl<R, E> AsyncRegistration<R, E> {
    fn lock(&self) -> MutexGuard<'_, RegistrationState<R, E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers, on a thread of the process.
    fn run(&self) {
        let mut state = self.lock();
        let phase = std::mem::replace(&mut state.phase, Phase::Closed);
        let Phase::Waiting(params, mut source) = phase else {
            return;
        };
        let domain = params.domain.clone();
        state.phase = Phase::Preparing(params);
        drop(state);
        let prepare = || PreparedMemory::new(&domain, &mut *source, self.access);
        let prepared = catch_unwind(AssertUnwindSafe(prepare)).unwrap_or_else(|_| {
            let (what, why) = ("buffer to register", "a method of the buffer panics".into());
            Err(Error::Invalid { what, why })
        });
        let mut state = self.lock();
        let phase = std::mem::replace(&mut state.phase, Phase::Closed);
        let Phase::Preparing(RegistrationParams { key, mut event, .. }) = phase else {
            // The handle was dropped. The memory is freed without the lock.
            drop(state);
            return;
        };
        let node = self.node.clone();
        let mut registered =
            prepared.and_then(|memory| MrRegistration::open(node, &domain, memory, key));
        let kind = match &registered {
            Ok(registration) => EventKind::MrComplete {
                key: registration.remote.key,
            },
            Err(error) => EventKind::MrFailed {
                error: error.clone(),
            },
        };
        let reader = event.as_mut().and_then(|event| event.report(kind));
        match &mut registered {
            Ok(registration) => registration.keep_event(event.take()),
            Err(_) => self.node.detach_from_parent(),
        }
        state.phase = Phase::Ended(Ended {
            source,
            registered,
            _failure_event: event,
        });
        let waiter = state.waker.take();
        drop(state);
        for waker in [reader, waiter].into_iter().flatten() {
            waker.wake();
        }
    }
}

impl<R, E> Phase<R, E> {
    /// Takes what the thread found, if the registration has ended.
    fn take_ended(&mut self) -> Option<Ended<R, E>> {
        match std::mem::replace(self, Self::Closed) {
            Self::Ended(ended) => Some(ended),
            other => {
                *self = other;
                None
            }
        }
    }
}

impl<R, E> Drop for PendingRegion<R, E> {
    fn drop(&mut self) {
        let phase = std::mem::replace(&mut self.shared.lock().phase, Phase::Closed);
        match phase {
            Phase::Waiting(..) | Phase::Preparing(_) => self.shared.node.detach_from_parent(),
            // The drop of the handle closes the region.
            Phase::Ended(ended) => drop(ended.into_result()),
            Phase::Closed => {}
        }
    }
}

impl<R, E> fmt::Debug for PendingRegion<R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingRegion")
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}

impl<R, E> fmt::Debug for RegionRequest<R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionRequest")
            .field("id", &self.pending.id())
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

impl<R, E> fmt::Debug for RegionFuture<R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionFuture")
            .field("id", &self.pending.id())
            .finish_non_exhaustive()
    }
}
