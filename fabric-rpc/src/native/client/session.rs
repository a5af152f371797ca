//! A session: one endpoint that is connected to one incarnation of the server.
//!
//! A session ends with the connection, and its endpoint with it. The client then opens another one,
//! so nothing of the former server can be taken for something of the new one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use fabric_async::stats::EndpointStats;
use fabric_async::{BindOptions, Endpoint, Error, FiAddr, Permit, resolve};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::{AbortHandle, coop};
use tokio::time::Instant;

use super::super::body::TRAILER_LEN;
use super::super::wire::{
    IncomingMessage, MAX_PREFIX_LEN, MessageKind, OutgoingMessage, request_data,
};
use super::super::{Code, Response, Status};
use super::calls::{CallTurn, Calls, OpenedCall};
use super::receive::{Answer, AnswerReceiver, Reader, Received};

/// A connection to the server, with its calls in flight.
pub(super) struct Session {
    ep: Endpoint,
    server: FiAddr,
    calls: Arc<Calls>,
    /// The ids of calls that were dropped while there was no transmit credit to tell the server.
    unsent_cancels: mpsc::UnboundedSender<u64>,
    tasks: [AbortHandle; 2],
    max_body_len: usize,
}

/// A request that is ready to be sent.
pub(super) struct EncodedRequest {
    pub(super) method: u32,
    pub(super) message: OutgoingMessage,
    pub(super) deadline: Option<Instant>,
    /// The credit of the call.
    pub(super) credit: OwnedSemaphorePermit,
}

/// A request that was not sent.
pub(super) enum UnsentRequest {
    /// It can be sent later: there is no transmit credit, or the session has ended.
    Later(EncodedRequest),
    Refused(Status),
}

impl Session {
    /// Opens an endpoint and connects it to the server. Drops `on_end` when the session has ended,
    /// or with the session.
    pub(super) async fn open(
        options: BindOptions,
        bind_to: Option<&str>,
        server: &str,
        max_body_len: usize,
        on_end: impl Send + 'static,
    ) -> Result<Arc<Self>, Error> {
        let limit = max_body_len
            .saturating_add(4 + MAX_PREFIX_LEN)
            .saturating_add(TRAILER_LEN);
        let bind_to = match bind_to {
            Some(address) => address.to_owned(),
            None => default_bind_address(server).await?,
        };
        let ep = options.max_msg_size(limit).bind(bind_to).await?;
        let events = ep.take_events().ok_or(Error::Canceled)?;
        let server = ep.add_peer(server).await?;
        let names = (server, ep.address_vector().lookup(server)?);
        let receiver = AnswerReceiver::new(ep.clone(), names, events);
        let calls = Arc::new(Calls::new(receiver));
        let reader = Reader::new(calls.clone());
        let reader = tokio::spawn(async move {
            reader.await;
            drop(on_end);
        });
        let (unsent_cancels, unsent) = mpsc::unbounded_channel();
        let canceling = tokio::spawn(send_cancels(ep.clone(), server, calls.clone(), unsent));
        Ok(Arc::new(Self {
            ep,
            server,
            calls,
            unsent_cancels,
            tasks: [reader.abort_handle(), canceling.abort_handle()],
            max_body_len,
        }))
    }

    pub(super) fn has_ended(&self) -> bool {
        self.calls.has_ended()
    }

    /// Returns whether the server has answered a call.
    pub(super) fn has_served(&self) -> bool {
        self.calls.has_served()
    }

    pub(super) fn stats(&self) -> EndpointStats {
        self.ep.stats()
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.ep
    }

    /// Waits for a transmit credit of the endpoint. `None` if the session has ended.
    ///
    /// # Errors
    /// The status of the call that waits.
    pub(super) async fn reserve(&self) -> Result<Option<Permit>, Status> {
        match self.ep.reserve(self.server).await {
            Ok(permit) => Ok(Some(permit)),
            Err(error) if error.is_peer_unavailable() => {
                self.end(&error);
                Ok(None)
            }
            Err(error) => Err(Status::from_refused_send("request", &error)),
        }
    }

    /// Starts a call, in a poll of its task: sends the request, with this transmit credit if one
    /// was reserved. The same poll goes on with [`PendingCall::poll`].
    pub(super) fn start_call(
        self: Arc<Self>,
        request: EncodedRequest,
        permit: Option<Permit>,
        cx: &mut Context<'_>,
    ) -> Result<PendingCall, UnsentRequest> {
        let EncodedRequest {
            method,
            message,
            deadline,
            credit,
        } = request;
        let later = |message, credit: Option<OwnedSemaphorePermit>| match credit {
            Some(credit) => UnsentRequest::Later(EncodedRequest {
                method,
                message,
                deadline,
                credit,
            }),
            None => {
                UnsentRequest::Refused(Status::new(Code::Internal, "the call has lost its credit"))
            }
        };
        let (id, is_waiting, left) = match self.calls.open(credit, cx) {
            Ok(OpenedCall {
                id,
                is_waiting,
                idle,
            }) => {
                // No task has read the events of an idle session.
                let left = idle.and_then(|mut receiver| {
                    let left = receiver.check_idle();
                    self.calls.put_idle(receiver);
                    left
                });
                (id, is_waiting, left)
            }
            Err(credit) => return Err(later(message, Some(credit))),
        };
        if let Some(reason) = left {
            let credit = self.calls.close_unsent(id);
            self.end(&reason);
            return Err(later(message, credit));
        }
        let (kind, data) = ((MessageKind::Request, id), request_data(method, deadline));
        let sent = message.start(&self.ep, (self.server, permit), kind, data);
        let Err((error, message)) = sent else {
            return Ok(PendingCall {
                session: self,
                id,
                has_slot: true,
                is_waiting,
            });
        };
        let credit = self.calls.close_unsent(id);
        if error.is_peer_unavailable() {
            self.end(&error);
        } else if !matches!(error, Error::WouldBlock(_)) {
            return Err(UnsentRequest::Refused(Status::from_refused_send(
                "request", &error,
            )));
        }
        Err(later(message, credit))
    }

