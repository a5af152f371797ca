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
use fabric_core::{Address, Error, Refusal, Result, Scheme};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::socket::{self, Received, Socket};

/// The version of everything two processes must agree on: hello, segment and records.
pub(crate) const VERSION: u16 = 1;
const MAGIC: [u8; 8] = *b"fab-shm\0";
/// The length of a word.
const WORD_LEN: usize = 20;
/// Messages read from a socket in one go.
pub(crate) const READS_PER_LOOK: usize = 64;

const WELCOME: u16 = 0;
const REFUSED_VERSION: u16 = 1;
const REFUSED_USER: u16 = 2;
const REFUSED_MALFORMED: u16 = 3;
const REFUSED_RESOURCES: u16 = 4;
const GOODBYE: u16 = 100;
const RING: u16 = 101;
const LEAVE: u16 = 102;
const MAP: u16 = 103;
const DENIED: u16 = 104;
const GRANT: u16 = 105;
const FORGET: u16 = 106;
const SERVED: u16 = 107;
const SERVED_HEEDED: u16 = 108;
const READY: u16 = 109;

/// The rights of a grant, as they travel; and whether the endpoint wants to hear of what is done.
const READ: u8 = 1;
const WRITE: u8 = 2;
const HEEDS: u8 = 4;

/// What the connecting side says.
#[derive(Debug)]
pub(crate) struct Hello {
    pub(crate) from: Address,
    /// Which endpoint of that name this is.
    pub(crate) incarnation: u64,
    pub(crate) lines: usize,
    pub(crate) segment: OwnedFd,
}

/// What is said after the hello, by either side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// The receiver has accepted the connection of a process of its own user, and admits
    /// descriptors: the hello may be sent.
    Ready,
    /// The peer has taken the segment; and which endpoint of its name it is.
    Welcome(u64),
    Refused(Refusal),
    /// The endpoint closes.
    Goodbye,
    /// The sender gives this connection up; its endpoint goes on.
    Leave,
    /// There is news: records, or room for them.
    Ring,
    /// The sender asks for the region of this key.
    Map(u64),
    /// There is no region of this key.
    Denied(u64),
    /// The sender serves the region of this key, and whether it wants to hear of everything that is
    /// done there.
    Served(u64, bool),
    /// The sender will not lend this memory again before it gives it anew.
    Forget(u64),
}

/// Memory, with its descriptor: the answer to [`Word::Map`], or what the sender is going to lend.
#[derive(Debug)]
pub(crate) struct Grant<T> {
    pub(crate) key: u64,
    pub(crate) len: usize,
    pub(crate) access: Access,
    /// What its owner calls its first byte.
    pub(crate) base: u64,
    /// The endpoint wants to hear of everything that is done there.
    pub(crate) heeds: bool,
    pub(crate) memory: T,
}

/// What is said after the hello.
#[derive(Debug)]
pub(crate) enum Said {
    Word(Word),
    Grant(Grant<OwnedFd>),
    /// A grant of this key, for whose descriptor this process had no room.
    Lost(u64),
}

/// What a read from such a socket found.
#[derive(Debug)]
pub(crate) enum Read<T> {
    Nothing,
    Message(T),
    Malformed(&'static str),
    OtherVersion(u16),
    /// This process had no room for the descriptor that came with it.
    NoRoom,
    HungUp,
}

impl<T> Read<T> {
    fn map<U>(self, convert: impl FnOnce(T) -> U) -> Read<U> {
        match self {
            Self::Message(message) => Read::Message(convert(message)),
            Self::Nothing => Read::Nothing,
            Self::Malformed(what) => Read::Malformed(what),
            Self::OtherVersion(theirs) => Read::OtherVersion(theirs),
            Self::NoRoom => Read::NoRoom,
            Self::HungUp => Read::HungUp,
        }
    }
}

/// Says hello to `to`, with the segment. The peer may have ended since the connection was made.
pub(crate) fn send_hello(
    socket: &Socket,
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
        Errno::PIPE | Errno::CONNRESET => match read_said(socket) {
            // It did not wait for a hello.
            Read::Message(Said::Word(Word::Refused(reason))) => Error::Refused {
                peer: to.clone(),
                reason,
            },
            _ => Error::PeerGone(to.clone()),
        },
        errno => Error::os("sendmsg", errno.raw_os_error()),
    })
}

