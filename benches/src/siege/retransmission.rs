//! When a client sends a datagram again: the probe timeout of QUIC (RFC 9002, section 6.2.1).

use std::time::Duration;

/// Timeout before the first round trip, and its upper limit.
const MAX_TIMEOUT: Duration = Duration::from_millis(100);
/// Resolution of the timer that ends the timeout.
const TIMER_RESOLUTION: Duration = Duration::from_millis(1);

/// Estimates the time of a round trip.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetransmissionTimer {
    /// Smoothed time of a round trip and its variation; `None` before the first one.
    estimate: Option<(Duration, Duration)>,
}

impl RetransmissionTimer {
    /// Creates a timer without an estimate.
    pub(super) fn new() -> Self {
        Self { estimate: None }
    }

    /// Returns after which time a datagram is sent again that was sent `sent_before` times before
    /// this time. Each time doubles it.
    pub(super) fn timeout(&self, sent_before: u32) -> Duration {
        let Some((smoothed, variation)) = self.estimate else {
            return MAX_TIMEOUT;
        };
        let timeout = smoothed + (4 * variation).max(TIMER_RESOLUTION);
        timeout
            .saturating_mul(1 << sent_before.min(16))
            .min(MAX_TIMEOUT)
    }

    /// Takes the time of a round trip, whose datagram was sent once, into the estimate.
    pub(super) fn on_round_trip(&mut self, time: Duration) {
        self.estimate = Some(match self.estimate {
            None => (time, time / 2),
            Some((smoothed, variation)) => {
                let deviation = smoothed.abs_diff(time);
                ((7 * smoothed + time) / 8, (3 * variation + deviation) / 4)
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_follows_the_round_trips() {
        let ms = Duration::from_millis;
        let mut timer = RetransmissionTimer::new();
        assert_eq!(timer.timeout(0), MAX_TIMEOUT);
        timer.on_round_trip(ms(8));
        assert_eq!(timer.timeout(0), ms(8 + 4 * 4));
        assert_eq!(timer.timeout(1), ms(48));
        assert_eq!(timer.timeout(40), MAX_TIMEOUT);
        for _ in 0..200 {
            timer.on_round_trip(ms(2));
        }
        assert!(timer.timeout(0) >= ms(3) && timer.timeout(0) < ms(4));
        timer.on_round_trip(ms(50));
        assert!(timer.timeout(0) > ms(50));
    }
}
