//! The channel of an outgoing connection: the ring, the socket, and the state that depends on the
//! peer's process.
//!
//! A [`TxConnection`](super::TxConnection) creates a channel each time it connects, and drops the
//! channel when the connection ends. This file has the handshake, and puts messages and fragments
//! into the ring. `rendezvous` sends loans and CMA offers, `rma` accesses the peer's memory, `acks`
//! completes acknowledged sends, `arm` prepares for sleep.

use std::os::fd::{AsFd, OwnedFd};

use fabric_core::buf::Payload;
use fabric_core::completion::{OpKind, Transfer};
use fabric_core::extension::ShmInfo;
use fabric_core::flags::Caps;
use fabric_core::stats::EndpointStats;
use fabric_core::transport::{EndpointContext, EngineContext, TxOp};
use fabric_core::{Address, Result};

use super::super::cm::{CmEndpoint, CmOffer};
use super::super::control;
use super::super::loans::OutstandingSlots;
use super::super::mapped_regions::MappedRegions;
use super::super::pending_acks::PendingAcks;
use super::super::record::{
    ALIGN_PAYLOAD_FROM, CQ_DATA, FIRST_FRAGMENT, FRAGMENT, LOCATION_LEN, MESSAGE, RecordLayout,
    TAGGED, encode_len_and_ack,
};
use super::super::ring::{ConsumerState, HEADER_LEN, Producer};
use super::super::rma_bounce::{REQUEST_LEN, RmaBounceBuffer};
use super::super::rx_connection::PeerIdentity;
use super::super::segment::{MAX_LINES, Segment};
use super::super::socket::{PeerCredentials, ShmSocket};
use super::super::tx_settings::TxSettings;
use super::super::{cma, doorbell};
use super::{PushOutcome, QueuedTx, TxStage};

/// Maximum bytes of one access to a mapped region. Longer accesses are executed in pieces.
pub(super) const MAX_ACCESS_LEN: usize = 256 * 1024;
/// Maximum bytes of a record without its payload: header word, tag, completion data, full length.
const MAX_RECORD_HEAD_LEN: usize = HEADER_LEN + 3 * 8;
/// Maximum bytes of an RMA notification; the payload is the key of the region.
pub(super) const MAX_NOTIFICATION_LEN: usize = MAX_RECORD_HEAD_LEN + 8;
/// Maximum bytes of the record of a loan or of a CMA offer.
pub(super) const MAX_LOCATION_RECORD_LEN: usize = MAX_RECORD_HEAD_LEN + LOCATION_LEN;
/// Maximum bytes of an RMA request, and of the notification that may follow the response.
pub(super) const MAX_REQUEST_AND_NOTIFICATION_LEN: usize =
    HEADER_LEN + REQUEST_LEN + MAX_NOTIFICATION_LEN;
/// Maximum payload of one record. A longer message is sent in fragments of this length, as a loan
/// or as a CMA offer.
pub(super) const FRAGMENT_LEN: usize = 8 * 1024;
// A CMA offer holds the address of a payload above `FRAGMENT_LEN`. The bytes of an `InlineBuf` may
// move, so they must not be offered.
const _: () = assert!(FRAGMENT_LEN >= fabric_core::buf::InlineBuf::CAPACITY);

/// The fields of a hello that was not sent yet.
#[derive(Debug)]
struct UnsentHello {
    from: Address,
    incarnation: u64,
    segment: OwnedFd,
}

/// The channel of an outgoing connection, connecting or established.
#[derive(Debug)]
pub(super) struct TxChannel {
    /// Taken when the hello is sent, or the connection request or accept in its place.
    unsent_hello: Option<UnsentHello>,
    pub(super) socket: ShmSocket,
    /// Identity of the peer's endpoint. The incarnation is 0 until the peer has accepted.
    pub(super) peer_identity: PeerIdentity,
    pub(super) ring: Producer<Segment>,
    /// The peer's regions that this endpoint has accessed.
    pub(super) mapped_regions: MappedRegions,
    /// Loans and CMA offers that the peer holds.
    pub(super) outstanding: OutstandingSlots,
    /// Messages that the peer has not acknowledged.
    pub(super) pending_acks: PendingAcks,
    /// Which messages are sent as CMA offers; disabled until the peer has accepted.
    pub(super) single_copy: cma::SingleCopyPolicy,
    /// Bounce buffer of RMA requests; created for the first request.
    pub(super) rma_bounce: Option<RmaBounceBuffer>,
    /// Operations over this channel.
    pub(super) counters: EndpointStats,
}

