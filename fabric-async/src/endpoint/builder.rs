//! The builder of endpoints: bind, then enable or connect.

use std::fmt;
use std::sync::{Arc, Mutex};

use fabric_core::completion::CompletionLevel;
use fabric_core::flags::{Caps, CounterBind, CqBind, MrMode, OpFlags};
use fabric_core::info::{EpType, Info, SHARED_CONTEXT};
use fabric_core::transport::EpId;
use fabric_core::tree::{Class, DependencyGuard, ObjectNode};
use fabric_core::{Address, Error, Result};
use fabric_reactor::{Bindings, CounterBindings, CqId};

use super::shared_rx::check_shared_rx_info;
use super::{Endpoint, OpenEndpoint, OwnedQueues, SharedRxContext};
use crate::av::{AddressVector, AvInner, ToAddress};
use crate::close::{dependency_on, is_child_of};
use crate::counter::Counter;
use crate::cq::CompletionQueue;
use crate::domain::Domain;
use crate::endpoint_inner::{BUFFER_DIRECTIONS, EndpointInner};
use crate::eq::{EventQueue, EventQueueInner};
use crate::thread_model::{Shared, ThreadModel};

/// Largest transmit or receive size, in operations.
const MAX_QUEUE_SIZE: usize = 1 << 16;

/// An endpoint that is not enabled yet (`fi_endpoint` before `fi_enable`).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
/// use fabric_async::{CqBind, Fabric, Hints, discover};
/// let info = discover(&Hints::new().provider("shm"))?.swap_remove(0);
/// let domain = Fabric::open(&info)?.domain(&info)?;
/// let (cq, av) = (domain.completion_queue(256)?, domain.address_vector()?);
/// let ep = domain.endpoint(&info)?.bind_cq(&cq, CqBind::TRANSMIT | CqBind::RECV)?;
/// let ep = ep.bind_av(&av)?.enable()?;
/// # drop(ep); Ok(()) }
/// ```
#[must_use = "an endpoint does nothing before it is enabled"]
pub struct EndpointBuilder<M: ThreadModel = Shared> {
    pub(super) domain: Domain<M>,
    pub(super) info: Info,
    pub(super) address: Option<Address>,
    context: u64,
    pub(super) av: Option<Arc<AvInner>>,
    /// The open shared receive context.
    shared_rx: Option<Arc<OpenEndpoint<M>>>,
    tx_cq: Option<CqId>,
    rx_cq: Option<CqId>,
    /// The directions that are bound for selective completion.
    selective: CqBind,
    counters: CounterBindings,
    eq: Option<Arc<EventQueueInner>>,
    dependencies: Vec<DependencyGuard>,
    owned_queues: OwnedQueues<M>,
    /// The class of the object: an endpoint, or a shared receive context.
    class: Class,
}

