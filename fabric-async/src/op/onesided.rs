//! Writes and reads of a peer's memory.

use std::sync::Arc;

use fabric_core::buf::{IoBuf, IoBufMut, Payload};
use fabric_core::completion::{CompletionLevel, Failed, OpKind, Transfer};
use fabric_core::transport::{RmaIov, TxOp};
use fabric_core::{Error, FiAddr, Result};
use fabric_reactor::{CompletionTarget, CreditMode, PostResult};

use super::batch::{self, BatchOp, ChunkResult, QueuedRequest};
use super::send::{check_injected_level, try_fast_path};
use super::traits::{
    BufferOp, BytesOp, DataOp, DeliveryOp, InjectOp, Op, TransmitOp, TxOptions, sealed,
};
use crate::endpoint_inner::EndpointInner;
use crate::remote_region::{RemoteAddr, RemoteSlice};

/// The target of a write: a position in a peer's memory ([`RemoteAddr`]), where all bytes of the
/// buffer go; a range ([`RemoteSlice`]) with the length of the buffer; or a list of ranges (array,
/// slice or vector) whose lengths add up to that of the buffer.
#[derive(Clone, Debug)]
pub struct WriteTo(RemoteRanges);

/// The source of a read: a range of a peer's memory ([`RemoteSlice`]), or a list of ranges (array,
/// slice or vector).
#[derive(Clone, Debug)]
pub struct ReadFrom(RemoteRanges);

/// The remote ranges of an operation. A single range needs no allocation.
#[derive(Clone, Debug)]
enum RemoteRanges {
    /// The range that starts here and has the length of the buffer.
    Addr(RemoteAddr),
    Slice(RemoteSlice),
    List(Box<[RmaIov]>),
}

impl RemoteRanges {
    fn list(slices: &[RemoteSlice]) -> Self {
        let to_iov = |slice: &RemoteSlice| rma_iov(slice.key, slice.offset, slice.len);
        Self::List(slices.iter().map(to_iov).collect())
    }

    /// Returns the range for the operation's `TxOp`: the position of the first range, with the
    /// total length of all ranges. `buf_len` is the length of the buffer.
    #[inline]
    fn first_with_total_len(&self, buf_len: usize) -> RmaIov {
        match self {
            Self::Addr(addr) => rma_iov(addr.key, addr.offset, buf_len),
            Self::Slice(slice) => rma_iov(slice.key, slice.offset, slice.len),
            Self::List(ranges) => {
                let sum = |sum: usize, range: &RmaIov| sum.saturating_add(range.len);
                let total = ranges.iter().fold(0, sum);
                ranges.first().map_or(rma_iov(0, 0, total), |first| {
                    rma_iov(first.key, first.offset, total)
                })
            }
        }
    }

    /// Returns the ranges, if there is more than one.
    #[inline]
    fn as_list(&self) -> Option<&[RmaIov]> {
        match self {
            Self::List(ranges) if ranges.len() > 1 => Some(ranges),
            _ => None,
        }
    }

    /// Checks the number of ranges against `rma_iov_limit`.
    #[inline]
    fn check_count(&self, ep: &EndpointInner) -> Result<()> {
        match self {
            Self::List(ranges) => check_count(ranges.len(), ep.info.tx.rma_iov_limit),
            _ => Ok(()),
        }
    }

    /// Checks that the keys are mapped in a domain that requires it (`FI_MR_RAW`).
    #[inline]
    fn check_keys(&self, ep: &EndpointInner) -> Result<()> {
        if !ep.needs_mapped_keys {
            return Ok(());
        }
        match self {
            Self::Addr(addr) => ep.check_mapped_key(addr.key),
            Self::Slice(slice) => ep.check_mapped_key(slice.key),
            Self::List(ranges) => {
                let mut ranges = ranges.iter();
                ranges.try_for_each(|range| ep.check_mapped_key(range.key))
            }
        }
    }
}

#[cold]
fn check_count(count: usize, limit: usize) -> Result<()> {
    if count == 0 {
        return Err(Error::Invalid {
            what: "list of remote ranges",
            why: "it is empty".into(),
        });
    }
    // A single range is allowed where the limit is 0.
    let limit = limit.max(1);
    if count > limit {
        return Err(Error::TooMany {
            what: "remote ranges of one operation (rma_iov_limit)",
            count,
            limit,
        });
    }
    Ok(())
}

fn rma_iov(key: u64, offset: u64, len: usize) -> RmaIov {
    RmaIov {
        key,
        offset,
        len,
        atomic: None,
    }
}

impl From<RemoteAddr> for WriteTo {
    #[inline]
    fn from(addr: RemoteAddr) -> Self {
        Self(RemoteRanges::Addr(addr))
    }
}

