//! Runs libfabric's own `fi_pingpong` against the example of that name. Skips with a message where
//! libfabric's is not installed.

#[path = "../../fabric-async/tests/common/skip.rs"]
mod skip;

use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::time::{Duration, Instant};

use skip::{Facility, skip};

/// Time limit of one run, to find hangs.
const RUN_TIMEOUT: Duration = Duration::from_secs(120);

/// One of the two programs.
#[derive(Clone, Copy, Debug)]
enum PingPongProgram {
    Example,
    /// libfabric's, with this provider and RDM endpoints.
    Libfabric(&'static str),
    /// With connected endpoints.
    ExampleMsg,
    LibfabricMsg,
    /// With datagrams.
    ExampleDgram,
    LibfabricDgram,
}

impl PingPongProgram {
    fn command(self) -> Command {
        match self {
            Self::Example | Self::ExampleMsg | Self::ExampleDgram => {
                // Next to the directory of this test: Cargo builds examples before it runs tests.
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
                        Self::ExampleMsg => "msg",
                        Self::ExampleDgram => "dgram",
                        _ => "rdm",
                    },
                ]);
                command
            }
            Self::LibfabricMsg => {
                let mut command = Command::new("fi_pingpong");
                command.args(["-p", "tcp", "-e", "msg"]);
                command
            }
            Self::LibfabricDgram => {
                let mut command = Command::new("fi_pingpong");
                // libfabric's server listens at the address of the named network.
                command.args(["-p", "udp", "-e", "dgram", "-d", "lo"]);
                command
            }
            Self::Libfabric(provider) => {
                let mut command = Command::new("fi_pingpong");
                command.args(["-p", provider, "-e", "rdm"]);
                command
            }
        }
    }
}

/// Returns libfabric's program with its native tcp provider. Prints the reason if there is none.
fn libfabric_program() -> Option<PingPongProgram> {
    // The native protocol is that of `net` in 1.16 and 1.17, and of `tcp` since.
    let has = |provider| {
        Command::new("fi_info")
            .args(["-p", provider, "-t", "FI_EP_RDM"])
            .output()
    };
    let installed = Command::new("fi_pingpong").arg("-h").output().is_ok();
    match has("net") {
        Ok(output) if installed && output.status.success() => {
            Some(PingPongProgram::Libfabric("net"))
        }
        Ok(_) if installed => Some(PingPongProgram::Libfabric("tcp")),
        _ => {
            skip(
                Facility::Interop,
                "fi_pingpong is not installed (Debian: libfabric-bin)",
            );
            None
        }
    }
}

/// Returns libfabric's programs with RXM: over the tcp provider, which reads long messages from the
/// sender's memory, and over the net provider, which splits longer messages into segments.
fn libfabric_rxm_programs() -> Vec<PingPongProgram> {
    if libfabric_program().is_none() {
        return Vec::new();
    }
    let is_there = |provider: &&str| {
        let output = Command::new("fi_info")
            .args(["-p", provider, "-t", "FI_EP_RDM"])
            .output();
        let is_there = output.is_ok_and(|output| output.status.success());
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
        .map(PingPongProgram::Libfabric)
        .collect()
}

/// Returns both programs with connected endpoints. Prints the reason if there are none.
fn msg_programs() -> Option<(PingPongProgram, PingPongProgram)> {
    let has = Command::new("fi_info")
        .args(["-p", "tcp", "-t", "FI_EP_MSG"])
        .output();
    libfabric_program()?;
    if has.is_ok_and(|output| output.status.success()) {
        return Some((PingPongProgram::LibfabricMsg, PingPongProgram::ExampleMsg));
    }
    skip(
        Facility::Interop,
        "fi_info offers no FI_EP_MSG endpoints over tcp",
    );
    None
}

/// Returns both programs with datagrams. Prints the reason if there are none.
fn dgram_programs() -> Option<(PingPongProgram, PingPongProgram)> {
    let has = Command::new("fi_info")
        .args(["-p", "udp", "-t", "FI_EP_DGRAM", "-d", "lo"])
        .output();
    libfabric_program()?;
    if has.is_ok_and(|output| output.status.success()) {
        return Some((
            PingPongProgram::LibfabricDgram,
            PingPongProgram::ExampleDgram,
        ));
    }
    skip(
        Facility::Interop,
        "fi_info offers no FI_EP_DGRAM endpoints over udp on lo",
    );
    None
}

/// A program that is killed on drop.
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

/// Returns a port that no socket and no other test uses, outside of the kernel's ephemeral range.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 10_000 + (std::process::id() % 1_000) as u16 * 20;
    let ports = std::iter::repeat_with(|| first + NEXT.fetch_add(1, Relaxed)).take(1_000);
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)).is_ok();
    ports.into_iter().find(is_free).expect("a free port")
}

