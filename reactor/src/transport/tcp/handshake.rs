//! The handshake of a connection: the initiator sends a connection request with its address, and
//! the acceptor replies.
//!
//! If both sides connect at the same time, `resolve_simultaneous_connect` decides which connection
//! stays.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use fabric_core::tcp::{
    ByteOrder, CmKind, CmMessage, ConnectReply, ConnectRequest, MAX_CM_PRIVATE_DATA,
    ProtocolViolation, VendorExtension, WireProtocol,
};
use fabric_core::transport::{Interest, WaitSet};
use fabric_core::{Address, Error};
use rustix::io::Errno;

use super::connect_attempt::{ConnectAttempt, ConnectEvent, connect_error};
use super::socket::{ReadResult, TcpSocket, WriteResult};
use crate::sys::uring::{OpId, TimedOutcome};

/// Length of the longest control message, in bytes.
const MAX_CONTROL_LEN: usize = 32 + MAX_CM_PRIVATE_DATA;

/// An accepted socket whose connection request has not arrived yet.
pub(crate) struct InboundHandshake {
    /// The socket address and the address of the peer's end.
    pub(crate) peer_addr: SocketAddr,
    pub(crate) peer: Address,
    /// When the handshake times out.
    pub(crate) deadline: Instant,
    socket: TcpSocket,
    received: Vec<u8>,
}

/// A connection that this side has initiated and to which the peer has not replied yet.
pub(crate) struct OutboundHandshake {
    /// Position of the peer in the endpoint's list.
    pub(crate) peer: usize,
    /// When the handshake times out.
    deadline: Instant,
    socket: TcpSocket,
    /// The attempt to connect; `None` once the connection request was sent.
    attempt: Option<ConnectAttempt>,
    request: RequestPayload,
    received: Vec<u8>,
}

/// The connection request of a peer to an `FI_EP_RDM` endpoint.
pub(crate) struct ParsedRequest {
    /// The byte order of the peer's frames.
    pub(crate) byte_order: ByteOrder,
    pub(crate) request: ConnectRequest,
    /// The vendor extension of the request, if the peer is of the same implementation.
    pub(crate) vendor_extension: Option<VendorExtension>,
    /// Bytes that followed the request.
    pub(crate) trailing_bytes: Vec<u8>,
}

/// The payload of an outbound connection request.
pub(crate) enum RequestPayload {
    /// Of an `FI_EP_RDM` endpoint.
    Rdm(ConnectRequest, VendorExtension),
    /// Of a connected endpoint (`FI_EP_MSG`), with the program's private data.
    Msg(VendorExtension, Vec<u8>),
}

/// The outcome of one step of an outbound handshake.
#[derive(Debug)]
pub(crate) enum HandshakeStep {
    Pending,
    /// The deadline has passed without a reply.
    TimedOut,
    /// The reply to an `FI_EP_RDM` request, the peer's byte order, and the bytes that followed.
    Reply(ConnectReply, ByteOrder, Vec<u8>),
    /// The answer to an `FI_EP_MSG` request.
    Answer(ConnectAnswer),
    /// The handshake has failed.
    Failed(HandshakeError),
}

/// Why a handshake failed.
#[derive(Debug)]
pub(crate) enum HandshakeError {
    /// The connect failed.
    Unreachable(Errno),
    /// The peer closed the connection, or its socket cannot be watched.
    Disconnected,
    /// The peer's message violates the protocol.
    ProtocolViolation(&'static str),
}

/// The answer of a peer to an `FI_EP_MSG` request.
#[derive(Debug)]
pub(crate) enum ConnectAnswer {
    Accepted {
        byte_order: ByteOrder,
        /// The vendor extension of the peer's endpoint.
        vendor_extension: Option<VendorExtension>,
        private_data: Vec<u8>,
        /// Bytes that followed the answer.
        trailing_bytes: Vec<u8>,
    },
    Rejected {
        private_data: Vec<u8>,
    },
}

impl HandshakeError {
    /// Returns the error of the operations that waited for this peer.
    pub(crate) fn into_error(self, from: SocketAddr, (peer, to): (&Address, SocketAddr)) -> Error {
        match self {
            Self::Unreachable(errno) => connect_error(from, (peer, to), errno),
            Self::Disconnected => Error::PeerGone(peer.clone()),
            Self::ProtocolViolation(what) => Error::Protocol {
                peer: peer.clone(),
                what: what.into(),
            },
        }
    }
}

impl InboundHandshake {
    pub(crate) fn new(
        socket: TcpSocket,
        (peer_addr, peer): (SocketAddr, Address),
        deadline: Instant,
    ) -> Self {
        Self {
            peer_addr,
            peer,
            deadline,
            socket,
            received: Vec::new(),
        }
    }

    pub(crate) fn watch(&mut self, wait_set: &Arc<dyn WaitSet>, token: u64) -> Result<(), Error> {
        self.socket.watch(wait_set, token, Interest::Read)
    }

