//! Event queues as streams.
//!
//! An [`EqState`] of the engine has the events. [`EventQueueInner`] also knows the domains that
//! report to the queue, because a task that waits for events makes progress in these domains.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, ready};

use fabric_core::event::Event;
use fabric_core::tree::{Class, ObjectNode};
use fabric_core::{Error, Result};
use fabric_reactor::{EqState, WaitFd, WaitObject};
use futures_core::Stream;
use tokio::task::coop;

use crate::close::{CloseError, close_object};
use crate::domain_inner::DomainInner;
use crate::fabric::Fabric;
use crate::try_wait::{LazyWaitObject, TryWait};

/// An event queue (`fid_eq`): a stream of events of domains and endpoints that belong to no posted
/// operation.
///
/// Bind a queue to a domain with [`Domain::bind_eq`](crate::Domain::bind_eq), or to one endpoint
/// with [`EndpointBuilder::bind_eq`](crate::EndpointBuilder::bind_eq). Events beyond the queue's
/// capacity are counted and reported as [`EventKind::Overrun`](crate::EventKind::Overrun); see
/// [`guide::backpressure`](crate::guide::backpressure) for how to continue after that.
///
/// [`read`](Self::read) and the stream return the events one by one. The stream never ends.
///
/// # Cancel safety
/// Dropping a pending [`read`](Self::read) or `next` of the stream loses no event.
#[doc(alias = "fid_eq")]
pub struct EventQueue {
    pub(crate) inner: Arc<EventQueueInner>,
    /// Whether the last [`try_read`](Self::try_read) has found no event.
    last_was_empty: bool,
}

pub(crate) struct EventQueueInner {
    pub(crate) node: Arc<ObjectNode>,
    pub(crate) state: Arc<EqState>,
    /// Domains that report to this queue. A task that waits for events drives them.
    domains: Mutex<Vec<Weak<DomainInner>>>,
    wait: LazyWaitObject,
    /// Domains that make the descriptor readable.
    watched: Mutex<Vec<Weak<DomainInner>>>,
    _fabric: Fabric,
}

impl EventQueue {
    pub(crate) fn open(fabric: &Fabric, capacity: usize, context: u64) -> Result<Self> {
        if capacity == 0 {
            return Err(Error::Invalid {
                what: "event queue capacity",
                why: "0 events; the smallest is 1".into(),
            });
        }
        let node = ObjectNode::new(Class::EventQueue, Some(fabric.inner.node.clone()));
        let state = Arc::new(EqState::new(capacity, node.id(), context));
        node.attach_to_parent()?;
        Ok(Self {
            last_was_empty: false,
            inner: Arc::new(EventQueueInner {
                node,
                state,
                domains: Mutex::default(),
                wait: LazyWaitObject::default(),
                watched: Mutex::default(),
                _fabric: fabric.clone(),
            }),
        })
    }

    /// Returns the next event if there is one (`fi_eq_read`).
    ///
    /// If there is none, and the last call has found none, the call makes progress once in those
    /// domains that report to this queue and have manual data progress, and looks again. So a loop
    /// that reads until there is no event ends, also while peers cause events all the time.
    #[doc(alias = "fi_eq_read")]
    pub fn try_read(&mut self) -> Option<Event> {
        let mut event = self.inner.state.pop();
        if event.is_none() && self.last_was_empty {
            for domain in self.inner.domains() {
                domain.engine.progress_if_manual();
            }
            event = self.inner.state.pop();
        }
        self.last_was_empty = event.is_none();
        event
    }

    /// Waits for the next event and returns it (`fi_eq_sread`).
    ///
    /// # Cancel safety
    /// Safe: no event is lost.
    #[doc(alias = "fi_eq_sread")]
    pub async fn read(&mut self) -> Event {
        /// Unregisters the waker of a reader that stops waiting.
        struct UnregisterOnDrop(Arc<EqState>);
        impl Drop for UnregisterOnDrop {
            fn drop(&mut self) {
                self.0.unregister_waker();
            }
        }
        let _unregister = UnregisterOnDrop(self.inner.state.clone());
        std::future::poll_fn(|cx| self.poll_event(cx)).await
    }

    /// Returns the queue's descriptor for an event loop (`FI_GETWAIT`): the same at each call.
    ///
    /// The first call opens two descriptors. Block on the descriptor only after
    /// [`prepare_wait`](Self::prepare_wait).
    ///
    /// # Errors
    /// [`Error::Os`] when the process is out of descriptors.
    #[doc(alias = "FI_GETWAIT")]
    pub fn wait_fd(&self) -> Result<WaitFd> {
        self.inner.wait.get_or_open(None).map(WaitObject::fd)
    }

