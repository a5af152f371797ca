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

/// Outcome of an attempt to send *inline*: within the call that posts the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrySend {
    /// The message is sent; the payload is no longer needed.
    Done,
    /// The message is *batched*: the transport has copied the payload, and hands it to the kernel
    /// later, with other messages in one system call. The engine then calls
    /// [`TransportDomain::set_batched_op`], and the operation completes with
    /// [`EngineContext::complete`] when the kernel has the message's last byte. Only messages are
    /// batched, not RMA operations.
    Batched,
    /// The send has to wait: call [`TransportDomain::queue_send`] with the operation that owns the
    /// payload.
    WouldBlock,
}

/// The data path of one domain.
pub trait TransportDomain<E: EngineContext>: Send {
    /// Opens an endpoint, at the given address or at one the transport chooses, and returns the
    /// address. `receiving` says whether the endpoint has a receive queue of its own.
    ///
    /// # Errors
    /// [`Error::AddressInUse`], or the error of the operating system.
    fn open_endpoint(
        &mut self,
        ep: EpId,
        info: &Info,
        at: Option<&Address>,
        receiving: RxSource<'_>,
    ) -> Result<Address>;

    /// Opens a passive endpoint, at the given address or at one the transport chooses, and returns
    /// the address. The transport reports requests with [`EngineContext::on_connreq`].
    ///
    /// # Errors
    /// [`Error::AddressInUse`], or the error of the operating system.
    fn listen(&mut self, ep: EpId, info: &Info, at: Option<&Address>) -> Result<Address> {
        let _ = (ep, info, at);
        Err(Error::NotSupported("passive endpoints"))
    }

    /// Takes the oldest connection request of a passive endpoint.
    fn take_connreq(&mut self, engine: &mut E, ep: EpId) -> Option<ConnReq> {
        let _ = (engine, ep);
        None
    }

    /// Opens an `FI_EP_MSG` endpoint. The transport reports the result with
    /// [`EngineContext::on_connected`], possibly before this method returns.
    ///
    /// # Errors
    /// Failures known at once; all resources are released, and the request of
    /// [`ConnectMode::Accept`](super::ConnectMode::Accept) has been rejected.
    fn open_connected(
        &mut self,
        engine: &mut E,
        ep: EpId,
        info: &Info,
        params: ConnectParams<'_>,
        receiving: RxSource<'_>,
    ) -> Result<()> {
        let _ = (engine, ep, info, params, receiving);
        Err(Error::NotSupported("connected endpoints"))
    }

    /// Shuts down the connection of an endpoint: bytes of completed sends are still transmitted,
    /// and queued operations complete with [`Error::Canceled`].
    ///
    /// # Errors
    /// [`Error::NotSupported`] when the endpoint is not of type `FI_EP_MSG`.
    fn shutdown(&mut self, engine: &mut E, ep: EpId) -> Result<()> {
        let _ = (engine, ep);
        Err(Error::NotSupported(
            "shutdown of endpoints other than FI_EP_MSG",
        ))
    }

    /// Closes an endpoint. Operations that are still posted complete with [`Error::Canceled`].
    fn close_endpoint(&mut self, engine: &mut E, ep: EpId);

    /// Sends a message, or writes to a peer's memory, inline if possible. With
    /// [`TrySend::WouldBlock`] nothing was sent. An operation whose [level](TxOp::level) needs the
    /// peer's ack never completes inline, and so must be queued.
    ///
    /// # Errors
    /// Failures known at once; the operation does not take effect.
    fn try_send(
        &mut self,
        engine: &mut E,
        ep: EpId,
        tx_op: &TxOp,
        payload: Payload<'_>,
    ) -> Result<TrySend>;

    /// Sets the operation of the message that the last call of [`TransportDomain::try_send`] has
    /// [batched](TrySend::Batched); the message has `len` bytes. The engine calls it before any
    /// other method.
    fn set_batched_op(&mut self, engine: &mut E, ep: EpId, op: OpKey, tx_op: &TxOp, len: usize) {
        let _ = (ep, tx_op, len);
        engine.complete(op, Outcome::failed(Error::NotSupported("batched messages")));
    }

    /// Hands the batched messages of an endpoint to the kernel as far as the socket buffers have
    /// room, and completes the messages whose last byte the kernel accepted.
    fn write_batched(&mut self, engine: &mut E, ep: EpId) {
        let _ = (engine, ep);
    }

