//! Requests: operations that are not posted yet.

use std::borrow::Borrow;
use std::fmt;
use std::future::IntoFuture;
use std::marker::PhantomData;

use fabric_core::buf::{IoBuf, Payload};
use fabric_core::completion::{CompletionLevel, Failed};
use fabric_core::matching::TagMatch;
use fabric_core::{FiAddr, Result};
use fabric_reactor::CreditMode;

use super::traits::{
    AwaitableOp, BufferOp, BytesOp, DataOp, DeliveryOp, InjectOp, MatchingOp, MessageOp, Op,
    QueuedOp, SelectiveOp, TaggedOp, TransmitOp, failed_unstaged, staged,
};
use super::{CompletionOptions, Operation, RequestFuture};
use crate::endpoint_inner::EndpointInner;
use crate::thread_model::{Shared, ThreadModel};

/// A request for an operation `O` with a buffer `B`: the operation and its modifiers, not posted
/// yet.
///
/// A request does nothing until it is posted, in one of these ways:
///
/// | call | posted | completion goes to |
/// |---|---|---|
/// | `.await` | by the first poll of the future | the future |
/// | [`start`](Self::start) | by the call | the returned [`Operation`], which borrows nothing |
/// | [`post`](Self::post) | by the call | the completion queue, with the [`context`](Self::context) |
/// | [`inject`](Request::inject) | by the call, with a copy of borrowed bytes | none: there is no completion |
///
/// | operation | future | result of `start` |
/// |---|---|---|
/// | send, receive, write, read | [`RequestFuture`] | [`Operation`] |
/// | atomic operation | [`RequestFuture`] | [`AtomicOperation`](crate::atomic::AtomicOperation) |
/// | multi-receive | none | [`MultiRecv`](crate::MultiRecv), a stream |
/// | probe, claim | [`Probing`](crate::ops::Probing), [`Claiming`](crate::ops::Claiming) | none |
///
/// Each modifier applies to these operations:
///
/// | modifier | operations |
/// |---|---|
/// | [`tag`](Self::tag) | send, receive, multi-receive, probe, claim |
/// | [`tag_ignoring`](Self::tag_ignoring), [`from`](Self::from) | receive, multi-receive, probe, claim |
/// | [`data`](Self::data) | send, write |
/// | [`fence`](Self::fence), [`cancel_on_drop`](Self::cancel_on_drop) | send, write, read, atomic operations |
/// | [`delivery_complete`](Self::delivery_complete) | send, write, atomic operations |
/// | [`match_complete`](Self::match_complete), [`transmit_complete`](Self::transmit_complete) | send |
/// | [`context`](Self::context) | all but probe and claim |
/// | [`completion`](Self::completion) | all but probe, claim and multi-receive |
/// | [`min_free`](Self::min_free) | multi-receive |
///
/// A receive has no `cancel_on_drop`: a dropped receive is always withdrawn.
///
/// `O` is one of [`SendOp`](crate::ops::SendOp), [`PermitSendOp`](crate::ops::PermitSendOp),
/// [`RecvOp`](crate::ops::RecvOp), [`ClaimedRecvOp`](crate::ops::ClaimedRecvOp),
/// [`MultiRecvOp`](crate::ops::MultiRecvOp), [`WriteOp`](crate::ops::WriteOp),
/// [`ReadOp`](crate::ops::ReadOp),
/// [`RemoteAtomicOp`](crate::atomic::RemoteAtomicOp), [`ProbeOp`](crate::ops::ProbeOp) and
/// [`ClaimOp`](crate::ops::ClaimOp). A modifier that makes no sense does not compile:
///
/// ```compile_fail,E0599
/// # async fn receive(ep: &fabric_async::Endpoint) -> fabric_async::Result<()> {
/// ep.recv().data(1).await?;                       // data is sent, not received
/// # Ok(()) }
/// ```
///
/// ```compile_fail,E0599
/// # use fabric_async::{Endpoint, FiAddr, RemoteSlice, Result};
/// # async fn read(ep: &Endpoint, peer: FiAddr, from: RemoteSlice) -> Result<()> {
/// ep.read(peer, from).tag(1).await?;              // only messages have tags
/// # Ok(()) }
/// ```
///
/// ```compile_fail,E0599
/// # use fabric_async::{Endpoint, FiAddr, Result};
/// # async fn send(ep: &Endpoint, peer: FiAddr) -> Result<()> {
/// ep.send(peer, "hello").tag_ignoring(1, 2).await?;   // a message has one tag
/// # Ok(()) }
/// ```
///
/// ```compile_fail,E0599
/// # async fn receive(ep: &fabric_async::Endpoint) -> fabric_async::Result<()> {
/// ep.recv().delivery_complete().await?;           // a completion level of a receive
/// # Ok(()) }
/// ```
#[must_use = "a request does nothing before it is awaited, started, posted or injected"]
pub struct Request<'a, O: Op, B, M: ThreadModel = Shared> {
    pub(super) ep: O::Ep<'a>,
    pub(super) op: O,
    pub(super) buf: B,
    pub(super) completion_options: CompletionOptions,
    model: PhantomData<M>,
}

