//! Datagram endpoints: a socket, the sockets of its multicast groups, and a receive queue.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;

use fabric_core::buf::Payload;
use fabric_core::completion::{OpKind, Outcome, Transfer};
use fabric_core::flags::Caps;
use fabric_core::info::Info;
use fabric_core::matching::{Envelope, PeerKey};
use fabric_core::stats::EndpointStats;
use fabric_core::transport::{
    EndpointContext, EngineContext, EpId, MulticastGroups, OpKey, TransportEndpoint, TrySend, TxOp,
    WaitSet, WaitToken,
};
use fabric_core::{Address, Error, FiAddr, Result, Scheme};
use slab::Slab;

use super::destinations::{DestinationTable, QueuedDatagram};
use super::send_batch::SendBatch;
use super::senders::Senders;
use super::socket::{SendToResult, UdpSocket};
use crate::sys::datagrams::DatagramBatch;
use crate::transport::net::SocketConfig;

/// Bytes of unexpected messages that an endpoint buffers before it drops further ones.
pub(super) const UNEXPECTED_BYTES: usize = 8 << 20;
/// Passes without input after which the sockets are not polled until one is ready.
const IDLE_PASSES: u32 = 2000;

/// Returns the token of an endpoint's socket, or of the socket of the group with this index.
pub(super) fn watch_token(ep: EpId, group: Option<usize>) -> u64 {
    let (kind, id) = group.map_or((0, 0), |group| (1, group as u32));
    WaitToken { kind, ep, id }.pack()
}

/// A multicast group with at least one membership.
struct JoinedGroup {
    socket_addr: SocketAddr,
    socket: UdpSocket,
    /// Joins minus leaves; the group is removed at 0.
    join_count: usize,
}

/// A datagram endpoint.
pub(super) struct UdpEndpoint {
    pub(super) id: EpId,
    name: Address,
    pub(super) local_addr: SocketAddr,
    socket_config: SocketConfig,
    wait_set: Arc<dyn WaitSet>,
    /// Whether the endpoint has FI_MULTICAST, and may join groups and send to them.
    pub(super) multicast_enabled: bool,
    pub(super) socket: UdpSocket,
    groups: Slab<JoinedGroup>,
    recv_batch: DatagramBatch,
    senders: Senders,
    /// Messages that were dropped because no receive matched and the buffer budget was used up.
    dropped: u64,
    pub(super) destinations: DestinationTable,
    pub(super) send_batch: SendBatch,
    /// Whether messages that are sent one by one leave with the next pass.
    batches_messages: bool,
    pub(super) tx_queue: VecDeque<QueuedDatagram>,
    /// Whether the last send found no room in the socket, which is watched for room since.
    pub(super) write_blocked: bool,
    /// Passes without input since the last input, send or ready event, up to [`IDLE_PASSES`].
    idle_passes: u32,
}

impl UdpEndpoint {
    /// Opens an endpoint, at the given address or at any port of a loopback address.
    ///
    /// # Errors
    /// The address is a multicast address, or the error of the operating system.
    pub(super) fn open(
        id: EpId,
        info: &Info,
        (at, config): (Option<&Address>, SocketConfig),
        wait_set: Arc<dyn WaitSet>,
    ) -> Result<Self> {
        let loopback = SocketAddr::new(info.addr_format.loopback(), 0);
        let at = at.and_then(Address::socket_addr).unwrap_or(loopback);
        if at.ip().is_multicast() {
            let why =
                format!("{at} is a multicast address: join the group instead of binding to it");
            return Err(Error::Invalid {
                what: "address",
                why,
            });
        }
        let (socket, at) = UdpSocket::open(at, &config, (wait_set.clone(), watch_token(id, None)))?;
        Ok(Self {
            id,
            name: Address::from_socket_addr(Scheme::Udp, at)?,
            local_addr: at,
            socket_config: config,
            wait_set,
            multicast_enabled: info.caps.contains(Caps::MULTICAST),
            socket,
            groups: Slab::new(),
            recv_batch: DatagramBatch::new(),
            senders: Senders::new(),
            dropped: 0,
            destinations: DestinationTable::default(),
            send_batch: SendBatch::default(),
            batches_messages: false,
            tx_queue: VecDeque::new(),
            write_blocked: false,
            idle_passes: 0,
        })
    }

    /// Has messages that are sent one by one leave with the next pass.
    pub(super) fn batch_messages(&mut self) {
        self.batches_messages = true;
    }

