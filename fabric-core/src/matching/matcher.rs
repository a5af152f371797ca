//! Both sides of matching together, and how a call moves between them.

use std::fmt;

use crate::address::FiAddr;

use super::envelope::{Envelope, PeerKey, RecvSpec};
use super::posted::{PostKey, PostPlace, PostedQueue};
use super::unexpected::{UnexpectedKey, UnexpectedQueue};

/// The posted receives and the waiting messages of one endpoint.
///
/// `R` is the caller's name of a receive, small and `Copy`. `M` is whatever the caller keeps for a
/// message that waits: its bytes, or where they will come from.
///
/// An incoming message is offered to the posted receives ([`arrive`](Self::arrive)), and kept
/// ([`wait`](Self::wait)) if none takes it. A receive looks at what waits first, and queues if
/// nothing fits ([`post`](Self::post)). Used like this, no queued receive accepts any waiting
/// message at any time. A put-back message is offered in the same way: receives posted since it
/// matched may want it.
///
/// ```
/// use fabric_core::matching::{Envelope, Matcher, PeerKey, Posted, RecvSpec, TagMatch};
///
/// let mut matcher: Matcher<&str, &[u8]> = Matcher::new();
/// let tagged = |tag| RecvSpec { from: None, tag: Some(TagMatch { tag, ignore: 0 }) };
/// let arrival = matcher.next_arrival();
/// let hello = Envelope { peer: PeerKey(0), source: None, tag: Some(7), len: 5, data: None, arrival, receipt: None };
///
/// assert!(matches!(matcher.post(tagged(8), "first"), Posted::Queued(_)));
/// assert_eq!(matcher.arrive(&hello), None);
/// matcher.wait(hello, b"hello");
/// assert!(matches!(matcher.post(tagged(7), "second"), Posted::Matched(_, b"hello")));
/// assert_eq!((matcher.posted_len(), matcher.waiting_len()), (1, 0));
/// ```
pub struct Matcher<R, M> {
    posted: PostedQueue<R>,
    unexpected: UnexpectedQueue<M>,
    next_arrival: u64,
}

/// What became of a receive when it was posted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a matched message is only here"]
pub enum RecvPostResult<M> {
    /// Nothing fitting was there; the receive is queued under this key.
    Queued(PostKey),
    /// This message was waiting. It left the queue, and the receive was never on one.
    Matched(Envelope, M),
}

