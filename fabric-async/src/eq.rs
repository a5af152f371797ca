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
use fabric_reactor::{DomainWaker, EqState, WaitFd, WaitObject};
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
/// [`read`](Self::read) and the stream return the events one by one. The stream never ends. A
/// [`writer`](Self::writer) adds events of the program.
///
/// Closing an object, or dropping its last handle, removes its events from the queue: those of an
/// endpoint, passive endpoint (its connection requests), shared receive context, memory region or
/// domain. These events stay: [`PeerDown`](crate::EventKind::PeerDown) of another endpoint in this
/// process, [`Overrun`](crate::EventKind::Overrun), [`User`](crate::EventKind::User), and
/// [`ConnectFailed`](crate::EventKind::ConnectFailed), whose endpoint had no handle.
///
/// # Cancel safety
/// Dropping a pending [`read`](Self::read), [`peek`](Self::peek) or `next` of the stream loses no
/// event.
#[doc(alias = "fid_eq")]
pub struct EventQueue {
    pub(crate) inner: Arc<EventQueueInner>,
    /// Tells writers whether the queue has a reader.
    reader: Arc<()>,
    /// Whether the last [`try_read`](Self::try_read) has found no event.
    last_was_empty: bool,
}

/// Writes events of the program to an [`EventQueue`] (`fi_eq_write`), from [`EventQueue::writer`].
///
/// Cheap to clone. A writer does not keep the queue open.
#[derive(Clone)]
pub struct EventWriter {
    state: Arc<EqState>,
    /// The queue's handle.
    reader: Weak<()>,
}

impl EventWriter {
    /// Appends an event behind those in the queue (`fi_eq_write`), and wakes the reader, which gets
    /// an [`EventKind::User`](crate::EventKind::User) with this context and data.
    ///
    /// The queue holds as many written events as its capacity, beside other events: neither kind
    /// takes the room of the other.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::{EventKind, Fabric, Hints, discover};
    /// let info = discover(&Hints::new().provider("shm"))?.swap_remove(0);
    /// let mut eq = Fabric::open(&info)?.event_queue(16)?;
    /// let writer = eq.writer();
    /// std::thread::spawn(move || writer.write(7, "stop"));
    /// let event = eq.read().await;
    /// assert_eq!((event.object_id, event.context), (eq.id(), 7));
    /// assert_eq!(event.kind, EventKind::User { data: b"stop".to_vec() });
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::WouldBlock`] with [`Resource::EventEntry`](crate::Resource::EventEntry) when the
    /// queue is full of written events; [`Error::Closed`] when the queue was closed or dropped.
    #[doc(alias = "fi_eq_write")]
    pub fn write(&self, context: u64, data: impl Into<Vec<u8>>) -> Result<()> {
        if self.reader.strong_count() == 0 {
            return Err(Error::Closed(Class::EventQueue));
        }
        self.state.write(context, data.into())
    }
}

impl fmt::Debug for EventWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventWriter").finish_non_exhaustive()
    }
}

pub(crate) struct EventQueueInner {
    pub(crate) node: Arc<ObjectNode>,
    pub(crate) state: Arc<EqState>,
    /// Domains that report to this queue. A task that waits for events drives them.
    domains: Mutex<Vec<EventSource>>,
    wait: LazyWaitObject,
    /// Domains that make the descriptor readable.
    watched: Mutex<Vec<Weak<DomainInner>>>,
    _fabric: Fabric,
}

/// A domain that reports to an event queue.
struct EventSource {
    domain: Weak<DomainInner>,
    waker: DomainWaker,
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
            reader: Arc::default(),
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
    /// The second of two calls that find no event makes progress once in those domains that report
    /// to this queue and have manual data progress, and looks again. So a loop that reads until
    /// there is no event ends, also while peers cause events all the time.
    #[doc(alias = "fi_eq_read")]
    pub fn try_read(&mut self) -> Option<Event> {
        self.try_next(EqState::pop)
    }

    /// Returns a copy of the next event if there is one (`fi_eq_read` with `FI_PEEK`). The event
    /// stays in the queue. In other respects as [`try_read`](Self::try_read).
    #[doc(alias = "FI_PEEK")]
    pub fn try_peek(&mut self) -> Option<Event> {
        self.try_next(EqState::peek)
    }

    /// Returns the event that `next` finds in the queue, if need be after making progress.
    fn try_next(&mut self, next: fn(&EqState) -> Option<Event>) -> Option<Event> {
        let mut event = next(&self.inner.state);
        if event.is_none() && self.last_was_empty {
            for domain in self.inner.domains() {
                domain.engine.progress_if_manual();
            }
            event = next(&self.inner.state);
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
        self.wait_next(EqState::pop).await
    }

    /// Waits for the next event and returns a copy (`fi_eq_sread` with `FI_PEEK`). The event stays
    /// in the queue.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::Endpoint;
    /// let (ep, other) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
    /// let mut events = ep.take_events().expect("the first call gets the queue");
    /// other.add_peer(ep.name()).await?;
    /// let event = events.peek().await;
    /// assert_eq!(events.try_read(), Some(event));
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    /// Safe: no event is lost.
    #[doc(alias = "FI_PEEK")]
    pub async fn peek(&mut self) -> Event {
        self.wait_next(EqState::peek).await
    }

    /// Waits for the event that `next` finds in the queue.
    async fn wait_next(&mut self, next: fn(&EqState) -> Option<Event>) -> Event {
        /// Unregisters the waker of a reader that stops waiting.
        struct UnregisterOnDrop(Arc<EqState>);
        impl Drop for UnregisterOnDrop {
            fn drop(&mut self) {
                self.0.unregister_waker();
            }
        }
        let _unregister = UnregisterOnDrop(self.inner.state.clone());
        std::future::poll_fn(|cx| self.poll_event(next, cx)).await
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

    /// Returns a writer of events of the program (`fi_eq_write`). `FI_WRITE` at the opening of the
    /// queue is not needed.
    #[must_use]
    #[doc(alias = "fi_eq_write")]
    pub fn writer(&self) -> EventWriter {
        EventWriter {
            state: self.inner.state.clone(),
            reader: Arc::downgrade(&self.reader),
        }
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

    /// Returns the event that `next` finds in the queue, or registers the waker and makes progress
    /// in the queue's domains.
    fn poll_event(
        &mut self,
        next: fn(&EqState) -> Option<Event>,
        cx: &mut Context<'_>,
    ) -> Poll<Event> {
        let budget = ready!(coop::poll_proceed(cx));
        self.inner.state.register_if_empty(cx.waker());
        let mut event = next(&self.inner.state);
        if event.is_none() {
            let mut stay_runnable = false;
            for domain in self.inner.domains() {
                stay_runnable |= domain.engine.progress_before_wait();
            }
            event = next(&self.inner.state);
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
        domains.retain(|known| known.domain.strong_count() > 0);
        domains.push(EventSource {
            domain: Arc::downgrade(domain),
            waker: domain.engine.waker(),
        });
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

    /// Returns the open domains that report to this queue and that this thread may drive. Wakes the
    /// drivers of the others, which belong to other threads.
    fn domains(&self) -> Vec<Arc<DomainInner>> {
        let sources = self.domains.lock().unwrap_or_else(PoisonError::into_inner);
        let (own, of_others): (Vec<_>, Vec<_>) = sources
            .iter()
            .partition(|source| source.waker.may_lock_here());
        for source in of_others {
            source.waker.wake();
        }
        own.iter()
            .filter_map(|source| source.domain.upgrade())
            .collect()
    }
}

impl Stream for EventQueue {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.poll_event(EqState::pop, cx).map(Some)
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
