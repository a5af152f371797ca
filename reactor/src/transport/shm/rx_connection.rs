//! The receiving end of a connection: everything that one peer sends to this endpoint.
//!
//! The peer has the sending end, a `TxConnection`. `rx_table` holds the receiving ends of an
//! endpoint and polls them. A pass receives a bounded number of records and bytes from the ring and
//! delivers messages to the receive queue. A message that finds neither a receive nor buffer space
//! is *held*: its record stays in the ring. Control messages are read when the socket is readable.
//!
//! Every record and control message is checked. An invalid one is a protocol violation, which ends
//! the connection. When the peer ends, the records in its ring are still delivered.

mod granted_regions;
mod memory;
mod pending_handshake;

use std::ops::ControlFlow;
use std::sync::Arc;

use fabric_core::buf::{AnyBuf, CopySource};
use fabric_core::completion::Transfer;
use fabric_core::event::DownReason;
use fabric_core::extension::ShmInfo;
use fabric_core::matching::{Envelope, PeerKey, RecvSpec};
use fabric_core::mr::RegionBytes;
use fabric_core::rx::PlainDelivery;
use fabric_core::stats::OpStats;
use fabric_core::transport::{
    EndpointContext, EngineContext, Incarnation, PartialId, RemoteAccess, WaitSet,
};
use fabric_core::{Address, Error, FiAddr, Result};

use super::cma::CmaPeer;
use super::control::{self, ControlEvent, ControlMessage, READS_PER_POLL, ReadError};
use super::doorbell;
use super::held_slots::HeldSlots;
use super::loans::{LoanMapping, ReceivedLoans};
use super::record::{
    CMA_OFFER, CQ_DATA, FIRST_FRAGMENT, FRAGMENT, LOAN, LOCATION_LEN, MAX_MSG_SIZE, MESSAGE,
    RMA_NOTIFICATION, RMA_READ, RMA_REQUEST, RecordLayout, TAGGED, decode_len_and_ack,
    plain_payload_offset,
};
use super::ring::{Consumer, HEADER_LEN, LINE_LEN, Peeked, RecordRef, ShmProtocolViolation};
use super::rma_bounce::{REQUEST_LEN, RmaRequest};
use super::segment::Segment;
use super::socket::{PeerCredentials, ShmSocket};
use crate::sys::mapping::{MappedRange, SharedMapping};
use crate::transport::connected_peer::ConnectedPeer;
use granted_regions::GrantedRegions;

pub(crate) use pending_handshake::{
    AcceptBudget, Accepted, HandshakeOutcome, PendingHandshake, ReceivedHello, Rejection, accept,
    placeholder_address, too_many_handshakes,
};

/// Maximum number of records received from one peer in one pass.
const RECORDS_PER_PASS: usize = 64;
/// Lines, 64 KiB, after which a pass stops receiving from one peer.
const LINES_PER_PASS: u64 = (64 * 1024 / LINE_LEN) as u64;
/// Passes for which a message stays in the ring while no receive is posted. A program that awaits
/// its receives one by one posts the next receive within a few passes. The message is then copied
/// to the receive, and not to a buffer of unexpected messages first.
const MAX_DEFERRED_PASSES: u8 = 8;

/// Identity of the peer's endpoint. A later endpoint may have the same name, but not the same
/// identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerIdentity {
    /// Process of the peer, as the kernel reports it ([`PeerCredentials::process`]).
    pub(crate) process: Option<u64>,
    /// Random incarnation number that the endpoint announces in the handshake.
    pub(crate) incarnation: u64,
}

impl From<PeerIdentity> for Incarnation {
    fn from(identity: PeerIdentity) -> Self {
        let process = u128::from(identity.process.unwrap_or_default());
        Self(u128::from(identity.incarnation) | process << 64 & (u128::MAX >> 1))
    }
}

/// The properties of the receiving endpoint that its connections need.
#[derive(Clone, Debug)]
pub(crate) struct LocalEndpoint {
    /// Random number, unlike that of any other endpoint of the same name.
    pub(crate) incarnation: u64,
    /// Whether peers may access memory of the domain.
    pub(crate) is_rma_target: bool,
    /// Whether the endpoint requests RMA events for all accesses.
    pub(crate) rma_events: bool,
    /// Whether the endpoint accepts CMA offers from peers whose memory the kernel lets it read.
    pub(crate) cma_enabled: bool,
    /// Counters of the chunks that peers have granted to the endpoint.
    pub(crate) received_loans: ReceivedLoans,
}

