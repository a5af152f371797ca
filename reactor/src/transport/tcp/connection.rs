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
use fabric_core::rx::RxQueue;
use fabric_core::tcp::rxm::{RxmReceiver, RxmSender};
use fabric_core::tcp::{ByteOrder, FrameReader, FrameWriter, Negotiated, PeerCaps};
use fabric_core::transport::{EngineContext, EpId, Incarnation, Interest, TxOp, WaitSet};
use fabric_core::{Error, FiAddr, Result};

use super::socket::TcpSocket;
use crate::uring::SharedUring;

mod onesided;
mod receiving;
mod rxm;
mod sending;
mod uring_io;
mod zero_copy;

use uring_io::UringIo;

use receiving::UnconsumedBytes;
use sending::Unwritten;
pub(crate) use sending::{QueuedOp, SendResult};

/// Passes without news after which a connection is not looked at any more until it is ready.
const IDLE_PASSES: u32 = 2000;

/// A connection.
pub(crate) struct TcpConnection {
    /// Position in the list of peers.
    pub(crate) peer: usize,
    pub(crate) peer_key: PeerKey,
    /// The peer's number now, and when it connected.
    pub(crate) source: Option<FiAddr>,
    pub(crate) addr_at_connect: Option<FiAddr>,
    pub(crate) peer_instance: Option<u32>,
    peer_caps: PeerCaps,
    socket: TcpSocket,
    wait_set: Arc<dyn WaitSet>,
    token: u64,
    reader: FrameReader,
    writer: FrameWriter,
    /// Messages that were collected, and whose last byte the kernel has not taken yet, in the order
    /// of the stream.
    unwritten: VecDeque<Unwritten>,
    /// Bytes that were read and not taken.
    unconsumed: UnconsumedBytes,
    /// Nobody has looked at them.
    has_unparsed: bool,
    /// The first message among them was left for another look.
    deferred_once: bool,
    /// The first message among them is nobody's yet.
    message_held: bool,
    /// It is not watched for what comes: that is not read for now.
    read_paused: bool,
    /// There was no room to send.
    write_blocked: bool,
    /// Something was sent since the last pass: what follows is collected.
    batching: bool,
    /// The peer sends no more, or the connection is broken.
    end_reason: Option<DownReason>,
    /// Nothing can be sent any more. What the peer has sent before may still be there to be read.
    write_closed: bool,
    /// A message has begun that will not end: what is pending leaves, and nothing behind it.
    aborting: bool,
    /// Bytes of answers since anything that was queued has left.
    response_bytes: usize,
    idle_passes: u32,
    /// It is among those that every pass looks at.
    pub(crate) is_active: bool,
    /// What it has in the ring, where there is one.
    uring_io: Option<UringIo>,
}

impl TcpConnection {
    pub(crate) fn new(
        (peer, peer_key): (usize, PeerKey),
        socket: TcpSocket,
        (wait_set, token): (Arc<dyn WaitSet>, u64),
        (agreed, order): (Negotiated, ByteOrder),
        rest: Vec<u8>,
        ring: Option<SharedUring>,
    ) -> Self {
        let (mut reader, mut writer) = (FrameReader::new(order), FrameWriter::new(order));
        let peer_caps = match agreed {
            Negotiated::Native { peer_caps: takes } => takes,
            Negotiated::Rxm {
                peer_caps: takes,
                local_connection: ours,
                remote_connection: theirs,
            } => {
                reader = FrameReader::with_rxm(order, RxmReceiver::new(ours));
                writer = FrameWriter::with_rxm(order, RxmSender::new(theirs));
                takes
            }
        };
        if peer_caps.is_same_implementation() {
            reader.set_same_implementation();
        }
        Self {
            peer,
            peer_key,
            source: None,
            addr_at_connect: None,
            peer_instance: None,
            peer_caps,
            socket,
            wait_set,
            token,
            reader,
            writer,
            unwritten: VecDeque::new(),
            has_unparsed: !rest.is_empty(),
            unconsumed: UnconsumedBytes::new(rest),
            deferred_once: false,
            message_held: false,
            read_paused: false,
            write_blocked: false,
            batching: false,
            end_reason: None,
            write_closed: false,
            aborting: false,
            response_bytes: 0,
            idle_passes: 0,
            is_active: false,
            uring_io: ring.map(|ring| UringIo::new(ring, token)),
        }
    }

    /// Whether the peer takes this operation, as far as is known before it is its turn.
    ///
    /// # Errors
    /// [`Error::NotSupported`].
    #[inline]
    pub(crate) fn check_supported(&self, spec: &TxOp) -> Result<()> {
        self.peer_caps.tag(spec.tag).map(drop)
    }

    /// Tagged messages break the rules.
    pub(crate) fn reject_tagged(&mut self) {
        self.reader.reject_tagged();
    }

