//! The receive context of an endpoint: matching, and where the bytes of a message go.
//!
//! A message arrives whole ([`RxQueue::deliver`]) or piece by piece ([`RxQueue::begin_partial`],
//! [`RxQueue::append`]). Its bytes go straight into the receive that takes it. If no receive does,
//! it is buffered, within a budget; over the budget the context declines it, and the provider
//! leaves it where it is and holds the sender back.
//!
//! Nothing is ever dropped: a receive that is abandoned after its match gives the message back, at
//! its old place.
//!
//! Pieces are the subject of `landing`; messages that are lost midway, of `lost`; messages in
//! memory of the sender's, of `lent`; senders that come and go, of `peers`; what senders wait to
//! hear of, of `receipts`; contexts that several endpoints share, of `shared`.

mod acks;
mod binding;
mod claim;
mod lost;
mod multi;
mod partial;
mod peer_memory;
mod peers;
mod shared;

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

use slab::Slab;

use crate::address::{Address, FiAddr};
use crate::buf::{BufferPool, CopySource, PeerMemory, PooledBuf};
use crate::completion::{Outcome, Transfer};
use crate::error::Error;
use crate::matching::{
    Envelope, Matcher, PeerKey, PostKey, RecvPostResult, RecvSpec, UnexpectedKey,
};
use crate::transport::{EngineContext, EpId, OpKey};

use acks::ack_match;
use claim::ClaimTable;
use lost::{Filling, OnLoss};
use multi::{MatchResult, QueuedMultiRecv};
use partial::{PartialMessage, PartialTarget, extend_from_source};
use peer_memory::UnmappedUnexpected;

pub use binding::{RxBinding, RxSource};
pub use claim::ClaimId;
pub use partial::PartialId;
pub use shared::SharedRxQueue;

/// What a buffered message costs beyond its bytes.
const UNEXPECTED_OVERHEAD: usize = 128;

/// The receive side of one endpoint, or of those that share it.
pub struct RxQueue {
    ep: EpId,
    matcher: Matcher<OpKey, UnexpectedMessage>,
    /// Where each posted operation is queued, by its index.
    posted: Vec<Option<PostKey>>,
    /// Those of them that take several messages each.
    multi_recvs: Vec<QueuedMultiRecv>,
    claims: ClaimTable,
    partials: Slab<PartialMessage>,
    /// The receives in which messages are arriving: few at a time, so a list.
    partial_receives: Vec<Filling>,
    /// Peers that are gone: messages of theirs may still wait, or come back.
    departed_peers: VecDeque<(PeerKey, Address)>,
    /// Peers that are connected, where endpoints share the context, and to which of them: otherwise
    /// its endpoint knows.
    connected_peers: Vec<(PeerKey, Address, EpId)>,
    /// A message was declined since somebody asked.
    declined: Cell<bool>,
    /// Lent messages that are being copied, and the landings they are copied to.
    peer_copies: VecDeque<(usize, Arc<dyn PeerMemory>)>,
    /// Messages that wait in memory which is not mapped here, and fit into the budget.
    unmapped_unexpected: Vec<UnmappedUnexpected>,
    /// One of those was discarded, which its sender is to be told.
    discarded_unmapped: bool,
    /// What senders are to be told: which peer, and which number.
    pending_acks: Vec<(PeerKey, u32)>,
    budget: usize,
    budget_used: usize,
    pool: Arc<BufferPool>,
}

/// A message no receive has taken yet.
struct UnexpectedMessage {
    bytes: PooledBuf,
    /// The bytes lie in memory of the sender's instead.
    peer_memory: Option<Arc<dyn PeerMemory>>,
    /// Set while the rest of it is still arriving.
    partial: Option<usize>,
}

impl std::fmt::Debug for UnexpectedMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lent = self.peer_memory.is_some();
        write!(
            f,
            "Unexpected({} bytes, landing {:?}, lent {lent})",
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
            "RxContext({messages} unexpected messages of {bytes} bytes)"
        )
    }
}

impl UnexpectedMessage {
    /// Whether all of it is here.
    fn is_whole(&self) -> bool {
        self.partial.is_none() && self.peer_memory.is_none()
    }

    /// What it uses of the budget. Memory of the sender's costs nothing here.
    fn budget_cost(&self, envelope: &Envelope) -> usize {
        if self.peer_memory.is_some() {
            UNEXPECTED_OVERHEAD
        } else {
            envelope.len + UNEXPECTED_OVERHEAD
        }
    }
}

