//! What a connection sends: collected and sent together, or from where it lies.

use std::collections::VecDeque;
use std::io::IoSlice;

use fabric_core::Error;
use fabric_core::buf::Payload;
use fabric_core::completion::{OpKind, Outcome};
use fabric_core::transport::{EngineContext, OpKey, TxOp};

use super::super::socket::WriteResult;
use super::TcpConnection;
use super::onesided::{CompletionTrigger, build_frame, fail_first};

/// A longer message is not collected, but sent from where it lies.
pub(super) const MAX_BUFFERED_MESSAGE: usize = 16 << 10;
/// Bytes that are collected before they are sent in any case.
pub(super) const WRITE_BUFFER_LIMIT: usize = 64 << 10;
/// Bytes to a peer in one pass.
pub(super) const MAX_BYTES_PER_PASS: usize = 1 << 20;
/// Bytes after which answers give way to what is queued, and that to answers, at the end of a
/// frame.
pub(super) const SCHEDULING_QUANTUM: usize = WRITE_BUFFER_LIMIT;
/// Parts of a message that one call sends.
pub(super) const MAX_IOVECS: usize = 16;

/// An operation for a peer.
#[derive(Debug)]
pub(crate) struct QueuedOp {
    pub(crate) op: OpKey,
    pub(crate) spec: TxOp,
    /// Bytes that have left; `None` when it has not begun.
    pub(crate) bytes_sent: Option<usize>,
}

/// What became of a short message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendResult {
    /// The kernel has all of it.
    Written,
    /// It was copied, and the kernel does not have all of it yet.
    Collected,
    /// It has to wait, or is [not taken](Link::check).
    No,
}

/// An operation whose last byte the kernel does not have yet.
#[derive(Debug)]
pub(super) struct Unwritten {
    /// Position in the stream behind its last byte.
    end: u64,
    op: OpKey,
    /// Length and tag of a message that ends then; other operations wait for their peer.
    message: Option<(usize, Option<u64>)>,
}

impl TcpConnection {
    /// Takes a short message.
    pub(crate) fn try_send(
        &mut self,
        host: &mut dyn EngineContext,
        spec: &TxOp,
        payload: Payload<'_>,
    ) -> SendResult {
        if self.write_closed || self.writer.is_open() || payload.len() > MAX_BUFFERED_MESSAGE {
            return SendResult::No;
        }
        if self.writer.pending().len() + payload.len() > WRITE_BUFFER_LIMIT
            && (self.write_blocked || !self.write(host))
        {
            return SendResult::No;
        }
        let Ok(tag) = self.peer_caps.tag(spec.tag) else {
            return SendResult::No;
        };
        if !self.writer.push_message(tag, spec.data, payload) {
            return SendResult::No;
        }
        if !self.batching && !spec.more {
            self.batching = true;
            if self.write(host) {
                return SendResult::Written;
            }
        }
        if self.write_closed {
            return SendResult::No;
        }
        host.request_rearm();
        SendResult::Collected
    }

    /// The message that was added last ends when the kernel has its last byte.
    pub(crate) fn collected(&mut self, op: OpKey, len: usize, tag: Option<u64>) {
        let end = self.writer.end();
        self.leaves_at(end, op, Some((len, tag)));
    }

    /// An operation has left when the kernel has the stream up to this position, and ends then
    /// if it is a message of this length, with this tag, that does not wait for its peer.
    pub(super) fn leaves_at(&mut self, end: u64, op: OpKey, message: Option<(usize, Option<u64>)>) {
        self.unwritten.push_back(Unwritten { end, op, message });
    }

    /// Completes the messages whose last byte the kernel has.
    #[inline]
    pub(crate) fn complete_written(&mut self, host: &mut dyn EngineContext) {
        while let Some(first) = self.unwritten.front()
            && first.end <= self.writer.written()
            && let Some(Unwritten { op, message, .. }) = self.unwritten.pop_front()
        {
            match message {
                Some((len, tag)) => host.sent(op, len, tag),
                None => host.has_left(op),
            }
        }
    }

    /// Messages that the kernel has not taken end with this error.
    pub(crate) fn fail_unwritten(&mut self, host: &mut dyn EngineContext, error: &Error) {
        self.complete_written(host);
        // What waits for the peer ends where it waits.
        let ends = |unwritten: &Unwritten| unwritten.message.is_some();
        for Unwritten { op, .. } in self.unwritten.drain(..).filter(ends) {
            host.complete(op, Outcome::failed(error.clone()));
        }
    }

    /// Sends what is pending, and completes what was written. Returns whether all of it has left.
    pub(crate) fn write(&mut self, host: &mut dyn EngineContext) -> bool {
        let is_all = self.flush();
        self.complete_written(host);
        is_all
    }

    /// Sends what is pending. Returns whether all of it has left.
    pub(super) fn flush(&mut self) -> bool {
        if self.is_uring_sending() {
            return false;
        }
        while !self.writer.pending().is_empty() {
            match self.socket.send(&[IoSlice::new(self.writer.pending())]) {
                WriteResult::Bytes(count) => self.writer.advance(count),
                WriteResult::WouldBlock => {
                    self.set_write_blocked(true);
                    self.send_via_uring(Payload::Contiguous(&[]));
                    return false;
                }
                WriteResult::Failed => {
                    self.close_write();
                    return false;
                }
            }
        }
        self.set_write_blocked(false);
        if self.aborting && !self.write_closed {
            self.socket.shutdown_write();
            self.close_write();
        }
        true
    }

