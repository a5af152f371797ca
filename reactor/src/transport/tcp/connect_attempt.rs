//! Attempts to connect, with `connect(2)` or with io_uring.
//!
//! With `connect(2)`, epoll reports the outcome and the endpoint's timer enforces the deadline.
//! With io_uring, the connect is an SQE linked to a timeout SQE. The kernel enforces the deadline;
//! until the socket is connected, it is in no epoll set and the timer is not armed. The deadline
//! covers the handshake too, so the timer enforces the remaining time after the socket is
//! connected. [`ConnectAttempt::is_in_uring`] tells which of the two enforces the deadline. Both
//! ways have the same results.
//!
//! An attempt that fails before anything was sent fails in the call that posts the operation, as
//! with `connect(2)`: completions are read right after the SQEs were submitted.
//!
//! When a thread exits, the kernel stops working on the operations that the thread has submitted.
//! If the peer replies afterwards, the connect ends with `ECANCELED`. If the timeout fires, the
//! timeout ends and the connect does not. So an attempt whose timeout SQE ended without firing is
//! canceled. A canceled attempt is retried once with `connect(2)` on the same socket, under the
//! timer. An attempt that finds no room in the submission queue, or that cannot be submitted, uses
//! `connect(2)` too. Under manual progress the kernel delays the completion of the SQE while the
//! thread that submitted the SQE computes; `connect(2)` is not delayed.
//!
//! io_uring makes connecting no faster: a connect saves two `epoll_ctl` calls, and costs one `read`
//! of the eventfd.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use fabric_core::transport::{Interest, WaitSet};
use fabric_core::{Address, Error, Result};
use rustix::io::Errno;

use super::socket::TcpSocket;
use crate::sys::uring::{OpId, SharedUring, TimedOutcome};

/// What an attempt needs from its endpoint: the local address, the domain's epoll set and the token
/// that report the outcome, and the io_uring instance, if that is the backend.
pub(super) struct ConnectContext<'a> {
    pub(super) local_addr: SocketAddr,
    pub(super) wait_set: &'a Arc<dyn WaitSet>,
    pub(super) token: u64,
    pub(super) uring: Option<&'a SharedUring>,
}

/// An attempt to connect.
pub(super) struct ConnectAttempt {
    peer_addr: SocketAddr,
    /// The connect in io_uring; `None` with `connect(2)`, or after the completion.
    uring_connect: Option<UringConnect>,
}

/// The outcome of a connect in io_uring.
pub(super) enum ConnectEvent {
    /// The connect has completed; the socket knows whether it is connected.
    Completed,
    Failed(Errno),
    /// The linked timeout has fired.
    TimedOut,
    /// The attempt continues with `connect(2)`.
    FellBack,
    /// The attempt would continue with `connect(2)`, but the socket cannot be watched.
    WatchFailed,
}

impl ConnectAttempt {
    /// Starts to connect a socket to a peer.
    ///
    /// # Errors
    /// Failures that are known at once, before anything was sent.
    pub(super) fn start(
        socket: &mut TcpSocket,
        (name, to): (&Address, SocketAddr),
        deadline: Instant,
        context: &ConnectContext<'_>,
    ) -> Result<Self> {
        let failed = |errno| connect_error(context.local_addr, (name, to), errno);
        let uring_connect = match context.uring {
            Some(uring) => {
                UringConnect::start(uring, socket, to, deadline, context.token).map_err(failed)?
            }
            None => None,
        };
        if uring_connect.is_none() {
            connect_syscall(socket, to, context.wait_set, context.token)?.map_err(failed)?;
        }
        Ok(Self {
            peer_addr: to,
            uring_connect,
        })
    }

    /// Returns whether io_uring connects, and enforces the deadline.
    pub(super) fn is_in_uring(&self) -> bool {
        self.uring_connect.is_some()
    }

