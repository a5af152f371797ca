//! Long messages between processes that are killed or violate the protocol: copied once, straight
//! from the sender's memory, or twice, through the ring.

use std::os::fd::OwnedFd;

use fabric_async::{DownReason, Endpoint, Error, FiAddr};
use rustix::fs::SealFlags;

use crate::health::{
    assert_still_works, expect_protocol_violation, kill_within_two_ms, next_down_reason,
};
use crate::hostile::{connect_raw, encode_hello, sealed_memfd, send_with_fds};
use crate::rma::{RawShmListener, encode_control, recv_control_with_fds};
use crate::run;
use crate::skip::{Facility, skip};
use crate::test_peer::TestPeer;

const ROUNDS: u64 = 30;
/// Message lengths, the first of which is copied in one segment.
const LENGTHS: [usize; 3] = [100_000, 3 << 20, 8 << 20];

/// Binds an endpoint that copies long messages once (single copy), or twice (through the ring).
async fn bind_endpoint(single_copy: bool) -> Endpoint {
    Endpoint::options()
        .single_copy_threshold(single_copy_threshold(single_copy))
        .bind("shm://")
        .await
        .unwrap()
}

fn single_copy_threshold(single_copy: bool) -> usize {
    if single_copy { 0 } else { usize::MAX }
}

/// Returns the role of a peer whose endpoint copies once or twice.
fn role_name(role: &str, single_copy: bool) -> String {
    format!("{role}-{}", if single_copy { "once" } else { "twice" })
}

/// Plays the role of this name, and returns whether there is one.
pub(crate) async fn try_run_role(role_argument: &str, name: &str) -> bool {
    let Some((role, copies)) = role_argument.split_once('-') else {
        return false;
    };
    let ep = bind_endpoint(copies == "once").await;
    let peer = ep.add_peer(name).await.expect("add_peer");
    match role {
        "long_sender" => drop(send_until_error(&ep, peer).await),
        "long_receiver" => {
            ep.send(peer, "ready").tag(1).await.expect("send");
            drop(recv_until_error(&ep, peer, 2).await);
        }
        _ => return false,
    }
    true
}

/// Sends long messages until a send fails, and returns the error.
async fn send_until_error(ep: &Endpoint, peer: FiAddr) -> Error {
    for round in 0.. {
        let message = vec![round as u8; LENGTHS[round % 3]];
        if let Err(failed) = ep.send(peer, message).tag(2).await {
            assert_eq!(
                failed.buf.len(),
                LENGTHS[round % 3],
                "the buffer is returned"
            );
            return failed.error;
        }
    }
    unreachable!("rounds do not end");
}

/// Receives long messages until a receive fails, and returns the error.
async fn recv_until_error(ep: &Endpoint, peer: FiAddr, tag: u64) -> Error {
    for round in 0u64.. {
        let capacity = if round.is_multiple_of(2) {
            8 << 20
        } else {
            50_000
        };
        let got = match ep
            .recv_into(Vec::with_capacity(capacity))
            .tag(tag)
            .from(peer)
            .await
        {
            Err(failed) if matches!(failed.error, Error::Truncated { .. }) => failed.buf,
            Err(failed) => return failed.error,
            Ok(message) => message.into_buf(),
        };
        let whole = LENGTHS.iter().any(|len| got.len() == capacity.min(*len));
        assert!(
            whole && got.iter().all(|byte| *byte == got[0]),
            "{} bytes",
            got.len()
        );
    }
    unreachable!("rounds do not end");
}

fn check_killed_sender(single_copy: bool) {
    run(async {
        let ep = bind_endpoint(single_copy).await;
        for round in 0..ROUNDS {
            let victim = TestPeer::start(
                &role_name("long_sender", single_copy),
                &ep.name().to_string(),
            );
            let first = ep.recv().tag(2).await.unwrap();
            let killer = kill_within_two_ms(victim, round);
            let error = recv_until_error(&ep, first.source().unwrap(), 2).await;
            assert!(error.is_peer_unavailable(), "round {round}: {error}");
            killer.join().unwrap();
        }
        let stats = ep.stats();
        assert_eq!(
            (stats.single_copy_rx.count > 0, stats.unexpected),
            (single_copy, 0)
        );
        assert_still_works(&ep).await;
    });
}

/// Every message received from a killed process is complete; a partial message is never delivered.
#[test]
fn single_copy_messages_are_whole_when_sender_is_killed() {
    check_killed_sender(true);
}

#[test]
fn ring_messages_are_whole_when_sender_is_killed() {
    check_killed_sender(false);
}

fn check_killed_receiver(single_copy: bool) {
    run(async {
        let ep = bind_endpoint(single_copy).await;
        for round in 0..ROUNDS {
            let victim = TestPeer::start(
                &role_name("long_receiver", single_copy),
                &ep.name().to_string(),
            );
            let peer = ep.recv().tag(1).await.unwrap().source().unwrap();
            let killer = kill_within_two_ms(victim, round);
            let error = send_until_error(&ep, peer).await;
            assert!(error.is_peer_unavailable(), "round {round}: {error}");
            killer.join().unwrap();
        }
        let stats = ep.stats();
        assert_eq!(
            (stats.single_copy_tx.count > 0, stats.segmented.count > 0),
            (single_copy, !single_copy),
            "{stats:?}"
        );
        assert_still_works(&ep).await;
    });
}

