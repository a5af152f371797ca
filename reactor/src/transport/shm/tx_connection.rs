//! A connection to a peer: what this endpoint sends there.
//!
//! It is made with the first operation for the peer. Until the peer has answered, and whenever its
//! ring is full, operations wait in the queue; otherwise messages go into the ring at once.

mod acks;
mod arm;
mod channel;
mod iov_cursor;
mod rendezvous;
mod rma;
mod socket_events;

use std::collections::VecDeque;
use std::sync::Arc;

use fabric_core::buf::{AnyBuf, Payload};
use fabric_core::completion::{OpKind, Outcome, Transfer};
use fabric_core::mr::DirectRegion;
use fabric_core::stats::OpStats;
use fabric_core::transport::{EngineContext, Incarnation, OpKey, TxOp, WaitSet};
use fabric_core::{Address, Error, FiAddr, Result};

use super::TxResources;
use super::control::{self, ControlMessage};
pub(crate) use super::record::ALIGN_PAYLOAD_FROM as PLAIN;
use super::rx_connection::PeerIdentity;
use channel::{FRAGMENT_LEN, TxChannel};
use iov_cursor::IovCursor;
pub(crate) use iov_cursor::at_start;
pub(crate) use socket_events::ConnectionEnd;

/// Bytes moved for one peer in one pass.
const BYTES_PER_PASS: usize = 64 * 1024;
/// A connection to a peer.
#[derive(Debug)]
pub(crate) struct TxConnection {
    /// Whom it leads to.
    pub(crate) peer_address: Address,
    pub(crate) addr: FiAddr,
    /// Which endpoint it must lead to; `None` if whichever has the name.
    pub(crate) expected: Option<Incarnation>,
    state: TxConnectionState,
    /// The end of this endpoint at the other end will be no news.
    end_reported: Option<PeerIdentity>,
    queue: VecDeque<QueuedTx>,
    resources: TxResources,
    /// What was done over connections that have ended, and without the domain.
    counters: TxCounters,
    /// Operations without the domain.
    pub(crate) fast_path_ops: u64,
}

/// How far a connection has come.
#[derive(Debug)]
enum TxConnectionState {
    /// The peer has not answered.
    Connecting(TxChannel),
    Established(TxChannel),
    /// Ended; a new one is made for the next operation.
    Closed,
}

/// What was done for a peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TxCounters {
    /// Without the domain.
    pub(crate) sent: OpStats,
    pub(crate) written: OpStats,
    pub(crate) atomics: OpStats,
    pub(crate) doorbells: u64,
    pub(crate) lent: u64,
    pub(crate) segmented: OpStats,
    pub(crate) single_copy: OpStats,
    pub(crate) single_copy_rx: OpStats,
}

impl std::ops::AddAssign for TxCounters {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.written += other.written;
        self.atomics += other.atomics;
        self.doorbells += other.doorbells;
        self.lent += other.lent;
        self.segmented += other.segmented;
        self.single_copy += other.single_copy;
        self.single_copy_rx += other.single_copy_rx;
    }
}

#[derive(Debug)]
struct QueuedTx {
    op: OpKey,
    spec: TxOp,
    sent: usize,
    /// Its length, once it was looked at.
    total: Option<usize>,
    started: bool,
    /// The peer is to fetch it.
    cma_offered: bool,
    /// The receipt that the peer is to confirm, once it has begun.
    ack_id: Option<u32>,
    /// How far it is among its places, if it has several.
    cursor: IovCursor,
}

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PushOutcome {
    /// It is in the ring.
    Done,
    /// Not now, or not in one piece.
    WouldBlock,
    /// The peer's endpoint has closed.
    Closed,
}

/// What became of the queue in one pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueProgress {
    Moved,
    Idle,
    /// The peer's endpoint has closed.
    Closed,
}

impl QueuedTx {
    /// Whether it is to reach the region of this key.
    fn targets_key(&self, key: u64) -> bool {
        self.spec.remote.is_some_and(|remote| remote.key == key)
    }

    fn is_done(&self) -> bool {
        self.total == Some(self.sent)
    }
}

