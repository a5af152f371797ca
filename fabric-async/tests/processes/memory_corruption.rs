//! A hostile peer overwrites the shared memory of its connections at random while they are in use.
//! The victim receives, sends, lends, reads and writes, with the corruptor and with honest peers at
//! the same time. The victim must not panic, hang or leak, and the honest peers' data must be
//! exact.

use std::cell::Cell;
use std::future::IntoFuture;
use std::hash::{BuildHasher, RandomState};

use fabric_async::atomic::AtomicOp;
use fabric_async::{Access, Endpoint, FiAddr, RemoteRegion};
use futures_util::FutureExt;
use tokio::task::JoinSet;

use crate::blocking_close::start_closing_thread;
use crate::domain_mode::DomainMode;
use crate::health::assert_still_works;
use crate::leak_check::{ResourceUsage, count_mappings, private_bytes, run_in_own_process};
use crate::memory_corruptor::{REGION_LEN, XorshiftRng};
use crate::peer_death::wait_exit;
use crate::run;
use crate::test_peer::TestPeer;

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
/// Corruptor runs, each with a seed of its own.
const CORRUPTOR_RUNS: u64 = 3;
/// Endpoints that connect in one corruptor run before the corruptor is ended.
const ENDPOINTS_PER_RUN: usize = 12;
/// The most bytes by which the private memory of the victim may grow: pooled buffers, tables.
const MAX_GROWTH: usize = 24 << 20;

/// The resources that the victim holds for its peers. Returned loans are kept, each with a mapping
/// and a descriptor, so they are not counted.
#[derive(Debug, PartialEq, Eq)]
struct PeerResources {
    segments: usize,
    descriptors: usize,
    threads: usize,
}

impl PeerResources {
    async fn wait_stable() -> Self {
        let usage = ResourceUsage::wait_stable().await;
        let segments = count_mappings("memfd:fabric-shm");
        let loans = usage.mappings - segments;
        Self {
            segments,
            descriptors: usage.descriptors - loans,
            threads: usage.threads,
        }
    }
}

/// Honest peers, and the state of their exchange with the victim.
struct HonestPeers {
    _echo: TestPeer,
    _target: TestPeer,
    echo: FiAddr,
    target: FiAddr,
    remote: RemoteRegion,
    sum: u64,
}

impl HonestPeers {
    async fn start(ep: &Endpoint) -> Self {
        let name = ep.name().to_string();
        let _echo = TestPeer::start("echo", &name);
        let echo = ep.recv().tag(3).await.unwrap().source().unwrap();
        let _target = TestPeer::start("rma_target", &name);
        let announcement = ep.recv().await.unwrap();
        let (target, remote) = (
            announcement.source().unwrap(),
            RemoteRegion::from_bytes(&announcement).unwrap(),
        );
        ep.write(target, remote.at(0), vec![0; 16]).await.unwrap();
        Self {
            _echo,
            _target,
            echo,
            target,
            remote,
            sum: 0,
        }
    }

    /// Exchanges messages, loans, writes, reads and atomics, and checks every byte.
    async fn run_round(&mut self, ep: &Endpoint, random: &mut XorshiftRng) {
        let len = [8, 100, 3000, 20_000][random.below(4) as usize];
        let mark = random.next_u64();
        let message: Vec<u8> = (0..len).map(|at| (mark >> (at % 57)) as u8).collect();
        ep.send(self.echo, message.clone()).await.unwrap();
        assert_eq!(
            ep.recv().tag(4).from(self.echo).await.unwrap()[..],
            message[..]
        );
        let mut loan = ep.domain().try_loan(len).unwrap();
        loan.copy_from_slice(&message);
        ep.send(self.echo, loan).await.unwrap();
        assert_eq!(
            ep.recv().tag(4).from(self.echo).await.unwrap()[..],
            message[..]
        );
        ep.write(self.target, self.remote.at(64), message.clone())
            .await
            .unwrap();
        let back = ep
            .read(self.target, self.remote.slice(64..64 + len as u64))
            .await
            .unwrap();
        assert_eq!(back[..], message[..]);
        let previous = ep
            .fetch_add(self.target, self.remote.at(8), mark >> 32)
            .await
            .unwrap();
        assert_eq!(previous, self.sum);
        self.sum = self.sum.wrapping_add(mark >> 32);
    }
}

