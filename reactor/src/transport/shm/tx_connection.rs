//! The sending end of a connection: everything that this endpoint sends to one peer.
//!
//! A connectionless endpoint creates a [`TxConnection`] with the first operation for the peer, and
//! `connection_table` holds it under a lock of its own. The peer has the receiving end, an
//! `RxConnection`; messages in the other direction use a connection of their own.
//!
//! A message is written into the ring at once if no operation is queued and the ring has room.
//! Otherwise operations wait in the queue, in posting order, until the peer has accepted and the
//! ring has room; progress passes retry the queue. A write or read of a mapped region of up to
//! 256 KiB is executed at once, a longer one in pieces from the queue.

mod acks;
mod arm;
mod channel;
mod cm;
mod iov_cursor;
mod rendezvous;
mod rma;
mod socket_events;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use fabric_core::buf::{AnyBuf, Payload};
use fabric_core::completion::{OpKind, Outcome, Transfer};
use fabric_core::extension::ShmInfo;
use fabric_core::mr::{DirectRegion, RmaIov};
use fabric_core::stats::EndpointStats;
use fabric_core::transport::{
    EndpointContext, EngineContext, FastPathResult, Incarnation, OpKey, TxOp, WaitSet,
};
use fabric_core::{Address, Error, FiAddr, Result};

use super::connect_retry::{CONNECT_TIMEOUT, ConnectRetry};
use super::control::{self, ControlMessage};
use super::record::ALIGN_PAYLOAD_FROM;
use super::rx_connection::PeerIdentity;
use super::socket::{PeerCredentials, ShmSocket, SocketConnect};
use super::tx_settings::TxSettings;
use channel::{FRAGMENT_LEN, MAX_ACCESS_LEN, TxChannel};
use iov_cursor::IovCursor;
pub(crate) use iov_cursor::at_start;
pub(crate) use socket_events::ConnectionEnd;

/// Bytes after which a pass stops sending to one peer.
const BYTES_PER_PASS: usize = 64 * 1024;

/// Fast-path operations after which the descriptors are polled, so that a thread that only sends
/// also detects the end of a peer.
const OPS_PER_FD_POLL: u64 = 64;

/// What a connect needs of this endpoint.
#[derive(Clone, Copy)]
pub(crate) struct LocalEnd<'a> {
    pub(crate) name: &'a Address,
    pub(crate) incarnation: u64,
    /// Carried by the events of the connection's socket.
    pub(crate) token: u64,
    pub(crate) wait_set: &'a Arc<dyn WaitSet>,
}

/// The sending end of a connection.
#[derive(Debug)]
pub(crate) struct TxConnection {
    /// Name of the peer's endpoint.
    pub(crate) peer_address: Address,
    /// Address handle of the peer.
    pub(crate) addr: FiAddr,
    /// Incarnation that the peer must have; `None` if any endpoint of the name is accepted.
    pub(crate) expected_incarnation: Option<Incarnation>,
    state: TxConnectionState,
    /// Time limit and tries of the connect of a connectionless endpoint; `None` until it connects,
    /// and for a connected endpoint.
    retry: Option<ConnectRetry>,
    /// Endpoint of the peer whose end was reported to the application, so that the end is not
    /// reported twice.
    end_reported: Option<PeerIdentity>,
    /// Operations that are not sent completely, in posting order.
    queue: VecDeque<QueuedTx>,
    settings: TxSettings,
    /// Operations over channels that have ended, and operations of the fast path.
    counters: EndpointStats,
    /// Number of operations executed by the fast path.
    fast_path_ops: u64,
}

/// State of the sending end of a connection.
#[derive(Debug)]
enum TxConnectionState {
    /// The listener could take no connection; the next try is at this time.
    Retrying(Instant),
    /// The peer has not accepted yet.
    Connecting(TxChannel),
    Established(TxChannel),
    /// Not connected yet, or ended; the next operation of a connectionless endpoint connects.
    Closed,
}

impl TxConnectionState {
    /// Returns the channel of an established connection.
    #[inline]
    fn established(&self) -> Option<&TxChannel> {
        match self {
            Self::Established(channel) => Some(channel),
            Self::Retrying(_) | Self::Connecting(_) | Self::Closed => None,
        }
    }

