//! [`Hints`]: the requirements of an application.

use crate::address::Address;
use crate::flags::{Caps, Mode, MrMode, MsgOrder, OpFlags};

use super::level::{
    AddrFormat, AvType, EpType, Progress, Protocol, ResourceMgmt, Threading, TrafficClass,
};
use super::{Info, Version};

/// Declares [`Hints`]: each attribute is a field (`None` is the wildcard) and a setter of the same
/// name with the same documentation.
macro_rules! define_hints {
    ($($(#[$text:meta])* $name:ident: $kind:ty,)*) => {
        /// The requirements of an application, attribute by attribute (the hints of
        /// `fi_getinfo(3)`).
        ///
        /// An attribute that is not set is a wildcard. Mode bits are the exception, as in
        /// libfabric: `mode`, `domain_mode` and `mr_mode` start empty, and empty means that the
        /// application agrees to no requirement of the provider.
        ///
        /// A number is the least that a provider must support: an offer of less is refused, and 0
        /// requires nothing. In the negotiated info, `tx_size`, `rx_size`, `inject_size`, the `iov`
        /// limits and an endpoint's context counts become the requested values, and limit the
        /// endpoint: with `tx_size(8)` it has eight credits. All other numbers stay those of the
        /// offer: `max_msg_size(1000)` accepts every provider that can send 1000 bytes, and limits
        /// nothing. To lower such a limit, change the [`Info`].
        ///
        /// ```
        /// # mod fabric_async {
        /// #     pub use fabric_core::{flags::Caps, info::{EpType, Hints, Progress}};
        /// # }
        /// use fabric_async::{Caps, EpType, Hints, Progress};
        ///
        /// let hints = Hints::new()
        ///     .provider("shm")
        ///     .ep_type(EpType::Rdm)
        ///     .caps(Caps::TAGGED | Caps::MSG)
        ///     .progress(Progress::Manual)
        ///     .tx_size(256);
        /// assert_eq!((hints.tx_size, hints.rx_size), (Some(256), None));
        /// ```
        #[derive(Clone, Debug, Default, PartialEq)]
        #[non_exhaustive]
        #[must_use]
        #[doc(alias = "fi_allocinfo")]
        pub struct Hints {
            /// Mode bits that the application agrees to.
            pub mode: Mode,
            /// Mode bits of the domain that the application agrees to.
            pub domain_mode: Mode,
            /// Memory registration mode bits that the application agrees to.
            pub mr_mode: MrMode,
            /// The provider's name.
            pub provider: Option<String>,
            /// The fabric's name.
            pub fabric_name: Option<String>,
            /// The domain's name.
            pub domain_name: Option<String>,
            /// The oldest acceptable version of the provider.
            pub provider_version: Option<Version>,
            /// The API version that the application was written for.
            pub api_version: Option<Version>,
            /// The default authorization key of the domain.
            pub auth_key: Option<Vec<u8>>,
            /// The authorization key of the endpoint.
            pub ep_auth_key: Option<Vec<u8>>,
            $($(#[$text])* pub $name: Option<$kind>,)*
        }

        impl Hints {
            $($(#[$text])* pub fn $name(mut self, $name: $kind) -> Self {
                self.$name = Some($name);
                self
            })*
        }
    };
}

define_hints! {
    /// The capabilities that the endpoint must have. Without this hint, all that are offered and
    /// that the agreed mode bits allow.
    caps: Caps,
    /// The address format.
    addr_format: AddrFormat,
    /// The local address.
    src_addr: Address,
    /// The address of the peer.
    dest_addr: Address,
    /// The id of an open domain instance that must be used.
    domain: u64,
    /// Which calls the application serializes.
    threading: Threading,
    /// Whether the provider or the application makes progress on control operations.
    control_progress: Progress,
    /// Whether the provider or the application makes progress on data transfers.
    data_progress: Progress,
    /// Whether overruns must be prevented.
    resource_mgmt: ResourceMgmt,
    /// The type of address vectors.
    av_type: AvType,
    /// Size of memory keys in bytes. Advice: never refused.
    mr_key_size: usize,
    /// Size of the remote completion data of a transfer in bytes.
    cq_data_size: usize,
    /// Number of completion queues that will be opened. Advice: never refused.
    cq_cnt: usize,
    /// Number of endpoints that will be opened. Advice: never refused.
    ep_cnt: usize,
    /// Number of transmit contexts that should work in parallel. Advice: never refused.
    domain_tx_ctx_cnt: usize,
    /// Number of receive contexts that should work in parallel. Advice: never refused.
    domain_rx_ctx_cnt: usize,
    /// Most transmit contexts that any endpoint will use (`max_ep_tx_ctx`). Advice: never refused.
    max_ep_tx_ctx: usize,
    /// Most receive contexts that any endpoint will use (`max_ep_rx_ctx`). Advice: never refused.
    max_ep_rx_ctx: usize,
    /// Number of endpoints that will share a transmit context. Advice: never refused.
    max_ep_stx_ctx: usize,
    /// Number of endpoints that will share a receive context. Advice: never refused.
    max_ep_srx_ctx: usize,
    /// Number of counters that will be opened. An offer with fewer is refused. The hint sets no
    /// limit; `domain.cntr_cnt` of the info does.
    cntr_cnt: usize,
    /// Number of memory segments in one registration.
    mr_iov_limit: usize,
    /// The capabilities that the domain must have.
    domain_caps: Caps,
    /// Maximum length of the provider's data about an error, in bytes.
    max_err_data: usize,
    /// Number of memory regions that will be registered. An offer with fewer is refused. The hint
    /// sets no limit; `domain.mr_cnt` of the info does.
    mr_cnt: usize,
    /// The traffic class of the domain. Advice: never refused.
    tclass: TrafficClass,
    /// Number of authorization keys that one endpoint will use. Since libfabric 1.20.
    max_ep_auth_key: usize,
    /// The largest value a counter must hold. Since libfabric 2.5.
    max_cntr_value: u64,
    /// The largest error value a counter must hold. Since libfabric 2.5.
    max_err_cntr_value: u64,
    /// The endpoint type.
    ep_type: EpType,
    /// The wire protocol.
    protocol: Protocol,
    /// The oldest acceptable version of the protocol.
    protocol_version: u32,
    /// The largest single transfer that must be possible, in bytes. The negotiated info has the
    /// limit of the offer.
    max_msg_size: usize,
    /// Number of transmit contexts of this endpoint (`tx_ctx_cnt`). Above 1, or shared
    /// (`FI_SHARED_CONTEXT`): refused.
    ep_tx_ctx_cnt: usize,
    /// Number of receive contexts of this endpoint (`rx_ctx_cnt`); `SHARED_CONTEXT` for a shared
    /// one (`FI_SHARED_CONTEXT`). Above 1: refused.
    ep_rx_ctx_cnt: usize,
    /// The size in bytes up to which reads after writes must be ordered. Checked only with RMA or
    /// atomic capabilities.
    max_order_raw_size: usize,
    /// As `max_order_raw_size`, for writes after reads.
    max_order_war_size: usize,
    /// As `max_order_raw_size`, for writes after writes.
    max_order_waw_size: usize,
    /// The bits of a tag that will be used.
    mem_tag_format: u64,
    /// The capabilities that the transmit context must have; without this hint, those of `caps`
    /// that apply to it.
    tx_caps: Caps,
    /// Mode bits that the application agrees to for the transmit context; without this hint or with
    /// an empty set, those of `mode`.
    tx_mode: Mode,
    /// Default flags of transmissions.
    tx_op_flags: OpFlags,
    /// Transmissions that must be ordered.
    tx_msg_order: MsgOrder,
    /// The largest message whose buffer must be reusable when the call returns, in bytes. The
    /// negotiated info has this limit.
    inject_size: usize,
    /// Number of transmissions that will be outstanding. The negotiated info has this many credits.
    tx_size: usize,
    /// Number of buffers that one transmission gathers.
    tx_iov_limit: usize,
    /// Number of remote ranges that one operation accesses.
    rma_iov_limit: usize,
    /// The traffic class of the transmit context. Advice: never refused.
    tx_tclass: TrafficClass,
    /// The capabilities that the receive context must have; without this hint, those of `caps` that
    /// apply to it.
    rx_caps: Caps,
    /// Mode bits that the application agrees to for the receive context; without this hint or with
    /// an empty set, those of `mode`.
    rx_mode: Mode,
    /// Default flags of receives.
    rx_op_flags: OpFlags,
    /// Arriving operations that must be ordered.
    rx_msg_order: MsgOrder,
    /// Number of receives that will be posted. The negotiated info has this many entries.
    rx_size: usize,
    /// Number of buffers that one receive scatters to.
    rx_iov_limit: usize,
}

impl Hints {
    /// Creates hints with nothing but wildcards, and no mode bit agreed to.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the provider by name, in any case. As in libfabric the name may be layered,
    /// `"utility;core"`: any provider named in it is accepted. Only in `"tcp;ofi_rxm"` do both
    /// parts matter: the tcp provider with endpoints of the protocol
    /// [`Protocol::Rxm`](super::Protocol::Rxm).
    #[doc(alias = "prov_name")]
    pub fn provider(mut self, name: impl Into<String>) -> Self {
        self.provider = Some(name.into());
        self
    }

    /// Sets the fabric by its exact name.
    pub fn fabric_name(mut self, name: impl Into<String>) -> Self {
        self.fabric_name = Some(name.into());
        self
    }

    /// Sets the domain by its exact name.
    pub fn domain_name(mut self, name: impl Into<String>) -> Self {
        self.domain_name = Some(name.into());
        self
    }

    /// Restricts the offers to those of an open fabric or domain. The infos have the attributes of
    /// the open domain, so `Domain::endpoint` accepts each of them. The call overwrites the hints
    /// for provider and fabric name, and with a domain those for its name and id. Later calls
    /// overwrite them again.
    pub fn within(self, scope: &impl Scope) -> Self {
        scope.restrict(self)
    }

    /// Sets the API version that the application was written for. An offer of an older version is
    /// refused.
    pub fn api_version(mut self, major: u16, minor: u16) -> Self {
        self.api_version = Some(Version::new(major, minor));
        self
    }

    /// Sets the oldest acceptable version of the provider.
    #[doc(alias = "prov_version")]
    pub fn provider_version(mut self, major: u16, minor: u16) -> Self {
        self.provider_version = Some(Version::new(major, minor));
        self
    }

    /// Sets the authorization key of the domain's endpoints and regions; empty for none.
    pub fn auth_key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.auth_key = Some(key.into());
        self
    }

    /// Sets the authorization key of the endpoint; empty for the domain's.
    pub fn ep_auth_key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.ep_auth_key = Some(key.into());
        self
    }

    /// Sets the mode bits that the application agrees to, for the endpoint and both contexts.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the mode bits of the domain that the application agrees to.
    pub fn domain_mode(mut self, mode: Mode) -> Self {
        self.domain_mode = mode;
        self
    }

    /// Sets the memory registration mode bits that the application agrees to. [`MrMode::BASIC`] and
    /// [`MrMode::SCALABLE`] cannot be combined with other bits.
    pub fn mr_mode(mut self, mode: MrMode) -> Self {
        self.mr_mode = mode;
        self
    }

    /// Sets whether the provider or the application makes progress on control operations and data
    /// transfers: both fields of libfabric 1.17, the one field of 2.x.
    pub fn progress(self, progress: Progress) -> Self {
        self.control_progress(progress).data_progress(progress)
    }

    /// Sets the local address: `src_addr` under a shorter name.
    #[doc(alias = "FI_SOURCE")]
    pub fn source(self, address: Address) -> Self {
        self.src_addr(address)
    }

    /// Sets the address of the peer: `dest_addr` under a shorter name.
    pub fn dest(self, address: Address) -> Self {
        self.dest_addr(address)
    }

    /// Returns the requested capabilities; an empty set requests none and is the wildcard too.
    pub(super) fn requested_caps(&self) -> Option<Caps> {
        self.caps.filter(|caps| !caps.is_empty())
    }

    /// Returns whether the `provider` hint accepts the provider of this name; without the hint, any
    /// is accepted.
    #[must_use]
    pub fn admits_provider(&self, name: &str) -> bool {
        self.provider.is_none() || self.names_provider(name)
    }

    /// Returns whether the `provider` hint contains this name as a layer.
    pub(super) fn names_provider(&self, name: &str) -> bool {
        let mut parts = self.provider.iter().flat_map(|chain| chain.split(';'));
        parts.any(|part| part.eq_ignore_ascii_case(name))
    }
}

/// An open object to which [`Hints::within`] restricts offers.
pub trait Scope {
    /// Returns hints that only offers of this object satisfy.
    fn restrict(&self, hints: Hints) -> Hints;
}

impl From<&Info> for Hints {
    /// Requests exactly what `info` says: its numbers as minimums, its mode bits as agreed to, and
    /// no open instance of its domain. A provider uses this to check an `Info` that an application
    /// passes back.
    fn from(info: &Info) -> Self {
        let Info {
            fabric,
            domain,
            ep,
            tx,
            rx,
            ..
        } = info;
        let stated = |caps: Caps| (!caps.is_empty()).then_some(caps);
        Self {
            mode: info.mode,
            domain_mode: domain.mode,
            mr_mode: domain.mr_mode.difference(MrMode::LEGACY),
            provider: Some(fabric.provider.clone()),
            fabric_name: Some(fabric.name.clone()),
            domain_name: Some(domain.name.clone()),
            auth_key: domain.auth_key.clone(),
            ep_auth_key: ep.auth_key.clone(),
            caps: stated(info.caps),
            addr_format: Some(info.addr_format),
            src_addr: info.src_addr.clone(),
            dest_addr: info.dest_addr.clone(),
            api_version: Some(fabric.api_version),
            provider_version: Some(fabric.provider_version),
            domain: None,
            threading: Some(domain.threading),
            control_progress: Some(domain.control_progress),
            data_progress: Some(domain.data_progress),
            resource_mgmt: Some(domain.resource_mgmt),
            av_type: domain.av_type,
            mr_key_size: Some(domain.mr_key_size),
            cq_data_size: Some(domain.cq_data_size),
            cq_cnt: Some(domain.cq_cnt),
            ep_cnt: Some(domain.ep_cnt),
            domain_tx_ctx_cnt: Some(domain.tx_ctx_cnt),
            domain_rx_ctx_cnt: Some(domain.rx_ctx_cnt),
            max_ep_tx_ctx: Some(domain.max_ep_tx_ctx),
            max_ep_rx_ctx: Some(domain.max_ep_rx_ctx),
            max_ep_stx_ctx: Some(domain.max_ep_stx_ctx),
            max_ep_srx_ctx: Some(domain.max_ep_srx_ctx),
            cntr_cnt: Some(domain.cntr_cnt),
            mr_iov_limit: Some(domain.mr_iov_limit),
            domain_caps: stated(domain.caps),
            max_err_data: Some(domain.max_err_data),
            mr_cnt: Some(domain.mr_cnt),
            tclass: domain.tclass,
            max_ep_auth_key: Some(domain.max_ep_auth_key),
            max_cntr_value: Some(domain.max_cntr_value),
            max_err_cntr_value: Some(domain.max_err_cntr_value),
            ep_type: Some(ep.ep_type),
            protocol: ep.protocol,
            protocol_version: Some(ep.protocol_version),
            max_msg_size: Some(ep.max_msg_size),
            ep_tx_ctx_cnt: Some(ep.tx_ctx_cnt),
            ep_rx_ctx_cnt: Some(ep.rx_ctx_cnt),
            max_order_raw_size: Some(ep.max_order_raw_size),
            max_order_war_size: Some(ep.max_order_war_size),
            max_order_waw_size: Some(ep.max_order_waw_size),
            mem_tag_format: Some(ep.mem_tag_format),
            tx_caps: stated(tx.caps),
            tx_mode: Some(tx.mode),
            tx_op_flags: Some(tx.op_flags),
            tx_msg_order: Some(tx.msg_order),
            inject_size: Some(tx.inject_size),
            tx_size: Some(tx.size),
            tx_iov_limit: Some(tx.iov_limit),
            rma_iov_limit: Some(tx.rma_iov_limit),
            tx_tclass: tx.tclass,
            rx_caps: stated(rx.caps),
            rx_mode: Some(rx.mode),
            rx_op_flags: Some(rx.op_flags),
            rx_msg_order: Some(rx.msg_order),
            rx_size: Some(rx.size),
            rx_iov_limit: Some(rx.iov_limit),
        }
    }
}
