//! Memory regions: memory that peers access directly.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;

use fabric_core::atomic::{AtomicCall, AtomicOp, AtomicSpec, AtomicType};
use fabric_core::buf::{Payload, RegionBuf, restore_buffer};
use fabric_core::completion::Failed;
use fabric_core::flags::{Access, CounterBind};
use fabric_core::mr::{RegionBytes, RegionMemory, check_range};
use fabric_core::{Error, Result};
use fabric_reactor::{Memfd, memfd_region};

use crate::close::{CloseError, close_object};
use crate::counter::Counter;
use crate::domain::Domain;
use crate::domain_inner::DomainInner;
use crate::op::AsEndpoint;
use crate::registration::{MrRegistration, RegionSource, check_segments, register_now};
use crate::remote_region::RemoteRegion;
use crate::thread_model::{Shared, ThreadModel};

/// A memory region (`fid_mr`): memory with a key, which peers read, write and change atomically.
///
/// Created by [`Domain::alloc`], or from an application buffer by [`Domain::alloc_from`], which
/// copies the buffer's bytes into the region; [`into_buf`](Self::into_buf) copies them back. Over
/// shared memory peers map the region, and access it even while this process makes no progress. A
/// region with [`Access::REMOTE_WRITE`] and without [`Access::REMOTE_READ`] is not mapped, because
/// the mapping could be read: this process executes the accesses. To register a buffer in place,
/// use a [`RegisteredBuffer`](crate::RegisteredBuffer). [`Domain::register_memfd`] registers memory
/// of the program that peers map.
///
/// The bytes can change at any time, so they are copied in and out, never borrowed. To change a
/// value from several processes at the same time, use [`atomic`](Self::atomic) in the owner and
/// [`Endpoint::atomic`](crate::Endpoint::atomic) in peers.
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
    /// Boxed to keep the handle small.
    registration: Box<MrRegistration>,
    /// The application buffer.
    buf: B,
    model: PhantomData<M>,
}

/// The buffer type of a region from [`Domain::alloc`], which has no application buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allocated;

/// # Memory regions
impl<M: ThreadModel> Domain<M> {
    /// Allocates a memory region of `len` zeroed bytes, under a free key.
    ///
    /// This call allocates the memory. [`register`](Self::register) registers a buffer of the
    /// program in place (`fi_mr_reg`).
    ///
    /// # Errors
    /// [`Error::BadFlags`] when `access` is empty; [`Error::TooLong`]; [`Error::Os`] without
    /// descriptors or memory (all of the memory is reserved at once, and a length above the
    /// machine's available memory is refused); [`Error::NotSupported`] when the provider has no
    /// memory regions; [`Error::TooMany`] when the domain has `mr_cnt` regions; [`Error::Invalid`]
    /// when the domain is bound with [`FI_REG_MR`](Self::bind_eq_reg_mr); [`Error::Closed`].
    pub fn alloc(&self, len: usize, access: Access) -> Result<MemoryRegion<Allocated, M>> {
        register_now(&self.inner, ZeroedMemory(len), access, None)
    }

