//! The traits between the progress engine and a provider.
//!
//! A [`Provider`] says what it offers and opens domains. A [`ProviderDomain`] moves messages; every call comes with a
//! [`Host`], through which it reaches operations, address vectors and event queues. All calls on a domain happen under
//! one lock of the engine, so a provider needs none of its own, and no user code runs inside a call: completions are
//! only noted by the host and reported after the lock is gone.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::address::{Address, FiAddr};
use crate::atomic::AtomicSpec;
use crate::buf::{AnyBuf, Loan, Payload, PooledBuf, Source};
use crate::completion::{CompletionLevel, OpKind, Outcome, Transfer};
use crate::error::{Error, Result};
use crate::event::EventKind;
use crate::flags::Access;
use crate::info::Info;
use crate::matching::{Envelope, PeerKey, RecvSpec};
use crate::mr::{Memory, Reached, Region};
use crate::rx::{Receiving, RxContext};
use crate::sockets::SocketOptions;
use crate::stats::ProviderStats;

mod meeting;

pub use meeting::{Joined, MAX_PRIVATE_DATA, Meeting, Request, RequestHandle, Way};

/// The name of an operation: position and generation of its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpKey {
    /// Position; small and used again.
    pub index: u32,
    /// Which use of the position.
    pub generation: u32,
}

/// The name of an endpoint within its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EpId(pub u32);

impl EpId {
    /// Bits of the number that say the place; those above tell apart who had it.
    #[doc(hidden)]
    pub const PLACE_BITS: u32 = 20;

    /// Its place among the endpoints of the domain: as small as they are few, and nobody else's while it is open.
    #[doc(hidden)]
    #[must_use]
    #[inline]
    pub const fn place(self) -> usize {
        (self.0 & ((1 << Self::PLACE_BITS) - 1)) as usize
    }
}

/// What is to be done at a peer: a message sent, its memory accessed, or only a connection made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendSpec {
    /// What.
    pub kind: OpKind,
    /// To whom.
    pub peer: FiAddr,
    /// The tag, of tagged messages.
    pub tag: Option<u64>,
    /// Data for the receiver's completion.
    pub data: Option<u64>,
    /// Where, of one-sided operations. Of one with several [places](Host::places) this is where the first of them is.
    pub remote: Option<Remote>,
    /// The number of its places, where it has several. It is not tried at once, but queued.
    pub spread: Option<Spread>,
    /// The payload is a loan of this name: the receiver may have it instead of a copy.
    pub loan: Option<u64>,
    /// It begins when everything that was posted before it for that peer has ended. Providers need not look at this: they
    /// are not given the operation, nor those behind it, before.
    pub fence: bool,
    /// When a message has ended well. A provider that does not offer the level fails it with [`Error::NotSupported`]. One-sided operations end when the peer's memory has been accessed, whatever this says.
    pub level: CompletionLevel,
    /// More follows under the same lock, and then [`ProviderDomain::flush`]: nobody need be woken for this one.
    pub more: bool,
}

/// The number of several places that an operation is about, as the host counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread(pub u32);

/// A place in a peer's memory, and what is done there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The key of the region.
    pub key: u64,
    /// Bytes from its start.
    pub offset: u64,
    /// Bytes accessed.
    pub len: usize,
    /// The operation, if it is atomic.
    pub atomic: Option<AtomicSpec>,
}

impl SendSpec {
    /// Whether it is a message with nothing to say but its bytes, which has ended when it is sent.
    #[must_use]
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.kind == OpKind::Send
            && self.tag.is_none()
            && self.data.is_none()
            && self.loan.is_none()
            && !self.fence
            && !self.more
            && !self.level.is_confirmed()
    }

    /// Something to be done at a peer that needs no more than that.
    #[must_use]
    pub fn new(kind: OpKind, peer: FiAddr) -> Self {
        let level = CompletionLevel::Transmitted;
        let (tag, data, remote, spread, loan) = (None, None, None, None, None);
        Self { kind, peer, tag, data, remote, spread, loan, fence: false, level, more: false }
    }

    /// A one-sided operation.
    #[must_use]
    pub fn one_sided(kind: OpKind, peer: FiAddr, remote: Remote) -> Self {
        Self { remote: Some(remote), ..Self::new(kind, peer) }
    }
}

