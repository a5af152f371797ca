//! A peer: the connections with it, and the way of the operations that are sent to it.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fabric_core::event::DownReason;
use fabric_core::tcp::WireProtocol;
use fabric_core::{Address, Error};

use super::super::connection::{QueuedTxOp, TcpConnection};
use super::HANDSHAKE_TIMEOUT;

/// The first delay before a refused connect is retried. The delay doubles at each refusal, up to 64
/// times this.
const INITIAL_RETRY_DELAY: Duration = Duration::from_millis(2);
/// Minimum time between the beginnings of two verifications of a peer's connections. Requests with
/// the address of a peer make this endpoint connect to that peer no more often.
const VERIFICATION_INTERVAL: Duration = Duration::from_millis(100);

/// A peer to which this endpoint is connected, or has something to send.
///
/// **Invariant.** The connection that sends use, once established, is in `established`, and so is
/// the replaced one. They are different: a connection is replaced after sends have stopped using
/// it.
#[derive(Debug)]
pub(super) struct TcpPeer {
    pub(super) address: Address,
    pub(super) socket_addr: SocketAddr,
    pub(super) tx_queue: VecDeque<QueuedTxOp>,
    tx_connection: PeerTxState,
    /// Indices of all established connections with the peer.
    established: Vec<usize>,
    /// Index of a replaced connection, from which the endpoint only receives.
    replaced: Option<usize>,
    /// When the next verification may begin.
    next_verification: Option<Instant>,
    /// The protocol of the next connection request to the peer.
    protocol: WireProtocol,
}

/// The connection that sends to a peer use. Indices are those of the endpoint's connections.
#[derive(Clone, Copy, Debug)]
enum PeerTxState {
    /// None. The next send connects.
    None,
    /// None, because the peer has refused: both sides connect. This side connects again at a time.
    RetryAt(Instant, Attempts),
    /// An outbound handshake.
    Connecting(usize, Attempts),
    /// An established connection. An outbound handshake may verify it, and takes its place when it
    /// ends.
    Established {
        connection: usize,
        verification: Option<usize>,
    },
}

/// What the attempts to connect have in common, until one succeeds or no operation waits any more.
#[derive(Clone, Copy, Debug)]
struct Attempts {
    /// When this side no longer retries.
    give_up_at: Instant,
    /// The delay before the last retry.
    last_delay: Option<Duration>,
    /// Whether the peer has asked for the other protocol.
    has_switched_protocol: bool,
}

impl Attempts {
    fn new() -> Self {
        Self {
            give_up_at: Instant::now() + HANDSHAKE_TIMEOUT,
            last_delay: None,
            has_switched_protocol: false,
        }
    }
}

/// What follows from a refused attempt to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterRefusal {
    /// No operation waits: the next send connects.
    Idle,
    /// This side connects again at once.
    ConnectNow,
    /// This side connects again at this time.
    RetryAt(Instant),
    /// The peer has refused for too long: the queued operations fail.
    GiveUp,
}

/// The connection that sends use.
impl TcpPeer {
    /// Returns a peer without connection.
    pub(super) fn new(address: Address, socket_addr: SocketAddr, protocol: WireProtocol) -> Self {
        Self {
            address,
            socket_addr,
            tx_queue: VecDeque::new(),
            tx_connection: PeerTxState::None,
            established: Vec::new(),
            replaced: None,
            next_verification: None,
            protocol,
        }
    }

    /// Returns the established connection that sends use.
    #[inline]
    pub(super) fn tx_connection(&self) -> Option<usize> {
        match self.tx_connection {
            PeerTxState::Established { connection, .. } => Some(connection),
            _ => None,
        }
    }

    /// Returns the outbound handshake for whose connection sends wait.
    pub(super) fn connecting(&self) -> Option<usize> {
        match self.tx_connection {
            PeerTxState::Connecting(connection, _) => Some(connection),
            _ => None,
        }
    }

