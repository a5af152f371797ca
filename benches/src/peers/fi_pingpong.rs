//! libfabric, by its own program `fi_pingpong`. Its output is reported as it is: a mean with two
//! decimals over all round trips, warm-up included.

use std::process::Command;
use std::time::Duration;

use super::{BenchCase, MeasuredLibrary, program};
use crate::options::{Bench, BenchOp};
use crate::record::Record;
use crate::stop::Stop;
use crate::{Error, Result};

const PROGRAM: &str = "fi_pingpong";

/// One provider of libfabric.
#[derive(Debug)]
pub struct FiPingpong {
    name: &'static str,
    provider: &'static str,
    /// The endpoint type.
    ep_type: &'static str,
    /// Estimated duration of a round trip of a small message.
    estimated_trip: Duration,
    /// The longest message, in bytes.
    max_size: usize,
}

impl FiPingpong {
    /// Shared memory.
    pub const SHM: Self = Self::new("fi_pingpong shm", "shm", "rdm", 3, usize::MAX);
    /// TCP.
    pub const TCP: Self = Self::new("fi_pingpong tcp", "tcp", "rdm", 40, usize::MAX);
    /// UDP, whose messages are datagrams of one packet.
    pub const UDP: Self = Self::new("fi_pingpong udp", "udp", "dgram", 40, 1472);

    const fn new(
        name: &'static str,
        provider: &'static str,
        ep_type: &'static str,
        micros: u64,
        max_size: usize,
    ) -> Self {
        Self {
            name,
            provider,
            ep_type,
            estimated_trip: Duration::from_micros(micros),
            max_size,
        }
    }
}

impl MeasuredLibrary for FiPingpong {
    fn name(&self) -> &str {
        self.name
    }

    fn unavailable(&self) -> Option<String> {
        program::unavailable(PROGRAM, "libfabric-bin")
    }

    fn supports(&self, case: &BenchCase) -> bool {
        (case.bench, case.op) == (Bench::Lat, BenchOp::Send) && case.size <= self.max_size
    }

    fn measure(&self, case: &BenchCase, stop: &Stop) -> Result<Record> {
        let count =
            case.estimate_count(self.estimated_trip + Duration::from_nanos(case.size as u64));
        let build = |port: u16, server: bool| {
            let mut command = Command::new(PROGRAM);
            command.args(["-e", self.ep_type, "-p", self.provider]);
            command.args(["-I", &count.to_string(), "-S", &case.size.to_string()]);
            match server {
                true => command.args(["-B", &port.to_string()]),
                false => command.args(["-P", &port.to_string(), "127.0.0.1"]),
            };
            command
        };
        let text = program::run_server_and_client(self.name, case, stop, build)?;
        let mean = parse_output(&text).ok_or(Error::Malformed {
            origin: self.name.into(),
            text,
        })?;
        let per_second = (1e9 / mean).round();
        Ok(Record {
            wait: "spin".into(),
            progress: "manual".into(),
            mean_ns: Some(mean),
            msgs_per_s: Some((per_second / 2.0).round()),
            bytes_per_s: Some((per_second / 2.0 * case.size as f64).round()),
            samples: count,
            ..case.empty_record(self)
        })
    }
}

/// Parses the half round trip in nanoseconds: the column `usec/xfer` of the last line.
fn parse_output(text: &str) -> Option<f64> {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let column = lines
        .next()?
        .split_ascii_whitespace()
        .position(|title| title == "usec/xfer")?;
    let micros: f64 = lines
        .next_back()?
        .split_ascii_whitespace()
        .nth(column)?
        .parse()
        .ok()?;
    (micros > 0.0).then_some(micros * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fi_pingpong_output_is_parsed() {
        let text = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   \
                    Mxfers/sec\n\
                    64      20k     =20k     2.4m        0.04s      72.32       0.88       1.13\n";
        assert_eq!(parse_output(text), Some(880.0));
        assert_eq!(parse_output("bytes   #sent\n64   20k\n"), None);
        assert_eq!(parse_output(""), None);
    }
}
