//! The senders of received datagrams, and their address handles.
//!
//! UDP has no connections. The first datagram of a sender records the sender. When the table is
//! full, a new sender evicts another one. Eviction releases the address handle of an auto-inserted
//! peer.
//!
//! A sender is *new* until its second datagram arrives, and *known* afterwards; a sender that the
//! program has inserted is known at once. A new sender evicts the oldest new one, or an idle known
//! one if more than [`MAX_KNOWN`] are known. So one datagram each of any number of forged addresses
//! evicts no sender that goes on sending.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;

use fabric_core::matching::PeerKey;
use fabric_core::transport::{EndpointContext, EngineContext, Incarnation};
use fabric_core::{Address, FiAddr, Scheme};
use slab::Slab;

use crate::transport::peer_keys::PeerKeys;

/// The incarnation of every sender: datagrams do not tell whether the process at a socket address
/// was restarted.
const SOCKET_INCARNATION: Incarnation = Incarnation(0);
/// Maximum number of recorded senders.
const MAX_SENDERS: usize = 1024;
/// Maximum number of known senders that new senders do not evict.
const MAX_KNOWN: usize = MAX_SENDERS / 4 * 3;

/// The senders of an endpoint.
#[derive(Debug)]
pub(super) struct Senders {
    entries: Slab<Sender>,
    keys: PeerKeys,
    by_socket_addr: HashMap<SocketAddr, usize>,
    /// Indices of new senders, by their number; the first is the oldest.
    new: BTreeMap<u64, usize>,
    /// The number of the next new sender.
    next_new: u64,
    /// Indices of known senders; the first is the next candidate for eviction.
    known: VecDeque<usize>,
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
    state: SenderState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SenderState {
    /// One datagram of the sender has arrived. New senders are numbered.
    New(u64),
    Known {
        /// Whether a datagram arrived since eviction last considered the sender.
        is_active: bool,
    },
}

impl Senders {
    pub(super) fn new() -> Self {
        Self {
            entries: Slab::new(),
            keys: PeerKeys::default(),
            by_socket_addr: HashMap::new(),
            new: BTreeMap::new(),
            next_new: 0,
            known: VecDeque::new(),
        }
    }

    /// Returns the key and the address handle of the sender of a datagram; records a new sender.
    pub(super) fn find_or_insert<E: EngineContext>(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        from: SocketAddr,
    ) -> (PeerKey, Option<FiAddr>) {
        let Some(&index) = self.by_socket_addr.get(&from) else {
            return self.insert(ctx, from);
        };
        self.set_known(index);
        let sender = &self.entries[index];
        (sender.peer_key, sender.source)
    }

    /// Notes that a further datagram of a recorded sender has arrived.
    fn set_known(&mut self, index: usize) {
        let sender = &mut self.entries[index];
        if let SenderState::New(number) = sender.state {
            self.new.remove(&number);
            self.known.push_back(index);
        }
        sender.state = SenderState::Known { is_active: true };
    }

    /// Records a sender, and evicts another one if the table is full. Returns the sender's key and
    /// address handle.
    #[cold]
    fn insert<E: EngineContext>(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        from: SocketAddr,
    ) -> (PeerKey, Option<FiAddr>) {
        if self.entries.len() >= MAX_SENDERS
            && let Some(evicted) = self.evict()
        {
            if let Ok(address) = Address::from_socket_addr(Scheme::Udp, evicted.socket_addr) {
                ctx.disconnect_peer(evicted.peer_key, address);
            }
            ctx.peer_disconnected(evicted.addr_at_first_datagram);
        }
        let address = Address::from_socket_addr(Scheme::Udp, from).ok();
        let is_inserted = address
            .as_ref()
            .is_some_and(|address| ctx.fi_addr_of(address).is_some());
        let source = address
            .as_ref()
            .and_then(|address| ctx.peer_connected(address, Some(SOCKET_INCARNATION)));
        let own_key = self.add(from, source, is_inserted);
        // The endpoint has a receive queue of its own, so the key is the endpoint's.
        let key = address.map_or(own_key, |address| ctx.connect_peer(own_key, &address));
        (key, source)
    }

    /// Adds a sender, which the program may have inserted. Returns its key.
    fn add(&mut self, from: SocketAddr, source: Option<FiAddr>, is_inserted: bool) -> PeerKey {
        let peer_key = self.keys.generate();
        let number = self.next_new;
        let index = self.entries.insert(Sender {
            socket_addr: from,
            peer_key,
            source,
            addr_at_first_datagram: source,
            state: SenderState::New(number),
        });
        self.keys.insert(peer_key, index);
        self.by_socket_addr.insert(from, index);
        self.new.insert(number, index);
        self.next_new += 1;
        if is_inserted {
            self.set_known(index);
        }
        peer_key
    }

