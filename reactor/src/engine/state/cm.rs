//! Connection management state of passive and connected endpoints.

use std::task::Waker;

use fabric_core::event::EventKind;
use fabric_core::transport::{Connected, EngineContext, EpId};
use fabric_core::{Address, Result};

use super::domain_state::DomainState;
use super::trace::TraceEvent;

/// Connection management state of a passive or connected endpoint.
#[derive(Debug, Default)]
pub(crate) struct CmState {
    /// The number of requests that wait at a passive endpoint.
    pub(crate) pending_requests: usize,
    /// The outcome of the connection attempt, until it is taken.
    pub(crate) outcome: Option<Result<Connected>>,
    waker: Option<Waker>,
}

impl CmState {
    pub(crate) fn take_waker(&mut self) -> Option<Waker> {
        self.waker.take()
    }
}

impl DomainState {
    pub(crate) fn cm(&mut self, ep: EpId) -> Option<&mut CmState> {
        self.endpoints.get_mut(ep.0)?.cm.as_deref_mut()
    }

    /// Records a connection request that waits at a passive endpoint.
    pub(crate) fn record_connreq(&mut self, ep: EpId, peer: &Address, data: &[u8]) {
        let Some(cm) = self.cm(ep) else { return };
        cm.pending_requests += 1;
        self.wake_cm(ep);
        self.event(
            ep,
            EventKind::ConnectionRequest {
                peer: peer.clone(),
                data: data.to_vec(),
            },
        );
    }

    /// Records that an endpoint is connected, or that its connection attempt has failed.
    pub(crate) fn record_connect_result(
        &mut self,
        ep: EpId,
        peer: &Address,
        connected: Result<Connected>,
    ) {
        let Some(endpoint) = self.endpoints.get_mut(ep.0) else {
            return;
        };
        let Some(cm) = endpoint.cm.as_deref_mut() else {
            return;
        };
        let kind = match &connected {
            Ok(connected) => {
                // The endpoint had no name until it was connected, so its opening is traced here.
                self.deferred.trace(TraceEvent::EndpointOpened(
                    endpoint.bindings.object_id,
                    connected.name.clone(),
                ));
                EventKind::Connected {
                    peer: peer.clone(),
                    data: connected.data.clone(),
                }
            }
            Err(error) => EventKind::ConnectFailed {
                error: error.clone(),
            },
        };
        cm.outcome = Some(connected);
        self.wake_cm(ep);
        self.event(ep, kind);
    }

    /// Wakes the task that waits for a request or for the outcome.
    fn wake_cm(&mut self, ep: EpId) {
        let waiter = self.cm(ep).and_then(CmState::take_waker);
        self.deferred.wake_waiter(waiter);
    }

    /// Drops the waker of a task that no longer waits.
    pub(crate) fn drop_connect_waker(&mut self, ep: EpId) {
        let waiter = self.cm(ep).and_then(CmState::take_waker);
        self.deferred.drop_waiter(waiter);
    }

    pub(crate) fn register_cm_waker(&mut self, ep: EpId, waker: &Waker) {
        let Some(cm) = self.cm(ep) else { return };
        let previous = cm.waker.replace(waker.clone());
        self.deferred.add_waiter(previous);
    }
}
