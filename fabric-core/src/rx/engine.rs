//! The engine as a receive queue uses it.

use crate::address::{Address, FiAddr};
use crate::buf::{CopySource, PooledBuf};
use crate::completion::{Outcome, Transfer};
use crate::error::Result;
use crate::matching::{Envelope, PeerKey};
use crate::op::{EpId, OpKey};

use super::peers::DiscardedMessages;
use super::plain::PlainSink;

/// Identifies one endpoint among all that have had its address: an endpoint opened there later has
/// another incarnation. The transport chooses the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Incarnation(pub u128);

/// Result of splitting a receive for one message off a multi-receive (`FI_MULTI_RECV`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MultiRecvSplit {
    /// A receive with part of the buffer.
    Part(OpKey),
    /// The last receive with part of the buffer: the multi-receive must leave the queue.
    Last(OpKey),
    /// No receive yet: the completion queue is full. The message must wait where it is.
    CqFull,
    /// No receive: the message does not fit into the rest of the buffer, or the multi-receive has
    /// ended. The multi-receive must leave the queue; the next receive may take the message.
    Exhausted,
}

/// What a receive queue needs of the engine: the buffers and the results of the receives whose keys
/// the queue holds, and the address vectors.
pub trait RxEngine {
    /// What delivers the messages of a [plain run](super::PlainRun).
    type PlainSink<'a>: PlainSink
    where
        Self: 'a;

    /// Returns what delivers plain messages to receives of this queue. `None` if each message must
    /// be [delivered](Self::deliver) by itself.
    fn plain_sink(&mut self, queue: EpId) -> Option<Self::PlainSink<'_>>;

    /// Begins to fill a receive with a message of `len` bytes, and reserves memory if the buffer of
    /// the receive grows; returns how many bytes the receive accepts.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    fn begin_fill(&mut self, op: OpKey, len: usize) -> Result<usize>;

    /// Copies `count` of the `bytes`, from offset `from`, into the receive's buffer at offset `at`.
    fn write_at(&mut self, op: OpKey, at: usize, bytes: &dyn CopySource, from: usize, count: usize);

    /// Delivers a whole message to this receive: fills and completes it in one call.
    fn deliver(&mut self, op: OpKey, envelope: &Envelope, bytes: &impl CopySource) {
        self.fill_and_complete(op, envelope, bytes);
    }

    /// As [`deliver`](Self::deliver), for a receive of any kind.
    fn fill_and_complete(&mut self, op: OpKey, envelope: &Envelope, bytes: &dyn CopySource) {
        let outcome = match self.begin_fill(op, envelope.len) {
            Ok(accepted) => {
                let placed = accepted.min(envelope.len);
                self.write_at(op, 0, bytes, 0, placed);
                Outcome::received(envelope, placed)
            }
            Err(error) => Outcome::partial(Transfer::received(envelope, 0), error),
        };
        self.complete(op, outcome);
    }

    /// Returns whether this receive accepts a message of this length as a loan.
    fn accepts_loan(&self, op: OpKey, len: usize) -> bool {
        let _ = (op, len);
        false
    }

    /// Gives the receive a whole buffered message; returns how many bytes it accepted. Nothing is
    /// copied if the receive has no buffer of its own.
    fn give_buffered(&mut self, op: OpKey, bytes: PooledBuf) -> usize;

    /// Gives the receive the first bytes of a message of `len` bytes that is still arriving;
    /// returns how many bytes of the message it accepts, and how many are in its buffer. Nothing is
    /// copied if the receive has no buffer of its own.
    ///
    /// # Errors
    /// Those of [`begin_fill`](RxEngine::begin_fill).
    fn adopt_partial(&mut self, op: OpKey, bytes: PooledBuf, len: usize) -> Result<(usize, usize)> {
        let accepted = self.begin_fill(op, len)?;
        let placed = bytes.len().min(accepted);
        self.write_at(op, 0, &&bytes[..], 0, placed);
        Ok((accepted, placed))
    }

    /// Takes the first `filled` bytes of the message from the buffer of a detached receive.
    fn take_received(&mut self, op: OpKey, filled: usize) -> PooledBuf;

    /// Appends the first `filled` bytes of the message in the buffer of a receive to `into`.
    fn copy_received(&mut self, op: OpKey, filled: usize, into: &mut PooledBuf);

    /// Notes that a message has begun to arrive, so that the engine
    /// [checks](super::RxQueue::check_arrivals) the arriving messages.
    fn on_arriving(&mut self) {}

    /// Posts a receive again whose message was lost: it waits for another message, with none of
    /// the lost bytes and its original buffer size.
    fn repost(&mut self, op: OpKey) {
        let _ = op;
    }

    /// Completes the operation.
    fn complete(&mut self, op: OpKey, outcome: Outcome);

    /// Splits off the share of a multi-receive for this message.
    fn split_multi_recv(&mut self, op: OpKey, envelope: &Envelope) -> MultiRecvSplit {
        let _ = (op, envelope);
        MultiRecvSplit::Exhausted
    }

    /// Reserves room in the completion queue of a multi-receive for a further message. Returns
    /// false if there is none; the engine then makes another pass when there is room.
    fn reserve_cq_room(&mut self, op: OpKey) -> bool {
        let _ = op;
        false
    }

    /// Discards a part of a multi-receive, [split off](RxEngine::split_multi_recv) for a
    /// message that was lost: the part ends without a completion.
    fn discard_part(&mut self, op: OpKey) {
        let _ = op;
    }

    /// Notes that the call has left work that waits for a peer or for a further pass. If the
    /// doorbells are armed, the engine must arm them again, which polls once more.
    fn request_rearm(&mut self) {}

    /// Returns the address of the peer with this handle.
    ///
    /// # Errors
    /// [`Error::StaleAddress`](crate::Error::StaleAddress);
    /// [`Error::PeerGone`](crate::Error::PeerGone) for an auto-inserted handle whose peer is gone
    /// while another peer has its address.
    fn address_of(&self, ep: EpId, addr: FiAddr) -> Result<Address>;

    /// Returns the incarnation behind a handle. `None` for a handle that the program inserted,
    /// which stands for any endpoint at the address; an auto-inserted handle stands for the peer
    /// that connected.
    fn incarnation_of(&self, ep: EpId, addr: FiAddr) -> Option<Incarnation> {
        let _ = (ep, addr);
        None
    }

    /// Returns the handle that the program inserted for an address.
    fn fi_addr_of(&self, ep: EpId, address: &Address) -> Option<FiAddr>;

    /// Returns the address of a *departing* handle: an auto-inserted one whose last connection has
    /// ended, and that is removed once no message of its peer is buffered. `None` for other
    /// handles.
    fn departing_address(&self, addr: FiAddr) -> Option<Address>;

    /// Notes that unexpected messages of disconnected peers, in the queue of `queue`, were
    /// discarded.
    fn on_discarded(&mut self, queue: EpId, discarded: &DiscardedMessages) {
        let _ = (queue, discarded);
    }

    /// Notes the name of a peer that sends to the queue of `queue`: under this key.
    fn sender_connected(&mut self, queue: EpId, peer: PeerKey, name: &Address) {
        let _ = (queue, peer, name);
    }

    /// Notes that a peer has disconnected. Messages of the peer may still be in the queue.
    fn sender_disconnected(&mut self, queue: EpId, peer: PeerKey) {
        let _ = (queue, peer);
    }

    /// Returns a key for a peer that has connected to an endpoint with a shared receive context;
    /// the key is unique in the domain.
    fn new_shared_peer_key(&mut self, ep: EpId) -> PeerKey {
        let _ = ep;
        PeerKey::default()
    }
}
