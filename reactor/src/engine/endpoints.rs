//! Endpoints: opening them with their bindings, and closing them, which cancels their pending
//! operations.

use std::sync::Arc;

use fabric_core::completion::Outcome;
use fabric_core::extension::ConnectionInfo;
use fabric_core::flags::Caps;
use fabric_core::info::Info;
use fabric_core::rx::RxQueue;
use fabric_core::stats::EndpointStats;
#[cfg(doc)]
use fabric_core::transport::TransportEndpoint;
use fabric_core::transport::{Disconnect, EndpointContext, EpId, FastPath, RxEngine};
use fabric_core::tree::Class;
use fabric_core::{Address, Error, FiAddr, Result};

use super::domain::DomainHandle;
use super::endpoint_table::{EngineTransportEndpoint, RxSource};
use super::fast_path::SerialFastPath;
use super::progress::{EngineState, EngineTransportDomain};
use super::state::bindings::Bindings;
use super::state::domain_state::DomainState;
use super::state::trace::TraceEvent;

/// Returns the info to pass to the transport for an endpoint with these bindings.
pub(crate) fn info_for_bindings(info: &Info, bindings: &Bindings) -> Info {
    let mut info = info.clone();
    if !bindings.counters.wants_rma_events() {
        // Peers need not report remote accesses that are not counted here.
        info.caps -= Caps::RMA_EVENT;
    }
    info
}

impl EngineState {
    /// Ends the connections of an endpoint with a peer, and discards the peer's messages.
    fn disconnect(&mut self, ep: EpId, peer: &Address) -> Result<bool> {
        let was_connected = self.with_transport(ep, |transport, ctx| {
            transport.disconnect(ctx, Disconnect::Program(peer))
        })?;
        self.change_rx(ep, |rx: &mut RxQueue, domain| rx.discard_from(domain, peer));
        Ok(was_connected)
    }

    /// Opens an endpoint with these bindings, and its receive queue. The transport endpoint is
    /// [attached](super::endpoint_table::EndpointTable::attach) later.
    ///
    /// # Errors
    /// [`Error::Closed`] when the shared receive context of the bindings is closed.
    pub(crate) fn insert_endpoint(&mut self, bindings: Bindings) -> Result<EpId> {
        let budget = self.transport.unexpected_budget();
        let shared = bindings.shared_rx;
        if let Some(context) = shared {
            self.with_rx(context, |rx, _| rx.raise_budget(budget))
                .ok_or_else(|| Error::Closed(Class::SharedReceive))?;
        }
        let id = self.domain.endpoints.insert(bindings);
        let rx = match shared {
            Some(context) => RxSource::Shared(context),
            None => RxSource::Own(Box::new(RxQueue::new(id, budget))),
        };
        self.endpoints.insert(id, rx);
        Ok(id)
    }

    /// Removes an endpoint that could not be opened.
    pub(crate) fn remove_endpoint(&mut self, id: EpId) {
        if self.domain.endpoints.rx_context_of(id).is_some() {
            // The shared context may know the peer of a connection that failed.
            self.with_rx(id, |rx, domain| rx.on_sharing_endpoint_closed(domain, id));
        }
        self.endpoints.remove(id);
        self.domain.endpoints.remove(id);
    }

    /// Opens the transport endpoint that was [inserted](Self::insert_endpoint), by
    /// `open`. Removes the endpoint if that fails.
    pub(crate) fn open_transport_endpoint<T>(
        &mut self,
        id: EpId,
        open: impl FnOnce(
            &mut EngineTransportDomain,
            &mut EndpointContext<'_, DomainState>,
        ) -> Result<(Box<EngineTransportEndpoint>, T)>,
    ) -> Result<T> {
        let opened = match self.endpoints.rx_mut(id) {
            Some(rx) => {
                let mut ctx = EndpointContext::new(id, rx, &mut self.domain);
                open(&mut *self.transport, &mut ctx)
            }
            None => Err(Error::Closed(Class::SharedReceive)),
        };
        let (transport, value) = opened.inspect_err(|_| self.remove_endpoint(id))?;
        self.endpoints.attach(id, transport);
        Ok(value)
    }

    /// Reports the addresses that are in the address vector already to the transport, for a new
    /// endpoint.
    fn report_existing_addrs(&mut self, id: EpId) {
        let Ok(av) = self.domain.av_of(id) else {
            return;
        };
        let known = av.table().iter();
        let known = known.map(|(addr, address)| (addr, address.clone()));
        for (addr, address) in known.collect::<Vec<_>>() {
            let _ = self.with_transport(id, |transport, ctx| {
                transport.address_inserted(ctx, addr, &address);
            });
        }
    }

