//! Passive endpoints, and endpoints that are connected with one peer.
//!
//! What waits at a door waits with the provider; the hub knows how many there are, and who waits
//! for them. An endpoint that is connected has an address vector of its own with its peer in it, so
//! everything else is as with any other.

use std::task::{Context, Poll, Waker};

use fabric_core::event::EventKind;
use fabric_core::info::Info;
use fabric_core::transport::{
    ConnReq, ConnectParams, Connected, EngineContext, EpId, MAX_PRIVATE_DATA,
};
use fabric_core::tree::Class;
use fabric_core::{Address, Error, FiAddr, Result};

use crate::av::Av;
use crate::domain::DomainHandle;
use crate::domain_state::{AvId, Bindings, DomainState};
use crate::endpoints::info_for_bindings;
use crate::engine::EngineState;
use crate::shared_rx::rx_source;
use crate::trace::TraceEvent;

/// What is going on at the door of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct CmState {
    /// Requests that wait at a passive endpoint.
    pending_requests: usize,
    /// What has become of an endpoint that was to be connected.
    outcome: Option<Result<Connected>>,
    waker: Option<Waker>,
}

impl CmState {
    pub(crate) fn take_waker(&mut self) -> Option<Waker> {
        self.waker.take()
    }
}

impl DomainState {
    fn cm(&mut self, ep: EpId) -> Option<&mut CmState> {
        self.endpoints.get_mut(ep.0)?.cm.as_deref_mut()
    }

    /// Somebody waits at a passive endpoint.
    pub(crate) fn record_connreq(&mut self, ep: EpId, peer: &Address, data: &[u8]) {
        let Some(door) = self.cm(ep) else { return };
        door.pending_requests += 1;
        self.wake_cm(ep);
        self.event(
            ep,
            EventKind::ConnectionRequest {
                peer: peer.clone(),
                data: data.to_vec(),
            },
        );
    }

    /// An endpoint is connected, or will not be.
    pub(crate) fn record_connect_result(
        &mut self,
        ep: EpId,
        peer: &Address,
        joined: Result<Connected>,
    ) {
        let Some(row) = self.endpoints.get_mut(ep.0) else {
            return;
        };
        let Some(door) = row.cm.as_deref_mut() else {
            return;
        };
        let kind = match &joined {
            Ok(joined) => {
                // It had no name before.
                self.deferred.trace(TraceEvent::EndpointOpened(
                    row.bindings.object_id,
                    joined.name.clone(),
                ));
                EventKind::Connected {
                    peer: peer.clone(),
                    data: joined.data.clone(),
                }
            }
            Err(error) => EventKind::ConnectFailed {
                error: error.clone(),
            },
        };
        door.outcome = Some(joined);
        self.wake_cm(ep);
        self.event(ep, kind);
    }

    /// Whoever waits at a door is to look.
    fn wake_cm(&mut self, ep: EpId) {
        let waiter = self.cm(ep).and_then(CmState::take_waker);
        self.wake_waiter(waiter);
    }

    /// Nobody waits at this door any more.
    pub(crate) fn drop_cm_waiter(&mut self, ep: EpId) {
        let waiter = self.cm(ep).and_then(CmState::take_waker);
        self.drop_waiter(waiter);
    }

    fn register_cm_waker(&mut self, ep: EpId, waker: &Waker) {
        let Some(door) = self.cm(ep) else { return };
        let before = door.waker.replace(waker.clone());
        self.add_waiter(before);
    }
}

impl EngineState {
    /// The request that has waited longest.
    fn take_connreq(&mut self, ep: EpId) -> Option<ConnReq> {
        let request = self.transport.take_connreq(&mut self.domain, ep)?;
        if let Some(door) = self.domain.cm(ep) {
            door.pending_requests -= 1;
        }
        Some(request)
    }

    fn insert_cm_endpoint(&mut self, bound: Bindings) -> EpId {
        let mut ep = DomainState::new_endpoint(bound);
        ep.cm = Some(Box::default());
        EpId(self.domain.endpoints.insert(ep))
    }
}

