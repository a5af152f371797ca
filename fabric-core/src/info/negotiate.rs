//! The check whether an offer satisfies hints, attribute by attribute, in libfabric's order.
//!
//! The order is part of the contract, because only the first mismatch is reported: endpoint type,
//! capabilities, mode, addresses, fabric, domain, endpoint, receive context, transmit context.
//! [`select`] checks the names of provider, fabric and domain before all of these.
//! Where 1.17 and 2.x differ:
//!
//! | attribute | decision |
//! |---|---|
//! | `api_version` | refused when newer than the offer's; an older one is accepted and returned. Before 1.5 the domain's check ends after `mr_mode`; attributes of 1.20 or 2.5 are checked from that version on |
//! | `threading` | the five levels and ranks of 1.17, under every API version |
//! | progress | two attributes, as in 1.17, each by its own rank; the unified level of 1.21 is the third |
//! | `av_type` | a map is accepted where a table is offered, as in 2.x; a table is refused where only a map is offered |
//! | `mr_mode` | separate mode bits, and both legacy modes; details in the file `mr_mode` |
//! | `auth_key` | only the length is compared. Keys in the address vector (1.20) are not offered |
//! | tx and rx caps | refused also where they exceed the endpoint's, which libfabric detects when the endpoint is opened |
//! | `comp_order`, `total_buffered_recv` | cannot be requested; 2.x demands 0 |
//!
//! Never refused: key size, traffic classes, and the counts of queues, endpoints and contexts of
//! the domain. They are advice.

use std::fmt::{Debug, Display};

use bitflags::Flags;

use crate::address::Address;
use crate::flags::{Caps, Mode};

use super::grant::{endpoint_caps, grant};
use super::level::{AvType, Progress, Protocol, ResourceMgmt, Threading};
use super::mismatch::{Mismatch, NoMatch, flag_names};
use super::{Hints, Info, SHARED_CONTEXT, Version, mr_mode};

type CheckResult = Result<(), Mismatch>;

/// Capabilities that do not apply to a receive context.
const TX_ONLY_CAPS: Caps = Caps::SEND.union(Caps::READ).union(Caps::WRITE);

/// Capabilities that do not apply to a transmit context.
const RX_ONLY_CAPS: Caps = Caps::RECV
    .union(Caps::REMOTE_READ)
    .union(Caps::REMOTE_WRITE)
    .union(Caps::DIRECTED_RECV)
    .union(Caps::MULTI_RECV)
    .union(Caps::TAGGED_MULTI_RECV)
    .union(Caps::SOURCE)
    .union(Caps::SOURCE_ERR)
    .union(Caps::RMA_EVENT);

/// RXM's layer in the provider names of libfabric.
const RXM_LAYER: &str = "ofi_rxm";

/// Returns all offers that satisfy the hints, adjusted to them, in the order of the offers (best
/// first).
///
/// Provider, fabric and domain names are checked before all other attributes.
///
/// # Errors
/// [`NoMatch`] with one entry per offer when none satisfies the hints.
#[doc(alias = "fi_getinfo")]
pub fn select(hints: &Hints, offers: &[Info]) -> Result<Vec<Info>, NoMatch> {
    let mut found = Vec::new();
    let mut mismatches = Vec::new();
    for offer in offers {
        let names = check_provider(hints, offer).and_then(|()| check_fabric_name(hints, offer));
        match names
            .and_then(|()| check_domain_name(hints, offer))
            .and_then(|()| negotiate(hints, offer))
        {
            // An offer of automatic progress that is adjusted to a hint for manual progress equals
            // the offer of manual progress.
            Ok(info) if found.contains(&info) => {}
            Ok(info) => found.push(info),
            Err(mismatch) => mismatches.push(mismatch),
        }
    }
    if found.is_empty() {
        Err(NoMatch { mismatches })
    } else {
        Ok(found)
    }
}

