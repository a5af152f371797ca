//! One test for each rule of the module's page. Whole histories are compared with an oracle
//! elsewhere.

use super::*;
use crate::address::FiAddr;

const ALICE: FiAddr = FiAddr {
    index: 1,
    generation: 0,
    vector: 0,
};
const BOB: FiAddr = FiAddr {
    index: 2,
    generation: 0,
    vector: 0,
};

type Names = Matcher<u32, &'static str>;

fn any(tag: u64) -> RecvSpec {
    RecvSpec {
        from: None,
        tag: Some(TagMatch { tag, ignore: 0 }),
    }
}

fn from(source: FiAddr, tag: u64) -> RecvSpec {
    RecvSpec {
        from: Some(source),
        ..any(tag)
    }
}

const UNTAGGED: RecvSpec = RecvSpec {
    from: None,
    tag: None,
};

fn message(matcher: &mut Names, source: Option<FiAddr>, tag: impl Into<Option<u64>>) -> Envelope {
    let peer = PeerKey(source.map_or(9, |source| source.index));
    Envelope {
        peer,
        source,
        tag: tag.into(),
        len: 3,
        data: None,
        arrival: matcher.next_arrival(),
        receipt: None,
    }
}

/// A message that is kept without looking for a receive.
fn kept(
    matcher: &mut Names,
    source: Option<FiAddr>,
    tag: impl Into<Option<u64>>,
    text: &'static str,
) -> WaitKey {
    let envelope = message(matcher, source, tag);
    matcher.wait(envelope, text)
}

fn queue(matcher: &mut Names, spec: RecvSpec, receive: u32) -> PostKey {
    match matcher.post(spec, receive) {
        Posted::Queued(key) => key,
        Posted::Matched(envelope, text) => panic!("receive {receive} took {text:?}, {envelope:?}"),
    }
}

fn took(matcher: &mut Names, spec: RecvSpec) -> Option<&'static str> {
    match matcher.post(spec, 999) {
        Posted::Matched(_, text) => Some(text),
        Posted::Queued(key) => {
            assert_eq!(matcher.withdraw(key), Some(999));
            None
        }
    }
}

