//! Micro-benchmarks of the ring, records and control messages.

use std::hint::black_box;

use fabric_core::buf::CopySource;

use super::control::{self, ControlMessage};
use super::record::{MESSAGE, RecordLayout, TAGGED};
use super::ring::{Consumer, ConsumerState, Producer};
use super::segment::Segment;
use crate::sys::microbench::{Microbench, Work};

pub(crate) fn benchmarks() -> Vec<Microbench> {
    vec![
        ("ring/8 B push and consume", || ring_round_trip(8)),
        ("ring/4 KiB push and consume", || ring_round_trip(4096)),
        ("ring/peek, empty", peek_empty_ring),
        ("codec/record layout, write and read", layout_round_trip),
        (
            "codec/control message, encode and decode",
            control_round_trip,
        ),
    ]
}

fn ring_ends() -> (Producer<Segment>, Consumer<Segment>) {
    let (segment, _fd) = Segment::create(2048).expect("memfd and mapping for a segment");
    (Producer::new(segment.clone()), Consumer::new(segment))
}

/// Publishes a record, peeks at it, copies its payload out and consumes it.
fn ring_round_trip(size: usize) -> Work {
    let (mut producer, mut consumer) = ring_ends();
    let (sent, mut received) = (vec![7; size], vec![0; size]);
    let layout = RecordLayout::for_payload(MESSAGE, 0, size);
    Box::new(move || {
        let pushed = producer.push(MESSAGE, 0, layout.payload + size, |record| {
            record.put(layout.payload, black_box(&sent));
        });
        let awake = producer.consumer_state() == ConsumerState::Awake;
        if let Ok(Some(record)) = consumer.peek()
            && let Some(payload) = consumer
                .memory()
                .payload(record.start + layout.payload, size)
        {
            payload.copy_to_init(0, &mut received);
            consumer.consume(record);
        }
        usize::from(pushed && awake) + usize::from(received[size - 1])
    })
}

fn peek_empty_ring() -> Work {
    let (_producer, mut consumer) = ring_ends();
    Box::new(move || usize::from(black_box(&mut consumer).peek() == Ok(None)))
}

fn layout_round_trip() -> Work {
    Box::new(|| {
        let written = RecordLayout::for_payload(MESSAGE, black_box(TAGGED), black_box(100));
        let read = RecordLayout::for_record(MESSAGE, black_box(TAGGED), written.payload + 100);
        usize::from(read == Some(written))
    })
}

fn control_round_trip() -> Work {
    Box::new(|| usize::from(control::round_trips(black_box(ControlMessage::Accept(7)))))
}
