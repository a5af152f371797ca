//! The receive context of an endpoint: matching, and where the bytes of a message go.
//!
//! A message arrives whole ([`RxContext::deliver`]) or piece by piece ([`RxContext::begin`],
//! [`RxContext::land`]). Its bytes go straight into the receive that takes it. If no receive does,
//! it is buffered, within a budget; over the budget the context declines it, and the provider
//! leaves it where it is and holds the sender back.
//!
//! Nothing is ever dropped: a receive that is abandoned after its match gives the message back, at
//! its old place.
//!
//! Pieces are the subject of `landing`; messages that are lost midway, of `lost`; messages in
//! memory of the sender's, of `lent`; senders that come and go, of `peers`; what senders wait to
//! hear of, of `receipts`; contexts that several endpoints share, of `shared`.

mod claim;
mod landing;
mod lent;
mod lost;
mod multi;
mod peers;
mod receipts;
mod shared;
mod side;

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

use slab::Slab;

use crate::address::{Address, FiAddr};
use crate::buf::{LentMemory, Pool, PooledBuf, Source};
use crate::completion::{Outcome, Transfer};
use crate::error::Error;
use crate::matching::{Envelope, Matcher, PeerKey, PostKey, Posted, RecvSpec, WaitKey};
use crate::provider::{EpId, Host, OpKey};

use claim::Claims;
use landing::{Landing, Target, append};
use lent::Fleeting;
use lost::{Filling, OnLoss};
use multi::{Match, Multi};
use receipts::confirm_match;

pub use claim::ClaimId;
pub use landing::LandingId;
pub use shared::SharedContext;
pub use side::{ReceiveSide, Receiving};

/// What a buffered message costs beyond its bytes.
const OVERHEAD: usize = 128;

/// The receive side of one endpoint, or of those that share it.
pub struct RxContext {
    ep: EpId,
    matcher: Matcher<OpKey, Unexpected>,
    /// Where each posted operation is queued, by its index.
    posted: Vec<Option<PostKey>>,
    /// Those of them that take several messages each.
    multis: Vec<Multi>,
    asked: Claims,
    landings: Slab<Landing>,
    /// The receives in which messages are arriving: few at a time, so a list.
    filling: Vec<Filling>,
    /// Peers that are gone: messages of theirs may still wait, or come back.
    gone: VecDeque<(PeerKey, Address)>,
    /// Peers that are connected, where endpoints share the context, and to which of them: otherwise
    /// its endpoint knows.
    present: Vec<(PeerKey, Address, EpId)>,
    /// A message was declined since somebody asked.
    declined: Cell<bool>,
    /// Lent messages that are being copied, and the landings they are copied to.
    copying: VecDeque<(usize, Arc<dyn LentMemory>)>,
    /// Messages that wait in memory which is not mapped here, and fit into the budget.
    fleeting: Vec<Fleeting>,
    /// One of those was discarded, which its sender is to be told.
    let_go: bool,
    /// What senders are to be told: which peer, and which number.
    receipts: Vec<(PeerKey, u32)>,
    budget: usize,
    used: usize,
    pool: Arc<Pool>,
}

/// A message no receive has taken yet.
struct Unexpected {
    bytes: PooledBuf,
    /// The bytes lie in memory of the sender's instead.
    lent: Option<Arc<dyn LentMemory>>,
    /// Set while the rest of it is still arriving.
    landing: Option<usize>,
}

impl std::fmt::Debug for Unexpected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lent = self.lent.is_some();
        write!(
            f,
            "Unexpected({} bytes, landing {:?}, lent {lent})",
            self.bytes.len(),
            self.landing
        )
    }
}

impl std::fmt::Debug for RxContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (messages, bytes) = self.unexpected();
        write!(
            f,
            "RxContext({messages} unexpected messages of {bytes} bytes)"
        )
    }
}

impl Unexpected {
    /// Whether all of it is here.
    fn is_whole(&self) -> bool {
        self.landing.is_none() && self.lent.is_none()
    }

    /// What it uses of the budget. Memory of the sender's costs nothing here.
    fn cost(&self, envelope: &Envelope) -> usize {
        if self.lent.is_some() {
            OVERHEAD
        } else {
            envelope.len + OVERHEAD
        }
    }
}

