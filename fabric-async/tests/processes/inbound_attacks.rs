//! Attacks on the limits of inbound connections over `shm`, and on connections with held messages.

use std::os::fd::OwnedFd;
use std::time::Duration;

use fabric_async::{Address, BindOptions, CqBind, Endpoint, EventKind, SocketOptions, WaitPolicy};
use rustix::fs::SealFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::hostile::{
    connect_raw, connect_raw_to, encode_hello, sealed_memfd, send_with_fds, try_send_with_fds,
};
use crate::leak_check::{ResourceUsage, run_in_own_process, wait_until};
use crate::memory_corruptor::XorshiftRng;
use crate::rma::encode_grant;
use crate::run;
use crate::shared_rx::shared_rx_fabric;
use crate::test_peer::TestPeer;

const CONTROL_LEN: u64 = 4096;
const LINE_LEN: u64 = 64;
const FIRST_FRAGMENT: u64 = 2;

/// Writes a record of one line, in the first lap.
fn write_line(segment: &OwnedFd, line: u64, kind: u64, words: &[u64]) {
    let len = 8 + 8 * words.len() as u64;
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let at = CONTROL_LEN + line * LINE_LEN;
    rustix::io::pwrite(segment, &bytes, at + 8).unwrap();
    bytes = (kind | len << 16 | 1 << 40).to_le_bytes().to_vec();
    rustix::io::pwrite(segment, &bytes, at).unwrap();
}

/// Number of lines of a ring that does not grow.
const BUDGET_LINES: u16 = 1 << 11;

/// Returns a ring full of short messages, and the beginning of one that is longer than the share of
/// a peer.
fn full_ring() -> OwnedFd {
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let segment = sealed_memfd(4096 + 64 * usize::from(BUDGET_LINES), all);
    let last = u64::from(BUDGET_LINES) - 1;
    for line in 0..last {
        write_line(&segment, line, 1, &[7]);
    }
    write_line(&segment, last, FIRST_FRAGMENT, &[8 << 20, 7]);
    segment
}

/// Connects raw peers whose messages use up the budget, apart from the reserve; all are held.
async fn use_up_budget(ep: &Endpoint, count: usize) -> Vec<OwnedFd> {
    let segment = full_ring();
    let mut sockets = Vec::new();
    for number in 0..count {
        let socket = connect_raw(ep).await;
        let hello = encode_hello("greedy", 1, BUDGET_LINES.into());
        send_with_fds(&socket, &hello, &[&segment]);
        wait_until(ep, |stats| stats.peers == number + 1).await;
        sockets.push(socket);
    }
    wait_until(ep, |stats| stats.held_connections == count).await;
    sockets
}

/// Connects and sends this hello, without waiting for the answer.
fn connect_as(name: &str, hello: &[u8], segment: &OwnedFd) -> OwnedFd {
    let socket = connect_raw_to(name);
    let mut reply = [0; 64];
    rustix::net::recv(&socket, &mut reply, rustix::net::RecvFlags::empty()).unwrap();
    // The endpoint may have rejected the connection.
    let _ = try_send_with_fds(&socket, hello, &[segment]);
    socket
}

/// Takes descriptors of an endpoint: connections, grants of loans, and handshakes.
pub(crate) fn use_descriptors(name: &str) {
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let segment = sealed_memfd(4096 + 64 * 64, all);
    let chunk = sealed_memfd(4096 + 4096, all);
    // The endpoint may read this process's memory, and so keeps the pidfd of this process.
    let marker = Box::leak(Box::new(0x1234_5678u64));
    let address = std::ptr::from_ref(marker).addr() as u64;
    let marker: Vec<u8> = [address, *marker]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    rustix::io::pwrite(&segment, &marker, 5 * 128).unwrap();
    let hello = encode_hello("greedy", 1, 64);
    let mut sockets = Vec::new();
    for number in 0..100 {
        let socket = connect_as(name, &hello, &segment);
        let grants = if number == 0 { 0..200 } else { 0..0 };
        for key in grants {
            let grant = encode_grant(key, 4096, 1);
            if try_send_with_fds(&socket, &grant, &[&chunk]).is_err() {
                break;
            }
        }
        sockets.push(socket);
    }
    // Handshakes without a hello.
    sockets.extend((0..20).map(|_| connect_raw_to(name)));
    std::thread::park();
}

/// Connections, received loans and handshakes together leave descriptors to the program.
#[test]
fn peers_leave_descriptors_to_the_program() {
    run_in_own_process(
        "inbound_attacks::peers_leave_descriptors_to_the_program",
        || {
            let maximum = getrlimit(Resource::Nofile).maximum;
            let current = Some(512);
            setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
            run(async {
                let ep = Endpoint::bind("shm://").await.unwrap();
                let _attackers =
                    [(); 3].map(|()| TestPeer::start("use_descriptors", ep.name().name()));
                wait_until(&ep, |stats| stats.inbound_refused > 100).await;
                let opened: Vec<_> = (0..12)
                    .map_while(|_| std::fs::File::open("/dev/null").ok())
                    .collect();
                assert_eq!(opened.len(), 12);
            });
        },
    );
}

