//! A measuring endpoint with its peers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fabric_async::{Error as FabricError, FiAddr, Operation};

use super::endpoint::BenchEndpoint;
use super::plan::Plan;
use super::responder::{RoundReply, RoundRequest};
use crate::Result;
use crate::options::{Api, BenchOp};
use crate::peer_process::control::{recv_control, send_control};
use crate::samples::TimeStamps;

/// Messages of a round that streams beside a measurement.
const STREAM_ROUND: usize = 1024;

/// An endpoint of the initiator, its peers, and what it needs for a round.
pub(super) struct Client {
    pub(super) endpoint: BenchEndpoint,
    pub(super) peers: Vec<FiAddr>,
    pub(super) stamps: TimeStamps,
    op: BenchOp,
    window: usize,
    /// Number of buffers of a stream.
    buffers: usize,
    /// The bytes that a stream of awaited sends sends again and again.
    stream_bytes: &'static [u8],
}

impl Client {
    /// Connects an endpoint to the peers of these names.
    pub(super) async fn connect(
        endpoint: BenchEndpoint,
        plan: &Plan,
        names: &[String],
    ) -> Result<Self> {
        let mut peers = Vec::with_capacity(names.len());
        for name in names {
            peers.push(endpoint.ep.add_peer(&name[..]).await?);
        }
        Ok(Self {
            endpoint,
            peers,
            stamps: TimeStamps::new(0),
            op: plan.op,
            window: plan.window,
            buffers: plan.initiator_buffers(),
            stream_bytes: &[],
        })
    }

    /// Sends a request to the first peer.
    pub(super) async fn send_first(&self, request: &RoundRequest) -> Result<()> {
        send_control(&self.endpoint.ep, self.peers[0], request).await
    }

    /// Sends a request to each peer.
    pub(super) async fn request_round(&self, request: &RoundRequest) -> Result<()> {
        for peer in &self.peers {
            send_control(&self.endpoint.ep, *peer, request).await?;
        }
        Ok(())
    }

    /// Waits for this reply of each peer.
    pub(super) async fn wait_replies(&self, expected: &RoundReply) -> Result<()> {
        for peer in &self.peers {
            let (_, reply): (_, RoundReply) = recv_control(&self.endpoint.ep, Some(*peer)).await?;
            if reply != *expected {
                return Err(reply.to_unexpected_error());
            }
        }
        Ok(())
    }

    /// Does round trips, to each peer in turn, with a time stamp after each.
    pub(super) async fn run_round_trips(mut self, size: usize, count: usize) -> Result<Self> {
        let mut buffers = self.endpoint.buffers(2, size);
        let (mut ping, mut pong) = (buffers.swap_remove(0), buffers.swap_remove(0));
        self.stamps.begin();
        for trip in 0..count {
            let peer = self.peers[trip % self.peers.len()];
            ping = self.endpoint.send_one(peer, ping).await?;
            pong = self.endpoint.recv_one(Some(peer), pong).await?;
            self.stamps.stamp();
        }
        self.endpoint.recycle([ping, pong]);
        Ok(self)
    }

    /// Sends messages in one direction, to each peer in turn.
    pub(super) async fn stream(mut self, size: usize, count: usize) -> Result<Self> {
        let buffers = self.endpoint.buffers(self.buffers, size);
        let buffers = match (self.op, self.endpoint.api()) {
            (BenchOp::Loan, _) => {
                let mut buffers = buffers;
                for at in 0..count {
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
                let share = count / self.peers.len();
                for sent in (0..share).step_by(self.window) {
                    for peer in &self.peers {
                        let batch = self.window.min(share - sent);
                        self.endpoint.inject_all(*peer, &buffers[0], batch).await?;
                    }
                }
                buffers
            }
            (BenchOp::Inject, _) => {
                for at in 0..count {
                    self.endpoint
                        .inject(self.peers[at % self.peers.len()], &buffers[0])
                        .await?;
                }
                buffers
            }
            (_, Api::Await) => {
                self.stream_futures(size, count).await?;
                buffers
            }
            _ => self.stream_queue(buffers, count).await?,
        };
        self.endpoint.recycle(buffers);
        Ok(self)
    }

    /// Streams messages of this size until `is_over`, in rounds that the peers report as received.
    pub(super) async fn stream_until(
        mut self,
        size: usize,
        is_over: Arc<AtomicBool>,
    ) -> Result<Self> {
        while !is_over.load(Ordering::Relaxed) {
            let count = STREAM_ROUND as u64;
            self.request_round(&RoundRequest::Sink { size, count })
                .await?;
            self.wait_replies(&RoundReply::Ready).await?;
            let count = STREAM_ROUND * self.peers.len();
            self = self.stream(size, count).await?;
            self.wait_replies(&RoundReply::Finished).await?;
        }
        Ok(self)
    }

    /// Starts sends of the same bytes, as `ucx_perftest` does, and awaits the oldest send when the
    /// window is full.
    async fn stream_futures(&mut self, size: usize, count: usize) -> Result<()> {
        if self.stream_bytes.len() != size {
            // Not freed: there are few sizes, and the process ends with the measurement.
            self.stream_bytes = Vec::leak(vec![7; size]);
        }
        let mut in_flight: VecDeque<Operation<&'static [u8]>> =
            VecDeque::with_capacity(self.window);
        for at in 0..count {
            let peer = self.peers[at % self.peers.len()];
            if in_flight.len() == self.window
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
