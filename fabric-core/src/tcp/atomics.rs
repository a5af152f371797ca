//! What a peer does to memory of this side: its atomic operations, as kin say them and as RXM does.

use std::sync::Arc;

use crate::FiAddr;
use crate::atomic::{AtomicCall, AtomicSpec, MAX_ATOMIC_BYTES};
use crate::completion::{OpKind, Transfer};
use crate::mr::{AccessError, RegionMemory, execute_atomic_array};
use crate::transport::{EngineContext, RemoteAccess, RmaIov};

use super::responder::{ACCESS_VIOLATION, ResponseQueue};
use super::rxm::{
    ATOMIC_IOV_LEN, AtomicHeader, AtomicStatus, EAGER_LIMIT, MAX_OPERAND_BYTES, RxmPacket,
    decode_rma_iovs, operand_bytes,
};
use super::writes::{Stall, WriteProgress};
use super::{Frame, ProtocolViolation, RmaIovList, RmaNack};

/// Executes an atomic operation, all of whose bytes are there. What it fetches becomes an answer.
pub(super) fn execute_frame(
    (frame, atomic): (&Frame, AtomicSpec),
    rows: &RmaIovList,
    bytes: &[u8],
    source: Option<FiAddr>,
    replies: &mut ResponseQueue,
    host: &mut dyn EngineContext,
) -> Result<WriteProgress, ProtocolViolation> {
    let Some(row) = rows.first().filter(|_| replies.is_same_implementation) else {
        return Err(ACCESS_VIOLATION);
    };
    let region = |key| host.region(key).filter(|_| replies.is_target);
    let answers = atomic.call != AtomicCall::Base;
    let kind = if answers {
        OpKind::FetchAtomic
    } else {
        OpKind::Atomic
    };
    let remote = RmaIov {
        atomic: Some(atomic),
        ..row.to_rma_iov()
    };
    if remote.len > MAX_ATOMIC_BYTES {
        return Err(ProtocolViolation(
            "an atomic operation on more than there may be",
        ));
    }
    let brings = if atomic.call == AtomicCall::Compare {
        2 * remote.len
    } else {
        remote.len
    };
    if brings != bytes.len() || !remote.len.is_multiple_of(atomic.datatype.size()) {
        return Err(ProtocolViolation(
            "an atomic operation with other operands than it takes",
        ));
    }
    let owes = frame.ack_due();
    if answers == owes.is_some() {
        return Err(ProtocolViolation(
            "an atomic operation that wants another answer than it gets",
        ));
    }
    let (region, at) = match AccessError::check(region(remote.key), kind, &remote, remote.len) {
        Ok(found) => found,
        Err(why) => {
            let denial = RmaNack {
                is_read: answers,
                iov_index: 0,
                error: why,
            };
            if answers {
                replies.push_nack(denial);
            }
            return Ok(WriteProgress::Done(
                brings,
                owes.map(|owed| owed.nack(denial)),
            ));
        }
    };
    let (memory, heeds) = (region.memory.clone(), region.rma_events);
    if !memory.begin_access() {
        return Ok(WriteProgress::Stalled(0, None, Stall::RegionBusy(memory)));
    }
    let mut result = vec![0; if answers { remote.len } else { 0 }];
    execute_atomic_array(&*memory, at, &remote, bytes, &mut result);
    memory.end_access();
    if replies.rma_events || heeds {
        host.on_remote_access(
            replies.ep,
            remote.key,
            RemoteAccess::from_kind(kind),
            Transfer::written(remote.len, None, source),
        );
    }
    if answers {
        replies.push_fetched(result);
    }
    Ok(WriteProgress::Done(brings, owes))
}

/// A place of an operation, after it was checked.
struct AtomicSegment {
    memory: Arc<dyn RegionMemory>,
    offset: usize,
    remote: RmaIov,
    rma_events: bool,
}

