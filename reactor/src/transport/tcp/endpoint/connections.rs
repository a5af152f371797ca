//! The connections of an endpoint, and what belongs to a connection in each phase.
//!
//! A pass polls the active connections. A connection is active while it has something to send or to
//! process, and for some passes after input. Its socket reports input to an inactive one.
//!
//! Connections that hold a message or an access are tried as `held_connections` says. What a
//! connection has to send makes it active, whether or not it holds something.

use std::time::Instant;

use fabric_core::Error;
use fabric_core::matching::PeerKey;
use fabric_core::transport::{EndpointContext, EngineContext};
use slab::Slab;

use super::super::connection::TcpConnection;
use super::super::handshake::{InboundHandshake, OutboundHandshake};
use super::super::linger;
use super::super::read_memory::ReadMemory;
use super::deadlines::Deadlines;
use super::inbound_handshakes::{InboundHandshakes, InboundSource};
use super::verify::Verifications;
use crate::transport::held_connections::{HeldConnections, TRIES_PER_PASS};
use crate::transport::inbound_limits::{InboundConnections, InboundLimits};
use crate::transport::peer_keys::PeerKeys;

/// A connection in one of its phases.
pub(super) enum ConnectionState {
    /// Accepted; the peer's connection request has not arrived.
    Inbound(InboundHandshake),
    /// This side connects, and waits for the reply.
    Outbound(OutboundHandshake),
    Established(Box<TcpConnection>),
}

struct Slot {
    state: ConnectionState,
    /// Whether the connection is in `active`.
    is_active: bool,
}

/// The connections of an endpoint, by index.
pub(super) struct Connections {
    slots: Slab<Slot>,
    /// Established connections that every pass polls.
    active: Vec<usize>,
    /// Established connections that hold a message or an access.
    held: HeldConnections,
    established_count: usize,
    /// The keys of established connections.
    keys: PeerKeys,
    deadlines: Deadlines,
    /// Inbound connections that count towards a limit.
    inbound: InboundConnections<InboundSource>,
    inbound_handshakes: InboundHandshakes,
    verifications: Verifications,
    /// Memory into which established connections read; empty for a passive endpoint.
    read_memory: ReadMemory,
    /// Number of times that a connection was polled.
    #[cfg(all(test, not(loom)))]
    polls: usize,
}

impl Connections {
    pub(super) fn new(limits: InboundLimits, max_handshakes: (usize, usize)) -> Self {
        Self {
            slots: Slab::new(),
            active: Vec::new(),
            held: HeldConnections::default(),
            established_count: 0,
            keys: PeerKeys::default(),
            deadlines: Deadlines::default(),
            inbound: InboundConnections::new(limits),
            inbound_handshakes: InboundHandshakes::new(max_handshakes),
            verifications: Verifications::default(),
            read_memory: ReadMemory::default(),
            #[cfg(all(test, not(loom)))]
            polls: 0,
        }
    }

    /// Sets the maximum bytes of one read, before the first connection is established.
    pub(super) fn set_read_len(&mut self, len: usize) {
        self.read_memory = ReadMemory::new(len);
    }

    /// Returns the index of the connection that is added next.
    pub(super) fn next_index(&self) -> usize {
        self.slots.vacant_key()
    }

    pub(super) fn get(&self, index: usize) -> Option<&ConnectionState> {
        self.slots.get(index).map(|slot| &slot.state)
    }

    fn insert(&mut self, state: ConnectionState) -> usize {
        let index = self.slots.insert(Slot {
            state,
            is_active: false,
        });
        self.update_deadline(index);
        index
    }
}

/// Handshakes.
impl Connections {
    /// Adds an inbound handshake. Returns its index, and the handshake that has to make room, if
    /// there are too many.
    pub(super) fn add_inbound(&mut self, handshake: InboundHandshake) -> (usize, Option<usize>) {
        let source = InboundSource::new(handshake.peer_addr);
        let index = self.insert(ConnectionState::Inbound(handshake));
        (index, self.inbound_handshakes.add(source, index))
    }

