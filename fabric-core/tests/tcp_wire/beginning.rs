//! Control messages, and which connection stays.

use std::net::SocketAddr;

use fabric_core::tcp::{
    Control, ControlKind, Dialect, Hello, Order, PRIVATE_BYTES, Question, Rivals, Verdict,
    arbitrate,
};

use crate::hex;

/// What libfabric's provider has been seen to send: a request, and its acceptance.
pub(crate) const REQUEST: &str =
    "03 00 0008 00000000 0000000000000000 0000000000000000 0100000000000000 00 00 9cfd 000030c4";
pub(crate) const ACCEPT: &str =
    "03 01 0008 00000000 0000000000000000 0000000000000000 0100000000000000 00 00 9cfd 000030c2";

fn whole(bytes: &[u8]) -> Control {
    let (control, len) = Control::decode(bytes).unwrap().expect("all of it is there");
    assert_eq!(len, bytes.len());
    control
}

#[test]
fn control_messages_read_as_libfabric_writes_them() {
    let request = Hello {
        version: 0,
        features: 0,
        port: 0x9cfd,
        instance: 0x30c4,
    };
    for (text, kind, hello) in [
        (REQUEST, ControlKind::Request, request),
        (ACCEPT, ControlKind::Accept, request.accepted_by(0x30c2)),
    ] {
        let control = whole(&hex(text));
        assert_eq!((control.kind, control.order), (kind, Order::Little));
        assert_eq!(Hello::decode(control.private()), Some(hello));
        if Order::NATIVE == Order::Little {
            assert_eq!(
                Control::new(kind, &hello.encode()).unwrap().encode(),
                hex(text)
            );
        }
    }
    // A request of this library differs in a number that libfabric does not look at.
    assert_eq!(
        Hello {
            features: 0,
            ..Hello::new(0x9cfd, 0x30c4)
        },
        request
    );
}

#[test]
fn control_messages_come_back_and_may_be_split_anywhere() {
    for kind in [
        ControlKind::Request,
        ControlKind::Accept,
        ControlKind::Refuse,
    ] {
        for len in [0, 1, 8, 255, PRIVATE_BYTES] {
            let private: Vec<_> = (0..len).map(|at| at as u8).collect();
            let bytes = Control::new(kind, &private).unwrap().encode();
            for cut in 0..bytes.len() {
                assert_eq!(
                    Control::decode(&bytes[..cut]),
                    Ok(None),
                    "{kind:?}, {len}, cut at {cut}"
                );
            }
            let control = whole(&bytes);
            assert_eq!(
                (control.kind, control.order, control.private()),
                (kind, Order::NATIVE, &private[..])
            );
            // What follows stays.
            let more = [bytes.as_slice(), &[7; 40]].concat();
            assert_eq!(Control::decode(&more), Ok(Some((control, bytes.len()))));
        }
    }
    assert_eq!(
        Control::new(ControlKind::Request, &[0; PRIVATE_BYTES + 1]),
        None
    );
}

#[test]
fn the_probe_tells_the_order_and_nothing_else_is_one() {
    let mut bytes = hex(REQUEST);
    bytes[24..32].copy_from_slice(&1u64.to_be_bytes());
    assert_eq!(whole(&bytes).order, Order::Big);
    for probe in [0, 2, u64::MAX, 1 << 32] {
        bytes[24..32].copy_from_slice(&probe.to_le_bytes());
        assert!(Control::decode(&bytes).is_err(), "{probe}");
    }
    // A refusal has none.
    bytes[1] = 6;
    assert_eq!(whole(&bytes).kind, ControlKind::Refuse);
    for (ours, theirs, spoken) in [
        (Order::Little, Order::Little, Order::Little),
        (Order::Little, Order::Big, Order::Big),
        (Order::Big, Order::Little, Order::Big),
        (Order::Big, Order::Big, Order::Big),
    ] {
        assert_eq!(ours.with(theirs), spoken);
    }
}

