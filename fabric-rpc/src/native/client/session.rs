//! A session: one endpoint that is connected to one incarnation of the server.
//!
//! A session ends with the connection, and its endpoint with it. The client then opens another one,
//! so nothing of the former server can be taken for something of the new one.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use fabric_async::stats::EndpointStats;
use fabric_async::{BindOptions, Endpoint, Error, FiAddr, Scheme};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::{AbortHandle, coop};

use super::super::body::TRAILER_LEN;
use super::super::wire::{
    IncomingMessage, MAX_PREFIX_LEN, MessageKind, OutgoingMessage, OutgoingPayload,
};
use super::super::{Response, Status};
use super::receive::{Answer, AnswerReceiver, Reader, Received, server_left};
use super::slots::{CallTurn, OpenedSlot, SlotTable};

/// A connection to the server, with the slots of its calls.
pub(super) struct Session {
    ep: Endpoint,
    server: FiAddr,
    slots: Arc<SlotTable>,
    reader: AbortHandle,
    max_body_len: usize,
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
        let names = (server, ep.address_vector().lookup(server)?);
        let slots = Arc::<SlotTable>::default();
        let receiver = AnswerReceiver::new(ep.clone(), names, events, slots.clone());
        slots.set_receiver(Box::new(receiver));
        let reader = tokio::spawn(Reader::new(slots.clone()));
        Ok(Arc::new(Self {
            ep,
            server,
            slots,
            reader: reader.abort_handle(),
            max_body_len,
        }))
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

    /// Takes a slot for a call, in a poll of its task. The same poll goes on with
    /// [`PendingCall::start`] and [`PendingCall::poll`].
    ///
    /// # Errors
    /// The credit, if the session has ended.
    pub(super) fn open_call(
        self: Arc<Self>,
        credit: OwnedSemaphorePermit,
        cx: &mut Context<'_>,
    ) -> Result<PendingCall, Option<OwnedSemaphorePermit>> {
        let slot = self.slots.open(credit, cx).map_err(Some)?;
        let OpenedSlot {
            id,
            is_waiting,
            idle,
        } = slot;
        // No task has read the events of an idle session.
        if let Some(mut receiver) = idle {
            receiver.check_idle(cx);
            self.slots.give_back_idle(receiver);
            if self.slots.has_ended() {
                return Err(self.slots.close_unsent(id));
            }
        }
        Ok(PendingCall {
            session: self,
            id,
            has_slot: true,
            is_waiting,
        })
    }

    /// Ends the session; calls under way fail.
    pub(super) fn end(&self, reason: &Error) {
        self.slots.end(&server_left(reason));
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.reader.abort();
        // The receiver refers to the slots, which have it.
        drop(self.slots.take_receiver());
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
        if std::mem::take(&mut self.is_waiting) {
            return Poll::Pending;
        }
        let budget = ready!(coop::poll_proceed(cx));
        let slots = &self.session.slots;
        let answer = match slots.poll_call(self.id, cx) {
            CallTurn::Answered(answer) => answer,
            CallTurn::Wait => return Poll::Pending,
            CallTurn::Receive(mut receiver) => {
                let received = receiver.poll(cx);
                match slots.give_back(self.id, receiver, cx) {
                    Some(answer) => answer,
                    None => {
                        if received != Received::Nothing {
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
