//! An endpoint over shared memory: a name where peers knock, the connections in both directions,
//! and a receive context.
//!
//! | file | subject |
//! |---|---|
//! | `endpoint` | the endpoint, its passes, its sleep and its end |
//! | `sending`, `receiving` | what is sent, to whom; what is received |
//! | `meet` | how peers that knock are let in |
//! | `pass` | what one pass takes from those that are |
//! | `tell` | what senders are told of their messages |
//! | `ends` | how connections end, and who hears of it |
//! | `report` | what it has done |

mod accept;
mod acks;
mod disconnect;
mod receiving;
mod rx_pass;
mod sending;
mod stats;

use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fabric_core::completion::Outcome;
use fabric_core::flags::Caps;
use fabric_core::info::Info;
use fabric_core::rx::{RxBinding, RxSource};
use fabric_core::transport::{EngineContext, EpId, OpKey, WaitSet};
use fabric_core::tree::Class;
use fabric_core::{Address, Error, Result};

use super::TxResources;
use super::connection_table::ConnectionTable;
use super::control::ControlMessage;
use super::loans::ReceivedLoans;
use super::rx_connection::{LocalEndpoint, RxConnection};
use super::rx_table::{ALWAYS_ACTIVE, RxConnections};
use super::socket::{self, ShmListener};
use super::tx_connection::{QueueProgress, TxCounters};
use crate::transport::token;

use disconnect::end_tx_connection;

/// Bytes of unexpected messages an endpoint buffers before it holds senders back.
const UNEXPECTED_BYTES: usize = 16 << 20;

/// What a descriptor of an endpoint is for. Packed into the token it is watched with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShmToken {
    Listener,
    Rx(u32),
    Tx(u32),
}

impl ShmToken {
    fn pack(self, ep: EpId) -> u64 {
        match self {
            Self::Listener => token::pack(0, ep, 0),
            Self::Rx(id) => token::pack(1, ep, id),
            Self::Tx(id) => token::pack(2, ep, id),
        }
    }

    pub(crate) fn unpack(token: u64) -> (EpId, Self) {
        let (kind, ep, id) = token::unpack(token);
        let what = match kind {
            0 => Self::Listener,
            1 => Self::Rx(id),
            _ => Self::Tx(id),
        };
        (ep, what)
    }
}

/// One endpoint.
pub(crate) struct ShmEndpoint {
    /// Its domain makes passes over it. Others only ring.
    pub(crate) active: bool,
    id: EpId,
    name: Address,
    local: LocalEndpoint,
    tx_resources: TxResources,
    /// What was done for peers that are gone.
    counters: TxCounters,
    listener: ShmListener,
    wait_set: Arc<dyn WaitSet>,
    rx: RxBinding,
    rx_connections: RxConnections,
    last_peer_key: u32,
    /// Given up for a moment when descriptors run out, so that a caller can be told so.
    reserve_fd: Option<OwnedFd>,
    /// Connections are not accepted: the closing threads are held up.
    stopped: bool,
    /// Some caller's oldest message waits for a receive.
    message_held: bool,
    /// The connections to peers.
    tx_connections: Arc<ConnectionTable>,
    /// Where in `lanes` there are some.
    tx_indices: Vec<usize>,
    /// Those that have something queued.
    tx_queued: Vec<usize>,
    /// Those that got something nobody was woken for.
    tx_unflushed: Vec<usize>,
}

impl ShmEndpoint {
    pub(crate) fn open(
        id: EpId,
        at: Address,
        (info, means): (&Info, TxResources),
        wait: Arc<dyn WaitSet>,
        receiving: RxSource<'_>,
    ) -> Result<Self> {
        let caps = info.caps;
        let listener = ShmListener::open(&at)?;
        wait.watch(listener.as_fd(), ShmToken::Listener.pack(id))
            .map_err(|error| Error::os("epoll_ctl", error.raw_os_error().unwrap_or_default()))?;
        Ok(Self {
            active: false,
            id,
            name: at,
            local: LocalEndpoint {
                ep: id,
                incarnation: RandomState::new().hash_one(id.0),
                is_rma_target: caps.is_rma_target(),
                rma_events: caps.contains(Caps::RMA_EVENT),
                cma_enabled: !means.single_copy.is_disabled(),
                received_loans: ReceivedLoans::default(),
            },
            tx_resources: means,
            counters: TxCounters::default(),
            listener,
            wait_set: wait,
            rx: receiving.bind(id, UNEXPECTED_BYTES),
            rx_connections: RxConnections::default(),
            last_peer_key: 0,
            reserve_fd: socket::reserve_fd().ok(),
            stopped: false,
            message_held: false,
            tx_connections: Arc::new(ConnectionTable::new(info.ep.max_msg_size)),
            tx_indices: Vec::new(),
            tx_queued: Vec::new(),
            tx_unflushed: Vec::new(),
        })
    }

