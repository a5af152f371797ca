//! The sending half of an endpoint: operations take effect inline if there is room, and are
//! otherwise queued behind earlier operations on the same peer.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::address::{Address, FiAddr};
use crate::buf::{AnyBuf, Payload};
use crate::completion::{OpKind, Outcome, Transfer};
use crate::error::{Error, Result};
use crate::matching::AckRequest;
use crate::mr::{DirectRegion, RegionMemory, check_access, execute_atomic_array, required_access};
use crate::transport::{EndpointContext, EngineContext, OpKey, RemoteAccess, TrySend, TxOp};

use slab::Slab;

use super::net::{self, MessageHeader, NodeId, RmaNotice, SimPacket};
use super::window::Window;

/// Maximum length of a packet, in bytes; a longer message is sent in several packets.
pub(super) const PACKET_SIZE: usize = 16 << 10;

/// Maximum number of packets sent to one peer in one pass.
const MAX_PACKETS_PER_PASS: usize = 64;

/// The sending half of an endpoint.
#[derive(Debug)]
pub(super) struct Outbound {
    pub(super) node: NodeId,
    /// The backlogs that are not empty, by peer.
    backlogs: BTreeMap<NodeId, Backlog>,
    /// Messages that wait for an ack of the receiver, by the id of the ack.
    unacked: Slab<UnackedSend>,
}

/// A message that completes with the ack of its receiver.
#[derive(Debug)]
struct UnackedSend {
    op: OpKey,
    peer: NodeId,
    to: Address,
    transfer: Transfer,
    /// The whole message is in the network.
    is_sent: bool,
    is_acked: bool,
}

/// Operations queued for one peer, in posting order.
#[derive(Debug)]
struct Backlog {
    to: Address,
    sends: VecDeque<BacklogEntry>,
}

/// A queued operation.
#[derive(Debug)]
struct BacklogEntry {
    op: OpKey,
    tx_op: TxOp,
    /// Number of bytes in the network; `None` when the message has not begun.
    sent_len: Option<usize>,
    /// Id of the ack that the message requests, once the message has begun.
    ack_id: Option<u32>,
}

impl Outbound {
    pub(super) fn new(node: NodeId) -> Self {
        Self {
            node,
            backlogs: BTreeMap::new(),
            unacked: Slab::new(),
        }
    }

    /// Sends a whole message or executes a write inline, or does nothing.
    pub(super) fn try_send(
        &self,
        ctx: &EndpointContext<'_, impl EngineContext>,
        tx_op: &TxOp,
        payload: Payload<'_>,
    ) -> Result<TrySend> {
        let (to, peer) = self.target(ctx, tx_op)?;
        if tx_op.kind == OpKind::Write && tx_op.rma_iov_id.is_none() {
            let write = |memory: &dyn RegionMemory, at| write(memory, at, payload);
            return self.try_access(peer, tx_op, payload.len(), write);
        }
        let count = payload.len().div_ceil(PACKET_SIZE).max(1);
        if tx_op.kind != OpKind::Send
            || tx_op.level.needs_ack()
            || self.backlogs.contains_key(&peer)
        {
            return Ok(TrySend::WouldBlock);
        }
        if net::available(self.node, peer, false).is_some_and(|room| room < count) {
            return Ok(TrySend::WouldBlock);
        }
        let mut sent_len = None;
        let packets = (0..count)
            .map(|_| next_packet(payload, tx_op, None, &mut sent_len))
            .collect();
        if net::push_packets(self.node, peer, packets, false) {
            Ok(TrySend::Done)
        } else {
            Err(Error::NoSuchPeer(to))
        }
    }

    /// Queues an operation, and sends as much as there is room for. Connects at once.
    pub(super) fn queue(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        op: OpKey,
        tx_op: &TxOp,
    ) -> Result<()> {
        let (to, peer) = self.target(ctx, tx_op)?;
        match tx_op.kind {
            OpKind::Send | OpKind::Write | OpKind::Read | OpKind::Atomic | OpKind::FetchAtomic => {
                let backlog = self.backlogs.entry(peer);
                let backlog = backlog.or_insert_with(|| Backlog {
                    to,
                    sends: VecDeque::new(),
                });
                backlog.sends.push_back(BacklogEntry {
                    op,
                    tx_op: *tx_op,
                    sent_len: None,
                    ack_id: None,
                });
                self.flush_to(ctx, peer);
                Ok(())
            }
            OpKind::Connect if net::connect(self.node, peer) => {
                ctx.complete(op, Outcome::ok(Transfer::default()));
                Ok(())
            }
            OpKind::Connect => Err(Error::NoSuchPeer(to)),
            OpKind::Recv | OpKind::MultiRecvRelease | OpKind::RemoteWrite => Err(
                Error::NotSupported("receive operation on the transmit queue"),
            ),
        }
    }

