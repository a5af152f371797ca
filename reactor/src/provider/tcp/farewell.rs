//! Connections that are closed with something still to be sent, or to be read: closing them at once
//! would have the kernel throw away what the peer has not read yet.

use std::io::IoSlice;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::socket::{Sent, Socket};

/// How long a peer has to take what was sent to it.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often newcomers are looked for.
const LOOK: Duration = Duration::from_millis(20);
/// Connections that are waited for; the oldest make room.
const MOST: usize = 1024;

struct Leaving {
    socket: Socket,
    rest: Vec<u8>,
    /// The peer may still send something.
    is_spoken_to: bool,
    until: Instant,
}

/// Closes a connection, when the peer has what was sent and has closed too, or does not within a
/// few seconds. It is called with the lock of a domain: what it does at once is bounded, however
/// fast the peer talks on.
pub(crate) fn close(mut socket: Socket, rest: &[u8]) {
    if !socket.is_ours() {
        return;
    }
    socket.unwatch();
    let mut leaving = Leaving::new(socket, rest);
    if leaving.go_on() {
        static THREAD: OnceLock<Option<Sender<Leaving>>> = OnceLock::new();
        let thread = THREAD.get_or_init(|| {
            let (tx, rx) = channel();
            let named = std::thread::Builder::new().name("fab-farewell".into());
            named.spawn(move || see_off(&rx)).is_ok().then_some(tx)
        });
        if let Some(thread) = thread {
            let _ = thread.send(leaving);
        }
    }
}

fn see_off(newcomers: &Receiver<Leaving>) {
    let mut all: Vec<Leaving> = Vec::new();
    loop {
        if all.is_empty() {
            let Ok(first) = newcomers.recv() else { return };
            all.push(first);
        }
        all.extend(newcomers.try_iter());
        if all.len() > MOST {
            all.drain(..all.len() - MOST);
        }
        let mut fds: Vec<_> = all
            .iter()
            .map(|leaving| {
                let room = if leaving.rest.is_empty() {
                    PollFlags::empty()
                } else {
                    PollFlags::OUT
                };
                let news = if leaving.is_spoken_to {
                    PollFlags::IN
                } else {
                    PollFlags::empty()
                };
                PollFd::from_borrowed_fd(leaving.socket.as_fd(), news | room)
            })
            .collect();
        let timeout = Timespec::try_from(LOOK).ok();
        let _ = rustix::event::poll(&mut fds, timeout.as_ref());
        let now = Instant::now();
        all.retain_mut(|leaving| leaving.until > now && leaving.go_on());
    }
}

impl Leaving {
    fn new(socket: Socket, rest: &[u8]) -> Self {
        Self {
            socket,
            rest: rest.to_vec(),
            is_spoken_to: true,
            until: Instant::now() + PATIENCE,
        }
    }

    /// Sends and reads what can be, within a bound; false when the connection can be closed.
    fn go_on(&mut self) -> bool {
        while !self.rest.is_empty() {
            match self.socket.send(&[IoSlice::new(&self.rest)]) {
                Sent::Bytes(count) => drop(self.rest.drain(..count)),
                Sent::NoRoom => break,
                Sent::Broken => return false,
            }
        }
        if self.rest.is_empty() {
            self.socket.finish();
        }
        self.is_spoken_to = self.is_spoken_to && self.socket.drain();
        // Who sends no more may still read.
        self.is_spoken_to || !self.rest.is_empty()
    }
}

#[cfg(all(test, not(loom)))]
#[path = "farewell_tests.rs"]
mod tests;
