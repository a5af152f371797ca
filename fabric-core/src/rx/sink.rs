//! The queue as a transport sees it.

use std::sync::Arc;

use crate::address::{Address, FiAddr};
use crate::buf::{CopySource, PeerMemory};
use crate::error::Error;
use crate::matching::{Envelope, PeerKey};
use crate::transport::{EngineContext, EpId, PartialId, RxSink, RxStatus};

use super::RxQueue;

impl RxStatus for RxQueue {
    #[inline(always)] // on the fast path of small messages
    fn is_shared(&self) -> bool {
        self.is_shared()
    }

    #[inline]
    fn has_posted(&self) -> bool {
        self.has_posted()
    }

    fn has_probes(&self) -> bool {
        self.has_probes()
    }

    #[inline]
    fn has_work(&self) -> bool {
        self.has_work()
    }

    fn is_busy(&self) -> bool {
        self.is_busy()
    }

    fn waits_for_cq_room(&self) -> bool {
        self.waits_for_cq_room()
    }

    fn would_accept(&self, envelope: &Envelope) -> bool {
        self.would_accept(envelope)
    }

    fn remaining(&self, id: PartialId) -> usize {
        self.remaining(id)
    }

    #[inline]
    fn has_unsent_acks(&self) -> bool {
        self.has_unsent_acks()
    }

    fn pop_ack(&mut self, ep: EpId) -> Option<(PeerKey, u32)> {
        self.pop_ack(ep)
    }

    fn set_post_reports(&mut self, post_reports: bool) {
        self.set_post_reports(post_reports);
    }

    fn peer_disconnected(&mut self, peer: PeerKey, name: Address) {
        self.peer_disconnected(peer, name);
    }
}

impl<E: EngineContext> RxSink<E> for RxQueue {
    #[inline(always)] // on the fast path of small messages
    fn deliver(&mut self, engine: &mut E, envelope: Envelope, bytes: &impl CopySource) -> bool {
        self.deliver(engine, envelope, bytes)
    }

    fn deliver_peer_memory(
        &mut self,
        engine: &mut E,
        envelope: Envelope,
        memory: &Arc<dyn PeerMemory>,
    ) -> bool {
        self.deliver_peer_memory(engine, envelope, memory)
    }

    fn begin_partial(&mut self, engine: &mut E, envelope: Envelope) -> Option<PartialId> {
        self.begin_partial(engine, envelope)
    }

    fn append(&mut self, engine: &mut E, id: PartialId, piece: &dyn CopySource) -> bool {
        self.append(engine, id, piece)
    }

    fn fail_partial(&mut self, engine: &mut E, id: PartialId, error: Error) {
        self.fail_partial(engine, id, error);
    }

    #[inline]
    fn drain_unexpected(&mut self, engine: &mut E) -> bool {
        self.drain_unexpected(engine)
    }

    fn copy_next_chunk(&mut self, engine: &mut E) -> bool {
        self.copy_next_chunk(engine)
    }

    fn peer_connected(
        &mut self,
        engine: &mut E,
        ep: EpId,
        peer: PeerKey,
        name: &Address,
    ) -> PeerKey {
        self.peer_connected(engine, ep, peer, name)
    }

    fn assign_source(&mut self, engine: &mut E, peer: PeerKey, source: FiAddr) {
        self.assign_source(engine, peer, source);
    }

    fn fail_directed_to_disconnected(
        &mut self,
        engine: &mut E,
        source: FiAddr,
        name: &Address,
        error: &Error,
    ) {
        self.fail_directed_to_disconnected(engine, source, name, error);
    }

    fn fail_posted(&mut self, engine: &mut E, error: &Error) {
        self.fail_posted(engine, error);
    }

    fn fail_unmapped_from(&mut self, engine: &mut E, peer: PeerKey, error: &Error) {
        self.fail_unmapped_from(engine, peer, error);
    }
}
