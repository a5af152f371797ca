//! Shared receive contexts.

use std::fmt;

use bytes::BytesMut;
use fabric_core::buf::{IoBufMut, LoanedBuf, PooledBuf};
use fabric_core::completion::Transfer;
use fabric_core::flags::{Caps, CounterBind, CqBind};
use fabric_core::info::{EpType, Info, SHARED_CONTEXT};
use fabric_core::stats::EndpointStats;
use fabric_core::tree::Class;
use fabric_core::{Error, Result};

use super::{Endpoint, EndpointBuilder};
use crate::av::{AddressVector, AvInner};
use crate::close::CloseError;
use crate::counter::Counter;
use crate::cq::CompletionQueue;
use crate::domain::Domain;
use crate::op::{BatchError, MultiRecvOp, ProbeOp, RecvOp, Request};
use crate::thread_model::{Shared, ThreadModel};

/// A receive context that several endpoints share (`fi_srx_context`). A message for any of the
/// endpoints takes a receive posted here, in posting order. One set of receives and one budget for
/// unexpected messages serve all endpoints.
///
/// Created by [`Domain::shared_rx_context`], and bound to endpoints with
/// [`EndpointBuilder::bind_shared_rx`](crate::EndpointBuilder::bind_shared_rx) before they are
/// enabled. Cheap to clone; it closes with its last clone and the last endpoint that uses it.
///
/// Receives behave like those of an [`Endpoint`]. A receive that is posted to a queue reports to
/// the queue of the context, not to that of an endpoint: the entry is reserved by the post, before
/// the endpoint of the message is known. [`received_by`](Self::received_by) returns the endpoint
/// afterwards. Receives and probes on the endpoints themselves fail.
///
/// The endpoints and the context are bound to the same address vector. A reply may be sent from any
/// of the endpoints. [Connected
/// endpoints](crate::guide::connected_endpoints#shared-receive-context) have no address vector to
/// bind: a message has no source, and the endpoint it arrived at replies. When a connection ends,
/// posted receives keep waiting, including one that a message of that connection had begun to fill.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
/// use fabric_async::info::SHARED_CONTEXT;
/// use fabric_async::{Endpoint, Fabric, Hints, discover};
/// let hints = Hints::new().provider("shm").ep_rx_ctx_cnt(SHARED_CONTEXT);
/// let info = discover(&hints)?.swap_remove(0);
/// let domain = Fabric::open(&info)?.domain(&info)?;
/// let av = domain.auto_insert_address_vector()?;
/// let shared = domain.shared_rx_context(&info)?.bind_av(&av)?.open()?;
/// let mut endpoints = Vec::new();
/// for _ in 0..4 {
///     let ep = domain.endpoint(&info)?.bind_av(&av)?.bind_shared_rx(&shared)?;
///     endpoints.push(ep.enable()?);
/// }
///
/// let client = Endpoint::bind("shm://").await?;
/// let third = client.add_peer(endpoints[2].name()).await?;
/// client.send(third, "hello").await?;
/// let message = shared.recv().await?;
/// assert_eq!(&message[..], b"hello");
/// assert_eq!(shared.received_by(&message.transfer), Some(endpoints[2].id()));
/// endpoints[2].send(message.source()?, "welcome").await?;
/// assert_eq!(&client.recv().await?[..], b"welcome");
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[doc(alias = "fi_srx_context")]
#[doc(alias = "FI_CLASS_SRX_CTX")]
pub struct SharedRxContext<M: ThreadModel = Shared> {
    /// An endpoint of the engine without a name, which accepts no connections and sends nothing.
    /// Its receives are those of the context.
    pub(crate) ep: Endpoint<M>,
}

