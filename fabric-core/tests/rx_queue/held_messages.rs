//! Messages that the budget has declined keep their place in the order of arrival, and get their
//! turn.

use std::collections::VecDeque;

use fabric_core::Error;
use fabric_core::matching::PeerKey;
use fabric_core::transport::OpKey;
use proptest::prelude::*;

use super::{CHECKS_PER_TIMEOUT, Fixture, envelope, spec};

const BUDGET: usize = 64 << 10;
const PEERS: u32 = 4;

#[derive(Clone, Copy, Debug)]
struct Message {
    id: u32,
    tag: u64,
    len: usize,
    /// When the message was offered to the queue first, and the queue gave it a place.
    arrived: Option<u32>,
    /// Whether the queue has accepted the message, and no receive has taken it.
    is_buffered: bool,
    /// Whether a probe has found the message.
    is_probed: bool,
}

impl Message {
    fn has_tag(&self, tag: Option<u64>) -> bool {
        tag.is_none_or(|tag| tag == self.tag)
    }
}

/// The queue, and a transport that holds the declined messages of each peer.
struct Model {
    fixture: Fixture,
    /// The messages of each peer that no receive has taken, the oldest first.
    outstanding: Vec<VecDeque<Message>>,
    /// Queued receives and claims, the oldest first.
    posted: Vec<(OpKey, Option<u64>)>,
    /// The tag and the parts of the multi-receive, while there is one: messages that wait for it
    /// have no place in the queue.
    multi: Option<(Option<u64>, Vec<OpKey>)>,
    time: u32,
    /// Receives that buffered messages have taken before a held one that has arrived first.
    passed: u32,
}

impl Model {
    fn new() -> Self {
        Self {
            fixture: Fixture::with_budget(BUDGET),
            outstanding: (0..PEERS).map(|_| VecDeque::new()).collect(),
            posted: Vec::new(),
            multi: None,
            time: 0,
            passed: 0,
        }
    }

    fn send(&mut self, peer: u32, tag: u64, len: usize) {
        self.time += 1;
        self.outstanding[peer as usize].push_back(Message {
            id: self.time,
            tag,
            len,
            arrived: None,
            is_buffered: false,
            is_probed: false,
        });
        self.deliver_from(peer);
    }

    /// Offers the messages of a peer to the queue, until one is declined.
    fn deliver_from(&mut self, peer: u32) {
        for message in &mut self.outstanding[peer as usize] {
            if message.is_buffered {
                continue;
            }
            self.time += 1;
            let engine = &self.fixture.engine;
            let is_last = |part: &OpKey| part.index.is_multiple_of(3);
            let waits_for_multi = self.multi.as_ref().is_some_and(|(tag, parts)| {
                let mut ended = parts.iter().filter(|part| is_last(part));
                message.has_tag(*tag) && !ended.any(|part| engine.outcome(*part).is_some())
            });
            if !waits_for_multi {
                message.arrived.get_or_insert(self.time);
            }
            let mut bytes = vec![0; message.len];
            bytes[..4].copy_from_slice(&message.id.to_le_bytes());
            if !self.fixture.deliver(peer + 1, message.tag, &bytes) {
                break;
            }
            message.is_buffered = true;
        }
        self.take_received();
    }

    fn deliver_all(&mut self) {
        (0..PEERS).for_each(|peer| self.deliver_from(peer));
    }

    /// Delivers the held message that is next.
    fn deliver_next(&mut self) {
        if let Some(PeerKey(peer)) = self.fixture.rx.next_held() {
            assert!(self.fixture.rx.must_report_post());
            self.deliver_from(peer - 1);
            self.fixture.rx.end_next_held(&mut self.fixture.engine);
        }
        assert_eq!(self.fixture.rx.next_held(), None);
    }

