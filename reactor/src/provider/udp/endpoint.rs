//! An endpoint for datagrams: a socket, those of its groups, and a receive context.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;

use fabric_core::buf::PooledBuf;
use fabric_core::completion::Outcome;
use fabric_core::flags::Caps;
use fabric_core::info::Info;
use fabric_core::matching::{Envelope, RecvSpec};
use fabric_core::provider::{EpId, Host, OpKey, WaitSet};
use fabric_core::rx::{Receiving, RxContext};
use fabric_core::stats::ProviderStats;
use fabric_core::{Address, Error, FiAddr, Result, Scheme};
use slab::Slab;

use super::batch::Batch;
use super::outbox::Outbox;
use super::senders::Senders;
use super::sending::{Routes, Sending};
use super::socket::Socket;
use crate::provider::net::Tuning;
use crate::provider::token;

/// Bytes of unexpected messages an endpoint buffers before it throws further ones away.
const UNEXPECTED_BYTES: usize = 4 << 20;
/// Passes without news after which the sockets are not looked at any more until one is ready.
const COLD: u32 = 2000;

/// The token that a socket of an endpoint is watched with: its own, or one of a group.
pub(super) fn token(ep: EpId, group: Option<usize>) -> u64 {
    group.map_or_else(
        || token::pack(0, ep, 0),
        |group| token::pack(1, ep, group as u32),
    )
}

/// Whose token it is.
pub(super) fn endpoint_of(token: u64) -> EpId {
    token::unpack(token).1
}

/// A group that was joined, once or more.
struct Group {
    at: SocketAddr,
    socket: Socket,
    times: usize,
}

/// One endpoint.
pub(super) struct Endpoint {
    pub(super) id: EpId,
    name: Address,
    pub(super) at: SocketAddr,
    tuning: Tuning,
    wait: Arc<dyn WaitSet>,
    /// Whether it was opened to send to groups and to join them.
    pub(super) multicasts: bool,
    pub(super) socket: Socket,
    groups: Slab<Group>,
    rx: RxContext,
    batch: Batch,
    senders: Senders,
    /// Messages that no receive wanted and for which there was no room.
    dropped: u64,
    pub(super) routes: Routes,
    pub(super) outbox: Outbox,
    pub(super) sends: VecDeque<Sending>,
    /// There was no room to send: the socket tells when there is.
    pub(super) is_blocked: bool,
    quiet_passes: u32,
}

impl Endpoint {
    pub(super) fn open(
        id: EpId,
        info: &Info,
        (at, tuning): (Option<&Address>, Tuning),
        wait: Arc<dyn WaitSet>,
        receiving: Receiving<'_>,
    ) -> Result<Self> {
        let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        let at = at.and_then(Address::socket).unwrap_or(any);
        if at.ip().is_multicast() {
            let why = format!("{at} is a group, which an endpoint joins and is not bound to");
            return Err(Error::Invalid {
                what: "address",
                why,
            });
        }
        let side = receiving.side(id, UNEXPECTED_BYTES);
        if side.is_shared() {
            return Err(Error::NotSupported(
                "datagram endpoints that share their receives",
            ));
        }
        let (socket, at) = Socket::open(at, &tuning, (wait.clone(), token(id, None)))?;
        Ok(Self {
            id,
            name: Address::of_socket(Scheme::Udp, at)?,
            at,
            tuning,
            wait,
            multicasts: info.caps.contains(Caps::MULTICAST),
            socket,
            groups: Slab::new(),
            rx: side.own,
            batch: Batch::new(),
            senders: Senders::new(id),
            dropped: 0,
            routes: Routes::default(),
            outbox: Outbox::default(),
            sends: VecDeque::new(),
            is_blocked: false,
            quiet_passes: 0,
        })
    }

    pub(super) fn name(&self) -> &Address {
        &self.name
    }

    // ---- groups

    pub(super) fn join(&mut self, group: &Address) -> Result<u32> {
        if !self.multicasts {
            return Err(Error::NotSupported(
                "multicast groups (the endpoint has no FI_MULTICAST)",
            ));
        }
        if group.scheme() != Scheme::Udp {
            return Err(Error::WrongScheme {
                provider: "udp",
                address: group.clone(),
            });
        }
        let invalid = |why: String| Err(Error::Invalid { what: "group", why });
        let Some(at) = group.socket().filter(|at| at.ip().is_multicast()) else {
            return invalid(format!(
                "{group} is not the address of one, as udp://239.1.2.3:5000 is"
            ));
        };
        let (SocketAddr::V4(v4), IpAddr::V4(interface)) = (at, self.at.ip()) else {
            return Err(Error::NotSupported("multicast groups of IPv6"));
        };
        if at.port() == 0 {
            return invalid(format!("{group} has no port"));
        }
        if let Some((known, group)) = self.groups.iter_mut().find(|(_, group)| group.at == at) {
            group.times += 1;
            return Ok(known as u32);
        }
        let slot = self.groups.vacant_entry();
        let number = slot.key();
        let socket = Socket::join(
            v4,
            interface,
            &self.tuning,
            (self.wait.clone(), token(self.id, Some(number))),
        )?;
        slot.insert(Group {
            at,
            socket,
            times: 1,
        });
        Ok(number as u32)
    }

