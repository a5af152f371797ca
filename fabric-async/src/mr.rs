//! Memory regions: memory that peers reach by themselves.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use fabric_core::atomic::{AtomicCall, AtomicOp, AtomicSpec, AtomicType};
use fabric_core::buf::{FlatBuf, IoBufMut};
use fabric_core::flags::{Access, CounterBind};
use fabric_core::mr::{RegionMemory, check_range};
use fabric_core::tree::{Class, ObjectNode};
use fabric_core::{Error, Result};

use crate::close::CloseError;
use crate::counter::{Counter, RegionCounters};
use crate::domain::{Domain, DomainInner};
use crate::thread_model::{Shared, ThreadModel};

/// A memory region (`fid_mr`): memory under a key, that peers read, write and change atomically by
/// themselves.
///
/// Made by [`Domain::alloc`], or from a buffer of yours by [`Domain::alloc_from`]. Both lie in memory
/// that peers map: a registered buffer is copied there, and its bytes come back with
/// [`close`](Self::close). So over shared memory nobody here has to help a peer, or be awake. A
/// buffer that is to stay where it is becomes a [`RegisteredBuffer`](crate::RegisteredBuffer).
///
/// The bytes can change at any time. They are copied in and out, never borrowed; what several
/// processes change at the same time they change with [`atomic`](Self::atomic) here and
/// [`Endpoint::atomic`](crate::Endpoint::atomic) there.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
/// use fabric_async::{Access, Endpoint};
/// let (target, ep) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
/// let region = target.domain().alloc(4096, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
/// let (remote, peer) = (region.remote(), ep.add_peer(target.name()).await?);
/// # let drive = tokio::spawn(async move { let _ = target.recv().await; });
/// ep.write(peer, remote.at(100), "hello").await?;
/// let back = ep.read(peer, remote.slice(100..105)).await?;
/// assert_eq!(&back[..], b"hello");
/// # drive.abort(); Ok(()) }
/// ```
#[doc(alias = "fid_mr")]
pub struct MemoryRegion<B = Allocated, M: ThreadModel = Shared> {
    node: Arc<ObjectNode>,
    domain: Arc<DomainInner>,
    /// Boxed, so that a handle is small.
    remote: Box<RemoteRegion>,
    memory: Arc<dyn RegionMemory>,
    buf: Option<B>,
    counters: RegionCounters,
    model: PhantomData<M>,
}

/// What a region from [`Domain::alloc`] was made of: nothing of yours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allocated;

/// What a region can be made of.
#[doc(hidden)]
pub trait RegionBuf: Sized + 'static {
    /// The same, with the bytes of the memory.
    #[must_use]
    fn with_bytes_of(self, memory: &dyn RegionMemory) -> Self;
}

impl<B: IoBufMut + FlatBuf> RegionBuf for B {
    fn with_bytes_of(self, memory: &dyn RegionMemory) -> Self {
        let mut bytes = vec![0; memory.len()];
        memory.read(0, &mut bytes);
        let mut any = self.into_any();
        any.receive(&&bytes[..])
            .unwrap_or_else(|_| unreachable!("a buffer has room for what it held"));
        B::from_any(any).unwrap_or_else(|_| unreachable!("the same type comes back"))
    }
}

impl RegionBuf for Allocated {
    fn with_bytes_of(self, _: &dyn RegionMemory) -> Self {
        self
    }
}

/// What a peer needs to know of a region: to be sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteRegion {
    /// The key.
    pub key: u64,
    /// Bytes in the region.
    pub len: u64,
    /// What is granted.
    pub access: Access,
    /// What its first byte is called: 0, or its address where the domain of its owner has agreed to
    /// [`MrMode::VIRT_ADDR`](crate::MrMode::VIRT_ADDR). [`at`](Self::at) and [`slice`](Self::slice)
    /// count from there.
    pub base: u64,
}

/// A place in a peer's memory: a key and an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddr {
    /// The key of the region.
    pub key: u64,
    /// Bytes from its start; the address there, where the owner's domain has agreed to that.
    pub offset: u64,
}

