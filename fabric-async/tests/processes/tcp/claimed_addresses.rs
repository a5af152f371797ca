//! Connection requests that claim the address of another endpoint. Every process of a machine can
//! connect to an endpoint on loopback, and can write any port into its request.

use std::io::Write;
use std::time::Duration;

use fabric_async::{Access, Endpoint, EventKind, FiAddr, RemoteRegion};
use fabric_core::tcp::{CmKind, CmMessage, RdmCmData};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::hostile::{connect_accepted, encode_header, encode_request, read_until_closed};
use super::{assert_still_works, bind_with_events};
use crate::leak_check::wait_until;
use crate::run;
use crate::test_peer::TestPeer;

/// Requests a connection as the endpoint with this port and instance. Returns the socket, and
/// whether the request was accepted.
async fn claim(ep: &Endpoint, port: u16, instance: u32) -> (TcpStream, bool) {
    let mut socket = TcpStream::connect(ep.name().socket_addr().unwrap())
        .await
        .unwrap();
    socket
        .write_all(&encode_request(port, instance))
        .await
        .unwrap();
    let mut response = [0; 40];
    socket.read_exact(&mut response).await.unwrap();
    let (control, _) = CmMessage::decode(&response).unwrap().unwrap();
    (socket, control.kind == CmKind::Accept)
}

/// Opens a raw listener on a free port. Returns the listener, and its port.
pub(super) async fn listen_on_any_port() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Listens on any port, and inserts the address as that of a peer.
async fn insert_listener(ep: &Endpoint) -> (TcpListener, u16, FiAddr) {
    let (listener, port) = listen_on_any_port().await;
    let name = format!("tcp://127.0.0.1:{port}");
    let peer = ep.address_vector().insert(&name[..]).unwrap();
    (listener, port, peer)
}

/// Accepts a connection at a raw listener, and reads the connection request on it.
pub(super) async fn read_request(listener: &TcpListener) -> (TcpStream, RdmCmData) {
    let (mut socket, _) = listener.accept().await.unwrap();
    let mut request = [0; 40];
    socket.read_exact(&mut request).await.unwrap();
    let (control, _) = CmMessage::decode(&request).unwrap().unwrap();
    assert_eq!(control.kind, CmKind::Request);
    let request = RdmCmData::decode(control.private_data()).unwrap();
    (socket, request)
}

/// Accepts a connection request.
pub(super) async fn reply_accept(socket: &mut TcpStream, request: &RdmCmData, instance: u32) {
    let accept = CmMessage::new(CmKind::Accept, &request.acceptance(instance).encode()).unwrap();
    socket.write_all(&accept.encode()).await.unwrap();
}

/// Accepts a connection at a raw listener, and the connection request on it.
pub(super) async fn accept_request(listener: &TcpListener, instance: u32) -> TcpStream {
    let (mut socket, request) = read_request(listener).await;
    reply_accept(&mut socket, &request, instance).await;
    socket
}

/// The connection of a live peer stays, whatever instance a request claims.
#[test]
fn claimed_address_of_live_peer_does_not_get_its_messages() {
    run(async {
        let (ep, mut events) = bind_with_events().await;
        let _peer = TestPeer::start("tcp echo", &format!("tcp:// {}", ep.name()));
        let source = ep.recv().tag(3).await.unwrap().source().unwrap();
        let name = ep.address_vector().lookup(source).unwrap();
        let port = name.socket_addr().unwrap().port();
        let mut attackers = Vec::new();
        for round in 0..100u8 {
            let (attacker, is_accepted) = claim(&ep, port, 7 + u32::from(round)).await;
            assert!(!is_accepted, "round {round}");
            attackers.push(attacker);
            ep.send(source, vec![round; 100]).await.unwrap();
            assert_eq!(ep.recv().tag(4).await.unwrap()[..], [round; 100]);
        }
        for attacker in attackers {
            assert_eq!(read_until_closed(attacker).await, []);
        }
        assert_eq!(ep.stats().peers, 1);
        assert!(matches!(
            events.try_read().map(|event| event.kind),
            Some(EventKind::PeerConnected { .. })
        ));
        assert!(events.try_read().is_none(), "no connection has ended");
    });
}

