//! One-sided operations between processes that are killed or violate the protocol.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use fabric_async::atomic::AtomicOp;
use fabric_async::{
    Access, DownReason, Endpoint, Error, EventKind, FiAddr, RemoteAddr, RemoteRegion,
};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType,
};

use crate::health::{assert_still_works, kill_within_two_ms};
use crate::hostile::{READY_CODE, connect_raw, encode_hello, sealed_memfd, send_with_fds};
use crate::leak_check::run_in_own_process;
use crate::run;
use crate::skip::{Facility, skip};
use crate::test_peer::TestPeer;

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
const ROUNDS: u64 = 40;
pub(crate) const REGION_LEN: usize = 1 << 20;
pub(crate) const LARGE_REGION_LEN: usize = 3 << 20;
pub(crate) const MEMFD_REGION_LEN: usize = 5 << 18;

/// Counts the mapped regions of this length. Tests run side by side in one process, so a test that
/// compares counts uses a length of its own.
pub(crate) fn count_region_mappings(len: usize) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let hex = |at: &str| usize::from_str_radix(at, 16).unwrap();
    let size = |line: &str| {
        let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        hex(to) - hex(from)
    };
    let regions = maps
        .lines()
        .filter(|line| line.contains("memfd:fabric-region"));
    // A mapping is longer than its region: the first page says whether the region is valid.
    regions
        .filter(|line| (len..len + 64 * 1024).contains(&size(line)))
        .count()
}

/// Receives the announcement of a peer's region.
pub(crate) async fn recv_region(ep: &Endpoint) -> (FiAddr, RemoteRegion) {
    let announcement = ep.recv().await.unwrap();
    (
        announcement.source().unwrap(),
        RemoteRegion::from_bytes(&announcement).unwrap(),
    )
}

/// Vectored RMA into a process that is killed: a refused operation changes nothing, and the
/// operation that is pending at the death fails and returns its buffer.
#[test]
fn rma_iov_ops_fail_when_target_is_killed() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        for round in 0..ROUNDS / 2 {
            let victim = TestPeer::start("rma_target", &ep.name().to_string());
            let (peer, remote) = recv_region(&ep).await;
            let end = REGION_LEN as u64;
            let segments = [
                remote.slice(end - 8..),
                remote.slice(..400_000),
                remote.slice(500_000..500_100),
            ];
            let bytes: Vec<u8> = (0..400_108).map(|at| (at % 251) as u8).collect();
            ep.write(peer, segments, bytes.clone()).await.unwrap();
            let beyond = [
                segments[1],
                fabric_async::RemoteSlice {
                    len: 9,
                    ..segments[0]
                },
            ];
            let refused = ep
                .write(peer, beyond, vec![255; 400_009])
                .await
                .unwrap_err();
            assert!(
                matches!(refused.error, Error::OutOfBounds { .. }),
                "{}",
                refused.error
            );
            assert_eq!(ep.read(peer, segments).await.unwrap()[..], bytes[..]);
            let killer = kill_within_two_ms(victim, round);
            let mut buf = bytes;
            let failed = loop {
                match ep.write(peer, segments, buf).await {
                    Ok(done) => buf = done.into_buf(),
                    Err(failed) => break failed,
                }
            };
            assert!(
                failed.error.is_peer_unavailable(),
                "round {round}: {}",
                failed.error
            );
            assert_eq!(failed.buf.len(), 400_108);
            killer.join().unwrap();
        }
        assert_still_works(&ep).await;
    });
}

/// RMA operations fail when the target process is killed, and none of its regions stays mapped.
#[test]
fn rma_ops_fail_when_target_is_killed() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        for round in 0..ROUNDS {
            let victim = TestPeer::start("rma_target", &ep.name().to_string());
            let (peer, remote) = recv_region(&ep).await;
            let killer = kill_within_two_ms(victim, round);
            let mut buf = vec![round as u8; [8, 4096, REGION_LEN][round as usize % 3]];
            let error = loop {
                buf = match ep.write(peer, remote.at(0), buf).await {
                    Ok(done) => done.into_buf(),
                    Err(failed) => break failed.error,
                };
                if let Err(error) = ep.fetch_add(peer, remote.at(0), 1u64).await {
                    break error;
                }
                if let Err(failed) = ep.read(peer, remote.slice(..100)).await {
                    break failed.error;
                }
            };
            assert!(error.is_peer_unavailable(), "round {round}: {error}");
            killer.join().unwrap();
        }
        while count_region_mappings(REGION_LEN) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_still_works(&ep).await;
    });
}

