//! Models of the doorbell: a sleeping end of a ring is woken.

use loom::thread;

use super::ring::{try_pop, try_push};
use super::ring_memory::{LoomDoorbell, LoomRingMemory};
use crate::transport::shm::ring::{Consumer, ConsumerState, HEADER_LEN, Producer};

const LEN: usize = 8;

/// Receives message `number`, and sleeps while the ring is empty.
fn receive_or_sleep(
    ring: &mut Consumer<LoomRingMemory>,
    number: u8,
    own_doorbell: &LoomDoorbell,
    peer_doorbell: &LoomDoorbell,
) {
    loop {
        if let Some(wake) = try_pop(ring, number, LEN) {
            if wake {
                peer_doorbell.ring();
            }
            return;
        }
        if ring.arm() {
            own_doorbell.sleep();
        }
        ring.disarm();
    }
}

/// Receives message `number` from an idle peer: the receiver arms `consumer_waiting` long before it
/// sleeps, and polls once in between without disarming it.
fn receive_with_flag_left_armed(
    ring: &mut Consumer<LoomRingMemory>,
    number: u8,
    own_doorbell: &LoomDoorbell,
    peer_doorbell: &LoomDoorbell,
) {
    let mut idle = false;
    loop {
        if let Some(wake) = try_pop(ring, number, LEN) {
            ring.disarm();
            if wake {
                peer_doorbell.ring();
            }
            return;
        }
        if idle {
            own_doorbell.sleep();
            ring.disarm();
            idle = false;
        } else {
            idle = ring.arm();
            if !idle {
                ring.disarm();
            }
        }
    }
}

/// Sends message `number`, and sleeps while there is no room.
fn send_or_sleep(
    ring: &mut Producer<LoomRingMemory>,
    number: u8,
    own_doorbell: &LoomDoorbell,
    peer_doorbell: &LoomDoorbell,
) {
    while !try_push(ring, number, LEN) {
        if ring.arm(|ring| ring.fits(HEADER_LEN + LEN)) {
            own_doorbell.sleep();
        }
        ring.disarm();
    }
    if ring.consumer_state() == ConsumerState::Asleep {
        peer_doorbell.ring();
    }
}

fn send_and_receive_or_sleep(lines: usize, preloaded: u8, total: u8) {
    send_and_receive_with(lines, preloaded, total, receive_or_sleep);
}

/// Lets two threads send and receive messages up to `total`, each sleeping when it cannot continue.
/// The first `preloaded` messages are in the ring already.
///
/// The bound is three preemptions: one between the check and the clearing of a waiting flag by the
/// other side (`consumer_state`, `take_producer_waiting`), one before the check and one after the
/// clearing.
fn send_and_receive_with(
    lines: usize,
    preloaded: u8,
    total: u8,
    receive: fn(&mut Consumer<LoomRingMemory>, u8, &LoomDoorbell, &LoomDoorbell),
) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let memory = LoomRingMemory::new(lines);
        let (mut producer, mut consumer) = (Producer::new(memory.clone()), Consumer::new(memory));
        let (to_sender, to_receiver) = (LoomDoorbell::new(), LoomDoorbell::new());
        for number in 0..preloaded {
            assert!(try_push(&mut producer, number, LEN));
        }
        let (own_doorbell, peer_doorbell) = (to_sender.clone(), to_receiver.clone());
        let sender = thread::spawn(move || {
            for number in preloaded..total {
                send_or_sleep(&mut producer, number, &own_doorbell, &peer_doorbell);
            }
        });
        for number in 0..total {
            receive(&mut consumer, number, &to_receiver, &to_sender);
        }
        sender.join().expect("sender panicked");
    });
}

/// A consumer that found the ring empty after it armed `consumer_waiting` gets a doorbell for the
/// next record (store, fence, load on both sides): it never sleeps with a record in the ring.
#[test]
fn sleeping_consumer_receives_every_message() {
    send_and_receive_or_sleep(8, 0, 2);
}

/// A producer that found no room after it armed `producer_waiting` gets a doorbell for the next
/// released lines: it never sleeps while there is room. Lines are released one at a time.
#[test]
fn waiting_producer_is_woken_by_released_lines() {
    send_and_receive_or_sleep(8, 7, 9);
}

/// As above, while lines are released two at a time: lines that the consumer has not released yet
/// do not stall the producer.
#[test]
fn batched_release_does_not_stall_the_producer() {
    send_and_receive_or_sleep(16, 15, 17);
}

/// One sleep costs one doorbell: of two records after one `arm`, at most one rings, and exactly
/// one if the consumer sleeps.
#[test]
fn one_sleep_costs_one_doorbell() {
    loom::model(|| {
        let memory = LoomRingMemory::new(8);
        let (mut producer, mut consumer) = (Producer::new(memory.clone()), Consumer::new(memory));
        let sender = thread::spawn(move || {
            let push_and_check_asleep = |number| {
                assert!(try_push(&mut producer, number, LEN));
                producer.consumer_state() == ConsumerState::Asleep
            };
            (0..2)
                .map(push_and_check_asleep)
                .filter(|rings| *rings)
                .count()
        });
        let is_empty = consumer.arm();
        let doorbells = sender.join().expect("sender panicked");
        assert!(doorbells <= 1, "the doorbell clears the flag");
        assert!(
            !is_empty || doorbells == 1,
            "a sleeping consumer gets a doorbell"
        );
    });
}

/// A message of an idle peer, whose doorbell flag is armed, is received.
#[test]
fn idle_peer_doorbell_is_not_lost() {
    send_and_receive_with(8, 0, 2, receive_with_flag_left_armed);
}