/// The control message by which a peer announces the end of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnnouncedEnd {
    /// The peer's endpoint closes.
    EndpointClosed,
    /// Only this connection ends.
    Disconnect,
}

/// What a record waits for that stays in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeldFor {
    /// The receive queue has declined the message.
    RxQueue,
    /// A region that the program uses, or room for a completion of remote access.
    RemoteAccess,
}

/// The receiving end of a connection.
#[derive(Debug)]
pub(crate) struct RxConnection {
    /// Name of the peer's endpoint.
    pub(crate) peer_address: Address,
    /// The peer in the receive queue and the engine; the default until it is added there.
    pub(crate) peer: ConnectedPeer,
    pub(crate) identity: PeerIdentity,
    local: LocalEndpoint,
    /// `None` once the peer has hung up and is down: a connection whose ring still has messages
    /// keeps no descriptor.
    socket: Option<ShmSocket>,
    ring: Consumer<Segment>,
    /// Chunks that the peer has granted, sorted by key.
    loan_mappings: Vec<(u64, Arc<LoanMapping>)>,
    /// Whether the peer was told to grant no further chunks.
    loans_refused: bool,
    /// Slots of the peer's loans and CMA offers that this side holds.
    held_slots: Arc<HeldSlots>,
    /// Process of the peer; `None` if its memory cannot be read, so that CMA offers are invalid,
    /// and once the peer is down.
    cma_peer: Option<Arc<CmaPeer>>,
    /// Messages copied from the memory of a peer that is down.
    final_cma_stats: Option<OpStats>,
    /// Bounce buffer of the peer's RMA requests, once granted.
    rma_bounce: Option<SharedMapping>,
    /// Regions of this side that were granted to the peer.
    granted_regions: GrantedRegions,
    /// The message whose fragments are arriving.
    partial: Option<PartialId>,
    /// What the oldest record waits for; `None` if it was not held when it was last polled.
    held_for: Option<HeldFor>,
    /// Number of passes, since a receive was last posted, that have left the oldest message in the
    /// ring because no receive was posted.
    deferred_passes: u8,
    /// The end that the peer has announced.
    announced_end: Option<AnnouncedEnd>,
    /// Reason why the peer is down; `None` while the peer is up.
    down_reason: Option<DownReason>,
    /// Number of doorbells rung at the peer.
    pub(crate) doorbells: u64,
}

impl RxConnection {
    /// Creates the receiving end for a peer whose handshake has announced `segment` and, together
    /// with the kernel, its name, credentials and incarnation. Finds out whether the peer's memory
    /// can be read, and records the result in the segment.
    pub(crate) fn establish(
        (peer_address, credentials, incarnation): (Address, PeerCredentials, u64),
        local: LocalEndpoint,
        segment: Segment,
        socket: ShmSocket,
    ) -> Self {
        let pid = credentials.pid.filter(|_| local.cma_enabled);
        let cma_peer =
            pid.and_then(|pid| CmaPeer::new(&peer_address, pid, &socket, &segment).map(Arc::new));
        if cma_peer.is_some() {
            segment.set_cma_capable();
        }
        let mut rx = Self {
            peer_address,
            peer: ConnectedPeer::default(),
            identity: PeerIdentity {
                process: credentials.process,
                incarnation,
            },
            local,
            socket: Some(socket),
            held_slots: Arc::new(HeldSlots::new(segment.clone())),
            ring: Consumer::new(segment),
            loan_mappings: Vec::new(),
            loans_refused: false,
            cma_peer,
            final_cma_stats: None,
            rma_bounce: None,
            granted_regions: GrantedRegions::default(),
            partial: None,
            held_for: None,
            deferred_passes: 0,
            announced_end: None,
            down_reason: None,
            doorbells: 0,
        };
        rx.update_loan_refusal();
        rx
    }

    /// Sends `Accept`: the peer's segment is mapped, and the peer may send.
    pub(crate) fn send_accept(&self) {
        self.send_control(ControlMessage::Accept(self.local.incarnation));
    }

