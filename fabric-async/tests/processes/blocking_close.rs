//! Descriptors whose close blocks: a process that sends them delays nothing but its own connection.
#![allow(unsafe_code)] // what runs between fork and exec

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use fabric_async::{Endpoint, EventKind};
use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::health::assert_still_works;
use crate::hostile::{connect_raw, connect_raw_to, encode_hello, sealed_memfd, try_send_with_fds};
use crate::leak_check::{ResourceUsage, run_in_own_process};
use crate::run;
use crate::skip::{Facility, skip};
use crate::test_peer::TestPeer;

/// Connections that an attacker makes: more than there are closing threads, fewer than make the
/// endpoint stop accepting, where the kernel does not refuse the descriptors.
const ATTACKS: usize = 60;
/// Peers that connect and leave meanwhile. They have more descriptors than that together.
const HONEST_PEERS: usize = 40;
/// More than there are closing threads, fewer than may wait.
const SAME_USER_ATTACKS: usize = 30;

/// Closing threads, and descriptors that may wait for them.
const CLOSER_CAPACITY: usize = 8 + 64;

/// Waits until this process has the descriptors that it had, and no more than one closing thread
/// beside.
async fn wait_all_closed(before: &ResourceUsage) {
    for attempt in 0.. {
        let now = ResourceUsage::current();
        if now.descriptors <= before.descriptors && now.threads <= before.threads + 1 {
            return;
        }
        assert!(attempt < 5000, "left behind: {now:?}, before {before:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Whether the endpoint has said something.
fn has_received(socket: &OwnedFd) -> bool {
    let received = rustix::net::recv(socket, &mut [0; 64], RecvFlags::DONTWAIT);
    received.is_ok_and(|(len, _)| len > 0)
}

/// Whether the endpoint has ended the connection.
fn is_closed(socket: &OwnedFd) -> bool {
    let received = rustix::net::recv(socket, &mut [0; 64], RecvFlags::DONTWAIT);
    received.map_or_else(|errno| errno != Errno::AGAIN, |(len, _)| len == 0)
}

/// A descriptor whose last close blocks as long as the other end is kept.
pub(crate) fn lingering_socket() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // Connections inherit it. A little is enough.
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    near.set_nonblocking(true).unwrap();
    // Until the other end takes no more: what is written then stays unsent.
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

/// Of another user: sends descriptors whose close blocks over many connections, and stays.
pub(crate) fn lingering_flood(name: &str) {
    let name = name.rsplit("://").next().unwrap();
    let mut kept = Vec::new();
    for _ in 0..ATTACKS {
        let (fd, far) = lingering_socket();
        // At once, before the victim has accepted the connection.
        let socket = connect_raw_to(name);
        // Refused by a kernel that knows SO_PASSRIGHTS, or because the connection has ended.
        let sent = try_send_with_fds(&socket, b"x", &[&fd]);
        let expected = [Errno::PERM, Errno::PIPE, Errno::CONNRESET];
        assert!(
            sent.is_ok() || expected.contains(&sent.unwrap_err()),
            "{sent:?}"
        );
        if sent.is_err() {
            // Nothing has it but this process, which does not wait for it.
            rustix::net::sockopt::set_socket_linger(&fd, None).unwrap();
        }
        drop(fd);
        // Until the victim has turned the connection away.
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
                let mut events = ep.events().unwrap();
                let name = ep.name().to_string();
                let _friend = TestPeer::start("echo", &name);
                let friend = ep.recv().tag(3).await.unwrap().source().unwrap();
                ep.send(friend, "word").await.unwrap();
                ep.recv().tag(4).from(friend).await.unwrap();
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
                    // The peer that is connected is served, however many were refused.
                    ep.send(friend, "word").await.unwrap();
                    assert_eq!(&ep.recv().tag(4).from(friend).await.unwrap()[..], b"word");
                    while let Some(event) = events.try_next() {
                        refused += usize::from(matches!(event.kind, EventKind::Rejected { .. }));
                    }
                }
                // Peers connect and leave, and nothing of them stays. What the attacker sent may,
                // where the kernel took it.
                for _ in 0..HONEST_PEERS {
                    assert_still_works(&ep).await;
                }
                for attempt in 0.. {
                    let now = ResourceUsage::current();
                    if now.descriptors <= before.descriptors + ATTACKS {
                        break;
                    }
                    assert!(attempt < 5000, "left behind: {now:?}, before {before:?}");
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                drop(attacker);
                wait_all_closed(&before).await;
            });
        },
    );
}

/// The same from a process of this user, which may send descriptors: each of its connections ends,
/// and the domain goes on. Everything is closed when the attacker lets it.
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
                // The first that is closed in the background starts the thread that stays.
                let socket = connect_raw(&ep).await;
                let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
                try_send_with_fds(&socket, b"x", &[&null]).unwrap();
                drop((socket, null));
                assert_still_works(&ep).await;
                let before = ResourceUsage::wait_stable().await;
                let mut ends = Vec::new();
                for attack in 0..SAME_USER_ATTACKS {
                    let socket = connect_raw(&ep).await;
                    if attack % 3 == 1 {
                        try_send_with_fds(&socket, &encode_hello("liar", 1, 64), &[&segment])
                            .unwrap();
                    }
                    // Received and refused; or never received, behind what ends the connection.
                    if attack % 3 == 2 {
                        try_send_with_fds(&socket, b"x", &[]).unwrap();
                    }
                    let (fd, far) = lingering_socket();
                    try_send_with_fds(&socket, b"", &[&fd]).unwrap();
                    drop((fd, socket));
                    ends.push(far);
                    assert_still_works(&ep).await;
                }
                drop(ends);
                before.wait_restored().await;
            });
        },
    );
}

