//! Descriptors whose close blocks: a process that sends them delays only its own connection.
#![allow(unsafe_code)] // pre_exec, and socket options that rustix lacks

use std::future::IntoFuture;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use fabric_async::{ConnectedEndpoint, Endpoint, Error, EventKind};
use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};

use crate::connected_shm_hostile::{ACCEPT, encode_cm, segment};
use crate::health::assert_still_works;
use crate::hostile::{connect_raw, connect_raw_to, encode_hello, sealed_memfd, try_send_with_fds};
use crate::leak_check::{ResourceUsage, run_in_own_process};
use crate::rma::{RawShmListener, encode_control};
use crate::run;
use crate::skip::{Facility, skip};
use crate::test_peer::TestPeer;

/// Connections of an attacker, where the kernel lets descriptors pass: more than there are closing
/// threads, fewer than stop the endpoint from accepting.
const ATTACKS: usize = 60;
/// Peers that connect and close during the attack. Together they use more descriptors than the
/// attacker.
const HONEST_PEERS: usize = 40;
/// More than there are closing threads, fewer than their queue holds.
const SAME_USER_ATTACKS: usize = 30;

/// Closing threads, and the descriptors that their queue holds.
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

/// Returns whether the endpoint has sent a message.
fn has_received(socket: &OwnedFd) -> bool {
    let received = rustix::net::recv(socket, &mut [0; 64], RecvFlags::DONTWAIT);
    received.is_ok_and(|(len, _)| len > 0)
}

/// Returns whether the endpoint has closed the connection.
fn is_closed(socket: &OwnedFd) -> bool {
    let received = rustix::net::recv(socket, &mut [0; 64], RecvFlags::DONTWAIT);
    received.map_or_else(|errno| errno != Errno::AGAIN, |(len, _)| len == 0)
}

/// Lets the endpoint close a descriptor in the background, which starts the closing thread that
/// stays.
pub(crate) async fn start_closing_thread(ep: &Endpoint) {
    let socket = connect_raw(ep).await;
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    try_send_with_fds(&socket, b"x", &[&null]).unwrap();
    drop((socket, null));
    assert_still_works(ep).await;
}

