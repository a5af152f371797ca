//! Negotiation of hints and offers: every rule, the order of the checks, and the result.

use fabric_core::flags::{Caps, Mode, MrMode, MsgOrder, OpFlags};
use fabric_core::info::{
    AddrFormat, AvType, EpType, Hints, Info, NoMatch, Progress, Protocol, ResourceMgmt,
    SHARED_CONTEXT, Threading, TrafficClass, Version, negotiate, select,
};
use fabric_core::{Address, Error};
use proptest::prelude::*;

/// Returns an offer with limits everywhere, and every level in the middle of its range.
fn test_offer() -> Info {
    let mut offer = Info::template("sim", "net", "net0");
    offer.caps =
        Caps::MSG | Caps::TAGGED | Caps::RMA | Caps::DIRECTED_RECV | Caps::FENCE | Caps::SOURCE;
    offer.mode = Mode::CONTEXT;
    offer.fabric.provider_version = Version::new(3, 1);
    let domain = &mut offer.domain;
    domain.threading = Threading::Endpoint;
    domain.control_progress = Progress::Manual;
    domain.data_progress = Progress::Manual;
    domain.resource_mgmt = ResourceMgmt::Disabled;
    domain.av_type = Some(AvType::Table);
    domain.cq_data_size = 4;
    domain.cntr_cnt = 10;
    domain.mr_iov_limit = 3;
    domain.caps = Caps::LOCAL_COMM;
    domain.mode = Mode::RESTRICTED_COMP;
    domain.max_err_data = 16;
    domain.mr_cnt = 100;
    domain.auth_key_size = 8;
    domain.max_ep_auth_key = 2;
    domain.max_cntr_value = 1000;
    domain.max_err_cntr_value = 500;
    domain.max_ep_tx_ctx = 2;
    domain.max_ep_rx_ctx = 3;
    domain.max_ep_srx_ctx = 5;
    offer.ep.protocol = Some(Protocol::Sim);
    offer.ep.protocol_version = 7;
    offer.ep.max_msg_size = 4096;
    offer.ep.max_order_raw_size = 64;
    offer.ep.max_order_war_size = 32;
    offer.ep.max_order_waw_size = 128;
    offer.ep.auth_key_size = 4;
    offer.ep.mem_tag_format = 0xffff_ffff;
    offer.rx.mode = Mode::ASYNC_IOV;
    offer.rx.op_flags = OpFlags::MULTI_RECV;
    offer.rx.msg_order = MsgOrder::SAS | MsgOrder::WAW;
    offer.rx.size = 50;
    offer.rx.iov_limit = 4;
    offer.tx.mode = Mode::ASYNC_IOV;
    offer.tx.op_flags = OpFlags::INJECT | OpFlags::COMPLETION;
    offer.tx.msg_order = MsgOrder::SAS | MsgOrder::RAW;
    offer.tx.size = 60;
    offer.tx.iov_limit = 5;
    offer.tx.inject_size = 192;
    offer.tx.rma_iov_limit = 6;
    offer
}

/// Returns hints that accept the mode bits of [`test_offer`] and request nothing.
fn accepting_hints() -> Hints {
    Hints::new()
        .mode(Mode::CONTEXT | Mode::ASYNC_IOV)
        .domain_mode(Mode::RESTRICTED_COMP)
}

fn address(text: &str) -> Address {
    text.parse().unwrap()
}

fn mismatch_attribute(hints: &Hints, offer: &Info) -> &'static str {
    negotiate(hints, offer)
        .expect_err("the hints must not match")
        .attribute
}

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
        assert!(!mismatch.asked.is_empty() && !mismatch.offered.is_empty());
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

mod mr_mode {
    use super::*;

    const TARGET_CAPS: Caps = Caps::RMA;
    const BASIC_BITS: MrMode = MrMode::BASIC_BITS;

    fn offer_with(mr_mode: MrMode) -> Info {
        let mut offer = Info::template("sim", "net", "net0");
        offer.caps = Caps::MSG | Caps::RMA | Caps::HMEM | Caps::RMA_EVENT;
        offer.domain.mr_mode = mr_mode;
        offer
    }

