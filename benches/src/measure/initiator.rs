//! The initiator of one worker: a thread with its own endpoint and runtime.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use fabric_async::{Error as FabricError, FiAddr, Operation};

use super::endpoint::{BenchEndpoint, open_endpoints};
use super::onesided::{self, RmaBuffers};
use super::plan::Plan;
use super::responder::{RoundReply, RoundRequest};
use super::rounds::{MeasureOutcome, RoundScheduler};
use crate::floor::Floor;
use crate::options::{Api, Bench, BenchOp, name};
use crate::peer_process::control::{recv_control, send_control};
use crate::samples::TimeStamps;
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
    endpoint: BenchEndpoint,
    peers: Vec<FiAddr>,
    /// Memory of this process for each idle peer, in bytes.
    idle_bytes: Option<f64>,
    stop: Stop,
    /// Set for the first worker, which samples the floor and shows progress.
    floor: Option<Arc<Floor>>,
    stamps: TimeStamps,
    /// The memory of one-sided operations.
    rma: Option<RmaBuffers>,
    /// The bytes that a stream of awaited sends sends again and again.
    stream_bytes: &'static [u8],
}

impl Initiator {
    async fn connect(
        plan: Plan,
        names: &[String],
        stop: Stop,
        floor: Option<Arc<Floor>>,
    ) -> Result<Self> {
        let endpoint = open_endpoints(&plan, 1).await?.swap_remove(0);
        let (active, idle) = names.split_at(plan.peers.min(names.len()));
        let mut peers = Vec::with_capacity(active.len());
        for name in active {
            peers.push(endpoint.ep.add_peer(&name[..]).await?);
        }
        let idle_bytes = Self::connect_idle(&endpoint, idle).await?;
        Ok(Self {
            plan,
            endpoint,
            peers,
            idle_bytes,
            stop,
            floor,
            stamps: TimeStamps::new(0),
            rma: None,
            stream_bytes: &[],
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
        // Every peer gets the same share.
        while let Some(count) = rounds.next_round(self.peers.len() as u64, &self.stop) {
            self.sample_floor().await?;
            let elapsed = match self.plan.bench {
                _ if self.plan.op.is_one_sided() => self.one_sided_round(count).await?,
                Bench::Lat => self.latency_round(size, count).await?,
                Bench::Bw | Bench::Rate => self.stream_round(size, count).await?,
            };
            rounds.record_round(count, elapsed, &self.stamps);
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
        let (peer, region) = (self.peers[0], onesided::alloc_region(&self.endpoint, size)?);
        let remote = region.remote().to_bytes().to_vec();
        send_control(
            &self.endpoint.ep,
            peer,
            &RoundRequest::ExchangeMemory { size, remote },
        )
        .await?;
        let description = match recv_control(&self.endpoint.ep, Some(peer)).await? {
            (_, RoundReply::Memory(description)) => description,
            (_, other) => return Err(other.to_unexpected_error()),
        };
        self.rma = Some(
            RmaBuffers::new(
                &self.endpoint,
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
            self.stamps.reserve(count as usize);
            if op.is_ping_pong() {
                rma.clear_marker()?;
                self.start_round(|count| RoundRequest::WriteBack { count }, count)
                    .await?;
            }
            rma.run_round_trips(&mut self.endpoint, op, count, &mut self.stamps)
                .await?
        } else {
            if op == BenchOp::Writedata {
                self.start_round(|count| RoundRequest::CountWrites { count }, count)
                    .await?;
            }
            let began = rma
                .run_stream(&mut self.endpoint, op, count, self.plan.window)
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
            send_control(&self.endpoint.ep, self.peers[0], &RoundRequest::Sleep).await?;
            floor.sample();
        }
        Ok(())
    }

    /// Requests a peer's share of a round from each, and waits until all are ready.
    async fn start_round(&self, request: impl Fn(u64) -> RoundRequest, count: u64) -> Result<()> {
        let share = count / self.peers.len() as u64;
        for peer in &self.peers {
            send_control(&self.endpoint.ep, *peer, &request(share)).await?;
        }
        self.wait_replies(RoundReply::Ready).await
    }

    async fn wait_replies(&self, expected: RoundReply) -> Result<()> {
        for peer in &self.peers {
            let (_, reply): (_, RoundReply) = recv_control(&self.endpoint.ep, Some(*peer)).await?;
            if reply != expected {
                return Err(reply.to_unexpected_error());
            }
        }
        Ok(())
    }

    /// Does round trips, to each peer in turn, with a time stamp after each.
    async fn latency_round(&mut self, size: usize, count: u64) -> Result<Duration> {
        self.stamps.reserve(count as usize);
        let mut buffers = self.endpoint.buffers(2, size);
        let (mut ping, mut pong) = (buffers.swap_remove(0), buffers.swap_remove(0));
        self.start_round(|count| RoundRequest::Echo { size, count }, count)
            .await?;
        self.stamps.begin();
        for trip in 0..count as usize {
            let peer = self.peers[trip % self.peers.len()];
            ping = self.endpoint.send_one(peer, ping).await?;
            pong = self.endpoint.recv_one(peer, pong).await?;
            self.stamps.stamp();
        }
        self.endpoint.recycle([ping, pong]);
        Ok(self.stamps.elapsed())
    }

    /// Sends messages in one direction, to each peer in turn, until all peers report that their
    /// messages have arrived.
    async fn stream_round(&mut self, size: usize, count: u64) -> Result<Duration> {
        let buffers = self.endpoint.buffers(self.plan.initiator_buffers(), size);
        self.start_round(|count| RoundRequest::Sink { size, count }, count)
            .await?;
        let began = Instant::now();
        let buffers = match (self.plan.op, self.plan.api) {
            (BenchOp::Loan, _) => {
                let mut buffers = buffers;
                for at in 0..count as usize {
                    let buf = buffers.pop().unwrap_or_default();
                    buffers.push(
                        self.endpoint
                            .send_one(self.peers[at % self.peers.len()], buf)
                            .await?,
                    );
                }
                buffers
            }
            (BenchOp::Inject, Api::Batch) => {
                let share = count as usize / self.peers.len();
                for sent in (0..share).step_by(self.plan.window) {
                    for peer in &self.peers {
                        let batch = self.plan.window.min(share - sent);
                        self.endpoint.inject_all(*peer, &buffers[0], batch).await?;
                    }
                }
                buffers
            }
            (BenchOp::Inject, _) => {
                for at in 0..count as usize {
                    self.endpoint
                        .inject(self.peers[at % self.peers.len()], &buffers[0])
                        .await?;
                }
                buffers
            }
            (_, Api::Await) => {
                self.stream_futures(size, count as usize).await?;
                buffers
            }
            _ => self.stream_queue(buffers, count as usize).await?,
        };
        self.wait_replies(RoundReply::Finished).await?;
        let elapsed = began.elapsed();
        self.endpoint.recycle(buffers);
        Ok(elapsed)
    }

    /// Starts sends of the same bytes, as `ucx_perftest` does, and awaits the oldest send when the
    /// window is full.
    async fn stream_futures(&mut self, size: usize, count: usize) -> Result<()> {
        if self.stream_bytes.len() != size {
            // Not freed: there are few sizes, and the process ends with the measurement.
            self.stream_bytes = Vec::leak(vec![7; size]);
        }
        let mut in_flight: VecDeque<Operation<&'static [u8]>> =
            VecDeque::with_capacity(self.plan.window);
        for at in 0..count {
            let peer = self.peers[at % self.peers.len()];
            if in_flight.len() == self.plan.window
                && let Some(oldest) = in_flight.pop_front()
            {
                oldest.await?;
            }
            let operation = loop {
                match self.endpoint.send(peer, self.stream_bytes).start() {
                    Ok(operation) => break operation,
                    Err(failed) if matches!(failed.error, FabricError::WouldBlock(_)) => {
                        drop(self.endpoint.ep.reserve(peer).await?);
                    }
                    Err(failed) => return Err(failed.into()),
                }
            };
            in_flight.push_back(operation);
        }
        for operation in in_flight {
            operation.await?;
        }
        Ok(())
    }

    /// Sends messages that complete on the queue. Returns the buffers.
    async fn stream_queue(&mut self, mut free: Vec<Vec<u8>>, count: usize) -> Result<Vec<Vec<u8>>> {
        let (mut posted, mut completed) = (0, 0);
        while completed < count {
            let requests = (posted..count).zip(std::iter::from_fn(|| free.pop()));
            let requests = requests
                .map(|(at, buf)| self.endpoint.send(self.peers[at % self.peers.len()], buf));
            let (accepted, rest) = self.endpoint.post_all(requests)?;
            posted += accepted;
            free.extend(rest);
            if posted == completed {
                drop(
                    self.endpoint
                        .ep
                        .reserve(self.peers[posted % self.peers.len()])
                        .await?,
                );
                continue;
            }
            self.endpoint.wait_tx_completions().await?;
            while self.endpoint.completion_count() > 0 {
                free.push(self.endpoint.take_buffer()?);
                completed += 1;
            }
        }
        Ok(free)
    }
}
