//! Doorbells, which are rung again if the kernel has no memory for the message.
//!
//! The side that rings has cleared the flag of the peer that sleeps, so a doorbell that is lost
//! leaves the peer asleep. A full socket (`EAGAIN`) has unread messages, which wake the peer. If
//! the kernel has no memory (`ENOBUFS`, `ENOMEM`), a thread rings every millisecond until the
//! message is sent or the socket is closed. The thread exists only meanwhile. Passes need not know.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

use super::control::{self, ControlMessage};
use super::socket::{ShmSocket, SocketHandle};
use crate::sys::process_local::ProcessLocal;

/// Time between two attempts of the thread.
const RETRY_DELAY: Duration = Duration::from_millis(1);

/// Rings the doorbell of the peer. Does not block.
pub(crate) fn ring(socket: &ShmSocket) {
    if !try_ring(socket.as_fd()) {
        RETRIES.get().add(socket.handle());
    }
}

/// Rings the doorbell of the peer if the socket is still open. Does not block.
pub(crate) fn ring_if_open(socket: &SocketHandle) {
    let mut is_rung = true;
    socket.with_socket(|socket| is_rung = try_ring(socket));
    if !is_rung {
        RETRIES.get().add(socket.clone());
    }
}

/// Sends the message. Returns false if the kernel has no memory for it.
fn try_ring(socket: BorrowedFd<'_>) -> bool {
    let sent = control::send_message(socket, ControlMessage::Doorbell);
    !matches!(sent, Err(Errno::NOBUFS | Errno::NOMEM))
}

static RETRIES: ProcessLocal<DoorbellRetries> = ProcessLocal::new(|| DoorbellRetries {
    state: Mutex::default(),
    try_ring,
});

/// The doorbells that are rung again.
struct DoorbellRetries {
    state: Mutex<RetryState>,
    try_ring: fn(BorrowedFd<'_>) -> bool,
}

#[derive(Default)]
struct RetryState {
    sockets: Vec<SocketHandle>,
    /// Whether the thread runs.
    runs: bool,
}

impl DoorbellRetries {
    fn lock(&self) -> MutexGuard<'_, RetryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a doorbell, and starts the thread if it does not run. If the system cannot start a
    /// thread, the next call tries again.
    fn add(&'static self, socket: SocketHandle) {
        let mut state = self.lock();
        state.sockets.push(socket);
        if !state.runs {
            let thread = std::thread::Builder::new().name("fab-doorbell".into());
            state.runs = thread.spawn(move || self.run()).is_ok();
        }
    }

    /// Rings until each doorbell was rung or its socket is closed.
    fn run(&self) {
        loop {
            std::thread::sleep(RETRY_DELAY);
            let mut state = self.lock();
            state.sockets.retain(|socket| {
                let mut is_done = true;
                socket.with_socket(|socket| is_done = (self.try_ring)(socket));
                !is_done
            });
            if state.sockets.is_empty() {
                state.runs = false;
                return;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

    use super::*;

    #[test]
    fn doorbell_is_rung_until_the_kernel_has_memory() {
        static ATTEMPTS: AtomicU32 = AtomicU32::new(0);
        fn fails_three_times(socket: BorrowedFd<'_>) -> bool {
            ATTEMPTS.fetch_add(1, Ordering::Relaxed) >= 3 && try_ring(socket)
        }
        let retries: &'static DoorbellRetries = Box::leak(Box::new(DoorbellRetries {
            state: Mutex::default(),
            try_ring: fails_three_times,
        }));
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let pair = || rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        let ((ours, peer), (closed, _)) = (pair(), pair());
        let (ours, closed) = (ShmSocket::new(ours), ShmSocket::new(closed));
        retries.add(closed.handle());
        drop(closed);
        retries.add(ours.handle());
        let mut message = [0; 64];
        let (len, _) = rustix::net::recv(&peer, &mut message, RecvFlags::empty()).unwrap();
        assert_eq!(
            control::parse_control(&message[..len]),
            Ok(ControlMessage::Doorbell)
        );
        while retries.lock().runs {
            std::thread::yield_now();
        }
        // The doorbell of the closed socket is given up, and the other one is rung once.
        let nothing = rustix::net::recv(&peer, &mut message, RecvFlags::DONTWAIT);
        assert_eq!(nothing, Err(Errno::AGAIN));
    }
}
