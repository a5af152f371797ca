//! An endpoint of a transport: what it sends, receives and accesses.

use std::sync::Arc;

use crate::address::{Address, FiAddr};
use crate::buf::{AnyBuf, Payload};
use crate::completion::{OpKind, Outcome, Transfer};
use crate::error::{Error, Result};
use crate::event::DownReason;
use crate::extension::ConnectionInfo;
use crate::matching::{PeerKey, RecvSpec};
use crate::mr::{DirectRegion, RmaIov};
use crate::stats::EndpointStats;

use super::{BlockableFastPath, ConnReq, EndpointContext, EngineContext, OpKey, TxOp, WaitToken};

/// Outcome of an attempt to send *inline*: within the call that posts the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrySend {
    /// The message is sent; the payload is no longer needed.
    Done,
    /// The message is *batched*: the transport has copied the payload, and hands it to the kernel
    /// later, with other messages in one system call. The engine then calls
    /// [`TransportEndpoint::set_batched_op`], and the operation completes with
    /// [`EngineContext::complete_send`] when the kernel has the message's last byte. Only messages
    /// are batched, not RMA operations.
    Batched,
    /// The send has to wait: call [`TransportEndpoint::queue_send`] with the operation that owns
    /// the payload.
    WouldBlock,
}

/// Which connections the engine ends, and why.
#[derive(Clone, Copy, Debug)]
pub enum Disconnect<'a> {
    /// All connections with the peer of this name, because the program disconnects it.
    Program(&'a Address),
    /// The connection from which the messages of this sender come, because one of them makes no
    /// progress. A transport does nothing while it delays the message itself.
    Stalled(PeerKey),
}

impl Disconnect<'_> {
    /// Returns the reason that events report.
    #[must_use]
    pub fn reason(self) -> DownReason {
        match self {
            Self::Program(_) => DownReason::Disconnected,
            Self::Stalled(_) => DownReason::Stalled,
        }
    }
}

/// An endpoint of a transport, or a passive endpoint. The engine owns the endpoint and calls it
/// under the domain's lock.
///
/// Most calls post, cancel or flush transmit operations, tell the endpoint about a change (of its
/// receive queue, or of an address handle), or make progress; others receive inline or return what
/// the endpoint has. The methods with a default implementation are for transports that offer the
/// feature; a passive endpoint needs none of them.
pub trait TransportEndpoint<E: EngineContext>: Send {
    /// Sends a message, or writes to a peer's memory, inline if possible. With
    /// [`TrySend::WouldBlock`] nothing was sent. An operation whose [level](TxOp::level) needs the
    /// peer's ack never completes inline, and so must be queued.
    ///
    /// # Errors
    /// Failures known at once; the operation does not take effect.
    fn try_send(
        &mut self,
        _ctx: &mut EndpointContext<'_, E>,
        _tx_op: &TxOp,
        _payload: Payload<'_>,
    ) -> Result<TrySend> {
        Err(Error::NotSupported("sends from a passive endpoint"))
    }

    /// Sends messages to one peer inline, each [plain](TxOp::is_plain) but for [`TxOp::more`],
    /// until one cannot be sent so. Returns the number of messages sent; the engine posts the
    /// others one by one.
    fn try_send_plain(&mut self, _peer: FiAddr, _messages: &[&[u8]]) -> usize {
        0
    }

    /// Writes to the memory of one peer inline, each write without CQ data and with
    /// [`TxOp::more`], until one cannot be executed so. Returns the number of writes executed; the
    /// engine posts the others one by one.
    fn try_write_plain(&mut self, _peer: FiAddr, _writes: &[(RmaIov, &[u8])]) -> usize {
        0
    }

    /// Receives a message inline if possible: copies the oldest whole message of a peer, or of the
    /// peer `from`, into `into`, and returns the length and the source. The message is untagged,
    /// has no CQ data, needs no ack, and has at most `max_len` bytes, which fit into `into`. The
    /// engine calls this method only while the endpoint's receive queue has nothing else for the
    /// message. With `None` nothing was received; a pass may receive the message.
    fn try_recv(
        &mut self,
        from: Option<FiAddr>,
        max_len: usize,
        into: &mut AnyBuf,
    ) -> Option<(usize, Option<FiAddr>)> {
        let _ = (from, max_len, into);
        None
    }

    /// As [`try_recv`](Self::try_recv), of the oldest message if it is tagged and the receive of
    /// this `spec` accepts it. The message may have CQ data.
    fn try_recv_tagged(
        &mut self,
        spec: &RecvSpec,
        max_len: usize,
        into: &mut AnyBuf,
    ) -> Option<Transfer> {
        let _ = (spec, max_len, into);
        None
    }

    /// Sets the operation of the message that the last call of [`TransportEndpoint::try_send`] has
    /// [batched](TrySend::Batched); the message has `len` bytes. The engine calls it before any
    /// other method.
    fn set_batched_op(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        op: OpKey,
        tx_op: &TxOp,
        len: usize,
    ) {
        let _ = (tx_op, len);
        ctx.complete(op, Outcome::failed(Error::NotSupported("batched messages")));
    }