    pub(crate) fn end_reason(&self) -> Option<DownReason> {
        self.end_reason
    }

    /// Whether the peer hears nothing any more.
    pub(crate) fn write_closed(&self) -> bool {
        self.write_closed
    }

    /// Whether it has a message that nobody has asked for, and for which there is no room.
    pub(crate) fn has_held_messages(&self) -> bool {
        self.message_held || self.reader.has_deferred()
    }

    /// Whether it is worth looking at without being told.
    fn is_recently_active(&self) -> bool {
        self.idle_passes < IDLE_PASSES
    }

    pub(crate) fn reset_idle(&mut self) {
        self.idle_passes = 0;
    }

    /// Whether what is sent next is collected, until a pass has been.
    pub(crate) fn is_batching(&self) -> bool {
        self.batching
    }

    /// Whether passes are to look at it, as long as nothing is queued for it.
    pub(crate) fn needs_progress(&self) -> bool {
        self.is_recently_active()
            || self.has_held_messages()
            || !self.is_flushed()
            || self.has_local_work()
            || self.has_pending_responses()
    }

    /// Whether there is no room to send.
    pub(crate) fn is_write_blocked(&self) -> bool {
        self.write_blocked
    }

    /// Nothing that was collected is left to be sent that could be.
    pub(crate) fn is_flushed(&self) -> bool {
        self.write_blocked || self.write_closed || self.writer.pending().is_empty()
    }

    pub(crate) fn into_socket(mut self) -> (TcpSocket, Vec<u8>) {
        self.detach_from_uring();
        let rest = self.writer.pending().to_vec();
        (self.socket, rest)
    }

    /// Which endpoint the peer is, if it has said so.
    pub(crate) fn incarnation(&self) -> Option<Incarnation> {
        self.peer_instance
            .map(|instance| Incarnation(instance.into()))
    }

    /// Whether what an endpoint sends to this handle may go over this connection: the peer is the
    /// one that the handle stands for.
    pub(crate) fn is_for(&self, addr: FiAddr, ep: EpId, host: &dyn EngineContext) -> bool {
        let bound = host.incarnation_of(ep, addr);
        bound.is_none() || bound == self.incarnation() || self.addr_at_connect == Some(addr)
    }

    fn end(&mut self, reason: DownReason) {
        self.end_reason.get_or_insert(reason);
        self.write_closed = true;
        self.socket.unwatch();
    }

    /// The connection does not take anything any more: what is pending is lost.
    fn close_write(&mut self) {
        self.write_closed = true;
        self.write_blocked = false;
        self.writer.clear();
        self.reader.responses.clear();
        self.update_interest();
    }

    /// The message that is being sent, if there is one, will not end: nothing may come behind its
    /// beginning, and the peer hears of it by the end of the stream. Returns whether there was one.
    pub(crate) fn abort_message(&mut self) -> bool {
        let is_within = self.writer.is_open() && !self.reader.responses.is_partial();
        if self.write_closed || !is_within && self.reader.responses.rendezvous.is_empty() {
            return false;
        }
        self.aborting = true;
        self.flush();
        true
    }

    /// What was asked and offered, and the messages that were arriving, fail; the rest is nobody's.
    pub(crate) fn fail_all(
        &mut self,
        rx: &mut RxQueue,
        host: &mut dyn EngineContext,
        error: &Error,
    ) {
        self.reader.pending.fail(host, error);
        self.fail_rendezvous_sends(host, error);
        for landing in self.reader.abort() {
            rx.fail_partial(host, landing, error.clone());
        }
    }

    fn set_write_blocked(&mut self, is_blocked: bool) {
        if is_blocked != self.write_blocked {
            self.write_blocked = is_blocked;
            if !self.uses_uring() {
                self.update_interest();
            }
        }
    }

    /// Whether it is watched for what comes follows whether that is read.
    fn update_read_interest(&mut self) {
        if self.read_paused != (self.message_held || self.is_backlogged()) {
            self.update_interest();
        }
    }

    /// Watches for what matters now. What is not read must not keep everybody awake.
    pub(crate) fn update_interest(&mut self) {
        self.read_paused = self.message_held || self.is_backlogged();
        if self.end_reason.is_some() {
            return;
        }
        if self.uses_uring() {
            if self.read_paused {
                self.pause_uring_recv();
            }
            return self.socket.unwatch();
        }
        let interest = match (self.read_paused, self.write_blocked) {
            (true, false) => return self.socket.unwatch(),
            (true, true) => Interest::Write,
            (false, true) => Interest::Both,
            (false, false) => Interest::Read,
        };
        if self
            .socket
            .watch(&self.wait_set, self.token, interest)
            .is_err()
        {
            self.end(DownReason::Died);
        }
    }

    /// There may be room to send again.
    pub(crate) fn clear_write_blocked(&mut self) {
        if !self.is_uring_sending() {
            self.set_write_blocked(false);
        }
    }
}
