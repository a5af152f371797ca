//! Claims of held messages are buffered beyond the budget within a limit, and fail beyond it: no
//! claim waits for room.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::sync::Arc;

use fabric_core::buf::{CopySource, PeerMemory, PooledBuf};
use fabric_core::matching::PeerKey;
use fabric_core::rx::{BudgetGroup, ClaimId, PartialId};
use fabric_core::{Address, Error, Resource, Result};
use proptest::prelude::*;

use super::{Fixture, envelope, spec};

const BUDGET: usize = 64 << 10;
/// The length of a message of which two fit beyond the budget, if other peers have sent them.
const LEN: usize = 15 << 10;

/// Claims a message of this length that the transport holds for a peer, whose number is its tag.
fn claim(fixture: &mut Fixture, peer: u32, len: usize) -> Result<ClaimId> {
    let spec = spec(Some(peer.into()));
    let probe = fixture.new_op();
    fixture.rx.probe(&mut fixture.engine, probe, spec);
    let found = fixture.engine.outcome(probe).expect("a message waits");
    assert_eq!(found.transfer.len, len);
    fixture.rx.prepare_claim(&mut fixture.engine, &spec)?;
    if fixture.rx.next_held() == Some(PeerKey(peer)) {
        assert!(fixture.deliver(peer, peer.into(), &vec![1; len]));
        assert!(!fixture.rx.end_next_held(&mut fixture.engine));
    }
    let (id, claimed) = fixture.rx.claim(&spec).expect("a message waits");
    assert_eq!(claimed.len, len);
    Ok(id)
}

/// Returns the error of a claim beyond the limit.
fn beyond_limit(fixture: &Fixture, len: usize) -> Error {
    Error::WouldBlock(Resource::BufferBeyondBudget {
        len,
        in_use: fixture.rx.unexpected().1,
        limit: BUDGET,
    })
}

fn receive_claimed(fixture: &mut Fixture, id: ClaimId) -> Option<usize> {
    let op = fixture.new_op();
    fixture.rx.receive_claimed(&mut fixture.engine, op, id);
    fixture.received_len(op)
}

fn name() -> Address {
    "tcp://127.0.0.1:1".parse().unwrap()
}

/// One message of any length is buffered beyond the budget. Until it is received or discarded, the
/// claim of another held message fails, and unexpected messages still have the whole budget.
#[test]
fn claim_beyond_the_limit_fails_until_the_longest_message_is_taken() {
    let mut fixture = Fixture::with_budget(BUDGET);
    for peer in 1..4 {
        assert!(!fixture.deliver(peer, peer.into(), &[1; BUDGET]));
    }
    for peer in [1, 2, 3] {
        let id = claim(&mut fixture, peer, BUDGET).unwrap();
        for other in peer + 1..4 {
            let error = beyond_limit(&fixture, BUDGET);
            assert_eq!(claim(&mut fixture, other, BUDGET), Err(error));
        }
        let short = fixture.deliver(10 + peer, 9, &[1; BUDGET / 4]);
        assert!(short, "the budget is unused");
        let op = fixture.post(Some(9));
        assert_eq!(fixture.received_len(op), Some(BUDGET / 4));
        if peer == 2 {
            fixture.rx.discard_claimed(id);
        } else {
            assert_eq!(receive_claimed(&mut fixture, id), Some(BUDGET));
        }
        assert_eq!(fixture.rx.unexpected(), (0, 0));
    }
}

