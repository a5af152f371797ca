//! The endpoints and shared receive contexts of a domain: their bindings, credits, statistics and
//! connection management.

use fabric_core::completion::{OpKind, Transfer};
use fabric_core::matching::PeerKey;
use fabric_core::stats::{EndpointStats, OpStats};
use fabric_core::transport::{EpId, OpKey};
use fabric_core::tree::Class;
use fabric_core::{Error, FiAddr, Result};

use super::bindings::{AvId, Bindings, CqId};
use super::cm::CmState;
use super::deferred::Deferred;
use super::id_map::IdMap;
use super::sender_names::SenderNames;
use super::shared_peers::SharedPeers;
use super::tx_credits::{AwaitedGrant, CreditWaiter, TxCredits};

/// An endpoint or a shared receive context.
#[derive(Debug)]
pub(crate) struct EndpointState {
    bindings: Bindings,
    pub(crate) tx_credits: TxCredits,
    posted_recvs: usize,
    stats: EndpointStats,
    /// Of an endpoint that reports unknown senders.
    sender_names: Option<Box<SenderNames>>,
    /// Of a passive or connected endpoint.
    cm: Option<Box<CmState>>,
}

impl EndpointState {
    #[inline]
    pub(crate) fn bindings(&self) -> &Bindings {
        &self.bindings
    }

    pub(crate) fn stats(&self) -> &EndpointStats {
        &self.stats
    }

    /// Returns how many receives may be posted beside those that are posted.
    #[inline]
    pub(crate) fn free_recvs(&self) -> usize {
        self.bindings.rx_size.saturating_sub(self.posted_recvs)
    }

    /// Counts receives that are posted, if need be beyond the limit.
    #[inline]
    pub(crate) fn add_posted_recvs(&mut self, count: usize) {
        self.posted_recvs += count;
    }

    /// Gives back the place of a posted receive, if the receive has one.
    #[inline]
    pub(crate) fn release_recv(&mut self, has_place: bool) {
        self.posted_recvs -= usize::from(has_place);
    }

    /// Counts a successful operation in the statistics.
    #[inline]
    pub(crate) fn record(&mut self, kind: OpKind, len: usize) {
        self.stats.record(kind, OpStats::one(len));
    }

    /// Counts operations in the statistics that were completed by their post.
    #[inline]
    pub(crate) fn record_inline(&mut self, kind: OpKind, ops: OpStats) {
        self.stats.record(kind, ops);
        self.stats.inline += ops.count;
    }

    /// Counts a received message in the statistics.
    #[inline]
    pub(crate) fn record_message(&mut self, len: usize) {
        self.stats.received.record(len);
    }

    /// Counts received messages in the statistics.
    #[inline]
    pub(crate) fn record_messages(&mut self, received: OpStats) {
        self.stats.received += received;
    }

    /// Counts a failed operation in the statistics.
    pub(crate) fn record_failure(&mut self) {
        self.stats.failed += 1;
    }

    /// Counts a post in the statistics that found no credit.
    pub(crate) fn record_out_of_credit(&mut self) {
        self.stats.out_of_credit += 1;
    }

    /// Counts discarded messages in the statistics.
    pub(crate) fn record_discarded(&mut self, messages: usize) {
        self.stats.discarded += messages as u64;
    }

    /// Returns the names of the peers, if the endpoint reports unknown senders.
    #[inline]
    pub(crate) fn sender_names(&self) -> Option<&SenderNames> {
        self.sender_names.as_deref()
    }

    /// As [`sender_names`](Self::sender_names), to be changed.
    pub(crate) fn sender_names_mut(&mut self) -> Option<&mut SenderNames> {
        self.sender_names.as_deref_mut()
    }

    /// Makes this a passive or connected endpoint.
    pub(crate) fn set_cm(&mut self, cm: CmState) {
        self.cm = Some(Box::new(cm));
    }
}

/// The endpoints and shared receive contexts of a domain.
#[derive(Debug)]
pub(crate) struct Endpoints {
    by_id: IdMap<EndpointState>,
    /// The peers of shared receive contexts: messages from them may wait after they have
    /// disconnected.
    shared_peers: SharedPeers,
}

impl Endpoints {
    pub(crate) fn new() -> Self {
        Self {
            by_id: IdMap::new(),
            shared_peers: SharedPeers::default(),
        }
    }

    /// Adds an endpoint or a shared receive context with these bindings, and assigns its id.
    pub(crate) fn insert(&mut self, bindings: Bindings) -> EpId {
        EpId(self.by_id.insert(EndpointState {
            tx_credits: TxCredits::new(bindings.tx_size),
            sender_names: bindings.source_err.then(Box::default),
            bindings,
            posted_recvs: 0,
            stats: EndpointStats::default(),
            cm: None,
        }))
    }

    pub(crate) fn remove(&mut self, ep: EpId) {
        self.by_id.remove(ep.0);
        self.shared_peers.remove(ep);
    }