/// Of the first byte on: no more than that is waited for.
#[test]
fn other_versions_kinds_and_lengths_are_refused() {
    for version in (0..=255).filter(|version| *version != 3) {
        let mut bytes = hex(REQUEST);
        bytes[0] = version;
        for cut in 1..=bytes.len() {
            assert!(
                Control::decode(&bytes[..cut]).is_err(),
                "version {version} cut at {cut}"
            );
        }
    }
    for kind in (0..=255).filter(|kind| ![0, 1, 6].contains(kind)) {
        let mut bytes = hex(REQUEST);
        bytes[1] = kind;
        assert!(Control::decode(&bytes).is_err(), "kind {kind}");
    }
    for len in [PRIVATE_BYTES as u16 + 1, 300, u16::MAX] {
        let mut bytes = hex(REQUEST);
        bytes[2..4].copy_from_slice(&len.to_be_bytes());
        assert!(Control::decode(&bytes).is_err(), "{len} private bytes");
    }
}

#[test]
fn only_the_plain_version_is_agreed_on() {
    let hello = Hello {
        version: 0,
        features: 0,
        port: 9,
        instance: 5,
    };
    for (asked, answered) in [(0, 0), (1, 0x80), (5, 0x80), (0x7f, 0x80)] {
        let answer = Hello {
            version: asked,
            features: 0xff,
            ..hello
        }
        .accepted_by(6);
        assert_eq!(
            answer,
            Hello {
                version: answered,
                features: 1,
                port: 9,
                instance: 6
            }
        );
    }
    for len in [0, 7, 9, 24] {
        assert_eq!(Hello::decode(&vec![0; len]), None);
    }
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Two that ask each other at once: each judges the other's request, and one connection is left.
#[test]
fn of_two_that_ask_at_once_one_connection_is_left() {
    let addresses = [
        "10.0.0.1:5",
        "10.0.0.1:6",
        "10.0.0.1:256",
        "10.0.1.0:5",
        "9.255.255.255:9",
        "[::1]:5",
        "[fe80::1]:5",
    ];
    let question = Question::Native(Hello::new(1, 1));
    let asking = Rivals::Asking(Dialect::Native);
    for a in addresses {
        for b in addresses {
            let (here, there) = (
                arbitrate(at(a), at(b), &question, asking),
                arbitrate(at(b), at(a), &question, asking),
            );
            let verdicts = if a == b {
                (Verdict::Both, Verdict::Both)
            } else if here == Verdict::Refuse {
                (Verdict::Refuse, Verdict::Replace)
            } else {
                (Verdict::Replace, Verdict::Refuse)
            };
            assert_eq!((here, there), verdicts, "{a} and {b}");
        }
    }
    // The one that the greater address has asked for.
    assert_eq!(
        arbitrate(at("10.0.0.1:5"), at("10.0.0.1:256"), &question, asking),
        Verdict::Replace
    );
    assert_eq!(
        arbitrate(at("10.0.0.2:5"), at("10.0.0.1:256"), &question, asking),
        Verdict::Refuse
    );
}

#[test]
fn who_has_been_started_again_replaces_its_connection() {
    let (ours, theirs, question) = (
        at("10.0.0.1:5"),
        at("10.0.0.2:5"),
        Question::Native(Hello::new(5, 77)),
    );
    let of = |rivals| arbitrate(ours, theirs, &question, rivals);
    assert_eq!(of(Rivals::None), Verdict::Accept);
    assert_eq!(of(Rivals::Connected(None)), Verdict::Refuse);
    assert_eq!(of(Rivals::Connected(Some(77))), Verdict::Refuse);
    assert_eq!(of(Rivals::Connected(Some(78))), Verdict::Replace);
    // An endpoint that talks with itself has two.
    assert_eq!(
        arbitrate(ours, ours, &question, Rivals::Connected(Some(77))),
        Verdict::Both
    );
    assert_eq!(
        arbitrate(ours, ours, &question, Rivals::None),
        Verdict::Accept
    );
}

/// Peers of this library know each other, and nobody else is taken for one: not who gives the
/// question back, nor who answers what it understands of it.
#[test]
fn kin_know_each_other() {
    let asked = Hello::new(9, 5);
    assert!(asked.is_kin() && !asked.answers_kin());
    let answered = asked.accepted_by(6);
    assert!(answered.answers_kin() && !answered.is_kin());
    for features in 0..=255u8 {
        let asked = Hello { features, ..asked };
        let (echoed, understood) = (
            asked,
            Hello {
                features: features & 1,
                ..asked
            },
        );
        if features & !1 == 0xa4 {
            assert!(!echoed.answers_kin() && !understood.answers_kin());
            assert_eq!(asked.accepted_by(6).features, 0x58 | features & 1);
        } else {
            assert!(!asked.is_kin());
            assert_eq!(asked.accepted_by(6).features, features & 1);
        }
    }
}