    fn negotiated_mr_mode(hints: &Hints, offered: MrMode) -> Result<MrMode, &'static str> {
        negotiate(hints, &offer_with(offered))
            .map(|info| info.domain.mr_mode)
            .map_err(|e| e.attribute)
    }

    #[test]
    fn mr_mode_bits_are_required_by_requested_caps() {
        let all = BASIC_BITS | MrMode::LOCAL | MrMode::HMEM | MrMode::RAW;
        let target = MrMode::VIRT_ADDR | MrMode::PROV_KEY | MrMode::RAW;
        for (caps, offered, agreed, expected) in [
            (TARGET_CAPS, BASIC_BITS, BASIC_BITS, Ok(BASIC_BITS)),
            (
                TARGET_CAPS,
                MrMode::PROV_KEY,
                BASIC_BITS,
                Ok(MrMode::PROV_KEY),
            ),
            (TARGET_CAPS, BASIC_BITS, MrMode::PROV_KEY, Err("mr_mode")),
            (TARGET_CAPS, BASIC_BITS, MrMode::empty(), Err("mr_mode")),
            (
                TARGET_CAPS,
                MrMode::empty(),
                MrMode::empty(),
                Ok(MrMode::empty()),
            ),
            (
                TARGET_CAPS,
                MrMode::HMEM,
                MrMode::empty(),
                Ok(MrMode::empty()),
            ),
            (
                TARGET_CAPS | Caps::HMEM,
                MrMode::HMEM,
                MrMode::empty(),
                Err("mr_mode"),
            ),
            (
                TARGET_CAPS | Caps::HMEM,
                MrMode::HMEM,
                MrMode::HMEM,
                Ok(MrMode::HMEM),
            ),
            (Caps::MSG, BASIC_BITS, MrMode::empty(), Ok(MrMode::empty())),
            (
                Caps::RMA | Caps::WRITE,
                BASIC_BITS,
                MrMode::empty(),
                Ok(MrMode::empty()),
            ),
            (Caps::MSG, MrMode::LOCAL, MrMode::empty(), Err("mr_mode")),
            (Caps::MSG, all, MrMode::LOCAL, Err("mr_mode")),
            (
                Caps::MSG,
                all,
                MrMode::LOCAL | MrMode::ALLOCATED,
                Ok(MrMode::LOCAL | MrMode::ALLOCATED),
            ),
            (
                TARGET_CAPS,
                all,
                all.difference(MrMode::HMEM),
                Ok(all.difference(MrMode::HMEM)),
            ),
            (TARGET_CAPS, target, target, Ok(target)),
        ] {
            let hints = Hints::new().caps(caps).mr_mode(agreed);
            assert_eq!(
                negotiated_mr_mode(&hints, offered),
                expected,
                "{caps:?} of {offered:?} with {agreed:?}"
            );
        }
    }

    #[test]
    fn mr_basic_and_scalable_exclude_other_bits() {
        for (requested, offered, expected) in [
            (MrMode::BASIC, BASIC_BITS, Ok(BASIC_BITS)),
            (MrMode::BASIC, MrMode::empty(), Ok(BASIC_BITS)),
            (MrMode::BASIC, BASIC_BITS | MrMode::RAW, Err("mr_mode")),
            (MrMode::BASIC, MrMode::BASIC | BASIC_BITS, Ok(BASIC_BITS)),
            (MrMode::BASIC, MrMode::SCALABLE, Err("mr_mode")),
            (
                MrMode::BASIC | MrMode::VIRT_ADDR,
                BASIC_BITS,
                Err("mr_mode"),
            ),
            (MrMode::LEGACY, MrMode::empty(), Err("mr_mode")),
            (MrMode::SCALABLE, MrMode::empty(), Ok(MrMode::empty())),
            (MrMode::SCALABLE, MrMode::PROV_KEY, Err("mr_mode")),
            (MrMode::SCALABLE, MrMode::BASIC, Err("mr_mode")),
            (
                MrMode::SCALABLE | MrMode::PROV_KEY,
                MrMode::PROV_KEY,
                Err("mr_mode"),
            ),
        ] {
            let hints = Hints::new().caps(TARGET_CAPS).mr_mode(requested);
            assert_eq!(
                negotiated_mr_mode(&hints, offered),
                expected,
                "{requested:?} of {offered:?}"
            );
        }
    }

    #[test]
    fn hints_before_api_1_5_accept_only_basic_and_scalable_mr_modes() {
        for (requested, offered, expected) in [
            (MrMode::empty(), BASIC_BITS, Ok(BASIC_BITS)),
            (MrMode::empty(), MrMode::empty(), Ok(MrMode::empty())),
            (MrMode::empty(), MrMode::BASIC, Ok(BASIC_BITS)),
            (MrMode::empty(), MrMode::RAW, Err("mr_mode")),
            (MrMode::BASIC, BASIC_BITS, Ok(BASIC_BITS)),
            (MrMode::SCALABLE, MrMode::SCALABLE, Ok(MrMode::empty())),
            (BASIC_BITS, BASIC_BITS, Err("mr_mode")),
        ] {
            let hints = Hints::new()
                .api_version(1, 4)
                .caps(TARGET_CAPS)
                .mr_mode(requested);
            assert_eq!(
                negotiated_mr_mode(&hints, offered),
                expected,
                "{requested:?} of {offered:?}"
            );
        }
    }

    #[test]
    fn mode_fi_local_mr_in_hints_satisfies_fi_mr_local() {
        let hints = Hints::new().caps(Caps::MSG).mode(Mode::LOCAL_MR);
        assert_eq!(negotiated_mr_mode(&hints, MrMode::LOCAL), Ok(MrMode::LOCAL));
        assert_eq!(
            negotiate(&hints, &offer_with(MrMode::LOCAL)).unwrap().mode,
            Mode::LOCAL_MR
        );
        assert_eq!(
            negotiate(&hints, &offer_with(MrMode::empty()))
                .unwrap()
                .mode,
            Mode::empty()
        );
    }

    #[test]
    fn mr_mode_limits_caps_granted_by_default() {
        let caps = |agreed| {
            negotiate(
                &Hints::new().mr_mode(agreed),
                &offer_with(BASIC_BITS | MrMode::HMEM),
            )
            .map(|i| i.caps)
        };
        let nothing = caps(MrMode::empty()).unwrap();
        assert!(nothing.contains(Caps::MSG | Caps::RMA | Caps::READ | Caps::WRITE));
        assert!(
            !nothing
                .intersects(Caps::HMEM | Caps::REMOTE_READ | Caps::REMOTE_WRITE | Caps::RMA_EVENT)
        );
        let target = caps(BASIC_BITS).unwrap();
        assert!(
            target.contains(Caps::REMOTE_WRITE | Caps::RMA_EVENT) && !target.contains(Caps::HMEM)
        );
        assert_eq!(
            caps(BASIC_BITS | MrMode::HMEM).unwrap(),
            offer_with(MrMode::empty()).caps.with_directions()
        );

        let mut target_only = offer_with(BASIC_BITS);
        target_only.caps = Caps::MSG | Caps::RMA | Caps::REMOTE_WRITE;
        let granted = negotiate(&Hints::new(), &target_only).unwrap().caps;
        assert_eq!(
            granted,
            Caps::MSG | Caps::MSG_DIRECTIONS,
            "FI_RMA without a direction of the initiator is not granted"
        );
    }
}

