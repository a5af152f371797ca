//! RMA with peers that speak RXM, in both directions.

use crate::rma::{
    check_rma_counters, check_rma_from_libfabric, check_rma_to_libfabric, check_write_cq_data,
    check_wrong_key,
};
use fabric_async::RemoteSlice;

use crate::{pattern, run_against_rxm_peer};

#[test]
fn rma_to_libfabric_memory_works() {
    run_against_rxm_peer(false, check_rma_to_libfabric);
}

#[test]
fn libfabric_reports_cq_data_of_fabric_async_writes() {
    run_against_rxm_peer(false, check_write_cq_data);
}

#[test]
fn libfabric_rma_to_fabric_async_memory_works() {
    run_against_rxm_peer(false, check_rma_from_libfabric);
}

#[test]
fn libfabric_rma_increments_fabric_async_counters() {
    run_against_rxm_peer(false, check_rma_counters);
}

#[test]
fn wrong_key_closes_connection_and_peer_stays_usable() {
    run_against_rxm_peer(false, check_wrong_key);
}

/// Long messages are read by the receiver with the same kind of reads that programs use: responses
/// arrive in the order of all of them.
#[test]
fn rma_reads_and_rendezvous_reads_do_not_mix() {
    const LEN: usize = 700_000;
    run_against_rxm_peer(false, async |local, libfabric| {
        libfabric.expect_reply("region 7 1000000", "region").await;
        libfabric.expect_reply("fill 0 1000000 9", "filled").await;
        libfabric
            .expect_reply(format!("dest 127.0.0.1 {}", local.port()), "dest")
            .await;
        let region = local
            .domain
            .alloc_with_key(LEN, fabric_async::Access::REMOTE_READ, 11)
            .unwrap();
        region.write(0, &pattern(LEN, 5)).unwrap();
        let peer = local.fi_addr_of(&libfabric);
        let slice = |offset, len| RemoteSlice {
            key: 7,
            offset,
            len,
        };
        for round in 0..4 {
            let before = local.ep.read(peer, slice(7, 300_000)).start().unwrap();
            libfabric
                .expect_reply(format!("send 1 {LEN} {round} - 0 0"), "posted")
                .await;
            let message = local.ep.recv().start().unwrap();
            let reads_behind: Vec<_> = (0..20)
                .map(|at| local.ep.read(peer, slice(at, 100_000)).start().unwrap())
                .collect();
            let bytes = pattern(1_000_000, 9);
            assert!(before.await.unwrap()[..] == bytes[7..300_007]);
            assert!(message.await.unwrap()[..] == pattern(LEN, round)[..]);
            for (at, read) in reads_behind.into_iter().enumerate() {
                assert!(read.await.unwrap()[..] == bytes[at..at + 100_000], "{at}");
            }
            libfabric.expect_done(1).await;
            // And in the other direction.
            libfabric
                .expect_reply(format!("recv 2 {LEN} - 0"), "posted")
                .await;
            let sending = local
                .ep
                .send(peer, pattern(LEN, round + 60))
                .start()
                .unwrap();
            sending.await.unwrap();
            libfabric.expect_done(2).await;
            libfabric
                .expect_reply(format!("check_rx {LEN} {}", round + 60), "same")
                .await;
            libfabric
                .expect_reply(format!("read 3 11:0:{LEN}"), "posted")
                .await;
            libfabric.expect_done(3).await;
            libfabric
                .expect_reply(format!("check_rx {LEN} 5"), "same")
                .await;
        }
    });
}
