//! Forked children of a process that has endpoints: they neither break its connections nor keep
//! them open.
#![allow(unsafe_code)] // pre_exec

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fabric_async::{DownReason, Endpoint, Error, EventQueue, FiAddr, WaitPolicy};
use rustix::net::SocketAddrUnix;

use crate::health::{assert_still_works, next_down_reason};
use crate::leak_check::run_in_own_process;
use crate::run;
use crate::test_peer::TestPeer;

/// Exchanges messages with the echo peer.
async fn assert_echo_works(ep: &Endpoint, peer: FiAddr) {
    for number in 0..50u64 {
        ep.send(peer, number.to_le_bytes().to_vec()).await.unwrap();
        assert_eq!(
            ep.recv().tag(4).from(peer).await.unwrap()[..],
            number.to_le_bytes()
        );
    }
}

async fn endpoint_with_echo_peer() -> (Endpoint, TestPeer, FiAddr) {
    let ep = Endpoint::bind("shm://").await.unwrap();
    let client = TestPeer::start("echo", &ep.name().to_string());
    let peer = ep.recv().tag(3).await.unwrap().source().unwrap();
    assert_echo_works(&ep, peer).await;
    (ep, client, peer)
}

/// Returns an endpoint that is connected to this one, and its event queue.
async fn connected_watcher(ep: &Endpoint) -> (Endpoint, EventQueue) {
    let watcher = Endpoint::bind("shm://").await.unwrap();
    let events = watcher.take_events().unwrap();
    let watched = watcher.add_peer(ep.name()).await.unwrap();
    watcher.send(watched, "hello").tag(5).await.unwrap();
    (watcher, events)
}

/// Returns the targets of the descriptors of a process.
fn descriptor_targets(process: &str) -> Vec<String> {
    let open = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let links = open.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    links.map(|to| to.to_string_lossy().into_owned()).collect()
}

/// All descriptors of an endpoint are close-on-exec, so a started program keeps nothing open.
#[test]
fn exec_child_inherits_no_descriptors() {
    run_in_own_process("forks::exec_child_inherits_no_descriptors", || {
        // The test may have inherited descriptors.
        let before = descriptor_targets("self");
        run(async {
            let (ep, _echo_process, peer) = endpoint_with_echo_peer().await;
            let (_watcher, mut events) = connected_watcher(&ep).await;
            let name = ep.name().to_string();
            let mut sleep = Command::new("sleep");
            sleep
                .arg("1000")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            let child = TestPeer(sleep.spawn().unwrap());
            let mut inherited = descriptor_targets(&child.0.id().to_string());
            // The started program opens some files of its own.
            let is_file = |to: &str| to.starts_with('/') && !to.starts_with("/memfd:");
            inherited.retain(|to| !is_file(to) && !before.contains(to));
            assert!(inherited.is_empty(), "{inherited:?}");
            assert_echo_works(&ep, peer).await;
            drop(ep);
            assert_eq!(next_down_reason(&mut events).await, DownReason::Closed);
            // The name can be bound again.
            let again = Endpoint::bind(&name[..]).await.unwrap();
            assert_still_works(&again).await;
            drop(child);
        });
    });
}

/// Forks a child that calls `action`, reports to the parent, and lives until the result is dropped.
fn fork_child(mut action: impl FnMut() + Send + Sync + 'static) -> impl Drop {
    struct Forked(
        Option<std::io::PipeWriter>,
        Option<std::thread::JoinHandle<()>>,
    );
    impl Drop for Forked {
        fn drop(&mut self) {
            drop(self.0.take());
            self.1.take().unwrap().join().unwrap();
        }
    }
    let (mut done, report) = std::io::pipe().unwrap();
    let (mut hold, release) = std::io::pipe().unwrap();
    let mut report = Some(report);
    let release_fd = std::os::fd::AsRawFd::as_raw_fd(&release);
    let mut program = Command::new("true");
    program.stdin(Stdio::null()).stdout(Stdio::null());
    let child = move || {
        action();
        // The child lives until the last copy of the pipe's write end is closed, so it closes its
        // own. SAFETY: nothing else in the child uses the copy, and the child ends without running
        // any other code.
        drop(unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(release_fd) });
        report
            .take()
            .expect("the child runs once")
            .write_all(b"!")?;
        let _ = hold.read(&mut [0]);
        Ok(())
    };
    // SAFETY: the process that forks has one other thread, which holds the allocator's lock or a
    // lock of the library only briefly; forking such a process is the subject of the test.
    unsafe { program.pre_exec(child) };
    let starter = std::thread::spawn(move || {
        assert!(program.status().expect("fork and exec").success());
    });
    done.read_exact(&mut [0]).unwrap();
    Forked(Some(release), Some(starter))
}

