//! The side that posts sends, loans, writes and atomics.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use fabric_async::{Endpoint, Error as FabricError, FiAddr, Operation, RemoteRegion};

use super::ledger::{self, HEADER_LEN};
use super::receiver::{COUNTER_OFFSET, TAG, WRITE_SLOTS};
use super::{SoakRequest, SoakStatus, SoakTotals, resident_bytes};
use crate::peer_process::control::{recv_control, send_control};
use crate::stop::Stop;
use crate::{Result, progress_bar};

/// Operations in flight.
const WINDOW: usize = 16;

pub(super) async fn run_sender(
    provider: String,
    address: String,
    time: Duration,
    stop: Stop,
) -> Result<SoakTotals> {
    let ep = Endpoint::bind(&format!("{provider}://")[..]).await?;
    let peer = ep.add_peer(&address[..]).await?;
    send_control(&ep, peer, &SoakRequest::GetRegion).await?;
    let remote = RemoteRegion::from_bytes(&recv_control::<Vec<u8>>(&ep, Some(peer)).await?.1)?;
    let mut sender = SoakSender {
        ep,
        peer,
        remote,
        in_flight: VecDeque::new(),
        rng_state: 1,
        totals: SoakTotals::default(),
    };
    let (began, interval) = (Instant::now(), time / 40);
    let mut next = interval;
    while began.elapsed() < time && !stop.raised() {
        for _ in 0..64 {
            sender.run_random_op().await?;
        }
        if began.elapsed() >= next {
            next += interval;
            sender
                .sample_memory(began.elapsed().as_secs_f64() / time.as_secs_f64())
                .await?;
        }
    }
    sender.wait_in_flight(0).await?;
    let (messages, added) = (sender.totals.messages, sender.totals.added);
    send_control(&sender.ep, peer, &SoakRequest::End { messages, added }).await?;
    sender.totals.last_status = recv_control::<SoakStatus>(&sender.ep, Some(peer)).await?.1;
    Ok(sender.totals)
}

struct SoakSender {
    ep: Endpoint,
    peer: FiAddr,
    remote: RemoteRegion,
    in_flight: VecDeque<Operation<Vec<u8>>>,
    rng_state: u64,
    totals: SoakTotals,
}

impl SoakSender {
    fn random_below(&mut self, limit: u64) -> u64 {
        self.rng_state = self
            .rng_state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.rng_state >> 33) % limit
    }

    /// Returns a random length, mostly short.
    fn random_len(&mut self) -> usize {
        let limit = [100, 100, 9000, 100_000, 400_000][self.random_below(5) as usize];
        HEADER_LEN + self.random_below(limit) as usize
    }

    /// Posts a random operation.
    async fn run_random_op(&mut self) -> Result<()> {
        self.wait_in_flight(WINDOW).await?;
        let (number, kind, len) = (
            self.totals.messages,
            self.random_below(16),
            self.random_len(),
        );
        let (ep, peer) = (&self.ep, self.peer);
        match kind {
            0 => {
                let mut loan = ep.domain().loan(len).await?;
                ledger::write_message(number, &mut loan);
                ep.send(peer, loan).await.map_err(|failed| failed.error)?;
            }
            1 => {
                let slot = self.remote.at(8 * (number % WRITE_SLOTS));
                ep.write(peer, slot, number.to_le_bytes().to_vec())
                    .data(number)
                    .await?;
            }
            2 => {
                ep.fetch_add(peer, self.remote.at(COUNTER_OFFSET), 1u64)
                    .await?;
                self.totals.added += 1;
                return Ok(());
            }
            3 => {
                // Operations that are canceled before they are posted, or have no effect on the
                // receiver.
                drop(ep.recv().tag(1).start()?);
                drop(ep.send(peer, "never posted"));
                drop(ep.reserve(peer).await?);
                let first = ep.read(peer, self.remote.slice(..8)).await?;
                drop(first);
                return Ok(());
            }
            4 => {
                let mut bytes = [0; 64];
                ledger::write_message(number, &mut bytes);
                while let Err(error) = ep.send(peer, &bytes).inject() {
                    match error {
                        FabricError::WouldBlock(_) => drop(ep.reserve(peer).await?),
                        error => return Err(error.into()),
                    }
                }
            }
            _ => {
                let mut buf = vec![0; len];
                ledger::write_message(number, &mut buf);
                let request = ep.send(peer, buf);
                let request = if kind % 2 == 0 {
                    request.tag(TAG)
                } else {
                    request
                };
                // The message arrives whether the operation is dropped or awaited.
                match request.start() {
                    Ok(operation) if kind == 5 => drop(operation),
                    Ok(operation) => self.in_flight.push_back(operation),
                    Err(failed) if matches!(failed.error, FabricError::WouldBlock(_)) => {
                        let request = self.ep.send(peer, failed.buf);
                        if kind % 2 == 0 {
                            request.tag(TAG)
                        } else {
                            request
                        }
                        .await?;
                    }
                    Err(failed) => return Err(failed.into()),
                }
            }
        }
        self.totals.messages += 1;
        self.totals.bytes += len as u64;
        Ok(())
    }

    /// Waits until at most `most` operations are in flight.
    async fn wait_in_flight(&mut self, limit: usize) -> Result<()> {
        while self.in_flight.len() > limit {
            if let Some(operation) = self.in_flight.pop_front() {
                operation.await?;
            }
        }
        Ok(())
    }

    /// Samples the memory of both sides.
    async fn sample_memory(&mut self, part: f64) -> Result<()> {
        send_control(&self.ep, self.peer, &SoakRequest::GetStatus).await?;
        let status: SoakStatus = recv_control(&self.ep, Some(self.peer)).await?.1;
        self.totals.local_memory.push(resident_bytes());
        self.totals.remote_memory.push(status.memory);
        progress_bar::show(&format!("{} messages", self.totals.messages), part);
        Ok(())
    }
}
