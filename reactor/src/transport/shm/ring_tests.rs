//! Property tests of the ring: against an oracle, and with a hostile peer.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::ring::{
    Consumer, ConsumerState, HEADER_LEN, LINE_LEN, Producer, RingMemory, ShmProtocolViolation,
};
use super::ring_heap::HeapRing;
use crate::sys::sync::Ordering;

/// A call of one end of the ring. A length is that of a record, header included; the fixture limits
/// it to the longest record.
#[derive(Clone, Copy, Debug)]
enum RingCall {
    /// Pushes one record.
    Push(usize),
    /// Pushes records of this length until the ring is full.
    Fill(usize),
    /// Consumes one record.
    Pop,
    Release,
    ArmConsumer,
    DisarmConsumer,
    ArmProducer(usize),
    DisarmProducer,
}

fn any_call() -> impl Strategy<Value = RingCall> {
    let len = || prop_oneof![HEADER_LEN..=LINE_LEN, HEADER_LEN..=8 * LINE_LEN];
    prop_oneof![
        4 => len().prop_map(RingCall::Push),
        1 => len().prop_map(RingCall::Fill),
        5 => Just(RingCall::Pop),
        1 => Just(RingCall::Release),
        2 => Just(RingCall::ArmConsumer),
        1 => Just(RingCall::DisarmConsumer),
        2 => len().prop_map(RingCall::ArmProducer),
        1 => Just(RingCall::DisarmProducer),
    ]
}

/// Lines of a ring: at first, and after the ring has grown; and whether there is memory to grow.
type RingLines = (usize, usize, bool);

fn any_lines() -> impl Strategy<Value = RingLines> {
    let growing = || prop_oneof![Just((8, 32)), Just((16, 24)), Just((16, 64))];
    prop_oneof![
        2 => prop_oneof![Just(8), Just(16), Just(64)].prop_map(|lines| (lines, lines, true)),
        3 => growing().prop_map(|(initial, lines)| (initial, lines, true)),
        1 => growing().prop_map(|(initial, lines)| (initial, lines, false)),
    ]
}

/// Model of the ring: positions in lines, and the flags of sleeping ends.
#[derive(Debug)]
struct RingOracle {
    /// Lines of this lap.
    lines: u64,
    /// Lines that the ring grows to; `None` if it does not grow, or has grown.
    grown_lines: Option<u64>,
    /// Whether the ring was full, so that it grows at the end of this lap.
    was_full: bool,
    /// Position at which the lap ends.
    lap_end: u64,
    /// Records in the ring: number, length, lines including the pad record or growth record before
    /// it, and lines of the lap once it is consumed.
    records: VecDeque<(u8, usize, u64, u64)>,
    pushed: u64,
    popped: u64,
    released: u64,
    consumer_waiting: bool,
    producer_waiting: bool,
}

impl RingOracle {
    fn new((initial, lines, can_grow): RingLines) -> Self {
        Self {
            lines: initial as u64,
            grown_lines: (can_grow && lines > initial).then_some(lines as u64),
            was_full: false,
            lap_end: initial as u64,
            records: VecDeque::new(),
            pushed: 0,
            popped: 0,
            released: 0,
            consumer_waiting: false,
            producer_waiting: false,
        }
    }

    /// Returns whether the growth record is to come.
    fn grows(&self) -> bool {
        self.was_full && self.grown_lines.is_some()
    }

    /// Returns how many lines a record of this length would take now, including a pad record or the
    /// growth record.
    fn lines_for(&self, len: usize) -> u64 {
        let lines = len.div_ceil(LINE_LEN) as u64;
        let rest = match self.lap_end - self.pushed {
            0 => self.lines,
            rest => rest,
        };
        if lines + u64::from(self.grows()) > rest {
            rest + lines
        } else {
            lines
        }
    }

    /// Returns whether a record has room; one line stays free.
    fn has_room(&self, len: usize) -> bool {
        self.pushed - self.released + self.lines_for(len) < self.lines
    }

    fn push(&mut self, number: u8, len: usize) {
        let lines = self.lines_for(len);
        if self.pushed == self.lap_end {
            self.lap_end += self.lines;
        }
        if lines > len.div_ceil(LINE_LEN) as u64 {
            match self.grown_lines.take_if(|_| self.was_full) {
                Some(grown) => {
                    self.lap_end += grown - self.lines;
                    self.lines = grown;
                }
                None => self.lap_end += self.lines,
            }
        }
        self.records.push_back((number, len, lines, self.lines));
        self.pushed += lines;
    }

