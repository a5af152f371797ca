//! What a connection sends: collected and sent together, or from where it lies.

use std::collections::VecDeque;
use std::io::IoSlice;

use fabric_core::Error;
use fabric_core::buf::Payload;
use fabric_core::completion::{OpKind, Outcome};
use fabric_core::provider::{Host, OpKey, SendSpec};

use super::super::socket::Sent;
use super::Link;
use super::onesided::{Ending, fail_first, wrap};

/// A longer message is not collected, but sent from where it lies.
pub(super) const SHORT: usize = 16 << 10;
/// Bytes that are collected before they are sent in any case.
pub(super) const COLLECTED: usize = 64 << 10;
/// Bytes to a peer in one pass.
pub(super) const PER_PASS: usize = 1 << 20;
/// Bytes after which answers give way to what is queued, and that to answers, at the end of a
/// frame.
pub(super) const TURN: usize = COLLECTED;
/// Parts of a message that one call sends.
pub(super) const PARTS: usize = 16;

/// An operation for a peer.
#[derive(Debug)]
pub(crate) struct Sending {
    pub(crate) op: OpKey,
    pub(crate) spec: SendSpec,
    /// Bytes that have left; `None` when it has not begun.
    pub(crate) sent: Option<usize>,
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

impl Link {
    /// Takes a short message.
    pub(crate) fn send_now(
        &mut self,
        host: &mut dyn Host,
        spec: &SendSpec,
        payload: Payload<'_>,
    ) -> SendResult {
        if self.is_deaf || self.outbox.is_open() || payload.len() > SHORT {
            return SendResult::No;
        }
        if self.outbox.pending().len() + payload.len() > COLLECTED
            && (self.is_blocked || !self.write(host))
        {
            return SendResult::No;
        }
        let Ok(tag) = self.takes.tag(spec.tag) else {
            return SendResult::No;
        };
        if !self.outbox.push(tag, spec.data, payload) {
            return SendResult::No;
        }
        if !self.is_bursting && !spec.more {
            self.is_bursting = true;
            if self.write(host) {
                return SendResult::Written;
            }
        }
        if self.is_deaf {
            return SendResult::No;
        }
        host.unsettled();
        SendResult::Collected
    }

    /// The message that was added last ends when the kernel has its last byte.
    pub(crate) fn collected(&mut self, op: OpKey, len: usize, tag: Option<u64>) {
        let end = self.outbox.end();
        self.leaves_at(end, op, Some((len, tag)));
    }

    /// An operation has left when the kernel has the stream up to this position, and ends then
    /// if it is a message of this length, with this tag, that does not wait for its peer.
    pub(super) fn leaves_at(&mut self, end: u64, op: OpKey, message: Option<(usize, Option<u64>)>) {
        self.unwritten.push_back(Unwritten { end, op, message });
    }

    /// Completes the messages whose last byte the kernel has.
    #[inline]
    pub(crate) fn complete_written(&mut self, host: &mut dyn Host) {
        while let Some(first) = self.unwritten.front()
            && first.end <= self.outbox.written()
            && let Some(Unwritten { op, message, .. }) = self.unwritten.pop_front()
        {
            match message {
                Some((len, tag)) => host.sent(op, len, tag),
                None => host.has_left(op),
            }
        }
    }

    /// Messages that the kernel has not taken end with this error.
    pub(crate) fn fail_unwritten(&mut self, host: &mut dyn Host, error: &Error) {
        self.complete_written(host);
        // What waits for the peer ends where it waits.
        let ends = |unwritten: &Unwritten| unwritten.message.is_some();
        for Unwritten { op, .. } in self.unwritten.drain(..).filter(ends) {
            host.complete(op, Outcome::failed(error.clone()));
        }
    }

    /// Sends what is pending, and completes what was written. Returns whether all of it has left.
    pub(crate) fn write(&mut self, host: &mut dyn Host) -> bool {
        let is_all = self.flush();
        self.complete_written(host);
        is_all
    }

    /// Sends what is pending. Returns whether all of it has left.
    pub(super) fn flush(&mut self) -> bool {
        if self.is_sending() {
            return false;
        }
        while !self.outbox.pending().is_empty() {
            match self.socket.send(&[IoSlice::new(self.outbox.pending())]) {
                Sent::Bytes(count) => self.outbox.left(count),
                Sent::NoRoom => {
                    self.block(true);
                    self.hand_over(Payload::Whole(&[]));
                    return false;
                }
                Sent::Broken => {
                    self.deafen();
                    return false;
                }
            }
        }
        self.block(false);
        if self.is_cut && !self.is_deaf {
            self.socket.finish();
            self.deafen();
        }
        true
    }

    /// Moves the operations on. Returns whether anything was sent.
    pub(crate) fn drive(&mut self, queue: &mut VecDeque<Sending>, host: &mut dyn Host) -> bool {
        let moved = self.send_on(queue, host);
        self.complete_written(host);
        self.rest_or_watch();
        moved
    }

