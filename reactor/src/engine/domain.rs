//! A domain as fabric-async uses it: opening, configuration, statistics, polling of operations. The
//! calls on its objects are in the modules of those objects.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use fabric_core::buf::{IoBuf, restore_buffer};
use fabric_core::completion::{Done, Failed};
use fabric_core::info::Info;
use fabric_core::stats::DomainStats;
use fabric_core::transport::{
    DomainConfig, DomainResources, LoanAllocator, ModelSettings, OpKey, WaitPolicy,
};
use fabric_core::{Error, Result};

use super::driver::{self, DomainWaker, TaskDriver};
use super::driver_phase::DriverKind;
use super::progress::EngineTransport;
use super::progress::{Engine, EngineGuard};
use super::state::regions::SharedRegions;
use super::updates::{DomainEngines, DomainUpdates};
use super::wait_policy::WaitRules;
use crate::sys::EpollSet;
use crate::sys::thread_lock::DomainLockMode;

/// A completed operation whose result is to be taken. It holds the domain's lock.
#[must_use = "the result stays in its slot until `take`"]
pub struct CompletedOp<'a> {
    engine: EngineGuard<'a>,
    key: OpKey,
    /// The waker of the task, dropped after the lock is released.
    _waker: Option<Waker>,
}

impl CompletedOp<'_> {
    /// Takes the result.
    ///
    /// # Errors
    /// The failure of the operation, with the buffer.
    ///
    /// # Panics
    /// When the buffer that was posted is not of type `B`.
    #[inline(always)] // on the small-message path, and the result is large
    pub fn take<B: IoBuf>(mut self) -> Result<Done<B>, Failed<B>> {
        let (buf, transfer, error) = self
            .engine
            .domain
            .take_done_result(self.key, restore_buffer);
        self.engine.unlock();
        match error {
            None => Ok(Done { buf, transfer }),
            Some(error) => Err(Failed {
                error: *error,
                buf,
                transfer,
            }),
        }
    }
}

/// An open domain: a transport, the objects on it, and the engine that makes progress.
///
/// Cheap to clone; dropping the last clone closes the domain.
#[derive(Clone)]
pub struct DomainHandle {
    engine: Arc<Engine>,
    loan_allocator: Option<Arc<dyn LoanAllocator>>,
    regions: SharedRegions,
    /// All engines of the domain: this one, and those of resource domains.
    engines: Arc<DomainEngines>,
}

impl DomainHandle {
    /// Opens a domain on a transport, and its driver if that is a thread (`fi_domain`).
    ///
    /// # Errors
    /// Invalid socket options; what the transport or the operating system refuses.
    pub fn open(
        transport: &EngineTransport,
        info: &Info,
        config: &DomainConfig,
        driver: (DriverKind, &str),
    ) -> Result<Self> {
        let shared = (SharedRegions::new(info.domain.mr_mode), Arc::default());
        Self::open_engine(transport, info, config, driver, shared)
    }

