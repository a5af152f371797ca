//! A connection that is up: bytes in, bytes out.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

use fabric_core::buf::Payload;
use fabric_core::completion::OpKind;
use fabric_core::event::DownReason;
use fabric_core::matching::PeerKey;
use fabric_core::provider::{Host, Interest, OpKey, SendSpec, WaitSet};
use fabric_core::rx::RxContext;
use fabric_core::tcp::rxm::{Incoming, Outgoing};
use fabric_core::tcp::{Agreed, Inbox, Order, Outbox};
use fabric_core::{Error, FiAddr};

use super::socket::{Received, Sent, Socket};
use crate::uring::SharedRing;

mod lane;
mod onesided;
mod packets;

use lane::Lane;
use onesided::{Ending, fail_first, wrap};

/// A longer message is not collected, but sent from where it lies.
pub(crate) const SHORT: usize = 16 << 10;
/// Bytes that are collected before they are sent in any case.
const COLLECTED: usize = 64 << 10;
/// Bytes to a peer in one pass.
const PER_PASS: usize = 1 << 20;
/// Passes without news after which a connection is not looked at any more until it is ready.
const COLD: u32 = 2000;
/// Parts of a message that one call sends.
const PARTS: usize = 16;

/// A connection.
pub(crate) struct Link {
    /// Position in the list of peers.
    pub(crate) peer: usize,
    pub(crate) key: PeerKey,
    /// The peer's number now, and when it connected.
    pub(crate) source: Option<FiAddr>,
    pub(crate) number: Option<FiAddr>,
    pub(crate) instance: Option<u32>,
    socket: Socket,
    wait: Arc<dyn WaitSet>,
    token: u64,
    inbox: Inbox,
    outbox: Outbox,
    /// Bytes that were read and not taken.
    rest: Vec<u8>,
    /// Nobody has looked at them.
    is_fresh: bool,
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
    quiet_passes: u32,
    /// It is among those that every pass looks at.
    pub(crate) is_looked_at: bool,
    /// What it has in the ring, where there is one.
    lane: Option<Lane>,
}

/// An operation for a peer.
#[derive(Debug)]
pub(crate) struct Sending {
    pub(crate) op: OpKey,
    pub(crate) spec: SendSpec,
    /// Bytes that have left; `None` when it has not begun.
    pub(crate) sent: Option<usize>,
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
        match agreed {
            Agreed::Native { is_kin: true } => inbox.kin(),
            Agreed::Native { is_kin: false } => {}
            Agreed::Rxm { ours, theirs } => {
                inbox = Inbox::of_rxm(order, Incoming::new(ours));
                outbox = Outbox::of_rxm(order, Outgoing::new(theirs));
            }
        }
        Self {
            peer,
            key,
            source: None,
            number: None,
            instance: None,
            socket,
            wait,
            token,
            inbox,
            outbox,
            is_fresh: !rest.is_empty(),
            rest,
            held: false,
            is_resting: false,
            is_blocked: false,
            is_bursting: false,
            ended: None,
            is_deaf: false,
            is_cut: false,
            quiet_passes: 0,
            is_looked_at: false,
            lane: ring.map(|ring| Lane::new(ring, token)),
        }
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
    pub(crate) fn is_hot(&self) -> bool {
        self.quiet_passes < COLD
    }

    pub(crate) fn warm(&mut self) {
        self.quiet_passes = 0;
    }

    /// Whether what is sent next is collected, until a pass has been.
    pub(crate) fn is_bursting(&self) -> bool {
        self.is_bursting
    }

    /// Whether there is no room to send.
    pub(crate) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Nothing that was collected is left to be sent that could be.
    pub(crate) fn is_flushed(&self) -> bool {
        self.is_blocked || self.outbox.pending().is_empty()
    }

    pub(crate) fn into_socket(mut self) -> (Socket, Vec<u8>) {
        self.leave_ring();
        let rest = self.outbox.pending().to_vec();
        (self.socket, rest)
    }

    // ---- receiving

