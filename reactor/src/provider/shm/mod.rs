//! Shared memory between processes of one machine, and within one.
//!
//! | file | subject |
//! |---|---|
//! | `endpoint` | an endpoint: its name, its connections, its receive context |
//! | `callers` | the connections that came in, and which of them are looked at |
//! | `outgoing`, `incoming` | a connection, seen from the sender and from the receiver |
//! | `lanes` | where the connections to peers are, each under a lock of its own |
//! | `handshake` | how two endpoints meet, and what they say outside of the rings |
//! | `socket` | the sockets they say it on |
//! | `receipts` | messages that the peer is to confirm |
//! | `record` | what the records in a ring say |
//! | `ring` | the ring of lines |
//! | `segment` | the memory below the ring |
//! | `memfd` | where memory that is passed on comes from |
//! | `area` | memory that peers reach by themselves |
//! | `loans` | memory that changes hands instead of being copied |
//! | `desk` | what peers ask for is done here: accesses to regions that are not mapped |
//! | `fetch` | messages that are copied straight out of their sender's memory; which those are |
//! | `windows` | the areas of a peer, as they are mapped here |

mod area;
mod callers;
mod closer;
mod desk;
mod endpoint;
mod fetch;
#[cfg(all(any(test, feature = "fuzz"), not(loom)))]
pub mod fuzz;
mod handshake;
mod incoming;
mod lanes;
mod loans;
mod memfd;
mod outgoing;
mod receipts;
mod record;
pub(crate) mod ring;
#[cfg(all(any(test, feature = "fuzz"), not(loom)))]
mod ring_heap;
#[cfg(all(test, not(loom)))]
mod ring_stress;
#[cfg(all(test, not(loom)))]
mod ring_tests;
mod segment;
mod socket;
mod windows;
#[cfg(all(feature = "work", not(loom)))]
mod work;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fabric_core::buf::{AnyBuf, Payload, PooledBuf};
use fabric_core::flags::{Access, Caps, MsgOrder, OpFlags};
use fabric_core::info::{Info, Protocol};
use fabric_core::matching::{Envelope, RecvSpec};
use fabric_core::mr::{Memory, Reached};
use fabric_core::provider::{
    EpId, Express, Host, Lender, OpKey, Provider, ProviderDomain, SendNow, SendSpec, WaitSet,
};
use fabric_core::rx::{Receiving, RxContext};
use fabric_core::stats::ProviderStats;
use fabric_core::tree::Class;
use fabric_core::{Address, Error, FiAddr, Result, Scheme};

use crate::provider::offers;
use crate::provider::origin::Origin;

use area::OwnArea;
use callers::FEW;
use endpoint::{Endpoint, Token};
use loans::Loans;
#[cfg(all(feature = "work", not(loom)))]
pub(crate) use work::all as work;

/// The provider `shm`.
#[derive(Clone, Copy, Debug)]
pub struct ShmProvider;

/// Messages keep their order among each other and behind one-sided operations, and those among each
/// other. A one-sided operation does not wait until a message before it was received.
const ORDER: MsgOrder = MsgOrder::SAS
    .union(MsgOrder::SAW)
    .union(MsgOrder::SAR)
    .union(MsgOrder::RAR)
    .union(MsgOrder::RAW)
    .union(MsgOrder::WAR)
    .union(MsgOrder::WAW);

/// Places of a one-sided operation: far below where walking them would be felt.
const PLACES: usize = 64;

impl Provider for ShmProvider {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn offers(&self) -> Vec<Info> {
        let mut info = offers::reliable("shm", Caps::LOCAL_COMM);
        info.ep.protocol = Some(Protocol::Shm);
        info.ep.protocol_version = u32::from(handshake::VERSION);
        info.ep.max_msg_size = incoming::MAX_MESSAGE;
        info.ep.max_order_war_size = usize::MAX;
        info.tx.op_flags |=
            OpFlags::TRANSMIT_COMPLETE | OpFlags::MATCH_COMPLETE | OpFlags::DELIVERY_COMPLETE;
        info.tx.msg_order = ORDER;
        info.tx.rma_iov_limit = PLACES;
        info.rx.msg_order = ORDER;
        info.under_either_progress().into()
    }

    fn alloc(&self, len: usize, access: Access) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(OwnArea::create(len, access)?))
    }

    fn open_domain(&self, _info: &Info, wait: Arc<dyn WaitSet>) -> Result<Box<dyn ProviderDomain>> {
        Ok(Box::new(ShmDomain {
            wait,
            endpoints: Vec::new(),
            places: Vec::new(),
            attended: Vec::new(),
            turn: 0,
            origin: Origin::here(),
            loans: Loans::default(),
            fetched: None,
        }))
    }
}

