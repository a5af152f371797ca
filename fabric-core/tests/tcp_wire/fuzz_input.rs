//! Entry points that parse arbitrary bytes from a peer: for the tests that replay corpora, and for
//! the fuzz targets.

use fabric_core::Error;
use fabric_core::completion::OpKind;
use fabric_core::tcp::rxm::RxmSender;
use fabric_core::tcp::{ByteOrder, CmMessage, FrameWriter, StopReason};
use fabric_core::transport::OpKey;

use crate::receiver::{ANY_TAG, TcpReceiver, UNTAGGED, context_of};

/// Parses a control message; returns whether it is valid.
pub(crate) fn control(bytes: &[u8]) -> bool {
    let Ok(Some((control, len))) = CmMessage::decode(bytes) else {
        return false;
    };
    assert!(
        len <= bytes.len() && control.private_data().len() + 32 == len,
        "{bytes:?}"
    );
    // A decoded extension must encode to one with the same meaning.
    let encoded = CmMessage::new(control.kind, &[])
        .unwrap()
        .with_vendor_extension(control.vendor_extension)
        .encode();
    assert_eq!(
        CmMessage::decode(&encoded)
            .unwrap()
            .unwrap()
            .0
            .vendor_extension,
        control.vendor_extension,
        "{bytes:?}"
    );
    true
}

/// Reads a native stream; returns whether it ends with a complete frame.
pub(crate) fn stream(bytes: &[u8]) -> bool {
    run_stream(bytes, |budget| native_receiver(budget, false))
}

/// Reads a native stream from a same-implementation peer.
pub(crate) fn vendor_stream(bytes: &[u8]) -> bool {
    run_stream(bytes, |budget| native_receiver(budget, true))
}

/// Reads an RXM stream on a connection with id 5, on which a read, two atomic operations and a
/// write are pending.
pub(crate) fn rxm(bytes: &[u8]) -> bool {
    run_stream(bytes, |budget| {
        let mut receiver = TcpReceiver::rxm(budget, 5);
        receiver.expect_read(8);
        receiver.expect_write_ack(8);
        receiver.expect_atomic(OpKind::FetchAtomic, 8);
        receiver.expect_atomic(OpKind::Atomic, 8);
        receiver
    })
}

fn run_stream(bytes: &[u8], receiver: impl Fn(usize) -> TcpReceiver) -> bool {
    run_split(bytes, receiver(1 << 16));
    FuzzedConnection::new(bytes, receiver([300, 1 << 16][bytes.len() % 2])).run(bytes);
    let mut receiver = receiver(1 << 20);
    let outcome = receiver.read(bytes);
    outcome.is_ok_and(|outcome| outcome.consumed == bytes.len())
        && receiver.reader.abort().is_empty()
}

fn native_receiver(budget: usize, is_same: bool) -> TcpReceiver {
    let mut receiver = TcpReceiver::new(ByteOrder::Little, budget);
    if is_same {
        receiver.responses.set_same_implementation();
    }
    // One response may arrive.
    receiver.expect_read(8);
    receiver
}

/// Returns the writer for responses. It writes responses to native requests too.
fn rxm_writer() -> FrameWriter {
    FrameWriter::with_rxm(ByteOrder::Little, RxmSender::new(6))
}

/// Reads the bytes in two parts, with a receive too short for most messages and a small unexpected
/// budget.
fn run_split(bytes: &[u8], mut receiver: TcpReceiver) {
    let _ = receiver.post_recv(UNTAGGED, Some(16));
    // Deterministic for the same bytes.
    let cut = bytes.iter().map(|byte| usize::from(*byte)).sum::<usize>() % (bytes.len() + 1);
    let Ok(outcome) = receiver.read(&bytes[..cut]) else {
        return;
    };
    assert!(outcome.consumed <= cut);
    if outcome.stop_reason != StopReason::Held {
        let _ = receiver.read(&bytes[outcome.consumed..]);
    }
    assert!(receiver.rx.unexpected().1 <= 1 << 16);
    let _ = receiver.take_responses(&mut rxm_writer(), 1 << 16);
}

