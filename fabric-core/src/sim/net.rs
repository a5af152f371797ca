//! The network inside the process: which endpoints exist, and the packets on their way between
//! them.
//!
//! # The lock
//!
//! One lock guards all of it, and is held for short pushes and pops only. A domain comes here under
//! the lock of its own engine, so the order is always engine, then network. Nothing is called from
//! here that could go back: wait sets are kicked when the lock is gone ([`locked`]), and no call
//! takes a host.
//!
//! # Sleeping
//!
//! A domain that is going to sleep marks its ports as armed first and looks second; whoever brings
//! news changes the network first and reads the mark second. Both happen under the lock, so one of
//! the two sees the other.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use crate::address::{Address, Scheme};
use crate::error::{Error, Result};
use crate::matching::AckRequest;
use crate::mr::Region;
use crate::transport::{Incarnation, RemoteAccess, WaitSet};

use super::config::{DelayRng, SimConfig, check_scheme, split_name};

/// One life of an endpoint. Names are used again, nodes are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeId(u64);

impl From<NodeId> for Incarnation {
    fn from(node: NodeId) -> Self {
        Self(node.0.into())
    }
}

/// What travels.
#[derive(Debug)]
pub(super) struct SimPacket {
    /// With the first packet of a message.
    pub(super) header: Option<MessageHeader>,
    /// No message: something was done to the receiver's memory.
    pub(super) rma_notice: Option<RmaNotice>,
    pub(super) bytes: Vec<u8>,
}

/// What a message shows before its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageHeader {
    pub(super) tag: Option<u64>,
    pub(super) data: Option<u64>,
    /// Length of the whole message.
    pub(super) len: usize,
    /// What the sender waits for.
    pub(super) ack: Option<AckRequest>,
}

/// Something that was done to the receiver's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct RmaNotice {
    pub(super) key: u64,
    pub(super) access: RemoteAccess,
    pub(super) len: usize,
    pub(super) data: Option<u64>,
}

/// The memory that peers of a domain reach, by key.
pub(super) type RegionMap = Arc<Mutex<BTreeMap<u64, Region>>>;

/// What a receiver finds at the start of a pass.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// Peers that made contact since the last pass.
    pub(super) connected: Vec<(NodeId, Address)>,
    /// Peers with something to take.
    pub(super) ready: Vec<NodeId>,
    /// Some packet waits for later passes.
    pub(super) delayed: bool,
}

/// What became of an attempt to take a packet.
#[derive(Debug)]
pub(super) enum PacketPoll {
    /// The receiver has it. Its place stays taken until [`release`].
    Packet(SimPacket),
    /// Nothing is due.
    NotDue,
    /// The sender is gone and everything it sent was taken. This is said once.
    Closed(Address),
}

struct SimNetwork {
    ports: BTreeMap<NodeId, SimPort>,
    names: BTreeMap<Address, NodeId>,
    next_node: u64,
}

struct SimPort {
    address: Address,
    config: SimConfig,
    wait: Arc<dyn WaitSet>,
    regions: RegionMap,
    /// Wants to hear of everything done to its memory.
    rma_events: bool,
    armed: bool,
    /// Passes made; the clock of the delays.
    passes: u64,
    /// By sender.
    channels: BTreeMap<NodeId, Channel>,
    /// What receivers have said of messages from here: which receiver, and the number of the
    /// receipt.
    acks: Vec<(NodeId, u32)>,
}

/// Everything from one sender to one receiver.
struct Channel {
    from: Address,
    /// Each with the pass after which it may be taken.
    packets: VecDeque<(u64, SimPacket)>,
    delays: DelayRng,
    /// The receiver holds the first packet and has not taken it in yet.
    taken: bool,
    /// The receiver has not noticed the sender yet.
    is_new: bool,
    /// The sender has more and waits for room.
    sender_waiting: bool,
    /// The sender is gone.
    closed: bool,
}

/// Wait sets to kick when the lock is gone.
type WakeList = Vec<Arc<dyn WaitSet>>;

static NETWORK: Mutex<SimNetwork> = Mutex::new(SimNetwork {
    ports: BTreeMap::new(),
    names: BTreeMap::new(),
    next_node: 0,
});

fn with_network<T>(call: impl FnOnce(&mut SimNetwork, &mut WakeList) -> T) -> T {
    let mut bells = WakeList::new();
    // No call leaves the network half changed, so a panic elsewhere under the lock does not spoil
    // it.
    let result = call(
        &mut NETWORK.lock().unwrap_or_else(PoisonError::into_inner),
        &mut bells,
    );
    for bell in bells {
        bell.wake();
    }
    result
}

