//! Endpoints.

mod batch;
mod bind;
mod builder;
mod connected;
mod onesided;
mod shared;

pub use bind::BindOptions;
pub(crate) use bind::equipped;
pub use builder::EndpointBuilder;
pub use connected::Connect;
pub use shared::{SharedReceive, SharedReceiveBuilder};

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::BytesMut;
use fabric_core::buf::{IoBuf, IoBufMut, Lent, Loan, Payload, PooledBuf};
use fabric_core::completion::{CompletionLevel, Failed, OpKind};
use fabric_core::flags::Caps;
use fabric_core::info::Info;
use fabric_core::matching::RecvSpec;
use fabric_core::provider::{AtOnce, EpId, Express, SendNow, SendSpec};
use fabric_core::stats::EndpointStats;
use fabric_core::tree::{Hold, Node};
use fabric_core::{Address, Error, FiAddr, Result};
use fabric_reactor::{Credit, Posted, Route};

use connected::Connection;

use crate::av::{AddressVector, AvInner, ToAddress};
use crate::close::CloseError;
use crate::cq::CompletionQueue;
use crate::domain::{Domain, DomainInner};
use crate::eq::EventQueue;
use crate::model::{Shared, ThreadModel};
use crate::op::{LendRequest, MultiRecvRequest, Operation, Probe, RecvRequest, Reserve, SendRequest};
use crate::resolve;

/// An endpoint (`fid_ep`): sends and receives messages.
///
/// Made by [`Endpoint::bind`], with everything around it, or by [`Domain::endpoint`], step by step. Cheap to clone; it
/// closes with its last clone, or with [`Endpoint::close`] for all of them.
#[doc(alias = "fid_ep")]
pub struct Endpoint<M: ThreadModel = Shared> {
    pub(crate) inner: Arc<EndpointInner>,
    model: PhantomData<M>,
}

pub(crate) struct EndpointInner {
    pub(crate) node: Arc<Node>,
    pub(crate) id: EpId,
    pub(crate) domain: Arc<DomainInner>,
    /// None of a shared receive context, which is the receive side of others.
    name: Option<Address>,
    /// Whom it is connected with, if it is of that kind.
    connection: Option<Connection>,
    pub(crate) info: Info,
    /// What it may be asked to do.
    caps: Caps,
    /// Success of what is posted to the transmit queue is reported only when asked for; likewise, of receives.
    pub(crate) quiet_tx: bool,
    pub(crate) quiet_rx: bool,
    /// When messages have ended, unless they say otherwise.
    pub(crate) level: CompletionLevel,
    /// What is done at once goes this way.
    express: Option<Arc<dyn Express>>,
    av: Arc<AvInner>,
    /// Where it receives, if not by itself.
    shared: Option<Arc<EndpointInner>>,
    /// What it is bound to cannot be closed before it.
    holds: Mutex<Vec<Hold>>,
    /// The queues that `bind` made and nobody has asked for yet.
    own: Mutex<Own>,
}

/// Queues that belong to an endpoint from `bind`.
#[derive(Default)]
pub(crate) struct Own {
    pub(crate) completions: Option<CompletionQueue>,
    pub(crate) events: Option<EventQueue>,
}

impl<M: ThreadModel> Endpoint<M> {
    pub(crate) fn from_inner(inner: EndpointInner) -> Self {
        Self { inner: Arc::new(inner), model: PhantomData }
    }

