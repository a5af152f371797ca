//! A process of the same user connects over `shm` without end, or keeps handshakes pending. Clients
//! of other processes are served meanwhile.

use std::future::IntoFuture;
use std::os::fd::OwnedFd;
use std::task::Poll;
use std::time::Duration;

use fabric_async::{
    ConnectedEndpoint, Domain, Endpoint, EpType, Error, EventKind, EventQueue, Fabric, Hints, Info,
    PassiveEndpoint, RefusalReason, discover,
};
use futures_util::future::join_all;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};

use crate::connected_shm_hostile::{RETRY_LATER, abstract_name, is_evicted, listen, send_requests};
use crate::forks::connect_in_child;
use crate::health::{next_rejection, take_refused_count};
use crate::hostile::{READY_CODE, try_send_with_fds};
use crate::leak_check::{ResourceUsage, run_in_own_process, wait_until};
use crate::rma::{RawShmListener, encode_control, recv_control};
use crate::run;
use crate::shm_limits::set_descriptor_limit;
use crate::test_peer::TestPeer;

/// Threads of the attacker that connect.
const FLOOD_THREADS: usize = 3;
/// Connections of the honest client during the flood, one after the other.
const CONNECTIONS: usize = 20;
/// Connections of one process at the same time.
const AT_ONCE: usize = 100;
/// Pending handshakes of one process with a connectionless endpoint.
const HANDSHAKE_SHARE: usize = 16;
/// Handshakes without a message of one process with a passive endpoint.
const PASSIVE_HANDSHAKE_SHARE: usize = 64;
/// Pending handshakes of all processes with a passive endpoint.
const PASSIVE_HANDSHAKES: usize = 256;

/// Plays an attacker: fills the backlog of the listener and stops (`SIGSTOP`). When it is
/// continued, its threads connect and disconnect until it is killed.
pub(crate) fn connect_forever(name: &str) {
    let name = name.rsplit("://").next().unwrap().to_owned();
    let queued = fill_backlog(&name);
    stop_this_process();
    drop(queued);
    std::thread::scope(|threads| {
        for _ in 0..FLOOD_THREADS {
            threads.spawn(|| {
                loop {
                    drop(try_connect(&name));
                }
            });
        }
    });
}

/// Plays an attacker: connects [`AT_ONCE`] times, reads nothing, and stops. The exit code is the
/// number of connections that were refused meanwhile.
pub(crate) fn hold_handshakes(name: &str) -> ! {
    let name = name.rsplit("://").next().unwrap();
    let held: Vec<_> = (0..AT_ONCE).map(|_| try_connect(name)).collect();
    assert!(held.iter().all(Option::is_some));
    stop_this_process();
    let refused = held.iter().flatten().filter(|socket| is_refused(socket));
    std::process::exit(refused.count() as i32)
}

/// Plays an attacker: sends requests without their reverse sockets, and stops. `count_and_name` are
/// their number and the passive endpoint, with a space between them. The exit code is the number of
/// those that were evicted meanwhile.
pub(crate) fn hold_requests(count_and_name: &str) -> ! {
    let (count, name) = count_and_name.split_once(' ').expect("a number and a name");
    let count = count.parse().expect("a number");
    let held = send_requests(name.rsplit("://").next().unwrap(), count);
    stop_this_process();
    let evicted = held.iter().filter(|socket| is_evicted(socket));
    std::process::exit(evicted.count() as i32)
}

/// Stops this process until its parent continues it.
fn stop_this_process() {
    kill_process(getpid(), Signal::STOP).expect("signal this process");
    // The signal goes to any thread, which stops this one a little later.
    std::thread::sleep(Duration::from_millis(20));
}

/// Connects to a listener until its backlog is full.
fn fill_backlog(name: &str) -> Vec<OwnedFd> {
    std::iter::from_fn(|| try_connect(name)).collect()
}

