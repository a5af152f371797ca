//! Endpoints with a shared receive context, and processes that are killed while they send to them.

use std::collections::HashMap;
use std::time::Duration;

use bytes::BytesMut;
use fabric_async::info::SHARED_CONTEXT;
use fabric_async::{
    CqBind, DownReason, Endpoint, Error, EventKind, Fabric, FiAddr, Hints, Info, SharedRxContext,
    discover,
};
use futures_util::StreamExt;

use crate::budget_attacks::{ATTACK_TAG, BUDGET, ENDPOINTS as ATTACKERS, LONG_LEN};
use crate::run;
use crate::test_peer::TestPeer;

const ENDPOINTS: usize = 8;
const KILLS: u64 = 30;
/// The length from which messages of one kind of sender are single-copy.
const LONG_MESSAGE: usize = 100_000;

/// Sends numbered messages of all sizes to all endpoints, forever.
pub(crate) async fn send_to_all_endpoints(prefix: &str, single_copy_from: usize) {
    let ep = Endpoint::options()
        .single_copy_threshold(single_copy_from)
        .bind("shm://")
        .await
        .expect("bind");
    let mut endpoints = Vec::new();
    for index in 0..ENDPOINTS {
        endpoints.push(
            ep.add_peer(format!("{prefix}-{index}"))
                .await
                .expect("add_peer"),
        );
    }
    for number in 0u64.. {
        for endpoint in &endpoints {
            let mut message =
                vec![number as u8; [16, 100, 5000, 60_000, 300_000][number as usize % 5]];
            message[..8].copy_from_slice(&number.to_le_bytes());
            if ep.send(*endpoint, message).await.is_err() {
                return;
            }
        }
    }
}

/// Checks that the messages of each sender to each endpoint are whole and in order.
#[derive(Default)]
struct SequenceChecker {
    /// The next number for each pair of sender and endpoint.
    next_number: HashMap<(FiAddr, u64), u64>,
    messages: u64,
}

impl SequenceChecker {
    /// Checks that a message is whole and the next of its sender to its endpoint.
    fn check_message(&mut self, shared: &SharedRxContext, message: &fabric_async::Message) {
        let number = u64::from_le_bytes(message[..8].try_into().expect("eight bytes"));
        assert_eq!(
            message.len(),
            [16, 100, 5000, 60_000, 300_000][number as usize % 5]
        );
        assert!(
            message[8..].iter().all(|byte| *byte == number as u8),
            "message {number} is damaged"
        );
        let endpoint = shared
            .received_by(&message.transfer)
            .expect("the endpoint that received it is open");
        let next = self
            .next_number
            .entry((message.source().expect("a source"), endpoint))
            .or_default();
        assert_eq!(number, *next, "lost, or out of order");
        *next += 1;
        self.messages += 1;
    }
}

/// Receives, with a receive that is dropped at every event, until all connections of the victim are
/// down.
async fn recv_until_peer_down(
    shared: &SharedRxContext,
    events: &mut fabric_async::EventQueue,
    checker: &mut SequenceChecker,
) {
    let mut down = 0;
    while down < ENDPOINTS {
        tokio::select! {
            event = events.read() => match event.kind {
                EventKind::PeerDown { reason, .. } => {
                    assert_eq!(reason, DownReason::Died);
                    down += 1;
                }
                EventKind::PeerConnected { .. } | EventKind::PeerOverBudget { .. } => {}
                other => panic!("{other:?}"),
            },
            message = shared.recv() => match message {
                Ok(message) => checker.check_message(shared, &message),
                // The sender died in the middle of this message.
                Err(failed) => assert!(matches!(failed.error, Error::PeerGone(_)), "{failed}"),
            },
        }
    }
}

/// Opens a fabric of `shm` whose endpoints can share a receive context.
pub(crate) fn shared_rx_fabric() -> (Fabric, Info) {
    let hints = Hints::new().provider("shm").ep_rx_ctx_cnt(SHARED_CONTEXT);
    let info = discover(&hints).unwrap().swap_remove(0);
    (Fabric::open(&info).unwrap(), info)
}

