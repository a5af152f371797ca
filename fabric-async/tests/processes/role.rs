//! The parts that peers play.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use fabric_async::{Access, AtomicOp, Endpoint, Error, Protocol, RemoteRegion};

use crate::lending::{FRAME, SHORT_FRAME};
use crate::onesided::{AREA, WIDE};
use crate::{churn, limits, run, scale, scribbler, sharing, stages};

const BOTH: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// How a process ends that could not be given hosts of its own.
pub(crate) const NO_MOUNT: i32 = 77;

/// A process that is ended with the test.
pub(crate) struct Peer(pub(crate) Child);

impl Peer {
    /// Starts a peer that is to talk to the endpoint of this name.
    pub(crate) fn start(role: &str, name: &str) -> Self {
        Self(
            command(role, name)
                .spawn()
                .expect("the test program starts again"),
        )
    }

    /// The same in a process namespace of its own, where neither sees the other.
    pub(crate) fn start_apart(role: &str, name: &str) -> std::io::Result<Self> {
        let program = std::env::current_exe().expect("a path");
        let mut apart = Command::new("unshare");
        apart.args(["--pid", "--fork", "--kill-child"]).arg(program);
        told(&mut apart, role, name).spawn().map(Self)
    }

    /// The same where these are the hosts that are known. It ends with [`NO_MOUNT`] where that
    /// cannot be arranged.
    pub(crate) fn start_among(
        hosts: &std::path::Path,
        role: &str,
        name: &str,
    ) -> std::io::Result<Self> {
        let arrange = format!("mount --bind \"$0\" /etc/hosts || exit {NO_MOUNT}; exec \"$@\"");
        let mut among = Command::new("unshare");
        among.args(["--mount", "sh", "-c", &arrange]).arg(hosts);
        among.arg(std::env::current_exe().expect("a path"));
        told(&mut among, role, name).spawn().map(Self)
    }

    /// The same in this network namespace; what it says can be read.
    pub(crate) fn start_in(namespace: &str, role: &str, name: &str) -> Self {
        let mut inside = Command::new("ip");
        inside
            .args(["netns", "exec", namespace])
            .arg(std::env::current_exe().expect("a path"));
        let inside = told(&mut inside, role, name).stdout(Stdio::piped());
        Self(
            inside
                .spawn()
                .expect("there is an ip, which has made the namespace"),
        )
    }

    /// The same as another user.
    pub(crate) fn start_as(role: &str, name: &str, user: u32) -> std::io::Result<Self> {
        command(role, name).uid(user).gid(user).spawn().map(Self)
    }
}

impl Peer {
    /// Lets a peer begin that waits for it.
    pub(crate) fn goes_on(&mut self) {
        drop(self.0.stdin.take());
    }
}

/// Waits until the parent lets this process go on.
pub(crate) fn wait_for_parent() {
    std::io::stdin()
        .read_to_end(&mut Vec::new())
        .expect("a pipe");
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(role: &str, name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    told(&mut command, role, name);
    command
}

/// Tells this program which part to play.
fn told<'a>(command: &'a mut Command, role: &str, name: &str) -> &'a mut Command {
    command
        .args(["--exact", "peer", "--nocapture"])
        .env("FABRIC_ROLE", role)
        .env("FABRIC_NAME", name);
    command.stdout(Stdio::null()).stdin(Stdio::piped())
}

