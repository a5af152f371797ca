//! The state of an operation with a timeout.

use std::net::SocketAddr;
use std::time::Duration;

use io_uring::types::Timespec;
use rustix::io::Errno;
use rustix::net::SocketAddrAny;

use super::completion::TimedOutcome;
use super::cqe::{Cqe, TIMEOUT_BIT};

/// The longest timeout: longer than any caller waits, and valid for the kernel.
const MAX_TIMEOUT: Duration = Duration::from_secs(1 << 32);

/// The state of a timed operation: address and timeout, which the kernel reads in place, and the
/// results of operation and timer as in their completion queue entries.
#[derive(Debug)]
pub(super) struct TimedOp {
    pub(super) addr: SocketAddrAny,
    pub(super) timeout: Timespec,
    pub(super) op_result: Option<i32>,
    pub(super) timer_result: Option<i32>,
}

impl TimedOp {
    pub(super) fn new(addr: SocketAddr, timeout: Duration) -> Box<Self> {
        let timeout = Timespec::from(timeout.min(MAX_TIMEOUT));
        Box::new(Self {
            addr: addr.into(),
            timeout,
            op_result: None,
            timer_result: None,
        })
    }

    /// Records the result of the operation or the timer. Returns false if it was recorded before.
    pub(super) fn record_result(&mut self, cqe: Cqe) -> bool {
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
    pub(super) fn has_lost_timer(&self) -> bool {
        let has_fired = self.timer_result == Some(-Errno::TIME.raw_os_error());
        self.op_result.is_none() && self.timer_result.is_some() && !has_fired
    }

    /// Returns the outcome, when both results are known.
    pub(super) fn outcome(&self) -> Option<TimedOutcome> {
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
pub(super) fn is_cancellation(errno: Errno) -> bool {
    [
        Errno::CANCELED,
        Errno::INTR,
        Errno::ALREADY,
        Errno::INPROGRESS,
        Errno::AGAIN,
    ]
    .contains(&errno)
}
