//! One-sided operations between the two sides of a worker: the memory they access, and the two
//! loops.
//!
//! A write is measured as a ping-pong: each side waits until it sees the other's write in its own
//! memory. Reads and atomics are not answered: a sample is a whole operation.

use std::time::{Duration, Instant};

use fabric_async::atomic::AtomicOp;
use fabric_async::{Access, FiAddr, MemoryRegion, RemoteRegion, RemoteWindow};

use super::endpoint::BenchEndpoint;
use crate::options::{Api, BenchOp};
use crate::samples::TimeStamps;
use crate::{Error, Result};

/// Polls of memory between two checks that the peer is alive.
const POLLS_PER_PEER_CHECK: u32 = 1 << 16;

/// Memory of both sides.
pub(super) struct RmaBuffers {
    pub(super) size: usize,
    region: MemoryRegion,
    remote: RemoteRegion,
    peer: FiAddr,
    /// Accessed instead of posting operations.
    mapping: Option<RemoteWindow>,
}

/// Allocates memory for operations of this size.
pub(super) fn alloc_region(endpoint: &BenchEndpoint, size: usize) -> Result<MemoryRegion> {
    Ok(endpoint
        .ep
        .domain()
        .alloc(size.max(8), Access::REMOTE_READ | Access::REMOTE_WRITE)?)
}

impl RmaBuffers {
    /// Sets up local memory, and the peer's as it describes it; mapped on return if the API needs
    /// it.
    pub(super) async fn new(
        endpoint: &BenchEndpoint,
        api: Api,
        (size, region): (usize, MemoryRegion),
        (peer, description): (FiAddr, &[u8]),
    ) -> Result<Self> {
        let remote = RemoteRegion::from_bytes(description)?;
        endpoint.ep.write(peer, remote.at(0), Vec::new()).await?;
        let mapping = match api {
            Api::Mapped => Some(endpoint.ep.window(peer, remote).await?),
            _ => None,
        };
        Ok(Self {
            size,
            region,
            remote,
            peer,
            mapping,
        })
    }

    /// Clears the marker before a round of writes.
    pub(super) fn clear_marker(&self) -> Result<()> {
        Ok(self.region.write(self.size - 1, &[0])?)
    }

