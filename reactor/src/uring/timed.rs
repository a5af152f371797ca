//! Operations that have their time: the kernel ends them when it is over, whoever looks.
//!
//! Such an operation is two entries that are linked: itself, and behind it a timeout of the
//! kernel's, the *timer*. They have one slot, two names, and a completion each, which come in any
//! order.
//!
//! # What the kernel copies, and when
//!
//! Time and address are read within the call that takes the entries over, and never again: the time
//! when its entry is looked at, the address then (since Linux 6.10) or in the first attempt, which
//! for an operation that waits for no other is made by the same call. But which entries a call has
//! taken that has failed, or has taken fewer than there were, is not looked into here, and what is
//! queued may be read by any later call. So both stay in the slot until both completions are in.
//!
//! # What two results say together
//!
//! | operation | timer | |
//! |---|---|---|
//! | a result of its own | any, mostly `ECANCELED` | it has come to that, also where its time was over in the same moment |
//! | `ECANCELED`, `EINTR`, `EALREADY`, `EINPROGRESS`, `EAGAIN` | `ETIME`, `ENOENT`, `EALREADY` | its time was over; the latter two where it was being worked on, or by a thread that has ended |
//! | the same | any other | something else has ended it, which says nothing of what it was to do |
//!
//! # Threads that end
//!
//! The kernel leaves operations alone whose thread has ended, but does nothing more for them. When
//! the socket is ready the operation ends with `ECANCELED`. When the timer fires it is the timer
//! that ends, with `ECANCELED` or `ENOENT`, and its operation goes on. One that was not taken over
//! together with its operation is refused likewise (`EINVAL`). So when a timer ends in any way but
//! by `ETIME`, and its operation has not, that is cancelled from here.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::types::{Fd, Timespec};
use io_uring::{opcode, squeue};
use rustix::io::Errno;
use rustix::net::SocketAddrAny;

use super::ring::{Completion, Ring, Ticket, What};
use super::slot::{Raw, Slot, TIMER, index};

/// Longer than anybody waits, and not too long for the kernel.
const LONGEST: Duration = Duration::from_secs(1 << 32);

/// What has become of an operation that had its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// What it came to by itself.
    Itself(Result<usize, Errno>),
    /// Its time was over.
    TimedOut,
    /// Something else has ended it: it was cancelled, or the thread that submitted it has ended.
    Disturbed,
}

/// What the kernel is told of by address, and which of the two have ended, and how.
#[derive(Debug)]
pub(super) struct Timed {
    to: SocketAddrAny,
    time: Timespec,
    operation: Option<i32>,
    timer: Option<i32>,
}

impl Timed {
    fn new(to: SocketAddr, time: Duration) -> Box<Self> {
        let time = Timespec::from(time.min(LONGEST));
        Box::new(Self {
            to: to.into(),
            time,
            operation: None,
            timer: None,
        })
    }

    /// One of the two has ended. False if it has before.
    fn note(&mut self, raw: Raw) -> bool {
        let half = if raw.name & TIMER == 0 {
            &mut self.operation
        } else {
            &mut self.timer
        };
        let is_first = half.is_none();
        half.get_or_insert(raw.result);
        is_first
    }

    /// The operation goes on, and nobody ends it.
    fn is_endless(&self) -> bool {
        let has_fired = self.timer == Some(-Errno::TIME.raw_os_error());
        self.operation.is_none() && self.timer.is_some() && !has_fired
    }

    /// What has become of it, when both have ended.
    fn ended(&self) -> Option<Ended> {
        Some(meaning(self.operation?, self.timer?))
    }
}

/// What both results say together.
pub(super) fn meaning(operation: i32, timer: i32) -> Ended {
    let has_fired = [Errno::TIME, Errno::NOENT, Errno::ALREADY].map(|errno| -errno.raw_os_error());
    match u32::try_from(operation).map_err(|_| Errno::from_raw_os_error(-operation)) {
        Err(errno) if !says_nothing(errno) => Ended::Itself(Err(errno)),
        Err(_) if has_fired.contains(&timer) => Ended::TimedOut,
        Err(_) => Ended::Disturbed,
        Ok(count) => Ended::Itself(Ok(count as usize)),
    }
}

/// It has ended, and not by itself.
fn says_nothing(errno: Errno) -> bool {
    [
        Errno::CANCELED,
        Errno::INTR,
        Errno::ALREADY,
        Errno::INPROGRESS,
        Errno::AGAIN,
    ]
    .contains(&errno)
}

impl Ring {
    /// Connects a socket, from the next [`submit`](Self::submit) on, within this time. How it has
    /// ended comes as one completion; until then the socket is nobody else's.
    ///
    /// # Errors
    /// There is no room for two entries, and handing over what is queued has failed.
    pub(crate) fn connect(
        &mut self,
        socket: &Arc<OwnedFd>,
        owner: u64,
        to: SocketAddr,
        time: Duration,
    ) -> io::Result<Ticket> {
        let timed = Timed::new(to, time);
        let entry = opcode::Connect::new(
            Fd(socket.as_raw_fd()),
            timed.to.as_ptr().cast(),
            timed.to.addr_len(),
        );
        let timer = opcode::LinkTimeout::new(&raw const timed.time).build();
        let mut entries = [entry.build().flags(squeue::Flags::IO_LINK), timer];
        self.begin(
            &mut entries,
            Slot {
                timed: Some(timed),
                ..Slot::new(socket, owner)
            },
        )
        .map_err(|(error, _)| error)
    }

    /// Why an operation that has its time has failed by itself, if that is known already. Its
    /// completion comes all the same.
    pub(crate) fn failure(&mut self, ticket: Ticket) -> Option<Errno> {
        self.fetch();
        let raw = self.fetched.iter().find(|raw| raw.name == ticket.0)?;
        raw.result().err().filter(|errno| !says_nothing(*errno))
    }

    /// One that was never handed over.
    #[cfg(all(test, not(loom)))]
    pub(super) fn haunt_timed(&mut self, socket: &Arc<OwnedFd>, owner: u64) -> Ticket {
        let timed = Timed::new(([127, 0, 0, 1], 1).into(), Duration::ZERO);
        Ticket(self.slots.insert(Slot {
            timed: Some(timed),
            ..Slot::new(socket, owner)
        }) as u64)
    }

    /// What the end of an operation that has its time, or of its timer, means to its owner.
    pub(super) fn made_of_half(&mut self, raw: Raw) -> Option<Completion> {
        let ticket = Ticket(raw.name & !TIMER);
        let slot = self.slots.get_mut(index(raw.name))?;
        let timed = slot.timed.as_mut()?;
        if !timed.note(raw) {
            self.strays += 1;
        } else if timed.is_endless() {
            self.cancel(ticket);
        } else if let Some(ended) = timed.ended() {
            let owner = self.slots.remove(index(raw.name)).owner?;
            return Some(Completion {
                owner,
                ticket,
                what: What::Timed(ended),
                is_last: true,
            });
        }
        None
    }
}
