//! Options of a measurement, by their names on the command line and in results.

use clap::ValueEnum;
use fabric_async::resource_domain::MessageModel;
use fabric_async::{Caps, Progress, WaitPolicy};
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// The kind of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Bench {
    /// Half round trips.
    Lat,
    /// Bytes per second in one direction.
    Bw,
    /// Messages per second in one direction.
    Rate,
}

/// The operation that moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum BenchOp {
    /// Untagged messages.
    Send,
    /// Tagged messages.
    Tagged,
    /// Messages copied by `inject`.
    Inject,
    /// One-sided writes.
    Write,
    /// One-sided reads.
    Read,
    /// One-sided writes with completion data for the target.
    Writedata,
    /// Atomic operations.
    Atomic,
    /// Messages written in place in loaned shared memory.
    Loan,
    /// Remote procedure calls.
    Rpc,
}

impl BenchOp {
    /// Returns the capabilities that it needs.
    #[must_use]
    pub fn caps(self) -> Caps {
        match self {
            Self::Send | Self::Inject | Self::Loan | Self::Rpc => Caps::MSG,
            Self::Tagged => Caps::TAGGED,
            Self::Write | Self::Read | Self::Writedata => Caps::RMA,
            Self::Atomic => Caps::ATOMIC.union(Caps::RMA),
        }
    }

    /// Whether it accesses the peer's memory instead of sending a message.
    #[must_use]
    pub fn is_one_sided(self) -> bool {
        matches!(
            self,
            Self::Write | Self::Read | Self::Writedata | Self::Atomic
        )
    }

    /// Whether the other side answers each operation with one of its own; latency is then half of
    /// the two. That of a call is the whole call.
    #[must_use]
    pub fn is_ping_pong(self) -> bool {
        !matches!(self, Self::Read | Self::Atomic | Self::Rpc)
    }
}

/// How the application takes completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Api {
    /// Each operation is awaited.
    Await,
    /// A completion queue, one completion at a time.
    Cq,
    /// A completion queue, all available completions at a time.
    Batch,
    /// No operations: loads and stores on a mapped remote region.
    Mapped,
}

/// The wait policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum WaitMode {
    /// Never sleeps.
    Spin,
    /// Polls for a while, then sleeps.
    Adaptive,
    /// Sleeps at once.
    Park,
}

impl WaitMode {
    /// Returns the policy of this name.
    #[must_use]
    pub fn policy(self) -> WaitPolicy {
        match self {
            Self::Spin => WaitPolicy::Spin,
            Self::Adaptive => WaitPolicy::Adaptive,
            Self::Park => WaitPolicy::Park,
        }
    }
}

/// The progress model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ProgressMode {
    /// The threads that poll make progress.
    Manual,
    /// A thread of the domain makes progress.
    Auto,
}

impl ProgressMode {
    /// Returns the progress model of this name.
    #[must_use]
    pub fn model(self) -> Progress {
        match self {
            Self::Manual => Progress::Manual,
            Self::Auto => Progress::Auto,
        }
    }
}

/// The thread model of the domains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ThreadModelKind {
    /// Any thread may use a domain.
    #[default]
    Shared,
    /// The thread that opens a domain owns it.
    Pinned,
    /// One thread at a time uses a domain.
    Serial,
}

/// The message model of the domains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum MessageModelKind {
    /// Messages that are sent together share a doorbell or a system call.
    #[default]
    Default,
    /// Each message leaves at once.
    LowLatency,
    /// Messages leave together, with the next pass.
    HighBandwidth,
    /// As low-latency, with a reserved core.
    ForceLowLatency,
}

impl MessageModelKind {
    pub(crate) fn model(self) -> MessageModel {
        match self {
            Self::Default => MessageModel::Default,
            Self::LowLatency => MessageModel::LowLatency,
            Self::HighBandwidth => MessageModel::HighBandwidth,
            Self::ForceLowLatency => MessageModel::ForceLowLatency,
        }
    }
}

/// The domains of the endpoints of a measuring thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum DomainLayout {
    /// One domain for all endpoints.
    #[default]
    One,
    /// A resource domain of one domain for each endpoint.
    Resource,
    /// A domain for each endpoint.
    Own,
}

/// The Tokio runtime of each measuring thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum RuntimeKind {
    /// A current-thread runtime, on the measuring thread.
    Current,
    /// A multi-thread runtime with two workers.
    Multi,
}

impl RuntimeKind {
    /// Runs `work` to its end, as a task of a new runtime.
    ///
    /// # Errors
    /// Those of `work`; [`Error::Io`] if the system has no descriptors or threads left.
    pub fn run<T: Send + 'static>(
        self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let runtime = self.build().map_err(Error::io("starting a runtime"))?;
        let ended = runtime.block_on(runtime.spawn(work));
        ended.map_err(|panic| Error::Io {
            what: "running the benchmark task".into(),
            error: panic.into(),
        })?
    }

    /// Builds the runtime.
    ///
    /// # Errors
    /// The system has no descriptors or threads left.
    pub fn build(self) -> std::io::Result<tokio::runtime::Runtime> {
        match self {
            Self::Current => tokio::runtime::Builder::new_current_thread(),
            Self::Multi => {
                let mut builder = tokio::runtime::Builder::new_multi_thread();
                builder.worker_threads(2);
                builder
            }
        }
        .enable_all()
        .build()
    }
}

/// Returns the command line name of a value.
#[must_use]
pub fn name(choice: impl ValueEnum) -> String {
    choice
        .to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_owned())
}
