//! Event queues as streams.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use fabric_core::event::Event;
use fabric_core::tree::{Class, Node};
use fabric_core::{Error, Result};
use fabric_reactor::EventRing;
use futures_core::Stream;
use tokio::task::coop;

use crate::close::CloseError;
use crate::fabric::Fabric;

/// An event queue (`fid_eq`): what happens on domains and endpoints without being asked for, as a stream.
///
/// Bind it to a domain with [`Domain::bind_eq`](crate::Domain::bind_eq), or to one endpoint with
/// [`EndpointBuilder::bind_eq`](crate::EndpointBuilder::bind_eq). Events beyond its capacity are counted and reported
/// as [`EventKind::Overrun`](crate::EventKind::Overrun). The stream ends never.
///
/// # Cancel safety
/// Dropping a pending `next` loses no event.
#[doc(alias = "fid_eq")]
pub struct EventQueue {
    pub(crate) inner: Arc<EventQueueInner>,
}

pub(crate) struct EventQueueInner {
    pub(crate) node: Arc<Node>,
    pub(crate) ring: Arc<EventRing>,
    _fabric: Fabric,
}

impl EventQueue {
    pub(crate) fn open(fabric: &Fabric, capacity: usize) -> Result<Self> {
        if capacity == 0 {
            return Err(Error::Invalid { what: "event queue capacity", why: "it is 0".into() });
        }
        let node = Node::new(Class::EventQueue, Some(fabric.inner.node.clone()));
        let ring = Arc::new(EventRing::new(capacity));
        node.publish()?;
        Ok(Self { inner: Arc::new(EventQueueInner { node, ring, _fabric: fabric.clone() }) })
    }

    /// The next event if there is one (`fi_eq_read`).
    #[doc(alias = "fi_eq_read")]
    pub fn try_next(&mut self) -> Option<Event> {
        self.inner.ring.pop()
    }

    /// Waits for the next event (`fi_eq_sread`).
    ///
    /// # Cancel safety
    /// Safe: no event is lost.
    #[doc(alias = "fi_eq_sread")]
    pub async fn next(&mut self) -> Event {
        std::future::poll_fn(|cx| self.poll_event(cx)).await
    }

    /// Closes the queue; events in it are lost.
    ///
    /// # Errors
    /// [`Error::Busy`] while domains or endpoints report to it.
    #[doc(alias = "fi_close")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        self.inner.node.close().map_err(|error| CloseError { error, handle: self })
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        let budget = ready!(coop::poll_proceed(cx));
        match self.inner.ring.pop_or_register(cx.waker()) {
            Some(event) => {
                budget.made_progress();
                Poll::Ready(event)
            }
            None => Poll::Pending,
        }
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
        self.node.retire();
    }
}

impl fmt::Debug for EventQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventQueue").field("id", &self.inner.node.id()).finish_non_exhaustive()
    }
}
