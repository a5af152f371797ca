//! The commands as a user runs them: output, refusals, and the report of a dead peer.

#![cfg(feature = "harness")]

mod common;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::process::{self, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{assert_refused, bench_command, run_bench, run_records};
use fabric_bench::Error;
use fabric_bench::peer_process::ChildProcess;
use fabric_bench::record::parse;

/// A process that is killed when a test fails before the process ends.
struct BenchProcess(Option<process::Child>);

impl BenchProcess {
    fn start(args: &[&str]) -> Self {
        let mut command = bench_command(args);
        let process = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Self(Some(process.expect("the harness starts")))
    }

    fn process(&mut self) -> &mut process::Child {
        self.0.as_mut().expect("the process was not waited for")
    }

    fn id(&mut self) -> u32 {
        self.process().id()
    }

    fn stdout(&mut self) -> ChildStdout {
        self.process().stdout.take().expect("piped")
    }

    fn wait(&mut self) -> ExitStatus {
        self.process().wait().expect("the process ends")
    }

    fn output(mut self) -> Output {
        self.0
            .take()
            .expect("the process was not waited for")
            .wait_with_output()
            .expect("the process ends")
    }
}

impl Drop for BenchProcess {
    fn drop(&mut self) {
        if let Some(process) = &mut self.0 {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

#[test]
fn unknown_name_error_lists_known_names() {
    assert_refused(
        &["lat", "--op", "sned"],
        &["sned", "send", "tagged", "inject", "atomic"],
    );
    assert_refused(&["lat", "--api", "x"], &["await", "cq", "batch"]);
    assert_refused(&["lat", "--wait", "x"], &["spin", "adaptive", "park"]);
    assert_refused(&["lat", "--progress", "x"], &["manual", "auto"]);
    assert_refused(&["lat", "--runtime", "x"], &["current", "multi"]);
    assert_refused(
        &["lat", "--provider", "carrier-pigeon"],
        &["carrier-pigeon", "known: ", "shm"],
    );
    assert_refused(
        &["info", "--caps", "msg,wings"],
        &["wings", "tagged", "rma"],
    );
    assert_refused(&["lad"], &["lad", "lat"]);
    assert_refused(&["lat", "--size", "8,9KB"], &["9KB", "64KiB"]);
    assert_refused(&["lat", "--pin", "zero"], &["zero", "auto", "none"]);
    assert_refused(&["lat", "--size", "-1"], &["\"-1\" is not a size"]);
    assert_refused(&["lat", "--window", "3"], &["--window"]);
    assert_refused(&["bw", "--window", "-3"], &["-3"]);
    assert_refused(
        &["lat", "--listen", "shm://", "--op", "tagged"],
        &["--listen", "--op"],
    );
    assert_refused(
        &["bw", "--listen", "shm://", "--window", "3"],
        &["--listen", "--window"],
    );
    assert_refused(
        &["info", "--provider", "carrier-pigeon"],
        &["carrier-pigeon", "known: ", "shm"],
    );
    assert_refused(&["report", "no such file"], &["no such file"]);
    assert_refused(&["lat", "--seconds", "0"], &["between 0.001 and 3600"]);
}

#[test]
fn impossible_combinations_are_refused_with_the_reason() {
    assert_refused(
        &["lat", "--op", "atomic", "--size", "16"],
        &["atomic over shm", "8 bytes"],
    );
    assert_refused(
        &["bw", "--op", "write", "--api", "cq"],
        &["write over shm", "--api await"],
    );
    assert_refused(
        &["lat", "--op", "writedata", "--peers", "2"],
        &["writedata over shm", "one peer"],
    );
    assert_refused(
        &["lat", "--op", "read", "--size", "0,8"],
        &["read over shm", "0 bytes"],
    );
    assert_refused(
        &["lat", "--op", "write", "--endpoints", "2"],
        &["write over shm", "one endpoint"],
    );
    assert_refused(
        &["rate", "--fan-in", "--peers", "2"],
        &["--fan-in has one peer", "--peers"],
    );
    assert_refused(
        &["lat", "--op", "loan", "--fan-in"],
        &["loan over shm", "--fan-in"],
    );
    assert_refused(
        &["rate", "--endpoints", "1000"],
        &["--endpoints 1000", "512"],
    );
    assert_refused(
        &["lat", "--op", "loan", "--api", "batch"],
        &["loan over shm", "--api await"],
    );
    assert_refused(
        &["lat", "--op", "inject", "--size", "8,64KiB"],
        &["64KiB", "4KiB"],
    );
    assert_refused(
        &["lat", "--provider", "sim"],
        &["inside one process", "shm"],
    );
    assert_refused(&["rate", "--window", "100000"], &["--window 100000", "512"]);
    assert_refused(
        &[
            "bw",
            "--size",
            "1GiB",
            "--window",
            "512",
            "--threads",
            "512",
        ],
        &["1GiB", "MiB are available"],
    );
    assert_refused(
        &["lat", "--iters", "5", "--seconds", "1"],
        &["--iters", "--seconds"],
    );
}

#[test]
fn every_measurement_mode_yields_records() {
    for (command, more) in [
        ("lat", &["--size", "8,5000", "--api", "await"][..]),
        ("lat", &["--size", "8", "--api", "cq", "--op", "tagged"]),
        (
            "lat",
            &[
                "--size",
                "8",
                "--api",
                "batch",
                "--wait",
                "adaptive",
                "--progress",
                "auto",
            ],
        ),
        ("lat", &["--size", "64", "--op", "inject", "--peers", "3"]),
        (
            "lat",
            &["--size", "0,1", "--runtime", "multi", "--wait", "park"],
        ),
        ("bw", &["--size", "64KiB", "--window", "3"]),
        (
            "bw",
            &[
                "--size", "64KiB", "--window", "3", "--api", "cq", "--peers", "2",
            ],
        ),
        (
            "rate",
            &["--api", "batch", "--window", "7", "--op", "tagged"],
        ),
        ("rate", &["--op", "inject", "--threads", "2"]),
        ("lat", &["--op", "write", "--size", "1,8,70000"]),
        ("lat", &["--op", "read", "--size", "8,4KiB"]),
        ("lat", &["--op", "atomic", "--progress", "auto"]),
        (
            "lat",
            &["--op", "writedata", "--size", "64", "--wait", "adaptive"],
        ),
        ("lat", &["--op", "loan", "--size", "0,1MiB"]),
        ("bw", &["--op", "write", "--size", "4KiB"]),
        ("bw", &["--op", "read", "--size", "1MiB"]),
        ("bw", &["--op", "loan", "--size", "1MiB", "--peers", "2"]),
        ("rate", &["--op", "writedata", "--window", "4"]),
        ("rate", &["--op", "atomic", "--threads", "2"]),
        (
            "rate",
            &["--threads", "2", "--peers", "2", "--wait", "adaptive"],
        ),
        ("lat", &["--size", "8", "--endpoints", "3", "--peers", "2"]),
        (
            "lat",
            &["--size", "8", "--endpoints", "8", "--runtime", "multi"],
        ),
        ("lat", &["--size", "8", "--endpoints", "5", "--fan-in"]),
        (
            "lat",
            &["--size", "8", "--endpoints", "5", "--fan-in", "--api", "cq"],
        ),
        (
            "lat",
            &[
                "--size",
                "8",
                "--endpoints",
                "2",
                "--threads",
                "2",
                "--fan-in",
            ],
        ),
        ("rate", &["--endpoints", "4", "--runtime", "multi"]),
        (
            "rate",
            &["--endpoints", "4", "--runtime", "multi", "--domains", "own"],
        ),
        ("rate", &["--endpoints", "4", "--domains", "resource"]),
        ("lat", &["--size", "8,4KiB", "--streams", "2"]),
        ("lat", &["--size", "8", "--streams", "1", "--api", "batch"]),
        ("rate", &["--endpoints", "4", "--api", "batch", "--fan-in"]),
        ("rate", &["--endpoints", "4", "--op", "inject", "--fan-in"]),
        ("bw", &["--endpoints", "3", "--op", "loan", "--fan-in"]),
    ] {
        let args = [&[command, "--json", "--iters", "200"][..], more].concat();
        let records = run_records(&args);
        assert!(!records.is_empty(), "{args:?}");
        for record in records {
            assert_eq!(
                (&record.bench[..], &record.provider[..]),
                (command, "shm"),
                "{args:?}"
            );
            assert!(
                record.samples > 0 && record.p50_ns <= record.max_ns,
                "{args:?}: {record:?}"
            );
            assert!(
                record.msgs_per_s.is_some_and(|rate| rate > 0.0),
                "{args:?}: {record:?}"
            );
            assert!(record.cpu_user_s.is_some(), "{args:?}: {record:?}");
            assert!(record.cpu_ns_per_msg.is_some(), "{args:?}: {record:?}");
        }
    }
}

#[test]
fn soak_accounts_for_every_message() {
    let output = run_bench(&["soak", "--seconds", "0.4"]);
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{out}{err}");
    assert!(
        out.contains("every message is accounted for") && out.contains("duplicated 0, corrupted 0"),
        "{out}"
    );
    assert_refused(
        &["soak", "--provider", "carrier-pigeon", "--seconds", "0.1"],
        &["carrier-pigeon"],
    );
}

/// Returns the cells of the row of a siege that begins with this name.
fn siege_row<'a>(out: &'a str, name: &str) -> Vec<&'a str> {
    let row = out.lines().find(|line| line.starts_with(name));
    let row = row.unwrap_or_else(|| panic!("no row {name}: {out}"));
    row[name.len()..].split_ascii_whitespace().collect()
}

#[test]
fn siege_counts_requests_losses_and_actions() {
    for (provider, attacks) in [
        ("tcp", ["connections", "malformed-frames"]),
        ("shm", ["killed-senders", "loans-kept"]),
    ] {
        let list = attacks.join(",");
        let output = run_bench(&[
            "siege",
            "--seconds",
            "1",
            "--provider",
            provider,
            "--attack",
            &list,
        ]);
        let out = String::from_utf8_lossy(&output.stdout);
        let quiet = siege_row(&out, "quiet");
        assert_eq!((quiet[0], quiet[2]), ("-", "0"), "{out}");
        // As many processes that only use the processor run in place of the attackers.
        for name in ["1 busy process", "2 busy processes"] {
            let row = siege_row(&out, name);
            assert_eq!(
                (row[0], row[2], row[6], row[7]),
                ("-", "0", "-", "-"),
                "{out}"
            );
            assert!(row[4].parse::<f64>().is_ok_and(|p99| p99 > 0.0), "{out}");
        }
        for name in [attacks[0], attacks[1], "all at once"] {
            let row = siege_row(&out, name);
            let (actions, requests) = (row[0].parse::<u64>(), row[1].parse::<u64>());
            assert!(actions.is_ok_and(|count| count > 0), "{name}: {out}");
            assert!(requests.is_ok_and(|count| count > 0), "{name}: {out}");
            assert_eq!(row[2], "0", "{name} lost requests: {out}");
            // The multiples of the quiet slice and of that beside busy processes.
            for ratio in &row[6..8] {
                let ratio = ratio.trim_end_matches('!').parse::<f64>();
                assert!(ratio.is_ok_and(|ratio| ratio > 0.0), "{name}: {out}");
            }
        }
        let found = out.contains("after the attack:") || out.contains("are allowed");
        assert_eq!(output.status.success(), !found, "{out}");
        assert!(out.contains(&format!("{provider}: slices of 0.20 s, all at once 0.40 s")));
    }
}

#[test]
fn siege_refuses_unknown_names() {
    assert_refused(
        &["siege", "--provider", "carrier-pigeon"],
        &["carrier-pigeon", "shm", "tcp", "udp"],
    );
    assert_refused(
        &["siege", "--attack", "persuasion"],
        &["persuasion", "stalled-messages", "loans-kept"],
    );
    assert_refused(
        &["siege", "--provider", "udp", "--attack", "loans-kept"],
        &["no such attack", "udp: ", "many-senders"],
    );
}

#[test]
fn iterations_are_exact_and_exclude_warm_up() {
    let records = run_records(&["lat", "--json", "--iters", "777", "--size", "8,16"]);
    let samples: Vec<_> = records
        .iter()
        .map(|record| (record.size, record.samples))
        .collect();
    assert_eq!(samples, [(8, 777), (16, 777)]);
}

#[test]
fn endpoints_share_the_iterations() {
    for fan_in in [&[][..], &["--fan-in"]] {
        let args = ["lat", "--json", "--iters", "64", "--size", "8"];
        let endpoints = ["--endpoints", "16"];
        let records = run_records(&[&args[..], &endpoints, fan_in].concat());
        let [record] = &records[..] else {
            panic!("one result: {records:?}");
        };
        assert_eq!((record.endpoints, record.samples), (16, 64));
        assert_eq!(record.fan_in, !fan_in.is_empty());
    }
}

#[test]
fn endpoint_of_256_active_peers_is_measured() {
    let args = ["lat", "--iters", "256", "--size", "8", "--fan-in"];
    let output = run_bench(&[&args[..], &["--endpoints", "256", "--domains", "own"]].concat());
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && out.contains("endpoints 256 to one, a domain each"),
        "{output:?}"
    );
}

#[test]
fn default_sizes_are_limited_to_inject_size() {
    let records = run_records(&["lat", "--json", "--iters", "10", "--op", "inject"]);
    let sizes: Vec<_> = records.iter().map(|record| record.size).collect();
    assert_eq!(sizes, [8, 64, 512, 4096]);
}

#[test]
fn closed_stdout_is_not_an_error() {
    let mut info = bench_command(&["info", "-v"]);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = info
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts")
        .wait_with_output();
    let output = output.expect("the process ends");
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
}

#[test]
fn table_prints_the_timer_overhead() {
    let output = run_bench(&["lat", "--iters", "100", "--size", "8"]);
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(
        out.contains("shm, send") && out.contains("x floor") && out.contains("the clock takes"),
        "{out}"
    );
    assert!(
        output.stderr.is_empty(),
        "no progress is shown without a terminal"
    );
}

#[test]
fn listen_and_connect_measure_between_two_processes() {
    let name = format!("shm://by-hand-{}", std::process::id());
    let mut listener = BenchProcess::start(&["lat", "--listen", &name]);
    let began = Instant::now();
    let records = loop {
        let output = run_bench(&[
            "lat",
            "--connect",
            &name,
            "--json",
            "--iters",
            "50",
            "--size",
            "8",
        ]);
        if output.status.success() {
            break parse(&String::from_utf8_lossy(&output.stdout)).expect("results");
        }
        // The other side may not listen yet.
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(records.len(), 1);
    assert!(
        listener.wait().success(),
        "the listening side ends with the measurement"
    );
}

#[test]
fn ctrl_c_ends_both_sides_and_prints_the_results() {
    const SIZES: usize = 300;
    let sizes = vec!["8"; SIZES].join(",");
    let mut measuring = BenchProcess::start(&["lat", "--json", "--seconds", "1", "--size", &sizes]);
    let peer = child_of(measuring.id());
    let mut out = BufReader::new(measuring.stdout());
    let mut text = String::new();
    out.read_line(&mut text).expect("a first result");
    signal(measuring.id(), "INT");
    out.read_to_string(&mut text).expect("the rest");
    let output = measuring.output();
    let records = parse(&text).expect("results");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(130) && err.contains("interrupted"),
        "{}: {err}",
        output.status
    );
    assert!(
        (1..SIZES).contains(&records.len()),
        "{} results",
        records.len()
    );
    assert!(
        !std::path::Path::new(&format!("/proc/{peer}")).exists(),
        "the peer has ended"
    );
}

#[test]
fn killed_peer_is_reported() {
    let mut measuring = BenchProcess::start(&["lat", "--seconds", "600", "--size", "8"]);
    signal(child_of(measuring.id()), "KILL");
    let output = measuring.output();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(
        err.contains("the peer process died") && err.contains("signal: 9"),
        "{err}"
    );
}

#[test]
fn dead_peer_is_reported_with_its_stderr() {
    let mut command = Command::new("sh");
    command.args(["-c", "echo no such luck >&2; exit 7"]);
    match ChildProcess::start("the failing child", command).map(drop) {
        Err(error @ Error::ProcessDied { .. }) => {
            let text = error.to_string();
            assert!(
                text.contains("the failing child died") && text.contains("no such luck"),
                "{text}"
            );
            assert!(text.contains('7'), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn late_death_of_the_peer_is_reported_as_the_cause() {
    let mut command = Command::new("sh");
    command.args([
        "-c",
        "echo listening on nothing; sleep 1; echo too late >&2; exit 7",
    ]);
    let (mut child, _) = ChildProcess::start("the slow child", command).expect("it starts");
    assert!(matches!(
        child.or_death_error(Error::Interrupted),
        Error::Interrupted
    ));
    let broken = Error::Malformed {
        origin: "the connection".into(),
        text: "broken".into(),
    };
    let text = child.or_death_error(broken).to_string();
    assert!(
        text.contains("the slow child died (exit status: 7)") && text.contains("too late"),
        "{text}"
    );
}

#[test]
fn info_prints_offers_or_the_mismatch() {
    let text = |args: &[&str]| String::from_utf8_lossy(&run_bench(args).stdout).into_owned();
    assert!(text(&["info"]).contains("provider: shm"));
    assert!(text(&["info", "-v", "-p", "shm", "-c", "FI_TAGGED"]).contains("inject_size: 4096"));
    let none = run_bench(&["info", "-p", "shm", "-t", "dgram"]);
    assert!(!none.status.success() && String::from_utf8_lossy(&none.stderr).contains("shm"));
}

#[test]
fn peers_are_compared_round_robin() {
    let args = [
        "compare",
        "--json",
        "--repeat",
        "2",
        "--seconds",
        "0.02",
        "--size",
        "64",
        "--peer",
        "Tokio",
    ];
    let providers: Vec<_> = run_records(&args)
        .into_iter()
        .map(|record| (record.bench, record.provider))
        .collect();
    let round = [
        ("lat", "fabric shm"),
        ("lat", "tokio UnixStream"),
        ("lat", "tokio TcpStream"),
        ("bw", "fabric shm"),
        ("bw", "tokio UnixStream"),
        ("bw", "tokio TcpStream"),
    ];
    let twice: Vec<_> = [round, round]
        .concat()
        .into_iter()
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .collect();
    assert_eq!(providers, twice);
}

#[test]
fn udp_is_compared_by_round_trips() {
    let found = run_records(&[
        "compare",
        "--provider",
        "udp",
        "--peer",
        "unix",
        "--size",
        "8",
        "--repeat",
        "1",
        "--seconds",
        "0.02",
        "--json",
    ]);
    let ours = &found[0];
    assert_eq!(
        (&ours.bench[..], &ours.provider[..], ours.size),
        ("lat", "fabric udp", 8)
    );
    assert!(ours.p50_ns.is_some_and(|ns| ns > 0.0) && ours.samples > 0);
    assert!(
        found
            .iter()
            .all(|record| record.provider != "fabric udp" || record.bench == "lat")
    );
    assert_refused(
        &["compare", "--provider", "udp", "--size", "8,4KiB"],
        &["do not fit", "4KiB"],
    );
    assert_refused(
        &["compare", "--provider", "udp", "--op", "tagged"],
        &["--op send"],
    );
    assert_refused(
        &["compare", "--goals", "--provider", "sim"],
        &["sim", "shm, tcp, udp"],
    );
}

#[test]
fn idle_connection_memory_is_reported() {
    let lat = [
        "lat",
        "--provider",
        "tcp",
        "--size",
        "8",
        "--iters",
        "50",
        "--json",
        "--congestion",
        "reno",
    ];
    assert_eq!(run_records(&lat)[0].idle_bytes, None);
    let found = run_records(&[&lat[..], &["--idle", "300"]].concat());
    let taken = found[0].idle_bytes.expect("idle connections");
    assert!(taken > 0.0 && taken < 64.0 * 1024.0, "{taken} bytes");
    assert_refused(&["lat", "--idle", "10001"], &["--idle 10001", "10000"]);
}

#[test]
fn ctrl_c_ends_a_comparison_and_prints_partial_tables() {
    let mut measuring = BenchProcess::start(&[
        "compare",
        "--seconds",
        "600",
        "--size",
        "8",
        "--peer",
        "tokio",
    ]);
    let peer = child_of(measuring.id());
    signal(measuring.id(), "INT");
    let output = measuring.output();
    let out = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        output.status.code(),
        Some(130),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        out.contains("incomplete: interrupted") && !out.contains("left out"),
        "{out}"
    );
    assert!(
        !std::path::Path::new(&format!("/proc/{peer}")).exists(),
        "the peer has ended"
    );
}

#[test]
fn missing_peers_are_listed_with_install_commands() {
    let mut command = bench_command(&[
        "compare",
        "--repeat",
        "1",
        "--seconds",
        "0.01",
        "--size",
        "8",
    ]);
    let output = command
        .env("PATH", "/nonexistent")
        .output()
        .expect("starts");
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    for part in [
        "x fabric",
        "apt-get install libfabric-bin",
        "apt-get install ucx-utils",
        "tokio TcpStream",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert_refused(
        &["compare", "--peer", "smoke signals"],
        &["smoke signals", "fi_pingpong shm", "tokio TcpStream"],
    );
    assert_refused(
        &["compare", "--peer", ""],
        &["unknown peer \"\"", "tokio TcpStream"],
    );
}

#[test]
fn peer_program_ends_when_the_harness_is_killed() {
    let dir = std::env::temp_dir().join(format!("fabric-bench-tests-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let program = dir.join("fi_pingpong");
    std::fs::write(&program, "#!/bin/sh\necho $$ >\"$0.pid\"\nexec sleep 600\n")
        .expect("a program");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))
        .expect("an executable program");
    let path = format!(
        "{}:{}",
        dir.display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let mut comparing = bench_command(&[
        "compare",
        "--seconds",
        "0.01",
        "--size",
        "8",
        "--peer",
        "fi_pingpong tcp",
    ]);
    comparing
        .env("PATH", path)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut comparing = BenchProcess(Some(comparing.spawn().expect("the harness starts")));
    let pid = wait_for("the program", || {
        std::fs::read_to_string(dir.join("fi_pingpong.pid"))
            .ok()
            .filter(|pid| pid.ends_with('\n'))
    });
    signal(comparing.id(), "KILL");
    comparing.wait();
    std::fs::remove_dir_all(&dir).expect("the directory is removed");
    wait_for("the end of the program", || {
        has_ended(pid.trim()).then_some(())
    });
}

fn has_ended(pid: &str) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // A process whose parent does not wait for it stays as a zombie.
    state
        .rsplit(')')
        .next()
        .is_none_or(|rest| rest.is_empty() || rest.trim_start().starts_with('Z'))
}

/// Waits for a process to have a child, and returns the child's id.
fn child_of(pid: u32) -> u32 {
    let path = format!("/proc/{pid}/task/{pid}/children");
    wait_for("a second process", || {
        let children = std::fs::read_to_string(&path).unwrap_or_default();
        let child = children.split_ascii_whitespace().next()?;
        Some(child.parse().expect("a process id"))
    })
}

fn wait_for<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "no sign of {what}"
        );
        thread::sleep(Duration::from_millis(10));
    }
}

fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill")
        .args([&format!("-{name}"), &pid.to_string()])
        .status();
    assert!(sent.is_ok_and(|status| status.success()));
}
