//! The messages of a connection's socket: handshake, control messages and memory grants.
//!
//! The name of an endpoint is a Unix socket in the abstract namespace. The kernel keeps the name
//! unique per network namespace and removes it with the process. The sender connects to that
//! socket. The handshake is:
//!
//! 1. The receiver asks the kernel for the user and the process of the sender, permits descriptors
//!    and sends `Ready`. A sender of another user is rejected before anything is received.
//! 2. The sender checks the receiver in the same way, and sends a hello with the descriptor of the
//!    segment.
//! 3. The receiver maps the segment and sends `Accept`, or `Reject`.
//!
//! A receiver that has as many handshakes of one process as it takes sends `RetryLater` in place of
//! `Ready`. It also sends `RetryLater` when it evicts a handshake to make room for others. The
//! sender connects again (`connect_retry`).
//!
//! Afterwards both sides ring the doorbell over the socket: a message that is sent only to a peer
//! that sleeps. The sender also requests and grants memory. If the socket hangs up without
//! `EndpointClosed` or `Disconnect`, the peer has died.
//!
//! Decision: the doorbell is not an eventfd. The flags and the counter of an eventfd are shared
//! with the peer, which could remove non-blocking mode, fill the counter, and so block the domain
//! under its lock. A socket message is sent with `MSG_DONTWAIT`, which a peer cannot change, and
//! saves two descriptors per connection. The side that sleeps sets a flag in the segment, and the
//! side that rings clears the flag.

use std::os::fd::{AsFd, BorrowedFd};

use fabric_core::flags::Access;
use fabric_core::{Address, Error, RefusalReason, Result, Scheme};
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::socket::{SeqpacketRecv, ShmSocket};
use crate::sys::closer::PeerFd;
use crate::sys::memfd;
use crate::sys::os_error::os_error;

/// Magic of connection management messages.
pub(super) const CM_MAGIC: [u8; 8] = *b"fab-scm\0";
/// Version of everything two processes must agree on: messages, segment and records.
pub(crate) const VERSION: u16 = 1;
/// First bytes of every message, followed by the version.
const MAGIC: [u8; 8] = *b"fab-shm\0";
/// Bytes of the magic, the version and the code of a message.
const HEAD_LEN: usize = 12;
/// Bytes of a control message: magic, version, code, and an argument of eight bytes.
const CONTROL_LEN: usize = 20;
const HELLO_TOO_SHORT: &str = "hello is too short";
const NOT_ONE_FD: &str = "expected exactly one descriptor";
const TOO_LONG: &str = "message is too long";
const FDS_WITHOUT_GRANT: &str = "descriptors on a message that is not a memory grant";

/// Maximum number of messages read from a socket in one poll.
pub(crate) const READS_PER_POLL: usize = 64;

// Codes of control messages and of the memory grant. A rejection for another reason than those
// below is `RefusalReason::Other`.
const ACCEPT: u16 = 0;
const REJECT_VERSION: u16 = 1;
const REJECT_USER: u16 = 2;
const REJECT_MALFORMED: u16 = 3;
const REJECT_RESOURCES: u16 = 4;
const REJECT_EP_TYPE: u16 = 5;
const RETRY_LATER: u16 = 6;
const ENDPOINT_CLOSED: u16 = 100;
const DOORBELL: u16 = 101;
const DISCONNECT: u16 = 102;
const MAP_MR: u16 = 103;
const MR_NOT_FOUND: u16 = 104;
const MEMORY_GRANT: u16 = 105;
const UNMAP_LOAN: u16 = 106;
const MR_SERVED: u16 = 107;
const MR_SERVED_RMA_EVENTS: u16 = 108;
const READY: u16 = 109;

// Bits of the flags byte of a grant: the remote access rights, and `MemoryGrant::rma_events`.
const GRANT_READ: u8 = 1;
const GRANT_WRITE: u8 = 2;
const GRANT_RMA_EVENTS: u8 = 4;

/// The hello of the connecting side.
#[derive(Debug)]
pub(crate) struct ShmHello {
    /// Name of the connecting endpoint.
    pub(crate) from: Address,
    /// Incarnation of the connecting endpoint, unlike that of any other endpoint of the same name.
    pub(crate) incarnation: u64,
    /// Number of lines of the segment.
    pub(crate) lines: usize,
    /// Memory of the segment.
    pub(crate) segment: PeerFd,
}

