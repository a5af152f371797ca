//! The network inside the process: which endpoints listen, and the streams between them.
//!
//! The socket address of an endpoint is a hash of its name. The network finds the name of a socket
//! address while the endpoint, or a stream from or to it, is open.
//!
//! A connect makes a pair of connected sockets, and queues one of them at the listener, whose
//! eventfd is readable while sockets are queued.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use fabric_core::info::Info;
use fabric_core::transport::WaitSet;
use fabric_core::tree::Class;
use fabric_core::{Address, Error, Result, Scheme};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::super::net::SocketConfig;
use super::super::tcp::{Listener, Network, ReadSchedule, TcpSocket};
use super::config::{SimConfig, SimRng, split_name};
use crate::sys::fork_guard::ForkGuard;
use crate::sys::os_error::{epoll_ctl_error, os_error};

/// Maximum length of a read, and the unit of [`SimConfig::channel_capacity`].
const MAX_READ: usize = 16 << 10;
/// Maximum length of a shortened read.
const MAX_SHORT_READ: u32 = 64;
/// One in this many reads is shortened.
const SHORT_READ_INTERVAL: u32 = 4;
/// The port in each socket address. Endpoints differ in their IP address.
const PORT: u16 = 1;

/// The network of this process.
pub(super) struct SimNetwork;

/// An endpoint of the network.
struct SimEndpoint {
    address: Address,
    config: SimConfig,
    /// Sockets that wait to be accepted, each with the socket address of its peer; `None` after the
    /// endpoint was closed.
    backlog: Mutex<Option<VecDeque<(TcpSocket, SocketAddr)>>>,
    /// Readable while sockets wait.
    event: OwnedFd,
}

/// The endpoints that are open, or have open streams.
static ENDPOINTS: Mutex<BTreeMap<SocketAddr, Weak<SimEndpoint>>> = Mutex::new(BTreeMap::new());

/// Locks a mutex. No call leaves the data inconsistent, so a poisoned mutex can be used.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn find_endpoint(at: SocketAddr) -> Option<Arc<SimEndpoint>> {
    lock(&ENDPOINTS).get(&at)?.upgrade()
}

impl Network for SimNetwork {
    fn address(&self, at: SocketAddr) -> Result<Address> {
        let endpoint = find_endpoint(at).ok_or(Error::Closed(Class::Endpoint))?;
        Ok(endpoint.address.clone())
    }

    fn socket_addr(&self, peer: &Address) -> Result<SocketAddr> {
        peer.check_scheme(Scheme::Sim)?;
        let half = |number: u8| {
            let mut hasher = DefaultHasher::new();
            (number, peer.name()).hash(&mut hasher);
            u128::from(hasher.finish())
        };
        Ok((Ipv6Addr::from_bits(half(0) << 64 | half(1)), PORT).into())
    }

    fn listen(
        &self,
        _: &Info,
        at: Option<&Address>,
        _: &SocketConfig,
    ) -> Result<(Box<dyn Listener>, Address)> {
        let config = at.map_or(Ok(SimConfig::default()), SimConfig::from_address)?;
        let address = match at {
            Some(at) if !has_empty_label(at.name()) => at.clone(),
            _ => generate_address(at)?,
        };
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(os_error("eventfd2"))?;
        let endpoint = Arc::new(SimEndpoint {
            address: address.clone(),
            config,
            backlog: Mutex::new(Some(VecDeque::new())),
            event,
        });
        let mut endpoints = lock(&ENDPOINTS);
        endpoints.retain(|_, endpoint| endpoint.strong_count() > 0);
        let at = self.socket_addr(&address)?;
        let existing = endpoints.get(&at).and_then(Weak::upgrade);
        if existing.is_some_and(|endpoint| lock(&endpoint.backlog).is_some()) {
            return Err(Error::AddressInUse(address));
        }
        endpoints.insert(at, Arc::downgrade(&endpoint));
        let fork_guard = ForkGuard::current_process();
        let listener = SimListener {
            endpoint,
            fork_guard,
        };
        Ok((Box::new(listener), address))
    }

