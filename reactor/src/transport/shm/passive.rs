//! Passive endpoints (`FI_EP_MSG`): they listen, and hand connection requests to the program.
//!
//! A *handshake* is a socket whose request is not complete. A client has 10 seconds to send its
//! request and to connect its reverse socket (see `cm`). Then both sockets form one pending
//! request, which waits until the program takes it. No epoll set watches these sockets until an
//! endpoint is opened for the request. A request that is dropped is rejected.
//!
//! A handshake can be evicted until the nonce has arrived on its reverse socket. The client is told
//! to connect again (`RetryLater`). A pending request is not evicted.
//!
//! At most 256 handshakes of other processes are pending; a new one evicts another (`handshakes`).
//! With 128 pending requests the passive endpoint accepts no connections until the program has
//! taken half of them. Of other processes, one process may have 64 handshakes without a message,
//! and 64 requests that wait for the reverse socket or the program. Beyond that its connections and
//! requests are refused with `RetryLater`. The two limits are separate, so that the requests of a
//! process cannot keep their own reverse sockets out. All these numbers are lower if this process
//! may have fewer than 1,024 descriptors: together they take about half of these.

mod handshakes;

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric_core::event::EventKind;
use fabric_core::transport::{
    ConnReq, ConnectionRequests, EndpointContext, EngineContext, EpId, TransportEndpoint, WaitSet,
    WaitToken,
};
use fabric_core::{Address, Error, RefusalReason, Result};

use self::handshakes::{RequestHandshake, RequestHandshakes, max_pending};
use super::cm::{self, CmClientMessage, CmOffer};
use super::conn_req::{CheckedRequest, PendingRequest, ShmConnReqHandle};
use super::control::{self, ControlMessage, ReadError};
use super::rx_connection::{self, AcceptBudget, Accepted, Rejection, placeholder_address};
use super::segment::Segment;
use super::socket::{PeerCredentials, ShmListener, ShmSocket};
use super::token::ShmToken;
use crate::sys::closer::{self, PeerFd};
use crate::sys::fd_limit::part_of_descriptors;
use crate::sys::os_error::os_error;
use crate::sys::timer::Timer;

/// Returns the limit of handshakes without a message, of one other process: a quarter (64).
fn max_silent_of_process() -> usize {
    (max_pending() / 4).max(1)
}
/// Returns the number of pending requests at which further connections stay in the kernel's
/// backlog: 128, or less if this process may have fewer than 1,024 descriptors. A pending request
/// has two.
fn max_pending_requests() -> usize {
    part_of_descriptors(8, 128)
}
/// Returns the limit of requests that wait for the reverse socket or for the program, of one other
/// process: half of the pending ones (64).
fn max_requests_of_process() -> usize {
    (max_pending_requests() / 2).max(1)
}
/// Time that a client has for its request and its reverse socket.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which accepting is tried again: after `accept` has failed, or while the queue of the
/// closing threads is full.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// A passive endpoint.
pub(crate) struct ShmPassiveEndpoint {
    id: EpId,
    name: Address,
    listener: ShmListener,
    wait_set: Arc<dyn WaitSet>,
    /// Expires at the earliest deadline of a handshake, or when accepting is tried again.
    timer: Timer,
    accept_state: AcceptState,
    handshakes: RequestHandshakes,
    /// Pending requests with the process of the client, oldest first.
    requests: VecDeque<(Option<u64>, ConnReq)>,
}

/// Whether a passive endpoint accepts connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AcceptState {
    /// The domain's epoll set watches the listener.
    Accepting,
    /// Connections stay in the backlog until the program has taken requests.
    QueueFull,
    /// Connections stay in the backlog until this time.
    RetryAt(Instant),
}

impl<E: EngineContext> TransportEndpoint<E> for ShmPassiveEndpoint {
    fn progress(&mut self, _: &mut EndpointContext<'_, E>, _: usize) -> u32 {
        0
    }

    fn is_idle(&mut self, _: &mut EndpointContext<'_, E>) -> bool {
        true
    }

