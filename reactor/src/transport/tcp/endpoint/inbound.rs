//! What inbound connections may occupy: pending handshakes, and established connections whose
//! address the program has not inserted. Both are counted for each source, so that one source
//! leaves room for the others.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};

use fabric_core::rx::PeerSource;
use fabric_core::{Error, SocketOptions};
use rustix::process::{Resource, getrlimit};

use super::super::linger;

/// Default of `SocketOptions::max_inbound`.
const DEFAULT_MAX_INBOUND: usize = 4096;

/// Number of established connections that are checked for one that has room to give, each time a
/// limit is reached.
const MAX_CHECKED: usize = 64;

/// The inbound connections of all endpoints of this process that count towards a limit.
static INBOUND_OF_PROCESS: AtomicUsize = AtomicUsize::new(0);

/// The addresses that one machine, or one customer of a network, can connect from: an IPv4 address,
/// all IPv4 loopback addresses together, or an IPv6 network of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct InboundSource(IpAddr);

impl InboundSource {
    pub(crate) fn new(from: SocketAddr) -> Self {
        Self(match from.ip().to_canonical() {
            IpAddr::V4(ip) if ip.is_loopback() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V4(ip) => ip.into(),
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        })
    }
}

impl From<InboundSource> for PeerSource {
    fn from(InboundSource(ip): InboundSource) -> Self {
        Self(match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
            IpAddr::V6(ip) => ip.to_bits(),
        })
    }
}

/// The limits of an endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct InboundLimits {
    /// Pending handshakes of one source, and of all sources.
    handshakes_per_source: usize,
    handshakes: usize,
    /// Established connections of one source, if the program has set their limit, and of all.
    connections_per_source: Option<usize>,
    connections: usize,
}

impl InboundLimits {
    /// Returns these limits of handshakes, with the limits of established connections of the
    /// options, or else 4096 for all sources.
    pub(super) fn new(
        handshakes_per_source: usize,
        handshakes: usize,
        options: &SocketOptions,
    ) -> Self {
        Self {
            handshakes_per_source,
            handshakes,
            connections_per_source: options.max_inbound_per_source,
            connections: options.max_inbound.unwrap_or(DEFAULT_MAX_INBOUND),
        }
    }

    /// Returns the limit of established connections of one source: that of the options, or else
    /// half of the smaller of the limits of the endpoint and of the process.
    fn connections_per_source(&self, max_of_process: usize) -> usize {
        let smallest = self.connections.min(max_of_process);
        self.connections_per_source.unwrap_or(smallest.div_ceil(2))
    }
}

/// Returns how many descriptors this process may have (`RLIMIT_NOFILE`).
pub(crate) fn max_descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| {
        usize::try_from(limit).unwrap_or(usize::MAX)
    })
}

/// Returns how many descriptors of this process inbound connections may use: three quarters of
/// `RLIMIT_NOFILE`.
fn max_inbound_of_process() -> usize {
    let limit = max_descriptors();
    limit - limit / 4
}

/// The inbound connections of an endpoint that count towards a limit.
#[derive(Debug)]
pub(super) struct InboundConnections {
    limits: InboundLimits,
    /// Pending handshakes of each source, the oldest first.
    handshakes: HashMap<InboundSource, VecDeque<usize>>,
    handshake_count: usize,
    /// The source of each established connection, by the index of the connection.
    established: HashMap<usize, InboundSource>,
    /// The established connections of each source.
    established_of_source: HashMap<InboundSource, BTreeSet<usize>>,
    /// Where the next check of established connections begins.
    next_checked: usize,
    /// Number of connections that were refused because of a limit.
    refused: u64,
}

impl InboundConnections {
    pub(super) fn new(limits: InboundLimits) -> Self {
        Self {
            limits,
            handshakes: HashMap::new(),
            handshake_count: 0,
            established: HashMap::new(),
            established_of_source: HashMap::new(),
            next_checked: 0,
            refused: 0,
        }
    }

