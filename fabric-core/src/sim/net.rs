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
use crate::matching::Receipt;
use crate::mr::Region;
use crate::provider::{Deed, Incarnation, WaitSet};

use super::config::{Draw, SimConfig, check_scheme, split};

/// One life of an endpoint. Names are used again, nodes are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Node(u64);

impl From<Node> for Incarnation {
    fn from(node: Node) -> Self {
        Self(node.0.into())
    }
}

/// What travels.
#[derive(Debug)]
pub(super) struct Packet {
    /// With the first packet of a message.
    pub(super) head: Option<Head>,
    /// No message: something was done to the receiver's memory.
    pub(super) notice: Option<Notice>,
    pub(super) bytes: Vec<u8>,
}

/// What a message shows before its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) tag: Option<u64>,
    pub(super) data: Option<u64>,
    /// Length of the whole message.
    pub(super) len: usize,
    /// What the sender waits for.
    pub(super) receipt: Option<Receipt>,
}

/// Something that was done to the receiver's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Notice {
    pub(super) key: u64,
    pub(super) deed: Deed,
    pub(super) len: usize,
    pub(super) data: Option<u64>,
}

/// The memory that peers of a domain reach, by key.
pub(super) type Regions = Arc<Mutex<BTreeMap<u64, Region>>>;

/// What a receiver finds at the start of a pass.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// Peers that made contact since the last pass.
    pub(super) contacts: Vec<(Node, Address)>,
    /// Peers with something to take.
    pub(super) ready: Vec<Node>,
    /// Some packet waits for later passes.
    pub(super) delayed: bool,
}

/// What became of an attempt to take a packet.
#[derive(Debug)]
pub(super) enum Taken {
    /// The receiver has it. Its place stays taken until [`release`].
    Packet(Packet),
    /// Nothing is due.
    Nothing,
    /// The sender is gone and everything it sent was taken. This is said once.
    Closed(Address),
}

struct Network {
    ports: BTreeMap<Node, Port>,
    names: BTreeMap<Address, Node>,
    next: u64,
}

struct Port {
    address: Address,
    config: SimConfig,
    wait: Arc<dyn WaitSet>,
    regions: Regions,
    /// Wants to hear of everything done to its memory.
    heeds: bool,
    armed: bool,
    /// Passes made; the clock of the delays.
    passes: u64,
    /// By sender.
    lanes: BTreeMap<Node, Lane>,
    /// What receivers have said of messages from here: which receiver, and the number of the
    /// receipt.
    receipts: Vec<(Node, u32)>,
}

/// Everything from one sender to one receiver.
struct Lane {
    from: Address,
    /// Each with the pass after which it may be taken.
    packets: VecDeque<(u64, Packet)>,
    draw: Draw,
    /// The receiver holds the first packet and has not taken it in yet.
    lent: bool,
    /// The receiver has not noticed the sender yet.
    fresh: bool,
    /// The sender has more and waits for room.
    wanted: bool,
    /// The sender is gone.
    closed: bool,
}

/// Wait sets to kick when the lock is gone.
type Bells = Vec<Arc<dyn WaitSet>>;

static NETWORK: Mutex<Network> = Mutex::new(Network {
    ports: BTreeMap::new(),
    names: BTreeMap::new(),
    next: 0,
});

fn locked<T>(call: impl FnOnce(&mut Network, &mut Bells) -> T) -> T {
    let mut bells = Bells::new();
    // No call leaves the network half changed, so a panic elsewhere under the lock does not spoil
    // it.
    let result = call(
        &mut NETWORK.lock().unwrap_or_else(PoisonError::into_inner),
        &mut bells,
    );
    for bell in bells {
        bell.kick();
    }
    result
}

/// Opens an endpoint: at this name, or at a fresh one.
pub(super) fn open(
    at: Option<&Address>,
    (wait, armed): (Arc<dyn WaitSet>, bool),
    (regions, heeds): (Regions, bool),
) -> Result<(Node, Address)> {
    let config = at.map_or(Ok(SimConfig::default()), SimConfig::of)?;
    locked(|net, _| {
        net.next += 1;
        let node = Node(net.next);
        let address = match at {
            Some(address) if !is_fresh(address.name()) => address.clone(),
            _ => net.fresh_name(at)?,
        };
        if net.names.contains_key(&address) {
            return Err(Error::AddressInUse(address));
        }
        let port = Port {
            address: address.clone(),
            config,
            wait,
            regions,
            heeds,
            armed,
            passes: 0,
            lanes: BTreeMap::new(),
            receipts: Vec::new(),
        };
        net.names.insert(address.clone(), node);
        net.ports.insert(node, port);
        Ok((node, address))
    })
}