/// What a peer has done to memory of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Written it, or changed it atomically.
    Write,
    /// Read it, or fetched what it changed.
    Read,
}

impl Deed {
    /// What an operation of the peer is here.
    #[must_use]
    pub fn of(kind: OpKind) -> Self {
        if kind.fills() { Self::Read } else { Self::Write }
    }
}

/// What became of an attempt to send at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendNow {
    /// The peer's endpoint has the message; the payload is no longer needed.
    Done,
    /// It has to wait: call [`ProviderDomain::queue_send`] with the operation that owns the payload.
    Queue,
}

/// What became of something that was tried without the domain's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtOnce {
    /// It is done.
    Done,
    /// Likewise, and it is time to look at the domain's descriptors.
    Due,
    /// It is not, and the domain is to be asked.
    No,
}

/// What a receive for several messages has for one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// A receive with part of its buffer.
    Part(OpKey),
    /// Likewise, and it takes no more messages: it must leave the queue.
    Last(OpKey),
    /// Nothing now: the message could not be reported. It must wait where it is.
    Full,
    /// Nothing: the message does not fit into what is left, or the receive has ended. It takes no more messages and must
    /// leave the queue; the next receive may have the message.
    Used,
}

/// A kind of fabric.
pub trait Provider: Send + Sync + 'static {
    /// The short name, as in `shm`.
    fn name(&self) -> &'static str;

    /// What it offers, best first. Hints are held against these, and so is every info that a domain or an endpoint is
    /// opened from: a provider is not asked for more than one of its offers has.
    fn offers(&self) -> Vec<Info>;

    /// Memory of this many bytes, zeroed, that peers of a domain can reach with these rights once it has a key there.
    ///
    /// # Errors
    /// What the operating system refuses.
    fn alloc(&self, len: usize, access: Access) -> Result<Arc<dyn Memory>> {
        let _ = (len, access);
        Err(Error::NotSupported("memory that peers reach"))
    }

    /// Opens a domain: allocates. The attributes were held against [`Provider::offers`] before; what no offer can
    /// express is checked here.
    ///
    /// # Errors
    /// Whatever prevents it; nothing is left behind.
    fn open_domain(&self, info: &Info, wait: Arc<dyn WaitSet>) -> Result<Box<dyn ProviderDomain>>;
}

/// Where loans come from. Called without the lock of the domain, since fresh memory takes its time.
pub trait Lender: Send + Sync {
    /// Memory that is there, of this many bytes or somewhat more.
    fn reuse(&self, len: usize) -> Option<Loan>;

    /// Fresh memory.
    ///
    /// # Errors
    /// [`Error::Again`] when too much is lent; what the operating system refuses.
    fn grow(&self, len: usize) -> Result<Loan>;
}

/// The way to the peers of one endpoint for what can be done there at once. Called without the lock of the domain, by
/// anybody at any time; it counts what it does, for [`ProviderStats`].
pub trait Express: Send + Sync {
    /// As [`ProviderDomain::send_now`], and keeps to its order: never before what was posted before it.
    fn send_now(&self, spec: &SendSpec, payload: Payload<'_>) -> AtOnce;

    /// As [`ProviderDomain::atomic_now`].
    fn atomic_now(&self, spec: &SendSpec, operands: &[u8], result: &mut [u8]) -> AtOnce;

    /// From now on, until this is taken back, somebody waits whom nothing must overtake. Called with the lock.
    fn hold(&self, held: bool);
}

/// The data path of one domain.
pub trait ProviderDomain: Send {
    /// Opens an endpoint, at the given address or at a fresh one, and returns the address. Its receive side is made of
    /// `receiving`.
    ///
    /// # Errors
    /// [`Error::AddressInUse`], or what the operating system refuses.
    fn open_endpoint(
        &mut self,
        ep: EpId,
        info: &Info,
        at: Option<&Address>,
        receiving: Receiving<'_>,
    ) -> Result<Address>;

