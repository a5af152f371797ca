//! One-sided operations between the two sides of a lane: the memory they work on, and the two
//! loops.
//!
//! A write is measured as a ping-pong: each side waits until it sees the other's in its own memory.
//! Reads and atomic operations have no counterpart: a sample is a whole operation, and the other
//! side does nothing.

use std::time::{Duration, Instant};

use fabric_async::{Access, AtomicOp, FiAddr, MemoryRegion, RemoteRegion, RemoteWindow};

use super::station::Station;
use crate::choice::{Api, Op};
use crate::samples::Stamps;
use crate::{Error, Result};

/// Looks at memory between two looks at whether the peer is still there.
const LOOKS: u32 = 1 << 16;

/// Memory of both sides.
pub(super) struct Reach {
    pub(super) size: usize,
    region: MemoryRegion,
    remote: RemoteRegion,
    peer: FiAddr,
    /// Instead of operations.
    window: Option<RemoteWindow>,
}

/// Memory for operations of this size.
pub(super) fn memory(station: &Station, size: usize) -> Result<MemoryRegion> {
    Ok(station
        .ep
        .domain()
        .alloc(size.max(8), Access::REMOTE_READ | Access::REMOTE_WRITE)?)
}

impl Reach {
    /// Memory here, and there as the peer has told of it; mapped when this returns.
    pub(super) async fn new(
        station: &Station,
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

    /// Before a round of writes: none has come yet.
    pub(super) fn reset(&self) -> Result<()> {
        Ok(self.region.write(self.size - 1, &[0])?)
    }

    /// Waits until the other side has written this number. Writes go from the first byte to the
    /// last.
    async fn seen(&self, station: &Station, number: u8) -> Result<()> {
        loop {
            for _ in 0..LOOKS {
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

    async fn write(&self, station: &Station, mut buf: Vec<u8>, number: u8) -> Result<Vec<u8>> {
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

    async fn write_data(&self, station: &Station, buf: Vec<u8>) -> Result<Vec<u8>> {
        Ok(station
            .ep
            .write(self.peer, self.remote.at(0), buf)
            .data(7)
            .await?
            .into_buf())
    }

    /// One operation, and for writes its counterpart.
    async fn trip(
        &self,
        station: &mut Station,
        op: Op,
        buf: Vec<u8>,
        number: u8,
    ) -> Result<Vec<u8>> {
        match op {
            Op::Write => {
                let buf = self.write(station, buf, number).await?;
                self.seen(station, number).await?;
                Ok(buf)
            }
            Op::Writedata => {
                let buf = self.write_data(station, buf).await?;
                station.written(1).await?;
                Ok(buf)
            }
            _ => self.one(station, op, buf).await,
        }
    }

    /// One operation.
    async fn one(&self, station: &Station, op: Op, mut buf: Vec<u8>) -> Result<Vec<u8>> {
        if let Some(window) = &self.window {
            call(window, op, &mut buf)?;
            return Ok(buf);
        }
        match op {
            Op::Write => self.write(station, buf, 0).await,
            Op::Writedata => self.write_data(station, buf).await,
            Op::Read => {
                let all = self.remote.slice(..self.size as u64);
                Ok(station.ep.read_into(self.peer, all, buf).await?.into_buf())
            }
            Op::Atomic => station
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

    /// Trips, with a time stamp after each.
    pub(super) async fn trips(
        &self,
        station: &mut Station,
        op: Op,
        count: u64,
        stamps: &mut Stamps,
    ) -> Result<Duration> {
        let mut buf = station.buffers(1, self.size).swap_remove(0);
        stamps.begin();
        for trip in 1..=count {
            buf = self.trip(station, op, buf, trip as u8).await?;
            stamps.stamp();
        }
        station.leave([buf]);
        Ok(stamps.elapsed())
    }

    /// Operations one after the other, without a counterpart.
    pub(super) async fn stream(
        &self,
        station: &mut Station,
        op: Op,
        count: u64,
    ) -> Result<Instant> {
        let mut buf = station.buffers(1, self.size).swap_remove(0);
        let began = Instant::now();
        if let Some(window) = &self.window {
            (0..count).try_for_each(|_| call(window, op, &mut buf))?;
            station.leave([buf]);
            return Ok(began);
        }
        for _ in 0..count {
            buf = self.one(station, op, buf).await?;
        }
        station.leave([buf]);
        Ok(began)
    }

    /// The counterpart: writes back what it sees, so often.
    pub(super) async fn bounce(&self, station: &mut Station, op: Op, count: u64) -> Result<()> {
        let mut buf = station.buffers(1, self.size).swap_remove(0);
        for trip in 1..=count {
            buf = if op == Op::Writedata {
                station.written(1).await?;
                self.write_data(station, buf).await?
            } else {
                self.seen(station, trip as u8).await?;
                self.write(station, buf, trip as u8).await?
            };
        }
        station.leave([buf]);
        Ok(())
    }
}

/// One call on a window.
#[inline]
fn call(window: &RemoteWindow, op: Op, buf: &mut [u8]) -> Result<()> {
    match op {
        Op::Read => window.read(0, buf)?,
        Op::Atomic => window.atomic(0, AtomicOp::Sum, 1u64).map(drop)?,
        _ => window.write(0, buf)?,
    }
    Ok(())
}
