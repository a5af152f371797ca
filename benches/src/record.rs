//! One result, as it is printed and read back.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// One result. The fields are the keys of the JSON stream, and must not change.
///
/// Times are nanoseconds: half round trips for latencies, whole operations for reads, atomics and
/// calls.
/// For streams they are the time of one message, averaged over a round; percentiles are then those
/// of rounds. A value that was not measured or is not reported is `None`, and `null` in JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The measurement: `lat`, `bw`, `rate` or `floor`.
    pub bench: String,
    /// The provider, peer library or part of the floor.
    pub provider: String,
    /// The operation.
    pub op: String,
    /// How the application took completions.
    pub api: String,
    /// Bytes of a message.
    pub size: usize,
    /// The wait policy.
    pub wait: String,
    /// The progress model.
    pub progress: String,
    /// The Tokio runtime.
    pub runtime: String,
    /// The thread model; `shared` in files that lack this key.
    #[serde(default = "shared")]
    pub threading: String,
    /// The message model; `default` in files that lack this key.
    #[serde(default = "default_model")]
    pub msg_model: String,
    /// Messages in flight: one for latencies; 0 for streams without a window, or whose program does
    /// not report it.
    pub window: usize,
    /// Endpoints on the other side, for each measuring endpoint.
    pub peers: usize,
    /// Measuring threads; one in files that lack this key.
    #[serde(default = "one")]
    pub threads: usize,
    /// Measuring endpoints of each thread; one in files that lack this key.
    #[serde(default = "one")]
    pub endpoints: usize,
    /// Whether the endpoints of a thread talk with one endpoint of the other side.
    #[serde(default)]
    pub fan_in: bool,
    /// The domains of the endpoints of a thread; `one` in files that lack this key.
    #[serde(default = "one_domain")]
    pub domains: String,
    /// Endpoints in the domain of the measured ones that stream messages meanwhile.
    #[serde(default)]
    pub streams: usize,
    /// The median.
    pub p50_ns: Option<f64>,
    /// The 90th percentile.
    pub p90_ns: Option<f64>,
    /// The 99th percentile.
    pub p99_ns: Option<f64>,
    /// The 99.9th percentile.
    pub p999_ns: Option<f64>,
    /// The largest.
    pub max_ns: Option<f64>,
    /// The mean; of streams, the total time divided by the number of messages.
    pub mean_ns: Option<f64>,
    /// Messages per second in one direction, or round trips; of several threads, all messages
    /// divided by the longest time.
    pub msgs_per_s: Option<f64>,
    /// Bytes per second in one direction.
    pub bytes_per_s: Option<f64>,
    /// Seconds of processor time in user mode, of both processes.
    pub cpu_user_s: Option<f64>,
    /// Seconds of processor time in the kernel, of both processes.
    pub cpu_sys_s: Option<f64>,
    /// Processor time of both processes for a message, or for a round trip, in nanoseconds.
    #[serde(default)]
    pub cpu_ns_per_msg: Option<f64>,
    /// The floor of this machine, measured in the same run on the same cores: for latencies a cache
    /// line from core to core and one copy of the message, for streams the copy alone. Latencies on
    /// a single core have none.
    pub floor_ns: Option<f64>,
    /// Cost of one reading of the clock on the same core: each round trip contains one, each round
    /// of a stream two. Other programs do not report theirs.
    #[serde(default)]
    pub timer_ns: Option<f64>,
    /// Memory of the measuring process for each idle connection, in bytes, if there are any.
    #[serde(default)]
    pub idle_bytes: Option<f64>,
    /// Number of samples: round trips, or rounds of a stream. Of other programs: the messages or
    /// round trips that were requested.
    pub samples: u64,
}

fn one() -> usize {
    1
}

/// The thread model of files that do not state it.
fn shared() -> String {
    "shared".into()
}

/// The domains of files that do not state them.
fn one_domain() -> String {
    "one".into()
}

/// The message model of files that do not state it.
fn default_model() -> String {
    "default".into()
}

impl Record {
    /// Returns the time to quote: the median, or else the mean.
    #[must_use]
    pub fn typical_ns(&self) -> Option<f64> {
        self.p50_ns.or(self.mean_ns)
    }

    /// Returns one line of JSON.
    ///
    /// # Errors
    /// None in practice: numbers and text always serialise.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|error| Error::Malformed {
            origin: "the JSON writer".into(),
            text: error.to_string(),
        })
    }
}

/// Reads results: one JSON object per line, with blank lines allowed.
///
/// # Errors
/// [`Error::InvalidRequest`] if the file cannot be read or parsed; the text names the line.
pub fn read(path: &Path) -> Result<Vec<Record>> {
    let at = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::InvalidRequest(format!("reading {at}: {error}")))?;
    parse(&text).map_err(|(line, why)| Error::InvalidRequest(format!("{at}:{line}: {why}")))
}

/// Parses results.
///
/// # Errors
/// The number of the first malformed line, and why.
pub fn parse(text: &str) -> Result<Vec<Record>, (usize, String)> {
    let lines = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty());
    let record = |line: &str| match serde_json::from_str(line) {
        Err(why) if why.is_eof() || !line.trim_start().starts_with('{') => {
            Err("not one JSON object per line, as --json prints".to_owned())
        }
        other => other.map_err(|why| why.to_string()),
    };
    lines
        .map(|(at, line)| record(line).map_err(|why| (at + 1, why)))
        .collect()
}