    /// Opens a passive endpoint, at the given address or at a fresh one, and returns the address. It tells of those who want to
    /// be connected with [`Host::requested`].
    ///
    /// # Errors
    /// [`Error::AddressInUse`], or what the operating system refuses.
    fn listen(&mut self, ep: EpId, info: &Info, at: Option<&Address>) -> Result<Address> {
        let _ = (ep, info, at);
        Err(Error::NotSupported("passive endpoints"))
    }

    /// The request that has waited longest at a passive endpoint.
    fn take_request(&mut self, host: &mut dyn Host, ep: EpId) -> Option<Request> {
        let _ = (host, ep);
        None
    }

    /// Opens an endpoint that is connected with one peer. What has become of it is told with [`Host::joined`], possibly before this returns.
    ///
    /// # Errors
    /// What is known to be impossible now; nothing is left behind, and a request has been refused.
    fn open_connected(
        &mut self,
        host: &mut dyn Host,
        ep: EpId,
        info: &Info,
        meeting: Meeting<'_>,
        receiving: Receiving<'_>,
    ) -> Result<()> {
        let _ = (host, ep, info, meeting, receiving);
        Err(Error::NotSupported("connected endpoints"))
    }

    /// Ends the connection of an endpoint: what has been sent still leaves, what has not ends as cancelled.
    ///
    /// # Errors
    /// [`Error::NotSupported`] when it is not of that kind.
    fn shutdown(&mut self, host: &mut dyn Host, ep: EpId) -> Result<()> {
        let _ = (host, ep);
        Err(Error::NotSupported("ending the connection of an endpoint that has none of its own"))
    }

    /// Closes an endpoint. Operations that are still posted on it complete as cancelled.
    fn close_endpoint(&mut self, host: &mut dyn Host, ep: EpId);

    /// Sends, or writes to a peer's memory, at once if nothing stands in the way. Takes nothing from `payload` when it
    /// cannot. What ends only with the [word](SendSpec::level) of the peer is not ended at once, and so is to be queued.
    ///
    /// # Errors
    /// What is known to be impossible now; nothing was sent.
    fn send_now(
        &mut self,
        host: &mut dyn Host,
        ep: EpId,
        spec: &SendSpec,
        payload: Payload<'_>,
    ) -> Result<SendNow>;

    /// What was sent at once with `more` is all there was: wakes those it was for.
    ///
    /// # Errors
    /// [`Error::PeerGone`] when one of them has closed meanwhile, and has not taken everything.
    fn flush(&mut self, host: &mut dyn Host, ep: EpId) -> Result<()> {
        let _ = (host, ep);
        Ok(())
    }

    /// Reads a peer's memory at once if nothing stands in the way.
    ///
    /// # Errors
    /// What is known to be impossible now: a key, a right or a range; nothing was read.
    fn read_now(
        &mut self,
        host: &mut dyn Host,
        ep: EpId,
        spec: &SendSpec,
        into: &mut AnyBuf,
    ) -> Result<SendNow> {
        let _ = (host, ep, spec, into);
        Err(Error::NotSupported("reads of a peer's memory"))
    }

    /// Executes an atomic operation at once if nothing stands in the way. `operands` holds the operands and behind them
    /// the comparands, if the operation has some; `result` takes what was there before, if it is as long.
    ///
    /// # Errors
    /// As [`ProviderDomain::read_now`]; nothing was changed.
    fn atomic_now(
        &mut self,
        host: &mut dyn Host,
        ep: EpId,
        spec: &SendSpec,
        operands: &[u8],
        result: &mut [u8],
    ) -> Result<SendNow> {
        let _ = (host, ep, spec, operands, result);
        Err(Error::NotSupported("atomic operations on a peer's memory"))
    }

    /// A region of a peer's that has been accessed, to be reached without the provider from now on. `None` when it is not
    /// known yet.
    ///
    /// # Errors
    /// [`Error::NotSupported`] when an access needs the provider, or the peer wants to hear of it.
    fn reach(&mut self, host: &mut dyn Host, ep: EpId, peer: FiAddr, key: u64) -> Result<Option<Reached>> {
        let _ = (host, ep, peer, key);
        Err(Error::NotSupported("windows of a peer's memory"))
    }