impl RxContext {
    /// The context of an endpoint, which buffers at most `budget` bytes of unexpected messages.
    #[must_use]
    pub fn new(ep: EpId, budget: usize, pool: Arc<Pool>) -> Self {
        Self {
            ep,
            matcher: Matcher::new(),
            posted: Vec::new(),
            multis: Vec::new(),
            asked: Claims::default(),
            landings: Slab::new(),
            filling: Vec::new(),
            gone: VecDeque::new(),
            present: Vec::new(),
            declined: Cell::new(false),
            copying: VecDeque::new(),
            fleeting: Vec::new(),
            let_go: false,
            receipts: Vec::new(),
            budget,
            used: 0,
            pool,
        }
    }

    /// Posts a receive; a message that waits for it is given to it at once.
    #[inline(always)] // on the way of a small message
    pub fn post(&mut self, host: &mut dyn Host, op: OpKey, spec: RecvSpec) {
        if !self.multis.is_empty() {
            return self.post_behind(host, op, spec);
        }
        match self.matcher.post(spec, op) {
            Posted::Queued(key) => self.queued(host, op, spec, key),
            Posted::Matched(envelope, message) => {
                let on_loss = if message.is_whole() {
                    OnLoss::Fail
                } else {
                    OnLoss::of(self.matcher.take_place(&spec))
                };
                self.give(host, (op, on_loss), envelope, message);
            }
        }
    }

    /// A receive has found nothing that waits.
    #[inline(always)] // on the way of a small message
    fn queued(&mut self, host: &mut dyn Host, op: OpKey, spec: RecvSpec, key: PostKey) {
        if let Some(from) = spec.from
            && let Some(peer) = host.leaving(from)
        {
            self.matcher.withdraw(key);
            return host.complete(op, Outcome::failed(Error::PeerGone(peer)));
        }
        self.note(op, key);
    }

    /// Notes where an operation is queued.
    #[inline]
    fn note(&mut self, op: OpKey, key: PostKey) {
        let index = op.index as usize;
        if index >= self.posted.len() {
            self.posted.resize(index + 1, None);
        }
        self.posted[index] = Some(key);
    }

    /// The receive that takes this message, off the queue.
    #[inline(always)] // on the way of a small message
    fn matched(&mut self, host: &mut dyn Host, envelope: &Envelope) -> Match {
        if !self.multis.is_empty() {
            return match self.matched_among(host, envelope) {
                Match::Receive((op, _)) => Match::Receive(op),
                Match::Held => Match::Held,
                Match::Nobody => Match::Nobody,
            };
        }
        match self.matcher.arrive(envelope) {
            Some(op) => {
                self.posted[op.index as usize] = None;
                Match::Receive(op)
            }
            None => Match::Nobody,
        }
    }

    /// Whether any receive is posted.
    #[must_use]
    #[inline]
    pub fn has_receives(&self) -> bool {
        self.matcher.posted_len() > 0 || !self.multis.is_empty()
    }

    /// A whole message arrives. False: nobody wants it and there is no room, so it must stay where
    /// it is.
    ///
    /// `source` may end before the message does, of which the envelope tells the length: then the
    /// rest is lost, and what there is must be as much as the endpoint receives at all.
    pub fn deliver(
        &mut self,
        host: &mut dyn Host,
        mut envelope: Envelope,
        source: &dyn Source,
    ) -> bool {
        debug_assert!(source.len() <= envelope.len);
        match self.matched(host, &envelope) {
            Match::Receive(op) => {
                envelope.arrival = self.matcher.next_arrival();
                host.deliver(op, &envelope, source);
                self.owe_receipt(&envelope);
                return true;
            }
            Match::Held => return self.decline(),
            Match::Nobody => {}
        }
        let lent = source.lent();
        if !self.admits(if lent.is_some() { 0 } else { envelope.len }) && !self.is_sought(&envelope)
        {
            return self.decline();
        }
        let mut bytes = PooledBuf::empty(&self.pool);
        if lent.is_none() {
            if bytes.expect(envelope.len).is_err() {
                return self.decline();
            }
            append(&mut bytes, source);
        }
        envelope.arrival = self.matcher.next_arrival();
        self.keep(
            envelope,
            Unexpected {
                bytes,
                lent,
                landing: None,
            },
        );
        self.noticed(host);
        true
    }

