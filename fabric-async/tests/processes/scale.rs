//! Many peers of one endpoint, and many endpoints of one process: idle ones are not polled, and
//! their messages are not lost.

use std::time::Duration;

use std::sync::Arc;

use fabric_async::{Domain, Endpoint, FiAddr, Hints};
use futures_util::future::join_all;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::domain_mode::DomainMode;
use crate::leak_check::run_in_own_process;
use crate::run;
use crate::skip::{Facility, skip};
use crate::test_peer::TestPeer;

/// Peer processes, and endpoints in each.
const PROCESSES: usize = 4;
const ENDPOINTS_PER_PROCESS: usize = 64;
/// Progress passes after which every silent peer is idle.
const PASSES_UNTIL_IDLE: usize = 3000;
/// Connections, or endpoints, that are polled in every pass.
const MAX_ACTIVE: usize = 8;

/// Sends "here" from many endpoints, and then replies to every number with its successor.
pub(crate) async fn many_endpoints(name: &str) {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..ENDPOINTS_PER_PROCESS {
        let name = name.to_string();
        tasks.spawn(async move {
            let ep = Endpoint::bind("shm://").await.expect("bind");
            let host = ep.add_peer(&name[..]).await.expect("add_peer");
            ep.send(host, "here").tag(1).await.expect("send");
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

/// Raises the descriptor limit; if the hard limit is lower, skips the test and returns false.
fn raise_descriptor_limit(count: u64) -> bool {
    let limit = getrlimit(Resource::Nofile);
    let allowed = limit.maximum.is_none_or(|most| most >= count);
    if allowed {
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: Some(count),
                maximum: limit.maximum,
            },
        )
        .unwrap();
    } else {
        skip(
            Facility::Descriptors,
            format!("RLIMIT_NOFILE does not allow {count} descriptors"),
        );
    }
    allowed
}

/// Sends a number to each of these peers at once, and checks their replies.
async fn request_successors(ep: &Endpoint, peers: &[FiAddr], number: &mut u64) {
    let first = *number;
    for (peer, number) in peers.iter().zip(first..) {
        ep.send(*peer, number.to_le_bytes().to_vec()).await.unwrap();
    }
    let mut replied = vec![false; peers.len()];
    for _ in peers {
        let reply = ep.recv().tag(2).await.unwrap();
        let at = peers
            .iter()
            .position(|peer| reply.source() == Ok(*peer))
            .expect("a peer that got a number");
        assert_eq!(reply[..], (first + at as u64 + 1).to_le_bytes());
        assert!(
            !std::mem::replace(&mut replied[at], true),
            "one reply of each peer"
        );
    }
    *number += peers.len() as u64;
}

#[test]
fn messages_of_idle_peers_are_not_lost() {
    run_in_own_process("scale::messages_of_idle_peers_are_not_lost", || {
        if !raise_descriptor_limit(4096) {
            return;
        }
        for mode in DomainMode::ALL {
            run(async {
                let ep = mode.options().bind("shm://").await.unwrap();
                let name = ep.name().to_string();
                let peer_processes: Vec<_> = (0..PROCESSES)
                    .map(|_| TestPeer::start("many_endpoints", &name))
                    .collect();
                let mut peers = Vec::new();
                for _ in 0..PROCESSES * ENDPOINTS_PER_PROCESS {
                    peers.push(ep.recv().tag(1).await.unwrap().source().unwrap());
                }
                let mut number = 0;
                for round in 0..4 {
                    request_successors(&ep, &peers, &mut number).await;
                    // First all peers become idle, and then all but three.
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
                drop(peer_processes);
                // The event of a peer may come before its second connection has ended.
                while ep.stats().peers > 0 {
                    ep.domain().progress();
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            });
        }
    });
}

/// Opens endpoints in one domain.
fn open_endpoints(count: usize) -> (Domain, Vec<Endpoint>) {
    let info = fabric_async::discover(&Hints::new().provider("shm"))
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
                .unwrap(),
        );
    }
    (domain, endpoints)
}

/// Returns the memory of this process with shared pages counted in proportion (Pss), in bytes.
fn pss_bytes() -> usize {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").expect("read /proc");
    let line = rollup
        .lines()
        .find_map(|line| line.strip_prefix("Pss:"))
        .expect("a Pss line");
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
            let (first, mut endpoints) = open_endpoints(HALF);
            let (second, others) = open_endpoints(HALF);
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
                // In the opposite order of the sends.
                for (at, ep) in endpoints.iter().enumerate().rev() {
                    let sender = (at + endpoints.len() - 1) % endpoints.len();
                    let message = ep.recv().tag(round).await.unwrap();
                    assert_eq!(message[..], (sender as u64 + (round << 32)).to_le_bytes());
                }
            }
            let pair = (pss_bytes() - before) / endpoints.len();
            println!("{pair} bytes per connection, used in one direction");
            assert!(pair < 128 << 10, "{pair} bytes per connection");
        });
    });
}

/// Endpoints that connect in one burst: more than an endpoint accepts in one poll, and more than it
/// has pending handshakes.
const BURST: usize = 300;

/// A handshake takes a round trip, so all peers of a burst are pending together.
#[test]
fn pending_handshakes_of_a_connect_burst_are_not_evicted() {
    run_in_own_process(
        "scale::pending_handshakes_of_a_connect_burst_are_not_evicted",
        || {
            if !raise_descriptor_limit(4096) {
                return;
            }
            run(async {
                let host = Endpoint::bind("shm://").await.unwrap();
                let name = host.name().to_string();
                let mut clients = Vec::new();
                for _ in 0..BURST {
                    clients.push(Endpoint::bind("shm://").await.unwrap());
                }
                let connects = clients.iter().map(|client| client.add_peer(&name[..]));
                for connected in join_all(connects).await {
                    connected.unwrap();
                }
                assert_eq!(host.stats().peers, BURST);
            });
        },
    );
}
