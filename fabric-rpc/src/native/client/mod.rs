//! The client: credits, options, and the service of tower.
//!
//! | file | subject |
//! |---|---|
//! | `mod` | the client, its credits and options |
//! | `reconnect` | the connection to the server: sessions, one after the other |
//! | `call` | the future of a call |
//! | `session` | an endpoint that is connected to one incarnation of the server |
//! | `calls` | the calls in flight of a session |
//! | `slots` | where answers go |
//! | `receiver_turn` | which task receives |
//! | `receive` | receiving answers, and the reader task |

mod call;
mod calls;
mod receive;
mod receiver_turn;
mod reconnect;
mod session;
mod slots;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use fabric_async::stats::EndpointStats;
use fabric_async::{BindOptions, Endpoint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower_service::Service;
use tracing::Span;

pub use call::ResponseFuture;
pub use reconnect::ReconnectPolicy;

use super::{Code, DEFAULT_MAX_BODY_LEN, LentBuf, Request, Response, Status};
use reconnect::{Connection, DropEnded, SessionConfig};
use session::Session;

/// The default number of calls in flight of a client.
const DEFAULT_CREDITS: usize = 256;

/// A client of a native [`Server`](super::Server). Cheap to clone; clones share the connection and
/// the credits.
///
/// Every call takes one of the client's *credits* and returns it when its answer has come, or the
/// server has left. The answer of a call that was dropped, or whose time was over, is discarded
/// when it comes; until then it keeps the credit. Without a credit calls wait.
///
/// When the server dies or closes its endpoint, the calls in flight fail with
/// [`Code::Unavailable`](super::Code::Unavailable). Later calls wait until a server has the name
/// again, within their time: see [`ReconnectPolicy`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
/// use std::convert::Infallible;
/// use fabric_rpc::native::{Client, Request, Response, Server};
///
/// let server = Server::bind("shm://").await?;
/// let client = Client::builder(server.name()).connect_lazy();
/// tokio::spawn(server.serve(tower::service_fn(|request: Request| async move {
///     Ok::<_, Infallible>(Response::new(request.body))
/// })));
/// let response = client.call(Request::new(1, "hello")).await.expect("an answer");
/// assert_eq!(response.body.into_bytes(), "hello");
/// # Ok(()) }
/// ```
///
/// As a service of tower, [`poll_ready`](Service::poll_ready) waits for a credit, and the next call
/// uses it. A clone is not ready: it has no credit before its own `poll_ready`. A client that is
/// ready and dropped returns its credit.
///
/// `client.call(…)` is [`Client::call`], which waits for a credit. Only on a `client: &mut Client`
/// with `tower::Service` in scope it is the call of the service, which does not wait.
///
/// # Runtime
/// A connection belongs to the Tokio runtime that connected: that of
/// [`connect`](ClientBuilder::connect), or of the first call that found no connection. All calls
/// need that runtime: while it is blocked, or runs no task, calls from other runtimes get no answer
/// before their deadline. When it ends, the connection does, and the next call connects on its own
/// runtime.
pub struct Client {
    shared: Arc<ClientShared>,
    reserved: ReservedCredit,
    /// Waits for the credit that `poll_ready` reserves.
    #[allow(clippy::type_complexity)]
    waiting: Option<Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send + Sync>>>,
}

/// The credit that `poll_ready` has reserved.
#[derive(Default)]
struct ReservedCredit {
    credit: Mutex<Option<OwnedSemaphorePermit>>,
    /// Whether `credit` may be there: calls that reserve nothing do not lock.
    is_reserved: AtomicBool,
}

impl ReservedCredit {
    fn set(&mut self, reserved: OwnedSemaphorePermit) {
        *self.is_reserved.get_mut() = true;
        let credit = self.credit.get_mut();
        *credit.unwrap_or_else(PoisonError::into_inner) = Some(reserved);
    }

    fn take(&self) -> Option<OwnedSemaphorePermit> {
        if !self.is_reserved.load(Ordering::Relaxed) {
            return None;
        }
        let credit = self.credit.lock();
        let credit = credit.unwrap_or_else(PoisonError::into_inner).take();
        self.is_reserved.store(false, Ordering::Relaxed);
        credit
    }
}

/// What the clones of a client share.
struct ClientShared {
    config: SessionConfig,
    connection: Connection,
    credits: Arc<Semaphore>,
    default_timeout: Option<Duration>,
    max_body_len: usize,
    span: Span,
}

impl ClientShared {
    /// Returns the current session, which may have ended.
    fn session(&self) -> Option<Arc<Session>> {
        self.connection.session()
    }
}

impl Client {
    /// Connects to the server with this name: an [`Address`](fabric_async::Address) or text such as
    /// `shm://name` or `tcp://host:port`.
    ///
    /// # Errors
    /// As [`ClientBuilder::connect`].
    ///
    /// # Cancel safety
    /// Dropping the future gives up the attempt.
    pub async fn connect(server: impl ToString) -> fabric_async::Result<Self> {
        Self::builder(server).connect().await
    }

    /// Returns options for a client of the server with this name.
    pub fn builder(server: impl ToString) -> ClientBuilder {
        ClientBuilder {
            server: server.to_string(),
            bind_to: None,
            options: Endpoint::options(),
            max_body_len: DEFAULT_MAX_BODY_LEN,
            credits: DEFAULT_CREDITS,
            default_timeout: None,
            policy: ReconnectPolicy::default(),
        }
    }

    /// Calls the server: waits for a credit, for a server if there is none, and for the answer. A
    /// credit that [`poll_ready`](Service::poll_ready) has reserved is used.
    ///
    /// # Errors
    /// A [`Status`]: of the server, of the connection, or
    /// [`DeadlineExceeded`](super::Code::DeadlineExceeded). See [`Code`](super::Code).
    ///
    /// # Cancel safety
    /// Dropping the future cancels the call. The server drops the handler if it still runs; it may
    /// have ended already.
    pub async fn call(&self, mut request: Request) -> Result<Response, Status> {
        let credit = match self.try_take_credit() {
            Some(credit) => Some(credit),
            None => {
                let credit = self.shared.credits.clone().acquire_owned();
                match request.begin(self.shared.default_timeout) {
                    None => credit.await.ok(),
                    Some(deadline) => {
                        let credit = tokio::time::timeout_at(deadline, credit).await;
                        credit.map_err(|_| Status::deadline())?.ok()
                    }
                }
            }
        };
        ResponseFuture::new(self.shared.clone(), request, credit).await
    }

    /// Returns the reserved credit, or one that is free.
    fn try_take_credit(&self) -> Option<OwnedSemaphorePermit> {
        let reserved = self.reserved.take();
        reserved.or_else(|| self.shared.credits.clone().try_acquire_owned().ok())
    }

    /// Allocates memory of `len` bytes for the body of a request, zeroed or as an earlier request
    /// left it. Over `shm` the server reads it in place; over `tcp` the bytes are copied.
    ///
    /// Waits for a server if there is none, and while the client has lent as much as
    /// [`loan_limit`](BindOptions::loan_limit) allows: without a time limit, also if the client has
    /// a default timeout. The memory belongs to the connection: the
    /// bytes are copied if they are sent over a later one.
    ///
    /// # Errors
    /// [`Code::TooLarge`](super::Code::TooLarge) above the limit of loans;
    /// [`Code::Internal`](super::Code::Internal) when the machine lacks memory or the process
    /// descriptors.
    ///
    /// # Cancel safety
    /// Dropping the future gives up its place in the queue.
    pub async fn lend(&self, len: usize) -> Result<LentBuf, Status> {
        let session = self.shared.wait_for_session().await?;
        let lent = LentBuf::allocate(session.endpoint().domain(), len).await;
        lent.map_err(|error| Status::from_refused_send("lent body", &error))
    }

    /// Returns the counters of the current connection's endpoint; `None` without a connection.
    #[must_use]
    pub fn endpoint_stats(&self) -> Option<EndpointStats> {
        let session = self.shared.session()?;
        (!session.has_ended()).then(|| session.stats())
    }

    /// Returns how many more calls can be in flight now.
    #[must_use]
    pub fn available_credits(&self) -> usize {
        self.shared.credits.available_permits()
    }
}

/// A clone without a credit of its own.
impl Clone for Client {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            reserved: ReservedCredit::default(),
            waiting: None,
        }
    }
}

