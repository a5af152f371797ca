//! A session: one endpoint that is connected to one incarnation of the server.
//!
//! A session ends with the connection, and its endpoint with it. The client then opens another one,
//! so nothing of the former server can be taken for something of the new one.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fabric_async::stats::EndpointStats;
use fabric_async::{
    Address, BindOptions, Endpoint, Error, EventKind, EventQueue, FiAddr, LoanedBuf, Scheme,
};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::AbortHandle;

use super::super::body::TRAILER_LEN;
use super::super::wire::{
    CallTag, IncomingMessage, MAX_PREFIX_LEN, MessageKind, OutgoingMessage, OutgoingPayload,
};
use super::super::{Code, Response, Status};
use super::slots::{CallTurn, ReaderTurn, SlotTable};

/// A connection to the server, with the slots of its calls.
pub(super) struct Session {
    ep: Endpoint,
    server: FiAddr,
    server_name: Address,
    slots: Arc<SlotTable>,
    receive: Mutex<ReceiveState>,
    reader: OnceLock<AbortHandle>,
    max_body_len: usize,
}

/// What the task that receives answers polls.
struct ReceiveState {
    /// Delivers answers to the slots; resolves when the session has ended. Each poll delivers at
    /// most one message, so that the call that gets it goes on before the next one is waited for.
    answers: Pin<Box<dyn Future<Output = Error> + Send>>,
    /// Whether the last poll ended with a message.
    has_received: Arc<AtomicBool>,
    events: EventQueue,
    /// Whether the events were read since the receive was posted. Reading them makes a system call.
    has_read_events: bool,
    /// When a call last found the session idle.
    last_idle: Instant,
}

/// Ends the session when its reader task is dropped, as by the end of its runtime: calls on another
/// runtime then get a session with a reader there.
struct EndOnDrop(Arc<SlotTable>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        let message = "the runtime of the connection has ended during the call";
        self.0.end(&Status::new(Code::Unavailable, message));
    }
}

/// A session that was idle for less is not checked before a call.
const IDLE_CHECK: Duration = Duration::from_millis(1);

/// An answer as it was received.
#[derive(Debug)]
pub(super) struct Answer {
    flags: u8,
    /// The completion data: 0, or the code of a status.
    data: u64,
    buf: LoanedBuf,
}

impl Session {
    /// Opens an endpoint and connects it to the server.
    pub(super) async fn open(
        options: BindOptions,
        bind_to: &str,
        server: &str,
        max_body_len: usize,
    ) -> Result<Arc<Self>, Error> {
        let limit = max_body_len
            .saturating_add(4 + MAX_PREFIX_LEN)
            .saturating_add(TRAILER_LEN);
        let ep = options.max_msg_size(limit).bind(bind_to).await?;
        let events = ep.take_events().ok_or(Error::Canceled)?;
        let server = ep.add_peer(server).await?;
        let server_name = ep.address_vector().lookup(server)?;
        let slots = Arc::<SlotTable>::default();
        let has_received = Arc::<AtomicBool>::default();
        let answers = receive_answers(ep.clone(), server, slots.clone(), has_received.clone());
        let session = Arc::new(Self {
            ep,
            server,
            server_name,
            slots,
            receive: Mutex::new(ReceiveState {
                answers: Box::pin(answers),
                has_received,
                events,
                has_read_events: false,
                last_idle: Instant::now(),
            }),
            reader: OnceLock::new(),
            max_body_len,
        });
        let weak = Arc::downgrade(&session);
        let end_on_drop = EndOnDrop(session.slots.clone());
        let reader = tokio::spawn(poll_fn(move |cx| {
            let _ = &end_on_drop;
            let Some(session) = weak.upgrade() else {
                return Poll::Ready(());
            };
            session.poll_reader(cx)
        }));
        let _ = session.reader.set(reader.abort_handle());
        Ok(session)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.slots.has_ended()
    }

    /// Returns whether the server has answered a call.
    pub(super) fn has_served(&self) -> bool {
        self.slots.has_served()
    }

    pub(super) fn stats(&self) -> EndpointStats {
        self.ep.stats()
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.ep
    }