    pub(super) fn inbound_mut(&mut self, index: usize) -> Option<&mut InboundHandshake> {
        match &mut self.slots.get_mut(index)?.state {
            ConnectionState::Inbound(handshake) => Some(handshake),
            _ => None,
        }
    }

    /// Takes an inbound handshake that has ended.
    pub(super) fn take_inbound(&mut self, index: usize) -> Option<InboundHandshake> {
        self.inbound_mut(index)?;
        self.deadlines.remove(index);
        let ConnectionState::Inbound(handshake) = self.slots.remove(index).state else {
            return None;
        };
        let source = InboundSource::new(handshake.peer_addr);
        self.inbound_handshakes.remove(source, index);
        Some(handshake)
    }

    /// Adds an outbound handshake, which verifies an established connection if a request of
    /// `claimed_by` has claimed the address of the peer. Returns its index.
    pub(super) fn add_outbound(
        &mut self,
        handshake: OutboundHandshake,
        claimed_by: Option<InboundSource>,
    ) -> usize {
        let index = self.insert(ConnectionState::Outbound(handshake));
        if let Some(source) = claimed_by {
            self.verifications.begin(index, source);
        }
        index
    }

    pub(super) fn outbound(&self, index: usize) -> Option<&OutboundHandshake> {
        match &self.slots.get(index)?.state {
            ConnectionState::Outbound(handshake) => Some(handshake),
            _ => None,
        }
    }

    pub(super) fn outbound_mut(&mut self, index: usize) -> Option<&mut OutboundHandshake> {
        match &mut self.slots.get_mut(index)?.state {
            ConnectionState::Outbound(handshake) => Some(handshake),
            _ => None,
        }
    }

    /// Takes an outbound handshake that has ended.
    pub(super) fn take_outbound(&mut self, index: usize) -> Option<OutboundHandshake> {
        self.outbound(index)?;
        self.deadlines.remove(index);
        self.verifications.end(index);
        match self.slots.remove(index).state {
            ConnectionState::Outbound(handshake) => Some(handshake),
            _ => None,
        }
    }

    /// Returns whether one more verification for claims of a source may begin.
    pub(super) fn may_verify(&self, source: InboundSource) -> bool {
        self.verifications.has_room(source)
    }
}

/// Established connections.
impl Connections {
    /// Returns a key that no established connection has.
    pub(super) fn generate_key(&mut self) -> PeerKey {
        self.keys.generate()
    }

    /// Adds an established connection, which is active. Returns its index.
    pub(super) fn add_established(&mut self, connection: TcpConnection) -> usize {
        let (key, kept) = (connection.peer.key(), connection.unconsumed_len());
        let index = self.insert(ConnectionState::Established(Box::new(connection)));
        self.established_count += 1;
        self.keys.insert(key, index);
        self.read_memory.set_kept(0, kept);
        self.mark_active(index);
        index
    }

    /// Removes an established connection.
    pub(super) fn remove_established(&mut self, index: usize) -> Option<Box<TcpConnection>> {
        self.established(index)?;
        let slot = self.slots.remove(index);
        let ConnectionState::Established(connection) = slot.state else {
            return None;
        };
        if slot.is_active {
            self.active.retain(|active| *active != index);
        }
        self.held.remove(index);
        self.established_count -= 1;
        self.keys.remove(connection.peer.key());
        self.deadlines.remove(index);
        self.inbound.remove(index);
        self.read_memory.set_kept(connection.unconsumed_len(), 0);
        Some(connection)
    }

    /// Returns the established connection with this index.
    #[inline]
    pub(super) fn established(&self, index: usize) -> Option<&TcpConnection> {
        match &self.slots.get(index)?.state {
            ConnectionState::Established(connection) => Some(connection),
            _ => None,
        }
    }

    /// Returns the established connection with this index.
    #[inline]
    pub(super) fn established_mut(&mut self, index: usize) -> Option<&mut TcpConnection> {
        match &mut self.slots.get_mut(index)?.state {
            ConnectionState::Established(connection) => Some(connection),
            _ => None,
        }
    }

    /// Returns the index of the established connection with this key.
    pub(super) fn with_key(&self, key: PeerKey) -> Option<usize> {
        self.keys.index_of(key)
    }

    pub(super) fn established_count(&self) -> usize {
        self.established_count
    }