impl<M: ThreadModel> SharedRxContext<M> {
    /// Returns a request to receive a message of any length, as [`Endpoint::recv`].
    #[doc(alias = "fi_recv")]
    pub fn recv(&self) -> Request<'_, RecvOp, PooledBuf, M> {
        self.ep.recv()
    }

    /// Returns a request to receive into this buffer, as [`Endpoint::recv_into`].
    #[doc(alias = "fi_recv")]
    pub fn recv_into<B: IoBufMut>(&self, buf: B) -> Request<'_, RecvOp, B, M> {
        self.ep.recv_into(buf)
    }

    /// Returns a request to receive several messages into this buffer, as [`Endpoint::recv_multi`];
    /// they may arrive at different endpoints.
    #[doc(alias = "FI_MULTI_RECV")]
    pub fn recv_multi(&self, buf: BytesMut) -> Request<'_, MultiRecvOp, BytesMut, M> {
        self.ep.recv_multi(buf)
    }

    /// Returns a request to receive a message in place, as [`Endpoint::recv_loan`].
    pub fn recv_loan(&self) -> Request<'_, RecvOp, LoanedBuf, M> {
        self.ep.recv_loan()
    }

    /// Returns a probe for messages, as [`Endpoint::probe`].
    #[doc(alias = "FI_PEEK")]
    #[doc(alias = "FI_CLAIM")]
    pub fn probe(&self) -> Request<'_, ProbeOp, (), M> {
        self.ep.probe()
    }

    /// Posts receives together, as [`Endpoint::post_all`]. Returns the number of posted receives.
    ///
    /// # Errors
    /// As [`Endpoint::post_all`].
    #[doc(alias = "FI_MORE")]
    pub fn post_all<'a, B: IoBufMut>(
        &'a self,
        requests: impl IntoIterator<Item = Request<'a, RecvOp, B, M>>,
    ) -> Result<usize, BatchError<Request<'a, RecvOp, B, M>>> {
        self.ep.post_all(requests)
    }

    /// Returns the [`id`](Endpoint::id) of the endpoint at which a message received here arrived;
    /// `None` when that endpoint is closed.
    #[must_use]
    pub fn received_by(&self, transfer: &Transfer) -> Option<u64> {
        self.ep
            .inner
            .domain
            .engine
            .received_by(self.ep.inner.id, transfer)
    }

    /// Returns counters of receives since the context was opened, and of waiting messages; all
    /// other counters are 0. All are 0 when it is closed.
    ///
    /// The endpoints also count the messages that arrive at them.
    #[must_use]
    pub fn stats(&self) -> EndpointStats {
        self.ep.stats()
    }

    /// Returns the attributes that the context was opened with.
    #[must_use]
    pub fn info(&self) -> &Info {
        self.ep.info()
    }

    /// Returns the context's id, which is unique among the objects of the process.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.ep.id()
    }

    /// Returns the context value of the receive context's events, set with
    /// [`SharedRxContextBuilder::context`].
    #[must_use]
    pub fn context(&self) -> u64 {
        self.ep.context()
    }

    /// Returns the address vector that the context is bound to; `None` if the context is for
    /// connected endpoints, which have no address vector.
    #[must_use]
    pub fn address_vector(&self) -> Option<AddressVector<M>> {
        let is_connected = self.info().ep.ep_type == EpType::Msg;
        (!is_connected).then(|| self.ep.address_vector())
    }

    /// Returns the domain of this context.
    #[must_use]
    pub fn domain(&self) -> &Domain<M> {
        self.ep.domain()
    }

    /// Cancels the oldest receive that was posted to the context's queue with this context value
    /// and has not matched a message (`fi_cancel`), as [`Endpoint::cancel`]. Returns false if there
    /// is none.
    ///
    /// # Errors
    /// [`Error::Closed`].
    #[doc(alias = "fi_cancel")]
    pub fn cancel(&self, context: u64) -> Result<bool> {
        self.ep.cancel(context)
    }

    /// Closes the context, for all its clones (`fi_close`), as the drop of the last clone does when
    /// no endpoint uses the context. Posted receives end with [`Error::Canceled`]; waiting messages
    /// are discarded.
    ///
    /// # Errors
    /// [`Error::Busy`] while endpoints use the context; [`Error::Closed`] when the context was
    /// closed before.
    #[doc(alias = "fi_close")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        let closed = self.ep.close();
        closed.map_err(|refused| refused.map_handle(|ep| Self { ep }))
    }
}

impl<M: ThreadModel> fmt::Debug for SharedRxContext<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stats = self.stats();
        f.debug_struct("SharedRxContext")
            .field("id", &self.id())
            .field("parent", &self.domain().inner.node.id())
            .field("received", &stats.received.count)
            .field("unexpected", &stats.unexpected)
            .finish()
    }
}

/// A builder of a shared receive context: bind, then open.
#[must_use = "a context receives nothing before it is opened"]
pub struct SharedRxContextBuilder<M: ThreadModel = Shared> {
    builder: EndpointBuilder<M>,
}

impl<M: ThreadModel> SharedRxContextBuilder<M> {
    pub(crate) fn new(domain: Domain<M>, info: Info) -> Self {
        let builder = EndpointBuilder::new(domain, info, Class::SharedReceive);
        Self { builder }
    }