    /// Allocates a memory region under this key, as [`alloc`](Self::alloc).
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc); [`Error::Key`] when the key is in use or `FI_KEY_NOTAVAIL`, or
    /// the domain requires [`MrMode::PROV_KEY`](crate::info::MrMode::PROV_KEY).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::info::MrMode;
    /// use fabric_async::{Access, Error, Fabric, Hints, discover};
    /// let info = discover(&Hints::new().provider("shm").mr_mode(MrMode::BASIC))?.swap_remove(0);
    /// let domain = Fabric::open(&info)?.domain(&info)?;
    /// let region = if info.domain.mr_mode.contains(MrMode::PROV_KEY) {
    ///     let refused = domain.alloc_with_key(8, Access::REMOTE_READ, 7);
    ///     assert!(matches!(refused, Err(Error::Key { .. })));
    ///     domain.alloc(8, Access::REMOTE_READ)?
    /// } else {
    ///     domain.alloc_with_key(8, Access::REMOTE_READ, 7)?
    /// };
    /// println!("peers use the key {}", region.key());
    /// # Ok(()) }
    /// ```
    pub fn alloc_with_key(
        &self,
        len: usize,
        access: Access,
        key: u64,
    ) -> Result<MemoryRegion<Allocated, M>> {
        register_now(&self.inner, ZeroedMemory(len), access, Some(key))
    }

    /// Allocates a memory region with the bytes of a buffer (`fi_mr_reg`), under the requested key
    /// or a free one.
    ///
    /// The buffer's bytes (those of [`FlatBuf::bytes`](crate::buf::FlatBuf::bytes), not the spare
    /// capacity of a vector) are copied to memory that peers access, and come back with
    /// [`MemoryRegion::into_buf`]. [`alloc`](Self::alloc) avoids the copies. The buffers of a
    /// [`Scatter`](crate::buf::Scatter) are segments (`fi_mr_regv`), and lie one after the other in
    /// the memory of the region.
    ///
    /// # Errors
    /// With the buffer: as [`alloc_with_key`](Self::alloc_with_key), and for segments as
    /// [`register`](Self::register).
    #[doc(alias = "fi_mr_reg")]
    #[doc(alias = "fi_mr_regv")]
    pub fn alloc_from<B: RegionBuf>(
        &self,
        buf: B,
        access: Access,
        key: Option<u64>,
    ) -> Result<MemoryRegion<B, M>, Failed<B>> {
        register_now(&self.inner, CopiedBuffer(buf), access, key)
    }

    /// Registers memory of the program in place (`fi_mr_reg`), under the requested key or a free
    /// one: memory that has a descriptor, from `memfd_create(2)`.
    ///
    /// Peers over `shm` map the memory, and access it even while this process makes no progress.
    /// The program sees their accesses in its own mappings of the memory, and through the region.
    /// Over other providers this process executes the accesses. The memory outlives the region,
    /// and can be registered several times, also in several domains.
    ///
    /// The first registration decides for good whether peers can map the memory for writing: it
    /// makes the seals final (`F_SEAL_SEAL`). Without [`Access::REMOTE_WRITE`] it seals the memory
    /// against writing (`F_SEAL_FUTURE_WRITE`), after which no process can map it for writing;
    /// mappings for writing that exist stay.
    ///
    /// Peers map the region, except in three cases, in which this process executes their
    /// operations and peers have no [window](crate::Endpoint::window):
    ///
    /// * the region grants other rights to write than the first registration;
    /// * it has huge pages and [`Access::REMOTE_WRITE`]: a peer could free the pages;
    /// * it has [`Access::REMOTE_WRITE`] without [`Access::REMOTE_READ`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::os::fd::AsFd;
    /// use std::os::unix::fs::FileExt;
    /// use fabric_async::buf::Memfd;
    /// use fabric_async::{Access, Endpoint};
    /// let (target, ep) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
    /// let memory = Memfd::create(1 << 20)?;
    /// let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    /// let region = target.domain().register_memfd(&memory, access, None)?;
    /// let (remote, peer) = (region.remote(), ep.add_peer(target.name()).await?);
    /// # let drive = tokio::spawn(async move { let _ = target.recv().await; });
    /// ep.write(peer, remote.at(100), "hello").await?;
    /// // What the peer wrote is in the memory, wherever the program has mapped it.
    /// let file = std::fs::File::from(memory.as_fd().try_clone_to_owned()?);
    /// let mut bytes = [0; 5];
    /// file.read_exact_at(&mut bytes, 100)?;
    /// assert_eq!(&bytes, b"hello");
    /// # drive.abort(); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Key`] when the key is in use, or the domain selects keys
    /// ([`MrMode::PROV_KEY`](crate::info::MrMode::PROV_KEY)); [`Error::BadFlags`] when `access` is
    /// empty; [`Error::Os`] without descriptors or memory; [`Error::NotSupported`] when the
    /// provider has no memory regions; [`Error::TooMany`] when the domain has `mr_cnt` regions;
    /// [`Error::Invalid`] when the domain is bound with [`FI_REG_MR`](Self::bind_eq_reg_mr);
    /// [`Error::Closed`].
    #[doc(alias = "fi_mr_reg")]
    pub fn register_memfd(
        &self,
        memory: &Memfd,
        access: Access,
        key: Option<u64>,
    ) -> Result<MemoryRegion<Memfd, M>> {
        register_now(&self.inner, MemfdInPlace(memory.clone()), access, key)
    }
}

impl<B: RegionBuf, M: ThreadModel> MemoryRegion<B, M> {
    /// Closes the region, as [`close`](Self::close) does, and returns its buffer with the bytes of
    /// the region. The buffer may lack the effect of an access in progress.
    ///
    /// # Errors
    /// As [`close`](Self::close).
    pub fn into_buf(self) -> Result<B, CloseError<Self>> {
        let mut region = close_object(self, |region| &region.registration.node)?;
        region.registration.revoke();
        Ok(fill_from_region(region.buf, &*region.registration.memory))
    }
}