    /// Completes acked messages, and sends as much of the backlogs as there is room for. Returns
    /// whether anything was sent, completed or failed.
    pub(super) fn flush(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) -> bool {
        let completed = !self.unacked.is_empty() && self.complete_acked(ctx);
        let peers: Vec<_> = self.backlogs.keys().copied().collect();
        peers
            .into_iter()
            .fold(completed, |moved, peer| self.flush_to(ctx, peer) | moved)
    }

    /// Completes the messages whose acks have arrived, and fails those whose peer has closed.
    /// Returns whether a message has completed or failed.
    fn complete_acked(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) -> bool {
        // Closed peers are determined before the acks are taken: a closed peer has sent all its
        // acks.
        let is_gone = |message: &UnackedSend| message.is_sent && !net::is_open(message.peer);
        let gone: Vec<_> = self
            .unacked
            .iter()
            .filter(|(_, message)| is_gone(message))
            .map(|(at, _)| at)
            .collect();
        let mut completed = false;
        for (from, id) in net::take_acks(self.node) {
            let message = self
                .unacked
                .get_mut(id as usize)
                .filter(|message| message.peer == from);
            let Some(message) = message else { continue };
            message.is_acked = true;
            completed |= self.complete_if_acked(ctx, id);
        }
        for id in gone {
            let Some(message) = self.unacked.try_remove(id) else {
                continue;
            };
            let UnackedSend {
                op, to, transfer, ..
            } = message;
            ctx.complete(op, Outcome::partial(transfer, Error::PeerGone(to)));
            completed = true;
        }
        completed
    }

    /// Completes the message with this ack id if it is sent and acked. Returns whether it is.
    fn complete_if_acked(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        id: u32,
    ) -> bool {
        let completed = self
            .unacked
            .get(id as usize)
            .is_some_and(|message| message.is_sent && message.is_acked);
        if completed {
            let message = self.unacked.remove(id as usize);
            ctx.complete(message.op, Outcome::ok(message.transfer));
        }
        completed
    }

    /// Returns whether [`Outbound::flush`] would make progress.
    pub(super) fn can_flush(&self) -> bool {
        self.backlogs.iter().any(|(&peer, backlog)| {
            net::available(self.node, peer, true).is_none_or(|room| room > 0)
                && !self.is_blocked_on_region(peer, backlog)
        }) || self.has_acks()
    }

    /// Returns whether [`complete_acked`](Self::complete_acked) may complete or fail a message.
    fn has_acks(&self) -> bool {
        let peers = self.unacked.iter().map(|(_, message)| message.peer);
        !self.unacked.is_empty() && net::has_acks(self.node, peers)
    }

    /// Returns whether the first queued operation waits for a region that its owner has locked.
    fn is_blocked_on_region(&self, peer: NodeId, backlog: &Backlog) -> bool {
        let first = backlog.sends.front().and_then(|entry| entry.tx_op.remote);
        let region = first.and_then(|remote| net::region(peer, remote.key)?.0);
        region.is_some_and(|region| {
            let is_accessible = region.memory.begin_access();
            if is_accessible {
                region.memory.end_access();
            }
            !is_accessible
        })
    }

    /// Cancels a queued operation that has not begun. Returns false when it has begun or is not
    /// queued.
    pub(super) fn cancel(&mut self, op: OpKey) -> bool {
        for (&peer, backlog) in &mut self.backlogs {
            let Some(at) = backlog.sends.iter().position(|send| send.op == op) else {
                continue;
            };
            if backlog.sends[at].sent_len.is_some() {
                return false;
            }
            backlog.sends.remove(at);
            if backlog.sends.is_empty() {
                self.backlogs.remove(&peer);
                net::stop_waiting(self.node, peer);
            }
            return true;
        }
        false
    }