    /// Returns the channel of an established connection.
    #[inline]
    fn established_mut(&mut self) -> Option<&mut TxChannel> {
        match self {
            Self::Established(channel) => Some(channel),
            Self::Retrying(_) | Self::Connecting(_) | Self::Closed => None,
        }
    }

    /// Returns the channel of a connection that is established or being established.
    fn channel(&self) -> Option<&TxChannel> {
        match self {
            Self::Connecting(channel) | Self::Established(channel) => Some(channel),
            Self::Retrying(_) | Self::Closed => None,
        }
    }
}

/// A queued operation.
#[derive(Debug)]
struct QueuedTx {
    op: OpKey,
    /// The operation; `remote` is the current range if the operation has several.
    tx_op: TxOp,
    /// Bytes sent to the peer, or accessed in its memory.
    sent: usize,
    /// Value of `sent` at which the operation is done. Known for a message once its payload was
    /// read from the engine, and for an access after its last range.
    total: Option<usize>,
    stage: TxStage,
    /// Position among the remote ranges, if the operation has several.
    cursor: IovCursor,
}

/// How far a queued operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TxStage {
    /// No record was sent and no byte was accessed: the operation can be canceled.
    Unstarted,
    /// Memory of the peer was accessed.
    Accessed,
    /// A record with bytes of the message was sent; `ack_id` is that of the requested ack.
    InRing { ack_id: Option<u32> },
    /// The message was lent; `ack_id` is that of the requested ack.
    Lent { ack_id: Option<u32> },
    /// The peer copies the message from this process. The operation completes when the peer
    /// returns the slot of the offer.
    Offered,
}

/// Result of pushing one record into the ring, or of one access to the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PushOutcome {
    /// The record is in the ring, or the access was executed. The operation may need more records.
    Pushed,
    /// There is no room now, or the operation does not fit in one record.
    WouldBlock,
    /// The peer's endpoint has closed.
    Closed,
}

/// Result of [`TxConnection::progress_queue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueProgress {
    /// An operation was sent in part, or completed.
    Progressed,
    /// No operation could make progress.
    Idle,
    /// The peer's endpoint has closed.
    Closed,
}

impl QueuedTx {
    /// Returns whether the operation accesses the region with this key.
    fn targets_key(&self, key: u64) -> bool {
        self.tx_op.remote.is_some_and(|remote| remote.key == key)
    }

    /// Returns whether a record was sent or a byte was accessed.
    fn is_started(&self) -> bool {
        self.stage != TxStage::Unstarted
    }

    /// Returns whether everything was sent or accessed.
    fn is_done(&self) -> bool {
        self.total == Some(self.sent)
    }
}

impl TxConnection {
    /// Creates the sending end of a connection that is not connected yet.
    pub(crate) fn new(peer_address: Address, addr: FiAddr, settings: TxSettings) -> Self {
        Self {
            peer_address,
            addr,
            expected_incarnation: None,
            state: TxConnectionState::Closed,
            retry: None,
            end_reported: None,
            queue: VecDeque::new(),
            settings,
            counters: EndpointStats::default(),
            fast_path_ops: 0,
        }
    }

    /// Counts a fast-path operation of `len` bytes that was executed inline, which it was if
    /// `pushed` is `Pushed`, and returns the result. An operation that has failed, or whose peer
    /// has closed, is tried again under the domain's lock, and the error is reported there.
    #[inline(always)] // fast path of small messages
    pub(crate) fn fast_path_result(
        &mut self,
        pushed: Result<PushOutcome>,
        kind: OpKind,
        len: usize,
    ) -> FastPathResult {
        if pushed != Ok(PushOutcome::Pushed) {
            return FastPathResult::WouldBlock;
        }
        match kind {
            OpKind::Send => self.counters.sent.record(len),
            OpKind::Write => self.counters.written.record(len),
            _ => self.counters.atomics.record(len),
        }
        self.fast_path_ops += 1;
        if self.fast_path_ops.is_multiple_of(OPS_PER_FD_POLL) {
            FastPathResult::SentPollDue
        } else {
            FastPathResult::Done
        }
    }

