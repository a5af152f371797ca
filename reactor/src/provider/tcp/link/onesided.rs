//! What a connection says of one-sided operations: its own, and answers to those of the peer.

use std::collections::VecDeque;

use fabric_core::atomic::AtomicCall;
use fabric_core::completion::{OpKind, Outcome};
use fabric_core::event::DownReason;
use fabric_core::provider::{EpId, Host, OpKey, SendSpec};
use fabric_core::tcp::{Frame, Replying, Rows, Takes};
use fabric_core::{Error, Result};

use super::sending::{COLLECTED, PER_PASS, TURN};
use super::{Link, Sending};

/// When an operation has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Its bytes have left.
    Sent,
    /// The peer has acknowledged it.
    Acknowledged,
    /// The peer has answered it.
    Answered,
}

impl Ending {
    pub(super) fn of(spec: &SendSpec) -> Self {
        match spec.kind {
            OpKind::Write | OpKind::Atomic => Self::Acknowledged,
            OpKind::Read | OpKind::FetchAtomic => Self::Answered,
            _ if spec.level.is_confirmed() => Self::Acknowledged,
            _ => Self::Sent,
        }
    }
}

/// What an operation is on the wire: its header, and the places it names.
pub(super) fn wrap(
    spec: &SendSpec,
    len: usize,
    takes: Takes,
    host: &dyn Host,
) -> Result<(Frame, Rows)> {
    if spec.kind == OpKind::Send {
        let frame = Frame::message(takes.tag(spec.tag)?, spec.data, len);
        let frame = if spec.level.is_confirmed() {
            frame.acknowledged()
        } else {
            frame
        };
        return Ok((frame, Rows::default()));
    }
    let places = spec
        .spread
        .map_or(spec.remote.as_slice(), |spread| host.places(spread));
    let rows = Rows::of(places).ok_or(Error::NotSupported(
        "more places than an operation over tcp has",
    ))?;
    let frame = match spec.remote.and_then(|remote| remote.atomic) {
        Some(atomic) => Frame::atomic(takes.atomic(atomic)?, atomic.call != AtomicCall::Base, len),
        None if spec.kind == OpKind::Read => Frame::read(&rows),
        None => Frame::write(&rows, spec.data, len),
    };
    Ok((frame, rows))
}

/// The first operation of the queue cannot be.
pub(super) fn fail_first(queue: &mut VecDeque<Sending>, host: &mut dyn Host, error: Error) {
    if let Some(send) = queue.pop_front() {
        host.complete(send.op, Outcome::failed(error));
    }
}

impl Link {
    /// Whose memory it serves, if it does, and whether that endpoint wants to hear of everything
    /// that is done there.
    pub(crate) fn serve(&mut self, ep: EpId, is_target: bool, heeds: bool) {
        self.inbox.serve(ep, is_target, heeds);
    }

    /// Operations that were asked of a peer whose number is no longer valid end; what it answers is
    /// thrown away.
    pub(crate) fn disown_asked(&mut self, host: &mut dyn Host, error: &Error) {
        self.inbox.asked.disown(host, error);
    }

    /// Whether something is to be done here without news: questions to be answered, or bytes to be
    /// looked at.
    pub(crate) fn has_duties(&self) -> bool {
        let replies = &self.inbox.replies;
        // Of a peer that has gone there may be messages to be received, and nobody to be answered.
        let is_heard = !self.is_deaf && !self.is_blocked && !self.is_sending();
        let answers = is_heard && !replies.is_empty() && !replies.is_in_hand();
        let is_unread = self.is_fresh || self.is_put_off;
        answers || is_heard && self.can_ask() || is_unread && !self.is_clogged()
    }

    /// Whether nothing can be sent before the owner of some memory has given it back: an answer has
    /// begun.
    pub(crate) fn is_stalled(&self) -> bool {
        self.inbox.replies.is_open() && self.inbox.replies.is_in_hand()
    }

    /// Whether the peer has asked for something that it has not got.
    pub(crate) fn owes_answers(&self) -> bool {
        !self.inbox.replies.is_empty()
    }

    /// Nothing that was asked will be heard of.
    pub(crate) fn fail_asked(&mut self, host: &mut dyn Host, error: &Error) {
        self.inbox.asked.fail(host, error);
    }

    /// An operation has been sent as far as it goes: up to this position in the stream.
    pub(super) fn has_left(
        &mut self,
        (op, spec): (OpKey, SendSpec),
        len: usize,
        end: u64,
        host: &mut dyn Host,
    ) {
        let ending = Ending::of(&spec);
        self.leaves_at(end, op, (ending == Ending::Sent).then_some((len, spec.tag)));
        self.complete_written(host);
        let asked = &mut self.inbox.asked;
        let all = spec.remote.map_or(len, |remote| remote.len);
        let all = spec.spread.map_or(all, |spread| {
            host.places(spread).iter().map(|place| place.len).sum()
        });
        match ending {
            Ending::Sent => {}
            Ending::Acknowledged => asked.expect_ack(op, spec, all, host),
            Ending::Answered => asked.expect_answer(op, spec, all),
        }
    }

    /// Answers what the peer has asked, as far as there is room; and as long as it is the turn of
    /// answers, where `others` wait as well. Returns whether anything has moved.
    pub(super) fn answer(&mut self, others: bool, host: &mut dyn Host) -> bool {
        let (mut moved, mut left) = (false, PER_PASS);
        while left > 0 && (!self.outbox.is_open() || self.inbox.replies.is_open()) {
            let before = self.outbox.pending().len();
            let who = (self.key, self.source);
            let turn = if others {
                TURN.saturating_sub(self.answered)
            } else {
                usize::MAX
            };
            let replying =
                match self
                    .inbox
                    .replies
                    .answer(&mut self.outbox, (COLLECTED, turn), who, host)
                {
                    Ok(replying) => replying,
                    Err(broken) => {
                        self.end(DownReason::Protocol(broken.0));
                        return true;
                    }
                };
            let made = self.outbox.pending().len() - before;
            moved |= made > 0;
            left = left.saturating_sub(made);
            self.answered = self.answered.saturating_add(made);
            if !self.flush() || replying != Replying::Full {
                break;
            }
        }
        moved
    }
}