    /// Iterates over the established connections, with their indices.
    pub(super) fn all_established(&self) -> impl Iterator<Item = (usize, &TcpConnection)> {
        let established = |(index, slot): (usize, _)| match slot {
            &Slot {
                state: ConnectionState::Established(ref connection),
                ..
            } => Some((index, &**connection)),
            _ => None,
        };
        self.slots.iter().filter_map(established)
    }

    /// Iterates over the established connections.
    pub(super) fn all_established_mut(&mut self) -> impl Iterator<Item = &mut TcpConnection> {
        let states = self.slots.iter_mut().map(|(_, slot)| &mut slot.state);
        states.filter_map(|state| match state {
            ConnectionState::Established(connection) => Some(&mut **connection),
            _ => None,
        })
    }

    /// Removes the established connections, of an endpoint that is dropped.
    pub(super) fn drain_established(&mut self) -> impl Iterator<Item = Box<TcpConnection>> {
        self.slots.drain().filter_map(|slot| match slot.state {
            ConnectionState::Established(connection) => Some(connection),
            _ => None,
        })
    }
}

/// Limits of inbound connections.
impl Connections {
    /// Checks that one more connection of a source may be established.
    ///
    /// # Errors
    /// As [`InboundConnections::check_room`].
    pub(super) fn check_room(&self, source: InboundSource) -> Result<(), Error> {
        // Closed connections whose peers do not take what was sent have their descriptors still.
        self.inbound
            .check_room(source, linger::count_unsent(source))
    }

    /// Returns the next established connections that may give room to a connection of this source.
    pub(super) fn next_to_check(&mut self, source: InboundSource) -> Vec<usize> {
        self.inbound.next_to_check(source)
    }

    /// Counts an established connection towards the limits of its source.
    pub(super) fn count_inbound(&mut self, index: usize, source: InboundSource) {
        self.inbound.add(index, source);
    }

    /// Counts a connection that was refused because of a limit.
    pub(super) fn count_refused(&mut self) {
        self.inbound.count_refused();
    }

    /// Returns the number of connections that were refused because of a limit.
    pub(super) fn refused(&self) -> u64 {
        self.inbound.refused()
    }
}

/// Active connections, and those that hold messages.
impl Connections {
    /// Adds an established connection to those that every pass polls.
    #[inline]
    pub(super) fn mark_active(&mut self, index: usize) {
        if let Some(slot) = self.slots.get_mut(index)
            && matches!(slot.state, ConnectionState::Established(_))
            && !std::mem::replace(&mut slot.is_active, true)
        {
            self.active.push(index);
        }
    }

    /// Returns the index of the active connection at this position.
    #[inline]
    pub(super) fn active_at(&self, position: usize) -> Option<usize> {
        self.active.get(position).copied()
    }

    /// Removes the connection at this position from the active ones. Another one takes the
    /// position.
    pub(super) fn deactivate(&mut self, position: usize) {
        let index = self.active.swap_remove(position);
        if let Some(slot) = self.slots.get_mut(index) {
            slot.is_active = false;
        }
    }

    pub(super) fn is_active(&self, index: usize) -> bool {
        self.slots.get(index).is_some_and(|slot| slot.is_active)
    }

    /// Iterates over the active connections, with their indices.
    pub(super) fn all_active(&self) -> impl Iterator<Item = (usize, &TcpConnection)> {
        let active = self.active.iter();
        active.filter_map(|index| Some((*index, self.established(*index)?)))
    }

    /// Returns whether no connection is active or holds a message.
    pub(super) fn is_idle(&self) -> bool {
        self.active.is_empty() && self.held.is_empty()
    }

    /// Receives what has arrived at the active connection at this position. Returns its index, the
    /// connection, and whether anything was processed; `None` behind the last position.
    #[inline]
    pub(super) fn receive_active<E: EngineContext>(
        &mut self,
        position: usize,
        ctx: &mut EndpointContext<'_, E>,
    ) -> Option<(usize, &mut TcpConnection, bool)> {
        let index = self.active_at(position)?;
        let (connection, received) = self.receive_with(index, ctx, TcpConnection::progress_rx)?;
        Some((index, connection, received))
    }

