//! The peers of an endpoint, by position, by socket address and by address handle.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::{Index, IndexMut};
use std::time::Instant;

use fabric_core::tcp::WireProtocol;
use fabric_core::{Address, FiAddr};
use slab::Slab;

use super::deadlines::Deadlines;
use super::peer::TcpPeer;

/// The peers of an endpoint.
///
/// **Invariant.** `by_socket_addr` has every peer of `entries`, and no other position. A position
/// in `by_fi_addr` is that of a peer only if the peer has this handle.
#[derive(Debug, Default)]
pub(super) struct PeerTable {
    entries: Slab<PeerEntry>,
    by_socket_addr: HashMap<SocketAddr, usize>,
    /// Positions, by the index of the address handle.
    by_fi_addr: Vec<Option<usize>>,
    /// When connects to refusing peers are retried, by the position of the peer.
    retries: Deadlines,
}

#[derive(Debug)]
struct PeerEntry {
    peer: TcpPeer,
    /// The address handle of the last operation that was queued for the peer, while it is valid.
    fi_addr: Option<FiAddr>,
}

impl PeerTable {
    /// Returns the position of the peer that listens at this address, and adds the peer if needed.
    pub(super) fn find_or_add(
        &mut self,
        socket_addr: SocketAddr,
        name: &Address,
        protocol: WireProtocol,
    ) -> usize {
        let entries = &mut self.entries;
        let position = self.by_socket_addr.entry(socket_addr);
        *position.or_insert_with(|| {
            let peer = TcpPeer::new(name.clone(), socket_addr, protocol);
            let fi_addr = None;
            entries.insert(PeerEntry { peer, fi_addr })
        })
    }

    /// Returns the position of the peer that listens at this address.
    pub(super) fn at(&self, socket_addr: SocketAddr) -> Option<usize> {
        self.by_socket_addr.get(&socket_addr).copied()
    }

    /// Returns the position of the peer that has this address handle.
    #[inline]
    pub(super) fn with_fi_addr(&self, addr: FiAddr) -> Option<usize> {
        let position = (*self.by_fi_addr.get(addr.index())?)?;
        let entry = self.entries.get(position)?;
        (entry.fi_addr == Some(addr)).then_some(position)
    }

    /// Returns the address handle of a peer.
    pub(super) fn fi_addr(&self, position: usize) -> Option<FiAddr> {
        self.entries.get(position)?.fi_addr
    }

    /// Sets the address handle of a peer.
    pub(super) fn set_fi_addr(&mut self, position: usize, addr: FiAddr) {
        self.clear_fi_addr(position);
        self.entries[position].fi_addr = Some(addr);
        if addr.index() >= self.by_fi_addr.len() {
            self.by_fi_addr.resize(addr.index() + 1, None);
        }
        self.by_fi_addr[addr.index()] = Some(position);
    }

    /// Takes its address handle from a peer.
    pub(super) fn clear_fi_addr(&mut self, position: usize) {
        if let Some(addr) = self.entries[position].fi_addr.take() {
            // Another peer may have a later handle with this index.
            self.by_fi_addr[addr.index()].take_if(|of_handle| *of_handle == position);
        }
    }

    pub(super) fn get(&self, position: usize) -> Option<&TcpPeer> {
        self.entries.get(position).map(|entry| &entry.peer)
    }

    /// Returns the position of each peer.
    pub(super) fn positions(&self) -> Vec<usize> {
        self.entries.iter().map(|(position, _)| position).collect()
    }

    /// Schedules the retry of a peer for this time.
    pub(super) fn schedule_retry(&mut self, position: usize, at: Instant) {
        self.retries.set(position, at);
    }

    /// Returns the time of the earliest retry.
    pub(super) fn earliest_retry(&self) -> Option<Instant> {
        self.retries.earliest()
    }

    /// Returns the position of a peer whose retry is due.
    pub(super) fn pop_due_retry(&mut self, now: Instant) -> Option<usize> {
        while let Some(position) = self.retries.pop_expired(now) {
            // An earlier peer may have had this position.
            match self.get(position).and_then(TcpPeer::retry_at) {
                Some(at) if at > now => self.retries.set(position, at),
                Some(_) => return Some(position),
                None => {}
            }
        }
        None
    }

    /// Removes a peer without address handle, connection and queued operations.
    pub(super) fn remove_if_unused(&mut self, position: usize) {
        let is_unused = |entry: &PeerEntry| entry.fi_addr.is_none() && entry.peer.is_unused();
        if self.entries.get(position).is_some_and(is_unused) {
            let entry = self.entries.remove(position);
            self.by_socket_addr.remove(&entry.peer.socket_addr);
        }
    }
}

impl Index<usize> for PeerTable {
    type Output = TcpPeer;

    #[inline]
    fn index(&self, position: usize) -> &TcpPeer {
        &self.entries[position].peer
    }
}

impl IndexMut<usize> for PeerTable {
    #[inline]
    fn index_mut(&mut self, position: usize) -> &mut TcpPeer {
        &mut self.entries[position].peer
    }
}

#[cfg(test)]
mod tests {
    use fabric_core::Scheme;
    use fabric_core::av::AddressTable;

    use super::*;

    #[test]
    fn stale_handle_finds_no_peer() {
        let name = |port: u16| Address::new(Scheme::Tcp, &format!("127.0.0.1:{port}")).unwrap();
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let mut handles = AddressTable::new();
        let mut peers = PeerTable::default();
        let first = peers.find_or_add(at(1), &name(1), WireProtocol::Native);
        assert_eq!(
            peers.find_or_add(at(1), &name(1), WireProtocol::Native),
            first
        );
        let stale = handles.insert(name(1));
        peers.set_fi_addr(first, stale);
        peers.remove_if_unused(first);
        assert_eq!(
            (peers.at(at(1)), peers.with_fi_addr(stale)),
            (Some(first), Some(first))
        );
        // Another handle replaces the handle of the peer.
        let later = handles.insert(name(2));
        peers.set_fi_addr(first, later);
        assert_eq!(peers.with_fi_addr(stale), None);
        peers.clear_fi_addr(first);
        peers.remove_if_unused(first);
        assert_eq!((peers.at(at(1)), peers.with_fi_addr(later)), (None, None));
        // The position is used again.
        let second = peers.find_or_add(at(3), &name(3), WireProtocol::Native);
        assert_eq!(second, first);
        assert_eq!(
            (peers.with_fi_addr(stale), peers.fi_addr(second)),
            (None, None)
        );
    }
}
