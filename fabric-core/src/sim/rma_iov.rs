//! RMA operations with several remote ranges: all are accessed, or none.

use std::sync::Arc;

use crate::buf::Payload;
use crate::completion::OpKind;
use crate::error::{Error, Result};
use crate::mr::{Region, RegionMemory, check_access, required_access};
use crate::transport::{RemoteAccess, RmaIov, TxOp};

use super::net::{self, NodeId, RmaNotice, SimPacket};
use super::outbound::Outbound;

impl Outbound {
    /// Checks all remote ranges, writes the payload to them or reads them into `result`, and
    /// notifies the peer as required. Returns false, and accesses nothing, when there is no room
    /// for the notices, or when the owner of a region has locked it: `locked` is set to that range.
    pub(super) fn access_all(
        &self,
        peer: NodeId,
        tx_op: &TxOp,
        iovs: &[RmaIov],
        payload: Payload<'_>,
        result: &mut Vec<u8>,
        locked: &mut Option<RmaIov>,
    ) -> Result<bool> {
        let mut segments = Vec::with_capacity(iovs.len());
        for iov in iovs {
            segments.push(check_segment(peer, tx_op, iov)?);
        }
        let mut notices = Vec::new();
        let mut notified_len = 0;
        for (index, (iov, (_, _, notifies))) in iovs.iter().zip(&segments).enumerate() {
            let is_last = index + 1 == iovs.len();
            let data = tx_op.data.filter(|_| is_last);
            if *notifies || data.is_some() {
                let total: usize = iovs.iter().map(|iov| iov.len).sum();
                // The event with CQ data covers all bytes that were not reported before.
                let len = if data.is_some() {
                    total - notified_len
                } else {
                    iov.len
                };
                notices.push(RmaNotice {
                    key: iov.key,
                    access: RemoteAccess::from_kind(tx_op.kind),
                    len,
                    data,
                });
                notified_len += len;
            }
        }
        if !notices.is_empty()
            && net::available(self.node, peer, true).is_some_and(|room| room == 0)
        {
            return Ok(false);
        }
        let begun = match begin_access_all(segments.iter().map(|(region, ..)| &region.memory)) {
            Ok(begun) => begun,
            Err(at) => {
                *locked = Some(iovs[at]);
                return Ok(false);
            }
        };
        let mut from = 0;
        for (iov, (region, at, _)) in iovs.iter().zip(&segments) {
            if tx_op.kind == OpKind::Write {
                let part = payload.slice(from, iov.len);
                part.for_each(|position, bytes| region.memory.write(at + position, bytes));
            } else {
                result.resize(from + iov.len, 0);
                region.memory.read(*at, &mut result[from..]);
            }
            from += iov.len;
        }
        begun.iter().for_each(|memory| memory.end_access());
        let packet = |notice| SimPacket {
            header: None,
            rma_notice: Some(notice),
            bytes: Vec::new(),
        };
        if !notices.is_empty() {
            net::push_packets(
                self.node,
                peer,
                notices.into_iter().map(packet).collect(),
                false,
            );
        }
        Ok(true)
    }
}

/// Returns the region of a remote range, the offset in it, and whether the peer wants an event.
fn check_segment(peer: NodeId, tx_op: &TxOp, iov: &RmaIov) -> Result<(Region, usize, bool)> {
    let unknown_key = || Error::Key {
        key: iov.key,
        why: "is unknown",
    };
    let (region, rma_events) = net::region(peer, iov.key).ok_or_else(unknown_key)?;
    let region = region.ok_or_else(unknown_key)?;
    check_access(iov.key, region.access, required_access(tx_op.kind, None))?;
    let offset = region.checked_offset(iov.offset, iov.len, 1)?;
    let rma_events = rma_events || region.rma_events;
    Ok((region, offset, rma_events))
}

/// Begins one access to each of these regions. If a region is locked, begins none and returns the
/// index of that region.
fn begin_access_all<'a>(
    regions: impl Iterator<Item = &'a Arc<dyn RegionMemory>>,
) -> std::result::Result<Vec<&'a Arc<dyn RegionMemory>>, usize> {
    let mut begun: Vec<&Arc<dyn RegionMemory>> = Vec::new();
    for (index, memory) in regions.enumerate() {
        if begun.iter().any(|other| Arc::ptr_eq(other, memory)) {
            continue;
        }
        if !memory.begin_access() {
            begun.iter().for_each(|memory| memory.end_access());
            return Err(index);
        }
        begun.push(memory);
    }
    Ok(begun)
}
