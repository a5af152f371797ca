//! Operations whose bytes were given to the `FrameWriter` or the socket, while the kernel does not
//! have all of the bytes.

use std::collections::VecDeque;

use fabric_core::Error;
use fabric_core::completion::Outcome;
use fabric_core::transport::{EndpointContext, EngineContext, OpKey};

/// The operations of a connection whose last byte the kernel does not have, in stream order.
#[derive(Debug, Default)]
pub(super) struct UnwrittenOps(VecDeque<UnwrittenOp>);

/// An operation whose last byte the kernel does not have.
#[derive(Debug)]
struct UnwrittenOp {
    /// The stream position behind the operation's last byte.
    end: u64,
    op: OpKey,
    /// Length and tag of a message that completes once the kernel has its last byte; `None` for
    /// operations that wait for the peer.
    message: Option<(usize, Option<u64>)>,
}

impl UnwrittenOps {
    /// Adds an operation whose last byte is before stream position `end`. `message` is the length
    /// and tag of a message that completes when the kernel has that byte; `None` for an operation
    /// that waits for the peer.
    pub(super) fn push(&mut self, end: u64, op: OpKey, message: Option<(usize, Option<u64>)>) {
        self.0.push_back(UnwrittenOp { end, op, message });
    }

    /// Completes the messages whose last byte the kernel has, which has `total_written` bytes of
    /// the stream.
    #[inline]
    pub(super) fn complete(
        &mut self,
        total_written: u64,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) {
        while let Some(first) = self.0.front()
            && first.end <= total_written
            && let Some(UnwrittenOp { op, message, .. }) = self.0.pop_front()
        {
            match message {
                Some((len, tag)) => ctx.complete_send(op, len, tag),
                None => ctx.on_payload_sent(op),
            }
        }
    }

    /// Removes all operations, and fails the messages. Operations that wait for the peer are failed
    /// with `PendingRequests`.
    pub(super) fn fail(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        error: &Error,
    ) {
        for UnwrittenOp { op, message, .. } in self.0.drain(..) {
            if message.is_some() {
                ctx.complete(op, Outcome::failed(error.clone()));
            }
        }
    }
}
