//! The sending channel of a connection: the ring, the socket, and what each side holds of the
//! other.

use std::os::fd::{AsFd, OwnedFd};

use fabric_core::buf::Payload;
use fabric_core::completion::{OpKind, Transfer};
use fabric_core::matching::AckRequest;
use fabric_core::transport::{EngineContext, TxOp};
use fabric_core::{Address, Result};

use super::super::control::{self, ControlMessage};
use super::super::loans::OutstandingSlots;
use super::super::mapped_regions::MappedRegions;
use super::super::pending_acks::PendingAcks;
use super::super::record::{
    ALIGN_PAYLOAD_FROM, CQ_DATA, FIRST_FRAGMENT, FRAGMENT, MESSAGE, RecordLayout, TAGGED,
    encode_len_and_ack,
};
use super::super::ring::{ConsumerState, HEADER_LEN, Producer};
use super::super::rma_bounce::RmaBounceBuffer;
use super::super::rx_connection::PeerIdentity;
use super::super::segment::Segment;
use super::super::socket::{PeerCredentials, ShmSocket};
use super::super::{TxSettings, cma};
use super::{PushOutcome, QueuedTx, TxStats};

/// Lines of a new segment: 128 KiB.
pub(super) const RING_LINES: usize = 2048;
/// Bytes of a peer's memory accessed in one pass. Longer accesses continue in later passes.
pub(super) const MAX_ACCESS_PER_PASS: usize = 256 * 1024;
/// The longest record of an RMA notification.
pub(super) const MAX_NOTIFICATION_LEN: usize = 64;
/// Payload of one record of a longer message.
pub(super) const FRAGMENT_LEN: usize = 8 * 1024;
// The peer is given the address of a longer payload, and the bytes of an `InlineBuf` may move.
const _: () = assert!(FRAGMENT_LEN >= fabric_core::buf::InlineBuf::CAPACITY);

/// The hello of a connection whose peer has not sent `Ready` yet.
#[derive(Debug)]
struct Hello {
    from: Address,
    incarnation: u64,
    segment: OwnedFd,
}

/// The sending channel of a connection.
#[derive(Debug)]
pub(super) struct TxChannel {
    hello: Option<Hello>,
    pub(super) socket: ShmSocket,
    /// Identity of the peer's endpoint; its incarnation is known once it has accepted.
    pub(super) peer_identity: PeerIdentity,
    pub(super) ring: Producer<Segment>,
    /// The peer's regions, as far as they were mapped.
    pub(super) mapped_regions: MappedRegions,
    /// Loans and single-copy messages that the peer holds.
    pub(super) outstanding: OutstandingSlots,
    /// Messages that the peer is to acknowledge.
    pub(super) pending_acks: PendingAcks,
    /// Which messages the peer copies directly.
    pub(super) single_copy: cma::SingleCopyPolicy,
    /// Buffer for the peer's responses to RMA requests, once one was sent.
    pub(super) rma_bounce: Option<RmaBounceBuffer>,
    pub(super) counters: TxStats,
}

impl TxChannel {
    /// Connects to the peer's socket and creates a segment.
    pub(super) fn connect(
        peer: &Address,
        from: &Address,
        incarnation: u64,
        settings: &TxSettings,
    ) -> Result<Self> {
        Self::new(ShmSocket::connect(peer)?, from, incarnation, settings)
    }

    /// Creates a segment for a connection over this socket.
    pub(super) fn new(
        (socket, credentials): (ShmSocket, PeerCredentials),
        from: &Address,
        incarnation: u64,
        settings: &TxSettings,
    ) -> Result<Self> {
        let (segment, memory) = Segment::create(RING_LINES)?;
        if !settings.single_copy.is_disabled() {
            let (at, value) = cma::local_marker();
            segment.set_cma_marker(at, value);
        }
        Ok(Self {
            hello: Some(Hello {
                from: from.clone(),
                incarnation,
                segment: memory,
            }),
            socket,
            peer_identity: PeerIdentity {
                pid: credentials.pid,
                incarnation: 0,
            },
            ring: Producer::new(segment),
            mapped_regions: MappedRegions::default(),
            outstanding: OutstandingSlots::new(settings.loan_pool.clone()),
            pending_acks: PendingAcks::default(),
            single_copy: cma::SingleCopyPolicy::from_len(usize::MAX),
            rma_bounce: None,
            counters: TxStats::default(),
        })
    }

