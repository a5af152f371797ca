//! Messages that the budget has declined keep their place in the order of arrival, and get their
//! turn.

use std::collections::VecDeque;

use fabric_core::Error;
use fabric_core::matching::PeerKey;
use fabric_core::transport::OpKey;
use proptest::prelude::*;

use super::{Fixture, envelope, spec};

const BUDGET: usize = 64 << 10;
const PEERS: u32 = 4;

#[derive(Clone, Copy, Debug)]
struct Message {
    id: u32,
    tag: u64,
    len: usize,
    /// When the message was offered to the queue first.
    arrived: Option<u32>,
    /// Whether the queue has accepted the message, and no receive has taken it.
    is_buffered: bool,
}

/// The queue, and a transport that holds the declined messages of each peer.
struct Model {
    fixture: Fixture,
    /// The messages of each peer that no receive has taken, the oldest first.
    outstanding: Vec<VecDeque<Message>>,
    /// Queued receives, the oldest first.
    posted: Vec<(OpKey, Option<u64>)>,
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
            message.arrived.get_or_insert(self.time);
            let mut bytes = vec![0; message.len];
            bytes[..4].copy_from_slice(&message.id.to_le_bytes());
            if !self.fixture.deliver(peer + 1, message.tag, &bytes) {
                break;
            }
            message.is_buffered = true;
        }
        self.take_received();
    }

    /// Removes the messages that queued receives have taken.
    fn take_received(&mut self) {
        let engine = &self.fixture.engine;
        self.posted.retain(|(op, tag)| {
            let Some((_, bytes)) = engine.received(*op) else {
                return true;
            };
            let id = u32::from_le_bytes(bytes[..4].try_into().unwrap());
            for messages in &mut self.outstanding {
                let taken = messages.iter().position(|message| message.id == id);
                if let Some(taken) = taken {
                    // Messages of one peer are received in the order in which they were sent.
                    let is_accepted = |message: &Message| tag.is_none_or(|tag| tag == message.tag);
                    assert_eq!(messages.iter().position(is_accepted), Some(taken));
                    messages.remove(taken);
                }
            }
            false
        });
    }

    /// Posts a receive. It gets the message that has arrived first, or the first buffered one. Held
    /// messages are passed less than 64 times in a row.
    fn post(&mut self, tag: Option<u64>) {
        let messages = self.outstanding.iter().flatten();
        let arrived = messages
            .filter(|message| tag.is_none_or(|tag| tag == message.tag))
            .filter_map(|message| Some((message.arrived?, message.id, message.is_buffered)));
        let first = arrived.clone().min();
        let first_buffered = arrived.filter(|(.., is_buffered)| *is_buffered).min();
        let op = self.fixture.new_op();
        self.posted.push((op, tag));
        let Fixture { rx, engine, .. } = &mut self.fixture;
        rx.post(engine, op, spec(tag));
        if let Some(PeerKey(peer)) = rx.next_held() {
            assert!(rx.must_report_post());
            self.deliver_from(peer - 1);
            self.fixture.rx.end_next_held(&mut self.fixture.engine);
        }
        let received = self.fixture.engine.received(op);
        let received =
            received.map(|(_, bytes)| u32::from_le_bytes(bytes[..4].try_into().unwrap()));
        if received == first.map(|(_, id, _)| id) {
            if first.is_some_and(|(.., is_buffered)| !is_buffered) && first_buffered.is_some() {
                self.passed = 0;
            }
        } else {
            assert_eq!(received, first_buffered.map(|(_, id, _)| id));
            self.passed += 1;
            assert!(self.passed < 64);
        }
        self.take_received();
        (0..PEERS).for_each(|peer| self.deliver_from(peer));
    }
}

proptest! {
    #[test]
    fn receives_take_messages_in_order_and_held_ones_in_their_turn(
        steps in proptest::collection::vec(
            prop_oneof![
                3 => (0..PEERS, 1..4u64, 4..60_000usize).prop_map(Ok),
                3 => (0..PEERS, 1..4u64, 4..400usize).prop_map(Ok),
                4 => proptest::option::of(1..4u64).prop_map(Err),
            ],
            1..200,
        ),
    ) {
        let mut model = Model::new();
        for step in steps {
            match step {
                Ok((peer, tag, len)) => model.send(peer, tag, len),
                Err(tag) => model.post(tag),
            }
        }
    }
}

/// Peers that fill their shares again after each receive do not delay a message that no share has
/// room for.
#[test]
fn long_message_is_received_while_other_peers_fill_their_shares() {
    let mut model = Model::new();
    let fill = |model: &mut Model| {
        for peer in 1..PEERS {
            while model.outstanding[peer as usize]
                .iter()
                .all(|message| message.is_buffered)
            {
                model.send(peer, 1, 1000);
            }
        }
    };
    fill(&mut model);
    model.send(0, 1, BUDGET);
    // The messages that the other peers' connections hold may be older.
    for _ in 0..64 * PEERS {
        model.post(None);
        fill(&mut model);
    }
    assert!(model.outstanding[0].is_empty());
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

/// The place in the order of arrival is that of a held message, not of one that was dropped.
#[test]
fn dropped_message_leaves_no_place() {
    let mut fixture = Fixture::with_budget(BUDGET);
    assert!(!fixture.deliver(1, 1, &[1; BUDGET]));
    fixture.rx.on_dropped(PeerKey(1));
    assert!(fixture.deliver(2, 1, b"older"));
    assert!(fixture.deliver(1, 1, b"newest"));
    let op = fixture.post(None);
    assert_eq!(fixture.received_len(op), Some(5));
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
