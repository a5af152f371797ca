//! Queued sends, and the cache of destination addresses.

use std::net::SocketAddr;

use fabric_core::FiAddr;
use fabric_core::transport::OpKey;

/// A send that waits for room in the socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueuedDatagram {
    pub(super) op: OpKey,
    pub(super) peer: FiAddr,
}

/// Cache of the socket addresses of peers, indexed by address handle.
#[derive(Debug, Default)]
pub(super) struct DestinationTable(Vec<Option<(FiAddr, SocketAddr)>>);

impl DestinationTable {
    /// Returns the cached socket address of a peer.
    pub(super) fn get(&self, addr: FiAddr) -> Option<SocketAddr> {
        let (cached, to) = (*self.0.get(addr.index())?)?;
        (cached == addr).then_some(to)
    }

    pub(super) fn insert(&mut self, addr: FiAddr, to: SocketAddr) {
        if addr.index() >= self.0.len() {
            self.0.resize(addr.index() + 1, None);
        }
        self.0[addr.index()] = Some((addr, to));
    }

    pub(super) fn remove(&mut self, addr: FiAddr) {
        if self.get(addr).is_some() {
            self.0[addr.index()] = None;
        }
    }
}
