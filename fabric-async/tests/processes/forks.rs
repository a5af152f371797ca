//! Children of a process with endpoints: they neither break nor keep them.
#![allow(unsafe_code)] // what runs between fork and exec

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use fabric_async::{DownReason, Endpoint, Error, EventQueue, FiAddr};

use crate::census::alone;
use crate::role::Peer;
use crate::run;
use crate::witness::{next_end, still_works};

/// Talks to a peer.
async fn talks(ep: &Endpoint, peer: FiAddr) {
    for word in 0..50u64 {
        ep.send(peer, word.to_le_bytes().to_vec()).await.unwrap();
        assert_eq!(
            ep.recv().tag(4).from(peer).await.unwrap()[..],
            word.to_le_bytes()
        );
    }
}

async fn with_friend() -> (Endpoint, Peer, FiAddr) {
    let ep = Endpoint::bind("shm://").await.unwrap();
    let friend = Peer::start("echo", &ep.name().to_string());
    let peer = ep.recv().tag(3).await.unwrap().source().unwrap();
    talks(&ep, peer).await;
    (ep, friend, peer)
}

/// An endpoint that is connected to this one, and what it hears.
async fn watcher_of(ep: &Endpoint) -> (Endpoint, EventQueue) {
    let watcher = Endpoint::bind("shm://").await.unwrap();
    let events = watcher.events().unwrap();
    let watched = watcher.lookup(ep.name()).await.unwrap();
    watcher.send(watched, "hello").tag(5).await.unwrap();
    (watcher, events)
}

/// What the descriptors of a process lead to.
fn descriptors(process: &str) -> Vec<String> {
    let open = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let links = open.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    links.map(|to| to.to_string_lossy().into_owned()).collect()
}

/// A program that is started inherits nothing of the fabric's, so it holds nothing back.
#[test]
fn a_program_that_is_started_keeps_nothing() {
    alone("forks::a_program_that_is_started_keeps_nothing", || {
        // Who started this test may have left it some.
        let before = descriptors("self");
        run(async {
            let (ep, _friend, peer) = with_friend().await;
            let (_watcher, mut events) = watcher_of(&ep).await;
            let name = ep.name().to_string();
            let mut sleep = Command::new("sleep");
            sleep
                .arg("1000")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            let child = Peer(sleep.spawn().unwrap());
            let mut inherited = descriptors(&child.0.id().to_string());
            // The program opens some files of its own.
            let is_file = |to: &str| to.starts_with('/') && !to.starts_with("/memfd:");
            inherited.retain(|to| !is_file(to) && !before.contains(to));
            assert!(inherited.is_empty(), "{inherited:?}");
            talks(&ep, peer).await;
            drop(ep);
            assert_eq!(next_end(&mut events).await, DownReason::Closed);
            // The name is free.
            let again = Endpoint::bind(&name[..]).await.unwrap();
            still_works(&again).await;
            drop(child);
        });
    });
}

/// Forks a child that does something with what it has inherited, reports, and stays until the
/// result is dropped.
fn fork(mut act: impl FnMut() + Send + Sync + 'static) -> impl Drop {
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
    let (mut done, tell) = std::io::pipe().unwrap();
    let (mut hold, release) = std::io::pipe().unwrap();
    let mut tell = Some(tell);
    let ours = std::os::fd::AsRawFd::as_raw_fd(&release);
    let mut program = Command::new("true");
    program.stdin(Stdio::null()).stdout(Stdio::null());
    let child = move || {
        act();
        // Of what holds the child back its own copy does not count. SAFETY: the copy is used
        // nowhere else in this process, which ends without running anything else.
        drop(unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(ours) });
        tell.take().expect("once").write_all(b"!")?;
        let _ = hold.read(&mut [0]);
        Ok(())
    };
    // SAFETY: the process that forks has one other thread, which is not within the allocator or a
    // lock of the fabric's for long; this is what the test is about.
    unsafe { program.pre_exec(child) };
    let starter = std::thread::spawn(move || {
        assert!(program.status().expect("it forks").success());
    });
    done.read_exact(&mut [0]).unwrap();
    Forked(Some(release), Some(starter))
}