    /// Releases all consumed lines. Returns whether that wakes the producer.
    fn release(&mut self) -> bool {
        let has_unreleased = self.released != self.popped;
        self.released = self.popped;
        has_unreleased && std::mem::take(&mut self.producer_waiting)
    }
}

/// Both ends of a ring, and the oracle.
struct RingFixture {
    producer: Producer<HeapRing>,
    consumer: Consumer<HeapRing>,
    oracle: RingOracle,
    /// Number of the last record, which is in its flags and determines its payload.
    number: u8,
}

/// Returns the payload of a record. The bytes at header positions look like records of some lap.
fn payload_of(number: u8, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|at| number.wrapping_add(at as u8)).collect();
    for first_word in bytes
        .chunks_mut(LINE_LEN)
        .filter_map(|line| line.first_chunk_mut())
    {
        *first_word =
            header_word(1, number, HEADER_LEN as u64, u64::from(number % 8)).to_le_bytes();
    }
    bytes.split_off(HEADER_LEN)
}

/// Packs a header word.
fn header_word(kind: u8, flags: u8, len: u64, lap: u64) -> u64 {
    u64::from(kind) | u64::from(flags) << 8 | len << 16 | lap << 40
}

impl RingFixture {
    fn new((initial, lines, can_grow): RingLines) -> Self {
        let heap = HeapRing::growing(initial, lines, can_grow);
        Self {
            producer: Producer::new(heap.clone()),
            consumer: Consumer::new(heap),
            oracle: RingOracle::new((initial, lines, can_grow)),
            number: 0,
        }
    }

    fn clamp_len(&self, len: usize) -> usize {
        len.min(self.producer.max_record_len())
    }

    fn push(&mut self, len: usize) -> bool {
        let len = self.clamp_len(len);
        let has_room = self.oracle.has_room(len);
        assert_eq!(self.producer.fits(len), has_room);
        self.number = self.number.wrapping_add(1);
        let bytes = payload_of(self.number, len);
        assert_eq!(
            self.producer
                .push(1, self.number, len, |record| record.put(HEADER_LEN, &bytes)),
            has_room,
            "push succeeds exactly when the record fits"
        );
        if has_room {
            self.oracle.push(self.number, len);
            let woken = std::mem::take(&mut self.oracle.consumer_waiting);
            assert_eq!(
                self.producer.consumer_state() == ConsumerState::Asleep,
                woken,
                "one wake-up for one sleep"
            );
            assert_eq!(self.producer.consumer_state(), ConsumerState::Awake);
        }
        self.oracle.was_full |= !has_room;
        has_room
    }

