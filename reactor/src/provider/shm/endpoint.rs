//! An endpoint over shared memory: a name where peers knock, the connections in both directions, and a receive
//! context.

mod meet;
mod pass;
mod report;
mod tell;

use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fabric_core::buf::{Payload, PooledBuf};
use fabric_core::completion::Outcome;
use fabric_core::event::{DownReason, EventKind};
use fabric_core::flags::Caps;
use fabric_core::info::Info;
use fabric_core::matching::{Envelope, RecvSpec};
use fabric_core::mr::Reached;
use fabric_core::provider::{EpId, Express, Host, OpKey, SendNow, SendSpec, WaitSet};
use fabric_core::rx::{ReceiveSide, Receiving, RxContext};
use fabric_core::tree::Class;
use fabric_core::{Address, Error, FiAddr, Result, Scheme};

use super::Means;
use super::callers::{Callers, FEW};
use super::handshake::Word;
use super::incoming::{Here, Incoming};
use super::lanes::{Connection, Lanes};
use super::loans::Adopted;
use super::outgoing::{self, Doings, Outgoing, Parting, Pumped, Push};
use super::socket::{self, Listener};
use crate::provider::token;

/// Bytes of unexpected messages an endpoint buffers before it holds senders back.
const UNEXPECTED_BYTES: usize = 16 << 20;

/// What a descriptor of an endpoint is for. Packed into the token it is watched with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    Listener,
    Incoming(u32),
    Outgoing(u32),
}

impl Token {
    fn pack(self, ep: EpId) -> u64 {
        match self {
            Self::Listener => token::pack(0, ep, 0),
            Self::Incoming(id) => token::pack(1, ep, id),
            Self::Outgoing(id) => token::pack(2, ep, id),
        }
    }

    pub(crate) fn unpack(token: u64) -> (EpId, Self) {
        let (kind, ep, id) = token::unpack(token);
        let what = match kind {
            0 => Self::Listener,
            1 => Self::Incoming(id),
            _ => Self::Outgoing(id),
        };
        (ep, what)
    }
}

/// One endpoint.
pub(crate) struct Endpoint {
    /// Its domain makes passes over it. Others only ring.
    pub(crate) attended: bool,
    id: EpId,
    name: Address,
    here: Here,
    means: Means,
    /// What was done for peers that are gone.
    done: Doings,
    listener: Listener,
    wait: Arc<dyn WaitSet>,
    rx: ReceiveSide,
    callers: Callers,
    next_key: u32,
    /// Given up for a moment when descriptors run out, so that a caller can be told so.
    spare: Option<OwnedFd>,
    /// Some caller's oldest message waits for a receive.
    held: bool,
    /// The connections to peers.
    lanes: Arc<Lanes>,
    /// Where in `lanes` there are some.
    dialled: Vec<usize>,
    /// Those that have something queued.
    busy: Vec<usize>,
    /// Those that got something nobody was woken for.
    silent: Vec<usize>,
}

impl Endpoint {
    pub(crate) fn open(
        id: EpId,
        at: Address,
        (info, means): (&Info, Means),
        wait: Arc<dyn WaitSet>,
        receiving: Receiving<'_>,
    ) -> Result<Self> {
        let caps = info.caps;
        let listener = Listener::open(&at)?;
        wait.watch(listener.as_fd(), Token::Listener.pack(id))
            .map_err(|error| Error::os("epoll_ctl", error.raw_os_error().unwrap_or_default()))?;
        Ok(Self {
            attended: false,
            id,
            name: at,
            here: Here {
                ep: id,
                incarnation: RandomState::new().hash_one(id.0),
                is_target: caps.is_rma_target(),
                heeds: caps.contains(Caps::RMA_EVENT),
                fetches: !means.fetched.is_none(),
                adopted: Adopted::default(),
            },
            means,
            done: Doings::default(),
            listener,
            wait,
            rx: receiving.side(id, UNEXPECTED_BYTES),
            callers: Callers::default(),
            next_key: 0,
            spare: socket::spare().ok(),
            held: false,
            lanes: Arc::new(Lanes::new(info.ep.max_msg_size)),
            dialled: Vec::new(),
            busy: Vec::new(),
            silent: Vec::new(),
        })
    }

