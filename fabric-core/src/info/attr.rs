//! The attributes of a fabric, a domain, an endpoint and its transmit and receive contexts.

use std::fmt;

use crate::flags::{Caps, Mode, MrMode, MsgOrder, OpFlags};

use super::level::{AvType, EpType, Progress, Protocol, ResourceMgmt, Threading, TrafficClass};

/// The libfabric API version that this crate follows.
pub const API_VERSION: Version = Version::new(2, 5);

/// The context count of an endpoint that shares its context with other endpoints.
#[doc(alias = "FI_SHARED_CONTEXT")]
pub const SHARED_CONTEXT: usize = usize::MAX;

/// A version of an API or of a provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[doc(alias = "FI_VERSION")]
pub struct Version {
    /// Incremented by incompatible changes.
    pub major: u16,
    /// Incremented by additions.
    pub minor: u16,
}

impl Version {
    /// Creates the version `major.minor`.
    #[must_use]
    pub const fn new(major: u16, minor: u16) -> Self {
        Self { major, minor }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Attributes of the fabric and its provider.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
#[doc(alias = "fi_fabric_attr")]
pub struct FabricAttr {
    /// The name of the fabric. Endpoints of one fabric can reach each other.
    pub name: String,
    /// The name of the provider.
    #[doc(alias = "prov_name")]
    pub provider: String,
    /// The version of the provider.
    #[doc(alias = "prov_version")]
    pub provider_version: Version,
    /// The API version: in an offer the newest that the provider supports, in a negotiated info the
    /// requested one.
    pub api_version: Version,
}

/// Attributes of the domain: levels of service, and how many objects the provider serves well.
///
/// Counts describe the provider, not the machine: memory, descriptors and other limits of the
/// system may be lower.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[doc(alias = "fi_domain_attr")]
pub struct DomainAttr {
    /// The id of a domain that was open at discovery. If the hints ask for one, it is that domain,
    /// and the info has its attributes. Otherwise it is the one of this fabric and name that was
    /// opened first, whose attributes may differ. `Domain::info` keeps the value of the info that
    /// opened the domain; the id of that domain is `Domain::id`.
    pub domain: Option<u64>,
    /// The name of the domain; equal names mean the same device.
    pub name: String,
    /// Which calls the application serializes.
    pub threading: Threading,
    /// Whether the provider or the application makes progress on control operations: address
    /// vectors, memory registration, connections. Automatic control progress is granted with
    /// automatic data progress only.
    pub control_progress: Progress,
    /// Whether the provider or the application makes progress on data transfers. In 2.x one field
    /// holds both.
    pub data_progress: Progress,
    /// Whether the provider prevents overruns of queues.
    pub resource_mgmt: ResourceMgmt,
    /// The type of address vectors. Offers of tables also accept a request for maps. `None` for
    /// endpoints without address vectors.
    pub av_type: Option<AvType>,
    /// Requirements of memory registration. An offer may also contain [`MrMode::BASIC`] or
    /// [`MrMode::SCALABLE`] to state which of the two legacy modes it supports; without either, it
    /// supports the legacy modes that its requirements allow.
    pub mr_mode: MrMode,
    /// Size of a remote memory key in bytes.
    pub mr_key_size: usize,
    /// Size of the remote completion data of a transfer in bytes; 0 for none, else 4 or more.
    pub cq_data_size: usize,
    /// Number of completion queues that the domain may have; `usize::MAX` is no limit. A program
    /// may lower this limit, and those of endpoints, counters and regions, before it opens the
    /// domain: creating more fails with [`Error::TooMany`](crate::Error::TooMany).
    pub cq_cnt: usize,
    /// Number of endpoints that the domain may have; `usize::MAX` is no limit.
    pub ep_cnt: usize,
    /// Number of transmit contexts that work in parallel; further contexts share resources.
    pub tx_ctx_cnt: usize,
    /// Number of receive contexts that work in parallel; further contexts share resources.
    pub rx_ctx_cnt: usize,
    /// Number of transmit contexts that one endpoint can have.
    pub max_ep_tx_ctx: usize,
    /// Number of receive contexts that one endpoint can have.
    pub max_ep_rx_ctx: usize,
    /// Number of endpoints that can share one transmit context; 0 when none can.
    pub max_ep_stx_ctx: usize,
    /// Number of endpoints that can share one receive context; 0 when none can.
    pub max_ep_srx_ctx: usize,
    /// Number of counters that the domain may have; `usize::MAX` is no limit.
    pub cntr_cnt: usize,
    /// Number of memory segments in one registration.
    pub mr_iov_limit: usize,
    /// Capabilities of the domain, all of them secondary in 1.17.
    pub caps: Caps,
    /// Requirements on the application in this domain.
    pub mode: Mode,
    /// The default authorization key of endpoints and regions of this domain. Only objects with
    /// equal keys can communicate.
    pub auth_key: Option<Vec<u8>>,
    /// The size of an authorization key in bytes: the only size that the provider accepts, 0 when
    /// it accepts none. In a negotiated info the length of `auth_key`, if one was requested.
    pub auth_key_size: usize,
    /// Bytes of provider data that can come with an error.
    pub max_err_data: usize,
    /// Number of memory regions that the domain may have; `usize::MAX` is no limit.
    pub mr_cnt: usize,
    /// The traffic class of endpoints that set none.
    pub tclass: Option<TrafficClass>,
    /// Number of keys that one connectionless endpoint can use. Since 1.20.
    pub max_ep_auth_key: usize,
    /// The largest value of a counter; 0 in an offer for "all 64 bits". Since 2.5.
    pub max_cntr_value: u64,
    /// The largest error value of a counter; 0 in an offer for "all 64 bits". Since 2.5.
    pub max_err_cntr_value: u64,
}

impl Default for DomainAttr {
    /// One context in each direction, 64-bit keys, safe threading, manual progress, overruns
    /// prevented; nothing else.
    fn default() -> Self {
        Self {
            domain: None,
            name: String::new(),
            threading: Threading::default(),
            control_progress: Progress::default(),
            data_progress: Progress::default(),
            resource_mgmt: ResourceMgmt::default(),
            av_type: None,
            mr_mode: MrMode::empty(),
            mr_key_size: 8,
            cq_data_size: 0,
            cq_cnt: 1,
            ep_cnt: 1,
            tx_ctx_cnt: 1,
            rx_ctx_cnt: 1,
            max_ep_tx_ctx: 1,
            max_ep_rx_ctx: 1,
            max_ep_stx_ctx: 0,
            max_ep_srx_ctx: 0,
            cntr_cnt: 0,
            mr_iov_limit: 1,
            caps: Caps::empty(),
            mode: Mode::empty(),
            auth_key: None,
            auth_key_size: 0,
            max_err_data: 0,
            mr_cnt: 0,
            tclass: None,
            max_ep_auth_key: 0,
            max_cntr_value: 0,
            max_err_cntr_value: 0,
        }
    }
}

/// Attributes of the endpoint as a whole.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[doc(alias = "fi_ep_attr")]
pub struct EpAttr {
    /// The endpoint type.
    #[doc(alias = "type")]
    pub ep_type: EpType,
    /// The wire protocol; `None` when it is unspecified.
    pub protocol: Option<Protocol>,
    /// The newest supported version of the protocol.
    pub protocol_version: u32,
    /// The largest single transfer in bytes: a longer message cannot be sent, and a longer message
    /// that arrives is truncated.
    pub max_msg_size: usize,
    /// Bytes in front of every message buffer that are reserved for the provider; 0 without
    /// [`Mode::MSG_PREFIX`].
    pub msg_prefix_size: usize,
    /// The size in bytes up to which reads after writes are ordered; 0 for no ordering,
    /// `usize::MAX` for any size.
    pub max_order_raw_size: usize,
    /// As `max_order_raw_size`, for writes after reads.
    pub max_order_war_size: usize,
    /// As `max_order_raw_size`, for writes after writes.
    pub max_order_waw_size: usize,
    /// The usable bits of a tag: the highest set bit and all bits below it.
    pub mem_tag_format: u64,
    /// Number of transmit contexts; `usize::MAX` for a shared one (`FI_SHARED_CONTEXT`).
    pub tx_ctx_cnt: usize,
    /// Number of receive contexts; `usize::MAX` for a shared one (`FI_SHARED_CONTEXT`).
    pub rx_ctx_cnt: usize,
    /// The authorization key of this endpoint; `None` for the domain's.
    pub auth_key: Option<Vec<u8>>,
    /// The only key size that the provider accepts, in bytes; 0 when it accepts none.
    pub auth_key_size: usize,
}

impl Default for EpAttr {
    /// One context in each direction and tags of 64 bits; nothing else.
    fn default() -> Self {
        Self {
            ep_type: EpType::default(),
            protocol: None,
            protocol_version: 0,
            max_msg_size: 0,
            msg_prefix_size: 0,
            max_order_raw_size: 0,
            max_order_war_size: 0,
            max_order_waw_size: 0,
            mem_tag_format: 0xaaaa_aaaa_aaaa_aaaa,
            tx_ctx_cnt: 1,
            rx_ctx_cnt: 1,
            auth_key: None,
            auth_key_size: 0,
        }
    }
}

/// Attributes of the transmit context.
///
/// The `comp_order` of 1.17 is left out: completions are reported in the order in which operations
/// finish, and 2.x demands 0.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[doc(alias = "fi_tx_attr")]
pub struct TxAttr {
    /// Capabilities of this context; capabilities that concern receiving are ignored.
    pub caps: Caps,
    /// Requirements on the application for operations of this context.
    pub mode: Mode,
    /// In an offer, the flags that can be set as default; in a negotiated info, the default flags.
    pub op_flags: OpFlags,
    /// Which operations are ordered.
    pub msg_order: MsgOrder,
    /// The largest message whose buffer is reusable when the call returns, in bytes.
    pub inject_size: usize,
    /// Number of operations that can be outstanding: the transmit credits.
    pub size: usize,
    /// Number of buffers that one operation can gather.
    pub iov_limit: usize,
    /// Number of remote segments that one operation can access.
    pub rma_iov_limit: usize,
    /// The traffic class; `None` for the domain's.
    pub tclass: Option<TrafficClass>,
}

impl Default for TxAttr {
    /// One buffer per operation; nothing else.
    fn default() -> Self {
        Self {
            caps: Caps::empty(),
            mode: Mode::empty(),
            op_flags: OpFlags::empty(),
            msg_order: MsgOrder::empty(),
            inject_size: 0,
            size: 0,
            iov_limit: 1,
            rma_iov_limit: 1,
            tclass: None,
        }
    }
}

/// Attributes of the receive context.
///
/// The `comp_order` and `total_buffered_recv` of 1.17 are left out: 2.x demands 0 for both.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[doc(alias = "fi_rx_attr")]
pub struct RxAttr {
    /// Capabilities of this context; capabilities that concern sending are ignored.
    pub caps: Caps,
    /// Requirements on the application for operations of this context.
    pub mode: Mode,
    /// In an offer, the flags that can be set as default; in a negotiated info, the default flags.
    pub op_flags: OpFlags,
    /// In which order arriving operations are processed; a pair of operations is ordered when the
    /// sender orders it too.
    pub msg_order: MsgOrder,
    /// Number of receives that can be posted.
    pub size: usize,
    /// Number of buffers that one receive can scatter to.
    pub iov_limit: usize,
}

impl Default for RxAttr {
    /// One buffer per receive; nothing else.
    fn default() -> Self {
        Self {
            caps: Caps::empty(),
            mode: Mode::empty(),
            op_flags: OpFlags::empty(),
            msg_order: MsgOrder::empty(),
            size: 0,
            iov_limit: 1,
        }
    }
}