    /// A message to this peer, to be awaited, started or posted.
    ///
    /// It has been sent when the peer's endpoint has it, in its ring or copied from here; the buffer comes back then.
    /// Only an answer proves that somebody has received it, unless the send is told to wait for
    /// [that](SendRequest::delivery_complete). A message below 64 KiB needs nobody's help to be sent, as
    /// long as the ring has room; a [longer one](crate::manual::memory#one-copy) waits until the peer receives, or
    /// buffers it within its budget. A message above [`Info::ep`]`.max_msg_size` is [`Error::TooLong`].
    ///
    /// The first message to a peer also waits for the connection, and so for the peer to make progress and welcome it.
    /// After [`lookup`](Self::lookup) that is done.
    ///
    /// # Cancel safety
    /// Dropping the future before there was credit sends nothing; afterwards the message is delivered nevertheless.
    ///
    /// The request is posted when it is *awaited*, which is before the first poll: in `select!`, also in a branch that
    /// is switched off by `if`. To decide first, [reserve](Self::reserve) and send with the permit.
    #[doc(alias = "fi_send")]
    #[inline]
    pub fn send<B: IoBuf>(&self, peer: FiAddr, buf: B) -> SendRequest<'_, B, M> {
        SendRequest::new(self, peer, buf)
    }

    /// Sends now or not at all: [`Error::Again`] with the buffer when there is no credit (`FI_EAGAIN`). The same as
    /// `send(peer, buf).start()`.
    ///
    /// `Ok` means that the message was accepted. It may still wait on this side: for the connection, or for room in the
    /// peer's ring. What waits there when this process ends, or the endpoint is closed, is lost. To be sure, await the
    /// operation.
    ///
    /// # Errors
    /// As [`SendRequest::start`].
    pub fn try_send<B: IoBuf>(&self, peer: FiAddr, buf: B) -> Result<Operation<B>, Failed<B>> {
        self.send(peer, buf).start()
    }

    /// Sends a copy of borrowed bytes (`fi_inject`): nothing comes back, and a later failure is an
    /// [event](crate::EventKind::OperationFailed). The verb with the least overhead.
    ///
    /// `Ok` means that the bytes were copied: into the peer's ring, or, without a connection or without room there, on
    /// this side, to go on from here. What waits on this side when this process ends, or the endpoint is closed, is
    /// lost. To be sure, use [`send`](Self::send) and await it, or await a later send to the same peer: it ends after
    /// those that were accepted before.
    ///
    /// # Errors
    /// [`Error::TooLong`] above [`Info::tx`]`.inject_size`; [`Error::Again`] without credit; [`Error::StaleAddress`],
    /// [`Error::Closed`].
    #[doc(alias = "fi_inject")]
    pub fn inject(&self, peer: FiAddr, bytes: &[u8]) -> Result<()> {
        self.inject_spec(SendSpec::new(OpKind::Send, peer), bytes)
    }

    /// Sends a copy of borrowed bytes as a tagged message (`fi_tinject`).
    ///
    /// # Errors
    /// As [`Endpoint::inject`].
    #[doc(alias = "fi_tinject")]
    pub fn inject_tagged(&self, peer: FiAddr, tag: u64, bytes: &[u8]) -> Result<()> {
        self.inject_spec(SendSpec { tag: Some(tag), ..SendSpec::new(OpKind::Send, peer) }, bytes)
    }

    /// As [`Endpoint::inject`], with data for the receiver's completion (`fi_injectdata`, `FI_REMOTE_CQ_DATA`).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// # use fabric_async::Endpoint;
    /// let ep = Endpoint::bind("shm://").await?;
    /// let me = ep.lookup(ep.name()).await?;
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
        self.inject_spec(SendSpec { data: Some(data), ..SendSpec::new(OpKind::Send, peer) }, bytes)
    }

    /// As [`Endpoint::inject_tagged`], with data for the receiver's completion (`fi_tinjectdata`).
    ///
    /// # Errors
    /// As [`Endpoint::inject`].
    #[doc(alias = "fi_tinjectdata")]
    pub fn inject_tagged_data(&self, peer: FiAddr, tag: u64, bytes: &[u8], data: u64) -> Result<()> {
        let spec = SendSpec { tag: Some(tag), data: Some(data), ..SendSpec::new(OpKind::Send, peer) };
        self.inject_spec(spec, bytes)
    }

    fn inject_spec(&self, spec: SendSpec, bytes: &[u8]) -> Result<()> {
        self.inner.check_send(&spec)?;
        let whole = Payload::Whole(bytes);
        if bytes.len() <= self.inner.info.tx.inject_size
            && self.inner.express(|way| way.send_now(&spec, whole))
        {
            return Ok(());
        }
        self.inner.domain.core.inject(self.inner.id, spec, bytes)
    }

    /// Receives a message of any length into memory of the domain's pool. A message above the endpoint's own
    /// [`Info::ep`]`.max_msg_size` is [`Error::Truncated`]: what is beyond that is lost.
    ///
    /// # Cancel safety
    /// Safe: a message whose receive is dropped goes to the next one.
    #[doc(alias = "fi_recv")]
    pub fn recv(&self) -> RecvRequest<'_, PooledBuf, M> {
        RecvRequest::new(self, PooledBuf::empty(self.inner.domain.core.pool()))
    }

    /// Receives into this buffer. The room of a `Vec` or `BytesMut` is its capacity. A message that is longer is
    /// [`Error::Truncated`]: the buffer has its first bytes, and the rest is lost.
    ///
    /// # Cancel safety
    /// Safe, as [`Endpoint::recv`]; the buffer is dropped. [`Operation::cancel`] gets it back instead.
    #[doc(alias = "fi_recv")]
    pub fn recv_into<B: IoBufMut>(&self, buf: B) -> RecvRequest<'_, B, M> {
        RecvRequest::new(self, buf)
    }

    /// Receives several messages, one behind the other, into the spare capacity of this buffer (`FI_MULTI_RECV`): a stream
    /// of messages that share its memory, or completions. Bytes that it holds already are dropped: `split` them off.
    ///
    /// It takes messages until fewer bytes are left than [`min_free`](MultiRecvRequest::min_free) says, or one comes that
    /// does not fit, which goes to the next receive. A message that is longer than the whole buffer is
    /// [`Error::Truncated`] there. It counts as one posted receive.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// # use bytes::BytesMut;
    /// # use fabric_async::Endpoint;
    /// # use futures_util::StreamExt;
    /// let ep = Endpoint::bind("shm://").await?;
    /// let me = ep.lookup(ep.name()).await?;
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

    /// Asks for a message before it is received: how long it is, its tag, who sent it (`FI_PEEK`). It stays where it is, or
    /// is [claimed](Probe::claim), and then nobody else gets it (`FI_CLAIM`).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// # use fabric_async::Endpoint;
    /// # let ep = Endpoint::bind("shm://").await?;
    /// # let me = ep.lookup(ep.name()).await?;
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
    /// [lent](Self::lend) to a peer, which reads it where it lies: what that takes does not depend on the length.
    ///
    /// # Errors
    /// [`Error::Again`] when peers have too much that they have not returned; [`Error::Closed`]; [`Error::Os`] without the
    /// memory.
    pub fn loan(&self, len: usize) -> Result<Loan> {
        self.inner.node.check_open()?;
        self.inner.domain.core.loan(len)
    }

    /// A message that is lent to this peer instead of being copied, to be awaited, started or posted as a
    /// [send](Self::send) is.
    ///
    /// The peer receives it as any other message: into a buffer of its own, which costs one copy, or with
    /// [`recv_lent`](Self::recv_lent), which costs none. The memory comes back to this endpoint's domain when the peer has
    /// dropped it. If the peer dies with it, or leaves, it is given up.
    ///
    /// With a peer that has 256 loans it has not returned, a further one is copied, as it is by providers without shared
    /// memory, and from a domain that the loan is not of.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// # use fabric_async::Endpoint;
    /// let ep = Endpoint::bind("shm://").await?;
    /// let me = ep.lookup(ep.name()).await?;
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

    /// Receives a message where it lies: in the sender's memory if it was [lent](Self::lend), else in memory of the
    /// domain's pool. The memory goes back to the sender when the [`Lent`] is dropped.
    ///
    /// # Safety
    /// Peers whose messages this receives must not write memory that they have lent. Endpoints of this crate do not; but a
    /// process of the same user can do what it likes with its own memory. [`recv_into`](Self::recv_into) takes the same
    /// messages, with one copy and without this duty.
    ///
    /// # Cancel safety
    /// Safe, as [`Endpoint::recv`].
    #[allow(unsafe_code)] // passes the duty on
    pub unsafe fn recv_lent(&self) -> RecvRequest<'_, Lent, M> {
        // SAFETY: the caller's promise.
        RecvRequest::new(self, unsafe { Lent::empty(self.inner.domain.core.pool()) })
    }

    /// Waits for a transmit credit to this peer, which the returned [`Permit`](crate::Permit) holds.
    ///
    /// # Errors
    /// [`Error::StaleAddress`]; [`Error::Closed`]; [`Error::Canceled`] when the endpoint is closed meanwhile.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue.
    pub fn reserve(&self, peer: FiAddr) -> Reserve<'_, M> {
        Reserve::new(self, peer)
    }

    /// Gives a peer a number, and makes the connection: the first message finds it ready. When that fails, a number
    /// that was new is taken back.
    ///
    /// The number is your own until you [remove](AddressVector::remove) it. It stands for the name, and survives the
    /// death and the restart of the peer. A peer that has a number keeps it; that of a guest, which a welcoming address
    /// vector would take back, becomes permanent. See [`manual::serving`](crate::manual::serving).
    ///
    /// Waits until the peer makes progress and answers, however long that takes: `tokio::time::timeout` limits it.
    ///
    /// With the name of a host, as in `tcp://localhost:7000`, its addresses of this endpoint's family are tried one after the
    /// other; see [`resolve`](crate::resolve()). The number stands for the one that answered.
    ///
    /// # Errors
    /// [`Error::NoSuchPeer`] when nobody is there, [`Error::OtherUser`], [`Error::Refused`]; [`Error::NoSuchHost`]; and
    /// those of [`AddressVector::insert`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves the number in the address vector; the connection is made nevertheless.
    #[doc(alias = "fi_av_insert")]
    pub async fn lookup(&self, peer: impl ToAddress) -> Result<FiAddr> {
        // Of a host with several addresses, the one where somebody is.
        let is_ipv4 = self.name().socket().is_none_or(|at| at.is_ipv4());
        let found = resolve::found(&peer, self.inner.domain.scheme(), |at| at.is_ipv4() == is_ipv4).await?;
        let (last, others) = found.split_last().expect("there is one at least");
        for address in others {
            if let Ok(peer) = self.meet(address).await {
                return Ok(peer);
            }
        }
        self.meet(last).await
    }

    async fn meet(&self, address: &Address) -> Result<FiAddr> {
        let av = self.address_vector();
        let known = av.peers().iter().any(|(_, known)| known == address);
        let peer = av.insert(address)?;
        let spec = SendSpec::new(OpKind::Connect, peer);
        let core = &self.inner.domain.core;
        let connected = match core.send(self.inner.id, spec, Vec::new(), Route::Future, Credit::Wait) {
            Ok(Posted::Pending(key)) => Operation::posted(self.inner.clone(), key).await.map(drop),
            Ok(_) => Ok(()),
            Err(failed) => Err(failed),
        };
        if let Err(failed) = connected {
            if !known {
                // Gone already if the peer knocked and left meanwhile.
                let _ = av.remove(peer);
            }
            return Err(failed.error);
        }
        Ok(peer)
    }

    /// The address by which peers reach this endpoint (`fi_getname`).
    #[doc(alias = "fi_getname")]
    #[must_use]
    pub fn name(&self) -> &Address {
        self.inner.name.as_ref().expect("only what is inside of a shared receive context has none")
    }

    /// What the endpoint has done since it was enabled; nothing when it is closed.
    #[must_use]
    pub fn stats(&self) -> EndpointStats {
        self.inner.domain.core.endpoint_stats(self.inner.id)
    }

    /// The attributes it was opened with.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.inner.info
    }

    /// Its number in events.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.inner.node.id()
    }

    /// The address vector it is bound to.
    #[must_use]
    pub fn address_vector(&self) -> AddressVector<M> {
        AddressVector::from_inner(self.inner.av.clone())
    }

    /// The domain it belongs to.
    #[must_use]
    pub fn domain(&self) -> Domain<M> {
        Domain::from_inner(self.inner.domain.clone())
    }

    /// Closes the endpoint, for all its clones (`fi_close`). Operations that are posted end with
    /// [`Error::Canceled`], and peers are told.
    ///
    /// # Errors
    /// [`Error::Closed`] when it was closed before.
    #[doc(alias = "fi_close")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        match self.inner.node.close() {
            Ok(()) => {
                self.inner.domain.core.close_endpoint(self.inner.id);
                self.inner.holds.lock().unwrap_or_else(PoisonError::into_inner).clear();
                Ok(())
            }
            Err(error) => Err(CloseError { error, handle: self }),
        }
    }
}