    /// Completes all operations with [`Error::Canceled`].
    pub(super) fn close(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        for send in std::mem::take(&mut self.backlogs)
            .into_values()
            .flat_map(|backlog| backlog.sends)
        {
            ctx.complete(send.op, Outcome::failed(Error::Canceled));
        }
        // Messages that were not sent as a whole are in the backlogs.
        for (_, message) in std::mem::take(&mut self.unacked)
            .into_iter()
            .filter(|(_, message)| message.is_sent)
        {
            ctx.complete(
                message.op,
                Outcome::partial(message.transfer, Error::Canceled),
            );
        }
    }

    pub(super) fn queued_sends(&self) -> usize {
        self.backlogs
            .values()
            .map(|backlog| backlog.sends.len())
            .sum()
    }

    /// Returns the address and the endpoint of the operation's peer.
    fn target(
        &self,
        ctx: &EndpointContext<'_, impl EngineContext>,
        tx_op: &TxOp,
    ) -> Result<(Address, NodeId)> {
        let to = ctx.address_of(tx_op.peer)?;
        let peer = self.node_of(ctx, tx_op.peer, &to)?;
        Ok((to, peer))
    }

    /// Returns the open endpoint behind this handle, whose address is `to`.
    fn node_of(
        &self,
        ctx: &EndpointContext<'_, impl EngineContext>,
        addr: FiAddr,
        to: &Address,
    ) -> Result<NodeId> {
        let node = net::lookup(to)?;
        let incarnation = ctx.incarnation_of(addr);
        if incarnation.is_some_and(|incarnation| incarnation != node.into()) {
            return Err(Error::PeerGone(to.clone()));
        }
        Ok(node)
    }

    /// Reads a peer's memory inline, or does nothing.
    pub(super) fn try_read(
        &self,
        ctx: &EndpointContext<'_, impl EngineContext>,
        tx_op: &TxOp,
        into: &mut AnyBuf,
    ) -> Result<TrySend> {
        let (_, peer) = self.target(ctx, tx_op)?;
        if tx_op.rma_iov_id.is_some() {
            return Ok(TrySend::WouldBlock);
        }
        let len = tx_op.remote.map_or(0, |remote| remote.len);
        let mut received = Ok(());
        self.try_access(peer, tx_op, len, |memory, at| {
            let mut bytes = vec![0; len];
            memory.read(at, &mut bytes);
            received = into.receive(&&bytes[..]).map(drop);
        })
        .and_then(|sent| received.map(|()| sent))
    }

    /// Executes an atomic operation inline, or does nothing.
    pub(super) fn try_atomic(
        &self,
        ctx: &EndpointContext<'_, impl EngineContext>,
        tx_op: &TxOp,
        operands: &[u8],
        result: &mut [u8],
    ) -> Result<TrySend> {
        let (_, peer) = self.target(ctx, tx_op)?;
        let Some(remote) = tx_op.remote else {
            return Err(NO_RMA_IOV);
        };
        self.try_access(peer, tx_op, remote.len, |memory, at| {
            execute_atomic_array(memory, at, &remote, operands, result)
        })
    }

    /// As [`access`](Self::access), unless operations are queued for the peer.
    fn try_access(
        &self,
        peer: NodeId,
        tx_op: &TxOp,
        len: usize,
        access: impl FnOnce(&dyn RegionMemory, usize),
    ) -> Result<TrySend> {
        if self.backlogs.contains_key(&peer) {
            return Ok(TrySend::WouldBlock);
        }
        Ok(if self.access(peer, tx_op, len, access)? {
            TrySend::Done
        } else {
            TrySend::WouldBlock
        })
    }

    /// Returns a region of the peer for direct access.
    pub(super) fn direct_region(
        &self,
        ctx: &EndpointContext<'_, impl EngineContext>,
        peer: FiAddr,
        key: u64,
    ) -> Result<Option<DirectRegion>> {
        let owner = ctx.address_of(peer)?;
        let node = self.node_of(ctx, peer, &owner)?;
        let Some((Some(region), rma_events)) = net::region(node, key) else {
            return Ok(None);
        };
        if region.memory.is_served_by_owner() {
            return Err(DirectRegion::NOT_MAPPABLE);
        }
        if rma_events || region.rma_events {
            return Err(DirectRegion::NEEDS_RMA_EVENTS);
        }
        let window = Window {
            memory: region.memory,
            local: self.node,
            remote: node,
            owner,
        };
        Ok(Some(DirectRegion {
            memory: Arc::new(window),
            access: region.access,
        }))
    }

