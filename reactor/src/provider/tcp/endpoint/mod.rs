//! An endpoint over TCP: where peers connect, one connection with each of them, and a receive
//! context. One that only takes requests has no peers, and one that is connected has one, and
//! nowhere to connect to.
//!
//! | file | subject |
//! |---|---|
//! | `mod` | the endpoint, its passes and its end |
//! | `sending`, `receiving` | what is sent, to whom; what is received |
//! | `asking`, `accepting` | connections that this side asks for, and those that peers ask for |
//! | `links` | how connections come and go |
//! | `passive`, `single` | endpoints that take requests; endpoints that are connected with one peer |
//! | `clock` | what has its time |

mod accepting;
mod asking;
mod clock;
mod links;
mod passive;
mod receiving;
mod sending;
mod single;

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric_core::flags::Caps;
use fabric_core::provider::{EpId, Host, WaitSet};
use fabric_core::rx::{ReceiveSide, Receiving};
use fabric_core::stats::ProviderStats;
use fabric_core::tcp::{Dialect, Mark};
use fabric_core::{Address, Error, FiAddr, Result, Scheme};
use slab::Slab;

use super::farewell;
use super::greeting::{Callee, Caller};
use super::link::{Link, Sending};
use super::socket::{Listener, Timer};
use crate::provider::net::Tuning;
use crate::provider::token;
use crate::uring::{Completion, Released, SharedRing, Way, What};

use passive::Requests;
use single::Single;

/// Bytes of unexpected messages an endpoint buffers before it holds senders back.
const UNEXPECTED_BYTES: usize = 16 << 20;
/// What one look reads at most.
const SCRATCH: usize = 128 << 10;
/// How long a peer has to say who it is, to answer, and to stop refusing.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a descriptor of an endpoint is for. Packed into the token it is watched with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    Listener,
    Clock,
    Socket(u32),
    /// The ring of the domain, whichever the endpoint.
    Ring,
}

impl Token {
    pub(super) fn pack(self, ep: EpId) -> u64 {
        match self {
            Self::Listener => token::pack(0, ep, 0),
            Self::Clock => token::pack(1, ep, 0),
            Self::Socket(id) => token::pack(2, ep, id),
            Self::Ring => token::pack(3, ep, 0),
        }
    }

    pub(crate) fn unpack(token: u64) -> (EpId, Self) {
        let (kind, ep, id) = token::unpack(token);
        let what = match kind {
            0 => Self::Listener,
            1 => Self::Clock,
            3 => Self::Ring,
            _ => Self::Socket(id),
        };
        (ep, what)
    }
}

/// A connection, from its beginning.
enum Stage {
    /// Somebody connected, and has not said who it is.
    Caller(Caller),
    /// This side has asked a peer.
    Asked(Callee),
    Up(Box<Link>),
}

/// Somebody this endpoint talks with, or wants to.
#[derive(Debug)]
struct Peer {
    name: Address,
    at: SocketAddr,
    /// Its number, if something was sent to it.
    addr: Option<FiAddr>,
    /// Where what is sent goes.
    link: Option<usize>,
    sends: VecDeque<Sending>,
    /// It refused, because it asks itself: when it is asked again, and until when.
    again: Option<(Instant, Duration)>,
    until: Option<Instant>,
    /// What it speaks, as far as is known; and whether it has said so in answer to a question in
    /// the other dialect.
    dialect: Dialect,
    has_turned: bool,
}

impl Peer {
    /// One that nobody has talked with yet.
    fn new(name: Address, at: SocketAddr, dialect: Dialect) -> Self {
        Self {
            name,
            at,
            addr: None,
            link: None,
            sends: VecDeque::new(),
            again: None,
            until: None,
            dialect,
            has_turned: false,
        }
    }
}

/// What an endpoint is there for.
enum Role {
    /// It talks with whom it likes: connects with those it sends to, and accepts those who call.
    Many,
    /// It takes requests.
    Passive(Requests),
    /// It is connected with one peer.
    Single(Single),
}

