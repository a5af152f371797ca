//! The matcher: posted receives and unexpected messages together.

use std::fmt;

use crate::address::FiAddr;

use super::envelope::{Envelope, PeerKey, RecvSpec};
use super::posted::{PostKey, PostPlace, PostedQueue};
use super::unexpected::{UnexpectedKey, UnexpectedQueue};

/// The posted receives and the unexpected messages of one endpoint.
///
/// `R` is the caller's id of a receive, small and `Copy`. `M` holds the bytes of an unexpected
/// message, or their location.
///
/// An incoming message is offered to the posted receives ([`match_message`](Self::match_message)),
/// and queued as unexpected ([`add_unexpected`](Self::add_unexpected)) if no receive accepts it. A
/// receive is compared with the unexpected messages first, and queued if none matches
/// ([`post`](Self::post)). A caller that keeps to both rules never has a queued receive that
/// accepts a queued message. A requeued message is offered like an incoming one, because a receive
/// that was posted after the first match may accept it.
///
/// ```
/// use fabric_core::matching::{Envelope, Matcher, PeerKey, RecvPostResult, RecvSpec, TagMatch};
///
/// let mut matcher: Matcher<&str, &[u8]> = Matcher::new();
/// let tagged = |tag| RecvSpec { from: None, tag: Some(TagMatch { tag, ignore: 0 }) };
/// let arrival = matcher.next_arrival();
/// let (peer, tag) = (PeerKey(0), Some(7));
/// let hello = Envelope { peer, source: None, tag, len: 5, data: None, arrival, ack: None };
///
/// assert!(matches!(matcher.post(tagged(8), "first"), RecvPostResult::Queued(_)));
/// assert_eq!(matcher.match_message(&hello), None);
/// matcher.add_unexpected(hello, b"hello");
/// let second = matcher.post(tagged(7), "second");
/// assert!(matches!(second, RecvPostResult::Matched(_, b"hello")));
/// assert_eq!((matcher.posted_len(), matcher.unexpected_len()), (1, 0));
/// ```
pub struct Matcher<R, M> {
    posted: PostedQueue<R>,
    unexpected: UnexpectedQueue<M>,
    next_arrival: u64,
}

/// The result of posting a receive.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a matched message is lost if dropped"]
pub enum RecvPostResult<M> {
    /// No message matched; the receive is queued under this key.
    Queued(PostKey),
    /// This unexpected message matched. It left the queue, and the receive was never queued.
    Matched(Envelope, M),
}

