//! The ring of lines against an oracle, and against a hostile peer.
#![allow(unsafe_code)] // the test's own memory

use std::collections::VecDeque;

use proptest::prelude::*;

use super::ring::{Broken, Consumer, HEADER, LINE, Memory, Producer, Reader};
use super::ring_heap::Heap;
use crate::sync::Ordering;

/// One call at either end. Lengths are those of records, header included, before they are cut to
/// the longest.
#[derive(Clone, Copy, Debug)]
enum Call {
    Push(usize),
    Fill(usize),
    Pop,
    GiveBack,
    ArmConsumer,
    DisarmConsumer,
    ArmProducer(usize),
    DisarmProducer,
}

fn call() -> impl Strategy<Value = Call> {
    let len = || prop_oneof![HEADER..=LINE, HEADER..=8 * LINE];
    prop_oneof![
        4 => len().prop_map(Call::Push),
        1 => len().prop_map(Call::Fill),
        5 => Just(Call::Pop),
        1 => Just(Call::GiveBack),
        2 => Just(Call::ArmConsumer),
        1 => Just(Call::DisarmConsumer),
        2 => len().prop_map(Call::ArmProducer),
        1 => Just(Call::DisarmProducer),
    ]
}

/// What the ring must do, in plain words: positions in lines, and who waits.
#[derive(Debug, Default)]
struct Oracle {
    lines: u64,
    /// Records in the ring: their number, their length, and their lines with the filler in front.
    records: VecDeque<(u8, usize, u64)>,
    pushed: u64,
    popped: u64,
    returned: u64,
    armed: bool,
    starved: bool,
}

impl Oracle {
    /// Lines a record of this length would take now, with the filler in front of it.
    fn lines_for(&self, len: usize) -> u64 {
        let (lines, rest) = (
            len.div_ceil(LINE) as u64,
            self.lines - self.pushed % self.lines,
        );
        if lines > rest { rest + lines } else { lines }
    }

    /// One line stays free.
    fn has_room(&self, len: usize) -> bool {
        self.pushed - self.returned + self.lines_for(len) < self.lines
    }

    fn push(&mut self, number: u8, len: usize) {
        let lines = self.lines_for(len);
        self.records.push_back((number, len, lines));
        self.pushed += lines;
    }

    /// Everything popped is given back: whether that wakes the producer.
    fn give_back(&mut self) -> bool {
        let news = self.returned != self.popped;
        self.returned = self.popped;
        news && std::mem::take(&mut self.starved)
    }
}

/// The two ends and the oracle beside them.
struct Pair {
    producer: Producer<Heap>,
    consumer: Consumer<Heap>,
    oracle: Oracle,
    number: u8,
}

/// The payload of a record. What of it lies over headers looks like records of some lap.
fn content(number: u8, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|at| number.wrapping_add(at as u8)).collect();
    for over in bytes
        .chunks_mut(LINE)
        .filter_map(|line| line.first_chunk_mut())
    {
        *over = word(1, number, HEADER as u64, u64::from(number % 8)).to_le_bytes();
    }
    bytes.split_off(HEADER)
}

/// A header as a ring has it.
fn word(kind: u8, flags: u8, len: u64, lap: u64) -> u64 {
    u64::from(kind) | u64::from(flags) << 8 | len << 16 | lap << 40
}

impl Pair {
    fn new(lines: usize) -> Self {
        let heap = Heap::new(lines);
        Self {
            producer: Producer::new(heap.clone()),
            consumer: Consumer::new(heap),
            oracle: Oracle {
                lines: lines as u64,
                ..Oracle::default()
            },
            number: 0,
        }
    }

    fn cut(&self, len: usize) -> usize {
        len.min(self.producer.shape().longest())
    }

    fn push(&mut self, len: usize) -> bool {
        let len = self.cut(len);
        let room = self.oracle.has_room(len);
        assert_eq!(self.producer.fits(len), room);
        self.number = self.number.wrapping_add(1);
        let bytes = content(self.number, len);
        assert_eq!(
            self.producer
                .push(1, self.number, len, |record| record.put(HEADER, &bytes)),
            room,
            "exactly when it fits"
        );
        if room {
            self.oracle.push(self.number, len);
            let rung = std::mem::take(&mut self.oracle.armed);
            assert_eq!(
                self.producer.reader() == Reader::Asleep,
                rung,
                "one ring for one sleep"
            );
            assert_eq!(self.producer.reader(), Reader::Awake);
        }
        room
    }

    fn pop(&mut self) {
        let record = self.consumer.peek().expect("nobody breaks it");
        assert_eq!(self.consumer.peek(), Ok(record), "looking changes nothing");
        let Some((number, len, lines)) = self.oracle.records.pop_front() else {
            return assert_eq!(record, None);
        };
        let record = record.expect("the oracle has one");
        assert_eq!(
            (
                record.header.kind,
                record.header.flags,
                record.header.len as usize
            ),
            (1, number, len)
        );
        assert_eq!(self.consumer.memory().payload(record), content(number, len));
        self.oracle.popped += lines;
        let batch = self.oracle.popped - self.oracle.returned >= self.oracle.lines / 8;
        let woken = batch && self.oracle.give_back();
        assert_eq!(
            self.consumer.consume(record),
            woken,
            "one ring for one starvation"
        );
    }

