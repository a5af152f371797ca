//! Resource domains: parts of a domain that two threads can use at the same time.
//!
//! A domain has one lock, one driver and, for `tcp`, one io_uring instance. Threads that use one
//! domain wait for its lock. A *resource domain* is a part of a domain with its own lock, its
//! own driver or progress thread, and, over `tcp`, its own io_uring instance. Endpoints, completion
//! queues, counters and shared receive contexts are opened in it, by the same calls as in a domain.
//! A program written for `FI_THREAD_COMPLETION` opens one for each of its threads. It corresponds
//! to the resource domain of the experimental verbs (`ibv_exp_create_res_domain`).
//!
//! [`Domain::resource_domain`] returns the builder. The builder opens a [`Domain`] of class
//! [`ResourceDomain`](crate::Class::ResourceDomain), which is a child of the *parent domain*: close
//! the resource domain first. What an endpoint of a resource domain uses:
//!
//! | object | opened in |
//! |---|---|
//! | completion queue, counter, shared receive context | the same resource domain |
//! | address vector | the same resource domain, or the parent domain |
//! | address vector that [inserts peers by itself](Domain::auto_insert_address_vector) | the same resource domain |
//! | memory region that peers access through the endpoint | any resource domain, or the parent domain |
//! | loan that is sent without a copy | the same resource domain |
//! | event queue | the fabric |
//!
//! Binding another object fails with [`Error::WrongParent`]; an auto-insert vector of the parent
//! domain is refused by `enable`, with [`Error::Invalid`]. Other loans are copied. A handle of an
//! address vector's peer ([`FiAddr`](crate::FiAddr)) is valid for all endpoints that bind the
//! vector. A resource domain is bound to the event queue that its parent domain has when the
//! resource domain is opened, and cannot be bound to another one. Resource domains of model
//! [`Shared`] register memory as the parent domain does, others synchronously. The limits `ep_cnt`,
//! `cq_cnt`, `cntr_cnt` and `mr_cnt` apply to the parent domain and all its resource domains
//! together. A resource domain cannot contain another one.
//!
//! A resource domain may have another [thread model](crate::guide::threads), [`MessageModel`] and
//! wait policy than the parent domain. The progress mode is that of the parent domain.
//!
//! A resource domain of model [`Pinned`] belongs to the thread that opens it. Move clones of the
//! parent domain's `Shared` handles to that thread, and open the resource domain there. If another
//! thread removes an address or closes a region, the resource domain sees that at its next pass, or
//! at the owner's next call that is not a send or write to a connected peer. Calls on objects that
//! a parent domain of model [`Serial`](crate::thread_model::Serial) owns, such as address vectors,
//! are uses of the parent domain. A counter that is bound to a region of the parent domain does not
//! count accesses through endpoints of resource domains: a wait for it does not end. Bind the
//! counter to the endpoint
//! ([`EndpointBuilder::bind_counter`](crate::EndpointBuilder::bind_counter)), or open region and
//! counter in the resource domain of the endpoint.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::thread_model::Pinned;
//! use fabric_async::{CqBind, Fabric, Hints, discover};
//! let info = discover(&Hints::new().provider("shm"))?.swap_remove(0);
//! let domain = Fabric::open(&info)?.domain(&info)?;
//! let av = domain.address_vector()?;
//!
//! // A queue and an endpoint that this thread alone uses.
//! let own = domain.resource_domain().thread_model::<Pinned>().open()?;
//! let cq = own.completion_queue(64)?;
//! let ep = own.endpoint(&info)?.bind_cq(&cq, CqBind::TRANSMIT | CqBind::RECV)?;
//! let ep = ep.bind_av(&av)?.enable()?;
//! let me = av.insert(ep.name())?;
//! let (sent, got) = tokio::join!(ep.send(me, "hello"), ep.recv());
//! sent?;
//! assert_eq!(&got?[..], b"hello");
//! assert_eq!(domain.children().to_string(), "1 address vector, 1 resource domain");
//! # Ok(()) }
//! ```

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use fabric_core::info::{Info, Threading};
pub use fabric_core::transport::MessageModel;
use fabric_core::transport::{ModelSettings, ThreadMode, WaitPolicy};
use fabric_core::tree::ObjectNode;
use fabric_core::{Error, Result};

use crate::domain::Domain;
use crate::domain_inner::{DomainCore, DomainInner, DomainSetup};
use crate::driver::ManualDriver;
use crate::thread_model::{self, Pinned, Shared, ThreadModel};

/// A builder of a resource domain, with optional attributes. The defaults are those of the domain;
/// if the domain has [`MessageModel::ForceLowLatency`], whose core is for the domain alone, the
/// default is [`MessageModel::LowLatency`].
#[must_use = "nothing is opened before `open`"]
pub struct ResourceDomainBuilder<'a, M: ThreadModel = Shared> {
    domain: &'a Arc<DomainInner>,
    info: Info,
    setup: DomainSetup,
    context: u64,
    model: PhantomData<M>,
}

impl<'a, M: ThreadModel> ResourceDomainBuilder<'a, M> {
    pub(crate) fn new(domain: &'a Arc<DomainInner>) -> Self {
        let mut setup = domain.setup().clone();
        let model = &mut setup.config.message_model;
        *model = ModelSettings::resource_domain_default(*model);
        if setup.driver == ManualDriver::LocalTask {
            setup.driver = ManualDriver::Task;
        }
        Self {
            domain,
            info: domain.info.clone(),
            setup,
            context: domain.context,
            model: PhantomData,
        }
    }