    fn ready(&mut self, ctx: &mut EndpointContext<'_, E>, token: WaitToken) {
        match token.into() {
            ShmToken::Listener => self.accept(ctx),
            ShmToken::Rx(index) => self.poll_handshake(ctx, index as usize),
            ShmToken::Timer => self.on_timer(ctx),
            ShmToken::Tx(_) => {}
        }
    }

    fn arm(&mut self, _: &mut EndpointContext<'_, E>) -> bool {
        true
    }

    fn close(&mut self, _: &mut EndpointContext<'_, E>) {}

    fn describe(&self) -> String {
        format!("{} ({} requests)", self.name, self.requests.len())
    }

    fn requests(&mut self) -> Option<&mut dyn ConnectionRequests<E>> {
        Some(self)
    }
}

impl<E: EngineContext> ConnectionRequests<E> for ShmPassiveEndpoint {
    /// Takes the oldest pending request. Accepts again when half of the requests have been taken.
    fn take_connreq(&mut self, ctx: &mut EndpointContext<'_, E>) -> Option<ConnReq> {
        let (_, request) = self.requests.pop_front()?;
        if self.accept_state == AcceptState::QueueFull
            && self.requests.len() <= max_pending_requests() / 2
        {
            self.resume_accept(ctx);
            self.arm_timer();
        }
        Some(request)
    }
}

impl ShmPassiveEndpoint {
    /// Opens a passive endpoint, which listens at this name.
    pub(crate) fn open(id: EpId, name: Address, wait_set: Arc<dyn WaitSet>) -> Result<Self> {
        let timer = Timer::new(&wait_set, ShmToken::Timer.pack(id))?;
        let mut listener = ShmListener::open(&name)?;
        listener.watch(&wait_set, ShmToken::Listener.pack(id))?;
        Ok(Self {
            id,
            name,
            listener,
            wait_set,
            timer,
            accept_state: AcceptState::Accepting,
            handshakes: RequestHandshakes::default(),
            requests: VecDeque::new(),
        })
    }

    pub(crate) fn name(&self) -> &Address {
        &self.name
    }

    /// Accepts connections of the backlog, or refuses them, within an [`AcceptBudget`].
    fn accept(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        let mut budget = AcceptBudget::new();
        let (max_requests, max_silent) = (max_pending_requests(), max_silent_of_process());
        while budget.has_more() {
            if self.accept_state != AcceptState::Accepting {
                return;
            }
            if self.requests.len() >= max_requests {
                return self.stop_accepting(AcceptState::QueueFull);
            }
            if closer::register_if_full(&self.wait_set) {
                return self.pause_accept();
            }
            let handshakes = &self.handshakes;
            let is_at_share = |process| handshakes.count_silent(process) >= max_silent;
            match rx_connection::accept(&self.listener, &mut budget, is_at_share) {
                Ok(Some(Accepted::Admitted(socket, client))) => {
                    self.add_handshake(ctx, socket, client);
                }
                Ok(Some(Accepted::Refused(error))) => {
                    ctx.event(EventKind::InboundRefused { error, count: 1 });
                }
                Ok(Some(Accepted::AtShare)) => {
                    let error = rx_connection::too_many_handshakes(max_silent);
                    ctx.event(EventKind::InboundRefused { error, count: 1 });
                }
                Ok(Some(Accepted::Disconnected)) => {}
                Ok(None) => return,
                Err(errno) => {
                    let error = os_error("accept4")(errno);
                    ctx.event(EventKind::InboundRefused { error, count: 1 });
                    return self.pause_accept();
                }
            }
        }
    }

    /// Stops accepting for [`ACCEPT_RETRY_DELAY`].
    fn pause_accept(&mut self) {
        self.stop_accepting(AcceptState::RetryAt(Instant::now() + ACCEPT_RETRY_DELAY));
        self.arm_timer();
    }