    /// A way to the peers of this endpoint that does not need the domain's lock. Asked once, when it is opened.
    fn express(&self, ep: EpId) -> Option<Arc<dyn Express>> {
        let _ = ep;
        None
    }

    /// Where loans come from; nobody, where messages are always copied. Asked once, when the domain is opened.
    fn lender(&self) -> Option<Arc<dyn Lender>> {
        None
    }

    /// Takes back what peers have given back of what was lent to them.
    fn collect_loans(&mut self) {}

    /// Messages of at least this many bytes are copied once, straight from one process to the other, where that can be
    /// done. Said before endpoints are opened; `usize::MAX` for none, in either direction. Providers that have no such
    /// way take no notice.
    fn single_copy_from(&mut self, len: usize) {
        let _ = len;
    }

    /// How sockets are waited for. Said before endpoints are opened; providers without sockets take no notice.
    ///
    /// # Errors
    /// The kernel refuses what was asked for by name.
    fn socket_io(&mut self, io: SocketIo) -> Result<()> {
        let _ = io;
        Ok(())
    }

    /// What is set on sockets. Said before endpoints are opened; providers without sockets take no notice.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::TooLong`]; what the kernel does not have is refused by name.
    fn socket_options(&mut self, options: &SocketOptions) -> Result<()> {
        options.check()
    }

    /// A region has a key from now on, or this has changed of it.
    fn region_opened(&mut self, key: u64, region: &Region) {
        let _ = (key, region);
    }

    /// A key is no longer valid.
    fn region_closed(&mut self, key: u64) {
        let _ = key;
    }

    /// The owner of a region that is served has given it back to its peers: whoever waits for it is to look again.
    fn region_free(&mut self, key: u64) {
        let _ = key;
    }

    /// Queues a send, or a one-sided operation, whose payload the operation `op` owns. Its end is reported with
    /// [`Host::complete`].
    ///
    /// # Errors
    /// What is known to be impossible now; nothing was queued.
    fn queue_send(&mut self, host: &mut dyn Host, ep: EpId, op: OpKey, spec: &SendSpec) -> Result<()>;

    /// Posts a receive. Its end is reported with [`Host::complete`], possibly before this returns.
    fn post_recv(&mut self, host: &mut dyn Host, ep: EpId, op: OpKey, spec: RecvSpec);

    /// Posts a receive that takes several messages: [`Host::split`] makes a receive of its own for each. It stays posted
    /// until the host says that it is used up.
    fn post_multi_recv(&mut self, host: &mut dyn Host, ep: EpId, op: OpKey, spec: RecvSpec) {
        let _ = (ep, spec);
        host.complete(op, Outcome::failed(Error::NotSupported("receives of several messages")));
    }

    /// The receive side of an endpoint that has one of its own, for what needs nothing else of the provider: probes and
    /// claims. `None` when the endpoint is closed, or the provider has none of that kind. [`ProviderDomain::received`] must
    /// follow.
    fn receive_side(&mut self, ep: EpId) -> Option<&mut RxContext> {
        let _ = ep;
        None
    }

    /// Something was changed at the receive side of an endpoint: what was held back may go on, and peers may wait to hear
    /// of what was copied from them.
    fn received(&mut self, host: &mut dyn Host, ep: EpId) {
        let _ = (host, ep);
    }

    /// Joins a group: what is sent to it arrives at the endpoint from now on. A group that was joined before is joined
    /// once more. Returns what to [leave](ProviderDomain::leave) it with.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it is not the address of a group; [`Error::NotSupported`]; what the operating system refuses.
    fn join(&mut self, ep: EpId, group: &Address) -> Result<u32> {
        let _ = (ep, group);
        Err(Error::NotSupported("multicast groups"))
    }

    /// Leaves a group as often as it was joined.
    fn leave(&mut self, ep: EpId, group: u32) {
        let _ = (ep, group);
    }

    /// Takes an operation back that has not begun: true, and it will not complete. Otherwise it will.
    fn cancel(&mut self, host: &mut dyn Host, ep: EpId, op: OpKey) -> bool;

