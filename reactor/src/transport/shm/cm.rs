//! Connection management messages of connected endpoints (`FI_EP_MSG`).
//!
//! 1. The client binds a Unix socket to the name of its endpoint, without listening, and connects
//!    to the passive endpoint. Both sides check the credentials of the other, as described in
//!    `control`. The passive endpoint sends `Ready`.
//! 2. The client sends a request with its private data and the segment of its ring. The passive
//!    endpoint gets the client's name from the kernel (`getpeername`), so a client cannot claim the
//!    name of another.
//! 3. The program accepts or rejects at any later time, with private data. An accept creates the
//!    ring of the opposite direction, and a socket pair for that direction's control messages. The
//!    accept message carries the segment and one end of the pair.
//! 4. The client maps the segment and answers on the new socket, as the receiver of a connection
//!    between connectionless endpoints does. Each direction now has a socket and a ring of its own,
//!    as between connectionless endpoints.
//!
//! Neither endpoint listens, so no third process can connect to it. Messages of connection
//! management have a magic of their own, by which an endpoint recognises the request of the other
//! type of endpoint, and rejects it with that reason.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use fabric_core::RefusalReason;
use fabric_core::flags::Caps;
use fabric_core::transport::MAX_PRIVATE_DATA;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::control::{self, ControlMessage, ControlRead, VERSION};
use super::socket::{self, SeqpacketRecv, ShmSocket};

/// Magic of connection management messages.
pub(super) const CM_MAGIC: [u8; 8] = *b"fab-scm\0";

const REQUEST: u16 = 1;
const ACCEPT: u16 = 2;
const REJECT: u16 = 3;

/// Bits of the capabilities of an endpoint that its peer has to know.
const CAP_BITS: [(u32, Caps); 2] = [(1, Caps::TAGGED), (2, Caps::ATOMIC)];

/// Length of a buffer for any message: longer ones are malformed.
const MAX_CM_LEN: usize = 64 + MAX_PRIVATE_DATA;

/// The endpoint that sends a request or an accept, as the message describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CmEndpoint {
    /// Lines of the segment.
    pub(crate) lines: usize,
    /// Random number of the endpoint.
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
    pub(crate) segment: OwnedFd,
}

/// An accept.
#[derive(Debug)]
pub(crate) struct CmAccept {
    pub(crate) server: CmEndpoint,
    pub(crate) segment: OwnedFd,
    /// The socket of the direction from the server to the client.
    pub(crate) socket: OwnedFd,
}

/// An answer to a client that is not connected yet.
#[derive(Debug)]
pub(crate) enum CmAnswer {
    /// The passive endpoint permits descriptors: the request may be sent.
    Ready,
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
    peer_socket: BorrowedFd<'_>,
) -> rustix::io::Result<()> {
    send(
        socket,
        &encode_endpoint(ACCEPT, server),
        &[segment, peer_socket],
    )
}

/// Sends a rejection with private data. Does not block; the client may be gone.
pub(crate) fn send_reject(socket: &ShmSocket, private_data: &[u8]) {
    let mut message = head(REJECT);
    message.extend(private_data);
    let _ = send(socket, &message, &[]);
}

fn send(socket: &ShmSocket, message: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(message)], &mut control, flags).map(drop)
}

fn head(code: u16) -> Vec<u8> {
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
    let mut message = head(code);
    message.extend((endpoint.lines as u32).to_le_bytes());
    message.extend(endpoint.incarnation.to_le_bytes());
    message.extend(caps.fold(0, |bits, (bit, _)| bits | bit).to_le_bytes());
    message.extend(&endpoint.private_data);
    message
}

/// Returns the code of a connection management message, and what follows it. `None` for a message
/// of another kind.
fn split_head(bytes: &[u8]) -> Option<ControlRead<(u16, &[u8])>> {
    let (magic, rest) = bytes.split_first_chunk::<8>()?;
    if *magic != CM_MAGIC {
        return None;
    }
    let Some((version, rest)) = rest.split_first_chunk() else {
        return Some(ControlRead::Malformed("connection message is too short"));
    };
    let version = u16::from_le_bytes(*version);
    if version != VERSION {
        return Some(ControlRead::VersionMismatch(version));
    }
    let Some((code, rest)) = rest.split_first_chunk() else {
        return Some(ControlRead::Malformed("connection message is too short"));
    };
    Some(ControlRead::Message((u16::from_le_bytes(*code), rest)))
}

fn parse_endpoint(bytes: &[u8]) -> Result<CmEndpoint, &'static str> {
    const TOO_SHORT: &str = "connection message is too short";
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

/// A message with its descriptors, split into memory and others.
struct CmRead {
    bytes: Vec<u8>,
    memory: Vec<OwnedFd>,
    others: Vec<OwnedFd>,
}

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
    let (memory, others) = fds
        .into_iter()
        .partition(|fd| rustix::fs::fcntl_get_seals(fd).is_ok());
    ControlRead::Message(CmRead {
        bytes: bytes[..len].to_vec(),
        memory,
        others,
    })
}

/// Receives a connection request.
pub(crate) fn recv_request(socket: &ShmSocket) -> ControlRead<CmRequest> {
    recv(socket).and_then(|read| {
        let has_others = !read.others.is_empty();
        socket::close_in_background(read.others);
        if control::is_hello(&read.bytes) {
            ControlRead::WrongEpType
        } else if has_others {
            ControlRead::Malformed("descriptor is not sealed memory")
        } else {
            parse_request(&read.bytes, read.memory)
        }
    })
}