    /// Opens a resource domain of this domain: another engine, which shares its memory regions.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_resource_domain(
        &self,
        transport: &EngineTransport,
        info: &Info,
        config: &DomainConfig,
        driver: (DriverKind, &str),
    ) -> Result<Self> {
        let shared = (self.regions.clone(), self.engines.clone());
        Self::open_engine(transport, info, config, driver, shared)
    }

    fn open_engine(
        transport: &EngineTransport,
        info: &Info,
        config: &DomainConfig,
        (driver_kind, name): (DriverKind, &str),
        (regions, engines): (SharedRegions, Arc<DomainEngines>),
    ) -> Result<Self> {
        let model_settings = ModelSettings::of(config.message_model);
        let waits = WaitRules::new(config.wait_policy, &model_settings)?;
        let set = Arc::new(EpollSet::new()?);
        config.socket_options.check()?;
        let lock_mode = DomainLockMode::new(config.thread_mode);
        let resources = DomainResources {
            wait_set: set.clone(),
            lock_mode: lock_mode.of_connections(),
        };
        let domain = transport.open_domain(info, resources, config)?;
        let engine = Arc::new(Engine::new(
            domain,
            set,
            waits,
            model_settings.sends_at_once(),
            driver_kind,
            lock_mode,
            regions.clone(),
        ));
        let loan_allocator = {
            let mut locked = engine.lock();
            if let Some(timeout) = config.progress_timeout {
                locked.domain.arrival_timer.set_timeout(timeout);
            }
            // From now on, the domain of an event loop is armed or its descriptor readable.
            locked.finish();
            locked.transport.loan_allocator()
        };
        if let (Some(allocator), Some(bytes)) = (&loan_allocator, config.loan_limit) {
            allocator.set_limit(bytes);
        }
        if driver_kind == DriverKind::Thread {
            driver::spawn_thread(&engine, format!("fab-{name}"))?;
        }
        engines.add(DomainUpdates::new(&engine));
        Ok(Self {
            engine,
            loan_allocator,
            regions,
            engines,
        })
    }

    /// Returns a handle of an engine without regions.
    #[cfg(all(test, loom))]
    pub(crate) fn for_models(engine: Arc<Engine>) -> Self {
        Self {
            engine,
            loan_allocator: None,
            regions: SharedRegions::default(),
            engines: Arc::default(),
        }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Returns the memory regions of the domain.
    pub(crate) fn regions(&self) -> &SharedRegions {
        &self.regions
    }

    /// Returns all engines of the domain.
    pub(crate) fn engines(&self) -> &DomainEngines {
        &self.engines
    }

    /// Locks the domain for a call that posts or configures.
    ///
    /// # Errors
    /// [`Error::ConcurrentUse`].
    pub(crate) fn lock_or_refuse(&self) -> Result<EngineGuard<'_>> {
        self.engine.lock_or_refuse().ok_or(Error::ConcurrentUse)
    }

    /// Calls `act` as [`with_engine`](Self::with_engine), for a call that posts or configures.
    ///
    /// # Errors
    /// [`Error::ConcurrentUse`], and those of `act`.
    #[inline(always)] // on the small-message path, and results are large
    pub(crate) fn with_engine_or_refuse<T>(
        &self,
        act: impl FnOnce(&mut EngineGuard<'_>) -> Result<T>,
    ) -> Result<T> {
        let Some(mut locked) = self.engine.lock_or_refuse() else {
            return Err(Error::ConcurrentUse);
        };
        let result = act(&mut locked);
        locked.finish();
        result
    }

    /// Calls `act` under the lock, then runs the follow-ups of what it changed. For calls that are
    /// never refused.
    #[inline(always)] // on the small-message path, and results are large
    pub(crate) fn with_engine<T>(&self, act: impl FnOnce(&mut EngineGuard<'_>) -> T) -> T {
        let mut locked = self.engine.lock();
        let result = act(&mut locked);
        locked.finish();
        result
    }

    /// Returns what drives this domain.
    #[must_use]
    pub fn driver_kind(&self) -> DriverKind {
        self.engine.driver_kind
    }

    /// Returns the policy by which this domain waits.
    #[must_use]
    pub fn wait_policy(&self) -> WaitPolicy {
        self.engine.waits.policy()
    }

    /// Returns whether posts of a batch share a doorbell or a system call.
    #[inline]
    #[must_use]
    pub fn defers_in_batches(&self) -> bool {
        !self.engine.sends_at_once
    }

    /// Makes one pass without waiting, and returns whether anything moved. For passive targets of
    /// remote accesses under manual progress, and for programs that drive by hand.
    pub fn progress(&self) -> bool {
        self.engine.progress()
    }

    /// Describes the state of the transport and the engine for diagnostics.
    #[must_use]
    pub fn describe(&self) -> String {
        let locked = self.engine.lock();
        format!(
            "{}, {} operations, {} waiting, {}{}",
            locked.describe_transport(),
            locked.domain.ops.len(),
            locked.domain.deferred.waiting(),
            if locked.armed { "armed, " } else { "" },
            match self.engine.is_in_event_loop() {
                true => "event loop".into(),
                false => format!("driver {:?}", locked.driver),
            },
        )
    }

    /// Returns the counters of the domain and the number of pending operations.
    #[must_use]
    pub fn stats(&self) -> DomainStats {
        let locked = self.engine.lock();
        let mut stats = DomainStats::default();
        stats.polls = self.engine.app_polls.load(Ordering::Relaxed);
        stats.passes = locked.passes;
        (stats.spins_succeeded, stats.spins_timed_out) = locked.spinner.spin_stats();
        stats.parks = locked.parks;
        stats.concurrent_uses = self.concurrent_uses();
        stats.operations = locked.domain.ops.len();
        stats.waiting_tasks = locked.domain.deferred.waiting();
        stats.regions = locked.domain.regions.len();
        stats
    }

    /// Returns [`DomainStats::concurrent_uses`] without locking the domain.
    #[must_use]
    pub fn concurrent_uses(&self) -> u64 {
        let flag = self.engine.lock_mode.use_flag();
        flag.map_or(0, |flag| flag.concurrent_uses())
    }

    /// Returns the allocator of loans, if the transport has memory for them.
    pub(crate) fn loan_allocator(&self) -> Option<&Arc<dyn LoanAllocator>> {
        self.loan_allocator.as_ref()
    }

    /// Copies the bytes of a received loan if the transport has no loans: it could not borrow them.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](fabric_core::Error::OutOfMemory), with the buffer.
    #[inline]
    #[allow(clippy::result_large_err)] // as of every post
    pub(crate) fn copy_unlendable_loan<B: IoBuf>(&self, mut buf: B) -> Result<B, Failed<B>> {
        if self.loan_allocator.is_none()
            && let Err(error) = buf.copy_from_peer()
        {
            return Err(Failed::new(error, buf));
        }
        Ok(buf)
    }

    /// Polls the descriptors, as
    /// [`FastPathResult::SentPollDue`](fabric_core::transport::FastPathResult::SentPollDue)
    /// requires.
    #[cold]
    pub fn poll_fds(&self) {
        self.with_engine(|locked| locked.poll_fds_and_progress());
    }

    /// Drives the domain until the operation has ended.
    #[inline]
    pub fn poll_op(&self, key: OpKey, cx: &mut Context<'_>) -> Poll<CompletedOp<'_>> {
        self.poll_op_locked(self.engine.lock(), key, cx)
    }

    /// Drives the domain until the operation has ended, for a caller that has locked it.
    #[inline]
    pub(crate) fn poll_op_locked<'a>(
        &'a self,
        locked: EngineGuard<'a>,
        key: OpKey,
        cx: &mut Context<'_>,
    ) -> Poll<CompletedOp<'a>> {
        let driven = self.engine.drive_op(locked, key, cx.waker());
        driven.map(|(engine, waker)| CompletedOp {
            engine,
            key,
            _waker: waker,
        })
    }

    /// Returns a handle that wakes the driver of this domain without keeping the domain open.
    #[must_use]
    pub fn waker(&self) -> DomainWaker {
        DomainWaker::new(&self.engine)
    }

    /// Returns a way to update this engine from any thread.
    #[must_use]
    pub fn updates(&self) -> DomainUpdates {
        DomainUpdates::new(&self.engine)
    }

    /// Returns a driver by which a task can drive this domain without keeping it open.
    #[must_use]
    pub fn task_driver(&self) -> TaskDriver {
        TaskDriver::new(&self.engine)
    }
}

impl fmt::Debug for CompletedOp<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletedOp")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for DomainHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The state is behind the lock, which the caller may hold.
        f.debug_struct("DomainHandle")
            .field("waits", &self.engine.waits)
            .field("driver_kind", &self.engine.driver_kind)
            .finish_non_exhaustive()
    }
}
