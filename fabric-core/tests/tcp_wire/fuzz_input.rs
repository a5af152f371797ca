//! What peers say over TCP, read from any bytes: for the tests that replay corpora, and for the
//! fuzz targets.

use fabric_core::Error;
use fabric_core::completion::OpKind;
use fabric_core::tcp::rxm::RxmSender;
use fabric_core::tcp::{ByteOrder, CmMessage, FrameWriter};
use fabric_core::transport::OpKey;

use crate::receiver::{ANY_TAG, TcpReceiver, UNTAGGED};

/// Reads how a connection begins. True when it does.
pub(crate) fn control(bytes: &[u8]) -> bool {
    let Ok(Some((control, len))) = CmMessage::decode(bytes) else {
        return false;
    };
    assert!(
        len <= bytes.len() && control.private_data().len() + 32 == len,
        "{bytes:?}"
    );
    // What is understood of a mark is what this side would say.
    let again = CmMessage::new(control.kind, &[])
        .unwrap()
        .with_vendor_extension(control.vendor_extension)
        .encode();
    assert_eq!(
        CmMessage::decode(&again)
            .unwrap()
            .unwrap()
            .0
            .vendor_extension,
        control.vendor_extension,
        "{bytes:?}"
    );
    true
}

/// Reads what follows. True when it ends with a message.
pub(crate) fn stream(bytes: &[u8]) -> bool {
    run_stream(bytes, |budget| native_receiver(budget, false))
}

/// The same as peers of this library say it to each other.
pub(crate) fn vendor_stream(bytes: &[u8]) -> bool {
    run_stream(bytes, |budget| native_receiver(budget, true))
}

/// The same in the other dialect, to a connection with the number 5, which has asked for a few
/// bytes, and for two atomic operations, and has written.
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
    let taken = receiver.read(bytes);
    taken.is_ok_and(|taken| taken.consumed == bytes.len()) && receiver.reader.abort().is_empty()
}

fn native_receiver(budget: usize, is_kin: bool) -> TcpReceiver {
    let mut receiver = TcpReceiver::new(ByteOrder::Little, budget);
    if is_kin {
        receiver.reader.set_same_implementation();
    }
    // Of which one answer may come.
    receiver.expect_read(8);
    receiver
}

/// Where answers go, in either dialect.
fn rxm_writer() -> FrameWriter {
    FrameWriter::with_rxm(ByteOrder::Little, RxmSender::new(6))
}

/// The same in two pieces, with a receive that is too short for most, and little room for what
/// nobody wants.
fn run_split(bytes: &[u8], mut receiver: TcpReceiver) {
    let _ = receiver.post_recv(UNTAGGED, Some(16));
    // Always the same for the same bytes.
    let cut = bytes.iter().map(|byte| usize::from(*byte)).sum::<usize>() % (bytes.len() + 1);
    let Ok(taken) = receiver.read(&bytes[..cut]) else {
        return;
    };
    assert!(taken.consumed <= cut);
    if !taken.blocked {
        let _ = receiver.read(&bytes[taken.consumed..]);
    }
    assert!(receiver.rx.unexpected().1 <= 1 << 16);
    let _ = receiver.take_responses(&mut rxm_writer(), 1 << 16);
}

/// A connection on which everything goes on at the same time: bytes come in pieces, receives are
/// posted, questions asked and answers sent.
struct FuzzedConnection {
    receiver: TcpReceiver,
    writer: FrameWriter,
    /// What has come and was not taken.
    unread: Vec<u8>,
    message_held: bool,
    /// Operations, which end in any case.
    ops: Vec<OpKey>,
    /// Always the same for the same bytes.
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
        // A message that waits for a receive gets one within a few turns.
        let mut patience = 20;
        let mut is_whole = true;
        while is_whole && (at < bytes.len() || self.message_held) && patience > 0 {
            if self.message_held {
                patience -= 1;
            } else {
                let count = (1 + self.next(150)).min(bytes.len() - at);
                self.unread.extend_from_slice(&bytes[at..at + count]);
                at += count;
            }
            is_whole = self.step();
        }
        // The peer has gone. Of what it has offered nothing comes any more, but messages that are
        // here are still received.
        if self.next(2) == 0 {
            for landing in self.receiver.reader.end_rendezvous_reads() {
                self.receiver
                    .rx
                    .fail_partial(&mut self.receiver.context, landing, Error::Canceled);
            }
            while is_whole
                && (self.message_held || self.receiver.reader.has_deferred())
                && patience > 0
            {
                patience -= 1;
                is_whole = self.step();
            }
        }
        self.finish();
    }

    fn next(&mut self, below: usize) -> usize {
        self.rng_state = self
            .rng_state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.rng_state >> 33) % below
    }

    /// What a connection does with what has come. False when the peer has broken the rules.
    fn step(&mut self) -> bool {
        if self.message_held && self.next(2) == 0 || self.next(6) == 0 {
            let spec = [UNTAGGED, ANY_TAG][self.next(2)];
            let room = [None, Some(16)][self.next(2)];
            self.ops.push(self.receiver.post_recv(spec, room));
        }
        if self.message_held && !self.receiver.would_read_held(&self.unread) {
            return true;
        }
        let Ok(taken) = self.receiver.read(&self.unread) else {
            return false;
        };
        self.unread.drain(..taken.consumed);
        self.message_held = taken.blocked;
        while self.receiver.reader.next_rendezvous_read().is_some() {}
        self.receiver
            .take_responses(&mut self.writer, 1 << 16)
            .is_ok()
    }

    /// The connection has ended: so has everything that waited for it, and what was received is
    /// whole.
    fn finish(mut self) {
        let TcpReceiver {
            reader: inbox,
            rx,
            context: maps,
            ..
        } = &mut self.receiver;
        inbox.pending.fail(maps, &Error::Canceled);
        inbox.responses.fail(maps, &Error::Canceled);
        for landing in inbox.abort() {
            rx.fail_partial(maps, landing, Error::Canceled);
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
            "messages that nobody can receive"
        );
        for op in self.ops {
            let TcpReceiver {
                rx, context: maps, ..
            } = &mut self.receiver;
            let is_posted = rx.cancel(maps, op);
            assert!(
                is_posted || self.receiver.outcome(op).is_some(),
                "an operation that never ends"
            );
        }
    }
}
