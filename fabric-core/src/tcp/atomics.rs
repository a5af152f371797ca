//! Atomic operations of the peer on memory of this side: native frames and RXM packets.

use std::sync::Arc;

use crate::FiAddr;
use crate::atomic::{AtomicCall, AtomicSpec, MAX_ATOMIC_BYTES};
use crate::completion::{OpKind, Transfer};
use crate::mr::{AccessError, PeerAccess, RegionMemory, execute_atomic_array};
use crate::transport::{EndpointContext, EngineContext, RemoteAccess, RmaIov};

use super::frame::ACCESS_VIOLATION;
use super::responder::ResponseQueue;
use super::rxm::{
    ATOMIC_IOV_LEN, AtomicHeader, AtomicStatus, EAGER_LIMIT, MAX_OPERAND_BYTES, RxmPacket,
    decode_rma_iovs, operand_bytes,
};
use super::writes::{BlockedOn, WriteProgress};
use super::{Frame, ProtocolViolation, RmaIovList, RmaNack};

/// Executes or rejects an atomic operation of the native protocol whose payload is complete. The
/// fetched values or the nack of a fetching operation are queued as a response. The ack or nack of
/// another operation is returned. If the region is locked by its owner, nothing is executed and
/// [`WriteProgress::Blocked`] is returned.
pub(super) fn execute_native(
    (frame, atomic): (&Frame, AtomicSpec),
    iovs: &RmaIovList,
    bytes: &[u8],
    source: Option<FiAddr>,
    responses: &mut ResponseQueue,
    ctx: &mut EndpointContext<'_, impl EngineContext>,
) -> Result<WriteProgress, ProtocolViolation> {
    let Some(iov) = iovs.first().filter(|_| responses.is_same_implementation) else {
        return Err(ACCESS_VIOLATION);
    };
    let fetches = atomic.call != AtomicCall::Base;
    let kind = if fetches {
        OpKind::FetchAtomic
    } else {
        OpKind::Atomic
    };
    let remote = RmaIov {
        atomic: Some(atomic),
        ..iov.to_rma_iov()
    };
    if remote.len > MAX_ATOMIC_BYTES {
        return Err(ProtocolViolation("atomic operation on too many bytes"));
    }
    let operands_len = if atomic.call == AtomicCall::Compare {
        2 * remote.len
    } else {
        remote.len
    };
    if operands_len != bytes.len() || !remote.len.is_multiple_of(atomic.datatype.size()) {
        return Err(ProtocolViolation(
            "atomic operation with operands of the wrong length",
        ));
    }
    // The response to a fetching operation is its values, to another operation an ack.
    let pending_ack = frame.ack_due();
    if fetches == pending_ack.is_some() {
        return Err(ProtocolViolation(
            "atomic operation with the wrong acknowledgement flag",
        ));
    }
    let region = ctx.region(remote.key).filter(|_| responses.is_target);
    let checked = AccessError::check(region.as_ref(), kind, &remote, remote.len);
    // A buffer that is found to be shorter when an access begins is closed.
    let begun = checked.and_then(
        |(region, offset)| match PeerAccess::begin(&*region.memory) {
            None if !region.memory.is_open() => Err(AccessError::UnknownKey),
            access => Ok((region, offset, access)),
        },
    );
    let (region, offset, access) = match begun {
        Ok(found) => found,
        Err(error) => {
            let nack = RmaNack {
                is_read: fetches,
                iov_index: 0,
                error,
            };
            if fetches {
                responses.push_nack(nack);
            }
            return Ok(WriteProgress::Done(
                operands_len,
                pending_ack.map(|ack| ack.nack(nack)),
            ));
        }
    };
    let rma_events = region.rma_events;
    let Some(access) = access else {
        let blocked_on = BlockedOn::RegionLocked(region.memory.clone());
        return Ok(WriteProgress::Blocked(0, None, blocked_on));
    };
    let mut result = vec![0; if fetches { remote.len } else { 0 }];
    execute_atomic_array(&*access, offset, &remote, bytes, &mut result);
    drop(access);
    if responses.rma_events || rma_events {
        ctx.on_remote_access(
            remote.key,
            RemoteAccess::from_kind(kind),
            Transfer::written(remote.len, None, source),
        );
    }
    if fetches {
        responses.push_fetched(result);
    }
    Ok(WriteProgress::Done(operands_len, pending_ack))
}

/// A remote range of an RXM atomic operation, after the access check.
struct AtomicSegment {
    memory: Arc<dyn RegionMemory>,
    offset: usize,
    remote: RmaIov,
    rma_events: bool,
}

