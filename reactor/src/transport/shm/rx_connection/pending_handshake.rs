//! The receiving side of the handshake, from the accepted socket to `Accept` or `Reject`.
//!
//! [`accept`] accepts a connection and checks the user of the peer. A peer of another user is
//! refused at once, before the connection takes a slot or is watched, and so is a peer whose
//! process has its share of the handshakes. Any other peer may send descriptors, and gets `Ready`.
//! A [`PendingHandshake`] then waits for the hello, which the endpoint accepts within its limits.
//! `rx_table` keeps the pending handshakes; `passive` uses [`accept`] and [`Rejection`] for
//! connection requests too.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fabric_core::{Address, Error, RefusalReason, Scheme};
use rustix::io::Errno;

use super::super::control::{self, ControlMessage, ReadError, ShmHello, VERSION};
use super::super::segment::{Segment, SegmentError};
use super::super::socket::{PeerCredentials, ShmListener, ShmSocket};
use super::{LocalEndpoint, RxConnection};
use crate::sys::fork_guard::ForkGuard;
use crate::sys::os_error::os_error;
use crate::sys::process_local::ProcessLocal;

/// A connection whose hello has not arrived yet.
#[derive(Debug)]
pub(crate) struct PendingHandshake {
    socket: ShmSocket,
    peer: PeerCredentials,
    accepted_at: Instant,
    _counted: CountedHandshake,
}

/// Counts a pending handshake of this process with this peer process.
#[derive(Debug)]
struct CountedHandshake {
    peer: Option<u64>,
    fork_guard: ForkGuard,
}

/// The pending handshakes of all endpoints of this process, by the process of the peer.
static PENDING: ProcessLocal<Mutex<PendingCounts>> = ProcessLocal::new(Mutex::default);

type PendingCounts = HashMap<Option<u64>, usize>;

fn lock_pending() -> MutexGuard<'static, PendingCounts> {
    let pending = PENDING.get().lock();
    pending.unwrap_or_else(PoisonError::into_inner)
}

impl CountedHandshake {
    fn new(peer: Option<u64>) -> Self {
        let mut pending = lock_pending();
        *pending.entry(peer).or_default() += 1;
        Self {
            peer,
            fork_guard: ForkGuard::current_process(),
        }
    }
}

impl Drop for CountedHandshake {
    fn drop(&mut self) {
        // A forked child counts its own.
        if !self.fork_guard.in_original_process() {
            return;
        }
        let mut pending = lock_pending();
        if let Some(count) = pending.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                pending.remove(&self.peer);
            }
        }
    }
}

/// Result of [`PendingHandshake::poll_handshake`].
pub(crate) enum HandshakeOutcome {
    /// The hello has not arrived yet.
    Pending(PendingHandshake),
    /// The hello is valid, and is to be accepted or rejected.
    Received(ReceivedHello),
    /// The connection was rejected with this local error.
    Rejected(Error),
    /// The peer hung up before its hello.
    Disconnected,
}

impl PendingHandshake {
    /// Begins the handshake with a peer that was just admitted.
    pub(crate) fn new(socket: ShmSocket, peer: PeerCredentials) -> Self {
        Self {
            socket,
            peer,
            accepted_at: Instant::now(),
            _counted: CountedHandshake::new(peer.process),
        }
    }

    /// Returns the number of pending handshakes of all endpoints of this process.
    pub(crate) fn count_of_process() -> usize {
        lock_pending().values().sum()
    }

    /// Returns the number of pending handshakes of all endpoints of this process with one peer
    /// process, or with all that are not known.
    pub(crate) fn count_with(peer: Option<u64>) -> usize {
        lock_pending().get(&peer).copied().unwrap_or_default()
    }

    /// Returns the process of the peer ([`PeerCredentials::process`]).
    pub(crate) fn process(&self) -> Option<u64> {
        self.peer.process
    }

    /// Returns the time since the socket was accepted.
    pub(crate) fn age(&self) -> Duration {
        self.accepted_at.elapsed()
    }

    /// Tells the peer to connect again, before the handshake is evicted.
    pub(crate) fn send_retry_later(&self) {
        control::send_control(&self.socket, ControlMessage::RetryLater);
    }