impl From<RemoteSlice> for WriteTo {
    #[inline]
    fn from(slice: RemoteSlice) -> Self {
        Self(RemoteRanges::Slice(slice))
    }
}

impl<L: AsRef<[RemoteSlice]>> From<L> for WriteTo {
    fn from(slices: L) -> Self {
        Self(RemoteRanges::list(slices.as_ref()))
    }
}

impl From<RemoteSlice> for ReadFrom {
    #[inline]
    fn from(slice: RemoteSlice) -> Self {
        Self(RemoteRanges::Slice(slice))
    }
}

impl<L: AsRef<[RemoteSlice]>> From<L> for ReadFrom {
    fn from(slices: L) -> Self {
        Self(RemoteRanges::list(slices.as_ref()))
    }
}

/// A write to a peer's memory ([`Endpoint::write`](crate::Endpoint::write)).
#[derive(Debug)]
pub struct WriteOp {
    peer: FiAddr,
    to: RemoteRanges,
    data: Option<u64>,
    options: TxOptions,
}

impl WriteOp {
    #[inline]
    pub(crate) fn new(peer: FiAddr, to: WriteTo) -> Self {
        Self {
            peer,
            to: to.0,
            data: None,
            options: TxOptions::default(),
        }
    }

    #[inline(always)] // on the small-message path
    fn to_tx(&self, len: usize) -> TxOp {
        TxOp {
            data: self.data,
            fence: self.options.fence,
            level: self.options.level.unwrap_or(CompletionLevel::Transmitted),
            ..TxOp::one_sided(OpKind::Write, self.peer, self.to.first_with_total_len(len))
        }
    }

    /// Returns the peer and the range of a write of `len` bytes to one range, without completion
    /// data and fence.
    #[inline(always)] // on the small-message path
    fn plain_write(&self, len: usize) -> Option<(FiAddr, RmaIov)> {
        let is_plain = self.to.as_list().is_none() && self.data.is_none() && !self.options.fence;
        is_plain.then(|| (self.peer, self.to.first_with_total_len(len)))
    }

    /// Checks the number of remote ranges, and that their total length is `len`, that of the
    /// buffer.
    #[inline]
    fn check_ranges(&self, ep: &EndpointInner, len: usize) -> Result<()> {
        self.to.check_count(ep)?;
        let ranges = self.to.first_with_total_len(len).len;
        if ranges != len {
            return Err(length_error(len, ranges));
        }
        Ok(())
    }
}

#[cold]
/// Returns the error of a write whose remote ranges have another total length than the buffer.
fn length_error(len: usize, ranges: usize) -> Error {
    Error::Invalid {
        what: "write",
        why: format!("the buffer has {len} bytes, the remote ranges have {ranges}"),
    }
}

impl sealed::Sealed for WriteOp {}
impl Op for WriteOp {
    type Ep<'a> = &'a Arc<EndpointInner>;

    #[inline]
    fn tx_options(&self) -> Option<&TxOptions> {
        Some(&self.options)
    }
}
impl DataOp for WriteOp {
    #[inline]
    fn set_data(&mut self, data: u64) {
        self.data = Some(data);
    }
}
impl TransmitOp for WriteOp {
    #[inline]
    fn options(&mut self) -> &mut TxOptions {
        &mut self.options
    }
}
impl DeliveryOp for WriteOp {}
impl BytesOp for WriteOp {}

impl InjectOp for WriteOp {
    #[inline(always)] // on the small-message path
    fn check_injected(&self, len: usize) -> Result<()> {
        check_injected_level(&self.options)?;
        match &self.to {
            RemoteRanges::Addr(_) => Ok(()),
            RemoteRanges::Slice(slice) if slice.len == len => Ok(()),
            RemoteRanges::Slice(slice) => Err(length_error(len, slice.len)),
            RemoteRanges::List(_) => Err(Error::Invalid {
                what: "inject",
                why: "a list of remote ranges cannot be injected".into(),
            }),
        }
    }

    #[inline(always)] // on the small-message path
    fn to_injected(&self, len: usize) -> TxOp {
        self.to_tx(len)
    }
}

impl<B: IoBuf> BufferOp<B> for WriteOp {
    const IS_SOURCE: bool = true;

    #[inline(always)] // on the small-message path
    fn try_fast_path(&self, ep: &EndpointInner, buf: &B) -> Option<Transfer> {
        let len = buf.payload().len();
        let is_range_of_len = match &self.to {
            RemoteRanges::Addr(_) => true,
            RemoteRanges::Slice(slice) => slice.len == len,
            RemoteRanges::List(_) => false,
        };
        if !is_range_of_len {
            return None;
        }
        if let (Some((peer, remote)), None, Payload::Contiguous(bytes)) =
            (self.plain_write(len), self.options.level, buf.payload())
        {
            let written = ep.try_write_plain(peer, &remote, bytes).unwrap_or(false);
            return written.then(|| Transfer::sent(len, None));
        }
        try_fast_path(ep, &self.to_tx(len), buf)
    }

