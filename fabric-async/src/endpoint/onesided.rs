//! One-sided operations of an endpoint.

use fabric_core::atomic::{AtomicOp, AtomicType, AtomicValues};
use fabric_core::buf::{IoBuf, IoBufMut, PooledBuf};
use fabric_core::completion::OpKind;
use fabric_core::flags::Access;
use fabric_core::transport::{RmaIov, TxOp};
use fabric_core::{Error, FiAddr, Result};

use super::Endpoint;
use crate::mr::{RemoteAddr, RemoteRegion, RemoteSlice};
use crate::op::{AtomicRequest, Fetching, NoFetch, ReadRequest, WriteRequest};
use crate::thread_model::ThreadModel;
use crate::window::RemoteWindow;

/// # One-sided operations
///
/// They reach memory of the peer's domain by key and offset, which the peer has told of
/// ([`MemoryRegion::remote`](crate::MemoryRegion::remote)). Over shared memory it does not help:
/// only the first use of a key waits for it to answer. Over `tcp` it does what it is
/// [asked](crate::guide::tcp#remote-memory). Rights and range are checked with every
/// access. What is out of reach fails this operation alone, with [`Error::Key`] or
/// [`Error::TooLong`], and disturbs nothing.
///
/// They take effect in the order in which they were posted. Who receives a message sees what was
/// written before it was sent; a one-sided operation does not wait until a message before it was
/// received. See [`guide::one_sided`](crate::guide::one_sided).
impl<M: ThreadModel> Endpoint<M> {
    /// Writes these bytes to a place in a peer's memory (`fi_write`).
    ///
    /// When it has ended, the bytes are there. The peer does not hear of it, unless the request
    /// carries [data](WriteRequest::data) or the peer counts it (`FI_RMA_EVENT`). Eight bytes at a
    /// multiple of eight are written as one word; of anything else a reader can see parts.
    ///
    /// # Cancel safety
    /// Dropping the future before there was credit writes nothing; afterwards the bytes are written
    /// nevertheless.
    #[doc(alias = "fi_write")]
    pub fn write<B: IoBuf>(&self, peer: FiAddr, to: RemoteAddr, buf: B) -> WriteRequest<'_, B, M> {
        WriteRequest::new(self, peer, to, buf)
    }

    /// Writes these bytes to several places in a peer's memory, one behind the other, as one
    /// operation (`fi_writemsg` with several `fi_rma_iov`): the first place gets the first bytes,
    /// and so on. The places may lie in several regions, and have as many bytes together as the
    /// buffer. At most [`Info::tx`](crate::Info::tx)`.rma_iov_limit` of them.
    ///
    /// All places are checked before the first byte moves: an operation that names one out of reach
    /// changes nothing. There is one completion. If the peer counts what is done to its memory, it
    /// counts each place; [data](WriteRequest::data) comes once, behind all bytes.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::{Access, Endpoint};
    /// let ep = Endpoint::bind("shm://").await?;
    /// let table = ep.domain().alloc(64, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
    /// let (me, remote) = (ep.add_peer(ep.name()).await?, table.remote());
    /// let places = [remote.slice(40..44), remote.slice(0..2)];
    /// ep.write_to(me, &places, vec![1, 2, 3, 4, 5, 6]).await?;
    /// assert_eq!(ep.read_from(me, &places).await?[..], [1, 2, 3, 4, 5, 6]);
    /// assert_eq!(ep.read(me, remote.slice(0..3)).await?[..], [5, 6, 0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Of the request: [`Error::Invalid`] without a place, or when places and buffer differ in
    /// length; [`Error::TooLong`] for too many places.
    ///
    /// # Cancel safety
    /// As [`write`](Self::write).
    #[doc(alias = "fi_writemsg")]
    #[doc(alias = "fi_rma_iov")]
    pub fn write_rma_iov<B: IoBuf>(
        &self,
        peer: FiAddr,
        to: &[RemoteSlice],
        buf: B,
    ) -> WriteRequest<'_, B, M> {
        WriteRequest::to_iov(self, peer, to, buf)
    }

    /// Reads several places in a peer's memory as one operation (`fi_readmsg` with several
    /// `fi_rma_iov`) into memory of the domain's pool, one behind the other. As with
    /// [`write_rma_iov`](Self::write_to), all are checked before the first byte moves.
    ///
    /// # Errors
    /// Of the request: as of `write_rma_iov`.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    #[doc(alias = "fi_readmsg")]
    pub fn read_rma_iov(
        &self,
        peer: FiAddr,
        from: &[RemoteSlice],
    ) -> ReadRequest<'_, PooledBuf, M> {
        self.read_rma_iov_into(peer, from, PooledBuf::empty(self.inner.domain.core.pool()))
    }

    /// Likewise, into this buffer, which must have the room: [`Error::TooLong`] else. A
    /// [`Scatter`](crate::Scatter) takes it in pieces, which need not be those of the peer's.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing; the buffer is dropped.
    #[doc(alias = "fi_readmsg")]
    pub fn read_rma_iov_into<B: IoBufMut>(
        &self,
        peer: FiAddr,
        from: &[RemoteSlice],
        buf: B,
    ) -> ReadRequest<'_, B, M> {
        ReadRequest::from_iov(self, peer, from, buf)
    }

    /// Writes a copy of borrowed bytes (`fi_inject_write`): nothing comes back, and a later failure
    /// is an [event](crate::EventKind::OperationFailed).
    ///
    /// # Errors
    /// [`Error::TooLong`] above [`Info::tx`](crate::Info::tx)`.inject_size`, and as
    /// [`WriteRequest::start`].
    #[doc(alias = "fi_inject_write")]
    pub fn inject_write(&self, peer: FiAddr, to: RemoteAddr, bytes: &[u8]) -> Result<()> {
        let remote = RmaIov {
            key: to.key,
            offset: to.offset,
            len: bytes.len(),
            atomic: None,
        };
        self.inject_op(TxOp::one_sided(OpKind::Write, peer, remote), bytes)
    }

    /// Likewise, with [data](WriteRequest::data) (`fi_inject_writedata`).
    ///
    /// # Errors
    /// As [`inject_write`](Self::inject_write).
    #[doc(alias = "fi_inject_writedata")]
    pub fn inject_write_data(
        &self,
        peer: FiAddr,
        to: RemoteAddr,
        bytes: &[u8],
        data: u64,
    ) -> Result<()> {
        let remote = RmaIov {
            key: to.key,
            offset: to.offset,
            len: bytes.len(),
            atomic: None,
        };
        let spec = TxOp {
            data: Some(data),
            ..TxOp::one_sided(OpKind::Write, peer, remote)
        };
        self.inject_op(spec, bytes)
    }

    /// Reads part of a peer's memory (`fi_read`) into memory of the domain's pool.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    #[doc(alias = "fi_read")]
    pub fn read(&self, peer: FiAddr, from: RemoteSlice) -> ReadRequest<'_, PooledBuf, M> {
        self.read_into(peer, from, PooledBuf::empty(self.inner.domain.core.pool()))
    }

    /// Reads part of a peer's memory into this buffer, which must have the room: [`Error::TooLong`]
    /// else.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing; the buffer is dropped.
    #[doc(alias = "fi_read")]
    pub fn read_into<B: IoBufMut>(
        &self,
        peer: FiAddr,
        from: RemoteSlice,
        buf: B,
    ) -> ReadRequest<'_, B, M> {
        ReadRequest::new(self, peer, from, buf)
    }

    /// Maps a region of a peer's, to be reached by calls instead of operations from then on
    /// (`ucp_rkey_ptr`): for many small accesses, each of which then costs what it costs on this
    /// processor.
    ///
    /// Asks the peer for the region if nothing of it was accessed before, and waits for the answer,
    /// as the first operation on it does.
    ///
    /// # Errors
    /// [`Error::Key`] when the region is unknown or closed; [`Error::NotSupported`] when its owner
    /// wants to hear of every access (it counts them), or takes part in them; and as
    /// [`read`](Self::read).
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
            .check_send(&TxOp::one_sided(kind, peer, remote))?;
        // An access to nothing brings the answer. A region that is closed meanwhile is asked for
        // once more.
        for _ in 0..2 {
            if let Some(reached) = self
                .inner
                .domain
                .core
                .direct_region(self.inner.id, peer, key)?
            {
                return Ok(RemoteWindow::new(key, reached));
            }
            match kind {
                OpKind::Read => self
                    .read_into(peer, region.slice(..0), Vec::new())
                    .await
                    .map(drop)?,
                _ => self.write(peer, region.at(0), Vec::new()).await.map(drop)?,
            }
        }
        let reached = self
            .inner
            .domain
            .core
            .direct_region(self.inner.id, peer, key)?;
        reached
            .map(|reached| RemoteWindow::new(key, reached))
            .ok_or(Error::Key {
                key,
                why: "was closed meanwhile",
            })
    }

    /// Changes a value in a peer's memory atomically (`fi_atomic`); a row of values each for
    /// itself.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::{Access, AtomicOp, Endpoint};
    /// let ep = Endpoint::bind("shm://").await?;
    /// let region = ep.domain().alloc(64, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
    /// let (me, remote) = (ep.add_peer(ep.name()).await?, region.remote());
    /// ep.atomic(me, remote.at(0), AtomicOp::Sum, 5u64).await?;
    /// assert_eq!(ep.fetch_add(me, remote.at(0), 2u64).await?, 5);
    /// assert_eq!(ep.compare_swap(me, remote.at(0), 7u64, 1).await?, 7);
    /// ep.atomic_store(me, remote.at(16), -3i16).await?;
    /// assert_eq!(ep.atomic_load::<i16>(me, remote.at(16)).await?, -3);
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
    ) -> AtomicRequest<'_, R, NoFetch, M> {
        AtomicRequest::new(self, peer, at, op, operands, None)
    }

    /// As [`atomic`](Self::atomic), and returns what was there before (`fi_fetch_atomic`).
    #[doc(alias = "fi_fetch_atomic")]
    pub fn fetch_atomic<R: AtomicValues>(
        &self,
        peer: FiAddr,
        at: RemoteAddr,
        op: AtomicOp,
        operands: R,
    ) -> AtomicRequest<'_, R, Fetching, M> {
        AtomicRequest::new(self, peer, at, op, operands, None)
    }

    /// As [`fetch_atomic`](Self::fetch_atomic), for operations with a comparand
    /// (`fi_compare_atomic`): first what is put there, then what it is compared with;
    /// [`compare_swap`](Self::compare_swap) has them in the order of the standard library.
    #[doc(alias = "fi_compare_atomic")]
    pub fn compare_atomic<R: AtomicValues>(
        &self,
        peer: FiAddr,
        at: RemoteAddr,
        op: AtomicOp,
        operands: R,
        comparands: R,
    ) -> AtomicRequest<'_, R, Fetching, M> {
        AtomicRequest::new(self, peer, at, op, operands, Some(comparands))
    }

    /// Reads a value in a peer's memory atomically (`FI_ATOMIC_READ`).
    pub fn atomic_load<T: AtomicType>(
        &self,
        peer: FiAddr,
        at: RemoteAddr,
    ) -> AtomicRequest<'_, T, Fetching, M> {
        self.fetch_atomic(peer, at, AtomicOp::Read, T::from_bits(0))
    }

    /// Puts a value into a peer's memory atomically (`FI_ATOMIC_WRITE`).
    pub fn atomic_store<T: AtomicType>(
        &self,
        peer: FiAddr,
        at: RemoteAddr,
        value: T,
    ) -> AtomicRequest<'_, T, NoFetch, M> {
        self.atomic(peer, at, AtomicOp::Write, value)
    }

    /// Adds to a value in a peer's memory, and returns what it was.
    pub fn fetch_add<T: AtomicType>(
        &self,
        peer: FiAddr,
        at: RemoteAddr,
        add: T,
    ) -> AtomicRequest<'_, T, Fetching, M> {
        self.fetch_atomic(peer, at, AtomicOp::Sum, add)
    }

    /// Puts `new` where `expected` is, and returns what was there: `expected` if it succeeded.
    pub fn compare_swap<T: AtomicType>(
        &self,
        peer: FiAddr,
        at: RemoteAddr,
        expected: T,
        new: T,
    ) -> AtomicRequest<'_, T, Fetching, M> {
        self.compare_atomic(peer, at, AtomicOp::Cswap, new, expected)
    }
}
