//! Limits of connections over `shm`: what processes of the same user can make an endpoint hold.

use fabric_async::{
    Address, Endpoint, Error, EventKind, EventQueue, FiAddr, RefusalReason, SocketOptions,
};
use rustix::fs::SealFlags;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, getpid, getrlimit, kill_process, setrlimit, waitpid,
};

use crate::health::assert_still_works;
use crate::hostile::{connect_raw, encode_hello, sealed_memfd, send_with_fds};
use crate::leak_check::{BeforeAttack, ResourceUsage, run_in_own_process, wait_until};
use crate::run;
use crate::test_peer::TestPeer;

/// Endpoints that an attacker connects.
const FLOOD: usize = 120;
/// Longer than the share of one peer, so that no budget has room for the message.
const HELD_LEN: usize = 8 << 20;
const REPORT_TAG: u64 = 5;

/// Connects many endpoints and keeps them. Reports how many were accepted; all others must have
/// been refused for lack of resources.
pub(crate) async fn connect_many(name: &str) {
    set_descriptor_limit(None);
    let mut accepted = Vec::new();
    for _ in 0..FLOOD {
        let ep = Endpoint::bind("shm://").await.expect("bind");
        let connected = match ep.add_peer(name).await {
            Ok(peer) => match ep.send(peer, "").tag(6).await {
                Ok(_) => Ok(peer),
                Err(failed) => Err(failed.error),
            },
            Err(error) => Err(error),
        };
        match connected {
            Ok(peer) => accepted.push((ep, peer)),
            Err(Error::ConnectionRefused {
                reason: RefusalReason::Resources,
                ..
            }) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
    if let Some((ep, peer)) = accepted.first() {
        let report = vec![accepted.len() as u8];
        ep.send(*peer, report).tag(REPORT_TAG).await.expect("send");
    }
    std::future::pending().await
}

/// Sets the limit of descriptors (`RLIMIT_NOFILE`) to `current`, or else to its maximum.
pub(crate) fn set_descriptor_limit(current: Option<u64>) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = current.or(maximum);
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
}

/// Begins a message that no budget has room for, stops, and waits to be killed.
pub(crate) async fn begin_held(name: &str) {
    // Through the ring, because a single copy is done by the receiver.
    let options = Endpoint::options().single_copy_threshold(usize::MAX);
    let ep = options.bind("shm://").await.expect("bind");
    let peer = ep.add_peer(name).await.expect("add_peer");
    ep.send(peer, "").tag(REPORT_TAG).await.expect("send");
    let held = ep.send(peer, vec![7u8; HELD_LEN]).tag(9).start();
    kill_process(getpid(), Signal::STOP).expect("signal this process");
    let _ = held.expect("transmit credit").await;
}

/// An endpoint under attack, and an honest client.
struct Attacked {
    ep: Endpoint,
    events: EventQueue,
    client: FiAddr,
    _client_process: TestPeer,
}

impl Attacked {
    async fn open(options: SocketOptions) -> Self {
        let options = Endpoint::options().socket_options(options);
        let ep = options.bind("shm://").await.unwrap();
        let events = ep.take_events().unwrap();
        let client_process = TestPeer::start("echo", &ep.name().to_string());
        // The program does not insert the client's address until the client has connected, so the
        // connection counts.
        let ready = ep.recv().tag(3).await.unwrap();
        let client = ready.source().unwrap();
        let mut attacked = Self {
            ep,
            events,
            client,
            _client_process: client_process,
        };
        attacked.assert_client_is_served().await;
        assert_eq!(attacked.count_refused(), 0);
        attacked
    }

    async fn assert_client_is_served(&self) {
        for number in 0..50u64 {
            let request = number.to_le_bytes();
            self.ep.send(self.client, request.to_vec()).await.unwrap();
            let reply = self.ep.recv().tag(4).from(self.client).await.unwrap();
            assert_eq!(reply[..], request);
        }
    }

    /// Starts a process that connects many endpoints. Returns it, and how many were accepted.
    async fn flood(&self) -> (TestPeer, usize) {
        let attacker = TestPeer::start("connect_many", &self.ep.name().to_string());
        let report = self.ep.recv().tag(REPORT_TAG).await.unwrap();
        (attacker, report[0].into())
    }

    /// Starts a process whose message is held, kills the process, and waits until the endpoint
    /// knows that.
    async fn kill_sender(&mut self) {
        let sender = TestPeer::start("begin_held", &self.ep.name().to_string());
        self.ep.recv().tag(REPORT_TAG).await.unwrap();
        let process = Pid::from_child(&sender.0);
        let is_stopped = || {
            let options = WaitOptions::UNTRACED | WaitOptions::NOHANG;
            waitpid(Some(process), options).unwrap().is_some()
        };
        while !is_stopped() {
            self.make_pass().await;
        }
        // The beginning of the message is in the ring: the passes decline it.
        for _ in 0..20 {
            self.make_pass().await;
        }
        drop(sender);
        while !self.has_peer_ended() {
            self.make_pass().await;
        }
    }

    async fn make_pass(&self) {
        self.ep.domain().progress();
        tokio::task::yield_now().await;
    }

    /// Returns whether the unread events up to the next end of a peer have one.
    fn has_peer_ended(&mut self) -> bool {
        std::iter::from_fn(|| self.events.try_read())
            .any(|event| matches!(event.kind, EventKind::PeerDown { .. }))
    }

    /// Returns how many connections the unread events report as refused because of a limit.
    fn count_refused(&mut self) -> u64 {
        let events = std::iter::from_fn(|| self.events.try_read());
        let refused = events.map(|event| match event.kind {
            EventKind::InboundRefused {
                error: error @ Error::TooMany { .. },
                count,
            } if error.to_string().contains("inbound connections") => count,
            EventKind::InboundRefused { error, .. } => panic!("{error}"),
            _ => 0,
        });
        refused.sum()
    }
}

/// Beyond the limits of the endpoint and of one process, connections are refused and counted. An
/// honest client is served meanwhile, an inserted peer connects at the limit, and connections that
/// end make room.
#[test]
fn connections_beyond_the_limit_are_refused() {
    run_in_own_process(
        "shm_limits::connections_beyond_the_limit_are_refused",
        || {
            run(async {
                let mut attacked = Attacked::open(SocketOptions::new().max_inbound(12)).await;
                let usage = ResourceUsage::wait_stable().await;
                let before = BeforeAttack::of_connected(&attacked.ep, 1).await;
                let mut attackers = Vec::new();
                // The share of one process is half of the limit, and the honest client has one.
                for expected in [6, 5] {
                    let (attacker, accepted) = attacked.flood().await;
                    assert_eq!(accepted, expected);
                    attackers.push(attacker);
                    attacked.assert_client_is_served().await;
                }
                let refused = 2 * FLOOD as u64 - 11;
                let stats = attacked.ep.stats();
                assert_eq!((stats.peers, stats.inbound_refused), (12, refused));
                assert_eq!(attacked.count_refused(), refused);
                // Descriptors of refused connections are closed in the background.
                let now = ResourceUsage::wait_stable().await;
                assert!(now.descriptors <= usage.descriptors + 2 * 11 + 2, "{now:?}");

                let name: Address = format!("shm://inserted-{}", std::process::id())
                    .parse()
                    .unwrap();
                attacked.ep.address_vector().insert(&name).unwrap();
                let inserted = Endpoint::bind(name).await.unwrap();
                let server = inserted.add_peer(attacked.ep.name()).await.unwrap();
                inserted.send(server, "inserted").tag(7).await.unwrap();
                assert_eq!(attacked.ep.recv().tag(7).await.unwrap()[..], *b"inserted");
                drop(inserted);

                drop(attackers);
                before.assert_restored_to(&attacked.ep, 1, 0).await;
                let (_attacker, accepted) = attacked.flood().await;
                assert_eq!(accepted, 6);
                attacked.assert_client_is_served().await;
            });
        },
    );
}

/// Connections leave a quarter of the descriptors to the program, whatever the limits of
/// connections.
#[test]
fn flood_leaves_descriptors_to_the_program() {
    run_in_own_process(
        "shm_limits::flood_leaves_descriptors_to_the_program",
        || {
            set_descriptor_limit(Some(256));
            run(async {
                let options = SocketOptions::new().max_inbound_per_source(1000);
                let mut attacked = Attacked::open(options).await;
                let before = BeforeAttack::of_connected(&attacked.ep, 1).await;
                let (first, accepted) = attacked.flood().await;
                // Of 192 descriptors, each connection takes two.
                assert_eq!(accepted, 95);
                let second = TestPeer::start("connect_many", &attacked.ep.name().to_string());
                wait_until(&attacked.ep, |stats| {
                    stats.inbound_refused == (2 * FLOOD - accepted) as u64
                })
                .await;
                assert_eq!(attacked.count_refused(), (2 * FLOOD - accepted) as u64);
                attacked.assert_client_is_served().await;
                drop(std::fs::File::open("/dev/null").expect("a descriptor"));
                drop((first, second));
                before.assert_restored_to(&attacked.ep, 1, 0).await;
                let (_attacker, accepted) = attacked.flood().await;
                assert_eq!(accepted, 95);
            });
        },
    );
}

/// Killed processes whose messages are held leave no descriptors, and at the limit their
/// connections are closed for others, the oldest first. A receive takes what is left of the others.
#[test]
fn killed_senders_of_held_messages_make_room() {
    run_in_own_process(
        "shm_limits::killed_senders_of_held_messages_make_room",
        || {
            run(async {
                let mut attacked = Attacked::open(SocketOptions::new().max_inbound(8)).await;
                let usage = ResourceUsage::wait_stable().await;
                let before = BeforeAttack::of_connected(&attacked.ep, 1).await;
                for killed in 1..=20 {
                    attacked.kill_sender().await;
                    let stats = attacked.ep.stats();
                    let kept = killed.min(7);
                    assert_eq!(stats.peers, 1 + kept, "{killed}");
                    assert_eq!(stats.discarded, (killed - kept) as u64, "{killed}");
                }
                attacked.assert_client_is_served().await;
                assert_eq!(attacked.ep.stats().inbound_refused, 0);
                let now = ResourceUsage::wait_stable().await;
                assert!(
                    now.descriptors <= usage.descriptors + 1,
                    "{usage:?} {now:?}"
                );
                // A live process takes the places of dead ones, up to its share.
                let (attacker, accepted) = attacked.flood().await;
                assert_eq!((accepted, attacked.ep.stats().discarded), (4, 17));
                drop(attacker);
                // The messages of dead processes never end, and the receive takes the next one.
                let left = attacked.ep.recv().tag(9).start().unwrap();
                before.assert_restored_to(&attacked.ep, 1, 0).await;
                drop(left);
                attacked.assert_client_is_served().await;
            });
        },
    );
}

/// A process that claims the name of an inserted peer again and again is exempt from the limit
/// once.
#[test]
fn claimed_name_is_exempt_once() {
    run(async {
        let options = Endpoint::options().socket_options(SocketOptions::new().max_inbound(0));
        let ep = options.bind("shm://").await.unwrap();
        let name = format!("claimed-{}", std::process::id());
        let address: Address = format!("shm://{name}").parse().unwrap();
        ep.address_vector().insert(&address).unwrap();
        let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let mut sockets = Vec::new();
        for refused in 0..5 {
            let socket = connect_raw(&ep).await;
            let segment = sealed_memfd(4096 + 64 * 64, all);
            send_with_fds(&socket, &encode_hello(&name, 1, 64), &[&segment]);
            wait_until(&ep, |stats| {
                (stats.peers, stats.inbound_refused) == (1, refused)
            })
            .await;
            sockets.push(socket);
        }
        // The next one is exempt when the first one has ended.
        sockets.clear();
        wait_until(&ep, |stats| stats.peers == 0).await;
        let socket = connect_raw(&ep).await;
        let segment = sealed_memfd(4096 + 64 * 64, all);
        send_with_fds(&socket, &encode_hello(&name, 1, 64), &[&segment]);
        wait_until(&ep, |stats| stats.peers == 1).await;
    });
}

/// Passes do not poll connections whose oldest message was declined. A posted receive gets its
/// message from any of them, although a pass tries only some, and other peers are served meanwhile.
#[test]
fn held_connections_are_tried_when_a_receive_is_posted() {
    const SENDERS: u64 = 30;
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let mut senders = Vec::new();
        for number in 0..SENDERS {
            let options = Endpoint::options().single_copy_threshold(usize::MAX);
            let sender = options.bind("shm://").await.unwrap();
            let peer = sender.add_peer(ep.name()).await.unwrap();
            let held = sender.send(peer, vec![number as u8; HELD_LEN]).tag(number);
            senders.push((held.start().unwrap(), sender));
        }
        let all_held = format!("{SENDERS} incoming connections, 0 active");
        while !format!("{:?}", ep.domain()).contains(&all_held) {
            ep.domain().progress();
            tokio::task::yield_now().await;
        }
        assert_still_works(&ep).await;
        for number in (0..SENDERS).rev() {
            let message = ep.recv().tag(number).await.unwrap();
            assert!(message[..] == vec![number as u8; HELD_LEN], "{number}");
            assert_still_works(&ep).await;
        }
        for (held, _) in senders {
            held.await.unwrap();
        }
    });
}