/// Checks one offer against the hints, and returns the offer adjusted to them.
///
/// # Errors
/// [`Mismatch`] with the first attribute that does not satisfy the hints, the requested and the
/// offered value.
pub fn negotiate(hints: &Hints, offer: &Info) -> Result<Info, Mismatch> {
    check_equal(offer, "ep_type", hints.ep_type, Some(offer.ep.ep_type))?;
    check_subset(offer, "caps", hints.caps, offer.caps.with_directions())?;
    check_source_err(hints, offer)?;
    check_mode(offer, "mode", hints.mode, offer.mode)?;
    check_addresses(hints, offer)?;
    check_fabric(hints, offer)?;
    check_domain_attr(hints, offer)?;
    check_endpoint(hints, offer)?;
    check_rx(hints, offer)?;
    check_tx(hints, offer)?;
    Ok(grant(hints, offer))
}

/// Checks that `SOURCE_ERR` is requested together with `SOURCE`, as `fi_getinfo(3)` demands.
fn check_source_err(hints: &Hints, offer: &Info) -> CheckResult {
    let requested = hints.caps.unwrap_or_default() & (Caps::SOURCE | Caps::SOURCE_ERR);
    if requested != Caps::SOURCE_ERR {
        return Ok(());
    }
    mismatch(
        offer,
        "caps",
        flag_names(requested),
        "SOURCE_ERR only with SOURCE",
    )
}

fn check_addresses(hints: &Hints, offer: &Info) -> CheckResult {
    if let Some(requested) = hints.addr_format
        && !offer.addr_format.is_compatible(requested)
    {
        return mismatch(
            offer,
            "addr_format",
            format!("{requested:?}"),
            format!("{:?}", offer.addr_format),
        );
    }
    for (attribute, address) in [
        ("src_addr", &hints.src_addr),
        ("dest_addr", &hints.dest_addr),
    ] {
        let Some(address) = address else { continue };
        let offered_provider = &offer.fabric.provider;
        if !(address.scheme().provider()).eq_ignore_ascii_case(offered_provider) {
            let offered = "only its own address format";
            return mismatch(offer, attribute, address.to_string(), offered);
        }
        // The hints contradict each other.
        if let Some(requested) = hints.addr_format
            && requested.check(address).is_err()
        {
            let offered = format!("only addresses of the requested format {requested:?}");
            return mismatch(offer, attribute, address.to_string(), offered);
        }
    }
    // An offer for one network interface holds the interface's address.
    let socket_addr = |address: &Option<Address>| address.as_ref().and_then(Address::socket_addr);
    let Some(local) = socket_addr(&offer.src_addr) else {
        return Ok(());
    };
    match (socket_addr(&hints.src_addr), socket_addr(&hints.dest_addr)) {
        (Some(requested), _) if requested.ip() != local.ip() => mismatch(
            offer,
            "src_addr",
            requested.ip().to_string(),
            local.ip().to_string(),
        ),
        (_, Some(requested)) if requested.is_ipv4() != local.is_ipv4() => mismatch(
            offer,
            "dest_addr",
            requested.ip().to_string(),
            "the other IP version",
        ),
        _ => Ok(()),
    }
}

fn check_fabric(hints: &Hints, offer: &Info) -> CheckResult {
    check_provider(hints, offer)?;
    check_at_most(
        offer,
        "provider_version",
        hints.provider_version,
        offer.fabric.provider_version,
    )?;
    check_at_most(
        offer,
        "api_version",
        hints.api_version,
        offer.fabric.api_version,
    )?;
    check_fabric_name(hints, offer)
}

fn check_provider(hints: &Hints, offer: &Info) -> CheckResult {
    // The hint `ofi_rxm` requires the RXM protocol; a hint without it accepts RXM too.
    let is_layered = offer.ep.protocol == Some(Protocol::Rxm);
    if hints.admits_provider(&offer.fabric.provider)
        && (is_layered || !hints.names_provider(RXM_LAYER))
    {
        return Ok(());
    }
    let requested = hints.provider.as_deref().unwrap_or_default();
    mismatch(
        offer,
        "provider",
        format!("{requested:?}"),
        format!("{:?}", offer.fabric.provider),
    )
}

fn check_fabric_name(hints: &Hints, offer: &Info) -> CheckResult {
    check_equal(
        offer,
        "fabric_name",
        hints.fabric_name.as_deref(),
        Some(&offer.fabric.name),
    )
}

