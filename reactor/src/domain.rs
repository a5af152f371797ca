//! A domain as the async face sees it: opened, asked how it is, polled. What is done with its
//! objects, and what is posted, is with its subject.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use fabric_core::buf::{BufferPool, IoBuf, Loan};
use fabric_core::completion::{Done, Failed};
use fabric_core::info::{Info, Progress};
use fabric_core::stats::DomainStats;
use fabric_core::transport::{LoanAllocator, OpKey, SocketIo, Transport};
use fabric_core::{Result, SocketOptions};

use crate::domain_state::DomainState;
use crate::driver::{self, TaskDriver};
use crate::engine::{Engine, EngineGuard};
use crate::ops::OpResult;
use crate::wait::{EpollSet, WaitPolicy};

/// An operation that has ended; nobody else gets at its domain until its result is taken.
#[must_use = "the result is still in its slot"]
pub struct CompletedOp<'a> {
    engine: EngineGuard<'a>,
    key: OpKey,
}

impl CompletedOp<'_> {
    /// The result.
    ///
    /// # Errors
    /// The failure of the operation.
    ///
    /// # Panics
    /// When the buffer that was posted is not of type `B`.
    #[inline(always)] // on the way of a small message, and its result is large
    pub fn take<B: IoBuf>(mut self) -> Result<Done<B>, Failed<B>> {
        let (buf, transfer, error) = self.engine.domain.take_typed_result(self.key);
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

/// An open domain: a provider's data path, the objects on it, and what makes them move.
///
/// Cheap to clone; the last clone closes it.
#[derive(Clone)]
pub struct DomainHandle {
    engine: Arc<Engine>,
    pool: Arc<BufferPool>,
    loan_allocator: Option<Arc<dyn LoanAllocator>>,
}

impl DomainHandle {
    /// Opens a domain on a provider, and its driver thread if progress is automatic.
    ///
    /// # Errors
    /// What the provider or the operating system refuses.
    pub fn open(
        provider: &dyn Transport,
        info: &Info,
        policy: WaitPolicy,
        name: &str,
    ) -> Result<Self> {
        let set = Arc::new(EpollSet::new()?);
        let domain = provider.open_domain(info, set.clone())?;
        let progress = info.domain.data_progress;
        let engine = Arc::new(Engine::new(domain, set, policy, progress));
        let (pool, lender) = {
            let locked = engine.lock();
            (
                locked.domain.pool.clone(),
                locked.transport.loan_allocator(),
            )
        };
        if progress == Progress::Auto {
            driver::spawn_thread(&engine, format!("fab-{name}"))?;
        }
        Ok(Self {
            engine,
            pool,
            loan_allocator: lender,
        })
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Does something under the lock, and then what that has made possible for others.
    #[inline(always)] // on the way of a small message, and what comes back is large
    pub(crate) fn with_engine<T>(&self, act: impl FnOnce(&mut EngineGuard<'_>) -> T) -> T {
        let mut locked = self.engine.lock();
        let done = act(&mut locked);
        locked.finish();
        done
    }

    /// Messages of at least this many bytes are copied once, where the provider can. To be said
    /// before endpoints are opened.
    pub fn set_single_copy_threshold(&self, len: usize) {
        self.engine.lock().transport.set_single_copy_threshold(len);
    }

    /// How sockets are waited for. To be said before endpoints are opened.
    ///
    /// # Errors
    /// The kernel refuses what was asked for by name.
    pub fn set_socket_io(&self, io: SocketIo) -> Result<()> {
        self.engine.lock().transport.set_socket_io(io)
    }

    /// What is set on sockets. To be said before endpoints are opened.
    ///
    /// # Errors
    /// What cannot be set, or the kernel does not have.
    pub fn set_socket_options(&self, options: &SocketOptions) -> Result<()> {
        self.engine.lock().transport.set_socket_options(options)
    }

    /// The pool that received messages without a buffer of their own come from.
    #[must_use]
    pub fn pool(&self) -> &Arc<BufferPool> {
        &self.pool
    }

    /// How this domain waits.
    #[must_use]
    pub fn wait_policy(&self) -> WaitPolicy {
        self.engine.policy
    }

    /// Makes one pass without waiting; true when something moved. For whoever is a passive target
    /// under manual progress, or wants to drive by hand.
    pub fn progress(&self) -> bool {
        self.engine.progress()
    }

    /// A few words on the provider's state.
    #[must_use]
    pub fn describe(&self) -> String {
        let locked = self.engine.lock();
        format!(
            "{}, {} operations, {} waiting, {}{:?}",
            locked.transport.describe(),
            locked.domain.ops.len(),
            locked.domain.waiters,
            if locked.armed {
                "armed, driver "
            } else {
                "driver "
            },
            locked.driver,
        )
    }

    /// What the domain has done, and has under way.
    #[must_use]
    pub fn stats(&self) -> DomainStats {
        let locked = self.engine.lock();
        let mut stats = DomainStats::default();
        stats.polls = self.engine.app_polls.load(Ordering::Relaxed);
        stats.passes = locked.passes();
        (stats.spins_succeeded, stats.spins_timed_out) = locked.spinner.spin_stats();
        stats.parks = locked.parks;
        stats.operations = locked.domain.ops.len();
        stats.waiting_tasks = locked.domain.waiters;
        stats.regions = locked.domain.regions.len();
        stats
    }

    /// Memory to be written and lent.
    ///
    /// # Errors
    /// [`Error::WouldBlock`](fabric_core::Error::Again) when peers have too much; what the operating
    /// system refuses.
    pub fn alloc_loan(&self, len: usize) -> Result<Loan> {
        let Some(lender) = &self.loan_allocator else {
            return Loan::from_heap(len);
        };
        if let Some(loan) = lender.take_free(len) {
            return Ok(loan);
        }
        self.engine.lock().transport.collect_loans();
        lender
            .take_free(len)
            .map_or_else(|| lender.allocate(len), Ok)
    }

    /// Looks at the descriptors, as [`FastPathResult::SentPollDue`](fabric_core::transport::AtOnce::Due) says.
    #[cold]
    pub fn poll_fds(&self) {
        self.with_engine(|locked| locked.poll_fds_and_disarm());
    }

    /// Drives until the operation has ended.
    #[inline]
    pub fn poll_op(&self, key: OpKey, cx: &mut Context<'_>) -> Poll<CompletedOp<'_>> {
        let is_done = |hub: &mut DomainState| hub.ops.is_done(key);
        let driven = self.engine.drive(cx.waker(), is_done, |hub, waker| {
            hub.register_op_waker(key, waker)
        });
        driven.map(|locked| CompletedOp {
            engine: locked,
            key,
        })
    }

    /// Likewise, and takes what it has come to.
    pub(crate) fn poll_op_result(&self, key: OpKey, cx: &mut Context<'_>) -> Poll<OpResult> {
        self.engine.poll(
            cx.waker(),
            |hub| hub.take_op_result(key),
            |hub, waker| hub.register_op_waker(key, waker),
        )
    }

    /// A handle by which a task can drive this domain without keeping it open.
    #[must_use]
    pub fn task_driver(&self) -> TaskDriver {
        TaskDriver::new(&self.engine)
    }
}
