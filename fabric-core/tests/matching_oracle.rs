//! Random histories of a matcher; each result is compared with an oracle made of two plain lists
//! and a loop.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};

use fabric_core::av::AddressTable;
use fabric_core::matching::{
    Envelope, Matcher, PeerKey, PostKey, PostPlace, RecvPostResult, RecvSpec, TagMatch,
    UnexpectedKey,
};
use fabric_core::{Address, FiAddr, Scheme};

const PEERS: usize = 2;
/// A matcher searches longer lists by an index.
const LONG: usize = 16;

/// A call of the matcher. A `usize` is a peer, or selects one of the existing keys or messages,
/// modulo their number.
#[derive(Clone, Debug)]
enum MatcherCall {
    /// A message arrives; it is added to the unexpected messages if no receive takes it.
    Arrive(TestMessage),
    Post(RecvFilter),
    Peek(RecvFilter),
    /// Posts without searching the unexpected messages.
    Queue(RecvFilter),
    /// Queries the unexpected message for each posted receive, or for some if they are many.
    UnexpectedFor,
    /// Queues as many receives at once, with tags from that of the filter on. The lists of a
    /// matcher get an index when they are long.
    QueueMany(usize, RecvFilter),
    /// Adds as many unexpected messages at once, with tags from that of the message on, without
    /// offering them to the receives.
    AddMany(usize, TestMessage),
    /// Removes as many receives and messages, one by one, beginning with a selected one.
    RemoveMany(usize, usize),
    /// Removes a selected receive and keeps its place.
    SetAside(usize),
    /// Assigns a place to a receive that is not queued.
    AssignPlace(RecvFilter),
    /// Queues a receive again at its old place.
    Restore(usize),
    /// Uses any key ever returned, live or stale.
    RemovePosted(usize),
    Modify(usize),
    TakeMessage(usize),
    /// Requeues a message taken earlier, with its old arrival number. If true, the message is first
    /// offered to the receives.
    Requeue(usize, bool),
    AssignSource(usize),
    ClearSource(usize),
    TakeDirected(usize),
    TakePosted,
    TakeUnexpected,
}

/// Source peer; tag and ignored bits.
type RecvFilter = (Option<usize>, Option<(u64, u64)>);

#[derive(Clone, Debug)]
struct TestMessage {
    peer: usize,
    /// Whether the peer's address is in the address vector.
    source_known: bool,
    tag: Option<u64>,
    /// Whether the message is offered to the receives before it is added, as the receive queue
    /// does.
    match_first: bool,
}

/// Returns one address handle per peer, assigned by an address vector.
fn sources() -> [FiAddr; PEERS] {
    let mut table = AddressTable::new();
    std::array::from_fn(|peer| {
        table.insert(Address::new(Scheme::Sim, &format!("peer{peer}")).expect("the name is valid"))
    })
}

fn any_tag() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![1 => Just(None), 3 => (0..3u64).prop_map(Some)]
}

fn any_message() -> impl Strategy<Value = TestMessage> {
    (
        0..PEERS,
        any::<bool>(),
        any_tag(),
        prop::bool::weighted(0.95),
    )
        .prop_map(|(peer, source_known, tag, match_first)| TestMessage {
            peer,
            source_known,
            tag,
            match_first,
        })
}

fn any_filter() -> impl Strategy<Value = RecvFilter> {
    let from = prop_oneof![2 => Just(None), 3 => (0..PEERS).prop_map(Some)];
    let ignore = prop_oneof![3 => Just(0), 1 => Just(1), 1 => Just(2), 2 => Just(u64::MAX)];
    (
        from,
        prop_oneof![1 => Just(None), 3 => (0..3u64, ignore).prop_map(Some)],
    )
}

