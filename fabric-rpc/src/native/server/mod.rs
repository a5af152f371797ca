//! The server: options, the receive loop, shutdown.
//!
//! | file | subject |
//! |---|---|
//! | `mod` | the server and its options |
//! | `serve` | the receive loop: requests, cancellations, events, shutdown |
//! | `requests` | the requests in flight: limits and cancellation |
//! | `requests/answers` | one answer for each request |
//! | `requests/usage` | what requests use |

mod requests;
mod serve;

use std::future::Future;
use std::time::Duration;

use fabric_async::{Address, BindOptions, Endpoint, Error, Result, ToAddress};
use tower_service::Service;

use super::body::TRAILER_LEN;
use super::wire::MAX_PREFIX_LEN;
use super::{DEFAULT_MAX_BODY_LEN, Lender, Request, Response, Status};

/// A server of native calls at a name.
///
/// [`serve`](Self::serve) takes a service of tower and calls a clone of it for each request. The
/// handler is polled once in place; if it is not ready, it goes on as a task of its own. So a short
/// handler costs no task, and one that computes for long without awaiting delays other requests:
/// move such work to [`spawn_blocking`](tokio::task::spawn_blocking).
///
/// * A request gets at most one answer, and every accepted request gets one while its client is
///   connected.
/// * A handler that panics answers with [`Code::Internal`](super::Code::Internal); other requests
///   go on.
/// * A handler is dropped when its client cancels the call or leaves, when the time of the call is
///   over, and when the future of `serve` is dropped.
/// * Requests beyond a limit are answered with
///   [`Code::ResourceExhausted`](super::Code::ResourceExhausted), without starting a handler.
/// * A client that sends untagged messages, which are of no call, is disconnected when they fill
///   its share of the endpoint's budget.
/// * A client that does not take its answers is disconnected when more of them wait than three
///   times its limit of requests, or more than 8,192 refusals, or when the first ones have waited
///   for [`answer_timeout`](ServerBuilder::answer_timeout). Beyond 65,536 refusals of all clients,
///   the client with the most is disconnected. At most 32 answers of a client take the transmit
///   credits of the endpoint.
///
/// See [`Client`](super::Client) for an example.
#[derive(Debug)]
pub struct Server {
    ep: Endpoint,
    limits: Limits,
    span: tracing::Span,
}

/// The limits of a server.
#[derive(Clone, Copy, Debug)]
struct Limits {
    max_body_len: usize,
    per_client: usize,
    bytes_per_client: usize,
    total: usize,
    bytes: usize,
    answer_timeout: Duration,
    max_handler_time: Option<Duration>,
}

impl Server {
    /// Opens a server at this address, such as `shm://name` or `tcp://host:port`.
    ///
    /// # Errors
    /// Those of [`Endpoint::bind`].
    ///
    /// # Cancel safety
    /// Safe: nothing is held across an await.
    pub async fn bind(at: impl ToAddress) -> Result<Self> {
        Self::builder().bind(at).await
    }

    /// Returns options for a server.
    pub fn builder() -> ServerBuilder {
        ServerBuilder {
            options: Endpoint::options(),
            limits: Limits {
                max_body_len: DEFAULT_MAX_BODY_LEN,
                per_client: 256,
                bytes_per_client: 256 << 20,
                total: 4096,
                bytes: 1 << 30,
                answer_timeout: Duration::from_secs(30),
                max_handler_time: None,
            },
        }
    }

    /// Returns the address that clients connect to.
    #[must_use]
    pub fn name(&self) -> &Address {
        self.ep.name()
    }

    /// Returns an allocator of memory for lent responses.
    #[must_use]
    pub fn lender(&self) -> Lender {
        Lender(self.ep.domain().clone())
    }

    /// Serves until the future is dropped. Dropping it drops the handlers and closes the endpoint.
    ///
    /// # Errors
    /// [`Error::Closed`] when the endpoint was closed.
    pub async fn serve<S>(self, service: S) -> Result<()>
    where
        S: Service<Request, Response = Response> + Clone + Send + 'static,
        S::Error: Into<Status>,
        S::Future: Send,
    {
        self.serve_with_shutdown(service, std::future::pending())
            .await
    }

