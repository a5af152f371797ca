//! Receives that complete *inline*: by a poll of their future, without matching and without a pass.
//!
//! A program that awaits its receives one by one often finds that the next message has arrived.
//! While the receive queue of the endpoint is empty (no receive is posted, no message is buffered
//! or held), a posted receive would match that message if it accepts it, so the transport copies it
//! into the buffer. In any other case the receive is posted. While it is all that the queue has, a
//! later poll receives in the same way.

use std::task::{Context, Poll};

use fabric_core::buf::{AnyBuf, IoBufMut, restore_buffer};
use fabric_core::completion::{Done, Failed, Transfer};
use fabric_core::matching::{PeerKey, RecvSpec};
use fabric_core::transport::{EpId, OpKey};
use fabric_core::{FiAddr, Result};

use super::domain::DomainHandle;
use super::post::refused;
use super::progress::EngineState;
use super::state::ops::{CompletionTarget, CreditMode};

/// Each 64th receive needs a pass, so that a program whose messages have always arrived makes some.
const RECVS_PER_PASS: u32 = 64;

impl EngineState {
    /// Receives a message that has arrived into `buf`. `None` if the receive must be posted. A
    /// success leaves no work, so that the caller can release the lock at once.
    #[inline(always)] // on the small-message path
    fn try_recv(&mut self, ep: EpId, spec: &RecvSpec, buf: &mut AnyBuf) -> Option<Transfer> {
        if !self.may_recv_inline() {
            return None;
        }
        let (rx, transport) = self.endpoints.for_recv(ep)?;
        let domain = &mut self.domain;
        let state = domain.endpoints.get_mut(ep)?;
        if !rx.is_empty() || state.bindings().source_err {
            return None;
        }
        let max_len = state.bindings().max_msg_size;
        let received = match spec.tag {
            None => inline_transfer(transport.try_recv(spec.from, max_len, buf)?),
            Some(_) => transport.try_recv_tagged(spec, max_len, buf)?,
        };
        state.record_message(received.len);
        let counter = state.bindings().counters.recv;
        domain.counters.count(counter, true, &mut domain.deferred);
        self.posts = self.posts.wrapping_add(1);
        Some(received)
    }

    /// Receives a message that has arrived into a posted receive, whose future is polled. Returns
    /// whether the receive has ended; the caller takes its result under the same lock.
    pub(crate) fn try_recv_posted(&mut self, key: OpKey) -> bool {
        self.may_recv_inline()
            && (self.recv_posted_untagged(key).is_some() || self.recv_posted_tagged(key).is_some())
    }

    #[inline(always)] // on the small-message path
    fn recv_posted_untagged(&mut self, key: OpKey) -> Option<()> {
        let domain = &mut self.domain;
        let op = domain.ops.get_mut(key)?;
        let (rx, transport) = self.endpoints.for_recv(op.ep)?;
        let (_, from) = rx.only_receive().filter(|(receive, _)| *receive == key)?;
        let state = domain.endpoints.get_mut(op.ep)?;
        if state.bindings().source_err {
            return None;
        }
        let received = transport.try_recv(from, state.bindings().max_msg_size, &mut op.buf)?;
        rx.take_only_receive();
        state.release_recv(op.take_recv_place());
        op.finish_ok(inline_transfer(received), &mut domain.deferred);
        let counter = state.bindings().counters.recv;
        domain.counters.count(counter, true, &mut domain.deferred);
        Some(())
    }

    // One function for both would take 28 instructions more of an untagged message.
    fn recv_posted_tagged(&mut self, key: OpKey) -> Option<()> {
        let domain = &mut self.domain;
        let op = domain.ops.get_mut(key)?;
        let (rx, transport) = self.endpoints.for_recv(op.ep)?;
        let only = rx.only_tagged_receive();
        let (_, spec) = only.filter(|(receive, _)| *receive == key)?;
        let state = domain.endpoints.get_mut(op.ep)?;
        if state.bindings().source_err {
            return None;
        }
        let max_len = state.bindings().max_msg_size;
        let received = transport.try_recv_tagged(&spec, max_len, &mut op.buf)?;
        rx.take_only_tagged_receive();
        state.release_recv(op.take_recv_place());
        op.finish_ok(received, &mut domain.deferred);
        let counter = state.bindings().counters.recv;
        domain.counters.count(counter, true, &mut domain.deferred);
        Some(())
    }

    /// Returns whether a receive may end without a pass: not if the domain is armed or has work for
    /// a pass.
    #[inline(always)] // on the small-message path
    fn may_recv_inline(&self) -> bool {
        let domain = &self.domain;
        // Both are mostly 0, which one comparison tells.
        let work = domain.ops.pending_sends() | domain.avs.departing_count();
        !self.armed
            && self.fork_guard.in_original_process()
            && self.posts % RECVS_PER_PASS != RECVS_PER_PASS - 1
            && !domain.pending_work.needs_pass()
            && work == 0
    }
}

/// Returns the result of a receive that has ended inline. Its message cannot be requeued, which
/// would need the peer and the arrival number.
#[inline(always)] // on the small-message path
fn inline_transfer((len, source): (usize, Option<FiAddr>)) -> Transfer {
    Transfer::received_plain((PeerKey::default(), source), 0, len)
}

impl DomainHandle {
    /// Receives for a future that is polled for the first time: takes a message that has arrived,
    /// or posts the receive and drives the domain as [`poll_op`](Self::poll_op) does. The domain is
    /// locked once for both. If the receive does not end, `posted` becomes its key.
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
        posted: &mut Option<OpKey>,
    ) -> Poll<Result<Done<B>, Failed<B>>> {
        let Some(mut locked) = self.engine().lock_or_refuse() else {
            return Poll::Ready(Err(refused(buf)));
        };
        let mut buf = buf.into_any();
        if let Some(transfer) = locked.try_recv(ep, &spec, &mut buf) {
            self.engine().count_app_poll();
            drop(locked);
            let buf = restore_buffer(buf);
            return Poll::Ready(Ok(Done { buf, transfer }));
        }
        let (target, credit) = (CompletionTarget::Future, CreditMode::Wait);
        let key = locked.recv(ep, spec, restore_buffer(buf), target, credit);
        locked.finish();
        let key = match key {
            Ok(key) => key,
            Err(failed) => return Poll::Ready(Err(failed)),
        };
        match self.poll_op_locked(locked, key, cx) {
            Poll::Ready(completed) => Poll::Ready(completed.take()),
            Poll::Pending => {
                *posted = Some(key);
                Poll::Pending
            }
        }
    }
}
