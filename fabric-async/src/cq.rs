//! Completion queues as streams.

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use fabric_core::completion::Completion;
use fabric_core::tree::{Class, ObjectNode};
use fabric_core::{Error, Result};
use fabric_reactor::CqId;
use futures_core::Stream;
use tokio::task::coop;

use crate::close::CloseError;
use crate::domain::{Domain, DomainInner};
use crate::thread_model::{Shared, ThreadModel};

/// Largest capacity of a completion queue, in entries.
const MAX_CQ_CAPACITY: usize = 1 << 20;
/// Number of completions that the stream takes from the queue at once.
const STREAM_BATCH: usize = 32;

/// A completion queue (`fid_cq`): a stream of the completions of operations that were posted with
/// `.post()`.
///
/// It cannot overrun: an operation reserves its entry when it is posted, and fails with
/// [`Error::WouldBlock`] when all entries are taken. A failed operation is an entry like any other.
/// A queue has one consumer: the handle cannot be cloned. When the handle is dropped while
/// endpoints are bound to the queue, its completions are lost and posted receives are cancelled, so
/// that other receives get their messages; pending sends continue, and further posts fail with
/// [`Error::Closed`].
///
/// `next` and other stream combinators come from `futures_util::StreamExt`.
///
/// # Cancel safety
/// Dropping a pending `next` or `next_batch` loses no completion.
#[doc(alias = "fid_cq")]
pub struct CompletionQueue<M: ThreadModel = Shared> {
    pub(crate) inner: Arc<CqInner>,
    /// Completions taken from the queue in one batch and not yielded yet.
    buffered: VecDeque<Completion>,
    scratch: Vec<Completion>,
    model: PhantomData<M>,
}

pub(crate) struct CqInner {
    pub(crate) node: Arc<ObjectNode>,
    pub(crate) id: CqId,
    pub(crate) domain: Arc<DomainInner>,
}

impl<M: ThreadModel> CompletionQueue<M> {
    pub(crate) fn open(domain: &Domain<M>, capacity: usize) -> Result<Self> {
        domain.inner.node.check_open()?;
        if !(1..=MAX_CQ_CAPACITY).contains(&capacity) {
            let why = format!("{capacity} is not within 1 to {MAX_CQ_CAPACITY}");
            return Err(Error::Invalid {
                what: "completion queue capacity",
                why,
            });
        }
        let node = ObjectNode::new(Class::CompletionQueue, Some(domain.inner.node.clone()));
        let id = domain.inner.core.open_cq(capacity);
        let inner = CqInner {
            node,
            id,
            domain: domain.inner.clone(),
        };
        inner.node.publish()?;
        let (batch, spare) = (
            VecDeque::with_capacity(STREAM_BATCH),
            Vec::with_capacity(STREAM_BATCH),
        );
        Ok(Self {
            inner: Arc::new(inner),
            buffered: batch,
            scratch: spare,
            model: PhantomData,
        })
    }

    /// Waits for completions, moves up to `max` of them to `out` and returns their number
    /// (`fi_cq_sread`).
    ///
    /// The wait has no end when no operation is pending: count the pending operations if posting
    /// stops at a refusal.
    ///
    /// # Cancel safety
    /// Safe: no completion is lost.
    #[doc(alias = "fi_cq_sread")]
    pub async fn next_batch(&mut self, out: &mut Vec<Completion>, max: usize) -> usize {
        std::future::poll_fn(|cx| self.poll_next_batch(cx, out, max)).await
    }

    /// Polls for completions, as [`next_batch`](Self::next_batch). Returns 0 only when `max` is 0.
    pub fn poll_next_batch(
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
        let count = ready!(self.inner.domain.core.poll_cq(self.inner.id, out, max, cx));
        budget.made_progress();
        Poll::Ready(count)
    }

    /// Makes progress once, moves up to `max` completions to `out` and returns their number
    /// (`fi_cq_read`).
    #[doc(alias = "fi_cq_read")]
    pub fn try_next_batch(&mut self, out: &mut Vec<Completion>, max: usize) -> usize {
        let count = self.buffered.len().min(max);
        out.extend(self.buffered.drain(..count));
        count
            + self
                .inner
                .domain
                .core
                .try_read_cq(self.inner.id, out, max - count)
    }

    /// Closes the queue. Completions in it are lost.
    ///
    /// # Errors
    /// [`Error::Busy`] while endpoints are bound to it.
    #[doc(alias = "fi_close")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        self.inner.node.close().map_err(|error| CloseError {
            error,
            handle: self,
        })
    }
}

/// Yields completions as long as the queue is open. Respects Tokio's cooperative budget.
impl<M: ThreadModel> Stream for CompletionQueue<M> {
    type Item = Completion;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Completion>> {
        let this = &mut *self;
        let budget = ready!(coop::poll_proceed(cx));
        if this.buffered.is_empty() {
            ready!(this.inner.domain.core.poll_cq(
                this.inner.id,
                &mut this.scratch,
                STREAM_BATCH,
                cx
            ));
            this.buffered.extend(this.scratch.drain(..));
        }
        budget.made_progress();
        Poll::Ready(this.buffered.pop_front())
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        self.domain.core.close_cq(self.id);
        self.node.uncount();
    }
}

impl<M: ThreadModel> fmt::Debug for CompletionQueue<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("id", &self.inner.node.id())
            .finish_non_exhaustive()
    }
}
