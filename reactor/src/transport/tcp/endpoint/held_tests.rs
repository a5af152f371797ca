//! Connections that hold messages: they cost a pass nothing, and no change is missed.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fabric_core::buf::IoBuf;
use fabric_core::info::Hints;
use fabric_core::matching::{RecvSpec, TagMatch};
use fabric_core::rx::RxQueue;
use fabric_core::tcp::{CmKind, CmMessage, RdmCmData};
use fabric_core::transport::{Batching, Interest, OpKey, Transport, TransportEndpoint};

use super::super::TcpTransport;
use super::super::ip_network::IpNetwork;
use super::*;
use crate::engine::state::bindings::Bindings;
use crate::engine::state::domain_state::DomainState;
use crate::engine::state::ops::{CompletionTarget, OpPhase, OpState};
use crate::transport::held_connections::TRIES_PER_PASS;

const HELD_TAG: u64 = 7;
const TAG: u64 = 1;
/// Longer than the budget, so that a message without a receive is declined.
const LEN: usize = 1000;
const BUDGET: usize = 500;
/// Number of connections that hold messages.
const HELD: usize = 200;

/// The tests run one after another: each uses many descriptors.
static RUNNING: Mutex<()> = Mutex::new(());

/// A [`WaitSet`] that reports nothing: the test calls the endpoint.
struct NoEvents;

impl WaitSet for NoEvents {
    fn wake(&self) {}

    fn watch(&self, _: BorrowedFd<'_>, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn set_interest(&self, _: BorrowedFd<'_>, _: u64, _: Interest) -> io::Result<()> {
        Ok(())
    }

    fn unwatch(&self, _: BorrowedFd<'_>) {}
}

/// An endpoint, its receive queue, and peers that are plain sockets.
struct Fixture {
    endpoint: TcpEndpoint,
    rx: RxQueue,
    domain: DomainState,
    ep: EpId,
    peers: Vec<TcpStream>,
    _running: MutexGuard<'static, ()>,
}

fn spec(tag: u64) -> RecvSpec {
    let tag = Some(TagMatch { tag, ignore: 0 });
    RecvSpec { from: None, tag }
}

impl Fixture {
    fn new() -> Self {
        let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let mut domain = DomainState::default();
        let info = TcpTransport.offers(&Hints::new()).unwrap().swap_remove(0);
        let av = domain.avs.open(false);
        let ep = domain.endpoints.insert(Bindings {
            max_msg_size: info.ep.max_msg_size,
            ..Bindings::for_tests(av)
        });
        let resources = EndpointResources {
            network: Arc::new(IpNetwork),
            wait_set: Arc::new(NoEvents),
            socket_config: SocketConfig::default(),
            uring: None,
            batching: Batching::AfterFirst,
        };
        let local = Address::from_socket_addr(fabric_core::Scheme::Tcp, ([127, 0, 0, 1], 0).into());
        let at = local.unwrap();
        Self {
            endpoint: TcpEndpoint::open_rdm(ep, (&info, Some(&at)), resources).unwrap(),
            rx: RxQueue::new(ep, BUDGET),
            domain,
            ep,
            peers: Vec::new(),
            _running: running,
        }
    }

