//! Descriptors whose close blocks: a process that sends them delays only its own connection.
#![allow(unsafe_code)] // pre_exec

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use fabric_async::{ConnectedEndpoint, Endpoint, Error};
use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::connected_shm_hostile::{ACCEPT, accept_raw_client, encode_cm, segment};
use crate::health::{assert_still_works, take_refused_count};
use crate::hostile::{connect_raw, connect_raw_to, encode_hello, sealed_memfd, try_send_with_fds};
use crate::leak_check::{ResourceUsage, run_in_own_process};
use crate::rma::RawShmListener;
use crate::run;
use crate::skip::{Facility, skip};
use crate::test_peer::TestPeer;

/// Connections of an attacker of another user. If the kernel permits descriptors (before Linux
/// 6.16), they block all closing threads but do not fill the queue of these threads.
const ATTACKS: usize = 60;
/// Peers that connect and leave during the attack. Together they use more descriptors than the
/// attacker.
const HONEST_PEERS: usize = 40;
/// Connections of an attacker of the same user: they block all closing threads but do not fill
/// their queue.
const SAME_USER_ATTACKS: usize = 30;

/// Number of closing threads, plus the number of queued descriptors at which accepting stops.
const CLOSER_CAPACITY: usize = 8 + 64;

/// Waits until this process has no more descriptors than before, and at most one closing thread
/// more.
async fn wait_all_closed(before: &ResourceUsage) {
    for attempt in 0.. {
        let now = ResourceUsage::current();
        if now.descriptors <= before.descriptors && now.threads <= before.threads + 1 {
            return;
        }
        assert!(attempt < 5000, "not closed: {now:?}, before {before:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Returns whether the endpoint has sent a message, which is received.
fn has_received(socket: &OwnedFd) -> bool {
    let received = rustix::net::recv(socket, &mut [0; 64], RecvFlags::DONTWAIT);
    received.is_ok_and(|(len, _)| len > 0)
}

/// Returns whether the endpoint has closed the connection. A message is received.
fn is_closed(socket: &OwnedFd) -> bool {
    let received = rustix::net::recv(socket, &mut [0; 64], RecvFlags::DONTWAIT);
    received.map_or_else(|errno| errno != Errno::AGAIN, |(len, _)| len == 0)
}

/// Sends a descriptor to the endpoint, which closes it in the background. This starts the permanent
/// closing thread.
pub(crate) async fn start_closing_thread(ep: &Endpoint) {
    let socket = connect_raw(ep).await;
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    try_send_with_fds(&socket, b"x", &[&null]).unwrap();
    drop((socket, null));
    assert_still_works(ep).await;
}

/// Returns a socket whose last close blocks (`SO_LINGER`) until the other end, which is returned
/// too, is dropped.
pub(crate) fn lingering_socket() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // Accepted connections inherit the size of the buffer.
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
    let mut lingering = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other_end, _) = listener.accept().unwrap();
    lingering.set_nonblocking(true).unwrap();
    // Fills the buffers of both ends, so that data stays unsent. The kernel moves bytes to the
    // other end with a delay, so only several failed writes show that both buffers are full.
    let mut failed_writes = 0;
    while failed_writes < 5 {
        if lingering.write(&[0; 65_536]).is_ok() {
            failed_writes = 0;
        } else {
            failed_writes += 1;
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    lingering.set_nonblocking(false).unwrap();
    let hour = Duration::from_secs(3600);
    rustix::net::sockopt::set_socket_linger(&lingering, Some(hour)).unwrap();
    (lingering.into(), other_end)
}

/// Plays an attacker of another user: sends descriptors whose close blocks over many connections,
/// and keeps the connections and the other ends of the descriptors until the process is killed.
pub(crate) fn lingering_flood(name: &str) {
    let name = name.rsplit("://").next().unwrap();
    let mut kept = Vec::new();
    for _ in 0..ATTACKS {
        let (fd, other_end) = lingering_socket();
        // The victim has not accepted the connection yet.
        let socket = connect_raw_to(name);
        // The send fails if the kernel supports SO_PASSRIGHTS, or if the connection has ended.
        let sent = try_send_with_fds(&socket, b"x", &[&fd]);
        let expected = [Errno::PERM, Errno::PIPE, Errno::CONNRESET];
        assert!(
            sent.is_ok() || expected.contains(&sent.unwrap_err()),
            "{sent:?}"
        );
        if sent.is_err() {
            // This process has the last copy, so its own close must not block.
            rustix::net::sockopt::set_socket_linger(&fd, None).unwrap();
        }
        drop(fd);
        // Waits until the victim has closed the connection.
        while rustix::net::recv(&socket, &mut [0; 64], RecvFlags::empty())
            .is_ok_and(|(len, _)| len > 0)
        {}
        kept.push((socket, other_end));
    }
    loop {
        std::thread::park();
    }
}

#[test]
fn descriptors_of_another_user_delay_no_peer() {
    if !rustix::process::geteuid().is_root() {
        return skip(
            Facility::Root,
            "root is needed to start a process of another user",
        );
    }
    run_in_own_process(
        "blocking_close::descriptors_of_another_user_delay_no_peer",
        || {
            run(async {
                let ep = Endpoint::bind("shm://").await.unwrap();
                let mut events = ep.take_events().unwrap();
                let name = ep.name().to_string();
                let _bystander = TestPeer::start("echo", &name);
                let bystander = ep.recv().tag(3).await.unwrap().source().unwrap();
                ep.send(bystander, "ping").await.unwrap();
                ep.recv().tag(4).from(bystander).await.unwrap();
                assert_still_works(&ep).await;
                let before = ResourceUsage::wait_stable().await;
                let mut attacker = match TestPeer::start_as_user("lingering_flood", &name, 65_534) {
                    Ok(attacker) => attacker,
                    Err(error) => {
                        return skip(Facility::Root, format!("start as another user: {error}"));
                    }
                };
                attacker.signal_start();
                let mut refused = 0;
                while refused < ATTACKS as u64 {
                    // The connected peer is served during the attack.
                    ep.send(bystander, "ping").await.unwrap();
                    assert_eq!(
                        &ep.recv().tag(4).from(bystander).await.unwrap()[..],
                        b"ping"
                    );
                    refused += take_refused_count(&mut events);
                }
                // Peers that connect and leave use no descriptors afterwards. The attacker's
                // descriptors may be open still, if the kernel permitted them.
                for _ in 0..HONEST_PEERS {
                    assert_still_works(&ep).await;
                }
                for attempt in 0.. {
                    let now = ResourceUsage::current();
                    if now.descriptors <= before.descriptors + ATTACKS {
                        break;
                    }
                    assert!(attempt < 5000, "not closed: {now:?}, before {before:?}");
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                drop(attacker);
                wait_all_closed(&before).await;
            });
        },
    );
}

/// A process of the same user may send descriptors. Each of its connections ends, the domain makes
/// progress, and the descriptors are closed once the attacker drops their other ends.
#[test]
fn descriptors_of_the_same_user_do_not_block_the_domain() {
    run_in_own_process(
        "blocking_close::descriptors_of_the_same_user_do_not_block_the_domain",
        || {
            run(async {
                let ep = Endpoint::bind("shm://").await.unwrap();
                assert_still_works(&ep).await;
                let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
                let segment = sealed_memfd(4096 + 64 * 64, all);
                start_closing_thread(&ep).await;
                let before = ResourceUsage::wait_stable().await;
                let mut other_ends = Vec::new();
                for attack in 0..SAME_USER_ATTACKS {
                    let socket = connect_raw(&ep).await;
                    if attack % 3 == 1 {
                        try_send_with_fds(&socket, &encode_hello("hostile", 1, 64), &[&segment])
                            .unwrap();
                    }
                    // Either the descriptor arrives and is refused, or it is never received because
                    // an earlier message ends the connection.
                    if attack % 3 == 2 {
                        try_send_with_fds(&socket, b"x", &[]).unwrap();
                    }
                    let (fd, other_end) = lingering_socket();
                    try_send_with_fds(&socket, b"", &[&fd]).unwrap();
                    drop((fd, socket));
                    other_ends.push(other_end);
                    assert_still_works(&ep).await;
                }
                drop(other_ends);
                before.wait_restored().await;
            });
        },
    );
}

/// While all closing threads block and their queue is full, no connection is accepted and connected
/// peers are served; when the closes return, nothing is left open.
#[test]
fn accepts_pause_while_closing_threads_are_blocked() {
    run_in_own_process(
        "blocking_close::accepts_pause_while_closing_threads_are_blocked",
        || {
            run(async {
                let ep = Endpoint::bind("shm://").await.unwrap();
                let bystander = Endpoint::bind("shm://").await.unwrap();
                let to_ep = bystander.add_peer(ep.name()).await.unwrap();
                bystander.send(to_ep, "hello").await.unwrap();
                ep.recv().await.unwrap();
                assert_still_works(&ep).await;
                let before = ResourceUsage::wait_stable().await;
                let mut other_ends = Vec::new();
                let waiting_socket = loop {
                    assert!(
                        other_ends.len() <= CLOSER_CAPACITY + 1,
                        "connections are still accepted"
                    );
                    let socket = connect_raw_to(ep.name().name());
                    let mut rounds = 0;
                    let is_accepted = loop {
                        bystander.send(to_ep, "ping").await.unwrap();
                        assert_eq!(&ep.recv().await.unwrap()[..], b"ping");
                        tokio::task::yield_now().await;
                        if has_received(&socket) {
                            break true;
                        }
                        rounds += 1;
                        if rounds == 10_000 {
                            break false;
                        }
                    };
                    if !is_accepted {
                        break socket;
                    }
                    let (fd, other_end) = lingering_socket();
                    try_send_with_fds(&socket, b"x", &[&fd]).unwrap();
                    other_ends.push(other_end);
                    // Waits for the end of the connection.
                    drop(fd);
                    while has_received(&socket) || !is_closed(&socket) {
                        ep.domain().progress();
                        tokio::task::yield_now().await;
                    }
                };
                assert!(
                    other_ends.len() >= CLOSER_CAPACITY,
                    "only {} connections were accepted",
                    other_ends.len()
                );
                drop(other_ends);
                while !has_received(&waiting_socket) {
                    tokio::task::yield_now().await;
                }
                drop(waiting_socket);
                assert_still_works(&ep).await;
                wait_all_closed(&before).await;
            });
        },
    );
}

/// At the descriptor limit the kernel closes received descriptors that it cannot install, in the
/// thread that calls recvmsg(2). Such a close must not block the domain.
#[test]
fn descriptor_beyond_the_fd_limit_does_not_block_the_domain() {
    run_in_own_process(
        "blocking_close::descriptor_beyond_the_fd_limit_does_not_block_the_domain",
        || {
            run(async {
                let ep = Endpoint::bind("shm://").await.unwrap();
                let bystander = Endpoint::bind("shm://").await.unwrap();
                let to_ep = bystander.add_peer(ep.name()).await.unwrap();
                bystander.send(to_ep, "hello").await.unwrap();
                ep.recv().await.unwrap();
                let (first, second) = (connect_raw(&ep).await, connect_raw(&ep).await);
                let (first_fd, first_end) = lingering_socket();
                let (second_fd, second_end) = lingering_socket();
                let mut files = Vec::new();
                while let Ok(file) = std::fs::File::open("/dev/null") {
                    files.push(file);
                }
                try_send_with_fds(&first, b"x", &[&first_fd]).unwrap();
                try_send_with_fds(&second, b"x", &[&second_fd, &second_fd]).unwrap();
                drop((first_fd, second_fd));
                // Uses up the descriptors that became free.
                while let Ok(file) = std::fs::File::open("/dev/null") {
                    files.push(file);
                }
                let mut events = ep.take_events().unwrap();
                let mut refused = 0;
                while refused < 2 {
                    bystander.send(to_ep, "ping").await.unwrap();
                    assert_eq!(&ep.recv().await.unwrap()[..], b"ping");
                    refused += take_refused_count(&mut events);
                }
                drop((files, first, second));
                assert_still_works(&ep).await;
                drop((first_end, second_end));
            });
        },
    );
}

/// A forked child closes the descriptors that its own endpoints receive: it starts a closing thread
/// of its own.
#[test]
fn forked_child_closes_received_descriptors() {
    run_in_own_process(
        "blocking_close::forked_child_closes_received_descriptors",
        || {
            // Starts the closing thread of the parent, which the child does not inherit.
            run(send_unwanted_descriptors());
            let mut program = Command::new("true");
            // SAFETY: the other threads of this process hold no lock that the child takes: the
            // closing thread sleeps, and the thread that started the test waits for it.
            unsafe {
                program.pre_exec(|| {
                    std::panic::catch_unwind(|| run(send_unwanted_descriptors()))
                        .map_err(|_| std::io::Error::other("received descriptors were not closed"))
                });
            }
            let ended = program
                .status()
                .expect("the child closes its received descriptors");
            assert!(ended.success());
        },
    );
}

/// Sends pipes to an endpoint, which takes no descriptors, and waits until each is closed.
async fn send_unwanted_descriptors() {
    let ep = Endpoint::bind("shm://").await.unwrap();
    for _ in 0..20 {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let socket = connect_raw(&ep).await;
        let writer = OwnedFd::from(writer);
        try_send_with_fds(&socket, b"x", &[&writer]).unwrap();
        drop(writer);
        rustix::io::ioctl_fionbio(&reader, true).unwrap();
        while reader.read(&mut [0]).is_err() {
            ep.domain().progress();
            tokio::task::yield_now().await;
        }
        drop(socket);
    }
    assert_still_works(&ep).await;
}

/// A server's accept may carry a descriptor whose close blocks. The connect fails at once, and the
/// descriptor is closed in the background.
#[test]
fn descriptor_in_an_accept_does_not_block_the_client() {
    run(async {
        let name = format!("lingering-accept-{}", std::process::id());
        let (lingering, other_end) = lingering_socket();
        let listener = RawShmListener::listen(&name);
        let serving = std::thread::spawn(move || {
            let (connection, reverse) = accept_raw_client(&listener);
            let accept = encode_cm(1, ACCEPT, 3, b"welcome");
            try_send_with_fds(&connection, &accept, &[&segment(), &lingering]).unwrap();
            drop(lingering);
            (connection, reverse)
        });
        let failed = ConnectedEndpoint::connect(format!("shm://{name}")).await;
        let failed = failed.map(drop).unwrap_err();
        assert!(
            matches!(&failed, Error::Protocol { what, .. } if what.contains("not sealed memory")),
            "{failed}"
        );
        // Ends the close of the lingering socket, which may be that of the server.
        drop(other_end);
        drop(serving.join().unwrap());
    });
}