/// A child that has not started another program shares everything, and may even close what it got:
/// the parent goes on.
#[test]
fn a_child_that_closes_what_it_inherited_breaks_nothing() {
    alone(
        "forks::a_child_that_closes_what_it_inherited_breaks_nothing",
        || {
            run(async {
                let (ep, _friend, peer) = with_friend().await;
                // Too long to be taken in before somebody asks for it.
                let copies = Endpoint::options().single_copy_from(0);
                let (early, late) = (
                    copies.clone().bind("shm://").await.unwrap(),
                    copies.bind("shm://").await.unwrap(),
                );
                let to_late = early.lookup(late.name()).await.unwrap();
                let long = early.send(to_late, vec![5; 17 << 20]).start().unwrap();
                let mut inherited = Some([ep.clone(), early.clone()]);
                let child =
                    fork(move || drop(inherited.take().map(|all| all.map(Endpoint::close))));
                talks(&ep, peer).await;
                still_works(&ep).await;
                drop(child);
                let (sent, got) = tokio::join!(long, late.recv());
                assert_eq!(sent.unwrap().len(), 17 << 20);
                assert!(got.unwrap().iter().all(|byte| *byte == 5));
                talks(&ep, peer).await;
                still_works(&ep).await;
            });
        },
    );
}

/// The same over TCP, where a connection could be ended by whoever has a copy.
#[test]
fn a_child_ends_no_connection_over_tcp() {
    alone("forks::a_child_ends_no_connection_over_tcp", || {
        run(async {
            let ep = Endpoint::bind("tcp://").await.unwrap();
            let _friend = Peer::start("tcp echo", &format!("tcp:// {}", ep.name()));
            let peer = ep.recv().tag(3).await.unwrap().source().unwrap();
            talks(&ep, peer).await;
            let watcher = Endpoint::bind("tcp://").await.unwrap();
            let mut events = watcher.events().unwrap();
            let watched = watcher.lookup(ep.name()).await.unwrap();
            let mut inherited = Some(ep.clone());
            let child = fork(move || drop(inherited.take().map(Endpoint::close)));
            talks(&ep, peer).await;
            watcher.send(watched, "hello").tag(5).await.unwrap();
            assert_eq!(ep.recv().tag(5).await.unwrap()[..], *b"hello");
            // The child has all descriptors, and keeps neither the connections nor those who would
            // connect.
            let name = ep.name().to_string();
            ep.close().unwrap();
            assert_eq!(next_end(&mut events).await, DownReason::Closed);
            assert!(matches!(
                watcher.lookup(&name[..]).await,
                Err(Error::NoSuchPeer(_))
            ));
            drop(child);
        });
    });
}

/// What comes by datagram is the parent's, also when the child ends the endpoint that it has
/// inherited.
#[test]
fn a_child_takes_no_datagram() {
    alone("forks::a_child_takes_no_datagram", || {
        run(async {
            let (ep, friend) = (
                Endpoint::bind("udp://").await.unwrap(),
                Endpoint::bind("udp://").await.unwrap(),
            );
            let [.., high, low] = std::process::id().to_be_bytes();
            let group = ep.join(format!("udp://239.{high}.{low}.252:7000")).unwrap();
            let to_all = friend.address_vector().insert(group.address()).unwrap();
            let to_ep = friend.lookup(ep.name()).await.unwrap();
            let mut inherited = Some(ep.clone());
            let child = fork(move || drop(inherited.take().map(Endpoint::close)));
            for number in 0..50u8 {
                for to in [to_ep, to_all] {
                    friend.send(to, vec![number]).await.unwrap();
                    let got = ep.recv().await.unwrap();
                    assert_eq!(got[..], [number]);
                    ep.send(got.source().unwrap(), "heard").await.unwrap();
                    assert_eq!(&friend.recv().await.unwrap()[..], b"heard");
                }
            }
            drop((child, group));
        });
    });
}

/// A child that lingers keeps peers from nothing: the parent's endpoint ends when the parent closes
/// it. Only its name is taken as long as the child has it.
#[test]
fn a_child_that_lingers_keeps_no_connection() {
    alone("forks::a_child_that_lingers_keeps_no_connection", || {
        run(async {
            let (ep, _friend, peer) = with_friend().await;
            let (watcher, mut events) = watcher_of(&ep).await;
            let child = fork(|| ());
            talks(&ep, peer).await;
            let name = ep.name().to_string();
            drop(ep);
            assert_eq!(next_end(&mut events).await, DownReason::Closed);
            assert!(matches!(
                watcher.lookup(&name[..]).await,
                Err(Error::NoSuchPeer(_))
            ));
            assert!(matches!(
                Endpoint::bind(&name[..]).await,
                Err(Error::AddressInUse(_))
            ));
            drop(child);
            still_works(&Endpoint::bind(&name[..]).await.unwrap()).await;
        });
    });
}
