//! The hub as a provider sees it: operations, addresses and events by way of [`Host`].

use fabric_core::buf::{AnyBuf, Payload, PooledBuf, Source};
use fabric_core::completion::{OpKind, Outcome, Transfer};
use fabric_core::event::{Event, EventKind};
use fabric_core::matching::{Envelope, PeerKey};
use fabric_core::mr::Region;
use fabric_core::provider::{Deed, EpId, Host, Incarnation, Joined, OpKey, Remote, Split, Spread};
use fabric_core::tree::Class;
use fabric_core::{Address, Error, FiAddr, Result};

use crate::hub::Hub;
use crate::notes::Note;
use crate::ops::{Phase, Route};

impl Host for Hub {
    fn payload(&self, op: OpKey) -> Payload<'_> {
        self.ops
            .get(op)
            .map_or(Payload::Whole(&[]), |op| op.buf.payload())
    }

    fn is_ordinary(&self, op: OpKey) -> bool {
        self.ops.get(op).is_some_and(|op| {
            !matches!(
                op.buf,
                AnyBuf::Custom(_) | AnyBuf::Gather(_) | AnyBuf::Scatter(_)
            )
        })
    }

    fn entrust(&mut self, op: OpKey) -> Option<AnyBuf> {
        self.take_buffer(op)
    }

    fn restore(&mut self, op: OpKey, buf: AnyBuf) {
        if let Some(outcome) = self.put_buffer(op, buf) {
            self.complete(op, outcome);
        }
    }

    fn places(&self, spread: Spread) -> &[Remote] {
        self.spreads
            .get(spread.0 as usize)
            .map_or(&[], |places| places)
    }

    fn expect(&mut self, op: OpKey, len: usize) -> Result<usize> {
        let Some(op) = self.ops.get_mut(op) else {
            return Ok(0);
        };
        let limit = self.eps.get(op.ep.0).map_or(0, |ep| ep.bound.max_msg_size);
        op.buf.expect(len.min(limit))?;
        Ok(op.buf.room().min(limit))
    }

    fn place(&mut self, op: OpKey, at: usize, source: &dyn Source, from: usize, count: usize) {
        if let Some(op) = self.ops.get_mut(op) {
            op.buf.place(at, source, from, count);
        }
    }

    fn deliver(&mut self, key: OpKey, envelope: &Envelope, source: &dyn Source) {
        let Some(op) = self.ops.get_mut(key) else {
            return;
        };
        let Some(ep) = self
            .eps
            .get_mut(op.ep.0)
            .filter(|ep| envelope.len <= ep.bound.max_msg_size)
        else {
            return self.deliver_in_part(key, envelope, source);
        };
        let placed = match op.buf.receive(source) {
            Ok(placed) => placed,
            Err(error) => return self.deliver_nothing(key, envelope, error),
        };
        let route = op.route;
        if !matches!(route, Route::Future | Route::Queue(_)) || placed < envelope.len {
            return self.complete(key, Outcome::received(envelope, placed));
        }
        // The short way of what is received most.
        ep.posted_recvs -= usize::from(std::mem::take(&mut op.credit));
        let (counter, queue) = (ep.bound.counters.recv, ep.bound.rx_cq);
        if let Route::Queue(context) = route {
            ep.stats.received.add(placed);
            let (ep, buf) = (op.ep, std::mem::take(&mut op.buf));
            self.ops.free(key);
            if !self.shared_peers.is_empty() {
                self.count_received_at_sharer(ep, envelope.peer, placed);
                self.count_at_sharer(ep, envelope.peer, true);
            }
            let outcome = Outcome::ok(Transfer::received(envelope, placed));
            self.report_to(queue, OpKind::Recv, context, outcome, buf);
        } else {
            op.outcome.transfer = Transfer::received(envelope, placed);
            op.phase = Phase::Done;
            let (ep, waiter) = (op.ep, op.waker.take());
            self.wake_waiter(waiter);
            if !self.shared_peers.is_empty() {
                self.count_at_sharer(ep, envelope.peer, true);
            }
        }
        if let Some(counter) = counter {
            self.count_at(counter, true);
        }
    }

    fn shares(&self, op: OpKey, len: usize) -> bool {
        let op = self.ops.get(op);
        op.is_some_and(|op| {
            let limit = self.eps.get(op.ep.0).map_or(0, |ep| ep.bound.max_msg_size);
            matches!(&op.buf, AnyBuf::Lent(lent) if lent.shares() && len <= limit)
        })
    }

    fn split(&mut self, op: OpKey, envelope: &Envelope) -> Split {
        self.split_off(op, envelope)
    }

    fn has_place(&mut self, op: OpKey) -> bool {
        self.has_place_for_part(op)
    }

    fn adopt(&mut self, op: OpKey, mut bytes: PooledBuf) -> usize {
        let Some(op) = self.ops.get_mut(op) else {
            return 0;
        };
        let limit = self.eps.get(op.ep.0).map_or(0, |ep| ep.bound.max_msg_size);
        bytes.truncate(limit);
        let len = bytes.len();
        match &mut op.buf {
            AnyBuf::Pooled(own) => *own = bytes,
            AnyBuf::Lent(lent) => *lent.own() = bytes,
            buf => {
                let placed = buf.room().min(len);
                buf.place(0, &&bytes[..], 0, placed);
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
            self.eps.get(op.ep.0).map_or(0, |ep| ep.bound.max_msg_size)
        });
        let own = match self.ops.get_mut(op).map(|op| &mut op.buf) {
            Some(AnyBuf::Pooled(own)) if bytes.has_room(len.min(limit)) => own,
            Some(AnyBuf::Lent(lent)) if bytes.has_room(len.min(limit)) => lent.own(),
            _ => {
                let room = self.expect(op, len)?;
                let placed = bytes.len().min(room);
                self.place(op, 0, &&bytes[..], 0, placed);
                return Ok((room, placed));
            }
        };
        bytes.truncate(limit);
        let placed = bytes.len();
        *own = bytes;
        Ok((limit, placed))
    }

    fn reclaim(&mut self, key: OpKey, filled: usize) -> PooledBuf {
        let Some(op) = self.ops.get_mut(key) else {
            return PooledBuf::empty(&self.pool);
        };
        op.buf.finish(filled);
        match std::mem::take(&mut op.buf) {
            AnyBuf::Pooled(buf) => buf,
            AnyBuf::Vec(buf) => PooledBuf::from_vec(&self.pool, buf),
            AnyBuf::Lent(mut lent) if !lent.is_shared() => {
                std::mem::replace(lent.own(), PooledBuf::empty(&self.pool))
            }
            other => {
                let mut copy = self.pool.take(filled);
                other
                    .payload()
                    .part(0, filled)
                    .for_each(|_, piece| copy.extend_from_slice(piece));
                self.later.discard(other);
                copy
            }
        }
    }

    fn rearm(&mut self, op: OpKey) {
        let Some(op) = self.ops.get_mut(op) else {
            return;
        };
        let (grown, waiter) = (op.buf.clear(), op.waker.take());
        if let Some(grown) = grown {
            self.later.discard(AnyBuf::Pooled(grown));
        }
        // Who waits to take the receive back can do so now.
        self.wake_waiter(waiter);
    }

    fn discard_part(&mut self, op: OpKey) {
        self.part_lost(op);
    }

    fn complete(&mut self, key: OpKey, outcome: Outcome) {
        if !self.entrusted.is_empty() && self.entrusted.contains_key(&key) {
            return self.keep_back(key, outcome);
        }
        let Some(op) = self.ops.get_mut(key) else {
            return;
        };
        let (ep, kind, route, peer) = (op.ep, op.kind, op.route, op.spec.map(|spec| spec.peer));
        let permit = op.permit;
        if let Some(spread) = op.spec.as_mut().and_then(|spec| spec.spread.take()) {
            self.spreads.try_remove(spread.0 as usize);
        }
        if kind.fills() {
            op.buf.finish(outcome.transfer.len);
        }
        // The slot may stay until its future looks, but what it holds of the endpoint is free now.
        if std::mem::take(&mut op.credit) {
            if kind != OpKind::Recv {
                self.sends -= 1;
            }
            self.release(ep, kind, peer);
        }
        if !permit {
            let (transfer, ok) = (&outcome.transfer, outcome.error.is_none());
            self.count(ep, kind, transfer.len, ok);
            if kind == OpKind::Recv {
                if !self.shared_peers.is_empty() {
                    self.count_at_sharer(ep, transfer.peer(), ok);
                }
                if ok && !self.is_taken_later(route) {
                    self.count_received(ep, transfer);
                }
            }
        }
        match route {
            Route::Future => {
                if let Some(op) = self.ops.get_mut(key) {
                    op.outcome = outcome;
                }
                self.done(key);
            }
            Route::Failure(_) if outcome.error.is_none() => {
                self.seen(outcome.transfer.source);
                self.discard(key);
                self.unreserve_entry(ep, kind);
            }
            Route::Queue(context) | Route::Failure(context) => {
                let Some(op) = self.ops.get_mut(key) else {
                    return;
                };
                let buf = std::mem::take(&mut op.buf);
                let lent = op.spec.is_some_and(|spec| spec.loan.is_some());
                self.ops.free(key);
                let buf = if lent && outcome.error.is_none() {
                    self.passed_on(buf)
                } else {
                    buf
                };
                self.report(ep, kind, context, outcome, buf);
            }
            Route::Multi(number) => self.part_ended(number, key, outcome),
            Route::Nobody => {
                self.discard(key);
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

    fn sent(&mut self, key: OpKey, len: usize, tag: Option<u64>) {
        let outcome = Outcome::ok(Transfer::sent(len, tag));
        let (Some(op), true) = (self.ops.get_mut(key), self.entrusted.is_empty()) else {
            return self.complete(key, outcome);
        };
        let is_lent = op.spec.is_some_and(|spec| spec.loan.is_some());
        let (Route::Queue(context), false, false) = (op.route, op.credit, is_lent) else {
            return self.complete(key, outcome);
        };
        let Some(ep) = self.eps.get_mut(op.ep.0) else {
            return self.complete(key, outcome);
        };
        // The short way of what is collected most.
        ep.stats.moved(OpKind::Send, len);
        let (counter, queue) = (ep.bound.counters.send, ep.bound.tx_cq);
        let buf = std::mem::take(&mut op.buf);
        self.ops.free(key);
        self.report_to(queue, OpKind::Send, context, outcome, buf);
        if let Some(counter) = counter {
            self.count_at(counter, true);
        }
    }

    fn has_left(&mut self, op: OpKey) {
        if let Some(op) = self.ops.get_mut(op) {
            op.has_left = true;
        }
    }

    fn unsettled(&mut self) {
        self.unsettled = true;
    }

    fn goes_on(&mut self) {
        self.goes_on = true;
    }

    fn event(&mut self, ep: EpId, kind: EventKind) {
        let Some(bound) = self.eps.get(ep.0).map(|ep| &ep.bound) else {
            return;
        };
        if !matches!(kind, EventKind::OperationFailed { .. }) {
            self.later.note(Note::Event(bound.object, kind.clone()));
        }
        if let Some(eq) = bound.eq.as_ref().or(self.eq.as_ref())
            && let Some(waker) = eq.push(Event::new(bound.object, bound.context, kind))
        {
            self.later.wake(waker);
        }
    }

    fn gave_up(&mut self, ep: EpId, peer: &Address, loans: usize) {
        if let Some(ep) = self.eps.get(ep.0) {
            self.later
                .note(Note::GaveUp(ep.bound.object, peer.clone(), loans));
        }
    }

    fn address_of(&self, ep: EpId, addr: FiAddr) -> Result<Address> {
        let ep = self
            .eps
            .get(ep.0)
            .ok_or_else(|| Error::Closed(Class::Endpoint))?;
        let vector = self
            .vectors
            .get(ep.bound.av.0)
            .ok_or_else(|| Error::Closed(Class::AddressVector))?;
        vector.reach(addr).cloned()
    }

    fn incarnation_of(&self, ep: EpId, addr: FiAddr) -> Option<Incarnation> {
        let ep = self.eps.get(ep.0)?;
        self.vectors.get(ep.bound.av.0)?.incarnation_of(addr)
    }

    fn region(&self, key: u64) -> Option<&Region> {
        self.regions.get(key)
    }

    fn done_to_us(&mut self, ep: EpId, key: u64, deed: Deed, transfer: Transfer) -> bool {
        self.hear_of(ep, key, deed, transfer)
    }

    fn number_of(&self, ep: EpId, address: &Address) -> Option<FiAddr> {
        let ep = self.eps.get(ep.0)?;
        let vector = self.vectors.get(ep.bound.av.0)?;
        let found = vector.table.find(address);
        found.filter(|addr| vector.incarnation_of(*addr).is_none())
    }

    fn peer_connected(
        &mut self,
        ep: EpId,
        address: &Address,
        incarnation: Option<Incarnation>,
    ) -> Option<FiAddr> {
        self.arrive(ep, address, incarnation)
    }

    fn peer_disconnected(&mut self, ep: EpId, number: Option<FiAddr>) {
        if let Some(number) = number {
            self.leave(ep, number);
        }
    }

    fn requested(&mut self, ep: EpId, peer: &Address, data: &[u8]) {
        self.knocked(ep, peer, data);
    }

    fn joined(&mut self, ep: EpId, peer: &Address, joined: Result<Joined>) {
        self.has_joined(ep, peer, joined);
    }

    fn shared_peer(&mut self, ep: EpId) -> PeerKey {
        // A few bytes for each connection ever made: what it sent may lie somewhere yet.
        self.shared_peers.push(ep);
        PeerKey(self.shared_peers.len() as u32)
    }

    fn leaving(&self, number: FiAddr) -> Option<Address> {
        let av = self.leaving.get(&number)?;
        self.vectors.get(av.0)?.table.get(number).ok().cloned()
    }
}

impl Hub {
    /// A message that is longer than the endpoint receives, or whose endpoint is closing.
    #[cold]
    fn deliver_in_part(&mut self, key: OpKey, envelope: &Envelope, source: &dyn Source) {
        match self.expect(key, envelope.len) {
            Ok(room) => {
                let placed = room.min(envelope.len);
                self.place(key, 0, source, 0, placed);
                self.complete(key, Outcome::received(envelope, placed));
            }
            Err(error) => self.deliver_nothing(key, envelope, error),
        }
    }

    /// A message for which the receive has no memory: the message is lost.
    #[cold]
    fn deliver_nothing(&mut self, key: OpKey, envelope: &Envelope, error: Error) {
        self.complete(key, Outcome::cut(Transfer::received(envelope, 0), error));
    }
}
