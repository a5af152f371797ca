//! Messages that are sent by location instead of through the ring: loans and CMA offers.
//!
//! `send_loan` sends a message that is in a loan of this domain or in a received loan. The record
//! holds the key of the chunk and a slot. The descriptor of the chunk is sent over the socket
//! before, unless the peer was granted the chunk by an earlier loan.
//!
//! `send_cma_offer` sends a long message in other memory. The record holds the address of the
//! payload and a slot. The peer copies the payload from this process (`cma`).
//!
//! `OutstandingSlots` keeps the loan, or the operation of the offer, until the peer returns the
//! slot.

use fabric_core::Error;
use fabric_core::buf::Payload;
use fabric_core::completion::{Outcome, Transfer};
use fabric_core::flags::Access;
use fabric_core::matching::AckRequest;
use fabric_core::transport::{EndpointContext, EngineContext, TxOp};
use rustix::io::Errno;

use super::super::control::{self, ControlMessage, MemoryGrant};
use super::super::loans::{CmaOffer, PreparedLoan};
use super::super::record::{CMA_OFFER, LOAN, LOCATION_LEN, encode_len_and_ack};
use super::channel::{MAX_LOCATION_RECORD_LEN, TxChannel, record_flags};
use super::{PushOutcome, QueuedTx};

impl TxChannel {
    /// Lends `payload` to the peer, if the payload is in a loan of this domain (`tx_op.loan`) or in
    /// a received loan. `None` if the message must be copied: the payload is in no loan, the peer
    /// holds too many slots, or the chunk cannot be granted or the peer refuses to map it.
    #[cold]
    pub(super) fn send_loan(
        &mut self,
        tx_op: &TxOp,
        payload: Payload<'_>,
        ack: Option<AckRequest>,
    ) -> Option<PushOutcome> {
        let is_loan = tx_op.loan.is_some() || payload.peer_memory().is_some();
        if is_loan && !self.ring.fits(MAX_LOCATION_RECORD_LEN) {
            return Some(PushOutcome::WouldBlock);
        }
        let segment = self.ring.memory();
        let prepared = match payload.peer_memory() {
            Some(memory) => self.outstanding.prepare_relay(memory, segment)?,
            None => self
                .outstanding
                .prepare(tx_op.loan?, payload.as_contiguous()?, segment)?,
        };
        if !self.outstanding.is_granted(&prepared) {
            if segment.are_loans_refused() {
                return None;
            }
            self.grant_chunk(&prepared)?;
        }
        let location = encode_location(prepared.key(), prepared.slot);
        let len_and_ack = encode_len_and_ack(payload.len(), ack);
        let pushed = self.push_record(
            LOAN,
            record_flags(tx_op),
            tx_op,
            len_and_ack,
            Payload::Contiguous(&location),
        );
        if pushed == PushOutcome::Pushed {
            self.outstanding.insert_loan(prepared);
            self.counters.loaned += 1;
        }
        Some(pushed)
    }

    /// Sends the descriptor of the loan's chunk, after telling the peer which chunks it may unmap.
    /// `None` if the socket has no room, or if too many descriptors are in flight.
    fn grant_chunk(&mut self, prepared: &PreparedLoan) -> Option<()> {
        for key in self.outstanding.unneeded_grants() {
            if !control::try_send_control(&self.socket, ControlMessage::UnmapLoan(key)) {
                return None;
            }
            self.outstanding.remove_grant(key);
        }
        let (len, memory) = prepared.memory()?;
        let grant = MemoryGrant {
            key: prepared.key(),
            len,
            access: Access::REMOTE_READ,
            base: 0,
            rma_events: false,
            memory,
            control_page: None,
        };
        match control::send_grant(&self.socket, &grant) {
            // The peer has ended; the next read of the socket reports that.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => {
                self.outstanding.mark_granted(prepared);
                Some(())
            }
            Err(_) => None,
        }
    }

    /// Offers a message to the peer, which copies the payload from this process. `None` if the peer
    /// holds too many slots: the message must be copied into the ring.
    #[cold]
    pub(super) fn send_cma_offer(
        &mut self,
        front: &QueuedTx,
        payload: &[u8],
        ack: Option<AckRequest>,
    ) -> Option<PushOutcome> {
        if !self.ring.fits(MAX_LOCATION_RECORD_LEN) {
            return Some(PushOutcome::WouldBlock);
        }
        let slot = self.outstanding.find_free_slot(self.ring.memory())?;
        let location = encode_location(payload.as_ptr().expose_provenance() as u64, slot);
        let (tx_op, len) = (&front.tx_op, payload.len());
        let pushed = self.push_record(
            CMA_OFFER,
            record_flags(tx_op),
            tx_op,
            encode_len_and_ack(len, ack),
            Payload::Contiguous(&location),
        );
        if pushed == PushOutcome::Pushed {
            let ack_id = ack.map(|ack| ack.ack_id);
            self.outstanding.insert_cma_offer(
                slot,
                CmaOffer {
                    op: front.op,
                    len,
                    tag: tx_op.tag,
                    ack_id,
                },
            );
        }
        Some(pushed)
    }

    /// Collects the slots that the peer has returned, and completes the sends of returned offers.
    /// Returns whether the peer has returned an offer or a relayed loan.
    pub(super) fn complete_cma_offers(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> bool {
        let mut any_returned = self.outstanding.collect_returned(self.ring.memory());
        while let Some(CmaOffer {
            op,
            len,
            tag,
            ack_id,
        }) = self.outstanding.pop_returned_cma_offer()
        {
            any_returned = true;
            self.counters.single_copy_tx.record(len);
            match ack_id {
                None => ctx.complete(op, Outcome::ok(Transfer::sent(len, tag))),
                Some(ack_id) => self.mark_sent(ack_id, ctx),
            }
        }
        any_returned
    }

    /// Revokes the offers that the peer has not returned and fails their sends, because the
    /// connection ends.
    pub(super) fn fail_cma_offers(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        error: &Error,
    ) {
        if !self.outstanding.has_cma_offers() {
            return;
        }
        // In a forked child, offers belong to the parent and stay valid.
        if self.socket.in_original_process() {
            // Before the sends complete, because completion lets the application free the buffers.
            self.ring.memory().revoke_cma_offers();
            self.complete_cma_offers(ctx);
        }
        for CmaOffer { op, tag, .. } in self.outstanding.take_held_cma_offers() {
            ctx.complete(op, Outcome::partial(Transfer::sent(0, tag), error.clone()));
        }
    }
}

/// Encodes the payload of a `LOAN` record (key of the chunk, slot) or of a `CMA_OFFER` record
/// (address of the message, slot).
fn encode_location(key_or_address: u64, slot: usize) -> [u8; LOCATION_LEN] {
    let mut location = [0; LOCATION_LEN];
    location[..8].copy_from_slice(&key_or_address.to_le_bytes());
    location[8..].copy_from_slice(&(slot as u64).to_le_bytes());
    location
}
