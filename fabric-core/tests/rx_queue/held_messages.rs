//! Messages that the budget has declined keep their place in the order of arrival.

use std::collections::VecDeque;

use fabric_core::matching::PeerKey;
use fabric_core::transport::OpKey;
use proptest::prelude::*;

use super::{Fixture, spec};

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
}

impl Model {
    fn new() -> Self {
        Self {
            fixture: Fixture::with_budget(BUDGET),
            outstanding: (0..PEERS).map(|_| VecDeque::new()).collect(),
            posted: Vec::new(),
            time: 0,
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

    /// Posts a receive. It gets the message that has arrived first, buffered or held.
    fn post(&mut self, tag: Option<u64>) {
        let messages = self.outstanding.iter().flatten();
        let first = messages
            .filter(|message| tag.is_none_or(|tag| tag == message.tag))
            .filter_map(|message| Some((message.arrived?, message.id)))
            .min();
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
        assert_eq!(received, first.map(|(_, id)| id));
        self.take_received();
        (0..PEERS).for_each(|peer| self.deliver_from(peer));
    }
}

proptest! {
    #[test]
    fn receive_gets_the_message_that_has_arrived_first(
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
    let older = model
        .outstanding
        .iter()
        .skip(1)
        .map(VecDeque::len)
        .sum::<usize>();
    for _ in 0..=older {
        model.post(None);
        fill(&mut model);
    }
    assert!(model.outstanding[0].is_empty());
}

/// A message whose transport does not hold it any more does not keep a receive from a buffered one.
#[test]
fn receive_takes_a_buffered_message_if_the_held_one_does_not_come() {
    let mut fixture = Fixture::with_budget(BUDGET);
    assert!(!fixture.deliver(1, 5, &[1; BUDGET]));
    assert!(fixture.deliver(2, 5, &[2; 8]));
    let op = fixture.new_op();
    fixture.rx.post(&mut fixture.engine, op, spec(None));
    assert_eq!(fixture.rx.next_held(), Some(PeerKey(1)));
    assert_eq!(fixture.received_len(op), None);
    fixture.rx.end_next_held(&mut fixture.engine);
    assert_eq!(fixture.received_len(op), Some(8));
    // It has lost its place.
    assert!(fixture.deliver(2, 5, &[2; 9]));
    let op = fixture.post(None);
    assert_eq!(fixture.received_len(op), Some(9));
}
