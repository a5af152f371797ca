//! Runs of the harness.

use std::process::{Command, Output, Stdio};

use fabric_bench::record::{Record, parse};

pub(crate) fn bench_command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabric-bench"));
    command.args(args).stdin(Stdio::null());
    command
}

pub(crate) fn run_bench(args: &[&str]) -> Output {
    bench_command(args).output().expect("the harness starts")
}

pub(crate) fn run_records(args: &[&str]) -> Vec<Record> {
    let output = run_bench(args);
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{args:?}: {err}");
    parse(&out).unwrap_or_else(|(line, why)| panic!("{args:?}, line {line}: {why}\n{out}"))
}

#[track_caller]
pub(crate) fn assert_refused(args: &[&str], parts: &[&str]) {
    let output = run_bench(args);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {err}");
    for part in parts {
        assert!(err.contains(part), "{args:?} should say {part:?}: {err}");
    }
}
