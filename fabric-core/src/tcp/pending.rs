//! What this side has asked of a peer and has not heard of.
//!
//! Answers carry no name: they come in the order of the questions, and so do acknowledgements.
//! Responses to atomic operations, where RXM is spoken, bear the number of what they respond to.

use std::collections::VecDeque;

use crate::completion::{OpKind, Outcome, Transfer};
use crate::error::Error;
use crate::mr::AccessError;
use crate::transport::{EngineContext, OpKey, TxOp};

use super::rxm::AtomicStatus;
use super::{ProtocolViolation, RmaNack};

/// What a connection waits for.
#[derive(Debug, Default)]
pub struct PendingRequests {
    acks: VecDeque<PendingOp>,
    reads: VecDeque<PendingRead>,
    /// In the order of their numbers.
    atomics: VecDeque<(u64, PendingOp)>,
    next_number: u64,
    /// The bytes of a frame that asks for an acknowledgement are on their way.
    is_sending: bool,
    /// It was answered before this side has heard that they have left.
    early_ack: Option<RemoteStatus>,
}

/// Nothing was wrong, or the place that was, and why.
type RemoteStatus = Option<(u8, AccessError)>;

/// Whose an answer is.
#[derive(Debug)]
enum PendingRead {
    /// That of an operation.
    Op(PendingOp),
    /// So many bytes of a message that was offered.
    Rendezvous(usize),
}

#[derive(Debug)]
struct PendingOp {
    /// Nothing when it was given up: the peer answers all the same.
    op: Option<OpKey>,
    spec: TxOp,
    len: usize,
}

impl PendingRequests {
    /// The bytes of a frame that is acknowledged are sent from where they lie, from now until the
    /// acknowledgement is expected.
    pub fn begin_acked_send(&mut self) {
        self.is_sending = true;
    }

    /// A frame has left, or will, that is acknowledged: then this operation ends.
    pub fn expect_ack(&mut self, op: OpKey, spec: TxOp, len: usize, host: &mut dyn EngineContext) {
        self.is_sending = false;
        let waiting = PendingOp {
            op: Some(op),
            spec,
            len,
        };
        match self.early_ack.take() {
            Some(verdict) => waiting.complete(host, verdict),
            None => self.acks.push_back(waiting),
        }
    }

    /// A question has left, or will, for so many bytes, which are to be placed in the buffer of
    /// this operation.
    pub fn expect_read_response(&mut self, op: OpKey, spec: TxOp, len: usize) {
        self.reads.push_back(PendingRead::Op(PendingOp {
            op: Some(op),
            spec,
            len,
        }));
    }

    /// A question has left, or will, for so many bytes of a message that is being fetched.
    pub fn expect_rendezvous_read(&mut self, len: usize) {
        self.reads.push_back(PendingRead::Rendezvous(len));
    }

