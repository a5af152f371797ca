//! The timer that checks which arriving messages make progress.
//!
//! The timer runs while a message is arriving. It expires every 50 ms, or sixteen times in a short
//! progress timeout, and each time the receive queues compare what has arrived
//! ([`check_arrivals`](fabric_core::rx::RxQueue::check_arrivals)). The timeout is counted in
//! checks, and a pass lies between two checks, so a message that waits in a socket or ring because
//! the program did not poll does not time out.

use std::sync::Arc;
use std::time::Duration;

use fabric_core::transport::{WaitSet, WaitToken};

use crate::sys::EpollSet;
use crate::sys::timer::Timer;

/// The progress timeout, unless the program sets another one.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two checks of a long timeout.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The least number of checks in a timeout.
const MIN_CHECKS: u32 = 16;

/// The progress timeout, and the timer once a message has arrived in pieces.
pub(crate) struct ArrivalTimer {
    timeout: Option<Duration>,
    timer: Option<Timer>,
    /// Whether the timer runs, or is about to be started.
    is_running: bool,
}

impl std::fmt::Debug for ArrivalTimer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ArrivalTimer")
            .field("timeout", &self.timeout)
            .field("is_running", &self.is_running)
            .finish_non_exhaustive()
    }
}

impl ArrivalTimer {
    pub(crate) fn new() -> Self {
        Self {
            timeout: Some(DEFAULT_TIMEOUT),
            timer: None,
            is_running: false,
        }
    }

    pub(crate) fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// Returns the time between two checks; `None` without a timeout.
    fn interval(&self) -> Option<Duration> {
        let timeout = self.timeout?;
        Some((timeout / MIN_CHECKS).min(CHECK_INTERVAL))
    }

    /// Returns the number of checks in the timeout.
    pub(crate) fn checks_per_timeout(&self) -> u32 {
        let (Some(timeout), Some(interval)) = (self.timeout, self.interval()) else {
            return u32::MAX;
        };
        let checks = timeout.as_nanos() / interval.as_nanos().max(1);
        u32::try_from(checks).unwrap_or(u32::MAX).max(MIN_CHECKS)
    }

    /// Notes that a message is arriving. Returns whether the timer must be [started](Self::start).
    pub(crate) fn on_arriving(&mut self) -> bool {
        !std::mem::replace(&mut self.is_running, true)
    }

    /// Starts the timer. Without a timer, for lack of descriptors, the next message that arrives
    /// tries again.
    pub(crate) fn start(&mut self, wait_set: &Arc<EpollSet>) {
        if self.timeout.is_none() {
            return;
        }
        if self.timer.is_none() {
            let wait_set = wait_set.clone() as Arc<dyn WaitSet>;
            self.timer = Timer::new(&wait_set, WaitToken::ARRIVAL_TIMER).ok();
        }
        self.set_running(self.timer.is_some());
    }

    /// Makes the timer expire when the next check is due, or stops the timer.
    pub(crate) fn set_running(&mut self, is_running: bool) {
        self.is_running = is_running;
        if let Some(timer) = &self.timer {
            timer.set(self.interval().filter(|_| is_running));
        }
    }
}
