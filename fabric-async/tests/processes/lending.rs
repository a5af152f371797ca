//! Loans between processes that die or lie.
#![allow(unsafe_code)] // receiving where it lies

use fabric_async::{DownReason, Endpoint, Error};
use rustix::fs::SealFlags;

use crate::hostile::{hello, knock, memory, say};
use crate::onesided::{grant, mapped, word};
use crate::role::Peer;
use crate::run;
use crate::witness::{killed_later, next_end, next_to_break, still_works};

pub(crate) const FRAME: usize = 300_000;
/// Of a length that only one test lends, since it counts what is mapped.
pub(crate) const SHORT_FRAME: usize = 256 << 10;
const ROUNDS: u64 = 30;

/// A process that is killed with loans takes them with it, and nothing else: the lender goes on,
/// and does not use their memory again.
#[test]
fn a_killed_reader_takes_what_it_had() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        for round in 0..ROUNDS {
            let victim = Peer::start("reader", &ep.name().to_string());
            let peer = ep.recv().tag(1).await.unwrap().source().unwrap();
            let killer = killed_later(victim, round);
            let error = loop {
                let mut frame = match ep.loan(SHORT_FRAME) {
                    Ok(frame) => frame,
                    Err(error) => break error,
                };
                frame.fill(round as u8);
                if let Err(failed) = ep.lend(peer, frame).await {
                    break failed.error;
                }
            };
            assert!(error.is_peer_gone(), "round {round}: {error}");
            killer.join().unwrap();
        }
        // What the dead had is given up: mapped are at most those that are free, one peer's worth.
        let mapped = mapped(SHORT_FRAME);
        assert!(mapped <= 257, "{mapped} pieces of memory are left");
        still_works(&ep).await;
    });
}

/// What was received stays readable when its lender has been killed.
#[test]
fn a_killed_lender_leaves_what_it_lent() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let mut held = Vec::new();
        for round in 0..ROUNDS {
            let victim = Peer::start("lender", &ep.name().to_string());
            // SAFETY: the lender does not write what it has lent.
            let first = unsafe { ep.recv_lent() }.tag(1).await.unwrap();
            let peer = first.source().unwrap();
            held.push(first);
            let killer = killed_later(victim, round);
            let error = loop {
                // SAFETY: as above.
                match unsafe { ep.recv_lent() }.tag(1).from(peer).await {
                    Ok(frame) => {
                        assert!(frame.len() == FRAME && frame.iter().all(|byte| *byte == frame[0]));
                    }
                    Err(failed) => break failed.error,
                }
            };
            assert!(error.is_peer_gone(), "round {round}: {error}");
            killer.join().unwrap();
        }
        for frame in &held {
            assert!(
                frame.buf.is_shared()
                    && frame.len() == FRAME
                    && frame.iter().all(|byte| *byte == frame[0])
            );
        }
        still_works(&ep).await;
    });
}

/// Loans of memory that was not given, of more than there is, and without a number to give them
/// back under.
#[test]
fn false_loans_end_that_connection_only() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let mut events = ep.events().unwrap();
        let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let loan = |total: u64, key: u64, slot: u64, len: u64| {
            let header = 5 | len << 16 | 1 << 40;
            [header, total, key, slot]
                .into_iter()
                .flat_map(u64::to_le_bytes)
                .collect::<Vec<_>>()
        };
        let cases = [
            ("unknown memory", true, loan(100, 8, 0, 32)),
            ("out of bounds", true, loan(4097, 7, 0, 32)),
            ("out of bounds", true, loan(u64::MAX, 7, 0, 32)),
            ("out of bounds", true, loan(100, 7, 256, 32)),
            ("out of bounds", true, loan(100, 7, u64::MAX, 32)),
            ("another length", true, loan(100, 7, 0, 24)),
            ("another length", true, loan(100, 7, 0, 16)),
            ("unknown memory", false, loan(100, 7, 0, 32)),
        ];
        for (reason, given, record) in cases {
            let (segment, lent) = (memory(4096 + 64 * 64, all), memory(4096 + 4096, all));
            let socket = knock(&ep).await;
            say(&socket, &hello("liar", 1, 64), &[&segment]);
            if given {
                say(&socket, &grant(7, 4096, 1), &[&lent]);
            }
            rustix::io::pwrite(&segment, &record[8..], 4096 + 8).unwrap();
            rustix::io::pwrite(&segment, &record[..8], 4096).unwrap();
            say(&socket, &word(101, 0), &[]);
            next_to_break(&mut events, reason).await;
        }
        // Memory twice under one name, and no memory at all.
        for (what, saying) in [
            ("twice", grant(7, 4096, 1)),
            ("another size", grant(8, 1 << 20, 1)),
        ] {
            let (segment, lent) = (memory(4096 + 64 * 64, all), memory(4096 + 4096, all));
            let socket = knock(&ep).await;
            say(&socket, &hello("liar", 1, 64), &[&segment]);
            say(&socket, &grant(7, 4096, 1), &[&lent]);
            say(&socket, &saying, &[&lent]);
            let down = next_end(&mut events).await;
            let DownReason::Protocol(reason) = down else {
                panic!("{what}: {down:?}")
            };
            assert!(
                reason.contains(what) || reason.contains("the same memory"),
                "{what}: {reason}"
            );
        }
        // An honest loan still works.
        let me = ep.lookup(ep.name()).await.unwrap();
        ep.lend(me, ep.loan(10).unwrap()).tag(5).await.unwrap();
        assert_eq!(&ep.recv().tag(5).await.unwrap()[..], [0; 10]);
        let refused = ep.loan(usize::MAX).map(drop);
        assert!(matches!(refused, Err(Error::TooLong { .. })));
        still_works(&ep).await;
    });
}
