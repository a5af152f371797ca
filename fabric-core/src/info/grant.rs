//! Adjustment of a satisfying offer to the hints.
//!
//! A negotiated info describes what the application gets, so it differs from the offer in the
//! attributes that the application chooses: threading, progress, address vector type and keys are
//! those of the hints, where set. Sizes and counts of a context, an endpoint's context counts and
//! the inject size become the requested values, where not 0; all other limits stay those of the
//! offer, which are at least the requested ones. Mode bits are the requirements that remain.

use crate::flags::{Caps, Mode, MrMode};

use super::{EpType, Hints, Info, Progress, mr_mode};

/// Secondary capabilities that are granted only when requested: `SOURCE_ERR` adds errors about
/// unknown senders.
const ONLY_ON_REQUEST: Caps = Caps::SOURCE_ERR;

/// Returns the offer, adjusted to hints that it satisfies.
pub(super) fn grant(hints: &Hints, offer: &Info) -> Info {
    let mut info = offer.clone();
    info.caps = endpoint_caps(hints, offer);
    if hints.mode.contains(Mode::LOCAL_MR) && offer.domain.mr_mode.contains(MrMode::LOCAL) {
        info.mode |= Mode::LOCAL_MR;
    }
    if let Some(requested) = hints.addr_format {
        info.addr_format = offer
            .addr_format
            .narrowed_to(requested)
            .unwrap_or(requested);
    }
    // A source address with an empty name requests any address; the offer may hold a concrete one.
    if offer.src_addr.is_none()
        || hints
            .src_addr
            .as_ref()
            .is_some_and(|requested| !requested.name().is_empty())
    {
        clone_from_hint(&mut info.src_addr, &hints.src_addr);
    }
    clone_from_hint(&mut info.dest_addr, &hints.dest_addr);
    set_from_hint(&mut info.fabric.api_version, hints.api_version);

    grant_domain(&mut info, hints, offer);

    set_count(&mut info.ep.tx_ctx_cnt, hints.ep_tx_ctx_cnt);
    set_count(&mut info.ep.rx_ctx_cnt, hints.ep_rx_ctx_cnt);
    set_key(
        &mut info.ep.auth_key,
        &mut info.ep.auth_key_size,
        hints.ep_auth_key.as_deref(),
    );

    info.tx.caps = context_caps(hints.tx_caps, offer.tx.caps, info.caps);
    info.tx.op_flags = hints.tx_op_flags.unwrap_or_default();
    info.tx.tclass = hints.tx_tclass.or(info.tx.tclass);
    set_count(&mut info.tx.inject_size, hints.inject_size);
    set_count(&mut info.tx.size, hints.tx_size);
    set_count(&mut info.tx.iov_limit, hints.tx_iov_limit);
    set_count(&mut info.tx.rma_iov_limit, hints.rma_iov_limit);

    info.rx.caps = context_caps(hints.rx_caps, offer.rx.caps, info.caps);
    info.rx.op_flags = hints.rx_op_flags.unwrap_or_default();
    set_count(&mut info.rx.size, hints.rx_size);
    set_count(&mut info.rx.iov_limit, hints.rx_iov_limit);
    info
}

fn grant_domain(info: &mut Info, hints: &Hints, offer: &Info) {
    let caps = info.caps;
    let domain = &mut info.domain;
    set_from_hint(&mut domain.threading, hints.threading);
    set_from_hint(&mut domain.control_progress, hints.control_progress);
    set_from_hint(&mut domain.data_progress, hints.data_progress);
    if domain.control_progress == Progress::Auto {
        // The thread that makes progress on control operations makes progress on data too.
        domain.data_progress = offer.domain.data_progress;
    }
    domain.av_type = hints.av_type.or(domain.av_type);
    domain.mr_mode = mr_mode::granted(hints, offer, caps);
    domain.tclass = hints.tclass.or(domain.tclass);
    set_key(
        &mut domain.auth_key,
        &mut domain.auth_key_size,
        hints.auth_key.as_deref(),
    );
    set_count(&mut domain.max_ep_auth_key, hints.max_ep_auth_key);
    domain.caps = match hints.domain_caps.filter(|requested| !requested.is_empty()) {
        Some(requested) => requested | (domain.caps & Caps::SECONDARY),
        None => domain.caps & (caps | Caps::SECONDARY),
    };
    for limit in [&mut domain.max_cntr_value, &mut domain.max_err_cntr_value] {
        if *limit == 0 {
            *limit = u64::MAX;
        }
    }
}

