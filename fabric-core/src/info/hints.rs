//! What an application asks for.

use crate::address::Address;
use crate::flags::{Caps, Mode, MrMode, MsgOrder, OpFlags};

use super::level::{
    AddrFormat, AvType, EpType, Progress, Protocol, ResourceMgmt, Threading, TrafficClass,
};
use super::{Info, Version};

/// Declares [`Hints`]: each attribute is a field (`None` is the wildcard) and a method of the same
/// name and text.
macro_rules! define_hints {
    ($($(#[$text:meta])* $name:ident: $kind:ty,)*) => {
        /// What an application needs of a fabric: the least that will do, attribute by attribute.
        ///
        /// What is not set is a wildcard. The duties are the exception, as in libfabric: `mode`,
        /// `domain_mode` and `mr_mode` start empty, and empty means that the application agrees to
        /// no duty.
        ///
        /// A number is what a provider must at least be able to do: an offer of less is refused,
        /// and 0 asks for nothing. What the result says is another matter. `tx_size`, `rx_size`,
        /// `inject_size`, the `iov` limits and the counts of an endpoint's contexts become what was
        /// asked, and the endpoint has no more than that: with `tx_size(8)` it has eight credits.
        /// All other numbers stay those of the offer: `max_msg_size(1000)` accepts whoever can send
        /// 1000 bytes, and limits nothing. To have less, change the [`Info`].
        ///
        /// ```
        /// # mod fabric_async { pub use fabric_core::{flags::Caps, info::{EpType, Hints, Progress}}; }
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
            /// Duties the application agrees to.
            pub mode: Mode,
            /// Duties the application agrees to in the domain.
            pub domain_mode: Mode,
            /// Duties of memory registration the application agrees to.
            pub mr_mode: MrMode,
            /// The provider's name.
            pub provider: Option<String>,
            /// The fabric's name.
            pub fabric_name: Option<String>,
            /// The domain's name.
            pub domain_name: Option<String>,
            /// The oldest version of the provider that will do.
            pub provider_version: Option<Version>,
            /// The API the application was written for.
            pub api_version: Option<Version>,
            /// The default key of the domain.
            pub auth_key: Option<Vec<u8>>,
            /// The key of the endpoint.
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
    /// What the endpoint must be able to do. Without this hint, whatever is offered and the agreed
    /// duties allow.
    caps: Caps,
    /// How addresses are to be written.
    addr_format: AddrFormat,
    /// The local address to use.
    src_addr: Address,
    /// The peer that will be talked to.
    dest_addr: Address,
    /// Only the domain that has this open instance.
    domain: u64,
    /// Which calls the application serialises.
    threading: Threading,
    /// Who moves control operations forward.
    control_progress: Progress,
    /// Who moves data transfers forward.
    data_progress: Progress,
    /// Whether overruns must be prevented.
    resource_mgmt: ResourceMgmt,
    /// The kind of address vectors.
    av_type: AvType,
    /// Size of memory keys in bytes. Advice: nothing is refused for it.
    mr_key_size: usize,
    /// Bytes of completion-queue data with a transfer.
    cq_data_size: usize,
    /// Completion queues that will be opened. Advice: nothing is refused for it.
    cq_cnt: usize,
    /// Endpoints that will be opened. Advice: nothing is refused for it.
    ep_cnt: usize,
    /// Transmit contexts that should work in parallel. Advice: nothing is refused for it.
    domain_tx_ctx_cnt: usize,
    /// Receive contexts that should work in parallel. Advice: nothing is refused for it.
    domain_rx_ctx_cnt: usize,
    /// Transmit contexts an endpoint could have. Advice: nothing is refused for it.
    max_ep_tx_ctx: usize,
    /// Receive contexts an endpoint could have. Advice: nothing is refused for it.
    max_ep_rx_ctx: usize,
    /// Endpoints that will share a transmit context. Advice: nothing is refused for it.
    max_ep_stx_ctx: usize,
    /// Endpoints that will share a receive context. Advice: nothing is refused for it.
    max_ep_srx_ctx: usize,
    /// Counters that will be opened.
    cntr_cnt: usize,
    /// Pieces of memory in one registration.
    mr_iov_limit: usize,
    /// What the domain must be able to do.
    domain_caps: Caps,
    /// Bytes of provider data with an error.
    max_err_data: usize,
    /// Memory regions that will be registered.
    mr_cnt: usize,
    /// The traffic class of the domain. Advice: nothing is refused for it.
    tclass: TrafficClass,
    /// Keys one endpoint will use. Since 1.20.
    max_ep_auth_key: usize,
    /// The largest value a counter must hold. Since 2.5.
    max_cntr_value: u64,
    /// The largest error value a counter must hold. Since 2.5.
    max_err_cntr_value: u64,
    /// The kind of endpoint.
    ep_type: EpType,
    /// What the endpoint must speak.
    protocol: Protocol,
    /// The version of the protocol it must speak at least.
    protocol_version: u32,
    /// The largest single transfer, in bytes, that must be possible. The result has the limit of
    /// the offer.
    max_msg_size: usize,
    /// Transmit contexts of the endpoint; `usize::MAX` for one that is shared
    /// (`FI_SHARED_CONTEXT`).
    ep_tx_ctx_cnt: usize,
    /// Receive contexts of the endpoint; `usize::MAX` for one that is shared (`FI_SHARED_CONTEXT`).
    ep_rx_ctx_cnt: usize,
    /// Bytes of data that must be in order, reads behind writes. Looked at only with one-sided or
    /// atomic capabilities.
    max_order_raw_size: usize,
    /// As `max_order_raw_size`, for writes behind reads.
    max_order_war_size: usize,
    /// As `max_order_raw_size`, for writes behind writes.
    max_order_waw_size: usize,
    /// The bits of a tag that will be used.
    mem_tag_format: u64,
    /// What the transmit context must be able to do; without this hint, its share of `caps`.
    tx_caps: Caps,
    /// Duties agreed to for the transmit context; without this hint or with an empty set, those of
    /// `mode`.
    tx_mode: Mode,
    /// Flags of every transmission.
    tx_op_flags: OpFlags,
    /// Transmissions that must keep their order.
    tx_msg_order: MsgOrder,
    /// The largest message whose buffer must be free when the call returns, in bytes. The result
    /// has this limit.
    inject_size: usize,
    /// Transmissions that will be outstanding. The result has this many credits.
    tx_size: usize,
    /// Pieces of memory one transmission gathers.
    tx_iov_limit: usize,
    /// Remote pieces of memory one operation touches.
    rma_iov_limit: usize,
    /// The traffic class of the transmit context. Advice: nothing is refused for it.
    tx_tclass: TrafficClass,
    /// What the receive context must be able to do; without this hint, its share of `caps`.
    rx_caps: Caps,
    /// Duties agreed to for the receive context; without this hint or with an empty set, those of
    /// `mode`.
    rx_mode: Mode,
    /// Flags of every receive.
    rx_op_flags: OpFlags,
    /// Arriving operations that must keep their order.
    rx_msg_order: MsgOrder,
    /// Receives that will be posted. The result has this many entries.
    rx_size: usize,
    /// Pieces of memory one receive scatters to.
    rx_iov_limit: usize,
}

impl Hints {
    /// Nothing but wildcards, and no duty agreed to.
    pub fn new() -> Self {
        Self::default()
    }

    /// The provider, by name in any case. As in libfabric the name may be a chain,
    /// `"utility;core"`: a provider named in it will do. `"tcp;ofi_rxm"` is the chain of which both
    /// parts matter: it is the tcp provider with endpoints of the protocol
    /// [`Protocol::Rxm`](super::Protocol::Rxm).
    #[doc(alias = "prov_name")]
    pub fn provider(mut self, name: impl Into<String>) -> Self {
        self.provider = Some(name.into());
        self
    }

    /// The fabric, by its exact name.
    pub fn fabric_name(mut self, name: impl Into<String>) -> Self {
        self.fabric_name = Some(name.into());
        self
    }

    /// The domain, by its exact name.
    pub fn domain_name(mut self, name: impl Into<String>) -> Self {
        self.domain_name = Some(name.into());
        self
    }

    /// The API the application was written for. An offer of an older one is refused.
    pub fn api_version(mut self, major: u16, minor: u16) -> Self {
        self.api_version = Some(Version::new(major, minor));
        self
    }

    /// The oldest version of the provider that will do.
    #[doc(alias = "prov_version")]
    pub fn provider_version(mut self, major: u16, minor: u16) -> Self {
        self.provider_version = Some(Version::new(major, minor));
        self
    }

    /// The key that endpoints and regions of the domain carry; empty for none.
    pub fn auth_key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.auth_key = Some(key.into());
        self
    }

    /// The key of the endpoint; empty for that of the domain.
    pub fn ep_auth_key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.ep_auth_key = Some(key.into());
        self
    }

    /// The duties the application agrees to, for the endpoint and both contexts.
    pub fn mode(mut self, duties: Mode) -> Self {
        self.mode = duties;
        self
    }

    /// The duties the application agrees to in the domain.
    pub fn domain_mode(mut self, duties: Mode) -> Self {
        self.domain_mode = duties;
        self
    }

    /// The duties of memory registration the application agrees to. [`MrMode::BASIC`] and
    /// [`MrMode::SCALABLE`] stand alone.
    pub fn mr_mode(mut self, duties: MrMode) -> Self {
        self.mr_mode = duties;
        self
    }

    /// Who moves control operations and data transfers forward: both fields of 1.17, the one of
    /// 2.x.
    pub fn progress(self, progress: Progress) -> Self {
        self.control_progress(progress).data_progress(progress)
    }

    /// The local address to use: `src_addr` under a shorter name.
    #[doc(alias = "FI_SOURCE")]
    pub fn source(self, address: Address) -> Self {
        self.src_addr(address)
    }

    /// The peer that will be talked to: `dest_addr` under a shorter name.
    pub fn dest(self, address: Address) -> Self {
        self.dest_addr(address)
    }

    /// The capabilities that are asked for; an empty set asks for none and is the wildcard too.
    pub(super) fn requested_caps(&self) -> Option<Caps> {
        self.caps.filter(|caps| !caps.is_empty())
    }

    /// Whether one of the names in the `provider` hint is this one; any name will do without the
    /// hint.
    #[must_use]
    pub fn admits_provider(&self, name: &str) -> bool {
        self.provider.is_none() || self.names_provider(name)
    }

    /// Whether the `provider` hint has this name in its chain.
    pub(super) fn names_provider(&self, name: &str) -> bool {
        let mut parts = self.provider.iter().flat_map(|chain| chain.split(';'));
        parts.any(|part| part.eq_ignore_ascii_case(name))
    }
}

impl From<&Info> for Hints {
    /// Asks for exactly what `info` says: its numbers as minimums, its duties as agreed to. A
    /// provider uses this to check an `Info` that an application hands back.
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
            domain: domain.domain,
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
