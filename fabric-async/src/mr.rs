//! Memory regions: memory that peers access directly.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Range, RangeBounds};
use std::sync::Arc;

use fabric_core::atomic::{AtomicCall, AtomicOp, AtomicSpec, AtomicType};
use fabric_core::buf::{Payload, RegionBuf, restore_buffer};
use fabric_core::completion::Failed;
use fabric_core::flags::{Access, CounterBind, MrMode};
use fabric_core::mr::{RegionMemory, check_range, encode_raw_key};
use fabric_core::tree::{Class, DependencyGuard, ObjectNode};
use fabric_core::{Error, Result};
use fabric_reactor::{EngineTransport, Memfd, ReservedEvent, memfd_region};

use crate::async_mr::RegionSource;
use crate::close::{CloseError, close_object, dependency_on};
use crate::counter::{BoundCounter, Counter, CounterInner};
use crate::domain::Domain;
use crate::domain_inner::DomainInner;
use crate::endpoint_inner::EndpointInner;
use crate::op::AsEndpoint;
use crate::remote_region::{RemoteRegion, start_and_len};
use crate::thread_model::{Shared, ThreadModel};

/// A memory region (`fid_mr`): memory with a key, which peers read, write and change atomically
/// without help of this process.
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
    memory: Arc<dyn RegionMemory>,
    /// The application buffer.
    buf: B,
    model: PhantomData<M>,
}

/// Memory with a key that is valid until the drop: what regions and registered buffers have in
/// common.
pub(crate) struct MrRegistration {
    pub(crate) node: Arc<ObjectNode>,
    pub(crate) domain: Arc<DomainInner>,
    /// The key by which the domain knows the region.
    key: u64,
    /// The description for peers, without the key in a domain that requires `FI_MR_RAW`.
    pub(crate) remote: RemoteRegion,
    /// The counters of remote accesses, each with the guard that keeps it open.
    counters: Vec<BoundCounter>,
    /// Keeps the endpoint open that the region is bound to.
    endpoint: Option<DependencyGuard>,
    /// Whether the key is valid.
    is_open: bool,
    /// The event of an asynchronous registration, which leaves the queue with the region.
    pub(crate) event: Option<ReservedEvent>,
}

impl MrRegistration {
    /// Registers memory under the requested key or a free one, before the call returns.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`Error::Invalid`] when the domain is bound with `FI_REG_MR`.
    pub(crate) fn open_now(
        domain: &Arc<DomainInner>,
        memory: Arc<dyn RegionMemory>,
        access: Access,
        key: Option<u64>,
    ) -> Result<Box<Self>> {
        domain.node.check_room(Class::MemoryRegion)?;
        let node = ObjectNode::new(Class::MemoryRegion, Some(domain.node.clone()));
        Self::open(node, domain, memory, access, key)
    }

    /// Registers memory as a region with this node under the requested key or a free one. The
    /// domain counts the region from now on.
    pub(crate) fn open(
        node: Arc<ObjectNode>,
        domain: &Arc<DomainInner>,
        memory: Arc<dyn RegionMemory>,
        access: Access,
        key: Option<u64>,
    ) -> Result<Box<Self>> {
        let mr_mode = domain.info.domain.mr_mode;
        let (len, address) = (memory.len(), memory.address());
        check_pages(domain, &*memory, 0..len, mr_mode)?;
        let key = domain.engine.open_region(memory.clone(), access, key)?;
        let by_address = mr_mode.contains(MrMode::VIRT_ADDR);
        let base = if by_address { address } else { 0 };
        let remote_key = if mr_mode.contains(MrMode::RAW) {
            RemoteRegion::KEY_NOTAVAIL
        } else {
            key
        };
        let registration = Box::new(Self {
            node,
            domain: domain.clone(),
            key,
            remote: RemoteRegion::new(remote_key, len as u64, access).with_base(base),
            counters: Vec::new(),
            endpoint: None,
            is_open: true,
            event: None,
        });
        registration.node.attach_to_parent()?;
        memory.on_registered();
        Ok(registration)
    }

    /// Binds a counter, which counts remote accesses of the kinds `what` from now on.
    pub(crate) fn bind_counter(
        &mut self,
        counter: &Arc<CounterInner>,
        what: CounterBind,
    ) -> Result<()> {
        self.node.check_open()?;
        let bound = counter.bind_to_region(&self.domain, self.key, what)?;
        self.counters.push(bound);
        Ok(())
    }

    /// Binds the endpoint through which peers access the region.
    pub(crate) fn bind_endpoint(&mut self, ep: &EndpointInner) -> Result<()> {
        self.node.check_open()?;
        let guard = dependency_on(&ep.node, &self.domain.node, Class::MemoryRegion)?;
        let (engine, key) = (&self.domain.engine, self.key);
        engine.bind_region_endpoint(key, ep.node.id())?;
        self.endpoint = Some(guard);
        Ok(())
    }

