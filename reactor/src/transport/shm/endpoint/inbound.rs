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
//! that the endpoint's own connection to that name leads to.

use std::collections::VecDeque;

use fabric_core::transport::{EndpointContext, EngineContext};
use fabric_core::{Error, SocketOptions};

use super::super::control::ControlMessage;
use super::super::rx_connection::ReceivedHello;
use super::ShmEndpoint;
use crate::transport::inbound::{InboundConnections, InboundLimits};

/// Descriptors of a connection: the socket, and the pidfd of the peer's process.
const DESCRIPTORS_PER_CONNECTION: usize = 2;
/// Maximum number of connections that inserted peers have left behind, with messages in their
/// rings. Beyond the limit the oldest one is closed.
const MAX_LEFT_BY_INSERTED: usize = 64;

/// The incoming connections of an endpoint that count, and those that peers have left behind.
#[derive(Debug)]
pub(super) struct RxLimits {
    /// Connections of peers that the program had not inserted when they connected.
    counted: InboundConnections<Option<u64>>,
    /// The counted connections whose peers have ended, the oldest first.
    left: VecDeque<usize>,
    /// The other connections whose peers have ended, the oldest first.
    left_by_inserted: VecDeque<usize>,
}

impl RxLimits {
    pub(super) fn new(options: &SocketOptions) -> Self {
        let of_one_source = "inbound connections from one process";
        let limits = InboundLimits::new(options, of_one_source, DESCRIPTORS_PER_CONNECTION);
        Self {
            counted: InboundConnections::new(limits),
            left: VecDeque::new(),
            left_by_inserted: VecDeque::new(),
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
            return self.left_by_inserted.push_back(rx_index);
        }
        self.left.push_back(rx_index);
        if !has_descriptors {
            self.counted.release_descriptors(rx_index);
        }
    }

    /// Handles that a connection was removed.
    pub(super) fn on_removed(&mut self, rx_index: usize) {
        self.counted.remove(rx_index);
        self.left.retain(|left| *left != rx_index);
        self.left_by_inserted.retain(|left| *left != rx_index);
    }

    /// Returns the connections that may be closed for a connection of this process, in this order:
    /// those that the process itself has left behind, if it has reached its limit, or else those of
    /// all processes, the oldest first.
    fn left_for(&self, process: Option<u64>) -> impl Iterator<Item = usize> {
        let of_own = self.counted.is_source_full(process);
        let gives = move |index: &usize| !of_own || self.counted.source_of(*index) == Some(process);
        self.left.iter().copied().filter(gives)
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
        let (mut has_other, mut has_own) = (false, false);
        let limits = &self.rx_limits;
        self.rx_connections.for_each_at(name, |rx_index, rx| {
            if rx.down_reason().is_none() && limits.counted.source_of(rx_index).is_none() {
                has_other = true;
                has_own |= rx.identity.process == process;
            }
        });
        let leads_here = || {
            let tx = self.tx_connection(addr);
            let identity = tx.and_then(|tx| tx.identity());
            process.is_some() && identity.is_some_and(|peer| peer.process == process)
        };
        !has_other || !has_own && leads_here()
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
            let mut left = self.rx_limits.left_for(process);
            let Some(oldest) = left.find(|rx_index| self.holds_record(*rx_index)) else {
                break;
            };
            drop(left);
            self.discard_left(ctx, oldest);
        }
        let room = self.rx_limits.counted.check_room(process, (0, 0));
        if room.is_err() {
            self.rx_limits.count_refused();
        }
        room
    }

    /// Closes the oldest connection with a held message that an inserted peer has left behind, if
    /// there are too many.
    pub(super) fn limit_left_by_inserted(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) {
        if self.rx_limits.left_by_inserted.len() <= MAX_LEFT_BY_INSERTED {
            return;
        }
        let left = self.rx_limits.left_by_inserted.iter().copied();
        let mut held = left.filter(|rx_index| self.holds_record(*rx_index));
        if let Some(oldest) = held.next()
            && held.count() >= MAX_LEFT_BY_INSERTED
        {
            self.discard_left(ctx, oldest);
        }
    }

    /// Returns whether the oldest record of a connection waits: a message for a receive or for the
    /// budget, an access for a region or a completion queue.
    fn holds_record(&self, rx_index: usize) -> bool {
        let rx = self.rx_connections.get(rx_index);
        rx.is_some_and(|rx| rx.has_held_record())
    }

    /// Closes a connection whose peer has ended, and discards the messages in its ring.
    fn discard_left(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>, rx_index: usize) {
        if let Some(rx) = self.rx_connections.get_mut(rx_index) {
            if let Some(len) = rx.declined_len() {
                ctx.on_held_discarded(rx.peer_address.clone(), rx.source, len);
            }
            rx.close(ControlMessage::Disconnect);
        }
        self.remove_rx_connection(ctx, rx_index);
    }
}
