//! Peers that violate the protocol lose their own connection and affect nothing else.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use fabric_async::{Access, DownReason, Endpoint, Error, EventKind};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketType,
};

use crate::health::{
    assert_still_works, expect_protocol_violation, next_down_reason, next_rejection,
};
use crate::rma::encode_control;
use crate::run;
use crate::skip::{Facility, skip};
use crate::test_peer::TestPeer;

/// The code of the message that a receiver sends to processes of its own user before their hello.
pub(crate) const READY_CODE: u16 = 109;
const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
const RING_LINES: u32 = 64;
const SEGMENT_LEN: usize = 4096 + 64 * RING_LINES as usize;

/// Connects to an endpoint of this process, which then waits for the hello.
pub(crate) async fn connect_raw(at: &Endpoint) -> OwnedFd {
    let socket = connect_raw_to(at.name().name());
    let mut ready = [0; 20];
    while rustix::net::recv(&socket, &mut ready, RecvFlags::DONTWAIT).is_err() {
        at.domain().progress();
        tokio::task::yield_now().await;
    }
    assert_eq!(ready[..], encode_control(READY_CODE, 0));
    socket
}

pub(crate) fn connect_raw_to(name: &str) -> OwnedFd {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    let name = format!("fabric-async/shm/{name}");
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    socket
}

pub(crate) fn encode_hello(name: &str, version: u16, lines: u32) -> Vec<u8> {
    let mut bytes = b"fab-shm\0".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(lines.to_le_bytes());
    bytes.extend(7u64.to_le_bytes());
    bytes.extend(name.as_bytes());
    bytes
}

pub(crate) fn sealed_memfd(size: usize, seals: SealFlags) -> OwnedFd {
    let fd = rustix::fs::memfd_create("hostile", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, size as u64).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

pub(crate) fn send_with_fds(socket: &OwnedFd, bytes: &[u8], fds: &[&OwnedFd]) {
    try_send_with_fds(socket, bytes, fds).unwrap();
}

pub(crate) fn try_send_with_fds(
    socket: &OwnedFd,
    bytes: &[u8],
    fds: &[&OwnedFd],
) -> rustix::io::Result<usize> {
    let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    rustix::net::sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    )
}

#[test]
fn malformed_hello_is_rejected_with_reason() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let mut events = ep.take_events().unwrap();
        let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let (good, unsealed, small) = (
            sealed_memfd(SEGMENT_LEN, all),
            sealed_memfd(SEGMENT_LEN, SealFlags::empty()),
            sealed_memfd(4096, all),
        );
        let sparse = sealed_memfd(SEGMENT_LEN, all);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&sparse, punch, 0, 4096).unwrap();
        let file: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        let cases: [(&str, Vec<u8>, Vec<&OwnedFd>); 12] = [
            (
                "not sealed memory",
                encode_hello("x", 1, RING_LINES),
                vec![&file],
            ),
            (
                "exactly one descriptor",
                encode_hello("x", 1, RING_LINES),
                vec![],
            ),
            ("short", b"hi".to_vec(), vec![]),
            ("wrong magic", vec![7; 40], vec![]),
            ("too long", vec![7; 400], vec![]),
            ("version", encode_hello("x", 999, RING_LINES), vec![&good]),
            (
                "exactly one descriptor",
                encode_hello("x", 1, RING_LINES),
                vec![&good, &good],
            ),
            ("name", encode_hello("no/slash", 1, RING_LINES), vec![&good]),
            (
                "not sealed",
                encode_hello("x", 1, RING_LINES),
                vec![&unsealed],
            ),
            (
                "announced size",
                encode_hello("x", 1, RING_LINES),
                vec![&small],
            ),
            (
                "not allocated",
                encode_hello("x", 1, RING_LINES),
                vec![&sparse],
            ),
            ("out of bounds", encode_hello("x", 1, u32::MAX), vec![&good]),
        ];
        for (reason, bytes, fds) in cases {
            let socket = connect_raw(&ep).await;
            send_with_fds(&socket, &bytes, &fds);
            let error = next_rejection(&mut events).await;
            assert!(error.to_string().contains(reason), "{reason}: {error}");
        }
        // A silent connection and one that is closed without a hello have no effect.
        let _silent = connect_raw(&ep).await;
        drop(connect_raw(&ep).await);
        assert_still_works(&ep).await;
    });
}

