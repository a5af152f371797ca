//! An established connection: bytes in, bytes out.
//!
//! | file | subject |
//! |---|---|
//! | `connection` | the connection, its interest in the domain's epoll set, the end |
//! | `rx_state`, `tx_state` | state of the receive side, and of the send side |
//! | `limits` | limits of what is sent in a pass, in a call, and without a queue |
//! | `queued`, `unwritten` | queued operations; operations whose bytes the kernel does not have |
//! | `sending`, `receiving` | bytes out, bytes in |
//! | `onesided` | frames of one-sided operations, of either side |
//! | `rxm` | rendezvous and atomics of RXM |
//! | `stall` | whether this side delays messages that make no progress |
//! | `uring_io`, `uring_send` | receives and sends of this connection in io_uring |
//! | `zero_copy` | messages that the kernel sends from their buffer |
//!
//! The socket of a connection that holds a message over the budget is watched only for the end of
//! the connection, also with io_uring; the endpoint tries the message when it may be accepted
//! (`Connections`). Passes do not poll a connection that was idle for long: epoll reports its
//! socket. Reading continues after writing has failed, because the peer may have sent messages
//! before it closed the stream.
//!
//! When the peer closes or resets the connection while this side does not read, the bytes in the
//! socket are the last ones: the kernel keeps them, also after a reset. If no response can be among
//! them or the unconsumed bytes, the pending operations fail at once. Otherwise they wait until
//! these bytes are read.

use std::sync::Arc;
use std::time::Instant;

use fabric_core::event::DownReason;
use fabric_core::extension::TcpInfo;
use fabric_core::tcp::rxm::{RxmReceiver, RxmSender};
use fabric_core::tcp::{
    ByteOrder, FrameReader, FrameWriter, Negotiated, PeerCaps, PendingRequests, ResponseQueue,
};
use fabric_core::transport::{
    Batching, EndpointContext, EngineContext, Incarnation, Interest, TxOp, WaitSet,
};
use fabric_core::{Error, FiAddr, Result};

use super::socket::TcpSocket;
use crate::sys::uring::SharedUring;
use crate::transport::connected_peer::ConnectedPeer;
use crate::transport::net::SocketConfig;

mod limits;
mod onesided;
mod queued;
mod receiving;
mod rx_state;
mod rxm;
mod sending;
mod stall;
mod tx_state;
mod unwritten;
mod uring_io;
mod uring_send;
mod zero_copy;

use stall::StallState;
use tx_state::{TxPhase, TxState};
use unwritten::UnwrittenOps;
use uring_io::UringIo;

pub(crate) use queued::QueuedTxOp;
use rx_state::{RxPhase, RxState};

/// An established connection.
pub(crate) struct TcpConnection {
    /// Position in the endpoint's list of peers.
    pub(crate) peer_index: usize,
    pub(crate) peer: ConnectedPeer,
    /// The random instance number of the peer's endpoint; `None` for a connected endpoint, and for
    /// peers that send none.
    pub(crate) peer_instance: Option<u32>,
    /// Whether a connection request of the peer's may still arrive that the peer sent before it
    /// accepted this side's request.
    expects_simultaneous_request: bool,
    peer_caps: PeerCaps,
    socket: TcpSocket,
    wait_set: Arc<dyn WaitSet>,
    token: u64,
    reader: FrameReader,
    writer: FrameWriter,
    /// Requests of this side without a response.
    pending: PendingRequests,
    /// Responses that are due to the peer.
    responses: ResponseQueue,
    unwritten: UnwrittenOps,
    rx: RxState,
    tx: TxState,
    stall: StallState,
    /// When the probe of the peer ends, or a replaced connection is checked; `None` if the peer is
    /// not probed.
    probe_deadline: Option<Instant>,
    /// Receives and sends in io_uring, if that is the backend.
    uring_io: Option<UringIo>,
}

