//! The bytes of a completed send are in the kernel or at the peer. They arrive even if the process
//! exits, or computes without polling, right after the completion.

use fabric_async::ops::{RecvOp, SendOp};
use fabric_async::{
    CompletionQueue, ConnectedEndpoint, Domain, Endpoint, Error, FiAddr, PassiveEndpoint,
    PooledBuf, Protocol, Request, Result, SocketIo, SocketOptions,
};

use crate::domain_mode::DomainMode;
use crate::run;
use crate::skip::{Facility, skip};
use crate::test_peer::{TestPeer, wait_for_parent};

/// Messages of one sender.
const MESSAGES: usize = 10;
/// Together more bytes than socket buffers of `SOCKET_BUFFER` bytes hold.
const LONG_LEN: usize = 10_000;
const LONG_MESSAGES: usize = 100;
const SOCKET_BUFFER: usize = 1 << 13;

/// The ways in which a sender posts its messages and waits for them.
const SEND_MODES: [&str; 7] = [
    "awaited", "joined", "many", "posted", "injected", "batched", "started",
];

/// A transport and its options, for both endpoints of a test.
#[derive(Clone, Copy, Debug)]
struct TransportCase {
    scheme: &'static str,
    protocol: Option<Protocol>,
    io: SocketIo,
    mode: DomainMode,
}

impl TransportCase {
    /// Returns all cases.
    fn all() -> Vec<Self> {
        let mut cases = Vec::new();
        for mode in DomainMode::ALL {
            for io in [SocketIo::Epoll, SocketIo::IoUring] {
                for protocol in [Protocol::Tcp, Protocol::Rxm] {
                    let (scheme, protocol) = ("tcp://", Some(protocol));
                    cases.push(Self {
                        scheme,
                        protocol,
                        io,
                        mode,
                    });
                }
            }
            for scheme in ["udp://127.0.0.1:0", "shm://"] {
                let (protocol, io) = (None, SocketIo::Epoll);
                cases.push(Self {
                    scheme,
                    protocol,
                    io,
                    mode,
                });
            }
        }
        cases
    }

    /// Returns the cases that this machine supports, with their positions in [`all`](Self::all).
    fn available() -> Vec<(usize, Self)> {
        let mut cases: Vec<_> = Self::all().into_iter().enumerate().collect();
        let ring = Endpoint::options().socket_io(SocketIo::IoUring);
        if let Err(error) = run(ring.bind("tcp://")) {
            skip(Facility::Uring, format!("bind over io_uring: {error}"));
            cases.retain(|(_, case)| case.io != SocketIo::IoUring);
        }
        cases
    }

    async fn bind(self) -> Endpoint {
        let sockets = SocketOptions::new()
            .send_buffer(SOCKET_BUFFER)
            .receive_buffer(SOCKET_BUFFER);
        let mut options = self
            .mode
            .options()
            .socket_options(sockets)
            .socket_io(self.io);
        if let Some(protocol) = self.protocol {
            options = options.protocol(protocol);
        }
        options.bind(self.scheme).await.expect("bind")
    }

    /// Returns the argument of a peer's role: the position in [`all`](Self::all), the mode, and the
    /// name of this process's endpoint.
    fn role_argument(number: usize, mode: &str, name: &str) -> String {
        format!("{number} {mode} {name}")
    }
}

fn message_content(number: usize, len: usize) -> Vec<u8> {
    vec![number as u8; len]
}

/// Returns the lengths of the messages of a sender.
fn message_lens(mode: &str, scheme: &str) -> Vec<usize> {
    match mode {
        "many" => vec![LONG_LEN; LONG_MESSAGES],
        // One message is long enough to be sent without a copy.
        "awaited" if scheme == "tcp://" => {
            (0..MESSAGES).map(|at| [8, 100, 40_000][at % 3]).collect()
        }
        _ => (0..MESSAGES).map(|at| [8, 100, 1000][at % 3]).collect(),
    }
}

/// Sends to the endpoint in `argument`, and exits as soon as the sends have completed.
pub(crate) async fn send_and_exit(argument: &str) {
    let (case, mode, name) = parse_role_argument(argument);
    let ep = case.bind().await;
    let peer = ep.add_peer(name).await.expect("add_peer");
    let sender = Sender::Rdm(ep, peer);
    send_all(&sender, mode, &message_lens(mode, case.scheme)).await;
    std::process::exit(0);
}