fn any_call() -> impl Strategy<Value = MatcherCall> {
    let pick = 0..1000usize;
    let many = 8..40usize;
    prop_oneof![
        2 => (many.clone(), any_filter())
            .prop_map(|(times, filter)| MatcherCall::QueueMany(times, filter)),
        2 => (many.clone(), any_message())
            .prop_map(|(times, message)| MatcherCall::AddMany(times, message)),
        2 => (many, pick.clone()).prop_map(|(times, pick)| MatcherCall::RemoveMany(times, pick)),
        6 => pick.clone().prop_map(MatcherCall::SetAside),
        2 => any_filter().prop_map(MatcherCall::AssignPlace),
        8 => pick.clone().prop_map(MatcherCall::Restore),
        32 => any_message().prop_map(MatcherCall::Arrive),
        32 => any_filter().prop_map(MatcherCall::Post),
        8 => any_filter().prop_map(MatcherCall::Peek),
        8 => any_filter().prop_map(MatcherCall::Queue),
        12 => Just(MatcherCall::UnexpectedFor),
        6 => pick.clone().prop_map(MatcherCall::RemovePosted),
        4 => pick.clone().prop_map(MatcherCall::Modify),
        4 => pick.clone().prop_map(MatcherCall::TakeMessage),
        10 => (pick, prop::bool::weighted(0.8))
            .prop_map(|(pick, match_first)| MatcherCall::Requeue(pick, match_first)),
        6 => (0..PEERS).prop_map(MatcherCall::AssignSource),
        4 => (0..PEERS).prop_map(MatcherCall::ClearSource),
        2 => (0..PEERS).prop_map(MatcherCall::TakeDirected),
        1 => prop_oneof![Just(MatcherCall::TakePosted), Just(MatcherCall::TakeUnexpected)],
    ]
}

fn any_history() -> impl Strategy<Value = Vec<MatcherCall>> {
    prop::collection::vec(any_call(), 1..=60)
}

/// Body of a message in the tests: its id, and how often it was modified.
type MessageBody = (u64, u32);

/// All receives and messages by id: receives in posting order, messages in arrival order.
#[derive(Default)]
struct MatcherOracle {
    posted: Vec<(RecvSpec, u64)>,
    unexpected: Vec<(Envelope, MessageBody)>,
}

/// The matching rule of fi_tagged(3).
fn accepts(spec: &RecvSpec, envelope: &Envelope) -> bool {
    let tag_matches = match (spec.tag, envelope.tag) {
        (None, None) => true,
        (Some(wanted), Some(sent)) => sent & !wanted.ignore == wanted.tag & !wanted.ignore,
        (Some(_), None) | (None, Some(_)) => false,
    };
    let source_matches = match (spec.from, envelope.source) {
        (None, _) => true,
        (Some(wanted), Some(source)) => wanted == source,
        (Some(_), None) => false,
    };
    tag_matches && source_matches
}

impl MatcherOracle {
    fn match_message(&mut self, envelope: &Envelope) -> Option<u64> {
        let index = self
            .posted
            .iter()
            .position(|(spec, _)| accepts(spec, envelope))?;
        Some(self.posted.remove(index).1)
    }

    fn add_unexpected(&mut self, envelope: Envelope, body: MessageBody) {
        self.unexpected.push((envelope, body));
        self.unexpected
            .sort_by_key(|(envelope, _)| envelope.arrival);
    }

    fn peek(&self, spec: &RecvSpec) -> Option<&Envelope> {
        self.unexpected
            .iter()
            .map(|(envelope, _)| envelope)
            .find(|envelope| accepts(spec, envelope))
    }

    fn post(&mut self, spec: RecvSpec, receive: u64) -> Option<(Envelope, MessageBody)> {
        match self
            .unexpected
            .iter()
            .position(|(envelope, _)| accepts(&spec, envelope))
        {
            Some(index) => Some(self.unexpected.remove(index)),
            None => {
                self.posted.push((spec, receive));
                None
            }
        }
    }

    /// Returns the earliest message that would go to this receive if all messages were offered
    /// again.
    fn unexpected_for(&self, receive: u64) -> Option<&Envelope> {
        let first_match =
            |envelope: &Envelope| self.posted.iter().find(|(spec, _)| accepts(spec, envelope));
        let matches =
            |envelope: &&Envelope| first_match(envelope).is_some_and(|(_, id)| *id == receive);
        self.unexpected
            .iter()
            .map(|(envelope, _)| envelope)
            .find(matches)
    }

    fn remove_posted(&mut self, receive: u64) -> Option<u64> {
        let index = self.posted.iter().position(|&(_, id)| id == receive)?;
        Some(self.posted.remove(index).1)
    }

    fn assign_source_and_match(
        &mut self,
        peer: PeerKey,
        source: FiAddr,
    ) -> Vec<(u64, Envelope, MessageBody)> {
        let mut matched = Vec::new();
        for (mut envelope, body) in std::mem::take(&mut self.unexpected) {
            let is_assigned = envelope.peer == peer && envelope.source.is_none();
            if is_assigned {
                envelope.source = Some(source);
            }
            match if is_assigned {
                self.match_message(&envelope)
            } else {
                None
            } {
                Some(receive) => matched.push((receive, envelope, body)),
                None => self.unexpected.push((envelope, body)),
            }
        }
        matched
    }