    /// Nobody waits for this receive any more: a message that is arriving in it is kept for the next one. The
    /// operation will not complete.
    fn abandon_recv(&mut self, host: &mut dyn Host, ep: EpId, op: OpKey);

    /// A message was received and not looked at: it takes its old place among the unexpected ones.
    fn put_back(&mut self, host: &mut dyn Host, ep: EpId, envelope: Envelope, bytes: PooledBuf);

    /// An address of the endpoint's vector now has a number.
    fn address_inserted(&mut self, host: &mut dyn Host, ep: EpId, addr: FiAddr, address: &Address);

    /// A number of the endpoint's vector is no longer valid.
    fn address_removed(&mut self, host: &mut dyn Host, ep: EpId, addr: FiAddr);

    /// Whether a message with this source waits at the endpoint.
    fn holds(&self, ep: EpId, source: FiAddr) -> bool;

    /// Moves what can be moved, within a bound. Returns whether anything moved.
    fn progress(&mut self, host: &mut dyn Host) -> bool;

    /// A watched descriptor is ready.
    fn ready(&mut self, host: &mut dyn Host, token: u64);

    /// Asks peers to ring the doorbell from now on, then looks once more: true when it is safe to sleep, false when
    /// there is news already (and the request is withdrawn).
    fn arm(&mut self) -> bool;

    /// Somebody polls again; doorbells are not needed.
    fn disarm(&mut self);

    /// What the provider knows of an endpoint's doings.
    fn stats(&self, ep: EpId) -> ProviderStats {
        let _ = ep;
        ProviderStats::default()
    }

    /// A few words on the state of the domain, for `Debug`.
    fn describe(&self) -> String;
}

/// What a provider may ask of the engine while it is being called.
pub trait Host {
    /// The bytes a send operation is to send.
    fn payload(&self, op: OpKey) -> Payload<'_>;

    /// Whether the bytes of a send operation lie in ordinary memory, which another process may be let read. What is in a
    /// buffer of the user's own kind may lie on a device.
    fn is_ordinary(&self, op: OpKey) -> bool {
        let _ = op;
        true
    }

    /// The places of a write or read that has several. Its bytes go to them, or come from them, in this order. All of them
    /// are to be checked before the first byte moves.
    fn places(&self, spread: Spread) -> &[Remote] {
        let _ = spread;
        &[]
    }

    /// A message of `len` bytes is about to be placed in this receive; returns how many bytes it can take.
    fn expect(&mut self, op: OpKey, len: usize) -> usize;

    /// Copies part of `source` into the receive's buffer at position `at`.
    fn place(&mut self, op: OpKey, at: usize, source: &dyn Source, from: usize, count: usize);

    /// A whole message for this receive: expected, placed and completed in one call.
    fn deliver(&mut self, op: OpKey, envelope: &Envelope, source: &dyn Source) {
        let placed = self.expect(op, envelope.len).min(envelope.len);
        self.place(op, 0, source, 0, placed);
        self.complete(op, Outcome::received(envelope, placed));
    }

    /// What a receive for several messages has for this one.
    fn split(&mut self, op: OpKey, envelope: &Envelope) -> Split {
        let _ = (op, envelope);
        Split::Used
    }

    /// Whether such a receive has a place where a further message can be reported. If it has not, the provider is called
    /// again ([`ProviderDomain::progress`]) when it has.
    fn has_place(&mut self, op: OpKey) -> bool {
        let _ = op;
        false
    }

    /// Whether this receive takes a message of this length where it lies.
    fn shares(&self, op: OpKey, len: usize) -> bool {
        let _ = (op, len);
        false
    }

    /// Gives the receive a whole buffered message; returns how many bytes it could take. Without copying if the
    /// receive has no buffer of its own.
    fn adopt(&mut self, op: OpKey, bytes: PooledBuf) -> usize;

    /// Takes the first `filled` bytes back from a receive nobody waits for.
    fn reclaim(&mut self, op: OpKey, filled: usize) -> PooledBuf;

    /// The operation has ended.
    fn complete(&mut self, op: OpKey, outcome: Outcome);

    /// The call left something behind that waits for a peer, or that a further pass could move. If doorbells have been
    /// asked for, they must be asked for again, with this in view.
    fn unsettled(&mut self) {}

