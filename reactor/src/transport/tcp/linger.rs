//! Closing connections with something still to be sent or read (linger).
//!
//! The kernel discards the unsent bytes of a connection that is closed while received bytes are
//! unread. So a background thread sends the unsent bytes when an endpoint closes a connection, and
//! reads and discards the bytes that the peer still sends.
//!
//! A connection without unsent bytes lingers only while there are few of them: a sixteenth of
//! `RLIMIT_NOFILE`, and 16 rejected requests of one source. A further one makes the oldest one
//! close at once: a rejected request, if there is one, of the source with most. The kernel usually
//! has the reply to a rejected request, so nothing is lost with it.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::endpoint::InboundSource;
use super::socket::{TcpSocket, WriteResult};
use crate::sys::fd_limit::part_of_descriptors;
use crate::sys::fork_guard::ForkGuard;

/// Time limit for the peer to take the unsent bytes.
const LINGER_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the thread looks for new connections to close.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Limits of lingering connections without unsent bytes. Connections with unsent bytes, the ends of
/// messages, are kept until their deadline, and count towards the limits of inbound connections.
const MAX_DISCARDING: usize = 1024;
/// Maximum number of rejected requests of one source that linger.
const MAX_REJECTED_PER_SOURCE: usize = 16;

/// The phase in which a connection was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClosedPhase {
    /// This side has rejected the connection request.
    Rejected,
    Established,
}

/// A connection that an endpoint has closed, and that still has bytes to send or to discard.
struct Lingering {
    /// The address of the peer; `None` in a simulated network.
    source: Option<InboundSource>,
    phase: ClosedPhase,
    socket: TcpSocket,
    unsent: Vec<u8>,
    /// Whether the peer may still send: the end of its stream was not read.
    read_open: bool,
    /// When the connection is closed regardless.
    deadline: Instant,
}

/// The lingering connections of this process, and what the thread waits for while there are none.
struct LingerQueue {
    connections: Mutex<LingeringConnections>,
    added: Condvar,
    fork_guard: ForkGuard,
}

/// Lingering connections in the order in which they were closed.
#[derive(Default)]
struct LingeringConnections {
    by_id: BTreeMap<u64, Lingering>,
    last_id: u64,
    /// Established connections without unsent bytes.
    discarding: BTreeSet<u64>,
    /// Rejected requests, which have no unsent bytes, by source.
    rejected: HashMap<Option<InboundSource>, BTreeSet<u64>>,
    rejected_count: usize,
    /// How many connections of each source have unsent bytes.
    unsent: HashMap<Option<InboundSource>, usize>,
}

/// The queue of the thread; `None` in it if the thread could not be started.
static QUEUE: OnceLock<Option<Arc<LingerQueue>>> = OnceLock::new();

/// Closes an established connection in the background, when the peer has received the unsent bytes
/// and has closed too, or after [`LINGER_TIMEOUT`]. The caller holds the lock of a domain, so the
/// work done before returning is bounded, however fast the peer sends.
pub(crate) fn close(socket: TcpSocket, unsent: &[u8]) {
    start(socket, ClosedPhase::Established, unsent);
}

/// Closes a connection whose request this side has rejected, as [`close`] does.
pub(crate) fn close_rejected(socket: TcpSocket) {
    start(socket, ClosedPhase::Rejected, &[]);
}

fn start(mut socket: TcpSocket, phase: ClosedPhase, unsent: &[u8]) {
    if !socket.in_original_process() {
        return;
    }
    socket.unwatch();
    let mut lingering = Lingering::new(socket, phase, unsent);
    // Without a thread, as in a forked child, the connection is closed at once.
    if lingering.progress()
        && let Some(queue) = linger_queue()
    {
        queue.lock().add(lingering, max_discarding());
        queue.added.notify_one();
    }
}

/// Returns the queue of the thread, and starts the thread at the first call. `None` if the thread
/// could not be started, or is the thread of another process.
fn linger_queue() -> Option<&'static LingerQueue> {
    QUEUE.get_or_init(|| {
        let queue = Arc::new(LingerQueue {
            connections: Mutex::default(),
            added: Condvar::new(),
            fork_guard: ForkGuard::current_process(),
        });
        let of_thread = queue.clone();
        std::thread::Builder::new()
            .name("fab-linger".into())
            .spawn(move || of_thread.run())
            .is_ok()
            .then_some(queue)
    });
    started_queue()
}

/// Returns the queue of the thread. `None` before the thread was started, without a thread, and in
/// a forked child, where another thread may have held the lock at the fork.
fn started_queue() -> Option<&'static LingerQueue> {
    let queue = QUEUE.get()?.as_deref();
    queue.filter(|queue| queue.fork_guard.in_original_process())
}