    /// Calls the transport endpoint.
    fn call<T>(
        &mut self,
        act: impl FnOnce(&mut TcpEndpoint, &mut EndpointContext<'_, DomainState>) -> T,
    ) -> T {
        let mut ctx = EndpointContext::new(self.ep, &mut self.rx, &mut self.domain);
        act(&mut self.endpoint, &mut ctx)
    }

    /// Makes a pass. Returns how many connections it has polled.
    fn pass(&mut self) -> usize {
        let before = self.endpoint.connections.polls();
        self.call(|endpoint, ctx| endpoint.progress(ctx, 1));
        self.endpoint.connections.polls() - before
    }

    fn arm(&mut self) -> bool {
        self.call(|endpoint, ctx| endpoint.arm(ctx))
    }

    /// Reports the socket of a connection as ready, and makes a pass.
    fn poll_socket(&mut self, index: usize) {
        self.call(|endpoint, ctx| {
            endpoint.accept(ctx);
            endpoint.socket_ready(ctx, index);
        });
        self.pass();
    }

    /// Connects a peer. The index of its connection is its position among the peers.
    fn connect(&mut self) {
        let index = self.peers.len();
        let mut peer = TcpStream::connect(self.endpoint.local_addr).unwrap();
        let data = RdmCmData::new(index as u16 + 1, 7).encode();
        let request = CmMessage::new(CmKind::Request, &data).unwrap().encode();
        peer.write_all(&request).unwrap();
        while self.endpoint.connections.established(index).is_none() {
            self.poll_socket(index);
        }
        let mut response = [0; 40];
        peer.read_exact(&mut response).unwrap();
        self.peers.push(peer);
    }

    /// Sends a message that begins with the numbers of the peer and of the message.
    fn send(&mut self, index: usize, number: u8, tag: u64) {
        let total = (24 + LEN) as u64;
        let mut message = vec![3, 1, 0, 0, 0, 0, 24, 0];
        message.extend([total, tag].map(u64::to_ne_bytes).as_flattened());
        message.extend([index as u8, number]);
        message.resize(total as usize, 0);
        self.peers[index].write_all(&message).unwrap();
    }

    fn new_recv(&mut self) -> OpKey {
        let buf = Vec::with_capacity(LEN).into_any();
        let (ep, target) = (self.ep, CompletionTarget::Future);
        let op = self.domain.ops.insert_recv(ep, target, buf);
        let endpoint = self.domain.endpoints.get_mut(ep).unwrap();
        endpoint.add_posted_recvs(1);
        op
    }

    /// Posts a receive, as the engine does.
    fn post(&mut self, tag: u64) -> OpKey {
        let op = self.new_recv();
        self.rx.post(&mut self.domain, op, spec(tag));
        self.after_post();
        op
    }

    /// Claims the message that a probe finds at once, and receives it.
    fn claim(&mut self, tag: u64) -> Option<OpKey> {
        let wait = OpState::wait(Some(self.ep), OpPhase::Executing);
        let probe = self.domain.ops.insert(wait);
        self.rx.probe(&mut self.domain, probe, spec(tag));
        self.domain.take_op_result(probe)?;
        self.rx.prepare_claim(&mut self.domain, &spec(tag)).ok()?;
        self.after_post();
        let (claim, _) = self.rx.claim(&spec(tag))?;
        let op = self.new_recv();
        self.rx.receive_claimed(&mut self.domain, op, claim);
        Some(op)
    }

    fn after_post(&mut self) {
        if let Some(peer) = self.rx.next_held() {
            self.call(|endpoint, ctx| endpoint.receive_held(ctx, peer));
            self.rx.end_next_held(&mut self.domain);
        }
        self.call(|endpoint, ctx| endpoint.on_rx_queue_changed(ctx));
    }

    /// Returns the first two bytes of the message of a completed receive.
    fn take(&mut self, op: OpKey) -> Option<[u8; 2]> {
        if !self.domain.ops.is_done(op) {
            return None;
        }
        let result = self.domain.take_op_result(op).unwrap();
        assert!(result.error.is_none() && result.transfer.len == LEN);
        result.buf.bytes().first_chunk().copied()
    }

    /// Connects peers whose messages are held.
    fn hold(&mut self, messages: u8) {
        for index in 0..HELD {
            self.connect();
            for number in 0..messages {
                self.send(index, number, HELD_TAG);
            }
            while self.endpoint.connections.counts().1 <= index {
                self.poll_socket(index);
            }
        }
        self.pass();
        assert_eq!(self.endpoint.connections.counts(), (0, HELD));
        assert!(self.arm());
    }
}

#[test]
fn held_connections_are_polled_only_after_a_change() {
    let mut fixture = Fixture::new();
    fixture.hold(1);
    for _ in 0..100 {
        assert_eq!(fixture.pass(), 0);
    }
    // A message of another peer is received while the others are tried in turn.
    fixture.connect();
    let before = fixture.endpoint.connections.polls();
    let receive = fixture.post(TAG);
    let after_post = fixture.endpoint.connections.polls();
    assert_eq!(after_post - before, TRIES_PER_PASS);
    assert!(!fixture.arm(), "most were not tried yet");
    fixture.send(HELD, 0, TAG);
    let mut passes = 0;
    while fixture.take(receive).is_none() {
        fixture.call(|endpoint, ctx| endpoint.socket_ready(ctx, HELD));
        assert!(fixture.pass() <= TRIES_PER_PASS + 1);
        passes += 1;
    }
    while !fixture.arm() {
        assert!(fixture.pass() <= TRIES_PER_PASS + 1);
        passes += 1;
    }
    assert!(passes >= HELD / TRIES_PER_PASS - 1);
    // Each was tried once, and the other peer in each pass at most.
    let polls = fixture.endpoint.connections.polls() - before;
    assert!((HELD..=HELD + passes).contains(&polls), "{polls} polls");
    assert_eq!(fixture.endpoint.connections.counts().1, HELD);
}

/// Receives get the held messages in the order of arrival, each at once.
#[test]
fn held_messages_are_received_in_the_order_of_arrival() {
    let mut fixture = Fixture::new();
    fixture.hold(1);
    for index in 0..HELD {
        // Cancels and posts of other receives do not delay the messages.
        let other = fixture.post(TAG);
        fixture.pass();
        let receive = fixture.post(HELD_TAG);
        assert_eq!(fixture.take(receive), Some([index as u8, 0]));
        fixture.rx.cancel(&mut fixture.domain, other);
    }
    assert_eq!(fixture.endpoint.connections.counts().1, 0);
}

/// Probes find the held messages in the order of arrival, each at once.
#[test]
fn held_messages_are_claimed_in_the_order_of_arrival() {
    let mut fixture = Fixture::new();
    fixture.hold(1);
    for index in 0..HELD {
        let receive = fixture.claim(HELD_TAG).expect("a held message");
        assert_eq!(fixture.take(receive), Some([index as u8, 0]));
    }
    assert_eq!(fixture.endpoint.connections.counts().1, 0);
}

/// Messages of a connection stay in order, and the stream ends after the last one.
#[test]
fn held_messages_arrive_in_order_before_the_stream_ends() {
    const MESSAGES: u8 = 3;
    let mut fixture = Fixture::new();
    fixture.hold(MESSAGES);
    fixture.peers.clear();
    let mut next = [0; HELD];
    for _ in 0..HELD * usize::from(MESSAGES) {
        let receive = fixture.post(HELD_TAG);
        let [index, number] = loop {
            if let Some(message) = fixture.take(receive) {
                break message;
            }
            fixture.pass();
        };
        assert_eq!(number, next[usize::from(index)], "of peer {index}");
        next[usize::from(index)] += 1;
    }
    while fixture.endpoint.connections.established_count() > 0 {
        fixture.pass();
    }
    assert_eq!(fixture.endpoint.connections.counts(), (0, 0));
    assert!(fixture.arm());
}
