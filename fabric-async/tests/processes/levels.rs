//! Messages that end when another process has received them.

use fabric_async::{Endpoint, Progress, WaitPolicy};
use rustix::fs::SealFlags;

use crate::hostile::{hello, knock, memory, say};
use crate::role::{Peer, wait_for_parent};
use crate::run;
use crate::witness::{next_to_break, still_works};

const COUNT: u64 = 60;

fn length(number: u64) -> usize {
    [8, 100, 5000, 40_000][number as usize % 4]
}

/// Receives nothing before its parent lets it; then everything, from the last to the first.
pub(crate) async fn patient(name: &str) {
    let ep = Endpoint::bind("shm://").await.expect("bind");
    let peer = ep.lookup(name).await.expect("the survivor is there");
    ep.send(peer, "ready").tag(COUNT).await.expect("a peer");
    wait_for_parent();
    for number in (0..COUNT).rev() {
        let got = ep.recv().tag(number).from(peer).await.expect("it was sent");
        assert_eq!(
            (got.len(), &got[..8]),
            (length(number), &number.to_le_bytes()[..])
        );
    }
    let _ = ep.recv().from(peer).await;
}

#[test]
fn they_end_when_another_process_has_received_them() {
    for progress in [Progress::Manual, Progress::Auto] {
        for policy in [WaitPolicy::Adaptive, WaitPolicy::Spin, WaitPolicy::Park] {
            run(async {
                let options = Endpoint::options().progress(progress).wait_policy(policy);
                let ep = options.bind("shm://").await.unwrap();
                let mut completions = ep.completions().unwrap();
                let mut peer = Peer::start("patient", &ep.name().to_string());
                let to = ep.recv().tag(COUNT).await.unwrap().source().unwrap();
                for number in 0..COUNT {
                    let mut message = number.to_le_bytes().to_vec();
                    message.resize(length(number), 7);
                    let request = ep.send(to, message).tag(number).context(number);
                    let request = if number % 2 == 0 {
                        request.delivery_complete()
                    } else {
                        request.match_complete()
                    };
                    request.post().unwrap();
                }
                let mut ended = Vec::new();
                assert_eq!(completions.try_batch(&mut ended, 1), 0, "{ended:?}");
                peer.goes_on();
                while ended.len() < COUNT as usize {
                    completions.next_batch(&mut ended, COUNT as usize).await;
                }
                assert!(
                    ended.iter().all(|completion| completion.error.is_none()),
                    "{ended:?}"
                );
                let mut numbers: Vec<_> =
                    ended.iter().map(|completion| completion.context).collect();
                numbers.sort_unstable();
                assert!(numbers.into_iter().eq(0..COUNT), "each once");
            });
        }
    }
}

/// Messages that ask for a receipt there cannot be.
#[test]
fn false_receipts_end_that_connection_only() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let mut events = ep.events().unwrap();
        let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        // A beginning that asks for a receipt by what is above its length.
        let record = |total: u64, payload: u64| {
            let header = 2 | (16 + payload) << 16 | 1 << 40;
            [header, total]
                .into_iter()
                .flat_map(u64::to_le_bytes)
                .collect::<Vec<_>>()
        };
        let asks = |number: u64| 1 << 61 | number << 48;
        let cases = [
            ("out of bounds", record(asks(3) | 7, 8)),
            ("out of bounds", record(asks(3) | 1 << 41, 8)),
            ("out of bounds", record(1 << 62 | asks(3) | 8, 8)),
            ("out of bounds", record(1 << 63 | asks(3) | 8, 8)),
            ("out of bounds", record(asks(3) & !(1 << 61) | 8, 8)),
            ("out of bounds", record(8, 8)),
        ];
        for (reason, record) in cases {
            let segment = memory(4096 + 64 * 64, all);
            let socket = knock(&ep).await;
            say(&socket, &hello("liar", 1, 64), &[&segment]);
            rustix::io::pwrite(&segment, &record[8..], 4096 + 8).unwrap();
            rustix::io::pwrite(&segment, &record[..8], 4096).unwrap();
            say(&socket, b"fab-shm\0\x01\0\x65\0\0\0\0\0\0\0\0\0", &[]);
            next_to_break(&mut events, reason).await;
        }
        // An honest one is confirmed: by its bit, and the word that there are some.
        let segment = memory(4096 + 64 * 64, all);
        let socket = knock(&ep).await;
        say(&socket, &hello("honest", 1, 64), &[&segment]);
        let honest = record(asks(4095) | 8, 8);
        rustix::io::pwrite(&segment, &honest[8..], 4096 + 8).unwrap();
        rustix::io::pwrite(&segment, &honest[..8], 4096).unwrap();
        assert_eq!(ep.recv().await.unwrap()[..], [0; 8]);
        let mut words = [0; 4096 - 1024];
        rustix::io::pread(&segment, &mut words, 1024).unwrap();
        let (said, receipts) = words.split_at(128);
        assert_eq!(said[..4], 1u32.to_ne_bytes());
        assert_eq!(receipts[504..512], (1u64 << 63).to_ne_bytes());
        assert_eq!(
            receipts.iter().map(|byte| byte.count_ones()).sum::<u32>(),
            1,
            "that and no other"
        );
        still_works(&ep).await;
    });
}