/// A process claims the name of an inserted peer again and again, and ends each connection while
/// its ring has records. At most two such connections are exempt from the limits.
#[test]
fn ended_connections_of_one_name_count() {
    run(async {
        let options = Endpoint::options().socket_options(SocketOptions::new().max_inbound(0));
        let ep = options.bind("shm://").await.unwrap();
        let mut events = ep.take_events().unwrap();
        let name = format!("ended-{}", std::process::id());
        let address: Address = format!("shm://{name}").parse().unwrap();
        ep.address_vector().insert(&address).unwrap();
        let hello = encode_hello(&name, 1, 64);
        let new_segment = || {
            let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
            sealed_memfd(4096 + 64 * 64, all)
        };
        for count in 1..=2 {
            let segment = new_segment();
            write_line(&segment, 0, FIRST_FRAGMENT, &[8 << 20, 7]);
            let socket = connect_raw(&ep).await;
            send_with_fds(&socket, &hello, &[&segment]);
            wait_until(&ep, |stats| stats.held_connections == count).await;
            drop(socket);
            let is_down = |kind| matches!(kind, EventKind::PeerDown { .. });
            while !std::iter::from_fn(|| events.try_read()).any(|event| is_down(event.kind)) {
                ep.domain().progress();
                tokio::task::yield_now().await;
            }
        }
        let socket = connect_raw(&ep).await;
        send_with_fds(&socket, &hello, &[&new_segment()]);
        wait_until(&ep, |stats| stats.inbound_refused == 1).await;
        assert_eq!(ep.stats().peers, 2);
        // A receive takes both messages, which never become whole. When the rings of the ended
        // peers are empty, the name is exempt again.
        let _receive = ep.recv().start().unwrap();
        wait_until(&ep, |stats| stats.peers == 0).await;
        let socket = connect_raw(&ep).await;
        send_with_fds(&socket, &hello, &[&new_segment()]);
        wait_until(&ep, |stats| stats.peers == 1).await;
    });
}

/// Clients whose messages stand behind those of [`use_up_budget`], and the messages of each.
const SENDERS: u64 = 12;
const MESSAGES: u64 = 60;

fn parked() -> BindOptions {
    Endpoint::options().wait_policy(WaitPolicy::Park)
}

/// Sends numbered messages to these endpoints, each client under its own tag, and receives them in
/// random order of the tags. `receive` returns a message with the tag, and `post_and_drop` posts a
/// receive that no message matches.
async fn receive_in_order(
    names: &[&Address],
    receive: impl AsyncFn(u64) -> Vec<u8>,
    post_and_drop: impl AsyncFn(),
) {
    let mut senders = Vec::new();
    for sender in 0..SENDERS {
        let client = parked().bind("shm://").await.unwrap();
        let name = names[sender as usize % names.len()];
        let peer = client.add_peer(name).await.unwrap();
        senders.push(tokio::spawn(async move {
            for number in 0..MESSAGES {
                let mut message = vec![0; if number % 7 == 0 { 300_000 } else { 5000 }];
                message[..8].copy_from_slice(&number.to_le_bytes());
                client.send(peer, message).tag(sender).await.unwrap();
            }
            client
        }));
    }
    let mut random = XorshiftRng::new(7);
    let mut next = [0; SENDERS as usize];
    while next.iter().any(|next| *next < MESSAGES) {
        let tag = random.below(SENDERS);
        if next[tag as usize] == MESSAGES {
            continue;
        }
        if random.below(3) == 0 {
            post_and_drop().await;
        }
        let message = receive(tag).await;
        let number = u64::from_le_bytes(message[..8].try_into().unwrap());
        assert_eq!(number, next[tag as usize], "of {tag}");
        next[tag as usize] += 1;
    }
    for sender in senders {
        sender.await.unwrap();
    }
}

/// Every posted receive gets its message from a held connection, in order, while most connections
/// are held and the program sleeps.
#[test]
fn receives_wake_for_held_messages() {
    run(async {
        let ep = parked().bind("shm://").await.unwrap();
        let _flood = use_up_budget(&ep, 100).await;
        assert!(ep.stats().unexpected_bytes > 13 << 20);
        receive_in_order(
            &[ep.name()],
            async |tag| ep.recv().tag(tag).await.unwrap().to_vec(),
            async || {
                let other = ep.recv().tag(1000).start().unwrap();
                tokio::task::yield_now().await;
                drop(other);
            },
        )
        .await;
    });
}