    /// Adds the memory that is mapped for the connection.
    pub(crate) fn add_info(&self, info: &mut ShmInfo) {
        info.segments += 1;
        info.segment_bytes += self.ring.memory().mapped_len();
        info.loans += self.loan_mappings.len();
        let loans = self.loan_mappings.iter();
        info.loan_bytes += loans.map(|(_, loan)| loan.len()).sum::<usize>();
        info.bounce_buffers += usize::from(self.rma_bounce.is_some());
        info.bounce_bytes += self.rma_bounce.as_ref().map_or(0, RegionBytes::len);
    }

    /// Sends a control message unless the peer has hung up.
    fn send_control(&self, message: ControlMessage) {
        if let Some(socket) = &self.socket {
            control::send_control(socket, message);
        }
    }

    /// Returns the socket of the connection; `None` once the peer has hung up.
    pub(crate) fn socket(&self) -> Option<&ShmSocket> {
        self.socket.as_ref()
    }

    /// Watches the socket; its events carry `token`.
    pub(crate) fn watch(&mut self, wait: &Arc<dyn WaitSet>, token: u64) -> Result<()> {
        self.socket
            .as_mut()
            .map_or(Ok(()), |socket| socket.watch(wait, token))
    }

    /// Receives records from the ring, up to the limits of a pass. Returns whether a record was
    /// received, or a message deferred to the next pass.
    #[inline(always)] // fast path of small messages
    pub(crate) fn poll_ring<E: EngineContext>(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
    ) -> Result<bool, ShmProtocolViolation> {
        self.held_for = None;
        if self.ring.is_empty() {
            return Ok(false);
        }
        self.receive(ctx)
    }

    /// Receives as [`poll_ring`](Self::poll_ring) does, from a ring that is not empty.
    #[inline(never)] // inlined, the loop over messages has too few registers
    fn receive<E: EngineContext>(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
    ) -> Result<bool, ShmProtocolViolation> {
        let end_position = self.ring.position() + LINES_PER_PASS;
        match self.receive_plain(ctx, end_position) {
            ControlFlow::Break(progressed) => Ok(progressed),
            ControlFlow::Continue(received) => self.poll_unmatched(ctx, (received, end_position)),
        }
    }

    /// Receives plain messages up to `end_position` of the ring. Breaks with the result of
    /// [`poll_ring`](Self::poll_ring), or continues with the number of messages if a record is next
    /// that is not plain, or that the first posted receive does not match.
    #[inline(always)] // fast path of small messages
    fn receive_plain<E: EngineContext>(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        end_position: u64,
    ) -> ControlFlow<bool, usize> {
        let mut run = match self.partial {
            None => ctx.begin_plain_run(self.peer.sender()),
            Some(_) => None,
        };
        // Used where it is: a run is large.
        let Some(run) = &mut run else {
            return ControlFlow::Continue(0);
        };
        let mut received = 0;
        let polled = loop {
            let (start, len, lines) = match self.ring.peek_kind(MESSAGE, 0) {
                Peeked::Empty => break ControlFlow::Break(received > 0),
                Peeked::Record {
                    start, len, lines, ..
                } => (start, len, lines),
                Peeked::Other => break ControlFlow::Continue(received),
            };
            let memory = self.ring.memory();
            let mut payload_at = HEADER_LEN;
            if lines > 1 {
                if self.ring.position() >= end_position {
                    break ControlFlow::Break(true);
                }
                memory.prefetch(start, len);
                payload_at = plain_payload_offset(len);
            }
            let Some(payload) = memory.payload(start + payload_at, len - payload_at) else {
                break ControlFlow::Continue(received);
            };
            let delivery = run.deliver(&payload);
            if delivery == PlainDelivery::Declined {
                break ControlFlow::Continue(received);
            }
            received += 1;
            if self.ring.consume_lines(u64::from(lines)) {
                self.ring_doorbell();
            }
            // Without a receive, the next message would only be deferred.
            if delivery == PlainDelivery::ToLastReceive || received == RECORDS_PER_PASS {
                break ControlFlow::Break(true);
            }
        };
        if received > 0 {
            self.deferred_passes = 0;
        }
        polled
    }

    /// Continues [`poll_ring`](Self::poll_ring) with a record that is not plain, or that the first
    /// posted receive does not match.
    fn poll_unmatched<E: EngineContext>(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        (received, end_position): (usize, u64),
    ) -> Result<bool, ShmProtocolViolation> {
        match self.peek_message() {
            Peeked::Empty => return Ok(received > 0),
            Peeked::Record { .. } => {
                if ctx.has_posted() {
                    self.deferred_passes = 0;
                } else if self.defers_message(ctx) {
                    return Ok(true);
                }
            }
            Peeked::Other => {}
        }
        self.poll_ring_general(ctx, (received, end_position))
    }

