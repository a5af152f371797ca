//! Control messages, and which connection stays.

use std::net::SocketAddr;

use fabric_core::tcp::{
    ByteOrder, CmKind, CmMessage, ConnectRequest, ExistingConnection, MAX_CM_PRIVATE_DATA,
    RdmCmData, Resolution, WireProtocol, resolve_simultaneous_connect,
};

use crate::hex;

/// What libfabric's provider has been seen to send: a request, and its acceptance.
pub(crate) const REQUEST: &str =
    "03 00 0008 00000000 0000000000000000 0000000000000000 0100000000000000 00 00 9cfd 000030c4";
pub(crate) const ACCEPT: &str =
    "03 01 0008 00000000 0000000000000000 0000000000000000 0100000000000000 00 00 9cfd 000030c2";

fn decode_whole(bytes: &[u8]) -> CmMessage {
    let (control, len) = CmMessage::decode(bytes)
        .unwrap()
        .expect("all of it is there");
    assert_eq!(len, bytes.len());
    control
}

#[test]
fn control_messages_match_libfabric_bytes() {
    let request = RdmCmData {
        version: 0,
        features: 0,
        port: 0x9cfd,
        instance: 0x30c4,
    };
    for (text, kind, hello) in [
        (REQUEST, CmKind::Request, request),
        (ACCEPT, CmKind::Accept, request.acceptance(0x30c2)),
    ] {
        let control = decode_whole(&hex(text));
        assert_eq!(
            (control.kind, control.byte_order),
            (kind, ByteOrder::Little)
        );
        assert_eq!(RdmCmData::decode(control.private_data()), Some(hello));
        if ByteOrder::NATIVE == ByteOrder::Little {
            assert_eq!(
                CmMessage::new(kind, &hello.encode()).unwrap().encode(),
                hex(text)
            );
        }
    }
    // A request of this library differs in a number that libfabric does not look at.
    assert_eq!(
        RdmCmData {
            features: 0,
            ..RdmCmData::new(0x9cfd, 0x30c4)
        },
        request
    );
}

#[test]
fn control_messages_round_trip_at_every_split() {
    for kind in [CmKind::Request, CmKind::Accept, CmKind::Reject] {
        for len in [0, 1, 8, 255, MAX_CM_PRIVATE_DATA] {
            let private: Vec<_> = (0..len).map(|at| at as u8).collect();
            let bytes = CmMessage::new(kind, &private).unwrap().encode();
            for cut in 0..bytes.len() {
                assert_eq!(
                    CmMessage::decode(&bytes[..cut]),
                    Ok(None),
                    "{kind:?}, {len}, cut at {cut}"
                );
            }
            let control = decode_whole(&bytes);
            assert_eq!(
                (control.kind, control.byte_order, control.private_data()),
                (kind, ByteOrder::NATIVE, &private[..])
            );
            // What follows stays.
            let more = [bytes.as_slice(), &[7; 40]].concat();
            assert_eq!(CmMessage::decode(&more), Ok(Some((control, bytes.len()))));
        }
    }
    assert_eq!(
        CmMessage::new(CmKind::Request, &[0; MAX_CM_PRIVATE_DATA + 1]),
        None
    );
}

#[test]
fn endianness_probe_selects_byte_order() {
    let mut bytes = hex(REQUEST);
    bytes[24..32].copy_from_slice(&1u64.to_be_bytes());
    assert_eq!(decode_whole(&bytes).byte_order, ByteOrder::Big);
    for probe in [0, 2, u64::MAX, 1 << 32] {
        bytes[24..32].copy_from_slice(&probe.to_le_bytes());
        assert!(CmMessage::decode(&bytes).is_err(), "{probe}");
    }
    // A refusal has none.
    bytes[1] = 6;
    assert_eq!(decode_whole(&bytes).kind, CmKind::Reject);
    for (ours, theirs, spoken) in [
        (ByteOrder::Little, ByteOrder::Little, ByteOrder::Little),
        (ByteOrder::Little, ByteOrder::Big, ByteOrder::Big),
        (ByteOrder::Big, ByteOrder::Little, ByteOrder::Big),
        (ByteOrder::Big, ByteOrder::Big, ByteOrder::Big),
    ] {
        assert_eq!(ours.negotiate(theirs), spoken);
    }
}

/// Of the first byte on: no more than that is waited for.
#[test]
fn unknown_versions_kinds_and_lengths_are_rejected() {
    for version in (0..=255).filter(|version| *version != 3) {
        let mut bytes = hex(REQUEST);
        bytes[0] = version;
        for cut in 1..=bytes.len() {
            assert!(
                CmMessage::decode(&bytes[..cut]).is_err(),
                "version {version} cut at {cut}"
            );
        }
    }
    for kind in (0..=255).filter(|kind| ![0, 1, 6].contains(kind)) {
        let mut bytes = hex(REQUEST);
        bytes[1] = kind;
        assert!(CmMessage::decode(&bytes).is_err(), "kind {kind}");
    }
    for len in [MAX_CM_PRIVATE_DATA as u16 + 1, 300, u16::MAX] {
        let mut bytes = hex(REQUEST);
        bytes[2..4].copy_from_slice(&len.to_be_bytes());
        assert!(CmMessage::decode(&bytes).is_err(), "{len} private bytes");
    }
}