impl<R: Copy, M> Matcher<R, M> {
    /// Creates an empty matcher. Allocates nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            posted: PostedQueue::new(),
            unexpected: UnexpectedQueue::new(),
            next_arrival: 0,
        }
    }

    /// Returns the next arrival number: 0, 1, 2 and so on. A message keeps its number when it is
    /// requeued.
    #[inline]
    pub fn next_arrival(&mut self) -> u64 {
        let arrival = self.next_arrival;
        self.next_arrival += 1;
        arrival
    }

    /// Returns the number that [`next_arrival`](Self::next_arrival) will return.
    #[must_use]
    #[inline]
    pub fn peek_arrival(&self) -> u64 {
        self.next_arrival
    }

    /// Returns a number that grows with each receive that is queued, apart from those that are
    /// [restored](Self::restore).
    #[must_use]
    #[inline]
    pub fn post_serial(&self) -> u64 {
        self.posted.serial()
    }

    /// Takes the earliest posted receive that accepts an arriving message.
    ///
    /// `None` changes nothing; the caller may then queue the message with
    /// [`add_unexpected`](Self::add_unexpected). Unexpected messages are not considered. O(1) if
    /// the first receive matches, else logarithmic in the number of receives, amortized.
    #[must_use = "the receive was removed from the queue"]
    pub fn match_message(&mut self, envelope: &Envelope) -> Option<R> {
        self.posted.take_match(envelope)
    }

    /// As [`match_message`](Self::match_message), for an untagged message of this source. Compares
    /// the first receive only: after `None` another receive may match. O(1).
    #[inline]
    pub fn peek_first(&mut self, source: Option<FiAddr>) -> Option<R> {
        self.posted.peek_first(source)
    }

    /// Takes the receive that [`peek_first`](Self::peek_first) has returned. O(1).
    #[inline]
    pub fn take_first(&mut self) {
        self.posted.take_first();
    }

    /// Returns whether [`match_message`](Self::match_message) would find a receive, without taking
    /// it. Same cost.
    #[must_use]
    pub fn would_match(&mut self, envelope: &Envelope) -> bool {
        self.posted.would_match(envelope)
    }

    /// Returns the receive that [`match_message`](Self::match_message) would take; it stays posted.
    /// Same cost.
    #[must_use]
    pub fn find_receive(&mut self, envelope: &Envelope) -> Option<(PostKey, R)> {
        self.posted.find(envelope)
    }

    /// Queues a message that no receive accepted, at the place that its `arrival` number gives it.
    ///
    /// A new message goes to the end, O(1). A requeued one with an older number goes to its old
    /// place: O(1) for the oldest, else logarithmic, amortized. Among equal numbers the one queued
    /// first is first. Posted receives are not considered: call
    /// [`match_message`](Self::match_message) before. The envelope's source is not checked: update
    /// the source of a requeued message before this call.
    pub fn add_unexpected(&mut self, envelope: Envelope, message: M) -> UnexpectedKey {
        self.unexpected.insert(envelope, message)
    }

    /// Posts a receive: takes the earliest unexpected message that it accepts, or else queues the
    /// receive.
    ///
    /// O(1) if the first message matches or there is none, else logarithmic in the number of
    /// messages, amortized.
    #[inline(always)] // on the fast path of small messages
    pub fn post(&mut self, spec: RecvSpec, receive: R) -> RecvPostResult<M> {
        match self.unexpected.take_match(&spec) {
            Some((envelope, message)) => RecvPostResult::Matched(envelope, message),
            None => RecvPostResult::Queued(self.posted.push(&spec, receive)),
        }
    }

    /// Queues a receive without considering unexpected messages: for a multi-receive, or a receive
    /// posted behind a multi-receive. [`unexpected_for`](Self::unexpected_for) returns the messages
    /// for the receive.
    #[inline(always)] // on the fast path of small messages
    pub fn queue(&mut self, spec: RecvSpec, receive: R) -> PostKey {
        self.posted.push(&spec, receive)
    }

    /// Returns the earliest unexpected message for this posted receive: one that it accepts, and
    /// that no receive posted before it accepts.
    ///
    /// Searches the receives once for each unexpected message that this receive accepts.
    #[must_use]
    pub fn unexpected_for(
        &mut self,
        spec: &RecvSpec,
        key: PostKey,
    ) -> Option<(UnexpectedKey, &Envelope)> {
        self.unexpected.find(spec, |envelope| {
            self.posted
                .find(envelope)
                .is_some_and(|(first, _)| first == key)
        })
    }

    /// Returns the earliest unexpected message that a receive with this spec would accept and that
    /// no posted receive accepts.
    ///
    /// Searches the receives once for each unexpected message that the spec accepts.
    #[must_use]
    pub fn unexpected_for_new(&mut self, spec: &RecvSpec) -> Option<(UnexpectedKey, &Envelope)> {
        self.unexpected
            .find(spec, |envelope| !self.posted.would_match(envelope))
    }

    /// Returns the place in posting order of a queued receive. `None` when it is no longer queued.
    /// Logarithmic.
    #[must_use]
    pub fn place(&self, key: PostKey) -> Option<PostPlace> {
        self.posted.place(key)
    }

    /// Assigns a place in posting order to a receive that is posted now and has a message already:
    /// behind all receives posted before, in front of all posted later. O(1).
    pub fn assign_place(&mut self, spec: &RecvSpec) -> PostPlace {
        self.posted.assign_place(spec)
    }

    /// Queues a receive again whose matched message was lost, at its old place in posting order.
    /// Returns the earliest unexpected message for it, which stays queued.
    ///
    /// Logarithmic, apart from the copy of the receives behind the place when no entry is vacant
    /// there; searches the unexpected messages as [`unexpected_for`](Self::unexpected_for).
    pub fn restore(&mut self, place: PostPlace, receive: R) -> (PostKey, Option<UnexpectedKey>) {
        let key = self.posted.restore(place, receive);
        let is_first_match = |envelope: &Envelope| {
            self.posted
                .find(envelope)
                .is_some_and(|(first, _)| first == key)
        };
        (key, self.unexpected.find_for_place(&place, is_first_match))
    }

    /// Returns the earliest unexpected message that a receive with this place accepts, that no
    /// posted receive accepts, and that passes the test.
    #[must_use]
    pub fn unexpected_for_place(
        &mut self,
        place: &PostPlace,
        test: impl Fn(&Envelope) -> bool,
    ) -> Option<UnexpectedKey> {
        let is_free = |envelope: &Envelope| test(envelope) && !self.posted.would_match(envelope);
        self.unexpected.find_for_place(place, is_free)
    }

    /// Removes a posted receive. `None` when it is no longer queued: matched, canceled or taken.
    /// Logarithmic, amortized.
    pub fn remove_posted(&mut self, key: PostKey) -> Option<R> {
        self.posted.remove(key)
    }

    /// Returns the envelope of an unexpected message. `None` when it is no longer queued. O(1).
    #[must_use]
    pub fn message(&self, key: UnexpectedKey) -> Option<&Envelope> {
        self.unexpected.get(key)
    }

    /// Returns the keys of all unexpected messages, in arrival order. Reads all of them.
    #[must_use]
    pub fn unexpected_keys(&self) -> Vec<UnexpectedKey> {
        self.unexpected.keys()
    }

    /// Returns an unexpected message for modification while it stays queued. `None` when it is no
    /// longer queued. O(1).
    pub fn message_mut(&mut self, key: UnexpectedKey) -> Option<(&Envelope, &mut M)> {
        self.unexpected.get_mut(key)
    }

    /// Removes and returns an unexpected message. `None` when it is no longer queued. O(1), or
    /// logarithmic in a long queue.
    pub fn take_message(&mut self, key: UnexpectedKey) -> Option<(Envelope, M)> {
        self.unexpected.take(key)
    }

    /// Removes and returns every unexpected message that passes the test, tagged and untagged.
    /// Reads all of them.
    pub fn take_where(&mut self, test: impl FnMut(&Envelope, &M) -> bool) -> Vec<(Envelope, M)> {
        self.unexpected.take_where(test)
    }

    /// Returns the message that [`post`](Self::post) would take for this receive; the message stays
    /// queued. Same cost.
    #[doc(alias = "FI_PEEK")]
    #[must_use]
    pub fn peek(&mut self, spec: &RecvSpec) -> Option<&Envelope> {
        self.unexpected.peek(spec)
    }

    /// Sets the source of all unexpected messages without a source from the peer that has these
    /// keys, after the peer's address was inserted. Returns the keys of the messages, in arrival
    /// order: each is to be offered to the posted receives.
    ///
    /// Messages that have a source keep it. Reads the messages of the peer only; logarithmic for
    /// each of them, amortized.
    #[must_use = "posted receives may accept these messages"]
    pub fn assign_source(&mut self, peers: &[PeerKey], source: FiAddr) -> Vec<UnexpectedKey> {
        self.unexpected.assign_source(peers, source)
    }

    /// Clears the source of unexpected messages after an address was removed: the sender of the
    /// messages is unknown again.
    ///
    /// The messages stay queued, for receives from any source: removing an address does not stop
    /// its traffic (`fi_av(3)`). Posted receives are not changed; see
    /// [`take_directed`](Self::take_directed). Reads the messages of the source only; logarithmic
    /// for each of them, amortized.
    pub fn clear_source(&mut self, source: FiAddr) {
        self.unexpected.clear_source(source);
    }

    /// Returns whether an unexpected message has this source. Logarithmic, amortized.
    #[must_use]
    pub fn holds_messages_from(&mut self, source: FiAddr) -> bool {
        self.unexpected.holds_messages_from(source)
    }

    /// Removes and returns every posted receive that is directed to this source, in posting order,
    /// after the peer has died or was removed. Reads the receives of the source only; logarithmic
    /// for each of them, amortized.
    pub fn take_directed(&mut self, source: FiAddr) -> Vec<R> {
        self.posted.take_directed(source)
    }

    /// Removes and returns all posted receives, in posting order, tagged and untagged.
    pub fn take_posted(&mut self) -> Vec<R> {
        self.posted.take_all()
    }

    /// Removes and returns all unexpected messages, in arrival order, tagged and untagged.
    pub fn take_unexpected(&mut self) -> Vec<(Envelope, M)> {
        self.unexpected.take_all()
    }

    /// Returns the number of posted receives, tagged and untagged. O(1).
    #[must_use]
    pub fn posted_len(&self) -> usize {
        self.posted.len()
    }

    /// Returns the number of unexpected messages, tagged and untagged. O(1).
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
            .field("unexpected", &self.unexpected_len())
            .field("next_arrival", &self.next_arrival)
            .finish()
    }
}