impl TxConnection {
    pub(crate) fn new(peer_address: Address, addr: FiAddr, resources: TxResources) -> Self {
        Self {
            peer_address,
            addr,
            expected: None,
            state: TxConnectionState::Closed,
            end_reported: None,
            queue: VecDeque::new(),
            resources,
            counters: TxCounters::default(),
            fast_path_ops: 0,
        }
    }

    /// Whether the peer is to hear of this access, which it may have closed to.
    pub(crate) fn notifies(&mut self, spec: &TxOp) -> bool {
        match (&mut self.state, &spec.remote) {
            (TxConnectionState::Established(wires), Some(remote)) => wires
                .mapped_regions
                .get(remote.key)
                .is_some_and(|window| window.notifies(spec)),
            _ => false,
        }
    }

    /// Counts what was done without the domain.
    #[inline]
    pub(crate) fn count_fast_path(&mut self, kind: OpKind, len: usize) {
        self.fast_path_ops += 1;
        match kind {
            OpKind::Send => self.counters.sent.record(len),
            OpKind::Write => self.counters.written.record(len),
            _ => self.counters.atomics.record(len),
        }
    }

    /// Puts a message into the ring, or bytes into the peer's memory, if nothing stands in the way.
    ///
    /// # Errors
    /// Those of the access.
    #[inline]
    pub(crate) fn try_send(&mut self, spec: &TxOp, payload: Payload<'_>) -> Result<PushOutcome> {
        let Some(wires) = self.ready_channel() else {
            return Ok(PushOutcome::WouldBlock);
        };
        match spec.kind {
            // It ends when the peer says so.
            OpKind::Send if spec.level.needs_ack() => Ok(PushOutcome::WouldBlock),
            OpKind::Send => {
                let lent = spec
                    .loan
                    .and_then(|key| wires.send_loan(spec, key, payload.as_contiguous()?, None));
                Ok(lent.unwrap_or_else(|| wires.push_message(spec, payload)))
            }
            OpKind::Write if spec.rma_iov_id.is_some() => Ok(PushOutcome::WouldBlock),
            OpKind::Write => wires.try_access(spec, payload.len(), |window, at, _| {
                window.write(at, payload)
            }),
            _ => Ok(PushOutcome::WouldBlock),
        }
    }

    /// Sends a short message without anything but its bytes, and counts it.
    #[inline(always)] // fast path of small messages
    pub(crate) fn try_send_plain(&mut self, bytes: &[u8]) -> PushOutcome {
        let TxConnectionState::Established(wires) = &mut self.state else {
            return PushOutcome::WouldBlock;
        };
        if !self.queue.is_empty() {
            return PushOutcome::WouldBlock;
        }
        let pushed = wires.push_plain(bytes, false);
        if pushed == PushOutcome::Done {
            self.fast_path_ops += 1;
            self.counters.sent.record(bytes.len());
        }
        pushed
    }

    /// Wakes the peer for what it was sent with `more`.
    pub(crate) fn flush(&mut self) -> PushOutcome {
        match &mut self.state {
            TxConnectionState::Established(wires) => wires.wake_peer(),
            TxConnectionState::Connecting(_) | TxConnectionState::Closed => PushOutcome::Done,
        }
    }

    /// Reads the peer's memory if nothing stands in the way.
    ///
    /// # Errors
    /// Those of the access.
    pub(crate) fn try_read(&mut self, spec: &TxOp, into: &mut AnyBuf) -> Result<PushOutcome> {
        let Some(wires) = self.ready_channel().filter(|_| spec.rma_iov_id.is_none()) else {
            return Ok(PushOutcome::WouldBlock);
        };
        let len = spec.remote.map_or(0, |remote| remote.len);
        wires.try_access(spec, len, |window, at, remote| {
            window.read(at, remote.len, into)
        })
    }

