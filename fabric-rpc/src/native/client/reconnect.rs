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
/// long, up to `max`. Attempts also keep the pauses if a server accepts connections and answers no
/// call; the first answer resets the pause. Each pause is shortened by a random part of up to
/// `jitter` of it, so that many clients of a server do not return at the same time. The pauses also
/// hold between attempts for different calls. A client without calls makes no attempts.
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
        let shortened = pause.as_secs_f64() * (1.0 - jitter.clamp(0.0, 1.0) * random);
        Duration::try_from_secs_f64(shortened).map_or(pause, |shortened| shortened.min(pause))
    }
}

/// How the sessions of a client are opened.
#[derive(Clone, Debug)]
pub(super) struct SessionConfig {
    pub(super) server: String,
    pub(super) bind_to: Option<String>,
    pub(super) options: BindOptions,
    pub(super) max_body_len: usize,
    pub(super) policy: ReconnectPolicy,
}

/// The error number of a connection attempt that the server does not answer.
const ETIMEDOUT: i32 = 110;

impl SessionConfig {
    /// Connects to the server once. Drops `on_end` when the session has ended.
    pub(super) async fn open(&self, on_end: DropEnded) -> Result<Arc<Session>, Error> {
        let (options, limit) = (self.options.clone(), self.max_body_len);
        let open = Session::open(
            options,
            self.bind_to.as_deref(),
            &self.server,
            limit,
            on_end,
        );
        match tokio::time::timeout(self.policy.attempt_timeout, open).await {
            Ok(opened) => opened,
            Err(_) => Err(Error::os("connect to the server", ETIMEDOUT)),
        }
    }
}

/// The current session of a client.
pub(super) struct Connection {
    state: Mutex<ConnectionState>,
    /// The number of results: of sessions, and of failures that no further attempt can mend.
    results: watch::Sender<u64>,
}

struct ConnectionState {
    session: Option<Arc<Session>>,
    /// Whether a task makes attempts.
    is_connecting: bool,
    /// The number of calls that wait for a server.
    waiting: usize,
    /// The pause after the next attempt.
    pause: Duration,
    /// The earliest time of the next attempt.
    next_attempt: Option<Instant>,
    /// The number of the last attempt that showed that further ones cannot succeed, and its error.
    failure: Option<(u64, Status)>,
    /// Why the last attempt failed; `None` after a success.
    last_error: Option<String>,
}

impl Connection {
    pub(super) fn new(policy: &ReconnectPolicy) -> Self {
        Self {
            state: Mutex::new(ConnectionState {
                session: None,
                is_connecting: false,
                waiting: 0,
                pause: policy.initial,
                next_attempt: None,
                failure: None,
                last_error: None,
            }),
            results: watch::channel(0).0,
        }
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the current session, which may have ended.
    pub(super) fn session(&self) -> Option<Arc<Session>> {
        self.lock().session.clone()
    }

    /// Returns the status of a call whose time is over before it was sent.
    pub(super) fn deadline_before_start(&self) -> Status {
        let message = match &self.lock().last_error {
            None => "the time of the call is over; the request was not sent".into(),
            Some(error) => format!("the time of the call is over; cannot connect: {error}"),
        };
        Status::new(Code::DeadlineExceeded, message)
    }

    /// Sets the first session.
    pub(super) fn set_session(&self, session: Arc<Session>) {
        self.lock().session = Some(session);
    }
}

impl ConnectionState {
    /// Returns the session if it has ended, to be dropped without the lock.
    fn take_ended(&mut self, policy: &ReconnectPolicy) -> Option<Arc<Session>> {
        let session = self.session.take_if(|session| session.has_ended())?;
        if session.has_served() {
            self.pause = policy.initial;
            self.next_attempt = None;
        }
        Some(session)
    }
}

/// Drops a session that has ended, and its endpoint, also if no call follows. Must be dropped
/// without the lock of the connection.
pub(super) struct DropEnded(pub(super) Weak<ClientShared>);

impl Drop for DropEnded {
    fn drop(&mut self) {
        if let Some(client) = self.0.upgrade() {
            let ended = (client.connection.lock()).take_ended(&client.config.policy);
            drop(ended);
        }
    }
}

impl ClientShared {
    /// Waits for a session with the server. While calls wait, a task makes attempts to connect.
    pub(super) async fn wait_for_session(self: &Arc<Self>) -> Result<Arc<Session>, Status> {
        /// Counts a waiting call.
        struct Waiting<'a>(&'a Connection);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.lock().waiting -= 1;
            }
        }
        let connection = &self.connection;
        let mut results = connection.results.subscribe();
        let seen = *results.borrow_and_update();
        connection.lock().waiting += 1;
        let _waiting = Waiting(connection);
        loop {
            {
                let mut state = connection.lock();
                if let Some((number, failure)) = &state.failure
                    && *number > seen
                {
                    return Err(failure.clone());
                }
                if let Some(ended) = state.take_ended(&self.config.policy) {
                    drop(state);
                    drop(ended);
                    continue;
                }
                if let Some(session) = &state.session {
                    return Ok(session.clone());
                }
                let is_first = !std::mem::replace(&mut state.is_connecting, true);
                drop(state);
                if is_first {
                    tokio::spawn(connect(EndOnDrop(Arc::downgrade(self))));
                }
            }
            // Fails only without the sender, which is a field of `self`.
            let _ = results.changed().await;
        }
    }
}

/// Lets calls that wait start another task to connect, also if this one panics, or its runtime ends
/// or does not exist. Must be dropped without the lock of the connection.
struct EndOnDrop(Weak<ClientShared>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        if let Some(client) = self.0.upgrade() {
            client.connection.lock().is_connecting = false;
            client.connection.results.send_modify(|count| *count += 1);
        }
    }
}

/// Makes attempts to connect until one succeeds, one shows that none can, or no call waits.
async fn connect(end_on_drop: EndOnDrop) {
    let client = &end_on_drop.0;
    loop {
        let Some((config, next_attempt)) = client.upgrade().and_then(|client| {
            let state = client.connection.lock();
            (state.waiting > 0).then(|| (client.config.clone(), state.next_attempt))
        }) else {
            return;
        };
        if let Some(next_attempt) = next_attempt
            && Instant::now() < next_attempt
        {
            tokio::time::sleep_until(next_attempt).await;
            continue;
        }
        let opened = config.open(DropEnded(client.clone())).await;
        let Some(client) = client.upgrade() else {
            return;
        };
        let number = *client.connection.results.borrow() + 1;
        let mut state = client.connection.lock();
        let pause = config.policy.with_jitter(state.pause, fastrand::f64());
        state.next_attempt = Instant::now().checked_add(pause);
        state.pause = config.policy.next(state.pause);
        match opened {
            Ok(session) => {
                tracing::debug!(target: "fabric_rpc::native", parent: &client.span, "connected");
                state.session = Some(session);
                state.last_error = None;
                return;
            }
            Err(error) => {
                tracing::debug!(target: "fabric_rpc::native", parent: &client.span, %error,
                    "connection attempt failed");
                state.last_error = Some(error.to_string());
                if is_final(&error) {
                    let message = format!("cannot connect to {}: {error}", config.server);
                    state.failure = Some((number, Status::new(Code::Internal, message)));
                    return;
                }
            }
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
        assert_eq!(policy.with_jitter(Duration::MAX, 0.0), Duration::MAX);
    }
}
