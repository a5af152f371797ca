//! The incoming connections of an endpoint, active, idle and held.
//!
//! A pass polls every *active* connection. A connection whose oldest record cannot be processed now
//! is *held* (`held_connections`). With more than 8 connections, a connection that has sent nothing
//! for a long time while others are active becomes *idle*: its doorbell flag stays armed, so its
//! next message rings the doorbell over the Unix socket. A spinning thread polls sockets only every
//! 2048 passes, so each pass also polls one idle connection, round-robin. The cost of a pass is
//! therefore O(active), and arming and disarming the domain does not touch idle connections.
//!
//! Decision: a bitmap of rings with new records, shared by the senders, was rejected. Every message
//! would write to a shared cache line, and a sender could clear the bits of the others.
//!
//! **Invariant.** A connection is idle only if its ring was empty after its doorbell flag was
//! armed, or if its doorbell message is in the watched socket. A control message makes the
//! connection active, and so does a record that a pass finds in its ring. So the next message of an
//! idle connection wakes a sleeping receiver, and a receiver that goes to sleep need not check idle
//! connections. A peer that clears the flag without ringing the doorbell delays only its own
//! messages, until its connection is polled. The loom model `models/doorbell` checks this.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::time::Duration;

use fabric_core::Address;
use fabric_core::matching::PeerKey;
use slab::Slab;

use super::rx_connection::{PendingHandshake, RxConnection};
use crate::transport::held_connections::HeldConnections;
use crate::transport::peer_keys::PeerKeys;

/// Number of connections that a receive polls at most inline.
const MAX_INLINE_POLLS: usize = 8;
/// Passes without a message after which a connection becomes idle, if a pass polls up to
/// [`SHORT_PASS`] connections. A pass over more connections takes longer, so fewer passes are
/// enough.
const IDLE_PASSES: usize = 1024;
const SHORT_PASS: usize = 8;
/// Minimum number of such passes.
const MIN_IDLE_PASSES: usize = 64;
/// Pending handshakes that an endpoint may have, however many other endpoints of the process have.
const MIN_HANDSHAKES: usize = 4;

/// An incoming connection, before or after its handshake.
#[derive(Debug)]
enum RxSlot {
    /// The index is in use, and the caller that has reserved it has the connection.
    Reserved,
    Handshaking(PendingHandshake),
    Established(EstablishedRx),
}

/// An established connection, and how passes poll it.
#[derive(Debug)]
pub(crate) struct EstablishedRx {
    pub(crate) rx: Box<RxConnection>,
    polling: Polling,
    /// Number of the pass in which a record of this connection was last received.
    pub(crate) last_active: u32,
}

/// When passes poll a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Polling {
    /// In every pass.
    Active,
    /// In turn: the doorbell is armed.
    Idle,
    /// When the record that was left in the ring may be processed (`held_connections`).
    Held,
}

impl RxSlot {
    fn established(&self) -> Option<&RxConnection> {
        match self {
            Self::Established(established) => Some(&established.rx),
            Self::Reserved | Self::Handshaking(_) => None,
        }
    }

    fn established_mut(&mut self) -> Option<&mut EstablishedRx> {
        match self {
            Self::Established(established) => Some(established),
            Self::Reserved | Self::Handshaking(_) => None,
        }
    }
}

/// All incoming connections of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct RxConnections {
    /// All connections; the other fields refer to them by index.
    slots: Slab<RxSlot>,
    /// Established connections by name of the peer. A name may have several connections.
    by_address: HashMap<Address, Vec<usize>>,
    /// The keys of the established connections.
    keys: PeerKeys,
    /// Active connections.
    active: Vec<usize>,
    /// Idle connections; the front is polled next.
    idle: VecDeque<usize>,
    /// Held connections.
    held: HeldConnections,
    /// Connections whose handshake is pending, oldest first.
    handshaking: VecDeque<usize>,
    /// Number of passes made; wraps.
    passes: u32,
    /// Position in `active` of the connection that `poll_next` polls next.
    next_position: usize,
    /// Number of connections that `poll_next` polls. 0 while a connection is held, so that receives
    /// are posted and held messages get their turn.
    inline_polls: usize,
    /// Position in `active` of the connection that `demote_idle` checked last.
    demotion_cursor: usize,
}

impl RxConnections {
    /// Returns the number of connections, including pending handshakes.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Reserves an index for a connection.
    pub(crate) fn reserve(&mut self) -> usize {
        self.slots.insert(RxSlot::Reserved)
    }