/// Executes or rejects an RXM atomic operation whose packet is complete, and queues the response.
/// If a region is locked by its owner, nothing is executed and [`BlockedOn`] is returned.
pub(super) fn execute_rxm(
    (packet, atomic): (&RxmPacket, AtomicHeader),
    body: &[u8],
    source: Option<FiAddr>,
    responses: &mut ResponseQueue,
    ctx: &mut EndpointContext<'_, impl EngineContext>,
) -> Result<Option<BlockedOn>, ProtocolViolation> {
    let Some((header, bytes)) = body
        .split_first_chunk::<ATOMIC_IOV_LEN>()
        .filter(|_| body.len() <= EAGER_LIMIT)
    else {
        return Err(ProtocolViolation("atomic packet of the wrong length"));
    };
    if packet.len != body.len() as u64 {
        return Err(ProtocolViolation(
            "atomic packet whose length field is wrong",
        ));
    }
    let iovs = decode_rma_iovs(header, atomic.rma_iov_count)?;
    let request = (packet.message_id, atomic);
    let Some(spec) = atomic.spec() else {
        responses.push_atomic_response(request, AtomicStatus::NOT_SUPPORTED, Vec::new());
        return Ok(None);
    };
    let (remotes, total) = to_rma_iovs(&iovs, spec)?;
    if operand_bytes(spec, total) != Some(bytes.len()) {
        return Err(ProtocolViolation(
            "atomic operation with operands of the wrong length",
        ));
    }
    let fetches = spec.call != AtomicCall::Base;
    let kind = if fetches {
        OpKind::FetchAtomic
    } else {
        OpKind::Atomic
    };
    let segments = match check_segments(&remotes, kind, responses, ctx) {
        Ok(segments) => segments,
        Err(error) => {
            responses.push_atomic_response(
                request,
                AtomicStatus::from_access_error(error),
                Vec::new(),
            );
            return Ok(None);
        }
    };
    let mut accesses = Vec::with_capacity(segments.len());
    for segment in &segments {
        let Some(access) = PeerAccess::begin(&*segment.memory) else {
            if segment.memory.is_open() {
                return Ok(Some(BlockedOn::RegionLocked(segment.memory.clone())));
            }
            // The buffer was found to be shorter, which closes it.
            let unknown = AtomicStatus::from_access_error(AccessError::UnknownKey);
            responses.push_atomic_response(request, unknown, Vec::new());
            return Ok(None);
        };
        accesses.push(access);
    }
    let mut fetched = vec![0; if fetches { total } else { 0 }];
    execute_all(&segments, bytes, &mut fetched);
    drop(accesses);
    for AtomicSegment {
        remote,
        rma_events: region_rma_events,
        ..
    } in segments
    {
        if responses.rma_events || region_rma_events {
            let transfer = Transfer::written(remote.len, None, source);
            ctx.on_remote_access(remote.key, RemoteAccess::from_kind(kind), transfer);
        }
    }
    responses.push_atomic_response(request, AtomicStatus::SUCCESS, fetched);
    Ok(None)
}

/// Converts remote ranges, which RXM counts in elements, to bytes; returns them and their total
/// length.
fn to_rma_iovs(
    iovs: &RmaIovList,
    spec: AtomicSpec,
) -> Result<(Vec<RmaIov>, usize), ProtocolViolation> {
    let mut total = 0usize;
    let mut remotes = Vec::with_capacity(iovs.len());
    for iov in iovs.iter() {
        let len = usize::try_from(iov.len)
            .ok()
            .and_then(|count| count.checked_mul(spec.datatype.size()));
        total = len
            .and_then(|len| total.checked_add(len))
            .filter(|total| *total <= MAX_OPERAND_BYTES)
            .ok_or(ProtocolViolation("atomic operation on too many bytes"))?;
        remotes.push(RmaIov {
            len: len.unwrap_or_default(),
            atomic: Some(spec),
            ..iov.to_rma_iov()
        });
    }
    Ok((remotes, total))
}

/// Checks all remote ranges and returns their segments, or the first error.
fn check_segments(
    remotes: &[RmaIov],
    kind: OpKind,
    responses: &ResponseQueue,
    ctx: &EndpointContext<'_, impl EngineContext>,
) -> Result<Vec<AtomicSegment>, AccessError> {
    let check = |remote: &RmaIov| {
        let region = ctx.region(remote.key).filter(|_| responses.is_target);
        let (region, offset) = AccessError::check(region.as_ref(), kind, remote, remote.len)?;
        Ok(AtomicSegment {
            memory: region.memory.clone(),
            offset,
            remote: *remote,
            rma_events: region.rma_events,
        })
    };
    remotes.iter().map(check).collect()
}

/// Executes the operation on one segment after the other. `bytes` holds the operands of all
/// segments, then the comparands of all segments.
fn execute_all(segments: &[AtomicSegment], bytes: &[u8], fetched: &mut [u8]) {
    let total: usize = segments.iter().map(|segment| segment.remote.len).sum();
    let mut from = 0;
    for AtomicSegment {
        memory,
        offset,
        remote,
        ..
    } in segments
    {
        let range = from..from + remote.len;
        let part = |base: usize| {
            bytes
                .get(base + range.start..base + range.end)
                .unwrap_or_default()
        };
        let operands = [part(0), part(total)].concat();
        let empty = &mut [][..];
        execute_atomic_array(
            &**memory,
            *offset,
            remote,
            &operands,
            fetched.get_mut(range.clone()).unwrap_or(empty),
        );
        from = range.end;
    }
}
