//! An endpoint on its way: bound to queues, then enabled.

use std::sync::Arc;

use fabric_core::completion::CompletionLevel;
use fabric_core::flags::{Caps, CounterBind, CqBind, OpFlags};
use fabric_core::info::{EpType, Info, SHARED_CONTEXT};
use fabric_core::transport::EpId;
use fabric_core::tree::{Class, DependencyGuard, ObjectNode};
use fabric_core::{Address, Error, Result};
use fabric_reactor::{AvId, Bindings, Counters, CqId};

use super::connected::ConnectedPeer;
use super::shared_rx::check_shared_rx_info;
use super::{Dependencies, Endpoint, EndpointInner, OpenEndpoint, OwnedQueues, SharedRxContext};
use crate::av::{AddressVector, AvInner, ToAddress};
use crate::counter::Counter;
use crate::cq::CompletionQueue;
use crate::domain::Domain;
use crate::eq::{EventQueue, EventQueueInner};
use crate::thread_model::{Shared, ThreadModel};

/// The most operations of one direction that may be asked for.
const MAX_QUEUE_SIZE: usize = 1 << 16;

/// An endpoint that is not enabled yet (`fi_endpoint` before `fi_enable`).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
/// use fabric_async::{CqBind, Fabric, Hints, discover};
/// let info = discover(&Hints::new().provider("shm")).await?.swap_remove(0);
/// let domain = Fabric::open(&info)?.domain(&info)?;
/// let (cq, av) = (domain.completion_queue(256)?, domain.address_vector()?);
/// let ep = domain.endpoint(&info)?.bind_cq(&cq, CqBind::TRANSMIT | CqBind::RECV)?.bind_av(&av)?.enable().await?;
/// # drop(ep); Ok(()) }
/// ```
#[must_use = "an endpoint does nothing before it is enabled"]
pub struct EndpointBuilder<M: ThreadModel = Shared> {
    pub(super) domain: Domain<M>,
    pub(super) info: Info,
    pub(super) address: Option<Address>,
    context: u64,
    av: Option<Arc<AvInner>>,
    shared_rx: Option<Arc<OpenEndpoint>>,
    tx_cq: Option<CqId>,
    rx_cq: Option<CqId>,
    /// Directions that report success only when asked to.
    selective: CqBind,
    counters: Counters,
    eq: Option<Arc<EventQueueInner>>,
    dependencies: Vec<DependencyGuard>,
    owned_queues: OwnedQueues,
}

impl<M: ThreadModel> EndpointBuilder<M> {
    pub(crate) fn new(domain: Domain<M>, info: Info) -> Self {
        Self {
            domain,
            address: info.src_addr.clone(),
            info,
            context: 0,
            av: None,
            shared_rx: None,
            tx_cq: None,
            rx_cq: None,
            selective: CqBind::empty(),
            counters: Counters::default(),
            eq: None,
            dependencies: Vec::new(),
            owned_queues: OwnedQueues::default(),
        }
    }

    /// The address to be reached at (`fi_setname`); a fresh one unless said.
    ///
    /// # Errors
    /// [`Error::BadAddress`].
    #[doc(alias = "fi_setname")]
    pub fn name(mut self, at: impl ToAddress) -> Result<Self> {
        self.address = Some(self.domain.inner.address(at)?);
        Ok(self)
    }

    /// A number that comes with the endpoint's events.
    pub fn context(mut self, context: u64) -> Self {
        self.context = context;
        self
    }

