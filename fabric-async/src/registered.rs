//! Registered buffers: application memory that peers access through this process.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, RangeBounds};
use std::sync::Arc;

use fabric_core::buf::{AnyBuf, FlatBuf, RegionBuf, restore_buffer};
use fabric_core::completion::Failed;
use fabric_core::flags::{Access, CounterBind};
use fabric_core::mr::{RegionMemory, RegisteredMemory};
use fabric_core::tree::Class;
use fabric_core::{Error, Result};

use crate::close::{CloseError, close_object};
use crate::counter::Counter;
use crate::domain::Domain;
use crate::domain_inner::DomainInner;
use crate::op::AsEndpoint;
use crate::registration::{MrRegistration, RegionSource, check_segments, register_now};
use crate::remote_region::RemoteRegion;
use crate::thread_model::{Shared, ThreadModel};

/// A registered application buffer (`fi_mr_reg`): peers read, write and change it atomically in
/// place.
///
/// Created by [`Domain::register`]. Nothing is copied, neither then nor by
/// [`into_buf`](Self::into_buf). In return, this process executes the accesses of peers whenever it
/// makes progress. Under manual progress a task must be waiting for something of this domain (a
/// receive, a queue), or the peers wait; under [automatic](crate::Progress::Auto) progress no task
/// is needed. A [`MemoryRegion`](crate::MemoryRegion) is the alternative: its bytes are copied, and
/// over `shm` peers access it while this process makes no progress.
///
/// A [`Scatter`](crate::buf::Scatter) of buffers is one registration with several segments
/// (`fi_mr_regv`). Offsets run through the segments in order, and accesses cross their borders; the
/// value of an atomic operation may be in two segments. In a domain that requires
/// [`MrMode::VIRT_ADDR`](crate::info::MrMode::VIRT_ADDR), the base is the address of the first
/// segment, and the address of byte `n` of the region is `base + n`, also in later segments.
///
/// This process checks the key, rights and range of every access. The accesses of all peers, atomic
/// or not, are executed one after the other, each (or each 64 KiB of a longer one) as a whole.
/// Between accesses the owner gets the bytes with [`lock`](Self::lock). Peers cannot create a
/// [window](crate::Endpoint::window) of a registered buffer.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
/// use fabric_async::{Access, Endpoint};
/// let (target, ep) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
/// let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
/// let mut table = target.domain().register(vec![0u8; 4096], both, None)?;
/// let (remote, peer) = (table.remote(), ep.add_peer(target.name()).await?);
/// let owner = tokio::spawn(async move { drop(target.recv().await) }); // makes progress
/// ep.write(peer, remote.at(100), "hello").await?;
/// assert_eq!(ep.fetch_add(peer, remote.at(8), 5u64).await?, 0);
/// assert_eq!(&table.lock()[100..105], b"hello");
/// table.lock()[..3].copy_from_slice(b"you");
/// assert_eq!(&ep.read(peer, remote.slice(..3)).await?[..], b"you");
/// let vector: Vec<u8> = table.into_buf()?;
/// assert_eq!((vector.len(), vector[8]), (4096, 5));
/// # owner.abort(); Ok(()) }
/// ```
#[doc(alias = "fid_mr")]
#[doc(alias = "fi_mr_reg")]
#[doc(alias = "fi_mr_regv")]
pub struct RegisteredBuffer<B, M: ThreadModel = Shared> {
    /// Boxed to keep the handle small.
    registration: Box<MrRegistration>,
    memory: Arc<RegisteredMemory>,
    marker: PhantomData<(fn() -> B, M)>,
}

/// Exclusive access of the owner to the bytes of a registered buffer.
///
/// While the guard exists, accesses of peers wait, and so does everything those peers send after
/// the accesses on the same connection. Hold the guard briefly.
///
/// Derefs to the bytes, unless the buffer is a [`Scatter`](crate::buf::Scatter): the bytes of its
/// buffers are [segments](Self::segments).
pub struct RegisteredGuard<'a, B, M: ThreadModel = Shared> {
    memory: &'a RegisteredMemory,
    domain: &'a DomainInner,
    buf: AnyBuf,
    marker: PhantomData<(fn() -> B, M)>,
}

