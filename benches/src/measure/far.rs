//! The other side of one lane: a thread whose endpoints do what they are asked.

use std::thread;
use std::time::Duration;

use fabric_async::{Error as FabricError, FiAddr};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::onesided::{self, Reach};
use super::plan::Plan;
use super::station::{Station, open, open_idle};
use crate::choice::Api;
use crate::pair::talk::{hear, tell};
use crate::{Error, Result, pin};

/// What an endpoint is asked to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Task {
    /// Send back so many messages.
    Echo { size: usize, count: u64 },
    /// Receive so many, and say when they are there.
    Sink { size: usize, count: u64 },
    /// Make memory for one-sided operations of this size; the asker's is described like this.
    Reach { size: usize, remote: Vec<u8> },
    /// Write back what is written, so often.
    Bounce { count: u64 },
    /// Wait for so many writes with data, and say when they are there.
    Entries { count: u64 },
    /// Leave the core alone for a moment, with all endpoints of the lane.
    Rest,
}

/// This moment: longer than the floor is looked at.
const REST: Duration = Duration::from_millis(3);

/// What it says to that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The memory there is described like this.
    Reached(Vec<u8>),
    /// Messages may come: the buffers are there, and receives that report to a queue are posted.
    Ready,
    /// All messages of a sink are there.
    Finished,
}

impl Answer {
    /// It does not fit the question.
    pub(super) fn unexpected(&self) -> Error {
        Error::NotUnderstood {
            who: "the other side".into(),
            text: format!("{self:?}"),
        }
    }
}

/// Starts lane `number` and returns the names of its endpoints. What goes wrong later is sent to
/// `failures`.
pub(crate) async fn start(
    plan: &Plan,
    number: usize,
    failures: mpsc::UnboundedSender<Error>,
) -> Result<Vec<String>> {
    let (opened, mut names) = mpsc::unbounded_channel();
    let plan = plan.clone();
    let work = move || {
        plan.cores
            .get(number)
            .and_then(|cores| cores.1)
            .map(pin::to_core);
        let (runtime, failed) = (plan.runtime, opened.clone());
        let run = async move {
            let stations = open(&plan, plan.peers).await?;
            let idle = open_idle(&plan, plan.idle).await?;
            let name = |station: &Station| station.ep.name().to_string();
            let _ = opened.send(Ok(stations.iter().chain(&idle).map(name).collect()));
            let serve = |station| {
                let (plan, failures) = (plan.clone(), failures.clone());
                async move {
                    if let Err(error) = serve(station, &plan).await {
                        let _ = failures.send(error);
                    }
                }
            };
            let tasks: Vec<_> = stations
                .into_iter()
                .map(|station| tokio::spawn(serve(station)))
                .collect();
            for task in tasks {
                let _ = task.await;
            }
            Ok(())
        };
        if let Err(error) = runtime.run(run) {
            let _ = failed.send(Err(error));
        }
    };
    thread::Builder::new()
        .name(format!("lane {number}"))
        .spawn(work)
        .map_err(Error::io("starting a thread"))?;
    // A thread that panics says why on stderr.
    names
        .recv()
        .await
        .unwrap_or(Err(Error::Fabric(FabricError::Canceled)))
}

async fn serve(mut station: Station, plan: &Plan) -> Result<()> {
    let (mut asker, mut reach) = (None, None);
    loop {
        let (peer, task) = hear(&station.ep, asker).await?;
        asker = Some(peer);
        match task {
            Task::Echo { size, count } => {
                let mut buffers = station.buffers(2, size);
                let (mut ping, mut pong) = (buffers.swap_remove(0), buffers.swap_remove(0));
                tell(&station.ep, peer, &Answer::Ready).await?;
                for _ in 0..count {
                    ping = station.recv_one(peer, ping).await?;
                    pong = station.send_one(peer, pong).await?;
                }
                station.leave([ping, pong]);
            }
            Task::Rest => thread::sleep(REST),
            Task::Reach { size, remote } => {
                let region = onesided::memory(&station, size)?;
                let told = region.remote().to_bytes().to_vec();
                reach =
                    Some(Reach::new(&station, plan.api, (size, region), (peer, &remote)).await?);
                tell(&station.ep, peer, &Answer::Reached(told)).await?;
            }
            Task::Bounce { count } => {
                let Some(reach) = &reach else { continue };
                reach.reset()?;
                tell(&station.ep, peer, &Answer::Ready).await?;
                reach.bounce(&mut station, plan.op, count).await?;
            }
            Task::Entries { count } => {
                tell(&station.ep, peer, &Answer::Ready).await?;
                station.written(count).await?;
                tell(&station.ep, peer, &Answer::Finished).await?;
            }
            Task::Sink { size, count } => {
                sink(
                    &mut station,
                    peer,
                    size,
                    (count as usize, plan.far_buffers()),
                )
                .await?;
                tell(&station.ep, peer, &Answer::Finished).await?;
            }
        }
    }
}

async fn sink(
    station: &mut Station,
    peer: FiAddr,
    size: usize,
    (count, buffers): (usize, usize),
) -> Result<()> {
    if station.api() == Api::Await {
        for mut buf in station.buffers(1, size) {
            tell(&station.ep, peer, &Answer::Ready).await?;
            for _ in 0..count {
                buf = station.recv_one(peer, buf).await?;
            }
            station.leave([buf]);
        }
        return Ok(());
    }
    let mut free = station.buffers(count.min(buffers), size);
    let (mut posted, mut received) = (0, 0);
    while received < count {
        let requests = (posted..count).zip(std::iter::from_fn(|| free.pop()));
        let (accepted, rest) =
            station.post_all(requests.map(|(_, buf)| station.recv(peer, buf)))?;
        free.extend(rest);
        if posted == 0 {
            tell(&station.ep, peer, &Answer::Ready).await?;
        }
        posted += accepted;
        station.received().await?;
        while station.at_hand() > 0 {
            free.push(station.next_buf()?);
            received += 1;
        }
    }
    station.leave(free);
    Ok(())
}
