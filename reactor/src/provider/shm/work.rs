//! Ring, records and words at work, for the micro-benchmarks.

use std::hint::black_box;

use fabric_core::buf::Source;

use super::handshake::{self, Word};
use super::record::{Layout, TAGGED, WHOLE};
use super::ring::{Consumer, Producer, Reader};
use super::segment::Segment;
use crate::work::Work;

pub(crate) fn all() -> Vec<Work> {
    vec![
        ("ring/8 B there and out", ring(8)),
        ("ring/4 KiB there and out", ring(4096)),
        ("ring/a look at nothing new", idle()),
        ("codec/layout of a record, both ways", layout()),
        ("codec/a word, both ways", word()),
    ]
}

fn ends() -> (Producer<Segment>, Consumer<Segment>) {
    let (segment, _fd) = Segment::create(2048).expect("the system has memory to share");
    (Producer::new(segment.clone()), Consumer::new(segment))
}

/// A record is published, found, copied out and given back.
fn ring(size: usize) -> Box<dyn FnMut() -> usize> {
    let (mut producer, mut consumer) = ends();
    let (sent, mut received) = (vec![7; size], vec![0; size]);
    let layout = Layout::for_payload(WHOLE, 0, size);
    Box::new(move || {
        let pushed = producer.push(WHOLE, 0, layout.payload + size, |record| {
            record.put(layout.payload, black_box(&sent));
        });
        let awake = producer.reader() == Reader::Awake;
        if let Ok(Some(record)) = consumer.peek()
            && let Some(payload) = consumer
                .memory()
                .payload(record.start + layout.payload, size)
        {
            payload.copy_over(0, &mut received);
            consumer.consume(record);
        }
        usize::from(pushed && awake) + usize::from(received[size - 1])
    })
}

fn idle() -> Box<dyn FnMut() -> usize> {
    let (_producer, mut consumer) = ends();
    Box::new(move || usize::from(black_box(&mut consumer).peek() == Ok(None)))
}

fn layout() -> Box<dyn FnMut() -> usize> {
    Box::new(|| {
        let written = Layout::for_payload(WHOLE, black_box(TAGGED), black_box(100));
        let read = Layout::for_record(WHOLE, black_box(TAGGED), written.payload + 100);
        usize::from(read == Some(written))
    })
}

fn word() -> Box<dyn FnMut() -> usize> {
    Box::new(|| usize::from(handshake::reads_back(black_box(Word::Welcome(7)))))
}
