//! Random histories of a matcher, each answer compared with an oracle that is two plain lists and a
//! loop.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};

use fabric_core::av::AddressTable;
use fabric_core::matching::{
    Envelope, Matcher, PeerKey, PostKey, RecvPostResult, RecvSpec, TagMatch, UnexpectedKey,
};
use fabric_core::{Address, FiAddr, Scheme};

const PEERS: usize = 2;

/// One call. A `usize` is a peer, or chooses among what exists at that moment, modulo how many
/// there are.
#[derive(Clone, Debug)]
enum MatcherCall {
    /// A message arrives; it waits if no receive takes it.
    Arrive(TestMessage),
    Post(RecvFilter),
    Peek(RecvFilter),
    /// Posts without looking at what waits.
    Queue(RecvFilter),
    /// Asks what falls to each posted receive.
    UnexpectedFor,
    /// With any key ever given out, live or stale.
    RemovePosted(usize),
    Modify(usize),
    TakeMessage(usize),
    /// A message taken earlier comes back with its old arrival; offered to the receives first, or
    /// not.
    Requeue(usize, bool),
    AssignSource(usize),
    ClearSource(usize),
    TakeDirected(usize),
    TakePosted,
    TakeUnexpected,
}

/// From which peer, and which tag and ignored bits.
type RecvFilter = (Option<usize>, Option<(u64, u64)>);

#[derive(Clone, Debug)]
struct TestMessage {
    peer: usize,
    /// Whether the peer's address is known by now.
    source_known: bool,
    tag: Option<u64>,
    /// Whether the receives are asked before it waits, as they should.
    match_first: bool,
}

