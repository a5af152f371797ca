//! Connected endpoints (`FI_EP_MSG`): one peer, one connection in each direction, no listener.
//!
//! The module `cm` describes how they connect. A connected endpoint sends and receives as a
//! connectionless one does. Its connection ends in both directions at once, and the endpoint does
//! not connect again. The end of either direction fails the sends. Records that the peer has left
//! in its ring are still received; then the endpoint reports the event, and receives fail.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use fabric_core::event::{DownReason, EventKind};
use fabric_core::flags::Caps;
use fabric_core::info::Info;
use fabric_core::matching::PeerKey;
use fabric_core::transport::{
    ConnReqHandle, ConnectMode, ConnectParams, Connected, EngineContext, EpId, WaitSet,
};
use fabric_core::tree::Class;
use fabric_core::{Address, Error, FiAddr, RefusalReason, Result, Scheme};
use rustix::io::Errno;

use super::super::cm::{CmAccept, CmAnswer, is_gone};
use super::super::control::{ControlMessage, ControlRead, VERSION};
use super::super::passive::ShmConnReqHandle;
use super::super::rx_connection::{Rejection, RxConnection};
use super::super::segment::Segment;
use super::super::socket::{self, PeerCredentials, ShmSocket};
use super::super::tx_connection::TxConnection;
use super::super::{TxSettings, with_free_name};
use super::disconnect::end_tx_connection;
use super::{ShmEndpoint, ShmToken};
use crate::transport::timer::Timer;

/// Polls of the peer's control messages when the connection ends.
const LAST_POLLS: usize = 4;

/// The connection of a connected endpoint.
pub(super) struct MsgConnection {
    peer: Address,
    addr: FiAddr,
    state: MsgState,
    /// Whether the end was reported to the event queue.
    end_reported: bool,
}

/// State of the connection of a connected endpoint.
enum MsgState {
    /// The program of the peer has not answered the request yet.
    Connecting(ShmConnectAttempt),
    Connected,
    /// There is no connection any more, for this reason.
    Disconnected(Error),
}

/// A connection attempt that waits for its answer.
struct ShmConnectAttempt {
    caps: Caps,
    private_data: Vec<u8>,
    timer: Timer,
    wait_set: Arc<dyn WaitSet>,
}

/// A step of a connection attempt.
enum AnswerStep {
    /// The answer has not arrived.
    Pending,
    /// Another message may have arrived.
    Again,
    /// The program of the peer, whose process has these credentials, has accepted.
    Accepted(CmAccept, PeerCredentials),
    Failed(Error),
}

fn violation(peer: Address, what: &'static str) -> AnswerStep {
    let what = what.into();
    AnswerStep::Failed(Error::Protocol { peer, what })
}

impl Drop for ShmConnectAttempt {
    fn drop(&mut self) {
        self.timer.unwatch(&*self.wait_set);
    }
}

impl ShmEndpoint {
    /// Opens an endpoint that connects to a passive endpoint, or accepts a request.
    pub(crate) fn open_connected(
        engine: &mut impl EngineContext,
        id: EpId,
        (info, tx_settings): (&Info, TxSettings),
        params: ConnectParams<'_>,
        wait: Arc<dyn WaitSet>,
    ) -> Result<Self> {
        let (peer, addr) = (params.peer, params.fi_addr);
        peer.check_scheme(Scheme::Shm)?;
        // The name is known once the connection is established.
        let settings = (info, tx_settings.clone());
        let shares_rx = engine.with_rx(id, |rx, _| rx.is_shared());
        let mut endpoint = Self::new(id, peer.clone(), None, settings, wait, shares_rx);
        let at = addr.index();
        let tx = TxConnection::new(peer.clone(), addr, tx_settings);
        endpoint.tx_connections.insert(at, tx);
        endpoint.tx_indices.push(at);
        endpoint.msg = Some(Box::new(MsgConnection {
            peer: peer.clone(),
            addr,
            state: MsgState::Connected,
            end_reported: false,
        }));
        let caps = info.caps & (Caps::TAGGED | Caps::ATOMIC);
        match params.mode {
            ConnectMode::Connect { from, timeout } => {
                endpoint.start_connect(engine, from, (caps, params.data), timeout)?;
            }
            ConnectMode::Accept(request) => {
                endpoint.accept_request(engine, request, (caps, params.data))?;
            }
        }
        Ok(endpoint)
    }

