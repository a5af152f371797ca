//! Enumerations of the attributes, and the rank of those that are levels of service.
//!
//! Rank 1 is the most a provider can do. A hint names the least service the application can live
//! with, so a hint is satisfied by an offer of its own rank or a lower one: an application that
//! serialises everything itself may use a provider that locks, never the reverse. The ranks are
//! written out, because they follow neither the order of libfabric's numbers nor the order of
//! declaration. "Unspecified" is [`None`] and satisfies any rank.

use std::fmt;

use crate::error::{Error, Result};

/// The kind of an endpoint (`enum fi_ep_type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[doc(alias = "fi_ep_type")]
pub enum EpType {
    /// Reliable and connected.
    #[doc(alias = "FI_EP_MSG")]
    Msg,
    /// Unreliable and connectionless; a message fits one datagram.
    #[doc(alias = "FI_EP_DGRAM")]
    Dgram,
    /// Reliable and connectionless.
    #[default]
    #[doc(alias = "FI_EP_RDM")]
    Rdm,
}

/// Which calls the application serialises itself (`enum fi_threading`).
///
/// All five levels of 1.17 are known; 2.x has dropped [`Threading::Fid`] and
/// [`Threading::Endpoint`] and refuses them. They are accepted here, by their rank of 1.17,
/// whatever API version is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[doc(alias = "fi_threading")]
pub enum Threading {
    /// None: any object from any thread.
    #[default]
    #[doc(alias = "FI_THREAD_SAFE")]
    Safe,
    /// Calls on the same object.
    #[doc(alias = "FI_THREAD_FID")]
    Fid,
    /// Calls on the same object, where an endpoint and its contexts count as one.
    #[doc(alias = "FI_THREAD_ENDPOINT")]
    Endpoint,
    /// Calls on objects that share a completion queue or counter.
    #[doc(alias = "FI_THREAD_COMPLETION")]
    Completion,
    /// Calls on objects of the same domain.
    #[doc(alias = "FI_THREAD_DOMAIN")]
    Domain,
}

impl Threading {
    /// Every level, best service first.
    pub const ALL: [Self; 5] = [
        Self::Safe,
        Self::Fid,
        Self::Endpoint,
        Self::Completion,
        Self::Domain,
    ];

    /// The rank of this level, 1 for the most service.
    #[must_use]
    pub const fn rank(self) -> u8 {
        match self {
            Self::Safe => 1,
            Self::Fid => 2,
            Self::Endpoint => 3,
            Self::Completion => 4,
            Self::Domain => 5,
        }
    }
}

/// Who moves operations forward (`enum fi_progress`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[doc(alias = "fi_progress")]
pub enum Progress {
    /// The provider, whatever the application does.
    #[doc(alias = "FI_PROGRESS_AUTO")]
    Auto,
    /// The application, by polling completions and events; also where it is only the target of
    /// others.
    #[default]
    #[doc(alias = "FI_PROGRESS_MANUAL")]
    Manual,
    /// As [`Progress::Manual`], and the application also serialises control calls with data
    /// transfers. Since 1.21.
    #[doc(alias = "FI_PROGRESS_CONTROL_UNIFIED")]
    ControlUnified,
}

impl Progress {
    /// Every level, best service first.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Manual, Self::ControlUnified];

    /// The rank of this level, 1 for the most service.
    #[must_use]
    pub const fn rank(self) -> u8 {
        match self {
            Self::Auto => 1,
            Self::Manual => 2,
            Self::ControlUnified => 3,
        }
    }
}

/// Whether the provider protects queues and buffers from overrun (`enum fi_resource_mgmt`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[doc(alias = "fi_resource_mgmt")]
pub enum ResourceMgmt {
    /// It does: a post that would overrun something is refused with "try again".
    #[default]
    #[doc(alias = "FI_RM_ENABLED")]
    Enabled,
    /// It need not: the application keeps count.
    #[doc(alias = "FI_RM_DISABLED")]
    Disabled,
}

impl ResourceMgmt {
    /// Every level, best service first.
    pub const ALL: [Self; 2] = [Self::Enabled, Self::Disabled];

    /// The rank of this level, 1 for the most service.
    #[must_use]
    pub const fn rank(self) -> u8 {
        match self {
            Self::Enabled => 1,
            Self::Disabled => 2,
        }
    }
}

/// How an address vector numbers its peers (`enum fi_av_type`).
///
/// 2.x has withdrawn the map and gives its callers a table. So does this fabric: [`AvType::Map`] is
/// accepted where a table is offered, and the numbers it gives out are positions in a table.
/// Nothing that was promised of a map breaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[doc(alias = "fi_av_type")]
pub enum AvType {
    /// A peer's number is opaque.
    #[doc(alias = "FI_AV_MAP")]
    Map,
    /// A peer's number is its position, counted from 0 in the order of insertion.
    #[default]
    #[doc(alias = "FI_AV_TABLE")]
    Table,
}

