//! Memory of the program that peers access in place.
//!
//! The program creates the memory (`memfd_create(2)`). A [`Memfd`] seals its size and maps it once
//! for this process; a [`MemfdRegion`] is one registration. A peer maps the memory itself. The
//! validity word cannot be in it, so a registration has a `SharedMemory` without data, its control
//! page, which peers only read. Domains of other transports register the memory too; there this
//! process executes the accesses.
//!
//! A peer can map the memory only if the kernel then keeps it to the rights that the region grants,
//! and if no access of the peer can fault (`sys::memfd`). Other regions are served by this process:
//! huge pages that peers may write, and memory that was registered before with the other right,
//! whose seals are final.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use fabric_core::atomic::{AtomicOp, Datatype};
use fabric_core::flags::Access;
use fabric_core::mr::{RegionBytes, RegionMemory};
use fabric_core::{Error, Result};

use super::shared_memory::SharedMemory;
use crate::sys::mapping::{MemoryOwner, SharedMapping};
use crate::sys::memfd;

/// Memory of the program that can be registered in place: a file in memory (`memfd_create(2)`),
/// whose size is sealed and whose pages are allocated.
///
/// `Domain::register_memfd` registers it. Peers over shared memory then map the same pages that
/// the program has, so nothing is copied but by the operations themselves. The program reads and
/// writes the memory through its region, or through mappings of its own of the
/// [descriptor](AsFd::as_fd).
///
/// Cheap to clone; the memory is freed with the last clone, the last region, and the last mapping
/// of any process.
#[derive(Clone, Debug)]
pub struct Memfd {
    inner: Arc<MappedMemfd>,
}

#[derive(Debug)]
struct MappedMemfd {
    mapping: SharedMapping,
    /// The descriptor of the program.
    fd: OwnedFd,
    /// The descriptor that peers are granted, of another open file description: peers could set the
    /// flags and the position of the program's.
    granted: OwnedFd,
    page_len: usize,
}

impl Memfd {
    /// Creates memory of `len` zeroed bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a length of 0; [`Error::TooLong`]; [`Error::Os`] without descriptors,
    /// memory, or `/proc`.
    pub fn create(len: usize) -> Result<Self> {
        check_len(len)?;
        memfd::check_available(len)?;
        Self::new(memfd::create("fabric-memory", len)?)
    }

    /// Creates memory of `len` zeroed bytes in huge pages of the default size (`MFD_HUGETLB`).
    ///
    /// The system administrator reserves huge pages (`/proc/sys/vm/nr_hugepages`).
    ///
    /// # Errors
    /// As [`create`](Self::create); [`Error::Invalid`] when `len` is not a multiple of the size of
    /// a huge page, which the text has; [`Error::Os`] when too few huge pages are free.
    pub fn create_huge(len: usize) -> Result<Self> {
        check_len(len)?;
        Self::new(memfd::create_huge("fabric-memory", len)?)
    }

    /// Takes memory that the program has created, with the bytes that it has. Allocates those of
    /// its pages that are not allocated, and seals its size (`F_SEAL_SHRINK`, `F_SEAL_GROW`). A
    /// registration adds further seals: see `Domain::register_memfd`.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the descriptor is not one of `memfd_create`, when the memory is
    /// empty, sealed against writing, cannot be sealed (it needs `MFD_ALLOW_SEALING`), or ends
    /// within a huge page; [`Error::TooLong`]; [`Error::Os`] without descriptors, memory, or
    /// `/proc`. An error closes the descriptor.
    pub fn new(memory: impl Into<OwnedFd>) -> Result<Self> {
        let fd = memory.into();
        let (len, page_len) = memfd::prepare(&fd)?;
        let granted = memfd::reopen(&fd)?;
        let owner = MemoryOwner::ThisProcess;
        let mapping = SharedMapping::map_data(&fd, (len, page_len), None, true, owner)?;
        Ok(Self {
            inner: Arc::new(MappedMemfd {
                mapping,
                fd,
                granted,
                page_len,
            }),
        })
    }

    /// Returns the length in bytes, which is not 0.
    #[allow(clippy::len_without_is_empty)] // it is never empty
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.mapping.len()
    }

    /// Returns the bytes of a page: more than those of other memory for huge pages.
    #[must_use]
    pub fn page_len(&self) -> usize {
        self.inner.page_len
    }
}

impl AsFd for Memfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.fd.as_fd()
    }
}

/// Checks the length of memory.
fn check_len(len: usize) -> Result<()> {
    let (what, limit) = ("memory", memfd::MAX_LEN);
    match len {
        0 => Err(Error::Invalid {
            what,
            why: "it has no bytes".into(),
        }),
        len if len > limit => Err(Error::TooLong { what, len, limit }),
        _ => Ok(()),
    }
}

