//! Messages that arrive in pieces, or are copied in chunks, and the buffers that the bytes go to.

use std::collections::BTreeSet;

use slab::Slab;

use crate::address::FiAddr;
use crate::buf::{CopySource, PooledBuf};
use crate::completion::Outcome;
use crate::error::Error;
use crate::matching::{Envelope, PeerKey, UnexpectedKey};
use crate::op::OpKey;

use super::budget::message_cost;
use super::claim::ClaimId;
use super::engine::RxEngine;
use super::lost::OnLoss;
use super::multi::MatchResult;
use super::peers::SourceCounts;
use super::stalled::ArrivalProgress;
use super::{RxQueue, UnexpectedMessage};

/// The id of a message that is arriving in pieces, valid until the message is complete or has
/// failed. After that it finds no message, also not a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialId {
    index: usize,
    serial: u64,
}

/// A message that is arriving in pieces.
#[derive(Debug)]
pub(super) struct PartialMessage {
    /// The serial number in the id of the message.
    serial: u64,
    pub(super) envelope: Envelope,
    /// Bytes that have arrived, including those that did not fit into the target.
    pub(super) received: usize,
    /// `None` for a message that this side copies from the memory of its sender.
    pub(super) progress: Option<ArrivalProgress>,
    /// Bytes in the middle were lost: later pieces are not contiguous and are lost too.
    pub(super) truncated: bool,
    target: PartialTarget,
}

/// The buffer that the pieces of a message go to.
#[derive(Clone, Copy, Debug)]
pub(super) enum PartialTarget {
    /// The buffer of a receive.
    Receive {
        op: OpKey,
        /// Bytes of the message that the receive accepts.
        capacity: usize,
        /// Bytes of the message that are in the buffer.
        written: usize,
        /// What happens to the receive if the message is lost.
        on_loss: OnLoss,
    },
    /// The pooled buffer of an unexpected message.
    Buffer(UnexpectedKey),
    /// The pooled buffer of a claimed message.
    Claim(ClaimId),
    /// Pieces are discarded as they arrive: the message was claimed and discarded, or its receive
    /// had no memory for it.
    Discard,
}

impl PartialTarget {
    /// Returns the receive that the message fills.
    fn receive(&self) -> Option<OpKey> {
        match self {
            Self::Receive { op, .. } => Some(*op),
            Self::Buffer(_) | Self::Claim(_) | Self::Discard => None,
        }
    }
}

impl PartialMessage {
    /// Creates a message of which no byte has arrived.
    pub(super) fn new(envelope: Envelope, target: PartialTarget) -> Self {
        Self {
            progress: Some(ArrivalProgress::default()),
            ..Self::copied(envelope, target)
        }
    }

    /// Creates a message that this side copies from the memory of its sender.
    pub(super) fn copied(envelope: Envelope, target: PartialTarget) -> Self {
        Self {
            serial: 0,
            envelope,
            received: 0,
            progress: None,
            truncated: false,
            target,
        }
    }

    pub(super) fn target(&self) -> PartialTarget {
        self.target
    }

    /// Returns whether this side copies the message from the memory of its sender.
    pub(super) fn is_copied(&self) -> bool {
        self.progress.is_none()
    }
}

/// The messages that arrive in pieces, or are copied in chunks.
#[derive(Debug, Default)]
pub(super) struct Reassembly {
    /// The messages, at the index of their [`PartialId`].
    messages: Slab<PartialMessage>,
    next_serial: u64,
    /// The messages that are arriving in buffers, by peer and arrival number.
    buffered: BTreeSet<(PeerKey, u64)>,
    /// The index of the message that was the last one to arrive in each receive, at the index of
    /// the receive's operation.
    by_receive: Vec<usize>,
    sources: SourceCounts,
    /// The indices of the messages that the last check of arrivals has found stalled, and whose
    /// receive another message may take: at most as many as there are receives.
    stalled_receives: BTreeSet<usize>,
    /// Whether the last check of arrivals has found a stalled message.
    pub(super) has_stalled: bool,
}

impl Reassembly {
    /// Returns the id of the next message.
    pub(super) fn next_id(&self) -> PartialId {
        PartialId {
            index: self.messages.vacant_key(),
            serial: self.next_serial,
        }
    }

    pub(super) fn insert(&mut self, mut message: PartialMessage) -> PartialId {
        let id = self.next_id();
        message.serial = id.serial;
        self.next_serial += 1;
        self.sources.add(message.envelope.source);
        self.messages.insert(message);
        self.add_to_indices(id.index);
        id
    }

