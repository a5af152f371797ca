//! Connected endpoints (`FI_EP_MSG`): one peer, one connection in each direction, no listener.
//!
//! `cm` describes how endpoints connect. An established endpoint sends and receives as a
//! connectionless endpoint does, but its connection ends in both directions at once and is not
//! made again. The end of either direction fails the sends. Records that the peer left in its ring
//! are still received; then `Shutdown` is reported, and receives fail.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric_core::event::{DownReason, EventKind};
use fabric_core::flags::Caps;
use fabric_core::transport::{
    ConnReqHandle, ConnectMode, ConnectParams, Connected, EndpointConnection, EndpointContext,
    EngineContext, WaitSet,
};
use fabric_core::tree::Class;
use fabric_core::{Address, Error, FiAddr, Result, Scheme};
use rustix::io::Errno;

use super::super::cm::{self, CmAnswer, CmOffer, is_gone};
use super::super::conn_req::{PendingRequest, ShmConnReqHandle};
use super::super::connect_retry::ConnectRetry;
use super::super::control::{self, ControlEvent, ControlMessage, ReadError};
use super::super::rx_connection::{Rejection, RxConnection};
use super::super::segment::Segment;
use super::super::socket::{PeerCredentials, ShmSocket, SocketConnect, with_free_name};
use super::super::token::ShmToken;
use super::super::tx_connection::{LocalEnd, TxConnection};
use super::disconnect::end_tx_connection;
use super::{ShmConfig, ShmEndpoint, ShmEndpointKind};
use crate::sys::closer::PeerFd;
use crate::sys::os_error::os_error;
use crate::sys::timer::Timer;
use crate::transport::connected_peer::ConnectedPeer;

/// The connection of a connected endpoint.
pub(super) struct MsgConnection {
    /// Name of the peer: that of the passive endpoint, or of the client.
    peer: Address,
    /// Address handle of the peer, whose index is that of the sending end in the connection table.
    addr: FiAddr,
    state: MsgConnectionState,
    /// Whether `Shutdown` was reported to the event queue.
    shutdown_reported: bool,
    /// Whether the next pass has to fail receives: a multi-receive takes its messages in passes and
    /// fails afterwards.
    pub(super) has_recvs_to_fail: bool,
}

/// State of the connection of a connected endpoint.
enum MsgConnectionState {
    /// The client waits for the answer of the server's program.
    Connecting(ShmConnectAttempt),
    /// The connection is established, or the endpoint is being opened to accept a request.
    Connected,
    /// The connection has ended or was not established, for this reason.
    Disconnected(Error),
}

/// A connection attempt that waits for its answer.
struct ShmConnectAttempt {
    /// `FI_TAGGED` and `FI_ATOMIC` if the endpoint has them.
    caps: Caps,
    private_data: Vec<u8>,
    /// The name that the program has chosen for the endpoint.
    from: Option<Address>,
    step: ConnectStep,
    /// The end of the connect timeout.
    deadline: Instant,
    retry: ConnectRetry,
    /// Expires at the next try, or when the connect timeout has passed.
    timer: Timer,
}

/// What a connection attempt does next.
enum ConnectStep {
    /// Connects the socket of the request at this time.
    RetryRequest(Instant),
    /// Waits for the nonce, after it has sent the request.
    AwaitNonce,
    /// Connects the reverse socket.
    RetryReverse(Instant, ReverseOffer),
    /// Waits for the accept. `is_ready` tells whether the passive endpoint has admitted the reverse
    /// socket.
    AwaitAccept {
        reverse: ShmSocket,
        offer: ReverseOffer,
        is_ready: bool,
    },
}

/// State of the reverse socket.
enum ReverseStatus {
    /// The socket is open, or is to be connected.
    Open,
    /// The passive endpoint has rejected or closed the socket. The attempt fails with this error,
    /// unless the answer is on the socket of the request: an answer precedes the end of the reverse
    /// socket.
    Ended(Error),
}

