//! Deliveries of received messages: the implementation of [`RxEngine`].

use fabric_core::buf::{AnyBuf, CopySource, PooledBuf};
use fabric_core::completion::{Completion, OpKind, Outcome, Transfer};
use fabric_core::event::EventKind;
use fabric_core::matching::{Envelope, PeerKey};
use fabric_core::rx::DiscardedMessages;
use fabric_core::stats::OpStats;
use fabric_core::transport::{
    EngineContext, EpId, Incarnation, MultiRecvSplit, OpKey, PlainSink, RxEngine,
};
use fabric_core::{Address, FiAddr, Result};

use super::counter::Counters;
use super::cq::CqState;
use super::deferred::Deferred;
use super::domain_state::DomainState;
use super::endpoints::EndpointState;
use super::ops::{CompletionTarget, OpTable};
use super::pending_work::FollowUp;

impl RxEngine for DomainState {
    type PlainSink<'a> = PlainDeliveries<'a>;

    #[inline(always)] // on the small-message path
    fn plain_sink(&mut self, queue: EpId) -> Option<PlainDeliveries<'_>> {
        if self.avs.departing_count() > 0 {
            return None;
        }
        let ep = self.endpoints.get_mut(queue)?;
        if ep.bindings().source_err {
            return None;
        }
        let cq = self.cqs.get_mut(ep.bindings().rx_cq);
        let reported_before = cq.as_ref().map_or(0, |cq| cq.len());
        Some(PlainDeliveries {
            cq,
            ep,
            ops: &mut self.ops,
            counters: &mut self.counters,
            deferred: &mut self.deferred,
            completed: 0,
            reported_before,
            reported_bytes: 0,
        })
    }

    fn begin_fill(&mut self, op: OpKey, len: usize) -> Result<usize> {
        let Some(op) = self.ops.get_mut(op) else {
            return Ok(0);
        };
        let limit = self.endpoints.max_msg_size(op.ep);
        op.buf.begin_fill(len.min(limit))?;
        Ok(op.buf.recv_capacity().min(limit))
    }

    fn write_at(
        &mut self,
        op: OpKey,
        at: usize,
        bytes: &dyn CopySource,
        from: usize,
        count: usize,
    ) {
        if let Some(op) = self.ops.get_mut(op) {
            op.buf.write_at(at, bytes, from, count);
        }
    }

    #[inline(always)] // on the small-message path
    fn deliver(&mut self, key: OpKey, envelope: &Envelope, bytes: &impl CopySource) {
        let Some(op) = self.ops.get_mut(key) else {
            return;
        };
        let Some(ep) = self
            .endpoints
            .get_mut(op.ep)
            .filter(|ep| envelope.len <= ep.bindings().max_msg_size)
        else {
            return self.fill_and_complete(key, envelope, bytes);
        };
        let placed = match op.buf.receive(bytes) {
            Ok(placed) => placed,
            Err(error) => {
                let outcome = Outcome::partial(Transfer::received(envelope, 0), error);
                return self.complete(key, outcome);
            }
        };
        let target = op.target();
        let is_unknown = envelope.source.is_none() && ep.bindings().source_err;
        if !matches!(target, CompletionTarget::Future | CompletionTarget::Cq(_))
            || placed < envelope.len
            || is_unknown
        {
            return self.complete(key, Outcome::received(envelope, placed));
        }
        // The fast case: the most frequent kinds of receive.
        ep.release_recv(op.take_recv_place());
        let (counter, queue) = (ep.bindings().counters.recv, ep.bindings().rx_cq);
        if let CompletionTarget::Cq(context) = target {
            ep.record_message(placed);
            let (ep, buf) = (op.ep, std::mem::take(&mut op.buf));
            self.ops.free(key);
            if self.endpoints.has_shared_peers() {
                let peer = envelope.peer;
                self.endpoints.record_at_arrival_endpoint(ep, peer, placed);
                self.count_recv_at_arrival_endpoint(ep, envelope.peer, true);
            }
            let outcome = Outcome::ok(Transfer::received(envelope, placed));
            self.report_to_cq(queue, OpKind::Recv, context, outcome, buf);
        } else {
            op.finish_ok(Transfer::received(envelope, placed), &mut self.deferred);
            let ep = op.ep;
            if self.endpoints.has_shared_peers() {
                self.count_recv_at_arrival_endpoint(ep, envelope.peer, true);
            }
        }
        self.counters.count(counter, true, &mut self.deferred);
    }

    fn accepts_loan(&self, op: OpKey, len: usize) -> bool {
        let op = self.ops.get(op);
        op.is_some_and(|op| {
            let limit = self.endpoints.max_msg_size(op.ep);
            matches!(&op.buf, AnyBuf::Loaned(loaned) if loaned.accepts_loan() && len <= limit)
        })
    }

    fn split_multi_recv(&mut self, op: OpKey, envelope: &Envelope) -> MultiRecvSplit {
        self.split_for_message(op, envelope)
    }

    fn reserve_cq_room(&mut self, op: OpKey) -> bool {
        self.has_room_for_message(op)
    }

    fn give_buffered(&mut self, op: OpKey, mut bytes: PooledBuf) -> usize {
        let Some(op) = self.ops.get_mut(op) else {
            return 0;
        };
        let limit = self.endpoints.max_msg_size(op.ep);
        bytes.truncate(limit);
        let len = bytes.len();
        match &mut op.buf {
            AnyBuf::Pooled(pooled) => *pooled = bytes,
            AnyBuf::Loaned(loaned) => *loaned.pooled_mut() = bytes,
            buf => {
                let placed = buf.recv_capacity().min(len);
                buf.write_at(0, &&bytes[..], 0, placed);
                return placed;
            }
        }
        len
    }

    fn adopt_partial(
        &mut self,
        op: OpKey,
        mut bytes: PooledBuf,
        len: usize,
    ) -> Result<(usize, usize)> {
        let limit = self
            .ops
            .get(op)
            .map_or(0, |op| self.endpoints.max_msg_size(op.ep));
        let pooled = match self.ops.get_mut(op).map(|op| &mut op.buf) {
            Some(AnyBuf::Pooled(pooled)) if bytes.has_room(len.min(limit)) => pooled,
            Some(AnyBuf::Loaned(loaned)) if bytes.has_room(len.min(limit)) => loaned.pooled_mut(),
            _ => {
                let room = self.begin_fill(op, len)?;
                let placed = bytes.len().min(room);
                self.write_at(op, 0, &&bytes[..], 0, placed);
                return Ok((room, placed));
            }
        };
        bytes.truncate(limit);
        let placed = bytes.len();
        *pooled = bytes;
        Ok((limit, placed))
    }

    fn copy_received(&mut self, key: OpKey, filled: usize, into: &mut PooledBuf) {
        let Some(op) = self.ops.get_mut(key) else {
            return;
        };
        op.buf.finish(filled);
        op.buf
            .payload()
            .slice(0, filled)
            .for_each(|_, piece| into.extend_from_slice(piece));
    }

    fn on_arriving(&mut self) {
        if self.arrival_timer.on_arriving() {
            self.pending_work.push(FollowUp::StartArrivalTimer);
        }
    }

    fn take_received(&mut self, key: OpKey, filled: usize) -> PooledBuf {
        let Some(op) = self.ops.get_mut(key) else {
            return PooledBuf::empty();
        };
        op.buf.finish(filled);
        match std::mem::take(&mut op.buf) {
            AnyBuf::Pooled(buf) => buf,
            AnyBuf::Vec(buf) => PooledBuf::from_vec(buf),
            AnyBuf::Loaned(mut loaned) if !loaned.is_in_place() => {
                std::mem::take(loaned.pooled_mut())
            }
            other => {
                let mut copy = PooledBuf::with_capacity(filled);
                other
                    .payload()
                    .slice(0, filled)
                    .for_each(|_, piece| copy.extend_from_slice(piece));
                self.deferred.drop_buffer(other);
                copy
            }
        }
    }

    fn repost(&mut self, op: OpKey) {
        let Some(op) = self.ops.get_mut(op) else {
            return;
        };
        if let Some(grown) = op.buf.clear() {
            self.deferred.drop_buffer(AnyBuf::Pooled(grown));
        }
        // A task that waits to cancel the receive can do so now.
        op.waiter.wake(&mut self.deferred);
        // The receive may accept a message of another peer that a transport holds, and no peer
        // rings for that.
        self.pending_work.push(FollowUp::MakePass);
    }

    fn discard_part(&mut self, op: OpKey) {
        self.part_lost(op);
    }

    fn complete(&mut self, key: OpKey, mut outcome: Outcome) {
        if self.ops.has_in_flight()
            && let Some(in_flight) = self.ops.in_flight_mut(key)
        {
            return in_flight.defer(outcome);
        }
        let Some(op) = self.ops.get_mut(key) else {
            return;
        };
        let (ep, kind, target) = (op.ep, op.kind, op.target());
        let (is_wait, held_credit) = (op.is_wait(), op.holds_credit());
        if outcome.error.is_none() {
            outcome.error = self.endpoints.source_error(ep, kind, &outcome.transfer);
        }
        if kind.fills_buffer() {
            op.buf.finish(outcome.transfer.len);
        }
        // The slot may stay until its future takes the result, but its resources are returned now.
        self.release_op_resources(key);
        if !held_credit
            && kind != OpKind::Recv
            && self
                .endpoints
                .get(ep)
                .is_some_and(|ep| !ep.tx_credits.has_no_waiters())
        {
            // A batched message holds no credit, and a fenced operation may wait for it.
            self.pending_work.push(FollowUp::GrantCredits(ep));
        }
        if !is_wait {
            let (transfer, ok) = (&outcome.transfer, outcome.error.is_none());
            self.count_op(ep, kind, transfer.len, ok);
            if kind == OpKind::Recv {
                if self.endpoints.has_shared_peers() {
                    self.count_recv_at_arrival_endpoint(ep, transfer.peer(), ok);
                }
                if ok && !self.multi_recvs.may_abandon_message(target) {
                    self.endpoints.count_received(ep, transfer);
                }
            }
        }
        let queue = self.endpoints.cq_of(ep, kind);
        self.report_op(key, outcome, queue);
    }

    fn request_rearm(&mut self) {
        self.pending_work.request_rearm();
    }

    fn address_of(&self, ep: EpId, addr: FiAddr) -> Result<Address> {
        let av = self.av_of(ep)?;
        av.peer_address(addr).cloned()
    }

    fn incarnation_of(&self, ep: EpId, addr: FiAddr) -> Option<Incarnation> {
        self.av_of(ep).ok()?.incarnation_of(addr)
    }

    fn fi_addr_of(&self, ep: EpId, address: &Address) -> Option<FiAddr> {
        let av = self.av_of(ep).ok()?;
        let found = av.table().find(address);
        found.filter(|addr| av.incarnation_of(*addr).is_none())
    }

    fn new_shared_peer_key(&mut self, ep: EpId) -> PeerKey {
        self.endpoints.add_shared_peer(ep)
    }

    fn sender_connected(&mut self, queue: EpId, peer: PeerKey, name: &Address) {
        if let Some(names) = self.endpoints.sender_names_of(queue) {
            names.connect(peer, name);
        }
    }

    fn sender_disconnected(&mut self, queue: EpId, peer: PeerKey) {
        if let Some(names) = self.endpoints.sender_names_of(queue) {
            names.disconnect(peer);
        }
    }

    fn on_discarded(&mut self, queue: EpId, discarded: &DiscardedMessages) {
        if let Some(ep) = self.endpoints.get_mut(queue) {
            ep.record_discarded(discarded.messages);
        }
        for source in &discarded.sources {
            self.on_message_consumed(Some(*source));
        }
        let kind = EventKind::MessagesDiscarded {
            peer: discarded.peer.clone(),
            peers: discarded.peers,
            messages: discarded.messages,
            bytes: discarded.bytes,
        };
        self.event(queue, kind);
    }

    fn departing_address(&self, addr: FiAddr) -> Option<Address> {
        self.avs.departing_address(addr)
    }
}