/// The message of a dropped claim stays buffered and counts. A claim that has no room
/// because of it is told so, and has room once a receive has taken the message.
#[test]
fn dropped_claims_count_until_their_messages_are_received() {
    let mut fixture = Fixture::with_budget(BUDGET);
    for peer in 1..3 {
        assert!(!fixture.deliver(peer, peer.into(), &[1; BUDGET]));
    }
    for round in 0..3 {
        let id = claim(&mut fixture, 1, BUDGET).expect("the message is buffered already");
        fixture.rx.release_claim(&mut fixture.engine, id);
        assert_eq!(fixture.rx.unexpected().0, 1, "round {round}");
        let error = beyond_limit(&fixture, BUDGET);
        assert_eq!(claim(&mut fixture, 2, BUDGET), Err(error));
    }
    let op = fixture.post(Some(1));
    assert_eq!(fixture.received_len(op), Some(BUDGET));
    let id = claim(&mut fixture, 2, BUDGET).unwrap();
    assert_eq!(receive_claimed(&mut fixture, id), Some(BUDGET));
    // The result of a receive is dropped, and its message returns.
    assert!(!fixture.deliver(3, 3, &[1; BUDGET]));
    let Fixture { rx, engine } = &mut fixture;
    let mut bytes = PooledBuf::empty();
    bytes.extend_from_slice(&[4; BUDGET]);
    rx.requeue_message(engine, envelope(4, 4, BUDGET), None, bytes);
    let error = beyond_limit(&fixture, BUDGET);
    assert_eq!(claim(&mut fixture, 3, BUDGET), Err(error));
    let op = fixture.post(Some(4));
    assert_eq!(fixture.received_len(op), Some(BUDGET));
    assert!(claim(&mut fixture, 3, BUDGET).is_ok());
}

/// The message of a dropped claim is charged to the budget if that has room by then.
#[test]
fn message_of_a_dropped_claim_returns_to_the_budget() {
    let mut fixture = Fixture::with_budget(BUDGET);
    assert!(fixture.deliver(1, 9, &[1; LEN]));
    assert!(fixture.deliver(1, 9, &[1; 8000]));
    for peer in [1, 2] {
        assert!(!fixture.deliver(peer, peer.into(), &[1; LEN]));
    }
    let id = claim(&mut fixture, 1, LEN).unwrap();
    for _ in 0..2 {
        fixture.post(Some(9));
    }
    fixture.rx.release_claim(&mut fixture.engine, id);
    assert!(fixture.rx.unexpected().1 > LEN);
    // Nothing is beyond the budget: a message of any length can be claimed.
    assert!(!fixture.deliver(3, 3, &[1; 2 * BUDGET]));
    let id = claim(&mut fixture, 3, 2 * BUDGET).unwrap();
    assert_eq!(receive_claimed(&mut fixture, id), Some(2 * BUDGET));
}

/// Each peer has a share of the limit, as of the budget, and the peers of one source share one.
#[test]
fn peers_have_shares_of_the_limit() {
    let mut fixture = Fixture::with_budget(BUDGET);
    for peer in 1..6 {
        fixture.rx.set_budget_group(PeerKey(peer), BudgetGroup(7));
    }
    // These fill the budget.
    for peer in 20..40 {
        while fixture.deliver(peer, 9, &[1; 900]) {}
    }
    let hold = |fixture: &mut Fixture, peer: u32| {
        assert!(!fixture.deliver(peer, peer.into(), &[1; LEN]));
    };
    let used = fixture.rx.unexpected().1;
    for peer in 1..6 {
        hold(&mut fixture, peer);
    }
    let claims = (1..6).map(|peer| claim(&mut fixture, peer, LEN));
    let claims: Vec<_> = claims.filter_map(Result::ok).collect();
    assert_eq!(
        claims.len(),
        1,
        "the peers of a source have half of the limit"
    );
    hold(&mut fixture, 6);
    assert!(
        claim(&mut fixture, 6, LEN).is_ok(),
        "a peer of another source"
    );
    assert!(fixture.rx.unexpected().1 <= used + BUDGET);
    // The peers leave. What they use is returned with their messages.
    for peer in 1..6 {
        fixture.rx.disconnect_peer(PeerKey(peer), name());
    }
    for id in claims {
        assert_eq!(receive_claimed(&mut fixture, id), Some(LEN));
    }
    hold(&mut fixture, 7);
    assert!(claim(&mut fixture, 7, LEN).is_ok());
}

