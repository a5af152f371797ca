//! Windows: a peer's memory, reached by calls instead of operations.

use std::fmt;
use std::sync::Arc;

use fabric_core::atomic::{AtomicCall, AtomicOp, AtomicType};
use fabric_core::flags::Access;
use fabric_core::mr::{DirectRegion, RegionMemory, check_access, check_range};
use fabric_core::{Error, Result};

use crate::mr::execute_atomic;

/// A region of a peer's that is mapped here (`ucp_rkey_ptr`, `shmem_ptr`), from
/// [`Endpoint::window`](crate::Endpoint::window): each access is a call that has ended when it
/// returns. Nothing is posted, nothing completes, nothing is counted.
///
/// Rights and range are checked with every access, and whether the owner still lends the region. It
/// is as an operation is: the owner's [`load`](crate::MemoryRegion::load) and
/// [`atomic`](crate::MemoryRegion::atomic), a peer's operations and other windows all see the same
/// memory. What is written here is seen by whoever receives a message that is sent afterwards.
///
/// The window can be cloned, sent to other threads and used there, and none of that takes a lock. It
/// keeps no endpoint open. Its region cannot be reached any more
///
/// * when the owner has closed the region: [`Error::Key`];
/// * when the owner's endpoint has closed, or its process has died: [`Error::PeerGone`], with its
///   address, as from operations. That is noticed when progress is made here: a thread that only
///   uses a window, and never polls anything else, does not learn that its peer has died;
/// * when the endpoint that the window was made by is closed: [`Error::Closed`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
/// use fabric_async::{Access, AtomicOp, Endpoint};
/// let ep = Endpoint::bind("shm://").await?;
/// let region = ep.domain().alloc(4096, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
/// let me = ep.add_peer(ep.name()).await?;
///
/// let window = ep.window(me, region.remote()).await?;
/// window.write(100, b"hello")?;
/// window.atomic(8, AtomicOp::Sum, 5u64)?;
/// assert_eq!(region.load::<u64>(8)?, 5);
/// region.close()?;
/// assert!(window.write(100, b"nobody is there").is_err());
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[doc(alias = "ucp_rkey_ptr")]
#[doc(alias = "shmem_ptr")]
pub struct RemoteWindow {
    key: u64,
    memory: Arc<dyn RegionMemory>,
    /// Its length, which does not change.
    len: usize,
    access: Access,
}

impl RemoteWindow {
    pub(crate) fn new(key: u64, reached: DirectRegion) -> Self {
        Self {
            key,
            len: reached.memory.len(),
            memory: reached.memory,
            access: reached.access,
        }
    }

    /// The key of the region.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.key
    }

    /// Bytes in the region, as its owner made it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What the owner granted.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Whether the region can be reached.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.memory.is_open()
    }

    /// Copies bytes into the region. Eight bytes at a multiple of eight are written as one word.
    ///
    /// # Errors
    /// [`Error::Key`] without [`Access::REMOTE_WRITE`], or when the region is closed;
    /// [`Error::PeerGone`] when its owner is gone; [`Error::Closed`] when the endpoint is closed;
    /// [`Error::TooLong`] when the range leaves it.
    #[inline]
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.check(Access::REMOTE_WRITE)?;
        let at = check_range(self.len, offset as u64, bytes.len(), 1)?;
        self.memory.write(at, bytes);
        Ok(())
    }

    /// Copies bytes out of the region. Eight bytes at a multiple of eight are read as one word.
    ///
    /// # Errors
    /// [`Error::Key`] without [`Access::REMOTE_READ`], or when the region is closed;
    /// [`Error::PeerGone`] when its owner is gone; [`Error::Closed`] when the endpoint is closed;
    /// [`Error::TooLong`] when the range leaves it.
    #[inline]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        self.check(Access::REMOTE_READ)?;
        let at = check_range(self.len, offset as u64, out.len(), 1)?;
        self.memory.read(at, out);
        Ok(())
    }

    /// The value at this offset, read atomically.
    ///
    /// # Errors
    /// As [`read`](Self::read); [`Error::Invalid`] when the offset is no multiple of its size.
    pub fn load<T: AtomicType>(&self, offset: usize) -> Result<T> {
        self.check(Access::REMOTE_READ)?;
        let zero = T::from_bits(0);
        execute_atomic(
            &*self.memory,
            offset,
            AtomicCall::Fetch,
            AtomicOp::Read,
            (zero, zero),
        )
    }

    /// Changes the value at this offset atomically, and returns what was there before.
    ///
    /// # Errors
    /// As [`load`](Self::load), with both rights needed; [`Error::NotSupported`] when there is no
    /// such operation on this type.
    pub fn atomic<T: AtomicType>(&self, offset: usize, op: AtomicOp, operand: T) -> Result<T> {
        self.check(Access::REMOTE_READ | Access::REMOTE_WRITE)?;
        execute_atomic(
            &*self.memory,
            offset,
            AtomicCall::Fetch,
            op,
            (operand, T::from_bits(0)),
        )
    }

    /// As [`atomic`](Self::atomic), for operations with a comparand: `AtomicOp::Cswap` and its
    /// like.
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
        execute_atomic(
            &*self.memory,
            offset,
            AtomicCall::Compare,
            op,
            (operand, comparand),
        )
    }

    #[cold]
    fn closed(&self) -> Error {
        self.memory.unreachable().unwrap_or(Error::Key {
            key: self.key,
            why: "was closed by its owner",
        })
    }

    #[inline]
    fn check(&self, wanted: Access) -> Result<()> {
        check_access(self.key, self.access, wanted)?;
        if self.memory.is_open() {
            return Ok(());
        }
        Err(self.closed())
    }
}

impl fmt::Debug for RemoteWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteWindow")
            .field("key", &self.key)
            .field("len", &self.len())
            .field("access", &self.access)
            .field("open", &self.is_open())
            .finish()
    }
}