/// Reads a hello.
pub(crate) fn read_hello(socket: &Socket) -> Read<Hello> {
    let mut bytes = [0; 256];
    let (len, fds) = match socket.receive(&mut bytes) {
        Received::Nothing => return Read::Nothing,
        Received::HungUp => return Read::HungUp,
        Received::TooLong => return Read::Malformed("a message that is too long"),
        Received::Stripped(_) | Received::Stuck => return Read::NoRoom,
        Received::Message(len, fds) => (len, fds),
    };
    let (memory, others): (Vec<_>, Vec<_>) = fds
        .into_iter()
        .partition(|fd| rustix::fs::fcntl_get_seals(fd).is_ok());
    let strange = !others.is_empty();
    socket::discard(others);
    if strange {
        return Read::Malformed("a descriptor that is no sealed memory");
    }
    parse_hello(&bytes[..len], memory)
}

pub(super) fn parse_hello(bytes: &[u8], fds: Vec<OwnedFd>) -> Read<Hello> {
    let Some((head, rest)) = bytes.split_first_chunk::<10>() else {
        return Read::Malformed("a short hello");
    };
    if head[..8] != MAGIC {
        return Read::Malformed("a hello of something else");
    }
    let version = u16::from_le_bytes([head[8], head[9]]);
    if version != VERSION {
        return Read::OtherVersion(version);
    }
    let Some((lines, rest)) = rest.split_first_chunk() else {
        return Read::Malformed("a short hello");
    };
    let Some((incarnation, name)) = rest.split_first_chunk() else {
        return Read::Malformed("a short hello");
    };
    let (lines, incarnation) = (
        u32::from_le_bytes(*lines) as usize,
        u64::from_le_bytes(*incarnation),
    );
    let name = std::str::from_utf8(name)
        .ok()
        .and_then(|name| Address::new(Scheme::Shm, name).ok());
    let Some(from) = name.filter(|name| !name.name().is_empty()) else {
        return Read::Malformed("a name that is none");
    };
    match <[OwnedFd; 1]>::try_from(fds) {
        Ok([segment]) => Read::Message(Hello {
            from,
            lines,
            incarnation,
            segment,
        }),
        Err(_) => Read::Malformed("not one descriptor"),
    }
}

/// Says something, never blocking. A peer that has no room for it has other news to read, or is
/// about to be noticed as gone.
pub(crate) fn say(socket: &Socket, word: Word) {
    let _ = try_say(socket, word);
}

/// Likewise; false when there was no room for it. To a peer that has ended everything can be said.
pub(crate) fn try_say(socket: &Socket, word: Word) -> bool {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    !matches!(
        rustix::net::send(socket, &encode_word(word), flags),
        Err(Errno::AGAIN)
    )
}