    /// Returns the id of the message that a receive has taken.
    fn received_id(&self, op: OpKey) -> Option<u32> {
        let (_, bytes) = self.fixture.engine.received(op)?;
        Some(u32::from_le_bytes(bytes[..4].try_into().unwrap()))
    }

    /// Removes the messages that queued receives have taken.
    fn take_received(&mut self) {
        for (op, tag) in std::mem::take(&mut self.posted) {
            let Some(id) = self.received_id(op) else {
                self.posted.push((op, tag));
                continue;
            };
            for messages in &mut self.outstanding {
                let taken = messages.iter().position(|message| message.id == id);
                if let Some(taken) = taken {
                    // Messages of one peer are received in the order in which they were sent.
                    let first = messages.iter().position(|message| message.has_tag(tag));
                    assert_eq!(first, Some(taken));
                    messages.remove(taken);
                }
            }
        }
    }

    /// Returns the outstanding messages of this tag that have a place.
    fn arrived(&self, tag: Option<u64>) -> Vec<Message> {
        let messages = self.outstanding.iter().flatten();
        let arrived = messages.filter(|message| message.has_tag(tag) && message.arrived.is_some());
        arrived.copied().collect()
    }

    /// Checks that a receive or probe finds the message that has arrived first, or the first
    /// buffered one. Of 64 that a held message and a later buffered one compete for, the last is
    /// for the held one.
    fn check_found(&mut self, messages: &[Message], found: Option<u32>) {
        let first = messages.iter().min_by_key(|message| message.arrived);
        let buffered = messages.iter().filter(|message| message.is_buffered);
        let buffered = buffered.min_by_key(|message| message.arrived);
        let is_held_first = first.is_some_and(|first| !first.is_buffered);
        let was_probed = buffered.is_some_and(|buffered| buffered.is_probed);
        let has_turn = is_held_first && first.is_some_and(|first| first.is_probed);
        let competes = is_held_first && buffered.is_some() && !was_probed && !has_turn;
        if found == first.map(|first| first.id) && !(is_held_first && was_probed) {
            if competes {
                assert_eq!(self.passed, 63);
                self.passed = 0;
            }
        } else {
            assert_eq!(found, buffered.map(|buffered| buffered.id));
            assert!(!has_turn || was_probed);
            self.passed += u32::from(competes);
            assert!(self.passed < 64);
        }
    }

    fn post(&mut self, tag: Option<u64>) {
        let arrived = self.arrived(tag);
        let op = self.fixture.new_op();
        self.posted.push((op, tag));
        let Fixture { rx, engine, .. } = &mut self.fixture;
        rx.post(engine, op, spec(tag));
        self.deliver_next();
        self.check_found(&arrived, self.received_id(op));
        self.take_received();
        self.deliver_all();
    }

    /// Posts a probe, which is canceled if it finds no message now. Returns the length of the
    /// message that it finds.
    fn probe(&mut self, tag: Option<u64>) -> Option<usize> {
        let arrived = self.arrived(tag);
        let before = self.fixture.rx.unexpected();
        let op = self.fixture.new_op();
        let Fixture { rx, engine, .. } = &mut self.fixture;
        rx.probe(engine, op, spec(tag));
        // A probe buffers nothing.
        assert_eq!((rx.next_held(), rx.unexpected()), (None, before));
        // The lengths of the messages differ.
        let found = self.fixture.engine.outcome(op);
        let found = found.map(|outcome| outcome.transfer.len);
        let message = arrived.iter().find(|message| Some(message.len) == found);
        assert_eq!(found, message.map(|message| message.len));
        self.check_found(&arrived, message.map(|message| message.id));
        self.fixture.rx.cancel(&mut self.fixture.engine, op);
        let found = found?;
        let mut messages = self.outstanding.iter_mut().flatten();
        let message = messages.find(|message| message.has_tag(tag) && message.len == found);
        message.unwrap().is_probed = true;
        Some(found)
    }

