//! One-sided operations: writes, reads, atomics, windows.

use fabric_core::atomic::{AtomicOp, AtomicType, AtomicValues};
use fabric_core::buf::{IoBufMut, PooledBuf};
use fabric_core::completion::OpKind;
use fabric_core::flags::Access;
use fabric_core::transport::{RmaIov, TxOp};
use fabric_core::{Error, FiAddr, Result};

use super::Endpoint;
use crate::op::{Fetching, NoFetch, ReadFrom, ReadOp, RemoteAtomicOp, Request, WriteOp, WriteTo};
use crate::remote_region::{RemoteAddr, RemoteRegion};
use crate::thread_model::ThreadModel;
use crate::window::RemoteWindow;

/// # One-sided operations
///
/// One-sided operations access memory of the peer's domain by key and offset, which the peer has
/// sent in a description ([`MemoryRegion::remote`](crate::MemoryRegion::remote)). Over `shm` the
/// peer does not take part in operations on an allocated region, except at the first use of a key
/// and for [notifications](crate::guide::one_sided#who-executes-an-operation). For a [registered
/// buffer](crate::RegisteredBuffer) its owner executes them. Over `tcp` the owner
/// [executes](crate::guide::tcp#remote-memory) all accesses. Every access checks rights and range.
/// An access out of range or without the right fails alone, with [`Error::Key`] or
/// [`Error::OutOfBounds`].
///
/// Over `shm` one-sided operations to a peer take effect in posting order. Over `tcp` a write or
/// message may overtake an earlier read: use [`fence`](Request::fence). A receiver of a message
/// sees everything that was written before the message was sent; a one-sided operation does not
/// wait until earlier messages have been received. See [`guide::ordering`](crate::guide::ordering)
/// and [`guide::one_sided`](crate::guide::one_sided).
impl<M: ThreadModel> Endpoint<M> {
    /// Returns a request to write these bytes to a peer's memory (`fi_write`): to a position
    /// ([`RemoteAddr`](crate::RemoteAddr)), or to a list of ranges as one operation (`fi_writemsg`
    /// with several `fi_rma_iov`).
    ///
    /// When the write has completed, the bytes are in the peer's memory. The peer is not notified,
    /// unless the request carries [data](Request::data) or the peer counts remote accesses
    /// (`FI_RMA_EVENT`). A concurrent reader can see the bytes of a write separately. Over `shm`, a
    /// write of eight contiguous bytes at a multiple of eight is one word.
    ///
    /// Of several ranges, the first gets the first bytes, and so on. The ranges may lie in several
    /// regions, and have as many bytes together as the buffer. There are at most
    /// [`Info::tx`](crate::Info::tx)`.rma_iov_limit` of them. All are checked before the first byte
    /// is written: an operation with an invalid range changes nothing. There is one completion. A
    /// peer that counts remote accesses counts each range; [data](Request::data) arrives once,
    /// after all bytes.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::{Access, Endpoint};
    /// let ep = Endpoint::bind("shm://").await?;
    /// let table = ep.domain().alloc(64, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
    /// let (me, remote) = (ep.add_peer(ep.name()).await?, table.remote());
    /// ep.write(me, remote.at(8), vec![7; 4]).await?;
    /// let places = [remote.slice(40..44), remote.slice(0..2)];
    /// ep.write(me, places, vec![1, 2, 3, 4, 5, 6]).await?;
    /// assert_eq!(ep.read(me, places).await?[..], [1, 2, 3, 4, 5, 6]);
    /// assert_eq!(ep.read(me, remote.slice(0..10)).await?[..], [5, 6, 0, 0, 0, 0, 0, 0, 7, 7]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Of the request: [`Error::Invalid`] without a range, or when the lengths of ranges and buffer
    /// differ; [`Error::TooMany`] for too many ranges.
    ///
    /// # Cancel safety
    /// Dropping the future before its first poll, or before it got a credit, writes nothing;
    /// afterwards the bytes are written, unless
    /// [`cancel_on_drop`](Request::cancel_on_drop) withdraws the write.
    #[doc(alias = "fi_write")]
    #[doc(alias = "fi_writemsg")]
    #[doc(alias = "fi_rma_iov")]
    #[doc(alias = "fi_inject_write")]
    #[inline]
    pub fn write<B>(
        &self,
        peer: FiAddr,
        to: impl Into<WriteTo>,
        buf: B,
    ) -> Request<'_, WriteOp, B, M> {
        Request::new(&self.inner, WriteOp::new(peer, to.into()), buf)
    }

    /// Returns a request to read a range of a peer's memory (`fi_read`), or a list of ranges as one
    /// operation (`fi_readmsg` with several `fi_rma_iov`), into a [`PooledBuf`].
    ///
    /// Several ranges are read one after the other; all are checked first, as with
    /// [`write`](Self::write).
    ///
    /// # Errors
    /// Of the request: as of [`write`](Self::write).
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    #[doc(alias = "fi_read")]
    #[doc(alias = "fi_readmsg")]
    pub fn read(
        &self,
        peer: FiAddr,
        from: impl Into<ReadFrom>,
    ) -> Request<'_, ReadOp, PooledBuf, M> {
        self.read_into(peer, from, PooledBuf::empty())
    }

    /// Returns a request to read a range, or a list of ranges, of a peer's memory into this buffer,
    /// as [`read`](Self::read). The read fails with [`Error::BufferTooSmall`] when the buffer is
    /// too small.
    ///
    /// A [`Scatter`](crate::buf::Scatter) may be split at other positions than the ranges.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing; the buffer is dropped.
    #[doc(alias = "fi_read")]
    #[doc(alias = "fi_readmsg")]
    pub fn read_into<B: IoBufMut>(
        &self,
        peer: FiAddr,
        from: impl Into<ReadFrom>,
        buf: B,
    ) -> Request<'_, ReadOp, B, M> {
        Request::new(&self.inner, ReadOp::new(peer, from.into()), buf)
    }

    /// Maps a region of a peer (`ucp_rkey_ptr`), for many small accesses by plain calls instead of
    /// operations. Such an access costs as much as one to local memory.
    ///
    /// Requests the region from the peer if it was not accessed before, and waits for the answer,
    /// as the first operation on the region does.
    ///
    /// # Errors
    /// [`Error::Key`] when the region is unknown or closed; [`Error::NotSupported`] when its owner
    /// counts remote accesses or executes them itself (as over `tcp`, for a registered buffer, or
    /// for a region without [`Access::REMOTE_READ`]); and as [`read`](Self::read).
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    #[doc(alias = "ucp_rkey_ptr")]
    pub async fn window(&self, peer: FiAddr, region: RemoteRegion) -> Result<RemoteWindow> {
        let key = region.key;
        let kind = if region.access.contains(Access::REMOTE_READ) {
            OpKind::Read
        } else {
            OpKind::Write
        };
        let remote = RmaIov {
            key,
            offset: 0,
            len: 0,
            atomic: None,
        };
        self.inner
            .check_copied_tx(&TxOp::one_sided(kind, peer, remote))?;
        // An access of length 0 makes the transport map the region. If the region was closed and
        // its key reused meanwhile, a second access is needed.
        let engine = &self.inner.domain.engine;
        for _ in 0..2 {
            if let Some(mapped) = engine.direct_region(self.inner.id, peer, key)? {
                return Ok(RemoteWindow::new(key, mapped));
            }
            match kind {
                OpKind::Read => self
                    .read_into(peer, region.slice(..0), Vec::new())
                    .await
                    .map(drop)?,
                _ => self.write(peer, region.at(0), Vec::new()).await.map(drop)?,
            }
        }
        engine
            .direct_region(self.inner.id, peer, key)?
            .map(|mapped| RemoteWindow::new(key, mapped))
            .ok_or(Error::Key {
                key,
                why: "was revoked while its region was being mapped",
            })
    }

    /// Returns a request for an atomic operation on a peer's memory (`fi_atomic`); for several
    /// values, each is changed atomically for itself.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::atomic::AtomicOp;
    /// use fabric_async::{Access, Endpoint};
    /// let ep = Endpoint::bind("shm://").await?;
    /// let region = ep.domain().alloc(64, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
    /// let (me, remote) = (ep.add_peer(ep.name()).await?, region.remote());
    /// ep.atomic(me, remote.at(0), AtomicOp::Sum, 5u64).await?;
    /// assert_eq!(ep.fetch_add(me, remote.at(0), 2u64).await?, 5);
    /// assert_eq!(ep.compare_swap(me, remote.at(0), 7u64, 1).await?, 7);
    /// ep.atomic(me, remote.at(16), AtomicOp::Write, -3i16).await?;
    /// assert_eq!(ep.fetch_atomic(me, remote.at(16), AtomicOp::Read, 0i16).await?, -3);
    /// ep.atomic(me, remote.at(8), AtomicOp::Max, [0.5f32, 2.0]).await?;
    /// assert_eq!((region.load::<u64>(0)?, region.load::<f32>(12)?), (1, 2.0));
    /// # Ok(()) }
    /// ```
    #[doc(alias = "fi_atomic")]
    pub fn atomic<R: AtomicValues>(
        &self,
        peer: FiAddr,
        at: RemoteAddr,
        op: AtomicOp,
        operands: R,
    ) -> Request<'_, RemoteAtomicOp<R, NoFetch>, R, M> {
        Request::new(
            &self.inner,
            RemoteAtomicOp::new(peer, at, op, None),
            operands,
        )
    }

    /// Returns a request for an atomic operation that returns the previous values
    /// (`fi_fetch_atomic`), as [`atomic`](Self::atomic).
    #[doc(alias = "fi_fetch_atomic")]
    pub fn fetch_atomic<R: AtomicValues>(
        &self,
        peer: FiAddr,
        at: RemoteAddr,
        op: AtomicOp,
        operands: R,
    ) -> Request<'_, RemoteAtomicOp<R, Fetching>, R, M> {
        Request::new(
            &self.inner,
            RemoteAtomicOp::new(peer, at, op, None),
            operands,
        )
    }

    /// Returns a request for an atomic operation with comparands (`fi_compare_atomic`), as
    /// [`fetch_atomic`](Self::fetch_atomic). Operands come first, then comparands;
    /// [`compare_swap`](Self::compare_swap) has the argument order of the standard library.
    #[doc(alias = "fi_compare_atomic")]
    pub fn compare_atomic<R: AtomicValues>(
        &self,
        peer: FiAddr,
        at: RemoteAddr,
        op: AtomicOp,
        operands: R,
        comparands: R,
    ) -> Request<'_, RemoteAtomicOp<R, Fetching>, R, M> {
        Request::new(
            &self.inner,
            RemoteAtomicOp::new(peer, at, op, Some(comparands)),
            operands,
        )
    }

    /// Returns a request to add to a value in a peer's memory (`FI_SUM`), which resolves to the
    /// previous value.
    pub fn fetch_add<T: AtomicType>(
        &self,
        peer: FiAddr,
        at: RemoteAddr,
        add: T,
    ) -> Request<'_, RemoteAtomicOp<T, Fetching>, T, M> {
        self.fetch_atomic(peer, at, AtomicOp::Sum, add)
    }

    /// Returns a request to replace a value in a peer's memory by `new` if it equals `expected`
    /// (`FI_CSWAP`). The request resolves to the previous value, which is `expected` on success.
    pub fn compare_swap<T: AtomicType>(
        &self,
        peer: FiAddr,
        at: RemoteAddr,
        expected: T,
        new: T,
    ) -> Request<'_, RemoteAtomicOp<T, Fetching>, T, M> {
        self.compare_atomic(peer, at, AtomicOp::Cswap, new, expected)
    }
}
