//! Peers that fill the budget for unexpected messages, while an honest peer goes on being served.

use std::time::Duration;

use bytes::BytesMut;
use fabric_async::stats::EndpointStats;
use fabric_async::{Address, BindOptions, Endpoint, EventKind, FiAddr, SocketOptions};
use futures_util::{FutureExt, StreamExt};

use crate::leak_check::{BeforeAttack, run_in_own_process, wait_until};
use crate::run;
use crate::test_peer::TestPeer;

/// The tag of messages that no receive takes.
pub(crate) const ATTACK_TAG: u64 = 666;
/// Rounds of the honest peer.
const ROUNDS: u64 = 50;
/// Endpoints of an attacker that sends from many.
pub(crate) const ENDPOINTS: usize = 24;
/// Longer than the share of a peer.
pub(crate) const LONG_LEN: usize = 8 << 20;
pub(crate) const BUDGET: usize = 16 << 20;
/// What a process with three threads keeps of the free buffers of the three sizes of messages.
const POOLED: usize = 3 * ((4 << 20) + 3 * (256 << 10));

/// Returns options of an endpoint whose sockets buffer little: what the kernel keeps of 24
/// connections takes long to receive.
fn short_sockets() -> BindOptions {
    let sockets = SocketOptions::new()
        .send_buffer(64 << 10)
        .receive_buffer(64 << 10);
    Endpoint::options().socket_options(sockets)
}

/// Returns an endpoint of the same provider as `name`, and its handle for the endpoint there.
pub(crate) async fn client_of(name: &str) -> (Endpoint, FiAddr) {
    let (scheme, _) = name.split_once("://").expect("a name with a scheme");
    let own = format!("{}://", scheme.trim_start_matches("fi_"));
    let ep = short_sockets().bind(&own[..]).await.expect("bind");
    let peer = ep.add_peer(name).await.expect("add_peer");
    (ep, peer)
}

/// Sends messages that no receive takes, forever.
pub(crate) async fn send_unexpected_forever(name: &str) {
    send_unexpected(name, &[64 << 10, 100]).await;
}

/// Sends messages of these lengths that no receive takes, forever.
async fn send_unexpected(name: &str, lens: &[usize]) {
    send_unexpected_of(client_of(name).await, lens).await;
}

async fn send_unexpected_of((ep, peer): (Endpoint, FiAddr), lens: &[usize]) {
    for &len in lens.iter().cycle() {
        let sent = ep.send(peer, vec![0; len]).tag(ATTACK_TAG).await;
        if sent.is_err() {
            return;
        }
    }
}

/// As [`send_unexpected_forever`], from many endpoints of one process. The messages are so short
/// that over shm the receiver does not copy them from this process when it receives.
pub(crate) async fn send_unexpected_from_many(name: &str) {
    futures_util::future::join_all((0..ENDPOINTS).map(|_| send_unexpected(name, &[1000]))).await;
}

/// As [`send_unexpected_from_many`], from endpoints with the names that [`inserted_name`] returns.
pub(crate) async fn send_unexpected_from_names(name: &str) {
    let send = async |number| {
        let ep = Endpoint::bind(&inserted_name(name, number)[..]).await;
        let ep = ep.expect("bind");
        let peer = ep.add_peer(name).await.expect("add_peer");
        send_unexpected_of((ep, peer), &[1000]).await;
    };
    futures_util::future::join_all((0..ENDPOINTS).map(send)).await;
}

/// Returns the name of a peer that the endpoint of this name has inserted.
fn inserted_name(name: &str, number: usize) -> String {
    format!("{name}-inserted-{number}")
}

