//! The Unix sockets of endpoints: `SOCK_SEQPACKET`, named in the abstract namespace, never
//! blocking.
//!
//! A peer may send descriptors with any message. Closing a descriptor can take as long as the peer
//! likes (a lingering socket, a file of a file system in user space), and when a socket is closed
//! the kernel closes the descriptors that were never received. Abstract names have no permissions,
//! so a process of any user can connect.
//!
//! * Descriptors are accepted only from peers of this user. A listener, the connections it accepts
//!   and a connection that is being made take none (`SO_PASSRIGHTS`, Linux 6.16) until
//!   [`ShmSocket::credentials`] were checked and [`ShmSocket::admit_rights`] was called. The kernel
//!   refuses descriptors to their sender until then.
//! * Kernels before 6.16 may queue descriptors before the credentials are checked. Nothing is
//!   received from such a peer, and its connection is closed like any other.
//! * This process has created or accepted each of its sockets. A socket that a peer creates and
//!   sends is never used: its creator can hold a duplicate and set options (`SO_PEEK_OFF`).
//! * [`ShmSocket::recv`] receives a message without giving up the last reference to a descriptor.
//! * A connection that still holds descriptors is closed by the [`closer`], and so are received
//!   descriptors ([`PeerFd`]).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use fabric_core::transport::{ProcessCredentials, WaitSet};
use fabric_core::{Address, Error, Result, Scheme};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType,
};

use crate::sys::closer::{self, PeerFd};
use crate::sys::fd_reserve;
use crate::sys::fork_guard::ForkGuard;
use crate::sys::os_error::{epoll_ctl_error, os_error};
use crate::sys::sockopt;
use crate::sys::watched_fd::WatchedFd;

pub(crate) use crate::sys::sockopt::PeerCredentials;

/// Backlog of a listener: connections that may wait to be accepted.
const BACKLOG: i32 = 1024;
/// Prefix of the abstract name of an endpoint.
const NAME_PREFIX: &str = "fabric-async/shm/";
/// Messages that are discarded when a connection is closed. If there are more, the closing threads
/// close the socket.
const MAX_DRAINED_MESSAGES: usize = 32;
/// The most descriptors a message can carry (`SCM_MAX_FD`).
const SCM_MAX_FD: usize = 253;

/// Calls `open` with the name `at`. If `at` is `None` or has an empty name, calls `open` with
/// generated names until one is free.
pub(super) fn with_free_name<T>(
    at: Option<&Address>,
    mut open: impl FnMut(&Address) -> Result<T>,
) -> Result<T> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    if let Some(at) = at {
        at.check_scheme(Scheme::Shm)?;
        if !at.name().is_empty() {
            return open(at);
        }
    }
    // A process in another PID namespace may have an endpoint of the generated name: abstract names
    // are per network namespace.
    loop {
        let index = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}.{index}", std::process::id());
        match open(&Address::new(Scheme::Shm, &name)?) {
            Err(Error::AddressInUse(_)) => continue,
            opened => return opened,
        }
    }
}

/// A listening Unix socket.
pub(crate) struct ShmListener {
    socket: WatchedFd,
}

/// A connected Unix socket.
pub(crate) struct ShmSocket {
    /// Some until the socket is dropped.
    fd: Option<Arc<OwnedFd>>,
    /// The domain's epoll set; `None` while the socket is not watched.
    wait_set: Option<Arc<dyn WaitSet>>,
    fork_guard: ForkGuard,
}

/// Result of [`ShmSocket::connect`].
pub(crate) enum SocketConnect {
    /// The socket, and the credentials of the process that listens.
    Connected(ShmSocket, PeerCredentials),
    /// The backlog of the listener is full.
    BacklogFull,
}

/// A handle by which any thread sends on a socket, as long as the socket is open.
#[derive(Clone, Debug, Default)]
pub(crate) struct SocketHandle(Weak<OwnedFd>);

impl PeerCredentials {
    /// Returns what the application may see.
    pub(crate) fn for_application(&self) -> ProcessCredentials {
        ProcessCredentials::new(self.uid, self.gid, self.pid)
    }

    /// Returns whether the peer is this process.
    pub(crate) fn is_this_process(&self) -> bool {
        self.process == Some(std::process::id().into())
    }

    /// Checks that the peer's process belongs to the user of this process.
    ///
    /// # Errors
    /// [`Error::OtherUser`] with this address.
    pub(crate) fn check_user(&self, peer: &Address) -> Result<()> {
        let ours = rustix::process::geteuid().as_raw();
        if self.uid == ours && !stands_for_several_users(ours) {
            return Ok(());
        }
        Err(Error::OtherUser {
            peer: peer.clone(),
            theirs: self.uid,
            ours,
        })
    }
}

