//! Connection management messages of connected endpoints (`FI_EP_MSG`).
//!
//! 1. The client binds a Unix socket to the name of its endpoint, without listening, and connects
//!    to the passive endpoint. Both sides check the credentials of the other, as described in
//!    `control`. The passive endpoint sends `Ready`.
//! 2. The client sends a request with its private data and the segment of its ring. The kernel
//!    tells the client's name (`getpeername`), so a client cannot claim the name of another. The
//!    passive endpoint replies with a nonce, which is random and valid once.
//! 3. The client connects a second socket to the passive endpoint, the *reverse socket*, and sends
//!    the nonce over it. The passive endpoint checks that both sockets are of one process, and
//!    hands the request to the program.
//! 4. The program accepts or rejects at any time, with private data. An accept creates the ring of
//!    the direction from the server to the client, and carries its segment.
//! 5. The client maps the segment and answers on the reverse socket as the receiver of a connection
//!    between connectionless endpoints does. From then on each direction has its socket and its
//!    ring, as between connectionless endpoints.
//!
//! Each side has created or accepted both of its sockets. A socket that a peer creates and sends as
//! a descriptor would be unsafe: its creator can hold a duplicate and change the options of the
//! socket.
//!
//! Neither endpoint listens, so no third process can connect to it. Messages of connection
//! management have a magic of their own, by which an endpoint recognizes a peer of the other type
//! (`FI_EP_RDM`, `FI_EP_MSG`) and rejects the peer with `RefusalReason::EpType`.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use fabric_core::RefusalReason;
use fabric_core::flags::Caps;
use fabric_core::transport::MAX_PRIVATE_DATA;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::control::{self, CM_MAGIC, ControlMessage, ControlRead, VERSION};
use super::socket::{self, SeqpacketRecv, ShmSocket};

const REQUEST: u16 = 1;
const ACCEPT: u16 = 2;
const REJECT: u16 = 3;
const NONCE: u16 = 4;
const REVERSE: u16 = 5;

/// The capabilities of an endpoint that its peer has to know, and their bits in messages.
const CAP_BITS: [(u32, Caps); 2] = [(1, Caps::TAGGED), (2, Caps::ATOMIC)];

/// Length of a buffer for any message: longer ones are malformed.
const MAX_CM_LEN: usize = 64 + MAX_PRIVATE_DATA;
const TOO_SHORT: &str = "connection message is too short";

/// The endpoint that sends a request or an accept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CmEndpoint {
    /// Length of the ring in the segment, in cache lines.
    pub(crate) lines: usize,
    /// Random number that tells the endpoint from others of its name.
    pub(crate) incarnation: u64,
    /// Which of `FI_TAGGED` and `FI_ATOMIC` the endpoint has.
    pub(crate) caps: Caps,
    /// Private data of the program.
    pub(crate) private_data: Vec<u8>,
}

/// A connection request.
#[derive(Debug)]
pub(crate) struct CmRequest {
    pub(crate) client: CmEndpoint,
    /// Segment with the ring from the client to the server.
    pub(crate) segment: OwnedFd,
}

/// The first message of a client on one of its sockets.
#[derive(Debug)]
pub(crate) enum CmClientMessage {
    Request(CmRequest),
    /// The socket is the reverse socket of the request that was given this nonce.
    Reverse(u64),
}

/// An accept.
#[derive(Debug)]
pub(crate) struct CmAccept {
    pub(crate) server: CmEndpoint,
    /// Segment with the ring from the server to the client.
    pub(crate) segment: OwnedFd,
}

/// A message of the server to a client that is not connected yet.
#[derive(Debug)]
pub(crate) enum CmAnswer {
    /// The passive endpoint permits descriptors: the request may be sent.
    Ready,
    /// The request is valid: the client is to connect the reverse socket and send this nonce.
    Nonce(u64),
    /// The program has accepted.
    Accepted(CmAccept),
    /// The program has rejected, with this private data.
    Rejected(Vec<u8>),
    /// The passive endpoint, or an endpoint of another type, has refused the connection.
    Refused(RefusalReason),
}