#[test]
fn corrupted_segment_ends_only_that_connection() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let mut events = ep.take_events().unwrap();
        let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let mut seed = 1u64;
        let (mut ended, mut violations) = (0, 0);
        let mut count = |event: EventKind| match event {
            EventKind::PeerDown { peer, reason, .. } if peer.name().starts_with("corruptor") => {
                ended += 1;
                violations += u32::from(matches!(reason, DownReason::Protocol(_)));
            }
            EventKind::PeerConnected { .. } | EventKind::PeerDown { .. } => {}
            other => panic!("{other:?}"),
        };
        for round in 0..200u64 {
            let fd = sealed_memfd(SEGMENT_LEN, all);
            let socket = connect_raw(&ep).await;
            send_with_fds(
                &socket,
                &encode_hello(&format!("corruptor-{round}"), 1, RING_LINES),
                &[&fd],
            );
            let mut garbage = vec![0u8; SEGMENT_LEN - 4096];
            for byte in &mut garbage {
                seed = seed
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                *byte = (seed >> 56) as u8;
            }
            // A valid header of the first lap, so that the record is parsed: kind, flags, length,
            // lap 1.
            let kind = if round % 4 == 0 { 0xff } else { round % 6 };
            let len = [0, 3, 8, 16, 60, 500, 512, 513, 0xff_ffff][round as usize % 9];
            let header = kind | (round % 7) << 8 | len << 16 | 1 << 40;
            garbage[..8].copy_from_slice(&header.to_le_bytes());
            rustix::io::pwrite(&fd, &garbage, 4096).unwrap();
            send_with_fds(&socket, b"fab-shm\0\x01\0\x65\0\0\0\0\0\0\0\0\0", &[]);
            if round % 10 == 0 {
                assert_still_works(&ep).await;
            }
            drop(socket);
            while let Some(event) = events.try_read() {
                count(event.kind);
            }
        }
        // Every corruptor is reported, with a protocol violation or as closed, and no connection
        // is left.
        assert_still_works(&ep).await;
        while !format!("{:?}", ep.domain()).contains("(0 incoming connections") {
            count(events.read().await.kind);
        }
        while let Some(event) = events.try_read() {
            count(event.kind);
        }
        assert_eq!(ended, 200);
        assert!(violations > 0, "no protocol violation was reported");
    });
}

/// Receives a message from the socket of `ep` and returns its code.
async fn recv_code(ep: &Endpoint, socket: &OwnedFd) -> u16 {
    let mut message = [0; 64];
    while rustix::net::recv(socket, &mut message, RecvFlags::DONTWAIT).is_err() {
        ep.domain().progress();
        tokio::task::yield_now().await;
    }
    u16::from_le_bytes([message[10], message[11]])
}

/// A mapping for writing can also be read, so the memory of a region is granted only with the right
/// to read it. The owner serves the other regions.
#[test]
fn memory_without_remote_read_is_not_granted() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let (granted, served) = (105, 107);
        let fd = sealed_memfd(
            SEGMENT_LEN,
            SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
        );
        let socket = connect_raw(&ep).await;
        send_with_fds(&socket, &encode_hello("peer", 1, RING_LINES), &[&fd]);
        recv_code(&ep, &socket).await;
        for (access, code) in [
            (READ_WRITE, granted),
            (Access::REMOTE_READ, granted),
            (Access::REMOTE_WRITE, served),
        ] {
            let region = ep.domain().alloc(64, access).unwrap();
            send_with_fds(&socket, &encode_control(103, region.key()), &[]);
            assert_eq!(recv_code(&ep, &socket).await, code, "{access:?}");
        }
    });
}

/// Returns the record of a notification that the region with this key was accessed.
fn encode_rma_notification(key: u64, reads: bool, data: Option<u64>) -> Vec<u8> {
    let (kind, data_flag, read_flag, lap) = (4, 2 * u64::from(data.is_some()), 4, 1);
    let flags = data_flag | if reads { read_flag } else { 0 };
    let mut words: Vec<u64> = data.into_iter().collect();
    words.extend([8, key]);
    let header = kind | flags << 8 | (8 + 8 * words.len() as u64) << 16 | lap << 40;
    words.insert(0, header);
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}

