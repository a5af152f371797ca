//! Two network namespaces that are joined by a veth pair, and the loss of the link.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{ChildStdout, Command, Output};
use std::time::Duration;

use fabric_async::{
    Access, Address, Endpoint, EpType, Error, Fabric, Hints, Info, OpKind, RemoteRegion,
    SocketOptions, discover,
};
use rustix::net::sockopt::{set_socket_linger, set_tcp_quickack};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::hostile::{encode_header, encode_request};
use crate::skip::{Facility, skip};
use crate::test_peer::TestPeer;

const FIRST_IP: &str = "10.231.97.1";
const SECOND_IP: &str = "10.231.97.2";
/// Bytes of the region.
const REGION_LEN: usize = 3_000_000;

/// Two network namespaces, each with one end of a veth pair; dropping this value deletes both.
struct VethPair([String; 2]);

fn run_ip(args: &str) -> std::io::Result<Output> {
    Command::new("ip")
        .args(args.split_ascii_whitespace())
        .output()
}

impl VethPair {
    /// Returns `None`, after recording a skip, where namespaces cannot be made: that takes root and
    /// `ip`.
    fn create(number: usize) -> Option<Self> {
        let name = |end| format!("fabric-{}-{number}{end}", std::process::id());
        let veth = Self([name("a"), name("b")]);
        let [a, b] = &veth.0;
        let steps = [
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("-n {a} link add veth0 type veth peer name veth0 netns {b}"),
            format!("-n {a} addr add {FIRST_IP}/24 dev veth0"),
            format!("-n {b} addr add {SECOND_IP}/24 dev veth0"),
            format!("-n {a} link set veth0 up"),
            format!("-n {b} link set veth0 up"),
        ];
        for step in steps {
            match run_ip(&step) {
                Ok(done) if done.status.success() => {}
                Ok(done) => {
                    let error = String::from_utf8_lossy(&done.stderr);
                    skip(Facility::Netns, format!("ip {step}: {}", error.trim()));
                    return None;
                }
                Err(error) => {
                    skip(Facility::Netns, format!("ip: {error}"));
                    return None;
                }
            }
        }
        Some(veth)
    }
}

impl Drop for VethPair {
    fn drop(&mut self) {
        for end in &self.0 {
            let _ = run_ip(&format!("netns del {end}"));
        }
    }
}

/// The standard output of a peer, line by line.
struct PeerOutput(BufReader<ChildStdout>);

impl PeerOutput {
    fn from_peer(peer: &mut TestPeer) -> Self {
        Self(BufReader::new(peer.0.stdout.take().expect("piped")))
    }

    /// Waits for a line that contains `text`, and skips lines of the peer's test harness.
    fn wait_for(&mut self, text: &str) {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert!(
                self.0.read_line(&mut line).expect("read the peer's output") > 0,
                "the peer ended before it printed {text:?}"
            );
        }
    }
}

/// Sends back every message to its source. A second word of `args` is the idle timeout in seconds.
pub(crate) async fn echo_any_peer(args: &str) {
    let (name, idle_timeout) = args.split_once(' ').unwrap_or((args, "30"));
    let idle_timeout = Duration::from_secs(idle_timeout.parse().expect("seconds"));
    let ep = Endpoint::options()
        .socket_options(SocketOptions::new().idle_timeout(idle_timeout))
        .bind(name)
        .await
        .expect("bind");
    println!("[ready]");
    loop {
        let message = ep.recv().await.expect("recv");
        let from = message.source().expect("source of the message");
        if ep.send(from, message.into_bytes()).await.is_err() {
            return;
        }
    }
}

