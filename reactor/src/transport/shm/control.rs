//! How two endpoints meet: a Unix socket in the abstract namespace, which vanishes with its
//! process.
//!
//! The name of an endpoint is such a socket. Who wants to send connects. The receiver looks at the
//! user of the other process, and says that it is ready or refuses. Then the sender says hello, in
//! one message with the descriptor of the segment, which the kernel would not have passed before.
//! The receiver answers welcome or refusal. After that
//! the socket is the doorbell of both: a message that says nothing but "look", sent only to a peer
//! that sleeps. Its hang-up is the death of the peer.
//!
//! The doorbell is not an eventfd, because the flags and the counter of one would be shared with
//! the peer, who could make a ring block, and the domain with it. A message on a socket can be sent
//! without ever blocking.
//!
//! Each side asks the kernel for the other's user and process, and deals only with its own user.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use fabric_core::flags::Access;
use fabric_core::{Address, Error, RejectReason, Result, Scheme};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::socket::{self, SeqpacketRecv, ShmSocket};

/// The version of everything two processes must agree on: hello, segment and records.
pub(crate) const VERSION: u16 = 1;
const MAGIC: [u8; 8] = *b"fab-shm\0";
/// The length of a word.
const CONTROL_LEN: usize = 20;
/// Messages read from a socket in one go.
pub(crate) const READS_PER_POLL: usize = 64;

const ACCEPT: u16 = 0;
const REJECT_VERSION: u16 = 1;
const REJECT_USER: u16 = 2;
const REJECT_MALFORMED: u16 = 3;
const REJECT_RESOURCES: u16 = 4;
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

/// The rights of a grant, as they travel; and whether the endpoint wants to hear of what is done.
const GRANT_READ: u8 = 1;
const GRANT_WRITE: u8 = 2;
const GRANT_RMA_EVENTS: u8 = 4;

/// What the connecting side says.
#[derive(Debug)]
pub(crate) struct ShmHello {
    pub(crate) from: Address,
    /// Which endpoint of that name this is.
    pub(crate) incarnation: u64,
    pub(crate) lines: usize,
    pub(crate) segment: OwnedFd,
}

/// What is said after the hello, by either side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlMessage {
    /// The receiver has accepted the connection of a process of its own user, and admits
    /// descriptors: the hello may be sent.
    Ready,
    /// The peer has taken the segment; and which endpoint of its name it is.
    Accept(u64),
    Reject(RejectReason),
    /// The endpoint closes.
    EndpointClosed,
    /// The sender gives this connection up; its endpoint goes on.
    Disconnect,
    /// There is news: records, or room for them.
    Doorbell,
    /// The sender asks for the region of this key.
    MapMr(u64),
    /// There is no region of this key.
    MrNotFound(u64),
    /// The sender serves the region of this key, and whether it wants to hear of everything that is
    /// done there.
    MrServedByOwner(u64, bool),
    /// The sender will not lend this memory again before it gives it anew.
    UnmapLoan(u64),
}

/// Memory, with its descriptor: the answer to [`ControlMessage::MapMr`], or what the sender is going to lend.
#[derive(Debug)]
pub(crate) struct MemoryGrant<T> {
    pub(crate) key: u64,
    pub(crate) len: usize,
    pub(crate) access: Access,
    /// What its owner calls its first byte.
    pub(crate) base: u64,
    /// The endpoint wants to hear of everything that is done there.
    pub(crate) rma_events: bool,
    pub(crate) memory: T,
}

/// What is said after the hello.
#[derive(Debug)]
pub(crate) enum ControlEvent {
    Message(ControlMessage),
    Grant(MemoryGrant<OwnedFd>),
    /// A grant of this key, for whose descriptor this process had no room.
    GrantWithoutFd(u64),
}