    /// Ends a batch of sends with [`TxOp::more`]: notifies the receivers.
    ///
    /// # Errors
    /// [`Error::PeerGone`] when a receiver has closed before it accepted all messages of the batch.
    fn flush(&mut self, engine: &mut E, ep: EpId) -> Result<()> {
        let _ = (engine, ep);
        Ok(())
    }

    /// Reads a peer's memory inline if possible.
    ///
    /// # Errors
    /// Failures known at once, such as a wrong key, right or range; nothing was read.
    fn try_read(
        &mut self,
        engine: &mut E,
        ep: EpId,
        tx_op: &TxOp,
        into: &mut AnyBuf,
    ) -> Result<TrySend> {
        let _ = (engine, ep, tx_op, into);
        Err(Error::NotSupported("reads of a peer's memory"))
    }

    /// Executes an atomic operation inline if possible. `operands` holds the operands, followed by
    /// the comparands of a compare operation; `result` receives the previous values of a fetching
    /// one.
    ///
    /// # Errors
    /// As [`TransportDomain::try_read`]; nothing was changed.
    fn try_atomic(
        &mut self,
        engine: &mut E,
        ep: EpId,
        tx_op: &TxOp,
        operands: &[u8],
        result: &mut [u8],
    ) -> Result<TrySend> {
        let _ = (engine, ep, tx_op, operands, result);
        Err(Error::NotSupported("atomic operations on a peer's memory"))
    }

    /// Returns a region of a peer that this process can access without the transport. `None` when
    /// the region has not been accessed yet.
    ///
    /// # Errors
    /// [`Error::NotSupported`] when accesses need the transport, or the peer wants events for them.
    fn direct_region(
        &mut self,
        engine: &mut E,
        ep: EpId,
        peer: FiAddr,
        key: u64,
    ) -> Result<Option<DirectRegion>> {
        let _ = (engine, ep, peer, key);
        Err(Error::NotSupported(
            "direct access to memory regions of peers",
        ))
    }

    /// Returns a path to the peers of this endpoint that does not need the domain's lock. Called
    /// once, when the endpoint is opened.
    fn fast_path(&self, ep: EpId) -> Option<Arc<dyn FastPath>> {
        let _ = ep;
        None
    }

    /// Returns the allocator of loans; `None` where messages are always copied. Called once, when
    /// the domain is opened.
    fn loan_allocator(&self) -> Option<Arc<dyn LoanAllocator>> {
        None
    }

    /// Collects loans that peers have returned.
    fn collect_loans(&mut self) {}

    /// Watches the loans that peers hold, while a task [waits](LoanAllocator::set_awaited) for
    /// memory of loans: a peer rings the doorbell when it returns a loan.
    fn watch_loans(&mut self) {}

    /// Sets the minimum length in bytes of messages that are copied once, directly between the
    /// processes, where possible; `usize::MAX` turns single copy off in both directions. Called
    /// before endpoints are opened; transports without single copy ignore it.
    fn set_single_copy_threshold(&mut self, len: usize) {
        let _ = len;
    }

    /// Sets how sockets are waited for. Called before endpoints are opened; transports without
    /// sockets ignore it.
    ///
    /// # Errors
    /// The kernel does not support an explicitly requested mode.
    fn set_socket_io(&mut self, io: SocketIo) -> Result<()> {
        let _ = io;
        Ok(())
    }

    /// Sets the socket options. Called before endpoints are opened; transports without sockets only
    /// check them.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::TooLong`]; an option that the kernel does not support is named.
    fn set_socket_options(&mut self, options: &SocketOptions) -> Result<()> {
        options.check()
    }

    /// Notes that a region was registered with this key, or that its attributes changed.
    fn region_changed(&mut self, key: u64, region: &Region) {
        let _ = (key, region);
    }

    /// Notes that a key is no longer valid.
    fn region_closed(&mut self, key: u64) {
        let _ = key;
    }

    /// Notes that the program has unlocked a registered buffer with this key: accesses of peers that
    /// wait for the lock are to be retried.
    fn region_unlocked(&mut self, key: u64) {
        let _ = key;
    }

