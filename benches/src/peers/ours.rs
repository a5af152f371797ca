//! The fabric itself, measured as `lat`, `bw` and `rate` do it.

use super::{Case, Peer};
use crate::choice::{Api, Drive, Runtime, Wait};
use crate::measure::{Budget, Plan, WINDOW, measure};
use crate::pair::Pair;
use crate::record::Record;
use crate::stop::Stop;
use crate::{Error, Result};

/// The fabric over one provider.
#[derive(Debug)]
pub struct Ours {
    provider: String,
    name: String,
}

impl Ours {
    /// Over this provider.
    #[must_use]
    pub fn new(provider: &str) -> Self {
        Self {
            provider: provider.to_owned(),
            name: format!("fabric {provider}"),
        }
    }

    /// What is measured: operations that are awaited, both sides spinning.
    #[must_use]
    pub fn plan(&self, case: &Case) -> Plan {
        Plan {
            bench: case.bench,
            provider: self.provider.clone(),
            op: case.op,
            api: Api::Await,
            wait: Wait::Spin,
            progress: Drive::Manual,
            runtime: Runtime::Current,
            window: WINDOW,
            single_copy_from: None,
            idle: 0,
            congestion: None,
            peers: 1,
            threads: 1,
            budget: Budget::Seconds(case.time.as_secs_f64()),
            sizes: vec![case.size],
            cores: vec![case.cores],
        }
    }

    /// Measures a plan of one size, with a fresh process as the other side.
    ///
    /// # Errors
    /// As [`Peer::measure`].
    pub fn run(&self, plan: &Plan, stop: &Stop) -> Result<Record> {
        let mut measured = None;
        let mut pair = Pair::start(&self.provider)?;
        measure(plan, &mut pair, stop, |record| {
            measured = Some(Record {
                provider: self.name.clone(),
                ..record
            });
            Ok(())
        })?;
        measured.ok_or(Error::Interrupted)
    }
}

impl Peer for Ours {
    fn name(&self) -> &str {
        &self.name
    }

    fn missing(&self) -> Option<String> {
        None
    }

    fn measures(&self, _: &Case) -> bool {
        true
    }

    fn measure(&self, case: &Case, stop: &Stop) -> Result<Record> {
        self.run(&self.plan(case), stop)
    }
}