/// One endpoint.
pub(crate) struct Endpoint {
    id: EpId,
    name: Address,
    at: SocketAddr,
    tuning: Tuning,
    /// Another number for each endpoint; never 0.
    instance: u32,
    role: Role,
    listener: Option<Listener>,
    wait: Arc<dyn WaitSet>,
    rx: ReceiveSide,
    stages: Slab<Stage>,
    peers: Slab<Peer>,
    by_address: HashMap<SocketAddr, usize>,
    /// Position in `peers`, by the index of the number.
    routes: Vec<Option<usize>>,
    /// Connections that are looked at without being told.
    hot: Vec<usize>,
    /// Those who have connected and not said who they are, the first first.
    callers: VecDeque<usize>,
    /// There was no descriptor left for another connection: when to look again.
    accept_again: Option<Instant>,
    next_key: u32,
    /// What packets of the last connection quote, whichever dialect it was to be.
    next_connection: u32,
    /// What peers are asked in first.
    dialect: Dialect,
    scratch: Box<[u8]>,
    /// None where nothing has its time.
    clock: Option<Timer>,
    /// Passes look at it.
    pub(super) is_attended: bool,
    /// Where connections listen and are sent on, unless epoll does that.
    ring: Option<SharedRing>,
    /// Peers may reach memory of its domain, and it wants to hear of everything that they do there.
    is_target: bool,
    heeds: bool,
    /// What it says of itself where the dialect does not say it.
    mark: Mark,
    /// Sends that the network took from where they lay, and those that the kernel has copied all
    /// the same.
    zero_copy: u64,
    copied_anyway: u64,
}

impl Endpoint {
    pub(crate) fn open(
        id: EpId,
        (at, tuning): (SocketAddr, Tuning),
        wait: Arc<dyn WaitSet>,
        receiving: Receiving<'_>,
        ring: Option<SharedRing>,
        dialect: Dialect,
    ) -> Result<Self> {
        let role = Role::Many;
        let mut opened = Self::new(id, (at, tuning), role, (wait, receiving, ring))?;
        opened.dialect = dialect;
        opened.scratch = vec![0; SCRATCH].into();
        opened.open_door(at)?;
        Ok(opened)
    }