impl Service<Request> for Client {
    type Response = Response;
    type Error = Status;
    type Future = ResponseFuture;

    /// Waits for a credit, and reserves it. The wait has no time limit of its own: the time of a
    /// call begins with the call.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        if *self.reserved.is_reserved.get_mut() {
            return Poll::Ready(Ok(()));
        }
        let credit = match &mut self.waiting {
            Some(waiting) => ready!(waiting.as_mut().poll(cx)),
            None => match self.shared.credits.clone().try_acquire_owned() {
                Ok(credit) => Some(credit),
                Err(_) => {
                    let credits = self.shared.credits.clone();
                    let waiting = async move { credits.acquire_owned().await.ok() };
                    let waiting = self.waiting.insert(Box::pin(waiting));
                    ready!(waiting.as_mut().poll(cx))
                }
            },
        };
        self.waiting = None;
        let closed = || Status::not_started(Code::Unavailable, "the client is closed");
        self.reserved.set(credit.ok_or_else(closed)?);
        Poll::Ready(Ok(()))
    }

    /// Calls the server with the reserved credit. Without one, the call fails with
    /// [`Code::ResourceExhausted`](super::Code::ResourceExhausted) if no credit is free.
    fn call(&mut self, request: Request) -> ResponseFuture {
        let credit = self.try_take_credit();
        ResponseFuture::new(self.shared.clone(), request, credit)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("server", &self.shared.config.server)
            .field("is_ready", &self.reserved.is_reserved)
            .field("available_credits", &self.available_credits())
            .finish_non_exhaustive()
    }
}

