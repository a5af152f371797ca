//! The domain's state as a transport sees it: the implementation of [`EngineContext`].

use fabric_core::buf::{AnyBuf, CopySource, Payload, PooledBuf};
use fabric_core::completion::{OpKind, Outcome, Transfer};
use fabric_core::event::{Event, EventKind};
use fabric_core::matching::{Envelope, PeerKey};
use fabric_core::mr::Region;
use fabric_core::rx::RxQueue;
use fabric_core::stats::OpStats;
use fabric_core::transport::{
    Connected, EngineContext, EpId, Incarnation, MultiRecvSplit, OpKey, PlainMessages,
    RemoteAccess, RmaIov, RmaIovId,
};
use fabric_core::tree::Class;
use fabric_core::{Address, Error, FiAddr, Result};

use super::domain_state::{DomainState, FollowUp};
use super::ops::{CompletionTarget, OpPhase};
use super::trace::TraceEvent;

impl EngineContext for DomainState {
    type Rx = RxQueue;

    #[inline(always)] // on the small-message path
    fn take_rx(&mut self, ep: EpId) -> Box<RxQueue> {
        self.take_queue(ep)
            .expect("the endpoint is open, and its queue is used once at a time")
    }

    #[inline(always)] // on the small-message path
    fn put_rx(&mut self, queue: Box<RxQueue>) {
        self.put_queue(queue);
    }

