//! The state behind the handles of a domain.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use fabric_core::buf::DeviceCopy;
use fabric_core::info::Info;
use fabric_core::transport::{DomainConfig, OpKey, ThreadMode};
use fabric_core::tree::{Class, DependencyGuard, ObjectNode};
use fabric_core::{Address, Error, Result, Scheme};
use fabric_reactor::{self as reactor, DomainEq, EqState};

use crate::av::ToAddress;
use crate::driver::ManualDriver;
use crate::endpoint::set_once;
use crate::eq::EventQueueInner;
use crate::fabric::Fabric;
use crate::open_domains;

/// Keeps a domain open: its handles and its children share one `DomainInner`. The domain closes
/// when the last reference is dropped.
pub(crate) struct DomainInner {
    state: Arc<DomainCore>,
    /// The default event queue of the domain and its endpoints.
    eq: Mutex<Option<EqBinding>>,
    setup: DomainSetup,
    /// The domain of a resource domain.
    parent: Option<Arc<DomainInner>>,
    /// The functions that copy memory of devices; of a resource domain, those of its domain.
    device_copy: OnceLock<Arc<dyn DeviceCopy>>,
}

/// The options with which a domain was opened: the defaults of its resource domains.
#[derive(Clone, Debug)]
pub(crate) struct DomainSetup {
    pub(crate) config: DomainConfig,
    pub(crate) driver: ManualDriver,
}

/// The event queue that a domain is bound to, which cannot be closed before the domain.
struct EqBinding {
    queue: Arc<EventQueueInner>,
    registration: RegistrationMode,
    _guard: DependencyGuard,
}

/// How a domain registers memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RegistrationMode {
    /// Registering calls return when the region can be accessed.
    Synchronous,
    /// `FI_REG_MR`.
    Asynchronous,
}

/// The state of an open or closed domain. Operations refer to a `DomainCore`, because the engine
/// stores their results until they are taken.
pub(crate) struct DomainCore {
    pub(crate) node: Arc<ObjectNode>,
    /// The domain in the crate `reactor`: its engine and transport.
    pub(crate) engine: reactor::DomainHandle,
    pub(crate) fabric: Fabric,
    pub(crate) info: Info,
    pub(crate) context: u64,
}

impl DomainInner {
    pub(crate) fn new(
        state: DomainCore,
        setup: DomainSetup,
        parent: Option<Arc<DomainInner>>,
    ) -> Self {
        Self {
            state: Arc::new(state),
            eq: Mutex::new(None),
            setup,
            parent,
            device_copy: OnceLock::new(),
        }
    }

    /// Returns the functions that copy memory of devices.
    pub(crate) fn device_copy(&self) -> Option<&Arc<dyn DeviceCopy>> {
        let own = self.parent.as_deref().unwrap_or(self);
        own.device_copy.get()
    }

    /// Sets the functions that copy memory of devices. Returns whether there were none before.
    pub(crate) fn set_device_copy(&self, copy: Arc<dyn DeviceCopy>) -> bool {
        self.device_copy.set(copy).is_ok()
    }

    pub(crate) fn setup(&self) -> &DomainSetup {
        &self.setup
    }

    /// Returns the domain of a resource domain.
    pub(crate) fn parent(&self) -> Option<&Arc<DomainInner>> {
        self.parent.as_ref()
    }

    /// Returns the state that operations refer to.
    pub(crate) fn state(&self) -> &Arc<DomainCore> {
        &self.state
    }

    /// Binds the default event queue, which `guard` keeps open.
    pub(crate) fn bind_eq(
        &self,
        queue: &Arc<EventQueueInner>,
        registration: RegistrationMode,
        guard: DependencyGuard,
    ) -> Result<()> {
        let mut bound = self.lock_eq();
        // Under the lock: a domain that is closed later releases this binding.
        self.node.check_open()?;
        let binding = EqBinding {
            queue: queue.clone(),
            registration,
            _guard: guard,
        };
        set_once("event queue", &mut bound, binding)?;
        self.engine.set_domain_eq(DomainEq {
            queue: queue.state.clone(),
            object_id: self.node.id(),
            context: self.context,
        });
        Ok(())
    }