impl Endpoint {
    /// The completion queue of an endpoint from [`Endpoint::bind`]; `None` after the first call, and for endpoints
    /// that were bound to queues by hand.
    #[must_use]
    pub fn completions(&self) -> Option<CompletionQueue> {
        self.inner.own.lock().ok()?.completions.take()
    }

    /// The event queue of an endpoint from [`Endpoint::bind`]; `None` after the first call, and for endpoints that
    /// were bound to queues by hand.
    #[must_use]
    pub fn events(&self) -> Option<EventQueue> {
        self.inner.own.lock().ok()?.events.take()
    }
}

impl EndpointInner {
    /// Does something at a peer without the domain, if that can be done now.
    #[inline]
    pub(crate) fn express(&self, act: impl FnOnce(&dyn Express) -> AtOnce) -> bool {
        match self.express.as_deref().map_or(AtOnce::No, act) {
            AtOnce::Done => true,
            AtOnce::Due => {
                self.domain.core.look();
                true
            }
            AtOnce::No => false,
        }
    }

    /// Sends, or writes, at once if nothing stands in the way.
    #[inline]
    pub(crate) fn send_now(&self, spec: &SendSpec, payload: Payload<'_>) -> Result<SendNow> {
        if self.express(|way| way.send_now(spec, payload)) {
            return Ok(SendNow::Done);
        }
        self.domain.core.send_now(self.id, spec, payload)
    }

