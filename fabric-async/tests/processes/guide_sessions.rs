//! The guide's server with a state for each client, against clients that are killed.

include!("../../src/guide/samples/sessions.rs");

use crate::guide::{bind_over, unnamed_address};
use crate::peer_death::{kill_self, wait_exit};
use crate::run;
use crate::test_peer::TestPeer;

const ROUNDS: u64 = 8;
/// Requests that a victim leaves behind.
const LEFT_REQUESTS: u64 = 40;

/// Sends a request to the guide's server and returns the reply.
async fn request(ep: &Endpoint, server: FiAddr, number: u64) -> String {
    let reply = ep.recv().tag(number).from(server).start().expect("receive");
    ep.send(server, "request").tag(number).await.expect("send");
    let reply = reply.await.expect("a reply");
    String::from_utf8_lossy(&reply).into_owned()
}

/// Plays a client that gets one reply, sends more requests, and kills itself.
pub(crate) async fn client(names: &str) {
    let (transport, server) = names.split_once('/').expect("a transport and a name");
    let ep = bind_over(transport, unnamed_address(transport)).await;
    let server = ep.add_peer(server).await.expect("add_peer");
    assert_eq!(request(&ep, server, 0).await, "1 requests, 2 clients");
    for number in 1..=LEFT_REQUESTS {
        ep.send(server, "request").tag(number).await.expect("send");
    }
    kill_self();
}

/// Checks that no state is left of clients that were killed while their requests waited.
fn check_server_frees_sessions(transport: &'static str) {
    run(async move {
        let server = Endpoint::bind(unnamed_address(transport)).await.unwrap();
        let (name, events) = (server.name().clone(), server.take_events().unwrap());
        let serving = tokio::spawn(serve_sessions(server, events));
        let bystander = bind_over(transport, unnamed_address(transport)).await;
        let to_server = bystander.add_peer(&name).await.unwrap();
        let mut requests = 0;
        for round in 0..ROUNDS {
            // The state of the former victim is gone.
            loop {
                let reply = request(&bystander, to_server, requests).await;
                requests += 1;
                if reply == format!("{requests} requests, 1 clients") {
                    break;
                }
                assert_eq!(reply, format!("{requests} requests, 2 clients"), "{round}");
                tokio::task::yield_now().await;
            }
            let victim = format!("{transport}/{name}");
            let mut victim = TestPeer::start("guide session client", &victim);
            wait_exit(&mut victim).await;
        }
        assert!(!serving.is_finished(), "{transport}: the server ended");
        serving.abort();
    });
}

#[test]
fn guide_server_frees_sessions_of_clients_killed_over_shm() {
    check_server_frees_sessions("shm pieces");
}

#[test]
fn guide_server_frees_sessions_of_clients_killed_over_tcp() {
    check_server_frees_sessions("tcp");
}