/// Memory that the target's program has created is accessed while no thread of the target makes
/// progress, until the target is killed. Then it is unmapped.
#[test]
fn program_memory_is_accessed_while_its_process_blocks() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        for round in 0..4u64 {
            let mut victim = TestPeer::start("memfd_target", &ep.name().to_string());
            let (peer, remote) = recv_region(&ep).await;
            assert_eq!(remote.len, MEMFD_REGION_LEN as u64);
            let read = ep.read(peer, remote.slice(..7)).await.unwrap();
            assert_eq!(&read[..], b"program");
            assert_eq!(count_region_mappings(MEMFD_REGION_LEN), 1);
            ep.send(peer, "block").match_complete().await.unwrap();
            let bytes: Vec<u8> = (0..MEMFD_REGION_LEN).map(|at| (at % 249) as u8).collect();
            let written = ep.write(peer, remote.at(0), bytes).await.unwrap();
            let read = ep.read(peer, remote.slice(..)).await.unwrap();
            assert!(read[..] == written.into_buf());
            let first = ep.fetch_add(peer, remote.at(0), round).await.unwrap();
            assert_eq!(first.to_ne_bytes(), [0, 1, 2, 3, 4, 5, 6, 7]);
            victim.0.kill().unwrap();
            let error = loop {
                if let Err(failed) = ep.write(peer, remote.at(0), "after").await {
                    break failed.error;
                }
            };
            assert!(error.is_peer_unavailable(), "round {round}: {error}");
        }
        while count_region_mappings(MEMFD_REGION_LEN) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_still_works(&ep).await;
    });
}

/// A window on the memory of a killed process closes when the death is detected, and the region is
/// unmapped.
#[test]
fn remote_window_closes_when_owner_is_killed() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let mut events = ep.take_events().unwrap();
        let mut victim = TestPeer::start("rma_target large", &ep.name().to_string());
        let (peer, remote) = recv_region(&ep).await;
        let owner = ep.address_vector().lookup(peer).unwrap();
        let window = ep.window(peer, remote).await.unwrap();
        window.write(LARGE_REGION_LEN - 8, &[7; 8]).unwrap();
        assert!(count_region_mappings(LARGE_REGION_LEN) > 0);
        victim.0.kill().unwrap();
        victim.0.wait().unwrap();
        while !matches!(events.read().await.kind, EventKind::PeerDown { .. }) {}
        assert!(!window.is_open());
        let gone = Error::PeerGone(owner);
        assert_eq!(window.write(0, b"x"), Err(gone.clone()));
        assert_eq!(window.read(0, &mut [0; 8]), Err(gone.clone()));
        assert_eq!(window.load::<u64>(0), Err(gone.clone()));
        assert_eq!(window.atomic(0, AtomicOp::Sum, 1u64), Err(gone));
        drop((window, peer));
        // A thread of the process unmaps the memory of peers.
        while count_region_mappings(LARGE_REGION_LEN) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_still_works(&ep).await;
    });
}

/// A process that is killed while it writes and adds leaves the region consistent, and its owner
/// and other peers working.
#[test]
fn killed_rma_writer_leaves_region_consistent() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let region = ep.domain().alloc(REGION_LEN + 64, READ_WRITE).unwrap();
        let bystander = Endpoint::bind("shm://").await.unwrap();
        let (to_ep, mut added) = (bystander.add_peer(ep.name()).await.unwrap(), 0u64);
        for round in 0..ROUNDS {
            let victim = TestPeer::start("rma_writer", &ep.name().to_string());
            let hello = ep.recv().tag(1).await.unwrap();
            let peer = hello.source().unwrap();
            ep.send(peer, region.remote().to_bytes().to_vec())
                .await
                .unwrap();
            let end = ep.recv().tag(2).from(peer).start().unwrap();
            let killer = kill_within_two_ms(victim, round);
            for _ in 0..100 {
                bystander
                    .atomic(
                        to_ep,
                        region.remote().at(REGION_LEN as u64 + 8),
                        AtomicOp::Sum,
                        1u64,
                    )
                    .await
                    .unwrap();
                added += 1;
            }
            assert!(end.await.unwrap_err().error.is_peer_unavailable());
            killer.join().unwrap();
            assert_eq!(
                region.load(REGION_LEN + 8),
                Ok(added),
                "additions of other peers are not lost"
            );
        }
        drop(bystander);
        assert_still_works(&ep).await;
    });
}

