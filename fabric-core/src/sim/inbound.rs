//! The receiving half of an endpoint: peers are served round-robin. The endpoint holds the first
//! packet of a declined message; later packets of its sender wait in the network.

use std::collections::{BTreeMap, VecDeque};

use crate::address::{Address, FiAddr};
use crate::completion::Transfer;
use crate::error::Error;
use crate::event::{DownReason, EventKind};
use crate::matching::{Envelope, PeerKey};
use crate::transport::{EndpointContext, EngineContext, PartialId};

use super::net::{self, MessageHeader, NodeId, PacketPoll, SimPacket};

/// Maximum number of packets that an endpoint receives in one pass.
const MAX_PACKETS_PER_PASS: usize = 64;

/// Budget of an endpoint for unexpected messages, in bytes.
pub(super) const UNEXPECTED_BUDGET: usize = 4 << 20;

/// The receiving half of an endpoint.
#[derive(Debug)]
pub(super) struct Inbound {
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
    pub(super) fn new(node: NodeId) -> Self {
        Self {
            node,
            peers: BTreeMap::new(),
            next_key: 0,
            last_served: None,
        }
    }

    /// Receives the packets that are due, one of each peer in turn.
    pub(super) fn pass(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) -> PassResult {
        let drained = ctx.drain_unexpected();
        let arrivals = net::begin_pass(self.node);
        let mut pass = PassResult {
            moved: drained | !arrivals.connected.is_empty(),
            delayed: arrivals.delayed,
        };
        for (node, address) in arrivals.connected {
            self.peer_connected(ctx, node, address);
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
            match self.take_next(ctx, node) {
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
        self.send_acks(ctx);
        pass
    }

    /// Sends the acks that are due to senders.
    pub(super) fn send_acks(&self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        while let Some((key, id)) = ctx.pop_ack() {
            if let Some((&node, _)) = self.peers.iter().find(|(_, peer)| peer.key == key) {
                net::send_ack(self.node, node, id);
            }
        }
    }

    /// Returns whether a pass would accept a message that was declined before.
    pub(super) fn would_accept_declined(
        &self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> bool {
        let declined = |peer: &SimPeer| {
            let header = peer.declined.as_ref()?.header?;
            Some(peer.envelope(header))
        };
        {
            let mut declined = self.peers.values().filter_map(declined);
            declined.any(|envelope| ctx.would_accept(&envelope))
        }
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
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        addr: FiAddr,
        address: &Address,
    ) {
        let incarnation = ctx.incarnation_of(addr);
        for (_, peer) in self.peers.iter_mut().filter(|(node, peer)| {
            peer.address == *address
                && peer.source.is_none()
                && incarnation.is_none_or(|incarnation| incarnation == (**node).into())
        }) {
            peer.source = Some(addr);
            ctx.assign_source(peer.key, addr);
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

    pub(super) fn close(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        self.send_acks(ctx);
        for peer in self.peers.values() {
            ctx.peer_disconnected(peer.initial_addr);
        }
    }

    fn peer_connected(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        node: NodeId,
        address: Address,
    ) {
        let key = PeerKey(self.next_key);
        let key = ctx.add_sender(key, &address);
        self.next_key = self.next_key.saturating_add(1);
        let source = ctx.peer_connected(&address, Some(node.into()));
        ctx.event(EventKind::PeerConnected {
            peer: address.clone(),
            source,
        });
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
    fn take_next(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        node: NodeId,
    ) -> PacketStep {
        let declined = self
            .peers
            .get_mut(&node)
            .and_then(|peer| peer.declined.take());
        let packet =
            match declined.map_or_else(|| net::take_packet(self.node, node), PacketPoll::Packet) {
                PacketPoll::Packet(packet) => packet,
                PacketPoll::NotDue => return PacketStep::Idle,
                PacketPoll::Closed(address) => {
                    self.on_peer_closed(ctx, node, address);
                    return PacketStep::PeerClosed;
                }
            };
        let Some(peer) = self.peers.get_mut(&node) else {
            return PacketStep::Idle;
        };
        let declined = peer.accept(ctx, packet);
        if let Some(declined) = declined {
            peer.declined = Some(declined);
            return PacketStep::Idle;
        }
        net::release_packet(self.node, node);
        PacketStep::Moved
    }

    /// Handles a peer that has closed, after all its packets have been received. A message of which
    /// packets are missing fails.
    fn on_peer_closed(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        node: NodeId,
        address: Address,
    ) {
        let peer = self.peers.remove(&node);
        let source = peer.as_ref().and_then(|peer| peer.source);
        let source = source.or_else(|| ctx.fi_addr_of(&address));
        let gone = Error::PeerGone(address.clone());
        if let Some(partial) = peer.as_ref().and_then(|peer| peer.partial) {
            ctx.fail_partial(partial, gone.clone());
        }
        let down = EventKind::PeerDown {
            peer: address.clone(),
            source,
            reason: DownReason::Closed,
        };
        ctx.event(down);
        if let Some(peer) = &peer {
            ctx.sender_disconnected(peer.key, address.clone());
        }
        // A new endpoint at this address may have connected, with the same handle.
        let is_replaced = self
            .peers
            .values()
            .any(|other| other.address == address && other.source == source);
        if let Some(source) = source.filter(|_| !is_replaced) {
            ctx.fail_directed_to_disconnected(source, &address, &gone);
        }
        if let Some(initial_addr) = peer.map(|peer| peer.initial_addr) {
            ctx.peer_disconnected(initial_addr);
        }
    }
}

impl SimPeer {
    /// Accepts the packet, or returns it if it is declined.
    fn accept<E: EngineContext>(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        packet: SimPacket,
    ) -> Option<SimPacket> {
        if let Some(notice) = packet.rma_notice {
            let transfer = Transfer::written(notice.len, notice.data, self.source);
            return (!ctx.on_remote_access(notice.key, notice.access, transfer)).then_some(packet);
        }
        let bytes = &packet.bytes[..];
        let partial = match packet.header {
            Some(header) if bytes.len() == header.len => {
                let accepted = ctx.deliver(self.envelope(header), &bytes);
                return (!accepted).then_some(packet);
            }
            Some(header) => ctx.begin_partial(self.envelope(header)),
            None => self.partial.take(),
        };
        match partial {
            Some(id) => {
                self.partial = (!ctx.append(id, &bytes)).then_some(id);
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
