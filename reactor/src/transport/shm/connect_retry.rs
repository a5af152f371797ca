//! When a client connects again: after it has met a full backlog, or a listener that has as many
//! handshakes of the client's process as it takes.
//!
//! The kernel refuses a connect to a Unix socket at once while the backlog of the listener is full
//! (`EAGAIN`), and offers no wait without a blocked thread. So the client tries again: about 1 ms
//! later, and then after twice the delay each time, up to 16 ms. Each delay is shortened at random
//! by up to a half, so that clients do not keep pace with each other. The kernel keeps no order
//! among clients that try again.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use fabric_core::{Address, Error, RefusalReason};

/// Time limit of the connects of a connectionless endpoint, whose operations have none.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay of the second try.
const FIRST_DELAY: Duration = Duration::from_millis(1);
/// Longest delay.
const MAX_DELAY: Duration = Duration::from_millis(16);

/// The tries of one connect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectRetry {
    deadline: Instant,
    delay: Duration,
}

impl ConnectRetry {
    /// Begins the time limit of a connect.
    pub(crate) fn new(timeout: Duration) -> Self {
        let now = Instant::now();
        Self {
            // A timeout that no clock can hold is as good as a year.
            deadline: now
                .checked_add(timeout)
                .unwrap_or(now + Duration::from_secs(365 * 24 * 3600)),
            delay: FIRST_DELAY,
        }
    }

    /// Returns the end of the time limit.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns the time of the next try, at the latest the end of the time limit.
    ///
    /// # Errors
    /// [`Error::ConnectionRefused`] by `peer` for lack of resources, after the time limit.
    pub(crate) fn next_try(&mut self, peer: &Address) -> Result<Instant, Error> {
        let now = Instant::now();
        if now >= self.deadline {
            return Err(Error::ConnectionRefused {
                peer: peer.clone(),
                reason: RefusalReason::Resources,
            });
        }
        // The hash is random, because the keys of `RandomState` are.
        let random = RandomState::new().hash_one(()) % 1024;
        let delay = self.delay / 2 + self.delay * random as u32 / 2048;
        self.delay = MAX_DELAY.min(self.delay * 2);
        Ok(self.deadline.min(now + delay))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use fabric_core::Scheme;

    use super::*;

    #[test]
    fn delays_double_up_to_the_longest_one() {
        let peer = Address::new(Scheme::Shm, "busy").unwrap();
        let mut retry = ConnectRetry::new(Duration::MAX);
        for millis in [1, 2, 4, 8, 16, 16, 16] {
            let before = Instant::now();
            let next = retry.next_try(&peer).unwrap();
            let longest = Duration::from_millis(millis);
            assert!(next >= before + longest / 2, "{millis}");
            assert!(next <= Instant::now() + longest, "{millis}");
        }
    }

    #[test]
    fn tries_end_with_the_time_limit() {
        let peer = Address::new(Scheme::Shm, "busy").unwrap();
        let mut retry = ConnectRetry::new(Duration::ZERO);
        let refused = Error::ConnectionRefused {
            peer: peer.clone(),
            reason: RefusalReason::Resources,
        };
        assert_eq!(retry.next_try(&peer), Err(refused));
        let mut retry = ConnectRetry::new(Duration::from_secs(1000));
        retry.delay = Duration::from_secs(4000);
        assert_eq!(retry.next_try(&peer), Ok(retry.deadline()));
    }
}