impl<'a, O: Op, B, M: ThreadModel> Request<'a, O, B, M> {
    #[inline(always)] // the request is large
    pub(crate) fn new(ep: O::Ep<'a>, op: O, buf: B) -> Self {
        Self::from_parts(ep, op, buf, CompletionOptions::default())
    }

    #[inline(always)] // the request is large
    pub(super) fn from_parts(
        ep: O::Ep<'a>,
        op: O,
        buf: B,
        completion_options: CompletionOptions,
    ) -> Self {
        Self {
            ep,
            op,
            buf,
            completion_options,
            model: PhantomData,
        }
    }
}

/// # Messages
impl<O: TaggedOp, B, M: ThreadModel> Request<'_, O, B, M> {
    /// Sets the tag. A send sends a tagged message (`fi_tsend`), which only tagged receives take. A
    /// receive, probe or claim takes tagged messages with exactly this tag (`fi_trecv`).
    ///
    /// On a [`ConnectedEndpoint`](crate::ConnectedEndpoint), the peer must be known to support
    /// tags: see [the guide](crate::guide::connected_endpoints#tags).
    #[doc(alias = "fi_tsend")]
    #[doc(alias = "fi_trecv")]
    #[inline]
    pub fn tag(mut self, tag: u64) -> Self {
        self.op.set_tag(tag);
        self
    }
}

/// # Matching
impl<O: MatchingOp, B, M: ThreadModel> Request<'_, O, B, M> {
    /// Takes tagged messages (`fi_trecv` with `ignore`) whose tag equals `tag` in all bits but
    /// those set in `ignore`.
    #[inline]
    pub fn tag_ignoring(mut self, tag: u64, ignore: u64) -> Self {
        self.op.recv_spec().tag = Some(TagMatch { tag, ignore });
        self
    }

    /// Takes messages from this peer only (`FI_DIRECTED_RECV`).
    ///
    /// A receive from any source does not fail because of one sender: when a sender dies in the
    /// middle of a message, the receive keeps waiting, at its place in posting order. The content
    /// of the buffer is unspecified until the receive completes.
    ///
    /// When the connection to a peer ends, receives directed at the peer fail with
    /// [`Error::PeerGone`](crate::Error::PeerGone), after the messages it had sent. A receive that
    /// is posted later waits for the peer to come back if the application inserted the peer; the
    /// [event queue](crate::Endpoint::take_events) reports the disconnect. For an auto-inserted
    /// peer the later receive fails: with `PeerGone` while messages of the peer wait, with
    /// [`Error::StaleAddress`](crate::Error::StaleAddress) afterwards. A pending receive whose
    /// address handle is removed ends with `StaleAddress`.
    #[doc(alias = "FI_DIRECTED_RECV")]
    #[doc(alias = "FI_ADDR_UNSPEC")]
    #[inline]
    pub fn from(mut self, peer: FiAddr) -> Self {
        self.op.recv_spec().from = Some(peer);
        self
    }
}

/// # Completion data
impl<O: DataOp, B, M: ThreadModel> Request<'_, O, B, M> {
    /// Sets data for a completion at the peer (`FI_REMOTE_CQ_DATA`). The data of a send
    /// (`fi_senddata`) is in the completion of the receive that takes the message. The data of a
    /// write (`fi_writedata`) is an entry of kind
    /// [`OpKind::RemoteWrite`](crate::OpKind::RemoteWrite) in the receive queue of the peer's
    /// endpoint, after the written bytes; it takes no posted receive.
    #[doc(alias = "FI_REMOTE_CQ_DATA")]
    #[doc(alias = "fi_senddata")]
    #[doc(alias = "fi_tsenddata")]
    #[doc(alias = "fi_writedata")]
    #[inline]
    pub fn data(mut self, data: u64) -> Self {
        self.op.set_data(data);
        self
    }
}

