//! The network inside the process: which endpoints exist, and the packets in flight between them.
//!
//! # The lock
//!
//! One lock guards the whole network, and is held for short pushes and pops only. A domain enters
//! this module under the lock of its own engine, so the lock order is always engine, then network.
//! No call from here can go back into an engine: wait sets are woken after the lock is released
//! ([`with_network`]), and no function takes an engine context.
//!
//! # Sleeping
//!
//! A domain that is about to sleep arms its ports first and polls second; a sender changes the
//! network first and checks the armed flag second. Both happen under the lock, so one of the two
//! sees the other.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use crate::address::{Address, Scheme};
use crate::error::{Error, Result};
use crate::matching::AckRequest;
use crate::mr::Region;
use crate::transport::{Incarnation, RemoteAccess, WaitSet};

use super::config::{DelayRng, SimConfig, split_name};

/// The id of an endpoint in the network. Names are reused, node ids are not, so a node id
/// identifies one incarnation of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeId(u64);

impl From<NodeId> for Incarnation {
    fn from(node: NodeId) -> Self {
        Self(node.0.into())
    }
}

/// A packet: a part of a message, or an RMA notice.
#[derive(Debug)]
pub(super) struct SimPacket {
    /// Present in the first packet of a message.
    pub(super) header: Option<MessageHeader>,
    /// Present in a packet that is an RMA notice.
    pub(super) rma_notice: Option<RmaNotice>,
    /// Bytes of the message; empty in an RMA notice.
    pub(super) bytes: Vec<u8>,
}

/// Header of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageHeader {
    pub(super) tag: Option<u64>,
    pub(super) data: Option<u64>,
    /// Length of the whole message, in bytes.
    pub(super) len: usize,
    /// The ack that the sender requests.
    pub(super) ack: Option<AckRequest>,
}

/// Notice of an access to the receiver's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct RmaNotice {
    /// Key of the region.
    pub(super) key: u64,
    pub(super) access: RemoteAccess,
    /// Number of bytes accessed.
    pub(super) len: usize,
    /// CQ data of the operation.
    pub(super) data: Option<u64>,
}

/// The regions that peers of a domain may access, by key.
pub(super) type RegionMap = Arc<Mutex<BTreeMap<u64, Region>>>;

/// State of a receiver's channels at the start of a pass.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// Peers that connected since the last pass.
    pub(super) connected: Vec<(NodeId, Address)>,
    /// Peers with a packet that is due or held by the receiver, and peers that have closed.
    pub(super) ready: Vec<NodeId>,
    /// A packet will become due in a later pass.
    pub(super) delayed: bool,
}

/// Outcome of an attempt to take a packet.
#[derive(Debug)]
pub(super) enum PacketPoll {
    /// The packet. It counts against the capacity of the channel until [`release_packet`].
    Packet(SimPacket),
    /// No packet is due.
    NotDue,
    /// The sender has closed and all its packets were taken. Returned once.
    Closed(Address),
}

/// The state of the network.
struct SimNetwork {
    ports: BTreeMap<NodeId, SimPort>,
    names: BTreeMap<Address, NodeId>,
    /// Id of the endpoint that was opened last.
    last_node: u64,
}

/// The network's state of an open endpoint.
struct SimPort {
    address: Address,
    config: SimConfig,
    wait: Arc<dyn WaitSet>,
    regions: RegionMap,
    /// The endpoint wants an event for every access to its memory.
    rma_events: bool,
    /// Changes wake the wait set.
    armed: bool,
    /// Number of passes made, in which delays are counted.
    passes: u64,
    /// Channels to this endpoint, by sender.
    channels: BTreeMap<NodeId, Channel>,
    /// Acks for messages of this endpoint: the receiver, and the id of the ack.
    acks: Vec<(NodeId, u32)>,
}

/// The packets from one sender to one receiver.
struct Channel {
    from: Address,
    /// The packets, each with the number of the pass after which the packet is due.
    packets: VecDeque<(u64, SimPacket)>,
    delays: DelayRng,
    /// The receiver has taken a packet and not released it yet.
    taken: bool,
    /// The receiver has not noticed the sender yet.
    is_new: bool,
    /// The sender has more packets and waits for room.
    sender_waiting: bool,
    /// The sender has closed.
    closed: bool,
}

