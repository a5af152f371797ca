//! Memory beside the ring: loans, single-copy messages, and requests of the peer to map or access
//! regions.
//!
//! `receive_loan` finds the mapping of the chunk, reading the socket ahead of its turn if the
//! descriptor has not been read yet, and offers the message to the receive queue. `receive_cma_offer`
//! offers it as peer memory that is not mapped.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use fabric_core::buf::PeerMemory;
use fabric_core::event::DownReason;
use fabric_core::flags::Access;
use fabric_core::matching::Envelope;
use fabric_core::rx::RxQueue;
use fabric_core::stats::OpStats;
use fabric_core::transport::EngineContext;
use rustix::io::Errno;

use super::super::cma::CmaTransfer;
use super::super::control::{self, ControlMessage, MemoryGrant};
use super::super::loans::{self, LoanGuard, LoanMapping, ReturnOnDrop};
use super::super::ring::ShmProtocolViolation;
use super::super::rma_bounce::{self, RmaRequest};
use super::super::shared_memory::{SharedMapping, SharedMemory};
use super::super::socket;
use super::RxConnection;

/// Reads of the socket in search of the grant that a record refers to: each reads up to
/// `READS_PER_POLL` messages, more in total than a socket has room for.
const READS_FOR_GRANT: usize = 32;

/// Offers a message in the sender's memory to the receive queue. Returns false if it must wait.
fn deliver_in_place<M: ReturnOnDrop + PeerMemory>(
    rx: &mut RxQueue,
    engine: &mut impl EngineContext,
    envelope: Envelope,
    message: M,
) -> bool {
    let message = Arc::new(message);
    let taken = rx.deliver_peer_memory(engine, envelope, &(message.clone() as Arc<dyn PeerMemory>));
    if !taken {
        // The record stays in the ring and is offered again later.
        Arc::into_inner(message)
            .into_iter()
            .for_each(ReturnOnDrop::cancel_return);
    }
    taken
}

