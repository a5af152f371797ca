//! The future of a call.

use std::future::{Future, poll_fn};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep};
use tracing::Span;

use super::super::wire::OutgoingMessage;
use super::super::{Code, Request, Response, Status};
use super::ClientShared;
use super::session::{EncodedRequest, PendingCall, UnsentRequest};

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
                CallState::Failed(Status::not_started(Code::ResourceExhausted, message))
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
        let mut request = EncodedRequest {
            method,
            message: OutgoingMessage::new("", &metadata, body)?,
            deadline: self.deadline,
            credit,
        };
        if let Some(session) = self.client.session() {
            match session.start_call(request, None, cx) {
                Ok(call) => return Ok(CallState::Sent(call)),
                Err(UnsentRequest::Later(unsent)) => request = unsent,
                Err(UnsentRequest::Refused(status)) => return Err(status),
            }
        }
        let starting = start_when_possible(self.client.clone(), request);
        Ok(CallState::Starting(Box::pin(starting)))
    }
}

/// Waits for a server, and for a transmit credit, and sends the request.
async fn start_when_possible(
    client: Arc<ClientShared>,
    mut request: EncodedRequest,
) -> Result<PendingCall, Status> {
    loop {
        let session = client.wait_for_session().await?;
        let Some(permit) = session.reserve().await? else {
            continue;
        };
        let mut ready = Some((session, request, permit));
        let started = poll_fn(|cx| {
            let (session, request, permit) = ready.take().expect("polled once");
            Poll::Ready(session.start_call(request, Some(permit), cx))
        });
        match started.await {
            Ok(call) => return Ok(call),
            Err(UnsentRequest::Later(unsent)) => request = unsent,
            Err(UnsentRequest::Refused(status)) => return Err(status),
        }
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
            let status = match this.state {
                CallState::Starting(_) => this.client.connection.deadline_before_start(),
                _ => Status::deadline(),
            };
            // Cancels the call.
            this.state = CallState::Resolved;
            return Poll::Ready(Err(status));
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
