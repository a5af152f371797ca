//! The receive queue of an endpoint: matching, and where the bytes of a message go.
//!
//! A message arrives whole ([`RxQueue::deliver`]) or in pieces ([`RxQueue::begin_partial`],
//! [`RxQueue::append`]). Its bytes are copied directly into the receive that matches. If none
//! matches, the message is buffered within a budget. Over the budget the queue *declines* the
//! message: the transport *holds* the message where it is, and the sender waits.
//!
//! No complete message is lost: when a receive is dropped after its match, its message is requeued
//! at the message's old place.
//!
//! | file | subject |
//! |---|---|
//! | `partial` | messages that arrive in pieces |
//! | `lost` | receives whose message will never be complete |
//! | `stalled` | messages whose senders send no more |
//! | `multi` | multi-receives (`FI_MULTI_RECV`) |
//! | `claim` | probes and claims |
//! | `peer_memory` | messages in the memory of their sender |
//! | `peers` | peers that connect and disconnect |
//! | `acks` | acks that senders wait for |
//! | `budget` | bytes that unexpected messages use |
//! | `held_messages` | declined messages, in the order of arrival |
//! | `over_budget` | peers whose messages the budget has declined, for events |
//! | `shared` | receive queues that several endpoints share |
//! | `plain` | runs of plain messages |
//! | `engine` | the engine as the queue uses it |

mod acks;
mod budget;
mod claim;
mod engine;
mod held_messages;
mod lost;
mod multi;
mod over_budget;
mod partial;
mod peer_memory;
mod peers;
mod plain;
mod shared;
mod stalled;

use std::cell::Cell;
use std::sync::Arc;

use crate::address::FiAddr;
use crate::buf::{CopySource, PeerMemory, PooledBuf};
use crate::completion::{Outcome, Transfer};
use crate::error::Error;
use crate::matching::{
    Envelope, Matcher, PostKey, RecvPostResult, RecvSpec, TagMatch, UnexpectedKey,
};
use crate::op::{EpId, OpKey};

use acks::UnsentAcks;
use budget::{Admission, UNEXPECTED_OVERHEAD, UnexpectedBudget, message_cost};
use claim::{ClaimTable, Probes};
use held_messages::HeldMessages;
use lost::OnLoss;
use multi::{MatchResult, QueuedMultiRecvs};
use over_budget::PeersOverBudget;
use partial::{PartialTarget, Reassembly, append_copy};
use peer_memory::{PeerCopies, UnmappedUnexpected};
use peers::QueuePeers;

pub use budget::BudgetGroup;
pub use claim::ClaimId;
pub use engine::{Incarnation, MultiRecvSplit, RxEngine};
pub use over_budget::PeerOverBudget;
pub use partial::PartialId;
pub use peers::DiscardedMessages;
pub use plain::{PlainDelivery, PlainRun, PlainSink};

/// The receive queue of one endpoint, or of the endpoints that share it.
///
/// The engine owns the queue, and posts and cancels its receives. A transport delivers messages to
/// the queue through an [`EndpointContext`](crate::transport::EndpointContext).
pub struct RxQueue {
    ep: EpId,
    /// Whether endpoints share the queue.
    shared: bool,
    /// Whether the engine reports each posted receive to the transport.
    post_reports: bool,
    /// Whether the transport drops the messages that the queue declines.
    drops_declined: bool,
    matcher: Matcher<OpKey, UnexpectedMessage>,
    /// The key in the matcher of the last receive that was posted under each operation's index.
    post_keys: Vec<PostKey>,
    multi_recvs: QueuedMultiRecvs,
    probes: Probes,
    claims: ClaimTable,
    partials: Reassembly,
    peers: QueuePeers,
    /// Whether a message was declined since `take_declined` last returned true.
    declined: Cell<bool>,
    /// The number of changes at the last `take_declined`.
    changes_at_take: u64,
    /// The number of changes that neither the matcher nor the budget counts.
    other_changes: u64,
    peer_copies: PeerCopies,
    unsent_acks: UnsentAcks,
    budget: UnexpectedBudget,
    /// What messages use for which the budget had no room: claimed ones, and those that a receive
    /// or a claim had before it was dropped. They leave the budget to other messages.
    beyond_budget: UnexpectedBudget,
    over_budget: PeersOverBudget,
    held: HeldMessages,
}

