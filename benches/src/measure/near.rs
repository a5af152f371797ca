//! The measuring side of one lane: a thread with an endpoint and a runtime of its own.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use fabric_async::{Error as FabricError, FiAddr, Operation};

use super::far::{Answer, Task};
use super::onesided::{self, Reach};
use super::plan::Plan;
use super::rounds::{Outcome, Rounds};
use super::station::{Station, open};
use crate::choice::{Api, Bench, Op, name};
use crate::floor::Floor;
use crate::pair::talk::{hear, tell};
use crate::samples::Stamps;
use crate::size::Size;
use crate::stop::Stop;
use crate::{Error, Result, limits, memory, pin, progress};

/// A lane that waits for sizes to measure.
pub(super) struct Lane {
    orders: Sender<usize>,
    outcomes: Receiver<Result<Outcome>>,
}

impl Lane {
    /// Starts the thread of lane `number`, which talks to the endpoints of these names. The lane
    /// that is given the floor looks at it, and shows progress.
    pub(super) fn start(
        plan: &Plan,
        number: usize,
        names: Vec<String>,
        (stop, floor): (Stop, Option<Arc<Floor>>),
    ) -> Result<Self> {
        let ((orders, sizes), (results, outcomes)) = (channel(), channel());
        let plan = plan.clone();
        let work = move || {
            plan.cores
                .get(number)
                .and_then(|cores| cores.0)
                .map(pin::to_core);
            let failed = results.clone();
            let runtime = plan.runtime;
            let run = async move {
                let mut near = Near::connect(plan, &names, stop, floor).await?;
                while let Ok(size) = sizes.recv() {
                    if results.send(near.measure(size).await).is_err() {
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
            .name(format!("lane {number}"))
            .spawn(work)
            .map_err(Error::io("starting a thread"))?;
        Ok(Self { orders, outcomes })
    }

    /// Begins to measure this size.
    pub(super) fn begin(&self, size: usize) {
        // A lane that has ended has left its reason, which `finish` finds.
        let _ = self.orders.send(size);
    }

    /// Waits for what came of it.
    pub(super) fn finish(&self) -> Result<Outcome> {
        self.outcomes
            .recv()
            .unwrap_or(Err(Error::Fabric(FabricError::Canceled)))
    }
}

struct Near {
    plan: Plan,
    station: Station,
    peers: Vec<FiAddr>,
    /// Memory of this process for each peer that is silent.
    idle_bytes: Option<f64>,
    stop: Stop,
    /// The lane that has it leads.
    floor: Option<Arc<Floor>>,
    stamps: Stamps,
    /// The memory of one-sided operations.
    reach: Option<Reach>,
}

impl Near {
    async fn connect(
        plan: Plan,
        names: &[String],
        stop: Stop,
        floor: Option<Arc<Floor>>,
    ) -> Result<Self> {
        let station = open(&plan, 1).await?.swap_remove(0);
        let (active, idle) = names.split_at(plan.peers.min(names.len()));
        let mut peers = Vec::with_capacity(active.len());
        for name in active {
            peers.push(station.ep.lookup(&name[..]).await?);
        }
        let idle_bytes = Self::meet(&station, idle).await?;
        Ok(Self {
            plan,
            station,
            peers,
            idle_bytes,
            stop,
            floor,
            stamps: Stamps::new(0),
            reach: None,
        })
    }

    /// Connects to those that stay silent. Returns what each took of this process.
    async fn meet(station: &Station, idle: &[String]) -> Result<Option<f64>> {
        if idle.is_empty() {
            return Ok(None);
        }
        limits::descriptors(idle.len() as u64 + 256)?;
        let before = memory::resident();
        for name in idle {
            station.ep.lookup(&name[..]).await?;
        }
        let taken = before.zip(memory::resident());
        Ok(taken.map(|(before, after)| after.saturating_sub(before) as f64 / idle.len() as f64))
    }

    async fn measure(&mut self, size: usize) -> Result<Outcome> {
        let mut rounds = Rounds::new(self.plan.bench, self.plan.budget, size);
        if !self.plan.op.is_answered() {
            rounds = rounds.whole();
        }
        if self.plan.op.is_one_sided() {
            self.reach_for(size).await?;
        }
        // Every peer gets the same share.
        while let Some(count) = rounds.next(self.peers.len() as u64, &self.stop) {
            self.look().await?;
            let took = match self.plan.bench {
                _ if self.plan.op.is_one_sided() => self.one_sided(count).await?,
                Bench::Lat => self.latencies(size, count).await?,
                Bench::Bw | Bench::Rate => self.stream(size, count).await?,
            };
            rounds.ended(count, took, &self.stamps);
            if self.floor.is_some() {
                progress::show(
                    &format!("{} {}", name(self.plan.bench), Size(size)),
                    rounds.part(),
                );
            }
        }
        self.look().await?;
        Ok(Outcome {
            idle_bytes: self.idle_bytes,
            ..rounds.outcome()
        })
    }

    /// Has both sides make memory for operations of this size.
    async fn reach_for(&mut self, size: usize) -> Result<()> {
        let (peer, region) = (self.peers[0], onesided::memory(&self.station, size)?);
        let remote = region.remote().to_bytes().to_vec();
        tell(&self.station.ep, peer, &Task::Reach { size, remote }).await?;
        let told = match hear(&self.station.ep, Some(peer)).await? {
            (_, Answer::Reached(told)) => told,
            (_, other) => return Err(other.unexpected()),
        };
        self.reach =
            Some(Reach::new(&self.station, self.plan.api, (size, region), (peer, &told)).await?);
        Ok(())
    }

    /// A round of one-sided operations.
    async fn one_sided(&mut self, count: u64) -> Result<Duration> {
        let op = self.plan.op;
        let Some(reach) = self.reach.take() else {
            return Err(FabricError::Canceled.into());
        };
        let took = if self.plan.bench == Bench::Lat {
            self.stamps.reserve(count as usize);
            if op.is_answered() {
                reach.reset()?;
                self.ask(|count| Task::Bounce { count }, count).await?;
            }
            reach
                .trips(&mut self.station, op, count, &mut self.stamps)
                .await?
        } else {
            if op == Op::Writedata {
                self.ask(|count| Task::Entries { count }, count).await?;
            }
            let began = reach.stream(&mut self.station, op, count).await?;
            if op == Op::Writedata {
                self.answers(Answer::Finished).await?;
            }
            began.elapsed()
        };
        self.reach = Some(reach);
        Ok(took)
    }

    /// Looks at the floor from time to time, while the other side leaves its core alone.
    async fn look(&self) -> Result<()> {
        if let (Bench::Lat, Some(floor)) = (self.plan.bench, &self.floor)
            && floor.is_due()
        {
            tell(&self.station.ep, self.peers[0], &Task::Rest).await?;
            floor.look();
        }
        Ok(())
    }

    /// Gives every peer its share of a round, and waits until all are ready for it.
    async fn ask(&self, task: impl Fn(u64) -> Task, count: u64) -> Result<()> {
        let share = count / self.peers.len() as u64;
        for peer in &self.peers {
            tell(&self.station.ep, *peer, &task(share)).await?;
        }
        self.answers(Answer::Ready).await
    }

    async fn answers(&self, expected: Answer) -> Result<()> {
        for peer in &self.peers {
            let (_, answer): (_, Answer) = hear(&self.station.ep, Some(*peer)).await?;
            if answer != expected {
                return Err(answer.unexpected());
            }
        }
        Ok(())
    }

    /// Round trips, to each peer in turn, with a time stamp after each.
    async fn latencies(&mut self, size: usize, count: u64) -> Result<Duration> {
        self.stamps.reserve(count as usize);
        let mut buffers = self.station.buffers(2, size);
        let (mut ping, mut pong) = (buffers.swap_remove(0), buffers.swap_remove(0));
        self.ask(|count| Task::Echo { size, count }, count).await?;
        self.stamps.begin();
        for trip in 0..count as usize {
            let peer = self.peers[trip % self.peers.len()];
            ping = self.station.send_one(peer, ping).await?;
            pong = self.station.recv_one(peer, pong).await?;
            self.stamps.stamp();
        }
        self.station.leave([ping, pong]);
        Ok(self.stamps.elapsed())
    }

    /// Messages in one direction, to each peer in turn, until the last one says that it has all of
    /// its own.
    async fn stream(&mut self, size: usize, count: u64) -> Result<Duration> {
        let buffers = self.station.buffers(self.plan.near_buffers(), size);
        self.ask(|count| Task::Sink { size, count }, count).await?;
        let began = Instant::now();
        let buffers = match (self.plan.op, self.plan.api) {
            (Op::Loan, _) => {
                let mut buffers = buffers;
                for at in 0..count as usize {
                    let buf = buffers.pop().unwrap_or_default();
                    buffers.push(
                        self.station
                            .send_one(self.peers[at % self.peers.len()], buf)
                            .await?,
                    );
                }
                buffers
            }
            (Op::Inject, Api::Batch) => {
                let share = count as usize / self.peers.len();
                for sent in (0..share).step_by(self.plan.window) {
                    for peer in &self.peers {
                        let batch = self.plan.window.min(share - sent);
                        self.station.inject_all(*peer, &buffers[0], batch).await?;
                    }
                }
                buffers
            }
            (Op::Inject, _) => {
                for at in 0..count as usize {
                    self.station
                        .inject(self.peers[at % self.peers.len()], &buffers[0])
                        .await?;
                }
                buffers
            }
            (_, Api::Await) => self.stream_futures(buffers, count as usize).await?,
            _ => self.stream_queue(buffers, count as usize).await?,
        };
        self.answers(Answer::Finished).await?;
        let took = began.elapsed();
        self.station.leave(buffers);
        Ok(took)
    }

    /// Operations that are started, and awaited in their order when the window is full. Returns the
    /// buffers.
    async fn stream_futures(
        &mut self,
        mut free: Vec<Vec<u8>>,
        count: usize,
    ) -> Result<Vec<Vec<u8>>> {
        let mut under_way: VecDeque<Operation<Vec<u8>>> = VecDeque::with_capacity(free.len());
        for at in 0..count {
            let peer = self.peers[at % self.peers.len()];
            let mut buf = match (free.pop(), under_way.pop_front()) {
                (Some(buf), oldest) => {
                    under_way.extend(oldest);
                    buf
                }
                (None, Some(oldest)) => oldest.await?.into_buf(),
                (None, None) => return Err(FabricError::Canceled.into()),
            };
            let operation = loop {
                match self.station.send(peer, buf).start() {
                    Ok(operation) => break operation,
                    Err(failed) if matches!(failed.error, FabricError::Again(_)) => {
                        buf = failed.buf;
                        drop(self.station.ep.reserve(peer).await?);
                    }
                    Err(failed) => return Err(failed.into()),
                }
            };
            under_way.push_back(operation);
        }
        for operation in under_way {
            free.push(operation.await?.into_buf());
        }
        Ok(free)
    }

    /// Sends that report to the queue. Returns the buffers.
    async fn stream_queue(&mut self, mut free: Vec<Vec<u8>>, count: usize) -> Result<Vec<Vec<u8>>> {
        let (mut posted, mut completed) = (0, 0);
        while completed < count {
            let requests = (posted..count).zip(std::iter::from_fn(|| free.pop()));
            let requests =
                requests.map(|(at, buf)| self.station.send(self.peers[at % self.peers.len()], buf));
            let (accepted, rest) = self.station.post_all(requests)?;
            posted += accepted;
            free.extend(rest);
            if posted == completed {
                drop(
                    self.station
                        .ep
                        .reserve(self.peers[posted % self.peers.len()])
                        .await?,
                );
                continue;
            }
            self.station.sent().await?;
            while self.station.at_hand() > 0 {
                free.push(self.station.next_buf()?);
                completed += 1;
            }
        }
        Ok(free)
    }
}
