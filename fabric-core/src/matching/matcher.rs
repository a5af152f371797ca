//! The matcher: posted receives and unexpected messages together.

use super::envelope::{Envelope, RecvSpec};
use super::posted::{PostKey, PostPlace, PostedQueue};
use super::unexpected::{UnexpectedKey, UnexpectedQueue};

/// The posted receives and the unexpected messages of one endpoint.
///
/// `R` is the caller's id of a receive, small and `Copy`. `M` holds the bytes of an unexpected
/// message, or their location.
///
/// An incoming message is offered to the posted receives ([`PostedQueue::take_match`]), and queued
/// as unexpected ([`UnexpectedQueue::insert`]) if no receive accepts it. A receive is compared with
/// the unexpected messages first, and queued if none matches ([`post`](Self::post)). A caller that
/// keeps to both rules never has a queued receive that accepts a queued message. A requeued message
/// is offered like an incoming one, because a receive that was posted after the first match may
/// accept it.
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
/// assert_eq!(matcher.posted.take_match(&hello), None);
/// matcher.unexpected.insert(hello, b"hello");
/// let second = matcher.post(tagged(7), "second");
/// assert!(matches!(second, RecvPostResult::Matched(_, b"hello")));
/// assert_eq!((matcher.posted.len(), matcher.unexpected.len()), (1, 0));
/// ```
#[derive(Debug)]
pub struct Matcher<R, M> {
    /// The posted receives.
    pub posted: PostedQueue<R>,
    /// The unexpected messages.
    pub unexpected: UnexpectedQueue<M>,
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
            let first = self.posted.find(envelope);
            first.is_some_and(|(first, _)| first == key)
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

    /// Queues a receive again whose matched message was lost, at its old place in posting order.
    /// Returns the earliest unexpected message for it, which stays queued.
    ///
    /// Logarithmic, apart from the copy of the receives behind the place when no entry is vacant
    /// there; searches the unexpected messages as [`unexpected_for`](Self::unexpected_for).
    pub fn restore(&mut self, place: PostPlace, receive: R) -> Option<UnexpectedKey> {
        self.posted.restore(place, receive);
        self.unexpected.find_for_place(&place, |envelope| {
            let first = self.posted.find(envelope);
            first.is_some_and(|(key, _)| key == place.key())
        })
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
}

impl<R: Copy, M> Default for Matcher<R, M> {
    fn default() -> Self {
        Self::new()
    }
}
