//! What the engine offers to transports and receive queues.

use crate::address::{Address, FiAddr};
use crate::buf::{AnyBuf, Payload};
use crate::completion::{Outcome, Transfer};
use crate::error::Result;
use crate::event::EventKind;
use crate::mr::Region;
use crate::rx::{Incarnation, RxEngine};

use super::{Connected, EpId, OpKey, RemoteAccess, RmaIov, RmaIovId};

/// Services of the engine during a call. A transport reaches them through an
/// [`EndpointContext`](super::EndpointContext), or directly in calls for all endpoints.
pub trait EngineContext: RxEngine + Sized {
    /// Returns the payload of a send operation.
    fn payload(&self, op: OpKey) -> Payload<'_>;

    /// Returns whether the payload of a send operation is in host memory that another process may
    /// read. A custom buffer may be device memory.
    fn is_host_memory(&self, _op: OpKey) -> bool {
        true
    }

    /// Takes the buffer of an operation while the kernel reads its bytes in place, possibly after
    /// the operation has ended. Until the buffer is [returned](EngineContext::return_buffer), the
    /// operation has no payload, and its completion is deferred, because the completion returns the
    /// buffer to the program. `None` if the engine does not give buffers away.
    fn take_buffer(&mut self, _op: OpKey) -> Option<AnyBuf> {
        None
    }

    /// Returns a buffer taken with [`take_buffer`](EngineContext::take_buffer), which the kernel no
    /// longer reads. The operation may have ended meanwhile.
    fn return_buffer(&mut self, _op: OpKey, _buf: AnyBuf) {}

    /// Returns the remote ranges of a write or read that has several. The payload is written to
    /// them, or read from them, in this order. All of them must be checked before the first byte
    /// moves.
    fn rma_iovs(&self, _id: RmaIovId) -> &[RmaIov] {
        &[]
    }

    /// Notes that the transport no longer needs the payload of the operation, because the kernel or
    /// the peer has the payload. The operation has not completed: it waits for the peer's response.
    fn on_payload_sent(&mut self, _op: OpKey) {}

    /// Completes a send of `len` bytes with this tag successfully.
    fn complete_send(&mut self, op: OpKey, len: usize, tag: Option<u64>) {
        self.complete(op, Outcome::ok(Transfer::sent(len, tag)));
    }

    /// Notes that further passes are needed, even if no task of this process waits. The transport
    /// calls this method in every pass after which another one is needed.
    fn request_pass(&mut self) {}

    /// Reports an event of the endpoint.
    fn event(&mut self, ep: EpId, event: EventKind);

    /// Reports that a connection ended while the peer held this number of loans. The memory of
    /// these loans is not reused.
    fn loans_lost(&mut self, _ep: EpId, _peer: &Address, _loans: usize) {}

    /// Returns the region with this key in the domain, unless the region is bound to another
    /// endpoint.
    fn region(&self, ep: EpId, key: u64) -> Option<Region>;

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

    /// Returns a number that grows when an access that waits may go on: a region was unlocked or
    /// closed, or a completion queue that was full has room.
    fn access_changes(&self) -> u64;

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
    fn on_connreq(&mut self, _ep: EpId, _peer: &Address, _data: &[u8]) {}

    /// Reports the result of connecting an `FI_EP_MSG` endpoint to this peer. Called once per
    /// endpoint.
    fn on_connected(&mut self, _ep: EpId, _peer: &Address, _result: Result<Connected>) {}
}