    /// Returns whether sends have a connection, or wait for one.
    pub(super) fn has_tx_connection(&self) -> bool {
        self.tx_connection().or(self.connecting()).is_some()
    }

    /// Returns whether a send has to connect: there is no connection, and no retry is scheduled.
    pub(super) fn must_connect(&self) -> bool {
        matches!(self.tx_connection, PeerTxState::None)
    }

    /// Sets the outbound handshake for whose connection sends wait.
    pub(super) fn set_connecting(&mut self, connection: usize) {
        debug_assert!(!self.has_tx_connection(), "{self:?}");
        let attempts = match self.tx_connection {
            PeerTxState::RetryAt(_, attempts) => attempts,
            _ => Attempts::new(),
        };
        self.tx_connection = PeerTxState::Connecting(connection, attempts);
    }

    /// Ends the wait for an outbound handshake, which has failed or is replaced.
    pub(super) fn end_connecting(&mut self) {
        if self.connecting().is_some() {
            self.tx_connection = PeerTxState::None;
        }
    }

    /// Handles that the peer has refused the attempt because both sides connect, or that the peer
    /// still has a connection that this side has lost.
    pub(super) fn on_refused(&mut self) -> AfterRefusal {
        let PeerTxState::Connecting(_, mut attempts) = self.tx_connection else {
            return AfterRefusal::Idle;
        };
        self.tx_connection = PeerTxState::None;
        if self.tx_queue.is_empty() {
            return AfterRefusal::Idle;
        }
        let now = Instant::now();
        if attempts.give_up_at < now {
            return AfterRefusal::GiveUp;
        }
        let delay = attempts.last_delay.map_or(INITIAL_RETRY_DELAY, |delay| {
            (delay * 2).min(INITIAL_RETRY_DELAY * 64)
        });
        attempts.last_delay = Some(delay);
        // Two endpoints that connect to each other must not retry in lockstep.
        let jitter = RandomState::new().hash_one(self.socket_addr) % 1000;
        let retry_at = now + delay + Duration::from_micros(jitter);
        self.tx_connection = PeerTxState::RetryAt(retry_at, attempts);
        AfterRefusal::RetryAt(retry_at)
    }

    /// Handles that the peer has refused the attempt and asks for this protocol. The retry waits if
    /// the peer has asked before.
    pub(super) fn on_other_protocol(&mut self, protocol: WireProtocol) -> AfterRefusal {
        self.protocol = protocol;
        let PeerTxState::Connecting(_, mut attempts) = self.tx_connection else {
            return AfterRefusal::Idle;
        };
        if attempts.has_switched_protocol {
            return self.on_refused();
        }
        if self.tx_queue.is_empty() {
            self.tx_connection = PeerTxState::None;
            return AfterRefusal::Idle;
        }
        attempts.has_switched_protocol = true;
        self.tx_connection = PeerTxState::RetryAt(Instant::now(), attempts);
        AfterRefusal::ConnectNow
    }

    /// Returns the time of the next attempt to connect, if a retry is scheduled.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        match self.tx_connection {
            PeerTxState::RetryAt(at, _) => Some(at),
            _ => None,
        }
    }

    /// Cancels the scheduled retry.
    pub(super) fn cancel_retry(&mut self) {
        if self.retry_at().is_some() {
            self.tx_connection = PeerTxState::None;
        }
    }

    /// Lets sends use an established connection.
    pub(super) fn set_tx_connection(&mut self, connection: usize) {
        debug_assert!(self.established.contains(&connection), "{self:?}");
        self.tx_connection = PeerTxState::Established {
            connection,
            verification: None,
        };
    }

    /// Ends the use of an established connection for sends. They wait for the outbound handshake
    /// that verifies the connection, if there is one.
    pub(super) fn end_tx_connection(&mut self, connection: usize) {
        if let PeerTxState::Established {
            connection: current,
            verification,
        } = self.tx_connection
            && current == connection
        {
            self.tx_connection = match verification {
                Some(outbound) => PeerTxState::Connecting(outbound, Attempts::new()),
                None => PeerTxState::None,
            };
        }
    }

    /// Returns the protocol of the next connection request to the peer.
    pub(super) fn protocol(&self) -> WireProtocol {
        self.protocol
    }

    pub(super) fn set_protocol(&mut self, protocol: WireProtocol) {
        self.protocol = protocol;
    }
}

