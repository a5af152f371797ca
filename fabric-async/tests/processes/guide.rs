//! The programs of the guide, which this file includes as they stand there, against clients that
//! are killed.

include!("../../src/manual/samples/serving.rs");

use std::time::Duration;

use fabric_async::{EventKind, Protocol};

use crate::role::Peer;
use crate::run;
use crate::stages::{die, ended};
use crate::witness::killed_later;

/// Longer than a shared-memory ring, and than what two TCP sockets buffer.
const LONG: usize = 48 << 20;
const ROUNDS: u64 = 12;

/// The transports that these programs run over, as a client names them.
const TRANSPORTS: [&str; 4] = ["shm pieces", "shm single copy", "tcp", "tcp rxm"];

/// An endpoint of a client over this transport, at this name.
async fn client(transport: &str, name: &str) -> Endpoint {
    let options = match transport {
        "shm pieces" => Endpoint::options().single_copy_from(usize::MAX),
        "shm single copy" => Endpoint::options().single_copy_from(1 << 20),
        "tcp rxm" => Endpoint::options().protocol(Protocol::Rxm),
        _ => Endpoint::options(),
    };
    options.bind(name).await.expect("bind")
}

/// The name of an endpoint that chooses one.
fn any_name(transport: &str) -> &'static str {
    if transport.starts_with("shm") {
        "shm://"
    } else {
        "tcp://"
    }
}

/// A client of the guide's server: sends long requests, for ever, or dies within the first.
pub(crate) async fn play(names: &str) {
    let (transport, server) = names.split_once('/').expect("a transport and a name");
    let (transport, dies) = match transport.split_once('+') {
        Some((transport, _)) => (transport, true),
        None => (transport, false),
    };
    let ep = client(transport, any_name(transport)).await;
    let server = ep.lookup(server).await.expect("the server is there");
    let text: &'static str = "x".repeat(LONG).leak();
    if dies {
        let sent = ep.send(server, text).tag(7).start().expect("a credit");
        for _ in 0..20 {
            ep.domain().progress();
            std::thread::sleep(Duration::from_micros(100));
        }
        drop(sent);
        die();
    }
    for number in 0.. {
        if request(&ep, server, number, text).await.is_err() {
            return;
        }
    }
}

/// The server answers the next client, whichever client was killed in the middle of a request.
fn server_survives(transport: &'static str) {
    run(async move {
        let server = Endpoint::bind(any_name(transport)).await.unwrap();
        let (name, mut events) = (server.name().clone(), server.events().unwrap());
        let serving = tokio::spawn(serve(server));
        let friend = client(transport, any_name(transport)).await;
        let to_server = friend.lookup(&name).await.unwrap();
        for round in 0..ROUNDS {
            if round.is_multiple_of(2) {
                let mut victim = Peer::start("guide client", &format!("{transport}+dies/{name}"));
                ended(&mut victim).await;
            } else {
                let victim = Peer::start("guide client", &format!("{transport}/{name}"));
                while !matches!(events.next().await.kind, EventKind::PeerConnected { .. }) {}
                killed_later(victim, round * 7).join().unwrap();
            }
            let reply = request(&friend, to_server, round, "still there?").await;
            assert!(
                !serving.is_finished(),
                "{transport}, round {round}: it ended"
            );
            assert_eq!(&reply.unwrap()[..], b"still there?");
        }
        serving.abort();
    });
}

#[test]
fn guide_server_survives_clients_killed_in_shm_pieces() {
    server_survives(TRANSPORTS[0]);
}

#[test]
fn guide_server_survives_clients_killed_in_shm_single_copies() {
    server_survives(TRANSPORTS[1]);
}

#[test]
fn guide_server_survives_clients_killed_over_tcp() {
    server_survives(TRANSPORTS[2]);
}

#[test]
fn guide_server_survives_clients_killed_over_rxm() {
    server_survives(TRANSPORTS[3]);
}

/// The guide's client hears of the death of its server.
#[test]
fn guide_client_hears_of_a_killed_server() {
    run(async {
        for transport in TRANSPORTS {
            let ep = client(transport, any_name(transport)).await;
            let mut server = Peer::start("guide server", &format!("{transport}/{}", ep.name()));
            let hello = ep.recv().tag(1).await.unwrap();
            let to_server = ep
                .lookup(std::str::from_utf8(&hello).unwrap())
                .await
                .unwrap();
            let reply = request(&ep, to_server, 2, "hello").await.unwrap();
            assert_eq!(&reply[..], b"hello");
            server.0.kill().unwrap();
            ended(&mut server).await;
            let error = request(&ep, to_server, 3, "hello").await.unwrap_err();
            assert!(error.is_peer_gone(), "{transport}: {error}");
        }
    });
}

/// The guide's server, which tells a client its name.
pub(crate) async fn server(names: &str) {
    let (transport, client_name) = names.split_once('/').expect("a transport and a name");
    let ep = client(transport, any_name(transport)).await;
    let to_client = ep.lookup(client_name).await.expect("the client is there");
    let name = ep.name().to_string();
    ep.send(to_client, name).tag(1).await.expect("a peer");
    serve(ep).await.expect("no client ends the server");
}