/// What a read from such a socket found.
#[derive(Debug)]
pub(crate) enum ControlRead<T> {
    WouldBlock,
    Message(T),
    Malformed(&'static str),
    VersionMismatch(u16),
    /// This process had no room for the descriptor that came with it.
    NoDescriptors,
    HungUp,
}

impl<T> ControlRead<T> {
    fn map<U>(self, convert: impl FnOnce(T) -> U) -> ControlRead<U> {
        match self {
            Self::Message(message) => ControlRead::Message(convert(message)),
            Self::WouldBlock => ControlRead::WouldBlock,
            Self::Malformed(what) => ControlRead::Malformed(what),
            Self::VersionMismatch(theirs) => ControlRead::VersionMismatch(theirs),
            Self::NoDescriptors => ControlRead::NoDescriptors,
            Self::HungUp => ControlRead::HungUp,
        }
    }
}

/// Says hello to `to`, with the segment. The peer may have ended since the connection was made.
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
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [segment];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let sent = rustix::net::sendmsg(
        socket,
        &[IoSlice::new(&message)],
        &mut control,
        SendFlags::NOSIGNAL,
    );
    sent.map(drop).map_err(|errno| match errno {
        Errno::PIPE | Errno::CONNRESET => match recv_control(socket) {
            // It did not wait for a hello.
            ControlRead::Message(ControlEvent::Message(ControlMessage::Reject(reason))) => {
                Error::ConnectionRefused {
                    peer: to.clone(),
                    reason,
                }
            }
            _ => Error::PeerGone(to.clone()),
        },
        errno => Error::os("sendmsg", errno.raw_os_error()),
    })
}

/// Reads a hello.
pub(crate) fn recv_hello(socket: &ShmSocket) -> ControlRead<ShmHello> {
    let mut bytes = [0; 256];
    let (len, fds) = match socket.recv(&mut bytes) {
        SeqpacketRecv::WouldBlock => return ControlRead::WouldBlock,
        SeqpacketRecv::HungUp => return ControlRead::HungUp,
        SeqpacketRecv::Truncated => return ControlRead::Malformed("a message that is too long"),
        SeqpacketRecv::ControlTruncated(_) | SeqpacketRecv::Stuck => {
            return ControlRead::NoDescriptors;
        }
        SeqpacketRecv::Message(len, fds) => (len, fds),
    };
    let (memory, others): (Vec<_>, Vec<_>) = fds
        .into_iter()
        .partition(|fd| rustix::fs::fcntl_get_seals(fd).is_ok());
    let strange = !others.is_empty();
    socket::close_in_background(others);
    if strange {
        return ControlRead::Malformed("a descriptor that is no sealed memory");
    }
    parse_hello(&bytes[..len], memory)
}

pub(super) fn parse_hello(bytes: &[u8], fds: Vec<OwnedFd>) -> ControlRead<ShmHello> {
    let Some((head, rest)) = bytes.split_first_chunk::<10>() else {
        return ControlRead::Malformed("a short hello");
    };
    if head[..8] != MAGIC {
        return ControlRead::Malformed("a hello of something else");
    }
    let version = u16::from_le_bytes([head[8], head[9]]);
    if version != VERSION {
        return ControlRead::VersionMismatch(version);
    }
    let Some((lines, rest)) = rest.split_first_chunk() else {
        return ControlRead::Malformed("a short hello");
    };
    let Some((incarnation, name)) = rest.split_first_chunk() else {
        return ControlRead::Malformed("a short hello");
    };
    let (lines, incarnation) = (
        u32::from_le_bytes(*lines) as usize,
        u64::from_le_bytes(*incarnation),
    );
    let name = std::str::from_utf8(name)
        .ok()
        .and_then(|name| Address::new(Scheme::Shm, name).ok());
    let Some(from) = name.filter(|name| !name.name().is_empty()) else {
        return ControlRead::Malformed("a name that is none");
    };
    match <[OwnedFd; 1]>::try_from(fds) {
        Ok([segment]) => ControlRead::Message(ShmHello {
            from,
            lines,
            incarnation,
            segment,
        }),
        Err(_) => ControlRead::Malformed("not one descriptor"),
    }
}

/// Says something, never blocking. A peer that has no room for it has other news to read, or is
/// about to be noticed as gone.
pub(crate) fn send_control(socket: &ShmSocket, word: ControlMessage) {
    let _ = try_send_control(socket, word);
}

/// Likewise; false when there was no room for it. To a peer that has ended everything can be said.
pub(crate) fn try_send_control(socket: &ShmSocket, word: ControlMessage) -> bool {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    !matches!(
        rustix::net::send(socket, &encode_control(word), flags),
        Err(Errno::AGAIN)
    )
}

