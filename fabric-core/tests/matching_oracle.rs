//! Random histories of a matcher, each answer compared with an oracle that is two plain lists and a
//! loop.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};

use fabric_core::av::AddressTable;
use fabric_core::matching::{
    Envelope, Matcher, PeerKey, PostKey, Posted, RecvSpec, TagMatch, WaitKey,
};
use fabric_core::{Address, FiAddr, Scheme};

const PEERS: usize = 2;

/// One call. A `usize` is a peer, or chooses among what exists at that moment, modulo how many
/// there are.
#[derive(Clone, Debug)]
enum Step {
    /// A message arrives; it waits if no receive takes it.
    Arrive(Sent),
    Post(Wish),
    Peek(Wish),
    /// Posts without looking at what waits.
    Queue(Wish),
    /// Asks what falls to each posted receive.
    WaitingFor,
    /// With any key ever given out, live or stale.
    Withdraw(usize),
    Touch(usize),
    Take(usize),
    /// A message taken earlier comes back with its old arrival; offered to the receives first, or
    /// not.
    PutBack(usize, bool),
    Resolve(usize),
    Forget(usize),
    TakeDirected(usize),
    TakePosted,
    TakeWaiting,
}

/// From which peer, and which tag and ignored bits.
type Wish = (Option<usize>, Option<(u64, u64)>);

#[derive(Clone, Debug)]
struct Sent {
    peer: usize,
    /// Whether the peer's address is known by now.
    known: bool,
    tag: Option<u64>,
    /// Whether the receives are asked before it waits, as they should.
    offered: bool,
}

/// One number per peer, as an address vector gives them out.
fn sources() -> [FiAddr; PEERS] {
    let mut table = AddressTable::new();
    std::array::from_fn(|peer| {
        table.insert(Address::new(Scheme::Sim, &format!("peer{peer}")).expect("a legal name"))
    })
}

fn tag() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![1 => Just(None), 3 => (0..3u64).prop_map(Some)]
}

fn sent() -> impl Strategy<Value = Sent> {
    (0..PEERS, any::<bool>(), tag(), prop::bool::weighted(0.95)).prop_map(
        |(peer, known, tag, offered)| Sent {
            peer,
            known,
            tag,
            offered,
        },
    )
}

fn wish() -> impl Strategy<Value = Wish> {
    let from = prop_oneof![2 => Just(None), 3 => (0..PEERS).prop_map(Some)];
    let ignore = prop_oneof![3 => Just(0), 1 => Just(1), 1 => Just(2), 2 => Just(u64::MAX)];
    (
        from,
        prop_oneof![1 => Just(None), 3 => (0..3u64, ignore).prop_map(Some)],
    )
}

fn step() -> impl Strategy<Value = Step> {
    let pick = 0..1000usize;
    prop_oneof![
        32 => sent().prop_map(Step::Arrive),
        32 => wish().prop_map(Step::Post),
        8 => wish().prop_map(Step::Peek),
        8 => wish().prop_map(Step::Queue),
        12 => Just(Step::WaitingFor),
        6 => pick.clone().prop_map(Step::Withdraw),
        4 => pick.clone().prop_map(Step::Touch),
        4 => pick.clone().prop_map(Step::Take),
        10 => (pick, prop::bool::weighted(0.8)).prop_map(|(pick, offered)| Step::PutBack(pick, offered)),
        6 => (0..PEERS).prop_map(Step::Resolve),
        4 => (0..PEERS).prop_map(Step::Forget),
        2 => (0..PEERS).prop_map(Step::TakeDirected),
        1 => prop_oneof![Just(Step::TakePosted), Just(Step::TakeWaiting)],
    ]
}

fn history() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..=60)
}

/// What a message is to the tests: its name, and how often it was touched.
type Body = (u64, u32);

/// Every receive and message by name, in the order the rules speak of.
#[derive(Default)]
struct Oracle {
    posted: Vec<(RecvSpec, u64)>,
    waiting: Vec<(Envelope, Body)>,
}

