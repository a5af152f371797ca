//! The fabric over udp. The command `lat` needs reliable messages in order; here the responder just
//! echoes every datagram, and there are no control messages.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fabric_async::{Endpoint, Error as FabricError, WaitPolicy};
use tokio::time::timeout;

use super::{BenchCase, MeasuredLibrary};
use crate::measure::Budget;
use crate::measure::rounds::{MeasureOutcome, RoundScheduler, fill_record};
use crate::options::{Bench, BenchOp, RuntimeKind};
use crate::peer_process::{ChildProcess, current_program};
use crate::record::Record;
use crate::samples::TimeStamps;
use crate::stop::Stop;
use crate::{Error, Result, pin};

/// libfabric's longest datagram, in bytes.
const MAX_DATAGRAM: usize = 1472;
/// Datagrams are not sent again: one that takes longer than this is lost.
const LOSS_TIMEOUT: Duration = Duration::from_secs(5);
/// A loopback address.
const LOOPBACK_ADDRESS: &str = "udp://127.0.0.1:0";

/// The fabric over udp.
#[derive(Clone, Copy, Debug)]
pub struct FabricUdp;

impl MeasuredLibrary for FabricUdp {
    fn name(&self) -> &str {
        "fabric udp"
    }

    fn unavailable(&self) -> Option<String> {
        None
    }

    /// Only latencies: a receiver may lose datagrams of a stream.
    fn supports(&self, case: &BenchCase) -> bool {
        (case.bench, case.op) == (Bench::Lat, BenchOp::Send) && case.size <= MAX_DATAGRAM
    }

    fn measure(&self, case: &BenchCase, stop: &Stop) -> Result<Record> {
        let mut command = current_program()?;
        command.arg("echo-datagrams");
        let (mut child, address) =
            pin::run_on_core(case.cores.1, || ChildProcess::start(self.name(), command))?;
        let measured = pin::run_on_core(case.cores.0, || {
            let (case, stop) = (*case, stop.clone());
            RuntimeKind::Current.run(async move { run_initiator(&address, &case, &stop).await })
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

/// Runs round trips, which count themselves in `done`; `None` if none has ended for
/// 5 seconds, because a datagram was lost.
pub async fn with_loss_timeout<T>(trips: impl Future<Output = T>, done: &AtomicU64) -> Option<T> {
    let mut trips = pin!(trips);
    loop {
        match timeout(LOSS_TIMEOUT, &mut trips).await {
            Ok(result) => return Some(result),
            Err(_) if done.swap(0, Ordering::Relaxed) == 0 => return None,
            Err(_) => {}
        }
    }
}

async fn run_initiator(address: &str, case: &BenchCase, stop: &Stop) -> Result<MeasureOutcome> {
    let ep = bind_endpoint().await?;
    let peer = ep.add_peer(address).await?;
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
        let lost = || {
            Error::InvalidRequest("a datagram was lost, so the ping-pong cannot continue".into())
        };
        with_loss_timeout(round, &done).await.ok_or_else(lost)??;
        rounds.record_round(count, stamps.elapsed(), &stamps);
    }
    Ok(rounds.into_outcome())
}

/// Runs the responder: prints its address on stdout, and echoes datagrams for ever.
///
/// # Errors
/// Those of the fabric.
pub fn echo_datagrams() -> Result<()> {
    RuntimeKind::Current.run(async {
        let ep = bind_endpoint().await?;
        println!("listening on {}", ep.name());
        let (mut ping, mut pong) = (vec![0u8; MAX_DATAGRAM], vec![7u8; MAX_DATAGRAM]);
        loop {
            // The buffer has the length of the last datagram: make room for the longest one.
            ping.resize(MAX_DATAGRAM, 0);
            let received = ep.recv_into(ping).await?;
            let from = received.source()?;
            pong.resize(received.len(), 7);
            pong = ep.send(from, pong).await?.into_buf();
            ping = received.into_buf();
        }
    })
}