/// Plays the part this process was started for, if any.
pub(crate) fn play() {
    let (Ok(role), Ok(name)) = (std::env::var("FABRIC_ROLE"), std::env::var("FABRIC_NAME")) else {
        return;
    };
    match &role[..] {
        "dies-parked" | "dies-parked_thread" => stages::sleep(&role["dies-".len()..], &name),
        stage if stage.starts_with("dies-") => run(stages::play(&stage["dies-".len()..], &name)),
        "chatter" => run(chatter(&name)),
        "echo" => run(echo(&name)),
        "knocker" => run(sharing::knock(&name, usize::MAX)),
        "knocker once" => run(sharing::knock(&name, 100_000)),
        "halfway" => run(halfway(&name)),
        "numbers" => run(numbers(&name)),
        "target" => run(target(&name, AREA)),
        "wide target" => run(target(&name, WIDE)),
        "server" => run(crate::serving::serve(&name)),
        "writer" => run(writer(&name)),
        "reader" => run(reader(&name)),
        "caller" => std::process::exit(run(limits::caller(&name))),
        "crowd" => run(scale::crowd(&name)),
        "visitor" => run(churn::visits(&name)),
        "scribbler" => run(scribbler::play(&name)),
        "lender" => run(lender(&name)),
        "silent" => run(silent(&name)),
        "patient" => run(crate::levels::patient(&name)),
        "exits" => run(crate::leaving::exits(&name)),
        "exits connected" => run(crate::leaving::exits_connected(&name)),
        "computes" => run(crate::leaving::computes(&name)),
        "tcp mirror" => run(crate::tcp::mirror(&name)),
        "tcp visitor" => run(crate::tcp::visitor(&name)),
        "tcp lender" => run(crate::tcp::lender(&name)),
        "tcp borrower" => run(crate::tcp::borrower(&name)),
        "tcp lonely" => run(crate::tcp::lonely(&name)),
        "tcp poor" => run(crate::tcp::poor(&name)),
        "tcp echo" => run(crate::tcp::echo(&name)),
        "tcp target" => run(crate::tcp::target(&name)),
        "tcp chatter" => run(crate::tcp::chatter(&name, Protocol::Tcp)),
        "tcp chatter in rxm" => run(crate::tcp::chatter(&name, Protocol::Rxm)),
        "tcp caller" => run(crate::tcp::connected::caller(&name)),
        "tcp clerk" => run(crate::tcp::connected::clerk(&name)),
        "tcp door" => run(crate::tcp::connected::door(&name)),
        "udp echo" => run(crate::udp::echo(&name)),
        "udp member" => run(crate::udp::member(&name)),
        "udp flood" => crate::udp::flood(&name),
        "udp crowd" => crate::udp::crowd(&name),
        "lingering flood" => crate::lingering::flood(&name),
        "giant" => run(limits::giant(&name, usize::MAX)),
        "giant in one copy" => run(limits::giant(&name, 1 << 20)),
        "guide client" => run(crate::guide::play(&name)),
        "guide server" => run(crate::guide::server(&name)),
        "restarted client" => run(crate::restart::client(&name)),
        "stranger" => std::process::exit(run(stranger(&name))),
        other => assert!(
            run(crate::copying::play(other, &name)),
            "unknown role {other}"
        ),
    }
}

/// Sends messages of all sizes, forever, as fast as answers come.
async fn chatter(name: &str) {
    let ep = Endpoint::bind("shm://").await.expect("bind");
    let peer = ep.lookup(name).await.expect("the survivor is there");
    for round in 0u64.. {
        let size = [8, 100, 4096, 60_000, 300_000][round as usize % 5];
        if ep.send(peer, vec![round as u8; size]).tag(1).await.is_err() {
            return;
        }
        if ep.recv().tag(2).from(peer).await.is_err() {
            return;
        }
    }
}

/// Sends back what it receives.
async fn echo(name: &str) {
    let ep = Endpoint::bind("shm://").await.expect("bind");
    let peer = ep.lookup(name).await.expect("the survivor is there");
    ep.send(peer, "ready").tag(3).await.expect("a peer");
    while let Ok(message) = ep.recv().from(peer).await {
        if ep.send(peer, message.into_bytes()).tag(4).await.is_err() {
            return;
        }
    }
}

/// Lends memory to the other, and waits for its own end.
async fn target(name: &str, len: usize) {
    let ep = Endpoint::bind("shm://").await.expect("bind");
    let region = ep.domain().alloc(len, BOTH).expect("memory");
    let peer = ep.lookup(name).await.expect("the survivor is there");
    ep.send(peer, region.remote().to_bytes().to_vec())
        .await
        .expect("a peer");
    while ep.recv().from(peer).await.is_ok() {}
}

