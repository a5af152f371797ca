//! Threads that close descriptors received from peers.
//!
//! Closing such a descriptor can take as long as the peer likes: a TCP socket that lingers, or a
//! file of a file system in user space. So a thread that makes progress closes no descriptor of a
//! peer, unless the descriptor is known to be memory.
//!
//! **Invariant.** A descriptor waits behind at most [`THREADS`] other closes: while fewer threads
//! exist, a descriptor for which no thread is free starts one. When all threads are blocked and
//! [`QUEUE`] descriptors wait, the closer is *full*, and endpoints stop accepting
//! connections until a thread is free again.
//!
//! A forked child has none of its parent's threads, so it creates a closer of its own.
#![allow(unsafe_code)] // pointer to a leaked value, which a forked child can replace

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};

use fabric_core::transport::WaitSet;

use crate::transport::fork_guard::ForkGuard;

/// Maximum number of closing threads. The first one stays; the others end when nothing waits.
pub(crate) const THREADS: usize = 8;
/// Number of waiting descriptors at which endpoints stop accepting connections.
pub(crate) const QUEUE: usize = 64;

/// The closing threads of one process and the descriptors that wait for them.
struct Closer {
    origin: ForkGuard,
    state: Mutex<CloserState>,
    work_available: Condvar,
    reserve: Mutex<Option<OwnedFd>>,
}

/// The queue and the threads of a closer.
#[derive(Default)]
struct CloserState {
    waiting: VecDeque<OwnedFd>,
    threads: usize,
    /// Whether the first thread waits for work.
    idle: bool,
    /// Wait sets of domains that have stopped accepting, to be woken when the queue has room.
    waiters: Vec<Weak<dyn WaitSet>>,
}

impl CloserState {
    fn is_full(&self) -> bool {
        self.waiting.len() >= QUEUE
    }
}

/// Returns the closer of this process.
fn closer() -> &'static Closer {
    static CURRENT: AtomicPtr<Closer> = AtomicPtr::new(std::ptr::null_mut());
    loop {
        let current = CURRENT.load(Ordering::Acquire);
        // SAFETY: the pointer is null, or points to a closer that was leaked.
        if let Some(closer) = unsafe { current.as_ref() }
            && closer.origin.in_original_process()
        {
            return closer;
        }
        // A lock held by a thread of the parent stays held in a child, so the child uses a new
        // closer.
        let own = Box::into_raw(Box::new(Closer {
            origin: ForkGuard::current_process(),
            state: Mutex::default(),
            work_available: Condvar::new(),
            reserve: Mutex::default(),
        }));
        let exchanged = CURRENT.compare_exchange(current, own, Ordering::AcqRel, Ordering::Acquire);
        if exchanged.is_err() {
            // SAFETY: the exchange failed, so no other thread has seen this closer.
            drop(unsafe { Box::from_raw(own) });
        }
    }
}

/// Closes descriptors of a peer on background threads; does not block.
pub(crate) fn discard(fds: Vec<OwnedFd>) {
    if fds.is_empty() {
        return;
    }
    let closer = closer();
    let mut state = closer.lock();
    state.waiting.extend(fds);
    let free = usize::from(std::mem::take(&mut state.idle));
    if free > 0 {
        closer.work_available.notify_one();
    }
    let wanted = state.waiting.len().saturating_sub(free);
    closer.start_threads(&mut state, wanted);
}

/// Registers a wait set to be woken when the queue has room again. Returns false, without
/// registering it, if the queue has room now.
pub(crate) fn wake_when_free(wait: &Arc<dyn WaitSet>) -> bool {
    let closer = closer();
    let mut state = closer.lock();
    let full = state.is_full();
    if full {
        // Threads that could not be started before may start now.
        let wanted = state.waiting.len();
        closer.start_threads(&mut state, wanted);
        let wait = Arc::downgrade(wait);
        if !state.waiters.iter().any(|other| other.ptr_eq(&wait)) {
            state.waiters.push(wait);
        }
    }
    full
}

/// Returns the reserve descriptor. It is closed for a moment when the process has no descriptor
/// left, so that a message with one descriptor can be received and discarded.
pub(crate) fn reserve() -> MutexGuard<'static, Option<OwnedFd>> {
    let reserve = &closer().reserve;
    reserve.lock().unwrap_or_else(|e| e.into_inner())
}

impl Closer {
    fn lock(&self) -> MutexGuard<'_, CloserState> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Starts up to `wanted` threads, as far as [`THREADS`] and the system allow. Descriptors wait
    /// for an existing thread, or for the next call, if none can be started.
    fn start_threads(&'static self, state: &mut CloserState, wanted: usize) {
        for _ in 0..wanted.min(THREADS.saturating_sub(state.threads)) {
            let is_first = state.threads == 0;
            let spawned = std::thread::Builder::new()
                .name("fab-close".into())
                .spawn(move || self.run(is_first));
            if spawned.is_err() {
                return;
            }
            state.threads += 1;
        }
    }

    /// Closes descriptors until none waits; the first thread then sleeps until more arrive.
    fn run(&self, is_permanent: bool) {
        let mut state = self.lock();
        loop {
            if let Some(fd) = state.waiting.pop_front() {
                let waiters = if state.is_full() {
                    Vec::new()
                } else {
                    std::mem::take(&mut state.waiters)
                };
                drop(state);
                for wait in waiters.iter().filter_map(Weak::upgrade) {
                    wait.wake();
                }
                drop(fd);
                state = self.lock();
            } else if is_permanent {
                state.idle = true;
                state = self
                    .work_available
                    .wait(state)
                    .unwrap_or_else(|e| e.into_inner());
                state.idle = false;
            } else {
                state.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Returns a socket whose close blocks until the other end is dropped.
    fn lingering_socket() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut near, &[0; 65_536]).is_ok() {}
        near.set_nonblocking(false).unwrap();
        let hour = std::time::Duration::from_secs(3600);
        rustix::net::sockopt::set_socket_linger(&near, Some(hour)).unwrap();
        (near.into(), far)
    }

    /// With fewer blocked descriptors than threads, every other descriptor is closed: its reader
    /// sees the end of the pipe.
    #[test]
    fn blocked_descriptor_delays_no_other() {
        let (fds, blocked_peers): (Vec<_>, Vec<_>) =
            (1..THREADS).map(|_| lingering_socket()).unzip();
        discard(fds);
        for _ in 0..100 {
            let (mut reader, writer) = std::io::pipe().unwrap();
            discard(vec![writer.into()]);
            assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        }
        drop(blocked_peers);
    }
}
