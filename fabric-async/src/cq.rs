//! Completion queues as streams. The engine has the entries; a queue has one handle, which reads
//! them.

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use fabric_core::buf::DeviceBuffer;
use fabric_core::completion::Completion;
use fabric_core::tree::{Class, ObjectNode};
use fabric_core::{Error, Result};
use fabric_reactor::{CqId, WaitFd, WaitObject};
use futures_core::Stream;
use tokio::task::coop;

use crate::close::{CloseError, close_object};
use crate::domain::Domain;
use crate::domain_inner::DomainInner;
use crate::thread_model::{Shared, ThreadModel};
use crate::try_wait::{LazyWaitObject, TryWait};

/// Largest capacity of a completion queue, in entries.
const MAX_CQ_CAPACITY: usize = 1 << 20;
/// Number of completions that the stream takes from the queue at once.
const STREAM_BATCH: usize = 32;

/// A completion queue (`fid_cq`): a stream of the completions of operations that were posted with
/// `.post()`.
///
/// A completion queue cannot overrun: an operation reserves an entry when it is posted, and fails
/// with [`Error::WouldBlock`] when all entries are taken. A failed operation is an entry like any
/// other. A queue has one consumer: the handle cannot be cloned. When the handle is dropped while
/// endpoints are bound to the queue, its completions are lost and posted receives are canceled, so
/// that other receives get their messages; pending sends continue, and further posts fail with
/// [`Error::Closed`].
///
/// `next` and other stream combinators come from `futures_util::StreamExt`.
///
/// # Cancel safety
/// Dropping a pending [`read_batch`](Self::read_batch) or `next` of the stream loses no completion.
#[doc(alias = "fid_cq")]
pub struct CompletionQueue<M: ThreadModel = Shared> {
    pub(crate) inner: Arc<CqInner>,
    /// Completions taken from the queue in one batch and not yielded yet.
    buffered: VecDeque<Completion>,
    /// Receives a batch from the engine; empty between polls.
    scratch: Vec<Completion>,
    model: PhantomData<M>,
}

pub(crate) struct CqInner {
    pub(crate) node: Arc<ObjectNode>,
    pub(crate) id: CqId,
    pub(crate) domain: Arc<DomainInner>,
    wait: LazyWaitObject,
}

/// Copies received bytes to the device for the last `count` completions of `read`.
#[inline]
fn unstage(read: &mut [Completion], count: usize) {
    if DeviceBuffer::any_created() {
        let new = read.len() - count;
        read[new..].iter_mut().for_each(Completion::unstage);
    }
}

impl<M: ThreadModel> CompletionQueue<M> {
    pub(crate) fn open(domain: &Domain<M>, capacity: usize) -> Result<Self> {
        domain.inner.node.check_room(Class::CompletionQueue)?;
        if !(1..=MAX_CQ_CAPACITY).contains(&capacity) {
            let why = format!("{capacity} is not within 1 to {MAX_CQ_CAPACITY}");
            return Err(Error::Invalid {
                what: "completion queue capacity",
                why,
            });
        }
        let node = ObjectNode::new(Class::CompletionQueue, Some(domain.inner.node.clone()));
        let id = domain.inner.engine.open_cq(capacity)?;
        let inner = CqInner {
            node,
            id,
            domain: domain.inner.clone(),
            wait: LazyWaitObject::default(),
        };
        inner.node.attach_to_parent()?;
        Ok(Self {
            inner: Arc::new(inner),
            buffered: VecDeque::with_capacity(STREAM_BATCH),
            scratch: Vec::with_capacity(STREAM_BATCH),
            model: PhantomData,
        })
    }

    /// Waits for completions, moves up to `max` of them to `out` and returns their number
    /// (`fi_cq_sread`).
    ///
    /// The call waits until an operation that reports to this queue completes, or a peer writes
    /// with [data](crate::Request::data). If a post was refused, call this only if an earlier post
    /// is pending or its completion is in the queue.
    ///
    /// # Cancel safety
    /// Safe: no completion is lost.
    #[doc(alias = "fi_cq_sread")]
    pub async fn read_batch(&mut self, out: &mut Vec<Completion>, max: usize) -> usize {
        std::future::poll_fn(|cx| self.poll_read_batch(cx, out, max)).await
    }

