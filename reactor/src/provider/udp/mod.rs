//! UDP, on the wire of libfabric's provider of that name: a message is a datagram, and nothing
//! else.
//!
//! | file | subject |
//! |---|---|
//! | `endpoint` | an endpoint: its sockets, what is received, its end |
//! | `sending`, `outbox` | what is sent at once, what waits for room, what leaves together |
//! | `senders` | those whose datagrams have come |
//! | `socket` | sockets that are bound, watched, and joined to groups |
//! | `batch` | many datagrams with one system call |

mod batch;
mod endpoint;
mod outbox;
mod senders;
mod sending;
mod socket;

use std::sync::Arc;

use fabric_core::buf::{Payload, PooledBuf};
use fabric_core::completion::Outcome;
use fabric_core::flags::{Caps, OpFlags};
use fabric_core::info::{EpType, Info, Protocol};
use fabric_core::matching::{Envelope, RecvSpec};
use fabric_core::provider::{
    EpId, Host, OpKey, Provider, ProviderDomain, SendNow, SendSpec, WaitSet,
};
use fabric_core::rx::{Receiving, RxContext};
use fabric_core::stats::ProviderStats;
use fabric_core::tree::Class;
use fabric_core::{Address, Error, FiAddr, Result, Scheme, SocketOptions};

use crate::provider::net::Tuning;
use crate::provider::offers;
use crate::provider::origin::Origin;

use batch::MAX_MESSAGE;
use endpoint::Endpoint;

/// The provider `udp`.
#[derive(Clone, Copy, Debug)]
pub struct UdpProvider;

impl Provider for UdpProvider {
    fn name(&self) -> &'static str {
        "udp"
    }

    fn offers(&self) -> Vec<Info> {
        let mut info = offers::offer(
            "udp",
            Caps::MULTICAST | Caps::LOCAL_COMM | Caps::REMOTE_COMM,
        );
        info.ep.ep_type = EpType::Dgram;
        info.ep.protocol = Some(Protocol::Udp);
        info.ep.max_msg_size = MAX_MESSAGE;
        // A datagram counts as transmitted when this machine's network has taken it.
        info.tx.op_flags |= OpFlags::TRANSMIT_COMPLETE;
        info.tx.inject_size = MAX_MESSAGE;
        info.under_either_progress().into()
    }

    fn open_domain(&self, _info: &Info, wait: Arc<dyn WaitSet>) -> Result<Box<dyn ProviderDomain>> {
        let options = SocketOptions::default();
        Ok(Box::new(UdpDomain {
            wait,
            endpoints: Vec::new(),
            options,
            origin: Origin::here(),
        }))
    }
}

/// The data path of a domain: its endpoints.
struct UdpDomain {
    wait: Arc<dyn WaitSet>,
    endpoints: Vec<Endpoint>,
    options: SocketOptions,
    /// Nothing is moved in a forked child: what comes is its parent's.
    origin: Origin,
}

impl UdpDomain {
    fn ep(&mut self, ep: EpId) -> Result<&mut Endpoint> {
        if !self.origin.is_here() {
            return Err(Error::Closed(Class::Endpoint));
        }
        let mut endpoints = self.endpoints.iter_mut();
        endpoints
            .find(|endpoint| endpoint.id == ep)
            .ok_or(Error::Closed(Class::Endpoint))
    }
}

impl ProviderDomain for UdpDomain {
    fn socket_options(&mut self, options: &SocketOptions) -> Result<()> {
        options.check()?;
        self.options = options.clone();
        Ok(())
    }

    fn open_endpoint(
        &mut self,
        ep: EpId,
        info: &Info,
        at: Option<&Address>,
        receiving: Receiving<'_>,
    ) -> Result<Address> {
        if let Some(at) = at.filter(|at| at.scheme() != Scheme::Udp) {
            return Err(Error::WrongScheme {
                provider: "udp",
                address: at.clone(),
            });
        }
        let tuning = Tuning::of(&self.options, info)?;
        let opened = Endpoint::open(ep, info, (at, tuning), self.wait.clone(), receiving)?;
        let name = opened.name().clone();
        self.endpoints.push(opened);
        Ok(name)
    }

    fn close_endpoint(&mut self, host: &mut dyn Host, ep: EpId) {
        if let Some(at) = self.endpoints.iter().position(|endpoint| endpoint.id == ep) {
            self.endpoints.swap_remove(at).close(host);
        }
    }