    fn send_on(&mut self, queue: &mut VecDeque<Sending>, host: &mut dyn Host) -> bool {
        self.is_bursting = false;
        if self.is_cut {
            return !self.is_deaf && self.flush();
        }
        let is_idle =
            queue.is_empty() && self.inbox.replies.is_empty() && self.outbox.pending().is_empty();
        if self.is_deaf || self.is_sending() || is_idle && !self.inbox.wants() {
            return false;
        }
        let (mut moved, mut left) = (false, PER_PASS);
        if !self.inbox.replies.is_empty() {
            moved = self.answer(!queue.is_empty(), host);
            if self.inbox.replies.is_open() || self.is_sending() || self.is_deaf {
                return moved;
            }
        }
        moved |= self.ask();
        while left > 0
            && !queue.is_empty()
            && !self.gives_way(left)
            && !self.awaits_responses(queue)
            && let Some(count) = self.send_first(queue, left, host)
        {
            left = left.saturating_sub(count);
            moved = true;
        }
        if !self.outbox.is_open() && !self.outbox.pending().is_empty() {
            let before = self.outbox.pending().len();
            self.flush();
            moved |= self.outbox.pending().len() < before;
        }
        moved
    }

    /// Whether it is the turn of answers, with so many bytes of this pass left.
    fn gives_way(&self, left: usize) -> bool {
        left <= PER_PASS - TURN && !self.outbox.is_open() && !self.inbox.replies.is_empty()
    }

    /// Moves the first operation of the queue on: a long one by so many bytes at most. Returns how
    /// many bytes of it have left, or have been collected; `None` when it has to wait.
    fn send_first(
        &mut self,
        queue: &mut VecDeque<Sending>,
        most: usize,
        host: &mut dyn Host,
    ) -> Option<usize> {
        let Sending { op, spec, sent } = queue.front_mut()?;
        if self.is_packet(spec) {
            let sent = self.send_packet(queue, host)?;
            self.answered = 0;
            return Some(sent);
        }
        let payload = if spec.kind == OpKind::Read {
            Payload::Whole(&[])
        } else {
            host.payload(*op)
        };
        let len = payload.len();
        let begins = sent.is_none() && spec.kind != OpKind::Connect;
        let wrapped = match begins
            .then(|| wrap(spec, len, self.takes, host))
            .transpose()
        {
            Ok(wrapped) => wrapped,
            Err(error) => {
                fail_first(queue, host, error);
                return Some(0);
            }
        };
        let mut end = self.outbox.written();
        let count = if let Some((frame, rows)) = wrapped.as_ref().filter(|_| len <= SHORT) {
            if self.outbox.pending().len() + len > COLLECTED && !self.flush() {
                return None;
            }
            if !self.outbox.push_frame(frame, rows, payload) {
                self.cut();
                return None;
            }
            end = self.outbox.end();
            len
        } else if spec.kind != OpKind::Connect {
            if let Some((frame, rows)) = wrapped {
                if !self.outbox.open(&frame, &rows) {
                    self.cut();
                    return None;
                }
                if Ending::of(spec) != Ending::Sent {
                    self.inbox.asked.send();
                }
            }
            let from = *sent.get_or_insert(0);
            if from == 0 && self.is_zero_copy(payload) && self.entrust(*op, len, host) {
                return None;
            }
            let payload = host.payload(*op);
            // The ring may have sent it to its end.
            let part = payload.part(from, (len - from).min(most));
            let sent_now = if part.is_empty() {
                Some(0)
            } else {
                self.send_part(part)
            };
            let Some(count) = sent_now else {
                if !self.is_deaf {
                    self.hand_over(payload.part(from, len - from));
                }
                return None;
            };
            *sent = Some(from + count);
            if from + count < len {
                return Some(count);
            }
            end = self.outbox.written();
            self.outbox.close();
            count
        } else {
            0
        };
        let (op, spec) = (*op, *spec);
        queue.pop_front();
        self.answered = 0;
        self.has_left((op, spec), len, end, host);
        Some(count)
    }

    /// Sends what is pending and behind it part of a message; returns how much of the message has
    /// left, or `None` when there is no room for anything.
    fn send_part(&mut self, payload: Payload<'_>) -> Option<usize> {
        let pending = self.outbox.pending();
        let mut parts = [IoSlice::new(&[]); PARTS];
        parts[0] = IoSlice::new(pending);
        let mut count = 1;
        payload.for_each(|_, piece| {
            if let Some(part) = parts.get_mut(count) {
                *part = IoSlice::new(piece);
                count += 1;
            }
        });
        match self.socket.send(&parts[..count]) {
            Sent::Bytes(sent) => {
                let header = sent.min(pending.len());
                self.outbox.left(header);
                self.block(false);
                Some(sent - header)
            }
            Sent::NoRoom => {
                self.block(true);
                None
            }
            Sent::Broken => {
                self.deafen();
                None
            }
        }
    }
}