/// Connects to the endpoint in `argument`, sends, and exits as soon as the sends have completed.
pub(crate) async fn connect_send_and_exit(argument: &str) {
    let (case, mode, name) = parse_role_argument(argument);
    let ep = case
        .mode
        .options()
        .socket_options(SocketOptions::new().send_buffer(SOCKET_BUFFER))
        .socket_io(case.io)
        .connect(name)
        .await
        .expect("connect");
    send_all(&Sender::Msg(ep), mode, &message_lens(mode, case.scheme)).await;
    std::process::exit(0);
}

fn parse_role_argument(argument: &str) -> (TransportCase, &str, &str) {
    let mut parts = argument.splitn(3, ' ');
    let number: usize = parts.next().expect("a case").parse().expect("a number");
    let (mode, name) = (parts.next().expect("a mode"), parts.next().expect("a name"));
    (TransportCase::all()[number], mode, name)
}

/// An endpoint with the peer it sends to.
enum Sender {
    Rdm(Endpoint, FiAddr),
    Msg(ConnectedEndpoint),
}

impl Sender {
    fn send(&self, message: Vec<u8>) -> Request<'_, SendOp, Vec<u8>> {
        match self {
            Self::Rdm(ep, peer) => ep.send(*peer, message),
            Self::Msg(ep) => ep.send(message),
        }
    }

    fn inject(&self, message: &[u8]) -> Result<()> {
        match self {
            Self::Rdm(ep, peer) => ep.send(*peer, message).inject(),
            Self::Msg(ep) => ep.send(message).inject(),
        }
    }

    /// Posts the messages together. Returns their number.
    fn post_all(&self, messages: impl Iterator<Item = Vec<u8>>) -> Result<usize> {
        let requests = messages.map(|message| self.send(message));
        Ok(match self {
            Self::Rdm(ep, _) => ep.post_all(requests)?,
            Self::Msg(ep) => ep.post_all(requests)?,
        })
    }

    async fn flush(&self) -> Result<()> {
        match self {
            Self::Rdm(ep, _) => ep.flush().await,
            Self::Msg(ep) => ep.flush().await,
        }
    }

    fn domain(&self) -> &Domain {
        match self {
            Self::Rdm(ep, _) => ep.domain(),
            Self::Msg(ep) => ep.domain(),
        }
    }

    fn take_completions(&self) -> Option<CompletionQueue> {
        match self {
            Self::Rdm(ep, _) => ep.take_completions(),
            Self::Msg(ep) => ep.take_completions(),
        }
    }
}

/// Sends messages of these lengths, and waits until they have completed.
async fn send_all(ep: &Sender, mode: &str, lengths: &[usize]) {
    let messages = lengths.iter().enumerate();
    let messages = messages.map(|(number, len)| message_content(number, *len));
    match mode {
        "awaited" | "many" => {
            for message in messages {
                ep.send(message).await.expect("send");
            }
        }
        "joined" => {
            let posted = messages.map(|message| ep.send(message).start().expect("transmit credit"));
            let posted: Vec<_> = posted.collect();
            for sent in posted {
                sent.await.expect("send");
            }
        }
        "posted" => {
            messages.for_each(|message| ep.send(message).post().expect("transmit credit"));
            ep.flush().await.expect("flush of the endpoint");
        }
        "injected" => {
            messages.for_each(|message| ep.inject(&message).expect("transmit credit"));
            ep.domain().flush().await.expect("flush of the domain");
        }
        "batched" => {
            assert_eq!(
                ep.post_all(messages).expect("transmit credit"),
                lengths.len()
            );
            let mut queue = ep.take_completions().expect("a completion queue");
            let mut ended = Vec::new();
            while ended.len() < lengths.len() {
                queue.read_batch(&mut ended, lengths.len()).await;
            }
            assert!(ended.iter().all(|ended| ended.error.is_none()));
        }
        "started" => {
            messages.for_each(|message| drop(ep.send(message).start().expect("transmit credit")));
            ep.flush().await.expect("flush of the endpoint");
        }
        other => panic!("unknown mode {other}"),
    }
}