/// A control message: a message without a descriptor. *Sender* and *receiver* are the ends of the
/// connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlMessage {
    /// Receiver: the sender's user is permitted, and the hello may be sent.
    Ready,
    /// Receiver: the segment is mapped. Holds the incarnation of the receiver's endpoint.
    Accept(u64),
    /// Receiver: the connection is rejected.
    Reject(RefusalReason),
    /// Receiver: the handshake is refused or evicted, because there are too many; the sender is to
    /// connect again later.
    RetryLater,
    /// Either side: the endpoint closes.
    EndpointClosed,
    /// Either side: this connection ends, and the endpoint stays open.
    Disconnect,
    /// Either side: the segment has new records, released lines, acks, returned slots, or the
    /// bounce buffer a response.
    Doorbell,
    /// Sender: requests to map the region with this key.
    MapMr(u64),
    /// Receiver: the region with this key does not exist or cannot be granted.
    MrNotFound(u64),
    /// Receiver: serves the region with this key, so accesses need RMA requests; `rma_events` as in
    /// [`MemoryGrant`].
    MrServedByOwner { key: u64, rma_events: bool },
    /// Sender: the chunk with this key is not lent again before it is granted again.
    UnmapLoan(u64),
}

/// A message with the descriptor of shared memory. The receiver grants a region, in response to
/// [`ControlMessage::MapMr`]; the sender grants a chunk for loans, or its bounce buffer.
#[derive(Debug)]
pub(crate) struct MemoryGrant<T> {
    /// Key of the region or chunk; 0 for a bounce buffer.
    pub(crate) key: u64,
    pub(crate) len: usize,
    /// Remote access rights. Of the grants of a sender, only its bounce buffer is writable.
    pub(crate) access: Access,
    /// Virtual address of the first byte in the owner's process; 0 if addresses are offsets.
    pub(crate) base: u64,
    /// Whether the owner must be notified of every access to the region.
    pub(crate) rma_events: bool,
    /// The descriptor: owned or borrowed, or `()` while the message is parsed.
    pub(crate) memory: T,
    /// The descriptor of the control page, if it is in memory of its own.
    pub(crate) control_page: Option<T>,
}

/// A message received after the hello.
#[derive(Debug)]
pub(crate) enum ControlEvent {
    Message(ControlMessage),
    Grant(MemoryGrant<PeerFd>),
    /// A grant of this key whose descriptor was lost: this process has reached `RLIMIT_NOFILE`.
    GrantWithoutFd(u64),
}

/// A message read from the socket of a connection; `None` if the socket has no message.
pub(crate) type ControlRead<T> = Result<Option<T>, ReadError>;

/// Why no message can be read from the socket of a connection any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadError {
    /// The peer has closed the socket.
    HungUp,
    /// The message violates the protocol.
    Malformed(&'static str),
    /// The message has this version.
    VersionMismatch(u16),
    /// The peer sends the handshake of the other type of endpoint (`FI_EP_RDM`, `FI_EP_MSG`).
    WrongEpType,
    /// The descriptor of the message was lost: this process has reached `RLIMIT_NOFILE`.
    DescriptorLimitReached,
}

impl From<&'static str> for ReadError {
    fn from(what: &'static str) -> Self {
        Self::Malformed(what)
    }
}

impl ReadError {
    /// Returns the error as a protocol violation.
    pub(crate) fn violation(self) -> &'static str {
        match self {
            Self::Malformed(what) => what,
            Self::VersionMismatch(_) => "control message of another protocol version",
            Self::WrongEpType => "handshake of the other type of endpoint (FI_EP_RDM, FI_EP_MSG)",
            Self::DescriptorLimitReached => {
                "no descriptor left for a received message (RLIMIT_NOFILE)"
            }
            Self::HungUp => "incomplete handshake",
        }
    }
}

/// A message of a handshake with its descriptors that are memory. Other descriptors were closed.
pub(super) struct HandshakeMessage<'a> {
    pub(super) bytes: &'a [u8],
    memory: Vec<PeerFd>,
    has_other_fds: bool,
}

