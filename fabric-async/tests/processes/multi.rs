//! Receives of several messages, from processes that pour and processes that die.

use bytes::BytesMut;
use fabric_async::{DownReason, Endpoint, OpKind};
use futures_util::StreamExt;

use crate::role::Peer;
use crate::run;
use crate::select::{MESSAGES, check};
use crate::stages::ended;
use crate::witness::next_end;

/// Streams that are dropped at random moments lose nothing, nor do their buffers when they are used
/// up.
#[test]
fn streams_that_are_dropped_get_each_message_once_and_in_order() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let _sender = Peer::start("numbers", &ep.name().to_string());
        let (mut seed, mut dropped, mut ended, mut next) = (7u64, 0u64, 0u64, 0u64);
        let mut peer = None;
        while next < MESSAGES {
            let mut messages = ep
                .recv_multi(BytesMut::with_capacity(101_000))
                .start()
                .unwrap();
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            for _ in 0..seed >> 53 {
                let Some(message) = messages.next().await else {
                    ended += 1;
                    break;
                };
                let message = message.unwrap();
                check(&message, next);
                peer = message.transfer.source;
                next += 1;
                if next == MESSAGES {
                    break;
                }
            }
            dropped += 1;
        }
        assert!(
            ended > 10 && dropped > ended,
            "{ended} buffers were used up, of {dropped}"
        );
        ep.send(peer.unwrap(), "enough").await.unwrap();
    });
}

/// The part of a message whose sender dies is discarded, and the receive goes on.
#[test]
fn a_peer_that_dies_in_the_middle_of_a_message_ends_only_that() {
    run(async {
        for posted in [false, true] {
            let ep = Endpoint::bind("shm://").await.unwrap();
            let mut queue = ep.completions().unwrap();
            let request = ep.recv_multi(BytesMut::with_capacity(2 << 20)).context(3);
            let mut stream = None;
            if posted {
                request.post().unwrap();
            } else {
                stream = Some(request.start().unwrap());
            }
            let mut next = async || match &mut stream {
                Some(stream) => match stream.next().await.unwrap() {
                    Ok(message) => (None, message.into_buf()),
                    Err(failed) => (Some(failed.error), failed.buf),
                },
                None => {
                    let mut entry = queue.next().await.unwrap();
                    assert_eq!((entry.context, entry.kind), (3, OpKind::Recv));
                    (
                        entry.error.take().map(|error| *error),
                        entry.take_buf().unwrap(),
                    )
                }
            };
            let mut events = ep.events().unwrap();
            let mut victim = Peer::start("halfway", &ep.name().to_string());
            let half = ep.recv().tag(1).await.unwrap();
            assert_eq!(&half[..], b"half");
            victim.0.kill().unwrap();
            let (error, whole) = next().await;
            assert_eq!((error, &whole[..]), (None, &b"whole"[..]));
            // Others go on behind it, and it is not reported.
            ended(&mut victim).await;
            assert_eq!(next_end(&mut events).await, DownReason::Died);
            let other = Endpoint::bind("shm://").await.unwrap();
            let peer = other.lookup(ep.name()).await.unwrap();
            other.send(peer, "from another").await.unwrap();
            let (error, message) = next().await;
            assert_eq!((error, &message[..]), (None, &b"from another"[..]));
        }
    });
}
