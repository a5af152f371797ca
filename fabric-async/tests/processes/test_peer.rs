//! The processes that tests start as peers, and their roles.

use std::io::Read;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

use fabric_async::atomic::AtomicOp;
use fabric_async::buf::Memfd;
use fabric_async::{Access, Endpoint, Error, Protocol, RemoteRegion};
use rustix::fs::MemfdFlags;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::loans::{LOAN_LEN, SHORT_LOAN_LEN};
use crate::rma::{LARGE_REGION_LEN, MEMFD_REGION_LEN, REGION_LEN};
use crate::{churn, memory_corruptor, peer_death, resource_limits, run, scale, shared_rx};

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// Returns a TCP port for a process that is about to listen. The kernel assigns ports of this range
/// to no socket. So no other socket takes the port before that process listens, and no socket
/// connects to itself.
pub(crate) fn unassigned_port() -> u16 {
    const FIRST: u16 = 10_000;
    const COUNT: u16 = 20_000;
    static CALLS: AtomicU16 = AtomicU16::new(0);
    // Two test programs that run at the same time begin at different ports.
    let begin = std::process::id().wrapping_mul(61) as u16;
    loop {
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + begin.wrapping_add(call) % COUNT;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Exit code of a peer whose hosts file could not be mounted.
pub(crate) const EXIT_NO_MOUNT: i32 = 77;

/// A peer process, which is killed with the test.
pub(crate) struct TestPeer(pub(crate) Child);

impl TestPeer {
    /// Starts a peer in this role, which communicates with the endpoint `name`.
    pub(crate) fn start(role: &str, name: &str) -> Self {
        Self(
            peer_command(role, name)
                .spawn()
                .expect("start the test program"),
        )
    }

    /// Starts a peer in a PID namespace of its own, where neither process sees the other.
    pub(crate) fn start_in_pid_namespace(role: &str, name: &str) -> std::io::Result<Self> {
        let program = std::env::current_exe().expect("path of the test program");
        let mut command = Command::new("unshare");
        command
            .args(["--pid", "--fork", "--kill-child"])
            .arg(program);
        set_role(&mut command, role, name).spawn().map(Self)
    }

    /// Starts a peer as this user, in a user namespace that maps no user.
    pub(crate) fn start_in_user_namespace(
        role: &str,
        name: &str,
        user: u32,
    ) -> std::io::Result<Self> {
        let mut command = Command::new("unshare");
        command
            .args(["--user", "--"])
            .arg(std::env::current_exe().expect("path of the test program"))
            .uid(user)
            .gid(user);
        set_role(&mut command, role, name).spawn().map(Self)
    }

    /// Starts a peer whose `/etc/hosts` is this file. The peer exits with [`EXIT_NO_MOUNT`] if the
    /// file cannot be mounted.
    pub(crate) fn start_with_hosts_file(
        hosts: &std::path::Path,
        role: &str,
        name: &str,
    ) -> std::io::Result<Self> {
        let script = format!("mount --bind \"$0\" /etc/hosts || exit {EXIT_NO_MOUNT}; exec \"$@\"");
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]).arg(hosts);
        command.arg(std::env::current_exe().expect("path of the test program"));
        set_role(&mut command, role, name).spawn().map(Self)
    }

    /// Starts a peer in this network namespace, with a pipe for its standard output.
    pub(crate) fn start_in_netns(namespace: &str, role: &str, name: &str) -> Self {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", namespace])
            .arg(std::env::current_exe().expect("path of the test program"));
        let command = set_role(&mut command, role, name).stdout(Stdio::piped());
        Self(
            command
                .spawn()
                .expect("start ip, which has made the namespace"),
        )
    }

    /// Starts a peer as another user.
    pub(crate) fn start_as_user(role: &str, name: &str, user: u32) -> std::io::Result<Self> {
        peer_command(role, name)
            .uid(user)
            .gid(user)
            .spawn()
            .map(Self)
    }
}

impl TestPeer {
    /// Sends `SIGSTOP` to the process, and waits until the process has stopped.
    pub(crate) fn stop(&self) {
        let process = Pid::from_child(&self.0);
        kill_process(process, Signal::STOP).expect("signal a child");
        waitpid(Some(process), WaitOptions::UNTRACED).expect("wait for a child");
    }

    /// Continues the process (`SIGCONT`).
    pub(crate) fn resume(&self) {
        kill_process(Pid::from_child(&self.0), Signal::CONT).expect("signal a child");
    }

    /// Ends the wait of a peer that has called [`wait_for_parent`].
    pub(crate) fn signal_start(&mut self) {
        drop(self.0.stdin.take());
    }
}

/// Blocks until the parent calls [`TestPeer::signal_start`].
pub(crate) fn wait_for_parent() {
    std::io::stdin()
        .read_to_end(&mut Vec::new())
        .expect("a pipe");
}