/// # Registered buffers
impl<M: ThreadModel> Domain<M> {
    /// Registers a buffer in place (`fi_mr_reg`), under the requested key or a free one.
    ///
    /// Nothing is copied; this process executes the accesses of peers.
    /// [`alloc_from`](Self::alloc_from) copies the bytes to memory that peers access directly
    /// instead.
    ///
    /// The region has the length of the buffer's bytes ([`FlatBuf::bytes`](crate::buf::FlatBuf)),
    /// not its capacity: an empty `Vec::with_capacity(n)` gives a region of length 0. Use `vec![0;
    /// n]`.
    ///
    /// A [`Scatter`](crate::buf::Scatter) registers several buffers as the segments of one region
    /// (`fi_mr_regv`), at most `mr_iov_limit` of [`DomainAttr`](crate::info::DomainAttr). Offsets
    /// run through the segments in order.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::buf::Scatter;
    /// use fabric_async::{Access, Endpoint};
    /// let (target, ep) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
    /// let segments = Scatter::from([vec![0u8; 6], vec![0u8; 100]]);
    /// let region = target.domain().register(segments, Access::REMOTE_WRITE, None)?;
    /// let (remote, peer) = (region.remote(), ep.add_peer(target.name()).await?);
    /// assert_eq!(remote.len, 106);
    /// # let owner = tokio::spawn(async move { drop(target.recv().await) });
    /// ep.write(peer, remote.at(0), "headerbody").await?;
    /// let segments = region.into_buf()?.into_parts::<Vec<u8>>().unwrap();
    /// assert_eq!((&segments[0][..], &segments[1][..4]), (&b"header"[..], &b"body"[..]));
    /// # owner.abort(); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// With the buffer: [`Error::Invalid`] when its bytes are not writable, when they are not all
    /// backed by pages in a domain that requires
    /// [`MrMode::ALLOCATED`](crate::info::MrMode::ALLOCATED), for a `Scatter` of no buffers, or
    /// when the domain is bound with [`FI_REG_MR`](Self::bind_eq_reg_mr); [`Error::Key`] when the
    /// key is in use, or the domain selects keys
    /// ([`MrMode::PROV_KEY`](crate::info::MrMode::PROV_KEY)); [`Error::BadFlags`] when `access` is
    /// empty; [`Error::TooMany`] for more segments than `mr_iov_limit`, or when the domain has
    /// `mr_cnt` regions; [`Error::TooLong`] when the sum of the lengths overflows;
    /// [`Error::Closed`].
    #[doc(alias = "fi_mr_reg")]
    #[doc(alias = "fi_mr_regv")]
    #[doc(alias = "fi_mr_regattr")]
    pub fn register<B: RegionBuf>(
        &self,
        buf: B,
        access: Access,
        key: Option<u64>,
    ) -> Result<RegisteredBuffer<B, M>, Failed<B>> {
        register_now(
            &self.inner,
            BufferInPlace::new(&self.inner, buf),
            access,
            key,
        )
    }
}

impl<B: RegionBuf, M: ThreadModel> RegisteredBuffer<B, M> {
    /// Locks the buffer for the owner to read and write. Blocks while an access of a peer is
    /// executed, of which at most 64 KiB are executed at once.
    ///
    /// After a guard was leaked (`mem::forget`), later guards are empty.
    pub fn lock(&mut self) -> RegisteredGuard<'_, B, M> {
        let buf = self.memory.take().unwrap_or_default();
        RegisteredGuard {
            memory: &self.memory,
            domain: &self.registration.domain,
            buf,
            marker: PhantomData,
        }
    }

    /// Closes the registration, as [`close`](Self::close) does, and returns the buffer.
    ///
    /// # Errors
    /// [`Error::Closed`] when a [guard](Self::lock) was leaked: the guard has the buffer.
    pub fn into_buf(self) -> Result<B, CloseError<Self>> {
        let mut registered = close_object(self, |registered| &registered.registration.node)?;
        registered.registration.revoke();
        match registered.memory.take() {
            Some(any) => Ok(restore_buffer(any.into_filled())),
            None => Err(CloseError {
                error: Error::Closed(Class::MemoryRegion),
                handle: registered,
            }),
        }
    }
}

