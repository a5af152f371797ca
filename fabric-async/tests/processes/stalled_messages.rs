//! Peers that begin a message and send no more, while an honest peer goes on being served.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use fabric_async::{DownReason, Endpoint, EventKind, EventQueue};
use rustix::fs::SealFlags;

use crate::budget_attacks::client_of;
use crate::hostile::{connect_raw, encode_hello, sealed_memfd, send_with_fds};
use crate::reposted_receive::write_record;
use crate::run;
use crate::tcp::hostile::{encode_header, encode_request};
use crate::test_peer::{TestPeer, wait_for_parent};

/// Sixteen checks of arriving messages, two until a message is stalled.
const TIMEOUT: Duration = Duration::from_millis(1600);

/// Begins a message of the length that follows the name, and sends no more.
pub(crate) fn begin_message(name_and_len: &str) {
    let (addr, len) = name_and_len
        .split_once(' ')
        .expect("an address and a length");
    let len: u64 = len.parse().expect("a length");
    let mut socket = TcpStream::connect(addr).expect("connect");
    socket.write_all(&encode_request(9, 7)).expect("send");
    socket.read_exact(&mut [0; 40]).expect("the response");
    let header = encode_header(0, 0, 0, 16, 16 + len);
    socket.write_all(&header).expect("send");
    socket.write_all(&[7; 24]).expect("send");
    wait_for_parent();
}

/// Sends a request, and gets a reply.
pub(crate) async fn honest_client(name: &str) {
    let (ep, peer) = client_of(name).await;
    ep.send(peer, "request").await.expect("send");
    ep.recv().await.expect("recv");
}

/// Waits for the end of the connection of a peer that has stalled.
async fn stalled_peer(events: &mut EventQueue) {
    loop {
        if let EventKind::PeerDown { reason, .. } = events.read().await.kind
            && reason == DownReason::Stalled
        {
            return;
        }
    }
}

/// The attacker holds the only posted receive; the message of the honest client takes it. Of the
/// long message nothing is buffered, so its connection ends first.
#[test]
fn stalled_message_holds_no_receive() {
    for len in [1u64 << 20, 1 << 39] {
        run(async {
            let options = Endpoint::options().progress_timeout(Some(TIMEOUT));
            let ep = options.bind("tcp://127.0.0.1:0").await.unwrap();
            let mut events = ep.take_events().unwrap();
            let name = ep.name().to_string();
            let addr = ep.name().socket_addr().unwrap();
            let receive = ep.recv_into(vec![0; 100]).start().unwrap();
            let mut attacker = TestPeer::start("begin_message", &format!("{addr} {len}"));
            loop {
                if let EventKind::PeerConnected { .. } = events.read().await.kind {
                    break;
                }
            }
            let mut honest = TestPeer::start("honest_client", &name);
            let request = receive.await.unwrap();
            assert_eq!(request[..], *b"request");
            let client = request.source().unwrap();
            ep.send(client, "reply").await.unwrap();
            stalled_peer(&mut events).await;
            assert!(attacker.0.try_wait().unwrap().is_none(), "alive");
            attacker.signal_start();
            honest.0.wait().unwrap();
            let stats = ep.stats();
            assert_eq!((stats.unexpected, stats.unexpected_bytes), (0, 0));
        });
    }
}

/// Over shared memory, the attacker writes the first fragment of a message, and no further one.
#[test]
fn stalled_fragment_holds_no_receive() {
    run(async {
        let options = Endpoint::options().progress_timeout(Some(TIMEOUT));
        let ep = options.bind("shm://").await.unwrap();
        let mut events = ep.take_events().unwrap();
        let receive = ep.recv_into(vec![0; 100]).start().unwrap();
        let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let ring = sealed_memfd(4096 + 64 * 64, all);
        write_record(&ring, 0, 2 | 24 << 16 | 1 << 40, 100);
        let socket = connect_raw(&ep).await;
        send_with_fds(&socket, &encode_hello("hostile", 1, 64), &[&ring]);
        loop {
            if let EventKind::PeerConnected { .. } = events.read().await.kind {
                break;
            }
        }
        let _honest = TestPeer::start("honest_client", &ep.name().to_string());
        let request = receive.await.unwrap();
        assert_eq!(request[..], *b"request");
        ep.send(request.source().unwrap(), "reply").await.unwrap();
        stalled_peer(&mut events).await;
        let stats = ep.stats();
        assert_eq!((stats.unexpected, stats.unexpected_bytes), (0, 0));
    });
}

/// A peer is disconnected while its message is arriving in a receive. The receive takes the message
/// of another peer.
#[test]
fn disconnect_ends_a_message_that_has_begun() {
    run(async {
        let ep = Endpoint::bind("tcp://127.0.0.1:0").await.unwrap();
        let mut events = ep.take_events().unwrap();
        let addr = ep.name().socket_addr().unwrap();
        let receive = ep.recv().start().unwrap();
        let _attacker = TestPeer::start("begin_message", &format!("{addr} {}", 1 << 20));
        let attacker = loop {
            if let EventKind::PeerConnected { peer, .. } = events.read().await.kind {
                break peer;
            }
        };
        for _ in 0..100 {
            ep.domain().progress();
            tokio::task::yield_now().await;
        }
        assert!(ep.disconnect(&attacker).unwrap());
        assert!(!ep.disconnect(&attacker).unwrap());
        let ended = loop {
            if let EventKind::PeerDown { peer, reason, .. } = events.read().await.kind {
                break (peer, reason);
            }
        };
        assert_eq!(ended, (attacker, DownReason::Disconnected));
        let _honest = TestPeer::start("honest_client", &ep.name().to_string());
        let request = receive.await.unwrap();
        assert_eq!(request[..], *b"request");
        ep.send(request.source().unwrap(), "reply").await.unwrap();
    });
}
