//! What a provider sees of the engine.

use crate::address::{Address, FiAddr};
use crate::buf::{AnyBuf, CopySource, Payload, PooledBuf};
use crate::completion::{Outcome, Transfer};
use crate::error::Result;
use crate::event::EventKind;
use crate::matching::{Envelope, PeerKey};
use crate::mr::Region;

use super::{Connected, EpId, OpKey, RemoteAccess, RmaIov, RmaIovId};

/// Which endpoint has an address: one that is opened there later is another incarnation. The
/// provider chooses the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Incarnation(pub u128);

/// What a receive for several messages has for one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MultiRecvSplit {
    /// A receive with part of its buffer.
    Part(OpKey),
    /// Likewise, and it takes no more messages: it must leave the queue.
    Last(OpKey),
    /// Nothing now: the message could not be reported. It must wait where it is.
    CqFull,
    /// Nothing: the message does not fit into what is left, or the receive has ended. It takes no
    /// more messages and must leave the queue; the next receive may have the message.
    Exhausted,
}

/// What a provider may ask of the engine while it is being called.
pub trait EngineContext {
    /// The bytes a send operation is to send.
    fn payload(&self, op: OpKey) -> Payload<'_>;

    /// Whether the bytes of a send operation lie in ordinary memory, which another process may be
    /// let read. What is in a buffer of the user's own kind may lie on a device.
    fn is_host_memory(&self, op: OpKey) -> bool {
        let _ = op;
        true
    }

    /// Takes the buffer of an operation whose bytes the kernel reads from where they lie, for as
    /// long as it does, which may be longer than the operation takes. Until it is [given
    /// back](Host::restore) the operation has no payload, and its end is kept to be reported then:
    /// whoever hears of it may have the buffer. `None` where buffers are not given away.
    fn take_buffer(&mut self, op: OpKey) -> Option<AnyBuf> {
        let _ = op;
        None
    }

    /// Gives back what was taken: nobody reads it any more. The operation need not be there any
    /// more.
    fn return_buffer(&mut self, op: OpKey, buf: AnyBuf) {
        let _ = (op, buf);
    }

    /// The places of a write or read that has several. Its bytes go to them, or come from them, in
    /// this order. All of them are to be checked before the first byte moves.
    fn rma_iovs(&self, spread: RmaIovId) -> &[RmaIov] {
        let _ = spread;
        &[]
    }

    /// A message of `len` bytes is about to be placed in this receive, which reserves memory for it
    /// if its buffer grows; returns how many bytes it can take.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    fn begin_fill(&mut self, op: OpKey, len: usize) -> Result<usize>;

    /// Copies part of `source` into the receive's buffer at position `at`.
    fn write_at(
        &mut self,
        op: OpKey,
        at: usize,
        source: &dyn CopySource,
        from: usize,
        count: usize,
    );

    /// A whole message for this receive: expected, placed and completed in one call.
    fn deliver(&mut self, op: OpKey, envelope: &Envelope, source: &dyn CopySource) {
        match self.begin_fill(op, envelope.len) {
            Ok(room) => {
                let placed = room.min(envelope.len);
                self.write_at(op, 0, source, 0, placed);
                self.complete(op, Outcome::received(envelope, placed));
            }
            Err(error) => {
                self.complete(op, Outcome::partial(Transfer::received(envelope, 0), error));
            }
        }
    }

    /// What a receive for several messages has for this one.
    fn split_multi_recv(&mut self, op: OpKey, envelope: &Envelope) -> MultiRecvSplit {
        let _ = (op, envelope);
        MultiRecvSplit::Exhausted
    }

    /// Whether such a receive has a place where a further message can be reported. If it has not,
    /// the provider is called again ([`TransportDomain::progress`](super::TransportDomain::progress))
    /// when it has.
    fn has_cq_room(&mut self, op: OpKey) -> bool {
        let _ = op;
        false
    }

    /// Whether this receive takes a message of this length where it lies.
    fn accepts_loan(&self, op: OpKey, len: usize) -> bool {
        let _ = (op, len);
        false
    }

    /// Gives the receive a whole buffered message; returns how many bytes it could take. Without
    /// copying if the receive has no buffer of its own.
    fn give_buffered(&mut self, op: OpKey, bytes: PooledBuf) -> usize;

    /// Gives the receive the first bytes of a message of `len` bytes, whose rest is still arriving;
    /// returns how many bytes of the message it can take, and how many it has. Without copying if
    /// the receive has no buffer of its own.
    ///
    /// # Errors
    /// As [`Host::begin_fill`].
    fn adopt_partial(&mut self, op: OpKey, bytes: PooledBuf, len: usize) -> Result<(usize, usize)> {
        let room = self.begin_fill(op, len)?;
        let placed = bytes.len().min(room);
        self.write_at(op, 0, &&bytes[..], 0, placed);
        Ok((room, placed))
    }

