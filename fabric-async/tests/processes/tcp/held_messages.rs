//! Peers that end while their message is held: the budget for unexpected messages has no room.

use std::time::Duration;

use fabric_async::{Access, Done, DownReason, Endpoint, Failed, FiAddr, RemoteRegion};
use futures_util::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::hostile::{connect_accepted, encode_header};
use super::{assert_still_works, bind_with_events, next_down_reason};
use crate::leak_check::wait_until;
use crate::run;
use crate::test_peer::TestPeer;

/// So long that few messages fill the budget, and that the socket has room for one of them.
const LEN: usize = 64 << 10;
/// Length of a frame header without tag and data, and of an acknowledgement.
const HEADER_LEN: usize = 16;

/// Returns the bytes of the message with this number.
fn message(number: u32) -> Vec<u8> {
    number.to_le_bytes().repeat(LEN / 4)
}

/// Waits until the message with this number is buffered or held. Returns whether it is held.
async fn wait_for_message(ep: &Endpoint, number: u32) -> bool {
    let is_here = |held, unexpected| held > 0 || unexpected > number as usize;
    wait_until(ep, |stats| {
        is_here(stats.held_connections, stats.unexpected)
    })
    .await;
    ep.stats().held_connections > 0
}

/// Receives messages with the numbers below `count`, in order.
async fn receive_messages(ep: &Endpoint, count: u32) {
    for number in 0..count {
        assert!(ep.recv().await.unwrap()[..] == message(number));
    }
}

/// Sends one message after the other, each on request.
pub(crate) async fn send_on_request(name: &str) {
    let ep = Endpoint::bind("tcp://").await.expect("bind");
    let peer = ep.add_peer(name).await.expect("add_peer");
    ep.send(peer, "ready").await.expect("send");
    for number in 0.. {
        ep.recv().from(peer).await.expect("a request");
        ep.send(peer, message(number)).await.expect("send");
    }
}

/// Sends a message from a peer that is a socket.
async fn send_message(socket: &mut TcpStream, bytes: &[u8]) {
    let header = encode_header(0, 0, 0, 16, (HEADER_LEN + bytes.len()) as u64);
    let message = [&header[..], bytes].concat();
    socket.write_all(&message).await.unwrap();
}

/// Connects a peer that is a socket and whose last message is held. Returns its socket, its address
/// handle and the number of its messages.
async fn connect_and_hold(ep: &Endpoint) -> (TcpStream, FiAddr, u32) {
    let mut socket = connect_accepted(ep, 9).await;
    send_message(&mut socket, b"ready").await;
    let peer = ep.recv().await.unwrap().source().unwrap();
    let mut count = 0;
    loop {
        send_message(&mut socket, &message(count)).await;
        count += 1;
        if wait_for_message(ep, count - 1).await {
            return (socket, peer, count);
        }
    }
}

/// Posts a send that waits for the acknowledgement of the peer, which reads the message.
async fn send_unacknowledged(
    ep: &Endpoint,
    peer: FiAddr,
    socket: &mut TcpStream,
) -> impl Future<Output = Result<Done<&'static str>, Failed<&'static str>>> + Unpin + use<> {
    let sent = ep
        .send(peer, "question")
        .delivery_complete()
        .start()
        .unwrap();
    socket.read_exact(&mut [0; HEADER_LEN + 8]).await.unwrap();
    sent
}

