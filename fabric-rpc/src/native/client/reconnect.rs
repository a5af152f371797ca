//! The connection to the server, and the policy for connecting again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use fabric_async::{BindOptions, Error};
use tokio::sync::watch;
use tokio::time::Instant;

use super::super::{Code, Status};
use super::ClientShared;
use super::session::Session;

/// How a client connects again after its server has left: in attempts with growing pauses, while a
/// call waits for the server.
///
/// The pause after the first failed attempt is `initial`; each further one is `factor` times as
/// long, up to `max`. A successful attempt resets the pause. Each pause is shortened by a random
/// part of up to `jitter` of it, so that many clients of a server do not return at the same time.
/// The pauses also hold between attempts for different calls. A client without calls makes no
/// attempts.
///
/// ```
/// use std::time::Duration;
/// use fabric_rpc::native::{Client, ReconnectPolicy};
/// let policy = ReconnectPolicy { max: Duration::from_secs(1), ..ReconnectPolicy::default() };
/// let builder = Client::builder("shm://echo").reconnect(policy);
/// # let _ = builder;
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReconnectPolicy {
    /// The first pause; 10 ms by default.
    pub initial: Duration,
    /// The ratio of a pause to the one before; 2 by default. Values below 1 count as 1.
    pub factor: f64,
    /// The longest pause; 5 s by default.
    pub max: Duration,
    /// The largest part of a pause that is left out at random, from 0 to 1; 0.2 by default.
    pub jitter: f64,
    /// How long an attempt waits for the server's answer; 5 s by default. Over `shm` a server whose
    /// process is stopped does not answer.
    pub attempt_timeout: Duration,
}

impl Default for ReconnectPolicy {
    fn default() -> Self {
        Self {
            initial: Duration::from_millis(10),
            factor: 2.0,
            max: Duration::from_secs(5),
            jitter: 0.2,
            attempt_timeout: Duration::from_secs(5),
        }
    }
}

impl ReconnectPolicy {
    /// Returns the pause after this one.
    fn next(&self, pause: Duration) -> Duration {
        let next = pause.as_secs_f64() * self.factor.max(1.0);
        Duration::try_from_secs_f64(next).map_or(self.max, |next| next.min(self.max))
    }

    /// Leaves out a random part of a pause; `random` is from 0 to 1.
    fn with_jitter(&self, pause: Duration, random: f64) -> Duration {
        let jitter = if self.jitter.is_nan() {
            0.0
        } else {
            self.jitter
        };
        pause.mul_f64(1.0 - jitter.clamp(0.0, 1.0) * random)
    }
}

/// How the sessions of a client are opened.
#[derive(Clone, Debug)]
pub(super) struct SessionConfig {
    pub(super) server: String,
    pub(super) bind_to: String,
    pub(super) options: BindOptions,
    pub(super) max_body_len: usize,
    pub(super) policy: ReconnectPolicy,
}

impl SessionConfig {
    /// Connects to the server once.
    pub(super) async fn open(&self) -> Result<Arc<Session>, Error> {
        let options = self.options.clone();
        let open = Session::open(options, &self.bind_to, &self.server, self.max_body_len);
        match tokio::time::timeout(self.policy.attempt_timeout, open).await {
            Ok(opened) => opened,
            Err(_) => Err(Error::os("connect to the server", 110)), // ETIMEDOUT
        }
    }
}

/// The current session of a client.
pub(super) struct Link {
    state: Mutex<LinkState>,
    /// Changes with each result of an attempt.
    attempts: watch::Sender<u64>,
}

struct LinkState {
    session: Option<Arc<Session>>,
    /// Whether a task makes attempts.
    is_connecting: bool,
    /// The number of calls that wait for a server.
    waiting: usize,
    /// The pause after the next failed attempt.
    pause: Duration,
    /// The earliest time of the next attempt.
    next_attempt: Option<Instant>,
    /// The error of the last attempt if further ones cannot succeed.
    failure: Option<Status>,
}

impl Link {
    pub(super) fn new(session: Option<Arc<Session>>, policy: &ReconnectPolicy) -> Self {
        Self {
            state: Mutex::new(LinkState {
                session,
                is_connecting: false,
                waiting: 0,
                pause: policy.initial,
                next_attempt: None,
                failure: None,
            }),
            attempts: watch::channel(0).0,
        }
    }