    /// Queues a receive at its place in posting order, which is the order of the ids.
    fn restore(&mut self, spec: RecvSpec, receive: u64) {
        let index = self.posted.partition_point(|&(_, id)| id < receive);
        self.posted.insert(index, (spec, receive));
    }

    fn holds_messages_from(&self, source: FiAddr) -> bool {
        let mut sources = self.unexpected.iter().map(|(envelope, _)| envelope.source);
        sources.any(|other| other == Some(source))
    }

    fn clear_source(&mut self, source: FiAddr) {
        for (envelope, _) in &mut self.unexpected {
            if envelope.source == Some(source) {
                envelope.source = None;
            }
        }
    }

    fn take_directed(&mut self, source: FiAddr) -> Vec<u64> {
        let (taken, remaining) = self
            .posted
            .drain(..)
            .partition::<Vec<_>, _>(|(spec, _)| spec.from == Some(source));
        self.posted = remaining;
        taken.into_iter().map(|(_, receive)| receive).collect()
    }
}

/// How often each event happened.
type OutcomeCounts = BTreeMap<&'static str, usize>;

/// The matcher, the oracle, and every key ever returned with the id of its object.
struct MatcherComparison {
    matcher: Matcher<u64, MessageBody>,
    oracle: MatcherOracle,
    sources: [FiAddr; PEERS],
    post_keys: Vec<(PostKey, u64)>,
    /// The places of receives that are not queued and may be restored.
    places: Vec<(PostPlace, RecvSpec, u64)>,
    /// With the id of the message: a key is live while it is the message's latest key.
    unexpected_keys: Vec<(UnexpectedKey, u64)>,
    /// Index into `unexpected_keys` of each message's latest key.
    latest_key: BTreeMap<u64, usize>,
    /// Messages that were matched or taken, available for requeueing.
    taken: Vec<(Envelope, MessageBody)>,
    next_receive: u64,
    counts: OutcomeCounts,
}

impl MatcherComparison {
    fn new() -> Self {
        Self {
            matcher: Matcher::new(),
            oracle: MatcherOracle::default(),
            sources: sources(),
            post_keys: Vec::new(),
            places: Vec::new(),
            unexpected_keys: Vec::new(),
            latest_key: BTreeMap::new(),
            taken: Vec::new(),
            next_receive: 0,
            counts: OutcomeCounts::new(),
        }
    }

    fn record(&mut self, what: &'static str, times: usize) {
        *self.counts.entry(what).or_default() += times;
    }

    fn recv_spec(&self, (from, tag): RecvFilter) -> RecvSpec {
        let tag = tag.map(|(tag, ignore)| TagMatch { tag, ignore });
        RecvSpec {
            from: from.map(|peer| self.sources[peer]),
            tag,
        }
    }

    fn next_message(&mut self, message: &TestMessage) -> (Envelope, MessageBody) {
        let arrival = self.matcher.next_arrival();
        let source = message.source_known.then_some(self.sources[message.peer]);
        let (peer, len) = (PeerKey(message.peer as u32), arrival as usize * 3);
        (
            Envelope {
                peer,
                source,
                tag: message.tag,
                len,
                data: Some(!arrival),
                arrival,
                ack: None,
            },
            (arrival, 0),
        )
    }

    fn add_unexpected(&mut self, envelope: Envelope, body: MessageBody) {
        let key = self.matcher.unexpected.insert(envelope.clone(), body);
        self.latest_key.insert(body.0, self.unexpected_keys.len());
        self.unexpected_keys.push((key, body.0));
        self.oracle.add_unexpected(envelope, body);
    }

    /// Offers a message to the receives of matcher and oracle; returns whether a receive took it.
    fn match_on_both(&mut self, envelope: &Envelope, body: MessageBody) -> bool {
        let expected = self
            .oracle
            .posted
            .iter()
            .any(|(spec, _)| accepts(spec, envelope));
        assert_eq!(self.matcher.posted.would_match(envelope), expected);
        let found = self
            .matcher
            .posted
            .find(envelope)
            .map(|(_, receive)| receive);
        let receive = self.matcher.posted.take_match(envelope);
        assert_eq!(found, receive);
        assert_eq!(receive, self.oracle.match_message(envelope));
        if receive.is_some() {
            self.taken.push((envelope.clone(), body));
        }
        receive.is_some()
    }