impl TxChannel {
    /// Creates a segment for a connection over this socket.
    pub(super) fn new(
        (socket, credentials): (ShmSocket, PeerCredentials),
        from: &Address,
        incarnation: u64,
        settings: &TxSettings,
    ) -> Result<Self> {
        let (segment, memory) = Segment::create(MAX_LINES)?;
        if !settings.single_copy.is_disabled() {
            segment.set_cma_marker(cma::local_marker());
        }
        Ok(Self {
            unsent_hello: Some(UnsentHello {
                from: from.clone(),
                incarnation,
                segment: memory,
            }),
            socket,
            peer_identity: PeerIdentity {
                process: credentials.process,
                incarnation: 0,
            },
            ring: Producer::new(segment),
            mapped_regions: MappedRegions::default(),
            outstanding: OutstandingSlots::new(settings.loan_pool.clone()),
            pending_acks: PendingAcks::default(),
            single_copy: cma::SingleCopyPolicy::from_len(usize::MAX),
            rma_bounce: None,
            counters: EndpointStats::default(),
        })
    }

    /// Adds the memory that is mapped for the channel.
    pub(super) fn add_info(&self, info: &mut ShmInfo) {
        info.segments += 1;
        info.segment_bytes += self.ring.memory().mapped_len();
        self.mapped_regions.add_info(info);
        info.bounce_buffers += usize::from(self.rma_bounce.is_some());
        info.bounce_bytes += self.rma_bounce.as_ref().map_or(0, RmaBounceBuffer::len);
    }

    /// Sends the hello with the segment. Returns false if the hello was sent before.
    ///
    /// # Errors
    /// Those of [`control::send_hello`].
    pub(super) fn send_hello(&mut self, peer: &Address) -> Result<bool> {
        let Some(hello) = self.unsent_hello.take() else {
            return Ok(false);
        };
        let (from, segment) = (&hello.from, hello.segment.as_fd());
        control::send_hello(
            &self.socket,
            peer,
            from,
            hello.incarnation,
            MAX_LINES,
            segment,
        )?;
        Ok(true)
    }

    /// Takes the connection request or accept that is sent in place of the hello. `None` if it was
    /// taken before.
    pub(super) fn take_offer(
        &mut self,
        caps: Caps,
        private_data: &[u8],
    ) -> Option<CmOffer<OwnedFd>> {
        let hello = self.unsent_hello.take()?;
        Some(CmOffer {
            endpoint: CmEndpoint {
                lines: MAX_LINES,
                incarnation: hello.incarnation,
                caps,
                private_data: private_data.to_vec(),
            },
            segment: hello.segment,
        })
    }

    /// Returns whether the hello was sent, or the connection request or accept in its place.
    pub(super) fn hello_sent(&self) -> bool {
        self.unsent_hello.is_none()
    }

    /// Handles the accept message: the peer has mapped the segment, and has this incarnation.
    pub(super) fn on_accept(&mut self, incarnation: u64, policy: cma::SingleCopyPolicy) {
        self.peer_identity.incarnation = incarnation;
        if self.ring.memory().is_cma_capable() {
            self.single_copy = cma::SingleCopyPolicy {
                min_len: policy.min_len.max(FRAGMENT_LEN + 1),
                ..policy
            };
        }
    }

    /// Sends a message without tag, data or ack, of fewer than [`ALIGN_PAYLOAD_FROM`] bytes; `more`
    /// if the operation has `FI_MORE`.
    #[inline(always)] // fast path of small messages
    pub(super) fn push_short(&mut self, bytes: &[u8], more: bool) -> PushOutcome {
        let len = HEADER_LEN + bytes.len();
        let pushed = self.ring.push(
            MESSAGE,
            0,
            len,
            #[inline(always)] // fast path of small messages
            |record| record.put(HEADER_LEN, bytes),
        );
        if pushed {
            self.after_push(more)
        } else {
            PushOutcome::WouldBlock
        }
    }

    /// Wakes the peer after a record was published, unless the operation has `FI_MORE` (`more`).
    #[inline(always)] // fast path of small messages
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

    /// Sends a message in one record. Returns `WouldBlock` if the message is too long for one
    /// record, or the ring has no room.
    #[inline]
    pub(super) fn push_message(&mut self, tx_op: &TxOp, payload: Payload<'_>) -> PushOutcome {
        match payload {
            Payload::Contiguous(bytes)
                if bytes.len() < ALIGN_PAYLOAD_FROM
                    && tx_op.tag.is_none()
                    && tx_op.data.is_none() =>
            {
                self.push_short(bytes, tx_op.more)
            }
            _ if payload.len() > FRAGMENT_LEN => PushOutcome::WouldBlock,
            _ => self.push_payload(MESSAGE, tx_op, 0, payload),
        }
    }

