//! The receive loop of a server.

use std::collections::HashSet;
use std::future::{Future, IntoFuture, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fabric_async::{Done, Error, EventKind, Failed, FiAddr, LoanedBuf, Transfer};
use futures_core::Stream;
use tokio::time::Instant;
use tower_service::Service;
use tracing::Instrument;

use super::super::message::TimeLimit;
use super::super::untagged::UntaggedReceive;
use super::super::wire::{CallTag, IncomingMessage, MessageKind};
use super::super::{Code, Request, Response, Status};
use super::requests::RequestTable;
use super::{Limits, Server, ends_serving};

/// Messages that are received before events and the shutdown signal are polled again.
const MESSAGES_PER_TURN: usize = 64;

/// The least number of departed clients beyond which those without a handle are removed: no message
/// of theirs can come.
const MIN_DEPARTED: usize = 256;

/// What the receive loop does with requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Serving,
    /// The shutdown has begun: requests are refused.
    Draining,
}

/// What the receive loop waits for.
#[allow(clippy::large_enum_variant)] // moved once for each message
enum Next {
    Received(Result<Done<LoanedBuf>, Failed<LoanedBuf>>),
    Event(EventKind),
    /// An untagged message of this client.
    Untagged(FiAddr),
    Signal,
    Drained,
}

/// A handler after its first poll.
enum Polled<H> {
    /// Ready, and dropped.
    Ready(Result<Response, Status>),
    Pending(H),
}

/// Drops the handlers and closes the endpoint when the receive loop ends.
struct CloseOnDrop(Arc<RequestTable>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.cancel_clients(|_| true);
        // Fails only if the endpoint is closed.
        let _ = self.0.ep.clone().close();
    }
}

struct ServeLoop<S> {
    service: S,
    table: Arc<RequestTable>,
    limits: Limits,
    phase: Phase,
    /// Clients that have left, whose last messages may still come.
    departed: HashSet<FiAddr>,
    /// The number of departed clients beyond which those without a handle are removed.
    max_departed: usize,
    untagged: UntaggedReceive,
}

/// Serves until the signal has resolved and no request is in flight.
pub(super) async fn run<S>(
    server: Server,
    service: S,
    signal: impl Future<Output = ()>,
) -> fabric_async::Result<()>
where
    S: Service<Request, Response = Response> + Clone + Send + 'static,
    S::Error: Into<Status>,
    S::Future: Send,
{
    let Server { ep, limits, span } = server;
    let mut events = ep.take_events().ok_or(Error::Canceled)?;
    let table = RequestTable::new(ep.clone(), limits, span);
    let _close = CloseOnDrop(table.clone());
    let mut serving = ServeLoop {
        service,
        table: table.clone(),
        limits,
        phase: Phase::Serving,
        departed: HashSet::new(),
        max_departed: MIN_DEPARTED,
        untagged: UntaggedReceive::default(),
    };
    let mut signal = pin!(signal);
    let mut messages = 0_usize;
    loop {
        messages = messages.wrapping_add(1);
        let mut receive = ep.recv_loan().tag_ignoring(0, u64::MAX).into_future();
        // Under load, a message has always arrived.
        let mut control_first = messages.is_multiple_of(MESSAGES_PER_TURN);
        let received = loop {
            let phase = serving.phase;
            let mut poll_control = |cx: &mut Context<'_>| {
                // Before the events, which may come without end.
                if phase == Phase::Serving && signal.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Next::Signal);
                }
                if let Poll::Ready(Some(event)) = Pin::new(&mut events).poll_next(cx) {
                    return Poll::Ready(Next::Event(event.kind));
                }
                if let Poll::Ready(client) = serving.untagged.poll(cx) {
                    return Poll::Ready(Next::Untagged(client));
                }
                match phase {
                    Phase::Serving => Poll::Pending,
                    Phase::Draining => table.poll_drained(cx).map(|()| Next::Drained),
                }
            };
            let next = poll_fn(|cx| {
                if std::mem::take(&mut control_first)
                    && let Poll::Ready(next) = poll_control(cx)
                {
                    return Poll::Ready(next);
                }
                match Pin::new(&mut receive).poll(cx) {
                    Poll::Ready(received) => Poll::Ready(Next::Received(received)),
                    Poll::Pending => poll_control(cx),
                }
            });
            match next.await {
                Next::Received(received) => break received,
                Next::Event(event) => serving.on_event(event),
                Next::Untagged(client) => {
                    table.disconnect(client, "the client sends untagged messages");
                }
                Next::Signal => serving.phase = Phase::Draining,
                Next::Drained => {
                    drop(receive);
                    // Answers that a client does not take are lost.
                    let flushed = tokio::time::timeout(limits.answer_timeout, ep.flush());
                    return flushed.await.unwrap_or(Ok(()));
                }
            }
        };
        match received {
            Ok(done) => serving.on_message(done.transfer, Ok(done.into_buf())),
            Err(failed) if ends_serving(&failed.error) => return Err(failed.error),
            Err(failed) => serving.on_message(failed.transfer, Err(failed.error)),
        }
    }
}

