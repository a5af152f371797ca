//! Multi-receive: streams of messages from a fast sender, and senders that are killed.

use bytes::BytesMut;
use fabric_async::{DownReason, Endpoint, OpKind};
use futures_util::StreamExt;

use crate::health::next_down_reason;
use crate::peer_death::wait_exit;
use crate::run;
use crate::select_loop::{MESSAGES, check_numbered_message};
use crate::test_peer::TestPeer;

/// Multi-receive streams that are dropped at random, or whose buffers are used up, lose no message.
#[test]
fn dropped_multi_recv_streams_lose_no_messages() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let _sender = TestPeer::start("numbered_sender", &ep.name().to_string());
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
                check_numbered_message(&message, next);
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
            "{ended} of {dropped} buffers were used up"
        );
        ep.send(peer.unwrap(), "done").await.unwrap();
    });
}

/// The partial message of a killed sender is discarded, and the multi-receive stays posted.
#[test]
fn peer_death_mid_message_discards_only_that_message() {
    run(async {
        for posted in [false, true] {
            let ep = Endpoint::bind("shm://").await.unwrap();
            let mut queue = ep.take_completions().unwrap();
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
            let mut events = ep.take_events().unwrap();
            let mut victim = TestPeer::start("partial_sender", &ep.name().to_string());
            let half = ep.recv().tag(1).await.unwrap();
            assert_eq!(&half[..], b"half");
            victim.0.kill().unwrap();
            let (error, whole) = next().await;
            assert_eq!((error, &whole[..]), (None, &b"whole"[..]));
            // Messages of other peers are received behind the lost message, which is not reported.
            wait_exit(&mut victim).await;
            assert_eq!(next_down_reason(&mut events).await, DownReason::Died);
            let other = Endpoint::bind("shm://").await.unwrap();
            let peer = other.add_peer(ep.name()).await.unwrap();
            other.send(peer, "from another").await.unwrap();
            let (error, message) = next().await;
            assert_eq!((error, &message[..]), (None, &b"from another"[..]));
        }
    });
}
