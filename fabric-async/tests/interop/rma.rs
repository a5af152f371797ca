//! Reads and writes in both directions.

use fabric_async::{Access, Completion, CounterBind, Error, OpKind, RemoteAddr, RemoteSlice};

use crate::libfabric_peer::LibfabricPeer;
use crate::{InteropFixture, pattern, run_against_peer};

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
/// Lengths around the segment size, and beyond.
const LENGTHS: [usize; 7] = [0, 1, 8, 4096, 16_385, 300_000, 4 << 20];

fn remote_slice(key: u64, offset: u64, len: usize) -> RemoteSlice {
    RemoteSlice { key, offset, len }
}

async fn next_completion(fixture: &mut InteropFixture) -> Completion {
    let mut out = Vec::new();
    fixture.cq.read_batch(&mut out, 1).await;
    out.pop().expect("the queue is open")
}

#[test]
fn rma_to_libfabric_memory_works() {
    run_against_peer(check_rma_to_libfabric);
}

pub(crate) async fn check_rma_to_libfabric(local: InteropFixture, libfabric: LibfabricPeer) {
    libfabric
        .expect_reply(format!("region 7 {}", 8 << 20), "region")
        .await;
    let peer = local.fi_addr_of(&libfabric);
    for (number, len) in LENGTHS.into_iter().enumerate() {
        let (seed, at) = (number as u8 + 1, 5 * number as u64);
        local
            .ep
            .write(peer, RemoteAddr { key: 7, offset: at }, pattern(len, seed))
            .await
            .unwrap();
        libfabric
            .expect_reply(format!("check {at} {len} {seed}"), "same")
            .await;
        libfabric
            .expect_reply(format!("fill {at} {len} {}", seed + 100), "filled")
            .await;
        let got = local.ep.read(peer, remote_slice(7, at, len)).await.unwrap();
        assert!(got[..] == pattern(len, seed + 100)[..], "{len} bytes");
    }
    // Four remote ranges at once, some of them empty.
    let iovs = [
        remote_slice(7, 0, 10),
        remote_slice(7, 100, 300_000),
        remote_slice(7, 50, 0),
        remote_slice(7, 20, 5),
    ];
    let bytes = pattern(300_015, 9);
    local.ep.write(peer, iovs, bytes.clone()).await.unwrap();
    assert!(local.ep.read(peer, iovs).await.unwrap()[..] == bytes[..]);
    libfabric.expect_reply("check 0 10 9", "same").await;
    local
        .ep
        .write(peer, RemoteAddr { key: 7, offset: 3 }, &pattern(40, 2))
        .inject()
        .unwrap();
    local.ep.read(peer, remote_slice(7, 0, 1)).await.unwrap();
    libfabric.expect_reply("check 3 40 2", "same").await;
    // Many writes in flight, in order.
    let writes: Vec<_> = (0..200u64)
        .map(|at| {
            local
                .ep
                .write(peer, RemoteAddr { key: 7, offset: 0 }, vec![at as u8; 8])
                .start()
                .unwrap()
        })
        .collect();
    for write in writes {
        write.await.unwrap();
    }
    assert_eq!(
        local.ep.read(peer, remote_slice(7, 0, 8)).await.unwrap()[..],
        [199; 8]
    );
}

#[test]
fn libfabric_reports_cq_data_of_fabric_async_writes() {
    run_against_peer(check_write_cq_data);
}

pub(crate) async fn check_write_cq_data(local: InteropFixture, libfabric: LibfabricPeer) {
    libfabric.expect_reply("region 7 100000", "region").await;
    let peer = local.fi_addr_of(&libfabric);
    for (data, len) in [(5u64, 8), (u64::MAX, 70_000), (9, 0)] {
        local
            .ep
            .write(peer, RemoteAddr { key: 7, offset: 1 }, pattern(len, 4))
            .data(data)
            .await
            .unwrap();
        let entry = libfabric.request("cq").await;
        // libfabric reports the length from 1.18 on.
        assert!(
            entry.starts_with("done -1 ") && entry.ends_with(&format!(" {data}")),
            "{entry}"
        );
    }
    libfabric.expect_reply("check 1 8 4", "same").await;
}

#[test]
fn libfabric_rma_to_fabric_async_memory_works() {
    run_against_peer(check_rma_from_libfabric);
}

pub(crate) async fn check_rma_from_libfabric(mut local: InteropFixture, libfabric: LibfabricPeer) {
    let region = local
        .domain
        .alloc_with_key(5 << 20, READ_WRITE, 11)
        .unwrap();
    let mut registered = local
        .domain
        .register(vec![0u8; 5 << 20], READ_WRITE, Some(12))
        .unwrap();
    libfabric
        .expect_reply(format!("dest 127.0.0.1 {}", local.port()), "dest")
        .await;
    for (number, len) in LENGTHS.into_iter().enumerate() {
        let (seed, at) = (number as u8 + 1, 3 * number);
        for key in [11, 12] {
            libfabric
                .expect_reply(format!("write 1 {seed} a 0 {key}:{at}:{len}"), "posted")
                .await;
            libfabric.expect_done(1).await;
            let mut written = vec![0; len];
            if key == 11 {
                region.read(at, &mut written).unwrap()
            } else {
                written.copy_from_slice(&registered.lock()[at..at + len])
            };
            assert!(
                written == pattern(len, seed),
                "{len} bytes written to {key}"
            );
            let bytes = pattern(len, seed + 50);
            if key == 11 {
                region.write(at, &bytes).unwrap()
            } else {
                registered.lock()[at..at + len].copy_from_slice(&bytes)
            };
            libfabric
                .expect_reply(format!("read 2 {key}:{at}:{len}"), "posted")
                .await;
            libfabric.expect_done(2).await;
            libfabric
                .expect_reply(format!("check_rx {len} {}", seed + 50), "same")
                .await;
        }
    }
    // Remote ranges in both regions, with CQ data.
    libfabric
        .expect_reply("write 3 8 da 77 11:0:100000 12:50:7 11:200000:3", "posted")
        .await;
    libfabric.expect_done(3).await;
    let completion = next_completion(&mut local).await;
    assert_eq!(
        (
            completion.kind,
            completion.transfer.data,
            completion.transfer.len
        ),
        (OpKind::RemoteWrite, Some(77), 100_010)
    );
    libfabric
        .expect_reply("read 4 11:0:100000 12:50:7 11:200000:3", "posted")
        .await;
    libfabric.expect_done(4).await;
    libfabric.expect_reply("check_rx 100010 8", "same").await;
    libfabric
        .expect_reply("write 5 6 i 0 11:9:30", "posted")
        .await;
    libfabric.expect_done(5).await;
    libfabric.expect_reply("read 6 11:9:30", "posted").await;
    libfabric.expect_done(6).await;
    libfabric.expect_reply("check_rx 30 6", "same").await;
}

