//! The receiving half of an endpoint: peers take turns, and who is declined waits where it is.

use std::collections::{BTreeMap, VecDeque};

use crate::address::{Address, FiAddr};
use crate::buf::PooledBuf;
use crate::completion::Transfer;
use crate::error::Error;
use crate::event::{DownReason, EventKind};
use crate::matching::{Envelope, PeerKey};
use crate::rx::{PartialId, RxBinding, RxQueue, RxSource};
use crate::transport::{EngineContext, EpId};

use super::net::{self, MessageHeader, NodeId, PacketPoll, SimPacket};

/// Packets an endpoint takes in one pass.
const MAX_PACKETS_PER_PASS: usize = 64;

/// Bytes of messages that no receive has taken yet.
pub(super) const UNEXPECTED_BUDGET: usize = 4 << 20;

/// What an endpoint receives, and from whom.
#[derive(Debug)]
pub(super) struct Inbound {
    ep: EpId,
    node: NodeId,
    pub(super) rx: RxBinding,
    peers: BTreeMap<NodeId, SimPeer>,
    /// Counts up; no key is used twice.
    next_key: u32,
    /// Who was served last.
    last_served: Option<NodeId>,
}

#[derive(Debug)]
struct SimPeer {
    key: PeerKey,
    address: Address,
    source: Option<FiAddr>,
    /// Its number when it connected.
    initial_addr: Option<FiAddr>,
    /// The message that is arriving in pieces.
    partial: Option<PartialId>,
    /// The first packet of a message that was declined. The rest of the pair waits behind it.
    declined: Option<SimPacket>,
}

/// What a pass came to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PassResult {
    pub(super) moved: bool,
    /// Something will come in later passes.
    pub(super) delayed: bool,
}

enum PacketStep {
    /// A packet was taken in.
    Moved,
    /// Nothing is due, or it was declined.
    Idle,
    /// The peer is gone.
    Departed,
}

impl Inbound {
    pub(super) fn new(ep: EpId, node: NodeId, receiving: RxSource<'_>) -> Self {
        Self {
            ep,
            node,
            rx: receiving.bind(ep, UNEXPECTED_BUDGET),
            peers: BTreeMap::new(),
            next_key: 0,
            last_served: None,
        }
    }

    /// Takes in what is due, one packet of each peer in turn.
    pub(super) fn pass(&mut self, host: &mut dyn EngineContext) -> PassResult {
        let served = self.rx.own.drain_unexpected(host);
        let arrivals = net::begin_pass(self.node);
        let mut pass = PassResult {
            moved: served | !arrivals.connected.is_empty(),
            delayed: arrivals.delayed,
        };
        for (node, address) in arrivals.connected {
            self.peer_connected(host, node, address);
        }
        // Whoever comes behind the last one served is first, also among those that were declined: a
        // scarce budget goes around as well.
        let mut turns = VecDeque::from(arrivals.ready);
        let behind = turns
            .iter()
            .take_while(|&&node| self.last_served.is_some_and(|last| node <= last))
            .count();
        turns.rotate_left(behind);
        let mut left = MAX_PACKETS_PER_PASS;
        while left > 0
            && let Some(node) = turns.pop_front()
        {
            match self.take_next(host, node) {
                PacketStep::Moved => {
                    left -= 1;
                    self.last_served = Some(node);
                    turns.push_back(node);
                    pass.moved = true;
                }
                PacketStep::Departed => pass.moved = true,
                PacketStep::Idle => {}
            }
        }
        self.send_acks();
        pass
    }

    /// Tells senders what they wait to hear of their messages.
    pub(super) fn send_acks(&mut self) {
        self.rx.collect_acks();
        while let Some((key, number)) = self.rx.own.pop_ack() {
            if let Some((&node, _)) = self.peers.iter().find(|(_, peer)| peer.key == key) {
                net::send_ack(self.node, node, number);
            }
        }
    }

    /// Whether a pass would take something that was declined before.
    pub(super) fn would_accept_declined(&self) -> bool {
        self.peers.values().any(|peer| {
            let head = peer.declined.as_ref().and_then(|packet| packet.header);
            head.is_some_and(|head| {
                self.rx
                    .with_queue_ref(|rx| rx.would_accept(&peer.envelope(head)))
            })
        })
    }

    pub(super) fn peers(&self) -> usize {
        self.peers.len()
    }

    /// A message that was received comes back. Its sender may have got a number meanwhile, or lost
    /// it.
    pub(super) fn requeue_message(
        &mut self,
        host: &mut dyn EngineContext,
        envelope: Envelope,
        bytes: PooledBuf,
    ) {
        let peer = self.peers.values().find(|peer| peer.key == envelope.peer);
        let source = peer.and_then(|peer| peer.source);
        self.rx.own.requeue_message(host, envelope, source, bytes);
    }