/// Wait sets to wake after the lock is released.
type WakeList = Vec<Arc<dyn WaitSet>>;

static NETWORK: Mutex<SimNetwork> = Mutex::new(SimNetwork {
    ports: BTreeMap::new(),
    names: BTreeMap::new(),
    last_node: 0,
});

/// Calls `call` with the locked network, and wakes the wait sets that `call` has listed after the
/// lock is released.
fn with_network<T>(call: impl FnOnce(&mut SimNetwork, &mut WakeList) -> T) -> T {
    let mut wake_list = WakeList::new();
    // No call leaves the network in an inconsistent state, so a poisoned lock can be used.
    let result = call(
        &mut NETWORK.lock().unwrap_or_else(PoisonError::into_inner),
        &mut wake_list,
    );
    for wait in wake_list {
        wait.wake();
    }
    result
}

/// Opens an endpoint with this name, or with a generated one.
pub(super) fn open(
    at: Option<&Address>,
    wait: Arc<dyn WaitSet>,
    (regions, rma_events): (RegionMap, bool),
) -> Result<(NodeId, Address)> {
    let config = at.map_or(Ok(SimConfig::default()), SimConfig::from_address)?;
    with_network(|net, _| {
        net.last_node += 1;
        let node = NodeId(net.last_node);
        let address = match at {
            Some(address) if !has_empty_label(address.name()) => address.clone(),
            _ => net.generate_name(at)?,
        };
        if net.names.contains_key(&address) {
            return Err(Error::AddressInUse(address));
        }
        let port = SimPort {
            address: address.clone(),
            config,
            wait,
            regions,
            rma_events,
            armed: false,
            passes: 0,
            channels: BTreeMap::new(),
            acks: Vec::new(),
        };
        net.names.insert(address.clone(), node);
        net.ports.insert(node, port);
        Ok((node, address))
    })
}

/// Closes an endpoint: frees its name and notifies its peers.
pub(super) fn close(node: NodeId) {
    let port = with_network(|net, wake_list| {
        let port = net.ports.remove(&node)?;
        net.names.remove(&port.address);
        for (other, other_port) in &mut net.ports {
            // A peer that has only sent to this endpoint has no channel from it. The peer gets one,
            // through which it is notified.
            if port.channels.contains_key(other) {
                other_port.channel(node, &port.address, false);
            }
            if let Some(channel) = other_port.channels.get_mut(&node) {
                channel.closed = true;
                other_port.wake(wake_list);
            }
        }
        Some(port)
    });
    // Packets that were not received are freed here, without the lock.
    drop(port);
}

/// Returns the endpoint with this name.
pub(super) fn lookup(address: &Address) -> Result<NodeId> {
    address.check_scheme(Scheme::Sim)?;
    let node = with_network(|net, _| net.names.get(address).copied());
    node.ok_or_else(|| Error::NoSuchPeer(address.clone()))
}

/// Returns the region with this key in the peer's domain, and whether the peer wants an event for
/// every access; `None` when the peer has closed.
pub(super) fn region(to: NodeId, key: u64) -> Option<(Option<Region>, bool)> {
    let (regions, rma_events) = with_network(|net, _| {
        net.ports
            .get(&to)
            .map(|port| (port.regions.clone(), port.rma_events))
    })?;
    let region = regions
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get(&key)
        .cloned();
    Some((region, rma_events))
}

/// Connects without sending a packet; returns false when the peer has closed.
pub(super) fn connect(from: NodeId, to: NodeId) -> bool {
    let connect = |port: &mut SimPort, sender: &Address| {
        let known = port.channels.contains_key(&from);
        port.channel(from, sender, true);
        !known
    };
    with_network(|net, wake_list| net.with_receiver(from, to, connect, wake_list))
}

