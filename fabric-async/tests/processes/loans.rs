//! Loans between processes that are killed or send malformed loans.

use std::time::Duration;

use fabric_async::{DownReason, Endpoint, Error, LoanedBuf};
use rustix::fs::SealFlags;

use crate::health::{
    assert_still_works, expect_protocol_violation, kill_within_two_ms, next_down_reason,
};
use crate::hostile::{connect_raw, encode_hello, sealed_memfd, send_with_fds};
use crate::rma::{count_region_mappings, encode_control, encode_grant};
use crate::run;
use crate::single_copy::{take_returned_slots, write_location};
use crate::test_peer::TestPeer;

pub(crate) const LOAN_LEN: usize = 300_000;
/// The length of the loans of one test alone, because the test counts their mappings.
pub(crate) const SHORT_LOAN_LEN: usize = 256 << 10;
const ROUNDS: u64 = 30;

/// When a process that holds loans is killed, the lender loses these loans and no others, and does
/// not reuse their memory.
#[test]
fn killed_loan_receiver_loses_only_its_loans() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        for round in 0..ROUNDS {
            let victim = TestPeer::start("loan_receiver", &ep.name().to_string());
            let peer = ep.recv().tag(1).await.unwrap().source().unwrap();
            let killer = kill_within_two_ms(victim, round);
            let error = loop {
                let mut frame = match ep.domain().try_loan(SHORT_LOAN_LEN) {
                    Ok(frame) => frame,
                    Err(error) => break error,
                };
                frame.fill(round as u8);
                if let Err(failed) = ep.send(peer, frame).await {
                    break failed.error;
                }
            };
            assert!(error.is_peer_unavailable(), "round {round}: {error}");
            killer.join().unwrap();
        }
        // The loans of the dead receivers are given up. At most the free loans of one peer stay
        // mapped.
        while count_region_mappings(SHORT_LOAN_LEN) > 257 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_still_works(&ep).await;
    });
}

/// Received loans stay readable when their lender has been killed.
#[test]
fn received_loans_stay_readable_after_sender_is_killed() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let mut held = Vec::new();
        for round in 0..ROUNDS {
            let victim = TestPeer::start("loan_sender", &ep.name().to_string());
            let first = ep.recv_loan().tag(1).await.unwrap();
            let peer = first.source().unwrap();
            held.push(first);
            let killer = kill_within_two_ms(victim, round);
            let error = loop {
                match ep.recv_loan().tag(1).from(peer).await {
                    Ok(frame) => assert_uniform(&frame),
                    Err(failed) => break failed.error,
                }
            };
            assert!(error.is_peer_unavailable(), "round {round}: {error}");
            killer.join().unwrap();
        }
        for frame in &held {
            assert!(frame.is_in_place());
            assert_uniform(frame);
        }
        assert_still_works(&ep).await;
    });
}

/// Asserts that all bytes of a loan are the same.
fn assert_uniform(frame: &LoanedBuf) {
    let bytes = frame.to_vec();
    assert!(bytes.len() == LOAN_LEN && bytes.iter().all(|byte| *byte == bytes[0]));
}

/// A slot is used again once it was returned. A loan whose slot is held ends the connection, and
/// the loan that holds the slot stays valid.
#[test]
fn slot_of_a_held_loan_cannot_be_lent_again() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let mut events = ep.take_events().unwrap();
        let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let (segment, memory) = (
            sealed_memfd(4096 + 64 * 64, all),
            sealed_memfd(4096 + 4096, all),
        );
        let socket = connect_raw(&ep).await;
        send_with_fds(&socket, &encode_hello("hostile", 1, 64), &[&segment]);
        send_with_fds(&socket, &encode_grant(7, 4096, 1), &[&memory]);
        let lend = |line| {
            write_location(&segment, line, 5, [100, 7, 255]);
            send_with_fds(&socket, &encode_control(101, 0), &[]);
        };
        for line in 0..3 {
            lend(line);
            let loan = ep.recv_loan().await.unwrap();
            assert_eq!(take_returned_slots(&segment), [0; 4], "the loan is held");
            drop(loan);
            assert_eq!(take_returned_slots(&segment), [0, 0, 0, 1 << 63]);
        }
        lend(3);
        let held = ep.recv_loan().await.unwrap();
        lend(4);
        expect_protocol_violation(&mut events, "slot of a message that is held").await;
        assert_eq!(held.to_vec(), [0; 100]);
        assert_still_works(&ep).await;
    });
}

/// Loans of memory that was not granted, with lengths beyond the memory, and without a valid slot
/// to return them.
#[test]
fn invalid_loans_end_only_that_connection() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let mut events = ep.take_events().unwrap();
        let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let loan = |total: u64, key: u64, slot: u64, len: u64| {
            let header = 5 | len << 16 | 1 << 40;
            [header, total, key, slot]
                .into_iter()
                .flat_map(u64::to_le_bytes)
                .collect::<Vec<_>>()
        };
        let cases = [
            ("not granted", true, loan(100, 8, 0, 32)),
            ("out of bounds", true, loan(4097, 7, 0, 32)),
            ("out of bounds", true, loan(u64::MAX, 7, 0, 32)),
            ("out of bounds", true, loan(100, 7, 256, 32)),
            ("out of bounds", true, loan(100, 7, u64::MAX, 32)),
            ("wrong length", true, loan(100, 7, 0, 24)),
            ("wrong length", true, loan(100, 7, 0, 16)),
            ("not granted", false, loan(100, 7, 0, 32)),
        ];
        for (reason, granted, record) in cases {
            let (segment, memory) = (
                sealed_memfd(4096 + 64 * 64, all),
                sealed_memfd(4096 + 4096, all),
            );
            let socket = connect_raw(&ep).await;
            send_with_fds(&socket, &encode_hello("hostile", 1, 64), &[&segment]);
            if granted {
                send_with_fds(&socket, &encode_grant(7, 4096, 1), &[&memory]);
            }
            rustix::io::pwrite(&segment, &record[8..], 4096 + 8).unwrap();
            rustix::io::pwrite(&segment, &record[..8], 4096).unwrap();
            send_with_fds(&socket, &encode_control(101, 0), &[]);
            expect_protocol_violation(&mut events, reason).await;
        }
        // Memory that is granted twice under one key, and a grant of another size than its memory.
        for (what, grant) in [
            ("twice", encode_grant(7, 4096, 1)),
            ("announced size", encode_grant(8, 1 << 20, 1)),
        ] {
            let (segment, memory) = (
                sealed_memfd(4096 + 64 * 64, all),
                sealed_memfd(4096 + 4096, all),
            );
            let socket = connect_raw(&ep).await;
            send_with_fds(&socket, &encode_hello("hostile", 1, 64), &[&segment]);
            send_with_fds(&socket, &encode_grant(7, 4096, 1), &[&memory]);
            send_with_fds(&socket, &grant, &[&memory]);
            let down = next_down_reason(&mut events).await;
            let DownReason::Protocol(reason) = down else {
                panic!("{what}: {down:?}")
            };
            assert!(
                reason.contains(what) || reason.contains("granted twice"),
                "{what}: {reason}"
            );
        }
        // A valid loan still works.
        let to_self = ep.add_peer(ep.name()).await.unwrap();
        ep.send(to_self, ep.domain().try_loan(10).unwrap())
            .tag(5)
            .await
            .unwrap();
        assert_eq!(&ep.recv().tag(5).await.unwrap()[..], [0; 10]);
        let refused = ep.domain().try_loan(usize::MAX).map(drop);
        assert!(matches!(refused, Err(Error::TooLong { .. })));
        assert_still_works(&ep).await;
    });
}
