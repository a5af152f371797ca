//! Messages that stall while they arrive, against a list of all messages and receives: a receive
//! completes once, with the bytes of its message, and none waits while a message for it is
//! buffered.

use std::sync::Arc;

use fabric_core::buf::{CopySource, PeerMemory};
use fabric_core::matching::PeerKey;
use fabric_core::rx::PartialId;
use fabric_core::transport::OpKey;
use fabric_core::{Error, Result};
use proptest::prelude::*;

use super::{CAPACITY, Fixture, envelope, spec};

/// The stalled message goes on in the next receive that accepts it, and its sender's next message
/// does not overtake it.
#[test]
fn stalled_message_takes_the_next_receive() {
    // The other message arrives after the message has stalled, or before.
    for arrives_first in [false, true] {
        let mut fixture = Fixture::new();
        let (any, of_tag) = (fixture.post(None), fixture.post(Some(5)));
        let stalled = fixture.begin(1, 5, 1000, 100);
        if arrives_first {
            assert!(fixture.deliver(2, 7, b"abc"));
            fixture.check(3);
        } else {
            fixture.check(3);
            assert!(fixture.deliver(2, 7, b"abc"));
        }
        assert_eq!(fixture.received_len(any), Some(3), "{arrives_first}");
        assert!(fixture.append(stalled, 900));
        assert_eq!(fixture.received_len(of_tag), Some(1000), "{arrives_first}");
        assert!(fixture.deliver(1, 5, b"second"));
        assert_eq!(fixture.rx.unexpected().0, 1);
    }
}

/// Two stalled messages do not hand one receive to each other while a whole message waits.
#[test]
fn stalled_message_does_not_take_the_receive_of_another() {
    let mut fixture = Fixture::new();
    let receive = fixture.post(None);
    fixture.begin(1, 5, 1000, 100);
    fixture.begin(2, 5, 1000, 100);
    assert!(fixture.deliver(3, 5, b"whole"));
    fixture.check(2);
    assert_eq!(fixture.received_len(receive), Some(5));
}

/// A posted receive takes a whole message before a stalled one, but no message that would pass an
/// earlier one of the same peer.
#[test]
fn posted_receive_takes_a_whole_message_before_a_stalled_one() {
    let mut fixture = Fixture::new();
    let stalled = fixture.begin(1, 5, 1000, 100);
    let slow = fixture.begin(2, 6, 10_000, 100);
    fixture.check(3);
    fixture.append(slow, 5000);
    assert!(fixture.deliver(2, 5, b"behind"));
    assert!(fixture.deliver(3, 5, b"whole"));
    let receive = fixture.post(None);
    assert_eq!(fixture.received_len(receive), Some(5));
    // The stalled message has the next receive until it is needed.
    let next = fixture.post(Some(5));
    assert!(fixture.deliver(2, 5, b"behind again"));
    assert_eq!(fixture.received_len(next), None);
    assert!(fixture.append(stalled, 900));
    assert_eq!(fixture.received_len(next), Some(1000));
}

/// A posted receive takes a whole message before one that is arriving, unless a probe has found
/// that one. No message passes an earlier one of its peer.
#[test]
fn posted_receive_takes_a_whole_message_before_an_arriving_one() {
    let mut fixture = Fixture::new();
    let arriving = fixture.begin(1, 5, 10_000, 5000);
    assert!(fixture.deliver(3, 5, b"before"));
    let second = fixture.begin(3, 5, 9000, 5000);
    assert!(fixture.deliver(3, 5, b"behind it"));
    assert!(fixture.deliver(1, 5, b"behind"));
    assert!(fixture.deliver(2, 6, b"other tag"));
    let receive = fixture.post(Some(5));
    assert_eq!(fixture.engine.received(receive).unwrap().1, b"before");
    // The arriving messages keep their places. What is behind one that has a receive is whole.
    let receives = [5, 5, 5].map(|tag| fixture.post(Some(tag)));
    assert!(fixture.append(second, 4000) && fixture.append(arriving, 5000));
    let lens = receives.map(|op| fixture.received_len(op));
    assert_eq!(lens, [Some(10_000), Some(6), Some(9000)]);
    // A probe has found the first one.
    let arriving = fixture.begin(4, 7, 10_000, 5000);
    let probe = fixture.new_op();
    let Fixture { rx, engine } = &mut fixture;
    rx.probe(engine, probe, spec(Some(7)));
    assert_eq!(engine.outcome(probe).unwrap().transfer.len, 10_000);
    assert!(fixture.deliver(2, 7, b"whole"));
    let receive = fixture.post(Some(7));
    assert!(fixture.append(arriving, 5000));
    assert_eq!(fixture.received_len(receive), Some(10_000));
}