/// Connects to a listener; `None` if its backlog is full, or if this process has no descriptor
/// left.
fn try_connect(name: &str) -> Option<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = match rustix::net::socket_with(family, kind, SocketFlags::NONBLOCK, None) {
        Ok(socket) => socket,
        Err(Errno::MFILE) => return None,
        Err(errno) => panic!("{errno}"),
    };
    match rustix::net::connect(&socket, &abstract_name(name)) {
        Ok(()) => Some(socket),
        Err(Errno::AGAIN) => None,
        Err(errno) => panic!("{errno}"),
    }
}

/// Connects this number of sockets to a listener from a process that has none yet.
fn connect_from_another_process(name: &str, count: usize) -> Vec<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let sockets = (0..count).map(|_| rustix::net::socket(family, kind, None).unwrap());
    let sockets: Vec<_> = sockets.collect();
    connect_in_child(&sockets, &abstract_name(name));
    sockets
}

/// Waits until the listener has admitted this socket.
async fn recv_ready(socket: &OwnedFd) {
    let mut ready = [0; 20];
    while rustix::net::recv(socket, &mut ready, RecvFlags::DONTWAIT).is_err() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(ready[..], encode_control(READY_CODE, 0));
}

/// Returns whether the first message is `RetryLater` and not `Ready`. It has arrived.
fn is_refused(socket: &OwnedFd) -> bool {
    let mut message = [0; 20];
    rustix::net::recv(socket, &mut message, RecvFlags::PEEK).expect("a message of the listener");
    let is_ready = message[..] == encode_control(READY_CODE, 0);
    !is_ready && is_evicted(socket)
}

/// Starts a peer, and waits until it has stopped.
fn start_stopped(role: &str, name: &str) -> TestPeer {
    let peer = TestPeer::start(role, name);
    waitpid(Some(Pid::from_child(&peer.0)), WaitOptions::UNTRACED).expect("wait for a child");
    peer
}

/// Waits until a peer has stopped, while this process serves it.
async fn wait_until_stopped(peer: &TestPeer) {
    let process = Some(Pid::from_child(&peer.0));
    let options = WaitOptions::UNTRACED | WaitOptions::NOHANG;
    loop {
        if let Some((_, status)) = waitpid(process, options).expect("wait for a child") {
            return assert!(status.stopped(), "{status:?}");
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Starts an attacker that has filled the backlog, and continues it.
fn start_flood(name: &str) -> TestPeer {
    let attacker = start_stopped("shm connect_forever", name);
    attacker.resume();
    attacker
}

/// Plays an honest client of a connectionless endpoint: connects again and again, and gets a reply
/// each time.
pub(crate) async fn connect_in_turn(name: &str) {
    for _ in 0..CONNECTIONS {
        let ep = Endpoint::bind("shm://").await.expect("bind");
        let server = ep.add_peer(name).await.expect("add_peer");
        ep.send(server, "request").tag(1).await.expect("send");
        ep.recv().from(server).await.expect("a reply");
    }
}

/// Plays an honest client of a passive endpoint, as [`connect_in_turn`].
pub(crate) async fn connect_msg_in_turn(name: &str) {
    for _ in 0..CONNECTIONS {
        let ep = ConnectedEndpoint::connect(name).await.expect("connect");
        ep.send(b"request".to_vec()).await.expect("send");
        ep.recv().await.expect("a reply");
    }
}

/// Plays a process with stalled and honest clients. `names` are the server of the stalled ones,
/// which take the share of the process, and that of the honest ones, with a space between them.
/// Stops in between.
pub(crate) async fn connect_beside_stalled(names: &str) {
    let (stalled, honest) = names.split_once(' ').expect("two names");
    let stalled = stalled.rsplit("://").next().unwrap();
    let held: Vec<_> = (0..HANDSHAKE_SHARE).map(|_| try_connect(stalled)).collect();
    assert!(held.iter().all(Option::is_some));
    stop_this_process();
    connect_in_turn(honest).await;
    let mut evicted = 0;
    for socket in held.iter().flatten() {
        recv_ready(socket).await;
        evicted += usize::from(is_evicted(socket));
    }
    assert_eq!(evicted > 0, stalled == honest.rsplit("://").next().unwrap());
}

/// Plays a client whose endpoints connect at the same time: stops once all have begun to connect.
pub(crate) async fn connect_at_once(name: &str) {
    let mut clients = Vec::new();
    for _ in 0..AT_ONCE {
        let ep = Endpoint::bind("shm://").await.expect("bind");
        let server = ep.address_vector().insert(name).expect("insert");
        let sent = ep.send(server, "request").tag(1).start().expect("send");
        clients.push((ep, server, sent));
    }
    stop_this_process();
    for (ep, server, sent) in clients {
        sent.await.expect("send");
        ep.recv().from(server).await.expect("a reply");
    }
}

/// Plays a client of a passive endpoint, as [`connect_at_once`].
pub(crate) async fn connect_msg_at_once(name: &str) {
    let connects = (0..AT_ONCE).map(|_| ConnectedEndpoint::connect(name).into_future());
    let mut connects: Vec<_> = connects.collect();
    std::future::poll_fn(|cx| {
        // The first poll connects.
        let mut polled = connects.iter_mut().map(|connect| connect.as_mut().poll(cx));
        assert!(polled.all(|polled| polled.is_pending()));
        Poll::Ready(())
    })
    .await;
    stop_this_process();
    for connected in join_all(connects).await {
        let ep = connected.expect("connect");
        ep.send(b"request".to_vec()).await.expect("send");
        ep.recv().await.expect("a reply");
    }
}

#[test]
fn endpoint_serves_clients_during_a_flood_of_another_process() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let name = ep.name().to_string();
        let _attacker = start_flood(&name);
        let mut client = TestPeer::start("shm connect_in_turn", &name);
        serve(&ep, &mut client, CONNECTIONS).await;
    });
}

