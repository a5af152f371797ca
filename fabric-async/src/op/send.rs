//! Sends, and what sends and writes share: the fast path and the check of injected bytes.

use std::sync::Arc;

use fabric_core::buf::{IoBuf, Payload};
use fabric_core::completion::{CompletionLevel, Failed, OpKind, Transfer};
use fabric_core::transport::TxOp;
use fabric_core::{Error, FiAddr, Result};
use fabric_reactor::{CompletionTarget, CreditMode, PostResult};

use super::batch::{self, BatchOp, ChunkResult, QueuedRequest};
use super::traits::{
    BufferOp, BytesOp, DataOp, InjectOp, MessageOp, Op, TaggedOp, TransmitOp, TxOptions, sealed,
};
use crate::endpoint_inner::EndpointInner;

/// A send ([`Endpoint::send`](crate::Endpoint::send)).
#[derive(Debug)]
pub struct SendOp {
    peer: FiAddr,
    tag: Option<u64>,
    data: Option<u64>,
    options: TxOptions,
}

impl SendOp {
    #[inline]
    pub(crate) fn new(peer: FiAddr) -> Self {
        Self {
            peer,
            tag: None,
            data: None,
            options: TxOptions::default(),
        }
    }

    /// Returns the peer if this is a plain message ([`TxOp::is_plain`]) with this completion level.
    #[inline(always)] // on the small-message path
    fn plain_peer_at(&self, level: CompletionLevel) -> Option<FiAddr> {
        let Self {
            tag, data, options, ..
        } = self;
        let is_plain = tag.is_none() && data.is_none() && !options.fence && !level.needs_ack();
        is_plain.then_some(self.peer)
    }

    /// Returns the transmit operation for the engine. `loan` is the id of the buffer's memory if
    /// the buffer is a loan.
    #[inline(always)] // on the small-message path
    fn to_tx(&self, ep: &EndpointInner, loan: Option<u64>) -> TxOp {
        TxOp {
            tag: self.tag,
            data: self.data,
            loan,
            fence: self.options.fence,
            level: self.options.level.unwrap_or(ep.completion_level),
            ..TxOp::new(OpKind::Send, self.peer)
        }
    }
}

impl sealed::Sealed for SendOp {}
impl Op for SendOp {
    type Ep<'a> = &'a Arc<EndpointInner>;

    #[inline]
    fn tx_options(&self) -> Option<&TxOptions> {
        Some(&self.options)
    }
}
impl TaggedOp for SendOp {
    #[inline]
    fn set_tag(&mut self, tag: u64) {
        self.tag = Some(tag);
    }
}
impl DataOp for SendOp {
    #[inline]
    fn set_data(&mut self, data: u64) {
        self.data = Some(data);
    }
}
impl TransmitOp for SendOp {
    #[inline]
    fn options(&mut self) -> &mut TxOptions {
        &mut self.options
    }
}
impl MessageOp for SendOp {}
impl BytesOp for SendOp {}

impl InjectOp for SendOp {
    #[inline(always)] // on the small-message path
    fn check_injected(&self, _len: usize) -> Result<()> {
        check_injected_level(&self.options)
    }

    #[inline(always)] // on the small-message path
    fn plain_peer(&self) -> Option<FiAddr> {
        self.plain_peer_at(CompletionLevel::Transmitted)
    }

    #[inline(always)] // on the small-message path
    fn to_injected(&self, _len: usize) -> TxOp {
        TxOp {
            tag: self.tag,
            data: self.data,
            fence: self.options.fence,
            ..TxOp::new(OpKind::Send, self.peer)
        }
    }
}

/// Checks that no completion level above `Transmitted` was requested for injected bytes, which have
/// no completion.
#[inline]
pub(super) fn check_injected_level(options: &TxOptions) -> Result<()> {
    match options.level {
        None | Some(CompletionLevel::Transmitted) => Ok(()),
        Some(_) => Err(level_error()),
    }
}

#[cold]
fn level_error() -> Error {
    Error::Invalid {
        what: "inject",
        why: "injected bytes have no completion, and so no completion level".into(),
    }
}

impl<B: IoBuf> BufferOp<B> for SendOp {
    const IS_SOURCE: bool = true;
    const BUFFER_IS_LOAN: bool = B::IS_LOAN;

    #[inline(always)] // on the small-message path
    fn try_fast_path(&self, ep: &EndpointInner, buf: &B) -> Option<Transfer> {
        if B::IS_LOAN || !ep.has_fast_path() {
            return None;
        }
        let level = self.options.level.unwrap_or(ep.completion_level);
        if let (Some(peer), Payload::Contiguous(bytes)) = (self.plain_peer_at(level), buf.payload())
        {
            let sent = ep.try_send_plain(peer, bytes).unwrap_or(false);
            return sent.then(|| Transfer::sent(bytes.len(), None));
        }
        try_fast_path(ep, &self.to_tx(ep, None), buf)
    }

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
        let tx_op = self.to_tx(ep, buf.loan_key());
        ep.domain.engine.send(ep.id, tx_op, buf, target, credit)
    }
}

/// Tries to send or write without the domain's lock. `None` if the operation must be posted
/// instead.
#[inline(always)] // on the small-message path
pub(super) fn try_fast_path<B: IoBuf>(
    ep: &EndpointInner,
    tx_op: &TxOp,
    buf: &B,
) -> Option<Transfer> {
    // An operation that needs an acknowledgement of the peer never completes by the post.
    if tx_op.level.needs_ack() || ep.check_tx_op(tx_op).is_err() || ep.check_tx_iov(buf).is_err() {
        return None;
    }
    let payload = buf.payload();
    let len = payload.len();
    ep.try_fast_path(|fast_path| fast_path.try_send(tx_op, payload))
        .then(|| Transfer::sent(len, tx_op.tag))
}

impl<B: IoBuf> BatchOp<B> for SendOp {
    #[inline]
    fn check(&self, ep: &EndpointInner, buf: &B) -> Result<()> {
        let Self {
            tag, data, options, ..
        } = self;
        let (has_data, is_tagged) = (data.is_some(), tag.is_some());
        ep.check_tx_with(OpKind::Send, options.fence, has_data, is_tagged, buf)
    }

    #[inline]
    fn copied_len(&self, buf: &B) -> usize {
        buf.payload().len()
    }

    fn post_chunk(ep: &EndpointInner, chunk: &mut [QueuedRequest<Self, B>]) -> ChunkResult {
        let Some(mut posts) = ep.domain.engine.batch(ep.id) else {
            return (0, Err(Error::ConcurrentUse));
        };
        let mut posted = 0;
        let more = chunk.len() > 1 && ep.domain.engine.defers_in_batches();
        // With selective completion not every message is reported.
        if more && !B::IS_LOAN && !ep.selective_tx {
            posted = batch::send_plain_together(&mut posts, chunk, |op| {
                op.plain_peer_at(op.options.level.unwrap_or(ep.completion_level))
            });
        }
        batch::post_until_error(
            posts,
            chunk,
            posted,
            |posts, op, buf, completion_options| {
                let tx_op = TxOp {
                    more,
                    ..op.to_tx(ep, buf.loan_key())
                };
                posts.send(&tx_op, buf, completion_options.target(ep.selective_tx))
            },
        )
    }
}