/// Writes and adds to the memory of the other, for ever.
async fn writer(name: &str) {
    let ep = Endpoint::bind("shm://").await.expect("bind");
    let peer = ep.lookup(name).await.expect("the survivor is there");
    ep.send(peer, "where?").tag(1).await.expect("a peer");
    let remote = RemoteRegion::from_bytes(&ep.recv().from(peer).await.expect("an answer"))
        .expect("a region");
    let mut buf = vec![7; AREA];
    loop {
        let done = ep.write(peer, remote.at(0), buf).await;
        let Ok(done) = done else { return };
        buf = done.into_buf();
        for _ in 0..100 {
            let at = remote.at(AREA as u64);
            if ep.atomic(peer, at, AtomicOp::Sum, 1u64).await.is_err() {
                return;
            }
        }
    }
}

/// Holds some of what it is lent, for ever.
#[allow(unsafe_code)] // receiving where it lies
async fn reader(name: &str) {
    let ep = Endpoint::bind("shm://").await.expect("bind");
    let peer = ep.lookup(name).await.expect("the survivor is there");
    ep.send(peer, "ready").tag(1).await.expect("a peer");
    let mut held = std::collections::VecDeque::new();
    // SAFETY: the survivor does not write what it has lent.
    while let Ok(frame) = unsafe { ep.recv_lent() }.from(peer).await {
        assert!(frame.len() == SHORT_FRAME && frame.iter().all(|byte| *byte == frame[0]));
        held.push_back(frame);
        if held.len() > 5 {
            held.pop_front();
        }
    }
}

/// Lends frames, for ever.
async fn lender(name: &str) {
    let ep = Endpoint::bind("shm://").await.expect("bind");
    let peer = ep.lookup(name).await.expect("the survivor is there");
    for number in 0u64.. {
        let Ok(mut frame) = ep.loan(FRAME) else {
            return;
        };
        frame.fill(number as u8);
        if ep.lend(peer, frame).tag(1).await.is_err() {
            return;
        }
    }
}

/// Receives under this name and never says a word.
async fn silent(name: &str) {
    let ep = Endpoint::bind(name).await.expect("bind");
    while ep.recv().await.is_ok() {}
}

/// Sends 100,000 numbered messages, some of them long.
async fn numbers(name: &str) {
    let ep = Endpoint::bind("shm://").await.expect("bind");
    let peer = ep.lookup(name).await.expect("the receiver is there");
    for number in 0..crate::select::MESSAGES {
        let mut message = number.to_le_bytes().to_vec();
        if number % 1000 == 0 {
            message.resize(100_000, number as u8);
        }
        ep.send(peer, message).await.expect("the receiver lives");
    }
    // Stays until the receiver has everything and leaves.
    let _ = ep.recv().from(peer).await;
}

/// Sends a short message and half of a long one, says so, and is silent.
async fn halfway(name: &str) {
    // In pieces, not from here at once.
    let ep = Endpoint::options()
        .single_copy_from(usize::MAX)
        .bind("shm://")
        .await
        .expect("bind");
    let other = Endpoint::bind("shm://").await.expect("bind");
    let peer = ep.lookup(name).await.expect("the survivor is there");
    let too = other.lookup(name).await.expect("the survivor is there");
    ep.send(peer, "whole").await.expect("a peer");
    // More than a ring holds: what is in it now is all there will ever be, because nothing is
    // waited for after this.
    let _half = ep.send(peer, vec![7u8; 1 << 20]).start().expect("a credit");
    other.inject_tagged(too, 1, b"half").expect("room for it");
    loop {
        std::thread::park();
    }
}

/// Is another user: 0 when it was refused for that.
async fn stranger(name: &str) -> i32 {
    let ep = Endpoint::bind("shm://").await.expect("bind");
    match ep.lookup(name).await {
        Err(Error::OtherUser {
            theirs: 0, ours, ..
        }) if ours != 0 => 0,
        other => {
            eprintln!("the stranger got {other:?}");
            1
        }
    }
}