#[test]
fn passive_endpoint_serves_clients_during_a_flood_of_another_process() {
    run(async {
        let mut listener = PassiveEndpoint::bind("shm://").await.unwrap();
        let name = listener.name().to_string();
        let _attacker = start_flood(&name);
        let mut client = TestPeer::start("shm connect_msg_in_turn", &name);
        serve_msg(&mut listener, &mut client, CONNECTIONS).await;
    });
}

/// A process that sends no hello has a share of the handshakes; beyond it, its connections are
/// refused and counted.
#[test]
fn pending_handshakes_of_a_process_are_limited() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let name = ep.name().to_string();
        let mut events = ep.take_events().unwrap();
        let _attackers = [(); 2].map(|()| start_stopped("shm hold_handshakes", &name));
        let refused = 2 * (AT_ONCE - HANDSHAKE_SHARE) as u64;
        wait_until(&ep, |stats| stats.inbound_refused == refused).await;
        assert_eq!(take_refused(&mut events, HANDSHAKE_SHARE), refused);
        let mut client = TestPeer::start("shm connect_in_turn", &name);
        serve(&ep, &mut client, CONNECTIONS).await;
        assert_eq!(ep.stats().inbound_refused, refused);
    });
}

/// Stalled handshakes of a process are dropped when it connects again.
#[test]
fn stalled_handshakes_of_a_process_make_room() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let names = format!("{0} {0}", ep.name());
        let mut client = start_stopped("shm connect_beside_stalled", &names);
        client.resume();
        serve(&ep, &mut client, CONNECTIONS).await;
        assert!(ep.stats().inbound_refused > 0, "the share was not used up");
    });
}

/// An endpoint may evict a handshake until it has accepted. The client connects again.
#[test]
fn evicted_hello_is_sent_again() {
    run(async {
        let name = format!("evicted-hello-{}", std::process::id());
        let listener = RawShmListener::listen(&name);
        let serving = std::thread::spawn(move || {
            for _ in 0..3 {
                let evicted = listener.accept_ready();
                recv_control(&evicted);
                try_send_with_fds(&evicted, &encode_control(RETRY_LATER, 0), &[]).unwrap();
            }
            let accepted = listener.accept_ready();
            recv_control(&accepted);
            try_send_with_fds(&accepted, &encode_control(0, 1), &[]).unwrap();
            accepted
        });
        let ep = Endpoint::bind("shm://").await.unwrap();
        let peer = ep.address_vector().insert(format!("shm://{name}")).unwrap();
        ep.send(peer, "request").await.unwrap();
        drop(serving.join().unwrap());
    });
}