    /// Peeks at the oldest record, which is a message in one record or another record.
    #[inline(always)] // fast path of small messages
    fn peek_message(&self) -> Peeked {
        self.ring.peek_kind(MESSAGE, TAGGED | CQ_DATA)
    }

    /// Receives the oldest record into `into`, if it is a plain message that fits, of at most
    /// `max_len` bytes, and the peer is `from` if that is given. Continues if the ring is empty,
    /// and breaks without a message if a pass has to process the record.
    #[inline(always)] // fast path of small messages
    pub(crate) fn try_recv(
        &mut self,
        from: Option<FiAddr>,
        max_len: usize,
        into: &mut AnyBuf,
    ) -> ControlFlow<Option<(usize, Option<FiAddr>)>> {
        let (start, len, lines) = match self.ring.peek_kind(MESSAGE, 0) {
            Peeked::Empty => return ControlFlow::Continue(()),
            Peeked::Record {
                start, len, lines, ..
            } if self.partial.is_none() => (start, len, lines),
            _ => return ControlFlow::Break(None),
        };
        if from.is_some() && from != self.peer.source() {
            return ControlFlow::Break(None);
        }
        let at = plain_payload_offset(len);
        let len = len - at;
        if !self.receive_whole((start + at, len), lines, max_len, into) {
            return ControlFlow::Break(None);
        }
        ControlFlow::Break(Some((len, self.peer.source())))
    }

    /// Receives as [`try_recv`](Self::try_recv) a tagged message that the receive accepts.
    pub(crate) fn try_recv_tagged(
        &mut self,
        spec: &RecvSpec,
        max_len: usize,
        into: &mut AnyBuf,
    ) -> ControlFlow<Option<Transfer>> {
        let (flags, start, len, lines) = match self.peek_message() {
            Peeked::Empty => return ControlFlow::Continue(()),
            Peeked::Record {
                flags,
                start,
                len,
                lines,
            } if self.partial.is_none() => (flags, start, len, lines),
            _ => return ControlFlow::Break(None),
        };
        let source = self.peer.source();
        if spec.from.is_some() && spec.from != source {
            return ControlFlow::Break(None);
        }
        let Some(layout) = RecordLayout::for_record(MESSAGE, flags, len) else {
            return ControlFlow::Break(None);
        };
        let word = |at: usize| self.ring.memory().read_word(start + at);
        let (tag, data) = (layout.tag.map(word), layout.data.map(word));
        let accepts_tag = match (spec.tag, tag) {
            (Some(wanted), Some(tag)) => wanted.accepts(tag),
            _ => false,
        };
        let (at, len) = (start + layout.payload, len - layout.payload);
        if !accepts_tag || !self.receive_whole((at, len), lines, max_len, into) {
            return ControlFlow::Break(None);
        }
        // The message cannot be requeued, which would need the arrival number.
        let mut transfer = Transfer::received_plain((PeerKey::default(), source), 0, len);
        (transfer.tag, transfer.data) = (tag, data);
        ControlFlow::Break(Some(transfer))
    }

    /// Copies the payload of the oldest record, `len` bytes from byte `at` of the lines on, into
    /// `into`, and consumes the record. Returns false if the payload does not fit.
    #[inline(always)] // fast path of small messages
    fn receive_whole(
        &mut self,
        (at, len): (usize, usize),
        lines: u32,
        max_len: usize,
        into: &mut AnyBuf,
    ) -> bool {
        let payload = self.ring.memory().payload(at, len);
        if len > max_len || !payload.is_some_and(|payload| into.receive_whole(&payload)) {
            return false;
        }
        if self.ring.consume_lines(u64::from(lines)) {
            self.ring_doorbell();
        }
        self.held_for = None;
        self.deferred_passes = 0;
        true
    }

    /// Returns whether the oldest message, for which no receive is posted, stays in the ring for
    /// another pass, and counts that pass. With a probe posted, messages are not deferred: a probe
    /// finds only messages that were offered to the receive queue.
    fn defers_message(&mut self, ctx: &EndpointContext<'_, impl EngineContext>) -> bool {
        let defers = self.deferred_passes < MAX_DEFERRED_PASSES
            && self.down_reason.is_none()
            && !ctx.has_probes();
        self.deferred_passes += u8::from(defers);
        defers
    }

