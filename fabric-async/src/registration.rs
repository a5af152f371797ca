//! The registration of memory that peers access: how its key is opened, bound, enabled and closed.

use std::ops::{Range, RangeBounds};
use std::sync::Arc;

use fabric_core::buf::RegionBuf;
use fabric_core::flags::{Access, CounterBind, MrMode};
use fabric_core::mr::{RegionMemory, check_range, encode_raw_key};
use fabric_core::tree::{Class, DependencyGuard, ObjectNode};
use fabric_core::{Error, Result};
use fabric_reactor::ReservedEvent;

use crate::close::dependency_on;
use crate::counter::{BoundCounter, CounterInner};
use crate::domain_inner::DomainInner;
use crate::endpoint_inner::EndpointInner;
use crate::remote_region::{RemoteRegion, start_and_len};

/// What a handle `R` of registered memory is made from. `E` is the failure, with the buffer if
/// there is one.
pub(crate) trait RegionSource<R, E>: Send {
    /// Allocates and fills the memory. May call code of the program, so the caller holds no lock.
    fn prepare(&mut self, domain: &DomainInner, access: Access) -> Result<Arc<dyn RegionMemory>>;
    /// Returns the handle.
    fn open(self: Box<Self>, registration: Box<MrRegistration>) -> R;
    /// Returns the failure.
    fn fail(self: Box<Self>, error: Error) -> E;
}

/// Registers memory under the requested key or a free one, before the call returns.
///
/// # Errors
/// Those of the source and of [`MrRegistration::open`]; [`Error::Invalid`] when the domain is bound
/// with `FI_REG_MR`.
pub(crate) fn register_now<R, E>(
    domain: &Arc<DomainInner>,
    source: impl RegionSource<R, E>,
    access: Access,
    key: Option<u64>,
) -> Result<R, E> {
    let mut source = Box::new(source);
    let node = ObjectNode::new(Class::MemoryRegion, Some(domain.node.clone()));
    let registered = domain
        .check_registers_now()
        .and_then(|()| domain.node.check_room(Class::MemoryRegion))
        .and_then(|()| PreparedMemory::new(domain, &mut *source, access))
        .and_then(|memory| MrRegistration::open(node, domain, memory, key));
    match registered {
        Ok(registration) => Ok(source.open(registration)),
        Err(error) => Err(source.fail(error)),
    }
}

/// Memory that is ready to be registered.
pub(crate) struct PreparedMemory {
    memory: Arc<dyn RegionMemory>,
    access: Access,
    /// The offset of the first byte in peers' addressing.
    base: u64,
}

impl PreparedMemory {
    /// Prepares the memory of a source, and checks it for the domain.
    pub(crate) fn new<R, E>(
        domain: &DomainInner,
        source: &mut dyn RegionSource<R, E>,
        access: Access,
    ) -> Result<Self> {
        let memory = source.prepare(domain, access)?;
        let mr_mode = domain.info.domain.mr_mode;
        if mr_mode.contains(MrMode::ALLOCATED) {
            check_pages(domain, &*memory, 0..memory.len())?;
        }
        let by_address = mr_mode.contains(MrMode::VIRT_ADDR);
        let base = if by_address { memory.address() } else { 0 };
        Ok(Self {
            memory,
            access,
            base,
        })
    }
}

/// Memory with a key that is valid until the drop: what regions and registered buffers have in
/// common.
pub(crate) struct MrRegistration {
    pub(crate) node: Arc<ObjectNode>,
    pub(crate) domain: Arc<DomainInner>,
    pub(crate) memory: Arc<dyn RegionMemory>,
    /// The key by which the domain knows the region.
    key: u64,
    /// The description for peers, without the key in a domain that requires `FI_MR_RAW`.
    pub(crate) remote: RemoteRegion,
    /// The counters of remote accesses, each with the guard that keeps it open.
    counters: Vec<BoundCounter>,
    /// Keeps the endpoint open that the region is bound to.
    endpoint: Option<DependencyGuard>,
    /// Whether the key is valid.
    is_open: bool,
    /// The event of an asynchronous registration, which leaves the queue with the region.
    event: Option<ReservedEvent>,
}

