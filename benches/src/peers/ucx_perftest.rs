//! UCX over shared memory, by its own program `ucx_perftest`: tagged and active messages of its
//! protocol layer (UCP), and the one-sided operations of its transport layer (UCT).

use std::process::Command;
use std::time::Duration;

use super::{BenchCase, MeasuredLibrary, program};
use crate::options::{Bench, BenchOp, name};
use crate::record::Record;
use crate::stop::Stop;
use crate::{Error, Result};

const PROGRAM: &str = "ucx_perftest";
const ALL_SHARED_MEMORY: &str = "shm,self";
/// The unit in which it prints bandwidth.
const MEGABYTE: f64 = 1024.0 * 1024.0;

/// UCX, with one of its message interfaces.
#[derive(Debug)]
pub struct UcxPerftest {
    name: &'static str,
    /// The transports that it may use (`UCX_TLS`).
    transports: &'static str,
    op_name: &'static str,
    /// Its tests of messages: latency, and streams.
    test_names: [&'static str; 2],
    has_one_sided: bool,
}

impl UcxPerftest {
    /// Tagged messages, and one-sided operations.
    pub const TAG: Self = Self {
        name: "ucx_perftest shm",
        transports: ALL_SHARED_MEMORY,
        op_name: "tagged",
        test_names: ["tag_lat", "tag_bw"],
        has_one_sided: true,
    };
    /// Active messages: a handler is called instead of matching a tag.
    pub const AM: Self = Self {
        name: "ucx_perftest am",
        transports: ALL_SHARED_MEMORY,
        op_name: "am",
        test_names: ["ucp_am_lat", "ucp_am_bw"],
        has_one_sided: false,
    };
    /// Tagged messages that are copied through shared memory, never directly between processes.
    pub const POSIX: Self = Self {
        name: "ucx_perftest posix",
        transports: "posix,self",
        op_name: "tagged",
        test_names: ["tag_lat", "tag_bw"],
        has_one_sided: false,
    };

    /// Returns the test for a case, and how many operations one iteration consists of.
    fn test_for(&self, case: &BenchCase) -> Option<(&'static str, u32)> {
        let [lat, bw] = self.test_names;
        match (case.op, case.bench) {
            (BenchOp::Send, Bench::Lat) => Some((lat, 2)),
            (BenchOp::Send, _) => Some((bw, 1)),
            _ if !self.has_one_sided => None,
            (BenchOp::Write, Bench::Lat) => Some(("put_lat", 2)),
            (BenchOp::Write, _) => Some(("put_bw", 1)),
            (BenchOp::Atomic, _) if case.size == 8 => Some(("fadd", 1)),
            _ => None,
        }
    }
}

impl MeasuredLibrary for UcxPerftest {
    fn name(&self) -> &str {
        self.name
    }

    fn unavailable(&self) -> Option<String> {
        program::unavailable(PROGRAM, "ucx-utils")
    }

    fn supports(&self, case: &BenchCase) -> bool {
        self.test_for(case).is_some()
    }

    fn measure(&self, case: &BenchCase, stop: &Stop) -> Result<Record> {
        let Some((test, trips)) = self.test_for(case) else {
            return Err(Error::InvalidRequest(format!(
                "{PROGRAM} has no test for this operation"
            )));
        };
        let is_one_sided = case.op.is_one_sided();
        let count = case.estimate_count(trips * Duration::from_nanos(400 + case.size as u64 / 4));
        let build = |port: u16, server: bool| {
            let mut command = Command::new(PROGRAM);
            command
                .env("UCX_TLS", self.transports)
                .env("UCX_LOG_LEVEL", "error");
            command.args(["-v", "-p", &port.to_string()]);
            if is_one_sided {
                command.args(["-d", "memory", "-x", "posix"]);
            }
            if !server {
                command.args([
                    "-t",
                    test,
                    "-s",
                    &case.size.to_string(),
                    "-n",
                    &count.to_string(),
                ]);
                command.args(["-w", &(count / 10).to_string(), "127.0.0.1"]);
            }
            command
        };
        let text = program::run_server_and_client(self.name(), case, stop, build)?;
        let row = parse_output(&text).ok_or_else(|| Error::Malformed {
            origin: self.name().into(),
            text,
        })?;
        let mut record = Record {
            op: if is_one_sided {
                name(case.op)
            } else {
                self.op_name.into()
            },
            wait: "spin".into(),
            progress: "manual".into(),
            mean_ns: Some(row.mean_ns),
            samples: count,
            ..case.empty_record(self)
        };
        if case.bench == Bench::Lat {
            record.p50_ns = Some(row.p50_ns);
        } else {
            record.bytes_per_s = Some(row.bytes_per_s);
            record.msgs_per_s = Some(row.msgs_per_s);
        }
        Ok(record)
    }
}

struct PerftestRow {
    p50_ns: f64,
    mean_ns: f64,
    bytes_per_s: f64,
    msgs_per_s: f64,
}

/// Parses the last line of figures, by the column titles.
fn parse_output(text: &str) -> Option<PerftestRow> {
    let titles: Vec<_> = text
        .lines()
        .find(|line| line.starts_with("iterations,"))?
        .split(',')
        .collect();
    let last = text
        .lines()
        .map(str::trim)
        .rfind(|line| line.starts_with(|c: char| c.is_ascii_digit()))?;
    let numbers: Vec<f64> = last
        .split(',')
        .map(|number| number.trim().parse().ok())
        .collect::<Option<_>>()?;
    let number = |title: &str| {
        numbers
            .get(titles.iter().position(|known| *known == title)?)
            .copied()
    };
    Some(PerftestRow {
        p50_ns: number("50.0_percentile_lat")? * 1e3,
        mean_ns: number("overall_lat")? * 1e3,
        bytes_per_s: number("overall_bw")? * MEGABYTE,
        msgs_per_s: number("overall_mr")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ucx_perftest_output_is_parsed() {
        let text = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,\
                    avg_mr,overall_mr\n\
                    20000,0.347,0.406,0.406,150.26,150.26,2461843,2461843\n";
        let row = parse_output(text).expect("a row");
        assert!((row.p50_ns - 347.0).abs() < 1e-6 && (row.mean_ns - 406.0).abs() < 1e-6);
        assert!((row.bytes_per_s - 150.26 * MEGABYTE).abs() < 1.0 && row.msgs_per_s > 2.4e6);
        let indented = text.replace("20000,", " 476,");
        assert!(
            parse_output(&indented).is_some(),
            "small counts are indented"
        );
        assert!(parse_output("Connection refused\n").is_none());
        assert!(parse_output("iterations,overall_lat\n5,0.1\n").is_none());
    }
}
