//! A receive queue, and its engine context.

use std::sync::Arc;

use fabric_core::av::AddressTable;
use fabric_core::buf::{AnyBuf, Payload, PooledBuf};
use fabric_core::completion::{OpKind, Outcome, Transfer};
use fabric_core::event::EventKind;
use fabric_core::flags::Access;
use fabric_core::matching::{PeerKey, RecvSpec, TagMatch};
use fabric_core::mr::{LocalMemory, Region, RegionMemory, RegionTable};
use fabric_core::rx::{PartialId, RxQueue};
use fabric_core::tcp::rxm::RxmReceiver;
use fabric_core::tcp::{
    ByteOrder, FrameReader, FrameWriter, PendingRequests, ProtocolViolation, ReadOutcome,
    ResponseQueue, ResponseStatus, WireRmaIov,
};
use fabric_core::transport::{
    EndpointContext, EngineContext, EpId, Incarnation, OpKey, RemoteAccess, RmaIov, TxOp,
};
use fabric_core::{Address, FiAddr};

use crate::test_engine::TestEngine;

/// Matches messages with any tag.
pub(crate) const ANY_TAG: RecvSpec = RecvSpec {
    from: None,
    tag: Some(TagMatch {
        tag: 0,
        ignore: u64::MAX,
    }),
};
/// Matches untagged messages.
pub(crate) const UNTAGGED: RecvSpec = RecvSpec {
    from: None,
    tag: None,
};

/// Key and address handle of the sender.
pub(crate) const PEER: (PeerKey, Option<FiAddr>) = (PeerKey(1), None);

/// The receiving half of a connection, with its receive queue and engine context.
pub(crate) struct TcpReceiver {
    pub(crate) rx: RxQueue,
    pub(crate) reader: FrameReader,
    pub(crate) pending: PendingRequests,
    pub(crate) responses: ResponseQueue,
    pub(crate) context: TcpTestContext,
}

/// The engine context.
pub(crate) type TcpTestContext = TestEngine<TcpServices>;

/// What the engine context has besides the operations.
#[derive(Default)]
pub(crate) struct TcpServices {
    pub(crate) regions: Option<RegionTable>,
    /// Accesses reported to the owner of the regions.
    pub(crate) remote_accesses: Vec<(u64, RemoteAccess, Transfer)>,
    /// The completion queue has no room for events with CQ data.
    pub(crate) cq_full: bool,
}

/// Key of a region that peers may read and write.
pub(crate) const READ_WRITE_KEY: u64 = 7;
/// Key of a region that peers may only read.
pub(crate) const READ_ONLY_KEY: u64 = 8;
/// Length of each region in the RMA tests, in bytes.
pub(crate) const REGION_LEN: usize = 40_000;

impl TcpReceiver {
    /// Creates a receiver with this unexpected budget, in bytes.
    pub(crate) fn new(order: ByteOrder, budget: usize) -> Self {
        Self::with_region_len(order, budget, 200)
    }

    /// Creates a receiver with this unexpected budget, and `region_len` bytes of memory under each
    /// key.
    pub(crate) fn with_region_len(order: ByteOrder, budget: usize, region_len: usize) -> Self {
        let mut context = TcpTestContext::default();
        let mut regions = RegionTable::default();
        let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
        for (key, access) in [(READ_WRITE_KEY, both), (READ_ONLY_KEY, Access::REMOTE_READ)] {
            let memory = Arc::new(LocalMemory::new(region_len).unwrap());
            regions.insert(memory, 0, access, Some(key)).unwrap();
        }
        context.services.regions = Some(regions);
        let mut responses = ResponseQueue::default();
        responses.enable_rma_target(true, false);
        Self {
            rx: RxQueue::new(EpId(0), budget),
            reader: FrameReader::new(order),
            pending: PendingRequests::default(),
            responses,
            context,
        }
    }

    /// Creates the receiver of an RXM connection with this id.
    pub(crate) fn rxm(budget: usize, connection: u32) -> Self {
        Self::new(ByteOrder::NATIVE, budget).into_rxm(connection)
    }

    /// Turns the receiver into that of an RXM connection with this id.
    pub(crate) fn into_rxm(self, connection: u32) -> Self {
        let reader = FrameReader::with_rxm(ByteOrder::NATIVE, RxmReceiver::new(connection));
        Self { reader, ..self }
    }

    /// Adds an operation that sends these bytes.
    pub(crate) fn new_send_op(&mut self, bytes: &[u8]) -> OpKey {
        self.context.add_op(AnyBuf::Vec(bytes.to_vec()))
    }

    /// Adds an operation whose rendezvous message of `len` bytes the peer may read.
    pub(crate) fn start_rendezvous(&mut self, len: usize) -> OpKey {
        let op = self.new_send_op(&vec![1; len]);
        self.responses
            .rendezvous
            .add(op, None, len, &context_of(&mut self.rx, &mut self.context));
        op
    }

    pub(crate) fn read(&mut self, bytes: &[u8]) -> Result<ReadOutcome, ProtocolViolation> {
        self.reader.read(
            bytes,
            PEER,
            (&mut self.pending, &mut self.responses),
            &mut context_of(&mut self.rx, &mut self.context),
        )
    }

    /// Ends the reads of rendezvous messages; returns the messages that were being read.
    pub(crate) fn end_rendezvous_reads(&mut self) -> Vec<PartialId> {
        self.reader
            .end_rendezvous_reads(PEER, &mut context_of(&mut self.rx, &mut self.context))
    }