impl MrRegistration {
    /// Registers memory as a region with this node under the requested key or a free one. The
    /// domain counts the region from now on. Calls no code of the program.
    ///
    /// # Errors
    /// As [`RegionTable::insert`](fabric_core::mr::RegionTable::insert); [`Error::TooMany`] when
    /// the domain has `mr_cnt` regions; [`Error::Closed`].
    pub(crate) fn open(
        node: Arc<ObjectNode>,
        domain: &Arc<DomainInner>,
        memory: PreparedMemory,
        key: Option<u64>,
    ) -> Result<Box<Self>> {
        let PreparedMemory {
            memory,
            access,
            base,
        } = memory;
        node.attach_to_parent()?;
        let opened = domain.engine.open_region(memory.clone(), base, access, key);
        let key = opened.inspect_err(|_| node.detach_from_parent())?;
        let remote_key = if domain.info.domain.mr_mode.contains(MrMode::RAW) {
            RemoteRegion::KEY_NOTAVAIL
        } else {
            key
        };
        Ok(Box::new(Self {
            node,
            domain: domain.clone(),
            remote: RemoteRegion::new(remote_key, memory.len() as u64, access).with_base(base),
            memory,
            key,
            counters: Vec::new(),
            endpoint: None,
            is_open: true,
            event: None,
        }))
    }

    /// Keeps the event that reports the registration in its queue as long as the region.
    pub(crate) fn keep_event(&mut self, event: Option<ReservedEvent>) {
        self.event = event;
    }

    /// Binds a counter, which counts remote accesses of the kinds `what` from now on.
    pub(crate) fn bind_counter(
        &mut self,
        counter: &Arc<CounterInner>,
        what: CounterBind,
    ) -> Result<()> {
        self.node.check_open()?;
        let bound = counter.bind_to_region(&self.domain, self.key, what)?;
        self.counters.push(bound);
        Ok(())
    }

    /// Binds the endpoint through which peers access the region.
    pub(crate) fn bind_endpoint(&mut self, ep: &EndpointInner) -> Result<()> {
        self.node.check_open()?;
        let guard = dependency_on(&ep.node, &self.domain.node, Class::MemoryRegion)?;
        let (engine, key) = (&self.domain.engine, self.key);
        engine.bind_region_endpoint(key, ep.node.id())?;
        self.endpoint = Some(guard);
        Ok(())
    }

    /// Lets peers access a region to which everything is bound.
    pub(crate) fn enable(&mut self) -> Result<()> {
        self.node.check_open()?;
        self.domain.engine.enable_region(self.key)
    }

    /// Tells the provider that pages are behind a range of the region's bytes.
    pub(crate) fn refresh(&self, range: impl RangeBounds<usize>) -> Result<()> {
        self.node.check_open()?;
        let bounds = [range.start_bound(), range.end_bound()];
        let [start, end] = bounds.map(|bound| bound.map(|at| *at as u64));
        let memory = &*self.memory;
        let (start, len) = start_and_len((start, end), memory.len() as u64);
        let start = check_range(memory.len(), start, len, 1)?;
        if self.domain.info.domain.mr_mode.contains(MrMode::MMU_NOTIFY) {
            check_pages(&self.domain, memory, start..start + len)?;
        }
        let (engine, key) = (&self.domain.engine, self.key);
        engine.refresh_region(key, start, len)
    }

    /// Returns the raw key.
    pub(crate) fn raw_key(&self) -> Vec<u8> {
        if self.domain.info.domain.mr_mode.contains(MrMode::RAW) {
            encode_raw_key(self.key, self.remote.base).to_vec()
        } else {
            self.key.to_le_bytes().to_vec()
        }
    }

    /// Invalidates the key, once. Operations of peers that wait for the region end.
    pub(crate) fn revoke(&mut self) {
        if std::mem::replace(&mut self.is_open, false) {
            self.domain.engine.close_region(self.key);
        }
    }
}

impl Drop for MrRegistration {
    fn drop(&mut self) {
        self.revoke();
        self.node.detach_from_parent();
    }
}

/// Checks that pages are behind a range of the memory.
fn check_pages(domain: &DomainInner, memory: &dyn RegionMemory, range: Range<usize>) -> Result<()> {
    let transport = domain.fabric.inner.transport;
    let mut pieces = memory.addresses(range).into_iter();
    pieces.try_for_each(|(address, len)| transport.check_allocated(address, len))
}

/// Checks that a region has segments, and their number against the domain's `mr_iov_limit`.
pub(crate) fn check_segments(domain: &DomainInner, buf: &impl RegionBuf) -> Result<()> {
    let (count, limit) = (buf.count(), domain.info.domain.mr_iov_limit);
    if count == 0 {
        return Err(Error::Invalid {
            what: "buffer to register",
            why: "it is a list of no buffers".into(),
        });
    }
    // One segment is allowed where the limit is 0.
    if count > limit.max(1) {
        return Err(Error::TooMany {
            what: "segments of a memory region (mr_iov_limit)",
            count,
            limit,
        });
    }
    Ok(())
}
