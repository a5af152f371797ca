//! What this side has asked of a peer and has not heard of.
//!
//! Answers carry no name: they come in the order of the questions, and so do acknowledgements.
//! Responses to atomic operations, where RXM is spoken, bear the number of what they respond to.

use std::collections::VecDeque;

use crate::completion::{OpKind, Outcome, Transfer};
use crate::error::Error;
use crate::mr::Denied;
use crate::provider::{Host, OpKey, SendSpec};

use super::rxm::Status;
use super::{Broken, Denial};

/// What a connection waits for.
#[derive(Debug, Default)]
pub struct Asked {
    acks: VecDeque<Waiting>,
    answers: VecDeque<Answer>,
    /// In the order of their numbers.
    atomics: VecDeque<(u64, Waiting)>,
    next_number: u64,
    /// The bytes of a frame that asks for an acknowledgement are on their way.
    is_sending: bool,
    /// It was answered before this side has heard that they have left.
    early: Option<Verdict>,
}

/// Nothing was wrong, or the place that was, and why.
type Verdict = Option<(u8, Denied)>;

/// Whose an answer is.
#[derive(Debug)]
enum Answer {
    /// That of an operation.
    Op(Waiting),
    /// So many bytes of a message that was offered.
    Piece(usize),
}

#[derive(Debug)]
struct Waiting {
    /// Nothing when it was given up: the peer answers all the same.
    op: Option<OpKey>,
    spec: SendSpec,
    len: usize,
}

impl Asked {
    /// The bytes of a frame that is acknowledged are sent from where they lie, from now until the
    /// acknowledgement is expected.
    pub fn send(&mut self) {
        self.is_sending = true;
    }

    /// A frame has left, or will, that is acknowledged: then this operation ends.
    pub fn expect_ack(&mut self, op: OpKey, spec: SendSpec, len: usize, host: &mut dyn Host) {
        self.is_sending = false;
        let waiting = Waiting {
            op: Some(op),
            spec,
            len,
        };
        match self.early.take() {
            Some(verdict) => waiting.end(host, verdict),
            None => self.acks.push_back(waiting),
        }
    }

    /// A question has left, or will, for so many bytes, which are to be placed in the buffer of
    /// this operation.
    pub fn expect_answer(&mut self, op: OpKey, spec: SendSpec, len: usize) {
        self.answers.push_back(Answer::Op(Waiting {
            op: Some(op),
            spec,
            len,
        }));
    }

    /// A question has left, or will, for so many bytes of a message that is being fetched.
    pub fn expect_piece(&mut self, len: usize) {
        self.answers.push_back(Answer::Piece(len));
    }

    /// A packet leaves, or will, that asks for an atomic operation on so many bytes: the number
    /// that it must bear. What is fetched is to be placed in the buffer of this operation.
    #[must_use]
    pub fn expect_response(&mut self, op: OpKey, spec: SendSpec, len: usize) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.atomics.push_back((
            number,
            Waiting {
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
        self.acks.is_empty() && self.answers.is_empty() && self.atomics.is_empty()
    }

    /// Nothing of it will be heard of.
    pub fn fail(&mut self, host: &mut dyn Host, error: &Error) {
        self.disown(host, error);
        self.acks.clear();
        self.answers.clear();
        self.atomics.clear();
    }

    /// All operations end with this error. What the peer still says to them is waited for, and
    /// means nothing.
    pub fn disown(&mut self, host: &mut dyn Host, error: &Error) {
        let answers = self.answers.iter_mut().filter_map(|answer| match answer {
            Answer::Op(waiting) => Some(waiting),
            Answer::Piece(_) => None,
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

    pub(super) fn acked(&mut self, host: &mut dyn Host) -> Result<(), Broken> {
        self.heard(None, host)
    }

    pub(super) fn refused(&mut self, denial: Denial, host: &mut dyn Host) -> Result<(), Broken> {
        let verdict = Some((denial.row, denial.why));
        if !denial.asked {
            return self.heard(verdict, host);
        }
        match self.answers.pop_front() {
            Some(Answer::Op(waiting)) => waiting.end(host, verdict),
            Some(Answer::Piece(_)) => return Err(Broken("a refusal of what was offered")),
            None => return Err(Broken("a refusal of nothing")),
        }
        Ok(())
    }

    /// What has come of the atomic operation of this number.
    pub(super) fn responded(
        &mut self,
        number: u64,
        (status, fetched): (Status, &[u8]),
        host: &mut dyn Host,
    ) -> Result<(), Broken> {
        let at = self.atomics.iter().position(|(asked, _)| *asked == number);
        let (_, waiting) = at
            .and_then(|at| self.atomics.remove(at))
            .ok_or(Broken("a response to no atomic operation"))?;
        let fetches = if waiting.spec.kind == OpKind::FetchAtomic {
            waiting.len
        } else {
            0
        };
        let Some(place) = waiting.spec.remote.filter(|_| status != Status::DONE) else {
            if fetched.len() != fetches {
                waiting.fail(host, Error::Canceled);
                return Err(Broken("a response of another length than was asked for"));
            }
            if let Some(op) = waiting.op.filter(|_| fetches > 0) {
                host.place(op, 0, &fetched, 0, fetches);
            }
            waiting.end(host, None);
            return Ok(());
        };
        waiting.fail(host, status.error(&place));
        Ok(())
    }

    fn heard(&mut self, verdict: Verdict, host: &mut dyn Host) -> Result<(), Broken> {
        match self.acks.pop_front() {
            Some(waiting) => waiting.end(host, verdict),
            None if self.is_sending && self.early.is_none() => self.early = Some(verdict),
            None => return Err(Broken("an acknowledgement of nothing")),
        }
        Ok(())
    }

    /// An answer of so many bytes begins.
    pub(super) fn begins(&self, len: u64) -> Result<usize, Broken> {
        let first = self
            .answers
            .front()
            .ok_or(Broken("an answer to no question"))?;
        let asked = match first {
            Answer::Op(waiting) => waiting.len,
            Answer::Piece(len) => *len,
        };
        if asked as u64 != len {
            return Err(Broken("an answer of another length than was asked for"));
        }
        Ok(asked)
    }

    /// Bytes of the answer that has begun, from position `at` on. False when they are those of a
    /// message.
    pub(super) fn place(&self, at: usize, bytes: &[u8], host: &mut dyn Host) -> bool {
        let Some(Answer::Op(first)) = self.answers.front() else {
            return false;
        };
        if let Some(op) = first.op {
            host.place(op, at, &bytes, 0, bytes.len());
        }
        true
    }

    /// The answer is there, or is no good. False when it is part of a message.
    pub(super) fn answered(&mut self, verdict: Verdict, host: &mut dyn Host) -> bool {
        match self.answers.pop_front() {
            Some(Answer::Op(waiting)) => waiting.end(host, verdict),
            Some(Answer::Piece(_)) => return false,
            None => {}
        }
        true
    }
}

impl Waiting {
    fn fail(self, host: &mut dyn Host, error: Error) {
        if let Some(op) = self.op {
            host.complete(op, Outcome::failed(error));
        }
    }

    fn end(self, host: &mut dyn Host, denied: Verdict) {
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
                let places = spec.spread.map_or(&[][..], |spread| host.places(spread));
                let place = places.get(usize::from(row)).copied().or(spec.remote);
                let error = place.map_or(Error::Canceled, |place| why.error(&place, place.len));
                Outcome::failed(error)
            }
        };
        host.complete(op, outcome);
    }
}