    /// Checks an access, executes it with `access`, which gets the region and the offset in it, and
    /// notifies the peer if required. Returns false, and does nothing, when there is no room for
    /// the notice, or when the region is locked by its owner.
    fn access(
        &self,
        peer: NodeId,
        tx_op: &TxOp,
        len: usize,
        access: impl FnOnce(&dyn RegionMemory, usize),
    ) -> Result<bool> {
        let remote = tx_op.remote.ok_or(NO_RMA_IOV)?;
        let unknown_key = || Error::Key {
            key: remote.key,
            why: "is unknown",
        };
        let (region, rma_events) = net::region(peer, remote.key).ok_or_else(unknown_key)?;
        let region = region.ok_or_else(unknown_key)?;
        let atomic = remote.atomic;
        check_access(
            remote.key,
            region.access,
            required_access(tx_op.kind, atomic.map(|atomic| atomic.op)),
        )?;
        let align = atomic.map_or(1, |atomic| atomic.datatype.size());
        let at = region.checked_offset(remote.offset, len, align)?;
        let notifies = rma_events || region.rma_events || tx_op.data.is_some();
        if notifies && net::available(self.node, peer, true).is_some_and(|room| room == 0) {
            return Ok(false);
        }
        if !region.memory.begin_access() {
            return Ok(false);
        }
        access(&*region.memory, at);
        region.memory.end_access();
        if notifies {
            let notice = RmaNotice {
                key: remote.key,
                access: RemoteAccess::from_kind(tx_op.kind),
                len,
                data: tx_op.data,
            };
            let packet = SimPacket {
                header: None,
                rma_notice: Some(notice),
                bytes: Vec::new(),
            };
            net::push_packets(self.node, peer, vec![packet], false);
        }
        Ok(true)
    }

    /// Executes the RMA and atomic operations at the head of this peer's backlog. Returns whether
    /// one has completed or failed.
    fn run_queued_accesses(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        peer: NodeId,
    ) -> bool {
        let mut completed = false;
        while let Some(backlog) = self.backlogs.get(&peer)
            && let Some(&BacklogEntry { op, tx_op, .. }) = backlog.sends.front()
            && let Some(remote) = tx_op.remote
        {
            let payload = ctx.payload(op);
            let mut result = Vec::new();
            let len = if tx_op.kind == OpKind::Write {
                payload.len()
            } else {
                remote.len
            };
            let iovs = tx_op.rma_iov_id.map(|id| ctx.rma_iovs(id));
            let len = iovs.map_or(len, |iovs| iovs.iter().map(|iov| iov.len).sum());
            let mut locked = None;
            let accessed = if let Some(iovs) = iovs {
                self.access_all(peer, &tx_op, iovs, payload, &mut result, &mut locked)
            } else {
                self.access(peer, &tx_op, len, |memory, at| match tx_op.kind {
                    OpKind::Write => write(memory, at, payload),
                    OpKind::Read => {
                        result.resize(len, 0);
                        memory.read(at, &mut result);
                    }
                    kind => {
                        result.resize(if kind.fills_buffer() { len } else { 0 }, 0);
                        execute_atomic_array(
                            memory,
                            at,
                            &remote,
                            payload.as_contiguous().unwrap_or_default(),
                            &mut result,
                        );
                    }
                })
            };
            let outcome = match accessed {
                Ok(false) => {
                    let front = self
                        .backlogs
                        .get_mut(&peer)
                        .and_then(|backlog| backlog.sends.front_mut());
                    if let Some(send) = front.filter(|_| locked.is_some()) {
                        // `is_blocked_on_region` checks the remote range in `remote`.
                        send.tx_op.remote = locked;
                    }
                    break;
                }
                Ok(true) => Outcome::ok(Transfer::sent(len, None)),
                Err(error) => Outcome::failed(error),
            };
            if !result.is_empty() && outcome.error.is_none() {
                ctx.write_at(op, 0, &&result[..], 0, result.len());
            }
            if let Some(backlog) = self.backlogs.get_mut(&peer) {
                backlog.sends.pop_front();
                if backlog.sends.is_empty() {
                    self.backlogs.remove(&peer);
                }
            }
            ctx.complete(op, outcome);
            completed = true;
        }
        completed
    }