/// The rule of the manual, word for word.
fn fits(spec: &RecvSpec, envelope: &Envelope) -> bool {
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

impl Oracle {
    fn arrive(&mut self, envelope: &Envelope) -> Option<u64> {
        let place = self
            .posted
            .iter()
            .position(|(spec, _)| fits(spec, envelope))?;
        Some(self.posted.remove(place).1)
    }

    fn wait(&mut self, envelope: Envelope, body: Body) {
        self.waiting.push((envelope, body));
        self.waiting.sort_by_key(|(envelope, _)| envelope.arrival);
    }

    fn peek(&self, spec: &RecvSpec) -> Option<&Envelope> {
        self.waiting
            .iter()
            .map(|(envelope, _)| envelope)
            .find(|envelope| fits(spec, envelope))
    }

    fn post(&mut self, spec: RecvSpec, receive: u64) -> Option<(Envelope, Body)> {
        match self
            .waiting
            .iter()
            .position(|(envelope, _)| fits(&spec, envelope))
        {
            Some(place) => Some(self.waiting.remove(place)),
            None => {
                self.posted.push((spec, receive));
                None
            }
        }
    }

    /// The earliest message that would go to this receive if all were offered.
    fn waiting_for(&self, receive: u64) -> Option<&Envelope> {
        let first = |envelope: &Envelope| self.posted.iter().find(|(spec, _)| fits(spec, envelope));
        let falls =
            |envelope: &&Envelope| first(envelope).is_some_and(|(_, name)| *name == receive);
        self.waiting
            .iter()
            .map(|(envelope, _)| envelope)
            .find(falls)
    }

    fn withdraw(&mut self, receive: u64) -> Option<u64> {
        let place = self.posted.iter().position(|&(_, name)| name == receive)?;
        Some(self.posted.remove(place).1)
    }

    fn resolve(&mut self, peer: PeerKey, source: FiAddr) -> Vec<(u64, Envelope, Body)> {
        let mut matched = Vec::new();
        for (mut envelope, body) in std::mem::take(&mut self.waiting) {
            let news = envelope.peer == peer && envelope.source.is_none();
            if news {
                envelope.source = Some(source);
            }
            match if news { self.arrive(&envelope) } else { None } {
                Some(receive) => matched.push((receive, envelope, body)),
                None => self.waiting.push((envelope, body)),
            }
        }
        matched
    }

    fn forget(&mut self, source: FiAddr) {
        for (envelope, _) in &mut self.waiting {
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
type Tally = BTreeMap<&'static str, usize>;

/// The matcher, the oracle, and every key ever given out with the name of what it stood for.
struct Pair {
    matcher: Matcher<u64, Body>,
    oracle: Oracle,
    sources: [FiAddr; PEERS],
    posts: Vec<(PostKey, u64)>,
    /// With the number of the stay: a key is live while the body's latest stay is this one.
    waits: Vec<(WaitKey, u64)>,
    /// The key's position in `waits` of each message's latest stay.
    latest: BTreeMap<u64, usize>,
    /// Messages that were matched or taken, to be put back.
    out: Vec<(Envelope, Body)>,
    names: u64,
    tally: Tally,
}

impl Pair {
    fn new() -> Self {
        Self {
            matcher: Matcher::new(),
            oracle: Oracle::default(),
            sources: sources(),
            posts: Vec::new(),
            waits: Vec::new(),
            latest: BTreeMap::new(),
            out: Vec::new(),
            names: 0,
            tally: Tally::new(),
        }
    }

    fn count(&mut self, what: &'static str, times: usize) {
        *self.tally.entry(what).or_default() += times;
    }

    fn spec(&self, (from, tag): Wish) -> RecvSpec {
        let tag = tag.map(|(tag, ignore)| TagMatch { tag, ignore });
        RecvSpec {
            from: from.map(|peer| self.sources[peer]),
            tag,
        }
    }

    fn message(&mut self, sent: &Sent) -> (Envelope, Body) {
        let arrival = self.matcher.next_arrival();
        let source = sent.known.then_some(self.sources[sent.peer]);
        let (peer, len) = (PeerKey(sent.peer as u32), arrival as usize * 3);
        (
            Envelope {
                peer,
                source,
                tag: sent.tag,
                len,
                data: Some(!arrival),
                arrival,
                receipt: None,
            },
            (arrival, 0),
        )
    }

    fn keep(&mut self, envelope: Envelope, body: Body) {
        let key = self.matcher.wait(envelope.clone(), body);
        self.latest.insert(body.0, self.waits.len());
        self.waits.push((key, body.0));
        self.oracle.wait(envelope, body);
    }

    /// Offers a message to both sides; whether a receive took it.
    fn offer(&mut self, envelope: &Envelope, body: Body) -> bool {
        let expected = self
            .oracle
            .posted
            .iter()
            .any(|(spec, _)| fits(spec, envelope));
        assert_eq!(self.matcher.would_match(envelope), expected);
        let found = self.matcher.find(envelope).map(|(_, receive)| receive);
        let receive = self.matcher.arrive(envelope);
        assert_eq!(found, receive);
        assert_eq!(receive, self.oracle.arrive(envelope));
        if receive.is_some() {
            self.out.push((envelope.clone(), body));
        }
        receive.is_some()
    }

    /// Where the oracle keeps the message of this key, if the key is still good.
    fn place(&mut self, at: usize) -> Option<usize> {
        let (_, name) = self.waits[at];
        let place = self
            .oracle
            .waiting
            .iter()
            .position(|(_, body)| body.0 == name);
        let place = place.filter(|_| self.latest[&name] == at);
        self.count("stale message keys", place.is_none().into());
        place
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Arrive(sent) => {
                let (envelope, body) = self.message(&sent);
                if sent.offered && self.offer(&envelope, body) {
                    self.count("arrivals matched", 1);
                } else {
                    self.keep(envelope, body);
                }
            }
            Step::Post(wish) => {
                let spec = self.spec(wish);
                let receive = self.names;
                self.names += 1;
                let expected = self.oracle.post(spec, receive);
                match self.matcher.post(spec, receive) {
                    Posted::Queued(key) => {
                        assert_eq!(expected, None);
                        self.posts.push((key, receive));
                    }
                    Posted::Matched(envelope, body) => {
                        assert_eq!(expected, Some((envelope.clone(), body)));
                        self.out.push((envelope, body));
                        self.count("posts matched", 1);
                    }
                }
            }
            Step::Peek(wish) => {
                let spec = self.spec(wish);
                assert_eq!(self.matcher.peek(&spec), self.oracle.peek(&spec));
                let free = |envelope: &&Envelope| {
                    !self
                        .oracle
                        .posted
                        .iter()
                        .any(|(spec, _)| fits(spec, envelope))
                };
                let wanted = |envelope: &&Envelope| fits(&spec, envelope) && free(envelope);
                let expected = self
                    .oracle
                    .waiting
                    .iter()
                    .map(|(envelope, _)| envelope)
                    .find(wanted);
                assert_eq!(
                    self.matcher.unclaimed(&spec).map(|(_, envelope)| envelope),
                    expected
                );
                assert!(expected.is_none_or(|envelope| spec.accepts(envelope)));
                self.count("peeks that found", self.oracle.peek(&spec).is_some().into());
            }
            Step::Queue(wish) => {
                let spec = self.spec(wish);
                self.posts
                    .push((self.matcher.queue(spec, self.names), self.names));
                self.oracle.posted.push((spec, self.names));
                self.names += 1;
            }
            Step::WaitingFor => {
                for (spec, receive) in self.oracle.posted.clone() {
                    let key = self
                        .posts
                        .iter()
                        .find(|(_, name)| *name == receive)
                        .expect("it was posted")
                        .0;
                    let (found, expected) = (
                        self.matcher.waiting_for(&spec, key),
                        self.oracle.waiting_for(receive),
                    );
                    assert_eq!(found.map(|(_, envelope)| envelope), expected);
                    assert_eq!(
                        found.and_then(|(key, _)| self.matcher.message(key)),
                        expected
                    );
                    let falls = expected.is_some().into();
                    self.count("messages that fall to a receive", falls);
                }
            }
            Step::Withdraw(pick) if !self.posts.is_empty() => {
                let (key, receive) = self.posts[pick % self.posts.len()];
                let expected = self.oracle.withdraw(receive);
                assert_eq!(self.matcher.withdraw(key), expected);
                assert_eq!(self.matcher.withdraw(key), None);
                self.count("stale receive keys", expected.is_none().into());
                self.count("withdrawn", expected.is_some().into());
            }
            Step::Touch(pick) if !self.waits.is_empty() => {
                let at = pick % self.waits.len();
                let place = self.place(at);
                let found = self.matcher.message_mut(self.waits[at].0);
                let expected = place.map(|place| &mut self.oracle.waiting[place]);
                match (found, expected) {
                    (Some((envelope, body)), Some((wanted, wanted_body))) => {
                        assert_eq!((envelope, *body), (&*wanted, *wanted_body));
                        body.1 += 1;
                        wanted_body.1 += 1;
                    }
                    (found, expected) => assert!(found.is_none() && expected.is_none()),
                }
            }
            Step::Take(pick) if !self.waits.is_empty() => {
                let at = pick % self.waits.len();
                let expected = self
                    .place(at)
                    .map(|place| self.oracle.waiting.remove(place));
                let taken = self.matcher.take_message(self.waits[at].0);
                assert_eq!(taken, expected);
                self.out.extend(taken);
            }
            Step::PutBack(pick, offered) if !self.out.is_empty() => {
                let (envelope, body) = self.out.swap_remove(pick % self.out.len());
                if !(offered && self.offer(&envelope, body)) {
                    let last = self
                        .oracle
                        .waiting
                        .last()
                        .map(|(envelope, _)| envelope.arrival);
                    self.count(
                        "put back before a later one",
                        (last > Some(envelope.arrival)).into(),
                    );
                    self.keep(envelope, body);
                }
            }
            // Nothing to choose from yet.
            Step::Withdraw(_) | Step::Touch(_) | Step::Take(_) | Step::PutBack(..) => {}
            Step::Resolve(peer) => {
                let (peer, source) = (PeerKey(peer as u32), self.sources[peer]);
                let matched = self.matcher.resolve(&[peer], source);
                assert_eq!(matched, self.oracle.resolve(peer, source));
                self.count("matched by an insert", matched.len());
                self.out.extend(
                    matched
                        .into_iter()
                        .map(|(_, envelope, body)| (envelope, body)),
                );
            }
            Step::Forget(peer) => {
                self.matcher.forget(self.sources[peer]);
                self.oracle.forget(self.sources[peer]);
            }
            Step::TakeDirected(peer) => {
                let taken = self.matcher.take_directed(self.sources[peer]);
                assert_eq!(taken, self.oracle.take_directed(self.sources[peer]));
                self.count("directed receives taken", taken.len());
            }
            Step::TakePosted => {
                let expected: Vec<_> = self
                    .oracle
                    .posted
                    .drain(..)
                    .map(|(_, receive)| receive)
                    .collect();
                assert_eq!(self.matcher.take_posted(), expected);
            }
            Step::TakeWaiting => {
                let keys = self.matcher.waiting_keys();
                let shown: Vec<_> = keys
                    .iter()
                    .filter_map(|key| self.matcher.message(*key))
                    .collect();
                assert!(
                    shown.iter().copied().eq(self
                        .oracle
                        .waiting
                        .iter()
                        .map(|(envelope, _)| envelope))
                );
                let taken = self.matcher.take_waiting();
                assert_eq!(taken, std::mem::take(&mut self.oracle.waiting));
                self.out.extend(taken);
            }
        }
        assert_eq!(self.matcher.posted_len(), self.oracle.posted.len());
        assert_eq!(self.matcher.waiting_len(), self.oracle.waiting.len());
    }

    /// Runs a history and empties both sides at its end, so that everything left is compared too.
    fn run_all(mut self, history: Vec<Step>) -> Tally {
        for step in history
            .into_iter()
            .chain([Step::TakePosted, Step::TakeWaiting])
        {
            self.run(step);
        }
        self.tally
    }
}

proptest! {
    #![proptest_config(Config { cases: 256, failure_persistence: None, ..Config::default() })]

    #[test]
    fn every_answer_is_the_oracles(history in history()) {
        Pair::new().run_all(history);
    }
}

/// A generator that never lets anything match would prove nothing.
#[test]
fn the_histories_reach_what_they_are_for() {
    let mut runner = TestRunner::deterministic();
    let mut seen = Tally::new();
    for _ in 0..256 {
        let history = history()
            .new_tree(&mut runner)
            .expect("nothing is filtered")
            .current();
        for (what, times) in Pair::new().run_all(history) {
            *seen.entry(what).or_default() += times;
        }
    }
    assert_eq!(seen.len(), 10, "{seen:?}");
    assert!(seen.values().all(|&times| times >= 50), "{seen:?}");
}