    fn lock(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the current session, which may have ended.
    pub(super) fn session(&self) -> Option<Arc<Session>> {
        self.lock().session.clone()
    }
}

impl ClientShared {
    /// Waits for a session with the server. While calls wait, a task makes attempts to connect.
    pub(super) async fn wait_for_session(self: &Arc<Self>) -> Result<Arc<Session>, Status> {
        /// Counts a waiting call.
        struct Waiting<'a>(&'a Link);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.lock().waiting -= 1;
            }
        }
        let link = &self.link;
        let mut attempts = link.attempts.subscribe();
        link.lock().waiting += 1;
        let _waiting = Waiting(link);
        loop {
            {
                let mut state = link.lock();
                if let Some(failure) = state.failure.take() {
                    return Err(failure);
                }
                if let Some(session) = state.session.take_if(|session| session.has_ended()) {
                    drop(state);
                    drop(session);
                    continue;
                }
                if let Some(session) = &state.session {
                    return Ok(session.clone());
                }
                if !std::mem::replace(&mut state.is_connecting, true) {
                    tokio::spawn(connect(Arc::downgrade(self)));
                }
            }
            if attempts.changed().await.is_err() {
                return Err(Status::unavailable(true, "the client is closed"));
            }
        }
    }
}

/// Makes attempts to connect until one succeeds, or no call waits.
async fn connect(client: Weak<ClientShared>) {
    loop {
        let Some((config, next_attempt)) = client.upgrade().and_then(|client| {
            let mut state = client.link.lock();
            if state.waiting == 0 {
                state.is_connecting = false;
                return None;
            }
            Some((client.config.clone(), state.next_attempt))
        }) else {
            return;
        };
        if let Some(next_attempt) = next_attempt {
            tokio::time::sleep_until(next_attempt).await;
        }
        let opened = config.open().await;
        let Some(client) = client.upgrade() else {
            return;
        };
        let mut state = client.link.lock();
        let ended = match opened {
            Ok(session) => {
                tracing::debug!(target: "fabric_rpc::native", parent: &client.span, "connected");
                state.session = Some(session);
                state.pause = config.policy.initial;
                state.next_attempt = None;
                true
            }
            Err(error) => {
                tracing::debug!(target: "fabric_rpc::native", parent: &client.span, %error,
                    "connection attempt failed");
                let pause = config.policy.with_jitter(state.pause, fastrand::f64());
                state.next_attempt = Instant::now().checked_add(pause);
                state.pause = config.policy.next(state.pause);
                let is_final = is_final(&error);
                if is_final {
                    let message = format!("cannot connect to {}: {error}", config.server);
                    state.failure = Some(Status::new(Code::Internal, message));
                }
                is_final
            }
        };
        if ended {
            state.is_connecting = false;
            drop(state);
            client.link.attempts.send_modify(|count| *count += 1);
            return;
        }
    }
}

/// Returns whether an error shows that no later attempt can succeed.
fn is_final(error: &Error) -> bool {
    matches!(
        error,
        Error::BadAddress { .. }
            | Error::WrongScheme { .. }
            | Error::NoMatch(_)
            | Error::NotSupported(_)
            | Error::OtherUser { .. }
            | Error::Runtime(_)
            | Error::Invalid { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_the_maximum() {
        let policy = ReconnectPolicy {
            initial: Duration::from_millis(10),
            factor: 3.0,
            max: Duration::from_millis(100),
            ..ReconnectPolicy::default()
        };
        let mut pause = policy.initial;
        let pauses = [30, 90, 100, 100].map(|expected| {
            pause = policy.next(pause);
            assert_eq!(pause, Duration::from_millis(expected));
            pause
        });
        assert_eq!(pauses[3], policy.max);
    }

    #[test]
    fn unusual_policies_are_limited() {
        for factor in [0.0, -1.0, f64::NAN] {
            let policy = ReconnectPolicy {
                factor,
                ..ReconnectPolicy::default()
            };
            assert_eq!(policy.next(policy.initial), policy.initial);
        }
        let policy = ReconnectPolicy {
            factor: f64::INFINITY,
            jitter: 7.0,
            ..ReconnectPolicy::default()
        };
        assert_eq!(policy.next(policy.initial), policy.max);
        assert_eq!(policy.with_jitter(policy.max, 1.0), Duration::ZERO);
        assert_eq!(policy.with_jitter(policy.max, 0.0), policy.max);
    }
}