/// Says what a key stands for, never blocking.
pub(crate) fn send_grant(
    socket: &ShmSocket,
    grant: &MemoryGrant<BorrowedFd<'_>>,
) -> rustix::io::Result<()> {
    let mut message = Vec::with_capacity(32);
    message.extend(MAGIC);
    message.extend(VERSION.to_le_bytes());
    message.extend(MEMORY_GRANT.to_le_bytes());
    message.extend(grant.key.to_le_bytes());
    message.extend((grant.len as u64).to_le_bytes());
    let right = |right, bit| if grant.access.contains(right) { bit } else { 0 };
    let heeds = if grant.rma_events {
        GRANT_RMA_EVENTS
    } else {
        0
    };
    message.push(
        right(Access::REMOTE_READ, GRANT_READ) | right(Access::REMOTE_WRITE, GRANT_WRITE) | heeds,
    );
    if grant.base != 0 {
        message.extend(grant.base.to_le_bytes());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [grant.memory];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(&message)], &mut control, flags).map(drop)
}

fn encode_control(word: ControlMessage) -> [u8; CONTROL_LEN] {
    let (code, argument) = match word {
        ControlMessage::Accept(incarnation) => (ACCEPT, incarnation),
        ControlMessage::Reject(RejectReason::Version { .. }) => (REJECT_VERSION, 0),
        ControlMessage::Reject(RejectReason::User) => (REJECT_USER, 0),
        ControlMessage::Reject(RejectReason::Resources) => (REJECT_RESOURCES, 0),
        ControlMessage::Reject(_) => (REJECT_MALFORMED, 0),
        ControlMessage::Ready => (READY, 0),
        ControlMessage::EndpointClosed => (ENDPOINT_CLOSED, 0),
        ControlMessage::Doorbell => (DOORBELL, 0),
        ControlMessage::Disconnect => (DISCONNECT, 0),
        ControlMessage::MapMr(key) => (MAP_MR, key),
        ControlMessage::MrNotFound(key) => (MR_NOT_FOUND, key),
        ControlMessage::UnmapLoan(key) => (UNMAP_LOAN, key),
        ControlMessage::MrServedByOwner(key, false) => (MR_SERVED, key),
        ControlMessage::MrServedByOwner(key, true) => (MR_SERVED_RMA_EVENTS, key),
    };
    let mut message = [0; CONTROL_LEN];
    message[..8].copy_from_slice(&MAGIC);
    message[8..10].copy_from_slice(&VERSION.to_le_bytes());
    message[10..12].copy_from_slice(&code.to_le_bytes());
    message[12..].copy_from_slice(&argument.to_le_bytes());
    message
}

/// Reads what was said: a word, or a grant.
pub(crate) fn recv_control(socket: &ShmSocket) -> ControlRead<ControlEvent> {
    let mut bytes = [0; 64];
    match socket.recv(&mut bytes) {
        SeqpacketRecv::WouldBlock => ControlRead::WouldBlock,
        SeqpacketRecv::HungUp => ControlRead::HungUp,
        SeqpacketRecv::Truncated => ControlRead::Malformed("a message that is too long"),
        SeqpacketRecv::Stuck => {
            ControlRead::Malformed("descriptors that this process has no room for")
        }
        SeqpacketRecv::ControlTruncated(len) => match parse_grant(&bytes[..len]) {
            Some(grant) => ControlRead::Message(ControlEvent::GrantWithoutFd(grant.key)),
            None => ControlRead::Malformed("descriptors with what is no grant"),
        },
        SeqpacketRecv::Message(len, fds)
            if fds.is_empty() && parse_grant(&bytes[..len]).is_some() =>
        {
            ControlRead::Malformed("memory whose descriptor did not arrive")
        }
        SeqpacketRecv::Message(len, fds) if fds.is_empty() => {
            parse_control(&bytes[..len]).map(ControlEvent::Message)
        }
        SeqpacketRecv::Message(len, fds) => match <[OwnedFd; 1]>::try_from(fds) {
            Ok([memory]) => match parse_grant(&bytes[..len]) {
                Some(grant) => ControlRead::Message(ControlEvent::Grant(MemoryGrant {
                    key: grant.key,
                    len: grant.len,
                    access: grant.access,
                    base: grant.base,
                    rma_events: grant.rma_events,
                    memory,
                })),
                None => {
                    socket::close_in_background(vec![memory]);
                    ControlRead::Malformed("descriptors with what is no grant")
                }
            },
            Err(fds) => {
                socket::close_in_background(fds);
                ControlRead::Malformed("not one descriptor")
            }
        },
    }
}