/// A peer that sends key queries and never reads the responses is disconnected; other peers are
/// not.
#[test]
fn peer_flooding_key_queries_is_disconnected() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let region = ep.domain().alloc(64, READ_WRITE).unwrap();
        let mut events = ep.take_events().unwrap();
        let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        for key in [region.key(), region.key() + 1] {
            let segment = sealed_memfd(4096 + 64 * 64, all);
            let socket = connect_raw(&ep).await;
            send_with_fds(&socket, &encode_hello("curious", 1, 64), &[&segment]);
            let query = encode_control(103, key);
            let reason = loop {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                let _ = rustix::net::send(&socket, &query, flags);
                ep.domain().progress();
                match events.try_read().map(|event| event.kind) {
                    Some(EventKind::PeerDown { reason, .. }) => break reason,
                    _ => tokio::task::yield_now().await,
                }
            };
            assert_eq!(
                reason,
                DownReason::Protocol("peer does not read the responses to its requests")
            );
        }
        assert_still_works(&ep).await;
    });
}

pub(crate) fn encode_control(code: u16, argument: u64) -> Vec<u8> {
    let mut bytes = b"fab-shm\0\x01\0".to_vec();
    bytes.extend(code.to_le_bytes());
    bytes.extend(argument.to_le_bytes());
    bytes
}

pub(crate) fn encode_grant(key: u64, len: u64, rights: u8) -> Vec<u8> {
    let mut bytes = encode_control(105, key);
    bytes.extend(len.to_le_bytes());
    bytes.push(rights);
    bytes
}

/// A listener for shared-memory connections whose messages the test chooses.
pub(crate) struct RawShmListener(pub(crate) OwnedFd);

impl RawShmListener {
    pub(crate) fn listen(name: &str) -> Self {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        let name = format!("fabric-async/shm/{name}");
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        rustix::net::bind(&socket, &address).unwrap();
        rustix::net::listen(&socket, 8).unwrap();
        Self(socket)
    }

    /// Accepts the next connection and asks for its hello.
    pub(crate) fn accept_ready(&self) -> OwnedFd {
        let connection = rustix::net::accept(&self.0).unwrap();
        send_with_fds(&connection, &encode_control(READY_CODE, 0), &[]);
        connection
    }

    /// Completes the handshake with the next peer, waits for its key query and sends this response.
    fn answer_key_query(&self, response: &[u8], fds: &[&OwnedFd]) -> OwnedFd {
        let connection = self.accept_ready();
        recv_control(&connection);
        send_with_fds(&connection, &encode_control(0, 1), &[]);
        assert_eq!(
            recv_control(&connection)[10..12],
            103u16.to_le_bytes(),
            "a key query"
        );
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        let bytes = [std::io::IoSlice::new(response)];
        rustix::net::sendmsg(&connection, &bytes, &mut control, SendFlags::NOSIGNAL).unwrap();
        connection
    }
}

pub(crate) fn recv_control(socket: &OwnedFd) -> Vec<u8> {
    recv_control_with_fds(socket).0
}

/// Receives a control message with its descriptors.
pub(crate) fn recv_control_with_fds(socket: &OwnedFd) -> (Vec<u8>, Vec<OwnedFd>) {
    let mut bytes = vec![0; 300];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
    let got = rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::empty())
        .unwrap()
        .bytes;
    bytes.truncate(got);
    let fds = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
        _ => Vec::new(),
    });
    (bytes, fds.collect())
}