/// A message that no receive has taken yet.
struct UnexpectedMessage {
    bytes: PooledBuf,
    /// The memory of the sender, while the message is there and not in `bytes`.
    peer_memory: Option<Arc<dyn PeerMemory>>,
    /// The id of the message, while the rest of it is still arriving.
    partial: Option<PartialId>,
    /// Whether a probe has found the message.
    is_probed: bool,
    account: Account,
}

/// What a buffered message is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Account {
    /// The budget for unexpected messages.
    Budget,
    /// The limit for messages beyond the budget.
    BeyondBudget,
}

impl std::fmt::Debug for UnexpectedMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let in_peer_memory = self.peer_memory.is_some();
        write!(
            f,
            "UnexpectedMessage({} bytes, partial {:?}, in peer memory {in_peer_memory})",
            self.bytes.len(),
            self.partial
        )
    }
}

impl std::fmt::Debug for RxQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (messages, bytes) = self.unexpected();
        write!(
            f,
            "RxQueue({messages} unexpected messages of {bytes} bytes)"
        )
    }
}

impl UnexpectedMessage {
    /// Returns a message with these bytes. The rest of it is still arriving if it is `partial`.
    fn new(bytes: PooledBuf, partial: Option<PartialId>) -> Self {
        Self {
            bytes,
            peer_memory: None,
            partial,
            is_probed: false,
            account: Account::Budget,
        }
    }

    /// Returns whether all bytes are in `bytes`.
    fn is_whole(&self) -> bool {
        self.partial.is_none() && self.peer_memory.is_none()
    }

    /// Returns the bytes of the budget that the message uses. Bytes in memory of the sender are not
    /// counted.
    fn budget_cost(&self, envelope: &Envelope) -> usize {
        if self.peer_memory.is_some() {
            UNEXPECTED_OVERHEAD
        } else {
            message_cost(envelope.len)
        }
    }
}

impl RxQueue {
    /// Creates the receive queue of an endpoint, which buffers at most `budget` bytes of unexpected
    /// messages.
    #[must_use]
    pub fn new(ep: EpId, budget: usize) -> Self {
        Self {
            ep,
            shared: false,
            post_reports: true,
            drops_declined: false,
            matcher: Matcher::new(),
            post_keys: Vec::new(),
            multi_recvs: QueuedMultiRecvs::default(),
            probes: Probes::default(),
            claims: ClaimTable::default(),
            partials: Reassembly::default(),
            peers: QueuePeers::default(),
            declined: Cell::new(false),
            changes_at_take: 0,
            other_changes: 0,
            peer_copies: PeerCopies::default(),
            unsent_acks: UnsentAcks::default(),
            budget: UnexpectedBudget::new(budget),
            beyond_budget: UnexpectedBudget::new(budget),
            over_budget: PeersOverBudget::default(),
            held: HeldMessages::new(),
        }
    }

    /// Sets whether the engine reports each posted receive to the transport, as initially. If not,
    /// it reports only a post after which the queue [has work](Self::has_work): the transport holds
    /// no message for which a receive may be posted. Has no effect on a shared queue, for which
    /// several endpoints may hold messages.
    pub fn set_post_reports(&mut self, post_reports: bool) {
        self.post_reports = post_reports || self.shared;
    }

    /// Sets that the transport drops the messages that the queue declines, and holds none.
    pub fn set_drops_declined(&mut self) {
        self.drops_declined = true;
    }

    /// Sets that one peer sends to this queue, as to that of an `FI_EP_MSG` endpoint: the peer may
    /// use the whole budget, of at most `limit` bytes. Has no effect on a shared queue.
    pub fn set_single_peer(&mut self, limit: usize) {
        if !self.shared {
            self.budget.set_single_peer(limit);
            self.beyond_budget.set_single_peer(usize::MAX);
        }
    }

    /// Returns whether the engine has to report a posted receive to the transport.
    #[must_use]
    #[inline(always)] // on the fast path of small messages
    pub fn must_report_post(&self) -> bool {
        self.post_reports || self.has_work()
    }

    /// Returns whether a posted receive is only queued: no message is buffered that it could match,
    /// no multi-receive is posted, and no report to the transport is due.
    #[must_use]
    pub fn only_queues_posts(&self) -> bool {
        self.matcher.unexpected.is_empty()
            && self.multi_recvs.is_empty()
            && !self.must_report_post()
    }

