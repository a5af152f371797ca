//! Sending on a connection: queued operations, batched messages and responses.
//!
//! A short message is copied into the `FrameWriter` and written with one call. Short messages that
//! follow before the next pass are batched: that pass writes them with one call. A long message
//! opens a frame, and its payload is written from its buffer as the socket takes it. A pass
//! alternates between operations and responses, at the end of the frame that exceeds 64 KiB, so
//! that neither keeps the other waiting.
//!
//! A send completes when all its bytes are in the kernel's socket buffer, or when the peer has
//! acknowledged it, if its completion level says so.

use std::collections::VecDeque;
use std::io::IoSlice;

use fabric_core::buf::Payload;
use fabric_core::completion::OpKind;
use fabric_core::tcp::{Frame, RmaIovList};
use fabric_core::transport::{EndpointContext, EngineContext, OpKey, TrySend, TxOp};
use fabric_core::{Error, Result};

use super::super::socket::WriteResult;
use super::limits::{
    MAX_BUFFERED_MESSAGE, MAX_BYTES_PER_PASS, MAX_IOVECS, SCHEDULING_QUANTUM, WRITE_BUFFER_LIMIT,
};
use super::onesided::{CompletionTrigger, build_frame, fail_first};
use super::{QueuedTxOp, TcpConnection, TxPhase};

impl TcpConnection {
    /// Tries to send a short message inline.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if the message has a tag and the peer does not support tags.
    pub(crate) fn try_send(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        tx_op: &TxOp,
        payload: Payload<'_>,
    ) -> Result<TrySend> {
        let (tag, len) = (self.peer_caps.tag(tx_op.tag)?, payload.len());
        if self.tx.phase() != TxPhase::Open
            || self.writer.is_open()
            || len > MAX_BUFFERED_MESSAGE
            || self.has_full_write_buffer(len)
                && (self.tx.is_blocked() || !self.write_and_complete(ctx))
            || !self.writer.push_message(tag, tx_op.data, payload)
        {
            return Ok(TrySend::WouldBlock);
        }
        if !self.tx.is_batching() && !tx_op.more {
            self.tx.on_sent();
            if self.write_and_complete(ctx) {
                return Ok(TrySend::Done);
            }
        }
        if self.write_closed() {
            return Ok(TrySend::WouldBlock);
        }
        ctx.request_rearm();
        Ok(TrySend::Batched)
    }

    /// Returns whether `len` more bytes would exceed the limit of the write buffer.
    fn has_full_write_buffer(&self, len: usize) -> bool {
        self.writer.pending().len() + len > WRITE_BUFFER_LIMIT
    }

    /// Makes room for `len` bytes in the write buffer, by writing the pending bytes if the limit
    /// requires it. Returns false if there is no room.
    pub(super) fn reserve_write_buffer(&mut self, len: usize) -> bool {
        !self.has_full_write_buffer(len) || self.write_pending()
    }

    /// Sets the operation of the message that was batched last.
    pub(crate) fn set_batched_op(&mut self, op: OpKey, len: usize, tag: Option<u64>) {
        let end = self.writer.end();
        self.unwritten.push(end, op, Some((len, tag)));
    }

    /// Completes the messages whose last byte the kernel has.
    #[inline]
    pub(crate) fn complete_written(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        self.unwritten.complete(self.writer.total_written(), ctx);
    }

    /// Completes the messages whose last byte the kernel has, and fails the others.
    pub(crate) fn fail_unwritten(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        error: &Error,
    ) {
        self.complete_written(ctx);
        self.unwritten.fail(ctx, error);
    }