impl<M: ThreadModel> MemoryRegion<Memfd, M> {
    /// Returns the memory.
    #[must_use]
    pub fn memfd(&self) -> &Memfd {
        &self.buf
    }
}

/// Memory of the program, registered in place.
pub(crate) struct MemfdInPlace(pub(crate) Memfd);

impl<M: ThreadModel> RegionSource<MemoryRegion<Memfd, M>, Error> for MemfdInPlace {
    fn prepare(&mut self, _: &DomainInner, access: Access) -> Result<Arc<dyn RegionMemory>> {
        memfd_region(&self.0, access)
    }

    fn open(self: Box<Self>, registration: Box<MrRegistration>) -> MemoryRegion<Memfd, M> {
        MemoryRegion::new(registration, self.0)
    }

    fn fail(self: Box<Self>, error: Error) -> Error {
        error
    }
}

/// Zeroed memory of this many bytes.
pub(crate) struct ZeroedMemory(pub(crate) usize);

impl<M: ThreadModel> RegionSource<MemoryRegion<Allocated, M>, Error> for ZeroedMemory {
    fn prepare(&mut self, domain: &DomainInner, access: Access) -> Result<Arc<dyn RegionMemory>> {
        domain.fabric.inner.transport.alloc(self.0, access)
    }

    fn open(self: Box<Self>, registration: Box<MrRegistration>) -> MemoryRegion<Allocated, M> {
        MemoryRegion::new(registration, Allocated)
    }

    fn fail(self: Box<Self>, error: Error) -> Error {
        error
    }
}

/// Memory with the bytes of a buffer, which are in it before its key is published.
pub(crate) struct CopiedBuffer<B>(pub(crate) B);

impl<B: RegionBuf, M: ThreadModel> RegionSource<MemoryRegion<B, M>, Failed<B>> for CopiedBuffer<B> {
    fn prepare(&mut self, domain: &DomainInner, access: Access) -> Result<Arc<dyn RegionMemory>> {
        check_segments(domain, &self.0)?;
        let bytes = self.0.region_bytes();
        let memory = domain.fabric.inner.transport.alloc(bytes.len(), access)?;
        copy_to_region(bytes, &*memory);
        Ok(memory)
    }

    fn open(self: Box<Self>, registration: Box<MrRegistration>) -> MemoryRegion<B, M> {
        MemoryRegion::new(registration, self.0)
    }

    fn fail(self: Box<Self>, error: Error) -> Failed<B> {
        Failed::new(error, self.0)
    }
}

/// Copies the bytes of a buffer, or of its segments one after the other, to a region.
fn copy_to_region(bytes: Payload<'_>, memory: &dyn RegionBytes) {
    bytes.for_each(|at, piece| memory.write(at, piece));
}

/// Copies the bytes of a region back to its buffer, or to its segments.
fn fill_from_region<B: RegionBuf>(buf: B, memory: &dyn RegionBytes) -> B {
    let mut any = buf.into_any();
    let mut at = 0;
    for segment in any.segments_mut() {
        let len = segment.bytes().len().min(memory.len() - at);
        if let Some(bytes) = segment.first_bytes_mut(len) {
            memory.read(at, bytes);
        }
        at += len;
    }
    restore_buffer(any.into_filled())
}

impl<B, M: ThreadModel> MemoryRegion<B, M> {
    fn new(registration: Box<MrRegistration>, buf: B) -> Self {
        Self {
            registration,
            buf,
            model: PhantomData,
        }
    }

    /// Returns the memory of the region.
    fn memory(&self) -> &dyn RegionBytes {
        &*self.registration.memory
    }

