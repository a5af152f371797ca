//! The sending direction of a stream: sends in flight, their limit, and the end of the stream.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use fabric_core::Error;
use fabric_core::buf::{FlatBuf, PooledBuf};
use tokio::runtime::Handle;

use super::io_error;
use crate::endpoint::ConnectedEndpoint;
use crate::op::Operation;

/// Completion data of the message that ends a stream of frames. The message is empty.
pub(super) const END_DATA: u64 = 1;

/// The number of bytes from which messages that are held are posted.
const MAX_BYTES_HELD: usize = 16 << 10;

/// The sends of one direction of a connection. Dropping the queue ends the stream; sends that are
/// in flight go on in a task, which keeps the endpoint open.
pub(super) struct SendQueue<B: FlatBuf> {
    ep: ConnectedEndpoint,
    /// Messages that are posted together, by the next flush at the latest.
    held: VecDeque<B>,
    /// Sum of the lengths in `held`.
    bytes_held: usize,
    /// In posting order, each with the length of its message.
    in_flight: VecDeque<(Operation<B>, usize)>,
    /// Sum of the lengths in `in_flight`.
    bytes_in_flight: usize,
    /// The message that ends the stream, in flight.
    end: Option<Operation<PooledBuf>>,
    state: SendState,
    limits: SendLimits,
    /// The runtime of sends that outlive the queue.
    runtime: Option<Handle>,
}

/// The most sends and bytes in flight. Either limit may be exceeded by one message.
#[derive(Clone, Copy)]
pub(super) struct SendLimits {
    pub(super) sends: usize,
    pub(super) bytes: usize,
}

enum SendState {
    Open,
    /// The message that ends the stream was posted, or the stream was aborted.
    Ended,
    /// A send failed: accepted bytes may be lost.
    Failed(Error),
}

impl<B: FlatBuf> SendQueue<B> {
    pub(super) fn new(ep: ConnectedEndpoint, limits: SendLimits) -> Self {
        // A credit is left for the message that ends the stream.
        let sends = limits.sends.min(ep.info().tx.size.saturating_sub(1)).max(1);
        Self {
            ep,
            held: VecDeque::new(),
            bytes_held: 0,
            in_flight: VecDeque::new(),
            bytes_in_flight: 0,
            end: None,
            state: SendState::Open,
            limits: SendLimits { sends, ..limits },
            runtime: Handle::try_current().ok(),
        }
    }

    pub(super) fn endpoint(&self) -> &ConnectedEndpoint {
        &self.ep
    }

    /// Waits until a message can be posted or held. Fails after the end of the stream, and after a
    /// send has failed.
    pub(super) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check_open()?;
        while self.is_full() {
            self.post_held()?;
            ready!(self.poll_oldest(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Removes the sends that have completed. Fails if one has failed.
    pub(super) fn remove_completed(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while !self.in_flight.is_empty()
            && let Poll::Ready(result) = self.poll_oldest(cx)
        {
            result?;
        }
        Ok(())
    }

    /// Accepts a message, which is posted together with others, by the next flush at the latest; at
    /// once if that takes no lock of the domain.
    pub(super) fn hold(&mut self, buf: B) -> io::Result<()> {
        self.check_open()?;
        if self.ep.endpoint_and_peer().0.inner.has_fast_path() {
            return self.send(buf);
        }
        self.bytes_held += buf.bytes().len();
        self.held.push_back(buf);
        if self.bytes_held < MAX_BYTES_HELD {
            return Ok(());
        }
        self.post_held()
    }

    /// Posts the messages that are held.
    fn post_held(&mut self) -> io::Result<()> {
        self.bytes_held = 0;
        if self.held.len() > 1 {
            let (ep, peer) = self.ep.endpoint_and_peer();
            let (in_flight, bytes_in_flight) = (&mut self.in_flight, &mut self.bytes_in_flight);
            let sent = Operation::start_sends(&ep.inner, peer, &mut self.held, |op, len| {
                *bytes_in_flight += len;
                in_flight.push_back((op, len));
            });
            return sent.map_err(|error| self.fail(error));
        }
        self.held.pop_front().map_or(Ok(()), |buf| self.send(buf))
    }

    /// Posts a message.
    pub(super) fn send(&mut self, buf: B) -> io::Result<()> {
        self.check_open()?;
        let len = buf.bytes().len();
        match self.ep.send(buf).start() {
            Ok(op) => {
                self.in_flight.push_back((op, len));
                self.bytes_in_flight += len;
                Ok(())
            }
            Err(failed) => Err(self.fail(failed.error)),
        }
    }

    /// Sends a copy of these bytes as a message if no message is in flight and the transport takes
    /// it at once; returns whether it did.
    pub(super) fn try_send(&mut self, bytes: &[u8]) -> io::Result<bool> {
        self.check_open()?;
        if !self.in_flight.is_empty() {
            return Ok(false);
        }
        let (ep, peer) = self.ep.endpoint_and_peer();
        let sent = ep.inner.try_send_plain(peer, bytes);
        sent.map_err(|error| self.fail(error))
    }

    /// Waits until no message is in flight.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let SendState::Failed(error) = &self.state {
            return Poll::Ready(Err(io_error(error.clone())));
        }
        self.post_held()?;
        while !self.in_flight.is_empty() {
            ready!(self.poll_oldest(cx))?;
        }
        if let Some(end) = &mut self.end {
            // If the peer has left before the end, it has left no message unsent.
            let _ = ready!(Pin::new(end).poll(cx));
            self.end = None;
        }
        Poll::Ready(Ok(()))
    }

    /// Ends the stream, and waits until no message is in flight.
    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end();
        self.poll_flush(cx)
    }

