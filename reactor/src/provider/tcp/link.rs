//! A connection that is up: bytes in, bytes out.
//!
//! | file | subject |
//! |---|---|
//! | `link` | how it stands, what it is watched for, its end |
//! | `sending`, `receiving` | bytes out, bytes in |
//! | `onesided` | what it says of operations on memory, of either side |
//! | `packets` | what is particular to the other dialect |
//! | `lane` | what of it is in the ring |
//! | `zero_copy` | messages that are given to the ring with their buffers |

use std::collections::VecDeque;
use std::sync::Arc;

use fabric_core::event::DownReason;
use fabric_core::matching::PeerKey;
use fabric_core::provider::{EpId, Host, Incarnation, Interest, SendSpec, WaitSet};
use fabric_core::rx::RxContext;
use fabric_core::tcp::rxm::{Incoming, Outgoing};
use fabric_core::tcp::{Agreed, Inbox, Order, Outbox, Takes};
use fabric_core::{Error, FiAddr, Result};

use super::socket::Socket;
use crate::uring::SharedRing;

mod lane;
mod onesided;
mod packets;
mod receiving;
mod sending;
mod zero_copy;

use lane::Lane;

use receiving::Rest;
use sending::Unwritten;
pub(crate) use sending::{SendResult, Sending};

/// Passes without news after which a connection is not looked at any more until it is ready.
const COLD: u32 = 2000;

/// A connection.
pub(crate) struct Link {
    /// Position in the list of peers.
    pub(crate) peer: usize,
    pub(crate) key: PeerKey,
    /// The peer's number now, and when it connected.
    pub(crate) source: Option<FiAddr>,
    pub(crate) number: Option<FiAddr>,
    pub(crate) instance: Option<u32>,
    takes: Takes,
    socket: Socket,
    wait: Arc<dyn WaitSet>,
    token: u64,
    inbox: Inbox,
    outbox: Outbox,
    /// Messages that were collected, and whose last byte the kernel has not taken yet, in the order
    /// of the stream.
    unwritten: VecDeque<Unwritten>,
    /// Bytes that were read and not taken.
    rest: Rest,
    /// Nobody has looked at them.
    is_fresh: bool,
    /// The first message among them was left for another look.
    is_put_off: bool,
    /// The first message among them is nobody's yet.
    held: bool,
    /// It is not watched for what comes: that is not read for now.
    is_resting: bool,
    /// There was no room to send.
    is_blocked: bool,
    /// Something was sent since the last pass: what follows is collected.
    is_bursting: bool,
    /// The peer sends no more, or the connection is broken.
    ended: Option<DownReason>,
    /// Nothing can be sent any more. What the peer has sent before may still be there to be read.
    is_deaf: bool,
    /// A message has begun that will not end: what is pending leaves, and nothing behind it.
    is_cut: bool,
    /// Bytes of answers since anything that was queued has left.
    answered: usize,
    quiet_passes: u32,
    /// It is among those that every pass looks at.
    pub(crate) is_looked_at: bool,
    /// What it has in the ring, where there is one.
    lane: Option<Lane>,
}

impl Link {
    pub(crate) fn new(
        (peer, key): (usize, PeerKey),
        socket: Socket,
        (wait, token): (Arc<dyn WaitSet>, u64),
        (agreed, order): (Agreed, Order),
        rest: Vec<u8>,
        ring: Option<SharedRing>,
    ) -> Self {
        let (mut inbox, mut outbox) = (Inbox::new(order), Outbox::new(order));
        let takes = match agreed {
            Agreed::Native { takes } => takes,
            Agreed::Rxm {
                takes,
                ours,
                theirs,
            } => {
                inbox = Inbox::of_rxm(order, Incoming::new(ours));
                outbox = Outbox::of_rxm(order, Outgoing::new(theirs));
                takes
            }
        };
        if takes.is_kin() {
            inbox.kin();
        }
        Self {
            peer,
            key,
            source: None,
            number: None,
            instance: None,
            takes,
            socket,
            wait,
            token,
            inbox,
            outbox,
            unwritten: VecDeque::new(),
            is_fresh: !rest.is_empty(),
            rest: Rest::new(rest),
            is_put_off: false,
            held: false,
            is_resting: false,
            is_blocked: false,
            is_bursting: false,
            ended: None,
            is_deaf: false,
            is_cut: false,
            answered: 0,
            quiet_passes: 0,
            is_looked_at: false,
            lane: ring.map(|ring| Lane::new(ring, token)),
        }
    }

    /// Whether the peer takes this operation, as far as is known before it is its turn.
    ///
    /// # Errors
    /// [`Error::NotSupported`].
    #[inline]
    pub(crate) fn check(&self, spec: &SendSpec) -> Result<()> {
        self.takes.tag(spec.tag).map(drop)
    }