    /// Lets sends, receives or both report to this queue (`fi_ep_bind`).
    ///
    /// With [`SELECTIVE_COMPLETION`](CqBind::SELECTIVE_COMPLETION) an operation that is posted to
    /// the queue and ends well is reported only if its request
    /// [asks](crate::SendRequest::completion) for that, or if all of them do by default
    /// ([`OpFlags::COMPLETION`] in the hints). One that fails always is. The buffer of an operation
    /// that is not reported is dropped at its end; counters count it.
    ///
    /// # Errors
    /// [`Error::BadFlags`] without a direction. [`Error::Invalid`] when that direction has a queue.
    /// [`Error::WrongDomain`] when the queue is of another domain. [`Error::Closed`].
    #[doc(alias = "fi_ep_bind")]
    pub fn bind_cq(mut self, cq: &CompletionQueue<M>, directions: CqBind) -> Result<Self> {
        if !directions.intersects(CqBind::TRANSMIT | CqBind::RECV) {
            return Err(Error::BadFlags {
                what: "bind_cq",
                flags: "neither TRANSMIT nor RECV".into(),
            });
        }
        self.add_dependency(&cq.inner.node)?;
        if directions.contains(CqBind::TRANSMIT) {
            set_once("transmit completion queue", &mut self.tx_cq, cq.inner.id)?;
        }
        if directions.contains(CqBind::RECV) {
            set_once("receive completion queue", &mut self.rx_cq, cq.inner.id)?;
        }
        if directions.contains(CqBind::SELECTIVE_COMPLETION) {
            self.selective |= directions;
        }
        Ok(self)
    }

    /// Sends to the numbers of this address vector. Needed.
    ///
    /// # Errors
    /// [`Error::Invalid`] when one is bound; [`Error::NotSupported`] for an endpoint that is
    /// connected with one peer; [`Error::WrongDomain`]; [`Error::Closed`].
    #[doc(alias = "fi_ep_bind")]
    pub fn bind_av(mut self, av: &AddressVector<M>) -> Result<Self> {
        check_av_allowed(&self.info)?;
        self.add_dependency(&av.inner.node)?;
        set_once("address vector", &mut self.av, av.inner.clone())?;
        Ok(self)
    }

    /// Receives with this context, as others do, instead of a context of its own: receives are
    /// posted there. The info is one with `ep.rx_ctx_cnt`
    /// [`SHARED_CONTEXT`](crate::SHARED_CONTEXT), which hints ask for, of the type of endpoints
    /// that the context is for, and the address vector that of the context; those that are
    /// connected have none to be bound to.
    ///
    /// A queue that is [bound](Self::bind_cq) for receives as well hears of what peers [write with
    /// data](crate::WriteRequest::data), and of no messages. Counters count the messages that come
    /// to the endpoint.
    ///
    /// # Errors
    /// [`Error::Invalid`] when one is bound, or the info is of endpoints with contexts of their
    /// own, or of another type than the context's; [`Error::WrongDomain`] when it is of another domain;
    /// [`Error::Closed`].
    #[doc(alias = "fi_ep_bind")]
    pub fn bind_shared_rx(mut self, shared: &SharedRxContext<M>) -> Result<Self> {
        check_shared_rx_info(&self.info)?;
        let (ours, its) = (self.info.ep.ep_type, shared.info().ep.ep_type);
        if ours != its {
            let why =
                format!("it is for endpoints of type {its:?}, and this one is of type {ours:?}");
            return Err(Error::Invalid {
                what: "shared receive context",
                why,
            });
        }
        self.add_dependency(&shared.ep.inner.node)?;
        set_once(
            "shared receive context",
            &mut self.shared_rx,
            shared.ep.open.clone(),
        )?;
        Ok(self)
    }