    fn pop(&mut self) {
        let record = self.consumer.peek().expect("no protocol violation");
        assert_eq!(self.consumer.peek(), Ok(record), "peek has no effect");
        let Some((number, len, lines, lap_lines)) = self.oracle.records.pop_front() else {
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
        assert_eq!(
            self.consumer.memory().payload(record),
            payload_of(number, len)
        );
        self.oracle.popped += lines;
        let releases = self.oracle.popped - self.oracle.released >= lap_lines / 8;
        let woken = releases && self.oracle.release();
        assert_eq!(
            self.consumer.consume(record),
            woken,
            "one wake-up for one wait"
        );
    }

    fn apply(&mut self, call: RingCall) {
        match call {
            RingCall::Push(len) => drop(self.push(len)),
            RingCall::Fill(len) => while self.push(len) {},
            RingCall::Pop => self.pop(),
            RingCall::Release => assert_eq!(self.consumer.release(), self.oracle.release()),
            RingCall::ArmConsumer => {
                assert_eq!(self.consumer.arm(), self.oracle.records.is_empty());
                self.oracle.consumer_waiting = true;
            }
            RingCall::DisarmConsumer => {
                self.consumer.disarm();
                self.oracle.consumer_waiting = false;
            }
            RingCall::ArmProducer(len) => {
                let len = self.clamp_len(len);
                self.oracle.producer_waiting = !self.oracle.has_room(len);
                assert_eq!(
                    self.producer.arm(|ring| ring.fits(len)),
                    self.oracle.producer_waiting,
                    "producer sleeps only without room"
                );
            }
            RingCall::DisarmProducer => {
                self.producer.disarm();
                self.oracle.producer_waiting = false;
            }
        }
    }
}

/// A write of a peer that violates the protocol, or a valid call.
#[derive(Clone, Copy, Debug)]
enum HostileWrite {
    Call(RingCall),
    /// Writes a word to the header of a line.
    Header(usize, u64),
    /// Writes the released position.
    Released(u64),
    /// Writes `consumer_waiting` and `producer_waiting`.
    Flags(u32, u32),
}

fn any_hostile_write(lines: usize) -> impl Strategy<Value = HostileWrite> {
    let kind = prop_oneof![Just(0_u8), Just(1), Just(0xff), Just(0xfe), any::<u8>()];
    let multiples = (0..=lines as u64 + 1).prop_map(|lines| lines * LINE_LEN as u64);
    let len = prop_oneof![3 => multiples, 2 => 0..=(LINE_LEN * lines) as u64, 1 => 0..1_u64 << 24];
    let plausible =
        (kind, len, 1..4_u64).prop_map(|(kind, len, lap)| header_word(kind, 0, len, lap));
    let word = prop_oneof![4 => plausible, 1 => any::<u64>()];
    prop_oneof![
        4 => any_call().prop_map(HostileWrite::Call),
        4 => (0..lines, word).prop_map(|(line, word)| HostileWrite::Header(line, word)),
        1 => prop_oneof![0..=4 * lines as u64, any::<u64>()].prop_map(HostileWrite::Released),
        1 => any::<(u32, u32)>()
            .prop_map(|(consumer, producer)| HostileWrite::Flags(consumer, producer)),
    ]
}

/// Applies a call, checking only that positions are within bounds.
fn apply_bounds_checked(
    fixture: &mut RingFixture,
    call: RingCall,
) -> Result<(), ShmProtocolViolation> {
    let (lines, max_len) = (
        fixture.consumer.memory().lines(),
        fixture.producer.max_record_len(),
    );
    match call {
        RingCall::Push(len) | RingCall::Fill(len) => {
            let len = fixture.clamp_len(len);
            let _ = fixture.producer.push(1, 0, len, |record| {
                record.put(HEADER_LEN, &payload_of(0, len))
            });
            let _ = fixture.producer.consumer_state();
        }
        RingCall::Pop => {
            if let Some(record) = fixture.consumer.peek()? {
                let len = record.header.len as usize;
                assert!(
                    record.start.is_multiple_of(LINE_LEN) && (HEADER_LEN..=max_len).contains(&len)
                );
                assert!(
                    record.start + len <= lines * LINE_LEN,
                    "record within the lines"
                );
                let _ = fixture.consumer.consume(record);
            }
        }
        RingCall::Release => drop(fixture.consumer.release()),
        RingCall::ArmConsumer => drop(fixture.consumer.arm()),
        RingCall::DisarmConsumer => fixture.consumer.disarm(),
        RingCall::ArmProducer(len) => {
            let len = fixture.clamp_len(len);
            fixture.producer.arm(|ring| ring.fits(len));
        }
        RingCall::DisarmProducer => fixture.producer.disarm(),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Order, content, room and wake-ups match the oracle after every call.
    #[test]
    fn ring_matches_the_oracle(
        lines in any_lines(),
        calls in prop::collection::vec(any_call(), 1..200),
    ) {
        let mut fixture = RingFixture::new(lines);
        calls.into_iter().for_each(|call| fixture.apply(call));
        while !fixture.oracle.records.is_empty() {
            fixture.pop();
        }
        prop_assert_eq!(fixture.consumer.peek(), Ok(None));
    }

    /// For any writes of the peer, the consumer returns a record within bounds or
    /// [`ShmProtocolViolation`], without panic or endless loop.
    #[test]
    fn hostile_peer_causes_only_protocol_violations(
        (lines, writes) in any_lines()
            .prop_flat_map(|lines| {
                (Just(lines), prop::collection::vec(any_hostile_write(lines.1), 1..200))
            }),
    ) {
        let mut fixture = RingFixture::new(lines);
        let heap = fixture.consumer.memory().clone();
        for write in writes {
            match write {
                HostileWrite::Call(call) => {
                    if apply_bounds_checked(&mut fixture, call).is_err() {
                        break;
                    }
                }
                HostileWrite::Header(line, word) => {
                    heap.header(line).store(word, Ordering::Relaxed);
                }
                HostileWrite::Released(lines) => heap.released().store(lines, Ordering::Relaxed),
                HostileWrite::Flags(consumer_waiting, producer_waiting) => {
                    heap.consumer_waiting().store(consumer_waiting, Ordering::Relaxed);
                    heap.producer_waiting().store(producer_waiting, Ordering::Relaxed);
                }
            }
        }
    }
}

/// Many laps before and after the growth match the oracle, with records of any length, and with
/// both sides that sleep.
#[test]
fn long_runs_match_the_oracle() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 11) as usize % below
    };
    for lines in [
        (8, 16, true),
        (64, 256, true),
        (64, 256, false),
        (72, 96, true),
        (512, 2048, true),
    ] {
        let mut fixture = RingFixture::new(lines);
        let max_len = fixture.producer.max_record_len();
        // The ring is seldom full in the first half, so that it grows after many laps.
        for call in 0..16_000 {
            let is_full_phase = call >= 8_000;
            let len = match random(3) {
                0 => HEADER_LEN + random(LINE_LEN - HEADER_LEN + 1),
                1 => HEADER_LEN + random(max_len - HEADER_LEN + 1),
                _ => max_len,
            };
            let call = match random(16) {
                0..=5 if is_full_phase || fixture.oracle.has_room(len) => RingCall::Push(len),
                0..=5 => RingCall::Pop,
                6 if is_full_phase && random(8) == 0 => RingCall::Fill(len),
                6..=10 => RingCall::Pop,
                11 => RingCall::Release,
                12 => RingCall::ArmConsumer,
                13 => RingCall::DisarmConsumer,
                14 => RingCall::ArmProducer(len),
                _ => RingCall::DisarmProducer,
            };
            fixture.apply(call);
        }
        assert_eq!(
            fixture.oracle.was_full && lines.2,
            fixture.oracle.lines == lines.1 as u64
        );
        while !fixture.oracle.records.is_empty() {
            fixture.pop();
        }
        assert_eq!(fixture.consumer.peek(), Ok(None));
    }
}