impl<R: Copy, M> Matcher<R, M> {
    /// A matcher with nothing posted and nothing waiting. Allocates nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            posted: PostedQueue::new(),
            unexpected: UnexpectedQueue::new(),
            next_arrival: 0,
        }
    }

    /// The next arrival number: 0, 1, 2 and so on. A message keeps its number when it is put back.
    #[inline]
    pub fn next_arrival(&mut self) -> u64 {
        let arrival = self.next_arrival;
        self.next_arrival += 1;
        arrival
    }

    /// A message arrives: takes the earliest posted receive that accepts it off the queue.
    ///
    /// `None` leaves everything as it was; the message may then be kept with [`wait`](Self::wait).
    /// Messages that already wait are not looked at. Linear in the receives in front of the match.
    #[must_use = "the receive is off the queue"]
    pub fn match_message(&mut self, envelope: &Envelope) -> Option<R> {
        self.posted.take_match(envelope)
    }

    /// As [`arrive`](Self::arrive), for an untagged message of this source. Looks at the first
    /// receive only: `None` says nothing. O(1).
    #[must_use = "the receive is off the queue"]
    #[inline]
    pub fn match_first(&mut self, source: Option<FiAddr>) -> Option<R> {
        self.posted.take_first(source)
    }

    /// Whether [`arrive`](Self::arrive) would find a receive, without taking it off. Same cost.
    #[must_use]
    pub fn would_match(&self, envelope: &Envelope) -> bool {
        self.posted.would_match(envelope)
    }

    /// The receive that [`arrive`](Self::arrive) would find, which stays posted. Same cost.
    #[must_use]
    pub fn find_receive(&self, envelope: &Envelope) -> Option<(PostKey, R)> {
        self.posted.find(envelope)
    }

    /// Keeps a message nobody accepted, at the place its `arrival` gives it.
    ///
    /// A new message goes to the end, O(1). One that is put back with an older number goes to its
    /// old place, linear in the older messages of its kind that wait, so O(1) for the oldest. Among
    /// equal numbers the one kept first is first. Posted receives are not looked at: ask
    /// [`arrive`](Self::arrive) before. The source is taken as the envelope states it: of a message
    /// that was out for a while, bring it up to date.
    pub fn add_unexpected(&mut self, envelope: Envelope, message: M) -> UnexpectedKey {
        self.unexpected.insert(envelope, message)
    }

    /// Posts a receive: takes the earliest waiting message that it accepts, or else queues the
    /// receive.
    ///
    /// Linear in the waiting messages in front of the match.
    #[inline(always)] // on the way of a small message
    pub fn post(&mut self, spec: RecvSpec, receive: R) -> RecvPostResult<M> {
        match self.unexpected.take_match(&spec) {
            Some((envelope, message)) => RecvPostResult::Matched(envelope, message),
            None => RecvPostResult::Queued(self.posted.push(&spec, receive)),
        }
    }

    /// Queues a receive without looking at what waits: for one that takes several messages, or that
    /// must stand behind one which does. [`unexpected_for`](Self::waiting_for) says what it gets.
    pub fn queue(&mut self, spec: RecvSpec, receive: R) -> PostKey {
        self.posted.push(&spec, receive)
    }

    /// The earliest waiting message that falls to this posted receive: no receive posted before it
    /// accepts it too.
    ///
    /// Searches the receives once for each waiting message that this one accepts.
    #[must_use]
    pub fn unexpected_for(
        &self,
        spec: &RecvSpec,
        key: PostKey,
    ) -> Option<(UnexpectedKey, &Envelope)> {
        self.unexpected.find(spec, |envelope| {
            self.posted
                .find(envelope)
                .is_some_and(|(first, _)| first == key)
        })
    }

    /// The earliest waiting message that this would accept and that falls to no posted receive.
    ///
    /// Searches the receives once for each waiting message that this would accept.
    #[must_use]
    pub fn unclaimed(&self, spec: &RecvSpec) -> Option<(UnexpectedKey, &Envelope)> {
        self.unexpected
            .find(spec, |envelope| !self.posted.would_match(envelope))
    }

    /// The place in posting order of a queued receive. `None` when it is no longer queued. O(1).
    #[must_use]
    pub fn place(&self, key: PostKey) -> Option<PostPlace> {
        self.posted.place(key)
    }

    /// The place in posting order of a receive that is posted now and has a message already: behind
    /// all that were posted before, in front of all that are posted later. O(1).
    pub fn take_place(&mut self, spec: &RecvSpec) -> PostPlace {
        self.posted.take_place(spec)
    }

    /// Queues a receive again that had matched a message which is lost: at its place in posting
    /// order. The earliest waiting message that falls to it is returned, still waiting.
    ///
    /// Linear in the receives, and in the waiting messages as
    /// [`unexpected_for`](Self::waiting_for).
    pub fn restore(&mut self, place: PostPlace, receive: R) -> (PostKey, Option<UnexpectedKey>) {
        let key = self.posted.restore(place, receive);
        let falls_to_it = |envelope: &Envelope| {
            self.posted
                .find(envelope)
                .is_some_and(|(first, _)| first == key)
        };
        (key, self.unexpected.find_at(&place, falls_to_it))
    }

    /// Takes back a posted receive. `None` when it is no longer queued: matched, withdrawn or
    /// taken. O(1).
    pub fn remove_posted(&mut self, key: PostKey) -> Option<R> {
        self.posted.remove(key)
    }

    /// What a waiting message shows. `None` when it is no longer there. O(1).
    #[must_use]
    pub fn message(&self, key: UnexpectedKey) -> Option<&Envelope> {
        self.unexpected.get(key)
    }

    /// Everything that waits, in arrival order. Reads all that waits.
    #[must_use]
    pub fn unexpected_keys(&self) -> Vec<UnexpectedKey> {
        self.unexpected.keys()
    }

    /// A waiting message in its place, to add to it while it waits. `None` when it is no longer
    /// there. O(1).
    pub fn message_mut(&mut self, key: UnexpectedKey) -> Option<(&Envelope, &mut M)> {
        self.unexpected.get_mut(key)
    }

    /// Takes a waiting message out (a claim, a discard). `None` when it is no longer there. O(1).
    pub fn take_message(&mut self, key: UnexpectedKey) -> Option<(Envelope, M)> {
        self.unexpected.take(key)
    }

    /// Takes every waiting message out of which this is true, tagged and untagged together. Reads
    /// all that waits.
    pub fn take_where(&mut self, which: impl FnMut(&Envelope, &M) -> bool) -> Vec<(Envelope, M)> {
        self.unexpected.take_where(which)
    }

    /// The message that [`post`](Self::post) would take for this receive; it keeps waiting. Same
    /// cost.
    #[doc(alias = "FI_PEEK")]
    #[must_use]
    pub fn peek(&self, spec: &RecvSpec) -> Option<&Envelope> {
        self.unexpected.peek(spec)
    }

    /// An address was inserted: messages that wait without a source, of the peer that is known by
    /// these keys, now have this one.
    ///
    /// Each of them, the earliest arrived first, is offered to the posted receives. Those that
    /// match leave both queues and are returned in arrival order, with the new source in the
    /// envelope. Messages that have a source already keep it. Reads all that waits, and searches
    /// the receives once for each message of the peer.
    #[must_use = "the matched messages are only here"]
    pub fn assign_source_and_match(
        &mut self,
        peers: &[PeerKey],
        source: FiAddr,
    ) -> Vec<(R, Envelope, M)> {
        let mut matched = Vec::new();
        for key in self.assign_source(peers, source) {
            let Some(receive) = self
                .unexpected
                .get(key)
                .and_then(|envelope| self.posted.take_match(envelope))
            else {
                continue;
            };
            matched.extend(
                self.unexpected
                    .take(key)
                    .map(|(envelope, message)| (receive, envelope, message)),
            );
        }
        matched
    }

    /// As [`resolve`](Self::resolve), but offers the messages to nobody: returns which they are, in
    /// arrival order.
    #[must_use = "posted receives may want them"]
    pub fn assign_source(&mut self, peers: &[PeerKey], source: FiAddr) -> Vec<UnexpectedKey> {
        self.unexpected.assign_source(peers, source)
    }

    /// An address was removed: messages that wait with this source are from an unknown sender
    /// again.
    ///
    /// They stay in place, for receives from anybody: removing an address does not stop its traffic
    /// (`fi_av(3)`). Posted receives are left alone; see [`take_directed`](Self::take_directed).
    /// Reads all that waits.
    pub fn clear_source(&mut self, source: FiAddr) {
        self.unexpected.clear_source(source);
    }

    /// Whether a message from this source waits. Reads what waits in front of the first.
    #[must_use]
    pub fn holds_messages_from(&self, source: FiAddr) -> bool {
        self.unexpected.holds_messages_from(source)
    }

    /// Takes every posted receive that names this source (its peer died), in posting order. Reads
    /// all receives.
    pub fn take_directed(&mut self, source: FiAddr) -> Vec<R> {
        self.posted.take_directed(source)
    }

    /// Takes all posted receives, in posting order, tagged and untagged together.
    pub fn take_posted(&mut self) -> Vec<R> {
        self.posted.take_all()
    }

    /// Takes all waiting messages, in arrival order, tagged and untagged together.
    pub fn take_unexpected(&mut self) -> Vec<(Envelope, M)> {
        self.unexpected.take_all()
    }

    /// How many receives are posted, of both kinds. O(1).
    #[must_use]
    pub fn posted_len(&self) -> usize {
        self.posted.len()
    }

    /// How many messages wait, of both kinds. O(1).
    #[must_use]
    pub fn unexpected_len(&self) -> usize {
        self.unexpected.len()
    }
}

impl<R: Copy, M> Default for Matcher<R, M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<R: Copy, M> fmt::Debug for Matcher<R, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Matcher")
            .field("posted", &self.posted_len())
            .field("waiting", &self.unexpected_len())
            .field("next_arrival", &self.next_arrival)
            .finish()
    }
}