    /// Executes an atomic operation if nothing stands in the way.
    ///
    /// # Errors
    /// Those of the access.
    pub(crate) fn try_atomic(
        &mut self,
        spec: &TxOp,
        operands: &[u8],
        result: &mut [u8],
    ) -> Result<PushOutcome> {
        let Some(wires) = self.ready_channel() else {
            return Ok(PushOutcome::WouldBlock);
        };
        let len = spec.remote.map_or(0, |remote| remote.len);
        wires.try_access(spec, len, |window, at, remote| {
            window.execute(at, remote, operands, result)
        })
    }

    /// A region of the peer's that has been accessed.
    pub(crate) fn region_handle(&mut self, key: u64) -> Result<Option<DirectRegion>> {
        match &mut self.state {
            TxConnectionState::Established(wires) => wires.mapped_regions.handle(key),
            TxConnectionState::Connecting(_) | TxConnectionState::Closed => Ok(None),
        }
    }

    /// The connection, if it is there and nothing waits for it.
    #[inline]
    fn ready_channel(&mut self) -> Option<&mut TxChannel> {
        match &mut self.state {
            TxConnectionState::Established(wires) if self.queue.is_empty() => Some(wires),
            _ => None,
        }
    }

    /// Appends an operation.
    pub(crate) fn enqueue(&mut self, op: OpKey, spec: TxOp) {
        // Nobody knows when it will move, so it wakes the peer by itself.
        let spec = TxOp {
            more: false,
            ..spec
        };
        let (begun, offered) = (false, false);
        self.queue.push_back(QueuedTx {
            op,
            spec,
            sent: 0,
            total: None,
            started: begun,
            cma_offered: offered,
            ack_id: None,
            cursor: IovCursor::default(),
        });
    }

    /// Takes an operation back of which nothing was sent.
    pub(crate) fn cancel(&mut self, op: OpKey) -> bool {
        let at = self
            .queue
            .iter()
            .position(|queued| queued.op == op && !queued.started);
        let cancelled = at.is_some_and(|at| self.queue.remove(at).is_some());
        if let (true, TxConnectionState::Established(wires)) = (cancelled, &mut self.state) {
            let queue = &self.queue;
            let wanted = |key| queue.iter().any(|queued| queued.targets_key(key));
            wires.mapped_regions.retain_denials(wanted);
        }
        cancelled
    }

