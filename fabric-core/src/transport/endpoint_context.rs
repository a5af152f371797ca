//! An endpoint as its transport sees it during a call.

use std::sync::Arc;

use crate::address::{Address, FiAddr};
use crate::buf::{AnyBuf, CopySource, Payload, PeerMemory};
use crate::completion::{Outcome, Transfer};
use crate::error::{Error, Result};
use crate::event::EventKind;
use crate::matching::{Envelope, PeerKey};
use crate::mr::{Region, RmaIov};
use crate::op::{EpId, OpKey, RemoteAccess, RmaIovId};
use crate::rx::{BudgetGroup, DiscardedMessages, Incarnation, PartialId, PlainRun, RxQueue};

use super::{Connected, EngineContext};

/// An endpoint during a call of its transport: the receive queue, and the services of the engine.
///
/// A transport reports what has arrived: a whole message, or the beginning of a message and its
/// pieces, each with a source of bytes. The receive queue decides which receive gets the message
/// and copies the bytes there, or buffers the message within its budget, or *declines* it: the
/// message must then stay where it is. A transport sees neither posted receives nor buffered
/// messages.
#[derive(Debug)]
pub struct EndpointContext<'a, E> {
    ep: EpId,
    rx: &'a mut RxQueue,
    engine: &'a mut E,
}

impl<'a, E: EngineContext> EndpointContext<'a, E> {
    /// Creates the context of an endpoint with its receive queue, which may be one that the
    /// endpoint shares with others.
    #[inline(always)] // on the fast path of small messages
    pub fn new(ep: EpId, rx: &'a mut RxQueue, engine: &'a mut E) -> Self {
        Self { ep, rx, engine }
    }

    /// Returns the id of the endpoint.
    #[must_use]
    pub fn ep(&self) -> EpId {
        self.ep
    }
}

