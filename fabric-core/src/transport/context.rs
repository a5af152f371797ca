//! What the engine offers to transports and receive queues.

use std::convert::Infallible;

use crate::address::{Address, FiAddr};
use crate::buf::{AnyBuf, CopySource, Payload, PooledBuf};
use crate::completion::{Outcome, Transfer};
use crate::error::Result;
use crate::event::EventKind;
use crate::matching::{Envelope, PeerKey};
use crate::mr::Region;

use crate::rx::RxQueue;

use super::{Connected, EpId, OpKey, RemoteAccess, RmaIov, RmaIovId};

/// Identifies one endpoint among all that have had its address: an endpoint opened there later has
/// another incarnation. The transport chooses the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Incarnation(pub u128);

/// Result of splitting a receive for one message off a multi-receive (`FI_MULTI_RECV`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MultiRecvSplit {
    /// A receive with part of the buffer.
    Part(OpKey),
    /// The last receive with part of the buffer: the multi-receive must leave the queue.
    Last(OpKey),
    /// No receive yet: the completion queue is full. The message must wait where it is.
    CqFull,
    /// No receive: the message does not fit into the rest of the buffer, or the multi-receive has
    /// ended. The multi-receive must leave the queue; the next receive may take the message.
    Exhausted,
}

/// Delivers *plain* messages of one peer to the receives at the head of a queue. A plain message is
/// whole, and has no tag, CQ data or ack request.
///
/// The engine looks up what the messages have in common once, when the run
/// [begins](super::EndpointContext::begin_plain_run), and reports them together when the run is dropped.
pub trait PlainRun {
    /// Delivers the next message. Returns false if the first receive does not accept the message,
    /// or needs more than a copy of it: the message is delivered with
    /// [`EndpointContext::deliver`](super::EndpointContext::deliver) after the run.
    fn deliver(&mut self, bytes: &(impl CopySource + Copy)) -> bool;
}

/// For an engine whose runs never begin.
impl PlainRun for Infallible {
    fn deliver(&mut self, _: &(impl CopySource + Copy)) -> bool {
        match *self {}
    }
}

/// Services of the engine during a call. A transport reaches them through an
/// [`EndpointContext`](super::EndpointContext).
pub trait EngineContext: Sized {
    /// A run of plain messages.
    type PlainRun<'a>: PlainRun
    where
        Self: 'a;

