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

use super::instance::{CompletionKind, OpId, Uring, UringCompletion};
use super::slot::{Cqe, TIMEOUT_BIT, UringSlot, slot_index};

/// Longer than anybody waits, and not too long for the kernel.
const MAX_TIMEOUT: Duration = Duration::from_secs(1 << 32);

/// What has become of an operation that had its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimedOutcome {
    /// What it came to by itself.
    Completed(Result<usize, Errno>),
    /// Its time was over.
    TimedOut,
    /// Something else has ended it: it was cancelled, or the thread that submitted it has ended.
    Interrupted,
}

/// What the kernel is told of by address, and which of the two have ended, and how.
#[derive(Debug)]
pub(super) struct TimedOp {
    addr: SocketAddrAny,
    timeout: Timespec,
    op_result: Option<i32>,
    timer_result: Option<i32>,
}

impl TimedOp {
    fn new(to: SocketAddr, time: Duration) -> Box<Self> {
        let time = Timespec::from(time.min(MAX_TIMEOUT));
        Box::new(Self {
            addr: to.into(),
            timeout: time,
            op_result: None,
            timer_result: None,
        })
    }

    /// One of the two has ended. False if it has before.
    fn record_result(&mut self, raw: Cqe) -> bool {
        let half = if raw.user_data & TIMEOUT_BIT == 0 {
            &mut self.op_result
        } else {
            &mut self.timer_result
        };
        let is_first = half.is_none();
        half.get_or_insert(raw.result);
        is_first
    }

    /// The operation goes on, and nobody ends it.
    fn has_lost_timer(&self) -> bool {
        let has_fired = self.timer_result == Some(-Errno::TIME.raw_os_error());
        self.op_result.is_none() && self.timer_result.is_some() && !has_fired
    }

    /// What has become of it, when both have ended.
    fn outcome(&self) -> Option<TimedOutcome> {
        Some(combine_results(self.op_result?, self.timer_result?))
    }
}

/// What both results say together.
pub(super) fn combine_results(operation: i32, timer: i32) -> TimedOutcome {
    let has_fired = [Errno::TIME, Errno::NOENT, Errno::ALREADY].map(|errno| -errno.raw_os_error());
    match u32::try_from(operation).map_err(|_| Errno::from_raw_os_error(-operation)) {
        Err(errno) if !is_cancellation(errno) => TimedOutcome::Completed(Err(errno)),
        Err(_) if has_fired.contains(&timer) => TimedOutcome::TimedOut,
        Err(_) => TimedOutcome::Interrupted,
        Ok(count) => TimedOutcome::Completed(Ok(count as usize)),
    }
}

/// It has ended, and not by itself.
fn is_cancellation(errno: Errno) -> bool {
    [
        Errno::CANCELED,
        Errno::INTR,
        Errno::ALREADY,
        Errno::INPROGRESS,
        Errno::AGAIN,
    ]
    .contains(&errno)
}

impl Uring {
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
    ) -> io::Result<OpId> {
        let timed = TimedOp::new(to, time);
        let entry = opcode::Connect::new(
            Fd(socket.as_raw_fd()),
            timed.addr.as_ptr().cast(),
            timed.addr.addr_len(),
        );
        let timer = opcode::LinkTimeout::new(&raw const timed.timeout).build();
        let mut entries = [entry.build().flags(squeue::Flags::IO_LINK), timer];
        self.push_op(
            &mut entries,
            UringSlot {
                timed: Some(timed),
                ..UringSlot::new(socket, owner)
            },
        )
        .map_err(|(error, _)| error)
    }

    /// Why an operation that has its time has failed by itself, if that is known already. Its
    /// completion comes all the same.
    pub(crate) fn early_error(&mut self, ticket: OpId) -> Option<Errno> {
        self.fetch_cqes();
        let raw = self
            .fetched_cqes
            .iter()
            .find(|raw| raw.user_data == ticket.0)?;
        raw.result().err().filter(|errno| !is_cancellation(*errno))
    }

    /// One that was never handed over.
    #[cfg(all(test, not(loom)))]
    pub(super) fn insert_stuck_timed_slot(&mut self, socket: &Arc<OwnedFd>, owner: u64) -> OpId {
        let timed = TimedOp::new(([127, 0, 0, 1], 1).into(), Duration::ZERO);
        OpId(self.slots.insert(UringSlot {
            timed: Some(timed),
            ..UringSlot::new(socket, owner)
        }) as u64)
    }

    /// What the end of an operation that has its time, or of its timer, means to its owner.
    pub(super) fn timed_completion(&mut self, raw: Cqe) -> Option<UringCompletion> {
        let ticket = OpId(raw.user_data & !TIMEOUT_BIT);
        let slot = self.slots.get_mut(slot_index(raw.user_data))?;
        let timed = slot.timed.as_mut()?;
        if !timed.record_result(raw) {
            self.unmatched_cqes += 1;
        } else if timed.has_lost_timer() {
            self.cancel(ticket);
        } else if let Some(ended) = timed.outcome() {
            let owner = self.slots.remove(slot_index(raw.user_data)).owner?;
            return Some(UringCompletion {
                owner,
                op_id: ticket,
                kind: CompletionKind::Timed(ended),
                is_last: true,
            });
        }
        None
    }
}