/// Exchanges messages with an echo peer, and then waits until the idle timeout fails a receive.
pub(crate) async fn link_loss_client(names: &str) {
    let (name, echo_peer) = names.split_once(' ').expect("two names");
    let options = SocketOptions::new().idle_timeout(Duration::from_secs(4));
    let ep = Endpoint::options()
        .socket_options(options)
        .bind(name)
        .await
        .expect("bind");
    let peer = ep.add_peer(echo_peer).await.expect("add_peer");
    for round in 0..200usize {
        let message = vec![round as u8; [8, 1000, 5000, 200_000][round % 4]];
        let (sent, got) = tokio::join!(ep.send(peer, message.clone()), ep.recv());
        sent.expect("send");
        assert_eq!(got.expect("a reply")[..], message[..]);
    }
    println!("[connected]");
    let failed = ep.recv().from(peer).await.expect_err("the peer is gone");
    assert!(failed.error.is_peer_unavailable(), "{}", failed.error);
    println!("[gone]");
}

/// Loses its connection to an echo peer, which is not told, and connects again as the same endpoint
/// until the echo peer accepts. Nothing listens at the port of this endpoint, so no peer can
/// connect to it.
pub(crate) async fn lossy_client(names: &str) {
    let (name, echo_peer) = names.split_once(' ').expect("two names");
    let [from, to] = [name, echo_peer].map(|name| {
        let name: Address = name.parse().expect("a name");
        name.socket_addr().expect("a socket address")
    });
    let connect = async || {
        let socket = TcpSocket::new_v4().expect("socket");
        socket.bind(SocketAddr::new(from.ip(), 0)).expect("bind");
        let mut socket = socket.connect(to).await.expect("connect");
        let request = encode_request(from.port(), 7);
        socket.write_all(&request).await.expect("write");
        let mut response = [0; 40];
        socket.read_exact(&mut response).await.expect("read");
        (socket, response[1] == 1)
    };
    let exchange = async |socket: &mut TcpStream| {
        let message = [&encode_header(0, 0, 0, 16, 21)[..], b"hello"].concat();
        socket.write_all(&message).await.expect("write");
        let mut reply = [0; 21];
        socket.read_exact(&mut reply).await.expect("read");
        assert_eq!(reply[16..], *b"hello");
    };
    let (mut first, is_accepted) = connect().await;
    assert!(is_accepted);
    exchange(&mut first).await;
    let set_link = |state| {
        let done = run_ip(&format!("link set veth0 {state}")).expect("start ip");
        assert!(done.status.success(), "{done:?}");
    };
    // The reply is acknowledged at once, so the echo peer retransmits nothing.
    set_tcp_quickack(&first, true).expect("setsockopt");
    set_link("down");
    // The reset does not leave the machine.
    set_socket_linger(&first, Some(Duration::ZERO)).expect("setsockopt");
    drop(first);
    set_link("up");
    let mut rejected = 0;
    let mut again = loop {
        match connect().await {
            (socket, true) => break socket,
            (_, false) => rejected += 1,
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert!(rejected > 0, "the echo peer does not know of the loss");
    exchange(&mut again).await;
    println!("[reconnected]");
}

/// Grants access to a region, and waits for the completion of a write with data.
pub(crate) async fn rma_owner(name: &str) {
    let ep = Endpoint::bind(name).await.expect("bind");
    let mut completions = ep.take_completions().expect("a completion queue");
    let region = ep
        .domain()
        .alloc(REGION_LEN, Access::REMOTE_READ | Access::REMOTE_WRITE)
        .expect("allocate a region");
    println!("[ready]");
    let requester = ep
        .recv()
        .await
        .expect("recv")
        .source()
        .expect("source of the message");
    ep.send(requester, region.remote().to_bytes().to_vec())
        .await
        .expect("send");
    let mut out = Vec::new();
    completions.read_batch(&mut out, 1).await;
    assert_eq!(
        (out[0].kind, out[0].transfer.data, out[0].transfer.len),
        (OpKind::RemoteWrite, Some(77), REGION_LEN)
    );
    let mut written = vec![0; REGION_LEN];
    region.read(0, &mut written).expect("read the region");
    assert!(written == pattern(2), "the second pattern");
    ep.send(requester, "written").await.expect("send");
    let last = ep
        .recv()
        .from(requester)
        .await
        .expect_err("the peer is gone");
    assert!(last.error.is_peer_unavailable(), "{}", last.error);
}

/// Reads and writes the region at the other end of the link.
pub(crate) async fn rma_client(names: &str) {
    let (name, owner) = names.split_once(' ').expect("two names");
    let ep = Endpoint::bind(name).await.expect("bind");
    let peer = ep.add_peer(owner).await.expect("add_peer");
    ep.send(peer, "send me a region").await.expect("send");
    let remote = RemoteRegion::from_bytes(&ep.recv().await.expect("a reply")).expect("a region");
    ep.write(peer, remote.at(0), pattern(1))
        .await
        .expect("write");
    assert!(ep.read(peer, remote.slice(..)).await.expect("read")[..] == pattern(1)[..]);
    let segments = [
        remote.slice(..10),
        remote.slice(1_000_000..2_000_000),
        remote.slice(20..30),
    ];
    let read = ep.read(peer, segments).await.expect("read_rma_iov");
    assert!(
        read[..10] == pattern(1)[..10] && read[10..1_000_010] == pattern(1)[1_000_000..2_000_000]
    );
    assert_eq!(
        ep.fetch_add(peer, remote.at(0), 1u8).await,
        Ok(pattern(1)[0])
    );
    ep.write(peer, remote.at(0), pattern(2))
        .data(77)
        .await
        .expect("write");
    assert_eq!(&ep.recv().await.expect("a message")[..], b"written");
    println!("[written]");
}

/// Runs `ip` in the network namespace of this process.
fn change_network(args: &str) {
    let done = run_ip(args).expect("start ip");
    assert!(done.status.success(), "ip {args}: {done:?}");
}

/// Discovers a network, which then vanishes in two steps: its address is replaced, its interface is
/// deleted. Each later creation fails with an error that names what is missing.
pub(crate) async fn vanished_network_client(address: &str) {
    let hints = |ep_type| {
        Hints::new()
            .provider("tcp")
            .ep_type(ep_type)
            .domain_name("veth0")
    };
    let find = |ep_type| -> Info { discover(&hints(ep_type)).expect("veth0").swap_remove(0) };
    let (info, msg_info) = (find(EpType::Rdm), find(EpType::Msg));
    let fabric = Fabric::open(&info).expect("fabric");
    let domain = fabric.domain(&info).expect("domain");
    let av = domain.address_vector().expect("address vector");
    let builder = || domain.endpoint(&info)?.bind_av(&av);
    let udp_name = format!("udp://{address}:0");
    let open_all = || {
        [
            ("domain", fabric.domain(&info).map(drop)),
            ("endpoint", builder().map(drop)),
            (
                "passive endpoint",
                fabric.passive_endpoint(&msg_info).map(drop),
            ),
        ]
    };
    for (object, opened) in open_all() {
        assert_eq!(opened, Ok(()), "{object}");
    }
    let early = [builder().expect("builder"), builder().expect("builder")];
    let early_pep = fabric.passive_endpoint(&msg_info).expect("builder");
    let assert_not_local = |result: Result<(), Error>| {
        let is_named = |at: &Address| at.to_string().contains(address);
        let error = result.expect_err("the address has vanished");
        assert!(
            matches!(&error, Error::AddressNotLocal(at) if is_named(at)),
            "{error}"
        );
    };
    let mut early = early.into_iter();
    let replaced = format!("{address}00");
    for (changes, missing) in [
        (
            vec![
                format!("addr del {address}/24 dev veth0"),
                format!("addr add {replaced}/24 dev veth0"),
            ],
            address,
        ),
        (vec!["link del veth0".into()], "10.231.97.0/24"),
    ] {
        changes.iter().for_each(|change| change_network(change));
        for (object, opened) in open_all() {
            let error = opened.expect_err(object);
            assert!(matches!(error, Error::NoMatch(_)), "{object}: {error}");
            assert!(error.to_string().contains(missing), "{object}: {error}");
        }
        // What was checked before the change is refused by the kernel.
        assert_not_local(
            early
                .next()
                .expect("one for each change")
                .enable()
                .map(drop),
        );
        assert_not_local(Endpoint::bind(&udp_name).await.map(drop));
        assert_not_local(Endpoint::bind(format!("tcp://{address}:0")).await.map(drop));
    }
    let error = early_pep
        .listen()
        .map(drop)
        .expect_err("the network has vanished");
    assert!(error.to_string().contains("10.231.97.0/24"), "{error}");
    assert_eq!(
        domain.children().total(),
        1,
        "nothing but the vector is open"
    );
    println!("[refused]");
}

#[test]
fn vanished_network_is_refused_at_creation() {
    let Some(veth) = VethPair::create(20) else {
        return;
    };
    let [_, b] = &veth.0;
    let mut client = TestPeer::start_in_netns(b, "tcp vanished_network_client", SECOND_IP);
    let mut output = PeerOutput::from_peer(&mut client);
    output.wait_for("[refused]");
    assert!(client.0.wait().expect("wait for the process").success());
}

fn pattern(which: usize) -> Vec<u8> {
    (0..REGION_LEN)
        .map(|at| (at * which + at / 251) as u8)
        .collect()
}

#[test]
fn rma_works_across_network_namespaces() {
    let Some(veth) = VethPair::create(9) else {
        return;
    };
    let [a, b] = &veth.0;
    let name = format!("tcp://{FIRST_IP}:7000");
    let mut owner = TestPeer::start_in_netns(a, "tcp rma_owner", &name);
    // The pipes must be read, so that the peers can print.
    let mut owner_output = PeerOutput::from_peer(&mut owner);
    owner_output.wait_for("[ready]");
    let mut client =
        TestPeer::start_in_netns(b, "tcp rma_client", &format!("tcp://{SECOND_IP}:0 {name}"));
    let mut client_output = PeerOutput::from_peer(&mut client);
    client_output.wait_for("[written]");
    assert!(client.0.wait().expect("wait for the process").success());
    assert!(owner.0.wait().expect("wait for the process").success());
}

/// The kernel of a peer that has lost its connection resets the connection when it is probed.
#[test]
fn peer_that_lost_its_connection_reconnects_before_the_idle_timeout() {
    let Some(veth) = VethPair::create(3) else {
        return;
    };
    let [a, b] = &veth.0;
    let name = format!("tcp://{FIRST_IP}:7000");
    let mut echo_peer = TestPeer::start_in_netns(a, "tcp echo_any_peer", &format!("{name} 1000"));
    PeerOutput::from_peer(&mut echo_peer).wait_for("[ready]");
    let names = format!("tcp://{SECOND_IP}:7000 {name}");
    let mut client = TestPeer::start_in_netns(b, "tcp lossy_client", &names);
    let mut output = PeerOutput::from_peer(&mut client);
    output.wait_for("[reconnected]");
    assert!(client.0.wait().expect("wait for the process").success());
}

/// No kernel reports the loss of the link, so only the idle timeout detects it.
#[test]
fn link_loss_is_detected_by_idle_timeout() {
    for (number, cut) in ["link set veth0 down", "link del veth0"]
        .into_iter()
        .enumerate()
    {
        let Some(veth) = VethPair::create(number) else {
            return;
        };
        let [a, b] = &veth.0;
        let name = format!("tcp://{FIRST_IP}:7000");
        let mut echo_peer = TestPeer::start_in_netns(a, "tcp echo_any_peer", &name);
        PeerOutput::from_peer(&mut echo_peer).wait_for("[ready]");
        let mut client = TestPeer::start_in_netns(
            b,
            "tcp link_loss_client",
            &format!("tcp://{SECOND_IP}:0 {name}"),
        );
        let mut output = PeerOutput::from_peer(&mut client);
        output.wait_for("[connected]");
        let cut_output = run_ip(&format!("-n {a} {cut}")).expect("start ip");
        assert!(
            cut_output.status.success(),
            "{}",
            String::from_utf8_lossy(&cut_output.stderr)
        );
        output.wait_for("[gone]");
        assert!(client.0.wait().expect("wait for the process").success());
    }
}
