//! What an endpoint sends, and where to.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use fabric_core::buf::Payload;
use fabric_core::completion::{OpKind, Outcome, Transfer};
use fabric_core::provider::{Host, OpKey, SendNow, SendSpec};
use fabric_core::{Error, FiAddr, Result};
use rustix::io::Errno;

use super::batch::MAX_MESSAGE;
use super::endpoint::Endpoint;
use super::socket::{Sent, Socket};

/// Messages that waited and leave in one pass, at most.
const PER_PASS: usize = 64;

/// A send that waits for room.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending {
    pub(super) op: OpKey,
    pub(super) peer: FiAddr,
}

/// The sockets of peers, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Routes(Vec<Option<(FiAddr, SocketAddr)>>);

impl Routes {
    fn get(&self, addr: FiAddr) -> Option<SocketAddr> {
        let (known, to) = (*self.0.get(addr.index())?)?;
        (known == addr).then_some(to)
    }

    fn note(&mut self, addr: FiAddr, to: SocketAddr) {
        if addr.index() >= self.0.len() {
            self.0.resize(addr.index() + 1, None);
        }
        self.0[addr.index()] = Some((addr, to));
    }

    pub(super) fn forget(&mut self, addr: FiAddr) {
        if self.get(addr).is_some() {
            self.0[addr.index()] = None;
        }
    }
}

impl Endpoint {
    pub(super) fn send_now(
        &mut self,
        host: &mut dyn Host,
        spec: &SendSpec,
        payload: Payload<'_>,
    ) -> Result<SendNow> {
        let to = self.route(host, spec)?;
        if spec.kind == OpKind::Connect {
            // There is nothing to be made, and nobody is asked whether it is there.
            return Ok(SendNow::Done);
        }
        self.warm();
        if spec.more && self.sends.is_empty() {
            if self.outbox.is_full() {
                self.flush(host);
            }
            if self.outbox.is_full() {
                return Ok(SendNow::Queue);
            }
            self.outbox.put(to, payload);
            return Ok(SendNow::Collected);
        }
        if !self.sends.is_empty() || !self.flush(host) {
            return Ok(SendNow::Queue);
        }
        match send(&self.socket, to, payload)? {
            Sent::Gone => Ok(SendNow::Done),
            Sent::NoRoom => {
                self.wait_for_room();
                Ok(SendNow::Queue)
            }
        }
    }

    /// This is the operation of the message that was collected last.
    pub(super) fn collected(&mut self, op: OpKey, len: usize) {
        self.outbox.name(op, len);
    }

    pub(super) fn queue_send(
        &mut self,
        host: &mut dyn Host,
        op: OpKey,
        spec: &SendSpec,
    ) -> Result<()> {
        self.route(host, spec)?;
        if spec.kind == OpKind::Connect {
            host.complete(op, Outcome::ok(Transfer::sent(0, None)));
            return Ok(());
        }
        self.sends.push_back(Sending {
            op,
            peer: spec.peer,
        });
        self.send_on(host);
        host.unsettled();
        Ok(())
    }

    /// Sends what was collected; false when there is no room for all of it.
    pub(super) fn flush(&mut self, host: &mut dyn Host) -> bool {
        if self.outbox.is_empty() {
            return true;
        }
        if self.is_blocked {
            return false;
        }
        let flushed = self.outbox.flush(host, self.socket.as_fd());
        if !flushed {
            self.wait_for_room();
            host.unsettled();
        }
        flushed
    }

    /// Sends what waits, as far as there is room.
    pub(super) fn send_on(&mut self, host: &mut dyn Host) -> bool {
        if self.is_blocked || (self.sends.is_empty() && self.outbox.is_empty()) {
            return false;
        }
        let mut moved = self.flush(host);
        for _ in 0..PER_PASS {
            let Some(&Sending { op, peer }) = self.sends.front().filter(|_| !self.is_blocked)
            else {
                break;
            };
            let spec = SendSpec::new(OpKind::Send, peer);
            let payload = host.payload(op);
            let len = payload.len();
            let outcome = match self
                .routes
                .get(peer)
                .map(|to| send(&self.socket, to, payload))
            {
                Some(Ok(Sent::NoRoom)) => {
                    self.wait_for_room();
                    break;
                }
                Some(Ok(Sent::Gone)) => Outcome::ok(Transfer::sent(len, spec.tag)),
                Some(Err(error)) => Outcome::failed(error),
                None => Outcome::failed(Error::StaleAddress(peer)),
            };
            self.sends.pop_front();
            host.complete(op, outcome);
            moved = true;
        }
        moved
    }

    fn wait_for_room(&mut self) {
        if !self.is_blocked {
            self.is_blocked = true;
            self.socket.watch_room(true);
        }
    }

    fn route(&mut self, host: &mut dyn Host, spec: &SendSpec) -> Result<SocketAddr> {
        if !matches!(spec.kind, OpKind::Send | OpKind::Connect) {
            return Err(Error::NotSupported("one-sided operations over udp"));
        }
        if spec.level.is_confirmed() {
            return Err(Error::NotSupported(
                "FI_MATCH_COMPLETE and FI_DELIVERY_COMPLETE over udp",
            ));
        }
        self.routes
            .get(spec.peer)
            .map_or_else(|| self.find_route(host, spec.peer), Ok)
    }