    /// Nothing is queued, and nothing waits until the peer has fetched or confirmed it.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && !self.awaits_peer()
    }

    fn awaits_peer(&self) -> bool {
        matches!(&self.state, TxConnectionState::Established(wires) if wires.awaits_peer())
    }

    /// Whether there is no connection, and none is being made.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.state, TxConnectionState::Closed)
    }

    /// Makes the connection if there is none.
    pub(crate) fn connect(
        &mut self,
        from: &Address,
        incarnation: u64,
        token: u64,
        wait: &Arc<dyn WaitSet>,
    ) -> Result<()> {
        if matches!(self.state, TxConnectionState::Closed) {
            let mut wires =
                TxChannel::connect(&self.peer_address, from, incarnation, &self.resources)?;
            wires.socket.watch(wait, token)?;
            self.end_reported = None;
            self.state = TxConnectionState::Connecting(wires);
        }
        Ok(())
    }

    /// Moves queued operations into the ring, as far as they fit.
    pub(crate) fn progress_queue(&mut self, host: &mut dyn EngineContext) -> QueueProgress {
        let TxConnectionState::Established(wires) = &mut self.state else {
            return QueueProgress::Idle;
        };
        let mut bytes = 0;
        let mut moved =
            wires.awaits_peer() && (wires.complete_cma(host) | wires.complete_acked(host));
        while bytes < BYTES_PER_PASS
            && let alone = self.queue.len() == 1
            && let Some(front) = self.queue.front_mut()
        {
            let before = front.sent;
            let pushed = match wires.progress_front(front, alone, host) {
                Ok(pushed) => pushed,
                Err(error) => {
                    let op = front.op;
                    self.queue.pop_front();
                    host.complete(op, Outcome::failed(error));
                    moved = true;
                    continue;
                }
            };
            moved |= pushed == PushOutcome::Done;
            bytes += front.sent - before;
            if pushed == PushOutcome::Done && front.cma_offered {
                // It ends when the peer has fetched it.
                self.queue.pop_front();
            } else if pushed == PushOutcome::Done && front.is_done() {
                let transfer = Transfer::sent(front.sent, front.spec.tag);
                let (op, receipt) = (front.op, front.ack_id);
                if front.spec.remote.is_none() && front.sent > FRAGMENT_LEN && front.started {
                    wires.counters.segmented.record(front.sent);
                }
                self.queue.pop_front();
                match receipt {
                    None => host.complete(op, Outcome::ok(transfer)),
                    Some(number) => wires.mark_sent(number, host),
                }
            } else if pushed == PushOutcome::Closed {
                return QueueProgress::Closed;
            } else if pushed == PushOutcome::WouldBlock {
                break;
            }
        }
        if moved {
            QueueProgress::Moved
        } else {
            QueueProgress::Idle
        }
    }

    /// Somebody has told of the end of this endpoint already. One that has not welcomed this one
    /// yet may turn out to be it.
    pub(crate) fn mark_end_reported(&mut self, identity: PeerIdentity) {
        if self.identity().is_none_or(|own| own == identity) {
            self.end_reported = Some(identity);
        }
    }

    pub(crate) fn is_end_reported(&self, identity: PeerIdentity) -> bool {
        self.end_reported == Some(identity)
    }

    /// Which endpoint is at the other end, once it has welcomed this one.
    pub(crate) fn identity(&self) -> Option<PeerIdentity> {
        match &self.state {
            TxConnectionState::Established(wires) => Some(wires.peer_identity),
            TxConnectionState::Connecting(_) | TxConnectionState::Closed => None,
        }
    }

    /// Whether the peer copies long messages straight from here.
    pub(crate) fn uses_cma(&self) -> bool {
        matches!(&self.state, TxConnectionState::Established(wires) if !wires.single_copy.is_disabled())
    }

    /// Ends the connection; queued operations fail.
    pub(crate) fn close(&mut self, host: &mut dyn EngineContext, error: &Error) {
        if let TxConnectionState::Established(wires) = &mut self.state {
            wires.mapped_regions.end(error);
            wires.fail_cma(host, error);
            wires.fail_unacked(host, error);
        }
        self.counters = self.counters();
        self.state = TxConnectionState::Closed;
        for queued in std::mem::take(&mut self.queue) {
            let transfer = Transfer::sent(queued.sent, queued.spec.tag);
            host.complete(queued.op, Outcome::partial(transfer, error.clone()));
        }
    }

    /// What was done for the peer.
    pub(crate) fn counters(&self) -> TxCounters {
        let mut done = self.counters;
        if let TxConnectionState::Connecting(wires) | TxConnectionState::Established(wires) =
            &self.state
        {
            done += wires.counters;
        }
        done
    }

    /// Loans that the peer has.
    pub(crate) fn outstanding_loans(&self) -> usize {
        if let TxConnectionState::Established(wires) = &self.state {
            wires.outstanding.outstanding()
        } else {
            0
        }
    }

    /// Takes back what the peer has given back of what was lent to it.
    pub(crate) fn collect_returned(&mut self) {
        if let TxConnectionState::Established(wires) = &mut self.state {
            wires.outstanding.collect_returned(wires.ring.memory());
        }
    }

    /// Says goodbye, because the endpoint closes, or that only this connection is given up.
    pub(crate) fn send_control(&self, word: ControlMessage) {
        if let TxConnectionState::Connecting(wires) | TxConnectionState::Established(wires) =
            &self.state
        {
            control::send_control(&wires.socket, word);
        }
    }

    /// Before sleeping: false when something could move now.
    pub(crate) fn arm(&mut self) -> bool {
        match &mut self.state {
            TxConnectionState::Established(wires) => wires.arm(self.queue.front()),
            TxConnectionState::Connecting(_) | TxConnectionState::Closed => true,
        }
    }

    pub(crate) fn disarm(&mut self) {
        if let TxConnectionState::Established(wires) = &self.state
            && !self.is_idle()
        {
            wires.ring.disarm();
        }
    }
}
