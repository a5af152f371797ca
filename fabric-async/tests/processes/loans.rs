//! Loans between processes that die or lie.
#![allow(unsafe_code)] // receiving where it lies

use fabric_async::{DownReason, Endpoint, Error};
use rustix::fs::SealFlags;

use crate::health::{
    assert_still_works, expect_protocol_violation, kill_within_two_ms, next_down_reason,
};
use crate::hostile::{connect_raw, encode_hello, sealed_memfd, send_with_fds};
use crate::rma::{count_region_mappings, encode_control, encode_grant};
use crate::run;
use crate::test_peer::TestPeer;

pub(crate) const LOAN_LEN: usize = 300_000;
/// Of a length that only one test lends, since it counts what is mapped.
pub(crate) const SHORT_LOAN_LEN: usize = 256 << 10;
const ROUNDS: u64 = 30;

/// A process that is killed with loans takes them with it, and nothing else: the lender goes on,
/// and does not use their memory again.
#[test]
fn killed_loan_receiver_loses_only_its_loans() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        for round in 0..ROUNDS {
            let victim = TestPeer::start("loan_receiver", &ep.name().to_string());
            let peer = ep.recv().tag(1).await.unwrap().source().unwrap();
            let killer = kill_within_two_ms(victim, round);
            let error = loop {
                let mut frame = match ep.loan(SHORT_LOAN_LEN) {
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
        let mapped = count_region_mappings(SHORT_LOAN_LEN);
        assert!(mapped <= 257, "{mapped} pieces of memory are left");
        assert_still_works(&ep).await;
    });
}

/// What was received stays readable when its lender has been killed.
#[test]
fn received_loans_outlive_killed_sender() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let mut held = Vec::new();
        for round in 0..ROUNDS {
            let victim = TestPeer::start("loan_sender", &ep.name().to_string());
            // SAFETY: the lender does not write what it has lent.
            let first = unsafe { ep.recv_loan() }.tag(1).await.unwrap();
            let peer = first.source().unwrap();
            held.push(first);
            let killer = kill_within_two_ms(victim, round);
            let error = loop {
                // SAFETY: as above.
                match unsafe { ep.recv_loan() }.tag(1).from(peer).await {
                    Ok(frame) => {
                        assert!(
                            frame.len() == LOAN_LEN && frame.iter().all(|byte| *byte == frame[0])
                        );
                    }
                    Err(failed) => break failed.error,
                }
            };
            assert!(error.is_peer_gone(), "round {round}: {error}");
            killer.join().unwrap();
        }
        for frame in &held {
            assert!(
                frame.buf.is_in_place()
                    && frame.len() == LOAN_LEN
                    && frame.iter().all(|byte| *byte == frame[0])
            );
        }
        assert_still_works(&ep).await;
    });
}

/// Loans of memory that was not given, of more than there is, and without a number to give them
/// back under.
#[test]
fn invalid_loans_end_only_that_connection() {
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
            ("wrong length", true, loan(100, 7, 0, 24)),
            ("wrong length", true, loan(100, 7, 0, 16)),
            ("unknown memory", false, loan(100, 7, 0, 32)),
        ];
        for (reason, given, record) in cases {
            let (segment, lent) = (
                sealed_memfd(4096 + 64 * 64, all),
                sealed_memfd(4096 + 4096, all),
            );
            let socket = connect_raw(&ep).await;
            send_with_fds(&socket, &encode_hello("liar", 1, 64), &[&segment]);
            if given {
                send_with_fds(&socket, &encode_grant(7, 4096, 1), &[&lent]);
            }
            rustix::io::pwrite(&segment, &record[8..], 4096 + 8).unwrap();
            rustix::io::pwrite(&segment, &record[..8], 4096).unwrap();
            send_with_fds(&socket, &encode_control(101, 0), &[]);
            expect_protocol_violation(&mut events, reason).await;
        }
        // Memory twice under one name, and no memory at all.
        for (what, saying) in [
            ("twice", encode_grant(7, 4096, 1)),
            ("another size", encode_grant(8, 1 << 20, 1)),
        ] {
            let (segment, lent) = (
                sealed_memfd(4096 + 64 * 64, all),
                sealed_memfd(4096 + 4096, all),
            );
            let socket = connect_raw(&ep).await;
            send_with_fds(&socket, &encode_hello("liar", 1, 64), &[&segment]);
            send_with_fds(&socket, &encode_grant(7, 4096, 1), &[&lent]);
            send_with_fds(&socket, &saying, &[&lent]);
            let down = next_down_reason(&mut events).await;
            let DownReason::Protocol(reason) = down else {
                panic!("{what}: {down:?}")
            };
            assert!(
                reason.contains(what) || reason.contains("granted twice"),
                "{what}: {reason}"
            );
        }
        // An honest loan still works.
        let me = ep.add_peer(ep.name()).await.unwrap();
        ep.lend(me, ep.loan(10).unwrap()).tag(5).await.unwrap();
        assert_eq!(&ep.recv().tag(5).await.unwrap()[..], [0; 10]);
        let refused = ep.loan(usize::MAX).map(drop);
        assert!(matches!(refused, Err(Error::TooLong { .. })));
        assert_still_works(&ep).await;
    });
}