    pub(crate) fn into_socket(self) -> TcpSocket {
        self.socket
    }

    /// Reads the connection request to an `FI_EP_RDM` endpoint; `None` until all of it has arrived.
    ///
    /// # Errors
    /// The handshake has failed, and the caller removes it. `Some` is the error to report as an
    /// event; `None` if the peer has closed the connection without a complete request.
    pub(crate) fn poll(&mut self) -> Result<Option<ParsedRequest>, Option<Error>> {
        let Some((control, trailing_bytes)) = self.read_request()? else {
            return Ok(None);
        };
        match ConnectRequest::decode(control.private_data()) {
            Ok(request) => Ok(Some(ParsedRequest {
                byte_order: control.byte_order,
                request,
                vendor_extension: control.vendor_extension,
                trailing_bytes,
            })),
            Err(ProtocolViolation(what)) => {
                self.send_control(
                    CmKind::Reject,
                    None,
                    &ConnectRequest::reject_undecodable(control.private_data()),
                );
                Err(Some(self.rejection(what)))
            }
        }
    }

    /// Reads a connection request and the bytes that followed it; `None` until all of it has
    /// arrived.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub(crate) fn read_request(&mut self) -> Result<Option<(CmMessage, Vec<u8>)>, Option<Error>> {
        let has_ended = match read_control(&mut self.socket, &mut self.received) {
            ReadResult::WouldBlock => return Ok(None),
            ReadResult::Bytes(_) => false,
            ReadResult::Eof | ReadResult::Failed => true,
        };
        match CmMessage::decode(&self.received) {
            Ok(Some((control, len))) if control.kind == CmKind::Request => {
                Ok(Some((control, self.received.split_off(len))))
            }
            Ok(Some(_)) => Err(Some(self.rejection("unsolicited connect response"))),
            Err(violation) => Err(Some(self.rejection(violation.0))),
            Ok(None) if has_ended => Err(None),
            Ok(None) => Ok(None),
        }
    }

    /// Returns the error that reports why this connection was rejected.
    pub(crate) fn rejection(&self, what: &str) -> Error {
        Error::Protocol {
            peer: self.peer.clone(),
            what: what.into(),
        }
    }

    /// Sends a control message. Returns false if the socket does not accept all of it.
    pub(crate) fn send_control(
        &self,
        kind: CmKind,
        vendor_extension: Option<VendorExtension>,
        private_data: &[u8],
    ) -> bool {
        send_control(&self.socket, kind, vendor_extension, private_data)
    }
}

impl OutboundHandshake {
    pub(crate) fn new(
        (peer, request): (usize, RequestPayload),
        socket: TcpSocket,
        deadline: Instant,
        attempt: ConnectAttempt,
    ) -> Self {
        Self {
            peer,
            deadline,
            socket,
            attempt: Some(attempt),
            request,
            received: Vec::new(),
        }
    }

    /// Returns whether the connection request was not sent yet.
    pub(crate) fn is_connecting(&self) -> bool {
        self.attempt.is_some()
    }

    /// Returns the deadline for the endpoint's timer; `None` while io_uring connects, when the
    /// kernel enforces the deadline.
    pub(crate) fn local_deadline(&self) -> Option<Instant> {
        let is_in_uring = self
            .attempt
            .as_ref()
            .is_some_and(ConnectAttempt::is_in_uring);
        (!is_in_uring).then_some(self.deadline)
    }

    /// Returns whether this side's socket is the other end of a connection that was accepted from
    /// this address.
    pub(crate) fn connects_from(&self, from: SocketAddr) -> bool {
        self.socket.connects_from(from)
    }

    /// Returns the protocol of the connection request.
    pub(crate) fn protocol(&self) -> WireProtocol {
        match &self.request {
            RequestPayload::Rdm(request, _) => request.protocol(),
            RequestPayload::Msg(..) => WireProtocol::Native,
        }
    }

    pub(crate) fn into_socket(self) -> TcpSocket {
        self.socket
    }

    /// Continues the handshake after the socket was ready.
    pub(crate) fn poll(&mut self, wait_set: &Arc<dyn WaitSet>, token: u64) -> HandshakeStep {
        match &self.attempt {
            // A stale readiness event of an earlier socket under the same token.
            Some(attempt) if attempt.is_in_uring() => HandshakeStep::Pending,
            Some(_) => self.send_request(wait_set, token),
            None => self.read_response(),
        }
    }

    /// Continues the handshake after io_uring has completed the attempt to connect; `None` if the
    /// completion is of another attempt.
    pub(crate) fn on_uring_connect(
        &mut self,
        completion: (OpId, TimedOutcome),
        wait_set: &Arc<dyn WaitSet>,
        token: u64,
    ) -> Option<HandshakeStep> {
        let attempt = self.attempt.as_mut()?;
        Some(
            match attempt.on_uring_completion(&mut self.socket, completion, (wait_set, token))? {
                ConnectEvent::Completed => self.send_request(wait_set, token),
                ConnectEvent::Failed(errno) => {
                    HandshakeStep::Failed(HandshakeError::Unreachable(errno))
                }
                ConnectEvent::TimedOut => HandshakeStep::TimedOut,
                ConnectEvent::FellBack => HandshakeStep::Pending,
                ConnectEvent::WatchFailed => HandshakeStep::Failed(HandshakeError::Disconnected),
            },
        )
    }

