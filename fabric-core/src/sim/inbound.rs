//! The receiving half of an endpoint: peers take turns, and who is declined waits where it is.

use std::collections::{BTreeMap, VecDeque};

use crate::address::{Address, FiAddr};
use crate::buf::PooledBuf;
use crate::completion::Transfer;
use crate::error::Error;
use crate::event::{DownReason, EventKind};
use crate::matching::{Envelope, PeerKey};
use crate::provider::{EpId, Host};
use crate::rx::{LandingId, ReceiveSide, Receiving, RxContext};

use super::net::{self, Head, Node, Packet, Taken};

/// Packets an endpoint takes in one pass.
const PER_PASS: usize = 64;

/// Bytes of messages that no receive has taken yet.
pub(super) const BUDGET: usize = 4 << 20;

/// What an endpoint receives, and from whom.
#[derive(Debug)]
pub(super) struct Inbound {
    ep: EpId,
    node: Node,
    pub(super) rx: ReceiveSide,
    peers: BTreeMap<Node, Peer>,
    /// Counts up; no key is used twice.
    next_key: u32,
    /// Who was served last.
    last: Option<Node>,
}

#[derive(Debug)]
struct Peer {
    key: PeerKey,
    address: Address,
    source: Option<FiAddr>,
    /// Its number when it connected.
    number: Option<FiAddr>,
    /// The message that is arriving in pieces.
    landing: Option<LandingId>,
    /// The first packet of a message that was declined. The rest of the pair waits behind it.
    held: Option<Packet>,
}

/// What a pass came to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pass {
    pub(super) moved: bool,
    /// Something will come in later passes.
    pub(super) delayed: bool,
}

enum Step {
    /// A packet was taken in.
    Moved,
    /// Nothing is due, or it was declined.
    Idle,
    /// The peer is gone.
    Departed,
}

impl Inbound {
    pub(super) fn new(ep: EpId, node: Node, receiving: Receiving<'_>) -> Self {
        Self {
            ep,
            node,
            rx: receiving.side(ep, BUDGET),
            peers: BTreeMap::new(),
            next_key: 0,
            last: None,
        }
    }

    /// Takes in what is due, one packet of each peer in turn.
    pub(super) fn pass(&mut self, host: &mut dyn Host) -> Pass {
        let served = self.rx.own.serve(host);
        let arrivals = net::begin(self.node);
        let mut pass = Pass {
            moved: served | !arrivals.contacts.is_empty(),
            delayed: arrivals.delayed,
        };
        for (node, address) in arrivals.contacts {
            self.welcome(host, node, address);
        }
        // Whoever comes behind the last one served is first, also among those that were declined: a
        // scarce budget goes around as well.
        let mut turns = VecDeque::from(arrivals.ready);
        let behind = turns
            .iter()
            .take_while(|&&node| self.last.is_some_and(|last| node <= last))
            .count();
        turns.rotate_left(behind);
        let mut left = PER_PASS;
        while left > 0
            && let Some(node) = turns.pop_front()
        {
            match self.step(host, node) {
                Step::Moved => {
                    left -= 1;
                    self.last = Some(node);
                    turns.push_back(node);
                    pass.moved = true;
                }
                Step::Departed => pass.moved = true,
                Step::Idle => {}
            }
        }
        self.confirm();
        pass
    }

    /// Tells senders what they wait to hear of their messages.
    pub(super) fn confirm(&mut self) {
        self.rx.gather();
        while let Some((key, number)) = self.rx.own.next_receipt() {
            if let Some((&node, _)) = self.peers.iter().find(|(_, peer)| peer.key == key) {
                net::confirm(self.node, node, number);
            }
        }
    }

    /// Whether a pass would take something that was declined before.
    pub(super) fn wants_held(&self) -> bool {
        self.peers.values().any(|peer| {
            let head = peer.held.as_ref().and_then(|packet| packet.head);
            head.is_some_and(|head| self.rx.view(|rx| rx.would_take(&peer.envelope(head))))
        })
    }

    pub(super) fn peers(&self) -> usize {
        self.peers.len()
    }

    /// A message that was received comes back. Its sender may have got a number meanwhile, or lost
    /// it.
    pub(super) fn put_back(&mut self, host: &mut dyn Host, envelope: Envelope, bytes: PooledBuf) {
        let peer = self.peers.values().find(|peer| peer.key == envelope.peer);
        let source = peer.and_then(|peer| peer.source);
        self.rx.own.put_back(host, envelope, source, bytes);
    }