    /// Counts operations of these kinds.
    ///
    /// Counting what peers do to memory here (`REMOTE_READ`, `REMOTE_WRITE`) needs an info with
    /// [`Caps::RMA_EVENT`](fabric_core::flags::Caps::RMA_EVENT), and costs the peers a record for
    /// each operation.
    ///
    /// # Errors
    /// [`Error::BadFlags`] for no kind at all; [`Error::NotSupported`] for the remote kinds without
    /// `RMA_EVENT`; [`Error::Invalid`] when a kind has a counter; [`Error::WrongDomain`];
    /// [`Error::Closed`].
    #[doc(alias = "fi_ep_bind")]
    pub fn bind_counter(mut self, counter: &Counter<M>, what: CounterBind) -> Result<Self> {
        if what.is_empty() {
            return Err(Error::BadFlags {
                what: "bind_counter",
                flags: "no kind of operation".into(),
            });
        }
        let remote = CounterBind::REMOTE_READ | CounterBind::REMOTE_WRITE;
        if what.intersects(remote) && !self.info.caps.contains(Caps::RMA_EVENT) {
            return Err(Error::NotSupported(
                "counting what peers do (the endpoint has no FI_RMA_EVENT)",
            ));
        }
        self.add_dependency(&counter.inner.node)?;
        let counters = &mut self.counters;
        for (kind, name, slot) in [
            (CounterBind::SEND, "send counter", &mut counters.send),
            (CounterBind::RECV, "receive counter", &mut counters.recv),
            (CounterBind::READ, "read counter", &mut counters.read),
            (CounterBind::WRITE, "write counter", &mut counters.write),
            (
                CounterBind::REMOTE_READ,
                "remote read counter",
                &mut counters.remote_read,
            ),
            (
                CounterBind::REMOTE_WRITE,
                "remote write counter",
                &mut counters.remote_write,
            ),
        ] {
            if what.contains(kind) {
                set_once(name, slot, counter.inner.id)?;
            }
        }
        Ok(self)
    }

    /// Reports events to this queue instead of the domain's.
    ///
    /// # Errors
    /// [`Error::Invalid`] when one is bound; [`Error::WrongDomain`] when it is of another fabric;
    /// [`Error::Closed`].
    #[doc(alias = "fi_ep_bind")]
    pub fn bind_eq(mut self, eq: &EventQueue) -> Result<Self> {
        self.dependencies.push(
            eq.inner
                .dependency_for(&self.domain.inner.fabric, Class::Endpoint)?,
        );
        set_once("event queue", &mut self.eq, eq.inner.clone())?;
        eq.inner.attach_domain(&self.domain.inner);
        Ok(self)
    }

    /// Enables the endpoint (`fi_enable`): from now on peers reach it.
    ///
    /// # Errors
    /// [`Error::Unbound`] without an address vector, or without a shared receive context where the
    /// info asks for one; [`Error::AddressInUse`], [`Error::WrongScheme`]; [`Error::Invalid`] when
    /// a size of the info is out of bounds, or the address vector is not that of the shared receive
    /// context, or the type is `FI_EP_MSG`, which begins with [`connect`](Self::connect) or
    /// [`accept`](Self::accept); [`Error::Closed`]; [`Error::Os`].
    ///
    /// # Cancel safety
    /// Nothing is held across an await.
    #[doc(alias = "fi_enable")]
    pub async fn enable(self) -> Result<Endpoint<M>> {
        self.enable_sync()
    }

    pub(crate) fn owned_queues(mut self, own: OwnedQueues) -> Self {
        self.owned_queues = own;
        self
    }

    pub(crate) fn enable_sync(self) -> Result<Endpoint<M>> {
        if self.info.ep.ep_type == EpType::Msg {
            let why = "one of type FI_EP_MSG begins with `connect` or `accept`".into();
            return Err(Error::Invalid {
                what: "endpoint to be enabled",
                why,
            });
        }
        let av = self
            .av
            .clone()
            .ok_or(Error::Unbound(Class::AddressVector))?;
        if self
            .shared_rx
            .as_ref()
            .is_some_and(|shared| shared.av.id != av.id)
        {
            let why = "not that of the shared receive context".into();
            return Err(Error::Invalid {
                what: "address vector",
                why,
            });
        }
        let (node, bound) = self.bindings(av.id)?;
        let opened = self
            .domain
            .inner
            .core
            .open_endpoint(&self.info, self.address.as_ref(), bound);
        self.into_endpoint(node, opened?, av, None)
    }

