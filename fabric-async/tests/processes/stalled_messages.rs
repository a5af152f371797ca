//! Peers that begin a message and send no more, while an honest peer goes on being served.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use fabric_async::{
    Address, DownReason, Endpoint, EventKind, EventQueue, FiAddr, Operation, Progress, Protocol,
};
use futures_util::FutureExt;
use rustix::fs::SealFlags;

use crate::budget_attacks::client_of;
use crate::hostile::{connect_raw, encode_hello, sealed_memfd, send_with_fds};
use crate::leak_check::{BeforeAttack, run_in_own_process, wait_until};
use crate::reposted_receive::write_record;
use crate::run;
use crate::tcp::hostile::{encode_header, encode_request};
use crate::test_peer::{TestPeer, wait_for_parent};

/// 32 checks of arriving messages, two until a message is stalled.
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
    // Less than 4 KiB would not take a receive.
    let header = encode_header(0, 0, 0, 16, 16 + len);
    let beginning = [&header[..], &[7; 5000]].concat();
    socket.write_all(&beginning).expect("send");
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

fn post_receive(ep: &Endpoint) -> Operation<Vec<u8>> {
    ep.recv_into(vec![0; 100]).start().unwrap()
}

/// Serves an honest client with this receive.
async fn serve_honest_client(ep: &Endpoint, receive: Operation<Vec<u8>>) {
    let mut honest = TestPeer::start("honest_client", &ep.name().to_string());
    let request = receive.await.unwrap();
    assert_eq!(request[..], *b"request");
    let client = request.source().unwrap();
    ep.send(client, "reply").await.unwrap();
    honest.0.wait().unwrap();
}

/// Waits until a peer has connected.
async fn connected_peer(events: &mut EventQueue) -> Address {
    loop {
        if let EventKind::PeerConnected { peer, .. } = events.read().await.kind {
            return peer;
        }
    }
}

/// Runs an attack on an endpoint of this address, in a process of its own. The attack holds the
/// only posted receive, and an honest client is served. Afterwards the process has what it had
/// before.
fn run_attack<A>(test: &str, addr: &str, attack: impl AsyncFn(&Endpoint) -> A) {
    run_in_own_process(test, || {
        run(async {
            let options = Endpoint::options().progress_timeout(Some(TIMEOUT));
            let ep = options.bind(addr).await.unwrap();
            let mut events = ep.take_events().unwrap();
            serve_honest_client(&ep, post_receive(&ep)).await;
            connected_peer(&mut events).await;
            let before = BeforeAttack::of(&ep).await;
            let receive = post_receive(&ep);
            let attacker = attack(&ep).await;
            connected_peer(&mut events).await;
            serve_honest_client(&ep, receive).await;
            stalled_peer(&mut events).await;
            drop(attacker);
            before.assert_restored(&ep, 1 << 20).await;
            let stats = ep.stats();
            assert_eq!((stats.unexpected, stats.unexpected_bytes), (0, 0));
        });
    });
}

/// The attacker holds the only posted receive; the message of the honest client takes it. Of the
/// long message nothing is buffered, so its connection ends first.
#[test]
fn stalled_message_holds_no_receive() {
    run_attack(
        "stalled_messages::stalled_message_holds_no_receive",
        "tcp://127.0.0.1:0",
        async |ep| begin_message_to(ep, 1 << 20),
    );
}

#[test]
fn stalled_long_message_holds_no_receive() {
    run_attack(
        "stalled_messages::stalled_long_message_holds_no_receive",
        "tcp://127.0.0.1:0",
        async |ep| begin_message_to(ep, 1 << 39),
    );
}

/// A receive takes a whole message at once while one that has stopped waits, without any timeout.
#[test]
fn stopped_message_takes_no_receive_from_a_whole_one() {
    run(async {
        let options = Endpoint::options().progress_timeout(None);
        let ep = options.bind("tcp://127.0.0.1:0").await.unwrap();
        let _attacker = begin_message_to(&ep, 1 << 20);
        wait_until(&ep, |stats| stats.unexpected == 1).await;
        let mut honest = TestPeer::start("honest_client", &ep.name().to_string());
        wait_until(&ep, |stats| stats.unexpected == 2).await;
        let received = post_receive(&ep).now_or_never();
        let request = received.expect("a whole message waits").unwrap();
        assert_eq!(request[..], *b"request");
        ep.send(request.source().unwrap(), "reply").await.unwrap();
        honest.0.wait().unwrap();
    });
}

/// Starts a process that begins a message of this length.
fn begin_message_to(ep: &Endpoint, len: u64) -> TestPeer {
    let addr = ep.name().socket_addr().unwrap();
    TestPeer::start("begin_message", &format!("{addr} {len}"))
}

