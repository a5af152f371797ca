//! Control messages, and simultaneous connects.

use std::net::SocketAddr;

use fabric_core::tcp::{
    ByteOrder, CmKind, CmMessage, ConnectRequest, ExistingConnection, MAX_CM_PRIVATE_DATA,
    RdmCmData, Resolution, WireProtocol, resolve_simultaneous_connect,
};

use crate::hex;

/// A request and its acceptance captured from libfabric's tcp provider.
pub(crate) const REQUEST: &str =
    "03 00 0008 00000000 0000000000000000 0000000000000000 0100000000000000 00 00 9cfd 000030c4";
pub(crate) const ACCEPT: &str =
    "03 01 0008 00000000 0000000000000000 0000000000000000 0100000000000000 00 00 9cfd 000030c2";

fn decode_whole(bytes: &[u8]) -> CmMessage {
    let (control, len) = CmMessage::decode(bytes)
        .unwrap()
        .expect("the message is complete");
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
    for (text, kind, native) in [
        (REQUEST, CmKind::Request, request),
        (ACCEPT, CmKind::Accept, request.acceptance(0x30c2)),
    ] {
        let control = decode_whole(&hex(text));
        assert_eq!(
            (control.kind, control.byte_order),
            (kind, ByteOrder::Little)
        );
        assert_eq!(RdmCmData::decode(control.private_data()), Some(native));
        if ByteOrder::NATIVE == ByteOrder::Little {
            assert_eq!(
                CmMessage::new(kind, &native.encode()).unwrap().encode(),
                hex(text)
            );
        }
    }
    // A request of this library differs in feature bits that libfabric ignores.
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
            // Bytes behind the message are not consumed.
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
fn byte_order_probe_selects_byte_order() {
    let mut bytes = hex(REQUEST);
    bytes[24..32].copy_from_slice(&1u64.to_be_bytes());
    assert_eq!(decode_whole(&bytes).byte_order, ByteOrder::Big);
    for probe in [0, 2, u64::MAX, 1 << 32] {
        bytes[24..32].copy_from_slice(&probe.to_le_bytes());
        assert!(CmMessage::decode(&bytes).is_err(), "{probe}");
    }
    // A rejection has no byte order.
    bytes[1] = 6;
    assert_eq!(decode_whole(&bytes).kind, CmKind::Reject);
    for (ours, theirs, negotiated) in [
        (ByteOrder::Little, ByteOrder::Little, ByteOrder::Little),
        (ByteOrder::Little, ByteOrder::Big, ByteOrder::Big),
        (ByteOrder::Big, ByteOrder::Little, ByteOrder::Big),
        (ByteOrder::Big, ByteOrder::Big, ByteOrder::Big),
    ] {
        assert_eq!(ours.negotiate(theirs), negotiated);
    }
}

/// A bad version is rejected from the first byte on, without waiting for more.
#[test]
fn unknown_versions_and_kinds_and_excessive_lengths_are_rejected() {
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
fn acceptance_selects_the_version_without_rendezvous() {
    let request = RdmCmData {
        version: 0,
        features: 0,
        port: 9,
        instance: 5,
    };
    for (requested, chosen) in [(0, 0), (1, 0x80), (5, 0x80), (0x7f, 0x80)] {
        let acceptance = RdmCmData {
            version: requested,
            features: 0xff,
            ..request
        }
        .acceptance(6);
        assert_eq!(
            acceptance,
            RdmCmData {
                version: chosen,
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

/// Two endpoints connect to each other at once: each resolves the other's request, and one
/// connection remains.
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
    let request = ConnectRequest::Native(RdmCmData::new(1, 1));
    let connecting = ExistingConnection::Connecting(WireProtocol::Native);
    let resolve = |ours, theirs, existing, is_own| {
        resolve_simultaneous_connect(ours, theirs, &request, existing, is_own)
    };
    for a in addresses {
        for b in addresses {
            let (resolution_a, resolution_b) = (
                resolve(socket_addr(a), socket_addr(b), connecting, a == b),
                resolve(socket_addr(b), socket_addr(a), connecting, a == b),
            );
            let expected = if a == b {
                (Resolution::AcceptLoopback, Resolution::AcceptLoopback)
            } else if resolution_a == Resolution::Reject {
                (Resolution::Reject, Resolution::Replace)
            } else {
                (Resolution::Replace, Resolution::Reject)
            };
            assert_eq!((resolution_a, resolution_b), expected, "{a} and {b}");
        }
    }
    // The connection requested by the greater address stays.
    assert_eq!(
        resolve(
            socket_addr("10.0.0.1:5"),
            socket_addr("10.0.0.1:256"),
            connecting,
            false
        ),
        Resolution::Replace
    );
    assert_eq!(
        resolve(
            socket_addr("10.0.0.2:5"),
            socket_addr("10.0.0.1:256"),
            connecting,
            false
        ),
        Resolution::Reject
    );
}

/// An address in a request proves nothing: an established connection stays, and requests of the
/// endpoint's own address are accepted only if the endpoint has sent them.
#[test]
fn claimed_address_replaces_no_established_connection() {
    let (ours, theirs, request) = (
        socket_addr("10.0.0.1:5"),
        socket_addr("10.0.0.2:5"),
        ConnectRequest::Native(RdmCmData::new(5, 77)),
    );
    let connecting = ExistingConnection::Connecting(WireProtocol::Native);
    let resolve = |theirs, existing, is_own| {
        resolve_simultaneous_connect(ours, theirs, &request, existing, is_own)
    };
    assert_eq!(
        resolve(theirs, ExistingConnection::None, false),
        Resolution::Accept
    );
    assert_eq!(
        resolve(theirs, ExistingConnection::Connected, false),
        Resolution::RejectAndVerify
    );
    for existing in [
        ExistingConnection::None,
        ExistingConnection::Connected,
        connecting,
    ] {
        assert_eq!(resolve(ours, existing, false), Resolution::Reject);
        // An endpoint that connects to itself has two connections.
        assert_eq!(resolve(ours, existing, true), Resolution::AcceptLoopback);
    }
}

/// Peers of this library recognise each other. A peer that echoes the request, or answers with the
/// bits that it knows, is not taken for one.
#[test]
fn same_implementation_peers_recognise_each_other() {
    let request = RdmCmData::new(9, 5);
    assert!(request.requests_extension() && !request.accepts_extension());
    let acceptance = request.acceptance(6);
    assert!(acceptance.accepts_extension() && !acceptance.requests_extension());
    for features in 0..=255u8 {
        let request = RdmCmData {
            features,
            ..request
        };
        let (echoed, masked) = (
            request,
            RdmCmData {
                features: features & 1,
                ..request
            },
        );
        if features & !1 == 0xa4 {
            assert!(!echoed.accepts_extension() && !masked.accepts_extension());
            assert_eq!(request.acceptance(6).features, 0x58 | features & 1);
        } else {
            assert!(!request.requests_extension());
            assert_eq!(request.acceptance(6).features, features & 1);
        }
    }
}
