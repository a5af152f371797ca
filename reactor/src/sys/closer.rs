//! Threads that close descriptors of peers and unmap memory of peers.
//!
//! Closing a descriptor can take as long as the peer likes: a TCP socket that lingers, or a file of
//! a file system in user space. Releasing memory takes time in proportion to the memory, which the
//! peer chooses. So a thread that makes progress closes no descriptor of a peer and unmaps no
//! memory of a peer: a [`PeerFd`] and the mapping of a peer's memory are queued here when they are
//! dropped.
//!
//! There are two closers. The closes of one may block, so it has up to [`MAX_THREADS`] threads. The
//! other releases memory, with one thread: that takes time, but does not block, and goes on while
//! all threads of the first closer are blocked.
//!
//! **Invariant.** An item waits in the queue only while as many threads as permitted are busy with
//! others, or while the system cannot start a thread: each queued item for which no thread waits
//! starts one. With [`queue_limit`] items in the queue a closer is full, and endpoints stop
//! accepting connections until a thread has taken items from the queue.
//!
//! A forked child has none of its parent's threads, so it creates closers of its own. What a child
//! has inherited it releases in place: the parent holds it too.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};

use fabric_core::transport::WaitSet;

use super::fd_limit::part_of_descriptors;
use super::fd_reserve;
use super::fork_guard::ForkGuard;
use super::memfd;
use super::process_local::ProcessLocal;

/// Maximum number of threads that close descriptors. The first one is permanent; the others end
/// when the queue is empty.
const MAX_THREADS: usize = 8;
/// Returns the number of queued items at which endpoints stop accepting connections: 64, or less if
/// the process may have fewer than 2,048 descriptors, so that queued descriptors do not use up the
/// limit.
fn queue_limit() -> usize {
    part_of_descriptors(32, 64)
}

/// A descriptor that a peer has sent, which a closer closes when it is dropped.
#[derive(Debug)]
pub(crate) struct PeerFd {
    /// Some until the drop.
    fd: Option<OwnedFd>,
    fork_guard: ForkGuard,
}

/// The closing threads of one process and the items that wait for them.
struct Closer {
    state: Mutex<CloserState>,
    max_threads: usize,
    /// Wakes the permanent thread.
    work_available: Condvar,
}

/// The queue and the threads of a closer.
#[derive(Default)]
struct CloserState {
    /// Items to be released by dropping them.
    queue: VecDeque<Box<dyn Send>>,
    /// Number of threads.
    threads: usize,
    /// Whether the permanent thread waits for work.
    permanent_is_idle: bool,
    /// Epoll sets of domains that have stopped accepting, to be woken when the queue has room.
    wait_sets: Vec<Weak<dyn WaitSet>>,
}

impl CloserState {
    fn is_full(&self) -> bool {
        self.queue.len() >= queue_limit()
    }
}

/// Closes descriptors whose close may block.
static FD_CLOSER: ProcessLocal<Closer> = ProcessLocal::new(|| Closer::new(MAX_THREADS));
/// Closes descriptors of memory, and unmaps memory.
static MEMORY_CLOSER: ProcessLocal<Closer> = ProcessLocal::new(|| Closer::new(1));

/// Queues a descriptor whose close may block; does not block.
pub(crate) fn close(fd: OwnedFd) {
    FD_CLOSER.get().enqueue(Box::new(fd));
}

/// Queues a value whose drop releases memory of a peer; does not block.
pub(super) fn release_memory(memory: impl Send + 'static) {
    MEMORY_CLOSER.get().enqueue(Box::new(memory));
}

/// Returns whether the queue of a closer is full. If so, registers the domain's epoll set, which is
/// woken once when the queue has room again.
pub(crate) fn register_if_full(wait_set: &Arc<dyn WaitSet>) -> bool {
    FD_CLOSER.get().register_if_full(wait_set) || MEMORY_CLOSER.get().register_if_full(wait_set)
}