/// The same with a receive context that three endpoints share.
#[test]
fn shared_receives_wake_for_held_messages() {
    run(async {
        let (fabric, info) = shared_rx_fabric();
        let domain = fabric
            .domain_builder(&info)
            .wait_policy(WaitPolicy::Park)
            .open()
            .unwrap();
        let av = domain.auto_insert_address_vector().unwrap();
        let cq = domain.completion_queue(64).unwrap();
        let shared = domain
            .shared_rx_context(&info)
            .unwrap()
            .bind_av(&av)
            .unwrap();
        let shared = shared.bind_cq(&cq, CqBind::RECV).unwrap().open().unwrap();
        let mut endpoints = Vec::new();
        for index in 0..3 {
            let ep = domain.endpoint(&info).unwrap().bind_av(&av).unwrap();
            let ep = ep.bind_shared_rx(&shared).unwrap();
            let name = format!("shm://shared-held-{}-{index}", std::process::id());
            endpoints.push(ep.name(name).unwrap().enable().unwrap());
        }
        let ep = &endpoints[0];
        let _flood = use_up_budget(ep, 100).await;
        let names: Vec<_> = endpoints.iter().map(Endpoint::name).collect();
        receive_in_order(
            &names,
            async |tag| shared.recv().tag(tag).await.unwrap().to_vec(),
            async || {
                let other = shared.recv().tag(1000).start().unwrap();
                tokio::task::yield_now().await;
                drop(other);
            },
        )
        .await;
    });
}

/// Connects and leaves again and again. Exits when the last one was served.
pub(crate) fn connect_and_leave(name: &str) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    )
    .unwrap();
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let mut accepted = 0;
    for _ in 0..1000 {
        let segment = sealed_memfd(4096 + 64 * 64, all);
        let socket = connect_raw_to(name);
        let mut reply = [0; 64];
        rustix::net::recv(&socket, &mut reply, rustix::net::RecvFlags::empty()).unwrap();
        let _ = try_send_with_fds(&socket, &encode_hello("short", 1, 64), &[&segment]);
        let received = rustix::net::recv(&socket, &mut reply, rustix::net::RecvFlags::empty());
        // `Accept` (0), or `Reject` for lack of resources (4).
        match received {
            Ok(_) if reply[10] == 0 => accepted += 1,
            Ok(_) => assert_eq!(reply[10], 4),
            Err(errno) => panic!("{errno}"),
        }
    }
    assert!(accepted > 0);
}

/// With a tiny limit of descriptors, accepting pauses and resumes while the program sleeps.
#[test]
fn accepting_resumes_with_few_descriptors() {
    run_in_own_process(
        "inbound_attacks::accepting_resumes_with_few_descriptors",
        || {
            run(async {
                let options = Endpoint::options().wait_policy(WaitPolicy::Park);
                let ep = options.bind("shm://").await.unwrap();
                let maximum = getrlimit(Resource::Nofile).maximum;
                let current = Some(ResourceUsage::current().descriptors as u64 + 17);
                setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
                let mut peers: Vec<_> = (0..3)
                    .map(|_| TestPeer::start("connect_and_leave", ep.name().name()))
                    .collect();
                let sleeping = async { drop(ep.recv().tag(1).await) };
                let ended = async {
                    while !peers
                        .iter_mut()
                        .all(|peer| peer.0.try_wait().unwrap().is_some())
                    {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                };
                tokio::select! {
                    () = sleeping => panic!("received"),
                    () = ended => {}
                }
                for peer in &mut peers {
                    assert!(peer.0.try_wait().unwrap().unwrap().success());
                }
            });
        },
    );
}

/// Peers that leave messages and end at the same time stay within the limit of inserted peers.
#[test]
fn inserted_peers_that_end_together_leave_few_connections() {
    // A child process of another test would hold copies of the sockets for a moment.
    run_in_own_process(
        "inbound_attacks::inserted_peers_that_end_together_leave_few_connections",
        || run(end_together()),
    );
}

async fn end_together() {
    const PEERS: usize = 100;
    let ep = Endpoint::bind("shm://").await.unwrap();
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let mut peers = Vec::new();
    for round in 0..3 {
        for number in 0..PEERS {
            let name = format!("together-{number}-{}", std::process::id());
            if round == 0 {
                let address: Address = format!("shm://{name}").parse().unwrap();
                ep.address_vector().insert(&address).unwrap();
            }
            let before = ep.stats().peers;
            let segment = sealed_memfd(4096 + 64 * 64, all);
            let socket = connect_raw(&ep).await;
            send_with_fds(&socket, &encode_hello(&name, 1, 64), &[&segment]);
            wait_until(&ep, |stats| stats.peers == before + 1).await;
            peers.push((socket, segment));
            // The last one ends alone.
            if round == 2 {
                break;
            }
        }
        for (_, segment) in &peers {
            write_line(segment, 0, FIRST_FRAGMENT, &[8 << 20, 7]);
        }
        peers.clear();
        for _ in 0..200 {
            ep.domain().progress();
            tokio::task::yield_now().await;
        }
    }
    assert!(ep.stats().peers <= 65, "{:?}", ep.stats());
}
