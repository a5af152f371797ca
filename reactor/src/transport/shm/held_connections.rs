//! The incoming connections whose oldest message the receive queue has declined.
//!
//! The message stays in the ring, and a pass does not poll the connection: the receive queue would
//! decline the message again. When the queue has changed so that it may accept messages, all held
//! connections are *untried*. Each pass tries up to [`TRIES_PER_PASS`] of them, the one that was
//! tried longest ago first. So the cost of a pass and of a posted receive does not grow with the
//! number of connections that peers make the endpoint hold, and each gets its turn.
//!
//! **Invariant.** No wake-up is lost: a message that the queue would accept is tried before this
//! side sleeps.
//!
//! * A tried connection was declined when the count of changes
//!   ([`EndpointContext::changes_for_held`]) was at least `change_count`. The queue counts each
//!   change of its own by which it may accept what it has declined, and the engine reports the
//!   others ([`on_rx_queue_changed`]): `retry_all` makes all connections untried. While a
//!   connection is held, the endpoint has the engine report posted receives too.
//! * Thus, if the count equals `change_count`, the queue would decline the messages of all tried
//!   connections. Otherwise `needs_try` returns true, as it does while any connection is untried.
//!   The endpoint is not idle then and refuses to be armed, so another pass follows.
//! * A change of the connection itself (its peer has ended, or has got an address handle) makes the
//!   connection active, or all of them untried.
//!
//! [`EndpointContext::changes_for_held`]: fabric_core::transport::EndpointContext::changes_for_held
//! [`on_rx_queue_changed`]: fabric_core::transport::TransportEndpoint::on_rx_queue_changed

use std::collections::VecDeque;

/// Number of held connections that a pass tries.
pub(crate) const TRIES_PER_PASS: usize = 8;

/// The indices of the held connections.
#[derive(Debug, Default)]
pub(crate) struct HeldRxConnections {
    /// First the untried ones, then the tried ones, each in the order of their last try.
    queue: VecDeque<usize>,
    /// Number of untried ones.
    untried: usize,
    /// Count of changes of the receive queue when all were untried.
    change_count: u64,
}

impl HeldRxConnections {
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Makes room for this number of connections, so that holding one does not allocate.
    pub(crate) fn reserve(&mut self, count: usize) {
        self.queue.reserve(count.saturating_sub(self.queue.len()));
    }

    /// Adds a connection that has been tried just now.
    pub(crate) fn push_tried(&mut self, rx_index: usize) {
        self.queue.push_back(rx_index);
    }

    /// Removes a connection.
    pub(crate) fn remove(&mut self, rx_index: usize) {
        if let Some(position) = self.queue.iter().position(|held| *held == rx_index) {
            self.queue.remove(position);
            self.untried -= usize::from(position < self.untried);
        }
    }

    /// Makes all connections untried.
    pub(crate) fn retry_all(&mut self) {
        self.untried = self.queue.len();
    }

    /// Makes all connections untried if the receive queue has changed.
    pub(crate) fn observe(&mut self, change_count: u64) {
        if self.change_count != change_count {
            self.change_count = change_count;
            self.retry_all();
        }
    }

    /// Takes the next untried connection, to be polled.
    pub(crate) fn pop_untried(&mut self) -> Option<usize> {
        self.untried = self.untried.checked_sub(1)?;
        self.queue.pop_front()
    }

    /// Returns whether a connection is to be tried, given the count of changes.
    pub(crate) fn needs_try(&self, change_count: u64) -> bool {
        self.untried > 0 || !self.is_empty() && self.change_count != change_count
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Tries up to `count` connections, all of which are declined.
    fn try_some(held: &mut HeldRxConnections, count: usize) -> Vec<usize> {
        let tried: Vec<_> = (0..count).map_while(|_| held.pop_untried()).collect();
        tried.iter().for_each(|rx_index| held.push_tried(*rx_index));
        tried
    }

    #[test]
    fn all_are_tried_once_after_a_change() {
        let mut held = HeldRxConnections::default();
        assert!(!held.needs_try(7), "nothing is held");
        (0..5).for_each(|rx_index| held.push_tried(rx_index));
        held.observe(0);
        assert!(!held.needs_try(0) && held.needs_try(1));
        held.observe(1);
        assert_eq!(try_some(&mut held, 3), [0, 1, 2]);
        held.observe(1);
        assert!(held.needs_try(1));
        assert_eq!(try_some(&mut held, 3), [3, 4]);
        assert!(!held.needs_try(1));
        held.retry_all();
        assert!(held.needs_try(1));
    }

    #[test]
    fn tries_go_round_while_the_queue_changes() {
        let mut held = HeldRxConnections::default();
        (0..5).for_each(|rx_index| held.push_tried(rx_index));
        let tried = (1..=4).flat_map(|change_count| {
            held.observe(change_count);
            try_some(&mut held, 3)
        });
        assert_eq!(
            tried.collect::<Vec<_>>(),
            [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
        );
    }

    #[test]
    fn removed_connection_is_not_tried() {
        let mut held = HeldRxConnections::default();
        (0..4).for_each(|rx_index| held.push_tried(rx_index));
        held.retry_all();
        assert_eq!(try_some(&mut held, 1), [0]);
        // Of the tried ones, of the untried ones, and none.
        for rx_index in [0, 2, 9] {
            held.remove(rx_index);
        }
        assert_eq!(try_some(&mut held, 9), [1, 3]);
        assert!(!held.is_empty() && !held.needs_try(0));
    }
}