/// Over shared memory, the attacker writes the first fragment of a message, and no further one.
#[test]
fn stalled_fragment_holds_no_receive() {
    run_attack(
        "stalled_messages::stalled_fragment_holds_no_receive",
        "shm://",
        async |ep| {
            let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
            let ring = sealed_memfd(4096 + 64 * 64, all);
            write_record(&ring, 0, 2 | 24 << 16 | 1 << 40, 100);
            let socket = connect_raw(ep).await;
            send_with_fds(&socket, &encode_hello("hostile", 1, 64), &[&ring]);
            (socket, ring)
        },
    );
}

/// A peer is disconnected while its message is arriving in a receive. The receive takes the message
/// of another peer.
#[test]
fn disconnect_ends_a_message_that_has_begun() {
    run(async {
        let ep = Endpoint::bind("tcp://127.0.0.1:0").await.unwrap();
        let mut events = ep.take_events().unwrap();
        let receive = post_receive(&ep);
        let _attacker = begin_message_to(&ep, 1 << 20);
        let attacker = connected_peer(&mut events).await;
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
        serve_honest_client(&ep, receive).await;
    });
}

/// The tag of messages that their receiver does not take for longer than the progress timeout.
const SMALL_TAG: u64 = 1;
const LONG_TAG: u64 = 2;
/// The length of a message that RXM sends as a packet, and that of a rendezvous message.
const SMALL_LEN: usize = 16_000;
const LONG_LEN: usize = 8 << 20;
const SHORT_TIMEOUT: Duration = Duration::from_millis(400);

/// Returns two endpoints that use RXM, each with the handle of the other one. The first one checks
/// arriving messages; the two are connected.
async fn connected_rxm_pair() -> ((Endpoint, FiAddr), (Endpoint, FiAddr)) {
    let options = || {
        let options = Endpoint::options().protocol(Protocol::Rxm);
        options.progress(Progress::Auto)
    };
    let checking = options().progress_timeout(Some(SHORT_TIMEOUT));
    let (a, b) = (
        checking.bind("tcp://127.0.0.1:0").await.unwrap(),
        options().bind("tcp://127.0.0.1:0").await.unwrap(),
    );
    let (to_b, to_a) = (
        a.add_peer(b.name()).await.unwrap(),
        b.add_peer(a.name()).await.unwrap(),
    );
    b.send(to_a, "first").await.unwrap();
    a.recv().await.unwrap();
    ((a, to_b), (b, to_a))
}

/// Sends small messages that the peer does not take for a while.
async fn send_small(ep: &Endpoint, peer: FiAddr, count: usize) {
    for number in 0..count {
        let message = vec![number as u8; SMALL_LEN];
        ep.send(peer, message).tag(SMALL_TAG).await.unwrap();
    }
}

async fn recv_small(ep: &Endpoint, count: usize) {
    for number in 0..count {
        let message = ep.recv().tag(SMALL_TAG).await.unwrap();
        assert_eq!(message[..], [number as u8; SMALL_LEN], "{number}");
    }
}

/// A program does not receive for longer than the progress timeout, so its endpoint reads nothing
/// of a peer whose long message has begun. Afterwards everything arrives.
#[test]
fn message_that_its_receiver_holds_back_has_not_stalled() {
    run(async {
        let ((a, _), (b, to_a)) = connected_rxm_pair().await;
        let long = a.recv().tag(LONG_TAG).start().unwrap();
        let sending = async {
            // Most of the share of one peer.
            send_small(&b, to_a, 380).await;
            let message = vec![7; LONG_LEN];
            let sent = b.send(to_a, message).tag(LONG_TAG).start().unwrap();
            send_small(&b, to_a, 250).await;
            sent.await.unwrap();
        };
        let receiving = async {
            wait_until(&a, |stats| stats.unexpected >= 380).await;
            tokio::time::sleep(SHORT_TIMEOUT * 4).await;
            recv_small(&a, 380).await;
            recv_small(&a, 250).await;
            assert!(long.await.unwrap()[..] == *vec![7; LONG_LEN]);
        };
        tokio::join!(sending, receiving);
        assert_eq!((a.stats().peers, b.stats().peers), (1, 1));
    });
}

/// The read requests for a long message wait behind messages that the peer does not take for longer
/// than the progress timeout. Afterwards everything arrives.
#[test]
fn message_whose_read_requests_wait_has_not_stalled() {
    const COUNT: usize = 2000;
    run(async {
        let ((a, to_b), (b, to_a)) = connected_rxm_pair().await;
        let long = a.recv().tag(LONG_TAG).start().unwrap();
        let flood = send_small(&a, to_b, COUNT);
        let exchange = async {
            wait_until(&b, |stats| stats.unexpected >= 380).await;
            let message = vec![7; LONG_LEN];
            let sent = b.send(to_a, message).tag(LONG_TAG).start().unwrap();
            tokio::time::sleep(SHORT_TIMEOUT * 4).await;
            recv_small(&b, COUNT).await;
            sent.await.unwrap();
            assert!(long.await.unwrap()[..] == *vec![7; LONG_LEN]);
        };
        tokio::join!(flood, exchange);
        assert_eq!((a.stats().peers, b.stats().peers), (1, 1));
    });
}