    fn make(&mut self, call: Call) {
        match call {
            Call::Push(len) => drop(self.push(len)),
            Call::Fill(len) => while self.push(len) {},
            Call::Pop => self.pop(),
            Call::GiveBack => assert_eq!(self.consumer.give_back(), self.oracle.give_back()),
            Call::ArmConsumer => {
                assert_eq!(self.consumer.arm(), self.oracle.records.is_empty());
                self.oracle.armed = true;
            }
            Call::DisarmConsumer => {
                self.consumer.disarm();
                self.oracle.armed = false;
            }
            Call::ArmProducer(len) => {
                let len = self.cut(len);
                self.oracle.starved = !self.oracle.has_room(len);
                assert_eq!(
                    self.producer.arm(|ring| ring.fits(len)),
                    self.oracle.starved,
                    "sleeps only without room"
                );
            }
            Call::DisarmProducer => {
                self.producer.disarm();
                self.oracle.starved = false;
            }
        }
    }
}

/// What a peer writes that does not keep to the rules.
#[derive(Clone, Copy, Debug)]
enum Mischief {
    Call(Call),
    Header(usize, u64),
    Returned(u64),
    Flags(u32, u32),
}

fn mischief(lines: usize) -> impl Strategy<Value = Mischief> {
    let kind = prop_oneof![Just(0_u8), Just(1), Just(0xff), any::<u8>()];
    let multiples = (0..=lines as u64 + 1).prop_map(|lines| lines * LINE as u64);
    let len = prop_oneof![3 => multiples, 2 => 0..=(LINE * lines) as u64, 1 => 0..1_u64 << 24];
    let plausible = (kind, len, 1..4_u64).prop_map(|(kind, len, lap)| word(kind, 0, len, lap));
    let word = prop_oneof![4 => plausible, 1 => any::<u64>()];
    prop_oneof![
        4 => call().prop_map(Mischief::Call),
        4 => (0..lines, word).prop_map(|(line, word)| Mischief::Header(line, word)),
        1 => prop_oneof![0..=4 * lines as u64, any::<u64>()].prop_map(Mischief::Returned),
        1 => any::<(u32, u32)>().prop_map(|(armed, starved)| Mischief::Flags(armed, starved)),
    ]
}

/// A call, of which only the bounds are checked.
fn suffer(pair: &mut Pair, call: Call) -> Result<(), Broken> {
    let (lines, longest) = (
        pair.consumer.memory().lines(),
        pair.producer.shape().longest(),
    );
    match call {
        Call::Push(len) | Call::Fill(len) => {
            let len = pair.cut(len);
            let _ = pair
                .producer
                .push(1, 0, len, |record| record.put(HEADER, &content(0, len)));
            let _ = pair.producer.reader();
        }
        Call::Pop => {
            if let Some(record) = pair.consumer.peek()? {
                let len = record.header.len as usize;
                assert!(record.start.is_multiple_of(LINE) && (HEADER..=longest).contains(&len));
                assert!(record.start + len <= lines * LINE, "within the lines");
                let _ = pair.consumer.consume(record);
            }
        }
        Call::GiveBack => drop(pair.consumer.give_back()),
        Call::ArmConsumer => drop(pair.consumer.arm()),
        Call::DisarmConsumer => pair.consumer.disarm(),
        Call::ArmProducer(len) => {
            let len = pair.cut(len);
            pair.producer.arm(|ring| ring.fits(len));
        }
        Call::DisarmProducer => pair.producer.disarm(),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Order, content, room and the number of rings are those of the oracle, call by call.
    #[test]
    fn the_ring_does_what_the_oracle_says(
        lines in prop_oneof![Just(8), Just(16), Just(64)],
        calls in prop::collection::vec(call(), 1..200),
    ) {
        let mut pair = Pair::new(lines);
        calls.into_iter().for_each(|call| pair.make(call));
        while !pair.oracle.records.is_empty() {
            pair.pop();
        }
        prop_assert_eq!(pair.consumer.peek(), Ok(None));
    }

    /// Whatever the peer writes: a record within bounds or [`Broken`], no panic and no endless
    /// loop.
    #[test]
    fn a_hostile_peer_gets_no_further_than_broken(
        (lines, mischiefs) in prop_oneof![Just(8), Just(16), Just(64)]
            .prop_flat_map(|lines| (Just(lines), prop::collection::vec(mischief(lines), 1..200))),
    ) {
        let mut pair = Pair::new(lines);
        let heap = pair.consumer.memory().clone();
        for mischief in mischiefs {
            match mischief {
                Mischief::Call(call) => if suffer(&mut pair, call).is_err() { break },
                Mischief::Header(line, word) => heap.header(line).store(word, Ordering::Relaxed),
                Mischief::Returned(lines) => heap.returned().store(lines, Ordering::Relaxed),
                Mischief::Flags(armed, starved) => {
                    heap.armed().store(armed, Ordering::Relaxed);
                    heap.starved().store(starved, Ordering::Relaxed);
                }
            }
        }
    }
}

/// A filler as long as the whole ring would lead back to itself.
#[test]
fn a_filler_around_the_ring_is_broken() {
    let heap = Heap::new(16);
    heap.header(0)
        .store(word(0xff, 0, 16 * LINE as u64, 1), Ordering::Relaxed);
    assert!(Consumer::new(heap).peek().is_err());
}

/// Who asks after its record learns whether it was taken before the end, as often as it asks.
#[test]
fn what_was_taken_before_the_end_has_arrived() {
    for taken in [false, true] {
        let mut pair = Pair::new(16);
        // One line, of which two would be given back at once.
        assert!(pair.push(HEADER + 8));
        if taken {
            pair.pop();
        }
        pair.consumer.close();
        let expected = if taken { Reader::Awake } else { Reader::Closed };
        assert_eq!(
            (pair.producer.reader(), pair.producer.reader()),
            (expected, expected)
        );
        assert!(pair.producer.push(1, 0, HEADER, |_| ()));
        assert_eq!(pair.producer.reader(), Reader::Closed);
    }
}