    /// Asks the transport for a fast path to the peers of a new endpoint. Counted operations take
    /// the domain's lock, since counters belong to the domain.
    pub(crate) fn open_fast_path(&mut self, id: EpId) {
        if let Some(ep) = self.domain.endpoints.get_mut(id)
            && !ep.bindings().counters.counts_local_ops()
        {
            let transport = self.endpoints.transport(id);
            let fast_path = transport.and_then(|transport| transport.fast_path());
            ep.tx_credits.set_fast_path(fast_path);
        }
    }

    fn close_endpoint(&mut self, id: EpId) {
        if let Some(cm) = self.domain.endpoints.cm(id) {
            cm.waiter.clear(&mut self.domain.deferred);
        }
        let Some(ep) = self.domain.endpoints.get_mut(id) else {
            return;
        };
        let (av, object_id) = (ep.bindings().av, ep.bindings().object_id);
        for key in ep.tx_credits.drain() {
            self.domain.complete(key, Outcome::failed(Error::Canceled));
        }
        let is_context = self.endpoints.is_shared_context(id);
        if let Some((transport, mut ctx)) = self.endpoints.for_call(id, &mut self.domain) {
            transport.close(&mut ctx);
        }
        self.close_rx(id);
        if !is_context {
            self.domain
                .deferred
                .trace(TraceEvent::EndpointClosed(object_id));
        }
        debug_assert!(
            !self.domain.has_pending_ops(id),
            "closed endpoint has pending operations whose buffers the kernel does not hold"
        );
        self.domain.redirect_in_flight_completions(id);
        self.domain.remove_events_of(id);
        self.domain.endpoints.remove(id);
        self.domain.check_departing(av);
    }
}

impl DomainHandle {
    /// Ends the connections of an endpoint with this peer, and discards the messages of the peer
    /// that no receive has taken. Returns whether there was a connection.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn disconnect(&self, ep: EpId, peer: &Address) -> Result<bool> {
        self.with_engine_or_refuse(|locked| locked.disconnect(ep, peer))
    }

    /// Returns what the transport knows about its connections with a peer; `None` without one.
    ///
    /// # Errors
    /// Those of [`TransportEndpoint::connection_info`]; [`Error::Closed`].
    pub fn connection_info(&self, ep: EpId, peer: FiAddr) -> Result<Option<ConnectionInfo>> {
        self.with_engine(|locked| {
            locked
                .with_transport(ep, |transport, ctx| transport.connection_info(ctx, peer))
                .flatten()
        })
    }

    /// Opens an endpoint (`fi_endpoint`, `fi_enable`).
    ///
    /// # Errors
    /// The transport's error. No endpoint is left open.
    pub fn open_endpoint(
        &self,
        info: &Info,
        at: Option<&Address>,
        bindings: Bindings,
    ) -> Result<(EpId, Address)> {
        let info = info_for_bindings(info, &bindings);
        let object_id = bindings.object_id;
        // `with_engine_or_refuse` makes sure on unlock that the driver makes progress: under
        // automatic progress the driver thread has to poll the new descriptors.
        self.with_engine_or_refuse(|locked| {
            let state = &mut **locked;
            let id = state.insert_endpoint(bindings)?;
            let address = state.open_transport_endpoint(id, |transport, ctx| {
                transport.open_endpoint(ctx, &info, at)
            })?;
            state.report_existing_addrs(id);
            state.open_fast_path(id);
            state
                .domain
                .deferred
                .trace(TraceEvent::EndpointOpened(object_id, address.clone()));
            Ok((id, address))
        })
    }

    /// Closes an endpoint or a shared receive context. Its operations end as canceled and return
    /// their buffers.
    pub fn close_endpoint(&self, id: EpId) {
        self.with_engine(|state| state.close_endpoint(id));
    }

    /// Returns the fast path of an endpoint. Callers try it first, and post through this handle if
    /// it returns `WouldBlock`.
    #[must_use]
    pub fn fast_path(&self, ep: EpId) -> Option<Arc<dyn FastPath>> {
        let locked = self.engine().lock();
        let ep = locked.domain.endpoints.get(ep)?;
        let fast_path = ep.tx_credits.fast_path()?.clone();
        Some(match self.engine().lock_mode.use_flag() {
            Some(flag) => Arc::new(SerialFastPath::new(flag.clone(), fast_path)),
            None => fast_path,
        })
    }

    /// Returns the counters of an endpoint; all zero when it is closed.
    #[must_use]
    pub fn endpoint_stats(&self, ep: EpId) -> EndpointStats {
        let locked = self.engine().lock();
        let Some(state) = locked.domain.endpoints.get(ep) else {
            return EndpointStats::default();
        };
        let mut stats = EndpointStats::default();
        if let Some(transport) = locked.endpoints.transport(ep) {
            transport.add_stats(&mut stats);
            // The operations of the fast path complete inside the posting call.
            stats.inline = stats.sent.count + stats.written.count + stats.atomics.count;
        }
        stats.add(state.stats());
        if let Some(queue) = locked.endpoints.own_rx(ep) {
            (stats.unexpected, stats.unexpected_bytes) = queue.unexpected();
        }
        stats
    }
}