/// Closes an endpoint: its name is free, and whoever had to do with it is told.
pub(super) fn close(node: Node) {
    let port = locked(|net, bells| {
        let port = net.ports.remove(&node)?;
        net.names.remove(&port.address);
        for (other, theirs) in &mut net.ports {
            // Who only sent to it has no lane from it yet, and hears of its end by one.
            if port.lanes.contains_key(other) {
                theirs.lane(node, &port.address, false);
            }
            if let Some(lane) = theirs.lanes.get_mut(&node) {
                lane.closed = true;
                theirs.ring(bells);
            }
        }
        Some(port)
    });
    // What it had not received is freed here, without the lock.
    drop(port);
}

/// The endpoint of this name.
pub(super) fn find(address: &Address) -> Result<Node> {
    check_scheme(address)?;
    let node = locked(|net, _| net.names.get(address).copied());
    node.ok_or_else(|| Error::NoSuchPeer(address.clone()))
}

/// What a key of the peer's domain stands for, and whether the peer wants to hear of what is done
/// there; `None` when the peer is gone.
pub(super) fn region(to: Node, key: u64) -> Option<(Option<Region>, bool)> {
    let (regions, heeds) = locked(|net, _| {
        net.ports
            .get(&to)
            .map(|port| (port.regions.clone(), port.heeds))
    })?;
    let region = regions
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get(&key)
        .cloned();
    Some((region, heeds))
}

/// Makes contact without sending anything; false when the peer is gone.
pub(super) fn connect(from: Node, to: Node) -> bool {
    let contact = |port: &mut Port, sender: &Address| {
        let known = port.lanes.contains_key(&from);
        port.lane(from, sender, true);
        !known
    };
    locked(|net, bells| net.to(from, to, contact, bells))
}

/// How many packets there is room for; `None` when the peer is gone. With `wanted` the sender is
/// kicked, if armed, when there is more.
pub(super) fn room(from: Node, to: Node, wanted: bool) -> Option<usize> {
    locked(|net, _| {
        let port = net.ports.get_mut(&to)?;
        let capacity = port.config.pair_capacity;
        let Some(lane) = port.lanes.get_mut(&from) else {
            return Some(capacity);
        };
        lane.wanted |= wanted;
        Some(capacity.saturating_sub(lane.packets.len() + usize::from(lane.lent)))
    })
}

/// Sends packets for which there is room: nobody but the sender takes it. `more`: there is more to
/// come, and the sender waits for room. False when the peer is gone.
pub(super) fn push(from: Node, to: Node, packets: Vec<Packet>, more: bool) -> bool {
    locked(|net, bells| {
        let push = |port: &mut Port, sender: &Address| {
            let (passes, longest) = (port.passes, port.config.max_delay);
            let lane = port.lane(from, sender, true);
            lane.wanted = more;
            for packet in packets {
                let due = passes + lane.draw.delay(longest);
                lane.packets.push_back((due, packet));
            }
            true
        };
        net.to(from, to, push, bells)
    })
}

/// The sender has nothing left to send.
pub(super) fn content(from: Node, to: Node) {
    locked(|net, _| {
        if let Some(lane) = net
            .ports
            .get_mut(&to)
            .and_then(|port| port.lanes.get_mut(&from))
        {
            lane.wanted = false;
        }
    });
}

