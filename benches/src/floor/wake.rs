//! Waking a sleeping thread, by eventfd and by futex.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::futex;

use super::ping_pong::{PingPongEnd, ping_pong};
use crate::samples::Samples;

type CorePair = (Option<usize>, Option<usize>);

/// Measures a ping-pong in which each side blocks in `read` on its eventfd.
pub(super) fn eventfd_ping_pong(cores: CorePair, time: Duration) -> io::Result<Samples> {
    let new = || eventfd(0, EventfdFlags::CLOEXEC).map(Arc::new);
    let (a, b) = (new()?, new()?);
    let first = EventFdEnd {
        local: a.clone(),
        remote: b.clone(),
    };
    ping_pong(
        cores,
        (
            first,
            EventFdEnd {
                local: b,
                remote: a,
            },
        ),
        time,
    )
}

/// Measures a ping-pong in which each side sleeps on its futex word.
pub(super) fn futex_ping_pong(cores: CorePair, time: Duration) -> io::Result<Samples> {
    let new = || Arc::new(AtomicU32::new(0));
    let (a, b) = (new(), new());
    let first = FutexEnd {
        local: a.clone(),
        remote: b.clone(),
    };
    ping_pong(
        cores,
        (
            first,
            FutexEnd {
                local: b,
                remote: a,
            },
        ),
        time,
    )
}

struct EventFdEnd {
    local: Arc<OwnedFd>,
    remote: Arc<OwnedFd>,
}

impl PingPongEnd for EventFdEnd {
    fn signal(&mut self) -> io::Result<()> {
        rustix::io::write(&self.remote, &1u64.to_ne_bytes())?;
        Ok(())
    }

    fn wait(&mut self) -> io::Result<()> {
        rustix::io::read(&self.local, &mut [0u8; 8])?;
        Ok(())
    }
}

struct FutexEnd {
    local: Arc<AtomicU32>,
    remote: Arc<AtomicU32>,
}

impl PingPongEnd for FutexEnd {
    fn signal(&mut self) -> io::Result<()> {
        // SYNC: read by the swap in `wait` on the other side.
        self.remote.store(1, Ordering::Release);
        futex::wake(&self.remote, futex::Flags::PRIVATE, 1)?;
        Ok(())
    }

    fn wait(&mut self) -> io::Result<()> {
        // SYNC: set by the store in `signal` on the other side.
        while self.local.swap(0, Ordering::Acquire) == 0 {
            match futex::wait(&self.local, futex::Flags::PRIVATE, 0, None) {
                Ok(()) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
