//! Messages: send, inject, receive, probe, lend.

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
    /// Returns a request to send a message to this peer, to be awaited, started or posted
    /// (`fi_send`).
    ///
    /// The send completes, and returns the buffer, when the message needs nothing more of this
    /// process. Over `shm` the peer's ring has it, or the peer has copied it; over `tcp` and `udp`
    /// the kernel's socket buffer has all its bytes. That does not prove that a receive has taken
    /// it, or over `tcp` and `udp` that the peer has it: see
    /// [`delivery_complete`](SendRequest::delivery_complete). A message below 64 KiB completes
    /// without help of the peer as long as its ring has room; a [longer
    /// one](crate::guide::memory#single-copy) waits until the peer receives it, or buffers it
    /// within its budget. A message above [`Info::ep`](crate::Info::ep)`.max_msg_size` is
    /// [`Error::TooLong`](crate::Error::TooLong).
    ///
    /// The first message to a peer also waits for the connection, and so for the peer to make
    /// progress and accept it. After [`add_peer`](Self::add_peer) the connection exists.
    ///
    /// # Cancel safety
    /// Dropping the future before it got a credit sends nothing; afterwards the message is
    /// delivered.
    ///
    /// The request is posted when it is *awaited*, before the first poll: in `select!`, also for a
    /// branch that `if` disables. To decide first, [reserve](Self::reserve) a credit and send with
    /// the permit.
    #[doc(alias = "fi_send")]
    #[doc(alias = "fi_sendmsg")]
    #[doc(alias = "fi_tsendmsg")]
    #[inline]
    pub fn send<B: IoBuf>(&self, peer: FiAddr, buf: B) -> SendRequest<'_, B, M> {
        SendRequest::new(self, peer, buf)
    }

    /// Sends now or fails with [`Error::WouldBlock`](crate::Error::WouldBlock) and the buffer when
    /// there is no credit (`FI_EAGAIN`). Equal to `send(peer, buf).start()`.
    ///
    /// `Ok` means that the message was accepted. It may still be queued in this process, for the
    /// connection or for room in the peer's ring. A queued message is lost when the process ends or
    /// the endpoint is closed: await the operation to know.
    ///
    /// # Errors
    /// As [`SendRequest::start`].
    pub fn try_send<B: IoBuf>(&self, peer: FiAddr, buf: B) -> Result<Operation<B>, Failed<B>> {
        self.send(peer, buf).start()
    }

    /// Sends a copy of borrowed bytes (`fi_inject`): there is no completion, and a later failure is
    /// an [event](crate::EventKind::OperationFailed). The send with the least overhead.
    ///
    /// `Ok` means that the bytes were copied: into the peer's ring, or, without a connection or
    /// room there, into a queue of this process, which is sent from there. Over `tcp` several short
    /// messages in a row are queued too: the next poll that is not ready, or the driver, hands them
    /// to the kernel in one call. Queued bytes are lost when the process ends or the endpoint is
    /// closed. To avoid that, use [`send`](Self::send) and await it, or await
    /// [`flush`](Self::flush) or a later send to the same peer, which completes after earlier ones.
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
    /// As [`Endpoint::inject`]; [`Error::NotSupported`](crate::Error::NotSupported) without
    /// `FI_TAGGED`, and when a connected peer is not [known to support
    /// tags](crate::guide::connected_endpoints#tags).
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

    /// Sends a copy of borrowed bytes with completion data for the receiver (`fi_injectdata`,
    /// `FI_REMOTE_CQ_DATA`), as [`Endpoint::inject`].
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

    /// Sends a copy of borrowed bytes as a tagged message with completion data for the receiver
    /// (`fi_tinjectdata`), as [`Endpoint::inject_tagged`].
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
        self.inner.check_tx_op(&spec)?;
        let payload = Payload::Contiguous(bytes);
        if bytes.len() <= self.inner.info.tx.inject_size
            && self
                .inner
                .try_fast_path(|fast_path| fast_path.try_send(&spec, payload))
        {
            return Ok(());
        }
        self.inner.domain.core.inject(self.inner.id, spec, bytes)
    }

    /// Receives a message of any length into memory of the domain's pool (`fi_recv`).
    ///
    /// A message above the endpoint's [`Info::ep`](crate::Info::ep)`.max_msg_size` is
    /// [`Error::Truncated`](crate::Error::Truncated): the bytes beyond the limit are lost.
    ///
    /// # Cancel safety
    /// Safe: a message whose receive is dropped goes to the next receive.
    #[doc(alias = "fi_recv")]
    pub fn recv(&self) -> RecvRequest<'_, PooledBuf, M> {
        RecvRequest::new(self, PooledBuf::empty(self.inner.domain.core.pool()))
    }

    /// Receives into this buffer (`fi_recv`). The room of a `Vec` or `BytesMut` is its capacity.
    ///
    /// A longer message is [`Error::Truncated`](crate::Error::Truncated): the buffer has its first
    /// bytes, and the rest is lost. The content of the buffer is unspecified until the receive
    /// completes: when a sender ends in the middle of a message, the receive keeps waiting for
    /// another message.
    ///
    /// # Cancel safety
    /// Safe, as [`Endpoint::recv`]; the buffer is dropped. [`Operation::cancel`] returns it
    /// instead.
    #[doc(alias = "fi_recv")]
    #[doc(alias = "fi_recvmsg")]
    #[doc(alias = "fi_trecvmsg")]
    pub fn recv_into<B: IoBufMut>(&self, buf: B) -> RecvRequest<'_, B, M> {
        RecvRequest::new(self, buf)
    }

    /// Receives several messages into the spare capacity of this buffer (`FI_MULTI_RECV`): as a
    /// stream of messages that share its memory, or as completions. Bytes that the buffer holds
    /// already are dropped: `split` them off first.
    ///
    /// The receive takes messages until fewer bytes than [`min_free`](MultiRecvRequest::min_free)
    /// are left, or until a message does not fit, which then goes to the next receive. A message
    /// longer than the whole buffer is [`Error::Truncated`](crate::Error::Truncated). The receive
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
    ///     got.push(message.into_buf()); // `Bytes`: a part of the buffer
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

    /// Returns a request for the length, tag and sender of a message before it is received
    /// (`FI_PEEK`). The message stays in place, or is [claimed](Probe::claim) for one receive
    /// (`FI_CLAIM`).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// # use fabric_async::Endpoint;
    /// # let ep = Endpoint::bind("shm://").await?;
    /// # let me = ep.add_peer(ep.name()).await?;
    /// assert_eq!(ep.probe().tag(7).try_probe()?, None);
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

    /// Allocates memory of `len` bytes, zeroed or as an earlier loan left it, for writing a message
    /// in place and [lending](Self::lend) it to a peer, which reads it there. The cost does not
    /// depend on the length.
    ///
    /// When the domain has lent as much as its [limit](crate::DomainBuilder::loan_limit) allows,
    /// this waits until peers return loans, or until a peer that holds some is gone. Those that
    /// wait get memory in the order in which they have begun to wait, a long loan before a short
    /// one behind it.
    ///
    /// # Errors
    /// [`Error::TooLong`](crate::Error::TooLong) above the limit;
    /// [`Error::Closed`](crate::Error::Closed); [`Error::Os`](crate::Error::Os) when the machine
    /// lacks the memory, or the process descriptors.
    ///
    /// # Cancel safety
    /// Dropping the future gives up its place in the queue.
    pub async fn loan(&self, len: usize) -> Result<Loan> {
        self.inner.node.check_open()?;
        crate::loan::loan(&self.inner.domain, len).await
    }

    /// Allocates memory for a loan as [`loan`](Self::loan), without waiting.
    ///
    /// # Errors
    /// [`Error::WouldBlock`](crate::Error::WouldBlock) when the limit is reached, or somebody waits
    /// for memory; those of [`loan`](Self::loan).
    pub fn try_loan(&self, len: usize) -> Result<Loan> {
        self.inner.node.check_open()?;
        self.inner.domain.core.try_loan(len)
    }

    /// Returns a request to send a message by lending its memory instead of copying it, to be
    /// awaited, started or posted as a [send](Self::send).
    ///
    /// The peer receives it like any other message: into a buffer, which costs one copy, or with
    /// [`recv_loan`](Self::recv_loan), which costs none. The memory returns to this endpoint's
    /// domain when the peer has dropped it. If the peer dies or disconnects before, the memory is
    /// freed.
    ///
    /// A loan is copied instead when the peer holds 256 loans, when it belongs to another domain,
    /// and by providers without shared memory.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// # use fabric_async::Endpoint;
    /// let ep = Endpoint::bind("shm://").await?;
    /// let me = ep.add_peer(ep.name()).await?;
    /// let mut frame = ep.loan(8 << 20).await?;
    /// frame[..5].copy_from_slice(b"hello");
    /// ep.lend(me, frame).tag(7).await?;
    /// let frame = ep.recv_loan().tag(7).await?.into_buf();
    /// let mut start = [0; 5];
    /// frame.read_at(0, &mut start);
    /// assert_eq!((&start, frame.len()), (b"hello", 8 << 20));
    /// assert!(frame.is_in_place());
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    /// As [`send`](Self::send).
    pub fn lend(&self, peer: FiAddr, loan: Loan) -> LendRequest<'_, M> {
        LendRequest::new(self, peer, loan)
    }

    /// Receives a message in place: in the sender's memory if it was [lent](Self::lend), else in
    /// memory of the domain's pool. The memory returns to the sender when the [`LoanedBuf`] is
    /// dropped.
    ///
    /// The bytes are copied out of the buffer, written to a descriptor, or borrowed by
    /// [`LoanedBuf::as_slice`], which is unsafe because the sender could still write to them.
    ///
    /// # Cancel safety
    /// Safe, as [`Endpoint::recv`].
    pub fn recv_loan(&self) -> RecvRequest<'_, LoanedBuf, M> {
        RecvRequest::new(self, LoanedBuf::empty(self.inner.domain.core.pool()))
    }

    /// Waits for a transmit credit to this peer, which the returned [`Permit`](crate::Permit)
    /// holds.
    ///
    /// # Errors
    /// [`Error::StaleAddress`](crate::Error::StaleAddress);
    /// [`Error::Closed`](crate::Error::Closed); [`Error::Canceled`](crate::Error::Canceled) when
    /// the endpoint is closed during the wait.
    ///
    /// # Cancel safety
    /// Dropping the future gives up its place in the queue.
    pub fn reserve(&self, peer: FiAddr) -> Reserve<'_, M> {
        Reserve::new(self, peer)
    }
}

impl EndpointInner {
    /// Executes an operation without the domain's lock. Returns whether it was done.
    #[inline]
    pub(crate) fn try_fast_path(
        &self,
        try_op: impl FnOnce(&dyn FastPath) -> FastPathResult,
    ) -> bool {
        match self
            .fast_path
            .as_deref()
            .map_or(FastPathResult::WouldBlock, try_op)
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