    pub(super) fn inserted(&mut self, host: &mut dyn Host, addr: FiAddr, address: &Address) {
        let bound = host.incarnation_of(self.ep, addr);
        for (_, peer) in self.peers.iter_mut().filter(|(node, peer)| {
            peer.address == *address
                && peer.source.is_none()
                && bound.is_none_or(|bound| bound == (**node).into())
        }) {
            peer.source = Some(addr);
            self.rx.own.resolve(host, peer.key, addr);
        }
        self.rx.own.inserted(host, addr, address);
    }

    pub(super) fn removed(&mut self, host: &mut dyn Host, addr: FiAddr) {
        for peer in self
            .peers
            .values_mut()
            .filter(|peer| peer.source == Some(addr))
        {
            peer.source = None;
        }
        self.rx.own.forget(host, addr);
    }

    pub(super) fn close(mut self, host: &mut dyn Host) {
        self.confirm();
        self.rx.close(host);
        for peer in self.peers.values() {
            host.peer_disconnected(self.ep, peer.number);
        }
    }

    fn welcome(&mut self, host: &mut dyn Host, node: Node, address: Address) {
        let key = self.rx.joined(host, PeerKey(self.next_key), &address);
        self.next_key = self.next_key.saturating_add(1);
        let number = host.peer_connected(self.ep, &address, Some(node.into()));
        host.event(
            self.ep,
            EventKind::PeerConnected {
                peer: address.clone(),
                source: number,
            },
        );
        self.peers.insert(
            node,
            Peer {
                key,
                address,
                source: number,
                number,
                landing: None,
                held: None,
            },
        );
    }

    fn step(&mut self, host: &mut dyn Host, node: Node) -> Step {
        let held = self.peers.get_mut(&node).and_then(|peer| peer.held.take());
        let packet = match held.map_or_else(|| net::take(self.node, node), Taken::Packet) {
            Taken::Packet(packet) => packet,
            Taken::Nothing => return Step::Idle,
            Taken::Closed(address) => {
                self.depart(host, node, address);
                return Step::Departed;
            }
        };
        let (ep, Some(peer)) = (self.ep, self.peers.get_mut(&node)) else {
            return Step::Idle;
        };
        if let Some(declined) = self.rx.with(|rx| peer.accept(host, ep, rx, packet)) {
            peer.held = Some(declined);
            return Step::Idle;
        }
        net::release(self.node, node);
        Step::Moved
    }

    /// The peer is gone, and everything it sent was taken in.
    fn depart(&mut self, host: &mut dyn Host, node: Node, address: Address) {
        let peer = self.peers.remove(&node);
        let source = peer.as_ref().and_then(|peer| peer.source);
        let source = source.or_else(|| host.number_of(self.ep, &address));
        let gone = Error::PeerGone(address.clone());
        if let Some(landing) = peer.as_ref().and_then(|peer| peer.landing) {
            self.rx.with(|rx| rx.fail(host, landing, gone.clone()));
        }
        let down = EventKind::PeerDown {
            peer: address.clone(),
            source,
            reason: DownReason::Closed,
        };
        host.event(self.ep, down);
        if let Some(peer) = &peer {
            self.rx.departed(peer.key, address.clone());
        }
        // Another peer that made contact under this name already may have the same handle.
        let replaced = self
            .peers
            .values()
            .any(|other| other.address == address && other.source == source);
        if let Some(source) = source.filter(|_| !replaced) {
            self.rx.fail_directed(host, source, &address, &gone);
        }
        if let Some(number) = peer.map(|peer| peer.number) {
            host.peer_disconnected(self.ep, number);
        }
    }
}

impl Peer {
    /// Takes the packet in, or gives it back.
    fn accept(
        &mut self,
        host: &mut dyn Host,
        ep: EpId,
        rx: &mut RxContext,
        packet: Packet,
    ) -> Option<Packet> {
        if let Some(notice) = packet.notice {
            let transfer = Transfer::written(notice.len, notice.data, self.source);
            return (!host.done_to_us(ep, notice.key, notice.deed, transfer)).then_some(packet);
        }
        let bytes = &packet.bytes[..];
        let landing = match packet.head {
            Some(head) if bytes.len() == head.len => {
                let taken = rx.deliver(host, self.envelope(head), &bytes);
                return (!taken).then_some(packet);
            }
            Some(head) => rx.begin(host, self.envelope(head)),
            None => self.landing.take(),
        };
        match landing {
            Some(id) => {
                self.landing = (!rx.land(host, id, &bytes)).then_some(id);
                None
            }
            // Only the first packet of a message is ever declined.
            None => packet.head.is_some().then_some(packet),
        }
    }

    fn envelope(&self, head: Head) -> Envelope {
        Envelope {
            peer: self.key,
            source: self.source,
            tag: head.tag,
            len: head.len,
            data: head.data,
            // Given by the receive context.
            arrival: 0,
            receipt: head.receipt,
        }
    }
}
