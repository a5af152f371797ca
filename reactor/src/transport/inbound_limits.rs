//! Limits of the connections that endpoints have accepted from peers whose address the program has
//! not inserted.
//!
//! Such connections are counted for each endpoint and for each *source*, so that one source leaves
//! room for the others: an address over `tcp`, a process over `shm`. The connections of all
//! endpoints of this process, over `tcp` and `shm`, take their descriptors from one part of
//! `RLIMIT_NOFILE`.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};

use fabric_core::{Error, SocketOptions};

use crate::sys::fd_limit::max_descriptors;

/// Default of `SocketOptions::max_inbound`.
const DEFAULT_MAX_INBOUND: usize = 4096;

/// Maximum number of connections that are examined at each refusal for one that can be closed.
const MAX_CHECKED: usize = 64;

/// Descriptors of the counted connections of all endpoints of this process, and other descriptors
/// that peers make this process keep.
static INBOUND_DESCRIPTORS: AtomicUsize = AtomicUsize::new(0);

/// Returns how many descriptors of this process inbound connections may use: three quarters of
/// `RLIMIT_NOFILE`.
fn max_inbound_descriptors() -> usize {
    let limit = max_descriptors();
    limit - limit / 4
}

/// Counts a descriptor of a peer that is no connection. Returns false, with nothing counted, if
/// peers make this process keep as many descriptors as they may.
pub(crate) fn try_add_descriptor() -> bool {
    let max = max_inbound_descriptors();
    let added = INBOUND_DESCRIPTORS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
        (count < max).then_some(count + 1)
    });
    added.is_ok()
}

/// Handles that a descriptor that was counted with [`try_add_descriptor`] is closed.
pub(crate) fn remove_descriptor() {
    INBOUND_DESCRIPTORS.fetch_sub(1, Ordering::Relaxed);
}

/// The limits of an endpoint, and what one of its connections uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InboundLimits {
    /// Connections of all sources.
    connections: usize,
    /// Connections of one source, if the program has set their limit.
    connections_per_source: Option<usize>,
    /// What a source is called in errors: "inbound connections from one ...".
    of_one_source: &'static str,
    /// Descriptors of a connection.
    descriptors: usize,
}

impl InboundLimits {
    /// Returns the limits of the options, or else 4096 for all sources. `of_one_source` names the
    /// connections of one source in errors; each connection takes this number of descriptors.
    pub(crate) fn new(
        options: &SocketOptions,
        of_one_source: &'static str,
        descriptors: usize,
    ) -> Self {
        Self {
            connections: options.max_inbound.unwrap_or(DEFAULT_MAX_INBOUND),
            connections_per_source: options.max_inbound_per_source,
            of_one_source,
            descriptors,
        }
    }

    /// Returns the limit of connections of one source: that of the options, or else half of the
    /// smaller of the limits of the endpoint and of the process.
    fn connections_per_source(&self, max_descriptors: usize) -> usize {
        let smallest = self.connections.min(max_descriptors / self.descriptors);
        self.connections_per_source.unwrap_or(smallest.div_ceil(2))
    }
}

/// The connections of an endpoint that count towards a limit, by their index.
#[derive(Debug)]
pub(crate) struct InboundConnections<S> {
    limits: InboundLimits,
    /// The source of each connection, and the descriptors that the connection has.
    connections: HashMap<usize, (S, usize)>,
    /// The connections of each source.
    of_source: HashMap<S, BTreeSet<usize>>,
    /// Where the next check of connections begins.
    next_checked: usize,
    /// Number of connections that were refused because of a limit.
    refused: u64,
}

impl<S: Copy + Eq + Hash> InboundConnections<S> {
    pub(crate) fn new(limits: InboundLimits) -> Self {
        Self {
            limits,
            connections: HashMap::new(),
            of_source: HashMap::new(),
            next_checked: 0,
            refused: 0,
        }
    }

    /// Returns the number of connections that were refused because of a limit.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    /// Counts a connection that was refused because of a limit.
    pub(crate) fn count_refused(&mut self) {
        self.refused += 1;
    }

