//! The fabric over udp. What `lat` does takes messages that arrive, one after the other; here the
//! measuring side is answered whatever it sends, and nothing else is said.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fabric_async::{Endpoint, Error as FabricError, WaitPolicy};
use tokio::time::timeout;

use super::{Case, Peer};
use crate::choice::{Bench, Op, Runtime};
use crate::measure::Budget;
use crate::measure::rounds::{Outcome, Rounds, describe};
use crate::pair::{Child, program};
use crate::record::Record;
use crate::samples::Stamps;
use crate::stop::Stop;
use crate::{Error, Result, pin};

/// What libfabric sends in one datagram.
const LIMIT: usize = 1472;
/// Nothing comes twice: a datagram that takes longer than this is lost.
const LOST: Duration = Duration::from_secs(5);
/// An address inside this machine.
const ANYWHERE: &str = "udp://127.0.0.1:0";

/// The fabric over udp.
#[derive(Clone, Copy, Debug)]
pub struct Datagrams;

impl Peer for Datagrams {
    fn name(&self) -> &str {
        "fabric udp"
    }

    fn missing(&self) -> Option<String> {
        None
    }

    /// Half round trips: who receives a stream may lose some of it.
    fn measures(&self, case: &Case) -> bool {
        (case.bench, case.op) == (Bench::Lat, Op::Send) && case.size <= LIMIT
    }

    fn measure(&self, case: &Case, stop: &Stop) -> Result<Record> {
        let mut command = program()?;
        command.arg("echo-datagrams");
        let (mut child, at) = pin::on(case.cores.1, || Child::start(self.name(), command))?;
        let measured = pin::on(case.cores.0, || {
            let (case, stop) = (*case, stop.clone());
            Runtime::Current.run(async move { near(&at, &case, &stop).await })
        });
        let outcome = measured.map_err(|error| child.explain(error))?;
        let mut record = Record {
            api: "await".into(),
            wait: "spin".into(),
            progress: "manual".into(),
            runtime: "current".into(),
            timer_ns: Some(case.timer_ns()),
            ..case.record(self)
        };
        describe(&[outcome], &mut record);
        Ok(record)
    }
}

async fn endpoint() -> Result<Endpoint> {
    Ok(Endpoint::options()
        .wait_policy(WaitPolicy::Spin)
        .bind(ANYWHERE)
        .await?)
}

/// Makes round trips, which count themselves; `None` when none has ended for a long while: a
/// datagram was lost.
pub async fn unless_lost<T>(trips: impl Future<Output = T>, done: &AtomicU64) -> Option<T> {
    let mut trips = pin!(trips);
    loop {
        match timeout(LOST, &mut trips).await {
            Ok(ended) => return Some(ended),
            Err(_) if done.swap(0, Ordering::Relaxed) == 0 => return None,
            Err(_) => {}
        }
    }
}

async fn near(at: &str, case: &Case, stop: &Stop) -> Result<Outcome> {
    let ep = endpoint().await?;
    let peer = ep.lookup(at).await?;
    let (mut ping, mut pong) = (vec![7u8; case.size], vec![7u8; case.size]);
    let mut stamps = Stamps::new(0);
    let mut rounds = Rounds::new(
        case.bench,
        Budget::Seconds(case.time.as_secs_f64()),
        case.size,
    );
    while let Some(count) = rounds.next(1, stop) {
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
        let lost = || Error::Refused("a datagram was lost, which ends a ping-pong".into());
        unless_lost(round, &done).await.ok_or_else(lost)??;
        rounds.ended(count, stamps.elapsed(), &stamps);
    }
    Ok(rounds.outcome())
}

/// The other side: says on stdout where it is, and answers what comes with as much, for ever.
///
/// # Errors
/// The fabric fails.
pub fn echo_datagrams() -> Result<()> {
    Runtime::Current.run(async {
        let ep = endpoint().await?;
        println!("listening on {}", ep.name());
        let (mut ping, mut pong) = (vec![0u8; LIMIT], vec![7u8; LIMIT]);
        loop {
            // It is as long as what has come before: there is to be room for all of it.
            ping.resize(LIMIT, 0);
            let got = ep.recv_into(ping).await?;
            let from = got.source()?;
            pong.resize(got.len(), 7);
            pong = ep.send(from, pong).await?.into_buf();
            ping = got.into_buf();
        }
    })
}