fn check_domain_name(hints: &Hints, offer: &Info) -> CheckResult {
    check_equal(
        offer,
        "domain_name",
        hints.domain_name.as_deref(),
        Some(&offer.domain.name),
    )
}

/// Checks the attributes of the domain.
pub(super) fn check_domain_attr(hints: &Hints, offer: &Info) -> CheckResult {
    let offered = &offer.domain;
    let api = hints.api_version.unwrap_or(offer.fabric.api_version);

    // libfabric leaves these two checks to providers, which do them before the attributes.
    check_domain_name(hints, offer)?;
    match hints.domain {
        Some(requested) if offered.domain != Some(requested) => {
            let open = offered
                .domain
                .map_or("no open instance".to_owned(), |id| id.to_string());
            return mismatch(offer, "domain", requested.to_string(), open);
        }
        _ => {}
    }

    check_rank(
        offer,
        "threading",
        hints.threading,
        offered.threading,
        Threading::rank,
    )?;
    check_rank(
        offer,
        "control_progress",
        hints.control_progress,
        offered.control_progress,
        Progress::rank,
    )?;
    check_rank(
        offer,
        "data_progress",
        hints.data_progress,
        offered.data_progress,
        Progress::rank,
    )?;
    check_rank(
        offer,
        "resource_mgmt",
        hints.resource_mgmt,
        offered.resource_mgmt,
        ResourceMgmt::rank,
    )?;
    if !matches!(
        (hints.av_type, offered.av_type),
        (_, None) | (Some(AvType::Map), Some(AvType::Table))
    ) {
        check_equal(offer, "av_type", hints.av_type, offered.av_type)?;
    }
    check_at_most(
        offer,
        "cq_data_size",
        hints.cq_data_size,
        offered.cq_data_size,
    )?;
    mr_mode::check(hints, offer)?;
    if api < mr_mode::SEPARATE_MODE_BITS {
        return Ok(());
    }
    check_at_most(offer, "cntr_cnt", hints.cntr_cnt, offered.cntr_cnt)?;
    check_at_most(
        offer,
        "mr_iov_limit",
        hints.mr_iov_limit,
        offered.mr_iov_limit,
    )?;
    check_subset(
        offer,
        "domain_caps",
        hints.domain_caps,
        offered.caps.with_directions(),
    )?;
    check_mode(offer, "domain_mode", hints.domain_mode, offered.mode)?;
    check_at_most(
        offer,
        "max_err_data",
        hints.max_err_data,
        offered.max_err_data,
    )?;
    check_at_most(offer, "mr_cnt", hints.mr_cnt, offered.mr_cnt)?;
    check_auth_key(
        offer,
        "auth_key",
        hints.auth_key.as_deref(),
        offered.auth_key_size,
    )?;
    if api >= Version::new(1, 20) {
        check_at_most(
            offer,
            "max_ep_auth_key",
            hints.max_ep_auth_key,
            offered.max_ep_auth_key,
        )?;
    }
    if api >= Version::new(2, 5) {
        // An offer of 0 stands for all 64 bits.
        let limit = |value| if value == 0 { u64::MAX } else { value };
        check_at_most(
            offer,
            "max_cntr_value",
            hints.max_cntr_value,
            limit(offered.max_cntr_value),
        )?;
        check_at_most(
            offer,
            "max_err_cntr_value",
            hints.max_err_cntr_value,
            limit(offered.max_err_cntr_value),
        )?;
    }
    Ok(())
}