/// Opens an endpoint: at this name, or at a fresh one.
pub(super) fn open(
    at: Option<&Address>,
    (wait, armed): (Arc<dyn WaitSet>, bool),
    (regions, heeds): (RegionMap, bool),
) -> Result<(NodeId, Address)> {
    let config = at.map_or(Ok(SimConfig::default()), SimConfig::from_address)?;
    with_network(|net, _| {
        net.next_node += 1;
        let node = NodeId(net.next_node);
        let address = match at {
            Some(address) if !has_empty_label(address.name()) => address.clone(),
            _ => net.fresh_name(at)?,
        };
        if net.names.contains_key(&address) {
            return Err(Error::AddressInUse(address));
        }
        let port = SimPort {
            address: address.clone(),
            config,
            wait,
            regions,
            rma_events: heeds,
            armed,
            passes: 0,
            channels: BTreeMap::new(),
            acks: Vec::new(),
        };
        net.names.insert(address.clone(), node);
        net.ports.insert(node, port);
        Ok((node, address))
    })
}

/// Closes an endpoint: its name is free, and whoever had to do with it is told.
pub(super) fn close(node: NodeId) {
    let port = with_network(|net, bells| {
        let port = net.ports.remove(&node)?;
        net.names.remove(&port.address);
        for (other, theirs) in &mut net.ports {
            // Who only sent to it has no lane from it yet, and hears of its end by one.
            if port.channels.contains_key(other) {
                theirs.channel(node, &port.address, false);
            }
            if let Some(lane) = theirs.channels.get_mut(&node) {
                lane.closed = true;
                theirs.wake(bells);
            }
        }
        Some(port)
    });
    // What it had not received is freed here, without the lock.
    drop(port);
}

/// The endpoint of this name.
pub(super) fn lookup(address: &Address) -> Result<NodeId> {
    check_scheme(address)?;
    let node = with_network(|net, _| net.names.get(address).copied());
    node.ok_or_else(|| Error::NoSuchPeer(address.clone()))
}

/// What a key of the peer's domain stands for, and whether the peer wants to hear of what is done
/// there; `None` when the peer is gone.
pub(super) fn region(to: NodeId, key: u64) -> Option<(Option<Region>, bool)> {
    let (regions, heeds) = with_network(|net, _| {
        net.ports
            .get(&to)
            .map(|port| (port.regions.clone(), port.rma_events))
    })?;
    let region = regions
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get(&key)
        .cloned();
    Some((region, heeds))
}

/// Makes contact without sending anything; false when the peer is gone.
pub(super) fn connect(from: NodeId, to: NodeId) -> bool {
    let contact = |port: &mut SimPort, sender: &Address| {
        let known = port.channels.contains_key(&from);
        port.channel(from, sender, true);
        !known
    };
    with_network(|net, bells| net.with_receiver(from, to, contact, bells))
}

/// How many packets there is room for; `None` when the peer is gone. With `wanted` the sender is
/// kicked, if armed, when there is more.
pub(super) fn available(from: NodeId, to: NodeId, wanted: bool) -> Option<usize> {
    with_network(|net, _| {
        let port = net.ports.get_mut(&to)?;
        let capacity = port.config.pair_capacity;
        let Some(lane) = port.channels.get_mut(&from) else {
            return Some(capacity);
        };
        lane.sender_waiting |= wanted;
        Some(capacity.saturating_sub(lane.packets.len() + usize::from(lane.taken)))
    })
}

/// Sends packets for which there is room: nobody but the sender takes it. `more`: there is more to
/// come, and the sender waits for room. False when the peer is gone.
pub(super) fn push_packets(from: NodeId, to: NodeId, packets: Vec<SimPacket>, more: bool) -> bool {
    with_network(|net, bells| {
        let push = |port: &mut SimPort, sender: &Address| {
            let (passes, longest) = (port.passes, port.config.max_delay);
            let lane = port.channel(from, sender, true);
            lane.sender_waiting = more;
            for packet in packets {
                let due = passes + lane.delays.next_delay(longest);
                lane.packets.push_back((due, packet));
            }
            true
        };
        net.with_receiver(from, to, push, bells)
    })
}

/// The sender has nothing left to send.
pub(super) fn stop_waiting(from: NodeId, to: NodeId) {
    with_network(|net, _| {
        if let Some(lane) = net
            .ports
            .get_mut(&to)
            .and_then(|port| port.channels.get_mut(&from))
        {
            lane.sender_waiting = false;
        }
    });
}