/// Waits until the queue of descriptors has room.
#[cfg(all(any(test, feature = "fuzz"), not(loom)))]
pub(crate) fn wait_for_room() {
    while FD_CLOSER.get().lock().is_full() {
        std::thread::yield_now();
    }
}

impl From<OwnedFd> for PeerFd {
    fn from(fd: OwnedFd) -> Self {
        Self {
            fd: Some(fd),
            fork_guard: ForkGuard::current_process(),
        }
    }
}

impl AsFd for PeerFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let fd = self.fd.as_ref().expect("descriptor is open until drop");
        fd.as_fd()
    }
}

impl Drop for PeerFd {
    fn drop(&mut self) {
        if !self.fork_guard.in_original_process() {
            return;
        }
        let Some(fd) = self.fd.take() else { return };
        if memfd::is_memory(&fd) {
            release_memory(fd);
        } else {
            close(fd);
        }
    }
}

impl Closer {
    /// Creates a closer, without threads yet.
    fn new(max_threads: usize) -> Self {
        Self {
            state: Mutex::default(),
            max_threads,
            work_available: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, CloserState> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn enqueue(&'static self, discarded: Box<dyn Send>) {
        let mut state = self.lock();
        state.queue.push_back(discarded);
        let idle_threads = usize::from(std::mem::take(&mut state.permanent_is_idle));
        if idle_threads > 0 {
            self.work_available.notify_one();
        }
        let wanted = state.queue.len().saturating_sub(idle_threads);
        self.start_threads(&mut state, wanted);
    }

    fn register_if_full(&'static self, wait_set: &Arc<dyn WaitSet>) -> bool {
        let mut state = self.lock();
        let is_full = state.is_full();
        if is_full {
            // Threads that could not be started before may start now.
            let wanted = state.queue.len();
            self.start_threads(&mut state, wanted);
            let wait_set = Arc::downgrade(wait_set);
            if !state.wait_sets.iter().any(|other| other.ptr_eq(&wait_set)) {
                state.wait_sets.push(wait_set);
            }
        }
        is_full
    }

    /// Starts up to `wanted` threads, as far as `max_threads` and the system allow. If no thread
    /// can be started, items wait for an existing thread or for the next call.
    fn start_threads(&'static self, state: &mut CloserState, wanted: usize) {
        for _ in 0..wanted.min(self.max_threads.saturating_sub(state.threads)) {
            let is_permanent = state.threads == 0;
            let spawned = std::thread::Builder::new()
                .name("fab-close".into())
                .spawn(move || self.run(is_permanent));
            if spawned.is_err() {
                return;
            }
            state.threads += 1;
        }
    }

    /// Releases items until the queue is empty. Then the permanent thread sleeps until more are
    /// queued, and another thread returns.
    fn run(&self, is_permanent: bool) {
        let mut state = self.lock();
        loop {
            if let Some(discarded) = state.queue.pop_front() {
                let wait_sets = if state.is_full() {
                    Vec::new()
                } else {
                    std::mem::take(&mut state.wait_sets)
                };
                drop(state);
                for wait_set in wait_sets.iter().filter_map(Weak::upgrade) {
                    wait_set.wake();
                }
                drop(discarded);
                fd_reserve::restore_if_missing();
                state = self.lock();
            } else if is_permanent {
                state.permanent_is_idle = true;
                state = self
                    .work_available
                    .wait(state)
                    .unwrap_or_else(|e| e.into_inner());
                state.permanent_is_idle = false;
            } else {
                state.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::BorrowedFd;
    use std::sync::mpsc;

    use super::*;

    /// A [`WaitSet`] that reports each wake.
    struct WakeReporter(mpsc::Sender<()>);

    impl WaitSet for WakeReporter {
        fn wake(&self) {
            let _ = self.0.send(());
        }

        fn watch(&self, _: BorrowedFd<'_>, _: u64) -> std::io::Result<()> {
            Ok(())
        }

        fn unwatch(&self, _: BorrowedFd<'_>) {}
    }

    fn wake_reporter() -> (Arc<dyn WaitSet>, mpsc::Receiver<()>) {
        let (sender, wakes) = mpsc::channel();
        (Arc::new(WakeReporter(sender)), wakes)
    }

    /// Returns a closer apart from that of the process.
    fn new_closer() -> &'static Closer {
        Box::leak(Box::new(Closer::new(MAX_THREADS)))
    }

    /// Returns a descriptor whose close does not block.
    fn plain_fd() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    /// Returns a socket whose close blocks until the other end, which is returned too, is dropped.
    fn lingering_socket() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut lingering = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other_end, _) = listener.accept().unwrap();
        lingering.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut lingering, &[0; 65_536]).is_ok() {}
        lingering.set_nonblocking(false).unwrap();
        let hour = std::time::Duration::from_secs(3600);
        rustix::net::sockopt::set_socket_linger(&lingering, Some(hour)).unwrap();
        (lingering.into(), other_end)
    }

    /// Blocks the thread that releases memory until the result is dropped.
    pub(crate) fn block_memory_closer() -> TcpStream {
        let (lingering, other_end) = lingering_socket();
        release_memory(lingering);
        other_end
    }

    fn enqueue_all(closer: &'static Closer, fds: Vec<OwnedFd>) {
        fds.into_iter().for_each(|fd| closer.enqueue(Box::new(fd)));
    }

    /// While fewer closes block than there may be threads, a pipe is closed: its reader sees the
    /// end of the pipe.
    #[test]
    fn blocked_close_delays_no_other_descriptor() {
        let closer = new_closer();
        let (fds, other_ends): (Vec<_>, Vec<_>) =
            (1..MAX_THREADS).map(|_| lingering_socket()).unzip();
        enqueue_all(closer, fds);
        for _ in 0..100 {
            let (mut reader, writer) = std::io::pipe().unwrap();
            closer.enqueue(Box::new(writer));
            assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        }
        drop(other_ends);
    }

    #[test]
    fn registered_wait_set_is_woken_once_each_time_the_queue_drains() {
        let closer = new_closer();
        let (wait_set, wakes) = wake_reporter();
        assert!(!closer.register_if_full(&wait_set), "the queue is empty");
        for _ in 0..2 {
            let (fds, other_ends): (Vec<_>, Vec<_>) =
                (0..MAX_THREADS).map(|_| lingering_socket()).unzip();
            enqueue_all(closer, fds);
            // Every thread takes a descriptor that blocks; then others stay queued.
            while !closer.lock().queue.is_empty() {
                std::thread::yield_now();
            }
            while !closer.register_if_full(&wait_set) {
                closer.enqueue(Box::new(plain_fd()));
            }
            assert!(closer.register_if_full(&wait_set), "registered twice");
            assert!(wakes.try_recv().is_err());
            drop(other_ends);
            wakes.recv().unwrap();
            while closer.lock().threads > 1 {
                std::thread::yield_now();
            }
            assert!(wakes.try_recv().is_err());
            assert!(!closer.register_if_full(&wait_set), "the queue is drained");
        }
    }

    /// The queue is filled as if no thread could be started (`EAGAIN`).
    #[test]
    fn registering_starts_threads_that_could_not_be_started_before() {
        let closer = new_closer();
        let (wait_set, wakes) = wake_reporter();
        let (mut reader, writer) = std::io::pipe().unwrap();
        let mut state = closer.lock();
        let fds = (0..queue_limit()).map(|_| plain_fd());
        for fd in fds.chain([writer.into()]) {
            state.queue.push_back(Box::new(fd));
        }
        drop(state);
        assert!(closer.register_if_full(&wait_set));
        wakes.recv().unwrap();
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    }
}