    /// Receives the hello of the peer, and sends `Reject` if the hello is invalid.
    pub(crate) fn poll_handshake(self) -> HandshakeOutcome {
        let Self { socket, peer, .. } = &self;
        match control::recv_hello(socket) {
            Ok(Some(hello)) => HandshakeOutcome::Received(ReceivedHello {
                socket: self.socket,
                peer: self.peer,
                hello,
            }),
            Ok(None) => HandshakeOutcome::Pending(self),
            Err(ReadError::HungUp) => HandshakeOutcome::Disconnected,
            Err(error) => {
                let rejection = Rejection::of_read(error, placeholder_address(peer.pid));
                HandshakeOutcome::Rejected(rejection.send(socket))
            }
        }
    }
}

/// A valid hello.
pub(crate) struct ReceivedHello {
    socket: ShmSocket,
    peer: PeerCredentials,
    hello: ShmHello,
}

impl ReceivedHello {
    /// Returns the name that the peer claims.
    pub(crate) fn from(&self) -> &Address {
        &self.hello.from
    }

    /// Returns the process of the peer ([`PeerCredentials::process`]).
    pub(crate) fn process(&self) -> Option<u64> {
        self.peer.process
    }

    /// Maps the segment of the peer and sends `Accept`.
    ///
    /// # Errors
    /// The local error, if the segment cannot be mapped. The connection was rejected.
    pub(crate) fn accept(self, local: LocalEndpoint) -> Result<Box<RxConnection>, Error> {
        let Self {
            socket,
            peer,
            hello,
        } = self;
        match Segment::map_from_peer(&hello.segment, hello.lines) {
            Ok(segment) => {
                let peer = (hello.from, peer, hello.incarnation);
                let rx = RxConnection::establish(peer, local, segment, socket);
                rx.send_accept();
                Ok(Box::new(rx))
            }
            Err(error) => Err(Rejection::of_segment(error, hello.from).send(&socket)),
        }
    }

    /// Rejects the connection because a limit of connections is reached.
    pub(crate) fn reject_for_resources(self) {
        let reason = RefusalReason::Resources;
        control::send_control(&self.socket, ControlMessage::Reject(reason));
    }
}

/// The rejection of a connection.
#[derive(Debug)]
pub(crate) struct Rejection {
    /// Reason in the `Reject` message.
    pub(crate) reason: RefusalReason,
    /// Error that this side reports.
    pub(crate) error: Error,
}

impl Rejection {
    /// Returns the rejection of a peer whose handshake message is invalid.
    pub(crate) fn of_read(error: ReadError, peer: Address) -> Self {
        let reason = match error {
            ReadError::DescriptorLimitReached => {
                return Self {
                    reason: RefusalReason::Resources,
                    error: os_error("recvmsg")(Errno::MFILE),
                };
            }
            ReadError::VersionMismatch(theirs) => {
                let ours = VERSION;
                let reason = RefusalReason::Version { theirs, ours };
                let error = Error::ConnectionRefused { peer, reason };
                return Self { reason, error };
            }
            ReadError::WrongEpType => RefusalReason::EpType,
            ReadError::Malformed(_) | ReadError::HungUp => RefusalReason::Malformed,
        };
        Self::protocol(reason, peer, error.violation())
    }

    /// Returns the rejection of a peer whose segment cannot be mapped.
    pub(crate) fn of_segment(error: SegmentError, peer: Address) -> Self {
        match error {
            SegmentError::Malformed(what) => Self::protocol(RefusalReason::Malformed, peer, what),
            SegmentError::NoResources(error) => Self {
                reason: RefusalReason::Resources,
                error,
            },
        }
    }

    /// Sends the rejection. Returns the error that this side reports.
    pub(crate) fn send(self, socket: &ShmSocket) -> Error {
        control::send_control(socket, ControlMessage::Reject(self.reason));
        self.error
    }

    /// Returns the rejection of a peer that has violated the protocol.
    pub(crate) fn protocol(reason: RefusalReason, peer: Address, what: &'static str) -> Self {
        let what = what.into();
        Self {
            reason,
            error: Error::Protocol { peer, what },
        }
    }
}

/// How many connections a poll of a listener may still accept.
pub(crate) struct AcceptBudget {
    accepts: usize,
    /// Connections of other users that may still be refused. Their processes can connect without
    /// end, and a thread that serves peers of this user must not be busy with them.
    refusals: usize,
}