/// When all closing threads are held up and many descriptors wait for them, no connection is
/// accepted, peers that are connected are served, and nothing is left when the threads go on.
#[test]
fn accepts_pause_while_closing_threads_are_blocked() {
    run_in_own_process(
        "blocking_close::accepts_pause_while_closing_threads_are_blocked",
        || {
            run(async {
                let ep = Endpoint::bind("shm://").await.unwrap();
                let friend = Endpoint::bind("shm://").await.unwrap();
                let to_ep = friend.add_peer(ep.name()).await.unwrap();
                friend.send(to_ep, "hello").await.unwrap();
                ep.recv().await.unwrap();
                assert_still_works(&ep).await;
                let before = ResourceUsage::wait_stable().await;
                let mut ends = Vec::new();
                let waits = loop {
                    assert!(
                        ends.len() <= CLOSER_CAPACITY + 1,
                        "connections are accepted"
                    );
                    let socket = connect_raw_to(ep.name().name());
                    let mut rounds = 0;
                    let answered = loop {
                        friend.send(to_ep, "word").await.unwrap();
                        assert_eq!(&ep.recv().await.unwrap()[..], b"word");
                        tokio::task::yield_now().await;
                        if has_received(&socket) {
                            break true;
                        }
                        rounds += 1;
                        if rounds == 10_000 {
                            break false;
                        }
                    };
                    if !answered {
                        break socket;
                    }
                    let (fd, far) = lingering_socket();
                    try_send_with_fds(&socket, b"x", &[&fd]).unwrap();
                    ends.push(far);
                    // Until the connection has ended.
                    drop(fd);
                    while has_received(&socket) || !is_closed(&socket) {
                        ep.domain().progress();
                        tokio::task::yield_now().await;
                    }
                };
                assert!(
                    ends.len() >= CLOSER_CAPACITY,
                    "{} connections only",
                    ends.len()
                );
                drop(ends);
                while !has_received(&waits) {
                    tokio::task::yield_now().await;
                }
                drop(waits);
                assert_still_works(&ep).await;
                wait_all_closed(&before).await;
            });
        },
    );
}

/// Without descriptors the kernel would close what it cannot give to this process, in the thread
/// that receives.
#[test]
fn descriptor_beyond_the_fd_limit_does_not_block_the_domain() {
    run_in_own_process(
        "blocking_close::descriptor_beyond_the_fd_limit_does_not_block_the_domain",
        || {
            run(async {
                let ep = Endpoint::bind("shm://").await.unwrap();
                let friend = Endpoint::bind("shm://").await.unwrap();
                let to_ep = friend.add_peer(ep.name()).await.unwrap();
                friend.send(to_ep, "hello").await.unwrap();
                ep.recv().await.unwrap();
                let one = connect_raw(&ep).await;
                let other = connect_raw(&ep).await;
                let ((fd, far), (also, end)) = (lingering_socket(), lingering_socket());
                let mut files = Vec::new();
                while let Ok(file) = std::fs::File::open("/dev/null") {
                    files.push(file);
                }
                try_send_with_fds(&one, b"x", &[&fd]).unwrap();
                try_send_with_fds(&other, b"x", &[&also, &also]).unwrap();
                drop((fd, also));
                // Whatever became free is used.
                while let Ok(file) = std::fs::File::open("/dev/null") {
                    files.push(file);
                }
                let mut events = ep.events().unwrap();
                let mut refused = 0;
                while refused < 2 {
                    friend.send(to_ep, "word").await.unwrap();
                    assert_eq!(&ep.recv().await.unwrap()[..], b"word");
                    while let Some(event) = events.try_next() {
                        refused += usize::from(matches!(event.kind, EventKind::Rejected { .. }));
                    }
                }
                drop((files, one, other));
                assert_still_works(&ep).await;
                drop((far, end));
            });
        },
    );
}

/// A forked child closes what its own endpoints receive: it has a closing thread of its own.
#[test]
fn forked_child_closes_received_descriptors() {
    run_in_own_process(
        "blocking_close::forked_child_closes_received_descriptors",
        || {
            // The parent's closing thread runs, and is not in the child.
            run(send_unwanted_descriptors());
            let mut program = Command::new("true");
            // SAFETY: the other threads of this process hold no lock that the child takes: the closing
            // thread sleeps, and the thread that started the test waits for it.
            unsafe {
                program.pre_exec(|| {
                    std::panic::catch_unwind(|| run(send_unwanted_descriptors()))
                        .map_err(|_| std::io::Error::other("descriptors are left"))
                });
            }
            let ended = program.status().expect("the child closes what it received");
            assert!(ended.success());
        },
    );
}

/// Pipes are sent to an endpoint, which does not want them; each is closed.
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