/// A buffer to register in place, or one that cannot be registered.
pub(crate) struct BufferInPlace(Result<Arc<RegisteredMemory>, (Error, AnyBuf)>);

impl BufferInPlace {
    pub(crate) fn new(domain: &DomainInner, buf: impl RegionBuf) -> Self {
        let checked = check_segments(domain, &buf);
        let any = buf.into_any();
        Self(match checked {
            Ok(()) => RegisteredMemory::new(any).map(Arc::new),
            Err(error) => Err((error, any)),
        })
    }
}

impl<B: RegionBuf, M: ThreadModel> RegionSource<RegisteredBuffer<B, M>, Failed<B>>
    for BufferInPlace
{
    fn prepare(&mut self, _: &DomainInner, _: Access) -> Result<Arc<dyn RegionMemory>> {
        match &self.0 {
            Ok(memory) => Ok(memory.clone()),
            Err((error, _)) => Err(error.clone()),
        }
    }

    fn open(self: Box<Self>, registration: Box<MrRegistration>) -> RegisteredBuffer<B, M> {
        let Ok(memory) = self.0 else {
            unreachable!("the memory of a refused buffer is not registered")
        };
        RegisteredBuffer {
            registration,
            memory,
            marker: PhantomData,
        }
    }

    fn fail(self: Box<Self>, error: Error) -> Failed<B> {
        let any = match self.0 {
            Ok(memory) => memory.take().unwrap_or_default(),
            Err((_, any)) => any,
        };
        Failed::new(error, restore_buffer(any))
    }
}

impl<B, M: ThreadModel> RegisteredBuffer<B, M> {
    /// Counts remote accesses (`fi_mr_bind` with a counter): reads and fetching atomics
    /// (`REMOTE_READ`), writes and other atomics (`REMOTE_WRITE`). Bind the counter before sending
    /// the key to peers: accesses of peers that used the key before are not counted.
    ///
    /// Peers send one more record for each counted operation. The counter stays open as long as the
    /// registration.
    ///
    /// # Errors
    /// [`Error::BadFlags`] for no kind, or any other kind; [`Error::NotSupported`] when the domain
    /// was opened without [`Caps::RMA_EVENT`](crate::Caps::RMA_EVENT); [`Error::Invalid`] when a
    /// counter is bound for the kind already, or the registration is [enabled](Self::enable);
    /// [`Error::WrongParent`]; [`Error::Closed`].
    #[doc(alias = "fi_mr_bind")]
    pub fn bind_counter(&mut self, counter: &Counter<M>, what: CounterBind) -> Result<()> {
        self.registration.bind_counter(&counter.inner, what)
    }

    /// Binds the registration to an endpoint, as
    /// [`MemoryRegion::bind_endpoint`](crate::MemoryRegion::bind_endpoint).
    ///
    /// # Errors
    /// As [`MemoryRegion::bind_endpoint`](crate::MemoryRegion::bind_endpoint).
    #[doc(alias = "fi_mr_bind")]
    #[doc(alias = "FI_MR_ENDPOINT")]
    pub fn bind_endpoint(&mut self, ep: &impl AsEndpoint<M>) -> Result<()> {
        self.registration.bind_endpoint(ep.inner())
    }

