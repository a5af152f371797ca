//! How two endpoints meet: a Unix socket in the abstract namespace, which vanishes with its process.
//!
//! The name of an endpoint is such a socket. Who wants to send connects and says hello, in one message with the
//! descriptor of the segment. The receiver answers welcome or refusal. After that the socket is the doorbell of both:
//! a message that says nothing but "look", sent only to a peer that sleeps. Its hang-up is the death of the peer.
//!
//! The doorbell is not an eventfd, because the flags and the counter of one would be shared with the peer, who could
//! make a ring block, and the domain with it. A message on a socket can be sent without ever blocking.
//!
//! Each side asks the kernel for the other's user and process, and deals only with its own user.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fabric_core::{Address, Error, Refusal, Result, Scheme};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// The version of everything two processes must agree on: hello, segment and records.
pub(crate) const VERSION: u16 = 1;
const MAGIC: [u8; 8] = *b"fab-shm\0";
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

const WELCOME: u16 = 0;
const REFUSED_VERSION: u16 = 1;
const REFUSED_USER: u16 = 2;
const REFUSED_MALFORMED: u16 = 3;
const REFUSED_RESOURCES: u16 = 4;
const GOODBYE: u16 = 100;
const RING: u16 = 101;
const LEAVE: u16 = 102;

/// What the connecting side says.
#[derive(Debug)]
pub(crate) struct Hello {
    pub(crate) from: Address,
    pub(crate) lines: usize,
    pub(crate) segment: OwnedFd,
}

/// Who is at the other end, as the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) user: u32,
    pub(crate) process: i32,
}

/// What comes back, then or later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Welcome,
    Refused(Refusal),
    /// The endpoint closes.
    Goodbye,
    /// The sender gives this connection up; its endpoint goes on.
    Leave,
    /// There is news: records, or room for them.
    Ring,
}

/// What a read from such a socket found.
#[derive(Debug)]
pub(crate) enum Read<T> {
    Nothing,
    Message(T),
    Malformed(&'static str),
    HungUp,
}

/// Listens at a name.
pub(crate) fn listen(at: &Address) -> Result<OwnedFd> {
    let socket = socket()?;
    match rustix::net::bind(&socket, &socket_address(at)?) {
        Ok(()) => {}
        Err(Errno::ADDRINUSE) => return Err(Error::AddressInUse(at.clone())),
        Err(errno) => return Err(Error::os("bind", errno.raw_os_error())),
    }
    rustix::net::listen(&socket, BACKLOG).map_err(|errno| Error::os("listen", errno.raw_os_error()))?;
    Ok(socket)
}

/// Connects to a name.
pub(crate) fn connect(to: &Address) -> Result<(OwnedFd, Credentials)> {
    let socket = socket()?;
    match rustix::net::connect(&socket, &socket_address(to)?) {
        Ok(()) => {}
        // The queue of connections there is full: nobody has accepted any for a while.
        Err(Errno::AGAIN) => {
            return Err(Error::Refused { peer: to.clone(), reason: Refusal::Resources });
        }
        Err(Errno::CONNREFUSED | Errno::NOENT) => return Err(Error::NoSuchPeer(to.clone())),
        Err(errno) => return Err(Error::os("connect", errno.raw_os_error())),
    }
    let (theirs, ours) = (credentials_of(&socket)?, rustix::process::geteuid().as_raw());
    if theirs.user != ours {
        return Err(Error::OtherUser { peer: to.clone(), theirs: theirs.user, ours });
    }
    Ok((socket, theirs))
}

/// Accepts a connection; `None` when there is none.
pub(crate) fn accept(listener: impl AsFd) -> Result<Option<OwnedFd>, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    loop {
        return match rustix::net::accept_with(&listener, flags) {
            Ok(socket) => Ok(Some(socket)),
            Err(Errno::AGAIN) => Ok(None),
            Err(Errno::INTR | Errno::CONNABORTED) => continue,
            Err(errno) => Err(errno),
        };
    }
}

/// A descriptor held in reserve.
pub(crate) fn spare() -> Result<OwnedFd, Errno> {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)
}

/// Who is at the other end.
pub(crate) fn credentials_of(socket: impl AsFd) -> Result<Credentials> {
    let peer = rustix::net::sockopt::socket_peercred(socket)
        .map_err(|errno| Error::os("getsockopt(SO_PEERCRED)", errno.raw_os_error()))?;
    Ok(Credentials { user: peer.uid.as_raw(), process: peer.pid.as_raw_nonzero().get() })
}

