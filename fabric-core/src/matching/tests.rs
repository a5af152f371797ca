//! One test for each rule in the documentation of `matching`. `tests/matching_oracle.rs` compares
//! whole histories with an oracle.

use std::num::NonZeroU16;

use super::*;
use crate::address::FiAddr;

const ALICE: FiAddr = FiAddr::new(1, 0, NonZeroU16::MIN);
const BOB: FiAddr = FiAddr::new(2, 0, NonZeroU16::MIN);

type TestMatcher = Matcher<u32, &'static str>;

fn recv_any(tag: u64) -> RecvSpec {
    RecvSpec {
        from: None,
        tag: Some(TagMatch { tag, ignore: 0 }),
    }
}

fn recv_from(source: FiAddr, tag: u64) -> RecvSpec {
    RecvSpec {
        from: Some(source),
        ..recv_any(tag)
    }
}

const UNTAGGED: RecvSpec = RecvSpec {
    from: None,
    tag: None,
};

fn next_envelope(
    matcher: &mut TestMatcher,
    source: Option<FiAddr>,
    tag: impl Into<Option<u64>>,
) -> Envelope {
    let peer = PeerKey(source.map_or(9, |source| source.index() as u32));
    Envelope {
        peer,
        source,
        tag: tag.into(),
        len: 3,
        data: None,
        arrival: matcher.next_arrival(),
        ack: None,
    }
}

/// Queues a message without offering the message to the receives.
fn add_unexpected(
    matcher: &mut TestMatcher,
    source: Option<FiAddr>,
    tag: impl Into<Option<u64>>,
    text: &'static str,
) -> UnexpectedKey {
    let envelope = next_envelope(matcher, source, tag);
    matcher.unexpected.insert(envelope, text)
}

fn post_queued(matcher: &mut TestMatcher, spec: RecvSpec, receive: u32) -> PostKey {
    match matcher.post(spec, receive) {
        RecvPostResult::Queued(key) => key,
        RecvPostResult::Matched(envelope, text) => {
            panic!("receive {receive} took {text:?}, {envelope:?}")
        }
    }
}

/// Posts a receive and returns the message that it matched; removes the receive if none matched.
fn post_and_take(matcher: &mut TestMatcher, spec: RecvSpec) -> Option<&'static str> {
    match matcher.post(spec, 999) {
        RecvPostResult::Matched(_, text) => Some(text),
        RecvPostResult::Queued(key) => {
            assert_eq!(matcher.posted.remove(key), Some(999));
            None
        }
    }
}

/// Assigns a source to the messages of a peer, and takes those that posted receives accept.
fn match_assigned(
    matcher: &mut TestMatcher,
    peer: PeerKey,
    source: FiAddr,
) -> Vec<(u32, Envelope, &'static str)> {
    let keys = matcher.unexpected.assign_source(&[peer], source);
    let matched = keys.into_iter().filter_map(|key| {
        let envelope = matcher.unexpected.get(key)?.clone();
        let receive = matcher.posted.take_match(&envelope)?;
        let (envelope, text) = matcher.unexpected.take(key)?;
        Some((receive, envelope, text))
    });
    matched.collect()
}

/// Takes the first receive, if it accepts a message without a source.
fn take_first(matcher: &mut TestMatcher) -> Option<u32> {
    let first = matcher.posted.peek_first(None);
    if first.is_some() {
        matcher.posted.take_first();
    }
    first
}

