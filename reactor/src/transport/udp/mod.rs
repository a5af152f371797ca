//! The transport udp, with the wire format of libfabric's provider udp: a message is the payload of
//! one datagram, without a header.
//!
//! | file | subject |
//! |---|---|
//! | `endpoint` | an endpoint: its sockets, receiving, closing |
//! | `sending`, `send_batch` | sends: immediate, queued, or batched for one `sendmmsg` |
//! | `senders` | the senders of received datagrams |
//! | `socket` | sockets: bound, watched, joined to multicast groups |
//! | `batch` | many datagrams with one system call |
//!
//! A send is one `sendto`. Without room in the socket the operation waits in the endpoint's queue,
//! and the socket is watched for room. Messages posted with `FI_MORE` are batched (`send_batch`)
//! and sent with one `sendmmsg`. A pass fills a `DatagramBatch` with one `recvmmsg` for each
//! socket; `senders` maps each source address to an address handle, and the receive queue matches
//! the message. A message beyond the budget of the receive queue is dropped and counted. Each
//! multicast group has a socket of its own: Linux delivers the datagrams of a group only to sockets
//! that are bound to the group or to no address.
//!
//! Decision: sockets are not connected. One socket serves all peers. The kernel reports the late
//! (ICMP) errors of a datagram only on connected sockets, where a late error could be mistaken for
//! the error of another send. The table of senders is bounded: a new sender evicts an idle one.

mod batch;
mod endpoint;
mod send_batch;
mod senders;
mod sending;
mod socket;

use std::sync::Arc;

use fabric_core::buf::Payload;
use fabric_core::completion::Outcome;
use fabric_core::flags::{Caps, OpFlags};
use fabric_core::info::{EpType, Info, Protocol};
use fabric_core::matching::PeerKey;
use fabric_core::stats::TransportStats;
use fabric_core::transport::{
    EngineContext, EpId, OpKey, OpenDomain, Transport, TransportDomain, TrySend, TxOp, WaitSet,
};
use fabric_core::tree::Class;
use fabric_core::{Address, Error, FiAddr, Result, Scheme, SocketOptions};

use crate::sys::fork_guard::ForkGuard;
use crate::transport::info_templates;
use crate::transport::net::SocketConfig;

use batch::MAX_MESSAGE;
use endpoint::{UNEXPECTED_BYTES, UdpEndpoint};

/// The transport of the provider `udp`.
#[derive(Clone, Copy, Debug)]
pub struct UdpTransport;

impl Transport for UdpTransport {
    fn name(&self) -> &'static str {
        "udp"
    }

    fn offers(&self) -> Vec<Info> {
        let mut info = info_templates::base_info(
            "udp",
            Caps::MULTICAST | Caps::LOCAL_COMM | Caps::REMOTE_COMM,
        );
        info.ep.ep_type = EpType::Dgram;
        info.ep.protocol = Some(Protocol::Udp);
        info.ep.max_msg_size = MAX_MESSAGE;
        // A send completes when the kernel has accepted the datagram: FI_TRANSMIT_COMPLETE.
        info.tx.op_flags |= OpFlags::TRANSMIT_COMPLETE;
        info.tx.inject_size = MAX_MESSAGE;
        info.for_both_progress_models().into()
    }
}

impl<E: EngineContext> OpenDomain<E> for UdpTransport {
    fn open_domain(
        &self,
        _info: &Info,
        wait_set: Arc<dyn WaitSet>,
    ) -> Result<Box<dyn TransportDomain<E>>> {
        let options = SocketOptions::default();
        Ok(Box::new(UdpDomain {
            wait_set,
            endpoints: Vec::new(),
            options,
            fork_guard: ForkGuard::current_process(),
        }))
    }
}

/// The data path of a domain: its endpoints.
struct UdpDomain {
    wait_set: Arc<dyn WaitSet>,
    endpoints: Vec<UdpEndpoint>,
    /// The socket options of endpoints that are opened from now on.
    options: SocketOptions,
    /// A forked child makes no progress: received datagrams belong to the parent.
    fork_guard: ForkGuard,
}

impl UdpDomain {
    /// Returns an endpoint.
    ///
    /// # Errors
    /// [`Error::Closed`] if the endpoint is not open, or in a forked child process.
    fn endpoint(&mut self, ep: EpId) -> Result<&mut UdpEndpoint> {
        if !self.fork_guard.in_original_process() {
            return Err(Error::Closed(Class::Endpoint));
        }
        let mut endpoints = self.endpoints.iter_mut();
        endpoints
            .find(|endpoint| endpoint.id == ep)
            .ok_or(Error::Closed(Class::Endpoint))
    }
}

impl<E: EngineContext> TransportDomain<E> for UdpDomain {
    fn set_socket_options(&mut self, options: &SocketOptions) -> Result<()> {
        options.check()?;
        self.options = options.clone();
        Ok(())
    }