    /// Takes in what has come. Returns whether anything has.
    pub(crate) fn pump(&mut self, scratch: &mut [u8], rx: &mut RxContext, host: &mut dyn Host) -> bool {
        let who = (self.key, self.source);
        if self.held && !self.inbox.is_wanted(&self.rest, who, rx, host) {
            return false;
        }
        let is_aside = self.inbox.has_aside() && self.inbox.is_aside_wanted(who, rx);
        if self.is_clogged() || self.ended.is_some() && self.rest.is_empty() && !is_aside {
            self.rest_from_reading();
            return false;
        }
        let mut have = self.rest.len();
        scratch[..have].copy_from_slice(&self.rest);
        let mut news = self.held | is_aside | std::mem::take(&mut self.is_fresh);
        if !self.held && self.ended.is_none() {
            match self.read(&mut scratch[have..]) {
                Received::Nothing => {}
                Received::Bytes(count) => {
                    have += count;
                    news = true;
                }
                Received::End => {
                    let is_whole = self.rest.is_empty() && !self.inbox.is_arriving();
                    self.end(if is_whole { DownReason::Closed } else { DownReason::Died });
                }
                Received::Broken => self.end(DownReason::Died),
            }
        }
        if !news {
            self.quiet_passes = self.quiet_passes.saturating_add(1);
            self.looked();
            return self.ended.is_some();
        }
        self.quiet_passes = 0;
        let (used, held) = match self.inbox.take(&scratch[..have], who, rx, host) {
            Ok(taken) => {
                self.is_fresh = taken.is_full;
                if self.is_deaf || self.is_cut {
                    // Nobody is answered any more, however much is asked.
                    self.inbox.replies.give_up();
                } else {
                    taken.owed.into_iter().for_each(|owed| self.outbox.acknowledge(owed));
                    taken.fetched.into_iter().for_each(|message| self.outbox.fetched(message));
                }
                (taken.bytes, taken.held)
            }
            Err(broken) => {
                self.end(DownReason::Protocol(broken.0));
                (have, false)
            }
        };
        self.rest.clear();
        self.rest.extend_from_slice(&scratch[used..have]);
        self.held = held;
        self.rest_or_watch();
        true
    }

    /// Whoever lets answers pile up is not read from.
    fn is_clogged(&self) -> bool {
        self.outbox.backlog() > 2 * COLLECTED || self.inbox.replies.is_full()
    }

