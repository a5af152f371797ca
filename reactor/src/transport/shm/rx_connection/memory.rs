//! Memory that is not in the ring: received loans and CMA offers, map requests and RMA requests of
//! the peer, and acks.
//!
//! `receive_loan` and `receive_cma_offer` offer a message in the sender's memory to the receive
//! queue. The grant of a loan's chunk was sent over the socket before the loan's record, but may
//! not have been read; `receive_loan` then reads the socket first. `respond_to_map_mr` grants the
//! memory of a region to the peer, and `serve_rma_request` accesses a region that is not granted.

use std::sync::Arc;

use fabric_core::buf::PeerMemory;
use fabric_core::event::DownReason;
use fabric_core::flags::Access;
use fabric_core::matching::Envelope;
use fabric_core::stats::OpStats;
use fabric_core::transport::{EndpointContext, EngineContext};
use rustix::io::Errno;

use super::super::cma::CmaTransfer;
use super::super::control::{self, ControlMessage, MemoryGrant};
use super::super::held_slots::HeldSlot;
use super::super::loans::{self, LoanGuard, LoanMapping, ReturnOnDrop};
use super::super::ring::ShmProtocolViolation;
use super::super::rma_bounce::{self, RmaRequest};
use super::super::shared_memory;
use super::super::socket::ShmSocket;
use super::RxConnection;
use crate::sys::closer::PeerFd;

/// Maximum number of `on_readable` calls in search of a grant. Each reads up to `READS_PER_POLL`
/// messages; all together read more messages than a socket has room for.
const READS_FOR_GRANT: usize = 32;

/// Offers a message in the sender's memory to the receive queue. Returns false if the queue has not
/// taken the message, so that its record must stay in the ring.
fn deliver_in_place<M: ReturnOnDrop + PeerMemory, E: EngineContext>(
    ctx: &mut EndpointContext<'_, E>,
    envelope: Envelope,
    message: M,
) -> bool {
    let message = Arc::new(message);
    let taken = ctx.deliver_peer_memory(envelope, &(message.clone() as Arc<dyn PeerMemory>));
    if !taken {
        // A later pass receives the record again, and creates a message with the same slot.
        Arc::into_inner(message)
            .into_iter()
            .for_each(ReturnOnDrop::cancel_return);
    }
    taken
}