    /// Connects to the passive endpoint. The engine gets the peer's refusal as the result of the
    /// attempt; the caller gets an error of this side.
    fn start_connect(
        &mut self,
        engine: &mut impl EngineContext,
        from: Option<&Address>,
        (caps, private_data): (Caps, &[u8]),
        timeout: Duration,
    ) -> Result<()> {
        let Some((peer, at)) = self.msg_peer() else {
            return Ok(());
        };
        if let Some(from) = from {
            from.check_scheme(Scheme::Shm)?;
        }
        let timer = Timer::new()?;
        timer.watch(&*self.wait_set, ShmToken::Timer.pack(self.id))?;
        let attempt = ShmConnectAttempt {
            caps,
            private_data: private_data.to_vec(),
            timer,
            wait_set: self.wait_set.clone(),
        };
        attempt.timer.set(Some(timeout));
        self.set_msg_state(MsgState::Connecting(attempt));
        let (token, incarnation) = (
            ShmToken::Tx(at as u32).pack(self.id),
            self.local.incarnation,
        );
        let connected = with_free_name(from, |name| {
            self.tx_connections.lock(at).map_or(Ok(()), |mut tx| {
                tx.connect_from(name, incarnation, token, &self.wait_set)
            })?;
            Ok(name.clone())
        });
        match connected {
            Ok(name) => self.name = name,
            Err(
                error @ (Error::NoSuchPeer(_)
                | Error::ConnectionRefused { .. }
                | Error::OtherUser { .. }),
            ) => {
                self.set_msg_state(MsgState::Disconnected(error.clone()));
                engine.on_connected(self.id, &peer, Err(error));
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Handles a readable socket while the answer is awaited.
    pub(super) fn on_answer_ready(&mut self, engine: &mut impl EngineContext) {
        loop {
            let error = match self.poll_answer() {
                AnswerStep::Pending => return,
                AnswerStep::Again => continue,
                AnswerStep::Failed(error) => error,
                AnswerStep::Accepted(accept, credentials) => {
                    match self.on_accepted(engine, accept, credentials) {
                        Ok(()) => return,
                        Err(error) => error,
                    }
                }
            };
            return self.on_connect_failed(engine, error);
        }
    }

    /// Receives one message while the answer is awaited, and sends the request when the passive
    /// endpoint is ready for it.
    fn poll_answer(&self) -> AnswerStep {
        let Some(MsgConnection {
            peer,
            addr,
            state: MsgState::Connecting(attempt),
            ..
        }) = self.msg.as_deref()
        else {
            return AnswerStep::Pending;
        };
        let Some(mut tx) = self.tx_connections.lock(addr.index()) else {
            return AnswerStep::Pending;
        };
        let peer = peer.clone();
        let (read, credentials) = tx.recv_answer();
        let answer = match read {
            ControlRead::WouldBlock => return AnswerStep::Pending,
            ControlRead::HungUp => return AnswerStep::Failed(Error::PeerGone(peer)),
            ControlRead::Message(answer) => answer,
            ControlRead::Malformed(what) => return violation(peer, what),
            ControlRead::WrongEpType => return violation(peer, "hello instead of an answer"),
            ControlRead::VersionMismatch(theirs) => {
                let ours = VERSION;
                let reason = RefusalReason::Version { theirs, ours };
                return AnswerStep::Failed(Error::ConnectionRefused { peer, reason });
            }
            ControlRead::DescriptorLimitReached => {
                return AnswerStep::Failed(Error::os("recvmsg", Errno::MFILE.raw_os_error()));
            }
        };
        match (answer, credentials) {
            (CmAnswer::Ready, _) if tx.is_segment_sent() => {
                violation(peer, "control message out of order: second ready")
            }
            (CmAnswer::Ready, _) => match tx.send_request(attempt.caps, &attempt.private_data) {
                // The passive endpoint has closed, and may have sent an answer before.
                Err(errno) if !is_gone(errno) => {
                    AnswerStep::Failed(Error::os("sendmsg", errno.raw_os_error()))
                }
                _ => AnswerStep::Again,
            },
            (CmAnswer::Accepted(accept), Some(credentials)) if tx.is_segment_sent() => {
                AnswerStep::Accepted(accept, credentials)
            }
            (CmAnswer::Accepted(accept), _) => {
                socket::close_in_background(vec![accept.socket]);
                violation(
                    peer,
                    "connection message out of order: accept before the request",
                )
            }
            (CmAnswer::Rejected(data), _) => {
                AnswerStep::Failed(Error::RejectedByPeer { peer, data })
            }
            (CmAnswer::Refused(reason), _) => {
                AnswerStep::Failed(Error::ConnectionRefused { peer, reason })
            }
        }
    }

    /// Handles the timer: the answer did not arrive in time.
    pub(super) fn on_connect_timeout(&mut self, engine: &mut impl EngineContext) {
        if let Some((peer, _)) = self.msg_peer() {
            self.on_connect_failed(engine, Error::TimedOut(peer));
        }
    }

    fn on_connect_failed(&mut self, engine: &mut impl EngineContext, error: Error) {
        let Some(msg) = self.msg.as_deref_mut() else {
            return;
        };
        if !matches!(msg.state, MsgState::Connecting(_)) {
            return;
        }
        msg.state = MsgState::Disconnected(error.clone());
        if let Some(mut tx) = self.tx_connections.lock(msg.addr.index()) {
            tx.close(engine, &error);
        }
        engine.on_connected(self.id, &msg.peer, Err(error));
    }

    /// Handles the accept of the peer's program.
    fn on_accepted(
        &mut self,
        engine: &mut impl EngineContext,
        CmAccept {
            server,
            segment,
            socket,
        }: CmAccept,
        credentials: PeerCredentials,
    ) -> Result<()> {
        let Some((peer, at)) = self.msg_peer() else {
            return Ok(());
        };
        let socket = ShmSocket::from_peer(socket, credentials).map_err(|what| Error::Protocol {
            peer: peer.clone(),
            what: what.into(),
        })?;
        let segment = Segment::map_from_peer(&segment, server.lines)
            .map_err(|error| Rejection::of_segment(error, peer.clone()).error)?;
        let rx = self.msg_rx(engine, (credentials, server.incarnation), segment, socket);
        self.insert_msg_rx(rx)?.send_accept();
        if let Some(mut tx) = self.tx_connections.lock(at) {
            tx.establish(server.incarnation);
        }
        self.set_msg_state(MsgState::Connected);
        let connected = Connected {
            name: self.name.clone(),
            data: server.private_data,
            peer_caps: server.caps,
        };
        engine.on_connected(self.id, &peer, Ok(connected));
        self.progress_rx(engine);
        Ok(())
    }

    /// Accepts a connection request.
    fn accept_request(
        &mut self,
        engine: &mut impl EngineContext,
        request: Box<dyn ConnReqHandle>,
        (caps, private_data): (Caps, &[u8]),
    ) -> Result<()> {
        let Some((peer, at)) = self.msg_peer() else {
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
        let pending = request.pending().ok_or_else(gone)?;
        self.name = pending.local.clone();
        let token = ShmToken::Tx(at as u32).pack(self.id);
        let local = (&self.name, self.local.incarnation);
        let opened = self
            .tx_connections
            .lock(at)
            .map(|mut tx| tx.open_pair(pending.credentials, local, token, &self.wait_set));
        let peer_socket = opened.ok_or_else(gone)??;
        let request = request.take().ok_or_else(gone)?;
        let peer_caps = request.client.caps;
        let identity = (request.credentials, request.client.incarnation);
        let rx = self.msg_rx(engine, identity, request.segment, request.socket);
        let tx_connections = self.tx_connections.clone();
        let rx = self.insert_msg_rx(rx)?;
        let sent = tx_connections
            .lock(at)
            .map(|mut tx| tx.send_accept(rx.socket(), &peer_socket, caps, private_data));
        match sent {
            Some(Err(errno)) if !is_gone(errno) => {
                return Err(Error::os("sendmsg", errno.raw_os_error()));
            }
            Some(Ok(())) => {}
            _ => return Err(gone()),
        }
        let connected = Connected {
            name: self.name.clone(),
            data: Vec::new(),
            peer_caps,
        };
        engine.on_connected(self.id, &peer, Ok(connected));
        Ok(())
    }

    /// Creates the receiving end.
    fn msg_rx(
        &mut self,
        engine: &mut impl EngineContext,
        (credentials, incarnation): (PeerCredentials, u64),
        segment: Segment,
        socket: ShmSocket,
    ) -> RxConnection {
        let peer = match self.msg.as_deref() {
            Some(msg) => msg.peer.clone(),
            None => self.name.clone(),
        };
        self.last_peer_key += 1;
        let key = PeerKey(self.last_peer_key);
        let key = engine.with_rx(self.id, |rx, engine| {
            rx.peer_connected(engine, self.id, key, &peer)
        });
        let end = (peer, credentials, incarnation);
        // Messages have no source: a connected endpoint has one peer and no address vector.
        RxConnection::establish(end, self.local.clone(), segment, socket, key)
    }

    /// Watches the receiving end, and adds it.
    fn insert_msg_rx(&mut self, mut rx: RxConnection) -> Result<&RxConnection> {
        let token = ShmToken::Rx(self.rx_connections.vacant_key() as u32).pack(self.id);
        rx.watch(&self.wait_set, token)?;
        let at = self.rx_connections.insert_established(Box::new(rx));
        let rx = self.rx_connections.get_mut(at).map(|rx| &*rx);
        rx.ok_or(Error::Closed(Class::Endpoint))
    }

    /// Returns whether this is a connected endpoint whose request was not answered yet.
    pub(super) fn is_connecting(&self) -> bool {
        let is_connecting = |msg: &MsgConnection| matches!(msg.state, MsgState::Connecting(_));
        self.msg.as_deref().is_some_and(is_connecting)
    }

    /// Returns why a connected endpoint has no connection; `None` for a connectionless endpoint,
    /// which connects again.
    pub(super) fn disconnect_error(&self) -> Option<Error> {
        let msg = self.msg.as_deref()?;
        Some(match &msg.state {
            MsgState::Disconnected(error) => error.clone(),
            MsgState::Connecting(_) | MsgState::Connected => Error::PeerGone(msg.peer.clone()),
        })
    }

    /// Returns the name of the peer, and the index of the connection to it.
    fn msg_peer(&self) -> Option<(Address, usize)> {
        let msg = self.msg.as_deref()?;
        Some((msg.peer.clone(), msg.addr.index()))
    }

    fn set_msg_state(&mut self, state: MsgState) {
        if let Some(msg) = self.msg.as_deref_mut() {
            msg.state = state;
        }
    }

    /// Shuts the connection down: completed sends stay in the ring for the peer.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if the endpoint is not connection-oriented.
    pub(crate) fn shutdown(&mut self, engine: &mut impl EngineContext) -> Result<()> {
        let Some(msg) = self.msg.as_deref_mut() else {
            return Err(Error::NotSupported(
                "shutdown of endpoints other than FI_EP_MSG",
            ));
        };
        if !matches!(msg.state, MsgState::Connected) {
            return Ok(());
        }
        msg.state = MsgState::Disconnected(Error::ShutDown);
        msg.end_reported = true;
        let peer = msg.peer.clone();
        engine.with_rx(self.id, |rx, engine| {
            self.send_acks(rx);
            if !rx.is_shared() {
                rx.fail_posted(engine, &Error::Canceled);
            }
        });
        self.rx_connections.peers().for_each(RxConnection::close);
        self.end_directions(engine, DownReason::Closed, &Error::Canceled);
        let reason = DownReason::Closed;
        engine.event(self.id, EventKind::Shutdown { peer, reason });
        Ok(())
    }

    /// Handles the end of one direction: the connection ends.
    pub(super) fn on_msg_ended(&mut self, engine: &mut impl EngineContext, reason: DownReason) {
        let Some(msg) = self.msg.as_deref_mut() else {
            return;
        };
        let peer = msg.peer.clone();
        let error = match reason {
            DownReason::Protocol(what) => Error::Protocol {
                peer,
                what: what.into(),
            },
            _ => Error::PeerGone(peer),
        };
        if matches!(msg.state, MsgState::Connected) {
            msg.state = MsgState::Disconnected(error.clone());
        }
        self.end_directions(engine, reason, &error);
    }

    /// Fails the sends, and receives from now on only what is in the ring of the peer.
    fn end_directions(
        &mut self,
        engine: &mut impl EngineContext,
        reason: DownReason,
        error: &Error,
    ) {
        self.for_each_tx(|tx| {
            tx.send_control(ControlMessage::EndpointClosed);
            end_tx_connection(tx, self.id, engine, error);
        });
        let mut ats = Vec::new();
        self.rx_connections.for_each_peer(|at, _| ats.push(at));
        for at in ats {
            self.rx_connections.activate(at);
            let Some(rx) = self.rx_connections.get_mut(at) else {
                continue;
            };
            // Records in the ring may refer to memory that the peer has granted.
            let _ = (0..LAST_POLLS).find(|_| rx.on_readable(engine).is_some());
            // A socket that has hung up stays readable and would keep the domain awake.
            rx.unwatch();
            if rx.mark_down(reason) {
                rx.stop_cma();
                let gone = Error::PeerGone(rx.peer_address.clone());
                engine.with_rx(self.id, |queue, engine| {
                    queue.fail_unmapped_from(engine, rx.peer_key, &gone);
                });
            }
        }
        engine.request_progress();
        engine.request_rearm();
    }

    /// Handles that everything the peer has sent was received, after the connection has ended.
    pub(super) fn on_msg_drained(&mut self, engine: &mut impl EngineContext, reason: DownReason) {
        let Some(msg) = self.msg.as_deref_mut() else {
            return;
        };
        if !std::mem::replace(&mut msg.end_reported, true) {
            let peer = msg.peer.clone();
            engine.event(self.id, EventKind::Shutdown { peer, reason });
        }
        self.has_rx_hook = true;
        engine.with_rx(self.id, |rx, _| self.update_change_reports(rx));
        self.fail_recvs(engine);
    }

    /// Fails the posted receives of a connected endpoint whose connection has ended and whose ring
    /// is empty. Receives of a shared context stay posted for its other endpoints.
    #[cold]
    pub(super) fn fail_recvs(&mut self, engine: &mut impl EngineContext) {
        let Some(MsgConnection {
            state: MsgState::Disconnected(error),
            ..
        }) = self.msg.as_deref()
        else {
            return;
        };
        if self.shares_rx || self.rx_connections.peers().next().is_some() {
            return;
        }
        self.resume_due = engine.with_rx(self.id, |rx, engine| {
            rx.fail_posted(engine, error);
            // A multi-receive takes its messages in passes, and fails afterwards.
            rx.is_busy()
        });
    }
}