/// The handshakes of a process with an endpoint that nothing drives do not keep it from another
/// endpoint.
#[test]
fn stalled_endpoint_leaves_room_for_others() {
    run(async {
        let [stalled, ep] = [(); 2].map(|()| Endpoint::bind("shm://"));
        let (stalled, ep) = (stalled.await.unwrap(), ep.await.unwrap());
        let names = format!("{} {}", stalled.name(), ep.name());
        let mut client = start_stopped("shm connect_beside_stalled", &names);
        for _ in 0..100 {
            stalled.domain().progress();
        }
        client.resume();
        serve(&ep, &mut client, CONNECTIONS).await;
        assert_eq!(ep.stats().inbound_refused, 0);
    });
}

#[test]
fn pending_handshakes_of_a_process_with_a_passive_endpoint_are_limited() {
    run(async {
        let (mut listener, mut events) = listen().await;
        let name = listener.name().to_string();
        let _attackers = [(); 2].map(|()| start_stopped("shm hold_handshakes", &name));
        let expected = 2 * (AT_ONCE - PASSIVE_HANDSHAKE_SHARE) as u64;
        let mut refused = 0;
        while refused < expected {
            assert!(listener.try_accept().is_none());
            refused += take_refused(&mut events, PASSIVE_HANDSHAKE_SHARE);
        }
        let mut client = TestPeer::start("shm connect_msg_in_turn", &name);
        serve_msg(&mut listener, &mut client, CONNECTIONS).await;
        assert_eq!(refused, expected);
        assert_eq!(take_refused(&mut events, PASSIVE_HANDSHAKE_SHARE), 0);
    });
}

/// Refusals do not wait for their clients: the message and the end are in the socket of a client
/// that reads nothing, and this process keeps no descriptor of it. The handshakes of each process
/// and of all are bounded.
#[test]
fn refused_clients_that_read_nothing_hold_no_descriptors() {
    run_in_own_process(
        "connect_floods::refused_clients_that_read_nothing_hold_no_descriptors",
        || {
            run(async {
                let ep = Endpoint::bind("shm://").await.unwrap();
                let (mut listener, mut events) = listen().await;
                ResourceUsage::wait_stable().await;
                let name = ep.name().to_string();
                let mut attackers = [(); 2].map(|()| start_stopped("shm hold_handshakes", &name));
                // No connection is accepted before the next await.
                let before = ResourceUsage::current();
                let refused = 2 * (AT_ONCE - HANDSHAKE_SHARE);
                wait_until(&ep, |stats| stats.inbound_refused == refused as u64).await;
                let held = ResourceUsage::wait_stable().await.descriptors - before.descriptors;
                assert_eq!(held, 2 * HANDSHAKE_SHARE);
                assert_eq!(count_refused(&mut attackers).await, refused);

                // The last process evicts one handshake with each connection, of those with the
                // most, and so does not get its share.
                const FULL: usize = PASSIVE_HANDSHAKES / PASSIVE_HANDSHAKE_SHARE;
                ResourceUsage::wait_stable().await;
                let name = listener.name().to_string();
                let attackers = [(); FULL + 1];
                let mut attackers = attackers.map(|()| start_stopped("shm hold_handshakes", &name));
                let before = ResourceUsage::current();
                let refused = FULL * (AT_ONCE - PASSIVE_HANDSHAKE_SHARE);
                let mut counted = 0;
                while counted < (refused + AT_ONCE) as u64 {
                    assert!(listener.try_accept().is_none());
                    counted += take_refused_count(&mut events);
                }
                let held = ResourceUsage::wait_stable().await.descriptors - before.descriptors;
                assert_eq!(held, PASSIVE_HANDSHAKES);
                assert_eq!(count_refused(&mut attackers).await, refused);
            });
        },
    );
}