    /// Returns the number of connections that were refused because of a limit.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    /// Adds a pending handshake. Returns the handshake that has to make room: the oldest of this
    /// source, if the source has too many, or else, if there are too many in all, the oldest of the
    /// source with most.
    pub(super) fn add_handshake(&mut self, source: InboundSource, index: usize) -> Option<usize> {
        let own = self.handshakes.entry(source).or_default();
        own.push_back(index);
        self.handshake_count += 1;
        if own.len() > self.limits.handshakes_per_source {
            return own.front().copied();
        }
        if self.handshake_count <= self.limits.handshakes {
            return None;
        }
        let most = self.handshakes.values().max_by_key(|pending| pending.len());
        most.and_then(|pending| pending.front().copied())
    }

    /// Removes a pending handshake, which has ended.
    pub(super) fn remove_handshake(&mut self, source: InboundSource, index: usize) {
        let Some(pending) = self.handshakes.get_mut(&source) else {
            return;
        };
        if let Some(position) = pending.iter().position(|other| *other == index) {
            pending.remove(position);
            self.handshake_count -= 1;
        }
        if pending.is_empty() {
            self.handshakes.remove(&source);
        }
    }

    /// Checks that one more connection of a source may be established.
    ///
    /// # Errors
    /// [`Error::TooMany`] at a limit.
    pub(super) fn check_room(&self, source: InboundSource) -> Result<(), Error> {
        let of_source = self.established_of_source.get(&source);
        let max_of_process = max_inbound_of_process();
        // Closed connections whose peers do not take what was sent have their descriptors still.
        let (unsent_of_source, unsent) = linger::count_unsent(source);
        let counts = [
            (
                "inbound connections from one address",
                of_source.map_or(0, BTreeSet::len) + unsent_of_source,
                self.limits.connections_per_source(max_of_process),
            ),
            (
                "inbound connections of the endpoint",
                self.established.len(),
                self.limits.connections,
            ),
            (
                "inbound connections of the process (RLIMIT_NOFILE)",
                INBOUND_OF_PROCESS.load(Ordering::Relaxed) + unsent,
                max_of_process,
            ),
        ];
        if let Some((what, count, limit)) = counts.into_iter().find(|(_, n, limit)| n >= limit) {
            let count = count + 1;
            return Err(Error::TooMany { what, count, limit });
        }
        Ok(())
    }

    /// Counts a connection that was refused because of a limit.
    pub(super) fn count_refused(&mut self) {
        self.refused += 1;
    }

