//! One-sided operations between the two sides of a worker: the memory they access, and the two
//! loops.
//!
//! A write is measured as a ping-pong: each side waits until it sees the other's write in its own
//! memory. Reads and atomics are not answered: a sample is a whole operation.

use std::time::{Duration, Instant};

use fabric_async::{Access, AtomicOp, FiAddr, MemoryRegion, RemoteRegion, RemoteWindow};

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
    window: Option<RemoteWindow>,
}

/// Allocates memory for operations of this size.
pub(super) fn alloc_region(station: &BenchEndpoint, size: usize) -> Result<MemoryRegion> {
    Ok(station
        .ep
        .domain()
        .alloc(size.max(8), Access::REMOTE_READ | Access::REMOTE_WRITE)?)
}

impl RmaBuffers {
    /// Sets up local memory, and the peer's as it describes it; mapped on return if the API needs
    /// it.
    pub(super) async fn new(
        station: &BenchEndpoint,
        api: Api,
        (size, region): (usize, MemoryRegion),
        (peer, told): (FiAddr, &[u8]),
    ) -> Result<Self> {
        let remote = RemoteRegion::from_bytes(told)?;
        station.ep.write(peer, remote.at(0), Vec::new()).await?;
        let window = match api {
            Api::Window => Some(station.ep.window(peer, remote).await?),
            _ => None,
        };
        Ok(Self {
            size,
            region,
            remote,
            peer,
            window,
        })
    }

    /// Clears the marker before a round of writes.
    pub(super) fn clear_marker(&self) -> Result<()> {
        Ok(self.region.write(self.size - 1, &[0])?)
    }

    /// Waits until the other side has written this number into the last byte. Writes proceed from
    /// the first byte to the last.
    async fn wait_marker(&self, station: &BenchEndpoint, number: u8) -> Result<()> {
        loop {
            for _ in 0..POLLS_PER_PEER_CHECK {
                if self.region.load::<u8>(self.size - 1)? == number {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            // Fails when the peer is gone.
            station
                .ep
                .write(self.peer, self.remote.at(0), Vec::new())
                .await?;
            tokio::task::yield_now().await;
        }
    }

    async fn write(
        &self,
        station: &BenchEndpoint,
        mut buf: Vec<u8>,
        number: u8,
    ) -> Result<Vec<u8>> {
        if let Some(last) = buf.last_mut() {
            *last = number;
        }
        if let Some(window) = &self.window {
            window.write(0, &buf)?;
            return Ok(buf);
        }
        Ok(station
            .ep
            .write(self.peer, self.remote.at(0), buf)
            .await?
            .into_buf())
    }

    async fn write_data(&self, station: &BenchEndpoint, buf: Vec<u8>) -> Result<Vec<u8>> {
        Ok(station
            .ep
            .write(self.peer, self.remote.at(0), buf)
            .data(7)
            .await?
            .into_buf())
    }

    /// Does one operation and, for writes, waits for the answer.
    async fn round_trip(
        &self,
        station: &mut BenchEndpoint,
        op: BenchOp,
        buf: Vec<u8>,
        number: u8,
    ) -> Result<Vec<u8>> {
        match op {
            BenchOp::Write => {
                let buf = self.write(station, buf, number).await?;
                self.wait_marker(station, number).await?;
                Ok(buf)
            }
            BenchOp::Writedata => {
                let buf = self.write_data(station, buf).await?;
                station.wait_remote_writes(1).await?;
                Ok(buf)
            }
            _ => self.run_op(station, op, buf).await,
        }
    }

    /// Does one operation.
    async fn run_op(
        &self,
        station: &BenchEndpoint,
        op: BenchOp,
        mut buf: Vec<u8>,
    ) -> Result<Vec<u8>> {
        if let Some(window) = &self.window {
            access_mapping(window, op, &mut buf)?;
            return Ok(buf);
        }
        match op {
            BenchOp::Write => self.write(station, buf, 0).await,
            BenchOp::Writedata => self.write_data(station, buf).await,
            BenchOp::Read => {
                let all = self.remote.slice(..self.size as u64);
                Ok(station.ep.read_into(self.peer, all, buf).await?.into_buf())
            }
            BenchOp::Atomic => station
                .ep
                .fetch_add(self.peer, self.remote.at(0), 1u64)
                .await
                .map(|_| buf)
                .map_err(Error::from),
            _ => Err(Error::Fabric(fabric_async::Error::NotSupported(
                "a message among one-sided operations",
            ))),
        }
    }

    /// Does round trips, with a time stamp after each.
    pub(super) async fn run_round_trips(
        &self,
        station: &mut BenchEndpoint,
        op: BenchOp,
        count: u64,
        stamps: &mut TimeStamps,
    ) -> Result<Duration> {
        let mut buf = station.buffers(1, self.size).swap_remove(0);
        stamps.begin();
        for trip in 1..=count {
            buf = self.round_trip(station, op, buf, trip as u8).await?;
            stamps.stamp();
        }
        station.recycle([buf]);
        Ok(stamps.elapsed())
    }

    /// Does operations one after the other, without answers.
    pub(super) async fn run_stream(
        &self,
        station: &mut BenchEndpoint,
        op: BenchOp,
        count: u64,
    ) -> Result<Instant> {
        let mut buf = station.buffers(1, self.size).swap_remove(0);
        let began = Instant::now();
        if let Some(window) = &self.window {
            (0..count).try_for_each(|_| access_mapping(window, op, &mut buf))?;
            station.recycle([buf]);
            return Ok(began);
        }
        for _ in 0..count {
            buf = self.run_op(station, op, buf).await?;
        }
        station.recycle([buf]);
        Ok(began)
    }

    /// Answers `count` writes by writes.
    pub(super) async fn write_back(
        &self,
        station: &mut BenchEndpoint,
        op: BenchOp,
        count: u64,
    ) -> Result<()> {
        let mut buf = station.buffers(1, self.size).swap_remove(0);
        for trip in 1..=count {
            buf = if op == BenchOp::Writedata {
                station.wait_remote_writes(1).await?;
                self.write_data(station, buf).await?
            } else {
                self.wait_marker(station, trip as u8).await?;
                self.write(station, buf, trip as u8).await?
            };
        }
        station.recycle([buf]);
        Ok(())
    }
}

/// Accesses a mapped region once.
#[inline]
fn access_mapping(window: &RemoteWindow, op: BenchOp, buf: &mut [u8]) -> Result<()> {
    match op {
        BenchOp::Read => window.read(0, buf)?,
        BenchOp::Atomic => window.atomic(0, AtomicOp::Sum, 1u64).map(drop)?,
        _ => window.write(0, buf)?,
    }
    Ok(())
}
