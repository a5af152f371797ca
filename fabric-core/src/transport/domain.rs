//! A domain of a transport: opens endpoints, and holds what they share.

use std::sync::Arc;

use crate::address::Address;
use crate::error::Result;
use crate::info::Info;

use super::{
    ConnectParams, EndpointContext, EngineContext, EpId, LoanAllocator, TransportEndpoint,
};

/// A domain of a transport. The engine calls it under the domain's lock, and owns the endpoints
/// that it opens.
pub trait TransportDomain<E: EngineContext>: Send {
    /// Opens an endpoint, at the given address or at one the transport chooses, and returns the
    /// endpoint and its address.
    ///
    /// # Errors
    /// [`Error::AddressInUse`](crate::Error::AddressInUse), or the error of the operating system.
    fn open_endpoint(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        info: &Info,
        at: Option<&Address>,
    ) -> Result<(Box<dyn TransportEndpoint<E>>, Address)>;

    /// Returns the budget in bytes for the unexpected messages of an endpoint.
    fn unexpected_budget(&self) -> usize;

    /// Returns how many endpoints every pass polls even if they are idle. Beyond that number,
    /// passes skip [idle](TransportEndpoint::is_idle) endpoints.
    fn always_active(&self) -> usize {
        usize::MAX
    }

    /// Returns whether each pass polls one of the endpoints that passes skip, in turn: for a
    /// transport whose descriptors report an arrival later than a poll finds it.
    fn polls_inactive_endpoints(&self) -> bool {
        false
    }

    /// Returns whether the endpoints may share a descriptor, as of an io_uring instance.
    fn shares_descriptor(&self) -> bool {
        false
    }

    /// Distributes what has arrived on the descriptor that the endpoints share, at the start of a
    /// pass. Appends the endpoints to poll to `ready`.
    fn collect_shared(&mut self, engine: &mut E, ready: &mut Vec<EpId>) {
        let _ = (engine, ready);
    }

    /// Handles the ready descriptor that the endpoints share
    /// ([`WaitToken::SHARED`](super::WaitToken::SHARED)). A pass follows.
    fn shared_ready(&mut self) {}

    /// Submits what the endpoints have queued on a descriptor that they share, at the end of a
    /// pass.
    fn submit_shared(&mut self) {}

    /// Prepares the descriptor that the endpoints share for sleep, after the endpoints were
    /// [armed](TransportEndpoint::arm). Returns false when there is work.
    fn arm_shared(&mut self) -> bool {
        true
    }

    /// Returns the connection management of the domain: passive and connected endpoints.
    fn connection_management(&mut self) -> Option<&mut dyn ConnectionManagement<E>> {
        None
    }

    /// Returns the allocator of loans; `None` where messages are always copied. Called once, when
    /// the domain is opened.
    fn loan_allocator(&self) -> Option<Arc<dyn LoanAllocator>> {
        None
    }

    /// Describes what the endpoints share in a few words, for `Debug`.
    fn describe(&self) -> String;
}

/// Connection management of a domain: passive endpoints, and endpoints with one peer.
pub trait ConnectionManagement<E: EngineContext> {
    /// Opens a passive endpoint, at the given address or at one the transport chooses, and returns
    /// the endpoint and its address. The transport reports requests with
    /// [`EngineContext::on_connreq`].
    ///
    /// # Errors
    /// [`Error::AddressInUse`](crate::Error::AddressInUse), or the error of the operating system.
    fn listen(
        &mut self,
        ep: EpId,
        info: &Info,
        at: Option<&Address>,
    ) -> Result<(Box<dyn TransportEndpoint<E>>, Address)>;

    /// Opens an `FI_EP_MSG` endpoint. The transport reports the result with
    /// [`EngineContext::on_connected`], possibly before this method returns.
    ///
    /// # Errors
    /// Failures known at once; all resources are released, and the request of
    /// [`ConnectMode::Accept`](super::ConnectMode::Accept) has been rejected.
    fn open_connected(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        info: &Info,
        params: ConnectParams<'_>,
    ) -> Result<Box<dyn TransportEndpoint<E>>>;
}
