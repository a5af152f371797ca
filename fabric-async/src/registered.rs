//! Registered buffers: ordinary memory that peers reach by way of this process.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use fabric_core::buf::{AnyBuf, FlatBuf, IoBufMut};
use fabric_core::completion::Failed;
use fabric_core::flags::{Access, CounterBind};
use fabric_core::mr::{RegionMemory, RegisteredMemory};
use fabric_core::tree::{Class, ObjectNode};
use fabric_core::{Error, Result};

use crate::close::CloseError;
use crate::counter::{Counter, RegionCounters};
use crate::domain::{Domain, DomainInner};
use crate::mr::RemoteRegion;
use crate::thread_model::{Shared, ThreadModel};

/// A buffer of yours under a key (`fi_mr_reg`): peers read, write and change it atomically where it
/// lies.
///
/// Made by [`Domain::register`]. Nothing is copied, neither now nor at
/// [`close`](Self::close). In return peers do not reach it by themselves: this process does for
/// them what they ask for, whenever it makes progress. Under manual progress a task has to be
/// waiting for something of this domain (a receive, a queue), or peers wait; under
/// [automatic](crate::Progress::Auto) progress none has to. [`MemoryRegion`](crate::MemoryRegion)s
/// have the opposite of both.
///
/// Their rights, the range and the key are checked here, with every access. The accesses of all
/// peers, atomic or not, come one after the other, each (or each 64 KiB of a longer one) as a
/// whole. The owner has the bytes between them, by [`look`](Self::look). Peers need no
/// [window](crate::Endpoint::window) for it, and can have none.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
/// use fabric_async::{Access, Endpoint};
/// let (target, ep) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
/// let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
/// let mut table = target.domain().register(vec![0u8; 4096], both, None)?;
/// let (remote, peer) = (table.remote(), ep.add_peer(target.name()).await?);
/// let owner = tokio::spawn(async move { drop(target.recv().await) });  // somebody waits there, and so serves
/// ep.write(peer, remote.at(100), "hello").await?;
/// assert_eq!(ep.fetch_add(peer, remote.at(8), 5u64).await?, 0);
/// assert_eq!(&table.look()[100..105], b"hello");
/// table.look()[..3].copy_from_slice(b"you");
/// assert_eq!(&ep.read(peer, remote.slice(..3)).await?[..], b"you");
/// let vector: Vec<u8> = table.close()?;
/// assert_eq!((vector.len(), vector[8]), (4096, 5));
/// # owner.abort(); Ok(()) }
/// ```
#[doc(alias = "fid_mr")]
#[doc(alias = "fi_mr_reg")]
pub struct RegisteredBuffer<B, M: ThreadModel = Shared> {
    node: Arc<ObjectNode>,
    domain: Arc<DomainInner>,
    /// Boxed, so that a handle is small.
    remote: Box<RemoteRegion>,
    memory: Arc<RegisteredMemory>,
    is_open: bool,
    counters: RegionCounters,
    marker: PhantomData<(fn() -> B, M)>,
}

/// The bytes of a registered buffer in the hands of their owner: peers wait until it is dropped,
/// and everything behind that they have sent on the same connection with them. Keep it short.
pub struct RegisteredGuard<'a> {
    memory: &'a RegisteredMemory,
    domain: &'a DomainInner,
    key: u64,
    buf: AnyBuf,
}

impl<B: IoBufMut + FlatBuf, M: ThreadModel> RegisteredBuffer<B, M> {
    pub(crate) fn register(
        domain: &Domain<M>,
        buf: B,
        access: Access,
        key: Option<u64>,
    ) -> Result<Self, Failed<B>> {
        if let Err(error) = domain.inner.node.check_open() {
            return Err(Failed::new(error, buf));
        }
        let memory = match RegisteredMemory::new(buf.into_any()) {
            Ok(memory) => Arc::new(memory),
            Err((error, any)) => return Err(Failed::new(error, downcast_buf(any))),
        };
        let node = ObjectNode::new(Class::MemoryRegion, Some(domain.inner.node.clone()));
        let (core, by_address) = (&domain.inner.core, domain.uses_virt_addr());
        let opened = core
            .open_region(memory.clone(), access, key, by_address)
            .and_then(|key| {
                node.publish().inspect_err(|_| core.close_region(key))?;
                Ok(key)
            });
        match opened {
            Ok(key) => {
                let base = if by_address { memory.address() } else { 0 };
                let remote =
                    Box::new(RemoteRegion::new(key, memory.len() as u64, access).with_base(base));
                let domain = domain.inner.clone();
                Ok(Self {
                    node,
                    domain,
                    remote,
                    memory,
                    is_open: true,
                    counters: RegionCounters::default(),
                    marker: PhantomData,
                })
            }
            Err(error) => {
                let any = memory.take().unwrap_or_default();
                Err(Failed::new(error, downcast_buf(any)))
            }
        }
    }

