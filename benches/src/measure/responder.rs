//! The responder of one worker: a thread whose endpoints serve requests.

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

/// A request to an endpoint of the responder.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum RoundRequest {
    /// Send back so many messages.
    Echo { size: usize, count: u64 },
    /// Receive so many messages, and report when all have arrived.
    Sink { size: usize, count: u64 },
    /// Allocate memory for one-sided operations of this size; `remote` describes the initiator's.
    ExchangeMemory { size: usize, remote: Vec<u8> },
    /// Answer each write by a write, so often.
    WriteBack { count: u64 },
    /// Wait for so many writes with data, and report when all have arrived.
    CountWrites { count: u64 },
    /// Let the core idle for [`SLEEP_TIME`], with all endpoints of the worker.
    Sleep,
}

/// Longer than a sample of the floor.
const SLEEP_TIME: Duration = Duration::from_millis(3);

/// A reply of the responder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum RoundReply {
    /// Describes the responder's memory.
    Memory(Vec<u8>),
    /// Messages may come: buffers are allocated and receives are posted.
    Ready,
    /// All messages have arrived.
    Finished,
}

impl RoundReply {
    /// Returns the error for a reply that does not match the request.
    pub(super) fn to_unexpected_error(&self) -> Error {
        Error::Malformed {
            origin: "the other side".into(),
            text: format!("{self:?}"),
        }
    }
}

/// Starts worker `number` and returns the names of its endpoints. Later failures are sent to
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
    // A thread that panics prints the reason on stderr.
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
