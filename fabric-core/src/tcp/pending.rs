//! Requests of this side that have no response yet.
//!
//! Read responses and acks carry no id. Each of the two kinds arrives in the order of its requests,
//! so the requests of each kind are in a queue of their own. Responses to RXM atomics carry the id
//! of their request. With RXM, reads of rendezvous messages and reads of the program are in the
//! same queue.

use std::collections::VecDeque;

use crate::completion::{OpKind, Outcome, Transfer};
use crate::error::Error;
use crate::mr::AccessError;
use crate::transport::{EndpointContext, EngineContext, OpKey, TxOp};

use super::rxm::AtomicStatus;
use super::{ProtocolViolation, RmaNack};

/// The requests for which a connection awaits responses.
#[derive(Debug, Default)]
pub struct PendingRequests {
    acks: VecDeque<PendingOp>,
    reads: VecDeque<PendingRead>,
    /// RXM atomics with their ids, in the order of the ids.
    atomics: VecDeque<(u64, PendingOp)>,
    /// Id of the next RXM atomic.
    next_id: u64,
    acked_send: AckedSend,
}

/// The frame that is being sent from its buffer, if it requests an ack.
#[derive(Debug, Default)]
enum AckedSend {
    /// There is none.
    #[default]
    None,
    /// Its ack has not arrived.
    Sending,
    /// Its ack has arrived before [`PendingRequests::expect_ack`] was called for it.
    Acked(RemoteStatus),
}

/// Status of an access to memory of the peer: `None` for success, or the index of the remote range
/// that failed and the reason.
type RemoteStatus = Option<(u8, AccessError)>;

/// A read request without a response.
#[derive(Debug)]
enum PendingRead {
    /// An operation of the program.
    Op(PendingOp),
    /// A read of this number of bytes of a rendezvous message.
    Rendezvous(usize),
}

/// An operation of the program that awaits a response.
#[derive(Debug)]
struct PendingOp {
    /// `None` after the operation has failed: the response is awaited and then discarded.
    op: Option<OpKey>,
    tx_op: TxOp,
    len: usize,
}

impl PendingRequests {
    /// Notes that the payload of a frame that requests an ack is being sent from its buffer, until
    /// [`expect_ack`](Self::expect_ack).
    pub fn begin_acked_send(&mut self) {
        self.acked_send = AckedSend::Sending;
    }

    /// Adds an operation that completes with the ack of a frame that has been sent or queued.
    pub fn expect_ack(
        &mut self,
        op: OpKey,
        tx_op: TxOp,
        len: usize,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) {
        let pending = PendingOp {
            op: Some(op),
            tx_op,
            len,
        };
        match std::mem::take(&mut self.acked_send) {
            AckedSend::Acked(status) => pending.complete(ctx, status),
            AckedSend::None | AckedSend::Sending => self.acks.push_back(pending),
        }
    }

    /// Adds a read request of `len` bytes that has been sent or queued. The response is written to
    /// the buffer of the operation.
    pub fn expect_read_response(&mut self, op: OpKey, tx_op: TxOp, len: usize) {
        self.reads.push_back(PendingRead::Op(PendingOp {
            op: Some(op),
            tx_op,
            len,
        }));
    }

    /// Adds a read request for `len` bytes of a rendezvous message that has been sent or queued.
    pub fn expect_rendezvous_read(&mut self, len: usize) {
        self.reads.push_back(PendingRead::Rendezvous(len));
    }