impl TcpConnection {
    /// Returns a connection after the handshake. `unconsumed` are bytes that followed the peer's
    /// control message.
    pub(crate) fn new(
        (peer_index, peer): (usize, ConnectedPeer),
        socket: TcpSocket,
        (wait_set, token): (Arc<dyn WaitSet>, u64),
        (negotiated, byte_order): (Negotiated, ByteOrder),
        unconsumed: Vec<u8>,
        uring: Option<SharedUring>,
        batching: Batching,
    ) -> Self {
        let (mut reader, mut writer) = (FrameReader::new(byte_order), FrameWriter::new(byte_order));
        let mut responses = ResponseQueue::default();
        let peer_caps = match negotiated {
            Negotiated::Native { peer_caps } => peer_caps,
            Negotiated::Rxm {
                peer_caps,
                local_connection: local,
                remote_connection: remote,
            } => {
                reader = FrameReader::with_rxm(byte_order, RxmReceiver::new(local));
                writer = FrameWriter::with_rxm(byte_order, RxmSender::new(remote));
                peer_caps
            }
        };
        if peer_caps.is_same_implementation() {
            responses.set_same_implementation();
        }
        Self {
            peer_index,
            peer,
            peer_instance: None,
            expects_simultaneous_request: false,
            peer_caps,
            socket,
            wait_set,
            token,
            reader,
            writer,
            pending: PendingRequests::default(),
            responses,
            unwritten: UnwrittenOps::default(),
            rx: RxState::new(unconsumed),
            tx: TxState::new(batching),
            stall: StallState::default(),
            probe_deadline: None,
            uring_io: uring.map(|uring| UringIo::new(uring, token)),
        }
    }

    /// Checks that the peer supports tags, if the operation has one.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if the peer does not.
    #[inline]
    pub(crate) fn check_supported(&self, tx_op: &TxOp) -> Result<()> {
        self.peer_caps.tag(tx_op.tag).map(drop)
    }

    /// Makes tagged messages of the peer a protocol violation.
    pub(crate) fn reject_tagged(&mut self) {
        self.reader.reject_tagged();
    }

    /// Returns what the kernel knows about the connection.
    pub(crate) fn tcp_info(&self) -> Result<TcpInfo> {
        self.socket.tcp_info()
    }

    /// Returns why the connection has ended; `None` while the connection lasts.
    pub(crate) fn end_reason(&self) -> Option<DownReason> {
        self.rx.end_reason()
    }

    /// Notes that this side has initiated the connection, so that the peer may have sent a request
    /// at the same time.
    pub(crate) fn expect_simultaneous_request(&mut self) {
        self.expects_simultaneous_request = true;
    }

    /// Returns whether the peer may have sent a rejected request from this instance before it
    /// accepted the request of this side. That holds for one request: a peer that has accepted a
    /// request sends none.
    pub(crate) fn take_simultaneous_request(&mut self, instance: u32) -> bool {
        self.peer_instance.is_none_or(|peer| peer == instance)
            && std::mem::take(&mut self.expects_simultaneous_request)
    }

    /// Returns whether the peer has closed or reset the connection.
    pub(crate) fn is_closed_by_peer(&self) -> bool {
        self.rx.has_ended() || self.socket.is_closed_by_peer()
    }

    /// Handles a ready socket that this side does not read: the peer may have closed or reset the
    /// connection.
    pub(crate) fn check_peer_closed(&mut self) {
        if !self.is_reading() && self.is_closed_by_peer() {
            self.rx.set_peer_closed();
        }
    }

    /// Returns whether the peer can send nothing more, as far as this side knows, and this side
    /// sends nothing.
    pub(crate) fn is_receive_only(&self) -> bool {
        !self.rx.is_open() && self.write_closed()
    }