    fn payload(&self, op: OpKey) -> Payload<'_> {
        self.ops
            .get(op)
            .map_or(Payload::Contiguous(&[]), |op| op.buf.payload())
    }

    fn is_host_memory(&self, op: OpKey) -> bool {
        self.ops.get(op).is_some_and(|op| {
            !matches!(
                op.buf,
                AnyBuf::Custom(_) | AnyBuf::Gather(_) | AnyBuf::Scatter(_)
            )
        })
    }

    fn take_buffer(&mut self, op: OpKey) -> Option<AnyBuf> {
        self.detach_buffer(op)
    }

    fn return_buffer(&mut self, op: OpKey, buf: AnyBuf) {
        if let Some(outcome) = self.reattach_buffer(op, buf) {
            self.complete(op, outcome);
        }
    }

    fn rma_iovs(&self, id: RmaIovId) -> &[RmaIov] {
        self.rma_iovs
            .get(id.0 as usize)
            .map_or(&[], |rma_iovs| rma_iovs)
    }

    fn begin_fill(&mut self, op: OpKey, len: usize) -> Result<usize> {
        let Some(op) = self.ops.get_mut(op) else {
            return Ok(0);
        };
        let limit = self
            .endpoints
            .get(op.ep.0)
            .map_or(0, |ep| ep.bindings.max_msg_size);
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
            .get_mut(op.ep.0)
            .filter(|ep| envelope.len <= ep.bindings.max_msg_size)
        else {
            return self.deliver_truncated(key, envelope, bytes);
        };
        let placed = match op.buf.receive(bytes) {
            Ok(placed) => placed,
            Err(error) => return self.deliver_nothing(key, envelope, error),
        };
        let target = op.target;
        if !matches!(target, CompletionTarget::Future | CompletionTarget::Cq(_))
            || placed < envelope.len
        {
            return self.complete(key, Outcome::received(envelope, placed));
        }
        // The fast case: the most frequent kinds of receive.
        ep.posted_recvs -= usize::from(std::mem::take(&mut op.holds_credit));
        let (counter, queue) = (ep.bindings.counters.recv, ep.bindings.rx_cq);
        if let CompletionTarget::Cq(context) = target {
            ep.stats.received.record(placed);
            let (ep, buf) = (op.ep, std::mem::take(&mut op.buf));
            self.ops.free(key);
            if !self.shared_rx_peers.is_empty() {
                self.count_message_at_arrival_endpoint(ep, envelope.peer, placed);
                self.count_recv_at_arrival_endpoint(ep, envelope.peer, true);
            }
            let outcome = Outcome::ok(Transfer::received(envelope, placed));
            self.report_to_cq(queue, OpKind::Recv, context, outcome, buf);
        } else {
            op.outcome.transfer = Transfer::received(envelope, placed);
            op.phase = OpPhase::Done;
            let (ep, waiter) = (op.ep, op.waker.take());
            self.wake_waiter(waiter);
            if !self.shared_rx_peers.is_empty() {
                self.count_recv_at_arrival_endpoint(ep, envelope.peer, true);
            }
        }
        if let Some(counter) = counter {
            self.add_to_counter(counter, true);
        }
    }

    #[inline(always)] // on the small-message path
    fn deliver_plain(
        &mut self,
        rx: &mut RxQueue,
        (peer, source): (PeerKey, Option<FiAddr>),
        messages: &mut impl PlainMessages,
    ) {
        if !self.shared_rx_peers.is_empty() || !self.departing_addrs.is_empty() {
            return;
        }
        while self.deliver_run(rx, (peer, source), messages) {}
    }

    fn accepts_loan(&self, op: OpKey, len: usize) -> bool {
        let op = self.ops.get(op);
        op.is_some_and(|op| {
            let limit = self
                .endpoints
                .get(op.ep.0)
                .map_or(0, |ep| ep.bindings.max_msg_size);
            matches!(&op.buf, AnyBuf::Loaned(loaned) if loaned.accepts_loan() && len <= limit)
        })
    }

    fn split_multi_recv(&mut self, op: OpKey, envelope: &Envelope) -> MultiRecvSplit {
        self.split_for_message(op, envelope)
    }

    fn has_cq_room(&mut self, op: OpKey) -> bool {
        self.has_room_for_message(op)
    }

    fn give_buffered(&mut self, op: OpKey, mut bytes: PooledBuf) -> usize {
        let Some(op) = self.ops.get_mut(op) else {
            return 0;
        };
        let limit = self
            .endpoints
            .get(op.ep.0)
            .map_or(0, |ep| ep.bindings.max_msg_size);
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
        let limit = self.ops.get(op).map_or(0, |op| {
            self.endpoints
                .get(op.ep.0)
                .map_or(0, |ep| ep.bindings.max_msg_size)
        });
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

    fn take_received(&mut self, key: OpKey, filled: usize) -> PooledBuf {
        let Some(op) = self.ops.get_mut(key) else {
            return PooledBuf::empty(&self.pool);
        };
        op.buf.finish(filled);
        match std::mem::take(&mut op.buf) {
            AnyBuf::Pooled(buf) => buf,
            AnyBuf::Vec(buf) => PooledBuf::from_vec(&self.pool, buf),
            AnyBuf::Loaned(mut loaned) if !loaned.is_in_place() => {
                std::mem::replace(loaned.pooled_mut(), PooledBuf::empty(&self.pool))
            }
            other => {
                let mut copy = self.pool.take(filled);
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
        let (grown, waiter) = (op.buf.clear(), op.waker.take());
        if let Some(grown) = grown {
            self.deferred.drop_buffer(AnyBuf::Pooled(grown));
        }
        // A task that waits to cancel the receive can do so now.
        self.wake_waiter(waiter);
        // The receive may accept a message of another peer that a transport holds back, and no peer
        // rings for that.
        self.follow_ups.push(FollowUp::ResumeProgress);
    }

    fn discard_part(&mut self, op: OpKey) {
        self.part_lost(op);
    }

    fn complete(&mut self, key: OpKey, outcome: Outcome) {
        if !self.in_flight_buffers.is_empty() && self.in_flight_buffers.contains_key(&key) {
            return self.defer_completion(key, outcome);
        }
        let Some(op) = self.ops.get_mut(key) else {
            return;
        };
        let (ep, kind, target, peer) =
            (op.ep, op.kind, op.target, op.tx_op.map(|tx_op| tx_op.peer));
        let permit = op.no_transfer;
        if let Some(id) = op.tx_op.as_mut().and_then(|tx_op| tx_op.rma_iov_id.take()) {
            self.rma_iovs.try_remove(id.0 as usize);
        }
        if kind.fills_buffer() {
            op.buf.finish(outcome.transfer.len);
        }
        // The slot may stay until its future takes the result, but its resources are returned now.
        if std::mem::take(&mut op.holds_credit) {
            if kind != OpKind::Recv {
                self.pending_sends -= 1;
            }
            self.release_credit(ep, kind, peer);
        } else if kind != OpKind::Recv
            && self
                .endpoints
                .get(ep.0)
                .is_some_and(|ep| !ep.tx_credits.has_no_waiters())
        {
            // A batched message holds no credit, and a fenced operation may wait for it.
            self.follow_ups.push(FollowUp::GrantCredits(ep));
        }
        if !permit {
            let (transfer, ok) = (&outcome.transfer, outcome.error.is_none());
            self.count_op(ep, kind, transfer.len, ok);
            if kind == OpKind::Recv {
                if !self.shared_rx_peers.is_empty() {
                    self.count_recv_at_arrival_endpoint(ep, transfer.peer(), ok);
                }
                if ok && !self.message_may_be_abandoned(target) {
                    self.count_received(ep, transfer);
                }
            }
        }
        match target {
            CompletionTarget::Future => {
                if let Some(op) = self.ops.get_mut(key) {
                    op.outcome = outcome;
                }
                self.complete_future(key);
            }
            CompletionTarget::CqOnError(_) if outcome.error.is_none() => {
                self.on_message_consumed(outcome.transfer.source);
                self.discard_op(key);
                self.unreserve_entry(ep, kind);
            }
            CompletionTarget::Cq(context) | CompletionTarget::CqOnError(context) => {
                let Some(op) = self.ops.get_mut(key) else {
                    return;
                };
                let buf = std::mem::take(&mut op.buf);
                self.ops.free(key);
                let buf = if outcome.error.is_none() {
                    self.completion_buffer(kind, buf)
                } else {
                    buf
                };
                self.report_completion(ep, kind, context, outcome, buf);
            }
            CompletionTarget::MultiRecv(id) => self.on_multi_recv_message(id, key, outcome),
            CompletionTarget::Discard => {
                self.discard_op(key);
                if let Some(error) = outcome
                    .error
                    .map(|error| *error)
                    .filter(|error| *error != Error::Canceled)
                {
                    self.event(ep, EventKind::OperationFailed { peer, error });
                }
            }
        }
    }

    fn complete_send(&mut self, key: OpKey, len: usize, tag: Option<u64>) {
        let outcome = Outcome::ok(Transfer::sent(len, tag));
        let (Some(op), true) = (self.ops.get_mut(key), self.in_flight_buffers.is_empty()) else {
            return self.complete(key, outcome);
        };
        let is_loan = matches!(op.buf, AnyBuf::Loan(_));
        let (CompletionTarget::Cq(context), false, false) = (op.target, op.holds_credit, is_loan)
        else {
            return self.complete(key, outcome);
        };
        let Some(ep) = self
            .endpoints
            .get_mut(op.ep.0)
            .filter(|ep| ep.tx_credits.has_no_waiters())
        else {
            return self.complete(key, outcome);
        };
        // The fast case: the most frequent kind of batched send.
        ep.stats.record(OpKind::Send, len);
        let (counter, queue) = (ep.bindings.counters.send, ep.bindings.tx_cq);
        let buf = std::mem::take(&mut op.buf);
        self.ops.free(key);
        self.report_to_cq(queue, OpKind::Send, context, outcome, buf);
        if let Some(counter) = counter {
            self.add_to_counter(counter, true);
        }
    }

    fn on_payload_sent(&mut self, op: OpKey) {
        if let Some(op) = self.ops.get_mut(op) {
            op.payload_sent = true;
        }
    }

    fn request_rearm(&mut self) {
        self.rearm_requested = true;
    }

    fn request_progress(&mut self) {
        self.progress_requested = true;
    }

    fn event(&mut self, ep: EpId, kind: EventKind) {
        let Some(bindings) = self.endpoints.get(ep.0).map(|ep| &ep.bindings) else {
            return;
        };
        if !matches!(kind, EventKind::OperationFailed { .. }) {
            self.deferred
                .trace(TraceEvent::EndpointEvent(bindings.object_id, kind.clone()));
        }
        if let Some(eq) = bindings.eq.as_ref().or(self.domain_eq.as_ref())
            && let Some(waker) = eq.push(Event::new(bindings.object_id, bindings.context, kind))
        {
            self.deferred.wake(waker);
        }
    }

    fn loans_lost(&mut self, ep: EpId, peer: &Address, loans: usize) {
        if let Some(ep) = self.endpoints.get(ep.0) {
            self.deferred.trace(TraceEvent::LoansLost(
                ep.bindings.object_id,
                peer.clone(),
                loans,
            ));
        }
    }

    fn address_of(&self, ep: EpId, addr: FiAddr) -> Result<Address> {
        let ep = self
            .endpoints
            .get(ep.0)
            .ok_or_else(|| Error::Closed(Class::Endpoint))?;
        let av = self
            .avs
            .get(ep.bindings.av.0)
            .ok_or_else(|| Error::Closed(Class::AddressVector))?;
        av.peer_address(addr).cloned()
    }

    fn incarnation_of(&self, ep: EpId, addr: FiAddr) -> Option<Incarnation> {
        let ep = self.endpoints.get(ep.0)?;
        self.avs.get(ep.bindings.av.0)?.incarnation_of(addr)
    }

    fn region(&self, key: u64) -> Option<&Region> {
        self.regions.get(key)
    }

    fn on_remote_access(
        &mut self,
        ep: EpId,
        key: u64,
        access: RemoteAccess,
        transfer: Transfer,
    ) -> bool {
        self.report_remote_access(ep, key, access, transfer)
    }

    fn fi_addr_of(&self, ep: EpId, address: &Address) -> Option<FiAddr> {
        let ep = self.endpoints.get(ep.0)?;
        let av = self.avs.get(ep.bindings.av.0)?;
        let found = av.table.find(address);
        found.filter(|addr| av.incarnation_of(*addr).is_none())
    }

    fn peer_connected(
        &mut self,
        ep: EpId,
        address: &Address,
        incarnation: Option<Incarnation>,
    ) -> Option<FiAddr> {
        self.on_peer_connect(ep, address, incarnation)
    }

    fn peer_disconnected(&mut self, ep: EpId, addr: Option<FiAddr>) {
        if let Some(addr) = addr {
            self.on_peer_disconnect(ep, addr);
        }
    }

    fn on_connreq(&mut self, ep: EpId, peer: &Address, data: &[u8]) {
        self.record_connreq(ep, peer, data);
    }

    fn on_connected(&mut self, ep: EpId, peer: &Address, result: Result<Connected>) {
        self.record_connect_result(ep, peer, result);
    }

    fn new_shared_peer_key(&mut self, ep: EpId) -> PeerKey {
        // This costs a few bytes for each connection ever made: messages from it may still be
        // waiting somewhere.
        self.shared_rx_peers.push(ep);
        PeerKey(self.shared_rx_peers.len() as u32)
    }

    fn departing_address(&self, addr: FiAddr) -> Option<Address> {
        let av = self.departing_addrs.get(&addr)?;
        self.avs.get(av.0)?.table.get(addr).ok().cloned()
    }
}

impl DomainState {
    /// Delivers plain messages to the receives at the head of the queue, as fast as possible, up to
    /// one whose receive needs more than a copy, which is delivered too. Returns whether more
    /// messages may follow.
    #[inline(always)] // on the small-message path
    fn deliver_run(
        &mut self,
        rx: &mut RxQueue,
        peer: (PeerKey, Option<FiAddr>),
        messages: &mut impl PlainMessages,
    ) -> bool {
        let mut next = messages.peek();
        if next.is_none() || !rx.takes_plain() {
            return false;
        }
        // Endpoint and queue are looked up once for all messages.
        let Some(ep) = self.endpoints.get_mut(rx.ep().0) else {
            return false;
        };
        let mut cq = ep.bindings.rx_cq.and_then(|id| self.cqs.get_mut(id.0));
        let (mut completed, mut reported) = (0, OpStats::default());
        let mut fallback = None;
        while let Some(bytes) = next
            && bytes.len() <= ep.bindings.max_msg_size
            && let Some((key, arrival)) = rx.match_plain(peer.1)
        {
            let len = bytes.len();
            let Some((op, free_slots)) = self.ops.get_with_free_slots(key) else {
                break;
            };
            let transfer = Transfer::received_plain(peer, arrival, len);
            match (op.target, &mut cq) {
                (CompletionTarget::Cq(context), Some(cq)) if op.buf.receive_whole(&bytes) => {
                    let (entry, outcome) = (cq.next_entry(), Outcome::ok(transfer));
                    entry.fill(context, OpKind::Recv, outcome, std::mem::take(&mut op.buf));
                    ep.posted_recvs -= usize::from(op.holds_credit);
                    op.free(key, free_slots);
                    reported.count += 1;
                    reported.bytes += len as u64;
                }
                (CompletionTarget::Future, _) if op.buf.receive_whole(&bytes) => {
                    ep.posted_recvs -= usize::from(std::mem::take(&mut op.holds_credit));
                    op.outcome.transfer = transfer;
                    op.phase = OpPhase::Done;
                    if let Some(waker) = op.waker.take() {
                        self.waiters -= 1;
                        self.deferred.wake(waker);
                    }
                    completed += 1;
                }
                _ => {
                    fallback = Some((key, arrival));
                    break;
                }
            }
            messages.consume();
            next = messages.peek();
        }
        let counter = ep.bindings.counters.recv;
        if reported.count > 0 {
            ep.stats.received += reported;
            let waiter = cq.and_then(|cq| cq.waker.take());
            self.wake_waiter(waiter);
        }
        if let Some(counter) = counter {
            self.add_many_to_counter(counter, completed + reported.count, 0);
        }
        let Some((key, arrival)) = fallback else {
            return false;
        };
        // Not peeked again: the peer may have changed the header since.
        let bytes = messages.peeked();
        let envelope = Envelope {
            peer: peer.0,
            source: peer.1,
            tag: None,
            len: bytes.len(),
            data: None,
            arrival,
            ack: None,
        };
        self.deliver(key, &envelope, &bytes);
        messages.consume();
        true
    }

    /// Delivers a message that is longer than the endpoint receives, or whose endpoint is closing.
    #[cold]
    fn deliver_truncated(&mut self, key: OpKey, envelope: &Envelope, bytes: &dyn CopySource) {
        match self.begin_fill(key, envelope.len) {
            Ok(room) => {
                let placed = room.min(envelope.len);
                self.write_at(key, 0, bytes, 0, placed);
                self.complete(key, Outcome::received(envelope, placed));
            }
            Err(error) => self.deliver_nothing(key, envelope, error),
        }
    }

    /// Completes a receive that has no memory for its message, which is lost.
    #[cold]
    fn deliver_nothing(&mut self, key: OpKey, envelope: &Envelope, error: Error) {
        self.complete(
            key,
            Outcome::partial(Transfer::received(envelope, 0), error),
        );
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use fabric_core::buf::IoBuf;
    use fabric_core::matching::RecvSpec;

    use super::*;
    use crate::engine::state::av::Av;
    use crate::engine::state::domain_state::{AvId, Bindings, CounterBindings};

    /// One message, whose header the peer overwrites once it was read.
    #[derive(Default)]
    struct OverwrittenMessage {
        peeks: usize,
        consumed: usize,
    }

    impl PlainMessages for OverwrittenMessage {
        fn peek(&mut self) -> Option<impl CopySource + Copy + '_> {
            self.peeks += 1;
            (self.peeks == 1).then_some(&b"message"[..])
        }

        fn peeked(&self) -> impl CopySource + Copy + '_ {
            &b"message"[..]
        }

        fn consume(&mut self) {
            self.consumed += 1;
        }
    }

    #[test]
    fn matched_message_is_delivered_although_its_header_changes() {
        let mut domain = DomainState::new();
        let av = AvId(domain.avs.insert(Av::new(false)));
        let bindings = Bindings {
            object_id: 1,
            context: 0,
            av,
            tx_cq: None,
            rx_cq: None,
            counters: CounterBindings::default(),
            shared_rx: None,
            eq: None,
            tx_size: 1,
            rx_size: 1,
            max_msg_size: 64,
            inject_size: 64,
        };
        let ep = domain.insert_endpoint(bindings, 1 << 20).unwrap();
        let short = vec![0; 4].into_boxed_slice().into_any();
        let op = domain.ops.insert_recv(ep, CompletionTarget::Future, short);
        domain.endpoint(ep).unwrap().posted_recvs += 1;
        let mut message = OverwrittenMessage::default();
        domain.with_rx(ep, |rx, domain| {
            let any = RecvSpec {
                from: None,
                tag: None,
            };
            rx.post(domain, op, any);
            domain.deliver_plain(rx, (PeerKey(1), None), &mut message);
        });
        assert_eq!(message.consumed, 1);
        assert!(domain.ops.is_done(op), "the receive has ended");
        let result = domain.take_op_result(op).unwrap();
        assert_eq!(result.transfer.len, 4);
        assert!(matches!(
            result.error.as_deref(),
            Some(Error::Truncated { .. })
        ));
    }
}