    /// Queues a send or an RMA operation whose payload the operation `op` owns. The operation
    /// completes with [`EngineContext::complete`].
    ///
    /// # Errors
    /// Failures known at once; nothing was queued.
    fn queue_send(&mut self, engine: &mut E, ep: EpId, op: OpKey, tx_op: &TxOp) -> Result<()>;

    /// Posts a receive. The receive completes with [`EngineContext::complete`], possibly before
    /// this method returns.
    fn post_recv(&mut self, engine: &mut E, ep: EpId, op: OpKey, spec: RecvSpec);

    /// Posts a multi-receive: [`EngineContext::split_multi_recv`] splits off a receive for each
    /// message. The multi-receive stays posted until a split returns
    /// [`Last`](super::MultiRecvSplit::Last) or [`Exhausted`](super::MultiRecvSplit::Exhausted).
    fn post_multi_recv(&mut self, engine: &mut E, ep: EpId, op: OpKey, spec: RecvSpec) {
        let _ = (ep, spec);
        engine.complete(
            op,
            Outcome::failed(Error::NotSupported("multi-receives (FI_MULTI_RECV)")),
        );
    }

    /// Returns the endpoint's own receive queue, for probes and claims. `None` when the endpoint is
    /// closed, or the transport has no such queue. The caller calls
    /// [`TransportDomain::on_rx_queue_changed`] afterwards.
    fn rx_queue(&mut self, ep: EpId) -> Option<&mut RxQueue> {
        let _ = ep;
        None
    }

    /// Notes that the receive queue of an endpoint was changed: the queue may accept messages that
    /// it declined before, and acks may be due to peers.
    fn on_rx_queue_changed(&mut self, engine: &mut E, ep: EpId) {
        let _ = (engine, ep);
    }

    /// Joins a multicast group: messages to it arrive at the endpoint from now on. Joins of the
    /// same group are counted. Returns the id for [`leave_group`](TransportDomain::leave_group).
    ///
    /// # Errors
    /// [`Error::Invalid`] when the address is not a multicast address; [`Error::NotSupported`]; the
    /// error of the operating system.
    fn join_group(&mut self, ep: EpId, group: &Address) -> Result<u32> {
        let _ = (ep, group);
        Err(Error::NotSupported("multicast groups"))
    }

    /// Leaves the group with this id; the membership ends after as many calls as joins.
    fn leave_group(&mut self, ep: EpId, group: u32) {
        let _ = (ep, group);
    }

    /// Cancels an operation. Returns true if the operation had not begun: it will not complete.
    /// Returns false if it had begun: it will complete.
    fn cancel(&mut self, engine: &mut E, ep: EpId, op: OpKey) -> bool;

    /// Detaches a receive that no task awaits any more: a message that is arriving in the receive
    /// is kept for the next one. The detached receive will not complete.
    fn detach_recv(&mut self, engine: &mut E, ep: EpId, op: OpKey);

    /// Requeues a message that was received but not consumed at its old place among the unexpected
    /// messages.
    fn requeue_message(&mut self, engine: &mut E, ep: EpId, envelope: Envelope, bytes: PooledBuf);

    /// Notes that an address of the endpoint's address vector has a handle now.
    fn address_inserted(&mut self, engine: &mut E, ep: EpId, addr: FiAddr, address: &Address);

    /// Notes that a handle of the endpoint's address vector is no longer valid.
    fn address_removed(&mut self, engine: &mut E, ep: EpId, addr: FiAddr);

    /// Returns whether a message from this source is buffered at the endpoint.
    fn holds_messages_from(&self, ep: EpId, source: FiAddr) -> bool;

    /// Makes a bounded amount of progress. Returns whether anything moved.
    fn progress(&mut self, engine: &mut E) -> bool;

    /// Handles a watched descriptor that is ready.
    fn ready(&mut self, engine: &mut E, token: u64);

    /// Arms the doorbells, then polls once more. Returns true when the engine may sleep, and false
    /// when there is work: the doorbells are then disarmed.
    fn arm(&mut self) -> bool;

    /// Disarms the doorbells, because a task polls again.
    fn disarm(&mut self);

    /// Returns the counters that the transport keeps for an endpoint.
    fn stats(&self, ep: EpId) -> TransportStats {
        let _ = ep;
        TransportStats::default()
    }

    /// Describes the state of the domain in a few words, for `Debug`.
    fn describe(&self) -> String;
}
