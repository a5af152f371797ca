//! Memory that can be passed on: it has a descriptor, and no name.

use std::os::fd::OwnedFd;

use fabric_core::{Error, Result};
use rustix::fs::MemfdFlags;
use rustix::process::{Resource, getrlimit};

const EFBIG: i32 = 27;

/// Makes memory that is to be given this size, and then sealed; `call` is what gives it.
///
/// # Errors
/// Those of the operating system. A size over the limit for files is one of them here: the kernel
/// would end the process.
pub(crate) fn create(name: &str, size: u64, call: &'static str) -> Result<OwnedFd> {
    if getrlimit(Resource::Fsize)
        .current
        .is_some_and(|limit| size > limit)
    {
        return Err(Error::os(call, EFBIG));
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not know the flag that keeps the memory from being executed.
    rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| rustix::fs::memfd_create(name, flags))
        .map_err(|errno| Error::os("memfd_create", errno.raw_os_error()))
}