    /// Continues [`poll_ring`](Self::poll_ring) with records of any kind, after `received` records
    /// in this pass and up to `end_position` of the ring. Returns whether this pass has received a
    /// record.
    fn poll_ring_general<E: EngineContext>(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        (received, end_position): (usize, u64),
    ) -> Result<bool, ShmProtocolViolation> {
        let mut progressed = received > 0;
        for index in received..RECORDS_PER_PASS {
            // The caller has checked this for the first record.
            if index > received
                && self.partial.is_none()
                && !ctx.has_posted()
                && matches!(self.peek_message(), Peeked::Record { .. })
                && self.defers_message(ctx)
            {
                break;
            }
            let Some(record) = self.ring.peek()? else {
                break;
            };
            self.ring
                .memory()
                .prefetch(record.start, record.header.len as usize);
            if !self.process_record(record, ctx)? {
                self.held_for = Some(match record.header.kind {
                    RMA_NOTIFICATION | RMA_REQUEST => HeldFor::RemoteAccess,
                    _ => HeldFor::RxQueue,
                });
                break;
            }
            progressed = true;
            if self.ring.consume(record) {
                self.ring_doorbell();
            }
            if self.ring.position() >= end_position {
                break;
            }
        }
        Ok(progressed)
    }

    /// Wakes the peer, whose flag in the segment says that it sleeps.
    #[cold]
    #[inline(never)] // inlined, it makes receiving from the ring longer
    fn ring_doorbell(&mut self) {
        if let Some(socket) = &self.socket {
            doorbell::ring(socket);
            self.doorbells += 1;
        }
    }

    /// Returns the layout and the payload of a record.
    #[inline(always)] // fast path of small messages
    fn split_record(
        &self,
        record: RecordRef,
    ) -> Result<(RecordLayout, MappedRange<'_>), ShmProtocolViolation> {
        let (kind, flags, len) = (
            record.header.kind,
            record.header.flags,
            record.header.len as usize,
        );
        let layout = RecordLayout::for_record(kind, flags, len)
            .ok_or(ShmProtocolViolation("record too short for its flags"))?;
        let payload = self
            .ring
            .memory()
            .payload(record.start + layout.payload, len - layout.payload);
        Ok((
            layout,
            payload.ok_or(ShmProtocolViolation("payload out of bounds"))?,
        ))
    }

    /// Returns the envelope of a message of `len` bytes from its first record.
    #[inline(always)] // fast path of small messages
    fn envelope(&self, record: RecordRef, layout: RecordLayout, len: usize) -> Envelope {
        let word = |at: usize| self.ring.memory().read_word(record.start + at);
        Envelope {
            peer: self.peer.key(),
            source: self.peer.source(),
            tag: layout.tag.map(word),
            len,
            data: layout.data.map(word),
            arrival: 0,
            ack: None,
        }
    }

    /// Processes one record. Returns false if the record must stay in the ring.
    #[inline(always)] // fast path of small messages
    fn process_record<E: EngineContext>(
        &mut self,
        record: RecordRef,
        ctx: &mut EndpointContext<'_, E>,
    ) -> Result<bool, ShmProtocolViolation> {
        if self.partial.is_some() || record.header.kind != MESSAGE {
            return self.process_other_record(record, ctx);
        }
        let (layout, payload) = self.split_record(record)?;
        Ok(ctx.deliver(self.envelope(record, layout, payload.len()), &payload))
    }