impl RxConnection {
    /// Handles a granted chunk for loans, or the granted bounce buffer of the peer.
    pub(super) fn on_grant(&mut self, grant: MemoryGrant<OwnedFd>) -> Result<(), &'static str> {
        if grant.access.contains(Access::REMOTE_WRITE) {
            let mapping = SharedMapping::map_from_peer(&grant.memory, grant.len, true);
            socket::close_in_background(vec![grant.memory]);
            let is_valid = grant.len == rma_bounce::BOUNCE_BUFFER_LEN
                && self.rma_bounce.is_none()
                && self.local.is_rma_target;
            self.rma_bounce = Some(
                is_valid
                    .then_some(mapping?)
                    .ok_or("bounce buffer of wrong size, or a second one")?,
            );
            return Ok(());
        }
        let mapping = if grant.len > loans::MAX_LOAN_BYTES {
            Err("loan chunk exceeds the maximum size")
        } else {
            SharedMapping::map_from_peer(&grant.memory, grant.len, false)
        };
        if self.loan_mappings.len() >= loans::MAX_LOAN_MAPPINGS || mapping.is_err() {
            socket::close_in_background(vec![grant.memory]);
            return Err(mapping.err().unwrap_or("too many loan mappings"));
        }
        let mapping = self
            .local
            .received_loans
            .add_mapping(mapping?, grant.memory)
            .ok_or("too many loan mappings")?;
        match self
            .loan_mappings
            .binary_search_by_key(&grant.key, |(key, _)| *key)
        {
            Ok(_) => return Err("loan chunk granted twice"),
            Err(at) => self.loan_mappings.insert(at, (grant.key, mapping)),
        }
        Ok(())
    }

    /// Reads the socket until `is_present` holds: the grant that a record refers to was sent before
    /// the record, behind other messages. A hang-up is found again by the next read.
    fn read_socket_until(
        &mut self,
        engine: &impl EngineContext,
        is_present: impl Fn(&Self) -> bool,
    ) -> Result<(), ShmProtocolViolation> {
        for _ in 0..READS_FOR_GRANT {
            if is_present(self) {
                break;
            }
            match self.on_readable(engine) {
                Some(DownReason::Protocol(what)) => return Err(ShmProtocolViolation(what)),
                Some(_) => break,
                None => {}
            }
        }
        Ok(())
    }

    /// Receives a message in a lent chunk. Returns false if the record must stay in the ring.
    pub(super) fn receive_loan(
        &mut self,
        envelope: Envelope,
        (key, slot): (u64, usize),
        rx: &mut RxQueue,
        engine: &mut impl EngineContext,
    ) -> Result<bool, ShmProtocolViolation> {
        let find = |mappings: &[(u64, Arc<LoanMapping>)]| {
            mappings
                .binary_search_by_key(&key, |(key, _)| *key)
                .ok()
                .map(|at| mappings[at].1.clone())
        };
        self.read_socket_until(engine, |peer| find(&peer.loan_mappings).is_some())?;
        let mapping =
            find(&self.loan_mappings).ok_or(ShmProtocolViolation("loan in unknown memory"))?;
        let segment = self.ring.memory().clone();
        let socket = self.socket.handle();
        let guard = LoanGuard::new(mapping, envelope.len, (segment, slot), socket)
            .ok_or(ShmProtocolViolation("loan out of bounds"))?;
        Ok(deliver_in_place(rx, engine, envelope, guard))
    }

    /// Receives a message in the peer's own memory. Returns false if the record must stay in the
    /// ring.
    pub(super) fn receive_cma_offer(
        &mut self,
        envelope: Envelope,
        (at, slot): (u64, usize),
        rx: &mut RxQueue,
        engine: &mut impl EngineContext,
    ) -> Result<bool, ShmProtocolViolation> {
        let cma_peer = self.cma_peer.clone().ok_or(ShmProtocolViolation(
            "single-copy message on a connection where process_vm_readv is not enabled",
        ))?;
        if self.down_reason.is_some() {
            // The message is lost with its sender, to which it was not acknowledged.
            return Ok(true);
        }
        let transfer = CmaTransfer::new(cma_peer, at, envelope.len, slot)
            .ok_or(ShmProtocolViolation("single-copy message out of bounds"))?;
        Ok(deliver_in_place(rx, engine, envelope, transfer))
    }

    /// Executes an RMA request and writes the response. Returns false if the request must wait.
    pub(super) fn serve_rma_request(
        &mut self,
        request: &RmaRequest,
        engine: &impl EngineContext,
    ) -> Result<bool, ShmProtocolViolation> {
        self.read_socket_until(engine, |peer| peer.rma_bounce.is_some())?;
        let bounce_buffer = self
            .rma_bounce
            .as_ref()
            .ok_or(ShmProtocolViolation("RMA request without a bounce buffer"))?;
        let served = request.execute(bounce_buffer, engine);
        if served && self.ring.take_producer_waiting() {
            self.ring_doorbell();
        }
        Ok(served)
    }

    /// Responds to a request for the region with this key. Returns false if the peer does not read
    /// responses.
    pub(super) fn respond_to_map_mr(&self, engine: &impl EngineContext, key: u64) -> bool {
        let not_found = || control::try_send_control(&self.socket, ControlMessage::MrNotFound(key));
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let known = engine
            .region(key)
            .filter(|region| region.access.intersects(remote));
        let Some(region) = known.filter(|_| self.local.is_rma_target) else {
            return not_found();
        };
        if region.memory.is_served_by_owner() {
            return control::try_send_control(
                &self.socket,
                ControlMessage::MrServedByOwner(key, self.local.rma_events || region.rma_events),
            );
        }
        let memory: &dyn Any = &*region.memory;
        let Some(shared) = memory.downcast_ref::<SharedMemory>() else {
            return not_found();
        };
        let (len, access, rma_events) = (
            region.memory.len(),
            region.access,
            self.local.rma_events || region.rma_events,
        );
        let grant = MemoryGrant {
            key,
            len,
            access,
            base: region.base,
            rma_events,
            memory: shared.fd(),
        };
        match control::send_grant(&self.socket, &grant) {
            Ok(()) => true,
            Err(Errno::AGAIN) => false,
            // Too many descriptors are in flight (`ETOOMANYREFS`), or the peer has ended.
            Err(_) => not_found(),
        }
    }

    /// Wakes the peer if it waits for slots that were returned.
    ///
    /// # Errors
    /// Reason for which the peer ended, if it has.
    pub(crate) fn wake_for_returned_slots(&mut self) -> Result<(), DownReason> {
        let Some(cma_peer) = &self.cma_peer else {
            return Ok(());
        };
        if cma_peer.take_slots_returned()? && self.ring.take_producer_waiting() {
            self.ring_doorbell();
        }
        Ok(())
    }

    /// Acknowledges the message with this ack id, and wakes the peer if it sleeps.
    pub(crate) fn send_ack(&mut self, ack_id: u32) {
        self.ring.memory().set_ack(ack_id as usize);
        if self.ring.take_producer_waiting() {
            self.ring_doorbell();
        }
    }

    /// Returns counters of the bytes copied from the peer; `None` if single copy is not available.
    pub(crate) fn cma_stats(&self) -> Option<OpStats> {
        self.cma_peer.as_ref().map(|cma_peer| cma_peer.stats())
    }

    /// Stops single copy: messages not copied yet have not arrived.
    pub(crate) fn stop_cma(&self) {
        if let Some(cma_peer) = &self.cma_peer {
            cma_peer.close();
        }
    }
}
