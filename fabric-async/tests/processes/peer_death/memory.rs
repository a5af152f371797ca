//! Victims that die while they use memory of the survivor, or while the survivor uses theirs.

use fabric_async::atomic::AtomicOp;
use fabric_async::{Access, Endpoint, FiAddr, RemoteRegion};

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
const LOAN_LEN: usize = 100_000;
const LOANS: usize = 3;
const REGION_LEN: usize = 32 << 20;
const ITERATIONS: u64 = 1000;

async fn bind_and_add_peer(name: &str) -> (Endpoint, FiAddr) {
    let ep = Endpoint::bind("shm://").await.unwrap();
    let peer = ep.add_peer(name).await.unwrap();
    (ep, peer)
}

/// Asks the survivor for a region.
async fn request_region(ep: &Endpoint, peer: FiAddr) -> RemoteRegion {
    ep.send(peer, "send me a region").tag(1).await.unwrap();
    RemoteRegion::from_bytes(&ep.recv().tag(2).from(peer).await.unwrap()).unwrap()
}

/// Dies while it holds loans.
pub(super) async fn holding_loans(name: &str) -> ! {
    let (ep, peer) = bind_and_add_peer(name).await;
    ep.send(peer, "here").tag(1).await.unwrap();
    let mut held = Vec::new();
    for _ in 0..LOANS {
        held.push(ep.recv_loan().from(peer).await.unwrap());
    }
    super::kill_self()
}

/// Dies while the survivor holds its loans, and while it has a loan that was not sent.
pub(super) async fn with_lent_loans(name: &str) -> ! {
    let (ep, peer) = bind_and_add_peer(name).await;
    for _ in 0..LOANS {
        let mut frame = ep.domain().try_loan(LOAN_LEN).unwrap();
        frame.fill(5);
        ep.send(peer, frame).tag(1).await.unwrap();
    }
    let _unsent = ep.domain().try_loan(LOAN_LEN).unwrap();
    super::kill_self()
}

/// Dies after some writes and atomic operations, in the middle of a long write.
pub(super) async fn mid_write(name: &str) -> ! {
    let (ep, peer) = bind_and_add_peer(name).await;
    let remote = request_region(&ep, peer).await;
    for round in 1..=ITERATIONS {
        ep.write(peer, remote.at(8), round.to_le_bytes().to_vec())
            .await
            .unwrap();
        ep.atomic(peer, remote.at(0), AtomicOp::Sum, 1u64)
            .await
            .unwrap();
    }
    let _long = ep
        .write(peer, remote.at(16), vec![7; REGION_LEN - 16])
        .start()
        .unwrap();
    super::kill_self()
}

/// Dies while the survivor adds to its region.
pub(super) async fn owning_rma_target(name: &str) -> ! {
    let (ep, peer) = bind_and_add_peer(name).await;
    let region = ep.domain().alloc(4096, READ_WRITE).unwrap();
    ep.send(peer, region.remote().to_bytes().to_vec())
        .tag(1)
        .await
        .unwrap();
    while region.load::<u64>(0).unwrap() < ITERATIONS {
        tokio::task::yield_now().await;
    }
    super::kill_self()
}

/// Dies while it holds a lock in the survivor's memory.
pub(super) async fn holding_remote_lock(name: &str) -> ! {
    let (ep, peer) = bind_and_add_peer(name).await;
    let remote = request_region(&ep, peer).await;
    let previous = ep.compare_swap(peer, remote.at(0), 0u64, 42).await.unwrap();
    assert_eq!(previous, 0);
    super::kill_self()
}

pub(super) mod survives {
    use fabric_async::RemoteRegion;
    use fabric_async::atomic::AtomicOp;

    use super::super::{Survivor, assert_peer_gone};
    use super::{ITERATIONS, LOAN_LEN, LOANS, READ_WRITE, REGION_LEN};
    use crate::test_peer::TestPeer;

    pub(crate) async fn holding_loans(survivor: &mut Survivor, victim: TestPeer) {
        let ep = survivor.ep.clone();
        let peer = ep.recv().tag(1).await.unwrap().source().unwrap();
        for _ in 0..LOANS {
            ep.send(peer, ep.domain().try_loan(LOAN_LEN).unwrap())
                .await
                .unwrap();
        }
        survivor.wait_peer_died(victim).await;
        // The memory of the lost loans is not lent again.
        let mut fresh = ep.domain().try_loan(LOAN_LEN).unwrap();
        assert!(fresh.iter().all(|byte| *byte == 0));
        fresh.fill(9);
    }

    pub(crate) async fn with_lent_loans(survivor: &mut Survivor, victim: TestPeer) {
        let mut held = Vec::new();
        for _ in 0..LOANS {
            held.push(survivor.ep.recv_loan().tag(1).await.unwrap());
        }
        survivor.wait_peer_died(victim).await;
        assert!(
            held.iter()
                .all(|frame| frame.is_in_place() && frame.to_vec() == [5; LOAN_LEN])
        );
    }

    pub(crate) async fn mid_write(survivor: &mut Survivor, victim: TestPeer) {
        let region = survivor.ep.domain().alloc(REGION_LEN, READ_WRITE).unwrap();
        let peer = survivor.ep.recv().tag(1).await.unwrap().source().unwrap();
        survivor
            .ep
            .send(peer, region.remote().to_bytes().to_vec())
            .tag(2)
            .await
            .unwrap();
        survivor.wait_peer_died(victim).await;
        assert_eq!(
            region.load::<u64>(0).unwrap(),
            ITERATIONS,
            "every completed operation was executed once"
        );
        assert_eq!(region.load::<u64>(8).unwrap(), ITERATIONS);
        assert_eq!(
            region.load::<u64>(REGION_LEN - 8).unwrap(),
            0,
            "the victim died before the end of the write"
        );
    }

    pub(crate) async fn owning_rma_target(survivor: &mut Survivor, victim: TestPeer) {
        let ep = survivor.ep.clone();
        let announcement = ep.recv().tag(1).await.unwrap();
        let (peer, remote) = (
            announcement.source().unwrap(),
            RemoteRegion::from_bytes(&announcement).unwrap(),
        );
        let mut rounds = 0u64;
        let error = loop {
            let at = remote.at(0);
            match ep.atomic(peer, at, AtomicOp::Sum, 1u64).await {
                Ok(_) => rounds += 1,
                Err(error) => break error,
            }
        };
        assert!(rounds >= ITERATIONS);
        assert_peer_gone(&error);
        assert_peer_gone(&ep.read(peer, remote.slice(..8)).await.unwrap_err().error);
        survivor.wait_peer_died(victim).await;
    }

    pub(crate) async fn holding_remote_lock(survivor: &mut Survivor, victim: TestPeer) {
        let region = survivor.ep.domain().alloc(64, READ_WRITE).unwrap();
        let peer = survivor.ep.recv().tag(1).await.unwrap().source().unwrap();
        survivor
            .ep
            .send(peer, region.remote().to_bytes().to_vec())
            .tag(2)
            .await
            .unwrap();
        survivor.wait_peer_died(victim).await;
        // The victim holds the lock; the survivor, which knows of the death, can take it over.
        assert_eq!(
            region.compare_atomic(0, AtomicOp::Cswap, 0u64, 42).unwrap(),
            42
        );
        assert_eq!(region.load::<u64>(0).unwrap(), 0);
    }
}