impl RxConnection {
    /// Handles a memory grant: the peer's bounce buffer if it is writable, otherwise a chunk for
    /// loans.
    ///
    /// # Errors
    /// The protocol violation.
    pub(super) fn on_grant(&mut self, grant: MemoryGrant<PeerFd>) -> Result<(), &'static str> {
        if grant.control_page.is_some() {
            return Err("bounce buffer or loan chunk with a second descriptor");
        }
        if grant.access.contains(Access::REMOTE_WRITE) {
            let mapping = shared_memory::map_from_peer(&grant.memory, grant.len, true);
            if !self.local.is_rma_target {
                return Err("bounce buffer for an endpoint that is not an RMA target");
            }
            if grant.len != rma_bounce::BOUNCE_BUFFER_LEN || self.rma_bounce.is_some() {
                return Err("bounce buffer of wrong size, or a second one");
            }
            self.rma_bounce = Some(mapping?);
            return Ok(());
        }
        if grant.len > loans::MAX_LOAN_BYTES {
            return Err("loan chunk exceeds the maximum size");
        }
        let received = &self.local.received_loans;
        let permit = received
            .reserve(self.loan_mappings.len())
            .ok_or("loan that was granted although this process has too many mappings")?;
        let mapping = shared_memory::map_from_peer(&grant.memory, grant.len, false)?;
        let mapping = received.add_mapping(permit, mapping, grant.memory);
        match self
            .loan_mappings
            .binary_search_by_key(&grant.key, |(key, _)| *key)
        {
            Ok(_) => return Err("loan chunk granted twice"),
            Err(at) => self.loan_mappings.insert(at, (grant.key, mapping)),
        }
        self.update_loan_refusal();
        Ok(())
    }

    /// Unmaps a chunk that the peer does not lend any more.
    pub(super) fn unmap_loan(&mut self, key: u64) {
        self.loan_mappings.retain(|(granted, _)| *granted != key);
        self.update_loan_refusal();
    }

    /// Tells the peer whether it may grant further chunks.
    pub(super) fn update_loan_refusal(&mut self) {
        let received = &self.local.received_loans;
        let refused = !received.permits_grants(self.loan_mappings.len());
        if refused != self.loans_refused {
            self.loans_refused = refused;
            self.ring.memory().set_loans_refused(refused);
        }
    }

    /// Reads the socket until `is_present` holds, or the socket has no more messages: the grant
    /// that a record refers to was sent before the record, behind other messages. A hang-up is not
    /// handled here; the next read returns it again.
    fn read_socket_until(
        &mut self,
        ctx: &EndpointContext<'_, impl EngineContext>,
        is_present: impl Fn(&Self) -> bool,
    ) -> Result<(), ShmProtocolViolation> {
        for _ in 0..READS_FOR_GRANT {
            if is_present(self) {
                break;
            }
            match self.on_readable(ctx) {
                Some(DownReason::Protocol(what)) => return Err(ShmProtocolViolation(what)),
                Some(_) => break,
                None => {}
            }
        }
        Ok(())
    }

    /// Receives a message in a lent chunk. Returns false if the record must stay in the ring.
    pub(super) fn receive_loan<E: EngineContext>(
        &mut self,
        envelope: Envelope,
        (key, slot): (u64, usize),
        ctx: &mut EndpointContext<'_, E>,
    ) -> Result<bool, ShmProtocolViolation> {
        let find = |mappings: &[(u64, Arc<LoanMapping>)]| {
            mappings
                .binary_search_by_key(&key, |(key, _)| *key)
                .ok()
                .map(|at| mappings[at].1.clone())
        };
        self.read_socket_until(ctx, |rx| find(&rx.loan_mappings).is_some())?;
        let mapping = find(&self.loan_mappings)
            .ok_or(ShmProtocolViolation("loan in a chunk that was not granted"))?;
        let slot = HeldSlot::hold(&self.held_slots, slot)?;
        let socket = self.socket.as_ref().map(ShmSocket::handle);
        let guard = LoanGuard::new(mapping, envelope.len, slot, socket.unwrap_or_default())
            .ok_or(ShmProtocolViolation("loan out of bounds"))?;
        Ok(deliver_in_place(ctx, envelope, guard))
    }

    /// Receives a message in the memory of the peer's process. Returns false if the record must
    /// stay in the ring.
    pub(super) fn receive_cma_offer<E: EngineContext>(
        &mut self,
        envelope: Envelope,
        (address, slot): (u64, usize),
        ctx: &mut EndpointContext<'_, E>,
    ) -> Result<bool, ShmProtocolViolation> {
        if self.down_reason.is_some() {
            // The memory is gone with its process. The slot is not returned, so the send does not
            // succeed.
            return Ok(true);
        }
        let cma_peer = self.cma_peer.clone().ok_or(ShmProtocolViolation(
            "single-copy message on a connection where process_vm_readv is not enabled",
        ))?;
        let slot = HeldSlot::hold(&self.held_slots, slot)?;
        let transfer = CmaTransfer::new(cma_peer, address, envelope.len, slot)
            .ok_or(ShmProtocolViolation("single-copy message out of bounds"))?;
        Ok(deliver_in_place(ctx, envelope, transfer))
    }

    /// Executes an RMA request and writes the response. Returns false if the request must stay in
    /// the ring, because the application holds a guard of the region.
    pub(super) fn serve_rma_request(
        &mut self,
        request: &RmaRequest,
        ctx: &EndpointContext<'_, impl EngineContext>,
    ) -> Result<bool, ShmProtocolViolation> {
        self.read_socket_until(ctx, |rx| rx.rma_bounce.is_some())?;
        let bounce_buffer = self
            .rma_bounce
            .as_ref()
            .ok_or(ShmProtocolViolation("RMA request without a bounce buffer"))?;
        let served = request.execute(bounce_buffer, ctx);
        if served {
            self.wake_producer();
        }
        Ok(served)
    }

    /// Responds to the peer's map request for the region with this key. Returns false if the socket
    /// is full, because the peer does not read responses.
    pub(super) fn respond_to_map_mr(
        &mut self,
        ctx: &EndpointContext<'_, impl EngineContext>,
        key: u64,
    ) -> bool {
        let Some(socket) = &self.socket else {
            return true;
        };
        let not_found = ControlMessage::MrNotFound(key);
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let granted = ctx
            .region(key)
            .filter(|region| self.local.is_rma_target && region.access.intersects(remote));
        let Some(region) = granted else {
            return control::try_send_control(socket, not_found);
        };
        let rma_events = self.local.rma_events || region.rma_events;
        let is_registered = |key| ctx.region(key).is_some();
        // Memory that is mapped to be written can also be read.
        let is_readable = region.access.contains(Access::REMOTE_READ);
        let grantable = shared_memory::grantable(&*region.memory).filter(|_| is_readable);
        let Some((memory, control_page)) = grantable else {
            self.granted_regions
                .insert(key, region.access, is_registered);
            let served = ControlMessage::MrServedByOwner { key, rma_events };
            return control::try_send_control(socket, served);
        };
        let grant = MemoryGrant {
            key,
            len: region.memory.len(),
            access: region.access,
            base: region.base,
            rma_events,
            memory,
            control_page,
        };
        match control::send_grant(socket, &grant) {
            Ok(()) => {
                self.granted_regions
                    .insert(key, region.access, is_registered);
                true
            }
            Err(Errno::AGAIN) => false,
            // Too many descriptors are in flight (`ETOOMANYREFS`), or the peer has ended.
            Err(_) => control::try_send_control(socket, not_found),
        }
    }

    /// Wakes the peer if it sleeps and slots of CMA offers were returned.
    ///
    /// # Errors
    /// Reason why the peer is down, if a copy from its memory has failed for it.
    pub(crate) fn wake_for_returned_slots(&mut self) -> Result<(), DownReason> {
        let Some(cma_peer) = &self.cma_peer else {
            return Ok(());
        };
        if cma_peer.take_slots_returned()? {
            self.wake_producer();
        }
        Ok(())
    }

    /// Acknowledges the message with this ack id, and wakes the peer if it sleeps.
    pub(crate) fn send_ack(&mut self, ack_id: u32) {
        self.ring.memory().set_ack(ack_id as usize);
        self.wake_producer();
    }

    /// Wakes the peer if it sleeps.
    fn wake_producer(&mut self) {
        if self.ring.take_producer_waiting() {
            self.ring_doorbell();
        }
    }

    /// Returns the number of messages and bytes copied from the peer's memory; `None` if this
    /// process cannot read that memory.
    pub(crate) fn cma_stats(&self) -> Option<OpStats> {
        let cma_peer = self.cma_peer.as_ref();
        cma_peer
            .map(|cma_peer| cma_peer.stats())
            .or(self.final_cma_stats)
    }

    /// Gives back the descriptors of a peer that is down, as far as its ring can be received
    /// without them: that of the process, and the socket if the peer has hung up. Returns whether
    /// none is left.
    ///
    /// Grants that a record in the ring refers to may still be in the socket, so the socket is read
    /// first.
    pub(crate) fn release_descriptors(
        &mut self,
        ctx: &EndpointContext<'_, impl EngineContext>,
    ) -> bool {
        self.final_cma_stats = self.cma_stats();
        self.cma_peer = None;
        let end = (0..READS_FOR_GRANT).find_map(|_| self.on_readable(ctx));
        if let Some(DownReason::Closed | DownReason::Died) = end {
            // All messages of the socket were received.
            self.socket = None;
        }
        self.socket.is_none()
    }

    /// Stops returning slots of CMA offers: the sends of messages not copied yet fail.
    pub(crate) fn stop_cma(&self) {
        if let Some(cma_peer) = &self.cma_peer {
            cma_peer.close();
        }
    }
}
