//! Where discovery here differs from libfabric 1.17, and why.

use crate::Item;

/// A value of an attribute that one side accepts and the other refuses.
#[derive(Debug)]
pub(crate) struct Deviation {
    /// The providers.
    pub(crate) providers: &'static [&'static str],
    /// The value.
    pub(crate) item: Item,
    /// Whether the value is accepted here and refused by libfabric, or the reverse.
    pub(crate) is_accepted_here: bool,
    /// The number of sets that differ because of the value.
    pub(crate) count: usize,
    /// Why, for readers and failures of the test.
    #[allow(dead_code, reason = "printed with the deviation")]
    pub(crate) reason: &'static str,
}

impl Deviation {
    /// Returns the item of a set that this deviation is about, if the set may differ because of it.
    pub(crate) fn item_of(
        &self,
        provider: &str,
        set: &[Item],
        is_accepted_here: bool,
    ) -> Option<Item> {
        let (name, value) = self.item;
        let found = set.iter().find(|(other, _)| *other == name)?;
        let has_value = if value == BEYOND_CAPS {
            let caps = set.iter().find(|(other, _)| *other == "caps")?.1;
            let mut flags = found.1.split('|');
            flags.any(|flag| !caps.split('|').any(|other| other == flag))
        } else {
            found.1 == value
        };
        let applies = has_value
            && self.is_accepted_here == is_accepted_here
            && self.providers.contains(&provider);
        applies.then_some(*found)
    }
}

/// The value of `tx_caps` or `rx_caps` that has a flag which the `caps` of the set do not have.
const BEYOND_CAPS: &str = "beyond caps";

const fn accepted_here(
    providers: &'static [&'static str],
    item: Item,
    count: usize,
    reason: &'static str,
) -> Deviation {
    Deviation {
        providers,
        item,
        is_accepted_here: true,
        count,
        reason,
    }
}

const fn accepted_there(
    providers: &'static [&'static str],
    item: Item,
    count: usize,
    reason: &'static str,
) -> Deviation {
    Deviation {
        is_accepted_here: false,
        ..accepted_here(providers, item, count, reason)
    }
}

/// Attributes of which libfabric refuses no value of the test over any of the providers: advice,
/// levels of which all providers have the best, and what libfabric 1.17 does not check.
pub(crate) const NEVER_REFUSED: &[&str] = &[
    "threading",
    "control_progress",
    "resource_mgmt",
    "av_type",
    "mode",
    "domain_mode",
    "mr_key_size",
    "cq_cnt",
    "ep_cnt",
    "domain_tx_ctx_cnt",
    "domain_rx_ctx_cnt",
    "max_ep_tx_ctx",
    "max_ep_rx_ctx",
    "max_ep_stx_ctx",
    "max_ep_srx_ctx",
    "max_order_raw_size",
    "max_order_waw_size",
    "mem_tag_format",
    "fabric_name",
    "domain_name",
    "auth_key",
];

const CONTEXT: &str = "libfabric refuses the capability when the endpoint is opened";
const TEXT: &str = "libfabric 1.17 has no text for the socket addresses of these providers";
const NAMES: &str = "libfabric 1.17 ignores the name if there is no address";
const DEVICE: &str = "libfabric 1.17 has no device memory over sockets";
const LEAST: &str = "the least limit is 1 here, and 0 over a provider without RMA in libfabric";
const SIZE: &str = "the offer of libfabric has the default size, and more is accepted";
const ORDER: &str = "a one-sided operation over shm does not wait for earlier messages here";
const UDP_FLAGS: &str = "libfabric's udp offers no default flags";
const LEVEL: &str =
    "no frame of the protocol reports this completion level; libfabric accepts the flag";
const DEFAULT: &str = "the flag is a request of single operations here, and no default";