    /// Makes progress on the operation at the front of the queue: sends one record, or executes one
    /// piece of an access. `is_only_op` if no operation is queued behind `front`.
    pub(super) fn progress_front(
        &mut self,
        front: &mut QueuedTx,
        is_only_op: bool,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> Result<PushOutcome> {
        if let Some(remote) = front.tx_op.remote {
            return self.progress_rma(front, &remote, ctx);
        }
        if front.tx_op.kind != OpKind::Send {
            // An access without a remote range has nothing to do.
            front.total = Some(0);
            return Ok(PushOutcome::Pushed);
        }
        let payload = ctx.payload(front.op);
        front.total = Some(payload.len());
        let ack = self.ack_to_request(front)?;

        // A message that is in a loan is lent.
        let may_be_loan = front.tx_op.loan.is_some() || payload.peer_memory().is_some();
        let loan_outcome = (may_be_loan && !front.is_started())
            .then(|| self.send_loan(&front.tx_op, payload, ack))
            .flatten();
        // A long message in ordinary memory is offered, if the policy says so.
        let may_be_offered = loan_outcome.is_none()
            && self.single_copy.applies_to(
                payload.len(),
                is_only_op && !self.outstanding.has_cma_offers(),
            )
            && !front.is_started()
            && ctx.is_host_memory(front.op);
        let offer_outcome = payload
            .as_contiguous()
            .filter(|_| may_be_offered)
            .and_then(|bytes| self.send_cma_offer(front, bytes, ack));

        // Any other message is copied into the ring, in one record or in fragments.
        let ack_id = ack.map(|ack| ack.ack_id);
        let (stage, pushed, count) = if let Some(pushed) = loan_outcome {
            (TxStage::Lent { ack_id }, pushed, payload.len())
        } else if let Some(pushed) = offer_outcome {
            (TxStage::Offered, pushed, 0)
        } else if !front.is_started() && payload.len() <= FRAGMENT_LEN && ack.is_none() {
            let pushed = self.push_message(&front.tx_op, payload);
            (TxStage::InRing { ack_id }, pushed, payload.len())
        } else {
            let (kind, stage) = match front.stage {
                TxStage::Unstarted => (FIRST_FRAGMENT, TxStage::InRing { ack_id }),
                stage => (FRAGMENT, stage),
            };
            let len_and_ack = encode_len_and_ack(payload.len(), ack);
            let fragment =
                payload.slice(front.sent, (payload.len() - front.sent).min(FRAGMENT_LEN));
            let pushed = self.push_payload(kind, &front.tx_op, len_and_ack, fragment);
            (stage, pushed, fragment.len())
        };
        if pushed == PushOutcome::Pushed {
            if let Some(ack_id) = ack_id {
                let transfer = Transfer::sent(payload.len(), front.tx_op.tag);
                self.pending_acks.insert(ack_id, front.op, transfer);
            }
            front.stage = stage;
            front.sent += count;
        }
        Ok(pushed)
    }

    /// Publishes a record with payload bytes of a message. `len_and_ack` is the full-length word of
    /// a first fragment.
    #[inline]
    fn push_payload(
        &mut self,
        kind: u8,
        tx_op: &TxOp,
        len_and_ack: u64,
        payload: Payload<'_>,
    ) -> PushOutcome {
        let flags = if kind == FRAGMENT {
            0
        } else {
            record_flags(tx_op)
        };
        self.push_record(kind, flags, tx_op, len_and_ack, payload)
    }

    /// Publishes a record and wakes the peer. The tag and the data of `tx_op`, and `full_len`, are
    /// written if the layout of the record has these words.
    #[inline(always)] // fast path of small messages
    pub(super) fn push_record(
        &mut self,
        kind: u8,
        flags: u8,
        tx_op: &TxOp,
        full_len: u64,
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
                    if let Some(at) = layout.full_len {
                        record.put(at, &full_len.to_le_bytes());
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

    /// Rings the doorbell if the peer sleeps. Returns `Closed` if the peer has closed without
    /// receiving the last record, and `Pushed` otherwise.
    #[inline]
    pub(super) fn wake_peer(&mut self) -> PushOutcome {
        match self.ring.consumer_state() {
            ConsumerState::Awake => PushOutcome::Pushed,
            ConsumerState::Asleep => {
                doorbell::ring(&self.socket);
                self.counters.doorbells += 1;
                PushOutcome::Pushed
            }
            ConsumerState::Closed => PushOutcome::Closed,
        }
    }
}

/// Returns the flags of the first record of this operation.
pub(super) fn record_flags(tx_op: &TxOp) -> u8 {
    (if tx_op.tag.is_some() { TAGGED } else { 0 })
        | (if tx_op.data.is_some() { CQ_DATA } else { 0 })
}
