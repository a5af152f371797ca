//! What connected endpoints of this library say of themselves, and what may be said to whom.

use fabric_core::Error;
use fabric_core::atomic::{AtomicCall, AtomicOp, AtomicSpec, Datatype};
use fabric_core::flags::Caps;
use fabric_core::tcp::{Control, ControlKind, Mark, Order, Takes};

use crate::beginning::{ACCEPT, REQUEST};
use crate::hex;

/// A request, and its acceptance, of an endpoint that takes tags.
const ASKS: &str = "03 00 0002 00000000 6661627269632d3f 01 000000 00000001 0100000000000000 6869";
const ANSWERS: &str =
    "03 01 0002 00000000 6661627269632d21 01 000000 00000001 0100000000000000 6869";

fn tagging() -> Mark {
    Mark::of(Caps::MSG | Caps::TAGGED)
}

fn read(bytes: &[u8]) -> Option<Mark> {
    Control::decode(bytes)
        .unwrap()
        .expect("all of it is there")
        .0
        .mark
}

#[test]
fn marks_lie_where_libfabric_does_not_look() {
    for (text, kind) in [(ASKS, ControlKind::Request), (ANSWERS, ControlKind::Accept)] {
        if Order::NATIVE == Order::Little {
            assert_eq!(
                Control::new(kind, b"hi")
                    .unwrap()
                    .marked(Some(tagging()))
                    .encode(),
                hex(text)
            );
        }
        let bytes = hex(text);
        assert_eq!(read(&bytes), Some(tagging()));
        for cut in 0..bytes.len() {
            assert_eq!(Control::decode(&bytes[..cut]), Ok(None), "cut at {cut}");
        }
        // All else is as it is without.
        let mut plain = bytes.clone();
        plain[8..24].fill(0);
        let (with, without) = (
            Control::decode(&bytes).unwrap().unwrap(),
            Control::decode(&plain).unwrap().unwrap(),
        );
        assert_eq!((without.0.mark, without.1), (None, with.1));
        assert_eq!(with.0.marked(None), without.0);
    }
    assert_eq!((read(&hex(REQUEST)), read(&hex(ACCEPT))), (None, None));
    // A refusal has none, whatever is asked for.
    let refusal = Control::new(ControlKind::Refuse, b"no").unwrap();
    assert_eq!(
        refusal.clone().marked(Some(tagging())).encode(),
        refusal.encode()
    );
}

/// Neither who gives back what it was asked with, nor who writes anything at all, is taken for one
/// of this library.
#[test]
fn nothing_else_is_a_mark() {
    for (text, other) in [(ASKS, 1), (ANSWERS, 0)] {
        let bytes = hex(text);
        for kind in [other, 6] {
            let mut echoed = bytes.clone();
            echoed[1] = kind;
            assert_eq!(read(&echoed), None, "kind {kind}");
        }
        for at in 8..16 {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                assert_eq!(read(&changed), None, "byte {at}");
            }
        }
        for filled in [0, 1, 0xff] {
            let mut changed = bytes.clone();
            changed[4..24].fill(filled);
            assert_eq!(read(&changed), None);
        }
        let mut none = bytes.clone();
        none[16] = 0;
        assert_eq!(read(&none), None, "there is no such version");
    }
}

/// Later versions say what this one says, and more, which means nothing here.
#[test]
fn what_is_not_understood_does_not_matter() {
    for text in [ASKS, ANSWERS] {
        for version in [1, 2, 0xff] {
            for more in [0, 0x80, 0xfc] {
                for (takes, caps) in SAYS {
                    let mut bytes = hex(text);
                    bytes[4..8].fill(more);
                    bytes[16] = version;
                    bytes[17..23].fill(more);
                    bytes[23] = more | takes;
                    assert_eq!(
                        read(&bytes),
                        Some(Mark::of(caps)),
                        "version {version}, {more:#x}, {takes}"
                    );
                }
            }
        }
    }
}

/// What endpoints with these capabilities say.
const SAYS: [(u8, Caps); 4] = [
    (0, Caps::MSG),
    (1, Caps::TAGGED),
    (2, Caps::ATOMIC),
    (3, Caps::TAGGED.union(Caps::ATOMIC)),
];

#[test]
fn marks_say_what_endpoints_can_do() {
    for (takes, caps) in SAYS {
        let control = Control::new(ControlKind::Request, b"").unwrap();
        let bytes = control
            .marked(Some(Mark::of(caps | Caps::MSG | Caps::RMA)))
            .encode();
        assert_eq!(bytes[16..24], [1, 0, 0, 0, 0, 0, 0, takes]);
    }
}

#[test]
fn nothing_is_said_to_those_that_may_not_take_it() {
    let of = |caps, promise| Takes::of_one(Some(Mark::of(caps)), promise);
    let unsupported = |error| matches!(error, Error::NotSupported(_));
    for (takes, tags, atomics, is_kin) in [
        (Takes::of_one(None, false), false, false, false),
        (Takes::of_one(None, true), true, false, false),
        (of(Caps::MSG, false), false, false, true),
        (of(Caps::MSG, true), false, false, true),
        (of(Caps::TAGGED, false), true, false, true),
        (of(Caps::TAGGED, true), true, false, true),
        (of(Caps::ATOMIC, false), false, true, true),
        (of(Caps::ATOMIC | Caps::TAGGED, false), true, true, true),
        (Takes::of_many(false), true, false, false),
        (Takes::of_many(true), true, true, true),
    ] {
        assert_eq!(
            (takes.tag(None), takes.is_kin()),
            (Ok(None), is_kin),
            "{takes:?}"
        );
        match takes.tag(Some(7)) {
            Ok(tag) => assert!(tags && tag.is_some(), "{takes:?}"),
            Err(error) => assert!(!tags && unsupported(error), "{takes:?}"),
        }
        let sum = AtomicSpec {
            op: AtomicOp::Sum,
            datatype: Datatype::U64,
            call: AtomicCall::Base,
        };
        match takes.atomic(sum) {
            Ok(_) => assert!(atomics, "{takes:?}"),
            Err(error) => assert!(!atomics && unsupported(error), "{takes:?}"),
        }
    }
}
