//! The `tracing` events of a domain. All are rare; none is emitted per message.
//!
//! A subscriber is user code and may use the domain that emits the event, so no event is emitted
//! under the domain's lock: events are deferred like wake-ups
//! ([`Deferred`](super::deferred::Deferred)).

use fabric_core::Address;
use fabric_core::event::{DownReason, EventKind};

/// An event to be emitted after unlocking.
#[derive(Debug)]
pub(crate) enum TraceEvent {
    /// The endpoint with this object id has opened under this name.
    EndpointOpened(u64, Address),
    EndpointClosed(u64),
    /// An event of the endpoint with this object id.
    EndpointEvent(u64, EventKind),
    /// A peer's connection ended while it held this many loans of this endpoint, whose memory is
    /// not used again.
    LoansLost(u64, Address, usize),
    /// A driver of this kind has started or ended.
    DriverStarted(&'static str),
    DriverEnded(&'static str),
}

impl TraceEvent {
    pub(crate) fn emit(self) {
        match self {
            Self::EndpointOpened(endpoint, name) => {
                tracing::debug!(target: "fabric::endpoint", endpoint, %name, "endpoint opened");
            }
            Self::EndpointClosed(endpoint) => {
                tracing::debug!(target: "fabric::endpoint", endpoint, "endpoint closed")
            }
            Self::EndpointEvent(endpoint, kind) => emit_endpoint_event(endpoint, &kind),
            Self::LoansLost(endpoint, peer, loans) => {
                tracing::info!(
                    target: "fabric::connection", endpoint, %peer, loans,
                    "peer ended while holding loans"
                );
            }
            Self::DriverStarted(driver) => {
                tracing::debug!(target: "fabric::progress", driver, "driver started")
            }
            Self::DriverEnded(driver) => {
                tracing::debug!(target: "fabric::progress", driver, "driver ended")
            }
        }
    }
}

fn emit_endpoint_event(endpoint: u64, kind: &EventKind) {
    match kind {
        EventKind::PeerConnected { peer, .. } => {
            tracing::debug!(target: "fabric::connection", endpoint, %peer, "peer connected");
        }
        EventKind::PeerDown { peer, reason, .. } => match reason {
            DownReason::Closed => {
                tracing::debug!(
                    target: "fabric::connection", endpoint, %peer,
                    "peer closed its endpoint"
                );
            }
            DownReason::Died => {
                tracing::info!(target: "fabric::connection", endpoint, %peer, "peer died");
            }
            DownReason::Protocol(what) => {
                tracing::warn!(
                    target: "fabric::connection", endpoint, %peer, what,
                    "protocol violation by peer"
                );
            }
            reason => {
                tracing::info!(
                    target: "fabric::connection", endpoint, %peer, ?reason,
                    "peer disconnected"
                );
            }
        },
        EventKind::ConnectionRequest { peer, .. } => {
            tracing::debug!(target: "fabric::connection", endpoint, %peer, "connection requested");
        }
        EventKind::Connected { peer, .. } => {
            tracing::debug!(target: "fabric::connection", endpoint, %peer, "connected");
        }
        EventKind::ConnectFailed { error } => {
            tracing::info!(target: "fabric::connection", endpoint, %error, "connect failed");
        }
        EventKind::Shutdown { peer, reason } => {
            tracing::debug!(
                target: "fabric::connection", endpoint, %peer, ?reason,
                "connection shut down"
            );
        }
        EventKind::InboundRefused { error, .. } => {
            tracing::warn!(
                target: "fabric::connection", endpoint, %error,
                "inbound connection refused"
            );
        }
        EventKind::PeerOverBudget {
            peer,
            len,
            buffered,
            ..
        } => {
            tracing::info!(
                target: "fabric::connection", endpoint, %peer, len, buffered,
                "peer over budget: its message is held, no receive accepts it"
            );
        }
        EventKind::MessagesDiscarded {
            peer,
            peers,
            messages,
            bytes,
        } => {
            tracing::warn!(
                target: "fabric::endpoint", endpoint, ?peer, peers, messages, bytes,
                "messages of peers that had left discarded"
            );
        }
        // `OperationFailed` concerns one operation; `Overrun` is not traced.
        _ => {}
    }
}
