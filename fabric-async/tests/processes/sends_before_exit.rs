//! A send that has ended has left its process: it is in the kernel's or in the peer's hands, and
//! arrives though the process ends, or computes, right afterwards.

use fabric_async::{
    Endpoint, Error, FiAddr, PassiveEndpoint, Progress, Protocol, SocketIo, SocketOptions,
};

use crate::run;
use crate::skip::{Facility, skip};
use crate::test_peer::{TestPeer, wait_for_parent};

/// Messages of a sender.
const MESSAGES: usize = 10;
/// Much more than sockets with so small buffers take at once.
const LONG_LEN: usize = 10_000;
const LONG_MESSAGES: usize = 100;
const SOCKET_BUFFER: usize = 1 << 13;

/// What a sender does between its last send and its end.
const SEND_MODES: [&str; 7] = [
    "awaited", "joined", "many", "posted", "injected", "batched", "started",
];

/// How endpoints of a test speak.
#[derive(Clone, Copy, Debug)]
struct TransportCase {
    scheme: &'static str,
    protocol: Option<Protocol>,
    io: SocketIo,
    progress: Progress,
}

impl TransportCase {
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
    fn available() -> Vec<(usize, Self)> {
        let mut kinds: Vec<_> = Self::all().into_iter().enumerate().collect();
        let ring = Endpoint::options().socket_io(SocketIo::IoUring);
        if let Err(error) = run(ring.bind("tcp://")) {
            skip(Facility::Uring, format!("bind over io_uring: {error}"));
            kinds.retain(|(_, kind)| kind.io != SocketIo::IoUring);
        }
        kinds
    }

