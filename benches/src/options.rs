//! What a measurement can be asked for, by the names of the command line and of results.

use clap::ValueEnum;
use fabric_async::{Caps, Progress, WaitPolicy};
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// What is measured.
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
    /// Copies of borrowed bytes.
    Inject,
    /// One-sided writes.
    Write,
    /// One-sided reads.
    Read,
    /// One-sided writes with completion data for the target.
    Writedata,
    /// Atomic operations.
    Atomic,
    /// Messages written in place in shared memory.
    Loan,
}

impl BenchOp {
    /// What a provider must be able to do for it.
    #[must_use]
    pub fn caps(self) -> Caps {
        match self {
            Self::Send | Self::Inject | Self::Loan => Caps::MSG,
            Self::Tagged => Caps::TAGGED,
            Self::Write | Self::Read | Self::Writedata => Caps::RMA,
            Self::Atomic => Caps::ATOMIC.union(Caps::RMA),
        }
    }

    /// Whether it reaches the peer's memory instead of sending a message.
    #[must_use]
    pub fn is_one_sided(self) -> bool {
        matches!(
            self,
            Self::Write | Self::Read | Self::Writedata | Self::Atomic
        )
    }

    /// Whether each is answered by one of the other side: latency is half of the two then.
    #[must_use]
    pub fn is_ping_pong(self) -> bool {
        !matches!(self, Self::Read | Self::Atomic)
    }
}

/// How the application hears of completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Api {
    /// Each operation is awaited.
    Await,
    /// A completion queue, one completion at a time.
    Cq,
    /// A completion queue, as many completions at a time as there are.
    Batch,
    /// No operations: calls on a window of the other side's memory.
    Window,
}

/// How waiting is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum WaitMode {
    /// Never sleeps.
    Spin,
    /// Looks for a while, then sleeps.
    Adaptive,
    /// Sleeps at once.
    Park,
}

impl WaitMode {
    /// The policy of this name.
    #[must_use]
    pub fn policy(self) -> WaitPolicy {
        match self {
            Self::Spin => WaitPolicy::Spin,
            Self::Adaptive => WaitPolicy::Adaptive,
            Self::Park => WaitPolicy::Park,
        }
    }
}

/// Who makes progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ProgressMode {
    /// Whoever polls.
    Manual,
    /// A thread of the domain.
    Auto,
}

impl ProgressMode {
    /// The progress model of this name.
    #[must_use]
    pub fn model(self) -> Progress {
        match self {
            Self::Manual => Progress::Manual,
            Self::Auto => Progress::Auto,
        }
    }
}

/// The Tokio runtime of each measuring thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum RuntimeKind {
    /// On the thread itself.
    Current,
    /// Two workers.
    Multi,
}

impl RuntimeKind {
    /// Runs this to its end, as a task of a new runtime.
    ///
    /// # Errors
    /// Those of the work; the system has no descriptors or threads left.
    pub fn run<T: Send + 'static>(
        self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let runtime = self.build().map_err(Error::io("starting a runtime"))?;
        let ended = runtime.block_on(runtime.spawn(work));
        ended.map_err(|panic| Error::Io {
            what: "a task".into(),
            error: panic.into(),
        })?
    }

    /// Builds it.
    ///
    /// # Errors
    /// What the system says when there are no descriptors or threads left.
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

/// The name of a choice.
#[must_use]
pub fn name(choice: impl ValueEnum) -> String {
    choice
        .to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_owned())
}
