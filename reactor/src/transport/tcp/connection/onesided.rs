//! Frames of one-sided operations: those of this side, and responses to those of the peer.
//!
//! A read, write or atomic operation waits in the same queue as messages. `build_frame` makes its
//! header with up to four remote ranges. An operation that was sent waits in `PendingRequests` for
//! the peer. `send_responses` makes the responses to the peer's requests from the `ResponseQueue`,
//! a chunk at a time and between two frames, as room becomes free. A response whose registered
//! buffer the program has locked, or whose event finds the completion queue full, waits there.
//! Three kinds of frame are not libfabric's: atomics, refusals, and responses with a status behind
//! the bytes. These frames are sent only to a peer that has announced the vendor extension.

use std::collections::VecDeque;

use fabric_core::atomic::AtomicCall;
use fabric_core::completion::{OpKind, Outcome};
use fabric_core::event::DownReason;
use fabric_core::tcp::{Frame, PeerCaps, ResponseStatus, RmaIovList};
use fabric_core::transport::{EndpointContext, EngineContext, OpKey, TxOp};
use fabric_core::{Error, Result};

use super::limits::{MAX_BYTES_PER_PASS, WRITE_BUFFER_LIMIT};
use super::{QueuedTxOp, RxPhase, TcpConnection};

/// What completes an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompletionTrigger {
    /// The kernel has the operation's last byte.
    Transmitted,
    /// The peer's ack.
    Acknowledged,
    /// The peer's response.
    ResponseReceived,
}

impl CompletionTrigger {
    /// Returns what completes this operation.
    pub(super) fn of(tx_op: &TxOp) -> Self {
        match tx_op.kind {
            OpKind::Write | OpKind::Atomic => Self::Acknowledged,
            OpKind::Read | OpKind::FetchAtomic => Self::ResponseReceived,
            _ if tx_op.level.needs_ack() => Self::Acknowledged,
            _ => Self::Transmitted,
        }
    }
}

/// Builds the frame header of an operation, and the list of its remote ranges.
///
/// # Errors
/// [`Error::NotSupported`] for too many ranges, or a tag or atomic that the peer does not support.
pub(super) fn build_frame(
    tx_op: &TxOp,
    len: usize,
    peer_caps: PeerCaps,
    ctx: &EndpointContext<'_, impl EngineContext>,
) -> Result<(Frame, RmaIovList)> {
    if tx_op.kind == OpKind::Send {
        let frame = Frame::message(peer_caps.tag(tx_op.tag)?, tx_op.data, len);
        let frame = if tx_op.level.needs_ack() {
            frame.with_ack()
        } else {
            frame
        };
        return Ok((frame, RmaIovList::default()));
    }
    let remote_iovs = tx_op
        .rma_iov_id
        .map_or(tx_op.remote.as_slice(), |id| ctx.rma_iovs(id));
    let iovs = RmaIovList::from_rma_iovs(remote_iovs)
        .ok_or(Error::NotSupported("more remote ranges than rma_iov_limit"))?;
    let frame = match tx_op.remote.and_then(|remote| remote.atomic) {
        Some(atomic) => Frame::atomic(
            peer_caps.atomic(atomic)?,
            atomic.call != AtomicCall::Base,
            len,
        ),
        None if tx_op.kind == OpKind::Read => Frame::read(&iovs),
        None => Frame::write(&iovs, tx_op.data, len),
    };
    Ok((frame, iovs))
}

/// Fails the first operation of the queue.
pub(super) fn fail_first(
    queue: &mut VecDeque<QueuedTxOp>,
    ctx: &mut EndpointContext<'_, impl EngineContext>,
    error: Error,
) {
    if let Some(first) = queue.pop_front() {
        ctx.complete(first.op, Outcome::failed(error));
    }
}

impl TcpConnection {
    /// Sets whether the peer may access memory of the domain, and whether the endpoint wants an
    /// event for each access.
    pub(crate) fn enable_rma_target(&mut self, is_target: bool, rma_events: bool) {
        self.responses.enable_rma_target(is_target, rma_events);
    }

