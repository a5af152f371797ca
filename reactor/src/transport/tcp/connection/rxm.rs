//! RXM connections: rendezvous of long messages, and atomic operations on memory of libfabric
//! peers.
//!
//! A message of more than 16 KiB is a rendezvous: the operation moves from the queue to
//! `RendezvousSends`, and a packet names the message's length and a key. The response queue holds
//! the rendezvous sends, because it answers the peer's reads from them.
//! The receiver begins the message in its receive queue and requests reads of the message, two at a
//! time (`send_rendezvous_reads`); the bytes of the responses are appended to the message. A packet
//! from the receiver then reports the end, and the sender's operation completes. The sender answers
//! reads of a rendezvous like reads of regions, by copying from the operation's buffer. A receiver
//! that reports the end while a read is being answered violates the protocol: the sender closes the
//! connection, and the send fails instead of completing.
//!
//! Decision: reads and writes wait for atomic operations. libfabric's tcp provider accesses memory
//! as frames arrive, and RXM executes atomics when the program polls. A read or write would
//! overtake an earlier atomic, against the offered order. So the read or write stays in the queue
//! until the atomic's response has arrived (`awaits_atomic_responses`). Messages do not wait:
//! they and atomics are both packets, which RXM handles in order.

use std::collections::VecDeque;

use fabric_core::Error;
use fabric_core::atomic::AtomicOp;
use fabric_core::buf::Payload;
use fabric_core::completion::OpKind;
use fabric_core::tcp::rxm::{AtomicHeader, EAGER_LIMIT};
use fabric_core::tcp::{Frame, RmaIovList, WireRmaIov};
use fabric_core::transport::{EndpointContext, EngineContext, TxOp};

use super::onesided::fail_first;
use super::{QueuedTxOp, TcpConnection, TxPhase};

impl TcpConnection {
    /// Returns whether this operation is sent as an RXM packet.
    pub(super) fn is_rxm_packet(&self, tx_op: &TxOp) -> bool {
        self.writer.rxm().is_some() && (tx_op.kind == OpKind::Send || self.is_rxm_atomic(tx_op))
    }

    /// Returns whether this operation is an atomic that is sent as an RXM packet. Peers of the same
    /// implementation get the vendor extension's atomic frame.
    fn is_rxm_atomic(&self, tx_op: &TxOp) -> bool {
        tx_op.remote.is_some_and(|remote| remote.atomic.is_some())
            && !self.peer_caps.is_same_implementation()
    }

    /// Returns whether the first operation of the queue is a read or write that waits for the
    /// responses to earlier atomics.
    pub(crate) fn awaits_atomic_responses(&self, queue: &VecDeque<QueuedTxOp>) -> bool {
        let Some(QueuedTxOp {
            tx_op,
            bytes_sent: None,
            ..
        }) = queue.front()
        else {
            return false;
        };
        tx_op.remote.is_some() && self.pending.has_atomics() && !self.is_rxm_packet(tx_op)
    }

    /// Returns whether a read request for a rendezvous message can be sent.
    pub(super) fn can_read_rendezvous(&self) -> bool {
        self.reader.wants_rendezvous_read()
            && !self.writer.is_open()
            && self.tx.phase() == TxPhase::Open
    }

    /// Sends read requests for the next bytes of rendezvous messages. Returns whether there was
    /// any.
    pub(super) fn send_rendezvous_reads(&mut self) -> bool {
        let mut any = false;
        while self.can_read_rendezvous()
            && let Some(iovs) = self
                .reader
                .next_rendezvous_read(&mut self.pending)
                .and_then(|iov| RmaIovList::from_rma_iovs(&[iov.to_rma_iov()]))
        {
            any |= self
                .writer
                .push_frame(&Frame::read(&iovs), &iovs, Payload::Contiguous(&[]));
        }
        any
    }