/// # Order and cancellation
impl<O: TransmitOp, B, M: ThreadModel> Request<'_, O, B, M> {
    /// Starts the operation when everything posted before for the same peer on this endpoint has
    /// completed, and keeps later operations behind it (`FI_FENCE`; needs
    /// [`Caps::FENCE`](crate::Caps::FENCE)).
    ///
    /// Messages keep their order without a fence. While the fence waits, [`start`](Self::start) and
    /// `post` of later requests to the peer fail with
    /// [`Error::WouldBlock`](crate::Error::WouldBlock); awaited requests wait.
    #[doc(alias = "FI_FENCE")]
    #[inline]
    pub fn fence(mut self) -> Self {
        self.op.options().fence = true;
        self
    }

    /// Cancels the operation when its future, or its [`Operation`], is dropped before the operation
    /// has begun.
    ///
    /// Without this call, an operation that does not wait for a credit goes on when it is dropped,
    /// and keeps its buffer until its end. Use this call where sends to a slow peer are given up,
    /// as by `tokio::time::timeout`: then only operations that [have
    /// begun](crate::guide::cancellation#cancel-instead-of-drop) keep their buffers. The call
    /// changes nothing for a request that is [posted](Self::post).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// # use fabric_async::Endpoint;
    /// # use std::time::Duration;
    /// # let (ep, other) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
    /// # let peer = ep.add_peer(other.name()).await?;
    /// let send = ep.send(peer, vec![0; 4 << 20]).cancel_on_drop();
    /// let timed_out = tokio::time::timeout(Duration::from_millis(1), send).await;
    /// # let _ = timed_out;
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn cancel_on_drop(mut self) -> Self {
        self.op.options().cancel_on_drop = true;
        self
    }
}

/// # Completion levels
impl<O: DeliveryOp, B, M: ThreadModel> Request<'_, O, B, M> {
    /// Completes the operation when the receive that took the message has completed, with all bytes
    /// it has room for (`FI_DELIVERY_COMPLETE`). Replaces the endpoint's
    /// [default](crate::guide::ordering#what-sent-means).
    ///
    /// The completion waits until a receive takes the message; under manual progress the receiver
    /// must also be waiting for something, as for every message. A message that the peer
    /// [discards](crate::Claimed::discard) counts as delivered. Over `tcp` the guarantee is weaker:
    /// the whole message is at the peer's endpoint, [received or
    /// not](crate::guide::tcp#what-sent-means).
    /// [`Error::NotSupported`](crate::Error::NotSupported) for providers whose offers lack the
    /// flag.
    ///
    /// A write or atomic operation completes when the peer's memory has been changed, with or
    /// without this call. There the call only documents that the program relies on that. The
    /// notification of the peer, by a queue entry or a counter, follows and is not waited for.
    #[doc(alias = "FI_DELIVERY_COMPLETE")]
    #[inline]
    pub fn delivery_complete(mut self) -> Self {
        self.op.options().level = Some(CompletionLevel::Delivered);
        self
    }
}

impl<O: MessageOp, B, M: ThreadModel> Request<'_, O, B, M> {
    /// Completes the send when a receive has taken the message, though perhaps not all its bytes
    /// yet, or the peer has [discarded](crate::Claimed::discard) it (`FI_MATCH_COMPLETE`).
    /// [`Error::NotSupported`](crate::Error::NotSupported) for providers whose offers lack the
    /// flag.
    #[doc(alias = "FI_MATCH_COMPLETE")]
    #[inline]
    pub fn match_complete(mut self) -> Self {
        self.op.options().level = Some(CompletionLevel::Matched);
        self
    }

    /// Completes the send when the provider considers the message sent: the default, unless
    /// [`tx_op_flags`](crate::Hints::tx_op_flags) request more. Over `shm` the peer's endpoint has
    /// the message then (`FI_TRANSMIT_COMPLETE`); over `tcp`, which offers less
    /// (`FI_INJECT_COMPLETE`), [the kernel has it](crate::guide::tcp).
    #[doc(alias = "FI_TRANSMIT_COMPLETE")]
    #[inline]
    pub fn transmit_complete(mut self) -> Self {
        self.op.options().level = Some(CompletionLevel::Transmitted);
        self
    }
}