/// Begins a pass of this receiver; delays are a step nearer to their end.
pub(super) fn begin_pass(me: NodeId) -> Arrivals {
    with_network(|net, _| {
        let mut arrivals = Arrivals::default();
        let Some(port) = net.ports.get_mut(&me) else {
            return arrivals;
        };
        port.passes += 1;
        for (&node, lane) in &mut port.channels {
            if std::mem::take(&mut lane.is_new) {
                arrivals.connected.push((node, lane.from.clone()));
            }
            match lane.packets.front() {
                _ if lane.taken => arrivals.ready.push(node),
                Some((due, _)) if *due < port.passes => arrivals.ready.push(node),
                Some(_) => arrivals.delayed = true,
                None if lane.closed => arrivals.ready.push(node),
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
        let Some(lane) = port.channels.get_mut(&from) else {
            return PacketPoll::NotDue;
        };
        match lane.packets.front() {
            _ if lane.taken => PacketPoll::NotDue,
            Some((due, _)) if *due >= port.passes => PacketPoll::NotDue,
            None if !lane.closed => PacketPoll::NotDue,
            _ => match lane.packets.pop_front() {
                Some((_, packet)) => {
                    lane.taken = true;
                    PacketPoll::Packet(packet)
                }
                None => {
                    let address = lane.from.clone();
                    port.channels.remove(&from);
                    PacketPoll::Closed(address)
                }
            },
        }
    })
}

/// The packet that was taken last is dealt with: its place is free.
pub(super) fn release_packet(me: NodeId, from: NodeId) {
    with_network(|net, bells| {
        let Some(lane) = net
            .ports
            .get_mut(&me)
            .and_then(|port| port.channels.get_mut(&from))
        else {
            return;
        };
        lane.taken = false;
        if lane.sender_waiting
            && let Some(sender) = net.ports.get(&from)
        {
            sender.wake(bells);
        }
    });
}

/// Tells the sender of a message what it waits to hear of it.
pub(super) fn send_ack(me: NodeId, to: NodeId, number: u32) {
    with_network(|net, bells| {
        if let Some(port) = net.ports.get_mut(&to) {
            port.acks.push((me, number));
            port.wake(bells);
        }
    });
}

/// What receivers have said since the last call.
pub(super) fn take_acks(me: NodeId) -> Vec<(NodeId, u32)> {
    with_network(|net, _| {
        net.ports
            .get_mut(&me)
            .map(|port| std::mem::take(&mut port.acks))
            .unwrap_or_default()
    })
}

/// Whether receivers have said something, or one of these is gone.
pub(super) fn has_acks(me: NodeId, mut from: impl Iterator<Item = NodeId>) -> bool {
    let said = |net: &SimNetwork| net.ports.get(&me).is_some_and(|port| !port.acks.is_empty());
    with_network(|net, _| said(net) || from.any(|node| !net.ports.contains_key(&node)))
}

/// Whether this endpoint is there.
pub(super) fn is_open(node: NodeId) -> bool {
    with_network(|net, _| net.ports.contains_key(&node))
}

/// Whoever sleeps is to look again.
pub(super) fn wake_all() {
    with_network(|net, bells| net.ports.values().for_each(|port| port.wake(bells)));
}

/// From now on whoever brings news kicks the wait set; or no longer.
pub(super) fn arm(nodes: impl Iterator<Item = NodeId>, armed: bool) {
    with_network(|net, _| {
        for node in nodes {
            if let Some(port) = net.ports.get_mut(&node) {
                port.armed = armed;
            }
        }
    });
}

/// Whether something is on its way that this receiver does not hold yet, now or after some passes.
pub(super) fn has_pending(me: NodeId) -> bool {
    let news =
        |lane: &Channel| lane.is_new || (!lane.taken && (lane.closed || !lane.packets.is_empty()));
    with_network(|net, _| {
        net.ports
            .get(&me)
            .is_some_and(|port| port.channels.values().any(news))
    })
}

impl SimNetwork {
    /// Does something at the receiver in the name of the sender, and rings if that says it is news.
    /// False when the receiver is gone.
    fn with_receiver(
        &mut self,
        from: NodeId,
        to: NodeId,
        act: impl FnOnce(&mut SimPort, &Address) -> bool,
        bells: &mut WakeList,
    ) -> bool {
        let Some(sender) = self.ports.get(&from).map(|port| port.address.clone()) else {
            return false;
        };
        let Some(port) = self.ports.get_mut(&to) else {
            return false;
        };
        if act(port, &sender) {
            port.wake(bells);
        }
        true
    }

    fn fresh_name(&self, at: Option<&Address>) -> Result<Address> {
        let numbers = at
            .and_then(|address| split_name(address.name()))
            .map(|(_, numbers)| numbers);
        let mut label = self.next_node;
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
    fn channel(&mut self, node: NodeId, from: &Address, fresh: bool) -> &mut Channel {
        let seed = self.config.seed;
        self.channels.entry(node).or_insert_with(|| Channel {
            from: from.clone(),
            packets: VecDeque::new(),
            delays: DelayRng::new(seed, from),
            taken: false,
            is_new: fresh,
            sender_waiting: false,
            closed: false,
        })
    }

    fn wake(&self, bells: &mut WakeList) {
        if self.armed {
            bells.push(self.wait.clone());
        }
    }
}

/// Whether the name leaves its label to the network.
fn has_empty_label(name: &str) -> bool {
    split_name(name).map_or(name, |(label, _)| label).is_empty()
}
