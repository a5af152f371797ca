//! Messages announced by location: loans, and single-copy messages.
//!
//! `send_loan` passes the chunk's descriptor on the socket the first time the peer gets it, and
//! puts its key and a slot into a record. The chunk of a received loan is passed on in the same
//! way. A single-copy message is sent as a *CMA offer*: `send_cma_offer` puts the address of the
//! payload and a slot into a record of kind `CMA_OFFER` and keeps the operation with its buffer
//! in `OutstandingSlots`, beside the loans.

use fabric_core::Error;
use fabric_core::buf::Payload;
use fabric_core::completion::{Outcome, Transfer};
use fabric_core::flags::Access;
use fabric_core::matching::AckRequest;
use fabric_core::transport::{EngineContext, TxOp};
use rustix::io::Errno;

use super::super::control::{self, ControlMessage, MemoryGrant};
use super::super::loans::{CmaOffer, PreparedLoan};
use super::super::record::{CMA_OFFER, LOAN, LOCATION_LEN, encode_len_and_ack};
use super::channel::{MAX_NOTIFICATION_LEN, TxChannel, record_flags};
use super::{PushOutcome, QueuedTx};

impl TxChannel {
    /// Lends `payload` to the peer if it is in a loan: a loan of this domain (`tx_op.loan`), or one
    /// that was received. `None` if the message must be copied: it is in no loan, the peer holds
    /// too many loans, or the chunk cannot be granted.
    #[cold]
    pub(super) fn send_loan(
        &mut self,
        tx_op: &TxOp,
        payload: Payload<'_>,
        ack: Option<AckRequest>,
    ) -> Option<PushOutcome> {
        let is_loan = tx_op.loan.is_some() || payload.peer_memory().is_some();
        if is_loan && !self.ring.fits(MAX_NOTIFICATION_LEN + LOCATION_LEN) {
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
            self.grant(&prepared)?;
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

    /// First tells the peer which chunks it may unmap, then passes it the descriptor of the loan's
    /// chunk. `None` if the socket has no room, or too many descriptors are in flight.
    fn grant(&mut self, prepared: &PreparedLoan) -> Option<()> {
        for unneeded in self.outstanding.unneeded_grants() {
            if !control::try_send_control(&self.socket, ControlMessage::UnmapLoan(unneeded)) {
                return None;
            }
            self.outstanding.remove_grant(unneeded);
        }
        let (len, memory) = prepared.memory()?;
        let grant = MemoryGrant {
            key: prepared.key(),
            len,
            access: Access::REMOTE_READ,
            base: 0,
            rma_events: false,
            memory,
        };
        match control::send_grant(&self.socket, &grant) {
            // The end of the peer is noticed by the socket.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => {
                self.outstanding.mark_granted(prepared);
                Some(())
            }
            Err(_) => None,
        }
    }

    /// Offers a message to the peer, which copies it, and sends a record with its location. `None`
    /// if the peer has too many offers already.
    #[cold]
    pub(super) fn send_cma_offer(
        &mut self,
        front: &QueuedTx,
        payload: &[u8],
        ack: Option<AckRequest>,
    ) -> Option<PushOutcome> {
        if !self.ring.fits(MAX_NOTIFICATION_LEN + LOCATION_LEN) {
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

    /// Completes the offers that the peer has returned; also gives back relayed loans that the peer
    /// has returned. Returns whether there were any.
    pub(super) fn complete_cma_offers(&mut self, engine: &mut impl EngineContext) -> bool {
        let mut any = self.outstanding.collect_returned(self.ring.memory());
        while let Some(CmaOffer {
            op,
            len,
            tag,
            ack_id,
        }) = self.outstanding.pop_returned_cma_offer()
        {
            any = true;
            self.counters.single_copy.record(len);
            match ack_id {
                None => engine.complete(op, Outcome::ok(Transfer::sent(len, tag))),
                Some(ack_id) => self.mark_sent(ack_id, engine),
            }
        }
        any
    }

    /// Revokes the offers that the peer has not returned, before their buffers are given back,
    /// because the connection ends.
    pub(super) fn fail_cma_offers(&mut self, engine: &mut impl EngineContext, error: &Error) {
        if !self.outstanding.has_cma_offers() {
            return;
        }
        // Offers belong to the parent of a forked child; the peer continues with the parent.
        if self.socket.in_original_process() {
            self.ring.memory().revoke_cma_offers();
            self.complete_cma_offers(engine);
        }
        for CmaOffer { op, tag, .. } in self.outstanding.take_held_cma_offers() {
            engine.complete(op, Outcome::partial(Transfer::sent(0, tag), error.clone()));
        }
    }
}

/// Encodes the location of a message for a record: the key of a loan's chunk, or the address of a
/// single-copy payload, and the slot.
fn encode_location(key_or_address: u64, slot: usize) -> [u8; LOCATION_LEN] {
    let mut location = [0; LOCATION_LEN];
    location[..8].copy_from_slice(&key_or_address.to_le_bytes());
    location[8..].copy_from_slice(&(slot as u64).to_le_bytes());
    location
}
