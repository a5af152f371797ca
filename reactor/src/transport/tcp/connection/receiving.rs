//! What a connection receives. Bytes are read into the endpoint's scratch memory and passed to the
//! `FrameReader`.
//!
//! The reader delivers each message to the receive queue, which fills the matching receive, buffers
//! the message within the budget, or declines it. A declined message is held unread. A message that
//! arrives while no receive is posted stays unread for one more pass (`UnexpectedPolicy`): a
//! program that takes completions in batches is about to post the next receives, and the message is
//! then copied once, not twice.

use fabric_core::event::DownReason;
use fabric_core::rx::RxQueue;
use fabric_core::tcp::{StopReason, UnexpectedPolicy};
use fabric_core::transport::EngineContext;

use super::super::socket::ReadResult;
use super::TcpConnection;
use super::sending::WRITE_BUFFER_LIMIT;

/// Maximum number of reads before this side closes a replaced connection: enough for a full socket
/// receive buffer.
const MAX_FINAL_READS: u32 = 64;

/// Bytes that were read and not consumed. Consuming bytes does not move the rest.
#[derive(Debug)]
pub(super) struct UnconsumedBytes {
    bytes: Vec<u8>,
    /// Number of bytes at the front that were consumed.
    consumed: usize,
}

impl UnconsumedBytes {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, consumed: 0 }
    }

    fn remaining(&self) -> &[u8] {
        &self.bytes[self.consumed..]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.remaining().is_empty()
    }

    /// Consumes the first `count` bytes.
    fn consume(&mut self, count: usize) {
        self.consumed += count;
        if self.is_empty() {
            self.replace(&[]);
        }
    }

    fn replace(&mut self, bytes: &[u8]) {
        self.consumed = 0;
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
    }
}

impl TcpConnection {
    /// Receives what has arrived. Returns whether anything was processed.
    ///
    /// `scratch` is the endpoint's memory for one read. The unconsumed bytes fit into `scratch`,
    /// because an earlier pass read them into `scratch`.
    pub(crate) fn progress_rx(
        &mut self,
        scratch: &mut [u8],
        rx: &mut RxQueue,
        engine: &mut impl EngineContext,
    ) -> bool {
        let sender = (self.peer_key, self.source);
        // A held message needs a receive or room to buffer; a backlog of responses needs the peer
        // to read.
        if self.message_held
            && !self
                .reader
                .can_resume(self.unconsumed.remaining(), sender, rx, engine)
        {
            return false;
        }
        let can_resume_set_aside =
            self.reader.has_set_aside() && self.reader.can_resume_set_aside(sender, rx);
        if self.is_backlogged()
            || self.end_reason.is_some() && self.unconsumed.is_empty() && !can_resume_set_aside
        {
            self.pause_uring_recv();
            return false;
        }
        // Reads behind the unconsumed bytes, unless they begin with a held or deferred message.
        let was_deferred = std::mem::take(&mut self.deferred_once);
        let mut len = self.unconsumed.remaining().len();
        let mut has_input = self.message_held
            | can_resume_set_aside
            | was_deferred
            | std::mem::take(&mut self.has_unparsed);
        if !was_deferred {
            scratch[..len].copy_from_slice(self.unconsumed.remaining());
        }
        if !self.message_held && !was_deferred && self.end_reason.is_none() {
            match self.read(&mut scratch[len..]) {
                ReadResult::WouldBlock => {}
                ReadResult::Bytes(count) => {
                    len += count;
                    has_input = true;
                }
                ReadResult::Eof => {
                    let is_frame_boundary =
                        self.unconsumed.is_empty() && !self.reader.has_partial();
                    self.end(if is_frame_boundary {
                        DownReason::Closed
                    } else {
                        DownReason::Died
                    });
                }
                ReadResult::Failed => self.end(DownReason::Died),
            }
        }
        if !has_input {
            self.idle_passes = self.idle_passes.saturating_add(1);
            self.on_idle_pass();
            return self.end_reason.is_some();
        }
        self.idle_passes = 0;
        // Parses the frames.
        self.reader
            .set_unexpected_policy(match (self.end_reason, was_deferred) {
                (Some(_), _) => UnexpectedPolicy::Buffer,
                (None, true) => UnexpectedPolicy::DeferredOnce,
                (None, false) => UnexpectedPolicy::Defer,
            });
        let bytes = if was_deferred {
            self.unconsumed.remaining()
        } else {
            &scratch[..len]
        };
        let (consumed, is_blocked) = match self.reader.read(bytes, sender, rx, engine) {
            Ok(outcome) => {
                (self.has_unparsed, self.deferred_once) = (
                    outcome.stop_reason == StopReason::ResponsesFull,
                    outcome.stop_reason == StopReason::Deferred,
                );
                if self.write_closed || self.aborting {
                    // No response can be sent any more.
                    self.reader.responses.clear();
                } else {
                    outcome
                        .acks_due
                        .into_iter()
                        .for_each(|ack| self.writer.push_ack(ack));
                    outcome
                        .rendezvous_done
                        .into_iter()
                        .for_each(|message| self.writer.push_rendezvous_done(message));
                }
                (outcome.consumed, outcome.stop_reason == StopReason::Blocked)
            }
            Err(violation) => {
                self.end(DownReason::Protocol(violation.0));
                (len, false)
            }
        };
        if was_deferred {
            self.unconsumed.consume(consumed);
        } else {
            self.unconsumed.replace(&scratch[consumed..len]);
        }
        self.message_held = is_blocked;
        self.update_read_interest();
        true
    }

    /// Receives what has arrived so far, before this side closes the connection: at most
    /// `MAX_FINAL_READS` reads, and only messages that the receive queue accepts.
    pub(crate) fn drain_received(
        &mut self,
        scratch: &mut [u8],
        rx: &mut RxQueue,
        engine: &mut impl EngineContext,
    ) {
        if self.is_reading() {
            self.stop_uring_recv();
        }
        for _ in 0..MAX_FINAL_READS {
            if self.end_reason.is_some() || !self.progress_rx(scratch, rx, engine) {
                break;
            }
        }
    }

    /// Processes the deferred message, because there will be no later pass.
    pub(crate) fn process_deferred(&mut self, rx: &mut RxQueue, engine: &mut impl EngineContext) {
        if std::mem::take(&mut self.deferred_once) {
            self.reader.set_unexpected_policy(UnexpectedPolicy::Buffer);
            // The connection is being closed, so a protocol violation or a lack of room is ignored.
            let _ = self.reader.read(
                self.unconsumed.remaining(),
                (self.peer_key, self.source),
                rx,
                engine,
            );
        }
    }

    /// Returns whether so many responses wait for the peer that no more requests are read.
    pub(super) fn is_backlogged(&self) -> bool {
        self.writer.backlog() > 2 * WRITE_BUFFER_LIMIT || self.reader.responses.is_full()
    }

    /// Returns whether this side reads from the socket.
    pub(super) fn is_reading(&self) -> bool {
        !self.message_held && !self.is_backlogged() && self.end_reason.is_none()
    }
}