#[test]
fn killed_senders_do_not_affect_shared_rx() {
    run(async {
        let (fabric, info) = shared_rx_fabric();
        let domain = fabric
            .domain_builder(&info)
            .single_copy_threshold(LONG_MESSAGE)
            .open()
            .unwrap();
        let mut events = fabric.event_queue(1024).unwrap();
        domain.bind_eq(&events).unwrap();
        let av = domain.auto_insert_address_vector().unwrap();
        let mut cq = domain.completion_queue(64).unwrap();
        let shared = domain
            .shared_rx_context(&info)
            .unwrap()
            .bind_av(&av)
            .unwrap();
        let shared = shared.bind_cq(&cq, CqBind::RECV).unwrap().open().unwrap();
        let prefix = format!("shm://shared-rx-{}", std::process::id());
        let mut endpoints = Vec::new();
        for index in 0..ENDPOINTS {
            let ep = domain
                .endpoint(&info)
                .unwrap()
                .bind_av(&av)
                .unwrap()
                .bind_shared_rx(&shared)
                .unwrap();
            endpoints.push(
                ep.name(format!("{prefix}-{index}"))
                    .unwrap()
                    .enable()
                    .unwrap(),
            );
        }
        let bystander = TestPeer::start("echo", &format!("{prefix}-0"));
        let to_bystander = shared.recv().tag(3).await.unwrap().source().unwrap();
        let (mut checker, mut seed) = (SequenceChecker::default(), 0x9e37_79b9_7f4a_7c15_u64);
        let mut dead = Vec::new();
        for kill in 0..KILLS {
            let role = if kill % 2 == 0 {
                "shared_rx_sender"
            } else {
                "shared_rx_sender single copy"
            };
            let mut victim = TestPeer::start(role, &prefix);
            let from_victim = loop {
                // Messages of an earlier victim may come first.
                if let Ok(message) = shared.recv().await {
                    checker.check_message(&shared, &message);
                    let source = message.source().unwrap();
                    if !dead.contains(&source) {
                        break source;
                    }
                }
            };
            dead.push(from_victim);
            let mut directed = shared.recv().tag(5).from(from_victim).start().unwrap();
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let delay = Duration::from_micros(seed >> 33 & 0x3fff);
            let killer = std::thread::spawn(move || {
                std::thread::sleep(delay);
                victim.0.kill().unwrap();
                victim.0.wait().unwrap();
            });
            recv_until_peer_down(&shared, &mut events, &mut checker).await;
            killer.join().unwrap();
            // The directed receive fails after the messages that the victim had sent, which may
            // wait in a ring for room in the budget.
            let failed = loop {
                tokio::select! {
                    biased;
                    ended = &mut directed => break ended.unwrap_err(),
                    message = shared.recv() => match message {
                        Ok(message) => checker.check_message(&shared, &message),
                        Err(failed) => {
                            assert!(matches!(failed.error, Error::PeerGone(_)), "{failed}");
                        }
                    },
                }
            };
            assert!(
                matches!(failed.error, Error::PeerGone(_) | Error::StaleAddress(_)),
                "kill {kill}: {failed}"
            );
            // The echo peer is not affected.
            shared
                .recv_into(vec![0; 8])
                .tag(4)
                .context(kill)
                .post()
                .unwrap();
            endpoints[0]
                .send(to_bystander, kill.to_le_bytes().to_vec())
                .await
                .unwrap();
            let reply = cq.next().await.unwrap();
            assert_eq!(
                (reply.context, reply.bytes()),
                (kill, &kill.to_le_bytes()[..])
            );
        }
        assert!(checker.messages > KILLS, "{} messages", checker.messages);
        drop(bystander);
        // The buffered messages of dead senders can still be received, and then no operation is
        // left.
        while shared.stats().unexpected > 0 {
            match shared.recv().await {
                Ok(message) => checker.check_message(&shared, &message),
                Err(failed) => assert!(matches!(failed.error, Error::PeerGone(_)), "{failed}"),
            }
        }
        assert_eq!(domain.stats().operations, 0);
    });
}

/// Multi-receives of a shared context take a long message in its turn, which another endpoint than
/// that of the attacker holds.
#[test]
fn shared_multi_receives_take_turns_with_held_messages() {
    run(async {
        let (fabric, info) = shared_rx_fabric();
        let domain = fabric.domain_builder(&info).open().unwrap();
        let mut events = fabric.event_queue(1024).unwrap();
        domain.bind_eq(&events).unwrap();
        let av = domain.auto_insert_address_vector().unwrap();
        let shared = domain.shared_rx_context(&info).unwrap();
        let shared = shared.bind_av(&av).unwrap().open().unwrap();
        let endpoints = [(); 2].map(|()| {
            let ep = domain.endpoint(&info).unwrap().bind_av(&av).unwrap();
            ep.bind_shared_rx(&shared).unwrap().enable().unwrap()
        });
        let attacked = endpoints[0].name().to_string();
        let _attacker = TestPeer::start("budget send_unexpected_from_many", &attacked);
        let fill = async |passes: usize| {
            for _ in 0..passes {
                if shared.stats().unexpected_bytes > BUDGET / 3 {
                    break;
                }
                domain.progress();
                tokio::task::yield_now().await;
            }
        };
        fill(usize::MAX).await;
        let options = Endpoint::options().single_copy_threshold(usize::MAX);
        let sender = options.bind("shm://").await.unwrap();
        let peer = sender.add_peer(endpoints[1].name()).await.unwrap();
        let long = sender.send(peer, vec![7u8; LONG_LEN]).tag(ATTACK_TAG);
        let receiving = async {
            while !matches!(
                events.read().await.kind,
                EventKind::PeerOverBudget { len: LONG_LEN, .. }
            ) {}
            let receives = shared.stats().unexpected + ATTACKERS + 64 * (ATTACKERS + 1);
            let mut received = 0;
            while received < receives {
                let buf = BytesMut::with_capacity(LONG_LEN + (256 << 10));
                let messages = shared.recv_multi(buf).tag(ATTACK_TAG).min_free(LONG_LEN);
                let messages = messages.start().unwrap();
                let messages: Vec<_> = messages.map(Result::unwrap).collect().await;
                received += messages.len();
                if let Some(long) = messages.iter().find(|long| long.len() == LONG_LEN) {
                    let ep = shared.received_by(&long.transfer);
                    return assert_eq!(ep, Some(endpoints[1].id()));
                }
                fill(20).await;
            }
            panic!("{received} messages were received, and not the long one");
        };
        let (sent, ()) = tokio::join!(long.into_future(), receiving);
        sent.unwrap();
    });
}