/// The data path of a domain: its endpoints.
struct ShmDomain {
    wait: Arc<dyn WaitSet>,
    endpoints: Vec<Endpoint>,
    /// Where each endpoint is in `endpoints`, by its place in the domain.
    places: Vec<Option<u32>>,
    /// Where the endpoints are that passes are made over; `callers` says why a pass may leave out
    /// others.
    attended: Vec<usize>,
    /// Which endpoint is looked at out of turn.
    turn: usize,
    /// In a forked child nothing moves: what its parent shares with peers is the parent's.
    origin: Origin,
    loans: Loans,
    /// Which messages are fetched, once that was said, or an endpoint was opened.
    fetched: Option<fetch::Which>,
}

/// By what means the endpoints of a domain send what is long.
#[derive(Clone, Debug)]
struct Means {
    loans: Loans,
    /// Which messages are fetched by their receiver, where it can.
    fetched: fetch::Which,
}

impl ShmDomain {
    /// An endpoint that something is to be done with: it is attended from now on.
    #[inline(always)] // on the way of a small message
    fn ep(&mut self, ep: EpId) -> Result<&mut Endpoint> {
        let place = self.place(ep).unwrap_or(usize::MAX);
        let Some(endpoint) = self.endpoints.get_mut(place) else {
            return Err(Error::Closed(Class::Endpoint));
        };
        if !std::mem::replace(&mut endpoint.attended, true) {
            self.attended.push(place);
        }
        Ok(endpoint)
    }

    fn attend(&mut self, place: usize) {
        if !std::mem::replace(&mut self.endpoints[place].attended, true) {
            self.attended.push(place);
        }
    }

    #[inline]
    fn place(&self, ep: EpId) -> Option<usize> {
        let place = self.places.get(ep.place()).copied().flatten()? as usize;
        (self.endpoints[place].id() == ep).then_some(place)
    }

    /// Looks at an endpoint that is not attended, each in turn.
    fn visit(&mut self, host: &mut dyn Host) -> bool {
        self.turn = if self.turn + 1 < self.endpoints.len() {
            self.turn + 1
        } else {
            0
        };
        let Some(endpoint) = self
            .endpoints
            .get_mut(self.turn)
            .filter(|endpoint| !endpoint.attended)
        else {
            return false;
        };
        let moved = endpoint.progress(host, self.attended.len());
        if !endpoint.rests() {
            self.attend(self.turn);
        }
        moved
    }

    fn insert(&mut self, ep: EpId, endpoint: Endpoint) {
        let number = ep.place();
        if number >= self.places.len() {
            self.places.resize(number + 1, None);
        }
        self.places[number] = Some(self.endpoints.len() as u32);
        self.endpoints.push(endpoint);
    }

    fn remove(&mut self, ep: EpId) -> Option<Endpoint> {
        let place = self.place(ep)?;
        self.places[ep.place()] = None;
        let endpoint = self.endpoints.swap_remove(place);
        if let Some(moved) = self.endpoints.get(place) {
            self.places[moved.id().place()] = Some(place as u32);
        }
        let attended = self
            .endpoints
            .iter()
            .enumerate()
            .filter(|(_, endpoint)| endpoint.attended);
        self.attended = attended.map(|(place, _)| place).collect();
        Some(endpoint)
    }
}

