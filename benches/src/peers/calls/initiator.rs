//! The client process: calls, and how long they take.

use std::time::Instant;

use bytes::Bytes;
use futures_util::future::try_join_all;

use super::CallPlan;
use crate::measure::rounds::{MeasureOutcome, RoundScheduler};
use crate::options::Bench;
use crate::samples::TimeStamps;
use crate::stop::Stop;
use crate::{Error, Result, pin};

/// A byte of every argument.
pub(super) const FILL: u8 = 7;

/// The client of a service.
pub(super) trait CallClient: Send + Sync + 'static {
    /// Calls the method that returns its argument.
    fn echo(&self, argument: Bytes) -> impl Future<Output = Result<Bytes>> + Send;

    /// Writes an argument of this length, and calls the method that returns the length.
    fn measure(&self, len: usize) -> impl Future<Output = Result<u64>> + Send;
}

/// Checks the service, pins this thread and measures calls.
///
/// # Errors
/// A call failed, or its answer is wrong.
pub(super) async fn measure<C: CallClient>(
    client: C,
    plan: CallPlan,
    stop: &Stop,
) -> Result<MeasureOutcome> {
    let argument = Bytes::from(vec![FILL; plan.size]);
    let echo = client.echo(argument.clone()).await?;
    if echo != argument {
        return Err(wrong_answer("an echo with other bytes"));
    }
    if let Some(core) = plan.cores.0 {
        pin::pin_to_core(core);
    }
    let mut stamps = TimeStamps::new(0);
    let mut rounds = RoundScheduler::new(plan.bench, plan.budget, plan.size).report_round_trips();
    let window = plan.window as u64;
    while let Some(count) = rounds.next_round(window, stop) {
        let elapsed = match plan.bench {
            Bench::Lat => {
                stamps.reserve(count as usize);
                stamps.begin();
                for _ in 0..count {
                    call_echo(&client, &argument).await?;
                    stamps.stamp();
                }
                stamps.elapsed()
            }
            Bench::Rate => {
                let began = Instant::now();
                let caller = || async {
                    for _ in 0..count / window {
                        call_echo(&client, &argument).await?;
                    }
                    Ok::<_, Error>(())
                };
                try_join_all((0..window).map(|_| caller())).await?;
                began.elapsed()
            }
            Bench::Bw => {
                let began = Instant::now();
                let caller = || async {
                    for _ in 0..count / window {
                        if client.measure(plan.size).await? != plan.size as u64 {
                            return Err(wrong_answer("another length"));
                        }
                    }
                    Ok::<_, Error>(())
                };
                try_join_all((0..window).map(|_| caller())).await?;
                began.elapsed()
            }
        };
        rounds.record_round(count, elapsed, &stamps);
    }
    Ok(rounds.into_outcome())
}

async fn call_echo(client: &impl CallClient, argument: &Bytes) -> Result<()> {
    let echo = client.echo(argument.clone()).await?;
    if echo.len() == argument.len() {
        Ok(())
    } else {
        Err(wrong_answer("an echo of another length"))
    }
}

fn wrong_answer(what: &str) -> Error {
    Error::Malformed {
        origin: "the service".into(),
        text: what.into(),
    }
}
