//! The windows of a connection: the peer's regions that were mapped here, by key.
//!
//! A region is mapped when it is accessed for the first time: the peer is asked, on the socket, and
//! answers with the memory. After that its help is not needed. A key that was taken back is noticed
//! with the next access, and asked for anew, since it may stand for something else by now.

use fabric_core::atomic::{AtomicOp, Datatype};
use fabric_core::buf::{AnyBuf, CopySource, Payload};
use fabric_core::completion::OpKind;
use fabric_core::flags::Access;
use fabric_core::mr::{
    DirectRegion, RegionMemory, check_access, check_range, execute_atomic_array, required_access,
};
use fabric_core::transport::{RmaIov, TxOp};
use fabric_core::tree::Class;
use fabric_core::{Error, Result};

use super::shared_memory::SharedMapping;

use std::sync::{Arc, OnceLock};

/// A region of the peer's, as it is mapped here.
#[derive(Debug)]
pub(crate) struct MappedRegion {
    pub(crate) key: u64,
    pub(crate) mapping: Arc<SharedMapping>,
    pub(crate) access: Access,
    /// What the peer calls its first byte.
    pub(crate) base: u64,
    /// The peer's endpoint wants to hear of everything that is done there.
    pub(crate) rma_events: bool,
}

/// What became of the question for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyQuery {
    /// It was said, and is not answered yet.
    Sent,
    /// There is nothing to be reached, for this reason.
    Denied(&'static str),
}

/// All windows of a connection, by key.
#[derive(Debug, Default)]
pub(crate) struct MappedRegions {
    /// In the order of their keys.
    mapped: Vec<MappedRegion>,
    /// Keys of regions that the peer serves, and whether it wants to hear of what is done there.
    owner_served: Vec<(u64, bool)>,
    /// Which was used last.
    last_used: usize,
    /// Questions, by key: few at a time.
    queries: Vec<(u64, KeyQuery)>,
    /// Why the connection has ended, once it has.
    disconnected: Arc<OnceLock<Error>>,
}

/// A window in the hands of the user: it outlives the connection, and knows when that has ended.
#[derive(Debug)]
struct MappedRegionHandle {
    mapping: Arc<SharedMapping>,
    disconnected: Arc<OnceLock<Error>>,
}

impl MappedRegions {
    /// The window of this key, if it is mapped and its owner still lends it.
    #[inline]
    pub(crate) fn get(&mut self, key: u64) -> Option<&MappedRegion> {
        if self
            .mapped
            .get(self.last_used)
            .is_none_or(|window| window.key != key || !window.mapping.is_valid())
        {
            return self.find(key);
        }
        self.mapped.get(self.last_used)
    }

    #[cold]
    fn find(&mut self, key: u64) -> Option<&MappedRegion> {
        self.last_used = self
            .mapped
            .binary_search_by_key(&key, |window| window.key)
            .ok()?;
        if !self.mapped[self.last_used].mapping.is_valid() {
            self.mapped.remove(self.last_used);
            return None;
        }
        self.mapped.get(self.last_used)
    }

    /// The window of this key, to be used without the connection.
    pub(crate) fn handle(&mut self, key: u64) -> Result<Option<DirectRegion>> {
        if self.served_by_owner(key).is_some() {
            return Err(DirectRegion::NOT_MAPPABLE);
        }
        let ended = self.disconnected.clone();
        let Some(window) = self.get(key) else {
            return Ok(None);
        };
        if window.rma_events {
            return Err(DirectRegion::NEEDS_RMA_EVENTS);
        }
        let memory = Arc::new(MappedRegionHandle {
            mapping: window.mapping.clone(),
            disconnected: ended,
        });
        Ok(Some(DirectRegion {
            memory,
            access: window.access,
        }))
    }

    /// Whether the peer serves the region of this key; and if, whether it wants to hear of what is
    /// done there.
    pub(crate) fn served_by_owner(&self, key: u64) -> Option<bool> {
        self.owner_served
            .iter()
            .find(|(served, _)| *served == key)
            .map(|(_, heeds)| *heeds)
    }

    /// The peer has said that it serves the region of this key.
    pub(crate) fn on_mr_served(&mut self, key: u64, heeds: bool) {
        self.queries.retain(|(asked, _)| *asked != key);
        self.owner_served.push((key, heeds));
    }

    /// The peer knows nothing of this key any more.
    pub(crate) fn remove_served(&mut self, key: u64) {
        self.owner_served.retain(|(served, _)| *served != key);
    }