    /// Writes the pending bytes, and completes what was written. Returns whether all was written.
    pub(crate) fn write_and_complete(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> bool {
        let all_written = self.write_pending();
        self.complete_written(ctx);
        all_written
    }

    /// Writes the pending bytes. Returns whether all was written.
    pub(super) fn write_pending(&mut self) -> bool {
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
        if self.tx.phase() == TxPhase::Aborting {
            self.socket.shutdown_write();
            self.close_write();
        }
        true
    }

    /// Progresses the queued operations and the responses. Returns whether anything was sent.
    pub(crate) fn progress_tx(
        &mut self,
        queue: &mut VecDeque<QueuedTxOp>,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> bool {
        let moved = self.send_queued(queue, ctx);
        self.complete_written(ctx);
        if !self.rx.is_open() {
            self.close_write_after_peer();
        }
        self.update_interest();
        moved
    }

    /// Sends responses, rendezvous reads and queued operations as far as the socket has room, at
    /// most [`MAX_BYTES_PER_PASS`]. Returns whether anything was sent.
    fn send_queued(
        &mut self,
        queue: &mut VecDeque<QueuedTxOp>,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> bool {
        self.tx.begin_pass();
        match self.tx.phase() {
            TxPhase::Open => {}
            TxPhase::Aborting => return self.write_pending(),
            TxPhase::Closed => return false,
        }
        let has_nothing_queued =
            queue.is_empty() && self.responses.is_empty() && self.writer.pending().is_empty();
        if self.is_uring_sending() || has_nothing_queued && !self.reader.wants_rendezvous_read() {
            return false;
        }
        let (mut moved, mut bytes_left) = (false, MAX_BYTES_PER_PASS);
        if !self.responses.is_empty() {
            moved = self.send_responses(!queue.is_empty(), ctx);
            if self.responses.is_partial() || self.is_uring_sending() || self.write_closed() {
                return moved;
            }
        }
        moved |= self.send_rendezvous_reads();
        while bytes_left > 0
            && !queue.is_empty()
            && !self.yields_to_responses(bytes_left)
            && !self.awaits_atomic_responses(queue)
            && let Some(count) = self.send_first(queue, bytes_left, ctx)
        {
            bytes_left = bytes_left.saturating_sub(count);
            moved = true;
        }
        // Short frames were only copied into the frame writer.
        if !self.writer.is_open() && !self.writer.pending().is_empty() {
            let pending_before = self.writer.pending().len();
            self.write_pending();
            moved |= self.writer.pending().len() < pending_before;
        }
        moved
    }

    /// Returns whether responses are to be sent before further operations. This pass may still send
    /// `bytes_left` bytes.
    fn yields_to_responses(&self, bytes_left: usize) -> bool {
        bytes_left <= MAX_BYTES_PER_PASS - SCHEDULING_QUANTUM
            && !self.writer.is_open()
            && !self.responses.is_empty()
    }

    /// Progresses the first operation of the queue, a long one by at most `max_bytes`. Returns how
    /// many bytes were sent or copied; `None` when the operation has to wait.
    fn send_first(
        &mut self,
        queue: &mut VecDeque<QueuedTxOp>,
        max_bytes: usize,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> Option<usize> {
        let first = queue.front_mut()?;
        let (op, tx_op) = (first.op, first.tx_op);
        if self.is_rxm_packet(&tx_op) {
            let sent = self.send_rxm_packet(queue, ctx)?;
            self.tx.on_operation_sent();
            return Some(sent);
        }
        let payload = if tx_op.kind == OpKind::Read {
            Payload::Contiguous(&[])
        } else {
            ctx.payload(op)
        };
        let len = payload.len();
        // An operation of which nothing was sent needs a frame header.
        let needs_header = first.bytes_sent.is_none() && tx_op.kind != OpKind::Connect;
        let header = match needs_header
            .then(|| build_frame(&tx_op, len, self.peer_caps, ctx))
            .transpose()
        {
            Ok(header) => header,
            Err(error) => {
                fail_first(queue, ctx, error);
                return Some(0);
            }
        };
        let (count, end) = match header {
            // The connection is established; no bytes are sent.
            _ if tx_op.kind == OpKind::Connect => (0, self.writer.total_written()),
            // A short operation is copied into the frame writer.
            Some((frame, iovs)) if len <= MAX_BUFFERED_MESSAGE => {
                if !self.reserve_write_buffer(len) {
                    return None;
                }
                if !self.writer.push_frame(&frame, &iovs, payload) {
                    self.abort_message();
                    return None;
                }
                (len, self.writer.end())
            }
            header => {
                let count = self.send_from_buffer(first, header, max_bytes, ctx)?;
                if first.bytes_sent != Some(len) {
                    return Some(count);
                }
                let end = self.writer.total_written();
                self.writer.end_frame();
                (count, end)
            }
        };
        queue.pop_front();
        self.tx.on_operation_sent();
        self.on_transmitted((op, tx_op), len, end, ctx);
        Some(count)
    }

    /// Sends the next bytes of a long operation, at most `max_bytes`, from the operation's buffer.
    /// `header` is the frame header, if it was not sent yet. Returns how many bytes were sent;
    /// `None` when the operation has to wait.
    fn send_from_buffer(
        &mut self,
        QueuedTxOp {
            op,
            tx_op,
            bytes_sent,
        }: &mut QueuedTxOp,
        header: Option<(Frame, RmaIovList)>,
        max_bytes: usize,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> Option<usize> {
        if let Some((frame, iovs)) = header {
            if !self.writer.begin_frame(&frame, &iovs) {
                self.abort_message();
                return None;
            }
            if CompletionTrigger::of(tx_op) != CompletionTrigger::Transmitted {
                self.pending.begin_acked_send();
            }
        }
        let from = *bytes_sent.get_or_insert(0);
        let payload = ctx.payload(*op);
        let len = payload.len();
        if from == 0 && self.should_zero_copy(payload) && self.send_zero_copy(*op, len, ctx) {
            return None;
        }
        if from == len {
            // io_uring has sent the rest.
            return Some(0);
        }
        let payload = ctx.payload(*op);
        let count = self.send_part(payload.slice(from, (len - from).min(max_bytes)));
        match count {
            Some(count) => *bytes_sent = Some(from + count),
            None if self.write_closed() => {}
            None => self.send_via_uring(payload.slice(from, len - from)),
        }
        count
    }

    /// Sends the pending bytes, followed by part of a message. Returns how many bytes of the
    /// message were sent, or `None` when the socket had no room or the write failed.
    fn send_part(&mut self, payload: Payload<'_>) -> Option<usize> {
        let pending = self.writer.pending();
        let mut parts = [IoSlice::new(&[]); MAX_IOVECS];
        parts[0] = IoSlice::new(pending);
        let mut count = 1;
        payload.for_each_borrowed(|piece| {
            if let Some(part) = parts.get_mut(count) {
                *part = IoSlice::new(piece);
                count += 1;
            }
        });
        match self.socket.send(&parts[..count]) {
            WriteResult::Bytes(sent) => {
                let pending_sent = sent.min(pending.len());
                self.writer.advance(pending_sent);
                self.set_write_blocked(false);
                Some(sent - pending_sent)
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