    /// Returns the oracle's index of the message with this key, if the key is live.
    fn oracle_index(&mut self, at: usize) -> Option<usize> {
        let (_, id) = self.unexpected_keys[at];
        let index = self
            .oracle
            .unexpected
            .iter()
            .position(|(_, body)| body.0 == id);
        let index = index.filter(|_| self.latest_key[&id] == at);
        self.record("stale message keys", index.is_none().into());
        index
    }

    /// Queues a receive without searching the unexpected messages.
    fn queue(&mut self, filter: RecvFilter) {
        let (spec, receive) = (self.recv_spec(filter), self.next_receive);
        self.next_receive += 1;
        self.post_keys
            .push((self.matcher.posted.push(&spec, receive), receive));
        self.oracle.posted.push((spec, receive));
    }

    /// Removes as many receives and messages, one by one, from the selected one on.
    fn remove_many(&mut self, times: usize, pick: usize) {
        for _ in 0..times.min(self.oracle.posted.len()) {
            let index = pick % self.oracle.posted.len();
            let (_, receive) = self.oracle.posted.remove(index);
            let key = self.post_keys.iter().find(|(_, id)| *id == receive);
            let (key, _) = *key.expect("the receive was posted");
            assert_eq!(self.matcher.posted.remove(key), Some(receive));
        }
        for _ in 0..times.min(self.oracle.unexpected.len()) {
            let index = pick % self.oracle.unexpected.len();
            let message = self.oracle.unexpected.remove(index);
            let (key, _) = self.unexpected_keys[self.latest_key[&message.1.0]];
            assert_eq!(self.matcher.unexpected.take(key), Some(message.clone()));
            self.taken.push(message);
        }
    }