/// What the passive endpoint has sent to a client whose request is valid.
#[derive(Clone, Copy)]
struct ReverseOffer {
    /// Number that the client is to send over the reverse socket.
    nonce: u64,
    /// Credentials of the passive endpoint's process.
    server: PeerCredentials,
}

/// Message that was received while the client waits for the answer, and that is not handled yet.
enum AnswerStep {
    /// No message has arrived.
    Pending,
    /// The request was sent, and another message may have arrived.
    RequestSent,
    /// The program of the server, whose process has these credentials, has accepted.
    Accepted(CmOffer<PeerFd>, PeerCredentials),
    /// The request is valid: the reverse socket is to be connected.
    ConnectReverse(ReverseOffer),
    /// The passive endpoint takes no request of this process now, or has evicted the request.
    RetryLater,
}

/// Returns the error of an attempt whose server violates the protocol.
fn violation(peer: Address, what: &'static str) -> Error {
    let what = what.into();
    Error::Protocol { peer, what }
}

impl ShmConnectAttempt {
    /// Starts the timer of an attempt.
    fn start(
        (caps, private_data): (Caps, &[u8]),
        from: Option<&Address>,
        timeout: Duration,
        wait_set: &Arc<dyn WaitSet>,
        token: u64,
    ) -> Result<Self> {
        let now = Instant::now();
        // A timeout that no clock can hold is as good as a year.
        let deadline = now
            .checked_add(timeout)
            .unwrap_or(now + Duration::from_secs(365 * 24 * 3600));
        let attempt = Self {
            caps,
            private_data: private_data.to_vec(),
            from: from.cloned(),
            step: ConnectStep::AwaitNonce,
            deadline,
            retry: ConnectRetry::until(deadline),
            timer: Timer::new(wait_set, token)?,
        };
        attempt.arm_timer();
        Ok(attempt)
    }

    /// Returns the time of the next try to connect a socket.
    fn next_try(&self) -> Option<Instant> {
        match self.step {
            ConnectStep::RetryRequest(next) | ConnectStep::RetryReverse(next, _) => Some(next),
            ConnectStep::AwaitNonce | ConnectStep::AwaitAccept { .. } => None,
        }
    }

    /// Sets the timer to the next try or to the end of the connect timeout.
    fn arm_timer(&self) {
        let next = self.next_try().unwrap_or(self.deadline);
        let after = next.saturating_duration_since(Instant::now());
        self.timer.set(Some(after));
    }

    /// Connects the reverse socket and sends the nonce, or sets the time of the next try.
    ///
    /// # Errors
    /// The attempt has failed.
    fn connect_reverse(
        &mut self,
        peer: &Address,
        offer: ReverseOffer,
        (wait_set, token): (&Arc<dyn WaitSet>, u64),
    ) -> Result<()> {
        let (mut reverse, credentials) = match ShmSocket::connect(peer)? {
            SocketConnect::Connected(reverse, credentials) => (reverse, credentials),
            SocketConnect::BacklogFull => return self.connect_reverse_later(peer, offer),
        };
        if credentials != offer.server {
            // Since the request another process listens at the name.
            return Err(Error::PeerGone(peer.clone()));
        }
        match cm::send_reverse(&reverse, offer.nonce) {
            Ok(()) => {}
            // The passive endpoint has closed the socket. Its reason is read next.
            Err(errno) if is_gone(errno) => {}
            Err(errno) => return Err(os_error("sendmsg")(errno)),
        }
        reverse.watch(wait_set, token)?;
        self.step = ConnectStep::AwaitAccept {
            reverse,
            offer,
            is_ready: false,
        };
        self.arm_timer();
        Ok(())
    }

    /// Sets the time of the next try to connect the reverse socket.
    ///
    /// # Errors
    /// Those of [`ConnectRetry::next_try`].
    fn connect_reverse_later(&mut self, peer: &Address, offer: ReverseOffer) -> Result<()> {
        self.step = ConnectStep::RetryReverse(self.retry.next_try(peer)?, offer);
        self.arm_timer();
        Ok(())
    }