/// A malformed response to a key query fails the operation, and the next peer works.
#[test]
fn invalid_key_responses_fail_the_operation() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let page = move |size: usize| sealed_memfd(4096 + size, all);
        let (good, small, head, unsealed) = (
            page(64),
            page(8),
            page(0),
            sealed_memfd(4096 + 64, SealFlags::empty()),
        );
        let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        let truncated = encode_grant(5, 64, 3)[..28].to_vec();
        let cases: [(Vec<u8>, Vec<&OwnedFd>, &str); 16] = [
            (encode_control(104, 5), vec![], "is unknown"),
            (encode_grant(5, 64, 3), vec![&small], "announced size"),
            (encode_grant(5, u64::MAX, 3), vec![&good], "too large"),
            (encode_grant(5, 64, 3), vec![&unsealed], "not sealed"),
            (encode_grant(5, 64, 3), vec![&null], "sealed"),
            // A valid grant and a refusal, both for a key that was not queried.
            (
                encode_grant(6, 64, 3),
                vec![&good],
                "unsolicited memory grant",
            ),
            (encode_control(104, 6), vec![], "unsolicited response"),
            (encode_grant(5, 64, 0xff), vec![&good], "not a memory grant"),
            (truncated, vec![&good], "not a memory grant"),
            (encode_grant(5, 64, 3), vec![], "did not arrive"),
            // A second descriptor is the head of memory of the program.
            (
                encode_grant(5, 4160, 3),
                vec![&good, &small],
                "announced size",
            ),
            (encode_grant(5, 64, 3), vec![&good, &head], "announced size"),
            (encode_grant(5, 4160, 3), vec![&good, &null], "sealed"),
            (encode_grant(5, 0, 3), vec![&good, &head], "without bytes"),
            (
                encode_grant(5, 4160, 3),
                vec![&unsealed, &head],
                "not sealed",
            ),
            (
                encode_grant(5, 4160, 3),
                vec![&good, &head, &head],
                "more than two descriptors",
            ),
        ];
        for (number, (response, fds, reason)) in cases.into_iter().enumerate() {
            let name = format!("listener-{}-{number}", std::process::id());
            let listener = RawShmListener::listen(&name);
            let peer = ep.address_vector().insert(format!("shm://{name}")).unwrap();
            let write = ep
                .write(peer, RemoteAddr { key: 5, offset: 0 }, "x")
                .start()
                .unwrap();
            let fds: Vec<OwnedFd> = fds.into_iter().map(|fd| fd.try_clone().unwrap()).collect();
            let responding = std::thread::spawn(move || {
                listener.answer_key_query(&response, &fds.iter().collect::<Vec<_>>())
            });
            let failed = write.await.unwrap_err();
            assert!(
                failed.error.to_string().contains(reason),
                "case {number}: {}",
                failed.error
            );
            drop(responding.join().unwrap());
        }
        // Access that was not granted, and memory that its owner has withdrawn.
        let name = format!("listener-{}", std::process::id());
        let listener = RawShmListener::listen(&name);
        let peer = ep.address_vector().insert(format!("shm://{name}")).unwrap();
        let write = ep
            .write(peer, RemoteAddr { key: 5, offset: 0 }, "x")
            .start()
            .unwrap();
        let responding = std::thread::spawn(move || {
            // A second query would get the same response.
            listener.answer_key_query(&encode_grant(5, 64, 3), &[&page(64)])
        });
        let failed = write.await.unwrap_err();
        assert_eq!(
            failed.error,
            Error::Key {
                key: 5,
                why: "was revoked by its owner"
            }
        );
        drop(responding.join().unwrap());
        assert_still_works(&ep).await;
    });
}

/// Length of memory that ends within a huge page.
const PARTIAL_PAGE_LEN: u64 = 10_000;

/// Creates memory that ends within a huge page, which was freed. A page behind the end of the
/// memory is allocated instead.
fn memory_without_its_huge_page() -> rustix::io::Result<OwnedFd> {
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    let memory = rustix::fs::memfd_create("hostile", flags)?;
    let page = rustix::fs::fstatfs(&memory)?.f_bsize as u64;
    rustix::fs::fallocate(&memory, FallocateFlags::empty(), 0, PARTIAL_PAGE_LEN)?;
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&memory, punch, 0, page)?;
    rustix::fs::fallocate(&memory, FallocateFlags::KEEP_SIZE, page, page)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&memory, seals)?;
    Ok(memory)
}

/// An access to a huge page of which the file has only a part raises `SIGBUS` unless the page is
/// allocated.
#[test]
fn partial_huge_page_of_a_peer_is_not_mapped() {
    run_in_own_process("rma::partial_huge_page_of_a_peer_is_not_mapped", || {
        let memory = match memory_without_its_huge_page() {
            Ok(memory) => memory,
            Err(errno) => return skip(Facility::HugePages, errno),
        };
        run(async {
            let ep = Endpoint::bind("shm://").await.unwrap();
            let name = format!("huge-{}", std::process::id());
            let listener = RawShmListener::listen(&name);
            let peer = ep.address_vector().insert(format!("shm://{name}")).unwrap();
            let remote = RemoteRegion::new(5, PARTIAL_PAGE_LEN, Access::REMOTE_READ);
            let read = ep.read(peer, remote.slice(..8)).start().unwrap();
            let head = sealed_memfd(4096, SealFlags::SHRINK | SealFlags::SEAL);
            rustix::io::pwrite(&head, &1u32.to_ne_bytes(), 0).unwrap();
            let responding = std::thread::spawn(move || {
                listener.answer_key_query(&encode_grant(5, PARTIAL_PAGE_LEN, 1), &[&memory, &head])
            });
            let failed = read.await.unwrap_err();
            assert!(
                failed.error.to_string().contains("a part of a huge page"),
                "{}",
                failed.error
            );
            drop(responding.join().unwrap());
            assert_still_works(&ep).await;
        });
    });
}
