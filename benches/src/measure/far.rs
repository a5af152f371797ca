//! The other side of one lane: a thread whose endpoints do what they are asked.

use std::thread;
use std::time::Duration;

use fabric_async::{Error as FabricError, FiAddr};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::plan::Plan;
use super::station::{Station, open};
use crate::choice::Api;
use crate::pair::talk::{hear, tell};
use crate::{Error, Result, pin};

/// What an endpoint is asked to do.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Task {
    /// Send back so many messages.
    Echo { size: usize, count: u64 },
    /// Receive so many, and say when they are there.
    Sink { size: usize, count: u64 },
    /// Leave the core alone for a moment, with all endpoints of the lane.
    Rest,
}

/// This moment: longer than the floor is looked at.
const REST: Duration = Duration::from_millis(3);

/// What it says to that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// Messages may come: the buffers are there, and receives that report to a queue are posted.
    Ready,
    /// All messages of a sink are there.
    Finished,
}

/// Starts lane `number` and returns the names of its endpoints. What goes wrong later is sent to `failures`.
pub(crate) async fn start(
    plan: &Plan,
    number: usize,
    failures: mpsc::UnboundedSender<Error>,
) -> Result<Vec<String>> {
    let (opened, mut names) = mpsc::unbounded_channel();
    let plan = plan.clone();
    let work = move || {
        plan.cores.get(number).and_then(|cores| cores.1).map(pin::to_core);
        let (runtime, failed) = (plan.runtime, opened.clone());
        let run = async move {
            let stations = open(&plan, plan.peers).await?;
            let _ = opened.send(Ok(stations.iter().map(|station| station.ep.name().to_string()).collect()));
            let serve = |station| {
                let (buffers, failures) = (plan.far_buffers(), failures.clone());
                async move {
                    if let Err(error) = serve(station, buffers).await {
                        let _ = failures.send(error);
                    }
                }
            };
            let tasks: Vec<_> = stations.into_iter().map(|station| tokio::spawn(serve(station))).collect();
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
    names.recv().await.unwrap_or(Err(Error::Fabric(FabricError::Canceled)))
}

async fn serve(mut station: Station, buffers: usize) -> Result<()> {
    let mut asker = None;
    loop {
        let (peer, task) = hear(&station.ep, asker).await?;
        asker = Some(peer);
        match task {
            Task::Echo { size, count } => {
                for mut buf in station.buffers(1, size) {
                    tell(&station.ep, peer, &Answer::Ready).await?;
                    for _ in 0..count {
                        buf = station.recv_one(peer, buf).await?;
                        buf = station.send_one(peer, buf).await?;
                    }
                    station.leave([buf]);
                }
            }
            Task::Rest => thread::sleep(REST),
            Task::Sink { size, count } => {
                sink(&mut station, peer, size, (count as usize, buffers)).await?;
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
    let (mut posted, mut received) = (count.min(buffers), 0);
    for buf in station.buffers(posted, size) {
        station.recv(peer, buf).post()?;
    }
    tell(&station.ep, peer, &Answer::Ready).await?;
    while received < count {
        station.received().await?;
        while station.at_hand() > 0 {
            let buf = station.next_buf()?;
            received += 1;
            if posted < count {
                station.recv(peer, buf).post()?;
                posted += 1;
            } else {
                station.leave([buf]);
            }
        }
    }
    Ok(())
}