    /// Sends a message or writes the peer's memory now, if no operation is queued and the ring has
    /// room. On `WouldBlock` the caller queues the operation. A write of which the peer must be
    /// notified is executed only if `may_notify`.
    ///
    /// # Errors
    /// Errors of the access, such as [`Error::Key`].
    #[inline]
    pub(crate) fn try_send(
        &mut self,
        tx_op: &TxOp,
        payload: Payload<'_>,
        may_notify: bool,
    ) -> Result<PushOutcome> {
        let Some(channel) = self.ready_channel() else {
            return Ok(PushOutcome::WouldBlock);
        };
        match tx_op.kind {
            // A send that completes with the peer's ack needs a queued operation.
            OpKind::Send if tx_op.level.needs_ack() => Ok(PushOutcome::WouldBlock),
            // Passes poll a connection for returned loans after an operation was queued. So relayed
            // loans are queued, and all loans while the domain waits for memory.
            OpKind::Send
                if payload.peer_memory().is_some()
                    || tx_op.loan.is_some() && channel.outstanding.is_pool_awaited() =>
            {
                Ok(PushOutcome::WouldBlock)
            }
            OpKind::Send => {
                let loaned = tx_op
                    .loan
                    .and_then(|_| channel.send_loan(tx_op, payload, None));
                Ok(loaned.unwrap_or_else(|| channel.push_message(tx_op, payload)))
            }
            OpKind::Write if tx_op.rma_iov_id.is_some() => Ok(PushOutcome::WouldBlock),
            OpKind::Write => {
                channel.try_access(tx_op, payload.len(), may_notify, |region, at, _| {
                    region.write(at, payload)
                })
            }
            _ => Ok(PushOutcome::WouldBlock),
        }
    }

    /// Sends a short message without tag, data or ack now; `more` if the operation has `FI_MORE`.
    #[inline(always)] // fast path of small messages
    pub(crate) fn push_short(&mut self, bytes: &[u8], more: bool) -> PushOutcome {
        match self.ready_channel() {
            Some(channel) => channel.push_short(bytes, more),
            None => PushOutcome::WouldBlock,
        }
    }

    /// Sends messages as [`push_short`](Self::push_short) with `FI_MORE` does, until one is not
    /// sent or is not short. Returns how many were sent.
    #[inline(always)] // fast path of small messages
    pub(crate) fn push_short_together(&mut self, messages: &[&[u8]]) -> usize {
        let Some(channel) = self.ready_channel() else {
            return 0;
        };
        let sent = messages.iter().take_while(|message| {
            message.len() < ALIGN_PAYLOAD_FROM
                && channel.push_short(message, true) == PushOutcome::Pushed
        });
        sent.count()
    }

    /// Executes writes without completion data, until one cannot be executed now, is invalid, or
    /// is an RMA event of the peer. Returns how many were executed.
    pub(crate) fn write_together(&mut self, writes: &[(RmaIov, &[u8])]) -> usize {
        let Some(channel) = self.ready_channel() else {
            return 0;
        };
        let executed = writes.iter().take_while(|(remote, bytes)| {
            bytes.len() <= MAX_ACCESS_LEN
                && channel
                    .mapped_regions
                    .get(remote.key)
                    .is_some_and(|region| region.try_write(remote.offset, bytes))
        });
        executed.count()
    }

    /// Wakes the peer after messages with `FI_MORE`, which do not wake the peer when they are sent.
    pub(crate) fn flush(&mut self) -> PushOutcome {
        self.state
            .established_mut()
            .map_or(PushOutcome::Pushed, TxChannel::wake_peer)
    }

    /// Reads the peer's memory now, if no operation is queued and the region is mapped. On
    /// `WouldBlock` the caller queues the operation.
    ///
    /// # Errors
    /// Errors of the access, such as [`Error::Key`].
    pub(crate) fn try_read(&mut self, tx_op: &TxOp, into: &mut AnyBuf) -> Result<PushOutcome> {
        let Some(channel) = self.ready_channel().filter(|_| tx_op.rma_iov_id.is_none()) else {
            return Ok(PushOutcome::WouldBlock);
        };
        let len = tx_op.remote.map_or(0, |remote| remote.len);
        channel.try_access(tx_op, len, true, |region, at, remote| {
            region.read(at, remote.len, into)
        })
    }