    /// Processes a record that is not a whole message, or that comes before the last fragment of a
    /// message, which is a violation. Returns false if the record must stay in the ring.
    fn process_other_record<E: EngineContext>(
        &mut self,
        record: RecordRef,
        ctx: &mut EndpointContext<'_, E>,
    ) -> Result<bool, ShmProtocolViolation> {
        if self.loans_refused {
            // The record may be of a loan that the peer has copied because it was told so.
            self.update_loan_refusal();
        }
        let (layout, payload) = self.split_record(record)?;
        let word = |at: usize| self.ring.memory().read_word(record.start + at);
        let full_len = layout.full_len.map(word);
        match record.header.kind {
            FRAGMENT => {
                let id = self
                    .partial
                    .ok_or(ShmProtocolViolation("fragment without a message"))?;
                if payload.is_empty() || payload.len() > ctx.remaining(id) {
                    return Err(ShmProtocolViolation("fragment exceeds its message"));
                }
                if ctx.append(id, &payload) {
                    self.partial = None;
                }
                Ok(true)
            }
            _ if self.partial.is_some() => {
                Err(ShmProtocolViolation("new message before the last fragment"))
            }
            RMA_NOTIFICATION => {
                if !self.local.is_rma_target || payload.len() != 8 {
                    return Err(ShmProtocolViolation(
                        "RMA notification of wrong length, or endpoint is not an RMA target",
                    ));
                }
                let (key, data) = (word(layout.payload), layout.data.map(word));
                let access = if record.header.flags & RMA_READ != 0 {
                    RemoteAccess::Read
                } else {
                    RemoteAccess::Write
                };
                if !self.granted_regions.permit(key, access) {
                    return Err(ShmProtocolViolation(
                        "RMA notification of an access that was not granted",
                    ));
                }
                if access == RemoteAccess::Read && data.is_some() {
                    return Err(ShmProtocolViolation(
                        "RMA notification of a read with completion data",
                    ));
                }
                let len = usize::try_from(full_len.unwrap_or(0)).unwrap_or(usize::MAX);
                let transfer = Transfer::written(len, data, self.peer.source());
                Ok(ctx.on_remote_access(key, access, transfer))
            }
            RMA_REQUEST => {
                if payload.len() != REQUEST_LEN || !self.local.is_rma_target {
                    return Err(ShmProtocolViolation(
                        "RMA request of wrong length, or endpoint is not an RMA target",
                    ));
                }
                let request = RmaRequest::from_words(|at| word(layout.payload + 8 * at));
                self.serve_rma_request(
                    &request.ok_or(ShmProtocolViolation("invalid RMA request"))?,
                    ctx,
                )
            }
            kind @ (LOAN | CMA_OFFER) => {
                if payload.len() != LOCATION_LEN {
                    return Err(ShmProtocolViolation("message location of wrong length"));
                }
                let (len, ack) = decode_len_and_ack(full_len.unwrap_or(u64::MAX));
                let slot = usize::try_from(word(layout.payload + 8)).unwrap_or(usize::MAX);
                let location = (word(layout.payload), slot);
                let envelope = Envelope {
                    ack,
                    ..self.envelope(record, layout, len)
                };
                if kind == LOAN {
                    self.receive_loan(envelope, location, ctx)
                } else {
                    self.receive_cma_offer(envelope, location, ctx)
                }
            }
            FIRST_FRAGMENT if let Some(full_len) = full_len => {
                let (len, ack) = decode_len_and_ack(full_len);
                let envelope = Envelope {
                    ack,
                    ..self.envelope(record, layout, len)
                };
                // A message in one record that requests an ack.
                if ack.is_some() && len == payload.len() {
                    return Ok(ctx.deliver(envelope, &payload));
                }
                if len <= payload.len() || len > MAX_MSG_SIZE {
                    return Err(ShmProtocolViolation("message length out of bounds"));
                }
                let Some(id) = ctx.begin_partial(envelope) else {
                    return Ok(false);
                };
                ctx.append(id, &payload);
                self.partial = Some(id);
                Ok(true)
            }
            _ => Err(ShmProtocolViolation("unknown record kind")),
        }
    }

    /// Reads the socket: handles up to [`READS_PER_POLL`] control messages. Returns the reason why
    /// the peer is down, if it is.
    pub(crate) fn on_readable(
        &mut self,
        ctx: &EndpointContext<'_, impl EngineContext>,
    ) -> Option<DownReason> {
        for _ in 0..READS_PER_POLL {
            let read = self.socket.as_ref().map(control::recv_control);
            let handled = match read.unwrap_or(Err(ReadError::HungUp)) {
                Ok(Some(event)) => self.on_control(event, ctx),
                Ok(None) => return None,
                Err(ReadError::HungUp) if self.announced_end.is_some() => {
                    return Some(DownReason::Closed);
                }
                Err(ReadError::HungUp) => return Some(DownReason::Died),
                Err(error) => Err(error.violation()),
            };
            if let Err(what) = handled {
                return Some(DownReason::Protocol(what));
            }
        }
        None
    }

