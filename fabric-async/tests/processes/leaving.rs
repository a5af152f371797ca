//! A send that has ended has left its process: it is in the kernel's or in the peer's hands, and
//! arrives though the process ends, or computes, right afterwards.

use fabric_async::{
    Endpoint, Error, FiAddr, PassiveEndpoint, Progress, Protocol, SocketIo, SocketOptions,
};

use crate::role::{Peer, wait_for_parent};
use crate::run;

/// Messages of a sender.
const COUNT: usize = 10;
/// Much more than sockets with so small buffers take at once.
const BIG: usize = 10_000;
const MANY: usize = 100;
const BUFFER: usize = 1 << 13;

/// What a sender does between its last send and its end.
const WAYS: [&str; 7] = [
    "awaited", "joined", "many", "posted", "injected", "batched", "started",
];

/// How endpoints of a test speak.
#[derive(Clone, Copy, Debug)]
struct Kind {
    scheme: &'static str,
    protocol: Option<Protocol>,
    io: SocketIo,
    progress: Progress,
}

impl Kind {
    /// All kinds there are.
    fn all() -> Vec<Self> {
        let mut kinds = Vec::new();
        for progress in [Progress::Manual, Progress::Auto] {
            for io in [SocketIo::Epoll, SocketIo::IoUring] {
                for protocol in [Protocol::Tcp, Protocol::Rxm] {
                    let (scheme, protocol) = ("tcp://", Some(protocol));
                    kinds.push(Self {
                        scheme,
                        protocol,
                        io,
                        progress,
                    });
                }
            }
            for scheme in ["udp://127.0.0.1:0", "shm://"] {
                let (protocol, io) = (None, SocketIo::Epoll);
                kinds.push(Self {
                    scheme,
                    protocol,
                    io,
                    progress,
                });
            }
        }
        kinds
    }

    /// Those that this machine has, with their positions among all.
    fn here() -> Vec<(usize, Self)> {
        let mut kinds: Vec<_> = Self::all().into_iter().enumerate().collect();
        let ring = Endpoint::options().socket_io(SocketIo::IoUring);
        if let Err(error) = run(ring.bind("tcp://")) {
            eprintln!("skipped over io_uring, which the kernel refuses: {error}");
            kinds.retain(|(_, kind)| kind.io != SocketIo::IoUring);
        }
        kinds
    }

    async fn bind(self) -> Endpoint {
        let sockets = SocketOptions::new()
            .send_buffer(BUFFER)
            .receive_buffer(BUFFER);
        let mut options = Endpoint::options()
            .progress(self.progress)
            .socket_options(sockets)
            .socket_io(self.io);
        if let Some(protocol) = self.protocol {
            options = options.protocol(protocol);
        }
        options.bind(self.scheme).await.expect("an endpoint")
    }

    /// What tells a peer of this kind, by position among [all](Self::all).
    fn told(number: usize, way: &str, name: &str) -> String {
        format!("{number} {way} {name}")
    }
}

fn content(number: usize, len: usize) -> Vec<u8> {
    vec![number as u8; len]
}

/// Lengths of the messages of a sender.
fn lengths(way: &str, scheme: &str) -> Vec<usize> {
    match way {
        "many" => vec![BIG; MANY],
        // One of them is long, and leaves from where it lies.
        "awaited" if scheme == "tcp://" => (0..COUNT).map(|at| [8, 100, 40_000][at % 3]).collect(),
        _ => (0..COUNT).map(|at| [8, 100, 1000][at % 3]).collect(),
    }
}

/// Plays the part of one that sends, and ends its process at once. What it is told is a kind, a way
/// and a name.
pub(crate) async fn exits(told: &str) {
    let (kind, way, name) = parts(told);
    let ep = kind.bind().await;
    let peer = ep.lookup(name).await.expect("the survivor is there");
    send(&ep, peer, way, &lengths(way, kind.scheme)).await;
    std::process::exit(0);
}

/// Plays the part of one that is connected, sends, and ends its process at once.
pub(crate) async fn exits_connected(told: &str) {
    let (kind, way, name) = parts(told);
    let ep = Endpoint::options()
        .progress(kind.progress)
        .socket_options(SocketOptions::new().send_buffer(BUFFER))
        .socket_io(kind.io)
        .connect(name)
        .await
        .expect("the survivor is there");
    let peer = ep.peer().expect("it is connected");
    send(&ep, peer, way, &lengths(way, kind.scheme)).await;
    std::process::exit(0);
}

fn parts(told: &str) -> (Kind, &str, &str) {
    let mut parts = told.splitn(3, ' ');
    let number: usize = parts.next().expect("a kind").parse().expect("a number");
    let (way, name) = (parts.next().expect("a way"), parts.next().expect("a name"));
    (Kind::all()[number], way, name)
}