/// Every deviation.
pub(crate) const DEVIATIONS: &[Deviation] = &[
    accepted_there(&["shm", "tcp", "udp"], ("tx_caps", BEYOND_CAPS), 4, CONTEXT),
    accepted_there(&["shm", "tcp", "udp"], ("rx_caps", BEYOND_CAPS), 3, CONTEXT),
    accepted_here(&["tcp", "udp"], ("addr_format", "ADDR_STR"), 26, TEXT),
    accepted_there(&["shm", "tcp", "udp"], ("fabric_name", "+"), 19, NAMES),
    accepted_there(&["shm", "tcp", "udp"], ("domain_name", "+"), 12, NAMES),
    accepted_there(
        &["shm", "tcp", "udp"],
        ("auth_key", "8"),
        16,
        "1.17 does not check the size of a domain's key; 2.x refuses it",
    ),
    accepted_here(
        &["shm"],
        ("ep_type", "EP_MSG"),
        8,
        "libfabric has no connected endpoints over shm",
    ),
    accepted_here(
        &["shm"],
        ("ep_rx_ctx_cnt", "SHARED_CONTEXT"),
        9,
        "libfabric has no shared receive contexts over shm",
    ),
    accepted_here(
        &["shm"],
        ("data_progress", "PROGRESS_AUTO"),
        29,
        "libfabric has no automatic progress over shm",
    ),
    accepted_here(
        &["shm"],
        ("caps", "MSG|LOCAL_COMM"),
        1,
        "libfabric's shm does not state that it is local",
    ),
    accepted_here(
        &["shm", "tcp"],
        ("caps", "MSG|FENCE"),
        3,
        "libfabric's providers have no fences",
    ),
    accepted_here(
        &["shm", "tcp", "udp"],
        ("caps", "MSG|SOURCE|SOURCE_ERR"),
        5,
        "libfabric's providers do not report unknown senders",
    ),
    accepted_there(
        &["tcp"],
        ("caps", "RMA|RMA_PMEM"),
        1,
        "persistent memory is not served here",
    ),
    accepted_here(&["tcp", "udp"], ("caps", "MSG|HMEM"), 3, DEVICE),
    accepted_here(&["tcp", "udp"], ("tx_caps", "HMEM"), 8, DEVICE),
    accepted_here(&["tcp", "udp"], ("rx_caps", "HMEM"), 8, DEVICE),
    accepted_here(
        &["shm", "tcp", "udp"],
        ("cntr_cnt", "+"),
        35,
        "the number of objects has no limit here",
    ),
    accepted_here(
        &["shm", "tcp"],
        ("mr_cnt", "+"),
        21,
        "the number of objects has no limit here",
    ),
    accepted_here(&["udp"], ("mr_iov_limit", "1"), 8, LEAST),
    accepted_here(&["udp"], ("rma_iov_limit", "1"), 6, LEAST),
    accepted_there(
        &["udp"],
        ("mr_mode", "MR_BASIC"),
        5,
        "regions over udp have no virtual addresses, since no peer accesses them",
    ),
    accepted_there(
        &["shm", "tcp"],
        ("max_msg_size", "+"),
        6,
        "the length of a message has a limit here",
    ),
    accepted_there(&["tcp"], ("tx_size", "+"), 3, SIZE),
    accepted_there(&["tcp"], ("rx_size", "+"), 6, SIZE),
    accepted_there(&["shm"], ("tx_msg_order", "ORDER_RAS"), 3, ORDER),
    accepted_there(&["shm"], ("tx_msg_order", "ORDER_WAS"), 4, ORDER),
    accepted_there(&["shm"], ("rx_msg_order", "ORDER_RAS"), 2, ORDER),
    accepted_there(&["shm"], ("rx_msg_order", "ORDER_WAS"), 3, ORDER),
    accepted_here(&["udp"], ("tx_op_flags", "COMPLETION"), 1, UDP_FLAGS),
    accepted_here(&["udp"], ("tx_op_flags", "INJECT_COMPLETE"), 1, UDP_FLAGS),
    accepted_here(
        &["udp"],
        ("tx_op_flags", "COMPLETION|INJECT_COMPLETE"),
        1,
        UDP_FLAGS,
    ),
    accepted_here(&["udp"], ("tx_op_flags", "TRANSMIT_COMPLETE"), 1, UDP_FLAGS),
    accepted_here(&["udp"], ("rx_op_flags", "COMPLETION"), 1, UDP_FLAGS),
    accepted_here(
        &["shm"],
        ("tx_op_flags", "MATCH_COMPLETE"),
        8,
        "libfabric has no such completion level over shm",
    ),
    accepted_there(&["tcp"], ("tx_op_flags", "TRANSMIT_COMPLETE"), 6, LEVEL),
    accepted_there(&["tcp"], ("tx_op_flags", "COMMIT_COMPLETE"), 3, LEVEL),
    accepted_there(&["tcp"], ("tx_op_flags", "INJECT"), 3, DEFAULT),
    accepted_there(&["shm", "tcp"], ("rx_op_flags", "MULTI_RECV"), 25, DEFAULT),
];
