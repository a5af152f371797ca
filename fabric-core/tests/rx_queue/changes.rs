//! A message that the queue declines is not accepted before `RxQueue::changes` grows.

use fabric_core::av::AddressTable;
use fabric_core::matching::{Envelope, PeerKey};
use fabric_core::rx::{BudgetGroup, ClaimId, PartialId};
use fabric_core::transport::OpKey;
use fabric_core::{Address, Error, FiAddr, Scheme};
use proptest::prelude::*;

use super::{Fixture, envelope, spec};

const BUDGET: usize = 64 << 10;

/// A call of the queue. The indices choose among what is there.
#[derive(Clone, Copy, Debug)]
enum Call {
    /// Posts a receive of a tag; of any tag for 0.
    Post(u64),
    PostMulti(u64),
    Probe(u64),
    Cancel(usize),
    /// Makes room in the completion queue for parts of multi-receives.
    AddRoom,
    Drain,
    Deliver(u32, u64, usize),
    Begin(u32, u64, usize),
    Append(usize, usize),
    Fail(usize),
    Check,
    Claim(u64),
    /// Receives, discards or releases a claimed message.
    EndClaim(usize, u8),
    Charge(u32, usize),
    Release(usize),
    Leave(u32),
    AssignSource(u32),
    ClearSource,
    TakeDeclined,
}

fn call() -> impl Strategy<Value = Call> {
    let (peer, tag, len) = (1..5u32, 1..4u64, 1..20_000usize);
    let message = (peer.clone(), tag, len.clone());
    let begun = message.clone();
    prop_oneof![
        2 => (0..4u64).prop_map(Call::Post),
        1 => (0..4u64).prop_map(Call::PostMulti),
        1 => (0..4u64).prop_map(Call::Probe),
        1 => (0..8usize).prop_map(Call::Cancel),
        1 => Just(Call::AddRoom),
        1 => Just(Call::Drain),
        8 => message.prop_map(|(p, t, l)| Call::Deliver(p, t, l)),
        4 => begun.prop_map(|(p, t, l)| Call::Begin(p, t, l)),
        4 => (0..8usize, 0..9000usize).prop_map(|(at, count)| Call::Append(at, count)),
        1 => (0..8usize).prop_map(Call::Fail),
        2 => Just(Call::Check),
        1 => (0..4u64).prop_map(Call::Claim),
        1 => (0..4usize, 0..3u8).prop_map(|(at, end)| Call::EndClaim(at, end)),
        1 => (peer.clone(), len).prop_map(|(p, l)| Call::Charge(p, l)),
        1 => (0..4usize).prop_map(Call::Release),
        1 => peer.clone().prop_map(Call::Leave),
        1 => peer.prop_map(Call::AssignSource),
        1 => Just(Call::ClearSource),
        1 => Just(Call::TakeDeclined),
    ]
}

/// The queue, and what the calls choose among.
struct Model {
    fixture: Fixture,
    addr: FiAddr,
    name: Address,
    posted: Vec<OpKey>,
    arriving: Vec<(PeerKey, PartialId, usize)>,
    claims: Vec<ClaimId>,
    charged: Vec<(PeerKey, usize)>,
    /// Peers that have left, which send nothing more.
    left: Vec<PeerKey>,
}

impl Model {
    fn new() -> Self {
        let name = Address::new(Scheme::Tcp, "127.0.0.1:1").unwrap();
        let mut fixture = Fixture::with_budget(BUDGET);
        for peer in 1..3 {
            let group = BudgetGroup(7);
            fixture.rx.set_budget_group(PeerKey(peer), group);
        }
        Self {
            fixture,
            addr: AddressTable::new().insert(name.clone()),
            name,
            posted: Vec::new(),
            arriving: Vec::new(),
            claims: Vec::new(),
            charged: Vec::new(),
            left: Vec::new(),
        }
    }

    fn call(&mut self, call: Call) {
        if let Call::Deliver(peer, ..) | Call::Begin(peer, ..) | Call::Charge(peer, _) = call
            && self.left.contains(&PeerKey(peer))
        {
            return;
        }
        let tag_of = |tag| (tag > 0).then_some(tag);
        let fixture = &mut self.fixture;
        match call {
            Call::Post(tag) => self.posted.push(fixture.post(tag_of(tag))),
            Call::PostMulti(tag) => {
                let op = fixture.new_op();
                let spec = spec(tag_of(tag));
                fixture.rx.post_multi(&mut fixture.engine, op, spec);
                fixture.rx.end_next_held(&mut fixture.engine);
                self.posted.push(op);
            }
            Call::Probe(tag) => {
                let op = fixture.new_op();
                fixture.rx.probe(&mut fixture.engine, op, spec(tag_of(tag)));
                fixture.rx.end_next_held(&mut fixture.engine);
                self.posted.push(op);
            }
            Call::Cancel(at) if at < self.posted.len() => {
                let op = self.posted.swap_remove(at);
                fixture.rx.cancel(&mut fixture.engine, op);
            }
            Call::AddRoom => {
                let parts = [fixture.new_op(), fixture.new_op()];
                fixture.engine.parts.extend(parts);
            }
            Call::Drain => {
                fixture.rx.drain_unexpected(&mut fixture.engine);
                fixture.rx.end_next_held(&mut fixture.engine);
            }
            Call::Deliver(peer, tag, len) => drop(fixture.deliver(peer, tag, &vec![0; len])),
            Call::Begin(peer, tag, len) => {
                let envelope = envelope(peer, tag, len);
                let begun = fixture.rx.begin_partial(&mut fixture.engine, envelope);
                self.arriving
                    .extend(begun.map(|id| (PeerKey(peer), id, len)));
            }
            Call::Append(at, count) if at < self.arriving.len() => {
                let (_, id, left) = &mut self.arriving[at];
                let count = count.min(*left);
                *left -= count;
                if fixture.append(*id, count) {
                    self.arriving.swap_remove(at);
                }
            }
            Call::Fail(at) if at < self.arriving.len() => {
                let (_, id, _) = self.arriving.swap_remove(at);
                let error = Error::Canceled;
                fixture.rx.fail_partial(&mut fixture.engine, id, error);
            }
            Call::Check => drop(fixture.check(3)),
            Call::Claim(tag) => {
                let claim = fixture.rx.claim(&spec(tag_of(tag)));
                self.claims.extend(claim.map(|(id, _)| id));
            }
            Call::EndClaim(at, end) if at < self.claims.len() => {
                let id = self.claims.swap_remove(at);
                let op = fixture.new_op();
                match end {
                    0 => fixture.rx.receive_claimed(&mut fixture.engine, op, id),
                    1 => drop(fixture.rx.discard_claimed(id)),
                    _ => fixture.rx.release_claim(&mut fixture.engine, id),
                }
            }
            _ => self.call_for_peer(call),
        }
    }

