//! Measurements of remote procedure calls.

#![cfg(feature = "rpc")]

mod common;

use common::{assert_refused, run_bench, run_records};

#[test]
fn services_of_calls_are_compared() {
    let args = ["compare", "--op", "rpc", "--repeat", "1", "--seconds"];
    let records = run_records(&[&args[..], &["0.02", "--json"]].concat());
    let services = [
        ("native shm", "spin"),
        ("native tcp", "spin"),
        ("tonic fabric shm", "adaptive"),
        ("tonic fabric tcp", "adaptive"),
        ("tonic UnixStream", "park"),
        ("tonic TcpStream", "park"),
        ("tarpc fabric shm", "adaptive"),
        ("tarpc UnixStream", "park"),
    ];
    let cases = [("lat", 64, 1), ("rate", 64, 64), ("bw", 1 << 20, 1)];
    let expected: Vec<_> = cases
        .iter()
        .flat_map(|case| services.map(|service| (*case, service)))
        .collect();
    let found: Vec<_> = records
        .iter()
        .map(|record| {
            let case = (&record.bench[..], record.size, record.window);
            (case, (&record.provider[..], &record.wait[..]))
        })
        .collect();
    assert_eq!(found, expected);
    for record in &records {
        assert_eq!(record.op, "rpc");
        assert!(record.samples > 0 && record.msgs_per_s.is_some_and(|rate| rate > 0.0));
    }

    let args = [
        "compare",
        "--op",
        "rpc",
        "--provider",
        "tcp",
        "--peer",
        "tarpc",
        "--size",
        "8",
    ];
    let output = run_bench(&[&args[..], &["--repeat", "1", "--seconds", "0.02"]].concat());
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{out}");
    for title in [
        "calls, one at a time",
        "calls, 64 in flight",
        "with a long argument",
    ] {
        let table = out.split_once(title).expect(title).1;
        let (first, rest) = table.split_once("native tcp").expect("the first row");
        assert!(first.contains("x native"), "{table}");
        for service in ["tarpc fabric shm", "tarpc UnixStream"] {
            assert!(rest.contains(service), "{table}");
        }
    }
    assert!(
        !out.contains("tonic") && !out.contains("native shm"),
        "{out}"
    );
}

#[test]
fn native_calls_are_measured_alone() {
    for (command, size, window) in [("lat", 64, 1), ("rate", 64, 64), ("bw", 1 << 20, 1)] {
        for provider in ["shm", "tcp"] {
            let args = [command, "--op", "rpc", "--provider", provider, "--json"];
            let records = run_records(&[&args[..], &["--seconds", "0.02"]].concat());
            let [record] = &records[..] else {
                panic!("one size: {records:?}");
            };
            assert_eq!(record.provider, format!("native {provider}"));
            assert_eq!((record.size, record.window), (size, window));
            assert!(record.samples > 0);
        }
    }
    let args = [
        "rate", "--op", "rpc", "--window", "3", "--wait", "park", "--size", "0,100",
    ];
    let records = run_records(&[&args[..], &["--seconds", "0.02", "--json"]].concat());
    let found: Vec<_> = records
        .iter()
        .map(|record| (record.size, record.window, &record.wait[..]))
        .collect();
    assert_eq!(found, [(0, 3, "park"), (100, 3, "park")]);
}

#[test]
fn options_that_do_not_fit_calls_are_refused() {
    let refused = |args: &[&str], parts: &[&str]| {
        assert_refused(&[args, &["--op", "rpc"]].concat(), parts);
    };
    for (option, value) in [
        ("--threading", "pinned"),
        ("--runtime", "multi"),
        ("--progress", "auto"),
        ("--msg-model", "low-latency"),
        ("--congestion", "reno"),
        ("--single-copy-threshold", "4KiB"),
        ("--idle", "3"),
    ] {
        refused(&["lat", option, value], &["rpc over shm", option]);
    }
    refused(&["lat", "--api", "cq"], &["rpc over shm", "--api await"]);
    refused(&["lat", "--threads", "2"], &["rpc over shm", "one thread"]);
    refused(&["lat", "--peers", "2"], &["rpc over shm", "one peer"]);
    refused(
        &["lat", "--endpoints", "2"],
        &["rpc over shm", "one endpoint"],
    );
    refused(&["rate", "--window", "300"], &["--window 300", "256"]);
    refused(&["bw", "--size", "17MiB"], &["17MiB", "16MiB"]);
    refused(&["lat", "--connect", "shm://x"], &["--connect"]);
    refused(&["lat", "--provider", "udp"], &["rpc over udp"]);
    refused(&["compare", "--provider", "udp"], &["--op send"]);
    refused(
        &["compare", "--peer", "ucx"],
        &[
            "unknown peer \"ucx\" of --op rpc",
            "native tcp",
            "tarpc UnixStream",
        ],
    );
    assert_refused(
        &["compare", "--peer", "tonic"],
        &["unknown peer \"tonic\" of --op send", "ucx"],
    );
}