    /// One that is nowhere to be reached yet.
    fn new(
        id: EpId,
        (at, tuning): (SocketAddr, Tuning),
        role: Role,
        (wait, receiving, ring): (Arc<dyn WaitSet>, Receiving<'_>, Option<SharedRing>),
    ) -> Result<Self> {
        Ok(Self {
            id,
            name: Address::of_socket(Scheme::Tcp, at)?,
            at,
            tuning,
            instance: (RandomState::new().hash_one(id.0) as u32 >> 1).max(1),
            role,
            listener: None,
            wait,
            rx: receiving.side(id, UNEXPECTED_BYTES),
            stages: Slab::new(),
            peers: Slab::new(),
            by_address: HashMap::new(),
            routes: Vec::new(),
            hot: Vec::new(),
            callers: VecDeque::new(),
            accept_again: None,
            next_key: 0,
            next_connection: 0,
            dialect: Dialect::Native,
            scratch: Box::default(),
            clock: None,
            is_attended: false,
            ring,
            is_target: false,
            heeds: false,
            mark: Mark::of(Caps::empty()),
            zero_copy: 0,
            copied_anyway: 0,
        })
    }

    /// What it was opened for, as to memory of its domain.
    pub(crate) fn serve(&mut self, caps: Caps) {
        (self.is_target, self.heeds) = (caps.is_rma_target(), caps.contains(Caps::RMA_EVENT));
        self.mark = Mark::of(caps);
    }

    /// Listens, and says where.
    fn open_door(&mut self, at: SocketAddr) -> Result<()> {
        let (listener, at) = Listener::open(at, &self.tuning)?;
        (self.at, self.name) = (at, Address::of_socket(Scheme::Tcp, at)?);
        listener.watch(&*self.wait, Token::Listener.pack(self.id))?;
        self.listener = Some(listener);
        self.open_clock()
    }

    /// From the beginning: there may be no descriptor for it when it is needed.
    fn open_clock(&mut self) -> Result<()> {
        let clock = Timer::new()?;
        clock.watch(&*self.wait, Token::Clock.pack(self.id))?;
        self.clock = Some(clock);
        Ok(())
    }

    fn close_clock(&mut self) {
        if let Some(clock) = self.clock.take() {
            clock.unwatch(&*self.wait);
        }
    }

    pub(crate) fn id(&self) -> EpId {
        self.id
    }

    pub(crate) fn name(&self) -> &Address {
        &self.name
    }

    fn links(&self) -> impl Iterator<Item = &Link> {
        self.stages.iter().filter_map(|(_, stage)| {
            if let Stage::Up(link) = stage {
                Some(&**link)
            } else {
                None
            }
        })
    }

    pub(crate) fn progress(&mut self, host: &mut dyn Host) -> bool {
        let mut moved = self.rx.own.serve(host);
        self.end_receives(host);
        moved |= self.rx.own.has_chores() && self.rx.own.copy_on(host);
        let mut index = 0;
        while let Some(&at) = self.hot.get(index) {
            let Some(Stage::Up(link)) = self.stages.get_mut(at) else {
                self.hot.swap_remove(index);
                continue;
            };
            let peer = link.peer;
            moved |= self.rx.with(|rx| link.pump(&mut self.scratch, rx, host));
            // An endpoint that talks with itself has a second connection, for what it receives.
            let mut none = VecDeque::new();
            let is_first = self.peers[peer].link == Some(at);
            let sends = if is_first {
                &mut self.peers[peer].sends
            } else {
                &mut none
            };
            moved |= link.drive(sends, host);
            if link.awaits_fetches() && link.is_held() {
                self.end_fetches(host, at);
                moved = true;
            } else if link.ended().is_some() && !link.is_held() {
                self.link_down(host, at);
                moved = true;
            } else if link.is_deaf() && is_first {
                // What has come may still be received; nothing can be sent there any more.
                self.link_half_down(host, at);
                moved = true;
                index += 1;
            } else if link.is_busy() || !self.peers[peer].sends.is_empty() {
                index += 1;
            } else if link.listen() {
                link.is_looked_at = false;
                self.hot.swap_remove(index);
            } else {
                index += 1;
            }
        }
        moved
    }

    /// Whether passes need not look at it until something happens: those with one peer or none may
    /// be many.
    pub(crate) fn is_quiet(&self) -> bool {
        self.hot.is_empty() && !matches!(self.role, Role::Many) && !self.rx.own.is_busy()
    }

    pub(crate) fn ready(&mut self, host: &mut dyn Host, token: Token) {
        match token {
            Token::Listener => self.accept(host),
            Token::Clock => self.tick(host),
            Token::Socket(at) => self.socket_ready(host, at as usize),
            Token::Ring => {}
        }
    }

    fn socket_ready(&mut self, host: &mut dyn Host, at: usize) {
        match self.stages.get_mut(at) {
            Some(Stage::Up(link)) => {
                link.warm();
                link.unblock();
                self.heat(at);
                self.progress(host);
            }
            Some(Stage::Asked(_)) => self.asked_ready(host, at),
            Some(Stage::Caller(_)) => self.caller_ready(host, at),
            None => {}
        }
    }

    /// Something has come of what a connection, or an attempt, has in the ring.
    pub(crate) fn completed(&mut self, at: usize, completion: Completion, host: &mut dyn Host) {
        if let What::Released(Released { way: Some(way), .. }) = &completion.what {
            self.zero_copy += u64::from(*way == Way::ZeroCopy);
            self.copied_anyway += u64::from(*way == Way::Copied);
        }
        if let What::Timed(ended) = completion.what {
            return self.dialed(host, at, (completion.ticket, ended));
        }
        let Some(Stage::Up(link)) = self.stages.get_mut(at) else {
            return;
        };
        let peer = &mut self.peers[link.peer];
        let mut none = VecDeque::new();
        link.completed(
            completion,
            if peer.link == Some(at) {
                &mut peer.sends
            } else {
                &mut none
            },
            host,
        );
        link.warm();
        self.heat(at);
    }

    pub(crate) fn close(mut self, host: &mut dyn Host) {
        self.rx.close(host);
        let peers: Vec<_> = self.peers.iter().map(|(at, _)| at).collect();
        for at in peers {
            self.fail_sends(host, at, &Error::Canceled);
        }
        let links: Vec<_> = self.stages.iter().map(|(at, _)| at).collect();
        for at in links {
            self.end_unwritten(host, at, &Error::Canceled);
        }
        for (_, stage) in &mut self.stages {
            if let Stage::Up(link) = stage {
                link.fail_asked(host, &Error::Canceled);
                host.peer_disconnected(self.id, link.number);
            }
        }
    }

    /// Whether somebody waits for memory that its owner has in hand, or may.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.links()
            .any(|link| link.is_held() || link.owes_answers())
    }