impl AcceptBudget {
    const ACCEPTS: usize = 64;
    const REFUSALS: usize = 2;

    /// Returns the budget of one poll.
    pub(crate) fn new() -> Self {
        Self {
            accepts: Self::ACCEPTS,
            refusals: Self::REFUSALS,
        }
    }

    /// Returns whether another connection may be accepted.
    pub(crate) fn has_more(&self) -> bool {
        self.accepts > 0 && self.refusals > 0
    }

    fn spend(&mut self, accepted: &Accepted) {
        self.accepts = self.accepts.saturating_sub(1);
        let is_refusal = matches!(accepted, Accepted::Refused(_));
        self.refusals = self.refusals.saturating_sub(is_refusal.into());
    }
}

/// A connection that was accepted from a backlog.
pub(crate) enum Accepted {
    /// The peer is of this user, and was sent `Ready`.
    Admitted(ShmSocket, PeerCredentials),
    /// The peer is of another user, or its user is not known. The connection was rejected and
    /// closed, with this local error.
    Refused(Error),
    /// The process of the peer has its share of the handshakes. It was told to connect again later,
    /// and the connection was closed.
    AtShare,
    /// The peer has closed the connection.
    Disconnected,
}

/// Accepts a connection and checks the user of its peer. Permits descriptors and sends `Ready`, or
/// refuses the connection: `is_at_share` tells whether the process of the peer has its share of the
/// handshakes. `None` if no connection is waiting. `budget` must have
/// [more](AcceptBudget::has_more).
///
/// # Errors
/// Errors of `accept4`.
pub(crate) fn accept(
    listener: &ShmListener,
    budget: &mut AcceptBudget,
    is_at_share: impl FnOnce(Option<u64>) -> bool,
) -> Result<Option<Accepted>, Errno> {
    let Some(socket) = listener.accept()? else {
        return Ok(None);
    };
    let checked = socket.credentials().and_then(|peer| {
        peer.check_user(&placeholder_address(peer.pid))?;
        Ok(peer)
    });
    let accepted = match checked {
        // A process that connects and disconnects in a loop must not take more time than this.
        Ok(_) if socket.has_hung_up() => Accepted::Disconnected,
        // A process does not flood itself.
        Ok(peer) if !peer.is_this_process() && is_at_share(peer.process) => {
            control::send_control(&socket, ControlMessage::RetryLater);
            Accepted::AtShare
        }
        Ok(peer) => {
            socket.admit_rights();
            control::send_control(&socket, ControlMessage::Ready);
            Accepted::Admitted(socket, peer)
        }
        Err(error) => {
            control::send_control(&socket, ControlMessage::Reject(RefusalReason::User));
            Accepted::Refused(error)
        }
    };
    budget.spend(&accepted);
    Ok(Some(accepted))
}

/// Returns the local error of a connection whose process has its share of the handshakes.
pub(crate) fn too_many_handshakes(limit: usize) -> Error {
    Error::TooMany {
        what: "pending handshakes of one process",
        count: limit + 1,
        limit,
    }
}

