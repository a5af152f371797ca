//! Passive endpoints (`FI_EP_MSG`): they listen, and have pending requests but no peers.
//!
//! A connection that was accepted by the kernel has 10 seconds to send its request. Then the
//! request waits until the program takes it. From then on its connection belongs to no domain and
//! is not watched, until an endpoint is opened for it or it is rejected. The number of connections
//! without a request is bounded, and so is the number of requests.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric_core::event::EventKind;
use fabric_core::transport::{ConnReq, ConnReqHandle, EngineContext, EpId, WaitSet};
use fabric_core::{Address, Error, RefusalReason, Result};
use slab::Slab;

use super::closer;
use super::cm::{self, CmEndpoint, CmRequest};
use super::control::{self, ControlMessage, ControlRead};
use super::endpoint::ShmToken;
use super::rx_connection::{Rejection, admit, placeholder_address};
use super::segment::Segment;
use super::socket::{PeerCredentials, ShmListener, ShmSocket};
use crate::transport::timer::Timer;
use crate::wait::epoll_ctl_error;

/// Connections accepted in one poll.
const ACCEPTS_PER_POLL: usize = 64;
/// Connections that may be without a request. The oldest one is evicted for a new one.
const MAX_PENDING_HANDSHAKES: usize = 256;
/// Time that a client has for its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests that may wait to be taken. Further connections wait in the kernel's backlog.
const MAX_PENDING_REQUESTS: usize = 128;
/// When to accept again after the process ran out of descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// A passive endpoint.
pub(crate) struct ShmPassiveEndpoint {
    id: EpId,
    name: Address,
    listener: ShmListener,
    wait_set: Arc<dyn WaitSet>,
    timer: Timer,
    accepting: AcceptState,
    handshakes: Slab<RequestHandshake>,
    /// Indices in `handshakes`, oldest first.
    handshake_order: VecDeque<usize>,
    requests: VecDeque<ConnReq>,
}

/// Whether a passive endpoint accepts connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AcceptState {
    Accepting,
    /// Until the program has taken requests.
    QueueFull,
    /// Until this process has descriptors, or can close some.
    RetryAt(Instant),
}

/// A connection whose request has not arrived yet.
struct RequestHandshake {
    socket: ShmSocket,
    /// Whether the peer's user was checked and `Ready` was sent.
    admitted: bool,
    deadline: Instant,
}

impl ShmPassiveEndpoint {
    /// Opens a passive endpoint at the name `at` and listens.
    pub(crate) fn open(id: EpId, at: Address, wait: Arc<dyn WaitSet>) -> Result<Self> {
        let timer = Timer::new()?;
        let listener = ShmListener::open(&at)?;
        timer.watch(&*wait, ShmToken::Timer.pack(id))?;
        if let Err(error) = wait.watch(listener.as_fd(), ShmToken::Listener.pack(id)) {
            timer.unwatch(&*wait);
            return Err(epoll_ctl_error(error));
        }
        Ok(Self {
            id,
            name: at,
            listener,
            wait_set: wait,
            timer,
            accepting: AcceptState::Accepting,
            handshakes: Slab::new(),
            handshake_order: VecDeque::new(),
            requests: VecDeque::new(),
        })
    }

    pub(crate) fn id(&self) -> EpId {
        self.id
    }

    pub(crate) fn name(&self) -> &Address {
        &self.name
    }

    /// Handles a readable descriptor.
    pub(crate) fn ready(&mut self, engine: &mut impl EngineContext, token: ShmToken) {
        match token {
            ShmToken::Listener => self.accept(engine),
            ShmToken::Rx(at) => self.poll_handshake(engine, at as usize),
            ShmToken::Timer => self.on_timer(engine),
            ShmToken::Tx(_) => {}
        }
    }

    /// Takes the oldest request.
    pub(crate) fn take_connreq(&mut self, engine: &mut impl EngineContext) -> Option<ConnReq> {
        let request = self.requests.pop_front()?;
        if self.accepting == AcceptState::QueueFull
            && self.requests.len() <= MAX_PENDING_REQUESTS / 2
        {
            self.resume_accept(engine);
            self.arm_timer();
        }
        Some(request)
    }

