//! RMA on registered buffers between processes that are killed or violate the protocol.

use fabric_async::atomic::AtomicOp;
use fabric_async::{Access, Endpoint, Error, RemoteRegion};
use rustix::fs::SealFlags;

use crate::health::{assert_still_works, expect_protocol_violation, kill_within_two_ms};
use crate::hostile::{connect_raw, encode_hello, sealed_memfd, send_with_fds};
use crate::rma::{
    REGION_LEN, RawShmListener, encode_control, encode_grant, recv_control_with_fds, recv_region,
};
use crate::run;
use crate::test_peer::TestPeer;

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
const ROUNDS: u64 = 30;
/// Length of the bounce buffer, which both sides can write: a header and room for a segment of 64
/// KiB.
const BOUNCE_BUFFER_LEN: usize = 64 + (64 << 10);

/// Registers a buffer for the peer, and waits to be killed.
pub(crate) async fn registered_buffer_owner(name: &str) {
    let ep = Endpoint::bind("shm://").await.expect("bind");
    let region = ep
        .domain()
        .register(vec![0u8; REGION_LEN], READ_WRITE, None)
        .expect("a key");
    let peer = ep.add_peer(name).await.expect("add_peer");
    ep.send(peer, region.remote().to_bytes().to_vec())
        .await
        .expect("send");
    while ep.recv().from(peer).await.is_ok() {}
}

/// RMA operations fail when the process that owns the buffer is killed, and give their buffers
/// back.
#[test]
fn rma_ops_fail_when_buffer_owner_is_killed() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        for round in 0..ROUNDS {
            let victim = TestPeer::start("registered_buffer_owner", &ep.name().to_string());
            let (peer, remote) = recv_region(&ep).await;
            let killer = kill_within_two_ms(victim, round);
            let mut buf = vec![round as u8; [8, 4096, REGION_LEN][round as usize % 3]];
            let len = buf.len();
            let error = loop {
                buf = match ep.write(peer, remote.at(0), buf).await {
                    Ok(done) => done.into_buf(),
                    Err(failed) => {
                        assert_eq!(failed.buf.len(), len);
                        break failed.error;
                    }
                };
                match ep.read(peer, remote.slice(..len as u64)).await {
                    Ok(back) => assert!(back.iter().all(|byte| *byte == round as u8)),
                    Err(failed) => break failed.error,
                }
            };
            assert!(error.is_peer_unavailable(), "round {round}: {error}");
            killer.join().unwrap();
        }
        assert_still_works(&ep).await;
    });
}

/// A process that is killed while it writes and adds leaves the buffer consistent, and its owner
/// and other peers working.
#[test]
fn killed_rma_writer_leaves_buffer_consistent() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let mut region = ep
            .domain()
            .register(vec![0u8; REGION_LEN + 64], READ_WRITE, None)
            .unwrap();
        let bystander = Endpoint::bind("shm://").await.unwrap();
        let served = ep.clone();
        let progress = tokio::spawn(async move { served.recv().tag(77).await.map(drop) });
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
            for _ in 0..10 {
                let at = region.remote().at(REGION_LEN as u64 + 8);
                bystander
                    .atomic(to_ep, at, AtomicOp::Sum, 1u64)
                    .await
                    .unwrap();
                added += 1;
            }
            assert!(end.await.unwrap_err().error.is_peer_unavailable());
            killer.join().unwrap();
            let contents = region.lock();
            assert_eq!(
                contents[REGION_LEN + 8..REGION_LEN + 16],
                added.to_le_bytes(),
                "additions of other peers are not lost"
            );
        }
        progress.abort();
        assert_still_works(&ep).await;
    });
}

