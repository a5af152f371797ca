//! The side that sends, lends, writes and adds.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use fabric_async::{Endpoint, Error as FabricError, FiAddr, Operation, RemoteRegion};

use super::book::{self, HEAD};
use super::far::{COUNTER, SLOTS, TAG};
use super::{Ask, Done, Status, memory};
use crate::pair::talk::{hear, tell};
use crate::stop::Stop;
use crate::{Result, progress};

/// Operations that may be under way.
const WINDOW: usize = 16;

pub(super) async fn run(provider: String, at: String, time: Duration, stop: Stop) -> Result<Done> {
    let ep = Endpoint::bind(&format!("{provider}://")[..]).await?;
    let peer = ep.lookup(&at[..]).await?;
    tell(&ep, peer, &Ask::Region).await?;
    let remote = RemoteRegion::from_bytes(&hear::<Vec<u8>>(&ep, Some(peer)).await?.1)?;
    let mut near = Near {
        ep,
        peer,
        remote,
        under_way: VecDeque::new(),
        draw: 1,
        done: Done::default(),
    };
    let (began, every) = (Instant::now(), time / 40);
    let mut next = every;
    while began.elapsed() < time && !stop.raised() {
        for _ in 0..64 {
            near.step().await?;
        }
        if began.elapsed() >= next {
            next += every;
            near.look(began.elapsed().as_secs_f64() / time.as_secs_f64())
                .await?;
        }
    }
    near.settle(0).await?;
    let (messages, added) = (near.done.messages, near.done.added);
    tell(&near.ep, peer, &Ask::End { messages, added }).await?;
    near.done.last = hear::<Status>(&near.ep, Some(peer)).await?.1;
    Ok(near.done)
}

struct Near {
    ep: Endpoint,
    peer: FiAddr,
    remote: RemoteRegion,
    under_way: VecDeque<Operation<Vec<u8>>>,
    draw: u64,
    done: Done,
}

impl Near {
    fn below(&mut self, limit: u64) -> u64 {
        self.draw = self
            .draw
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.draw >> 33) % limit
    }

    /// A length: mostly short, sometimes long.
    fn len(&mut self) -> usize {
        let limit = [100, 100, 9000, 100_000, 400_000][self.below(5) as usize];
        HEAD + self.below(limit) as usize
    }

    /// One operation of some kind.
    async fn step(&mut self) -> Result<()> {
        self.settle(WINDOW).await?;
        let (number, kind, len) = (self.done.messages, self.below(16), self.len());
        let (ep, peer) = (&self.ep, self.peer);
        match kind {
            0 => {
                let mut loan = loop {
                    match ep.loan(len) {
                        Err(FabricError::Again(_)) => tokio::task::yield_now().await,
                        other => break other?,
                    }
                };
                book::write(number, &mut loan);
                ep.lend(peer, loan).await.map_err(|failed| failed.error)?;
            }
            1 => {
                let place = self.remote.at(8 * (number % SLOTS));
                ep.write(peer, place, number.to_le_bytes().to_vec())
                    .data(number)
                    .await?;
            }
            2 => {
                ep.fetch_add(peer, self.remote.at(COUNTER), 1u64).await?;
                self.done.added += 1;
                return Ok(());
            }
            3 => {
                // What is taken back, or only looked for, leaves nothing.
                drop(ep.recv().tag(1).start()?);
                drop(ep.send(peer, "never posted"));
                drop(ep.reserve(peer).await?);
                let first = ep.read(peer, self.remote.slice(..8)).await?;
                drop(first);
                return Ok(());
            }
            4 => {
                let mut bytes = [0; 64];
                book::write(number, &mut bytes);
                while let Err(error) = ep.inject(peer, &bytes) {
                    match error {
                        FabricError::Again(_) => drop(ep.reserve(peer).await?),
                        error => return Err(error.into()),
                    }
                }
            }
            _ => {
                let mut buf = vec![0; len];
                book::write(number, &mut buf);
                let request = ep.send(peer, buf);
                let request = if kind % 2 == 0 {
                    request.tag(TAG)
                } else {
                    request
                };
                // Dropped or awaited, it arrives.
                match request.start() {
                    Ok(operation) if kind == 5 => drop(operation),
                    Ok(operation) => self.under_way.push_back(operation),
                    Err(failed) if matches!(failed.error, FabricError::Again(_)) => {
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
        self.done.messages += 1;
        self.done.bytes += len as u64;
        Ok(())
    }

    /// Waits until no more than so many operations are under way.
    async fn settle(&mut self, most: usize) -> Result<()> {
        while self.under_way.len() > most {
            if let Some(operation) = self.under_way.pop_front() {
                operation.await?;
            }
        }
        Ok(())
    }

    /// Looks at the memory of both sides.
    async fn look(&mut self, part: f64) -> Result<()> {
        tell(&self.ep, self.peer, &Ask::Status).await?;
        let status: Status = hear(&self.ep, Some(self.peer)).await?.1;
        self.done.here.push(memory());
        self.done.there.push(status.memory);
        progress::show(&format!("{} messages", self.done.messages), part);
        Ok(())
    }
}