    fn open_socket(
        &self,
        from: SocketAddr,
        to: SocketAddr,
        _: &SocketConfig,
    ) -> Result<TcpSocket, Errno> {
        let (Some(own), Some(peer)) = (find_endpoint(from), find_endpoint(to)) else {
            return Err(Errno::CONNREFUSED);
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (near, far) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        for (fd, receiver) in [(&near, &peer), (&far, &own)] {
            // The kernel doubles the value, for its own records.
            let bytes = receiver
                .config
                .channel_capacity
                .saturating_mul(MAX_READ / 2);
            set_socket_send_buffer_size(fd, bytes)?;
        }
        let far = TcpSocket::simulated(far, Box::new(SimSchedule::new(&peer, own.clone())));
        let near = TcpSocket::simulated(near, Box::new(SimSchedule::new(&own, peer.clone())));
        let mut backlog = lock(&peer.backlog);
        backlog
            .as_mut()
            .ok_or(Errno::CONNREFUSED)?
            .push_back((far, from));
        rustix::io::write(&peer.event, &1_u64.to_ne_bytes())?;
        Ok(near)
    }
}

/// A listening endpoint.
struct SimListener {
    endpoint: Arc<SimEndpoint>,
    fork_guard: ForkGuard,
}

impl Listener for SimListener {
    fn watch(&self, wait_set: &dyn WaitSet, token: u64) -> Result<()> {
        wait_set
            .watch(self.endpoint.event.as_fd(), token)
            .map_err(epoll_ctl_error)
    }

    fn unwatch(&self, wait_set: &dyn WaitSet) {
        if self.fork_guard.in_original_process() {
            wait_set.unwatch(self.endpoint.event.as_fd());
        }
    }

    fn accept(
        &self,
        _: SocketAddr,
        _: &SocketConfig,
    ) -> Result<Option<(TcpSocket, SocketAddr)>, Errno> {
        let mut backlog = lock(&self.endpoint.backlog);
        let accepted = backlog.as_mut().and_then(VecDeque::pop_front);
        if accepted.is_none() {
            // Nothing to read means that nothing was queued since the last call.
            let _ = rustix::io::read(&self.endpoint.event, &mut [0; 8]);
        }
        Ok(accepted)
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        // The sockets are closed after the lock is released.
        let _backlog = lock(&self.endpoint.backlog).take();
    }
}

/// Delays and shortens the reads of one stream.
struct SimSchedule {
    rng: SimRng,
    max_delay: u32,
    /// Further calls before the arrived bytes may be read; `None` if this is not decided.
    delay: Option<u64>,
    /// The endpoint that sends, whose name the network finds while the stream is open.
    _sender: Arc<SimEndpoint>,
}

impl SimSchedule {
    fn new(receiver: &SimEndpoint, sender: Arc<SimEndpoint>) -> Self {
        Self {
            rng: SimRng::new(receiver.config.seed, &sender.address),
            max_delay: receiver.config.max_delay,
            delay: None,
            _sender: sender,
        }
    }
}

impl ReadSchedule for SimSchedule {
    fn max_read(&mut self) -> usize {
        let delay = match self.delay {
            Some(delay) => delay,
            None => self.rng.next_up_to(self.max_delay),
        };
        self.delay = delay.checked_sub(1);
        if self.delay.is_some() {
            0
        } else if self.rng.next_up_to(SHORT_READ_INTERVAL - 1) == 0 {
            1 + self.rng.next_up_to(MAX_SHORT_READ - 1) as usize
        } else {
            MAX_READ
        }
    }

    fn end_delays(&mut self) {
        (self.max_delay, self.delay) = (0, None);
    }
}

/// Returns an unused address with the parameters of `at`.
fn generate_address(at: Option<&Address>) -> Result<Address> {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let parameters = at.and_then(|at| split_name(at.name()));
    let suffix = parameters.map_or(String::new(), |(_, numbers)| format!("@{numbers}"));
    loop {
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let address = Address::new(Scheme::Sim, &format!("sim-{number}{suffix}"))?;
        if find_endpoint(SimNetwork.socket_addr(&address)?).is_none() {
            return Ok(address);
        }
    }
}

/// Returns whether the name leaves its label to the network.
fn has_empty_label(name: &str) -> bool {
    split_name(name).map_or(name, |(label, _)| label).is_empty()
}
