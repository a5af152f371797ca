//! Statistics and counters of the endpoint where a message of a shared receive context arrived.

use fabric_core::FiAddr;
use fabric_core::completion::OpKind;
use fabric_core::matching::PeerKey;
use fabric_core::transport::EpId;

use super::domain_state::DomainState;

impl DomainState {
    /// Returns the endpoints that share this context.
    pub(crate) fn endpoints_sharing(&self, id: EpId) -> Vec<EpId> {
        let sharers = self
            .endpoints
            .iter()
            .filter(|(_, ep)| ep.bindings.shared_rx == Some(id));
        sharers.map(|(id, _)| EpId(id)).collect()
    }

    /// Counts the end of a receive that was posted to a shared context, at the sharer where the
    /// message arrived: in its counter, and in its failures.
    #[cold]
    pub(crate) fn count_recv_at_arrival_endpoint(
        &mut self,
        posted_to: EpId,
        peer: PeerKey,
        ok: bool,
    ) {
        if let Some(sharer) = self.receiving_endpoint(posted_to, peer) {
            self.count_op(sharer, OpKind::Recv, 0, ok);
        }
    }

    /// Counts a received message, in number and bytes, at the sharer where it arrived, if its
    /// receive was posted to a shared context.
    #[cold]
    pub(crate) fn count_message_at_arrival_endpoint(
        &mut self,
        posted_to: EpId,
        peer: PeerKey,
        len: usize,
    ) {
        if let Some(sharer) = self.receiving_endpoint(posted_to, peer)
            && let Some(ep) = self.endpoints.get_mut(sharer.0)
        {
            ep.stats.received.record(len);
        }
    }

    /// Returns the endpoint that a peer is or was connected to, if the endpoint shares this
    /// context.
    pub(crate) fn receiving_endpoint(&self, context: EpId, peer: PeerKey) -> Option<EpId> {
        let sharer = self.shared_senders.endpoint_of(peer)?;
        let bindings = &self.endpoints.get(sharer.0)?.bindings;
        (bindings.shared_rx == Some(context)).then_some(sharer)
    }

    /// Returns whether the endpoint that a peer is connected to, and that shares this context,
    /// knows this address handle.
    pub(crate) fn is_known_addr(&self, context: EpId, peer: PeerKey, addr: FiAddr) -> bool {
        let sharer = self
            .receiving_endpoint(context, peer)
            .and_then(|sharer| self.endpoints.get(sharer.0));
        sharer.is_some_and(|sharer| self.avs.check(sharer.bindings.av, addr).is_ok())
    }
}