/// Begins a pass of this receiver; delays are a step nearer to their end.
pub(super) fn begin(me: Node) -> Arrivals {
    locked(|net, _| {
        let mut arrivals = Arrivals::default();
        let Some(port) = net.ports.get_mut(&me) else {
            return arrivals;
        };
        port.passes += 1;
        for (&node, lane) in &mut port.lanes {
            if std::mem::take(&mut lane.fresh) {
                arrivals.contacts.push((node, lane.from.clone()));
            }
            match lane.packets.front() {
                _ if lane.lent => arrivals.ready.push(node),
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
pub(super) fn take(me: Node, from: Node) -> Taken {
    locked(|net, _| {
        let Some(port) = net.ports.get_mut(&me) else {
            return Taken::Nothing;
        };
        let Some(lane) = port.lanes.get_mut(&from) else {
            return Taken::Nothing;
        };
        match lane.packets.front() {
            _ if lane.lent => Taken::Nothing,
            Some((due, _)) if *due >= port.passes => Taken::Nothing,
            None if !lane.closed => Taken::Nothing,
            _ => match lane.packets.pop_front() {
                Some((_, packet)) => {
                    lane.lent = true;
                    Taken::Packet(packet)
                }
                None => {
                    let address = lane.from.clone();
                    port.lanes.remove(&from);
                    Taken::Closed(address)
                }
            },
        }
    })
}

/// The packet that was taken last is dealt with: its place is free.
pub(super) fn release(me: Node, from: Node) {
    locked(|net, bells| {
        let Some(lane) = net
            .ports
            .get_mut(&me)
            .and_then(|port| port.lanes.get_mut(&from))
        else {
            return;
        };
        lane.lent = false;
        if lane.wanted
            && let Some(sender) = net.ports.get(&from)
        {
            sender.ring(bells);
        }
    });
}

/// Tells the sender of a message what it waits to hear of it.
pub(super) fn confirm(me: Node, to: Node, number: u32) {
    locked(|net, bells| {
        if let Some(port) = net.ports.get_mut(&to) {
            port.receipts.push((me, number));
            port.ring(bells);
        }
    });
}

/// What receivers have said since the last call.
pub(super) fn confirmed(me: Node) -> Vec<(Node, u32)> {
    locked(|net, _| {
        net.ports
            .get_mut(&me)
            .map(|port| std::mem::take(&mut port.receipts))
            .unwrap_or_default()
    })
}

/// Whether receivers have said something, or one of these is gone.
pub(super) fn has_word(me: Node, mut from: impl Iterator<Item = Node>) -> bool {
    let said = |net: &Network| {
        net.ports
            .get(&me)
            .is_some_and(|port| !port.receipts.is_empty())
    };
    locked(|net, _| said(net) || from.any(|node| !net.ports.contains_key(&node)))
}

/// Whether this endpoint is there.
pub(super) fn is_open(node: Node) -> bool {
    locked(|net, _| net.ports.contains_key(&node))
}

/// Whoever sleeps is to look again.
pub(super) fn wake_all() {
    locked(|net, bells| net.ports.values().for_each(|port| port.ring(bells)));
}

/// From now on whoever brings news kicks the wait set; or no longer.
pub(super) fn arm(nodes: impl Iterator<Item = Node>, armed: bool) {
    locked(|net, _| {
        for node in nodes {
            if let Some(port) = net.ports.get_mut(&node) {
                port.armed = armed;
            }
        }
    });
}

/// Whether something is on its way that this receiver does not hold yet, now or after some passes.
pub(super) fn has_news(me: Node) -> bool {
    let news =
        |lane: &Lane| lane.fresh || (!lane.lent && (lane.closed || !lane.packets.is_empty()));
    locked(|net, _| {
        net.ports
            .get(&me)
            .is_some_and(|port| port.lanes.values().any(news))
    })
}

impl Network {
    /// Does something at the receiver in the name of the sender, and rings if that says it is news.
    /// False when the receiver is gone.
    fn to(
        &mut self,
        from: Node,
        to: Node,
        act: impl FnOnce(&mut Port, &Address) -> bool,
        bells: &mut Bells,
    ) -> bool {
        let Some(sender) = self.ports.get(&from).map(|port| port.address.clone()) else {
            return false;
        };
        let Some(port) = self.ports.get_mut(&to) else {
            return false;
        };
        if act(port, &sender) {
            port.ring(bells);
        }
        true
    }

    fn fresh_name(&self, at: Option<&Address>) -> Result<Address> {
        let numbers = at
            .and_then(|address| split(address.name()))
            .map(|(_, numbers)| numbers);
        let mut label = self.next;
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

impl Port {
    fn lane(&mut self, node: Node, from: &Address, fresh: bool) -> &mut Lane {
        let seed = self.config.seed;
        self.lanes.entry(node).or_insert_with(|| Lane {
            from: from.clone(),
            packets: VecDeque::new(),
            draw: Draw::new(seed, from),
            lent: false,
            fresh,
            wanted: false,
            closed: false,
        })
    }

    fn ring(&self, bells: &mut Bells) {
        if self.armed {
            bells.push(self.wait.clone());
        }
    }
}

/// Whether the name leaves its label to the network.
fn is_fresh(name: &str) -> bool {
    split(name).map_or(name, |(label, _)| label).is_empty()
}