/// Sends messages of these lengths, and waits until they have left.
async fn send(ep: &Endpoint, peer: FiAddr, way: &str, lengths: &[usize]) {
    let messages = lengths.iter().enumerate();
    let messages = messages.map(|(number, len)| content(number, *len));
    match way {
        "awaited" | "many" => {
            for message in messages {
                ep.send(peer, message).await.expect("the peer is there");
            }
        }
        "joined" => {
            let posted = messages.map(|message| ep.send(peer, message).start().expect("credit"));
            let posted: Vec<_> = posted.collect();
            for sent in posted {
                sent.await.expect("the peer is there");
            }
        }
        "posted" => {
            messages.for_each(|message| ep.send(peer, message).post().expect("credit"));
            ep.flush().await.expect("the endpoint is open");
        }
        "injected" => {
            messages.for_each(|message| ep.inject(peer, &message).expect("credit"));
            ep.domain().flush().await.expect("the domain is open");
        }
        "batched" => {
            let requests = messages.map(|message| ep.send(peer, message));
            assert_eq!(ep.post_all(requests).expect("credit"), lengths.len());
            let mut queue = ep.completions().expect("it has one");
            let mut ended = Vec::new();
            while ended.len() < lengths.len() {
                queue.next_batch(&mut ended, lengths.len()).await;
            }
            assert!(ended.iter().all(|ended| ended.error.is_none()));
        }
        "started" => {
            messages.for_each(|message| drop(ep.send(peer, message).start().expect("credit")));
            ep.flush().await.expect("the endpoint is open");
        }
        other => panic!("unknown way {other}"),
    }
}

/// All messages of a sender arrive, in their order.
async fn receives(ep: &Endpoint, lengths: &[usize], what: &str) {
    for (number, len) in lengths.iter().enumerate() {
        let got = ep.recv().await.expect(what);
        assert_eq!(got[..], content(number, *len), "{what}: message {number}");
    }
}

#[test]
fn sends_that_have_ended_arrive_though_their_process_exits() {
    for (number, kind) in Kind::here() {
        for way in WAYS {
            if way == "many" && kind.scheme != "tcp://" {
                // Datagrams that find no room at their receiver are lost, and shared memory knows
                // no kernel in between.
                continue;
            }
            run(async {
                let ep = kind.bind().await;
                let what = format!("{kind:?} {way}");
                let name = ep.name().to_string();
                let mut peer = Peer::start("exits", &Kind::told(number, way, &name));
                receives(&ep, &lengths(way, kind.scheme), &what).await;
                assert!(peer.0.wait().unwrap().success(), "{what}");
            });
        }
    }
}

#[test]
fn sends_of_connected_endpoints_arrive_though_their_process_exits() {
    for (number, kind) in Kind::here() {
        if kind.protocol != Some(Protocol::Tcp) {
            continue;
        }
        for way in WAYS {
            run(async {
                let mut door = PassiveEndpoint::bind("tcp://").await.unwrap();
                let what = format!("connected, {kind:?} {way}");
                let told = Kind::told(number, way, &door.name().to_string());
                let mut peer = Peer::start("exits connected", &told);
                let ep = door.next().await.unwrap().accept("").await.unwrap();
                receives(&ep, &lengths(way, kind.scheme), &what).await;
                assert!(peer.0.wait().unwrap().success(), "{what}");
            });
        }
    }
}

/// Plays the part of one whose only thread computes after its sends: nothing of it is polled.
pub(crate) async fn computes(told: &str) {
    let (kind, way, name) = parts(told);
    let ep = kind.bind().await;
    let peer = ep.lookup(name).await.expect("the survivor is there");
    send(&ep, peer, way, &lengths(way, kind.scheme)).await;
    // Without an await: the runtime does nothing else, for as long as the parent likes.
    wait_for_parent();
    std::process::exit(0);
}

#[test]
fn sends_that_have_ended_arrive_while_their_task_computes() {
    for (number, kind) in Kind::here() {
        for way in ["awaited", "joined", "posted"] {
            run(async {
                let ep = kind.bind().await;
                let what = format!("{kind:?} {way}");
                let name = ep.name().to_string();
                let mut peer = Peer::start("computes", &Kind::told(number, way, &name));
                receives(&ep, &lengths(way, kind.scheme), &what).await;
                // Only now: before that it has done nothing since its last send.
                peer.goes_on();
                assert!(peer.0.wait().unwrap().success(), "{what}");
            });
        }
    }
}

/// A flush waits for what has no credit yet, and for a connection; it ends, too, when operations
/// fail.
#[test]
fn a_flush_ends_when_its_operations_have() {
    for (_, kind) in Kind::here() {
        run(async {
            let (a, b) = (kind.bind().await, kind.bind().await);
            a.flush().await.unwrap();
            let to_b = a.address_vector().insert(b.name()).unwrap();
            // There is no connection yet, and b receives nothing yet: the messages wait.
            let sent = (0..4).map(|number| a.send(to_b, content(number, 100)).start().unwrap());
            let sent: Vec<_> = sent.collect();
            let domain = a.domain();
            let flushed = async { tokio::join!(a.flush(), domain.flush()) };
            let received = async {
                for number in 0..4 {
                    assert_eq!(b.recv().await.unwrap()[..], content(number, 100));
                }
            };
            let ((one, all), ()) = tokio::join!(flushed, received);
            assert_eq!((one, all), (Ok(()), Ok(())));
            for sent in sent {
                sent.await.unwrap();
            }
            // What ends as cancelled is not waited for, nor is a flush that was dropped.
            drop(a.flush());
            let closing = a.clone();
            closing.close().unwrap();
            assert!(matches!(a.flush().await, Err(Error::Closed(_))));
            assert_eq!(a.domain().flush().await, Ok(()));
        });
    }
}