/// Sends a connection request. Does not block.
pub(crate) fn send_request(
    socket: &ShmSocket,
    client: &CmEndpoint,
    segment: BorrowedFd<'_>,
) -> rustix::io::Result<()> {
    send(socket, &encode_endpoint(REQUEST, client), &[segment])
}

/// Sends an accept. Does not block.
pub(crate) fn send_accept(
    socket: &ShmSocket,
    server: &CmEndpoint,
    segment: BorrowedFd<'_>,
) -> rustix::io::Result<()> {
    send(socket, &encode_endpoint(ACCEPT, server), &[segment])
}

/// Sends the nonce of a request to the client. Does not block.
pub(crate) fn send_nonce(socket: &ShmSocket, nonce: u64) -> rustix::io::Result<()> {
    let mut message = encode_head(NONCE);
    message.extend(nonce.to_le_bytes());
    send(socket, &message, &[])
}

/// Sends the nonce of a request over the reverse socket. Does not block.
pub(crate) fn send_reverse(socket: &ShmSocket, nonce: u64) -> rustix::io::Result<()> {
    let mut message = encode_head(REVERSE);
    message.extend(nonce.to_le_bytes());
    send(socket, &message, &[])
}

/// Sends a rejection with private data. Does not block; the client may be gone.
pub(crate) fn send_reject(socket: &ShmSocket, private_data: &[u8]) {
    let mut message = encode_head(REJECT);
    message.extend(private_data);
    let _ = send(socket, &message, &[]);
}

fn send(socket: &ShmSocket, message: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(message)], &mut control, flags).map(drop)
}

fn encode_head(code: u16) -> Vec<u8> {
    let mut message = Vec::with_capacity(MAX_CM_LEN);
    message.extend(CM_MAGIC);
    message.extend(VERSION.to_le_bytes());
    message.extend(code.to_le_bytes());
    message
}

fn encode_endpoint(code: u16, endpoint: &CmEndpoint) -> Vec<u8> {
    let caps = CAP_BITS
        .iter()
        .filter(|(_, cap)| endpoint.caps.contains(*cap));
    let mut message = encode_head(code);
    message.extend((endpoint.lines as u32).to_le_bytes());
    message.extend(endpoint.incarnation.to_le_bytes());
    message.extend(caps.fold(0, |bits, (bit, _)| bits | bit).to_le_bytes());
    message.extend(&endpoint.private_data);
    message
}

/// Returns the code of a connection management message, and the bytes behind the code. `None` for a
/// message with another magic.
fn split_head(bytes: &[u8]) -> Option<ControlRead<(u16, &[u8])>> {
    let (magic, rest) = bytes.split_first_chunk::<8>()?;
    if *magic != CM_MAGIC {
        return None;
    }
    let Some((version, rest)) = rest.split_first_chunk() else {
        return Some(ControlRead::Malformed(TOO_SHORT));
    };
    let version = u16::from_le_bytes(*version);
    if version != VERSION {
        return Some(ControlRead::VersionMismatch(version));
    }
    let Some((code, rest)) = rest.split_first_chunk() else {
        return Some(ControlRead::Malformed(TOO_SHORT));
    };
    Some(ControlRead::Message((u16::from_le_bytes(*code), rest)))
}

fn parse_endpoint(bytes: &[u8]) -> Result<CmEndpoint, &'static str> {
    let (lines, rest) = bytes.split_first_chunk().ok_or(TOO_SHORT)?;
    let (incarnation, rest) = rest.split_first_chunk().ok_or(TOO_SHORT)?;
    let (bits, private_data) = rest.split_first_chunk().ok_or(TOO_SHORT)?;
    let bits = u32::from_le_bytes(*bits);
    let known = CAP_BITS.iter().fold(0, |known, (bit, _)| known | bit);
    if bits & !known != 0 {
        return Err("unknown capabilities in connection message");
    }
    let caps = CAP_BITS.iter().filter(|(bit, _)| bits & bit != 0);
    Ok(CmEndpoint {
        lines: u32::from_le_bytes(*lines) as usize,
        incarnation: u64::from_le_bytes(*incarnation),
        caps: caps.fold(Caps::empty(), |caps, (_, cap)| caps | *cap),
        private_data: parse_private_data(private_data)?,
    })
}