/// Deliveries of plain messages to the receives of one queue. Endpoint and completion queue are
/// looked up once for all messages; statistics, counter and waiter of the queue are updated on
/// drop.
#[derive(Debug)]
pub struct PlainDeliveries<'a> {
    ep: &'a mut EndpointState,
    cq: Option<&'a mut CqState>,
    ops: &'a mut OpTable,
    counters: &'a mut Counters,
    deferred: &'a mut Deferred,
    /// Number of messages whose receives have futures.
    completed: u64,
    /// The number of completions that were in the queue before.
    reported_before: usize,
    /// Bytes of the messages that were reported to the completion queue.
    reported_bytes: u64,
}

impl PlainSink for PlainDeliveries<'_> {
    #[inline(always)] // on the small-message path
    fn deliver(
        &mut self,
        key: OpKey,
        peer: &(PeerKey, Option<FiAddr>),
        arrival: u64,
        bytes: &(impl CopySource + Copy),
    ) -> bool {
        let len = bytes.len();
        let transfer = || Transfer::received_plain(*peer, arrival, len);
        if len > self.ep.bindings().max_msg_size {
            return false;
        }
        let Some((op, first_free)) = self.ops.get_with_free_slots(key) else {
            return false;
        };
        let report_to = match (op.target(), &mut self.cq) {
            (CompletionTarget::Cq(context), Some(cq)) => Some((context, cq)),
            (CompletionTarget::Future, _) => None,
            _ => return false,
        };
        if !op.buf.receive_whole(bytes) {
            return false;
        }
        self.ep.release_recv(op.take_recv_place());
        if let Some((context, cq)) = report_to {
            let buf = &mut op.buf;
            cq.extend((0..1).map(
                #[inline(always)] // on the small-message path
                |_| {
                    let (outcome, buf) = (Outcome::ok(transfer()), std::mem::take(buf));
                    Completion::new(context, OpKind::Recv, outcome, buf)
                },
            ));
            op.free(key, first_free);
            self.reported_bytes += len as u64;
        } else {
            op.finish_ok(transfer(), self.deferred);
            self.completed += 1;
        }
        true
    }
}