/// Returns whether a user id, as the kernel reports it, stands for several users. It does so if it
/// is the overflow user id (`user_namespaces(7)`), which the kernel reports for every user that the
/// user namespace of this process does not map, and if there are such users.
fn stands_for_several_users(uid: u32) -> bool {
    static OVERFLOW_UID: OnceLock<u32> = OnceLock::new();
    let overflow_uid = *OVERFLOW_UID.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
        let uid = text.ok().and_then(|text| text.trim().parse().ok());
        uid.unwrap_or(65534)
    });
    // The initial namespace maps all users, in one range.
    let maps_all_users = || {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        map.split_whitespace().eq(["0", "0", "4294967295"])
    };
    uid == overflow_uid && !maps_all_users()
}

/// Result of [`ShmSocket::recv`].
#[derive(Debug)]
pub(crate) enum SeqpacketRecv {
    WouldBlock,
    /// A message of this many bytes, and the descriptors that came with it.
    Message(usize, Vec<PeerFd>),
    /// A message of this many bytes whose descriptors were closed, because this process has reached
    /// its descriptor limit.
    ControlTruncated(usize),
    /// The descriptors of the next message exceed this process's limit. The message stays in the
    /// socket, so the connection cannot be used any more.
    Stuck,
    /// A message longer than the buffer. Its descriptors were closed.
    Truncated,
    /// The peer has closed the socket, or receiving failed.
    HungUp,
}

impl ShmListener {
    /// Binds to a name and listens.
    pub(crate) fn open(at: &Address) -> Result<Self> {
        let socket = new_socket()?;
        // Set before `listen`, so that every connection inherits the option.
        sockopt::set_passrights(&socket, false);
        fd_reserve::restore(fd_reserve::lock());
        bind(&socket, at)?;
        rustix::net::listen(&socket, BACKLOG).map_err(os_error("listen"))?;
        let socket = WatchedFd::new(socket);
        Ok(Self { socket })
    }

    /// Watches the listener in the domain's epoll set, which reports `token`, until the listener is
    /// dropped or unwatched.
    pub(crate) fn watch(&mut self, wait_set: &Arc<dyn WaitSet>, token: u64) -> Result<()> {
        self.socket.watch(wait_set, token)
    }

    /// Stops watching the listener.
    pub(crate) fn unwatch(&mut self) {
        self.socket.unwatch();
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.socket.is_watched()
    }

    /// Accepts a connection; `None` if none is waiting.
    pub(crate) fn accept(&self) -> Result<Option<ShmSocket>, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            return match rustix::net::accept_with(&self.socket, flags) {
                Ok(socket) => Ok(Some(ShmSocket::new(socket))),
                Err(Errno::AGAIN) => Ok(None),
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(errno) => Err(errno),
            };
        }
    }
}

impl Drop for ShmListener {
    fn drop(&mut self) {
        if !self.socket.in_original_process() {
            return;
        }
        self.unwatch();
        // No peer can connect any more. Connections in the backlog may hold descriptors of peers,
        // so they are closed as accepted ones are.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        while let Ok(Some(socket)) = self.accept() {
            drop(socket);
        }
    }
}

