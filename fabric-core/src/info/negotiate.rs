//! Whether an offer satisfies hints: attribute by attribute, in the order libfabric checks them.
//!
//! The order is part of the contract, because only the first disagreement is reported: endpoint
//! type, capabilities, mode, addresses, fabric, domain, endpoint, receive context, transmit
//! context. Where 1.17 and 2.x differ:
//!
//! | attribute | decided |
//! |---|---|
//! | `api_version` | refused when newer than the offer's; older is accepted and echoed. Before 1.5 the domain's check ends after `mr_mode`, and what came with 1.20 or 2.5 is looked at from there on |
//! | `threading` | the five levels and ranks of 1.17, under every API version |
//! | progress | two attributes, as in 1.17, each by its own rank; the unified level of 1.21 is the third |
//! | `av_type` | a map is accepted where a table is offered, as in 2.x; a table where only a map is, is not |
//! | `mr_mode` | the duties of today, and both old names; details in the file `mr_mode` |
//! | `auth_key` | only the length is compared. Keys that live in the address vector (1.20) are not offered by anybody |
//! | tx and rx caps | refused also where they go beyond what the endpoint gets, which libfabric finds when it is opened |
//! | `comp_order`, `total_buffered_recv` | cannot be asked for; 2.x demands 0 |
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

/// Capabilities that say nothing about a receive context.
const TX_ONLY_CAPS: Caps = Caps::SEND.union(Caps::READ).union(Caps::WRITE);

/// Capabilities that say nothing about a transmit context.
const RX_ONLY_CAPS: Caps = Caps::RECV
    .union(Caps::REMOTE_READ)
    .union(Caps::REMOTE_WRITE)
    .union(Caps::DIRECTED_RECV)
    .union(Caps::MULTI_RECV)
    .union(Caps::TAGGED_MULTI_RECV)
    .union(Caps::SOURCE)
    .union(Caps::SOURCE_ERR)
    .union(Caps::RMA_EVENT);

/// What libfabric calls RXM in the chain of a provider's name.
const RXM_LAYER: &str = "ofi_rxm";

/// All offers that satisfy the hints, adjusted to them, in the order of the offers (best first).
///
/// Offers of providers, fabrics or domains that the hints rule out by name are refused for that
/// before anything else is looked at.
///
/// # Errors
/// [`NoMatch`] with one entry per offer when none satisfies the hints.
#[doc(alias = "fi_getinfo")]
pub fn select(hints: &Hints, offers: &[Info]) -> Result<Vec<Info>, NoMatch> {
    let mut found = Vec::new();
    let mut refusals = Vec::new();
    for offer in offers {
        let names = check_provider(hints, offer).and_then(|()| check_fabric_name(hints, offer));
        match names
            .and_then(|()| check_domain_name(hints, offer))
            .and_then(|()| negotiate(hints, offer))
        {
            Ok(info) => found.push(info),
            Err(refusal) => refusals.push(refusal),
        }
    }
    if found.is_empty() {
        Err(NoMatch {
            mismatches: refusals,
        })
    } else {
        Ok(found)
    }
}

/// One offer held against the hints: the offer adjusted to them, or the first attribute on which
/// they disagree.
///
/// # Errors
/// [`Mismatch`] naming the attribute, what was asked and what is offered.
pub fn negotiate(hints: &Hints, offer: &Info) -> Result<Info, Mismatch> {
    check_equal(offer, "ep_type", hints.ep_type, Some(offer.ep.ep_type))?;
    check_subset(offer, "caps", hints.caps, offer.caps.with_directions())?;
    check_mode(offer, "mode", hints.mode, offer.mode)?;
    check_addresses(hints, offer)?;
    check_fabric(hints, offer)?;
    check_domain_attr(hints, offer)?;
    check_endpoint(hints, offer)?;
    check_rx(hints, offer)?;
    check_tx(hints, offer)?;
    Ok(grant(hints, offer))
}