    /// Sends as much of this peer's backlog as there is room for. Returns whether anything was
    /// sent, completed or failed.
    fn flush_to(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        peer: NodeId,
    ) -> bool {
        let completed = self.run_queued_accesses(ctx, peer);
        let Some(backlog) = self.backlogs.get_mut(&peer) else {
            return completed;
        };
        // Make packets of the messages at the head, and remove the messages that are whole.
        let mut sent_messages = Vec::new();
        let mut packets = Vec::new();
        let room = net::available(self.node, peer, true);
        let limit = room.unwrap_or(0).min(MAX_PACKETS_PER_PASS);
        while packets.len() < limit
            && let Some(send) = backlog
                .sends
                .front_mut()
                .filter(|send| send.tx_op.remote.is_none())
        {
            let payload = ctx.payload(send.op);
            let transfer = Transfer::sent(payload.len(), send.tx_op.tag);
            if send.sent_len.is_none() && send.tx_op.level.needs_ack() {
                let (op, to) = (send.op, backlog.to.clone());
                let message = UnackedSend {
                    op,
                    peer,
                    to,
                    transfer,
                    is_sent: false,
                    is_acked: false,
                };
                send.ack_id = Some(self.unacked.insert(message) as u32);
            }
            packets.push(next_packet(
                payload,
                &send.tx_op,
                send.ack_id,
                &mut send.sent_len,
            ));
            if send.sent_len.is_some_and(|len| len >= payload.len()) {
                sent_messages.push((send.op, transfer, send.ack_id));
                backlog.sends.pop_front();
            }
        }
        let moved = !packets.is_empty();
        let is_open = room.is_some()
            && (!moved || net::push_packets(self.node, peer, packets, !backlog.sends.is_empty()));
        if is_open {
            if backlog.sends.is_empty() {
                self.backlogs.remove(&peer);
            }
            for (op, transfer, ack_id) in sent_messages {
                let message = ack_id.and_then(|ack_id| self.unacked.get_mut(ack_id as usize));
                match message {
                    Some(message) => message.is_sent = true,
                    None => ctx.complete(op, Outcome::ok(transfer)),
                }
                if let Some(ack_id) = ack_id {
                    self.complete_if_acked(ctx, ack_id);
                }
            }
            return moved | completed;
        }
        // The peer has closed: fail the whole backlog, and the messages removed above.
        let backlog = self.backlogs.remove(&peer);
        let ops = sent_messages
            .into_iter()
            .map(|(op, _, ack_id)| (op, ack_id));
        if let Some(Backlog { to, sends }) = backlog {
            for (op, ack_id) in ops.chain(sends.into_iter().map(|send| (send.op, send.ack_id))) {
                if let Some(ack_id) = ack_id {
                    self.unacked.remove(ack_id as usize);
                }
                ctx.complete(op, Outcome::failed(Error::PeerGone(to.clone())));
            }
        }
        true
    }
}

/// Writes the payload to memory from offset `at` on.
fn write(memory: &dyn RegionMemory, at: usize, payload: Payload<'_>) {
    payload.for_each(|position, part| memory.write(at + position, part));
}

/// Returns the next packet of a message of which `sent_len` bytes are in the network, and adds the
/// packet's bytes to `sent_len`.
fn next_packet(
    payload: Payload<'_>,
    tx_op: &TxOp,
    ack_id: Option<u32>,
    sent_len: &mut Option<usize>,
) -> SimPacket {
    let ack = ack_id.map(|ack_id| AckRequest {
        ack_id,
        level: tx_op.level,
    });
    let (tag, data, len) = (tx_op.tag, tx_op.data, payload.len());
    let header = sent_len.is_none().then_some(MessageHeader {
        tag,
        data,
        len,
        ack,
    });
    let from = sent_len.unwrap_or(0).min(payload.len());
    let to = payload.len().min(from + PACKET_SIZE);
    *sent_len = Some(to);
    SimPacket {
        header,
        rma_notice: None,
        bytes: payload.slice(from, to - from).to_vec(),
    }
}

/// Error of an RMA operation without a remote range.
const NO_RMA_IOV: Error = Error::NotSupported("RMA operation without a remote range");