/// Returns how many lingering connections have unsent bytes: those of a source, and all.
pub(crate) fn count_unsent(source: InboundSource) -> (usize, usize) {
    let Some(queue) = started_queue() else {
        return (0, 0);
    };
    let connections = queue.lock();
    let of_source = connections.unsent.get(&Some(source)).copied();
    let all = connections.unsent.values().sum();
    (of_source.unwrap_or(0), all)
}

/// Returns how many connections without unsent bytes linger at most.
fn max_discarding() -> usize {
    part_of_descriptors(16, MAX_DISCARDING)
}

impl LingerQueue {
    fn lock(&self) -> MutexGuard<'_, LingeringConnections> {
        let connections = self.connections.lock();
        connections.unwrap_or_else(PoisonError::into_inner)
    }

    /// Progresses lingering connections until they can be closed. Runs as long as the process.
    fn run(&self) {
        loop {
            let mut connections = self.lock();
            while connections.by_id.is_empty() {
                let waited = self.added.wait(connections);
                connections = waited.unwrap_or_else(PoisonError::into_inner);
            }
            connections.close_excess(max_discarding());
            let all = connections.by_id.iter();
            let (ids, polled): (Vec<_>, Vec<_>) = all
                .map(|(id, lingering)| (*id, lingering.interest()))
                .unzip();
            drop(connections);
            let mut fds: Vec<_> = polled
                .iter()
                .map(|(fd, interest)| PollFd::new(fd, *interest))
                .collect();
            let timeout = Timespec::try_from(POLL_INTERVAL).ok();
            let _ = rustix::event::poll(&mut fds, timeout.as_ref());
            drop(fds);
            // Connections that were closed meanwhile.
            drop(polled);
            // A closing endpoint may wait for the lock, so the lock is not held meanwhile.
            for id in ids {
                let Some(mut lingering) = self.lock().remove(id) else {
                    continue;
                };
                if lingering.deadline > Instant::now() && lingering.progress() {
                    self.lock().insert(id, lingering);
                }
            }
        }
    }
}

impl LingeringConnections {
    /// Adds a connection. Closes others, so that at most `limit` without unsent bytes are left.
    fn add(&mut self, lingering: Lingering, limit: usize) {
        self.last_id += 1;
        let source = lingering.source;
        self.insert(self.last_id, lingering);
        let rejected = self.rejected.get(&source);
        if let Some(rejected) = rejected.filter(|ids| ids.len() > MAX_REJECTED_PER_SOURCE) {
            self.close(rejected.first().copied());
        }
        self.close_excess(limit);
    }

    fn insert(&mut self, id: u64, lingering: Lingering) {
        if lingering.phase == ClosedPhase::Rejected {
            self.rejected
                .entry(lingering.source)
                .or_default()
                .insert(id);
            self.rejected_count += 1;
        } else if lingering.unsent.is_empty() {
            self.discarding.insert(id);
        } else {
            *self.unsent.entry(lingering.source).or_default() += 1;
        }
        self.by_id.insert(id, lingering);
    }

    fn remove(&mut self, id: u64) -> Option<Lingering> {
        let lingering = self.by_id.remove(&id)?;
        self.discarding.remove(&id);
        if !lingering.unsent.is_empty()
            && let Entry::Occupied(mut count) = self.unsent.entry(lingering.source)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        if let Some(of_source) = self.rejected.get_mut(&lingering.source)
            && of_source.remove(&id)
        {
            self.rejected_count -= 1;
            if of_source.is_empty() {
                self.rejected.remove(&lingering.source);
            }
        }
        Some(lingering)
    }

    /// Closes connections without unsent bytes, so that at most `limit` of them are left: rejected
    /// requests first, of the source with most, and the oldest of them.
    fn close_excess(&mut self, limit: usize) {
        while self.discarding.len() + self.rejected_count > limit {
            let most = self.rejected.values().max_by_key(|ids| ids.len());
            self.close(most.unwrap_or(&self.discarding).first().copied());
        }
    }

    fn close(&mut self, id: Option<u64>) {
        if let Some(closed) = id.and_then(|id| self.remove(id)) {
            // The thread may be polling the descriptor: the poll ends, and the thread closes it.
            closed.socket.shutdown_both();
        }
    }
}

impl Lingering {
    fn new(socket: TcpSocket, phase: ClosedPhase, unsent: &[u8]) -> Self {
        Self {
            source: socket.peer_addr().map(InboundSource::new),
            socket,
            phase,
            unsent: unsent.to_vec(),
            read_open: true,
            deadline: Instant::now() + LINGER_TIMEOUT,
        }
    }

    /// Returns the descriptor, and the events that the connection waits for.
    fn interest(&self) -> (Arc<OwnedFd>, PollFlags) {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::OUT, !self.unsent.is_empty());
        flags.set(PollFlags::IN, self.read_open);
        (self.socket.shared_fd().clone(), flags)
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