    /// Ends the session; calls in flight fail.
    fn end(&self, reason: &Error) {
        self.calls.end(&server_left(reason));
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The tasks are dropped when their runtime runs. Fails only if the endpoint is closed.
        let _ = self.ep.clone().close();
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// Returns the status of the calls in flight when the server has left.
pub(super) fn server_left(reason: &Error) -> Status {
    let message = format!("the server left during the call: {reason}");
    Status::new(Code::Unavailable, message)
}

/// Tells the server of calls that were dropped while there was no transmit credit.
async fn send_cancels(
    ep: Endpoint,
    server: FiAddr,
    calls: Arc<Calls>,
    mut unsent: mpsc::UnboundedReceiver<u64>,
) {
    while let Some(id) = unsent.recv().await {
        if !calls.is_abandoned(id) {
            continue;
        }
        match ep.reserve(server).await {
            // The answer may have come meanwhile.
            Ok(permit) if calls.is_abandoned(id) => {
                let cancel = OutgoingMessage::empty();
                let to = (server, Some(permit));
                let _ = cancel.start(&ep, to, (MessageKind::Cancel, id), 0);
            }
            Ok(_) => {}
            Err(error) if error.is_peer_unavailable() || matches!(error, Error::Closed(_)) => {
                return;
            }
            Err(_) => {}
        }
    }
}

/// A call with a slot. When it is dropped, the server is told to drop the handler, and the answer
/// is discarded when it comes.
pub(super) struct PendingCall {
    session: Arc<Session>,
    id: u64,
    has_slot: bool,
    /// Whether the waker of the task that polls is registered since the slot was taken.
    is_waiting: bool,
}

impl PendingCall {
    /// Waits for the answer.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response, Status>> {
        if std::mem::take(&mut self.is_waiting) {
            return Poll::Pending;
        }
        let budget = ready!(coop::poll_proceed(cx));
        let calls = &self.session.calls;
        let answer = match calls.poll_call(self.id, cx) {
            CallTurn::Answered(answer) => answer,
            CallTurn::Wait => return Poll::Pending,
            CallTurn::Receive(mut receiver) => {
                let received = receiver.poll(cx);
                let is_registered = matches!(received, Received::Nothing);
                match calls.put_received(self.id, receiver, received, cx) {
                    Some(answer) => answer,
                    None => {
                        if !is_registered {
                            cx.waker().wake_by_ref();
                        }
                        return Poll::Pending;
                    }
                }
            }
        };
        self.has_slot = false;
        budget.made_progress();
        Poll::Ready(answer.and_then(|answer| self.decode(answer)))
    }

    fn decode(&self, answer: Answer) -> Result<Response, Status> {
        let Answer { flags, data, buf } = answer;
        let incoming = IncomingMessage::decode(flags, buf)?;
        if data != 0 {
            return Err(Status::from_wire(data, incoming.message, incoming.metadata));
        }
        let (len, limit) = (incoming.body.len(), self.session.max_body_len);
        if len > limit {
            return Err(Status::too_large("response", len, limit));
        }
        Ok(Response {
            metadata: incoming.metadata,
            body: incoming.body,
        })
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        let Session {
            calls, ep, server, ..
        } = &*self.session;
        if !self.has_slot || !calls.abandon(self.id) {
            return;
        }
        let cancel = OutgoingMessage::empty();
        let sent = cancel.start(ep, (*server, None), (MessageKind::Cancel, self.id), 0);
        if let Err((Error::WouldBlock(_), _)) = sent {
            // Fails only after the end of the runtime, and of the session.
            let _ = self.session.unsent_cancels.send(self.id);
        }
    }
}

/// Returns the address to bind for a client of this server: over `tcp` any port of the address that
/// the routing table gives to packets for the server.
async fn default_bind_address(server: &str) -> Result<String, Error> {
    let addresses = resolve(server).await?;
    let Some(server) = addresses.first() else {
        return Err(Error::Canceled);
    };
    let Some(socket_addr) = server.socket_addr() else {
        return Ok(format!("{}://", server.scheme().provider()));
    };
    let any: IpAddr = match socket_addr {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // The connect of a UDP socket sends nothing.
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(socket_addr)?;
        socket.local_addr()
    });
    let mut source = source.map_err(|error| Error::Unreachable {
        peer: server.clone(),
        why: error.to_string().into(),
    })?;
    source.set_port(0);
    Ok(format!("{}://{source}", server.scheme().provider()))
}