/// # Completion queue
impl<O: QueuedOp, B, M: ThreadModel> Request<'_, O, B, M> {
    /// Sets the context value of the completion when the request is [posted](Self::post).
    #[inline]
    pub fn context(mut self, context: u64) -> Self {
        self.completion_options.context = context;
        self
    }

    /// Returns the buffer, or the operands, without posting the request.
    pub fn into_buf(self) -> B {
        self.buf
    }
}

impl<O: SelectiveOp, B, M: ThreadModel> Request<'_, O, B, M> {
    /// Requests a queue entry for a successful completion (`FI_COMPLETION`), for requests that are
    /// [posted](Self::post) on an endpoint bound with
    /// [`SELECTIVE_COMPLETION`](crate::CqBind::SELECTIVE_COMPLETION). Without selective completion
    /// every posted request gets an entry.
    #[doc(alias = "FI_COMPLETION")]
    #[inline]
    pub fn completion(mut self) -> Self {
        self.completion_options.completion = true;
        self
    }
}

/// # Posting
impl<O: BytesOp + BufferOp<B>, B: IoBuf, M: ThreadModel> Request<'_, O, B, M> {
    /// Posts the request now. The returned operation borrows nothing; await it later. A dropped
    /// send, write or read goes on, a dropped receive is withdrawn.
    ///
    /// `Ok` means that the operation was accepted. A send makes progress under every wait policy,
    /// and may still be queued in this process, for the connection or for room in the peer's ring.
    /// What has not left the process when the process ends or the endpoint is closed is lost: await
    /// the operation, or [`Endpoint::flush`](crate::Endpoint::flush).
    ///
    /// # Errors
    /// With the buffer:
    ///
    /// * [`Error::WouldBlock`](crate::Error::WouldBlock) without a transmit credit (`FI_EAGAIN`),
    ///   or, of a receive, when all receive entries of the endpoint are in use;
    /// * [`Error::TooLong`](crate::Error::TooLong) for a message above its limit;
    ///   [`Error::BufferTooSmall`](crate::Error::BufferTooSmall) for a read into a buffer that is
    ///   too small; [`Error::Key`](crate::Error::Key) and
    ///   [`Error::OutOfBounds`](crate::Error::OutOfBounds) when an access is known to be invalid;
    /// * [`Error::Invalid`](crate::Error::Invalid) for a list of remote ranges that is empty or
    ///   differs from the buffer in length, and for a permit of another endpoint;
    ///   [`Error::TooMany`](crate::Error::TooMany) for too many ranges or buffers;
    /// * [`Error::ConcurrentUse`](crate::Error::ConcurrentUse) while another thread is inside a
    ///   call on a domain of model [`Serial`](crate::thread_model::Serial);
    /// * [`Error::StaleAddress`](crate::Error::StaleAddress),
    ///   [`Error::NotSupported`](crate::Error::NotSupported),
    ///   [`Error::Closed`](crate::Error::Closed), or another failure that is known at once, such as
    ///   [`Error::NoSuchPeer`](crate::Error::NoSuchPeer).
    #[inline]
    pub fn start(self) -> Result<Operation<B, M>, Failed<B>> {
        let Self {
            ep, mut op, buf, ..
        } = self;
        Operation::start(ep.borrow(), &mut op, buf)
    }

    /// Posts the request now. The completion goes to the endpoint's queue of that direction, with
    /// the buffer: to the receive queue for receives, else to the transmit queue.
    ///
    /// # Errors
    /// With the buffer: as [`start`](Self::start), and
    /// [`Error::WouldBlock`](crate::Error::WouldBlock) when all entries of the queue are in use,
    /// [`Error::Unbound`](crate::Error::Unbound) when the endpoint has no such queue.
    #[doc(alias = "fi_send")]
    #[doc(alias = "fi_recv")]
    pub fn post(self) -> Result<(), Failed<B>> {
        let Self {
            ep,
            mut op,
            buf,
            completion_options,
            ..
        } = self;
        let ep = ep.borrow();
        let is_selective = match op.tx_options() {
            Some(_) => ep.selective_tx,
            None => ep.selective_rx,
        };
        let target = completion_options.target(is_selective);
        if B::IS_STAGED {
            let buf = staged(buf, O::IS_SOURCE)?;
            let posted = op.post(ep, buf, target, CreditMode::NoWait);
            return posted.map(drop).map_err(failed_unstaged);
        }
        op.post(ep, buf, target, CreditMode::NoWait).map(drop)
    }
}

