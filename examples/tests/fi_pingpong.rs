//! libfabric's own `fi_pingpong` and the example of that name play with each other. Skips, and says
//! so, where libfabric's is not installed.

#[path = "../../fabric-async/tests/common/skip.rs"]
mod skip;

use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::time::{Duration, Instant};

use skip::{Facility, skip};

/// How long one game may take. There to find hangs, not to measure.
const RUN_TIMEOUT: Duration = Duration::from_secs(120);

/// Who plays a part.
#[derive(Clone, Copy, Debug)]
enum PingPongProgram {
    Ours,
    /// libfabric's, with this provider.
    Theirs(&'static str),
    /// The same with endpoints that are connected.
    OursMsg,
    TheirsMsg,
    /// The same with datagrams.
    OursDgram,
    TheirsDgram,
}

impl PingPongProgram {
    fn command(self) -> Command {
        match self {
            Self::Ours | Self::OursMsg | Self::OursDgram => {
                // Beside the directory of this test: Cargo builds examples before it runs tests.
                let mut path = std::env::current_exe().expect("a path");
                path.pop();
                path.pop();
                path.push("examples/fi_pingpong");
                assert!(
                    path.exists(),
                    "{path:?} is missing: cargo build -p fabric-examples --examples"
                );
                let mut command = Command::new(path);
                command.args([
                    "-e",
                    match self {
                        Self::OursMsg => "msg",
                        Self::OursDgram => "dgram",
                        _ => "rdm",
                    },
                ]);
                command
            }
            Self::TheirsMsg => {
                let mut command = Command::new("fi_pingpong");
                command.args(["-p", "tcp", "-e", "msg"]);
                command
            }
            Self::TheirsDgram => {
                let mut command = Command::new("fi_pingpong");
                // Its server is at the address of the network that is named.
                command.args(["-p", "udp", "-e", "dgram", "-d", "lo"]);
                command
            }
            Self::Theirs(provider) => {
                let mut command = Command::new("fi_pingpong");
                command.args(["-p", provider, "-e", "rdm"]);
                command
            }
        }
    }
}

/// libfabric's program, or nothing, and why.
fn libfabric_program() -> Option<PingPongProgram> {
    // The native wire is spoken by `net` in 1.16 and 1.17, and by `tcp` since.
    let has = |provider| {
        Command::new("fi_info")
            .args(["-p", provider, "-t", "FI_EP_RDM"])
            .output()
    };
    let installed = Command::new("fi_pingpong").arg("-h").output().is_ok();
    match has("net") {
        Ok(output) if installed && output.status.success() => Some(PingPongProgram::Theirs("net")),
        Ok(_) if installed => Some(PingPongProgram::Theirs("tcp")),
        _ => {
            skip(
                Facility::Interop,
                "fi_pingpong is not installed (Debian: libfabric-bin)",
            );
            None
        }
    }
}

/// libfabric's program where RXM is spoken: over the tcp provider, whose long messages are read
/// from where they lie, and over the other one, whose longer messages come in segments.
fn libfabric_rxm_programs() -> Vec<PingPongProgram> {
    if libfabric_program().is_none() {
        return Vec::new();
    }
    let is_there = |provider: &&str| {
        let asked = Command::new("fi_info")
            .args(["-p", provider, "-t", "FI_EP_RDM"])
            .output();
        let is_there = asked.is_ok_and(|output| output.status.success());
        if !is_there {
            // The providers differ between versions of libfabric.
            skip(
                Facility::Capability,
                format!("the installed libfabric has no provider {provider}"),
            );
        }
        is_there
    };
    ["tcp;ofi_rxm", "net;ofi_rxm"]
        .into_iter()
        .filter(is_there)
        .map(PingPongProgram::Theirs)
        .collect()
}

/// Both programs with endpoints that are connected, or nothing, and why.
fn msg_programs() -> Option<(PingPongProgram, PingPongProgram)> {
    let has = Command::new("fi_info")
        .args(["-p", "tcp", "-t", "FI_EP_MSG"])
        .output();
    libfabric_program()?;
    if has.is_ok_and(|output| output.status.success()) {
        return Some((PingPongProgram::TheirsMsg, PingPongProgram::OursMsg));
    }
    skip(
        Facility::Interop,
        "fi_info offers no FI_EP_MSG endpoints over tcp",
    );
    None
}

/// Both programs with datagrams, or nothing, and why.
fn dgram_programs() -> Option<(PingPongProgram, PingPongProgram)> {
    let has = Command::new("fi_info")
        .args(["-p", "udp", "-t", "FI_EP_DGRAM", "-d", "lo"])
        .output();
    libfabric_program()?;
    if has.is_ok_and(|output| output.status.success()) {
        return Some((PingPongProgram::TheirsDgram, PingPongProgram::OursDgram));
    }
    skip(
        Facility::Interop,
        "fi_info offers no FI_EP_DGRAM endpoints over udp on lo",
    );
    None
}

/// A program that is ended with the test.
struct PingPongProcess(Option<Child>);

impl PingPongProcess {
    fn start(program: PingPongProgram, options: &[&str]) -> Self {
        let mut command = program.command();
        command
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Self(Some(command.spawn().expect("a program that is installed")))
    }

