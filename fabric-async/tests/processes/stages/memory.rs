//! Victims that die with memory of others, or take theirs along.
#![allow(unsafe_code)] // receiving where it lies

use fabric_async::{Access, AtomicOp, Endpoint, FiAddr, RemoteRegion};

const BOTH: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
const FRAME: usize = 100_000;
const FRAMES: usize = 3;
const AREA: usize = 32 << 20;
const TURNS: u64 = 1000;

async fn meet(name: &str) -> (Endpoint, FiAddr) {
    let ep = Endpoint::bind("shm://").await.unwrap();
    let peer = ep.lookup(name).await.unwrap();
    (ep, peer)
}

/// Asks the survivor for a region.
async fn region(ep: &Endpoint, peer: FiAddr) -> RemoteRegion {
    ep.send(peer, "where?").tag(1).await.unwrap();
    RemoteRegion::from_bytes(&ep.recv().tag(2).from(peer).await.unwrap()).unwrap()
}

/// Dies with loans in its hands.
pub(super) async fn holding(name: &str) -> ! {
    let (ep, peer) = meet(name).await;
    ep.send(peer, "here").tag(1).await.unwrap();
    let mut held = Vec::new();
    for _ in 0..FRAMES {
        // SAFETY: the survivor does not write what it has lent.
        held.push(unsafe { ep.recv_lent() }.from(peer).await.unwrap());
    }
    super::die()
}

/// Dies with loans in the hands of the survivor, and one that was not sent.
pub(super) async fn lending(name: &str) -> ! {
    let (ep, peer) = meet(name).await;
    for _ in 0..FRAMES {
        let mut frame = ep.loan(FRAME).unwrap();
        frame.fill(5);
        ep.lend(peer, frame).tag(1).await.unwrap();
    }
    let _unsent = ep.loan(FRAME).unwrap();
    super::die()
}

/// Dies behind some writes and atomic operations, in the middle of a long write.
pub(super) async fn writing(name: &str) -> ! {
    let (ep, peer) = meet(name).await;
    let remote = region(&ep, peer).await;
    for turn in 1..=TURNS {
        ep.write(peer, remote.at(8), turn.to_le_bytes().to_vec())
            .await
            .unwrap();
        ep.atomic(peer, remote.at(0), AtomicOp::Sum, 1u64)
            .await
            .unwrap();
    }
    let _long = ep
        .write(peer, remote.at(16), vec![7; AREA - 16])
        .start()
        .unwrap();
    super::die()
}

/// Dies with a region that the survivor writes to, when it has been written to.
pub(super) async fn owning(name: &str) -> ! {
    let (ep, peer) = meet(name).await;
    let region = ep.domain().alloc(4096, BOTH).unwrap();
    ep.send(peer, region.remote().to_bytes().to_vec())
        .tag(1)
        .await
        .unwrap();
    while region.load::<u64>(0).unwrap() < TURNS {
        tokio::task::yield_now().await;
    }
    super::die()
}

/// Dies with a lock in the survivor's memory.
pub(super) async fn locking(name: &str) -> ! {
    let (ep, peer) = meet(name).await;
    let remote = region(&ep, peer).await;
    let was = ep.compare_swap(peer, remote.at(0), 0u64, 42).await.unwrap();
    assert_eq!(was, 0);
    super::die()
}

pub(super) mod survives {
    use fabric_async::{AtomicOp, RemoteRegion};

    use super::super::{Survivor, assert_gone};
    use super::{AREA, BOTH, FRAME, FRAMES, TURNS};
    use crate::role::Peer;

    pub(crate) async fn holding(survivor: &mut Survivor, victim: Peer) {
        let ep = survivor.ep.clone();
        let peer = ep.recv().tag(1).await.unwrap().source().unwrap();
        for _ in 0..FRAMES {
            ep.lend(peer, ep.loan(FRAME).unwrap()).await.unwrap();
        }
        survivor.hears_of_the_death(victim).await;
        // What the dead had is not lent again.
        let mut fresh = ep.loan(FRAME).unwrap();
        assert!(fresh.iter().all(|byte| *byte == 0));
        fresh.fill(9);
    }

    pub(crate) async fn lending(survivor: &mut Survivor, victim: Peer) {
        let mut held = Vec::new();
        for _ in 0..FRAMES {
            // SAFETY: the victim does not write what it has lent.
            held.push(unsafe { survivor.ep.recv_lent() }.tag(1).await.unwrap());
        }
        survivor.hears_of_the_death(victim).await;
        assert!(
            held.iter()
                .all(|frame| frame.len() == FRAME && frame.iter().all(|byte| *byte == 5))
        );
    }

    pub(crate) async fn writing(survivor: &mut Survivor, victim: Peer) {
        let region = survivor.ep.domain().alloc(AREA, BOTH).unwrap();
        let peer = survivor.ep.recv().tag(1).await.unwrap().source().unwrap();
        survivor
            .ep
            .send(peer, region.remote().to_bytes().to_vec())
            .tag(2)
            .await
            .unwrap();
        survivor.hears_of_the_death(victim).await;
        assert_eq!(
            region.load::<u64>(0).unwrap(),
            TURNS,
            "every operation that ended was done once"
        );
        assert_eq!(region.load::<u64>(8).unwrap(), TURNS);
        assert_eq!(
            region.load::<u64>(AREA - 8).unwrap(),
            0,
            "it died before the end"
        );
    }

    pub(crate) async fn owning(survivor: &mut Survivor, victim: Peer) {
        let ep = survivor.ep.clone();
        let place = ep.recv().tag(1).await.unwrap();
        let (peer, remote) = (
            place.source().unwrap(),
            RemoteRegion::from_bytes(&place).unwrap(),
        );
        let mut turns = 0u64;
        let error = loop {
            let at = remote.at(0);
            match ep.atomic(peer, at, AtomicOp::Sum, 1u64).await {
                Ok(_) => turns += 1,
                Err(error) => break error,
            }
        };
        assert!(turns >= TURNS);
        assert_gone(&error);
        assert_gone(&ep.read(peer, remote.slice(..8)).await.unwrap_err().error);
        survivor.hears_of_the_death(victim).await;
    }

    pub(crate) async fn locking(survivor: &mut Survivor, victim: Peer) {
        let region = survivor.ep.domain().alloc(64, BOTH).unwrap();
        let peer = survivor.ep.recv().tag(1).await.unwrap().source().unwrap();
        survivor
            .ep
            .send(peer, region.remote().to_bytes().to_vec())
            .tag(2)
            .await
            .unwrap();
        survivor.hears_of_the_death(victim).await;
        // The lock is whose it was; who hears of the death can take it over.
        assert_eq!(
            region.compare_atomic(0, AtomicOp::Cswap, 0u64, 42).unwrap(),
            42
        );
        assert_eq!(region.load::<u64>(0).unwrap(), 0);
    }
}