/// An endpoint accepts requests of its own address only from itself.
#[test]
fn claimed_own_address_is_rejected() {
    run(async {
        let (ep, _events) = bind_with_events().await;
        let port = ep.name().socket_addr().unwrap().port();
        for instance in 1..=100 {
            let (_, is_accepted) = claim(&ep, port, instance).await;
            assert!(!is_accepted, "instance {instance}");
        }
        let own = ep.add_peer(ep.name()).await.unwrap();
        for round in 0..100u8 {
            ep.send(own, vec![round; 10]).await.unwrap();
            assert_eq!(ep.recv().await.unwrap()[..], [round; 10]);
            let (_, is_accepted) = claim(&ep, port, 1000 + u32::from(round)).await;
            assert!(!is_accepted, "round {round}");
        }
        assert_eq!(ep.stats().peers, 2, "the two ends of one connection");
        assert_still_works(&ep).await;
    });
}

/// A peer that has lost its connection, without the endpoint being told, is connected again: the
/// endpoint rejects the request, and connects to the claimed address.
#[test]
fn peer_that_lost_its_connection_is_called_back() {
    // The same endpoint of the peer, and a restarted one.
    for instance in [7, 8] {
        run(async {
            let (ep, _events) = bind_with_events().await;
            let (listener, port, peer) = insert_listener(&ep).await;
            let lost = connect_accepted(&ep, port).await;
            let (_, is_accepted) = claim(&ep, port, instance).await;
            assert!(!is_accepted);
            let mut called_back = accept_request(&listener, instance).await;
            assert_eq!(read_until_closed(lost).await, []);
            ep.send(peer, "again").await.unwrap();
            let mut message = [0; 16 + 5];
            called_back.read_exact(&mut message).await.unwrap();
            assert_eq!(message[16..], *b"again");
            let reply = [&encode_header(0, 0, 0, 16, 18)[..], b"ok"].concat();
            called_back.write_all(&reply).await.unwrap();
            let got = ep.recv().from(peer).await.unwrap();
            assert_eq!(got[..], *b"ok");
            assert_eq!(ep.stats().peers, 1);
            assert_still_works(&ep).await;
        });
    }
}

/// Both sides connect at the same time, and the peer accepts the request of the endpoint before the
/// peer's own request arrives. The endpoint rejects the late request and keeps the connection; it
/// connects to the peer only at the next request.
#[test]
fn simultaneous_request_does_not_end_the_connection() {
    run(async {
        let (ep, _events) = bind_with_events().await;
        let (listener, port, peer) = insert_listener(&ep).await;
        let send = ep.send(peer, "first").start().unwrap();
        let mut accepted = accept_request(&listener, 7).await;
        send.await.unwrap();
        let mut message = [0; 16 + 5];
        accepted.read_exact(&mut message).await.unwrap();
        let (_, is_accepted) = claim(&ep, port, 7).await;
        assert!(!is_accepted, "the endpoint has connected at the same time");
        ep.send(peer, "again").await.unwrap();
        accepted.read_exact(&mut message).await.unwrap();
        assert_eq!(message[16..], *b"again");
        let connect = tokio::time::timeout(Duration::from_millis(50), listener.accept());
        assert!(connect.await.is_err(), "the endpoint connects again");
        let (_, is_accepted) = claim(&ep, port, 7).await;
        assert!(!is_accepted, "the connection is established");
        let _called_back = accept_request(&listener, 7).await;
        assert_eq!(read_until_closed(accepted).await, []);
        assert_eq!(ep.stats().peers, 1);
        assert_still_works(&ep).await;
    });
}

/// A process that has claimed the address of an endpoint before that endpoint connected is replaced
/// by the process that listens at the address.
#[test]
fn listening_endpoint_replaces_an_earlier_claim_of_its_address() {
    run(async {
        let (ep, _events) = bind_with_events().await;
        for round in 0..3u8 {
            let peer = Endpoint::bind("tcp://").await.unwrap();
            let to_peer = ep.address_vector().insert(peer.name()).unwrap();
            let port = peer.name().socket_addr().unwrap().port();
            let (attacker, is_accepted) = claim(&ep, port, 7).await;
            assert!(is_accepted, "the peer has no connection");
            let to_ep = peer.add_peer(ep.name()).await.unwrap();
            let (sent, got) = tokio::join!(peer.send(to_ep, vec![round]), ep.recv());
            sent.unwrap();
            let got = got.unwrap();
            assert_eq!((&got[..], got.source()), (&[round][..], Ok(to_peer)));
            assert_eq!(read_until_closed(attacker).await, []);
            let (sent, got) = tokio::join!(ep.send(to_peer, vec![round; 9]), peer.recv());
            sent.unwrap();
            assert_eq!(got.unwrap()[..], [round; 9]);
        }
    });
}

