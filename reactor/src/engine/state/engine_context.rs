//! The domain's state as a transport sees it: the implementation of [`EngineContext`].

use fabric_core::buf::{AnyBuf, Payload};
use fabric_core::completion::{Completion, OpKind, Outcome, Transfer};
use fabric_core::event::{Event, EventKind};
use fabric_core::mr::Region;
use fabric_core::transport::{
    Connected, EngineContext, EpId, Incarnation, OpKey, RemoteAccess, RmaIov, RmaIovId, RxEngine,
};
use fabric_core::{Address, FiAddr, Result};

use super::domain_state::DomainState;
use super::ops::CompletionTarget;
use super::pending_work::FollowUp;
use super::trace::TraceEvent;

impl EngineContext for DomainState {
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
        self.ops.take_buffer(op)
    }

    fn return_buffer(&mut self, op: OpKey, buf: AnyBuf) {
        self.reattach_buffer(op, buf);
    }

    fn rma_iovs(&self, id: RmaIovId) -> &[RmaIov] {
        self.ops.rma_iovs(id)
    }

    fn complete_send(&mut self, key: OpKey, len: usize, tag: Option<u64>) {
        let outcome = Outcome::ok(Transfer::sent(len, tag));
        let has_in_flight = self.ops.has_in_flight();
        let (Some(op), false) = (self.ops.get_mut(key), has_in_flight) else {
            return self.complete(key, outcome);
        };
        let is_loan = matches!(op.buf, AnyBuf::Loan(_));
        let (CompletionTarget::Cq(context), false, false) =
            (op.target(), op.holds_credit(), is_loan)
        else {
            return self.complete(key, outcome);
        };
        let Some(ep) = self
            .endpoints
            .get_mut(op.ep)
            .filter(|ep| ep.tx_credits.has_no_waiters())
        else {
            return self.complete(key, outcome);
        };
        // The fast case: the most frequent kind of batched send.
        ep.record(OpKind::Send, len);
        let (counter, queue) = (ep.bindings().counters.send, ep.bindings().tx_cq);
        let buf = std::mem::take(&mut op.buf);
        self.ops.free(key);
        self.report_to_cq(queue, OpKind::Send, context, outcome, buf);
        self.counters.count(counter, true, &mut self.deferred);
    }

    fn on_payload_sent(&mut self, op: OpKey) {
        if let Some(op) = self.ops.get_mut(op) {
            op.set_payload_sent();
        }
    }

    fn request_pass(&mut self) {
        self.pending_work.request_pass();
    }

    fn event(&mut self, ep: EpId, kind: EventKind) {
        let Some(bindings) = self.endpoints.get(ep).map(|ep| ep.bindings()) else {
            return;
        };
        let is_traced = !matches!(kind, EventKind::OperationFailed { .. });
        let trace = is_traced.then(|| TraceEvent::EndpointEvent(bindings.object_id, kind.clone()));
        let mut is_merged = false;
        if let Some(eq) = self.eqs.for_endpoint(bindings) {
            let pushed = eq.push(Event::new(bindings.object_id, bindings.context, kind));
            is_merged = pushed.is_merged;
            if let Some(waker) = pushed.waker {
                self.deferred.wake(waker);
            }
        }
        // Refused peers must not flood the subscriber either.
        if let Some(trace) = trace.filter(|_| !is_merged) {
            self.deferred.trace(trace);
        }
    }

    fn loans_lost(&mut self, ep: EpId, peer: &Address, loans: usize) {
        if let Some(ep) = self.endpoints.get(ep) {
            self.deferred.trace(TraceEvent::LoansLost(
                ep.bindings().object_id,
                peer.clone(),
                loans,
            ));
        }
    }

    fn region(&self, ep: EpId, key: u64) -> Option<Region> {
        let region = self.regions.get(key)?;
        let Some(bound) = region.endpoint else {
            return Some(region);
        };
        let through = self.endpoints.get(ep).map(|ep| ep.bindings().object_id);
        (through == Some(bound.get())).then_some(region)
    }

    fn access_changes(&self) -> u64 {
        self.access_changes.count()
    }

    fn on_remote_access(
        &mut self,
        ep: EpId,
        key: u64,
        access: RemoteAccess,
        transfer: Transfer,
    ) -> bool {
        let Some(bindings) = self.endpoints.get(ep).map(|ep| ep.bindings()) else {
            return true;
        };
        let counter = bindings.counters.for_remote_access(access);
        if transfer.data.is_some()
            && let Some(queue) = self.cqs.get_mut(bindings.rx_cq)
        {
            if !queue.reserve() {
                self.access_changes.block_on_cq();
                return false;
            }
            let (kind, outcome) = (OpKind::RemoteWrite, Outcome::ok(transfer));
            queue.push(Completion::new(0, kind, outcome, AnyBuf::None));
            queue.reader.wake(&mut self.deferred);
            self.on_message_consumed(transfer.source);
        }
        if let Some(ep) = self.endpoints.get_mut(ep) {
            // This kind stands for all remote accesses: `EndpointStats::remote_ops` counts them.
            ep.record(OpKind::RemoteWrite, transfer.len);
        }
        let region_counter = self.regions.counter(key, access);
        for counter in [counter, region_counter] {
            self.counters.count(counter, true, &mut self.deferred);
        }
        true
    }

    fn peer_connected(
        &mut self,
        ep: EpId,
        address: &Address,
        incarnation: Option<Incarnation>,
    ) -> Option<FiAddr> {
        let av = self.endpoints.get(ep)?.bindings().av;
        let (addr, is_new) = self.avs.connect(av, address, incarnation)?;
        if is_new {
            self.pending_work.push(FollowUp::PublishAddr(av, addr));
        }
        Some(addr)
    }

    fn peer_disconnected(&mut self, ep: EpId, addr: Option<FiAddr>) {
        if let Some(addr) = addr
            && let Some(ep) = self.endpoints.get(ep)
            && self.avs.disconnect(ep.bindings().av, addr)
        {
            let av = ep.bindings().av;
            self.pending_work.push(FollowUp::ReleaseAddr(av, addr));
        }
    }

    fn on_connreq(&mut self, ep: EpId, peer: &Address, data: &[u8]) {
        if let Some(cm) = self.endpoints.cm(ep)
            && cm.add_request(&mut self.deferred)
        {
            let (peer, data) = (peer.clone(), data.to_vec());
            self.event(ep, EventKind::ConnectionRequest { peer, data });
        }
    }

    fn on_connected(&mut self, ep: EpId, peer: &Address, result: Result<Connected>) {
        let Some(endpoint) = self.endpoints.get(ep) else {
            return;
        };
        let object = endpoint.bindings().object_id;
        let Some(cm) = self.endpoints.cm(ep) else {
            return;
        };
        let kind = match &result {
            Ok(connected) => {
                // The endpoint had no name until it was connected, so its opening is traced here.
                let name = connected.name.clone();
                self.deferred
                    .trace(TraceEvent::EndpointOpened(object, name));
                EventKind::Connected {
                    peer: peer.clone(),
                    data: connected.data.clone(),
                }
            }
            Err(error) => EventKind::ConnectFailed {
                error: error.clone(),
            },
        };
        cm.set_outcome(result, &mut self.deferred);
        self.event(ep, kind);
    }
}
