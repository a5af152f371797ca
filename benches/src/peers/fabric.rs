//! The fabric itself, measured as by the commands `lat`, `bw` and `rate`.

use super::{BenchCase, MeasuredLibrary};
use crate::measure::{Budget, DEFAULT_WINDOW, Plan, measure};
use crate::options::{
    Api, BenchOp, DomainLayout, MessageModelKind, ProgressMode, RuntimeKind, ThreadModelKind,
    WaitMode,
};
use crate::peer_process::PeerProcess;
use crate::record::Record;
use crate::stop::Stop;
use crate::{Error, Result};

/// The fabric over one provider.
#[derive(Debug)]
pub struct FabricLibrary {
    provider: String,
    name: String,
}

impl FabricLibrary {
    /// Creates the peer for this provider.
    #[must_use]
    pub fn new(provider: &str) -> Self {
        Self {
            provider: provider.to_owned(),
            name: format!("fabric {provider}"),
        }
    }

    /// Returns the plan of a case: awaited operations, both sides spinning.
    #[must_use]
    pub fn plan(&self, case: &BenchCase) -> Plan {
        Plan {
            bench: case.bench,
            provider: self.provider.clone(),
            op: case.op,
            api: Api::Await,
            wait: WaitMode::Spin,
            progress: ProgressMode::Manual,
            runtime: RuntimeKind::Current,
            threading: ThreadModelKind::Shared,
            msg_model: MessageModelKind::Default,
            window: DEFAULT_WINDOW,
            single_copy_threshold: None,
            idle: 0,
            congestion: None,
            peers: 1,
            endpoints: 1,
            fan_in: false,
            domains: DomainLayout::One,
            streams: 0,
            threads: 1,
            budget: Budget::Seconds(case.time.as_secs_f64()),
            sizes: vec![case.size],
            cores: vec![case.cores],
        }
    }

    /// Measures a plan of one size, with a fresh process as the responder.
    ///
    /// # Errors
    /// As [`MeasuredLibrary::measure`].
    pub fn run(&self, plan: &Plan, stop: &Stop) -> Result<Record> {
        let mut measured = None;
        let mut peer_process = PeerProcess::start(&self.provider)?;
        measure(plan, &mut peer_process, stop, |record| {
            measured = Some(Record {
                provider: self.name.clone(),
                ..record
            });
            Ok(())
        })?;
        measured.ok_or(Error::Interrupted)
    }
}

impl MeasuredLibrary for FabricLibrary {
    fn name(&self) -> &str {
        &self.name
    }

    fn unavailable(&self) -> Option<String> {
        None
    }

    fn supports(&self, case: &BenchCase) -> bool {
        case.op != BenchOp::Rpc
    }

    fn measure(&self, case: &BenchCase, stop: &Stop) -> Result<Record> {
        self.run(&self.plan(case), stop)
    }
}
