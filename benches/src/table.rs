//! Results as a table.

use crate::record::Record;
use crate::size::Size;

/// A column: title, width, and the cell of a record.
type Column = (&'static str, usize, fn(&Record) -> String);

const LATENCY_COLUMNS: &[Column] = &[
    ("size", 8, |record| Size(record.size).to_string()),
    ("p50 us", 9, |record| micros(record.p50_ns)),
    ("p90 us", 9, |record| micros(record.p90_ns)),
    ("p99 us", 9, |record| micros(record.p99_ns)),
    ("p99.9 us", 9, |record| micros(record.p999_ns)),
    ("max us", 10, |record| micros(record.max_ns)),
    ("mean us", 9, |record| micros(record.mean_ns)),
    ("x floor", 8, |record| ratio(record.p50_ns, record.floor_ns)),
    ("trips/s", 9, |record| {
        format_number(record.msgs_per_s, 1.0, 0)
    }),
    ("cpu s", 7, cpu),
    ("us/trip", 8, |record| micros(record.cpu_ns_per_msg)),
    ("samples", 9, |record| record.samples.to_string()),
];

const STREAM_COLUMNS: &[Column] = &[
    ("size", 8, |record| Size(record.size).to_string()),
    ("window", 7, window),
    ("messages/s", 12, |record| {
        format_number(record.msgs_per_s, 1.0, 0)
    }),
    ("GB/s", 9, |record| {
        format_number(record.bytes_per_s, 1e9, 3)
    }),
    ("p50 us", 9, |record| micros(record.p50_ns)),
    ("max us", 9, |record| micros(record.max_ns)),
    // A rate: the inverse of `x floor`.
    ("x memcpy", 9, |record| {
        ratio(record.floor_ns, record.p50_ns)
    }),
    ("cpu s", 7, cpu),
    ("us/msg", 8, |record| micros(record.cpu_ns_per_msg)),
    ("rounds", 7, |record| record.samples.to_string()),
];

/// A floor is recorded with what was measured as its provider, and how as its operation.
const FLOOR_COLUMNS: &[Column] = &[
    ("what", 13, |record| record.provider.clone()),
    ("how", 10, |record| record.op.clone()),
    ("waiting", 8, |record| record.wait.clone()),
    ("size", 8, |record| Size(record.size).to_string()),
    ("p50 us", 9, |record| micros(record.p50_ns)),
    ("p99 us", 9, |record| micros(record.p99_ns)),
    ("GB/s", 8, |record| {
        format_number(record.bytes_per_s, 1e9, 2)
    }),
];

fn columns(bench: &str) -> &'static [Column] {
    match bench {
        "lat" => LATENCY_COLUMNS,
        "floor" => FLOOR_COLUMNS,
        _ => STREAM_COLUMNS,
    }
}

/// Returns the title row of the table for results of this measurement.
#[must_use]
pub fn titles(bench: &str) -> String {
    format_cells(
        columns(bench)
            .iter()
            .map(|(title, width, _)| (title.to_string(), *width)),
    )
}

/// Returns a result as a row.
#[must_use]
pub fn row(record: &Record) -> String {
    format_cells(
        columns(&record.bench)
            .iter()
            .map(|(_, width, cell)| (cell(record), *width)),
    )
}

/// Returns a heading with what the rows below have in common.
#[must_use]
pub fn heading(record: &Record) -> String {
    let what = match &record.bench[..] {
        "lat" if record.op == "rpc" => "whole calls",
        "bw" | "rate" if record.op == "rpc" => {
            "calls; times are of one call, averaged over a round"
        }
        "lat" if matches!(&record.op[..], "read" | "atomic") => "whole operations",
        "lat" => "half round trips",
        "bw" | "rate" => {
            "a stream in one direction; times are of one message, averaged over a round"
        }
        _ => {
            return "the floor of this machine; times are half round trips, or one copy".into();
        }
    };
    let Record {
        provider,
        op,
        api,
        wait,
        progress,
        runtime,
        peers,
        threads,
        endpoints,
        threading,
        msg_model,
        ..
    } = record;
    let threading = match threading.as_str() {
        "shared" | "" => String::new(),
        model => format!(", threading {model}"),
    };
    let msg_model = match msg_model.as_str() {
        "default" | "" => String::new(),
        model => format!(", message model {model}"),
    };
    let endpoints = match (endpoints, record.fan_in) {
        (1, _) => String::new(),
        (count, false) => format!(", endpoints {count}"),
        (count, true) => format!(", endpoints {count} to one"),
    };
    let domains = match record.domains.as_str() {
        "own" => ", a domain each",
        "resource" => ", a resource domain each",
        _ => "",
    };
    let streams = match record.streams {
        0 => String::new(),
        count => format!(", beside {count} streams"),
    };
    format!(
        "{provider}, {op}: {what}\napi {api}, wait {wait}, progress {progress}, runtime \
         {runtime}{threading}{msg_model}, peers {peers}, threads \
         {threads}{endpoints}{domains}{streams}"
    )
}

/// Right-aligns cells in columns of these widths.
pub(crate) fn format_cells(cells: impl Iterator<Item = (String, usize)>) -> String {
    let line: String = cells
        .map(|(cell, width)| format!("{cell:>width$}  "))
        .collect();
    line.trim_end().to_owned()
}

/// Formats nanoseconds as microseconds; `-` if not measured.
#[must_use]
pub fn micros(ns: Option<f64>) -> String {
    format_number(ns, 1e3, 3)
}

/// Formats a quotient; `-` if a part is missing or the divisor is 0.
#[must_use]
pub fn ratio(dividend: Option<f64>, divisor: Option<f64>) -> String {
    match (dividend, divisor) {
        (Some(dividend), Some(divisor)) if divisor > 0.0 => format!("{:.2}", dividend / divisor),
        _ => "-".into(),
    }
}

fn format_number(value: Option<f64>, unit: f64, digits: usize) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{:.digits$}", value / unit))
}

fn window(record: &Record) -> String {
    if record.window == 0 {
        "-".into()
    } else {
        record.window.to_string()
    }
}

fn cpu(record: &Record) -> String {
    format_number(
        record
            .cpu_user_s
            .zip(record.cpu_sys_s)
            .map(|(user, sys)| user + sys),
        1.0,
        2,
    )
}