    /// Sends the connection request, if the socket is connected.
    fn send_request(&mut self, wait_set: &Arc<dyn WaitSet>, token: u64) -> HandshakeStep {
        match self.socket.check_connected() {
            Ok(true) => {}
            Ok(false) => {
                let is_watched = self.socket.watch(wait_set, token, Interest::Write).is_ok();
                return if is_watched {
                    HandshakeStep::Pending
                } else {
                    HandshakeStep::Failed(HandshakeError::Disconnected)
                };
            }
            Err(errno) => return HandshakeStep::Failed(HandshakeError::Unreachable(errno)),
        }
        self.attempt = None;
        let is_sent = match &self.request {
            RequestPayload::Rdm(request, vendor_extension) => send_control(
                &self.socket,
                CmKind::Request,
                request.vendor_extension(*vendor_extension),
                &request.private_data(),
            ),
            RequestPayload::Msg(vendor_extension, private_data) => send_control(
                &self.socket,
                CmKind::Request,
                Some(*vendor_extension),
                private_data,
            ),
        };
        if !is_sent || self.socket.watch(wait_set, token, Interest::Read).is_err() {
            return HandshakeStep::Failed(HandshakeError::Disconnected);
        }
        HandshakeStep::Pending
    }

    /// Reads the peer's response; pending until all of it has arrived.
    fn read_response(&mut self) -> HandshakeStep {
        let has_ended = match read_control(&mut self.socket, &mut self.received) {
            ReadResult::WouldBlock => return HandshakeStep::Pending,
            ReadResult::Bytes(_) => false,
            ReadResult::Eof | ReadResult::Failed => true,
        };
        let (control, len) = match CmMessage::decode(&self.received) {
            Ok(Some(whole)) => whole,
            Ok(None) if has_ended => return HandshakeStep::Failed(HandshakeError::Disconnected),
            Ok(None) => return HandshakeStep::Pending,
            Err(violation) => {
                return HandshakeStep::Failed(HandshakeError::ProtocolViolation(violation.0));
            }
        };
        let request = match &self.request {
            RequestPayload::Rdm(request, _) => request,
            RequestPayload::Msg(..) => return self.connect_answer(&control, len),
        };
        match request.on_reply(&control) {
            Ok(reply) => {
                HandshakeStep::Reply(reply, control.byte_order, self.received.split_off(len))
            }
            Err(violation) => HandshakeStep::Failed(HandshakeError::ProtocolViolation(violation.0)),
        }
    }

    /// Interprets the response to an `FI_EP_MSG` request.
    fn connect_answer(&mut self, control: &CmMessage, len: usize) -> HandshakeStep {
        match control.kind {
            CmKind::Request => HandshakeStep::Failed(HandshakeError::ProtocolViolation(
                "connection request instead of a response",
            )),
            CmKind::Reject => HandshakeStep::Answer(ConnectAnswer::Rejected {
                private_data: control.private_data().to_vec(),
            }),
            CmKind::Accept => {
                let trailing_bytes = self.received.split_off(len);
                let (byte_order, vendor_extension, private_data) = (
                    control.byte_order,
                    control.vendor_extension,
                    control.private_data().to_vec(),
                );
                HandshakeStep::Answer(ConnectAnswer::Accepted {
                    byte_order,
                    vendor_extension,
                    private_data,
                    trailing_bytes,
                })
            }
        }
    }
}

/// Reads more of a control message, and appends it to `bytes`; may read beyond the message's end.
fn read_control(socket: &mut TcpSocket, bytes: &mut Vec<u8>) -> ReadResult {
    let mut scratch = [0; MAX_CONTROL_LEN];
    let scratch = &mut scratch[..MAX_CONTROL_LEN - bytes.len().min(MAX_CONTROL_LEN - 1)];
    let received = socket.recv(scratch);
    if let ReadResult::Bytes(count) = received {
        bytes.extend_from_slice(&scratch[..count]);
    }
    received
}

/// Sends a control message with one call. Returns false if the private data is too long or the
/// socket does not accept all bytes; a socket that has sent nothing has room for a control message.
pub(crate) fn send_control(
    socket: &TcpSocket,
    kind: CmKind,
    vendor_extension: Option<VendorExtension>,
    private_data: &[u8],
) -> bool {
    let Some(control) = CmMessage::new(kind, private_data) else {
        return false;
    };
    let bytes = control.with_vendor_extension(vendor_extension).encode();
    socket.send(&[IoSlice::new(&bytes)]) == WriteResult::Bytes(bytes.len())
}