#[test]
fn all_api_1_17_values_are_accepted() {
    let mut offer = Info::template("shm", "shm", "shm");
    offer.caps = Caps::MSG | Caps::TAGGED | Caps::RMA;
    offer.domain.control_progress = Progress::Auto;
    offer.domain.data_progress = Progress::Auto;
    offer.domain.av_type = Some(AvType::Table);
    for threading in Threading::ALL {
        for (control, data) in [
            (Progress::Auto, Progress::Manual),
            (Progress::Manual, Progress::Auto),
        ] {
            for (mr_mode, av_type) in [
                (MrMode::BASIC, AvType::Map),
                (MrMode::SCALABLE, AvType::Table),
            ] {
                let hints = Hints::new()
                    .api_version(1, 17)
                    .threading(threading)
                    .control_progress(control)
                    .data_progress(data)
                    .resource_mgmt(ResourceMgmt::Disabled)
                    .av_type(av_type)
                    .mr_mode(mr_mode)
                    .mode(Mode::all())
                    .domain_mode(Mode::RESTRICTED_COMP);
                let domain = negotiate(&hints, &offer).unwrap().domain;
                assert_eq!(
                    (domain.control_progress, domain.data_progress),
                    (control, data)
                );
                assert_eq!(
                    (domain.threading, domain.av_type),
                    (threading, Some(av_type))
                );
            }
        }
    }
}

