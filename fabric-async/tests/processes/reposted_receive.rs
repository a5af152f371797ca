//! A receive that is reposted because its sender violated the protocol, while a message that the
//! receive accepts waits in the ring of another connection.

use std::os::fd::OwnedFd;

use fabric_async::{Endpoint, WaitPolicy};
use rustix::fs::SealFlags;

use crate::hostile::{connect_raw, encode_hello, sealed_memfd, send_with_fds};
use crate::run;

/// Writes a record header and the first payload word into a segment.
pub(crate) fn write_record(segment: &OwnedFd, line: u64, header: u64, payload: u64) {
    let bytes: Vec<u8> = [header, payload, 0]
        .into_iter()
        .flat_map(u64::to_le_bytes)
        .collect();
    rustix::io::pwrite(segment, &bytes, 4096 + 64 * line).unwrap();
}

#[test]
fn reposted_receive_takes_a_message_that_waits_in_a_ring() {
    run(async {
        let ep = Endpoint::options()
            .wait_policy(WaitPolicy::Park)
            .bind("shm://")
            .await
            .unwrap();
        // The program inserts the address of the hostile peer, because the release of an
        // auto-inserted handle also retries messages that wait in rings.
        ep.address_vector().insert("shm://hostile").unwrap();
        // Each of these peers uses half of the budget that is left, so that the next peer gets no
        // more than the guaranteed amount, which is that of seven short messages.
        let mut fillers = Vec::new();
        for _ in 0..16 {
            let filler = Endpoint::bind("shm://").await.unwrap();
            let to_ep = filler.add_peer(ep.name()).await.unwrap();
            loop {
                let before = ep.stats().unexpected;
                filler.send(to_ep, vec![1; 1000]).tag(7).await.unwrap();
                for _ in 0..20 {
                    ep.domain().progress();
                }
                if ep.stats().unexpected == before {
                    break;
                }
            }
            fillers.push(filler);
        }
        let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let (honest, hostile) = (
            sealed_memfd(4096 + 64 * 64, all),
            sealed_memfd(4096 + 64 * 64, all),
        );
        let honest_socket = connect_raw(&ep).await;
        send_with_fds(&honest_socket, &encode_hello("honest", 1, 64), &[&honest]);
        for _ in 0..1000 {
            ep.domain().progress();
            tokio::task::yield_now().await;
        }
        let receive = ep.recv().start().unwrap();
        // The beginning of a message of 100 bytes arrives in the receive.
        write_record(&hostile, 0, 2 | 24 << 16 | 1 << 40, 100);
        let hostile_socket = connect_raw(&ep).await;
        send_with_fds(
            &hostile_socket,
            &encode_hello("hostile", 1, 64),
            &[&hostile],
        );
        for _ in 0..1000 {
            ep.domain().progress();
            tokio::task::yield_now().await;
        }
        // The honest peer's messages, of which the last one waits in the ring; then the hostile
        // peer's violation.
        write_record(&honest, 7, 1 | 16 << 16 | 1 << 40, 77);
        for line in (0..7).rev() {
            write_record(&honest, line, 1 | 1 << 8 | 24 << 16 | 1 << 40, 7);
        }
        for _ in 0..1000 {
            ep.domain().progress();
            tokio::task::yield_now().await;
        }
        write_record(&hostile, 1, 0xff | 24 << 16 | 1 << 40, 0);
        // Only a wake-up polls the receive again.
        assert_eq!(receive.await.unwrap()[..], 77u64.to_le_bytes());
    });
}