    fn has_exited(&mut self) -> bool {
        self.0
            .as_mut()
            .is_none_or(|child| child.try_wait().expect("a child").is_some())
    }

    fn output(mut self) -> Output {
        self.0
            .take()
            .expect("it was started")
            .wait_with_output()
            .expect("a child")
    }
}

impl Drop for PingPongProcess {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A port that nobody has, and no other test gets, from where the kernel gives none to those who
/// ask for any.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 10_000 + (std::process::id() % 1_000) as u16 * 20;
    let ports = std::iter::repeat_with(|| first + NEXT.fetch_add(1, Relaxed)).take(1_000);
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)).is_ok();
    ports.into_iter().find(is_free).expect("a free port")
}

/// Whether somebody listens there, without connecting: the server takes but one connection.
fn is_listening(port: u16) -> bool {
    let mut suffix = String::new();
    write!(suffix, ":{port:04X}").expect("room");
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|path| std::fs::read_to_string(path).ok())
        .any(|table| {
            table.lines().skip(1).any(|line| {
                let fields: Vec<&str> = line.split_whitespace().collect();
                fields.get(1).is_some_and(|local| local.ends_with(&suffix))
                    && fields.get(3) == Some(&"0A")
            })
        })
}

/// A whole game; what the server and the client ended with.
fn run_pair(
    server: PingPongProgram,
    client: PingPongProgram,
    (host, [theirs, ours]): (&str, [&[&str]; 2]),
) -> [Output; 2] {
    let port = free_port().to_string();
    let options = |program: PingPongProgram| match program {
        PingPongProgram::Ours | PingPongProgram::OursMsg | PingPongProgram::OursDgram => ours,
        PingPongProgram::Theirs(_) | PingPongProgram::TheirsMsg | PingPongProgram::TheirsDgram => {
            theirs
        }
    };
    let mut serving = PingPongProcess::start(server, &[options(server), &["-B", &port]].concat());
    let deadline = Instant::now() + RUN_TIMEOUT;
    while !is_listening(port.parse().expect("a port")) && !serving.has_exited() {
        assert!(Instant::now() < deadline, "the server does not serve");
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut calling =
        PingPongProcess::start(client, &[options(client), &["-P", &port, host]].concat());
    while !(serving.has_exited() && calling.has_exited()) {
        assert!(Instant::now() < deadline, "the game does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    [serving.output(), calling.output()]
}

/// Everything goes well in a game, and all rounds are told of.
fn assert_run_succeeds(
    server: PingPongProgram,
    client: PingPongProgram,
    host: &str,
    options: &[&str],
    rounds: usize,
) {
    assert_run_succeeds_with(server, client, (host, [options, options]), rounds);
}

/// Likewise, with options of their own.
fn assert_run_succeeds_with(
    server: PingPongProgram,
    client: PingPongProgram,
    at: (&str, [&[&str]; 2]),
    rounds: usize,
) {
    let (_, [options, _]) = at;
    for output in run_pair(server, client, at) {
        let (told, wrong) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        let title = format!("{server:?} serves {client:?} {options:?}: {told}{wrong}");
        assert!(output.status.success(), "{title}");
        assert_eq!(told.lines().count(), 1 + rounds, "{title}");
    }
}

#[test]
fn every_size_round_trips_in_both_roles() {
    let Some(theirs) = libfabric_program() else {
        return;
    };
    for mode in ["msg", "tagged"] {
        for (server, client) in [
            (theirs, PingPongProgram::Ours),
            (PingPongProgram::Ours, theirs),
        ] {
            // None, the powers of two to 4 MiB, and what lies halfway between.
            assert_run_succeeds(
                server,
                client,
                "127.0.0.1",
                &["-c", "-S", "all", "-I", "3", "-m", mode],
                46,
            );
        }
    }
}

#[test]
fn many_messages_round_trip_in_both_roles() {
    let Some(theirs) = libfabric_program() else {
        return;
    };
    for mode in ["msg", "tagged"] {
        for (server, client) in [
            (theirs, PingPongProgram::Ours),
            (PingPongProgram::Ours, theirs),
        ] {
            assert_run_succeeds(
                server,
                client,
                "127.0.0.1",
                &["-c", "-S", "100", "-I", "2000", "-m", mode],
                1,
            );
        }
    }
}

#[test]
fn every_size_round_trips_over_rxm() {
    for theirs in libfabric_rxm_programs() {
        for mode in ["msg", "tagged"] {
            let options = ["-c", "-S", "all", "-I", "2", "-m", mode];
            // Who asks in the native dialect finds out.
            let told = [&["-p", "tcp;ofi_rxm"][..], &options].concat();
            for (server, client) in [
                (theirs, PingPongProgram::Ours),
                (PingPongProgram::Ours, theirs),
            ] {
                assert_run_succeeds_with(server, client, ("127.0.0.1", [&options, &options]), 46);
                assert_run_succeeds_with(server, client, ("127.0.0.1", [&options, &told]), 46);
            }
        }
    }
}

#[test]
fn many_messages_round_trip_over_rxm() {
    for theirs in libfabric_rxm_programs() {
        for (mode, size) in [("msg", "100"), ("tagged", "100"), ("msg", "20000")] {
            for (server, client) in [
                (theirs, PingPongProgram::Ours),
                (PingPongProgram::Ours, theirs),
            ] {
                assert_run_succeeds(
                    server,
                    client,
                    "127.0.0.1",
                    &["-c", "-S", size, "-I", "1000", "-m", mode],
                    1,
                );
            }
        }
    }
}

/// Who asks in RXM and is not understood asks in the native dialect.
#[test]
fn rxm_side_falls_back_to_the_native_protocol() {
    let Some(theirs) = libfabric_program() else {
        return;
    };
    let told = ["-p", "tcp;ofi_rxm", "-c", "-m", "tagged"];
    for (server, client) in [
        (theirs, PingPongProgram::Ours),
        (PingPongProgram::Ours, theirs),
    ] {
        assert_run_succeeds_with(
            server,
            client,
            ("127.0.0.1", [&["-c", "-m", "tagged"], &told]),
            6,
        );
    }
}

#[test]
fn messages_round_trip_over_ipv6() {
    let Some(theirs) = libfabric_program() else {
        return;
    };
    if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        return skip(Facility::Ipv6, "this machine has no IPv6");
    }
    for (server, client) in [
        (theirs, PingPongProgram::Ours),
        (PingPongProgram::Ours, theirs),
    ] {
        assert_run_succeeds(server, client, "::1", &["-6", "-c"], 6);
    }
    for theirs in libfabric_rxm_programs() {
        for (server, client) in [
            (theirs, PingPongProgram::Ours),
            (PingPongProgram::Ours, theirs),
        ] {
            assert_run_succeeds(server, client, "::1", &["-6", "-c"], 6);
        }
    }
}

#[test]
fn connected_endpoints_work_in_both_roles() {
    let Some((theirs, ours)) = msg_programs() else {
        return;
    };
    for (server, client) in [(theirs, ours), (ours, theirs)] {
        assert_run_succeeds(
            server,
            client,
            "127.0.0.1",
            &["-c", "-S", "all", "-I", "3"],
            46,
        );
        assert_run_succeeds(
            server,
            client,
            "127.0.0.1",
            &["-c", "-S", "100", "-I", "2000"],
            1,
        );
        if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            assert_run_succeeds(server, client, "::1", &["-6", "-c"], 6);
        }
    }
    assert_run_succeeds(ours, ours, "127.0.0.1", &["-c", "-S", "all"], 46);
}

/// Connected endpoints; RDM endpoints over the native wire and over RXM, with and without tags;
/// datagrams: each with either program as the server.
#[test]
fn all_endpoint_types_and_roles_run() {
    let (Some(native), Some(connected), Some(datagrams)) =
        (libfabric_program(), msg_programs(), dgram_programs())
    else {
        return;
    };
    let Some(rxm) = libfabric_rxm_programs()
        .into_iter()
        .find(|theirs| matches!(theirs, PingPongProgram::Theirs("tcp;ofi_rxm")))
    else {
        return;
    };
    let (plain, tagged): (&[&str], &[&str]) = (&["-c"], &["-c", "-m", "tagged"]);
    let plain_rxm: &[&str] = &["-p", "tcp;ofi_rxm", "-c"];
    let tagged_rxm: &[&str] = &["-p", "tcp;ofi_rxm", "-c", "-m", "tagged"];
    // What libfabric's program and what the example is told, and how many sizes they play.
    let rows = [
        (connected, [plain, plain], 6),
        ((native, PingPongProgram::Ours), [plain, plain], 6),
        ((native, PingPongProgram::Ours), [tagged, tagged], 6),
        ((rxm, PingPongProgram::Ours), [plain, plain_rxm], 6),
        ((rxm, PingPongProgram::Ours), [tagged, tagged_rxm], 6),
        (datagrams, [plain, plain], 3),
    ];
    let mut played = 0;
    for ((theirs, ours), [told, told_ours], rounds) in rows {
        for (server, client) in [(theirs, ours), (ours, theirs)] {
            assert_run_succeeds_with(server, client, ("127.0.0.1", [told, told_ours]), rounds);
            played += 1;
        }
    }
    assert_eq!(played, 12);
}

#[test]
fn datagrams_of_every_size_round_trip() {
    let Some((theirs, ours)) = dgram_programs() else {
        return;
    };
    for (server, client) in [(theirs, ours), (ours, theirs), (ours, ours)] {
        // None, the powers of two to 1024, and what lies halfway between.
        let all = ["-c", "-S", "all", "-I", "3"];
        assert_run_succeeds(server, client, "127.0.0.1", &all, 21);
        let many = ["-c", "-S", "100", "-I", "2000"];
        assert_run_succeeds(server, client, "127.0.0.1", &many, 1);
    }
}

#[test]
fn example_runs_against_itself() {
    let options = ["-c", "-S", "all", "-m", "tagged"];
    assert_run_succeeds(
        PingPongProgram::Ours,
        PingPongProgram::Ours,
        "127.0.0.1",
        &options,
        46,
    );
    let told = [&["-p", "tcp;ofi_rxm"][..], &options].concat();
    assert_run_succeeds(
        PingPongProgram::Ours,
        PingPongProgram::Ours,
        "127.0.0.1",
        &told,
        46,
    );
}

/// What is checked is what the other has sent: who fills messages with something else is told so.
#[test]
fn corrupted_messages_are_detected_by_both_sides() {
    let Some(theirs) = libfabric_program() else {
        return;
    };
    // One message each way: libfabric's server would wait for the next one whatever has become of
    // its peer.
    let (checked, unchecked): (&[&str], &[&str]) =
        (&["-S", "64", "-I", "1", "-c"], &["-S", "64", "-I", "1"]);
    let [_, client] = run_pair(
        theirs,
        PingPongProgram::Ours,
        ("127.0.0.1", [unchecked, checked]),
    );
    assert!(
        !client.status.success() && String::from_utf8_lossy(&client.stderr).contains("message 0")
    );
    let [server, _] = run_pair(
        theirs,
        PingPongProgram::Ours,
        ("127.0.0.1", [checked, unchecked]),
    );
    assert!(
        !server.status.success(),
        "libfabric has not noticed what was wrong"
    );
}

#[test]
fn unsupported_options_are_refused_by_name() {
    for (options, part) in [
        (&["-e", "raw"][..], "endpoint type raw"),
        (&["-p", "udp", "-e", "msg"], "-p udp -e msg"),
        (&["-p", "tcp", "-e", "dgram"], "-p tcp -e dgram"),
        (&["-e", "dgram", "-m", "tagged"], "-m tagged"),
        (&["-e", "msg", "-m", "tagged"], "-m tagged"),
        (&["-p", "verbs"], "provider verbs"),
        (&["-z"], "-z"),
        (&["-I", "0"], "-I 0"),
        (&["-S"], "-S without a value"),
    ] {
        let output = PingPongProgram::Ours
            .command()
            .args(options)
            .output()
            .expect("the example");
        assert_eq!(output.status.code(), Some(2));
        assert!(
            String::from_utf8_lossy(&output.stderr).contains(part),
            "{options:?}"
        );
    }
}
