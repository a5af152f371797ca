//! Messages that stay where they are: the peer gets to know where that is.

use fabric_core::Error;
use fabric_core::buf::Payload;
use fabric_core::completion::{Outcome, Transfer};
use fabric_core::flags::Access;
use fabric_core::matching::AckRequest;
use fabric_core::mr::RegionMemory;
use fabric_core::transport::{EngineContext, TxOp};
use rustix::io::Errno;

use super::super::control::{self, ControlMessage, MemoryGrant};
use super::super::loans::CmaOffer;
use super::super::record::{CMA_MESSAGE, LOAN, LOCATION_LEN, encode_total};
use super::channel::{MAX_NOTIFICATION_LEN, TxChannel, record_flags};
use super::{PushOutcome, QueuedTx};

impl TxChannel {
    /// Lends a message to the peer: gives it the memory, if it has not got it before, and tells it
    /// where the message is. Nothing when it has to be copied: the peer has too much already, or
    /// the memory is not ours.
    #[cold]
    pub(super) fn send_loan(
        &mut self,
        spec: &TxOp,
        key: u64,
        payload: &[u8],
        receipt: Option<AckRequest>,
    ) -> Option<PushOutcome> {
        if !self.ring.fits(MAX_NOTIFICATION_LEN + LOCATION_LEN) {
            return Some(PushOutcome::WouldBlock);
        }
        let prepared = self.outstanding.prepare(key, payload, self.ring.memory())?;
        if !self.outstanding.is_mapped(key) {
            for surplus in self.outstanding.unneeded_mappings() {
                if !control::try_send_control(&self.socket, ControlMessage::UnmapLoan(surplus)) {
                    return None;
                }
                self.outstanding.mark_unmapped(surplus);
            }
            let memory = prepared.chunk.memory();
            let (size, access) = (RegionMemory::len(memory), Access::REMOTE_READ);
            let grant = MemoryGrant {
                key,
                len: size,
                access,
                base: 0,
                rma_events: false,
                memory: memory.fd(),
            };
            match control::send_grant(&self.socket, &grant) {
                // A peer that has ended is noticed otherwise.
                Ok(()) | Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => {
                    self.outstanding.mark_mapped(key)
                }
                Err(_) => return None,
            }
        }
        let place = encode_location(key, prepared.slot);
        let total = encode_total(payload.len(), receipt);
        let pushed = self.push_record(
            LOAN,
            record_flags(spec),
            spec,
            total,
            Payload::Contiguous(&place),
        );
        if pushed == PushOutcome::Done {
            self.outstanding.lend(prepared);
            self.counters.lent += 1;
        }
        Some(pushed)
    }

    /// Lets the peer fetch a message, and tells it where it is. Nothing when it has too much to
    /// fetch already.
    #[cold]
    pub(super) fn send_cma_offer(
        &mut self,
        front: &QueuedTx,
        payload: &[u8],
        receipt: Option<AckRequest>,
    ) -> Option<PushOutcome> {
        if !self.ring.fits(MAX_NOTIFICATION_LEN + LOCATION_LEN) {
            return Some(PushOutcome::WouldBlock);
        }
        let slot = self.outstanding.free_slot(self.ring.memory())?;
        let place = encode_location(payload.as_ptr().expose_provenance() as u64, slot);
        let (spec, len) = (&front.spec, payload.len());
        let pushed = self.push_record(
            CMA_MESSAGE,
            record_flags(spec),
            spec,
            encode_total(len, receipt),
            Payload::Contiguous(&place),
        );
        if pushed == PushOutcome::Done {
            let receipt = receipt.map(|receipt| receipt.number);
            self.outstanding.insert_cma_offer(
                slot,
                CmaOffer {
                    op: front.op,
                    len,
                    tag: spec.tag,
                    ack_id: receipt,
                },
            );
        }
        Some(pushed)
    }

    /// Ends what the peer has fetched. Returns whether there was anything.
    pub(super) fn complete_cma(&mut self, host: &mut dyn EngineContext) -> bool {
        self.outstanding.collect_returned(self.ring.memory());
        let mut any = false;
        while let Some(CmaOffer {
            op,
            len,
            tag,
            ack_id: receipt,
        }) = self.outstanding.next_completed_cma()
        {
            any = true;
            self.counters.single_copy.record(len);
            match receipt {
                None => host.complete(op, Outcome::ok(Transfer::sent(len, tag))),
                Some(number) => self.mark_sent(number, host),
            }
        }
        any
    }

    /// The connection ends: what the peer has not fetched is withdrawn before its buffers are given
    /// back.
    pub(super) fn fail_cma(&mut self, host: &mut dyn EngineContext, error: &Error) {
        if !self.outstanding.has_cma_offers() {
            return;
        }
        // What a forked child has of it is its own; the peer goes on with the parent's.
        if self.socket.in_original_process() {
            self.ring.memory().revoke_cma();
            self.complete_cma(host);
        }
        for CmaOffer { op, tag, .. } in self.outstanding.take_open_cma_offers() {
            host.complete(op, Outcome::partial(Transfer::sent(0, tag), error.clone()));
        }
    }
}

/// Where a message lies, as a record says it.
fn encode_location(at: u64, slot: usize) -> [u8; LOCATION_LEN] {
    let mut place = [0; LOCATION_LEN];
    place[..8].copy_from_slice(&at.to_le_bytes());
    place[8..].copy_from_slice(&(slot as u64).to_le_bytes());
    place
}
