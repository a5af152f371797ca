//! Creation of anonymous memory that can be passed to peers by descriptor (memfd).

use std::os::fd::OwnedFd;

use fabric_core::{Error, Result};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// Creates an empty memfd with this name, which is for diagnostics. The caller resizes the memfd to
/// `size` bytes with the system call `call`, and then seals it.
///
/// # Errors
/// Errors of the operating system, and `EFBIG` of `call` for a size above `RLIMIT_FSIZE`. With such
/// a size, `call` would raise `SIGXFSZ`.
pub(crate) fn create(name: &str, size: u64, call: &'static str) -> Result<OwnedFd> {
    if getrlimit(Resource::Fsize)
        .current
        .is_some_and(|limit| size > limit)
    {
        return Err(Error::os(call, Errno::FBIG.raw_os_error()));
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not know `MFD_NOEXEC_SEAL`.
    rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| rustix::fs::memfd_create(name, flags))
        .map_err(|errno| Error::os("memfd_create", errno.raw_os_error()))
}
