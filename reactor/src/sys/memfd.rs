//! Anonymous memory that is passed to peers by descriptor (memfd): creation, seals, and the check
//! of memory that a peer has passed.
//!
//! The creator seals the size of the memory. A process maps the memory of a peer only if it is
//! sealed and has the announced size. So no access within the mapping can fault, whatever the peer
//! does.

use std::os::fd::{AsFd, OwnedFd};

use fabric_core::Result;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::os_error::os_error;

/// When the pages of new memory are allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageAllocation {
    /// When they are touched first. A page that cannot be allocated raises `SIGBUS`.
    OnDemand,
    /// At creation, which fails if there is not enough memory.
    AtCreation,
}

/// Creates memory of `size` bytes, zeroed and not sealed. The name is for diagnostics.
///
/// # Errors
/// Errors of the operating system, and `EFBIG` for a size above `RLIMIT_FSIZE`. With such a size,
/// the call would raise `SIGXFSZ`.
pub(crate) fn create(name: &str, size: usize, allocation: PageAllocation) -> Result<OwnedFd> {
    let size = size as u64;
    let call = match allocation {
        PageAllocation::OnDemand => "ftruncate",
        PageAllocation::AtCreation => "fallocate",
    };
    if getrlimit(Resource::Fsize)
        .current
        .is_some_and(|limit| size > limit)
    {
        return Err(os_error(call)(Errno::FBIG));
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not know `MFD_NOEXEC_SEAL`.
    let memory = rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| rustix::fs::memfd_create(name, flags))
        .map_err(os_error("memfd_create"))?;
    match allocation {
        PageAllocation::OnDemand => rustix::fs::ftruncate(&memory, size),
        PageAllocation::AtCreation => {
            rustix::fs::fallocate(&memory, FallocateFlags::empty(), 0, size)
        }
    }
    .map_err(os_error(call))?;
    Ok(memory)
}

/// Seals the size of memory, and its seals. Unless it is `writable` for peers, no process can map
/// it for writing any more; existing mappings stay writable.
pub(crate) fn seal(memory: &OwnedFd, writable: bool) -> Result<()> {
    let mut seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    if !writable {
        seals |= SealFlags::FUTURE_WRITE;
    }
    rustix::fs::fcntl_add_seals(memory, seals).map_err(os_error("fcntl(F_ADD_SEALS)"))
}

/// Returns whether a descriptor is memory that can be sealed. Closing such a descriptor does not
/// block, but takes long if it frees much memory.
pub(crate) fn is_memory(fd: impl AsFd) -> bool {
    rustix::fs::fcntl_get_seals(fd).is_ok()
}

/// Checks that a descriptor of a peer is sealed memory of `size` bytes.
///
/// # Errors
/// The defect of the memory.
pub(crate) fn check_received(memory: impl AsFd, size: usize) -> Result<(), &'static str> {
    let memory = memory.as_fd();
    let seals =
        rustix::fs::fcntl_get_seals(memory).map_err(|_| "shared memory cannot be sealed")?;
    if !seals.contains(SealFlags::SHRINK | SealFlags::SEAL) {
        return Err("shared memory is not sealed");
    }
    // Memory in hugetlbfs can raise SIGBUS when it is touched, despite the seals.
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    let file_system =
        rustix::fs::fstatfs(memory).map_err(|_| "shared memory is of an unknown file system")?;
    if file_system.f_type as u64 != TMPFS_MAGIC {
        return Err("shared memory is not in tmpfs");
    }
    let status = rustix::fs::fstat(memory).map_err(|_| "shared memory has no size")?;
    if usize::try_from(status.st_size) != Ok(size) {
        return Err("shared memory does not have the announced size");
    }
    Ok(())
}
