//! Counters of completed and failed operations.

use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, ready};

use fabric_core::flags::{Caps, CounterBind};
use fabric_core::tree::{Class, DependencyGuard, ObjectNode};
use fabric_core::{Error, Result};
use fabric_reactor::{CounterBindings, CounterId, WaitFd, WaitObject};
use tokio::task::coop;

use crate::close::{CloseError, close_object, dependency_on};
use crate::domain::Domain;
use crate::domain_inner::DomainInner;
use crate::thread_model::{Shared, ThreadModel};
use crate::try_wait::{LazyWaitObject, TryWait};

/// A counter (`fid_cntr`): the number of operations that succeeded and of those that failed.
///
/// Bind a counter to an endpoint with
/// [`EndpointBuilder::bind_counter`](crate::EndpointBuilder::bind_counter), or to a region with
/// [`MemoryRegion::bind_counter`](crate::MemoryRegion::bind_counter). Operations are counted in
/// addition to their completion by future or queue. Cheap to clone.
#[derive(Clone)]
#[doc(alias = "fid_cntr")]
pub struct Counter<M: ThreadModel = Shared> {
    pub(crate) inner: Arc<CounterInner>,
    model: PhantomData<M>,
}

pub(crate) struct CounterInner {
    pub(crate) node: Arc<ObjectNode>,
    pub(crate) id: CounterId,
    pub(crate) domain: Arc<DomainInner>,
    wait: LazyWaitObject,
    /// The id of the descriptor's waker in the engine, while it is registered.
    waiter: Mutex<Option<u64>>,
}

impl<M: ThreadModel> Counter<M> {
    pub(crate) fn open(domain: &Domain<M>) -> Result<Self> {
        domain.inner.node.check_room(Class::Counter)?;
        let node = ObjectNode::new(Class::Counter, Some(domain.inner.node.clone()));
        let inner = CounterInner {
            node,
            id: domain.inner.engine.open_counter()?,
            domain: domain.inner.clone(),
            wait: LazyWaitObject::default(),
            waiter: Mutex::new(None),
        };
        inner.node.attach_to_parent()?;
        Ok(Self {
            inner: Arc::new(inner),
            model: PhantomData,
        })
    }

    /// Returns the value: the number of operations that succeeded, plus what [`add`](Self::add)
    /// added (`fi_cntr_read`). 0 after the counter was closed.
    ///
    /// With manual data progress, reading a counter makes progress once in the domain.
    #[doc(alias = "fi_cntr_read")]
    #[must_use]
    pub fn value(&self) -> u64 {
        self.inner.read().0
    }