/// A peer is restarted while the endpoint holds messages of its earlier connection. These
/// arrive, and so do those of the new connection.
#[test]
fn held_messages_of_a_replaced_connection_arrive() {
    const COUNT: usize = 700;
    const LEN: usize = 20_000;
    run(async {
        let (ep, _events) = bind_with_events().await;
        let (listener, port) = listen_on_any_port().await;
        let earlier = connect_accepted(&ep, port).await.into_std().unwrap();
        earlier.set_nonblocking(false).unwrap();
        let sender = std::thread::spawn(move || {
            let header = encode_header(1, 0, 0, 24, 24 + LEN as u64);
            for number in 0..COUNT {
                let message = [&header[..], &5u64.to_le_bytes(), &[number as u8; LEN]].concat();
                (&earlier).write_all(&message).unwrap();
            }
        });
        // The share of the peer is used up when no more messages are buffered.
        let (mut buffered, mut same) = (0, 0);
        while buffered < 200 || same < 200 {
            ep.domain().progress();
            tokio::time::sleep(Duration::from_millis(1)).await;
            let now = ep.stats().unexpected;
            same = if now == buffered { same + 1 } else { 0 };
            buffered = now;
        }
        assert!(buffered < COUNT);
        let (_, is_accepted) = claim(&ep, port, 8).await;
        assert!(!is_accepted);
        let mut restarted = accept_request(&listener, 8).await;
        let message = [
            &encode_header(1, 0, 0, 24, 26)[..],
            &6u64.to_le_bytes(),
            b"ok",
        ]
        .concat();
        restarted.write_all(&message).await.unwrap();
        for number in 0..COUNT {
            let got = ep.recv().tag(5).await.unwrap();
            assert_eq!(got[..], [number as u8; LEN], "{number}");
        }
        assert_eq!(ep.recv().tag(6).await.unwrap()[..], *b"ok");
        sender.join().unwrap();
        wait_until(&ep, |stats| stats.peers == 1).await;
        assert_eq!(ep.stats().discarded, 0);
        assert_still_works(&ep).await;
    });
}

