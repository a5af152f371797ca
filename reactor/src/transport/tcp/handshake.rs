//! A connection before it is one: who asks says who it is, and is answered.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use fabric_core::tcp::{
    ByteOrder, CmKind, CmMessage, ConnectReply, ConnectRequest, MAX_CM_PRIVATE_DATA,
    ProtocolViolation, VendorExtension, WireProtocol,
};
use fabric_core::transport::{Interest, WaitSet};
use fabric_core::{Address, Error, Scheme};
use rustix::io::Errno;

use super::connect_attempt::{ConnectAttempt, ConnectEvent, connect_error};
use super::socket::{ReadResult, TcpSocket, WriteResult};
use crate::uring::{OpId, TimedOutcome};

/// Bytes of the longest control message.
const MAX_CONTROL_LEN: usize = 32 + MAX_CM_PRIVATE_DATA;

/// Somebody who has connected.
pub(crate) struct InboundHandshake {
    pub(crate) peer_addr: SocketAddr,
    /// When it has waited for too long.
    pub(crate) deadline: Instant,
    socket: TcpSocket,
    received: Vec<u8>,
}

/// A peer that this side asks.
pub(crate) struct OutboundHandshake {
    pub(crate) peer: usize,
    /// When it has waited for too long.
    deadline: Instant,
    socket: TcpSocket,
    /// Until it has been asked.
    attempt: Option<ConnectAttempt>,
    request: RequestPayload,
    received: Vec<u8>,
}

/// What somebody asks an endpoint that connects on demand.
pub(crate) struct ParsedRequest {
    /// In which order it writes.
    pub(crate) byte_order: ByteOrder,
    pub(crate) request: ConnectRequest,
    /// What it says of itself beside that.
    pub(crate) vendor_extension: Option<VendorExtension>,
    /// What came behind it.
    pub(crate) trailing_bytes: Vec<u8>,
}

/// What a peer is asked with.
pub(crate) enum RequestPayload {
    /// By an endpoint that connects on demand, and what that says of itself beside it.
    Rdm(ConnectRequest, VendorExtension),
    /// By one that has no other peer: what it says of itself, and what the program says.
    Msg(VendorExtension, Vec<u8>),
}

/// How far it has come.
#[derive(Debug)]
pub(crate) enum HandshakeStep {
    Pending,
    /// It has had its time.
    TimedOut,
    /// What the peer says to a question, in which order it writes, and what came behind it.
    Reply(ConnectReply, ByteOrder, Vec<u8>),
    /// What it says to a program.
    Answer(ConnectAnswer),
    /// It comes to nothing.
    Failed(HandshakeError),
}

/// Why a greeting comes to nothing.
#[derive(Debug)]
pub(crate) enum HandshakeError {
    /// Nobody was reached.
    Unreachable(Errno),
    /// The peer hung up, or cannot be listened to.
    Disconnected,
    /// What it says makes no sense.
    ProtocolViolation(&'static str),
}

/// What a peer that was asked has said.
#[derive(Debug)]
pub(crate) enum ConnectAnswer {
    Accepted {
        byte_order: ByteOrder,
        /// What the endpoint says of itself.
        vendor_extension: Option<VendorExtension>,
        private_data: Vec<u8>,
        /// What came behind the answer.
        trailing_bytes: Vec<u8>,
    },
    Rejected {
        private_data: Vec<u8>,
    },
}

impl HandshakeError {
    /// What whoever wanted to talk with this peer hears.
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
    pub(crate) fn new(socket: TcpSocket, peer_addr: SocketAddr, deadline: Instant) -> Self {
        Self {
            peer_addr,
            deadline,
            socket,
            received: Vec::new(),
        }
    }

    pub(crate) fn watch(&mut self, wait: &Arc<dyn WaitSet>, token: u64) -> Result<(), Error> {
        self.socket.watch(wait, token, Interest::Read)
    }

    pub(crate) fn into_socket(self) -> TcpSocket {
        self.socket
    }

