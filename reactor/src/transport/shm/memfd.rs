//! Creation of anonymous memory that can be passed to peers by descriptor (memfd).

use std::os::fd::OwnedFd;

use fabric_core::{Error, Result};
use rustix::fs::MemfdFlags;
use rustix::process::{Resource, getrlimit};

const EFBIG: i32 = 27;

/// Creates a memfd that is to be resized to `size` bytes and then sealed; `call` names the system
/// call that will resize it.
///
/// # Errors
/// Errors of the operating system, and `EFBIG` for a size above `RLIMIT_FSIZE`: the kernel would
/// end the process with `SIGXFSZ`.
pub(crate) fn create(name: &str, size: u64, call: &'static str) -> Result<OwnedFd> {
    if getrlimit(Resource::Fsize)
        .current
        .is_some_and(|limit| size > limit)
    {
        return Err(Error::os(call, EFBIG));
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not know `MFD_NOEXEC_SEAL`.
    rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| rustix::fs::memfd_create(name, flags))
        .map_err(|errno| Error::os("memfd_create", errno.raw_os_error()))
}