    /// Returns the source of a connection; `None` if the connection does not count.
    pub(crate) fn source_of(&self, index: usize) -> Option<S> {
        self.connections.get(&index).map(|(source, _)| *source)
    }

    /// Checks that one more connection of a source may be established. `(closed_of_source, closed)`
    /// are numbers of closed connections that still have their descriptors, of the source and in
    /// all.
    ///
    /// # Errors
    /// [`Error::TooMany`] at a limit.
    pub(crate) fn check_room(
        &self,
        source: S,
        (closed_of_source, closed): (usize, usize),
    ) -> Result<(), Error> {
        let of_source = self.of_source.get(&source);
        let (max_descriptors, own) = (max_inbound_descriptors(), self.limits.descriptors);
        let counts = [
            (
                self.limits.of_one_source,
                of_source.map_or(0, BTreeSet::len) + closed_of_source + 1,
                self.limits.connections_per_source(max_descriptors),
            ),
            (
                "inbound connections of the endpoint",
                self.connections.len() + 1,
                self.limits.connections,
            ),
            (
                "descriptors of inbound connections of the process (RLIMIT_NOFILE)",
                INBOUND_DESCRIPTORS.load(Ordering::Relaxed) + closed + own,
                max_descriptors,
            ),
        ];
        match counts.into_iter().find(|(_, count, limit)| count > limit) {
            Some((what, count, limit)) => Err(Error::TooMany { what, count, limit }),
            None => Ok(()),
        }
    }

    /// Returns whether the endpoint has as many connections as it may have.
    pub(crate) fn is_full(&self) -> bool {
        self.connections.len() >= self.limits.connections
    }

    /// Returns whether this source has as many connections as one source may have.
    pub(crate) fn is_source_full(&self, source: S) -> bool {
        let of_source = self.of_source.get(&source).map_or(0, BTreeSet::len);
        of_source
            >= self
                .limits
                .connections_per_source(max_inbound_descriptors())
    }

    /// Returns the next connections that may give room to a connection of this source: of the
    /// source itself, if it has reached its limit, or else of the source with most. Calls go
    /// through all of them in turn.
    pub(crate) fn next_to_check(&mut self, source: S) -> Vec<usize> {
        let own = self.of_source.get(&source);
        let own = own.filter(|_| self.is_source_full(source));
        let most = || self.of_source.values().max_by_key(|of| of.len());
        let Some(of_source) = own.or_else(most) else {
            return Vec::new();
        };
        let (before, after) = (..self.next_checked, self.next_checked..);
        let in_turn = of_source.range(after).chain(of_source.range(before));
        let checked: Vec<_> = in_turn.copied().take(MAX_CHECKED).collect();
        self.next_checked = checked.last().map_or(0, |last| last + 1);
        checked
    }

    /// Counts an established connection of a source.
    pub(crate) fn add(&mut self, index: usize, source: S) {
        let descriptors = self.limits.descriptors;
        self.connections.insert(index, (source, descriptors));
        self.of_source.entry(source).or_default().insert(index);
        INBOUND_DESCRIPTORS.fetch_add(descriptors, Ordering::Relaxed);
    }

    /// Handles that a connection, which may be counted, has closed its descriptors. The connection
    /// still counts towards the limits of connections.
    pub(crate) fn release_descriptors(&mut self, index: usize) {
        if let Some((_, descriptors)) = self.connections.get_mut(&index) {
            let released = std::mem::take(descriptors);
            INBOUND_DESCRIPTORS.fetch_sub(released, Ordering::Relaxed);
        }
    }

    /// Handles the end of a connection, which may be counted.
    pub(crate) fn remove(&mut self, index: usize) {
        self.release_descriptors(index);
        let Some((source, _)) = self.connections.remove(&index) else {
            return;
        };
        if let Some(of_source) = self.of_source.get_mut(&source) {
            of_source.remove(&index);
            if of_source.is_empty() {
                self.of_source.remove(&source);
            }
        }
    }
}

