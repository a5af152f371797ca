//! Remote windows: a peer's memory region mapped into this process.

use std::fmt;
use std::sync::{Arc, OnceLock};

use fabric_core::atomic::{AtomicOp, AtomicType};
use fabric_core::flags::Access;
use fabric_core::mr::{DirectRegion, RegionBytes, check_access, check_range};
use fabric_core::{Error, Result};

use crate::mr::execute_atomic;

/// A mapped region of a peer (`ucp_rkey_ptr`, `shmem_ptr`), from
/// [`Endpoint::window`](crate::Endpoint::window).
///
/// Each access is a function call, and has taken effect when the call returns. No operation is
/// posted, and counters do not count the access.
///
/// Every access checks the rights, the range, and that the region is open. An access is ordered
/// like an operation: the owner's [`load`](crate::MemoryRegion::load) and
/// [`atomic`](crate::MemoryRegion::atomic), operations of peers and other windows all see the same
/// memory. A receiver of a message sees everything that was written through a window before the
/// message was sent.
///
/// A window can be cloned and used on other threads, without a lock: a read at the same time as a
/// write of the same bytes yields some old and some new bytes. A window does not keep an endpoint
/// open. Accesses fail
///
/// * when the owner has closed the region: [`Error::Key`];
/// * when the owner's endpoint has closed, or its process has died: [`Error::PeerGone`], with its
///   address, as from operations. Progress of this process's domain detects the death: a thread
///   that only uses a window and polls nothing else does not learn that the peer has died;
/// * when the endpoint that created the window is closed: [`Error::Closed`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
/// use fabric_async::atomic::AtomicOp;
/// use fabric_async::{Access, Endpoint};
/// let ep = Endpoint::bind("shm://").await?;
/// let region = ep.domain().alloc(4096, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
/// let me = ep.add_peer(ep.name()).await?;
///
/// let window = ep.window(me, region.remote()).await?;
/// window.write(100, b"hello")?;
/// window.atomic(8, AtomicOp::Sum, 5u64)?;
/// assert_eq!(region.load::<u64>(8)?, 5);
/// region.close()?;
/// assert!(window.write(100, b"the region is closed").is_err());
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[doc(alias = "ucp_rkey_ptr")]
#[doc(alias = "shmem_ptr")]
pub struct RemoteWindow {
    key: u64,
    memory: Arc<dyn RegionBytes>,
    /// The error of accesses after the end of the connection to the owner; unset before.
    disconnected: Arc<OnceLock<Error>>,
    /// Length of the region in bytes, which never changes.
    len: usize,
    access: Access,
}

impl RemoteWindow {
    /// Wraps a region that the transport has mapped.
    pub(crate) fn new(key: u64, region: DirectRegion) -> Self {
        Self {
            key,
            len: region.memory.len(),
            memory: region.memory,
            disconnected: region.disconnected,
            access: region.access,
        }
    }

    /// Returns the key of the region.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.key
    }

    /// Returns the length of the region in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the region has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the access rights that the owner granted.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Returns whether the region is reachable.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.memory.is_open() && self.disconnected.get().is_none()
    }

    /// Copies bytes into the region. Eight bytes at a multiple of eight are written as one word. In
    /// a longer write, so is each aligned group of eight bytes if the address of `bytes` and the
    /// offset have the same remainder modulo eight. A concurrent reader can see other bytes
    /// separately.
    ///
    /// # Errors
    /// [`Error::Key`] without [`Access::REMOTE_WRITE`], or when the region is closed;
    /// [`Error::PeerGone`] when the owner's endpoint is gone; [`Error::Closed`] when the local
    /// endpoint is closed; [`Error::OutOfBounds`] when the range leaves the region.
    #[inline]
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.check(Access::REMOTE_WRITE)?;
        let at = check_range(self.len, offset as u64, bytes.len(), 1)?;
        self.memory.write(at, bytes);
        Ok(())
    }

    /// Copies bytes out of the region. Eight bytes at a multiple of eight are read as one word. In
    /// a longer read, so is each aligned group of eight bytes if the address of `out` and the
    /// offset have the same remainder modulo eight. Other bytes are read separately.
    ///
    /// # Errors
    /// [`Error::Key`] without [`Access::REMOTE_READ`], or when the region is closed;
    /// [`Error::PeerGone`] when the owner's endpoint is gone; [`Error::Closed`] when the local
    /// endpoint is closed; [`Error::OutOfBounds`] when the range leaves the region.
    #[inline]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        self.check(Access::REMOTE_READ)?;
        let at = check_range(self.len, offset as u64, out.len(), 1)?;
        self.memory.read(at, out);
        Ok(())
    }

    /// Reads the value at this offset atomically. The offset is in bytes.
    ///
    /// # Errors
    /// As [`read`](Self::read); [`Error::Invalid`] when the offset is not a multiple of the value's
    /// size.
    pub fn load<T: AtomicType>(&self, offset: usize) -> Result<T> {
        self.check(Access::REMOTE_READ)?;
        execute_atomic(&*self.memory, offset, AtomicOp::Read, T::from_bits(0), None)
    }

    /// Applies an atomic operation to the value at this offset, and returns the previous value.
    ///
    /// # Errors
    /// As [`load`](Self::load), but both rights are needed; [`Error::NotSupported`] when the data
    /// type does not have the operation.
    pub fn atomic<T: AtomicType>(&self, offset: usize, op: AtomicOp, operand: T) -> Result<T> {
        self.check(Access::REMOTE_READ | Access::REMOTE_WRITE)?;
        execute_atomic(&*self.memory, offset, op, operand, None)
    }

    /// Applies an atomic operation with a comparand, such as `AtomicOp::Cswap`, as
    /// [`atomic`](Self::atomic).
    ///
    /// # Errors
    /// As [`atomic`](Self::atomic).
    pub fn compare_atomic<T: AtomicType>(
        &self,
        offset: usize,
        op: AtomicOp,
        operand: T,
        comparand: T,
    ) -> Result<T> {
        self.check(Access::REMOTE_READ | Access::REMOTE_WRITE)?;
        execute_atomic(&*self.memory, offset, op, operand, Some(comparand))
    }

    /// Returns why the region is unreachable.
    #[cold]
    fn closed_error(&self) -> Error {
        let disconnected = self.disconnected.get();
        disconnected.cloned().unwrap_or(Error::Key {
            key: self.key,
            why: "was revoked by its owner",
        })
    }

    /// Checks the rights for an access, and that the region is reachable.
    #[inline]
    fn check(&self, wanted: Access) -> Result<()> {
        check_access(self.key, self.access, wanted)?;
        if self.is_open() {
            return Ok(());
        }
        Err(self.closed_error())
    }
}

impl fmt::Debug for RemoteWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteWindow")
            .field("key", &format_args!("{:#x}", self.key))
            .field("len", &self.len())
            .field("access", &self.access)
            .field("open", &self.is_open())
            .finish()
    }
}
