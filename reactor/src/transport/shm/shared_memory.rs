//! Shared memory that its owner grants to peers, which map and access it directly: regions, chunks
//! of loans, and bounce buffers. Regions of memory of the program are in `memfd_region`.
//!
//! The owner creates and allocates the memory (a memfd), seals its size, and sends the descriptor
//! in a grant. A peer maps the memory only if it is sealed, has the announced size and is allocated
//! (`sys::memfd`). Memory that peers may only read is sealed against writable mappings other than
//! the owner's.
//!
//! Decision: the validity of a region is a word in its first page, which every access of a peer
//! checks, in its own cache as long as the word does not change. So revoking a key needs no round
//! trip to the peers. (Loans do not use the word.) A peer with write permission can corrupt the
//! bytes that it may write, and the word; the owner relies on neither.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fabric_core::atomic::{AtomicOp, Datatype};
use fabric_core::flags::Access;
use fabric_core::mr::{RegionBytes, RegionMemory};
use fabric_core::{Error, Result};

use super::memfd_region::MemfdRegion;
use crate::sys::fork_guard::ForkGuard;
use crate::sys::mapping::{CONTROL_LEN, MemoryOwner, SharedMapping};
use crate::sys::memfd;

/// Shared memory at its owner.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    mapping: SharedMapping,
    /// Descriptor that peers are granted.
    fd: OwnedFd,
    /// A forked child must not revoke the memory of its parent.
    fork_guard: ForkGuard,
}

impl SharedMemory {
    /// Creates shared memory with `len` bytes of data, zeroed and allocated. Peers can write the
    /// memory only if `access` has `REMOTE_WRITE`.
    ///
    /// # Errors
    /// [`Error::TooLong`], and errors of the operating system, such as `ENOMEM`.
    pub(crate) fn create(len: usize, access: Access) -> Result<Self> {
        if len > memfd::MAX_LEN {
            return Err(Error::TooLong {
                what: "memory region",
                len,
                limit: memfd::MAX_LEN,
            });
        }
        memfd::check_available(len)?;
        let fd = memfd::create("fabric-region", CONTROL_LEN + len)?;
        let mapping = SharedMapping::map(&fd, len, true, MemoryOwner::ThisProcess)?;
        memfd::seal(&fd, access.contains(Access::REMOTE_WRITE))?;
        mapping.set_valid(true);
        Ok(Self {
            mapping,
            fd,
            fork_guard: ForkGuard::current_process(),
        })
    }

    pub(crate) fn mapping(&self) -> &SharedMapping {
        &self.mapping
    }

    /// Returns the descriptor to grant to peers.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl RegionBytes for SharedMemory {
    fn len(&self) -> usize {
        self.mapping.len()
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        self.mapping.read(at, out);
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        self.mapping.write(at, bytes);
    }

    fn execute_atomic(
        &self,
        at: usize,
        op: AtomicOp,
        datatype: Datatype,
        operand: u128,
        comparand: u128,
    ) -> u128 {
        self.mapping
            .execute_atomic(at, op, datatype, operand, comparand)
    }

    fn is_open(&self) -> bool {
        self.mapping.is_open()
    }
}

impl RegionMemory for SharedMemory {
    fn close(&self) {
        if self.fork_guard.in_original_process() {
            self.mapping.set_valid(false);
        }
    }

    fn address(&self) -> u64 {
        self.mapping.address()
    }
}

/// Returns the descriptors to grant to peers that map a region with this memory: of the memory,
/// and of its control page if that is in memory of its own. `None` for memory that its owner
/// serves.
pub(crate) fn grantable(
    memory: &dyn RegionMemory,
) -> Option<(BorrowedFd<'_>, Option<BorrowedFd<'_>>)> {
    let memory: &dyn Any = memory;
    if let Some(shared) = memory.downcast_ref::<SharedMemory>() {
        return Some((shared.fd(), None));
    }
    let region = memory.downcast_ref::<MemfdRegion>()?;
    let (memory, control_page) = region.mappable_fds()?;
    Some((memory, Some(control_page)))
}

/// Maps memory with `len` bytes of data that a peer granted.
///
/// # Errors
/// The defect of the grant, or that this process cannot map it.
pub(crate) fn map_from_peer(
    memory: impl AsFd,
    len: usize,
    writable: bool,
) -> Result<SharedMapping, &'static str> {
    if len > memfd::MAX_LEN {
        return Err(TOO_LARGE);
    }
    memfd::check_received(&memory, CONTROL_LEN + len)?;
    SharedMapping::map(memory, len, writable, MemoryOwner::Peer).map_err(|_| NOT_MAPPABLE)
}

