//! The client: credits, options, and the service of tower.
//!
//! | file | subject |
//! |---|---|
//! | `mod` | the client, its credits and options |
//! | `call` | the future of a call |
//! | `slots` | where answers go, and who receives them |
//! | `receive` | receiving answers, and the reader task |
//! | `session` | an endpoint that is connected to one incarnation of the server |
//! | `reconnect` | sessions after the first |

mod call;
mod receive;
mod reconnect;
mod session;
mod slots;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
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
use reconnect::{Link, SessionConfig};
use session::{Session, default_bind_address};

/// The default number of calls under way of a client.
const DEFAULT_CREDITS: usize = 256;

/// A client of a native [`Server`](super::Server). Cheap to clone; clones share the connection and
/// the credits.
///
/// Every call takes one of the client's *credits* and returns it when its answer has come, or the
/// server has left. The answer of a call that was dropped, or whose time was over, is discarded
/// when it comes; until then it keeps the credit. Without a credit calls wait.
///
/// When the server dies or closes its endpoint, the calls under way fail with
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
/// As a service of tower, [`poll_ready`](Service::poll_ready) waits for a credit, and
/// [`call`](Service::call) uses it. A clone is not ready: it has no credit before its own
/// `poll_ready`. A client that is ready and dropped returns its credit.
pub struct Client {
    shared: Arc<ClientShared>,
    credit: Credit,
}

/// The credit that `poll_ready` reserves.
enum Credit {
    None,
    Waiting(Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send + Sync>>),
    Reserved(OwnedSemaphorePermit),
}

/// What the clones of a client share.
struct ClientShared {
    config: SessionConfig,
    link: Link,
    credits: Arc<Semaphore>,
    default_timeout: Option<Duration>,
    max_body_len: usize,
    span: Span,
}

impl ClientShared {
    /// Returns the current session, which may have ended.
    fn session(&self) -> Option<Arc<Session>> {
        self.link.session()
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

    /// Calls the server: waits for a credit, for a server if there is none, and for the answer.
    ///
    /// # Errors
    /// A [`Status`]: of the server, of the connection, or
    /// [`DeadlineExceeded`](super::Code::DeadlineExceeded). See [`Code`](super::Code).
    ///
    /// # Cancel safety
    /// Dropping the future cancels the call: a request that was sent may have been executed, or the
    /// server drops its handler.
    pub async fn call(&self, mut request: Request) -> Result<Response, Status> {
        let credit = match self.shared.credits.clone().try_acquire_owned() {
            Ok(credit) => Some(credit),
            Err(_) => {
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

    /// Allocates memory of `len` bytes for the body of a request, zeroed or as an earlier request
    /// left it. Over `shm` the server reads it in place; over `tcp` the bytes are copied.
    ///
    /// Waits for a server if there is none, and while the client has lent as much as
    /// [`loan_limit`](BindOptions::loan_limit) allows. The memory belongs to the connection: the
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

    /// Returns how many more calls can be under way now.
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
            credit: Credit::None,
        }
    }
}

impl Service<Request> for Client {
    type Response = Response;
    type Error = Status;
    type Future = ResponseFuture;

    /// Waits for a credit, and reserves it.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        loop {
            let credits = &self.shared.credits;
            self.credit = match &mut self.credit {
                Credit::Reserved(_) => return Poll::Ready(Ok(())),
                Credit::None => match credits.clone().try_acquire_owned() {
                    Ok(credit) => Credit::Reserved(credit),
                    Err(_) => {
                        let credits = credits.clone();
                        Credit::Waiting(Box::pin(async move { credits.acquire_owned().await.ok() }))
                    }
                },
                Credit::Waiting(waiting) => match ready!(waiting.as_mut().poll(cx)) {
                    Some(credit) => Credit::Reserved(credit),
                    None => {
                        return Poll::Ready(Err(Status::not_started(
                            Code::Unavailable,
                            "the client is closed",
                        )));
                    }
                },
            };
        }
    }

    /// Calls the server with the reserved credit. Without one, the call fails with
    /// [`Code::ResourceExhausted`](super::Code::ResourceExhausted) if no credit is free.
    fn call(&mut self, request: Request) -> ResponseFuture {
        let credit = match std::mem::replace(&mut self.credit, Credit::None) {
            Credit::Reserved(credit) => Some(credit),
            Credit::None | Credit::Waiting(_) => {
                self.shared.credits.clone().try_acquire_owned().ok()
            }
        };
        ResponseFuture::new(self.shared.clone(), request, credit)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let credit = match self.credit {
            Credit::None => "none",
            Credit::Waiting(_) => "waiting",
            Credit::Reserved(_) => "reserved",
        };
        f.debug_struct("Client")
            .field("server", &self.shared.config.server)
            .field("credit", &format_args!("{credit}"))
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
    /// Sets the number of calls under way; 256 by default, at least 1, at most 2^20.
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

    /// Sets the address of the client's endpoint; by default any of the server's scheme, which over
    /// `tcp` is one of the loopback interface. For a server on another machine, name an address of
    /// this machine, as in `tcp://192.0.2.7:0`.
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
        let mut client = self.connect_lazy();
        let shared = Arc::get_mut(&mut client.shared).expect("the client was not cloned");
        let session = shared.config.open().await?;
        shared.link = Link::new(Some(session), &shared.config.policy);
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
        let default_address = default_bind_address(&self.server);
        let config = SessionConfig {
            bind_to: self.bind_to.unwrap_or(default_address),
            server: self.server,
            options: self.options,
            max_body_len: self.max_body_len,
            policy: self.policy,
        };
        let shared = ClientShared {
            link: Link::new(None, &config.policy),
            config,
            credits: Arc::new(Semaphore::new(self.credits)),
            default_timeout: self.default_timeout,
            max_body_len: self.max_body_len,
            span,
        };
        Client {
            shared: Arc::new(shared),
            credit: Credit::None,
        }
    }
}
