//! Mode bits of memory registration (`fi_mr(3)`).

use fabric_core::flags::{Caps, Mode, MrMode};
use fabric_core::info::{Hints, Info, negotiate};

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
        !nothing.intersects(Caps::HMEM | Caps::REMOTE_READ | Caps::REMOTE_WRITE | Caps::RMA_EVENT)
    );
    let target = caps(BASIC_BITS).unwrap();
    assert!(target.contains(Caps::REMOTE_WRITE | Caps::RMA_EVENT) && !target.contains(Caps::HMEM));
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