    /// Waits until the other side has written this number into the last byte. Writes proceed from
    /// the first byte to the last.
    async fn wait_marker(&self, endpoint: &BenchEndpoint, number: u8) -> Result<()> {
        loop {
            for _ in 0..POLLS_PER_PEER_CHECK {
                if self.region.load::<u8>(self.size - 1)? == number {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            // Fails when the peer is gone.
            endpoint
                .ep
                .write(self.peer, self.remote.at(0), Vec::new())
                .await?;
            tokio::task::yield_now().await;
        }
    }

    async fn write(
        &self,
        endpoint: &BenchEndpoint,
        mut buf: Vec<u8>,
        number: u8,
    ) -> Result<Vec<u8>> {
        if let Some(last) = buf.last_mut() {
            *last = number;
        }
        if let Some(mapping) = &self.mapping {
            mapping.write(0, &buf)?;
            return Ok(buf);
        }
        Ok(endpoint
            .ep
            .write(self.peer, self.remote.at(0), buf)
            .await?
            .into_buf())
    }

    async fn write_data(&self, endpoint: &BenchEndpoint, buf: Vec<u8>) -> Result<Vec<u8>> {
        Ok(endpoint
            .ep
            .write(self.peer, self.remote.at(0), buf)
            .data(7)
            .await?
            .into_buf())
    }

    /// Does one operation and, for writes, waits for the answer.
    async fn round_trip(
        &self,
        endpoint: &mut BenchEndpoint,
        op: BenchOp,
        buf: Vec<u8>,
        number: u8,
    ) -> Result<Vec<u8>> {
        match op {
            BenchOp::Write => {
                let buf = self.write(endpoint, buf, number).await?;
                self.wait_marker(endpoint, number).await?;
                Ok(buf)
            }
            BenchOp::Writedata => {
                let buf = self.write_data(endpoint, buf).await?;
                endpoint.wait_remote_writes(1).await?;
                Ok(buf)
            }
            _ => self.run_op(endpoint, op, buf).await,
        }
    }

    /// Does one operation.
    async fn run_op(
        &self,
        endpoint: &BenchEndpoint,
        op: BenchOp,
        mut buf: Vec<u8>,
    ) -> Result<Vec<u8>> {
        if let Some(mapping) = &self.mapping {
            access_mapping(mapping, op, &mut buf)?;
            return Ok(buf);
        }
        match op {
            BenchOp::Write => self.write(endpoint, buf, 0).await,
            BenchOp::Writedata => self.write_data(endpoint, buf).await,
            BenchOp::Read => {
                let range = self.remote.slice(..self.size as u64);
                Ok(endpoint
                    .ep
                    .read_into(self.peer, range, buf)
                    .await?
                    .into_buf())
            }
            BenchOp::Atomic => endpoint
                .ep
                .fetch_add(self.peer, self.remote.at(0), 1u64)
                .await
                .map(|_| buf)
                .map_err(Error::from),
            _ => Err(Error::Fabric(fabric_async::Error::NotSupported(
                "message operation in a one-sided round",
            ))),
        }
    }

    /// Does round trips, with a time stamp after each.
    pub(super) async fn run_round_trips(
        &self,
        endpoint: &mut BenchEndpoint,
        op: BenchOp,
        count: u64,
        stamps: &mut TimeStamps,
    ) -> Result<Duration> {
        let mut buf = endpoint.buffers(1, self.size).swap_remove(0);
        stamps.begin();
        for trip in 1..=count {
            buf = self.round_trip(endpoint, op, buf, trip as u8).await?;
            stamps.stamp();
        }
        endpoint.recycle([buf]);
        Ok(stamps.elapsed())
    }

    /// Does operations one after the other, or in batches of `window`, without answers.
    pub(super) async fn run_stream(
        &self,
        endpoint: &mut BenchEndpoint,
        op: BenchOp,
        count: u64,
        window: usize,
    ) -> Result<Instant> {
        if endpoint.api() == Api::Batch {
            return self.run_batches(endpoint, count as usize, window).await;
        }
        let mut buf = endpoint.buffers(1, self.size).swap_remove(0);
        let began = Instant::now();
        if let Some(mapping) = &self.mapping {
            (0..count).try_for_each(|_| access_mapping(mapping, op, &mut buf))?;
            endpoint.recycle([buf]);
            return Ok(began);
        }
        for _ in 0..count {
            buf = self.run_op(endpoint, op, buf).await?;
        }
        endpoint.recycle([buf]);
        Ok(began)
    }

    /// Posts writes in batches, and takes their completions from the queue.
    async fn run_batches(
        &self,
        endpoint: &mut BenchEndpoint,
        count: usize,
        window: usize,
    ) -> Result<Instant> {
        let mut free = endpoint.buffers(window, self.size);
        let (mut posted, mut completed) = (0, 0);
        let began = Instant::now();
        while completed < count {
            let requests = (posted..count).zip(std::iter::from_fn(|| free.pop()));
            let requests =
                requests.map(|(_, buf)| endpoint.ep.write(self.peer, self.remote.at(0), buf));
            let (accepted, rest) = endpoint.post_all(requests)?;
            posted += accepted;
            free.extend(rest);
            endpoint.wait_tx_completions().await?;
            while endpoint.completion_count() > 0 {
                free.push(endpoint.take_buffer()?);
                completed += 1;
            }
        }
        endpoint.recycle(free);
        Ok(began)
    }

    /// Answers `count` writes by writes.
    pub(super) async fn write_back(
        &self,
        endpoint: &mut BenchEndpoint,
        op: BenchOp,
        count: u64,
    ) -> Result<()> {
        let mut buf = endpoint.buffers(1, self.size).swap_remove(0);
        for trip in 1..=count {
            buf = if op == BenchOp::Writedata {
                endpoint.wait_remote_writes(1).await?;
                self.write_data(endpoint, buf).await?
            } else {
                self.wait_marker(endpoint, trip as u8).await?;
                self.write(endpoint, buf, trip as u8).await?
            };
        }
        endpoint.recycle([buf]);
        Ok(())
    }
}

/// Accesses a mapped region once.
#[inline]
fn access_mapping(mapping: &RemoteWindow, op: BenchOp, buf: &mut [u8]) -> Result<()> {
    match op {
        BenchOp::Read => mapping.read(0, buf)?,
        BenchOp::Atomic => mapping.atomic(0, AtomicOp::Sum, 1u64).map(drop)?,
        _ => mapping.write(0, buf)?,
    }
    Ok(())
}
