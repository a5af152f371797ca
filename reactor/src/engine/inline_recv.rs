//! Receives that complete *inline*: by the first poll of their future, without a slot and without
//! matching.
//!
//! A program that awaits its receives one by one often finds that the next message has arrived.
//! While the receive queue of the endpoint is empty (no receive is posted, no message is buffered
//! or held), that message is the one that a posted receive would match, so the transport copies it
//! into the buffer. In any other case the receive is posted.

use std::task::{Context, Poll};

use fabric_core::buf::{AnyBuf, IoBufMut, restore_buffer};
use fabric_core::completion::{Done, Failed, Transfer};
use fabric_core::matching::{PeerKey, RecvSpec};
use fabric_core::transport::{EpId, OpKey};
use fabric_core::{FiAddr, Result};

use super::domain::DomainHandle;
use super::progress::EngineState;
use super::state::ops::{CompletionTarget, CreditMode};

/// Each 64th receive is posted, so that a program whose messages have always arrived makes passes
/// too.
const RECVS_PER_PASS: u32 = 64;

impl EngineState {
    /// Receives a message that has arrived into `buf`. `None` if the receive must be posted: also
    /// if the domain is armed or has work for a pass, which a post sees to. A success leaves no
    /// work, so that the caller can release the lock at once.
    #[inline(always)] // on the small-message path
    fn try_recv(&mut self, ep: EpId, from: Option<FiAddr>, buf: &mut AnyBuf) -> Option<Transfer> {
        let domain = &mut self.domain;
        // Both are mostly 0, which one comparison tells.
        let work = domain.ops.pending_sends() | domain.avs.departing_count();
        if self.armed
            || !self.fork_guard.in_original_process()
            || self.posts % RECVS_PER_PASS == RECVS_PER_PASS - 1
            || domain.pending_work.needs_pass()
            || work != 0
            || !self.endpoints.own_rx(ep)?.is_empty()
        {
            return None;
        }
        let state = domain.endpoints.get_mut(ep)?;
        if state.bindings().source_err {
            return None;
        }
        let room = buf.recv_capacity().min(state.bindings().max_msg_size);
        let transport = self.endpoints.transport_mut(ep)?;
        let (len, source) = transport.try_recv(from, room, buf)?;
        state.record_message(len);
        let counter = state.bindings().counters.recv;
        domain.counters.count(counter, true, &mut domain.deferred);
        self.posts = self.posts.wrapping_add(1);
        Some(Transfer::received_plain(
            (PeerKey::default(), source),
            0,
            len,
        ))
    }
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
        let mut locked = self.engine().lock();
        let mut buf = buf.into_any();
        if spec.tag.is_none()
            && let Some(transfer) = locked.try_recv(ep, spec.from, &mut buf)
        {
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
