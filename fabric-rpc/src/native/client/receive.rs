//! Receiving answers, and noticing that the server has left.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use fabric_async::{
    Address, Done, Endpoint, Error, EventKind, EventQueue, Failed, FiAddr, LoanedBuf,
};
use futures_core::Stream;
use tokio::task::unconstrained;
use tokio_util::sync::ReusableBoxFuture;

use super::super::untagged::UntaggedReceive;
use super::super::wire::{CallTag, MessageKind};
use super::super::{Code, Status};
use super::calls::{Calls, ReaderTurn};

/// An answer as it was received.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) flags: u8,
    /// The completion data: 0, or the code of a status.
    pub(super) data: u64,
    pub(super) buf: LoanedBuf,
}

/// What a poll of the receiver has received.
#[derive(Debug)]
pub(super) enum Received {
    /// No message; the waker of the task is registered.
    Nothing,
    /// The answer of the call with this id.
    Answer(u64, Result<Answer, Status>),
    /// A message that answers no call. It was discarded.
    Other,
    /// The session has ended, for this reason. The receiver must not be polled again.
    End(Error),
}

/// The result of a receive, and the endpoint for the next one.
type ReceiveResult = (Endpoint, Result<Done<LoanedBuf>, Failed<LoanedBuf>>);

/// Receives the messages of the server. One task at a time has it.
pub(super) struct AnswerReceiver {
    ep: Endpoint,
    server: FiAddr,
    server_name: Address,
    receive: ReusableBoxFuture<'static, ReceiveResult>,
    untagged: UntaggedReceive,
    events: EventQueue,
    /// Why the server has left. Its last answers may still be in the ring.
    left: Option<Error>,
}

impl AnswerReceiver {
    pub(super) fn new(
        ep: Endpoint,
        (server, server_name): (FiAddr, Address),
        events: EventQueue,
    ) -> Self {
        Self {
            receive: ReusableBoxFuture::new(receive_message(ep.clone(), server)),
            ep,
            server,
            server_name,
            untagged: UntaggedReceive::default(),
            events,
            left: None,
        }
    }

    /// Receives a message that has come. Without one, reads the events; an event may end the
    /// session.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Received {
        // Without cooperative budget the receive would not be posted, and events that are read
        // before it is posted would be missed. The poll of the call has spent budget.
        let polled = unconstrained(poll_fn(|cx| self.poll_within_budget(cx)));
        match pin!(polled).poll(cx) {
            Poll::Ready(received) => received,
            Poll::Pending => Received::Nothing,
        }
    }

    fn poll_within_budget(&mut self, cx: &mut Context<'_>) -> Poll<Received> {
        loop {
            if let Poll::Ready((ep, received)) = Pin::new(&mut self.receive).poll(cx) {
                self.receive.set(receive_message(ep, self.server));
                return Poll::Ready(on_message(received));
            }
            // The server has left, and there is no further answer.
            if let Some(reason) = self.left.take() {
                return Poll::Ready(Received::End(reason));
            }
            while let Poll::Ready(Some(event)) = Pin::new(&mut self.events).poll_next(cx) {
                self.on_event(event.kind);
            }
            if self.left.is_none() {
                return self.untagged.poll(cx).map(|_| {
                    Received::End(Error::Protocol {
                        peer: self.server_name.clone(),
                        what: "the server sends untagged messages".into(),
                    })
                });
            }
        }
    }

    /// Reads the events of a session that was idle, before a call. Returns why the server has left,
    /// if it has.
    pub(super) fn check_idle(&mut self) -> Option<Error> {
        while let Some(event) = self.events.try_read() {
            self.on_event(event.kind);
        }
        self.left.take()
    }

    /// Looks for an event that tells that the server has left. The receive of answers, which is
    /// directed at the server, fails if the server leaves while it is posted; the events tell when
    /// the server has left before.
    fn on_event(&mut self, event: EventKind) {
        match event {
            EventKind::PeerDown { peer, source, .. } if self.is_server(&peer, source) => {
                self.left = Some(Error::PeerGone(peer));
            }
            // Events were lost, perhaps that of the server.
            EventKind::Overrun { .. } => {
                self.left = Some(Error::PeerGone(self.server_name.clone()));
            }
            // Either the server answers faster than answers are received, or it sends other
            // messages. The messages of other peers are never received.
            EventKind::PeerOverBudget { peer, source, .. } => {
                if self.is_server(&peer, source) {
                    self.untagged.begin(&self.ep, Some(self.server));
                } else {
                    // Fails only if the endpoint is closed.
                    let _ = self.ep.disconnect(&peer);
                }
            }
            _ => {}
        }
    }

    /// Returns whether an event is about the server. The event of a server that has left has no
    /// `source` if its handle already belongs to a new server of the same name; then the names are
    /// compared.
    fn is_server(&self, peer: &Address, source: Option<FiAddr>) -> bool {
        source.map_or(*peer == self.server_name, |source| source == self.server)
    }
}

async fn receive_message(ep: Endpoint, server: FiAddr) -> ReceiveResult {
    let received = ep.recv_loan().tag_ignoring(0, u64::MAX).from(server).await;
    (ep, received)
}

fn on_message(received: Result<Done<LoanedBuf>, Failed<LoanedBuf>>) -> Received {
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
            error => return Received::End(error),
        },
    };
    let tag = transfer.tag.and_then(CallTag::from_bits);
    let Some(tag) = tag.filter(|tag| tag.kind == MessageKind::Response) else {
        tracing::debug!(target: "fabric_rpc::native", tag = transfer.tag, "not an answer");
        return Received::Other;
    };
    let answer = answer.map(|buf| Answer {
        flags: tag.flags,
        data: transfer.data.unwrap_or(0),
        buf,
    });
    Received::Answer(tag.id, answer)
}

/// The task that receives answers while several calls wait. Ends the session when it is dropped, as
/// by the end of its runtime: calls on another runtime then get a session with a reader there.
pub(super) struct Reader {
    calls: Arc<Calls>,
    receiver: Option<Box<AnswerReceiver>>,
}

impl Reader {
    pub(super) fn new(calls: Arc<Calls>) -> Self {
        Self {
            calls,
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
            None => match this.calls.poll_reader(cx) {
                ReaderTurn::Receive(receiver) => receiver,
                ReaderTurn::Wait => return Poll::Pending,
                ReaderTurn::End => return Poll::Ready(()),
            },
        };
        let received = receiver.poll(cx);
        let is_registered = matches!(received, Received::Nothing);
        match this.calls.put_received_by_reader(receiver, received) {
            ReaderTurn::Receive(receiver) => {
                this.receiver = Some(receiver);
                if !is_registered {
                    // The next turn is after that of the call.
                    cx.waker().wake_by_ref();
                }
                Poll::Pending
            }
            ReaderTurn::Wait => Poll::Pending,
            ReaderTurn::End => Poll::Ready(()),
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let message = "the runtime of the connection has ended during the call";
        self.calls.end(&Status::new(Code::Unavailable, message));
    }
}
