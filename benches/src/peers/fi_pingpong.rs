//! libfabric, by its own program `fi_pingpong`. What it prints is reported as it stands: a mean, of
//! two digits behind the point, over all round trips from the first on.

use std::process::Command;
use std::time::Duration;

use super::{Case, Peer, program};
use crate::choice::{Bench, Op};
use crate::record::Record;
use crate::stop::Stop;
use crate::{Error, Result};

const PROGRAM: &str = "fi_pingpong";

/// One provider of libfabric.
#[derive(Debug)]
pub struct FiPingpong {
    name: &'static str,
    provider: &'static str,
    /// The type of the endpoints.
    ep: &'static str,
    /// A round trip of a small message is guessed to take as long.
    guess: Duration,
    /// The longest message.
    limit: usize,
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
        ep: &'static str,
        micros: u64,
        limit: usize,
    ) -> Self {
        Self {
            name,
            provider,
            ep,
            guess: Duration::from_micros(micros),
            limit,
        }
    }
}

impl Peer for FiPingpong {
    fn name(&self) -> &str {
        self.name
    }

    fn missing(&self) -> Option<String> {
        program::missing(PROGRAM, "libfabric-bin")
    }

    fn measures(&self, case: &Case) -> bool {
        (case.bench, case.op) == (Bench::Lat, Op::Send) && case.size <= self.limit
    }

    fn measure(&self, case: &Case, stop: &Stop) -> Result<Record> {
        let count = case.count(self.guess + Duration::from_nanos(case.size as u64));
        let build = |port: u16, server: bool| {
            let mut command = Command::new(PROGRAM);
            command.args(["-e", self.ep, "-p", self.provider]);
            command.args(["-I", &count.to_string(), "-S", &case.size.to_string()]);
            match server {
                true => command.args(["-B", &port.to_string()]),
                false => command.args(["-P", &port.to_string(), "127.0.0.1"]),
            };
            command
        };
        let text = program::run(self.name, case, stop, build)?;
        let mean = parse(&text).ok_or(Error::NotUnderstood {
            who: self.name.into(),
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
            ..case.record(self)
        })
    }
}

/// The half round trip in nanoseconds: the column `usec/xfer` of the last line.
fn parse(text: &str) -> Option<f64> {
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
    fn reads_what_the_program_prints() {
        let text = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                    64      20k     =20k     2.4m        0.04s      72.32       0.88       1.13\n";
        assert_eq!(parse(text), Some(880.0));
        assert_eq!(parse("bytes   #sent\n64   20k\n"), None);
        assert_eq!(parse(""), None);
    }
}