fn check_endpoint(hints: &Hints, offer: &Info) -> CheckResult {
    let (offered, domain) = (&offer.ep, &offer.domain);
    check_equal(offer, "protocol", hints.protocol, offered.protocol)?;
    check_at_most(
        offer,
        "protocol_version",
        hints.protocol_version,
        offered.protocol_version,
    )?;
    check_at_most(
        offer,
        "max_msg_size",
        hints.max_msg_size,
        offered.max_msg_size,
    )?;
    check_context_count(
        offer,
        "ep_tx_ctx_cnt",
        hints.ep_tx_ctx_cnt,
        domain.max_ep_tx_ctx,
        domain.max_ep_stx_ctx,
    )?;
    check_context_count(
        offer,
        "ep_rx_ctx_cnt",
        hints.ep_rx_ctx_cnt,
        domain.max_ep_rx_ctx,
        domain.max_ep_srx_ctx,
    )?;
    if hints
        .requested_caps()
        .is_some_and(|caps| caps.intersects(Caps::RMA | Caps::ATOMIC))
    {
        check_at_most(
            offer,
            "max_order_raw_size",
            hints.max_order_raw_size,
            offered.max_order_raw_size,
        )?;
        check_at_most(
            offer,
            "max_order_war_size",
            hints.max_order_war_size,
            offered.max_order_war_size,
        )?;
        check_at_most(
            offer,
            "max_order_waw_size",
            hints.max_order_waw_size,
            offered.max_order_waw_size,
        )?;
    }
    check_auth_key(
        offer,
        "ep_auth_key",
        hints.ep_auth_key.as_deref(),
        offered.auth_key_size,
    )?;
    let width = |format: u64| u64::BITS - format.leading_zeros();
    match hints.mem_tag_format {
        Some(requested) if width(requested) > width(offered.mem_tag_format) => {
            let bits = |format| format!("{} bits", width(format));
            mismatch(
                offer,
                "mem_tag_format",
                bits(requested),
                bits(offered.mem_tag_format),
            )
        }
        _ => Ok(()),
    }
}

fn check_rx(hints: &Hints, offer: &Info) -> CheckResult {
    let offered = &offer.rx;
    check_context_caps(
        hints,
        offer,
        "rx_caps",
        hints.rx_caps,
        offered.caps,
        TX_ONLY_CAPS,
    )?;
    check_mode(
        offer,
        "rx_mode",
        or_inherited(hints.rx_mode, hints.mode),
        offered.mode,
    )?;
    check_subset(offer, "rx_op_flags", hints.rx_op_flags, offered.op_flags)?;
    check_subset(
        offer,
        "rx_msg_order",
        hints.rx_msg_order,
        offered.msg_order.with_implied(),
    )?;
    check_at_most(offer, "rx_size", hints.rx_size, offered.size)?;
    check_at_most(offer, "rx_iov_limit", hints.rx_iov_limit, offered.iov_limit)
}

fn check_tx(hints: &Hints, offer: &Info) -> CheckResult {
    let offered = &offer.tx;
    check_context_caps(
        hints,
        offer,
        "tx_caps",
        hints.tx_caps,
        offered.caps,
        RX_ONLY_CAPS,
    )?;
    check_mode(
        offer,
        "tx_mode",
        or_inherited(hints.tx_mode, hints.mode),
        offered.mode,
    )?;
    check_subset(offer, "tx_op_flags", hints.tx_op_flags, offered.op_flags)?;
    check_subset(
        offer,
        "tx_msg_order",
        hints.tx_msg_order,
        offered.msg_order.with_implied(),
    )?;
    check_at_most(offer, "tx_size", hints.tx_size, offered.size)?;
    check_at_most(offer, "tx_iov_limit", hints.tx_iov_limit, offered.iov_limit)?;
    check_at_most(offer, "inject_size", hints.inject_size, offered.inject_size)?;
    check_at_most(
        offer,
        "rma_iov_limit",
        hints.rma_iov_limit,
        offered.rma_iov_limit,
    )
}

/// Checks that the capabilities asked of one context are among those that the context offers (the
/// whole offer's if the context states none) and among those granted to the endpoint. Capabilities
/// that apply only to the other context are ignored.
fn check_context_caps(
    hints: &Hints,
    offer: &Info,
    attribute: &'static str,
    requested: Option<Caps>,
    offered: Caps,
    ignored: Caps,
) -> CheckResult {
    let offered = if offered.is_empty() {
        offer.caps
    } else {
        offered
    };
    let requested = requested.map(|caps| caps.difference(ignored));
    check_subset(offer, attribute, requested, offered.with_directions())?;
    check_subset(offer, attribute, requested, endpoint_caps(hints, offer))
}