impl<'a> HandshakeMessage<'a> {
    /// Receives a message into `buffer`, which must have room for any valid message.
    pub(super) fn recv(socket: &ShmSocket, buffer: &'a mut [u8]) -> ControlRead<Self> {
        let (len, fds) = match socket.recv(buffer) {
            SeqpacketRecv::WouldBlock => return Ok(None),
            SeqpacketRecv::HungUp => return Err(ReadError::HungUp),
            SeqpacketRecv::Truncated => return Err(TOO_LONG.into()),
            SeqpacketRecv::ControlTruncated(_) | SeqpacketRecv::Stuck => {
                return Err(ReadError::DescriptorLimitReached);
            }
            SeqpacketRecv::Message(len, fds) => (len, fds),
        };
        // A descriptor without seals may be a file whose close blocks.
        let (memory, others): (_, Vec<_>) = fds.into_iter().partition(|fd| memfd::is_memory(fd));
        let has_other_fds = !others.is_empty();
        drop(others);
        Ok(Some(Self {
            bytes: &buffer[..len],
            memory,
            has_other_fds,
        }))
    }

    /// Returns the descriptors.
    ///
    /// # Errors
    /// The message came with a descriptor that is not memory.
    pub(super) fn into_memory(self) -> Result<Vec<PeerFd>, ReadError> {
        if self.has_other_fds {
            return Err("descriptor is not sealed memory".into());
        }
        Ok(self.memory)
    }
}

/// Sends a hello with the descriptor of a segment of `lines` lines; `to` is the peer in errors.
///
/// # Errors [`Error::ConnectionRefused`] or [`Error::PeerGone`] if the peer has rejected the
/// connection or has ended, and errors of `sendmsg`.
pub(crate) fn send_hello(
    socket: &ShmSocket,
    to: &Address,
    from: &Address,
    incarnation: u64,
    lines: usize,
    segment: BorrowedFd<'_>,
) -> Result<()> {
    let mut message = Vec::with_capacity(128);
    message.extend(MAGIC);
    message.extend(VERSION.to_le_bytes());
    message.extend((lines as u32).to_le_bytes());
    message.extend(incarnation.to_le_bytes());
    message.extend(from.name().as_bytes());
    socket
        .send(&message, &[segment])
        .map_err(|errno| match errno {
            Errno::PIPE | Errno::CONNRESET => match recv_control(socket) {
                // The peer has rejected the connection before the hello.
                Ok(Some(ControlEvent::Message(ControlMessage::Reject(reason)))) => {
                    Error::ConnectionRefused {
                        peer: to.clone(),
                        reason,
                    }
                }
                _ => Error::PeerGone(to.clone()),
            },
            errno => os_error("sendmsg")(errno),
        })
}

/// Receives a hello.
pub(crate) fn recv_hello(socket: &ShmSocket) -> ControlRead<ShmHello> {
    let mut buffer = [0; 256];
    let Some(message) = HandshakeMessage::recv(socket, &mut buffer)? else {
        return Ok(None);
    };
    parse_hello(message.bytes, message.into_memory()?).map(Some)
}