    /// Returns the next established connections that may give room to a connection of this source:
    /// of the source itself, if it has reached its limit, or else of the source with most. Calls go
    /// through all of them in turn.
    pub(super) fn next_to_check(&mut self, source: InboundSource) -> Vec<usize> {
        let own = self.established_of_source.get(&source);
        let max_own = self.limits.connections_per_source(max_inbound_of_process());
        let own = own.filter(|own| own.len() >= max_own);
        let most = || {
            self.established_of_source
                .values()
                .max_by_key(|of| of.len())
        };
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
    pub(super) fn add_established(&mut self, index: usize, source: InboundSource) {
        self.established.insert(index, source);
        let of_source = self.established_of_source.entry(source).or_default();
        of_source.insert(index);
        INBOUND_OF_PROCESS.fetch_add(1, Ordering::Relaxed);
    }

    /// Handles the end of an established connection, which may have been counted.
    pub(super) fn remove_established(&mut self, index: usize) {
        let Some(source) = self.established.remove(&index) else {
            return;
        };
        INBOUND_OF_PROCESS.fetch_sub(1, Ordering::Relaxed);
        if let Some(of_source) = self.established_of_source.get_mut(&source) {
            of_source.remove(&index);
            if of_source.is_empty() {
                self.established_of_source.remove(&source);
            }
        }
    }
}

impl Drop for InboundConnections {
    fn drop(&mut self) {
        INBOUND_OF_PROCESS.fetch_sub(self.established.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(ip: &str) -> InboundSource {
        InboundSource::new(SocketAddr::new(ip.parse().expect("an address"), 9))
    }

    fn connections() -> InboundConnections {
        InboundConnections::new(InboundLimits {
            handshakes_per_source: 4,
            handshakes: 6,
            connections_per_source: Some(2),
            connections: 3,
        })
    }

    #[test]
    fn source_evicts_its_own_oldest_handshake() {
        let mut inbound = connections();
        let (honest, hostile) = (source("192.0.2.1"), source("192.0.2.2"));
        assert_eq!(inbound.add_handshake(honest, 0), None);
        for index in 1..=4 {
            assert_eq!(inbound.add_handshake(hostile, index), None);
        }
        for oldest in 1..100 {
            assert_eq!(inbound.add_handshake(hostile, oldest + 4), Some(oldest));
            inbound.remove_handshake(hostile, oldest);
        }
        inbound.remove_handshake(honest, 0);
        assert!(!inbound.handshakes.contains_key(&honest));
        assert_eq!(inbound.handshake_count, 4);
    }

    #[test]
    fn source_with_most_handshakes_makes_room_for_others() {
        let mut inbound = connections();
        for index in 0..4 {
            assert_eq!(inbound.add_handshake(source("192.0.2.2"), index), None);
        }
        assert_eq!(inbound.add_handshake(source("192.0.2.3"), 4), None);
        assert_eq!(inbound.add_handshake(source("192.0.2.4"), 5), None);
        assert_eq!(inbound.add_handshake(source("192.0.2.5"), 6), Some(0));
    }

    #[test]
    fn addresses_of_one_machine_or_network_are_one_source() {
        for (a, b, is_same) in [
            ("127.0.0.1", "127.200.1.9", true),
            ("::ffff:127.0.0.1", "127.0.0.2", true),
            ("2001:db8::1", "2001:db8::ffff:2", true),
            ("2001:db8::1", "2001:db8:0:1::1", false),
            ("192.0.2.1", "192.0.2.2", false),
        ] {
            assert_eq!(source(a) == source(b), is_same, "{a} {b}");
        }
    }

    #[test]
    fn connections_beyond_a_limit_are_refused_and_counted() {
        let mut inbound = connections();
        let (a, b) = (source("192.0.2.1"), source("192.0.2.2"));
        for (index, source) in [(0, a), (1, a), (2, b)] {
            if index == 2 {
                let refused = inbound.check_room(a).expect_err("two of one address");
                assert_eq!(
                    refused.to_string(),
                    "3 inbound connections from one address exceed the limit of 2"
                );
            }
            inbound.check_room(source).expect("below the limits");
            inbound.add_established(index, source);
        }
        let refused = inbound.check_room(b).expect_err("three in all");
        assert!(refused.to_string().contains("limit of 3"), "{refused}");
        assert_eq!(inbound.next_to_check(a), [0, 1], "the limit of the source");
        assert_eq!(inbound.next_to_check(b), [0, 1], "the source with most");
        for index in 0..2 {
            inbound.remove_established(index);
            inbound.remove_established(index);
        }
        inbound.check_room(b).expect("below the limits");
        assert_eq!(inbound.established_of_source.len(), 1);
    }

    /// The usual soft limit of `RLIMIT_NOFILE`, 1024, leaves 768 descriptors to connections.
    #[test]
    fn source_gets_half_of_the_smallest_limit() {
        let limits = |options| InboundLimits::new(64, 256, &options);
        let of_source = |options| limits(options).connections_per_source(768);
        assert_eq!(of_source(SocketOptions::new()), 384);
        assert_eq!(of_source(SocketOptions::new().max_inbound(100)), 50);
        assert_eq!(
            of_source(SocketOptions::new().max_inbound_per_source(700)),
            700
        );
        let default = limits(SocketOptions::new());
        assert_eq!(default.connections_per_source(usize::MAX), 2048);
    }

    #[test]
    fn connections_are_checked_in_turn() {
        let mut inbound = connections();
        for index in 0..100 {
            inbound.add_established(index, source("192.0.2.1"));
        }
        let first = inbound.next_to_check(source("192.0.2.2"));
        assert_eq!(first, (0..64).collect::<Vec<_>>());
        let second = inbound.next_to_check(source("192.0.2.2"));
        assert_eq!(second, (64..100).chain(0..28).collect::<Vec<_>>());
    }
}