    pub(crate) fn id(&self) -> EpId {
        self.id
    }

    pub(crate) fn name(&self) -> &Address {
        &self.name
    }

    // ---- sending

    pub(crate) fn send_now(
        &mut self,
        host: &mut dyn Host,
        spec: &SendSpec,
        payload: Payload<'_>,
    ) -> Result<SendNow> {
        self.at_once(host, spec, |outgoing| outgoing.send_now(spec, payload))
    }

    /// Does something at a peer, at once or not at all.
    #[inline]
    pub(crate) fn at_once(
        &mut self,
        host: &mut dyn Host,
        spec: &SendSpec,
        act: impl FnOnce(&mut Outgoing) -> Result<Push>,
    ) -> Result<SendNow> {
        let at = spec.peer.index();
        let Some(mut outgoing) = self.connection(spec.peer) else {
            return host.address_of(self.id, spec.peer).map(|_| SendNow::Queue);
        };
        let pushed = act(&mut outgoing)?;
        drop(outgoing);
        match pushed {
            Push::Done => {
                if spec.more && !self.silent.contains(&at) {
                    self.silent.push(at);
                }
                Ok(SendNow::Done)
            }
            Push::NoRoom => Ok(SendNow::Queue),
            Push::Closed => Err(self.outgoing_closed(host, at)),
        }
    }

    /// A region of a peer's that has been accessed.
    pub(crate) fn reach(&mut self, peer: FiAddr, key: u64) -> Result<Option<Reached>> {
        self.connection(peer).map_or(Ok(None), |mut outgoing| outgoing.reach(key))
    }

    pub(crate) fn queue_send(&mut self, host: &mut dyn Host, op: OpKey, spec: &SendSpec) -> Result<()> {
        let at = spec.peer.index();
        if self.connection(spec.peer).is_none() {
            let peer = host.address_of(self.id, spec.peer)?;
            if peer.scheme() != Scheme::Shm {
                return Err(Error::WrongScheme { provider: "shm", address: peer });
            }
            self.lanes.insert(at, Outgoing::new(peer, spec.peer, self.means.clone()));
            self.dialled.push(at);
        }
        self.dial(at)?;
        if let Some(mut outgoing) = self.lanes.lock(at) {
            outgoing.queue(op, outgoing::at_first(spec, host));
        }
        if !self.busy.contains(&at) {
            self.busy.push(at);
        }
        self.pump_one(host, at);
        if !self.is_idle(at) {
            host.unsettled();
        }
        Ok(())
    }

    /// Wakes the peers that were sent something with `more`.
    pub(crate) fn flush(&mut self, host: &mut dyn Host) -> Result<()> {
        let mut flushed = Ok(());
        while let Some(at) = self.silent.pop() {
            let pushed = self.lanes.lock(at).map(|mut outgoing| outgoing.flush());
            if pushed == Some(Push::Closed) {
                flushed = Err(self.outgoing_closed(host, at));
            }
        }
        flushed
    }

    /// Takes back what peers have given back of what was lent to them.
    pub(crate) fn collect(&mut self) {
        self.each(Outgoing::collect);
    }

    fn dial(&mut self, at: usize) -> Result<()> {
        let token = Token::Outgoing(at as u32).pack(self.id);
        let Some(mut outgoing) = self.lanes.lock(at) else { return Ok(()) };
        outgoing.dial(&self.name, self.here.incarnation, token, &self.wait)
    }

    /// The endpoint at the other end has closed, as its ring says; the sockets will say so too.
    #[cold]
    fn outgoing_closed(&mut self, host: &mut dyn Host, at: usize) -> Error {
        let Some(outgoing) = self.lanes.lock(at) else { return Error::Closed(Class::Endpoint) };
        let error = Error::PeerGone(outgoing.peer.clone());
        let identity = outgoing.identity();
        drop(outgoing);
        self.outgoing_ended(host, at, Parting { error: error.clone(), reason: DownReason::Closed, identity });
        error
    }