/// Returns whether these bytes begin with the magic of a hello.
pub(super) fn is_hello(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// Parses a hello that arrived with these descriptors.
pub(super) fn parse_hello(bytes: &[u8], fds: Vec<PeerFd>) -> Result<ShmHello, ReadError> {
    if bytes.starts_with(&CM_MAGIC) {
        return Err(ReadError::WrongEpType);
    }
    let (magic, rest) = bytes.split_first_chunk().ok_or(HELLO_TOO_SHORT)?;
    let (version, rest) = rest.split_first_chunk().ok_or(HELLO_TOO_SHORT)?;
    if *magic != MAGIC {
        return Err("not a shm hello (wrong magic)".into());
    }
    check_version(*version)?;
    let (lines, rest) = rest.split_first_chunk().ok_or(HELLO_TOO_SHORT)?;
    let (incarnation, name) = rest.split_first_chunk().ok_or(HELLO_TOO_SHORT)?;
    let from = std::str::from_utf8(name)
        .ok()
        .and_then(|name| Address::new(Scheme::Shm, name).ok())
        .filter(|name| !name.name().is_empty())
        .ok_or("invalid endpoint name in hello")?;
    Ok(ShmHello {
        from,
        lines: u32::from_le_bytes(*lines) as usize,
        incarnation: u64::from_le_bytes(*incarnation),
        segment: only_fd(fds)?,
    })
}

/// Checks the version of a handshake message.
pub(super) fn check_version(version: [u8; 2]) -> Result<(), ReadError> {
    match u16::from_le_bytes(version) {
        VERSION => Ok(()),
        theirs => Err(ReadError::VersionMismatch(theirs)),
    }
}

/// Returns the only descriptor of a message that carries a segment.
pub(super) fn only_fd(fds: Vec<PeerFd>) -> Result<PeerFd, ReadError> {
    match <[PeerFd; 1]>::try_from(fds) {
        Ok([fd]) => Ok(fd),
        Err(_) => Err(NOT_ONE_FD.into()),
    }
}

/// Sends a control message without blocking. Errors are ignored: a peer whose socket is full has
/// unread messages, which wake the peer, and the next read of the socket reports a peer that has
/// ended.
pub(crate) fn send_control(socket: &ShmSocket, message: ControlMessage) {
    let _ = try_send_control(socket, message);
}

/// Sends a control message without blocking. Returns false if the socket is full. Returns true if
/// the message was sent or the peer has ended, which the next read of the socket reports.
pub(crate) fn try_send_control(socket: impl AsFd, message: ControlMessage) -> bool {
    !matches!(send_message(socket, message), Err(Errno::AGAIN))
}

/// Sends a control message without blocking.
pub(super) fn send_message(socket: impl AsFd, message: ControlMessage) -> rustix::io::Result<()> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::send(socket, &encode_control(message), flags).map(drop)
}

/// Sends a memory grant without blocking.
///
/// # Errors Errors of `sendmsg`, such as `AGAIN` for a full socket and `TOOMANYREFS` for too many
/// descriptors in flight.
pub(crate) fn send_grant(
    socket: &ShmSocket,
    grant: &MemoryGrant<BorrowedFd<'_>>,
) -> rustix::io::Result<()> {
    let mut message = encode_head(MAGIC, MEMORY_GRANT).to_vec();
    message.extend(grant.key.to_le_bytes());
    message.extend((grant.len as u64).to_le_bytes());
    let bit_if = |is_set, bit| if is_set { bit } else { 0 };
    message.push(
        bit_if(grant.access.contains(Access::REMOTE_READ), GRANT_READ)
            | bit_if(grant.access.contains(Access::REMOTE_WRITE), GRANT_WRITE)
            | bit_if(grant.rma_events, GRANT_RMA_EVENTS),
    );
    if grant.base != 0 {
        message.extend(grant.base.to_le_bytes());
    }
    match grant.control_page {
        None => socket.send(&message, &[grant.memory]),
        Some(page) => socket.send(&message, &[grant.memory, page]),
    }
}

/// Encodes the magic, the version and the code of a message.
pub(super) fn encode_head(magic: [u8; 8], code: u16) -> [u8; HEAD_LEN] {
    let mut head = [0; HEAD_LEN];
    head[..8].copy_from_slice(&magic);
    head[8..10].copy_from_slice(&VERSION.to_le_bytes());
    head[10..].copy_from_slice(&code.to_le_bytes());
    head
}

fn encode_control(message: ControlMessage) -> [u8; CONTROL_LEN] {
    let (code, argument) = match message {
        ControlMessage::Accept(incarnation) => (ACCEPT, incarnation),
        ControlMessage::Reject(RefusalReason::Version { .. }) => (REJECT_VERSION, 0),
        ControlMessage::Reject(RefusalReason::User) => (REJECT_USER, 0),
        ControlMessage::Reject(RefusalReason::Resources) => (REJECT_RESOURCES, 0),
        ControlMessage::Reject(RefusalReason::EpType) => (REJECT_EP_TYPE, 0),
        ControlMessage::Reject(_) => (REJECT_MALFORMED, 0),
        ControlMessage::RetryLater => (RETRY_LATER, 0),
        ControlMessage::Ready => (READY, 0),
        ControlMessage::EndpointClosed => (ENDPOINT_CLOSED, 0),
        ControlMessage::Doorbell => (DOORBELL, 0),
        ControlMessage::Disconnect => (DISCONNECT, 0),
        ControlMessage::MapMr(key) => (MAP_MR, key),
        ControlMessage::MrNotFound(key) => (MR_NOT_FOUND, key),
        ControlMessage::UnmapLoan(key) => (UNMAP_LOAN, key),
        ControlMessage::MrServedByOwner {
            key,
            rma_events: false,
        } => (MR_SERVED, key),
        ControlMessage::MrServedByOwner {
            key,
            rma_events: true,
        } => (MR_SERVED_RMA_EVENTS, key),
    };
    let mut bytes = [0; CONTROL_LEN];
    bytes[..HEAD_LEN].copy_from_slice(&encode_head(MAGIC, code));
    bytes[HEAD_LEN..].copy_from_slice(&argument.to_le_bytes());
    bytes
}