/// Connects sockets to an address from a child, which then ends. The kernel reports the child as
/// the process of the client.
pub(crate) fn connect_in_child(sockets: &[OwnedFd], to: &SocketAddrUnix) {
    let clones: Vec<_> = sockets
        .iter()
        .map(|socket| socket.try_clone().unwrap())
        .collect();
    let to = to.clone();
    let mut program = Command::new("true");
    let child = move || {
        for socket in &clones {
            rustix::net::connect(socket, &to)?;
        }
        Ok(())
    };
    // SAFETY: the child makes only system calls before it executes the program.
    unsafe { program.pre_exec(child) };
    assert!(program.status().expect("fork and exec").success());
}

/// A forked child shares all descriptors. When the child closes its copies of the endpoints, the
/// parent's endpoints still work.
#[test]
fn fork_child_closing_endpoints_does_not_affect_parent() {
    run_in_own_process(
        "forks::fork_child_closing_endpoints_does_not_affect_parent",
        || {
            run(async {
                let (ep, _echo_process, peer) = endpoint_with_echo_peer().await;
                // Too long to be buffered before a receive is posted.
                let copies = Endpoint::options().single_copy_threshold(0);
                let (early, late) = (
                    copies.clone().bind("shm://").await.unwrap(),
                    copies.bind("shm://").await.unwrap(),
                );
                let to_late = early.add_peer(late.name()).await.unwrap();
                let long = early.send(to_late, vec![5; 17 << 20]).start().unwrap();
                let mut inherited = Some([ep.clone(), early.clone()]);
                let child =
                    fork_child(move || drop(inherited.take().map(|all| all.map(Endpoint::close))));
                assert_echo_works(&ep, peer).await;
                assert_still_works(&ep).await;
                drop(child);
                let (sent, got) = tokio::join!(long, late.recv());
                assert_eq!(sent.unwrap().len(), 17 << 20);
                assert!(got.unwrap().iter().all(|byte| *byte == 5));
                assert_echo_works(&ep, peer).await;
                assert_still_works(&ep).await;
            });
        },
    );
}

/// As `fork_child_closing_endpoints_does_not_affect_parent`, over TCP, where every process with the
/// descriptor could shut the connection down.
#[test]
fn fork_child_does_not_end_connections_over_tcp() {
    run_in_own_process(
        "forks::fork_child_does_not_end_connections_over_tcp",
        || {
            run(async {
                let ep = Endpoint::bind("tcp://").await.unwrap();
                let _echo_process = TestPeer::start("tcp echo", &format!("tcp:// {}", ep.name()));
                let peer = ep.recv().tag(3).await.unwrap().source().unwrap();
                assert_echo_works(&ep, peer).await;
                let watcher = Endpoint::bind("tcp://").await.unwrap();
                let mut events = watcher.take_events().unwrap();
                let watched = watcher.add_peer(ep.name()).await.unwrap();
                let mut inherited = Some(ep.clone());
                let child = fork_child(move || drop(inherited.take().map(Endpoint::close)));
                assert_echo_works(&ep, peer).await;
                watcher.send(watched, "hello").tag(5).await.unwrap();
                assert_eq!(ep.recv().tag(5).await.unwrap()[..], *b"hello");
                // The child has all descriptors, but keeps neither the connections nor the listener
                // open.
                let name = ep.name().to_string();
                ep.close().unwrap();
                assert_eq!(next_down_reason(&mut events).await, DownReason::Closed);
                assert!(matches!(
                    watcher.add_peer(&name[..]).await,
                    Err(Error::NoSuchPeer(_))
                ));
                drop(child);
            });
        },
    );
}