/// A pad record as long as the ring would make the consumer skip to the same record endlessly.
#[test]
fn pad_record_as_long_as_the_ring_is_a_protocol_violation() {
    let heap = HeapRing::new(16);
    heap.header(0).store(
        header_word(0xff, 0, 16 * LINE_LEN as u64, 1),
        Ordering::Relaxed,
    );
    assert!(Consumer::new(heap).peek().is_err());
}

/// Each call of `consumer_state` after the close tells whether the last record was consumed.
#[test]
fn closed_consumer_counts_as_awake_if_it_consumed_the_last_record() {
    for consumed in [false, true] {
        let mut fixture = RingFixture::new((16, 16, false));
        // The record has one line, and lines are released in batches of two: only the close
        // releases the line.
        assert!(fixture.push(HEADER_LEN + 8));
        if consumed {
            fixture.pop();
        }
        fixture.consumer.close();
        let expected = if consumed {
            ConsumerState::Awake
        } else {
            ConsumerState::Closed
        };
        assert_eq!(
            (
                fixture.producer.consumer_state(),
                fixture.producer.consumer_state()
            ),
            (expected, expected)
        );
        assert!(fixture.producer.push(1, 0, HEADER_LEN, |_| ()));
        assert_eq!(fixture.producer.consumer_state(), ConsumerState::Closed);
    }
}

/// Memory that cannot be populated is not read, and a ring grows once.
#[test]
fn growth_without_memory_or_twice_is_a_protocol_violation() {
    let growth = header_word(0xfe, 0, 2 * LINE_LEN as u64, 1);
    for (lines, can_grow, is_violation) in [(64, true, false), (64, false, true), (16, true, true)]
    {
        let heap = HeapRing::growing(16, lines, can_grow);
        let mut consumer = Consumer::new(heap.clone());
        for line in 0..14 {
            heap.header(line)
                .store(header_word(1, 0, HEADER_LEN as u64, 1), Ordering::Relaxed);
            let record = consumer.peek().unwrap().expect("a record");
            consumer.consume(record);
        }
        heap.header(14).store(growth, Ordering::Relaxed);
        assert_eq!(consumer.peek().is_err(), is_violation, "{lines} lines");
    }
}

/// A ring of records of one line grows too, although these always end with the lap.
#[test]
fn ring_that_was_full_grows_at_the_end_of_its_lap() {
    let mut fixture = RingFixture::new((16, 64, true));
    for _ in 0..2 {
        fixture.apply(RingCall::Fill(HEADER_LEN));
        while !fixture.oracle.records.is_empty() {
            fixture.pop();
        }
    }
    fixture.apply(RingCall::Release);
    fixture.apply(RingCall::Fill(HEADER_LEN));
    assert_eq!(fixture.oracle.records.len(), 63, "all lines but one");
}