#[test]
fn result_is_the_offer_narrowed_by_the_hints() {
    let hints = accepting_hints()
        .caps(Caps::TAGGED | Caps::RMA | Caps::WRITE)
        .threading(Threading::Domain)
        .progress(Progress::ControlUnified)
        .av_type(AvType::Map)
        .auth_key([9; 8])
        .max_ep_auth_key(1)
        .api_version(2, 0)
        .tx_size(16)
        .inject_size(8)
        .tx_op_flags(OpFlags::INJECT)
        .source(address("sim://me"))
        .dest(address("sim://you"));
    let info = negotiate(&hints, &test_offer()).unwrap();

    let requested = Caps::TAGGED | Caps::SEND | Caps::RECV | Caps::RMA | Caps::WRITE;
    assert_eq!(info.caps, requested | Caps::FENCE | Caps::SOURCE);
    assert_eq!(info.tx.caps, info.caps);
    assert_eq!(info.mode, Mode::CONTEXT);
    assert_eq!(info.domain.threading, Threading::Domain);
    assert_eq!(info.domain.control_progress, Progress::ControlUnified);
    assert_eq!(info.domain.data_progress, Progress::ControlUnified);
    assert_eq!(info.domain.av_type, Some(AvType::Map));
    assert_eq!(
        (info.domain.auth_key, info.domain.auth_key_size),
        (Some(vec![9; 8]), 8)
    );
    assert_eq!(info.domain.max_ep_auth_key, 1);
    assert_eq!(info.domain.resource_mgmt, ResourceMgmt::Disabled);
    assert_eq!(info.domain.cntr_cnt, 10);
    assert_eq!(info.fabric.api_version, Version::new(2, 0));
    assert_eq!(
        (info.tx.size, info.tx.inject_size, info.tx.iov_limit),
        (16, 8, 5)
    );
    assert_eq!(
        (info.tx.op_flags, info.rx.op_flags),
        (OpFlags::INJECT, OpFlags::empty())
    );
    assert_eq!(info.tx.msg_order, test_offer().tx.msg_order);
    assert_eq!(info.src_addr, Some(address("sim://me")));
    assert_eq!(info.dest_addr, Some(address("sim://you")));
}

#[test]
fn counters_without_a_limit_hold_64_bits() {
    let mut offer = test_offer();
    (offer.domain.max_cntr_value, offer.domain.max_err_cntr_value) = (0, 0);
    let info = negotiate(&accepting_hints().max_cntr_value(u64::MAX), &offer).unwrap();
    assert_eq!(
        (info.domain.max_cntr_value, info.domain.max_err_cntr_value),
        (u64::MAX, u64::MAX)
    );
}

#[test]
fn only_free_secondary_caps_are_granted_unrequested() {
    let mut offer = Info::template("sim", "net", "net0");
    offer.caps = Caps::all();
    let granted = |caps, ep_type| {
        let mut offer = offer.clone();
        offer.ep.ep_type = ep_type;
        negotiate(&Hints::new().caps(caps), &offer).unwrap().caps
    };
    let sends = granted(Caps::MSG | Caps::SEND, EpType::Rdm);
    assert!(sends.contains(Caps::FENCE | Caps::TRIGGER | Caps::LOCAL_COMM | Caps::REMOTE_COMM));
    assert!(!sends.intersects(Caps::RECV | Caps::MULTI_RECV | Caps::SOURCE | Caps::RMA_EVENT));
    let both = granted(Caps::MSG, EpType::Rdm);
    assert!(both.contains(Caps::MULTI_RECV | Caps::SOURCE));
    assert!(
        !both
            .intersects(Caps::SOURCE_ERR | Caps::TAGGED_MULTI_RECV | Caps::RMA_PMEM | Caps::TAGGED)
    );
    assert!(!granted(Caps::MSG, EpType::Msg).contains(Caps::SOURCE));
    assert!(granted(Caps::RMA, EpType::Rdm).contains(Caps::RMA_EVENT | Caps::RMA_PMEM));
    assert!(granted(Caps::MSG | Caps::SOURCE_ERR, EpType::Rdm).contains(Caps::SOURCE_ERR));
}