/// Receives a control message or a grant.
pub(crate) fn recv_control(socket: &ShmSocket) -> ControlRead<ControlEvent> {
    let mut buffer = [0; 64];
    let (len, fds) = match socket.recv(&mut buffer) {
        SeqpacketRecv::WouldBlock => return Ok(None),
        SeqpacketRecv::HungUp => return Err(ReadError::HungUp),
        SeqpacketRecv::Truncated => return Err(TOO_LONG.into()),
        SeqpacketRecv::Stuck => {
            return Err("too many descriptors for this process (RLIMIT_NOFILE)".into());
        }
        SeqpacketRecv::ControlTruncated(len) => {
            let grant = parse_grant(&buffer[..len]).ok_or(FDS_WITHOUT_GRANT)?;
            return Ok(Some(ControlEvent::GrantWithoutFd(grant.key)));
        }
        SeqpacketRecv::Message(len, fds) => (len, fds),
    };
    let bytes = &buffer[..len];
    if fds.is_empty() {
        return match parse_grant(bytes) {
            Some(_) => Err("descriptor of a memory grant did not arrive".into()),
            None => Ok(Some(ControlEvent::Message(parse_control(bytes)?))),
        };
    }
    let grant = parse_grant(bytes).ok_or(FDS_WITHOUT_GRANT)?;
    let mut fds = fds.into_iter();
    match (fds.next(), fds.next(), fds.next()) {
        (Some(memory), control_page, None) => Ok(Some(ControlEvent::Grant(MemoryGrant {
            key: grant.key,
            len: grant.len,
            access: grant.access,
            base: grant.base,
            rma_events: grant.rma_events,
            memory,
            control_page,
        }))),
        _ => Err("memory grant with more than two descriptors".into()),
    }
}

/// Parses a memory grant, without its descriptor; `None` if the message is not a valid grant.
fn parse_grant(bytes: &[u8]) -> Option<MemoryGrant<()>> {
    let (head, rest) = bytes.split_first_chunk()?;
    if *head != encode_head(MAGIC, MEMORY_GRANT) {
        return None;
    }
    let (key, rest) = rest.split_first_chunk()?;
    let (len, rest) = rest.split_first_chunk()?;
    let (&flags, base) = rest.split_first()?;
    let base = match base {
        [] => 0,
        base => u64::from_le_bytes(base.try_into().ok()?),
    };
    if flags & !(GRANT_READ | GRANT_WRITE | GRANT_RMA_EVENTS) != 0 {
        return None;
    }
    let right = |bit, right| {
        if flags & bit != 0 {
            right
        } else {
            Access::empty()
        }
    };
    Some(MemoryGrant {
        key: u64::from_le_bytes(*key),
        len: usize::try_from(u64::from_le_bytes(*len)).ok()?,
        access: right(GRANT_READ, Access::REMOTE_READ) | right(GRANT_WRITE, Access::REMOTE_WRITE),
        base,
        rma_events: flags & GRANT_RMA_EVENTS != 0,
        memory: (),
        control_page: None,
    })
}

/// Returns whether a control message is decoded as it was encoded.
#[cfg(all(feature = "microbench", not(loom)))]
pub(crate) fn round_trips(message: ControlMessage) -> bool {
    parse_control(&encode_control(message)) == Ok(message)
}