    fn apply(&mut self, call: MatcherCall) {
        match call {
            MatcherCall::Arrive(message) => {
                let (envelope, body) = self.next_message(&message);
                if message.match_first && self.match_on_both(&envelope, body) {
                    self.record("arrivals matched", 1);
                } else {
                    self.add_unexpected(envelope, body);
                }
            }
            MatcherCall::Post(filter) => {
                let spec = self.recv_spec(filter);
                let receive = self.next_receive;
                self.next_receive += 1;
                let expected = self.oracle.post(spec, receive);
                match self.matcher.post(spec, receive) {
                    RecvPostResult::Queued(key) => {
                        assert_eq!(expected, None);
                        self.post_keys.push((key, receive));
                    }
                    RecvPostResult::Matched(envelope, body) => {
                        assert_eq!(expected, Some((envelope.clone(), body)));
                        self.taken.push((envelope, body));
                        self.record("posts matched", 1);
                    }
                }
            }
            MatcherCall::Peek(filter) => {
                let spec = self.recv_spec(filter);
                assert_eq!(self.matcher.unexpected.peek(&spec), self.oracle.peek(&spec));
                let is_unmatched = |envelope: &&Envelope| {
                    !self
                        .oracle
                        .posted
                        .iter()
                        .any(|(spec, _)| accepts(spec, envelope))
                };
                let matches =
                    |envelope: &&Envelope| accepts(&spec, envelope) && is_unmatched(envelope);
                let expected = self
                    .oracle
                    .unexpected
                    .iter()
                    .map(|(envelope, _)| envelope)
                    .find(matches);
                assert_eq!(
                    self.matcher
                        .unexpected_for_new(&spec)
                        .map(|(_, envelope)| envelope),
                    expected
                );
                assert!(expected.is_none_or(|envelope| spec.accepts(envelope)));
                self.record("successful peeks", self.oracle.peek(&spec).is_some().into());
            }
            MatcherCall::Queue(filter) => self.queue(filter),
            MatcherCall::QueueMany(times, (from, tag)) => {
                for more in 0..times as u64 {
                    // The sources alternate if the receive is directed.
                    let from = from.map(|peer| (peer + more as usize) % PEERS);
                    // No tag has the bits that vary, but there are more masks than groups.
                    let varied = if times % 2 == 0 { (more / 2) << 8 } else { 0 };
                    let tag = tag.map(|(tag, ignore)| (tag + more / 4, ignore ^ varied));
                    self.queue((from, tag));
                }
                let is_long = self.oracle.posted.len() > LONG;
                self.record("long lists of receives", is_long.into());
            }
            MatcherCall::AddMany(times, message) => {
                for more in 0..times as u64 {
                    let (envelope, body) = self.next_message(&TestMessage {
                        peer: (message.peer + more as usize) % PEERS,
                        source_known: message.source_known ^ more.is_multiple_of(3),
                        tag: message.tag.map(|tag| tag + more / 4),
                        ..message
                    });
                    self.add_unexpected(envelope, body);
                }
                let is_long = self.oracle.unexpected.len() > LONG;
                self.record("long lists of messages", is_long.into());
            }
            MatcherCall::RemoveMany(times, pick) => self.remove_many(times, pick),
            MatcherCall::SetAside(pick) if !self.post_keys.is_empty() => {
                let (key, receive) = self.post_keys[pick % self.post_keys.len()];
                let index = self.oracle.posted.iter().position(|&(_, id)| id == receive);
                let place = self.matcher.posted.place(key);
                assert_eq!(place.is_some(), index.is_some());
                if let Some((place, index)) = place.zip(index) {
                    let (spec, _) = self.oracle.posted.remove(index);
                    assert_eq!(place.is_directed(), spec.from.is_some());
                    assert_eq!(self.matcher.posted.remove(key), Some(receive));
                    self.places.push((place, spec, receive));
                }
            }
            MatcherCall::AssignPlace(filter) => {
                let spec = self.recv_spec(filter);
                let place = self.matcher.posted.assign_place(&spec);
                self.places.push((place, spec, self.next_receive));
                self.next_receive += 1;
            }
            MatcherCall::Restore(pick) if !self.places.is_empty() => {
                let at = pick % self.places.len();
                let (place, spec, receive) = self.places.swap_remove(at);
                let (key, waiting) = (place.key(), self.matcher.restore(place, receive));
                self.post_keys.push((key, receive));
                self.oracle.restore(spec, receive);
                assert_eq!(
                    waiting.and_then(|key| self.matcher.unexpected.get(key)),
                    self.oracle.unexpected_for(receive)
                );
                let (_, last) = self.oracle.posted[self.oracle.posted.len() - 1];
                let is_before = last > receive;
                self.record("restored before a later receive", is_before.into());
            }
            MatcherCall::UnexpectedFor => {
                let every_few = self.oracle.posted.len() / 16 + 1;
                for (spec, receive) in self.oracle.posted.clone().into_iter().step_by(every_few) {
                    let key = self
                        .post_keys
                        .iter()
                        .find(|(_, id)| *id == receive)
                        .expect("the receive was posted")
                        .0;
                    let expected = self.oracle.unexpected_for(receive);
                    let found = self.matcher.unexpected_for(&spec, key);
                    assert_eq!(found.map(|(_, envelope)| envelope), expected);
                    let found = found.map(|(key, _)| key);
                    assert_eq!(
                        found.and_then(|key| self.matcher.unexpected.get(key)),
                        expected
                    );
                    let has_message = expected.is_some().into();
                    self.record("messages for a posted receive", has_message);
                }
            }
            MatcherCall::RemovePosted(pick) if !self.post_keys.is_empty() => {
                let (key, receive) = self.post_keys[pick % self.post_keys.len()];
                let expected = self.oracle.remove_posted(receive);
                assert_eq!(self.matcher.posted.remove(key), expected);
                assert_eq!(self.matcher.posted.remove(key), None);
                self.record("stale receive keys", expected.is_none().into());
                self.record("removed receives", expected.is_some().into());
            }
            MatcherCall::Modify(pick) if !self.unexpected_keys.is_empty() => {
                let at = pick % self.unexpected_keys.len();
                let index = self.oracle_index(at);
                let found = self.matcher.unexpected.get_mut(self.unexpected_keys[at].0);
                let expected = index.map(|index| &mut self.oracle.unexpected[index]);
                match (found, expected) {
                    (Some((envelope, body)), Some((wanted, wanted_body))) => {
                        assert_eq!((envelope, *body), (&*wanted, *wanted_body));
                        body.1 += 1;
                        wanted_body.1 += 1;
                    }
                    (found, expected) => assert!(found.is_none() && expected.is_none()),
                }
            }
            MatcherCall::TakeMessage(pick) if !self.unexpected_keys.is_empty() => {
                let at = pick % self.unexpected_keys.len();
                let expected = self
                    .oracle_index(at)
                    .map(|index| self.oracle.unexpected.remove(index));
                let taken = self.matcher.unexpected.take(self.unexpected_keys[at].0);
                assert_eq!(taken, expected);
                self.taken.extend(taken);
            }
            MatcherCall::Requeue(pick, match_first) if !self.taken.is_empty() => {
                let (envelope, body) = self.taken.swap_remove(pick % self.taken.len());
                if !(match_first && self.match_on_both(&envelope, body)) {
                    let last = self
                        .oracle
                        .unexpected
                        .last()
                        .map(|(envelope, _)| envelope.arrival);
                    self.record(
                        "requeued before a later message",
                        (last > Some(envelope.arrival)).into(),
                    );
                    self.add_unexpected(envelope, body);
                }
            }
            // There is no candidate yet.
            MatcherCall::RemovePosted(_)
            | MatcherCall::SetAside(_)
            | MatcherCall::Restore(_)
            | MatcherCall::Modify(_)
            | MatcherCall::TakeMessage(_)
            | MatcherCall::Requeue(..) => {}
            MatcherCall::AssignSource(peer) => {
                let (peer, source) = (PeerKey(peer as u32), self.sources[peer]);
                let keys = self.matcher.unexpected.assign_source(&[peer], source);
                let matched: Vec<_> = keys
                    .into_iter()
                    .filter_map(|key| {
                        let envelope = self.matcher.unexpected.get(key)?.clone();
                        let receive = self.matcher.posted.take_match(&envelope)?;
                        let (envelope, body) = self.matcher.unexpected.take(key)?;
                        Some((receive, envelope, body))
                    })
                    .collect();
                assert_eq!(matched, self.oracle.assign_source_and_match(peer, source));
                self.record("matched by an assigned source", matched.len());
                self.taken.extend(
                    matched
                        .into_iter()
                        .map(|(_, envelope, body)| (envelope, body)),
                );
            }
            MatcherCall::ClearSource(peer) => {
                self.matcher.unexpected.clear_source(self.sources[peer]);
                self.oracle.clear_source(self.sources[peer]);
            }
            MatcherCall::TakeDirected(peer) => {
                let taken = self.matcher.posted.take_directed(self.sources[peer]);
                assert_eq!(taken, self.oracle.take_directed(self.sources[peer]));
                self.record("directed receives taken", taken.len());
            }
            MatcherCall::TakePosted => {
                let expected: Vec<_> = self
                    .oracle
                    .posted
                    .drain(..)
                    .map(|(_, receive)| receive)
                    .collect();
                assert_eq!(self.matcher.posted.take_all(), expected);
            }
            MatcherCall::TakeUnexpected => {
                let keys = self.matcher.unexpected.keys();
                let envelopes: Vec<_> = keys
                    .iter()
                    .filter_map(|key| self.matcher.unexpected.get(*key))
                    .collect();
                assert!(
                    envelopes.iter().copied().eq(self
                        .oracle
                        .unexpected
                        .iter()
                        .map(|(envelope, _)| envelope))
                );
                let taken = self.matcher.unexpected.take_all();
                assert_eq!(taken, std::mem::take(&mut self.oracle.unexpected));
                self.taken.extend(taken);
            }
        }
        for source in self.sources {
            assert_eq!(
                self.matcher.unexpected.holds_messages_from(source),
                self.oracle.holds_messages_from(source)
            );
        }
        assert_eq!(self.matcher.posted.len(), self.oracle.posted.len());
        assert_eq!(self.matcher.unexpected.len(), self.oracle.unexpected.len());
    }

