//! Connection requests of clients at a passive endpoint.

use fabric_core::Address;
use fabric_core::transport::ConnReqHandle;

use super::cm::{self, CmEndpoint};
use super::segment::Segment;
use super::socket::{PeerCredentials, ShmSocket};

/// A valid request.
pub(super) struct CheckedRequest {
    /// Name of the client's endpoint.
    pub(super) peer: Address,
    pub(super) client: CmEndpoint,
    pub(super) credentials: PeerCredentials,
    /// Segment with the ring from the client to the server.
    pub(super) segment: Segment,
    /// Random number that the client sends over its reverse socket.
    pub(super) nonce: u64,
}

/// A request with both sockets of the client.
pub(super) struct PendingRequest {
    /// Socket of the direction from the client to the server.
    pub(super) socket: ShmSocket,
    /// Socket of the direction from the server to the client.
    pub(super) reverse: ShmSocket,
    pub(super) request: CheckedRequest,
    /// Name of the passive endpoint.
    pub(super) passive_name: Address,
}

/// The handle of a connection request; rejects the request when the handle is dropped. `None` once
/// the request was accepted or rejected.
pub(super) struct ShmConnReqHandle(Option<PendingRequest>);

impl ShmConnReqHandle {
    pub(super) fn new(pending: PendingRequest) -> Self {
        Self(Some(pending))
    }

    /// Takes the request to accept it. `None` if the client has disconnected, or in a forked child.
    pub(super) fn take_if_alive(mut self) -> Option<PendingRequest> {
        self.0.take_if(|pending| {
            pending.socket.in_original_process() && !pending.socket.has_hung_up()
        })
    }

    /// Rejects the request with private data, unless it was taken.
    fn send_reject(&mut self, data: &[u8]) {
        let pending = self.0.take();
        if let Some(pending) = pending.filter(|pending| pending.socket.in_original_process()) {
            cm::send_reject(&pending.socket, data);
        }
    }
}

impl ConnReqHandle for ShmConnReqHandle {
    fn reject(mut self: Box<Self>, data: &[u8]) {
        self.send_reject(data);
    }
}

impl Drop for ShmConnReqHandle {
    fn drop(&mut self) {
        self.send_reject(&[]);
    }
}