/// Decodes a control message. The first twelve bytes are the same in every version, so that a peer
/// of any version understands a rejection because of the version.
pub(super) fn parse_control(bytes: &[u8]) -> Result<ControlMessage, ReadError> {
    let not_control = "not a shm control message";
    let (head, rest) = bytes
        .split_first_chunk::<HEAD_LEN>()
        .filter(|(head, _)| head[..8] == MAGIC)
        .ok_or(not_control)?;
    let theirs = u16::from_le_bytes([head[8], head[9]]);
    let code = u16::from_le_bytes([head[10], head[11]]);
    if code == REJECT_VERSION {
        return Ok(ControlMessage::Reject(RefusalReason::Version {
            theirs,
            ours: VERSION,
        }));
    }
    let argument = u64::from_le_bytes(rest.try_into().map_err(|_| not_control)?);
    Ok(match code {
        ACCEPT => ControlMessage::Accept(argument),
        READY => ControlMessage::Ready,
        ENDPOINT_CLOSED => ControlMessage::EndpointClosed,
        DOORBELL => ControlMessage::Doorbell,
        DISCONNECT => ControlMessage::Disconnect,
        MAP_MR => ControlMessage::MapMr(argument),
        MR_NOT_FOUND => ControlMessage::MrNotFound(argument),
        UNMAP_LOAN => ControlMessage::UnmapLoan(argument),
        MR_SERVED | MR_SERVED_RMA_EVENTS => ControlMessage::MrServedByOwner {
            key: argument,
            rma_events: code == MR_SERVED_RMA_EVENTS,
        },
        REJECT_USER => ControlMessage::Reject(RefusalReason::User),
        REJECT_MALFORMED => ControlMessage::Reject(RefusalReason::Malformed),
        REJECT_RESOURCES => ControlMessage::Reject(RefusalReason::Resources),
        REJECT_EP_TYPE => ControlMessage::Reject(RefusalReason::EpType),
        RETRY_LATER => ControlMessage::RetryLater,
        other => ControlMessage::Reject(RefusalReason::Other(other)),
    })
}

