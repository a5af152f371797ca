//! Sends changes to the other engines of a domain. A domain and each of its resource domains has
//! one engine.
//!
//! All engines of a domain look up memory regions in one table. Each engine has its own copy of an
//! address vector, so that a post reads the vector under the lock of its engine alone.
//!
//! A change reaches the other engines by an [`Update`]. An engine that any thread may lock applies
//! an update at once. For an engine that another thread owns, the update is queued and the driver
//! is woken; the engine applies the update when its thread locks it next.
//!
//! The drop of an operation is an update of its own engine. It is queued if the engine cannot be
//! locked now: in a domain that one thread at a time uses, while another use is in the domain, and
//! from within a call.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use fabric_core::transport::{OpKey, WaitSet};
use fabric_core::{Address, FiAddr};

use super::domain::DomainHandle;
use super::driver::DomainWaker;
use super::progress::{CallEnd, Engine, EngineGuard};
use super::state::bindings::AvId;
use super::state::update_queue::{Update, UpdateQueue};

/// Updates an engine from any thread, and does not keep it open.
#[derive(Clone, Debug)]
pub struct DomainUpdates {
    engine: Weak<Engine>,
    queue: Arc<UpdateQueue>,
    waker: DomainWaker,
}

impl DomainUpdates {
    pub(crate) fn new(engine: &Arc<Engine>) -> Self {
        Self {
            engine: Arc::downgrade(engine),
            queue: engine.updates.clone(),
            waker: DomainWaker::new(engine),
        }
    }

    /// Returns whether the engine is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.engine.strong_count() > 0
    }

    /// Inserts an address, which has this handle in the vector, into a copy of the vector.
    pub fn insert_address(&self, av: AvId, addr: FiAddr, address: &Address) -> CallEnd {
        self.update(Update::InsertAddress(av, addr, address.clone()))
    }

    /// Removes a handle from a copy of a vector.
    pub fn remove_address(&self, av: AvId, addr: FiAddr) -> CallEnd {
        self.update(Update::RemoveAddress(av, addr))
    }

    /// Closes a copy of a vector.
    pub fn close_av(&self, av: AvId) -> CallEnd {
        self.update(Update::CloseAv(av))
    }

    /// Applies an update, or queues it for the thread that owns the engine. An engine that was
    /// closed needs no updates.
    fn update(&self, update: Update) -> CallEnd {
        if !self.is_open() {
            return CallEnd::default();
        }
        if !self.waker.may_lock_here() {
            self.queue.push(update);
            self.waker.wake();
            return CallEnd::default();
        }
        let Some(engine) = self.engine.upgrade() else {
            return CallEnd::default();
        };
        let mut locked = engine.lock_for_progress();
        locked.apply(update);
        locked.finish_later()
    }
}

impl EngineGuard<'_> {
    /// Applies the updates that are queued.
    #[cold]
    pub(crate) fn apply_updates(&mut self) {
        for update in self.engine().updates.take() {
            self.apply(update);
        }
        self.finish();
    }

    fn apply(&mut self, update: Update) {
        match update {
            Update::InsertAddress(av, addr, address) => {
                let inserted = self.insert_address(av, &address);
                debug_assert!(
                    inserted.is_err() || inserted.is_ok_and(|(inserted, _)| inserted == addr),
                    "the copies of a vector assign the same handles"
                );
            }
            Update::RemoveAddress(av, addr) => {
                // A copy that was closed has no handles.
                let _ = self.remove_address(av, addr);
            }
            Update::CloseAv(av) => self.domain.avs.close(av),
            Update::RegionChanged => {
                self.domain.access_changes.on_region_changed();
                self.engine().wait_set.wake();
            }
            Update::DropFuture { key, cancels } => {
                if cancels && self.try_cancel(key) {
                    self.domain.discard_op(key);
                } else {
                    self.detach(key);
                }
            }
            Update::DropPermit { key, credit_used } => {
                if credit_used {
                    self.domain.ops.take_credit(key);
                }
                self.detach(key);
            }
        }
    }
}

impl DomainHandle {
    /// Ends an operation whose future was dropped. With `cancels`, withdraws an operation that has
    /// not begun. Else a message that a receive has taken goes to another receive; a send goes on
    /// if it holds a credit, and is withdrawn if it waits for one.
    pub fn drop_future(&self, key: OpKey, cancels: bool) {
        let update = Update::DropFuture { key, cancels };
        self.engine().apply_or_queue(update);
    }

    /// Releases a permit. The permit returns its credit, unless `credit_used` says that a posted
    /// operation has taken over the credit.
    pub fn drop_permit(&self, key: OpKey, credit_used: bool) {
        let update = Update::DropPermit { key, credit_used };
        self.engine().apply_or_queue(update);
    }
}

impl Engine {
    /// Applies an update, or queues it while another use is in the domain. The driver, which the
    /// wake-up reaches, applies it when that use ends, unless another call does before.
    pub(crate) fn apply_or_queue(&self, update: Update) {
        match self.lock_or_refuse() {
            Some(mut locked) => {
                locked.apply(update);
                locked.finish();
            }
            None => {
                self.updates.push(update);
                self.wait_set.wake();
            }
        }
    }
}

/// The engines of a domain and its resource domains.
#[derive(Debug, Default)]
pub(crate) struct DomainEngines(Mutex<Vec<DomainUpdates>>);

impl DomainEngines {
    /// Adds an engine.
    pub(crate) fn add(&self, engine: DomainUpdates) {
        let mut engines = self.lock();
        engines.retain(DomainUpdates::is_open);
        engines.push(engine);
    }

    /// Tells the engines but `own` that a region was closed or unlocked. The caller holds no
    /// engine's lock. An engine that the calling thread may lock makes no access to a closed region
    /// after this call.
    pub(crate) fn region_changed(&self, own: &Arc<Engine>) {
        let is_other = |engine: &&DomainUpdates| engine.engine.as_ptr() != Arc::as_ptr(own);
        let others: Vec<_> = self.lock().iter().filter(is_other).cloned().collect();
        for engine in others {
            drop(engine.update(Update::RegionChanged));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<DomainUpdates>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use fabric_core::info::Info;
    use fabric_core::transport::{DomainConfig, ThreadMode};

    use super::*;
    use crate::engine::{DomainHandle, DriverKind};
    use crate::registry;

    /// The updates of an engine that another thread owns wait for it, and those of a closed engine
    /// are not kept.
    #[test]
    fn updates_are_queued_while_the_owner_has_the_engine() {
        let info = Info::template("shm", "machine", "shm");
        let config = DomainConfig {
            thread_mode: ThreadMode::Pinned,
            ..DomainConfig::default()
        };
        let transport = registry::by_name("shm").unwrap();
        let open = move || {
            let domain =
                DomainHandle::open(transport, &info, &config, (DriverKind::Task, "updates"))
                    .unwrap();
            let updates = domain.updates();
            (domain, updates)
        };
        // The owner has ended; any thread may drop the engine.
        let (domain, updates) = std::thread::spawn(open).join().unwrap();
        drop(updates.close_av(AvId(7)));
        assert!(updates.queue.has_updates());
        assert_eq!(updates.queue.take().len(), 1);
        assert!(!updates.queue.has_updates());
        drop(domain);
        drop(updates.close_av(AvId(7)));
        assert!(!updates.queue.has_updates());
    }
}
