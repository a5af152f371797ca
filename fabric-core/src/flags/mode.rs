//! Mode bits: requirements of a provider on the application, for operations and for memory
//! registration.

use bitflags::bitflags;

bitflags! {
    /// Requirements of a provider on the application (`fi_getinfo(3)`, mode).
    ///
    /// In hints: the requirements that the application can fulfill; an empty set agrees to none,
    /// and is no wildcard. In an offer: the requirements of the provider. Buffers and contexts are
    /// owned by the operation in this fabric, so its own providers require none; the names exist so
    /// that hints of libfabric 1.17 can be expressed. Versions below are those of libfabric.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Mode: u64 {
        /// Every operation context is scratch space of four words for the provider.
        #[doc(alias = "FI_CONTEXT")]
        const CONTEXT = 1;
        /// As [`Mode::CONTEXT`], with eight words.
        #[doc(alias = "FI_CONTEXT2")]
        const CONTEXT2 = 1 << 1;
        /// Every message buffer starts with space for the provider's header.
        #[doc(alias = "FI_MSG_PREFIX")]
        const MSG_PREFIX = 1 << 2;
        /// I/O vectors stay unchanged until the operation completes.
        #[doc(alias = "FI_ASYNC_IOV")]
        const ASYNC_IOV = 1 << 3;
        /// A transfer with remote completion data consumes a posted receive at the target.
        #[doc(alias = "FI_RX_CQ_DATA")]
        const RX_CQ_DATA = 1 << 4;
        /// The form of [`MrMode::LOCAL`] before libfabric 1.5; still accepted in its place.
        #[doc(alias = "FI_LOCAL_MR")]
        const LOCAL_MR = 1 << 5;
        /// Completions of endpoints with selective completion (`FI_SELECTIVE_COMPLETION`) carry
        /// flags only. Removed in 2.x.
        #[doc(alias = "FI_NOTIFY_FLAGS_ONLY")]
        const NOTIFY_FLAGS_ONLY = 1 << 6;
        /// A queue or counter is shared only by endpoints of equal capabilities. A mode of domains,
        /// removed in 2.x.
        #[doc(alias = "FI_RESTRICTED_COMP")]
        const RESTRICTED_COMP = 1 << 7;
        /// Received messages may stay in the provider's buffers until claimed. Removed in 2.x.
        #[doc(alias = "FI_BUFFERED_RECV")]
        const BUFFERED_RECV = 1 << 8;
        /// A peer provider must carry this provider's control traffic. Since 2.0.
        #[doc(alias = "FI_PEER_TRANSFER")]
        const PEER_TRANSFER = 1 << 9;
    }
}

bitflags! {
    /// Requirements of memory registration (`fi_mr(3)`, `mr_mode`).
    ///
    /// In hints: the requirements that the application agrees to; empty agrees to none. In an
    /// offer: the requirements of the provider. In the negotiated info: the requirements that
    /// remain. Without any, peers address a region by offsets from its start, under a key that the
    /// application chooses, and only memory that peers access is registered.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct MrMode: u32 {
        /// The name before libfabric 1.5 of virtual addresses, allocated memory and provider keys
        /// together; cannot be combined with other bits.
        #[doc(alias = "FI_MR_BASIC")]
        const BASIC = 1;
        /// The name before libfabric 1.5 of "no requirements"; cannot be combined with other bits.
        #[doc(alias = "FI_MR_SCALABLE")]
        const SCALABLE = 1 << 1;
        /// Buffers of local operations are registered too.
        #[doc(alias = "FI_MR_LOCAL")]
        const LOCAL = 1 << 2;
        /// Peers address a region by its virtual address instead of an offset.
        #[doc(alias = "FI_MR_VIRT_ADDR")]
        const VIRT_ADDR = 1 << 3;
        /// The memory is backed by pages when it is registered, and stays backed.
        #[doc(alias = "FI_MR_ALLOCATED")]
        const ALLOCATED = 1 << 4;
        /// The provider chooses the key.
        #[doc(alias = "FI_MR_PROV_KEY")]
        const PROV_KEY = 1 << 5;
        /// Keys do not fit 64 bits: they are exchanged raw and mapped before use.
        #[doc(alias = "FI_MR_RAW")]
        const RAW = 1 << 6;
        /// A region belongs to an endpoint rather than to the domain.
        #[doc(alias = "FI_MR_ENDPOINT")]
        const ENDPOINT = 1 << 7;
        /// A region that is bound to a counter is enabled after the counter is bound.
        #[doc(alias = "FI_MR_RMA_EVENT")]
        const RMA_EVENT = 1 << 8;
        /// Buffers of collective operations are registered for collectives.
        #[doc(alias = "FI_MR_COLLECTIVE")]
        const COLLECTIVE = 1 << 9;
        /// The application notifies the provider when page tables of a region may have changed.
        #[doc(alias = "FI_MR_MMU_NOTIFY")]
        const MMU_NOTIFY = 1 << 10;
        /// Device memory is registered even for local use.
        #[doc(alias = "FI_MR_HMEM")]
        const HMEM = 1 << 11;
    }
}

impl MrMode {
    /// The bits that [`MrMode::BASIC`] stands for.
    pub const BASIC_BITS: Self = Self::VIRT_ADDR.union(Self::ALLOCATED).union(Self::PROV_KEY);

    /// The two legacy modes from before 1.5.
    pub const LEGACY: Self = Self::BASIC.union(Self::SCALABLE);

    /// Requirements that concern only memory which peers access.
    pub const TARGET_ONLY: Self = Self::RAW
        .union(Self::VIRT_ADDR)
        .union(Self::PROV_KEY)
        .union(Self::RMA_EVENT);
}