impl<M: ThreadModel> EndpointBuilder<M> {
    pub(crate) fn new(domain: Domain<M>, info: Info, class: Class) -> Self {
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
            counters: CounterBindings::default(),
            eq: None,
            dependencies: Vec::new(),
            owned_queues: OwnedQueues::NONE,
            class,
        }
    }

    /// Sets the address of the endpoint (`fi_setname`); a free one by default.
    ///
    /// # Errors
    /// [`Error::BadAddress`], also for an address of an IP version that the
    /// [address format](crate::info::AddrFormat) of the info excludes.
    #[doc(alias = "fi_setname")]
    pub fn name(mut self, at: impl ToAddress) -> Result<Self> {
        let address = self.domain.inner.address(at)?;
        self.info.addr_format.check(&address)?;
        self.address = Some(address);
        Ok(self)
    }

    /// Sets the context value of the endpoint's events.
    pub fn context(mut self, context: u64) -> Self {
        self.context = context;
        self
    }

    /// Binds a completion queue for sends, receives or both (`fi_ep_bind`).
    ///
    /// With [`SELECTIVE_COMPLETION`](CqBind::SELECTIVE_COMPLETION), a successful operation posted
    /// to the queue is reported only if its request [asks](crate::Request::completion) for it,
    /// or if all operations do by default ([`OpFlags::COMPLETION`] in the hints). A failed
    /// operation is always reported. The buffer of an unreported operation is dropped when it ends;
    /// counters count it.
    ///
    /// # Errors
    /// [`Error::BadFlags`] without a direction; [`Error::Invalid`] when a queue is bound for the
    /// direction already; [`Error::WrongParent`] when the queue is of another domain;
    /// [`Error::Closed`].
    #[doc(alias = "fi_ep_bind")]
    pub fn bind_cq(mut self, cq: &CompletionQueue<M>, directions: CqBind) -> Result<Self> {
        if !directions.intersects(CqBind::TRANSMIT | CqBind::RECV) {
            return Err(Error::BadFlags {
                what: "bind_cq",
                flags: "neither TRANSMIT nor RECV is set".into(),
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

    /// Binds the address vector of the peers to send to (`fi_ep_bind`). Required, except for
    /// connected endpoints.
    ///
    /// # Errors
    /// [`Error::Invalid`] when a vector is bound already; [`Error::NotSupported`] for a connected
    /// endpoint; [`Error::WrongParent`]; [`Error::Closed`].
    #[doc(alias = "fi_ep_bind")]
    pub fn bind_av<N: ThreadModel>(mut self, av: &AddressVector<N>) -> Result<Self> {
        check_av_allowed(&self.info)?;
        // A resource domain also uses the vectors of its domain.
        let domain = &self.domain.inner;
        let owner = domain.parent().map(|parent| &parent.node);
        let owner = owner.filter(|node| is_child_of(&av.inner.node, node));
        let owner = owner.unwrap_or(&domain.node).clone();
        let guard = dependency_on(&av.inner.node, &owner, self.class)?;
        self.dependencies.push(guard);
        set_once("address vector", &mut self.av, av.inner.clone())?;
        Ok(self)
    }

    /// Binds a shared receive context (`fi_ep_bind`): receives for this endpoint are posted to the
    /// context.
    ///
    /// The info must have `ep.rx_ctx_cnt` [`SHARED_CONTEXT`](crate::info::SHARED_CONTEXT) (see
    /// [`Hints::ep_rx_ctx_cnt`](crate::Hints::ep_rx_ctx_cnt)) and the endpoint type of the context.
    /// The address vector must be that of the context; connected endpoints have none.
    ///
    /// A completion queue that is [bound](Self::bind_cq) for receives gets entries for [writes with
    /// data](crate::Request::data), and none for messages. Counters count the messages that
    /// arrive at this endpoint.
    ///
    /// # Errors
    /// [`Error::Invalid`] when a context is bound already, or the info is not for shared contexts,
    /// or its type differs from the context's; [`Error::WrongParent`] when the context is of
    /// another domain; [`Error::Closed`].
    #[doc(alias = "fi_ep_bind")]
    pub fn bind_shared_rx(mut self, shared: &SharedRxContext<M>) -> Result<Self> {
        check_shared_rx_info(&self.info)?;
        let (ep_type, shared_type) = (self.info.ep.ep_type, shared.info().ep.ep_type);
        if ep_type != shared_type {
            let why =
                format!("the context is for ep_type {shared_type:?}, the endpoint has {ep_type:?}");
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

    /// Binds a counter for these kinds of operations (`fi_ep_bind`).
    ///
    /// Counting remote accesses (`REMOTE_READ`, `REMOTE_WRITE`) needs an info with
    /// [`Caps::RMA_EVENT`](fabric_core::flags::Caps::RMA_EVENT), and costs peers a record for each
    /// operation.
    ///
    /// # Errors
    /// [`Error::BadFlags`] for no kind; [`Error::NotSupported`] for the remote kinds without
    /// `RMA_EVENT`; [`Error::Invalid`] when a counter is bound for a kind already;
    /// [`Error::WrongParent`]; [`Error::Closed`].
    #[doc(alias = "fi_ep_bind")]
    pub fn bind_counter(mut self, counter: &Counter<M>, what: CounterBind) -> Result<Self> {
        if what.is_empty() {
            return Err(Error::BadFlags {
                what: "bind_counter",
                flags: "no flags are set".into(),
            });
        }
        let remote = CounterBind::REMOTE_READ | CounterBind::REMOTE_WRITE;
        if what.intersects(remote) && !self.info.caps.contains(Caps::RMA_EVENT) {
            return Err(Error::NotSupported(
                "counters of remote accesses (the endpoint has no FI_RMA_EVENT)",
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

    /// Binds an event queue, which replaces the domain's (`fi_ep_bind`).
    ///
    /// # Errors
    /// [`Error::Invalid`] when a queue is bound already; [`Error::WrongParent`] when the queue is
    /// of another fabric; [`Error::Closed`].
    #[doc(alias = "fi_ep_bind")]
    pub fn bind_eq(mut self, eq: &EventQueue) -> Result<Self> {
        let fabric = &self.domain.inner.fabric.inner;
        let guard = dependency_on(&eq.inner.node, &fabric.node, Class::Endpoint)?;
        self.dependencies.push(guard);
        set_once("event queue", &mut self.eq, eq.inner.clone())?;
        eq.inner.attach_domain(&self.domain.inner);
        Ok(self)
    }

    /// Enables the endpoint (`fi_enable`): peers reach it from now on.
    ///
    /// # Errors
    /// [`Error::Unbound`] without an address vector, or without a shared receive context where the
    /// info asks for one; [`Error::AddressInUse`], [`Error::WrongScheme`];
    /// [`Error::AddressNotLocal`] when no interface has the address (any more); [`Error::Invalid`]
    /// when a size of the info is out of range, or the address vector is not that of the shared
    /// receive context, or inserts peers by itself for another domain or resource domain, or the
    /// type is `FI_EP_MSG`, which is opened with
    /// [`connect`](Self::connect) or [`accept`](Self::accept); [`Error::TooMany`] when the domain
    /// has `ep_cnt` endpoints; [`Error::Closed`]; [`Error::Os`].
    #[doc(alias = "fi_enable")]
    pub fn enable(self) -> Result<Endpoint<M>> {
        if self.info.ep.ep_type == EpType::Msg {
            let why =
                "FI_EP_MSG endpoints are opened with connect() or accept(), not enable()".into();
            return Err(Error::Invalid {
                what: "endpoint type",
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
            .is_some_and(|shared| !Arc::ptr_eq(&shared.av, &av))
        {
            let why = "it is not the address vector of the shared receive context".into();
            return Err(Error::Invalid {
                what: "address vector",
                why,
            });
        }
        let (node, bound) = self.endpoint_bindings(&av)?;
        let engine = &self.domain.inner.engine;
        let (id, name) = engine.open_endpoint(&self.info, self.address.as_ref(), bound)?;
        let tx_caps = self.info.caps;
        self.into_endpoint(node, id, Some(name), av, tx_caps)
    }

    /// Sets the queues that the application takes from the endpoint.
    pub(crate) fn owned_queues(mut self, owned_queues: OwnedQueues<M>) -> Self {
        self.owned_queues = owned_queues;
        self
    }

    /// Returns the [`bindings`](Self::bindings) of an endpoint.
    pub(super) fn endpoint_bindings(&self, av: &AvInner) -> Result<(Arc<ObjectNode>, Bindings)> {
        if self.shared_rx.is_none() && self.info.ep.rx_ctx_cnt == SHARED_CONTEXT {
            return Err(Error::Unbound(Class::SharedReceive));
        }
        check_size("transmit size", self.info.tx.size)?;
        self.bindings(av)
    }

    /// Returns the object tree node of the endpoint or shared receive context, and its bindings for
    /// the engine.
    pub(super) fn bindings(&self, av: &AvInner) -> Result<(Arc<ObjectNode>, Bindings)> {
        check_size("receive size", self.info.rx.size)?;
        let domain = &self.domain.inner;
        domain.node.check_room(Class::Endpoint)?;
        let node = ObjectNode::new(self.class, Some(domain.node.clone()));
        let bound = Bindings {
            object_id: node.id(),
            context: self.context,
            av: av.id_in(domain)?,
            tx_cq: self.tx_cq,
            rx_cq: self.rx_cq,
            counters: self.counters,
            shared_rx: self.shared_rx.as_ref().map(|shared| shared.inner.id),
            eq: self.eq.as_ref().map(|eq| eq.state.clone()),
            tx_size: self.info.tx.size,
            rx_size: self.info.rx.size,
            max_msg_size: self.info.ep.max_msg_size,
            inject_size: self.info.tx.inject_size,
            source_err: self.info.rx.caps.contains(Caps::SOURCE_ERR),
        };
        Ok((node, bound))
    }

    /// Creates the handle of an endpoint or shared receive context that the engine has opened with
    /// this id. `tx_caps` are its capabilities for transmit operations.
    pub(super) fn into_endpoint(
        self,
        node: Arc<ObjectNode>,
        id: EpId,
        name: Option<Address>,
        av: Arc<AvInner>,
        mut tx_caps: Caps,
    ) -> Result<Endpoint<M>> {
        let domain = self.domain.inner.clone();
        let mut caps = self.info.caps;
        if self.shared_rx.is_some() {
            caps -= Caps::RECV;
        }
        let mut fast_path = domain.engine.fast_path(id);
        let mr_mode = domain.info.domain.mr_mode;
        let needs_mapped_keys = mr_mode.contains(MrMode::RAW);
        if needs_mapped_keys {
            fast_path = None;
        }
        if mr_mode.contains(MrMode::LOCAL) {
            caps -= BUFFER_DIRECTIONS;
            tx_caps -= BUFFER_DIRECTIONS;
            fast_path = None;
        }
        let inner = Arc::new(EndpointInner {
            node,
            id,
            domain: domain.state().clone(),
            name,
            caps,
            tx_caps,
            selective_tx: self.selective.contains(CqBind::TRANSMIT)
                && !self.info.tx.op_flags.contains(OpFlags::COMPLETION),
            selective_rx: self.selective.contains(CqBind::RECV)
                && !self.info.rx.op_flags.contains(OpFlags::COMPLETION),
            completion_level: CompletionLevel::from_flags(self.info.tx.op_flags),
            fast_path,
            needs_mapped_keys,
            info: self.info,
            context: self.context,
            shares_receives: self.shared_rx.is_some(),
        });
        let attached = inner.node.attach_to_parent();
        let open = OpenEndpoint {
            inner: inner.clone(),
            _domain: domain,
            av,
            _shared_rx: self.shared_rx,
            guards: Mutex::new(self.dependencies),
            owned_queues: Mutex::new(self.owned_queues),
        };
        // If the domain was closed meanwhile, the drop of `ep` closes the endpoint.
        let ep = Endpoint {
            inner,
            open: Arc::new(open),
            domain: self.domain,
        };
        attached.map(|()| ep)
    }

    /// Keeps a bound object of this domain open until the endpoint is closed.
    fn add_dependency(&mut self, node: &Arc<ObjectNode>) -> Result<()> {
        let guard = dependency_on(node, &self.domain.inner.node, self.class)?;
        self.dependencies.push(guard);
        Ok(())
    }
}

/// Checks a transmit or receive size in operations. `what` names the size.
fn check_size(what: &'static str, size: usize) -> Result<()> {
    if (1..=MAX_QUEUE_SIZE).contains(&size) {
        return Ok(());
    }
    Err(Error::Invalid {
        what,
        why: format!("{size} is not within 1 to {MAX_QUEUE_SIZE}"),
    })
}

/// Checks that endpoints of this info are connection-oriented (`FI_EP_MSG`).
///
/// # Errors
/// [`Error::Invalid`] for any other type.
pub(crate) fn check_msg_type(info: &Info) -> Result<()> {
    let ep_type = info.ep.ep_type;
    if ep_type == EpType::Msg {
        return Ok(());
    }
    Err(Error::Invalid {
        what: "endpoint type",
        why: format!("the info has ep_type {ep_type:?}, expected Msg (FI_EP_MSG)"),
    })
}

/// Checks that endpoints of this type have address vectors.
fn check_av_allowed(info: &Info) -> Result<()> {
    if info.ep.ep_type == EpType::Msg {
        return Err(Error::NotSupported(
            "binding an address vector to a connected endpoint (FI_EP_MSG)",
        ));
    }
    Ok(())
}

/// Sets a binding that can be set once. `what` names the bound object.
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

impl<M: ThreadModel> fmt::Debug for EndpointBuilder<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointBuilder")
            .field("domain", &self.domain.inner.node.id())
            .field("address", &self.address)
            .field("context", &self.context)
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}