    /// Returns the error value: the number of operations that failed, plus what
    /// [`add_errors`](Self::add_errors) added (`fi_cntr_readerr`). 0 after the counter was closed.
    ///
    /// With manual data progress, reading a counter makes progress once in the domain.
    #[doc(alias = "fi_cntr_readerr")]
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.inner.read().1
    }

    /// Adds to the value (`fi_cntr_add`).
    #[doc(alias = "fi_cntr_add")]
    pub fn add(&self, count: u64) {
        self.inner
            .domain
            .engine
            .add_to_counter(self.inner.id, count, 0);
    }

    /// Adds to the error value (`fi_cntr_adderr`). A pending [`wait`](Self::wait) fails then.
    #[doc(alias = "fi_cntr_adderr")]
    pub fn add_errors(&self, count: u64) {
        self.inner
            .domain
            .engine
            .add_to_counter(self.inner.id, 0, count);
    }

    /// Waits until the value is at least `threshold`, and returns it (`fi_cntr_wait`).
    ///
    /// Errors that were counted before the first poll do not end the wait: if an operation has
    /// failed already, the value may never reach `threshold`. Compare [`errors`](Self::errors) with
    /// the number that you have seen before you wait.
    ///
    /// # Errors
    /// [`Error::CounterError`], with both values, as soon as the error value increases during the
    /// wait; [`Error::Closed`] when the counter is closed, before or during the wait.
    ///
    /// # Cancel safety
    /// Safe: the wait changes nothing.
    #[doc(alias = "fi_cntr_wait")]
    pub async fn wait(&self, threshold: u64) -> Result<u64> {
        let (_, errors_before) = self.inner.domain.engine.read_counter(self.inner.id);
        let mut waiter = CounterWaitGuard {
            counter: &self.inner,
            id: None,
        };
        let counts = poll_fn(|cx| {
            let budget = ready!(coop::poll_proceed(cx));
            let (engine, id) = (&self.inner.domain.engine, self.inner.id);
            let counts =
                ready!(engine.poll_counter(id, &mut waiter.id, threshold, errors_before, cx));
            budget.made_progress();
            Poll::Ready(counts)
        })
        .await;
        match counts {
            None => Err(Error::Closed(Class::Counter)),
            Some((value, _)) if value >= threshold => Ok(value),
            Some((value, errors)) => Err(Error::CounterError {
                value,
                threshold,
                errors,
            }),
        }
    }

    /// Returns the counter's descriptor for an event loop (`FI_GETWAIT`): the same at each call and
    /// for all clones. Only one thread at a time may wait on the descriptor.
    ///
    /// The first call opens two descriptors. Block on the descriptor only after
    /// [`prepare_wait`](Self::prepare_wait).
    ///
    /// # Errors
    /// [`Error::Os`] when the process is out of descriptors.
    #[doc(alias = "FI_GETWAIT")]
    pub fn wait_fd(&self) -> Result<WaitFd> {
        let CounterInner { domain, wait, .. } = &*self.inner;
        wait.get_or_open(Some(&domain.engine)).map(WaitObject::fd)
    }

    /// Makes progress once, and returns whether the program may block on the
    /// [descriptor](Self::wait_fd) (`fi_trywait(3)`). `value` and `errors` are what the program has
    /// read before.
    ///
    /// The result is [`TryWait::Poll`] when the counter has other values. After
    /// [`TryWait::Block`] the next change makes the descriptor readable. In other respects as
    /// [`CompletionQueue::prepare_wait`](crate::CompletionQueue::prepare_wait).
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::Os`] when the process is out of descriptors, possible only at
    /// the first call.
    #[doc(alias = "fi_trywait")]
    pub fn prepare_wait(&self, value: u64, errors: u64) -> Result<TryWait> {
        self.inner.node.check_open()?;
        let (engine, id) = (&self.inner.domain.engine, self.inner.id);
        let wait = self.inner.wait.get_or_open(Some(engine))?;
        let lock_waiter = || {
            let waiter = self.inner.waiter.lock();
            waiter.unwrap_or_else(PoisonError::into_inner)
        };
        let mut waiter = *lock_waiter();
        // The lock is not held during the pass, which runs wakers that may use this counter.
        let may_block = engine.prepare_counter_wait(id, (value, errors), &mut waiter, wait);
        *lock_waiter() = waiter;
        Ok(TryWait::from_may_block(may_block))
    }

    /// Closes the counter, for all its clones (`fi_close`): pending waits fail with
    /// [`Error::Closed`].
    ///
    /// # Errors
    /// [`Error::Busy`] while the counter is bound to endpoints, shared receive contexts or regions;
    /// [`Error::Closed`] when the counter was closed before.
    #[doc(alias = "fi_close")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        let counter = close_object(self, |counter| &counter.inner.node)?;
        counter.inner.domain.engine.close_counter(counter.inner.id);
        Ok(())
    }
}

/// A counter that is bound to a region, and the guard that keeps it open.
pub(crate) type BoundCounter = (Arc<CounterInner>, DependencyGuard);

impl CounterInner {
    /// Makes progress once if data progress is manual, and returns the value and the error value.
    fn read(&self) -> (u64, u64) {
        self.domain.engine.progress_if_manual();
        self.domain.engine.read_counter(self.id)
    }

    /// Binds the counter to the region with this key: it counts remote accesses of the kinds `what`
    /// from now on.
    pub(crate) fn bind_to_region(
        self: &Arc<Self>,
        domain: &DomainInner,
        key: u64,
        what: CounterBind,
    ) -> Result<BoundCounter> {
        let remote = CounterBind::REMOTE_READ | CounterBind::REMOTE_WRITE;
        if what.is_empty() || !remote.contains(what) {
            return Err(Error::BadFlags {
                what: "counter of a region",
                flags: format!("{what:?}, not REMOTE_READ, REMOTE_WRITE or both"),
            });
        }
        if !domain.info.caps.contains(Caps::RMA_EVENT) {
            return Err(Error::NotSupported(
                "counters of remote accesses (the domain has no FI_RMA_EVENT)",
            ));
        }
        let guard = dependency_on(&self.node, &domain.node, Class::MemoryRegion)?;
        let bound_id = |kind| what.contains(kind).then_some(self.id);
        let counters = CounterBindings {
            remote_read: bound_id(CounterBind::REMOTE_READ),
            remote_write: bound_id(CounterBind::REMOTE_WRITE),
            ..CounterBindings::default()
        };
        domain.engine.bind_region_counters(key, counters)?;
        Ok((self.clone(), guard))
    }
}

/// A wait for a counter. Dropping this unregisters its waker.
struct CounterWaitGuard<'a> {
    counter: &'a CounterInner,
    /// The id of the waker in the engine, while it is registered.
    id: Option<u64>,
}

impl Drop for CounterWaitGuard<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.counter
                .domain
                .engine
                .remove_counter_waiter(self.counter.id, id);
        }
    }
}

impl Drop for CounterInner {
    fn drop(&mut self) {
        self.domain.engine.close_counter(self.id);
        self.node.detach_from_parent();
    }
}

impl<M: ThreadModel> fmt::Debug for Counter<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, errors) = self.inner.domain.engine.read_counter(self.inner.id);
        f.debug_struct("Counter")
            .field("id", &self.inner.node.id())
            .field("value", &value)
            .field("errors", &errors)
            .finish()
    }
}
