//! The senders of received datagrams, and their address handles.
//!
//! UDP has no connections. The first datagram of a sender records the sender. When the table is
//! full, a new sender evicts an idle one. Eviction releases the address handle of an auto-inserted
//! peer.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use fabric_core::matching::PeerKey;
use fabric_core::transport::{EndpointContext, EngineContext, Incarnation};
use fabric_core::{Address, FiAddr, Scheme};
use slab::Slab;

/// The incarnation of every sender: datagrams do not tell whether the process at a socket address
/// was restarted.
const SOCKET_INCARNATION: Incarnation = Incarnation(0);
/// Maximum number of recorded senders.
const MAX_SENDERS: usize = 1024;

/// The senders of an endpoint.
#[derive(Debug)]
pub(super) struct Senders {
    next_peer_key: u32,
    /// Whether `next_peer_key` has wrapped.
    keys_repeat: bool,
    entries: Slab<Sender>,
    by_socket_addr: HashMap<SocketAddr, usize>,
    /// Indices in `entries`; the first is the next candidate for eviction.
    eviction_queue: VecDeque<usize>,
}

/// A recorded sender.
#[derive(Debug)]
struct Sender {
    socket_addr: SocketAddr,
    peer_key: PeerKey,
    /// The sender's address handle now; `None` if the sender is not in the address vector.
    source: Option<FiAddr>,
    /// The sender's address handle at its first datagram, which auto-insertion may have created.
    /// The handle is passed to `peer_disconnected` when the sender is evicted or the endpoint
    /// closes.
    addr_at_first_datagram: Option<FiAddr>,
    /// Whether a datagram of the sender arrived since eviction last considered the sender.
    active: bool,
}

impl Senders {
    pub(super) fn new() -> Self {
        Self {
            next_peer_key: 0,
            keys_repeat: false,
            entries: Slab::new(),
            by_socket_addr: HashMap::new(),
            eviction_queue: VecDeque::new(),
        }
    }

    /// Returns the key and the address handle of the sender of a datagram; records a new sender.
    pub(super) fn find_or_insert<E: EngineContext>(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        from: SocketAddr,
    ) -> (PeerKey, Option<FiAddr>) {
        let index = match self.by_socket_addr.get(&from) {
            Some(index) => *index,
            None => self.insert(ctx, from),
        };
        let sender = &mut self.entries[index];
        sender.active = true;
        (sender.peer_key, sender.source)
    }

    /// Records a new sender, and evicts another one if the table is full. Returns the sender's
    /// index.
    #[cold]
    fn insert<E: EngineContext>(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        from: SocketAddr,
    ) -> usize {
        if self.entries.len() >= MAX_SENDERS {
            self.evict_idle(ctx);
        }
        let address = Address::from_socket_addr(Scheme::Udp, from).ok();
        let fi_addr =
            address.and_then(|address| ctx.peer_connected(&address, Some(SOCKET_INCARNATION)));
        let key = self.unused_peer_key();
        let index = self.entries.insert(Sender {
            socket_addr: from,
            peer_key: key,
            source: fi_addr,
            addr_at_first_datagram: fi_addr,
            active: true,
        });
        self.by_socket_addr.insert(from, index);
        self.eviction_queue.push_back(index);
        index
    }

    /// Returns a key that no recorded sender has. The counter may wrap, because every new source
    /// port of a peer takes a key.
    fn unused_peer_key(&mut self) -> PeerKey {
        loop {
            let key = PeerKey(self.next_peer_key);
            let (next, wraps) = self.next_peer_key.overflowing_add(1);
            self.next_peer_key = next;
            self.keys_repeat |= wraps;
            let mut used = self.entries.iter().map(|(_, sender)| sender.peer_key);
            if !self.keys_repeat || used.all(|used| used != key) {
                return key;
            }
        }
    }

    /// Evicts a sender without recent datagrams (second-chance replacement).
    fn evict_idle<E: EngineContext>(&mut self, ctx: &mut EndpointContext<'_, E>) {
        while let Some(index) = self.eviction_queue.pop_front() {
            if std::mem::take(&mut self.entries[index].active) {
                self.eviction_queue.push_back(index);
                continue;
            }
            let sender = self.entries.remove(index);
            self.by_socket_addr.remove(&sender.socket_addr);
            if let Ok(address) = Address::from_socket_addr(Scheme::Udp, sender.socket_addr) {
                ctx.remove_sender(sender.peer_key, address);
            }
            return ctx.peer_disconnected(sender.addr_at_first_datagram);
        }
    }

    /// Sets the address handle of a sender; returns its key if its unconsumed messages are to get
    /// the handle.
    pub(super) fn on_address_inserted(
        &mut self,
        socket_addr: SocketAddr,
        addr: FiAddr,
    ) -> Option<PeerKey> {
        let sender = &mut self.entries[*self.by_socket_addr.get(&socket_addr)?];
        (sender.source.replace(addr) != Some(addr)).then_some(sender.peer_key)
    }

    /// Removes an address handle that is no longer valid.
    pub(super) fn on_address_removed(&mut self, addr: FiAddr) {
        for (_, sender) in &mut self.entries {
            sender.source = sender.source.filter(|source| *source != addr);
        }
    }

    /// Returns the address handle of the sender with this key.
    pub(super) fn fi_addr(&self, key: PeerKey) -> Option<FiAddr> {
        self.entries
            .iter()
            .find(|(_, sender)| sender.peer_key == key)?
            .1
            .source
    }

    /// Reports every sender as disconnected.
    pub(super) fn close(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        for (_, sender) in &self.entries {
            ctx.peer_disconnected(sender.addr_at_first_datagram);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn peer_keys_of_recorded_senders_are_not_reused() {
        let mut senders = Senders::new();
        for port in 1..=3 {
            let peer_key = senders.unused_peer_key();
            senders.entries.insert(Sender {
                socket_addr: SocketAddr::from(([127, 0, 0, 1], port)),
                peer_key,
                source: None,
                addr_at_first_datagram: None,
                active: true,
            });
        }
        senders.entries.remove(1);
        senders.next_peer_key = u32::MAX;
        let keys = [0; 3].map(|_| senders.unused_peer_key());
        assert_eq!(keys, [PeerKey(u32::MAX), PeerKey(1), PeerKey(3)]);
    }
}
