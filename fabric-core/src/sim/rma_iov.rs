//! Writes and reads of several places at once: all of them, or none.

use std::sync::Arc;

use crate::buf::Payload;
use crate::completion::OpKind;
use crate::error::{Error, Result};
use crate::mr::{Region, RegionMemory, check_access, required_access};
use crate::transport::{RemoteAccess, RmaIov, TxOp};

use super::net::{self, NodeId, RmaNotice, SimPacket};
use super::outbound::Outbound;

impl Outbound {
    /// Checks all places, and writes the payload to them or reads them into `result`; tells the
    /// peer of each that it is to hear of. False when there is no room for that, or the peer has a
    /// buffer `in_hand`.
    pub(super) fn access_all(
        &self,
        peer: NodeId,
        spec: &TxOp,
        places: &[RmaIov],
        payload: Payload<'_>,
        result: &mut Vec<u8>,
        in_hand: &mut Option<RmaIov>,
    ) -> Result<bool> {
        let mut found = Vec::with_capacity(places.len());
        for place in places {
            found.push(check_segment(peer, spec, place)?);
        }
        let mut notices = Vec::new();
        let mut told = 0;
        for (number, (place, (_, _, heeds))) in places.iter().zip(&found).enumerate() {
            let is_last = number + 1 == places.len();
            let data = spec.data.filter(|_| is_last);
            if *heeds || data.is_some() {
                let all: usize = places.iter().map(|place| place.len).sum();
                // What comes with data tells of all that was not told of before.
                let len = if data.is_some() {
                    all - told
                } else {
                    place.len
                };
                notices.push(RmaNotice {
                    key: place.key,
                    access: RemoteAccess::from_kind(spec.kind),
                    len,
                    data,
                });
                told += len;
            }
        }
        if !notices.is_empty()
            && net::available(self.node, peer, true).is_some_and(|room| room == 0)
        {
            return Ok(false);
        }
        let begun = match begin_access_all(found.iter().map(|(region, ..)| &region.memory)) {
            Ok(begun) => begun,
            Err(at) => {
                *in_hand = Some(places[at]);
                return Ok(false);
            }
        };
        let mut from = 0;
        for (place, (region, at, _)) in places.iter().zip(&found) {
            if spec.kind == OpKind::Write {
                let part = payload.slice(from, place.len);
                part.for_each(|position, piece| region.memory.write(at + position, piece));
            } else {
                result.resize(from + place.len, 0);
                region.memory.read(*at, &mut result[from..]);
            }
            from += place.len;
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

/// The region of a place, where that begins in it, and whether the peer is to hear of it.
fn check_segment(peer: NodeId, spec: &TxOp, place: &RmaIov) -> Result<(Region, usize, bool)> {
    let gone = || Error::Key {
        key: place.key,
        why: "is unknown",
    };
    let (region, heeds) = net::region(peer, place.key).ok_or_else(gone)?;
    let region = region.ok_or_else(gone)?;
    check_access(place.key, region.access, required_access(spec.kind, None))?;
    let at = region.checked_offset(place.offset, place.len, 1)?;
    let heeds = heeds || region.rma_events;
    Ok((region, at, heeds))
}

/// Begins an access to each of these, once; or to none, because of the one at this position.
fn begin_access_all<'a>(
    all: impl Iterator<Item = &'a Arc<dyn RegionMemory>>,
) -> std::result::Result<Vec<&'a Arc<dyn RegionMemory>>, usize> {
    let mut begun: Vec<&Arc<dyn RegionMemory>> = Vec::new();
    for (at, memory) in all.enumerate() {
        if begun.iter().any(|other| Arc::ptr_eq(other, memory)) {
            continue;
        }
        if !memory.begin_access() {
            begun.iter().for_each(|memory| memory.end_access());
            return Err(at);
        }
        begun.push(memory);
    }
    Ok(begun)
}
