//! Incoming connections, active and idle.
//!
//! A pass polls every *active* connection. With more than 8 connections, one that has sent nothing
//! for a long time while others are active becomes *idle*: its doorbell flag stays armed, so its
//! next message rings the doorbell over the Unix socket. A spinning thread polls sockets only every
//! 2048 passes, so each pass also polls one idle connection round-robin. The cost of a pass is
//! therefore O(active), and idle connections cost nothing when the domain arms and disarms.
//!
//! A bitmap of rings with new records, in memory that the senders share, was planned instead: it
//! would add a write to a shared cache line to every message, and one sender could hide the records
//! of the others.
//!
//! **Invariant.** A connection is idle only if its doorbell flag was armed and the ring was empty
//! afterwards, or if its doorbell message is in the socket, which is watched. A control message
//! makes the connection active, and so does a record that a pass finds in its ring. So the next
//! message of an idle connection wakes a sleeping receiver, and a receiver that goes to sleep need
//! not look at idle connections. A peer that clears the flag without ringing the doorbell delays
//! only its own messages, until its connection is polled. `models/doorbell` checks this.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use fabric_core::Address;
use slab::Slab;

use super::rx_connection::{PendingHandshake, RxConnection};

/// Number of connections up to which all are polled in every pass.
pub(crate) const ALWAYS_ACTIVE: usize = 8;
/// Passes without a message after which a connection becomes idle, if up to [`ALWAYS_ACTIVE`] are
/// active. With more, passes take longer, so fewer passes are enough.
const IDLE_PASSES: usize = 1024;
const MIN_IDLE_PASSES: usize = 64;

/// An incoming connection.
#[derive(Debug)]
pub(crate) enum RxSlot {
    Handshaking(PendingHandshake),
    Established(Box<RxConnection>),
}

impl RxSlot {
    pub(crate) fn established(&self) -> Option<&RxConnection> {
        match self {
            Self::Established(peer) => Some(peer),
            Self::Handshaking(_) => None,
        }
    }

    fn established_mut(&mut self) -> Option<&mut RxConnection> {
        match self {
            Self::Established(peer) => Some(peer),
            Self::Handshaking(_) => None,
        }
    }
}

/// All incoming connections of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct RxConnections {
    slots: Slab<RxSlot>,
    /// Established connections by the address of the peer, which may have several: the indices.
    by_address: HashMap<Address, Vec<usize>>,
    active: Vec<usize>,
    idle: VecDeque<usize>,
    /// Connections whose handshake is pending, oldest first.
    handshaking: VecDeque<usize>,
    /// Number of passes made.
    passes: u32,
    /// Index in `active` of the next connection to check for silence.
    demotion_cursor: usize,
}

impl RxConnections {
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the index that the next connection will get.
    pub(crate) fn vacant_key(&self) -> usize {
        self.slots.vacant_key()
    }

    pub(crate) fn is_handshaking(&self, connection_index: usize) -> bool {
        matches!(
            self.slots.get(connection_index),
            Some(RxSlot::Handshaking(_))
        )
    }

    /// Adds a connection whose handshake is pending.
    pub(crate) fn insert_handshake(&mut self, handshake: PendingHandshake) {
        let connection_index = self.slots.insert(RxSlot::Handshaking(handshake));
        self.handshaking.push_back(connection_index);
    }

    /// Removes a pending handshake, to advance it. The slab reuses its index for the next
    /// insertion.
    pub(crate) fn take_handshake(&mut self, connection_index: usize) -> Option<PendingHandshake> {
        if !self.is_handshaking(connection_index) {
            return None;
        }
        self.handshaking
            .retain(|pending| *pending != connection_index);
        match self.slots.remove(connection_index) {
            RxSlot::Handshaking(handshake) => Some(handshake),
            RxSlot::Established(_) => None,
        }
    }

    /// Returns whether another handshake may begin: fewer than `most` are pending, or the oldest
    /// one was pending for `timeout` and is dropped.
    pub(crate) fn make_handshake_room(&mut self, most: usize, timeout: Duration) -> bool {
        if self.handshaking.len() < most {
            return true;
        }
        let Some(&oldest) = self.handshaking.front() else {
            return false;
        };
        if let Some(RxSlot::Handshaking(handshake)) = self.slots.get(oldest)
            && handshake.age() < timeout
        {
            return false;
        }
        self.handshaking.pop_front();
        self.slots.try_remove(oldest);
        true
    }

    /// Adds an established connection.
    pub(crate) fn insert_established(&mut self, mut peer: Box<RxConnection>) -> usize {
        peer.last_active = self.passes;
        let address = peer.peer_address.clone();
        let connection_index = self.slots.insert(RxSlot::Established(peer));
        self.by_address
            .entry(address)
            .or_default()
            .push(connection_index);
        self.active.push(connection_index);
        connection_index
    }

    pub(crate) fn remove(&mut self, connection_index: usize) -> Option<RxConnection> {
        let address = &self
            .slots
            .get(connection_index)?
            .established()?
            .peer_address;
        if let Some(connections) = self.by_address.get_mut(address) {
            connections.retain(|open| *open != connection_index);
            if connections.is_empty() {
                self.by_address.remove(address);
            }
        }
        self.active.retain(|active| *active != connection_index);
        self.idle.retain(|idle| *idle != connection_index);
        match self.slots.try_remove(connection_index)? {
            RxSlot::Established(peer) => Some(*peer),
            RxSlot::Handshaking(_) => None,
        }
    }