/// Part of a peer's memory (`struct fi_rma_iov`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "fi_rma_iov")]
pub struct RemoteSlice {
    /// The key of the region.
    pub key: u64,
    /// As [`RemoteAddr::offset`].
    pub offset: u64,
    /// Bytes.
    pub len: usize,
}

impl RemoteRegion {
    /// The length of [`RemoteRegion::to_bytes`].
    pub const ENCODED_LEN: usize = 25;

    /// A description from its parts, however they came here.
    #[must_use]
    pub fn new(key: u64, len: u64, access: Access) -> Self {
        Self {
            key,
            len,
            access,
            base: 0,
        }
    }

    /// The same of a region whose places are called by their addresses (`FI_MR_VIRT_ADDR`), from
    /// this one on.
    #[doc(alias = "FI_MR_VIRT_ADDR")]
    #[must_use]
    pub fn with_base(self, base: u64) -> Self {
        Self { base, ..self }
    }

    /// The place this many bytes behind the start. Checked when it is accessed.
    #[must_use]
    pub fn at(&self, offset: u64) -> RemoteAddr {
        RemoteAddr {
            key: self.key,
            offset: self.rma_offset(offset),
        }
    }

    /// Part of the region: `remote.slice(..)` is all of it. Checked when it is accessed; a range
    /// that ends before it begins is empty.
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<u64>) -> RemoteSlice {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => self.len,
        };
        let len = usize::try_from(end.saturating_sub(start)).unwrap_or(usize::MAX);
        RemoteSlice {
            key: self.key,
            offset: self.rma_offset(start),
            len,
        }
    }

    /// What this place is called. One behind the last address is no place, and stays none.
    fn rma_offset(&self, offset: u64) -> u64 {
        self.base
            .checked_add(offset)
            .unwrap_or(self.base.wrapping_sub(1))
    }

    /// As bytes, to be sent to the peer.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::ENCODED_LEN] {
        let mut bytes = [0; Self::ENCODED_LEN];
        bytes[..8].copy_from_slice(&self.key.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_le_bytes());
        bytes[16] = self.access.bits() as u8;
        bytes[17..].copy_from_slice(&self.base.to_le_bytes());
        bytes
    }

    /// From the bytes that a peer sent.
    ///
    /// # Errors
    /// [`Error::Invalid`] when they describe no region.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let invalid = |why: &str| Error::Invalid {
            what: "description of a region",
            why: why.into(),
        };
        let bytes: [u8; Self::ENCODED_LEN] = bytes.try_into().map_err(|_| {
            invalid(&format!(
                "it has {} bytes instead of {}",
                bytes.len(),
                Self::ENCODED_LEN
            ))
        })?;
        let word = |at: usize| {
            bytes[at..at + 8]
                .iter()
                .rev()
                .fold(0, |word, byte| word << 8 | u64::from(*byte))
        };
        let access =
            Access::from_bits(u32::from(bytes[16])).ok_or_else(|| invalid("unknown rights"))?;
        Ok(Self {
            key: word(0),
            len: word(8),
            access,
            base: word(17),
        })
    }
}

impl<M: ThreadModel> MemoryRegion<Allocated, M> {
    pub(crate) fn alloc(
        domain: &Domain<M>,
        len: usize,
        access: Access,
        key: Option<u64>,
    ) -> Result<Self> {
        Self::open(domain, len, access, key, Allocated)
    }
}

impl<B: IoBufMut + FlatBuf, M: ThreadModel> MemoryRegion<B, M> {
    pub(crate) fn alloc_from(
        domain: &Domain<M>,
        buf: B,
        access: Access,
        key: Option<u64>,
    ) -> Result<Self> {
        let mut region = Self::open(domain, buf.bytes().len(), access, key, buf)?;
        if let Some(buf) = region.buf.as_mut() {
            region.memory.write(0, buf.bytes());
        }
        Ok(region)
    }
}

