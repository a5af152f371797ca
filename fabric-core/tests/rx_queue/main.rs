//! The receive queue, with an engine that keeps its state in maps.

mod changes;
mod claims;
mod held_messages;
mod stalled_messages;
#[path = "../common/test_engine.rs"]
#[allow(dead_code)] // parts that only `tcp_wire` uses
mod test_engine;

use fabric_core::buf::IoBuf;
use fabric_core::matching::{Envelope, PeerKey, RecvSpec, TagMatch};
use fabric_core::rx::{PartialId, RxQueue};
use fabric_core::transport::{EpId, OpKey};

use test_engine::TestEngine;

const BUDGET: usize = 16 << 20;
const CHECKS_PER_TIMEOUT: u32 = 16;
/// Room of a receive.
const CAPACITY: usize = 1 << 20;

/// A receive queue and its engine.
struct Fixture {
    rx: RxQueue,
    engine: TestEngine,
}

impl Fixture {
    fn new() -> Self {
        Self::with_budget(BUDGET)
    }

    fn with_budget(budget: usize) -> Self {
        Self {
            rx: RxQueue::new(EpId(1), budget),
            engine: TestEngine::default(),
        }
    }

    /// Posts a receive of one tag, or of any tag.
    fn post(&mut self, tag: Option<u64>) -> OpKey {
        let op = self.new_op();
        self.rx.post(&mut self.engine, op, spec(tag));
        // No transport holds a message.
        self.rx.end_next_held(&mut self.engine);
        op
    }

    fn new_op(&mut self) -> OpKey {
        self.engine.add_op(Vec::with_capacity(CAPACITY).into_any())
    }

    /// Begins a message of a peer, of which `arrived` bytes arrive.
    fn begin(&mut self, peer: u32, tag: u64, len: usize, arrived: usize) -> PartialId {
        let envelope = envelope(peer, tag, len);
        let begun = self.rx.begin_partial(&mut self.engine, envelope);
        let id = begun.expect("the message is accepted");
        self.append(id, arrived);
        id
    }

    fn append(&mut self, id: PartialId, count: usize) -> bool {
        let bytes = vec![1; count];
        self.rx.append(&mut self.engine, id, &&bytes[..])
    }

    fn deliver(&mut self, peer: u32, tag: u64, bytes: &[u8]) -> bool {
        let envelope = envelope(peer, tag, bytes.len());
        self.rx.deliver(&mut self.engine, envelope, &bytes)
    }

    /// Delivers a message whose bytes are lost.
    fn deliver_envelope(&mut self, envelope: Envelope) -> bool {
        self.rx.deliver(&mut self.engine, envelope, &&b""[..])
    }

    /// Checks the arriving messages. Returns the peers that have timed out.
    fn check(&mut self, times: usize) -> Vec<PeerKey> {
        let mut timed_out = Vec::new();
        for _ in 0..times {
            self.rx
                .check_arrivals(&mut self.engine, CHECKS_PER_TIMEOUT, &mut timed_out);
        }
        timed_out.into_iter().map(|(_, peer)| peer).collect()
    }

    fn received_len(&self, op: OpKey) -> Option<usize> {
        self.engine.received(op).map(|(_, bytes)| bytes.len())
    }
}

fn spec(tag: Option<u64>) -> RecvSpec {
    let ignore = if tag.is_none() { u64::MAX } else { 0 };
    RecvSpec {
        from: None,
        tag: Some(TagMatch {
            tag: tag.unwrap_or(0),
            ignore,
        }),
    }
}

fn envelope(peer: u32, tag: u64, len: usize) -> Envelope {
    Envelope {
        peer: PeerKey(peer),
        source: None,
        tag: Some(tag),
        len,
        data: None,
        arrival: 0,
        ack: None,
    }
}
