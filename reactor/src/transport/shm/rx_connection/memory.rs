//! Memory beside the ring: what the peer lends, what lies in its own, and what it asks to see of
//! ours.

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

/// How often the socket is read for memory that a record speaks of: more words than it has room
/// for.
const READS_FOR_GRANT: usize = 32;

/// Offers a message that lies with its sender; false when nobody wants it now.
fn deliver_in_place<M: ReturnOnDrop + PeerMemory>(
    rx: &mut RxQueue,
    host: &mut dyn EngineContext,
    envelope: Envelope,
    message: M,
) -> bool {
    let message = Arc::new(message);
    let taken = rx.deliver_peer_memory(host, envelope, &(message.clone() as Arc<dyn PeerMemory>));
    if !taken {
        // It stays where it is: the record is looked at again.
        Arc::into_inner(message)
            .into_iter()
            .for_each(ReturnOnDrop::cancel_return);
    }
    taken
}

impl RxConnection {
    /// The peer has sent memory that it is going to lend, or a desk.
    pub(super) fn on_grant(&mut self, grant: MemoryGrant<OwnedFd>) -> Result<(), &'static str> {
        if grant.access.contains(Access::REMOTE_WRITE) {
            let area = SharedMapping::map_from_peer(&grant.memory, grant.len, true);
            socket::close_in_background(vec![grant.memory]);
            let is_desk = grant.len == rma_bounce::BOUNCE_BUFFER_LEN
                && self.rma_bounce.is_none()
                && self.local.is_rma_target;
            self.rma_bounce = Some(
                is_desk
                    .then_some(area?)
                    .ok_or("a desk of another size, or a second one")?,
            );
            return Ok(());
        }
        let area = if grant.len > loans::MAX_LOAN_BYTES {
            Err("more memory than anybody lends")
        } else {
            SharedMapping::map_from_peer(&grant.memory, grant.len, false)
        };
        socket::close_in_background(vec![grant.memory]);
        if self.loan_mappings.len() >= loans::MAX_LOAN_MAPPINGS {
            return Err("too much memory to lend");
        }
        let area = self
            .local
            .received_loans
            .add_mapping(area?)
            .ok_or("too much memory to lend")?;
        match self
            .loan_mappings
            .binary_search_by_key(&grant.key, |(key, _)| *key)
        {
            Ok(_) => return Err("the same memory twice"),
            Err(at) => self.loan_mappings.insert(at, (grant.key, area)),
        }
        Ok(())
    }

    /// Reads the socket until this is there: what a record speaks of was sent before it, behind
    /// other words. That the peer has hung up is found again.
    fn read_socket_until(
        &mut self,
        host: &dyn EngineContext,
        is_there: impl Fn(&Self) -> bool,
    ) -> Result<(), ShmProtocolViolation> {
        for _ in 0..READS_FOR_GRANT {
            if is_there(self) {
                break;
            }
            match self.on_readable(host) {
                Some(DownReason::Protocol(what)) => return Err(ShmProtocolViolation(what)),
                Some(_) => break,
                None => {}
            }
        }
        Ok(())
    }

    /// Takes a message that lies in memory which the peer has lent; false when it has to stay.
    pub(super) fn receive_loan(
        &mut self,
        envelope: Envelope,
        (key, slot): (u64, usize),
        rx: &mut RxQueue,
        host: &mut dyn EngineContext,
    ) -> Result<bool, ShmProtocolViolation> {
        let find = |lent: &[(u64, Arc<LoanMapping>)]| {
            lent.binary_search_by_key(&key, |(key, _)| *key)
                .ok()
                .map(|at| lent[at].1.clone())
        };
        self.read_socket_until(host, |peer| find(&peer.loan_mappings).is_some())?;
        let area =
            find(&self.loan_mappings).ok_or(ShmProtocolViolation("a loan of unknown memory"))?;
        let segment = self.ring.memory().clone();
        let borrow = LoanGuard::new(area, envelope.len, segment, slot)
            .ok_or(ShmProtocolViolation("a loan out of bounds"))?;
        Ok(deliver_in_place(rx, host, envelope, borrow))
    }

    /// Takes a message that lies in the peer's own memory; false when it has to stay.
    pub(super) fn receive_cma(
        &mut self,
        envelope: Envelope,
        (at, slot): (u64, usize),
        rx: &mut RxQueue,
        host: &mut dyn EngineContext,
    ) -> Result<bool, ShmProtocolViolation> {
        let reach = self.cma_peer.clone().ok_or(ShmProtocolViolation(
            "a message in memory that cannot be read",
        ))?;
        if self.down_reason.is_some() {
            // It went with its sender, who was not told that it arrived.
            return Ok(true);
        }
        let fetch = CmaTransfer::new(reach, at, envelope.len, slot)
            .ok_or(ShmProtocolViolation("a message out of bounds"))?;
        Ok(deliver_in_place(rx, host, envelope, fetch))
    }

    /// Does what the peer asks for, and answers; false when it has to wait.
    pub(super) fn serve_rma_request(
        &mut self,
        request: &RmaRequest,
        host: &dyn EngineContext,
    ) -> Result<bool, ShmProtocolViolation> {
        self.read_socket_until(host, |peer| peer.rma_bounce.is_some())?;
        let desk = self
            .rma_bounce
            .as_ref()
            .ok_or(ShmProtocolViolation("a request without a desk"))?;
        let served = request.execute(desk, host);
        if served && self.ring.take_producer_waiting() {
            self.ring_doorbell();
        }
        Ok(served)
    }

    /// Says what a key stands for to peers of this endpoint; false when the peer leaves no room for
    /// answers.
    pub(super) fn answer_map_mr(&self, host: &dyn EngineContext, key: u64) -> bool {
        let denied = || control::try_send_control(&self.socket, ControlMessage::MrNotFound(key));
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let known = host
            .region(key)
            .filter(|region| region.access.intersects(remote));
        let Some(region) = known.filter(|_| self.local.is_rma_target) else {
            return denied();
        };
        if region.memory.is_served_by_owner() {
            return control::try_send_control(
                &self.socket,
                ControlMessage::MrServedByOwner(key, self.local.rma_events || region.rma_events),
            );
        }
        let memory: &dyn Any = &*region.memory;
        let Some(lent) = memory.downcast_ref::<SharedMemory>() else {
            return denied();
        };
        let (len, access, heeds) = (
            region.memory.len(),
            region.access,
            self.local.rma_events || region.rma_events,
        );
        let grant = MemoryGrant {
            key,
            len,
            access,
            base: region.base,
            rma_events: heeds,
            memory: lent.fd(),
        };
        match control::send_grant(&self.socket, &grant) {
            Ok(()) => true,
            Err(Errno::AGAIN) => false,
            // Too many descriptors are on their way, or the peer has ended.
            Err(_) => denied(),
        }
    }

    /// Tells the peer of the messages that were fetched, if it waits for that.
    ///
    /// # Errors
    /// How the peer ended, if it has.
    pub(crate) fn wake_for_returned_slots(&mut self) -> Result<(), DownReason> {
        let Some(reach) = &self.cma_peer else {
            return Ok(());
        };
        if reach.take_slots_returned()? && self.ring.take_producer_waiting() {
            self.ring_doorbell();
        }
        Ok(())
    }

    /// Tells the peer what it waits to hear of the message with this receipt.
    pub(crate) fn send_ack(&mut self, receipt: u32) {
        self.ring.memory().set_ack(receipt as usize);
        if self.ring.take_producer_waiting() {
            self.ring_doorbell();
        }
    }

    /// What was fetched from there; nothing when that cannot be done.
    pub(crate) fn cma_stats(&self) -> Option<OpStats> {
        self.cma_peer.as_ref().map(|reach| reach.stats())
    }

    /// Nothing is fetched any more, and what was not has not arrived.
    pub(crate) fn stop_cma(&self) {
        if let Some(reach) = &self.cma_peer {
            reach.close();
        }
    }
}
