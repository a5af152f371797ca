//! The receiving half of an endpoint: peers are served round-robin. The endpoint holds the first
//! packet of a declined message; later packets of its sender wait in the network.

use std::collections::{BTreeMap, VecDeque};

use crate::address::{Address, FiAddr};
use crate::completion::Transfer;
use crate::error::Error;
use crate::event::{DownReason, EventKind};
use crate::matching::{Envelope, PeerKey};
use crate::transport::{EngineContext, EpId, PartialId, RxSink, RxStatus};

use super::net::{self, MessageHeader, NodeId, PacketPoll, SimPacket};

/// Maximum number of packets that an endpoint receives in one pass.
const MAX_PACKETS_PER_PASS: usize = 64;

/// Budget of an endpoint for unexpected messages, in bytes.
pub(super) const UNEXPECTED_BUDGET: usize = 4 << 20;

/// The receiving half of an endpoint.
#[derive(Debug)]
pub(super) struct Inbound {
    ep: EpId,
    node: NodeId,
    peers: BTreeMap<NodeId, SimPeer>,
    /// Key of the next peer that connects; no key is used twice.
    next_key: u32,
    /// The peer that was served last.
    last_served: Option<NodeId>,
}

/// A connected peer.
#[derive(Debug)]
struct SimPeer {
    key: PeerKey,
    address: Address,
    /// The current address handle of the peer.
    source: Option<FiAddr>,
    /// The handle that [`EngineContext::peer_connected`] returned.
    initial_addr: Option<FiAddr>,
    /// The message whose packets are arriving.
    partial: Option<PartialId>,
    /// The packet that was declined: the first of a message, or an RMA notice. Later packets of
    /// this peer wait in the network.
    declined: Option<SimPacket>,
}

/// Result of a pass.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PassResult {
    /// A message, packet or peer was handled.
    pub(super) moved: bool,
    /// A packet will become due in a later pass.
    pub(super) delayed: bool,
}

/// Result of handling the next packet of a peer.
enum PacketStep {
    /// A packet was accepted.
    Moved,
    /// No packet is due, or it was declined.
    Idle,
    /// The peer has closed.
    PeerClosed,
}

impl Inbound {
    pub(super) fn new(ep: EpId, node: NodeId) -> Self {
        Self {
            ep,
            node,
            peers: BTreeMap::new(),
            next_key: 0,
            last_served: None,
        }
    }

    /// Receives the packets that are due, one of each peer in turn.
    pub(super) fn pass(&mut self, engine: &mut impl EngineContext) -> PassResult {
        let drained = engine.with_rx(self.ep, |rx, engine| rx.drain_unexpected(engine));
        let arrivals = net::begin_pass(self.node);
        let mut pass = PassResult {
            moved: drained | !arrivals.connected.is_empty(),
            delayed: arrivals.delayed,
        };
        for (node, address) in arrivals.connected {
            self.peer_connected(engine, node, address);
        }
        // The pass starts after the peer that was served last. Peers with a declined message are
        // served too, so the peers share the budget for unexpected messages in turn.
        let mut ready = VecDeque::from(arrivals.ready);
        let turns_before = ready
            .iter()
            .take_while(|&&node| self.last_served.is_some_and(|last| node <= last))
            .count();
        ready.rotate_left(turns_before);
        let mut remaining = MAX_PACKETS_PER_PASS;
        while remaining > 0
            && let Some(node) = ready.pop_front()
        {
            match self.take_next(engine, node) {
                PacketStep::Moved => {
                    remaining -= 1;
                    self.last_served = Some(node);
                    ready.push_back(node);
                    pass.moved = true;
                }
                PacketStep::PeerClosed => pass.moved = true,
                PacketStep::Idle => {}
            }
        }
        self.send_acks(engine);
        pass
    }

    /// Sends the acks that are due to senders.
    pub(super) fn send_acks(&self, engine: &mut impl EngineContext) {
        engine.with_rx(self.ep, |rx, _| {
            while let Some((key, id)) = rx.pop_ack(self.ep) {
                if let Some((&node, _)) = self.peers.iter().find(|(_, peer)| peer.key == key) {
                    net::send_ack(self.node, node, id);
                }
            }
        });
    }

    /// Returns whether a pass would accept a message that was declined before.
    pub(super) fn would_accept_declined(&self, engine: &mut impl EngineContext) -> bool {
        let declined = |peer: &SimPeer| {
            let header = peer.declined.as_ref()?.header?;
            Some(peer.envelope(header))
        };
        engine.with_rx(self.ep, |rx, _| {
            let mut declined = self.peers.values().filter_map(declined);
            declined.any(|envelope| rx.would_accept(&envelope))
        })
    }

    pub(super) fn ep(&self) -> EpId {
        self.ep
    }

    pub(super) fn peer_count(&self) -> usize {
        self.peers.len()
    }

    /// Returns the current handle of a connected peer.
    pub(super) fn source_of(&self, peer: PeerKey) -> Option<FiAddr> {
        self.peers.values().find(|known| known.key == peer)?.source
    }

    /// Assigns an inserted handle to the peers with this address and to their messages.
    pub(super) fn address_inserted(
        &mut self,
        engine: &mut impl EngineContext,
        addr: FiAddr,
        address: &Address,
    ) {
        let incarnation = engine.incarnation_of(self.ep, addr);
        for (_, peer) in self.peers.iter_mut().filter(|(node, peer)| {
            peer.address == *address
                && peer.source.is_none()
                && incarnation.is_none_or(|incarnation| incarnation == (**node).into())
        }) {
            peer.source = Some(addr);
            engine.with_rx(self.ep, |rx, engine| {
                rx.assign_source(engine, peer.key, addr);
            });
        }
    }