    fn accept(&mut self, engine: &mut impl EngineContext) {
        for _ in 0..ACCEPTS_PER_POLL {
            if self.accepting != AcceptState::Accepting {
                return;
            }
            if self.requests.len() >= MAX_PENDING_REQUESTS {
                return self.stop_accepting(AcceptState::QueueFull);
            }
            if closer::register_if_full(&self.wait_set) {
                return self.retry_accept();
            }
            match self.listener.accept() {
                Ok(Some(socket)) => self.on_accepted(engine, socket),
                Ok(None) => return,
                Err(errno) => {
                    let error = Error::os("accept4", errno.raw_os_error());
                    engine.event(self.id, EventKind::InboundRefused { error });
                    return self.retry_accept();
                }
            }
        }
    }

    fn retry_accept(&mut self) {
        self.stop_accepting(AcceptState::RetryAt(Instant::now() + ACCEPT_RETRY_DELAY));
        self.arm_timer();
    }

    /// Stops accepting: connections wait in the kernel's backlog, and keep the listener readable.
    fn stop_accepting(&mut self, why: AcceptState) {
        self.wait_set.unwatch(self.listener.as_fd());
        self.accepting = why;
    }

    fn resume_accept(&mut self, engine: &mut impl EngineContext) {
        let token = ShmToken::Listener.pack(self.id);
        if self.wait_set.watch(self.listener.as_fd(), token).is_err() {
            self.accepting = AcceptState::RetryAt(Instant::now() + ACCEPT_RETRY_DELAY);
            return;
        }
        self.accepting = AcceptState::Accepting;
        self.accept(engine);
    }

    fn on_accepted(&mut self, engine: &mut impl EngineContext, mut socket: ShmSocket) {
        let at = self.handshakes.vacant_key();
        let token = ShmToken::Rx(at as u32).pack(self.id);
        if socket.watch(&self.wait_set, token).is_err() {
            return;
        }
        self.handshakes.insert(RequestHandshake {
            socket,
            admitted: false,
            deadline: Instant::now() + REQUEST_TIMEOUT,
        });
        self.handshake_order.push_back(at);
        if self.handshake_order.len() == 1 {
            self.arm_timer();
        }
        self.poll_handshake(engine, at);
        if self.handshake_order.len() > MAX_PENDING_HANDSHAKES {
            let oldest = self.handshake_order[0];
            self.take_handshake(oldest);
        }
    }

    /// Checks the client, and receives its request.
    fn poll_handshake(&mut self, engine: &mut impl EngineContext, at: usize) {
        let Some(handshake) = self.handshakes.get_mut(at) else {
            return;
        };
        let read = match admit(&handshake.socket, &mut handshake.admitted) {
            Ok(client) => match cm::recv_request(&handshake.socket) {
                ControlRead::WouldBlock => return,
                ControlRead::HungUp => None,
                ControlRead::Message(request) => Some(Ok((client, request))),
                refused => Some(Err(Rejection::of_read(&refused, client))),
            },
            Err(rejection) => Some(Err(rejection)),
        };
        let Some(RequestHandshake { mut socket, .. }) = self.take_handshake(at) else {
            return;
        };
        let opened = match read {
            None => return,
            Some(read) => {
                read.and_then(|(client, request)| pending_request(&socket, client, request))
            }
        };
        match opened {
            Ok((peer, client, credentials, segment)) => {
                socket.unwatch();
                let data = client.private_data.clone();
                engine.on_connreq(self.id, &peer, &data);
                let pending = PendingRequest {
                    socket,
                    segment,
                    client,
                    credentials,
                    local: self.name.clone(),
                };
                let handle = Box::new(ShmConnReqHandle(Some(pending)));
                self.requests.push_back(ConnReq { peer, data, handle });
            }
            Err(Rejection { reason, error }) => {
                control::send_control(&socket, ControlMessage::Reject(reason));
                engine.event(self.id, EventKind::InboundRefused { error });
            }
        }
    }

    fn take_handshake(&mut self, at: usize) -> Option<RequestHandshake> {
        self.handshake_order.retain(|pending| *pending != at);
        self.handshakes.try_remove(at)
    }