#[test]
fn context_caps_are_a_subset_of_endpoint_caps() {
    let mut offer = Info::template("sim", "net", "net0");
    offer.caps = Caps::MSG | Caps::RMA;
    offer.tx.caps = Caps::MSG | Caps::RMA | Caps::SEND | Caps::READ | Caps::WRITE;
    offer.rx.caps = Caps::MSG | Caps::RMA | Caps::RECV | Caps::REMOTE_READ | Caps::REMOTE_WRITE;
    let receiver = negotiate(&Hints::new().caps(Caps::MSG | Caps::RECV), &offer).unwrap();
    assert_eq!(
        (receiver.tx.caps, receiver.rx.caps),
        (Caps::empty(), Caps::MSG | Caps::RECV)
    );
    let whole = negotiate(&Hints::new(), &offer).unwrap();
    assert_eq!(
        (whole.tx.caps, whole.rx.caps),
        (offer.tx.caps, offer.rx.caps)
    );

    let beyond = Hints::new().caps(Caps::MSG).tx_caps(Caps::RMA);
    assert_eq!(mismatch_attribute(&beyond, &offer), "tx_caps");
    let other_direction = Hints::new().rx_caps(Caps::MSG | Caps::SEND | Caps::RECV);
    assert_eq!(
        negotiate(&other_direction, &offer).unwrap().rx.caps,
        Caps::MSG | Caps::RECV
    );
}

#[test]
fn source_address_is_on_the_offered_network() {
    let mut offer = test_offer();
    offer.fabric.provider = "tcp".into();
    offer.src_addr = Some(address("tcp://192.0.2.2:0"));
    let granted = |hints: &Hints| {
        negotiate(hints, &offer)
            .unwrap()
            .src_addr
            .unwrap()
            .to_string()
    };
    assert_eq!(granted(&accepting_hints()), "fi_tcp://192.0.2.2:0");
    assert_eq!(
        granted(&accepting_hints().source(address("tcp://"))),
        "fi_tcp://192.0.2.2:0"
    );
    assert_eq!(
        granted(&accepting_hints().source(address("tcp://192.0.2.2:7"))),
        "fi_tcp://192.0.2.2:7"
    );
    assert_eq!(
        granted(&accepting_hints().dest(address("tcp://198.51.100.1:7"))),
        "fi_tcp://192.0.2.2:0"
    );
    assert_eq!(
        mismatch_attribute(
            &accepting_hints().source(address("tcp://192.0.2.3:0")),
            &offer
        ),
        "src_addr"
    );
    assert_eq!(
        mismatch_attribute(&accepting_hints().source(address("tcp://[::1]:0")), &offer),
        "src_addr"
    );
    assert_eq!(
        mismatch_attribute(&accepting_hints().dest(address("tcp://[::1]:7")), &offer),
        "dest_addr"
    );
}