    /// The bytes, to be read and written by their owner. Waits for an access by a peer that is
    /// under way, at most 64 KiB of it.
    pub fn lock(&mut self) -> RegisteredGuard<'_> {
        let buf = self.memory.take().unwrap_or_default();
        RegisteredGuard {
            memory: &self.memory,
            domain: &self.domain,
            key: self.remote.key,
            buf,
        }
    }

    /// Closes the registration and returns the buffer: the key is free again, peers that use it get
    /// [`Error::Key`], and nothing they have under way takes effect any more.
    ///
    /// # Errors
    /// [`Error::Closed`], when the domain has gone before.
    #[doc(alias = "fi_close")]
    pub fn close(mut self) -> Result<B, CloseError<Self>> {
        if let Err(error) = self.node.close() {
            return Err(CloseError {
                error,
                handle: self,
            });
        }
        self.revoke();
        match self.memory.take() {
            Some(any) => Ok(downcast_buf(any)),
            None => Err(CloseError {
                error: Error::Closed(Class::MemoryRegion),
                handle: self,
            }),
        }
    }
}

fn downcast_buf<B: IoBufMut>(any: AnyBuf) -> B {
    B::from_any(any).unwrap_or_else(|_| unreachable!("the same type comes back"))
}

impl<B, M: ThreadModel> RegisteredBuffer<B, M> {
    /// Counts what peers do here (`fi_mr_bind` with a counter): reads and atomics that fetch
    /// (`REMOTE_READ`), writes and other atomics (`REMOTE_WRITE`). Bind it before you give the key
    /// away: who has used it before does not tell.
    ///
    /// It costs the peers a record more for each operation. The counter stays open as long as the
    /// registration.
    ///
    /// # Errors
    /// [`Error::BadFlags`] for no kind, or others than these; [`Error::NotSupported`] when the
    /// domain was opened without [`Caps::RMA_EVENT`](crate::Caps::RMA_EVENT); [`Error::Invalid`]
    /// when a kind has a counter; [`Error::WrongDomain`]; [`Error::Closed`].
    #[doc(alias = "fi_mr_bind")]
    pub fn bind_counter(&mut self, counter: &Counter<M>, what: CounterBind) -> Result<()> {
        self.node.check_open()?;
        self.counters
            .bind(&self.domain, self.remote.key, &counter.inner, what)
    }

    /// Takes the key back; those who wait for the buffer hear of it.
    fn revoke(&mut self) {
        self.is_open = false;
        self.domain.core.close_region(self.remote.key);
        self.domain.core.region_released(self.remote.key);
    }

    /// The key (`fi_mr_key`).
    #[doc(alias = "fi_mr_key")]
    #[must_use]
    pub fn key(&self) -> u64 {
        self.remote.key
    }

    /// What to send to a peer that shall access the buffer.
    #[must_use]
    pub fn remote(&self) -> RemoteRegion {
        *self.remote
    }
}

impl<B, M: ThreadModel> Drop for RegisteredBuffer<B, M> {
    fn drop(&mut self) {
        if self.is_open {
            self.revoke();
        }
        self.node.uncount();
    }
}

impl<B, M: ThreadModel> fmt::Debug for RegisteredBuffer<B, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredBuffer")
            .field("id", &self.node.id())
            .field("remote", &self.remote)
            .finish()
    }
}

impl Deref for RegisteredGuard<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buf.bytes()
    }
}

impl DerefMut for RegisteredGuard<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.buf.bytes_mut()
    }
}

impl Drop for RegisteredGuard<'_> {
    fn drop(&mut self) {
        // A look that was forgotten has kept the buffer, and left nothing for the next.
        if !matches!(self.buf, AnyBuf::None) {
            self.memory.put_back(std::mem::take(&mut self.buf));
        }
        self.domain.core.region_released(self.key);
    }
}

impl fmt::Debug for RegisteredGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Look({} bytes)", self.len())
    }
}
