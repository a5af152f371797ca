//! Peers that leave something behind, or do not let go.

use std::time::Duration;

use fabric_async::{Access, Endpoint, RemoteRegion};
use fabric_core::buf::Payload;
use fabric_core::tcp::{ByteOrder, Frame, FrameWriter, RmaIovList};
use fabric_core::transport::RmaIov;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::protocols::encode_packet;
use super::{assert_still_works, bind_with_events, hostile, next_down_reason, protocols};
use crate::run;

/// A question for bytes of a region.
fn encode_read_request(region: &RemoteRegion) -> Vec<u8> {
    let place = region.slice(..);
    let rows = RmaIovList::from_rma_iovs(&[RmaIov {
        key: place.key,
        offset: place.offset,
        len: place.len,
        atomic: None,
    }])
    .unwrap();
    let mut outbox = FrameWriter::new(ByteOrder::Little);
    assert!(outbox.push_frame(&Frame::read(&rows), &rows, Payload::Contiguous(&[])));
    outbox.pending().to_vec()
}

/// How often the domain looks for news while nothing happens.
async fn count_idle_passes(ep: &Endpoint) -> u64 {
    let looks = || ep.domain().stats().passes + ep.domain().stats().parks;
    let before = looks();
    let _ = tokio::time::timeout(Duration::from_millis(500), ep.recv().tag(98)).await;
    looks() - before
}

/// What it has sent is still there to be received, so its connection is; but answers that it has
/// asked for are nobody's.
#[test]
fn pending_response_to_closed_peer_lets_driver_sleep() {
    const PART: usize = 16 << 10;
    const PARTS: usize = 1100;
    run(async {
        let (ep, mut events) = bind_with_events().await;
        let mut memory = ep
            .domain()
            .register(vec![7; 4096], Access::REMOTE_READ, None)
            .unwrap();
        let (mut socket, connection) = protocols::connect_accepted(&ep).await;
        socket
            .write_all(&encode_packet(connection, 0, 1, b"x"))
            .await
            .unwrap();
        let source = ep.recv().await.unwrap().source().unwrap();
        // It does not answer, which tells this side when it has gone.
        let asked = ep
            .read(
                source,
                RemoteRegion::new(1, 8, Access::REMOTE_READ).slice(..),
            )
            .start()
            .unwrap();
        // More than the endpoint keeps for nobody.
        let part = encode_packet(connection, 0, PART as u64, &[1; PART]);
        let asks = encode_read_request(&memory.remote());
        let flood = async {
            for _ in 0..PARTS {
                socket.write_all(&part).await.unwrap();
            }
            socket.write_all(&asks).await.unwrap();
            socket.shutdown().await.unwrap();
        };
        let in_hand = memory.lock();
        let (failed, ()) = tokio::join!(asked, flood);
        assert!(failed.unwrap_err().error.is_peer_gone());
        drop(in_hand);
        let looks = count_idle_passes(&ep).await;
        assert!(looks < 2000, "{looks} looks at nothing");
        for _ in 0..PARTS {
            assert_eq!(ep.recv().await.unwrap().len(), PART);
        }
        next_down_reason(&mut events).await;
        assert_still_works(&ep).await;
    });
}

/// They are not listened to any more, and hold up nobody while they shout.
#[test]
fn disconnected_peer_that_keeps_sending_blocks_nothing() {
    run(async {
        let (ep, mut events) = bind_with_events().await;
        let mut shouting = Vec::new();
        for port in 1..5 {
            let mut socket = hostile::connect_accepted(&ep, port).await;
            socket
                .write_all(&hostile::encode_header(200, 0, 0, 16, 16))
                .await
                .unwrap();
            let socket = socket.into_std().unwrap();
            socket.set_nonblocking(false).unwrap();
            shouting.push(std::thread::spawn(move || {
                use std::io::Write;
                let noise = vec![0; 1 << 20];
                while (&socket).write(&noise).is_ok() {}
            }));
        }
        for _ in 1..5 {
            next_down_reason(&mut events).await;
            assert_still_works(&ep).await;
        }
        // None of them is heard out for ever.
        for shouting in shouting {
            shouting.join().unwrap();
        }
    });
}

/// A peer comes back before its end was noticed. What had begun to leave for the one that was does
/// not go on with the one that is: its header has gone elsewhere.
#[test]
fn partial_message_is_not_continued_after_reconnect() {
    const LONG: usize = 64 << 20;
    run(async {
        let (ep, mut events) = bind_with_events().await;
        let mut first = hostile::connect_accepted(&ep, 9).await;
        first
            .write_all(&[&hostile::encode_header(0, 0, 0, 16, 17)[..], b"x"].concat())
            .await
            .unwrap();
        let source = ep.recv().await.unwrap().source().unwrap();
        let peer = ep.address_vector().insert("tcp://127.0.0.1:9").unwrap();
        assert_eq!(peer, source);
        let long = ep.send(source, vec![1; LONG]).start().unwrap();
        let behind = ep.send(source, "behind").start().unwrap();
        first.read_exact(&mut [0; 16 + 100]).await.unwrap();

        let mut second = TcpStream::connect(ep.name().socket_addr().unwrap())
            .await
            .unwrap();
        second
            .write_all(&hostile::encode_request(9, 8))
            .await
            .unwrap();
        second.read_exact(&mut [0; 40]).await.unwrap();
        assert!(long.await.unwrap_err().error.is_peer_gone());
        assert!(behind.await.unwrap_err().error.is_peer_gone());
        next_down_reason(&mut events).await;
        ep.send(peer, "anew").await.unwrap();
        let mut heard = [0; 16 + 4];
        second.read_exact(&mut heard).await.unwrap();
        assert_eq!(
            heard[..],
            [&hostile::encode_header(0, 0, 0, 16, 20)[..], b"anew"].concat()
        );
        drop(first);
        assert_still_works(&ep).await;
    });
}
