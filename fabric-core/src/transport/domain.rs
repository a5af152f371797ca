//! A domain of a transport: its endpoints, and what they send, receive and access.

use std::sync::Arc;

use crate::address::{Address, FiAddr};
use crate::buf::{AnyBuf, Payload};
use crate::completion::Outcome;
use crate::error::{Error, Result};
use crate::info::Info;
use crate::matching::PeerKey;
use crate::mr::{DirectRegion, Region};
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
    /// [`EngineContext::complete_send`] when the kernel has the message's last byte. Only messages are
    /// batched, not RMA operations.
    Batched,
    /// The send has to wait: call [`TransportDomain::queue_send`] with the operation that owns the
    /// payload.
    WouldBlock,
}

/// A domain of a transport. The engine calls it under the domain's lock.
pub trait TransportDomain<E: EngineContext>: Send {
    /// Opens an endpoint, at the given address or at one the transport chooses, and returns the
    /// address. The engine has opened the endpoint's [receive queue](EngineContext::with_rx).
    ///
    /// # Errors
    /// [`Error::AddressInUse`], or the error of the operating system.
    fn open_endpoint(
        &mut self,
        engine: &mut E,
        ep: EpId,
        info: &Info,
        at: Option<&Address>,
    ) -> Result<Address>;

    /// Returns the budget in bytes for the unexpected messages of an endpoint.
    fn unexpected_budget(&self) -> usize;

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
    ) -> Result<()> {
        let _ = (engine, ep, info, params);
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

    /// Closes an endpoint. Transmit operations that have not ended complete with
    /// [`Error::Canceled`]. The engine closes the receive queue afterwards.
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

    /// Sends messages to one peer inline, each [plain](TxOp::is_plain) but for [`TxOp::more`], until
    /// one cannot be sent so. Returns the number of messages sent; the engine posts the others one
    /// by one.
    fn try_send_plain(&mut self, ep: EpId, peer: FiAddr, messages: &[&[u8]]) -> usize {
        let _ = (ep, peer, messages);
        0
    }

    /// Receives a message inline if possible: copies the oldest whole message of a peer, or of the
    /// peer `from`, into `into`, and returns the length and the source. The message is untagged, has no CQ data, needs no ack, and has at
    /// most `room` bytes. The engine calls this method only while the endpoint's receive queue is
    /// [empty](crate::rx::RxQueue::is_empty). With `None` nothing was received, and the
    /// receive must be posted.
    fn try_recv(
        &mut self,
        ep: EpId,
        from: Option<FiAddr>,
        room: usize,
        into: &mut AnyBuf,
    ) -> Option<(usize, Option<FiAddr>)> {
        let _ = (ep, from, room, into);
        None
    }

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
    fn watch_loans(&mut self, engine: &mut E) {
        let _ = engine;
    }

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

    /// Notes that the engine has changed the receive queue of an endpoint: the queue may accept
    /// messages that it declined before, acks may be due to peers, and a posted receive may never
    /// get a message because the peer of a connected endpoint is gone. The transport can turn the
    /// reports of posted receives off
    /// ([`RxQueue::set_post_reports`](crate::rx::RxQueue::set_post_reports)).
    ///
    /// # Errors
    /// [`Error::Closed`] when the endpoint cannot receive, such as over sockets in a forked child
    /// process.
    fn on_rx_queue_changed(&mut self, engine: &mut E, ep: EpId) -> Result<()>;

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

    /// Cancels a transmit operation. Returns true if the operation had not begun: it will not
    /// complete. Returns false if it had begun: it will complete.
    fn cancel(&mut self, engine: &mut E, ep: EpId, op: OpKey) -> bool;

    /// Returns the address handle of a connected peer; `None` if the peer has none, or is not
    /// connected any more.
    fn source_of(&self, ep: EpId, peer: PeerKey) -> Option<FiAddr>;

    /// Notes that an address of the endpoint's address vector has a handle now. The transport
    /// assigns the handle to the messages of connected peers in a queue of the endpoint's own.
    fn address_inserted(&mut self, engine: &mut E, ep: EpId, addr: FiAddr, address: &Address);

    /// Notes that a handle of the endpoint's address vector is no longer valid.
    fn address_removed(&mut self, engine: &mut E, ep: EpId, addr: FiAddr);

    /// Makes a bounded amount of progress. Returns whether anything moved.
    fn progress(&mut self, engine: &mut E) -> bool;

    /// Handles a watched descriptor that is ready.
    fn ready(&mut self, engine: &mut E, token: u64);

    /// Arms the doorbells, then polls once more. Returns true when the engine may sleep, and false
    /// when there is work: the doorbells are then disarmed.
    fn arm(&mut self, engine: &mut E) -> bool;

    /// Disarms the doorbells, because a task polls again.
    fn disarm(&mut self);

    /// Returns the counters that the transport keeps for an endpoint. The engine adds those of the
    /// receive queue.
    fn stats(&self, ep: EpId) -> TransportStats {
        let _ = ep;
        TransportStats::default()
    }

    /// Describes the state of the domain in a few words, for `Debug`.
    fn describe(&self) -> String;
}