    /// As [`RxContext::deliver`], of a message that has nothing but its bytes.
    #[inline]
    pub fn deliver_plain(
        &mut self,
        host: &mut dyn Host,
        peer: PeerKey,
        source: Option<FiAddr>,
        bytes: &dyn Source,
    ) -> bool {
        let mut envelope = Envelope {
            peer,
            source,
            tag: None,
            len: bytes.len(),
            data: None,
            arrival: 0,
            receipt: None,
        };
        if self.multis.is_empty()
            && let Some(op) = self.matcher.arrive_first(source)
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
    pub fn cancel(&mut self, host: &mut dyn Host, op: OpKey) -> bool {
        let queued = self.unqueue(op);
        if queued && self.retire(op) {
            self.rematch(host);
        }
        let cancelled = queued || self.unprobe(op);
        if cancelled {
            self.tell_of_chores(host);
        }
        cancelled
    }

    /// Something was changed between passes: what is left for the next one must not be slept over.
    fn tell_of_chores(&self, host: &mut dyn Host) {
        if self.has_chores() {
            host.unsettled();
        }
    }

    /// Nobody waits for this receive any more. A message that is arriving in it goes to the next
    /// receive that accepts it, or is buffered.
    pub fn abandon(&mut self, host: &mut dyn Host, op: OpKey) {
        if !self.unqueue(op) {
            self.pass_on(host, op);
        }
        self.tell_of_chores(host);
    }

    /// What is arriving in this receive is for others.
    fn pass_on(&mut self, host: &mut dyn Host, op: OpKey) {
        let Some(Filling { landing: id, .. }) = self.take_filling(op) else {
            return;
        };
        if let Some(at) = self.copying.iter().position(|(copied, _)| *copied == id)
            && let Some((_, memory)) = self.copying.remove(at)
        {
            // It is all there still.
            let landing = self.landings.remove(id);
            let bytes = host.reclaim(op, 0);
            return self.settle(
                host,
                landing.envelope,
                Unexpected {
                    bytes,
                    lent: Some(memory),
                    landing: None,
                },
            );
        }
        let Some(landing) = self.landings.get_mut(id) else {
            return;
        };
        let Target::Receive { placed, .. } = landing.target else {
            return;
        };
        // What did not fit into the abandoned buffer is gone. The message is shorter for whoever
        // gets it now, and its envelope, which keeps the full length, says so.
        landing.cut = placed < landing.arrived;
        let bytes = host.reclaim(op, placed);
        let envelope = landing.envelope.clone();
        self.settle(
            host,
            envelope,
            Unexpected {
                bytes,
                lent: None,
                landing: Some(id),
            },
        );
    }

    /// A message was received and not looked at. `source` is the number of its sender now; of one
    /// that is gone it is found here.
    pub fn put_back(
        &mut self,
        host: &mut dyn Host,
        mut envelope: Envelope,
        source: Option<FiAddr>,
        bytes: PooledBuf,
    ) {
        let known = self.known().find(|(key, _)| *key == envelope.peer);
        // An auto-inserted handle is the peer's own, whoever has its name now.
        let own = envelope
            .source
            .filter(|source| host.incarnation_of(self.ep, *source).is_some());
        envelope.source = source.or(own).or_else(|| host.number_of(self.ep, known?.1));
        self.settle(
            host,
            envelope,
            Unexpected {
                bytes,
                lent: None,
                landing: None,
            },
        );
    }

    /// Whether some receive would take this message now, or there is room to buffer it.
    #[must_use]
    pub fn would_take(&self, envelope: &Envelope) -> bool {
        let room = || self.admits(envelope.len) || self.is_sought(envelope);
        let is_taken = if self.multis.is_empty() {
            room() || self.matcher.would_match(envelope)
        } else {
            self.matcher
                .find(envelope)
                .map_or_else(room, |(_, op)| !self.is_held(op))
        };
        is_taken || self.decline()
    }

    /// Ends everything: posted receives complete as cancelled, waiting messages are discarded.
    pub fn close(&mut self, host: &mut dyn Host) {
        for op in self.matcher.take_posted() {
            host.complete(op, Outcome::failed(Error::Canceled));
        }
        for Filling { op, .. } in std::mem::take(&mut self.filling) {
            host.complete(op, Outcome::failed(Error::Canceled));
        }
        self.fail_probes(host, |_| Some(Error::Canceled));
        self.drop_claims();
        self.multis.clear();
        self.landings.clear();
        self.copying.clear();
        self.fleeting.clear();
        self.matcher.take_waiting();
        self.present.clear();
        self.posted.clear();
        self.receipts.clear();
        self.used = 0;
    }

    /// Messages that wait for a receive, and the bytes of the budget they use.
    #[must_use]
    pub fn unexpected(&self) -> (usize, usize) {
        (self.matcher.waiting_len(), self.used)
    }

    fn admits(&self, len: usize) -> bool {
        len <= self.budget && self.used + len + OVERHEAD <= self.budget
    }

    /// A receive has no memory for the message that it took: the receive fails, and the message is
    /// discarded.
    #[cold]
    fn refuse(&mut self, host: &mut dyn Host, op: OpKey, envelope: &Envelope, error: Error) {
        host.complete(op, Outcome::cut(Transfer::received(envelope, 0), error));
        self.owe_receipt(envelope);
    }

    fn unqueue(&mut self, op: OpKey) -> bool {
        let key = self
            .posted
            .get_mut(op.index as usize)
            .and_then(Option::take);
        key.is_some_and(|key| self.matcher.withdraw(key).is_some())
    }

    fn keep(&mut self, envelope: Envelope, message: Unexpected) -> WaitKey {
        self.used += message.cost(&envelope);
        let fleeting = message
            .is_fleeting()
            .then_some((envelope.arrival, envelope.len));
        let key = self.matcher.wait(envelope, message);
        if let Some((arrival, len)) = fleeting {
            self.note_fleeting(Fleeting { arrival, key, len });
        }
        key
    }

    /// A message that some receive already had finds a new one, or its old place in the queue.
    fn settle(&mut self, host: &mut dyn Host, envelope: Envelope, message: Unexpected) {
        let landing = message.landing;
        if let Match::Receive(receive) = self.matched_among(host, &envelope) {
            self.used += message.cost(&envelope);
            self.give(host, receive, envelope, message);
        } else {
            let key = self.keep(envelope, message);
            if let Some(landing) = landing.and_then(|id| self.landings.get_mut(id)) {
                landing.target = Target::Buffer(key);
            }
            self.noticed(host);
        }
    }

    /// Gives a buffered message to a receive, of which is known what becomes of it if the message
    /// is lost before it is complete.
    fn give(
        &mut self,
        host: &mut dyn Host,
        (op, on_loss): (OpKey, OnLoss),
        mut envelope: Envelope,
        message: Unexpected,
    ) {
        self.used = self.used.saturating_sub(message.cost(&envelope));
        if message.is_fleeting() {
            self.unnote(envelope.arrival);
        }
        match message.landing {
            None if let Some(lent) = message.lent => {
                self.share(host, (op, on_loss), envelope, lent);
            }
            None => {
                let placed = host.adopt(op, message.bytes);
                host.complete(op, Outcome::received(&envelope, placed));
                self.owe_receipt(&envelope);
            }
            Some(id) => {
                confirm_match(&mut self.receipts, &mut envelope);
                let target = match host.adopt_partial(op, message.bytes, envelope.len) {
                    Ok((room, placed)) => {
                        self.filling.push(Filling {
                            op,
                            landing: id,
                            on_loss,
                        });
                        Target::Receive { op, room, placed }
                    }
                    Err(error) => {
                        self.refuse(host, op, &envelope, error);
                        Target::Nobody
                    }
                };
                if let Some(landing) = self.landings.get_mut(id) {
                    landing.target = target;
                    landing.envelope.receipt = envelope.receipt;
                }
            }
        }
    }
}
