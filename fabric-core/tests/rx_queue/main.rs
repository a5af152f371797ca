//! The receive queue, with an engine that keeps its state in maps.

mod changes;
mod stalled_messages;

use std::collections::HashMap;
use std::convert::Infallible;

use fabric_core::buf::{AnyBuf, BufferPool, CopySource, IoBuf, PooledBuf};
use fabric_core::completion::Outcome;
use fabric_core::matching::{Envelope, PeerKey, RecvSpec, TagMatch};
use fabric_core::rx::{MultiRecvSplit, PartialId, RxEngine, RxQueue};
use fabric_core::transport::{EpId, OpKey};
use fabric_core::{Address, Error, FiAddr, Result};

const BUDGET: usize = 16 << 20;
const CHECKS_PER_TIMEOUT: u32 = 16;
/// Room of a receive.
const CAPACITY: usize = 1 << 20;

/// The buffers of receives, and the receives that have completed.
#[derive(Debug, Default)]
struct TestEngine {
    bufs: HashMap<OpKey, AnyBuf>,
    completed: HashMap<OpKey, Outcome>,
    /// Receives that multi-receives may split off: as many as their completion queue has room for.
    parts: Vec<OpKey>,
}

impl TestEngine {
    /// Returns the bytes of a receive that has completed without an error.
    fn received(&self, op: OpKey) -> Option<&[u8]> {
        let outcome = self.completed.get(&op)?;
        assert!(outcome.error.is_none(), "{outcome:?}");
        Some(&self.bufs[&op].bytes()[..outcome.transfer.len])
    }
}

impl RxEngine for TestEngine {
    type PlainSink<'a> = Infallible;
    fn plain_sink(&mut self, _: EpId) -> Option<Infallible> {
        None
    }
    fn begin_fill(&mut self, op: OpKey, len: usize) -> Result<usize> {
        let buf = self.bufs.get_mut(&op).expect("a receive");
        buf.begin_fill(len)?;
        Ok(buf.recv_capacity())
    }
    fn write_at(&mut self, op: OpKey, at: usize, bytes: &dyn CopySource, from: usize, n: usize) {
        let buf = self.bufs.get_mut(&op).expect("a receive");
        buf.write_at(at, bytes, from, n);
    }
    fn give_buffered(&mut self, op: OpKey, bytes: PooledBuf) -> usize {
        let placed = self.begin_fill(op, bytes.len()).expect("memory");
        let placed = placed.min(bytes.len());
        self.write_at(op, 0, &&bytes[..], 0, placed);
        placed
    }
    fn copy_received(&mut self, op: OpKey, filled: usize, into: &mut PooledBuf) {
        let buf = self.bufs.get_mut(&op).expect("a receive");
        buf.finish(filled);
        into.extend_from_slice(&buf.bytes()[..filled]);
    }
    fn take_received(&mut self, _: OpKey, _: usize) -> PooledBuf {
        unreachable!("no receive is detached in these tests")
    }
    fn complete(&mut self, op: OpKey, outcome: Outcome) {
        let earlier = self.completed.insert(op, outcome);
        assert!(earlier.is_none(), "{op:?} completes twice");
    }
    fn split_multi_recv(&mut self, _: OpKey, _: &Envelope) -> MultiRecvSplit {
        match self.parts.pop() {
            Some(part) if part.index.is_multiple_of(3) => MultiRecvSplit::Last(part),
            Some(part) => MultiRecvSplit::Part(part),
            None => MultiRecvSplit::CqFull,
        }
    }
    fn has_cq_room(&mut self, _: OpKey) -> bool {
        !self.parts.is_empty()
    }
    fn address_of(&self, _: EpId, addr: FiAddr) -> Result<Address> {
        Err(Error::StaleAddress(addr))
    }
    fn fi_addr_of(&self, _: EpId, _: &Address) -> Option<FiAddr> {
        None
    }
    fn departing_address(&self, _: FiAddr) -> Option<Address> {
        None
    }
}

/// A receive queue and its engine.
struct Fixture {
    rx: RxQueue,
    engine: TestEngine,
    posted: u32,
}

impl Fixture {
    fn new() -> Self {
        Self::with_budget(BUDGET)
    }

    fn with_budget(budget: usize) -> Self {
        Self {
            rx: RxQueue::new(EpId(1), budget, BufferPool::new()),
            engine: TestEngine::default(),
            posted: 0,
        }
    }

    /// Posts a receive of one tag, or of any tag.
    fn post(&mut self, tag: Option<u64>) -> OpKey {
        let op = self.new_op();
        self.rx.post(&mut self.engine, op, spec(tag));
        op
    }

    fn new_op(&mut self) -> OpKey {
        self.posted += 1;
        let op = OpKey {
            index: self.posted,
            generation: 0,
        };
        let buf = Vec::with_capacity(CAPACITY).into_any();
        self.engine.bufs.insert(op, buf);
        op
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
        self.engine.received(op).map(<[u8]>::len)
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