/// Says hello to `to`, with the segment. The peer may have ended since the connection was made.
pub(crate) fn send_hello(
    socket: impl AsFd,
    to: &Address,
    from: &Address,
    lines: usize,
    segment: BorrowedFd<'_>,
) -> Result<()> {
    let mut message = Vec::with_capacity(128);
    message.extend(MAGIC);
    message.extend(VERSION.to_le_bytes());
    message.extend((lines as u32).to_le_bytes());
    message.extend(from.name().as_bytes());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [segment];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(&message)], &mut control, SendFlags::NOSIGNAL);
    sent.map(drop).map_err(|errno| match errno {
        Errno::PIPE | Errno::CONNRESET => Error::PeerGone(to.clone()),
        errno => Error::os("sendmsg", errno.raw_os_error()),
    })
}

/// Reads a hello.
pub(crate) fn read_hello(socket: impl AsFd) -> Read<Hello> {
    let mut bytes = [0; 256];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let read = receive(socket, &mut bytes, &mut control);
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    let (memory, others): (Vec<_>, Vec<_>) =
        fds.into_iter().partition(|fd| rustix::fs::fcntl_get_seals(fd).is_ok());
    if !others.is_empty() {
        // The last close of a socket that lingers, or of a file in user space, takes as long as the peer likes.
        let close = std::thread::Builder::new().name("fab-close".into()).spawn(move || drop(others));
        drop(close);
        return Read::Malformed("a descriptor that is no sealed memory");
    }
    let Read::Message(len) = read else { return read.without_message() };
    parse_hello(&bytes[..len], memory)
}

fn parse_hello(bytes: &[u8], fds: Vec<OwnedFd>) -> Read<Hello> {
    let Some((head, name)) = bytes.split_at_checked(14) else { return Read::Malformed("a short hello") };
    if head[..8] != MAGIC {
        return Read::Malformed("a hello of something else");
    }
    let version = u16::from_le_bytes([head[8], head[9]]);
    if version != VERSION {
        return Read::Malformed("version");
    }
    let lines = u32::from_le_bytes([head[10], head[11], head[12], head[13]]) as usize;
    let name = std::str::from_utf8(name).ok().and_then(|name| Address::new(Scheme::Shm, name).ok());
    let Some(from) = name.filter(|name| !name.name().is_empty()) else {
        return Read::Malformed("a name that is none");
    };
    match <[OwnedFd; 1]>::try_from(fds) {
        Ok([segment]) => Read::Message(Hello { from, lines, segment }),
        Err(_) => Read::Malformed("not one descriptor"),
    }
}

/// Sends an answer, never blocking. A peer that has no room for it has other news to read, or is about to be noticed as
/// gone.
pub(crate) fn send_answer(socket: impl AsFd, answer: Answer) {
    let code = match answer {
        Answer::Welcome => WELCOME,
        Answer::Refused(Refusal::Version { .. }) => REFUSED_VERSION,
        Answer::Refused(Refusal::User) => REFUSED_USER,
        Answer::Refused(Refusal::Resources) => REFUSED_RESOURCES,
        Answer::Refused(_) => REFUSED_MALFORMED,
        Answer::Goodbye => GOODBYE,
        Answer::Ring => RING,
        Answer::Leave => LEAVE,
    };
    let mut message = [0; 12];
    message[..8].copy_from_slice(&MAGIC);
    message[8..10].copy_from_slice(&VERSION.to_le_bytes());
    message[10..].copy_from_slice(&code.to_le_bytes());
    let _ = rustix::net::send(socket, &message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// Reads an answer.
pub(crate) fn read_answer(socket: impl AsFd) -> Read<Answer> {
    let mut bytes = [0; 64];
    let mut control = RecvAncillaryBuffer::new(&mut []);
    let read = receive(socket, &mut bytes, &mut control);
    let Read::Message(len) = read else { return read.without_message() };
    if len != 12 || bytes[..8] != MAGIC {
        return Read::Malformed("an answer of something else");
    }
    let theirs = u16::from_le_bytes([bytes[8], bytes[9]]);
    Read::Message(match u16::from_le_bytes([bytes[10], bytes[11]]) {
        WELCOME => Answer::Welcome,
        GOODBYE => Answer::Goodbye,
        RING => Answer::Ring,
        LEAVE => Answer::Leave,
        REFUSED_VERSION => Answer::Refused(Refusal::Version { theirs, ours: VERSION }),
        REFUSED_USER => Answer::Refused(Refusal::User),
        REFUSED_MALFORMED => Answer::Refused(Refusal::Malformed),
        REFUSED_RESOURCES => Answer::Refused(Refusal::Resources),
        other => Answer::Refused(Refusal::Other(other)),
    })
}

impl<T> Read<T> {
    fn without_message<U>(self) -> Read<U> {
        match self {
            Self::Nothing | Self::Message(_) => Read::Nothing,
            Self::Malformed(what) => Read::Malformed(what),
            Self::HungUp => Read::HungUp,
        }
    }
}

fn receive(socket: impl AsFd, bytes: &mut [u8], control: &mut RecvAncillaryBuffer<'_>) -> Read<usize> {
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    loop {
        return match rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(bytes)], control, flags) {
            Ok(message) if message.bytes == 0 => Read::HungUp,
            Ok(message) if message.flags.contains(rustix::net::ReturnFlags::TRUNC) => {
                Read::Malformed("a message that is too long")
            }
            Ok(message) => Read::Message(message.bytes),
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => Read::Nothing,
            Err(_) => Read::HungUp,
        };
    }
}