    /// After this pass something is under way that further passes move: they are to be made, also if nobody here waits
    /// for it. Said in every pass for which it is so.
    fn under_way(&mut self) {}

    /// Something happened on the endpoint.
    fn event(&mut self, ep: EpId, event: EventKind);

    /// A connection ended while the peer had so many loans of the endpoint: their memory is not used again.
    fn gave_up(&mut self, _ep: EpId, _peer: &Address, _loans: usize) {}

    /// The address behind a number of the endpoint's vector.
    ///
    /// # Errors
    /// [`Error::StaleAddress`].
    fn address_of(&self, ep: EpId, addr: FiAddr) -> Result<Address>;

    /// What a key of this domain stands for.
    fn region(&self, key: u64) -> Option<&Region>;

    /// A peer has done this to the region of this key, as it says, by way of the endpoint. Told of what comes with data,
    /// of everything done to a region that [heeds](Region::heeds) it, and of everything if the endpoint was opened with [`Caps::RMA_EVENT`](crate::flags::Caps::RMA_EVENT), which the engine
    /// leaves in only where somebody counts. False when it cannot be taken in
    /// now: the completion queue is full.
    fn done_to_us(&mut self, ep: EpId, key: u64, deed: Deed, transfer: Transfer) -> bool;

    /// The number of an address in the endpoint's vector.
    fn number_of(&self, ep: EpId, address: &Address) -> Option<FiAddr>;

    /// A peer connected: its number, given on the spot if the vector takes in strangers.
    fn peer_connected(&mut self, ep: EpId, address: &Address) -> Option<FiAddr>;

    /// A connection has ended that had this number when it was made. A number that was given on the spot is taken back
    /// with the last of them, once none of the peer's messages waits.
    fn peer_disconnected(&mut self, ep: EpId, number: Option<FiAddr>);

    /// Somebody waits at a passive endpoint, to be taken from there with [`ProviderDomain::take_request`].
    fn requested(&mut self, ep: EpId, peer: &Address, data: &[u8]) {
        let _ = (ep, peer, data);
    }

    /// An endpoint that was to be connected with this peer is, or will never be. Told once.
    fn joined(&mut self, ep: EpId, peer: &Address, joined: Result<Joined>) {
        let _ = (ep, peer, joined);
    }

    /// A key for a peer that has connected to an endpoint which shares its receives: nobody else in the domain has it.
    fn shared_peer(&mut self, ep: EpId) -> PeerKey {
        let _ = ep;
        PeerKey::default()
    }

    /// The address of a number that is about to be taken back: nothing more will come from there.
    fn leaving(&self, number: FiAddr) -> Option<Address>;
}

/// How a provider waits for its sockets, and hands them what does not fit at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[doc(alias = "FI_TCP_IO_URING")]
pub enum SocketIo {
    /// What the environment variable `FABRIC_SOCKET_IO` says: `epoll`, `io_uring` (and epoll where the kernel refuses it), or
    /// `auto`, which is the better one by measurement: epoll.
    #[default]
    Auto,
    /// System calls that never block, and epoll.
    Epoll,
    /// The same while somebody looks, and io_uring when nobody does: what comes is received, and what is long is sent, by
    /// the kernel alone.
    IoUring,
}

/// What a descriptor is watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Something to read, or the end.
    Read,
    /// Room to write.
    Write,
    /// Either.
    Both,
}

/// What a provider waits on: a set of descriptors, and a doorbell inside the process.
pub trait WaitSet: Send + Sync {
    /// Wakes whoever sleeps on the set.
    fn kick(&self);

    /// Watches a descriptor: as long as it is readable or hung up, [`ProviderDomain::ready`] is told with the token.
    ///
    /// # Errors
    /// What the operating system refuses.
    fn watch(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()>;

    /// Watches a descriptor that is watched already for something else. It stays with its token.
    ///
    /// # Errors
    /// What the operating system refuses.
    fn rewatch(&self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> io::Result<()> {
        let _ = (fd, token, interest);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Stops watching. To be called before the descriptor is closed.
    fn unwatch(&self, fd: BorrowedFd<'_>);
}