    /// Sends the hello with the segment. Returns false if it was sent before.
    ///
    /// # Errors
    /// Those of [`control::send_hello`].
    pub(super) fn send_hello(&mut self, peer: &Address) -> Result<bool> {
        let Some(hello) = self.hello.take() else {
            return Ok(false);
        };
        let (from, segment) = (&hello.from, hello.segment.as_fd());
        control::send_hello(
            &self.socket,
            peer,
            from,
            hello.incarnation,
            RING_LINES,
            segment,
        )?;
        Ok(true)
    }

    /// Takes the incarnation of this endpoint and the descriptor of the segment, to send them in a
    /// message other than a hello. `None` if they were sent before.
    pub(super) fn take_segment(&mut self) -> Option<(u64, OwnedFd)> {
        let hello = self.hello.take()?;
        Some((hello.incarnation, hello.segment))
    }

    /// Returns whether the hello, or the message in its place, was sent.
    pub(super) fn hello_sent(&self) -> bool {
        self.hello.is_none()
    }

    /// Handles the accept message: the peer has mapped the segment and announces its incarnation.
    pub(super) fn on_accept(&mut self, incarnation: u64, policy: cma::SingleCopyPolicy) {
        self.peer_identity.incarnation = incarnation;
        if self.ring.memory().is_cma_capable() {
            self.single_copy = cma::SingleCopyPolicy {
                min_len: policy.min_len.max(FRAGMENT_LEN + 1),
                ..policy
            };
        }
    }

    /// Sends a message without tag, data or ack, of fewer than [`ALIGN_PAYLOAD_FROM`] bytes.
    #[inline(always)] // fast path of small messages
    pub(super) fn push_plain(&mut self, bytes: &[u8], more: bool) -> PushOutcome {
        if self
            .ring
            .push(MESSAGE, 0, HEADER_LEN + bytes.len(), |record| {
                record.put(HEADER_LEN, bytes)
            })
        {
            self.after_push(more)
        } else {
            PushOutcome::WouldBlock
        }
    }

    /// Wakes the peer after a record was published, unless the operation has `FI_MORE`.
    #[inline]
    fn after_push(&mut self, more: bool) -> PushOutcome {
        if !more {
            return self.wake_peer();
        }
        self.ring.prefetch_next();
        if self.ring.is_closed() {
            PushOutcome::Closed
        } else {
            PushOutcome::Pushed
        }
    }

    /// Sends a message in one record. Returns `WouldBlock` if it is too long for one.
    #[inline]
    pub(super) fn push_message(&mut self, tx_op: &TxOp, payload: Payload<'_>) -> PushOutcome {
        match payload {
            Payload::Contiguous(bytes)
                if bytes.len() < ALIGN_PAYLOAD_FROM
                    && tx_op.tag.is_none()
                    && tx_op.data.is_none() =>
            {
                self.push_plain(bytes, tx_op.more)
            }
            _ if payload.len() > FRAGMENT_LEN => PushOutcome::WouldBlock,
            _ => self.push_payload(MESSAGE, tx_op, 0, payload),
        }
    }