    /// What it asks an endpoint with that connects on demand, once that is there. An error when it
    /// is to go, with what is worth telling.
    pub(crate) fn poll(&mut self) -> Result<Option<ParsedRequest>, Option<Error>> {
        let Some((control, rest)) = self.read_request()? else {
            return Ok(None);
        };
        match ConnectRequest::decode(control.private_data()) {
            Ok(question) => Ok(Some(ParsedRequest {
                byte_order: control.byte_order,
                request: question,
                vendor_extension: control.vendor_extension,
                trailing_bytes: rest,
            })),
            Err(ProtocolViolation(what)) => {
                self.send_control(
                    CmKind::Reject,
                    None,
                    &ConnectRequest::reject_undecodable(control.private_data()),
                );
                Err(self.rejection(what))
            }
        }
    }

    /// Its request, and what came behind it, once that is there.
    pub(crate) fn read_request(&mut self) -> Result<Option<(CmMessage, Vec<u8>)>, Option<Error>> {
        let is_over = match read_control(&self.socket, &mut self.received) {
            ReadResult::WouldBlock => return Ok(None),
            ReadResult::Bytes(_) => false,
            ReadResult::Eof | ReadResult::Failed => true,
        };
        match CmMessage::decode(&self.received) {
            Ok(Some((control, len))) if control.kind == CmKind::Request => {
                Ok(Some((control, self.received.split_off(len))))
            }
            Ok(Some(_)) => Err(self.rejection("an answer to no question")),
            Err(broken) => Err(self.rejection(broken.0)),
            Ok(None) if is_over => Err(None),
            Ok(None) => Ok(None),
        }
    }

    /// What is told of one that is to go.
    pub(crate) fn rejection(&self, what: &str) -> Option<Error> {
        let peer = Address::from_socket_addr(Scheme::Tcp, self.peer_addr).ok()?;
        Some(Error::Protocol {
            peer,
            what: what.into(),
        })
    }

    /// Answers; false when the peer does not hear it.
    pub(crate) fn send_control(
        &self,
        kind: CmKind,
        mark: Option<VendorExtension>,
        private: &[u8],
    ) -> bool {
        send_control(&self.socket, kind, mark, private)
    }
}

impl OutboundHandshake {
    pub(crate) fn new(
        (peer, request): (usize, RequestPayload),
        socket: TcpSocket,
        deadline: Instant,
        dialing: ConnectAttempt,
    ) -> Self {
        Self {
            peer,
            deadline,
            socket,
            attempt: Some(dialing),
            request,
            received: Vec::new(),
        }
    }

    /// Whether there is no connection yet, as far as this side knows: nobody there has heard of it.
    pub(crate) fn is_connecting(&self) -> bool {
        self.attempt.is_some()
    }

    /// When this side is to end it: while the ring has it, it is the kernel that does.
    pub(crate) fn local_deadline(&self) -> Option<Instant> {
        let is_in_ring = self
            .attempt
            .as_ref()
            .is_some_and(ConnectAttempt::is_in_uring);
        (!is_in_ring).then_some(self.deadline)
    }

    /// The dialect it is asked in.
    pub(crate) fn protocol(&self) -> WireProtocol {
        match &self.request {
            RequestPayload::Rdm(question, _) => question.protocol(),
            RequestPayload::Msg(..) => WireProtocol::Native,
        }
    }

    pub(crate) fn into_socket(self) -> TcpSocket {
        self.socket
    }

    /// Goes on after the socket was ready.
    pub(crate) fn poll(&mut self, wait: &Arc<dyn WaitSet>, token: u64) -> HandshakeStep {
        match &self.attempt {
            // What woke this side was meant for a socket that had its place before.
            Some(dialing) if dialing.is_in_uring() => HandshakeStep::Pending,
            Some(_) => self.send_request(wait, token),
            None => self.read_response(),
        }
    }

    /// Goes on after the ring has said something of the attempt to connect; nothing if that was
    /// another one.
    pub(crate) fn on_uring_connect(
        &mut self,
        what: (OpId, TimedOutcome),
        wait: &Arc<dyn WaitSet>,
        token: u64,
    ) -> Option<HandshakeStep> {
        let dialing = self.attempt.as_mut()?;
        Some(
            match dialing.on_uring_completion(&mut self.socket, what, (wait, token))? {
                ConnectEvent::Completed => self.send_request(wait, token),
                ConnectEvent::Failed(errno) => {
                    HandshakeStep::Failed(HandshakeError::Unreachable(errno))
                }
                ConnectEvent::TimedOut => HandshakeStep::TimedOut,
                ConnectEvent::FellBack => HandshakeStep::Pending,
                ConnectEvent::WatchFailed => HandshakeStep::Failed(HandshakeError::Disconnected),
            },
        )
    }

