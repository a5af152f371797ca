//! Connection management messages of connected endpoints (`FI_EP_MSG`).
//!
//! 1. The client binds a Unix socket to the name of its endpoint, without listening, and connects
//!    to the passive endpoint. Both sides check the credentials of the other, as described in
//!    `control`. The passive endpoint sends `Ready`, or `RetryLater` as described there.
//! 2. The client sends a request with its private data and the segment of its ring. The kernel
//!    tells the client's name (`getpeername`), so a client cannot claim the name of another. The
//!    passive endpoint replies with a nonce, which is random and valid once, or with `RetryLater`.
//! 3. The client connects a second socket to the passive endpoint, the *reverse socket*, and sends
//!    the nonce over it. The passive endpoint checks that both sockets are of one process, and
//!    hands the request to the program. Until then it may evict either socket to make room for
//!    others, with `RetryLater`. The client connects an evicted reverse socket again, or, if the
//!    request was evicted, both sockets.
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

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fabric_core::RefusalReason;
use fabric_core::flags::Caps;
use fabric_core::transport::MAX_PRIVATE_DATA;
use rustix::io::Errno;

use super::control::{self, CM_MAGIC, ControlMessage, ControlRead, HandshakeMessage, ReadError};
use super::socket::ShmSocket;
use crate::sys::closer::PeerFd;

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

/// A connection request or an accept; `F` is the descriptor, received or to be sent.
#[derive(Debug)]
pub(crate) struct CmOffer<F> {
    pub(crate) endpoint: CmEndpoint,
    /// Segment with the ring in which this endpoint sends.
    pub(crate) segment: F,
}

/// The first message of a client on one of its sockets.
#[derive(Debug)]
pub(crate) enum CmClientMessage {
    Request(CmOffer<PeerFd>),
    /// The socket is the reverse socket of the request that was given this nonce.
    Reverse(u64),
}

/// A message of the server to a client that is not connected yet.
#[derive(Debug)]
pub(crate) enum CmAnswer {
    /// The passive endpoint permits descriptors: the request may be sent.
    Ready,
    /// The request is valid: the client is to connect the reverse socket and send this nonce.
    Nonce(u64),
    /// The program has accepted.
    Accepted(CmOffer<PeerFd>),
    /// The program has rejected, with this private data.
    Rejected(Vec<u8>),
    /// The passive endpoint, or an endpoint of another type, has refused the connection.
    Refused(RefusalReason),
    /// The passive endpoint has too many handshakes or requests of this process, or has evicted
    /// the handshake.
    RetryLater,
}

/// Sends a connection request. Does not block.
pub(crate) fn send_request(
    socket: &ShmSocket,
    client: &CmOffer<OwnedFd>,
) -> rustix::io::Result<()> {
    send_offer(socket, REQUEST, client)
}

/// Sends an accept. Does not block.
pub(crate) fn send_accept(socket: &ShmSocket, server: &CmOffer<OwnedFd>) -> rustix::io::Result<()> {
    send_offer(socket, ACCEPT, server)
}

/// Sends the nonce of a request to the client. Does not block.
pub(crate) fn send_nonce(socket: &ShmSocket, nonce: u64) -> rustix::io::Result<()> {
    send(socket, NONCE, &nonce.to_le_bytes(), &[])
}

/// Sends the nonce of a request over the reverse socket. Does not block.
pub(crate) fn send_reverse(socket: &ShmSocket, nonce: u64) -> rustix::io::Result<()> {
    send(socket, REVERSE, &nonce.to_le_bytes(), &[])
}

/// Sends a rejection with private data. Does not block; the client may be gone.
pub(crate) fn send_reject(socket: &ShmSocket, private_data: &[u8]) {
    let _ = send(socket, REJECT, private_data, &[]);
}