/// Returns an address for error messages about a process whose endpoint name is not known.
pub(crate) fn placeholder_address(pid: Option<i32>) -> Address {
    let pid = pid.map_or("unknown".into(), |pid| pid.to_string());
    Address::new(Scheme::Shm, &format!("process-{pid}"))
        .unwrap_or_else(|_| unreachable!("process address is a valid name"))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

    use fabric_core::flags::Access;

    use super::super::super::control::tests::send_with_fds;
    use super::super::super::control::{ControlEvent, MemoryGrant};
    use super::super::super::loans::{LoanPool, ReceivedLoans};
    use super::super::super::ring::LINE_LEN;
    use super::super::super::socket::SocketConnect;
    use super::*;
    use crate::sys::closer::tests::block_memory_closer;
    use crate::sys::mapping::CONTROL_LEN;
    use crate::sys::memfd;

    const LINES: usize = 64;
    const NAME: &str = "release-test";

    /// Returns sealed memory with the size of a segment.
    fn memory() -> OwnedFd {
        let size = CONTROL_LEN + LINES * LINE_LEN;
        let memory = memfd::create(NAME, size).unwrap();
        memfd::seal(&memory, true).unwrap();
        memory
    }

    /// Returns how often this process has such memory mapped, and how many descriptors it has.
    fn held() -> (usize, usize) {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let fds = std::fs::read_dir("/proc/self/fd").unwrap();
        let links = fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
        (
            maps.matches(NAME).count(),
            links
                .filter(|link| link.to_string_lossy().contains(NAME))
                .count(),
        )
    }

    fn local_endpoint() -> LocalEndpoint {
        LocalEndpoint {
            incarnation: 1,
            is_rma_target: true,
            rma_events: false,
            cma_enabled: false,
            received_loans: ReceivedLoans::new(LoanPool::default()),
        }
    }

    /// Sends this hello with these descriptors, and handles the hello.
    fn handshake(hello: &[u8], fds: &[BorrowedFd<'_>]) -> (HandshakeOutcome, ShmSocket) {
        let name = format!("{NAME}-{}", std::process::id());
        let name = Address::new(Scheme::Shm, &name).unwrap();
        let listener = ShmListener::open(&name).unwrap();
        let Ok(SocketConnect::Connected(client, _)) = ShmSocket::connect(&name) else {
            panic!("the listener has room for a connection");
        };
        let Ok(Some(Accepted::Admitted(socket, peer))) =
            accept(&listener, &mut AcceptBudget::new(), |_| false)
        else {
            panic!("a connection of this user was not admitted");
        };
        send_with_fds(&client, hello, fds);
        (PendingHandshake::new(socket, peer).poll_handshake(), client)
    }

    /// Memory that a peer names in its messages is closed and unmapped by the closer, and not by
    /// the thread that holds the lock of the domain.
    #[test]
    fn memory_of_peers_is_released_by_the_closer() {
        let mut hello = b"fab-shm\0\x01\0\x40\0\0\0\x07\0\0\0\0\0\0\0".to_vec();
        hello.extend(b"peer");
        let unblock = block_memory_closer();
        let mut expected = (0, 0);
        let malformed = [
            &b"short"[..],
            &[7; 40],
            &[7; 400],
            &[&hello[..], b"/"].concat(),
        ];
        for malformed in malformed {
            let memory = memory();
            let (outcome, _client) = handshake(malformed, &[memory.as_fd()]);
            assert!(matches!(outcome, HandshakeOutcome::Rejected(_)));
            drop(memory);
            expected.1 += 1;
            assert_eq!(held(), expected, "{malformed:?}");
        }
        let several = memory();
        let (outcome, _client) = handshake(&hello, &[several.as_fd(), several.as_fd()]);
        assert!(matches!(outcome, HandshakeOutcome::Rejected(_)));
        drop(several);
        expected.1 += 2;
        assert_eq!(held(), expected);

        // A connection that ends: its segment, its bounce buffer and a loan.
        let segment = memory();
        let (outcome, client) = handshake(&hello, &[segment.as_fd()]);
        let HandshakeOutcome::Received(received) = outcome else {
            panic!("the hello is valid");
        };
        let mut rx = received.accept(local_endpoint()).expect("valid memory");
        drop(segment);
        let grant = |rx: &mut RxConnection, key, len, access| {
            let memory = memory();
            let grant = MemoryGrant {
                key,
                len,
                access,
                base: 0,
                rma_events: false,
                memory: memory.as_fd(),
                control_page: None,
            };
            control::send_grant(&client, &grant).unwrap();
            match control::recv_control(rx.socket().expect("the peer is up")) {
                Ok(Some(ControlEvent::Grant(grant))) => rx.on_grant(grant),
                other => panic!("{other:?}"),
            }
        };
        let len = LINES * LINE_LEN;
        assert_eq!(grant(&mut rx, 7, len, Access::REMOTE_READ), Ok(()));
        assert!(grant(&mut rx, 7, len, Access::REMOTE_READ).is_err());
        assert!(grant(&mut rx, 0, len, Access::REMOTE_WRITE).is_err());
        rx.unmap_loan(7);
        drop((rx, client));
        // The segment, and three grants that were mapped.
        assert_eq!(held(), (4, expected.1 + 4));

        drop(unblock);
        while held() != (0, 0) {
            std::thread::yield_now();
        }
    }
}
