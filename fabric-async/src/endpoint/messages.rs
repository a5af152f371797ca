//! Messages of an endpoint: sent, received, asked for, and lent.

use bytes::BytesMut;
use fabric_core::buf::{IoBuf, IoBufMut, Loan, LoanedBuf, Payload, PooledBuf};
use fabric_core::completion::{Failed, OpKind};
use fabric_core::transport::{FastPath, FastPathResult, TxOp};
use fabric_core::{FiAddr, Result};

use super::{Endpoint, EndpointInner};
use crate::op::{
    LendRequest, MultiRecvRequest, Operation, Probe, RecvRequest, Reserve, SendRequest,
};
use crate::thread_model::ThreadModel;

/// # Messages
impl<M: ThreadModel> Endpoint<M> {
    /// A message to this peer, to be awaited, started or posted.
    ///
    /// It has been sent when the peer's endpoint has it, in its ring or copied from here; the
    /// buffer comes back then. Only an answer proves that somebody has received it, unless the send
    /// is told to wait for [that](SendRequest::delivery_complete). A message below 64 KiB needs
    /// nobody's help to be sent, as long as the ring has room; a [longer
    /// one](crate::guide::memory#single-copy) waits until the peer receives, or buffers it within its
    /// budget. A message above [`Info::ep`](crate::Info::ep)`.max_msg_size` is
    /// [`Error::TooLong`](crate::Error::TooLong).
    ///
    /// The first message to a peer also waits for the connection, and so for the peer to make
    /// progress and welcome it. After [`add_peer`](Self::lookup) that is done.
    ///
    /// # Cancel safety
    /// Dropping the future before there was credit sends nothing; afterwards the message is
    /// delivered nevertheless.
    ///
    /// The request is posted when it is *awaited*, which is before the first poll: in `select!`,
    /// also in a branch that is switched off by `if`. To decide first, [reserve](Self::reserve) and
    /// send with the permit.
    #[doc(alias = "fi_send")]
    #[doc(alias = "fi_sendmsg")]
    #[doc(alias = "fi_tsendmsg")]
    #[inline]
    pub fn send<B: IoBuf>(&self, peer: FiAddr, buf: B) -> SendRequest<'_, B, M> {
        SendRequest::new(self, peer, buf)
    }

    /// Sends now or not at all: [`Error::WouldBlock`](crate::Error::WouldBlock) with the buffer when there is
    /// no credit (`FI_EAGAIN`). The same as `send(peer, buf).start()`.
    ///
    /// `Ok` means that the message was accepted. It may still wait on this side: for the
    /// connection, or for room in the peer's ring. What waits there when this process ends, or the
    /// endpoint is closed, is lost. To be sure, await the operation.
    ///
    /// # Errors
    /// As [`SendRequest::start`].
    pub fn try_send<B: IoBuf>(&self, peer: FiAddr, buf: B) -> Result<Operation<B>, Failed<B>> {
        self.send(peer, buf).start()
    }

    /// Sends a copy of borrowed bytes (`fi_inject`): nothing comes back, and a later failure is an
    /// [event](crate::EventKind::OperationFailed). The verb with the least overhead.
    ///
    /// `Ok` means that the bytes were copied: into the peer's ring, or, without a connection or
    /// without room there, on this side, to go on from here. What waits on this side when this
    /// process ends, or the endpoint is closed, is lost. To be sure, use [`send`](Self::send) and
    /// await it, or await [`flush`](Self::flush) or a later send to the same peer: it ends after
    /// those that were accepted before.
    ///
    /// # Errors
    /// [`Error::TooLong`](crate::Error::TooLong) above [`Info::tx`](crate::Info::tx)`.inject_size`;
    /// [`Error::WouldBlock`](crate::Error::WouldBlock) without credit;
    /// [`Error::StaleAddress`](crate::Error::StaleAddress),
    /// [`Error::Closed`](crate::Error::Closed).
    #[doc(alias = "fi_inject")]
    pub fn inject(&self, peer: FiAddr, bytes: &[u8]) -> Result<()> {
        self.inject_op(TxOp::new(OpKind::Send, peer), bytes)
    }

    /// Sends a copy of borrowed bytes as a tagged message (`fi_tinject`).
    ///
    /// # Errors
    /// As [`Endpoint::inject`]; [`Error::NotSupported`](crate::Error::NotSupported) without the
    /// capability, and when a connected peer is not [known to take
    /// it](crate::guide::connected_endpoints#tags).
    #[doc(alias = "fi_tinject")]
    pub fn inject_tagged(&self, peer: FiAddr, tag: u64, bytes: &[u8]) -> Result<()> {
        self.inject_op(
            TxOp {
                tag: Some(tag),
                ..TxOp::new(OpKind::Send, peer)
            },
            bytes,
        )
    }

    /// As [`Endpoint::inject`], with data for the receiver's completion (`fi_injectdata`,
    /// `FI_REMOTE_CQ_DATA`).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// # use fabric_async::Endpoint;
    /// let ep = Endpoint::bind("shm://").await?;
    /// let me = ep.add_peer(ep.name()).await?;
    /// ep.inject_data(me, b"a chapter", 7)?;
    /// let got = ep.recv().await?;
    /// assert_eq!((&got[..], got.data()), (&b"a chapter"[..], Some(7)));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Endpoint::inject`].
    #[doc(alias = "fi_injectdata")]
    pub fn inject_data(&self, peer: FiAddr, bytes: &[u8], data: u64) -> Result<()> {
        self.inject_op(
            TxOp {
                data: Some(data),
                ..TxOp::new(OpKind::Send, peer)
            },
            bytes,
        )
    }

    /// As [`Endpoint::inject_tagged`], with data for the receiver's completion (`fi_tinjectdata`).
    ///
    /// # Errors
    /// As [`Endpoint::inject`].
    #[doc(alias = "fi_tinjectdata")]
    pub fn inject_tagged_data(
        &self,
        peer: FiAddr,
        tag: u64,
        bytes: &[u8],
        data: u64,
    ) -> Result<()> {
        let spec = TxOp {
            tag: Some(tag),
            data: Some(data),
            ..TxOp::new(OpKind::Send, peer)
        };
        self.inject_op(spec, bytes)
    }

    pub(super) fn inject_op(&self, spec: TxOp, bytes: &[u8]) -> Result<()> {
        self.inner.check_send(&spec)?;
        let whole = Payload::Contiguous(bytes);
        if bytes.len() <= self.inner.info.tx.inject_size
            && self.inner.try_fast_path(|way| way.try_send(&spec, whole))
        {
            return Ok(());
        }
        self.inner.domain.core.inject(self.inner.id, spec, bytes)
    }

    /// Receives a message of any length into memory of the domain's pool. A message above the
    /// endpoint's own [`Info::ep`](crate::Info::ep)`.max_msg_size` is
    /// [`Error::Truncated`](crate::Error::Truncated): what is beyond that is lost.
    ///
    /// # Cancel safety
    /// Safe: a message whose receive is dropped goes to the next one.
    #[doc(alias = "fi_recv")]
    pub fn recv(&self) -> RecvRequest<'_, PooledBuf, M> {
        RecvRequest::new(self, PooledBuf::empty(self.inner.domain.core.pool()))
    }

    /// Receives into this buffer. The room of a `Vec` or `BytesMut` is its capacity. A message that
    /// is longer is [`Error::Truncated`](crate::Error::Truncated): the buffer has its first bytes,
    /// and the rest is lost. The buffer is scratch until the receive completes: a message may begin
    /// to arrive whose sender ends before the rest, and then the receive waits for another one.
    ///
    /// # Cancel safety
    /// Safe, as [`Endpoint::recv`]; the buffer is dropped. [`Operation::cancel`] gets it back
    /// instead.
    #[doc(alias = "fi_recv")]
    #[doc(alias = "fi_recvmsg")]
    #[doc(alias = "fi_trecvmsg")]
    pub fn recv_into<B: IoBufMut>(&self, buf: B) -> RecvRequest<'_, B, M> {
        RecvRequest::new(self, buf)
    }

    /// Receives several messages, one behind the other, into the spare capacity of this buffer
    /// (`FI_MULTI_RECV`): a stream of messages that share its memory, or completions. Bytes that it
    /// holds already are dropped: `split` them off.
    ///
    /// It takes messages until fewer bytes are left than [`min_free`](MultiRecvRequest::min_free)
    /// says, or one comes that does not fit, which goes to the next receive. A message that is
    /// longer than the whole buffer is [`Error::Truncated`](crate::Error::Truncated) there. It
    /// counts as one posted receive.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// # use bytes::BytesMut;
    /// # use fabric_async::Endpoint;
    /// # use futures_util::StreamExt;
    /// let ep = Endpoint::bind("shm://").await?;
    /// let me = ep.add_peer(ep.name()).await?;
    /// let mut messages = ep.recv_multi(BytesMut::with_capacity(4096)).min_free(4090).start()?;
    /// ep.inject(me, b"hello")?;
    /// ep.inject(me, b"fabric")?;
    /// let (mut got, mut sum) = (Vec::new(), 0);
    /// while let Some(message) = messages.next().await {
    ///     let message = message?;
    ///     sum += message.len();
    ///     got.push(message.into_buf()); // `Bytes`: part of the one buffer
    /// }
    /// assert_eq!((&got[0][..], &got[1][..], sum), (&b"hello"[..], &b"fabric"[..], 11));
    /// assert_eq!(messages.into_rest().capacity(), 4096 - 11);
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    /// Safe: see [`MultiRecv`](crate::MultiRecv).
    #[doc(alias = "FI_MULTI_RECV")]
    pub fn recv_multi(&self, buf: BytesMut) -> MultiRecvRequest<'_, M> {
        MultiRecvRequest::new(self, buf)
    }

    /// Asks for a message before it is received: how long it is, its tag, who sent it (`FI_PEEK`).
    /// It stays where it is, or is [claimed](Probe::claim), and then nobody else gets it
    /// (`FI_CLAIM`).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// # use fabric_async::Endpoint;
    /// # let ep = Endpoint::bind("shm://").await?;
    /// # let me = ep.add_peer(ep.name()).await?;
    /// assert_eq!(ep.probe().tag(7).now()?, None);
    /// ep.inject_tagged(me, 7, b"hello, fabric")?;
    /// assert_eq!(ep.probe().tag_mask(0, !0).await?.len, 13);
    /// let claimed = ep.probe().tag_mask(0, !0).claim().await?;
    /// assert_eq!((claimed.len(), claimed.tag()), (13, Some(7)));
    /// let buf = Vec::with_capacity(claimed.len());
    /// assert_eq!(claimed.recv_into(buf).await?.into_buf(), b"hello, fabric");
    /// # Ok(()) }
    /// ```
    #[doc(alias = "FI_PEEK")]
    #[doc(alias = "FI_CLAIM")]
    pub fn probe(&self) -> Probe<'_, M> {
        Probe::new(self)
    }

    /// Memory of this many bytes, zeroed or as an earlier loan left it, to be written in place and
    /// [lent](Self::lend) to a peer, which reads it where it lies: what that takes does not depend
    /// on the length.
    ///
    /// # Errors
    /// [`Error::WouldBlock`](crate::Error::WouldBlock) when peers have too much that they have not returned;
    /// [`Error::TooLong`](crate::Error::TooLong) above 4 GiB;
    /// [`Error::Closed`](crate::Error::Closed); [`Error::Os`](crate::Error::Os) without the memory.
    pub fn loan(&self, len: usize) -> Result<Loan> {
        self.inner.node.check_open()?;
        self.inner.domain.core.alloc_loan(len)
    }

    /// A message that is lent to this peer instead of being copied, to be awaited, started or
    /// posted as a [send](Self::send) is.
    ///
    /// The peer receives it as any other message: into a buffer of its own, which costs one copy,
    /// or with [`recv_loan`](Self::recv_lent), which costs none. The memory comes back to this
    /// endpoint's domain when the peer has dropped it. If the peer dies with it, or leaves, it is
    /// given up.
    ///
    /// With a peer that has 256 loans it has not returned, a further one is copied, as it is by
    /// providers without shared memory, and from a domain that the loan is not of.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// # use fabric_async::Endpoint;
    /// let ep = Endpoint::bind("shm://").await?;
    /// let me = ep.add_peer(ep.name()).await?;
    /// let mut frame = ep.loan(8 << 20)?;
    /// frame[..5].copy_from_slice(b"hello");
    /// ep.lend(me, frame).tag(7).await?;
    /// // SAFETY: the one who sends here does not write what it has lent.
    /// let frame = unsafe { ep.recv_lent() }.tag(7).await?;
    /// assert_eq!((&frame[..5], frame.len(), frame.buf.is_shared()), (&b"hello"[..], 8 << 20, true));
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    /// As [`send`](Self::send).
    pub fn lend(&self, peer: FiAddr, loan: Loan) -> LendRequest<'_, M> {
        LendRequest::new(self, peer, loan)
    }

    /// Receives a message where it lies: in the sender's memory if it was [lent](Self::lend), else
    /// in memory of the domain's pool. The memory goes back to the sender when the [`LoanedBuf`] is
    /// dropped.
    ///
    /// # Safety
    /// Peers whose messages this receives must not write memory that they have lent. Endpoints of
    /// this crate do not; but a process of the same user can do what it likes with its own memory.
    /// [`recv_into`](Self::recv_into) takes the same messages, with one copy and without this duty.
    ///
    /// # Cancel safety
    /// Safe, as [`Endpoint::recv`].
    #[allow(unsafe_code)] // passes the duty on
    pub unsafe fn recv_loan(&self) -> RecvRequest<'_, LoanedBuf, M> {
        // SAFETY: the caller's promise.
        RecvRequest::new(self, unsafe {
            LoanedBuf::empty(self.inner.domain.core.pool())
        })
    }

    /// Waits for a transmit credit to this peer, which the returned [`Permit`](crate::Permit)
    /// holds.
    ///
    /// # Errors
    /// [`Error::StaleAddress`](crate::Error::StaleAddress);
    /// [`Error::Closed`](crate::Error::Closed); [`Error::Canceled`](crate::Error::Canceled) when
    /// the endpoint is closed meanwhile.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue.
    pub fn reserve(&self, peer: FiAddr) -> Reserve<'_, M> {
        Reserve::new(self, peer)
    }
}

impl EndpointInner {
    /// Does something at a peer without the domain, if that can be done now.
    #[inline]
    pub(crate) fn try_fast_path(&self, act: impl FnOnce(&dyn FastPath) -> FastPathResult) -> bool {
        match self
            .fast_path
            .as_deref()
            .map_or(FastPathResult::WouldBlock, act)
        {
            FastPathResult::Done => true,
            FastPathResult::SentPollDue => {
                self.domain.core.poll_fds();
                true
            }
            FastPathResult::WouldBlock => false,
        }
    }
}
