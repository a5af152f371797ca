//! The future of a call.

use std::future::{Future, poll_fn};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use fabric_async::Error;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep};
use tracing::Span;

use super::super::wire::{OutgoingMessage, request_data};
use super::super::{Code, Request, Response, Status};
use super::ClientShared;
use super::session::{PendingCall, Session};

/// The future of [`Client::call`](super::Client::call) as a service of tower.
///
/// # Cancel safety
/// Dropping the future cancels the call: the server is told, and drops the handler.
#[must_use = "a call does nothing unless polled"]
pub struct ResponseFuture {
    client: Arc<ClientShared>,
    state: CallState,
    deadline: Option<Instant>,
    /// Runs while the call waits.
    timer: Option<Pin<Box<Sleep>>>,
    span: Span,
}

enum CallState {
    Failed(Status),
    New(Request, OwnedSemaphorePermit),
    /// Waits for a server or for a transmit credit.
    Starting(Pin<Box<dyn Future<Output = Result<PendingCall, Status>> + Send>>),
    Sent(PendingCall),
    Resolved,
}

/// A request that is ready to be sent.
struct Encoded {
    method: u32,
    message: OutgoingMessage,
    credit: OwnedSemaphorePermit,
}

impl ResponseFuture {
    pub(super) fn new(
        client: Arc<ClientShared>,
        mut request: Request,
        credit: Option<OwnedSemaphorePermit>,
    ) -> Self {
        let deadline = request.begin(client.default_timeout);
        let span = method_span!(&client.span, "call", request.method);
        let state = match credit {
            Some(credit) => CallState::New(request, credit),
            None => {
                let message = "no credit: call without poll_ready, or the client is closed";
                CallState::Failed(Status::new(Code::ResourceExhausted, message))
            }
        };
        Self {
            client,
            state,
            deadline,
            timer: None,
            span,
        }
    }

    /// Sends the request if the server is connected and takes it at once.
    fn start(
        &mut self,
        request: Request,
        credit: OwnedSemaphorePermit,
        cx: &mut Context<'_>,
    ) -> Result<CallState, Status> {
        let Request {
            method,
            metadata,
            body,
            ..
        } = request;
        let (len, limit) = (body.len(), self.client.max_body_len);
        if len > limit {
            return Err(Status::too_large("request", len, limit));
        }
        let message = OutgoingMessage::new("", &metadata, body)?;
        let mut encoded = Encoded {
            method,
            message,
            credit,
        };
        if let Some(session) = self.client.session() {
            match encoded.send(session, self.deadline, cx)? {
                Ok(call) => return Ok(CallState::Sent(call)),
                Err(unsent) => encoded = unsent,
            }
        }
        let starting = start_when_possible(self.client.clone(), encoded, self.deadline);
        Ok(CallState::Starting(Box::pin(starting)))
    }
}

impl Encoded {
    /// Starts the send of the request. Returns the request if it was not sent and can be sent
    /// later.
    fn send(
        self,
        session: Arc<Session>,
        deadline: Option<Instant>,
        cx: &mut Context<'_>,
    ) -> Result<Result<PendingCall, Self>, Status> {
        let Self {
            method,
            message,
            credit,
        } = self;
        let unsent = |message, credit: Option<OwnedSemaphorePermit>| {
            let credit = credit.ok_or_else(|| Status::new(Code::Internal, "a lost credit"))?;
            Ok(Err(Self {
                method,
                message,
                credit,
            }))
        };
        let call = match session.open_call(credit, cx) {
            Ok(call) => call,
            Err(credit) => return unsent(message, credit),
        };
        match call.start(message, request_data(method, deadline)) {
            Ok(call) => Ok(Ok(call)),
            Err((error, message, credit))
                if error.is_peer_unavailable() || matches!(error, Error::WouldBlock(_)) =>
            {
                unsent(message, credit)
            }
            Err((error, ..)) => Err(Status::from_refused_send("request", &error)),
        }
    }
}

/// Waits for a server, and for a transmit credit, and sends the request.
async fn start_when_possible(
    client: Arc<ClientShared>,
    mut encoded: Encoded,
    deadline: Option<Instant>,
) -> Result<PendingCall, Status> {
    loop {
        let session = client.wait_for_session().await?;
        PendingCall::wait_for_transmit_credit(&session).await;
        let mut request = Some(encoded);
        let sent = poll_fn(|cx| {
            let request = request.take().expect("polled once");
            Poll::Ready(request.send(session.clone(), deadline, cx))
        });
        match sent.await? {
            Ok(call) => return Ok(call),
            Err(unsent) => encoded = unsent,
        }
        tokio::task::yield_now().await;
    }
}

impl Future for ResponseFuture {
    type Output = Result<Response, Status>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let span = this.span.clone();
        let _entered = span.enter();
        loop {
            let polled = match &mut this.state {
                CallState::Sent(call) => call.poll(cx),
                CallState::Starting(starting) => match starting.as_mut().poll(cx) {
                    Poll::Ready(Ok(call)) => {
                        this.state = CallState::Sent(call);
                        continue;
                    }
                    Poll::Ready(Err(status)) => Poll::Ready(Err(status)),
                    Poll::Pending => Poll::Pending,
                },
                CallState::New(..) | CallState::Failed(_) => {
                    match mem::replace(&mut this.state, CallState::Resolved) {
                        CallState::New(request, credit) => match this.start(request, credit, cx) {
                            Ok(state) => {
                                this.state = state;
                                continue;
                            }
                            Err(status) => Poll::Ready(Err(status)),
                        },
                        CallState::Failed(status) => Poll::Ready(Err(status)),
                        _ => unreachable!("matched above"),
                    }
                }
                CallState::Resolved => panic!("polled after it has resolved"),
            };
            if let Poll::Ready(result) = polled {
                this.state = CallState::Resolved;
                this.timer = None;
                return Poll::Ready(result);
            }
            let Some(deadline) = this.deadline else {
                return Poll::Pending;
            };
            let timer = this
                .timer
                .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
            ready!(timer.as_mut().poll(cx));
            // Cancels the call.
            this.state = CallState::Resolved;
            return Poll::Ready(Err(Status::deadline()));
        }
    }
}

impl std::fmt::Debug for ResponseFuture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.state {
            CallState::Failed(_) | CallState::New(..) => "ResponseFuture(not sent)",
            CallState::Starting(_) => "ResponseFuture(starting)",
            CallState::Sent(_) => "ResponseFuture(sent)",
            CallState::Resolved => "ResponseFuture(resolved)",
        })
    }
}
