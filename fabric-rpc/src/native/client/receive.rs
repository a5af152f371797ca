//! Receiving answers, and noticing that the server has left.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use fabric_async::{Address, Endpoint, Error, EventKind, EventQueue, FiAddr, LoanedBuf};
use tokio::task::unconstrained;

use super::super::wire::{CallTag, MessageKind};
use super::super::{Code, Status};
use super::slots::{ReaderTurn, SlotTable};

/// An answer as it was received.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) flags: u8,
    /// The completion data: 0, or the code of a status.
    pub(super) data: u64,
    pub(super) buf: LoanedBuf,
}

/// Receives the messages of the server, and delivers the answers to the slots of their calls. One
/// task at a time has it.
pub(super) struct AnswerReceiver {
    ep: Endpoint,
    server: FiAddr,
    server_name: Address,
    slots: Arc<SlotTable>,
    /// Resolves when the session has ended. Each poll delivers at most one message, so that the
    /// call that gets it goes on before the next one is waited for.
    messages: Pin<Box<dyn Future<Output = Error> + Send>>,
    /// The number of slots without an answer after the last message, plus one; 0 without a message.
    delivered: Arc<AtomicUsize>,
    events: EventQueue,
    /// Whether the events were read since the receive was posted. Reading them makes a system call.
    has_read_events: bool,
}

/// What a poll of the receiver has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// No message; the waker of the task is registered.
    Nothing,
    Message {
        /// The number of slots that wait for answers.
        unanswered: usize,
    },
}

impl AnswerReceiver {
    pub(super) fn new(
        ep: Endpoint,
        (server, server_name): (FiAddr, Address),
        events: EventQueue,
        slots: Arc<SlotTable>,
    ) -> Self {
        let delivered = Arc::<AtomicUsize>::default();
        let messages = receive_messages(ep.clone(), server, slots.clone(), delivered.clone());
        Self {
            ep,
            server,
            server_name,
            slots,
            messages: Box::pin(messages),
            delivered,
            events,
            has_read_events: false,
        }
    }

    /// Receives a message that has come, and delivers its answer. Without one, reads the events;
    /// an event may end the session.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Received {
        let received = self.poll_message(cx);
        if received == Received::Nothing {
            self.read_events(cx);
        }
        received
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Received {
        if self.slots.has_ended() {
            return Received::Nothing;
        }
        self.delivered.store(0, Ordering::Relaxed);
        // Without cooperative budget the receive would not be posted, and events that are read
        // before it is posted would be missed. The poll of the call has spent budget.
        let mut messages = unconstrained(self.messages.as_mut());
        if let Poll::Ready(error) = Pin::new(&mut messages).poll(cx) {
            self.end(&error);
            return Received::Nothing;
        }
        match self.delivered.load(Ordering::Relaxed) {
            0 => Received::Nothing,
            delivered => {
                self.has_read_events = false;
                let unanswered = delivered - 1;
                Received::Message { unanswered }
            }
        }
    }

    /// Reads the events of a session that was idle, before a call. The receive for the call is not
    /// posted yet, so a later poll reads the events again.
    pub(super) fn check_idle(&mut self, cx: &mut Context<'_>) {
        self.has_read_events = false;
        self.read_events(cx);
        self.has_read_events = false;
    }

    /// Ends the session if an event tells that the server has left. The receive of answers, which
    /// is directed at the server, fails if the server leaves while it is posted; the events tell
    /// when the server has left before.
    fn read_events(&mut self, cx: &mut Context<'_>) {
        if std::mem::replace(&mut self.has_read_events, true) {
            return;
        }
        while let Some(event) = self.events.try_read() {
            self.on_event(event.kind, cx);
        }
    }

    /// Returns whether an event is about the server. The event of a server that has left has no
    /// `source` if its handle already belongs to a new server of the same name; then the names are
    /// compared.
    fn is_server(&self, peer: &Address, source: Option<FiAddr>) -> bool {
        source.map_or(*peer == self.server_name, |source| source == self.server)
    }

    fn on_event(&mut self, event: EventKind, cx: &mut Context<'_>) {
        match event {
            EventKind::PeerDown { peer, source, .. } if self.is_server(&peer, source) => {
                // The last answers may still be in the ring.
                while self.poll_message(cx) != Received::Nothing {}
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

    fn end(&self, reason: &Error) {
        self.slots.end(&server_left(reason));
    }
}

/// Only a panic or the end of the session drops the receiver. Without it no answer is received.
impl Drop for AnswerReceiver {
    fn drop(&mut self) {
        let message = "the task that received answers has panicked";
        self.slots.end(&Status::new(Code::Unavailable, message));
    }
}

/// Returns the status of the calls under way when the server has left.
pub(super) fn server_left(reason: &Error) -> Status {
    let message = format!("the server left during the call: {reason}");
    Status::new(Code::Unavailable, message)
}

/// Receives messages of the server and delivers them to the slots of their calls. Messages that
/// answer no call are discarded. Resolves when the session has ended.
async fn receive_messages(
    ep: Endpoint,
    server: FiAddr,
    slots: Arc<SlotTable>,
    delivered: Arc<AtomicUsize>,
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
        let unanswered = if let Some(tag) = tag.filter(|tag| tag.kind == MessageKind::Response) {
            let answer = answer.map(|buf| Answer {
                flags: tag.flags,
                data: transfer.data.unwrap_or(0),
                buf,
            });
            slots.deliver(tag.id, answer)
        } else {
            tracing::debug!(target: "fabric_rpc::native", tag = transfer.tag, "not an answer");
            slots.unanswered()
        };
        delivered.store(unanswered + 1, Ordering::Relaxed);
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

/// The task that receives answers while several calls wait. Ends the session when it is dropped, as
/// by the end of its runtime: calls on another runtime then get a session with a reader there.
pub(super) struct Reader {
    slots: Arc<SlotTable>,
    receiver: Option<Box<AnswerReceiver>>,
}

impl Reader {
    pub(super) fn new(slots: Arc<SlotTable>) -> Self {
        Self {
            slots,
            receiver: None,
        }
    }
}

impl Future for Reader {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut receiver = match this.receiver.take() {
            Some(receiver) => receiver,
            None => match this.slots.poll_reader(cx) {
                ReaderTurn::Receive(receiver) => receiver,
                ReaderTurn::Wait => return Poll::Pending,
                ReaderTurn::End => return Poll::Ready(()),
            },
        };
        let received = receiver.poll(cx);
        if this.slots.has_ended() {
            return Poll::Ready(());
        }
        let is_needed = matches!(received, Received::Message { unanswered } if unanswered > 0);
        this.receiver = if is_needed {
            Some(receiver)
        } else {
            this.slots.give_back_unless_needed(receiver)
        };
        if this.receiver.is_some() && received != Received::Nothing {
            // The next turn is after that of the call.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let message = "the runtime of the connection has ended during the call";
        self.slots.end(&Status::new(Code::Unavailable, message));
        // The reader may have given the receiver back after the session was dropped. The receiver
        // refers to the slots, which have it.
        drop(self.slots.take_receiver());
    }
}
