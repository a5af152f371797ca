//! The receiving direction of a stream: receives that are posted ahead, and the message that is
//! being read.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use fabric_core::buf::PooledBuf;
use fabric_core::{Error, Result};

use super::io_error;
use super::send_queue::END_DATA;
use crate::endpoint::ConnectedEndpoint;
use crate::op::{Message, Operation};

/// The receives of one direction of a connection. Dropping the queue withdraws them.
pub(super) struct RecvQueue {
    ep: ConnectedEndpoint,
    /// In posting order, which is the order of their messages.
    posted: VecDeque<Operation<PooledBuf>>,
    /// The most receives that are posted.
    limit: usize,
    state: RecvState,
    /// Whether an empty message without completion data is a message, not the end.
    has_empty_messages: bool,
}

#[derive(Debug)]
enum RecvState {
    Open,
    /// The peer has ended the stream. Later messages of the peer are not received.
    Ended,
    Failed(Error),
}

impl RecvQueue {
    /// Creates the queue and posts its receives.
    pub(super) fn new(ep: ConnectedEndpoint, limit: usize, has_empty_messages: bool) -> Self {
        let limit = limit.min(ep.info().rx.size).max(1);
        let mut queue = Self {
            ep,
            posted: VecDeque::with_capacity(limit),
            limit,
            state: RecvState::Open,
            has_empty_messages,
        };
        // A failure is returned by the first poll.
        let _ = queue.post();
        queue
    }

    pub(super) fn endpoint(&self) -> &ConnectedEndpoint {
        &self.ep
    }

    /// Waits for the next message; `None` at the end of the stream, and from then on. An error is
    /// returned by every later call too.
    pub(super) fn poll_message(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Option<PooledBuf>>> {
        match &self.state {
            RecvState::Open => {}
            RecvState::Ended => return Poll::Ready(Ok(None)),
            RecvState::Failed(error) => return Poll::Ready(Err(io_error(error.clone()))),
        }
        let posted = self.post();
        let Some(oldest) = self.posted.front_mut() else {
            // Messages that have arrived are received before a post fails.
            let error = posted.err().unwrap_or(Error::Canceled);
            return Poll::Ready(Err(self.fail(error)));
        };
        let result = ready!(Pin::new(oldest).poll(cx));
        self.posted.pop_front();
        Poll::Ready(match result {
            Ok(message) if self.is_end(&message) => {
                self.posted.clear();
                self.state = RecvState::Ended;
                Ok(None)
            }
            Ok(message) => {
                // A failure is returned by the next poll.
                let _ = self.post();
                Ok(Some(message.into_buf()))
            }
            Err(failed) => Err(self.fail(self.name_length(failed.error))),
        })
    }

    fn is_end(&self, message: &Message) -> bool {
        let has_end_data = message.data() == Some(END_DATA);
        message.is_empty() && (has_end_data || !self.has_empty_messages)
    }

    /// Posts receives up to the limit.
    fn post(&mut self) -> Result<()> {
        while self.posted.len() < self.limit {
            self.posted.push_back(self.ep.recv().start()?);
        }
        Ok(())
    }

    /// Returns the error of a message that is longer than the limit of the endpoint, with its
    /// length; other errors as they are.
    fn name_length(&self, error: Error) -> Error {
        match error {
            Error::Truncated { len, lost } => Error::Protocol {
                peer: self.ep.peer().clone(),
                what: format!(
                    "message of {} bytes exceeds the limit of {} bytes",
                    len + lost,
                    self.ep.info().ep.max_msg_size
                ),
            },
            other => other,
        }
    }

    /// Records a failure, which every later call returns, and withdraws the receives.
    fn fail(&mut self, error: Error) -> io::Error {
        self.posted.clear();
        self.state = RecvState::Failed(error.clone());
        io_error(error)
    }
}
