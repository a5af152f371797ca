//! The sending half of an endpoint: at once where there is room, else in turn behind what waits for
//! the same peer.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::address::{Address, FiAddr};
use crate::buf::{AnyBuf, Payload};
use crate::completion::{OpKind, Outcome, Transfer};
use crate::error::{Error, Result};
use crate::matching::Receipt;
use crate::mr::{Memory, Reached, check_access, execute, wanted};
use crate::provider::{Deed, EpId, Host, OpKey, SendNow, SendSpec};

use slab::Slab;

use super::net::{self, Head, Node, Notice, Packet};
use super::window::Window;

/// Bytes of a packet; longer messages travel in pieces.
pub(super) const PIECE: usize = 16 << 10;

/// Packets for one peer in one pass.
const PER_PASS: usize = 64;

/// What an endpoint has to send.
#[derive(Debug)]
pub(super) struct Outbound {
    ep: EpId,
    pub(super) node: Node,
    /// Never empty ones.
    waiting: BTreeMap<Node, Backlog>,
    /// Messages whose senders wait for word of the receiver, by the number of the receipt.
    unconfirmed: Slab<Unconfirmed>,
}

/// A message that has not ended before its receiver says so.
#[derive(Debug)]
struct Unconfirmed {
    op: OpKey,
    peer: Node,
    to: Address,
    transfer: Transfer,
    /// The network has all of it.
    sent: bool,
    confirmed: bool,
}

/// What waits for one peer, in posting order.
#[derive(Debug)]
struct Backlog {
    to: Address,
    sends: VecDeque<Sending>,
}

#[derive(Debug)]
struct Sending {
    op: OpKey,
    spec: SendSpec,
    /// Bytes the network has; `None` when the message has not begun.
    sent: Option<usize>,
    /// The number of its receipt, once it has begun.
    number: Option<u32>,
}

impl Outbound {
    pub(super) fn new(ep: EpId, node: Node) -> Self {
        Self {
            ep,
            node,
            waiting: BTreeMap::new(),
            unconfirmed: Slab::new(),
        }
    }

    /// Sends the whole message, or nothing.
    pub(super) fn send_now(
        &self,
        host: &dyn Host,
        spec: &SendSpec,
        payload: Payload<'_>,
    ) -> Result<SendNow> {
        let (to, peer) = self.target(host, spec)?;
        if spec.kind == OpKind::Write && spec.spread.is_none() {
            let write = |memory: &dyn Memory, at| write(memory, at, payload);
            return self.access_now(peer, spec, payload.len(), write);
        }
        let count = payload.len().div_ceil(PIECE).max(1);
        if spec.kind != OpKind::Send
            || spec.level.is_confirmed()
            || self.waiting.contains_key(&peer)
        {
            return Ok(SendNow::Queue);
        }
        if net::room(self.node, peer, false).is_some_and(|room| room < count) {
            return Ok(SendNow::Queue);
        }
        let mut sent = None;
        let packets = (0..count)
            .map(|_| cut(payload, spec, None, &mut sent))
            .collect();
        if net::push(self.node, peer, packets, false) {
            Ok(SendNow::Done)
        } else {
            Err(Error::NoSuchPeer(to))
        }
    }

    /// Sends in turn; as much as there is room for goes at once.
    pub(super) fn queue(&mut self, host: &mut dyn Host, op: OpKey, spec: &SendSpec) -> Result<()> {
        let (to, peer) = self.target(host, spec)?;
        match spec.kind {
            OpKind::Send | OpKind::Write | OpKind::Read | OpKind::Atomic | OpKind::FetchAtomic => {
                let backlog = self.waiting.entry(peer);
                let backlog = backlog.or_insert_with(|| Backlog {
                    to,
                    sends: VecDeque::new(),
                });
                backlog.sends.push_back(Sending {
                    op,
                    spec: *spec,
                    sent: None,
                    number: None,
                });
                self.flush_to(host, peer);
                Ok(())
            }
            OpKind::Connect if net::connect(self.node, peer) => {
                host.complete(op, Outcome::ok(Transfer::default()));
                Ok(())
            }
            OpKind::Connect => Err(Error::NoSuchPeer(to)),
            OpKind::Recv | OpKind::Release | OpKind::RemoteWrite => {
                Err(Error::NotSupported("a receive among the sends"))
            }
        }
    }

    /// Sends what there is room for. Returns whether anything was sent, or has failed.
    pub(super) fn flush(&mut self, host: &mut dyn Host) -> bool {
        let ended = !self.unconfirmed.is_empty() && self.end_confirmed(host);
        let peers: Vec<_> = self.waiting.keys().copied().collect();
        peers
            .into_iter()
            .fold(ended, |moved, peer| self.flush_to(host, peer) | moved)
    }

