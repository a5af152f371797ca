//! The commands as a user runs them: what they print, what they refuse, and what they say when the
//! peer dies.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::process::{self, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fabric_bench::Error;
use fabric_bench::pair::Child;
use fabric_bench::record::{Record, parse};

fn bench(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabric-bench"));
    command.args(args).stdin(Stdio::null());
    command
}

/// A process that is killed where a test fails before it ends.
struct Running(Option<process::Child>);

impl Running {
    fn start(args: &[&str]) -> Self {
        let mut command = bench(args);
        let process = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Self(Some(process.expect("the harness starts")))
    }

    fn process(&mut self) -> &mut process::Child {
        self.0.as_mut().expect("it was not waited for yet")
    }

    fn id(&mut self) -> u32 {
        self.process().id()
    }

    fn stdout(&mut self) -> ChildStdout {
        self.process().stdout.take().expect("piped")
    }

    fn wait(&mut self) -> ExitStatus {
        self.process().wait().expect("it ends")
    }

    fn output(mut self) -> Output {
        self.0
            .take()
            .expect("it was not waited for yet")
            .wait_with_output()
            .expect("it ends")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(process) = &mut self.0 {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn run(args: &[&str]) -> Output {
    bench(args).output().expect("the harness starts")
}

fn records(args: &[&str]) -> Vec<Record> {
    let output = run(args);
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{args:?}: {err}");
    parse(&out).unwrap_or_else(|(line, why)| panic!("{args:?}, line {line}: {why}\n{out}"))
}

#[track_caller]
fn refused(args: &[&str], parts: &[&str]) {
    let output = run(args);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {err}");
    for part in parts {
        assert!(err.contains(part), "{args:?} should say {part:?}: {err}");
    }
}

#[test]
fn unknown_names_list_the_known_ones() {
    refused(
        &["lat", "--op", "sned"],
        &["sned", "send", "tagged", "inject", "atomic"],
    );
    refused(&["lat", "--api", "x"], &["await", "cq", "batch"]);
    refused(&["lat", "--wait", "x"], &["spin", "adaptive", "park"]);
    refused(&["lat", "--progress", "x"], &["manual", "auto"]);
    refused(&["lat", "--runtime", "x"], &["current", "multi"]);
    refused(
        &["lat", "--provider", "carrier-pigeon"],
        &["carrier-pigeon", "known: ", "shm"],
    );
    refused(
        &["info", "--caps", "msg,wings"],
        &["wings", "tagged", "rma"],
    );
    refused(&["lad"], &["lad", "lat"]);
    refused(&["lat", "--size", "8,9KB"], &["9KB", "64KiB"]);
    refused(&["lat", "--pin", "zero"], &["zero", "auto", "none"]);
    refused(&["lat", "--size", "-1"], &["\"-1\" is no size"]);
    refused(&["lat", "--window", "3"], &["--window"]);
    refused(&["bw", "--window", "-3"], &["-3"]);
    refused(
        &["lat", "--listen", "shm://", "--op", "tagged"],
        &["--listen", "--op"],
    );
    refused(
        &["bw", "--listen", "shm://", "--window", "3"],
        &["--listen", "--window"],
    );
    refused(
        &["info", "--provider", "carrier-pigeon"],
        &["carrier-pigeon", "known: ", "shm"],
    );
    refused(&["report", "no such file"], &["no such file"]);
    refused(&["lat", "--seconds", "0"], &["between 0.001 and 3600"]);
}

#[test]
fn impossible_combinations_say_what_is_missing() {
    refused(
        &["lat", "--op", "atomic", "--size", "16"],
        &["atomic over shm", "8 bytes"],
    );
    refused(
        &["bw", "--op", "write", "--api", "cq"],
        &["write over shm", "--api await"],
    );
    refused(
        &["lat", "--op", "writedata", "--peers", "2"],
        &["writedata over shm", "one peer"],
    );
    refused(
        &["lat", "--op", "read", "--size", "0,8"],
        &["read over shm", "0 bytes"],
    );
    refused(
        &["lat", "--op", "loan", "--api", "batch"],
        &["loan over shm", "--api await"],
    );
    refused(
        &["lat", "--op", "inject", "--size", "8,64KiB"],
        &["64KiB", "4KiB"],
    );
    refused(
        &["lat", "--provider", "sim"],
        &["inside one process", "shm"],
    );
    refused(&["rate", "--window", "100000"], &["--window 100000", "512"]);
    refused(
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
    refused(
        &["lat", "--iters", "5", "--seconds", "1"],
        &["--iters", "--seconds"],
    );
}

#[test]
fn every_way_of_measuring_measures() {
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
    ] {
        let args = [&[command, "--json", "--iters", "200"][..], more].concat();
        let records = records(&args);
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
        }
    }
}

#[test]
fn a_soak_accounts_for_every_message() {
    let output = run(&["soak", "--seconds", "0.4"]);
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{out}{err}");
    assert!(
        out.contains("every message is accounted for") && out.contains("twice 0, damaged 0"),
        "{out}"
    );
    refused(
        &["soak", "--provider", "carrier-pigeon", "--seconds", "0.1"],
        &["carrier-pigeon"],
    );
}

#[test]
fn iterations_are_counted_exactly_and_warm_up_is_not() {
    let records = records(&["lat", "--json", "--iters", "777", "--size", "8,16"]);
    let samples: Vec<_> = records
        .iter()
        .map(|record| (record.size, record.samples))
        .collect();
    assert_eq!(samples, [(8, 777), (16, 777)]);
}

#[test]
fn the_usual_sizes_are_cut_to_what_can_be_injected() {
    let records = records(&["lat", "--json", "--iters", "10", "--op", "inject"]);
    let sizes: Vec<_> = records.iter().map(|record| record.size).collect();
    assert_eq!(sizes, [8, 64, 512, 4096]);
}

#[test]
fn a_reader_that_has_enough_is_no_failure() {
    let mut info = bench(&["info", "-v"]);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = info
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts")
        .wait_with_output();
    let output = output.expect("it ends");
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
}

#[test]
fn the_table_says_what_the_timer_costs() {
    let output = run(&["lat", "--iters", "100", "--size", "8"]);
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(
        out.contains("shm, send") && out.contains("x floor") && out.contains("the clock takes"),
        "{out}"
    );
    assert!(
        output.stderr.is_empty(),
        "no progress is shown where nobody watches"
    );
}

#[test]
fn both_sides_by_hand() {
    let name = format!("shm://by-hand-{}", std::process::id());
    let mut far = Running::start(&["lat", "--listen", &name]);
    let began = Instant::now();
    let records = loop {
        let output = run(&[
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
        // It may not listen yet.
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(records.len(), 1);
    assert!(
        far.wait().success(),
        "the listening side ends with the measurement"
    );
}

#[test]
fn ctrl_c_ends_both_and_prints_what_was_measured() {
    const SIZES: usize = 300;
    let sizes = vec!["8"; SIZES].join(",");
    let mut measuring = Running::start(&["lat", "--json", "--seconds", "1", "--size", &sizes]);
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
fn a_peer_that_is_killed_is_reported() {
    let mut measuring = Running::start(&["lat", "--seconds", "600", "--size", "8"]);
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
fn a_peer_that_dies_is_reported_with_its_stderr() {
    let mut command = Command::new("sh");
    command.args(["-c", "echo no such luck >&2; exit 7"]);
    match Child::start("the unlucky one", command).map(drop) {
        Err(error @ Error::PeerDied { .. }) => {
            let text = error.to_string();
            assert!(
                text.contains("the unlucky one died") && text.contains("no such luck"),
                "{text}"
            );
            assert!(text.contains('7'), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_peer_that_is_slow_to_die_is_the_reason_all_the_same() {
    let mut command = Command::new("sh");
    command.args([
        "-c",
        "echo listening on nothing; sleep 1; echo too late >&2; exit 7",
    ]);
    let (mut child, _) = Child::start("the slow one", command).expect("it starts");
    assert!(matches!(
        child.explain(Error::Interrupted),
        Error::Interrupted
    ));
    let broken = Error::NotUnderstood {
        who: "the connection".into(),
        text: "broken".into(),
    };
    let text = child.explain(broken).to_string();
    assert!(
        text.contains("the slow one died (exit status: 7)") && text.contains("too late"),
        "{text}"
    );
}

#[test]
fn info_shows_offers_and_says_why_there_are_none() {
    let text = |args: &[&str]| String::from_utf8_lossy(&run(args).stdout).into_owned();
    assert!(text(&["info"]).contains("provider: shm"));
    assert!(text(&["info", "-v", "-p", "shm", "-c", "FI_TAGGED"]).contains("inject_size: 4096"));
    let none = run(&["info", "-p", "shm", "-t", "dgram"]);
    assert!(!none.status.success() && String::from_utf8_lossy(&none.stderr).contains("shm"));
}

#[test]
fn peers_are_compared_in_turn() {
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
    let providers: Vec<_> = records(&args)
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
fn datagrams_are_compared_by_round_trips() {
    let found = records(&[
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
    refused(
        &["compare", "--provider", "udp", "--size", "8,4KiB"],
        &["no room", "4KiB"],
    );
    refused(
        &["compare", "--provider", "udp", "--op", "tagged"],
        &["--op send"],
    );
    refused(
        &["compare", "--goals", "--provider", "sim"],
        &["sim", "shm, tcp, udp"],
    );
}

#[test]
fn silent_connections_are_counted() {
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
    assert_eq!(records(&lat)[0].idle_bytes, None);
    let found = records(&[&lat[..], &["--idle", "300"]].concat());
    let taken = found[0].idle_bytes.expect("there are some");
    assert!(taken > 0.0 && taken < 64.0 * 1024.0, "{taken} bytes");
    refused(&["lat", "--idle", "10001"], &["--idle 10001", "10000"]);
}

#[test]
fn ctrl_c_ends_a_comparison_with_the_tables_of_what_was_measured() {
    let mut measuring = Running::start(&[
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
        out.contains("not all: interrupted") && !out.contains("left out"),
        "{out}"
    );
    assert!(
        !std::path::Path::new(&format!("/proc/{peer}")).exists(),
        "the peer has ended"
    );
}

#[test]
fn missing_peers_are_named_with_how_to_install_them() {
    let mut command = bench(&[
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
        "x ours",
        "apt-get install libfabric-bin",
        "apt-get install ucx-utils",
        "tokio TcpStream",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    refused(
        &["compare", "--peer", "smoke signals"],
        &["smoke signals", "fi_pingpong shm", "tokio TcpStream"],
    );
    refused(
        &["compare", "--peer", ""],
        &["unknown peer \"\"", "tokio TcpStream"],
    );
}

#[test]
fn a_program_of_others_ends_with_the_harness_that_is_killed() {
    let here = std::env::temp_dir().join(format!("fabric-bench-tests-{}", std::process::id()));
    std::fs::create_dir_all(&here).expect("a directory");
    let program = here.join("fi_pingpong");
    std::fs::write(&program, "#!/bin/sh\necho $$ >\"$0.pid\"\nexec sleep 600\n")
        .expect("a program");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))
        .expect("it can be run");
    let path = format!(
        "{}:{}",
        here.display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let mut comparing = bench(&[
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
    let mut comparing = Running(Some(comparing.spawn().expect("the harness starts")));
    let pid = wait_for("the program", || {
        std::fs::read_to_string(here.join("fi_pingpong.pid"))
            .ok()
            .filter(|pid| pid.ends_with('\n'))
    });
    signal(comparing.id(), "KILL");
    comparing.wait();
    std::fs::remove_dir_all(&here).expect("the directory goes");
    wait_for("its end", || has_ended(pid.trim()).then_some(()));
}

fn has_ended(pid: &str) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // It stays as a zombie where nobody takes notice of its end.
    state
        .rsplit(')')
        .next()
        .is_none_or(|rest| rest.is_empty() || rest.trim_start().starts_with('Z'))
}

/// The process that this one has started, once it has.
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
