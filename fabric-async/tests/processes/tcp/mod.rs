//! Peers over TCP: processes that are killed and restarted, and raw sockets.

mod address_reuse;
mod claimed_addresses;
mod connect_responses;
pub(crate) mod connected;
mod fairness;
mod held_messages;
pub(crate) mod hostile;
mod inbound_limits;
mod interfaces;
mod lingering_peers;
mod msg_options;
mod network_namespaces;
mod options;
mod protocols;
mod rma;
mod unanswered_connects;
mod uring;
mod zero_copy;

pub(crate) use held_messages::send_on_request;
pub(crate) use msg_options::host_name_client;
pub(crate) use rma::rma_target;
pub(crate) use zero_copy::low_memlock_sender;

use std::time::Duration;

use fabric_async::{Endpoint, EventQueue, FiAddr, Protocol};

pub(crate) use network_namespaces::{
    echo_any_peer, link_loss_client, lossy_client, rma_client, rma_owner, vanished_network_client,
};

use crate::domain_mode::DomainMode;
use crate::health::{assert_still_works, kill_after, next_down_reason, next_rejection};
use crate::run;
use crate::test_peer::TestPeer;

/// Binds an endpoint to a loopback address, and returns it with its event queue.
async fn bind_with_events() -> (Endpoint, EventQueue) {
    let ep = Endpoint::bind("tcp://").await.unwrap();
    let events = ep.take_events().unwrap();
    (ep, events)
}

/// Sends back every message; `names` has the name of this peer and that of the test's endpoint.
pub(crate) async fn echo(names: &str) {
    let (name, survivor) = names.split_once(' ').expect("two names");
    let ep = Endpoint::bind(name).await.expect("bind");
    let peer = ep.add_peer(survivor).await.expect("add_peer");
    ep.send(peer, "ready").tag(3).await.expect("send");
    while let Ok(message) = ep.recv().from(peer).await {
        if ep.send(peer, message.into_bytes()).tag(4).await.is_err() {
            return;
        }
    }
}

/// Sends messages of all sizes, forever.
pub(crate) async fn send_forever(name: &str, protocol: Protocol) {
    let ep = Endpoint::options()
        .protocol(protocol)
        .bind("tcp://")
        .await
        .expect("bind");
    let peer = ep.add_peer(name).await.expect("add_peer");
    for round in 0usize.. {
        let len = [8, 100, 4096, 60_000, 3_000_000][round % 5];
        if ep.send(peer, vec![round as u8; len]).tag(1).await.is_err() {
            return;
        }
    }
}

/// Receives messages of this peer, each of which must be complete, until the peer has gone.
async fn recv_until_gone(ep: &Endpoint, source: FiAddr) {
    let error = loop {
        match ep.recv().tag(1).from(source).await {
            Ok(message) => assert!(message.iter().all(|byte| *byte == message[0])),
            Err(failed) => break failed.error,
        }
    };
    assert!(error.is_peer_unavailable(), "{error}");
}

#[test]
fn restarted_peer_is_reached_by_its_old_address() {
    for mode in DomainMode::ALL {
        run(async {
            let ep = mode.options().bind("tcp://").await.unwrap();
            let mut events = ep.take_events().unwrap();
            // A port that was just free, on an address that only this process uses.
            let [.., high, low] = std::process::id().to_be_bytes();
            let host = 2 + mode as u8;
            let port = Endpoint::bind(&format!("tcp://127.{high}.{low}.{host}:0"))
                .await
                .unwrap()
                .name()
                .clone();
            let name = port.to_string();
            let mut addr = None;
            for round in 0..10u8 {
                let mut peer = TestPeer::start("tcp echo", &format!("{name} {}", ep.name()));
                let ready = ep.recv().tag(3).await.unwrap();
                // A handle inserted by name reaches the process that has bound the address.
                let addr = match addr {
                    Some(addr) => addr,
                    None => *addr.insert(ep.add_peer(&name[..]).await.unwrap()),
                };
                assert!(round == 0 || ready.source().unwrap() == addr);
                ep.send(addr, vec![round; 1000]).await.unwrap();
                assert_eq!(ep.recv().tag(4).await.unwrap()[..], [round; 1000]);
                // Pending when the peer dies: a message longer than the socket buffers, and a
                // receive without a message.
                let sent = ep.send(addr, vec![round; 100 << 20]).start().unwrap();
                let receiving = ep.recv().tag(5).from(addr).start().unwrap();
                peer.0.kill().unwrap();
                peer.0.wait().unwrap();
                let failed = receiving.await.unwrap_err();
                assert!(failed.error.is_peer_unavailable(), "{}", failed.error);
                let failed = sent.await.unwrap_err();
                assert!(
                    failed.error.is_peer_unavailable() && failed.buf.len() == 100 << 20,
                    "{}",
                    failed.error
                );
                next_down_reason(&mut events).await;
            }
            assert_still_works(&ep).await;
        });
    }
}

#[test]
fn killed_senders_are_reported_and_do_not_affect_others() {
    run(async {
        let (ep, mut events) = bind_with_events().await;
        let mut bystander = TestPeer::start("tcp echo", &format!("tcp:// {}", ep.name()));
        let ready = ep.recv().tag(3).await.unwrap();
        let to_bystander = ready.source().unwrap();
        for kill in 0..30u64 {
            let victim = TestPeer::start("tcp send_forever", &ep.name().to_string());
            let source = ep.recv().tag(1).await.unwrap().source().unwrap();
            let killer = kill_after(victim, Duration::from_micros(kill * 300));
            recv_until_gone(&ep, source).await;
            killer.join().unwrap();
            next_down_reason(&mut events).await;
            ep.send(to_bystander, kill.to_le_bytes().to_vec())
                .await
                .unwrap();
            assert_eq!(ep.recv().tag(4).await.unwrap()[..], kill.to_le_bytes());
        }
        assert!(bystander.0.try_wait().unwrap().is_none());
    });
}

/// Both endpoints connect at the same time: one connection remains, and no message is lost.
#[test]
fn simultaneous_connects_leave_one_connection() {
    for mode in DomainMode::ALL {
        run(async {
            for round in 0..100 {
                let open = || mode.options().bind("tcp://");
                let (a, b) = (open().await.unwrap(), open().await.unwrap());
                let (to_b, to_a) = tokio::join!(a.add_peer(b.name()), b.add_peer(a.name()));
                let (to_b, to_a) = (to_b.unwrap(), to_a.unwrap());
                let ab = (0..5u8)
                    .map(|number| a.send(to_b, vec![number; 1 + round * 500]).start().unwrap());
                let ba = (0..5u8)
                    .map(|number| b.send(to_a, vec![number; 1 + round * 500]).start().unwrap());
                let sent: Vec<_> = ab
                    .collect::<Vec<_>>()
                    .into_iter()
                    .chain(ba.collect::<Vec<_>>())
                    .collect();
                for number in 0..5u8 {
                    for ep in [&a, &b] {
                        assert_eq!(
                            ep.recv().await.unwrap()[..],
                            vec![number; 1 + round * 500],
                            "round {round}"
                        );
                    }
                }
                for sent in sent {
                    sent.await.unwrap();
                }
                assert_eq!((a.stats().peers, b.stats().peers), (1, 1), "round {round}");
            }
        });
    }
}