/// One number per peer, as an address vector gives them out.
fn sources() -> [FiAddr; PEERS] {
    let mut table = AddressTable::new();
    std::array::from_fn(|peer| {
        table.insert(Address::new(Scheme::Sim, &format!("peer{peer}")).expect("a legal name"))
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
        .prop_map(|(peer, known, tag, offered)| TestMessage {
            peer,
            source_known: known,
            tag,
            match_first: offered,
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
    prop_oneof![
        32 => any_message().prop_map(MatcherCall::Arrive),
        32 => any_filter().prop_map(MatcherCall::Post),
        8 => any_filter().prop_map(MatcherCall::Peek),
        8 => any_filter().prop_map(MatcherCall::Queue),
        12 => Just(MatcherCall::UnexpectedFor),
        6 => pick.clone().prop_map(MatcherCall::RemovePosted),
        4 => pick.clone().prop_map(MatcherCall::Modify),
        4 => pick.clone().prop_map(MatcherCall::TakeMessage),
        10 => (pick, prop::bool::weighted(0.8)).prop_map(|(pick, offered)| MatcherCall::Requeue(pick, offered)),
        6 => (0..PEERS).prop_map(MatcherCall::AssignSource),
        4 => (0..PEERS).prop_map(MatcherCall::ClearSource),
        2 => (0..PEERS).prop_map(MatcherCall::TakeDirected),
        1 => prop_oneof![Just(MatcherCall::TakePosted), Just(MatcherCall::TakeUnexpected)],
    ]
}

fn any_history() -> impl Strategy<Value = Vec<MatcherCall>> {
    prop::collection::vec(any_call(), 1..=60)
}

/// What a message is to the tests: its name, and how often it was touched.
type MessageBody = (u64, u32);

/// Every receive and message by name, in the order the rules speak of.
#[derive(Default)]
struct MatcherOracle {
    posted: Vec<(RecvSpec, u64)>,
    unexpected: Vec<(Envelope, MessageBody)>,
}

/// The rule of the manual, word for word.
fn accepts(spec: &RecvSpec, envelope: &Envelope) -> bool {
    let tags = match (spec.tag, envelope.tag) {
        (None, None) => true,
        (Some(wanted), Some(sent)) => sent & !wanted.ignore == wanted.tag & !wanted.ignore,
        (Some(_), None) | (None, Some(_)) => false,
    };
    let sources = match (spec.from, envelope.source) {
        (None, _) => true,
        (Some(wanted), Some(source)) => wanted == source,
        (Some(_), None) => false,
    };
    tags && sources
}

impl MatcherOracle {
    fn match_message(&mut self, envelope: &Envelope) -> Option<u64> {
        let place = self
            .posted
            .iter()
            .position(|(spec, _)| accepts(spec, envelope))?;
        Some(self.posted.remove(place).1)
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
            Some(place) => Some(self.unexpected.remove(place)),
            None => {
                self.posted.push((spec, receive));
                None
            }
        }
    }

    /// The earliest message that would go to this receive if all were offered.
    fn unexpected_for(&self, receive: u64) -> Option<&Envelope> {
        let first =
            |envelope: &Envelope| self.posted.iter().find(|(spec, _)| accepts(spec, envelope));
        let falls =
            |envelope: &&Envelope| first(envelope).is_some_and(|(_, name)| *name == receive);
        self.unexpected
            .iter()
            .map(|(envelope, _)| envelope)
            .find(falls)
    }

    fn remove_posted(&mut self, receive: u64) -> Option<u64> {
        let place = self.posted.iter().position(|&(_, name)| name == receive)?;
        Some(self.posted.remove(place).1)
    }

    fn assign_source_and_match(
        &mut self,
        peer: PeerKey,
        source: FiAddr,
    ) -> Vec<(u64, Envelope, MessageBody)> {
        let mut matched = Vec::new();
        for (mut envelope, body) in std::mem::take(&mut self.unexpected) {
            let news = envelope.peer == peer && envelope.source.is_none();
            if news {
                envelope.source = Some(source);
            }
            match if news {
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

    fn clear_source(&mut self, source: FiAddr) {
        for (envelope, _) in &mut self.unexpected {
            if envelope.source == Some(source) {
                envelope.source = None;
            }
        }
    }

    fn take_directed(&mut self, source: FiAddr) -> Vec<u64> {
        let (taken, left) = self
            .posted
            .drain(..)
            .partition::<Vec<_>, _>(|(spec, _)| spec.from == Some(source));
        self.posted = left;
        taken.into_iter().map(|(_, receive)| receive).collect()
    }
}

/// How often the interesting things happened.
type EventCounts = BTreeMap<&'static str, usize>;

/// The matcher, the oracle, and every key ever given out with the name of what it stood for.
struct MatcherComparison {
    matcher: Matcher<u64, MessageBody>,
    oracle: MatcherOracle,
    sources: [FiAddr; PEERS],
    post_keys: Vec<(PostKey, u64)>,
    /// With the number of the stay: a key is live while the body's latest stay is this one.
    unexpected_keys: Vec<(UnexpectedKey, u64)>,
    /// The key's position in `waits` of each message's latest stay.
    latest_key: BTreeMap<u64, usize>,
    /// Messages that were matched or taken, to be put back.
    taken: Vec<(Envelope, MessageBody)>,
    next_receive: u64,
    counts: EventCounts,
}

impl MatcherComparison {
    fn new() -> Self {
        Self {
            matcher: Matcher::new(),
            oracle: MatcherOracle::default(),
            sources: sources(),
            post_keys: Vec::new(),
            unexpected_keys: Vec::new(),
            latest_key: BTreeMap::new(),
            taken: Vec::new(),
            next_receive: 0,
            counts: EventCounts::new(),
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

    fn next_message(&mut self, sent: &TestMessage) -> (Envelope, MessageBody) {
        let arrival = self.matcher.next_arrival();
        let source = sent.source_known.then_some(self.sources[sent.peer]);
        let (peer, len) = (PeerKey(sent.peer as u32), arrival as usize * 3);
        (
            Envelope {
                peer,
                source,
                tag: sent.tag,
                len,
                data: Some(!arrival),
                arrival,
                ack: None,
            },
            (arrival, 0),
        )
    }

    fn add_unexpected(&mut self, envelope: Envelope, body: MessageBody) {
        let key = self.matcher.add_unexpected(envelope.clone(), body);
        self.latest_key.insert(body.0, self.unexpected_keys.len());
        self.unexpected_keys.push((key, body.0));
        self.oracle.add_unexpected(envelope, body);
    }

    /// Offers a message to both sides; whether a receive took it.
    fn match_on_both(&mut self, envelope: &Envelope, body: MessageBody) -> bool {
        let expected = self
            .oracle
            .posted
            .iter()
            .any(|(spec, _)| accepts(spec, envelope));
        assert_eq!(self.matcher.would_match(envelope), expected);
        let found = self
            .matcher
            .find_receive(envelope)
            .map(|(_, receive)| receive);
        let receive = self.matcher.match_message(envelope);
        assert_eq!(found, receive);
        assert_eq!(receive, self.oracle.match_message(envelope));
        if receive.is_some() {
            self.taken.push((envelope.clone(), body));
        }
        receive.is_some()
    }

    /// Where the oracle keeps the message of this key, if the key is still good.
    fn oracle_index(&mut self, at: usize) -> Option<usize> {
        let (_, name) = self.unexpected_keys[at];
        let place = self
            .oracle
            .unexpected
            .iter()
            .position(|(_, body)| body.0 == name);
        let place = place.filter(|_| self.latest_key[&name] == at);
        self.record("stale message keys", place.is_none().into());
        place
    }

    fn apply(&mut self, step: MatcherCall) {
        match step {
            MatcherCall::Arrive(sent) => {
                let (envelope, body) = self.next_message(&sent);
                if sent.match_first && self.match_on_both(&envelope, body) {
                    self.record("arrivals matched", 1);
                } else {
                    self.add_unexpected(envelope, body);
                }
            }
            MatcherCall::Post(wish) => {
                let spec = self.recv_spec(wish);
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
            MatcherCall::Peek(wish) => {
                let spec = self.recv_spec(wish);
                assert_eq!(self.matcher.peek(&spec), self.oracle.peek(&spec));
                let free = |envelope: &&Envelope| {
                    !self
                        .oracle
                        .posted
                        .iter()
                        .any(|(spec, _)| accepts(spec, envelope))
                };
                let wanted = |envelope: &&Envelope| accepts(&spec, envelope) && free(envelope);
                let expected = self
                    .oracle
                    .unexpected
                    .iter()
                    .map(|(envelope, _)| envelope)
                    .find(wanted);
                assert_eq!(
                    self.matcher.unclaimed(&spec).map(|(_, envelope)| envelope),
                    expected
                );
                assert!(expected.is_none_or(|envelope| spec.accepts(envelope)));
                self.record("peeks that found", self.oracle.peek(&spec).is_some().into());
            }
            MatcherCall::Queue(wish) => {
                let spec = self.recv_spec(wish);
                self.post_keys.push((
                    self.matcher.queue(spec, self.next_receive),
                    self.next_receive,
                ));
                self.oracle.posted.push((spec, self.next_receive));
                self.next_receive += 1;
            }
            MatcherCall::UnexpectedFor => {
                for (spec, receive) in self.oracle.posted.clone() {
                    let key = self
                        .post_keys
                        .iter()
                        .find(|(_, name)| *name == receive)
                        .expect("it was posted")
                        .0;
                    let (found, expected) = (
                        self.matcher.unexpected_for(&spec, key),
                        self.oracle.unexpected_for(receive),
                    );
                    assert_eq!(found.map(|(_, envelope)| envelope), expected);
                    assert_eq!(
                        found.and_then(|(key, _)| self.matcher.message(key)),
                        expected
                    );
                    let falls = expected.is_some().into();
                    self.record("messages that fall to a receive", falls);
                }
            }
            MatcherCall::RemovePosted(pick) if !self.post_keys.is_empty() => {
                let (key, receive) = self.post_keys[pick % self.post_keys.len()];
                let expected = self.oracle.remove_posted(receive);
                assert_eq!(self.matcher.remove_posted(key), expected);
                assert_eq!(self.matcher.remove_posted(key), None);
                self.record("stale receive keys", expected.is_none().into());
                self.record("withdrawn", expected.is_some().into());
            }
            MatcherCall::Modify(pick) if !self.unexpected_keys.is_empty() => {
                let at = pick % self.unexpected_keys.len();
                let place = self.oracle_index(at);
                let found = self.matcher.message_mut(self.unexpected_keys[at].0);
                let expected = place.map(|place| &mut self.oracle.unexpected[place]);
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
                    .map(|place| self.oracle.unexpected.remove(place));
                let taken = self.matcher.take_message(self.unexpected_keys[at].0);
                assert_eq!(taken, expected);
                self.taken.extend(taken);
            }
            MatcherCall::Requeue(pick, offered) if !self.taken.is_empty() => {
                let (envelope, body) = self.taken.swap_remove(pick % self.taken.len());
                if !(offered && self.match_on_both(&envelope, body)) {
                    let last = self
                        .oracle
                        .unexpected
                        .last()
                        .map(|(envelope, _)| envelope.arrival);
                    self.record(
                        "put back before a later one",
                        (last > Some(envelope.arrival)).into(),
                    );
                    self.add_unexpected(envelope, body);
                }
            }
            // Nothing to choose from yet.
            MatcherCall::RemovePosted(_)
            | MatcherCall::Modify(_)
            | MatcherCall::TakeMessage(_)
            | MatcherCall::Requeue(..) => {}
            MatcherCall::AssignSource(peer) => {
                let (peer, source) = (PeerKey(peer as u32), self.sources[peer]);
                let matched = self.matcher.assign_source_and_match(&[peer], source);
                assert_eq!(matched, self.oracle.assign_source_and_match(peer, source));
                self.record("matched by an insert", matched.len());
                self.taken.extend(
                    matched
                        .into_iter()
                        .map(|(_, envelope, body)| (envelope, body)),
                );
            }
            MatcherCall::ClearSource(peer) => {
                self.matcher.clear_source(self.sources[peer]);
                self.oracle.clear_source(self.sources[peer]);
            }
            MatcherCall::TakeDirected(peer) => {
                let taken = self.matcher.take_directed(self.sources[peer]);
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
                assert_eq!(self.matcher.take_posted(), expected);
            }
            MatcherCall::TakeUnexpected => {
                let keys = self.matcher.unexpected_keys();
                let shown: Vec<_> = keys
                    .iter()
                    .filter_map(|key| self.matcher.message(*key))
                    .collect();
                assert!(
                    shown.iter().copied().eq(self
                        .oracle
                        .unexpected
                        .iter()
                        .map(|(envelope, _)| envelope))
                );
                let taken = self.matcher.take_unexpected();
                assert_eq!(taken, std::mem::take(&mut self.oracle.unexpected));
                self.taken.extend(taken);
            }
        }
        assert_eq!(self.matcher.posted_len(), self.oracle.posted.len());
        assert_eq!(self.matcher.unexpected_len(), self.oracle.unexpected.len());
    }

    /// Runs a history and empties both sides at its end, so that everything left is compared too.
    fn apply_all(mut self, history: Vec<MatcherCall>) -> EventCounts {
        for step in history
            .into_iter()
            .chain([MatcherCall::TakePosted, MatcherCall::TakeUnexpected])
        {
            self.apply(step);
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

/// A generator that never lets anything match would prove nothing.
#[test]
fn random_histories_cover_all_events() {
    let mut runner = TestRunner::deterministic();
    let mut seen = EventCounts::new();
    for _ in 0..256 {
        let history = any_history()
            .new_tree(&mut runner)
            .expect("nothing is filtered")
            .current();
        for (what, times) in MatcherComparison::new().apply_all(history) {
            *seen.entry(what).or_default() += times;
        }
    }
    assert_eq!(seen.len(), 10, "{seen:?}");
    assert!(seen.values().all(|&times| times >= 50), "{seen:?}");
}