    pub(super) fn get(&self, id: PartialId) -> Option<&PartialMessage> {
        let message = self.messages.get(id.index);
        message.filter(|message| message.serial == id.serial)
    }

    pub(super) fn get_mut(&mut self, id: PartialId) -> Option<&mut PartialMessage> {
        let message = self.messages.get_mut(id.index);
        message.filter(|message| message.serial == id.serial)
    }

    pub(super) fn try_remove(&mut self, id: PartialId) -> Option<PartialMessage> {
        let source = self.get(id)?.envelope.source;
        self.sources.remove(source);
        self.remove_from_indices(id.index);
        self.messages.try_remove(id.index)
    }

    /// Sets the target of a message. Returns the message.
    pub(super) fn set_target(
        &mut self,
        id: PartialId,
        target: PartialTarget,
    ) -> Option<&mut PartialMessage> {
        self.get(id)?;
        self.remove_from_indices(id.index);
        self.messages[id.index].target = target;
        self.add_to_indices(id.index);
        self.get_mut(id)
    }

    fn add_to_indices(&mut self, index: usize) {
        let message = &self.messages[index];
        if let PartialTarget::Buffer(_) = message.target {
            let arrival = message.envelope.arrival;
            self.buffered.insert((message.envelope.peer, arrival));
        } else if message.was_stalled() && message.place_to_give().is_some() {
            self.stalled_receives.insert(index);
        }
        if let Some(op) = message.target.receive() {
            let op_index = op.index as usize;
            if op_index >= self.by_receive.len() {
                self.by_receive.resize(op_index + 1, usize::MAX);
            }
            self.by_receive[op_index] = index;
        }
    }

    fn remove_from_indices(&mut self, index: usize) {
        let message = &self.messages[index];
        if let PartialTarget::Buffer(_) = message.target {
            let arrival = message.envelope.arrival;
            self.buffered.remove(&(message.envelope.peer, arrival));
        }
        self.stalled_receives.remove(&index);
    }

    /// Calls `check` with each arriving message, and then finds out which are stalled.
    pub(super) fn check_all(&mut self, mut check: impl FnMut(PartialId, &mut PartialMessage)) {
        self.stalled_receives.clear();
        for (index, message) in &mut self.messages {
            let serial = message.serial;
            check(PartialId { index, serial }, message);
            if message.was_stalled() && message.place_to_give().is_some() {
                self.stalled_receives.insert(index);
            }
        }
    }

