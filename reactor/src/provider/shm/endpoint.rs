//! An endpoint over shared memory: a name where peers knock, the connections in both directions,
//! and a receive context.
//!
//! | file | subject |
//! |---|---|
//! | `endpoint` | the endpoint, its passes, its sleep and its end |
//! | `sending`, `receiving` | what is sent, to whom; what is received |
//! | `meet` | how peers that knock are let in |
//! | `pass` | what one pass takes from those that are |
//! | `tell` | what senders are told of their messages |
//! | `ends` | how connections end, and who hears of it |
//! | `report` | what it has done |

mod ends;
mod meet;
mod pass;
mod receiving;
mod report;
mod sending;
mod tell;

use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fabric_core::completion::Outcome;
use fabric_core::flags::Caps;
use fabric_core::info::Info;
use fabric_core::provider::{EpId, Host, OpKey, WaitSet};
use fabric_core::rx::{ReceiveSide, Receiving};
use fabric_core::tree::Class;
use fabric_core::{Address, Error, Result};

use super::Means;
use super::callers::{Callers, FEW};
use super::handshake::Word;
use super::incoming::{Here, Incoming};
use super::lanes::Lanes;
use super::loans::Adopted;
use super::outgoing::{Doings, Pumped};
use super::socket::{self, Listener};
use crate::provider::token;

use ends::end;

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
    /// Connections are not accepted: the closing threads are held up.
    stopped: bool,
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
            stopped: false,
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

    /// Moves what can be moved. In a crowd, of endpoints or of callers, who has been silent for
    /// long is left alone.
    pub(crate) fn progress(&mut self, host: &mut dyn Host, endpoints: usize) -> bool {
        if self.stopped {
            self.accept_again(host);
        }
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
        self.callers.attended() == 0 && self.busy.is_empty() && !receives && !self.stopped
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
        let pumped = self
            .lanes
            .lock(at)
            .map_or(Pumped::Idle, |mut outgoing| outgoing.pump(host));
        match pumped {
            Pumped::Moved => true,
            Pumped::Idle => false,
            Pumped::Closed => {
                self.outgoing_closed(host, at);
                true
            }
        }
    }

    pub(crate) fn ready(&mut self, host: &mut dyn Host, token: Token) {
        match token {
            Token::Listener => self.accept(host),
            Token::Incoming(at) => self.caller_ready(host, at as usize),
            Token::Outgoing(at) => {
                let at = at as usize;
                let parting = self
                    .lanes
                    .lock(at)
                    .and_then(|mut outgoing| outgoing.readable());
                let Some(parting) = parting else {
                    self.pump_outgoing(host);
                    return;
                };
                self.outgoing_ended(host, at, parting);
            }
        }
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
        self.dialled
            .iter()
            .for_each(|&at| drop(self.lanes.remove(at)));
    }

    fn say_goodbye(&self) {
        if self.listener.is_ours() {
            self.each(|outgoing| outgoing.farewell(Word::Goodbye));
        }
    }

    pub(crate) fn arm(&mut self) -> bool {
        let mut quiet = !self.rx.own.has_chores() & self.callers.arm();
        for &at in &self.busy {
            quiet &= self
                .lanes
                .lock(at)
                .is_none_or(|mut outgoing| outgoing.arm());
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
        if !self.stopped {
            self.wait.unwatch(self.listener.as_fd());
        }
        self.callers.peers().for_each(Incoming::farewell);
        self.say_goodbye();
    }
}

/// An operation on an endpoint that is closed.
pub(crate) fn closed(host: &mut dyn Host, op: OpKey) {
    host.complete(op, Outcome::failed(Error::Closed(Class::Endpoint)));
}
