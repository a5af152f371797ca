//! Peers that fill the budget for unexpected messages, while an honest peer goes on being served.

use std::time::Duration;

use fabric_async::stats::EndpointStats;
use fabric_async::{Endpoint, EventKind, FiAddr};

use crate::run;
use crate::test_peer::TestPeer;

/// The tag of messages that no receive takes.
const ATTACK_TAG: u64 = 666;
/// Rounds of the honest peer.
const ROUNDS: u64 = 50;
const BUDGET: usize = 16 << 20;

/// Returns an endpoint of the same provider as `name`, and its handle for the endpoint there.
pub(crate) async fn client_of(name: &str) -> (Endpoint, FiAddr) {
    let (scheme, _) = name.split_once("://").expect("a name with a scheme");
    let own = format!("{}://", scheme.trim_start_matches("fi_"));
    let ep = Endpoint::bind(&own[..]).await.expect("bind");
    let peer = ep.add_peer(name).await.expect("add_peer");
    (ep, peer)
}

/// Sends messages that no receive takes, forever.
pub(crate) async fn send_unexpected_forever(name: &str) {
    let (ep, peer) = client_of(name).await;
    for len in [64 << 10, 100].into_iter().cycle() {
        let sent = ep.send(peer, vec![0; len]).tag(ATTACK_TAG).await;
        if sent.is_err() {
            return;
        }
    }
}

/// Connects many times, and each time leaves messages that no receive takes.
pub(crate) async fn leave_unexpected(name: &str) {
    for round in 0..1500 {
        let (ep, peer) = client_of(name).await;
        let lens = if round < 20 {
            vec![1 << 20; 3]
        } else {
            vec![300; 4]
        };
        for len in lens {
            let message = vec![0; len];
            let sent = ep.send(peer, message).tag(ATTACK_TAG).start();
            // The first ones wait until the budget has room, so the attacker leaves them behind.
            let _ = tokio::time::timeout(Duration::from_millis(20), sent.expect("start")).await;
        }
        ep.close().expect("close");
    }
}

/// Sends two messages in each round. The first one is received last, and so must be buffered.
pub(crate) async fn send_in_reverse(name: &str) {
    let (ep, peer) = client_of(name).await;
    for round in 0..ROUNDS {
        ep.send(peer, vec![1; 1000]).tag(1).await.expect("send");
        let second = round.to_le_bytes().to_vec();
        ep.send(peer, second).tag(2).await.expect("send");
        ep.recv().tag(3).await.expect("recv");
    }
}

/// Makes progress until the statistics of the endpoint pass this test.
async fn wait_until(ep: &Endpoint, test: impl Fn(&EndpointStats) -> bool) {
    while !test(&ep.stats()) {
        ep.domain().progress();
        tokio::task::yield_now().await;
    }
}

/// Serves the rounds of an honest peer.
async fn serve_reverse(ep: &Endpoint) {
    for round in 0..ROUNDS {
        let second = ep.recv().tag(2).await.unwrap();
        assert_eq!(second[..], round.to_le_bytes());
        let first = ep.recv().tag(1).await.unwrap();
        assert_eq!(first[..], [1; 1000]);
        let peer = second.source().unwrap();
        ep.send(peer, "next").tag(3).await.unwrap();
        assert!(ep.stats().unexpected_bytes <= BUDGET);
    }
}

#[test]
fn peers_that_fill_the_budget_do_not_block_another_peer() {
    for scheme in ["tcp://", "shm://"] {
        run(async {
            let ep = Endpoint::bind(scheme).await.unwrap();
            let name = ep.name().to_string();
            let _attackers =
                [(); 3].map(|()| TestPeer::start("budget send_unexpected_forever", &name));
            // Until each attacker has used up its share.
            wait_until(&ep, |stats| stats.unexpected_bytes > BUDGET / 2).await;
            let _honest = TestPeer::start("budget send_in_reverse", &name);
            serve_reverse(&ep).await;
            assert_eq!(ep.stats().discarded, 0, "no peer has left");
        });
    }
}

#[test]
fn peers_that_left_do_not_block_a_connected_peer() {
    for scheme in ["tcp://", "shm://"] {
        run(async {
            let ep = Endpoint::bind(scheme).await.unwrap();
            let mut events = ep.take_events().unwrap();
            let name = ep.name().to_string();
            let mut attacker = TestPeer::start("budget leave_unexpected", &name);
            let discarding = async {
                loop {
                    if let EventKind::MessagesDiscarded {
                        peers, messages, ..
                    } = events.read().await.kind
                    {
                        assert!(peers > 0 && messages >= peers);
                        break;
                    }
                }
            };
            // The event can be lost where the attacker fills the event queue; the counter is not.
            let counted = wait_until(&ep, |stats| stats.discarded > 0);
            tokio::join!(discarding, counted);
            let _honest = TestPeer::start("budget send_in_reverse", &name);
            serve_reverse(&ep).await;
            attacker.0.kill().unwrap();
        });
    }
}