    /// Copies the first operation of the queue into the frame writer as a packet, or as the request
    /// of a rendezvous. Returns how many bytes it copied, or `None` while there is no room.
    pub(super) fn send_rxm_packet(
        &mut self,
        queue: &mut VecDeque<QueuedTxOp>,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> Option<usize> {
        let QueuedTxOp { op, tx_op, .. } = *queue.front()?;
        if self.is_rxm_atomic(&tx_op) {
            return self.send_rxm_atomic(queue, ctx);
        }
        if tx_op.level.needs_ack() {
            let error = Error::NotSupported("FI_DELIVERY_COMPLETE to a peer that uses RXM");
            fail_first(queue, ctx, error);
            return Some(0);
        }
        let tag = match self.peer_caps.tag(tx_op.tag) {
            Ok(tag) => tag,
            Err(error) => {
                fail_first(queue, ctx, error);
                return Some(0);
            }
        };
        let payload = ctx.payload(op);
        let len = payload.len();
        let eager_len = if len > EAGER_LIMIT { 0 } else { len };
        if self.writer.is_open() || !self.reserve_write_buffer(eager_len) {
            return None;
        }
        if len > EAGER_LIMIT {
            // The operation completes when the peer reports that it has read all bytes.
            let iov = self.responses.rendezvous.add(op, tx_op.tag, len, ctx);
            queue.pop_front();
            let is_pushed = self.writer.push_rendezvous(iov, tx_op.tag, tx_op.data);
            debug_assert!(is_pushed, "no frame is open");
            return Some(0);
        }
        let is_pushed = self.writer.push_message(tag, tx_op.data, payload);
        debug_assert!(is_pushed, "no frame is open");
        queue.pop_front();
        self.set_batched_op(op, len, tx_op.tag);
        Some(len)
    }

    /// Copies the first operation of the queue, an atomic, into the frame writer. Returns how many
    /// bytes it copied, or `None` while there is no room.
    fn send_rxm_atomic(
        &mut self,
        queue: &mut VecDeque<QueuedTxOp>,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> Option<usize> {
        let QueuedTxOp { op, tx_op, .. } = *queue.front()?;
        let (remote, atomic) = tx_op
            .remote
            .and_then(|remote| Some((remote, remote.atomic?)))?;
        // An atomic read has no operand.
        let payload = if atomic.op == AtomicOp::Read {
            Payload::Contiguous(&[])
        } else {
            ctx.payload(op)
        };
        let len = payload.len();
        if self.writer.is_open() || !self.reserve_write_buffer(len) {
            return None;
        }
        let request_id = self.pending.expect_atomic_response(op, tx_op, remote.len);
        // The length of an RXM atomic's remote range counts values, not bytes.
        let values = (remote.len / atomic.datatype.size()) as u64;
        let iov = WireRmaIov {
            addr: remote.offset,
            len: values,
            key: remote.key,
        };
        let is_pushed =
            self.writer
                .push_atomic((request_id, AtomicHeader::from_spec(atomic)), iov, payload);
        debug_assert!(is_pushed, "no frame is open");
        self.unwritten.push(self.writer.end(), op, None);
        queue.pop_front();
        Some(len)
    }

    /// Returns whether the peer has ended the connection, and receives of rendezvous messages may
    /// have to be failed (`fail_rendezvous_recvs`).
    pub(crate) fn has_unread_rendezvous_at_end(&self) -> bool {
        !self.rx.is_open() && self.reader.accepts_rendezvous() && self.has_no_more_responses()
    }

    /// Fails the receives of rendezvous messages whose bytes will not arrive.
    pub(crate) fn fail_rendezvous_recvs<E: EngineContext>(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        error: &Error,
    ) {
        let sender = self.peer.sender();
        for partial in self.reader.end_rendezvous_reads(sender, ctx) {
            ctx.fail_partial(partial, error.clone());
        }
    }

    /// Discards the messages that are set aside, because the connection or its endpoint closes.
    pub(crate) fn discard_set_aside(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        self.reader.discard_set_aside(self.peer.sender(), ctx);
    }

    /// Fails the sends of rendezvous messages that the peer will not read. If there is such a send,
    /// all queued responses are dropped.
    pub(crate) fn fail_rendezvous_sends(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        error: &Error,
    ) {
        if !self.responses.rendezvous.is_empty() {
            self.responses.fail(ctx, error);
        }
    }
}
