//! The regions of a peer that are mapped here, by key.
//!
//! A region is mapped at its first access: the initiator asks on the socket, the operation waits in
//! the queue, and the owner replies with the descriptor of the memory, or says that it serves the
//! region itself (`rma_bounce`). Later accesses need nothing from the owner. The first access after
//! a key was revoked finds that out and requests the key again, because the owner may have assigned
//! the key to another region.
//!
//! `map_region` of the public API is an access of length 0: it maps the region and returns its
//! memory as a `DirectRegion`. From then on `RemoteMapping` checks and copies without the engine.
//!
//! Decision: the initiator executes one-sided operations. No thread of the target and no request is
//! needed, and all atomic operations exclude each other, being instructions on the same memory.
//! Registered buffers are the exception, because `process_vm_writev` into memory that its owner may
//! free would let a peer write where it must not.

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

/// A region of the peer that is mapped here.
#[derive(Debug)]
pub(crate) struct MappedRegion {
    pub(crate) key: u64,
    pub(crate) mapping: Arc<SharedMapping>,
    pub(crate) access: Access,
    /// Virtual address of the first byte in the owner's process; 0 if addresses are offsets.
    pub(crate) base: u64,
    /// Whether the peer's endpoint requests RMA events for all accesses.
    pub(crate) rma_events: bool,
}

/// State of the request for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MapRequest {
    /// The request was sent and has no response yet.
    Sent,
    /// The region cannot be accessed, for this reason.
    Denied(&'static str),
}

/// A region whose owner, the peer, executes the accesses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServedRegion {
    key: u64,
    /// The peer requests a notification of each access.
    pub(crate) rma_events: bool,
}

/// The mapped regions of a connection, by key.
#[derive(Debug, Default)]
pub(crate) struct MappedRegions {
    /// Sorted by key.
    mapped: Vec<MappedRegion>,
    /// Regions that the peer serves: it executes the accesses itself.
    served: Vec<ServedRegion>,
    /// Index in `mapped` of the region used last.
    last_used: usize,
    /// Requests by key; few at a time.
    map_requests: Vec<(u64, MapRequest)>,
    /// Reason for which the connection has ended, once it has.
    disconnected: Arc<OnceLock<Error>>,
}

/// A mapped region held by the application: it outlives the connection and knows when that has
/// ended.
#[derive(Debug)]
struct MappedRegionHandle {
    mapping: Arc<SharedMapping>,
    disconnected: Arc<OnceLock<Error>>,
}

impl MappedRegions {
    /// Returns the region with this key, if it is mapped and its owner has not revoked it.
    #[inline]
    pub(crate) fn get(&mut self, key: u64) -> Option<&MappedRegion> {
        if self
            .mapped
            .get(self.last_used)
            .is_none_or(|region| region.key != key || !region.mapping.is_valid())
        {
            return self.find(key);
        }
        self.mapped.get(self.last_used)
    }

    #[cold]
    fn find(&mut self, key: u64) -> Option<&MappedRegion> {
        self.last_used = self
            .mapped
            .binary_search_by_key(&key, |region| region.key)
            .ok()?;
        if !self.mapped[self.last_used].mapping.is_valid() {
            self.mapped.remove(self.last_used);
            return None;
        }
        self.mapped.get(self.last_used)
    }

    /// Returns a handle of the region with this key, for use without the connection.
    pub(crate) fn handle(&mut self, key: u64) -> Result<Option<DirectRegion>> {
        if self.served_region(key).is_some() {
            return Err(DirectRegion::NOT_MAPPABLE);
        }
        let disconnected = self.disconnected.clone();
        let Some(region) = self.get(key) else {
            return Ok(None);
        };
        if region.rma_events {
            return Err(DirectRegion::NEEDS_RMA_EVENTS);
        }
        let memory = Arc::new(MappedRegionHandle {
            mapping: region.mapping.clone(),
            disconnected,
        });
        Ok(Some(DirectRegion {
            memory,
            access: region.access,
        }))
    }

    /// Returns the region with this key, if the peer serves it.
    pub(crate) fn served_region(&self, key: u64) -> Option<ServedRegion> {
        self.served.iter().find(|region| region.key == key).copied()
    }