/// A posted receive examines few arriving messages, of which peers can begin any number: behind
/// many, a whole message waits for the check.
#[test]
fn posted_receive_examines_few_arriving_messages() {
    for (arriving, takes_whole) in [(60, true), (100, false)] {
        let mut fixture = Fixture::new();
        for peer in 10..10 + arriving {
            fixture.begin(peer, 1, 100, 50);
        }
        assert!(fixture.deliver(2, 1, &[2; 8]));
        let op = fixture.post(None);
        assert_eq!(fixture.received_len(op), takes_whole.then_some(8));
        fixture.check(2);
        assert_eq!(fixture.received_len(op), Some(8));
    }
}

/// Bytes that arrive now and then do not hold a receive, nor a connection.
#[test]
fn few_bytes_are_no_progress() {
    let mut fixture = Fixture::new();
    let receive = fixture.post(None);
    let trickling = fixture.begin(1, 5, 1 << 20, 1);
    for _ in 0..2 {
        assert_eq!(fixture.check(1), []);
        fixture.append(trickling, 1000);
    }
    assert!(fixture.deliver(2, 5, b"whole"));
    assert_eq!(fixture.received_len(receive), Some(5));
    for _ in 0..13 {
        fixture.append(trickling, 100);
        assert_eq!(fixture.check(1), []);
    }
    assert_eq!(fixture.check(1), [PeerKey(1)]);
    // 4 KiB in all are progress.
    fixture.append(trickling, 1000);
    assert_eq!(fixture.check(15), []);
}

/// A message for an earlier multi-receive, whose completion queue is full, is not given away.
#[test]
fn message_for_a_blocked_multi_receive_stays() {
    let mut fixture = Fixture::new();
    assert!(fixture.deliver(2, 7, b"abc"));
    let multi = fixture.new_op();
    fixture
        .rx
        .post_multi(&mut fixture.engine, multi, spec(Some(7)));
    let receive = fixture.post(None);
    fixture.begin(1, 5, 1000, 100);
    fixture.check(3);
    assert_eq!(fixture.received_len(receive), None);
}

/// Memory of a sender that has died.
#[derive(Debug)]
struct LostMemory(usize);

impl CopySource for LostMemory {
    fn len(&self) -> usize {
        self.0
    }
    fn copy_to<'d>(&self, _: usize, dst: &'d mut [std::mem::MaybeUninit<u8>]) -> &'d mut [u8] {
        let zeros = vec![0; dst.len()];
        (&zeros[..]).copy_to(0, dst)
    }
    fn copy_to_init(&self, _: usize, dst: &mut [u8]) {
        dst.fill(0);
    }
}

impl PeerMemory for LostMemory {
    fn is_mapped(&self) -> bool {
        false
    }
    fn check(&self) -> Result<()> {
        Err(Error::Canceled)
    }
}

/// A message in the memory of its sender is checked in the receive of a stalled message, too.
#[test]
fn lost_memory_is_not_received() {
    let mut fixture = Fixture::new();
    let receive = fixture.post(None);
    fixture.begin(1, 5, 1000, 100);
    fixture.check(3);
    let memory: Arc<dyn PeerMemory> = Arc::new(LostMemory(CAPACITY));
    let offered = envelope(2, 5, CAPACITY);
    assert!(
        fixture
            .rx
            .deliver_peer_memory(&mut fixture.engine, offered, &memory)
    );
    while fixture.rx.copy_next_chunk(&mut fixture.engine) {}
    assert_eq!(fixture.received_len(receive), None);
}

/// A call of the queue.
#[derive(Clone, Copy, Debug)]
enum Call {
    /// Posts a receive of a tag; of any tag for 0.
    Post(u64),
    /// Delivers a whole message of a peer.
    Deliver(u32, u64, usize),
    /// Begins a message of a peer.
    Begin(u32, u64, usize),
    /// Appends bytes to an arriving message.
    Append(usize, usize),
    Check,
}

