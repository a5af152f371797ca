//! Operations with a timeout, which the kernel enforces.
//!
//! A timed operation is two linked entries: the operation, followed by a linked timeout
//! (`IORING_OP_LINK_TIMEOUT`), the *timer*. Both share a slot. Each has its own user data and its
//! own completion; the completions arrive in any order.
//!
//! # What the kernel copies, and when
//!
//! The kernel reads timeout and address within the call that submits the entries, and never again:
//! the timeout when it prepares the entry, the address then (since Linux 6.10) or in the first
//! attempt, which the same call makes. But this module does not track which entries were submitted
//! by a call that failed or submitted only some, and any later call may submit a queued entry. So
//! timeout and address stay in the slot until both completions have arrived.
//!
//! # How two results combine
//!
//! | operation | timer | outcome |
//! |---|---|---|
//! | `ECANCELED`, `EINTR`, `EALREADY`, `EINPROGRESS`, `EAGAIN` | `ETIME`, `ENOENT`, `EALREADY` | timed out; `ENOENT` and `EALREADY` if the operation was being executed, or its submitting thread has exited |
//! | the same | any other | interrupted: the operation was canceled, or its submitting thread has exited |
//! | any other result | any, usually `ECANCELED` | completed with the operation's result, even if the timer fired at the same moment |
//!
//! # Threads that exit
//!
//! The kernel keeps the operations of an exited thread, but does no more work for them. When the
//! socket is ready, the operation ends with `ECANCELED`. When the timer fires, the timer ends with
//! `ECANCELED` or `ENOENT`, and the operation does not end. A timer that was not submitted together
//! with its operation is refused (`EINVAL`), and the operation does not end either. So when a timer
//! ends before its operation with another result than `ETIME`, this module cancels the operation.

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
    /// The operation has completed or failed: the number of bytes, or the error.
    Completed(Result<usize, Errno>),
    /// The timeout has expired.
    TimedOut,
    /// The operation was canceled, or the thread that submitted it has exited.
    Interrupted,
}

/// The state of a timed operation: address and timeout, which the kernel reads in place, and the
/// results of operation and timer as in their completion queue entries.
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

    /// Returns whether the timer has ended without firing, and the operation has not ended.
    fn has_lost_timer(&self) -> bool {
        let has_fired = self.timer_result == Some(-Errno::TIME.raw_os_error());
        self.op_result.is_none() && self.timer_result.is_some() && !has_fired
    }

    /// Returns the outcome, when both results are known.
    fn outcome(&self) -> Option<TimedOutcome> {
        Some(combine_results(self.op_result?, self.timer_result?))
    }
}

/// Combines the results of operation and timer, as in their completion queue entries.
pub(super) fn combine_results(operation: i32, timer: i32) -> TimedOutcome {
    let fired_results =
        [Errno::TIME, Errno::NOENT, Errno::ALREADY].map(|errno| -errno.raw_os_error());
    match u32::try_from(operation).map_err(|_| Errno::from_raw_os_error(-operation)) {
        Err(errno) if !is_cancellation(errno) => TimedOutcome::Completed(Err(errno)),
        Err(_) if fired_results.contains(&timer) => TimedOutcome::TimedOut,
        Err(_) => TimedOutcome::Interrupted,
        Ok(count) => TimedOutcome::Completed(Ok(count as usize)),
    }
}

/// Returns whether an error means that the operation was ended before it completed or failed.
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
    /// Starts a connect within `timeout` with the next [`submit`](Self::submit). One completion
    /// reports the outcome; until then the socket must not be used otherwise.
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

    /// Returns the error with which a timed operation has failed, if the kernel has reported it
    /// already; not if the operation was canceled or timed out. The completion follows regardless.
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