    /// Fails the pending requests, because the peer's address handle is no longer valid. The
    /// requests stay in the list, so that responses to them are recognized and discarded.
    pub(crate) fn fail_requests_keep_slots(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        error: &Error,
    ) {
        self.pending.fail_ops_keep_requests(ctx, error);
    }

    /// Returns whether there is work without new input: responses to be sent, or bytes to be
    /// parsed.
    pub(crate) fn has_local_work(&self) -> bool {
        let responses = &self.responses;
        // A peer that is gone may have sent messages that are still unread, but gets no response.
        let can_write = self.tx.can_write() && !self.is_uring_sending();
        let has_responses = can_write && !responses.is_empty() && !responses.is_blocked_on_region();
        let has_unread = matches!(self.rx.phase(), RxPhase::Unparsed | RxPhase::Deferred);
        has_responses
            || can_write && self.can_read_rendezvous()
            || has_unread && !self.is_backlogged()
    }

    /// Returns whether nothing can be sent because a response is partly sent, and the program has
    /// locked the registered buffer of its next bytes.
    pub(crate) fn is_response_stalled(&self) -> bool {
        self.responses.is_partial() && self.responses.is_blocked_on_region()
    }

    /// Returns whether responses to the peer are pending.
    pub(crate) fn has_pending_responses(&self) -> bool {
        !self.responses.is_empty()
    }

    /// Fails the pending requests.
    pub(crate) fn fail_requests(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        error: &Error,
    ) {
        self.pending.fail(ctx, error);
    }

    /// Handles that an operation of `len` payload bytes was given to the frame writer or the socket
    /// completely. Its last byte is before stream position `end`.
    pub(super) fn on_transmitted(
        &mut self,
        (op, tx_op): (OpKey, TxOp),
        len: usize,
        end: u64,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) {
        let trigger = CompletionTrigger::of(&tx_op);
        self.unwritten.push(
            end,
            op,
            (trigger == CompletionTrigger::Transmitted).then_some((len, tx_op.tag)),
        );
        self.complete_written(ctx);
        let pending = &mut self.pending;
        let total = tx_op.remote.map_or(len, |remote| remote.len);
        let total = tx_op
            .rma_iov_id
            .map_or(total, |id| ctx.rma_iovs(id).iter().map(|iov| iov.len).sum());
        match trigger {
            CompletionTrigger::Transmitted => {}
            CompletionTrigger::Acknowledged => pending.expect_ack(op, tx_op, total, ctx),
            CompletionTrigger::ResponseReceived => pending.expect_read_response(op, tx_op, total),
        }
    }

    /// Sends responses to the peer's requests as far as there is room, and only for one quantum if
    /// operations wait as well. Returns whether anything was sent.
    pub(super) fn send_responses(
        &mut self,
        operations_wait: bool,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> bool {
        let (mut any, mut bytes_left) = (false, MAX_BYTES_PER_PASS);
        while bytes_left > 0 && (!self.writer.is_open() || self.responses.is_partial()) {
            let pending_before = self.writer.pending().len();
            let sender = self.peer.sender();
            let quantum = if operations_wait {
                self.tx.response_quantum()
            } else {
                usize::MAX
            };
            let status = match self.responses.write_responses(
                &mut self.writer,
                (WRITE_BUFFER_LIMIT, quantum),
                sender,
                ctx,
            ) {
                Ok(status) => status,
                Err(violation) => {
                    self.end(DownReason::Protocol(violation.0));
                    return true;
                }
            };
            let written = self.writer.pending().len() - pending_before;
            any |= written > 0;
            bytes_left = bytes_left.saturating_sub(written);
            self.tx.on_responses_sent(written);
            if !self.write_pending() || status != ResponseStatus::WriterFull {
                break;
            }
        }
        any
    }
}