fn call() -> impl Strategy<Value = Call> {
    let (peer, tag) = (1..5u32, 1..4u64);
    prop_oneof![
        (0..4u64).prop_map(Call::Post),
        (peer.clone(), tag.clone(), 1..3000usize).prop_map(|(p, t, l)| Call::Deliver(p, t, l)),
        (peer, tag, 1..20_000usize).prop_map(|(p, t, l)| Call::Begin(p, t, l)),
        (0..8usize, 0..9000usize).prop_map(|(at, count)| Call::Append(at, count)),
        Just(Call::Check),
    ]
}

/// A message that has been delivered or begun.
struct Message {
    tag: u64,
    len: usize,
    byte: u8,
    /// The id of a message that is arriving, and the bytes that have arrived.
    arriving: Option<(PartialId, usize)>,
}

impl Message {
    /// Appends at most `count` bytes.
    fn append(&mut self, fixture: &mut Fixture, count: usize) {
        let Some((id, arrived)) = self.arriving else {
            return;
        };
        let bytes = vec![self.byte; count.min(self.len - arrived)];
        let is_whole = fixture.rx.append(&mut fixture.engine, id, &&bytes[..]);
        assert_eq!(is_whole, arrived + bytes.len() == self.len);
        self.arriving = (!is_whole).then_some((id, arrived + bytes.len()));
    }
}

proptest! {
    #[test]
    fn receives_agree_with_a_list_of_messages(
        calls in proptest::collection::vec(call(), 1..150),
    ) {
        let mut fixture = Fixture::new();
        let mut posted: Vec<(OpKey, u64)> = Vec::new();
        let mut messages: Vec<Message> = Vec::new();
        for call in calls {
            let byte = messages.len() as u8;
            match call {
                Call::Post(tag) => {
                    posted.push((fixture.post((tag > 0).then_some(tag)), tag));
                }
                Call::Deliver(peer, tag, len) => {
                    prop_assert!(fixture.deliver(peer, tag, &vec![byte; len]));
                    messages.push(Message { tag, len, byte, arriving: None });
                }
                Call::Begin(peer, tag, len) => {
                    let id = fixture.begin(peer, tag, len, 0);
                    messages.push(Message { tag, len, byte, arriving: Some((id, 0)) });
                }
                Call::Append(at, count) => {
                    let is_arriving = |message: &&mut Message| message.arriving.is_some();
                    let mut arriving = messages.iter_mut().filter(is_arriving);
                    if let Some(message) = arriving.nth(at) {
                        message.append(&mut fixture, count);
                    }
                }
                Call::Check => drop(fixture.check(3)),
            }
        }
        for message in &mut messages {
            message.append(&mut fixture, usize::MAX);
        }
        // Each completed receive has the bytes of a message that it accepts, each message once.
        let mut waiting = Vec::new();
        for (op, tag) in posted {
            let Some((_, bytes)) = fixture.engine.received(op) else {
                waiting.push(tag);
                continue;
            };
            let at = messages.iter().position(|message| {
                (tag == 0 || message.tag == tag)
                    && message.len == bytes.len()
                    && bytes.iter().all(|byte| *byte == message.byte)
            });
            prop_assert!(at.is_some(), "{} bytes of no message", bytes.len());
            messages.remove(at.unwrap_or(0));
        }
        // No receive waits while a message for it is buffered.
        for tag in waiting {
            let missed = messages.iter().any(|message| tag == 0 || message.tag == tag);
            prop_assert!(!missed, "a receive of tag {tag} waits");
        }
        prop_assert_eq!(fixture.rx.unexpected().0, messages.len());
        for _ in &messages {
            fixture.post(None);
        }
        prop_assert_eq!(fixture.rx.unexpected(), (0, 0));
    }
}

/// A message that completes in its buffer gets the receive of a stalled one before a later message
/// of its peer.
#[test]
fn messages_of_a_slow_peer_stay_in_order() {
    let mut fixture = Fixture::new();
    let stalled = fixture.begin(1, 1, 5000, 100);
    let op = fixture.post(None);
    let first = fixture.begin(2, 1, 6000, 100);
    fixture.check(3);
    assert!(fixture.append(first, 5900));
    assert!(fixture.deliver(2, 1, b"second"));
    assert_eq!(fixture.received_len(op), Some(6000));
    fixture.append(stalled, 4900);
}
