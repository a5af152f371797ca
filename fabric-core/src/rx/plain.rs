//! Runs of plain messages.

use std::convert::Infallible;

use crate::address::FiAddr;
use crate::buf::CopySource;
use crate::matching::PeerKey;
use crate::op::OpKey;

use super::RxQueue;
use super::engine::RxEngine;

/// The receives of a queue as a run of plain messages fills them. The engine looks up what the
/// messages have in common once, and reports them together when the sink is dropped.
pub trait PlainSink {
    /// Delivers a whole message to a receive, and completes the receive. The message is given by
    /// its peer, its arrival number and its bytes. Returns false if the receive needs more than a
    /// copy of the message: it stays posted.
    fn deliver(
        &mut self,
        op: OpKey,
        peer: &(PeerKey, Option<FiAddr>),
        arrival: u64,
        bytes: &(impl CopySource + Copy),
    ) -> bool;
}

/// For an engine without plain runs.
impl PlainSink for Infallible {
    fn deliver(
        &mut self,
        _: OpKey,
        _: &(PeerKey, Option<FiAddr>),
        _: u64,
        _: &(impl CopySource + Copy),
    ) -> bool {
        match *self {}
    }
}

/// What has become of a message of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlainDelivery {
    /// The first receive does not accept the message, or needs more than a copy of it: the message
    /// is delivered with [`RxQueue::deliver`] after the run.
    Declined,
    /// The message was delivered.
    Delivered,
    /// The message was delivered, and no untagged receive is left.
    ToLastReceive,
}

/// *Plain* messages of one peer on their way to the receives at the head of a queue. A plain
/// message is whole, and has no tag, CQ data or ack request.
#[derive(Debug)]
pub struct PlainRun<'a, S> {
    rx: &'a mut RxQueue,
    peer: (PeerKey, Option<FiAddr>),
    sink: S,
}

impl<S: PlainSink> PlainRun<'_, S> {
    /// Delivers the next message.
    #[inline(always)] // on the fast path of small messages
    pub fn deliver(&mut self, bytes: &(impl CopySource + Copy)) -> PlainDelivery {
        let matcher = &mut self.rx.matcher;
        let Some(op) = matcher.posted.peek_first(self.peer.1) else {
            return PlainDelivery::Declined;
        };
        let arrival = matcher.peek_arrival();
        if !self.sink.deliver(op, &self.peer, arrival, bytes) {
            return PlainDelivery::Declined;
        }
        matcher.next_arrival();
        if matcher.posted.take_first() {
            PlainDelivery::Delivered
        } else {
            PlainDelivery::ToLastReceive
        }
    }
}

impl RxQueue {
    /// Begins a run of plain messages of one peer, given by its key and its address handle. `None`
    /// if each message must be [delivered](Self::deliver) by itself.
    #[inline(always)] // on the fast path of small messages
    pub fn begin_plain_run<'a, E: RxEngine>(
        &'a mut self,
        engine: &'a mut E,
        peer: (PeerKey, Option<FiAddr>),
    ) -> Option<PlainRun<'a, E::PlainSink<'a>>> {
        if self.shared || !self.multi_recvs.is_empty() || !self.held.is_empty() {
            return None;
        }
        let sink = engine.plain_sink(self.ep)?;
        let rx = self;
        Some(PlainRun { rx, peer, sink })
    }
}