fn texts(messages: Vec<(Envelope, &'static str)>) -> Vec<&'static str> {
    messages.into_iter().map(|(_, text)| text).collect()
}

#[test]
fn arrivals_are_numbered_from_zero() {
    let mut matcher = Names::default();
    assert_eq!([0; 3].map(|_| matcher.next_arrival()), [0, 1, 2]);
}

#[test]
fn an_arrival_takes_the_earliest_posted_receive_that_accepts_it() {
    let mut matcher = Names::new();
    for (tag, receive) in [(5, 10), (6, 11), (6, 12), (5, 13)] {
        queue(&mut matcher, any(tag), receive);
    }
    let six = message(&mut matcher, Some(ALICE), 6);
    assert!(matcher.would_match(&six));
    assert_eq!(matcher.posted_len(), 4, "asking takes nothing");
    assert_eq!(matcher.arrive(&six), Some(11));
    assert_eq!(matcher.arrive(&six), Some(12));
    assert_eq!(matcher.arrive(&six), None);
    assert!(!matcher.would_match(&six));
    assert_eq!(matcher.take_posted(), [10, 13]);
}

#[test]
fn a_late_receive_takes_the_earliest_arrived_message_it_accepts() {
    let mut matcher = Names::new();
    for (tag, text) in [(5, "a"), (6, "b"), (6, "c"), (5, "d")] {
        kept(&mut matcher, Some(ALICE), tag, text);
    }
    assert_eq!(
        matcher.peek(&any(6)).map(|envelope| envelope.arrival),
        Some(1)
    );
    assert_eq!(matcher.waiting_len(), 4, "peeking takes nothing");
    assert_eq!(
        [(); 3].map(|()| took(&mut matcher, any(6))),
        [Some("b"), Some("c"), None]
    );
    assert_eq!(matcher.peek(&any(6)), None);
    assert_eq!(texts(matcher.take_waiting()), ["a", "d"]);
}

#[test]
fn ignored_bits_do_not_count_and_all_others_do() {
    let mut matcher = Names::new();
    let masked = RecvSpec {
        from: None,
        tag: Some(TagMatch {
            tag: 0xAB00,
            ignore: 0xFF,
        }),
    };
    let whole = RecvSpec {
        from: None,
        tag: Some(TagMatch {
            tag: 0,
            ignore: u64::MAX,
        }),
    };
    for tag in [0xAC00, 0xAB00 | 1 << 63, 0xAB7F] {
        kept(&mut matcher, Some(ALICE), tag, "text");
    }
    assert_eq!(
        matcher.peek(&masked).and_then(|envelope| envelope.tag),
        Some(0xAB7F)
    );
    assert_eq!(
        matcher.peek(&whole).and_then(|envelope| envelope.tag),
        Some(0xAC00)
    );
}

#[test]
fn tagged_and_untagged_never_meet() {
    let mut matcher = Names::new();
    let every_tag = RecvSpec {
        from: None,
        tag: Some(TagMatch {
            tag: 0,
            ignore: u64::MAX,
        }),
    };
    kept(&mut matcher, Some(ALICE), 0, "tagged");
    assert_eq!(took(&mut matcher, UNTAGGED), None);
    kept(&mut matcher, Some(ALICE), None, "untagged");
    assert_eq!(took(&mut matcher, every_tag), Some("tagged"));
    assert_eq!(took(&mut matcher, every_tag), None);
    assert_eq!(took(&mut matcher, UNTAGGED), Some("untagged"));

    queue(&mut matcher, every_tag, 1);
    let untagged = message(&mut matcher, Some(ALICE), None);
    assert_eq!(matcher.arrive(&untagged), None);
    queue(&mut matcher, UNTAGGED, 2);
    assert_eq!(matcher.arrive(&untagged), Some(2));
}

#[test]
fn directed_and_any_source_receives_compete_by_posting_time() {
    for any_first in [true, false] {
        let mut matcher = Names::new();
        let specs = if any_first {
            [any(1), from(ALICE, 1)]
        } else {
            [from(ALICE, 1), any(1)]
        };
        queue(&mut matcher, specs[0], 0);
        queue(&mut matcher, specs[1], 1);
        let bobs = message(&mut matcher, Some(BOB), 1);
        let alices = message(&mut matcher, Some(ALICE), 1);
        assert_eq!(matcher.arrive(&alices), Some(0));
        assert_eq!(matcher.arrive(&bobs), (!any_first).then_some(1));
    }
}

#[test]
fn a_reused_address_is_another_source() {
    let mut matcher = Names::new();
    queue(&mut matcher, from(ALICE, 1), 0);
    let newcomer = message(
        &mut matcher,
        Some(FiAddr {
            generation: 1,
            ..ALICE
        }),
        1,
    );
    assert_eq!(matcher.arrive(&newcomer), None);
}

#[test]
fn an_unknown_sender_reaches_only_receives_from_anybody() {
    let mut matcher = Names::new();
    queue(&mut matcher, from(ALICE, 1), 0);
    let stranger = message(&mut matcher, None, 1);
    assert_eq!(matcher.arrive(&stranger), None);
    queue(&mut matcher, any(1), 1);
    assert_eq!(matcher.arrive(&stranger), Some(1));
    matcher.wait(stranger, "hello");
    assert_eq!(took(&mut matcher, from(BOB, 1)), None);
    assert_eq!(took(&mut matcher, any(1)), Some("hello"));
}

#[test]
fn inserting_an_address_looks_again_at_what_waits() {
    let mut matcher = Names::new();
    queue(&mut matcher, from(ALICE, 1), 0);
    queue(
        &mut matcher,
        RecvSpec {
            from: Some(ALICE),
            tag: None,
        },
        1,
    );
    queue(&mut matcher, from(ALICE, 1), 2);
    for (tag, text) in [
        (Some(1), "a"),
        (Some(2), "b"),
        (None, "c"),
        (Some(1), "d"),
        (Some(1), "e"),
    ] {
        kept(&mut matcher, None, tag, text);
    }
    let other = Envelope {
        peer: PeerKey(5),
        ..message(&mut matcher, None, 1)
    };
    matcher.wait(other, "somebody else");

    let matched = matcher.resolve(&[PeerKey(9)], ALICE);
    assert!(
        matched
            .iter()
            .all(|(_, envelope, _)| envelope.source == Some(ALICE))
    );
    let matched: Vec<_> = matched
        .into_iter()
        .map(|(receive, _, text)| (receive, text))
        .collect();
    assert_eq!(matched, [(0, "a"), (1, "c"), (2, "d")]);
    assert_eq!((matcher.posted_len(), matcher.waiting_len()), (0, 3));
    assert_eq!(
        took(&mut matcher, from(ALICE, 1)),
        Some("e"),
        "those that stay have a source now"
    );
    assert_eq!(took(&mut matcher, from(ALICE, 1)), None);
    assert!(matcher.resolve(&[PeerKey(9)], BOB).is_empty());
    assert_eq!(
        took(&mut matcher, from(ALICE, 2)),
        Some("b"),
        "a known source is kept"
    );
}

#[test]
fn removing_an_address_makes_its_messages_unknown_again() {
    let mut matcher = Names::new();
    kept(&mut matcher, Some(ALICE), 1, "alice");
    kept(&mut matcher, Some(BOB), 1, "bob");
    kept(&mut matcher, Some(ALICE), None, "untagged");
    matcher.forget(ALICE);
    assert_eq!(
        matcher.peek(&any(1)).map(|envelope| envelope.source),
        Some(None)
    );
    assert_eq!(took(&mut matcher, from(ALICE, 1)), None);
    assert_eq!(took(&mut matcher, from(BOB, 1)), Some("bob"));
    assert_eq!(took(&mut matcher, UNTAGGED), Some("untagged"));
    assert!(matcher.resolve(&[PeerKey(ALICE.index)], BOB).is_empty());
    assert_eq!(took(&mut matcher, from(BOB, 1)), Some("alice"));
}

#[test]
fn restored_receive_is_matched_in_posting_order() {
    let mut matcher = Names::new();
    queue(&mut matcher, any(1), 0);
    let begun = queue(&mut matcher, any(1), 1);
    let place = matcher.place(begun).unwrap();
    assert!(!place.is_directed());
    queue(&mut matcher, any(1), 2);
    assert_eq!(matcher.withdraw(begun), Some(1));
    assert!(matcher.place(begun).is_none());
    let (key, waiting) = matcher.restore(place, 1);
    assert_eq!((waiting, matcher.posted_len()), (None, 3));
    assert!(matcher.place(key).is_some());
    for receive in 0..3 {
        let envelope = message(&mut matcher, None, 1);
        assert_eq!(matcher.arrive(&envelope), Some(receive));
    }
}

#[test]
fn restored_receive_finds_the_earliest_message_that_falls_to_it() {
    let mut matcher = Names::new();
    let place = matcher.take_place(&any(1));
    kept(&mut matcher, None, 2, "another tag");
    kept(&mut matcher, None, 1, "first");
    kept(&mut matcher, None, 1, "second");
    let (key, waiting) = matcher.restore(place, 0);
    let (_, text) = matcher.take_message(waiting.unwrap()).unwrap();
    assert_eq!((text, matcher.withdraw(key)), ("first", Some(0)));
    // A receive that was posted before has a better claim.
    matcher.queue(any(1), 1);
    let place = matcher.take_place(&any(1));
    assert_eq!(matcher.restore(place, 2).1, None);
    assert_eq!(matcher.waiting_len(), 2);
}

#[test]
fn a_put_back_message_returns_to_its_place() {
    let mut matcher = Names::new();
    for text in ["a", "b", "c", "d"] {
        kept(&mut matcher, Some(ALICE), 1, text);
    }
    let taken: Vec<_> = (0..3)
        .map(|_| match matcher.post(any(1), 0) {
            Posted::Matched(envelope, text) => (envelope, text),
            Posted::Queued(_) => panic!("nothing waits"),
        })
        .collect();
    kept(&mut matcher, Some(ALICE), 1, "e");
    for index in [1, 0, 2] {
        let (envelope, text) = taken[index].clone();
        matcher.wait(envelope, text);
    }
    let order = [(); 6].map(|()| took(&mut matcher, any(1)));
    assert_eq!(
        order,
        [Some("a"), Some("b"), Some("c"), Some("d"), Some("e"), None]
    );
}

#[test]
fn a_withdrawn_receive_is_out_of_the_queue_wherever_it_was() {
    for gone in 0..3 {
        let mut matcher = Names::new();
        let keys: Vec<_> = (0..3)
            .map(|receive| queue(&mut matcher, any(1), receive))
            .collect();
        assert_eq!(matcher.withdraw(keys[gone as usize]), Some(gone));
        queue(&mut matcher, any(1), 3);
        let left: Vec<_> = (0..4).filter(|&receive| receive != gone).collect();
        assert_eq!(matcher.take_posted(), left);
    }
}

#[test]
fn stale_keys_find_nothing_even_when_the_place_is_used_again() {
    let mut matcher = Names::new();
    let old = queue(&mut matcher, any(1), 0);
    assert_eq!(matcher.withdraw(old), Some(0));
    let new = queue(&mut matcher, any(1), 1);
    assert_eq!(matcher.withdraw(old), None);
    assert_ne!(old, new);
    assert_eq!(matcher.withdraw(new), Some(1));

    let old = kept(&mut matcher, Some(ALICE), 1, "text");
    let (envelope, text) = matcher.take_message(old).unwrap();
    let new = matcher.wait(envelope, text);
    assert_eq!(
        matcher.message_mut(old),
        None,
        "the key names one stay, not the message"
    );
    assert_eq!(matcher.take_message(old), None);
    assert!(matcher.take_message(new).is_some());
    assert_eq!((matcher.posted_len(), matcher.waiting_len()), (0, 0));
}

#[test]
fn a_message_can_be_changed_while_it_waits() {
    let mut matcher = Names::new();
    kept(&mut matcher, Some(BOB), 1, "other");
    let key = kept(&mut matcher, Some(ALICE), 1, "partial");
    let (envelope, text) = matcher.message_mut(key).unwrap();
    assert_eq!((envelope.source, *text), (Some(ALICE), "partial"));
    *text = "complete";
    assert_eq!(took(&mut matcher, from(ALICE, 1)), Some("complete"));
}

#[test]
fn a_dead_peers_receives_are_taken_in_posting_order() {
    let mut matcher = Names::new();
    let untagged = |source| RecvSpec {
        from: Some(source),
        tag: None,
    };
    let specs = [
        from(ALICE, 1),
        untagged(ALICE),
        any(1),
        from(BOB, 1),
        from(ALICE, 2),
        untagged(ALICE),
        UNTAGGED,
    ];
    for (receive, spec) in (0..).zip(specs) {
        queue(&mut matcher, spec, receive);
    }
    assert_eq!(matcher.take_directed(ALICE), [0, 1, 4, 5]);
    assert!(matcher.take_directed(ALICE).is_empty());
    assert_eq!(matcher.take_posted(), [2, 3, 6]);
    assert_eq!(matcher.posted_len(), 0);
}

#[test]
fn closing_takes_everything_in_order() {
    let mut matcher = Names::new();
    for (tag, text) in [(Some(1), "a"), (None, "b"), (Some(2), "c"), (None, "d")] {
        kept(&mut matcher, None, tag, text);
    }
    assert_eq!(texts(matcher.take_waiting()), ["a", "b", "c", "d"]);
    assert_eq!(matcher.waiting_len(), 0);
    kept(&mut matcher, None, 1, "e");
    assert_eq!(
        took(&mut matcher, any(1)),
        Some("e"),
        "the matcher still works"
    );
}
