//! Connection management: passive endpoints, and endpoints that are connected with one peer.
//!
//! Connection requests wait in the transport; the engine knows their number and the tasks that wait
//! for them. A passive endpoint has an engine of its own, so its requests can be accepted in any
//! domain: `open_connected` opens an endpoint with the request's connection and sets the domain's
//! socket options on it, or connects. The transport reports the outcome (`on_connected`), and a
//! future waits for it.
//!
//! A connected endpoint has an address vector of its own that contains only its peer, so the engine
//! treats it like any other endpoint. When its connection has ended and everything that arrived was
//! taken, receives for which no message waits fail, then or when they are posted.

use std::task::{Context, Poll, Waker};

use fabric_core::info::Info;
use fabric_core::transport::{ConnReq, ConnectParams, Connected, EpId, MAX_PRIVATE_DATA};
use fabric_core::tree::Class;
use fabric_core::{Address, Error, FiAddr, Result};

use super::domain::DomainHandle;
use super::endpoints::info_for_bindings;
use super::progress::EngineState;
use super::state::bindings::{AvId, Bindings};
use super::state::cm::CmState;
use super::state::domain_state::DomainState;
use super::state::trace::TraceEvent;

/// The number of longest messages for which the budget of a connected endpoint has room, if that is
/// less than the budget of the transport.
const BUDGET_MESSAGES: usize = 16;
/// The smallest budget of a connected endpoint, in bytes.
const MIN_BUDGET: usize = 64 << 10;

impl EngineState {
    /// Takes the oldest connection request.
    fn take_connreq(&mut self, ep: EpId) -> Option<ConnReq> {
        let taken =
            self.with_transport(ep, |transport, ctx| transport.requests()?.take_connreq(ctx));
        let request = taken.ok()??;
        if let Some(cm) = self.domain.endpoints.cm(ep) {
            cm.remove_request();
        }
        Some(request)
    }

    fn insert_cm_endpoint(&mut self, bindings: Bindings, cm: CmState) -> Result<EpId> {
        let budget = bindings.max_msg_size.saturating_mul(BUDGET_MESSAGES);
        let budget = budget.max(MIN_BUDGET);
        let id = self.insert_endpoint(bindings)?;
        self.domain.endpoints.get_open(id)?.set_cm(cm);
        self.with_rx(id, |rx, _| rx.set_single_peer(budget));
        Ok(id)
    }
}

/// Registers the waker of a task that waits for a request or for a connection.
fn register_cm_waker(domain: &mut DomainState, ep: EpId, waker: &Waker) {
    if let Some(cm) = domain.endpoints.cm(ep) {
        cm.waiter.register(waker, &mut domain.deferred);
    }
}

impl DomainHandle {
    /// Opens a passive endpoint (`fi_passive_ep`, `fi_listen`).
    ///
    /// # Errors
    /// What the transport refuses; nothing is left behind.
    pub fn listen(
        &self,
        info: &Info,
        at: Option<&Address>,
        bindings: Bindings,
    ) -> Result<(EpId, Address)> {
        let object = bindings.object_id;
        // `with_engine_or_refuse` ensures that the domain is driven: under automatic progress the
        // thread has to serve the new descriptors.
        self.with_engine_or_refuse(|locked| {
            let id = locked.insert_cm_endpoint(bindings, CmState::passive())?;
            let address = locked.open_transport_endpoint(id, |transport, _| {
                let management = transport.connection_management();
                let management = management.ok_or(Error::NotSupported("passive endpoints"))?;
                management.listen(id, info, at)
            })?;
            locked
                .domain
                .deferred
                .trace(TraceEvent::EndpointOpened(object, address.clone()));
            Ok((id, address))
        })
    }

    /// Returns the oldest connection request, after one pass and without waiting for a request.
    #[must_use]
    pub fn try_connreq(&self, ep: EpId) -> Option<ConnReq> {
        self.with_engine(|locked| {
            // Requests arrive on descriptors, which a pass alone does not poll.
            locked.disarm_for_poll();
            locked.poll_fds();
            locked.progress();
            locked.take_connreq(ep)
        })
    }

