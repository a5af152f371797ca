//! Anonymous memory that is passed to peers by descriptor (memfd): creation, seals, and the check
//! of memory that a peer has passed.
//!
//! The creator allocates the memory and seals its size. A process maps the memory of a peer only if
//! it is sealed, has the announced size and is allocated. So no access within the mapping faults,
//! also when no memory is left, unless a process that can write the memory frees pages of it
//! (`FALLOC_FL_PUNCH_HOLE`). Of *sparse* memory only the first bytes are allocated; a process
//! populates the others before it accesses them.
//!
//! Ordinary pages that were freed are allocated again by the next access. For a huge page
//! (`MFD_HUGETLB`) the pool may have none, and the access faults. So a process maps the huge pages
//! of a peer only if they are sealed against writing, which also keeps them from being freed. The
//! mapping reserves the pages that are not allocated, except for a page of which the file has only
//! a part, so the length must be a multiple of the page size.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use fabric_core::{Error, Result};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::os_error::os_error;

/// Maximum bytes of a region's memory, without its control page.
pub(crate) const MAX_LEN: usize = 1 << 40;

/// Length above which memory is created only if the machine has that much available. Otherwise the
/// OOM killer might end processes, to no avail since shared memory is charged to no process.
const CHECK_THRESHOLD: usize = 64 << 20;

/// Checks that the machine has memory for `len` more bytes.
///
/// # Errors
/// `ENOMEM`.
pub(crate) fn check_available(len: usize) -> Result<()> {
    if len > CHECK_THRESHOLD && available_memory().is_some_and(|available| len as u64 > available) {
        return Err(os_error("fallocate")(Errno::NOMEM));
    }
    Ok(())
}

/// Returns the available memory in bytes, as the kernel estimates it.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
}

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
    let memory = create_empty(name, size, MemfdFlags::empty())?;
    allocate(&memory, allocated)?;
    if size > allocated {
        rustix::fs::ftruncate(&memory, size as u64).map_err(os_error("ftruncate"))?;
    }
    Ok(memory)
}

/// Creates memory as [`create`] does, of huge pages of the default size.
///
/// # Errors
/// Those of [`create`]; [`Error::Invalid`] for a size that is not a multiple of the page size.
pub(crate) fn create_huge(name: &str, size: usize) -> Result<OwnedFd> {
    let memory = create_empty(name, size, MemfdFlags::HUGETLB)?;
    check_whole_pages(size, page_len(&memory)?)?;
    allocate(&memory, size)?;
    Ok(memory)
}

/// Checks that the length of memory is a multiple of the bytes of its huge pages.
fn check_whole_pages(len: usize, page_len: usize) -> Result<()> {
    if len.is_multiple_of(page_len) {
        return Ok(());
    }
    Err(Error::Invalid {
        what: "length of memory",
        why: format!("{len} is not a multiple of the {page_len} bytes of a huge page"),
    })
}

/// Creates empty memory, which will have `size` bytes.
fn create_empty(name: &str, size: usize, flags: MemfdFlags) -> Result<OwnedFd> {
    let limit = getrlimit(Resource::Fsize).current;
    if limit.is_some_and(|limit| size as u64 > limit) {
        return Err(os_error("fallocate")(Errno::FBIG));
    }
    let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not know `MFD_NOEXEC_SEAL`.
    rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| rustix::fs::memfd_create(name, flags))
        .map_err(os_error("memfd_create"))
}

/// Allocates the first `len` bytes of memory. A page that is allocated when it is touched first
/// raises `SIGBUS` if there is no memory.
fn allocate(memory: &OwnedFd, len: usize) -> Result<()> {
    rustix::fs::fallocate(memory, FallocateFlags::empty(), 0, len as u64)
        .map_err(os_error("fallocate"))
}

/// Returns the bytes of a page of memory.
fn page_len(memory: impl AsFd) -> Result<usize> {
    let file_system = rustix::fs::fstatfs(memory).map_err(os_error("fstatfs"))?;
    let page_len = usize::try_from(file_system.f_bsize).unwrap_or(0);
    Ok(page_len.max(rustix::param::page_size()))
}

/// Allocates all of the memory that the program has created, and seals its size. Returns its length
/// and the bytes of its pages.
///
/// # Errors
/// [`Error::Invalid`] with the defect of the memory; [`Error::TooLong`]; errors of the operating
/// system, such as `ENOSPC`.
pub(crate) fn prepare(memory: &OwnedFd) -> Result<(usize, usize)> {
    let invalid = |why: &'static str| Error::Invalid {
        what: "memory",
        why: why.into(),
    };
    let seals = rustix::fs::fcntl_get_seals(memory)
        .map_err(|_| invalid("the descriptor is not one of memfd_create"))?;
    if seals.intersects(NO_WRITES) {
        return Err(invalid(
            "it is sealed against writing; clone the Memfd that has registered it",
        ));
    }
    let (page_len, file_system) = (page_len(memory)?, file_system(memory)?);
    let checked_status = || {
        let status = rustix::fs::fstat(memory).map_err(os_error("fstat"))?;
        match usize::try_from(status.st_size).unwrap_or(0) {
            0 => Err(invalid("it is empty; set its length before")),
            len if len > MAX_LEN => Err(Error::TooLong {
                what: "memory",
                len,
                limit: MAX_LEN,
            }),
            len => {
                if file_system == FileSystem::Hugetlbfs {
                    check_whole_pages(len, page_len)?;
                }
                Ok((len, usize::try_from(status.st_blocks).unwrap_or(0)))
            }
        }
    };
    // Memory that is refused for its length is not sealed.
    checked_status()?;
    if !seals.contains(SIZE_SEALS) {
        rustix::fs::fcntl_add_seals(memory, SIZE_SEALS).map_err(|_| {
            invalid(
                "it cannot be sealed; create it with MFD_ALLOW_SEALING, and open it for writing",
            )
        })?;
    }
    // The length is final since the seals.
    let (len, blocks) = checked_status()?;
    let allocated = blocks.saturating_mul(BLOCK_LEN);
    if file_system == FileSystem::Tmpfs && allocated < len {
        check_available(len - allocated)?;
    }
    allocate(memory, len)?;
    Ok((len, page_len))
}