    /// Receives `Ready`, `RetryLater` or a rejection on the reverse socket, if one of them has
    /// arrived. The passive endpoint rejects the nonce of a request that it has evicted.
    ///
    /// # Errors
    /// The attempt has failed.
    fn poll_reverse(&mut self, peer: &Address) -> Result<ReverseStatus> {
        let ConnectStep::AwaitAccept {
            reverse,
            offer,
            is_ready,
        } = &mut self.step
        else {
            return Ok(ReverseStatus::Open);
        };
        let peer = peer.clone();
        match control::recv_control(reverse) {
            Ok(None) => Ok(ReverseStatus::Open),
            Ok(Some(ControlEvent::Message(ControlMessage::Ready))) if !*is_ready => {
                *is_ready = true;
                Ok(ReverseStatus::Open)
            }
            // The passive endpoint may evict the handshake after `Ready`.
            Ok(Some(ControlEvent::Message(ControlMessage::RetryLater))) => {
                let offer = *offer;
                self.connect_reverse_later(&peer, offer)?;
                Ok(ReverseStatus::Open)
            }
            Ok(Some(ControlEvent::Message(ControlMessage::Reject(reason)))) => {
                let refused = Error::ConnectionRefused { peer, reason };
                Ok(ReverseStatus::Ended(refused))
            }
            Err(ReadError::HungUp) => Ok(ReverseStatus::Ended(Error::PeerGone(peer))),
            _ => Err(violation(
                peer,
                "unexpected message on the reverse socket before the accept",
            )),
        }
    }
}

impl ShmEndpoint {
    /// Opens an endpoint that connects to a passive endpoint, or accepts a request. The result of a
    /// connection attempt is reported to the engine (`on_connected`), then or later.
    ///
    /// # Errors
    /// Errors of this process, and [`Error::PeerGone`] if the client of the request has
    /// disconnected.
    pub(crate) fn open_connected(
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        config: ShmConfig<'_>,
        params: ConnectParams<'_>,
    ) -> Result<Self> {
        let id = ctx.ep();
        let (peer, addr) = (params.peer, params.fi_addr);
        peer.check_scheme(Scheme::Shm)?;
        let caps = config.info.caps & (Caps::TAGGED | Caps::ATOMIC);
        let state = match &params.mode {
            ConnectMode::Connect { from, timeout } => {
                if let Some(from) = from {
                    from.check_scheme(Scheme::Shm)?;
                }
                let (local, token) = ((caps, params.data), ShmToken::Timer.pack(id));
                let wait_set = &config.wait_set;
                let attempt = ShmConnectAttempt::start(local, *from, *timeout, wait_set, token)?;
                MsgConnectionState::Connecting(attempt)
            }
            ConnectMode::Accept(_) => MsgConnectionState::Connected,
        };
        let kind = ShmEndpointKind::Msg(Box::new(MsgConnection {
            peer: peer.clone(),
            addr,
            state,
            shutdown_reported: false,
            has_recvs_to_fail: false,
        }));
        let tx_index = addr.index();
        let tx = TxConnection::new(peer.clone(), addr, config.tx_settings.clone());
        // The name is replaced when the endpoint has connected or accepted.
        let mut endpoint = Self::new(ctx, peer.clone(), kind, config);
        endpoint.tx_connections.lock_or_insert(addr, || Ok(tx))?;
        endpoint.tx_indices.push(tx_index);
        match params.mode {
            ConnectMode::Connect { .. } => endpoint.start_connect(ctx)?,
            ConnectMode::Accept(request) => {
                endpoint.accept_request(ctx, request, (caps, params.data))?;
            }
        }
        Ok(endpoint)
    }