impl ShmSocket {
    /// Wraps a socket that this process has created or accepted.
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self {
            fd: Some(Arc::new(fd)),
            wait_set: None,
            fork_guard: ForkGuard::current_process(),
        }
    }

    /// Connects to a name, if its owner is of this user.
    ///
    /// # Errors
    /// [`Error::NoSuchPeer`], [`Error::OtherUser`], and those of the operating system.
    pub(crate) fn connect(to: &Address) -> Result<SocketConnect> {
        Self::new(new_socket()?).connect_to(to)
    }

    /// Binds a socket to the name `from` and connects it as [`connect`](Self::connect) does. The
    /// name is in use until the socket is closed.
    ///
    /// # Errors
    /// [`Error::AddressInUse`], and those of `connect`.
    pub(crate) fn connect_from(from: &Address, to: &Address) -> Result<SocketConnect> {
        let socket = new_socket()?;
        bind(&socket, from)?;
        Self::new(socket).connect_to(to)
    }

    /// Connects this socket to a name, if the owner of the name is of this user; then permits
    /// descriptors.
    fn connect_to(self, to: &Address) -> Result<SocketConnect> {
        sockopt::set_passrights(&self, false);
        match rustix::net::connect(&self, &socket_address(to, "connect")?) {
            Ok(()) => {}
            Err(Errno::AGAIN) => return Ok(SocketConnect::BacklogFull),
            Err(Errno::CONNREFUSED | Errno::NOENT) => return Err(Error::NoSuchPeer(to.clone())),
            Err(errno) => return Err(os_error("connect")(errno)),
        }
        let peer = self.credentials()?;
        peer.check_user(to)?;
        self.admit_rights();
        Ok(SocketConnect::Connected(self, peer))
    }

    /// Returns a handle that does not keep the socket open.
    pub(crate) fn handle(&self) -> SocketHandle {
        SocketHandle(self.fd.as_ref().map_or_else(Weak::new, Arc::downgrade))
    }

    /// Permits the peer to send descriptors from now on. The caller has checked the peer's user.
    pub(crate) fn admit_rights(&self) {
        sockopt::set_passrights(self, true);
    }

    /// Returns false in a forked child.
    pub(crate) fn in_original_process(&self) -> bool {
        self.fork_guard.in_original_process()
    }

    /// Watches the socket in the domain's epoll set, which reports `token`, until the socket is
    /// dropped or unwatched.
    pub(crate) fn watch(&mut self, wait: &Arc<dyn WaitSet>, token: u64) -> Result<()> {
        wait.watch(self.as_fd(), token).map_err(epoll_ctl_error)?;
        self.wait_set = Some(wait.clone());
        Ok(())
    }

    /// Stops watching the socket.
    pub(crate) fn unwatch(&mut self) {
        if let Some(wait) = self.wait_set.take() {
            wait.unwatch(self.as_fd());
        }
    }

    /// Returns the credentials of the peer.
    pub(crate) fn credentials(&self) -> Result<PeerCredentials> {
        sockopt::peer_credentials(self)
    }

    /// Returns a pidfd of the peer's process, whose id is `pid`; it becomes readable when the
    /// process ends.
    pub(crate) fn peer_pidfd(&self, pid: i32) -> Option<OwnedFd> {
        if let Ok(pidfd) = sockopt::peer_pidfd(self) {
            return Some(pidfd);
        }
        // Kernels before 6.5. The process id may have been reused; the marker in the segment that
        // `cma` checks detects the reuse.
        let pid = rustix::process::Pid::from_raw(pid)?;
        rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
    }

    /// Returns the name that the peer's socket is bound to. `None` if the socket is not bound to an
    /// endpoint name.
    pub(crate) fn peer_name(&self) -> Option<Address> {
        let name = SocketAddrUnix::try_from(rustix::net::getpeername(self).ok()??).ok()?;
        let name = name.abstract_name()?.strip_prefix(NAME_PREFIX.as_bytes())?;
        let name = Address::new(Scheme::Shm, std::str::from_utf8(name).ok()?).ok()?;
        (!name.name().is_empty()).then_some(name)
    }

    /// Sends a message with up to two descriptors, without blocking.
    ///
    /// # Errors
    /// Errors of `sendmsg`, such as `AGAIN` for a full socket and `TOOMANYREFS` for too many
    /// descriptors in flight.
    pub(crate) fn send(&self, message: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg(self, &[IoSlice::new(message)], &mut control, flags).map(drop)
    }

    /// Returns whether the peer has hung up and all its messages were received.
    pub(crate) fn has_hung_up(&self) -> bool {
        matches!(self.peek(&mut [0; 1]), PeekedMessage::HungUp)
    }

    /// Receives a message, without blocking.
    ///
    /// The message is peeked, which installs duplicates of its descriptors, and then removed from
    /// the socket. The descriptors that the kernel closes at the removal are not the last
    /// references, so their close cannot block. A message whose descriptors exceed this process's
    /// limit is removed only if the [reserve descriptors](fd_reserve::lock_restored) make enough
    /// room.
    pub(crate) fn recv(&self, bytes: &mut [u8]) -> SeqpacketRecv {
        let mut peeked = self.peek(bytes);
        // Set if the descriptors exceed the limit. The reserve makes room for those of a grant.
        let mut reserve = None;
        if let PeekedMessage::Message { flags, fds, .. } = &mut peeked
            && flags.contains(ReturnFlags::CTRUNC)
        {
            fds.clear();
            reserve = Some(fd_reserve::lock_restored());
            drop(reserve.as_mut().and_then(|reserve| reserve.take()));
            peeked = self.peek(bytes);
        }
        let (len, flags, fds) = match peeked {
            PeekedMessage::Nothing => return SeqpacketRecv::WouldBlock,
            PeekedMessage::HungUp => return SeqpacketRecv::HungUp,
            PeekedMessage::Message { len, flags, fds } => (len, flags, fds),
        };
        let has_all_fds = !flags.contains(ReturnFlags::CTRUNC);
        if has_all_fds {
            self.remove_peeked();
        }
        // Returns the message, or closes what was received of the message and reports why.
        if let Some(reserve) = reserve {
            drop(fds);
            fd_reserve::restore(reserve);
            return if has_all_fds {
                SeqpacketRecv::ControlTruncated(len)
            } else {
                SeqpacketRecv::Stuck
            };
        }
        if flags.contains(ReturnFlags::TRUNC) {
            return SeqpacketRecv::Truncated;
        }
        SeqpacketRecv::Message(len, fds)
    }

    /// Peeks at the next message and its descriptors.
    fn peek(&self, bytes: &mut [u8]) -> PeekedMessage {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT | RecvFlags::PEEK;
        let message = loop {
            match rustix::net::recvmsg(self, &mut [IoSliceMut::new(bytes)], &mut control, flags) {
                // The peer has closed without reading everything. Its earlier messages are still
                // queued.
                Err(Errno::INTR | Errno::CONNRESET) => continue,
                received => break received,
            }
        };
        let mut fds = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                fds.extend(rights.map(PeerFd::from));
            }
        }
        match message {
            Ok(message) if message.bytes == 0 && fds.is_empty() => PeekedMessage::HungUp,
            Ok(message) => PeekedMessage::Message {
                len: message.bytes,
                flags: message.flags,
                fds,
            },
            Err(Errno::AGAIN) => PeekedMessage::Nothing,
            Err(_) => PeekedMessage::HungUp,
        }
    }

    /// Removes the peeked message from the socket.
    fn remove_peeked(&self) {
        while let Err(Errno::INTR | Errno::CONNRESET) =
            rustix::net::recv(self, &mut [0; 1], RecvFlags::DONTWAIT)
        {}
    }

    /// Shuts the connection down and discards its messages up to the first one with descriptors.
    /// Returns whether all were discarded, so that closing the socket cannot block.
    fn shut_down_and_drain(&self) -> bool {
        let _ = rustix::net::shutdown(self, Shutdown::Both);
        // With `SO_PASSCRED` each message carries credentials, which tell an empty message from the
        // end of the stream. The control buffer has no room for descriptors, so none is received.
        if rustix::net::sockopt::set_socket_passcred(self, true).is_err() {
            return false;
        }
        for _ in 0..MAX_DRAINED_MESSAGES {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
            let mut byte = [0; 1];
            let mut into = [IoSliceMut::new(&mut byte)];
            match rustix::net::recvmsg(self, &mut into, &mut control, flags) {
                Err(Errno::INTR | Errno::CONNRESET) => {}
                // The socket was never connected.
                Err(Errno::NOTCONN) => return true,
                Err(_) => return false,
                Ok(message) if message.flags.contains(ReturnFlags::CTRUNC) => return false,
                Ok(_) if control.drain().next().is_none() => return true,
                Ok(_) => self.remove_peeked(),
            }
        }
        false
    }
}

