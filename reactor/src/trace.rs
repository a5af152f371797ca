//! What a domain tells the subscriber of `tracing`: the rare things, none of them per message.
//!
//! A subscriber is user code and may use the domain it hears of, so nothing is told under the lock:
//! notes are put off like wake-ups ([`Deferred`](crate::later::Later)).

use fabric_core::Address;
use fabric_core::event::{DownReason, EventKind};

/// Something to be told when the lock is gone.
#[derive(Debug)]
pub(crate) enum TraceEvent {
    /// An endpoint, by its number in the object tree, has this name from now on.
    EndpointOpened(u64, Address),
    EndpointClosed(u64),
    /// Something happened on the endpoint of this number.
    EndpointEvent(u64, EventKind),
    /// A peer's connection ended while it had so many loans of this endpoint: their memory is not
    /// used again.
    LoansLost(u64, Address, usize),
    /// A driver of this kind is there, or has ended.
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
                tracing::info!(target: "fabric::connection", endpoint, %peer, loans, "loans given up");
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
        EventKind::PeerDown {
            peer,
            reason: DownReason::Closed,
            ..
        } => {
            tracing::debug!(target: "fabric::connection", endpoint, %peer, "peer closed");
        }
        EventKind::PeerDown {
            peer,
            reason: DownReason::Died,
            ..
        } => {
            tracing::info!(target: "fabric::connection", endpoint, %peer, "peer died");
        }
        EventKind::PeerDown {
            peer,
            reason: DownReason::Protocol(what),
            ..
        } => {
            tracing::warn!(target: "fabric::connection", endpoint, %peer, what, "peer broke the protocol");
        }
        EventKind::PeerDown { peer, reason, .. } => {
            tracing::info!(target: "fabric::connection", endpoint, %peer, ?reason, "peer gone");
        }
        EventKind::ConnectionRequest { peer, .. } => {
            tracing::debug!(target: "fabric::connection", endpoint, %peer, "connection requested");
        }
        EventKind::Connected { peer, .. } => {
            tracing::debug!(target: "fabric::connection", endpoint, %peer, "connected");
        }
        EventKind::ConnectFailed { error } => {
            tracing::info!(target: "fabric::connection", endpoint, %error, "not connected");
        }
        EventKind::Shutdown { peer, reason } => {
            tracing::debug!(target: "fabric::connection", endpoint, %peer, ?reason, "connection ended");
        }
        EventKind::Rejected { error } => {
            tracing::warn!(target: "fabric::connection", endpoint, %error, "caller refused");
        }
        // These are about single messages.
        _ => {}
    }
}