    /// Binds the event queue of the domain of this resource domain, if it is bound. Only domains of
    /// model `Shared` register memory asynchronously.
    pub(crate) fn inherit_eq(self: &Arc<Self>, from: &DomainInner) -> Result<()> {
        let (queue, registration) = match &*from.lock_eq() {
            None => return Ok(()),
            Some(bound) if self.setup.config.thread_mode == ThreadMode::Shared => {
                (bound.queue.clone(), bound.registration)
            }
            Some(bound) => (bound.queue.clone(), RegistrationMode::Synchronous),
        };
        let guard = DependencyGuard::new(&queue.node, Class::ResourceDomain)?;
        self.bind_eq(&queue, registration, guard)?;
        queue.attach_domain(self);
        Ok(())
    }

    /// Releases the event queue, from which the events of the domain are removed.
    pub(crate) fn unbind_eq(&self) {
        let mut bound = self.lock_eq();
        self.engine.unset_domain_eq();
        *bound = None;
    }

    /// Checks that the domain is open, has regions, and registers memory synchronously.
    pub(crate) fn check_registers_now(&self) -> Result<()> {
        self.check_has_regions()?;
        match &*self.lock_eq() {
            Some(bound) if bound.registration == RegistrationMode::Asynchronous => {
                Err(Error::Invalid {
                    what: "synchronous registration",
                    why: "the domain is bound with FI_REG_MR; use alloc_async, alloc_from_async, \
                          register_async or register_memfd_async"
                        .into(),
                })
            }
            _ => Ok(()),
        }
    }

    /// Returns the event queue to which posted registrations report.
    ///
    /// # Errors
    /// [`Error::Unbound`]; [`Error::Invalid`] when the queue was bound without `FI_REG_MR`.
    pub(crate) fn registration_eq(&self) -> Result<Arc<EqState>> {
        match &*self.lock_eq() {
            None => Err(Error::Unbound(Class::EventQueue)),
            Some(bound) if bound.registration == RegistrationMode::Synchronous => {
                Err(Error::Invalid {
                    what: "posted registration",
                    why: "the domain is bound without FI_REG_MR; use bind_eq_reg_mr".into(),
                })
            }
            Some(bound) => Ok(bound.queue.state.clone()),
        }
    }

    /// Locks the binding of the event queue.
    fn lock_eq(&self) -> MutexGuard<'_, Option<EqBinding>> {
        self.eq.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::ops::Deref for DomainInner {
    type Target = DomainCore;

    fn deref(&self) -> &DomainCore {
        &self.state
    }
}

impl DomainCore {
    /// Checks that the domain is open and that its provider has memory regions.
    pub(crate) fn check_has_regions(&self) -> Result<()> {
        self.node.check_open()?;
        self.fabric.inner.transport.check_has_regions()
    }

    /// Returns the scheme of addresses of the domain's provider: that of text without one, such as
    /// `fi_sockaddr_in://`.
    pub(crate) fn scheme(&self) -> Scheme {
        Scheme::from_provider(self.fabric.inner.transport.name()).unwrap_or(Scheme::Tcp)
    }

    /// Parses an address. Text that names no scheme is of the domain's provider.
    pub(crate) fn address(&self, text: impl ToAddress) -> Result<Address> {
        text.to_address_for(self.scheme())
    }

    /// Detaches a flush, or a wait for memory of loans, when the returned guard is dropped.
    pub(crate) fn detach_on_drop(&self, key: OpKey) -> DetachOnDrop<'_> {
        DetachOnDrop { domain: self, key }
    }
}

/// Detaches an operation of the engine on drop.
pub(crate) struct DetachOnDrop<'a> {
    domain: &'a DomainCore,
    key: OpKey,
}

impl Drop for DetachOnDrop<'_> {
    fn drop(&mut self) {
        self.domain.engine.drop_future(self.key, false);
    }
}

impl Drop for DomainInner {
    fn drop(&mut self) {
        open_domains::remove(self.state.node.id());
        self.unbind_eq();
        self.state.node.detach_from_parent();
    }
}
