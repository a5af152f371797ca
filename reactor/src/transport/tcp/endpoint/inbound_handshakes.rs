//! The sources of inbound connections, and their pending handshakes. Handshakes are counted for
//! each source, so that one source leaves room for the others.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use fabric_core::rx::BudgetGroup;

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

impl From<InboundSource> for BudgetGroup {
    fn from(InboundSource(ip): InboundSource) -> Self {
        Self(match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
            IpAddr::V6(ip) => ip.to_bits(),
        })
    }
}

/// The pending inbound handshakes of an endpoint.
#[derive(Debug)]
pub(super) struct InboundHandshakes {
    /// Limits of the handshakes of one source, and of all.
    max_of_source: usize,
    max: usize,
    /// Pending handshakes of each source, the oldest first.
    of_source: HashMap<InboundSource, VecDeque<usize>>,
    count: usize,
}

impl InboundHandshakes {
    /// Creates an empty set with these limits of the handshakes of one source, and of all.
    pub(super) fn new((max_of_source, max): (usize, usize)) -> Self {
        Self {
            max_of_source,
            max,
            of_source: HashMap::new(),
            count: 0,
        }
    }

    /// Adds a pending handshake. Returns the handshake that has to make room: the oldest of this
    /// source, if the source has too many, or else, if there are too many in all, the oldest of the
    /// source with most.
    pub(super) fn add(&mut self, source: InboundSource, index: usize) -> Option<usize> {
        let own = self.of_source.entry(source).or_default();
        own.push_back(index);
        self.count += 1;
        if own.len() > self.max_of_source {
            return own.front().copied();
        }
        if self.count <= self.max {
            return None;
        }
        let most = self.of_source.values().max_by_key(|pending| pending.len());
        most.and_then(|pending| pending.front().copied())
    }

    /// Removes a pending handshake, which has ended.
    pub(super) fn remove(&mut self, source: InboundSource, index: usize) {
        let Some(pending) = self.of_source.get_mut(&source) else {
            return;
        };
        if let Some(position) = pending.iter().position(|other| *other == index) {
            pending.remove(position);
            self.count -= 1;
        }
        if pending.is_empty() {
            self.of_source.remove(&source);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(ip: &str) -> InboundSource {
        InboundSource::new(SocketAddr::new(ip.parse().expect("an address"), 9))
    }

    #[test]
    fn source_evicts_its_own_oldest_handshake() {
        let mut inbound = InboundHandshakes::new((4, 6));
        let (honest, hostile) = (source("192.0.2.1"), source("192.0.2.2"));
        assert_eq!(inbound.add(honest, 0), None);
        for index in 1..=4 {
            assert_eq!(inbound.add(hostile, index), None);
        }
        for oldest in 1..100 {
            assert_eq!(inbound.add(hostile, oldest + 4), Some(oldest));
            inbound.remove(hostile, oldest);
        }
        inbound.remove(honest, 0);
        assert!(!inbound.of_source.contains_key(&honest));
        assert_eq!(inbound.count, 4);
    }

    #[test]
    fn source_with_most_handshakes_makes_room_for_others() {
        let mut inbound = InboundHandshakes::new((4, 6));
        for index in 0..4 {
            assert_eq!(inbound.add(source("192.0.2.2"), index), None);
        }
        assert_eq!(inbound.add(source("192.0.2.3"), 4), None);
        assert_eq!(inbound.add(source("192.0.2.4"), 5), None);
        assert_eq!(inbound.add(source("192.0.2.5"), 6), Some(0));
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
}