impl DomainHandle {
    /// Opens a passive endpoint.
    ///
    /// # Errors
    /// What the provider refuses; nothing is left behind.
    pub fn listen(
        &self,
        info: &Info,
        at: Option<&Address>,
        bound: Bindings,
    ) -> Result<(EpId, Address)> {
        let object = bound.object_id;
        // Under auto progress the thread has to learn of the new descriptors' owner.
        self.with_engine(|locked| {
            let id = locked.insert_cm_endpoint(bound);
            let opened = locked.transport.listen(id, info, at);
            let address = opened.inspect_err(|_| drop(locked.domain.endpoints.remove(id.0)))?;
            locked
                .domain
                .deferred
                .trace(TraceEvent::EndpointOpened(object, address.clone()));
            Ok((id, address))
        })
    }

    /// The request that has waited longest, after a pass, without waiting for one.
    #[must_use]
    pub fn try_connreq(&self, ep: EpId) -> Option<ConnReq> {
        self.with_engine(|locked| {
            // Callers come by descriptors, which a pass alone does not look at.
            locked.disarm_for_poll();
            locked.poll_fds();
            locked.progress();
            locked.take_connreq(ep)
        })
    }

    /// Drives until a request waits, and takes it; nothing once the endpoint is closed.
    pub fn poll_connreq(&self, ep: EpId, cx: &mut Context<'_>) -> Poll<Option<ConnReq>> {
        let is_ready =
            |hub: &mut DomainState| hub.cm(ep).is_none_or(|door| door.pending_requests > 0);
        let driven = self.engine().drive(cx.waker(), is_ready, |hub, waker| {
            hub.register_cm_waker(ep, waker)
        });
        driven.map(|mut locked| {
            let request = locked.take_connreq(ep);
            locked.unlock();
            request
        })
    }

    /// Opens an address vector with this peer in it and nobody else.
    #[must_use]
    pub fn open_single_peer_av(&self, peer: &Address) -> (AvId, FiAddr) {
        let mut vector = Av::new(false);
        let number = vector.table.insert(peer.clone());
        (AvId(self.engine().lock().domain.avs.insert(vector)), number)
    }

    /// Opens an endpoint that is connected with one peer. What becomes of it
    /// [`poll_connected`](Self::poll_joined) tells.
    ///
    /// # Errors
    /// [`Error::TooLong`] above [`MAX_PRIVATE_DATA`] bytes; what is known to be impossible at once.
    /// Nothing is left behind, and a request is refused.
    pub fn open_connected(
        &self,
        info: &Info,
        meeting: ConnectParams<'_>,
        bound: Bindings,
    ) -> Result<EpId> {
        let len = meeting.data.len();
        if len > MAX_PRIVATE_DATA {
            return Err(Error::TooLong {
                what: "private data",
                len,
                limit: MAX_PRIVATE_DATA,
            });
        }
        let info = info_for_bindings(info, &bound);
        self.with_engine(|locked| {
            let state = &mut **locked;
            let shared = state.shared_rx_for(&bound)?;
            let id = state.insert_cm_endpoint(bound);
            let receiving = rx_source(shared.as_ref(), self);
            let opened =
                state
                    .transport
                    .open_connected(&mut state.domain, id, &info, meeting, receiving);
            opened.inspect_err(|_| drop(state.domain.endpoints.remove(id.0)))?;
            state.open_fast_path(id);
            Ok(id)
        })
    }

    /// Drives until the endpoint is connected, or will not be.
    pub fn poll_connected(&self, ep: EpId, cx: &mut Context<'_>) -> Poll<Result<Connected>> {
        let outcome = |hub: &mut DomainState| match hub.cm(ep) {
            Some(door) => door.outcome.take(),
            None => Some(Err(Error::Closed(Class::Endpoint))),
        };
        self.engine().poll(cx.waker(), outcome, |hub, waker| {
            hub.register_cm_waker(ep, waker)
        })
    }

    /// What has become of an endpoint that was to be connected, if that is known.
    #[must_use]
    pub fn take_connect_result(&self, ep: EpId) -> Option<Result<Connected>> {
        self.engine().lock().domain.cm(ep)?.outcome.take()
    }

    /// Ends the connection of an endpoint.
    ///
    /// # Errors
    /// [`Error::NotSupported`] when it has none of its own; [`Error::Closed`].
    pub fn shutdown(&self, ep: EpId) -> Result<()> {
        self.with_engine(|locked| {
            let state = &mut **locked;
            state.transport.shutdown(&mut state.domain, ep)
        })
    }
}