    /// Takes the first `filled` bytes back from a receive nobody waits for.
    fn take_received(&mut self, op: OpKey, filled: usize) -> PooledBuf;

    /// Nothing of what the operation gives away is needed here any more: it is in the kernel's, or
    /// in the peer's hands. The operation has not ended, for it waits for the word of its peer.
    fn has_left(&mut self, op: OpKey) {
        let _ = op;
    }

    /// The message that was being placed in this receive is lost, and the receive waits for another
    /// one: what was placed is no part of that, and the buffer is as large as before.
    fn rearm(&mut self, op: OpKey) {
        let _ = op;
    }

    /// The message is lost for which this part was [split](Host::split) off: the part has ended,
    /// and is not reported.
    fn discard_part(&mut self, op: OpKey) {
        let _ = op;
    }

    /// The operation has ended.
    fn complete(&mut self, op: OpKey, outcome: Outcome);

    /// A message of `len` bytes with this tag has been sent: its operation has ended well.
    fn sent(&mut self, op: OpKey, len: usize, tag: Option<u64>) {
        self.complete(op, Outcome::ok(Transfer::sent(len, tag)));
    }

    /// The call left something behind that waits for a peer, or that a further pass could move. If
    /// doorbells have been asked for, they must be asked for again, with this in view.
    fn request_rearm(&mut self) {}

    /// After this pass something is under way that further passes move: they are to be made, also
    /// if nobody here waits for it. Said in every pass for which it is so.
    fn request_progress(&mut self) {}

    /// Something happened on the endpoint.
    fn event(&mut self, ep: EpId, event: EventKind);

    /// A connection ended while the peer had so many loans of the endpoint: their memory is not
    /// used again.
    fn loans_lost(&mut self, _ep: EpId, _peer: &Address, _loans: usize) {}

    /// The address to reach the peer of this handle at.
    ///
    /// # Errors
    /// [`Error::StaleAddress`](crate::Error::StaleAddress);
    /// [`Error::PeerGone`](crate::Error::PeerGone) of an auto-inserted handle whose peer is gone,
    /// when another one has its address.
    fn address_of(&self, ep: EpId, addr: FiAddr) -> Result<Address>;

    /// What a key of this domain stands for.
    fn region(&self, key: u64) -> Option<&Region>;

    /// A peer has done this to the region of this key, as it says, by way of the endpoint. Told of
    /// what comes with data, of everything done to a region that [heeds](Region::heeds) it, and of
    /// everything if the endpoint was opened with
    /// [`Caps::RMA_EVENT`](crate::flags::Caps::RMA_EVENT), which the engine leaves in only where
    /// somebody counts. False when it cannot be taken in now: the completion queue is full.
    fn on_remote_access(
        &mut self,
        ep: EpId,
        key: u64,
        deed: RemoteAccess,
        transfer: Transfer,
    ) -> bool;

    /// Which incarnation a handle stands for. `None` of one that the program inserted, which stands
    /// for whoever has the address; an auto-inserted handle stands for the peer that connected.
    fn incarnation_of(&self, ep: EpId, addr: FiAddr) -> Option<Incarnation> {
        let _ = (ep, addr);
        None
    }

    /// The handle that the program inserted for an address.
    fn fi_addr_of(&self, ep: EpId, address: &Address) -> Option<FiAddr>;

    /// A peer connected: its handle, which an auto-insert vector gives it now. `None` for the
    /// incarnation: the transport does not know, and a peer without another connection counts as
    /// new.
    fn peer_connected(
        &mut self,
        ep: EpId,
        address: &Address,
        incarnation: Option<Incarnation>,
    ) -> Option<FiAddr>;

    /// A connection has ended that had this number when it was made. A number that was given on the
    /// spot is taken back with the last of them, once none of the peer's messages waits.
    fn peer_disconnected(&mut self, ep: EpId, number: Option<FiAddr>);

    /// Somebody waits at a passive endpoint, to be taken from there with
    /// [`TransportDomain::take_connreq`](super::TransportDomain::take_connreq).
    fn on_connreq(&mut self, ep: EpId, peer: &Address, data: &[u8]) {
        let _ = (ep, peer, data);
    }

    /// An endpoint that was to be connected with this peer is, or will never be. Told once.
    fn on_connected(&mut self, ep: EpId, peer: &Address, joined: Result<Connected>) {
        let _ = (ep, peer, joined);
    }

    /// A key for a peer that has connected to an endpoint which shares its receives: nobody else in
    /// the domain has it.
    fn new_shared_peer_key(&mut self, ep: EpId) -> PeerKey {
        let _ = ep;
        PeerKey::default()
    }

    /// The address of a number that is about to be taken back: nothing more will come from there.
    fn departing_address(&self, number: FiAddr) -> Option<Address>;
}