/// A forked child that reads a counter, which makes progress in the parent, takes no event of the
/// parent's io_uring.
#[test]
fn fork_child_that_reads_a_counter_does_not_delay_parent_over_tcp() {
    run_in_own_process(
        "forks::fork_child_that_reads_a_counter_does_not_delay_parent_over_tcp",
        || {
            run(async {
                let ep = Endpoint::options().wait_policy(WaitPolicy::Park);
                let ep = ep.bind("tcp://").await.unwrap();
                let _echo_process = TestPeer::start("tcp echo", &format!("tcp:// {}", ep.name()));
                let peer = ep.recv().tag(3).await.unwrap().source().unwrap();
                assert_echo_works(&ep, peer).await;
                let counter = ep.domain().counter().unwrap();
                let (mut forked, mut started) = std::io::pipe().unwrap();
                let forking = std::thread::spawn(move || {
                    drop(fork_child(move || {
                        started.write_all(b"!").expect("write to a pipe");
                        let start = Instant::now();
                        while start.elapsed() < Duration::from_secs(2) {
                            let _ = counter.value();
                        }
                    }));
                });
                // Until then this thread does not hold a lock that the child needs.
                forked.read_exact(&mut [0]).unwrap();
                while !forking.is_finished() {
                    ep.send(peer, "x").await.unwrap();
                    // A wake-up by the timer is none by the message.
                    tokio::select! {
                        biased;
                        () = tokio::time::sleep(Duration::from_secs(20)) => {
                            panic!("the parent does not notice the message");
                        }
                        got = ep.recv().tag(4).from(peer) => drop(got.unwrap()),
                    }
                }
                forking.join().unwrap();
            });
        },
    );
}

/// Datagrams reach the parent, even when the child closes the endpoint that it has inherited.
#[test]
fn fork_child_receives_no_datagrams() {
    run_in_own_process("forks::fork_child_receives_no_datagrams", || {
        run(async {
            let (ep, client) = (
                Endpoint::bind("udp://").await.unwrap(),
                Endpoint::bind("udp://").await.unwrap(),
            );
            let [.., high, low] = std::process::id().to_be_bytes();
            let group = ep
                .join_multicast(format!("udp://239.{high}.{low}.252:7000"))
                .unwrap();
            let to_all = client.address_vector().insert(group.address()).unwrap();
            let to_ep = client.add_peer(ep.name()).await.unwrap();
            let mut inherited = Some(ep.clone());
            let child = fork_child(move || drop(inherited.take().map(Endpoint::close)));
            for number in 0..50u8 {
                for to in [to_ep, to_all] {
                    client.send(to, vec![number]).await.unwrap();
                    let got = ep.recv().await.unwrap();
                    assert_eq!(got[..], [number]);
                    ep.send(got.source().unwrap(), "received").await.unwrap();
                    assert_eq!(&client.recv().await.unwrap()[..], b"received");
                }
            }
            drop((child, group));
        });
    });
}

/// When the parent closes its endpoint, peers see the close although a child still runs. The name
/// stays bound until the child ends.
#[test]
fn live_fork_child_does_not_keep_connections_open() {
    run_in_own_process(
        "forks::live_fork_child_does_not_keep_connections_open",
        || {
            run(async {
                let (ep, _echo_process, peer) = endpoint_with_echo_peer().await;
                let (watcher, mut events) = connected_watcher(&ep).await;
                let child = fork_child(|| ());
                assert_echo_works(&ep, peer).await;
                let name = ep.name().to_string();
                drop(ep);
                assert_eq!(next_down_reason(&mut events).await, DownReason::Closed);
                assert!(matches!(
                    watcher.add_peer(&name[..]).await,
                    Err(Error::NoSuchPeer(_))
                ));
                assert!(matches!(
                    Endpoint::bind(&name[..]).await,
                    Err(Error::AddressInUse(_))
                ));
                drop(child);
                assert_still_works(&Endpoint::bind(&name[..]).await.unwrap()).await;
            });
        },
    );
}
