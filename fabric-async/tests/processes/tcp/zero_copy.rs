//! Messages that the network takes from where they lie, to peers that die, stop, or are sent to by
//! who may not.

use std::time::Duration;

use fabric_async::{Endpoint, Error, SocketIo, SocketOptions};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, setrlimit};

use crate::role::Peer;
use crate::run;
use crate::witness::{killed_after, still_works};

const LEN: usize = 1 << 20;

/// Everything long, also where that does not pay. Nothing where the kernel refuses a ring.
async fn bound() -> Option<Endpoint> {
    let mut options = SocketOptions::new().zero_copy_from(0);
    options.insists_on_zero_copy = true;
    let options = Endpoint::options()
        .socket_io(SocketIo::IoUring)
        .socket_options(options);
    match options.bind("tcp://").await {
        Ok(ep) => Some(ep),
        Err(Error::Os {
            call: "io_uring_setup",
            errno,
        }) => {
            eprintln!("skipped, the kernel refuses a ring: error {errno}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn buffers_come_back_from_peers_that_are_killed() {
    run(async {
        let Some(ep) = bound().await else { return };
        for kill in 0..20u64 {
            let peer = Peer::start("tcp echo", &format!("tcp:// {}", ep.name()));
            let to_peer = ep.recv().tag(3).await.unwrap().source().unwrap();
            let sends: Vec<_> = (0..30u8)
                .map(|number| ep.send(to_peer, vec![number; LEN]).start().unwrap())
                .collect();
            let killer = killed_after(peer, Duration::from_micros(kill * 500));
            for (send, number) in sends.into_iter().zip(0..) {
                let buf = match send.await {
                    Ok(done) => done.buf,
                    Err(failed) => {
                        assert!(failed.error.is_peer_gone(), "{}", failed.error);
                        failed.buf
                    }
                };
                assert!(buf == vec![number; LEN]);
            }
            killer.join().unwrap();
        }
        let stats = ep.stats();
        eprintln!(
            "{} without a copy, {} copied anyway",
            stats.zero_copy, stats.copied_anyway
        );
        still_works(&ep).await;
    });
}

/// Nobody waits for a peer that does not go on: what is dropped leaves its memory to the ring, and
/// that outlives the domain.
#[test]
fn a_peer_that_stops_holds_nobody_up() {
    run(async {
        let Some(ep) = bound().await else { return };
        let peer = Peer::start("tcp echo", &format!("tcp:// {}", ep.name()));
        let to_peer = ep.recv().tag(3).await.unwrap().source().unwrap();
        let pid = Pid::from_child(&peer.0);
        kill_process(pid, Signal::STOP).unwrap();
        let mut sends: Vec<_> = (0..30u8)
            .map(|number| ep.send(to_peer, vec![number; LEN]).start().unwrap())
            .collect();
        drop(sends.split_off(15));
        still_works(&ep).await;
        drop(sends);
        drop(ep);
        kill_process(pid, Signal::CONT).unwrap();
    });
}

/// Plays the part of one that may not keep so much memory in place.
pub(crate) async fn poor(name: &str) {
    let limit = Some(4 << 20);
    setrlimit(
        Resource::Memlock,
        Rlimit {
            current: limit,
            maximum: limit,
        },
    )
    .expect("it is less than before");
    let Some(ep) = bound().await else { return };
    let peer = ep.lookup(name).await.expect("the survivor is there");
    for number in 0..3 {
        let done = ep
            .send(peer, vec![number; 30 << 20])
            .await
            .expect("it is sent otherwise");
        assert!(done.buf == vec![number; 30 << 20]);
    }
    let stats = ep.stats();
    assert_eq!((stats.zero_copy, stats.copied_anyway), (0, 0));
}

#[test]
fn who_may_not_keep_memory_in_place_sends_copies() {
    const NOBODY: u32 = 65_534;
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: needs root, to be somebody else");
    }
    run(async {
        let ep = Endpoint::bind("tcp://").await.unwrap();
        let mut poor = match Peer::start_as("tcp poor", &ep.name().to_string(), NOBODY) {
            Ok(poor) => poor,
            Err(error) => return eprintln!("skipped, another user cannot start this: {error}"),
        };
        for number in 0..3 {
            assert!(ep.recv().await.unwrap()[..] == vec![number; 30 << 20]);
        }
        assert!(poor.0.wait().unwrap().success());
    });
}