    /// Handles a control message or a memory grant.
    ///
    /// # Errors
    /// The protocol violation.
    fn on_control(
        &mut self,
        event: ControlEvent,
        ctx: &EndpointContext<'_, impl EngineContext>,
    ) -> Result<(), &'static str> {
        let message = match event {
            ControlEvent::Grant(grant) => return self.on_grant(grant),
            ControlEvent::GrantWithoutFd(_) => {
                return Err("no descriptor left for a memory grant (RLIMIT_NOFILE)");
            }
            ControlEvent::Message(message) => message,
        };
        match message {
            ControlMessage::Doorbell => {}
            ControlMessage::EndpointClosed if self.announced_end.is_none() => {
                self.announced_end = Some(AnnouncedEnd::EndpointClosed);
            }
            ControlMessage::Disconnect if self.announced_end.is_none() => {
                self.announced_end = Some(AnnouncedEnd::Disconnect);
            }
            ControlMessage::MapMr(key) if self.respond_to_map_mr(ctx, key) => {}
            ControlMessage::MapMr(_) => {
                return Err("peer does not read the responses to its requests");
            }
            ControlMessage::UnmapLoan(key) => self.unmap_loan(key),
            _ => return Err("unexpected control message from a sender"),
        }
        Ok(())
    }

    /// Returns whether the peer has sent `Disconnect`: the connection ends, and the peer's endpoint
    /// stays open.
    pub(crate) fn has_disconnected(&self) -> bool {
        self.announced_end == Some(AnnouncedEnd::Disconnect)
    }

    /// Returns the reason why the peer is down; `None` while the peer is up.
    pub(crate) fn down_reason(&self) -> Option<DownReason> {
        self.down_reason
    }

    /// Returns whether no record is left to receive: the ring is empty, or the peer has violated
    /// the protocol.
    pub(crate) fn is_drained(&mut self) -> bool {
        matches!(self.ring.peek(), Ok(None) | Err(_))
            || matches!(self.down_reason, Some(DownReason::Protocol(_)))
    }

    /// Returns whether the last pass has left the oldest record in the ring, because the record
    /// could not be processed.
    #[inline]
    pub(crate) fn has_held_record(&self) -> bool {
        self.held_for.is_some()
    }

    /// Returns how many bytes of the message that the receive queue has declined are in the first
    /// record of the message: none of a loan, which is in other memory. `None` if no message was
    /// declined.
    pub(crate) fn declined_len(&mut self) -> Option<usize> {
        if self.held_for != Some(HeldFor::RxQueue) {
            return None;
        }
        let record = self.ring.peek().ok().flatten()?;
        let kind = record.header.kind;
        let (_, payload) = self.split_record(record).ok()?;
        Some(match kind {
            LOAN | CMA_OFFER => 0,
            _ => payload.len(),
        })
    }

    /// Returns whether the connection may become idle: a held message and the records of a peer
    /// that is down need polling.
    pub(crate) fn may_become_idle(&self) -> bool {
        self.held_for.is_none() && self.down_reason.is_none()
    }

    /// Fails the message whose fragments were arriving, if there is one.
    pub(crate) fn fail_partial<E: EngineContext>(
        &mut self,
        ctx: &mut EndpointContext<'_, E>,
        error: Error,
    ) {
        if let Some(id) = self.partial.take() {
            ctx.fail_partial(id, error);
        }
    }

    /// Records the reason why the peer is down. Returns false if a reason was recorded before,
    /// which is kept.
    pub(crate) fn mark_down(&mut self, reason: DownReason) -> bool {
        let is_new = self.down_reason.is_none();
        self.down_reason.get_or_insert(reason);
        is_new
    }

    /// Stops watching the socket.
    pub(crate) fn unwatch(&mut self) {
        if let Some(socket) = &mut self.socket {
            socket.unwatch();
        }
    }

    /// Closes the connection: the ring is not read any more. Announces the end with
    /// `EndpointClosed`, or with `Disconnect` if the endpoint stays open.
    pub(crate) fn close(&self, announcement: ControlMessage) {
        self.stop_cma();
        self.ring.close();
        self.send_control(announcement);
    }

    /// Arms the doorbell before this side sleeps. Returns false if a record can be received now.
    pub(crate) fn arm(&mut self) -> bool {
        // A held message does not keep this side awake: a task of this process has to post a
        // receive, free buffer space or drop a guard, and does so with a pass.
        self.ring.arm() || self.has_held_record()
    }

    /// Disarms the doorbell after this side has slept.
    pub(crate) fn disarm(&mut self) {
        self.ring.disarm();
    }
}