/// Maps memory of a peer's program, of `len` bytes, whose validity word is in memory of its own,
/// its control page (`memfd_region`).
///
/// # Errors
/// As [`map_from_peer`].
pub(crate) fn map_data_from_peer(
    memory: impl AsFd,
    control_page: impl AsFd,
    len: usize,
    writable: bool,
) -> Result<SharedMapping, &'static str> {
    if len > memfd::MAX_LEN {
        return Err(TOO_LARGE);
    }
    if len == 0 {
        return Err("grants a region without bytes");
    }
    memfd::check_received(&control_page, CONTROL_LEN)?;
    let page_len = memfd::check_received_data(&memory, len)?;
    let page = Some(control_page.as_fd());
    SharedMapping::map_data(memory, (len, page_len), page, writable, MemoryOwner::Peer)
        .map_err(|_| NOT_MAPPABLE)
}

const TOO_LARGE: &str = "grants a region that is too large";
const NOT_MAPPABLE: &str = "grants memory that cannot be mapped";

#[cfg(all(test, not(loom)))]
mod tests {
    use fabric_core::buf::CopySource;

    use super::*;

    const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

    fn map_as_peer(owner: &SharedMemory, writable: bool) -> Result<SharedMapping, &'static str> {
        let fd = owner.fd().try_clone_to_owned().unwrap();
        map_from_peer(&fd, owner.len(), writable)
    }

    #[test]
    fn writes_and_atomics_are_visible_through_both_mappings() {
        let owner = SharedMemory::create(10_000, READ_WRITE).unwrap();
        let mapping = map_as_peer(&owner, true).unwrap();
        assert!(mapping.is_open());
        let bytes: Vec<u8> = (0..5000).map(|at| at as u8).collect();
        mapping.write(17, &bytes);
        let mut back = vec![0; 5000];
        owner.read(17, &mut back);
        assert_eq!(back, bytes);
        owner.write(64, &7u64.to_le_bytes());
        assert_eq!(
            mapping.execute_atomic(64, AtomicOp::Sum, Datatype::U64, 5, 0),
            7
        );
        assert_eq!(
            owner.execute_atomic(64, AtomicOp::Read, Datatype::U64, 0, 0),
            12
        );
        assert_eq!(
            mapping.execute_atomic(67, AtomicOp::Write, Datatype::U8, 1, 0),
            0
        );
        assert_eq!(
            owner.execute_atomic(64, AtomicOp::Read, Datatype::U32, 0, 0),
            12 + (1 << 24)
        );
        let mut copy = Vec::with_capacity(20);
        copy.extend_from_slice(&[0; 20]);
        mapping.range(17, 20).copy_to_init(0, &mut copy);
        assert_eq!(copy, bytes[..20]);
        owner.close();
        assert!(!mapping.is_open());
        drop(owner);
        // The mapping outlives its owner.
        mapping.write(0, b"bytes");
    }

    /// The kernel refuses a writable mapping, also to a peer that does not check the grant.
    #[test]
    fn read_only_memory_cannot_be_mapped_writable() {
        let owner = SharedMemory::create(100, Access::REMOTE_READ).unwrap();
        let mapping = map_as_peer(&owner, false).unwrap();
        assert_eq!(mapping.check_atomic(Datatype::U64), Ok(()));
        let wide = mapping.check_atomic(Datatype::U128);
        assert!(matches!(wide, Err(Error::NotSupported(_))), "{wide:?}");
        assert_eq!(
            map_as_peer(&owner, true).unwrap_err(),
            "grants memory that cannot be mapped"
        );
    }

    #[test]
    fn only_sealed_memory_of_announced_size_is_mapped() {
        let owner = SharedMemory::create(100, READ_WRITE).unwrap();
        let fd = owner.fd().try_clone_to_owned().unwrap();
        assert!(
            map_from_peer(&fd, 101, true)
                .unwrap_err()
                .contains("announced size")
        );
        assert!(
            map_from_peer(&fd, usize::MAX, true)
                .unwrap_err()
                .contains("too large")
        );
        let unsealed = memfd::create("unsealed", CONTROL_LEN + 100).unwrap();
        assert!(
            map_from_peer(&unsealed, 100, true)
                .unwrap_err()
                .contains("not sealed")
        );
        assert!(map_from_peer(std::fs::File::open("/dev/null").unwrap(), 0, false).is_err());
        assert!(matches!(
            SharedMemory::create(usize::MAX, READ_WRITE),
            Err(Error::TooLong { .. })
        ));
    }

    #[test]
    fn out_of_bounds_and_unaligned_accesses_panic() {
        use std::panic::{AssertUnwindSafe, catch_unwind};
        let owner = SharedMemory::create(100, READ_WRITE).unwrap();
        let panics = |access: &dyn Fn()| catch_unwind(AssertUnwindSafe(access)).is_err();
        assert!(panics(&|| owner.write(93, &[0; 8])));
        assert!(panics(&|| owner.read(usize::MAX, &mut [0; 8])));
        assert!(panics(&|| assert!(owner.mapping.range(101, 0).is_empty())));
        assert!(panics(&|| {
            let _ = owner.execute_atomic(96, AtomicOp::Read, Datatype::U64, 0, 0);
        }));
        assert!(panics(&|| {
            let _ = owner.execute_atomic(4, AtomicOp::Read, Datatype::U64, 0, 0);
        }));
        assert!(owner.mapping.range(100, 0).is_empty());
    }
}