    /// Ends the messages of which receivers have said what was waited for, and those that wait for
    /// somebody who is gone.
    fn end_confirmed(&mut self, host: &mut dyn Host) -> bool {
        // Looked for first: who is gone by now has said all it had to say.
        let gone = |message: &Unconfirmed| message.sent && !net::is_open(message.peer);
        let gone: Vec<_> = self
            .unconfirmed
            .iter()
            .filter(|(_, message)| gone(message))
            .map(|(at, _)| at)
            .collect();
        let mut ended = false;
        for (from, number) in net::confirmed(self.node) {
            let message = self
                .unconfirmed
                .get_mut(number as usize)
                .filter(|message| message.peer == from);
            let Some(message) = message else { continue };
            message.confirmed = true;
            ended |= self.end_one(host, number);
        }
        for number in gone {
            let Some(message) = self.unconfirmed.try_remove(number) else {
                continue;
            };
            let Unconfirmed {
                op, to, transfer, ..
            } = message;
            host.complete(op, Outcome::cut(transfer, Error::PeerGone(to)));
            ended = true;
        }
        ended
    }

    /// Ends a message that is sent and confirmed.
    fn end_one(&mut self, host: &mut dyn Host, number: u32) -> bool {
        let ended = self
            .unconfirmed
            .get(number as usize)
            .is_some_and(|it| it.sent && it.confirmed);
        if ended {
            let message = self.unconfirmed.remove(number as usize);
            host.complete(message.op, Outcome::ok(message.transfer));
        }
        ended
    }

    /// Whether [`Outbound::flush`] would do something.
    pub(super) fn could_flush(&self) -> bool {
        self.waiting.iter().any(|(&peer, backlog)| {
            net::room(self.node, peer, true).is_none_or(|room| room > 0)
                && !self.is_in_hand(peer, backlog)
        }) || self.has_word()
    }

    fn has_word(&self) -> bool {
        let peers = self.unconfirmed.iter().map(|(_, message)| message.peer);
        !self.unconfirmed.is_empty() && net::has_word(self.node, peers)
    }

    /// Whether the first that waits is for memory that its owner has in hand.
    fn is_in_hand(&self, peer: Node, backlog: &Backlog) -> bool {
        let first = backlog
            .sends
            .front()
            .and_then(|sending| sending.spec.remote);
        let region = first.and_then(|remote| net::region(peer, remote.key)?.0);
        region.is_some_and(|region| {
            let is_there = region.memory.begin();
            if is_there {
                region.memory.end();
            }
            !is_there
        })
    }

    /// Takes back a send of which nothing has left yet.
    pub(super) fn cancel(&mut self, op: OpKey) -> bool {
        for (&peer, backlog) in &mut self.waiting {
            let Some(at) = backlog.sends.iter().position(|send| send.op == op) else {
                continue;
            };
            if backlog.sends[at].sent.is_some() {
                return false;
            }
            backlog.sends.remove(at);
            if backlog.sends.is_empty() {
                self.waiting.remove(&peer);
                net::content(self.node, peer);
            }
            return true;
        }
        false
    }

    /// Ends everything that waits.
    pub(super) fn close(self, host: &mut dyn Host) {
        for send in self.waiting.into_values().flat_map(|backlog| backlog.sends) {
            host.complete(send.op, Outcome::failed(Error::Canceled));
        }
        // Those that were not sent are among the others.
        for (_, message) in self
            .unconfirmed
            .into_iter()
            .filter(|(_, message)| message.sent)
        {
            host.complete(message.op, Outcome::cut(message.transfer, Error::Canceled));
        }
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting
            .values()
            .map(|backlog| backlog.sends.len())
            .sum()
    }

    fn target(&self, host: &dyn Host, spec: &SendSpec) -> Result<(Address, Node)> {
        let to = host.address_of(self.ep, spec.peer)?;
        let peer = self.node_of(host, spec.peer, &to)?;
        Ok((to, peer))
    }

    /// The endpoint that this handle stands for.
    fn node_of(&self, host: &dyn Host, addr: FiAddr, to: &Address) -> Result<Node> {
        let node = net::find(to)?;
        let bound = host.incarnation_of(self.ep, addr);
        if bound.is_some_and(|bound| bound != node.into()) {
            return Err(Error::PeerGone(to.clone()));
        }
        Ok(node)
    }