impl RxQueue {
    /// The context of an endpoint, which buffers at most `budget` bytes of unexpected messages.
    #[must_use]
    pub fn new(ep: EpId, budget: usize, pool: Arc<BufferPool>) -> Self {
        Self {
            ep,
            matcher: Matcher::new(),
            posted: Vec::new(),
            multi_recvs: Vec::new(),
            claims: ClaimTable::default(),
            partials: Slab::new(),
            partial_receives: Vec::new(),
            departed_peers: VecDeque::new(),
            connected_peers: Vec::new(),
            declined: Cell::new(false),
            peer_copies: VecDeque::new(),
            unmapped_unexpected: Vec::new(),
            discarded_unmapped: false,
            pending_acks: Vec::new(),
            budget,
            budget_used: 0,
            pool,
        }
    }

    /// Posts a receive; a message that waits for it is given to it at once.
    #[inline(always)] // on the way of a small message
    pub fn post(&mut self, host: &mut dyn EngineContext, op: OpKey, spec: RecvSpec) {
        if !self.multi_recvs.is_empty() {
            return self.post_after_multi(host, op, spec);
        }
        match self.matcher.post(spec, op) {
            RecvPostResult::Queued(key) => self.record_queued(host, op, spec, key),
            RecvPostResult::Matched(envelope, message) => {
                let on_loss = if message.is_whole() {
                    OnLoss::Fail
                } else {
                    OnLoss::of(self.matcher.take_place(&spec))
                };
                self.deliver_buffered(host, (op, on_loss), envelope, message);
            }
        }
    }

    /// A receive has found nothing that waits.
    #[inline(always)] // on the way of a small message
    fn record_queued(
        &mut self,
        host: &mut dyn EngineContext,
        op: OpKey,
        spec: RecvSpec,
        key: PostKey,
    ) {
        if let Some(from) = spec.from
            && let Some(peer) = host.departing_address(from)
        {
            self.matcher.remove_posted(key);
            return host.complete(op, Outcome::failed(Error::PeerGone(peer)));
        }
        self.record_post_key(op, key);
    }

    /// Notes where an operation is queued.
    #[inline]
    fn record_post_key(&mut self, op: OpKey, key: PostKey) {
        let index = op.index as usize;
        if index >= self.posted.len() {
            self.posted.resize(index + 1, None);
        }
        self.posted[index] = Some(key);
    }

    /// The receive that takes this message, off the queue.
    #[inline(always)] // on the way of a small message
    fn take_match(&mut self, host: &mut dyn EngineContext, envelope: &Envelope) -> MatchResult {
        if !self.multi_recvs.is_empty() {
            return match self.take_match_multi(host, envelope) {
                MatchResult::Receive((op, _)) => MatchResult::Receive(op),
                MatchResult::Blocked => MatchResult::Blocked,
                MatchResult::NoReceive => MatchResult::NoReceive,
            };
        }
        match self.matcher.match_message(envelope) {
            Some(op) => {
                self.posted[op.index as usize] = None;
                MatchResult::Receive(op)
            }
            None => MatchResult::NoReceive,
        }
    }

    /// Whether any receive is posted.
    #[must_use]
    #[inline]
    pub fn has_posted(&self) -> bool {
        self.matcher.posted_len() > 0 || !self.multi_recvs.is_empty()
    }

    /// A whole message arrives. False: nobody wants it and there is no room, so it must stay where
    /// it is.
    ///
    /// `source` may end before the message does, of which the envelope tells the length: then the
    /// rest is lost, and what there is must be as much as the endpoint receives at all.
    pub fn deliver(
        &mut self,
        host: &mut dyn EngineContext,
        mut envelope: Envelope,
        source: &dyn CopySource,
    ) -> bool {
        debug_assert!(source.len() <= envelope.len);
        match self.take_match(host, &envelope) {
            MatchResult::Receive(op) => {
                envelope.arrival = self.matcher.next_arrival();
                host.deliver(op, &envelope, source);
                self.queue_ack(&envelope);
                return true;
            }
            MatchResult::Blocked => return self.decline(),
            MatchResult::NoReceive => {}
        }
        let lent = source.peer_memory();
        if !self.fits_budget(if lent.is_some() { 0 } else { envelope.len })
            && !self.is_probed(&envelope)
        {
            return self.decline();
        }
        let mut bytes = PooledBuf::empty(&self.pool);
        if lent.is_none() {
            if bytes.begin_fill(envelope.len).is_err() {
                return self.decline();
            }
            extend_from_source(&mut bytes, source);
        }
        envelope.arrival = self.matcher.next_arrival();
        self.add_unexpected(
            envelope,
            UnexpectedMessage {
                bytes,
                peer_memory: lent,
                partial: None,
            },
        );
        self.check_probes(host);
        true
    }