    /// Makes progress on the front operation; `is_only_op` if no operation is queued behind it.
    pub(super) fn progress_front(
        &mut self,
        front: &mut QueuedTx,
        is_only_op: bool,
        engine: &mut impl EngineContext,
    ) -> Result<PushOutcome> {
        match front.tx_op.remote {
            Some(remote) => return self.progress_rma(front, &remote, engine),
            None if front.tx_op.kind != OpKind::Send => {
                front.total = Some(0);
                return Ok(PushOutcome::Pushed);
            }
            None => {}
        }
        let payload = engine.payload(front.op);
        front.total = Some(payload.len());
        let ack = self.ack_to_request(front)?;
        let may_be_loan = front.tx_op.loan.is_some() || payload.peer_memory().is_some();
        let loan_outcome = (may_be_loan && !front.started)
            .then(|| self.send_loan(&front.tx_op, payload, ack))
            .flatten();
        let may_use_cma = loan_outcome.is_none()
            && self.single_copy.applies_to(
                payload.len(),
                is_only_op && !self.outstanding.has_cma_offers(),
            )
            && !front.started
            && engine.is_host_memory(front.op);
        let cma_outcome = payload
            .as_contiguous()
            .filter(|_| may_use_cma)
            .and_then(|bytes| self.send_cma_offer(front, bytes, ack));
        let (pushed, count) = if let Some(pushed) = loan_outcome {
            front.lent = pushed == PushOutcome::Pushed;
            (pushed, payload.len())
        } else if let Some(pushed) = cma_outcome {
            front.cma_offered = pushed == PushOutcome::Pushed;
            (pushed, 0)
        } else if !front.started && payload.len() <= FRAGMENT_LEN && ack.is_none() {
            (self.push_message(&front.tx_op, payload), payload.len())
        } else {
            let kind = if front.started {
                FRAGMENT
            } else {
                FIRST_FRAGMENT
            };
            let fragment =
                payload.slice(front.sent, (payload.len() - front.sent).min(FRAGMENT_LEN));
            (
                self.push_payload(
                    kind,
                    &front.tx_op,
                    encode_len_and_ack(payload.len(), ack),
                    fragment,
                ),
                fragment.len(),
            )
        };
        if pushed == PushOutcome::Pushed {
            if let Some(AckRequest { ack_id, .. }) = ack {
                self.pending_acks.insert(
                    ack_id,
                    front.op,
                    Transfer::sent(payload.len(), front.tx_op.tag),
                );
                front.ack_id = Some(ack_id);
            }
            front.started = true;
            front.sent += count;
        }
        Ok(pushed)
    }

    /// Publishes a record with payload; `total` is the encoded length of the whole message, for its
    /// first record.
    #[inline]
    fn push_payload(
        &mut self,
        kind: u8,
        tx_op: &TxOp,
        total: u64,
        payload: Payload<'_>,
    ) -> PushOutcome {
        let flags = if kind == FRAGMENT {
            0
        } else {
            record_flags(tx_op)
        };
        self.push_record(kind, flags, tx_op, total, payload)
    }

    #[inline(always)] // fast path of small messages
    pub(super) fn push_record(
        &mut self,
        kind: u8,
        flags: u8,
        tx_op: &TxOp,
        total: u64,
        payload: Payload<'_>,
    ) -> PushOutcome {
        let layout = RecordLayout::for_payload(kind, flags, payload.len());
        let pushed =
            self.ring
                .push(kind, flags, layout.payload + payload.len(), |record| {
                    if let (Some(at), Some(tag)) = (layout.tag, tx_op.tag) {
                        record.put(at, &tag.to_le_bytes());
                    }
                    if let (Some(at), Some(data)) = (layout.data, tx_op.data) {
                        record.put(at, &data.to_le_bytes());
                    }
                    if let Some(at) = layout.total {
                        record.put(at, &total.to_le_bytes());
                    }
                    match payload {
                        Payload::Contiguous(bytes) => record.put(layout.payload, bytes),
                        fragments => fragments
                            .for_each(|at, fragment| record.put(layout.payload + at, fragment)),
                    }
                });
        if !pushed {
            return PushOutcome::WouldBlock;
        }
        self.after_push(tx_op.more)
    }

    /// Wakes the peer if it sleeps.
    #[inline]
    pub(super) fn wake_peer(&mut self) -> PushOutcome {
        match self.ring.consumer_state() {
            ConsumerState::Awake => PushOutcome::Pushed,
            ConsumerState::Asleep => {
                control::send_control(&self.socket, ControlMessage::Doorbell);
                self.counters.doorbells += 1;
                PushOutcome::Pushed
            }
            ConsumerState::Closed => PushOutcome::Closed,
        }
    }
}

pub(super) fn record_flags(tx_op: &TxOp) -> u8 {
    (if tx_op.tag.is_some() { TAGGED } else { 0 })
        | (if tx_op.data.is_some() { CQ_DATA } else { 0 })
}