/// Killing the receiver during its copy fails the send, which returns its buffer.
#[test]
fn single_copy_send_returns_buffer_when_receiver_is_killed() {
    check_killed_receiver(true);
}

#[test]
fn ring_send_returns_buffer_when_receiver_is_killed() {
    check_killed_receiver(false);
}

/// Messages to and from a process in another PID namespace go through the ring where
/// process_vm_readv(2) is impossible; the opposite direction may still copy once.
#[test]
fn messages_go_through_the_ring_when_peer_memory_is_unreadable() {
    if !rustix::process::geteuid().is_root() {
        return skip(
            Facility::Netns,
            "root is needed to make a process namespace",
        );
    }
    run(async {
        let ep = bind_endpoint(true).await;
        let _peer_process = match TestPeer::start_in_pid_namespace("echo", &ep.name().to_string()) {
            Ok(peer_process) => peer_process,
            Err(error) => return skip(Facility::Netns, format!("unshare: {error}")),
        };
        let peer = ep.recv().tag(3).await.unwrap().source().unwrap();
        for len in LENGTHS {
            ep.send(peer, vec![5; len]).await.unwrap();
            let back = ep.recv().tag(4).from(peer).await.unwrap();
            assert!(back.len() == len && back.iter().all(|byte| *byte == 5));
        }
        let stats = ep.stats();
        assert_eq!(
            (stats.single_copy_tx.count, stats.segmented.count),
            (0, 3),
            "{stats:?}"
        );
    });
}

/// Returns the segment of a connecting peer with this probe: an address and the value there.
fn segment_with_cma_probe(probe: (u64, u64)) -> OwnedFd {
    let segment = sealed_memfd(
        4096 + 64 * 64,
        SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
    );
    rustix::io::pwrite(&segment, &probe.0.to_le_bytes(), 640).unwrap();
    rustix::io::pwrite(&segment, &probe.1.to_le_bytes(), 648).unwrap();
    segment
}

/// Writes a message with a location into a segment: an offer (kind 6) or a loan (kind 5), with its
/// length, its address or key, and its slot.
pub(crate) fn write_location(segment: &OwnedFd, line: u64, kind: u64, location: [u64; 3]) {
    let record: Vec<u8> = location.into_iter().flat_map(u64::to_le_bytes).collect();
    let at = 4096 + 64 * line;
    rustix::io::pwrite(segment, &record, at + 8).unwrap();
    rustix::io::pwrite(segment, &(kind | 32 << 16 | 1u64 << 40).to_le_bytes(), at).unwrap();
}

/// Takes the slots that the receiver has returned: bit `n` of word `w` is slot `64 * w + n`.
pub(crate) fn take_returned_slots(segment: &OwnedFd) -> [u64; 4] {
    let mut bytes = [0; 32];
    rustix::io::pread(segment, &mut bytes, 512).unwrap();
    rustix::io::pwrite(segment, &[0; 32], 512).unwrap();
    std::array::from_fn(|word| u64::from_le_bytes(bytes[8 * word..][..8].try_into().unwrap()))
}

/// Connects with this probe, and offers a message: its length, address and slot.
async fn send_raw_offer(ep: &Endpoint, probe: (u64, u64), offer: [u64; 3]) -> (OwnedFd, OwnedFd) {
    let segment = segment_with_cma_probe(probe);
    let socket = connect_raw(ep).await;
    send_with_fds(&socket, &encode_hello("hostile", 1, 64), &[&segment]);
    write_location(&segment, 0, 6, offer);
    send_with_fds(&socket, &encode_control(101, 0), &[]);
    (socket, segment)
}

/// Sources outside of the peer's memory, of excessive length, or in a process that has not allowed
/// reads.
#[test]
fn invalid_memory_ranges_end_only_that_connection() {
    run(async {
        let ep = bind_endpoint(true).await;
        let mut events = ep.take_events().unwrap();
        let value = Box::new(0x1234_5678_u64);
        let at = (&raw const *value).expose_provenance() as u64;
        let cases = [
            ("process_vm_readv is not enabled", (0, 0), 100, at, 0),
            (
                "not in the memory of its sender",
                (at, *value),
                100,
                4096,
                0,
            ),
            (
                "not in the memory of its sender",
                (at, *value),
                1 << 20,
                u64::MAX >> 1,
                0,
            ),
            ("out of bounds", (at, *value), u64::MAX, at, 0),
            ("out of bounds", (at, *value), 100, u64::MAX, 0),
            ("out of bounds", (at, *value), 100, at, 256),
        ];
        for (reason, probe, len, at, slot) in cases {
            let _sender = send_raw_offer(&ep, probe, [len, at, slot]).await;
            expect_protocol_violation(&mut events, reason).await;
        }
        // Another value than the published one shows that the process has another program.
        let _sender = send_raw_offer(&ep, (at, *value + 1), [100, at, 0]).await;
        assert_eq!(next_down_reason(&mut events).await, DownReason::Died);
        assert_eq!(ep.stats().unexpected, 0, "no part of a message is queued");
        assert_still_works(&ep).await;
    });
}