#[test]
fn select_keeps_order_and_reports_mismatches() {
    let fast = test_offer();
    let mut slow = test_offer();
    slow.domain.name = "net1".into();
    let mut other = test_offer();
    other.fabric.provider = "shm".into();
    other.ep.ep_type = EpType::Msg;
    let offers = [fast.clone(), other, slow];

    let names = |hints: &Hints| -> Vec<String> {
        select(hints, &offers)
            .unwrap()
            .into_iter()
            .map(|info| info.domain.name)
            .collect()
    };
    assert_eq!(names(&accepting_hints().provider("sim")), ["net0", "net1"]);
    assert_eq!(
        names(&accepting_hints().provider("sim").domain_name("net1")),
        ["net1"]
    );

    let none = select(
        &accepting_hints()
            .provider("sim")
            .tx_size(1000)
            .ep_type(EpType::Rdm),
        &offers,
    )
    .unwrap_err();
    let attributes: Vec<_> = none
        .mismatches
        .iter()
        .map(|mismatch| mismatch.attribute)
        .collect();
    assert_eq!(attributes, ["tx_size", "provider", "tx_size"]);
    let text = Error::from(none.clone()).to_string();
    assert_eq!((text.lines().count(), text.matches("; ").count()), (1, 2));
    assert!(
        text.contains("sim: tx_size: asked for 1000, offers 60"),
        "{text}"
    );
    assert_eq!(Error::from(none).errno(), 61);
    assert_eq!(select(&Hints::new(), &[]), Err(NoMatch::default()));
}

#[test]
fn mismatch_text_names_requested_and_offered() {
    let text = |hints: Hints| negotiate(&hints, &test_offer()).unwrap_err().to_string();
    assert_eq!(
        text(accepting_hints().threading(Threading::Safe)),
        "sim: threading: asked for Safe, offers Endpoint"
    );
    assert_eq!(
        text(Hints::new()),
        "sim: mode: asked for none, offers only with CONTEXT"
    );
    assert!(
        text(accepting_hints().caps(Caps::MSG | Caps::ATOMIC))
            .starts_with("sim: caps: asked for ATOMIC, offers ")
    );
}

#[test]
fn domain_hint_matches_only_that_open_domain() {
    let mut offer = test_offer();
    offer.domain.domain = Some(17);
    assert_eq!(
        negotiate(&accepting_hints().domain(17), &offer)
            .unwrap()
            .domain
            .domain,
        Some(17)
    );
    assert_eq!(
        mismatch_attribute(&accepting_hints().domain(18), &offer),
        "domain"
    );
}

fn any_flags<F: bitflags::Flags<Bits = u64> + std::fmt::Debug>() -> impl Strategy<Value = F> {
    any::<u64>().prop_map(F::from_bits_truncate)
}

prop_compose! {
    /// Offers with arbitrary, consistent limits.
    fn any_offer()(
        (caps, tx_share, rx_share)
            in (any_flags::<Caps>(), any_flags::<Caps>(), any_flags::<Caps>()),
        (mode, tx_mode, rx_mode) in (any_flags::<Mode>(), any_flags::<Mode>(), any_flags::<Mode>()),
        (tx_order, rx_order) in (any_flags::<MsgOrder>(), any_flags::<MsgOrder>()),
        (mr_mode, flags) in (any::<u32>(), any::<u32>()),
        (threading, control, data) in (0..5_usize, 0..3_usize, 0..3_usize),
        (enabled, table) in (any::<bool>(), any::<Option<bool>>()),
        sizes in prop::array::uniform16(1..1_000_000_usize),
        key in prop::option::of(prop::collection::vec(any::<u8>(), 1..20)),
    ) -> Info {
        let mut offer = Info::template("sim", "net", "net0");
        offer.caps = caps.with_directions();
        offer.mode = mode;
        let domain = &mut offer.domain;
        domain.threading = Threading::ALL[threading];
        domain.control_progress = Progress::ALL[control];
        domain.data_progress = Progress::ALL[data];
        domain.resource_mgmt = ResourceMgmt::ALL[usize::from(!enabled)];
        domain.av_type = table.map(|table| if table { AvType::Table } else { AvType::Map });
        domain.mr_mode = MrMode::from_bits_truncate(mr_mode).difference(MrMode::LEGACY);
        domain.caps = offer.caps & Caps::SECONDARY;
        domain.auth_key_size = key.as_ref().map_or(0, Vec::len);
        domain.auth_key = key;
        [domain.cq_data_size, domain.cntr_cnt, domain.mr_iov_limit, ..] = sizes;
        [domain.max_err_data, domain.mr_cnt] = [sizes[3], sizes[4]];
        [.., domain.max_ep_auth_key, domain.max_ep_tx_ctx, domain.max_ep_rx_ctx] = sizes;
        offer.ep.max_msg_size = sizes[5];
        offer.ep.max_order_raw_size = sizes[6];
        offer.tx.caps = offer.caps & tx_share;
        offer.rx.caps = offer.caps & rx_share;
        (offer.tx.mode, offer.rx.mode) = (tx_mode, rx_mode);
        (offer.tx.msg_order, offer.rx.msg_order) = (tx_order, rx_order);
        offer.tx.op_flags = OpFlags::from_bits_truncate(flags);
        offer.rx.op_flags = OpFlags::from_bits_truncate(flags >> 8);
        [offer.tx.size, offer.tx.iov_limit, offer.tx.rma_iov_limit, offer.tx.inject_size] =
            [sizes[7], sizes[8], sizes[9], sizes[10]];
        [offer.rx.size, offer.rx.iov_limit] = [sizes[11], sizes[12]];
        offer
    }
}