impl<B: RegionBuf, M: ThreadModel> MemoryRegion<B, M> {
    fn open(
        domain: &Domain<M>,
        len: usize,
        access: Access,
        key: Option<u64>,
        buf: B,
    ) -> Result<Self> {
        domain.inner.node.check_open()?;
        let node = ObjectNode::new(Class::MemoryRegion, Some(domain.inner.node.clone()));
        let memory = domain.inner.fabric.inner.transport.alloc(len, access)?;
        let by_address = domain.uses_virt_addr();
        let key = domain
            .inner
            .core
            .open_region(memory.clone(), access, key, by_address)?;
        if let Err(error) = node.publish() {
            domain.inner.core.close_region(key);
            return Err(error);
        }
        let base = if by_address { memory.address() } else { 0 };
        let remote = Box::new(RemoteRegion {
            key,
            len: len as u64,
            access,
            base,
        });
        let domain = domain.inner.clone();
        Ok(Self {
            node,
            domain,
            remote,
            memory,
            buf: Some(buf),
            counters: RegionCounters::default(),
            model: PhantomData,
        })
    }

    /// Closes the region: the key is free again, and peers that use it get [`Error::Key`]. An
    /// access that a peer has under way may still take effect. Returns the buffer it was made of,
    /// with the bytes of the region.
    ///
    /// # Errors
    /// [`Error::Closed`], when it was closed before.
    #[doc(alias = "fi_close")]
    pub fn close(mut self) -> Result<B, CloseError<Self>> {
        if let Err(error) = self.node.close() {
            return Err(CloseError {
                error,
                handle: self,
            });
        }
        self.domain.core.close_region(self.remote.key);
        match self.buf.take() {
            Some(buf) => Ok(buf.with_bytes_of(&*self.memory)),
            None => Err(CloseError {
                error: Error::Closed(Class::MemoryRegion),
                handle: self,
            }),
        }
    }
}

impl<B, M: ThreadModel> MemoryRegion<B, M> {
    /// The key (`fi_mr_key`).
    #[doc(alias = "fi_mr_key")]
    #[must_use]
    pub fn key(&self) -> u64 {
        self.remote.key
    }

    /// What to send to a peer that shall access the region.
    #[must_use]
    pub fn remote(&self) -> RemoteRegion {
        *self.remote
    }

    /// Counts what peers do here (`fi_mr_bind` with a counter): reads and atomics that fetch
    /// (`REMOTE_READ`), writes and other atomics (`REMOTE_WRITE`). Bind it before you give the key
    /// away: who has used it before does not tell.
    ///
    /// It costs the peers a record for each operation, takes progress here to be counted, and there
    /// are no [windows](crate::Endpoint::window) on such a region. The counter stays open as long
    /// as the region.
    ///
    /// # Errors
    /// [`Error::BadFlags`] for no kind, or others than these; [`Error::NotSupported`] when the
    /// domain was opened without [`Caps::RMA_EVENT`](crate::Caps::RMA_EVENT); [`Error::Invalid`]
    /// when a kind has a counter; [`Error::WrongDomain`]; [`Error::Closed`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::{Access, CounterBind, Endpoint};
    /// let (target, ep) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
    /// let (mut region, writes) = (target.domain().alloc(64, Access::REMOTE_WRITE)?, target.domain().counter()?);
    /// region.bind_counter(&writes, CounterBind::REMOTE_WRITE)?;
    /// let (peer, remote) = (ep.add_peer(target.name()).await?, region.remote());
    /// let (_, written) = tokio::join!(writes.wait(1), ep.write(peer, remote.at(0), "news"));
    /// written?;
    /// assert_eq!(writes.value(), 1);
    /// # Ok(()) }
    /// ```
    #[doc(alias = "fi_mr_bind")]
    pub fn bind_counter(&mut self, counter: &Counter<M>, what: CounterBind) -> Result<()> {
        self.node.check_open()?;
        self.counters
            .bind(&self.domain, self.remote.key, &counter.inner, what)
    }