/// The receive queue.
impl<E: EngineContext> EndpointContext<'_, E> {
    /// Returns whether endpoints share the queue.
    #[must_use]
    #[inline(always)] // on the fast path of small messages
    pub fn shares_rx(&self) -> bool {
        self.rx.is_shared()
    }

    /// Returns whether any receive is posted.
    #[must_use]
    #[inline]
    pub fn has_posted(&self) -> bool {
        self.rx.has_posted()
    }

    /// Returns whether a probe waits for a message.
    #[must_use]
    pub fn has_probes(&self) -> bool {
        self.rx.has_probes()
    }

    /// Returns whether unexpected messages are to be delivered to multi-receives,
    /// [`copy_next_chunk`](Self::copy_next_chunk) has work, or acks are unsent.
    #[must_use]
    #[inline]
    pub fn rx_has_work(&self) -> bool {
        self.rx.has_work()
    }

    /// Returns whether the queue [has work](Self::rx_has_work), or has multi-receives, which get
    /// work when their completion queue has room.
    #[must_use]
    pub fn rx_is_busy(&self) -> bool {
        self.rx.is_busy()
    }

    /// Returns whether a multi-receive waits for room in its completion queue.
    #[must_use]
    pub fn waits_for_cq_room(&self) -> bool {
        self.rx.waits_for_cq_room()
    }

    /// Returns a number that grows with each change after which a message or an access that the
    /// transport holds may be accepted ([`RxQueue::changes`],
    /// [`EngineContext::access_changes`]). The engine reports the change, or makes a pass.
    #[must_use]
    #[inline]
    pub fn changes_for_held(&self) -> u64 {
        self.rx.changes().wrapping_add(self.engine.access_changes())
    }

    /// Declines a message again, unless a posted receive would take it now or the budget has room
    /// for it. Returns whether the message was declined.
    #[must_use]
    pub fn decline_again(&mut self, envelope: &Envelope) -> bool {
        self.rx.decline_again(self.engine, envelope)
    }

    /// Sets whether the engine reports each posted receive to the transport, as initially. If not,
    /// it reports only a post after which the queue [has work](Self::rx_has_work): the transport
    /// holds no message for which a receive may be posted. Has no effect on a shared queue, for
    /// which several endpoints may hold messages.
    pub fn set_post_reports(&mut self, post_reports: bool) {
        self.rx.set_post_reports(post_reports);
    }

    /// Sets that the transport drops the messages that the queue declines, and holds none.
    pub fn set_drops_declined(&mut self) {
        self.rx.set_drops_declined();
    }

    /// Begins a run of plain messages of one peer, given by its key and its address handle. `None`
    /// if each message must be [delivered](Self::deliver) by itself.
    #[inline(always)] // on the fast path of small messages
    pub fn begin_plain_run(
        &mut self,
        peer: (PeerKey, Option<FiAddr>),
    ) -> Option<PlainRun<'_, E::PlainSink<'_>>> {
        self.rx.begin_plain_run(self.engine, peer)
    }

    /// Delivers a whole message. Returns false when the message is declined: no receive matches and
    /// the budget is used up, or the matching multi-receive is blocked.
    ///
    /// `bytes` may be shorter than the envelope's length: the rest of the message is lost. `bytes`
    /// must then hold as much as the endpoint can receive at all.
    #[inline(always)] // on the fast path of small messages
    pub fn deliver(&mut self, envelope: Envelope, bytes: &impl CopySource) -> bool {
        self.rx.deliver(self.engine, envelope, bytes)
    }

    /// Delivers a whole message in the memory of its sender. Returns false when the message is
    /// declined, as [`deliver`](Self::deliver).
    pub fn deliver_peer_memory(
        &mut self,
        envelope: Envelope,
        memory: &Arc<dyn PeerMemory>,
    ) -> bool {
        self.rx.deliver_peer_memory(self.engine, envelope, memory)
    }

    /// Begins a message that arrives in pieces. Returns `None` when the message is declined, as
    /// [`deliver`](Self::deliver) returns false.
    ///
    /// Memory for the whole message is reserved now, so that no piece reallocates the buffer. A
    /// receive whose memory cannot be reserved fails with [`Error::OutOfMemory`], and the message
    /// is discarded as it arrives.
    pub fn begin_partial(&mut self, envelope: Envelope) -> Option<PartialId> {
        self.rx.begin_partial(self.engine, envelope)
    }

    /// Returns how many bytes of this message have not arrived yet.
    #[must_use]
    pub fn remaining(&self, id: PartialId) -> usize {
        self.rx.remaining(id)
    }

    /// Appends a piece; at most [`remaining`](Self::remaining) bytes of it are used. Returns true
    /// when the message is complete, and `id` is then no longer valid.
    pub fn append(&mut self, id: PartialId, piece: &dyn CopySource) -> bool {
        self.rx.append(self.engine, id, piece)
    }

    /// Discards a message whose rest will never arrive. Its receive waits for another message or
    /// fails; a claim keeps the bytes that have arrived.
    pub fn fail_partial(&mut self, id: PartialId, error: Error) {
        self.rx.fail_partial(self.engine, id, error);
    }

    /// Reports that the connection of a departed peer was closed to make room, and that its held
    /// messages were discarded. `bytes` of them had been read.
    pub fn on_held_discarded(&mut self, peer: Address, source: Option<FiAddr>, bytes: usize) {
        let report = DiscardedMessages {
            peer: Some(peer),
            peers: 1,
            messages: 1,
            bytes,
            sources: source.into_iter().collect(),
        };
        self.engine.on_discarded(self.ep, &report);
    }

    /// Copies the next chunk of a message in the memory of its sender, taking turns between
    /// messages. Returns false when no message is being copied.
    pub fn copy_next_chunk(&mut self) -> bool {
        self.rx.copy_next_chunk(self.engine)
    }

    /// Returns whether there are acks to send.
    #[must_use]
    #[inline]
    pub fn has_unsent_acks(&self) -> bool {
        self.rx.has_unsent_acks()
    }

    /// Takes an ack to send to a peer of this endpoint: the sender of the message, and the id of
    /// the ack.
    pub fn pop_ack(&mut self) -> Option<(PeerKey, u32)> {
        self.rx.pop_ack(self.ep)
    }

    /// Records the name of a peer that has connected, and that this endpoint identifies by `peer`.
    /// Returns the key to use for the peer: endpoints that share a queue must not use the same
    /// keys.
    #[must_use]
    pub fn connect_peer(&mut self, peer: PeerKey, name: &Address) -> PeerKey {
        let peer = self.rx.connect_peer(self.engine, self.ep, peer, name);
        self.engine.sender_connected(self.rx.ep(), peer, name);
        peer
    }

    /// Sets the group of a connected peer that the program has not inserted, before its first
    /// message.
    pub fn set_budget_group(&mut self, peer: PeerKey, group: BudgetGroup) {
        self.rx.set_budget_group(peer, group);
    }

    /// Charges bytes that the transport holds for a peer to the budget for unexpected messages.
    /// Returns false, with nothing charged, if the budget has no room for this peer.
    #[must_use]
    pub fn charge_peer(&mut self, peer: PeerKey, bytes: usize) -> bool {
        self.rx.charge_peer(peer, bytes)
    }

    /// Returns bytes that were charged with [`charge_peer`](Self::charge_peer) to the budget.
    pub fn release_peer(&mut self, peer: PeerKey, bytes: usize) {
        self.rx.release_peer(peer, bytes);
    }

    /// Returns whether the budget has declined messages of peers that no event has reported.
    #[must_use]
    #[inline]
    pub fn has_peers_over_budget(&self) -> bool {
        self.rx.has_peers_over_budget()
    }

    /// Reports the peers whose messages the budget has declined ([`EventKind::PeerOverBudget`]).
    /// `peer_of` returns the name and the handle of a peer; `None` for a peer of another endpoint
    /// that shares the queue.
    pub fn report_peers_over_budget(
        &mut self,
        mut peer_of: impl FnMut(PeerKey) -> Option<(Address, Option<FiAddr>)>,
    ) {
        let (engine, ep) = (&mut *self.engine, self.ep);
        self.rx.report_peers_over_budget(|over_budget| {
            let Some((peer, source)) = peer_of(over_budget.peer) else {
                return false;
            };
            let (len, buffered) = (over_budget.len, over_budget.buffered);
            let kind = EventKind::PeerOverBudget {
                peer,
                source,
                len,
                buffered,
            };
            engine.event(ep, kind);
            true
        });
    }

    /// Records that a peer has disconnected, after all its messages were delivered. A handle that
    /// is inserted later is still assigned to the peer's unexpected messages.
    pub fn disconnect_peer(&mut self, peer: PeerKey, name: Address) {
        self.engine.sender_disconnected(self.rx.ep(), peer);
        self.rx.disconnect_peer(peer, name);
    }

    /// Assigns a handle to the messages without a source of this peer, and offers the unexpected
    /// ones to posted receives. A shared queue ignores the call: it knows its connected peers, and
    /// has an address vector of its own.
    pub fn assign_source(&mut self, peer: PeerKey, source: FiAddr) {
        self.rx.assign_source(self.engine, peer, source);
    }

    /// Fails receives directed to this peer, which has disconnected from one endpoint, unless the
    /// peer is still connected to another endpoint that shares the queue.
    pub fn fail_directed_to_disconnected(&mut self, source: FiAddr, name: &Address, error: &Error) {
        self.rx
            .fail_directed_to_disconnected(self.engine, source, name, error);
    }

    /// Fails the posted receives and probes after the connection of an `FI_EP_MSG` endpoint has
    /// ended. Unexpected messages stay queued. Does nothing while a multi-receive is posted and
    /// unexpected messages, which may be for the multi-receive, are queued: the caller tries again.
    pub fn fail_posted(&mut self, error: &Error) {
        self.rx.fail_posted(self.engine, error);
    }

    /// Discards the messages of this peer in memory that is not mapped here, because the peer has
    /// disconnected. A receive to which such a message was being copied fails if it is directed,
    /// and otherwise waits for the next message.
    pub fn fail_unmapped_from(&mut self, peer: PeerKey, error: &Error) {
        self.rx.fail_unmapped_from(self.engine, peer, error);
    }
}

