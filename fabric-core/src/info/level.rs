//! Enumerations of the attributes, and the rank of those that are levels of service.
//!
//! Rank 1 is the most service. A hint states the least service that the application needs, so an
//! offer of the same rank or a lower one satisfies the hint: an application that serializes all
//! calls itself may use a provider that locks, never the reverse. The ranks are written out,
//! because they follow neither the order of libfabric's constants nor the order of declaration.
//! "Unspecified" is [`None`] and satisfies any rank.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::address::Address;
use crate::error::{Error, Result};

/// The type of an endpoint (`enum fi_ep_type`).
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

/// Which calls the application serializes (`enum fi_threading`).
///
/// All five levels of 1.17 exist; 2.x has removed [`Threading::Fid`] and [`Threading::Endpoint`]
/// and refuses them. Both are accepted here, by their rank of 1.17, whatever API version is
/// requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[doc(alias = "fi_threading")]
pub enum Threading {
    /// No calls: any object may be used from any thread.
    #[default]
    #[doc(alias = "FI_THREAD_SAFE")]
    Safe,
    /// Calls on the same object.
    #[doc(alias = "FI_THREAD_FID")]
    Fid,
    /// Calls on the same object, where an endpoint and its contexts count as one object.
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
    /// All levels, most service first.
    pub const ALL: [Self; 5] = [
        Self::Safe,
        Self::Fid,
        Self::Endpoint,
        Self::Completion,
        Self::Domain,
    ];

    /// Returns the rank of this level, 1 for the most service.
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

/// Whether the provider or the application makes progress on operations (`enum fi_progress`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[doc(alias = "fi_progress")]
pub enum Progress {
    /// The provider makes progress, whatever the application does.
    #[doc(alias = "FI_PROGRESS_AUTO")]
    Auto,
    /// The application makes progress by polling completions and events, also while it is only the
    /// target of peers.
    #[default]
    #[doc(alias = "FI_PROGRESS_MANUAL")]
    Manual,
    /// As [`Progress::Manual`], and the application also serializes control calls with data
    /// transfers. Since 1.21.
    #[doc(alias = "FI_PROGRESS_CONTROL_UNIFIED")]
    ControlUnified,
}

impl Progress {
    /// All levels, most service first.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Manual, Self::ControlUnified];

    /// Returns the rank of this level, 1 for the most service.
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
    /// The provider prevents overruns: a post that would overrun a queue fails with `FI_EAGAIN`.
    #[default]
    #[doc(alias = "FI_RM_ENABLED")]
    Enabled,
    /// The application prevents overruns.
    #[doc(alias = "FI_RM_DISABLED")]
    Disabled,
}

impl ResourceMgmt {
    /// All levels, most service first.
    pub const ALL: [Self; 2] = [Self::Enabled, Self::Disabled];

    /// Returns the rank of this level, 1 for the most service.
    #[must_use]
    pub const fn rank(self) -> u8 {
        match self {
            Self::Enabled => 1,
            Self::Disabled => 2,
        }
    }
}

/// The type of an address vector (`enum fi_av_type`).
///
/// 2.x has removed the map and gives a table instead. So does this fabric: [`AvType::Map`] is
/// accepted where a table is offered, and its handles are indices in a table, which keeps all
/// promises of a map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[doc(alias = "fi_av_type")]
pub enum AvType {
    /// Handles are opaque.
    #[doc(alias = "FI_AV_MAP")]
    Map,
    /// A handle is an index, counted from 0 in the order of insertion.
    #[default]
    #[doc(alias = "FI_AV_TABLE")]
    Table,
}

/// The traffic class of a domain or a context (`fi_endpoint(3)`): advice to the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TrafficClass {
    /// No particular class.
    #[default]
    #[doc(alias = "FI_TC_BEST_EFFORT")]
    BestEffort,
    /// Small messages, latency over throughput.
    #[doc(alias = "FI_TC_LOW_LATENCY")]
    LowLatency,
    /// Dedicated network resources instead of shared ones.
    #[doc(alias = "FI_TC_DEDICATED_ACCESS")]
    DedicatedAccess,
    /// Large transfers, throughput over latency.
    #[doc(alias = "FI_TC_BULK_DATA")]
    BulkData,
    /// Only capacity that other traffic leaves over.
    #[doc(alias = "FI_TC_SCAVENGER")]
    Scavenger,
    /// Network management.
    #[doc(alias = "FI_TC_NETWORK_CTRL")]
    NetworkCtrl,
    /// A differentiated-services code point (DSCP), 0 to 63.
    #[doc(alias = "fi_tc_dscp_set")]
    Dscp(u8),
}

