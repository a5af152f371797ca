//! Those whose datagrams have come, with their numbers.
//!
//! Nobody connects and nobody leaves, so a sender is met with its first datagram, and forgotten
//! when too many others have been met since its last one. A guest of a welcoming vector has its
//! number for so long.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use fabric_core::matching::PeerKey;
use fabric_core::provider::{EpId, Host, Incarnation};
use fabric_core::rx::RxContext;
use fabric_core::{Address, FiAddr, Scheme};
use slab::Slab;

/// Datagrams do not tell one sender at a socket from another.
const AT_ITS_SOCKET: Incarnation = Incarnation(0);
/// Senders that are known at a time.
const KNOWN: usize = 1024;

/// The senders of one endpoint.
#[derive(Debug)]
pub(super) struct Senders {
    ep: EpId,
    next_key: u32,
    known: Slab<Sender>,
    by_socket: HashMap<SocketAddr, usize>,
    /// Who is looked at next when one has to go.
    turns: VecDeque<usize>,
}

#[derive(Debug)]
struct Sender {
    at: SocketAddr,
    key: PeerKey,
    /// Its number now, and when it was met.
    source: Option<FiAddr>,
    number: Option<FiAddr>,
    /// Something has come since its last turn.
    active: bool,
}

impl Senders {
    pub(super) fn new(ep: EpId) -> Self {
        Self {
            ep,
            next_key: 0,
            known: Slab::new(),
            by_socket: HashMap::new(),
            turns: VecDeque::new(),
        }
    }

    /// Whose datagram this is.
    pub(super) fn of(
        &mut self,
        host: &mut dyn Host,
        rx: &mut RxContext,
        from: SocketAddr,
    ) -> (PeerKey, Option<FiAddr>) {
        let at = match self.by_socket.get(&from) {
            Some(at) => *at,
            None => self.meet(host, rx, from),
        };
        let sender = &mut self.known[at];
        sender.active = true;
        (sender.key, sender.source)
    }

    #[cold]
    fn meet(&mut self, host: &mut dyn Host, rx: &mut RxContext, from: SocketAddr) -> usize {
        if self.known.len() >= KNOWN {
            self.make_room(host, rx);
        }
        let address = Address::of_socket(Scheme::Udp, from).ok();
        let number =
            address.and_then(|address| host.peer_connected(self.ep, &address, Some(AT_ITS_SOCKET)));
        let key = PeerKey(self.next_key);
        self.next_key = self.next_key.wrapping_add(1);
        let at = self.known.insert(Sender {
            at: from,
            key,
            source: number,
            number,
            active: true,
        });
        self.by_socket.insert(from, at);
        self.turns.push_back(at);
        at
    }

    /// Forgets the one that has been silent for longest, or about so.
    fn make_room(&mut self, host: &mut dyn Host, rx: &mut RxContext) {
        while let Some(at) = self.turns.pop_front() {
            if std::mem::take(&mut self.known[at].active) {
                self.turns.push_back(at);
                continue;
            }
            let sender = self.known.remove(at);
            self.by_socket.remove(&sender.at);
            if let Ok(address) = Address::of_socket(Scheme::Udp, sender.at) {
                rx.depart(sender.key, address);
            }
            return host.peer_disconnected(self.ep, sender.number);
        }
    }

    /// An address has a number now: returns whose waiting messages are to get it.
    pub(super) fn inserted(&mut self, at: SocketAddr, addr: FiAddr) -> Option<PeerKey> {
        let sender = &mut self.known[*self.by_socket.get(&at)?];
        (sender.source.replace(addr) != Some(addr)).then_some(sender.key)
    }

    /// A number is no longer valid.
    pub(super) fn removed(&mut self, addr: FiAddr) {
        for (_, sender) in &mut self.known {
            sender.source = sender.source.filter(|source| *source != addr);
        }
    }

    /// The number of the sender with this key.
    pub(super) fn number(&self, key: PeerKey) -> Option<FiAddr> {
        self.known
            .iter()
            .find(|(_, sender)| sender.key == key)?
            .1
            .source
    }

    pub(super) fn close(self, host: &mut dyn Host) {
        for (_, sender) in &self.known {
            host.peer_disconnected(self.ep, sender.number);
        }
    }
}
