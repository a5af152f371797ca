//! Limits of incoming connections: of peers that the program has not inserted, and of ended peers
//! whose rings still hold messages.
//!
//! A connection takes two descriptors: its socket, and the pidfd of the peer's process if the
//! endpoint can read that process's memory. When the peer ends, both are closed. A connection whose
//! ring still has messages then keeps its mapping, and counts until the ring is empty.
//!
//! The source of a connection is the process of the peer, if the kernel knows it; all processes
//! that the kernel does not know are one source.
//!
//! Connections of peers that the program has inserted do not count. Any process can claim a name,
//! so a name has at most two such connections at a time: the first one, and one from the process
//! that the endpoint's own connection to that name leads to. While two earlier ones have ended and
//! their rings still hold messages, the next one counts.

use std::collections::VecDeque;

use fabric_core::transport::{EndpointContext, EngineContext};
use fabric_core::{Error, FiAddr, SocketOptions};

use super::super::control::ControlMessage;
use super::super::rx_connection::ReceivedHello;
use super::ShmEndpoint;
use crate::transport::inbound_limits::{InboundConnections, InboundLimits};

/// Descriptors of a connection: the socket, and the pidfd of the peer's process.
const DESCRIPTORS_PER_CONNECTION: usize = 2;
/// Maximum number of connections that inserted peers have left behind, with messages in their
/// rings. Beyond the limit the oldest one is closed.
const MAX_UNDRAINED_EXEMPT: usize = 64;

/// Maximum number of exempt connections of one name that peers have left behind. Beyond the limit
/// the next connection of the name counts.
const MAX_UNDRAINED_OF_NAME: usize = 2;

/// The incoming connections of an endpoint that count, and those that peers have left behind.
#[derive(Debug)]
pub(super) struct RxLimits {
    /// Connections of peers that the program had not inserted when they connected.
    counted: InboundConnections<Option<u64>>,
    /// The counted connections whose peers have ended, the oldest first.
    undrained: VecDeque<usize>,
    /// The other connections whose peers have ended, the oldest first.
    undrained_exempt: VecDeque<usize>,
}

impl RxLimits {
    pub(super) fn new(options: &SocketOptions) -> Self {
        let of_one_source = "inbound connections from one process";
        let limits = InboundLimits::new(options, of_one_source, DESCRIPTORS_PER_CONNECTION);
        Self {
            counted: InboundConnections::new(limits),
            undrained: VecDeque::new(),
            undrained_exempt: VecDeque::new(),
        }
    }

    /// Returns the number of connections that were refused because of a limit.
    pub(super) fn refused(&self) -> u64 {
        self.counted.refused()
    }

    /// Counts a connection that was refused because of a limit.
    pub(super) fn count_refused(&mut self) {
        self.counted.count_refused();
    }

    /// Counts a connection of this process.
    pub(super) fn add(&mut self, rx_index: usize, process: Option<u64>) {
        self.counted.add(rx_index, process);
    }

    /// Handles that the peer of a connection has ended; `has_descriptors` tells whether the
    /// connection still has any.
    pub(super) fn on_peer_ended(&mut self, rx_index: usize, has_descriptors: bool) {
        if self.counted.source_of(rx_index).is_none() {
            return self.undrained_exempt.push_back(rx_index);
        }
        self.undrained.push_back(rx_index);
        if !has_descriptors {
            self.counted.release_descriptors(rx_index);
        }
    }

    /// Handles that a connection was removed.
    pub(super) fn on_removed(&mut self, rx_index: usize) {
        self.counted.remove(rx_index);
        self.undrained.retain(|undrained| *undrained != rx_index);
        self.undrained_exempt
            .retain(|undrained| *undrained != rx_index);
    }

    /// Returns the connections that may be closed for a connection of this process, in this order:
    /// those that the process itself has left behind, if it has reached its limit, or else those of
    /// all processes, the oldest first.
    fn evictable_for(&self, process: Option<u64>) -> impl Iterator<Item = usize> {
        let only_own = self.counted.is_source_full(process);
        let is_evictable =
            move |index: &usize| !only_own || self.counted.source_of(*index) == Some(process);
        self.undrained.iter().copied().filter(is_evictable)
    }
}