    /// Reads memory, or does nothing.
    pub(super) fn read_now(
        &self,
        host: &dyn Host,
        spec: &SendSpec,
        into: &mut AnyBuf,
    ) -> Result<SendNow> {
        let (_, peer) = self.target(host, spec)?;
        if spec.spread.is_some() {
            return Ok(SendNow::Queue);
        }
        let len = spec.remote.map_or(0, |remote| remote.len);
        let mut received = Ok(());
        self.access_now(peer, spec, len, |memory, at| {
            let mut bytes = vec![0; len];
            memory.read(at, &mut bytes);
            received = into.receive(&&bytes[..]).map(drop);
        })
        .and_then(|sent| received.map(|()| sent))
    }

    /// Executes an atomic operation, or does nothing.
    pub(super) fn atomic_now(
        &self,
        host: &dyn Host,
        spec: &SendSpec,
        operands: &[u8],
        result: &mut [u8],
    ) -> Result<SendNow> {
        let (_, peer) = self.target(host, spec)?;
        let Some(remote) = spec.remote else {
            return Err(NOWHERE);
        };
        self.access_now(peer, spec, remote.len, |memory, at| {
            execute(memory, at, &remote, operands, result)
        })
    }

    fn access_now(
        &self,
        peer: Node,
        spec: &SendSpec,
        len: usize,
        access: impl FnOnce(&dyn Memory, usize),
    ) -> Result<SendNow> {
        if self.waiting.contains_key(&peer) {
            return Ok(SendNow::Queue);
        }
        Ok(if self.access(peer, spec, len, access)? {
            SendNow::Done
        } else {
            SendNow::Queue
        })
    }

    /// A region of the peer's.
    pub(super) fn reach(&self, host: &dyn Host, peer: FiAddr, key: u64) -> Result<Option<Reached>> {
        let owner = host.address_of(self.ep, peer)?;
        let node = self.node_of(host, peer, &owner)?;
        let Some((Some(region), heeds)) = net::region(node, key) else {
            return Ok(None);
        };
        if region.memory.is_served() {
            return Err(Reached::SERVED);
        }
        if heeds || region.heeds {
            return Err(Reached::HEEDED);
        }
        let window = Window {
            memory: region.memory,
            here: self.node,
            there: node,
            owner,
        };
        Ok(Some(Reached {
            memory: Arc::new(window),
            access: region.access,
        }))
    }

    /// Checks an access and makes it, and tells the peer if it is to hear of it; false when there
    /// is no room for that, or the peer has its buffer in hand.
    fn access(
        &self,
        peer: Node,
        spec: &SendSpec,
        len: usize,
        access: impl FnOnce(&dyn Memory, usize),
    ) -> Result<bool> {
        let remote = spec.remote.ok_or(NOWHERE)?;
        let gone = || Error::Key {
            key: remote.key,
            why: "is unknown",
        };
        let (region, heeds) = net::region(peer, remote.key).ok_or_else(gone)?;
        let region = region.ok_or_else(gone)?;
        let atomic = remote.atomic;
        check_access(
            remote.key,
            region.access,
            wanted(spec.kind, atomic.map(|atomic| atomic.op)),
        )?;
        let align = atomic.map_or(1, |atomic| atomic.datatype.size());
        let at = region.start(remote.offset, len, align)?;
        let tells = heeds || region.heeds || spec.data.is_some();
        if tells && net::room(self.node, peer, true).is_some_and(|room| room == 0) {
            return Ok(false);
        }
        if !region.memory.begin() {
            return Ok(false);
        }
        access(&*region.memory, at);
        region.memory.end();
        if tells {
            let notice = Notice {
                key: remote.key,
                deed: Deed::of(spec.kind),
                len,
                data: spec.data,
            };
            let packet = Packet {
                head: None,
                notice: Some(notice),
                bytes: Vec::new(),
            };
            net::push(self.node, peer, vec![packet], false);
        }
        Ok(true)
    }

