//! Messages: send, receive, probe, reserve.

use bytes::BytesMut;
use fabric_core::FiAddr;
use fabric_core::buf::{IoBufMut, LoanedBuf, PooledBuf};

use super::Endpoint;
use crate::op::{MultiRecvOp, ProbeOp, RecvOp, Request, Reserving, SendOp};
use crate::thread_model::ThreadModel;

/// # Messages
impl<M: ThreadModel> Endpoint<M> {
    /// Returns a request to send a message to this peer, to be awaited, or posted
    /// (`fi_send`).
    ///
    /// The send completes, and returns the buffer, when the message needs nothing more of this
    /// process. Over `shm` the peer's ring has it, or the peer has copied it; over `tcp` and `udp`
    /// the kernel's socket buffer has all its bytes. The completion does not prove that a receive
    /// has taken the message, or over `tcp` and `udp` that the peer has it: see
    /// [`delivery_complete`](Request::delivery_complete). A message below 64 KiB completes
    /// without help of the peer as long as the ring has room. A [longer
    /// one](crate::guide::memory#single-copy) waits until the peer receives it, or buffers it
    /// within its budget. Under manual progress, the peer does either only while one of its tasks
    /// waits for something of the domain. A message above
    /// [`Info::ep`](crate::Info::ep)`.max_msg_size` fails with
    /// [`Error::TooLong`](crate::Error::TooLong).
    ///
    /// The first message to a peer also waits for the connection, and so for the peer to make
    /// progress and accept it. After [`add_peer`](Self::add_peer) the connection exists.
    ///
    /// The buffer is owned by the operation until it completes. Bytes that are only borrowed can be
    /// [injected](Request::inject). A loan is sent without a copy: see
    /// [`Domain::loan`](crate::Domain::loan).
    ///
    /// # Cancel safety
    /// Dropping the future before its first poll, or before it got a credit, sends nothing;
    /// afterwards the send goes on, unless [`cancel_on_drop`](Request::cancel_on_drop) withdraws
    /// it.
    #[doc(alias = "fi_send")]
    #[doc(alias = "fi_sendmsg")]
    #[doc(alias = "fi_tsendmsg")]
    #[doc(alias = "fi_inject")]
    #[inline]
    pub fn send<B>(&self, peer: FiAddr, buf: B) -> Request<'_, SendOp, B, M> {
        Request::new(&self.inner, SendOp::new(peer), buf)
    }

    /// Returns a request to receive an untagged message of any length into a [`PooledBuf`]
    /// (`fi_recv`). With [`tag`](Request::tag) the request receives a tagged message.
    ///
    /// The receive of a message above the endpoint's [`Info::ep`](crate::Info::ep)`.max_msg_size`
    /// fails with [`Error::Truncated`](crate::Error::Truncated): the bytes beyond the limit are
    /// lost.
    ///
    /// # Cancel safety
    /// Safe: a message whose receive is dropped goes to the next receive.
    #[doc(alias = "fi_recv")]
    pub fn recv(&self) -> Request<'_, RecvOp, PooledBuf, M> {
        self.recv_into(PooledBuf::empty())
    }

    /// Returns a request to receive into this buffer (`fi_recv`). A `Vec` or `BytesMut` has room
    /// for its capacity.
    ///
    /// The receive of a longer message fails with [`Error::Truncated`](crate::Error::Truncated):
    /// the buffer has the first bytes, and the rest is lost. The content of the buffer is
    /// unspecified until the receive completes: when a sender ends in the middle of a message, the
    /// receive keeps waiting for another message.
    ///
    /// # Cancel safety
    /// Safe, as [`Endpoint::recv`]; the buffer is dropped.
    /// [`Operation::cancel`](crate::Operation::cancel) returns it instead.
    #[doc(alias = "fi_recv")]
    #[doc(alias = "fi_recvmsg")]
    #[doc(alias = "fi_trecvmsg")]
    pub fn recv_into<B: IoBufMut>(&self, buf: B) -> Request<'_, RecvOp, B, M> {
        Request::new(&self.inner, RecvOp::new(), buf)
    }

    /// Returns a request to receive several messages into the spare capacity of this buffer
    /// (`FI_MULTI_RECV`): as a stream of messages that share its memory, or as completions. Bytes
    /// that the buffer has already are dropped: `split` them off first.
    ///
    /// The receive takes messages until fewer bytes than [`min_free`](Request::min_free)
    /// are left, or until a message does not fit, which then goes to the next receive. A message
    /// longer than the whole buffer fails with [`Error::Truncated`](crate::Error::Truncated). The
    /// receive counts as one posted receive.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// # use bytes::BytesMut;
    /// # use fabric_async::Endpoint;
    /// # use futures_util::StreamExt;
    /// let ep = Endpoint::bind("shm://").await?;
    /// let me = ep.add_peer(ep.name()).await?;
    /// let mut messages = ep.recv_multi(BytesMut::with_capacity(4096)).min_free(4090).start()?;
    /// ep.send(me, b"hello").inject()?;
    /// ep.send(me, b"fabric").inject()?;
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
    pub fn recv_multi(&self, buf: BytesMut) -> Request<'_, MultiRecvOp, BytesMut, M> {
        Request::new(&self.inner, MultiRecvOp::new(), buf)
    }

    /// Returns a request for the length, tag and sender of a message before it is received
    /// (`FI_PEEK`). The message stays in place, or is [claimed](Request::claim) for one receive
    /// (`FI_CLAIM`).
    ///
    /// Matches untagged messages from any source by default, as a receive does. Of several waiting
    /// messages it finds the one that arrived first. A message that is matched to a posted receive
    /// is not found.
    ///
    /// An awaited probe waits until at least the beginning of a message has arrived, and resolves
    /// to a [`Transfer`](crate::Transfer) with the length of the whole message. Another task may
    /// receive the message meanwhile; to keep it, claim it. [`try_probe`](Request::try_probe) does
    /// not wait.
    ///
    /// A probe finds buffered messages, and messages that wait in their connection because the
    /// budget for unexpected messages has no room. A claim has the endpoint buffer such a message
    /// beyond the budget, or [fails](crate::Resource::BufferBeyondBudget) if there is no room.
    /// Messages behind one that waits are not found; see [`memory`](crate::guide::memory).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// # use fabric_async::Endpoint;
    /// # let ep = Endpoint::bind("shm://").await?;
    /// # let me = ep.add_peer(ep.name()).await?;
    /// assert_eq!(ep.probe().tag(7).try_probe()?, None);
    /// ep.send(me, b"hello, fabric").tag(7).inject()?;
    /// assert_eq!(ep.probe().tag_ignoring(0, !0).await?.len, 13);
    /// let claimed = ep.probe().tag_ignoring(0, !0).claim().await?;
    /// assert_eq!((claimed.len(), claimed.tag()), (13, Some(7)));
    /// let buf = Vec::with_capacity(claimed.len());
    /// assert_eq!(claimed.recv_into(buf).await?.into_buf(), b"hello, fabric");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Of the request: [`Error::StaleAddress`](crate::Error::StaleAddress),
    /// [`Error::NotSupported`](crate::Error::NotSupported),
    /// [`Error::Closed`](crate::Error::Closed); [`Error::PeerGone`](crate::Error::PeerGone) for a
    /// [directed](Request::from) probe whose peer is gone without a matching message, as for a
    /// receive; [`Error::Canceled`](crate::Error::Canceled) when the endpoint is closed during the
    /// wait; of a claim also those of [`ClaimOp`](crate::ops::ClaimOp).
    ///
    /// # Cancel safety
    /// Safe: a probe takes no message.
    #[doc(alias = "FI_PEEK")]
    #[doc(alias = "FI_CLAIM")]
    pub fn probe(&self) -> Request<'_, ProbeOp, (), M> {
        Request::new(&self.inner, ProbeOp::new(), ())
    }

    /// Returns a request to receive a message in place: in the sender's memory if the message was
    /// sent from a [loan](crate::Domain::loan), else in a pooled buffer. The memory
    /// returns to the sender when the [`LoanedBuf`] is dropped.
    ///
    /// The bytes are copied out of the buffer, written to a descriptor, or borrowed by
    /// [`LoanedBuf::as_slice`], which is unsafe because the sender could still write to them.
    ///
    /// # Cancel safety
    /// Safe, as [`Endpoint::recv`].
    pub fn recv_loan(&self) -> Request<'_, RecvOp, LoanedBuf, M> {
        self.recv_into(LoanedBuf::empty())
    }

    /// Returns a future that waits for a transmit credit to this peer, in order with waiting sends.
    /// The future resolves to a [`Permit`](crate::Permit), which holds the credit.
    ///
    /// A credit does not show that the peer exists: for a peer that is gone the future also
    /// resolves to a permit, and only the send fails.
    ///
    /// # Errors
    /// [`Error::StaleAddress`](crate::Error::StaleAddress);
    /// [`Error::Closed`](crate::Error::Closed); [`Error::Canceled`](crate::Error::Canceled) when
    /// the endpoint is closed during the wait.
    ///
    /// # Cancel safety
    /// Dropping the future gives up its place in the queue, which it takes with the first poll.
    pub fn reserve(&self, peer: FiAddr) -> Reserving<'_, M> {
        Reserving::new(&self.inner, peer)
    }
}