    /// Returns the first message that the last check has found stalled, whose receive another
    /// message may take, and for which `test` returns true.
    pub(super) fn find_stalled_receive(
        &self,
        mut test: impl FnMut(&PartialMessage) -> bool,
    ) -> Option<PartialId> {
        let mut stalled = self.stalled_receives.iter();
        let found = stalled.find(|index| test(&self.messages[**index]));
        found.map(|&index| PartialId {
            index,
            serial: self.messages[index].serial,
        })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (PartialId, &PartialMessage)> {
        let messages = self.messages.iter();
        messages.map(|(index, message)| {
            let serial = message.serial;
            (PartialId { index, serial }, message)
        })
    }

    /// Returns whether a message has this source.
    pub(super) fn has_source(&self, source: FiAddr) -> bool {
        self.sources.contains(source)
    }

    /// Sets the source of the messages of these peers that have none.
    pub(super) fn assign_source(&mut self, peers: &[PeerKey], source: FiAddr) {
        let messages = self.messages.iter_mut();
        self.sources.assign(
            messages.map(|(_, message)| &mut message.envelope),
            peers,
            source,
        );
    }

    /// Clears the source of the messages that have this one.
    pub(super) fn clear_source(&mut self, source: FiAddr) {
        let messages = self.messages.iter_mut();
        self.sources
            .clear(messages.map(|(_, message)| &mut message.envelope), source);
    }

    /// Returns the arrival number of the first message of this peer that is arriving in a buffer:
    /// no receive has taken it.
    pub(super) fn first_buffered_of(&self, peer: PeerKey) -> Option<u64> {
        let mut of_peer = self.buffered.range((peer, 0)..=(peer, u64::MAX));
        of_peer.next().map(|(_, arrival)| *arrival)
    }

    /// Returns the message that is arriving in this receive.
    pub(super) fn arriving_in(&self, op: OpKey) -> Option<PartialId> {
        let &index = self.by_receive.get(op.index as usize)?;
        let message = self.messages.get(index)?;
        let serial = message.serial;
        (message.target.receive() == Some(op)).then_some(PartialId { index, serial })
    }

    /// Removes everything, and returns the receives in which messages were arriving.
    pub(super) fn clear(&mut self) -> Vec<OpKey> {
        self.buffered.clear();
        self.stalled_receives.clear();
        self.by_receive.clear();
        self.sources = SourceCounts::default();
        let removed = self.messages.drain();
        removed
            .filter_map(|message| message.target.receive())
            .collect()
    }
}

impl RxQueue {
    /// Begins a message that arrives in pieces. Returns `None` when the message is declined, as
    /// [`deliver`](Self::deliver) returns false.
    ///
    /// Memory for the whole message is reserved now, so that no piece reallocates the buffer. A
    /// receive whose memory cannot be reserved fails with [`Error::OutOfMemory`], and the message
    /// is discarded as it arrives.
    pub fn begin_partial(
        &mut self,
        engine: &mut impl RxEngine,
        mut envelope: Envelope,
    ) -> Option<PartialId> {
        let matched = match self.take_match_multi(engine, &envelope) {
            MatchResult::Receive(receive) => Ok(receive),
            MatchResult::NoReceive
                if let Some(receive) = self.take_stalled_receive(engine, &envelope) =>
            {
                Ok(receive)
            }
            MatchResult::NoReceive
                if let Some(account) =
                    self.make_room(engine, &envelope, message_cost(envelope.len)) =>
            {
                let mut buffer = PooledBuf::empty();
                if buffer.begin_fill(envelope.len).is_err() {
                    self.decline_held(engine, &envelope);
                    return None;
                }
                Err((account, buffer))
            }
            MatchResult::Blocked => {
                self.decline();
                return None;
            }
            MatchResult::NoReceive => {
                self.decline_over_budget(engine, &envelope);
                return None;
            }
        };
        engine.on_arriving();
        envelope.arrival = self.arrival_of(envelope.peer);
        let id = self.partials.next_id();
        let mut failed = None;
        let is_buffered = matched.is_err();
        let target = match matched {
            Ok((op, on_loss)) => {
                self.unsent_acks.push_match(&mut envelope);
                match engine.begin_fill(op, envelope.len) {
                    Ok(capacity) => PartialTarget::Receive {
                        op,
                        capacity,
                        written: 0,
                        on_loss,
                    },
                    Err(error) => {
                        failed = Some((op, error));
                        PartialTarget::Discard
                    }
                }
            }
            Err((account, buffer)) => {
                let message = UnexpectedMessage {
                    account,
                    ..UnexpectedMessage::new(buffer, Some(id))
                };
                PartialTarget::Buffer(self.add_unexpected(envelope.clone(), message))
            }
        };
        self.partials
            .insert(PartialMessage::new(envelope.clone(), target));
        if let Some((op, error)) = failed {
            self.fail_without_memory(engine, op, &envelope, error);
        }
        if is_buffered {
            self.check_probes(engine);
        }
        Some(id)
    }

    /// Returns how many bytes of this message have not arrived yet.
    #[must_use]
    pub fn remaining(&self, id: PartialId) -> usize {
        self.partials
            .get(id)
            .map_or(0, |partial| partial.envelope.len - partial.received)
    }

    /// Appends a piece; at most [`RxQueue::remaining`] bytes of it are used. Returns true when the
    /// message is complete, and `id` is then no longer valid.
    pub fn append(
        &mut self,
        engine: &mut impl RxEngine,
        id: PartialId,
        piece: &dyn CopySource,
    ) -> bool {
        let count = piece.len().min(self.remaining(id));
        self.write_piece(engine, id, piece, count);
        self.advance(engine, id, count)
    }

    /// Writes the next `count` bytes of a message to its target, as far as the target has room.
    /// [`advance`](Self::advance) must follow.
    pub(super) fn write_piece(
        &mut self,
        engine: &mut impl RxEngine,
        id: PartialId,
        piece: &dyn CopySource,
        count: usize,
    ) {
        let Some(partial) = self.partials.get(id).filter(|partial| !partial.truncated) else {
            return;
        };
        match partial.target {
            PartialTarget::Receive {
                op,
                capacity,
                written,
                ..
            } => engine.write_at(op, written, piece, 0, count.min(capacity - written)),
            target => {
                if let Some(message) = self.unexpected_mut(target) {
                    append_copy(&mut message.bytes, piece);
                }
            }
        }
    }

