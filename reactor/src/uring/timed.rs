//! Operations with a timeout, which the kernel enforces.
//!
//! A timed operation is two linked entries: the operation, and behind it a timeout of the kernel's
//! (`IORING_OP_LINK_TIMEOUT`), the *timer*. They share a slot, and have a user data value and a
//! completion each, which arrive in any order.
//!
//! # What the kernel copies, and when
//!
//! The kernel reads timeout and address within the call that takes the entries, and never again:
//! the timeout when its entry is prepared, the address then (since Linux 6.10) or in the first
//! attempt, which is made by the same call for an operation that does not wait for another one. But
//! which entries were taken by a call that failed, or that took fewer than were queued, is not
//! tracked here, and a queued entry may be read by any later call. So both stay in the slot until
//! both completions have arrived.
//!
//! # How two results combine
//!
//! | operation | timer | |
//! |---|---|---|
//! | a result of its own | any, mostly `ECANCELED` | the operation has completed with that result, even if its time ran out at the same moment |
//! | `ECANCELED`, `EINTR`, `EALREADY`, `EINPROGRESS`, `EAGAIN` | `ETIME`, `ENOENT`, `EALREADY` | timed out; the latter two if the operation was being executed, or was submitted by a thread that has exited |
//! | the same | any other | interrupted: something else has ended the operation, which says nothing about its outcome |
//!
//! # Threads that exit
//!
//! The kernel leaves operations of an exited thread in place, but does no more work for them. When
//! the socket is ready, the operation ends with `ECANCELED`. When the timer fires, the timer ends
//! with `ECANCELED` or `ENOENT`, and the operation goes on. A timer that was not taken together
//! with its operation is refused (`EINVAL`), and the operation goes on too. So when a timer ends in
//! any way but by `ETIME` before its operation, the operation is canceled from here.

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

/// The longest timeout: longer than any caller waits, and valid for the kernel.
const MAX_TIMEOUT: Duration = Duration::from_secs(1 << 32);

/// The outcome of a timed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimedOutcome {
    /// The operation has completed or failed by itself.
    Completed(Result<usize, Errno>),
    /// The timeout has expired.
    TimedOut,
    /// The operation was canceled, or the thread that submitted it has exited.
    Interrupted,
}

/// Address and timeout, which the kernel reads in place, and the results of operation and timer.
#[derive(Debug)]
pub(super) struct TimedOp {
    addr: SocketAddrAny,
    timeout: Timespec,
    op_result: Option<i32>,
    timer_result: Option<i32>,
}

impl TimedOp {
    fn new(addr: SocketAddr, timeout: Duration) -> Box<Self> {
        let timeout = Timespec::from(timeout.min(MAX_TIMEOUT));
        Box::new(Self {
            addr: addr.into(),
            timeout,
            op_result: None,
            timer_result: None,
        })
    }

    /// Records the result of the operation or the timer. Returns false if it was recorded before.
    fn record_result(&mut self, cqe: Cqe) -> bool {
        let result = if cqe.user_data & TIMEOUT_BIT == 0 {
            &mut self.op_result
        } else {
            &mut self.timer_result
        };
        let is_first = result.is_none();
        result.get_or_insert(cqe.result);
        is_first
    }

    /// Returns whether the operation goes on although its timer has ended without firing.
    fn has_lost_timer(&self) -> bool {
        let has_fired = self.timer_result == Some(-Errno::TIME.raw_os_error());
        self.op_result.is_none() && self.timer_result.is_some() && !has_fired
    }

    /// Returns the outcome, when both results are known.
    fn outcome(&self) -> Option<TimedOutcome> {
        Some(combine_results(self.op_result?, self.timer_result?))
    }
}

/// Combines the results of operation and timer.
pub(super) fn combine_results(operation: i32, timer: i32) -> TimedOutcome {
    let has_fired = [Errno::TIME, Errno::NOENT, Errno::ALREADY].map(|errno| -errno.raw_os_error());
    match u32::try_from(operation).map_err(|_| Errno::from_raw_os_error(-operation)) {
        Err(errno) if !is_cancellation(errno) => TimedOutcome::Completed(Err(errno)),
        Err(_) if has_fired.contains(&timer) => TimedOutcome::TimedOut,
        Err(_) => TimedOutcome::Interrupted,
        Ok(count) => TimedOutcome::Completed(Ok(count as usize)),
    }
}

/// Returns whether an error means that the operation did not end by itself.
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
    /// Connects a socket with the next [`submit`](Self::submit), within `timeout`. The outcome is
    /// one completion; until then the socket must not be used otherwise.
    ///
    /// # Errors
    /// The submission queue has no room for two entries and submitting has failed.
    pub(crate) fn connect(
        &mut self,
        socket: &Arc<OwnedFd>,
        owner: u64,
        addr: SocketAddr,
        timeout: Duration,
    ) -> io::Result<OpId> {
        let timed = TimedOp::new(addr, timeout);
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

    /// Returns the error with which a timed operation has failed by itself, if it is known already.
    /// Its completion comes all the same.
    pub(crate) fn early_error(&mut self, op_id: OpId) -> Option<Errno> {
        self.fetch_cqes();
        let cqe = self
            .fetched_cqes
            .iter()
            .find(|cqe| cqe.user_data == op_id.0)?;
        cqe.result().err().filter(|errno| !is_cancellation(*errno))
    }

    /// Inserts a timed operation that was never submitted.
    #[cfg(all(test, not(loom)))]
    pub(super) fn insert_stuck_timed_slot(&mut self, socket: &Arc<OwnedFd>, owner: u64) -> OpId {
        let timed = TimedOp::new(([127, 0, 0, 1], 1).into(), Duration::ZERO);
        OpId(self.slots.insert(UringSlot {
            timed: Some(timed),
            ..UringSlot::new(socket, owner)
        }) as u64)
    }

    /// Handles a completion of a timed operation or of its timer, and returns the completion for
    /// the owner when both have arrived.
    pub(super) fn timed_completion(&mut self, cqe: Cqe) -> Option<UringCompletion> {
        let op_id = OpId(cqe.user_data & !TIMEOUT_BIT);
        let slot = self.slots.get_mut(slot_index(cqe.user_data))?;
        let timed = slot.timed.as_mut()?;
        if !timed.record_result(cqe) {
            self.unmatched_cqes += 1;
        } else if timed.has_lost_timer() {
            self.cancel(op_id);
        } else if let Some(outcome) = timed.outcome() {
            let owner = self.slots.remove(slot_index(cqe.user_data)).owner?;
            return Some(UringCompletion {
                owner,
                op_id,
                kind: CompletionKind::Timed(outcome),
                is_last: true,
            });
        }
        None
    }
}