/// Memory of a sender that is not mapped here.
struct SenderMemory(usize);

impl CopySource for SenderMemory {
    fn len(&self) -> usize {
        self.0
    }
    fn copy_to<'d>(&self, _: usize, dst: &'d mut [MaybeUninit<u8>]) -> &'d mut [u8] {
        let ones = vec![1; dst.len()];
        (&ones[..]).copy_to(0, dst)
    }
    fn copy_to_init(&self, _: usize, dst: &mut [u8]) {
        dst.fill(1);
    }
}

impl PeerMemory for SenderMemory {
    fn is_mapped(&self) -> bool {
        false
    }
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// The entry of a message in memory of its sender is beyond the budget while the message is
/// claimed, and is charged to the budget with the copy of the message.
#[test]
fn message_in_memory_of_its_sender_moves_to_the_budget() {
    const LONG: usize = 10_000;
    let mut fixture = Fixture::with_budget(BUDGET);
    let mut charged = 0;
    while fixture.rx.charge_peer(PeerKey(1), 100) {
        charged += 100;
    }
    let memory: Arc<dyn PeerMemory> = Arc::new(SenderMemory(LONG));
    let held = spec(Some(1));
    let Fixture { rx, engine } = &mut fixture;
    assert!(!rx.deliver_peer_memory(engine, envelope(1, 1, LONG), &memory));
    rx.prepare_claim(engine, &held).unwrap();
    assert_eq!(rx.next_held(), Some(PeerKey(1)));
    assert!(rx.deliver_peer_memory(engine, envelope(1, 1, LONG), &memory));
    assert!(!rx.end_next_held(engine));
    let (id, _) = rx.claim(&held).unwrap();
    assert_eq!(rx.unexpected().1, charged + 320);
    rx.release_claim(engine, id);
    while rx.copy_next_chunk(engine) {}
    let used = rx.unexpected().1;
    assert_eq!(used, charged + 320, "there is no room for a copy");
    rx.release_peer(PeerKey(1), charged);
    while rx.copy_next_chunk(engine) {}
    assert!(rx.unexpected().1 > LONG);
    let op = fixture.post(Some(1));
    assert_eq!(fixture.received_len(op), Some(LONG));
    assert_eq!(fixture.rx.unexpected(), (0, 0));
    // Nothing is beyond the budget: a message of any length can be claimed.
    assert!(!fixture.deliver(2, 2, &[1; 2 * BUDGET]));
    assert!(!fixture.deliver(3, 3, &[1; 2 * BUDGET]));
    assert!(claim(&mut fixture, 2, 2 * BUDGET).is_ok());
    assert!(claim(&mut fixture, 3, 2 * BUDGET).is_err());
}

/// A step of a program that claims messages, and of its peers.
#[derive(Clone, Copy, Debug)]
enum Step {
    Send(u32, usize),
    Claim(u32),
    Receive(usize),
    Discard(usize),
    Drop(usize),
    Post(u32),
    /// The peer leaves: the rest of an arriving message is lost, and its held one too.
    Leave(u32),
    /// The rest of an arriving message arrives.
    Complete(usize),
}

const PEERS: u32 = 6;

fn step() -> impl Strategy<Value = Step> {
    let at = 0..8usize;
    prop_oneof![
        4 => (1..=PEERS, 1..2 * BUDGET).prop_map(|(peer, len)| Step::Send(peer, len)),
        6 => (1..=PEERS).prop_map(Step::Claim),
        2 => at.clone().prop_map(Step::Receive),
        1 => at.clone().prop_map(Step::Discard),
        3 => at.clone().prop_map(Step::Drop),
        1 => (1..=PEERS).prop_map(Step::Post),
        1 => (1..=PEERS).prop_map(Step::Leave),
        2 => at.prop_map(Step::Complete),
    ]
}

/// The queue, a transport that holds messages, and a program that claims them.
struct Model {
    fixture: Fixture,
    /// The lengths of the messages of each peer that the queue has not accepted.
    held: Vec<VecDeque<usize>>,
    /// The key of each peer: a peer that has left connects again under another one.
    keys: Vec<u32>,
    arriving: Vec<(u32, PartialId)>,
    claims: Vec<ClaimId>,
    /// The length of the longest message.
    longest: usize,
}

impl Model {
    fn new() -> Self {
        Self {
            fixture: Fixture::with_budget(BUDGET),
            held: vec![VecDeque::new(); PEERS as usize + 1],
            keys: (0..=PEERS).collect(),
            arriving: Vec::new(),
            claims: Vec::new(),
            longest: 0,
        }
    }