    /// Stops accepting. The listener is not watched, because connections in the backlog keep it
    /// readable.
    fn stop_accepting(&mut self, state: AcceptState) {
        self.listener.unwatch();
        self.accept_state = state;
    }

    /// Watches the listener again and accepts. If the listener cannot be watched, the next call of
    /// `arm_timer` sets the timer for another try.
    fn resume_accept(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        let token = ShmToken::Listener.pack(self.id);
        if self.listener.watch(&self.wait_set, token).is_err() {
            self.accept_state = AcceptState::RetryAt(Instant::now() + ACCEPT_RETRY_DELAY);
            return;
        }
        self.accept_state = AcceptState::Accepting;
        self.accept(ctx);
    }

    /// Adds a client that was admitted. Evicts a handshake at the limit.
    fn add_handshake(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        mut socket: ShmSocket,
        client: PeerCredentials,
    ) {
        let index = self.handshakes.next_index();
        let token = ShmToken::Rx(index as u32).pack(self.id);
        // A socket that cannot be watched (`ENOSPC`, `ENOMEM`) is closed.
        if socket.watch(&self.wait_set, token).is_err() {
            return;
        }
        let is_only = self.handshakes.insert(RequestHandshake {
            socket,
            client,
            request: None,
            deadline: Instant::now() + REQUEST_TIMEOUT,
        });
        if is_only {
            self.arm_timer();
        }
        self.poll_handshake(ctx, index);
        let limit = max_pending();
        if let Some(evicted) = self.handshakes.evict(limit) {
            // The client connects again later: of a request, both sockets.
            control::send_control(&evicted.socket, ControlMessage::RetryLater);
            let error = Error::TooMany {
                what: "pending handshakes",
                count: limit + 1,
                limit,
            };
            ctx.event(EventKind::InboundRefused { error, count: 1 });
        }
    }

    /// Receives the message of a client.
    fn poll_handshake(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>, index: usize) {
        let Some(handshake) = self.handshakes.get_mut(index) else {
            return;
        };
        let client = handshake.client;
        let message = match cm::recv_client_message(&handshake.socket) {
            Ok(Some(message)) => message,
            Ok(None) => return,
            Err(ReadError::HungUp) => return drop(self.handshakes.take(index)),
            Err(error) => {
                let rejection = Rejection::of_read(error, placeholder_address(client.pid));
                return self.reject(ctx, index, rejection);
            }
        };
        let is_first_request =
            handshake.request.is_none() && matches!(message, CmClientMessage::Request(_));
        if is_first_request && self.has_share_of_requests(client) {
            if let Some(handshake) = self.handshakes.take(index) {
                control::send_control(&handshake.socket, ControlMessage::RetryLater);
            }
            let limit = max_requests_of_process();
            let error = Error::TooMany {
                what: "connection requests from one process",
                count: limit + 1,
                limit,
            };
            return ctx.event(EventKind::InboundRefused { error, count: 1 });
        }
        let Some(handshake) = self.handshakes.get_mut(index) else {
            return;
        };
        let handled = match message {
            _ if handshake.request.is_some() => Err(malformed(client, "second connection message")),
            CmClientMessage::Request(request) => handshake.on_request(client, request),
            CmClientMessage::Reverse(nonce) => self.on_reverse(ctx, index, client, nonce),
        };
        if let Err(rejection) = handled {
            self.reject(ctx, index, rejection);
        }
    }

    /// Handles the nonce on the reverse socket of a client: queues the request that was given this
    /// nonce. The nonce becomes invalid, because the handshake ends.
    fn on_reverse(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        reverse_index: usize,
        client: PeerCredentials,
        nonce: u64,
    ) -> Result<(), Rejection> {
        let request_index = self.handshakes.find_request(client, nonce);
        let request_index = request_index
            .ok_or_else(|| malformed(client, "nonce of no pending connection request"))?;
        let (Some(requesting), Some(reverse)) = (
            self.handshakes.take(request_index),
            self.handshakes.take(reverse_index),
        ) else {
            return Ok(());
        };
        let Some(request) = requesting.request else {
            return Ok(());
        };
        let (mut socket, mut reverse) = (requesting.socket, reverse.socket);
        socket.unwatch();
        reverse.unwatch();
        let data = request.client.private_data.clone();
        ctx.on_connreq(&request.peer, &data);
        let peer = request.peer.clone();
        let pending = PendingRequest {
            socket,
            reverse,
            request,
            passive_name: self.name.clone(),
        };
        let handle = Box::new(ShmConnReqHandle::new(pending));
        let request = ConnReq { peer, data, handle };
        self.requests.push_back((client.process, request));
        Ok(())
    }