    /// Releases a reserved index whose connection was not established.
    pub(crate) fn release(&mut self, rx_index: usize) {
        self.slots.try_remove(rx_index);
    }

    /// Adds a connection whose handshake is pending, at an index that is reserved.
    pub(crate) fn insert_handshake(&mut self, rx_index: usize, handshake: PendingHandshake) {
        self.slots[rx_index] = RxSlot::Handshaking(handshake);
        self.handshaking.push_back(rx_index);
    }

    /// Takes a pending handshake, whose index is then reserved.
    pub(crate) fn take_handshake(&mut self, rx_index: usize) -> Option<PendingHandshake> {
        let slot = self.slots.get_mut(rx_index)?;
        match std::mem::replace(slot, RxSlot::Reserved) {
            RxSlot::Handshaking(handshake) => {
                self.handshaking.retain(|pending| *pending != rx_index);
                Some(handshake)
            }
            other => {
                *slot = other;
                None
            }
        }
    }

    /// Evicts a pending handshake: the peer is told to connect again.
    fn evict(&mut self, rx_index: usize) {
        if let Some(handshake) = self.take_handshake(rx_index) {
            handshake.send_retry_later();
            self.release(rx_index);
        }
    }

    /// Makes room for another handshake if `max_of_process` of this process are pending, and
    /// [`MIN_HANDSHAKES`] of this endpoint: evicts the endpoint's oldest handshake if it is older
    /// than `timeout`. Returns false if there is no room.
    pub(crate) fn make_handshake_room(&mut self, max_of_process: usize, timeout: Duration) -> bool {
        let own = self.handshaking.len();
        let of_others = PendingHandshake::count_of_process().saturating_sub(own);
        let max_pending = max_of_process.saturating_sub(of_others);
        if own < max_pending.max(MIN_HANDSHAKES) {
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
        self.evict(oldest);
        true
    }

    /// Makes room for another handshake with a process that has its share of the handshakes of this
    /// process, if [`MIN_HANDSHAKES`] of them are of this endpoint: evicts the oldest of these if
    /// it is older than `timeout`. Returns false if there is no room.
    pub(crate) fn make_room_at_share(&mut self, process: Option<u64>, timeout: Duration) -> bool {
        let age_with_process = |index: &usize| match self.slots.get(*index) {
            Some(RxSlot::Handshaking(handshake)) => {
                (handshake.process() == process).then(|| handshake.age())
            }
            _ => None,
        };
        let own = self.handshaking.iter();
        let mut own = own.filter_map(|index| Some((*index, age_with_process(index)?)));
        let Some((oldest, age)) = own.next() else {
            return true;
        };
        if 1 + own.count() < MIN_HANDSHAKES {
            return true;
        }
        if age < timeout {
            return false;
        }
        self.evict(oldest);
        true
    }

    /// Returns a key for a connection that is established now: no other connection has the key.
    pub(crate) fn generate_key(&mut self) -> PeerKey {
        self.keys.generate()
    }

    /// Returns the index of the established connection with this key.
    pub(crate) fn index_of(&self, key: PeerKey) -> Option<usize> {
        self.keys.index_of(key)
    }

    /// Adds an established connection, which is active and has its key, at an index that is
    /// reserved.
    pub(crate) fn insert_established(&mut self, rx_index: usize, rx: Box<RxConnection>) {
        let (address, key) = (rx.peer_address.clone(), rx.peer.key());
        self.slots[rx_index] = RxSlot::Established(EstablishedRx {
            rx,
            polling: Polling::Active,
            last_active: self.passes,
        });
        self.by_address.entry(address).or_default().push(rx_index);
        self.keys.insert(key, rx_index);
        self.active.push(rx_index);
        self.update_inline_polls();
    }

    /// Removes an established connection.
    pub(crate) fn remove(&mut self, rx_index: usize) -> Option<RxConnection> {
        let rx = self.slots.get(rx_index)?.established()?;
        self.keys.remove(rx.peer.key());
        if let Some(connections) = self.by_address.get_mut(&rx.peer_address) {
            connections.retain(|open| *open != rx_index);
            if connections.is_empty() {
                self.by_address.remove(&rx.peer_address);
            }
        }
        self.active.retain(|active| *active != rx_index);
        self.idle.retain(|idle| *idle != rx_index);
        self.held.remove(rx_index);
        self.update_inline_polls();
        match self.slots.try_remove(rx_index)? {
            RxSlot::Established(established) => Some(*established.rx),
            RxSlot::Reserved | RxSlot::Handshaking(_) => None,
        }
    }

    /// Returns the established connection with this index.
    pub(crate) fn get(&self, rx_index: usize) -> Option<&RxConnection> {
        self.slots.get(rx_index)?.established()
    }

    /// Returns the established connection with this index.
    pub(crate) fn get_mut(&mut self, rx_index: usize) -> Option<&mut RxConnection> {
        self.established_slot(rx_index).map(|slot| &mut *slot.rx)
    }

    fn established_slot(&mut self, rx_index: usize) -> Option<&mut EstablishedRx> {
        self.slots.get_mut(rx_index)?.established_mut()
    }

    /// Returns all established connections.
    pub(crate) fn established(&self) -> impl Iterator<Item = &RxConnection> {
        self.slots.iter().filter_map(|(_, slot)| slot.established())
    }

    /// Calls `act` with every established connection from an endpoint of this name, and its index.
    pub(crate) fn for_each_at(
        &mut self,
        address: &Address,
        mut act: impl FnMut(usize, &mut RxConnection),
    ) {
        let connections = self.by_address.get(address);
        for &at in connections.map_or(&[][..], Vec::as_slice) {
            let slot = self.slots.get_mut(at).and_then(RxSlot::established_mut);
            if let Some(slot) = slot {
                act(at, &mut slot.rx);
            }
        }
    }

    /// Returns all established connections.
    pub(crate) fn established_mut(&mut self) -> impl Iterator<Item = &mut RxConnection> {
        self.slots
            .iter_mut()
            .filter_map(|(_, slot)| slot.established_mut().map(|slot| &mut *slot.rx))
    }

    /// Calls `act` with every established connection and its index.
    pub(crate) fn for_each_established(&mut self, mut act: impl FnMut(usize, &mut RxConnection)) {
        for (rx_index, slot) in &mut self.slots {
            if let RxSlot::Established(established) = slot {
                act(rx_index, &mut established.rx);
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
    pub(crate) fn active_mut(&mut self, position: usize) -> Option<(usize, &mut EstablishedRx)> {
        let rx_index = *self.active.get(position)?;
        Some((rx_index, self.established_slot(rx_index)?))
    }

    /// Returns the position in `active` behind this one, round-robin.
    #[inline(always)] // fast path of small messages
    fn position_after(&self, position: usize) -> usize {
        if position + 1 < self.active.len() {
            position + 1
        } else {
            0
        }
    }

    /// Sets how many connections [`poll_next`](Self::poll_next) polls, after a change of the active
    /// or the held ones.
    fn update_inline_polls(&mut self) {
        self.inline_polls = if self.held.is_empty() {
            self.active.len().min(MAX_INLINE_POLLS)
        } else {
            0
        };
    }

    /// Polls up to [`MAX_INLINE_POLLS`] active connections until `poll` breaks, with a message or
    /// without. The next call begins with the connection behind, so that a peer with many messages
    /// does not delay the others.
    #[inline(always)] // fast path of small messages
    pub(crate) fn poll_next<T>(
        &mut self,
        mut poll: impl FnMut(&mut RxConnection) -> ControlFlow<Option<T>>,
    ) -> Option<T> {
        for _ in 0..self.inline_polls {
            let position = self.next_position;
            self.next_position = self.position_after(position);
            let passes = self.passes;
            if let Some((_, slot)) = self.active_mut(position)
                && let ControlFlow::Break(message) = poll(&mut slot.rx)
            {
                slot.last_active = passes;
                return message;
            }
        }
        None
    }

    /// Takes the next idle connection out of the idle list, to be polled and passed to
    /// [`on_idle_polled`](Self::on_idle_polled).
    pub(crate) fn next_idle(&mut self) -> Option<usize> {
        self.idle.pop_front()
    }

    /// Handles the result of polling an idle connection: the connection becomes active if it has
    /// `progressed` or needs further polling, and otherwise stays idle.
    #[cold]
    pub(crate) fn on_idle_polled(&mut self, rx_index: usize, progressed: bool) {
        let passes = self.passes;
        let Some(slot) = self.established_slot(rx_index) else {
            return;
        };
        if !progressed && slot.rx.may_become_idle() {
            self.idle.push_back(rx_index);
            return;
        }
        slot.polling = Polling::Active;
        slot.rx.disarm();
        slot.last_active = passes;
        self.active.push(rx_index);
        self.update_inline_polls();
    }

    /// Makes an idle or held connection active, because its socket has a control message, or its
    /// peer has ended.
    pub(crate) fn activate(&mut self, rx_index: usize) {
        let passes = self.passes;
        let Some(slot) = self.established_slot(rx_index) else {
            return;
        };
        match std::mem::replace(&mut slot.polling, Polling::Active) {
            Polling::Active => return,
            Polling::Idle | Polling::Held => {}
        }
        slot.rx.disarm();
        slot.last_active = passes;
        self.idle.retain(|idle| *idle != rx_index);
        self.held.remove(rx_index);
        self.active.push(rx_index);
        self.update_inline_polls();
    }

    // ---- held connections

    /// Returns the number of held connections.
    pub(crate) fn held_count(&self) -> usize {
        self.held.len()
    }

    /// Returns whether any connection is held.
    #[inline]
    pub(crate) fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Makes the active connections held that have left their oldest record in the ring in this
    /// pass. `changes` is the number of changes before the pass, or less.
    #[cold]
    pub(crate) fn hold_active(&mut self, changes: u64) {
        let mut position = 0;
        while let Some((rx_index, slot)) = self.active_mut(position) {
            if slot.rx.has_held_record() {
                slot.polling = Polling::Held;
                self.active.swap_remove(position);
                self.held.set(rx_index, Some(changes));
            } else {
                position += 1;
            }
        }
        self.update_inline_polls();
    }

    /// Returns the held connection that is to be tried next, if any is due at this number of
    /// changes.
    #[inline]
    pub(crate) fn next_due(&self, changes: u64) -> Option<usize> {
        self.held.next_due(changes)
    }

    /// Polls a held or active connection with `poll`, which returns whether the connection has
    /// progressed. The connection stays held if it leaves its record in the ring again. There were
    /// `changes` before the poll.
    #[cold]
    pub(crate) fn try_held(
        &mut self,
        (rx_index, changes): (usize, u64),
        poll: impl FnOnce(usize, &mut RxConnection) -> bool,
    ) {
        let passes = self.passes;
        let Some(slot) = self.established_slot(rx_index) else {
            return;
        };
        if slot.polling == Polling::Idle {
            return;
        }
        if poll(rx_index, &mut slot.rx) {
            slot.last_active = passes;
        }
        if slot.polling == Polling::Active {
            // The next pass holds the connection if its record waits.
            return;
        }
        if slot.rx.has_held_record() {
            return self.held.set(rx_index, Some(changes));
        }
        slot.polling = Polling::Active;
        slot.rx.disarm();
        self.held.remove(rx_index);
        self.active.push(rx_index);
        self.update_inline_polls();
    }

    /// Returns the number of active connections.
    pub(crate) fn active_count(&self) -> usize {
        self.active.len()
    }

    /// Checks the next active connection, round-robin, and makes it idle if no message was received
    /// for long. `active_count` is the number of connections or endpoints that a pass polls.
    /// Returns true if a record has arrived just now, so that the connection stays active and
    /// another pass must follow.
    #[cold]
    pub(crate) fn demote_idle(&mut self, active_count: usize) -> bool {
        let idle_passes =
            (IDLE_PASSES * SHORT_PASS / active_count.max(SHORT_PASS)).max(MIN_IDLE_PASSES) as u32;
        self.demotion_cursor = self.position_after(self.demotion_cursor);
        let passes = self.passes;
        let Some((rx_index, slot)) = self.active_mut(self.demotion_cursor) else {
            return false;
        };
        if passes.wrapping_sub(slot.last_active) < idle_passes || !slot.rx.may_become_idle() {
            return false;
        }
        if slot.rx.arm() {
            slot.polling = Polling::Idle;
            self.active.swap_remove(self.demotion_cursor);
            self.idle.push_back(rx_index);
            self.update_inline_polls();
            return false;
        }
        slot.rx.disarm();
        true
    }

    // ---- sleeping

    /// Arms the doorbells of active connections before this side sleeps; those of idle connections
    /// are armed already. Returns false if a record can be received now.
    pub(crate) fn arm(&mut self) -> bool {
        let mut may_sleep = true;
        let mut position = 0;
        while let Some((_, slot)) = self.active_mut(position) {
            may_sleep &= slot.rx.arm();
            position += 1;
        }
        may_sleep
    }

    /// Disarms the doorbells of active connections after this side has slept.
    pub(crate) fn disarm(&mut self) {
        let mut position = 0;
        while let Some((_, slot)) = self.active_mut(position) {
            slot.rx.disarm();
            position += 1;
        }
    }
}