#[test]
fn requests_to_killed_peer_fail_while_its_message_is_held() {
    run(async {
        let (ep, mut events) = bind_with_events().await;
        let mut victim = TestPeer::start("tcp send_on_request", &ep.name().to_string());
        let peer = ep.recv().await.unwrap().source().unwrap();
        let mut count = 0;
        loop {
            ep.send(peer, "next").await.unwrap();
            count += 1;
            if wait_for_message(&ep, count - 1).await {
                break;
            }
        }
        victim.stop();
        let region = RemoteRegion::new(1, 8, Access::all());
        let read = ep.read(peer, region.slice(..)).start().unwrap();
        let write = ep.write(peer, region.at(0), [1; 8]).start().unwrap();
        let sent = ep
            .send(peer, "question")
            .delivery_complete()
            .start()
            .unwrap();
        let long = ep.send(peer, vec![1; 64 << 20]).start().unwrap();
        victim.0.kill().unwrap();
        assert!(read.await.unwrap_err().error.is_peer_unavailable());
        assert!(write.await.unwrap_err().error.is_peer_unavailable());
        assert!(sent.await.unwrap_err().error.is_peer_unavailable());
        assert!(long.await.unwrap_err().error.is_peer_unavailable());
        assert_eq!(ep.stats().held_connections, 1);
        receive_messages(&ep, count).await;
        next_down_reason(&mut events).await;
        assert_still_works(&ep).await;
    });
}

/// The peer closes the connection, or resets it because it has not read everything.
#[test]
fn requests_to_closed_peer_fail_while_its_message_is_held() {
    for is_reset in [false, true] {
        run(async {
            let (ep, mut events) = bind_with_events().await;
            let (mut socket, peer, count) = connect_and_hold(&ep).await;
            let sent = send_unacknowledged(&ep, peer, &mut socket).await;
            if is_reset {
                ep.send(peer, "unread").await.unwrap();
                socket.readable().await.unwrap();
            }
            drop(socket);
            assert!(sent.await.unwrap_err().error.is_peer_unavailable());
            assert_eq!(ep.stats().held_connections, 1);
            // The driver sleeps: the end is reported once.
            let parks = || ep.domain().stats().parks;
            let before = parks();
            let _ = tokio::time::timeout(Duration::from_millis(200), ep.recv().tag(98)).await;
            assert!(parks() - before < 100);
            receive_messages(&ep, count).await;
            let expected = if is_reset {
                DownReason::Died
            } else {
                DownReason::Closed
            };
            assert_eq!(next_down_reason(&mut events).await, expected);
        });
    }
}

#[test]
fn response_behind_a_held_message_is_received_after_the_peer_has_closed() {
    run(async {
        let (ep, mut events) = bind_with_events().await;
        let (mut socket, peer, count) = connect_and_hold(&ep).await;
        let mut answered = send_unacknowledged(&ep, peer, &mut socket).await;
        let unanswered = send_unacknowledged(&ep, peer, &mut socket).await;
        let ack = encode_header(0, 0, 2, 16, HEADER_LEN as u64);
        socket.write_all(&ack).await.unwrap();
        drop(socket);
        for _ in 0..10 {
            assert_still_works(&ep).await;
        }
        assert!((&mut answered).now_or_never().is_none());
        receive_messages(&ep, count).await;
        answered.await.unwrap();
        assert!(unanswered.await.unwrap_err().error.is_peer_unavailable());
        assert_eq!(next_down_reason(&mut events).await, DownReason::Closed);
    });
}

/// A peer that closes its connection and connects again leaves at most one connection with a held
/// message.
#[test]
fn closed_peer_that_connects_again_leaves_one_held_connection() {
    /// Longer than the share of a peer.
    const HELD_LEN: usize = 8 << 20;
    run(async {
        let (ep, _events) = bind_with_events().await;
        let peer = ep.address_vector().insert("tcp://127.0.0.1:9").unwrap();
        let begin = encode_header(0, 0, 0, 16, (HEADER_LEN + HELD_LEN) as u64);
        for round in 0..4 {
            let mut socket = connect_accepted(&ep, 9).await;
            let beginning = [&begin[..], &message(0)].concat();
            socket.write_all(&beginning).await.unwrap();
            let held = 2.min(round + 1);
            wait_until(&ep, |stats| stats.held_connections >= held).await;
            assert_eq!(ep.stats().peers, held);
            let sent = send_unacknowledged(&ep, peer, &mut socket).await;
            drop(socket);
            assert!(sent.await.unwrap_err().error.is_peer_unavailable());
        }
    });
}