impl ProviderDomain for ShmDomain {
    fn open_endpoint(
        &mut self,
        ep: EpId,
        info: &Info,
        at: Option<&Address>,
        receiving: Receiving<'_>,
    ) -> Result<Address> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let fetched = *self.fetched.get_or_insert_with(fetch::Which::unasked);
        let means = Means {
            loans: self.loans.clone(),
            fetched,
        };
        let open = |at, wait| Endpoint::open(ep, at, (info, means.clone()), wait, receiving);
        let opened = match at {
            Some(at) if at.scheme() != Scheme::Shm => {
                return Err(Error::WrongScheme {
                    provider: "shm",
                    address: at.clone(),
                });
            }
            Some(at) if !at.name().is_empty() => open(at.clone(), self.wait.clone())?,
            // Another process namespace on the same network may have an endpoint of the same
            // number.
            _ => loop {
                let number = NEXT.fetch_add(1, Ordering::Relaxed);
                let name = format!("{}.{number}", std::process::id());
                match open(Address::new(Scheme::Shm, &name)?, self.wait.clone()) {
                    Err(Error::AddressInUse(_)) => continue,
                    opened => break opened?,
                }
            },
        };
        let name = opened.name().clone();
        self.insert(ep, opened);
        Ok(name)
    }

    fn close_endpoint(&mut self, host: &mut dyn Host, ep: EpId) {
        if let Some(endpoint) = self.remove(ep) {
            endpoint.close(host);
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

    fn flush(&mut self, host: &mut dyn Host, ep: EpId) -> Result<()> {
        self.ep(ep)?.flush(host)
    }

    fn read_now(
        &mut self,
        host: &mut dyn Host,
        ep: EpId,
        spec: &SendSpec,
        into: &mut AnyBuf,
    ) -> Result<SendNow> {
        self.ep(ep)?
            .at_once(host, spec, |outgoing| outgoing.read_now(spec, into))
    }

    fn atomic_now(
        &mut self,
        host: &mut dyn Host,
        ep: EpId,
        spec: &SendSpec,
        operands: &[u8],
        result: &mut [u8],
    ) -> Result<SendNow> {
        self.ep(ep)?.at_once(host, spec, |outgoing| {
            outgoing.atomic_now(spec, operands, result)
        })
    }

    fn reach(
        &mut self,
        _: &mut dyn Host,
        ep: EpId,
        peer: FiAddr,
        key: u64,
    ) -> Result<Option<Reached>> {
        self.ep(ep)?.reach(peer, key)
    }

    fn express(&self, ep: EpId) -> Option<Arc<dyn Express>> {
        self.place(ep).map(|place| self.endpoints[place].express())
    }

    fn lender(&self) -> Option<Arc<dyn Lender>> {
        Some(Arc::new(self.loans.clone()))
    }

    fn collect_loans(&mut self) {
        self.endpoints.iter_mut().for_each(Endpoint::collect);
    }

    fn single_copy_from(&mut self, len: usize) {
        self.fetched = Some(fetch::Which::from(len));
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
            Err(_) => endpoint::closed(host, op),
        }
    }

    fn post_multi_recv(&mut self, host: &mut dyn Host, ep: EpId, op: OpKey, spec: RecvSpec) {
        match self.ep(ep) {
            Ok(endpoint) => endpoint.post_multi_recv(host, op, spec),
            Err(_) => endpoint::closed(host, op),
        }
    }

    fn receive_side(&mut self, ep: EpId) -> Option<&mut RxContext> {
        self.ep(ep).ok().map(Endpoint::receive_side)
    }

    fn receive_side_changed(&mut self, host: &mut dyn Host, ep: EpId) {
        if let Ok(endpoint) = self.ep(ep) {
            endpoint.receive_side_changed(host);
        }
    }

    fn cancel(&mut self, host: &mut dyn Host, ep: EpId, op: OpKey) -> bool {
        self.ep(ep).is_ok_and(|endpoint| endpoint.cancel(host, op))
    }

    fn abandon_recv(&mut self, host: &mut dyn Host, ep: EpId, op: OpKey) {
        if let Ok(endpoint) = self.ep(ep) {
            endpoint.abandon_recv(host, op);
        }
    }

    fn put_back(&mut self, host: &mut dyn Host, ep: EpId, envelope: Envelope, bytes: PooledBuf) {
        if let Ok(endpoint) = self.ep(ep) {
            endpoint.put_back(host, envelope, bytes);
        }
    }

    fn address_inserted(&mut self, host: &mut dyn Host, ep: EpId, addr: FiAddr, address: &Address) {
        // Most have no message from there, and go on resting.
        let Some(place) = self.place(ep) else { return };
        self.endpoints[place].address_inserted(host, addr, address);
        if !self.endpoints[place].rests() {
            self.attend(place);
        }
    }

    fn address_removed(&mut self, host: &mut dyn Host, ep: EpId, addr: FiAddr) {
        if let Ok(endpoint) = self.ep(ep) {
            endpoint.address_removed(host, addr);
        }
    }

    fn holds(&self, ep: EpId, source: FiAddr) -> bool {
        self.place(ep)
            .is_some_and(|place| self.endpoints[place].holds(source))
    }

    fn progress(&mut self, host: &mut dyn Host) -> bool {
        if !self.origin.is_here() {
            return false;
        }
        let crowd = self.attended.len();
        let (mut moved, mut index) = (false, 0);
        while let Some(&place) = self.attended.get(index) {
            let endpoint = &mut self.endpoints[place];
            moved |= endpoint.progress(host, crowd);
            if self.attended.len() > FEW && endpoint.rests() {
                endpoint.attended = false;
                self.attended.swap_remove(index);
            } else {
                index += 1;
            }
        }
        if self.attended.len() < self.endpoints.len() {
            moved |= self.visit(host);
        }
        moved
    }

    fn ready(&mut self, host: &mut dyn Host, token: u64) {
        if !self.origin.is_here() {
            return;
        }
        let (ep, token) = Token::unpack(token);
        if let Ok(endpoint) = self.ep(ep) {
            endpoint.ready(host, token);
        }
    }

    fn arm(&mut self) -> bool {
        if !self.origin.is_here() {
            return true;
        }
        let mut quiet = true;
        for &place in &self.attended {
            quiet &= self.endpoints[place].arm();
        }
        if !quiet {
            self.disarm();
        }
        quiet
    }

    fn disarm(&mut self) {
        if !self.origin.is_here() {
            return;
        }
        for &place in &self.attended {
            self.endpoints[place].disarm();
        }
    }

    fn stats(&self, ep: EpId) -> ProviderStats {
        self.place(ep).map_or_else(ProviderStats::default, |place| {
            self.endpoints[place].stats()
        })
    }

    fn describe(&self) -> String {
        let endpoints: Vec<_> = self
            .endpoints
            .iter()
            .map(|endpoint| endpoint.describe())
            .collect();
        format!(
            "shm [{}], {} endpoints attended",
            endpoints.join(", "),
            self.attended.len()
        )
    }
}