    /// Lets peers access a region to which everything is bound.
    pub(crate) fn enable(&mut self) -> Result<()> {
        self.node.check_open()?;
        self.domain.engine.enable_region(self.key)
    }

    /// Tells the provider that pages are behind a range of the region's bytes.
    pub(crate) fn refresh(
        &self,
        memory: &dyn RegionMemory,
        range: impl RangeBounds<usize>,
    ) -> Result<()> {
        self.node.check_open()?;
        let bounds = [range.start_bound(), range.end_bound()];
        let [start, end] = bounds.map(|bound| bound.map(|at| *at as u64));
        let (start, len) = start_and_len((start, end), memory.len() as u64);
        let start = check_range(memory.len(), start, len, 1)?;
        if self.domain.info.domain.mr_mode.contains(MrMode::MMU_NOTIFY) {
            check_pages(&self.domain, memory, start..start + len, MrMode::ALLOCATED)?;
        }
        let (engine, key) = (&self.domain.engine, self.key);
        engine.refresh_region(key, start, len)
    }

    /// Returns the raw key.
    pub(crate) fn raw_key(&self) -> Vec<u8> {
        if self.domain.info.domain.mr_mode.contains(MrMode::RAW) {
            encode_raw_key(self.key, self.remote.base).to_vec()
        } else {
            self.key.to_le_bytes().to_vec()
        }
    }

    /// Invalidates the key. Returns false if it was invalid before.
    pub(crate) fn revoke(&mut self) -> bool {
        let was_open = std::mem::replace(&mut self.is_open, false);
        if was_open {
            self.domain.engine.close_region(self.key);
        }
        was_open
    }
}

/// Checks that pages are behind a range of the memory if the bits demand it.
fn check_pages(
    domain: &DomainInner,
    memory: &dyn RegionMemory,
    range: Range<usize>,
    mr_mode: MrMode,
) -> Result<()> {
    let transport = domain.fabric.inner.transport;
    let mut pieces = memory.addresses(range).into_iter();
    pieces.try_for_each(|(address, len)| transport.check_memory(mr_mode, address, len))
}

/// Checks that a region has segments, and their number against the domain's `mr_iov_limit`.
pub(crate) fn check_segments(domain: &DomainInner, buf: &impl RegionBuf) -> Result<()> {
    let (count, limit) = (buf.count(), domain.info.domain.mr_iov_limit);
    if count == 0 {
        return Err(Error::Invalid {
            what: "buffer to register",
            why: "it is a list of no buffers".into(),
        });
    }
    // One segment is allowed where the limit is 0.
    if count > limit.max(1) {
        return Err(Error::TooMany {
            what: "segments of a memory region (mr_iov_limit)",
            count,
            limit,
        });
    }
    Ok(())
}

impl Drop for MrRegistration {
    fn drop(&mut self) {
        self.revoke();
        self.node.detach_from_parent();
    }
}

/// The buffer type of a region from [`Domain::alloc`], which has no application buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allocated;

impl<B: RegionBuf, M: ThreadModel> MemoryRegion<B, M> {
    /// Allocates a region and copies the bytes of the buffer, or of all its segments, into it.
    pub(crate) fn alloc_from(
        domain: &Domain<M>,
        buf: B,
        access: Access,
        key: Option<u64>,
    ) -> Result<Self> {
        domain.inner.check_registers_now()?;
        let domain = domain.inner.clone();
        let mut source = CopiedBuffer {
            domain,
            buf,
            access,
        };
        let memory = source.prepare()?;
        let registration = MrRegistration::open_now(&source.domain, memory.clone(), access, key)?;
        Ok(Self::from_parts(registration, memory, source.buf))
    }

    /// Closes the region, as [`close`](Self::close) does, and returns its buffer with the bytes of
    /// the region. The buffer may lack the effect of an access in progress.
    ///
    /// # Errors
    /// As [`close`](Self::close).
    pub fn into_buf(self) -> Result<B, CloseError<Self>> {
        let mut region = close_object(self, |region| &region.registration.node)?;
        region.registration.revoke();
        Ok(fill_from_region(region.buf, &*region.memory))
    }
}

impl<M: ThreadModel> MemoryRegion<Memfd, M> {
    /// Registers memory of the program in place.
    pub(crate) fn open_memfd(
        domain: &Domain<M>,
        memfd: &Memfd,
        access: Access,
        key: Option<u64>,
    ) -> Result<Self> {
        domain.inner.check_registers_now()?;
        let memory = memfd_region(memfd, access)?;
        let registration = MrRegistration::open_now(&domain.inner, memory.clone(), access, key)?;
        Ok(Self::from_parts(registration, memory, memfd.clone()))
    }

    /// Returns the memory.
    #[must_use]
    pub fn memfd(&self) -> &Memfd {
        &self.buf
    }
}

