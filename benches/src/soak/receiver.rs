//! The side that receives in all ways at once, and keeps the ledger.

use std::time::Duration;

use fabric_async::{Access, Class, Endpoint, Error as FabricError, FiAddr, MemoryRegion, OpKind};
use futures_util::StreamExt;
use tokio::time::timeout;

use super::ledger::MessageLedger;
use super::{SoakRequest, SoakStatus, resident_bytes};
use crate::Result;
use crate::options::RuntimeKind;
use crate::peer_process::control::{recv_control, send_control};

/// The tag of half of the messages.
pub(super) const TAG: u64 = 0x50a;
/// Slots of eight bytes for writes with data, and the counter behind them.
pub(super) const WRITE_SLOTS: u64 = 64;
pub(super) const COUNTER_OFFSET: u64 = 8 * WRITE_SLOTS;
/// A message that has not arrived after so long without any other is lost.
const LOSS_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves one soak at this address, which is printed on stdout.
///
/// # Errors
/// The address is bad or in use; the sender is gone.
pub fn serve_soak(address: &str) -> Result<()> {
    let address = address.to_owned();
    RuntimeKind::Current.run(async move {
        let ep = Endpoint::bind(&address[..]).await?;
        println!("listening on {}", ep.name());
        let region = ep.domain().alloc(
            COUNTER_OFFSET as usize + 8,
            Access::REMOTE_READ | Access::REMOTE_WRITE,
        )?;
        let (peer, _) = recv_control::<SoakRequest>(&ep, None).await?;
        send_control(&ep, peer, &region.remote().to_bytes().to_vec()).await?;
        SoakReceiver {
            ep,
            peer,
            region,
            ledger: MessageLedger::default(),
        }
        .run()
        .await
    })
}

struct SoakReceiver {
    ep: Endpoint,
    peer: FiAddr,
    region: MemoryRegion,
    ledger: MessageLedger,
}

impl SoakReceiver {
    async fn run(mut self) -> Result<()> {
        let no_queue = FabricError::Unbound(Class::CompletionQueue);
        let (ep, peer) = (self.ep.clone(), self.peer);
        let mut queue = ep.take_completions().ok_or(no_queue)?;
        let (mut expected, mut iteration) = (None, 0u64);
        while expected.is_none_or(|expected| self.ledger.received < expected) {
            iteration += 1;
            // Posted when it is polled: a branch that `if` disables would take a message and drop
            // it.
            let untagged = async {
                if iteration.is_multiple_of(3) {
                    return Ok::<_, crate::Error>(ep.recv().from(peer).await?.into_bytes());
                }
                Ok(ep.recv_loan().from(peer).await?.to_vec().into())
            };
            let next = async {
                // In one `select!`: the losing branches are dropped, and must not lose a message.
                tokio::select! {
                    message = untagged => self.ledger.record_message(&message?),
                    message = ep.recv_into(Vec::with_capacity(500_000)).tag(TAG).from(peer) => {
                        self.ledger.record_message(&message?);
                    }
                    Some(entry) = queue.next() => {
                        let number = entry
                            .transfer
                            .data
                            .filter(|_| entry.kind == OpKind::RemoteWrite)
                            .ok_or(FabricError::Canceled)?;
                        let slot: u64 = self.region.load(8 * (number % WRITE_SLOTS) as usize)?;
                        // The slot may have been overwritten since.
                        let is_other = slot % WRITE_SLOTS != number % WRITE_SLOTS;
                        self.ledger.corrupted += u64::from(slot < number || is_other);
                        self.ledger.record_number(number);
                    }
                    request = recv_control::<SoakRequest>(&ep, Some(peer)) => match request?.1 {
                        SoakRequest::End { messages, .. } => expected = Some(messages),
                        _ => send_control(&ep, peer, &status(&self.ledger, &self.region)?).await?,
                    },
                }
                Ok::<_, crate::Error>(())
            };
            match timeout(LOSS_TIMEOUT, next).await {
                Ok(next) => next?,
                Err(_) if expected.is_some() => break,
                Err(_) => {}
            }
        }
        send_control(&ep, peer, &status(&self.ledger, &self.region)?).await?;
        // Waits until the sender leaves, so that this process does not end before the status was
        // sent.
        let _ = recv_control::<SoakRequest>(&ep, Some(peer)).await;
        Ok(())
    }
}

fn status(ledger: &MessageLedger, region: &MemoryRegion) -> Result<SoakStatus> {
    Ok(SoakStatus {
        received: ledger.received,
        duplicates: ledger.duplicates,
        corrupted: ledger.corrupted,
        added: region.load(COUNTER_OFFSET as usize)?,
        memory: resident_bytes(),
    })
}