    pub(super) fn address_inserted(
        &mut self,
        host: &mut dyn EngineContext,
        addr: FiAddr,
        address: &Address,
    ) {
        let bound = host.incarnation_of(self.ep, addr);
        for (_, peer) in self.peers.iter_mut().filter(|(node, peer)| {
            peer.address == *address
                && peer.source.is_none()
                && bound.is_none_or(|bound| bound == (**node).into())
        }) {
            peer.source = Some(addr);
            self.rx.own.assign_source(host, peer.key, addr);
        }
        self.rx.own.address_inserted(host, addr, address);
    }

    pub(super) fn address_removed(&mut self, host: &mut dyn EngineContext, addr: FiAddr) {
        for peer in self
            .peers
            .values_mut()
            .filter(|peer| peer.source == Some(addr))
        {
            peer.source = None;
        }
        self.rx.own.clear_source(host, addr);
    }

    pub(super) fn close(mut self, host: &mut dyn EngineContext) {
        self.send_acks();
        self.rx.close(host);
        for peer in self.peers.values() {
            host.peer_disconnected(self.ep, peer.initial_addr);
        }
    }

    fn peer_connected(&mut self, host: &mut dyn EngineContext, node: NodeId, address: Address) {
        let key = self
            .rx
            .peer_connected(host, PeerKey(self.next_key), &address);
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
            SimPeer {
                key,
                address,
                source: number,
                initial_addr: number,
                partial: None,
                declined: None,
            },
        );
    }

    fn take_next(&mut self, host: &mut dyn EngineContext, node: NodeId) -> PacketStep {
        let held = self
            .peers
            .get_mut(&node)
            .and_then(|peer| peer.declined.take());
        let packet =
            match held.map_or_else(|| net::take_packet(self.node, node), PacketPoll::Packet) {
                PacketPoll::Packet(packet) => packet,
                PacketPoll::NotDue => return PacketStep::Idle,
                PacketPoll::Closed(address) => {
                    self.peer_departed(host, node, address);
                    return PacketStep::Departed;
                }
            };
        let (ep, Some(peer)) = (self.ep, self.peers.get_mut(&node)) else {
            return PacketStep::Idle;
        };
        if let Some(declined) = self.rx.with_queue(|rx| peer.accept(host, ep, rx, packet)) {
            peer.declined = Some(declined);
            return PacketStep::Idle;
        }
        net::release_packet(self.node, node);
        PacketStep::Moved
    }

    /// The peer is gone, and everything it sent was taken in.
    fn peer_departed(&mut self, host: &mut dyn EngineContext, node: NodeId, address: Address) {
        let peer = self.peers.remove(&node);
        let source = peer.as_ref().and_then(|peer| peer.source);
        let source = source.or_else(|| host.fi_addr_of(self.ep, &address));
        let gone = Error::PeerGone(address.clone());
        if let Some(landing) = peer.as_ref().and_then(|peer| peer.partial) {
            self.rx
                .with_queue(|rx| rx.fail_partial(host, landing, gone.clone()));
        }
        let down = EventKind::PeerDown {
            peer: address.clone(),
            source,
            reason: DownReason::Closed,
        };
        host.event(self.ep, down);
        if let Some(peer) = &peer {
            self.rx.peer_departed(peer.key, address.clone());
        }
        // Another peer that made contact under this name already may have the same handle.
        let replaced = self
            .peers
            .values()
            .any(|other| other.address == address && other.source == source);
        if let Some(source) = source.filter(|_| !replaced) {
            self.rx.fail_directed(host, source, &address, &gone);
        }
        if let Some(number) = peer.map(|peer| peer.initial_addr) {
            host.peer_disconnected(self.ep, number);
        }
    }
}

impl SimPeer {
    /// Takes the packet in, or gives it back.
    fn accept(
        &mut self,
        host: &mut dyn EngineContext,
        ep: EpId,
        rx: &mut RxQueue,
        packet: SimPacket,
    ) -> Option<SimPacket> {
        if let Some(notice) = packet.rma_notice {
            let transfer = Transfer::written(notice.len, notice.data, self.source);
            return (!host.on_remote_access(ep, notice.key, notice.access, transfer))
                .then_some(packet);
        }
        let bytes = &packet.bytes[..];
        let landing = match packet.header {
            Some(head) if bytes.len() == head.len => {
                let taken = rx.deliver(host, self.envelope(head), &bytes);
                return (!taken).then_some(packet);
            }
            Some(head) => rx.begin_partial(host, self.envelope(head)),
            None => self.partial.take(),
        };
        match landing {
            Some(id) => {
                self.partial = (!rx.append(host, id, &bytes)).then_some(id);
                None
            }
            // Only the first packet of a message is ever declined.
            None => packet.header.is_some().then_some(packet),
        }
    }

    fn envelope(&self, head: MessageHeader) -> Envelope {
        Envelope {
            peer: self.key,
            source: self.source,
            tag: head.tag,
            len: head.len,
            data: head.data,
            // Given by the receive context.
            arrival: 0,
            ack: head.ack,
        }
    }
}