    /// As [`RxQueue::deliver`], of a message that has nothing but its bytes.
    #[inline]
    pub fn deliver_plain(
        &mut self,
        host: &mut dyn EngineContext,
        peer: PeerKey,
        source: Option<FiAddr>,
        bytes: &dyn CopySource,
    ) -> bool {
        let mut envelope = Envelope {
            peer,
            source,
            tag: None,
            len: bytes.len(),
            data: None,
            arrival: 0,
            ack: None,
        };
        if self.multi_recvs.is_empty()
            && let Some(op) = self.matcher.match_first(source)
        {
            self.posted[op.index as usize] = None;
            envelope.arrival = self.matcher.next_arrival();
            host.deliver(op, &envelope, bytes);
            return true;
        }
        self.deliver(host, envelope, bytes)
    }

    /// A message has to stay where it is.
    #[cold]
    fn decline(&self) -> bool {
        self.declined.set(true);
        false
    }

    /// Takes a receive back that no message has been matched to.
    pub fn cancel(&mut self, host: &mut dyn EngineContext, op: OpKey) -> bool {
        let queued = self.remove_posted(op);
        if queued && self.retire_multi(op) {
            self.match_unexpected(host);
        }
        let cancelled = queued || self.cancel_probe(op);
        if cancelled {
            self.request_rearm_if_work(host);
        }
        cancelled
    }

    /// Something was changed between passes: what is left for the next one must not be slept over.
    fn request_rearm_if_work(&self, host: &mut dyn EngineContext) {
        if self.has_work() {
            host.request_rearm();
        }
    }

    /// Nobody waits for this receive any more. A message that is arriving in it goes to the next
    /// receive that accepts it, or is buffered.
    pub fn detach(&mut self, host: &mut dyn EngineContext, op: OpKey) {
        if !self.remove_posted(op) {
            self.detach_partial(host, op);
        }
        self.request_rearm_if_work(host);
    }

    /// What is arriving in this receive is for others.
    fn detach_partial(&mut self, host: &mut dyn EngineContext, op: OpKey) {
        let Some(Filling { landing: id, .. }) = self.take_filling(op) else {
            return;
        };
        if let Some(at) = self
            .peer_copies
            .iter()
            .position(|(copied, _)| *copied == id)
            && let Some((_, memory)) = self.peer_copies.remove(at)
        {
            // It is all there still.
            let landing = self.partials.remove(id);
            let bytes = host.take_received(op, 0);
            return self.match_or_buffer(
                host,
                landing.envelope,
                UnexpectedMessage {
                    bytes,
                    peer_memory: Some(memory),
                    partial: None,
                },
            );
        }
        let Some(landing) = self.partials.get_mut(id) else {
            return;
        };
        let PartialTarget::Receive {
            written: placed, ..
        } = landing.target
        else {
            return;
        };
        // What did not fit into the abandoned buffer is gone. The message is shorter for whoever
        // gets it now, and its envelope, which keeps the full length, says so.
        landing.truncated = placed < landing.received;
        let bytes = host.take_received(op, placed);
        let envelope = landing.envelope.clone();
        self.match_or_buffer(
            host,
            envelope,
            UnexpectedMessage {
                bytes,
                peer_memory: None,
                partial: Some(id),
            },
        );
    }

    /// A message was received and not looked at. `source` is the number of its sender now; of one
    /// that is gone it is found here.
    pub fn requeue_message(
        &mut self,
        host: &mut dyn EngineContext,
        mut envelope: Envelope,
        source: Option<FiAddr>,
        bytes: PooledBuf,
    ) {
        let known = self.known_peers().find(|(key, _)| *key == envelope.peer);
        // An auto-inserted handle is the peer's own, whoever has its name now.
        let own = envelope
            .source
            .filter(|source| host.incarnation_of(self.ep, *source).is_some());
        envelope.source = source
            .or(own)
            .or_else(|| host.fi_addr_of(self.ep, known?.1));
        self.match_or_buffer(
            host,
            envelope,
            UnexpectedMessage {
                bytes,
                peer_memory: None,
                partial: None,
            },
        );
    }

    /// Whether some receive would take this message now, or there is room to buffer it.
    #[must_use]
    pub fn would_accept(&self, envelope: &Envelope) -> bool {
        let room = || self.fits_budget(envelope.len) || self.is_probed(envelope);
        let is_taken = if self.multi_recvs.is_empty() {
            room() || self.matcher.would_match(envelope)
        } else {
            self.matcher
                .find_receive(envelope)
                .map_or_else(room, |(_, op)| !self.is_blocked(op))
        };
        is_taken || self.decline()
    }

