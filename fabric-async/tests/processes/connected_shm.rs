//! Connected endpoints (`FI_EP_MSG`) over shared memory: clients and servers that are killed or
//! stopped before and after the accept, and servers that are restarted at their name.

use std::time::Duration;

use fabric_async::{
    ConnectedEndpoint, ConnectionRequest, DownReason, Endpoint, Error, EventKind, PassiveEndpoint,
    RefusalReason,
};

use crate::domain_mode::DomainMode;
use crate::run;
use crate::skip::{Facility, skip};
use crate::test_peer::TestPeer;

/// Exceeds the duration of every test.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(90);

/// Plays a client: connects with its process id as private data, and sends back every message.
pub(crate) async fn connect_and_echo(name: &str) {
    let id = std::process::id().to_le_bytes();
    let connecting = ConnectedEndpoint::connect(name).private_data(id);
    if let Ok(ep) = connecting.timeout(CONNECT_TIMEOUT).await {
        echo_loop(&ep).await;
    }
}

/// Plays a server: listens at this name, accepts every request, and sends back every message.
pub(crate) async fn accept_and_echo(name: &str) {
    let mut listener = PassiveEndpoint::bind(name).await.expect("bind");
    while let Ok(request) = listener.accept().await {
        if let Ok(ep) = request.accept("welcome") {
            tokio::spawn(async move { echo_loop(&ep).await });
        }
    }
}

/// Sends back every message until the connection ends.
async fn echo_loop(ep: &ConnectedEndpoint) {
    while let Ok(message) = ep.recv().await {
        if send(ep, message.into_bytes().to_vec()).await.is_err() {
            return;
        }
    }
}

/// Sends to the peer of a connected endpoint.
pub(crate) async fn send(ep: &ConnectedEndpoint, bytes: Vec<u8>) -> Result<(), Error> {
    let sent = ep.send(bytes).await;
    sent.map(drop).map_err(|failed| failed.error)
}

/// Opens a passive endpoint at a generated name.
pub(crate) async fn listen(mode: DomainMode) -> PassiveEndpoint {
    let options = mode.options();
    options.listen("shm://").await.unwrap()
}

/// Returns the next connection request, which must be from this process.
async fn next_request_from(listener: &mut PassiveEndpoint, peer: &TestPeer) -> ConnectionRequest {
    let request = listener.accept().await.unwrap();
    assert_eq!(request.private_data(), peer.0.id().to_le_bytes());
    request
}

/// Starts a client, and accepts its connection.
async fn accept_client(listener: &mut PassiveEndpoint) -> (ConnectedEndpoint, TestPeer) {
    let client = TestPeer::start("shm connect_and_echo", &listener.name().to_string());
    let request = next_request_from(listener, &client).await;
    (request.accept("welcome").unwrap(), client)
}

