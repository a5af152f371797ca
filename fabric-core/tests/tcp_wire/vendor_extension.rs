//! The vendor extension of `FI_EP_MSG` endpoints, and the capabilities that it gives to a peer.

use fabric_core::Error;
use fabric_core::atomic::{AtomicCall, AtomicOp, AtomicSpec, Datatype};
use fabric_core::flags::Caps;
use fabric_core::tcp::{ByteOrder, CmKind, CmMessage, PeerCaps, VendorExtension};

use crate::cm::{ACCEPT, REQUEST};
use crate::hex;

/// A request, and its acceptance, of an endpoint that supports tags.
const REQUEST_BYTES: &str =
    "03 00 0002 00000000 6661627269632d3f 01 000000 00000001 0100000000000000 6869";
const ACCEPT_BYTES: &str =
    "03 01 0002 00000000 6661627269632d21 01 000000 00000001 0100000000000000 6869";

fn tagged_extension() -> VendorExtension {
    VendorExtension::from_caps(Caps::MSG | Caps::TAGGED)
}

fn decode_extension(bytes: &[u8]) -> Option<VendorExtension> {
    CmMessage::decode(bytes)
        .unwrap()
        .expect("the message is complete")
        .0
        .vendor_extension
}

#[test]
fn extension_uses_bytes_that_libfabric_ignores() {
    for (text, kind) in [
        (REQUEST_BYTES, CmKind::Request),
        (ACCEPT_BYTES, CmKind::Accept),
    ] {
        if ByteOrder::NATIVE == ByteOrder::Little {
            assert_eq!(
                CmMessage::new(kind, b"hi")
                    .unwrap()
                    .with_vendor_extension(Some(tagged_extension()))
                    .encode(),
                hex(text)
            );
        }
        let bytes = hex(text);
        assert_eq!(decode_extension(&bytes), Some(tagged_extension()));
        for cut in 0..bytes.len() {
            assert_eq!(CmMessage::decode(&bytes[..cut]), Ok(None), "cut at {cut}");
        }
        // All other fields are as without the extension.
        let mut plain = bytes.clone();
        plain[8..24].fill(0);
        let (with, without) = (
            CmMessage::decode(&bytes).unwrap().unwrap(),
            CmMessage::decode(&plain).unwrap().unwrap(),
        );
        assert_eq!((without.0.vendor_extension, without.1), (None, with.1));
        assert_eq!(with.0.with_vendor_extension(None), without.0);
    }
    assert_eq!(
        (
            decode_extension(&hex(REQUEST)),
            decode_extension(&hex(ACCEPT))
        ),
        (None, None)
    );
    // A rejection has no extension.
    let rejection = CmMessage::new(CmKind::Reject, b"no").unwrap();
    assert_eq!(
        rejection
            .clone()
            .with_vendor_extension(Some(tagged_extension()))
            .encode(),
        rejection.encode()
    );
}

/// Neither an echo of the request nor arbitrary bytes are taken for an extension.
#[test]
fn echoed_or_changed_bytes_are_not_parsed_as_extension() {
    for (text, other) in [(REQUEST_BYTES, 1), (ACCEPT_BYTES, 0)] {
        let bytes = hex(text);
        for kind in [other, 6] {
            let mut echoed = bytes.clone();
            echoed[1] = kind;
            assert_eq!(decode_extension(&echoed), None, "kind {kind}");
        }
        for at in 8..16 {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                assert_eq!(decode_extension(&changed), None, "byte {at}");
            }
        }
        for filled in [0, 1, 0xff] {
            let mut changed = bytes.clone();
            changed[4..24].fill(filled);
            assert_eq!(decode_extension(&changed), None);
        }
        let mut invalid = bytes.clone();
        invalid[16] = 0;
        assert_eq!(decode_extension(&invalid), None, "version 0 does not exist");
    }
}

/// Later versions keep the fields of this version and may add bits, which are ignored.
#[test]
fn unknown_extension_bits_are_ignored() {
    for text in [REQUEST_BYTES, ACCEPT_BYTES] {
        for version in [1, 2, 0xff] {
            for filler in [0, 0x80, 0xfc] {
                for (bits, caps) in CAPABILITY_BITS {
                    let mut bytes = hex(text);
                    bytes[4..8].fill(filler);
                    bytes[16] = version;
                    bytes[17..23].fill(filler);
                    bytes[23] = filler | bits;
                    assert_eq!(
                        decode_extension(&bytes),
                        Some(VendorExtension::from_caps(caps)),
                        "version {version}, {filler:#x}, {bits}"
                    );
                }
            }
        }
    }
}

/// Capability bits of endpoints with these capabilities.
const CAPABILITY_BITS: [(u8, Caps); 4] = [
    (0, Caps::MSG),
    (1, Caps::TAGGED),
    (2, Caps::ATOMIC),
    (3, Caps::TAGGED.union(Caps::ATOMIC)),
];

#[test]
fn extension_announces_endpoint_caps() {
    for (bits, caps) in CAPABILITY_BITS {
        let control = CmMessage::new(CmKind::Request, b"").unwrap();
        let bytes = control
            .with_vendor_extension(Some(VendorExtension::from_caps(
                caps | Caps::MSG | Caps::RMA,
            )))
            .encode();
        assert_eq!(bytes[16..24], [1, 0, 0, 0, 0, 0, 0, bits]);
    }
}

#[test]
fn peer_caps_gate_tags_and_atomics() {
    let announced =
        |caps, asserted| PeerCaps::msg(Some(VendorExtension::from_caps(caps)), asserted);
    let unsupported = |error| matches!(error, Error::NotSupported(_));
    for (peer_caps, tags, atomics, is_same) in [
        (PeerCaps::msg(None, false), false, false, false),
        (PeerCaps::msg(None, true), true, false, false),
        (announced(Caps::MSG, false), false, false, true),
        (announced(Caps::MSG, true), false, false, true),
        (announced(Caps::TAGGED, false), true, false, true),
        (announced(Caps::TAGGED, true), true, false, true),
        (announced(Caps::ATOMIC, false), false, true, true),
        (
            announced(Caps::ATOMIC | Caps::TAGGED, false),
            true,
            true,
            true,
        ),
        (PeerCaps::rdm(false), true, false, false),
        (PeerCaps::rdm(true), true, true, true),
    ] {
        assert_eq!(
            (peer_caps.tag(None), peer_caps.is_same_implementation()),
            (Ok(None), is_same),
            "{peer_caps:?}"
        );
        match peer_caps.tag(Some(7)) {
            Ok(tag) => assert!(tags && tag.is_some(), "{peer_caps:?}"),
            Err(error) => assert!(!tags && unsupported(error), "{peer_caps:?}"),
        }
        let sum = AtomicSpec {
            op: AtomicOp::Sum,
            datatype: Datatype::U64,
            call: AtomicCall::Base,
        };
        match peer_caps.atomic(sum) {
            Ok(_) => assert!(atomics, "{peer_caps:?}"),
            Err(error) => assert!(!atomics && unsupported(error), "{peer_caps:?}"),
        }
    }
}