    /// Binds a completion queue for receives (`fi_ep_bind`): `directions` is
    /// [`RECV`](CqBind::RECV), with or without
    /// [`SELECTIVE_COMPLETION`](CqBind::SELECTIVE_COMPLETION), as [of an
    /// endpoint](crate::EndpointBuilder::bind_cq).
    ///
    /// # Errors
    /// [`Error::BadFlags`] for another direction; [`Error::Invalid`] when a queue is bound already;
    /// [`Error::WrongParent`]; [`Error::Closed`].
    #[doc(alias = "fi_ep_bind")]
    pub fn bind_cq(mut self, cq: &CompletionQueue<M>, directions: CqBind) -> Result<Self> {
        if directions & !CqBind::SELECTIVE_COMPLETION != CqBind::RECV {
            return Err(Error::BadFlags {
                what: "bind_cq of a shared receive context",
                flags: format!("{directions:?}, not RECV"),
            });
        }
        self.builder = self.builder.bind_cq(cq, directions)?;
        Ok(self)
    }

    /// Binds the address vector, which must be that of the endpoints (`fi_ep_bind`). Required,
    /// except for connected endpoints.
    ///
    /// # Errors
    /// [`Error::Invalid`] when a vector is bound already; [`Error::NotSupported`] for connected
    /// endpoints; [`Error::WrongParent`]; [`Error::Closed`].
    #[doc(alias = "fi_ep_bind")]
    pub fn bind_av<N: ThreadModel>(mut self, av: &AddressVector<N>) -> Result<Self> {
        self.builder = self.builder.bind_av(av)?;
        Ok(self)
    }

    /// Binds a counter of receives (`fi_ep_bind`): `what` is [`RECV`](CounterBind::RECV). Counters
    /// of the endpoints also count the messages that arrive at them.
    ///
    /// # Errors
    /// [`Error::BadFlags`] for another kind; [`Error::Invalid`] when a counter is bound already;
    /// [`Error::WrongParent`]; [`Error::Closed`].
    #[doc(alias = "fi_ep_bind")]
    pub fn bind_counter(mut self, counter: &Counter<M>, what: CounterBind) -> Result<Self> {
        if what != CounterBind::RECV {
            return Err(Error::BadFlags {
                what: "bind_counter of a shared receive context",
                flags: format!("{what:?}, not RECV"),
            });
        }
        self.builder = self.builder.bind_counter(counter, what)?;
        Ok(self)
    }

    /// Sets the context value of the events that are about the receive context:
    /// [`MessagesDiscarded`](crate::EventKind::MessagesDiscarded).
    pub fn context(mut self, context: u64) -> Self {
        self.builder = self.builder.context(context);
        self
    }

    /// Opens the context (`fi_srx_context`). [`Info::rx`]`.size` limits the posted receives,
    /// [`Info::ep`]`.max_msg_size` the length of a message.
    ///
    /// # Errors
    /// [`Error::Unbound`] without an address vector where one is required; [`Error::Invalid`] when
    /// the receive size is out of range, or the info is not for shared contexts; [`Error::Closed`].
    #[doc(alias = "fi_srx_context")]
    pub fn open(self) -> Result<SharedRxContext<M>> {
        let builder = self.builder;
        let is_connected = builder.info.ep.ep_type == EpType::Msg;
        let av = match &builder.av {
            Some(av) => av.clone(),
            None if is_connected => AvInner::empty(&builder.domain.inner)?,
            None => return Err(Error::Unbound(Class::AddressVector)),
        };
        check_shared_rx_info(&builder.info)?;
        let (node, bound) = builder.bindings(&av)?;
        let id = builder.domain.inner.engine.open_shared_rx(bound)?;
        let ep = builder.into_endpoint(node, id, None, av, Caps::empty())?;
        Ok(SharedRxContext { ep })
    }
}

/// Checks that the info is for endpoints with a shared receive context.
pub(super) fn check_shared_rx_info(info: &Info) -> Result<()> {
    if info.ep.rx_ctx_cnt == SHARED_CONTEXT {
        return Ok(());
    }
    let why = "info.ep.rx_ctx_cnt must be SHARED_CONTEXT".into();
    Err(Error::Invalid { what: "info", why })
}

impl<M: ThreadModel> fmt::Debug for SharedRxContextBuilder<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRxContextBuilder")
            .field("domain", &self.builder.domain.inner.node.id())
            .field("info", &self.builder.info)
            .finish_non_exhaustive()
    }
}