    /// Tagged messages break the rules.
    pub(crate) fn refuse_tags(&mut self) {
        self.inbox.refuse_tags();
    }

    pub(crate) fn ended(&self) -> Option<DownReason> {
        self.ended
    }

    /// Whether the peer hears nothing any more.
    pub(crate) fn is_deaf(&self) -> bool {
        self.is_deaf
    }

    /// Whether it has a message that nobody has asked for, and for which there is no room.
    pub(crate) fn is_held(&self) -> bool {
        self.held || self.inbox.has_aside()
    }

    /// Whether it is worth looking at without being told.
    fn is_hot(&self) -> bool {
        self.quiet_passes < COLD
    }

    pub(crate) fn warm(&mut self) {
        self.quiet_passes = 0;
    }

    /// Whether what is sent next is collected, until a pass has been.
    pub(crate) fn is_bursting(&self) -> bool {
        self.is_bursting
    }

    /// Whether passes are to look at it, as long as nothing is queued for it.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_hot()
            || self.is_held()
            || !self.is_flushed()
            || self.has_duties()
            || self.owes_answers()
    }

    /// Whether there is no room to send.
    pub(crate) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Nothing that was collected is left to be sent that could be.
    pub(crate) fn is_flushed(&self) -> bool {
        self.is_blocked || self.is_deaf || self.outbox.pending().is_empty()
    }

    pub(crate) fn into_socket(mut self) -> (Socket, Vec<u8>) {
        self.leave_ring();
        let rest = self.outbox.pending().to_vec();
        (self.socket, rest)
    }

    /// Which endpoint the peer is, if it has said so.
    pub(crate) fn incarnation(&self) -> Option<Incarnation> {
        self.instance.map(|instance| Incarnation(instance.into()))
    }

    /// Whether what an endpoint sends to this handle may go over this connection: the peer is the
    /// one that the handle stands for.
    pub(crate) fn is_for(&self, addr: FiAddr, ep: EpId, host: &dyn Host) -> bool {
        let bound = host.incarnation_of(ep, addr);
        bound.is_none() || bound == self.incarnation() || self.number == Some(addr)
    }

    fn end(&mut self, reason: DownReason) {
        self.ended.get_or_insert(reason);
        self.is_deaf = true;
        self.socket.unwatch();
    }

    /// The connection does not take anything any more: what is pending is lost.
    fn deafen(&mut self) {
        self.is_deaf = true;
        self.is_blocked = false;
        self.outbox.give_up();
        self.inbox.replies.give_up();
        self.rewatch();
    }

    /// The message that is being sent, if there is one, will not end: nothing may come behind its
    /// beginning, and the peer hears of it by the end of the stream. Returns whether there was one.
    pub(crate) fn cut(&mut self) -> bool {
        let is_within = self.outbox.is_open() && !self.inbox.replies.is_open();
        if self.is_deaf || !is_within && self.inbox.replies.offers.is_empty() {
            return false;
        }
        self.is_cut = true;
        self.flush();
        true
    }

    /// What was asked and offered, and the messages that were arriving, fail; the rest is nobody's.
    pub(crate) fn give_up(&mut self, rx: &mut RxContext, host: &mut dyn Host, error: &Error) {
        self.inbox.asked.fail(host, error);
        self.fail_offers(host, error);
        for landing in self.inbox.end() {
            rx.fail(host, landing, error.clone());
        }
    }

    fn block(&mut self, is_blocked: bool) {
        if is_blocked != self.is_blocked {
            self.is_blocked = is_blocked;
            if !self.is_in_ring() {
                self.rewatch();
            }
        }
    }

    /// Whether it is watched for what comes follows whether that is read.
    fn rest_or_watch(&mut self) {
        if self.is_resting != (self.held || self.is_clogged()) {
            self.rewatch();
        }
    }

    /// Watches for what matters now. What is not read must not keep everybody awake.
    pub(crate) fn rewatch(&mut self) {
        self.is_resting = self.held || self.is_clogged();
        if self.ended.is_some() {
            return;
        }
        if self.is_in_ring() {
            if self.is_resting {
                self.rest_from_reading();
            }
            return self.socket.unwatch();
        }
        let interest = match (self.is_resting, self.is_blocked) {
            (true, false) => return self.socket.unwatch(),
            (true, true) => Interest::Write,
            (false, true) => Interest::Both,
            (false, false) => Interest::Read,
        };
        if self.socket.watch(&self.wait, self.token, interest).is_err() {
            self.end(DownReason::Died);
        }
    }

    /// There may be room to send again.
    pub(crate) fn unblock(&mut self) {
        if !self.is_sending() {
            self.block(false);
        }
    }
}