fn bodies(messages: Vec<(Envelope, &'static str)>) -> Vec<&'static str> {
    messages.into_iter().map(|(_, text)| text).collect()
}

#[test]
fn arrivals_are_numbered_from_zero() {
    let mut matcher = TestMatcher::default();
    assert_eq!([0; 3].map(|_| matcher.next_arrival()), [0, 1, 2]);
}

#[test]
fn arrival_matches_earliest_accepting_receive() {
    let mut matcher = TestMatcher::new();
    for (tag, receive) in [(5, 10), (6, 11), (6, 12), (5, 13)] {
        post_queued(&mut matcher, recv_any(tag), receive);
    }
    let six = next_envelope(&mut matcher, Some(ALICE), 6);
    assert!(matcher.posted.would_match(&six));
    assert_eq!(matcher.posted.len(), 4, "would_match takes no receive");
    assert_eq!(matcher.posted.take_match(&six), Some(11));
    assert_eq!(matcher.posted.take_match(&six), Some(12));
    assert_eq!(matcher.posted.take_match(&six), None);
    assert!(!matcher.posted.would_match(&six));
    assert_eq!(matcher.posted.take_all(), [10, 13]);
}

#[test]
fn late_receive_matches_earliest_unexpected() {
    let mut matcher = TestMatcher::new();
    for (tag, text) in [(5, "a"), (6, "b"), (6, "c"), (5, "d")] {
        add_unexpected(&mut matcher, Some(ALICE), tag, text);
    }
    assert_eq!(
        matcher
            .unexpected
            .peek(&recv_any(6))
            .map(|envelope| envelope.arrival),
        Some(1)
    );
    assert_eq!(matcher.unexpected.len(), 4, "peek takes no message");
    assert_eq!(
        [(); 3].map(|()| post_and_take(&mut matcher, recv_any(6))),
        [Some("b"), Some("c"), None]
    );
    assert_eq!(matcher.unexpected.peek(&recv_any(6)), None);
    assert_eq!(bodies(matcher.unexpected.take_all()), ["a", "d"]);
}

#[test]
fn ignored_tag_bits_do_not_affect_matching() {
    let mut matcher = TestMatcher::new();
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
        add_unexpected(&mut matcher, Some(ALICE), tag, "text");
    }
    assert_eq!(
        matcher
            .unexpected
            .peek(&masked)
            .and_then(|envelope| envelope.tag),
        Some(0xAB7F)
    );
    assert_eq!(
        matcher
            .unexpected
            .peek(&whole)
            .and_then(|envelope| envelope.tag),
        Some(0xAC00)
    );
}

#[test]
fn tagged_and_untagged_never_match() {
    let mut matcher = TestMatcher::new();
    let every_tag = RecvSpec {
        from: None,
        tag: Some(TagMatch {
            tag: 0,
            ignore: u64::MAX,
        }),
    };
    add_unexpected(&mut matcher, Some(ALICE), 0, "tagged");
    assert_eq!(post_and_take(&mut matcher, UNTAGGED), None);
    add_unexpected(&mut matcher, Some(ALICE), None, "untagged");
    assert_eq!(post_and_take(&mut matcher, every_tag), Some("tagged"));
    assert_eq!(post_and_take(&mut matcher, every_tag), None);
    assert_eq!(post_and_take(&mut matcher, UNTAGGED), Some("untagged"));

    post_queued(&mut matcher, every_tag, 1);
    let untagged = next_envelope(&mut matcher, Some(ALICE), None);
    assert_eq!(matcher.posted.take_match(&untagged), None);
    post_queued(&mut matcher, UNTAGGED, 2);
    assert_eq!(matcher.posted.take_match(&untagged), Some(2));
}

#[test]
fn directed_and_any_source_match_in_posting_order() {
    for any_first in [true, false] {
        let mut matcher = TestMatcher::new();
        let specs = if any_first {
            [recv_any(1), recv_from(ALICE, 1)]
        } else {
            [recv_from(ALICE, 1), recv_any(1)]
        };
        post_queued(&mut matcher, specs[0], 0);
        post_queued(&mut matcher, specs[1], 1);
        let bobs = next_envelope(&mut matcher, Some(BOB), 1);
        let alices = next_envelope(&mut matcher, Some(ALICE), 1);
        assert_eq!(matcher.posted.take_match(&alices), Some(0));
        assert_eq!(matcher.posted.take_match(&bobs), (!any_first).then_some(1));
    }
}

#[test]
fn message_from_another_generation_of_the_address_does_not_match() {
    let mut matcher = TestMatcher::new();
    post_queued(&mut matcher, recv_from(ALICE, 1), 0);
    let message = next_envelope(&mut matcher, Some(FiAddr::new(1, 1, NonZeroU16::MIN)), 1);
    assert_eq!(matcher.posted.take_match(&message), None);
}

#[test]
fn unknown_source_matches_only_any_source_receives() {
    let mut matcher = TestMatcher::new();
    post_queued(&mut matcher, recv_from(ALICE, 1), 0);
    let unknown = next_envelope(&mut matcher, None, 1);
    assert_eq!(matcher.posted.take_match(&unknown), None);
    post_queued(&mut matcher, recv_any(1), 1);
    assert_eq!(matcher.posted.take_match(&unknown), Some(1));
    matcher.unexpected.insert(unknown, "hello");
    assert_eq!(post_and_take(&mut matcher, recv_from(BOB, 1)), None);
    assert_eq!(post_and_take(&mut matcher, recv_any(1)), Some("hello"));
}

#[test]
fn assigned_source_matches_unexpected_messages() {
    let mut matcher = TestMatcher::new();
    post_queued(&mut matcher, recv_from(ALICE, 1), 0);
    post_queued(
        &mut matcher,
        RecvSpec {
            from: Some(ALICE),
            tag: None,
        },
        1,
    );
    post_queued(&mut matcher, recv_from(ALICE, 1), 2);
    for (tag, text) in [
        (Some(1), "a"),
        (Some(2), "b"),
        (None, "c"),
        (Some(1), "d"),
        (Some(1), "e"),
    ] {
        add_unexpected(&mut matcher, None, tag, text);
    }
    let other = Envelope {
        peer: PeerKey(5),
        ..next_envelope(&mut matcher, None, 1)
    };
    matcher.unexpected.insert(other, "another peer");

    let matched = match_assigned(&mut matcher, PeerKey(9), ALICE);
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
    assert_eq!((matcher.posted.len(), matcher.unexpected.len()), (0, 3));
    assert_eq!(
        post_and_take(&mut matcher, recv_from(ALICE, 1)),
        Some("e"),
        "a message that matched no receive got the source too"
    );
    assert_eq!(post_and_take(&mut matcher, recv_from(ALICE, 1)), None);
    assert!(match_assigned(&mut matcher, PeerKey(9), BOB).is_empty());
    assert_eq!(
        post_and_take(&mut matcher, recv_from(ALICE, 2)),
        Some("b"),
        "a known source is kept"
    );
}

#[test]
fn messages_of_a_cleared_source_match_only_any_source_receives() {
    let mut matcher = TestMatcher::new();
    add_unexpected(&mut matcher, Some(ALICE), 1, "alice");
    add_unexpected(&mut matcher, Some(BOB), 1, "bob");
    add_unexpected(&mut matcher, Some(ALICE), None, "untagged");
    matcher.unexpected.clear_source(ALICE);
    assert_eq!(
        matcher
            .unexpected
            .peek(&recv_any(1))
            .map(|envelope| envelope.source),
        Some(None)
    );
    assert_eq!(post_and_take(&mut matcher, recv_from(ALICE, 1)), None);
    assert_eq!(post_and_take(&mut matcher, recv_from(BOB, 1)), Some("bob"));
    assert_eq!(post_and_take(&mut matcher, UNTAGGED), Some("untagged"));
    assert!(match_assigned(&mut matcher, PeerKey(ALICE.index() as u32), BOB).is_empty());
    assert_eq!(
        post_and_take(&mut matcher, recv_from(BOB, 1)),
        Some("alice")
    );
}

#[test]
fn restored_receive_is_matched_in_posting_order() {
    let mut matcher = TestMatcher::new();
    post_queued(&mut matcher, recv_any(1), 0);
    let matched = post_queued(&mut matcher, recv_any(1), 1);
    let place = matcher.posted.place(matched).unwrap();
    assert!(!place.is_directed());
    post_queued(&mut matcher, recv_any(1), 2);
    assert_eq!(matcher.posted.remove(matched), Some(1));
    assert!(matcher.posted.place(matched).is_none());
    let (key, waiting) = (place.key(), matcher.restore(place, 1));
    assert_eq!((waiting, matcher.posted.len()), (None, 3));
    assert!(matcher.posted.place(key).is_some());
    for receive in 0..3 {
        let envelope = next_envelope(&mut matcher, None, 1);
        assert_eq!(matcher.posted.take_match(&envelope), Some(receive));
    }
}

#[test]
fn restored_receive_finds_its_earliest_unexpected_message() {
    let mut matcher = TestMatcher::new();
    let place = matcher.posted.assign_place(&recv_any(1));
    add_unexpected(&mut matcher, None, 2, "another tag");
    add_unexpected(&mut matcher, None, 1, "first");
    add_unexpected(&mut matcher, None, 1, "second");
    let (key, waiting) = (place.key(), matcher.restore(place, 0));
    let (_, text) = matcher.unexpected.take(waiting.unwrap()).unwrap();
    assert_eq!((text, matcher.posted.remove(key)), ("first", Some(0)));
    // A receive that was posted before gets the message.
    matcher.posted.push(&recv_any(1), 1);
    let place = matcher.posted.assign_place(&recv_any(1));
    assert_eq!(matcher.restore(place, 2), None);
    assert_eq!(matcher.unexpected.len(), 2);
}

#[test]
fn requeued_message_keeps_arrival_order() {
    let mut matcher = TestMatcher::new();
    for text in ["a", "b", "c", "d"] {
        add_unexpected(&mut matcher, Some(ALICE), 1, text);
    }
    let taken: Vec<_> = (0..3)
        .map(|_| match matcher.post(recv_any(1), 0) {
            RecvPostResult::Matched(envelope, text) => (envelope, text),
            RecvPostResult::Queued(_) => panic!("no unexpected message"),
        })
        .collect();
    add_unexpected(&mut matcher, Some(ALICE), 1, "e");
    for index in [1, 0, 2] {
        let (envelope, text) = taken[index].clone();
        matcher.unexpected.insert(envelope, text);
    }
    let order = [(); 6].map(|()| post_and_take(&mut matcher, recv_any(1)));
    assert_eq!(
        order,
        [Some("a"), Some("b"), Some("c"), Some("d"), Some("e"), None]
    );
}

#[test]
fn removed_receive_leaves_the_queue_at_any_position() {
    for removed in 0..3 {
        let mut matcher = TestMatcher::new();
        let keys: Vec<_> = (0..3)
            .map(|receive| post_queued(&mut matcher, recv_any(1), receive))
            .collect();
        assert_eq!(matcher.posted.remove(keys[removed as usize]), Some(removed));
        post_queued(&mut matcher, recv_any(1), 3);
        let left: Vec<_> = (0..4).filter(|&receive| receive != removed).collect();
        assert_eq!(matcher.posted.take_all(), left);
    }
}

#[test]
fn first_tagged_receive_is_found_and_taken() {
    let mut matcher = TestMatcher::new();
    let tagged = RecvSpec {
        from: Some(ALICE),
        tag: Some(TagMatch { tag: 7, ignore: 8 }),
    };
    post_queued(&mut matcher, UNTAGGED, 1);
    assert_eq!(matcher.posted.first_tagged(), None);
    for (receive, spec) in [(2, tagged), (3, recv_any(9))] {
        post_queued(&mut matcher, spec, receive);
    }
    for (receive, spec) in [(2, tagged), (3, recv_any(9))] {
        assert_eq!(matcher.posted.first_tagged(), Some((receive, spec)));
        matcher.posted.take_first_tagged();
    }
    assert_eq!(matcher.posted.first_tagged(), None);
    assert_eq!(
        (matcher.posted.len(), take_first(&mut matcher)),
        (1, Some(1))
    );
}

#[test]
fn removing_many_receives_keeps_the_order_of_the_others() {
    const RECEIVES: u32 = 500;
    let mut matcher = TestMatcher::new();
    for round in 0..4 {
        let keys: Vec<_> = (0..RECEIVES)
            .map(|receive| post_queued(&mut matcher, UNTAGGED, receive))
            .collect();
        let is_left = |receive: u32| receive % 7 == 3;
        let mut removed: Vec<_> = (0..RECEIVES).filter(|&at| !is_left(at)).collect();
        if round % 2 == 1 {
            removed.reverse();
        }
        for receive in removed {
            let key = keys[receive as usize];
            assert_eq!(matcher.posted.remove(key), Some(receive));
            assert_eq!(matcher.posted.remove(key), None);
        }
        for receive in (0..RECEIVES).filter(|&at| is_left(at)) {
            let place = matcher.posted.place(keys[receive as usize]).unwrap();
            let message = next_envelope(&mut matcher, None, None);
            let take = |matcher: &mut TestMatcher, in_any_place: bool| match in_any_place {
                true => matcher.posted.take_match(&message),
                false => take_first(matcher),
            };
            assert_eq!(take(&mut matcher, receive % 2 == 0), Some(receive));
            if receive % 3 == 0 {
                matcher.restore(place, receive);
                assert_eq!(take_first(&mut matcher), Some(receive));
            }
        }
        assert_eq!((matcher.posted.len(), take_first(&mut matcher)), (0, None));
    }
}

#[test]
fn stale_keys_find_nothing_after_slot_reuse() {
    let mut matcher = TestMatcher::new();
    let old = post_queued(&mut matcher, recv_any(1), 0);
    assert_eq!(matcher.posted.remove(old), Some(0));
    let new = post_queued(&mut matcher, recv_any(1), 1);
    assert_eq!(matcher.posted.remove(old), None);
    assert_ne!(old, new);
    assert_eq!(matcher.posted.remove(new), Some(1));

    let old = add_unexpected(&mut matcher, Some(ALICE), 1, "text");
    let (envelope, text) = matcher.unexpected.take(old).unwrap();
    let new = matcher.unexpected.insert(envelope, text);
    assert_eq!(
        matcher.unexpected.get_mut(old),
        None,
        "the key is valid for one insertion"
    );
    assert_eq!(matcher.unexpected.take(old), None);
    assert!(matcher.unexpected.take(new).is_some());
    assert_eq!((matcher.posted.len(), matcher.unexpected.len()), (0, 0));
}

#[test]
fn unexpected_message_can_be_modified() {
    let mut matcher = TestMatcher::new();
    add_unexpected(&mut matcher, Some(BOB), 1, "other");
    let key = add_unexpected(&mut matcher, Some(ALICE), 1, "partial");
    let (envelope, text) = matcher.unexpected.get_mut(key).unwrap();
    assert_eq!((envelope.source, *text), (Some(ALICE), "partial"));
    *text = "complete";
    assert_eq!(
        post_and_take(&mut matcher, recv_from(ALICE, 1)),
        Some("complete")
    );
}

#[test]
fn directed_receives_are_taken_in_posting_order() {
    let mut matcher = TestMatcher::new();
    let untagged = |source| RecvSpec {
        from: Some(source),
        tag: None,
    };
    let specs = [
        recv_from(ALICE, 1),
        untagged(ALICE),
        recv_any(1),
        recv_from(BOB, 1),
        recv_from(ALICE, 2),
        untagged(ALICE),
        UNTAGGED,
    ];
    for (receive, spec) in (0..).zip(specs) {
        post_queued(&mut matcher, spec, receive);
    }
    assert_eq!(matcher.posted.take_directed(ALICE), [0, 1, 4, 5]);
    assert!(matcher.posted.take_directed(ALICE).is_empty());
    assert_eq!(matcher.posted.take_all(), [2, 3, 6]);
    assert_eq!(matcher.posted.len(), 0);
}

#[test]
fn unexpected_messages_are_taken_in_arrival_order() {
    let mut matcher = TestMatcher::new();
    for (tag, text) in [(Some(1), "a"), (None, "b"), (Some(2), "c"), (None, "d")] {
        add_unexpected(&mut matcher, None, tag, text);
    }
    assert_eq!(bodies(matcher.unexpected.take_all()), ["a", "b", "c", "d"]);
    assert_eq!(matcher.unexpected.len(), 0);
    add_unexpected(&mut matcher, None, 1, "e");
    assert_eq!(
        post_and_take(&mut matcher, recv_any(1)),
        Some("e"),
        "the matcher is usable after take_unexpected"
    );
}

#[test]
fn long_queue_that_becomes_empty_frees_its_tables() {
    for take_all in [false, true] {
        let mut matcher = TestMatcher::new();
        let count = unexpected::MAX_KEPT + 1;
        let keys: Vec<_> = (0..count)
            .map(|_| add_unexpected(&mut matcher, Some(ALICE), 7, "old"))
            .collect();
        if take_all {
            assert_eq!(matcher.unexpected.take_all().len(), count);
        } else {
            assert!(
                keys.iter()
                    .all(|key| matcher.unexpected.take(*key).is_some())
            );
        }
        assert_eq!(matcher.unexpected.capacity(), 0);
        // Keys of the messages that were taken find nothing, also when others have their entries.
        let key = add_unexpected(&mut matcher, Some(BOB), 7, "new");
        assert!(
            keys.iter()
                .all(|key| matcher.unexpected.get(*key).is_none())
        );
        assert!(matcher.unexpected.take(key).is_some());
        assert!(
            matcher.unexpected.capacity() > 0,
            "a short queue keeps its tables"
        );
    }
}
