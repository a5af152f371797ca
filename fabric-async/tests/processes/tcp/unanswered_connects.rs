//! Connects to a listener whose backlog is full, so that nothing answers them.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use fabric_async::{
    Domain, Endpoint, EpType, Error, Fabric, Hints, Info, Progress, SocketIo, discover,
};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::health::assert_still_works;
use crate::run;
use crate::skip::{Facility, skip};

/// Exceeds the duration of every test.
const LONG_TIMEOUT: Duration = Duration::from_secs(1000);

/// A listener with a full backlog, which accepts no connection.
///
/// The listener has a loopback address of its own. At 127.0.0.1 it could get a port that another
/// test has released, and peers of that test that connect again would wait in its backlog.
struct Busy {
    name: String,
    socket_addr: SocketAddrV4,
    _listener: TcpListener,
    _first: TcpStream,
}

impl Busy {
    fn new() -> Self {
        // Other tests use the addresses of a process that end in 4.
        static NEXT: AtomicU8 = AtomicU8::new(100);
        let [.., process_high, process_low] = std::process::id().to_be_bytes();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let ip = Ipv4Addr::new(127, process_high, process_low, number);
        let listener = TcpListener::bind((ip, 0)).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let socket_addr = SocketAddrV4::new(ip, listener.local_addr().unwrap().port());
        Self {
            name: format!("tcp://{socket_addr}"),
            socket_addr,
            _first: TcpStream::connect(socket_addr).unwrap(),
            _listener: listener,
        }
    }

    /// Counts the sockets that are connecting to the listener (SYN_SENT), by their addresses: the
    /// table may show a socket twice while others are added.
    fn syn_sent_count(&self) -> usize {
        const SYN_SENT: &str = "02";
        let at = format!(
            "{:08X}:{:04X}",
            u32::from_ne_bytes(self.socket_addr.ip().octets()),
            self.socket_addr.port()
        );
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let rows = table.lines().filter_map(|row| {
            let mut columns = row.split_ascii_whitespace().skip(1);
            Some((columns.next()?, columns.next()?, columns.next()?))
        });
        let connecting = rows.filter(|(_, to, state)| (*to, *state) == (&at, SYN_SENT));
        let from: BTreeSet<_> = connecting.map(|(from, ..)| from).collect();
        from.len()
    }

    async fn wait_for_attempts(&self, count: usize) {
        while self.syn_sent_count() != count {
            tokio::task::yield_now().await;
        }
    }
}

/// Runs a test with epoll and with io_uring, in each progress mode.
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

/// Opens a domain for connection-oriented endpoints.
fn domain(io: SocketIo, progress: Progress) -> (Domain, Info) {
    let hints = Hints::new()
        .provider("tcp")
        .ep_type(EpType::Msg)
        .progress(progress);
    let info = discover(&hints).unwrap().swap_remove(0);
    let fabric = Fabric::open(&info).unwrap();
    (
        fabric.domain_builder(&info).socket_io(io).open().unwrap(),
        info,
    )
}

/// A peer that connects to the port of a listener that has ended, which a busy listener has got, is
/// not counted.
#[test]
fn connects_to_a_reused_port_are_not_counted() {
    let busy = Busy::new();
    let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
    let peer = rustix::net::socket_with(family, kind, SocketFlags::NONBLOCK, None).unwrap();
    let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, busy.socket_addr.port());
    let connected = rustix::net::connect(&peer, &to);
    assert!(matches!(
        connected,
        Err(Errno::INPROGRESS | Errno::CONNREFUSED)
    ));
    assert_eq!(busy.syn_sent_count(), 0);
}

#[test]
fn unanswered_connect_times_out() {
    const TIME: Duration = Duration::from_millis(300);
    run(each_way(async |io, progress| {
        let busy = Busy::new();
        let (domain, info) = domain(io, progress);
        let begun = Instant::now();
        let connecting = || {
            domain
                .endpoint(&info)
                .unwrap()
                .connect(&busy.name[..])
                .timeout(TIME)
        };
        let (one, other) = tokio::join!(connecting(), connecting());
        assert!(begun.elapsed() >= TIME);
        for failed in [one, other] {
            let error = failed.expect_err("the connect is not answered");
            assert_eq!(
                error,
                Error::TimedOut(busy.name.parse().unwrap()),
                "{io:?} {progress:?}"
            );
        }
        // The domain is still open and has no other socket in SYN_SENT.
        busy.wait_for_attempts(0).await;
        drop(domain);
    }));
}

#[test]
fn dropped_connect_closes_its_socket() {
    run(each_way(async |io, progress| {
        let busy = Busy::new();
        let (domain, info) = domain(io, progress);
        {
            let connecting = domain
                .endpoint(&info)
                .unwrap()
                .connect(&busy.name[..])
                .timeout(LONG_TIMEOUT);
            tokio::select! {
                biased;
                _ = connecting => panic!("the connect was answered"),
                () = busy.wait_for_attempts(1) => {}
            }
        }
        busy.wait_for_attempts(0).await;
        drop(domain);
    }));
}

/// Pending connects of sends end when the address is removed from the AV, and when the endpoint is
/// closed.
#[test]
fn av_remove_and_close_cancel_pending_connects() {
    run(each_way(async |io, progress| {
        let (busy, other) = (Busy::new(), Busy::new());
        let options = || Endpoint::options().socket_io(io).progress(progress);
        let ep = options().bind("tcp://").await.unwrap();
        // This connect started first, and its timer expires first.
        let to_other = ep.address_vector().insert(&other.name[..]).unwrap();
        let pending = ep.send(to_other, "hello?").start().unwrap();
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
        for canceled in [sent, pending] {
            assert_eq!(canceled.await.unwrap_err().error, Error::Canceled);
        }
        busy.wait_for_attempts(0).await;
        other.wait_for_attempts(0).await;
        drop(domain);
    }));
}

/// Connects fail with the same errors, at the same point, with epoll and with io_uring.
#[test]
fn connect_errors_are_equal_with_epoll_and_io_uring() {
    run(async {
        let unlistened = Busy::new().name;
        let mut outcomes = Vec::new();
        each_way(async |io, progress| {
            let options = || Endpoint::options().socket_io(io).progress(progress);
            let ep = options().bind("tcp://").await.unwrap();
            let (domain, info) = domain(io, progress);
            let mut results = Vec::new();
            // An address without a listener, and addresses without a route from loopback.
            for name in [
                &unlistened[..],
                "tcp://255.255.255.255:7",
                "tcp://198.51.100.1:7",
            ] {
                let peer = ep.address_vector().insert(name).unwrap();
                results.push(match ep.send(peer, "hello?").start() {
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
                results.push(format!("{:?}", refused.expect_err("no listener")));
            }
            outcomes.push(results);
        })
        .await;
        assert!(
            outcomes[0][0].contains("later NoSuchPeer")
                && outcomes[0][4].contains("at once Unreachable"),
            "{outcomes:?}"
        );
        assert!(
            outcomes.iter().all(|results| *results == outcomes[0]),
            "{outcomes:#?}"
        );
    });
}