    /// Offers the messages of a peer, until one is declined or is arriving.
    fn deliver_from(&mut self, peer: u32) {
        let key = self.keys[peer as usize];
        while !self.arriving.iter().any(|(other, _)| *other == peer)
            && let Some(&len) = self.held[peer as usize].front()
        {
            let Fixture { rx, engine } = &mut self.fixture;
            let Some(id) = rx.begin_partial(engine, envelope(key, peer.into(), len)) else {
                break;
            };
            self.held[peer as usize].pop_front();
            if !self.fixture.append(id, len / 2) {
                self.arriving.push((peer, id));
            }
        }
    }

    /// Claims the next message of a peer if one waits. No claim waits for room: a claim that has
    /// found a message has it, or fails and names messages of which the program has been told.
    fn claim(&mut self, peer: u32) {
        let spec = spec(Some(peer.into()));
        let probe = self.fixture.new_op();
        let Fixture { rx, engine } = &mut self.fixture;
        rx.probe(engine, probe, spec);
        if engine.outcome(probe).is_none() {
            rx.cancel(engine, probe);
            return;
        }
        match rx.prepare_claim(engine, &spec) {
            Ok(()) if rx.next_held().is_some() => {
                self.deliver_from(peer);
                assert!(!self.fixture.rx.end_next_held(&mut self.fixture.engine));
            }
            Ok(()) => {}
            Err(Error::WouldBlock(Resource::BufferBeyondBudget { in_use, .. })) => {
                let buffered = self.fixture.rx.unexpected().0;
                assert!(in_use > 0 && self.claims.len() + buffered > 0);
                return;
            }
            Err(error) => panic!("{error}"),
        }
        let (id, _) = self.fixture.rx.claim(&spec).expect("the message was found");
        self.claims.push(id);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Send(peer, len) => {
                self.longest = self.longest.max(len);
                self.held[peer as usize].push_back(len);
            }
            Step::Claim(peer) => self.claim(peer),
            Step::Receive(at) if at < self.claims.len() => {
                let id = self.claims.swap_remove(at);
                let op = self.fixture.new_op();
                let Fixture { rx, engine } = &mut self.fixture;
                rx.receive_claimed(engine, op, id);
            }
            Step::Discard(at) if at < self.claims.len() => {
                self.fixture.rx.discard_claimed(self.claims.swap_remove(at));
            }
            Step::Drop(at) if at < self.claims.len() => {
                let Fixture { rx, engine } = &mut self.fixture;
                rx.release_claim(engine, self.claims.swap_remove(at));
            }
            Step::Post(peer) => {
                self.fixture.post(Some(peer.into()));
            }
            Step::Leave(peer) => self.leave(peer),
            Step::Complete(at) if at < self.arriving.len() => {
                let (_, id) = self.arriving.swap_remove(at);
                let count = self.fixture.rx.remaining(id);
                self.fixture.append(id, count);
            }
            _ => {}
        }
        (1..=PEERS).for_each(|peer| self.deliver_from(peer));
    }

