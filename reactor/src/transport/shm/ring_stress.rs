//! Stress test of the ring in a segment, between two threads that sleep when they have to wait.

use std::thread;
use std::time::{Duration, Instant};

use fabric_core::buf::CopySource;

use super::ring::{Consumer, ConsumerState, HEADER_LEN, LINE_LEN, Producer};
use super::segment::Segment;

/// Returns a pseudo-random function of `number`, so that both threads compute the same records.
fn pseudo_random(number: u64) -> u64 {
    let mixed = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) >> 31
}

/// Parks until the other thread unparks this one; a lost wake-up fails the test instead of hanging
/// it.
fn park_until_woken(role: &str) {
    let started = Instant::now();
    thread::park_timeout(Duration::from_secs(20));
    assert!(
        started.elapsed() < Duration::from_secs(20),
        "the {role} was not woken"
    );
}

#[test]
fn ring_between_two_threads_loses_no_record_and_no_wake_up() {
    exchange_between_threads(256, 200_000);
}

#[test]
fn growing_ring_between_two_threads_loses_no_record_and_no_wake_up() {
    exchange_between_threads(8192, 20_000);
}

/// Exchanges this many records of random lengths over a ring in a segment of up to `lines` lines.
fn exchange_between_threads(lines: usize, messages: u64) {
    let len_of = |number: u64, max_len: usize| match pseudo_random(number) as usize {
        bits if bits.is_multiple_of(4) => HEADER_LEN + bits % (max_len - HEADER_LEN + 1),
        bits => HEADER_LEN + bits % LINE_LEN,
    };
    let byte_of = |number: u64, at: usize| pseudo_random(number).wrapping_add(at as u64) as u8;

    let (segment, _fd) = Segment::create(lines).unwrap();
    let (mut producer, mut consumer) = (Producer::new(segment.clone()), Consumer::new(segment));
    let max_len = producer.max_record_len();
    let receiver = thread::current();
    let sender = thread::spawn(move || {
        let mut bytes = vec![0; max_len];
        for number in 0..messages {
            let len = len_of(number, max_len);
            bytes[..len - HEADER_LEN]
                .iter_mut()
                .enumerate()
                .for_each(|(at, byte)| *byte = byte_of(number, at));
            while !producer.push(1, number as u8, len, |record| {
                record.put(HEADER_LEN, &bytes[..len - HEADER_LEN])
            }) {
                if producer.arm(|ring| ring.fits(len)) {
                    park_until_woken("sender");
                }
                producer.disarm();
            }
            if producer.consumer_state() == ConsumerState::Asleep {
                receiver.unpark();
            }
        }
    });
    let mut bytes = vec![0; max_len];
    for number in 0..messages {
        let record = loop {
            if let Some(record) = consumer.peek().unwrap() {
                break record;
            }
            if consumer.arm() {
                park_until_woken("receiver");
            }
            consumer.disarm();
        };
        let len = record.header.len as usize;
        assert_eq!(
            (record.header.flags, len),
            (number as u8, len_of(number, max_len))
        );
        let payload = consumer
            .memory()
            .payload(record.start + HEADER_LEN, len - HEADER_LEN)
            .unwrap();
        payload.copy_to_init(0, &mut bytes[..len - HEADER_LEN]);
        let intact = bytes[..len - HEADER_LEN]
            .iter()
            .enumerate()
            .all(|(at, byte)| *byte == byte_of(number, at));
        assert!(intact, "message {number} is intact");
        if consumer.consume(record) {
            sender.thread().unpark();
        }
    }
    sender.join().unwrap();
    assert_eq!(consumer.peek(), Ok(None));
}
