//! Options of Unix sockets that `rustix` lacks: credentials and pidfd of the peer, and whether the
//! peer may send descriptors.
#![allow(unsafe_code)] // `getsockopt` and `setsockopt`, and ownership of a new descriptor

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use fabric_core::Result;
use rustix::io::Errno;

use super::os_error::{last_errno, os_error};

/// Option that returns a pidfd of the peer (Linux 6.5), which the libraries lack.
const SO_PEERPIDFD: libc::c_int = 77;
/// Option that permits the peer to send descriptors (Linux 6.16), which the libraries lack.
/// Accepted connections inherit it from their listener.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Credentials of the peer, as the kernel reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerCredentials {
    pub(crate) uid: u32,
    /// `None` for a process that is not visible in this PID namespace.
    pub(crate) pid: Option<i32>,
    /// A number that no other process has while this one exists; `None` if it is not known.
    pub(crate) process: Option<u64>,
}

/// Set in the number of a process that is not visible, to tell it from process ids.
const INVISIBLE_PROCESS: u64 = 1 << 62;

/// Returns the credentials of the peer (`SO_PEERCRED`). The type of `rustix` cannot express the
/// process id of an invisible process, which is 0.
///
/// # Errors
/// Errors of `getsockopt`.
pub(crate) fn peer_credentials(socket: impl AsFd) -> Result<PeerCredentials> {
    let credentials = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    // SAFETY: the fields are integers, which may have any value.
    let peer = unsafe { get_option(&socket, libc::SO_PEERCRED, credentials) }
        .map_err(os_error("getsockopt(SO_PEERCRED)"))?;
    let pid = (peer.pid != 0).then_some(peer.pid);
    Ok(PeerCredentials {
        uid: peer.uid,
        pid,
        process: match pid {
            Some(pid) => u64::try_from(pid).ok(),
            None => pidfd_inode(&socket).map(|inode| inode | INVISIBLE_PROCESS),
        },
    })
}

/// Returns the inode number of the pidfd of the peer, which is unique for a process. `None` on
/// kernels before 6.9.
fn pidfd_inode(socket: impl AsFd) -> Option<u64> {
    const PIDFS_MAGIC: u64 = 0x5049_4446;
    let pidfd = peer_pidfd(socket).ok()?;
    let file_system = rustix::fs::fstatfs(&pidfd).ok()?;
    // Older kernels have one inode for all pidfds.
    let is_unique = file_system.f_type as u64 == PIDFS_MAGIC;
    is_unique.then_some(rustix::fs::fstat(&pidfd).ok()?.st_ino)
}

/// Returns a pidfd of the peer's process.
///
/// # Errors
/// Errors of `getsockopt`; `ENOPROTOOPT` on kernels before 6.5.
pub(crate) fn peer_pidfd(socket: impl AsFd) -> Result<OwnedFd, Errno> {
    // SAFETY: an integer may have any value.
    let fd: libc::c_int = unsafe { get_option(socket, SO_PEERPIDFD, -1) }?;
    if fd < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: the kernel has just created this descriptor, for this call.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets whether the peer may send descriptors. Kernels before 6.16 lack the option and always
/// permit descriptors.
pub(crate) fn set_passrights(socket: impl AsFd, permitted: bool) {
    let value = libc::c_int::from(permitted);
    // SAFETY: the kernel reads an integer of the given length.
    unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        );
    }
}

/// Returns the value of an option of the level `SOL_SOCKET`.
///
/// # Safety
/// Every bit pattern must be a valid `T`.
unsafe fn get_option<T>(socket: impl AsFd, option: libc::c_int, mut value: T) -> Result<T, Errno> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `value`, which remains valid.
    let status = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw mut value).cast(),
            &raw mut len,
        )
    };
    if status == 0 {
        Ok(value)
    } else {
        Err(last_errno())
    }
}