    fn leave(&mut self, peer: u32) {
        let Fixture { rx, engine } = &mut self.fixture;
        let of_peer = |(other, _): &mut (u32, PartialId)| *other == peer;
        for (_, id) in self.arriving.extract_if(.., of_peer) {
            rx.fail_partial(engine, id, Error::PeerGone(name()));
        }
        let key = &mut self.keys[peer as usize];
        rx.disconnect_peer(PeerKey(*key), name());
        *key += PEERS;
        self.held[peer as usize].clear();
    }

    /// Ends all claims, and receives and claims all messages. Returns what is left.
    fn finish(&mut self) -> (usize, usize) {
        while !self.arriving.is_empty() {
            self.step(Step::Complete(0));
        }
        while !self.claims.is_empty() {
            self.step(Step::Discard(0));
        }
        for peer in 1..=PEERS {
            while self.fixture.rx.unexpected().0 > 0 || !self.held[peer as usize].is_empty() {
                let before = (self.fixture.rx.unexpected().0, self.held.clone());
                for peer in 1..=PEERS {
                    self.claim(peer);
                    self.step(Step::Receive(0));
                    self.step(Step::Complete(0));
                }
                assert_ne!(before, (self.fixture.rx.unexpected().0, self.held.clone()));
            }
        }
        self.fixture.rx.unexpected()
    }
}

proptest! {
    /// A queue uses at most its budget, and as much beyond it or one message. No claim waits, and a
    /// program that takes the messages that it was told of can claim all others.
    #[test]
    fn claims_have_room_or_fail(steps in proptest::collection::vec(step(), 1..80)) {
        let mut model = Model::new();
        for step in steps {
            model.step(step);
            let (_, bytes) = model.fixture.rx.unexpected();
            let longest = 2 * model.longest + 1000;
            prop_assert!(bytes <= BUDGET + BUDGET.max(longest), "{step:?}: {bytes}");
        }
        prop_assert_eq!(model.finish(), (0, 0));
    }
}

/// Returns a queue whose transport holds a message of two peers each, which fills the budget.
fn fixture_with_held_messages() -> Fixture {
    let mut fixture = Fixture::with_budget(BUDGET);
    for peer in [1, 2] {
        assert!(!fixture.deliver(peer, peer.into(), &[1; BUDGET]));
    }
    fixture
}

/// A held message for which there is no room does not keep claims from a buffered one.
#[test]
fn claim_takes_a_buffered_message_if_the_held_one_has_no_room() {
    let mut fixture = fixture_with_held_messages();
    let first = claim(&mut fixture, 1, BUDGET).unwrap();
    assert!(fixture.deliver(3, 3, &[1; 100]));
    // More often than a buffered message passes an older held one.
    for turn in 0..200 {
        let (probe, any) = (fixture.new_op(), spec(None));
        fixture.rx.probe(&mut fixture.engine, probe, any);
        fixture.rx.prepare_claim(&mut fixture.engine, &any).unwrap();
        assert_eq!(fixture.rx.next_held(), None, "turn {turn}");
        let (id, claimed) = fixture.rx.claim(&any).expect("a message waits");
        assert_eq!(claimed.len, 100);
        fixture.rx.release_claim(&mut fixture.engine, id);
    }
    fixture.rx.discard_claimed(first);
    claim(&mut fixture, 2, BUDGET).unwrap();
}

/// The messages of dropped claims make room for claims of other messages when their peers have
/// left.
#[test]
fn claims_discard_messages_of_peers_that_left() {
    let mut fixture = fixture_with_held_messages();
    let dropped = claim(&mut fixture, 1, BUDGET).unwrap();
    fixture.rx.release_claim(&mut fixture.engine, dropped);
    let refused = claim(&mut fixture, 2, BUDGET).unwrap_err();
    assert_eq!(refused, beyond_limit(&fixture, BUDGET));
    fixture.rx.disconnect_peer(PeerKey(1), name());
    let claimed = claim(&mut fixture, 2, BUDGET).unwrap();
    assert_eq!(receive_claimed(&mut fixture, claimed), Some(BUDGET));
    assert_eq!(fixture.rx.unexpected(), (0, 0));
}