    /// Claims and receives the message that a probe finds.
    fn claim(&mut self, tag: Option<u64>) {
        let Some(found) = self.probe(tag) else {
            return;
        };
        let Fixture { rx, engine, .. } = &mut self.fixture;
        rx.prepare_claim(engine, &spec(tag)).unwrap();
        self.deliver_next();
        let (id, claimed) = self.fixture.rx.claim(&spec(tag)).unwrap();
        assert_eq!(claimed.len, found);
        let op = self.fixture.new_op();
        self.posted.push((op, tag));
        let Fixture { rx, engine, .. } = &mut self.fixture;
        rx.receive_claimed(engine, op, id);
        assert_eq!(self.fixture.received_len(op), Some(found));
        self.take_received();
        self.deliver_all();
    }

    /// Posts a multi-receive that takes up to `count` unexpected messages.
    fn multi_recv(&mut self, tag: Option<u64>, count: usize) {
        let mut arrived = self.arrived(tag);
        let multi = self.fixture.new_op();
        let parts: Vec<_> = (0..count).map(|_| self.fixture.new_op()).collect();
        self.posted.extend(parts.iter().map(|part| (*part, tag)));
        self.multi = Some((tag, parts.clone()));
        let Fixture { rx, engine, .. } = &mut self.fixture;
        engine.parts = parts.iter().rev().copied().collect();
        rx.post_multi(engine, multi, spec(tag));
        self.deliver_next();
        while self.fixture.rx.drain_unexpected(&mut self.fixture.engine) {
            self.deliver_next();
        }
        let received: Vec<_> = parts
            .iter()
            .map_while(|part| self.received_id(*part))
            .collect();
        for id in received {
            self.check_found(&arrived, Some(id));
            arrived.retain(|message| message.id != id);
        }
        self.fixture.rx.cancel(&mut self.fixture.engine, multi);
        self.multi = None;
        self.fixture.engine.parts.clear();
        self.take_received();
        self.posted.retain(|(op, _)| !parts.contains(op));
        self.deliver_all();
    }

