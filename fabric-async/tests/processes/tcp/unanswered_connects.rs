//! Attempts to connect that nobody answers: the peer's machine is there, and has no room for
//! another connection.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use fabric_async::{
    Domain, Endpoint, EpType, Error, Fabric, Hints, Info, Progress, SocketIo, discover,
};

use crate::health::assert_still_works;
use crate::run;
use crate::skip::{Facility, skip};

/// Longer than any test takes.
const LONG_TIMEOUT: Duration = Duration::from_secs(1000);

/// Somebody who accepts nobody, and has one waiting.
struct Busy {
    name: String,
    socket_addr: SocketAddr,
    _listener: TcpListener,
    _first: TcpStream,
}

impl Busy {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let socket_addr = listener.local_addr().unwrap();
        Self {
            name: format!("tcp://{socket_addr}"),
            socket_addr,
            _first: TcpStream::connect(socket_addr).unwrap(),
            _listener: listener,
        }
    }

    /// Sockets of this machine that ask there, and have not been answered.
    fn syn_sent_count(&self) -> usize {
        const SYN_SENT: &str = "02";
        let SocketAddr::V4(at) = self.socket_addr else {
            panic!("{}", self.socket_addr)
        };
        let at = format!(
            "{:08X}:{:04X}",
            u32::from_ne_bytes(at.ip().octets()),
            at.port()
        );
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let rows = table.lines().map(|row| {
            row.split_ascii_whitespace()
                .skip(2)
                .take(2)
                .collect::<Vec<_>>()
        });
        rows.filter(|row| row[..] == [&at[..], SYN_SENT]).count()
    }

    async fn wait_for_attempts(&self, count: usize) {
        while self.syn_sent_count() != count {
            tokio::task::yield_now().await;
        }
    }
}

/// In each way, under either progress.
async fn each_way(mut test: impl AsyncFnMut(SocketIo, Progress)) {
    for io in [SocketIo::Epoll, SocketIo::IoUring] {
        for progress in [Progress::Manual, Progress::Auto] {
            match Endpoint::options().socket_io(io).bind("tcp://").await {
                Err(Error::Os {
                    call: "io_uring_setup",
                    errno,
                }) => {
                    skip(Facility::Uring, format!("io_uring_setup: errno {errno}"));
                }
                bound => {
                    drop(bound.unwrap());
                    test(io, progress).await;
                }
            }
        }
    }
}

/// A domain for connected endpoints.
async fn domain(io: SocketIo, progress: Progress) -> (Domain, Info) {
    let hints = Hints::new()
        .provider("tcp")
        .ep_type(EpType::Msg)
        .progress(progress);
    let info = discover(&hints).await.unwrap().swap_remove(0);
    let fabric = Fabric::open(&info).unwrap();
    (
        fabric.domain_builder(&info).socket_io(io).open().unwrap(),
        info,
    )
}

#[test]
fn unanswered_connect_times_out() {
    const TIME: Duration = Duration::from_millis(300);
    run(each_way(async |io, progress| {
        let busy = Busy::new();
        let (domain, info) = domain(io, progress).await;
        let begun = Instant::now();
        let asked = || {
            domain
                .endpoint(&info)
                .unwrap()
                .connect(&busy.name[..])
                .timeout(TIME)
        };
        let (one, other) = tokio::join!(asked(), asked());
        assert!(begun.elapsed() >= TIME);
        for failed in [one, other] {
            let error = failed.expect_err("nobody has answered");
            assert_eq!(
                error,
                Error::TimedOut(busy.name.parse().unwrap()),
                "{io:?} {progress:?}"
            );
        }
        // The domain is still there, and has nothing more.
        busy.wait_for_attempts(0).await;
        drop(domain);
    }));
}

#[test]
fn dropped_connect_closes_its_socket() {
    run(each_way(async |io, progress| {
        let busy = Busy::new();
        let (domain, info) = domain(io, progress).await;
        {
            let asked = domain
                .endpoint(&info)
                .unwrap()
                .connect(&busy.name[..])
                .timeout(LONG_TIMEOUT);
            tokio::select! {
                biased;
                _ = asked => panic!("nobody answers"),
                () = busy.wait_for_attempts(1) => {}
            }
        }
        busy.wait_for_attempts(0).await;
        drop(domain);
    }));
}

/// Endpoints that connect on demand: with an address that is removed, an endpoint that is closed.
#[test]
fn av_remove_and_close_cancel_pending_connects() {
    run(each_way(async |io, progress| {
        let (busy, other) = (Busy::new(), Busy::new());
        let options = || Endpoint::options().socket_io(io).progress(progress);
        let ep = options().bind("tcp://").await.unwrap();
        // Its time is over first.
        let to_other = ep.address_vector().insert(&other.name[..]).unwrap();
        let still_asking = ep.send(to_other, "hello?").start().unwrap();
        other.wait_for_attempts(1).await;
        for _ in 0..2 {
            let peer = ep.address_vector().insert(&busy.name[..]).unwrap();
            let sent = ep.send(peer, "hello?").start().unwrap();
            busy.wait_for_attempts(1).await;
            ep.address_vector().remove(peer).unwrap();
            assert_eq!(sent.await.unwrap_err().error, Error::StaleAddress(peer));
            busy.wait_for_attempts(0).await;
        }
        assert_still_works(&ep).await;
        let domain = ep.domain().clone();
        let peer = ep.address_vector().insert(&busy.name[..]).unwrap();
        let sent = ep.send(peer, "hello?").start().unwrap();
        busy.wait_for_attempts(1).await;
        assert_eq!(other.syn_sent_count(), 1);
        ep.close().unwrap();
        for canceled in [sent, still_asking] {
            assert_eq!(canceled.await.unwrap_err().error, Error::Canceled);
        }
        busy.wait_for_attempts(0).await;
        other.wait_for_attempts(0).await;
        drop(domain);
    }));
}

/// What fails is said in the same words, and at the same time, whichever the way.
#[test]
fn connect_errors_are_equal_with_epoll_and_io_uring() {
    run(async {
        let nobody = Busy::new().name;
        let mut said = Vec::new();
        each_way(async |io, progress| {
            let options = || Endpoint::options().socket_io(io).progress(progress);
            let ep = options().bind("tcp://").await.unwrap();
            let (domain, info) = domain(io, progress).await;
            let mut heard = Vec::new();
            // Nobody listens; and what no route leads to from an address inside this machine.
            for name in [
                &nobody[..],
                "tcp://255.255.255.255:7",
                "tcp://198.51.100.1:7",
            ] {
                let peer = ep.address_vector().insert(name).unwrap();
                heard.push(match ep.send(peer, "hello?").start() {
                    Ok(sent) => format!("later {:?}", sent.await.unwrap_err().error),
                    Err(failed) => format!("at once {:?}", failed.error),
                });
                let refused = domain
                    .endpoint(&info)
                    .unwrap()
                    .name("tcp://127.0.0.1:0")
                    .unwrap()
                    .connect(name)
                    .await;
                heard.push(format!("{:?}", refused.expect_err("nobody is there")));
            }
            said.push(heard);
        })
        .await;
        assert!(
            said[0][0].contains("later NoSuchPeer") && said[0][4].contains("at once Unreachable"),
            "{said:?}"
        );
        assert!(said.iter().all(|heard| *heard == said[0]), "{said:#?}");
    });
}