/// Returns the number of packets for which there is room; `None` when the peer has closed. If
/// `waits`, the sender is woken, if armed, when there is more room.
pub(super) fn available(from: NodeId, to: NodeId, waits: bool) -> Option<usize> {
    with_network(|net, _| {
        let port = net.ports.get_mut(&to)?;
        let capacity = port.config.channel_capacity;
        let Some(channel) = port.channels.get_mut(&from) else {
            return Some(capacity);
        };
        channel.sender_waiting |= waits;
        Some(capacity.saturating_sub(channel.packets.len() + usize::from(channel.taken)))
    })
}

/// Sends packets for which the sender has seen room. If `more`, the sender has more packets and
/// waits for room. Returns false when the peer has closed.
pub(super) fn push_packets(from: NodeId, to: NodeId, packets: Vec<SimPacket>, more: bool) -> bool {
    with_network(|net, wake_list| {
        let push = |port: &mut SimPort, sender: &Address| {
            let (passes, max_delay) = (port.passes, port.config.max_delay);
            let channel = port.channel(from, sender, true);
            channel.sender_waiting = more;
            for packet in packets {
                let due = passes + channel.delays.next_delay(max_delay);
                channel.packets.push_back((due, packet));
            }
            true
        };
        net.with_receiver(from, to, push, wake_list)
    })
}

/// Notes that the sender no longer waits for room.
pub(super) fn stop_waiting(from: NodeId, to: NodeId) {
    with_network(|net, _| {
        if let Some(channel) = net
            .ports
            .get_mut(&to)
            .and_then(|port| port.channels.get_mut(&from))
        {
            channel.sender_waiting = false;
        }
    });
}

/// Begins a pass of this receiver.
pub(super) fn begin_pass(me: NodeId) -> Arrivals {
    with_network(|net, _| {
        let mut arrivals = Arrivals::default();
        let Some(port) = net.ports.get_mut(&me) else {
            return arrivals;
        };
        port.passes += 1;
        for (&node, channel) in &mut port.channels {
            if std::mem::take(&mut channel.is_new) {
                arrivals.connected.push((node, channel.from.clone()));
            }
            match channel.packets.front() {
                _ if channel.taken => arrivals.ready.push(node),
                Some((due, _)) if *due < port.passes => arrivals.ready.push(node),
                Some(_) => arrivals.delayed = true,
                None if channel.closed => arrivals.ready.push(node),
                None => {}
            }
        }
        arrivals
    })
}

/// Takes the first packet of this sender, if it is due.
pub(super) fn take_packet(me: NodeId, from: NodeId) -> PacketPoll {
    with_network(|net, _| {
        let Some(port) = net.ports.get_mut(&me) else {
            return PacketPoll::NotDue;
        };
        let Some(channel) = port.channels.get_mut(&from) else {
            return PacketPoll::NotDue;
        };
        match channel.packets.front() {
            _ if channel.taken => PacketPoll::NotDue,
            Some((due, _)) if *due >= port.passes => PacketPoll::NotDue,
            None if !channel.closed => PacketPoll::NotDue,
            _ => match channel.packets.pop_front() {
                Some((_, packet)) => {
                    channel.taken = true;
                    PacketPoll::Packet(packet)
                }
                None => {
                    let address = channel.from.clone();
                    port.channels.remove(&from);
                    PacketPoll::Closed(address)
                }
            },
        }
    })
}

/// Releases the packet that was taken last, which makes room for another.
pub(super) fn release_packet(me: NodeId, from: NodeId) {
    with_network(|net, wake_list| {
        let Some(channel) = net
            .ports
            .get_mut(&me)
            .and_then(|port| port.channels.get_mut(&from))
        else {
            return;
        };
        channel.taken = false;
        if channel.sender_waiting
            && let Some(sender) = net.ports.get(&from)
        {
            sender.wake(wake_list);
        }
    });
}

/// Sends an ack to the sender of a message.
pub(super) fn send_ack(me: NodeId, to: NodeId, id: u32) {
    with_network(|net, wake_list| {
        if let Some(port) = net.ports.get_mut(&to) {
            port.acks.push((me, id));
            port.wake(wake_list);
        }
    });
}