/// # Borrowed bytes
impl<O: InjectOp, B: AsRef<[u8]>, M: ThreadModel> Request<'_, O, B, M> {
    /// Sends or writes a copy of borrowed bytes (`fi_inject`): there is no completion, and a later
    /// failure is an [event](crate::EventKind::OperationFailed). The send with the least overhead.
    ///
    /// `Ok` means that the bytes were copied: into the peer's ring, or, without a connection or
    /// room there, into a queue of this process, which is sent from there. Queued bytes are lost
    /// when the process ends or the endpoint is closed. To avoid that, await the request instead,
    /// or await [`flush`](crate::Endpoint::flush) or a later send to the same peer, which completes
    /// after earlier ones.
    ///
    /// The context is not used, and there is no completion level.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// # use fabric_async::Endpoint;
    /// let ep = Endpoint::bind("shm://").await?;
    /// let me = ep.add_peer(ep.name()).await?;
    /// let line = String::from("a chapter");
    /// ep.send(me, &line).tag(3).data(7).inject()?;
    /// let got = ep.recv().tag(3).await?;
    /// assert_eq!((&got[..], got.data()), (&b"a chapter"[..], Some(7)));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::TooLong`](crate::Error::TooLong) above [`Info::tx`](crate::Info::tx)`.inject_size`:
    /// post a longer message with `.await`, `.start()` or `.post()`;
    /// [`Error::WouldBlock`](crate::Error::WouldBlock) without credit;
    /// [`Error::Invalid`](crate::Error::Invalid) with a completion level above
    /// [`transmit_complete`](Self::transmit_complete), and for several remote ranges;
    /// [`Error::StaleAddress`](crate::Error::StaleAddress),
    /// [`Error::NotSupported`](crate::Error::NotSupported),
    /// [`Error::Closed`](crate::Error::Closed).
    #[doc(alias = "fi_inject")]
    #[doc(alias = "fi_tinject")]
    #[doc(alias = "fi_injectdata")]
    #[doc(alias = "fi_tinjectdata")]
    #[doc(alias = "fi_inject_write")]
    #[doc(alias = "fi_inject_writedata")]
    #[inline]
    pub fn inject(self) -> Result<()> {
        let ep: &EndpointInner = self.ep.borrow();
        let bytes = self.buf.as_ref();
        self.op.check_injected(bytes.len())?;
        if let Some(peer) = self.op.plain_peer()
            && bytes.len() <= ep.info.tx.inject_size
            && ep.try_send_plain(peer, bytes).unwrap_or(false)
        {
            return Ok(());
        }
        let tx_op = self.op.to_injected(bytes.len());
        ep.check_copied_tx(&tx_op)?;
        let payload = Payload::Contiguous(bytes);
        if bytes.len() <= ep.info.tx.inject_size
            && ep.try_fast_path(|fast_path| fast_path.try_send(&tx_op, payload))
        {
            return Ok(());
        }
        ep.domain.engine.inject(ep.id, tx_op, bytes)
    }
}

/// Nothing is posted before the first poll. Without credit the operation then waits for one, behind
/// operations that were posted before; the number of awaited operations is not limited.
impl<'a, O: AwaitableOp<B>, B: Unpin, M: ThreadModel> IntoFuture for Request<'a, O, B, M> {
    type Output = O::Output;
    type IntoFuture = RequestFuture<'a, O, B, M>;

    #[inline(always)] // the request is large
    fn into_future(self) -> RequestFuture<'a, O, B, M> {
        RequestFuture::new(self.ep, self.op, self.buf)
    }
}

impl<O: Op + fmt::Debug, B, M: ThreadModel> fmt::Debug for Request<'_, O, B, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("op", &self.op)
            .field("context", &self.completion_options.context)
            .finish_non_exhaustive()
    }
}
