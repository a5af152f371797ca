//! The initiator of one worker: a thread with its own domain and runtime.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use fabric_async::Error as FabricError;
use tokio::task::JoinHandle;

use super::client::Client;
use super::endpoint::{BenchEndpoint, open_endpoints};
use super::onesided::{self, RmaBuffers};
use super::plan::Plan;
use super::responder::{RoundReply, RoundRequest};
use super::rounds::{MeasureOutcome, RoundScheduler};
use crate::floor::Floor;
use crate::options::{Bench, BenchOp, name};
use crate::peer_process::control::{recv_control, send_control};
use crate::size::Size;
use crate::stop::Stop;
use crate::{Error, Result, limits, memory, pin, progress_bar};

/// A worker that waits for sizes to measure.
pub(super) struct Worker {
    sizes: Sender<usize>,
    outcomes: Receiver<Result<MeasureOutcome>>,
}

impl Worker {
    /// Starts the thread of worker `number`, which connects to the endpoints of these names. The
    /// worker that gets the floor samples it, and shows progress.
    pub(super) fn start(
        plan: &Plan,
        number: usize,
        names: Vec<String>,
        (stop, floor): (Stop, Option<Arc<Floor>>),
    ) -> Result<Self> {
        let ((size_sender, sizes), (results, outcomes)) = (channel(), channel());
        let plan = plan.clone();
        let work = move || {
            plan.cores
                .get(number)
                .and_then(|cores| cores.0)
                .map(pin::pin_to_core);
            let failed = results.clone();
            let runtime = plan.runtime;
            let run = async move {
                let mut initiator = Initiator::connect(plan, &names, stop, floor).await?;
                while let Ok(size) = sizes.recv() {
                    if results.send(initiator.measure_size(size).await).is_err() {
                        break;
                    }
                }
                Ok(())
            };
            if let Err(error) = runtime.run(run) {
                let _ = failed.send(Err(error));
            }
        };
        thread::Builder::new()
            .name(format!("worker {number}"))
            .spawn(work)
            .map_err(Error::io("starting a thread"))?;
        Ok(Self {
            sizes: size_sender,
            outcomes,
        })
    }

    /// Starts to measure this size.
    pub(super) fn start_size(&self, size: usize) {
        // If the worker has ended, `finish` returns its error.
        let _ = self.sizes.send(size);
    }

    /// Waits for the outcome of a size.
    pub(super) fn finish(&self) -> Result<MeasureOutcome> {
        self.outcomes
            .recv()
            .unwrap_or(Err(Error::Fabric(FabricError::Canceled)))
    }
}

struct Initiator {
    plan: Plan,
    /// The endpoints; all but the first measure only messages.
    clients: Vec<Client>,
    /// The endpoints that stream messages while round trips are measured.
    streams: Vec<Client>,
    /// Memory of this process for each idle peer, in bytes.
    idle_bytes: Option<f64>,
    stop: Stop,
    /// Set for the first worker, which samples the floor and shows progress.
    floor: Option<Arc<Floor>>,
    /// The memory of one-sided operations.
    rma: Option<RmaBuffers>,
}

impl Initiator {
    async fn connect(
        plan: Plan,
        names: &[String],
        stop: Stop,
        floor: Option<Arc<Floor>>,
    ) -> Result<Self> {
        let (active, others) = names.split_at(plan.responder_endpoints().min(names.len()));
        let (streamed, idle) = others.split_at(plan.streams.min(others.len()));
        let mut endpoints = open_endpoints(&plan, plan.endpoints + plan.streams).await?;
        let streaming = endpoints.split_off(plan.endpoints);
        let mut clients = Vec::with_capacity(plan.endpoints);
        for (at, endpoint) in endpoints.into_iter().enumerate() {
            let names = if plan.fan_in {
                active
            } else {
                active.chunks(plan.peers).nth(at).unwrap_or_default()
            };
            clients.push(Client::connect(endpoint, &plan, names).await?);
        }
        let (mut streams, stream_plan) = (Vec::with_capacity(plan.streams), plan.stream_plan());
        for (endpoint, name) in streaming.into_iter().zip(streamed) {
            streams
                .push(Client::connect(endpoint, &stream_plan, std::slice::from_ref(name)).await?);
        }
        let idle_bytes = Self::connect_idle(&clients[0].endpoint, idle).await?;
        Ok(Self {
            plan,
            clients,
            streams,
            idle_bytes,
            stop,
            floor,
            rma: None,
        })
    }