fn parse_private_data(bytes: &[u8]) -> Result<Vec<u8>, &'static str> {
    if bytes.len() > MAX_PRIVATE_DATA {
        return Err("private data exceeds 256 bytes");
    }
    Ok(bytes.to_vec())
}

fn parse_nonce(bytes: &[u8]) -> Result<u64, &'static str> {
    let nonce = bytes
        .try_into()
        .map_err(|_| "nonce of a connection message is not 8 bytes")?;
    Ok(u64::from_le_bytes(nonce))
}

/// A message with its descriptors that are memory. Other descriptors were closed.
struct CmRead {
    bytes: Vec<u8>,
    memory: Vec<OwnedFd>,
    had_other_fds: bool,
}

/// Receives a message.
fn recv(socket: &ShmSocket) -> ControlRead<CmRead> {
    let mut bytes = [0; MAX_CM_LEN];
    let (len, fds) = match socket.recv(&mut bytes) {
        SeqpacketRecv::WouldBlock => return ControlRead::WouldBlock,
        SeqpacketRecv::HungUp => return ControlRead::HungUp,
        SeqpacketRecv::Truncated => return ControlRead::Malformed("message is too long"),
        SeqpacketRecv::ControlTruncated(_) | SeqpacketRecv::Stuck => {
            return ControlRead::DescriptorLimitReached;
        }
        SeqpacketRecv::Message(len, fds) => (len, fds),
    };
    let (memory, other_fds): (_, Vec<_>) = fds
        .into_iter()
        .partition(|fd| rustix::fs::fcntl_get_seals(fd).is_ok());
    let had_other_fds = !other_fds.is_empty();
    socket::close_in_background(other_fds);
    ControlRead::Message(CmRead {
        bytes: bytes[..len].to_vec(),
        memory,
        had_other_fds,
    })
}

/// Receives a message of a client.
pub(crate) fn recv_client_message(socket: &ShmSocket) -> ControlRead<CmClientMessage> {
    recv(socket).and_then(|read| {
        if control::is_hello(&read.bytes) {
            ControlRead::WrongEpType
        } else if read.had_other_fds {
            ControlRead::Malformed("descriptor is not sealed memory")
        } else {
            parse_client_message(&read.bytes, read.memory)
        }
    })
}

pub(super) fn parse_client_message(
    bytes: &[u8],
    memory: Vec<OwnedFd>,
) -> ControlRead<CmClientMessage> {
    let Some(head) = split_head(bytes) else {
        return ControlRead::Malformed("not a shm connection request (wrong magic)");
    };
    head.and_then(|(code, body)| {
        let message = match code {
            REQUEST => parse_endpoint(body).and_then(|client| {
                let [segment] = parse_segment(memory)?;
                Ok(CmClientMessage::Request(CmRequest { client, segment }))
            }),
            REVERSE if memory.is_empty() => parse_nonce(body).map(CmClientMessage::Reverse),
            REVERSE => Err("descriptors on the message of a reverse socket"),
            _ => Err("unexpected connection message: expected a request"),
        };
        message.map_or_else(ControlRead::Malformed, ControlRead::Message)
    })
}

/// Returns the only descriptor of a message that carries a segment.
fn parse_segment(memory: Vec<OwnedFd>) -> Result<[OwnedFd; 1], &'static str> {
    memory
        .try_into()
        .map_err(|_| "expected exactly one descriptor")
}

/// Receives a message of the server.
pub(crate) fn recv_answer(socket: &ShmSocket) -> ControlRead<CmAnswer> {
    recv(socket).and_then(|read| {
        if read.had_other_fds {
            ControlRead::Malformed("descriptor is not sealed memory")
        } else {
            parse_answer(&read.bytes, read.memory)
        }
    })
}