    /// Returns the endpoint's address (`fi_getname`).
    pub(super) fn name(&self) -> &Address {
        &self.name
    }

    /// Receives with one `recvmmsg` from each socket; returns whether any datagram arrived.
    fn receive(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) -> bool {
        let mut has_input = self.receive_from(ctx, None);
        for group in 0..self.groups.capacity() {
            if self.groups.contains(group) {
                has_input |= self.receive_from(ctx, Some(group));
            }
        }
        has_input
    }

    /// Receives with one `recvmmsg` from the endpoint's socket, or from that of a group; returns
    /// whether any datagram arrived.
    fn receive_from(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        group: Option<usize>,
    ) -> bool {
        let socket = group.map_or(&self.socket, |group| &self.groups[group].socket);
        let count = self.recv_batch.recv(socket.as_fd());
        for index in 0..count {
            let Some(datagram) = self.recv_batch.get(index) else {
                continue;
            };
            let (peer, source) = self.senders.find_or_insert(ctx, datagram.from);
            let envelope = Envelope {
                peer,
                source,
                tag: None,
                len: datagram.len,
                data: None,
                // Set by the receive queue.
                arrival: 0,
                ack: None,
            };
            if !ctx.deliver(envelope, &datagram.bytes) {
                self.dropped += 1;
            }
        }
        count > 0
    }

    /// Fails the queued sends for which `error` returns an error.
    fn fail_sends(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        error: impl Fn(&QueuedDatagram) -> Option<Error>,
    ) {
        self.tx_queue.retain(|send| match error(send) {
            Some(error) => {
                ctx.complete(send.op, Outcome::failed(error));
                false
            }
            None => true,
        });
    }
}

impl<E: EngineContext> TransportEndpoint<E> for UdpEndpoint {
    fn try_send(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        tx_op: &TxOp,
        payload: Payload<'_>,
    ) -> Result<TrySend> {
        let to = self.destination(ctx, tx_op)?;
        if tx_op.kind == OpKind::Connect {
            // Datagrams need no connection; whether the peer exists is not checked.
            return Ok(TrySend::Done);
        }
        self.idle_passes = 0;
        if (tx_op.more || self.batches_messages) && self.tx_queue.is_empty() {
            if self.send_batch.is_full() {
                self.flush_batch(ctx);
            }
            if self.send_batch.is_full() {
                return Ok(TrySend::WouldBlock);
            }
            self.send_batch.push(to, payload);
            if !tx_op.more {
                ctx.request_rearm();
            }
            return Ok(TrySend::Batched);
        }
        if !self.tx_queue.is_empty() || !self.flush_batch(ctx) {
            return Ok(TrySend::WouldBlock);
        }
        match self.socket.send(to, payload)? {
            SendToResult::Sent => Ok(TrySend::Done),
            SendToResult::WouldBlock => {
                self.wait_writable();
                Ok(TrySend::WouldBlock)
            }
        }
    }

    fn set_batched_op(&mut self, _: &mut EndpointContext<'_, E>, op: OpKey, _: &TxOp, len: usize) {
        self.send_batch.set_last_op(op, len);
    }

    fn write_batched(&mut self, ctx: &mut EndpointContext<'_, E>) {
        self.flush_batch(ctx);
    }

    fn flush(&mut self, ctx: &mut EndpointContext<'_, E>) -> Result<()> {
        self.flush_batch(ctx);
        Ok(())
    }

    fn queue_send(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        op: OpKey,
        tx_op: &TxOp,
    ) -> Result<()> {
        self.destination(ctx, tx_op)?;
        if tx_op.kind == OpKind::Connect {
            ctx.complete(op, Outcome::ok(Transfer::sent(0, None)));
            return Ok(());
        }
        self.tx_queue.push_back(QueuedDatagram {
            op,
            peer: tx_op.peer,
        });
        self.progress_tx(ctx);
        ctx.request_rearm();
        Ok(())
    }

    fn cancel(&mut self, _: &mut EndpointContext<'_, E>, op: OpKey, _peer: FiAddr) -> bool {
        let len_before = self.tx_queue.len();
        self.tx_queue.retain(|send| send.op != op);
        self.tx_queue.len() < len_before
    }

    fn queued_ops(&self, _: &EndpointContext<'_, E>, peer: FiAddr, into: &mut Vec<OpKey>) {
        let queued = self.tx_queue.iter().filter(|send| send.peer == peer);
        into.extend(queued.map(|send| send.op));
    }