    /// Tells the provider that pages are behind these bytes, as
    /// [`MemoryRegion::refresh`](crate::MemoryRegion::refresh).
    ///
    /// # Errors
    /// As [`MemoryRegion::refresh`](crate::MemoryRegion::refresh).
    #[doc(alias = "fi_mr_refresh")]
    #[doc(alias = "FI_MR_MMU_NOTIFY")]
    pub fn refresh(&mut self, range: impl RangeBounds<usize>) -> Result<()> {
        self.registration.refresh(range)
    }

    /// Enables the registration, as [`MemoryRegion::enable`](crate::MemoryRegion::enable).
    ///
    /// # Errors
    /// As [`MemoryRegion::enable`](crate::MemoryRegion::enable).
    #[doc(alias = "fi_mr_enable")]
    pub fn enable(&mut self) -> Result<()> {
        self.registration.enable()
    }

    /// Closes the registration (`fi_close`), as a drop does: the key is free again, peers that use
    /// the key get [`Error::Key`], and their accesses in progress have no further effect. This call
    /// also drops the buffer; [`into_buf`](Self::into_buf) returns it.
    ///
    /// # Errors
    /// None: no other object uses a registration, and a registration has one handle.
    #[doc(alias = "fi_close")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        close_object(self, |registered| &registered.registration.node).map(drop)
    }

    /// Returns the key, as [`MemoryRegion::key`](crate::MemoryRegion::key).
    #[doc(alias = "fi_mr_key")]
    #[must_use]
    pub fn key(&self) -> u64 {
        self.registration.remote.key
    }

    /// Returns the description that a peer needs for accessing the buffer.
    #[must_use]
    pub fn remote(&self) -> RemoteRegion {
        self.registration.remote
    }

    /// Returns the raw key, as [`MemoryRegion::raw_key`](crate::MemoryRegion::raw_key).
    #[doc(alias = "fi_mr_raw_attr")]
    #[must_use]
    pub fn raw_key(&self) -> Vec<u8> {
        self.registration.raw_key()
    }
}

impl<B, M: ThreadModel> Drop for RegisteredBuffer<B, M> {
    fn drop(&mut self) {
        self.registration.revoke();
        // Responses that wait for a peer share the memory, and the engine drops them under the
        // domain's lock. The drop of the buffer may be user code, so the buffer is dropped here.
        drop(self.memory.take());
    }
}

impl<B, M: ThreadModel> fmt::Debug for RegisteredBuffer<B, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredBuffer")
            .field("id", &self.registration.node.id())
            .field("remote", &self.registration.remote)
            .finish()
    }
}

impl<B, M: ThreadModel> RegisteredGuard<'_, B, M> {
    /// Iterates over the bytes of each segment in order. A buffer that is no
    /// [`Scatter`](crate::buf::Scatter) is one segment.
    pub fn segments(&self) -> impl Iterator<Item = &[u8]> {
        self.buf.segments().iter().map(AnyBuf::bytes)
    }

    /// Iterates over the bytes of each segment in order, for changing them.
    pub fn segments_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.buf.segments_mut().iter_mut().map(AnyBuf::bytes_mut)
    }
}

impl<B: FlatBuf, M: ThreadModel> Deref for RegisteredGuard<'_, B, M> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buf.bytes()
    }
}

impl<B: FlatBuf, M: ThreadModel> DerefMut for RegisteredGuard<'_, B, M> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.buf.bytes_mut()
    }
}

impl<B, M: ThreadModel> Drop for RegisteredGuard<'_, B, M> {
    fn drop(&mut self) {
        // The buffer is `AnyBuf::None` if an earlier guard was leaked (`mem::forget`).
        if !matches!(self.buf, AnyBuf::None) {
            self.memory.put_back(std::mem::take(&mut self.buf));
        }
        self.domain.engine.region_unlocked();
    }
}

impl<B, M: ThreadModel> fmt::Debug for RegisteredGuard<'_, B, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len: usize = self.segments().map(<[u8]>::len).sum();
        write!(f, "RegisteredGuard({len} bytes)")
    }
}