/// Connects again and again, and each time leaves messages that no receive takes.
pub(crate) async fn leave_unexpected(name: &str) {
    for round in 0.. {
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

/// Sends two messages in each round, from the address that follows the name. The first message is
/// received last, and so must be buffered.
pub(crate) async fn send_in_reverse(name_and_own: &str) {
    let (name, own) = name_and_own.split_once(' ').expect("two names");
    let ep = Endpoint::bind(own).await.expect("bind");
    let peer = ep.add_peer(name).await.expect("add_peer");
    for round in 0..ROUNDS {
        ep.send(peer, vec![1; 1000]).tag(1).await.expect("send");
        let second = round.to_le_bytes().to_vec();
        ep.send(peer, second).tag(2).await.expect("send");
        ep.recv().tag(3).await.expect("recv");
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

/// Runs an attack on an endpoint of each provider, in a process of its own. Afterwards the process
/// has what it had before.
fn run_attack(test: &str, attack: impl AsyncFn(&Endpoint)) {
    run_in_own_process(test, || {
        for scheme in ["tcp://", "shm://"] {
            run(async {
                let ep = short_sockets().bind(scheme).await.unwrap();
                serve_honest_peer(&ep).await;
                let before = BeforeAttack::of(&ep).await;
                attack(&ep).await;
                before.assert_restored(&ep, POOLED).await;
            });
        }
    });
}

/// Serves an honest peer. The endpoint has inserted the peer's address, because over tcp the peers
/// of one machine share a part of the budget otherwise.
async fn serve_honest_peer(ep: &Endpoint) {
    let own = if ep.name().socket_addr().is_some() {
        // A free port, on an address that only this process uses.
        let [.., high, low] = std::process::id().to_be_bytes();
        let any_port = format!("tcp://127.{high}.{low}.5:0");
        let free = Endpoint::bind(&any_port[..]).await.unwrap();
        ep.address_vector().insert(free.name()).unwrap();
        free.name().to_string()
    } else {
        "shm://".to_owned()
    };
    let names = format!("{} {own}", ep.name());
    let mut honest = TestPeer::start("budget send_in_reverse", &names);
    serve_reverse(ep).await;
    honest.0.wait().unwrap();
}

/// Receives what attackers have left, until they are disconnected.
async fn receive_from_attackers(ep: &Endpoint) {
    while ep.stats().peers > 0 || ep.stats().unexpected > 0 {
        // A receive that has not completed is cancelled.
        let receive = ep.recv().tag(ATTACK_TAG);
        let _ = receive.into_future().now_or_never();
        tokio::task::yield_now().await;
    }
}

#[test]
fn peers_that_fill_the_budget_do_not_block_another_peer() {
    run_attack(
        "budget_attacks::peers_that_fill_the_budget_do_not_block_another_peer",
        async |ep| {
            let mut events = ep.take_events().unwrap();
            while events.try_read().is_some() {}
            let name = ep.name().to_string();
            let attackers =
                [(); 3].map(|()| TestPeer::start("budget send_unexpected_forever", &name));
            // Until each attacker has used up its share.
            wait_until(ep, |stats| {
                stats.peers == 3 && stats.unexpected_bytes > BUDGET / 3
            })
            .await;
            let connected = std::iter::from_fn(|| events.try_read());
            let names: Vec<_> = connected
                .filter_map(|event| match event.kind {
                    EventKind::PeerConnected { peer, .. } => Some(peer),
                    _ => None,
                })
                .collect();
            serve_honest_peer(ep).await;
            assert_eq!(ep.stats().discarded, 0, "no peer has left");
            drop(attackers);
            for name in &names {
                ep.disconnect(name).unwrap();
            }
            assert_eq!((names.len(), ep.stats().unexpected), (3, 0));
        },
    );
}

/// A message that no budget has room for is received in its turn, while another process fills its
/// share again after each call of `receive`, which returns the lengths of received messages.
fn receive_long_message(receive: impl AsyncFn(&Endpoint) -> Vec<usize>) {
    for scheme in ["tcp://", "shm://"] {
        run(async {
            let ep = Endpoint::bind(scheme).await.unwrap();
            let name = ep.name().to_string();
            let _attacker = TestPeer::start("budget send_unexpected_from_many", &name);
            let is_full = |stats: &EndpointStats| stats.unexpected_bytes > BUDGET / 3;
            wait_until(&ep, is_full).await;
            // Through the ring: a single copy is done by the receiver.
            let options = Endpoint::options().single_copy_threshold(usize::MAX);
            let sender = options.bind(scheme).await.unwrap();
            let peer = sender.add_peer(ep.name()).await.unwrap();
            let long = sender.send(peer, vec![7u8; LONG_LEN]).tag(ATTACK_TAG);
            let receiving = async {
                let mut events = ep.take_events().unwrap();
                loop {
                    let event = events.read().await.kind;
                    if matches!(event, EventKind::PeerOverBudget { len: LONG_LEN, .. }) {
                        break;
                    }
                }
                // The messages that are buffered and held now, and 64 receives for a turn of each
                // held one.
                let receives = ep.stats().unexpected + ENDPOINTS + 64 * (ENDPOINTS + 1);
                let mut received = 0;
                while received < receives {
                    let lens = receive(&ep).await;
                    if lens.contains(&LONG_LEN) {
                        return;
                    }
                    received += lens.len();
                    // The attacker fills its share again while the program does something else.
                    let mut passes = 0;
                    wait_until(&ep, |stats| {
                        passes += 1;
                        is_full(stats) || passes > 20
                    })
                    .await;
                }
                panic!("{received} messages were received, and not the long one");
            };
            let (sent, ()) = tokio::join!(long.into_future(), receiving);
            sent.unwrap();
        });
    }
}

#[test]
fn long_message_is_received_while_another_process_fills_its_share() {
    receive_long_message(async |ep| vec![ep.recv().tag(ATTACK_TAG).await.unwrap().len()]);
}

#[test]
fn long_message_is_claimed_while_another_process_fills_its_share() {
    receive_long_message(async |ep| {
        let claimed = ep.probe().tag(ATTACK_TAG).claim().await.unwrap();
        vec![claimed.recv().await.unwrap().len()]
    });
}

#[test]
fn long_message_gets_a_multi_receive_while_another_process_fills_its_share() {
    receive_long_message(async |ep| {
        // Room for more messages of the attacker than the post delivers: passes go on.
        let buf = BytesMut::with_capacity(LONG_LEN + (256 << 10));
        let messages = ep.recv_multi(buf).tag(ATTACK_TAG).min_free(LONG_LEN);
        let messages = messages.start().unwrap();
        messages
            .map(|message| message.unwrap().len())
            .collect()
            .await
    });
}

#[test]
fn connections_of_one_process_share_a_part_of_the_budget() {
    run_attack(
        "budget_attacks::connections_of_one_process_share_a_part_of_the_budget",
        async |ep| {
            let name = ep.name().to_string();
            let attacker = TestPeer::start("budget send_unexpected_from_many", &name);
            wait_until(ep, |stats| stats.held_connections == ENDPOINTS).await;
            // Their share, and a part of the reserve.
            let used = ep.stats().unexpected_bytes;
            assert!((BUDGET / 4..=BUDGET / 2).contains(&used), "{used}");
            serve_honest_peer(ep).await;
            drop(attacker);
            receive_from_attackers(ep).await;
        },
    );
}

/// A process has the names of inserted peers that are not running.
#[test]
fn names_of_inserted_peers_share_a_part_of_the_budget() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let name = ep.name().to_string();
        for number in 0..ENDPOINTS {
            let address: Address = inserted_name(&name, number).parse().unwrap();
            ep.address_vector().insert(&address).unwrap();
        }
        let _attacker = TestPeer::start("budget send_unexpected_from_names", &name);
        wait_until(&ep, |stats| stats.held_connections == ENDPOINTS).await;
        let used = ep.stats().unexpected_bytes;
        assert!((BUDGET / 4..=BUDGET / 2).contains(&used), "{used}");
        serve_honest_peer(&ep).await;
    });
}

#[test]
fn peers_that_left_do_not_block_a_connected_peer() {
    run_attack(
        "budget_attacks::peers_that_left_do_not_block_a_connected_peer",
        async |ep| {
            let mut events = ep.take_events().unwrap();
            let attacker = TestPeer::start("budget leave_unexpected", &ep.name().to_string());
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
            // An event can be lost where the attacker fills the event queue; a later one follows.
            let counted = wait_until(ep, |stats| stats.discarded > 0);
            tokio::join!(discarding, counted);
            serve_honest_peer(ep).await;
            drop(attacker);
            receive_from_attackers(ep).await;
        },
    );
}