    pub(crate) fn arm(&mut self) -> bool {
        // Sockets tell by themselves; what could be sent and was not does not.
        let waits = |peer: &Peer| match peer.link.and_then(|at| self.stages.get(at)) {
            Some(Stage::Up(link)) => {
                peer.sends.is_empty()
                    || link.is_blocked()
                    || link.is_sending()
                    || link.is_stalled()
                    || link.awaits_responses(&peer.sends)
            }
            _ => true,
        };
        !self.rx.own.has_chores()
            && self
                .links()
                .all(|link| link.is_flushed() && !link.has_duties())
            && self.peers.iter().all(|(_, peer)| waits(peer))
            && self.listen()
    }

    /// Nobody looks from now on. False when something has come.
    fn listen(&mut self) -> bool {
        if self.ring.is_none() {
            return true;
        }
        let links = self.stages.iter_mut();
        links.fold(true, |quiet, (_, stage)| match stage {
            Stage::Up(link) => link.listen() && quiet,
            _ => quiet,
        })
    }

    pub(crate) fn stats(&self) -> ProviderStats {
        let (peers, unexpected) = (self.links().count(), self.rx.own.unexpected());
        let (zero_copy, copied_anyway) = (self.zero_copy, self.copied_anyway);
        ProviderStats {
            peers,
            unexpected,
            zero_copy,
            copied_anyway,
            ..ProviderStats::default()
        }
    }

    pub(crate) fn describe(&self) -> String {
        if let Role::Passive(requests) = &self.role {
            return format!("{} ({} requests)", self.name, requests.len());
        }
        let (messages, bytes) = self.rx.own.unexpected();
        let links = self.links().count();
        format!(
            "{} ({links} connections, {messages} unexpected messages of {bytes} bytes)",
            self.name
        )
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if let Some(listener) = self.listener.take() {
            listener.unwatch(&*self.wait);
        }
        self.close_clock();
        for stage in self.stages.drain() {
            if let Stage::Up(link) = stage {
                let (socket, rest) = link.into_socket();
                farewell::close(socket, &rest);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn tokens_tell_all_endpoints_apart() {
        for ep in [0, 1, 1 << 28, u32::MAX].map(EpId) {
            for token in [
                Token::Listener,
                Token::Clock,
                Token::Socket(0),
                Token::Socket((1 << 30) - 1),
                Token::Ring,
            ] {
                assert_eq!(Token::unpack(token.pack(ep)), (ep, token));
            }
        }
    }
}
