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
            origin: "the peer process".into(),
            text: format!("{self:?}"),
        }
    }
}

/// Starts worker `number` and returns the names of its endpoints. Later failures are sent to
/// `failures`.
pub(crate) async fn start_worker(
    plan: &Plan,
    worker: usize,
    failures: mpsc::UnboundedSender<Error>,
) -> Result<Vec<String>> {
    let (opened, mut names) = mpsc::unbounded_channel();
    let plan = plan.clone();
    let work = move || {
        plan.cores
            .get(worker)
            .and_then(|cores| cores.1)
            .map(pin::pin_to_core);
        let (runtime, failed) = (plan.runtime, opened.clone());
        let run = async move {
            let active = plan.responder_endpoints();
            let endpoints = open_endpoints(&plan, active + plan.streams).await?;
            let idle = open_idle_endpoints(&plan, plan.idle).await?;
            let name = |endpoint: &BenchEndpoint| endpoint.ep.name().to_string();
            let _ = opened.send(Ok(endpoints.iter().chain(&idle).map(name).collect()));
            let serve = |(at, endpoint)| {
                let failures = failures.clone();
                let plan = if at < active {
                    plan.clone()
                } else {
                    plan.stream_plan()
                };
                async move {
                    if let Err(error) = serve(endpoint, &plan).await {
                        let _ = failures.send(error);
                    }
                }
            };
            let tasks: Vec<_> = endpoints
                .into_iter()
                .enumerate()
                .map(|numbered| tokio::spawn(serve(numbered)))
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
        .name(format!("worker {worker}"))
        .spawn(work)
        .map_err(Error::io("starting a thread"))?;
    // A thread that panics prints the reason on stderr.
    names
        .recv()
        .await
        .unwrap_or(Err(Error::Fabric(FabricError::Canceled)))
}

async fn serve(mut endpoint: BenchEndpoint, plan: &Plan) -> Result<()> {
    let (mut initiator, mut rma) = (None, None);
    loop {
        let (peer, request) = recv_control(&endpoint.ep, initiator).await?;
        initiator = Some(peer);
        match request {
            RoundRequest::Echo { size, count } => {
                let mut buffers = endpoint.buffers(2, size);
                let (mut ping, mut pong) = (buffers.swap_remove(0), buffers.swap_remove(0));
                send_control(&endpoint.ep, peer, &RoundReply::Ready).await?;
                for _ in 0..count {
                    let to;
                    (ping, to) = if plan.fan_in {
                        endpoint.recv_from_any(ping).await?
                    } else {
                        (endpoint.recv_one(Some(peer), ping).await?, peer)
                    };
                    pong = endpoint.send_one(to, pong).await?;
                }
                endpoint.recycle([ping, pong]);
            }
            RoundRequest::Sleep => thread::sleep(SLEEP_TIME),
            RoundRequest::ExchangeMemory { size, remote } => {
                let region = onesided::alloc_region(&endpoint, size)?;
                let description = region.remote().to_bytes().to_vec();
                rma = Some(
                    RmaBuffers::new(&endpoint, plan.api, (size, region), (peer, &remote)).await?,
                );
                send_control(&endpoint.ep, peer, &RoundReply::Memory(description)).await?;
            }
            RoundRequest::WriteBack { count } => {
                let Some(rma) = &rma else { continue };
                rma.clear_marker()?;
                send_control(&endpoint.ep, peer, &RoundReply::Ready).await?;
                rma.write_back(&mut endpoint, plan.op, count).await?;
            }
            RoundRequest::CountWrites { count } => {
                send_control(&endpoint.ep, peer, &RoundReply::Ready).await?;
                endpoint.wait_remote_writes(count).await?;
                send_control(&endpoint.ep, peer, &RoundReply::Finished).await?;
            }
            RoundRequest::Sink { size, count } => {
                let from = (!plan.fan_in).then_some(peer);
                let buffers = plan.responder_buffers();
                let messages = (count as usize, buffers);
                sink(&mut endpoint, (peer, from), size, messages).await?;
                send_control(&endpoint.ep, peer, &RoundReply::Finished).await?;
            }
        }
    }
}

/// Receives messages of a peer, or of all peers. The peer that requested them hears when the
/// endpoint is ready.
async fn sink(
    endpoint: &mut BenchEndpoint,
    (peer, from): (FiAddr, Option<FiAddr>),
    size: usize,
    (count, buffers): (usize, usize),
) -> Result<()> {
    if endpoint.api() == Api::Await {
        for mut buf in endpoint.buffers(1, size) {
            send_control(&endpoint.ep, peer, &RoundReply::Ready).await?;
            for _ in 0..count {
                buf = endpoint.recv_one(from, buf).await?;
            }
            endpoint.recycle([buf]);
        }
        return Ok(());
    }
    let mut free = endpoint.buffers(count.min(buffers), size);
    let (mut posted, mut received) = (0, 0);
    while received < count {
        let requests = (posted..count).zip(std::iter::from_fn(|| free.pop()));
        let (accepted, rest) =
            endpoint.post_all(requests.map(|(_, buf)| endpoint.recv(from, buf)))?;
        free.extend(rest);
        if posted == 0 {
            send_control(&endpoint.ep, peer, &RoundReply::Ready).await?;
        }
        posted += accepted;
        endpoint.wait_rx_completions().await?;
        while endpoint.completion_count() > 0 {
            free.push(endpoint.take_buffer()?);
            received += 1;
        }
    }
    endpoint.recycle(free);
    Ok(())
}
