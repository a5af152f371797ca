//! The data path of a domain.

use std::sync::Arc;

use crate::address::{Address, FiAddr};
use crate::buf::{AnyBuf, Payload, PooledBuf};
use crate::completion::Outcome;
use crate::error::{Error, Result};
use crate::info::Info;
use crate::matching::{Envelope, RecvSpec};
use crate::mr::{Reached, Region};
use crate::rx::{Receiving, RxContext};
use crate::sockets::SocketOptions;
use crate::stats::ProviderStats;

use super::{EpId, Express, Host, Lender, Meeting, OpKey, Request, SendSpec, SocketIo};

/// What became of an attempt to send at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendNow {
    /// The peer's endpoint has the message; the payload is no longer needed.
    Done,
    /// The provider has copied the payload, and sends it later together with other messages. The
    /// operation has not ended: [`ProviderDomain::collected`] names it, and its end is reported
    /// with [`Host::complete`] when the last byte was handed to the kernel. Only messages are
    /// collected.
    Collected,
    /// It has to wait: call [`ProviderDomain::queue_send`] with the operation that owns the
    /// payload.
    Queue,
}

/// The data path of one domain.
pub trait ProviderDomain: Send {
    /// Opens an endpoint, at the given address or at a fresh one, and returns the address. Its
    /// receive side is made of `receiving`.
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

    /// Opens a passive endpoint, at the given address or at a fresh one, and returns the address.
    /// It tells of those who want to be connected with [`Host::requested`].
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

    /// Opens an endpoint that is connected with one peer. What has become of it is told with
    /// [`Host::joined`], possibly before this returns.
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

    /// Ends the connection of an endpoint: what has been sent still leaves, what has not ends as
    /// cancelled.
    ///
    /// # Errors
    /// [`Error::NotSupported`] when it is not of that kind.
    fn shutdown(&mut self, host: &mut dyn Host, ep: EpId) -> Result<()> {
        let _ = (host, ep);
        Err(Error::NotSupported(
            "ending the connection of an endpoint that has none of its own",
        ))
    }

    /// Closes an endpoint. Operations that are still posted on it complete as cancelled.
    fn close_endpoint(&mut self, host: &mut dyn Host, ep: EpId);

    /// Sends, or writes to a peer's memory, at once if nothing stands in the way. Takes nothing
    /// from `payload` when it cannot. What ends only with the [word](SendSpec::level) of the peer
    /// is not ended at once, and so is to be queued.
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

    /// Names the operation of the message that the last call of [`ProviderDomain::send_now`] has
    /// [collected](SendNow::Collected); the message has `len` bytes. Called before anything else.
    fn collected(&mut self, host: &mut dyn Host, ep: EpId, op: OpKey, spec: &SendSpec, len: usize) {
        let _ = (ep, spec, len);
        host.complete(
            op,
            Outcome::failed(Error::NotSupported("collected messages")),
        );
    }

    /// Hands the collected messages of an endpoint to the kernel, as far as there is room, and
    /// completes those whose last byte was taken.
    fn write_collected(&mut self, host: &mut dyn Host, ep: EpId) {
        let _ = (host, ep);
    }

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

    /// Executes an atomic operation at once if nothing stands in the way. `operands` holds the
    /// operands and behind them the comparands, if the operation has some; `result` takes what was
    /// there before, if it is as long.
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

    /// A region of a peer's that has been accessed, to be reached without the provider from now on.
    /// `None` when it is not known yet.
    ///
    /// # Errors
    /// [`Error::NotSupported`] when an access needs the provider, or the peer wants to hear of it.
    fn reach(
        &mut self,
        host: &mut dyn Host,
        ep: EpId,
        peer: FiAddr,
        key: u64,
    ) -> Result<Option<Reached>> {
        let _ = (host, ep, peer, key);
        Err(Error::NotSupported("windows of a peer's memory"))
    }

