//! Zero-copy sends to peers that are killed or stopped, and from a process with a low
//! RLIMIT_MEMLOCK.

use std::time::Duration;

use fabric_async::{Endpoint, Error, SocketIo, SocketOptions};
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::health::{assert_still_works, kill_after};
use crate::run;
use crate::skip::{Facility, skip};
use crate::test_peer::TestPeer;

const MESSAGE_LEN: usize = 1 << 20;

/// Binds an endpoint that sends every message without a copy, or returns `None` where the kernel
/// refuses io_uring.
async fn bind_forced_zero_copy() -> Option<Endpoint> {
    let mut options = SocketOptions::new().zero_copy_threshold(0);
    options.force_zero_copy = true;
    let options = Endpoint::options()
        .socket_io(SocketIo::IoUring)
        .socket_options(options);
    match options.bind("tcp://").await {
        Ok(ep) => Some(ep),
        Err(Error::Os {
            call: "io_uring_setup",
            errno,
        }) => {
            skip(Facility::Uring, format!("io_uring_setup: errno {errno}"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn send_buffers_return_when_peer_is_killed() {
    run(async {
        let Some(ep) = bind_forced_zero_copy().await else {
            return;
        };
        for kill in 0..20u64 {
            let peer = TestPeer::start("tcp echo", &format!("tcp:// {}", ep.name()));
            let to_peer = ep.recv().tag(3).await.unwrap().source().unwrap();
            let sends: Vec<_> = (0..30u8)
                .map(|number| ep.send(to_peer, vec![number; MESSAGE_LEN]).start().unwrap())
                .collect();
            let killer = kill_after(peer, Duration::from_micros(kill * 500));
            for (send, number) in sends.into_iter().zip(0..) {
                let buf = match send.await {
                    Ok(done) => done.buf,
                    Err(failed) => {
                        assert!(failed.error.is_peer_unavailable(), "{}", failed.error);
                        failed.buf
                    }
                };
                assert!(buf == vec![number; MESSAGE_LEN]);
            }
            killer.join().unwrap();
        }
        let stats = ep.stats();
        eprintln!(
            "{} messages without a copy, {} copied after all",
            stats.zero_copy, stats.zero_copy_fallbacks
        );
        assert_still_works(&ep).await;
    });
}

/// A stopped peer does not hold up the close: the buffers of dropped sends belong to the io_uring
/// instance, which outlives the domain.
#[test]
fn stopped_peer_does_not_block_drop_of_the_domain() {
    run(async {
        let Some(ep) = bind_forced_zero_copy().await else {
            return;
        };
        let peer = TestPeer::start("tcp echo", &format!("tcp:// {}", ep.name()));
        let to_peer = ep.recv().tag(3).await.unwrap().source().unwrap();
        peer.stop();
        let mut sends: Vec<_> = (0..30u8)
            .map(|number| ep.send(to_peer, vec![number; MESSAGE_LEN]).start().unwrap())
            .collect();
        drop(sends.split_off(15));
        assert_still_works(&ep).await;
        drop(sends);
        drop(ep);
        peer.resume();
    });
}

/// Sends from a process whose RLIMIT_MEMLOCK is too low for zero-copy sends.
pub(crate) async fn low_memlock_sender(name: &str) {
    let limit = Some(4 << 20);
    setrlimit(
        Resource::Memlock,
        Rlimit {
            current: limit,
            maximum: limit,
        },
    )
    .expect("lower RLIMIT_MEMLOCK");
    let Some(ep) = bind_forced_zero_copy().await else {
        return;
    };
    let peer = ep.add_peer(name).await.expect("add_peer");
    for number in 0..3 {
        let done = ep
            .send(peer, vec![number; 30 << 20])
            .await
            .expect("a send with a copy");
        assert!(done.buf == vec![number; 30 << 20]);
    }
    let stats = ep.stats();
    assert_eq!((stats.zero_copy, stats.zero_copy_fallbacks), (0, 0));
}

#[test]
fn sender_with_low_memlock_limit_copies() {
    const OTHER_USER: u32 = 65_534;
    if !rustix::process::geteuid().is_root() {
        return skip(
            Facility::Root,
            "root is needed to start a process of another user",
        );
    }
    run(async {
        let ep = Endpoint::bind("tcp://").await.unwrap();
        let mut sender = match TestPeer::start_as_user(
            "tcp low_memlock_sender",
            &ep.name().to_string(),
            OTHER_USER,
        ) {
            Ok(sender) => sender,
            Err(error) => {
                return skip(Facility::Root, format!("start as another user: {error}"));
            }
        };
        for number in 0..3 {
            assert!(ep.recv().await.unwrap()[..] == vec![number; 30 << 20]);
        }
        assert!(sender.0.wait().unwrap().success());
    });
}