    /// Connects to the passive endpoint. If no connection is possible, the attempt has failed, and
    /// the engine is told.
    ///
    /// # Errors
    /// Errors of this process, such as [`Error::AddressInUse`].
    fn start_connect(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) -> Result<()> {
        let peer = self.msg().map(|msg| msg.peer.clone());
        match self.connect_request() {
            Ok(()) => {}
            Err(
                error @ (Error::NoSuchPeer(_)
                | Error::ConnectionRefused { .. }
                | Error::OtherUser { .. }),
            ) => {
                self.set_msg_state(MsgConnectionState::Disconnected(error.clone()));
                if let Some(peer) = peer {
                    ctx.on_connected(&peer, Err(error));
                }
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Connects the socket of the request from the program's or a generated name, or sets the time
    /// of the next try. The client has no name between two tries.
    ///
    /// # Errors
    /// Those of [`ShmSocket::connect_from`], [`ConnectRetry::next_try`] and the operating system.
    fn connect_request(&mut self) -> Result<()> {
        let ShmEndpointKind::Msg(msg) = &mut self.kind else {
            return Ok(());
        };
        let MsgConnectionState::Connecting(attempt) = &mut msg.state else {
            return Ok(());
        };
        let tx_index = msg.addr.index();
        let token = ShmToken::Tx(tx_index as u32).pack(self.id);
        let incarnation = self.local.incarnation;
        let connected_from = with_free_name(attempt.from.as_ref(), |name| {
            let Some(mut tx) = self.tx_connections.lock(tx_index) else {
                return Err(Error::PeerGone(msg.peer.clone()));
            };
            let is_connected = tx.connect_from(LocalEnd {
                name,
                incarnation,
                token,
                wait_set: &self.wait_set,
            })?;
            Ok(is_connected.then(|| name.clone()))
        })?;
        match connected_from {
            Some(name) => {
                self.name = name;
                attempt.step = ConnectStep::AwaitNonce;
            }
            None => attempt.step = ConnectStep::RetryRequest(attempt.retry.next_try(&msg.peer)?),
        }
        attempt.arm_timer();
        Ok(())
    }

    /// Closes both sockets, because the passive endpoint has refused or evicted the request, and
    /// sets the time of the next try.
    ///
    /// # Errors
    /// Those of [`ConnectRetry::next_try`].
    fn connect_request_later(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) -> Result<()> {
        let ShmEndpointKind::Msg(msg) = &mut self.kind else {
            return Ok(());
        };
        if let MsgConnectionState::Connecting(attempt) = &mut msg.state {
            if let Some(mut tx) = self.tx_connections.lock(msg.addr.index()) {
                tx.close(ctx, &Error::PeerGone(msg.peer.clone()));
            }
            attempt.step = ConnectStep::RetryRequest(attempt.retry.next_try(&msg.peer)?);
            attempt.arm_timer();
        }
        Ok(())
    }

    /// Handles a readable socket of the client while it waits for the answer.
    pub(super) fn on_connect_readable(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
    ) {
        loop {
            match self.handle_answer(ctx) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.on_connect_failed(ctx, error),
            }
        }
    }

    /// Handles one message while the client waits for the answer. Returns whether another one is to
    /// be handled.
    ///
    /// # Errors
    /// The attempt has failed.
    fn handle_answer(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) -> Result<bool> {
        let Some(MsgConnection {
            peer,
            state: MsgConnectionState::Connecting(attempt),
            ..
        }) = self.msg_mut()
        else {
            return Ok(false);
        };
        let reverse = attempt.poll_reverse(peer)?;
        match self.poll_answer()? {
            AnswerStep::Pending => match reverse {
                ReverseStatus::Open => Ok(false),
                ReverseStatus::Ended(error) => Err(error),
            },
            AnswerStep::RequestSent => Ok(true),
            AnswerStep::RetryLater => {
                self.connect_request_later(ctx)?;
                Ok(false)
            }
            AnswerStep::ConnectReverse(offer) => {
                self.connect_reverse(offer)?;
                Ok(true)
            }
            AnswerStep::Accepted(accept, credentials) => {
                self.on_accepted(ctx, accept, credentials)?;
                Ok(false)
            }
        }
    }

    /// Receives one message while the client waits for the answer, and sends the request when the
    /// passive endpoint is ready.
    fn poll_answer(&self) -> Result<AnswerStep> {
        let Some(MsgConnection {
            peer,
            addr,
            state: MsgConnectionState::Connecting(attempt),
            ..
        }) = self.msg()
        else {
            return Ok(AnswerStep::Pending);
        };
        let Some(mut tx) = self.tx_connections.lock(addr.index()) else {
            return Ok(AnswerStep::Pending);
        };
        let peer = peer.clone();
        let (read, credentials) = tx.recv_answer();
        let answer = match read {
            Ok(Some(answer)) => answer,
            Ok(None) => return Ok(AnswerStep::Pending),
            Err(ReadError::HungUp) => return Err(Error::PeerGone(peer)),
            Err(error) => return Err(Rejection::of_read(error, peer).error),
        };
        match (answer, credentials) {
            (CmAnswer::Ready, _) if tx.is_segment_sent() => Err(violation(
                peer,
                "control message out of order: second ready",
            )),
            (CmAnswer::Ready, _) => {
                match tx.send_offer(attempt.caps, &attempt.private_data, cm::send_request) {
                    // If the passive endpoint has closed, its last messages are read next.
                    Err(errno) if !is_gone(errno) => Err(os_error("sendmsg")(errno)),
                    _ => Ok(AnswerStep::RequestSent),
                }
            }
            (CmAnswer::Nonce(nonce), Some(credentials))
                if tx.is_segment_sent() && matches!(attempt.step, ConnectStep::AwaitNonce) =>
            {
                let server = credentials;
                Ok(AnswerStep::ConnectReverse(ReverseOffer { nonce, server }))
            }
            (CmAnswer::RetryLater, _) => Ok(AnswerStep::RetryLater),
            (CmAnswer::Nonce(_), _) => {
                Err(violation(peer, "connection message out of order: nonce"))
            }
            (CmAnswer::Accepted(accept), Some(credentials))
                if matches!(attempt.step, ConnectStep::AwaitAccept { .. }) =>
            {
                Ok(AnswerStep::Accepted(accept, credentials))
            }
            (CmAnswer::Accepted(_), _) => Err(violation(
                peer,
                "connection message out of order: accept before the reverse socket",
            )),
            (CmAnswer::Rejected(data), _) => Err(Error::RejectedByPeer { peer, data }),
            (CmAnswer::Refused(reason), _) => Err(Error::ConnectionRefused { peer, reason }),
        }
    }

    /// Connects the reverse socket and sends the nonce over it, or sets the time of the next try.
    fn connect_reverse(&mut self, offer: ReverseOffer) -> Result<()> {
        let ShmEndpointKind::Msg(msg) = &mut self.kind else {
            return Ok(());
        };
        if let MsgConnectionState::Connecting(attempt) = &mut msg.state {
            // The socket has the token of the request's socket: a message on either one makes the
            // endpoint read both.
            let token = ShmToken::Tx(msg.addr.index() as u32).pack(self.id);
            attempt.connect_reverse(&msg.peer, offer, (&self.wait_set, token))?;
        }
        Ok(())
    }

    /// Handles the timer of an attempt: connects a socket again, or ends the attempt whose answer
    /// has not arrived in time.
    pub(super) fn on_attempt_timer(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        let Some(MsgConnection {
            peer,
            state: MsgConnectionState::Connecting(attempt),
            ..
        }) = self.msg()
        else {
            return;
        };
        let tried = match attempt.step {
            ConnectStep::RetryRequest(_) => match self.connect_request() {
                // The kernel may release the name of the last try late.
                Err(error @ Error::AddressInUse(_)) => {
                    self.connect_request_later(ctx).map_err(|_| error)
                }
                tried => tried,
            },
            ConnectStep::RetryReverse(_, offer) => self.connect_reverse(offer),
            ConnectStep::AwaitNonce | ConnectStep::AwaitAccept { .. } => {
                Err(Error::TimedOut(peer.clone()))
            }
        };
        if let Err(error) = tried {
            self.on_connect_failed(ctx, error);
        }
    }

    /// Ends an attempt that has failed, and reports the error. Does nothing if the client does not
    /// wait for an answer.
    fn on_connect_failed(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        error: Error,
    ) {
        let Some(msg) = self.msg_mut() else {
            return;
        };
        if !matches!(msg.state, MsgConnectionState::Connecting(_)) {
            return;
        }
        msg.state = MsgConnectionState::Disconnected(error.clone());
        let (peer, tx_index) = (msg.peer.clone(), msg.addr.index());
        if let Some(mut tx) = self.tx_connections.lock(tx_index) {
            tx.close(ctx, &error);
        }
        ctx.on_connected(&peer, Err(error));
    }

    /// Handles the accept of the server's program: the connection is established.
    fn on_accepted(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        CmOffer {
            endpoint: server,
            segment,
        }: CmOffer<PeerFd>,
        credentials: PeerCredentials,
    ) -> Result<()> {
        let Some(MsgConnection {
            peer,
            addr,
            state: MsgConnectionState::Connecting(attempt),
            ..
        }) = self.msg_mut()
        else {
            return Ok(());
        };
        let (peer, tx_index) = (peer.clone(), addr.index());
        // The server has admitted the reverse socket before it accepted. It may have closed both
        // sockets since.
        let is_unready = matches!(
            attempt.step,
            ConnectStep::AwaitAccept {
                is_ready: false,
                ..
            }
        );
        if is_unready && let ReverseStatus::Ended(error) = attempt.poll_reverse(&peer)? {
            return Err(error);
        }
        let step = std::mem::replace(&mut attempt.step, ConnectStep::AwaitNonce);
        let ConnectStep::AwaitAccept {
            mut reverse,
            is_ready: true,
            ..
        } = step
        else {
            let what = "no ready message on the reverse socket before the accept";
            return Err(violation(peer, what));
        };
        reverse.unwatch();
        let segment = Segment::map_from_peer(&segment, server.lines)
            .map_err(|error| Rejection::of_segment(error, peer.clone()).error)?;
        self.add_msg_rx(ctx, (credentials, server.incarnation), segment, reverse)?
            .send_accept();
        if let Some(mut tx) = self.tx_connections.lock(tx_index) {
            tx.establish(server.incarnation);
        }
        self.set_msg_state(MsgConnectionState::Connected);
        let connected = Connected {
            name: self.name.clone(),
            data: server.private_data,
            tx_caps: server.caps,
            credentials: Some(credentials.for_application()),
        };
        ctx.on_connected(&peer, Ok(connected));
        self.progress_rx(ctx);
        Ok(())
    }

    /// Accepts a connection request: creates the ring to the client, and sends its segment.
    fn accept_request(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        request: Box<dyn ConnReqHandle>,
        (caps, private_data): (Caps, &[u8]),
    ) -> Result<()> {
        let Some((peer, tx_index)) = self.msg_peer() else {
            return Ok(());
        };
        let request: Box<dyn Any> = request;
        let Ok(request) = request.downcast::<ShmConnReqHandle>() else {
            return Err(Error::Invalid {
                what: "connection request",
                why: "the request was received by another provider".into(),
            });
        };
        let gone = || Error::PeerGone(peer.clone());
        let PendingRequest {
            socket,
            reverse,
            request,
            passive_name,
        } = request.take_if_alive().ok_or_else(gone)?;
        self.name = passive_name;
        // The sending end, over the reverse socket.
        let local = self.local_end(tx_index);
        let channel = (reverse, request.credentials);
        let opened = self
            .tx_connections
            .lock(tx_index)
            .map(|mut tx| tx.open_channel(channel, local));
        if let Err(error) = opened.unwrap_or_else(|| Err(gone())) {
            cm::send_reject(&socket, &[]);
            return Err(error);
        }
        // The receiving end, over the socket of the request.
        let tx_caps = request.client.caps;
        let identity = (request.credentials, request.client.incarnation);
        let tx_connections = self.tx_connections.clone();
        let rx = self.add_msg_rx(ctx, identity, request.segment, socket)?;
        let sent = tx_connections.lock(tx_index).map(|mut tx| {
            tx.send_offer(caps, private_data, |_, offer| {
                let socket = rx.socket().ok_or(Errno::PIPE)?;
                cm::send_accept(socket, offer)
            })
        });
        match sent {
            Some(Err(errno)) if !is_gone(errno) => {
                return Err(os_error("sendmsg")(errno));
            }
            Some(Ok(())) => {}
            _ => return Err(gone()),
        }
        let connected = Connected {
            name: self.name.clone(),
            data: Vec::new(),
            tx_caps,
            credentials: Some(request.credentials.for_application()),
        };
        ctx.on_connected(&peer, Ok(connected));
        Ok(())
    }

    /// Creates the receiving end for a peer with these credentials and this incarnation, watches
    /// its socket, and adds it to the incoming connections.
    fn add_msg_rx(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        (credentials, incarnation): (PeerCredentials, u64),
        segment: Segment,
        socket: ShmSocket,
    ) -> Result<&RxConnection> {
        let peer = self
            .msg()
            .map_or_else(|| self.name.clone(), |msg| msg.peer.clone());
        let end = (peer.clone(), credentials, incarnation);
        // Messages have no source: a connected endpoint has one peer and no address vector.
        let mut rx = RxConnection::establish(end, self.local.clone(), segment, socket);
        let rx_index = self.rx_connections.reserve();
        let token = ShmToken::Rx(rx_index as u32).pack(self.id);
        if let Err(error) = rx.watch(&self.wait_set, token) {
            self.rx_connections.release(rx_index);
            return Err(error);
        }
        rx.peer = ConnectedPeer::connect(ctx, self.rx_connections.generate_key(), &peer);
        self.rx_connections
            .insert_established(rx_index, Box::new(rx));
        let rx = self.rx_connections.get_mut(rx_index).map(|rx| &*rx);
        rx.ok_or(Error::Closed(Class::Endpoint))
    }

    /// Returns the connection of a connected endpoint; `None` for a connectionless endpoint.
    fn msg(&self) -> Option<&MsgConnection> {
        match &self.kind {
            ShmEndpointKind::Msg(msg) => Some(msg),
            ShmEndpointKind::Rdm(_) => None,
        }
    }

    /// Returns the connection of a connected endpoint; `None` for a connectionless endpoint.
    fn msg_mut(&mut self) -> Option<&mut MsgConnection> {
        match &mut self.kind {
            ShmEndpointKind::Msg(msg) => Some(msg),
            ShmEndpointKind::Rdm(_) => None,
        }
    }

    /// Returns whether the endpoint is a client that waits for its answer.
    pub(super) fn is_connecting(&self) -> bool {
        matches!(
            self.msg(),
            Some(MsgConnection {
                state: MsgConnectionState::Connecting(_),
                ..
            })
        )
    }

    /// Returns the error of a transmit operation that finds no connection. `None` for a
    /// connectionless endpoint, which connects again.
    pub(super) fn disconnect_error(&self) -> Option<Error> {
        let msg = self.msg()?;
        Some(match &msg.state {
            MsgConnectionState::Disconnected(error) => error.clone(),
            MsgConnectionState::Connecting(_) | MsgConnectionState::Connected => {
                Error::PeerGone(msg.peer.clone())
            }
        })
    }

    /// Returns the name of the peer, and the index of the sending end in the connection table.
    fn msg_peer(&self) -> Option<(Address, usize)> {
        let msg = self.msg()?;
        Some((msg.peer.clone(), msg.addr.index()))
    }

    fn set_msg_state(&mut self, state: MsgConnectionState) {
        if let Some(msg) = self.msg_mut() {
            msg.state = state;
        }
    }

    /// Handles the end of one direction: ends the other direction too.
    pub(super) fn on_msg_ended(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        reason: DownReason,
    ) {
        let Some(msg) = self.msg_mut() else {
            return;
        };
        let peer = msg.peer.clone();
        let error = match reason {
            DownReason::Protocol(what) => violation(peer, what),
            _ => Error::PeerGone(peer),
        };
        if matches!(msg.state, MsgConnectionState::Connected) {
            msg.state = MsgConnectionState::Disconnected(error.clone());
        }
        self.end_directions(ctx, reason, &error);
    }

    /// Ends both directions: fails the sends with `error`. From then on only records that are in
    /// the peer's ring are received.
    fn end_directions(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        reason: DownReason,
        error: &Error,
    ) {
        self.for_each_tx(|tx| {
            end_tx_connection(tx, ctx, error, Some(ControlMessage::EndpointClosed));
        });
        let mut rx_indices = Vec::new();
        self.rx_connections
            .for_each_established(|rx_index, _| rx_indices.push(rx_index));
        for rx_index in rx_indices {
            self.rx_connections.activate(rx_index);
            let Some(rx) = self.rx_connections.get_mut(rx_index) else {
                continue;
            };
            // A socket that has hung up stays readable and would keep the domain awake.
            rx.unwatch();
            if rx.mark_down(reason) {
                rx.stop_cma();
                let gone = Error::PeerGone(rx.peer_address.clone());
                ctx.fail_unmapped_from(rx.peer.key(), &gone);
            }
            rx.release_descriptors(ctx);
        }
        ctx.request_pass();
        ctx.request_rearm();
    }

    /// Reports `Shutdown` and fails receives: the connection has ended and the peer's ring is
    /// empty.
    pub(super) fn on_msg_drained(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        reason: DownReason,
    ) {
        let Some(msg) = self.msg_mut() else {
            return;
        };
        if !std::mem::replace(&mut msg.shutdown_reported, true) {
            let peer = msg.peer.clone();
            ctx.event(EventKind::Shutdown { peer, reason });
        }
        self.has_rx_change_effects = true;
        self.update_post_reports(ctx);
        self.fail_recvs(ctx);
    }

    /// Fails the posted receives of a connected endpoint whose connection has ended and whose ring
    /// is empty. Receives of a shared context stay posted for its other endpoints.
    #[cold]
    pub(super) fn fail_recvs(&mut self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        let ShmEndpointKind::Msg(msg) = &mut self.kind else {
            return;
        };
        let MsgConnectionState::Disconnected(error) = &msg.state else {
            return;
        };
        if ctx.shares_rx() || self.rx_connections.established().next().is_some() {
            return;
        }
        ctx.fail_posted(error);
        // A multi-receive takes its messages in passes, and fails afterwards.
        msg.has_recvs_to_fail = ctx.rx_is_busy();
    }
}

impl<E: EngineContext> EndpointConnection<E> for ShmEndpoint {
    /// Shuts the connection down. The peer still receives the completed sends from the ring.
    fn shutdown(&mut self, ctx: &mut EndpointContext<'_, E>) {
        let Some(msg) = self.msg_mut() else { return };
        if !matches!(msg.state, MsgConnectionState::Connected) {
            return;
        }
        msg.state = MsgConnectionState::Disconnected(Error::ShutDown);
        msg.shutdown_reported = true;
        let peer = msg.peer.clone();
        self.send_acks(ctx);
        if !ctx.shares_rx() {
            ctx.fail_posted(&Error::Canceled);
        }
        self.rx_connections
            .established()
            .for_each(|rx| rx.close(ControlMessage::EndpointClosed));
        self.end_directions(ctx, DownReason::Closed, &Error::Canceled);
        let reason = DownReason::Closed;
        ctx.event(EventKind::Shutdown { peer, reason });
    }
}