    /// Executes an atomic operation now, as [`try_send`](Self::try_send) a write, if the region is
    /// mapped.
    ///
    /// # Errors
    /// Errors of the access, such as [`Error::Key`].
    pub(crate) fn try_atomic(
        &mut self,
        tx_op: &TxOp,
        operands: &[u8],
        result: &mut [u8],
        may_notify: bool,
    ) -> Result<PushOutcome> {
        let Some(channel) = self.ready_channel() else {
            return Ok(PushOutcome::WouldBlock);
        };
        let len = tx_op.remote.map_or(0, |remote| remote.len);
        channel.try_access(tx_op, len, may_notify, |region, at, remote| {
            region.execute(at, remote, operands, result)
        })
    }

    /// Returns a handle of a peer's region; `None` if no access has mapped the region.
    ///
    /// # Errors
    /// Those of [`MappedRegions::handle`](super::mapped_regions::MappedRegions::handle).
    pub(crate) fn region_handle(&mut self, key: u64) -> Result<Option<DirectRegion>> {
        self.state
            .established_mut()
            .map_or(Ok(None), |channel| channel.mapped_regions.handle(key))
    }

    /// Adds the memory that is mapped for an established connection.
    pub(crate) fn add_info(&self, info: &mut ShmInfo) {
        if let Some(channel) = self.state.established() {
            channel.add_info(info);
        }
    }

    /// Returns the channel if the connection is established and no operation is queued.
    #[inline]
    fn ready_channel(&mut self) -> Option<&mut TxChannel> {
        match &mut self.state {
            TxConnectionState::Established(channel) if self.queue.is_empty() => Some(channel),
            _ => None,
        }
    }

    /// Appends an operation to the queue.
    pub(crate) fn enqueue(&mut self, op: OpKey, tx_op: TxOp) {
        // The flush after `FI_MORE` may come before a queued operation is sent, so the operation
        // wakes the peer.
        let tx_op = TxOp {
            more: false,
            ..tx_op
        };
        self.queue.push_back(QueuedTx {
            op,
            tx_op,
            sent: 0,
            total: None,
            stage: TxStage::Unstarted,
            cursor: IovCursor::default(),
        });
    }

    /// Returns the queued operations that have not started.
    pub(crate) fn unstarted_ops(&self) -> impl Iterator<Item = OpKey> {
        let unstarted = self.queue.iter().filter(|queued| !queued.is_started());
        unstarted.map(|queued| queued.op)
    }

    /// Removes a queued operation that has not started. Returns false if the operation has started
    /// or is not queued.
    pub(crate) fn cancel(&mut self, op: OpKey) -> bool {
        let at = self
            .queue
            .iter()
            .position(|queued| queued.op == op && !queued.is_started());
        let canceled = at.is_some_and(|at| self.queue.remove(at).is_some());
        if canceled && let Some(channel) = self.state.established_mut() {
            let queue = &self.queue;
            let is_awaited = |key| queue.iter().any(|queued| queued.targets_key(key));
            channel.mapped_regions.retain_denials(is_awaited);
        }
        canceled
    }