    /// Returns a number that grows with each change after which the queue may accept a message that
    /// it has declined: a receive was posted, the budget has got bytes back, a peer has
    /// left, a multi-receive has room again or has left the queue, a message has stalled. A
    /// transport that holds a message retries it after the number has grown.
    #[must_use]
    #[inline]
    pub fn changes(&self) -> u64 {
        self.matcher
            .posted
            .serial()
            .wrapping_add(self.budget.changes())
            .wrapping_add(self.other_changes)
    }

    /// Returns the id of the endpoint, or of the shared receive context.
    #[must_use]
    #[inline]
    pub fn ep(&self) -> EpId {
        self.ep
    }

    /// Returns the receives that no message has matched, in any order.
    pub fn posted(&self) -> impl Iterator<Item = OpKey> {
        self.matcher.posted.iter()
    }

    /// Posts a receive; an unexpected message that matches is delivered at once.
    #[inline(always)] // on the fast path of small messages
    pub fn post(&mut self, engine: &mut impl RxEngine, op: OpKey, spec: RecvSpec) {
        if !self.held.is_empty() {
            return self.post_with_held(engine, op, spec);
        }
        if !self.multi_recvs.is_empty() {
            return self.queue_and_match(engine, op, spec);
        }
        match self.matcher.post(spec, op) {
            RecvPostResult::Queued(key) => self.record_queued(engine, op, spec, key),
            RecvPostResult::Matched(envelope, message) => {
                let on_loss = if message.is_whole() {
                    OnLoss::Fail
                } else {
                    OnLoss::for_receive(self.matcher.posted.assign_place(&spec))
                };
                self.deliver_to_receive(engine, (op, on_loss), envelope, message);
            }
        }
    }

    /// Posts a receive from any source while the queue [only queues
    /// posts](Self::only_queues_posts).
    #[inline(always)] // on the fast path of small messages
    pub fn queue_from_any(&mut self, op: OpKey, tag: Option<TagMatch>) {
        debug_assert!(self.only_queues_posts());
        let key = self.matcher.posted.push(&RecvSpec { from: None, tag }, op);
        self.record_post_key(op, key);
    }

    /// Records a receive that matched no unexpected message, or fails the receive when its peer is
    /// departing.
    #[inline(always)] // on the fast path of small messages
    fn record_queued(
        &mut self,
        engine: &mut impl RxEngine,
        op: OpKey,
        spec: RecvSpec,
        key: PostKey,
    ) {
        if let Some(from) = spec.from
            && let Some(peer) = engine.departing_address(from)
        {
            self.matcher.posted.remove(key);
            return engine.complete(op, Outcome::failed(Error::PeerGone(peer)));
        }
        self.record_post_key(op, key);
    }

    /// Records the key of a queued operation.
    #[inline]
    fn record_post_key(&mut self, op: OpKey, key: PostKey) {
        let index = op.index as usize;
        match self.post_keys.get_mut(index) {
            Some(slot) => *slot = key,
            None => self.add_post_key(index, key),
        }
    }

    #[cold]
    fn add_post_key(&mut self, index: usize, key: PostKey) {
        self.post_keys.resize(index, PostKey::NONE);
        self.post_keys.push(key);
    }

    /// Removes the receive that matches this message from the queue.
    #[inline(always)] // on the fast path of small messages
    fn take_match(&mut self, engine: &mut impl RxEngine, envelope: &Envelope) -> MatchResult {
        if !self.multi_recvs.is_empty() {
            return match self.take_match_multi(engine, envelope) {
                MatchResult::Receive((op, _)) => MatchResult::Receive(op),
                MatchResult::Blocked => MatchResult::Blocked,
                MatchResult::NoReceive => MatchResult::NoReceive,
            };
        }
        match self.matcher.posted.take_match(envelope) {
            Some(op) => MatchResult::Receive(op),
            None => MatchResult::NoReceive,
        }
    }

    /// Returns whether any receive is posted.
    #[must_use]
    #[inline]
    pub fn has_posted(&self) -> bool {
        !self.matcher.posted.is_empty() || !self.multi_recvs.is_empty()
    }