    /// Removes a sender from the full table.
    fn evict(&mut self) -> Option<Sender> {
        let index = if self.known.len() > MAX_KNOWN {
            self.take_idle_known()
        } else {
            let oldest_new = self.new.pop_first().map(|(_, index)| index);
            oldest_new.or_else(|| self.take_idle_known())
        }?;
        let evicted = self.entries.remove(index);
        self.keys.remove(evicted.peer_key);
        self.by_socket_addr.remove(&evicted.socket_addr);
        Some(evicted)
    }

    /// Takes a known sender without recent datagrams (second-chance replacement).
    fn take_idle_known(&mut self) -> Option<usize> {
        while let Some(index) = self.known.pop_front() {
            let SenderState::Known { is_active: true } = self.entries[index].state else {
                return Some(index);
            };
            self.entries[index].state = SenderState::Known { is_active: false };
            self.known.push_back(index);
        }
        None
    }

    /// Sets the address handle of a sender, which the program has inserted or which was
    /// auto-inserted; returns its key if its unconsumed messages are to get the handle.
    pub(super) fn on_address_inserted(
        &mut self,
        socket_addr: SocketAddr,
        addr: FiAddr,
        is_inserted: bool,
    ) -> Option<PeerKey> {
        let index = *self.by_socket_addr.get(&socket_addr)?;
        if is_inserted {
            self.set_known(index);
        }
        let sender = &mut self.entries[index];
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
        self.entries[self.keys.index_of(key)?].source
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
    use fabric_core::av::AddressTable;

    use super::*;

    fn socket_addr(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    /// Handles a datagram from this port, without an address vector. Returns the port of the
    /// evicted sender.
    fn receive(senders: &mut Senders, port: u16) -> Option<u16> {
        if let Some(&index) = senders.by_socket_addr.get(&socket_addr(port)) {
            senders.set_known(index);
            return None;
        }
        let is_full = senders.entries.len() >= MAX_SENDERS;
        let evicted = is_full.then(|| senders.evict().expect("a candidate"));
        if let Some(evicted) = &evicted {
            assert_eq!(senders.keys.index_of(evicted.peer_key), None);
        }
        senders.add(socket_addr(port), None, false);
        assert!(senders.entries.len() <= MAX_SENDERS);
        let queued = senders.new.len() + senders.known.len();
        assert_eq!(queued, senders.entries.len());
        evicted.map(|evicted| evicted.socket_addr.port())
    }

    #[test]
    fn new_senders_do_not_evict_senders_that_go_on_sending() {
        let mut senders = Senders::new();
        for port in 1..=10 {
            receive(&mut senders, port);
            receive(&mut senders, port);
        }
        let evicted: Vec<_> = (1000..21_000)
            .filter_map(|port| receive(&mut senders, port))
            .collect();
        assert_eq!(evicted[..3], [1000, 1001, 1002], "the oldest new ones");
        assert_eq!(evicted.len(), 20_000 + 10 - MAX_SENDERS);
        assert!(evicted.iter().all(|port| *port >= 1000));
    }

    /// Eviction lets the buffered messages of a sender be discarded.
    #[test]
    fn new_senders_do_not_evict_a_sender_that_is_inserted_after_its_datagram() {
        let mut senders = Senders::new();
        receive(&mut senders, 1);
        receive(&mut senders, 2);
        let name = Address::from_socket_addr(Scheme::Udp, socket_addr(1)).unwrap();
        let addr = AddressTable::new().insert(name);
        let key = senders.on_address_inserted(socket_addr(1), addr, true);
        assert_eq!(key, Some(PeerKey(1)));
        let key = senders.on_address_inserted(socket_addr(2), addr, false);
        assert_eq!(key, Some(PeerKey(2)));
        for port in 1000..4000 {
            receive(&mut senders, port);
        }
        assert!(senders.by_socket_addr.contains_key(&socket_addr(1)));
        assert!(!senders.by_socket_addr.contains_key(&socket_addr(2)));
    }

    #[test]
    fn idle_known_senders_make_room_for_active_ones() {
        let mut senders = Senders::new();
        receive(&mut senders, 1);
        for port in 1000..3000 {
            receive(&mut senders, port);
            receive(&mut senders, port);
            receive(&mut senders, 1);
        }
        assert!(senders.by_socket_addr.contains_key(&socket_addr(1)));
        assert!(senders.by_socket_addr.contains_key(&socket_addr(2999)));
        assert!(!senders.by_socket_addr.contains_key(&socket_addr(1000)));
        // New senders find room when all senders are known.
        assert_eq!(receive(&mut senders, 5000).map(|port| port > 1), Some(true));
        assert!(senders.by_socket_addr.contains_key(&socket_addr(5000)));
    }
}