    /// What the endpoint is called in the object tree, and what it is bound to.
    pub(super) fn bindings(&self, av: AvId) -> Result<(Arc<ObjectNode>, Bindings)> {
        if self.shared_rx.is_none() && self.info.ep.rx_ctx_cnt == SHARED_CONTEXT {
            return Err(Error::Unbound(Class::SharedReceive));
        }
        check_size("transmit size", self.info.tx.size)?;
        check_size("receive size", self.info.rx.size)?;
        let domain = &self.domain.inner;
        domain.node.check_open()?;
        let node = ObjectNode::new(Class::Endpoint, Some(domain.node.clone()));
        let bound = Bindings {
            object_id: node.id(),
            context: self.context,
            av,
            tx_cq: self.tx_cq,
            rx_cq: self.rx_cq,
            counters: self.counters,
            shared_rx: self.shared_rx.as_ref().map(|shared| shared.inner.id),
            eq: self.eq.as_ref().map(|eq| eq.state.clone()),
            tx_size: self.info.tx.size,
            rx_size: self.info.rx.size,
            max_msg_size: self.info.ep.max_msg_size,
            inject_size: self.info.tx.inject_size,
        };
        Ok((node, bound))
    }

    /// The endpoint that has been opened.
    pub(super) fn into_endpoint(
        self,
        node: Arc<ObjectNode>,
        (id, name): (EpId, Address),
        av: Arc<AvInner>,
        connection: Option<ConnectedPeer>,
    ) -> Result<Endpoint<M>> {
        let express = self.domain.inner.core.fast_path(id);
        let inner = EndpointInner {
            node,
            id,
            domain: self.domain.inner.state().clone(),
            name: Some(name),
            connected_peer: connection,
            caps: if self.shared_rx.is_some() {
                self.info.caps - Caps::RECV
            } else {
                self.info.caps
            },
            selective_tx: self.selective.contains(CqBind::TRANSMIT)
                && !self.info.tx.op_flags.contains(OpFlags::COMPLETION),
            selective_rx: self.selective.contains(CqBind::RECV)
                && !self.info.rx.op_flags.contains(OpFlags::COMPLETION),
            completion_level: CompletionLevel::from_flags(self.info.tx.op_flags),
            fast_path: express,
            info: self.info,
            shares_receives: self.shared_rx.is_some(),
        };
        let published = inner.node.publish();
        let on = Dependencies {
            domain: self.domain.inner,
            av,
            shared: self.shared_rx,
            holds: self.dependencies,
            own: self.owned_queues,
        };
        // Dropped, and with it closed, when the domain was closed meanwhile.
        let ep = Endpoint::opened(inner, on);
        published.map(|()| ep)
    }

    fn add_dependency(&mut self, node: &Arc<ObjectNode>) -> Result<()> {
        self.dependencies
            .push(dependency_on(&self.domain, node, Class::Endpoint)?);
        Ok(())
    }
}

/// Holds an object of this domain on behalf of one of class `by`.
pub(super) fn dependency_on<M: ThreadModel>(
    domain: &Domain<M>,
    node: &Arc<ObjectNode>,
    by: Class,
) -> Result<DependencyGuard> {
    if !node
        .parent()
        .is_some_and(|parent| Arc::ptr_eq(parent, &domain.inner.node))
    {
        return Err(Error::WrongDomain(node.class(), Class::Domain));
    }
    DependencyGuard::new(node, by)
}

/// Whether so many operations of one direction may be asked for.
pub(super) fn check_size(what: &'static str, size: usize) -> Result<()> {
    if (1..=MAX_QUEUE_SIZE).contains(&size) {
        return Ok(());
    }
    Err(Error::Invalid {
        what,
        why: format!("{size} is not within 1 to {MAX_QUEUE_SIZE}"),
    })
}

/// Whether endpoints of this kind have address vectors to be bound to.
pub(super) fn check_av_allowed(info: &Info) -> Result<()> {
    if info.ep.ep_type == EpType::Msg {
        return Err(Error::NotSupported(
            "address vectors of connected endpoints, which have one peer each",
        ));
    }
    Ok(())
}

pub(crate) fn set_once<T>(what: &'static str, slot: &mut Option<T>, value: T) -> Result<()> {
    if slot.is_some() {
        return Err(Error::Invalid {
            what,
            why: "one is bound already".into(),
        });
    }
    *slot = Some(value);
    Ok(())
}
