//! The ring of lines in real memory, between two threads.

use std::thread;
use std::time::{Duration, Instant};

use fabric_core::buf::Source;

use super::ring::{Consumer, HEADER, LINE, Producer, Reader};
use super::segment::Segment;

/// Numbers that look random and are the same in both threads.
fn scramble(number: u64) -> u64 {
    let mixed = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) >> 31
}

/// Sleeps until the other thread rings; a lost ring fails the test instead of hanging it.
fn sleep(who: &str) {
    let started = Instant::now();
    thread::park_timeout(Duration::from_secs(20));
    assert!(
        started.elapsed() < Duration::from_secs(20),
        "the {who} was not woken"
    );
}

/// Two threads, real memory, both asleep whenever there is nothing to do.
#[test]
fn two_threads_lose_nothing() {
    const MESSAGES: u64 = 200_000;
    const LINES: usize = 256;
    let len_of = |number: u64, longest: usize| match scramble(number) as usize {
        bits if bits.is_multiple_of(4) => HEADER + bits % (longest - HEADER + 1),
        bits => HEADER + bits % LINE,
    };
    let byte_of = |number: u64, at: usize| scramble(number).wrapping_add(at as u64) as u8;

    let (segment, _fd) = Segment::create(LINES).unwrap();
    let (mut producer, mut consumer) = (Producer::new(segment.clone()), Consumer::new(segment));
    let longest = producer.shape().longest();
    let receiver = thread::current();
    let sender = thread::spawn(move || {
        let mut bytes = vec![0; longest];
        for number in 0..MESSAGES {
            let len = len_of(number, longest);
            bytes[..len - HEADER]
                .iter_mut()
                .enumerate()
                .for_each(|(at, byte)| *byte = byte_of(number, at));
            while !producer.push(1, number as u8, len, |record| {
                record.put(HEADER, &bytes[..len - HEADER])
            }) {
                if producer.arm(|ring| ring.fits(len)) {
                    sleep("sender");
                }
                producer.disarm();
            }
            if producer.reader() == Reader::Asleep {
                receiver.unpark();
            }
        }
    });
    let mut bytes = vec![0; longest];
    for number in 0..MESSAGES {
        let record = loop {
            if let Some(record) = consumer.peek().unwrap() {
                break record;
            }
            if consumer.arm() {
                sleep("receiver");
            }
            consumer.disarm();
        };
        let len = record.header.len as usize;
        assert_eq!(
            (record.header.flags, len),
            (number as u8, len_of(number, longest))
        );
        let payload = consumer
            .memory()
            .payload(record.start + HEADER, len - HEADER)
            .unwrap();
        payload.copy_over(0, &mut bytes[..len - HEADER]);
        let intact = bytes[..len - HEADER]
            .iter()
            .enumerate()
            .all(|(at, byte)| *byte == byte_of(number, at));
        assert!(intact, "message {number} is unspoilt");
        if consumer.consume(record) {
            sender.thread().unpark();
        }
    }
    sender.join().unwrap();
    assert_eq!(consumer.peek(), Ok(None));
}
