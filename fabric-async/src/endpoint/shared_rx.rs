//! Receive contexts that several endpoints share.

use std::fmt;
use std::sync::Arc;

use bytes::BytesMut;
use fabric_core::buf::{IoBufMut, LoanedBuf, PooledBuf};
use fabric_core::completion::{CompletionLevel, Transfer};
use fabric_core::flags::{CounterBind, CqBind, OpFlags};
use fabric_core::info::{EpType, Info, SHARED_CONTEXT};
use fabric_core::stats::EndpointStats;
use fabric_core::tree::{Class, DependencyGuard, ObjectNode};
use fabric_core::{Error, Result};
use fabric_reactor::{Bindings, CounterId, Counters, CqId};

use super::builder::{check_av_allowed, check_size, dependency_on, set_once};
use super::{Dependencies, Endpoint, EndpointInner, OwnedQueues};
use crate::av::{AddressVector, AvInner};
use crate::close::CloseError;
use crate::counter::Counter;
use crate::cq::CompletionQueue;
use crate::domain::Domain;
use crate::op::{BatchError, MultiRecvRequest, Probe, RecvRequest};
use crate::thread_model::{Shared, ThreadModel};

/// A receive context that several endpoints share (`fi_srx_context`): receives are posted here, and
/// a message that comes to any of the endpoints takes one, in posting order. One pool of receives,
/// and one budget for unexpected messages, serve them all.
///
/// Made by [`Domain::shared_rx_context`], given to endpoints with
/// [`EndpointBuilder::bind_shared_rx`](crate::EndpointBuilder::bind_shared_rx) before they are enabled.
/// Cheap to clone; it closes with its last clone and the last endpoint that shares it.
///
/// The receives are those of an [`Endpoint`], which describes them. What is posted to a queue
/// reports to the one that the context is bound to, not to that of the endpoint a message came to:
/// its entry is reserved when it is posted, and nobody knows by then who it will be.
/// [`received_by`](Self::received_by) tells afterwards. The endpoints refuse receives, and probes.
///
/// The endpoints send to, and report as sources, the numbers of one address vector, which the
/// context is bound to as well. An answer may go out by any of them. Endpoints that are
/// [connected](crate::guide::connected_endpoints#shared-receive-context) have no vectors to
/// be bound to: the source of a message is the one [peer](Endpoint::peer) of the endpoint it came
/// to, which alone can answer. Where a connection ends, receives that are posted here wait on, also
/// one that a message from there had begun to fill.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
/// use fabric_async::{Endpoint, Fabric, Hints, SHARED_CONTEXT, discover};
/// let hints = Hints::new().provider("shm").ep_rx_ctx_cnt(SHARED_CONTEXT);
/// let info = discover(&hints).await?.swap_remove(0);
/// let domain = Fabric::open(&info)?.domain(&info)?;
/// let av = domain.auto_insert_address_vector()?;
/// let shared = domain.shared_rx_context(&info)?.bind_av(&av)?.open()?;
/// let mut doors = Vec::new();
/// for _ in 0..4 {
///     doors.push(domain.endpoint(&info)?.bind_av(&av)?.bind_shared_rx(&shared)?.enable().await?);
/// }
///
/// let client = Endpoint::bind("shm://").await?;
/// let third = client.add_peer(doors[2].name()).await?;
/// client.inject(third, b"knock, knock")?;
/// let message = shared.recv().await?;
/// assert_eq!(&message[..], b"knock, knock");
/// assert_eq!(shared.received_by(&message.transfer), Some(doors[2].id()));
/// doors[2].send(message.source()?, "come in").await?;
/// assert_eq!(&client.recv().await?[..], b"come in");
/// # Ok(()) }
/// ```
#[doc(alias = "fi_srx_context")]
#[doc(alias = "FI_CLASS_SRX_CTX")]
pub struct SharedRxContext<M: ThreadModel = Shared> {
    /// An endpoint without a name, to which nobody connects, and which does not send.
    pub(crate) ep: Endpoint<M>,
}

