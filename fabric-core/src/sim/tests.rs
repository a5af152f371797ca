//! Tests of names, offers and delays; the data path is tested in `tests/sim_transport.rs`.

use super::config::DelayRng;
use super::*;
use crate::address::Address;
use crate::info::{Hints, Progress, Threading, select};

fn address(text: &str) -> Address {
    text.parse().unwrap()
}

fn parse_config(text: &str) -> Result<SimConfig> {
    SimConfig::from_address(&address(text))
}

#[test]
fn name_suffix_overrides_the_defaults() {
    let default = SimConfig::default();
    assert_eq!(
        (default.seed, default.max_delay, default.channel_capacity),
        (0, 3, 16)
    );
    for (text, expected) in [
        ("sim://a", default),
        ("sim://", default),
        ("sim://a@9", SimConfig { seed: 9, ..default }),
        (
            "sim://a@9+0",
            SimConfig {
                seed: 9,
                max_delay: 0,
                ..default
            },
        ),
        (
            "sim://b@a@18446744073709551615+4+2",
            SimConfig {
                seed: u64::MAX,
                max_delay: 4,
                channel_capacity: 2,
            },
        ),
    ] {
        assert_eq!(parse_config(text), Ok(expected), "{text}");
    }
}

#[test]
fn invalid_name_suffix_is_rejected() {
    for (text, part) in [
        ("sim://a@", "seed"),
        ("sim://a@x", "seed"),
        ("sim://a@18446744073709551616", "seed"),
        ("sim://a@1+", "delay"),
        ("sim://a@1+4294967296", "delay"),
        ("sim://a@1+1+0", "capacity"),
        ("sim://a@1+1+1+1", "at most three"),
    ] {
        let error = parse_config(text).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains(text), "{error}");
    }
    assert!(matches!(
        parse_config("shm://a"),
        Err(Error::WrongScheme {
            provider: "sim",
            ..
        })
    ));
}

#[test]
fn delays_depend_on_seed_and_sender_and_stay_in_range() {
    let delays = |seed, name| {
        let mut rng = DelayRng::new(seed, &address(name));
        (0..64).map(|_| rng.next_delay(5)).collect::<Vec<_>>()
    };
    let some = delays(1, "sim://a");
    assert_eq!(some, delays(1, "sim://a"));
    assert!(some != delays(2, "sim://a") && some != delays(1, "sim://b"));
    assert!((0..=5).all(|delay| some.contains(&delay)) && some.iter().all(|&delay| delay <= 5));
    assert_eq!(DelayRng::new(3, &address("sim://a")).next_delay(0), 0);
    assert!(DelayRng::new(3, &address("sim://a")).next_delay(u32::MAX) <= u64::from(u32::MAX));
}

#[test]
fn progress_is_manual_by_default() {
    let offers = SimTransport.offers();
    let first = |hints: Hints| select(&hints, &offers).unwrap()[0].domain.clone();
    let none = first(Hints::new());
    assert_eq!(
        (none.data_progress, none.control_progress),
        (Progress::Manual, Progress::Manual)
    );
    for level in Progress::ALL {
        assert_eq!(
            first(Hints::new().data_progress(level)).data_progress,
            level
        );
        assert_eq!(
            first(Hints::new().control_progress(level)).control_progress,
            level
        );
    }
    for threading in Threading::ALL {
        assert_eq!(
            first(Hints::new().threading(threading)).threading,
            threading
        );
    }
}

#[test]
fn caps_are_granted_as_requested() {
    let offers = SimTransport.offers();
    let all = &select(&Hints::new(), &offers).unwrap()[0];
    assert_eq!(all.caps, CAPS);
    assert!(!all.tx.caps.intersects(Caps::RECV) && !all.rx.caps.intersects(Caps::SEND));
    assert!(all.tx.caps.contains(Caps::MSG | Caps::TAGGED | Caps::SEND));
    let tagged = Hints::new().caps(Caps::TAGGED | Caps::DIRECTED_RECV | Caps::SOURCE);
    let tagged = &select(&tagged, &offers).unwrap()[0];
    assert!(tagged.caps.contains(Caps::SEND | Caps::RECV) && !tagged.caps.contains(Caps::MSG));
    assert!(select(&Hints::new().caps(Caps::TRIGGER), &offers).is_err());
    assert!(select(&Hints::new().ep_type(EpType::Msg), &offers).is_err());
}
