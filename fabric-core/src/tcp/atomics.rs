//! What a peer does to memory of this side: its atomic operations, as kin say them and as RXM does.

use std::sync::Arc;

use crate::FiAddr;
use crate::atomic::{AtomicCall, AtomicSpec, MAX_ATOMIC};
use crate::completion::{OpKind, Transfer};
use crate::mr::{Denied, Memory, execute};
use crate::provider::{Deed, Host, Remote};

use super::rxm::{Atomic, EAGER, MOST_OPERANDS, PLACES, Packet, Status, decode_places, operands};
use super::serving::{NOT_ITS, Replies};
use super::writes::{Headway, Stuck};
use super::{Broken, Denial, Frame, Rows};

/// Executes an atomic operation, all of whose bytes are there. What it fetches becomes an answer.
pub(super) fn frame(
    (frame, atomic): (&Frame, AtomicSpec),
    rows: &Rows,
    bytes: &[u8],
    source: Option<FiAddr>,
    replies: &mut Replies,
    host: &mut dyn Host,
) -> Result<Headway, Broken> {
    let Some(row) = rows.first().filter(|_| replies.is_kin) else {
        return Err(NOT_ITS);
    };
    let region = |key| host.region(key).filter(|_| replies.is_target);
    let answers = atomic.call != AtomicCall::Base;
    let kind = if answers {
        OpKind::FetchAtomic
    } else {
        OpKind::Atomic
    };
    let remote = Remote {
        atomic: Some(atomic),
        ..row.place()
    };
    if remote.len > MAX_ATOMIC {
        return Err(Broken("an atomic operation on more than there may be"));
    }
    let brings = if atomic.call == AtomicCall::Compare {
        2 * remote.len
    } else {
        remote.len
    };
    if brings != bytes.len() || !remote.len.is_multiple_of(atomic.datatype.size()) {
        return Err(Broken(
            "an atomic operation with other operands than it takes",
        ));
    }
    let owes = frame.owes();
    if answers == owes.is_some() {
        return Err(Broken(
            "an atomic operation that wants another answer than it gets",
        ));
    }
    let (region, at) = match Denied::check(region(remote.key), kind, &remote, remote.len) {
        Ok(found) => found,
        Err(why) => {
            let denial = Denial {
                asked: answers,
                row: 0,
                why,
            };
            if answers {
                replies.refuse(denial);
            }
            return Ok(Headway::Done(brings, owes.map(|owed| owed.refused(denial))));
        }
    };
    let (memory, heeds) = (region.memory.clone(), region.heeds);
    if !memory.begin() {
        return Ok(Headway::Stuck(0, None, Stuck::Memory(memory)));
    }
    let mut result = vec![0; if answers { remote.len } else { 0 }];
    execute(&*memory, at, &remote, bytes, &mut result);
    memory.end();
    if replies.heeds || heeds {
        host.done_to_us(
            replies.ep,
            remote.key,
            Deed::of(kind),
            Transfer::written(remote.len, None, source),
        );
    }
    if answers {
        replies.bytes(result);
    }
    Ok(Headway::Done(brings, owes))
}

/// A place of an operation, after it was checked.
struct Place {
    memory: Arc<dyn Memory>,
    at: usize,
    remote: Remote,
    heeds: bool,
}

/// What becomes of a packet that asks for an atomic operation, all of which is there: it is
/// executed, or refused, and the response waits for its turn; or it waits for memory, and nothing
/// has been done.
pub(super) fn packet(
    (packet, atomic): (&Packet, Atomic),
    body: &[u8],
    source: Option<FiAddr>,
    replies: &mut Replies,
    host: &mut dyn Host,
) -> Result<Option<Stuck>, Broken> {
    let Some((places, bytes)) = body
        .split_first_chunk::<PLACES>()
        .filter(|_| body.len() <= EAGER)
    else {
        return Err(Broken(
            "an atomic operation that is longer or shorter than one",
        ));
    };
    if packet.len != body.len() as u64 {
        return Err(Broken("an atomic operation that is not as long as it says"));
    }
    let rows = decode_places(places, atomic.rows)?;
    let to = (packet.message, atomic);
    let Some(spec) = atomic.spec() else {
        replies.respond(to, Status::UNKNOWN, Vec::new());
        return Ok(None);
    };
    let (remotes, total) = remotes(&rows, spec)?;
    if operands(spec, total) != Some(bytes.len()) {
        return Err(Broken(
            "an atomic operation with other operands than it takes",
        ));
    }
    let answers = spec.call != AtomicCall::Base;
    let kind = if answers {
        OpKind::FetchAtomic
    } else {
        OpKind::Atomic
    };
    let places = match find(&remotes, kind, replies, host) {
        Ok(places) => places,
        Err(why) => {
            replies.respond(to, Status::denied(why), Vec::new());
            return Ok(None);
        }
    };
    if let Some(memory) = begin(&places) {
        return Ok(Some(Stuck::Memory(memory)));
    }
    let mut fetched = vec![0; if answers { total } else { 0 }];
    execute_all(&places, bytes, &mut fetched);
    for Place {
        memory,
        remote,
        heeds,
        ..
    } in places
    {
        memory.end();
        if replies.heeds || heeds {
            let transfer = Transfer::written(remote.len, None, source);
            host.done_to_us(replies.ep, remote.key, Deed::of(kind), transfer);
        }
    }
    replies.respond(to, Status::DONE, fetched);
    Ok(None)
}

/// What each place is in bytes, and how many all of them are.
fn remotes(rows: &Rows, spec: AtomicSpec) -> Result<(Vec<Remote>, usize), Broken> {
    let mut total = 0usize;
    let mut remotes = Vec::with_capacity(rows.len());
    for row in rows.iter() {
        let len = usize::try_from(row.len)
            .ok()
            .and_then(|count| count.checked_mul(spec.datatype.size()));
        total = len
            .and_then(|len| total.checked_add(len))
            .filter(|total| *total <= MOST_OPERANDS)
            .ok_or(Broken("an atomic operation on more than there may be"))?;
        remotes.push(Remote {
            len: len.unwrap_or_default(),
            atomic: Some(spec),
            ..row.place()
        });
    }
    Ok((remotes, total))
}

/// Checks all places.
fn find(
    remotes: &[Remote],
    kind: OpKind,
    replies: &Replies,
    host: &dyn Host,
) -> Result<Vec<Place>, Denied> {
    let check = |remote: &Remote| {
        let region = host.region(remote.key).filter(|_| replies.is_target);
        let (region, at) = Denied::check(region, kind, remote, remote.len)?;
        Ok(Place {
            memory: region.memory.clone(),
            at,
            remote: *remote,
            heeds: region.heeds,
        })
    };
    remotes.iter().map(check).collect()
}

/// Begins an access to all of them, or to none: then the memory that its owner has in hand.
fn begin(places: &[Place]) -> Option<Arc<dyn Memory>> {
    let stuck = places.iter().position(|place| !place.memory.begin())?;
    places[..stuck].iter().for_each(|place| place.memory.end());
    Some(places[stuck].memory.clone())
}

/// Executes it in one place after the other. Of operands and comparands those for all places stand
/// together.
fn execute_all(places: &[Place], bytes: &[u8], fetched: &mut [u8]) {
    let total: usize = places.iter().map(|place| place.remote.len).sum();
    let mut from = 0;
    for Place {
        memory, at, remote, ..
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
        execute(
            &**memory,
            *at,
            remote,
            &own,
            fetched.get_mut(range.clone()).unwrap_or(none),
        );
        from = range.end;
    }
}
