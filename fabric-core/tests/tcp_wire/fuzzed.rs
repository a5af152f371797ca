//! What peers say over TCP, read from any bytes: for the tests that replay corpora, and for the
//! fuzz targets.

use fabric_core::Error;
use fabric_core::completion::OpKind;
use fabric_core::provider::OpKey;
use fabric_core::tcp::rxm::Outgoing;
use fabric_core::tcp::{Control, Order, Outbox};

use crate::host::{ANY_TAG, Receiver, UNTAGGED};

/// Reads how a connection begins. True when it does.
pub(crate) fn control(bytes: &[u8]) -> bool {
    let Ok(Some((control, len))) = Control::decode(bytes) else {
        return false;
    };
    assert!(
        len <= bytes.len() && control.private().len() + 32 == len,
        "{bytes:?}"
    );
    // What is understood of a mark is what this side would say.
    let again = Control::new(control.kind, &[])
        .unwrap()
        .marked(control.mark)
        .encode();
    assert_eq!(
        Control::decode(&again).unwrap().unwrap().0.mark,
        control.mark,
        "{bytes:?}"
    );
    true
}

/// Reads what follows. True when it ends with a message.
pub(crate) fn stream(bytes: &[u8]) -> bool {
    follows(bytes, |budget| native(budget, false))
}

/// The same as peers of this library say it to each other.
pub(crate) fn kin(bytes: &[u8]) -> bool {
    follows(bytes, |budget| native(budget, true))
}

/// The same in the other dialect, to a connection with the number 5, which has asked for a few
/// bytes, and for two atomic operations, and has written.
pub(crate) fn rxm(bytes: &[u8]) -> bool {
    follows(bytes, |budget| {
        let mut receiver = Receiver::of_rxm(budget, 5);
        receiver.asks_to_read(8);
        receiver.has_written(8);
        receiver.asks_atomically(OpKind::FetchAtomic, 8);
        receiver.asks_atomically(OpKind::Atomic, 8);
        receiver
    })
}

fn follows(bytes: &[u8], receiver: impl Fn(usize) -> Receiver) -> bool {
    cut_somewhere(bytes, receiver(1 << 16));
    Work::new(bytes, receiver([300, 1 << 16][bytes.len() % 2])).run(bytes);
    let mut receiver = receiver(1 << 20);
    let taken = receiver.take(bytes);
    taken.is_ok_and(|taken| taken.bytes == bytes.len()) && receiver.inbox.end().is_empty()
}

fn native(budget: usize, is_kin: bool) -> Receiver {
    let mut receiver = Receiver::new(Order::Little, budget);
    if is_kin {
        receiver.inbox.kin();
    }
    // Of which one answer may come.
    receiver.asks_to_read(8);
    receiver
}

/// Where answers go, in either dialect.
fn outbox() -> Outbox {
    Outbox::of_rxm(Order::Little, Outgoing::new(6))
}

/// The same in two pieces, with a receive that is too short for most, and little room for what
/// nobody wants.
fn cut_somewhere(bytes: &[u8], mut receiver: Receiver) {
    let _ = receiver.post(UNTAGGED, Some(16));
    // Always the same for the same bytes.
    let cut = bytes.iter().map(|byte| usize::from(*byte)).sum::<usize>() % (bytes.len() + 1);
    let Ok(taken) = receiver.take(&bytes[..cut]) else {
        return;
    };
    assert!(taken.bytes <= cut);
    if !taken.held {
        let _ = receiver.take(&bytes[taken.bytes..]);
    }
    assert!(receiver.rx.unexpected().1 <= 1 << 16);
    let _ = receiver.answers(&mut outbox(), 1 << 16);
}

/// A connection on which everything goes on at the same time: bytes come in pieces, receives are
/// posted, questions asked and answers sent.
struct Work {
    receiver: Receiver,
    outbox: Outbox,
    /// What has come and was not taken.
    rest: Vec<u8>,
    held: bool,
    /// Operations, which end in any case.
    ops: Vec<OpKey>,
    /// Always the same for the same bytes.
    number: usize,
}

impl Work {
    fn new(bytes: &[u8], mut receiver: Receiver) -> Self {
        let ops = vec![
            receiver.asks_to_read(8),
            receiver.offers(40),
            receiver.post(UNTAGGED, Some(16)),
        ];
        let number = bytes.iter().fold(bytes.len(), |sum, byte| {
            sum.wrapping_mul(31) + usize::from(*byte)
        });
        Self {
            receiver,
            outbox: outbox(),
            rest: Vec::new(),
            held: false,
            ops,
            number,
        }
    }

    fn run(mut self, bytes: &[u8]) {
        let mut at = 0;
        // A message that waits for a receive gets one within a few turns.
        let mut patience = 20;
        let mut is_whole = true;
        while is_whole && (at < bytes.len() || self.held) && patience > 0 {
            if self.held {
                patience -= 1;
            } else {
                let count = (1 + self.next(150)).min(bytes.len() - at);
                self.rest.extend_from_slice(&bytes[at..at + count]);
                at += count;
            }
            is_whole = self.turn();
        }
        // The peer has gone. Of what it has offered nothing comes any more, but messages that are
        // here are still received.
        if self.next(2) == 0 {
            for landing in self.receiver.inbox.end_fetches() {
                self.receiver
                    .rx
                    .fail(&mut self.receiver.maps, landing, Error::Canceled);
            }
            while is_whole && (self.held || self.receiver.inbox.has_aside()) && patience > 0 {
                patience -= 1;
                is_whole = self.turn();
            }
        }
        self.end();
    }

    fn next(&mut self, below: usize) -> usize {
        self.number = self
            .number
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.number >> 33) % below
    }

    /// What a connection does with what has come. False when the peer has broken the rules.
    fn turn(&mut self) -> bool {
        if self.held && self.next(2) == 0 || self.next(6) == 0 {
            let spec = [UNTAGGED, ANY_TAG][self.next(2)];
            let room = [None, Some(16)][self.next(2)];
            self.ops.push(self.receiver.post(spec, room));
        }
        if self.held && !self.receiver.wants(&self.rest) {
            return true;
        }
        let Ok(taken) = self.receiver.take(&self.rest) else {
            return false;
        };
        self.rest.drain(..taken.bytes);
        self.held = taken.held;
        while self.receiver.inbox.ask().is_some() {}
        self.receiver.answers(&mut self.outbox, 1 << 16).is_ok()
    }

    /// The connection has ended: so has everything that waited for it, and what was received is
    /// whole.
    fn end(mut self) {
        let Receiver {
            inbox, rx, maps, ..
        } = &mut self.receiver;
        inbox.asked.fail(maps, &Error::Canceled);
        inbox.replies.fail(maps, &Error::Canceled);
        for landing in inbox.end() {
            rx.fail(maps, landing, Error::Canceled);
        }
        for _ in 0..self.receiver.rx.unexpected().0 {
            self.ops.extend([
                self.receiver.post(UNTAGGED, None),
                self.receiver.post(ANY_TAG, None),
            ]);
        }
        assert_eq!(
            self.receiver.rx.unexpected(),
            (0, 0),
            "messages that nobody can receive"
        );
        for op in self.ops {
            let Receiver { rx, maps, .. } = &mut self.receiver;
            let is_posted = rx.cancel(maps, op);
            assert!(
                is_posted || self.receiver.end(op).is_some(),
                "an operation that never ends"
            );
        }
    }
}
