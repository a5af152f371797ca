//! A receive context, and a host that keeps everything in maps.

use std::collections::HashMap;
use std::sync::Arc;

use fabric_core::av::AddressTable;
use fabric_core::buf::{AnyBuf, Payload, Pool, PooledBuf, Source};
use fabric_core::completion::{OpKind, Outcome, Transfer};
use fabric_core::event::EventKind;
use fabric_core::flags::Access;
use fabric_core::matching::{PeerKey, RecvSpec, TagMatch};
use fabric_core::mr::{LocalMemory, Region, RegionTable};
use fabric_core::provider::{Deed, EpId, Host, Incarnation, OpKey, Remote, SendSpec};
use fabric_core::rx::RxContext;
use fabric_core::tcp::rxm::Incoming;
use fabric_core::tcp::{Broken, Inbox, Order, Outbox, Replying, Taken};
use fabric_core::{Address, Error, FiAddr, Result};

/// Takes any tag.
pub(crate) const ANY_TAG: RecvSpec = RecvSpec {
    from: None,
    tag: Some(TagMatch {
        tag: 0,
        ignore: u64::MAX,
    }),
};
/// Takes what has no tag.
pub(crate) const UNTAGGED: RecvSpec = RecvSpec {
    from: None,
    tag: None,
};

pub(crate) const PEER: (PeerKey, Option<FiAddr>) = (PeerKey(1), None);

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
    pub(crate) regions: Option<RegionTable>,
    /// What the owner of the regions was told of.
    pub(crate) told: Vec<(u64, Deed, Transfer)>,
    /// It cannot be told of what comes with data.
    pub(crate) is_full: bool,
}

/// The key of memory that peers may read and write.
pub(crate) const KEY: u64 = 7;
/// The same, of memory that they may only read.
pub(crate) const READABLE: u64 = 8;
/// Bytes of each, where memory is what a test is about.
pub(crate) const ROOM: usize = 40_000;

impl Receiver {
    /// Buffers at most this many bytes of messages that nobody has asked for.
    pub(crate) fn new(order: Order, budget: usize) -> Self {
        Self::with_memory(order, budget, 200)
    }

    /// Likewise, with so many bytes of memory under each key.
    pub(crate) fn with_memory(order: Order, budget: usize, room: usize) -> Self {
        let pool = Pool::new();
        let mut maps = Maps {
            pool: Some(pool.clone()),
            ..Maps::default()
        };
        let mut regions = RegionTable::new(1);
        let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
        for (key, access) in [(KEY, both), (READABLE, Access::REMOTE_READ)] {
            let memory = Arc::new(LocalMemory::new(room).unwrap());
            regions.insert(memory, access, Some(key), false).unwrap();
        }
        maps.regions = Some(regions);
        let mut inbox = Inbox::new(order);
        inbox.serve(EpId(0), true, false);
        Self {
            rx: RxContext::new(EpId(0), budget, pool),
            inbox,
            maps,
            ops: 0,
        }
    }

    /// The same where RXM is spoken, and packets must quote this.
    pub(crate) fn of_rxm(budget: usize, connection: u32) -> Self {
        Self::new(Order::NATIVE, budget).in_rxm(connection)
    }

    /// The same where RXM is spoken.
    pub(crate) fn in_rxm(self, connection: u32) -> Self {
        let mut inbox = Inbox::of_rxm(Order::NATIVE, Incoming::new(connection));
        inbox.serve(EpId(0), true, false);
        Self { inbox, ..self }
    }

    /// An operation that sends these bytes.
    pub(crate) fn sending(&mut self, bytes: &[u8]) -> OpKey {
        self.ops += 1;
        let op = OpKey {
            index: self.ops,
            generation: 0,
        };
        self.maps.bufs.insert(op, AnyBuf::Vec(bytes.to_vec()));
        op
    }

    /// An operation whose message of so many bytes the peer may read.
    pub(crate) fn offers(&mut self, len: usize) -> OpKey {
        let op = self.sending(&vec![1; len]);
        self.inbox.replies.offers.add(op, None, len, &self.maps);
        op
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
        let op = OpKey {
            index: self.ops,
            generation: 0,
        };
        let pooled = || AnyBuf::Pooled(PooledBuf::empty(self.maps.pool.as_ref().unwrap()));
        self.maps.bufs.insert(
            op,
            room.map_or_else(pooled, |room| AnyBuf::Vec(Vec::with_capacity(room))),
        );
        self.rx.post(&mut self.maps, op, spec);
        op
    }

    /// An operation of this side, with a buffer that takes what is answered.
    fn operation(&mut self) -> OpKey {
        self.ops += 1;
        let op = OpKey {
            index: self.ops,
            generation: 0,
        };
        self.maps
            .bufs
            .insert(op, AnyBuf::Vec(Vec::with_capacity(1 << 20)));
        op
    }