    /// Polls for completions, as [`read_batch`](Self::read_batch). Returns 0 only when `max` is 0.
    pub fn poll_read_batch(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut Vec<Completion>,
        max: usize,
    ) -> Poll<usize> {
        if max == 0 {
            return Poll::Ready(0);
        }
        if !self.buffered.is_empty() {
            let count = self.buffered.len().min(max);
            out.extend(self.buffered.drain(..count));
            return Poll::Ready(count);
        }
        let budget = ready!(coop::poll_proceed(cx));
        let count = ready!(
            self.inner
                .domain
                .engine
                .poll_cq(self.inner.id, out, max, cx)
        );
        budget.made_progress();
        unstage(out, count);
        Poll::Ready(count)
    }

    /// Makes progress once, moves up to `max` completions to `out` and returns their number
    /// (`fi_cq_read`).
    #[doc(alias = "fi_cq_read")]
    pub fn try_read_batch(&mut self, out: &mut Vec<Completion>, max: usize) -> usize {
        let buffered = self.buffered.len().min(max);
        out.extend(self.buffered.drain(..buffered));
        let CqInner { domain, id, .. } = &*self.inner;
        let read = domain.engine.try_read_cq(*id, out, max - buffered);
        unstage(out, read);
        buffered + read
    }

    /// Returns the queue's descriptor for an event loop (`FI_GETWAIT`): the same at each call.
    ///
    /// The first call opens two descriptors. Block on the descriptor only after
    /// [`prepare_wait`](Self::prepare_wait).
    ///
    /// # Errors
    /// [`Error::Os`] when the process is out of descriptors; possible only at the first call.
    #[doc(alias = "FI_GETWAIT")]
    pub fn wait_fd(&self) -> Result<WaitFd> {
        let CqInner { domain, wait, .. } = &*self.inner;
        wait.get_or_open(Some(&domain.engine)).map(WaitObject::fd)
    }

    /// Makes progress once, and returns whether the program may block on the
    /// [descriptor](Self::wait_fd) (`fi_trywait(3)`).
    ///
    /// After [`TryWait::Block`] the next completion makes the descriptor readable. In a domain that
    /// [an event loop drives](crate::DomainBuilder::driven_by_event_loop), so does everything else
    /// that needs progress. The descriptor stays readable until the next `prepare_wait`. A queue
    /// has one waiter: a task that was polling this queue as a stream is not woken any more.
    ///
    /// With [`WaitPolicy::Spin`](crate::WaitPolicy::Spin) the result is always [`TryWait::Poll`].
    ///
    /// # Errors
    /// [`Error::Os`] when the process is out of descriptors; possible only if
    /// [`wait_fd`](Self::wait_fd) and `prepare_wait` were never called before.
    #[doc(alias = "fi_trywait")]
    pub fn prepare_wait(&mut self) -> Result<TryWait> {
        let engine = &self.inner.domain.engine;
        let wait = self.inner.wait.get_or_open(Some(engine))?;
        let may_block = self.buffered.is_empty() && engine.prepare_cq_wait(self.inner.id, wait);
        Ok(TryWait::from_may_block(may_block))
    }

    /// Closes the queue (`fi_close`). Completions in the queue are lost.
    ///
    /// # Errors
    /// [`Error::Busy`] while endpoints or shared receive contexts are bound to the queue.
    #[doc(alias = "fi_close")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        close_object(self, |cq| &cq.inner.node).map(drop)
    }
}

/// Yields completions as long as the queue is open. Respects Tokio's cooperative budget.
impl<M: ThreadModel> Stream for CompletionQueue<M> {
    type Item = Completion;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Completion>> {
        let this = &mut *self;
        let budget = ready!(coop::poll_proceed(cx));
        if this.buffered.is_empty() {
            ready!(this.inner.domain.engine.poll_cq(
                this.inner.id,
                &mut this.scratch,
                STREAM_BATCH,
                cx
            ));
            let read = this.scratch.len();
            unstage(&mut this.scratch, read);
            this.buffered.extend(this.scratch.drain(..));
        }
        budget.made_progress();
        Poll::Ready(this.buffered.pop_front())
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        self.domain.engine.close_cq(self.id);
        self.node.detach_from_parent();
    }
}

impl<M: ThreadModel> fmt::Debug for CompletionQueue<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("id", &self.inner.node.id())
            .finish_non_exhaustive()
    }
}
