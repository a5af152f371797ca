//! A receiver that drops its receives at random loses no message.

use fabric_async::Endpoint;

use crate::run;
use crate::test_peer::TestPeer;

pub(crate) const MESSAGES: u64 = 100_000;

/// Checks the content of the message with this number.
#[track_caller]
pub(crate) fn check_numbered_message(message: &[u8], expected: u64) {
    let (number, rest) = message.split_first_chunk().unwrap();
    assert_eq!(u64::from_le_bytes(*number), expected);
    assert_eq!(
        rest.len(),
        if expected.is_multiple_of(1000) {
            99_992
        } else {
            0
        }
    );
    assert!(rest.iter().all(|byte| *byte == expected as u8));
}

#[test]
fn select_loop_dropping_receives_loses_no_messages() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let _sender = TestPeer::start("numbered_sender", &ep.name().to_string());
        let (mut seed, mut dropped, mut next) = (7u64, 0u64, 0u64);
        let mut peer = None;
        while next < MESSAGES {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let yields = seed >> 60;
            let yielding = async {
                for _ in 0..yields {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                message = ep.recv() => {
                    let message = message.unwrap();
                    check_numbered_message(&message, next);
                    peer = message.transfer.source;
                    next += 1;
                }
                () = yielding => dropped += 1,
            }
        }
        assert!(dropped > 100, "the loop dropped only {dropped} receives");
        ep.send(peer.unwrap(), "done").await.unwrap();
    });
}