impl TrafficClass {
    /// Returns the differentiated-services code point of this class for IP headers: for the named
    /// classes, the one that RFC 4594 and RFC 8622 recommend. Networks may ignore it.
    ///
    /// ```
    /// # use fabric_core as fabric_async;
    /// use fabric_async::info::TrafficClass;
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
            // CS0, the default class; LE, lower effort.
            Self::BestEffort => 0,
            Self::Scavenger => 1,
            // AF11, AF21: high-throughput data, low-latency data.
            Self::BulkData => 10,
            Self::LowLatency => 18,
            // EF, expedited forwarding; CS6.
            Self::DedicatedAccess => 46,
            Self::NetworkCtrl => 48,
            Self::Dscp(code_point) if code_point < 64 => code_point,
            Self::Dscp(code_point) => {
                let why = format!("DSCP {code_point} is not within 0 to 63");
                return Err(Error::Invalid {
                    what: "traffic class",
                    why,
                });
            }
        })
    }
}

/// The wire protocol between two endpoints of a provider (`ep_attr.protocol`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// Ring buffers in shared memory.
    #[doc(alias = "FI_PROTO_SHM")]
    Shm,
    /// The simulated network.
    Sim,
    /// The wire protocol of libfabric's tcp provider.
    #[doc(alias = "FI_PROTO_XNET")]
    #[doc(alias = "FI_PROTO_SOCK_TCP")]
    Tcp,
    /// RXM over the protocol [`Tcp`](Self::Tcp).
    #[doc(alias = "FI_PROTO_RXM")]
    Rxm,
    /// One message per UDP datagram.
    #[doc(alias = "FI_PROTO_UDP")]
    Udp,
}

impl Protocol {
    /// Returns the name of the protocol, in lower case.
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

/// The address format (`fi_info.addr_format`): which addresses an endpoint and the peers of its
/// domain may have.
///
/// Every [`Address`] has a text, so each provider accepts `Str`, which admits all addresses of the
/// provider. `shm` and `sim` have no other format. The socket addresses of `tcp` and `udp` have the
/// format `SockaddrIp`; an offer for one network interface has the format of its address. An
/// application that requests `SockaddrIn` or `SockaddrIn6` gets objects with addresses of this IP
/// version only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AddrFormat {
    /// Text: `fi_shm://name`, `fi_tcp://127.0.0.1:7000`.
    #[default]
    #[doc(alias = "FI_ADDR_STR")]
    Str,
    /// A socket address of any family.
    #[doc(alias = "FI_SOCKADDR")]
    Sockaddr,
    /// An IPv4 or IPv6 socket address. Since 2.4.
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
    /// Returns whether an application that requests the format `requested` can use addresses of
    /// this format: text, the same format, or one of which the other is a special case.
    #[must_use]
    pub fn is_compatible(self, requested: Self) -> bool {
        requested == Self::Str || self.narrowed_to(requested).is_some()
    }

    /// Returns the more special one of two formats of which one includes the other; `None` for
    /// formats without common addresses.
    pub(super) fn narrowed_to(self, requested: Self) -> Option<Self> {
        if self == requested || requested.includes(self) {
            Some(self)
        } else {
            self.includes(requested).then_some(requested)
        }
    }

    /// Returns the format of this socket address.
    #[doc(hidden)]
    #[must_use]
    pub fn of_socket_addr(at: SocketAddr) -> Self {
        if at.is_ipv4() {
            Self::SockaddrIn
        } else {
            Self::SockaddrIn6
        }
    }

    /// Returns the loopback address of the format: that of IPv6 for `SockaddrIn6`, else of IPv4.
    #[doc(hidden)]
    #[must_use]
    pub fn loopback(self) -> IpAddr {
        match self {
            Self::SockaddrIn6 => Ipv6Addr::LOCALHOST.into(),
            _ => Ipv4Addr::LOCALHOST.into(),
        }
    }

    /// Checks that an address is of the IP version of the format. Formats of both versions, and
    /// addresses without a socket address, pass.
    ///
    /// # Errors
    /// [`Error::BadAddress`].
    #[doc(hidden)]
    pub fn check(self, address: &Address) -> Result<()> {
        let is_ipv4 = address.socket_addr().map(|at| at.is_ipv4());
        let why = match (self, is_ipv4) {
            (Self::SockaddrIn, Some(false)) => {
                "the info has the address format FI_SOCKADDR_IN: only IPv4 addresses are valid"
            }
            (Self::SockaddrIn6, Some(true)) => {
                "the info has the address format FI_SOCKADDR_IN6: only IPv6 addresses are valid"
            }
            _ => return Ok(()),
        };
        Err(Error::BadAddress {
            text: address.to_string(),
            why,
        })
    }

    /// Returns whether `other` is a special case of this format.
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
        for (offer, requested, compatible) in [
            (Str, Str, true),
            (Str, Sockaddr, false),
            (SockaddrIp, Str, true),
            (SockaddrIn6, Str, true),
            (Sockaddr, SockaddrIn, true),
            (SockaddrIn, Sockaddr, true),
            (SockaddrIp, SockaddrIn6, true),
            (SockaddrIn, SockaddrIn6, false),
        ] {
            assert_eq!(
                offer.is_compatible(requested),
                compatible,
                "{offer:?} for {requested:?}"
            );
        }
    }
}