/// A slot is used again once it was returned. An offer whose slot is held ends the connection, so
/// the number of slots limits the offers of a peer.
#[test]
fn slot_of_a_held_offer_cannot_be_offered_again() {
    run(async {
        let ep = bind_endpoint(true).await;
        let mut events = ep.take_events().unwrap();
        let value = Box::new(0x1234_5678_u64);
        let bytes = vec![5; 100_000];
        let address = |at: *const u8| at.expose_provenance() as u64;
        let at = address(bytes.as_ptr());
        let probe = (address((&raw const *value).cast()), *value);
        let (socket, segment) = send_raw_offer(&ep, probe, [100_000, at, 3]).await;
        for line in 1..4 {
            assert_eq!(ep.recv().await.unwrap()[..], bytes[..]);
            // The slot may be returned shortly after the receive has completed.
            let returned = loop {
                match take_returned_slots(&segment) {
                    [0, 0, 0, 0] => tokio::task::yield_now().await,
                    returned => break returned,
                }
            };
            assert_eq!(returned, [1 << 3, 0, 0, 0]);
            write_location(&segment, line, 6, [100_000, at, 3]);
            send_with_fds(&socket, &encode_control(101, 0), &[]);
        }
        ep.recv().await.unwrap();
        // Several offers arrive at once; the last one has the slot of the first one.
        write_location(&segment, 6, 6, [100_000, at, 3]);
        write_location(&segment, 5, 6, [100_000, at, 4]);
        write_location(&segment, 4, 6, [100_000, at, 3]);
        send_with_fds(&socket, &encode_control(101, 0), &[]);
        expect_protocol_violation(&mut events, "slot of a message that is held").await;
        assert_eq!(ep.stats().unexpected, 0, "no part of a message is queued");
        assert_still_works(&ep).await;
    });
}

/// A receiver that returns slots that it does not have, or returns them twice, completes each send
/// once. The send of a receiver that returns nothing ends with the connection.
#[test]
fn invalid_slot_returns_complete_a_send_once() {
    run(async {
        let ep = bind_endpoint(true).await;
        let name = format!("receiver-{}", std::process::id());
        let listener = RawShmListener::listen(&name);
        let peer = ep.address_vector().insert(format!("shm://{name}")).unwrap();
        let sends: Vec<_> = (0..2)
            .map(|number| ep.send(peer, vec![number; 100_000]).start().unwrap())
            .collect();
        let (connection, segment) = tokio::task::spawn_blocking(move || {
            let connection = listener.accept_ready();
            let segment = recv_control_with_fds(&connection).1.swap_remove(0);
            // Announces that the receiver can read this process.
            rustix::io::pwrite(&segment, &[1], 768).unwrap();
            send_with_fds(&connection, &encode_control(0, 1), &[]);
            (connection, segment)
        })
        .await
        .unwrap();
        let has_record = |number: u64| {
            let mut header = [0; 8];
            rustix::io::pread(&segment, &mut header, 4096 + 64 * number).unwrap();
            header[0] == 6
        };
        let return_all_slots = || {
            rustix::io::pwrite(&segment, &[0xff; 32], 512).unwrap();
            send_with_fds(&connection, &encode_control(101, 0), &[]);
        };
        // Before any slot is in use, and several times afterwards.
        return_all_slots();
        while !has_record(1) {
            ep.domain().progress();
            tokio::task::yield_now().await;
        }
        for _ in 0..3 {
            return_all_slots();
        }
        for (number, send) in sends.into_iter().enumerate() {
            assert_eq!(send.await.unwrap().into_buf(), vec![number as u8; 100_000]);
        }
        // Clears leftover bits, which would return the next slot early, as a receiver may.
        rustix::io::pwrite(&segment, &[0; 32], 512).unwrap();
        let kept = ep.send(peer, vec![7; 200_000]).start().unwrap();
        while !has_record(2) {
            ep.domain().progress();
            tokio::task::yield_now().await;
        }
        drop(connection);
        let failed = kept.await.unwrap_err();
        assert!(
            failed.error.is_peer_unavailable() && failed.buf == vec![7; 200_000],
            "{}",
            failed.error
        );
        assert_eq!(ep.stats().single_copy_tx.count, 2);
        let mut withdrawn = [0];
        rustix::io::pread(&segment, &mut withdrawn, 896).unwrap();
        assert_eq!(
            withdrawn,
            [1],
            "the withdrawal is announced before the buffer returns"
        );
        assert_still_works(&ep).await;
    });
}