/// Options of a [`Client`], from [`Client::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ClientBuilder {
    server: String,
    bind_to: Option<String>,
    options: BindOptions,
    max_body_len: usize,
    credits: usize,
    default_timeout: Option<Duration>,
    policy: ReconnectPolicy,
}

impl ClientBuilder {
    /// Sets the number of calls in flight; 256 by default, at least 1, at most 2^20.
    pub fn max_in_flight(mut self, calls: usize) -> Self {
        self.credits = calls.clamp(1, slots::MAX_SLOTS);
        self
    }

    /// Sets how long a call may take that sets no [timeout](Request::timeout); `None`, the default,
    /// for no limit. A call without a limit waits for a server for ever.
    pub fn default_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.default_timeout = timeout;
        self
    }

    /// Sets the length of the longest request and response, in bytes; 16 MiB by default. A longer
    /// one fails with [`Code::TooLarge`](super::Code::TooLarge).
    pub fn max_body_len(mut self, bytes: usize) -> Self {
        self.max_body_len = bytes;
        self
    }

    /// Sets how the client connects again.
    pub fn reconnect(mut self, policy: ReconnectPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Sets the options of the domain and endpoint of each connection, such as the
    /// [wait policy](BindOptions::wait_policy). The client sets
    /// [`max_msg_size`](BindOptions::max_msg_size) itself.
    pub fn endpoint_options(mut self, options: BindOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets the address of the client's endpoint, as in `tcp://192.0.2.7:0`; by default any of the
    /// server's scheme. Over `tcp` that is a free port of the address from which this machine sends
    /// to the server.
    pub fn bind_to(mut self, address: impl ToString) -> Self {
        self.bind_to = Some(address.to_string());
        self
    }

    /// Connects to the server.
    ///
    /// # Errors
    /// Those of [`Endpoint::bind`] and [`Endpoint::add_peer`], such as
    /// [`Error::NoSuchPeer`](fabric_async::Error::NoSuchPeer) when no server has the name;
    /// [`Error::Os`](fabric_async::Error::Os) with `ETIMEDOUT` after
    /// [`attempt_timeout`](ReconnectPolicy::attempt_timeout).
    ///
    /// # Cancel safety
    /// Dropping the future gives up the attempt.
    pub async fn connect(self) -> fabric_async::Result<Client> {
        let client = self.connect_lazy();
        let shared = &client.shared;
        let on_end = DropEnded(Arc::downgrade(shared));
        shared
            .connection
            .set_session(shared.config.open(on_end).await?);
        Ok(client)
    }

    /// Creates a client that connects with its first call. Until a server has the name, calls wait
    /// within their time.
    #[must_use]
    pub fn connect_lazy(self) -> Client {
        let span = tracing::debug_span!(
            target: "fabric_rpc::native",
            parent: None,
            "client",
            server = %self.server
        );
        let config = SessionConfig {
            bind_to: self.bind_to,
            server: self.server,
            options: self.options,
            max_body_len: self.max_body_len,
            policy: self.policy,
        };
        let shared = ClientShared {
            connection: Connection::new(&config.policy),
            config,
            credits: Arc::new(Semaphore::new(self.credits)),
            default_timeout: self.default_timeout,
            max_body_len: self.max_body_len,
            span,
        };
        Client {
            shared: Arc::new(shared),
            reserved: ReservedCredit::default(),
            waiting: None,
        }
    }
}