/// Continues attackers, and returns how many of their connections were refused.
async fn count_refused(attackers: &mut [TestPeer]) -> usize {
    let mut refused = 0;
    for attacker in attackers {
        attacker.resume();
        client_ended(attacker).await;
        refused += attacker.0.wait().unwrap().code().unwrap() as usize;
    }
    refused
}

/// With few descriptors, the handshakes of a passive endpoint take a quarter of them.
#[test]
fn handshakes_with_a_passive_endpoint_leave_descriptors_to_the_program() {
    const LIMIT: usize = 256;
    const ATTACKERS: usize = 5;
    run_in_own_process(
        "connect_floods::handshakes_with_a_passive_endpoint_leave_descriptors_to_the_program",
        || {
            set_descriptor_limit(Some(LIMIT as u64));
            run(async {
                let (mut listener, mut events) = listen().await;
                let name = listener.name().to_string();
                ResourceUsage::wait_stable().await;
                let attackers = [(); ATTACKERS];
                let mut attackers = attackers.map(|()| start_stopped("shm hold_handshakes", &name));
                let before = ResourceUsage::current();
                // Each connection beyond the limit is refused, evicts another, or is not accepted.
                let mut refused = 0;
                while refused < (ATTACKERS * AT_ONCE - LIMIT / 4) as u64 {
                    assert!(listener.try_accept().is_none());
                    refused += take_refused_count(&mut events);
                    drop(std::fs::File::open("/dev/null").expect("a descriptor for the program"));
                }
                let held = ResourceUsage::wait_stable().await.descriptors - before.descriptors;
                assert_eq!(held, LIMIT / 4);
                count_refused(&mut attackers).await;
                let mut client = TestPeer::start("shm connect_msg_in_turn", &name);
                serve_msg(&mut listener, &mut client, CONNECTIONS).await;
            });
        },
    );
}

/// A full passive endpoint evicts the oldest handshakes, but none of this process, and of a process
/// with many those beyond what processes with few have.
#[test]
fn full_passive_endpoint_evicts_fairly() {
    /// Handshakes of one process up to which none is evicted because others have fewer.
    const FEW: usize = 8;
    const MANY: usize = 20;
    run_in_own_process(
        "connect_floods::full_passive_endpoint_evicts_fairly",
        || {
            run(async {
                let (listener, mut events) = listen().await;
                let name = listener.name().name();
                let own = try_connect(name).unwrap();
                let others: Vec<_> = (0..PASSIVE_HANDSHAKES - 2)
                    .map(|_| connect_from_another_process(name, 1))
                    .collect();
                let two = connect_from_another_process(name, 2);
                for socket in others.iter().flatten().chain(&two).chain([&own]) {
                    recv_ready(socket).await;
                }
                assert!(events.try_read().is_none(), "no handshake is evicted");

                let many = connect_from_another_process(name, MANY);
                let mut evicted = 0;
                while evicted < MANY as u64 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    evicted += take_refused(&mut events, PASSIVE_HANDSHAKES);
                }
                assert_eq!(evicted, MANY as u64);
                for (position, socket) in others.iter().flatten().enumerate() {
                    assert_eq!(is_evicted(socket), position < FEW, "{position}");
                }
                for (position, socket) in many.iter().enumerate() {
                    recv_ready(socket).await;
                    assert_eq!(is_evicted(socket), position < MANY - FEW, "{position}");
                }
                assert!(!two.iter().any(is_evicted));
                assert!(!is_evicted(&own));
            });
        },
    );
}

