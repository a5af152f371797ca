//! A process that claims the name of a living peer and leaves ends nothing that is directed to the
//! peer.

use std::io::IoSliceMut;

use fabric_async::{Endpoint, EventKind};
use rustix::fs::SealFlags;
use rustix::net::{RecvAncillaryBuffer, RecvFlags};

use crate::health::assert_still_works;
use crate::hostile::{READY_CODE, connect_raw_to, sealed_memfd, send_with_fds};
use crate::run;
use crate::skip::{Facility, skip};
use crate::test_peer::TestPeer;

/// Code of the message that accepts a connection.
const ACCEPT_CODE: u16 = 0;
/// Tag of a message that the peer receives only after a request.
const HELD: u64 = 7;
const REQUEST: u64 = 9;

/// Plays the peer: after each request receives the held message, and replies.
pub(crate) async fn reply_after_request(name: &str) {
    let ep = Endpoint::bind(name).await.expect("bind");
    loop {
        let request = ep.recv().tag(REQUEST).await.expect("a request");
        let held = ep.recv().tag(HELD).await.expect("the held message");
        let reply = ep.send(request.source().expect("a source"), held.into_bytes());
        reply.await.expect("send");
    }
}

/// Connects to an endpoint under this name. Returns the socket and the incarnation of the endpoint.
fn connect_as(to: &str, name: &str, incarnation: u64) -> (std::os::fd::OwnedFd, u64) {
    let socket = connect_raw_to(to.rsplit("://").next().unwrap());
    let receive = |code: u16| {
        let mut answer = [0; 20];
        let mut no_fds = RecvAncillaryBuffer::default();
        let mut into = [IoSliceMut::new(&mut answer)];
        rustix::net::recvmsg(&socket, &mut into, &mut no_fds, RecvFlags::empty())
            .expect("an answer");
        assert_eq!(answer[10..12], code.to_le_bytes());
        u64::from_le_bytes(answer[12..].try_into().unwrap())
    };
    receive(READY_CODE);
    let mut hello = b"fab-shm\0\x01\0\x40\0\0\0".to_vec();
    hello.extend(incarnation.to_le_bytes());
    hello.extend(name.rsplit("://").next().unwrap().as_bytes());
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    send_with_fds(&socket, &hello, &[&sealed_memfd(4096 + 64 * 64, seals)]);
    let incarnation = receive(ACCEPT_CODE);
    (socket, incarnation)
}

/// Plays the impostor: learns the incarnation of the peer, connects to the victim as the peer, and
/// leaves. `args` has the victim and the peer.
pub(crate) fn impostor(args: &str) {
    let (victim, peer) = args.split_once(' ').expect("two names");
    let (_socket, incarnation) = connect_as(peer, "shm://impostor", 1);
    drop(connect_as(victim, peer, incarnation));
}

/// Starts the peer and the impostor by `start`, and checks that a send to the peer and a receive
/// from the peer outlive the impostor.
async fn assert_impostor_ends_nothing(
    which: &str,
    start: impl Fn(&str, &str) -> std::io::Result<TestPeer>,
) {
    let ep = Endpoint::bind("shm://").await.unwrap();
    let mut events = ep.take_events().unwrap();
    let name = format!("shm://impersonated-{which}-{}", std::process::id());
    let _peer_process = match start("reply_after_request", &name) {
        Ok(peer_process) => peer_process,
        Err(error) => return skip(Facility::Netns, format!("start a peer: {error}")),
    };
    let peer = loop {
        match ep.add_peer(&name[..]).await {
            Ok(peer) => break peer,
            Err(error) if error.is_peer_unavailable() => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    };
    for round in 0..3u64 {
        let held = ep.send(peer, round.to_le_bytes().to_vec()).tag(HELD);
        let held = held.delivery_complete().start().unwrap();
        let reply = ep.recv().from(peer).start().unwrap();
        let args = format!("{} {name}", ep.name());
        let _impostor = start("impostor", &args).unwrap();
        loop {
            match events.read().await.kind {
                EventKind::PeerDown { source, .. } => {
                    assert_eq!(source, None, "the peer was reported as down");
                    break;
                }
                EventKind::PeerConnected { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        ep.send(peer, "request").tag(REQUEST).await.unwrap();
        held.await.unwrap();
        assert_eq!(reply.await.unwrap()[..], round.to_le_bytes());
    }
    assert_still_works(&ep).await;
}

#[test]
fn impostor_that_leaves_ends_nothing_of_the_living_peer() {
    run(assert_impostor_ends_nothing("visible", |role, name| {
        Ok(TestPeer::start(role, name))
    }));
}

/// The kernel reports no process id of either, and the impostor has announced the incarnation of
/// the peer.
#[test]
fn impostor_in_another_pid_namespace_ends_nothing_of_the_living_peer() {
    if !rustix::process::geteuid().is_root() {
        return skip(
            Facility::Netns,
            "root is needed to make a process namespace",
        );
    }
    run(assert_impostor_ends_nothing(
        "hidden",
        TestPeer::start_in_pid_namespace,
    ));
}