    /// Returns whether the blocked frame at the start of `bytes` can be accepted now.
    pub(crate) fn try_resume(&mut self, bytes: &[u8]) -> bool {
        self.reader.try_resume(
            bytes,
            PEER,
            &self.responses,
            &mut context_of(&mut self.rx, &mut self.context),
        )
    }

    /// Returns the next remote range of a rendezvous message to read.
    pub(crate) fn next_rendezvous_read(&mut self) -> Option<WireRmaIov> {
        self.reader.next_rendezvous_read(&mut self.pending)
    }

    /// Returns whether the frames that are set aside can be accepted now.
    pub(crate) fn try_resume_set_aside(&mut self) -> bool {
        let mut ctx = context_of(&mut self.rx, &mut self.context);
        self.reader.try_resume_set_aside(PEER, &mut ctx)
    }

    /// Posts a receive with a buffer of this capacity, or with one that grows.
    pub(crate) fn post_recv(&mut self, spec: RecvSpec, capacity: Option<usize>) -> OpKey {
        let pooled = || AnyBuf::Pooled(PooledBuf::empty());
        let buf =
            capacity.map_or_else(pooled, |capacity| AnyBuf::Vec(Vec::with_capacity(capacity)));
        let op = self.context.add_op(buf);
        self.rx.post(&mut self.context, op, spec);
        self.rx.end_next_held(&mut self.context);
        op
    }

    /// Adds an operation with a buffer for responses.
    fn new_op(&mut self) -> OpKey {
        let buf = AnyBuf::Vec(Vec::with_capacity(1 << 20));
        self.context.add_op(buf)
    }

    /// Adds a pending read of `len` bytes.
    pub(crate) fn expect_read(&mut self, len: usize) -> OpKey {
        let op = self.new_op();
        self.pending
            .expect_read_response(op, tx_op(OpKind::Read, len), len);
        op
    }

    /// Adds a pending write of `len` bytes.
    pub(crate) fn expect_write_ack(&mut self, len: usize) -> OpKey {
        let op = self.new_op();
        self.pending.expect_ack(
            op,
            tx_op(OpKind::Write, len),
            len,
            &mut context_of(&mut self.rx, &mut self.context),
        );
        op
    }

    /// Adds a pending atomic operation on `len` bytes; returns it with its id.
    pub(crate) fn expect_atomic(&mut self, kind: OpKind, len: usize) -> (OpKey, u64) {
        let op = self.new_op();
        (
            op,
            self.pending
                .expect_atomic_response(op, tx_op(kind, len), len),
        )
    }

    /// Returns the memory of the region with this key.
    pub(crate) fn memory_of(&self, key: u64) -> &dyn RegionMemory {
        let regions = self.context.services.regions.as_ref();
        let region = regions.and_then(|of| of.get(key)).expect("a region");
        &*region.memory
    }

    /// Returns the bytes of the region with this key.
    pub(crate) fn region_bytes(&self, key: u64) -> Vec<u8> {
        let mut bytes = vec![0; REGION_LEN];
        self.memory_of(key).read(0, &mut bytes);
        bytes
    }

    /// Returns the responses of this side, written as if all bytes were sent at once.
    pub(crate) fn take_responses(
        &mut self,
        writer: &mut FrameWriter,
        limit: usize,
    ) -> Result<(Vec<u8>, ResponseStatus), ProtocolViolation> {
        let mut bytes = Vec::new();
        loop {
            let status = self.responses.write_responses(
                writer,
                (limit, usize::MAX),
                PEER,
                &mut context_of(&mut self.rx, &mut self.context),
            )?;
            let pending = writer.pending().len();
            bytes.extend_from_slice(writer.pending());
            writer.advance(pending);
            if status != ResponseStatus::WriterFull || pending == 0 {
                return Ok((bytes, status));
            }
        }
    }

    pub(crate) fn outcome(&self, op: OpKey) -> Option<&Outcome> {
        self.context.outcome(op)
    }

    /// Returns transfer and bytes of a receive that has completed successfully.
    pub(crate) fn received(&self, op: OpKey) -> (Transfer, &[u8]) {
        let received = self.context.received(op);
        received.expect("the operation has completed")
    }
}

/// Returns the context of the only endpoint.
pub(crate) fn context_of<'a>(
    rx: &'a mut RxQueue,
    context: &'a mut TcpTestContext,
) -> EndpointContext<'a, TcpTestContext> {
    EndpointContext::new(EpId(0), rx, context)
}

/// Returns an operation on memory of a peer.
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
        self.buf(op).payload()
    }
    fn event(&mut self, _: EpId, _: EventKind) {}
    fn region(&self, _: EpId, key: u64) -> Option<Region> {
        self.services.regions.as_ref()?.get(key).cloned()
    }
    fn access_changes(&self) -> u64 {
        0
    }

    fn on_remote_access(
        &mut self,
        _: EpId,
        key: u64,
        access: RemoteAccess,
        transfer: Transfer,
    ) -> bool {
        if self.services.cq_full && transfer.data.is_some() {
            return false;
        }
        self.services.remote_accesses.push((key, access, transfer));
        true
    }
    fn peer_connected(&mut self, _: EpId, _: &Address, _: Option<Incarnation>) -> Option<FiAddr> {
        None
    }
    fn peer_disconnected(&mut self, _: EpId, _: Option<FiAddr>) {}
}