    fn call_for_peer(&mut self, call: Call) {
        let Fixture { rx, engine, .. } = &mut self.fixture;
        match call {
            Call::Charge(peer, bytes) if rx.charge_peer(PeerKey(peer), bytes) => {
                self.charged.push((PeerKey(peer), bytes));
            }
            Call::Release(at) if at < self.charged.len() => {
                let (peer, bytes) = self.charged.swap_remove(at);
                rx.release_peer(peer, bytes);
            }
            Call::Leave(peer) => {
                let peer = PeerKey(peer);
                let of_peer = |(other, ..): &mut (PeerKey, _, _)| *other == peer;
                for (_, id, _) in self.arriving.extract_if(.., of_peer) {
                    rx.fail_partial(engine, id, Error::Canceled);
                }
                rx.disconnect_peer(peer, self.name.clone());
                self.left.push(peer);
            }
            Call::AssignSource(peer) => rx.assign_source(engine, PeerKey(peer), self.addr),
            Call::ClearSource => rx.clear_source(engine, self.addr),
            Call::TakeDeclined => drop(rx.take_declined()),
            _ => {}
        }
    }
}

/// Messages that a transport may hold.
fn held_messages() -> Vec<Envelope> {
    let peers = 1..6;
    let messages = peers.flat_map(|peer| (1..4).map(move |tag| (peer, tag)));
    let lens = [0, 5000, 20_000];
    messages
        .flat_map(|(peer, tag)| lens.map(|len| envelope(peer, tag, len)))
        .collect()
}

proptest! {
    #[test]
    fn declined_messages_are_accepted_only_after_changes(
        calls in proptest::collection::vec(call(), 1..150),
    ) {
        let mut model = Model::new();
        let held = held_messages();
        for call in calls {
            let Fixture { rx, engine } = &mut model.fixture;
            let accepts = |held| !rx.decline_again(engine, held);
            let accepts_before: Vec<_> = held.iter().map(accepts).collect();
            let before = rx.changes();
            model.call(call);
            let Fixture { rx, engine } = &mut model.fixture;
            prop_assert!(rx.changes() >= before);
            if rx.changes() == before {
                for (held, accepted) in held.iter().zip(accepts_before) {
                    let may_wait = accepted || model.left.contains(&held.peer);
                    prop_assert!(may_wait || rx.decline_again(engine, held), "{call:?}: {held:?}");
                }
            }
        }
    }
}

/// A change is reported once, if a message was declined before; a call that changes nothing does
/// not hide the next change.
#[test]
fn declined_message_is_reported_after_the_next_change() {
    let mut fixture = Fixture::with_budget(BUDGET);
    assert!(!fixture.deliver(1, 5, &[0; BUDGET]));
    assert!(!fixture.rx.take_declined(), "nothing has changed");
    fixture.post(Some(6));
    assert!(fixture.rx.take_declined());
    assert!(!fixture.rx.take_declined());
    fixture.post(Some(7));
    assert!(!fixture.rx.take_declined(), "no message was declined again");
}

/// A transport that only asks whether a held message is accepted reports its sender, too: a blocked
/// multi-receive has declined the message first, and the budget does so once it has left.
#[test]
fn sender_of_a_message_that_is_declined_later_is_reported() {
    let mut fixture = Fixture::with_budget(BUDGET);
    let multi = fixture.new_op();
    let any = spec(None);
    fixture.rx.post_multi(&mut fixture.engine, multi, any);
    let held = envelope(1, 5, BUDGET);
    assert!(
        !fixture.deliver(1, 5, &[0; BUDGET]),
        "the multi-receive is blocked"
    );
    assert!(fixture.rx.decline_again(&mut fixture.engine, &held));
    assert!(
        !fixture.rx.has_peers_over_budget(),
        "the message waits for a receive"
    );
    assert!(fixture.rx.cancel(&mut fixture.engine, multi));
    assert!(fixture.rx.decline_again(&mut fixture.engine, &held));
    assert!(fixture.rx.has_peers_over_budget());
    fixture.rx.close(&mut fixture.engine);
    assert!(!fixture.rx.has_peers_over_budget(), "of a closed queue");
}