    /// Handles a completion of io_uring; `None` if the completion is of another attempt.
    pub(super) fn on_uring_completion(
        &mut self,
        socket: &mut TcpSocket,
        (op_id, outcome): (OpId, TimedOutcome),
        (wait_set, token): (&Arc<dyn WaitSet>, u64),
    ) -> Option<ConnectEvent> {
        self.uring_connect
            .take_if(|uring_connect| uring_connect.op_id == op_id)?;
        Some(match outcome {
            TimedOutcome::Completed(Ok(_)) => ConnectEvent::Completed,
            TimedOutcome::Completed(Err(errno)) => ConnectEvent::Failed(errno),
            TimedOutcome::TimedOut => ConnectEvent::TimedOut,
            TimedOutcome::Interrupted => {
                match connect_syscall(socket, self.peer_addr, wait_set, token) {
                    Ok(Ok(())) => ConnectEvent::FellBack,
                    Ok(Err(errno)) => ConnectEvent::Failed(errno),
                    Err(_) => ConnectEvent::WatchFailed,
                }
            }
        })
    }
}

/// A connect in io_uring; dropping it cancels the connect.
struct UringConnect {
    uring: SharedUring,
    op_id: OpId,
}

impl UringConnect {
    /// Starts the connect; `None` when the SQEs cannot be queued or submitted now.
    ///
    /// # Errors
    /// A failure that is known at once, before anything was sent.
    fn start(
        uring: &SharedUring,
        socket: &TcpSocket,
        to: SocketAddr,
        deadline: Instant,
        token: u64,
    ) -> Result<Option<Self>, Errno> {
        let mut locked = uring.lock();
        let timeout = deadline.saturating_duration_since(Instant::now());
        let Ok(op_id) = locked.connect(socket.shared_fd(), token, to, timeout) else {
            return Ok(None);
        };
        let is_submitted = locked.submit().is_ok();
        let failure = locked
            .early_error(op_id)
            .filter(|errno| is_local_failure(*errno));
        drop(locked);
        let started = Self {
            uring: uring.clone(),
            op_id,
        };
        match failure {
            Some(errno) => Err(errno),
            // Without submission the timeout would not start; dropping `started` cancels the
            // connect.
            None => Ok(is_submitted.then_some(started)),
        }
    }
}

impl Drop for UringConnect {
    fn drop(&mut self) {
        let mut uring = self.uring.lock();
        uring.detach(self.op_id);
        // If the submission fails, the next one includes the cancellation.
        let _ = uring.submit();
    }
}

/// Starts or continues a connect with `connect(2)`, and watches the socket for the outcome. The
/// inner result is that of `connect(2)`.
///
/// # Errors
/// The socket cannot be watched.
fn connect_syscall(
    socket: &mut TcpSocket,
    to: SocketAddr,
    wait_set: &Arc<dyn WaitSet>,
    token: u64,
) -> Result<Result<(), Errno>> {
    if let Err(errno) = socket.connect(to) {
        return Ok(Err(errno));
    }
    socket.watch(wait_set, token, Interest::Write).map(Ok)
}

/// Returns whether a connect failed with this error before anything was sent. The call that posts
/// the operation reports such a failure, with either backend.
fn is_local_failure(errno: Errno) -> bool {
    let remote_errors = [Errno::CONNREFUSED, Errno::CONNRESET, Errno::TIMEDOUT];
    !remote_errors.contains(&errno)
}

/// Returns the error of a failed connect from `from` to a peer.
pub(super) fn connect_error(
    from: SocketAddr,
    (peer, to): (&Address, SocketAddr),
    errno: Errno,
) -> Error {
    match errno {
        // The connection was refused, or reset before the handshake began.
        Errno::CONNREFUSED | Errno::CONNRESET => Error::NoSuchPeer(peer.clone()),
        Errno::TIMEDOUT => Error::TimedOut(peer.clone()),
        // EINVAL is Linux's answer to a connect to another machine from a loopback address.
        Errno::INVAL | Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::ADDRNOTAVAIL => {
            let is_loopback_only = from.ip().is_loopback() && !to.ip().is_loopback();
            let why = match errno {
                _ if is_loopback_only => "the endpoint is bound to a loopback address".to_owned(),
                errno => std::io::Error::from(errno).to_string(),
            };
            Error::Unreachable {
                peer: peer.clone(),
                why: format!("from {}: {why}", from.ip()).into(),
            }
        }
        errno => Error::os("connect", errno.raw_os_error()),
    }
}
