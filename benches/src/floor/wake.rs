//! Waking a sleeper: by eventfd, and by futex.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::futex;

use super::bounce::{End, bounce};
use crate::samples::Samples;

type Cores = (Option<usize>, Option<usize>);

/// Each side sleeps in `read` on an eventfd of its own.
pub(super) fn eventfds(cores: Cores, time: Duration) -> io::Result<Samples> {
    let new = || eventfd(0, EventfdFlags::CLOEXEC).map(Arc::new);
    let (a, b) = (new()?, new()?);
    let near = EventFd {
        mine: a.clone(),
        theirs: b.clone(),
    };
    bounce(cores, (near, EventFd { mine: b, theirs: a }), time)
}

/// Each side sleeps on a word of its own.
pub(super) fn futexes(cores: Cores, time: Duration) -> io::Result<Samples> {
    let new = || Arc::new(AtomicU32::new(0));
    let (a, b) = (new(), new());
    let near = Futex {
        mine: a.clone(),
        theirs: b.clone(),
    };
    bounce(cores, (near, Futex { mine: b, theirs: a }), time)
}

struct EventFd {
    mine: Arc<OwnedFd>,
    theirs: Arc<OwnedFd>,
}

impl End for EventFd {
    fn pass(&mut self) -> io::Result<()> {
        rustix::io::write(&self.theirs, &1u64.to_ne_bytes())?;
        Ok(())
    }

    fn wait(&mut self) -> io::Result<()> {
        rustix::io::read(&self.mine, &mut [0u8; 8])?;
        Ok(())
    }
}

struct Futex {
    mine: Arc<AtomicU32>,
    theirs: Arc<AtomicU32>,
}

impl End for Futex {
    fn pass(&mut self) -> io::Result<()> {
        // SYNC: taken by the swap in `wait` on the other side.
        self.theirs.store(1, Ordering::Release);
        futex::wake(&self.theirs, futex::Flags::PRIVATE, 1)?;
        Ok(())
    }

    fn wait(&mut self) -> io::Result<()> {
        // SYNC: set by the store in `pass` on the other side.
        while self.mine.swap(0, Ordering::Acquire) == 0 {
            match futex::wait(&self.mine, futex::Flags::PRIVATE, 0, None) {
                Ok(()) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
