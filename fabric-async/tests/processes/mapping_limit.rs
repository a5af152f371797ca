//! Loans that peers grant without end: the process maps a bounded number of them, whatever the
//! number of its endpoints, and copies the messages of other peers.

use std::os::fd::OwnedFd;

use fabric_async::Endpoint;
use rustix::fs::SealFlags;
use rustix::io::Errno;

use crate::blocking_close::start_closing_thread;
use crate::health::assert_still_works;
use crate::hostile::{connect_raw, encode_hello, sealed_memfd, try_send_with_fds};
use crate::leak_check::{ResourceUsage, count_mappings, run_in_own_process};
use crate::loans::LOAN_LEN;
use crate::rma::encode_grant;
use crate::run;
use crate::test_peer::TestPeer;

/// Chunks that each attacker grants: fewer than end its connection by themselves.
const GRANTS: u64 = 1000;
const ATTACKERS_PER_ENDPOINT: usize = 7;

/// Returns how many chunks of peers a process maps: an eighth of the mappings that it may have.
fn max_chunks() -> usize {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    text.trim().parse::<usize>().unwrap() / 8
}

/// Grants chunks to the endpoint until the endpoint ends the connection, or until all are granted.
async fn grant_chunks(ep: &Endpoint) -> OwnedFd {
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let segment = sealed_memfd(4096 + 64 * 64, all);
    let chunk = sealed_memfd(4096 + 4096, all);
    let socket = connect_raw(ep).await;
    rustix::io::ioctl_fionbio(&socket, true).unwrap();
    try_send_with_fds(&socket, &encode_hello("hostile", 1, 64), &[&segment]).unwrap();
    let mut key = 0;
    while key < GRANTS {
        match try_send_with_fds(&socket, &encode_grant(key, 4096, 1), &[&chunk]) {
            Ok(_) => key += 1,
            Err(Errno::AGAIN | Errno::TOOMANYREFS) => {
                ep.domain().progress();
                tokio::task::yield_now().await;
            }
            Err(Errno::PIPE | Errno::CONNRESET) => break,
            Err(errno) => panic!("{errno}"),
        }
    }
    socket
}

/// Receives loans of an honest process; `in_place` if they are not copied.
async fn receive_loans(ep: &Endpoint, in_place: bool) {
    let sender = TestPeer::start("loan_sender", &ep.name().to_string());
    let mut senders = Vec::new();
    for number in 0..20 {
        let loan = ep.recv_loan().tag(1).await.unwrap();
        assert_eq!(loan.is_in_place(), in_place, "loan {number}");
        let bytes = loan.to_vec();
        assert!(bytes.len() == LOAN_LEN && bytes.iter().all(|byte| *byte == number));
        senders.extend(loan.source());
    }
    // Takes what the process has sent before its end.
    drop(sender);
    while ep.recv_loan().tag(1).from(senders[0]).await.is_ok() {}
}

#[test]
fn loans_of_all_peers_leave_mappings_for_the_process() {
    run_in_own_process(
        "mapping_limit::loans_of_all_peers_leave_mappings_for_the_process",
        || {
            run(async {
                let eps = [
                    Endpoint::bind("shm://").await.unwrap(),
                    Endpoint::bind("shm://").await.unwrap(),
                ];
                receive_loans(&eps[0], true).await;
                start_closing_thread(&eps[0]).await;
                assert_still_works(&eps[1]).await;
                let before = ResourceUsage::wait_stable().await;
                let mut attackers = Vec::new();
                for _ in 0..ATTACKERS_PER_ENDPOINT {
                    for ep in &eps {
                        attackers.push(grant_chunks(ep).await);
                        // Chunks that are being unmapped count too, in the limit of the process.
                        let mapped = count_mappings("memfd:hostile");
                        assert!(mapped <= 2 * max_chunks(), "{mapped} mappings");
                    }
                }
                while count_mappings("memfd:hostile") > max_chunks() + attackers.len() {
                    assert_still_works(&eps[0]).await;
                }
                // An attacker whose grant finds no room loses its connection and its chunks.
                let mapped = count_mappings("memfd:hostile");
                assert!(mapped + 1000 > max_chunks(), "{mapped} mappings");
                receive_loans(&eps[0], false).await;
                receive_loans(&eps[1], false).await;
                assert_still_works(&eps[1]).await;
                drop(attackers);
                while count_mappings("memfd:hostile") > 0 {
                    assert_still_works(&eps[0]).await;
                }
                receive_loans(&eps[0], true).await;
                before.wait_restored().await;
            });
        },
    );
}
