//! Models of the ring buffer: pushed records are popped. The invariants are those listed in
//! `transport::shm::ring`.

use loom::thread;

use super::ring_memory::LoomRingMemory;
use crate::transport::shm::ring::{Consumer, ConsumerState, HEADER_LEN, LINE_LEN, Producer};

/// A record kind; any valid one.
const KIND: u8 = 1;

/// Returns the payload of message `number`. The bytes over the header of its second line look like
/// a record of the next lap.
fn test_payload(number: u8, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len)
        .map(|index| number.wrapping_mul(37).wrapping_add(index as u8))
        .collect();
    if let Some(overlap) = bytes.get_mut(LINE_LEN - HEADER_LEN..LINE_LEN) {
        overlap.copy_from_slice(&[KIND, number, HEADER_LEN as u8, 0, 0, 2, 0, 0]);
    }
    bytes
}

pub(super) fn try_push(ring: &mut Producer<LoomRingMemory>, number: u8, len: usize) -> bool {
    ring.push(KIND, number, HEADER_LEN + len, |record| {
        record.put(HEADER_LEN, &test_payload(number, len))
    })
}

/// Takes the next message if there is one, and checks it. Returns whether the producer has to be
/// woken.
pub(super) fn try_pop(ring: &mut Consumer<LoomRingMemory>, number: u8, len: usize) -> Option<bool> {
    let record = ring
        .peek()
        .expect("record of a correct producer is valid")?;
    assert_eq!(
        (record.header.kind, record.header.flags),
        (KIND, number),
        "records arrive in order and once"
    );
    assert_eq!(record.header.len as usize, HEADER_LEN + len);
    assert_eq!(
        ring.memory().payload(record),
        test_payload(number, len),
        "message {number} is corrupted"
    );
    Some(ring.consume(record))
}

/// Pushes `pushed_before` messages and pops `popped_before` of them, then lets two threads push and
/// pop the rest, with the lengths `lens`.
fn check_delivery(
    lines: usize,
    lens: &'static [usize],
    pushed_before: usize,
    popped_before: usize,
) {
    check_delivery_in(
        move || LoomRingMemory::new(lines),
        lens,
        pushed_before,
        popped_before,
    );
}

/// Checks delivery in this memory.
fn check_delivery_in(
    memory: impl Fn() -> LoomRingMemory + Send + Sync + 'static,
    lens: &'static [usize],
    pushed_before: usize,
    popped_before: usize,
) {
    loom::model(move || {
        let memory = memory();
        let (mut producer, mut consumer) = (Producer::new(memory.clone()), Consumer::new(memory));
        for (number, &len) in lens[..pushed_before].iter().enumerate() {
            assert!(try_push(&mut producer, number as u8, len));
        }
        for (number, &len) in lens[..popped_before].iter().enumerate() {
            assert!(try_pop(&mut consumer, number as u8, len).is_some());
        }
        let sender = thread::spawn(move || {
            for (number, &len) in lens.iter().enumerate().skip(pushed_before) {
                while !try_push(&mut producer, number as u8, len) {
                    thread::yield_now();
                }
            }
        });
        for (number, &len) in lens.iter().enumerate().skip(popped_before) {
            while try_pop(&mut consumer, number as u8, len).is_none() {
                thread::yield_now();
            }
        }
        sender.join().expect("sender panicked");
        assert_eq!(consumer.peek(), Ok(None), "record that was never sent");
    });
}

/// Fresh memory: a record is seen as a whole or not at all.
#[test]
fn records_in_zeroed_ring_are_never_seen_partially() {
    check_delivery(8, &[8; 3], 0, 0);
}

/// One line per record, seven at a time: the producer waits for released lines and wraps around.
///
/// Invariant 3: no line is written before the consumer has released it. Invariant 1: a header of
/// the last lap is never taken for a record.
#[test]
fn full_ring_reuses_only_released_lines() {
    check_delivery(8, &[LINE_LEN - HEADER_LEN; 10], 7, 0);
}

/// Records of two lines, whose second line overwrites a header with payload, and a filler at the
/// end of the array.
///
/// Invariant 2: payload that looks like a header is cleared before the consumer can read its line
/// as a header. The last two records of one line each are where the previous lap had the second
/// lines of longer records.
#[test]
fn multi_line_records_and_fillers_keep_their_order() {
    const LONG: usize = 2 * LINE_LEN - HEADER_LEN;
    const SHORT: usize = 8;
    // Lines 0 to 14, with second lines at 1, 3 and so on; then line 15, and lines 0 and 1 of the
    // second lap.
    check_delivery(
        16,
        &[
            LONG, LONG, LONG, LONG, LONG, LONG, SHORT, LONG, SHORT, SHORT, SHORT,
        ],
        8,
        6,
    );
}

/// As above, but the ring is full when the filler is due: filler and record are pushed together or
/// not at all.
#[test]
fn filler_and_record_wait_for_room_together() {
    const LONG: usize = 2 * LINE_LEN - HEADER_LEN;
    const SHORT: usize = 8;
    check_delivery(
        16,
        &[LONG, LONG, LONG, LONG, LONG, LONG, LONG, SHORT, LONG, LONG],
        7,
        0,
    );
}

/// A ring of eight lines is full in the middle of its second lap, and has four more at the end of
/// that lap. The growth record takes the last line.
#[test]
fn growing_ring_keeps_the_order_and_reuses_only_released_lines() {
    check_delivery_in(|| LoomRingMemory::growing(8, 12), &[8; 13], 7, 1);
}

/// A consumer polls once or twice and closes, while the producer queries whether its record was
/// consumed: a record that was taken never counts as lost, and a record after the close never
/// counts as taken. The ring is large enough that only the close reports what was taken.
#[test]
fn close_tells_whether_the_last_record_was_consumed() {
    loom::model(|| {
        let memory = LoomRingMemory::new(16);
        let (mut producer, mut consumer) = (Producer::new(memory.clone()), Consumer::new(memory));
        let reader = thread::spawn(move || {
            let taken = try_pop(&mut consumer, 0, 8).is_some() || {
                consumer.arm();
                try_pop(&mut consumer, 0, 8).is_some()
            };
            consumer.close();
            taken
        });
        assert!(try_push(&mut producer, 0, 8));
        let state = producer.consumer_state();
        let taken = reader.join().expect("reader panicked");
        assert!(
            !taken || state != ConsumerState::Closed,
            "a record that was taken counts as lost"
        );
        let later_state = producer.consumer_state();
        assert_eq!(
            later_state == ConsumerState::Closed,
            !taken,
            "a later check gives the same answer"
        );
        assert!(try_push(&mut producer, 1, 8));
        assert_eq!(
            producer.consumer_state(),
            ConsumerState::Closed,
            "a record after the close counts as taken"
        );
    });
}
