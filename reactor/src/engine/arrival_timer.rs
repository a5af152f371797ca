//! The timer that checks which arriving messages make progress.
//!
//! The timer runs while a message is arriving. It expires every 50 ms, or sixteen times in a short
//! progress timeout, and each time the receive queues compare what has arrived
//! ([`check_arrivals`](fabric_core::rx::RxQueue::check_arrivals)). The timeout is counted in
//! checks, and a pass lies between two checks, so a message that waits in a socket or ring because
//! the program did not poll does not time out.

use std::sync::Arc;
use std::time::Duration;

use fabric_core::transport::{Disconnect, WaitToken};

use super::progress::EngineState;
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
}

impl ArrivalTimer {
    pub(crate) fn new() -> Self {
        Self {
            timeout: Some(DEFAULT_TIMEOUT),
            timer: None,
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
    fn checks_per_timeout(&self) -> u32 {
        let (Some(timeout), Some(interval)) = (self.timeout, self.interval()) else {
            return u32::MAX;
        };
        let checks = timeout.as_nanos() / interval.as_nanos().max(1);
        u32::try_from(checks).unwrap_or(u32::MAX).max(MIN_CHECKS)
    }

    /// Makes the timer expire when the next check is due, or stops the timer.
    fn set(&self, checks: bool) {
        let period = self.interval();
        if let Some(timer) = &self.timer {
            timer.set(period.filter(|_| checks));
        }
    }
}

impl EngineState {
    /// Starts the timer, because a message is arriving. Without a timer, for lack of descriptors,
    /// the next message that arrives tries again.
    pub(crate) fn start_arrival_timer(&mut self, wait_set: &Arc<EpollSet>) {
        // A forked child shares the timer with its parent, whose connections it must not end.
        let timer = &mut self.arrival_timer;
        if timer.timeout.is_none() || !self.fork_guard.in_original_process() {
            return;
        }
        if timer.timer.is_none() {
            let wait_set = wait_set.clone() as Arc<dyn fabric_core::transport::WaitSet>;
            timer.timer = Timer::new(&wait_set, WaitToken::ARRIVAL_TIMER).ok();
            self.domain.checks_arrivals = timer.timer.is_some();
        }
        timer.set(true);
    }

    /// Handles the expired timer: checks all receive queues, and ends the connections of messages
    /// that have timed out.
    pub(crate) fn check_arrivals(&mut self) {
        if !self.fork_guard.in_original_process() {
            return;
        }
        let mut timed_out = Vec::new();
        let mut any = false;
        let checks = self.arrival_timer.checks_per_timeout();
        for rx in self.endpoints.all_rx_mut() {
            any |= rx.check_arrivals(&mut self.domain, checks, &mut timed_out);
        }
        self.domain.checks_arrivals = any;
        self.arrival_timer.set(any);
        for (ep, peer) in timed_out {
            let _ = self.with_transport(ep, |transport, ctx| {
                transport.disconnect(ctx, Disconnect::Stalled(peer))
            });
        }
    }
}