fn socket() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|errno| Error::os("socket", errno.raw_os_error()))
}

/// The socket behind a name. A name is at most 80 bytes, so it fits.
pub(crate) fn socket_address(name: &Address) -> Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(format!("fabric-async/shm/{}", name.name()).as_bytes())
        .map_err(|errno| Error::os("bind", errno.raw_os_error()))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn name(text: &str) -> Address {
        Address::new(Scheme::Shm, text).unwrap()
    }

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::NONBLOCK;
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    }

    #[test]
    fn hello_and_answers_arrive_as_sent() {
        let (a, b) = pair();
        assert!(matches!(read_hello(&b), Read::Nothing));
        let (_segment, memory) = super::super::segment::Segment::create(64).unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        send_hello(&a, &name("you"), &name("me"), 64, null.as_fd()).unwrap();
        assert!(matches!(read_hello(&b), Read::Malformed(what) if what.contains("no sealed memory")));
        send_hello(&a, &name("you"), &name("me"), 64, memory.as_fd()).unwrap();
        let Read::Message(hello) = read_hello(&b) else { panic!("a hello") };
        assert_eq!((hello.from, hello.lines), (name("me"), 64));
        for answer in [
            Answer::Welcome,
            Answer::Goodbye,
            Answer::Ring,
            Answer::Leave,
            Answer::Refused(Refusal::User),
            Answer::Refused(Refusal::Version { theirs: VERSION, ours: VERSION }),
        ] {
            send_answer(&b, answer);
            assert!(matches!(read_answer(&a), Read::Message(got) if got == answer));
        }
        drop(b);
        assert!(matches!(read_answer(&a), Read::HungUp));
        let late = send_hello(&a, &name("you"), &name("me"), 64, memory.as_fd());
        assert_eq!(late, Err(Error::PeerGone(name("you"))), "it ended before the hello");
    }

    /// Every hello of the corpus, and many that differ from one of them in a byte or in length: read without a panic,
    /// and taken for good only if it is.
    #[test]
    fn the_corpus_of_hellos_is_replayed() {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpora/shm-hello");
        let mut seed = 1u64;
        let mut good = 0;
        for file in std::fs::read_dir(corpus).unwrap() {
            let path = file.unwrap().path();
            let bytes = std::fs::read(&path).unwrap();
            let expected = path.file_name().unwrap().to_string_lossy().starts_with("good");
            let fds = || vec![spare().unwrap()];
            let read = parse_hello(&bytes, fds());
            assert_eq!(matches!(read, Read::Message(_)), expected, "{}: {read:?}", path.display());
            good += u32::from(expected);
            for _ in 0..2000 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let mut changed = bytes.clone();
                if !changed.is_empty() {
                    let at = (seed >> 40) as usize % changed.len();
                    changed[at] ^= (seed >> 32) as u8;
                    changed.truncate(1 + (seed >> 16) as usize % changed.len());
                }
                if let Read::Message(hello) = parse_hello(&changed, Vec::new()) {
                    panic!("a hello without descriptors was taken: {hello:?}");
                }
            }
        }
        assert!(good > 0, "the corpus is there");
    }

    #[test]
    fn garbage_is_named_and_its_descriptors_are_closed() {
        for garbage in [&b"x"[..], &[0; 200], b"fab-shm\0\x01\x00\x40\x00\x00\x00no/slash", &[7; 256]] {
            let (a, b) = pair();
            rustix::net::send(&a, garbage, SendFlags::empty()).unwrap();
            assert!(matches!(read_hello(&b), Read::Malformed(_)), "{garbage:?}");
        }
        let (a, b) = pair();
        rustix::net::send(&a, &[0; 300], SendFlags::empty()).unwrap();
        assert!(matches!(read_hello(&b), Read::Malformed(what) if what.contains("too long")));
        rustix::net::send(&a, b"fab-shm\0\x01\x00\x40\x00\x00\x00name", SendFlags::empty()).unwrap();
        assert!(matches!(read_hello(&b), Read::Malformed(what) if what.contains("descriptor")));
        rustix::net::send(&a, b"short", SendFlags::empty()).unwrap();
        assert!(matches!(read_answer(&b), Read::Malformed(_)));
    }
}