/// A peer can notify only of accesses to regions that were granted to it, so only such accesses
/// take entries of the target's completion queue.
#[test]
fn rma_notification_needs_a_granted_region() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let mut events = ep.take_events().unwrap();
        let domain = ep.domain();
        let readable = domain.alloc(64, Access::REMOTE_READ).unwrap();
        let mapped = domain.alloc(64, READ_WRITE).unwrap();
        let writable = domain.alloc(64, Access::REMOTE_WRITE).unwrap();
        let served = domain
            .register(vec![0; 64], Access::REMOTE_WRITE, None)
            .unwrap();
        let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        for (queried, notified, reads, data, accepted) in [
            (None, writable.key() ^ 1, false, Some(5), false),
            (None, writable.key(), false, Some(5), false),
            (Some(readable.key()), writable.key(), false, Some(5), false),
            (Some(readable.key()), readable.key(), false, Some(5), false),
            (Some(readable.key()), readable.key(), true, Some(5), false),
            (Some(writable.key()), writable.key(), true, None, false),
            (Some(writable.key()), writable.key(), false, Some(5), true),
            (Some(mapped.key()), mapped.key(), false, Some(5), true),
            (Some(mapped.key()), mapped.key(), true, None, true),
            (Some(served.key()), served.key(), false, Some(5), true),
        ] {
            let before = ep.stats().remote_ops.count;
            let fd = sealed_memfd(SEGMENT_LEN, all);
            let socket = connect_raw(&ep).await;
            send_with_fds(&socket, &encode_hello("peer", 1, RING_LINES), &[&fd]);
            if let Some(key) = queried {
                send_with_fds(&socket, &encode_control(103, key), &[]);
                // The accept, and the response to the query.
                recv_code(&ep, &socket).await;
                recv_code(&ep, &socket).await;
            }
            let record = encode_rma_notification(notified, reads, data);
            rustix::io::pwrite(&fd, &record, 4096).unwrap();
            send_with_fds(&socket, &encode_control(101, 0), &[]);
            if accepted {
                while ep.stats().remote_ops.count == before {
                    ep.domain().progress();
                    tokio::task::yield_now().await;
                }
                drop(socket);
                assert_eq!(next_down_reason(&mut events).await, DownReason::Died);
            } else {
                let rule = if data.is_some() && reads {
                    "read with completion data"
                } else {
                    "not granted"
                };
                expect_protocol_violation(&mut events, rule).await;
                assert_eq!(ep.stats().remote_ops.count, before);
            }
        }
        assert_still_works(&ep).await;
    });
}

#[test]
fn peer_of_another_user_is_refused_on_both_sides() {
    if !rustix::process::geteuid().is_root() {
        return skip(
            Facility::Root,
            "root is needed to start a process of another user",
        );
    }
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let mut events = ep.take_events().unwrap();
        let name = ep.name().to_string();
        let mut other_user = match TestPeer::start_as_user("other_user", &name, 65_534) {
            Ok(other_user) => other_user,
            Err(error) => {
                return skip(Facility::Root, format!("start as another user: {error}"));
            }
        };
        let error = next_rejection(&mut events).await;
        assert!(
            matches!(
                error,
                Error::OtherUser {
                    theirs: 65_534,
                    ours: 0,
                    ..
                }
            ),
            "{error}"
        );
        let code = tokio::task::spawn_blocking(move || other_user.0.wait())
            .await
            .unwrap()
            .unwrap();
        assert!(
            code.success(),
            "the other user's connect did not fail with OtherUser: {code}"
        );
        assert_still_works(&ep).await;
    });
}

/// Peers work in different PID namespaces, as in two containers that share a network, where neither
/// has a process id for the other.
#[test]
fn peer_in_another_pid_namespace_works() {
    if !rustix::process::geteuid().is_root() {
        return skip(
            Facility::Netns,
            "root is needed to make a process namespace",
        );
    }
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let mut events = ep.take_events().unwrap();
        let mut peer_process =
            match TestPeer::start_in_pid_namespace("echo", &ep.name().to_string()) {
                Ok(peer_process) => peer_process,
                Err(error) => return skip(Facility::Netns, format!("unshare: {error}")),
            };
        let ready = ep.recv().tag(3).await.unwrap();
        let peer = ready.source().unwrap();
        for number in 0..100u64 {
            ep.send(peer, number.to_le_bytes().to_vec()).await.unwrap();
            assert_eq!(
                ep.recv().tag(4).from(peer).await.unwrap()[..],
                number.to_le_bytes()
            );
        }
        let last = ep.recv().from(peer).start().unwrap();
        peer_process.0.kill().unwrap();
        assert!(matches!(
            last.await.unwrap_err().error,
            Error::PeerGone(_) | Error::StaleAddress(_)
        ));
        while !matches!(
            events.read().await.kind,
            EventKind::PeerDown {
                reason: DownReason::Died,
                ..
            }
        ) {}
        assert_still_works(&ep).await;
    });
}
