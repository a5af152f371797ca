//! Sends of a datagram endpoint: immediate, batched, or queued until the socket has room.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use fabric_core::completion::{OpKind, Outcome, Transfer};
use fabric_core::transport::{EndpointContext, EngineContext, TxOp};
use fabric_core::{Error, FiAddr, Result, Scheme};

use super::destinations::QueuedDatagram;
use super::endpoint::UdpEndpoint;
use super::socket::SendToResult;

/// Maximum number of queued messages that one pass sends.
const MAX_SENDS_PER_PASS: usize = 64;

impl UdpEndpoint {
    /// Sends the batched messages; returns false if the socket has no room for all of them.
    pub(super) fn flush_batch(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> bool {
        if self.send_batch.is_empty() {
            return true;
        }
        if self.write_blocked {
            return false;
        }
        let flushed = self.send_batch.flush(ctx, self.socket.as_fd());
        if !flushed {
            self.wait_writable();
            ctx.request_rearm();
        }
        flushed
    }

    /// Sends batched and queued messages while the socket has room; returns whether any was sent or
    /// has failed.
    pub(super) fn progress_tx(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> bool {
        if self.write_blocked || (self.tx_queue.is_empty() && self.send_batch.is_empty()) {
            return false;
        }
        let batched = self.send_batch.len();
        self.flush_batch(ctx);
        let mut moved = self.send_batch.len() < batched;
        for _ in 0..MAX_SENDS_PER_PASS {
            let Some(&QueuedDatagram { op, peer }) =
                self.tx_queue.front().filter(|_| !self.write_blocked)
            else {
                break;
            };
            let payload = ctx.payload(op);
            let len = payload.len();
            let outcome = match self
                .destinations
                .get(peer)
                .map(|to| self.socket.send(to, payload))
            {
                Some(Ok(SendToResult::WouldBlock)) => {
                    self.wait_writable();
                    break;
                }
                Some(Ok(SendToResult::Sent)) => Outcome::ok(Transfer::sent(len, None)),
                Some(Err(error)) => Outcome::failed(error),
                None => Outcome::failed(Error::StaleAddress(peer)),
            };
            self.tx_queue.pop_front();
            ctx.complete(op, outcome);
            moved = true;
        }
        moved
    }

    /// Blocks further sends until the domain's epoll set reports room in the socket.
    pub(super) fn wait_writable(&mut self) {
        if !self.write_blocked {
            self.write_blocked = true;
            self.socket.watch_writable(true);
        }
    }

    /// Checks that udp supports the operation; returns the socket address of its peer.
    pub(super) fn destination(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        tx_op: &TxOp,
    ) -> Result<SocketAddr> {
        if !matches!(tx_op.kind, OpKind::Send | OpKind::Connect) {
            return Err(Error::NotSupported(match tx_op.kind {
                OpKind::Read => "reads of a peer's memory",
                OpKind::Atomic | OpKind::FetchAtomic => "atomic operations on a peer's memory",
                _ => "one-sided operations over udp",
            }));
        }
        if tx_op.level.needs_ack() {
            return Err(Error::NotSupported(
                "FI_MATCH_COMPLETE and FI_DELIVERY_COMPLETE over udp; use shm or tcp",
            ));
        }
        self.destinations
            .get(tx_op.peer)
            .map_or_else(|| self.resolve_destination(ctx, tx_op.peer), Ok)
    }

    /// Resolves an address handle, and caches the peer's socket address.
    #[cold]
    fn resolve_destination(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        addr: FiAddr,
    ) -> Result<SocketAddr> {
        let address = ctx.address_of(addr)?;
        let to = address.peer_socket_addr(Scheme::Udp)?;
        if to.is_ipv4() != self.local_addr.is_ipv4() {
            let why = format!(
                "{address} and {} are of different address families",
                self.local_addr
            );
            return Err(Error::Invalid {
                what: "peer address",
                why,
            });
        }
        if to.ip().is_multicast() && !self.multicast_enabled {
            return Err(Error::NotSupported(
                "multicast groups (the endpoint has no FI_MULTICAST)",
            ));
        }
        self.destinations.insert(addr, to);
        Ok(to)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io;
    use std::os::fd::BorrowedFd;
    use std::sync::{Arc, Mutex};

    use fabric_core::SocketOptions;
    use fabric_core::buf::{AnyBuf, Payload};
    use fabric_core::info::{Hints, Info};
    use fabric_core::rx::RxQueue;
    use fabric_core::transport::{
        EpId, Interest, OpKey, Transport, TransportEndpoint, TrySend, WaitSet, WaitToken,
    };

    use super::super::UdpTransport;
    use super::super::endpoint::UNEXPECTED_BYTES;
    use super::*;
    use crate::engine::state::bindings::Bindings;
    use crate::engine::state::domain_state::DomainState;
    use crate::engine::state::ops::CompletionTarget;
    use crate::transport::net::SocketConfig;

    /// A [`WaitSet`] that records the last interest.
    #[derive(Default)]
    struct RecordingWaitSet(Mutex<Option<Interest>>);

    impl WaitSet for RecordingWaitSet {
        fn wake(&self) {}

        fn watch(&self, _: BorrowedFd<'_>, _: u64) -> io::Result<()> {
            Ok(())
        }

        fn set_interest(&self, _: BorrowedFd<'_>, _: u64, interest: Interest) -> io::Result<()> {
            *self.0.lock().unwrap() = Some(interest);
            Ok(())
        }

        fn unwatch(&self, _: BorrowedFd<'_>) {}
    }

    /// An endpoint that sends to itself, for tests that call the transport directly.
    struct UdpFixture {
        endpoint: UdpEndpoint,
        rx: RxQueue,
        domain_state: DomainState,
        ep: EpId,
        own_addr: FiAddr,
        wait_set: Arc<RecordingWaitSet>,
        /// Operations of batched messages.
        batched: Vec<OpKey>,
    }

    impl UdpFixture {
        fn new() -> Self {
            let (mut domain_state, wait_set) = (
                DomainState::default(),
                Arc::new(RecordingWaitSet::default()),
            );
            let info: Info = UdpTransport.offers(&Hints::new()).unwrap().swap_remove(0);
            let av = domain_state.avs.open(false);
            let ep = domain_state.endpoints.insert(Bindings {
                max_msg_size: info.ep.max_msg_size,
                ..Bindings::for_tests(av)
            });
            let rx = RxQueue::new(ep, UNEXPECTED_BYTES);
            let config = SocketConfig::from_info(&SocketOptions::new(), &info).unwrap();
            let endpoint = UdpEndpoint::open(ep, &info, (None, config), wait_set.clone()).unwrap();
            let address = endpoint.name().clone();
            let (own_addr, _) = domain_state.avs.insert(av, &address).unwrap();
            let mut fixture = Self {
                endpoint,
                rx,
                domain_state,
                ep,
                own_addr,
                wait_set,
                batched: Vec::new(),
            };
            fixture.call(|udp, ctx| udp.address_inserted(ctx, own_addr, &address));
            fixture
        }

        /// Calls the transport endpoint.
        fn call<T>(
            &mut self,
            act: impl FnOnce(&mut UdpEndpoint, &mut EndpointContext<'_, DomainState>) -> T,
        ) -> T {
            let mut ctx = EndpointContext::new(self.ep, &mut self.rx, &mut self.domain_state);
            act(&mut self.endpoint, &mut ctx)
        }

        fn tx_op(&self, more: bool) -> TxOp {
            TxOp {
                more,
                ..TxOp::new(OpKind::Send, self.own_addr)
            }
        }

        fn try_send(&mut self, byte: u8, more: bool) -> TrySend {
            let tx_op = self.tx_op(more);
            let payload = &[byte];
            let sent = self
                .call(|udp, ctx| udp.try_send(ctx, &tx_op, Payload::Contiguous(payload)))
                .unwrap();
            if sent == TrySend::Batched {
                let none = AnyBuf::None;
                let op = self.domain_state.ops.insert_tx(
                    self.ep,
                    &tx_op,
                    CompletionTarget::Future,
                    none,
                    false,
                );
                self.call(|udp, ctx| udp.set_batched_op(ctx, op, &tx_op, 1));
                self.batched.push(op);
            }
            sent
        }

        /// Returns how many batched messages have completed without error.
        fn completed_count(&self) -> usize {
            let ops = &self.domain_state.ops;
            self.batched
                .iter()
                .filter_map(|op| ops.get(*op).unwrap().outcome())
                .filter(|outcome| outcome.error.is_none())
                .count()
        }

        fn queue_send(&mut self, byte: u8) -> OpKey {
            let tx_op = self.tx_op(false);
            let (target, buf) = (CompletionTarget::Future, AnyBuf::Vec(vec![byte]));
            let ops = &mut self.domain_state.ops;
            let key = ops.insert_tx(self.ep, &tx_op, target, buf, false);
            self.call(|udp, ctx| udp.queue_send(ctx, key, &tx_op))
                .unwrap();
            key
        }

        fn on_ready(&mut self) {
            let (kind, ep, id) = (0, self.ep, 0);
            self.call(|udp, ctx| udp.ready(ctx, WaitToken { kind, ep, id }));
        }

        fn can_sleep(&mut self) -> bool {
            self.call(|udp, ctx| udp.arm(ctx))
        }

        fn cancel(&mut self, op: OpKey) -> bool {
            let peer = self.own_addr;
            self.call(|udp, ctx| udp.cancel(ctx, op, peer))
        }

        /// Returns what the socket is watched for; `None` if the interest was never changed.
        fn interest(&self) -> Option<Interest> {
            *self.wait_set.0.lock().unwrap()
        }

        /// Makes a pass, and returns how many messages have arrived.
        fn unexpected_count(&mut self) -> usize {
            self.call(|udp, ctx| udp.progress(ctx, 1));
            self.rx.unexpected().0
        }
    }

    /// The loopback interface always has room, so the test simulates a full socket.
    #[test]
    fn sends_without_socket_room_queue_in_order() {
        let mut fixture = UdpFixture::new();
        assert_eq!(fixture.try_send(0, false), TrySend::Done);
        assert_eq!(fixture.unexpected_count(), 1);
        assert_eq!(fixture.try_send(1, true), TrySend::Batched);
        assert!(!fixture.can_sleep(), "a batched message was not sent");
        fixture.endpoint.wait_writable();
        assert_eq!(fixture.interest(), Some(Interest::Both));
        fixture.call(|udp, ctx| udp.flush_batch(ctx));
        assert_eq!(
            fixture.completed_count(),
            0,
            "the batched message was not sent"
        );
        assert_eq!(
            fixture.try_send(2, false),
            TrySend::WouldBlock,
            "a send must not overtake the batched message"
        );
        let (queued, canceled) = (fixture.queue_send(2), fixture.queue_send(9));
        assert_eq!(
            fixture.try_send(3, true),
            TrySend::WouldBlock,
            "a send must not overtake the batched message"
        );
        fixture.queue_send(3);
        assert!(fixture.can_sleep(), "the socket is watched for room");
        assert_eq!(
            fixture.unexpected_count(),
            1,
            "no message is sent before the socket has room"
        );
        assert!(fixture.cancel(canceled));
        assert!(
            !fixture.cancel(canceled),
            "the operation is no longer queued"
        );
        fixture.on_ready();
        assert_eq!(fixture.interest(), Some(Interest::Read));
        assert_eq!(fixture.unexpected_count(), 4);
        assert_eq!(fixture.completed_count(), 1);
        assert!(!fixture.cancel(queued), "the message was sent");
        assert!(fixture.can_sleep());
    }

    #[test]
    fn full_send_batch_is_flushed_or_blocks_further_sends() {
        let mut fixture = UdpFixture::new();
        for byte in 0..100 {
            assert_eq!(fixture.try_send(byte, true), TrySend::Batched);
        }
        fixture.call(|udp, ctx| udp.flush_batch(ctx));
        assert_eq!(fixture.completed_count(), 100);
        while fixture.unexpected_count() < 100 {}
        fixture.endpoint.wait_writable();
        let batched = (0..100)
            .take_while(|byte| fixture.try_send(*byte, true) == TrySend::Batched)
            .count();
        assert_eq!(batched, crate::sys::datagrams::BATCH_LEN);
        let queued = fixture.queue_send(7);
        assert!(fixture.can_sleep());
        fixture.on_ready();
        while fixture.unexpected_count() < 100 + batched + 1 {}
        assert!(!fixture.cancel(queued));
    }

    #[test]
    fn close_fails_all_unsent_messages_and_av_remove_queued_ones() {
        for close in [false, true] {
            let mut fixture = UdpFixture::new();
            assert_eq!(fixture.try_send(0, true), TrySend::Batched);
            fixture.endpoint.wait_writable();
            let key = fixture.queue_send(1);
            let error = if close {
                fixture.call(|udp, ctx| udp.close(ctx));
                Error::Canceled
            } else {
                let own_addr = fixture.own_addr;
                fixture.call(|udp, ctx| udp.address_removed(ctx, own_addr));
                assert!(fixture.can_sleep() && !fixture.cancel(key));
                Error::StaleAddress(fixture.own_addr)
            };
            let ended = fixture.domain_state.ops.get(key).unwrap();
            assert_eq!(ended.outcome().unwrap().error.as_deref(), Some(&error));
            let batched = fixture.domain_state.ops.is_done(fixture.batched[0]);
            assert_eq!(
                batched, close,
                "the destination is resolved when a message is batched"
            );
        }
    }
}