    /// Moves the operations on. Returns whether anything was sent.
    pub(crate) fn progress_tx(
        &mut self,
        queue: &mut VecDeque<QueuedOp>,
        host: &mut dyn EngineContext,
    ) -> bool {
        let moved = self.progress_queue(queue, host);
        self.complete_written(host);
        self.update_read_interest();
        moved
    }

    fn progress_queue(
        &mut self,
        queue: &mut VecDeque<QueuedOp>,
        host: &mut dyn EngineContext,
    ) -> bool {
        self.batching = false;
        if self.aborting {
            return !self.write_closed && self.flush();
        }
        let is_idle = queue.is_empty()
            && self.reader.responses.is_empty()
            && self.writer.pending().is_empty();
        if self.write_closed
            || self.is_uring_sending()
            || is_idle && !self.reader.wants_rendezvous_read()
        {
            return false;
        }
        let (mut moved, mut left) = (false, MAX_BYTES_PER_PASS);
        if !self.reader.responses.is_empty() {
            moved = self.send_responses(!queue.is_empty(), host);
            if self.reader.responses.is_partial() || self.is_uring_sending() || self.write_closed {
                return moved;
            }
        }
        moved |= self.send_rendezvous_reads();
        while left > 0
            && !queue.is_empty()
            && !self.yields_to_responses(left)
            && !self.awaits_atomic_responses(queue)
            && let Some(count) = self.send_first(queue, left, host)
        {
            left = left.saturating_sub(count);
            moved = true;
        }
        if !self.writer.is_open() && !self.writer.pending().is_empty() {
            let before = self.writer.pending().len();
            self.flush();
            moved |= self.writer.pending().len() < before;
        }
        moved
    }

    /// Whether it is the turn of answers, with so many bytes of this pass left.
    fn yields_to_responses(&self, left: usize) -> bool {
        left <= MAX_BYTES_PER_PASS - SCHEDULING_QUANTUM
            && !self.writer.is_open()
            && !self.reader.responses.is_empty()
    }

    /// Moves the first operation of the queue on: a long one by so many bytes at most. Returns how
    /// many bytes of it have left, or have been collected; `None` when it has to wait.
    fn send_first(
        &mut self,
        queue: &mut VecDeque<QueuedOp>,
        most: usize,
        host: &mut dyn EngineContext,
    ) -> Option<usize> {
        let QueuedOp {
            op,
            spec,
            bytes_sent: sent,
        } = queue.front_mut()?;
        if self.is_rxm_packet(spec) {
            let sent = self.send_rxm_packet(queue, host)?;
            self.response_bytes = 0;
            return Some(sent);
        }
        let payload = if spec.kind == OpKind::Read {
            Payload::Contiguous(&[])
        } else {
            host.payload(*op)
        };
        let len = payload.len();
        let begins = sent.is_none() && spec.kind != OpKind::Connect;
        let wrapped = match begins
            .then(|| build_frame(spec, len, self.peer_caps, host))
            .transpose()
        {
            Ok(wrapped) => wrapped,
            Err(error) => {
                fail_first(queue, host, error);
                return Some(0);
            }
        };
        let mut end = self.writer.written();
        let count = if let Some((frame, rows)) =
            wrapped.as_ref().filter(|_| len <= MAX_BUFFERED_MESSAGE)
        {
            if self.writer.pending().len() + len > WRITE_BUFFER_LIMIT && !self.flush() {
                return None;
            }
            if !self.writer.push_frame(frame, rows, payload) {
                self.abort_message();
                return None;
            }
            end = self.writer.end();
            len
        } else if spec.kind != OpKind::Connect {
            if let Some((frame, rows)) = wrapped {
                if !self.writer.begin_frame(&frame, &rows) {
                    self.abort_message();
                    return None;
                }
                if CompletionTrigger::of(spec) != CompletionTrigger::Transmitted {
                    self.reader.pending.begin_acked_send();
                }
            }
            let from = *sent.get_or_insert(0);
            if from == 0 && self.should_zero_copy(payload) && self.send_zero_copy(*op, len, host) {
                return None;
            }
            let payload = host.payload(*op);
            // The ring may have sent it to its end.
            let part = payload.slice(from, (len - from).min(most));
            let sent_now = if part.is_empty() {
                Some(0)
            } else {
                self.send_part(part)
            };
            let Some(count) = sent_now else {
                if !self.write_closed {
                    self.send_via_uring(payload.slice(from, len - from));
                }
                return None;
            };
            *sent = Some(from + count);
            if from + count < len {
                return Some(count);
            }
            end = self.writer.written();
            self.writer.end_frame();
            count
        } else {
            0
        };
        let (op, spec) = (*op, *spec);
        queue.pop_front();
        self.response_bytes = 0;
        self.on_transmitted((op, spec), len, end, host);
        Some(count)
    }

    /// Sends what is pending and behind it part of a message; returns how much of the message has
    /// left, or `None` when there is no room for anything.
    fn send_part(&mut self, payload: Payload<'_>) -> Option<usize> {
        let pending = self.writer.pending();
        let mut parts = [IoSlice::new(&[]); MAX_IOVECS];
        parts[0] = IoSlice::new(pending);
        let mut count = 1;
        payload.for_each(|_, piece| {
            if let Some(part) = parts.get_mut(count) {
                *part = IoSlice::new(piece);
                count += 1;
            }
        });
        match self.socket.send(&parts[..count]) {
            WriteResult::Bytes(sent) => {
                let header = sent.min(pending.len());
                self.writer.advance(header);
                self.set_write_blocked(false);
                Some(sent - header)
            }
            WriteResult::WouldBlock => {
                self.set_write_blocked(true);
                None
            }
            WriteResult::Failed => {
                self.close_write();
                None
            }
        }
    }
}