    /// Applies a history and empties both queues at the end, so that the remaining receives and
    /// messages are compared too.
    fn apply_all(mut self, history: Vec<MatcherCall>) -> OutcomeCounts {
        for call in history
            .into_iter()
            .chain([MatcherCall::TakePosted, MatcherCall::TakeUnexpected])
        {
            self.apply(call);
        }
        self.counts
    }
}

proptest! {
    #![proptest_config(Config { cases: 256, failure_persistence: None, ..Config::default() })]

    #[test]
    fn matcher_agrees_with_oracle(history in any_history()) {
        MatcherComparison::new().apply_all(history);
    }
}

/// Checks the generator: the oracle proves nothing about outcomes that no history reaches.
#[test]
fn generated_histories_reach_every_matching_outcome() {
    let mut runner = TestRunner::deterministic();
    let mut seen = OutcomeCounts::new();
    for _ in 0..256 {
        let history = any_history()
            .new_tree(&mut runner)
            .expect("the strategy filters nothing")
            .current();
        for (what, times) in MatcherComparison::new().apply_all(history) {
            *seen.entry(what).or_default() += times;
        }
    }
    assert_eq!(seen.len(), 13, "{seen:?}");
    assert!(seen.values().all(|&times| times >= 50), "{seen:?}");
}