pub(super) fn parse_request(bytes: &[u8], memory: Vec<OwnedFd>) -> ControlRead<CmRequest> {
    let Some(head) = split_head(bytes) else {
        return ControlRead::Malformed("not a shm connection request (wrong magic)");
    };
    head.and_then(|(code, body)| {
        if code != REQUEST {
            return ControlRead::Malformed("unexpected connection message: expected a request");
        }
        match (parse_endpoint(body), <[OwnedFd; 1]>::try_from(memory)) {
            (Ok(client), Ok([segment])) => ControlRead::Message(CmRequest { client, segment }),
            (Err(what), _) => ControlRead::Malformed(what),
            (_, Err(_)) => ControlRead::Malformed("expected exactly one descriptor"),
        }
    })
}

/// Receives a message of the passive endpoint, or the answer of the program.
pub(crate) fn recv_answer(socket: &ShmSocket) -> ControlRead<CmAnswer> {
    recv(socket).and_then(|read| {
        let (memory, mut others) = (read.memory, read.others);
        let answer = parse_answer(&read.bytes, memory, &mut others);
        // The socket of an accept has been taken out.
        socket::close_in_background(others);
        answer
    })
}

/// Decodes an answer; takes the socket of an accept out of `others`.
pub(super) fn parse_answer(
    bytes: &[u8],
    memory: Vec<OwnedFd>,
    others: &mut Vec<OwnedFd>,
) -> ControlRead<CmAnswer> {
    let has_fds = !memory.is_empty() || !others.is_empty();
    let Some(head) = split_head(bytes) else {
        if has_fds {
            return ControlRead::Malformed("descriptors on a control message");
        }
        return parse_refusal(bytes);
    };
    head.and_then(|(code, body)| match code {
        ACCEPT => {
            let server = match parse_endpoint(body) {
                Ok(server) => server,
                Err(what) => return ControlRead::Malformed(what),
            };
            match (<[OwnedFd; 1]>::try_from(memory), others.len()) {
                (Ok([segment]), 1) => ControlRead::Message(CmAnswer::Accepted(CmAccept {
                    server,
                    segment,
                    socket: others.remove(0),
                })),
                _ => ControlRead::Malformed("expected a segment and a socket"),
            }
        }
        REJECT if has_fds => ControlRead::Malformed("descriptors on a rejection"),
        REJECT => match parse_private_data(body) {
            Ok(data) => ControlRead::Message(CmAnswer::Rejected(data)),
            Err(what) => ControlRead::Malformed(what),
        },
        _ => ControlRead::Malformed("unexpected connection message: expected an answer"),
    })
}

/// Decodes an answer of the passive endpoint itself, which is a control message.
fn parse_refusal(bytes: &[u8]) -> ControlRead<CmAnswer> {
    control::parse_control(bytes).and_then(|message| match message {
        ControlMessage::Ready => ControlRead::Message(CmAnswer::Ready),
        ControlMessage::Reject(reason) => ControlRead::Message(CmAnswer::Refused(reason)),
        _ => ControlRead::Malformed("unexpected control message from a passive endpoint"),
    })
}

/// Returns whether sending failed because the peer is gone.
pub(crate) fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::PIPE | Errno::CONNRESET)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsFd;

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

    #[test]
    fn requests_and_answers_round_trip() {
        let (near, far) = ShmSocket::pair().unwrap();
        let far = ShmSocket::new(far);
        let (_segment, memory) = Segment::create(64).unwrap();
        let (_other, peer_socket) = ShmSocket::pair().unwrap();
        for private_data in [&b""[..], b"x", &[7; MAX_PRIVATE_DATA]] {
            let sent = endpoint(private_data);
            assert!(matches!(recv_request(&far), ControlRead::WouldBlock));
            send_request(&near, &sent, memory.as_fd()).unwrap();
            let ControlRead::Message(request) = recv_request(&far) else {
                panic!("expected a request");
            };
            assert_eq!(request.client, sent);
            send_accept(&far, &sent, memory.as_fd(), peer_socket.as_fd()).unwrap();
            let ControlRead::Message(CmAnswer::Accepted(accept)) = recv_answer(&near) else {
                panic!("expected an accept");
            };
            assert_eq!(accept.server, sent);
            let own = near.credentials().unwrap();
            ShmSocket::from_peer(accept.socket, own).unwrap();
            send_reject(&far, private_data);
            let answer = recv_answer(&near);
            let ControlRead::Message(CmAnswer::Rejected(data)) = answer else {
                panic!("expected a rejection, got {answer:?}");
            };
            assert_eq!(data, private_data);
        }
        let reason = RefusalReason::EpType;
        control::send_control(&far, ControlMessage::Reject(reason));
        let answer = recv_answer(&near);
        assert!(
            matches!(answer, ControlRead::Message(CmAnswer::Refused(refused)) if refused == reason)
        );
        drop(far);
        assert!(matches!(recv_answer(&near), ControlRead::HungUp));
        assert!(near.has_hung_up());
    }

    /// Only a socket whose other end belongs to the process that sent it is accepted.
    #[test]
    fn socket_of_another_process_is_refused() {
        let (near, far) = ShmSocket::pair().unwrap();
        let mut other = near.credentials().unwrap();
        other.pid = Some(1);
        assert_eq!(
            ShmSocket::from_peer(far, other).unwrap_err(),
            "socket leads to another process"
        );
        let datagrams = std::os::unix::net::UnixDatagram::unbound().unwrap();
        let own = near.credentials().unwrap();
        assert_eq!(
            ShmSocket::from_peer(datagrams.into(), own).unwrap_err(),
            "descriptor is not a Unix socket"
        );
    }
}