/// Operations.
impl<E: EngineContext> EndpointContext<'_, E> {
    /// Returns the payload of a send operation ([`EngineContext::payload`]).
    #[inline]
    pub fn payload(&self, op: OpKey) -> Payload<'_> {
        self.engine.payload(op)
    }

    /// Returns whether another process may read the payload ([`EngineContext::is_host_memory`]).
    #[must_use]
    pub fn is_host_memory(&self, op: OpKey) -> bool {
        self.engine.is_host_memory(op)
    }

    /// Takes the buffer of an operation for the kernel ([`EngineContext::take_buffer`]).
    pub fn take_buffer(&mut self, op: OpKey) -> Option<AnyBuf> {
        self.engine.take_buffer(op)
    }

    /// Returns a buffer that was taken ([`EngineContext::return_buffer`]).
    pub fn return_buffer(&mut self, op: OpKey, buf: AnyBuf) {
        self.engine.return_buffer(op, buf);
    }

    /// Returns the remote ranges of an operation that has several ([`EngineContext::rma_iovs`]).
    #[must_use]
    pub fn rma_iovs(&self, id: RmaIovId) -> &[RmaIov] {
        self.engine.rma_iovs(id)
    }

    /// Writes the response to a read ([`RxEngine::write_at`](super::RxEngine::write_at)).
    pub fn write_at(
        &mut self,
        op: OpKey,
        at: usize,
        bytes: &dyn CopySource,
        from: usize,
        count: usize,
    ) {
        self.engine.write_at(op, at, bytes, from, count);
    }

    /// Notes that the payload is no longer needed ([`EngineContext::on_payload_sent`]).
    pub fn on_payload_sent(&mut self, op: OpKey) {
        self.engine.on_payload_sent(op);
    }

    /// Completes an operation ([`RxEngine::complete`](super::RxEngine::complete)).
    #[inline]
    pub fn complete(&mut self, op: OpKey, outcome: Outcome) {
        self.engine.complete(op, outcome);
    }

    /// Completes a send successfully ([`EngineContext::complete_send`]).
    #[inline]
    pub fn complete_send(&mut self, op: OpKey, len: usize, tag: Option<u64>) {
        self.engine.complete_send(op, len, tag);
    }
}

