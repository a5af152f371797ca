//! The other side of one lane: a thread whose endpoints do what they are asked.

use std::thread;
use std::time::Duration;

use fabric_async::{Error as FabricError, FiAddr};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::endpoint::{BenchEndpoint, open_endpoints, open_idle_endpoints};
use super::onesided::{self, RmaBuffers};
use super::plan::Plan;
use crate::options::Api;
use crate::peer_process::control::{recv_control, send_control};
use crate::{Error, Result, pin};

/// What an endpoint is asked to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum RoundRequest {
    /// Send back so many messages.
    Echo { size: usize, count: u64 },
    /// Receive so many, and say when they are there.
    Sink { size: usize, count: u64 },
    /// Make memory for one-sided operations of this size; the asker's is described like this.
    ExchangeMemory { size: usize, remote: Vec<u8> },
    /// Write back what is written, so often.
    WriteBack { count: u64 },
    /// Wait for so many writes with data, and say when they are there.
    CountWrites { count: u64 },
    /// Leave the core alone for a moment, with all endpoints of the lane.
    Sleep,
}

/// This moment: longer than the floor is looked at.
const SLEEP_TIME: Duration = Duration::from_millis(3);

/// What it says to that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum RoundReply {
    /// The memory there is described like this.
    Memory(Vec<u8>),
    /// Messages may come: the buffers are there, and receives that report to a queue are posted.
    Ready,
    /// All messages of a sink are there.
    Finished,
}

impl RoundReply {
    /// It does not fit the question.
    pub(super) fn to_unexpected_error(&self) -> Error {
        Error::Malformed {
            origin: "the other side".into(),
            text: format!("{self:?}"),
        }
    }
}

/// Starts lane `number` and returns the names of its endpoints. What goes wrong later is sent to
/// `failures`.
pub(crate) async fn start_worker(
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
            .map(pin::pin_to_core);
        let (runtime, failed) = (plan.runtime, opened.clone());
        let run = async move {
            let stations = open_endpoints(&plan, plan.peers).await?;
            let idle = open_idle_endpoints(&plan, plan.idle).await?;
            let name = |station: &BenchEndpoint| station.ep.name().to_string();
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

async fn serve(mut station: BenchEndpoint, plan: &Plan) -> Result<()> {
    let (mut asker, mut reach) = (None, None);
    loop {
        let (peer, task) = recv_control(&station.ep, asker).await?;
        asker = Some(peer);
        match task {
            RoundRequest::Echo { size, count } => {
                let mut buffers = station.buffers(2, size);
                let (mut ping, mut pong) = (buffers.swap_remove(0), buffers.swap_remove(0));
                send_control(&station.ep, peer, &RoundReply::Ready).await?;
                for _ in 0..count {
                    ping = station.recv_one(peer, ping).await?;
                    pong = station.send_one(peer, pong).await?;
                }
                station.recycle([ping, pong]);
            }
            RoundRequest::Sleep => thread::sleep(SLEEP_TIME),
            RoundRequest::ExchangeMemory { size, remote } => {
                let region = onesided::alloc_region(&station, size)?;
                let told = region.remote().to_bytes().to_vec();
                reach = Some(
                    RmaBuffers::new(&station, plan.api, (size, region), (peer, &remote)).await?,
                );
                send_control(&station.ep, peer, &RoundReply::Memory(told)).await?;
            }
            RoundRequest::WriteBack { count } => {
                let Some(reach) = &reach else { continue };
                reach.clear_marker()?;
                send_control(&station.ep, peer, &RoundReply::Ready).await?;
                reach.write_back(&mut station, plan.op, count).await?;
            }
            RoundRequest::CountWrites { count } => {
                send_control(&station.ep, peer, &RoundReply::Ready).await?;
                station.wait_remote_writes(count).await?;
                send_control(&station.ep, peer, &RoundReply::Finished).await?;
            }
            RoundRequest::Sink { size, count } => {
                sink(
                    &mut station,
                    peer,
                    size,
                    (count as usize, plan.responder_buffers()),
                )
                .await?;
                send_control(&station.ep, peer, &RoundReply::Finished).await?;
            }
        }
    }
}

async fn sink(
    station: &mut BenchEndpoint,
    peer: FiAddr,
    size: usize,
    (count, buffers): (usize, usize),
) -> Result<()> {
    if station.api() == Api::Await {
        for mut buf in station.buffers(1, size) {
            send_control(&station.ep, peer, &RoundReply::Ready).await?;
            for _ in 0..count {
                buf = station.recv_one(peer, buf).await?;
            }
            station.recycle([buf]);
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
            send_control(&station.ep, peer, &RoundReply::Ready).await?;
        }
        posted += accepted;
        station.wait_rx_completions().await?;
        while station.completion_count() > 0 {
            free.push(station.take_buffer()?);
            received += 1;
        }
    }
    station.recycle(free);
    Ok(())
}
