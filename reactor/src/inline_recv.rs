//! Receives that complete *inline*: by the first poll of their future, without a slot and without
//! matching.
//!
//! A program that awaits its receives one by one often finds that the next message has arrived.
//! While the receive queue of the endpoint is empty (no receive is posted, no message is buffered),
//! that message is the one that a posted receive would match, so the transport copies it into the
//! buffer. In any other case the receive is posted.

use std::task::{Context, Poll};

use fabric_core::FiAddr;
use fabric_core::Result;
use fabric_core::buf::{AnyBuf, IoBufMut};
use fabric_core::completion::{Done, Failed, Transfer};
use fabric_core::matching::RecvSpec;
use fabric_core::transport::EpId;

use crate::domain::{CompletedOp, DomainHandle};
use crate::engine::{EngineGuard, EngineState};
use crate::ops::{CompletionTarget, CreditMode};
use fabric_core::transport::OpKey;

/// Each 16th receive is posted, so that a program whose messages have always arrived makes passes
/// too.
const RECVS_PER_PASS: u32 = 16;

/// A receive after the first poll of its future.
#[derive(Debug)]
pub enum PolledRecv<'a, B> {
    /// The receive has completed inline.
    Inline(Done<B>),
    /// The receive was posted and has ended.
    Completed(CompletedOp<'a>),
    /// The receive was posted, and the task's waker is registered.
    Pending(OpKey),
}

impl EngineGuard<'_> {
    /// Receives a message that has arrived into `buf`. `None` if the receive must be posted.
    #[inline(always)] // on the small-message path
    fn try_recv(&mut self, ep: EpId, from: Option<FiAddr>, buf: &mut AnyBuf) -> Option<Transfer> {
        if self.posts() % RECVS_PER_PASS == RECVS_PER_PASS - 1
            || !self.domain.batched_eps.is_empty()
            || !self.domain.shared_rx_peers.is_empty()
            || !self.domain.rx_queues.own(ep)?.is_empty()
        {
            return None;
        }
        self.disarm_for_poll();
        let EngineState {
            domain, transport, ..
        } = &mut **self;
        let state = domain.endpoints.get_mut(ep.0)?;
        let room = buf.recv_capacity().min(state.bindings.max_msg_size);
        let transfer = transport.try_recv(ep, from, room, buf)?;
        state.stats.received.record(transfer.len);
        if let Some(counter) = state.bindings.counters.recv {
            domain.add_to_counter(counter, true);
        }
        domain.on_message_consumed(transfer.source);
        self.count_inline_recv();
        Some(transfer)
    }
}

impl DomainHandle {
    /// Receives for a future that is polled for the first time: takes a message that has arrived,
    /// or posts the receive and drives the domain as [`poll_op`](Self::poll_op) does. The domain is
    /// locked once for both.
    ///
    /// # Errors
    /// As [`DomainHandle::recv`].
    #[inline]
    pub fn recv_and_poll<B: IoBufMut>(
        &self,
        ep: EpId,
        spec: RecvSpec,
        buf: B,
        cx: &mut Context<'_>,
    ) -> Result<PolledRecv<'_, B>, Failed<B>> {
        let mut locked = self.engine().lock();
        let mut buf = buf.into_any();
        if spec.tag.is_none()
            && let Some(transfer) = locked.try_recv(ep, spec.from, &mut buf)
        {
            locked.unlock();
            let buf = restore(buf);
            return Ok(PolledRecv::Inline(Done { buf, transfer }));
        }
        let (target, credit) = (CompletionTarget::Future, CreditMode::Wait);
        let posted = locked.recv(ep, spec, restore(buf), target, credit);
        locked.finish();
        let key = posted?;
        Ok(match self.poll_op_locked(locked, key, cx) {
            Poll::Ready(completed) => PolledRecv::Completed(completed),
            Poll::Pending => PolledRecv::Pending(key),
        })
    }
}

/// Converts a buffer back to the type that it had.
#[inline(always)] // on the small-message path
fn restore<B: IoBufMut>(buf: AnyBuf) -> B {
    B::from_any(buf).unwrap_or_else(|_| unreachable!("the buffer was of this type"))
}
