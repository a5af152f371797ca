//! Many peers of one endpoint, and many endpoints of one process: who says nothing costs next to
//! nothing, and is heard.

use std::sync::Arc;

use fabric_async::{Domain, Endpoint, FiAddr, Hints, Progress};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::leak_check::run_in_own_process;
use crate::run;
use crate::test_peer::TestPeer;

/// Processes, and endpoints in each.
const PROCESSES: usize = 4;
const ENDPOINTS_PER_PROCESS: usize = 64;
/// Passes that are enough for all peers to be known as silent.
const PASSES_UNTIL_IDLE: usize = 3000;
/// Callers, and endpoints, that are looked at in every pass.
const MAX_ACTIVE: usize = 8;

/// Says "here" from many endpoints, and then answers every number by its successor.
pub(crate) async fn many_endpoints(name: &str) {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..ENDPOINTS_PER_PROCESS {
        let name = name.to_string();
        tasks.spawn(async move {
            let ep = Endpoint::bind("shm://").await.expect("bind");
            let host = ep.add_peer(&name[..]).await.expect("the host is there");
            ep.send(host, "here").tag(1).await.expect("the host hears");
            while let Ok(message) = ep.recv().from(host).await {
                let number = u64::from_le_bytes(message[..].try_into().expect("eight bytes"));
                if ep
                    .send(host, (number + 1).to_le_bytes().to_vec())
                    .tag(2)
                    .await
                    .is_err()
                {
                    return;
                }
            }
        });
    }
    while tasks.join_next().await.is_some() {}
}

/// Lets this process have so many descriptors; false when it may not.
fn raise_descriptor_limit(count: u64) -> bool {
    let limit = getrlimit(Resource::Nofile);
    let enough = limit.maximum.is_none_or(|most| most >= count);
    if enough {
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: Some(count),
                maximum: limit.maximum,
            },
        )
        .unwrap();
    } else {
        println!("skipped: needs {count} descriptors");
    }
    enough
}

/// Asks some peers a number each, all at the same time, and gets exactly their answers.
async fn request_successors(ep: &Endpoint, peers: &[FiAddr], number: &mut u64) {
    let first = *number;
    for (peer, number) in peers.iter().zip(first..) {
        ep.send(*peer, number.to_le_bytes().to_vec()).await.unwrap();
    }
    let mut answered = vec![false; peers.len()];
    for _ in peers {
        let answer = ep.recv().tag(2).await.unwrap();
        let at = peers
            .iter()
            .position(|peer| answer.source() == Ok(*peer))
            .expect("one that was asked");
        assert_eq!(answer[..], (first + at as u64 + 1).to_le_bytes());
        assert!(!std::mem::replace(&mut answered[at], true), "twice");
    }
    *number += peers.len() as u64;
}

#[test]
fn messages_of_idle_peers_are_not_lost() {
    run_in_own_process("scale::messages_of_idle_peers_are_not_lost", || {
        if !raise_descriptor_limit(4096) {
            return;
        }
        for progress in [Progress::Manual, Progress::Auto] {
            run(async {
                let ep = Endpoint::options()
                    .progress(progress)
                    .bind("shm://")
                    .await
                    .unwrap();
                let name = ep.name().to_string();
                let crowds: Vec<_> = (0..PROCESSES)
                    .map(|_| TestPeer::start("many_endpoints", &name))
                    .collect();
                let mut peers = Vec::new();
                for _ in 0..PROCESSES * ENDPOINTS_PER_PROCESS {
                    peers.push(ep.recv().tag(1).await.unwrap().source().unwrap());
                }
                let mut number = 0;
                for round in 0..4 {
                    request_successors(&ep, &peers, &mut number).await;
                    // All fall silent, and then all but some.
                    for _ in 0..PASSES_UNTIL_IDLE {
                        ep.domain().progress();
                    }
                    let (all, domain) = (
                        PROCESSES * ENDPOINTS_PER_PROCESS,
                        format!("{:?}", ep.domain()),
                    );
                    assert!(
                        domain
                            .contains(&format!("{all} incoming connections, {MAX_ACTIVE} active")),
                        "{domain}"
                    );
                    for _ in 0..200 {
                        request_successors(&ep, &peers[round * 50..round * 50 + 3], &mut number)
                            .await;
                    }
                    request_successors(&ep, &peers[255 - round..], &mut number).await;
                }
                assert_eq!(ep.stats().peers, PROCESSES * ENDPOINTS_PER_PROCESS);
                drop(crowds);
                let mut events = ep.events().unwrap();
                while ep.stats().peers > 0 {
                    events.next().await;
                }
            });
        }
    });
}

/// Endpoints of one domain, each with a message for the next.
async fn open_endpoints(count: usize) -> (Domain, Vec<Endpoint>) {
    let info = fabric_async::discover(&Hints::new().provider("shm"))
        .await
        .unwrap()
        .remove(0);
    let domain = fabric_async::Fabric::open(&info)
        .unwrap()
        .domain(&info)
        .unwrap();
    let av = domain.auto_insert_address_vector().unwrap();
    let mut endpoints = Vec::new();
    for _ in 0..count {
        endpoints.push(
            domain
                .endpoint(&info)
                .unwrap()
                .bind_av(&av)
                .unwrap()
                .enable()
                .await
                .unwrap(),
        );
    }
    (domain, endpoints)
}

/// Memory of this process, what it shares with nobody else counted as a whole.
fn pss_bytes() -> usize {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").expect("procfs");
    let line = rollup
        .lines()
        .find_map(|line| line.strip_prefix("Pss:"))
        .expect("a line");
    line.trim()
        .trim_end_matches(" kB")
        .parse::<usize>()
        .expect("a number")
        * 1024
}

#[test]
fn thousands_of_endpoints_work_in_one_process() {
    const HALF: usize = 1000;
    run_in_own_process("scale::thousands_of_endpoints_work_in_one_process", || {
        if !raise_descriptor_limit(16_384) {
            return;
        }
        run(async {
            let (first, mut endpoints) = open_endpoints(HALF).await;
            let (second, others) = open_endpoints(HALF).await;
            endpoints.extend(others);
            let endpoints = Arc::new(endpoints);
            let before = pss_bytes();
            let mut next = Vec::new();
            for at in 0..endpoints.len() {
                next.push(
                    endpoints[at]
                        .add_peer(endpoints[(at + 1) % endpoints.len()].name())
                        .await
                        .unwrap(),
                );
            }
            for round in 0..3u64 {
                for (at, ep) in endpoints.iter().enumerate() {
                    let message = (at as u64 + (round << 32)).to_le_bytes();
                    ep.send(next[at], message.to_vec())
                        .tag(round)
                        .await
                        .unwrap();
                }
                for _ in 0..PASSES_UNTIL_IDLE {
                    first.progress();
                    second.progress();
                }
                for domain in [&first, &second] {
                    let domain = format!("{domain:?}");
                    assert!(
                        domain.contains(&format!("], {MAX_ACTIVE} active endpoints")),
                        "{domain}"
                    );
                }
                // In the opposite order, the first of them being asked last.
                for (at, ep) in endpoints.iter().enumerate().rev() {
                    let sender = (at + endpoints.len() - 1) % endpoints.len();
                    let message = ep.recv().tag(round).await.unwrap();
                    assert_eq!(message[..], (sender as u64 + (round << 32)).to_le_bytes());
                }
            }
            let pair = (pss_bytes() - before) / endpoints.len();
            println!("{pair} bytes for each pair, one direction of which is in use");
            assert!(pair < 128 << 10, "{pair} bytes for a connection");
        });
    });
}
