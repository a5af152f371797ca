//! Messages whose completion waits until another process has received or matched them
//! (`FI_DELIVERY_COMPLETE`, `FI_MATCH_COMPLETE`).

use fabric_async::{Endpoint, WaitPolicy};
use rustix::fs::SealFlags;

use crate::domain_mode::DomainMode;
use crate::health::{assert_still_works, expect_protocol_violation};
use crate::hostile::{connect_raw, encode_hello, sealed_memfd, send_with_fds};
use crate::run;
use crate::test_peer::{TestPeer, wait_for_parent};

const MESSAGES: u64 = 60;

fn message_len(number: u64) -> usize {
    [8, 100, 5000, 40_000][number as usize % 4]
}

/// Waits for its parent, then receives all messages from the last to the first.
pub(crate) async fn late_receiver(name: &str) {
    let ep = Endpoint::bind("shm://").await.expect("bind");
    let peer = ep.add_peer(name).await.expect("add_peer");
    ep.send(peer, "ready").tag(MESSAGES).await.expect("send");
    wait_for_parent();
    for number in (0..MESSAGES).rev() {
        let got = ep
            .recv()
            .tag(number)
            .from(peer)
            .await
            .expect("a message of the parent");
        assert_eq!(
            (got.len(), &got[..8]),
            (message_len(number), &number.to_le_bytes()[..])
        );
    }
    let _ = ep.recv().from(peer).await;
}

#[test]
fn delivery_and_match_complete_wait_for_the_peer() {
    for mode in DomainMode::ALL {
        for policy in [WaitPolicy::Adaptive, WaitPolicy::Spin, WaitPolicy::Park] {
            run(async {
                let options = mode.options().wait_policy(policy);
                let ep = options.bind("shm://").await.unwrap();
                let mut completions = ep.take_completions().unwrap();
                let mut peer = TestPeer::start("late_receiver", &ep.name().to_string());
                let to = ep.recv().tag(MESSAGES).await.unwrap().source().unwrap();
                for number in 0..MESSAGES {
                    let mut message = number.to_le_bytes().to_vec();
                    message.resize(message_len(number), 7);
                    let request = ep.send(to, message).tag(number).context(number);
                    let request = if number % 2 == 0 {
                        request.delivery_complete()
                    } else {
                        request.match_complete()
                    };
                    request.post().unwrap();
                }
                let mut ended = Vec::new();
                assert_eq!(completions.try_read_batch(&mut ended, 1), 0, "{ended:?}");
                peer.signal_start();
                while ended.len() < MESSAGES as usize {
                    completions.read_batch(&mut ended, MESSAGES as usize).await;
                }
                assert!(
                    ended.iter().all(|completion| completion.error.is_none()),
                    "{ended:?}"
                );
                let mut numbers: Vec<_> =
                    ended.iter().map(|completion| completion.context).collect();
                numbers.sort_unstable();
                assert!(
                    numbers.into_iter().eq(0..MESSAGES),
                    "every message completes once"
                );
            });
        }
    }
}

/// Acknowledgement requests that are malformed: unknown slots, flags or lengths.
#[test]
fn invalid_ack_requests_end_only_that_connection() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let mut events = ep.take_events().unwrap();
        let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        // The first record of a message whose total length carries an acknowledgement request in
        // its upper bits.
        let record = |total: u64, payload: u64| {
            let header = 2 | (16 + payload) << 16 | 1 << 40;
            [header, total]
                .into_iter()
                .flat_map(u64::to_le_bytes)
                .collect::<Vec<_>>()
        };
        let requests_ack = |number: u64| 1 << 61 | number << 48;
        let cases = [
            ("out of bounds", record(requests_ack(3) | 7, 8)),
            ("out of bounds", record(requests_ack(3) | 1 << 41, 8)),
            ("out of bounds", record(1 << 62 | requests_ack(3) | 8, 8)),
            ("out of bounds", record(1 << 63 | requests_ack(3) | 8, 8)),
            ("out of bounds", record(requests_ack(3) & !(1 << 61) | 8, 8)),
            ("out of bounds", record(8, 8)),
        ];
        for (reason, record) in cases {
            let segment = sealed_memfd(4096 + 64 * 64, all);
            let socket = connect_raw(&ep).await;
            send_with_fds(&socket, &encode_hello("hostile", 1, 64), &[&segment]);
            rustix::io::pwrite(&segment, &record[8..], 4096 + 8).unwrap();
            rustix::io::pwrite(&segment, &record[..8], 4096).unwrap();
            send_with_fds(&socket, b"fab-shm\0\x01\0\x65\0\0\0\0\0\0\0\0\0", &[]);
            expect_protocol_violation(&mut events, reason).await;
        }
        // A valid request is acknowledged: the bit of its slot is set, and so is the word that
        // announces set bits.
        let segment = sealed_memfd(4096 + 64 * 64, all);
        let socket = connect_raw(&ep).await;
        send_with_fds(&socket, &encode_hello("honest", 1, 64), &[&segment]);
        let honest = record(requests_ack(4095) | 8, 8);
        rustix::io::pwrite(&segment, &honest[8..], 4096 + 8).unwrap();
        rustix::io::pwrite(&segment, &honest[..8], 4096).unwrap();
        assert_eq!(ep.recv().await.unwrap()[..], [0; 8]);
        let mut words = [0; 4096 - 1024];
        rustix::io::pread(&segment, &mut words, 1024).unwrap();
        let (announced, acks) = words.split_at(128);
        assert_eq!(announced[..4], 1u32.to_ne_bytes());
        assert_eq!(acks[504..512], (1u64 << 63).to_ne_bytes());
        assert_eq!(
            acks.iter().map(|byte| byte.count_ones()).sum::<u32>(),
            1,
            "one slot is acknowledged"
        );
        assert_still_works(&ep).await;
    });
}