impl Drop for TestPeer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn peer_command(role: &str, name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("path of the test program"));
    set_role(&mut command, role, name);
    command
}

/// Sets the environment that gives this program its role.
fn set_role<'a>(command: &'a mut Command, role: &str, name: &str) -> &'a mut Command {
    command
        .args(["--exact", "peer_entry_point", "--nocapture"])
        .env("FABRIC_ROLE", role)
        .env("FABRIC_NAME", name);
    command.stdout(Stdio::null()).stdin(Stdio::piped())
}

/// Plays the role that this process was started for, if any.
pub(crate) fn run_role() {
    let (Ok(role), Ok(name)) = (std::env::var("FABRIC_ROLE"), std::env::var("FABRIC_NAME")) else {
        return;
    };
    match &role[..] {
        "dies-while_parked" | "dies-while_progress_thread_parked" => {
            peer_death::run_sleeping_victim(&role["dies-".len()..], &name)
        }
        stage if stage.starts_with("dies-") => {
            run(peer_death::run_victim(&stage["dies-".len()..], &name))
        }
        "ping_forever" => run(ping_forever(&name)),
        "echo" => run(echo(&name)),
        "passive_server" => run(crate::user_namespaces::passive_server(&name)),
        "shared_rx_sender" => run(shared_rx::send_to_all_endpoints(&name, usize::MAX)),
        "shared_rx_sender single copy" => run(shared_rx::send_to_all_endpoints(&name, 100_000)),
        "partial_sender" => run(partial_sender(&name)),
        "numbered_sender" => run(numbered_sender(&name)),
        "rma_target" => run(rma_target(&name, REGION_LEN)),
        "memfd_target" => run(memfd_target(&name)),
        "rma_target large" => run(rma_target(&name, LARGE_REGION_LEN)),
        "registered_buffer_owner" => run(crate::registered_buffers::registered_buffer_owner(&name)),
        "rma_writer" => run(rma_writer(&name)),
        "loan_receiver" => run(loan_receiver(&name)),
        "connect_once" => std::process::exit(run(resource_limits::connect_once(&name))),
        "budget send_unexpected_forever" => {
            run(crate::budget_attacks::send_unexpected_forever(&name))
        }
        "budget send_unexpected_from_many" => {
            run(crate::budget_attacks::send_unexpected_from_many(&name))
        }
        "budget send_unexpected_from_names" => {
            run(crate::budget_attacks::send_unexpected_from_names(&name))
        }
        "budget leave_unexpected" => run(crate::budget_attacks::leave_unexpected(&name)),
        "budget send_in_reverse" => run(crate::budget_attacks::send_in_reverse(&name)),
        "connect_many" => run(crate::shm_limits::connect_many(&name)),
        "connect_and_leave" => crate::inbound_attacks::connect_and_leave(&name),
        "use_descriptors" => crate::inbound_attacks::use_descriptors(&name),
        "begin_held" => run(crate::shm_limits::begin_held(&name)),
        "begin_message" => crate::stalled_messages::begin_message(&name),
        "honest_client" => run(crate::stalled_messages::honest_client(&name)),
        "many_endpoints" => run(scale::many_endpoints(&name)),
        "connect_repeatedly" => run(churn::connect_repeatedly(&name)),
        "memory_corruptor" => run(memory_corruptor::run_peer(&name)),
        "loan_sender" => run(loan_sender(&name)),
        "loan_relay" => run(crate::loan_relays::relay(&name)),
        "loan_sink" => run(crate::loan_relays::sink(&name)),
        "loan_holder" => run(crate::loan_waits::hold_loans(&name)),
        "silent_receiver" => run(silent_receiver(&name)),
        "late_receiver" => run(crate::completion_levels::late_receiver(&name)),
        "send_and_exit" => run(crate::sends_before_exit::send_and_exit(&name)),
        "connect_send_and_exit" => run(crate::sends_before_exit::connect_send_and_exit(&name)),
        "send_and_block" => run(crate::sends_before_exit::send_and_block(&name)),
        "tcp echo_any_peer" => run(crate::tcp::echo_any_peer(&name)),
        "tcp host_name_client" => run(crate::tcp::host_name_client(&name)),
        "tcp rma_owner" => run(crate::tcp::rma_owner(&name)),
        "tcp rma_client" => run(crate::tcp::rma_client(&name)),
        "tcp link_loss_client" => run(crate::tcp::link_loss_client(&name)),
        "tcp vanished_network_client" => run(crate::tcp::vanished_network_client(&name)),
        "tcp lossy_client" => run(crate::tcp::lossy_client(&name)),
        "tcp low_memlock_sender" => run(crate::tcp::low_memlock_sender(&name)),
        "tcp echo" => run(crate::tcp::echo(&name)),
        "tcp rma_target" => run(crate::tcp::rma_target(&name)),
        "tcp send_on_request" => run(crate::tcp::send_on_request(&name)),
        "tcp send_forever" => run(crate::tcp::send_forever(&name, Protocol::Tcp)),
        "tcp send_forever rxm" => run(crate::tcp::send_forever(&name, Protocol::Rxm)),
        "tcp connect_and_echo" => run(crate::tcp::connected::connect_and_echo(&name)),
        "tcp fetch_add_client" => run(crate::tcp::connected::fetch_add_client(&name)),
        "tcp accept_and_echo" => run(crate::tcp::connected::accept_and_echo(&name)),
        "shm connect_and_echo" => run(crate::connected_shm::connect_and_echo(&name)),
        "shm accept_and_echo" => run(crate::connected_shm::accept_and_echo(&name)),
        "stream write_forever" => run(crate::streams::write_forever(&name)),
        "stream read_forever" => run(crate::streams::read_forever(&name)),
        "stream write_and_exit" => run(crate::streams::write_and_exit(&name)),
        "stream write_to_a_slow_reader" => run(crate::streams::write_to_a_slow_reader(&name)),
        "stream send_too_long" => run(crate::streams::send_too_long(&name)),
        "udp echo" => run(crate::udp::echo(&name)),
        "udp multicast_member" => run(crate::udp::multicast_member(&name)),
        "udp flood" => crate::udp::flood(&name),
        "udp many_senders" => crate::udp::many_senders(&name),
        "reply_after_request" => run(crate::impostors::reply_after_request(&name)),
        "impostor" => crate::impostors::impostor(&name),
        "connect_flood" => crate::other_users::connect_flood(&name),
        "shm connect_forever" => crate::connect_floods::connect_forever(&name),
        "shm hold_requests" => crate::connect_floods::hold_requests(&name),
        "shm hold_handshakes" => crate::connect_floods::hold_handshakes(&name),
        "shm connect_at_once" => run(crate::connect_floods::connect_at_once(&name)),
        "shm connect_msg_at_once" => run(crate::connect_floods::connect_msg_at_once(&name)),
        "shm connect_beside_stalled" => run(crate::connect_floods::connect_beside_stalled(&name)),
        "shm connect_in_turn" => run(crate::connect_floods::connect_in_turn(&name)),
        "shm connect_msg_in_turn" => run(crate::connect_floods::connect_msg_in_turn(&name)),
        "lingering_flood" => crate::blocking_close::lingering_flood(&name),
        "huge_sender" => run(resource_limits::huge_sender(&name, usize::MAX)),
        "huge_sender single copy" => run(resource_limits::huge_sender(&name, 1 << 20)),
        "guide client" => run(crate::guide::guide_client(&name)),
        "guide server" => run(crate::guide::server(&name)),
        "guide session client" => run(crate::guide_sessions::client(&name)),
        "guide sender" => run(crate::guide_transfer::sender(&name)),
        "restarted client" => run(crate::restart::client(&name)),
        "other_user" => std::process::exit(run(other_user(&name))),
        other => assert!(
            run(crate::single_copy::try_run_role(other, &name)),
            "unknown role {other}"
        ),
    }
}

