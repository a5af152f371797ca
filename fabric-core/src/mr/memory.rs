//! The memory of a region at its owner, and the accesses of peers that the owner executes.

use std::any::Any;
use std::fmt::{self, Debug};
use std::ops::{Deref, Range};

use super::RegionBytes;

/// The memory of a region, as its owner's process holds it.
pub trait RegionMemory: RegionBytes + Any {
    /// Prepares the memory for peers. The table of regions calls it when it cannot refuse the
    /// registration any more, before a peer can look up the key. The caller holds locks, so the
    /// call must be short.
    fn prepare_for_peers(&self) {}

    /// Closes the memory to peers. Accesses that are in progress may still take effect.
    fn close(&self);

    /// Returns the virtual address of the first byte in the owner's process.
    fn address(&self) -> u64;

    /// Returns the virtual addresses and lengths of the pieces of a range, which is inside the
    /// memory.
    fn addresses(&self, range: Range<usize>) -> Vec<(u64, usize)> {
        vec![(self.address() + range.start as u64, range.len())]
    }

    /// Returns how often the memory was seen to have moved to other addresses.
    fn moves(&self) -> u64 {
        0
    }

    /// Begins an access by a peer, for [`PeerAccess`]. Returns false, and begins no access, when
    /// the owner holds or has closed the memory.
    #[must_use]
    fn begin_access(&self) -> bool {
        self.is_open()
    }

    /// Ends an access that [`begin_access`](Self::begin_access) began.
    fn end_access(&self) {}
}

/// An access by a peer that is in progress: the owner of the memory waits for its end, the drop.
pub struct PeerAccess<'a>(&'a dyn RegionMemory);

impl<'a> PeerAccess<'a> {
    /// Begins an access; `None` when the owner holds or has closed the memory.
    #[must_use]
    pub fn begin(memory: &'a dyn RegionMemory) -> Option<Self> {
        memory.begin_access().then(|| Self(memory))
    }

    /// Returns whether an access to the memory need not wait: its owner does not hold it, or it is
    /// closed.
    #[must_use]
    pub fn is_possible(memory: &'a dyn RegionMemory) -> bool {
        Self::begin(memory).is_some() || !memory.is_open()
    }
}

impl Deref for PeerAccess<'_> {
    type Target = dyn RegionBytes;

    fn deref(&self) -> &Self::Target {
        self.0
    }
}

impl Drop for PeerAccess<'_> {
    fn drop(&mut self) {
        self.0.end_access();
    }
}

impl Debug for PeerAccess<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PeerAccess").field(&self.0).finish()
    }
}