/// What kind of traffic a domain or a context carries (`fi_endpoint(3)`, traffic class): advice to
/// the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TrafficClass {
    /// Nothing in particular.
    #[default]
    #[doc(alias = "FI_TC_BEST_EFFORT")]
    BestEffort,
    /// Small messages that should not wait.
    #[doc(alias = "FI_TC_LOW_LATENCY")]
    LowLatency,
    /// Prefers resources of its own over shared ones.
    #[doc(alias = "FI_TC_DEDICATED_ACCESS")]
    DedicatedAccess,
    /// Large transfers, throughput over latency.
    #[doc(alias = "FI_TC_BULK_DATA")]
    BulkData,
    /// Whatever capacity is left over.
    #[doc(alias = "FI_TC_SCAVENGER")]
    Scavenger,
    /// The network's own management.
    #[doc(alias = "FI_TC_NETWORK_CTRL")]
    NetworkCtrl,
    /// A differentiated-services code point, 0 to 63.
    #[doc(alias = "fi_tc_dscp_set")]
    Dscp(u8),
}

impl TrafficClass {
    /// The differentiated-services code point that stands for this in the headers of IP: for
    /// labels, what RFC 4594 and RFC 8622 recommend. Whether a network heeds it is the network's
    /// affair.
    ///
    /// ```
    /// # use fabric_core::info as fabric_async;
    /// use fabric_async::TrafficClass;
    /// assert_eq!(TrafficClass::LowLatency.dscp()?, 18); // AF21
    /// assert_eq!(TrafficClass::Dscp(46).dscp()?, 46);
    /// # Ok::<(), fabric_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for code points above 63.
    #[doc(alias = "fi_tc_dscp_get")]
    pub fn dscp(self) -> Result<u8> {
        Ok(match self {
            // The default class; lower effort.
            Self::BestEffort => 0,
            Self::Scavenger => 1,
            // AF11, AF21: high-throughput data, low-latency data.
            Self::BulkData => 10,
            Self::LowLatency => 18,
            // EF, as a line of one's own; CS6.
            Self::DedicatedAccess => 46,
            Self::NetworkCtrl => 48,
            Self::Dscp(point) if point < 64 => point,
            Self::Dscp(point) => {
                let why = format!("{point} is no code point: they are 0 to 63");
                return Err(Error::Invalid {
                    what: "traffic class",
                    why,
                });
            }
        })
    }
}

/// What two endpoints of the same provider speak to each other (`ep_attr.protocol`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// Rings in shared memory.
    #[doc(alias = "FI_PROTO_SHM")]
    Shm,
    /// The simulated network.
    Sim,
    /// The framing of libfabric's tcp provider.
    #[doc(alias = "FI_PROTO_XNET")]
    #[doc(alias = "FI_PROTO_SOCK_TCP")]
    Tcp,
    /// RXM over that framing.
    #[doc(alias = "FI_PROTO_RXM")]
    Rxm,
    /// A message per UDP datagram.
    #[doc(alias = "FI_PROTO_UDP")]
    Udp,
}

impl Protocol {
    /// The name of the protocol, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Sim => "sim",
            Self::Tcp => "tcp",
            Self::Rxm => "rxm",
            Self::Udp => "udp",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How addresses are written (`fi_info.addr_format`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AddrFormat {
    /// Text: `fi_shm://name`.
    #[default]
    #[doc(alias = "FI_ADDR_STR")]
    Str,
    /// A socket address of any family.
    #[doc(alias = "FI_SOCKADDR")]
    Sockaddr,
    /// A socket address of IPv4 or IPv6, told apart at run time. Since 2.4.
    #[doc(alias = "FI_SOCKADDR_IP")]
    SockaddrIp,
    /// An IPv4 socket address.
    #[doc(alias = "FI_SOCKADDR_IN")]
    SockaddrIn,
    /// An IPv6 socket address.
    #[doc(alias = "FI_SOCKADDR_IN6")]
    SockaddrIn6,
}

impl AddrFormat {
    /// Whether an application that asks for `asked` can use addresses of this format: the same
    /// format, or one of two of which the other is a special case.
    #[must_use]
    pub fn is_compatible(self, asked: Self) -> bool {
        self == asked || self.includes(asked) || asked.includes(self)
    }

    fn includes(self, other: Self) -> bool {
        match self {
            Self::Sockaddr => matches!(
                other,
                Self::SockaddrIp | Self::SockaddrIn | Self::SockaddrIn6
            ),
            Self::SockaddrIp => matches!(other, Self::SockaddrIn | Self::SockaddrIn6),
            Self::Str | Self::SockaddrIn | Self::SockaddrIn6 => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_ranks_match_libfabric() {
        assert_eq!(Threading::ALL.map(Threading::rank), [1, 2, 3, 4, 5]);
        assert_eq!(Progress::ALL.map(Progress::rank), [1, 2, 3]);
        assert_eq!(ResourceMgmt::ALL.map(ResourceMgmt::rank), [1, 2]);
    }

    #[test]
    fn specific_and_general_address_formats_are_compatible() {
        use AddrFormat::{Sockaddr, SockaddrIn, SockaddrIn6, SockaddrIp, Str};
        for (offer, asked, good) in [
            (Str, Str, true),
            (Str, Sockaddr, false),
            (Sockaddr, SockaddrIn, true),
            (SockaddrIn, Sockaddr, true),
            (SockaddrIp, SockaddrIn6, true),
            (SockaddrIn, SockaddrIn6, false),
        ] {
            assert_eq!(offer.is_compatible(asked), good, "{offer:?} for {asked:?}");
        }
    }
}