    #[cold]
    fn find_route(&mut self, host: &mut dyn Host, addr: FiAddr) -> Result<SocketAddr> {
        let name = host.address_of(self.id, addr)?;
        let Some(to) = name.socket() else {
            return Err(Error::WrongScheme {
                provider: "udp",
                address: name,
            });
        };
        if to.is_ipv4() != self.at.is_ipv4() {
            let why = format!("{name} is not of the family of {}", self.at);
            return Err(Error::Invalid {
                what: "peer address",
                why,
            });
        }
        if to.ip().is_multicast() && !self.multicasts {
            return Err(Error::NotSupported(
                "multicast groups (the endpoint has no FI_MULTICAST)",
            ));
        }
        self.routes.note(addr, to);
        Ok(to)
    }
}

/// Sends a message. What the kernel refuses is known to concern this one: of a socket that is not
/// connected it does not tell what became of earlier ones.
fn send(socket: &Socket, to: SocketAddr, payload: Payload<'_>) -> Result<Sent> {
    let len = payload.len();
    if len > MAX_MESSAGE {
        // It was shorter when it was posted: a buffer of the user's own kind may be anything.
        return Err(Error::TooLong {
            what: "message",
            len,
            limit: MAX_MESSAGE,
        });
    }
    let sent = match payload.whole() {
        Some(bytes) => socket.send(to, bytes),
        None => {
            let mut bytes = [0; MAX_MESSAGE];
            payload.for_each(|at, piece| bytes[at..at + piece.len()].copy_from_slice(piece));
            socket.send(to, &bytes[..len])
        }
    };
    sent.map_err(|errno: Errno| Error::os("sendto", errno.raw_os_error()))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io;
    use std::os::fd::BorrowedFd;
    use std::sync::{Arc, Mutex};

    use fabric_core::buf::{AnyBuf, Pool};
    use fabric_core::info::Info;
    use fabric_core::provider::{EpId, Interest, Provider, ProviderDomain, WaitSet};
    use fabric_core::rx::Receiving;
    use fabric_core::{Address, SocketOptions};

    use super::super::{UdpDomain, UdpProvider};
    use super::*;
    use crate::hub::{AvId, Bindings, Counters, Hub};
    use crate::ops::{Op, Route};
    use crate::provider::origin::Origin;
    use crate::vectors::Vector;

    /// What was asked for last.
    #[derive(Default)]
    struct Watched(Mutex<Option<Interest>>);

    impl WaitSet for Watched {
        fn kick(&self) {}

        fn watch(&self, _: BorrowedFd<'_>, _: u64) -> io::Result<()> {
            Ok(())
        }

        fn rewatch(&self, _: BorrowedFd<'_>, _: u64, interest: Interest) -> io::Result<()> {
            *self.0.lock().unwrap() = Some(interest);
            Ok(())
        }

        fn unwatch(&self, _: BorrowedFd<'_>) {}
    }

    /// An endpoint, and everything that it needs.
    struct Rig {
        domain: UdpDomain,
        hub: Hub,
        ep: EpId,
        me: FiAddr,
        watched: Arc<Watched>,
        /// Operations of messages that were collected.
        collected: Vec<OpKey>,
    }

    impl Rig {
        fn new() -> Self {
            let (mut hub, watched) = (Hub::new(), Arc::new(Watched::default()));
            let info: Info = UdpProvider.offers().swap_remove(0);
            let av = AvId(hub.vectors.insert(Vector::new(false)));
            let bound = Bindings {
                object: 1,
                context: 0,
                av,
                tx_cq: None,
                rx_cq: None,
                counters: Counters::default(),
                shared: None,
                eq: None,
                tx_size: 64,
                rx_size: 64,
                max_msg_size: info.ep.max_msg_size,
                inject_size: info.tx.inject_size,
            };
            let ep = EpId(hub.eps.insert(Hub::new_ep(bound)));
            let mut domain = UdpDomain {
                wait: watched.clone(),
                endpoints: Vec::new(),
                options: SocketOptions::new(),
                origin: Origin::here(),
            };
            let name: Address = domain
                .open_endpoint(ep, &info, None, Receiving::Own(&Pool::new()))
                .unwrap();
            let me = hub
                .vectors
                .get_mut(av.0)
                .unwrap()
                .table
                .insert(name.clone());
            domain.address_inserted(&mut hub, ep, me, &name);
            Self {
                domain,
                hub,
                ep,
                me,
                watched,
                collected: Vec::new(),
            }
        }

        fn endpoint(&mut self) -> &mut Endpoint {
            self.domain.ep(self.ep).unwrap()
        }

        fn spec(&self, more: bool) -> SendSpec {
            SendSpec {
                more,
                ..SendSpec::new(OpKind::Send, self.me)
            }
        }

        fn send_now(&mut self, byte: u8, more: bool) -> SendNow {
            let spec = self.spec(more);
            let sent = self
                .domain
                .send_now(&mut self.hub, self.ep, &spec, Payload::Whole(&[byte]))
                .unwrap();
            if sent == SendNow::Collected {
                let none = AnyBuf::None;
                let op = self
                    .hub
                    .ops
                    .insert_send(self.ep, &spec, Route::Future, none, false);
                self.domain.collected(&mut self.hub, self.ep, op, &spec, 1);
                self.collected.push(op);
            }
            sent
        }

        /// How many messages that were collected have ended well.
        fn ended(&self) -> usize {
            let ops = &self.hub.ops;
            self.collected
                .iter()
                .filter(|op| ops.is_done(**op) && ops.get(**op).unwrap().outcome.error.is_none())
                .count()
        }

        fn queue(&mut self, byte: u8) -> OpKey {
            let spec = self.spec(false);
            let mut op = Op::new(
                self.ep,
                OpKind::Send,
                Route::Future,
                AnyBuf::Vec(vec![byte]),
            );
            op.spec = Some(spec);
            let key = self.hub.ops.insert(op);
            self.domain
                .queue_send(&mut self.hub, self.ep, key, &spec)
                .unwrap();
            key
        }

        fn interest(&self) -> Option<Interest> {
            *self.watched.0.lock().unwrap()
        }

        fn unexpected(&mut self) -> usize {
            self.domain.progress(&mut self.hub);
            self.endpoint().stats().unexpected.0
        }
    }

    /// The network inside a machine always has room, so it is said that there is none.
    #[test]
    fn without_room_messages_wait_in_order_and_the_socket_is_watched() {
        let mut rig = Rig::new();
        assert_eq!(rig.send_now(0, false), SendNow::Done);
        assert_eq!(rig.unexpected(), 1);
        assert_eq!(rig.send_now(1, true), SendNow::Collected);
        assert!(
            !rig.domain.arm(),
            "something was collected and has not left"
        );
        rig.endpoint().wait_for_room();
        assert_eq!(rig.interest(), Some(Interest::Both));
        rig.domain.flush(&mut rig.hub, rig.ep).unwrap();
        assert_eq!(rig.ended(), 0, "it has not left");
        assert_eq!(
            rig.send_now(2, false),
            SendNow::Queue,
            "it would overtake what was collected"
        );
        let (queued, canceled) = (rig.queue(2), rig.queue(9));
        assert_eq!(rig.send_now(3, true), SendNow::Queue, "likewise");
        rig.queue(3);
        assert!(rig.domain.arm(), "the socket tells when there is room");
        assert_eq!(rig.unexpected(), 1, "no attempt is made before");
        assert!(rig.domain.cancel(&mut rig.hub, rig.ep, canceled));
        assert!(
            !rig.domain.cancel(&mut rig.hub, rig.ep, canceled),
            "it is not there any more"
        );
        rig.domain
            .ready(&mut rig.hub, super::super::endpoint::token(rig.ep, None));
        assert_eq!(rig.interest(), Some(Interest::Read));
        assert_eq!(rig.unexpected(), 4);
        assert_eq!(rig.ended(), 1);
        assert!(
            !rig.domain.cancel(&mut rig.hub, rig.ep, queued),
            "it has left"
        );
        assert!(rig.domain.arm());
    }

    #[test]
    fn a_full_collection_leaves_or_holds_back() {
        let mut rig = Rig::new();
        for byte in 0..100 {
            assert_eq!(rig.send_now(byte, true), SendNow::Collected);
        }
        rig.domain.flush(&mut rig.hub, rig.ep).unwrap();
        assert_eq!(rig.ended(), 100);
        while rig.unexpected() < 100 {}
        rig.endpoint().wait_for_room();
        let taken = (0..100)
            .take_while(|byte| rig.send_now(*byte, true) == SendNow::Collected)
            .count();
        assert_eq!(taken, super::super::batch::BATCH);
        let waiting = rig.queue(7);
        assert!(rig.domain.arm());
        rig.domain
            .ready(&mut rig.hub, super::super::endpoint::token(rig.ep, None));
        while rig.unexpected() < 100 + taken + 1 {}
        assert!(!rig.domain.cancel(&mut rig.hub, rig.ep, waiting));
    }

    #[test]
    fn what_waits_ends_with_its_number_and_with_the_endpoint() {
        for close in [false, true] {
            let mut rig = Rig::new();
            assert_eq!(rig.send_now(0, true), SendNow::Collected);
            rig.endpoint().wait_for_room();
            let key = rig.queue(1);
            let error = if close {
                rig.domain.close_endpoint(&mut rig.hub, rig.ep);
                Error::Canceled
            } else {
                rig.domain.address_removed(&mut rig.hub, rig.ep, rig.me);
                assert!(rig.domain.arm() && !rig.domain.cancel(&mut rig.hub, rig.ep, key));
                Error::StaleAddress(rig.me)
            };
            let ended = rig.hub.ops.get(key).unwrap();
            assert_eq!(ended.outcome.error.as_deref(), Some(&error));
            let collected = rig.hub.ops.is_done(rig.collected[0]);
            assert_eq!(
                collected, close,
                "its address was taken when it was collected"
            );
        }
    }
}
