//! Peers that speak RXM (`Protocol::Rxm`), and peers that speak the native protocol.

use std::net::Ipv4Addr;
use std::time::Duration;

use fabric_async::{Address, DownReason, Endpoint, Error, EventKind, EventQueue, Protocol, Scheme};
use fabric_core::tcp::rxm::{RxmAccept, RxmConnect, RxmReject};
use fabric_core::tcp::{CmKind, CmMessage, ConnectRequest, WireProtocol};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{
    assert_still_works, bind_with_events, next_down_reason, next_rejection, recv_until_gone,
};
use crate::domain_mode::DomainMode;
use crate::health::kill_after;
use crate::run;
use crate::test_peer::TestPeer;

const LONG_LEN: usize = 3_000_000;

async fn bind_rxm() -> Endpoint {
    Endpoint::options()
        .protocol(Protocol::Rxm)
        .bind("tcp://")
        .await
        .unwrap()
}

/// Reads a connection-management message.
async fn recv_control(socket: &mut TcpStream) -> CmMessage {
    let mut bytes = Vec::new();
    loop {
        if let Some((control, _)) = CmMessage::decode(&bytes).unwrap() {
            return control;
        }
        bytes.push(socket.read_u8().await.unwrap());
    }
}

async fn send_control(socket: &mut TcpStream, kind: CmKind, private: &[u8]) {
    socket
        .write_all(&CmMessage::new(kind, private).unwrap().encode())
        .await
        .unwrap();
}

