//! Peers over UDP: processes that are killed and restarted, multicast groups, floods, and
//! libfabric's fi_pingpong.

mod fi_pingpong;
mod hostile;
mod traffic_class;

pub(crate) use hostile::{flood, many_senders};

use std::net::UdpSocket;
use std::process::ExitStatus;

use fabric_async::{Endpoint, Progress};

use crate::run;
use crate::test_peer::TestPeer;

/// Checks that a new peer can exchange messages with the endpoint.
async fn assert_still_works(ep: &Endpoint) {
    let client = Endpoint::bind("udp://").await.unwrap();
    let peer = client.add_peer(ep.name()).await.unwrap();
    client.send(peer, "still working").await.unwrap();
    let got = ep.recv().await.unwrap();
    assert_eq!(&got[..], b"still working");
    ep.send(got.source().unwrap(), "yes").await.unwrap();
    assert_eq!(&client.recv().await.unwrap()[..], b"yes");
}

/// Sends back every message to its source, after announcing itself.
pub(crate) async fn echo(names: &str) {
    let (name, survivor) = names.split_once(' ').expect("two names");
    let ep = Endpoint::bind(name).await.expect("bind");
    let peer = ep.add_peer(survivor).await.expect("a UDP address");
    ep.send(peer, "ready").await.expect("send");
    loop {
        let message = ep.recv().await.expect("recv");
        ep.send(
            message.source().expect("source of the message"),
            message.into_bytes(),
        )
        .await
        .expect("send");
    }
}

/// Joins a multicast group, and sends what it receives to the test's endpoint.
pub(crate) async fn multicast_member(names: &str) {
    let (group, survivor) = names.split_once(' ').expect("two names");
    let ep = Endpoint::options()
        .progress(Progress::Auto)
        .bind("udp://")
        .await
        .expect("bind");
    let group = ep.join_multicast(group).expect("join_multicast");
    let peer = ep.add_peer(survivor).await.expect("a UDP address");
    ep.send(peer, "ready").await.expect("send");
    loop {
        let message = ep.recv().await.expect("recv");
        let source = message.source().expect("source of the message");
        assert!(source == peer && source != group.fi_addr());
        ep.send(peer, message.into_bytes()).await.expect("send");
    }
}

#[test]
fn restarted_peer_keeps_its_address_handle() {
    for progress in [Progress::Manual, Progress::Auto] {
        run(async {
            let ep = Endpoint::options()
                .progress(progress)
                .bind("udp://")
                .await
                .unwrap();
            // A port that was just free, on an address that only this process uses.
            let [.., high, low] = std::process::id().to_be_bytes();
            let host = if progress == Progress::Auto { 5 } else { 4 };
            let at = UdpSocket::bind(format!("127.{high}.{low}.{host}:0"))
                .unwrap()
                .local_addr()
                .unwrap();
            let (name, mut events) = (format!("udp://{at}"), ep.take_events().unwrap());
            let addr = ep.add_peer(&name[..]).await.unwrap();
            for round in 0..10u8 {
                let mut peer = TestPeer::start("udp echo", &format!("{name} {}", ep.name()));
                let ready = ep.recv().await.unwrap();
                assert_eq!((&ready[..], ready.source()), (&b"ready"[..], Ok(addr)));
                for len in [0, 1, 1000, 1472] {
                    ep.send(addr, vec![round; len]).await.unwrap();
                    assert_eq!(ep.recv().await.unwrap()[..], vec![round; len]);
                }
                peer.0.kill().unwrap();
                peer.0.wait().unwrap();
                // Over UDP no error reports that the peer has ended.
                for _ in 0..3 {
                    ep.send(addr, "to a closed port").await.unwrap();
                }
                assert_eq!(ep.probe().try_probe().unwrap(), None);
            }
            assert_eq!(
                (ep.stats().failed, ep.stats().dropped, events.try_read()),
                (0, 0, None)
            );
            assert_still_works(&ep).await;
        });
    }
}

#[test]
fn multicast_group_spans_processes() {
    run(async {
        let ep = Endpoint::bind("udp://").await.unwrap();
        let [.., high, low] = std::process::id().to_be_bytes();
        let group = format!("udp://239.{high}.{low}.251:7000");
        let mut members = Vec::new();
        for _ in 0..3 {
            members.push(TestPeer::start(
                "udp multicast_member",
                &format!("{group} {}", ep.name()),
            ));
            assert_eq!(&ep.recv().await.unwrap()[..], b"ready");
        }
        let to_all = ep.address_vector().insert(&group[..]).unwrap();
        for number in 0..100u32 {
            ep.send(to_all, number.to_le_bytes().to_vec())
                .await
                .unwrap();
            let mut repliers = Vec::new();
            while repliers.len() < members.len() {
                let got = ep.recv().await.unwrap();
                assert_eq!(got[..], number.to_le_bytes());
                repliers.push(got.source().unwrap());
            }
            repliers.sort();
            repliers.dedup();
            assert_eq!(repliers.len(), members.len(), "once from each");
            if number == 50 {
                // The killed process has left the group.
                let mut last = members.pop().unwrap();
                last.0.kill().unwrap();
                last.0.wait().unwrap();
            }
        }
        assert!(
            members
                .iter_mut()
                .all(|member| member.0.try_wait().unwrap().is_none())
        );
    });
}

/// Waits for the end of a child while tasks make progress.
async fn wait_exit(peer: &mut TestPeer) -> ExitStatus {
    loop {
        if let Some(status) = peer.0.try_wait().unwrap() {
            return status;
        }
        tokio::task::yield_now().await;
    }
}
