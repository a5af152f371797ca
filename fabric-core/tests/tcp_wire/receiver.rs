//! A receive context, and a host that keeps everything in maps.

use std::collections::HashMap;
use std::sync::Arc;

use fabric_core::av::AddressTable;
use fabric_core::buf::{AnyBuf, BufferPool, CopySource, Payload, PooledBuf};
use fabric_core::completion::{OpKind, Outcome, Transfer};
use fabric_core::event::EventKind;
use fabric_core::flags::Access;
use fabric_core::matching::{PeerKey, RecvSpec, TagMatch};
use fabric_core::mr::{LocalMemory, Region, RegionTable};
use fabric_core::rx::RxQueue;
use fabric_core::tcp::rxm::RxmReceiver;
use fabric_core::tcp::{
    ByteOrder, FrameReader, FrameWriter, ProtocolViolation, ReadOutcome, ResponseStatus,
};
use fabric_core::transport::{EngineContext, EpId, Incarnation, OpKey, RemoteAccess, RmaIov, TxOp};
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
pub(crate) struct TcpReceiver {
    pub(crate) rx: RxQueue,
    pub(crate) reader: FrameReader,
    pub(crate) context: TcpTestContext,
    last_op_index: u32,
}

#[derive(Default)]
pub(crate) struct TcpTestContext {
    bufs: HashMap<OpKey, AnyBuf>,
    outcomes: HashMap<OpKey, Outcome>,
    pool: Option<Arc<BufferPool>>,
    pub(crate) regions: Option<RegionTable>,
    /// What the owner of the regions was told of.
    pub(crate) remote_accesses: Vec<(u64, RemoteAccess, Transfer)>,
    /// It cannot be told of what comes with data.
    pub(crate) cq_full: bool,
}

/// The key of memory that peers may read and write.
pub(crate) const READ_WRITE_KEY: u64 = 7;
/// The same, of memory that they may only read.
pub(crate) const READ_ONLY_KEY: u64 = 8;
/// Bytes of each, where memory is what a test is about.
pub(crate) const REGION_LEN: usize = 40_000;

impl TcpReceiver {
    /// Buffers at most this many bytes of messages that nobody has asked for.
    pub(crate) fn new(order: ByteOrder, budget: usize) -> Self {
        Self::with_region_len(order, budget, 200)
    }

    /// Likewise, with so many bytes of memory under each key.
    pub(crate) fn with_region_len(order: ByteOrder, budget: usize, room: usize) -> Self {
        let pool = BufferPool::new();
        let mut context = TcpTestContext {
            pool: Some(pool.clone()),
            ..TcpTestContext::default()
        };
        let mut regions = RegionTable::new(1);
        let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
        for (key, access) in [(READ_WRITE_KEY, both), (READ_ONLY_KEY, Access::REMOTE_READ)] {
            let memory = Arc::new(LocalMemory::new(room).unwrap());
            regions.insert(memory, access, Some(key), false).unwrap();
        }
        context.regions = Some(regions);
        let mut reader = FrameReader::new(order);
        reader.enable_rma_target(EpId(0), true, false);
        Self {
            rx: RxQueue::new(EpId(0), budget, pool),
            reader,
            context,
            last_op_index: 0,
        }
    }

    /// The same where RXM is spoken, and packets must quote this.
    pub(crate) fn rxm(budget: usize, connection: u32) -> Self {
        Self::new(ByteOrder::NATIVE, budget).into_rxm(connection)
    }

    /// The same where RXM is spoken.
    pub(crate) fn into_rxm(self, connection: u32) -> Self {
        let mut inbox = FrameReader::with_rxm(ByteOrder::NATIVE, RxmReceiver::new(connection));
        inbox.enable_rma_target(EpId(0), true, false);
        Self {
            reader: inbox,
            ..self
        }
    }

    /// An operation that sends these bytes.
    pub(crate) fn new_send_op(&mut self, bytes: &[u8]) -> OpKey {
        self.last_op_index += 1;
        let op = OpKey {
            index: self.last_op_index,
            generation: 0,
        };
        self.context.bufs.insert(op, AnyBuf::Vec(bytes.to_vec()));
        op
    }

    /// An operation whose message of so many bytes the peer may read.
    pub(crate) fn start_rendezvous(&mut self, len: usize) -> OpKey {
        let op = self.new_send_op(&vec![1; len]);
        self.reader
            .responses
            .rendezvous
            .add(op, None, len, &self.context);
        op
    }

    pub(crate) fn read(&mut self, bytes: &[u8]) -> Result<ReadOutcome, ProtocolViolation> {
        self.reader
            .read(bytes, PEER, &mut self.rx, &mut self.context)
    }

    pub(crate) fn would_read_held(&mut self, bytes: &[u8]) -> bool {
        self.reader
            .can_resume(bytes, PEER, &self.rx, &mut self.context)
    }

    /// Posts a receive with a buffer of this size, or with one that grows.
    pub(crate) fn post_recv(&mut self, spec: RecvSpec, room: Option<usize>) -> OpKey {
        self.last_op_index += 1;
        let op = OpKey {
            index: self.last_op_index,
            generation: 0,
        };
        let pooled = || AnyBuf::Pooled(PooledBuf::empty(self.context.pool.as_ref().unwrap()));
        self.context.bufs.insert(
            op,
            room.map_or_else(pooled, |room| AnyBuf::Vec(Vec::with_capacity(room))),
        );
        self.rx.post(&mut self.context, op, spec);
        op
    }