/// Starts all operations against a corruptor's endpoint, each repeated until it fails.
fn spawn_all_ops(
    tasks: &mut JoinSet<()>,
    ep: &Endpoint,
    peer: FiAddr,
    theirs: RemoteRegion,
    seed: u64,
) {
    let receiver = ep.clone();
    tasks.spawn(async move { while receiver.recv().from(peer).await.is_ok() {} });
    let receiver = ep.clone();
    tasks.spawn(async move {
        while receiver
            .recv()
            .tag_ignoring(0, u64::MAX)
            .from(peer)
            .await
            .is_ok()
        {}
    });
    // Each of these sends must complete.
    let (confirmed, mut lengths) = (ep.clone(), XorshiftRng::new(!seed));
    tasks.spawn(async move {
        let mut buf = || vec![5; lengths.below(20_000) as usize];
        while confirmed.send(peer, buf()).match_complete().await.is_ok()
            && confirmed
                .send(peer, buf())
                .delivery_complete()
                .await
                .is_ok()
        {}
    });
    let (ep, mut random) = (ep.clone(), XorshiftRng::new(seed));
    tasks.spawn(async move {
        // Single operations may fail while the connection lives, because a region may be corrupted;
        // the loop ends when a send fails.
        while ep
            .send(peer, vec![1; random.below(9000) as usize])
            .await
            .is_ok()
        {
            let mut loan = ep
                .domain()
                .try_loan(1 + random.below(60_000) as usize)
                .unwrap();
            loan.fill(2);
            let _ = ep.send(peer, loan).await;
            let _ = ep
                .write(peer, theirs.at(random.below(200)), vec![3; 1000])
                .await;
            let _ = ep.read(peer, theirs.slice(..REGION_LEN as u64)).await;
            let _ = ep.atomic(peer, theirs.at(64), AtomicOp::Sum, 1u64).await;
            if let Ok(window) = ep.window(peer, theirs).await {
                let _ = window.write(8, &[4; 100]);
                let _ = window.read(0, &mut [0; 500]);
            }
            tokio::task::yield_now().await;
        }
    });
}

/// Accepts endpoints of a corruptor while the exchange with the honest peers goes on.
async fn run_with_corruptor(ep: &Endpoint, honest: &mut HonestPeers, seed: u64) {
    let (mut tasks, mut random) = (JoinSet::new(), XorshiftRng::new(seed));
    let mut regions = Vec::new();
    let host = ep.clone();
    let accepting = async {
        let name = format!("{} {seed}", host.name());
        let mut corruptor = TestPeer::start("memory_corruptor", &name);
        while regions.len() < ENDPOINTS_PER_RUN {
            let hello = tokio::select! {
                hello = host.recv().tag(1) => hello.unwrap(),
                // The corruptor may also corrupt its own process.
                () = wait_exit(&mut corruptor) => {
                    let status = corruptor.0.wait().unwrap();
                    assert!(status.code().is_none(), "the corruptor exited by itself: {status}");
                    corruptor = TestPeer::start("memory_corruptor", &name);
                    continue;
                }
            };
            // A message with this tag may be corrupted.
            let (Ok(peer), Ok(theirs)) = (hello.source(), RemoteRegion::from_bytes(&hello)) else {
                continue;
            };
            let ours = host.domain().alloc(REGION_LEN, READ_WRITE).unwrap();
            if host
                .send(peer, ours.remote().to_bytes().to_vec())
                .tag(2)
                .await
                .is_ok()
            {
                spawn_all_ops(&mut tasks, &host, peer, theirs, seed);
                regions.push(ours);
            }
        }
    };
    // Every round with the honest peers is completed.
    let accepted = Cell::new(false);
    let exchanging = async {
        while !accepted.get() {
            honest.run_round(ep, &mut random).await;
        }
    };
    tokio::join!(
        async {
            accepting.await;
            accepted.set(true)
        },
        exchanging
    );
    // Every operation against the corruptor ends.
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no task panics");
    }
}

#[test]
fn corrupting_peer_affects_only_its_own_connections() {
    run_in_own_process(
        "memory_corruption::corrupting_peer_affects_only_its_own_connections",
        || {
            // Every run has a random seed; FABRIC_SEED sets it.
            let given = std::env::var("FABRIC_SEED")
                .ok()
                .and_then(|seed| seed.parse().ok());
            let seed: u64 = given.unwrap_or_else(|| RandomState::new().hash_one(0) >> 32);
            for mode in DomainMode::ALL {
                run(async {
                    let ep = mode.options().bind("shm://").await.unwrap();
                    // Otherwise the closing thread would start in whichever run first closes a
                    // descriptor of a peer.
                    start_closing_thread(&ep).await;
                    let mut honest = HonestPeers::start(&ep).await;
                    honest.run_round(&ep, &mut XorshiftRng::new(seed)).await;
                    let mut before = None;
                    for seed in seed..seed + CORRUPTOR_RUNS {
                        println!("FABRIC_SEED={seed}, {mode:?}");
                        run_with_corruptor(&ep, &mut honest, seed).await;
                        // Takes messages of the corruptor that match no receive.
                        while let Some(Ok(_)) = ep
                            .recv()
                            .tag_ignoring(0, u64::MAX)
                            .into_future()
                            .now_or_never()
                        {}
                        while let Some(Ok(_)) = ep.recv().into_future().now_or_never() {}
                        // The first run makes the allocations that are made only once.
                        match &before {
                            None => {
                                before = Some((PeerResources::wait_stable().await, private_bytes()))
                            }
                            Some((holdings, bytes)) => {
                                assert_eq!(PeerResources::wait_stable().await, *holdings);
                                assert!(
                                    private_bytes() < bytes + MAX_GROWTH,
                                    "private memory grew from {bytes} to {}",
                                    private_bytes()
                                );
                            }
                        }
                        assert_still_works(&ep).await;
                    }
                    drop((ep, honest));
                    let left = ResourceUsage::wait_stable().await;
                    assert_eq!(left.mappings, 0, "{left:?}");
                });
            }
        },
    );
}