    /// Records that the peer serves the region with this key.
    pub(crate) fn on_mr_served(&mut self, key: u64, rma_events: bool) {
        self.map_requests.retain(|(requested, _)| *requested != key);
        self.served.push(ServedRegion { key, rma_events });
    }

    /// Forgets a served key that the peer does not know any more.
    pub(crate) fn remove_served_region(&mut self, key: u64) {
        self.served.retain(|region| region.key != key);
    }

    /// Returns whether a request for this key must be sent now.
    ///
    /// # Errors
    /// [`Error::Key`] if the peer has denied the last request, which is forgotten then.
    pub(crate) fn needs_map_request(&mut self, key: u64) -> Result<bool> {
        match self
            .map_requests
            .iter()
            .position(|(requested, _)| *requested == key)
        {
            None => Ok(true),
            Some(at) => match self.map_requests[at].1 {
                MapRequest::Sent => Ok(false),
                MapRequest::Denied(why) => {
                    self.map_requests.swap_remove(at);
                    Err(Error::Key { key, why })
                }
            },
        }
    }

    /// Records that the request for this key was sent.
    pub(crate) fn on_map_request_sent(&mut self, key: u64) {
        self.map_requests.push((key, MapRequest::Sent));
    }

    /// Returns whether the request for this key has no response yet, so that operations on it must
    /// wait.
    pub(crate) fn is_map_request_pending(&self, key: u64) -> bool {
        self.map_requests.contains(&(key, MapRequest::Sent))
    }

    /// Drops denials for which no operation waits.
    pub(crate) fn retain_denials(&mut self, wanted: impl Fn(u64) -> bool) {
        self.map_requests
            .retain(|(key, query)| *query == MapRequest::Sent || wanted(*key));
    }

    /// Handles the peer's response, or the reason for which it cannot be used; `wanted` if an
    /// operation waits for it.
    pub(crate) fn on_map_response(
        &mut self,
        key: u64,
        region: Result<MappedRegion, &'static str>,
        wanted: bool,
    ) {
        self.map_requests.retain(|(requested, _)| *requested != key);
        // Drop regions that their owner has closed.
        self.mapped.retain(|region| region.mapping.is_valid());
        match region {
            Ok(region) if region.mapping.is_valid() => {
                match self.mapped.binary_search_by_key(&key, |region| region.key) {
                    Ok(at) => self.mapped[at] = region,
                    Err(at) => self.mapped.insert(at, region),
                }
            }
            // A new request would have the same response, over and over.
            Ok(_) if wanted => self
                .map_requests
                .push((key, MapRequest::Denied("was revoked by its owner"))),
            Err(why) if wanted => self.map_requests.push((key, MapRequest::Denied(why))),
            _ => {}
        }
    }
}

impl MappedRegions {
    /// Marks the connection as ended for this reason, which handles of the application report from
    /// now on.
    pub(crate) fn end(&self, why: &Error) {
        let why = match why {
            // This side closed the endpoint; no operation of the handle was cancelled.
            Error::Canceled => Error::Closed(Class::Endpoint),
            why => why.clone(),
        };
        // The first reason stays.
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

    fn disconnect_error(&self) -> Option<Error> {
        self.disconnected.get().cloned()
    }
}

impl MappedRegion {
    /// Checks an access. Returns its position in the region.
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

    /// Returns whether the peer must be notified of this access.
    pub(crate) fn needs_notification(&self, tx_op: &TxOp) -> bool {
        self.rma_events || tx_op.data.is_some()
    }

    /// Copies into the region.
    pub(crate) fn write(&self, at: usize, payload: Payload<'_>) {
        payload.for_each(|position, piece| self.mapping.write(at + position, piece));
    }

    /// Copies from the region into a buffer that has room for it.
    pub(crate) fn read(&self, at: usize, len: usize, into: &mut AnyBuf) {
        into.receive(&self.mapping.range(at, len))
            .unwrap_or_else(|_| unreachable!("room was reserved when the read was posted"));
    }

    /// Returns a part of the region.
    pub(crate) fn range(&self, at: usize, len: usize) -> impl CopySource {
        self.mapping.range(at, len)
    }

    /// Executes an atomic operation.
    pub(crate) fn execute(&self, at: usize, remote: &RmaIov, operands: &[u8], result: &mut [u8]) {
        execute_atomic_array(&*self.mapping, at, remote, operands, result);
    }
}
