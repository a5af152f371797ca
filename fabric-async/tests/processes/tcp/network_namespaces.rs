//! Two networks joined by a cable, which is pulled.

use std::io::{BufRead, BufReader};
use std::process::{ChildStdout, Command, Output};
use std::time::Duration;

use fabric_async::{Access, Endpoint, OpKind, RemoteRegion, SocketOptions};

use crate::skip::{Facility, skip};
use crate::test_peer::TestPeer;

const FIRST_IP: &str = "10.231.97.1";
const SECOND_IP: &str = "10.231.97.2";
/// Bytes that are lent.
const REGION_LEN: usize = 3_000_000;

/// Two network namespaces, each with one end of a cable; both go with this value.
struct VethPair([String; 2]);

fn run_ip(args: &str) -> std::io::Result<Output> {
    Command::new("ip")
        .args(args.split_ascii_whitespace())
        .output()
}

impl VethPair {
    /// Nothing where namespaces cannot be made: that takes root, and `ip`.
    fn create(number: usize) -> Option<Self> {
        let name = |end| format!("fabric-{}-{number}{end}", std::process::id());
        let cable = Self([name("a"), name("b")]);
        let [a, b] = &cable.0;
        let steps = [
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("-n {a} link add cable type veth peer name cable netns {b}"),
            format!("-n {a} addr add {FIRST_IP}/24 dev cable"),
            format!("-n {b} addr add {SECOND_IP}/24 dev cable"),
            format!("-n {a} link set cable up"),
            format!("-n {b} link set cable up"),
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
        Some(cable)
    }
}

impl Drop for VethPair {
    fn drop(&mut self) {
        for end in &self.0 {
            let _ = run_ip(&format!("netns del {end}"));
        }
    }
}

/// What a peer says, line by line.
struct PeerOutput(BufReader<ChildStdout>);

impl PeerOutput {
    fn from_peer(peer: &mut TestPeer) -> Self {
        Self(BufReader::new(peer.0.stdout.take().expect("piped")))
    }

    /// Waits until it says this; the test program around it says things as well.
    fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        while !line.contains(word) {
            line.clear();
            assert!(
                self.0.read_line(&mut line).expect("a pipe") > 0,
                "it ended before it said {word:?}"
            );
        }
    }
}

/// Sends back what comes.
pub(crate) async fn echo_any_peer(name: &str) {
    let ep = Endpoint::bind(name).await.expect("bind");
    println!("[ready]");
    loop {
        let message = ep.recv().await.expect("recv");
        let from = message.source().expect("source of the message");
        if ep.send(from, message.into_bytes()).await.is_err() {
            return;
        }
    }
}

/// Talks with a mirror, and then waits for a word of it that never comes.
pub(crate) async fn link_loss_client(names: &str) {
    let (name, mirror) = names.split_once(' ').expect("two names");
    let options = SocketOptions::new().idle_timeout(Duration::from_secs(4));
    let ep = Endpoint::options()
        .socket_options(options)
        .bind(name)
        .await
        .expect("bind");
    let peer = ep.add_peer(mirror).await.expect("add_peer");
    for round in 0..200usize {
        let message = vec![round as u8; [8, 1000, 5000, 200_000][round % 4]];
        let (sent, got) = tokio::join!(ep.send(peer, message.clone()), ep.recv());
        sent.expect("send");
        assert_eq!(got.expect("a reply")[..], message[..]);
    }
    println!("[met]");
    let failed = ep.recv().from(peer).await.expect_err("the peer is gone");
    assert!(failed.error.is_peer_gone(), "{}", failed.error);
    println!("[gone]");
}

