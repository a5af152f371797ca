//! A receive context, and a host that keeps everything in maps.

use std::collections::HashMap;
use std::sync::Arc;

use fabric_core::buf::{AnyBuf, Payload, Pool, PooledBuf, Source};
use fabric_core::completion::{Outcome, Transfer};
use fabric_core::event::EventKind;
use fabric_core::matching::{PeerKey, RecvSpec, TagMatch};
use fabric_core::mr::Region;
use fabric_core::provider::{Deed, EpId, Host, OpKey};
use fabric_core::rx::RxContext;
use fabric_core::tcp::{Broken, Inbox, Order, Taken};
use fabric_core::{Address, Error, FiAddr, Result};

/// Takes any tag.
pub(crate) const ANY_TAG: RecvSpec =
    RecvSpec { from: None, tag: Some(TagMatch { tag: 0, ignore: u64::MAX }) };
/// Takes what has no tag.
pub(crate) const UNTAGGED: RecvSpec = RecvSpec { from: None, tag: None };

const PEER: (PeerKey, Option<FiAddr>) = (PeerKey(1), None);

/// The receiving end of one connection.
pub(crate) struct Receiver {
    pub(crate) rx: RxContext,
    pub(crate) inbox: Inbox,
    pub(crate) maps: Maps,
    ops: u32,
}

#[derive(Default)]
pub(crate) struct Maps {
    bufs: HashMap<OpKey, AnyBuf>,
    ended: HashMap<OpKey, Outcome>,
    pool: Option<Arc<Pool>>,
}

impl Receiver {
    /// Buffers at most this many bytes of messages that nobody has asked for.
    pub(crate) fn new(order: Order, budget: usize) -> Self {
        let pool = Pool::new();
        let maps = Maps { pool: Some(pool.clone()), ..Maps::default() };
        Self { rx: RxContext::new(EpId(0), budget, pool), inbox: Inbox::new(order), maps, ops: 0 }
    }

    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<Taken, Broken> {
        self.inbox.take(bytes, PEER, &mut self.rx, &mut self.maps)
    }

    pub(crate) fn wants(&mut self, bytes: &[u8]) -> bool {
        self.inbox.is_wanted(bytes, PEER, &self.rx, &mut self.maps)
    }

    /// Posts a receive with a buffer of this size, or with one that grows.
    pub(crate) fn post(&mut self, spec: RecvSpec, room: Option<usize>) -> OpKey {
        self.ops += 1;
        let op = OpKey { index: self.ops, generation: 0 };
        let pooled = || AnyBuf::Pooled(PooledBuf::empty(self.maps.pool.as_ref().unwrap()));
        self.maps.bufs.insert(op, room.map_or_else(pooled, |room| AnyBuf::Vec(Vec::with_capacity(room))));
        self.rx.post(&mut self.maps, op, spec);
        op
    }

    pub(crate) fn end(&self, op: OpKey) -> Option<&Outcome> {
        self.maps.ended.get(&op)
    }

    /// What a receive that has ended well has received.
    pub(crate) fn got(&self, op: OpKey) -> (Transfer, &[u8]) {
        let outcome = self.end(op).expect("has ended");
        assert_eq!(outcome.error, None);
        (outcome.transfer, &self.maps.bufs[&op].bytes()[..outcome.transfer.len])
    }
}

impl Host for Maps {
    fn payload(&self, op: OpKey) -> Payload<'_> {
        self.bufs[&op].payload()
    }
    fn expect(&mut self, op: OpKey, len: usize) -> usize {
        let buf = self.bufs.get_mut(&op).unwrap();
        buf.expect(len);
        buf.room()
    }
    fn place(&mut self, op: OpKey, at: usize, source: &dyn Source, from: usize, count: usize) {
        self.bufs.get_mut(&op).unwrap().place(at, source, from, count);
    }
    fn adopt(&mut self, op: OpKey, bytes: PooledBuf) -> usize {
        let placed = bytes.len().min(self.expect(op, bytes.len()));
        self.place(op, 0, &&bytes[..], 0, placed);
        placed
    }
    fn reclaim(&mut self, _: OpKey, _: usize) -> PooledBuf {
        unreachable!("nobody abandons a receive here")
    }
    fn complete(&mut self, op: OpKey, outcome: Outcome) {
        assert!(self.ended.insert(op, outcome).is_none(), "an operation ends once");
    }
    fn event(&mut self, _: EpId, _: EventKind) {}
    fn address_of(&self, _: EpId, addr: FiAddr) -> Result<Address> {
        Err(Error::StaleAddress(addr))
    }
    fn region(&self, _: u64) -> Option<&Region> {
        None
    }
    fn done_to_us(&mut self, _: EpId, _: u64, _: Deed, _: Transfer) -> bool {
        false
    }
    fn number_of(&self, _: EpId, _: &Address) -> Option<FiAddr> {
        None
    }
    fn peer_connected(&mut self, _: EpId, _: &Address) -> Option<FiAddr> {
        None
    }
    fn peer_disconnected(&mut self, _: EpId, _: Option<FiAddr>) {}
    fn leaving(&self, _: FiAddr) -> Option<Address> {
        None
    }
}