/// Requests without a bounce buffer, of an unknown kind, of a wrong length; bounce buffers of a
/// wrong size, and two of them.
#[test]
fn invalid_rma_requests_end_only_that_connection() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let mut region = ep
            .domain()
            .register(vec![7u8; 100], READ_WRITE, Some(5))
            .unwrap();
        let mut events = ep.take_events().unwrap();
        let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let request = |words: [u64; 6]| {
            words
                .into_iter()
                .flat_map(u64::to_le_bytes)
                .collect::<Vec<_>>()
        };
        let good = request([5, 0, 8, 8, 1, 1]);
        let cases = [
            ("without a bounce buffer", vec![], good.clone()),
            ("wrong length", vec![BOUNCE_BUFFER_LEN], good[..40].to_vec()),
            (
                "invalid RMA request",
                vec![BOUNCE_BUFFER_LEN],
                request([5, 0, 8, 8, 9, 1]),
            ),
            (
                "invalid RMA request",
                vec![BOUNCE_BUFFER_LEN],
                request([5, 0, 9, 8, 1, 1]),
            ),
            (
                "invalid RMA request",
                vec![BOUNCE_BUFFER_LEN],
                request([
                    5,
                    0,
                    BOUNCE_BUFFER_LEN as u64,
                    BOUNCE_BUFFER_LEN as u64,
                    0,
                    1,
                ]),
            ),
            (
                "invalid RMA request",
                vec![BOUNCE_BUFFER_LEN],
                request([5, 0, 8, 8, 2 | 99 << 8, 1]),
            ),
            ("wrong size", vec![4096], good.clone()),
            (
                "a second one",
                vec![BOUNCE_BUFFER_LEN, BOUNCE_BUFFER_LEN],
                good.clone(),
            ),
        ];
        for (reason, bounce_buffers, record) in cases {
            let segment = sealed_memfd(4096 + 64 * 64, all);
            let socket = connect_raw(&ep).await;
            send_with_fds(&socket, &encode_hello("hostile", 1, 64), &[&segment]);
            for len in bounce_buffers {
                send_with_fds(
                    &socket,
                    &encode_grant(0, len as u64, 3),
                    &[&sealed_memfd(4096 + len, all)],
                );
            }
            let header = 7 | (8 + record.len() as u64) << 16 | 1 << 40;
            rustix::io::pwrite(&segment, &record, 4096 + 8).unwrap();
            rustix::io::pwrite(&segment, &u64::to_le_bytes(header), 4096).unwrap();
            send_with_fds(&socket, &encode_control(101, 0), &[]);
            expect_protocol_violation(&mut events, reason).await;
        }
        assert_eq!(region.lock()[..], [7; 100]);
        assert_still_works(&ep).await;
    });
}

/// A malformed response of an owner ends the operation once, or ends the connection.
#[test]
fn invalid_rma_response_ends_its_operation_once() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let name = format!("server-{}", std::process::id());
        let listener = RawShmListener::listen(&name);
        let peer = ep.address_vector().insert(format!("shm://{name}")).unwrap();
        let remote = RemoteRegion::new(5, 100, READ_WRITE);
        let first = ep.read(peer, remote.slice(..100)).start().unwrap();
        let (connection, bounce_buffer) = tokio::task::spawn_blocking(move || {
            let connection = listener.accept_ready();
            recv_control_with_fds(&connection);
            send_with_fds(&connection, &encode_control(0, 1), &[]);
            assert_eq!(
                recv_control_with_fds(&connection).0[10..12],
                103u16.to_le_bytes(),
                "a key query"
            );
            send_with_fds(&connection, &encode_control(107, 5), &[]);
            let bounce_buffer = recv_control_with_fds(&connection).1.swap_remove(0);
            (connection, bounce_buffer)
        })
        .await
        .unwrap();
        let respond = |number: u64, code: u64| {
            rustix::io::pwrite(&bounce_buffer, &code.to_ne_bytes(), 4096 + 8).unwrap();
            rustix::io::pwrite(&bounce_buffer, &number.to_ne_bytes(), 4096).unwrap();
            send_with_fds(&connection, &encode_control(101, 0), &[]);
        };
        // A response with an unknown id is ignored. A response with the id ends the operation, even
        // with an unknown status.
        respond(99, 0);
        respond(1, u64::MAX);
        let error = first.await.unwrap_err().error;
        assert_eq!(
            error,
            Error::Key {
                key: 5,
                why: "is unknown"
            }
        );
        let second = ep.read(peer, remote.slice(..100)).start().unwrap();
        // The second operation queries the key again.
        send_with_fds(&connection, &encode_control(107, 5), &[]);
        while u64::from_ne_bytes(read_request_id(&bounce_buffer)) != 1 {
            tokio::task::yield_now().await;
        }
        drop(connection);
        assert!(second.await.unwrap_err().error.is_peer_unavailable());
        assert_still_works(&ep).await;
    });
}

fn read_request_id(bounce_buffer: &std::os::fd::OwnedFd) -> [u8; 8] {
    let mut id = [0; 8];
    rustix::io::pread(bounce_buffer, &mut id, 4096).unwrap();
    id
}
