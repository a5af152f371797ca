//! Senders of arbitrary datagrams, as fast as possible.

use std::net::UdpSocket;
use std::time::Duration;

use fabric_async::{Endpoint, Error, Progress};

use super::{assert_still_works, wait_exit};
use crate::run;
use crate::test_peer::TestPeer;

/// Datagrams of one flood.
const FLOOD_DATAGRAMS: usize = 20_000;
/// Senders of one run: more than an endpoint's table of auto-inserted peers holds.
const SENDERS: usize = 3000;

/// Sends datagrams of many lengths from many sockets.
pub(crate) fn flood(name: &str) {
    let at = name.strip_prefix("fi_udp://").expect("a UDP address");
    let sockets: Vec<_> = (0..50)
        .map(|_| UdpSocket::bind("127.0.0.1:0").expect("bind"))
        .collect();
    let garbage: Vec<u8> = (0..65_507u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    for number in 0..FLOOD_DATAGRAMS {
        let len = [0, 0, 1, 0, 1472, 0, 1473, 9000, 65_507][number % 9];
        sockets[number % sockets.len()]
            .send_to(&garbage[..len], at)
            .expect("send");
    }
}

/// Plays many senders, each of which sends one datagram and waits for the reply.
pub(crate) fn many_senders(name: &str) {
    let at = name.strip_prefix("fi_udp://").expect("a UDP address");
    for _ in 0..SENDERS {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
        socket.send_to(b"hello", at).expect("send");
        // Detects hangs.
        socket
            .set_read_timeout(Some(Duration::from_secs(60)))
            .expect("set_read_timeout");
        assert_eq!(socket.recv(&mut [0; 8]).expect("a reply"), 2);
    }
}

/// Receives all buffered messages, checks that each is whole or truncated, and returns their
/// number.
async fn drain_unexpected(ep: &Endpoint) -> usize {
    let mut count = 0;
    while ep.probe().try_probe().unwrap().is_some() {
        match ep.recv().await {
            Ok(message) => assert!([0, 1, 1472].contains(&message.len())),
            Err(failed) => {
                let Error::Truncated { len: 1472, lost } = failed.error else {
                    panic!("{}", failed.error)
                };
                assert!([1473 - 1472, 9000 - 1472, 65_507 - 1472].contains(&lost));
            }
        }
        count += 1;
    }
    count
}

#[test]
fn datagram_flood_stays_within_the_unexpected_budget() {
    for progress in [Progress::Manual, Progress::Auto] {
        run(async {
            let ep = Endpoint::options()
                .progress(progress)
                .bind("udp://")
                .await
                .unwrap();
            for _ in 0..2 {
                let mut peer = TestPeer::start("udp flood", &ep.name().to_string());
                // The kernel may drop datagrams.
                while peer.0.try_wait().unwrap().is_none() {
                    ep.domain().progress();
                    assert!(ep.stats().unexpected_bytes <= 8 << 20);
                    tokio::task::yield_now().await;
                }
                assert!(wait_exit(&mut peer).await.success());
                let before = ep.stats();
                let count = drain_unexpected(&ep).await;
                assert!(
                    count >= before.unexpected && count > 0,
                    "{count} {before:?}"
                );
                assert_eq!((ep.stats().unexpected, ep.stats().unexpected_bytes), (0, 0));
                assert_still_works(&ep).await;
            }
        });
    }
}

#[test]
fn auto_inserted_senders_beyond_the_limit_are_evicted() {
    run(async {
        let ep = Endpoint::bind("udp://").await.unwrap();
        let bystander = Endpoint::bind("udp://").await.unwrap();
        let known = ep.add_peer(bystander.name()).await.unwrap();
        let client = Endpoint::bind("udp://").await.unwrap();
        let to_ep = client.add_peer(ep.name()).await.unwrap();
        let mut sources = Vec::new();
        for _ in 0..2 {
            client.send(to_ep, "request").await.unwrap();
            sources.push(ep.recv().await.unwrap().source().unwrap());
        }
        let mut peer = TestPeer::start("udp many_senders", &ep.name().to_string());
        let mut most = 0;
        for _ in 0..SENDERS {
            let got = ep.recv().await.unwrap();
            assert_eq!(&got[..], b"hello");
            ep.send(got.source().unwrap(), "ok").await.unwrap();
            most = most.max(ep.address_vector().peers().len());
        }
        assert!(wait_exit(&mut peer).await.success());
        // The inserted peer, and the auto-inserted peers that are kept.
        assert_eq!((most, ep.address_vector().peers().len()), (1025, 1025));
        assert_eq!(
            ep.address_vector().lookup(known).as_ref(),
            Ok(bystander.name()),
            "an inserted peer is not evicted"
        );
        client.send(to_ep, "request").await.unwrap();
        sources.push(ep.recv().await.unwrap().source().unwrap());
        assert!(
            sources.iter().all(|source| *source == sources[0]),
            "a sender of several datagrams is not evicted by senders of one"
        );
        assert_still_works(&ep).await;
    });
}