impl<M: ThreadModel> SharedRxContext<M> {
    /// Receives a message of any length, as [`Endpoint::recv`].
    #[doc(alias = "fi_recv")]
    pub fn recv(&self) -> RecvRequest<'_, PooledBuf, M> {
        self.ep.recv()
    }

    /// Receives into this buffer, as [`Endpoint::recv_into`].
    #[doc(alias = "fi_recv")]
    pub fn recv_into<B: IoBufMut>(&self, buf: B) -> RecvRequest<'_, B, M> {
        self.ep.recv_into(buf)
    }

    /// Receives several messages into this buffer, as [`Endpoint::recv_multi`]; they may come to
    /// different endpoints.
    #[doc(alias = "FI_MULTI_RECV")]
    pub fn recv_multi(&self, buf: BytesMut) -> MultiRecvRequest<'_, M> {
        self.ep.recv_multi(buf)
    }

    /// Receives a message where it lies, as [`Endpoint::recv_loan`].
    ///
    /// # Safety
    /// That of [`Endpoint::recv_loan`].
    #[allow(unsafe_code)] // passes the duty on
    pub unsafe fn recv_loan(&self) -> RecvRequest<'_, LoanedBuf, M> {
        // SAFETY: the caller's promise.
        unsafe { self.ep.recv_loan() }
    }

    /// Asks for a message before it is received, as [`Endpoint::probe`].
    #[doc(alias = "FI_PEEK")]
    #[doc(alias = "FI_CLAIM")]
    pub fn probe(&self) -> Probe<'_, M> {
        self.ep.probe()
    }

    /// Posts receives together, as [`Endpoint::post_all`]. Returns how many there were.
    ///
    /// # Errors
    /// As [`Endpoint::post_all`].
    #[doc(alias = "FI_MORE")]
    pub fn post_all<'a, B: IoBufMut>(
        &'a self,
        requests: impl IntoIterator<Item = RecvRequest<'a, B, M>>,
    ) -> Result<usize, BatchError<RecvRequest<'a, B, M>>> {
        self.ep.post_all(requests)
    }

    /// Which endpoint a message came to that was received here, by its [`id`](Endpoint::id);
    /// nothing when that endpoint is closed, whatever of it is still here.
    #[must_use]
    pub fn received_by(&self, transfer: &Transfer) -> Option<u64> {
        self.ep
            .inner
            .domain
            .core
            .received_by(self.ep.inner.id, transfer)
    }

    /// What was received here since it was opened, and what waits: all else is 0. Nothing when it
    /// is closed.
    ///
    /// Each endpoint counts as well what came to it.
    #[must_use]
    pub fn stats(&self) -> EndpointStats {
        self.ep.stats()
    }

    /// The attributes it was opened with.
    #[must_use]
    pub fn info(&self) -> &Info {
        self.ep.info()
    }

    /// Its number among the objects of the process.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.ep.id()
    }

    /// The address vector it is bound to; of a context for connected endpoints one that is empty,
    /// and stays so.
    #[must_use]
    pub fn address_vector(&self) -> AddressVector<M> {
        self.ep.address_vector()
    }

    /// The domain it belongs to.
    #[must_use]
    pub fn domain(&self) -> Domain<M> {
        self.ep.domain()
    }

    /// Closes the context, for all its clones (`fi_close`), as dropping the last of them does once
    /// no endpoint shares it any more. Receives that are posted end with
    /// [`Error::Canceled`]; messages that wait are discarded.
    ///
    /// # Errors
    /// [`Error::Busy`] while endpoints share it; [`Error::Closed`] when it was closed before.
    #[doc(alias = "fi_close")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        self.ep
            .close()
            .map_err(|CloseError { error, handle }| CloseError {
                error,
                handle: Self { ep: handle },
            })
    }
}

impl<M: ThreadModel> Clone for SharedRxContext<M> {
    fn clone(&self) -> Self {
        Self {
            ep: self.ep.clone(),
        }
    }
}

impl<M: ThreadModel> fmt::Debug for SharedRxContext<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stats = self.stats();
        f.debug_struct("SharedReceive")
            .field("id", &self.id())
            .field("parent", &self.domain().inner.node.id())
            .field("received", &stats.received.count)
            .field("unexpected", &stats.unexpected)
            .finish()
    }
}

/// A shared receive context that is not opened yet.
#[must_use = "a context receives nothing before it is opened"]
pub struct SharedRxContextBuilder<M: ThreadModel = Shared> {
    domain: Domain<M>,
    info: Info,
    av: Option<Arc<AvInner>>,
    cq: Option<CqId>,
    selective: bool,
    counter: Option<CounterId>,
    dependencies: Vec<DependencyGuard>,
}

impl<M: ThreadModel> SharedRxContextBuilder<M> {
    pub(crate) fn new(domain: Domain<M>, info: Info) -> Self {
        Self {
            domain,
            info,
            av: None,
            cq: None,
            selective: false,
            counter: None,
            dependencies: Vec::new(),
        }
    }

    /// Lets receives report to this queue: `directions` is [`RECV`](CqBind::RECV), with
    /// [`SELECTIVE_COMPLETION`](CqBind::SELECTIVE_COMPLETION) or without, as
    /// [of an endpoint](crate::EndpointBuilder::bind_cq).
    ///
    /// # Errors
    /// [`Error::BadFlags`] for another direction; [`Error::Invalid`] when a queue is bound;
    /// [`Error::WrongDomain`]; [`Error::Closed`].
    #[doc(alias = "fi_ep_bind")]
    pub fn bind_cq(mut self, cq: &CompletionQueue<M>, directions: CqBind) -> Result<Self> {
        if directions & !CqBind::SELECTIVE_COMPLETION != CqBind::RECV {
            return Err(Error::BadFlags {
                what: "bind_cq of a shared receive context",
                flags: format!("{directions:?}, not RECV"),
            });
        }
        self.add_dependency(&cq.inner.node)?;
        set_once("completion queue", &mut self.cq, cq.inner.id)?;
        self.selective = directions.contains(CqBind::SELECTIVE_COMPLETION);
        Ok(self)
    }