/// The client of a request that is evicted is told to connect again.
#[test]
fn evicted_requests_are_to_be_sent_again() {
    // The last process has fewer than the others, so that none of its requests is evicted.
    const REQUESTS: [usize; 5] = [60, 60, 60, 60, 30];
    let expected = REQUESTS.iter().sum::<usize>() - PASSIVE_HANDSHAKES;
    run(async {
        let (mut listener, mut events) = listen().await;
        let name = listener.name().to_string();
        let mut attackers = Vec::new();
        for count in REQUESTS {
            let attacker = TestPeer::start("shm hold_requests", &format!("{count} {name}"));
            wait_until_stopped(&attacker).await;
            attackers.push(attacker);
        }
        let refused = take_refused(&mut events, PASSIVE_HANDSHAKES);
        assert_eq!(refused, expected as u64);
        let mut evicted = 0;
        for attacker in &mut attackers {
            attacker.resume();
            client_ended(attacker).await;
            evicted += attacker.0.wait().unwrap().code().unwrap();
        }
        assert_eq!(evicted, expected as i32);
        let mut client = TestPeer::start("shm connect_msg_in_turn", &name);
        serve_msg(&mut listener, &mut client, CONNECTIONS).await;
    });
}

/// Endpoints of a process that connect at the same time are refused beyond its share, and connect
/// again when earlier ones have connected.
#[test]
fn refused_handshakes_are_tried_again() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let mut client = start_stopped("shm connect_at_once", &ep.name().to_string());
        let refused = (AT_ONCE - HANDSHAKE_SHARE) as u64;
        wait_until(&ep, |stats| stats.inbound_refused == refused).await;
        client.resume();
        serve(&ep, &mut client, AT_ONCE).await;
        // A pass after the end of the process may see the last ends of connections.
        wait_until(&ep, |stats| stats.peers == 0).await;
    });
}

#[test]
fn refused_handshakes_with_a_passive_endpoint_are_tried_again() {
    run(async {
        let (mut listener, mut events) = listen().await;
        let mut client = start_stopped("shm connect_msg_at_once", &listener.name().to_string());
        let expected = (AT_ONCE - PASSIVE_HANDSHAKE_SHARE) as u64;
        let mut refused = 0;
        while refused < expected {
            assert!(listener.try_accept().is_none());
            refused += take_refused(&mut events, PASSIVE_HANDSHAKE_SHARE);
        }
        client.resume();
        // The program takes no request yet, so the share of requests is used up too.
        let is_request_refused = |error: Error| error.to_string().contains("connection requests");
        while !is_request_refused(next_rejection(&mut events).await) {}
        serve_msg(&mut listener, &mut client, AT_ONCE).await;
    });
}

/// A client that meets a full backlog connects when the listener accepts again.
#[test]
fn connect_waits_while_the_backlog_is_full() {
    run_in_own_process(
        "connect_floods::connect_waits_while_the_backlog_is_full",
        || {
            run(async {
                let ep = Endpoint::bind("shm://").await.unwrap();
                let queued = fill_backlog(ep.name().name());
                let client = Endpoint::bind("shm://").await.unwrap();
                let server = client.address_vector().insert(ep.name()).unwrap();
                let sent = client.send(server, "request").tag(1).start().unwrap();
                // No pass of the server empties the backlog yet.
                for _ in 0..100 {
                    client.domain().progress();
                }
                drop(queued);
                let request = ep.recv().tag(1).await.unwrap();
                assert_eq!(request[..], *b"request");
                sent.await.unwrap();
            });
        },
    );
}

#[test]
fn connect_to_a_passive_endpoint_waits_while_the_backlog_is_full() {
    run_in_own_process(
        "connect_floods::connect_to_a_passive_endpoint_waits_while_the_backlog_is_full",
        || {
            run(async {
                let (mut listener, _events) = listen().await;
                let queued = fill_backlog(listener.name().name());
                let mut connecting = ConnectedEndpoint::connect(listener.name()).into_future();
                tokio::select! {
                    biased;
                    connected = &mut connecting => panic!("{connected:?}"),
                    () = std::future::ready(()) => drop(queued),
                }
                let (domain, info) = open_msg_domain();
                let accepting = async {
                    let request = listener.accept().await.unwrap();
                    domain.endpoint(&info).unwrap().accept(request, b"")
                };
                let (client, server) = tokio::join!(connecting, accepting);
                client.unwrap().send(b"request".to_vec()).await.unwrap();
                assert_eq!(server.unwrap().recv().await.unwrap()[..], *b"request");
            });
        },
    );
}