    /// An operation of this side, with a buffer that takes what is answered.
    fn new_op(&mut self) -> OpKey {
        self.last_op_index += 1;
        let op = OpKey {
            index: self.last_op_index,
            generation: 0,
        };
        self.context
            .bufs
            .insert(op, AnyBuf::Vec(Vec::with_capacity(1 << 20)));
        op
    }

    /// This side has asked for so many bytes.
    pub(crate) fn expect_read(&mut self, len: usize) -> OpKey {
        let op = self.new_op();
        self.reader
            .pending
            .expect_read_response(op, tx_op(OpKind::Read, len), len);
        op
    }

    /// This side has written so many bytes.
    pub(crate) fn expect_write_ack(&mut self, len: usize) -> OpKey {
        let op = self.new_op();
        self.reader
            .pending
            .expect_ack(op, tx_op(OpKind::Write, len), len, &mut self.context);
        op
    }

    /// This side has asked for an atomic operation on so many bytes, which has this number.
    pub(crate) fn expect_atomic(&mut self, kind: OpKind, len: usize) -> (OpKey, u64) {
        let op = self.new_op();
        (
            op,
            self.reader
                .pending
                .expect_atomic_response(op, tx_op(kind, len), len),
        )
    }

    /// Bytes of the memory of this key.
    pub(crate) fn region_bytes(&self, key: u64) -> Vec<u8> {
        let mut bytes = vec![0; REGION_LEN];
        let region = self.context.region(key).expect("a region");
        region.memory.read(0, &mut bytes);
        bytes
    }

    /// What this side answers, when everything leaves at once.
    pub(crate) fn take_responses(
        &mut self,
        outbox: &mut FrameWriter,
        most: usize,
    ) -> Result<(Vec<u8>, ResponseStatus), ProtocolViolation> {
        let mut bytes = Vec::new();
        loop {
            let replying = self.reader.responses.write_responses(
                outbox,
                (most, usize::MAX),
                PEER,
                &mut self.context,
            )?;
            let pending = outbox.pending().len();
            bytes.extend_from_slice(outbox.pending());
            outbox.advance(pending);
            if replying != ResponseStatus::WriterFull || pending == 0 {
                return Ok((bytes, replying));
            }
        }
    }

    pub(crate) fn outcome(&self, op: OpKey) -> Option<&Outcome> {
        self.context.outcomes.get(&op)
    }

    /// What a receive that has ended well has received.
    pub(crate) fn received(&self, op: OpKey) -> (Transfer, &[u8]) {
        let outcome = self.outcome(op).expect("has ended");
        assert_eq!(outcome.error, None);
        (
            outcome.transfer,
            &self.context.bufs[&op].bytes()[..outcome.transfer.len],
        )
    }
}

/// An operation on memory of a peer.
fn tx_op(kind: OpKind, len: usize) -> TxOp {
    let peer = AddressTable::new().insert("tcp://127.0.0.1:1".parse().unwrap());
    TxOp::one_sided(
        kind,
        peer,
        RmaIov {
            key: READ_WRITE_KEY,
            offset: 0,
            len,
            atomic: None,
        },
    )
}

impl EngineContext for TcpTestContext {
    fn payload(&self, op: OpKey) -> Payload<'_> {
        self.bufs[&op].payload()
    }
    fn begin_fill(&mut self, op: OpKey, len: usize) -> Result<usize> {
        let buf = self.bufs.get_mut(&op).unwrap();
        buf.begin_fill(len)?;
        Ok(buf.recv_capacity())
    }
    fn write_at(
        &mut self,
        op: OpKey,
        at: usize,
        source: &dyn CopySource,
        from: usize,
        count: usize,
    ) {
        self.bufs
            .get_mut(&op)
            .unwrap()
            .write_at(at, source, from, count);
    }
    fn give_buffered(&mut self, op: OpKey, bytes: PooledBuf) -> usize {
        let placed = bytes.len().min(self.begin_fill(op, bytes.len()).unwrap());
        self.write_at(op, 0, &&bytes[..], 0, placed);
        placed
    }
    fn take_received(&mut self, _: OpKey, _: usize) -> PooledBuf {
        unreachable!("nobody abandons a receive here")
    }
    fn complete(&mut self, op: OpKey, outcome: Outcome) {
        assert!(
            self.outcomes.insert(op, outcome).is_none(),
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
    fn on_remote_access(
        &mut self,
        _: EpId,
        key: u64,
        deed: RemoteAccess,
        transfer: Transfer,
    ) -> bool {
        if self.cq_full && transfer.data.is_some() {
            return false;
        }
        self.remote_accesses.push((key, deed, transfer));
        true
    }
    fn fi_addr_of(&self, _: EpId, _: &Address) -> Option<FiAddr> {
        None
    }
    fn peer_connected(&mut self, _: EpId, _: &Address, _: Option<Incarnation>) -> Option<FiAddr> {
        None
    }
    fn peer_disconnected(&mut self, _: EpId, _: Option<FiAddr>) {}
    fn departing_address(&self, _: FiAddr) -> Option<Address> {
        None
    }
}