    #[inline]
    pub(crate) fn check_send(&self, spec: &SendSpec) -> Result<()> {
        self.node.check_open()?;
        if spec.fence && !self.caps.contains(Caps::FENCE) {
            return Err(Error::NotSupported("fenced operations (FI_FENCE was not asked for)"));
        }
        if spec.data.is_some() && self.info.domain.cq_data_size == 0 {
            return Err(Error::NotSupported("data for the receiver (cq_data_size is 0)"));
        }
        match spec.kind {
            OpKind::Send => self.check_caps(spec.tag.is_some(), Caps::SEND),
            kind => self.check_one_sided(kind),
        }
    }

    /// Whether the operation may have so many buffers: one, mostly, as is known when this is compiled.
    #[inline]
    pub(crate) fn check_gather(&self, buf: &impl IoBuf) -> Result<()> {
        check_count(buf.count(), self.info.tx.iov_limit)
    }

    /// Likewise, of a receive.
    #[inline]
    pub(crate) fn check_scatter(&self, buf: &impl IoBufMut) -> Result<()> {
        check_count(buf.count(), self.info.rx.iov_limit)
    }

    fn check_one_sided(&self, kind: OpKind) -> Result<()> {
        let (what, direction) = match kind {
            OpKind::Read => (Caps::RMA, Caps::READ),
            OpKind::Write => (Caps::RMA, Caps::WRITE),
            OpKind::FetchAtomic => (Caps::ATOMIC, Caps::READ),
            _ => (Caps::ATOMIC, Caps::WRITE),
        };
        let caps = self.caps;
        if !caps.contains(what) {
            return Err(Error::NotSupported(if what == Caps::RMA {
                "one-sided operations (FI_RMA was not asked for)"
            } else {
                "atomic operations (FI_ATOMIC was not asked for)"
            }));
        }
        if !caps.contains(direction) {
            return Err(Error::NotSupported("this direction (FI_READ or FI_WRITE was left out)"));
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn check_recv(&self, spec: &RecvSpec) -> Result<()> {
        self.node.check_open()?;
        if spec.from.is_some() && !self.caps.contains(Caps::DIRECTED_RECV) {
            return Err(Error::NotSupported("directed receives (FI_DIRECTED_RECV was not asked for)"));
        }
        self.check_caps(spec.tag.is_some(), Caps::RECV)
    }

    pub(crate) fn check_multi_recv(&self, spec: &RecvSpec) -> Result<()> {
        self.check_recv(spec)?;
        let needed = if spec.tag.is_some() { Caps::TAGGED_MULTI_RECV } else { Caps::MULTI_RECV };
        if !self.caps.contains(needed) {
            return Err(Error::NotSupported("receives of several messages (FI_MULTI_RECV was left out)"));
        }
        Ok(())
    }

    fn check_caps(&self, tagged: bool, direction: Caps) -> Result<()> {
        let caps = self.caps;
        if tagged && !caps.contains(Caps::TAGGED) {
            return Err(Error::NotSupported("tagged messages (FI_TAGGED was not asked for)"));
        }
        if !tagged && !caps.contains(Caps::MSG) {
            return Err(Error::NotSupported("untagged messages (FI_MSG was not asked for)"));
        }
        if !caps.contains(direction) {
            return Err(self.wrong_direction(direction));
        }
        Ok(())
    }

    #[cold]
    fn wrong_direction(&self, direction: Caps) -> Error {
        Error::NotSupported(if direction == Caps::RECV && self.shared.is_some() {
            "receives of an endpoint that shares a receive context: they are posted to that"
        } else {
            "this direction (FI_SEND or FI_RECV was left out)"
        })
    }
}

#[inline]
fn check_count(count: usize, limit: usize) -> Result<()> {
    if count > 1 && count > limit {
        return Err(Error::TooLong { what: "vector of buffers", len: count, limit });
    }
    Ok(())
}

impl<M: ThreadModel> Clone for Endpoint<M> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), model: PhantomData }
    }
}

impl Drop for EndpointInner {
    fn drop(&mut self) {
        self.domain.core.close_endpoint(self.id);
        self.node.retire();
    }
}

impl<M: ThreadModel> fmt::Debug for Endpoint<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("id", &self.inner.node.id())
            .field("parent", &self.inner.node.parent().map(|parent| parent.id()))
            .field("name", &format_args!("{}", self.name()))
            .field("caps", &self.inner.info.caps)
            .finish()
    }
}