    /// Makes progress once in the domains that report to this queue, and returns whether the
    /// program may block on the [descriptor](Self::wait_fd) (`fi_trywait(3)`).
    ///
    /// After [`TryWait::Block`] the next event makes the descriptor readable, and so does binding a
    /// further domain. In other respects as
    /// [`CompletionQueue::prepare_wait`](crate::CompletionQueue::prepare_wait).
    ///
    /// # Errors
    /// [`Error::Os`] when the process is out of descriptors; possible only at the first call, and
    /// at the first call after another domain was bound.
    #[doc(alias = "fi_trywait")]
    pub fn prepare_wait(&mut self) -> Result<TryWait> {
        self.inner.prepare_wait().map(TryWait::from_may_block)
    }

    /// Returns the id of the queue, unique among the objects of this process.
    #[must_use]
    #[doc(alias = "fid")]
    pub fn id(&self) -> u64 {
        self.inner.node.id()
    }

    /// Returns the context value of the queue's own events, set with
    /// [`Fabric::event_queue_with_context`].
    #[must_use]
    pub fn context(&self) -> u64 {
        self.inner.state.context()
    }

    /// Closes the queue (`fi_close`). Events in the queue are lost.
    ///
    /// # Errors
    /// [`Error::Busy`] while the queue is bound to domains, endpoints or passive endpoints.
    #[doc(alias = "fi_close")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        close_object(self, |eq| &eq.inner.node).map(drop)
    }

    /// Returns the next event, or registers the waker and makes progress in the queue's domains.
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        let budget = ready!(coop::poll_proceed(cx));
        let mut event = self.inner.state.pop_or_register(cx.waker());
        if event.is_none() {
            let mut stay_runnable = false;
            for domain in self.inner.domains() {
                stay_runnable |= domain.engine.progress_before_wait();
            }
            event = self.inner.state.pop();
            if event.is_none() && stay_runnable {
                cx.waker().wake_by_ref();
            }
        }
        match event {
            Some(event) => {
                budget.made_progress();
                Poll::Ready(event)
            }
            None => Poll::Pending,
        }
    }
}

impl EventQueueInner {
    /// Registers a domain as a source of events.
    pub(crate) fn attach_domain(&self, domain: &Arc<DomainInner>) {
        domain.engine.register_eq(&self.state);
        let mut domains = self.domains.lock().unwrap_or_else(PoisonError::into_inner);
        domains.retain(|known| known.strong_count() > 0);
        domains.push(Arc::downgrade(domain));
        drop(domains);
        // A thread that blocks on the descriptor does not watch this domain yet.
        if let Some(wait) = self.wait.get() {
            wait.waker().wake();
        }
    }

    /// Makes progress once in each domain, and returns whether the reader may block on the
    /// descriptor.
    fn prepare_wait(&self) -> Result<bool> {
        let wait = self.wait.get_or_open(None)?;
        // The descriptor is reset before the list is read: `attach_domain` adds to the list and
        // then wakes. A domain that is not in the list read here is added later, and its wake-up
        // comes after the reset, so the descriptor is readable.
        wait.reset();
        let domains = self.domains();
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.retain(|known| known.strong_count() > 0);
        for domain in &domains {
            let known = Arc::downgrade(domain);
            if !watched.iter().any(|watched| watched.ptr_eq(&known)) {
                wait.watch(&domain.engine)?;
                watched.push(known);
            }
        }
        drop(watched);
        if !self.state.register_if_empty(&wait.waker()) {
            return Ok(false);
        }
        // Every domain is prepared, also when an earlier one must not block. A pass that reports an
        // event wakes the registered waker: the descriptor is readable then.
        let may_block = domains.iter().fold(true, |may_block, domain| {
            domain.engine.prepare_wait() & may_block
        });
        Ok(may_block && self.state.is_empty())
    }

    /// Returns the open domains that report to this queue.
    fn domains(&self) -> Vec<Arc<DomainInner>> {
        let domains = self.domains.lock().unwrap_or_else(PoisonError::into_inner);
        domains.iter().filter_map(Weak::upgrade).collect()
    }
}

impl Stream for EventQueue {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.poll_event(cx).map(Some)
    }
}

impl Drop for EventQueueInner {
    fn drop(&mut self) {
        self.node.detach_from_parent();
    }
}

impl fmt::Debug for EventQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventQueue")
            .field("id", &self.inner.node.id())
            .finish_non_exhaustive()
    }
}
