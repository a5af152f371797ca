//! What a connection receives. Bytes are read into the endpoint's `ReadMemory` and passed to the
//! `FrameReader`.
//!
//! The reader delivers each message to the receive queue, which fills the matching receive, buffers
//! the message within the budget, or declines it. A declined message is held unread. A message that
//! arrives while no receive is posted stays unread for one more pass (`UnexpectedPolicy`): a
//! program that takes completions in batches is about to post the next receives, and the message is
//! then copied once, not twice.

use fabric_core::event::DownReason;
use fabric_core::tcp::{ReadOutcome, UnexpectedPolicy};
use fabric_core::transport::{EndpointContext, EngineContext};

use super::super::read_memory::ReadMemory;
use super::super::socket::ReadResult;
use super::limits::WRITE_BUFFER_LIMIT;
use super::{RxPhase, TcpConnection, TxPhase};

/// Maximum number of reads before this side closes a replaced connection: enough for a full socket
/// receive buffer.
const MAX_FINAL_READS: u32 = 64;

impl TcpConnection {
    /// Receives what has arrived. Returns whether anything was processed.
    ///
    /// The unconsumed bytes fit into `memory`, because an earlier pass read them into `memory`.
    pub(crate) fn progress_rx<E: EngineContext>(
        &mut self,
        memory: &mut ReadMemory,
        ctx: &mut EndpointContext<'_, E>,
    ) -> bool {
        let sender = self.peer.sender();
        let phase = self.rx.phase();
        // A held message needs a receive or room to buffer; a backlog of responses needs the peer
        // to read.
        if phase == RxPhase::Held {
            let held = self.rx.unconsumed();
            if !self.reader.try_resume(held, sender, &self.responses, ctx) {
                return false;
            }
        }
        let has_resumable =
            self.reader.has_set_aside() && self.reader.try_resume_set_aside(sender, ctx);
        let has_nothing_to_read =
            self.rx.has_ended() && self.rx.unconsumed().is_empty() && !has_resumable;
        if self.is_backlogged() || has_nothing_to_read {
            if (phase == RxPhase::Held || has_resumable) && !self.rx.has_ended() {
                // What was held no longer waits for the receive queue, only for the peer.
                self.rx.set_unparsed();
            }
            self.pause_uring_recv();
            return false;
        }
        // Reads behind the unconsumed bytes, unless they begin with a held or deferred message.
        let kept = self.rx.unconsumed().len();
        let mut len = kept;
        let (scratch, max_read) = memory.for_read();
        if phase != RxPhase::Deferred {
            scratch[..len].copy_from_slice(self.rx.unconsumed());
        }
        let mut has_input = phase != RxPhase::Reading || has_resumable;
        if matches!(phase, RxPhase::Reading | RxPhase::Unparsed) && !self.rx.has_ended() {
            let end = scratch.len().min(len + max_read);
            let count = self.read_or_end(&mut scratch[len..end]);
            len += count;
            has_input |= count > 0;
        }
        if !has_input {
            self.on_idle_pass();
            return self.rx.has_ended();
        }
        self.rx.reset_idle();
        // Parses the frames.
        let policy = match phase {
            _ if self.rx.has_ended() => UnexpectedPolicy::Buffer,
            // A held message has waited already.
            RxPhase::Deferred | RxPhase::Held => UnexpectedPolicy::DeferredOnce,
            _ => UnexpectedPolicy::Defer,
        };
        self.reader.set_unexpected_policy(policy);
        let bytes = if phase == RxPhase::Deferred {
            self.rx.unconsumed()
        } else {
            &scratch[..len]
        };
        let requests = (&mut self.pending, &mut self.responses);
        let (consumed, next_phase) = match self.reader.read(bytes, sender, requests, ctx) {
            Ok(outcome) => {
                let next = (outcome.consumed, outcome.stop_reason.into());
                self.queue_replies(outcome);
                next
            }
            Err(violation) => {
                self.end(DownReason::Protocol(violation.0));
                (len, RxPhase::Reading)
            }
        };
        if phase == RxPhase::Deferred {
            self.rx.consume(consumed, next_phase);
        } else {
            self.rx.set_unconsumed(&scratch[consumed..len], next_phase);
        }
        memory.set_kept(kept, self.rx.unconsumed().len());
        self.update_interest();
        true
    }

    /// Reads from the socket, and ends the connection at the end of the stream. Returns the number
    /// of bytes read.
    fn read_or_end(&mut self, into: &mut [u8]) -> usize {
        match self.read(into) {
            ReadResult::Bytes(count) => {
                self.rx.set_has_received();
                return count;
            }
            ReadResult::WouldBlock => {}
            ReadResult::Eof if self.rx.unconsumed().is_empty() && !self.reader.has_partial() => {
                self.end(DownReason::Closed);
            }
            // The stream ends within a frame.
            ReadResult::Eof | ReadResult::Failed => self.end(DownReason::Died),
        }
        0
    }

    /// Queues the acks and reports that the frame reader owes the peer, if they can be sent.
    fn queue_replies(&mut self, outcome: ReadOutcome) {
        if self.tx.phase() != TxPhase::Open {
            return self.responses.clear();
        }
        for ack in outcome.acks_due {
            self.writer.push_ack(ack);
        }
        for message in outcome.rendezvous_done {
            self.writer.push_rendezvous_done(message);
        }
    }

    /// Receives what has arrived so far, before this side closes the connection: at most
    /// `MAX_FINAL_READS` reads, and only messages that the receive queue accepts.
    pub(crate) fn drain_received<E: EngineContext>(
        &mut self,
        memory: &mut ReadMemory,
        ctx: &mut EndpointContext<'_, E>,
    ) {
        if self.is_reading() {
            self.stop_uring_recv();
        }
        self.socket.end_delays();
        for _ in 0..MAX_FINAL_READS {
            if self.rx.has_ended() || !self.progress_rx(memory, ctx) {
                break;
            }
        }
    }

    /// Processes the deferred message, because there will be no later pass.
    pub(crate) fn process_deferred<E: EngineContext>(&mut self, ctx: &mut EndpointContext<'_, E>) {
        if self.rx.phase() == RxPhase::Deferred {
            self.reader.set_unexpected_policy(UnexpectedPolicy::Buffer);
            let requests = (&mut self.pending, &mut self.responses);
            let (bytes, sender) = (self.rx.unconsumed(), self.peer.sender());
            // The connection is being closed, so a protocol violation or a lack of room is ignored.
            let _ = self.reader.read(bytes, sender, requests, ctx);
        }
    }

    /// Returns whether so many responses wait for the peer that no more requests are read.
    pub(super) fn is_backlogged(&self) -> bool {
        self.writer.backlog() > 2 * WRITE_BUFFER_LIMIT || self.responses.is_full()
    }

    /// Returns whether this side reads from the socket.
    pub(super) fn is_reading(&self) -> bool {
        self.rx.phase() != RxPhase::Held && !self.is_backlogged() && !self.rx.has_ended()
    }
}
