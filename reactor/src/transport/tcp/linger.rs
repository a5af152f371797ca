//! Closing connections with something still to be sent or read (linger).
//!
//! The kernel discards the unsent bytes of a connection that is closed while received bytes are
//! unread. So a background thread sends what is left when an endpoint closes a connection, and
//! reads and discards what the peer still sends.

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
/// Maximum number of lingering connections; the oldest are closed to make room.
const MAX_LINGERING: usize = 1024;

/// A connection that is being closed.
struct Lingering {
    socket: TcpSocket,
    unsent: Vec<u8>,
    /// Whether the peer may still send something.
    read_open: bool,
    deadline: Instant,
}

/// Closes a connection in the background, when the peer has taken what was sent and has closed too,
/// or after [`LINGER_TIMEOUT`]. The caller holds the lock of a domain, so the work done before
/// returning is bounded, however fast the peer sends.
pub(crate) fn close(mut socket: TcpSocket, unsent: &[u8]) {
    if !socket.in_original_process() {
        return;
    }
    socket.unwatch();
    let mut lingering = Lingering::new(socket, unsent);
    if lingering.progress() {
        static THREAD: OnceLock<Option<Sender<Lingering>>> = OnceLock::new();
        let thread = THREAD.get_or_init(|| {
            let (tx, rx) = channel();
            let named = std::thread::Builder::new().name("fab-linger".into());
            named
                .spawn(move || run_linger_thread(&rx))
                .is_ok()
                .then_some(tx)
        });
        if let Some(thread) = thread {
            let _ = thread.send(lingering);
        }
    }
}

fn run_linger_thread(receiver: &Receiver<Lingering>) {
    let mut all: Vec<Lingering> = Vec::new();
    loop {
        if all.is_empty() {
            let Ok(first) = receiver.recv() else { return };
            all.push(first);
        }
        all.extend(receiver.try_iter());
        if all.len() > MAX_LINGERING {
            all.drain(..all.len() - MAX_LINGERING);
        }
        let mut fds: Vec<_> = all
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
        all.retain_mut(|lingering| lingering.deadline > now && lingering.progress());
    }
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

    /// Sends and discards within a bound; false when the connection can be closed.
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
        // A half-closed peer may still read.
        self.read_open || !self.unsent.is_empty()
    }
}

#[cfg(all(test, not(loom)))]
#[path = "linger_tests.rs"]
mod tests;