impl<S> Drop for InboundConnections<S> {
    fn drop(&mut self) {
        let descriptors = self
            .connections
            .values()
            .map(|(_, descriptors)| descriptors);
        INBOUND_DESCRIPTORS.fetch_sub(descriptors.sum(), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const OF_ONE: &str = "inbound connections from one address";

    fn connections() -> InboundConnections<u64> {
        let options = SocketOptions::new().max_inbound(3);
        let options = options.max_inbound_per_source(2);
        InboundConnections::new(InboundLimits::new(&options, OF_ONE, 1))
    }

    #[test]
    fn connections_beyond_a_limit_are_refused_and_counted() {
        let mut inbound = connections();
        let (a, b) = (1, 2);
        for (index, source) in [(0, a), (1, a), (2, b)] {
            if index == 2 {
                let refused = inbound
                    .check_room(a, (0, 0))
                    .expect_err("two of one address");
                assert_eq!(
                    refused.to_string(),
                    "3 inbound connections from one address exceed the limit of 2"
                );
            }
            inbound
                .check_room(source, (0, 0))
                .expect("below the limits");
            inbound.add(index, source);
        }
        let refused = inbound.check_room(b, (0, 0)).expect_err("three in all");
        assert!(refused.to_string().contains("limit of 3"), "{refused}");
        assert_eq!(inbound.next_to_check(a), [0, 1], "the limit of the source");
        assert_eq!(inbound.next_to_check(b), [0, 1], "the source with most");
        assert!(inbound.is_source_full(a) && !inbound.is_source_full(b) && inbound.is_full());
        for index in 0..2 {
            inbound.remove(index);
            inbound.remove(index);
        }
        inbound.check_room(b, (0, 0)).expect("below the limits");
        assert_eq!(inbound.of_source.len(), 1);
        assert_eq!(
            (inbound.source_of(2), inbound.source_of(0)),
            (Some(b), None)
        );
    }

    /// The usual soft limit of `RLIMIT_NOFILE`, 1024, leaves 768 descriptors to connections.
    #[test]
    fn source_gets_half_of_the_smallest_limit() {
        let of_source = |options, descriptors, max_descriptors| {
            InboundLimits::new(&options, OF_ONE, descriptors)
                .connections_per_source(max_descriptors)
        };
        assert_eq!(of_source(SocketOptions::new(), 1, 768), 384);
        assert_eq!(of_source(SocketOptions::new(), 2, 768), 192);
        assert_eq!(of_source(SocketOptions::new().max_inbound(100), 2, 768), 50);
        let of_one = SocketOptions::new().max_inbound_per_source(700);
        assert_eq!(of_source(of_one, 1, 768), 700);
        assert_eq!(of_source(SocketOptions::new(), 1, usize::MAX), 2048);
    }

    /// Connections that have closed their descriptors leave them to others of the process, and
    /// still count towards the limits of connections.
    #[test]
    fn released_descriptors_are_not_counted_twice() {
        let options = SocketOptions::new()
            .max_inbound(2)
            .max_inbound_per_source(2);
        let limits = InboundLimits::new(&options, OF_ONE, 1 << 40);
        let mut inbound = InboundConnections::new(limits);
        let refused = inbound
            .check_room(7, (0, 0))
            .expect_err("more than RLIMIT_NOFILE");
        assert!(refused.to_string().contains("RLIMIT_NOFILE"), "{refused}");
        inbound.limits.descriptors = 2;
        inbound.add(0, 7);
        inbound.add(1, 8);
        assert_eq!(inbound.connections[&0], (7, 2));
        inbound.release_descriptors(0);
        inbound.release_descriptors(0);
        assert_eq!(inbound.connections[&0], (7, 0));
        assert!(
            inbound.check_room(9, (0, 0)).is_err(),
            "two of the endpoint"
        );
        inbound.remove(0);
        assert_eq!(inbound.connections.len(), 1);
        assert!(inbound.check_room(9, (0, 0)).is_ok());
    }

    #[test]
    fn connections_are_checked_in_turn() {
        let mut inbound = connections();
        for index in 0..100 {
            inbound.add(index, 1);
        }
        let first = inbound.next_to_check(2);
        assert_eq!(first, (0..64).collect::<Vec<_>>());
        let second = inbound.next_to_check(2);
        assert_eq!(second, (64..100).chain(0..28).collect::<Vec<_>>());
    }
}