fn check_addresses(hints: &Hints, offer: &Info) -> CheckResult {
    if let Some(asked) = hints.addr_format
        && !offer.addr_format.is_compatible(asked)
    {
        return mismatch(
            offer,
            "addr_format",
            format!("{asked:?}"),
            format!("{:?}", offer.addr_format),
        );
    }
    for (attribute, address) in [
        ("src_addr", &hints.src_addr),
        ("dest_addr", &hints.dest_addr),
    ] {
        if let Some(address) = address
            && !address
                .scheme()
                .provider()
                .eq_ignore_ascii_case(&offer.fabric.provider)
        {
            return mismatch(
                offer,
                attribute,
                address.to_string(),
                "addresses of its own kind",
            );
        }
    }
    // An offer for one network has the address that this side has there.
    let socket = |address: &Option<Address>| address.as_ref().and_then(Address::socket_addr);
    let Some(here) = socket(&offer.src_addr) else {
        return Ok(());
    };
    match (socket(&hints.src_addr), socket(&hints.dest_addr)) {
        (Some(asked), _) if asked.ip() != here.ip() => mismatch(
            offer,
            "src_addr",
            asked.ip().to_string(),
            here.ip().to_string(),
        ),
        (_, Some(asked)) if asked.is_ipv4() != here.is_ipv4() => mismatch(
            offer,
            "dest_addr",
            asked.ip().to_string(),
            "the other family of addresses",
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
    // Who names the layer wants it; who does not may have it all the same.
    let is_layered = offer.ep.protocol == Some(Protocol::Rxm);
    if hints.admits_provider(&offer.fabric.provider)
        && (is_layered || !hints.names_provider(RXM_LAYER))
    {
        return Ok(());
    }
    let asked = hints.provider.as_deref().unwrap_or_default();
    mismatch(
        offer,
        "provider",
        format!("{asked:?}"),
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

fn check_domain_attr(hints: &Hints, offer: &Info) -> CheckResult {
    let has = &offer.domain;
    let api = hints.api_version.unwrap_or(offer.fabric.api_version);

    // libfabric leaves these two to its providers, which look at them before the attributes.
    check_domain_name(hints, offer)?;
    match hints.domain {
        Some(asked) if has.domain != Some(asked) => {
            let open = has
                .domain
                .map_or("none that is open".to_owned(), |id| id.to_string());
            return mismatch(offer, "domain", asked.to_string(), open);
        }
        _ => {}
    }

    check_rank(
        offer,
        "threading",
        hints.threading,
        has.threading,
        Threading::rank,
    )?;
    check_rank(
        offer,
        "control_progress",
        hints.control_progress,
        has.control_progress,
        Progress::rank,
    )?;
    check_rank(
        offer,
        "data_progress",
        hints.data_progress,
        has.data_progress,
        Progress::rank,
    )?;
    check_rank(
        offer,
        "resource_mgmt",
        hints.resource_mgmt,
        has.resource_mgmt,
        ResourceMgmt::rank,
    )?;
    if !matches!(
        (hints.av_type, has.av_type),
        (_, None) | (Some(AvType::Map), Some(AvType::Table))
    ) {
        check_equal(offer, "av_type", hints.av_type, has.av_type)?;
    }
    check_at_most(offer, "cq_data_size", hints.cq_data_size, has.cq_data_size)?;
    mr_mode::check(hints, offer)?;
    if api < mr_mode::SEPARATE_MODE_BITS {
        return Ok(());
    }
    check_at_most(offer, "cntr_cnt", hints.cntr_cnt, has.cntr_cnt)?;
    check_at_most(offer, "mr_iov_limit", hints.mr_iov_limit, has.mr_iov_limit)?;
    check_subset(
        offer,
        "domain_caps",
        hints.domain_caps,
        has.caps.with_directions(),
    )?;
    check_mode(offer, "domain_mode", hints.domain_mode, has.mode)?;
    check_at_most(offer, "max_err_data", hints.max_err_data, has.max_err_data)?;
    check_at_most(offer, "mr_cnt", hints.mr_cnt, has.mr_cnt)?;
    check_auth_key(
        offer,
        "auth_key",
        hints.auth_key.as_deref(),
        has.auth_key_size,
    )?;
    if api >= Version::new(1, 20) {
        check_at_most(
            offer,
            "max_ep_auth_key",
            hints.max_ep_auth_key,
            has.max_ep_auth_key,
        )?;
    }
    if api >= Version::new(2, 5) {
        let limit = |value| if value == 0 { u64::MAX } else { value };
        check_at_most(
            offer,
            "max_cntr_value",
            hints.max_cntr_value,
            limit(has.max_cntr_value),
        )?;
        check_at_most(
            offer,
            "max_err_cntr_value",
            hints.max_err_cntr_value,
            limit(has.max_err_cntr_value),
        )?;
    }
    Ok(())
}

fn check_endpoint(hints: &Hints, offer: &Info) -> CheckResult {
    let (has, domain) = (&offer.ep, &offer.domain);
    check_equal(offer, "protocol", hints.protocol, has.protocol)?;
    check_at_most(
        offer,
        "protocol_version",
        hints.protocol_version,
        has.protocol_version,
    )?;
    check_at_most(offer, "max_msg_size", hints.max_msg_size, has.max_msg_size)?;
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
            has.max_order_raw_size,
        )?;
        check_at_most(
            offer,
            "max_order_war_size",
            hints.max_order_war_size,
            has.max_order_war_size,
        )?;
        check_at_most(
            offer,
            "max_order_waw_size",
            hints.max_order_waw_size,
            has.max_order_waw_size,
        )?;
    }
    check_auth_key(
        offer,
        "ep_auth_key",
        hints.ep_auth_key.as_deref(),
        has.auth_key_size,
    )?;
    let width = |format: u64| u64::BITS - format.leading_zeros();
    match hints.mem_tag_format {
        Some(asked) if width(asked) > width(has.mem_tag_format) => {
            let bits = |format| format!("{} bits", width(format));
            mismatch(
                offer,
                "mem_tag_format",
                bits(asked),
                bits(has.mem_tag_format),
            )
        }
        _ => Ok(()),
    }
}

fn check_rx(hints: &Hints, offer: &Info) -> CheckResult {
    let has = &offer.rx;
    check_context_caps(
        hints,
        offer,
        "rx_caps",
        hints.rx_caps,
        has.caps,
        TX_ONLY_CAPS,
    )?;
    check_mode(
        offer,
        "rx_mode",
        or_inherited(hints.rx_mode, hints.mode),
        has.mode,
    )?;
    check_subset(offer, "rx_op_flags", hints.rx_op_flags, has.op_flags)?;
    check_subset(
        offer,
        "rx_msg_order",
        hints.rx_msg_order,
        has.msg_order.with_implied(),
    )?;
    check_at_most(offer, "rx_size", hints.rx_size, has.size)?;
    check_at_most(offer, "rx_iov_limit", hints.rx_iov_limit, has.iov_limit)
}

fn check_tx(hints: &Hints, offer: &Info) -> CheckResult {
    let has = &offer.tx;
    check_context_caps(
        hints,
        offer,
        "tx_caps",
        hints.tx_caps,
        has.caps,
        RX_ONLY_CAPS,
    )?;
    check_mode(
        offer,
        "tx_mode",
        or_inherited(hints.tx_mode, hints.mode),
        has.mode,
    )?;
    check_subset(offer, "tx_op_flags", hints.tx_op_flags, has.op_flags)?;
    check_subset(
        offer,
        "tx_msg_order",
        hints.tx_msg_order,
        has.msg_order.with_implied(),
    )?;
    check_at_most(offer, "tx_size", hints.tx_size, has.size)?;
    check_at_most(offer, "tx_iov_limit", hints.tx_iov_limit, has.iov_limit)?;
    check_at_most(offer, "inject_size", hints.inject_size, has.inject_size)?;
    check_at_most(
        offer,
        "rma_iov_limit",
        hints.rma_iov_limit,
        has.rma_iov_limit,
    )
}

/// The capabilities of one context: part of those the context offers (the offer's, where it names
/// none), and of those the endpoint is going to have. What only concerns the other context is not
/// looked at.
fn check_context_caps(
    hints: &Hints,
    offer: &Info,
    attribute: &'static str,
    asked: Option<Caps>,
    has: Caps,
    elsewhere: Caps,
) -> CheckResult {
    let has = if has.is_empty() { offer.caps } else { has };
    let asked = asked.map(|caps| caps.difference(elsewhere));
    check_subset(offer, attribute, asked, has.with_directions())?;
    check_subset(offer, attribute, asked, endpoint_caps(hints, offer))
}

fn or_inherited(own: Option<Mode>, whole: Mode) -> Mode {
    own.filter(|mode| !mode.is_empty()).unwrap_or(whole)
}

/// A limit: refused when more is asked than offered.
fn check_at_most<T: Copy + Display + PartialOrd>(
    offer: &Info,
    attribute: &'static str,
    asked: Option<T>,
    has: T,
) -> CheckResult {
    match asked {
        Some(asked) if asked > has => {
            mismatch(offer, attribute, asked.to_string(), has.to_string())
        }
        _ => Ok(()),
    }
}

/// A set of features: refused when one is asked that is not offered.
fn check_subset<F: Copy + Flags>(
    offer: &Info,
    attribute: &'static str,
    asked: Option<F>,
    has: F,
) -> CheckResult {
    match asked {
        Some(asked) if !has.contains(asked) => mismatch(
            offer,
            attribute,
            flag_names(asked.difference(has)),
            flag_names(has),
        ),
        _ => Ok(()),
    }
}

/// A set of duties: refused when one is required that is not agreed to.
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

/// A level of service: refused when the application needs more of it (a lower rank) than is
/// offered.
fn check_rank<T: Copy + Debug>(
    offer: &Info,
    attribute: &'static str,
    asked: Option<T>,
    has: T,
    rank: fn(T) -> u8,
) -> CheckResult {
    match asked {
        Some(asked) if rank(asked) < rank(has) => {
            mismatch(offer, attribute, format!("{asked:?}"), format!("{has:?}"))
        }
        _ => Ok(()),
    }
}

/// A choice: refused when another one is asked than offered.
fn check_equal<T: Debug + PartialEq>(
    offer: &Info,
    attribute: &'static str,
    asked: Option<T>,
    has: Option<T>,
) -> CheckResult {
    match (asked, has) {
        (Some(asked), Some(has)) if asked != has => {
            mismatch(offer, attribute, format!("{asked:?}"), format!("{has:?}"))
        }
        (Some(asked), None) => {
            mismatch(offer, attribute, format!("{asked:?}"), "none in particular")
        }
        _ => Ok(()),
    }
}

/// A count of contexts of one endpoint, or the wish to share one.
fn check_context_count(
    offer: &Info,
    attribute: &'static str,
    asked: Option<usize>,
    limit: usize,
    sharers: usize,
) -> CheckResult {
    match asked {
        Some(SHARED_CONTEXT) if sharers == 0 => mismatch(
            offer,
            attribute,
            "a shared context",
            "contexts of its own only",
        ),
        Some(SHARED_CONTEXT) => Ok(()),
        _ => check_at_most(offer, attribute, asked, limit),
    }
}

/// A key: none, or one of exactly the size the provider takes.
fn check_auth_key(
    offer: &Info,
    attribute: &'static str,
    asked: Option<&[u8]>,
    size: usize,
) -> CheckResult {
    match asked.map_or(0, <[u8]>::len) {
        0 => Ok(()),
        asked if asked == size => Ok(()),
        asked => mismatch(
            offer,
            attribute,
            format!("{asked} bytes"),
            format!("{size} bytes"),
        ),
    }
}

fn mismatch(
    offer: &Info,
    attribute: &'static str,
    asked: impl Into<String>,
    offered: impl Into<String>,
) -> CheckResult {
    Err(Mismatch::new(offer, attribute, asked, offered))
}