    pub(crate) fn id(&self) -> EpId {
        self.id
    }

    pub(crate) fn name(&self) -> &Address {
        &self.name
    }

    /// Moves what can be moved. In a crowd, of endpoints or of callers, who has been silent for
    /// long is left alone.
    pub(crate) fn progress(&mut self, host: &mut dyn EngineContext, endpoints: usize) -> bool {
        if self.stopped {
            self.accept_again(host);
        }
        let served = self.rx.own.drain_unexpected(host);
        let mut received = served | self.progress_rx(host);
        // Behind what has just arrived, so that nobody goes away over it.
        received |= self.rx.own.has_work() && self.progress_copies(host);
        let crowd = self.rx_connections.active_count().max(endpoints);
        if crowd > ALWAYS_ACTIVE {
            received |= self.rx_connections.demote_idle(crowd);
        }
        received | (!self.tx_queued.is_empty() && self.progress_tx(host))
    }

    /// Whether a pass has nothing to do here before somebody rings.
    pub(crate) fn is_quiescent(&self) -> bool {
        let receives =
            self.message_held || self.rx.own.has_work() || self.rx.own.waits_for_cq_room();
        self.rx_connections.active_count() == 0
            && self.tx_queued.is_empty()
            && !receives
            && !self.stopped
    }

    fn progress_tx(&mut self, host: &mut dyn EngineContext) -> bool {
        let mut moved = false;
        let mut index = 0;
        while let Some(&at) = self.tx_queued.get(index) {
            moved |= self.progress_tx_connection(host, at);
            if self.is_tx_idle(at) {
                self.tx_queued.swap_remove(index);
            } else {
                index += 1;
            }
        }
        moved
    }

    fn progress_tx_connection(&mut self, host: &mut dyn EngineContext, at: usize) -> bool {
        let pumped = self
            .tx_connections
            .lock(at)
            .map_or(QueueProgress::Idle, |mut outgoing| {
                outgoing.progress_queue(host)
            });
        match pumped {
            QueueProgress::Moved => true,
            QueueProgress::Idle => false,
            QueueProgress::Closed => {
                self.on_tx_peer_closed(host, at);
                true
            }
        }
    }

    pub(crate) fn ready(&mut self, host: &mut dyn EngineContext, token: ShmToken) {
        match token {
            ShmToken::Listener => self.accept(host),
            ShmToken::Rx(at) => self.on_rx_ready(host, at as usize),
            ShmToken::Tx(at) => {
                let at = at as usize;
                let parting = self
                    .tx_connections
                    .lock(at)
                    .and_then(|mut outgoing| outgoing.on_readable());
                let Some(parting) = parting else {
                    self.progress_tx(host);
                    return;
                };
                self.on_tx_ended(host, at, parting);
            }
        }
    }

    pub(crate) fn close(mut self, host: &mut dyn EngineContext) {
        // What is dropped now was not received.
        self.rx_connections.peers().for_each(RxConnection::stop_cma);
        self.rx.collect_acks();
        self.send_acks();
        self.rx.close(host);
        for peer in self.rx_connections.peers() {
            host.peer_disconnected(self.id, peer.initial_addr);
        }
        self.send_endpoint_closed();
        self.for_each_tx(|outgoing| end_tx_connection(outgoing, self.id, host, &Error::Canceled));
        // Whoever still has the way finds nobody.
        self.tx_indices
            .iter()
            .for_each(|&at| drop(self.tx_connections.remove(at)));
    }

    fn send_endpoint_closed(&self) {
        if self.listener.in_original_process() {
            self.for_each_tx(|outgoing| outgoing.send_control(ControlMessage::EndpointClosed));
        }
    }

    pub(crate) fn arm(&mut self) -> bool {
        let mut quiet = !self.rx.own.has_work() & self.rx_connections.arm();
        for &at in &self.tx_queued {
            quiet &= self
                .tx_connections
                .lock(at)
                .is_none_or(|mut outgoing| outgoing.arm());
        }
        quiet
    }

    pub(crate) fn disarm(&mut self) {
        self.rx_connections.disarm();
        for &at in &self.tx_queued {
            if let Some(mut outgoing) = self.tx_connections.lock(at) {
                outgoing.disarm();
            }
        }
    }
}

impl Drop for ShmEndpoint {
    fn drop(&mut self) {
        if !self.listener.in_original_process() {
            return;
        }
        if !self.stopped {
            self.wait_set.unwatch(self.listener.as_fd());
        }
        self.rx_connections.peers().for_each(RxConnection::close);
        self.send_endpoint_closed();
    }
}

/// An operation on an endpoint that is closed.
pub(crate) fn complete_closed(host: &mut dyn EngineContext, op: OpKey) {
    host.complete(op, Outcome::failed(Error::Closed(Class::Endpoint)));
}
