//! Models of sleeping at a ring: whoever sleeps is woken.

use loom::thread;

use super::ring::{try_pop, try_push};
use super::ring_memory::{LoomDoorbell, LoomRingMemory};
use crate::transport::shm::ring::{Consumer, ConsumerState, HEADER_LEN, Producer};

const LEN: usize = 8;

/// Receives message `number`, asleep while there is none.
fn receive_asleep(
    ring: &mut Consumer<LoomRingMemory>,
    number: u8,
    own: &LoomDoorbell,
    theirs: &LoomDoorbell,
) {
    loop {
        if let Some(wake) = try_pop(ring, number, LEN) {
            if wake {
                theirs.ring();
            }
            return;
        }
        if ring.arm() {
            own.sleep();
        }
        ring.disarm();
    }
}

/// The same for a receiver that raises its flag long before it sleeps, and looks once more in
/// between without taking it down: it leaves the sender alone, and visits it in turn.
fn receive_idle_peer(
    ring: &mut Consumer<LoomRingMemory>,
    number: u8,
    own: &LoomDoorbell,
    theirs: &LoomDoorbell,
) {
    let mut alone = false;
    loop {
        if let Some(wake) = try_pop(ring, number, LEN) {
            ring.disarm();
            if wake {
                theirs.ring();
            }
            return;
        }
        if alone {
            own.sleep();
            ring.disarm();
            alone = false;
        } else {
            alone = ring.arm();
            if !alone {
                ring.disarm();
            }
        }
    }
}

/// Sends message `number`, asleep while there is no room.
fn send_asleep(
    ring: &mut Producer<LoomRingMemory>,
    number: u8,
    own: &LoomDoorbell,
    theirs: &LoomDoorbell,
) {
    while !try_push(ring, number, LEN) {
        if ring.arm(|ring| ring.fits(HEADER_LEN + LEN)) {
            own.sleep();
        }
        ring.disarm();
    }
    if ring.consumer_state() == ConsumerState::Asleep {
        theirs.ring();
    }
}

fn send_and_receive_asleep(lines: usize, before: u8, total: u8) {
    send_and_receive_with(lines, before, total, receive_asleep);
}

/// `before` messages lie in the ring; two threads send and receive up to `total`, each asleep when
/// it can do nothing.
///
/// Three preemptions: one between a look at a flag and its taking down, one on either side of it.
fn send_and_receive_with(
    lines: usize,
    before: u8,
    total: u8,
    receive: fn(&mut Consumer<LoomRingMemory>, u8, &LoomDoorbell, &LoomDoorbell),
) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let memory = LoomRingMemory::new(lines);
        let (mut producer, mut consumer) = (Producer::new(memory.clone()), Consumer::new(memory));
        let (to_sender, to_receiver) = (LoomDoorbell::new(), LoomDoorbell::new());
        for number in 0..before {
            assert!(try_push(&mut producer, number, LEN));
        }
        let (own, theirs) = (to_sender.clone(), to_receiver.clone());
        let sender = thread::spawn(move || {
            for number in before..total {
                send_asleep(&mut producer, number, &own, &theirs);
            }
        });
        for number in 0..total {
            receive(&mut consumer, number, &to_receiver, &to_sender);
        }
        sender.join().expect("the sender does not panic");
    });
}

/// A consumer that found nothing after it raised `armed` is rung for the next record (store, fence,
/// load on both sides): it never sleeps with a record in the ring.
#[test]
fn sleeping_consumer_receives_every_message() {
    send_and_receive_asleep(8, 0, 2);
}

/// A producer that found no room after it raised `starved` is rung by the next lines that come
/// back: it never sleeps while there is room. Lines come back one at a time.
#[test]
fn waiting_producer_is_woken_by_released_lines() {
    send_and_receive_asleep(8, 7, 9);
}

/// The same while lines come back two at a time: what the consumer keeps to itself does not starve
/// the producer.
#[test]
fn batched_release_does_not_stall_the_producer() {
    send_and_receive_asleep(16, 15, 17);
}

/// One sleep costs one ring: of two records behind one `arm`, exactly one rings.
#[test]
fn one_sleep_costs_one_doorbell() {
    loom::model(|| {
        let memory = LoomRingMemory::new(8);
        let (mut producer, mut consumer) = (Producer::new(memory.clone()), Consumer::new(memory));
        let sender = thread::spawn(move || {
            let rings = |number| {
                assert!(try_push(&mut producer, number, LEN));
                producer.consumer_state() == ConsumerState::Asleep
            };
            (0..2).map(rings).filter(|rung| *rung).count()
        });
        let quiet = consumer.arm();
        let rung = sender.join().expect("the sender does not panic");
        assert!(rung <= 1, "the flag is taken down with the ring");
        assert!(!quiet || rung == 1, "who sleeps is rung for");
    });
}

/// A sender that is left alone, with the flag raised, is heard.
#[test]
fn idle_peer_doorbell_is_not_lost() {
    send_and_receive_with(8, 0, 2, receive_idle_peer);
}