    /// Connects to the idle peers. Returns the memory of this process for each.
    async fn connect_idle(endpoint: &BenchEndpoint, idle: &[String]) -> Result<Option<f64>> {
        if idle.is_empty() {
            return Ok(None);
        }
        limits::raise_descriptor_limit(idle.len() as u64 + 256)?;
        let before = memory::resident();
        for name in idle {
            endpoint.ep.add_peer(&name[..]).await?;
        }
        let resident = before.zip(memory::resident());
        Ok(resident.map(|(before, after)| after.saturating_sub(before) as f64 / idle.len() as f64))
    }

    async fn measure_size(&mut self, size: usize) -> Result<MeasureOutcome> {
        let mut rounds = RoundScheduler::new(self.plan.bench, self.plan.budget, size);
        if !self.plan.op.is_ping_pong() {
            rounds = rounds.report_round_trips();
        }
        if self.plan.op.is_one_sided() {
            self.exchange_memory(size).await?;
        }
        // Every peer of every endpoint gets the same share.
        let parts = self.plan.endpoints * self.plan.peers;
        while let Some(count) = rounds.next_round(parts as u64, &self.stop) {
            self.sample_floor().await?;
            let elapsed = match self.plan.bench {
                _ if self.plan.op.is_one_sided() => self.one_sided_round(count).await?,
                Bench::Lat => self.latency_round(size, count).await?,
                Bench::Bw | Bench::Rate => self.stream_round(size, count).await?,
            };
            let stamps = self.clients.iter().map(|client| &client.stamps);
            rounds.record_concurrent_round(count, elapsed, stamps);
            if self.floor.is_some() {
                progress_bar::show(
                    &format!("{} {}", name(self.plan.bench), Size(size)),
                    rounds.progress_fraction(),
                );
            }
        }
        self.sample_floor().await?;
        Ok(MeasureOutcome {
            idle_bytes: self.idle_bytes,
            ..rounds.into_outcome()
        })
    }

    /// Makes both sides allocate memory for operations of this size.
    async fn exchange_memory(&mut self, size: usize) -> Result<()> {
        let Client {
            endpoint, peers, ..
        } = &self.clients[0];
        let (peer, region) = (peers[0], onesided::alloc_region(endpoint, size)?);
        let remote = region.remote().to_bytes().to_vec();
        let request = RoundRequest::ExchangeMemory { size, remote };
        send_control(&endpoint.ep, peer, &request).await?;
        let description = match recv_control(&endpoint.ep, Some(peer)).await? {
            (_, RoundReply::Memory(description)) => description,
            (_, other) => return Err(other.to_unexpected_error()),
        };
        self.rma = Some(
            RmaBuffers::new(
                endpoint,
                self.plan.api,
                (size, region),
                (peer, &description),
            )
            .await?,
        );
        Ok(())
    }

    /// Runs a round of one-sided operations.
    async fn one_sided_round(&mut self, count: u64) -> Result<Duration> {
        let op = self.plan.op;
        let Some(rma) = self.rma.take() else {
            return Err(FabricError::Canceled.into());
        };
        let elapsed = if self.plan.bench == Bench::Lat {
            self.clients[0].stamps.reserve(count as usize);
            if op.is_ping_pong() {
                rma.clear_marker()?;
                self.start_round(|count| RoundRequest::WriteBack { count }, count)
                    .await?;
            }
            let Client {
                endpoint, stamps, ..
            } = &mut self.clients[0];
            rma.run_round_trips(endpoint, op, count, stamps).await?
        } else {
            if op == BenchOp::Writedata {
                self.start_round(|count| RoundRequest::CountWrites { count }, count)
                    .await?;
            }
            let began = rma
                .run_stream(&mut self.clients[0].endpoint, op, count, self.plan.window)
                .await?;
            if op == BenchOp::Writedata {
                self.wait_replies(RoundReply::Finished).await?;
            }
            began.elapsed()
        };
        self.rma = Some(rma);
        Ok(elapsed)
    }

