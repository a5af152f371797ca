//! An engine that keeps the buffers and the outcomes of operations in maps.

use std::collections::HashMap;
use std::convert::Infallible;

use fabric_core::buf::{AnyBuf, CopySource, PooledBuf};
use fabric_core::completion::{Outcome, Transfer};
use fabric_core::matching::Envelope;
use fabric_core::rx::{MultiRecvSplit, RxEngine};
use fabric_core::transport::{EpId, OpKey};
use fabric_core::{Address, Error, FiAddr, Result};

/// The engine, with what else a test needs of it.
#[derive(Debug, Default)]
pub(crate) struct TestEngine<S = ()> {
    bufs: HashMap<OpKey, AnyBuf>,
    outcomes: HashMap<OpKey, Outcome>,
    last_op_index: u32,
    /// Receives that multi-receives may split off: as many as their completion queue has room for.
    #[allow(dead_code)] // `tcp_wire` has no multi-receives
    pub(crate) parts: Vec<OpKey>,
    /// The length of messages from which on they do not fit into multi-receives.
    #[allow(dead_code)] // `tcp_wire` has no multi-receives
    pub(crate) too_long_for_parts: Option<usize>,
    pub(crate) services: S,
}

impl<S> TestEngine<S> {
    /// Adds an operation with this buffer.
    pub(crate) fn add_op(&mut self, buf: AnyBuf) -> OpKey {
        self.last_op_index += 1;
        let op = OpKey {
            index: self.last_op_index,
            generation: 0,
        };
        self.bufs.insert(op, buf);
        op
    }

    /// Returns the buffer of an operation.
    pub(crate) fn buf(&self, op: OpKey) -> &AnyBuf {
        &self.bufs[&op]
    }

    /// Returns the outcome of an operation that has completed.
    pub(crate) fn outcome(&self, op: OpKey) -> Option<&Outcome> {
        self.outcomes.get(&op)
    }

    /// Returns transfer and bytes of a receive that has completed, without an error.
    pub(crate) fn received(&self, op: OpKey) -> Option<(Transfer, &[u8])> {
        let outcome = self.outcome(op)?;
        assert_eq!(outcome.error, None);
        let bytes = &self.bufs[&op].bytes()[..outcome.transfer.len];
        Some((outcome.transfer, bytes))
    }

    fn buf_mut(&mut self, op: OpKey) -> &mut AnyBuf {
        self.bufs.get_mut(&op).expect("an operation")
    }
}

impl<S> RxEngine for TestEngine<S> {
    type PlainSink<'a>
        = Infallible
    where
        S: 'a;
    fn plain_sink(&mut self, _: EpId) -> Option<Infallible> {
        None
    }
    fn begin_fill(&mut self, op: OpKey, len: usize) -> Result<usize> {
        let buf = self.buf_mut(op);
        buf.begin_fill(len)?;
        Ok(buf.recv_capacity())
    }
    fn write_at(&mut self, op: OpKey, at: usize, bytes: &dyn CopySource, from: usize, n: usize) {
        self.buf_mut(op).write_at(at, bytes, from, n);
    }
    fn give_buffered(&mut self, op: OpKey, bytes: PooledBuf) -> usize {
        let placed = self.begin_fill(op, bytes.len()).expect("memory");
        let placed = placed.min(bytes.len());
        self.write_at(op, 0, &&bytes[..], 0, placed);
        placed
    }
    fn copy_received(&mut self, op: OpKey, filled: usize, into: &mut PooledBuf) {
        let buf = self.buf_mut(op);
        buf.finish(filled);
        into.extend_from_slice(&buf.bytes()[..filled]);
    }
    fn take_received(&mut self, _: OpKey, _: usize) -> PooledBuf {
        unreachable!("no receive is detached in these tests")
    }
    fn complete(&mut self, op: OpKey, outcome: Outcome) {
        let earlier = self.outcomes.insert(op, outcome);
        assert!(earlier.is_none(), "{op:?} completes twice");
    }
    fn split_multi_recv(&mut self, _: OpKey, envelope: &Envelope) -> MultiRecvSplit {
        if self
            .too_long_for_parts
            .is_some_and(|len| envelope.len >= len)
        {
            return MultiRecvSplit::Exhausted;
        }
        match self.parts.pop() {
            Some(part) if part.index.is_multiple_of(3) => MultiRecvSplit::Last(part),
            Some(part) => MultiRecvSplit::Part(part),
            None => MultiRecvSplit::CqFull,
        }
    }
    fn reserve_cq_room(&mut self, _: OpKey) -> bool {
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