    /// A way to the peers of this endpoint that does not need the domain's lock. Asked once, when
    /// it is opened.
    fn express(&self, ep: EpId) -> Option<Arc<dyn Express>> {
        let _ = ep;
        None
    }

    /// Where loans come from; nobody, where messages are always copied. Asked once, when the domain
    /// is opened.
    fn lender(&self) -> Option<Arc<dyn Lender>> {
        None
    }

    /// Takes back what peers have given back of what was lent to them.
    fn collect_loans(&mut self) {}

    /// Messages of at least this many bytes are copied once, straight from one process to the
    /// other, where that can be done. Said before endpoints are opened; `usize::MAX` for none, in
    /// either direction. Providers that have no such way take no notice.
    fn single_copy_from(&mut self, len: usize) {
        let _ = len;
    }

    /// How sockets are waited for. Said before endpoints are opened; providers without sockets take
    /// no notice.
    ///
    /// # Errors
    /// The kernel refuses what was asked for by name.
    fn socket_io(&mut self, io: SocketIo) -> Result<()> {
        let _ = io;
        Ok(())
    }

    /// What is set on sockets. Said before endpoints are opened; providers without sockets take no
    /// notice.
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

    /// The owner of a region that is served has given it back to its peers: whoever waits for it is
    /// to look again.
    fn region_free(&mut self, key: u64) {
        let _ = key;
    }

    /// Queues a send, or a one-sided operation, whose payload the operation `op` owns. Its end is
    /// reported with [`Host::complete`].
    ///
    /// # Errors
    /// What is known to be impossible now; nothing was queued.
    fn queue_send(
        &mut self,
        host: &mut dyn Host,
        ep: EpId,
        op: OpKey,
        spec: &SendSpec,
    ) -> Result<()>;

    /// Posts a receive. Its end is reported with [`Host::complete`], possibly before this returns.
    fn post_recv(&mut self, host: &mut dyn Host, ep: EpId, op: OpKey, spec: RecvSpec);

    /// Posts a receive that takes several messages: [`Host::split`] makes a receive of its own for
    /// each. It stays posted until the host says that it is used up.
    fn post_multi_recv(&mut self, host: &mut dyn Host, ep: EpId, op: OpKey, spec: RecvSpec) {
        let _ = (ep, spec);
        host.complete(
            op,
            Outcome::failed(Error::NotSupported("receives of several messages")),
        );
    }

    /// The receive side of an endpoint that has one of its own, for what needs nothing else of the
    /// provider: probes and claims. `None` when the endpoint is closed, or the provider has none of
    /// that kind. [`ProviderDomain::receive_side_changed`] must follow.
    fn receive_side(&mut self, ep: EpId) -> Option<&mut RxContext> {
        let _ = ep;
        None
    }

    /// Something was changed at the receive side of an endpoint: what was held back may go on, and
    /// peers may wait to hear of what was copied from them.
    fn receive_side_changed(&mut self, host: &mut dyn Host, ep: EpId) {
        let _ = (host, ep);
    }

    /// Joins a group: what is sent to it arrives at the endpoint from now on. A group that was
    /// joined before is joined once more. Returns what to [leave](ProviderDomain::leave) it with.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it is not the address of a group; [`Error::NotSupported`]; what the
    /// operating system refuses.
    fn join(&mut self, ep: EpId, group: &Address) -> Result<u32> {
        let _ = (ep, group);
        Err(Error::NotSupported("multicast groups"))
    }

    /// Leaves a group as often as it was joined.
    fn leave(&mut self, ep: EpId, group: u32) {
        let _ = (ep, group);
    }

    /// Takes an operation back that has not begun: true, and it will not complete. Otherwise it
    /// will.
    fn cancel(&mut self, host: &mut dyn Host, ep: EpId, op: OpKey) -> bool;

    /// Nobody waits for this receive any more: a message that is arriving in it is kept for the
    /// next one. The operation will not complete.
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

    /// Asks peers to ring the doorbell from now on, then looks once more: true when it is safe to
    /// sleep, false when there is news already (and the request is withdrawn).
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