/// Sends messages of all sizes forever; each is sent after the reply to the previous message.
async fn ping_forever(name: &str) {
    let ep = Endpoint::bind("shm://").await.expect("bind");
    let peer = ep.add_peer(name).await.expect("add_peer");
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

/// Sends back every message that it receives.
async fn echo(name: &str) {
    let ep = Endpoint::bind("shm://").await.expect("bind");
    let peer = ep.add_peer(name).await.expect("add_peer");
    ep.send(peer, "ready").tag(3).await.expect("send");
    while let Ok(message) = ep.recv().from(peer).await {
        if ep.send(peer, message.into_bytes()).tag(4).await.is_err() {
            return;
        }
    }
}

/// Allocates a region, announces it to the peer, and waits to be killed.
async fn rma_target(name: &str, len: usize) {
    let ep = Endpoint::bind("shm://").await.expect("bind");
    let region = ep
        .domain()
        .alloc(len, READ_WRITE)
        .expect("allocate a region");
    let peer = ep.add_peer(name).await.expect("add_peer");
    ep.send(peer, region.remote().to_bytes().to_vec())
        .await
        .expect("send");
    while ep.recv().from(peer).await.is_ok() {}
}

/// Registers memory that this program has created, announces it to the peer, and blocks its only
/// thread after a message.
async fn memfd_target(name: &str) {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // The name by which the peer counts its mappings.
    let memory = rustix::fs::memfd_create("fabric-region", flags).expect("memfd_create");
    rustix::fs::ftruncate(&memory, MEMFD_REGION_LEN as u64).expect("ftruncate");
    rustix::io::pwrite(&memory, b"program", 0).expect("pwrite");
    let memory = Memfd::new(memory).expect("suitable memory");
    let ep = Endpoint::bind("shm://").await.expect("bind");
    let region = ep.domain().register_memfd(&memory, READ_WRITE, None);
    let region = region.expect("register memory");
    let peer = ep.add_peer(name).await.expect("add_peer");
    let announcement = region.remote().to_bytes().to_vec();
    ep.send(peer, announcement).await.expect("send");
    ep.recv().from(peer).await.expect("the request to block");
    loop {
        std::thread::park();
    }
}

/// Writes to the region of the peer and adds to its values, forever.
async fn rma_writer(name: &str) {
    let ep = Endpoint::bind("shm://").await.expect("bind");
    let peer = ep.add_peer(name).await.expect("add_peer");
    ep.send(peer, "send me a region")
        .tag(1)
        .await
        .expect("send");
    let remote =
        RemoteRegion::from_bytes(&ep.recv().from(peer).await.expect("a reply")).expect("a region");
    let mut buf = vec![7; REGION_LEN];
    loop {
        let done = ep.write(peer, remote.at(0), buf).await;
        let Ok(done) = done else { return };
        buf = done.into_buf();
        for _ in 0..100 {
            let at = remote.at(REGION_LEN as u64);
            if ep.atomic(peer, at, AtomicOp::Sum, 1u64).await.is_err() {
                return;
            }
        }
    }
}

/// Holds some of the loans that it receives, forever.
async fn loan_receiver(name: &str) {
    let ep = Endpoint::bind("shm://").await.expect("bind");
    let peer = ep.add_peer(name).await.expect("add_peer");
    ep.send(peer, "ready").tag(1).await.expect("send");
    let mut held = std::collections::VecDeque::new();
    while let Ok(frame) = ep.recv_loan().from(peer).await {
        let bytes = frame.to_vec();
        assert!(bytes.len() == SHORT_LOAN_LEN && bytes.iter().all(|byte| *byte == bytes[0]));
        held.push_back(frame);
        if held.len() > 5 {
            held.pop_front();
        }
    }
}

/// Lends loans, forever.
async fn loan_sender(name: &str) {
    let ep = Endpoint::bind("shm://").await.expect("bind");
    let peer = ep.add_peer(name).await.expect("add_peer");
    for number in 0u64.. {
        let Ok(mut frame) = ep.domain().try_loan(LOAN_LEN) else {
            return;
        };
        frame.fill(number as u8);
        if ep.send(peer, frame).tag(1).await.is_err() {
            return;
        }
    }
}

/// Receives under this name and never sends.
async fn silent_receiver(name: &str) {
    let ep = Endpoint::bind(name).await.expect("bind");
    while ep.recv().await.is_ok() {}
}

/// Sends 100,000 numbered messages, some of them long.
async fn numbered_sender(name: &str) {
    let ep = Endpoint::bind("shm://").await.expect("bind");
    let peer = ep.add_peer(name).await.expect("add_peer");
    for number in 0..crate::select_loop::MESSAGES {
        let mut message = number.to_le_bytes().to_vec();
        if number % 1000 == 0 {
            message.resize(100_000, number as u8);
        }
        ep.send(peer, message).await.expect("send");
    }
    // Stays connected until the receiver has everything and leaves.
    let _ = ep.recv().from(peer).await;
}

/// Sends a short message and half of a long one, reports so, and blocks.
async fn partial_sender(name: &str) {
    // Through the ring, because a single copy is done by the receiver.
    let ep = Endpoint::options()
        .single_copy_threshold(usize::MAX)
        .bind("shm://")
        .await
        .expect("bind");
    let other = Endpoint::bind("shm://").await.expect("bind");
    let peer = ep.add_peer(name).await.expect("add_peer");
    let peer_of_other = other.add_peer(name).await.expect("add_peer");
    ep.send(peer, "whole").await.expect("send");
    // The ring holds less than the message, and nothing is polled after this, so the rest is never
    // sent.
    let _half = ep
        .send(peer, vec![7u8; 1 << 20])
        .start()
        .expect("transmit credit");
    other
        .send(peer_of_other, b"half")
        .tag(1)
        .inject()
        .expect("room in the ring");
    loop {
        std::thread::park();
    }
}

/// Plays a peer of another user, and returns 0 if the connect fails for that reason.
async fn other_user(name: &str) -> i32 {
    let ep = Endpoint::bind("shm://").await.expect("bind");
    match ep.add_peer(name).await {
        Err(Error::OtherUser {
            theirs: 0, ours, ..
        }) if ours != 0 => 0,
        other => {
            eprintln!("expected OtherUser, got {other:?}");
            1
        }
    }
}