impl Drop for PlainDeliveries<'_> {
    #[inline(always)] // on the small-message path
    fn drop(&mut self) {
        let mut reported = OpStats::default();
        if let Some(cq) = &mut self.cq
            && cq.len() > self.reported_before
        {
            reported.count = (cq.len() - self.reported_before) as u64;
            reported.bytes = self.reported_bytes;
            self.ep.record_messages(reported);
            cq.reader.wake(self.deferred);
        }
        if let Some(counter) = self.ep.bindings().counters.recv {
            let received = self.completed + reported.count;
            self.counters.add(counter, received, 0, self.deferred);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use fabric_core::Error;
    use fabric_core::buf::IoBuf;
    use fabric_core::matching::RecvSpec;
    use fabric_core::rx::{PlainDelivery, RxQueue};

    use super::*;
    use crate::engine::state::bindings::Bindings;

    #[test]
    fn receive_that_a_copy_does_not_complete_stays_posted() {
        let mut domain = DomainState::default();
        let av = domain.avs.open(false);
        let ep = domain.endpoints.insert(Bindings {
            max_msg_size: 64,
            ..Bindings::for_tests(av)
        });
        let mut rx = RxQueue::new(ep, 1 << 20);
        let short = vec![0; 4].into_boxed_slice().into_any();
        let op = domain.ops.insert_recv(ep, CompletionTarget::Future, short);
        domain.endpoints.get_open(ep).unwrap().add_posted_recvs(1);
        let any = RecvSpec {
            from: None,
            tag: None,
        };
        rx.post(&mut domain, op, any);
        let peer = (PeerKey(1), None);
        let delivery = rx
            .begin_plain_run(&mut domain, peer)
            .map(|mut run| run.deliver(&&b"message"[..]));
        assert_eq!(delivery, Some(PlainDelivery::Declined));
        assert!(!domain.ops.is_done(op) && rx.has_posted());
        let envelope = Transfer::received_plain(peer, 0, 7).envelope(0);
        assert!(rx.deliver(&mut domain, envelope, &&b"message"[..]));
        let result = domain.take_op_result(op).unwrap();
        assert_eq!(result.transfer.len, 4);
        assert!(matches!(
            result.error.as_deref(),
            Some(Error::Truncated { .. })
        ));
    }
}