    /// Lets all peers but the first one fill their shares.
    fn fill_shares(&mut self) {
        for peer in 1..PEERS {
            while self.outstanding[peer as usize]
                .iter()
                .all(|message| message.is_buffered)
            {
                // Another length for each message.
                self.send(peer, 1, 1000 + self.time as usize % 20_000);
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Send(u32, u64, usize),
    Post(Option<u64>),
    Probe(Option<u64>),
    Claim(Option<u64>),
    MultiRecv(Option<u64>, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let tag = || proptest::option::of(1..4u64);
    prop_oneof![
        6 => (0..PEERS, 1..4u64, 0..230usize).prop_map(|(p, t, l)| Step::Send(p, t, l << 8)),
        6 => (0..PEERS, 1..4u64, 0..2usize).prop_map(|(p, t, l)| Step::Send(p, t, l << 8)),
        6 => tag().prop_map(Step::Post),
        1 => tag().prop_map(Step::Probe),
        1 => tag().prop_map(Step::Claim),
        1 => (tag(), 0..8usize).prop_map(|(tag, count)| Step::MultiRecv(tag, count)),
    ]
}

proptest! {
    #[test]
    fn receives_take_messages_in_order_and_held_ones_in_their_turn(
        steps in proptest::collection::vec(step(), 1..200),
    ) {
        let mut model = Model::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                // Each message has another length.
                Step::Send(peer, tag, len) => model.send(peer, tag, len + 4 + number),
                Step::Post(tag) => model.post(tag),
                Step::Probe(tag) => drop(model.probe(tag)),
                Step::Claim(tag) => model.claim(tag),
                Step::MultiRecv(tag, count) => model.multi_recv(tag, count),
            }
        }
    }
}

/// Peers that fill their shares again after each receive do not delay messages that no share has
/// room for.
#[test]
fn long_messages_are_received_while_other_peers_fill_their_shares() {
    let run = |what: &str, receive: &dyn Fn(&mut Model)| {
        let mut model = Model::new();
        model.fill_shares();
        // When one is received, the next one is held at once.
        (0..3).for_each(|more| model.send(0, 1, BUDGET + more));
        // The messages that the other peers' connections hold may be older.
        for _ in 0..64 * (PEERS + 3) {
            receive(&mut model);
            model.fill_shares();
        }
        assert!(model.outstanding[0].is_empty(), "{what}");
    };
    run("receives", &|model| model.post(None));
    run("claims", &|model| model.claim(None));
    run("multi-receives", &|model| model.multi_recv(None, 3));
    run("receives after probes", &|model| {
        model.probe(None);
        model.post(None);
    });
}

/// A held message that does not fit into the rest of a multi-receive has the next one.
#[test]
fn turn_that_a_multi_receive_cannot_use_stays() {
    let mut fixture = Fixture::with_budget(BUDGET);
    assert!(!fixture.deliver(1, 5, &[1; BUDGET]));
    let post_multi = |fixture: &mut Fixture| {
        let (multi, part) = (fixture.new_op(), fixture.new_op());
        fixture.engine.parts = vec![part];
        let Fixture { rx, engine } = fixture;
        rx.post_multi(engine, multi, spec(None));
        (multi, part)
    };
    for _ in 0..63 {
        assert!(fixture.deliver(2, 5, &[2; 8]));
        let op = fixture.post(None);
        assert_eq!(fixture.received_len(op), Some(8));
    }
    for fits in [false, true] {
        assert!(fixture.deliver(2, 5, &[2; 8]));
        fixture.engine.too_long_for_parts = (!fits).then_some(BUDGET);
        let (multi, part) = post_multi(&mut fixture);
        assert_eq!(fixture.rx.next_held(), Some(PeerKey(1)), "{fits}");
        assert_eq!(fixture.deliver(1, 5, &[1; BUDGET]), fits);
        // The multi-receive takes no other message of the peer before the buffered ones.
        assert!(!fits || !fixture.deliver(1, 5, &[1; 9]));
        fixture.rx.end_next_held(&mut fixture.engine);
        assert_eq!(fixture.received_len(part), fits.then_some(BUDGET));
        fixture.rx.cancel(&mut fixture.engine, multi);
    }
}

/// The messages that an ended multi-receive leaves go to the next one in turns with a held one.
#[test]
fn multi_receive_behind_another_takes_turns() {
    let mut fixture = Fixture::with_budget(BUDGET);
    assert!(!fixture.deliver(1, 5, &[1; BUDGET]));
    for _ in 0..50 {
        assert!(fixture.deliver(2, 5, &[2; 8]));
        let op = fixture.post(None);
        assert_eq!(fixture.received_len(op), Some(8));
    }
    for _ in 0..30 {
        assert!(fixture.deliver(2, 5, &[2; 8]));
    }
    // The completion queue of the first one is full. Then there is room for its last part.
    for _ in 0..2 {
        let multi = fixture.new_op();
        let Fixture { rx, engine } = &mut fixture;
        rx.post_multi(engine, multi, spec(None));
    }
    let ops: Vec<_> = (0..60).map(|_| fixture.new_op()).collect();
    let (last, others): (Vec<_>, Vec<_>) = ops.iter().partition(|op| op.index % 3 == 0);
    fixture.engine.parts = [&others[..], &last[..1]].concat();
    while fixture.rx.next_held().is_none() {
        assert!(fixture.rx.drain_unexpected(&mut fixture.engine));
    }
    assert_eq!(fixture.rx.unexpected().0, 30 - 13);
}

/// A receive that takes a buffered message because another message was lost is counted.
#[test]
fn restored_receives_count_for_the_turn() {
    let mut fixture = Fixture::with_budget(BUDGET);
    let receives: Vec<_> = (3..66)
        .map(|peer| (fixture.post(None), fixture.begin(peer, 5, 5000, 100)))
        .collect();
    assert!(!fixture.deliver(1, 5, &[1; BUDGET]));
    for (op, lost) in receives {
        assert!(fixture.deliver(2, 5, &[2; 8]));
        let Fixture { rx, engine } = &mut fixture;
        rx.fail_partial(engine, lost, Error::Canceled);
        assert_eq!(fixture.received_len(op), Some(8));
    }
    assert!(fixture.deliver(2, 5, &[2; 8]));
    let op = fixture.new_op();
    fixture.rx.post(&mut fixture.engine, op, spec(None));
    assert_eq!(fixture.rx.next_held(), Some(PeerKey(1)));
}

/// Held messages that begin and stop get few of the receives that buffered messages could take.
#[test]
fn held_messages_that_stall_get_their_turn_less_often() {
    const STOPPED: u32 = 8;
    let mut fixture = Fixture::with_budget(BUDGET);
    for peer in 1..=STOPPED {
        let message = envelope(peer, 1, BUDGET);
        assert!(
            fixture
                .rx
                .begin_partial(&mut fixture.engine, message)
                .is_none()
        );
    }
    let mut turns = 0;
    for _ in 0..4_000 {
        assert!(fixture.deliver(100, 1, &[1; 100]));
        let op = fixture.new_op();
        fixture.rx.post(&mut fixture.engine, op, spec(None));
        let Some(PeerKey(peer)) = fixture.rx.next_held() else {
            assert_eq!(fixture.received_len(op), Some(100));
            continue;
        };
        turns += 1;
        let message = envelope(peer, 1, BUDGET);
        let begun = fixture.rx.begin_partial(&mut fixture.engine, message);
        fixture.rx.end_next_held(&mut fixture.engine);
        // The message stops. Its connection ends, and the receive takes the buffered message.
        assert_eq!(fixture.check(2), [PeerKey(peer)]);
        let error = Error::PeerGone("tcp://127.0.0.1:1".parse().unwrap());
        fixture
            .rx
            .fail_partial(&mut fixture.engine, begun.unwrap(), error);
        assert_eq!(fixture.received_len(op), Some(100));
    }
    assert_eq!(turns, 5, "after 64, 256, 512, 1024 and 2048 receives");
}

/// As [`held_messages_that_stall_get_their_turn_less_often`], for claimed messages, whose receives
/// no other message takes.
#[test]
fn claimed_messages_that_stall_get_their_turn_less_often() {
    let mut fixture = Fixture::with_budget(BUDGET);
    let held = |peer| envelope(peer, 1, BUDGET);
    for peer in 1..=8 {
        let begun = fixture.rx.begin_partial(&mut fixture.engine, held(peer));
        assert!(begun.is_none());
    }
    let mut turns = 0;
    for _ in 0..4_000 {
        assert!(fixture.deliver(100, 1, &[1; 100]));
        let (probe, op) = (fixture.new_op(), fixture.new_op());
        let Fixture { rx, engine } = &mut fixture;
        rx.probe(engine, probe, spec(None));
        rx.prepare_claim(engine, &spec(None)).unwrap();
        let next = rx.next_held();
        let begun = next.and_then(|PeerKey(peer)| rx.begin_partial(engine, held(peer)));
        rx.end_next_held(engine);
        let (claim, found) = rx.claim(&spec(None)).unwrap();
        rx.receive_claimed(engine, op, claim);
        let Some(begun) = begun else {
            assert_eq!(found.len, 100);
            continue;
        };
        turns += 1;
        assert_eq!(found.len, BUDGET);
        assert_eq!(fixture.check(CHECKS_PER_TIMEOUT as usize), [next.unwrap()]);
        let Fixture { rx, engine } = &mut fixture;
        rx.fail_partial(engine, begun, Error::Canceled);
        let op = fixture.post(None);
        assert_eq!(fixture.received_len(op), Some(100));
    }
    assert_eq!(turns, 5, "after 64, 256, 512, 1024 and 2048 claims");
}

/// A message that the budget has room for, but for which there is no memory, keeps its place.
#[test]
fn message_without_memory_keeps_its_place() {
    const TOO_LONG: usize = 1 << 50;
    let mut fixture = Fixture::with_budget(usize::MAX);
    let begun = fixture
        .rx
        .begin_partial(&mut fixture.engine, envelope(1, 1, TOO_LONG));
    assert_eq!(begun, None);
    assert!(!fixture.deliver_envelope(envelope(2, 1, TOO_LONG)));
    assert!(!fixture.rx.has_peers_over_budget());
    for peer in [1, 2] {
        let op = fixture.new_op();
        let Fixture { rx, engine } = &mut fixture;
        rx.post(engine, op, spec(None));
        assert_eq!(rx.next_held(), Some(PeerKey(peer)));
        assert!(rx.deliver(engine, envelope(peer, 1, 4), &&b"here"[..]));
        rx.end_next_held(engine);
        assert_eq!(fixture.received_len(op), Some(4));
    }
}

/// A queue with a held message is not empty: an inline receive would take a later message.
#[test]
fn queue_with_a_held_message_is_not_empty() {
    let mut fixture = Fixture::with_budget(BUDGET);
    assert!(fixture.rx.is_empty());
    assert!(!fixture.deliver(1, 1, &[1; BUDGET]));
    assert!(!fixture.rx.is_empty());
    let op = fixture.new_op();
    let Fixture { rx, engine } = &mut fixture;
    rx.post(engine, op, spec(None));
    assert!(fixture.deliver(1, 1, &[1; BUDGET]));
    fixture.rx.end_next_held(&mut fixture.engine);
    assert_eq!(fixture.received_len(op), Some(BUDGET));
    assert!(fixture.rx.is_empty());
}

/// A message that the transport drops has no place in the order of arrival, and no probe finds it.
#[test]
fn dropped_message_leaves_no_place() {
    let mut fixture = Fixture::with_budget(BUDGET);
    fixture.rx.set_drops_declined();
    let probe = fixture.new_op();
    fixture.rx.probe(&mut fixture.engine, probe, spec(None));
    assert!(!fixture.deliver(1, 1, &[1; BUDGET]));
    assert!(!fixture.rx.has_peers_over_budget() && !fixture.rx.take_declined());
    assert!(fixture.deliver(2, 1, b"older"));
    assert!(fixture.deliver(1, 1, b"newest"));
    let found = fixture.engine.outcome(probe).unwrap();
    assert_eq!(found.transfer.len, 5);
    let op = fixture.post(None);
    assert_eq!(fixture.received_len(op), Some(5));
}

/// Probes find a held message, also one that is declined while they wait, and buffer nothing. A
/// claim has the message buffered, and the next message of the peer is declined.
#[test]
fn probes_find_held_messages_and_claims_buffer_them() {
    let mut fixture = Fixture::with_budget(BUDGET);
    let found_len = |fixture: &Fixture, probe| {
        let outcome = fixture.engine.outcome(probe);
        outcome.map(|outcome| outcome.transfer.len)
    };
    let probe = |fixture: &mut Fixture| {
        let probe = fixture.new_op();
        let Fixture { rx, engine } = fixture;
        rx.probe(engine, probe, spec(None));
        probe
    };
    let waiting = [probe(&mut fixture), probe(&mut fixture)];
    assert!(!fixture.deliver(1, 1, &[1; BUDGET]));
    assert_eq!(waiting.map(|op| found_len(&fixture, op)), [Some(BUDGET); 2]);
    // It has been found, and so is first although the budget has room for others.
    for _ in 0..20 {
        assert!(fixture.deliver(2, 1, &[2; 8]));
        let found = probe(&mut fixture);
        assert_eq!(found_len(&fixture, found), Some(BUDGET));
    }
    assert_eq!(fixture.rx.unexpected().0, 20);
    let Fixture { rx, engine } = &mut fixture;
    rx.prepare_claim(engine, &spec(None)).unwrap();
    assert_eq!(rx.next_held(), Some(PeerKey(1)));
    assert!(fixture.deliver(1, 1, &[1; BUDGET]));
    assert!(!fixture.deliver(1, 1, &[1; BUDGET + 1]));
    assert!(!fixture.rx.end_next_held(&mut fixture.engine));
    let (claim, claimed) = fixture.rx.claim(&spec(None)).unwrap();
    assert_eq!(claimed.len, BUDGET);
    let op = fixture.new_op();
    let Fixture { rx, engine } = &mut fixture;
    rx.receive_claimed(engine, op, claim);
    assert_eq!(fixture.received_len(op), Some(BUDGET));
}

/// If there is no memory for a held message that is claimed, the message has to wait for its turn.
#[test]
fn claim_without_memory_is_declined() {
    const TOO_LONG: usize = 1 << 50;
    let mut fixture = Fixture::with_budget(BUDGET);
    assert!(!fixture.deliver_envelope(envelope(1, 1, TOO_LONG)));
    let found = fixture.new_op();
    fixture.rx.probe(&mut fixture.engine, found, spec(None));
    assert!(fixture.engine.outcome(found).is_some());
    assert!(fixture.deliver(2, 1, b"short"));
    let Fixture { rx, engine } = &mut fixture;
    rx.prepare_claim(engine, &spec(None)).unwrap();
    assert_eq!(rx.next_held(), Some(PeerKey(1)));
    assert!(!fixture.deliver_envelope(envelope(1, 1, TOO_LONG)));
    let Fixture { rx, engine } = &mut fixture;
    assert!(rx.end_next_held(engine));
    rx.prepare_claim(engine, &spec(None)).unwrap();
    assert_eq!(rx.next_held(), None);
    let (_, claimed) = rx.claim(&spec(None)).unwrap();
    assert_eq!(claimed.len, 5);
}

/// A posted receive does not stay with a stalled message while another message is held.
#[test]
fn messages_stay_in_order_while_one_is_stalled_and_one_is_held() {
    let mut fixture = Fixture::with_budget(BUDGET);
    let stalled = fixture.begin(1, 3, 5000, 100);
    assert!(fixture.deliver(2, 3, b"first"));
    assert!(!fixture.deliver(3, 9, &[7; BUDGET]), "another tag");
    fixture.check(3);
    let op = fixture.post(Some(3));
    assert!(fixture.deliver(2, 3, b"second"));
    assert_eq!(fixture.engine.received(op).unwrap().1, b"first");
    fixture.append(stalled, 4900);
}

/// A message whose transport does not hold it any more does not keep a receive from a buffered one.
#[test]
fn receive_takes_a_buffered_message_if_the_held_one_does_not_come() {
    let mut fixture = Fixture::with_budget(BUDGET);
    assert!(!fixture.deliver(1, 5, &[1; BUDGET]));
    for turn in 1.. {
        assert!(fixture.deliver(2, 5, &[2; 8]));
        let op = fixture.new_op();
        fixture.rx.post(&mut fixture.engine, op, spec(None));
        let next = fixture.rx.next_held();
        if next.is_none() {
            assert_eq!(fixture.received_len(op), Some(8));
            continue;
        }
        assert_eq!((turn, next), (64, Some(PeerKey(1))));
        assert_eq!(fixture.received_len(op), None);
        fixture.rx.end_next_held(&mut fixture.engine);
        assert_eq!(fixture.received_len(op), Some(8));
        break;
    }
    // The held message has lost its place.
    let op = fixture.new_op();
    fixture.rx.post(&mut fixture.engine, op, spec(None));
    assert_eq!(fixture.rx.next_held(), None);
}