    pub(super) fn leave(&mut self, number: u32) {
        let Some(group) = self.groups.get_mut(number as usize) else {
            return;
        };
        group.times -= 1;
        if group.times == 0 {
            // With its socket the membership ends.
            self.groups.remove(number as usize);
        }
    }

    // ---- progress

    pub(super) fn progress(&mut self, host: &mut dyn Host) -> bool {
        let mut moved = self.rx.serve(host);
        moved |= self.send_on(host);
        if self.quiet_passes < COLD {
            let news = self.receive(host);
            self.quiet_passes = if news { 0 } else { self.quiet_passes + 1 };
            moved |= news;
        }
        moved
    }

    /// The sockets are looked at in the next passes.
    pub(super) fn warm(&mut self) {
        self.quiet_passes = 0;
    }

    pub(super) fn ready(&mut self, host: &mut dyn Host) {
        self.warm();
        if std::mem::take(&mut self.is_blocked) {
            self.socket.watch_room(false);
        }
        self.progress(host);
    }

    /// Takes in what has come, as much from each socket as one call brings.
    fn receive(&mut self, host: &mut dyn Host) -> bool {
        let mut news = self.receive_from(host, None);
        for group in 0..self.groups.capacity() {
            if self.groups.contains(group) {
                news |= self.receive_from(host, Some(group));
            }
        }
        news
    }

    fn receive_from(&mut self, host: &mut dyn Host, group: Option<usize>) -> bool {
        let socket = group.map_or(&self.socket, |group| &self.groups[group].socket);
        let count = self.batch.receive(socket.as_fd());
        for at in 0..count {
            let Some(datagram) = self.batch.get(at) else {
                continue;
            };
            let (peer, source) = self.senders.of(host, &mut self.rx, datagram.from);
            let envelope = Envelope {
                peer,
                source,
                tag: None,
                len: datagram.len,
                data: None,
                // Given by the receive context.
                arrival: 0,
                receipt: None,
            };
            self.dropped += u64::from(!self.rx.deliver(host, envelope, &datagram.bytes));
        }
        count > 0
    }

    pub(super) fn arm(&self) -> bool {
        // Sockets tell by themselves; what could be sent and was not does not.
        self.is_blocked || (self.sends.is_empty() && self.outbox.is_empty())
    }

    // ---- the receive side

    pub(super) fn receive_side(&mut self) -> &mut RxContext {
        &mut self.rx
    }

    pub(super) fn holds(&self, source: FiAddr) -> bool {
        self.rx.holds(source)
    }

    pub(super) fn post_recv(&mut self, host: &mut dyn Host, op: OpKey, spec: RecvSpec) {
        self.rx.post(host, op, spec);
    }

    pub(super) fn cancel(&mut self, host: &mut dyn Host, op: OpKey) -> bool {
        if self.rx.cancel(host, op) {
            return true;
        }
        let before = self.sends.len();
        self.sends.retain(|send| send.op != op);
        self.sends.len() < before
    }

    pub(super) fn put_back(&mut self, host: &mut dyn Host, envelope: Envelope, bytes: PooledBuf) {
        // The sender may have got a number since, or lost it.
        let source = self.senders.number(envelope.peer);
        self.rx.put_back(host, envelope, source, bytes);
    }

    pub(super) fn address_inserted(
        &mut self,
        host: &mut dyn Host,
        addr: FiAddr,
        address: &Address,
    ) {
        if let Some(at) = address.socket()
            && let Some(key) = self.senders.inserted(at, addr)
        {
            self.rx.resolve(host, key, addr);
        }
        self.rx.inserted(host, addr, address);
    }

    pub(super) fn address_removed(&mut self, host: &mut dyn Host, addr: FiAddr) {
        self.rx.forget(host, addr);
        self.senders.removed(addr);
        self.routes.forget(addr);
        self.fail_sends(host, |send| {
            (send.peer == addr).then(|| Error::StaleAddress(addr))
        });
    }

    // ---- its end

    pub(super) fn close(mut self, host: &mut dyn Host) {
        self.rx.close(host);
        if self.socket.is_ours() {
            self.outbox.flush(host, self.socket.as_fd());
        }
        // What there is no room for now is lost.
        self.outbox.fail(host, &Error::Canceled);
        self.fail_sends(host, |_| Some(Error::Canceled));
        self.senders.close(host);
    }

    /// Ends those that wait to be sent and have an error.
    fn fail_sends(&mut self, host: &mut dyn Host, error: impl Fn(&Sending) -> Option<Error>) {
        self.sends.retain(|send| match error(send) {
            Some(error) => {
                host.complete(send.op, Outcome::failed(error));
                false
            }
            None => true,
        });
    }

    pub(super) fn stats(&self) -> ProviderStats {
        ProviderStats {
            dropped: self.dropped,
            unexpected: self.rx.unexpected(),
            ..ProviderStats::default()
        }
    }

    pub(super) fn describe(&self) -> String {
        let (messages, bytes) = self.rx.unexpected();
        let groups = self.groups.len();
        format!(
            "{} ({groups} groups, {messages} unexpected messages of {bytes} bytes)",
            self.name
        )
    }
}