impl ShmEndpoint {
    /// Returns whether a connection does not count because the program has inserted its peer.
    pub(super) fn is_exempt(
        &mut self,
        ctx: &EndpointContext<'_, impl EngineContext>,
        hello: &ReceivedHello,
    ) -> bool {
        let (name, process) = (hello.from(), hello.process());
        let Some(addr) = ctx.fi_addr_of(name) else {
            return false;
        };
        let (mut has_other, mut has_own, mut undrained) = (false, false, 0);
        let limits = &self.rx_limits;
        self.rx_connections.for_each_at(name, |rx_index, rx| {
            if limits.counted.source_of(rx_index).is_some() {
                return;
            }
            if rx.down_reason().is_some() {
                undrained += 1;
            } else {
                has_other = true;
                has_own |= rx.identity.process == process;
            }
        });
        if undrained >= MAX_UNDRAINED_OF_NAME {
            return false;
        }
        !has_other || !has_own && self.leads_to(addr, process)
    }

    /// Returns whether the endpoint has connected to a process by this handle.
    pub(super) fn leads_to(&self, addr: FiAddr, process: Option<u64>) -> bool {
        let tx = self.tx_connection(addr);
        let identity = tx.and_then(|tx| tx.identity());
        process.is_some() && identity.is_some_and(|peer| peer.process == process)
    }

    /// Checks that one more connection of a process may be established. At a limit, a connection is
    /// closed whose peer has ended and whose oldest message waits for a receive or for the budget;
    /// its messages are discarded.
    ///
    /// # Errors
    /// As [`InboundConnections::check_room`]; the refusal is counted.
    pub(super) fn make_rx_room(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        process: Option<u64>,
    ) -> Result<(), Error> {
        // Connections that peers have left behind have no descriptors, so closing them makes room
        // within the limits of connections only.
        while self.rx_limits.counted.is_full() || self.rx_limits.counted.is_source_full(process) {
            let mut evictable = self.rx_limits.evictable_for(process);
            let Some(oldest) = evictable.find(|rx_index| self.holds_record(*rx_index)) else {
                break;
            };
            drop(evictable);
            self.close_undrained(ctx, oldest);
        }
        let room = self.rx_limits.counted.check_room(process, (0, 0));
        if room.is_err() {
            self.rx_limits.count_refused();
        }
        room
    }

    /// Closes the oldest connections with a held message that inserted peers have left behind, if
    /// there are too many: several peers may have ended before a pass found their messages.
    pub(super) fn limit_undrained_exempt(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) {
        while self.rx_limits.undrained_exempt.len() > MAX_UNDRAINED_EXEMPT {
            let undrained = self.rx_limits.undrained_exempt.iter().copied();
            let mut held = undrained.filter(|rx_index| self.holds_record(*rx_index));
            let oldest = held.next();
            let Some(oldest) = oldest.filter(|_| held.count() >= MAX_UNDRAINED_EXEMPT) else {
                return;
            };
            self.close_undrained(ctx, oldest);
        }
    }

    /// Returns whether the oldest record of a connection waits: a message for a receive or for the
    /// budget, an access for a region or a completion queue.
    fn holds_record(&self, rx_index: usize) -> bool {
        let rx = self.rx_connections.get(rx_index);
        rx.is_some_and(|rx| rx.has_held_record())
    }

    /// Closes a connection whose peer has ended, and discards the messages in its ring.
    fn close_undrained(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        rx_index: usize,
    ) {
        if let Some(rx) = self.rx_connections.get_mut(rx_index) {
            if let Some(len) = rx.declined_len() {
                ctx.on_held_discarded(rx.peer_address.clone(), rx.peer.source(), len);
            }
            rx.close(ControlMessage::Disconnect);
        }
        self.remove_rx_connection(ctx, rx_index);
    }
}