/// The next message of a socket.
enum PeekedMessage {
    Nothing,
    HungUp,
    Message {
        len: usize,
        flags: ReturnFlags,
        fds: Vec<PeerFd>,
    },
}

impl AsFd for ShmSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("socket is open until drop").as_fd()
    }
}

impl std::fmt::Debug for ShmSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.fd.fmt(f)
    }
}

impl Drop for ShmSocket {
    fn drop(&mut self) {
        if !self.in_original_process() || self.fd.is_none() {
            return;
        }
        self.unwatch();
        // The shutdown tells the peer now, even if the descriptor is closed later.
        let is_drained = self.shut_down_and_drain();
        // `into_inner` returns nothing while another thread sends by a handle; that thread then
        // closes the descriptor.
        let fd = self.fd.take().and_then(Arc::into_inner);
        if !is_drained {
            fd.into_iter().for_each(closer::close);
        }
    }
}

impl SocketHandle {
    /// Calls `act` with the socket if it is open.
    pub(crate) fn with_socket(&self, act: impl FnOnce(BorrowedFd<'_>)) {
        let Some(fd) = self.0.upgrade() else {
            return;
        };
        act(fd.as_fd());
        // The socket may have been dropped during `act`, so that this is the last reference. Its
        // messages may hold descriptors.
        Arc::into_inner(fd).into_iter().for_each(closer::close);
    }
}

/// Creates an unconnected socket.
fn new_socket() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(os_error("socket"))
}

/// Binds a socket to a name.
fn bind(socket: &OwnedFd, at: &Address) -> Result<()> {
    match rustix::net::bind(socket, &socket_address(at, "bind")?) {
        Ok(()) => Ok(()),
        Err(Errno::ADDRINUSE) => Err(Error::AddressInUse(at.clone())),
        Err(errno) => Err(os_error("bind")(errno)),
    }
}

/// Returns the socket address of a name. A name is at most 80 bytes, so it fits.
fn socket_address(name: &Address, call: &'static str) -> Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(format!("{NAME_PREFIX}{}", name.name()).as_bytes())
        .map_err(os_error(call))
}