    /// Sets the timer to the earliest deadline.
    fn arm_timer(&self) {
        let oldest = self.handshake_order.front();
        let oldest = oldest.and_then(|at| Some(self.handshakes.get(*at)?.deadline));
        let retry = match self.accepting {
            AcceptState::RetryAt(retry) => Some(retry),
            AcceptState::Accepting | AcceptState::QueueFull => None,
        };
        let next = oldest.into_iter().chain(retry).min();
        self.timer
            .set(next.map(|next| next.saturating_duration_since(Instant::now())));
    }

    /// Accepts again, and closes the connections whose time for a request has passed.
    fn on_timer(&mut self, engine: &mut impl EngineContext) {
        let now = Instant::now();
        if matches!(self.accepting, AcceptState::RetryAt(retry) if retry <= now) {
            self.resume_accept(engine);
        }
        while let Some(&oldest) = self.handshake_order.front()
            && let Some(handshake) = self.handshakes.get(oldest)
            && handshake.deadline <= now
        {
            let client = handshake.socket.credentials().ok();
            let peer = placeholder_address(client.and_then(|client| client.pid));
            let what = "no connect request before the handshake timeout (10 s)";
            let Rejection { reason, error } =
                Rejection::protocol(RefusalReason::Malformed, peer, what);
            control::send_control(&handshake.socket, ControlMessage::Reject(reason));
            engine.event(self.id, EventKind::InboundRefused { error });
            self.take_handshake(oldest);
        }
        self.arm_timer();
    }

    pub(crate) fn describe(&self) -> String {
        format!("{} ({} requests)", self.name, self.requests.len())
    }
}

impl Drop for ShmPassiveEndpoint {
    fn drop(&mut self) {
        if !self.listener.in_original_process() {
            return;
        }
        if self.accepting == AcceptState::Accepting {
            self.wait_set.unwatch(self.listener.as_fd());
        }
        self.timer.unwatch(&*self.wait_set);
    }
}

/// Checks a request; maps its segment.
fn pending_request(
    socket: &ShmSocket,
    credentials: PeerCredentials,
    request: CmRequest,
) -> Result<(Address, CmEndpoint, PeerCredentials, Segment), Rejection> {
    let CmRequest { client, segment } = request;
    let peer = socket.peer_name().ok_or_else(|| {
        let peer = placeholder_address(credentials.pid);
        let what = "the socket of the connection request has no endpoint name";
        Rejection::protocol(RefusalReason::Malformed, peer, what)
    })?;
    match Segment::map_from_peer(&segment, client.lines) {
        Ok(segment) => Ok((peer, client, credentials, segment)),
        Err(error) => Err(Rejection::of_segment(error, peer)),
    }
}

/// The connection of a pending request.
pub(super) struct PendingRequest {
    /// The socket of the direction from the client.
    pub(super) socket: ShmSocket,
    /// The client's ring.
    pub(super) segment: Segment,
    pub(super) client: CmEndpoint,
    pub(super) credentials: PeerCredentials,
    /// Name of the passive endpoint.
    pub(super) local: Address,
}

/// The handle of a connection request; rejects the request when it is dropped.
pub(super) struct ShmConnReqHandle(Option<PendingRequest>);

impl ShmConnReqHandle {
    /// Returns the request, unless the client has disconnected.
    pub(super) fn pending(&self) -> Option<&PendingRequest> {
        let is_alive = |request: &&PendingRequest| {
            request.socket.in_original_process() && !request.socket.has_hung_up()
        };
        self.0.as_ref().filter(is_alive)
    }

    /// Takes the request to accept it.
    pub(super) fn take(mut self) -> Option<PendingRequest> {
        self.0.take()
    }

    fn send_reject(&mut self, data: &[u8]) {
        let request = self.0.take();
        if let Some(request) = request.filter(|request| request.socket.in_original_process()) {
            cm::send_reject(&request.socket, data);
        }
    }
}

impl ConnReqHandle for ShmConnReqHandle {
    fn reject(mut self: Box<Self>, data: &[u8]) {
        self.send_reject(data);
    }
}

impl Drop for ShmConnReqHandle {
    fn drop(&mut self) {
        self.send_reject(&[]);
    }
}