    pub(crate) fn get_mut(&mut self, connection_index: usize) -> Option<&mut RxConnection> {
        self.slots.get_mut(connection_index)?.established_mut()
    }

    /// Returns all established connections.
    pub(crate) fn peers(&self) -> impl Iterator<Item = &RxConnection> {
        self.slots.iter().filter_map(|(_, slot)| slot.established())
    }

    /// Calls `act` with every established connection with the peer at this address.
    pub(crate) fn for_each_at(
        &mut self,
        address: &Address,
        mut act: impl FnMut(&mut RxConnection),
    ) {
        let connections = self.by_address.get(address);
        for &at in connections.map_or(&[][..], Vec::as_slice) {
            let peer = self.slots.get_mut(at).and_then(RxSlot::established_mut);
            if let Some(peer) = peer {
                act(peer);
            }
        }
    }

    pub(crate) fn peers_mut(&mut self) -> impl Iterator<Item = &mut RxConnection> {
        self.slots
            .iter_mut()
            .filter_map(|(_, slot)| slot.established_mut())
    }

    /// Calls `act` with every established connection and its index.
    pub(crate) fn for_each_peer(&mut self, mut act: impl FnMut(usize, &mut RxConnection)) {
        for (connection_index, slot) in &mut self.slots {
            if let RxSlot::Established(peer) = slot {
                act(connection_index, peer);
            }
        }
    }

    // ---- passes

    /// Begins a pass over the active connections. Returns the number of the pass.
    #[inline]
    pub(crate) fn begin_pass(&mut self) -> u32 {
        self.passes = self.passes.wrapping_add(1);
        self.passes
    }

    /// Returns the active connection at this position of `active`, and its index.
    #[inline]
    pub(crate) fn active_mut(&mut self, position: usize) -> Option<(usize, &mut RxConnection)> {
        let connection_index = *self.active.get(position)?;
        match self.slots.get_mut(connection_index) {
            Some(RxSlot::Established(peer)) => Some((connection_index, peer)),
            _ => None,
        }
    }

    /// Removes and returns the idle connection whose turn it is.
    #[inline]
    pub(crate) fn next_idle(&mut self) -> Option<usize> {
        self.idle.pop_front()
    }

    /// Handles the result of polling an idle connection: it becomes active if it had a message.
    #[cold]
    pub(crate) fn on_idle_polled(&mut self, connection_index: usize, progressed: bool) {
        let passes = self.passes;
        let Some(peer) = self.get_mut(connection_index) else {
            return;
        };
        if !progressed && peer.may_become_idle() {
            self.idle.push_back(connection_index);
            return;
        }
        peer.idle = false;
        peer.disarm();
        peer.last_active = passes;
        self.active.push(connection_index);
    }

    /// Makes a connection active.
    pub(crate) fn activate(&mut self, connection_index: usize) {
        let Some(peer) = self
            .slots
            .get_mut(connection_index)
            .and_then(RxSlot::established_mut)
        else {
            return;
        };
        if std::mem::take(&mut peer.idle) {
            peer.disarm();
            peer.last_active = self.passes;
            self.idle.retain(|idle| *idle != connection_index);
            self.active.push(connection_index);
        }
    }

    pub(crate) fn active_count(&self) -> usize {
        self.active.len()
    }

    /// Makes one active connection idle if it has been silent for long; `active_count` is the
    /// number of connections or endpoints that a pass polls. Returns true if the connection has
    /// just received something instead.
    #[cold]
    pub(crate) fn demote_idle(&mut self, active_count: usize) -> bool {
        let idle_passes = (IDLE_PASSES * ALWAYS_ACTIVE / active_count.max(ALWAYS_ACTIVE))
            .max(MIN_IDLE_PASSES) as u32;
        self.demotion_cursor = if self.demotion_cursor + 1 < self.active.len() {
            self.demotion_cursor + 1
        } else {
            0
        };
        let Some(&connection_index) = self.active.get(self.demotion_cursor) else {
            return false;
        };
        let Some(peer) = self
            .slots
            .get_mut(connection_index)
            .and_then(RxSlot::established_mut)
        else {
            return false;
        };
        if self.passes.wrapping_sub(peer.last_active) < idle_passes || !peer.may_become_idle() {
            return false;
        }
        peer.idle = peer.arm();
        if peer.idle {
            self.active.swap_remove(self.demotion_cursor);
            self.idle.push_back(connection_index);
            return false;
        }
        peer.disarm();
        true
    }

    // ---- sleeping

    /// Arms the doorbells of active connections before sleeping; idle ones are armed already.
    /// Returns false if something can progress now.
    pub(crate) fn arm(&mut self) -> bool {
        let mut quiet = true;
        for &connection_index in &self.active {
            quiet &= self
                .slots
                .get_mut(connection_index)
                .and_then(RxSlot::established_mut)
                .is_none_or(RxConnection::arm);
        }
        quiet
    }

    pub(crate) fn disarm(&mut self) {
        for &connection_index in &self.active {
            if let Some(peer) = self
                .slots
                .get_mut(connection_index)
                .and_then(RxSlot::established_mut)
            {
                peer.disarm();
            }
        }
    }
}