    /// Returns whether the peer can send nothing more, and no response is among the bytes that were
    /// not read or not consumed.
    pub(crate) fn has_no_more_responses(&self) -> bool {
        let unread = match self.rx.is_open() {
            true => None,
            false if self.rx.has_ended() => Some(0),
            false => self.unread_len(),
        };
        unread.is_some_and(|unread| {
            !self
                .reader
                .may_contain_response(self.rx.unconsumed(), unread)
        })
    }

    /// Returns whether requests are pending to which no response can arrive.
    pub(crate) fn has_unanswerable_requests(&self) -> bool {
        !self.pending.is_empty() && self.has_no_more_responses()
    }

    /// Closes the send side once the peer can send nothing more that an operation waits for.
    fn close_write_after_peer(&mut self) {
        let awaits_response = !self.pending.is_empty() || !self.responses.rendezvous.is_empty();
        if !self.write_closed() && (!awaits_response || self.has_no_more_responses()) {
            self.close_write();
        }
    }

    /// Probes until this time whether the peer still has this connection.
    pub(crate) fn probe_peer(&mut self, deadline: Instant) {
        if self.probe_deadline.is_none() {
            self.socket.probe_peer();
            self.probe_deadline = Some(deadline);
        }
    }

    /// Returns when the probe of the peer ends; `None` if the peer is not probed.
    pub(crate) fn probe_deadline(&self) -> Option<Instant> {
        self.probe_deadline
    }

    /// Probes whether the peer still has this connection, which another one replaces, and stops
    /// sending. What arrives is received.
    pub(crate) fn set_replaced(&mut self, check_at: Instant) {
        self.close_write();
        self.probe_peer(check_at);
        self.probe_deadline = Some(check_at);
        self.rx.take_has_received();
    }

    /// Checks a replaced connection. Returns whether the connection holds messages, or has received
    /// anything since the last check; if so, the next check is at `check_at`.
    pub(crate) fn recheck_replaced(&mut self, check_at: Instant) -> bool {
        self.probe_deadline = Some(check_at);
        self.rx.take_has_received() || self.has_held_messages()
    }

    /// Ends the probe. A peer that has answered is probed again only after the idle timeout.
    pub(crate) fn end_probe(&mut self, config: &SocketConfig) {
        self.socket.end_probe(config);
        self.probe_deadline = None;
    }

    /// Returns whether nothing can be sent to the peer any more.
    pub(crate) fn write_closed(&self) -> bool {
        self.tx.phase() == TxPhase::Closed
    }

    /// Returns whether the connection holds a message that no receive matches and for which there
    /// is no buffer space, or an access that waits.
    pub(crate) fn has_held_messages(&self) -> bool {
        self.rx.phase() == RxPhase::Held || self.reader.has_set_aside()
    }

    /// Returns the number of bytes that were read from the socket and not consumed.
    pub(crate) fn unconsumed_len(&self) -> usize {
        self.rx.unconsumed().len()
    }

    /// Lets passes poll the connection again, as after input.
    pub(crate) fn reset_idle(&mut self) {
        self.rx.reset_idle();
    }

    /// Returns whether sends are batched until the next pass.
    pub(crate) fn is_batching(&self) -> bool {
        self.tx.is_batching()
    }

    /// Returns whether passes have to poll the connection, even with nothing queued for its peer.
    /// Held messages do not count: the endpoint tries them when they may be accepted.
    pub(crate) fn needs_progress(&self) -> bool {
        let has_input = self.rx.phase() != RxPhase::Held && !self.rx.has_ended();
        has_input && self.rx.is_recently_active()
            || self.can_write_pending()
            || self.has_local_work()
            || self.has_pending_responses()
    }

    /// Returns whether the socket had no room at the last write.
    pub(crate) fn is_write_blocked(&self) -> bool {
        self.tx.is_blocked()
    }

    /// Returns whether bytes are pending, and the socket may have room for them.
    pub(crate) fn can_write_pending(&self) -> bool {
        self.tx.can_write() && !self.writer.pending().is_empty()
    }