/// Takes the acks that have arrived since the last call.
pub(super) fn take_acks(me: NodeId) -> Vec<(NodeId, u32)> {
    with_network(|net, _| {
        net.ports
            .get_mut(&me)
            .map(|port| std::mem::take(&mut port.acks))
            .unwrap_or_default()
    })
}

/// Returns whether acks have arrived, or one of these endpoints has closed.
pub(super) fn has_acks(me: NodeId, mut from: impl Iterator<Item = NodeId>) -> bool {
    let has_arrived =
        |net: &SimNetwork| net.ports.get(&me).is_some_and(|port| !port.acks.is_empty());
    with_network(|net, _| has_arrived(net) || from.any(|node| !net.ports.contains_key(&node)))
}

/// Returns whether this endpoint is open.
pub(super) fn is_open(node: NodeId) -> bool {
    with_network(|net, _| net.ports.contains_key(&node))
}

/// Wakes all domains that sleep.
pub(super) fn wake_all() {
    with_network(|net, wake_list| net.ports.values().for_each(|port| port.wake(wake_list)));
}

/// Arms or disarms the wait set of this endpoint.
pub(super) fn arm(node: NodeId, armed: bool) {
    with_network(|net, _| {
        if let Some(port) = net.ports.get_mut(&node) {
            port.armed = armed;
        }
    });
}

/// Returns whether a pass of this receiver, now or later, has a new peer, a packet or a closed peer
/// to handle. Packets count whether or not they are due; a taken packet does not count.
pub(super) fn has_pending(me: NodeId) -> bool {
    let is_pending = |channel: &Channel| {
        channel.is_new || (!channel.taken && (channel.closed || !channel.packets.is_empty()))
    };
    with_network(|net, _| {
        net.ports
            .get(&me)
            .is_some_and(|port| port.channels.values().any(is_pending))
    })
}

impl SimNetwork {
    /// Calls `act` on the port of the receiver with the address of the sender, and wakes the
    /// receiver if `act` returns true. Returns false when the receiver has closed.
    fn with_receiver(
        &mut self,
        from: NodeId,
        to: NodeId,
        act: impl FnOnce(&mut SimPort, &Address) -> bool,
        wake_list: &mut WakeList,
    ) -> bool {
        let Some(sender) = self.ports.get(&from).map(|port| port.address.clone()) else {
            return false;
        };
        let Some(port) = self.ports.get_mut(&to) else {
            return false;
        };
        if act(port, &sender) {
            port.wake(wake_list);
        }
        true
    }

    /// Returns an unused name with the parameters of `at`.
    fn generate_name(&self, at: Option<&Address>) -> Result<Address> {
        let numbers = at
            .and_then(|address| split_name(address.name()))
            .map(|(_, numbers)| numbers);
        let mut label = self.last_node;
        loop {
            let name = match numbers {
                Some(numbers) => format!("sim-{label}@{numbers}"),
                None => format!("sim-{label}"),
            };
            let address = Address::new(Scheme::Sim, &name)?;
            if !self.names.contains_key(&address) {
                return Ok(address);
            }
            label += 1;
        }
    }
}

impl SimPort {
    /// Returns the channel from this sender, which is created if there is none. If `is_new`, a
    /// created channel reports the sender as connected.
    fn channel(&mut self, node: NodeId, from: &Address, is_new: bool) -> &mut Channel {
        let seed = self.config.seed;
        self.channels.entry(node).or_insert_with(|| Channel {
            from: from.clone(),
            packets: VecDeque::new(),
            delays: DelayRng::new(seed, from),
            taken: false,
            is_new,
            sender_waiting: false,
            closed: false,
        })
    }

    /// Adds the wait set to the list if the endpoint is armed.
    fn wake(&self, wake_list: &mut WakeList) {
        if self.armed {
            wake_list.push(self.wait.clone());
        }
    }
}

/// Returns whether the name leaves its label to the network.
fn has_empty_label(name: &str) -> bool {
    split_name(name).map_or(name, |(label, _)| label).is_empty()
}