/// A connection on which bytes arrive in parts while receives are posted, requests are sent and
/// responses are written, in an order that depends on the bytes.
struct FuzzedConnection {
    receiver: TcpReceiver,
    writer: FrameWriter,
    /// Bytes that have arrived and were not consumed.
    unread: Vec<u8>,
    /// The first frame of `unread` was blocked.
    message_held: bool,
    /// All operations; each must complete.
    ops: Vec<OpKey>,
    /// State of the generator of choices, seeded with the bytes.
    rng_state: usize,
}

impl FuzzedConnection {
    fn new(bytes: &[u8], mut receiver: TcpReceiver) -> Self {
        let ops = vec![
            receiver.expect_read(8),
            receiver.start_rendezvous(40),
            receiver.post_recv(UNTAGGED, Some(16)),
        ];
        let rng_state = bytes.iter().fold(bytes.len(), |sum, byte| {
            sum.wrapping_mul(31) + usize::from(*byte)
        });
        Self {
            receiver,
            writer: rxm_writer(),
            unread: Vec::new(),
            message_held: false,
            ops,
            rng_state,
        }
    }

    fn run(mut self, bytes: &[u8]) {
        let mut at = 0;
        // A message that waits for a receive gets one within a few steps.
        let mut steps_left = 20;
        let mut is_open = true;
        while is_open && (at < bytes.len() || self.message_held) && steps_left > 0 {
            if self.message_held {
                steps_left -= 1;
            } else {
                let count = (1 + self.next(150)).min(bytes.len() - at);
                self.unread.extend_from_slice(&bytes[at..at + count]);
                at += count;
            }
            is_open = self.step();
        }
        // The peer has disconnected. Rendezvous messages will not be read any more; messages that
        // have arrived are still received.
        if self.next(2) == 0 {
            for partial in self.receiver.end_rendezvous_reads() {
                self.receiver
                    .rx
                    .fail_partial(&mut self.receiver.context, partial, Error::Canceled);
            }
            while is_open
                && (self.message_held || self.receiver.reader.has_set_aside())
                && steps_left > 0
            {
                steps_left -= 1;
                is_open = self.step();
            }
        }
        self.finish();
    }

    fn next(&mut self, bound: usize) -> usize {
        self.rng_state = self
            .rng_state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.rng_state >> 33) % bound
    }

    /// Does one step of the connection. Returns false after a protocol violation.
    fn step(&mut self) -> bool {
        if self.message_held && self.next(2) == 0 || self.next(6) == 0 {
            let spec = [UNTAGGED, ANY_TAG][self.next(2)];
            let capacity = [None, Some(16)][self.next(2)];
            self.ops.push(self.receiver.post_recv(spec, capacity));
        }
        if self.message_held && !self.receiver.try_resume(&self.unread) {
            return true;
        }
        let Ok(outcome) = self.receiver.read(&self.unread) else {
            return false;
        };
        self.unread.drain(..outcome.consumed);
        self.message_held = outcome.stop_reason == StopReason::Held;
        while self.receiver.next_rendezvous_read().is_some() {}
        self.receiver
            .take_responses(&mut self.writer, 1 << 16)
            .is_ok()
    }

    /// Ends the connection: every pending operation must complete, and every buffered message must
    /// be receivable.
    fn finish(mut self) {
        let TcpReceiver {
            rx,
            reader,
            pending,
            responses,
            context,
        } = &mut self.receiver;
        pending.fail(&mut context_of(rx, context), &Error::Canceled);
        responses.fail(&mut context_of(rx, context), &Error::Canceled);
        for partial in reader.abort() {
            rx.fail_partial(context, partial, Error::Canceled);
        }
        for _ in 0..self.receiver.rx.unexpected().0 {
            self.ops.extend([
                self.receiver.post_recv(UNTAGGED, None),
                self.receiver.post_recv(ANY_TAG, None),
            ]);
        }
        assert_eq!(
            self.receiver.rx.unexpected(),
            (0, 0),
            "every buffered message can be received"
        );
        for op in self.ops {
            let TcpReceiver { rx, context, .. } = &mut self.receiver;
            let is_posted = rx.cancel(context, op);
            assert!(
                is_posted || self.receiver.outcome(op).is_some(),
                "every operation completes"
            );
        }
    }
}