    /// Adds an RXM atomic operation on `len` bytes and returns the id for its packet. Fetched
    /// values are written to the buffer of the operation.
    #[must_use]
    pub fn expect_atomic_response(&mut self, op: OpKey, tx_op: TxOp, len: usize) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.atomics.push_back((
            id,
            PendingOp {
                op: Some(op),
                tx_op,
                len,
            },
        ));
        id
    }

    /// Returns whether responses to RXM atomic operations are outstanding.
    #[must_use]
    pub fn has_atomics(&self) -> bool {
        !self.atomics.is_empty()
    }

    /// Returns whether no response is outstanding.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.acks.is_empty() && self.reads.is_empty() && self.atomics.is_empty()
    }

    /// Fails all operations and drops all requests: no response will arrive.
    pub fn fail(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>, error: &Error) {
        self.fail_ops_keep_requests(ctx, error);
        self.acks.clear();
        self.reads.clear();
        self.atomics.clear();
    }

    /// Fails all operations and keeps their requests: the responses will arrive, and are discarded.
    pub fn fail_ops_keep_requests(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        error: &Error,
    ) {
        let reads = self.reads.iter_mut().filter_map(|read| match read {
            PendingRead::Op(pending) => Some(pending),
            PendingRead::Rendezvous(_) => None,
        });
        let atomics = self.atomics.iter_mut().map(|(_, pending)| pending);
        for op in self
            .acks
            .iter_mut()
            .chain(reads)
            .chain(atomics)
            .filter_map(|pending| pending.op.take())
        {
            ctx.complete(op, Outcome::failed(error.clone()));
        }
    }

    /// Completes the oldest operation that awaits an ack.
    ///
    /// # Errors
    /// [`ProtocolViolation`] when no ack is awaited.
    pub(super) fn on_ack(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> Result<(), ProtocolViolation> {
        self.complete_ack(None, ctx)
    }

    /// Fails the oldest operation that awaits a response of the nack's kind.
    ///
    /// # Errors
    /// [`ProtocolViolation`] when there is none, or the response belongs to a rendezvous message.
    pub(super) fn on_nack(
        &mut self,
        nack: RmaNack,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> Result<(), ProtocolViolation> {
        let status = Some((nack.iov_index, nack.error));
        if !nack.is_read {
            return self.complete_ack(status, ctx);
        }
        match self.reads.pop_front() {
            Some(PendingRead::Op(pending)) => pending.complete(ctx, status),
            Some(PendingRead::Rendezvous(_)) => {
                return Err(ProtocolViolation("nack of a read of a rendezvous message"));
            }
            None => return Err(ProtocolViolation("unsolicited nack")),
        }
        Ok(())
    }

    /// Completes or fails the RXM atomic with this id.
    ///
    /// # Errors
    /// [`ProtocolViolation`] when there is none, or the fetched values have the wrong length.
    pub(super) fn on_atomic_response(
        &mut self,
        id: u64,
        (status, fetched): (AtomicStatus, &[u8]),
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> Result<(), ProtocolViolation> {
        let at = self
            .atomics
            .iter()
            .position(|(pending_id, _)| *pending_id == id);
        let (_, pending) = at
            .and_then(|at| self.atomics.remove(at))
            .ok_or(ProtocolViolation(
                "unsolicited response to an atomic operation",
            ))?;
        let fetch_len = if pending.tx_op.kind == OpKind::FetchAtomic {
            pending.len
        } else {
            0
        };
        let Some(remote) = pending
            .tx_op
            .remote
            .filter(|_| status != AtomicStatus::SUCCESS)
        else {
            if fetched.len() != fetch_len {
                pending.fail(ctx, Error::Canceled);
                return Err(ProtocolViolation(
                    "response to an atomic operation has the wrong length",
                ));
            }
            if let Some(op) = pending.op.filter(|_| fetch_len > 0) {
                ctx.write_at(op, 0, &fetched, 0, fetch_len);
            }
            pending.complete(ctx, None);
            return Ok(());
        };
        pending.fail(ctx, status.to_error(&remote));
        Ok(())
    }

    /// Completes the oldest operation that awaits an ack with this status.
    fn complete_ack(
        &mut self,
        status: RemoteStatus,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> Result<(), ProtocolViolation> {
        match (self.acks.pop_front(), &self.acked_send) {
            (Some(pending), _) => pending.complete(ctx, status),
            (None, AckedSend::Sending) => self.acked_send = AckedSend::Acked(status),
            (None, AckedSend::None | AckedSend::Acked(_)) => {
                return Err(ProtocolViolation("unsolicited acknowledgement"));
            }
        }
        Ok(())
    }

    /// Checks the header of a read response of `len` bytes against the oldest read request; returns
    /// the length.
    pub(super) fn begin_read_response(
        &self,
        len: u64,
        is_checked: bool,
    ) -> Result<usize, ProtocolViolation> {
        let oldest = self
            .reads
            .front()
            .ok_or(ProtocolViolation("unsolicited read response"))?;
        let expected = match oldest {
            PendingRead::Op(pending) => pending.len,
            // The last byte completes the message, so no status can follow it.
            PendingRead::Rendezvous(_) if is_checked => {
                return Err(ProtocolViolation(
                    "read response with a status for a rendezvous message",
                ));
            }
            PendingRead::Rendezvous(len) => *len,
        };
        if expected as u64 != len {
            return Err(ProtocolViolation("read response has the wrong length"));
        }
        Ok(expected)
    }

    /// Writes bytes of the current read response, from offset `at` on, to the buffer of its
    /// operation. Returns false when they belong to a rendezvous message.
    pub(super) fn write_read_response(
        &self,
        at: usize,
        bytes: &[u8],
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> bool {
        let Some(PendingRead::Op(oldest)) = self.reads.front() else {
            return false;
        };
        if let Some(op) = oldest.op {
            ctx.write_at(op, at, &bytes, 0, bytes.len());
        }
        true
    }

    /// Completes the current read response with this status. Returns false when it belongs to a
    /// rendezvous message.
    pub(super) fn end_read_response(
        &mut self,
        status: RemoteStatus,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> bool {
        match self.reads.pop_front() {
            Some(PendingRead::Op(pending)) => pending.complete(ctx, status),
            Some(PendingRead::Rendezvous(_)) => return false,
            None => {}
        }
        true
    }
}

impl PendingOp {
    fn fail(self, ctx: &mut EndpointContext<'_, impl EngineContext>, error: Error) {
        if let Some(op) = self.op {
            ctx.complete(op, Outcome::failed(error));
        }
    }

    fn complete(self, ctx: &mut EndpointContext<'_, impl EngineContext>, status: RemoteStatus) {
        let Self {
            op: Some(op),
            tx_op,
            len,
        } = self
        else {
            return;
        };
        let outcome = match status {
            None => Outcome::ok(Transfer::sent(len, tx_op.tag)),
            Some((index, error)) => {
                let iovs = tx_op.rma_iov_id.map_or(&[][..], |id| ctx.rma_iovs(id));
                let remote = iovs.get(usize::from(index)).copied().or(tx_op.remote);
                let error = remote.map_or(Error::Canceled, |remote| {
                    error.to_error(tx_op.kind, &remote, remote.len)
                });
                Outcome::failed(error)
            }
        };
        ctx.complete(op, outcome);
    }
}
