//! Tests that count comparisons: a match, a search and a change of a source compare about as many
//! entries behind 100,000 others as behind 1,000.

use std::num::NonZeroU16;

use super::comparisons::comparisons_of;
use super::*;
use crate::address::FiAddr;

const ENTRIES: [u64; 2] = [1_000, 100_000];

/// Maximum number of comparisons of one operation on a long queue: those of the entries that are
/// not in the index, and those of a few look-ups in ordered sets.
const MAX_COMPARISONS: u64 = 400;

/// The receives and messages of the tests have tags below this one.
const OTHER_TAG: u64 = 1 << 40;

type LongMatcher = Matcher<u64, ()>;

fn peer(index: u32) -> FiAddr {
    FiAddr::new(index, 0, NonZeroU16::MIN)
}

fn tagged(tag: u64) -> RecvSpec {
    masked(tag, 0)
}

fn masked(tag: u64, ignore: u64) -> RecvSpec {
    RecvSpec {
        from: None,
        tag: Some(TagMatch { tag, ignore }),
    }
}

fn untagged(from: Option<FiAddr>) -> RecvSpec {
    RecvSpec { from, tag: None }
}

fn message(matcher: &mut LongMatcher, source: Option<FiAddr>, tag: Option<u64>) -> Envelope {
    Envelope {
        peer: PeerKey(source.map_or(0, |source| source.index() as u32)),
        source,
        tag,
        len: 0,
        data: None,
        arrival: matcher.next_arrival(),
        ack: None,
    }
}

/// Asserts that an operation makes few comparisons.
fn assert_few(what: &str, entries: u64, operation: impl FnOnce()) {
    let comparisons = comparisons_of(operation);
    assert!(
        comparisons <= MAX_COMPARISONS,
        "{what} in {entries} entries: {comparisons} comparisons"
    );
}

/// Asserts that so many operations on a queue, which also build the index, make few comparisons
/// on average.
fn assert_few_each(what: &str, entries: u64, operations: u64, run: impl FnOnce()) {
    let comparisons = comparisons_of(run);
    assert!(
        comparisons <= MAX_COMPARISONS * operations,
        "{what} in {entries} entries: {comparisons} comparisons for {operations} operations"
    );
}

/// Returns a matcher with so many receives: each has another tag, a tenth is directed, and a tenth
/// ignores a part of the tag.
fn with_receives(entries: u64) -> LongMatcher {
    let mut matcher = LongMatcher::new();
    for receive in 0..entries {
        let mut spec = match receive % 10 {
            3 => masked(receive << 8, 0xFF),
            _ => tagged(receive << 8),
        };
        spec.from = (receive % 10 == 7).then(|| peer(receive as u32));
        matcher.posted.push(&spec, receive);
    }
    matcher
}

/// Returns a matcher with so many unexpected messages of another tag, of two peers.
fn with_messages(entries: u64) -> LongMatcher {
    let mut matcher = LongMatcher::new();
    for at in 0..entries {
        let source = (at % 2 == 0).then(|| peer(1));
        let envelope = message(&mut matcher, source, Some(7));
        matcher.unexpected.insert(envelope, ());
    }
    matcher
}

#[test]
fn message_behind_many_receives_is_matched_with_few_comparisons() {
    for entries in ENTRIES {
        let mut matcher = with_receives(entries);
        matcher.posted.push(&tagged(OTHER_TAG), entries);
        let last = message(&mut matcher, Some(peer(2)), Some(OTHER_TAG));
        assert_few_each("the first match", entries, entries, || {
            assert_eq!(matcher.posted.take_match(&last), Some(entries));
        });
        assert_few("no match", entries, || {
            assert!(!matcher.posted.would_match(&last));
        });
        matcher.posted.push(&tagged(OTHER_TAG), entries);
        assert_few("the match of the last", entries, || {
            assert_eq!(matcher.posted.take_match(&last), Some(entries));
        });
        let from = Some(peer(77));
        let directed = message(&mut matcher, from, Some(77 << 8));
        assert_few("the match of a directed one", entries, || {
            assert_eq!(matcher.posted.take_match(&directed), Some(77));
        });
        let partial = message(&mut matcher, from, Some((33 << 8) | 5));
        assert_few("the match with ignored bits", entries, || {
            assert_eq!(matcher.posted.take_match(&partial), Some(33));
        });
    }
}

#[test]
fn messages_in_reverse_order_are_matched_with_few_comparisons() {
    for entries in ENTRIES {
        let mut matcher = with_receives(entries);
        assert_few_each("all matches", entries, entries, || {
            for receive in (0..entries).rev() {
                let source = Some(peer(receive as u32));
                let envelope = message(&mut matcher, source, Some(receive << 8));
                assert_eq!(matcher.posted.take_match(&envelope), Some(receive));
            }
        });
    }
}

#[test]
fn removed_receives_do_not_slow_the_match_of_others() {
    for entries in ENTRIES {
        let mut matcher = LongMatcher::new();
        let keys: Vec<_> = (0..entries)
            .map(|receive| matcher.posted.push(&tagged(receive % 2), receive))
            .collect();
        let none = message(&mut matcher, None, Some(2));
        assert!(!matcher.posted.would_match(&none));
        for key in keys.iter().skip(1).step_by(2) {
            matcher.posted.remove(*key);
        }
        let odd = message(&mut matcher, None, Some(1));
        assert_few_each("the first look-up", entries, entries, || {
            assert!(!matcher.posted.would_match(&odd));
        });
        assert_few("another look-up", entries, || {
            assert!(!matcher.posted.would_match(&odd));
        });
    }
}

