//! Passive endpoints: they listen, and have inbound handshakes but no established connections.
//!
//! A connection request waits here until the program takes it. The connection of a taken request
//! belongs to no domain and is not watched, until the request is accepted or rejected.

use std::collections::VecDeque;

use fabric_core::info::Info;
use fabric_core::tcp::{ByteOrder, CmKind, VendorExtension};
use fabric_core::transport::{
    ConnReq, ConnReqHandle, ConnectionRequests, EndpointContext, EngineContext, EpId,
};
use fabric_core::{Address, Result};

use super::super::handshake::send_control;
use super::super::linger;
use super::super::socket::TcpSocket;
use super::accept::ListenerState;
use super::{EndpointKind, EndpointResources, TcpEndpoint};
use crate::transport::net::SocketConfig;

/// Maximum number of queued requests. Further connections wait in the kernel's backlog.
const MAX_PENDING_REQUESTS: usize = 128;

/// The queue of connection requests.
#[derive(Default)]
pub(super) struct ConnReqQueue(VecDeque<ConnReq>);

impl ConnReqQueue {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl EndpointKind {
    /// Returns whether this is a passive endpoint whose queue is full, so that accepting has to
    /// pause.
    pub(super) fn is_request_queue_full(&self) -> bool {
        matches!(self, Self::Passive(requests) if requests.len() >= MAX_PENDING_REQUESTS)
    }
}

impl TcpEndpoint {
    /// Opens a passive endpoint, which listens.
    pub(crate) fn open_passive(
        id: EpId,
        (info, at): (&Info, Option<&Address>),
        resources: EndpointResources,
    ) -> Result<Self> {
        Self::listening(
            id,
            EndpointKind::Passive(ConnReqQueue::default()),
            (info, at),
            resources,
        )
    }

    /// Reads the connection request of an inbound handshake, and queues the request.
    pub(super) fn read_connreq(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        connection_index: usize,
    ) {
        let Some(handshake) = self.connections.inbound_mut(connection_index) else {
            return;
        };
        let (control, trailing_bytes) = match handshake.read_request() {
            Ok(None) => return,
            Ok(Some(request)) => request,
            Err(error) => return self.remove_inbound(ctx, connection_index, error),
        };
        let Some(handshake) = self.connections.take_inbound(connection_index) else {
            return;
        };
        let peer = handshake.peer.clone();
        let mut socket = handshake.into_socket();
        socket.unwatch();
        let EndpointKind::Passive(requests) = &mut self.kind else {
            return;
        };
        let data = control.private_data().to_vec();
        ctx.on_connreq(&peer, &data);
        let (byte_order, vendor_extension) = (control.byte_order, control.vendor_extension);
        let handle = Box::new(TcpConnReqHandle {
            socket: Some(socket),
            byte_order,
            vendor_extension,
            trailing_bytes,
        });
        requests.0.push_back(ConnReq { peer, data, handle });
    }
}

/// A socket whose handshake has succeeded.
pub(super) struct AcceptedConnection {
    pub(super) socket: TcpSocket,
    pub(super) byte_order: ByteOrder,
    /// The vendor extension of the peer's endpoint.
    pub(super) vendor_extension: Option<VendorExtension>,
    /// Bytes that followed the peer's control message.
    pub(super) trailing_bytes: Vec<u8>,
}

/// The connection of a pending connection request.
pub(super) struct TcpConnReqHandle {
    /// `None` once the request was accepted or rejected.
    socket: Option<TcpSocket>,
    /// The byte order of the peer's frames.
    byte_order: ByteOrder,
    /// The vendor extension of the request.
    vendor_extension: Option<VendorExtension>,
    /// Bytes that followed the request.
    trailing_bytes: Vec<u8>,
}

impl TcpConnReqHandle {
    /// Applies the socket options of the accepting domain, on top of those of the passive endpoint.
    pub(super) fn apply_config(&self, config: &SocketConfig) -> Result<()> {
        self.socket
            .as_ref()
            .map_or(Ok(()), |socket| socket.apply_config(config))
    }

    /// Sends the accept with this private data, and with the vendor extension `own` of this side if
    /// the request had one. `None` if the accept could not be sent.
    pub(super) fn accept(
        mut self,
        own: VendorExtension,
        data: &[u8],
    ) -> Option<AcceptedConnection> {
        let socket = self.socket.take().filter(TcpSocket::in_original_process)?;
        let (byte_order, vendor_extension, trailing_bytes) = (
            self.byte_order,
            self.vendor_extension,
            std::mem::take(&mut self.trailing_bytes),
        );
        send_control(&socket, CmKind::Accept, vendor_extension.map(|_| own), data).then_some(
            AcceptedConnection {
                socket,
                byte_order,
                vendor_extension,
                trailing_bytes,
            },
        )
    }

    /// Rejects the request, unless it was accepted or rejected before.
    fn send_reject(&mut self, data: &[u8]) {
        if let Some(socket) = self.socket.take().filter(TcpSocket::in_original_process) {
            send_control(&socket, CmKind::Reject, None, data);
            linger::close_rejected(socket);
        }
    }
}

impl ConnReqHandle for TcpConnReqHandle {
    fn reject(mut self: Box<Self>, data: &[u8]) {
        self.send_reject(data);
    }
}

impl Drop for TcpConnReqHandle {
    fn drop(&mut self) {
        self.send_reject(&[]);
    }
}

impl<E: EngineContext> ConnectionRequests<E> for TcpEndpoint {
    /// Takes the oldest connection request, and resumes accepting if the queue has room again.
    fn take_connreq(&mut self, ctx: &mut EndpointContext<'_, E>) -> Option<ConnReq> {
        let EndpointKind::Passive(requests) = &mut self.kind else {
            return None;
        };
        let request = requests.0.pop_front()?;
        if requests.len() <= MAX_PENDING_REQUESTS / 2
            && self.listener_state == ListenerState::RequestQueueFull
        {
            self.resume_accept(ctx);
            // If the listener could not be watched, the timer retries.
            self.arm_timer();
        }
        Some(request)
    }
}
