//! Peers that close while their messages are unread, and peers that keep sending after they were
//! disconnected.

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

/// Encodes a request to read a region.
fn encode_read_request(region: &RemoteRegion) -> Vec<u8> {
    let slice = region.slice(..);
    let rows = RmaIovList::from_rma_iovs(&[RmaIov {
        key: slice.key,
        offset: slice.offset,
        len: slice.len,
        atomic: None,
    }])
    .unwrap();
    let mut writer = FrameWriter::new(ByteOrder::Little);
    assert!(writer.push_frame(&Frame::read(&rows), &rows, Payload::Contiguous(&[])));
    writer.pending().to_vec()
}

/// Returns the number of passes and sleeps of the domain in 500 ms without messages.
async fn count_idle_passes(ep: &Endpoint) -> u64 {
    let polls = || ep.domain().stats().passes + ep.domain().stats().parks;
    let before = polls();
    let _ = tokio::time::timeout(Duration::from_millis(500), ep.recv().tag(98)).await;
    polls() - before
}

/// The connection of a peer that has closed stays as long as its messages wait for receives;
/// pending read responses to the peer are dropped.
#[test]
fn pending_response_to_closed_peer_lets_driver_sleep() {
    const PART: usize = 16 << 10;
    const PARTS: usize = 450;
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
        // The peer never responds, so this read fails when its end is detected.
        let read = ep
            .read(
                source,
                RemoteRegion::new(1, 8, Access::REMOTE_READ).slice(..),
            )
            .start()
            .unwrap();
        // More bytes than the share of one peer; the rest is set aside.
        let part = encode_packet(connection, 0, PART as u64, &[1; PART]);
        let read_request = encode_read_request(&memory.remote());
        let flood = async {
            for _ in 0..PARTS {
                socket.write_all(&part).await.unwrap();
            }
            socket.write_all(&read_request).await.unwrap();
            socket.shutdown().await.unwrap();
        };
        let lock = memory.lock();
        let (failed, ()) = tokio::join!(read, flood);
        assert!(failed.unwrap_err().error.is_peer_unavailable());
        drop(lock);
        let polls = count_idle_passes(&ep).await;
        assert!(polls < 2000, "{polls} polls while idle");
        for _ in 0..PARTS {
            assert_eq!(ep.recv().await.unwrap().len(), PART);
        }
        next_down_reason(&mut events).await;
        assert_still_works(&ep).await;
    });
}

/// Disconnected peers are not read any more, and do not delay other peers while they keep sending.
#[test]
fn disconnected_peer_that_keeps_sending_blocks_nothing() {
    run(async {
        let (ep, mut events) = bind_with_events().await;
        let mut senders = Vec::new();
        for port in 1..5 {
            let mut socket = hostile::connect_accepted(&ep, port).await;
            socket
                .write_all(&hostile::encode_header(200, 0, 0, 16, 16))
                .await
                .unwrap();
            let socket = socket.into_std().unwrap();
            socket.set_nonblocking(false).unwrap();
            senders.push(std::thread::spawn(move || {
                use std::io::Write;
                let garbage = vec![0; 1 << 20];
                while (&socket).write(&garbage).is_ok() {}
            }));
        }
        for _ in 1..5 {
            next_down_reason(&mut events).await;
            assert_still_works(&ep).await;
        }
        // Each sender ends when its connection is closed.
        for sender in senders {
            sender.join().unwrap();
        }
    });
}

/// A peer closes its connection and connects again at once. A partially sent message is not
/// continued on the new connection, because its header went over the old one.
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
        let queued = ep.send(source, "behind").start().unwrap();
        first.read_exact(&mut [0; 16 + 100]).await.unwrap();
        drop(first);

        let mut second = TcpStream::connect(ep.name().socket_addr().unwrap())
            .await
            .unwrap();
        second
            .write_all(&hostile::encode_request(9, 8))
            .await
            .unwrap();
        second.read_exact(&mut [0; 40]).await.unwrap();
        assert!(long.await.unwrap_err().error.is_peer_unavailable());
        assert!(queued.await.unwrap_err().error.is_peer_unavailable());
        next_down_reason(&mut events).await;
        ep.send(peer, "again").await.unwrap();
        let mut received = [0; 16 + 5];
        second.read_exact(&mut received).await.unwrap();
        assert_eq!(
            received[..],
            [&hostile::encode_header(0, 0, 0, 16, 21)[..], b"again"].concat()
        );
        assert_still_works(&ep).await;
    });
}