/// Returns a descriptor whose last close blocks (`SO_LINGER`) as long as the returned peer exists.
pub(crate) fn lingering_socket() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // Accepted connections inherit the size of the buffer.
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    near.set_nonblocking(true).unwrap();
    // Fills the buffers of both ends, so that data stays unsent.
    let mut refused = 0;
    while refused < 5 {
        if near.write(&[0; 65_536]).is_ok() {
            refused = 0;
        } else {
            refused += 1;
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    near.set_nonblocking(false).unwrap();
    let hour = Duration::from_secs(3600);
    rustix::net::sockopt::set_socket_linger(&near, Some(hour)).unwrap();
    (near.into(), far)
}

/// Plays an attacker of another user: sends descriptors whose close blocks over many connections,
/// and stays.
pub(crate) fn lingering_flood(name: &str) {
    let name = name.rsplit("://").next().unwrap();
    let mut kept = Vec::new();
    for _ in 0..ATTACKS {
        let (fd, far) = lingering_socket();
        // Before the victim has accepted the connection.
        let socket = connect_raw_to(name);
        // Kernels that know SO_PASSRIGHTS refuse; or the connection has already ended.
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
        kept.push((socket, far));
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
                while refused < ATTACKS {
                    // The connected peer is served after every rejection.
                    ep.send(bystander, "ping").await.unwrap();
                    assert_eq!(
                        &ep.recv().tag(4).from(bystander).await.unwrap()[..],
                        b"ping"
                    );
                    while let Some(event) = events.try_read() {
                        refused +=
                            usize::from(matches!(event.kind, EventKind::InboundRefused { .. }));
                    }
                }
                // Peers that connect and close leave no resources behind. The attacker's
                // descriptors may still be open, where the kernel passed them on.
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

/// A process of the same user may send descriptors: each of its connections ends, the domain goes
/// on, and every descriptor is closed once the attacker lets the close return.
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
                let mut far_sockets = Vec::new();
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
                    let (fd, far) = lingering_socket();
                    try_send_with_fds(&socket, b"", &[&fd]).unwrap();
                    drop((fd, socket));
                    far_sockets.push(far);
                    assert_still_works(&ep).await;
                }
                drop(far_sockets);
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
                let mut far_sockets = Vec::new();
                let pending_socket = loop {
                    assert!(
                        far_sockets.len() <= CLOSER_CAPACITY + 1,
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
                    let (fd, far) = lingering_socket();
                    try_send_with_fds(&socket, b"x", &[&fd]).unwrap();
                    far_sockets.push(far);
                    // Waits for the end of the connection.
                    drop(fd);
                    while has_received(&socket) || !is_closed(&socket) {
                        ep.domain().progress();
                        tokio::task::yield_now().await;
                    }
                };
                assert!(
                    far_sockets.len() >= CLOSER_CAPACITY,
                    "only {} connections were accepted",
                    far_sockets.len()
                );
                drop(far_sockets);
                while !has_received(&pending_socket) {
                    tokio::task::yield_now().await;
                }
                drop(pending_socket);
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
                let one = connect_raw(&ep).await;
                let other = connect_raw(&ep).await;
                let ((fd_a, far_a), (fd_b, far_b)) = (lingering_socket(), lingering_socket());
                let mut files = Vec::new();
                while let Ok(file) = std::fs::File::open("/dev/null") {
                    files.push(file);
                }
                try_send_with_fds(&one, b"x", &[&fd_a]).unwrap();
                try_send_with_fds(&other, b"x", &[&fd_b, &fd_b]).unwrap();
                drop((fd_a, fd_b));
                // Uses up the descriptors that became free.
                while let Ok(file) = std::fs::File::open("/dev/null") {
                    files.push(file);
                }
                let mut events = ep.take_events().unwrap();
                let mut refused = 0;
                while refused < 2 {
                    bystander.send(to_ep, "ping").await.unwrap();
                    assert_eq!(&ep.recv().await.unwrap()[..], b"ping");
                    while let Some(event) = events.try_read() {
                        refused +=
                            usize::from(matches!(event.kind, EventKind::InboundRefused { .. }));
                    }
                }
                drop((files, one, other));
                assert_still_works(&ep).await;
                drop((far_a, far_b));
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

/// Sets an integer option of a socket (`SOL_SOCKET`).
fn set_option(socket: &OwnedFd, option: i32, value: i32) {
    unsafe extern "C" {
        fn setsockopt(fd: i32, level: i32, name: i32, value: *const i32, len: u32) -> i32;
    }
    // SAFETY: the kernel reads an integer of the given length.
    let result = unsafe { setsockopt(socket.as_raw_fd(), 1, option, &raw const value, 4) };
    assert_eq!(result, 0, "option {option}");
}

/// Code of the control message that rings the doorbell.
const DOORBELL: u16 = 101;
const SO_PEEK_OFF: i32 = 42;
const SO_PASSPIDFD: i32 = 76;

/// A server that accepts a connection by hand.
struct RawServer {
    /// Its end of the socket pair, and a duplicate of the end that it has sent.
    own: OwnedFd,
    sent: OwnedFd,
    _connection: OwnedFd,
}

/// Connects to a server that accepts by hand.
async fn connect_to_raw_server(what: &str) -> (ConnectedEndpoint, RawServer) {
    let name = format!("raw-server-{what}-{}", std::process::id());
    let listener = RawShmListener::listen(&name);
    let serving = std::thread::spawn(move || {
        let connection = listener.accept_ready();
        rustix::net::recv(&connection, &mut [0; 400], RecvFlags::empty()).unwrap();
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (own, sent) =
            rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        let accept = encode_cm(1, ACCEPT, 3, b"welcome");
        try_send_with_fds(&connection, &accept, &[&segment(), &sent]).unwrap();
        RawServer {
            own,
            sent,
            _connection: connection,
        }
    });
    let ep = ConnectedEndpoint::connect(format!("shm://{name}")).await;
    (ep.unwrap(), serving.join().unwrap())
}

/// A peek that skips messages shows nothing of the descriptors that the socket holds.
#[test]
fn peek_offset_of_a_server_blocks_no_pass_and_no_close() {
    run(async {
        for (what, skipped) in [("all", 1 << 20), ("first", 20)] {
            let (descriptor, far) = lingering_socket();
            let (ep, server) = connect_to_raw_server(what).await;
            set_option(&server.sent, SO_PEEK_OFF, skipped);
            drop(server.sent);
            try_send_with_fds(&server.own, &[0; 20], &[&descriptor]).unwrap();
            drop(descriptor);
            try_send_with_fds(&server.own, &[0; 20], &[]).unwrap();
            // The connection ends: its messages cannot be read.
            ep.recv().await.unwrap_err();
            drop((ep, far));
        }
    });
}

#[test]
fn listening_socket_of_a_server_is_refused() {
    run(async {
        let name = format!("raw-listening-{}", std::process::id());
        let backlog = format!("raw-backlog-{}", std::process::id());
        let (descriptor, far) = lingering_socket();
        let listener = RawShmListener::listen(&name);
        let address = format!("shm://{name}");
        let serving = std::thread::spawn(move || {
            let connection = listener.accept_ready();
            rustix::net::recv(&connection, &mut [0; 400], RecvFlags::empty()).unwrap();
            // The descriptor waits in a connection that is never accepted.
            let listening = RawShmListener::listen(&backlog);
            let client =
                rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
            let full = format!("fabric-async/shm/{backlog}");
            let at = SocketAddrUnix::new_abstract_name(full.as_bytes()).unwrap();
            rustix::net::connect(&client, &at).unwrap();
            try_send_with_fds(&client, b"x", &[&descriptor]).unwrap();
            let accept = encode_cm(1, ACCEPT, 3, b"welcome");
            try_send_with_fds(&connection, &accept, &[&segment(), &listening.0]).unwrap();
            (connection, client)
        });
        let refused = ConnectedEndpoint::connect(&address[..]).await.unwrap_err();
        assert!(matches!(refused, Error::Protocol { .. }), "{refused}");
        drop((serving.join().unwrap(), far));
    });
}

#[test]
fn pidfds_that_a_server_requests_are_closed() {
    run_in_own_process(
        "blocking_close::pidfds_that_a_server_requests_are_closed",
        || {
            let pidfds = || {
                let open = std::fs::read_dir("/proc/self/fd").unwrap();
                let targets = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
                let is_pidfd =
                    |target: &std::path::PathBuf| target.to_string_lossy().contains("pidfd");
                targets.filter(is_pidfd).count()
            };
            run(async {
                let (ep, server) = connect_to_raw_server("pidfd").await;
                set_option(&server.sent, SO_PASSPIDFD, 1);
                let before = pidfds();
                let mut receive = std::pin::pin!(ep.recv().into_future());
                for _ in 0..100 {
                    try_send_with_fds(&server.own, &encode_control(DOORBELL, 0), &[]).unwrap();
                    let polled = tokio::time::timeout(Duration::from_millis(1), &mut receive).await;
                    assert!(polled.is_err(), "{polled:?}");
                }
                assert_eq!(pidfds(), before);
            });
        },
    );
}
