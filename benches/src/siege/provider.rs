//! What differs between the providers of a siege: addresses, lengths, attacks, limits.

use clap::ValueEnum;
use rustix::process::{Resource, getrlimit};

use super::attacks::Attack;
use super::server::LOAN_LIMIT;
use super::usage::{LIMITS_AFTER, UsageLimits};

/// A provider that the siege attacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SiegeProvider {
    /// Shared memory.
    Shm,
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// Connections that an endpoint accepts from peers that the program has not inserted.
const MAX_CONNECTIONS: usize = 4096;
/// Handshakes over `tcp` and over `shm` that may be pending.
const MAX_TCP_HANDSHAKES: usize = 256;
const MAX_SHM_HANDSHAKES: usize = 64;
/// Descriptors of a connection over `shm`.
const SHM_CONNECTION_DESCRIPTORS: usize = 2;
/// Memory of the kernel's table and of the endpoint for each of these connections, in bytes.
const TCP_CONNECTION_MEMORY: u64 = 8 << 10;
/// RXM messages that each connection of the attack on them may set aside, in bytes.
const RXM_SET_ASIDE_MEMORY: u64 = 256 << 10;
/// Memory of the segment of each connection over `shm` that the server touches, in bytes: control
/// words, and the messages that the connection's peer has sent. The attackers send few each.
const SHM_CONNECTION_MEMORY: u64 = 24 << 10;
/// Budget of an endpoint for unexpected messages, in bytes; half of that over `udp`.
const UNEXPECTED_BUDGET: u64 = 16 << 20;
/// Memory beside the budget, in bytes: buffers of connections and receives, and what the allocator
/// keeps.
const OTHER_MEMORY: u64 = 32 << 20;

impl SiegeProvider {
    /// All providers, in the order in which they are attacked.
    pub(super) const ALL: [Self; 3] = [Self::Shm, Self::Tcp, Self::Udp];

    /// Returns the name of the provider.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }

    /// Returns the provider of an address; `None` for an address of another provider.
    pub(super) fn of_address(address: &str) -> Option<Self> {
        let (scheme, _) = address.split_once("://")?;
        let name = scheme.strip_prefix("fi_").unwrap_or(scheme);
        Self::ALL
            .into_iter()
            .find(|provider| name.starts_with(provider.name()))
    }

    /// Returns the address at which the server and the honest clients are bound.
    pub(super) fn bind_address(self) -> &'static str {
        match self {
            Self::Shm => "shm://",
            Self::Tcp => "tcp://127.0.0.1:0",
            Self::Udp => "udp://127.0.0.1:0",
        }
    }

    /// Whether messages have tags.
    pub(super) fn has_tags(self) -> bool {
        self != Self::Udp
    }

    /// Returns the length of the long requests, in bytes.
    pub(super) fn long_request_len(self) -> usize {
        match self {
            Self::Shm | Self::Tcp => 64 << 10,
            Self::Udp => 1472,
        }
    }

    /// Returns the attacks over this provider.
    pub(super) fn attacks(self) -> &'static [Attack] {
        match self {
            Self::Shm => &[
                Attack::UnexpectedMessages,
                Attack::ConnectAndLeave,
                Attack::EmptyMessages,
                Attack::KilledSenders,
                Attack::LoansKept,
            ],
            Self::Tcp => &[
                Attack::StalledMessages,
                Attack::ClaimedLengths,
                Attack::UnexpectedMessages,
                Attack::Connections,
                Attack::HeldMessages,
                Attack::HalfOpenHandshakes,
                Attack::ClaimedAddresses,
                Attack::MalformedFrames,
                Attack::EmptyMessages,
                Attack::WritesWithoutKeys,
                Attack::RxmSetAside,
                Attack::ConnectAndLeave,
            ],
            Self::Udp => &[
                Attack::UnexpectedDatagrams,
                Attack::MalformedDatagrams,
                Attack::ManySenders,
            ],
        }
    }

    /// Returns what may remain of the server's usage after an attack, above its usage before. The
    /// server keeps the chunks of returned loans for further ones.
    pub(super) fn limits_after(self) -> UsageLimits {
        let chunks = match self {
            Self::Shm => LOAN_LIMIT / self.long_request_len(),
            Self::Tcp | Self::Udp => 0,
        };
        UsageLimits {
            descriptors: LIMITS_AFTER.descriptors + chunks,
            mappings: LIMITS_AFTER.mappings + chunks,
            ..LIMITS_AFTER
        }
    }

    /// Returns what the server may use above its usage before the attacks.
    pub(super) fn limits(self) -> UsageLimits {
        let max_map_count = std::fs::read_to_string("/proc/sys/vm/max_map_count");
        let max_map_count = max_map_count.map_or(Ok(65_530), |text| text.trim().parse());
        let nofile = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let three_quarters = usize::try_from(nofile / 4 * 3).unwrap_or(usize::MAX);
        let (memory, descriptors) = match self {
            Self::Shm => {
                let connections = MAX_CONNECTIONS * SHM_CONNECTION_DESCRIPTORS;
                let descriptors = connections.min(three_quarters) + MAX_SHM_HANDSHAKES;
                (UNEXPECTED_BUDGET, descriptors)
            }
            Self::Tcp => {
                let set_aside = RXM_SET_ASIDE_MEMORY * Attack::RXM_CONNECTIONS as u64;
                let connections = MAX_CONNECTIONS + MAX_TCP_HANDSHAKES;
                let memory = TCP_CONNECTION_MEMORY * connections as u64;
                (
                    UNEXPECTED_BUDGET + set_aside + memory,
                    connections.min(three_quarters),
                )
            }
            Self::Udp => (UNEXPECTED_BUDGET / 2, 0),
        };
        let after = self.limits_after();
        let segments = match self {
            Self::Shm => SHM_CONNECTION_MEMORY * MAX_CONNECTIONS as u64,
            Self::Tcp | Self::Udp => 0,
        };
        UsageLimits {
            memory: memory + OTHER_MEMORY,
            shared_memory: segments + after.shared_memory,
            descriptors: descriptors + after.descriptors,
            mappings: max_map_count.unwrap_or(65_530) / 4 + after.mappings,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provider_of_an_address_is_found() {
        let of_address = SiegeProvider::of_address;
        assert_eq!(of_address("shm://a"), Some(SiegeProvider::Shm));
        assert_eq!(of_address("tcp://127.0.0.1:9"), Some(SiegeProvider::Tcp));
        assert_eq!(of_address("fi_udp://127.0.0.1:9"), Some(SiegeProvider::Udp));
        assert_eq!((of_address("sim://a"), of_address("tcp")), (None, None));
    }

    #[test]
    fn every_attack_belongs_to_a_provider() {
        for attack in Attack::value_variants() {
            let has_attack = |provider: SiegeProvider| provider.attacks().contains(attack);
            assert!(SiegeProvider::ALL.into_iter().any(has_attack), "{attack:?}");
        }
    }
}