/// Receives all messages of a sender, and checks their order.
async fn assert_all_received<'a>(
    recv: impl Fn() -> Request<'a, RecvOp, PooledBuf>,
    lengths: &[usize],
    what: &str,
) {
    for (number, len) in lengths.iter().enumerate() {
        let got = recv().await.expect(what);
        assert_eq!(
            got[..],
            message_content(number, *len),
            "{what}: message {number}"
        );
    }
}

#[test]
fn completed_sends_arrive_after_process_exit() {
    for (number, case) in TransportCase::available() {
        for mode in SEND_MODES {
            if mode == "many" && case.scheme != "tcp://" {
                // A receiver with full buffers drops datagrams, and over shared memory no kernel
                // buffers lie in between.
                continue;
            }
            run(async {
                let ep = case.bind().await;
                let what = format!("{case:?} {mode}");
                let name = ep.name().to_string();
                let mut peer = TestPeer::start(
                    "send_and_exit",
                    &TransportCase::role_argument(number, mode, &name),
                );
                assert_all_received(|| ep.recv(), &message_lens(mode, case.scheme), &what).await;
                assert!(peer.0.wait().unwrap().success(), "{what}");
            });
        }
    }
}

#[test]
fn completed_msg_sends_arrive_after_process_exit() {
    for (number, case) in TransportCase::available() {
        if case.protocol != Some(Protocol::Tcp) {
            continue;
        }
        for mode in SEND_MODES {
            run(async {
                let mut listener = PassiveEndpoint::bind("tcp://").await.unwrap();
                let what = format!("connected, {case:?} {mode}");
                let argument =
                    TransportCase::role_argument(number, mode, &listener.name().to_string());
                let mut peer = TestPeer::start("connect_send_and_exit", &argument);
                let ep = listener.accept().await.unwrap().accept("").unwrap();
                assert_all_received(|| ep.recv(), &message_lens(mode, case.scheme), &what).await;
                assert!(peer.0.wait().unwrap().success(), "{what}");
            });
        }
    }
}

/// Sends to the endpoint in `argument`, and then blocks its only thread, so that nothing is polled.
pub(crate) async fn send_and_block(argument: &str) {
    let (case, mode, name) = parse_role_argument(argument);
    let ep = case.bind().await;
    let peer = ep.add_peer(name).await.expect("add_peer");
    let sender = Sender::Rdm(ep, peer);
    send_all(&sender, mode, &message_lens(mode, case.scheme)).await;
    // Blocks the runtime until the parent ends the wait.
    wait_for_parent();
    std::process::exit(0);
}

#[test]
fn completed_sends_arrive_while_the_sender_blocks() {
    for (number, case) in TransportCase::available() {
        for mode in ["awaited", "joined", "posted"] {
            run(async {
                let ep = case.bind().await;
                let what = format!("{case:?} {mode}");
                let name = ep.name().to_string();
                let mut peer = TestPeer::start(
                    "send_and_block",
                    &TransportCase::role_argument(number, mode, &name),
                );
                assert_all_received(|| ep.recv(), &message_lens(mode, case.scheme), &what).await;
                // The sender has polled nothing since its last send.
                peer.signal_start();
                assert!(peer.0.wait().unwrap().success(), "{what}");
            });
        }
    }
}

/// A flush waits for sends without credit and for the connection, and also completes when
/// operations fail.
#[test]
fn flush_waits_for_pending_sends_even_if_they_fail() {
    for (_, case) in TransportCase::available() {
        run(async {
            let (a, b) = (case.bind().await, case.bind().await);
            a.flush().await.unwrap();
            let to_b = a.address_vector().insert(b.name()).unwrap();
            // There is no connection yet and b has posted no receive, so the messages are queued.
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
            // A dropped flush and canceled operations do not delay another flush.
            drop(a.flush());
            let closing = a.clone();
            closing.close().unwrap();
            assert!(matches!(a.flush().await, Err(Error::Closed(_))));
            assert_eq!(a.domain().flush().await, Ok(()));
        });
    }
}