/// Other services of the engine.
impl<E: EngineContext> EndpointContext<'_, E> {
    /// Requests that the doorbells are armed again
    /// ([`RxEngine::request_rearm`](super::RxEngine::request_rearm)).
    #[inline]
    pub fn request_rearm(&mut self) {
        self.engine.request_rearm();
    }

    /// Requests further passes ([`EngineContext::request_pass`]).
    pub fn request_pass(&mut self) {
        self.engine.request_pass();
    }

    /// Returns the region with this key ([`EngineContext::region`]).
    #[must_use]
    pub fn region(&self, key: u64) -> Option<Region> {
        self.engine.region(self.ep, key)
    }

    /// Reports an event ([`EngineContext::event`]).
    pub fn event(&mut self, event: EventKind) {
        self.engine.event(self.ep, event);
    }

    /// Reports lost loans ([`EngineContext::loans_lost`]).
    pub fn loans_lost(&mut self, peer: &Address, loans: usize) {
        self.engine.loans_lost(self.ep, peer, loans);
    }

    /// Returns the address of the peer with this handle
    /// ([`RxEngine::address_of`](super::RxEngine::address_of)).
    ///
    /// # Errors
    /// As [`RxEngine::address_of`](super::RxEngine::address_of).
    pub fn address_of(&self, addr: FiAddr) -> Result<Address> {
        self.engine.address_of(self.ep, addr)
    }

    /// Returns the incarnation behind a handle
    /// ([`RxEngine::incarnation_of`](super::RxEngine::incarnation_of)).
    #[must_use]
    pub fn incarnation_of(&self, addr: FiAddr) -> Option<Incarnation> {
        self.engine.incarnation_of(self.ep, addr)
    }

    /// Returns the handle that the program inserted for an address
    /// ([`RxEngine::fi_addr_of`](super::RxEngine::fi_addr_of)).
    #[must_use]
    pub fn fi_addr_of(&self, address: &Address) -> Option<FiAddr> {
        self.engine.fi_addr_of(self.ep, address)
    }

    /// Reports an access of a peer to a region ([`EngineContext::on_remote_access`]).
    pub fn on_remote_access(&mut self, key: u64, access: RemoteAccess, transfer: Transfer) -> bool {
        self.engine.on_remote_access(self.ep, key, access, transfer)
    }

    /// Notes that a peer connected, and returns its handle ([`EngineContext::peer_connected`]).
    pub fn peer_connected(
        &mut self,
        address: &Address,
        incarnation: Option<Incarnation>,
    ) -> Option<FiAddr> {
        self.engine.peer_connected(self.ep, address, incarnation)
    }

    /// Notes that a connection has ended ([`EngineContext::peer_disconnected`]).
    pub fn peer_disconnected(&mut self, addr: Option<FiAddr>) {
        self.engine.peer_disconnected(self.ep, addr);
    }

    /// Notes that a connection request waits ([`EngineContext::on_connreq`]).
    pub fn on_connreq(&mut self, peer: &Address, data: &[u8]) {
        self.engine.on_connreq(self.ep, peer, data);
    }

    /// Reports the result of connecting ([`EngineContext::on_connected`]).
    pub fn on_connected(&mut self, peer: &Address, result: Result<Connected>) {
        self.engine.on_connected(self.ep, peer, result);
    }
}
