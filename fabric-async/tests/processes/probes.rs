//! Claims (`FI_CLAIM`) of messages from other processes.

use fabric_async::{Endpoint, Error};

use crate::run;
use crate::select_loop::{MESSAGES, check_numbered_message};
use crate::test_peer::TestPeer;

/// Each message is received once and in order, whether its claim is received, discarded or dropped.
#[test]
fn claims_lose_no_messages() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let _sender = TestPeer::start("numbered_sender", &ep.name().to_string());
        let (mut seed, mut peer) = (7u64, None);
        for next in 0..MESSAGES {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let choice = seed >> 62;
            let len = if next.is_multiple_of(1000) {
                100_000
            } else {
                8
            };
            if choice == 0 {
                assert_eq!(ep.probe().await.unwrap().len, len);
                check_numbered_message(&ep.recv().await.unwrap(), next);
                continue;
            }
            let claimed = ep.probe().claim().await.unwrap();
            assert_eq!(claimed.len(), len);
            peer = claimed.source().ok();
            match choice {
                1 => check_numbered_message(
                    &claimed.recv_into(Vec::with_capacity(len)).await.unwrap(),
                    next,
                ),
                2 => {
                    drop(claimed);
                    check_numbered_message(&ep.recv().await.unwrap(), next);
                }
                _ => {
                    drop(claimed.recv().start().unwrap());
                    check_numbered_message(&ep.recv().await.unwrap(), next);
                }
            }
        }
        ep.send(peer.unwrap(), "done").await.unwrap();
    });
}

/// The death of the sender truncates a claimed message: a receive returns the part with the error,
/// and the claim can be discarded or dropped.
#[test]
fn peer_death_truncates_claimed_message() {
    run(async {
        for end in 0..3 {
            let ep = Endpoint::bind("shm://").await.unwrap();
            let mut events = ep.take_events().unwrap();
            let mut victim = TestPeer::start("partial_sender", &ep.name().to_string());
            assert_eq!(&ep.recv().tag(1).await.unwrap()[..], b"half");
            let whole = ep.probe().claim().await.unwrap();
            let half = ep.probe().claim().await.unwrap();
            assert_eq!((whole.len(), half.len()), (5, 1 << 20));
            victim.0.kill().unwrap();
            // Both endpoints of the victim go down.
            for _ in 0..2 {
                while !matches!(
                    events.read().await.kind,
                    fabric_async::EventKind::PeerDown { .. }
                ) {}
            }
            match end {
                0 => {
                    let failed = half.recv().await.unwrap_err();
                    assert!(matches!(failed.error, Error::PeerGone(_)), "{failed}");
                    assert!(
                        (1..1 << 20).contains(&failed.buf.len())
                            && failed.buf.iter().all(|byte| *byte == 7)
                    );
                }
                1 => half.discard(),
                _ => drop(half),
            }
            assert_eq!(&whole.recv().await.unwrap()[..], b"whole");
            assert_eq!(ep.probe().try_probe(), Ok(None));
        }
    });
}