#[test]
fn libfabric_rma_increments_fabric_async_counters() {
    run_against_peer(check_rma_counters);
}

/// Accesses of libfabric peers are counted like those of any peer.
pub(crate) async fn check_rma_counters(local: InteropFixture, libfabric: LibfabricPeer) {
    let (writes, reads) = (
        local.domain.counter().unwrap(),
        local.domain.counter().unwrap(),
    );
    let mut region = local.domain.alloc_with_key(1000, READ_WRITE, 11).unwrap();
    region
        .bind_counter(&writes, CounterBind::REMOTE_WRITE)
        .unwrap();
    region
        .bind_counter(&reads, CounterBind::REMOTE_READ)
        .unwrap();
    libfabric
        .expect_reply(format!("dest 127.0.0.1 {}", local.port()), "dest")
        .await;
    for number in 1..=3 {
        libfabric
            .expect_reply("write 1 1 - 0 11:0:10", "posted")
            .await;
        libfabric.expect_done(1).await;
        libfabric.expect_reply("read 2 11:0:10", "posted").await;
        libfabric.expect_done(2).await;
        assert_eq!(
            (writes.wait(number).await, reads.wait(number).await),
            (Ok(number), Ok(number))
        );
    }
}

#[test]
fn wrong_key_closes_connection_and_peer_stays_usable() {
    run_against_peer(check_wrong_key);
}

/// The native protocol has no error responses to libfabric: an invalid access ends the connection,
/// and the operation fails with it.
pub(crate) async fn check_wrong_key(local: InteropFixture, libfabric: LibfabricPeer) {
    libfabric.expect_reply("region 7 100", "region").await;
    let peer = local.fi_addr_of(&libfabric);
    for round in 0..2 {
        let failed = local
            .ep
            .write(peer, RemoteAddr { key: 8, offset: 0 }, "x")
            .await
            .unwrap_err();
        assert!(failed.error.is_peer_unavailable(), "{}", failed.error);
        let failed = local
            .ep
            .read(peer, remote_slice(7, 99, 2))
            .await
            .unwrap_err();
        assert!(failed.error.is_peer_unavailable(), "{}", failed.error);
        // The peer is still reachable.
        local
            .ep
            .write(peer, RemoteAddr { key: 7, offset: 0 }, pattern(100, round))
            .await
            .unwrap();
        libfabric
            .expect_reply(format!("check 0 100 {round}"), "same")
            .await;
    }
    let _region = local
        .domain
        .alloc_with_key(100, Access::REMOTE_READ, 11)
        .unwrap();
    libfabric
        .expect_reply(format!("dest 127.0.0.1 {}", local.port()), "dest")
        .await;
    for iovs in ["12:0:1", "11:99:2", "11:0:10 13:0:1"] {
        libfabric
            .expect_reply(format!("read 1 {iovs}"), "posted")
            .await;
        libfabric.expect_failed(1).await;
        libfabric.retry_until_done(2, "read 2 11:0:100").await;
    }
    libfabric
        .expect_reply("write 3 1 a 0 11:0:10", "posted")
        .await;
    libfabric.expect_failed(3).await;
}

/// Atomic frames are not sent to libfabric peers.
#[test]
fn atomics_to_rdm_libfabric_peers_are_refused() {
    run_against_peer(
        |local: InteropFixture, libfabric: LibfabricPeer| async move {
            libfabric.expect_reply("region 7 100", "region").await;
            let peer = local.fi_addr_of(&libfabric);
            let _region = local.domain.alloc_with_key(100, READ_WRITE, 11).unwrap();
            libfabric
                .expect_reply(format!("dest 127.0.0.1 {}", local.port()), "dest")
                .await;
            for peer_connects in [false, true] {
                if peer_connects {
                    // Whichever side connected, fabric-async does not treat libfabric as a peer
                    // of its own implementation.
                    libfabric
                        .expect_reply("write 1 3 a 0 12:0:10", "posted")
                        .await;
                    libfabric.expect_failed(1).await;
                    libfabric
                        .expect_reply("write 2 3 a 0 11:0:10", "posted")
                        .await;
                    libfabric.expect_done(2).await;
                }
                let error = local
                    .ep
                    .fetch_add(peer, RemoteAddr { key: 7, offset: 0 }, 1u64)
                    .await
                    .unwrap_err();
                assert!(matches!(error, Error::NotSupported(_)), "{error}");
                local
                    .ep
                    .write(peer, RemoteAddr { key: 7, offset: 0 }, pattern(100, 1))
                    .await
                    .unwrap();
                libfabric.expect_reply("check 0 100 1", "same").await;
            }
        },
    );
}