    /// The connection to this peer, if one was begun.
    #[inline]
    fn connection(&self, addr: FiAddr) -> Option<Connection<'_>> {
        self.lanes.lock(addr.index()).filter(|outgoing| outgoing.addr == addr)
    }

    /// Shows every connection to a peer.
    fn each(&self, mut act: impl FnMut(&mut Outgoing)) {
        self.dialled.iter().filter_map(|&at| self.lanes.lock(at)).for_each(|mut outgoing| act(&mut outgoing));
    }

    fn is_idle(&self, at: usize) -> bool {
        self.lanes.lock(at).is_none_or(|outgoing| outgoing.is_idle())
    }

    /// The way that does not need the domain.
    pub(crate) fn express(&self) -> Arc<dyn Express> {
        self.lanes.clone()
    }

    // ---- receiving

    #[inline(always)] // on the way of a small message
    pub(crate) fn post_recv(&mut self, host: &mut dyn Host, op: OpKey, spec: RecvSpec) {
        self.rx.own.post(host, op, spec);
        self.receive_side_changed(host);
    }

    pub(crate) fn post_multi_recv(&mut self, host: &mut dyn Host, op: OpKey, spec: RecvSpec) {
        self.rx.own.post_multi(host, op, spec);
        self.receive_side_changed(host);
    }

    pub(crate) fn receive_side(&mut self) -> &mut RxContext {
        &mut self.rx.own
    }

    /// After a receive was posted, or a message was discarded; or copied, where the receive side is shared.
    pub(crate) fn receive_side_changed(&mut self, host: &mut dyn Host) {
        if self.rx.is_shared() {
            self.tell_of_shared(host);
        }
        self.confirm();
        if self.rx.own.has_chores() {
            // Its sender waits, whoever waits here.
            host.goes_on();
            host.unsettled();
        }
        if self.held {
            self.pump_held(host);
        }
    }

    pub(crate) fn cancel(&mut self, host: &mut dyn Host, op: OpKey) -> bool {
        if self.rx.own.cancel(host, op) {
            return true;
        }
        let cancels = |at: &usize| self.lanes.lock(*at).is_some_and(|mut outgoing| outgoing.cancel(op));
        let Some(at) = self.busy.iter().copied().find(cancels) else { return false };
        // What waited behind it may go now.
        self.pump_one(host, at);
        host.unsettled();
        true
    }

    pub(crate) fn abandon_recv(&mut self, host: &mut dyn Host, op: OpKey) {
        self.rx.own.abandon(host, op);
    }

    pub(crate) fn put_back(&mut self, host: &mut dyn Host, envelope: Envelope, bytes: PooledBuf) {
        // The sender may have got a number since, or lost it.
        let mut peers = self.callers.peers();
        let peer = peers.find(|peer| peer.key == envelope.peer);
        let source = peer.and_then(|peer| peer.source);
        self.rx.own.put_back(host, envelope, source, bytes);
    }

    pub(crate) fn holds(&self, source: FiAddr) -> bool {
        self.rx.own.holds(source)
    }

    pub(crate) fn address_inserted(&mut self, host: &mut dyn Host, addr: FiAddr, address: &Address) {
        for peer in self.callers.peers_mut().filter(|peer| peer.peer == *address) {
            peer.source = Some(addr);
            self.rx.own.resolve(host, peer.key, addr);
        }
        self.rx.own.inserted(host, addr, address);
    }

    pub(crate) fn address_removed(&mut self, host: &mut dyn Host, addr: FiAddr) {
        self.rx.own.forget(host, addr);
        for peer in self.callers.peers_mut() {
            peer.source = peer.source.filter(|source| *source != addr);
        }
        let at = addr.index();
        if self.connection(addr).is_some()
            && let Some(mut outgoing) = self.lanes.remove(at)
        {
            self.dialled.retain(|dialled| *dialled != at);
            self.busy.retain(|busy| *busy != at);
            outgoing.farewell(Word::Leave);
            end(&mut outgoing, self.id, host, &Error::StaleAddress(addr));
            self.done += outgoing.done();
        }
        // A receive that fails lets others have what was held back for it.
        self.receive_side_changed(host);
    }

    // ---- moving

    /// Moves what can be moved. In a crowd, of endpoints or of callers, who has been silent for long is left alone.
    pub(crate) fn progress(&mut self, host: &mut dyn Host, endpoints: usize) -> bool {
        let served = self.rx.own.serve(host);
        let mut received = served | self.pump_callers(host);
        // Behind what has just arrived, so that nobody goes away over it.
        received |= self.rx.own.has_chores() && self.copy_on(host);
        let crowd = self.callers.attended().max(endpoints);
        if crowd > FEW {
            received |= self.callers.leave_one(crowd);
        }
        received | (!self.busy.is_empty() && self.pump_outgoing(host))
    }

    /// Whether a pass has nothing to do here before somebody rings.
    pub(crate) fn rests(&self) -> bool {
        let receives = self.held || self.rx.own.has_chores() || self.rx.own.waits_for_place();
        self.callers.attended() == 0 && self.busy.is_empty() && !receives
    }

    fn pump_outgoing(&mut self, host: &mut dyn Host) -> bool {
        let mut moved = false;
        let mut index = 0;
        while let Some(&at) = self.busy.get(index) {
            moved |= self.pump_one(host, at);
            if self.is_idle(at) {
                self.busy.swap_remove(index);
            } else {
                index += 1;
            }
        }
        moved
    }

    fn pump_one(&mut self, host: &mut dyn Host, at: usize) -> bool {
        let pumped = self.lanes.lock(at).map_or(Pumped::Idle, |mut outgoing| outgoing.pump(host));
        match pumped {
            Pumped::Moved => true,
            Pumped::Idle => false,
            Pumped::Closed => {
                self.outgoing_closed(host, at);
                true
            }
        }
    }

    // ---- connections

    pub(crate) fn ready(&mut self, host: &mut dyn Host, token: Token) {
        match token {
            Token::Listener => self.accept(host),
            Token::Incoming(at) => self.caller_ready(host, at as usize),
            Token::Outgoing(at) => {
                let at = at as usize;
                let parting = self.lanes.lock(at).and_then(|mut outgoing| outgoing.readable());
                let Some(parting) = parting else {
                    self.pump_outgoing(host);
                    return;
                };
                self.outgoing_ended(host, at, parting);
            }
        }
    }

    /// A connection to a peer has ended. It is news unless a connection from the same peer tells, or has told, of it.
    fn outgoing_ended(&mut self, host: &mut dyn Host, at: usize, parting: Parting) {
        let Some(mut outgoing) = self.lanes.lock(at) else { return };
        let (name, addr) = (outgoing.peer.clone(), outgoing.addr);
        end(&mut outgoing, self.id, host, &parting.error);
        let Some(identity) = parting.identity else { return };
        let reported = outgoing.is_reported(identity);
        drop(outgoing);
        let mut callers = self.callers.peers();
        if !reported && !callers.any(|peer| peer.peer == name && peer.identity == identity) {
            let (peer, reason) = (name.clone(), parting.reason);
            host.event(self.id, EventKind::PeerDown { peer, source: Some(addr), reason });
        }
        let mut callers = self.callers.peers();
        if !callers.any(|peer| peer.peer == name) {
            self.rx.fail_directed(host, addr, &name, &Error::PeerGone(name.clone()));
        }
    }

    /// A connection from a peer has ended; what it left in the ring is still taken.
    fn caller_ended(&mut self, host: &mut dyn Host, at: usize, reason: DownReason) {
        let Some(peer) = self.callers.get(at) else { return };
        // A socket that has hung up would keep everybody awake.
        peer.unwatch();
        if !peer.lost(reason) {
            return;
        }
        let (name, identity, source) = (peer.peer.clone(), peer.identity, peer.source);
        // What has not been copied of its own memory by now has gone with it, or will not be waited for.
        peer.stop_fetching();
        self.rx.with(|rx| rx.lose(host, peer.key, &Error::PeerGone(name.clone())));
        let Some(peer) = self.callers.get(at) else { return };
        let is_over = !peer.has_left() && !matches!(reason, DownReason::Protocol(_));
        let mut callers = self.callers.peers();
        if callers.any(|peer| peer.peer == name && peer.identity == identity && peer.down().is_none()) {
            return;
        }
        self.each(|outgoing| {
            if outgoing.peer != name {
                return;
            }
            outgoing.report(identity);
            if is_over && outgoing.identity() == Some(identity) {
                // The endpoint there is gone: what is sent from now on must not seem to have arrived.
                end(outgoing, self.id, host, &Error::PeerGone(name.clone()));
            }
        });
        let source = source.or_else(|| host.number_of(self.id, &name));
        host.event(self.id, EventKind::PeerDown { peer: name, source, reason });
    }

    /// The connection has ended and all it left has been taken.
    fn end_caller(&mut self, host: &mut dyn Host, at: usize) {
        let Some(mut peer) = self.callers.remove(at) else { return };
        let gone = Error::PeerGone(peer.peer.clone());
        self.rx.with(|rx| peer.end(rx, host, gone.clone()));
        self.rx.departed(peer.key, peer.peer.clone());
        peer.unwatch();
        self.done.doorbells += peer.doorbells;
        self.done.fetched += peer.fetched().unwrap_or_default();
        // With another connection from there the number is that one's.
        let others = self.callers.peers();
        if let Some(source) = peer.source.filter(|_| { others }.all(|other| other.peer != peer.peer)) {
            self.rx.fail_directed(host, source, &peer.peer, &gone);
        }
        host.peer_disconnected(self.id, peer.number);
    }

    pub(crate) fn close(mut self, host: &mut dyn Host) {
        // What is dropped now was not received.
        self.callers.peers().for_each(Incoming::stop_fetching);
        self.rx.gather();
        self.confirm();
        self.rx.close(host);
        for peer in self.callers.peers() {
            host.peer_disconnected(self.id, peer.number);
        }
        self.say_goodbye();
        self.each(|outgoing| end(outgoing, self.id, host, &Error::Canceled));
        // Whoever still has the way finds nobody.
        self.dialled.iter().for_each(|&at| drop(self.lanes.remove(at)));
    }

    fn say_goodbye(&self) {
        if self.listener.is_ours() {
            self.each(|outgoing| outgoing.farewell(Word::Goodbye));
        }
    }

    // ---- sleeping

    pub(crate) fn arm(&mut self) -> bool {
        let mut quiet = !self.rx.own.has_chores() & self.callers.arm();
        for &at in &self.busy {
            quiet &= self.lanes.lock(at).is_none_or(|mut outgoing| outgoing.arm());
        }
        quiet
    }

    pub(crate) fn disarm(&mut self) {
        self.callers.disarm();
        for &at in &self.busy {
            if let Some(mut outgoing) = self.lanes.lock(at) {
                outgoing.disarm();
            }
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if !self.listener.is_ours() {
            return;
        }
        self.wait.unwatch(self.listener.as_fd());
        self.callers.peers().for_each(Incoming::farewell);
        self.say_goodbye();
    }
}

/// Ends a connection of this endpoint.
fn end(outgoing: &mut Outgoing, ep: EpId, host: &mut dyn Host, error: &Error) {
    let lent = outgoing.out();
    if lent > 0 {
        host.gave_up(ep, &outgoing.peer, lent);
    }
    outgoing.end(host, error);
}

/// An operation on an endpoint that is closed.
pub(crate) fn closed(host: &mut dyn Host, op: OpKey) {
    host.complete(op, Outcome::failed(Error::Closed(Class::Endpoint)));
}
