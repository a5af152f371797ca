//! The receive queue of an endpoint as its transport sees it.
//!
//! A transport reports what has arrived: a whole message, or the beginning of a message and its
//! pieces, each with a source of bytes. The queue decides which receive gets the message and copies
//! the bytes there, or buffers the message within its budget, or declines it. A transport sees
//! neither posted receives nor buffered messages.

use std::sync::Arc;

use crate::address::{Address, FiAddr};
use crate::buf::{CopySource, PeerMemory};
use crate::error::Error;
use crate::matching::{Envelope, PeerKey};

use super::{EngineContext, EpId};

/// The id of a message that is arriving in pieces, valid until the message is complete or has
/// failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialId(pub(crate) usize);

/// What a transport may ask of a receive queue.
pub trait RxStatus {
    /// Returns whether endpoints share the queue.
    fn is_shared(&self) -> bool;

    /// Returns whether any receive is posted.
    fn has_posted(&self) -> bool;

    /// Returns whether a probe waits for a message.
    fn has_probes(&self) -> bool;

    /// Returns whether [`RxSink::drain_unexpected`] or [`RxSink::copy_next_chunk`] has work, or
    /// acks are unsent.
    fn has_work(&self) -> bool;

    /// Returns whether the queue [has work](Self::has_work), or has multi-receives, which get work
    /// when their completion queue has room.
    fn is_busy(&self) -> bool;

    /// Returns whether a multi-receive waits for room in its completion queue.
    fn waits_for_cq_room(&self) -> bool;

    /// Returns whether a posted receive would take this message now, or the budget has room for it.
    fn would_accept(&self, envelope: &Envelope) -> bool;

    /// Returns how many bytes of this message have not arrived yet.
    fn remaining(&self, id: PartialId) -> usize;

    /// Returns whether there are acks to send.
    fn has_unsent_acks(&self) -> bool;

    /// Takes an ack to send to a peer of this endpoint: the sender of the message, and the id of
    /// the ack.
    fn pop_ack(&mut self, ep: EpId) -> Option<(PeerKey, u32)>;

    /// Sets whether the engine reports each posted receive to the transport, as initially. If not,
    /// it reports only a post after which the queue [has work](Self::has_work): the transport holds
    /// no message back for which a receive may be posted. Has no effect on a shared queue, which
    /// several endpoints may hold messages back for.
    fn set_post_reports(&mut self, post_reports: bool);

    /// Records that a peer has disconnected, after all its messages were delivered. A handle that
    /// is inserted later is still assigned to the peer's unexpected messages.
    fn peer_disconnected(&mut self, peer: PeerKey, name: Address);
}

/// Where a transport reports what has arrived.
pub trait RxSink<E: EngineContext>: RxStatus {
    /// Delivers a whole message. Returns false when the message is declined and must stay where it
    /// is: no receive matches and the budget is used up, or the matching multi-receive is blocked.
    ///
    /// `bytes` may be shorter than the envelope's length: the rest of the message is lost. `bytes`
    /// must then hold as much as the endpoint can receive at all.
    fn deliver(&mut self, engine: &mut E, envelope: Envelope, bytes: &impl CopySource) -> bool
    where
        Self: Sized;

    /// Delivers a whole message in the memory of its sender. Returns false when the message is
    /// declined, as [`deliver`](Self::deliver).
    fn deliver_peer_memory(
        &mut self,
        engine: &mut E,
        envelope: Envelope,
        memory: &Arc<dyn PeerMemory>,
    ) -> bool;

    /// Begins a message that arrives in pieces. Returns `None` when the message is declined, as
    /// [`deliver`](Self::deliver) returns false.
    ///
    /// Memory for the whole message is reserved now, so that no piece reallocates the buffer. A
    /// receive whose memory cannot be reserved fails with [`Error::OutOfMemory`], and the message
    /// is discarded as it arrives.
    fn begin_partial(&mut self, engine: &mut E, envelope: Envelope) -> Option<PartialId>;

    /// Appends a piece; at most [`RxStatus::remaining`] bytes of it are used. Returns true when the
    /// message is complete, and `id` is then no longer valid.
    fn append(&mut self, engine: &mut E, id: PartialId, piece: &dyn CopySource) -> bool;

    /// Discards a message whose rest will never arrive. Its receive waits for another message or
    /// fails; a claim keeps the bytes that have arrived.
    fn fail_partial(&mut self, engine: &mut E, id: PartialId, error: Error);

    /// Delivers unexpected messages to multi-receives, within a bound. Returns whether any message
    /// moved.
    fn drain_unexpected(&mut self, engine: &mut E) -> bool;

    /// Copies the next chunk of a message in the memory of its sender, taking turns between
    /// messages. Returns false when no message is being copied.
    fn copy_next_chunk(&mut self, engine: &mut E) -> bool;

    /// Records that a peer has connected to `ep`, which identifies the peer by `peer`. Returns the
    /// key to use for the peer: endpoints that share a queue must not use the same keys.
    #[must_use]
    fn peer_connected(
        &mut self,
        engine: &mut E,
        ep: EpId,
        peer: PeerKey,
        name: &Address,
    ) -> PeerKey;

    /// Assigns a handle to the messages without a source of this peer, and offers the unexpected
    /// ones to posted receives. A shared queue ignores the call: it knows its connected peers, and
    /// has an address vector of its own.
    fn assign_source(&mut self, engine: &mut E, peer: PeerKey, source: FiAddr);

    /// Fails receives directed to this peer, which has disconnected from one endpoint, unless the
    /// peer is still connected to another endpoint that shares the queue.
    fn fail_directed_to_disconnected(
        &mut self,
        engine: &mut E,
        source: FiAddr,
        name: &Address,
        error: &Error,
    );

    /// Fails the posted receives and probes after the connection of an `FI_EP_MSG` endpoint has
    /// ended. Unexpected messages stay queued. Does nothing while a multi-receive is posted and
    /// unexpected messages, which may be for the multi-receive, are queued: the caller tries again.
    fn fail_posted(&mut self, engine: &mut E, error: &Error);

    /// Discards the messages of this peer in memory that is not mapped here, because the peer has
    /// disconnected. A receive to which such a message was being copied fails if it is directed,
    /// and otherwise waits for the next message.
    fn fail_unmapped_from(&mut self, engine: &mut E, peer: PeerKey, error: &Error);
}
