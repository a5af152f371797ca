//! The fabric over udp. What `lat` does takes messages that arrive, one after the other; here the
//! measuring side is answered whatever it sends, and nothing else is said.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fabric_async::{Endpoint, Error as FabricError, WaitPolicy};
use tokio::time::timeout;

use super::{BenchCase, BenchPeer};
use crate::measure::Budget;
use crate::measure::rounds::{MeasureOutcome, RoundScheduler, fill_record};
use crate::options::{Bench, BenchOp, RuntimeKind};
use crate::peer_process::{ChildProcess, current_program};
use crate::record::Record;
use crate::samples::TimeStamps;
use crate::stop::Stop;
use crate::{Error, Result, pin};

/// What libfabric sends in one datagram.
const MAX_DATAGRAM: usize = 1472;
/// Nothing comes twice: a datagram that takes longer than this is lost.
const LOSS_TIMEOUT: Duration = Duration::from_secs(5);
/// An address inside this machine.
const LOOPBACK_ADDRESS: &str = "udp://127.0.0.1:0";

/// The fabric over udp.
#[derive(Clone, Copy, Debug)]
pub struct FabricUdp;

impl BenchPeer for FabricUdp {
    fn name(&self) -> &str {
        "fabric udp"
    }

    fn unavailable(&self) -> Option<String> {
        None
    }

    /// Half round trips: who receives a stream may lose some of it.
    fn supports(&self, case: &BenchCase) -> bool {
        (case.bench, case.op) == (Bench::Lat, BenchOp::Send) && case.size <= MAX_DATAGRAM
    }

    fn measure(&self, case: &BenchCase, stop: &Stop) -> Result<Record> {
        let mut command = current_program()?;
        command.arg("echo-datagrams");
        let (mut child, at) =
            pin::run_on_core(case.cores.1, || ChildProcess::start(self.name(), command))?;
        let measured = pin::run_on_core(case.cores.0, || {
            let (case, stop) = (*case, stop.clone());
            RuntimeKind::Current.run(async move { run_initiator(&at, &case, &stop).await })
        });
        let outcome = measured.map_err(|error| child.or_death_error(error))?;
        let mut record = Record {
            api: "await".into(),
            wait: "spin".into(),
            progress: "manual".into(),
            runtime: "current".into(),
            timer_ns: Some(case.timer_ns()),
            ..case.empty_record(self)
        };
        fill_record(&[outcome], &mut record);
        Ok(record)
    }
}

async fn bind_endpoint() -> Result<Endpoint> {
    Ok(Endpoint::options()
        .wait_policy(WaitPolicy::Spin)
        .bind(LOOPBACK_ADDRESS)
        .await?)
}

/// Makes round trips, which count themselves; `None` when none has ended for a long while: a
/// datagram was lost.
pub async fn with_loss_timeout<T>(trips: impl Future<Output = T>, done: &AtomicU64) -> Option<T> {
    let mut trips = pin!(trips);
    loop {
        match timeout(LOSS_TIMEOUT, &mut trips).await {
            Ok(ended) => return Some(ended),
            Err(_) if done.swap(0, Ordering::Relaxed) == 0 => return None,
            Err(_) => {}
        }
    }
}

async fn run_initiator(at: &str, case: &BenchCase, stop: &Stop) -> Result<MeasureOutcome> {
    let ep = bind_endpoint().await?;
    let peer = ep.add_peer(at).await?;
    let (mut ping, mut pong) = (vec![7u8; case.size], vec![7u8; case.size]);
    let mut stamps = TimeStamps::new(0);
    let mut rounds = RoundScheduler::new(
        case.bench,
        Budget::Seconds(case.time.as_secs_f64()),
        case.size,
    );
    while let Some(count) = rounds.next_round(1, stop) {
        stamps.reserve(count as usize);
        stamps.begin();
        let done = AtomicU64::new(0);
        let round = async {
            for _ in 0..count {
                ping = ep.send(peer, std::mem::take(&mut ping)).await?.into_buf();
                pong = ep.recv_into(std::mem::take(&mut pong)).await?.into_buf();
                stamps.stamp();
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<_, FabricError>(())
        };
        let lost = || Error::InvalidRequest("a datagram was lost, which ends a ping-pong".into());
        with_loss_timeout(round, &done).await.ok_or_else(lost)??;
        rounds.record_round(count, stamps.elapsed(), &stamps);
    }
    Ok(rounds.into_outcome())
}

/// The other side: says on stdout where it is, and answers what comes with as much, for ever.
///
/// # Errors
/// The fabric fails.
pub fn echo_datagrams() -> Result<()> {
    RuntimeKind::Current.run(async {
        let ep = bind_endpoint().await?;
        println!("listening on {}", ep.name());
        let (mut ping, mut pong) = (vec![0u8; MAX_DATAGRAM], vec![7u8; MAX_DATAGRAM]);
        loop {
            // It is as long as what has come before: there is to be room for all of it.
            ping.resize(MAX_DATAGRAM, 0);
            let got = ep.recv_into(ping).await?;
            let from = got.source()?;
            pong.resize(got.len(), 7);
            pong = ep.send(from, pong).await?.into_buf();
            ping = got.into_buf();
        }
    })
}
