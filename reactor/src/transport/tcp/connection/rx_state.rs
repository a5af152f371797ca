//! The state of the receive side of a connection: the bytes that were read and not consumed, what
//! these bytes wait for, and the end of the stream.

use fabric_core::event::DownReason;
use fabric_core::tcp::StopReason;

/// Passes without input after which a connection is not polled until its socket is ready.
const IDLE_PASSES: u32 = 2000;

/// The receive side of a connection.
#[derive(Debug)]
pub(super) struct RxState {
    unconsumed: UnconsumedBytes,
    phase: RxPhase,
    stream: StreamState,
    /// Passes without input since the last input.
    idle_passes: u32,
    /// Whether bytes were received since the last call of `take_has_received`.
    has_received: bool,
}

/// Whether more bytes are read from the socket.
#[derive(Clone, Debug, PartialEq, Eq)]
enum StreamState {
    Open,
    /// The peer has closed or reset the connection while this side did not read. The bytes in the
    /// socket, which are the last ones, are read later.
    PeerClosed,
    /// Nothing more is read: the peer has sent no more, or the connection is broken. Unconsumed
    /// bytes are processed nevertheless.
    Ended(DownReason),
}

/// What the unconsumed bytes of a connection wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RxPhase {
    /// The next bytes from the socket.
    Reading,
    /// The frame reader: the bytes followed the peer's control message, or the response queue is or
    /// was full.
    Unparsed,
    /// The next pass: the first message was deferred (`UnexpectedPolicy`).
    Deferred,
    /// A receive or buffer space for the first message, or a locked region. Nothing is read
    /// meanwhile.
    Held,
}

impl From<StopReason> for RxPhase {
    fn from(reason: StopReason) -> Self {
        match reason {
            StopReason::NeedsBytes => Self::Reading,
            StopReason::ResponsesFull => Self::Unparsed,
            StopReason::Deferred => Self::Deferred,
            StopReason::Held => Self::Held,
        }
    }
}

impl RxState {
    /// Returns the state after the handshake. `unconsumed` are bytes that followed the peer's
    /// control message.
    pub(super) fn new(unconsumed: Vec<u8>) -> Self {
        Self {
            phase: if unconsumed.is_empty() {
                RxPhase::Reading
            } else {
                RxPhase::Unparsed
            },
            // A new connection without input is polled when its socket is ready.
            idle_passes: if unconsumed.is_empty() {
                IDLE_PASSES
            } else {
                0
            },
            unconsumed: UnconsumedBytes {
                bytes: unconsumed,
                consumed: 0,
            },
            stream: StreamState::Open,
            has_received: false,
        }
    }

    pub(super) fn phase(&self) -> RxPhase {
        self.phase
    }

    pub(super) fn end_reason(&self) -> Option<DownReason> {
        match self.stream {
            StreamState::Ended(reason) => Some(reason),
            StreamState::Open | StreamState::PeerClosed => None,
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(self.stream, StreamState::Ended(_))
    }

    /// Returns whether the peer can send more bytes.
    pub(super) fn is_open(&self) -> bool {
        self.stream == StreamState::Open
    }

    /// Notes that the peer has closed or reset the connection. The bytes in the socket are the last
    /// ones.
    pub(super) fn set_peer_closed(&mut self) {
        if self.is_open() {
            self.stream = StreamState::PeerClosed;
        }
    }

    /// Notes that nothing more is read from the socket. The first reason counts.
    pub(super) fn end(&mut self, reason: DownReason) {
        if !self.has_ended() {
            self.stream = StreamState::Ended(reason);
        }
    }

    /// Returns the bytes that were read and not consumed.
    pub(super) fn unconsumed(&self) -> &[u8] {
        self.unconsumed.remaining()
    }

    /// Notes that the unconsumed bytes, and what is set aside, wait for the frame reader.
    pub(super) fn set_unparsed(&mut self) {
        self.phase = RxPhase::Unparsed;
    }

    /// Consumes the first unconsumed bytes. The other bytes wait for what `phase` names.
    pub(super) fn consume(&mut self, count: usize, phase: RxPhase) {
        self.unconsumed.consume(count);
        self.phase = phase;
    }

    /// Replaces the unconsumed bytes. The new bytes wait for what `phase` names.
    pub(super) fn set_unconsumed(&mut self, bytes: &[u8], phase: RxPhase) {
        self.unconsumed.replace(bytes);
        self.phase = phase;
    }

    /// Returns whether the connection had input recently, so that passes poll it.
    pub(super) fn is_recently_active(&self) -> bool {
        self.idle_passes < IDLE_PASSES
    }

    /// Notes that bytes were received.
    pub(super) fn set_has_received(&mut self) {
        self.has_received = true;
    }

    /// Returns whether bytes were received since the last call.
    pub(super) fn take_has_received(&mut self) -> bool {
        std::mem::take(&mut self.has_received)
    }

    /// Lets passes poll the connection for [`IDLE_PASSES`] again.
    pub(super) fn reset_idle(&mut self) {
        self.idle_passes = 0;
    }

    /// Counts a pass without input. Returns the number of such passes since the last input.
    pub(super) fn count_idle_pass(&mut self) -> u32 {
        self.idle_passes = self.idle_passes.saturating_add(1);
        self.idle_passes
    }
}

/// Bytes that were read and not consumed. Consuming bytes does not move the rest.
#[derive(Debug)]
struct UnconsumedBytes {
    bytes: Vec<u8>,
    /// Number of bytes at the front that were consumed.
    consumed: usize,
}

impl UnconsumedBytes {
    fn remaining(&self) -> &[u8] {
        &self.bytes[self.consumed..]
    }

    /// Consumes the first `count` bytes.
    fn consume(&mut self, count: usize) {
        self.consumed += count;
        if self.remaining().is_empty() {
            self.replace(&[]);
        }
    }

    fn replace(&mut self, bytes: &[u8]) {
        self.consumed = 0;
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
    }
}