/// Verification of the established connection.
impl TcpPeer {
    /// Returns whether a verification may begin now.
    pub(super) fn may_verify(&self, now: Instant) -> bool {
        let is_unverified = matches!(
            self.tx_connection,
            PeerTxState::Established {
                verification: None,
                ..
            }
        );
        is_unverified && self.next_verification.is_none_or(|next| next <= now)
    }

    /// Notes that a verification has begun, or could not.
    pub(super) fn on_verification_begun(&mut self, outbound: Option<usize>, now: Instant) {
        self.next_verification = Some(now + VERIFICATION_INTERVAL);
        if let PeerTxState::Established { verification, .. } = &mut self.tx_connection {
            *verification = outbound;
        }
    }

    /// Returns whether this outbound handshake verifies the established connection.
    pub(super) fn is_verification(&self, outbound: usize) -> bool {
        matches!(
            self.tx_connection,
            PeerTxState::Established { verification, .. } if verification == Some(outbound)
        )
    }

    /// Notes that the verification has failed. If the process at the peer's address has replied,
    /// the next verification begins after as much time again: that process may have this
    /// connection, and then verifies it in turn. Without a pause, two endpoints far apart would do
    /// so forever.
    pub(super) fn end_verification(&mut self, has_reply: bool) {
        if let PeerTxState::Established { verification, .. } = &mut self.tx_connection {
            *verification = None;
        }
        if let Some(next) = self.next_verification.filter(|_| has_reply) {
            let now = Instant::now();
            // The beginning of this verification was the interval before `next`.
            let pause = (now + VERIFICATION_INTERVAL).saturating_duration_since(next);
            self.next_verification = Some(now + pause.max(VERIFICATION_INTERVAL));
        }
    }
}

/// Established connections.
impl TcpPeer {
    /// Adds an established connection.
    pub(super) fn add_established(&mut self, connection: usize) {
        self.established.push(connection);
    }

    /// Removes a connection that has ended. Returns whether sends have used it.
    pub(super) fn remove_established(&mut self, connection: usize) -> bool {
        self.established.retain(|other| *other != connection);
        self.replaced.take_if(|replaced| *replaced == connection);
        let has_sent = self.tx_connection() == Some(connection);
        self.end_tx_connection(connection);
        has_sent
    }

    /// Returns all established connections with the peer.
    pub(super) fn established(&self) -> &[usize] {
        &self.established
    }

    /// Notes that another connection replaces this one. Returns the one that was replaced before.
    pub(super) fn set_replaced(&mut self, connection: usize) -> Option<usize> {
        self.replaced.replace(connection)
    }

    /// Returns whether the endpoint only receives from this connection, which another one has
    /// replaced.
    pub(super) fn is_replaced(&self, connection: usize) -> bool {
        self.replaced == Some(connection)
    }

    /// Returns whether the peer has neither a connection nor queued operations.
    pub(super) fn is_unused(&self) -> bool {
        !self.has_tx_connection() && self.tx_queue.is_empty() && self.established.is_empty()
    }

    /// Returns the error of operations for the peer, whose connection has ended.
    pub(super) fn connection_error(&self, connection: &TcpConnection) -> Error {
        let peer = self.address.clone();
        match connection.end_reason() {
            Some(DownReason::Protocol(what)) => Error::Protocol {
                peer,
                what: what.into(),
            },
            _ => Error::PeerGone(peer),
        }
    }
}