fn send(
    socket: &ShmSocket,
    code: u16,
    body: &[u8],
    fds: &[BorrowedFd<'_>],
) -> rustix::io::Result<()> {
    let head = control::encode_head(CM_MAGIC, code);
    socket.send(&[&head[..], body].concat(), fds)
}

fn send_offer(socket: &ShmSocket, code: u16, offer: &CmOffer<OwnedFd>) -> rustix::io::Result<()> {
    let endpoint = &offer.endpoint;
    let caps = CAP_BITS
        .iter()
        .filter(|(_, cap)| endpoint.caps.contains(*cap));
    let mut body = (endpoint.lines as u32).to_le_bytes().to_vec();
    body.extend(endpoint.incarnation.to_le_bytes());
    body.extend(caps.fold(0, |bits, (bit, _)| bits | bit).to_le_bytes());
    body.extend(&endpoint.private_data);
    send(socket, code, &body, &[offer.segment.as_fd()])
}

/// Returns the code of a connection management message, and the bytes behind the code. `None` for a
/// message with another magic.
fn split_head(bytes: &[u8]) -> ControlRead<(u16, &[u8])> {
    let Some(rest) = bytes.strip_prefix(&CM_MAGIC) else {
        return Ok(None);
    };
    let (version, rest) = rest.split_first_chunk().ok_or(TOO_SHORT)?;
    control::check_version(*version)?;
    let (code, rest) = rest.split_first_chunk().ok_or(TOO_SHORT)?;
    Ok(Some((u16::from_le_bytes(*code), rest)))
}

/// Parses the body of a request or accept that arrived with these descriptors.
fn parse_offer(bytes: &[u8], memory: Vec<PeerFd>) -> Result<CmOffer<PeerFd>, ReadError> {
    let (lines, rest) = bytes.split_first_chunk().ok_or(TOO_SHORT)?;
    let (incarnation, rest) = rest.split_first_chunk().ok_or(TOO_SHORT)?;
    let (bits, private_data) = rest.split_first_chunk().ok_or(TOO_SHORT)?;
    let bits = u32::from_le_bytes(*bits);
    let known = CAP_BITS.iter().fold(0, |known, (bit, _)| known | bit);
    if bits & !known != 0 {
        return Err("unknown capabilities in connection message".into());
    }
    let caps = CAP_BITS.iter().filter(|(bit, _)| bits & bit != 0);
    let endpoint = CmEndpoint {
        lines: u32::from_le_bytes(*lines) as usize,
        incarnation: u64::from_le_bytes(*incarnation),
        caps: caps.fold(Caps::empty(), |caps, (_, cap)| caps | *cap),
        private_data: parse_private_data(private_data)?,
    };
    let segment = control::only_fd(memory)?;
    Ok(CmOffer { endpoint, segment })
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

/// Receives a message of a client.
pub(crate) fn recv_client_message(socket: &ShmSocket) -> ControlRead<CmClientMessage> {
    let mut buffer = [0; MAX_CM_LEN];
    let Some(message) = HandshakeMessage::recv(socket, &mut buffer)? else {
        return Ok(None);
    };
    if control::is_hello(message.bytes) {
        return Err(ReadError::WrongEpType);
    }
    parse_client_message(message.bytes, message.into_memory()?).map(Some)
}

pub(super) fn parse_client_message(
    bytes: &[u8],
    memory: Vec<PeerFd>,
) -> Result<CmClientMessage, ReadError> {
    let (code, body) = split_head(bytes)?.ok_or("not a shm connection request (wrong magic)")?;
    match code {
        REQUEST => parse_offer(body, memory).map(CmClientMessage::Request),
        REVERSE if memory.is_empty() => Ok(CmClientMessage::Reverse(parse_nonce(body)?)),
        REVERSE => Err("descriptors on the message of a reverse socket".into()),
        _ => Err("unexpected connection message: expected a request".into()),
    }
}

/// Receives a message of the server.
pub(crate) fn recv_answer(socket: &ShmSocket) -> ControlRead<CmAnswer> {
    let mut buffer = [0; MAX_CM_LEN];
    let Some(message) = HandshakeMessage::recv(socket, &mut buffer)? else {
        return Ok(None);
    };
    parse_answer(message.bytes, message.into_memory()?).map(Some)
}

pub(super) fn parse_answer(bytes: &[u8], memory: Vec<PeerFd>) -> Result<CmAnswer, ReadError> {
    let has_fds = !memory.is_empty();
    match split_head(bytes)? {
        None if has_fds => Err("descriptors on a control message".into()),
        None => parse_control_answer(bytes),
        Some((ACCEPT, body)) => parse_offer(body, memory).map(CmAnswer::Accepted),
        Some((NONCE | REJECT, _)) if has_fds => Err("descriptors on a nonce or rejection".into()),
        Some((NONCE, body)) => Ok(CmAnswer::Nonce(parse_nonce(body)?)),
        Some((REJECT, body)) => Ok(CmAnswer::Rejected(parse_private_data(body)?)),
        Some(_) => Err("unexpected connection message: expected an answer".into()),
    }
}

/// Decodes an answer that is a control message: `Ready`, `RetryLater`, or the rejection by a
/// passive endpoint or an endpoint of the other type.
fn parse_control_answer(bytes: &[u8]) -> Result<CmAnswer, ReadError> {
    match control::parse_control(bytes)? {
        ControlMessage::Ready => Ok(CmAnswer::Ready),
        ControlMessage::Reject(reason) => Ok(CmAnswer::Refused(reason)),
        ControlMessage::RetryLater => Ok(CmAnswer::RetryLater),
        _ => Err("unexpected control message from a passive endpoint".into()),
    }
}

/// Returns whether sending failed because the peer has closed its socket.
pub(crate) fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::PIPE | Errno::CONNRESET)
}

#[cfg(all(test, not(loom)))]
mod tests {
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
            assert!(matches!(recv_client_message(&server), Ok(None)));
            let offer = CmOffer {
                endpoint: sent.clone(),
                segment: memory.try_clone().unwrap(),
            };
            send_request(&client, &offer).unwrap();
            let received = recv_client_message(&server);
            let Ok(Some(CmClientMessage::Request(request))) = received else {
                panic!("expected a request, got {received:?}");
            };
            assert_eq!(request.endpoint, sent);
            send_nonce(&server, u64::MAX - 1).unwrap();
            let received = recv_answer(&client);
            let Ok(Some(CmAnswer::Nonce(nonce))) = received else {
                panic!("expected a nonce, got {received:?}");
            };
            send_reverse(&client, nonce).unwrap();
            let received = recv_client_message(&server);
            assert!(
                matches!(received, Ok(Some(CmClientMessage::Reverse(nonce)))
                    if nonce == u64::MAX - 1),
                "{received:?}"
            );
            send_accept(&server, &offer).unwrap();
            let received = recv_answer(&client);
            let Ok(Some(CmAnswer::Accepted(accept))) = received else {
                panic!("expected an accept, got {received:?}");
            };
            assert_eq!(accept.endpoint, sent);
            send_reject(&server, private_data);
            let received = recv_answer(&client);
            let Ok(Some(CmAnswer::Rejected(data))) = received else {
                panic!("expected a rejection, got {received:?}");
            };
            assert_eq!(data, private_data);
        }
        let reason = RefusalReason::EpType;
        control::send_control(&server, ControlMessage::Reject(reason));
        let received = recv_answer(&client);
        assert!(
            matches!(received, Ok(Some(CmAnswer::Refused(refused)))
                if refused == reason),
            "{received:?}"
        );
        drop(server);
        assert!(matches!(recv_answer(&client), Err(ReadError::HungUp)));
        assert!(client.has_hung_up());
    }
}