impl<S> ServeLoop<S>
where
    S: Service<Request, Response = Response> + Clone + Send + 'static,
    S::Error: Into<Status>,
    S::Future: Send,
{
    fn on_event(&mut self, event: EventKind) {
        match event {
            EventKind::PeerDown {
                source: Some(client),
                ..
            } => {
                self.table.cancel_clients(|other| other == client);
                self.departed.insert(client);
                if self.departed.len() > self.max_departed {
                    let clients = self.table.ep.address_vector();
                    (self.departed).retain(|client| clients.lookup(*client).is_ok());
                    self.max_departed = MIN_DEPARTED.max(2 * self.departed.len());
                }
            }
            // Either the client sends requests faster than they are received, or other messages.
            EventKind::PeerOverBudget { .. } => self.untagged.begin(&self.table.ep, None),
            // Events were lost, perhaps those of clients that have left.
            EventKind::Overrun { .. } => {
                let clients = self.table.ep.address_vector();
                self.table
                    .cancel_clients(|client| clients.lookup(client).is_err());
            }
            _ => {}
        }
    }

    fn on_message(&self, transfer: Transfer, message: fabric_async::Result<LoanedBuf>) {
        // A client without a handle has left.
        let Some(client) = transfer.source else {
            return;
        };
        // The event of a client's end may be read before its last messages.
        if self.departed.contains(&client) {
            return;
        }
        let Some(tag) = transfer.tag.and_then(CallTag::from_bits) else {
            let span = &self.table.span;
            tracing::debug!(target: "fabric_rpc::native", parent: span, tag = transfer.tag,
                "a message that is no call");
            return;
        };
        match tag.kind {
            MessageKind::Request => {
                let data = transfer.data.unwrap_or(0);
                match self.accept(client, tag, data, message) {
                    Ok((request, bytes)) => self.start(client, tag.id, request, bytes),
                    Err(status) => self.table.refuse(client, tag.id, status),
                }
            }
            MessageKind::Cancel => self.table.cancel(client, tag.id),
            MessageKind::Response => {}
        }
    }

    /// Decodes a request, and checks the limits. Returns the request, and how many bytes of it are
    /// in memory of this process.
    fn accept(
        &self,
        client: FiAddr,
        tag: CallTag,
        data: u64,
        message: fabric_async::Result<LoanedBuf>,
    ) -> Result<(Request, usize), Status> {
        if self.phase == Phase::Draining {
            return Err(Status::not_started(
                Code::Unavailable,
                "the server shuts down",
            ));
        }
        let buf = message.map_err(|error| match error {
            Error::Truncated { len, lost } => Status::too_large("request", len + lost, len),
            error => Status::new(Code::Internal, format!("the request was lost: {error}")),
        })?;
        let bytes = if buf.is_in_place() { 0 } else { buf.len() };
        self.table.check_room(client, tag.id, bytes)?;
        let IncomingMessage { metadata, body, .. } = IncomingMessage::decode(tag.flags, buf)?;
        let (len, limit) = (body.len(), self.limits.max_body_len);
        if len > limit {
            return Err(Status::too_large("request", len, limit));
        }
        let left = match data as u32 {
            0 => self.limits.max_handler_time,
            millis => {
                let left = Duration::from_millis(millis.into());
                Some(
                    self.limits
                        .max_handler_time
                        .map_or(left, |max| max.min(left)),
                )
            }
        };
        let deadline = left.and_then(|left| Instant::now().checked_add(left));
        let request = Request {
            method: (data >> 32) as u32,
            metadata,
            body,
            time: deadline.map_or(TimeLimit::Default, TimeLimit::Deadline),
            source: Some(client),
        };
        Ok((request, bytes))
    }

    /// Polls the handler of a request, and makes it a task if it is not ready.
    fn start(&self, client: FiAddr, id: u64, request: Request, bytes: usize) {
        let span = method_span!(&self.table.span, "request", request.method);
        let deadline = request.deadline();
        // A service or handler that has panicked is not used again.
        let polled = catch_unwind(AssertUnwindSafe(|| {
            let _entered = span.enter();
            let mut service = self.service.clone();
            let mut handler = Box::pin(async move {
                poll_fn(|cx| service.poll_ready(cx)).await?;
                service.call(request).await
            });
            match handler
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
            {
                Poll::Ready(result) => Polled::Ready(result.map_err(handler_status)),
                Poll::Pending => Polled::Pending(handler),
            }
        }));
        match polled {
            Ok(Polled::Ready(result)) => self.table.answer(client, id, result),
            Err(payload) => {
                // The drop of the payload may panic too.
                let _ = catch_unwind(AssertUnwindSafe(|| drop(payload)));
                let status = Status::new(Code::Internal, "the handler panicked");
                self.table.answer(client, id, Err(status));
            }
            Ok(Polled::Pending(handler)) => {
                let guard = self.table.insert_running(client, id, bytes);
                let task = async move {
                    let result = match deadline {
                        None => handler.await.map_err(handler_status),
                        Some(deadline) => match tokio::time::timeout_at(deadline, handler).await {
                            Ok(result) => result.map_err(handler_status),
                            Err(_) => Err(Status::deadline()),
                        },
                    };
                    guard.answer(result);
                };
                let task = tokio::spawn(task.instrument(span));
                self.table.set_task(client, id, task.abort_handle());
            }
        }
    }
}

/// Returns the status of a handler that has failed.
fn handler_status(error: impl Into<Status>) -> Status {
    error.into().of_handler()
}