/// Returns the memory as a region that grants this access.
///
/// # Errors
/// [`Error::Os`] without descriptors or memory.
pub fn memfd_region(memory: &Memfd, access: Access) -> Result<Arc<dyn RegionMemory>> {
    Ok(Arc::new(MemfdRegion {
        memory: memory.inner.clone(),
        control_page: SharedMemory::create(0, Access::REMOTE_READ)?,
        is_writable: access.contains(Access::REMOTE_WRITE),
        is_mappable: OnceLock::new(),
    }))
}

/// A registration of a [`Memfd`].
#[derive(Debug)]
pub(crate) struct MemfdRegion {
    memory: Arc<MappedMemfd>,
    /// Has the validity word of this registration.
    control_page: SharedMemory,
    is_writable: bool,
    /// Whether peers can map the memory with the rights of the region. Unset until the memory is
    /// sealed.
    is_mappable: OnceLock<bool>,
}

impl MemfdRegion {
    /// Returns the descriptors to grant to peers: of the memory, and of its control page. `None` if
    /// peers cannot map the memory.
    pub(crate) fn mappable_fds(&self) -> Option<(BorrowedFd<'_>, BorrowedFd<'_>)> {
        let is_mappable = self.is_mappable.get() == Some(&true);
        is_mappable.then(|| (self.memory.granted.as_fd(), self.control_page.fd()))
    }
}

impl RegionBytes for MemfdRegion {
    fn len(&self) -> usize {
        self.memory.mapping.len()
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        self.memory.mapping.read(at, out);
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        self.memory.mapping.write(at, bytes);
    }

    fn execute_atomic(
        &self,
        at: usize,
        op: AtomicOp,
        datatype: Datatype,
        operand: u128,
        comparand: u128,
    ) -> u128 {
        let mapping = &self.memory.mapping;
        mapping.execute_atomic(at, op, datatype, operand, comparand)
    }

    fn is_open(&self) -> bool {
        self.control_page.is_open()
    }
}

impl RegionMemory for MemfdRegion {
    fn close(&self) {
        self.control_page.close();
    }

    fn address(&self) -> u64 {
        self.memory.mapping.address()
    }