/// Memory of the program for an asynchronous registration.
pub(crate) struct MemfdInPlace {
    pub(crate) memfd: Memfd,
    pub(crate) access: Access,
}

impl RegionSource<MemoryRegion<Memfd>, Error> for MemfdInPlace {
    fn prepare(&mut self) -> Result<Arc<dyn RegionMemory>> {
        memfd_region(&self.memfd, self.access)
    }

    fn open(
        self: Box<Self>,
        registration: Box<MrRegistration>,
        memory: Arc<dyn RegionMemory>,
    ) -> MemoryRegion<Memfd> {
        MemoryRegion::from_parts(registration, memory, self.memfd)
    }

    fn fail(self: Box<Self>, error: Error) -> Error {
        error
    }
}

/// Zeroed memory of this many bytes for an asynchronous registration.
pub(crate) struct ZeroedMemory {
    pub(crate) transport: &'static EngineTransport,
    pub(crate) len: usize,
    pub(crate) access: Access,
}

impl RegionSource<MemoryRegion, Error> for ZeroedMemory {
    fn prepare(&mut self) -> Result<Arc<dyn RegionMemory>> {
        self.transport.alloc(self.len, self.access)
    }

    fn open(
        self: Box<Self>,
        registration: Box<MrRegistration>,
        memory: Arc<dyn RegionMemory>,
    ) -> MemoryRegion {
        MemoryRegion::from_parts(registration, memory, Allocated)
    }

    fn fail(self: Box<Self>, error: Error) -> Error {
        error
    }
}

/// Memory with the bytes of a buffer, which are in it before its key is published.
pub(crate) struct CopiedBuffer<B> {
    pub(crate) domain: Arc<DomainInner>,
    pub(crate) buf: B,
    pub(crate) access: Access,
}

impl<B: RegionBuf> RegionSource<MemoryRegion<B>, Failed<B>> for CopiedBuffer<B> {
    fn prepare(&mut self) -> Result<Arc<dyn RegionMemory>> {
        check_segments(&self.domain, &self.buf)?;
        let transport = self.domain.fabric.inner.transport;
        let bytes = self.buf.region_bytes();
        let memory = transport.alloc(bytes.len(), self.access)?;
        copy_to_region(bytes, &*memory);
        Ok(memory)
    }

    fn open(
        self: Box<Self>,
        registration: Box<MrRegistration>,
        memory: Arc<dyn RegionMemory>,
    ) -> MemoryRegion<B> {
        MemoryRegion::from_parts(registration, memory, self.buf)
    }

    fn fail(self: Box<Self>, error: Error) -> Failed<B> {
        Failed::new(error, self.buf)
    }
}

/// Copies the bytes of a buffer, or of its segments one after the other, to a region.
fn copy_to_region(bytes: Payload<'_>, memory: &dyn RegionMemory) {
    bytes.for_each(|at, piece| memory.write(at, piece));
}

/// Copies the bytes of a region back to its buffer, or to its segments.
fn fill_from_region<B: RegionBuf>(buf: B, memory: &dyn RegionMemory) -> B {
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
    /// Allocates and publishes a region, with the application buffer that it keeps, under the
    /// requested key or a free one.
    pub(crate) fn open(
        domain: &Domain<M>,
        len: usize,
        access: Access,
        key: Option<u64>,
        buf: B,
    ) -> Result<Self> {
        domain.inner.check_registers_now()?;
        let memory = domain.inner.fabric.inner.transport.alloc(len, access)?;
        let registration = MrRegistration::open_now(&domain.inner, memory.clone(), access, key)?;
        Ok(Self::from_parts(registration, memory, buf))
    }

    fn from_parts(
        registration: Box<MrRegistration>,
        memory: Arc<dyn RegionMemory>,
        buf: B,
    ) -> Self {
        Self {
            registration,
            memory,
            buf,
            model: PhantomData,
        }
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

    /// Tells the provider that pages are behind these bytes of the region, or other pages than
    /// before (`fi_mr_refresh`).
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
        self.registration.refresh(&*self.memory, range)
    }

    /// Copies bytes out of the region. Eight bytes at a multiple of eight are read as one word. In
    /// a longer read, so is each aligned group of eight bytes if the address of `out` and the
    /// offset have the same remainder modulo eight. Other bytes are read separately.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] when the range leaves the region.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        let at = check_range(self.memory.len(), offset as u64, out.len(), 1)?;
        self.memory.read(at, out);
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
        let at = check_range(self.memory.len(), offset as u64, bytes.len(), 1)?;
        self.memory.write(at, bytes);
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
        execute_atomic(&*self.memory, offset, op, operand, Some(comparand))
    }
}

/// Executes an atomic operation on one value of a region, and returns the previous value. `offset`
/// is in bytes.
pub(crate) fn execute_atomic<T: AtomicType>(
    memory: &dyn RegionMemory,
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