    /// Drives the domain until a request waits, and takes it; `None` once the endpoint is closed.
    pub fn poll_connreq(&self, ep: EpId, cx: &mut Context<'_>) -> Poll<Option<ConnReq>> {
        let is_ready = |domain: &mut DomainState| {
            let cm = domain.endpoints.cm(ep);
            cm.is_none_or(|cm| cm.has_request())
        };
        let driven = self.engine().drive(cx.waker(), is_ready, |domain, waker| {
            register_cm_waker(domain, ep, waker);
        });
        driven.map(|mut locked| {
            let request = locked.take_connreq(ep);
            locked.unlock();
            request
        })
    }

    /// Opens an address vector that contains this peer only.
    ///
    /// # Errors
    /// [`Error::ConcurrentUse`].
    pub fn open_single_peer_av(&self, peer: &Address) -> Result<(AvId, FiAddr)> {
        let avs = &mut self.lock_or_refuse()?.domain.avs;
        let av = avs.open(false);
        let (addr, _) = avs.insert(av, peer).expect("the vector is open");
        Ok((av, addr))
    }

    /// Opens an endpoint that is connected with one peer (`fi_connect`, or `fi_accept` of a
    /// request). [`poll_connected`](Self::poll_connected) returns the outcome.
    ///
    /// # Errors
    /// [`Error::TooLong`] above [`MAX_PRIVATE_DATA`] bytes; what is known at once to be impossible.
    /// Nothing is left behind, and a connection request that was passed is rejected.
    pub fn open_connected(
        &self,
        info: &Info,
        params: ConnectParams<'_>,
        bindings: Bindings,
    ) -> Result<EpId> {
        let len = params.data.len();
        if len > MAX_PRIVATE_DATA {
            return Err(Error::TooLong {
                what: "private data",
                len,
                limit: MAX_PRIVATE_DATA,
            });
        }
        let info = info_for_bindings(info, &bindings);
        self.with_engine_or_refuse(|locked| {
            let state = &mut **locked;
            let id = state.insert_cm_endpoint(bindings, CmState::connecting())?;
            let is_original = state.fork_guard.in_original_process();
            state.open_transport_endpoint(id, |transport, ctx| {
                let management = transport.connection_management();
                let management = management.ok_or(Error::NotSupported("connected endpoints"))?;
                if !is_original {
                    return Err(Error::Closed(Class::Domain));
                }
                Ok((management.open_connected(ctx, &info, params)?, ()))
            })?;
            state.open_fast_path(id);
            Ok(id)
        })
    }

    /// Drives the domain until the endpoint is connected or the attempt has failed.
    pub fn poll_connected(&self, ep: EpId, cx: &mut Context<'_>) -> Poll<Result<Connected>> {
        let outcome = |domain: &mut DomainState| match domain.endpoints.cm(ep) {
            Some(cm) => cm.take_outcome(),
            None => Some(Err(Error::Closed(Class::Endpoint))),
        };
        self.engine().poll(cx.waker(), outcome, |domain, waker| {
            register_cm_waker(domain, ep, waker);
        })
    }

    /// Takes the outcome of a connection attempt, if it is known.
    #[must_use]
    pub fn take_connect_result(&self, ep: EpId) -> Option<Result<Connected>> {
        let mut locked = self.engine().lock();
        locked.domain.endpoints.cm(ep)?.take_outcome()
    }

    /// Shuts the connection of an endpoint down (`fi_shutdown`).
    ///
    /// # Errors
    /// [`Error::NotSupported`] if the endpoint is not connection-oriented; [`Error::Closed`].
    pub fn shutdown(&self, ep: EpId) -> Result<()> {
        self.with_engine_or_refuse(|locked| {
            let shut_down = locked.with_transport(ep, |transport, ctx| {
                let connection = transport.connection().ok_or(Error::NotSupported(
                    "shutdown of endpoints other than FI_EP_MSG",
                ))?;
                connection.shutdown(ctx);
                Ok(())
            });
            shut_down.flatten()
        })
    }
}