    /// Returns whether the process of this client is another one, and has as many requests as one
    /// process may have.
    fn has_share_of_requests(&self, client: PeerCredentials) -> bool {
        let queued = self.requests.iter().filter(|(of, _)| *of == client.process);
        !client.is_this_process()
            && self.handshakes.count_requests(client.process) + queued.count()
                >= max_requests_of_process()
    }

    /// Rejects a client, reports the rejection, and closes the socket.
    fn reject(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        index: usize,
        rejection: Rejection,
    ) {
        if let Some(handshake) = self.handshakes.take(index) {
            let error = rejection.send(&handshake.socket);
            ctx.event(EventKind::InboundRefused { error, count: 1 });
        }
    }

    /// Sets the timer to the earliest deadline of a handshake or of accepting again.
    fn arm_timer(&self) {
        let deadline = self.handshakes.next_deadline();
        let retry = match self.accept_state {
            AcceptState::RetryAt(retry) => Some(retry),
            AcceptState::Accepting | AcceptState::QueueFull => None,
        };
        let next = deadline.into_iter().chain(retry).min();
        self.timer
            .set(next.map(|next| next.saturating_duration_since(Instant::now())));
    }

    /// Handles the timer: accepts again, and rejects the clients whose time for a request has
    /// passed.
    fn on_timer(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        let now = Instant::now();
        if matches!(self.accept_state, AcceptState::RetryAt(retry) if retry <= now) {
            self.resume_accept(ctx);
        }
        while let Some((index, handshake)) = self.handshakes.first_expired(now) {
            // While the queue is full, the reverse socket may wait in the backlog.
            if handshake.request.is_some() && self.accept_state == AcceptState::QueueFull {
                self.handshakes.extend(index, now + REQUEST_TIMEOUT);
                continue;
            }
            let peer = placeholder_address(handshake.client.pid);
            let what = "no connection request before the handshake timeout (10 s)";
            let rejection = Rejection::protocol(RefusalReason::Malformed, peer, what);
            self.reject(ctx, index, rejection);
        }
        self.arm_timer();
    }
}

/// Returns the rejection of a client that violates the protocol.
fn malformed(client: PeerCredentials, what: &'static str) -> Rejection {
    let peer = placeholder_address(client.pid);
    Rejection::protocol(RefusalReason::Malformed, peer, what)
}

impl RequestHandshake {
    /// Checks a request, maps its segment, and sends a nonce to the client.
    fn on_request(
        &mut self,
        credentials: PeerCredentials,
        CmOffer {
            endpoint: client,
            segment,
        }: CmOffer<PeerFd>,
    ) -> Result<(), Rejection> {
        let peer = self.socket.peer_name().ok_or_else(|| {
            malformed(
                credentials,
                "the socket of the connection request has no endpoint name",
            )
        })?;
        let segment = Segment::map_from_peer(&segment, client.lines)
            .map_err(|error| Rejection::of_segment(error, peer.clone()))?;
        // The hash is random, because the keys of `RandomState` are.
        let nonce = RandomState::new().hash_one(client.incarnation);
        // A client that reads nothing does not learn the nonce, and its handshake times out.
        let _ = cm::send_nonce(&self.socket, nonce);
        self.request = Some(CheckedRequest {
            peer,
            client,
            credentials,
            segment,
            nonce,
        });
        Ok(())
    }
}