/// What becomes of a packet that asks for an atomic operation, all of which is there: it is
/// executed, or refused, and the response waits for its turn; or it waits for memory, and nothing
/// has been done.
pub(super) fn execute_packet(
    (packet, atomic): (&RxmPacket, AtomicHeader),
    body: &[u8],
    source: Option<FiAddr>,
    replies: &mut ResponseQueue,
    host: &mut dyn EngineContext,
) -> Result<Option<Stall>, ProtocolViolation> {
    let Some((places, bytes)) = body
        .split_first_chunk::<ATOMIC_IOV_LEN>()
        .filter(|_| body.len() <= EAGER_LIMIT)
    else {
        return Err(ProtocolViolation(
            "an atomic operation that is longer or shorter than one",
        ));
    };
    if packet.len != body.len() as u64 {
        return Err(ProtocolViolation(
            "an atomic operation that is not as long as it says",
        ));
    }
    let rows = decode_rma_iovs(places, atomic.rma_iov_count)?;
    let to = (packet.message_id, atomic);
    let Some(spec) = atomic.spec() else {
        replies.push_atomic_response(to, AtomicStatus::NOT_SUPPORTED, Vec::new());
        return Ok(None);
    };
    let (remotes, total) = to_rma_iovs(&rows, spec)?;
    if operand_bytes(spec, total) != Some(bytes.len()) {
        return Err(ProtocolViolation(
            "an atomic operation with other operands than it takes",
        ));
    }
    let answers = spec.call != AtomicCall::Base;
    let kind = if answers {
        OpKind::FetchAtomic
    } else {
        OpKind::Atomic
    };
    let places = match check_segments(&remotes, kind, replies, host) {
        Ok(places) => places,
        Err(why) => {
            replies.push_atomic_response(to, AtomicStatus::from_access_error(why), Vec::new());
            return Ok(None);
        }
    };
    if let Some(memory) = begin_access_all(&places) {
        return Ok(Some(Stall::RegionBusy(memory)));
    }
    let mut fetched = vec![0; if answers { total } else { 0 }];
    execute_all(&places, bytes, &mut fetched);
    for AtomicSegment {
        memory,
        remote,
        rma_events: heeds,
        ..
    } in places
    {
        memory.end_access();
        if replies.rma_events || heeds {
            let transfer = Transfer::written(remote.len, None, source);
            host.on_remote_access(
                replies.ep,
                remote.key,
                RemoteAccess::from_kind(kind),
                transfer,
            );
        }
    }
    replies.push_atomic_response(to, AtomicStatus::SUCCESS, fetched);
    Ok(None)
}

/// What each place is in bytes, and how many all of them are.
fn to_rma_iovs(
    rows: &RmaIovList,
    spec: AtomicSpec,
) -> Result<(Vec<RmaIov>, usize), ProtocolViolation> {
    let mut total = 0usize;
    let mut remotes = Vec::with_capacity(rows.len());
    for row in rows.iter() {
        let len = usize::try_from(row.len)
            .ok()
            .and_then(|count| count.checked_mul(spec.datatype.size()));
        total = len
            .and_then(|len| total.checked_add(len))
            .filter(|total| *total <= MAX_OPERAND_BYTES)
            .ok_or(ProtocolViolation(
                "an atomic operation on more than there may be",
            ))?;
        remotes.push(RmaIov {
            len: len.unwrap_or_default(),
            atomic: Some(spec),
            ..row.to_rma_iov()
        });
    }
    Ok((remotes, total))
}

/// Checks all places.
fn check_segments(
    remotes: &[RmaIov],
    kind: OpKind,
    replies: &ResponseQueue,
    host: &dyn EngineContext,
) -> Result<Vec<AtomicSegment>, AccessError> {
    let check = |remote: &RmaIov| {
        let region = host.region(remote.key).filter(|_| replies.is_target);
        let (region, at) = AccessError::check(region, kind, remote, remote.len)?;
        Ok(AtomicSegment {
            memory: region.memory.clone(),
            offset: at,
            remote: *remote,
            rma_events: region.rma_events,
        })
    };
    remotes.iter().map(check).collect()
}

/// Begins an access to all of them, or to none: then the memory that its owner has in hand.
fn begin_access_all(places: &[AtomicSegment]) -> Option<Arc<dyn RegionMemory>> {
    let stuck = places
        .iter()
        .position(|place| !place.memory.begin_access())?;
    places[..stuck]
        .iter()
        .for_each(|place| place.memory.end_access());
    Some(places[stuck].memory.clone())
}

/// Executes it in one place after the other. Of operands and comparands those for all places stand
/// together.
fn execute_all(places: &[AtomicSegment], bytes: &[u8], fetched: &mut [u8]) {
    let total: usize = places.iter().map(|place| place.remote.len).sum();
    let mut from = 0;
    for AtomicSegment {
        memory,
        offset: at,
        remote,
        ..
    } in places
    {
        let range = from..from + remote.len;
        let part = |base: usize| {
            bytes
                .get(base + range.start..base + range.end)
                .unwrap_or_default()
        };
        let own = [part(0), part(total)].concat();
        let none = &mut [][..];
        execute_atomic_array(
            &**memory,
            *at,
            remote,
            &own,
            fetched.get_mut(range.clone()).unwrap_or(none),
        );
        from = range.end;
    }
}