/// Encodes a packet in its frame from arbitrary values.
pub(super) fn encode_packet(connection: u64, kind: u8, len: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![3, 0, 0, 0, 0, 0, 16, 0];
    bytes.extend((16 + 64 + body.len() as u64).to_le_bytes());
    let prefix = bytes.len();
    bytes.resize(prefix + 64, 0);
    (bytes[prefix], bytes[prefix + 1], bytes[prefix + 32]) = (4, kind, 2);
    bytes[prefix + 8..prefix + 16].copy_from_slice(&connection.to_ne_bytes());
    bytes[prefix + 40..prefix + 48].copy_from_slice(&len.to_ne_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// Connects with the RXM protocol, and returns the connection number that packets must carry.
pub(super) async fn connect_accepted(ep: &Endpoint) -> (TcpStream, u64) {
    let mut socket = TcpStream::connect(ep.name().socket_addr().unwrap())
        .await
        .unwrap();
    let request = RxmConnect {
        port: 9,
        instance: 7,
        connection: 3,
    };
    send_control(&mut socket, CmKind::Request, &request.encode()).await;
    let response = recv_control(&mut socket).await;
    assert_eq!(response.kind, CmKind::Accept);
    let RxmAccept { connection, .. } = RxmAccept::decode(response.private_data()).unwrap();
    (socket, u64::from(connection))
}

#[test]
fn native_and_rxm_peers_share_an_endpoint() {
    for mode in DomainMode::ALL {
        run(async {
            let server = mode.options().bind("tcp://").await.unwrap();
            let native = Endpoint::bind("tcp://").await.unwrap();
            let rxm = mode.options().protocol(Protocol::Rxm);
            let rxm = rxm.bind("tcp://").await.unwrap();
            for (number, client) in [&native, &rxm, &native, &rxm].into_iter().enumerate() {
                let peer = client.add_peer(server.name()).await.unwrap();
                for len in [0, 100, 16 << 10, (16 << 10) + 1, LONG_LEN] {
                    let message = vec![number as u8; len];
                    let (sent, got) = tokio::join!(
                        client.send(peer, message.clone()).tag(5),
                        server.recv().tag(5)
                    );
                    sent.unwrap();
                    let got = got.unwrap();
                    assert!(got[..] == message);
                    let back = server.send(got.source().unwrap(), message.clone()).data(9);
                    let (sent, got) = tokio::join!(back, client.recv());
                    sent.unwrap();
                    let got = got.unwrap();
                    assert!(got[..] == message && got.transfer.data == Some(9));
                }
            }
            assert_eq!(server.stats().peers, 2);
        });
    }
}

/// Both endpoints connect at the same time, over one protocol or over two: one connection remains,
/// and no message is lost.
#[test]
fn simultaneous_rxm_connects_leave_one_connection() {
    for is_mixed in [false, true] {
        run(async {
            for round in 0..50 {
                let (a, b) = (
                    bind_rxm().await,
                    if is_mixed {
                        bind_with_events().await.0
                    } else {
                        bind_rxm().await
                    },
                );
                let (a, b) = if round % 2 == 0 { (a, b) } else { (b, a) };
                let to_b = a.address_vector().insert(b.name()).unwrap();
                let to_a = b.address_vector().insert(a.name()).unwrap();
                let message = |number: u8| vec![number; 1 + round * 1000];
                let ab: Vec<_> = (0..5)
                    .map(|number| a.send(to_b, message(number)).start().unwrap())
                    .collect();
                let ba: Vec<_> = (0..5)
                    .map(|number| b.send(to_a, message(number)).start().unwrap())
                    .collect();
                for number in 0..5 {
                    for ep in [&a, &b] {
                        assert!(
                            ep.recv().await.unwrap()[..] == message(number),
                            "round {round}"
                        );
                    }
                }
                for sent in ab.into_iter().chain(ba) {
                    sent.await.unwrap();
                }
                assert_eq!((a.stats().peers, b.stats().peers), (1, 1), "round {round}");
            }
        });
    }
}

/// RXM senders are killed while they send long messages and one is sent to them.
#[test]
fn killed_rxm_peers_are_reported_and_sends_to_them_return_buffers() {
    run(async {
        let (ep, mut events) = bind_with_events().await;
        for kill in 0..20u64 {
            let victim = TestPeer::start("tcp send_forever rxm", &ep.name().to_string());
            let source = ep.recv().tag(1).await.unwrap().source().unwrap();
            // The peer posts no receive, and buffers the message only up to its budget.
            let offered = ep.send(source, vec![9; 30 << 20]).start().unwrap();
            let killer = kill_after(victim, Duration::from_micros(kill * 300));
            recv_until_gone(&ep, source).await;
            let failed = offered.await.unwrap_err();
            assert!(
                failed.error.is_peer_unavailable() && failed.buf.len() == 30 << 20,
                "{}",
                failed.error
            );
            killer.join().unwrap();
            next_down_reason(&mut events).await;
        }
        assert_still_works(&ep).await;
    });
}

/// Waits for the end of the connection with this peer. Other connections may come and go, because a
/// port may be reused while a peer of its former endpoint still connects to it.
async fn wait_peer_down(events: &mut EventQueue, name: &Address) {
    loop {
        if let EventKind::PeerDown { peer, .. } = events.read().await.kind
            && peer == *name
        {
            return;
        }
    }
}

/// A peer that rejects a native connection request gets an RXM request, and no native request
/// later.
#[test]
fn rxm_only_peer_is_detected_once() {
    run(async {
        let (ep, mut events) = bind_with_events().await;
        // An address that no other test connects to.
        let [.., high, low] = std::process::id().to_be_bytes();
        let listener = TcpListener::bind((Ipv4Addr::new(127, high, low, 4), 0))
            .await
            .unwrap();
        let name = Address::from_socket_addr(Scheme::Tcp, listener.local_addr().unwrap()).unwrap();
        let peer = ep.address_vector().insert(name.clone()).unwrap();
        let mut requested = Vec::new();
        for round in 0..2 {
            let accepting = async {
                loop {
                    let (mut socket, _) = listener.accept().await.unwrap();
                    let request_data =
                        ConnectRequest::decode(recv_control(&mut socket).await.private_data())
                            .unwrap();
                    requested.push(request_data.protocol());
                    let ConnectRequest::Rxm(request) = request_data else {
                        send_control(&mut socket, CmKind::Reject, &RxmReject::Refused.encode())
                            .await;
                        continue;
                    };
                    let accepted = RxmAccept {
                        instance: 5,
                        connection: 77,
                    }
                    .encode();
                    send_control(&mut socket, CmKind::Accept, &accepted).await;
                    let mut packet = [0; 16 + 64 + 5];
                    socket.read_exact(&mut packet).await.unwrap();
                    assert_eq!(packet[16 + 8..16 + 16], 77u64.to_ne_bytes());
                    assert_eq!(
                        (request.port, &packet[80..]),
                        (ep.name().socket_addr().unwrap().port(), &b"hello"[..])
                    );
                    return Ok(());
                }
            };
            // try_join returns when the send fails; the accept would wait forever.
            let sent = tokio::try_join!(ep.send(peer, "hello"), accepting);
            sent.unwrap_or_else(|failed| panic!("round {round}: {}", failed.error));
            wait_peer_down(&mut events, &name).await;
        }
        assert_eq!(
            requested,
            [WireProtocol::Native, WireProtocol::Rxm, WireProtocol::Rxm]
        );
        assert_still_works(&ep).await;
    });
}

async fn next_violation(events: &mut EventQueue) -> &'static str {
    loop {
        if let EventKind::PeerDown {
            reason: DownReason::Protocol(what),
            ..
        } = events.read().await.kind
        {
            return what;
        }
    }
}

#[test]
fn malformed_rxm_packets_end_only_that_connection() {
    run(async {
        let (ep, mut events) = bind_with_events().await;
        let mut rejected = TcpStream::connect(ep.name().socket_addr().unwrap())
            .await
            .unwrap();
        let mut request = RxmConnect {
            port: 9,
            instance: 7,
            connection: 3,
        }
        .encode();
        request[8] = 1;
        send_control(&mut rejected, CmKind::Request, &request).await;
        assert_eq!(
            recv_control(&mut rejected).await.private_data(),
            RxmReject::Refused.encode()
        );
        let error = next_rejection(&mut events).await;
        assert!(
            matches!(&error, Error::Protocol { what, .. } if what.contains("limit")),
            "{error}"
        );
        let (good, connection) = connect_accepted(&ep).await;
        drop(good);
        next_down_reason(&mut events).await;
        let cases = [
            (
                "wrong connection id",
                encode_packet(connection, 0, 3, b"abc"),
            ),
            ("length field", encode_packet(0, 0, 4, b"abc")),
            ("has not begun", {
                let mut bytes = encode_packet(0, 1, 9, b"abc");
                bytes[16 + 24] = 2;
                bytes
            }),
            ("unknown rendezvous message", encode_packet(0, 3, 0, b"")),
            ("remote ranges", encode_packet(0, 2, 3, &[0; 104])),
            (
                "unsolicited read response",
                vec![3, 3, 0, 0, 0, 0, 16, 0, 16, 0, 0, 0, 0, 0, 0, 0],
            ),
        ];
        for (why, mut bytes) in cases {
            let (mut socket, connection) = connect_accepted(&ep).await;
            if why != "wrong connection id" && bytes[1] == 0 {
                bytes[16 + 8..16 + 16].copy_from_slice(&connection.to_ne_bytes());
            }
            socket.write_all(&bytes).await.unwrap();
            let what = next_violation(&mut events).await;
            assert!(what.contains(why), "{what} for {why}");
            let _ = socket.read_to_end(&mut Vec::new()).await;
        }
        assert_still_works(&ep).await;
    });
}