fn parse_grant(bytes: &[u8]) -> Option<MemoryGrant<()>> {
    let (head, rest) = bytes.split_first_chunk::<12>()?;
    let head_is = |at: usize, value: u16| head[at..at + 2] == value.to_le_bytes();
    if head[..8] != MAGIC || !head_is(8, VERSION) || !head_is(10, MEMORY_GRANT) {
        return None;
    }
    let (key, rest) = rest.split_first_chunk()?;
    let (len, rest) = rest.split_first_chunk()?;
    let (&rights, base) = rest.split_first()?;
    let base = match base {
        [] => 0,
        base => u64::from_le_bytes(base.try_into().ok()?),
    };
    if rights & !(GRANT_READ | GRANT_WRITE | GRANT_RMA_EVENTS) != 0 {
        return None;
    }
    let right = |bit, right| {
        if rights & bit != 0 {
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
        rma_events: rights & GRANT_RMA_EVENTS != 0,
        memory: (),
    })
}

/// Whether a word is read as it was written.
#[cfg(all(feature = "microbench", not(loom)))]
pub(crate) fn round_trips(word: ControlMessage) -> bool {
    matches!(parse_control(&encode_control(word)), ControlRead::Message(read) if read == word)
}

/// A refusal for the version is understood in every version: the first twelve bytes are the same in
/// all.
fn parse_control(bytes: &[u8]) -> ControlRead<ControlMessage> {
    let Some((head, rest)) = bytes
        .split_first_chunk::<12>()
        .filter(|(head, _)| head[..8] == MAGIC)
    else {
        return ControlRead::Malformed("a word of something else");
    };
    let theirs = u16::from_le_bytes([head[8], head[9]]);
    let code = u16::from_le_bytes([head[10], head[11]]);
    if code == REJECT_VERSION {
        return ControlRead::Message(ControlMessage::Reject(RejectReason::Version {
            theirs,
            ours: VERSION,
        }));
    }
    let Ok(argument) = <[u8; 8]>::try_from(rest) else {
        return ControlRead::Malformed("a word of something else");
    };
    let argument = u64::from_le_bytes(argument);
    ControlRead::Message(match code {
        ACCEPT => ControlMessage::Accept(argument),
        READY => ControlMessage::Ready,
        ENDPOINT_CLOSED => ControlMessage::EndpointClosed,
        DOORBELL => ControlMessage::Doorbell,
        DISCONNECT => ControlMessage::Disconnect,
        MAP_MR => ControlMessage::MapMr(argument),
        MR_NOT_FOUND => ControlMessage::MrNotFound(argument),
        UNMAP_LOAN => ControlMessage::UnmapLoan(argument),
        MR_SERVED => ControlMessage::MrServedByOwner(argument, false),
        MR_SERVED_RMA_EVENTS => ControlMessage::MrServedByOwner(argument, true),
        REJECT_USER => ControlMessage::Reject(RejectReason::User),
        REJECT_MALFORMED => ControlMessage::Reject(RejectReason::Malformed),
        REJECT_RESOURCES => ControlMessage::Reject(RejectReason::Resources),
        other => ControlMessage::Reject(RejectReason::Other(other)),
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsFd;

    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;

    fn recv_message(socket: &ShmSocket) -> ControlRead<ControlMessage> {
        recv_control(socket).map(|said| match said {
            ControlEvent::Message(word) => word,
            other => panic!("{other:?}"),
        })
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
        assert!(matches!(recv_hello(&b), ControlRead::WouldBlock));
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
        assert!(
            matches!(recv_hello(&b), ControlRead::Malformed(what) if what.contains("no sealed memory"))
        );
        send_hello(
            &a,
            &shm_address("you"),
            &shm_address("me"),
            5,
            64,
            memory.as_fd(),
        )
        .unwrap();
        let ControlRead::Message(hello) = recv_hello(&b) else {
            panic!("a hello")
        };
        assert_eq!(
            (hello.from, hello.incarnation, hello.lines),
            (shm_address("me"), 5, 64)
        );
        for word in [
            ControlMessage::Accept(u64::MAX),
            ControlMessage::EndpointClosed,
            ControlMessage::Doorbell,
            ControlMessage::Disconnect,
            ControlMessage::MapMr(3),
            ControlMessage::MrNotFound(u64::MAX),
            ControlMessage::UnmapLoan(4),
            ControlMessage::Reject(RejectReason::User),
            ControlMessage::Reject(RejectReason::Version {
                theirs: VERSION,
                ours: VERSION,
            }),
        ] {
            send_control(&b, word);
            assert!(matches!(recv_message(&a), ControlRead::Message(got) if got == word));
        }
        drop(b);
        assert!(matches!(recv_message(&a), ControlRead::HungUp));
        let late = send_hello(
            &a,
            &shm_address("you"),
            &shm_address("me"),
            5,
            64,
            memory.as_fd(),
        );
        assert_eq!(
            late,
            Err(Error::PeerGone(shm_address("you"))),
            "it ended before the hello"
        );
    }

    /// A refusal for the version is read in any version, and the number in it is the peer's.
    #[test]
    fn version_mismatch_reports_both_versions() {
        let hello = [&MAGIC[..], &[9, 1], b"whatever comes then"].concat();
        assert!(matches!(
            parse_hello(&hello, Vec::new()),
            ControlRead::VersionMismatch(265)
        ));
        let refusal = [&MAGIC[..], &[9, 1, 1, 0], b"more"].concat();
        let told = ControlMessage::Reject(RejectReason::Version {
            theirs: 265,
            ours: VERSION,
        });
        assert!(matches!(parse_control(&refusal), ControlRead::Message(word) if word == told));
    }

    /// Closing this descriptor takes as long as its peer wishes.
    fn lingering_socket() -> (OwnedFd, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut near, &[0; 65_536]).is_ok() {}
        near.set_nonblocking(false).unwrap();
        let hour = std::time::Duration::from_secs(3600);
        rustix::net::sockopt::set_socket_linger(&near, Some(hour)).unwrap();
        (near.into(), far)
    }

    fn send_with_fds(socket: &ShmSocket, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
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

    /// Descriptors that a peer sends are closed where that holds up nobody: those of a word, those
    /// beyond what a hello has, and those never looked at. This test hangs otherwise.
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
        assert!(
            matches!(recv_message(&b), ControlRead::Malformed(what) if what.contains("descriptors"))
        );
        assert!(matches!(recv_hello(&b), ControlRead::Malformed(_)));
        drop(b);
    }

    #[test]
    fn malformed_messages_are_refused_and_descriptors_closed() {
        for garbage in [
            &b"x"[..],
            &[0; 200],
            b"fab-shm\0\x01\x00\x40\x00\x00\x00\0\0\0\0\0\0\0\0no/slash",
            &[7; 256],
        ] {
            let (a, b) = socket_pair();
            rustix::net::send(&a, garbage, SendFlags::empty()).unwrap();
            assert!(
                matches!(recv_hello(&b), ControlRead::Malformed(_)),
                "{garbage:?}"
            );
        }
        let (a, b) = socket_pair();
        rustix::net::send(&a, &[0; 300], SendFlags::empty()).unwrap();
        assert!(
            matches!(recv_hello(&b), ControlRead::Malformed(what) if what.contains("too long"))
        );
        rustix::net::send(
            &a,
            b"fab-shm\0\x01\x00\x40\x00\x00\x00\0\0\0\0\0\0\0\0name",
            SendFlags::empty(),
        )
        .unwrap();
        assert!(
            matches!(recv_hello(&b), ControlRead::Malformed(what) if what.contains("descriptor"))
        );
        rustix::net::send(&a, b"short", SendFlags::empty()).unwrap();
        assert!(matches!(recv_message(&b), ControlRead::Malformed(_)));
    }
}
