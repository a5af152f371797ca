//! Negotiation of the protocol, native or RXM: requests and replies.

use fabric_core::flags::Caps;
use fabric_core::tcp::rxm::{RxmAccept, RxmConnect, RxmReject};
use fabric_core::tcp::{
    ByteOrder, CmKind, CmMessage, ConnectReply, ConnectRequest, ExistingConnection, Negotiated,
    PeerCaps, ProtocolViolation, RdmCmData, Resolution, VendorExtension, WireProtocol,
    resolve_simultaneous_connect,
};

use crate::hex;

/// A request captured from libfabric's RXM.
const RXM_REQUEST: &str = "03 00 0018 00000000 0000000000000000 0000000000000000 0100000000000000 \
    01 02 04 03 31aa 02 00 00400000 00100000 000000005d400000";

fn control_message(kind: CmKind, private: &[u8]) -> CmMessage {
    CmMessage::new(kind, private).unwrap()
}

#[test]
fn rxm_requests_match_libfabric_bytes() {
    let bytes = hex(RXM_REQUEST);
    let (control, len) = CmMessage::decode(&bytes).unwrap().unwrap();
    assert_eq!((control.kind, len), (CmKind::Request, bytes.len()));
    let request = RxmConnect {
        port: 0xaa31,
        instance: 0x405d,
        connection: 0,
    };
    if ByteOrder::NATIVE == ByteOrder::Little {
        assert_eq!(
            ConnectRequest::decode(control.private_data()),
            Ok(ConnectRequest::Rxm(request))
        );
        assert_eq!(
            control_message(CmKind::Request, &request.encode()).encode(),
            bytes
        );
    }
    assert_eq!(RxmConnect::decode(&request.encode()), Some(Ok(request)));
    let accepted = RxmAccept {
        instance: 7,
        connection: 9,
    };
    assert_eq!(RxmAccept::decode(&accepted.encode()), Some(accepted));
    assert_eq!(RxmReject::Refused.encode(), [1, 1]);
    assert_eq!(RxmReject::Connected.encode(), [1, 2]);
    for rejection in [
        RxmReject::Unspecified,
        RxmReject::Refused,
        RxmReject::Connected,
    ] {
        assert_eq!(RxmReject::decode(&rejection.encode()), Some(rejection));
    }
}

/// An invalid RXM request is rejected with an RXM reason.
#[test]
fn invalid_rxm_request_is_rejected_in_rxm() {
    let good = RxmConnect {
        port: 9,
        instance: 7,
        connection: 3,
    }
    .encode();
    for (at, byte, why) in [
        (0, 2, "version"),
        (1, 3, "byte order"),
        (2, 5, "version"),
        (3, 4, "version"),
        (8, 1, "limit"),
        (11, 0xff, "limit"),
    ] {
        let mut bytes = good;
        bytes[at] = byte;
        let ProtocolViolation(what) = ConnectRequest::decode(&bytes).unwrap_err();
        assert!(what.contains(why), "{what} for {why}");
        assert_eq!(ConnectRequest::reject_undecodable(&bytes), [1, 1]);
    }
    let no_port = RxmConnect {
        port: 0,
        instance: 7,
        connection: 3,
    }
    .encode();
    assert!(ConnectRequest::decode(&no_port).is_err());
    // Flow control, a padding byte and the number of receives may have any value.
    for at in [6, 7, 12, 15] {
        let mut bytes = good;
        bytes[at] ^= 0xff;
        assert!(ConnectRequest::decode(&bytes).is_ok(), "byte {at}");
    }
    for len in [0, 7, 9, 16, 23, 25, 256] {
        let bytes = vec![1; len];
        assert!(ConnectRequest::decode(&bytes).is_err(), "{len}");
        assert_eq!(ConnectRequest::reject_undecodable(&bytes), []);
    }
}