#[cfg(all(test, not(loom)))]
pub(super) mod tests {
    use std::io::IoSlice;
    use std::mem::MaybeUninit;
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SocketFlags, SocketType,
    };

    use super::*;

    /// Receives a control message that is not a grant.
    fn recv_message(socket: &ShmSocket) -> ControlRead<ControlMessage> {
        let event = recv_control(socket)?;
        Ok(event.map(|event| match event {
            ControlEvent::Message(message) => message,
            other => panic!("{other:?}"),
        }))
    }

    fn shm_address(text: &str) -> Address {
        Address::new(Scheme::Shm, text).unwrap()
    }

    fn socket_pair() -> (ShmSocket, ShmSocket) {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (a, b) = rustix::net::socketpair(family, kind, SocketFlags::NONBLOCK, None).unwrap();
        (ShmSocket::new(a), ShmSocket::new(b))
    }

    #[test]
    fn hello_and_control_messages_round_trip() {
        let (a, b) = socket_pair();
        assert!(matches!(recv_hello(&b), Ok(None)));
        let (_segment, memory) = super::super::segment::Segment::create(64).unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        send_hello(
            &a,
            &shm_address("you"),
            &shm_address("me"),
            5,
            64,
            null.as_fd(),
        )
        .unwrap();
        assert!(matches!(
            recv_hello(&b),
            Err(ReadError::Malformed(what)) if what.contains("not sealed memory")
        ));
        send_hello(
            &a,
            &shm_address("you"),
            &shm_address("me"),
            5,
            64,
            memory.as_fd(),
        )
        .unwrap();
        let Ok(Some(hello)) = recv_hello(&b) else {
            panic!("a hello")
        };
        assert_eq!(
            (hello.from, hello.incarnation, hello.lines),
            (shm_address("me"), 5, 64)
        );
        for message in [
            ControlMessage::Accept(u64::MAX),
            ControlMessage::EndpointClosed,
            ControlMessage::Doorbell,
            ControlMessage::Disconnect,
            ControlMessage::MapMr(3),
            ControlMessage::MrNotFound(u64::MAX),
            ControlMessage::UnmapLoan(4),
            ControlMessage::RetryLater,
            ControlMessage::Reject(RefusalReason::User),
            ControlMessage::Reject(RefusalReason::Version {
                theirs: VERSION,
                ours: VERSION,
            }),
        ] {
            send_control(&b, message);
            assert_eq!(recv_message(&a), Ok(Some(message)));
        }
        drop(b);
        assert_eq!(recv_message(&a), Err(ReadError::HungUp));
        let sent = send_hello(
            &a,
            &shm_address("you"),
            &shm_address("me"),
            5,
            64,
            memory.as_fd(),
        );
        assert_eq!(
            sent,
            Err(Error::PeerGone(shm_address("you"))),
            "peer ended before the hello"
        );
    }

    /// A rejection because of the version is decoded in any version and reports the peer's version.
    #[test]
    fn version_mismatch_reports_both_versions() {
        let hello = [&MAGIC[..], &[9, 1], b"fields of that version"].concat();
        assert!(matches!(
            parse_hello(&hello, Vec::new()),
            Err(ReadError::VersionMismatch(265))
        ));
        let rejection = [&MAGIC[..], &[9, 1, 1, 0], b"more"].concat();
        let expected = ControlMessage::Reject(RefusalReason::Version {
            theirs: 265,
            ours: VERSION,
        });
        assert_eq!(parse_control(&rejection), Ok(expected));
    }

    /// Returns a socket whose close blocks until the other end is dropped.
    fn lingering_socket() -> (OwnedFd, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut near, &[0; 65_536]).is_ok() {}
        near.set_nonblocking(false).unwrap();
        let linger_time = std::time::Duration::from_secs(3600);
        rustix::net::sockopt::set_socket_linger(&near, Some(linger_time)).unwrap();
        (near.into(), far)
    }

    pub(in super::super) fn send_with_fds(
        socket: &ShmSocket,
        bytes: &[u8],
        fds: &[BorrowedFd<'_>],
    ) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        rustix::net::sendmsg(
            socket,
            &[IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        )
        .unwrap();
    }

    /// Descriptors are closed without blocking: those on a control message, surplus ones on a
    /// hello, and those in the socket when the socket is closed. A close that blocks hangs this
    /// test.
    #[test]
    fn closing_received_descriptors_does_not_block() {
        let (_segment, memory) = super::super::segment::Segment::create(64).unwrap();
        let (linger, _far) = lingering_socket();
        let (a, b) = socket_pair();
        let mut fds = vec![memory.as_fd(); 15];
        fds.push(linger.as_fd());
        send_with_fds(&a, b"x", &fds[15..]);
        send_with_fds(&a, b"x", &fds);
        send_with_fds(&a, b"", &fds[15..]);
        send_with_fds(&a, b"x", &fds[15..]);
        drop(linger);
        let Err(ReadError::Malformed(what)) = recv_message(&b) else {
            panic!("a message with too many descriptors was accepted");
        };
        assert!(what.contains("descriptors"), "{what}");
        assert!(matches!(recv_hello(&b), Err(ReadError::Malformed(_))));
        drop(b);
    }

    #[test]
    fn malformed_messages_are_rejected_and_descriptors_closed() {
        for garbage in [
            &b"x"[..],
            &[0; 200],
            b"fab-shm\0\x01\x00\x40\x00\x00\x00\0\0\0\0\0\0\0\0no/slash",
            &[7; 256],
        ] {
            let (a, b) = socket_pair();
            rustix::net::send(&a, garbage, SendFlags::empty()).unwrap();
            assert!(
                matches!(recv_hello(&b), Err(ReadError::Malformed(_))),
                "{garbage:?}"
            );
        }
        let (a, b) = socket_pair();
        rustix::net::send(&a, &[0; 300], SendFlags::empty()).unwrap();
        assert!(
            matches!(recv_hello(&b), Err(ReadError::Malformed(what)) if what.contains("too long"))
        );
        rustix::net::send(
            &a,
            b"fab-shm\0\x01\x00\x40\x00\x00\x00\0\0\0\0\0\0\0\0name",
            SendFlags::empty(),
        )
        .unwrap();
        assert!(
            matches!(recv_hello(&b), Err(ReadError::Malformed(what)) if what.contains("descriptor"))
        );
        rustix::net::send(&a, b"short", SendFlags::empty()).unwrap();
        assert!(matches!(recv_message(&b), Err(ReadError::Malformed(_))));
    }
}