    /// Ends the queue without the message that ends the stream, and gives up the sends in flight.
    pub(super) fn abort(&mut self) {
        self.state = SendState::Ended;
        self.held.clear();
        self.in_flight.clear();
        self.end = None;
    }

    /// Posts the message that ends the stream, once.
    fn end(&mut self) {
        if matches!(self.state, SendState::Open) && self.post_held().is_ok() {
            // The post fails if the peer has left: it needs no end.
            let end = self.ep.send(PooledBuf::empty()).data(END_DATA).start();
            self.end = end.ok();
            self.state = SendState::Ended;
        }
    }

    fn is_full(&self) -> bool {
        self.held.len() + self.in_flight.len() >= self.limits.sends
            || self.bytes_in_flight >= self.limits.bytes
    }

    fn check_open(&self) -> io::Result<()> {
        match &self.state {
            SendState::Open => Ok(()),
            SendState::Ended => Err(io_error(Error::ShutDown)),
            SendState::Failed(error) => Err(io_error(error.clone())),
        }
    }

    /// Waits for the oldest send in flight, and removes it.
    fn poll_oldest(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some((op, len)) = self.in_flight.front_mut() else {
            return Poll::Ready(Ok(()));
        };
        let result = ready!(Pin::new(op).poll(cx));
        self.bytes_in_flight -= *len;
        self.in_flight.pop_front();
        Poll::Ready(match result {
            Ok(_) => Ok(()),
            Err(failed) => Err(self.fail(failed.error)),
        })
    }

    /// Records a failure, which every later call returns.
    fn fail(&mut self, error: Error) -> io::Error {
        self.state = SendState::Failed(error.clone());
        io_error(error)
    }
}

impl<B: FlatBuf> Drop for SendQueue<B> {
    fn drop(&mut self) {
        self.end();
        if matches!(self.state, SendState::Failed(_)) {
            return;
        }
        // Most sends are complete when they are posted.
        let mut cx = Context::from_waker(Waker::noop());
        if self.poll_flush(&mut cx).is_ready() {
            return;
        }
        let runtime = Handle::try_current().ok().or_else(|| self.runtime.take());
        if let Some(runtime) = runtime {
            let (ep, in_flight) = (self.ep.clone(), std::mem::take(&mut self.in_flight));
            runtime.spawn(finish_sends(ep, in_flight, self.end.take()));
        }
    }
}

/// Waits for the sends of a queue that was dropped. The endpoint stays open until they complete.
async fn finish_sends<B: FlatBuf>(
    _ep: ConnectedEndpoint,
    in_flight: VecDeque<(Operation<B>, usize)>,
    end: Option<Operation<PooledBuf>>,
) {
    for (op, _) in in_flight {
        if op.await.is_err() {
            return;
        }
    }
    if let Some(end) = end {
        // If the peer has left, it needs no end.
        let _ = end.await;
    }
}