    /// This side has asked for so many bytes.
    pub(crate) fn asks_to_read(&mut self, len: usize) -> OpKey {
        let op = self.operation();
        self.inbox
            .asked
            .expect_answer(op, spec(OpKind::Read, len), len);
        op
    }

    /// This side has written so many bytes.
    pub(crate) fn has_written(&mut self, len: usize) -> OpKey {
        let op = self.operation();
        self.inbox
            .asked
            .expect_ack(op, spec(OpKind::Write, len), len, &mut self.maps);
        op
    }

    /// This side has asked for an atomic operation on so many bytes, which has this number.
    pub(crate) fn asks_atomically(&mut self, kind: OpKind, len: usize) -> (OpKey, u64) {
        let op = self.operation();
        (
            op,
            self.inbox.asked.expect_response(op, spec(kind, len), len),
        )
    }

    /// Bytes of the memory of this key.
    pub(crate) fn memory(&self, key: u64) -> Vec<u8> {
        let mut bytes = vec![0; ROOM];
        let region = self.maps.region(key).expect("a region");
        region.memory.read(0, &mut bytes);
        bytes
    }

    /// What this side answers, when everything leaves at once.
    pub(crate) fn answers(
        &mut self,
        outbox: &mut Outbox,
        most: usize,
    ) -> Result<(Vec<u8>, Replying), Broken> {
        let mut bytes = Vec::new();
        loop {
            let replying =
                self.inbox
                    .replies
                    .answer(outbox, (most, usize::MAX), PEER, &mut self.maps)?;
            let pending = outbox.pending().len();
            bytes.extend_from_slice(outbox.pending());
            outbox.left(pending);
            if replying != Replying::Full || pending == 0 {
                return Ok((bytes, replying));
            }
        }
    }

    pub(crate) fn end(&self, op: OpKey) -> Option<&Outcome> {
        self.maps.ended.get(&op)
    }

    /// What a receive that has ended well has received.
    pub(crate) fn got(&self, op: OpKey) -> (Transfer, &[u8]) {
        let outcome = self.end(op).expect("has ended");
        assert_eq!(outcome.error, None);
        (
            outcome.transfer,
            &self.maps.bufs[&op].bytes()[..outcome.transfer.len],
        )
    }
}

/// An operation on memory of a peer.
fn spec(kind: OpKind, len: usize) -> SendSpec {
    let peer = AddressTable::new().insert("tcp://127.0.0.1:1".parse().unwrap());
    SendSpec::one_sided(
        kind,
        peer,
        Remote {
            key: KEY,
            offset: 0,
            len,
            atomic: None,
        },
    )
}

impl Host for Maps {
    fn payload(&self, op: OpKey) -> Payload<'_> {
        self.bufs[&op].payload()
    }
    fn expect(&mut self, op: OpKey, len: usize) -> Result<usize> {
        let buf = self.bufs.get_mut(&op).unwrap();
        buf.expect(len)?;
        Ok(buf.room())
    }
    fn place(&mut self, op: OpKey, at: usize, source: &dyn Source, from: usize, count: usize) {
        self.bufs
            .get_mut(&op)
            .unwrap()
            .place(at, source, from, count);
    }
    fn adopt(&mut self, op: OpKey, bytes: PooledBuf) -> usize {
        let placed = bytes.len().min(self.expect(op, bytes.len()).unwrap());
        self.place(op, 0, &&bytes[..], 0, placed);
        placed
    }
    fn reclaim(&mut self, _: OpKey, _: usize) -> PooledBuf {
        unreachable!("nobody abandons a receive here")
    }
    fn complete(&mut self, op: OpKey, outcome: Outcome) {
        assert!(
            self.ended.insert(op, outcome).is_none(),
            "an operation ends once"
        );
    }
    fn event(&mut self, _: EpId, _: EventKind) {}
    fn address_of(&self, _: EpId, addr: FiAddr) -> Result<Address> {
        Err(Error::StaleAddress(addr))
    }
    fn region(&self, key: u64) -> Option<&Region> {
        self.regions.as_ref()?.get(key)
    }
    fn done_to_us(&mut self, _: EpId, key: u64, deed: Deed, transfer: Transfer) -> bool {
        if self.is_full && transfer.data.is_some() {
            return false;
        }
        self.told.push((key, deed, transfer));
        true
    }
    fn number_of(&self, _: EpId, _: &Address) -> Option<FiAddr> {
        None
    }
    fn peer_connected(&mut self, _: EpId, _: &Address, _: Option<Incarnation>) -> Option<FiAddr> {
        None
    }
    fn peer_disconnected(&mut self, _: EpId, _: Option<FiAddr>) {}
    fn leaving(&self, _: FiAddr) -> Option<Address> {
        None
    }
}