    fn post(
        &mut self,
        ep: &EndpointInner,
        buf: B,
        target: CompletionTarget,
        credit: CreditMode,
    ) -> Result<PostResult<B>, Failed<B>> {
        let checked = self.check(ep, &buf);
        if let Err(error) = checked.and_then(|()| self.to.check_keys(ep)) {
            return Err(Failed::new(error, buf));
        }
        let tx_op = self.to_tx(buf.payload().len());
        let engine = &ep.domain.engine;
        match self.to.as_list() {
            None => engine.send(ep.id, tx_op, buf, target, credit),
            Some(ranges) => engine.write_rma_iov(ep.id, tx_op, ranges, buf, target, credit),
        }
    }
}

impl<B: IoBuf> BatchOp<B> for WriteOp {
    #[inline(always)] // on the small-message path
    fn check(&self, ep: &EndpointInner, buf: &B) -> Result<()> {
        let len = buf.payload().len();
        let (fence, has_data) = (self.options.fence, self.data.is_some());
        ep.check_tx_with(OpKind::Write, fence, has_data, false, buf)?;
        self.check_ranges(ep, len)
    }

    fn copied_len(&self, buf: &B) -> usize {
        buf.payload().len()
    }

    fn post_chunk(ep: &EndpointInner, chunk: &mut [QueuedRequest<Self, B>]) -> ChunkResult {
        let Some(mut posts) = ep.domain.engine.batch(ep.id) else {
            return (0, Err(Error::ConcurrentUse));
        };
        let mut posted = 0;
        let more = chunk.len() > 1 && ep.domain.engine.defers_in_batches();
        // With selective completion not every write is reported. Keys that need a mapping are
        // checked one by one.
        if more && !B::IS_LOAN && !ep.selective_tx && !ep.needs_mapped_keys {
            posted = batch::write_plain_together(&mut posts, chunk, WriteOp::plain_write);
        }
        batch::post_until_error(
            posts,
            chunk,
            posted,
            |posts, op, buf, completion_options| {
                if let Err(error) = op.to.check_keys(ep) {
                    return Err(Failed::new(error, buf));
                }
                let target = completion_options.target(ep.selective_tx);
                let tx_op = TxOp {
                    more,
                    ..op.to_tx(buf.payload().len())
                };
                match op.to.as_list() {
                    None => posts.send(&tx_op, buf, target),
                    Some(ranges) => posts.write_rma_iov(tx_op, ranges, buf, target),
                }
            },
        )
    }
}

/// A read of a peer's memory ([`Endpoint::read`](crate::Endpoint::read)).
#[derive(Debug)]
pub struct ReadOp {
    peer: FiAddr,
    from: RemoteRanges,
    options: TxOptions,
}

impl ReadOp {
    pub(crate) fn new(peer: FiAddr, from: ReadFrom) -> Self {
        Self {
            peer,
            from: from.0,
            options: TxOptions::default(),
        }
    }
}

impl sealed::Sealed for ReadOp {}
impl Op for ReadOp {
    type Ep<'a> = &'a Arc<EndpointInner>;

    #[inline]
    fn tx_options(&self) -> Option<&TxOptions> {
        Some(&self.options)
    }
}
impl TransmitOp for ReadOp {
    fn options(&mut self) -> &mut TxOptions {
        &mut self.options
    }
}
impl BytesOp for ReadOp {}

impl<B: IoBufMut> BufferOp<B> for ReadOp {
    const IS_SOURCE: bool = false;

    fn post(
        &mut self,
        ep: &EndpointInner,
        buf: B,
        target: CompletionTarget,
        credit: CreditMode,
    ) -> Result<PostResult<B>, Failed<B>> {
        let tx_op = TxOp {
            fence: self.options.fence,
            ..TxOp::one_sided(OpKind::Read, self.peer, self.from.first_with_total_len(0))
        };
        let checked = ep
            .check_tx_with(OpKind::Read, tx_op.fence, false, false, &buf)
            .and_then(|()| self.from.check_count(ep))
            .and_then(|()| self.from.check_keys(ep));
        if let Err(error) = checked {
            return Err(Failed::new(error, buf));
        }
        let (engine, rma_iovs) = (&ep.domain.engine, self.from.as_list());
        engine.read(ep.id, tx_op, rma_iovs, buf, target, credit)
    }
}