    async fn bind(self) -> Endpoint {
        let sockets = SocketOptions::new()
            .send_buffer(SOCKET_BUFFER)
            .receive_buffer(SOCKET_BUFFER);
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
    fn role_argument(number: usize, way: &str, name: &str) -> String {
        format!("{number} {way} {name}")
    }
}

fn message_content(number: usize, len: usize) -> Vec<u8> {
    vec![number as u8; len]
}

/// Lengths of the messages of a sender.
fn message_lens(way: &str, scheme: &str) -> Vec<usize> {
    match way {
        "many" => vec![LONG_LEN; LONG_MESSAGES],
        // One of them is long, and leaves from where it lies.
        "awaited" if scheme == "tcp://" => {
            (0..MESSAGES).map(|at| [8, 100, 40_000][at % 3]).collect()
        }
        _ => (0..MESSAGES).map(|at| [8, 100, 1000][at % 3]).collect(),
    }
}

/// Plays the part of one that sends, and ends its process at once. What it is told is a kind, a way
/// and a name.
pub(crate) async fn send_and_exit(told: &str) {
    let (kind, way, name) = parse_role_argument(told);
    let ep = kind.bind().await;
    let peer = ep.add_peer(name).await.expect("the survivor is there");
    send_all(&ep, peer, way, &message_lens(way, kind.scheme)).await;
    std::process::exit(0);
}

/// Plays the part of one that is connected, sends, and ends its process at once.
pub(crate) async fn connect_send_and_exit(told: &str) {
    let (kind, way, name) = parse_role_argument(told);
    let ep = Endpoint::options()
        .progress(kind.progress)
        .socket_options(SocketOptions::new().send_buffer(SOCKET_BUFFER))
        .socket_io(kind.io)
        .connect(name)
        .await
        .expect("the survivor is there");
    let peer = ep.peer().expect("it is connected");
    send_all(&ep, peer, way, &message_lens(way, kind.scheme)).await;
    std::process::exit(0);
}

fn parse_role_argument(told: &str) -> (TransportCase, &str, &str) {
    let mut parts = told.splitn(3, ' ');
    let number: usize = parts.next().expect("a kind").parse().expect("a number");
    let (way, name) = (parts.next().expect("a way"), parts.next().expect("a name"));
    (TransportCase::all()[number], way, name)
}

/// Sends messages of these lengths, and waits until they have left.
async fn send_all(ep: &Endpoint, peer: FiAddr, way: &str, lengths: &[usize]) {
    let messages = lengths.iter().enumerate();
    let messages = messages.map(|(number, len)| message_content(number, *len));
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
async fn assert_all_received(ep: &Endpoint, lengths: &[usize], what: &str) {
    for (number, len) in lengths.iter().enumerate() {
        let got = ep.recv().await.expect(what);
        assert_eq!(
            got[..],
            message_content(number, *len),
            "{what}: message {number}"
        );
    }
}

#[test]
fn completed_sends_arrive_after_process_exit() {
    for (number, kind) in TransportCase::available() {
        for way in SEND_MODES {
            if way == "many" && kind.scheme != "tcp://" {
                // Datagrams that find no room at their receiver are lost, and shared memory knows
                // no kernel in between.
                continue;
            }
            run(async {
                let ep = kind.bind().await;
                let what = format!("{kind:?} {way}");
                let name = ep.name().to_string();
                let mut peer = TestPeer::start(
                    "send_and_exit",
                    &TransportCase::role_argument(number, way, &name),
                );
                assert_all_received(&ep, &message_lens(way, kind.scheme), &what).await;
                assert!(peer.0.wait().unwrap().success(), "{what}");
            });
        }
    }
}

#[test]
fn completed_msg_sends_arrive_after_process_exit() {
    for (number, kind) in TransportCase::available() {
        if kind.protocol != Some(Protocol::Tcp) {
            continue;
        }
        for way in SEND_MODES {
            run(async {
                let mut door = PassiveEndpoint::bind("tcp://").await.unwrap();
                let what = format!("connected, {kind:?} {way}");
                let told = TransportCase::role_argument(number, way, &door.name().to_string());
                let mut peer = TestPeer::start("connect_send_and_exit", &told);
                let ep = door.next().await.unwrap().accept("").await.unwrap();
                assert_all_received(&ep, &message_lens(way, kind.scheme), &what).await;
                assert!(peer.0.wait().unwrap().success(), "{what}");
            });
        }
    }
}

/// Plays the part of one whose only thread computes after its sends: nothing of it is polled.
pub(crate) async fn send_and_block(told: &str) {
    let (kind, way, name) = parse_role_argument(told);
    let ep = kind.bind().await;
    let peer = ep.add_peer(name).await.expect("the survivor is there");
    send_all(&ep, peer, way, &message_lens(way, kind.scheme)).await;
    // Without an await: the runtime does nothing else, for as long as the parent likes.
    wait_for_parent();
    std::process::exit(0);
}

#[test]
fn completed_sends_arrive_while_the_sender_blocks() {
    for (number, kind) in TransportCase::available() {
        for way in ["awaited", "joined", "posted"] {
            run(async {
                let ep = kind.bind().await;
                let what = format!("{kind:?} {way}");
                let name = ep.name().to_string();
                let mut peer = TestPeer::start(
                    "send_and_block",
                    &TransportCase::role_argument(number, way, &name),
                );
                assert_all_received(&ep, &message_lens(way, kind.scheme), &what).await;
                // Only now: before that it has done nothing since its last send.
                peer.signal_start();
                assert!(peer.0.wait().unwrap().success(), "{what}");
            });
        }
    }
}

/// A flush waits for what has no credit yet, and for a connection; it ends, too, when operations
/// fail.
#[test]
fn flush_completes_with_its_operations() {
    for (_, kind) in TransportCase::available() {
        run(async {
            let (a, b) = (kind.bind().await, kind.bind().await);
            a.flush().await.unwrap();
            let to_b = a.address_vector().insert(b.name()).unwrap();
            // There is no connection yet, and b receives nothing yet: the messages wait.
            let sent =
                (0..4).map(|number| a.send(to_b, message_content(number, 100)).start().unwrap());
            let sent: Vec<_> = sent.collect();
            let domain = a.domain();
            let flushed = async { tokio::join!(a.flush(), domain.flush()) };
            let received = async {
                for number in 0..4 {
                    assert_eq!(b.recv().await.unwrap()[..], message_content(number, 100));
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