/// Opens memory again. Flags and the position belong to the open file description, so those of the
/// result are its own.
///
/// # Errors
/// Errors of the operating system, also without `/proc`.
pub(crate) fn reopen(memory: &OwnedFd) -> Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(os_error("open"))
}

/// Prevents further seals of memory from [`prepare`], and, unless it is `writable` for peers,
/// mappings for writing. Returns whether peers may map the memory, and only with that right.
pub(crate) fn seal_for_peers(memory: &OwnedFd, writable: bool) -> bool {
    let added = match writable {
        true => SealFlags::SEAL,
        false => SealFlags::FUTURE_WRITE | SealFlags::SEAL,
    };
    let seals = || rustix::fs::fcntl_get_seals(memory).unwrap_or(SealFlags::empty());
    // Final seals are not added to: that would fail, and wait for peers that change the file.
    if !seals().contains(SealFlags::SEAL) {
        let _ = rustix::fs::fcntl_add_seals(memory, added);
    }
    let seals = seals();
    let has_right = if writable {
        !seals.intersects(NO_WRITES) && file_system(memory) == Ok(FileSystem::Tmpfs)
    } else {
        seals.intersects(NO_WRITES)
    };
    has_right && seals.contains(SealFlags::SEAL)
}

/// The seals of the size.
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
/// The seals each of which prevents new mappings for writing, and the freeing of pages.
const NO_WRITES: SealFlags = SealFlags::WRITE.union(SealFlags::FUTURE_WRITE);
/// The unit of the allocated blocks of a file (`stat(3type)`).
const BLOCK_LEN: usize = 512;

/// The file system of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileSystem {
    Tmpfs,
    /// Of huge pages.
    Hugetlbfs,
}

/// Returns the file system of memory.
///
/// # Errors
/// [`Error::Invalid`] for another one.
fn file_system(memory: impl AsFd) -> Result<FileSystem> {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
    let file_system = rustix::fs::fstatfs(memory).map_err(os_error("fstatfs"))?;
    match file_system.f_type as u64 {
        TMPFS_MAGIC => Ok(FileSystem::Tmpfs),
        HUGETLBFS_MAGIC => Ok(FileSystem::Hugetlbfs),
        _ => Err(Error::Invalid {
            what: "memory",
            why: "it is neither in tmpfs nor in hugetlbfs".into(),
        }),
    }
}

/// Seals the size of memory, and its seals. Unless it is `writable` for peers, no process can map
/// it for writing any more; existing mappings stay writable.
pub(crate) fn seal(memory: &OwnedFd, writable: bool) -> Result<()> {
    let mut seals = SIZE_SEALS | SealFlags::SEAL;
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
    match check_sealed(memory, size, min_allocated)? {
        FileSystem::Tmpfs => Ok(()),
        FileSystem::Hugetlbfs => Err("shared memory is not in tmpfs"),
    }
}

/// Checks a descriptor as [`check_received`] does, except that the memory may have huge pages.
/// Returns the bytes of its pages.
///
/// # Errors
/// The defect of the memory.
pub(crate) fn check_received_data(memory: &impl AsFd, size: usize) -> Result<usize, &'static str> {
    let memory = memory.as_fd();
    if check_sealed(memory, size, size)? == FileSystem::Tmpfs {
        return Ok(rustix::param::page_size());
    }
    let page_len = page_len(memory).map_err(|_| "shared memory has no page size")?;
    if !size.is_multiple_of(page_len) {
        return Err("shared memory ends in a part of a huge page");
    }
    Ok(page_len)
}

/// Checks that a descriptor of a peer is sealed memory of `size` bytes, of which this many bytes
/// are allocated. Returns its file system.
fn check_sealed(
    memory: impl AsFd,
    size: usize,
    min_allocated: usize,
) -> Result<FileSystem, &'static str> {
    let memory = memory.as_fd();
    let seals =
        rustix::fs::fcntl_get_seals(memory).map_err(|_| "shared memory cannot be sealed")?;
    if !seals.contains(SealFlags::SHRINK | SealFlags::SEAL) {
        return Err("shared memory is not sealed");
    }
    let file_system =
        file_system(memory).map_err(|_| "shared memory is of an unknown file system")?;
    // Checked before the allocation, which can then only grow.
    if file_system == FileSystem::Hugetlbfs && !seals.intersects(NO_WRITES) {
        return Err("huge pages of shared memory can be freed");
    }
    let status = rustix::fs::fstat(memory).map_err(|_| "shared memory has no size")?;
    if usize::try_from(status.st_size) != Ok(size) {
        return Err("shared memory does not have the announced size");
    }
    // Swapped pages count too.
    let allocated = usize::try_from(status.st_blocks).unwrap_or(0);
    if allocated.saturating_mul(BLOCK_LEN) < min_allocated {
        return Err("shared memory is not allocated");
    }
    Ok(file_system)
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