/// Returns the capabilities of the endpoint, with explicit directions: the requested ones and the
/// harmless secondary ones; or, when none were requested, all that the agreed mode bits allow,
/// without `SOURCE_ERR`.
pub(super) fn endpoint_caps(hints: &Hints, offer: &Info) -> Caps {
    let all = offer.caps.with_directions();
    if let Some(requested) = hints.requested_caps() {
        let requested = with_offered_directions(requested, all);
        return requested | harmless_secondary_caps(all & Caps::SECONDARY, requested, offer);
    }

    let agreed = mr_mode::agreed(hints, offer);
    let mut caps = all - ONLY_ON_REQUEST;
    if offer.domain.mr_mode.contains(MrMode::HMEM) && !agreed.contains(MrMode::HMEM) {
        caps.remove(Caps::HMEM);
    }
    if !agreed.contains(mr_mode::required(caps, offer.domain.mr_mode)) {
        caps.remove(Caps::REMOTE_READ | Caps::REMOTE_WRITE | Caps::RMA_EVENT);
    }
    drop_undirected(caps)
}

/// Returns the requested capabilities, where operations without directions get all offered
/// directions.
fn with_offered_directions(requested: Caps, offered: Caps) -> Caps {
    requested | (requested.with_directions() & offered)
}

/// Returns the secondary capabilities that change nothing for an application that did not request
/// them.
fn harmless_secondary_caps(secondary: Caps, requested: Caps, offer: &Info) -> Caps {
    let mut granted = secondary - ONLY_ON_REQUEST;
    let receives = |kind| requested.intersects(kind) && requested.contains(Caps::RECV);
    let connectionless = offer.ep.ep_type != EpType::Msg;
    for (bit, has_base) in [
        (Caps::MULTI_RECV, receives(Caps::MSG)),
        (Caps::TAGGED_MULTI_RECV, receives(Caps::TAGGED)),
        (
            Caps::SOURCE,
            connectionless && receives(Caps::MSG | Caps::TAGGED),
        ),
        (Caps::RMA_EVENT, requested.is_rma_target()),
        (Caps::RMA_PMEM, requested.contains(Caps::RMA)),
    ] {
        if !has_base {
            granted.remove(bit);
        }
    }
    granted
}

/// Returns the capabilities of one context: the requested ones, else the endpoint's that apply to
/// the context.
fn context_caps(requested: Option<Caps>, offered: Caps, endpoint: Caps) -> Caps {
    let offered = if offered.is_empty() {
        endpoint
    } else {
        offered.with_directions()
    };
    match requested.filter(|requested| !requested.is_empty()) {
        Some(requested) => {
            let both = offered & endpoint;
            drop_undirected(with_offered_directions(requested & both, both))
                | (both & Caps::SECONDARY)
        }
        None => drop_undirected(offered & endpoint),
    }
}

/// Removes the operations of which no direction is left, because an empty set of directions means
/// all directions.
fn drop_undirected(mut caps: Caps) -> Caps {
    if !caps.intersects(Caps::MSG_DIRECTIONS) {
        caps.remove(Caps::MSG | Caps::TAGGED);
    }
    if !caps.intersects(Caps::RMA_DIRECTIONS) {
        caps.remove(Caps::RMA | Caps::ATOMIC);
    }
    caps
}

fn set_from_hint<T>(field: &mut T, hint: Option<T>) {
    if let Some(value) = hint {
        *field = value;
    }
}

fn clone_from_hint<T: Clone>(field: &mut Option<T>, hint: &Option<T>) {
    if hint.is_some() {
        field.clone_from(hint);
    }
}

/// Sets a field to the requested count, unless the hint is absent or 0.
fn set_count(field: &mut usize, hint: Option<usize>) {
    set_from_hint(field, hint.filter(|&count| count != 0));
}

/// Sets an authorization key and its size to the requested key, unless the hint is absent or empty.
fn set_key(key: &mut Option<Vec<u8>>, size: &mut usize, hint: Option<&[u8]>) {
    if let Some(requested) = hint.filter(|key| !key.is_empty()) {
        *key = Some(requested.to_owned());
        *size = requested.len();
    }
}