/// Says what a key stands for, never blocking.
pub(crate) fn send_grant(socket: &Socket, grant: &Grant<BorrowedFd<'_>>) -> rustix::io::Result<()> {
    let mut message = Vec::with_capacity(32);
    message.extend(MAGIC);
    message.extend(VERSION.to_le_bytes());
    message.extend(GRANT.to_le_bytes());
    message.extend(grant.key.to_le_bytes());
    message.extend((grant.len as u64).to_le_bytes());
    let right = |right, bit| if grant.access.contains(right) { bit } else { 0 };
    let heeds = if grant.heeds { HEEDS } else { 0 };
    message.push(right(Access::REMOTE_READ, READ) | right(Access::REMOTE_WRITE, WRITE) | heeds);
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

fn encode_word(word: Word) -> [u8; WORD_LEN] {
    let (code, argument) = match word {
        Word::Welcome(incarnation) => (WELCOME, incarnation),
        Word::Refused(Refusal::Version { .. }) => (REFUSED_VERSION, 0),
        Word::Refused(Refusal::User) => (REFUSED_USER, 0),
        Word::Refused(Refusal::Resources) => (REFUSED_RESOURCES, 0),
        Word::Refused(_) => (REFUSED_MALFORMED, 0),
        Word::Ready => (READY, 0),
        Word::Goodbye => (GOODBYE, 0),
        Word::Ring => (RING, 0),
        Word::Leave => (LEAVE, 0),
        Word::Map(key) => (MAP, key),
        Word::Denied(key) => (DENIED, key),
        Word::Forget(key) => (FORGET, key),
        Word::Served(key, false) => (SERVED, key),
        Word::Served(key, true) => (SERVED_HEEDED, key),
    };
    let mut message = [0; WORD_LEN];
    message[..8].copy_from_slice(&MAGIC);
    message[8..10].copy_from_slice(&VERSION.to_le_bytes());
    message[10..12].copy_from_slice(&code.to_le_bytes());
    message[12..].copy_from_slice(&argument.to_le_bytes());
    message
}

/// Reads what was said: a word, or a grant.
pub(crate) fn read_said(socket: &Socket) -> Read<Said> {
    let mut bytes = [0; 64];
    match socket.receive(&mut bytes) {
        Received::Nothing => Read::Nothing,
        Received::HungUp => Read::HungUp,
        Received::TooLong => Read::Malformed("a message that is too long"),
        Received::Stuck => Read::Malformed("descriptors that this process has no room for"),
        Received::Stripped(len) => match parse_grant(&bytes[..len]) {
            Some(grant) => Read::Message(Said::Lost(grant.key)),
            None => Read::Malformed("descriptors with what is no grant"),
        },
        Received::Message(len, fds) if fds.is_empty() && parse_grant(&bytes[..len]).is_some() => {
            Read::Malformed("memory whose descriptor did not arrive")
        }
        Received::Message(len, fds) if fds.is_empty() => parse_word(&bytes[..len]).map(Said::Word),
        Received::Message(len, fds) => match <[OwnedFd; 1]>::try_from(fds) {
            Ok([memory]) => match parse_grant(&bytes[..len]) {
                Some(grant) => Read::Message(Said::Grant(Grant {
                    key: grant.key,
                    len: grant.len,
                    access: grant.access,
                    base: grant.base,
                    heeds: grant.heeds,
                    memory,
                })),
                None => {
                    socket::discard(vec![memory]);
                    Read::Malformed("descriptors with what is no grant")
                }
            },
            Err(fds) => {
                socket::discard(fds);
                Read::Malformed("not one descriptor")
            }
        },
    }
}

fn parse_grant(bytes: &[u8]) -> Option<Grant<()>> {
    let (head, rest) = bytes.split_first_chunk::<12>()?;
    let head_is = |at: usize, value: u16| head[at..at + 2] == value.to_le_bytes();
    if head[..8] != MAGIC || !head_is(8, VERSION) || !head_is(10, GRANT) {
        return None;
    }
    let (key, rest) = rest.split_first_chunk()?;
    let (len, rest) = rest.split_first_chunk()?;
    let (&rights, base) = rest.split_first()?;
    let base = match base {
        [] => 0,
        base => u64::from_le_bytes(base.try_into().ok()?),
    };
    if rights & !(READ | WRITE | HEEDS) != 0 {
        return None;
    }
    let right = |bit, right| {
        if rights & bit != 0 {
            right
        } else {
            Access::empty()
        }
    };
    Some(Grant {
        key: u64::from_le_bytes(*key),
        len: usize::try_from(u64::from_le_bytes(*len)).ok()?,
        access: right(READ, Access::REMOTE_READ) | right(WRITE, Access::REMOTE_WRITE),
        base,
        heeds: rights & HEEDS != 0,
        memory: (),
    })
}

/// Whether a word is read as it was written.
#[cfg(all(feature = "work", not(loom)))]
pub(crate) fn reads_back(word: Word) -> bool {
    matches!(parse_word(&encode_word(word)), Read::Message(read) if read == word)
}

/// A refusal for the version is understood in every version: the first twelve bytes are the same in
/// all.
fn parse_word(bytes: &[u8]) -> Read<Word> {
    let Some((head, rest)) = bytes
        .split_first_chunk::<12>()
        .filter(|(head, _)| head[..8] == MAGIC)
    else {
        return Read::Malformed("a word of something else");
    };
    let theirs = u16::from_le_bytes([head[8], head[9]]);
    let code = u16::from_le_bytes([head[10], head[11]]);
    if code == REFUSED_VERSION {
        return Read::Message(Word::Refused(Refusal::Version {
            theirs,
            ours: VERSION,
        }));
    }
    let Ok(argument) = <[u8; 8]>::try_from(rest) else {
        return Read::Malformed("a word of something else");
    };
    let argument = u64::from_le_bytes(argument);
    Read::Message(match code {
        WELCOME => Word::Welcome(argument),
        READY => Word::Ready,
        GOODBYE => Word::Goodbye,
        RING => Word::Ring,
        LEAVE => Word::Leave,
        MAP => Word::Map(argument),
        DENIED => Word::Denied(argument),
        FORGET => Word::Forget(argument),
        SERVED => Word::Served(argument, false),
        SERVED_HEEDED => Word::Served(argument, true),
        REFUSED_USER => Word::Refused(Refusal::User),
        REFUSED_MALFORMED => Word::Refused(Refusal::Malformed),
        REFUSED_RESOURCES => Word::Refused(Refusal::Resources),
        other => Word::Refused(Refusal::Other(other)),
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsFd;

    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;

    fn read_word(socket: &Socket) -> Read<Word> {
        read_said(socket).map(|said| match said {
            Said::Word(word) => word,
            other => panic!("{other:?}"),
        })
    }

    fn name(text: &str) -> Address {
        Address::new(Scheme::Shm, text).unwrap()
    }

    fn pair() -> (Socket, Socket) {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (a, b) = rustix::net::socketpair(family, kind, SocketFlags::NONBLOCK, None).unwrap();
        (Socket::new(a), Socket::new(b))
    }

    #[test]
    fn hello_and_words_arrive_as_sent() {
        let (a, b) = pair();
        assert!(matches!(read_hello(&b), Read::Nothing));
        let (_segment, memory) = super::super::segment::Segment::create(64).unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        send_hello(&a, &name("you"), &name("me"), 5, 64, null.as_fd()).unwrap();
        assert!(
            matches!(read_hello(&b), Read::Malformed(what) if what.contains("no sealed memory"))
        );
        send_hello(&a, &name("you"), &name("me"), 5, 64, memory.as_fd()).unwrap();
        let Read::Message(hello) = read_hello(&b) else {
            panic!("a hello")
        };
        assert_eq!(
            (hello.from, hello.incarnation, hello.lines),
            (name("me"), 5, 64)
        );
        for word in [
            Word::Welcome(u64::MAX),
            Word::Goodbye,
            Word::Ring,
            Word::Leave,
            Word::Map(3),
            Word::Denied(u64::MAX),
            Word::Forget(4),
            Word::Refused(Refusal::User),
            Word::Refused(Refusal::Version {
                theirs: VERSION,
                ours: VERSION,
            }),
        ] {
            say(&b, word);
            assert!(matches!(read_word(&a), Read::Message(got) if got == word));
        }
        drop(b);
        assert!(matches!(read_word(&a), Read::HungUp));
        let late = send_hello(&a, &name("you"), &name("me"), 5, 64, memory.as_fd());
        assert_eq!(
            late,
            Err(Error::PeerGone(name("you"))),
            "it ended before the hello"
        );
    }

    /// A refusal for the version is read in any version, and the number in it is the peer's.
    #[test]
    fn versions_are_told() {
        let hello = [&MAGIC[..], &[9, 1], b"whatever comes then"].concat();
        assert!(matches!(
            parse_hello(&hello, Vec::new()),
            Read::OtherVersion(265)
        ));
        let refusal = [&MAGIC[..], &[9, 1, 1, 0], b"more"].concat();
        let told = Word::Refused(Refusal::Version {
            theirs: 265,
            ours: VERSION,
        });
        assert!(matches!(parse_word(&refusal), Read::Message(word) if word == told));
    }

    /// Closing this descriptor takes as long as its peer wishes.
    fn lingering() -> (OwnedFd, std::net::TcpStream) {
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

    fn send_with(socket: &Socket, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
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
    fn closing_what_a_peer_sends_holds_up_nobody() {
        let (_segment, memory) = super::super::segment::Segment::create(64).unwrap();
        let (linger, _far) = lingering();
        let (a, b) = pair();
        let mut fds = vec![memory.as_fd(); 15];
        fds.push(linger.as_fd());
        send_with(&a, b"x", &fds[15..]);
        send_with(&a, b"x", &fds);
        send_with(&a, b"", &fds[15..]);
        send_with(&a, b"x", &fds[15..]);
        drop(linger);
        assert!(matches!(read_word(&b), Read::Malformed(what) if what.contains("descriptors")));
        assert!(matches!(read_hello(&b), Read::Malformed(_)));
        drop(b);
    }

    #[test]
    fn garbage_is_named_and_its_descriptors_are_closed() {
        for garbage in [
            &b"x"[..],
            &[0; 200],
            b"fab-shm\0\x01\x00\x40\x00\x00\x00\0\0\0\0\0\0\0\0no/slash",
            &[7; 256],
        ] {
            let (a, b) = pair();
            rustix::net::send(&a, garbage, SendFlags::empty()).unwrap();
            assert!(matches!(read_hello(&b), Read::Malformed(_)), "{garbage:?}");
        }
        let (a, b) = pair();
        rustix::net::send(&a, &[0; 300], SendFlags::empty()).unwrap();
        assert!(matches!(read_hello(&b), Read::Malformed(what) if what.contains("too long")));
        rustix::net::send(
            &a,
            b"fab-shm\0\x01\x00\x40\x00\x00\x00\0\0\0\0\0\0\0\0name",
            SendFlags::empty(),
        )
        .unwrap();
        assert!(matches!(read_hello(&b), Read::Malformed(what) if what.contains("descriptor")));
        rustix::net::send(&a, b"short", SendFlags::empty()).unwrap();
        assert!(matches!(read_word(&b), Read::Malformed(_)));
    }
}