    /// Sets the thread model (`IBV_EXP_RES_DOMAIN_THREAD_MODEL`). The resource domain of a domain
    /// of model [`Pinned`] is `Pinned`, too.
    ///
    /// The parent domain needs no [`Threading::Domain`] for a resource domain of model `Pinned` or
    /// [`Serial`](crate::thread_model::Serial).
    #[doc(alias = "IBV_EXP_RES_DOMAIN_THREAD_MODEL")]
    pub fn thread_model<N: ThreadModel>(self) -> ResourceDomainBuilder<'a, N> {
        let (mut info, mut setup) = (self.info, self.setup);
        setup.config.thread_mode = thread_model::mode::<N>();
        info.domain.threading = match setup.config.thread_mode {
            ThreadMode::Shared => self.domain.info.domain.threading,
            ThreadMode::Serial | ThreadMode::Pinned => Threading::Domain,
        };
        ResourceDomainBuilder {
            domain: self.domain,
            info,
            setup,
            context: self.context,
            model: PhantomData,
        }
    }

    /// Sets what the resource domain is optimized for (`IBV_EXP_RES_DOMAIN_MSG_MODEL`).
    #[doc(alias = "IBV_EXP_RES_DOMAIN_MSG_MODEL")]
    pub fn message_model(mut self, model: MessageModel) -> Self {
        self.setup.config.message_model = model;
        self
    }

    /// Sets the wait policy.
    pub fn wait_policy(mut self, policy: WaitPolicy) -> Self {
        self.setup.config.wait_policy = policy;
        self
    }

    /// Sets the context value of the resource domain's events.
    pub fn context(mut self, context: u64) -> Self {
        self.context = context;
        self
    }

    /// Opens the resource domain (`ibv_exp_create_res_domain`).
    ///
    /// The resource domain has a driver of its own: a task of the runtime of the calling thread, a
    /// thread under automatic progress, or an event loop of the program. The thread of the parent
    /// domain may block, as in `join`, while no endpoint of the parent domain needs progress.
    ///
    /// # Errors
    /// [`Error::Closed`] when the parent domain is closed; [`Error::Invalid`] when the parent is a
    /// resource domain, for another model than `Pinned` in a domain of model `Pinned`, and for
    /// `Pinned` with automatic progress;
    /// [`Error::Runtime`] and [`Error::Os`], as
    /// [`DomainBuilder::open`](crate::DomainBuilder::open); [`Error::NotReserved`] with
    /// [`MessageModel::ForceLowLatency`].
    #[doc(alias = "ibv_exp_create_res_domain")]
    pub fn open(self) -> Result<Domain<M>> {
        let (domain, info) = (self.domain, self.info);
        let DomainSetup { config, driver } = &self.setup;
        domain.node.check_open()?;
        let refuse = |why: &str| {
            let why = why.into();
            Err(Error::Invalid {
                what: "resource domain",
                why,
            })
        };
        if domain.parent().is_some() {
            return refuse(
                "a resource domain cannot contain another one; open it in the parent domain",
            );
        }
        if domain.setup().config.thread_mode == ThreadMode::Pinned
            && config.thread_mode != ThreadMode::Pinned
        {
            return refuse("the domain has model Pinned, so its resource domains have it, too");
        }
        thread_model::check_info(config.thread_mode, &info)?;
        let provider = domain.fabric.inner.transport;
        let node = ObjectNode::resource_domain(&domain.node);
        let name = format!("{}-{}", provider.name(), node.id());
        let engine = domain.engine.open_resource_domain(
            provider,
            &info,
            config,
            (driver.kind(&info)?, &name),
        )?;
        driver.spawn(&engine, config.thread_mode)?;
        node.attach_to_parent()?;
        let state = DomainCore {
            node,
            engine,
            fabric: domain.fabric.clone(),
            info,
            context: self.context,
        };
        let inner = DomainInner::new(state, self.setup, Some(domain.clone()));
        let inner = Arc::new(inner);
        inner.inherit_eq(domain)?;
        Ok(Domain::from_inner(inner))
    }
}

impl ResourceDomainBuilder<'_, Pinned> {
    /// Opens the resource domain, as [`open`](ResourceDomainBuilder::open), with a driver that is a
    /// task of the [`LocalSet`](tokio::task::LocalSet) or
    /// [`LocalRuntime`](tokio::runtime::LocalRuntime) in which this call runs.
    ///
    /// # Errors
    /// As [`open`](ResourceDomainBuilder::open).
    ///
    /// # Panics
    /// Outside of a `LocalSet` and `LocalRuntime`.
    pub fn open_local(mut self) -> Result<Domain<Pinned>> {
        if self.setup.driver == ManualDriver::Task {
            self.setup.driver = ManualDriver::LocalTask;
        }
        self.open()
    }
}

impl<M: ThreadModel> fmt::Debug for ResourceDomainBuilder<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResourceDomainBuilder")
            .field("domain", &self.domain.node.id())
            .field("setup", &self.setup)
            .finish_non_exhaustive()
    }
}