    /// Returns whether nothing is posted, no message is buffered, held or being copied, and no ack
    /// is unsent. The next message to arrive would then match the next receive that accepts it.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.matcher.posted.len() | self.entries_but_posted() == 0
    }

    /// Returns the one receive that is posted, and the source that it accepts, if the queue is
    /// [empty](Self::is_empty) apart from it and the receive is untagged. The next untagged message
    /// to arrive matches it.
    #[must_use]
    #[inline]
    pub fn only_receive(&self) -> Option<(OpKey, Option<FiAddr>)> {
        if self.matcher.posted.len() != 1 || self.entries_but_posted() != 0 {
            return None;
        }
        self.matcher.posted.first_untagged()
    }

    /// Removes the [only receive](Self::only_receive), because it has a message.
    #[inline]
    pub fn take_only_receive(&mut self) {
        self.matcher.posted.take_first();
    }

    /// Returns the one receive that is posted, and the messages that it accepts, if the queue is
    /// [empty](Self::is_empty) apart from it and the receive is tagged. The next of these messages
    /// to arrive matches it.
    #[must_use]
    pub fn only_tagged_receive(&self) -> Option<(OpKey, RecvSpec)> {
        if self.matcher.posted.len() != 1 || self.entries_but_posted() != 0 {
            return None;
        }
        self.matcher.posted.first_tagged()
    }

    /// Removes the [only tagged receive](Self::only_tagged_receive), because it has a message.
    pub fn take_only_tagged_receive(&mut self) {
        self.matcher.posted.take_first_tagged();
    }

    /// Returns 0 if the queue has nothing but posted receives.
    #[inline]
    fn entries_but_posted(&self) -> usize {
        self.matcher.unexpected.len()
            | self.held.len()
            | self.multi_recvs.len()
            | self.probes.len()
            | self.peer_copies.running()
            | self.unsent_acks.len()
    }

    /// Delivers a whole message. Returns false when the message is declined and must stay where it
    /// is: no receive matches and the budget is used up, or the matching multi-receive is blocked.
    ///
    /// `bytes` may be shorter than the envelope's length: the rest of the message is lost. `bytes`
    /// must then hold as much as the endpoint can receive at all.
    pub fn deliver(
        &mut self,
        engine: &mut impl RxEngine,
        mut envelope: Envelope,
        bytes: &impl CopySource,
    ) -> bool {
        debug_assert!(bytes.len() <= envelope.len);
        match self.take_match(engine, &envelope) {
            MatchResult::Receive(op) => {
                envelope.arrival = self.arrival_of(envelope.peer);
                engine.deliver(op, &envelope, bytes);
                self.queue_ack(&envelope);
                return true;
            }
            MatchResult::Blocked => return self.decline(),
            MatchResult::NoReceive => {}
        }
        let peer_memory = bytes.peer_memory();
        if let Some(receive) = self.take_stalled_receive(engine, &envelope) {
            envelope.arrival = self.arrival_of(envelope.peer);
            match peer_memory {
                Some(memory) => self.receive_peer_memory(engine, receive, envelope, memory),
                None => {
                    engine.deliver(receive.0, &envelope, bytes);
                    self.queue_ack(&envelope);
                }
            }
            return true;
        }
        let cost = if peer_memory.is_some() {
            UNEXPECTED_OVERHEAD
        } else {
            message_cost(envelope.len)
        };
        let Some(account) = self.make_room(engine, &envelope, cost) else {
            return self.decline_over_budget(engine, &envelope);
        };
        let mut buffered = PooledBuf::empty();
        if peer_memory.is_none() {
            if buffered.begin_fill(envelope.len).is_err() {
                return self.decline_held(engine, &envelope);
            }
            append_copy(&mut buffered, bytes);
        }
        envelope.arrival = self.arrival_of(envelope.peer);
        self.add_unexpected(
            envelope,
            UnexpectedMessage {
                peer_memory,
                account,
                ..UnexpectedMessage::new(buffered, None)
            },
        );
        self.check_probes(engine);
        true
    }

    /// Returns what to charge this message to, which no receive takes, if it may be buffered at
    /// this cost. Makes room for the message if room can be made.
    #[inline]
    fn make_room(
        &mut self,
        engine: &mut impl RxEngine,
        envelope: &Envelope,
        cost: usize,
    ) -> Option<Account> {
        match self.budget.admit(envelope.peer, cost) {
            Admission::Fits => return Some(Account::Budget),
            Admission::AfterDiscard => {
                self.discard_from_disconnected(engine);
                if self.budget.fits(envelope.peer, cost) {
                    return Some(Account::Budget);
                }
            }
            Admission::Declined => {}
        }
        let is_claimed = self.held.is_next_for_claim(envelope.peer);
        is_claimed.then_some(Account::BeyondBudget)
    }

    /// Charges a buffered message to its account.
    fn charge(&mut self, envelope: &Envelope, message: &UnexpectedMessage) {
        let cost = message.budget_cost(envelope);
        self.account(message).charge(envelope.peer, cost);
    }

    /// Returns what a buffered message was charged.
    fn release(&mut self, envelope: &Envelope, message: &UnexpectedMessage) {
        let cost = message.budget_cost(envelope);
        self.account(message).release(envelope.peer, cost);
    }

    fn account(&mut self, message: &UnexpectedMessage) -> &mut UnexpectedBudget {
        match message.account {
            Account::Budget => &mut self.budget,
            Account::BeyondBudget => &mut self.beyond_budget,
        }
    }

    /// Returns whether a message was declined, and the queue may accept it now: the queue has
    /// [changed](Self::changes) since the last call. If so, the caller lets the transport retry,
    /// and a message that is declined again is noted again.
    pub fn take_declined(&mut self) -> bool {
        let changes = self.changes();
        let has_changed = std::mem::replace(&mut self.changes_at_take, changes) != changes;
        has_changed && self.declined.take()
    }

    /// Records that a message is declined. Returns false, for the caller to return.
    #[cold]
    fn decline(&self) -> bool {
        self.declined.set(true);
        false
    }

    /// Declines a message for which the budget has no room.
    #[cold]
    fn decline_over_budget(&mut self, engine: &mut impl RxEngine, envelope: &Envelope) -> bool {
        if self.drops_declined {
            return false;
        }
        let over_budget = PeerOverBudget {
            peer: envelope.peer,
            len: envelope.len,
            buffered: self.budget.used_by(envelope.peer),
        };
        let account = self.budget.account_number(envelope.peer);
        self.over_budget.add(over_budget, account);
        self.decline_held(engine, envelope)
    }

    /// Declines a message that no receive takes, and that cannot be buffered now.
    fn decline_held(&mut self, engine: &mut impl RxEngine, envelope: &Envelope) -> bool {
        if self.drops_declined {
            return false;
        }
        if self.held.add(envelope, || self.matcher.next_arrival()) {
            self.check_probes(engine);
        }
        self.decline()
    }

    /// Returns whether the budget has declined messages of peers that no event has reported.
    #[must_use]
    #[inline]
    pub fn has_peers_over_budget(&self) -> bool {
        self.over_budget.has_unreported()
    }

    /// Calls `report` with each peer whose message the budget has declined and that no event has
    /// reported. `report` returns whether it has reported the peer. A connected peer is reported
    /// again after all its buffered messages were received.
    pub fn report_peers_over_budget(&mut self, report: impl FnMut(PeerOverBudget) -> bool) {
        self.over_budget.take_reported(report);
    }

    /// Cancels a receive or probe that no message has matched. Returns false when neither is
    /// queued under this key.
    pub fn cancel(&mut self, engine: &mut impl RxEngine, op: OpKey) -> bool {
        let queued = self.remove_posted(op);
        if queued && self.retire_multi(op) {
            self.match_unexpected(engine);
        }
        let canceled = queued || self.cancel_probe(op);
        if canceled {
            self.request_rearm_if_work(engine);
        }
        canceled
    }

    /// Requests another pass after a change between passes: the driver must not sleep while this
    /// queue has work.
    fn request_rearm_if_work(&self, engine: &mut impl RxEngine) {
        if self.has_work() {
            engine.request_rearm();
        }
    }

    /// Detaches a receive whose future was dropped. A message that is arriving in the receive goes
    /// to the next receive that accepts it, or is buffered.
    pub fn detach(&mut self, engine: &mut impl RxEngine, op: OpKey) {
        if !self.remove_posted(op) {
            self.detach_partial(engine, op);
        }
        self.request_rearm_if_work(engine);
    }

    /// Requeues the message that is arriving in this receive.
    fn detach_partial(&mut self, engine: &mut impl RxEngine, op: OpKey) {
        let Some(id) = self.partials.arriving_in(op) else {
            return;
        };
        if let Some(memory) = self.peer_copies.take(id)
            && let Some(partial) = self.partials.try_remove(id)
        {
            // The sender's memory still holds the whole message.
            let bytes = engine.take_received(op, 0);
            return self.match_or_buffer(
                engine,
                partial.envelope,
                UnexpectedMessage {
                    peer_memory: Some(memory),
                    ..UnexpectedMessage::new(bytes, None)
                },
            );
        }
        let Some(partial) = self.partials.get_mut(id) else {
            return;
        };
        let PartialTarget::Receive { written, .. } = partial.target() else {
            return;
        };
        // Bytes that did not fit into the detached buffer are lost. The next receive gets the bytes
        // before them; the envelope keeps the full length, so the receive reports truncation.
        partial.truncated = written < partial.received;
        let bytes = engine.take_received(op, written);
        let envelope = partial.envelope.clone();
        self.match_or_buffer(engine, envelope, UnexpectedMessage::new(bytes, Some(id)));
    }

    /// Requeues a message whose completion the program did not see. `source` is the current address
    /// handle of the sender; if `None`, because the sender has disconnected or never had a handle,
    /// the handle is looked up.
    pub fn requeue_message(
        &mut self,
        engine: &mut impl RxEngine,
        mut envelope: Envelope,
        source: Option<FiAddr>,
        bytes: PooledBuf,
    ) {
        let known = self.peers.known().find(|(key, _)| *key == envelope.peer);
        // An auto-inserted handle belongs to the sender, even if another peer has the sender's name
        // now.
        let own = envelope
            .source
            .filter(|source| engine.incarnation_of(self.ep, *source).is_some());
        envelope.source = source
            .or(own)
            .or_else(|| engine.fi_addr_of(self.ep, known?.1));
        self.match_or_buffer(engine, envelope, UnexpectedMessage::new(bytes, None));
    }

    /// Declines a message again, unless a posted receive would take it now or the budget has room
    /// for it. Returns whether the message was declined.
    #[must_use]
    pub fn decline_again(&mut self, engine: &mut impl RxEngine, envelope: &Envelope) -> bool {
        let admission = self.budget.admit(envelope.peer, message_cost(envelope.len));
        let has_room = admission != Admission::Declined
            || self.held.is_next_for_claim(envelope.peer)
            || self.has_stalled_receive_for(envelope);
        let is_blocked = !self.multi_recvs.is_empty() && {
            let receive = self.matcher.posted.find(envelope);
            receive.is_some_and(|(_, op)| self.is_blocked(op, envelope))
        };
        if is_blocked {
            self.decline();
        } else if has_room || self.matcher.posted.would_match(envelope) {
            return false;
        } else {
            self.decline_over_budget(engine, envelope);
        }
        true
    }

    /// Closes the queue: posted receives and probes complete with [`Error::Canceled`], and
    /// unexpected and claimed messages are discarded.
    pub fn close(&mut self, engine: &mut impl RxEngine) {
        for op in self.matcher.posted.take_all() {
            engine.complete(op, Outcome::failed(Error::Canceled));
        }
        for op in self.partials.clear() {
            engine.complete(op, Outcome::failed(Error::Canceled));
        }
        self.fail_probes(engine, |_| Some(Error::Canceled));
        self.claims.clear();
        self.multi_recvs.clear();
        self.peer_copies.clear();
        self.matcher.unexpected.take_all();
        self.peers.clear_connected();
        self.post_keys.clear();
        self.unsent_acks.clear();
        self.budget.clear();
        self.beyond_budget.clear();
        self.over_budget = PeersOverBudget::default();
        self.held = HeldMessages::new();
    }

    /// Returns the number of unexpected messages, and the bytes that they, claimed messages and
    /// messages that transports have set aside use.
    #[must_use]
    pub fn unexpected(&self) -> (usize, usize) {
        let bytes = self.budget.used() + self.beyond_budget.used();
        (self.matcher.unexpected.len(), bytes)
    }

    /// Fails a receive for whose matched message no memory could be reserved. The message is
    /// discarded.
    #[cold]
    fn fail_without_memory(
        &mut self,
        engine: &mut impl RxEngine,
        op: OpKey,
        envelope: &Envelope,
        error: Error,
    ) {
        engine.complete(op, Outcome::partial(Transfer::received(envelope, 0), error));
        self.queue_ack(envelope);
    }

    /// Removes a posted receive. Returns false when it is not queued.
    fn remove_posted(&mut self, op: OpKey) -> bool {
        // The key of a receive that has left the queue finds nothing, and the index of a queued
        // receive is not reused.
        let key = self.post_keys.get(op.index as usize);
        key.is_some_and(|key| self.matcher.posted.remove(*key).is_some())
    }

    fn add_unexpected(&mut self, envelope: Envelope, message: UnexpectedMessage) -> UnexpectedKey {
        self.charge(&envelope, &message);
        let (arrival, peer, len) = (envelope.arrival, envelope.peer, envelope.len);
        let unmapped_in = message.is_unmapped().then_some(message.account);
        let key = self.matcher.unexpected.insert(envelope, message);
        if let Some(account) = unmapped_in {
            let unmapped = UnmappedUnexpected {
                arrival,
                key,
                peer,
                cost: account.cost_of_copy(len),
            };
            self.add_unmapped(unmapped, len);
        }
        key
    }

    /// Matches a message that a receive or claim had taken before, or requeues the message at its
    /// old place.
    fn match_or_buffer(
        &mut self,
        engine: &mut impl RxEngine,
        envelope: Envelope,
        mut message: UnexpectedMessage,
    ) {
        let partial = message.partial;
        let has_room = (self.budget).fits(envelope.peer, message.budget_cost(&envelope));
        message.account = if has_room {
            Account::Budget
        } else {
            Account::BeyondBudget
        };
        if let MatchResult::Receive(receive) = self.take_match_multi(engine, &envelope) {
            self.charge(&envelope, &message);
            self.deliver_buffered(engine, receive, envelope, message);
        } else {
            let key = self.add_unexpected(envelope, message);
            if let Some(partial) = partial {
                self.partials
                    .set_target(partial, PartialTarget::Buffer(key));
            }
            self.check_probes(engine);
        }
    }

    /// Delivers the first buffered message to a receive that is being posted or restored. If the
    /// message is arriving, a whole one takes the receive.
    #[inline]
    fn deliver_to_receive(
        &mut self,
        engine: &mut impl RxEngine,
        receive: (OpKey, OnLoss),
        envelope: Envelope,
        message: UnexpectedMessage,
    ) {
        match (message.partial, receive.1.place()) {
            (Some(id), Some(place)) if !message.is_probed => {
                self.deliver_whole_first(engine, (receive, place), (id, envelope, message));
            }
            _ => self.deliver_buffered(engine, receive, envelope, message),
        }
    }

    /// Delivers a buffered message to a receive. `on_loss` states what happens to the receive if
    /// the message is lost before it is complete.
    fn deliver_buffered(
        &mut self,
        engine: &mut impl RxEngine,
        (op, on_loss): (OpKey, OnLoss),
        mut envelope: Envelope,
        message: UnexpectedMessage,
    ) {
        self.release(&envelope, &message);
        if message.is_unmapped() {
            self.remove_unmapped(envelope.arrival);
        }
        match message.partial {
            None if let Some(memory) = message.peer_memory => {
                self.receive_peer_memory(engine, (op, on_loss), envelope, memory);
            }
            None => {
                let placed = engine.give_buffered(op, message.bytes);
                engine.complete(op, Outcome::received(&envelope, placed));
                self.queue_ack(&envelope);
            }
            Some(id) => {
                self.unsent_acks.push_match(&mut envelope);
                let target = match engine.adopt_partial(op, message.bytes, envelope.len) {
                    Ok((capacity, written)) => PartialTarget::Receive {
                        op,
                        capacity,
                        written,
                        on_loss,
                    },
                    Err(error) => {
                        self.fail_without_memory(engine, op, &envelope, error);
                        PartialTarget::Discard
                    }
                };
                if let Some(partial) = self.partials.set_target(id, target) {
                    partial.envelope.ack = envelope.ack;
                }
            }
        }
    }
}