    /// Accounts for the `count` bytes that [`write_piece`](Self::write_piece) wrote last, once the
    /// caller has checked their source. Returns true when the message is complete.
    pub(super) fn advance(
        &mut self,
        engine: &mut impl RxEngine,
        id: PartialId,
        count: usize,
    ) -> bool {
        let Some(partial) = self.partials.get_mut(id) else {
            return true;
        };
        partial.received += count;
        if let PartialTarget::Receive {
            capacity, written, ..
        } = &mut partial.target
            && !partial.truncated
        {
            *written += count.min(*capacity - *written);
        }
        let complete = partial.received == partial.envelope.len;
        if complete {
            let Some(partial) = self.partials.try_remove(id) else {
                return true;
            };
            match partial.target {
                PartialTarget::Receive { op, written, .. } => {
                    engine.complete(op, Outcome::received(&partial.envelope, written));
                    self.queue_ack(&partial.envelope);
                }
                target => {
                    // A later message of the peer may take the receive of a stalled one.
                    self.other_changes += 1;
                    if let Some(message) = self.unexpected_mut(target) {
                        message.partial = None;
                    }
                }
            }
        }
        complete
    }

    /// Returns the unexpected or claimed message whose buffer is this target; `None` for another
    /// target.
    fn unexpected_mut(&mut self, target: PartialTarget) -> Option<&mut UnexpectedMessage> {
        match target {
            PartialTarget::Buffer(key) => self
                .matcher
                .unexpected
                .get_mut(key)
                .map(|(_, message)| message),
            PartialTarget::Claim(claim) => self.claims.message(claim),
            PartialTarget::Receive { .. } | PartialTarget::Discard => None,
        }
    }

    /// Discards a message whose rest will never arrive. Its receive waits for another message or
    /// fails, as the head of `lost.rs` says; a claim keeps the bytes that have arrived.
    pub fn fail_partial(&mut self, engine: &mut impl RxEngine, id: PartialId, error: Error) {
        let Some(partial) = self.partials.try_remove(id) else {
            return;
        };
        match partial.target {
            PartialTarget::Receive {
                op,
                written,
                on_loss,
                ..
            } => {
                self.on_message_lost(engine, (op, on_loss), (&partial.envelope, written), error);
            }
            PartialTarget::Buffer(key) => {
                if let Some((envelope, message)) = self.matcher.unexpected.take(key) {
                    self.release(&envelope, &message);
                }
            }
            PartialTarget::Claim(claim) => self.claims.fail(claim, error),
            PartialTarget::Discard => {}
        }
    }
}

/// Appends a copy of `bytes` to a pooled buffer.
pub(super) fn append_copy(buffer: &mut PooledBuf, bytes: &dyn CopySource) {
    buffer.write_at(buffer.len(), bytes, 0, bytes.len());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::matching::{Matcher, RecvSpec};
    use crate::rx::stalled::stalled_progress;

    fn message(peer: u32, target: PartialTarget) -> PartialMessage {
        let envelope = Envelope {
            peer: PeerKey(peer),
            source: None,
            tag: None,
            len: 10,
            data: None,
            arrival: 0,
            ack: None,
        };
        PartialMessage::new(envelope, target)
    }

    #[test]
    fn id_of_an_ended_message_finds_no_later_message() {
        let message = || message(1, PartialTarget::Discard);
        let mut partials = Reassembly::default();
        let ended = partials.insert(message());
        assert!(partials.try_remove(ended).is_some());
        let later = partials.insert(message());
        assert_eq!(later.index, ended.index);
        assert!(partials.get(ended).is_none() && partials.get_mut(ended).is_none());
        assert!(partials.try_remove(ended).is_none());
        assert!(partials.get(later).is_some());
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Insert(u32, Option<u32>),
        Remove(usize),
        Receive(usize, u32),
        Discard(usize),
        AssignSource(u32, u32),
        ClearSource(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..4u32, proptest::option::of(0..4u32))
                .prop_map(|(peer, source)| Step::Insert(peer, source)),
            1 => (0..9usize).prop_map(Step::Remove),
            3 => (0..9usize, 0..3u32).prop_map(|(at, generation)| Step::Receive(at, generation)),
            1 => (0..9usize).prop_map(Step::Discard),
            1 => (0..4u32, 0..4u32).prop_map(|(peer, source)| Step::AssignSource(peer, source)),
            1 => (0..4u32).prop_map(Step::ClearSource),
        ]
    }

    fn source(index: u32) -> FiAddr {
        FiAddr::new(index, 0, std::num::NonZeroU16::MIN)
    }

