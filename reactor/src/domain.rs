//! A domain as the async face sees it: opened, asked how it is, polled. What is done with its
//! objects, and what is posted, is with its subject.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use fabric_core::buf::{IoBuf, Loan, Pool};
use fabric_core::completion::{Done, Failed};
use fabric_core::info::{Info, Progress};
use fabric_core::provider::{Lender, OpKey, Provider, SocketIo};
use fabric_core::stats::DomainStats;
use fabric_core::{Result, SocketOptions};

use crate::driver::{self, TaskDriver};
use crate::engine::{Engine, Locked};
use crate::hub::Hub;
use crate::ops::Ended;
use crate::wait::{PollSet, WaitPolicy};

/// An operation that has ended; nobody else gets at its domain until its result is taken.
#[must_use = "the result is still in its slot"]
pub struct Finished<'a> {
    locked: Locked<'a>,
    key: OpKey,
}

impl Finished<'_> {
    /// The result.
    ///
    /// # Errors
    /// The failure of the operation.
    ///
    /// # Panics
    /// When the buffer that was posted is not of type `B`.
    #[inline(always)] // on the way of a small message, and its result is large
    pub fn take<B: IoBuf>(mut self) -> Result<Done<B>, Failed<B>> {
        let (buf, transfer, error) = self.locked.hub.take_result(self.key);
        self.locked.leave();
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
pub struct Domain {
    engine: Arc<Engine>,
    pool: Arc<Pool>,
    lender: Option<Arc<dyn Lender>>,
}

impl Domain {
    /// Opens a domain on a provider, and its driver thread if progress is automatic.
    ///
    /// # Errors
    /// What the provider or the operating system refuses.
    pub fn open(
        provider: &dyn Provider,
        info: &Info,
        policy: WaitPolicy,
        name: &str,
    ) -> Result<Self> {
        let set = Arc::new(PollSet::new()?);
        let domain = provider.open_domain(info, set.clone())?;
        let progress = info.domain.data_progress;
        let engine = Arc::new(Engine::new(domain, set, policy, progress));
        let (pool, lender) = {
            let locked = engine.lock();
            (locked.hub.pool.clone(), locked.provider.lender())
        };
        if progress == Progress::Auto {
            driver::spawn(&engine, format!("fab-{name}"))?;
        }
        Ok(Self {
            engine,
            pool,
            lender,
        })
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Does something under the lock, and then what that has made possible for others.
    #[inline(always)] // on the way of a small message, and what comes back is large
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut Locked<'_>) -> T) -> T {
        let mut locked = self.engine.lock();
        let done = act(&mut locked);
        locked.finish();
        done
    }

    /// Messages of at least this many bytes are copied once, where the provider can. To be said
    /// before endpoints are opened.
    pub fn single_copy_from(&self, len: usize) {
        self.engine.lock().provider.single_copy_from(len);
    }

    /// How sockets are waited for. To be said before endpoints are opened.
    ///
    /// # Errors
    /// The kernel refuses what was asked for by name.
    pub fn socket_io(&self, io: SocketIo) -> Result<()> {
        self.engine.lock().provider.socket_io(io)
    }

    /// What is set on sockets. To be said before endpoints are opened.
    ///
    /// # Errors
    /// What cannot be set, or the kernel does not have.
    pub fn socket_options(&self, options: &SocketOptions) -> Result<()> {
        self.engine.lock().provider.socket_options(options)
    }

    /// The pool that received messages without a buffer of their own come from.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// How this domain waits.
    #[must_use]
    pub fn policy(&self) -> WaitPolicy {
        self.engine.policy
    }

    /// Makes one pass without waiting; true when something moved. For whoever is a passive target
    /// under manual progress, or wants to drive by hand.
    pub fn progress(&self) -> bool {
        self.engine.pass()
    }

    /// A few words on the provider's state.
    #[must_use]
    pub fn describe(&self) -> String {
        let locked = self.engine.lock();
        format!(
            "{}, {} operations, {} waiting, {}{:?}",
            locked.provider.describe(),
            locked.hub.ops.len(),
            locked.hub.waiters,
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
        stats.polls = self.engine.polls.load(Ordering::Relaxed);
        stats.passes = locked.passes();
        (stats.spins_paid, stats.spins_lost) = locked.spinner.paid_and_lost();
        stats.parks = locked.parks;
        stats.operations = locked.hub.ops.len();
        stats.waiting = locked.hub.waiters;
        stats.regions = locked.hub.regions.len();
        stats
    }

    /// Memory to be written and lent.
    ///
    /// # Errors
    /// [`Error::Again`](fabric_core::Error::Again) when peers have too much; what the operating
    /// system refuses.
    pub fn loan(&self, len: usize) -> Result<Loan> {
        let Some(lender) = &self.lender else {
            return Loan::copied(len);
        };
        if let Some(loan) = lender.reuse(len) {
            return Ok(loan);
        }
        self.engine.lock().provider.collect_loans();
        lender.reuse(len).map_or_else(|| lender.grow(len), Ok)
    }

    /// Looks at the descriptors, as [`AtOnce::Due`](fabric_core::provider::AtOnce::Due) says.
    #[cold]
    pub fn look(&self) {
        self.with(|locked| locked.look_up());
    }

    /// Drives until the operation has ended.
    #[inline]
    pub fn poll_op(&self, key: OpKey, cx: &mut Context<'_>) -> Poll<Finished<'_>> {
        let is_done = |hub: &mut Hub| hub.ops.is_done(key);
        let driven = self
            .engine
            .drive(cx.waker(), is_done, |hub, waker| hub.register(key, waker));
        driven.map(|locked| Finished { locked, key })
    }

    /// Likewise, and takes what it has come to.
    pub(crate) fn poll_ended(&self, key: OpKey, cx: &mut Context<'_>) -> Poll<Ended> {
        self.engine.poll(
            cx.waker(),
            |hub| hub.take_done(key),
            |hub, waker| hub.register(key, waker),
        )
    }

    /// A handle by which a task can drive this domain without keeping it open.
    #[must_use]
    pub fn driver(&self) -> TaskDriver {
        TaskDriver::new(&self.engine)
    }
}
