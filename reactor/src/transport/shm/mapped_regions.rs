//! The regions of a peer that this side has accessed, by key: mapped, or served by the peer.
//!
//! The first access to a key sends a map request over the socket, and the operation waits in the
//! queue. The owner responds with the descriptor of the memory, or says that it serves the region
//! (`rma_bounce`). Later accesses to a mapped region need nothing from the owner. The first access
//! after the owner has revoked a key finds the mapping invalid and requests the key again, because
//! the owner may have assigned the key to another region.
//!
//! `window` of the public API makes an access of length 0, which maps the region, and gets the
//! memory as a `DirectRegion`. From then on `RemoteWindow` checks and copies without the engine.
//!
//! Decision: the initiator executes one-sided operations. They need no thread of the target and no
//! request, and all atomic operations exclude each other, being instructions on the same memory.
//! There are two exceptions. Registered buffers are not mapped: `process_vm_writev` into memory
//! that its owner may free would let a peer write into other memory of the owner. Regions without
//! `REMOTE_READ` are not mapped, because a mapping for writing can also be read.

use std::sync::{Arc, OnceLock};

use fabric_core::buf::{AnyBuf, CopySource, Payload};
use fabric_core::completion::OpKind;
use fabric_core::extension::ShmInfo;
use fabric_core::flags::Access;
use fabric_core::mr::{DirectRegion, RegionBytes, check_access, check_range, execute_atomic_array};
use fabric_core::transport::{RmaIov, TxOp};
use fabric_core::tree::Class;
use fabric_core::{Error, Result};

use crate::sys::mapping::SharedMapping;

/// A region of the peer that this process has mapped.
#[derive(Debug)]
pub(crate) struct MappedRegion {
    pub(crate) key: u64,
    pub(crate) mapping: Arc<SharedMapping>,
    pub(crate) access: Access,
    /// Virtual address of the first byte in the owner's process; 0 if addresses are offsets.
    pub(crate) base: u64,
    /// Whether the peer must be notified of every access: its endpoint or its region requests RMA
    /// events.
    pub(crate) rma_events: bool,
}

/// State of the map request for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MapRequest {
    /// The request was sent and has no response yet.
    Sent,
    /// The region cannot be accessed, for this reason. Kept until the waiting operation fails.
    Denied(&'static str),
}

/// A region whose owner, the peer, executes the accesses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServedRegion {
    key: u64,
    /// Whether the peer must be notified of every access, as in [`MappedRegion::rma_events`].
    pub(crate) rma_events: bool,
}

/// The regions of the peer of one connection, by key.
#[derive(Debug, Default)]
pub(crate) struct MappedRegions {
    /// Mapped regions, sorted by key.
    mapped: Vec<MappedRegion>,
    /// Regions that the peer serves.
    served: Vec<ServedRegion>,
    /// Index in `mapped` of the region accessed last, a cache for repeated accesses.
    last_used: usize,
    /// Map requests by key; few at a time.
    map_requests: Vec<(u64, MapRequest)>,
    /// The error of handles of the application after the end of the connection; unset before.
    disconnected: Arc<OnceLock<Error>>,
}

impl MappedRegions {
    /// Returns the region with this key, if it is mapped and its owner has not revoked it.
    #[inline]
    pub(crate) fn get(&mut self, key: u64) -> Option<&MappedRegion> {
        if self
            .mapped
            .get(self.last_used)
            .is_none_or(|region| region.key != key || !region.mapping.is_open())
        {
            return self.find(key);
        }
        self.mapped.get(self.last_used)
    }

    /// Finds the region with this key, which becomes the region accessed last. Removes the region
    /// if its owner has revoked it.
    #[cold]
    fn find(&mut self, key: u64) -> Option<&MappedRegion> {
        self.last_used = self
            .mapped
            .binary_search_by_key(&key, |region| region.key)
            .ok()?;
        if !self.mapped[self.last_used].mapping.is_open() {
            self.mapped.remove(self.last_used);
            return None;
        }
        self.mapped.get(self.last_used)
    }

