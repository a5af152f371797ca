//! Sends that complete when the peer acknowledges them: requesting acks, and completing the sends.
//! `pending_acks` keeps these sends.

use fabric_core::completion::Outcome;
use fabric_core::matching::AckRequest;
use fabric_core::transport::{EndpointContext, EngineContext};
use fabric_core::{Error, Resource, Result};

use super::QueuedTx;
use super::channel::TxChannel;
use crate::transport::shm::record::MAX_ACKS;

impl TxChannel {
    /// Returns the ack to request with the next record; `None` if the message needs no ack, or if
    /// an earlier record has requested the ack.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if all ack ids are in use.
    pub(super) fn ack_to_request(&self, front: &QueuedTx) -> Result<Option<AckRequest>> {
        let level = front.tx_op.level;
        if front.is_started() || !level.needs_ack() {
            return Ok(None);
        }
        let ack_id = self.pending_acks.vacant_id().ok_or_else(|| {
            Error::WouldBlock(Resource::TransmitCredit {
                peer: front.tx_op.peer,
                in_use: MAX_ACKS,
                peer_limit: MAX_ACKS,
                free: 0,
            })
        })?;
        Ok(Some(AckRequest { ack_id, level }))
    }

    /// Marks a message as sent completely. Completes the send if the message was acknowledged;
    /// otherwise tells the engine that the payload is no longer needed.
    pub(super) fn mark_sent(
        &mut self,
        ack_id: u32,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) {
        if let Some(message) = self.pending_acks.mark_sent(ack_id) {
            ctx.complete(message.op, Outcome::ok(message.transfer));
        } else if let Some(op) = self.pending_acks.op(ack_id) {
            ctx.on_payload_sent(op);
        }
    }

    /// Completes the sends that the peer has acknowledged. Returns whether a send has completed.
    pub(super) fn complete_acked(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> bool {
        let mut any = false;
        self.pending_acks
            .collect_acked(self.ring.memory(), |message| {
                any = true;
                ctx.complete(message.op, Outcome::ok(message.transfer));
            });
        any
    }

    /// Fails the sent messages that the peer has not acknowledged, because the connection ends.
    pub(super) fn fail_unacked(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        error: &Error,
    ) {
        if self.pending_acks.is_empty() {
            return;
        }
        // In a forked child, acks belong to the parent.
        if self.socket.in_original_process() {
            self.complete_acked(ctx);
        }
        // Messages that were not sent completely are still queued; `TxConnection::close` fails
        // them.
        for message in self.pending_acks.take_unacked() {
            ctx.complete(
                message.op,
                Outcome::partial(message.transfer, error.clone()),
            );
        }
    }
}