/// Counts and sizes that are limits, with functions that read each from an offer and request it.
type Limit = (&'static str, fn(&Info) -> usize, fn(Hints, usize) -> Hints);

const LIMITS: &[Limit] = &[
    (
        "cq_data_size",
        |o| o.domain.cq_data_size,
        Hints::cq_data_size,
    ),
    ("cntr_cnt", |o| o.domain.cntr_cnt, Hints::cntr_cnt),
    (
        "mr_iov_limit",
        |o| o.domain.mr_iov_limit,
        Hints::mr_iov_limit,
    ),
    (
        "max_err_data",
        |o| o.domain.max_err_data,
        Hints::max_err_data,
    ),
    ("mr_cnt", |o| o.domain.mr_cnt, Hints::mr_cnt),
    (
        "max_ep_auth_key",
        |o| o.domain.max_ep_auth_key,
        Hints::max_ep_auth_key,
    ),
    ("max_msg_size", |o| o.ep.max_msg_size, Hints::max_msg_size),
    (
        "ep_tx_ctx_cnt",
        |o| o.domain.max_ep_tx_ctx,
        Hints::ep_tx_ctx_cnt,
    ),
    (
        "ep_rx_ctx_cnt",
        |o| o.domain.max_ep_rx_ctx,
        Hints::ep_rx_ctx_cnt,
    ),
    ("rx_size", |o| o.rx.size, Hints::rx_size),
    ("rx_iov_limit", |o| o.rx.iov_limit, Hints::rx_iov_limit),
    ("tx_size", |o| o.tx.size, Hints::tx_size),
    ("tx_iov_limit", |o| o.tx.iov_limit, Hints::tx_iov_limit),
    ("inject_size", |o| o.tx.inject_size, Hints::inject_size),
    (
        "rma_iov_limit",
        |o| o.tx.rma_iov_limit,
        Hints::rma_iov_limit,
    ),
];

proptest! {
    #[test]
    fn offer_satisfies_hints_made_from_it(offer in any_offer()) {
        let info = negotiate(&Hints::from(&offer), &offer);
        prop_assert!(info.is_ok(), "{}", info.unwrap_err());
        prop_assert_eq!(info.unwrap().caps, offer.caps);
    }

    #[test]
    fn negotiation_is_idempotent(offer in any_offer(), requested in any_flags::<Caps>()) {
        let mut hints = Hints::from(&offer).caps(offer.caps & requested & !Caps::DIRECTIONS);
        (hints.tx_caps, hints.rx_caps) = (None, None);
        let info = negotiate(&hints, &offer).unwrap();
        prop_assert!(offer.caps.contains(info.caps));
        prop_assert!(info.caps.contains(info.tx.caps) && info.caps.contains(info.rx.caps));
        prop_assert_eq!(negotiate(&Hints::from(&info), &offer), Ok(info));
    }

    #[test]
    fn value_above_limit_mismatches_its_attribute(offer in any_offer(), index in 0..LIMITS.len()) {
        let (attribute, limit, request) = LIMITS[index];
        let over = request(Hints::from(&offer), limit(&offer) + 1);
        let mismatch = negotiate(&over, &offer).unwrap_err();
        prop_assert_eq!(mismatch.attribute, attribute);
    }
}