    /// Removes a handle from the peer that has it.
    pub(super) fn address_removed(&mut self, addr: FiAddr) {
        for peer in self
            .peers
            .values_mut()
            .filter(|peer| peer.source == Some(addr))
        {
            peer.source = None;
        }
    }

    pub(super) fn close(&mut self, engine: &mut impl EngineContext) {
        self.send_acks(engine);
        for peer in self.peers.values() {
            engine.peer_disconnected(self.ep, peer.initial_addr);
        }
    }

    fn peer_connected(&mut self, engine: &mut impl EngineContext, node: NodeId, address: Address) {
        let (ep, key) = (self.ep, PeerKey(self.next_key));
        let key = engine.with_rx(ep, |rx, engine| {
            rx.peer_connected(engine, ep, key, &address)
        });
        self.next_key = self.next_key.saturating_add(1);
        let source = engine.peer_connected(self.ep, &address, Some(node.into()));
        engine.event(
            self.ep,
            EventKind::PeerConnected {
                peer: address.clone(),
                source,
            },
        );
        self.peers.insert(
            node,
            SimPeer {
                key,
                address,
                source,
                initial_addr: source,
                partial: None,
                declined: None,
            },
        );
    }

    /// Handles the next packet of a peer: the declined one, or the first one in the network.
    fn take_next(&mut self, engine: &mut impl EngineContext, node: NodeId) -> PacketStep {
        let declined = self
            .peers
            .get_mut(&node)
            .and_then(|peer| peer.declined.take());
        let packet =
            match declined.map_or_else(|| net::take_packet(self.node, node), PacketPoll::Packet) {
                PacketPoll::Packet(packet) => packet,
                PacketPoll::NotDue => return PacketStep::Idle,
                PacketPoll::Closed(address) => {
                    self.on_peer_closed(engine, node, address);
                    return PacketStep::PeerClosed;
                }
            };
        let (ep, Some(peer)) = (self.ep, self.peers.get_mut(&node)) else {
            return PacketStep::Idle;
        };
        let declined = engine.with_rx(ep, |rx, engine| peer.accept(engine, ep, rx, packet));
        if let Some(declined) = declined {
            peer.declined = Some(declined);
            return PacketStep::Idle;
        }
        net::release_packet(self.node, node);
        PacketStep::Moved
    }

    /// Handles a peer that has closed, after all its packets have been received. A message of which
    /// packets are missing fails.
    fn on_peer_closed(&mut self, engine: &mut impl EngineContext, node: NodeId, address: Address) {
        let peer = self.peers.remove(&node);
        let source = peer.as_ref().and_then(|peer| peer.source);
        let source = source.or_else(|| engine.fi_addr_of(self.ep, &address));
        let gone = Error::PeerGone(address.clone());
        if let Some(partial) = peer.as_ref().and_then(|peer| peer.partial) {
            engine.with_rx(self.ep, |rx, engine| {
                rx.fail_partial(engine, partial, gone.clone());
            });
        }
        let down = EventKind::PeerDown {
            peer: address.clone(),
            source,
            reason: DownReason::Closed,
        };
        engine.event(self.ep, down);
        if let Some(peer) = &peer {
            engine.with_rx(self.ep, |rx, _| {
                rx.peer_disconnected(peer.key, address.clone())
            });
        }
        // A new endpoint at this address may have connected, with the same handle.
        let is_replaced = self
            .peers
            .values()
            .any(|other| other.address == address && other.source == source);
        if let Some(source) = source.filter(|_| !is_replaced) {
            engine.with_rx(self.ep, |rx, engine| {
                rx.fail_directed_to_disconnected(engine, source, &address, &gone);
            });
        }
        if let Some(initial_addr) = peer.map(|peer| peer.initial_addr) {
            engine.peer_disconnected(self.ep, initial_addr);
        }
    }
}

impl SimPeer {
    /// Accepts the packet, or returns it if it is declined.
    fn accept<E: EngineContext>(
        &mut self,
        engine: &mut E,
        ep: EpId,
        rx: &mut E::Rx,
        packet: SimPacket,
    ) -> Option<SimPacket> {
        if let Some(notice) = packet.rma_notice {
            let transfer = Transfer::written(notice.len, notice.data, self.source);
            return (!engine.on_remote_access(ep, notice.key, notice.access, transfer))
                .then_some(packet);
        }
        let bytes = &packet.bytes[..];
        let partial = match packet.header {
            Some(header) if bytes.len() == header.len => {
                let accepted = rx.deliver(engine, self.envelope(header), &bytes);
                return (!accepted).then_some(packet);
            }
            Some(header) => rx.begin_partial(engine, self.envelope(header)),
            None => self.partial.take(),
        };
        match partial {
            Some(id) => {
                self.partial = (!rx.append(engine, id, &bytes)).then_some(id);
                None
            }
            // The queue declined the first packet of a message. A later packet without a partial
            // message belongs to a message that was dropped.
            None => packet.header.is_some().then_some(packet),
        }
    }

    /// Returns the envelope of a message of this peer.
    fn envelope(&self, header: MessageHeader) -> Envelope {
        Envelope {
            peer: self.key,
            source: self.source,
            tag: header.tag,
            len: header.len,
            data: header.data,
            // Assigned by the receive queue.
            arrival: 0,
            ack: header.ack,
        }
    }
}
