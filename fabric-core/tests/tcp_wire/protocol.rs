//! Which of the two dialects is spoken: questions and answers.

use fabric_core::flags::Caps;
use fabric_core::tcp::rxm::{RxmAccept, RxmConnect, RxmReject};
use fabric_core::tcp::{
    ByteOrder, CmKind, CmMessage, ConnectReply, ConnectRequest, ExistingConnection, Negotiated,
    PeerCaps, ProtocolViolation, RdmCmData, Resolution, VendorExtension, WireProtocol,
    resolve_simultaneous_connect,
};

use crate::hex;

/// What libfabric's RXM has been seen to ask with.
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

/// Who asks in RXM and is not understood is told so in RXM.
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
    let deaf = RxmConnect {
        port: 0,
        instance: 7,
        connection: 3,
    }
    .encode();
    assert!(ConnectRequest::decode(&deaf).is_err());
    // Flow control, the slot and the number of receives are the peer's own business.
    for at in [6, 7, 12, 15] {
        let mut bytes = good;
        bytes[at] ^= 0xff;
        assert!(ConnectRequest::decode(&bytes).is_ok(), "byte {at}");
    }
    for len in [0, 7, 9, 16, 23, 25, 256] {
        let bytes = vec![1; len];
        assert!(ConnectRequest::decode(&bytes).is_err(), "{len}");
        assert_eq!(ConnectRequest::reject_undecodable(&bytes), bytes);
    }
}

#[test]
fn reply_uses_the_protocol_of_the_request() {
    let native = ConnectRequest::new(WireProtocol::Native, 9, 7, 3);
    let rxm = ConnectRequest::new(WireProtocol::Rxm, 9, 7, 3);
    for question in [native, rxm] {
        assert_eq!(
            ConnectRequest::decode(&question.private_data()),
            Ok(question)
        );
        assert_eq!((question.port(), question.instance()), (9, 7));
        for own in [None, Some(VendorExtension::from_caps(Caps::MSG))] {
            let mark = own.and_then(|own| question.vendor_extension(own));
            let (private, there) = question.accept(8, 4, mark);
            let reply = question
                .on_reply(&control_message(CmKind::Accept, &private).with_vendor_extension(mark));
            let here = match there {
                Negotiated::Native { peer_caps: takes } => Negotiated::Native { peer_caps: takes },
                Negotiated::Rxm {
                    peer_caps: takes,
                    local_connection: ours,
                    remote_connection: theirs,
                } => {
                    assert_eq!(
                        takes.is_same_implementation(),
                        own.is_some(),
                        "who marks what it says is kin"
                    );
                    Negotiated::Rxm {
                        peer_caps: takes,
                        local_connection: theirs,
                        remote_connection: ours,
                    }
                }
            };
            assert_eq!(reply, Ok(ConnectReply::Accepted(here, Some(8))));
        }
        let reply = question.on_reply(&control_message(CmKind::Reject, &question.reject()));
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
fn reply_can_ask_for_the_other_protocol() {
    let native = ConnectRequest::new(WireProtocol::Native, 9, 7, 3);
    let rxm = ConnectRequest::new(WireProtocol::Rxm, 9, 7, 3);
    let hello = RdmCmData::new(9, 8).encode();
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
            hello.to_vec(),
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
            hello.to_vec(),
            Ok(ConnectReply::RetryWith(WireProtocol::Native)),
        ),
        (
            rxm,
            CmKind::Accept,
            vec![],
            Err(ProtocolViolation(
                "an acceptance of another kind of endpoint",
            )),
        ),
        (
            rxm,
            CmKind::Request,
            vec![],
            Err(ProtocolViolation("a question instead of an answer")),
        ),
    ];
    for (question, kind, private, reply) in cases {
        assert_eq!(
            question.on_reply(&control_message(kind, &private)),
            reply,
            "{question:?}, {kind:?}, {private:?}"
        );
    }
}

/// Both ask at once, each in its dialect: the question in RXM stays, whoever has the greater
/// address.
#[test]
fn simultaneous_connects_prefer_rxm() {
    let addresses = [("10.0.0.1:5", "10.0.0.2:5"), ("10.0.0.2:5", "10.0.0.1:5")];
    for (a, b) in addresses {
        let (a, b) = (a.parse().unwrap(), b.parse().unwrap());
        let of = |dialect, asked| {
            resolve_simultaneous_connect(
                a,
                b,
                &ConnectRequest::new(dialect, 1, 1, 1),
                ExistingConnection::Connecting(asked),
            )
        };
        assert_eq!(
            of(WireProtocol::Rxm, WireProtocol::Native),
            Resolution::Replace
        );
        assert_eq!(
            of(WireProtocol::Native, WireProtocol::Rxm),
            Resolution::Reject
        );
        assert_eq!(
            of(WireProtocol::Rxm, WireProtocol::Rxm),
            of(WireProtocol::Native, WireProtocol::Native)
        );
    }
}
