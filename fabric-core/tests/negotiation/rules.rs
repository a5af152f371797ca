//! Every rule, and the order of the checks.

use fabric_core::flags::{Caps, Mode, MrMode, MsgOrder, OpFlags};
use fabric_core::info::{
    AddrFormat, AvType, EpType, Hints, Progress, Protocol, ResourceMgmt, SHARED_CONTEXT, Threading,
    TrafficClass, negotiate,
};

use crate::{accepting_hints, address, mismatch_attribute, test_offer};

/// A rule: its attribute, hints that satisfy [`test_offer`] and hints that do not.
type Rule = (&'static str, fn(Hints) -> Hints, fn(Hints) -> Hints);

/// All rules, in the order of the checks.
const RULES: &[Rule] = &[
    (
        "ep_type",
        |h| h.ep_type(EpType::Rdm),
        |h| h.ep_type(EpType::Dgram),
    ),
    (
        "caps",
        |h| h.caps(Caps::TAGGED | Caps::SEND),
        |h| h.caps(Caps::MSG | Caps::ATOMIC),
    ),
    ("mode", |h| h.mode(Mode::all()), |h| h.mode(Mode::ASYNC_IOV)),
    (
        "addr_format",
        |h| h.addr_format(AddrFormat::Str),
        |h| h.addr_format(AddrFormat::SockaddrIn),
    ),
    (
        "src_addr",
        |h| h.source(address("sim://a")),
        |h| h.source(address("shm://a")),
    ),
    (
        "dest_addr",
        |h| h.dest(address("sim://a")),
        |h| h.dest(address("shm://a")),
    ),
    ("provider", |h| h.provider("SIM"), |h| h.provider("shm")),
    (
        "provider_version",
        |h| h.provider_version(3, 1),
        |h| h.provider_version(3, 2),
    ),
    (
        "api_version",
        |h| h.api_version(2, 5),
        |h| h.api_version(2, 6),
    ),
    (
        "fabric_name",
        |h| h.fabric_name("net"),
        |h| h.fabric_name("Net"),
    ),
    (
        "domain_name",
        |h| h.domain_name("net0"),
        |h| h.domain_name("net1"),
    ),
    ("domain", |h| h, |h| h.domain(1)),
    (
        "threading",
        |h| h.threading(Threading::Endpoint),
        |h| h.threading(Threading::Fid),
    ),
    (
        "control_progress",
        |h| h.control_progress(Progress::Manual),
        |h| h.control_progress(Progress::Auto),
    ),
    (
        "data_progress",
        |h| h.data_progress(Progress::ControlUnified),
        |h| h.data_progress(Progress::Auto),
    ),
    (
        "resource_mgmt",
        |h| h.resource_mgmt(ResourceMgmt::Disabled),
        |h| h.resource_mgmt(ResourceMgmt::Enabled),
    ),
    ("cq_data_size", |h| h.cq_data_size(4), |h| h.cq_data_size(5)),
    (
        "mr_mode",
        |h| h.mr_mode(MrMode::SCALABLE),
        |h| h.mr_mode(MrMode::SCALABLE | MrMode::LOCAL),
    ),
    ("cntr_cnt", |h| h.cntr_cnt(10), |h| h.cntr_cnt(11)),
    ("mr_iov_limit", |h| h.mr_iov_limit(3), |h| h.mr_iov_limit(4)),
    (
        "domain_caps",
        |h| h.domain_caps(Caps::LOCAL_COMM),
        |h| h.domain_caps(Caps::REMOTE_COMM),
    ),
    (
        "domain_mode",
        |h| h.domain_mode(Mode::all()),
        |h| h.domain_mode(Mode::empty()),
    ),
    (
        "max_err_data",
        |h| h.max_err_data(16),
        |h| h.max_err_data(17),
    ),
    ("mr_cnt", |h| h.mr_cnt(100), |h| h.mr_cnt(101)),
    ("auth_key", |h| h.auth_key([1; 8]), |h| h.auth_key([1; 7])),
    (
        "max_ep_auth_key",
        |h| h.max_ep_auth_key(2),
        |h| h.max_ep_auth_key(3),
    ),
    (
        "max_cntr_value",
        |h| h.max_cntr_value(1000),
        |h| h.max_cntr_value(1001),
    ),
    (
        "max_err_cntr_value",
        |h| h.max_err_cntr_value(500),
        |h| h.max_err_cntr_value(501),
    ),
    (
        "protocol",
        |h| h.protocol(Protocol::Sim),
        |h| h.protocol(Protocol::Tcp),
    ),
    (
        "protocol_version",
        |h| h.protocol_version(7),
        |h| h.protocol_version(8),
    ),
    (
        "max_msg_size",
        |h| h.max_msg_size(4096),
        |h| h.max_msg_size(4097),
    ),
    (
        "ep_tx_ctx_cnt",
        |h| h.ep_tx_ctx_cnt(2),
        |h| h.ep_tx_ctx_cnt(SHARED_CONTEXT),
    ),
    (
        "ep_rx_ctx_cnt",
        |h| h.ep_rx_ctx_cnt(SHARED_CONTEXT),
        |h| h.ep_rx_ctx_cnt(4),
    ),
    (
        "max_order_raw_size",
        |h| with_rma(h).max_order_raw_size(64),
        |h| with_rma(h).max_order_raw_size(65),
    ),
    (
        "max_order_war_size",
        |h| with_rma(h).max_order_war_size(32),
        |h| with_rma(h).max_order_war_size(33),
    ),
    (
        "max_order_waw_size",
        |h| with_rma(h).max_order_waw_size(128),
        |h| with_rma(h).max_order_waw_size(129),
    ),
    (
        "ep_auth_key",
        |h| h.ep_auth_key([1; 4]),
        |h| h.ep_auth_key([1; 8]),
    ),
    (
        "mem_tag_format",
        |h| h.mem_tag_format(0xaaaa_aaaa),
        |h| h.mem_tag_format(1 << 32),
    ),
    (
        "rx_caps",
        |h| h.rx_caps(Caps::MSG | Caps::RECV),
        |h| h.rx_caps(Caps::COLLECTIVE),
    ),
    (
        "rx_mode",
        |h| h.rx_mode(Mode::ASYNC_IOV),
        |h| h.rx_mode(Mode::CONTEXT),
    ),
    (
        "rx_op_flags",
        |h| h.rx_op_flags(OpFlags::MULTI_RECV),
        |h| h.rx_op_flags(OpFlags::COMPLETION),
    ),
    (
        "rx_msg_order",
        |h| h.rx_msg_order(MsgOrder::RMA_WAW),
        |h| h.rx_msg_order(MsgOrder::RAW),
    ),
    ("rx_size", |h| h.rx_size(50), |h| h.rx_size(51)),
    ("rx_iov_limit", |h| h.rx_iov_limit(4), |h| h.rx_iov_limit(5)),
    (
        "tx_caps",
        |h| h.tx_caps(Caps::RMA | Caps::WRITE),
        |h| h.tx_caps(Caps::HMEM),
    ),
    (
        "tx_mode",
        |h| h.tx_mode(Mode::ASYNC_IOV),
        |h| h.tx_mode(Mode::CONTEXT),
    ),
    (
        "tx_op_flags",
        |h| h.tx_op_flags(OpFlags::INJECT),
        |h| h.tx_op_flags(OpFlags::DELIVERY_COMPLETE),
    ),
    (
        "tx_msg_order",
        |h| h.tx_msg_order(MsgOrder::SAS),
        |h| h.tx_msg_order(MsgOrder::STRICT),
    ),
    ("tx_size", |h| h.tx_size(60), |h| h.tx_size(61)),
    ("tx_iov_limit", |h| h.tx_iov_limit(5), |h| h.tx_iov_limit(6)),
    (
        "inject_size",
        |h| h.inject_size(192),
        |h| h.inject_size(193),
    ),
    (
        "rma_iov_limit",
        |h| h.rma_iov_limit(6),
        |h| h.rma_iov_limit(7),
    ),
];

/// Adds `FI_RMA` to the requested capabilities.
fn with_rma(mut hints: Hints) -> Hints {
    hints.caps = hints.caps.map(|caps| caps | Caps::RMA).or(Some(Caps::RMA));
    hints
}

#[test]
fn every_rule_accepts_its_limit_and_rejects_beyond() {
    let offer = test_offer();
    for &(attribute, good, bad) in RULES {
        if let Err(mismatch) = negotiate(&good(accepting_hints()), &offer) {
            panic!("{attribute}: {mismatch}");
        }
        let mismatch = negotiate(&bad(accepting_hints()), &offer).expect_err(attribute);
        assert_eq!(mismatch.attribute, attribute, "{mismatch}");
        assert_eq!(
            (mismatch.provider.as_str(), mismatch.domain.as_str()),
            ("sim", "net0")
        );
        assert!(!mismatch.requested.is_empty() && !mismatch.offered.is_empty());
    }
}

#[test]
fn first_mismatch_in_check_order_is_reported() {
    let offer = test_offer();
    for (at, &(first, _, bad)) in RULES.iter().enumerate() {
        for &(second, _, worse) in &RULES[at + 1..] {
            assert_eq!(
                mismatch_attribute(&bad(worse(accepting_hints())), &offer),
                first,
                "{first} before {second}"
            );
        }
    }
}

#[test]
fn av_type_is_checked_after_resource_mgmt() {
    let mut offer = test_offer();
    offer.domain.av_type = Some(AvType::Map);
    let table = accepting_hints().av_type(AvType::Table);
    assert_eq!(mismatch_attribute(&table, &offer), "av_type");
    assert_eq!(
        mismatch_attribute(&table.clone().cq_data_size(9), &offer),
        "av_type"
    );
    assert_eq!(
        mismatch_attribute(&table.resource_mgmt(ResourceMgmt::Enabled), &offer),
        "resource_mgmt"
    );

    for (offered, requested) in [
        (Some(AvType::Map), Some(AvType::Map)),
        (Some(AvType::Table), Some(AvType::Map)),
        (Some(AvType::Table), Some(AvType::Table)),
        (None, Some(AvType::Map)),
        (Some(AvType::Map), None),
    ] {
        offer.domain.av_type = offered;
        let mut hints = accepting_hints();
        hints.av_type = requested;
        assert_eq!(
            negotiate(&hints, &offer).unwrap().domain.av_type,
            requested.or(offered)
        );
    }
}

#[test]
fn level_accepts_equal_or_higher_requested_rank() {
    let mut offer = test_offer();
    for offered in Threading::ALL {
        offer.domain.threading = offered;
        for requested in Threading::ALL {
            let result = negotiate(&accepting_hints().threading(requested), &offer);
            assert_eq!(
                result.is_ok(),
                requested.rank() >= offered.rank(),
                "requested {requested:?}, offered {offered:?}"
            );
        }
    }
    for offered in Progress::ALL {
        (offer.domain.control_progress, offer.domain.data_progress) = (offered, Progress::Auto);
        for requested in Progress::ALL {
            let result = negotiate(&accepting_hints().progress(requested), &offer);
            assert_eq!(
                result.is_ok(),
                requested.rank() >= offered.rank(),
                "requested {requested:?}, offered {offered:?}"
            );
        }
    }
    for offered in ResourceMgmt::ALL {
        offer.domain.resource_mgmt = offered;
        for requested in ResourceMgmt::ALL {
            let result = negotiate(&accepting_hints().resource_mgmt(requested), &offer);
            let granted = result.ok().map(|info| info.domain.resource_mgmt);
            let is_accepted = requested.rank() >= offered.rank();
            assert_eq!(granted, is_accepted.then_some(offered), "{requested:?}");
        }
    }
}

#[test]
fn empty_hints_fail_only_on_required_mode_bits() {
    let offer = test_offer();
    assert!(negotiate(&accepting_hints(), &offer).is_ok());
    assert_eq!(mismatch_attribute(&Hints::new(), &offer), "mode");
    let zeros = accepting_hints()
        .caps(Caps::empty())
        .auth_key([])
        .cq_data_size(0)
        .cntr_cnt(0)
        .max_msg_size(0)
        .inject_size(0)
        .tx_size(0)
        .ep_tx_ctx_cnt(0)
        .mem_tag_format(0)
        .tx_op_flags(OpFlags::empty())
        .tx_msg_order(MsgOrder::empty());
    assert_eq!(
        negotiate(&zeros, &offer),
        negotiate(&accepting_hints(), &offer)
    );
}

#[test]
fn advisory_hints_never_mismatch() {
    let mut hints = accepting_hints()
        .cq_cnt(usize::MAX)
        .ep_cnt(usize::MAX)
        .mr_key_size(usize::MAX);
    hints = hints
        .domain_tx_ctx_cnt(usize::MAX)
        .domain_rx_ctx_cnt(usize::MAX);
    hints = hints.max_ep_tx_ctx(usize::MAX).max_ep_rx_ctx(usize::MAX);
    hints = hints.max_ep_stx_ctx(usize::MAX).max_ep_srx_ctx(usize::MAX);
    hints = hints
        .tclass(TrafficClass::LowLatency)
        .tx_tclass(TrafficClass::Dscp(46));
    let info = negotiate(&hints, &test_offer()).unwrap();
    assert_eq!(info.domain.cq_cnt, test_offer().domain.cq_cnt);
    assert_eq!(info.domain.tclass, Some(TrafficClass::LowLatency));
}

#[test]
fn attributes_are_checked_from_their_api_version_on() {
    let offer = test_offer();
    for (major, minor, many_counters, expected) in [
        (1, 4, true, None),
        (1, 17, true, Some("cntr_cnt")),
        (1, 19, false, None),
        (1, 20, false, Some("max_ep_auth_key")),
        (2, 5, false, Some("max_ep_auth_key")),
    ] {
        let mut hints = accepting_hints()
            .api_version(major, minor)
            .max_ep_auth_key(9)
            .max_cntr_value(u64::MAX);
        if many_counters {
            hints = hints.cntr_cnt(11);
        }
        assert_eq!(
            negotiate(&hints, &offer).err().map(|e| e.attribute),
            expected,
            "{major}.{minor}"
        );
    }
    let counters = accepting_hints().max_cntr_value(u64::MAX);
    assert!(negotiate(&counters.clone().api_version(2, 4), &offer).is_ok());
    assert_eq!(
        mismatch_attribute(&counters.api_version(2, 5), &offer),
        "max_cntr_value"
    );
}

#[test]
fn order_sizes_are_checked_only_with_rma() {
    assert!(
        negotiate(
            &accepting_hints().max_order_raw_size(65).caps(Caps::MSG),
            &test_offer()
        )
        .is_ok()
    );
}

#[test]
fn provider_chain_matches_each_provider() {
    assert!(negotiate(&accepting_hints().provider("util;sim"), &test_offer()).is_ok());
    assert_eq!(
        mismatch_attribute(&accepting_hints().provider("util;simple"), &test_offer()),
        "provider"
    );
}

/// A chain with the layer gets only that layer; a chain without it may get the layer too.
#[test]
fn ofi_rxm_in_chain_selects_rxm_protocol() {
    let layered = || {
        let mut offer = test_offer();
        offer.ep.protocol = Some(Protocol::Rxm);
        offer
    };
    for chain in ["sim;ofi_rxm", "ofi_rxm;sim", "SIM;OFI_RXM"] {
        assert!(negotiate(&accepting_hints().provider(chain), &layered()).is_ok());
        assert_eq!(
            mismatch_attribute(&accepting_hints().provider(chain), &test_offer()),
            "provider"
        );
    }
    assert_eq!(
        mismatch_attribute(&accepting_hints().provider("ofi_rxm"), &layered()),
        "provider"
    );
    assert!(negotiate(&accepting_hints().provider("sim"), &layered()).is_ok());
    assert!(negotiate(&accepting_hints(), &layered()).is_ok());
}

#[test]
fn source_err_is_requested_together_with_source() {
    let mut offer = test_offer();
    offer.caps |= Caps::SOURCE | Caps::SOURCE_ERR;
    let both = Caps::MSG | Caps::SOURCE | Caps::SOURCE_ERR;
    let granted = negotiate(&accepting_hints().caps(both), &offer).unwrap();
    assert!(granted.caps.contains(both) && granted.rx.caps.contains(both));
    let alone = negotiate(&accepting_hints().caps(both - Caps::SOURCE), &offer);
    let mismatch = alone.unwrap_err();
    assert_eq!(
        (mismatch.attribute, mismatch.requested.as_str()),
        ("caps", "SOURCE_ERR")
    );
    assert!(mismatch.offered.contains("only with SOURCE"), "{mismatch}");
}
