//! The connections of an endpoint that hold a message or an access which the receive queue, a
//! locked region or a full completion queue does not accept now.
//!
//! The message stays where it is, and a pass does not poll the connection for it: the receive queue
//! would decline the message again. A held connection is *due* when
//! [`changes_for_held`] has grown since its last try. A pass
//! tries up to [`TRIES_PER_PASS`] of the due ones, the one that was tried longest ago first. So the
//! cost of a pass and of a posted receive does not grow with the number of connections that peers
//! make the endpoint hold, and each gets its turn.
//!
//! **Invariant.** Each connection that holds something is in the set, with the number of changes
//! from before its last try. So no change is missed: after a change during or after the try, the
//! numbers differ, and the connection is due. The domain does not sleep while a connection is due,
//! because `arm` refuses, and passes go on until none is. A change while the domain sleeps is one
//! of the engine, which reports the change (`on_rx_queue_changed`) or makes a pass; or a call
//! closes a connection, which requests that the domain is armed again. While a connection is held,
//! the engine reports posted receives.
//!
//! [`changes_for_held`]: fabric_core::transport::EndpointContext::changes_for_held

use std::collections::BTreeSet;

/// Number of held connections that are tried in a pass, and at a change of the receive queue.
pub(crate) const TRIES_PER_PASS: usize = 8;

/// The indices of the held connections.
#[derive(Debug, Default)]
pub(crate) struct HeldConnections {
    /// Each with the number of changes before its last try.
    by_last_try: BTreeSet<(u64, usize)>,
    /// The number of changes before the last try of each held connection, by index.
    last_tries: Vec<Option<u64>>,
}

impl HeldConnections {
    pub(crate) fn len(&self) -> usize {
        self.by_last_try.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_last_try.is_empty()
    }

    /// Records the result of a try: the connection is held, and there were `changes` before the
    /// try; or it is not held.
    #[inline]
    pub(crate) fn set(&mut self, index: usize, changes: Option<u64>) {
        if self.last_try(index) != changes {
            self.replace(index, changes);
        }
    }

    /// Removes a connection.
    pub(crate) fn remove(&mut self, index: usize) {
        self.set(index, None);
    }

    /// Returns the connection that is to be tried next, if any is due at this number of changes.
    #[inline]
    pub(crate) fn next_due(&self, changes: u64) -> Option<usize> {
        self.due(changes).next()
    }

    /// Returns the connections that are due at this number of changes, in the order of their last
    /// tries.
    #[inline]
    pub(crate) fn due(&self, changes: u64) -> impl Iterator<Item = usize> {
        let due = self.by_last_try.iter();
        let due = due.take_while(move |(last_try, _)| *last_try != changes);
        due.map(|(_, index)| *index)
    }

    #[inline]
    fn last_try(&self, index: usize) -> Option<u64> {
        self.last_tries.get(index).copied().flatten()
    }

    #[cold]
    fn replace(&mut self, index: usize, changes: Option<u64>) {
        if self.last_tries.len() <= index {
            self.last_tries.resize(index + 1, None);
        }
        if let Some(previous) = std::mem::replace(&mut self.last_tries[index], changes) {
            self.by_last_try.remove(&(previous, index));
        }
        self.by_last_try
            .extend(changes.map(|changes| (changes, index)));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Tries up to `count` due connections, all of which are declined.
    fn try_some(held: &mut HeldConnections, changes: u64, count: usize) -> Vec<usize> {
        let tried = (0..count).map_while(|_| {
            let index = held.next_due(changes)?;
            held.set(index, Some(changes));
            Some(index)
        });
        tried.collect()
    }

    fn hold(count: usize) -> HeldConnections {
        let mut held = HeldConnections::default();
        (0..count).for_each(|index| held.set(index, Some(0)));
        held
    }

    #[test]
    fn all_are_tried_once_after_a_change() {
        let mut held = hold(5);
        assert_eq!((held.len(), held.next_due(0)), (5, None));
        assert_eq!(try_some(&mut held, 1, 3), [0, 1, 2]);
        assert_eq!(try_some(&mut held, 1, 3), [3, 4]);
        assert_eq!(held.next_due(1), None);
    }

    #[test]
    fn tries_go_round_while_the_queue_changes() {
        let mut held = hold(5);
        let tried = (1..=4).flat_map(|changes| try_some(&mut held, changes, 3));
        let tried: Vec<_> = tried.collect();
        assert_eq!(tried[..6], [0, 1, 2, 3, 4, 0]);
        assert!((0..5).all(|index| tried[4..].contains(&index)), "{tried:?}");
    }

    #[test]
    fn removed_connection_is_not_tried() {
        let mut held = hold(4);
        for index in [0, 2, 9] {
            held.remove(index);
        }
        assert_eq!(held.len(), 2);
        assert_eq!(try_some(&mut held, 1, 9), [1, 3]);
        held.set(1, None);
        held.set(3, None);
        assert!(held.is_empty() && held.next_due(2).is_none());
    }
}