    /// Hands the batched messages to the kernel as far as the socket buffers have
    /// room, and completes the messages whose last byte the kernel accepted.
    fn write_batched(&mut self, _ctx: &mut EndpointContext<'_, E>) {}

    /// Ends a batch of sends with [`TxOp::more`]: notifies the receivers.
    ///
    /// # Errors
    /// [`Error::PeerGone`] when a receiver has closed before it accepted all messages of the batch.
    fn flush(&mut self, _ctx: &mut EndpointContext<'_, E>) -> Result<()> {
        Ok(())
    }

    /// Reads a peer's memory inline if possible. By default the read has to be queued.
    ///
    /// # Errors
    /// Failures known at once, such as a wrong key, right or range; nothing was read.
    fn try_read(
        &mut self,
        _ctx: &mut EndpointContext<'_, E>,
        _tx_op: &TxOp,
        _into: &mut AnyBuf,
    ) -> Result<TrySend> {
        Ok(TrySend::WouldBlock)
    }

    /// Executes an atomic operation inline if possible. `operands` holds the operands, followed by
    /// the comparands of a compare operation; `result` receives the previous values of a fetching
    /// one. By default the operation has to be queued.
    ///
    /// # Errors
    /// As [`TransportEndpoint::try_read`]; nothing was changed.
    fn try_atomic(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        tx_op: &TxOp,
        operands: &[u8],
        result: &mut [u8],
    ) -> Result<TrySend> {
        let _ = (ctx, tx_op, operands, result);
        Ok(TrySend::WouldBlock)
    }

    /// Returns a region of a peer that this process can access without the transport. `None` when
    /// the region has not been accessed yet.
    ///
    /// # Errors
    /// [`Error::NotSupported`] when accesses need the transport, or the peer wants events for them.
    fn direct_region(
        &mut self,
        _ctx: &mut EndpointContext<'_, E>,
        _peer: FiAddr,
        _key: u64,
    ) -> Result<Option<DirectRegion>> {
        Err(Error::NotSupported(
            "direct access to memory regions of peers",
        ))
    }

    /// Queues a send or an RMA operation whose payload the operation `op` owns. The operation
    /// completes with [`RxEngine::complete`](super::RxEngine::complete).
    ///
    /// # Errors
    /// Failures known at once; nothing was queued.
    fn queue_send(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        op: OpKey,
        tx_op: &TxOp,
    ) -> Result<()> {
        let _ = (ctx, op);
        Err(Error::NotSupported(match tx_op.kind {
            OpKind::Read => "reads of a peer's memory",
            OpKind::Atomic | OpKind::FetchAtomic => "atomic operations on a peer's memory",
            _ => "sends from a passive endpoint",
        }))
    }

    /// Cancels a transmit operation on this peer. Returns true if the operation had not begun: it
    /// will not complete. Returns false if it had begun: it will complete.
    fn cancel(&mut self, _ctx: &mut EndpointContext<'_, E>, _op: OpKey, _peer: FiAddr) -> bool {
        false
    }

    /// Appends the queued transmit operations on this peer that have not begun, which
    /// [`cancel`](Self::cancel) cancels. Takes time for these operations only.
    fn queued_ops(&self, _ctx: &EndpointContext<'_, E>, _peer: FiAddr, _into: &mut Vec<OpKey>) {}

    /// Notes that the engine has changed the receive queue of the endpoint: the queue may accept
    /// messages that it declined before, acks may be due to peers, and a posted receive may never
    /// get a message because the peer of a connected endpoint is gone. The transport can turn the
    /// reports of posted receives off
    /// ([`EndpointContext::set_post_reports`](super::EndpointContext::set_post_reports)).
    fn on_rx_queue_changed(&mut self, _ctx: &mut EndpointContext<'_, E>) {}

    /// Delivers the message of this peer that the transport holds. The receive queue accepts
    /// the message now.
    fn receive_held(&mut self, _ctx: &mut EndpointContext<'_, E>, _peer: PeerKey) {}

    /// Returns the address handle of a connected peer; `None` if the peer has none, or is not
    /// connected any more.
    fn source_of(&self, _peer: PeerKey) -> Option<FiAddr> {
        None
    }

    /// Notes that an address of the endpoint's address vector has a handle now. The transport
    /// assigns the handle to the messages of connected peers in a queue of the endpoint's own.
    fn address_inserted(
        &mut self,
        _ctx: &mut EndpointContext<'_, E>,
        _addr: FiAddr,
        _address: &Address,
    ) {
    }

    /// Notes that a handle of the endpoint's address vector is no longer valid.
    fn address_removed(&mut self, _ctx: &mut EndpointContext<'_, E>, _addr: FiAddr) {}

    /// Returns a path to the peers of this endpoint that does not need the domain's lock. Called
    /// once, when the endpoint is opened.
    fn fast_path(&self) -> Option<Arc<dyn BlockableFastPath>> {
        None
    }

    /// Ends connections with a peer, in both directions. Messages of the peer
    /// that have not arrived whole are lost, and queued operations for the peer fail with
    /// [`Error::PeerGone`]. Returns whether there was a connection. A transport without connections
    /// does nothing.
    fn disconnect(
        &mut self,
        _ctx: &mut EndpointContext<'_, E>,
        _disconnect: Disconnect<'_>,
    ) -> bool {
        false
    }

    /// Makes a bounded amount of progress. Returns the number of connections on which something
    /// moved, so that the engine can end a poll in which much has moved; 0 if nothing moved. A
    /// connection moves a bounded number of bytes in a pass. `active_endpoints` is the number of
    /// endpoints that each pass polls.
    fn progress(&mut self, ctx: &mut EndpointContext<'_, E>, active_endpoints: usize) -> u32;

    /// Returns whether passes may skip this endpoint until one of its descriptors is ready or the
    /// program uses the endpoint. The engine asks only if more endpoints are active than the
    /// transport [keeps active](super::TransportDomain::always_active).
    fn is_idle(&mut self, _ctx: &mut EndpointContext<'_, E>) -> bool {
        false
    }

    /// Notes that passes skip this endpoint from now on.
    fn on_idle(&mut self, _ctx: &mut EndpointContext<'_, E>) {}

    /// Handles a ready descriptor, which the endpoint watches with this token. A pass follows when
    /// all ready descriptors were handled, so this method need not move messages.
    fn ready(&mut self, ctx: &mut EndpointContext<'_, E>, token: WaitToken);

    /// Arms the doorbells, then polls once more. Returns true when the engine may sleep, and false
    /// when there is work: the engine then [disarms](Self::disarm) the active endpoints.
    fn arm(&mut self, ctx: &mut EndpointContext<'_, E>) -> bool;

    /// Disarms the doorbells, because a task polls again.
    fn disarm(&mut self) {}

    /// Closes the endpoint. Transmit operations that have not ended complete with
    /// [`Error::Canceled`]. The engine then closes the receive queue and drops the endpoint.
    fn close(&mut self, ctx: &mut EndpointContext<'_, E>);

    /// Adds the counters that the transport keeps for the endpoint. Of sends, writes and atomics it
    /// counts only those of its [fast path](super::FastPath), which the engine does not see.
    fn add_stats(&self, _stats: &mut EndpointStats) {}

    /// Returns what the transport knows about its connections with a peer; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::NotSupported`]; [`Error::StaleAddress`]; the error of a system call.
    fn connection_info(
        &mut self,
        _ctx: &EndpointContext<'_, E>,
        _peer: FiAddr,
    ) -> Result<Option<ConnectionInfo>> {
        Err(Error::NotSupported("information on connections with peers"))
    }

    /// Describes the state of the endpoint in a few words, for `Debug`.
    fn describe(&self) -> String;

    /// Returns the connection requests of a passive endpoint.
    fn requests(&mut self) -> Option<&mut dyn ConnectionRequests<E>> {
        None
    }

    /// Returns the connection of an `FI_EP_MSG` endpoint.
    fn connection(&mut self) -> Option<&mut dyn EndpointConnection<E>> {
        None
    }

    /// Returns the multicast groups of the endpoint.
    fn multicast(&mut self) -> Option<&mut dyn MulticastGroups> {
        None
    }

    /// Returns the loans that the endpoint has sent.
    fn sent_loans(&mut self) -> Option<&mut dyn SentLoans> {
        None
    }
}

/// Connection requests of a passive endpoint.
pub trait ConnectionRequests<E: EngineContext> {
    /// Takes the oldest request.
    fn take_connreq(&mut self, ctx: &mut EndpointContext<'_, E>) -> Option<ConnReq>;
}

/// Connection of an `FI_EP_MSG` endpoint.
pub trait EndpointConnection<E: EngineContext> {
    /// Shuts down the connection: bytes of completed sends are still transmitted, and queued
    /// operations complete with [`Error::Canceled`].
    fn shutdown(&mut self, ctx: &mut EndpointContext<'_, E>);
}

/// Multicast groups of an endpoint.
pub trait MulticastGroups {
    /// Joins a multicast group: messages to it arrive at the endpoint from now on. Joins of the
    /// same group are counted. Returns the id for [`leave_group`](Self::leave_group).
    ///
    /// # Errors
    /// [`Error::Invalid`] when the address is not a multicast address; [`Error::NotSupported`]; the
    /// error of the operating system.
    fn join_group(&mut self, group: &Address) -> Result<u32>;

    /// Leaves the group with this id; the membership ends after as many calls as joins.
    fn leave_group(&mut self, group: u32);
}

/// Loans that an endpoint has sent, and that its peers return.
pub trait SentLoans {
    /// Collects loans that peers have returned.
    fn collect(&mut self);

    /// Watches the loans that peers hold, while a task
    /// [waits](super::LoanAllocator::set_awaited) for memory of loans: a peer rings the doorbell
    /// when it returns a loan. Returns whether passes have to poll the endpoint for that.
    fn watch(&mut self) -> bool;
}