/// A peer is restarted while bytes of its earlier connection are on the way. The messages arrive,
/// and the connection ends when nothing more has arrived for a second.
#[test]
fn messages_under_way_on_a_replaced_connection_arrive() {
    run(async {
        let (ep, _events) = bind_with_events().await;
        let (listener, port) = listen_on_any_port().await;
        let mut earlier = connect_accepted(&ep, port).await;
        let (_, is_accepted) = claim(&ep, port, 8).await;
        assert!(!is_accepted);
        let _restarted = accept_request(&listener, 8).await;
        wait_until(&ep, |stats| stats.peers == 2).await;
        for number in 0..20u8 {
            let message = [&encode_header(0, 0, 0, 16, 17)[..], &[number]].concat();
            earlier.write_all(&message).await.unwrap();
            assert_eq!(ep.recv().await.unwrap()[..], [number]);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(read_until_closed(earlier).await, []);
        assert_eq!(ep.stats().peers, 1);
        assert_still_works(&ep).await;
    });
}

/// A peer is restarted twice, and a message of the first connection has arrived, but was not read
/// when the second restart replaces another connection. The message arrives.
#[test]
fn unread_message_of_an_earlier_replaced_connection_arrives() {
    run(async {
        let (ep, _events) = bind_with_events().await;
        let (listener, port) = listen_on_any_port().await;
        let first = connect_accepted(&ep, port).await;
        let (_, is_accepted) = claim(&ep, port, 8).await;
        assert!(!is_accepted);
        let _second = accept_request(&listener, 8).await;
        wait_until(&ep, |stats| stats.peers == 2).await;
        // A claim begins a verification at most every 100 ms.
        tokio::time::sleep(Duration::from_millis(150)).await;
        let (_, is_accepted) = claim(&ep, port, 9).await;
        assert!(!is_accepted);
        let (verifying, request) = read_request(&listener).await;
        let accept = CmMessage::new(CmKind::Accept, &request.acceptance(9).encode()).unwrap();
        let message = [&encode_header(0, 0, 0, 16, 17)[..], b"m"].concat();
        // The endpoint makes no pass between the two.
        let (mut first, mut verifying) = (first.into_std().unwrap(), verifying.into_std().unwrap());
        first.write_all(&message).unwrap();
        verifying.write_all(&accept.encode()).unwrap();
        let got = tokio::time::timeout(Duration::from_secs(5), ep.recv()).await;
        assert_eq!(got.expect("the message is lost").unwrap()[..], *b"m");
        assert_still_works(&ep).await;
    });
}

/// A peer is restarted while an operation waits for its response and a message of its earlier
/// connection waits for a receive. The operation fails.
#[test]
fn request_on_a_replaced_connection_that_holds_a_message_fails() {
    run(async {
        let (ep, _events) = bind_with_events().await;
        let (listener, port, peer) = insert_listener(&ep).await;
        let mut earlier = connect_accepted(&ep, port).await;
        let remote = RemoteRegion::new(1, 8, Access::REMOTE_READ);
        let read = ep.read(peer, remote.slice(..)).start().unwrap();
        earlier.read_exact(&mut [0; 40]).await.unwrap();
        // Longer than the share of a peer.
        let header = encode_header(1, 0, 0, 24, 24 + (1 << 30));
        let held = [&header[..], &5u64.to_le_bytes(), &[0; 5000]].concat();
        earlier.write_all(&held).await.unwrap();
        drop(earlier);
        let (_, is_accepted) = claim(&ep, port, 8).await;
        if !is_accepted {
            accept_request(&listener, 8).await;
        }
        let failed = tokio::time::timeout(Duration::from_secs(5), read).await;
        let failed = failed.expect("the read does not end").unwrap_err();
        assert!(failed.error.is_peer_unavailable(), "{}", failed.error);
        assert_still_works(&ep).await;
    });
}

/// The process that listens at a claimed address may have the connection, and verifies it when the
/// endpoint's connect arrives. Its request makes the endpoint connect again only after the time
/// that the reply has taken, so two endpoints do not verify each other forever.
#[test]
fn reply_to_a_verification_delays_the_next_one() {
    run(async {
        let (ep, _events) = bind_with_events().await;
        let (listener, port) = listen_on_any_port().await;
        let _connection = connect_accepted(&ep, port).await;
        assert!(!claim(&ep, port, 8).await.1);
        let (mut verifying, request) = read_request(&listener).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let reject = CmMessage::new(CmKind::Reject, &request.encode()).unwrap();
        verifying.write_all(&reject.encode()).await.unwrap();
        assert_eq!(read_until_closed(verifying).await, []);
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(!claim(&ep, port, 7).await.1);
        assert_eq!(ep.stats().peers, 1);
        assert!(rustix::net::accept(&listener).is_err());
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!claim(&ep, port, 7).await.1);
        read_request(&listener).await;
        assert_still_works(&ep).await;
    });
}

/// Four connects of an endpoint verify at a time for claims from this machine. A further claim
/// makes the endpoint connect when one of these has ended.
#[test]
fn verifying_connects_are_limited() {
    run(async {
        let (ep, _events) = bind_with_events().await;
        let mut peers = Vec::new();
        for _ in 0..6 {
            let (listener, port) = listen_on_any_port().await;
            peers.push((connect_accepted(&ep, port).await, listener, port));
        }
        let mut verifying = Vec::new();
        for (_, listener, port) in &peers[..4] {
            assert!(!claim(&ep, *port, 8).await.1);
            verifying.push(read_request(listener).await);
        }
        for (_, listener, port) in &peers[4..] {
            assert!(!claim(&ep, *port, 8).await.1);
            // The endpoint has handled the claim when it returns its statistics.
            assert_eq!(ep.stats().peers, 6);
            assert!(rustix::net::accept(listener).is_err());
        }
        // The end of one makes room for one.
        drop(verifying.pop());
        let (_, listener, port) = &peers[4];
        let accepted = loop {
            assert!(!claim(&ep, *port, 8).await.1);
            assert_eq!(ep.stats().peers, 6);
            if let Ok(accepted) = rustix::net::accept(listener) {
                break accepted;
            }
        };
        let (_, listener, port) = &peers[5];
        assert!(!claim(&ep, *port, 8).await.1);
        assert_eq!(ep.stats().peers, 6);
        assert!(rustix::net::accept(listener).is_err());
        drop(accepted);
        assert_still_works(&ep).await;
    });
}