/// Returns the mode bits agreed to for a context: those of the info where the context has none.
fn or_inherited(context_mode: Option<Mode>, info_mode: Mode) -> Mode {
    context_mode
        .filter(|mode| !mode.is_empty())
        .unwrap_or(info_mode)
}

/// Checks a limit: refused when the requested value exceeds the offered one.
fn check_at_most<T: Copy + Display + PartialOrd>(
    offer: &Info,
    attribute: &'static str,
    requested: Option<T>,
    offered: T,
) -> CheckResult {
    match requested {
        Some(requested) if requested > offered => {
            mismatch(offer, attribute, requested.to_string(), offered.to_string())
        }
        _ => Ok(()),
    }
}

/// Checks a set of flags: refused when a requested flag is not offered.
fn check_subset<F: Copy + Flags>(
    offer: &Info,
    attribute: &'static str,
    requested: Option<F>,
    offered: F,
) -> CheckResult {
    match requested {
        Some(requested) if !offered.contains(requested) => mismatch(
            offer,
            attribute,
            flag_names(requested.difference(offered)),
            flag_names(offered),
        ),
        _ => Ok(()),
    }
}

/// Checks mode bits: refused when the provider requires one that the application does not agree to.
fn check_mode<F: Copy + Flags>(
    offer: &Info,
    attribute: &'static str,
    agreed: F,
    required: F,
) -> CheckResult {
    if agreed.contains(required) {
        return Ok(());
    }
    mismatch(
        offer,
        attribute,
        flag_names(agreed),
        format!("only with {}", flag_names(required)),
    )
}

/// Checks a level of service: refused when the application needs more (a lower rank) than is
/// offered.
fn check_rank<T: Copy + Debug>(
    offer: &Info,
    attribute: &'static str,
    requested: Option<T>,
    offered: T,
    rank: fn(T) -> u8,
) -> CheckResult {
    match requested {
        Some(requested) if rank(requested) < rank(offered) => mismatch(
            offer,
            attribute,
            format!("{requested:?}"),
            format!("{offered:?}"),
        ),
        _ => Ok(()),
    }
}

/// Checks a choice: refused when the requested value differs from the offered one.
fn check_equal<T: Debug + PartialEq>(
    offer: &Info,
    attribute: &'static str,
    requested: Option<T>,
    offered: Option<T>,
) -> CheckResult {
    match (requested, offered) {
        (Some(requested), Some(offered)) if requested != offered => mismatch(
            offer,
            attribute,
            format!("{requested:?}"),
            format!("{offered:?}"),
        ),
        (Some(requested), None) => mismatch(
            offer,
            attribute,
            format!("{requested:?}"),
            "no specific value",
        ),
        _ => Ok(()),
    }
}

/// Checks the context count of one endpoint, or the request to share a context.
fn check_context_count(
    offer: &Info,
    attribute: &'static str,
    requested: Option<usize>,
    limit: usize,
    max_shared: usize,
) -> CheckResult {
    match requested {
        Some(SHARED_CONTEXT) if max_shared == 0 => {
            mismatch(offer, attribute, "a shared context", "no shared contexts")
        }
        Some(SHARED_CONTEXT) => Ok(()),
        _ => check_at_most(offer, attribute, requested, limit),
    }
}

/// Checks an authorization key: none, or one of exactly the size that the provider accepts.
fn check_auth_key(
    offer: &Info,
    attribute: &'static str,
    requested: Option<&[u8]>,
    size: usize,
) -> CheckResult {
    match requested.map_or(0, <[u8]>::len) {
        0 => Ok(()),
        requested if requested == size => Ok(()),
        requested => mismatch(
            offer,
            attribute,
            format!("{requested} bytes"),
            format!("{size} bytes"),
        ),
    }
}

fn mismatch(
    offer: &Info,
    attribute: &'static str,
    requested: impl Into<String>,
    offered: impl Into<String>,
) -> CheckResult {
    Err(Mismatch::new(offer, attribute, requested, offered))
}