    /// Asks for a key, once: whether the question is to be said now. An error when the peer has
    /// answered that there is nothing.
    pub(crate) fn needs_query(&mut self, key: u64) -> Result<bool> {
        match self.queries.iter().position(|(asked, _)| *asked == key) {
            None => Ok(true),
            Some(at) => match self.queries[at].1 {
                KeyQuery::Sent => Ok(false),
                KeyQuery::Denied(why) => {
                    self.queries.swap_remove(at);
                    Err(Error::Key { key, why })
                }
            },
        }
    }

    /// The question was said.
    pub(crate) fn on_query_sent(&mut self, key: u64) {
        self.queries.push((key, KeyQuery::Sent));
    }

    /// Whether this key was asked for, and no answer has come: an operation on it cannot move.
    pub(crate) fn is_query_pending(&self, key: u64) -> bool {
        self.queries.contains(&(key, KeyQuery::Sent))
    }

    /// Answers that there is nothing are for those who asked.
    pub(crate) fn retain_denials(&mut self, wanted: impl Fn(u64) -> bool) {
        self.queries
            .retain(|(key, asked)| *asked == KeyQuery::Sent || wanted(*key));
    }

    /// The peer's answer to the question, or why it is of no use; `wanted` when an operation waits
    /// for it.
    pub(crate) fn on_map_answer(
        &mut self,
        key: u64,
        window: Result<MappedRegion, &'static str>,
        wanted: bool,
    ) {
        self.queries.retain(|(asked, _)| *asked != key);
        // Regions that their owner has closed since.
        self.mapped.retain(|window| window.mapping.is_valid());
        match window {
            Ok(window) if window.mapping.is_valid() => {
                match self.mapped.binary_search_by_key(&key, |window| window.key) {
                    Ok(at) => self.mapped[at] = window,
                    Err(at) => self.mapped.insert(at, window),
                }
            }
            // Asking again would have the same answer, again and again.
            Ok(_) if wanted => self.queries.push((key, KeyQuery::Denied("was withdrawn"))),
            Err(why) if wanted => self.queries.push((key, KeyQuery::Denied(why))),
            _ => {}
        }
    }
}

impl MappedRegions {
    /// The connection ends for this reason: windows in the hands of the user say it from now on.
    pub(crate) fn end(&self, why: &Error) {
        let why = match why {
            // By this side, and no operation was cancelled.
            Error::Canceled => Error::Closed(Class::Endpoint),
            why => why.clone(),
        };
        // The first reason stands.
        let _ = self.disconnected.set(why);
    }
}

impl Drop for MappedRegions {
    fn drop(&mut self) {
        self.end(&Error::Closed(Class::Endpoint));
    }
}

impl RegionMemory for MappedRegionHandle {
    fn len(&self) -> usize {
        self.mapping.len()
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        self.mapping.read(at, out);
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        self.mapping.write(at, bytes);
    }

    fn execute_atomic(
        &self,
        at: usize,
        op: AtomicOp,
        datatype: Datatype,
        operand: u64,
        comparand: u64,
    ) -> u64 {
        self.mapping.execute(at, op, datatype, operand, comparand)
    }

    fn close(&self) {}

    fn is_open(&self) -> bool {
        self.mapping.is_valid() && self.disconnected.get().is_none()
    }

    fn unreachable(&self) -> Option<Error> {
        self.disconnected.get().cloned()
    }
}

impl MappedRegion {
    /// Checks an access; returns where it begins.
    #[inline]
    pub(crate) fn check_access(&self, kind: OpKind, remote: &RmaIov, len: usize) -> Result<usize> {
        let atomic = remote.atomic;
        check_access(
            self.key,
            self.access,
            required_access(kind, atomic.map(|atomic| atomic.op)),
        )?;
        let offset = remote.offset.wrapping_sub(self.base);
        check_range(
            self.mapping.len(),
            offset,
            len,
            atomic.map_or(1, |atomic| atomic.datatype.size()),
        )
    }

    /// Whether the peer is to be told of this access.
    pub(crate) fn notifies(&self, spec: &TxOp) -> bool {
        self.rma_events || spec.data.is_some()
    }

    /// Copies into the region.
    pub(crate) fn write(&self, at: usize, payload: Payload<'_>) {
        payload.for_each(|position, piece| self.mapping.write(at + position, piece));
    }

    /// Copies out of the region into a buffer with the room for it.
    pub(crate) fn read(&self, at: usize, len: usize, into: &mut AnyBuf) {
        into.receive(&self.mapping.range(at, len))
            .unwrap_or_else(|_| unreachable!("the room was reserved when the read was posted"));
    }

    /// Part of the region.
    pub(crate) fn range(&self, at: usize, len: usize) -> impl CopySource {
        self.mapping.range(at, len)
    }

    /// Executes an atomic operation.
    pub(crate) fn execute(&self, at: usize, remote: &RmaIov, operands: &[u8], result: &mut [u8]) {
        execute_atomic_array(&*self.mapping, at, remote, operands, result);
    }
}
