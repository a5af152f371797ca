//! Models of the ring of lines: what is pushed comes out.

use loom::thread;

use super::ring_memory::LoomRingMemory;
use crate::transport::shm::ring::{Consumer, ConsumerState, HEADER_LEN, LINE_LEN, Producer};

/// Any kind that a record may have.
const KIND: u8 = 1;

/// The payload of message `number`. What of it lies over the header of its second line looks like a
/// record of the next lap.
fn test_payload(number: u8, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len)
        .map(|at| number.wrapping_mul(37).wrapping_add(at as u8))
        .collect();
    if let Some(over) = bytes.get_mut(LINE_LEN - HEADER_LEN..LINE_LEN) {
        over.copy_from_slice(&[KIND, number, HEADER_LEN as u8, 0, 0, 2, 0, 0]);
    }
    bytes
}

pub(super) fn try_push(ring: &mut Producer<LoomRingMemory>, number: u8, len: usize) -> bool {
    ring.push(KIND, number, HEADER_LEN + len, |record| {
        record.put(HEADER_LEN, &test_payload(number, len))
    })
}

/// Takes the next message if there is one, and checks it. The flag says whether the producer has to
/// be woken.
pub(super) fn try_pop(ring: &mut Consumer<LoomRingMemory>, number: u8, len: usize) -> Option<bool> {
    let record = ring.peek().expect("an honest producer breaks nothing")?;
    assert_eq!(
        (record.header.kind, record.header.flags),
        (KIND, number),
        "in order, each once"
    );
    assert_eq!(record.header.len as usize, HEADER_LEN + len);
    assert_eq!(
        ring.memory().payload(record),
        test_payload(number, len),
        "message {number} is unspoilt"
    );
    Some(ring.consume(record))
}

/// Pushes `before` messages and pops `taken` of them, then lets two threads push and pop the rest,
/// all `lens`.
fn check_delivery(lines: usize, lens: &'static [usize], before: usize, taken: usize) {
    loom::model(move || {
        let memory = LoomRingMemory::new(lines);
        let (mut producer, mut consumer) = (Producer::new(memory.clone()), Consumer::new(memory));
        for (number, &len) in lens[..before].iter().enumerate() {
            assert!(try_push(&mut producer, number as u8, len));
        }
        for (number, &len) in lens[..taken].iter().enumerate() {
            assert!(try_pop(&mut consumer, number as u8, len).is_some());
        }
        let sender = thread::spawn(move || {
            for (number, &len) in lens.iter().enumerate().skip(before) {
                while !try_push(&mut producer, number as u8, len) {
                    thread::yield_now();
                }
            }
        });
        for (number, &len) in lens.iter().enumerate().skip(taken) {
            while try_pop(&mut consumer, number as u8, len).is_none() {
                thread::yield_now();
            }
        }
        sender.join().expect("the sender does not panic");
        assert_eq!(consumer.peek(), Ok(None), "nothing else was sent");
    });
}

/// Fresh memory: a record is seen as a whole or not at all.
#[test]
fn records_in_an_empty_ring_arrive_whole() {
    check_delivery(8, &[8; 3], 0, 0);
}

/// One line a record, seven at a time: the producer waits for lines to come back, and goes around.
///
/// Invariant 3: no line is written before the consumer is done with it. Invariant 1: a header of
/// the last lap is never taken for a record.
#[test]
fn full_ring_reuses_only_released_lines() {
    check_delivery(8, &[LINE_LEN - HEADER_LEN; 10], 7, 0);
}

/// Two-line records, whose second line overwrites a header with payload, and a filler at the end of
/// the array.
///
/// Invariant 2: payload that looks like a header is gone before the consumer can look at its line.
/// The last two records of one line each lie where the lap before had the second lines of longer
/// ones.
#[test]
fn multi_line_records_and_filler_keep_their_order() {
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

/// As before, but the ring is full when the filler is due: filler and record come together or not
/// at all.
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

/// A consumer that takes what it finds, once or twice, and closes, while the producer asks what
/// became of its record: what was taken never counts as lost, and what comes after the end never
/// counts as taken. The ring is large enough that only the end makes known what was taken.
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
        let found = producer.consumer_state();
        let taken = reader.join().expect("the reader does not panic");
        assert!(
            !taken || found != ConsumerState::Closed,
            "what was taken has arrived"
        );
        let after = producer.consumer_state();
        assert_eq!(
            after == ConsumerState::Closed,
            !taken,
            "and the same is found out later"
        );
        assert!(try_push(&mut producer, 1, 8));
        assert_eq!(
            producer.consumer_state(),
            ConsumerState::Closed,
            "nobody takes what comes after the end"
        );
    });
}