    proptest! {
        /// A look-up by receive or by source finds what a search among all messages finds.
        #[test]
        fn look_ups_agree_with_a_search(steps in proptest::collection::vec(step(), 1..80)) {
            let mut partials = Reassembly::default();
            let mut ids: Vec<PartialId> = Vec::new();
            // No receive takes two messages at a time, so each message has indices of its own.
            let op = |id: PartialId, generation| OpKey {
                index: 50 - id.index as u32,
                generation,
            };
            for step in steps {
                let at = |at: usize| at % ids.len().max(1);
                match step {
                    Step::Insert(peer, of) => {
                        let mut message = message(peer, PartialTarget::Discard);
                        message.envelope.source = of.map(source);
                        ids.push(partials.insert(message));
                    }
                    Step::Remove(_) | Step::Receive(..) | Step::Discard(_) if ids.is_empty() => {}
                    Step::Remove(index) => {
                        let id = ids.swap_remove(at(index));
                        prop_assert!(partials.try_remove(id).is_some());
                    }
                    Step::Receive(index, generation) => {
                        let id = ids[at(index)];
                        let target = PartialTarget::Receive {
                            op: op(id, generation),
                            capacity: 10,
                            written: 0,
                            on_loss: OnLoss::Fail,
                        };
                        partials.set_target(id, target);
                    }
                    Step::Discard(index) => {
                        partials.set_target(ids[at(index)], PartialTarget::Discard);
                    }
                    Step::AssignSource(peer, of) => {
                        partials.assign_source(&[PeerKey(peer)], source(of));
                        for (_, message) in partials.iter() {
                            let is_of_peer = message.envelope.peer == PeerKey(peer);
                            prop_assert!(!is_of_peer || message.envelope.source.is_some());
                        }
                    }
                    Step::ClearSource(of) => {
                        partials.clear_source(source(of));
                        prop_assert!(!partials.has_source(source(of)));
                    }
                }
                let messages: Vec<_> = partials.iter().collect();
                for of in (0..4).map(source) {
                    let mut sources = messages.iter().map(|(_, message)| message.envelope.source);
                    let is_found = sources.any(|other| other == Some(of));
                    prop_assert_eq!(partials.has_source(of), is_found);
                }
                for index in 0..60 {
                    for generation in 0..3 {
                        let op = OpKey { index, generation };
                        let found = messages
                            .iter()
                            .find(|(_, message)| message.target.receive() == Some(op));
                        prop_assert_eq!(partials.arriving_in(op), found.map(|(id, _)| *id));
                    }
                }
            }
        }
    }

    /// With any number of arriving messages, only receives of stalled ones are examined.
    #[test]
    fn search_for_a_receive_examines_stalled_receives_only() {
        let mut matcher = Matcher::<(), ()>::new();
        let spec = RecvSpec {
            from: None,
            tag: None,
        };
        let envelope = message(0, PartialTarget::Discard).envelope;
        let key = matcher.unexpected.insert(envelope, ());
        let mut receive = || PartialTarget::Receive {
            op: OpKey {
                index: 0,
                generation: 0,
            },
            capacity: 10,
            written: 0,
            on_loss: OnLoss::for_receive(matcher.posted.assign_place(&spec)),
        };
        let mut partials = Reassembly::default();
        let ids: Vec<_> = (0..4000)
            .map(|peer| partials.insert(message(peer, PartialTarget::Buffer(key))))
            .collect();
        let examined = |partials: &Reassembly| {
            let mut examined = Vec::new();
            let found = partials.find_stalled_receive(|partial| {
                examined.push(partial.envelope.peer.0);
                false
            });
            assert_eq!(found, None);
            examined
        };
        let first_buffered = |partials: &Reassembly, peers: [u32; 2]| {
            peers.map(|peer| partials.first_buffered_of(PeerKey(peer)))
        };
        // A message has a receive before it stalls, another one gets a receive later.
        partials.set_target(ids[5], receive());
        let check = |_, partial: &mut PartialMessage| partial.progress = Some(stalled_progress());
        assert_eq!(examined(&partials), []);
        partials.check_all(check);
        assert_eq!(examined(&partials), [5]);
        partials.set_target(ids[9], receive());
        assert_eq!(examined(&partials), [5, 9]);
        assert_eq!(first_buffered(&partials, [7, 9]), [Some(0), None]);
        partials.set_target(ids[5], PartialTarget::Buffer(key));
        assert!(partials.try_remove(ids[9]).is_some() && partials.try_remove(ids[7]).is_some());
        assert_eq!(examined(&partials), []);
        assert_eq!(first_buffered(&partials, [5, 7]), [Some(0), None]);
        // A message that has gone on is not examined after the next check.
        partials.set_target(ids[5], receive());
        partials.check_all(|_, partial| partial.progress = Some(ArrivalProgress::default()));
        assert_eq!(examined(&partials), []);
    }
}