    fn source_of(&self, peer: PeerKey) -> Option<FiAddr> {
        self.senders.fi_addr(peer)
    }

    fn address_inserted(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        addr: FiAddr,
        address: &Address,
    ) {
        let is_inserted = ctx.incarnation_of(addr).is_none();
        if let Some(at) = address.socket_addr()
            && let Some(key) = self.senders.on_address_inserted(at, addr, is_inserted)
        {
            ctx.assign_source(key, addr);
        }
    }

    fn address_removed(&mut self, ctx: &mut EndpointContext<'_, E>, addr: FiAddr) {
        self.senders.on_address_removed(addr);
        self.destinations.remove(addr);
        self.fail_sends(ctx, |send| {
            (send.peer == addr).then(|| Error::StaleAddress(addr))
        });
    }

    fn progress(&mut self, ctx: &mut EndpointContext<'_, E>, _active_endpoints: usize) -> u32 {
        let mut moved = self.progress_tx(ctx);
        if self.idle_passes < IDLE_PASSES {
            let has_input = self.receive(ctx);
            self.idle_passes = if has_input { 0 } else { self.idle_passes + 1 };
            moved |= has_input;
        }
        moved.into()
    }

    fn ready(&mut self, _: &mut EndpointContext<'_, E>, _: WaitToken) {
        self.idle_passes = 0;
        if std::mem::take(&mut self.write_blocked) {
            self.socket.watch_writable(false);
        }
    }

    fn arm(&mut self, _: &mut EndpointContext<'_, E>) -> bool {
        // Unsent messages need a pass, unless the socket is watched for room.
        self.write_blocked || (self.tx_queue.is_empty() && self.send_batch.is_empty())
    }

    fn close(&mut self, ctx: &mut EndpointContext<'_, E>) {
        if self.socket.in_original_process() {
            self.send_batch.flush(ctx, self.socket.as_fd());
        }
        // Batched messages for which the socket has no room are canceled.
        self.send_batch.fail(ctx, &Error::Canceled);
        self.fail_sends(ctx, |_| Some(Error::Canceled));
        self.senders.close(ctx);
    }

    fn add_stats(&self, stats: &mut EndpointStats) {
        stats.dropped += self.dropped;
    }

    fn describe(&self) -> String {
        format!("{} ({} groups)", self.name, self.groups.len())
    }

    fn multicast(&mut self) -> Option<&mut dyn MulticastGroups> {
        Some(self)
    }
}

impl MulticastGroups for UdpEndpoint {
    fn join_group(&mut self, group: &Address) -> Result<u32> {
        if !self.multicast_enabled {
            return Err(Error::NotSupported(
                "multicast groups (the endpoint has no FI_MULTICAST)",
            ));
        }
        group.check_scheme(Scheme::Udp)?;
        let invalid = |why: String| Err(Error::Invalid { what: "group", why });
        let Some(at) = group.socket_addr().filter(|at| at.ip().is_multicast()) else {
            return invalid(format!(
                "{group} is not a multicast address such as udp://239.1.2.3:5000"
            ));
        };
        let (SocketAddr::V4(v4), IpAddr::V4(interface)) = (at, self.local_addr.ip()) else {
            return Err(Error::NotSupported(
                "multicast groups over IPv6 (of the group or of the endpoint)",
            ));
        };
        if at.port() == 0 {
            return invalid(format!("{group} has no port"));
        }
        if let Some((index, group)) = self
            .groups
            .iter_mut()
            .find(|(_, group)| group.socket_addr == at)
        {
            group.join_count += 1;
            return Ok(index as u32);
        }
        let entry = self.groups.vacant_entry();
        let index = entry.key();
        let socket = UdpSocket::open_group(
            v4,
            interface,
            &self.socket_config,
            (self.wait_set.clone(), watch_token(self.id, Some(index))),
        )?;
        entry.insert(JoinedGroup {
            socket_addr: at,
            socket,
            join_count: 1,
        });
        Ok(index as u32)
    }

    fn leave_group(&mut self, index: u32) {
        let Some(group) = self.groups.get_mut(index as usize) else {
            return;
        };
        group.join_count -= 1;
        if group.join_count == 0 {
            // Closing the socket ends the membership.
            self.groups.remove(index as usize);
        }
    }
}
