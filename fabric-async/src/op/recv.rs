//! Receives of one message each.

use std::sync::Arc;
use std::task::{Context, Poll};

use fabric_core::buf::{IoBufMut, PooledBuf};
use fabric_core::completion::{Done, Failed};
use fabric_core::matching::RecvSpec;
use fabric_core::transport::OpKey;
use fabric_core::{Error, Result};
use fabric_reactor::{CompletionTarget, CreditMode, MAX_BATCH_BYTES, PostResult};

use super::batch::{self, BatchOp, ChunkResult, QueuedRequest};
use super::traits::{BufferOp, BytesOp, MatchingOp, Op, sealed};
use crate::endpoint_inner::EndpointInner;

/// A received message in a [pooled buffer](crate::guide::memory#pooled-buffers).
///
/// Dereferences to its bytes; [`source`](Message::source) returns the sender,
/// [`into_bytes`](Message::into_bytes) keeps the bytes without copying. The memory is
/// kept for other messages when the last owner drops it.
pub type Message = Done<PooledBuf>;

/// A receive ([`Endpoint::recv`](crate::Endpoint::recv) and others). Takes untagged messages from
/// any source by default.
#[derive(Debug)]
pub struct RecvOp {
    spec: RecvSpec,
}

impl RecvOp {
    #[inline]
    pub(crate) fn new() -> Self {
        Self { spec: ANY_UNTAGGED }
    }
}

/// Matches untagged messages from any source.
pub(super) const ANY_UNTAGGED: RecvSpec = RecvSpec {
    from: None,
    tag: None,
};

impl sealed::Sealed for RecvOp {}
impl Op for RecvOp {
    type Ep<'a> = &'a Arc<EndpointInner>;
}
impl MatchingOp for RecvOp {
    #[inline]
    fn recv_spec(&mut self) -> &mut RecvSpec {
        &mut self.spec
    }
}
impl BytesOp for RecvOp {}

impl<B: IoBufMut> BufferOp<B> for RecvOp {
    const IS_SOURCE: bool = false;

    #[inline]
    fn post(
        &mut self,
        ep: &EndpointInner,
        buf: B,
        target: CompletionTarget,
        credit: CreditMode,
    ) -> Result<PostResult<B>, Failed<B>> {
        if let Err(error) = self.check(ep, &buf) {
            return Err(Failed::new(error, buf));
        }
        let key = ep
            .domain
            .engine
            .recv(ep.id, self.spec, buf, target, credit)?;
        Ok(PostResult::Pending(key))
    }

    #[inline]
    fn post_and_poll(
        &mut self,
        ep: &EndpointInner,
        buf: B,
        cx: &mut Context<'_>,
        posted: &mut Option<OpKey>,
    ) -> Poll<Result<Done<B>, Failed<B>>> {
        if let Err(error) = self.check(ep, &buf) {
            return Poll::Ready(Err(Failed::new(error, buf)));
        }
        let engine = &ep.domain.engine;
        engine.recv_and_poll(ep.id, self.spec, buf, cx, posted)
    }
}

impl<B: IoBufMut> BatchOp<B> for RecvOp {
    #[inline]
    fn check(&self, ep: &EndpointInner, buf: &B) -> Result<()> {
        ep.check_recv_into(&self.spec, buf)
    }

    #[inline]
    fn copied_len(&self, _buf: &B) -> usize {
        // The lengths of waiting messages are not known before the post.
        0
    }

    fn post_chunk(ep: &EndpointInner, chunk: &mut [QueuedRequest<Self, B>]) -> ChunkResult {
        let Some(mut posts) = ep.domain.engine.batch(ep.id) else {
            return (0, Err(Error::ConcurrentUse));
        };
        let from_any = |op: &Self| op.spec.from.is_none().then_some(op.spec.tag);
        let posted = batch::post_receives_together(&mut posts, chunk, from_any, ep.selective_rx);
        let mut began = None;
        batch::post_until_error(
            posts,
            chunk,
            posted,
            |posts, op, buf, completion_options| {
                let began = began.get_or_insert_with(|| posts.received_bytes());
                if posts.received_bytes() - *began >= MAX_BATCH_BYTES as u64 {
                    // Waiting messages were copied into these receives: other users of the domain
                    // get the lock.
                    posts.yield_lock();
                    *began = posts.received_bytes();
                }
                posts.recv(op.spec, buf, completion_options.target(ep.selective_rx))
            },
        )
    }
}
