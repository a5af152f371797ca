//! The programs of the guide, included from its text, against clients that are killed.

include!("../../src/guide/samples/serving.rs");

use std::time::Duration;

use fabric_async::{EventKind, Protocol};

use crate::health::kill_within_two_ms;
use crate::peer_death::{kill_self, wait_exit};
use crate::run;
use crate::test_peer::TestPeer;

/// More bytes than a shared-memory ring, or the buffers of two TCP sockets, hold.
const LONG_LEN: usize = 48 << 20;
const ROUNDS: u64 = 12;

/// The transports that the programs run over, as the client names them.
const TRANSPORTS: [&str; 4] = ["shm pieces", "shm single copy", "tcp", "tcp rxm"];

/// Binds an endpoint of a client over this transport to this name.
pub(crate) async fn bind_over(transport: &str, name: &str) -> Endpoint {
    let options = match transport {
        "shm pieces" => Endpoint::options().single_copy_threshold(usize::MAX),
        "shm single copy" => Endpoint::options().single_copy_threshold(1 << 20),
        "tcp rxm" => Endpoint::options().protocol(Protocol::Rxm),
        _ => Endpoint::options(),
    };
    options.bind(name).await.expect("bind")
}

/// Returns a name that lets the endpoint choose its address.
pub(crate) fn unnamed_address(transport: &str) -> &'static str {
    if transport.starts_with("shm") {
        "shm://"
    } else {
        "tcp://"
    }
}

/// Plays a client of the guide's server: sends long requests forever, or, with `+dies`, kills
/// itself while it sends the first.
pub(crate) async fn guide_client(names: &str) {
    let (transport, server) = names.split_once('/').expect("a transport and a name");
    let (transport, dies) = match transport.split_once('+') {
        Some((transport, _)) => (transport, true),
        None => (transport, false),
    };
    let ep = bind_over(transport, unnamed_address(transport)).await;
    let server = ep.add_peer(server).await.expect("add_peer");
    let text: &'static str = "x".repeat(LONG_LEN).leak();
    if dies {
        let sent = ep
            .send(server, text)
            .tag(7)
            .start()
            .expect("transmit credit");
        for _ in 0..20 {
            ep.domain().progress();
            std::thread::sleep(Duration::from_micros(100));
        }
        drop(sent);
        kill_self();
    }
    for number in 0.. {
        if request(&ep, server, number, text).await.is_err() {
            return;
        }
    }
}

/// Checks that the server answers the next client after each client that is killed in the middle of
/// a request.
fn check_server_survives(transport: &'static str) {
    run(async move {
        let server = Endpoint::bind(unnamed_address(transport)).await.unwrap();
        let (name, mut events) = (server.name().clone(), server.take_events().unwrap());
        let serving = tokio::spawn(serve(server));
        let bystander = bind_over(transport, unnamed_address(transport)).await;
        let to_server = bystander.add_peer(&name).await.unwrap();
        for round in 0..ROUNDS {
            if round.is_multiple_of(2) {
                let mut victim =
                    TestPeer::start("guide client", &format!("{transport}+dies/{name}"));
                wait_exit(&mut victim).await;
            } else {
                let victim = TestPeer::start("guide client", &format!("{transport}/{name}"));
                while !matches!(events.read().await.kind, EventKind::PeerConnected { .. }) {}
                kill_within_two_ms(victim, round * 7).join().unwrap();
            }
            let reply = request(&bystander, to_server, round, "still there?").await;
            assert!(
                !serving.is_finished(),
                "{transport}, round {round}: the server ended"
            );
            assert_eq!(&reply.unwrap()[..], b"still there?");
        }
        serving.abort();
    });
}

#[test]
fn guide_server_survives_clients_killed_in_shm_pieces() {
    check_server_survives(TRANSPORTS[0]);
}

#[test]
fn guide_server_survives_clients_killed_in_shm_single_copies() {
    check_server_survives(TRANSPORTS[1]);
}

#[test]
fn guide_server_survives_clients_killed_over_tcp() {
    check_server_survives(TRANSPORTS[2]);
}

#[test]
fn guide_server_survives_clients_killed_over_rxm() {
    check_server_survives(TRANSPORTS[3]);
}

/// The guide's client gets an error when its server is killed.
#[test]
fn guide_client_gets_an_error_when_the_server_is_killed() {
    run(async {
        for transport in TRANSPORTS {
            let ep = bind_over(transport, unnamed_address(transport)).await;
            let mut server = TestPeer::start("guide server", &format!("{transport}/{}", ep.name()));
            let hello = ep.recv().tag(1).await.unwrap();
            let to_server = ep
                .add_peer(std::str::from_utf8(&hello).unwrap())
                .await
                .unwrap();
            let reply = request(&ep, to_server, 2, "hello").await.unwrap();
            assert_eq!(&reply[..], b"hello");
            server.0.kill().unwrap();
            wait_exit(&mut server).await;
            let error = request(&ep, to_server, 3, "hello").await.unwrap_err();
            assert!(error.is_peer_unavailable(), "{transport}: {error}");
        }
    });
}

/// Runs the guide's server, after sending its name to a client.
pub(crate) async fn server(names: &str) {
    let (transport, client_name) = names.split_once('/').expect("a transport and a name");
    let ep = bind_over(transport, unnamed_address(transport)).await;
    let to_client = ep.add_peer(client_name).await.expect("add_peer");
    let name = ep.name().to_string();
    ep.send(to_client, name).tag(1).await.expect("send");
    serve(ep).await.expect("no client ends the server");
}
