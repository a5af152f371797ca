//! Connection-oriented endpoints (`FI_EP_MSG`): peers that are killed at every stage, on either
//! side.

use std::future::IntoFuture;
use std::time::Duration;

use fabric_async::atomic::AtomicOp;
use fabric_async::info::SHARED_CONTEXT;
use fabric_async::{
    Access, Address, Class, ConnectedEndpoint, ConnectionRequest, Endpoint, EpType, Error,
    EventKind, Fabric, Hints, PassiveEndpoint, Progress, RemoteRegion, Scheme, discover,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::domain_mode::DomainMode;
use crate::leak_check::{ResourceUsage, run_in_own_process};
use crate::run;
use crate::test_peer::TestPeer;

/// Exceeds the duration of every test.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(90);

/// Connects, and sends back every message that it receives.
pub(crate) async fn connect_and_echo(name: &str) {
    let id = std::process::id().to_le_bytes();
    if let Ok(ep) = ConnectedEndpoint::connect(name)
        .private_data(id)
        .timeout(CONNECT_TIMEOUT)
        .await
    {
        echo_loop(&ep).await;
    }
}

/// Listens, reports its name to the parent, accepts every request, and sends back every message.
pub(crate) async fn accept_and_echo(parent: &str) {
    let mut listener = PassiveEndpoint::bind("tcp://").await.expect("bind");
    let own = ConnectedEndpoint::connect(parent)
        .private_data(listener.name().to_string())
        .await
        .expect("connect to the parent");
    while let Ok(request) = listener.accept().await {
        let Ok(ep) = request.accept("welcome") else {
            continue;
        };
        tokio::spawn(async move { echo_loop(&ep).await });
    }
    drop(own);
}

/// Fetching additions of each client.
const FETCH_ADDS: u64 = 200;

/// Receives the description of a region, does [`FETCH_ADDS`] fetching additions, sends the sum of
/// the results, and then adds to a second counter until it is killed.
pub(crate) async fn fetch_add_client(name: &str) {
    let id = std::process::id().to_le_bytes();
    let ep = ConnectedEndpoint::connect(name)
        .private_data(id)
        .timeout(CONNECT_TIMEOUT)
        .await
        .expect("connect");
    let announcement = ep.recv().tag(1).await.expect("a remote region");
    let counter = RemoteRegion::from_bytes(&announcement).expect("a region");
    let mut sum = 0;
    for _ in 0..FETCH_ADDS {
        sum += ep.fetch_add(counter.at(0), 1u64).await.expect("fetch_add");
    }
    ep.send(sum.to_le_bytes().to_vec())
        .tag(2)
        .await
        .expect("send");
    while ep.atomic(counter.at(8), AtomicOp::Sum, 1u64).await.is_ok() {}
}

/// Clients add to the same counter, and a shared receive context gets their sums. The death of one
/// client does not affect the others.
#[test]
fn killed_atomic_clients_do_not_affect_others() {
    const CLIENTS: u64 = 3;
    for progress in [Progress::Manual, Progress::Auto] {
        run(async {
            let hints = Hints::new()
                .provider("tcp")
                .ep_type(EpType::Msg)
                .progress(progress);
            let info = discover(&hints.ep_rx_ctx_cnt(SHARED_CONTEXT))
                .unwrap()
                .swap_remove(0);
            let fabric = Fabric::open(&info).unwrap();
            let domain = fabric.domain(&info).unwrap();
            let mut eq = fabric.event_queue(64).unwrap();
            domain.bind_eq(&eq).unwrap();
            let shared = domain.shared_rx_context(&info).unwrap().open().unwrap();
            let mut listener = fabric.passive_endpoint(&info).unwrap().listen().unwrap();
            let region = domain
                .alloc(16, Access::REMOTE_READ | Access::REMOTE_WRITE)
                .unwrap();
            let mut clients = Vec::new();
            for _ in 0..CLIENTS {
                let child = TestPeer::start("tcp fetch_add_client", &listener.name().to_string());
                let request = next_request_from(&mut listener, &child).await;
                let ep = domain
                    .endpoint(&info)
                    .unwrap()
                    .bind_shared_rx(&shared)
                    .unwrap();
                let ep = ep.accept(request, "").unwrap();
                ep.send(region.remote().to_bytes().to_vec())
                    .tag(1)
                    .await
                    .unwrap();
                clients.push((ep, child));
            }
            let mut sum = 0;
            for _ in 0..CLIENTS {
                let report = shared.recv().tag(2).await.unwrap();
                let from = shared.received_by(&report.transfer);
                assert!(clients.iter().any(|(ep, _)| Some(ep.id()) == from));
                sum += u64::from_le_bytes(report[..].try_into().unwrap());
            }
            let all = CLIENTS * FETCH_ADDS;
            assert_eq!(
                (region.load(0), sum),
                (Ok(all), all * (all - 1) / 2),
                "each addition was executed once"
            );
            let never = shared.recv().start().unwrap();
            while let Some((ep, mut child)) = clients.pop() {
                child.0.kill().unwrap();
                child.0.wait().unwrap();
                let gone = loop {
                    if let EventKind::Shutdown { peer, .. } = eq.read().await.kind {
                        break peer;
                    }
                };
                assert_eq!(&gone, ep.peer());
                let failed = ep.send("x").tag(1).await.unwrap_err();
                assert!(failed.error.is_peer_unavailable(), "{}", failed.error);
                // The other clients still add.
                let before: u64 = region.load(8).unwrap();
                while !clients.is_empty() && region.load(8) == Ok(before) {
                    domain.progress();
                    tokio::task::yield_now().await;
                }
            }
            drop(never);
        });
    }
}

async fn echo_loop(ep: &ConnectedEndpoint) {
    while let Ok(message) = ep.recv().await {
        if ep.send(message.into_bytes()).await.is_err() {
            return;
        }
    }
}

/// Returns the next connection request, which must be from this peer.
async fn next_request_from(listener: &mut PassiveEndpoint, peer: &TestPeer) -> ConnectionRequest {
    let request = listener.accept().await.unwrap();
    assert_eq!(request.private_data(), peer.0.id().to_le_bytes());
    request
}

async fn assert_echo_works(ep: &ConnectedEndpoint) {
    for len in [0, 8, 100_000, 3_000_000] {
        let (sent, got) = tokio::join!(ep.send(vec![len as u8; len]), ep.recv());
        sent.unwrap();
        assert_eq!(got.unwrap()[..], vec![len as u8; len]);
    }
}

/// Kills the peer, and checks that pending operations fail and that the event queue reports the
/// shutdown.
async fn kill_and_assert_ops_fail(ep: ConnectedEndpoint, mut peer: TestPeer) {
    let mut events = ep.take_events().unwrap();
    let sent = ep.send(vec![0; 100 << 20]).start().unwrap();
    let awaited = ep.recv_into(vec![0; 200 << 20]).start().unwrap();
    peer.0.kill().unwrap();
    peer.0.wait().unwrap();
    let failed = sent.await.unwrap_err();
    assert!(
        failed.error.is_peer_unavailable() && failed.buf.len() == 100 << 20,
        "{}",
        failed.error
    );
    // A part of a message may have arrived.
    assert!(awaited.await.unwrap_err().error.is_peer_unavailable());
    assert!(matches!(
        events.read().await.kind,
        EventKind::Connected { .. }
    ));
    assert!(matches!(
        events.read().await.kind,
        EventKind::Shutdown { .. }
    ));
    assert!(
        ep.send("anything")
            .await
            .unwrap_err()
            .error
            .is_peer_unavailable()
    );
}

#[test]
fn killed_clients_are_reported_and_others_accepted() {
    for mode in DomainMode::ALL {
        run(async {
            let mut listener = mode.options().listen("tcp://").await.unwrap();
            let name = listener.name().to_string();
            let bystander = TestPeer::start("tcp connect_and_echo", &name);
            let bystander = next_request_from(&mut listener, &bystander)
                .await
                .accept("")
                .map(|ep| (ep, bystander))
                .unwrap();
            for _ in 0..5 {
                let victim = TestPeer::start("tcp connect_and_echo", &name);
                let ep = next_request_from(&mut listener, &victim)
                    .await
                    .accept("welcome")
                    .unwrap();
                assert_echo_works(&ep).await;
                kill_and_assert_ops_fail(ep, victim).await;
                assert_echo_works(&bystander.0).await;
            }
        });
    }
}

#[test]
fn killed_server_is_reported_and_can_be_replaced() {
    for mode in DomainMode::ALL {
        run(async {
            let mut listener = PassiveEndpoint::bind("tcp://").await.unwrap();
            for _ in 0..5 {
                let child = TestPeer::start("tcp accept_and_echo", &listener.name().to_string());
                let request = listener.accept().await.unwrap();
                let server_name = String::from_utf8(request.private_data().to_vec()).unwrap();
                let _name_connection = request.accept("").unwrap();
                let connect = || mode.options().connect(&server_name[..]);
                let (one, two) = tokio::join!(async { connect().await }, async { connect().await });
                let (one, two) = (one.unwrap(), two.unwrap());
                assert_eq!(
                    (one.private_data(), two.private_data()),
                    (&b"welcome"[..], &b"welcome"[..])
                );
                tokio::join!(assert_echo_works(&one), assert_echo_works(&two));
                kill_and_assert_ops_fail(one, child).await;
                assert!(two.recv().await.unwrap_err().error.is_peer_unavailable());
                assert_eq!(
                    connect().await.unwrap_err(),
                    Error::NoSuchPeer(server_name.parse().unwrap())
                );
            }
        });
    }
}

/// A request of a killed client can be dropped and rejected; accepting it fails, or the accepted
/// endpoint does.
#[test]
fn accept_of_killed_client_fails() {
    run(async {
        let mut listener = PassiveEndpoint::bind("tcp://").await.unwrap();
        let name = listener.name().to_string();
        for round in 0..10 {
            let mut victim = TestPeer::start("tcp connect_and_echo", &name);
            let request = next_request_from(&mut listener, &victim).await;
            victim.0.kill().unwrap();
            victim.0.wait().unwrap();
            match round % 3 {
                0 => drop(request),
                1 => request.reject("too late").unwrap(),
                _ => match request.accept("too late") {
                    Ok(ep) => assert!(ep.recv().await.unwrap_err().error.is_peer_unavailable()),
                    Err(error) => assert!(error.is_peer_unavailable(), "{error}"),
                },
            }
        }
        let bystander = TestPeer::start("tcp connect_and_echo", &name);
        let ep = next_request_from(&mut listener, &bystander)
            .await
            .accept("in time")
            .unwrap();
        assert_echo_works(&ep).await;
    });
}

/// A connection without a complete request is closed after the timeout.
#[test]
fn connections_without_a_request_time_out() {
    run(async {
        let info = discover(&Hints::new().provider("tcp").ep_type(EpType::Msg))
            .unwrap()
            .swap_remove(0);
        let fabric = Fabric::open(&info).unwrap();
        let mut eq = fabric.event_queue(16).unwrap();
        let mut listener = fabric
            .passive_endpoint(&info)
            .unwrap()
            .bind_eq(&eq)
            .unwrap()
            .listen()
            .unwrap();
        let mut silent = TcpStream::connect(listener.name().socket_addr().unwrap())
            .await
            .unwrap();
        // An incomplete request.
        let mut halfway = TcpStream::connect(listener.name().socket_addr().unwrap())
            .await
            .unwrap();
        halfway.write_all(&[3, 0, 0, 0, 0, 0, 0, 0]).await.unwrap();
        let mut refused = 0;
        while refused < 2 {
            let EventKind::InboundRefused { error, count } = eq.read().await.kind else {
                panic!("expected a rejection")
            };
            refused += count;
            assert!(
                error.to_string().contains("no connection request"),
                "{error}"
            );
        }
        assert_eq!(silent.read(&mut [0; 64]).await.unwrap_or(0), 0);
        assert_eq!(halfway.read(&mut [0; 64]).await.unwrap_or(0), 0);
        assert!(listener.try_accept().is_none());
    });
}

/// A connect opens a domain, with its thread and descriptors, only when it is polled.
#[test]
fn unpolled_connect_opens_nothing() {
    run_in_own_process("tcp::connected::unpolled_connect_opens_nothing", || {
        run(async {
            let listener = PassiveEndpoint::bind("tcp://127.0.0.1:0").await.unwrap();
            let hints = Hints::new().provider("tcp").ep_type(EpType::Msg);
            let info = discover(&hints).unwrap().swap_remove(0);
            let domain = Fabric::open(&info).unwrap().domain(&info).unwrap();
            let before = ResourceUsage::wait_stable().await;
            let options = Endpoint::options().progress(Progress::Auto);
            let connect = options.connect(listener.name()).private_data("unsent");
            let of_builder = domain.endpoint(&info).unwrap().connect(listener.name());
            assert_eq!(ResourceUsage::current(), before);
            let (connect, of_builder) = (connect.into_future(), of_builder.into_future());
            assert_eq!(ResourceUsage::current(), before);
            assert_eq!(domain.children().of(Class::Endpoint), 0);
            drop((connect, of_builder));
            assert_eq!(ResourceUsage::current(), before);
        });
    });
}

/// A connect opens its domain, which needs a runtime, when it is polled.
#[test]
fn connect_created_outside_a_runtime_works() {
    let absent = Address::from_socket_addr(Scheme::Tcp, ([127, 0, 0, 1], 1).into()).unwrap();
    let connect = ConnectedEndpoint::connect(&absent);
    run(async {
        assert_eq!(connect.await.unwrap_err(), Error::NoSuchPeer(absent));
    });
}