#[test]
fn acceptance_selects_version_without_rendezvous() {
    let hello = RdmCmData {
        version: 0,
        features: 0,
        port: 9,
        instance: 5,
    };
    for (asked, answered) in [(0, 0), (1, 0x80), (5, 0x80), (0x7f, 0x80)] {
        let answer = RdmCmData {
            version: asked,
            features: 0xff,
            ..hello
        }
        .acceptance(6);
        assert_eq!(
            answer,
            RdmCmData {
                version: answered,
                features: 1,
                port: 9,
                instance: 6
            }
        );
    }
    for len in [0, 7, 9, 24] {
        assert_eq!(RdmCmData::decode(&vec![0; len]), None);
    }
}

fn socket_addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Two that ask each other at once: each judges the other's request, and one connection is left.
#[test]
fn simultaneous_connects_leave_one_connection() {
    let addresses = [
        "10.0.0.1:5",
        "10.0.0.1:6",
        "10.0.0.1:256",
        "10.0.1.0:5",
        "9.255.255.255:9",
        "[::1]:5",
        "[fe80::1]:5",
    ];
    let question = ConnectRequest::Native(RdmCmData::new(1, 1));
    let asking = ExistingConnection::Connecting(WireProtocol::Native);
    for a in addresses {
        for b in addresses {
            let (here, there) = (
                resolve_simultaneous_connect(socket_addr(a), socket_addr(b), &question, asking),
                resolve_simultaneous_connect(socket_addr(b), socket_addr(a), &question, asking),
            );
            let verdicts = if a == b {
                (Resolution::AcceptLoopback, Resolution::AcceptLoopback)
            } else if here == Resolution::Reject {
                (Resolution::Reject, Resolution::Replace)
            } else {
                (Resolution::Replace, Resolution::Reject)
            };
            assert_eq!((here, there), verdicts, "{a} and {b}");
        }
    }
    // The one that the greater address has asked for.
    assert_eq!(
        resolve_simultaneous_connect(
            socket_addr("10.0.0.1:5"),
            socket_addr("10.0.0.1:256"),
            &question,
            asking
        ),
        Resolution::Replace
    );
    assert_eq!(
        resolve_simultaneous_connect(
            socket_addr("10.0.0.2:5"),
            socket_addr("10.0.0.1:256"),
            &question,
            asking
        ),
        Resolution::Reject
    );
}

#[test]
fn restarted_peer_replaces_its_connection() {
    let (ours, theirs, question) = (
        socket_addr("10.0.0.1:5"),
        socket_addr("10.0.0.2:5"),
        ConnectRequest::Native(RdmCmData::new(5, 77)),
    );
    let of = |rivals| resolve_simultaneous_connect(ours, theirs, &question, rivals);
    assert_eq!(of(ExistingConnection::None), Resolution::Accept);
    assert_eq!(of(ExistingConnection::Connected(None)), Resolution::Reject);
    assert_eq!(
        of(ExistingConnection::Connected(Some(77))),
        Resolution::Reject
    );
    assert_eq!(
        of(ExistingConnection::Connected(Some(78))),
        Resolution::Replace
    );
    // An endpoint that talks with itself has two.
    assert_eq!(
        resolve_simultaneous_connect(
            ours,
            ours,
            &question,
            ExistingConnection::Connected(Some(77))
        ),
        Resolution::AcceptLoopback
    );
    assert_eq!(
        resolve_simultaneous_connect(ours, ours, &question, ExistingConnection::None),
        Resolution::Accept
    );
}

/// Peers of this library know each other, and nobody else is taken for one: not who gives the
/// question back, nor who answers what it understands of it.
#[test]
fn same_implementation_peers_recognise_each_other() {
    let asked = RdmCmData::new(9, 5);
    assert!(asked.requests_extension() && !asked.accepts_extension());
    let answered = asked.acceptance(6);
    assert!(answered.accepts_extension() && !answered.requests_extension());
    for features in 0..=255u8 {
        let asked = RdmCmData { features, ..asked };
        let (echoed, understood) = (
            asked,
            RdmCmData {
                features: features & 1,
                ..asked
            },
        );
        if features & !1 == 0xa4 {
            assert!(!echoed.accepts_extension() && !understood.accepts_extension());
            assert_eq!(asked.acceptance(6).features, 0x58 | features & 1);
        } else {
            assert!(!asked.requests_extension());
            assert_eq!(asked.acceptance(6).features, features & 1);
        }
    }
}