/// Returns whether a socket listens on the port, without connecting: the server accepts one
/// connection only.
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

/// Runs a server and a client; returns the outputs of both.
fn run_pair(
    server: PingPongProgram,
    client: PingPongProgram,
    (host, [libfabric, example]): (&str, [&[&str]; 2]),
) -> [Output; 2] {
    let port = free_port().to_string();
    let options = |program: PingPongProgram| match program {
        PingPongProgram::Example | PingPongProgram::ExampleMsg | PingPongProgram::ExampleDgram => {
            example
        }
        PingPongProgram::Libfabric(_)
        | PingPongProgram::LibfabricMsg
        | PingPongProgram::LibfabricDgram => libfabric,
    };
    let mut server = PingPongProcess::start(server, &[options(server), &["-B", &port]].concat());
    let deadline = Instant::now() + RUN_TIMEOUT;
    while !is_listening(port.parse().expect("a port")) && !server.has_exited() {
        assert!(Instant::now() < deadline, "the server does not listen");
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut client =
        PingPongProcess::start(client, &[options(client), &["-P", &port, host]].concat());
    while !(server.has_exited() && client.has_exited()) {
        assert!(Instant::now() < deadline, "the programs do not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    [server.output(), client.output()]
}

/// Asserts that both programs succeed and print all rounds.
fn assert_run_succeeds(
    server: PingPongProgram,
    client: PingPongProgram,
    host: &str,
    options: &[&str],
    rounds: usize,
) {
    assert_run_succeeds_with(server, client, (host, [options, options]), rounds);
}

/// Asserts that both programs succeed with different options and print all rounds.
fn assert_run_succeeds_with(
    server: PingPongProgram,
    client: PingPongProgram,
    at: (&str, [&[&str]; 2]),
    rounds: usize,
) {
    let (_, [options, _]) = at;
    for output in run_pair(server, client, at) {
        let (stdout, stderr) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        let title = format!("{server:?} serves {client:?} {options:?}: {stdout}{stderr}");
        assert!(output.status.success(), "{title}");
        assert_eq!(stdout.lines().count(), 1 + rounds, "{title}");
    }
}

#[test]
fn every_size_round_trips_in_both_roles() {
    let Some(libfabric) = libfabric_program() else {
        return;
    };
    for mode in ["msg", "tagged"] {
        for (server, client) in [
            (libfabric, PingPongProgram::Example),
            (PingPongProgram::Example, libfabric),
        ] {
            // Sizes: 0, the powers of two to 4 MiB, and the middles between them.
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
    let Some(libfabric) = libfabric_program() else {
        return;
    };
    for mode in ["msg", "tagged"] {
        for (server, client) in [
            (libfabric, PingPongProgram::Example),
            (PingPongProgram::Example, libfabric),
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
    for libfabric in libfabric_rxm_programs() {
        for mode in ["msg", "tagged"] {
            let options = ["-c", "-S", "all", "-I", "2", "-m", mode];
            // A native client tries RXM when the native request is not answered.
            let rxm_options = [&["-p", "tcp;ofi_rxm"][..], &options].concat();
            for (server, client) in [
                (libfabric, PingPongProgram::Example),
                (PingPongProgram::Example, libfabric),
            ] {
                assert_run_succeeds_with(server, client, ("127.0.0.1", [&options, &options]), 46);
                assert_run_succeeds_with(
                    server,
                    client,
                    ("127.0.0.1", [&options, &rxm_options]),
                    46,
                );
            }
        }
    }
}

#[test]
fn many_messages_round_trip_over_rxm() {
    for libfabric in libfabric_rxm_programs() {
        for (mode, size) in [("msg", "100"), ("tagged", "100"), ("msg", "20000")] {
            for (server, client) in [
                (libfabric, PingPongProgram::Example),
                (PingPongProgram::Example, libfabric),
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

/// A client that starts with RXM falls back to the native protocol.
#[test]
fn rxm_endpoint_falls_back_to_the_native_protocol() {
    let Some(libfabric) = libfabric_program() else {
        return;
    };
    let rxm_options = ["-p", "tcp;ofi_rxm", "-c", "-m", "tagged"];
    for (server, client) in [
        (libfabric, PingPongProgram::Example),
        (PingPongProgram::Example, libfabric),
    ] {
        assert_run_succeeds_with(
            server,
            client,
            ("127.0.0.1", [&["-c", "-m", "tagged"], &rxm_options]),
            6,
        );
    }
}

#[test]
fn messages_round_trip_over_ipv6() {
    let Some(libfabric) = libfabric_program() else {
        return;
    };
    if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        return skip(Facility::Ipv6, "this machine has no IPv6");
    }
    for (server, client) in [
        (libfabric, PingPongProgram::Example),
        (PingPongProgram::Example, libfabric),
    ] {
        assert_run_succeeds(server, client, "::1", &["-6", "-c"], 6);
    }
    for libfabric in libfabric_rxm_programs() {
        for (server, client) in [
            (libfabric, PingPongProgram::Example),
            (PingPongProgram::Example, libfabric),
        ] {
            assert_run_succeeds(server, client, "::1", &["-6", "-c"], 6);
        }
    }
}

#[test]
fn connected_endpoints_work_in_both_roles() {
    let Some((libfabric, example)) = msg_programs() else {
        return;
    };
    for (server, client) in [(libfabric, example), (example, libfabric)] {
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
    assert_run_succeeds(example, example, "127.0.0.1", &["-c", "-S", "all"], 46);
}

/// Connected endpoints; RDM endpoints over the native protocol and over RXM, with and without tags;
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
        .find(|libfabric| matches!(libfabric, PingPongProgram::Libfabric("tcp;ofi_rxm")))
    else {
        return;
    };
    let (plain, tagged): (&[&str], &[&str]) = (&["-c"], &["-c", "-m", "tagged"]);
    let plain_rxm: &[&str] = &["-p", "tcp;ofi_rxm", "-c"];
    let tagged_rxm: &[&str] = &["-p", "tcp;ofi_rxm", "-c", "-m", "tagged"];
    // Options of libfabric's program and of the example, and the number of sizes.
    let rows = [
        (connected, [plain, plain], 6),
        ((native, PingPongProgram::Example), [plain, plain], 6),
        ((native, PingPongProgram::Example), [tagged, tagged], 6),
        ((rxm, PingPongProgram::Example), [plain, plain_rxm], 6),
        ((rxm, PingPongProgram::Example), [tagged, tagged_rxm], 6),
        (datagrams, [plain, plain], 3),
    ];
    let mut runs = 0;
    for ((libfabric, example), [libfabric_options, example_options], rounds) in rows {
        for (server, client) in [(libfabric, example), (example, libfabric)] {
            assert_run_succeeds_with(
                server,
                client,
                ("127.0.0.1", [libfabric_options, example_options]),
                rounds,
            );
            runs += 1;
        }
    }
    assert_eq!(runs, 12);
}

#[test]
fn datagrams_of_every_size_round_trip() {
    let Some((libfabric, example)) = dgram_programs() else {
        return;
    };
    for (server, client) in [
        (libfabric, example),
        (example, libfabric),
        (example, example),
    ] {
        // Sizes: 0, the powers of two to 1024, and the middles between them.
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
        PingPongProgram::Example,
        PingPongProgram::Example,
        "127.0.0.1",
        &options,
        46,
    );
    let rxm_options = [&["-p", "tcp;ofi_rxm"][..], &options].concat();
    assert_run_succeeds(
        PingPongProgram::Example,
        PingPongProgram::Example,
        "127.0.0.1",
        &rxm_options,
        46,
    );
}

/// With `-c` each side checks the messages of the other: wrong contents are an error.
#[test]
fn corrupted_messages_are_detected_by_both_sides() {
    let Some(libfabric) = libfabric_program() else {
        return;
    };
    // One message each way: libfabric's server would wait for the next one even if its peer has
    // exited.
    let (checked, unchecked): (&[&str], &[&str]) =
        (&["-S", "64", "-I", "1", "-c"], &["-S", "64", "-I", "1"]);
    let [_, client] = run_pair(
        libfabric,
        PingPongProgram::Example,
        ("127.0.0.1", [unchecked, checked]),
    );
    assert!(
        !client.status.success() && String::from_utf8_lossy(&client.stderr).contains("message 0")
    );
    let [server, _] = run_pair(
        libfabric,
        PingPongProgram::Example,
        ("127.0.0.1", [checked, unchecked]),
    );
    assert!(
        !server.status.success(),
        "libfabric did not detect the wrong contents"
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
        (&["-S"], "-S needs a value"),
    ] {
        let output = PingPongProgram::Example
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
