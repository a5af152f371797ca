//! What a successful negotiation returns, and the mismatches of one without success.

use fabric_core::Error;
use fabric_core::flags::{Caps, Mode, MrMode, OpFlags};
use fabric_core::info::{
    AvType, EpType, Hints, Info, NoMatch, Progress, ResourceMgmt, Threading, TrafficClass, Version,
    negotiate, select,
};

use crate::{accepting_hints, address, mismatch_attribute, test_offer};

#[test]
fn all_api_1_17_values_are_accepted() {
    let mut offer = Info::template("shm", "shm", "shm");
    offer.caps = Caps::MSG | Caps::TAGGED | Caps::RMA;
    offer.domain.control_progress = Progress::Auto;
    offer.domain.data_progress = Progress::Auto;
    offer.domain.av_type = Some(AvType::Table);
    for threading in Threading::ALL {
        for (control, data, granted_data) in [
            // One thread makes progress on both.
            (Progress::Auto, Progress::Manual, Progress::Auto),
            (Progress::Manual, Progress::Auto, Progress::Auto),
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
                    (control, granted_data)
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
        .tclass(TrafficClass::BulkData)
        .tx_tclass(TrafficClass::LowLatency)
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
    assert_eq!(
        (info.domain.caps, info.domain.mode),
        (Caps::LOCAL_COMM, Mode::RESTRICTED_COMP)
    );
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
    assert_eq!(
        (info.domain.tclass, info.tx.tclass),
        (Some(TrafficClass::BulkData), Some(TrafficClass::LowLatency))
    );
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
    let requested = Caps::MSG | Caps::SOURCE | Caps::SOURCE_ERR;
    assert!(granted(requested, EpType::Rdm).contains(requested));
    let everything = granted(Caps::empty(), EpType::Rdm);
    assert!(everything.contains(Caps::SOURCE) && !everything.contains(Caps::SOURCE_ERR));
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
fn offers_of_both_progress_modes_yield_one_info_for_manual_progress() {
    let offers = [Progress::Manual, Progress::Auto].map(|progress| {
        let mut offer = test_offer();
        offer.domain.data_progress = progress;
        offer.domain.control_progress = progress;
        offer
    });
    let modes = |hints: &Hints| -> Vec<Progress> {
        let found = select(hints, &offers).unwrap();
        let modes = found.iter().map(|info| info.domain.data_progress);
        modes.collect()
    };
    assert_eq!(
        modes(&accepting_hints()),
        [Progress::Manual, Progress::Auto]
    );
    let manual = accepting_hints().progress(Progress::Manual);
    assert_eq!(modes(&manual), [Progress::Manual]);
    let auto = accepting_hints().progress(Progress::Auto);
    assert_eq!(modes(&auto), [Progress::Auto]);
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