    fn open_endpoint(
        &mut self,
        engine: &mut E,
        ep: EpId,
        info: &Info,
        at: Option<&Address>,
    ) -> Result<Address> {
        if engine.with_rx(ep, |rx, _| rx.is_shared()) {
            return Err(Error::NotSupported("shared receive contexts over udp"));
        }
        if let Some(at) = at {
            at.check_scheme(Scheme::Udp)?;
        }
        let config = SocketConfig::from_info(&self.options, info)?;
        let endpoint = UdpEndpoint::open(ep, info, (at, config), self.wait_set.clone())?;
        let name = endpoint.name().clone();
        self.endpoints.push(endpoint);
        Ok(name)
    }

    fn close_endpoint(&mut self, engine: &mut E, ep: EpId) {
        if let Some(index) = self.endpoints.iter().position(|endpoint| endpoint.id == ep) {
            self.endpoints.swap_remove(index).close(engine);
        }
    }

    fn try_send(
        &mut self,
        engine: &mut E,
        ep: EpId,
        tx_op: &TxOp,
        payload: Payload<'_>,
    ) -> Result<TrySend> {
        self.endpoint(ep)?.try_send(engine, tx_op, payload)
    }

    fn set_batched_op(&mut self, engine: &mut E, ep: EpId, op: OpKey, _: &TxOp, len: usize) {
        match self.endpoint(ep) {
            Ok(endpoint) => endpoint.set_batched_op(op, len),
            Err(error) => engine.complete(op, Outcome::failed(error)),
        }
    }

    fn write_batched(&mut self, engine: &mut E, ep: EpId) {
        if let Ok(endpoint) = self.endpoint(ep) {
            endpoint.flush(engine);
        }
    }

    fn flush(&mut self, engine: &mut E, ep: EpId) -> Result<()> {
        self.endpoint(ep)?.flush(engine);
        Ok(())
    }

    fn queue_send(&mut self, engine: &mut E, ep: EpId, op: OpKey, tx_op: &TxOp) -> Result<()> {
        self.endpoint(ep)?.queue_send(engine, op, tx_op)
    }

    fn unexpected_budget(&self) -> usize {
        UNEXPECTED_BYTES
    }

    /// Only checks that the endpoint is open: a declined datagram is lost, and no sender waits for
    /// an ack.
    fn on_rx_queue_changed(&mut self, _: &mut E, ep: EpId) -> Result<()> {
        self.endpoint(ep).map(drop)
    }

    fn join_group(&mut self, ep: EpId, group: &Address) -> Result<u32> {
        self.endpoint(ep)?.join_group(group)
    }

    fn leave_group(&mut self, ep: EpId, group: u32) {
        if let Ok(endpoint) = self.endpoint(ep) {
            endpoint.leave_group(group);
        }
    }

    fn cancel(&mut self, _: &mut E, ep: EpId, op: OpKey) -> bool {
        self.endpoint(ep).is_ok_and(|endpoint| endpoint.cancel(op))
    }

    fn source_of(&self, ep: EpId, peer: PeerKey) -> Option<FiAddr> {
        let mut endpoints = self.endpoints.iter();
        endpoints
            .find(|endpoint| endpoint.id == ep)?
            .source_of(peer)
    }

    fn address_inserted(&mut self, engine: &mut E, ep: EpId, addr: FiAddr, address: &Address) {
        if let Ok(endpoint) = self.endpoint(ep) {
            endpoint.address_inserted(engine, addr, address);
        }
    }

    fn address_removed(&mut self, engine: &mut E, ep: EpId, addr: FiAddr) {
        if let Ok(endpoint) = self.endpoint(ep) {
            endpoint.address_removed(engine, addr);
        }
    }

    fn progress(&mut self, engine: &mut E) -> bool {
        if !self.fork_guard.in_original_process() {
            return false;
        }
        self.endpoints
            .iter_mut()
            .fold(false, |moved, endpoint| moved | endpoint.progress(engine))
    }

    fn ready(&mut self, engine: &mut E, token: u64) {
        if let Ok(endpoint) = self.endpoint(endpoint::endpoint_of(token)) {
            endpoint.ready(engine);
        }
    }

    fn arm(&mut self, _: &mut E) -> bool {
        !self.fork_guard.in_original_process() || self.endpoints.iter().all(UdpEndpoint::can_sleep)
    }

    /// Does nothing: epoll reports readiness whether or not a thread polls.
    fn disarm(&mut self) {}

    fn stats(&self, ep: EpId) -> TransportStats {
        let mut endpoints = self.endpoints.iter();
        endpoints
            .find(|endpoint| endpoint.id == ep)
            .map_or_else(TransportStats::default, UdpEndpoint::stats)
    }

    fn describe(&self) -> String {
        let endpoints: Vec<_> = self.endpoints.iter().map(UdpEndpoint::describe).collect();
        format!("udp [{}]", endpoints.join(", "))
    }
}