/// Starts a server at this name, and connects to it once it listens.
async fn start_server(name: &str, mode: DomainMode) -> (ConnectedEndpoint, TestPeer) {
    let server = TestPeer::start("shm accept_and_echo", name);
    loop {
        match mode.options().connect(name).await {
            Ok(ep) => return (ep, server),
            Err(Error::NoSuchPeer(_)) => tokio::time::sleep(Duration::from_millis(5)).await,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Checks that the peer sends back messages of all lengths.
pub(crate) async fn assert_echo_works(ep: &ConnectedEndpoint) {
    for len in [0, 8, 100_000, 3_000_000] {
        let (sent, got) = tokio::join!(send(ep, vec![len as u8; len]), ep.recv());
        sent.unwrap();
        assert_eq!(got.unwrap()[..], vec![len as u8; len]);
    }
}

/// Kills the peer in the middle of messages in both directions, and checks that they fail and that
/// the event queue reports the death.
async fn kill_and_assert_ops_fail(ep: ConnectedEndpoint, mut peer: TestPeer) {
    let mut events = ep.take_events().unwrap();
    let len = 100 << 20;
    let sent = ep.send(vec![0; len]).start().unwrap();
    let awaited = ep.recv_into(vec![0; 2 * len]).start().unwrap();
    peer.0.kill().unwrap();
    peer.0.wait().unwrap();
    let failed = sent.await.unwrap_err();
    assert!(failed.error.is_peer_unavailable(), "{}", failed.error);
    assert_eq!(failed.buf.len(), len);
    assert!(awaited.await.unwrap_err().error.is_peer_unavailable());
    assert!(matches!(
        events.read().await.kind,
        EventKind::Connected { .. }
    ));
    let end = events.read().await.kind;
    let expected = EventKind::Shutdown {
        peer: ep.peer().clone(),
        reason: DownReason::Died,
    };
    assert_eq!(end, expected);
    assert!(send(&ep, vec![1]).await.unwrap_err().is_peer_unavailable());
    assert!(ep.recv().await.unwrap_err().error.is_peer_unavailable());
    assert!(events.try_read().is_none(), "the end is reported once");
}

#[test]
fn killed_clients_are_reported_and_others_accepted() {
    for mode in DomainMode::ALL {
        run(async {
            let mut listener = listen(mode).await;
            let (bystander, _client) = accept_client(&mut listener).await;
            for _ in 0..5 {
                let (ep, victim) = accept_client(&mut listener).await;
                assert_echo_works(&ep).await;
                kill_and_assert_ops_fail(ep, victim).await;
                assert_echo_works(&bystander).await;
            }
        });
    }
}

#[test]
fn killed_server_can_be_restarted_at_its_name() {
    for mode in DomainMode::ALL {
        run(async {
            let name = format!("shm://connected-server-{}", std::process::id());
            for _ in 0..3 {
                let (first, server) = start_server(&name, mode).await;
                assert_eq!(first.private_data(), b"welcome");
                let second = ConnectedEndpoint::connect(&name[..]).await.unwrap();
                tokio::join!(assert_echo_works(&first), assert_echo_works(&second));
                kill_and_assert_ops_fail(first, server).await;
                assert!(second.recv().await.unwrap_err().error.is_peer_unavailable());
                let absent = ConnectedEndpoint::connect(&name[..])
                    .await
                    .map(drop)
                    .unwrap_err();
                assert_eq!(absent, Error::NoSuchPeer(name.parse().unwrap()));
            }
        });
    }
}

/// Rejecting the request of a dead client succeeds, accepting it fails, and the passive endpoint
/// accepts other clients.
#[test]
fn accept_of_a_killed_client_fails_with_peer_gone() {
    run(async {
        let mut listener = listen(DomainMode::Manual).await;
        let name = listener.name().to_string();
        for round in 0..9 {
            let mut victim = TestPeer::start("shm connect_and_echo", &name);
            let request = next_request_from(&mut listener, &victim).await;
            let peer = request.peer().clone();
            victim.0.kill().unwrap();
            victim.0.wait().unwrap();
            match round % 3 {
                0 => drop(request),
                1 => request.reject("too late").unwrap(),
                _ => {
                    let refused = request.accept("too late").map(drop).unwrap_err();
                    assert_eq!(refused, Error::PeerGone(peer));
                }
            }
        }
        let (ep, _client) = accept_client(&mut listener).await;
        assert_echo_works(&ep).await;
    });
}

/// A server that is killed before the accept ends the attempt before the connect timeout.
#[test]
fn server_killed_before_accept_fails_the_connect() {
    run(async {
        let name = format!("shm://connected-victim-{}", std::process::id());
        for _ in 0..5 {
            let (ep, mut server) = start_server(&name, DomainMode::Manual).await;
            server.stop();
            let attempt = ConnectedEndpoint::connect(&name[..]).timeout(CONNECT_TIMEOUT);
            let attempt = tokio::spawn(async move { attempt.await.map(drop) });
            tokio::task::yield_now().await;
            server.0.kill().unwrap();
            server.0.wait().unwrap();
            let failed = attempt.await.unwrap().unwrap_err();
            assert!(failed.is_peer_unavailable(), "{failed}");
            assert!(ep.recv().await.unwrap_err().error.is_peer_unavailable());
        }
    });
}

#[test]
fn stopped_client_delays_only_its_own_connection() {
    for mode in DomainMode::ALL {
        run(async {
            let mut listener = listen(mode).await;
            let name = listener.name().to_string();
            let stopped_client = TestPeer::start("shm connect_and_echo", &name);
            let request = next_request_from(&mut listener, &stopped_client).await;
            // Stopped before the accept, which does not wait for the client.
            stopped_client.stop();
            let stopped = request.accept("").unwrap();
            let queued: Vec<_> = (0..50u8)
                .map(|number| stopped.send(vec![number; 20_000]).start().unwrap())
                .collect();
            let (ep, _client) = accept_client(&mut listener).await;
            assert_echo_works(&ep).await;
            stopped_client.resume();
            for (number, sent) in queued.into_iter().enumerate() {
                let (sent, got) = tokio::join!(sent, stopped.recv());
                sent.unwrap();
                assert_eq!(got.unwrap()[..], vec![number as u8; 20_000]);
            }
            // Stopped after the accept, and killed in the middle of messages.
            stopped_client.stop();
            kill_and_assert_ops_fail(stopped, stopped_client).await;
            assert_echo_works(&ep).await;
        });
    }
}

#[test]
fn connect_to_stopped_server_times_out() {
    run(async {
        let name = format!("shm://connected-stopped-{}", std::process::id());
        let (ep, server) = start_server(&name, DomainMode::Manual).await;
        server.stop();
        let connecting = ConnectedEndpoint::connect(&name[..]).timeout(Duration::from_millis(50));
        let timed_out = connecting.await.map(drop).unwrap_err();
        assert_eq!(timed_out, Error::TimedOut(name.parse().unwrap()));
        server.resume();
        assert_echo_works(&ep).await;
        let ep = ConnectedEndpoint::connect(&name[..]).await.unwrap();
        assert_echo_works(&ep).await;
    });
}

/// No endpoint listens at the name of a connected client. An endpoint of type `FI_EP_RDM` and one
/// of type `FI_EP_MSG` reject each other.
#[test]
fn third_process_cannot_connect_to_a_connected_endpoint() {
    run(async {
        let mut listener = listen(DomainMode::Manual).await;
        let (ep, _client) = accept_client(&mut listener).await;
        let client_name = ep.peer().clone();
        let refused = ConnectedEndpoint::connect(&client_name)
            .await
            .map(drop)
            .unwrap_err();
        assert_eq!(refused, Error::NoSuchPeer(client_name.clone()));
        let rdm = Endpoint::bind("shm://").await.unwrap();
        let refused = rdm.add_peer(&client_name).await.unwrap_err();
        assert_eq!(refused, Error::NoSuchPeer(client_name.clone()));
        let taken = Endpoint::bind(&client_name).await.map(drop).unwrap_err();
        assert_eq!(taken, Error::AddressInUse(client_name));

        let refused_by = |peer: &fabric_async::Address| Error::ConnectionRefused {
            peer: peer.clone(),
            reason: RefusalReason::EpType,
        };
        let serving = tokio::spawn(async move {
            let _ = listener.accept().await;
            listener
        });
        let name = ep.name().clone();
        assert_eq!(rdm.add_peer(&name).await.unwrap_err(), refused_by(&name));
        let _progress = rdm.recv().start().unwrap();
        let refused = ConnectedEndpoint::connect(rdm.name())
            .await
            .map(drop)
            .unwrap_err();
        assert_eq!(refused, refused_by(rdm.name()));
        assert!(!serving.is_finished(), "the program gets no request");
        serving.abort();
        assert_echo_works(&ep).await;
    });
}

/// The kernel reports no process id of a client in another PID namespace.
#[test]
fn client_in_another_pid_namespace_connects() {
    if !rustix::process::geteuid().is_root() {
        return skip(
            Facility::Netns,
            "root is needed to make a process namespace",
        );
    }
    run(async {
        let mut listener = listen(DomainMode::Manual).await;
        let name = listener.name().to_string();
        let _client = match TestPeer::start_in_pid_namespace("shm connect_and_echo", &name) {
            Ok(client) => client,
            Err(error) => return skip(Facility::Netns, format!("unshare: {error}")),
        };
        let ep = listener.accept().await.unwrap().accept("").unwrap();
        assert_echo_works(&ep).await;
    });
}