    /// Returns a handle of the region with this key, for use without the engine; `None` if the
    /// region is not mapped.
    ///
    /// # Errors
    /// [`DirectRegion::NOT_MAPPABLE`] for a served region, and [`DirectRegion::NEEDS_RMA_EVENTS`].
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
        Ok(Some(DirectRegion {
            memory: region.mapping.clone(),
            disconnected,
            access: region.access,
        }))
    }

    /// Adds the mapped regions that the peer has not revoked.
    pub(crate) fn add_info(&self, info: &mut ShmInfo) {
        for region in self.mapped.iter().filter(|region| region.mapping.is_open()) {
            info.regions += 1;
            info.region_bytes += region.mapping.len();
        }
    }

    /// Returns the region with this key, if the peer serves it.
    pub(crate) fn served_region(&self, key: u64) -> Option<ServedRegion> {
        self.served.iter().find(|region| region.key == key).copied()
    }

    /// Handles the response to a map request that the peer serves the region.
    pub(crate) fn on_mr_served(&mut self, key: u64, rma_events: bool) {
        self.map_requests.retain(|(requested, _)| *requested != key);
        self.served.push(ServedRegion { key, rma_events });
    }

    /// Removes a served region whose key the peer has revoked.
    pub(crate) fn remove_served_region(&mut self, key: u64) {
        self.served.retain(|region| region.key != key);
    }

    /// Returns whether a map request for this key must be sent; false if one is pending.
    ///
    /// # Errors
    /// [`Error::Key`] if the last request was denied. The denial is removed.
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

    /// Records that the map request for this key was sent.
    pub(crate) fn on_map_request_sent(&mut self, key: u64) {
        self.map_requests.push((key, MapRequest::Sent));
    }

    /// Returns whether the map request for this key has no response yet.
    pub(crate) fn is_map_request_pending(&self, key: u64) -> bool {
        self.map_requests.contains(&(key, MapRequest::Sent))
    }

    /// Removes denials of keys for which no operation waits, according to `is_awaited`.
    pub(crate) fn retain_denials(&mut self, is_awaited: impl Fn(u64) -> bool) {
        self.map_requests
            .retain(|(key, request)| *request == MapRequest::Sent || is_awaited(*key));
    }

    /// Handles the response to a map request: the mapped region, or the reason why there is none;
    /// `is_awaited` if an operation waits for the region.
    pub(crate) fn on_map_response(
        &mut self,
        key: u64,
        region: Result<MappedRegion, &'static str>,
        is_awaited: bool,
    ) {
        self.map_requests.retain(|(requested, _)| *requested != key);
        // Unmap regions that their owner has revoked.
        self.mapped.retain(|region| region.mapping.is_open());
        match region {
            Ok(region) if region.mapping.is_open() => {
                match self.mapped.binary_search_by_key(&key, |region| region.key) {
                    Ok(at) => self.mapped[at] = region,
                    Err(at) => self.mapped.insert(at, region),
                }
            }
            // A region that was revoked already is denied. Without the denial, the waiting
            // operation would request it again and again.
            Ok(_) if is_awaited => self
                .map_requests
                .push((key, MapRequest::Denied("was revoked by its owner"))),
            Err(why) if is_awaited => self.map_requests.push((key, MapRequest::Denied(why))),
            _ => {}
        }
    }

    /// Records the end of the connection: from now on, handles of the application report `error`.
    /// Only the first error is kept.
    pub(crate) fn end(&self, error: &Error) {
        let error = match error {
            // This side has closed the endpoint, which cancels its operations. Handles have none.
            Error::Canceled => Error::Closed(Class::Endpoint),
            error => error.clone(),
        };
        let _ = self.disconnected.set(error);
    }
}

impl Drop for MappedRegions {
    fn drop(&mut self) {
        self.end(&Error::Closed(Class::Endpoint));
    }
}

impl MappedRegion {
    /// Checks the rights and the range of an access of `len` bytes. Returns the offset of its first
    /// byte in the region.
    #[inline]
    pub(crate) fn check_access(&self, kind: OpKind, remote: &RmaIov, len: usize) -> Result<usize> {
        check_access(self.key, self.access, remote.required_access(kind))?;
        if let Some(atomic) = remote.atomic {
            self.mapping.check_atomic(atomic.datatype)?;
        }
        let offset = remote.offset.wrapping_sub(self.base);
        check_range(self.mapping.len(), offset, len, remote.align())
    }

    /// Returns whether the peer must be notified of this access: it has completion data, or the
    /// peer requests RMA events.
    pub(crate) fn needs_notification(&self, tx_op: &TxOp) -> bool {
        self.rma_events || tx_op.data.is_some()
    }

    /// Copies `bytes` to a remote offset, if the region grants that and has these bytes, and the
    /// peer requests no RMA events. Returns whether the bytes were copied.
    #[inline]
    pub(crate) fn try_write(&self, offset: u64, bytes: &[u8]) -> bool {
        let offset = usize::try_from(offset.wrapping_sub(self.base)).unwrap_or(usize::MAX);
        let end = offset.checked_add(bytes.len());
        let is_permitted = self.access.contains(Access::REMOTE_WRITE)
            && !self.rma_events
            && end.is_some_and(|end| end <= self.mapping.len());
        if is_permitted {
            self.mapping.write(offset, bytes);
        }
        is_permitted
    }

    /// Copies `payload` into the region from offset `at` on.
    pub(crate) fn write(&self, at: usize, payload: Payload<'_>) {
        payload.for_each(|position, piece| self.mapping.write(at + position, piece));
    }

    /// Copies `len` bytes from offset `at` of the region into a buffer, which must have room.
    pub(crate) fn read(&self, at: usize, len: usize, into: &mut AnyBuf) {
        into.receive(&self.mapping.range(at, len))
            .unwrap_or_else(|_| unreachable!("room was reserved when the read was posted"));
    }

    /// Returns `len` bytes from offset `at` of the region, to be copied out.
    pub(crate) fn range(&self, at: usize, len: usize) -> impl CopySource {
        self.mapping.range(at, len)
    }

    /// Executes the atomic operation of `remote` on the values from offset `at` on.
    pub(crate) fn execute(&self, at: usize, remote: &RmaIov, operands: &[u8], result: &mut [u8]) {
        execute_atomic_array(&*self.mapping, at, remote, operands, result);
    }
}
