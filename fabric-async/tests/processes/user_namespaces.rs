//! Endpoints in user namespaces that do not map the user of a peer.

use std::time::Duration;

use fabric_async::PassiveEndpoint;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketType};

use crate::hostile::READY_CODE;
use crate::rma::encode_control;
use crate::run;
use crate::skip::{Facility, skip};
use crate::test_peer::TestPeer;

/// User of the server: neither the user of this process, nor the overflow user (65534).
const SERVER_USER: u32 = 12_346;

/// Plays a server with a passive endpoint, until the process is killed.
pub(crate) async fn passive_server(name: &str) {
    let mut passive = PassiveEndpoint::bind(name).await.expect("bind");
    loop {
        drop(passive.accept().await);
    }
}

/// In a user namespace without a mapping, the kernel reports the overflow user for this process and
/// for every other user. Hence equal user ids do not show that a peer is of this user.
#[test]
fn user_that_the_namespace_does_not_map_is_rejected() {
    if !rustix::process::geteuid().is_root() {
        let reason = "root is needed to start a process of another user";
        return skip(Facility::Root, reason);
    }
    run(async {
        let name = format!("user-namespace-{}", std::process::id());
        let server = TestPeer::start_in_user_namespace(
            "passive_server",
            &format!("shm://{name}"),
            SERVER_USER,
        );
        let _server = server.expect("start unshare");
        let name = format!("fabric-async/shm/{name}");
        let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        while rustix::net::connect(&socket, &name).is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let mut answer = [0; 20];
        while rustix::net::recv(&socket, &mut answer, RecvFlags::DONTWAIT).is_err() {
            tokio::task::yield_now().await;
        }
        assert_ne!(
            answer[..],
            encode_control(READY_CODE, 0),
            "a process of another user was admitted"
        );
    });
}