    /// Receives what has arrived at a connection. Returns whether anything was processed.
    pub(super) fn receive<E: EngineContext>(
        &mut self,
        index: usize,
        ctx: &mut EndpointContext<'_, E>,
    ) -> bool {
        let received = self.receive_with(index, ctx, TcpConnection::progress_rx);
        received.is_some_and(|(_, received)| received)
    }

    /// Receives what has arrived so far at a connection that will be closed, or only received from.
    pub(super) fn drain_received<E: EngineContext>(
        &mut self,
        index: usize,
        ctx: &mut EndpointContext<'_, E>,
    ) -> Option<&mut TcpConnection> {
        let drained = self.receive_with(index, ctx, TcpConnection::drain_received);
        drained.map(|(connection, ())| connection)
    }

    #[inline(always)] // on the path of each pass
    fn receive_with<E: EngineContext, T>(
        &mut self,
        index: usize,
        ctx: &mut EndpointContext<'_, E>,
        receive: impl FnOnce(&mut TcpConnection, &mut ReadMemory, &mut EndpointContext<'_, E>) -> T,
    ) -> Option<(&mut TcpConnection, T)> {
        let slot = self.slots.get_mut(index)?;
        let ConnectionState::Established(connection) = &mut slot.state else {
            return None;
        };
        #[cfg(all(test, not(loom)))]
        {
            self.polls += 1;
        }
        let changes = ctx.changes_for_held();
        let received = receive(connection, &mut self.read_memory, ctx);
        let is_held = connection.has_held_messages();
        self.held.set(index, is_held.then_some(changes));
        Some((connection, received))
    }

    /// Returns how many connections hold messages.
    pub(super) fn held_count(&self) -> usize {
        self.held.len()
    }

    /// Returns the connection that is to be tried next, of those that hold messages, if it is due.
    pub(super) fn next_due(&self, changes: u64) -> Option<usize> {
        self.held.next_due(changes)
    }

    /// Makes due connections active, at most [`TRIES_PER_PASS`], so that this pass tries them.
    #[inline]
    pub(super) fn activate_due(&mut self, changes: u64) {
        if self.next_due(changes).is_some() {
            self.activate_all_due(changes);
        }
    }

    #[cold]
    fn activate_all_due(&mut self, changes: u64) {
        for index in self.held.due(changes).take(TRIES_PER_PASS) {
            if let Some(slot) = self.slots.get_mut(index)
                && !std::mem::replace(&mut slot.is_active, true)
            {
                self.active.push(index);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
impl Connections {
    /// Returns how many connections are active, and how many hold messages.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.active.len(), self.held.len())
    }

    /// Returns the number of times that a connection was polled.
    pub(super) fn polls(&self) -> usize {
        self.polls
    }
}

/// Deadlines.
impl Connections {
    /// Sets the deadline of a connection to what the connection has now.
    pub(super) fn update_deadline(&mut self, index: usize) {
        match self.deadline_of(index) {
            Some(deadline) => self.deadlines.set(index, deadline),
            None => self.deadlines.remove(index),
        }
    }

    /// Returns the deadline of a connection for the endpoint's timer; `None` if there is none, or
    /// the kernel enforces the deadline.
    fn deadline_of(&self, index: usize) -> Option<Instant> {
        match &self.slots.get(index)?.state {
            ConnectionState::Inbound(handshake) => Some(handshake.deadline),
            ConnectionState::Outbound(handshake) => handshake.local_deadline(),
            ConnectionState::Established(connection) => connection.probe_deadline(),
        }
    }

    /// Returns the earliest deadline.
    pub(super) fn earliest_deadline(&self) -> Option<Instant> {
        self.deadlines.earliest()
    }

    /// Returns a connection whose deadline has passed, and removes the deadline.
    pub(super) fn pop_expired(&mut self, now: Instant) -> Option<usize> {
        while let Some(index) = self.deadlines.pop_expired(now) {
            match self.deadline_of(index) {
                Some(deadline) if deadline > now => self.deadlines.set(index, deadline),
                Some(_) => return Some(index),
                None => {}
            }
        }
        None
    }
}