    /// A packet leaves, or will, that asks for an atomic operation on so many bytes: the number
    /// that it must bear. What is fetched is to be placed in the buffer of this operation.
    #[must_use]
    pub fn expect_atomic_response(&mut self, op: OpKey, spec: TxOp, len: usize) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.atomics.push_back((
            number,
            PendingOp {
                op: Some(op),
                spec,
                len,
            },
        ));
        number
    }

    /// Whether responses to atomic operations are waited for.
    #[must_use]
    pub fn has_atomics(&self) -> bool {
        !self.atomics.is_empty()
    }

    /// Whether there is nothing to wait for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.acks.is_empty() && self.reads.is_empty() && self.atomics.is_empty()
    }

    /// Nothing of it will be heard of.
    pub fn fail(&mut self, host: &mut dyn EngineContext, error: &Error) {
        self.fail_ops_keep_slots(host, error);
        self.acks.clear();
        self.reads.clear();
        self.atomics.clear();
    }

    /// All operations end with this error. What the peer still says to them is waited for, and
    /// means nothing.
    pub fn fail_ops_keep_slots(&mut self, host: &mut dyn EngineContext, error: &Error) {
        let answers = self.reads.iter_mut().filter_map(|answer| match answer {
            PendingRead::Op(waiting) => Some(waiting),
            PendingRead::Rendezvous(_) => None,
        });
        let atomics = self.atomics.iter_mut().map(|(_, waiting)| waiting);
        for op in self
            .acks
            .iter_mut()
            .chain(answers)
            .chain(atomics)
            .filter_map(|waiting| waiting.op.take())
        {
            host.complete(op, Outcome::failed(error.clone()));
        }
    }

    pub(super) fn on_ack(&mut self, host: &mut dyn EngineContext) -> Result<(), ProtocolViolation> {
        self.complete_ack(None, host)
    }

    pub(super) fn on_nack(
        &mut self,
        denial: RmaNack,
        host: &mut dyn EngineContext,
    ) -> Result<(), ProtocolViolation> {
        let verdict = Some((denial.iov_index, denial.error));
        if !denial.is_read {
            return self.complete_ack(verdict, host);
        }
        match self.reads.pop_front() {
            Some(PendingRead::Op(waiting)) => waiting.complete(host, verdict),
            Some(PendingRead::Rendezvous(_)) => {
                return Err(ProtocolViolation("a refusal of what was offered"));
            }
            None => return Err(ProtocolViolation("a refusal of nothing")),
        }
        Ok(())
    }

    /// What has come of the atomic operation of this number.
    pub(super) fn on_atomic_response(
        &mut self,
        number: u64,
        (status, fetched): (AtomicStatus, &[u8]),
        host: &mut dyn EngineContext,
    ) -> Result<(), ProtocolViolation> {
        let at = self.atomics.iter().position(|(asked, _)| *asked == number);
        let (_, waiting) = at
            .and_then(|at| self.atomics.remove(at))
            .ok_or(ProtocolViolation("a response to no atomic operation"))?;
        let fetches = if waiting.spec.kind == OpKind::FetchAtomic {
            waiting.len
        } else {
            0
        };
        let Some(place) = waiting
            .spec
            .remote
            .filter(|_| status != AtomicStatus::SUCCESS)
        else {
            if fetched.len() != fetches {
                waiting.fail(host, Error::Canceled);
                return Err(ProtocolViolation(
                    "a response of another length than was asked for",
                ));
            }
            if let Some(op) = waiting.op.filter(|_| fetches > 0) {
                host.write_at(op, 0, &fetched, 0, fetches);
            }
            waiting.complete(host, None);
            return Ok(());
        };
        waiting.fail(host, status.to_error(&place));
        Ok(())
    }

    fn complete_ack(
        &mut self,
        verdict: RemoteStatus,
        host: &mut dyn EngineContext,
    ) -> Result<(), ProtocolViolation> {
        match self.acks.pop_front() {
            Some(waiting) => waiting.complete(host, verdict),
            None if self.is_sending && self.early_ack.is_none() => self.early_ack = Some(verdict),
            None => return Err(ProtocolViolation("an acknowledgement of nothing")),
        }
        Ok(())
    }

    /// An answer of so many bytes begins.
    pub(super) fn begin_read_response(&self, len: u64) -> Result<usize, ProtocolViolation> {
        let first = self
            .reads
            .front()
            .ok_or(ProtocolViolation("an answer to no question"))?;
        let asked = match first {
            PendingRead::Op(waiting) => waiting.len,
            PendingRead::Rendezvous(len) => *len,
        };
        if asked as u64 != len {
            return Err(ProtocolViolation(
                "an answer of another length than was asked for",
            ));
        }
        Ok(asked)
    }

    /// Bytes of the answer that has begun, from position `at` on. False when they are those of a
    /// message.
    pub(super) fn write_read_response(
        &self,
        at: usize,
        bytes: &[u8],
        host: &mut dyn EngineContext,
    ) -> bool {
        let Some(PendingRead::Op(first)) = self.reads.front() else {
            return false;
        };
        if let Some(op) = first.op {
            host.write_at(op, at, &bytes, 0, bytes.len());
        }
        true
    }

    /// The answer is there, or is no good. False when it is part of a message.
    pub(super) fn end_read_response(
        &mut self,
        verdict: RemoteStatus,
        host: &mut dyn EngineContext,
    ) -> bool {
        match self.reads.pop_front() {
            Some(PendingRead::Op(waiting)) => waiting.complete(host, verdict),
            Some(PendingRead::Rendezvous(_)) => return false,
            None => {}
        }
        true
    }
}

impl PendingOp {
    fn fail(self, host: &mut dyn EngineContext, error: Error) {
        if let Some(op) = self.op {
            host.complete(op, Outcome::failed(error));
        }
    }

    fn complete(self, host: &mut dyn EngineContext, denied: RemoteStatus) {
        let Self {
            op: Some(op),
            spec,
            len,
        } = self
        else {
            return;
        };
        let outcome = match denied {
            None => Outcome::ok(Transfer::sent(len, spec.tag)),
            Some((row, why)) => {
                let places = spec
                    .rma_iov_id
                    .map_or(&[][..], |spread| host.rma_iovs(spread));
                let place = places.get(usize::from(row)).copied().or(spec.remote);
                let error = place.map_or(Error::Canceled, |place| why.to_error(&place, place.len));
                Outcome::failed(error)
            }
        };
        host.complete(op, outcome);
    }
}