    /// Returns whether passes can skip the connection: no operation is queued, and no ack or
    /// returned slot is awaited.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && !self.state.established().is_some_and(TxChannel::awaits_peer)
    }

    /// Returns whether the connection is neither established nor being established.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.state, TxConnectionState::Closed)
    }

    /// Connects to the peer if the connection is closed. The caller sees to the next try, if there
    /// is [one](Self::next_try).
    pub(crate) fn connect(&mut self, local: LocalEnd<'_>) -> Result<()> {
        if self.is_closed() {
            self.retry = Some(ConnectRetry::of_refusals(CONNECT_TIMEOUT));
            self.try_connect(local)?;
            self.end_reported = None;
        }
        Ok(())
    }

    /// Connects to the peer, or sets the time of the next try.
    ///
    /// # Errors
    /// Those of [`ShmSocket::connect`] and [`ConnectRetry::next_try`], and of the operating system.
    pub(crate) fn try_connect(&mut self, local: LocalEnd<'_>) -> Result<()> {
        match ShmSocket::connect(&self.peer_address)? {
            SocketConnect::Connected(socket, peer) => self.open_channel((socket, peer), local),
            SocketConnect::BacklogFull => self.connect_later(),
        }
    }

    /// Sets the time of the next try, and drops the channel of this one.
    ///
    /// # Errors
    /// Those of [`ConnectRetry::next_try`].
    fn connect_later(&mut self) -> Result<()> {
        let retry = self.retry.as_mut();
        let retry = retry.ok_or_else(|| Error::PeerGone(self.peer_address.clone()))?;
        self.state = TxConnectionState::Retrying(retry.next_try(&self.peer_address)?);
        Ok(())
    }

    /// Gives up the next try of a connect whose operation is not queued.
    pub(crate) fn cancel_retry(&mut self) {
        if self.next_try().is_some() {
            self.state = TxConnectionState::Closed;
        }
    }

    /// Returns the time of the next try to connect; `None` if no try is due.
    pub(crate) fn next_try(&self) -> Option<Instant> {
        match self.state {
            TxConnectionState::Retrying(next) => Some(next),
            _ => None,
        }
    }

    /// Creates the ring for a socket that leads to the peer with these credentials, and watches the
    /// socket.
    pub(crate) fn open_channel(
        &mut self,
        socket: (ShmSocket, PeerCredentials),
        local: LocalEnd<'_>,
    ) -> Result<()> {
        let LocalEnd {
            name, incarnation, ..
        } = local;
        let mut channel = TxChannel::new(socket, name, incarnation, &self.settings)?;
        channel.socket.watch(local.wait_set, local.token)?;
        self.state = TxConnectionState::Connecting(channel);
        Ok(())
    }

    /// Completes operations for which the peer has acted, and sends queued operations until the
    /// ring is full or [`BYTES_PER_PASS`] is reached.
    pub(crate) fn progress_queue(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> QueueProgress {
        let Some(channel) = self.state.established_mut() else {
            return QueueProgress::Idle;
        };
        let mut bytes = 0;
        let mut progressed = channel.awaits_peer()
            && (channel.complete_cma_offers(ctx) | channel.complete_acked(ctx));
        while bytes < BYTES_PER_PASS
            && let is_only_op = self.queue.len() == 1
            && let Some(front) = self.queue.front_mut()
        {
            let before = front.sent;
            let pushed = match channel.progress_front(front, is_only_op, ctx) {
                Ok(pushed) => pushed,
                Err(error) => {
                    let op = front.op;
                    self.queue.pop_front();
                    ctx.complete(op, Outcome::failed(error));
                    progressed = true;
                    continue;
                }
            };
            progressed |= pushed == PushOutcome::Pushed;
            bytes += front.sent - before;
            if pushed == PushOutcome::Pushed && front.stage == TxStage::Offered {
                // `complete_cma_offers` completes the send.
                self.queue.pop_front();
            } else if pushed == PushOutcome::Pushed && front.is_done() {
                let transfer = Transfer::sent(front.sent, front.tx_op.tag);
                let (op, stage) = (front.op, front.stage);
                self.queue.pop_front();
                if matches!(stage, TxStage::InRing { .. }) && transfer.len > FRAGMENT_LEN {
                    channel.counters.segmented.record(transfer.len);
                }
                match stage {
                    TxStage::InRing { ack_id: Some(id) } | TxStage::Lent { ack_id: Some(id) } => {
                        channel.mark_sent(id, ctx);
                    }
                    _ => ctx.complete(op, Outcome::ok(transfer)),
                }
            } else if pushed == PushOutcome::Closed {
                return QueueProgress::Closed;
            } else if pushed == PushOutcome::WouldBlock {
                break;
            }
        }
        if channel.outstanding.has_relays() {
            // No task of this process waits for the return of a relayed loan, but its owner does.
            ctx.request_pass();
        }
        if progressed {
            QueueProgress::Progressed
        } else {
            QueueProgress::Idle
        }
    }

    /// Records that the end of the endpoint with this identity was reported to the application.
    /// Ignored if the peer has another identity. The identity of a peer that has not accepted is
    /// not known yet.
    pub(crate) fn mark_end_reported(&mut self, identity: PeerIdentity) {
        if self.identity().is_none_or(|own| own == identity) {
            self.end_reported = Some(identity);
        }
    }

    /// Returns whether the end of the endpoint with this identity was reported.
    pub(crate) fn is_end_reported(&self, identity: PeerIdentity) -> bool {
        self.end_reported == Some(identity)
    }

    /// Returns the identity of the peer's endpoint; `None` if the connection is not established.
    pub(crate) fn identity(&self) -> Option<PeerIdentity> {
        Some(self.state.established()?.peer_identity)
    }

    /// Returns whether the connection leads to another endpoint than that of this identity, as far
    /// as this is known: to another process, or, once it is established, to another incarnation.
    pub(crate) fn leads_elsewhere(&self, identity: PeerIdentity) -> bool {
        let is_other_process = self
            .state
            .channel()
            .is_some_and(|channel| channel.peer_identity.process != identity.process);
        is_other_process || self.identity().is_some_and(|own| own != identity)
    }

    /// Returns whether long messages are sent to the peer as CMA offers.
    pub(crate) fn uses_cma(&self) -> bool {
        let channel = self.state.established();
        channel.is_some_and(|channel| !channel.single_copy.is_disabled())
    }

    /// Closes the connection. Queued operations fail with `error`, and so do sent operations that
    /// wait for the peer.
    pub(crate) fn close(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        error: &Error,
    ) {
        if let Some(channel) = self.state.established_mut() {
            channel.mapped_regions.end(error);
            channel.fail_cma_offers(ctx, error);
            channel.fail_unacked(ctx, error);
        }
        self.counters = self.counters();
        self.state = TxConnectionState::Closed;
        for queued in std::mem::take(&mut self.queue) {
            let transfer = Transfer::sent(queued.sent, queued.tx_op.tag);
            ctx.complete(queued.op, Outcome::partial(transfer, error.clone()));
        }
    }

    /// Returns the counters of this peer, over all channels.
    pub(crate) fn counters(&self) -> EndpointStats {
        let mut counters = self.counters;
        let channel = self.state.channel();
        counters.add(&channel.map(|channel| channel.counters).unwrap_or_default());
        counters
    }

    /// Returns the number of loans that the peer holds.
    pub(crate) fn held_loans(&self) -> usize {
        let channel = self.state.established();
        channel.map_or(0, |channel| channel.outstanding.held_loans())
    }

    /// Collects the slots that the peer has returned.
    pub(crate) fn collect_returned(&mut self) {
        if let Some(channel) = self.state.established_mut()
            // In a forked child, returned slots belong to the parent.
            && channel.socket.in_original_process()
        {
            channel.outstanding.collect_returned(channel.ring.memory());
        }
    }

    /// Announces the end of the connection with `EndpointClosed`, or with `Disconnect` if the
    /// endpoint stays open. A peer that waits for the hello sees the hang-up only: the peer would
    /// take the message for a malformed hello. The connections of a forked child belong to its
    /// parent, so a child announces nothing.
    pub(crate) fn announce_end(&self, message: ControlMessage) {
        if let Some(channel) = self.state.channel()
            && channel.hello_sent()
            && channel.socket.in_original_process()
        {
            control::send_control(&channel.socket, message);
        }
    }

    /// Arms the doorbell before this side sleeps. Returns false if an operation can progress now.
    pub(crate) fn arm(&mut self) -> bool {
        let channel = self.state.established_mut();
        channel.is_none_or(|channel| channel.arm(self.queue.front()))
    }

    /// Disarms the doorbell after this side has slept.
    pub(crate) fn disarm(&mut self) {
        if let Some(channel) = self.state.established()
            && !self.is_idle()
        {
            channel.ring.disarm();
        }
    }
}