    /// Takes the connection apart: the socket, and the bytes that were not sent.
    pub(crate) fn into_socket(mut self) -> (TcpSocket, Vec<u8>) {
        self.detach_from_uring();
        let unsent = self.writer.pending().to_vec();
        (self.socket, unsent)
    }

    /// Returns the incarnation of the peer's endpoint, if the peer has sent its instance number.
    pub(crate) fn incarnation(&self) -> Option<Incarnation> {
        self.peer_instance
            .map(|instance| Incarnation(instance.into()))
    }

    /// Returns whether operations for this address handle may use this connection: the handle
    /// stands for the peer's incarnation or for any incarnation, or the peer had the handle when
    /// the peer connected.
    pub(crate) fn serves_addr(
        &self,
        addr: FiAddr,
        ctx: &EndpointContext<'_, impl EngineContext>,
    ) -> bool {
        let expected = ctx.incarnation_of(addr);
        expected.is_none() || expected == self.incarnation() || self.peer.had_at_connect(addr)
    }

    /// Ends the connection: nothing more is read from the socket or sent. The first reason counts.
    pub(crate) fn end(&mut self, reason: DownReason) {
        self.rx.end(reason);
        self.tx.close();
        self.socket.unwatch();
    }

    /// Stops sending, after a failed write or an aborted message. Pending bytes and responses are
    /// dropped.
    fn close_write(&mut self) {
        self.tx.close();
        self.writer.clear();
        self.responses.clear();
        self.update_interest();
    }

    /// Aborts the message that is partly sent, or the offered rendezvous, by ending the stream
    /// behind the pending bytes: no other message may follow them. Returns whether there was such a
    /// message.
    pub(crate) fn abort_message(&mut self) -> bool {
        let is_partly_sent = self.writer.is_open() && !self.responses.is_partial();
        if self.write_closed() || !is_partly_sent && self.responses.rendezvous.is_empty() {
            return false;
        }
        self.tx.abort();
        self.write_pending();
        true
    }

    /// Fails the pending requests, the offered rendezvous and the receives of partial messages,
    /// and discards the messages that are set aside.
    pub(crate) fn fail_all<E: EngineContext>(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        error: &Error,
    ) {
        self.pending.fail(ctx, error);
        self.fail_rendezvous_sends(ctx, error);
        for partial in self.reader.abort() {
            ctx.fail_partial(partial, error.clone());
        }
        self.discard_set_aside(ctx);
    }

    /// Sets whether the socket had no room, and updates what the socket is watched for.
    fn set_write_blocked(&mut self, is_blocked: bool) {
        if self.tx.set_blocked(is_blocked) {
            self.update_interest();
        }
    }

    /// Updates what the socket is watched for: input if this side reads, room if a write found
    /// none, else the end of the connection until it was seen. A readable socket that is not read
    /// would wake the domain again and again. io_uring reads and writes without epoll.
    pub(crate) fn update_interest(&mut self) {
        if self.rx.has_ended() {
            return;
        }
        let (is_reading, uses_uring) = (self.is_reading(), self.uses_uring());
        if uses_uring && !is_reading {
            self.pause_uring_recv();
        }
        let interest = match (is_reading, self.tx.is_blocked() && !uses_uring) {
            (true, _) if uses_uring => return self.socket.unwatch(),
            (true, true) => Interest::Both,
            (true, false) => Interest::Read,
            (false, true) => Interest::Write,
            (false, false) if self.rx.is_open() => Interest::HangUp,
            (false, false) => return self.socket.unwatch(),
        };
        if self
            .socket
            .watch(&self.wait_set, self.token, interest)
            .is_err()
        {
            self.end(DownReason::Died);
        }
    }

    /// Handles a ready socket, which may have room again.
    pub(crate) fn clear_write_blocked(&mut self) {
        if !self.is_uring_sending() {
            self.set_write_blocked(false);
        }
    }
}
