//! What a connection says of one-sided operations: its own, and answers to those of the peer.

use std::collections::VecDeque;

use fabric_core::atomic::AtomicCall;
use fabric_core::completion::{OpKind, Outcome};
use fabric_core::event::DownReason;
use fabric_core::tcp::{Frame, PeerCaps, ResponseStatus, RmaIovList};
use fabric_core::transport::{EngineContext, EpId, OpKey, TxOp};
use fabric_core::{Error, Result};

use super::sending::{MAX_BYTES_PER_PASS, SCHEDULING_QUANTUM, WRITE_BUFFER_LIMIT};
use super::{QueuedOp, TcpConnection};

/// When an operation has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompletionTrigger {
    /// Its bytes have left.
    Transmitted,
    /// The peer has acknowledged it.
    Acknowledged,
    /// The peer has answered it.
    ResponseReceived,
}

impl CompletionTrigger {
    pub(super) fn of(spec: &TxOp) -> Self {
        match spec.kind {
            OpKind::Write | OpKind::Atomic => Self::Acknowledged,
            OpKind::Read | OpKind::FetchAtomic => Self::ResponseReceived,
            _ if spec.level.needs_ack() => Self::Acknowledged,
            _ => Self::Transmitted,
        }
    }
}

/// What an operation is on the wire: its header, and the places it names.
pub(super) fn build_frame(
    spec: &TxOp,
    len: usize,
    takes: PeerCaps,
    host: &dyn EngineContext,
) -> Result<(Frame, RmaIovList)> {
    if spec.kind == OpKind::Send {
        let frame = Frame::message(takes.tag(spec.tag)?, spec.data, len);
        let frame = if spec.level.needs_ack() {
            frame.with_ack()
        } else {
            frame
        };
        return Ok((frame, RmaIovList::default()));
    }
    let places = spec
        .rma_iov_id
        .map_or(spec.remote.as_slice(), |spread| host.rma_iovs(spread));
    let rows = RmaIovList::from_rma_iovs(places).ok_or(Error::NotSupported(
        "more places than an operation over tcp has",
    ))?;
    let frame = match spec.remote.and_then(|remote| remote.atomic) {
        Some(atomic) => Frame::atomic(takes.atomic(atomic)?, atomic.call != AtomicCall::Base, len),
        None if spec.kind == OpKind::Read => Frame::read(&rows),
        None => Frame::write(&rows, spec.data, len),
    };
    Ok((frame, rows))
}

/// The first operation of the queue cannot be.
pub(super) fn fail_first(
    queue: &mut VecDeque<QueuedOp>,
    host: &mut dyn EngineContext,
    error: Error,
) {
    if let Some(send) = queue.pop_front() {
        host.complete(send.op, Outcome::failed(error));
    }
}

impl TcpConnection {
    /// Whose memory it serves, if it does, and whether that endpoint wants to hear of everything
    /// that is done there.
    pub(crate) fn enable_rma_target(&mut self, ep: EpId, is_target: bool, heeds: bool) {
        self.reader.enable_rma_target(ep, is_target, heeds);
    }

    /// Operations that were asked of a peer whose number is no longer valid end; what it answers is
    /// thrown away.
    pub(crate) fn fail_requests_keep_slots(&mut self, host: &mut dyn EngineContext, error: &Error) {
        self.reader.pending.fail_ops_keep_slots(host, error);
    }

    /// Whether something is to be done here without news: questions to be answered, or bytes to be
    /// looked at.
    pub(crate) fn has_local_work(&self) -> bool {
        let replies = &self.reader.responses;
        // Of a peer that has gone there may be messages to be received, and nobody to be answered.
        let is_heard = !self.write_closed && !self.write_blocked && !self.is_uring_sending();
        let answers = is_heard && !replies.is_empty() && !replies.is_blocked_on_region();
        let is_unread = self.has_unparsed || self.deferred_once;
        answers || is_heard && self.can_read_rendezvous() || is_unread && !self.is_backlogged()
    }

    /// Whether nothing can be sent before the owner of some memory has given it back: an answer has
    /// begun.
    pub(crate) fn is_response_stalled(&self) -> bool {
        self.reader.responses.is_partial() && self.reader.responses.is_blocked_on_region()
    }

    /// Whether the peer has asked for something that it has not got.
    pub(crate) fn has_pending_responses(&self) -> bool {
        !self.reader.responses.is_empty()
    }

    /// Nothing that was asked will be heard of.
    pub(crate) fn fail_requests(&mut self, host: &mut dyn EngineContext, error: &Error) {
        self.reader.pending.fail(host, error);
    }

    /// An operation has been sent as far as it goes: up to this position in the stream.
    pub(super) fn on_transmitted(
        &mut self,
        (op, spec): (OpKey, TxOp),
        len: usize,
        end: u64,
        host: &mut dyn EngineContext,
    ) {
        let ending = CompletionTrigger::of(&spec);
        self.leaves_at(
            end,
            op,
            (ending == CompletionTrigger::Transmitted).then_some((len, spec.tag)),
        );
        self.complete_written(host);
        let asked = &mut self.reader.pending;
        let all = spec.remote.map_or(len, |remote| remote.len);
        let all = spec.rma_iov_id.map_or(all, |spread| {
            host.rma_iovs(spread).iter().map(|place| place.len).sum()
        });
        match ending {
            CompletionTrigger::Transmitted => {}
            CompletionTrigger::Acknowledged => asked.expect_ack(op, spec, all, host),
            CompletionTrigger::ResponseReceived => asked.expect_read_response(op, spec, all),
        }
    }

    /// Answers what the peer has asked, as far as there is room; and as long as it is the turn of
    /// answers, where `others` wait as well. Returns whether anything has moved.
    pub(super) fn send_responses(&mut self, others: bool, host: &mut dyn EngineContext) -> bool {
        let (mut moved, mut left) = (false, MAX_BYTES_PER_PASS);
        while left > 0 && (!self.writer.is_open() || self.reader.responses.is_partial()) {
            let before = self.writer.pending().len();
            let who = (self.peer_key, self.source);
            let turn = if others {
                SCHEDULING_QUANTUM.saturating_sub(self.response_bytes)
            } else {
                usize::MAX
            };
            let replying = match self.reader.responses.write_responses(
                &mut self.writer,
                (WRITE_BUFFER_LIMIT, turn),
                who,
                host,
            ) {
                Ok(replying) => replying,
                Err(broken) => {
                    self.end(DownReason::Protocol(broken.0));
                    return true;
                }
            };
            let made = self.writer.pending().len() - before;
            moved |= made > 0;
            left = left.saturating_sub(made);
            self.response_bytes = self.response_bytes.saturating_add(made);
            if !self.flush() || replying != ResponseStatus::WriterFull {
                break;
            }
        }
        moved
    }
}