    /// Copies bytes out of the region. Eight bytes at a multiple of eight are read as one word.
    ///
    /// # Errors
    /// [`Error::TooLong`] when the range leaves the region.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        let at = check_range(self.memory.len(), offset as u64, out.len(), 1)?;
        self.memory.read(at, out);
        Ok(())
    }

    /// Copies bytes into the region. Eight bytes at a multiple of eight are written as one word.
    ///
    /// # Errors
    /// [`Error::TooLong`] when the range leaves the region.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let at = check_range(self.memory.len(), offset as u64, bytes.len(), 1)?;
        self.memory.write(at, bytes);
        Ok(())
    }

    /// The value at this offset, read atomically: for whoever waits for a peer to change it.
    ///
    /// # Errors
    /// [`Error::TooLong`] when it leaves the region, [`Error::Invalid`] when the offset is no
    /// multiple of its size.
    pub fn load<T: AtomicType>(&self, offset: usize) -> Result<T> {
        let zero = T::from_bits(0);
        execute_atomic(
            &*self.memory,
            offset,
            AtomicCall::Fetch,
            AtomicOp::Read,
            (zero, zero),
        )
    }

    /// Changes the value at this offset atomically, and returns what was there before. Peers that
    /// change it with atomic operations at the same time do so before or after, never in between.
    ///
    /// # Errors
    /// As [`load`](Self::load); [`Error::NotSupported`] when there is no such operation on this
    /// type.
    pub fn atomic<T: AtomicType>(&self, offset: usize, op: AtomicOp, operand: T) -> Result<T> {
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
        execute_atomic(
            &*self.memory,
            offset,
            AtomicCall::Compare,
            op,
            (operand, comparand),
        )
    }
}

/// Executes an atomic operation on one value of a region.
pub(crate) fn execute_atomic<T: AtomicType>(
    memory: &dyn RegionMemory,
    offset: usize,
    call: AtomicCall,
    op: AtomicOp,
    (operand, comparand): (T, T),
) -> Result<T> {
    AtomicSpec {
        op,
        datatype: T::DATATYPE,
        call,
    }
    .check()?;
    let size = T::DATATYPE.size();
    let at = check_range(memory.len(), offset as u64, size, size)?;
    Ok(T::from_bits(memory.execute_atomic(
        at,
        op,
        T::DATATYPE,
        operand.bits(),
        comparand.bits(),
    )))
}

impl<B, M: ThreadModel> Drop for MemoryRegion<B, M> {
    fn drop(&mut self) {
        if self.buf.is_some() {
            self.domain.core.close_region(self.remote.key);
        }
        self.node.uncount();
    }
}

impl<B, M: ThreadModel> fmt::Debug for MemoryRegion<B, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("id", &self.node.id())
            .field("remote", &self.remote)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_region_encoding_round_trips() {
        let remote = RemoteRegion::new(u64::MAX - 1, 1 << 40, Access::REMOTE_READ);
        assert_eq!(RemoteRegion::from_bytes(&remote.to_bytes()), Ok(remote));
        let called = remote.with_base(1 << 63);
        assert_eq!(RemoteRegion::from_bytes(&called.to_bytes()), Ok(called));
        assert_eq!(
            (called.at(5).offset, called.slice(5..).offset),
            ((1 << 63) + 5, (1 << 63) + 5)
        );
        assert_eq!(
            called.at(1 << 63).offset,
            (1 << 63) - 1,
            "in front of it, not within"
        );
        assert!(RemoteRegion::from_bytes(&remote.to_bytes()[1..]).is_err());
        let mut strange = remote.to_bytes();
        strange[16] = 0xff;
        assert!(RemoteRegion::from_bytes(&strange).is_err());
        let slice = |slice: RemoteSlice| (slice.offset, slice.len);
        assert_eq!(slice(remote.slice(..)), (0, 1 << 40));
        assert_eq!(slice(remote.slice(3..=7)), (3, 5));
        assert_eq!(slice(remote.slice((1 << 40) - 2..)), ((1 << 40) - 2, 2));
        let (late, early) = (9, 4);
        assert_eq!(slice(remote.slice(late..early)), (9, 0));
    }
}