    /// Asks, if there is a connection.
    fn send_request(&mut self, wait: &Arc<dyn WaitSet>, token: u64) -> HandshakeStep {
        match self.socket.check_connected() {
            Ok(true) => {}
            Ok(false) => {
                let is_watched = self.socket.watch(wait, token, Interest::Write).is_ok();
                return if is_watched {
                    HandshakeStep::Pending
                } else {
                    HandshakeStep::Failed(HandshakeError::Disconnected)
                };
            }
            Err(errno) => return HandshakeStep::Failed(HandshakeError::Unreachable(errno)),
        }
        self.attempt = None;
        let said = match &self.request {
            RequestPayload::Rdm(question, mark) => send_control(
                &self.socket,
                CmKind::Request,
                question.vendor_extension(*mark),
                &question.private_data(),
            ),
            RequestPayload::Msg(mark, private) => {
                send_control(&self.socket, CmKind::Request, Some(*mark), private)
            }
        };
        if !said || self.socket.watch(wait, token, Interest::Read).is_err() {
            return HandshakeStep::Failed(HandshakeError::Disconnected);
        }
        HandshakeStep::Pending
    }

    /// What the peer says, once all of that is there.
    fn read_response(&mut self) -> HandshakeStep {
        let is_over = match read_control(&self.socket, &mut self.received) {
            ReadResult::WouldBlock => return HandshakeStep::Pending,
            ReadResult::Bytes(_) => false,
            ReadResult::Eof | ReadResult::Failed => true,
        };
        let (control, len) = match CmMessage::decode(&self.received) {
            Ok(Some(whole)) => whole,
            Ok(None) if is_over => return HandshakeStep::Failed(HandshakeError::Disconnected),
            Ok(None) => return HandshakeStep::Pending,
            Err(broken) => {
                return HandshakeStep::Failed(HandshakeError::ProtocolViolation(broken.0));
            }
        };
        let question = match &self.request {
            RequestPayload::Rdm(question, _) => question,
            RequestPayload::Msg(..) => return self.connect_answer(&control, len),
        };
        match question.on_reply(&control) {
            Ok(reply) => {
                HandshakeStep::Reply(reply, control.byte_order, self.received.split_off(len))
            }
            Err(broken) => HandshakeStep::Failed(HandshakeError::ProtocolViolation(broken.0)),
        }
    }

    /// What a peer says to a program.
    fn connect_answer(&mut self, control: &CmMessage, len: usize) -> HandshakeStep {
        match control.kind {
            CmKind::Request => HandshakeStep::Failed(HandshakeError::ProtocolViolation(
                "a question instead of an answer",
            )),
            CmKind::Reject => HandshakeStep::Answer(ConnectAnswer::Rejected {
                private_data: control.private_data().to_vec(),
            }),
            CmKind::Accept => {
                let rest = self.received.split_off(len);
                let (order, mark, private) = (
                    control.byte_order,
                    control.vendor_extension,
                    control.private_data().to_vec(),
                );
                HandshakeStep::Answer(ConnectAnswer::Accepted {
                    byte_order: order,
                    vendor_extension: mark,
                    private_data: private,
                    trailing_bytes: rest,
                })
            }
        }
    }
}

/// Reads on, but not much further than a control message.
fn read_control(socket: &TcpSocket, bytes: &mut Vec<u8>) -> ReadResult {
    let mut room = [0; MAX_CONTROL_LEN];
    let room = &mut room[..MAX_CONTROL_LEN - bytes.len().min(MAX_CONTROL_LEN - 1)];
    let received = socket.recv(room);
    if let ReadResult::Bytes(count) = received {
        bytes.extend_from_slice(&room[..count]);
    }
    received
}

/// Says something in one piece: a few hundred bytes always find room on a connection that has said
/// nothing yet.
pub(crate) fn send_control(
    socket: &TcpSocket,
    kind: CmKind,
    mark: Option<VendorExtension>,
    private: &[u8],
) -> bool {
    let Some(control) = CmMessage::new(kind, private) else {
        return false;
    };
    let bytes = control.with_vendor_extension(mark).encode();
    socket.send(&[IoSlice::new(&bytes)]) == WriteResult::Bytes(bytes.len())
}
