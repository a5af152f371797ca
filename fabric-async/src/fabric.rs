//! The fabric: the root of the object tree.

use std::fmt;
use std::sync::Arc;

use fabric_core::info::{FabricAttr, Hints, Info, NoMatch, Scope};
use fabric_core::tree::{Children, Class, ObjectNode};
use fabric_core::{Result, info};
use fabric_reactor::{EngineTransport, registry};

use crate::close::{CloseError, close_object};
use crate::domain::{Domain, DomainBuilder};
use crate::eq::EventQueue;

/// A fabric (`fid_fabric`): domains that can reach each other, and the event queues they report to.
///
/// Cheap to clone. Children keep their fabric open; [`Fabric::close`] fails while there are any.
#[derive(Clone)]
#[doc(alias = "fid_fabric")]
pub struct Fabric {
    pub(crate) inner: Arc<FabricInner>,
}

pub(crate) struct FabricInner {
    pub(crate) node: Arc<ObjectNode>,
    pub(crate) transport: &'static EngineTransport,
    attr: FabricAttr,
}

impl Fabric {
    /// Opens the fabric that `info` describes (`fi_fabric`).
    ///
    /// # Errors
    /// [`Error::UnknownProvider`](crate::Error::UnknownProvider), with the names of the providers
    /// that exist.
    #[doc(alias = "fi_fabric")]
    pub fn open(info: &Info) -> Result<Self> {
        let transport = registry::by_name(&info.fabric.provider)?;
        let node = ObjectNode::new(Class::Fabric, None);
        Ok(Self {
            inner: Arc::new(FabricInner {
                node,
                transport,
                attr: info.fabric.clone(),
            }),
        })
    }

    /// Opens a domain with default options (`fi_domain`). [`Fabric::domain_builder`] sets others.
    ///
    /// # Errors
    /// As [`DomainBuilder::open`].
    #[doc(alias = "fi_domain")]
    pub fn domain(&self, info: &Info) -> Result<Domain> {
        self.domain_builder(info).open()
    }

    /// Returns a builder for a domain with options, from `info` (`fi_domain2`).
    #[doc(alias = "fi_domain2")]
    pub fn domain_builder<'a>(&'a self, info: &'a Info) -> DomainBuilder<'a> {
        DomainBuilder::new(self, info)
    }

    /// Opens an event queue for up to `capacity` events (`fi_eq_open`).
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when the capacity is 0;
    /// [`Error::Closed`](crate::Error::Closed).
    #[doc(alias = "fi_eq_open")]
    pub fn event_queue(&self, capacity: usize) -> Result<EventQueue> {
        EventQueue::open(self, capacity, 0)
    }

    /// Opens an event queue, as [`event_queue`](Self::event_queue), with the context value of the
    /// events that are about the queue itself: [`EventKind::Overrun`](crate::EventKind::Overrun).
    ///
    /// ```
    /// use fabric_async::{Fabric, Hints, discover};
    /// let info = discover(&Hints::new().provider("shm"))?.swap_remove(0);
    /// let eq = Fabric::open(&info)?.event_queue_with_context(64, 7)?;
    /// assert_eq!(eq.context(), 7);
    /// # Ok::<_, fabric_async::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`event_queue`](Self::event_queue).
    #[doc(alias = "fi_eq_open")]
    pub fn event_queue_with_context(&self, capacity: usize, context: u64) -> Result<EventQueue> {
        EventQueue::open(self, capacity, context)
    }

    /// Returns the attributes of the fabric: names and versions.
    #[must_use]
    pub fn attr(&self) -> &FabricAttr {
        &self.inner.attr
    }

    /// Returns the id of the fabric, unique among the objects of this process.
    #[must_use]
    #[doc(alias = "fid")]
    pub fn id(&self) -> u64 {
        self.inner.node.id()
    }

    /// Returns the class of the object, [`Class::Fabric`].
    #[must_use]
    #[doc(alias = "fclass")]
    pub fn class(&self) -> Class {
        self.inner.node.class()
    }

    /// Returns the number of open children, by class.
    #[must_use]
    pub fn children(&self) -> Children {
        self.inner.node.children()
    }

    /// Closes the fabric, for all its clones (`fi_close`).
    ///
    /// # Errors
    /// [`Error::Busy`](crate::Error::Busy) while domains, passive endpoints or event queues are
    /// open; [`Error::Closed`](crate::Error::Closed) when the fabric was closed before.
    #[doc(alias = "fi_close")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        close_object(self, |fabric| &fabric.inner.node).map(drop)
    }

    /// Checks that the fabric is open, that `info` is of this fabric and that the provider serves
    /// every value of `info`: the first step of creating a domain or an endpoint.
    pub(crate) fn check_info(&self, info: &Info) -> Result<()> {
        self.inner.node.check_open()?;
        info::check_domain((self.inner.transport.name(), &self.inner.attr.name), info)?;
        let mut mismatches = Vec::new();
        for offer in self.inner.transport.offers(&Hints::from(info))? {
            match info::check_passed_back(info, &offer) {
                Ok(()) => return Ok(()),
                Err(mismatch) => mismatches.push(mismatch),
            }
        }
        Err(NoMatch { mismatches }.into())
    }
}

impl Scope for Fabric {
    fn restrict(&self, hints: Hints) -> Hints {
        let FabricAttr { name, provider, .. } = &self.inner.attr;
        hints.provider(provider).fabric_name(name)
    }
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric")
            .field("class", &self.inner.node.class())
            .field("id", &self.inner.node.id())
            .field("provider", &self.inner.attr.provider)
            .field("name", &self.inner.attr.name)
            .field("children", &format_args!("{}", self.children()))
            .finish()
    }
}
