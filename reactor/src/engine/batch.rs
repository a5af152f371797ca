//! Posts many operations under one lock (`FI_MORE`).
//!
//! The lock, the fence before the test whether the peer sleeps, and the follow-up work are paid
//! once for a chunk of posts. Records are published one by one, and the transport's `flush` rings
//! the doorbell once at the end of the chunk. A long batch is posted in chunks, so the lock is not
//! held for long, and no user code runs in between.
//!
//! `FI_MORE` is a call, not a flag: a guard that holds records back would have to be dropped, a
//! call returns.

use std::fmt;

use fabric_core::buf::{AnyBuf, IoBuf, IoBufMut};
use fabric_core::completion::{Completion, Failed, OpKind, Outcome, Transfer};
use fabric_core::matching::{RecvSpec, TagMatch};
use fabric_core::stats::OpStats;
use fabric_core::transport::{EpId, RmaIov, TxOp};
use fabric_core::{Error, FiAddr, Result};

use super::domain::DomainHandle;
use super::endpoint_table::EngineTransportEndpoint;
use super::progress::{EngineGuard, EngineState};
use super::state::ops::{CompletionTarget, CreditMode, PostResult};

/// The maximum number of posts under one lock.
pub const MAX_BATCH_POSTS: usize = 32;
/// The approximate number of bytes that are copied under one lock.
pub const MAX_BATCH_BYTES: usize = 64 * 1024;

/// A chunk of posts of one endpoint, made while the domain is locked: no user code may run while
/// this value exists.
///
/// Peers and tasks are woken at the end: by [`PostBatch::finish`], or by the drop.
pub struct PostBatch<'a> {
    domain: &'a DomainHandle,
    engine: EngineGuard<'a>,
    ep: EpId,
    posts: u32,
    /// Whether a post had `FI_MORE`, so that its peer must be woken at the end.
    has_unflushed: bool,
    finished: bool,
}

impl DomainHandle {
    /// Locks the domain for a chunk of posts. `None` if one thread at a time uses the domain, and
    /// another thread does.
    #[inline(always)] // on the small-message path, and the batch is large
    #[must_use]
    pub fn batch(&self, ep: EpId) -> Option<PostBatch<'_>> {
        Some(PostBatch {
            domain: self,
            engine: self.engine().lock_or_refuse()?,
            ep,
            posts: 0,
            has_unflushed: false,
            finished: false,
        })
    }
}