    /// Whether what comes is read.
    fn is_read(&self) -> bool {
        !self.held && !self.is_clogged() && self.ended.is_none()
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

    /// The message that is being sent, if there is one, will not end: nothing may come behind its beginning, and the peer
    /// hears of it by the end of the stream. Returns whether there was one.
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

    // ---- sending

    /// Takes a short message; false when it has to wait.
    pub(crate) fn send_now(&mut self, host: &mut dyn Host, spec: &SendSpec, payload: Payload<'_>) -> bool {
        if self.is_deaf || self.outbox.is_open() || payload.len() > SHORT {
            return false;
        }
        if self.outbox.pending().len() + payload.len() > COLLECTED && (self.is_blocked || !self.flush()) {
            return false;
        }
        if !self.outbox.push(spec.tag, spec.data, payload) {
            return false;
        }
        if self.is_bursting || spec.more {
            host.unsettled();
        } else {
            self.is_bursting = true;
            self.flush();
        }
        !self.is_deaf
    }

    /// Sends what is pending. Returns whether all of it has left.
    pub(crate) fn flush(&mut self) -> bool {
        if self.is_sending() {
            return false;
        }
        while !self.outbox.pending().is_empty() {
            match self.socket.send(&[IoSlice::new(self.outbox.pending())]) {
                Sent::Bytes(count) => self.outbox.left(count),
                Sent::NoRoom => {
                    self.block(true);
                    self.hand_over(Payload::Whole(&[]));
                    return false;
                }
                Sent::Broken => {
                    self.deafen();
                    return false;
                }
            }
        }
        self.block(false);
        if self.is_cut && !self.is_deaf {
            self.socket.finish();
            self.deafen();
        }
        true
    }

    /// Moves the operations on. Returns whether anything was sent.
    pub(crate) fn drive(&mut self, queue: &mut VecDeque<Sending>, host: &mut dyn Host) -> bool {
        let moved = self.send_on(queue, host);
        self.rest_or_watch();
        moved
    }

    fn send_on(&mut self, queue: &mut VecDeque<Sending>, host: &mut dyn Host) -> bool {
        self.is_bursting = false;
        if self.is_cut {
            return !self.is_deaf && self.flush();
        }
        let is_idle = queue.is_empty() && self.inbox.replies.is_empty() && self.outbox.pending().is_empty();
        if self.is_deaf || self.is_sending() || is_idle && !self.inbox.wants() {
            return false;
        }
        let (mut moved, mut left) = (false, PER_PASS);
        if !self.inbox.replies.is_empty() {
            moved = self.answer(host);
            if self.inbox.replies.is_open() || self.is_sending() || self.is_deaf {
                return moved;
            }
        }
        moved |= self.ask();
        while let Some(front) = queue.front_mut()
            && left > 0
        {
            if self.is_packet(&front.spec) {
                let Some(count) = self.send_packet(queue, host) else { break };
                left = left.saturating_sub(count);
                moved = true;
                continue;
            }
            let Sending { op, spec, sent } = front;
            let payload = if spec.kind == OpKind::Read { Payload::Whole(&[]) } else { host.payload(*op) };
            let len = payload.len();
            let begins = sent.is_none() && spec.kind != OpKind::Connect;
            let wrapped = match begins.then(|| wrap(spec, len, self.inbox.is_kin(), host)).transpose() {
                Ok(wrapped) => wrapped,
                Err(error) => {
                    fail_first(queue, host, error);
                    moved = true;
                    continue;
                }
            };
            if let Some((frame, rows)) = wrapped.as_ref().filter(|_| len <= SHORT) {
                if self.outbox.pending().len() + len > COLLECTED && !self.flush() {
                    break;
                }
                if !self.outbox.push_frame(frame, rows, payload) {
                    self.cut();
                    break;
                }
                left = left.saturating_sub(len);
            } else if spec.kind != OpKind::Connect {
                if let Some((frame, rows)) = wrapped {
                    if !self.outbox.open(&frame, &rows) {
                        self.cut();
                        break;
                    }
                    if Ending::of(spec) != Ending::Sent {
                        self.inbox.asked.send();
                    }
                }
                let from = *sent.get_or_insert(0);
                // The ring may have sent it to its end.
                let part = payload.part(from, (len - from).min(left));
                let sent_now = if part.is_empty() { Some(0) } else { self.send_part(part) };
                let Some(count) = sent_now else {
                    if !self.is_deaf {
                        self.hand_over(payload.part(from, len - from));
                    }
                    break;
                };
                moved = true;
                left -= count.min(left);
                *sent = Some(from + count);
                if from + count < len {
                    continue;
                }
                self.outbox.close();
            }
            let (op, spec) = (*op, *spec);
            queue.pop_front();
            self.has_left(op, spec, len, host);
            moved = true;
        }
        if !self.outbox.is_open() && !self.outbox.pending().is_empty() {
            let before = self.outbox.pending().len();
            self.flush();
            moved |= self.outbox.pending().len() < before;
        }
        moved
    }

    /// Sends what is pending and behind it part of a message; returns how much of the message has left, or `None` when
    /// there is no room for anything.
    fn send_part(&mut self, payload: Payload<'_>) -> Option<usize> {
        let pending = self.outbox.pending();
        let mut parts = [IoSlice::new(&[]); PARTS];
        parts[0] = IoSlice::new(pending);
        let mut count = 1;
        payload.for_each(|_, piece| {
            if let Some(part) = parts.get_mut(count) {
                *part = IoSlice::new(piece);
                count += 1;
            }
        });
        match self.socket.send(&parts[..count]) {
            Sent::Bytes(sent) => {
                let header = sent.min(pending.len());
                self.outbox.left(header);
                self.block(false);
                Some(sent - header)
            }
            Sent::NoRoom => {
                self.block(true);
                None
            }
            Sent::Broken => {
                self.deafen();
                None
            }
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