/// Lends memory, and hears of what is written there with data.
pub(crate) async fn rma_owner(name: &str) {
    let ep = Endpoint::bind(name).await.expect("bind");
    let mut completions = ep.completions().expect("a completion queue");
    let region = ep
        .domain()
        .alloc(REGION_LEN, Access::REMOTE_READ | Access::REMOTE_WRITE)
        .expect("allocate a region");
    println!("[ready]");
    let asks = ep
        .recv()
        .await
        .expect("recv")
        .source()
        .expect("source of the message");
    ep.send(asks, region.remote().to_bytes().to_vec())
        .await
        .expect("send");
    let mut out = Vec::new();
    completions.next_batch(&mut out, 1).await;
    assert_eq!(
        (out[0].kind, out[0].transfer.data, out[0].transfer.len),
        (OpKind::RemoteWrite, Some(77), REGION_LEN)
    );
    let mut written = vec![0; REGION_LEN];
    region.read(0, &mut written).expect("all of it");
    assert!(written == pattern(2), "the second pattern");
    ep.send(asks, "as it was written").await.expect("send");
    let last = ep.recv().from(asks).await.expect_err("the peer is gone");
    assert!(last.error.is_peer_gone(), "{}", last.error);
}

/// Reads and writes memory at the other end of the cable.
pub(crate) async fn rma_client(names: &str) {
    let (name, lender) = names.split_once(' ').expect("two names");
    let ep = Endpoint::bind(name).await.expect("bind");
    let peer = ep.add_peer(lender).await.expect("add_peer");
    ep.send(peer, "where?").await.expect("send");
    let remote = RemoteRegion::from_bytes(&ep.recv().await.expect("a reply")).expect("a region");
    ep.write(peer, remote.at(0), pattern(1))
        .await
        .expect("memory that is lent");
    assert!(
        ep.read(peer, remote.slice(..))
            .await
            .expect("allocate a region")[..]
            == pattern(1)[..]
    );
    let places = [
        remote.slice(..10),
        remote.slice(1_000_000..2_000_000),
        remote.slice(20..30),
    ];
    let read = ep
        .read_rma_iov(peer, &places)
        .await
        .expect("allocate a region");
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
        .expect("allocate a region");
    assert_eq!(&ep.recv().await.expect("a word")[..], b"as it was written");
    println!("[written]");
}

fn pattern(which: usize) -> Vec<u8> {
    (0..REGION_LEN)
        .map(|at| (at * which + at / 251) as u8)
        .collect()
}

#[test]
fn rma_works_across_network_namespaces() {
    let Some(cable) = VethPair::create(9) else {
        return;
    };
    let [a, b] = &cable.0;
    let at = format!("tcp://{FIRST_IP}:7000");
    let mut lender = TestPeer::start_in_netns(a, "tcp rma_owner", &at);
    // What they say at their ends is to go somewhere.
    let mut lender_said = PeerOutput::from_peer(&mut lender);
    lender_said.wait_for("[ready]");
    let mut borrower =
        TestPeer::start_in_netns(b, "tcp rma_client", &format!("tcp://{SECOND_IP}:0 {at}"));
    let mut borrower_said = PeerOutput::from_peer(&mut borrower);
    borrower_said.wait_for("[written]");
    assert!(borrower.0.wait().expect("wait for the process").success());
    assert!(lender.0.wait().expect("wait for the process").success());
}

/// Nobody says anything any more, neither a process nor a kernel: only silence tells.
#[test]
fn link_loss_is_detected_by_idle_timeout() {
    for (number, pull) in ["link set cable down", "link del cable"]
        .into_iter()
        .enumerate()
    {
        let Some(cable) = VethPair::create(number) else {
            return;
        };
        let [a, b] = &cable.0;
        let at = format!("tcp://{FIRST_IP}:7000");
        let mut mirror = TestPeer::start_in_netns(a, "tcp echo_any_peer", &at);
        PeerOutput::from_peer(&mut mirror).wait_for("[ready]");
        let mut lonely = TestPeer::start_in_netns(
            b,
            "tcp link_loss_client",
            &format!("tcp://{SECOND_IP}:0 {at}"),
        );
        let mut said = PeerOutput::from_peer(&mut lonely);
        said.wait_for("[met]");
        let pulled = run_ip(&format!("-n {a} {pull}")).expect("it was there before");
        assert!(
            pulled.status.success(),
            "{}",
            String::from_utf8_lossy(&pulled.stderr)
        );
        said.wait_for("[gone]");
        assert!(lonely.0.wait().expect("wait for the process").success());
    }
}