    fn send_now(
        &mut self,
        host: &mut dyn Host,
        ep: EpId,
        spec: &SendSpec,
        payload: Payload<'_>,
    ) -> Result<SendNow> {
        self.ep(ep)?.send_now(host, spec, payload)
    }

    fn collected(&mut self, host: &mut dyn Host, ep: EpId, op: OpKey, _: &SendSpec, len: usize) {
        match self.ep(ep) {
            Ok(endpoint) => endpoint.collected(op, len),
            Err(error) => host.complete(op, Outcome::failed(error)),
        }
    }

    fn write_collected(&mut self, host: &mut dyn Host, ep: EpId) {
        if let Ok(endpoint) = self.ep(ep) {
            endpoint.flush(host);
        }
    }

    fn flush(&mut self, host: &mut dyn Host, ep: EpId) -> Result<()> {
        self.ep(ep)?.flush(host);
        Ok(())
    }

    fn queue_send(
        &mut self,
        host: &mut dyn Host,
        ep: EpId,
        op: OpKey,
        spec: &SendSpec,
    ) -> Result<()> {
        self.ep(ep)?.queue_send(host, op, spec)
    }

    fn post_recv(&mut self, host: &mut dyn Host, ep: EpId, op: OpKey, spec: RecvSpec) {
        match self.ep(ep) {
            Ok(endpoint) => endpoint.post_recv(host, op, spec),
            Err(error) => host.complete(op, Outcome::failed(error)),
        }
    }

    fn receive_side(&mut self, ep: EpId) -> Option<&mut RxContext> {
        self.ep(ep).ok().map(Endpoint::receive_side)
    }

    fn join(&mut self, ep: EpId, group: &Address) -> Result<u32> {
        self.ep(ep)?.join(group)
    }

    fn leave(&mut self, ep: EpId, group: u32) {
        if let Ok(endpoint) = self.ep(ep) {
            endpoint.leave(group);
        }
    }

    fn cancel(&mut self, host: &mut dyn Host, ep: EpId, op: OpKey) -> bool {
        self.ep(ep).is_ok_and(|endpoint| endpoint.cancel(host, op))
    }

    fn abandon_recv(&mut self, host: &mut dyn Host, ep: EpId, op: OpKey) {
        if let Ok(endpoint) = self.ep(ep) {
            endpoint.receive_side().abandon(host, op);
        }
    }

    fn put_back(&mut self, host: &mut dyn Host, ep: EpId, envelope: Envelope, bytes: PooledBuf) {
        if let Ok(endpoint) = self.ep(ep) {
            endpoint.put_back(host, envelope, bytes);
        }
    }

    fn address_inserted(&mut self, host: &mut dyn Host, ep: EpId, addr: FiAddr, address: &Address) {
        if let Ok(endpoint) = self.ep(ep) {
            endpoint.address_inserted(host, addr, address);
        }
    }

    fn address_removed(&mut self, host: &mut dyn Host, ep: EpId, addr: FiAddr) {
        if let Ok(endpoint) = self.ep(ep) {
            endpoint.address_removed(host, addr);
        }
    }

    fn holds(&self, ep: EpId, source: FiAddr) -> bool {
        self.endpoints
            .iter()
            .any(|endpoint| endpoint.id == ep && endpoint.holds(source))
    }

    fn progress(&mut self, host: &mut dyn Host) -> bool {
        if !self.origin.is_here() {
            return false;
        }
        self.endpoints
            .iter_mut()
            .fold(false, |moved, endpoint| moved | endpoint.progress(host))
    }

    fn ready(&mut self, host: &mut dyn Host, token: u64) {
        if let Ok(endpoint) = self.ep(endpoint::endpoint_of(token)) {
            endpoint.ready(host);
        }
    }

    fn arm(&mut self) -> bool {
        !self.origin.is_here() || self.endpoints.iter().all(Endpoint::arm)
    }

    /// Sockets tell of news whether anybody polls or not.
    fn disarm(&mut self) {}

    fn stats(&self, ep: EpId) -> ProviderStats {
        let mut endpoints = self.endpoints.iter();
        endpoints
            .find(|endpoint| endpoint.id == ep)
            .map_or_else(ProviderStats::default, Endpoint::stats)
    }

    fn describe(&self) -> String {
        let endpoints: Vec<_> = self.endpoints.iter().map(Endpoint::describe).collect();
        format!("udp [{}]", endpoints.join(", "))
    }
}
