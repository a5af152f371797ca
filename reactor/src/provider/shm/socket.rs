//! The sockets endpoints meet on: named in the abstract namespace, one message at a time, never
//! blocking.
//!
//! A peer may send descriptors with any message. Closing one can take as long as the peer likes (a
//! socket that lingers, a file in user space), and with a socket the kernel closes those that were
//! never received. So every message is received with room for all the descriptors it can carry, and
//! what comes from a peer, its connection included, is closed on a thread that holds up nobody.
#![allow(unsafe_code)] // the credentials of a peer, and its descriptor, which the kernel writes

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};

use fabric_core::provider::WaitSet;
use fabric_core::{Address, Error, Refusal, Result};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, Shutdown,
    SocketAddrUnix, SocketFlags, SocketType,
};

use crate::provider::origin::Origin;
use crate::wait::unwatchable;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;
/// Messages of a caller that are looked at before it is turned away.
const MOST_UNREAD: usize = 32;
/// The most descriptors a message can carry (`SCM_MAX_FD`).
const MOST_DESCRIPTORS: usize = 253;

/// The socket option of that name, which the library does not know yet.
const SO_PEERPIDFD: libc::c_int = 77;

/// A name where peers connect.
#[derive(Debug)]
pub(crate) struct Listener {
    fd: OwnedFd,
    origin: Origin,
}

/// A connection with a peer.
pub(crate) struct Socket {
    /// Present until drop.
    fd: Option<OwnedFd>,
    /// Where it is watched.
    wait: Option<Arc<dyn WaitSet>>,
    origin: Origin,
}

/// Who is at the other end, as the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) user: u32,
    /// Unknown of a process that this one's process namespace does not show.
    pub(crate) process: Option<i32>,
}

/// What a receive found.
#[derive(Debug)]
pub(crate) enum Received {
    Nothing,
    /// A message of this many bytes, and the descriptors that came with it.
    Message(usize, Vec<OwnedFd>),
    /// Likewise, but there was no room for all the descriptors: this process has too many. What
    /// came is closed.
    Stripped(usize),
    TooLong,
    HungUp,
}

impl Listener {
    /// Listens at a name.
    pub(crate) fn open(at: &Address) -> Result<Self> {
        let socket = socket()?;
        match rustix::net::bind(&socket, &address_of(at, "bind")?) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => return Err(Error::AddressInUse(at.clone())),
            Err(errno) => return Err(Error::os("bind", errno.raw_os_error())),
        }
        rustix::net::listen(&socket, BACKLOG)
            .map_err(|errno| Error::os("listen", errno.raw_os_error()))?;
        Ok(Self {
            fd: socket,
            origin: Origin::here(),
        })
    }

    /// Whether this is the process that has it, and no child.
    pub(crate) fn is_ours(&self) -> bool {
        self.origin.is_here()
    }

    /// Accepts a connection; `None` when there is none.
    pub(crate) fn accept(&self) -> Result<Option<Socket>, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            return match rustix::net::accept_with(&self.fd, flags) {
                Ok(socket) => Ok(Some(Socket::new(socket))),
                Err(Errno::AGAIN) => Ok(None),
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(errno) => Err(errno),
            };
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if !self.is_ours() {
            return;
        }
        // Nobody can come any more, and who has not been accepted is a peer as well.
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Both);
        while let Ok(Some(stranger)) = self.accept() {
            drop(stranger);
        }
    }
}