    /// Closes the region (`fi_close`), as a drop does: the key is free again, and peers that use
    /// the key get [`Error::Key`]. [`into_buf`](Self::into_buf) also returns the buffer of a region
    /// from [`Domain::alloc_from`].
    ///
    /// # Errors
    /// None: no other object uses a region, and a region has one handle.
    #[doc(alias = "fi_close")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        close_object(self, |region| &region.registration.node).map(drop)
    }

    /// Returns the key (`fi_mr_key`); [`RemoteRegion::KEY_NOTAVAIL`] in a domain that requires
    /// [`MrMode::RAW`](crate::info::MrMode::RAW).
    #[doc(alias = "fi_mr_key")]
    #[must_use]
    pub fn key(&self) -> u64 {
        self.registration.remote.key
    }

    /// Returns the description that a peer needs for accessing the region.
    #[must_use]
    pub fn remote(&self) -> RemoteRegion {
        self.registration.remote
    }

    /// Returns the raw key (`fi_mr_raw_attr`), which peers [map](Domain::map_raw) together with the
    /// [description](Self::remote), whose base is the base address.
    ///
    /// In a domain that requires [`MrMode::RAW`](crate::info::MrMode::RAW) it has `mr_key_size`
    /// bytes. In another one it is the key, in 8 bytes.
    #[doc(alias = "fi_mr_raw_attr")]
    #[doc(alias = "FI_MR_RAW")]
    #[must_use]
    pub fn raw_key(&self) -> Vec<u8> {
        self.registration.raw_key()
    }

    /// Counts remote accesses (`fi_mr_bind` with a counter): reads and fetching atomics
    /// (`REMOTE_READ`), writes and other atomics (`REMOTE_WRITE`). Bind the counter before sending
    /// the key to peers: accesses of peers that used the key before are not counted.
    ///
    /// Peers send a record for each counted operation, and this process counts while it makes
    /// progress. Accesses through endpoints of [other resource domains](crate::resource_domain) are
    /// not counted. A region with a counter has no [windows](crate::Endpoint::window). The counter
    /// stays open as long as the region.
    ///
    /// # Errors
    /// [`Error::BadFlags`] for no kind, or any other kind; [`Error::NotSupported`] when the domain
    /// was opened without [`Caps::RMA_EVENT`](crate::Caps::RMA_EVENT); [`Error::Invalid`] when a
    /// counter is bound for the kind already, or the region is [enabled](Self::enable);
    /// [`Error::WrongParent`]; [`Error::Closed`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::{Access, CounterBind, Endpoint};
    /// let (target, ep) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
    /// let mut region = target.domain().alloc(64, Access::REMOTE_WRITE)?;
    /// let writes = target.domain().counter()?;
    /// region.bind_counter(&writes, CounterBind::REMOTE_WRITE)?;
    /// let (peer, remote) = (ep.add_peer(target.name()).await?, region.remote());
    /// let (_, written) = tokio::join!(writes.wait(1), ep.write(peer, remote.at(0), "news"));
    /// written?;
    /// assert_eq!(writes.value(), 1);
    /// # Ok(()) }
    /// ```
    #[doc(alias = "fi_mr_bind")]
    pub fn bind_counter(&mut self, counter: &Counter<M>, what: CounterBind) -> Result<()> {
        self.registration.bind_counter(&counter.inner, what)
    }

    /// Binds the region to an endpoint (`fi_mr_bind`), in a domain that requires
    /// [`MrMode::ENDPOINT`](crate::info::MrMode::ENDPOINT). Peers access the region only through
    /// this endpoint, after the region was [enabled](Self::enable). Before that, and through
    /// another endpoint, they get [`Error::Key`]. The endpoint cannot be closed before the region.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::info::MrMode;
    /// use fabric_async::{Access, Fabric, Hints, discover};
    /// let hints = Hints::new().provider("sim").domain_name("sim+ENDPOINT");
    /// let info = discover(&hints.mr_mode(MrMode::ENDPOINT))?.swap_remove(0);
    /// let domain = Fabric::open(&info)?.domain(&info)?;
    /// let av = domain.address_vector()?;
    /// let ep = domain.endpoint(&info)?.bind_av(&av)?.enable()?;
    /// let mut region = domain.alloc(4096, Access::REMOTE_READ)?;
    /// if info.domain.mr_mode.contains(MrMode::ENDPOINT) {
    ///     region.bind_endpoint(&ep)?;
    ///     region.enable()?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::NotSupported`] in a domain that does not require the bit; [`Error::Invalid`] when
    /// an endpoint is bound already, or the region is enabled; [`Error::WrongParent`] for an
    /// endpoint of another domain; [`Error::Closed`].
    #[doc(alias = "fi_mr_bind")]
    #[doc(alias = "FI_MR_ENDPOINT")]
    pub fn bind_endpoint(&mut self, ep: &impl AsEndpoint<M>) -> Result<()> {
        self.registration.bind_endpoint(ep.inner())
    }

    /// Enables the region (`fi_mr_enable`): peers can access it, and no endpoint or counter can be
    /// bound to it any more.
    ///
    /// Required in a domain that requires [`MrMode::ENDPOINT`](crate::info::MrMode::ENDPOINT), and
    /// after a counter was bound in one that requires
    /// [`MrMode::RMA_EVENT`](crate::info::MrMode::RMA_EVENT): until then peers that use the key get
    /// [`Error::Key`]. Other regions are accessible from their registration on.
    ///
    /// # Errors
    /// [`Error::Unbound`] when the region needs an endpoint and has none; [`Error::Closed`].
    #[doc(alias = "fi_mr_enable")]
    #[doc(alias = "FI_MR_RMA_EVENT")]
    pub fn enable(&mut self) -> Result<()> {
        self.registration.enable()
    }

    /// Tells the provider which pages back this range of the region (`fi_mr_refresh`). Call it
    /// after memory was allocated there, or moved.
    ///
    /// Required in a domain that requires
    /// [`MrMode::MMU_NOTIFY`](crate::info::MrMode::MMU_NOTIFY), before peers access the bytes:
    /// until then, and after the memory has got another address, their operations fail with
    /// [`Error::Key`]. Over `sim` pages have 4 KiB and count from the start of the region. In other
    /// domains the call has no effect: the accesses are those of a process, which see every change
    /// of the page tables.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::info::MrMode;
    /// use fabric_async::{Access, Fabric, Hints, discover};
    /// let hints = Hints::new().provider("sim").domain_name("sim+MMU_NOTIFY");
    /// let info = discover(&hints.mr_mode(MrMode::MMU_NOTIFY))?.swap_remove(0);
    /// let domain = Fabric::open(&info)?.domain(&info)?;
    /// let mut region = domain.alloc(1 << 20, Access::REMOTE_READ)?;
    /// region.write(0, b"a header")?;
    /// region.refresh(..8)?;                      // peers read the first page, and no other
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] when the range leaves the region; [`Error::Invalid`] in a domain that
    /// requires the bit, when no pages are behind the bytes; [`Error::Closed`].
    #[doc(alias = "fi_mr_refresh")]
    #[doc(alias = "FI_MR_MMU_NOTIFY")]
    pub fn refresh(&mut self, range: impl RangeBounds<usize>) -> Result<()> {
        self.registration.refresh(range)
    }

    /// Copies bytes out of the region. Eight bytes at a multiple of eight are read as one word. In
    /// a longer read, so is each aligned group of eight bytes if the address of `out` and the
    /// offset have the same remainder modulo eight. Other bytes are read separately.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] when the range leaves the region.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        let at = check_range(self.memory().len(), offset as u64, out.len(), 1)?;
        self.memory().read(at, out);
        Ok(())
    }

    /// Copies bytes into the region. Eight bytes at a multiple of eight are written as one word. In
    /// a longer write, so is each aligned group of eight bytes if the address of `bytes` and the
    /// offset have the same remainder modulo eight. A concurrent reader can see other bytes
    /// separately.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] when the range leaves the region.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let at = check_range(self.memory().len(), offset as u64, bytes.len(), 1)?;
        self.memory().write(at, bytes);
        Ok(())
    }

    /// Reads the value at this byte offset atomically, for example to wait for a peer to change it.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] when the value leaves the region, [`Error::Invalid`] when the offset
    /// is not a multiple of the value's size.
    pub fn load<T: AtomicType>(&self, offset: usize) -> Result<T> {
        self.atomic(offset, AtomicOp::Read, T::from_bits(0))
    }

    /// Applies an atomic operation to the value at this byte offset, and returns the previous
    /// value. It is atomic with respect to atomic operations of peers on the same value.
    ///
    /// # Errors
    /// As [`load`](Self::load); [`Error::NotSupported`] when the data type does not have the
    /// operation.
    pub fn atomic<T: AtomicType>(&self, offset: usize, op: AtomicOp, operand: T) -> Result<T> {
        execute_atomic(self.memory(), offset, op, operand, None)
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
        execute_atomic(self.memory(), offset, op, operand, Some(comparand))
    }
}

/// Executes an atomic operation on one value of a region, and returns the previous value. `offset`
/// is in bytes.
pub(crate) fn execute_atomic<T: AtomicType>(
    memory: &dyn RegionBytes,
    offset: usize,
    op: AtomicOp,
    operand: T,
    comparand: Option<T>,
) -> Result<T> {
    let atomic = AtomicSpec {
        op,
        datatype: T::DATATYPE,
        call: match comparand {
            Some(_) => AtomicCall::Compare,
            None => AtomicCall::Fetch,
        },
    };
    atomic.check()?;
    memory.check_atomic(T::DATATYPE)?;
    let size = T::DATATYPE.size();
    let at = check_range(memory.len(), offset as u64, size, size)?;
    Ok(T::from_bits(memory.execute_atomic(
        at,
        op,
        T::DATATYPE,
        operand.bits(),
        comparand.map_or(0, T::bits),
    )))
}

impl<B, M: ThreadModel> fmt::Debug for MemoryRegion<B, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("id", &self.registration.node.id())
            .field("remote", &self.registration.remote)
            .finish()
    }
}
