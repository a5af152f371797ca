//! The data path of a domain.

use std::sync::Arc;

use crate::address::{Address, FiAddr};
use crate::buf::{AnyBuf, Payload, PooledBuf};
use crate::completion::Outcome;
use crate::error::{Error, Result};
use crate::info::Info;
use crate::matching::{Envelope, RecvSpec};
use crate::mr::{DirectRegion, Region};
use crate::rx::{RxQueue, RxSource};
use crate::sockets::SocketOptions;
use crate::stats::TransportStats;

use super::{
    ConnReq, ConnectParams, EngineContext, EpId, FastPath, LoanAllocator, OpKey, SocketIo, TxOp,
};

/// What became of an attempt to send at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrySend {
    /// The peer's endpoint has the message; the payload is no longer needed.
    Done,
    /// The provider has copied the payload, and sends it later together with other messages. The
    /// operation has not ended: [`TransportDomain::collected`] names it, and its end is reported
    /// with [`Host::complete`] when the last byte was handed to the kernel. Only messages are
    /// collected.
    Collected,
    /// It has to wait: call [`TransportDomain::queue_send`] with the operation that owns the
    /// payload.
    WouldBlock,
}

/// The data path of one domain.
pub trait TransportDomain: Send {
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
        receiving: RxSource<'_>,
    ) -> Result<Address>;

    /// Opens a passive endpoint, at the given address or at a fresh one, and returns the address.
    /// It tells of those who want to be connected with [`Host::on_connreq`].
    ///
    /// # Errors
    /// [`Error::AddressInUse`], or what the operating system refuses.
    fn listen(&mut self, ep: EpId, info: &Info, at: Option<&Address>) -> Result<Address> {
        let _ = (ep, info, at);
        Err(Error::NotSupported("passive endpoints"))
    }

    /// The request that has waited longest at a passive endpoint.
    fn take_connreq(&mut self, host: &mut dyn EngineContext, ep: EpId) -> Option<ConnReq> {
        let _ = (host, ep);
        None
    }

    /// Opens an endpoint that is connected with one peer. What has become of it is told with
    /// [`Host::on_connected`], possibly before this returns.
    ///
    /// # Errors
    /// What is known to be impossible now; nothing is left behind, and a request has been refused.
    fn open_connected(
        &mut self,
        host: &mut dyn EngineContext,
        ep: EpId,
        info: &Info,
        meeting: ConnectParams<'_>,
        receiving: RxSource<'_>,
    ) -> Result<()> {
        let _ = (host, ep, info, meeting, receiving);
        Err(Error::NotSupported("connected endpoints"))
    }

    /// Ends the connection of an endpoint: what has been sent still leaves, what has not ends as
    /// cancelled.
    ///
    /// # Errors
    /// [`Error::NotSupported`] when it is not of that kind.
    fn shutdown(&mut self, host: &mut dyn EngineContext, ep: EpId) -> Result<()> {
        let _ = (host, ep);
        Err(Error::NotSupported(
            "ending the connection of an endpoint that has none of its own",
        ))
    }

    /// Closes an endpoint. Operations that are still posted on it complete as cancelled.
    fn close_endpoint(&mut self, host: &mut dyn EngineContext, ep: EpId);

    /// Sends, or writes to a peer's memory, at once if nothing stands in the way. Takes nothing
    /// from `payload` when it cannot. What ends only with the [word](TxOp::level) of the peer
    /// is not ended at once, and so is to be queued.
    ///
    /// # Errors
    /// What is known to be impossible now; nothing was sent.
    fn try_send(
        &mut self,
        host: &mut dyn EngineContext,
        ep: EpId,
        spec: &TxOp,
        payload: Payload<'_>,
    ) -> Result<TrySend>;

    /// Names the operation of the message that the last call of [`TransportDomain::try_send`] has
    /// [collected](TrySend::Collected); the message has `len` bytes. Called before anything else.
    fn collected(
        &mut self,
        host: &mut dyn EngineContext,
        ep: EpId,
        op: OpKey,
        spec: &TxOp,
        len: usize,
    ) {
        let _ = (ep, spec, len);
        host.complete(
            op,
            Outcome::failed(Error::NotSupported("collected messages")),
        );
    }

    /// Hands the collected messages of an endpoint to the kernel, as far as there is room, and
    /// completes those whose last byte was taken.
    fn write_collected(&mut self, host: &mut dyn EngineContext, ep: EpId) {
        let _ = (host, ep);
    }

    /// What was sent at once with `more` is all there was: wakes those it was for.
    ///
    /// # Errors
    /// [`Error::PeerGone`] when one of them has closed meanwhile, and has not taken everything.
    fn flush(&mut self, host: &mut dyn EngineContext, ep: EpId) -> Result<()> {
        let _ = (host, ep);
        Ok(())
    }

    /// Reads a peer's memory at once if nothing stands in the way.
    ///
    /// # Errors
    /// What is known to be impossible now: a key, a right or a range; nothing was read.
    fn try_read(
        &mut self,
        host: &mut dyn EngineContext,
        ep: EpId,
        spec: &TxOp,
        into: &mut AnyBuf,
    ) -> Result<TrySend> {
        let _ = (host, ep, spec, into);
        Err(Error::NotSupported("reads of a peer's memory"))
    }

    /// Executes an atomic operation at once if nothing stands in the way. `operands` holds the
    /// operands and behind them the comparands, if the operation has some; `result` takes what was
    /// there before, if it is as long.
    ///
    /// # Errors
    /// As [`TransportDomain::try_read`]; nothing was changed.
    fn try_atomic(
        &mut self,
        host: &mut dyn EngineContext,
        ep: EpId,
        spec: &TxOp,
        operands: &[u8],
        result: &mut [u8],
    ) -> Result<TrySend> {
        let _ = (host, ep, spec, operands, result);
        Err(Error::NotSupported("atomic operations on a peer's memory"))
    }

    /// A region of a peer's that has been accessed, to be reached without the provider from now on.
    /// `None` when it is not known yet.
    ///
    /// # Errors
    /// [`Error::NotSupported`] when an access needs the provider, or the peer wants to hear of it.
    fn direct_region(
        &mut self,
        host: &mut dyn EngineContext,
        ep: EpId,
        peer: FiAddr,
        key: u64,
    ) -> Result<Option<DirectRegion>> {
        let _ = (host, ep, peer, key);
        Err(Error::NotSupported("windows of a peer's memory"))
    }

    /// A way to the peers of this endpoint that does not need the domain's lock. Asked once, when
    /// it is opened.
    fn fast_path(&self, ep: EpId) -> Option<Arc<dyn FastPath>> {
        let _ = ep;
        None
    }

    /// Where loans come from; nobody, where messages are always copied. Asked once, when the domain
    /// is opened.
    fn loan_allocator(&self) -> Option<Arc<dyn LoanAllocator>> {
        None
    }

    /// Takes back what peers have given back of what was lent to them.
    fn collect_loans(&mut self) {}

    /// Messages of at least this many bytes are copied once, straight from one process to the
    /// other, where that can be done. Said before endpoints are opened; `usize::MAX` for none, in
    /// either direction. Providers that have no such way take no notice.
    fn set_single_copy_threshold(&mut self, len: usize) {
        let _ = len;
    }

    /// How sockets are waited for. Said before endpoints are opened; providers without sockets take
    /// no notice.
    ///
    /// # Errors
    /// The kernel refuses what was asked for by name.
    fn set_socket_io(&mut self, io: SocketIo) -> Result<()> {
        let _ = io;
        Ok(())
    }

    /// What is set on sockets. Said before endpoints are opened; providers without sockets take no
    /// notice.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::TooLong`]; what the kernel does not have is refused by name.
    fn set_socket_options(&mut self, options: &SocketOptions) -> Result<()> {
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
    fn region_released(&mut self, key: u64) {
        let _ = key;
    }

    /// Queues a send, or a one-sided operation, whose payload the operation `op` owns. Its end is
    /// reported with [`Host::complete`].
    ///
    /// # Errors
    /// What is known to be impossible now; nothing was queued.
    fn queue_send(
        &mut self,
        host: &mut dyn EngineContext,
        ep: EpId,
        op: OpKey,
        spec: &TxOp,
    ) -> Result<()>;

    /// Posts a receive. Its end is reported with [`Host::complete`], possibly before this returns.
    fn post_recv(&mut self, host: &mut dyn EngineContext, ep: EpId, op: OpKey, spec: RecvSpec);

    /// Posts a receive that takes several messages: [`Host::split_multi_recv`] makes a receive of its own for
    /// each. It stays posted until the host says that it is used up.
    fn post_multi_recv(
        &mut self,
        host: &mut dyn EngineContext,
        ep: EpId,
        op: OpKey,
        spec: RecvSpec,
    ) {
        let _ = (ep, spec);
        host.complete(
            op,
            Outcome::failed(Error::NotSupported("receives of several messages")),
        );
    }

    /// The receive side of an endpoint that has one of its own, for what needs nothing else of the
    /// provider: probes and claims. `None` when the endpoint is closed, or the provider has none of
    /// that kind. [`TransportDomain::on_rx_queue_changed`] must follow.
    fn rx_queue(&mut self, ep: EpId) -> Option<&mut RxQueue> {
        let _ = ep;
        None
    }

    /// Something was changed at the receive side of an endpoint: what was held back may go on, and
    /// peers may wait to hear of what was copied from them.
    fn on_rx_queue_changed(&mut self, host: &mut dyn EngineContext, ep: EpId) {
        let _ = (host, ep);
    }

    /// Joins a group: what is sent to it arrives at the endpoint from now on. A group that was
    /// joined before is joined once more. Returns what to [leave](ProviderDomain::leave) it with.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it is not the address of a group; [`Error::NotSupported`]; what the
    /// operating system refuses.
    fn join_group(&mut self, ep: EpId, group: &Address) -> Result<u32> {
        let _ = (ep, group);
        Err(Error::NotSupported("multicast groups"))
    }

    /// Leaves a group as often as it was joined.
    fn leave_group(&mut self, ep: EpId, group: u32) {
        let _ = (ep, group);
    }

    /// Takes an operation back that has not begun: true, and it will not complete. Otherwise it
    /// will.
    fn cancel(&mut self, host: &mut dyn EngineContext, ep: EpId, op: OpKey) -> bool;

    /// Nobody waits for this receive any more: a message that is arriving in it is kept for the
    /// next one. The operation will not complete.
    fn detach_recv(&mut self, host: &mut dyn EngineContext, ep: EpId, op: OpKey);

    /// A message was received and not looked at: it takes its old place among the unexpected ones.
    fn requeue_message(
        &mut self,
        host: &mut dyn EngineContext,
        ep: EpId,
        envelope: Envelope,
        bytes: PooledBuf,
    );

    /// An address of the endpoint's vector now has a number.
    fn address_inserted(
        &mut self,
        host: &mut dyn EngineContext,
        ep: EpId,
        addr: FiAddr,
        address: &Address,
    );

    /// A number of the endpoint's vector is no longer valid.
    fn address_removed(&mut self, host: &mut dyn EngineContext, ep: EpId, addr: FiAddr);

    /// Whether a message with this source waits at the endpoint.
    fn holds_messages_from(&self, ep: EpId, source: FiAddr) -> bool;

    /// Moves what can be moved, within a bound. Returns whether anything moved.
    fn progress(&mut self, host: &mut dyn EngineContext) -> bool;

    /// A watched descriptor is ready.
    fn ready(&mut self, host: &mut dyn EngineContext, token: u64);

    /// Asks peers to ring the doorbell from now on, then looks once more: true when it is safe to
    /// sleep, false when there is news already (and the request is withdrawn).
    fn arm(&mut self) -> bool;

    /// Somebody polls again; doorbells are not needed.
    fn disarm(&mut self);

    /// What the provider knows of an endpoint's doings.
    fn stats(&self, ep: EpId) -> TransportStats {
        let _ = ep;
        TransportStats::default()
    }

    /// A few words on the state of the domain, for `Debug`.
    fn describe(&self) -> String;
}