    /// Ends everything: posted receives complete as cancelled, waiting messages are discarded.
    pub fn close(&mut self, host: &mut dyn EngineContext) {
        for op in self.matcher.take_posted() {
            host.complete(op, Outcome::failed(Error::Canceled));
        }
        for Filling { op, .. } in std::mem::take(&mut self.partial_receives) {
            host.complete(op, Outcome::failed(Error::Canceled));
        }
        self.fail_probes(host, |_| Some(Error::Canceled));
        self.drop_claims();
        self.multi_recvs.clear();
        self.partials.clear();
        self.peer_copies.clear();
        self.unmapped_unexpected.clear();
        self.matcher.take_unexpected();
        self.connected_peers.clear();
        self.posted.clear();
        self.pending_acks.clear();
        self.budget_used = 0;
    }

    /// Messages that wait for a receive, and the bytes of the budget they use.
    #[must_use]
    pub fn unexpected(&self) -> (usize, usize) {
        (self.matcher.unexpected_len(), self.budget_used)
    }

    fn fits_budget(&self, len: usize) -> bool {
        len <= self.budget && self.budget_used + len + UNEXPECTED_OVERHEAD <= self.budget
    }

    /// A receive has no memory for the message that it took: the receive fails, and the message is
    /// discarded.
    #[cold]
    fn refuse(
        &mut self,
        host: &mut dyn EngineContext,
        op: OpKey,
        envelope: &Envelope,
        error: Error,
    ) {
        host.complete(op, Outcome::partial(Transfer::received(envelope, 0), error));
        self.queue_ack(envelope);
    }

    fn remove_posted(&mut self, op: OpKey) -> bool {
        let key = self
            .posted
            .get_mut(op.index as usize)
            .and_then(Option::take);
        key.is_some_and(|key| self.matcher.remove_posted(key).is_some())
    }

    fn add_unexpected(&mut self, envelope: Envelope, message: UnexpectedMessage) -> UnexpectedKey {
        self.budget_used += message.budget_cost(&envelope);
        let fleeting = message
            .is_unmapped()
            .then_some((envelope.arrival, envelope.len));
        let key = self.matcher.add_unexpected(envelope, message);
        if let Some((arrival, len)) = fleeting {
            self.add_unmapped(UnmappedUnexpected { arrival, key, len });
        }
        key
    }

    /// A message that some receive already had finds a new one, or its old place in the queue.
    fn match_or_buffer(
        &mut self,
        host: &mut dyn EngineContext,
        envelope: Envelope,
        message: UnexpectedMessage,
    ) {
        let landing = message.partial;
        if let MatchResult::Receive(receive) = self.take_match_multi(host, &envelope) {
            self.budget_used += message.budget_cost(&envelope);
            self.deliver_buffered(host, receive, envelope, message);
        } else {
            let key = self.add_unexpected(envelope, message);
            if let Some(landing) = landing.and_then(|id| self.partials.get_mut(id)) {
                landing.target = PartialTarget::Buffer(key);
            }
            self.check_probes(host);
        }
    }

    /// Gives a buffered message to a receive, of which is known what becomes of it if the message
    /// is lost before it is complete.
    fn deliver_buffered(
        &mut self,
        host: &mut dyn EngineContext,
        (op, on_loss): (OpKey, OnLoss),
        mut envelope: Envelope,
        message: UnexpectedMessage,
    ) {
        self.budget_used = self
            .budget_used
            .saturating_sub(message.budget_cost(&envelope));
        if message.is_unmapped() {
            self.remove_unmapped(envelope.arrival);
        }
        match message.partial {
            None if let Some(lent) = message.peer_memory => {
                self.receive_peer_memory(host, (op, on_loss), envelope, lent);
            }
            None => {
                let placed = host.give_buffered(op, message.bytes);
                host.complete(op, Outcome::received(&envelope, placed));
                self.queue_ack(&envelope);
            }
            Some(id) => {
                ack_match(&mut self.pending_acks, &mut envelope);
                let target = match host.adopt_partial(op, message.bytes, envelope.len) {
                    Ok((room, placed)) => {
                        self.partial_receives.push(Filling {
                            op,
                            landing: id,
                            on_loss,
                        });
                        PartialTarget::Receive {
                            op,
                            capacity: room,
                            written: placed,
                        }
                    }
                    Err(error) => {
                        self.refuse(host, op, &envelope, error);
                        PartialTarget::Discard
                    }
                };
                if let Some(landing) = self.partials.get_mut(id) {
                    landing.target = target;
                    landing.envelope.ack = envelope.ack;
                }
            }
        }
    }
}