    #[inline]
    pub(crate) fn get(&self, ep: EpId) -> Option<&EndpointState> {
        self.by_id.get(ep.0)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, ep: EpId) -> Option<&mut EndpointState> {
        self.by_id.get_mut(ep.0)
    }

    /// Returns an endpoint.
    ///
    /// # Errors
    /// [`Error::Closed`].
    #[inline]
    pub(crate) fn get_open(&mut self, ep: EpId) -> Result<&mut EndpointState> {
        let ep = self.get_mut(ep);
        ep.ok_or_else(|| Error::Closed(Class::Endpoint))
    }

    #[inline]
    fn bindings_of(&self, ep: EpId) -> Option<&Bindings> {
        self.get(ep).map(EndpointState::bindings)
    }

    /// Returns the longest message of an endpoint; 0 if it is closed.
    pub(crate) fn max_msg_size(&self, ep: EpId) -> usize {
        self.bindings_of(ep).map_or(0, |bound| bound.max_msg_size)
    }

    /// Returns the completion queue to which operations of this kind report.
    #[inline]
    pub(crate) fn cq_of(&self, ep: EpId, kind: OpKind) -> Option<CqId> {
        let bindings = self.bindings_of(ep)?;
        if kind.is_rx() {
            bindings.rx_cq
        } else {
            bindings.tx_cq
        }
    }

    /// Returns the shared context whose queue an endpoint uses.
    pub(crate) fn rx_context_of(&self, ep: EpId) -> Option<EpId> {
        self.bindings_of(ep)?.shared_rx
    }

    /// Returns the endpoints that share this context.
    pub(crate) fn sharing(&self, context: EpId) -> Vec<EpId> {
        self.ids_where(|bound| bound.shared_rx == Some(context))
    }

    /// Returns the endpoints and shared contexts that are bound to an address vector.
    pub(crate) fn bound_to_av(&self, av: AvId) -> Vec<EpId> {
        self.ids_where(|bound| bound.av == av)
    }

    fn ids_where(&self, predicate: impl Fn(&Bindings) -> bool) -> Vec<EpId> {
        let matching = self.by_id.iter().filter(|(_, ep)| predicate(&ep.bindings));
        matching.map(|(id, _)| EpId(id)).collect()
    }

    /// Queues an operation or a permit that waits for a credit or behind a fence.
    pub(crate) fn enqueue_for_credit(
        &mut self,
        ep: EpId,
        op: OpKey,
        peer: FiAddr,
        awaits: AwaitedGrant,
    ) {
        if let Some(ep) = self.get_mut(ep) {
            ep.tx_credits.enqueue(CreditWaiter { op, peer, awaits });
        }
    }

    /// Adds a peer of a shared context that has connected to this endpoint. Returns the key of the
    /// peer, which is unique in the domain.
    pub(crate) fn add_shared_peer(&mut self, ep: EpId) -> PeerKey {
        self.shared_peers.add(ep)
    }

    /// Returns whether any peer has connected to an open endpoint that shares a context.
    #[inline]
    pub(crate) fn has_shared_peers(&self) -> bool {
        !self.shared_peers.is_empty()
    }

    /// Returns the endpoint that a peer is or was connected to, if the endpoint shares this
    /// context.
    pub(crate) fn arrival_endpoint(&self, context: EpId, peer: PeerKey) -> Option<EpId> {
        let sharer = self.shared_peers.endpoint_of(peer)?;
        (self.rx_context_of(sharer) == Some(context)).then_some(sharer)
    }

    /// Counts a message as received.
    ///
    /// Each message is counted once: when it is reported to a queue, or when its future or stream
    /// takes it. A future or stream that is dropped first does not count its message: the message
    /// goes to another receive.
    #[inline]
    pub(crate) fn count_received(&mut self, ep: EpId, transfer: &Transfer) {
        if let Some(ep) = self.get_mut(ep) {
            ep.record_message(transfer.len);
        }
        if self.has_shared_peers() {
            self.record_at_arrival_endpoint(ep, transfer.peer(), transfer.len);
        }
    }

    /// Counts a received message, in number and bytes, at the sharer where it arrived, if its
    /// receive was posted to a shared context.
    #[cold]
    pub(crate) fn record_at_arrival_endpoint(
        &mut self,
        posted_to: EpId,
        peer: PeerKey,
        len: usize,
    ) {
        if let Some(sharer) = self.arrival_endpoint(posted_to, peer)
            && let Some(ep) = self.get_mut(sharer)
        {
            ep.record_message(len);
        }
    }

    /// Returns the connection management state of a passive or connected endpoint.
    pub(crate) fn cm(&mut self, ep: EpId) -> Option<&mut CmState> {
        self.get_mut(ep)?.cm.as_deref_mut()
    }

    /// Wakes all tasks that wait for connection requests or connections.
    pub(crate) fn wake_all(&mut self, deferred: &mut Deferred) {
        for (_, ep) in self.by_id.iter_mut() {
            if let Some(cm) = &mut ep.cm {
                cm.waiter.wake(deferred);
            }
        }
    }
}
