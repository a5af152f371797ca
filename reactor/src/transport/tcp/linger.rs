//! Closing connections with something still to be sent or read (linger).
//!
//! The kernel discards the unsent bytes of a connection that is closed while received bytes are
//! unread. So a background thread sends the unsent bytes when an endpoint closes a connection, and
//! reads and discards the bytes that the peer still sends.

use std::io::IoSlice;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::socket::{TcpSocket, WriteResult};

/// Time limit for the peer to take the unsent bytes.
const LINGER_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the thread looks for new connections to close.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of lingering connections without unsent bytes; the oldest are closed to make
/// room. Connections with unsent bytes, the ends of messages, are kept until their deadline.
const MAX_DISCARDING: usize = 1024;

/// A connection that an endpoint has closed, and that still has bytes to send or to discard.
struct Lingering {
    socket: TcpSocket,
    unsent: Vec<u8>,
    /// Whether the peer may still send: the end of its stream was not read.
    read_open: bool,
    /// When the connection is closed regardless.
    deadline: Instant,
}

/// Closes a connection in the background, when the peer has received the unsent bytes and has
/// closed too, or after [`LINGER_TIMEOUT`]. The caller holds the lock of a domain, so the work done
/// before returning is bounded, however fast the peer sends.
pub(crate) fn close(mut socket: TcpSocket, unsent: &[u8]) {
    if !socket.in_original_process() {
        return;
    }
    socket.unwatch();
    let mut lingering = Lingering::new(socket, unsent);
    if lingering.progress() {
        // `None` if the thread could not be started: connections are then closed at once.
        static THREAD: OnceLock<Option<Sender<Lingering>>> = OnceLock::new();
        let thread = THREAD.get_or_init(|| {
            let (tx, rx) = channel();
            std::thread::Builder::new()
                .name("fab-linger".into())
                .spawn(move || run_linger_thread(&rx))
                .is_ok()
                .then_some(tx)
        });
        if let Some(thread) = thread {
            let _ = thread.send(lingering);
        }
    }
}

/// Progresses lingering connections until they can be closed. Runs as long as the process.
fn run_linger_thread(receiver: &Receiver<Lingering>) {
    let mut connections: Vec<Lingering> = Vec::new();
    loop {
        if connections.is_empty() {
            let Ok(first) = receiver.recv() else { return };
            connections.push(first);
        }
        connections.extend(receiver.try_iter());
        close_excess(&mut connections, MAX_DISCARDING);
        let mut fds: Vec<_> = connections
            .iter()
            .map(|lingering| {
                let write_interest = if lingering.unsent.is_empty() {
                    PollFlags::empty()
                } else {
                    PollFlags::OUT
                };
                let read_interest = if lingering.read_open {
                    PollFlags::IN
                } else {
                    PollFlags::empty()
                };
                PollFd::from_borrowed_fd(lingering.socket.as_fd(), read_interest | write_interest)
            })
            .collect();
        let timeout = Timespec::try_from(POLL_INTERVAL).ok();
        let _ = rustix::event::poll(&mut fds, timeout.as_ref());
        let now = Instant::now();
        connections.retain_mut(|lingering| lingering.deadline > now && lingering.progress());
    }
}

/// Closes the oldest connections without unsent bytes, so that at most `limit` are left.
fn close_excess(connections: &mut Vec<Lingering>, limit: usize) {
    let discarding = connections.iter().filter(|other| other.unsent.is_empty());
    let mut excess = discarding.count().saturating_sub(limit);
    connections.retain(|lingering| {
        let is_closed = excess > 0 && lingering.unsent.is_empty();
        excess -= usize::from(is_closed);
        !is_closed
    });
}

impl Lingering {
    fn new(socket: TcpSocket, unsent: &[u8]) -> Self {
        Self {
            socket,
            unsent: unsent.to_vec(),
            read_open: true,
            deadline: Instant::now() + LINGER_TIMEOUT,
        }
    }

    /// Sends the unsent bytes as far as the socket has room, and discards a bounded number of
    /// received bytes. Returns false when the connection can be closed.
    fn progress(&mut self) -> bool {
        while !self.unsent.is_empty() {
            match self.socket.send(&[IoSlice::new(&self.unsent)]) {
                WriteResult::Bytes(count) => drop(self.unsent.drain(..count)),
                WriteResult::WouldBlock => break,
                WriteResult::Failed => return false,
            }
        }
        if self.unsent.is_empty() {
            self.socket.shutdown_write();
        }
        self.read_open = self.read_open && self.socket.discard_received();
        // A peer that has shut down its sending direction may still read.
        self.read_open || !self.unsent.is_empty()
    }
}

#[cfg(all(test, not(loom)))]
#[path = "linger_tests.rs"]
mod tests;