    /// The one-sided operations that are first in turn for this peer. Returns whether one has
    /// ended.
    fn access_in_turn(&mut self, host: &mut dyn Host, peer: Node) -> bool {
        let mut ended = false;
        while let Some(backlog) = self.waiting.get(&peer)
            && let Some(&Sending { op, spec, .. }) = backlog.sends.front()
            && let Some(remote) = spec.remote
        {
            let payload = host.payload(op);
            let mut result = Vec::new();
            let len = if spec.kind == OpKind::Write {
                payload.len()
            } else {
                remote.len
            };
            let places = spec.spread.map(|spread| host.places(spread));
            let len = places.map_or(len, |places| places.iter().map(|place| place.len).sum());
            let mut in_hand = None;
            let accessed = if let Some(places) = places {
                self.access_all(peer, &spec, places, payload, &mut result, &mut in_hand)
            } else {
                self.access(peer, &spec, len, |memory, at| match spec.kind {
                    OpKind::Write => write(memory, at, payload),
                    OpKind::Read => {
                        result.resize(len, 0);
                        memory.read(at, &mut result);
                    }
                    kind => {
                        result.resize(if kind.fills() { len } else { 0 }, 0);
                        execute(
                            memory,
                            at,
                            &remote,
                            payload.whole().unwrap_or_default(),
                            &mut result,
                        );
                    }
                })
            };
            let outcome = match accessed {
                Ok(false) => {
                    let front = self
                        .waiting
                        .get_mut(&peer)
                        .and_then(|backlog| backlog.sends.front_mut());
                    if let Some(send) = front.filter(|_| in_hand.is_some()) {
                        // It waits for that one.
                        send.spec.remote = in_hand;
                    }
                    break;
                }
                Ok(true) => Outcome::ok(Transfer::sent(len, None)),
                Err(error) => Outcome::failed(error),
            };
            if !result.is_empty() && outcome.error.is_none() {
                host.place(op, 0, &&result[..], 0, result.len());
            }
            if let Some(backlog) = self.waiting.get_mut(&peer) {
                backlog.sends.pop_front();
                if backlog.sends.is_empty() {
                    self.waiting.remove(&peer);
                }
            }
            host.complete(op, outcome);
            ended = true;
        }
        ended
    }

    fn flush_to(&mut self, host: &mut dyn Host, peer: Node) -> bool {
        let ended = self.access_in_turn(host, peer);
        let Some(backlog) = self.waiting.get_mut(&peer) else {
            return ended;
        };
        let mut sent = Vec::new();
        let mut packets = Vec::new();
        let room = net::room(self.node, peer, true);
        let limit = room.unwrap_or(0).min(PER_PASS);
        while packets.len() < limit
            && let Some(send) = backlog
                .sends
                .front_mut()
                .filter(|send| send.spec.remote.is_none())
        {
            let payload = host.payload(send.op);
            let transfer = Transfer::sent(payload.len(), send.spec.tag);
            if send.sent.is_none() && send.spec.level.is_confirmed() {
                let (op, to) = (send.op, backlog.to.clone());
                let message = Unconfirmed {
                    op,
                    peer,
                    to,
                    transfer,
                    sent: false,
                    confirmed: false,
                };
                send.number = Some(self.unconfirmed.insert(message) as u32);
            }
            packets.push(cut(payload, &send.spec, send.number, &mut send.sent));
            if send.sent.is_some_and(|sent| sent >= payload.len()) {
                sent.push((send.op, transfer, send.number));
                backlog.sends.pop_front();
            }
        }
        let moved = !packets.is_empty();
        let there = room.is_some()
            && (!moved || net::push(self.node, peer, packets, !backlog.sends.is_empty()));
        if there {
            if backlog.sends.is_empty() {
                self.waiting.remove(&peer);
            }
            for (op, transfer, number) in sent {
                let message = number.and_then(|number| self.unconfirmed.get_mut(number as usize));
                match message {
                    Some(message) => message.sent = true,
                    None => host.complete(op, Outcome::ok(transfer)),
                }
                if let Some(number) = number {
                    self.end_one(host, number);
                }
            }
            return moved | ended;
        }
        // Nothing of what was cut just now has arrived.
        let lost = self.waiting.remove(&peer);
        let ops = sent.into_iter().map(|(op, _, number)| (op, number));
        if let Some(Backlog { to, sends }) = lost {
            for (op, number) in ops.chain(sends.into_iter().map(|send| (send.op, send.number))) {
                if let Some(number) = number {
                    self.unconfirmed.remove(number as usize);
                }
                host.complete(op, Outcome::failed(Error::PeerGone(to.clone())));
            }
        }
        true
    }
}

/// Writes all pieces, one behind the other.
fn write(memory: &dyn Memory, at: usize, payload: Payload<'_>) {
    payload.for_each(|position, piece| memory.write(at + position, piece));
}

/// The next packet of a message of which `sent` bytes have left.
fn cut(
    payload: Payload<'_>,
    spec: &SendSpec,
    number: Option<u32>,
    sent: &mut Option<usize>,
) -> Packet {
    let receipt = number.map(|number| Receipt {
        number,
        level: spec.level,
    });
    let (tag, data, len) = (spec.tag, spec.data, payload.len());
    let head = sent.is_none().then_some(Head {
        tag,
        data,
        len,
        receipt,
    });
    let from = sent.unwrap_or(0).min(payload.len());
    let to = payload.len().min(from + PIECE);
    *sent = Some(to);
    Packet {
        head,
        notice: None,
        bytes: payload.part(from, to - from).to_vec(),
    }
}

/// A one-sided operation that does not say where.
const NOWHERE: Error = Error::NotSupported("a one-sided operation without a place");