    /// Seals the memory for the rights of the region. Seals are final, so a refused registration
    /// adds none.
    fn prepare_for_peers(&self) {
        let seal = || memfd::seal_for_peers(&self.memory.fd, self.is_writable);
        self.is_mappable.get_or_init(seal);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use rustix::fs::{FallocateFlags, MemfdFlags, OFlags, SealFlags, SeekFrom};

    use super::super::shared_memory::{grantable, map_data_from_peer};
    use super::*;

    const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

    /// Creates memory as a program does.
    fn program_memory(len: u64, flags: MemfdFlags) -> OwnedFd {
        let memory = rustix::fs::memfd_create("program", flags | MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memory, len).unwrap();
        memory
    }

    fn allocated(memory: &impl AsFd) -> i64 {
        512 * rustix::fs::fstat(memory).unwrap().st_blocks
    }

    /// Returns a registered region.
    fn registered(memory: &Memfd, access: Access) -> Arc<dyn RegionMemory> {
        let region = memfd_region(memory, access).unwrap();
        region.prepare_for_peers();
        region
    }

    /// Returns the descriptors of a region that peers map.
    fn granted_fds(region: &Arc<dyn RegionMemory>) -> (BorrowedFd<'_>, BorrowedFd<'_>) {
        let (memory, page) = grantable(&**region).unwrap();
        (memory, page.unwrap())
    }

    #[test]
    fn memory_of_the_program_is_allocated_and_sealed() {
        let memory = program_memory(10_000, MemfdFlags::ALLOW_SEALING);
        rustix::io::pwrite(&memory, b"bytes", 9_995).unwrap();
        assert!(allocated(&memory) < 10_000);
        let memory = Memfd::new(memory).unwrap();
        assert!(memory.len() == 10_000 && allocated(&memory) >= 10_000);
        let sizes = [9_999, 10_001].map(|len| rustix::fs::ftruncate(&memory, len));
        assert!(sizes.iter().all(Result::is_err));
        let region = registered(&memory, READ_WRITE);
        let mut bytes = [0; 5];
        region.read(9_995, &mut bytes);
        assert_eq!(&bytes, b"bytes");
        let seals = rustix::fs::fcntl_get_seals(&memory).unwrap();
        assert!(seals.contains(SealFlags::SEAL) && !seals.contains(SealFlags::FUTURE_WRITE));
    }

    #[test]
    fn unsuitable_memory_is_refused_with_the_defect() {
        let refused = |memory: OwnedFd| match Memfd::new(memory).unwrap_err() {
            Error::Invalid { why, .. } => why.to_string(),
            other => panic!("{other}"),
        };
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(refused(null.into()).contains("memfd_create"));
        let sealing = MemfdFlags::ALLOW_SEALING;
        assert!(refused(program_memory(0, sealing)).contains("empty"));
        let unsealable = program_memory(100, MemfdFlags::empty());
        assert!(refused(unsealable).contains("MFD_ALLOW_SEALING"));
        let sealed = program_memory(100, sealing);
        rustix::fs::fcntl_add_seals(&sealed, SealFlags::FUTURE_WRITE).unwrap();
        assert!(refused(sealed).contains("sealed against writing"));
        let too_long = Memfd::new(program_memory(memfd::MAX_LEN as u64 + 1, sealing));
        assert!(
            matches!(too_long, Err(Error::TooLong { .. })),
            "{too_long:?}"
        );
        let empty = Memfd::create(0);
        assert!(matches!(empty, Err(Error::Invalid { .. })), "{empty:?}");
    }

    #[test]
    fn peers_map_memory_until_its_registration_ends() {
        let memory = Memfd::create(10_000).unwrap();
        let regions = [(); 2].map(|()| registered(&memory, READ_WRITE));
        let mappings = regions.each_ref().map(|region| {
            let (memory, page) = granted_fds(region);
            map_data_from_peer(memory, page, 10_000, true).unwrap()
        });
        mappings[0].write(9_000, b"seen by all");
        let mut seen = [0; 11];
        mappings[1].read(9_000, &mut seen);
        assert_eq!(&seen, b"seen by all");
        regions[0].read(9_000, &mut seen);
        assert_eq!(&seen, b"seen by all");
        regions[0].close();
        assert_eq!(
            mappings.each_ref().map(|mapping| mapping.is_open()),
            [false, true]
        );
        assert_eq!(
            regions.each_ref().map(|region| region.is_open()),
            [false, true]
        );
        // The control page is mapped for reading, so a peer cannot end a registration.
        let set_valid = std::panic::AssertUnwindSafe(|| mappings[1].set_valid(false));
        assert!(std::panic::catch_unwind(set_valid).is_err());
    }

    /// The kernel keeps a peer that does not check its rights from writing, and from freeing pages.
    #[test]
    fn memory_without_remote_write_cannot_be_written_by_peers() {
        let memory = Memfd::create(10_000).unwrap();
        let region = registered(&memory, Access::REMOTE_READ);
        let (fd, page) = granted_fds(&region);
        let refused = map_data_from_peer(fd, page, 10_000, true).unwrap_err();
        assert_eq!(refused, "grants memory that cannot be mapped");
        assert!(map_data_from_peer(fd, page, 10_000, false).is_ok());
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert!(rustix::fs::fallocate(fd, punch, 0, 4096).is_err());
        assert!(rustix::io::pwrite(fd, b"x", 0).is_err());
        region.write(0, b"the owner writes");
        let writable = registered(&memory, READ_WRITE);
        assert!(grantable(&*writable).is_none(), "the seals are final");
    }

    /// Flags and the position belong to the open file description: those of the program's
    /// descriptor are not the peers' to set.
    #[test]
    fn peers_do_not_share_the_open_file_description() {
        let memory = Memfd::create(10_000).unwrap();
        let region = registered(&memory, Access::REMOTE_READ);
        let (granted, _) = granted_fds(&region);
        rustix::fs::fcntl_setfl(granted, OFlags::APPEND).unwrap();
        rustix::fs::seek(granted, SeekFrom::Start(9)).unwrap();
        assert_eq!(rustix::fs::tell(&memory), Ok(0));
        assert!(
            !rustix::fs::fcntl_getfl(&memory)
                .unwrap()
                .contains(OFlags::APPEND)
        );
    }

    #[test]
    fn grants_of_other_memory_are_refused() {
        let memory = Memfd::create(10_000).unwrap();
        let region = registered(&memory, READ_WRITE);
        let (fd, page) = granted_fds(&region);
        let refused = |data: &dyn AsFd, page: &dyn AsFd, len| {
            map_data_from_peer(data.as_fd(), page.as_fd(), len, true).unwrap_err()
        };
        assert!(refused(&fd, &page, 9_999).contains("announced size"));
        assert!(refused(&fd, &page, 0).contains("without bytes"));
        assert!(refused(&fd, &page, usize::MAX).contains("too large"));
        assert!(refused(&fd, &fd, 10_000).contains("announced size"));
        assert!(refused(&page, &page, 10_000).contains("announced size"));
        let unsealed = program_memory(4096, MemfdFlags::ALLOW_SEALING);
        assert!(refused(&fd, &unsealed, 10_000).contains("not sealed"));
        assert!(refused(&unsealed, &page, 4096).contains("not sealed"));
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(refused(&fd, &null, 10_000).contains("sealed"));
        let sparse = program_memory(10_000, MemfdFlags::ALLOW_SEALING);
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&sparse, seals).unwrap();
        assert!(refused(&sparse, &page, 10_000).contains("not allocated"));
    }
}