pub(super) fn parse_answer(bytes: &[u8], memory: Vec<OwnedFd>) -> ControlRead<CmAnswer> {
    let has_fds = !memory.is_empty();
    let Some(head) = split_head(bytes) else {
        if has_fds {
            return ControlRead::Malformed("descriptors on a control message");
        }
        return parse_control_answer(bytes);
    };
    head.and_then(|(code, body)| {
        let answer = match code {
            ACCEPT => parse_endpoint(body).and_then(|server| {
                let [segment] = parse_segment(memory)?;
                Ok(CmAnswer::Accepted(CmAccept { server, segment }))
            }),
            NONCE | REJECT if has_fds => Err("descriptors on a nonce or rejection"),
            NONCE => parse_nonce(body).map(CmAnswer::Nonce),
            REJECT => parse_private_data(body).map(CmAnswer::Rejected),
            _ => Err("unexpected connection message: expected an answer"),
        };
        answer.map_or_else(ControlRead::Malformed, ControlRead::Message)
    })
}

/// Decodes an answer that is a control message: `Ready`, or the rejection by a passive endpoint or
/// an endpoint of the other type.
fn parse_control_answer(bytes: &[u8]) -> ControlRead<CmAnswer> {
    control::parse_control(bytes).and_then(|message| match message {
        ControlMessage::Ready => ControlRead::Message(CmAnswer::Ready),
        ControlMessage::Reject(reason) => ControlRead::Message(CmAnswer::Refused(reason)),
        _ => ControlRead::Malformed("unexpected control message from a passive endpoint"),
    })
}

/// Returns whether sending failed because the peer has closed its socket.
pub(crate) fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::PIPE | Errno::CONNRESET)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsFd;

    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::super::segment::Segment;
    use super::*;

    fn endpoint(private_data: &[u8]) -> CmEndpoint {
        CmEndpoint {
            lines: 64,
            incarnation: u64::MAX,
            caps: Caps::ATOMIC,
            private_data: private_data.to_vec(),
        }
    }

    fn socket_pair() -> (ShmSocket, ShmSocket) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (client, server) = rustix::net::socketpair(family, kind, flags, None).unwrap();
        (ShmSocket::new(client), ShmSocket::new(server))
    }

    #[test]
    fn connection_messages_round_trip() {
        let (client, server) = socket_pair();
        let (_segment, memory) = Segment::create(64).unwrap();
        for private_data in [&b""[..], b"x", &[7; MAX_PRIVATE_DATA]] {
            let sent = endpoint(private_data);
            assert!(matches!(
                recv_client_message(&server),
                ControlRead::WouldBlock
            ));
            send_request(&client, &sent, memory.as_fd()).unwrap();
            let received = recv_client_message(&server);
            let ControlRead::Message(CmClientMessage::Request(request)) = received else {
                panic!("expected a request, got {received:?}");
            };
            assert_eq!(request.client, sent);
            send_nonce(&server, u64::MAX - 1).unwrap();
            let received = recv_answer(&client);
            let ControlRead::Message(CmAnswer::Nonce(nonce)) = received else {
                panic!("expected a nonce, got {received:?}");
            };
            send_reverse(&client, nonce).unwrap();
            let received = recv_client_message(&server);
            assert!(
                matches!(received, ControlRead::Message(CmClientMessage::Reverse(nonce))
                    if nonce == u64::MAX - 1),
                "{received:?}"
            );
            send_accept(&server, &sent, memory.as_fd()).unwrap();
            let received = recv_answer(&client);
            let ControlRead::Message(CmAnswer::Accepted(accept)) = received else {
                panic!("expected an accept, got {received:?}");
            };
            assert_eq!(accept.server, sent);
            send_reject(&server, private_data);
            let received = recv_answer(&client);
            let ControlRead::Message(CmAnswer::Rejected(data)) = received else {
                panic!("expected a rejection, got {received:?}");
            };
            assert_eq!(data, private_data);
        }
        let reason = RefusalReason::EpType;
        control::send_control(&server, ControlMessage::Reject(reason));
        let received = recv_answer(&client);
        assert!(
            matches!(received, ControlRead::Message(CmAnswer::Refused(refused))
                if refused == reason),
            "{received:?}"
        );
        drop(server);
        assert!(matches!(recv_answer(&client), ControlRead::HungUp));
        assert!(client.has_hung_up());
    }
}
