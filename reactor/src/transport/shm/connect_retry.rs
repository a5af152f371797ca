//! When a client connects again: after it has met a full backlog, or a listener that has as many
//! handshakes of the client's process as it takes.
//!
//! The kernel refuses a connect to a Unix socket at once while the backlog of the listener is full
//! (`EAGAIN`), and offers no wait without a blocked thread. So the client tries again: about 1 ms
//! later, and then after twice the delay each time, up to 16 ms. Each delay is shortened at random
//! by up to a half, so that clients do not keep pace with each other. The kernel keeps no order
//! among clients that try again.
//!
//! A try may also wait: in the backlog of a listener that is busy, or for this process to read the
//! answer. A connectionless endpoint has no time limit for that, but for the refusals, each of
//! which counts no more than [`MAX_REFUSAL`].

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use fabric_core::{Address, Error, RefusalReason};

/// How long the connects of a connectionless endpoint are refused before its operations fail, which
/// have no time limit.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay of the second try.
const FIRST_DELAY: Duration = Duration::from_millis(1);
/// Longest delay.
const MAX_DELAY: Duration = Duration::from_millis(16);

/// The most that a refusal takes of the time limit.
const MAX_REFUSAL: Duration = Duration::from_secs(1);

/// The tries of one connect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectRetry {
    limit: TimeLimit,
    delay: Duration,
}

#[derive(Clone, Copy, Debug)]
enum TimeLimit {
    /// Of the connect, by its end.
    Connect(Instant),
    /// Of the refusals: how much is left, and the time of the last one.
    Refusals(Duration, Option<Instant>),
}

impl ConnectRetry {
    /// Begins the time limit of a connect.
    pub(crate) fn until(deadline: Instant) -> Self {
        Self {
            limit: TimeLimit::Connect(deadline),
            delay: FIRST_DELAY,
        }
    }

    /// Limits the time for which tries are refused.
    pub(crate) fn of_refusals(timeout: Duration) -> Self {
        Self {
            limit: TimeLimit::Refusals(timeout, None),
            delay: FIRST_DELAY,
        }
    }

    /// Returns the time of the next try after a refusal, at the latest the end of the time limit.
    ///
    /// # Errors
    /// [`Error::ConnectionRefused`] by `peer` for lack of resources, after the time limit.
    pub(crate) fn next_try(&mut self, peer: &Address) -> Result<Instant, Error> {
        self.next_try_at(Instant::now(), peer)
    }

    fn next_try_at(&mut self, now: Instant, peer: &Address) -> Result<Instant, Error> {
        let left = match &mut self.limit {
            TimeLimit::Connect(deadline) => deadline.saturating_duration_since(now),
            TimeLimit::Refusals(left, last) => {
                let since = last.replace(now).map_or(Duration::ZERO, |last| now - last);
                *left = left.saturating_sub(since.min(MAX_REFUSAL));
                *left
            }
        };
        if left.is_zero() {
            return Err(Error::ConnectionRefused {
                peer: peer.clone(),
                reason: RefusalReason::Resources,
            });
        }
        // The hash is random, because the keys of `RandomState` are.
        let random = RandomState::new().hash_one(()) % 1024;
        let delay = self.delay / 2 + self.delay * random as u32 / 2048;
        self.delay = MAX_DELAY.min(self.delay * 2);
        Ok(now + delay.min(left))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use fabric_core::Scheme;

    use super::*;

    #[test]
    fn delays_double_up_to_the_longest_one() {
        let peer = Address::new(Scheme::Shm, "busy").unwrap();
        let mut retry = ConnectRetry::of_refusals(Duration::MAX);
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
        let now = Instant::now();
        let mut retry = ConnectRetry::until(now);
        assert_eq!(retry.next_try_at(now, &peer), Err(refused_by(&peer)));
        let deadline = now + Duration::from_secs(1000);
        let mut retry = ConnectRetry::until(deadline);
        retry.delay = Duration::from_secs(4000);
        assert_eq!(retry.next_try_at(now, &peer), Ok(deadline));
    }

    /// A listener, or this process, that is busy for long takes little of the time limit.
    #[test]
    fn waits_between_refusals_count_no_more_than_their_share() {
        let peer = Address::new(Scheme::Shm, "busy").unwrap();
        let mut retry = ConnectRetry::of_refusals(3 * MAX_REFUSAL);
        let mut now = Instant::now();
        for _ in 0..3 {
            assert!(retry.next_try_at(now, &peer).is_ok());
            now += Duration::from_secs(100);
        }
        assert_eq!(retry.next_try_at(now, &peer), Err(refused_by(&peer)));
    }

    fn refused_by(peer: &Address) -> Error {
        Error::ConnectionRefused {
            peer: peer.clone(),
            reason: RefusalReason::Resources,
        }
    }
}