#[test]
fn reply_uses_the_protocol_of_the_request() {
    let native = ConnectRequest::new(WireProtocol::Native, 9, 7, 3);
    let rxm = ConnectRequest::new(WireProtocol::Rxm, 9, 7, 3);
    for request in [native, rxm] {
        assert_eq!(ConnectRequest::decode(&request.private_data()), Ok(request));
        assert_eq!((request.port(), request.instance()), (9, 7));
        for own in [None, Some(VendorExtension::from_caps(Caps::MSG))] {
            let extension = own.and_then(|own| request.vendor_extension(own));
            let (private, remote) = request.accept(8, 4, extension);
            let reply = request.on_reply(
                &control_message(CmKind::Accept, &private).with_vendor_extension(extension),
            );
            let local = match remote {
                Negotiated::Native { peer_caps } => Negotiated::Native { peer_caps },
                Negotiated::Rxm {
                    peer_caps,
                    local_connection: acceptor_id,
                    remote_connection: initiator_id,
                } => {
                    assert_eq!(
                        peer_caps.is_same_implementation(),
                        own.is_some(),
                        "a vendor extension marks a same-implementation peer"
                    );
                    Negotiated::Rxm {
                        peer_caps,
                        local_connection: initiator_id,
                        remote_connection: acceptor_id,
                    }
                }
            };
            assert_eq!(reply, Ok(ConnectReply::Accepted(local, Some(8))));
        }
        let reply = request.on_reply(&control_message(CmKind::Reject, &request.reject()));
        assert_eq!(reply, Ok(ConnectReply::AlreadyConnected));
    }
    let peer_caps = PeerCaps::rdm(false);
    assert_eq!(
        rxm.accept(8, 4, None).1,
        Negotiated::Rxm {
            peer_caps,
            local_connection: 4,
            remote_connection: 3
        }
    );
}

#[test]
fn reply_can_request_a_retry_in_the_other_protocol() {
    let native = ConnectRequest::new(WireProtocol::Native, 9, 7, 3);
    let rxm = ConnectRequest::new(WireProtocol::Rxm, 9, 7, 3);
    let private_data = RdmCmData::new(9, 8).encode();
    let cases = [
        (
            native,
            CmKind::Reject,
            vec![1, 1],
            Ok(ConnectReply::RetryWith(WireProtocol::Rxm)),
        ),
        (
            native,
            CmKind::Reject,
            vec![1, 0],
            Ok(ConnectReply::RetryWith(WireProtocol::Rxm)),
        ),
        (
            native,
            CmKind::Reject,
            vec![2, 1],
            Ok(ConnectReply::Rejected),
        ),
        (native, CmKind::Reject, vec![], Ok(ConnectReply::Rejected)),
        (
            native,
            CmKind::Reject,
            private_data.to_vec(),
            Ok(ConnectReply::Rejected),
        ),
        (
            native,
            CmKind::Accept,
            vec![],
            Ok(ConnectReply::Accepted(
                Negotiated::Native {
                    peer_caps: PeerCaps::rdm(false),
                },
                None,
            )),
        ),
        (rxm, CmKind::Reject, vec![1, 1], Ok(ConnectReply::Rejected)),
        (
            rxm,
            CmKind::Reject,
            vec![1, 2],
            Ok(ConnectReply::AlreadyConnected),
        ),
        (
            rxm,
            CmKind::Reject,
            rxm.private_data(),
            Ok(ConnectReply::RetryWith(WireProtocol::Native)),
        ),
        (
            rxm,
            CmKind::Accept,
            private_data.to_vec(),
            Ok(ConnectReply::RetryWith(WireProtocol::Native)),
        ),
        (
            rxm,
            CmKind::Accept,
            vec![],
            Err(ProtocolViolation(
                "private data of the acceptance are not those of an FI_EP_RDM endpoint",
            )),
        ),
        (
            rxm,
            CmKind::Request,
            vec![],
            Err(ProtocolViolation(
                "connection request received instead of a reply",
            )),
        ),
    ];
    for (request, kind, private, reply) in cases {
        assert_eq!(
            request.on_reply(&control_message(kind, &private)),
            reply,
            "{request:?}, {kind:?}, {private:?}"
        );
    }
}

/// Both sides connect at once with different protocols: the RXM request stays, whichever address is
/// greater.
#[test]
fn simultaneous_connects_prefer_rxm() {
    let addresses = [("10.0.0.1:5", "10.0.0.2:5"), ("10.0.0.2:5", "10.0.0.1:5")];
    for (a, b) in addresses {
        let (a, b) = (a.parse().unwrap(), b.parse().unwrap());
        let resolve = |protocol, own_protocol| {
            resolve_simultaneous_connect(
                a,
                b,
                &ConnectRequest::new(protocol, 1, 1, 1),
                ExistingConnection::Connecting(own_protocol),
                false,
            )
        };
        assert_eq!(
            resolve(WireProtocol::Rxm, WireProtocol::Native),
            Resolution::Replace
        );
        assert_eq!(
            resolve(WireProtocol::Native, WireProtocol::Rxm),
            Resolution::Reject
        );
        assert_eq!(
            resolve(WireProtocol::Rxm, WireProtocol::Rxm),
            resolve(WireProtocol::Native, WireProtocol::Native)
        );
    }
}