impl Socket {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self {
            fd: Some(fd),
            wait: None,
            origin: Origin::here(),
        }
    }

    /// Connects to a name, if it is one of this user.
    pub(crate) fn connect(to: &Address) -> Result<(Self, Credentials)> {
        let socket = Self::new(socket()?);
        match rustix::net::connect(&socket, &address_of(to, "connect")?) {
            Ok(()) => {}
            // The queue of connections there is full: nobody has accepted any for a while.
            Err(Errno::AGAIN) => {
                return Err(Error::Refused {
                    peer: to.clone(),
                    reason: Refusal::Resources,
                });
            }
            Err(Errno::CONNREFUSED | Errno::NOENT) => return Err(Error::NoSuchPeer(to.clone())),
            Err(errno) => return Err(Error::os("connect", errno.raw_os_error())),
        }
        let (theirs, ours) = (socket.credentials()?, rustix::process::geteuid().as_raw());
        if theirs.user != ours {
            return Err(Error::OtherUser {
                peer: to.clone(),
                theirs: theirs.user,
                ours,
            });
        }
        Ok((socket, theirs))
    }

    /// Whether this is the process that has it, and no child.
    pub(crate) fn is_ours(&self) -> bool {
        self.origin.is_here()
    }

    /// Reports to this set from now on, until it is dropped or unwatched.
    pub(crate) fn watch(&mut self, wait: &Arc<dyn WaitSet>, token: u64) -> Result<()> {
        wait.watch(self.as_fd(), token).map_err(unwatchable)?;
        self.wait = Some(wait.clone());
        Ok(())
    }

    /// Reports no more.
    pub(crate) fn unwatch(&mut self) {
        if let Some(wait) = self.wait.take() {
            wait.unwatch(self.as_fd());
        }
    }

    /// Who is at the other end.
    pub(crate) fn credentials(&self) -> Result<Credentials> {
        let mut peer = libc::ucred {
            pid: 0,
            uid: u32::MAX,
            gid: u32::MAX,
        };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to `peer`, whose fields are integers that
        // may have any value.
        let failed = unsafe {
            let to = (&raw mut peer).cast();
            libc::getsockopt(
                self.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                to,
                &raw mut len,
            )
        };
        if failed != 0 {
            let errno = std::io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or_default();
            return Err(Error::os("getsockopt(SO_PEERCRED)", errno));
        }
        Ok(Credentials {
            user: peer.uid,
            process: (peer.pid != 0).then_some(peer.pid),
        })
    }

    /// Closes the connection at once, if it holds nothing whose closing could take long; its
    /// descriptor is free then.
    pub(crate) fn close_now(mut self) {
        let _ = rustix::net::shutdown(&self, Shutdown::Both);
        // Nothing more can come.
        for _ in 0..MOST_UNREAD {
            match self.receive(&mut [0]) {
                Received::Message(_, fds) => discard(fds),
                Received::Stripped(_) | Received::TooLong => {}
                Received::Nothing | Received::HungUp => {
                    self.unwatch();
                    drop(self.fd.take());
                    return;
                }
            }
        }
    }

    /// A descriptor of the process at the other end, which has this number; readable once it has
    /// ended.
    pub(crate) fn process(&self, number: i32) -> Option<OwnedFd> {
        let (mut fd, mut len) = (-1, size_of::<i32>() as libc::socklen_t);
        // SAFETY: the kernel writes at most `len` bytes to `fd`.
        let failed = unsafe {
            let to = (&raw mut fd).cast();
            libc::getsockopt(
                self.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                SO_PEERPIDFD,
                to,
                &raw mut len,
            )
        };
        if failed == 0 && fd >= 0 {
            // SAFETY: the kernel has just made this descriptor, for this call.
            return Some(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        // Kernels before 6.5. The number may be another's by now, whom the probe finds out.
        let number = rustix::process::Pid::from_raw(number)?;
        rustix::process::pidfd_open(number, rustix::process::PidfdFlags::empty()).ok()
    }

    /// Receives a message, never blocking.
    pub(crate) fn receive(&self, bytes: &mut [u8]) -> Received {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let message = loop {
            match rustix::net::recvmsg(self, &mut [IoSliceMut::new(bytes)], &mut control, flags) {
                // The peer has closed without reading everything. What it had said before is still
                // there.
                Err(Errno::INTR | Errno::CONNRESET) => continue,
                received => break received,
            }
        };
        let mut fds = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                fds.extend(rights);
            }
        }
        match message {
            Ok(message) if message.bytes == 0 && fds.is_empty() => Received::HungUp,
            Ok(message) if message.flags.contains(ReturnFlags::CTRUNC) => {
                discard(fds);
                Received::Stripped(message.bytes)
            }
            Ok(message) if message.flags.contains(ReturnFlags::TRUNC) => {
                discard(fds);
                Received::TooLong
            }
            Ok(message) => Received::Message(message.bytes, fds),
            Err(Errno::AGAIN) => Received::Nothing,
            Err(_) => Received::HungUp,
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("present until drop").as_fd()
    }
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.fd.fmt(f)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if !self.is_ours() || self.fd.is_none() {
            return;
        }
        self.unwatch();
        // The peer learns of it now, whenever the descriptor is closed.
        let _ = rustix::net::shutdown(&*self, Shutdown::Both);
        discard(self.fd.take().into_iter().collect());
    }
}

/// Closes descriptors of a peer where it holds up nobody.
pub(crate) fn discard(fds: Vec<OwnedFd>) {
    static CLOSER: OnceLock<Option<Sender<Vec<OwnedFd>>>> = OnceLock::new();
    if fds.is_empty() {
        return;
    }
    let closer = CLOSER.get_or_init(|| {
        let (sender, receiver) = channel();
        let close = move || receiver.iter().for_each(drop::<Vec<OwnedFd>>);
        let spawned = std::thread::Builder::new()
            .name("fab-close".into())
            .spawn(close);
        spawned.is_ok().then_some(sender)
    });
    // Without a thread they are closed here. It ends only with the process.
    if let Some(closer) = closer {
        let _ = closer.send(fds);
    }
}

/// A descriptor held in reserve.
pub(crate) fn spare() -> Result<OwnedFd, Errno> {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)
}

fn socket() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|errno| Error::os("socket", errno.raw_os_error()))
}

/// The socket behind a name. A name is at most 80 bytes, so it fits.
fn address_of(name: &Address, call: &'static str) -> Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(format!("fabric-async/shm/{}", name.name()).as_bytes())
        .map_err(|errno| Error::os(call, errno.raw_os_error()))
}