    /// Serves until `signal` resolves, then shuts down: later requests are answered with
    /// [`Code::Unavailable`](super::Code::Unavailable), safe to retry; those in flight go on until
    /// their handlers are ready and their clients have the answers, or have not taken them within
    /// [`answer_timeout`](ServerBuilder::answer_timeout); then the endpoint is closed. To bound the
    /// time of the handlers, drop the future.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use std::convert::Infallible;
    /// use fabric_rpc::native::{Request, Response, Server};
    /// let server = Server::bind("shm://").await?;
    /// let echo = tower::service_fn(|request: Request| async move {
    ///     Ok::<_, Infallible>(Response::new(request.body))
    /// });
    /// let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    /// let serving = tokio::spawn(server.serve_with_shutdown(echo, async { drop(stopped.await) }));
    /// drop(stop);
    /// serving.await.expect("no panic")?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`serve`](Self::serve).
    pub async fn serve_with_shutdown<S>(
        self,
        service: S,
        signal: impl Future<Output = ()>,
    ) -> Result<()>
    where
        S: Service<Request, Response = Response> + Clone + Send + 'static,
        S::Error: Into<Status>,
        S::Future: Send,
    {
        serve::run(self, service, signal).await
    }
}

/// Options of a [`Server`], from [`Server::builder`].
///
/// A request counts until its handler has ended, also while a layer of tower holds the handler
/// back. Answers that their clients have not taken count separately, up to twice the limit. So one
/// client can hold three times `max_in_flight_per_client` of `max_body_len` each, until
/// `answer_timeout` has passed, and all clients `max_bytes_in_flight` of requests, twice as much of
/// answers, and the results of handlers that end then: choose `max_in_flight` and `max_body_len` so
/// that their product fits into memory too.
#[derive(Clone, Debug)]
#[must_use]
pub struct ServerBuilder {
    options: BindOptions,
    limits: Limits,
}

impl ServerBuilder {
    /// Sets the number of requests in flight of all clients; 4096 by default.
    pub fn max_in_flight(mut self, requests: usize) -> Self {
        self.limits.total = requests;
        self
    }

    /// Sets the number of requests in flight of each client; 256 by default, as the credits of a
    /// client.
    pub fn max_in_flight_per_client(mut self, requests: usize) -> Self {
        self.limits.per_client = requests;
        self
    }

    /// Sets the bytes of requests of all clients whose handlers run; 1 GiB by default. As
    /// [`max_bytes_in_flight_per_client`](Self::max_bytes_in_flight_per_client) in other respects.
    pub fn max_bytes_in_flight(mut self, bytes: usize) -> Self {
        self.limits.bytes = bytes;
        self
    }

    /// Sets the bytes of requests of each client whose handlers run; 256 MiB by default. Lent
    /// bodies over `shm` do not count: they are in memory of the client. A single request may be
    /// longer. While twice as many bytes of answers wait for the client, its requests are refused
    /// too.
    pub fn max_bytes_in_flight_per_client(mut self, bytes: usize) -> Self {
        self.limits.bytes_per_client = bytes;
        self
    }

    /// Sets the length of the longest request and response, in bytes; 16 MiB by default. A longer
    /// one is answered with [`Code::TooLarge`](super::Code::TooLarge).
    pub fn max_body_len(mut self, bytes: usize) -> Self {
        self.limits.max_body_len = bytes;
        self
    }

    /// Sets how long a handler may take; `None`, the default, for as long as its call. Then the
    /// handler is dropped, and the answer is [`Code::DeadlineExceeded`](super::Code).
    pub fn max_handler_time(mut self, time: Option<Duration>) -> Self {
        self.limits.max_handler_time = time;
        self
    }

    /// Sets how long an answer waits for its client, which is disconnected then; 30 seconds by
    /// default. The time of an answer begins when those before it have been sent, but for 31, and
    /// the endpoint has a transmit credit for it.
    pub fn answer_timeout(mut self, timeout: Duration) -> Self {
        self.limits.answer_timeout = timeout;
        self
    }

    /// Sets the options of the domain and endpoint, such as the
    /// [wait policy](BindOptions::wait_policy). The server sets
    /// [`max_msg_size`](BindOptions::max_msg_size) itself.
    pub fn endpoint_options(mut self, options: BindOptions) -> Self {
        self.options = options;
        self
    }

    /// Opens the server, as [`Server::bind`].
    ///
    /// # Errors
    /// Those of [`Endpoint::bind`].
    ///
    /// # Cancel safety
    /// Safe: nothing is held across an await.
    pub async fn bind(self, at: impl ToAddress) -> Result<Server> {
        let limit = (self.limits.max_body_len)
            .saturating_add(4 + MAX_PREFIX_LEN)
            .saturating_add(TRAILER_LEN);
        let ep = self.options.max_msg_size(limit).bind(at).await?;
        let name = ep.name();
        let span = tracing::debug_span!(
            target: "fabric_rpc::native",
            parent: None,
            "server",
            name = %name
        );
        Ok(Server {
            ep,
            limits: self.limits,
            span,
        })
    }
}

/// Returns whether the receive loop cannot go on after this error.
fn ends_serving(error: &Error) -> bool {
    matches!(error, Error::Closed(_) | Error::Canceled)
}
