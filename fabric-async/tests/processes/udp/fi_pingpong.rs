//! libfabric's `fi_pingpong` as a peer, in either role. The two sides also have a TCP connection,
//! over which they exchange addresses, the start, and the number of messages.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fabric_async::{Address, Endpoint, FiAddr, Progress};

use crate::run;
use crate::skip::{Facility, skip};
use crate::test_peer::{TestPeer, unassigned_port};

/// Messages of each length.
const ROUNDS: u64 = 10;
/// The libfabric address format `FI_SOCKADDR_IN`.
const FI_SOCKADDR_IN: u32 = 2;

/// Starts fi_pingpong on the loopback interface; `None`, after recording a skip, where it is not
/// installed.
fn start_fi_pingpong(args: &[&str]) -> Option<TestPeer> {
    let mut command = Command::new("fi_pingpong");
    command
        .args([
            "-p",
            "udp",
            "-e",
            "dgram",
            "-d",
            "lo",
            "-c",
            "-S",
            "all",
            "-I",
            &ROUNDS.to_string(),
        ])
        .args(args);
    match command.stdout(Stdio::null()).stdin(Stdio::null()).spawn() {
        Ok(child) => Some(TestPeer(child)),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            skip(
                Facility::Interop,
                "fi_pingpong is not installed (Debian: libfabric-bin)",
            );
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Returns the lengths that fi_pingpong uses: 0, 1, powers of two, and the means of two neighbours.
fn message_sizes(limit: usize) -> impl Iterator<Item = usize> {
    let powers = (1..usize::BITS).flat_map(|power| [1 << power, 3 << (power - 1)]);
    [0, 1]
        .into_iter()
        .chain(powers)
        .take_while(move |len| *len <= limit)
}

/// Returns the content of a message: an alphabet whose first letter depends on the number.
fn message_pattern(number: u64, len: usize) -> Vec<u8> {
    let alphabet = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let start = (number * 7) as usize % alphabet.len();
    alphabet
        .iter()
        .copied()
        .cycle()
        .skip(start)
        .take(len)
        .collect()
}

/// The TCP connection to fi_pingpong.
struct ControlConnection(TcpStream);

impl ControlConnection {
    fn new(stream: TcpStream) -> Self {
        // Detects hangs.
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        Self(stream)
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    fn recv<const LEN: usize>(&mut self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn send_address(&mut self, name: &Address) {
        let Some(SocketAddr::V4(at)) = name.socket_addr() else {
            panic!("{name} is no IPv4 address")
        };
        let mut bytes = 16u32.to_be_bytes().to_vec();
        bytes.extend(FI_SOCKADDR_IN.to_ne_bytes());
        bytes.extend(2u16.to_ne_bytes());
        bytes.extend(at.port().to_be_bytes());
        bytes.extend(at.ip().octets());
        bytes.extend([0; 8]);
        self.send(&bytes);
    }

    fn recv_address(&mut self) -> String {
        let head = self.recv::<8>();
        assert_eq!(head[..4], 16u32.to_be_bytes());
        assert_eq!(head[4..], FI_SOCKADDR_IN.to_ne_bytes());
        let name = self.recv::<16>();
        let ip = Ipv4Addr::new(name[4], name[5], name[6], name[7]);
        format!(
            "fi_sockaddr_in://{}",
            SocketAddrV4::new(ip, u16::from_be_bytes([name[2], name[3]]))
        )
    }
}

/// One side of the exchange.
struct PingPongSide {
    ep: Endpoint,
    peer: FiAddr,
    sent: u64,
    received: u64,
}

impl PingPongSide {
    async fn send(&mut self, len: usize) {
        self.ep
            .send(self.peer, message_pattern(self.sent, len))
            .await
            .unwrap();
        self.sent += 1;
    }

    async fn receive(&mut self, len: usize) {
        let got = self.ep.recv().await.unwrap();
        assert_eq!(got.source(), Ok(self.peer));
        assert_eq!(
            got[..],
            message_pattern(self.received, len),
            "message {} of {len} bytes",
            self.received
        );
        self.received += 1;
    }

    async fn finish(self, mut program: TestPeer) {
        self.ep.send(self.peer, "fin\0").await.unwrap();
        assert_eq!(&self.ep.recv().await.unwrap()[..], b"fin\0");
        assert!(exited_successfully(&mut program.0), "fi_pingpong failed");
        assert_eq!(
            (self.sent, self.ep.stats().failed, self.ep.stats().dropped),
            (self.received, 0, 0)
        );
    }
}

fn exited_successfully(program: &mut Child) -> bool {
    program.wait().unwrap().success()
}

async fn bind_endpoint(progress: Progress) -> Endpoint {
    Endpoint::options()
        .progress(progress)
        .bind("udp://127.0.0.1:0")
        .await
        .unwrap()
}

#[test]
fn fi_pingpong_client_completes() {
    for progress in [Progress::Manual, Progress::Auto] {
        run(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port().to_string();
            let Some(program) = start_fi_pingpong(&["-P", &port, "127.0.0.1"]) else {
                return;
            };
            let mut control = ControlConnection::new(listener.accept().unwrap().0);
            let ep = bind_endpoint(progress).await;
            control.send_address(ep.name());
            let peer = ep.add_peer(control.recv_address()).await.unwrap();
            let limit = ep.info().ep.max_msg_size;
            let mut side = PingPongSide {
                ep,
                peer,
                sent: 0,
                received: 0,
            };
            for len in message_sizes(limit) {
                assert_eq!(&control.recv(), b"q\0");
                control.send(b"a\0");
                for _ in 0..ROUNDS {
                    side.receive(len).await;
                    side.send(len).await;
                }
                assert_eq!(&control.recv(), b"10\0\0\0\0\0\0\0\0");
                control.send(b"cnt ok\0");
            }
            side.finish(program).await;
        });
    }
}

#[test]
fn fi_pingpong_server_completes() {
    for progress in [Progress::Manual, Progress::Auto] {
        run(async {
            let port = unassigned_port();
            let Some(mut program) = start_fi_pingpong(&["-B", &port.to_string()]) else {
                return;
            };
            let mut control = loop {
                match TcpStream::connect(("127.0.0.1", port)) {
                    Ok(stream) => break ControlConnection::new(stream),
                    Err(_) => assert!(
                        program.0.try_wait().unwrap().is_none(),
                        "fi_pingpong ended before it listened"
                    ),
                }
                tokio::task::yield_now().await;
            };
            let name = control.recv_address();
            let ep = bind_endpoint(progress).await;
            let peer = ep.add_peer(name).await.unwrap();
            control.send_address(ep.name());
            let limit = ep.info().ep.max_msg_size;
            let mut side = PingPongSide {
                ep,
                peer,
                sent: 0,
                received: 0,
            };
            for len in message_sizes(limit) {
                control.send(b"q\0");
                assert_eq!(&control.recv(), b"a\0");
                for _ in 0..ROUNDS {
                    side.send(len).await;
                    side.receive(len).await;
                }
                control.send(b"10\0\0\0\0\0\0\0\0");
                assert_eq!(&control.recv(), b"cnt ok\0");
            }
            side.finish(program).await;
        });
    }
}