impl PostBatch<'_> {
    /// Posts a send or a write that reports to the transmit queue. With `tx_op.more` the doorbell
    /// is left to the end of the batch.
    ///
    /// # Errors
    /// As [`DomainHandle::send`], with the buffer.
    #[inline]
    #[allow(clippy::result_large_err)] // like every post
    pub fn send<B: IoBuf>(
        &mut self,
        tx_op: &TxOp,
        buf: B,
        target: CompletionTarget,
    ) -> Result<(), Failed<B>> {
        let buf = self.domain.copy_unlendable_loan(buf)?;
        self.count_post(tx_op);
        self.engine
            .send(self.ep, tx_op, buf, target, CreditMode::NoWait)
            .map(drop)
    }

    /// Posts a send for a future, as [`send`](Self::send) in other respects.
    ///
    /// # Errors
    /// As [`DomainHandle::send`], with the buffer.
    #[allow(clippy::result_large_err)] // like every post
    pub fn start_send<B: IoBuf>(
        &mut self,
        tx_op: &TxOp,
        buf: B,
    ) -> Result<PostResult<B>, Failed<B>> {
        let buf = self.domain.copy_unlendable_loan(buf)?;
        self.count_post(tx_op);
        let (target, credit) = (CompletionTarget::Future, CreditMode::NoWait);
        self.engine.send(self.ep, tx_op, buf, target, credit)
    }

    /// Sends plain messages to one peer that report to the transmit queue, until one cannot be sent
    /// inline, and returns how many were sent. The caller calls [`report`](Self::report) for these,
    /// and posts the others one by one.
    pub fn try_send_plain(&mut self, peer: FiAddr, messages: &[&[u8]]) -> usize {
        self.reserve_and_execute(messages, |posts, messages| {
            posts.send_plain(peer, messages, usize::MAX)
        })
    }

    /// Writes to memory of one peer, without CQ data and each to one range, as
    /// [`try_send_plain`](Self::try_send_plain) sends.
    pub fn try_write_plain(&mut self, peer: FiAddr, writes: &[(RmaIov, &[u8])]) -> usize {
        self.reserve_and_execute(writes, |posts, writes| {
            let limits = (usize::MAX, |(_, bytes): &(RmaIov, &[u8])| bytes.len());
            posts.execute_inline(
                (OpKind::Write, peer),
                writes,
                limits,
                |transport, writes| transport.try_write_plain(peer, writes),
            )
        })
    }

    /// Reserves entries of the transmit queue, executes as many operations, and gives back the
    /// entries of those that were not executed.
    fn reserve_and_execute<T>(
        &mut self,
        ops: &[T],
        execute: impl FnOnce(&mut Self, &[T]) -> usize,
    ) -> usize {
        let domain = &mut self.engine.domain;
        let tx_cq = domain.endpoints.cq_of(self.ep, OpKind::Send);
        let Some(queue) = domain.cqs.get_mut(tx_cq) else {
            return 0;
        };
        let reserved = queue.reserve_up_to(ops.len());
        let executed = execute(self, &ops[..reserved]);
        if let Some(queue) = self.engine.domain.cqs.get_mut(tx_cq) {
            queue.unreserve(reserved - executed);
        }
        executed
    }

    /// Reports operations that were executed together: the context, the length and the buffer of
    /// each.
    #[inline(always)] // on the small-message path
    pub fn report(
        &mut self,
        kind: OpKind,
        executed: impl ExactSizeIterator<Item = (u64, usize, AnyBuf)>,
    ) {
        let domain = &mut self.engine.domain;
        let tx_cq = domain.endpoints.cq_of(self.ep, kind);
        let Some(queue) = domain.cqs.get_mut(tx_cq) else {
            return;
        };
        queue.extend(executed.map(
            #[inline(always)] // on the small-message path
            |(context, len, buf)| {
                let outcome = Outcome::ok(Transfer::sent(len, None));
                Completion::new(context, kind, outcome, buf)
            },
        ));
        queue.reader.wake(&mut domain.deferred);
    }

    /// Sends copies of plain messages to one peer, until one cannot be sent inline, and returns how
    /// many were sent. The caller injects the others one by one.
    pub fn try_inject_plain(&mut self, peer: FiAddr, messages: &[&[u8]]) -> usize {
        let ep = self.engine.domain.endpoints.get(self.ep);
        let limit = ep.map_or(0, |ep| ep.bindings().inject_size);
        self.send_plain(peer, messages, limit)
    }

    /// Sends plain messages of up to `limit` bytes inline.
    fn send_plain(&mut self, peer: FiAddr, messages: &[&[u8]], limit: usize) -> usize {
        let limits = (limit, |message: &&[u8]| message.len());
        self.execute_inline(
            (OpKind::Send, peer),
            messages,
            limits,
            |transport, messages| transport.try_send_plain(peer, messages),
        )
    }

    /// Executes operations on one peer of up to `limit` bytes inline, and counts them. `len`
    /// returns the length of one.
    #[inline(always)] // on the small-message path
    fn execute_inline<T>(
        &mut self,
        (kind, peer): (OpKind, FiAddr),
        ops: &[T],
        (limit, len): (usize, impl Fn(&T) -> usize),
        execute: impl FnOnce(&mut EngineTransportEndpoint, &[T]) -> usize,
    ) -> usize {
        let EngineState {
            domain, endpoints, ..
        } = &mut *self.engine;
        let Some(ep) = domain.endpoints.get_mut(self.ep) else {
            return 0;
        };
        if ep.tx_credits.has_waiter_for(peer) {
            return 0;
        }
        endpoints.activate(self.ep);
        let limit = limit.min(ep.bindings().max_msg_size);
        let too_long = ops.iter().position(|op| len(op) > limit);
        let ops = &ops[..too_long.unwrap_or(ops.len())];
        let transport = endpoints.transport_mut(self.ep);
        let executed = transport.map_or(0, |transport| execute(transport, ops));
        let bytes = ops[..executed].iter().map(|op| len(op) as u64).sum();
        let count = executed as u64;
        ep.record_inline(kind, OpStats { count, bytes });
        if let Some(counter) = ep.bindings().counters.for_op(kind) {
            let deferred = &mut domain.deferred;
            domain.counters.add(counter, count, 0, deferred);
        }
        self.posts += executed as u32;
        self.has_unflushed |= executed > 0;
        executed
    }

    /// Posts a write to several remote segments that reports to the transmit queue.
    ///
    /// # Errors
    /// As [`DomainHandle::write_rma_iov`], with the buffer.
    #[allow(clippy::result_large_err)] // like every post
    pub fn write_rma_iov<B: IoBuf>(
        &mut self,
        tx_op: TxOp,
        rma_iovs: &[RmaIov],
        buf: B,
        target: CompletionTarget,
    ) -> Result<(), Failed<B>> {
        let buf = self.domain.copy_unlendable_loan(buf)?;
        self.count_post(&tx_op);
        self.engine
            .write_rma_iov(self.ep, tx_op, rma_iovs, buf, target, CreditMode::NoWait)
            .map(drop)
    }

    /// Sends a copy of borrowed bytes, as [`send`](Self::send).
    ///
    /// # Errors
    /// As [`DomainHandle::inject`].
    #[inline]
    pub fn inject(&mut self, tx_op: &TxOp, bytes: &[u8]) -> Result<()> {
        self.count_post(tx_op);
        self.engine.inject(self.ep, tx_op, bytes)
    }

    /// Posts a receive that reports to the receive queue.
    ///
    /// # Errors
    /// As [`DomainHandle::recv`], with the buffer.
    #[inline]
    #[allow(clippy::result_large_err)] // like every post
    pub fn recv<B: IoBufMut>(
        &mut self,
        spec: RecvSpec,
        buf: B,
        target: CompletionTarget,
    ) -> Result<(), Failed<B>> {
        self.posts += 1;
        self.engine
            .recv(self.ep, spec, buf, target, CreditMode::NoWait)
            .map(drop)
    }

    /// Posts up to `count` receives from any source that report to the receive queue, as far as the
    /// endpoint and the queue have entries, and returns how many were posted. Posts none if one
    /// could receive a message at once. `receive` returns the receive with an index below `count`:
    /// the tags that it accepts, its buffer and its target.
    /// The caller posts the others one by one.
    #[inline(always)] // on the small-message path
    pub fn recv_together(
        &mut self,
        count: usize,
        mut receive: impl FnMut(usize) -> (Option<TagMatch>, AnyBuf, CompletionTarget),
    ) -> usize {
        let EngineState {
            domain, endpoints, ..
        } = &mut *self.engine;
        let ep = self.ep;
        let Some(state) = domain.endpoints.get_mut(ep) else {
            return 0;
        };
        let Some(cq) = domain.cqs.get_mut(state.bindings().rx_cq) else {
            return 0;
        };
        let Some(rx) = endpoints.own_rx_mut(ep) else {
            return 0;
        };
        let posted = if rx.only_queues_posts() {
            cq.reserve_up_to(count.min(state.free_recvs()))
        } else {
            0
        };
        state.add_posted_recvs(posted);
        for index in 0..posted {
            let (tag, buf, target) = receive(index);
            let key = domain.ops.insert_recv(ep, target, buf);
            rx.queue_from_any(key, tag);
        }
        self.posts += posted as u32;
        posted
    }

    /// Returns the bytes of messages that the endpoint has received.
    pub fn received_bytes(&self) -> u64 {
        self.engine
            .domain
            .endpoints
            .get(self.ep)
            .map_or(0, |ep| ep.stats().received.bytes)
    }

    /// Releases the lock for a moment, so that other threads get it.
    pub fn yield_lock(&mut self) {
        self.engine.finish_posts(std::mem::take(&mut self.posts));
        self.engine.yield_lock();
    }

    /// Flushes the posts, wakes the peers they were for, and releases the lock.
    ///
    /// # Errors
    /// [`Error::PeerGone`] when a peer has closed meanwhile.
    pub fn finish(mut self) -> Result<()> {
        self.flush()
    }

    #[inline]
    fn count_post(&mut self, tx_op: &TxOp) {
        self.posts += 1;
        self.has_unflushed |= tx_op.more;
    }

    /// Does the work that the posts deferred: rings doorbells and runs follow-ups.
    fn flush(&mut self) -> Result<()> {
        self.finished = true;
        let flushed = if self.has_unflushed {
            self.flush_transport()
        } else {
            Ok(())
        };
        self.engine.finish_posts(self.posts);
        flushed
    }

    fn flush_transport(&mut self) -> Result<()> {
        let flushed = self
            .engine
            .with_transport(self.ep, |transport, ctx| transport.flush(ctx));
        match flushed.flatten() {
            // Every post has reported the closed endpoint already.
            Err(Error::Closed(_)) => Ok(()),
            flushed => flushed,
        }
    }
}

impl Drop for PostBatch<'_> {
    fn drop(&mut self) {
        if !self.finished {
            // There is no caller to return an error to; the end of a peer is an event as well.
            let _ = self.flush();
        }
    }
}

impl fmt::Debug for PostBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostBatch")
            .field("ep", &self.ep)
            .field("posts", &self.posts)
            .finish_non_exhaustive()
    }
}
