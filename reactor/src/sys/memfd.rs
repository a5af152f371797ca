//! Anonymous memory that is passed to peers by descriptor (memfd): creation, seals, and the check
//! of memory that a peer has passed.
//!
//! The creator allocates the memory and seals its size. A process maps the memory of a peer only if
//! it is sealed, has the announced size and is allocated. So no access within the mapping faults,
//! also when no memory is left, unless a process that can write the memory frees pages of it
//! (`FALLOC_FL_PUNCH_HOLE`). Of *sparse* memory only the first bytes are allocated; a process
//! populates the others before it accesses them.

use std::os::fd::{AsFd, OwnedFd};

use fabric_core::Result;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::os_error::os_error;

/// Creates memory of `size` bytes, zeroed, allocated and not sealed. The name is for diagnostics.
///
/// # Errors
/// Errors of the operating system, such as `ENOSPC` if there is not enough memory, and `EFBIG` for
/// a size above `RLIMIT_FSIZE`. With such a size, the call would raise `SIGXFSZ`.
pub(crate) fn create(name: &str, size: usize) -> Result<OwnedFd> {
    create_sparse(name, size, size)
}

/// Creates memory as [`create`] does, and allocates the first `allocated` bytes.
///
/// # Errors
/// Those of [`create`].
pub(crate) fn create_sparse(name: &str, size: usize, allocated: usize) -> Result<OwnedFd> {
    let (size, call) = (size as u64, "fallocate");
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
    // A page that is allocated when it is touched first raises `SIGBUS` if there is no memory.
    rustix::fs::fallocate(&memory, FallocateFlags::empty(), 0, allocated as u64)
        .map_err(os_error(call))?;
    if size > allocated as u64 {
        rustix::fs::ftruncate(&memory, size).map_err(os_error("ftruncate"))?;
    }
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

/// Checks that a descriptor of a peer is sealed memory of `size` bytes, all of them allocated.
///
/// # Errors
/// The defect of the memory.
pub(crate) fn check_received(memory: impl AsFd, size: usize) -> Result<(), &'static str> {
    check_received_sparse(memory, size, size)
}

/// Checks a descriptor as [`check_received`] does, except that of the memory only this many bytes
/// must be allocated.
///
/// # Errors
/// The defect of the memory.
pub(crate) fn check_received_sparse(
    memory: impl AsFd,
    size: usize,
    min_allocated: usize,
) -> Result<(), &'static str> {
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
    // Swapped pages count too. The unit is 512 bytes (`stat(3type)`).
    let allocated = u64::try_from(status.st_blocks).unwrap_or(0) * 512;
    if allocated < min_allocated as u64 {
        return Err("shared memory is not allocated");
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_not_allocated_is_refused() {
        let size = 3 * 4096;
        let memory = create("memfd-test", size).unwrap();
        seal(&memory, true).unwrap();
        assert_eq!(check_received(&memory, size), Ok(()));
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&memory, punch, 4096, 4096).unwrap();
        let refused = check_received(&memory, size);
        assert_eq!(refused, Err("shared memory is not allocated"));
    }
}