#[test]
fn restored_receive_is_found_with_few_comparisons() {
    for entries in ENTRIES {
        let mut matcher = with_receives(entries);
        let key = matcher.posted.push(&tagged(OTHER_TAG), entries);
        matcher.posted.push(&tagged(OTHER_TAG), entries + 1);
        let last = message(&mut matcher, None, Some(OTHER_TAG));
        assert!(matcher.posted.would_match(&last));
        let place = matcher.posted.place(key).unwrap();
        assert_eq!(matcher.posted.take_match(&last), Some(entries));
        assert_few("restoring", entries, || {
            let _ = matcher.restore(place, entries);
            assert_eq!(matcher.posted.take_match(&last), Some(entries));
        });
    }
}

#[test]
fn receives_of_one_source_are_taken_with_few_comparisons() {
    for entries in ENTRIES {
        let mut matcher = with_receives(entries);
        assert_eq!(matcher.posted.take_directed(peer(7)), [7]);
        assert_few("taking directed receives", entries, || {
            assert_eq!(matcher.posted.take_directed(peer(107)), [107]);
            assert!(matcher.posted.take_directed(peer(107)).is_empty());
        });
    }
}

#[test]
fn receive_behind_many_messages_is_matched_with_few_comparisons() {
    for entries in ENTRIES {
        let mut matcher = with_messages(entries);
        let other = |matcher: &mut LongMatcher| {
            let envelope = message(matcher, Some(peer(2)), Some(OTHER_TAG));
            matcher.unexpected.insert(envelope, ());
        };
        let specs = [
            tagged(OTHER_TAG),
            masked(OTHER_TAG | 5, 7),
            RecvSpec {
                from: Some(peer(2)),
                ..tagged(OTHER_TAG)
            },
            RecvSpec {
                from: Some(peer(2)),
                ..masked(0, u64::MAX)
            },
        ];
        for spec in specs {
            assert_few_each("the first search", entries, entries, || {
                assert_eq!(matcher.unexpected.peek(&spec), None);
            });
            other(&mut matcher);
            assert_few("a round trip", entries, || {
                assert!(matches!(
                    matcher.post(spec, 0),
                    RecvPostResult::Matched(_, ())
                ));
                let RecvPostResult::Queued(key) = matcher.post(spec, 1) else {
                    panic!("no other message has this tag");
                };
                assert_eq!(matcher.posted.remove(key), Some(1));
            });
        }
        assert_few("a search of untagged messages", entries, || {
            assert_eq!(matcher.unexpected.peek(&untagged(None)), None);
        });
    }
}

#[test]
fn round_trips_behind_many_messages_make_few_comparisons() {
    for entries in ENTRIES {
        let mut matcher = with_messages(entries);
        assert_eq!(matcher.unexpected.peek(&tagged(OTHER_TAG)), None);
        assert_few_each("round trips", entries, 1_000, || {
            for receive in 0..1_000 {
                let posted = matcher.post(tagged(OTHER_TAG), receive);
                assert!(matches!(posted, RecvPostResult::Queued(_)));
                let envelope = message(&mut matcher, None, Some(OTHER_TAG));
                assert_eq!(matcher.posted.take_match(&envelope), Some(receive));
            }
        });
    }
}

#[test]
fn requeued_message_is_inserted_with_few_comparisons() {
    for entries in ENTRIES {
        let mut matcher = with_messages(entries);
        let key = matcher.unexpected.keys()[entries as usize / 2];
        let (envelope, ()) = matcher.unexpected.take(key).unwrap();
        let key = matcher.unexpected.insert(envelope, ());
        let (envelope, ()) = matcher.unexpected.take(key).unwrap();
        let arrival = envelope.arrival;
        assert_few("requeueing", entries, || {
            matcher.unexpected.insert(envelope, ());
        });
        let keys = matcher.unexpected.keys();
        let requeued = matcher.unexpected.get(keys[entries as usize / 2]);
        assert_eq!(requeued.map(|envelope| envelope.arrival), Some(arrival));
    }
}

#[test]
fn requeued_message_is_in_order_after_the_next_one_was_removed() {
    let mut matcher = with_messages(100);
    let key = matcher.unexpected.keys()[70];
    let (last, ()) = matcher.unexpected.take(key).unwrap();
    matcher.unexpected.insert(last, ());
    let keys = matcher.unexpected.keys();
    let (requeued, ()) = matcher.unexpected.take(keys[49]).unwrap();
    assert!(matcher.unexpected.take(keys[50]).is_some());
    matcher.unexpected.insert(requeued, ());
    for arrival in (0..100).filter(|&arrival| arrival != 50) {
        let RecvPostResult::Matched(envelope, ()) = matcher.post(masked(0, u64::MAX), 0) else {
            panic!("message {arrival} is queued");
        };
        assert_eq!(envelope.arrival, arrival);
    }
}

#[test]
fn messages_of_one_source_are_found_with_few_comparisons() {
    for entries in ENTRIES {
        let mut matcher = with_messages(entries);
        assert!(!matcher.unexpected.holds_messages_from(peer(2)));
        let unknown = Envelope {
            peer: PeerKey(2),
            ..message(&mut matcher, None, Some(OTHER_TAG))
        };
        let key = matcher.unexpected.insert(unknown, ());
        assert_few("the messages of one source", entries, || {
            assert_eq!(
                matcher.unexpected.assign_source(&[PeerKey(2)], peer(2)),
                [key]
            );
            assert!(matcher.unexpected.holds_messages_from(peer(2)));
            matcher.unexpected.clear_source(peer(2));
            assert!(!matcher.unexpected.holds_messages_from(peer(2)));
        });
        assert_eq!(
            matcher.unexpected.get(key).map(|envelope| envelope.source),
            Some(None)
        );
    }
}