    /// Takes a slot for a call.
    ///
    /// # Errors
    /// The credit, if the session has ended.
    pub(super) fn open_call(
        self: &Arc<Self>,
        credit: OwnedSemaphorePermit,
        cx: &mut Context<'_>,
    ) -> Result<PendingCall, Option<OwnedSemaphorePermit>> {
        let (id, was_idle) = self.slots.open(credit).map_err(Some)?;
        // No task has read the events of an idle session.
        if was_idle && let Ok(mut receive) = self.receive.try_lock() {
            let now = Instant::now();
            let idle_since = std::mem::replace(&mut receive.last_idle, now);
            if now.duration_since(idle_since) >= IDLE_CHECK {
                receive.has_read_events = false;
                self.read_events(&mut receive, cx);
            }
            // The receive for this call is not posted yet.
            receive.has_read_events = false;
            if self.slots.has_ended() {
                return Err(self.slots.close_unsent(id));
            }
        }
        Ok(PendingCall {
            session: self.clone(),
            id,
            has_slot: true,
        })
    }

    /// Ends the session; calls under way fail.
    pub(super) fn end(&self, reason: &Error) {
        let message = format!("the server left during the call: {reason}");
        self.slots.end(&Status::new(Code::Unavailable, message));
    }

    /// Receives answers for as long as other tasks do not, and slots wait.
    fn poll_reader(&self, cx: &mut Context<'_>) -> Poll<()> {
        match self.slots.poll_reader(cx) {
            ReaderTurn::End => return Poll::Ready(()),
            ReaderTurn::Wait => return Poll::Pending,
            ReaderTurn::Receive => {}
        }
        let receive = self.receive.lock();
        let mut receive = receive.unwrap_or_else(PoisonError::into_inner);
        if self.poll_receive(&mut receive, cx) {
            // The next turn is after that of the call.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.read_events(&mut receive, cx);
        drop(receive);
        if self.slots.has_ended() {
            return Poll::Ready(());
        }
        Poll::Pending
    }

    /// Receives a message that has come, and delivers its answer. Returns whether there was one;
    /// otherwise the waker is registered.
    fn poll_receive(&self, receive: &mut ReceiveState, cx: &mut Context<'_>) -> bool {
        if self.slots.has_ended() {
            return false;
        }
        receive.has_received.store(false, Ordering::Relaxed);
        if let Poll::Ready(error) = receive.answers.as_mut().poll(cx) {
            self.end(&error);
            return false;
        }
        let has_received = receive.has_received.load(Ordering::Relaxed);
        if has_received {
            receive.has_read_events = false;
        }
        has_received
    }

    /// Ends the session if an event tells that the server has left. The receive of answers, which
    /// is directed at the server, fails if the server leaves while it is posted; the events tell
    /// when the server has left before.
    fn read_events(&self, receive: &mut ReceiveState, cx: &mut Context<'_>) {
        if std::mem::replace(&mut receive.has_read_events, true) {
            return;
        }
        while let Some(event) = receive.events.try_read() {
            self.on_event(receive, event.kind, cx);
        }
    }

    /// Returns whether an event is about the server. The event of a server that has left has no
    /// `source` if its handle already belongs to a new server of the same name; then the names are
    /// compared.
    fn is_server(&self, peer: &Address, source: Option<FiAddr>) -> bool {
        source.map_or(*peer == self.server_name, |source| source == self.server)
    }

    fn on_event(&self, receive: &mut ReceiveState, event: EventKind, cx: &mut Context<'_>) {
        match event {
            EventKind::PeerDown { peer, source, .. } if self.is_server(&peer, source) => {
                // The last answers may still be in the ring.
                while self.poll_receive(receive, cx) {}
                self.end(&Error::PeerGone(peer));
            }
            EventKind::PeerOverBudget { peer, source, .. } => {
                let _ = self.ep.disconnect(&peer);
                if self.is_server(&peer, source) {
                    let what = "the server sends messages that are no answers".into();
                    self.end(&Error::Protocol { peer, what });
                }
            }
            _ => {}
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(reader) = self.reader.get() {
            reader.abort();
        }
    }
}

/// Receives messages of the server and delivers them to the slots of their calls. Messages that
/// answer no call are discarded. Resolves when the session has ended.
async fn receive_answers(
    ep: Endpoint,
    server: FiAddr,
    slots: Arc<SlotTable>,
    has_received: Arc<AtomicBool>,
) -> Error {
    loop {
        let received = ep.recv_loan().tag_ignoring(0, u64::MAX).from(server).await;
        let (transfer, answer) = match received {
            Ok(done) => {
                let transfer = done.transfer;
                (transfer, Ok(done.into_buf()))
            }
            Err(failed) => match failed.error {
                Error::Truncated { len, lost } => {
                    let status = Status::too_large("response", len + lost, len);
                    (failed.transfer, Err(status))
                }
                Error::OutOfMemory { .. } => {
                    let status = Status::new(Code::Internal, failed.error.to_string());
                    (failed.transfer, Err(status))
                }
                error => return error,
            },
        };
        let tag = transfer.tag.and_then(CallTag::from_bits);
        has_received.store(true, Ordering::Relaxed);
        let Some(tag) = tag.filter(|tag| tag.kind == MessageKind::Response) else {
            tracing::debug!(target: "fabric_rpc::native", tag = transfer.tag, "not an answer");
            yield_once().await;
            continue;
        };
        let answer = answer.map(|buf| Answer {
            flags: tag.flags,
            data: transfer.data.unwrap_or(0),
            buf,
        });
        slots.deliver(tag.id, answer);
        yield_once().await;
    }
}

/// Is not ready once, without a wake-up: ends a poll.
async fn yield_once() {
    let mut yielded = false;
    poll_fn(|_| {
        if std::mem::replace(&mut yielded, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

/// A call with a slot. When it is dropped, the server is told to drop the handler, and the answer
/// is discarded when it comes.
pub(super) struct PendingCall {
    session: Arc<Session>,
    id: u64,
    has_slot: bool,
}

impl PendingCall {
    /// Starts the send of the request.
    ///
    /// # Errors
    /// The reason, the request, and the credit.
    pub(super) fn start(
        self,
        request: OutgoingMessage,
        data: u64,
    ) -> Result<Self, (Error, OutgoingMessage, Option<OwnedSemaphorePermit>)> {
        let kind = (MessageKind::Request, self.id);
        match request.start(&self.session.ep, self.session.server, kind, data) {
            Ok(()) => Ok(self),
            Err((error, request)) => {
                let credit = self.close_unsent(&error);
                Err((error, request, credit))
            }
        }
    }

    /// Frees the slot of a request that was not sent. Returns the credit.
    fn close_unsent(mut self, error: &Error) -> Option<OwnedSemaphorePermit> {
        self.has_slot = false;
        let credit = self.session.slots.close_unsent(self.id);
        if error.is_peer_unavailable() {
            self.session.end(error);
        }
        credit
    }

    /// Waits for a transmit credit of the endpoint.
    pub(super) async fn wait_for_transmit_credit(session: &Session) {
        // An error is reported by the next send.
        let _ = session.ep.reserve(session.server).await;
    }

    /// Waits for the answer.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response, Status>> {
        let Session { slots, receive, .. } = &*self.session;
        let answer = match slots.poll_call(self.id, cx) {
            CallTurn::Answered(answer) => answer,
            CallTurn::Wait => return Poll::Pending,
            CallTurn::Receive => {
                let mut receive = match receive.try_lock() {
                    Ok(receive) => receive,
                    Err(TryLockError::Poisoned(receive)) => receive.into_inner(),
                    // Another task receives. It has come before this one and will wait.
                    Err(TryLockError::WouldBlock) => {
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                };
                // Before this task had the lock, another task may have received the answer, and
                // another call may have become the receiver. While this task has the lock, only
                // the reader can become the receiver instead of this call.
                match slots.poll_call(self.id, cx) {
                    CallTurn::Answered(answer) => answer,
                    CallTurn::Wait => return Poll::Pending,
                    CallTurn::Receive => {
                        let has_received = self.session.poll_receive(&mut receive, cx);
                        if !has_received {
                            self.session.read_events(&mut receive, cx);
                        }
                        drop(receive);
                        match slots.take_after_receive(self.id) {
                            Some(answer) => answer,
                            None => {
                                if has_received {
                                    cx.waker().wake_by_ref();
                                }
                                return Poll::Pending;
                            }
                        }
                    }
                }
            }
        };
        self.has_slot = false;
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
            slots, ep, server, ..
        } = &*self.session;
        if !self.has_slot || !slots.abandon(self.id) {
            return;
        }
        let cancel = OutgoingMessage {
            flags: 0,
            payload: OutgoingPayload::Bytes(Bytes::new()),
        };
        // If it cannot be sent now, the server goes on, and its answer is discarded.
        let _ = cancel.start(ep, *server, (MessageKind::Cancel, self.id), 0);
    }
}

/// Returns the address to bind for a client of this server: any address of its scheme.
pub(super) fn default_bind_address(server: &str) -> String {
    use fabric_async::ToAddress;
    // Only host names do not parse, and only tcp has them.
    let scheme = server.to_address().map_or(Scheme::Tcp, |at| at.scheme());
    format!("{}://", scheme.provider())
}