/// The connect timeout ends a connect to a listener that does not accept.
#[test]
fn connect_to_a_full_backlog_is_refused_after_the_timeout() {
    run_in_own_process(
        "connect_floods::connect_to_a_full_backlog_is_refused_after_the_timeout",
        || {
            const TIMEOUT: Duration = Duration::from_millis(100);
            run(async {
                // No task waits for the listener, whose driver does not run in this function.
                let listener = PassiveEndpoint::bind("shm://").await.unwrap();
                let name = listener.name().to_string();
                let runtime = tokio::runtime::Builder::new_current_thread();
                let _queued = fill_backlog(listener.name().name());
                let connected = std::thread::spawn(move || {
                    let mut runtime = runtime;
                    let runtime = runtime.enable_all().build().unwrap();
                    let connect = ConnectedEndpoint::connect(&name[..]).timeout(TIMEOUT);
                    runtime.block_on(connect.into_future()).map(drop)
                });
                let error = connected.join().unwrap().unwrap_err();
                let reason = RefusalReason::Resources;
                let peer = listener.name().clone();
                assert_eq!(error, Error::ConnectionRefused { peer, reason });
            });
        },
    );
}

/// Replies to this number of requests of an honest client, which must then succeed.
async fn serve(ep: &Endpoint, client: &mut TestPeer, requests: usize) {
    for served in 0..requests {
        let request = ep.recv().tag(1).start().unwrap();
        let request = tokio::select! {
            request = request => request.unwrap(),
            () = client_ended(client) => panic!("the client has ended after {served}"),
        };
        ep.send(request.source().unwrap(), "reply").await.unwrap();
    }
    client_ended(client).await;
    assert!(client.0.wait().unwrap().success());
}

/// Opens a domain in which requests are accepted.
fn open_msg_domain() -> (Domain, Info) {
    let hints = Hints::new().provider("shm").ep_type(EpType::Msg);
    let info = discover(&hints).unwrap().swap_remove(0);
    (Fabric::open(&info).unwrap().domain(&info).unwrap(), info)
}

/// Accepts this number of connections of an honest client, as [`serve`].
async fn serve_msg(listener: &mut PassiveEndpoint, client: &mut TestPeer, connections: usize) {
    let (domain, info) = open_msg_domain();
    let mut accepted = Vec::new();
    for served in 0..connections {
        let request = tokio::select! {
            request = listener.accept() => request.unwrap(),
            () = client_ended(client) => panic!("the client has ended after {served}"),
        };
        let ep = domain.endpoint(&info).unwrap();
        let ep = ep.accept(request, b"").unwrap();
        accepted.push(tokio::spawn(async move {
            ep.recv().await.unwrap();
            ep.send(b"reply".to_vec()).await.unwrap();
            ep
        }));
    }
    for served in accepted {
        served.await.unwrap();
    }
    client_ended(client).await;
    assert!(client.0.wait().unwrap().success());
}

/// Waits until the process of a client has ended.
async fn client_ended(client: &mut TestPeer) {
    while client.0.try_wait().expect("wait for a child").is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Takes all events, and returns how many connections they report as refused because a process had
/// this number of pending handshakes.
fn take_refused(events: &mut EventQueue, share: usize) -> u64 {
    let events = std::iter::from_fn(|| events.try_read());
    let refused = events.map(|event| match event.kind {
        EventKind::InboundRefused {
            error: Error::TooMany { limit, .. },
            count,
        } if limit == share => count,
        EventKind::InboundRefused { error, .. } => panic!("{error}"),
        _ => 0,
    });
    refused.sum()
}