    /// Samples the floor if it is due, while the responder leaves its core idle.
    async fn sample_floor(&self) -> Result<()> {
        if let (Bench::Lat, Some(floor)) = (self.plan.bench, &self.floor)
            && floor.is_due()
        {
            self.clients[0].send_first(&RoundRequest::Sleep).await?;
            floor.sample();
        }
        Ok(())
    }

    /// Returns the endpoints that request rounds of their peers: all, or the first one if all
    /// endpoints have the same peer.
    fn requesters(&self) -> &[Client] {
        &self.clients[..if self.plan.fan_in {
            1
        } else {
            self.clients.len()
        }]
    }

    /// Requests a peer's share of a round from each, and waits until all are ready.
    async fn start_round(&self, request: impl Fn(u64) -> RoundRequest, count: u64) -> Result<()> {
        let request = request(count / self.plan.responder_endpoints() as u64);
        for client in self.requesters() {
            client.request_round(&request).await?;
        }
        self.wait_replies(RoundReply::Ready).await
    }

    async fn wait_replies(&self, expected: RoundReply) -> Result<()> {
        for client in self.requesters() {
            client.wait_replies(&expected).await?;
        }
        Ok(())
    }

    /// Runs `work` with each endpoint: in this task with a single one, and in a task for each
    /// otherwise.
    async fn run_clients<F>(&mut self, work: impl Fn(Client) -> F) -> Result<()>
    where
        F: Future<Output = Result<Client>> + Send + 'static,
    {
        let clients = std::mem::take(&mut self.clients);
        if self.plan.endpoints == 1 {
            for client in clients {
                self.clients.push(work(client).await?);
            }
            return Ok(());
        }
        let tasks: Vec<_> = clients
            .into_iter()
            .map(|client| tokio::spawn(work(client)))
            .collect();
        for task in tasks {
            self.clients.push(join(task).await?);
        }
        Ok(())
    }

    /// Does round trips with all endpoints at once. Returns the longest time of an endpoint.
    async fn latency_round(&mut self, size: usize, count: u64) -> Result<Duration> {
        let share = count as usize / self.clients.len();
        for client in &mut self.clients {
            client.stamps.reserve(share);
            client.endpoint.prepare_buffers(2, size);
        }
        self.start_round(|count| RoundRequest::Echo { size, count }, count)
            .await?;
        let is_over = Arc::new(AtomicBool::new(false));
        let streams: Vec<_> = std::mem::take(&mut self.streams)
            .into_iter()
            .map(|client| tokio::spawn(client.stream_until(size, is_over.clone())))
            .collect();
        self.run_clients(|client| client.run_round_trips(size, share))
            .await?;
        is_over.store(true, Ordering::Relaxed);
        for stream in streams {
            self.streams.push(join(stream).await?);
        }
        let elapsed = self.clients.iter().map(|client| client.stamps.elapsed());
        Ok(elapsed.max().unwrap_or_default())
    }

    /// Sends messages in one direction with all endpoints at once, until all peers report that
    /// their messages have arrived.
    async fn stream_round(&mut self, size: usize, count: u64) -> Result<Duration> {
        let share = count as usize / self.clients.len();
        let buffers = self.plan.initiator_buffers();
        for client in &mut self.clients {
            client.endpoint.prepare_buffers(buffers, size);
        }
        self.start_round(|count| RoundRequest::Sink { size, count }, count)
            .await?;
        let began = Instant::now();
        self.run_clients(|client| client.stream(size, share))
            .await?;
        self.wait_replies(RoundReply::Finished).await?;
        Ok(began.elapsed())
    }
}

/// Waits for the end of an endpoint's task.
async fn join(task: JoinHandle<Result<Client>>) -> Result<Client> {
    task.await.map_err(|panic| Error::Io {
        what: "running the task of an endpoint".into(),
        error: panic.into(),
    })?
}