    /// Begins a run of plain messages of one peer, given by its key and its address handle. `None`
    /// if each message must be delivered by itself.
    fn begin_plain_run<'a>(
        &'a mut self,
        rx: &'a mut RxQueue,
        peer: (PeerKey, Option<FiAddr>),
    ) -> Option<Self::PlainRun<'a>>;

    /// Returns the payload of a send operation.
    fn payload(&self, op: OpKey) -> Payload<'_>;

    /// Returns whether the payload of a send operation is in host memory that another process may
    /// read. A custom buffer may be device memory.
    fn is_host_memory(&self, op: OpKey) -> bool {
        let _ = op;
        true
    }

    /// Takes the buffer of an operation while the kernel reads its bytes in place, possibly after
    /// the operation has ended. Until the buffer is [returned](EngineContext::return_buffer), the
    /// operation has no payload, and its completion is deferred, because the completion returns the
    /// buffer to the program. `None` if the engine does not give buffers away.
    fn take_buffer(&mut self, op: OpKey) -> Option<AnyBuf> {
        let _ = op;
        None
    }

    /// Returns a buffer taken with [`take_buffer`](EngineContext::take_buffer), which the kernel no
    /// longer reads. The operation may have ended meanwhile.
    fn return_buffer(&mut self, op: OpKey, buf: AnyBuf) {
        let _ = (op, buf);
    }

    /// Returns the remote ranges of a write or read that has several. The payload is written to
    /// them, or read from them, in this order. All of them must be checked before the first byte
    /// moves.
    fn rma_iovs(&self, id: RmaIovId) -> &[RmaIov] {
        let _ = id;
        &[]
    }

    /// Begins to fill a receive with a message of `len` bytes, and reserves memory if the buffer of
    /// the receive grows; returns how many bytes the receive accepts.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    fn begin_fill(&mut self, op: OpKey, len: usize) -> Result<usize>;

    /// Copies `count` of the `bytes`, from offset `from`, into the receive's buffer at offset `at`.
    fn write_at(&mut self, op: OpKey, at: usize, bytes: &dyn CopySource, from: usize, count: usize);

    /// Delivers a whole message to this receive: fills and completes it in one call.
    fn deliver(&mut self, op: OpKey, envelope: &Envelope, bytes: &impl CopySource) {
        match self.begin_fill(op, envelope.len) {
            Ok(accepted) => {
                let placed = accepted.min(envelope.len);
                self.write_at(op, 0, bytes, 0, placed);
                self.complete(op, Outcome::received(envelope, placed));
            }
            Err(error) => {
                self.complete(op, Outcome::partial(Transfer::received(envelope, 0), error));
            }
        }
    }

    /// Splits off the share of a multi-receive for this message.
    fn split_multi_recv(&mut self, op: OpKey, envelope: &Envelope) -> MultiRecvSplit {
        let _ = (op, envelope);
        MultiRecvSplit::Exhausted
    }

    /// Returns whether the completion queue of a multi-receive has room for a further message. If
    /// not, the engine makes another pass when there is room.
    fn has_cq_room(&mut self, op: OpKey) -> bool {
        let _ = op;
        false
    }

    /// Returns whether this receive accepts a message of this length as a loan.
    fn accepts_loan(&self, op: OpKey, len: usize) -> bool {
        let _ = (op, len);
        false
    }

    /// Gives the receive a whole buffered message; returns how many bytes it accepted. Nothing is
    /// copied if the receive has no buffer of its own.
    fn give_buffered(&mut self, op: OpKey, bytes: PooledBuf) -> usize;

    /// Gives the receive the first bytes of a message of `len` bytes that is still arriving;
    /// returns how many bytes of the message it accepts, and how many are in its buffer. Nothing is
    /// copied if the receive has no buffer of its own.
    ///
    /// # Errors
    /// Those of [`begin_fill`](EngineContext::begin_fill).
    fn adopt_partial(&mut self, op: OpKey, bytes: PooledBuf, len: usize) -> Result<(usize, usize)> {
        let accepted = self.begin_fill(op, len)?;
        let placed = bytes.len().min(accepted);
        self.write_at(op, 0, &&bytes[..], 0, placed);
        Ok((accepted, placed))
    }

    /// Takes the first `filled` bytes of the message from the buffer of a detached receive.
    fn take_received(&mut self, op: OpKey, filled: usize) -> PooledBuf;

    /// Notes that the transport no longer needs the payload of the operation, because the kernel or
    /// the peer has the payload. The operation has not completed: it waits for the peer's response.
    fn on_payload_sent(&mut self, op: OpKey) {
        let _ = op;
    }

    /// Posts a receive again whose message was lost: it waits for another message, with none of
    /// the lost bytes and its original buffer size.
    fn repost(&mut self, op: OpKey) {
        let _ = op;
    }

    /// Discards a part of a multi-receive, [split off](EngineContext::split_multi_recv) for a
    /// message that was lost: the part ends without a completion.
    fn discard_part(&mut self, op: OpKey) {
        let _ = op;
    }

    /// Completes the operation.
    fn complete(&mut self, op: OpKey, outcome: Outcome);

    /// Completes a send of `len` bytes with this tag successfully.
    fn complete_send(&mut self, op: OpKey, len: usize, tag: Option<u64>) {
        self.complete(op, Outcome::ok(Transfer::sent(len, tag)));
    }

    /// Notes that the call has left work that waits for a peer or for a further pass. If the
    /// doorbells are armed, the engine must arm them again, which polls once more.
    fn request_rearm(&mut self) {}

    /// Notes that further passes are needed, even if no task of this process waits. The transport
    /// calls this method in every pass after which another one is needed.
    fn request_progress(&mut self) {}

    /// Reports an event of the endpoint.
    fn event(&mut self, ep: EpId, event: EventKind);

    /// Reports that a connection ended while the peer held this number of loans. The memory of
    /// these loans is not reused.
    fn loans_lost(&mut self, _ep: EpId, _peer: &Address, _loans: usize) {}

    /// Returns the address of the peer with this handle.
    ///
    /// # Errors
    /// [`Error::StaleAddress`](crate::Error::StaleAddress);
    /// [`Error::PeerGone`](crate::Error::PeerGone) for an auto-inserted handle whose peer is gone
    /// while another peer has its address.
    fn address_of(&self, ep: EpId, addr: FiAddr) -> Result<Address>;

    /// Returns the region with this key in the domain.
    fn region(&self, key: u64) -> Option<&Region>;

    /// Reports an access of a peer, through this endpoint, to the region with this key. The
    /// transport reports accesses with CQ data, all accesses to a region with
    /// [`rma_events`](Region::rma_events), and all accesses if the info of the endpoint has
    /// [`Caps::RMA_EVENT`](crate::flags::Caps::RMA_EVENT), which the engine removes unless a
    /// counter counts these accesses. Returns false when the completion queue is full: the
    /// transport must retry.
    fn on_remote_access(
        &mut self,
        ep: EpId,
        key: u64,
        access: RemoteAccess,
        transfer: Transfer,
    ) -> bool;

    /// Returns the incarnation behind a handle. `None` for a handle that the program inserted,
    /// which stands for any endpoint at the address; an auto-inserted handle stands for the peer
    /// that connected.
    fn incarnation_of(&self, ep: EpId, addr: FiAddr) -> Option<Incarnation> {
        let _ = (ep, addr);
        None
    }

    /// Returns the handle that the program inserted for an address.
    fn fi_addr_of(&self, ep: EpId, address: &Address) -> Option<FiAddr>;

    /// Notes that a peer connected; returns its handle, which an auto-insert address vector assigns
    /// now. If `incarnation` is `None`, the transport does not know it, and a peer without
    /// another connection counts as new.
    fn peer_connected(
        &mut self,
        ep: EpId,
        address: &Address,
        incarnation: Option<Incarnation>,
    ) -> Option<FiAddr>;

    /// Notes that a connection has ended for whose peer
    /// [`peer_connected`](EngineContext::peer_connected) returned this handle. An auto-inserted
    /// handle is removed with the last connection, once no message of the peer is buffered.
    fn peer_disconnected(&mut self, ep: EpId, addr: Option<FiAddr>);

    /// Notes that a connection request waits at a passive endpoint, to be taken with
    /// [`ConnectionRequests::take_connreq`](super::ConnectionRequests::take_connreq).
    fn on_connreq(&mut self, ep: EpId, peer: &Address, data: &[u8]) {
        let _ = (ep, peer, data);
    }

    /// Reports the result of connecting an `FI_EP_MSG` endpoint to this peer. Called once per
    /// endpoint.
    fn on_connected(&mut self, ep: EpId, peer: &Address, result: Result<Connected>) {
        let _ = (ep, peer, result);
    }

    /// Returns a key for a peer that has connected to an endpoint with a shared receive context;
    /// the key is unique in the domain.
    fn new_shared_peer_key(&mut self, ep: EpId) -> PeerKey {
        let _ = ep;
        PeerKey::default()
    }

    /// Returns the address of a *departing* handle: an auto-inserted one whose last connection has
    /// ended, and that is removed once no message of its peer is buffered. `None` for other
    /// handles.
    fn departing_address(&self, addr: FiAddr) -> Option<Address>;
}
