//! One result, as it is printed and read back.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// One result. The fields are the keys of the JSON stream, and stay as they are.
///
/// Times are nanoseconds. For latency they are half round trips, of reads and atomics whole
/// operations. For streams they are the time of one message, averaged over a round of many:
/// percentiles are then those of rounds. What somebody did not measure or does not say is `None`,
/// and `null` in JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// What was measured: `lat`, `bw`, `rate` or `floor`.
    pub bench: String,
    /// Who was measured: a provider, a peer library, or a part of the floor.
    pub provider: String,
    /// The operation.
    pub op: String,
    /// How the application heard of completions.
    pub api: String,
    /// Bytes of a message.
    pub size: usize,
    /// How waiting was done.
    pub wait: String,
    /// Who made progress.
    pub progress: String,
    /// On which runtime.
    pub runtime: String,
    /// Messages under way: one in latencies; 0 in streams that have no window, or of those who do
    /// not say theirs.
    pub window: usize,
    /// Endpoints on the other side, per thread.
    pub peers: usize,
    /// Measuring threads; files from before this key was there have one.
    #[serde(default = "one")]
    pub threads: usize,
    /// The median.
    pub p50_ns: Option<f64>,
    /// Nine of ten are at most this.
    pub p90_ns: Option<f64>,
    /// 99 of 100.
    pub p99_ns: Option<f64>,
    /// 999 of 1000.
    pub p999_ns: Option<f64>,
    /// The largest.
    pub max_ns: Option<f64>,
    /// The mean; of streams, the time of all messages by their number.
    pub mean_ns: Option<f64>,
    /// Messages per second in one direction; of several threads together, within the longest of
    /// their times.
    pub msgs_per_s: Option<f64>,
    /// Bytes per second in one direction.
    pub bytes_per_s: Option<f64>,
    /// Seconds of processor time in user mode, of both processes together.
    pub cpu_user_s: Option<f64>,
    /// Likewise in the kernel.
    pub cpu_sys_s: Option<f64>,
    /// What this machine needs at least, measured in the same run on the same cores: for latency, a
    /// cache line from core to core and one copy of the message; for streams the copy alone. No
    /// latency has one on a single core.
    pub floor_ns: Option<f64>,
    /// What one look at the clock costs, measured on the same core: each round trip contains one,
    /// each round of a stream two. Programs of others do not say theirs.
    #[serde(default)]
    pub timer_ns: Option<f64>,
    /// Bytes of memory that the measuring process has for each connection that is silent, where
    /// there are some.
    #[serde(default)]
    pub idle_bytes: Option<f64>,
    /// How many times the percentiles are of: round trips, or rounds of a stream, of which each
    /// time is a mean. Of programs of others: the messages, or round trips, that they were asked
    /// for.
    pub samples: u64,
}

fn one() -> usize {
    1
}

impl Record {
    /// The time to quote: the median, or the mean of those who do not say the median.
    #[must_use]
    pub fn typical_ns(&self) -> Option<f64> {
        self.p50_ns.or(self.mean_ns)
    }

    /// One line of JSON.
    ///
    /// # Errors
    /// None that are known: numbers and text always serialise.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|error| Error::Malformed {
            origin: "the JSON writer".into(),
            text: error.to_string(),
        })
    }
}

/// Reads a stream of results: one JSON object a line, blank lines between them allowed.
///
/// # Errors
/// The file cannot be read, or a line of it; the error names the line.
pub fn read(path: &Path) -> Result<Vec<Record>> {
    let at = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::InvalidRequest(format!("reading {at}: {error}")))?;
    parse(&text).map_err(|(line, why)| Error::InvalidRequest(format!("{at}:{line}: {why}")))
}

/// The results in this text; else the number of the first line that is none, and why.
///
/// # Errors
/// As above.
pub fn parse(text: &str) -> Result<Vec<Record>, (usize, String)> {
    let lines = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty());
    let record = |line: &str| match serde_json::from_str(line) {
        Err(why) if why.is_eof() || !line.trim_start().starts_with('{') => {
            Err("not one JSON object a line, as --json prints them".to_owned())
        }
        other => other.map_err(|why| why.to_string()),
    };
    lines
        .map(|(at, line)| record(line).map_err(|why| (at + 1, why)))
        .collect()
}
