//! Threads that close descriptors which came from peers.
//!
//! Closing such a descriptor can take as long as its sender likes: a TCP socket that lingers, a file
//! of a file system in user space. So no descriptor of a peer is closed by a thread that makes
//! progress, unless the descriptor is known to be memory.
//!
//! **Invariant.** A descriptor waits behind at most [`THREADS`] others that are being closed: while
//! fewer threads exist, a descriptor for which no thread is free starts one. When all of them are
//! held up and [`QUEUE`] descriptors wait, the closer is [full](is_full), and endpoints stop
//! accepting connections until a thread is free again.
//!
//! A forked child has none of its parent's threads, so it makes a closer of its own.
#![allow(unsafe_code)] // a pointer to what is never freed, which a forked child can replace

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};

use fabric_core::transport::WaitSet;

use crate::transport::fork_guard::ForkGuard;

/// Threads that close at the same time. The first one stays; the others end when nothing waits.
pub(crate) const THREADS: usize = 8;
/// Descriptors that may wait while all threads are held up, before connections are not accepted any
/// more.
pub(crate) const QUEUE: usize = 64;

struct Closer {
    origin: ForkGuard,
    state: Mutex<State>,
    filled: Condvar,
    reserve: Mutex<Option<OwnedFd>>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<OwnedFd>,
    threads: usize,
    /// The first thread waits for work.
    idle: bool,
    /// Domains that have stopped accepting, to be told when there is room.
    stopped: Vec<Weak<dyn WaitSet>>,
}

impl State {
    fn is_full(&self) -> bool {
        self.waiting.len() >= QUEUE
    }
}

/// The closer of this process.
fn closer() -> &'static Closer {
    static CURRENT: AtomicPtr<Closer> = AtomicPtr::new(std::ptr::null_mut());
    loop {
        let current = CURRENT.load(Ordering::Acquire);
        // SAFETY: the pointer is null, or leads to a closer that was leaked.
        if let Some(closer) = unsafe { current.as_ref() }
            && closer.origin.in_original_process()
        {
            return closer;
        }
        // A lock of the parent's could be held for ever in a child: nothing of it is touched.
        let own = Box::into_raw(Box::new(Closer {
            origin: ForkGuard::current_process(),
            state: Mutex::default(),
            filled: Condvar::new(),
            reserve: Mutex::default(),
        }));
        let exchanged = CURRENT.compare_exchange(current, own, Ordering::AcqRel, Ordering::Acquire);
        if exchanged.is_err() {
            // SAFETY: nothing else has seen this closer.
            drop(unsafe { Box::from_raw(own) });
        }
    }
}

/// Closes descriptors of a peer without delaying the caller.
pub(crate) fn discard(fds: Vec<OwnedFd>) {
    if fds.is_empty() {
        return;
    }
    let closer = closer();
    let mut state = closer.lock();
    state.waiting.extend(fds);
    let free = usize::from(std::mem::take(&mut state.idle));
    if free > 0 {
        closer.filled.notify_one();
    }
    let wanted = state.waiting.len().saturating_sub(free);
    for _ in 0..wanted.min(THREADS.saturating_sub(state.threads)) {
        let is_first = state.threads == 0;
        let spawned = std::thread::Builder::new()
            .name("fab-close".into())
            .spawn(move || closer.run(is_first));
        if spawned.is_err() {
            // What waits is closed by a thread that exists, or by one that the next call starts.
            break;
        }
        state.threads += 1;
    }
}

/// Whether all threads are held up, and as many descriptors wait as may.
pub(crate) fn is_full() -> bool {
    closer().lock().is_full()
}

/// Has this set kicked when the closer is not full any more; false when it is not full now.
pub(crate) fn kick_when_free(wait: &Arc<dyn WaitSet>) -> bool {
    let mut state = closer().lock();
    let full = state.is_full();
    if full {
        state.stopped.push(Arc::downgrade(wait));
    }
    full
}

/// A descriptor that is given up for a moment where this process has no other left, so that a
/// message with one descriptor can be received and dropped.
pub(crate) fn reserve() -> MutexGuard<'static, Option<OwnedFd>> {
    let reserve = &closer().reserve;
    reserve.lock().unwrap_or_else(|e| e.into_inner())
}

impl Closer {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn run(&self, stays: bool) {
        let mut state = self.lock();
        loop {
            if let Some(fd) = state.waiting.pop_front() {
                let stopped = if state.is_full() {
                    Vec::new()
                } else {
                    std::mem::take(&mut state.stopped)
                };
                drop(state);
                for wait in stopped.iter().filter_map(Weak::upgrade) {
                    wait.wake();
                }
                drop(fd);
                state = self.lock();
            } else if stays {
                state.idle = true;
                state = self.filled.wait(state).unwrap_or_else(|e| e.into_inner());
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

    /// A descriptor whose close blocks until the other end is dropped.
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

    /// Fewer blocked descriptors than threads delay no other one: the reader sees its writer close.
    #[test]
    fn blocked_descriptor_delays_no_other() {
        let (fds, ends): (Vec<_>, Vec<_>) = (1..THREADS).map(|_| lingering_socket()).unzip();
        discard(fds);
        for _ in 0..100 {
            let (mut reader, writer) = std::io::pipe().unwrap();
            discard(vec![writer.into()]);
            assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        }
        drop(ends);
    }
}