    /// Receives from the numbers of this address vector, which is that of the endpoints. Needed,
    /// unless those are to be connected, each with a peer of its own.
    ///
    /// # Errors
    /// [`Error::Invalid`] when one is bound; [`Error::NotSupported`] for endpoints that are
    /// connected with one peer; [`Error::WrongDomain`]; [`Error::Closed`].
    #[doc(alias = "fi_ep_bind")]
    pub fn bind_av(mut self, av: &AddressVector<M>) -> Result<Self> {
        check_av_allowed(&self.info)?;
        self.add_dependency(&av.inner.node)?;
        set_once("address vector", &mut self.av, av.inner.clone())?;
        Ok(self)
    }

    /// Counts receives: `what` is [`RECV`](CounterBind::RECV). Counters of the endpoints count as
    /// well what came to them.
    ///
    /// # Errors
    /// [`Error::BadFlags`] for another kind; [`Error::Invalid`] when a counter is bound;
    /// [`Error::WrongDomain`]; [`Error::Closed`].
    #[doc(alias = "fi_ep_bind")]
    pub fn bind_counter(mut self, counter: &Counter<M>, what: CounterBind) -> Result<Self> {
        if what != CounterBind::RECV {
            return Err(Error::BadFlags {
                what: "bind_counter of a shared receive context",
                flags: format!("{what:?}, not RECV"),
            });
        }
        self.add_dependency(&counter.inner.node)?;
        set_once("receive counter", &mut self.counter, counter.inner.id)?;
        Ok(self)
    }

    /// Opens the context. [`Info::rx`]`.size` is how many receives can be posted to it,
    /// [`Info::ep`]`.max_msg_size` the longest message that they take.
    ///
    /// # Errors
    /// [`Error::Unbound`] without an address vector where there is to be one; [`Error::Invalid`]
    /// when the receive size is out of bounds, or the info is not one for shared contexts;
    /// [`Error::Closed`].
    #[doc(alias = "fi_srx_context")]
    pub fn open(self) -> Result<SharedRxContext<M>> {
        if self.av.is_none() && self.info.ep.ep_type != EpType::Msg {
            return Err(Error::Unbound(Class::AddressVector));
        }
        check_size("receive size", self.info.rx.size)?;
        check_shared_rx_info(&self.info)?;
        let domain = self.domain.inner;
        domain.node.check_open()?;
        let av = self.av.unwrap_or_else(|| AvInner::empty(&domain));
        let node = ObjectNode::new(Class::SharedReceive, Some(domain.node.clone()));
        let bound = Bindings {
            object_id: node.id(),
            context: 0,
            av: av.id,
            tx_cq: None,
            rx_cq: self.cq,
            counters: Counters {
                recv: self.counter,
                ..Counters::default()
            },
            shared_rx: None,
            eq: None,
            tx_size: 1,
            rx_size: self.info.rx.size,
            max_msg_size: self.info.ep.max_msg_size,
            inject_size: 0,
        };
        let id = domain.core.open_shared_rx(bound);
        let inner = EndpointInner {
            node,
            id,
            domain: domain.state().clone(),
            name: None,
            caps: self.info.caps,
            selective_tx: false,
            selective_rx: self.selective && !self.info.rx.op_flags.contains(OpFlags::COMPLETION),
            info: self.info,
            completion_level: CompletionLevel::default(),
            fast_path: None,
            shares_receives: false,
            connected_peer: None,
        };
        let published = inner.node.publish();
        let on = Dependencies {
            domain,
            av,
            shared: None,
            holds: self.dependencies,
            own: OwnedQueues::default(),
        };
        // Dropped, and with it closed, when the domain was closed meanwhile.
        let ep = Endpoint::opened(inner, on);
        published.map(|()| SharedRxContext { ep })
    }

    fn add_dependency(&mut self, node: &Arc<ObjectNode>) -> Result<()> {
        self.dependencies
            .push(dependency_on(&self.domain, node, Class::SharedReceive)?);
        Ok(())
    }
}

/// Whether this info is of endpoints that share their receives.
pub(super) fn check_shared_rx_info(info: &Info) -> Result<()> {
    if info.ep.rx_ctx_cnt == SHARED_CONTEXT {
        return Ok(());
    }
    let why =
        "of endpoints with receives of their own (ep_rx_ctx_cnt is to be SHARED_CONTEXT)".into();
    Err(Error::Invalid { what: "info", why })
}
