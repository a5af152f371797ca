//! Two networks joined by a cable, which is pulled.

use std::io::{BufRead, BufReader};
use std::process::{ChildStdout, Command, Output};
use std::time::Duration;

use fabric_async::{Endpoint, SocketOptions};

use crate::role::Peer;

const HERE: &str = "10.231.97.1";
const THERE: &str = "10.231.97.2";

/// Two network namespaces, each with one end of a cable; both go with this value.
struct Cable([String; 2]);

fn ip(args: &str) -> std::io::Result<Output> {
    Command::new("ip").args(args.split_ascii_whitespace()).output()
}

impl Cable {
    /// Nothing where namespaces cannot be made: that takes root, and `ip`.
    fn lay(number: usize) -> Option<Self> {
        let name = |end| format!("fabric-{}-{number}{end}", std::process::id());
        let cable = Self([name("a"), name("b")]);
        let [a, b] = &cable.0;
        let steps = [
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("-n {a} link add cable type veth peer name cable netns {b}"),
            format!("-n {a} addr add {HERE}/24 dev cable"),
            format!("-n {b} addr add {THERE}/24 dev cable"),
            format!("-n {a} link set cable up"),
            format!("-n {b} link set cable up"),
        ];
        for step in steps {
            match ip(&step) {
                Ok(done) if done.status.success() => {}
                Ok(done) => {
                    eprintln!("skipped, ip {step}: {}", String::from_utf8_lossy(&done.stderr).trim());
                    return None;
                }
                Err(error) => {
                    eprintln!("skipped, there is no ip: {error}");
                    return None;
                }
            }
        }
        Some(cable)
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for end in &self.0 {
            let _ = ip(&format!("netns del {end}"));
        }
    }
}

/// What a peer says, line by line.
struct Said(BufReader<ChildStdout>);

impl Said {
    fn by(peer: &mut Peer) -> Self {
        Self(BufReader::new(peer.0.stdout.take().expect("piped")))
    }

    /// Waits until it says this; the test program around it says things as well.
    fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        while !line.contains(word) {
            line.clear();
            assert!(self.0.read_line(&mut line).expect("a pipe") > 0, "it ended before it said {word:?}");
        }
    }
}

/// Sends back what comes.
pub(crate) async fn mirror(name: &str) {
    let ep = Endpoint::bind(name).await.expect("bind");
    println!("[ready]");
    loop {
        let message = ep.recv().await.expect("an endpoint that is open");
        let from = message.source().expect("it has connected");
        if ep.send(from, message.into_bytes()).await.is_err() {
            return;
        }
    }
}

/// Talks with a mirror, and then waits for a word of it that never comes.
pub(crate) async fn lonely(names: &str) {
    let (name, mirror) = names.split_once(' ').expect("two names");
    let options = SocketOptions::new().silence(Duration::from_secs(4));
    let ep = Endpoint::options().socket_options(options).bind(name).await.expect("bind");
    let peer = ep.lookup(mirror).await.expect("the mirror is there");
    for round in 0..200usize {
        let message = vec![round as u8; [8, 1000, 5000, 200_000][round % 4]];
        let (sent, got) = tokio::join!(ep.send(peer, message.clone()), ep.recv());
        sent.expect("a peer");
        assert_eq!(got.expect("an answer")[..], message[..]);
    }
    println!("[met]");
    let failed = ep.recv().from(peer).await.expect_err("nothing comes any more");
    assert!(failed.error.is_peer_gone(), "{}", failed.error);
    println!("[gone]");
}

/// Nobody says anything any more, neither a process nor a kernel: only silence tells.
#[test]
fn a_cable_that_is_pulled_is_noticed() {
    for (number, pull) in ["link set cable down", "link del cable"].into_iter().enumerate() {
        let Some(cable) = Cable::lay(number) else { return };
        let [a, b] = &cable.0;
        let at = format!("tcp://{HERE}:7000");
        let mut mirror = Peer::start_in(a, "tcp mirror", &at);
        Said::by(&mut mirror).wait_for("[ready]");
        let mut lonely = Peer::start_in(b, "tcp lonely", &format!("tcp://{THERE}:0 {at}"));
        let mut said = Said::by(&mut lonely);
        said.wait_for("[met]");
        let pulled = ip(&format!("-n {a} {pull}")).expect("it was there before");
        assert!(pulled.status.success(), "{}", String::from_utf8_lossy(&pulled.stderr));
        said.wait_for("[gone]");
        assert!(lonely.0.wait().expect("it was started").success());
    }
}
