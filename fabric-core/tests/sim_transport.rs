//! The simulated network through the transport traits, with an engine context that keeps its state
//! in maps.

use std::collections::HashMap;
use std::convert::Infallible;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fabric_core::av::AddressTable;
use fabric_core::buf::{AnyBuf, BufferPool, CopySource, Payload, PooledBuf};
use fabric_core::completion::{OpKind, Outcome, Transfer};
use fabric_core::event::{DownReason, EventKind};
use fabric_core::flags::Caps;
use fabric_core::info::{EpType, Info};
use fabric_core::matching::{RecvSpec, TagMatch};
use fabric_core::mr::Region;
use fabric_core::rx::RxQueue;
use fabric_core::sim::SimTransport;
use fabric_core::transport::{
    EndpointContext, EngineContext, EpId, Incarnation, OpKey, OpenDomain, RemoteAccess, RxEngine,
    Transport, TransportDomain, TransportEndpoint, TrySend, TxOp, WaitSet,
};
use fabric_core::{Address, Error, FiAddr, Result};

/// A wait set that counts wake-ups.
#[derive(Default)]
struct CountingWaitSet(AtomicUsize);

impl WaitSet for CountingWaitSet {
    fn wake(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn watch(&self, _: BorrowedFd<'_>, _: u64) -> std::io::Result<()> {
        Ok(())
    }
    fn unwatch(&self, _: BorrowedFd<'_>) {}
}

/// Engine context with one address vector for all endpoints, without auto-insert.
struct SimTestContext {
    av: AddressTable,
    bufs: HashMap<OpKey, AnyBuf>,
    outcomes: HashMap<OpKey, Outcome>,
    /// Completed operations, in the order of completion.
    completion_order: Vec<OpKey>,
    events: Vec<EventKind>,
    pool: Arc<BufferPool>,
}

impl RxEngine for SimTestContext {
    type PlainSink<'a> = Infallible;
    fn plain_sink(&mut self, _: EpId) -> Option<Infallible> {
        None
    }
    fn begin_fill(&mut self, op: OpKey, len: usize) -> Result<usize> {
        let buf = self.bufs.get_mut(&op).unwrap();
        buf.begin_fill(len)?;
        Ok(buf.recv_capacity())
    }
    fn write_at(
        &mut self,
        op: OpKey,
        at: usize,
        source: &dyn CopySource,
        from: usize,
        count: usize,
    ) {
        self.bufs
            .get_mut(&op)
            .unwrap()
            .write_at(at, source, from, count);
    }
    fn give_buffered(&mut self, op: OpKey, bytes: PooledBuf) -> usize {
        let placed = bytes.len().min(self.begin_fill(op, bytes.len()).unwrap());
        self.write_at(op, 0, &&bytes[..], 0, placed);
        placed
    }
    fn take_received(&mut self, op: OpKey, filled: usize) -> PooledBuf {
        let mut copy = self.pool.take(filled);
        copy.extend_from_slice(&self.bufs.remove(&op).unwrap().bytes()[..filled]);
        copy
    }
    fn complete(&mut self, op: OpKey, outcome: Outcome) {
        assert!(
            self.outcomes.insert(op, outcome).is_none(),
            "an operation completes once"
        );
        self.completion_order.push(op);
    }
    fn address_of(&self, _: EpId, addr: FiAddr) -> Result<Address> {
        self.av.get(addr).cloned()
    }
    fn fi_addr_of(&self, _: EpId, address: &Address) -> Option<FiAddr> {
        self.av.find(address)
    }
    fn departing_address(&self, _: FiAddr) -> Option<Address> {
        None
    }
}

impl EngineContext for SimTestContext {
    fn payload(&self, op: OpKey) -> Payload<'_> {
        self.bufs[&op].payload()
    }
    fn event(&mut self, _: EpId, event: EventKind) {
        self.events.push(event);
    }
    fn region(&self, _: u64) -> Option<&Region> {
        None
    }
    fn on_remote_access(&mut self, _: EpId, _: u64, _: RemoteAccess, _: Transfer) -> bool {
        true
    }
    fn peer_connected(
        &mut self,
        _: EpId,
        address: &Address,
        _: Option<Incarnation>,
    ) -> Option<FiAddr> {
        self.av.find(address)
    }
    fn peer_disconnected(&mut self, _: EpId, _: Option<FiAddr>) {}
}

/// An endpoint, the only one of its domain.
struct SimEndpointFixture {
    context: SimTestContext,
    rx: RxQueue,
    endpoint: Box<dyn TransportEndpoint<SimTestContext>>,
    wait_set: Arc<CountingWaitSet>,
    address: Address,
    last_op_index: u32,
}

const ENDPOINT: EpId = EpId(0);
/// Description of an idle endpoint that has no peers.
const IDLE_DESCRIPTION: &str = "0 peers, 0 queued sends";
const RECV_UNTAGGED: RecvSpec = RecvSpec {
    from: None,
    tag: None,
};

fn recv_tagged(tag: u64) -> RecvSpec {
    RecvSpec {
        from: None,
        tag: Some(TagMatch { tag, ignore: 0 }),
    }
}

fn try_open_endpoint(name: &str) -> Result<SimEndpointFixture> {
    let (wait_set, pool) = (Arc::new(CountingWaitSet::default()), BufferPool::new());
    let info = &SimTransport.offers()[0];
    let mut domain: Box<dyn TransportDomain<SimTestContext>> =
        SimTransport.open_domain(info, wait_set.clone())?;
    let at: Address = format!("sim://{name}").parse()?;
    let mut rx = RxQueue::new(ENDPOINT, domain.unexpected_budget(), pool.clone());
    let mut context = SimTestContext {
        av: AddressTable::new(),
        bufs: HashMap::new(),
        outcomes: HashMap::new(),
        completion_order: Vec::new(),
        events: Vec::new(),
        pool,
    };
    let mut ctx = EndpointContext::new(ENDPOINT, &mut rx, &mut context);
    let (endpoint, address) = domain.open_endpoint(&mut ctx, info, Some(&at))?;
    Ok(SimEndpointFixture {
        context,
        rx,
        endpoint,
        wait_set,
        address,
        last_op_index: 0,
    })
}

fn open_endpoint(name: &str) -> SimEndpointFixture {
    try_open_endpoint(name).unwrap()
}

impl SimEndpointFixture {
    /// Calls the transport endpoint.
    fn call<T>(
        &mut self,
        act: impl FnOnce(
            &mut dyn TransportEndpoint<SimTestContext>,
            &mut EndpointContext<'_, SimTestContext>,
        ) -> T,
    ) -> T {
        let mut ctx = EndpointContext::new(ENDPOINT, &mut self.rx, &mut self.context);
        act(&mut *self.endpoint, &mut ctx)
    }
    fn insert_address(&mut self, other: &Address) -> FiAddr {
        let addr = self.context.av.insert(other.clone());
        self.call(|endpoint, ctx| endpoint.address_inserted(ctx, addr, other));
        addr
    }
    fn new_op(&mut self, buf: AnyBuf) -> OpKey {
        self.last_op_index += 1;
        let op = OpKey {
            index: self.last_op_index,
            generation: 0,
        };
        self.context.bufs.insert(op, buf);
        op
    }
    /// Sends at once, or queues the send and returns its operation.
    fn send(&mut self, peer: FiAddr, tag: Option<u64>, bytes: &[u8]) -> Result<Option<OpKey>> {
        let tx_op = TxOp {
            tag,
            ..TxOp::new(OpKind::Send, peer)
        };
        if self.call(|endpoint, ctx| endpoint.try_send(ctx, &tx_op, Payload::Contiguous(bytes)))?
            == TrySend::Done
        {
            return Ok(None);
        }
        let op = self.new_op(AnyBuf::Vec(bytes.to_vec()));
        self.call(|endpoint, ctx| endpoint.queue_send(ctx, op, &tx_op))
            .map(|()| Some(op))
    }
    fn recv(&mut self, spec: RecvSpec) -> OpKey {
        let buf = AnyBuf::Pooled(PooledBuf::empty(&self.context.pool));
        let op = self.new_op(buf);
        self.change_rx(|rx, context| rx.post(context, op, spec));
        op
    }
    /// Changes the receive queue as the engine does.
    fn change_rx<T>(&mut self, act: impl FnOnce(&mut RxQueue, &mut SimTestContext) -> T) -> T {
        let result = act(&mut self.rx, &mut self.context);
        self.call(|endpoint, ctx| endpoint.on_rx_queue_changed(ctx));
        result
    }
    /// Returns a message that was received and not consumed.
    fn requeue_message(&mut self, op: OpKey) {
        let transfer = self.outcome(op).unwrap().transfer;
        let bytes = self.context.take_received(op, transfer.len);
        let source = self.endpoint.source_of(transfer.peer());
        self.change_rx(|rx, context| {
            rx.requeue_message(context, transfer.envelope(0), source, bytes);
        });
    }
    fn arm(&mut self) -> bool {
        self.call(|endpoint, ctx| endpoint.arm(ctx))
    }
    fn progress(&mut self) -> bool {
        self.call(|endpoint, ctx| endpoint.progress(ctx, 1))
    }
    fn outcome(&self, op: OpKey) -> Option<&Outcome> {
        self.context.outcomes.get(&op)
    }
    fn error(&self, op: OpKey) -> Option<&Error> {
        self.outcome(op)?.error.as_deref()
    }
    /// Returns the message of a receive that has completed successfully.
    fn received(&self, op: OpKey) -> &[u8] {
        let outcome = self.outcome(op).expect("the operation has completed");
        assert_eq!(outcome.error, None);
        &self.context.bufs[&op].bytes()[..outcome.transfer.len]
    }
    fn take_wakes(&self) -> usize {
        self.wait_set.0.swap(0, Ordering::Relaxed)
    }
    fn saw_peer_down(&self, peer: &Address) -> bool {
        let is_down = |event: &EventKind| {
            matches!(
                event,
                EventKind::PeerDown { peer: down, reason: DownReason::Closed, .. } if down == peer
            )
        };
        self.context.events.iter().any(is_down)
    }
}

fn test_pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 % 251) as u8).collect()
}

#[test]
fn message_arrives_with_tag_data_and_source() {
    let (mut a, mut b) = (open_endpoint("carry-a"), open_endpoint("carry-b@0+0"));
    let (to_b, from_a) = (a.insert_address(&b.address), b.insert_address(&a.address));
    let op = b.recv(RecvSpec {
        from: Some(from_a),
        ..recv_tagged(7)
    });
    let tx_op = TxOp {
        tag: Some(7),
        data: Some(99),
        ..TxOp::new(OpKind::Send, to_b)
    };
    assert_eq!(
        a.call(|endpoint, ctx| endpoint.try_send(ctx, &tx_op, Payload::Contiguous(b"hello"))),
        Ok(TrySend::Done)
    );
    assert!(b.progress() && !b.progress());
    assert_eq!(b.received(op), b"hello");
    let Transfer {
        tag, source, data, ..
    } = b.outcome(op).unwrap().transfer;
    assert_eq!((tag, source, data), (Some(7), Some(from_a), Some(99)));
    let source = b.context.av.find(&a.address);
    assert_eq!(
        b.context.events,
        [EventKind::PeerConnected {
            peer: a.address.clone(),
            source
        }]
    );
    assert_eq!(b.endpoint.describe(), "1 peers, 0 queued sends");
}

#[test]
fn delayed_messages_keep_sender_order() {
    let (mut a, mut b) = (open_endpoint("order-a"), open_endpoint("order-b@3+20+1000"));
    let to_b = a.insert_address(&b.address);
    let ops: Vec<_> = (0..200).map(|_| b.recv(RECV_UNTAGGED)).collect();
    for n in 0..200u8 {
        assert_eq!(a.send(to_b, None, &[n]), Ok(None));
    }
    let passes = (1..100)
        .find(|_| {
            b.progress();
            b.context.outcomes.len() == 200
        })
        .expect("all messages arrive");
    assert!(passes > 5, "{passes}");
    assert_eq!(b.context.completion_order, ops);
    assert!(
        ops.iter()
            .enumerate()
            .all(|(n, &op)| b.received(op) == [n as u8])
    );
}

/// Sends ten messages from each of three endpoints; returns the order in which they are received.
fn receive_interleaved(test: &str, seed: u64) -> Vec<(usize, u8)> {
    let mut b = open_endpoint(&format!("{test}-b@{seed}+9"));
    let mut senders = ["a", "c", "d"].map(|name| open_endpoint(&format!("{test}-{name}")));
    let addrs: Vec<_> = senders
        .iter_mut()
        .map(|endpoint| {
            (
                b.insert_address(&endpoint.address),
                endpoint.insert_address(&b.address),
            )
        })
        .collect();
    for n in 0..10u8 {
        for (endpoint, (_, to_b)) in senders.iter_mut().zip(&addrs) {
            assert_eq!(endpoint.send(*to_b, None, &[n]), Ok(None));
        }
    }
    let ops: Vec<_> = (0..30).map(|_| b.recv(RECV_UNTAGGED)).collect();
    (0..200).for_each(|_| {
        b.progress();
    });
    let source = |op| b.outcome(op).unwrap().transfer.source;
    let sender = |op| {
        addrs
            .iter()
            .position(|(from, _)| Some(*from) == source(op))
            .unwrap()
    };
    ops.into_iter()
        .map(|op| (sender(op), b.received(op)[0]))
        .collect()
}

#[test]
fn seed_determines_sender_interleaving() {
    let runs: Vec<_> = (0..8)
        .map(|seed| receive_interleaved("seed", seed))
        .collect();
    for (seed, run) in runs.iter().enumerate() {
        assert_eq!(
            *run,
            receive_interleaved("seed", seed as u64),
            "the same seed gives the same order"
        );
        for sender in 0..3 {
            let from_sender: Vec<_> = run
                .iter()
                .filter(|(s, _)| *s == sender)
                .map(|(_, n)| *n)
                .collect();
            assert_eq!(from_sender, (0..10).collect::<Vec<_>>());
        }
    }
    assert!(
        (1..8).all(|seed| runs[seed] != runs[0]),
        "other seeds give other orders"
    );
}

#[test]
fn busy_senders_are_served_round_robin() {
    let mut b = open_endpoint("turns-b@0+0+100");
    let mut senders = ["a", "c", "d"].map(|name| open_endpoint(&format!("turns-{name}")));
    for (n, endpoint) in senders.iter_mut().enumerate() {
        let to_b = endpoint.insert_address(&b.address);
        (0..50).for_each(|_| assert_eq!(endpoint.send(to_b, None, &[n as u8]), Ok(None)));
    }
    let ops: Vec<_> = (0..150).map(|_| b.recv(RECV_UNTAGGED)).collect();
    assert_eq!(
        (0..9).take_while(|_| b.progress()).count(),
        3,
        "a pass receives a bounded number of packets"
    );
    assert!(
        ops.iter()
            .enumerate()
            .all(|(n, &op)| b.received(op) == [n as u8 % 3])
    );
}

#[test]
fn long_message_is_segmented_through_small_channel() {
    let (mut a, mut b) = (open_endpoint("long-a"), open_endpoint("long-b@1+2+2"));
    let to_b = a.insert_address(&b.address);
    let long = test_pattern(300_001);
    let recv = b.recv(RECV_UNTAGGED);
    let sent = a
        .send(to_b, None, &long)
        .unwrap()
        .expect("the message exceeds the channel");
    let next = a
        .send(to_b, None, b"next")
        .unwrap()
        .expect("the message is queued behind the long one");
    assert!(
        !a.call(|endpoint, ctx| endpoint.cancel(ctx, sent)),
        "the send has begun"
    );
    let mut passes = 0;
    while a.outcome(next).is_none() {
        a.progress();
        b.progress();
        passes += 1;
    }
    assert!(passes > 5);
    (0..9).for_each(|_| {
        b.progress();
    });
    assert_eq!(a.context.completion_order, [sent, next]);
    assert_eq!(
        a.outcome(sent).unwrap().transfer,
        Transfer::sent(long.len(), None)
    );
    assert!(b.received(recv) == long);
    let recv = b.recv(RECV_UNTAGGED);
    assert_eq!(
        b.received(recv),
        b"next",
        "the message was buffered as unexpected"
    );
}

#[test]
fn message_of_a_dropped_receive_goes_to_the_next_receive() {
    let (mut a, mut b) = (open_endpoint("abandon-a"), open_endpoint("abandon-b@0+0+2"));
    let to_b = a.insert_address(&b.address);
    let long = test_pattern(100_000);
    let (first, second) = (b.recv(recv_tagged(1)), b.recv(recv_tagged(2)));
    a.send(to_b, Some(1), &long).unwrap();
    a.send(to_b, Some(2), b"later").unwrap();
    b.progress();
    assert!(
        !b.change_rx(|rx, context| rx.cancel(context, first)),
        "the receive has begun"
    );
    b.change_rx(|rx, context| rx.detach(context, first));
    (0..2).for_each(|_| {
        a.progress();
        b.progress();
    });
    let third = b.recv(recv_tagged(1));
    (0..8).for_each(|_| {
        a.progress();
        b.progress();
    });
    assert!(b.outcome(first).is_none() && b.received(third) == long);
    assert_eq!(b.received(second), b"later");
}

#[test]
fn sends_to_a_full_channel_are_queued_and_can_be_canceled() {
    let (mut a, mut b) = (open_endpoint("full-a"), open_endpoint("full-b@0+0+2"));
    let to_b = a.insert_address(&b.address);
    let sends: Vec<_> = (0..6).map(|n| a.send(to_b, None, &[n]).unwrap()).collect();
    assert_eq!(sends.iter().filter(|op| op.is_none()).count(), 2);
    assert!(!a.progress(), "without room nothing is sent");
    assert!(a.call(|endpoint, ctx| endpoint.cancel(ctx, sends[4].unwrap())));
    assert!(
        !a.call(|endpoint, ctx| endpoint.cancel(ctx, sends[4].unwrap())),
        "the send is canceled already"
    );
    let ops: Vec<_> = (0..6).map(|_| b.recv(RECV_UNTAGGED)).collect();
    b.progress();
    let last = a.send(to_b, None, &[6]).unwrap();
    assert!(
        last.is_some(),
        "queued sends go first although there is room"
    );
    for moved in [2, 4, 6] {
        assert_eq!(b.context.outcomes.len(), moved);
        a.progress();
        b.progress();
    }
    assert_eq!(
        ops.iter().map(|&op| b.received(op)[0]).collect::<Vec<_>>(),
        [0, 1, 2, 3, 5, 6]
    );
    assert_eq!(
        a.context.completion_order,
        [sends[2], sends[3], sends[5], last].map(Option::unwrap)
    );
}

#[test]
fn messages_over_budget_are_declined_not_lost() {
    let (mut a, mut c, mut b) = (
        open_endpoint("budget-a"),
        open_endpoint("budget-c"),
        open_endpoint("budget-b@0+0+4"),
    );
    let (to_b, c_to_b) = (a.insert_address(&b.address), c.insert_address(&b.address));
    let big = test_pattern(1 << 20);
    for _ in 0..6 {
        a.send(to_b, None, &big).unwrap();
    }
    c.send(c_to_b, Some(5), &big).unwrap();
    let run =
        |a: &mut SimEndpointFixture, b: &mut SimEndpointFixture, c: &mut SimEndpointFixture| {
            while a.progress() | b.progress() | c.progress() {}
        };
    run(&mut a, &mut b, &mut c);
    assert!(b.arm(), "a declined message does not keep the domain awake");
    b.take_wakes();
    let tag = b.recv(recv_tagged(5));
    assert_eq!(b.take_wakes(), 1, "the declined message is acceptable now");
    run(&mut a, &mut b, &mut c);
    assert!(
        b.received(tag) == big,
        "a declined message blocks its own channel only"
    );
    for _ in 0..6 {
        let op = b.recv(RECV_UNTAGGED);
        run(&mut a, &mut b, &mut c);
        assert!(b.received(op) == big);
    }
    let huge = test_pattern(5 << 20);
    a.send(to_b, None, &huge).unwrap();
    b.progress();
    assert!(
        !a.progress(),
        "a declined packet counts against the capacity of the channel"
    );
    run(&mut a, &mut b, &mut c);
    let op = b.recv(RECV_UNTAGGED);
    run(&mut a, &mut b, &mut c);
    assert!(
        b.received(op) == huge,
        "a message over budget goes to a posted receive directly"
    );
}

#[test]
fn name_is_in_use_by_one_endpoint_at_a_time() {
    let first = open_endpoint("in-use");
    assert_eq!(
        try_open_endpoint("in-use").err(),
        Some(Error::AddressInUse(first.address.clone()))
    );
    drop(first);
    let mut second = open_endpoint("in-use");
    second.call(|endpoint, ctx| endpoint.close(ctx));
    open_endpoint("in-use");
    let (fresh, other) = (open_endpoint(""), open_endpoint("@7+0"));
    assert!(fresh.address != other.address && !fresh.address.name().is_empty());
    assert!(other.address.name().ends_with("@7+0") && other.address.name().len() > 4);
    assert!(matches!(
        try_open_endpoint("a@b"),
        Err(Error::BadAddress { .. })
    ));
}

#[test]
fn sends_and_connects_to_unknown_name_fail() {
    let mut a = open_endpoint("alone");
    let unused: Address = "sim://unused-name".parse().unwrap();
    let (peer, shm) = (
        a.insert_address(&unused),
        a.insert_address(&"shm://x".parse().unwrap()),
    );
    assert_eq!(
        a.send(peer, None, b"x"),
        Err(Error::NoSuchPeer(unused.clone()))
    );
    assert!(matches!(
        a.send(shm, None, b"x"),
        Err(Error::WrongScheme { .. })
    ));
    let connect = TxOp::new(OpKind::Connect, peer);
    let op = a.new_op(AnyBuf::None);
    assert_eq!(
        a.call(|endpoint, ctx| endpoint.queue_send(ctx, op, &connect)),
        Err(Error::NoSuchPeer(unused.clone()))
    );

    let mut peer_endpoint = open_endpoint("unused-name");
    assert_eq!(
        a.call(|endpoint, ctx| endpoint.try_send(ctx, &connect, Payload::Contiguous(b""))),
        Ok(TrySend::WouldBlock)
    );
    assert_eq!(
        a.call(|endpoint, ctx| endpoint.queue_send(ctx, op, &connect)),
        Ok(())
    );
    assert_eq!(a.outcome(op), Some(&Outcome::ok(Transfer::default())));
    assert!(peer_endpoint.progress());
    assert_eq!(
        peer_endpoint.context.events,
        [EventKind::PeerConnected {
            peer: a.address.clone(),
            source: None
        }]
    );
    a.context.av.remove(peer).unwrap();
    assert_eq!(a.send(peer, None, b"x"), Err(Error::StaleAddress(peer)));
}

#[test]
fn messages_arrive_before_peer_down_event() {
    let (mut a, mut b) = (open_endpoint("end-a"), open_endpoint("end-b@0+4+3"));
    let (to_b, from_a) = (a.insert_address(&b.address), b.insert_address(&a.address));
    let (whole, partial) = (b.recv(recv_tagged(1)), b.recv(recv_tagged(2)));
    let directed = b.recv(RecvSpec {
        from: Some(from_a),
        tag: None,
    });
    a.send(to_b, Some(1), b"whole").unwrap();
    let partial_send = a
        .send(to_b, Some(2), &test_pattern(90_000))
        .unwrap()
        .expect("the message exceeds the channel");
    a.call(|endpoint, ctx| endpoint.close(ctx));
    assert_eq!(a.error(partial_send), Some(&Error::Canceled));
    assert!(!b.saw_peer_down(&a.address));
    (0..20).for_each(|_| {
        b.progress();
    });
    let peer_gone = Error::PeerGone(a.address.clone());
    assert_eq!(
        (b.received(whole), b.error(directed)),
        (&b"whole"[..], Some(&peer_gone))
    );
    assert_eq!(b.context.completion_order, [whole, directed]);
    let down = EventKind::PeerDown {
        peer: a.address.clone(),
        source: Some(from_a),
        reason: DownReason::Closed,
    };
    assert_eq!(b.context.events.last(), Some(&down));
    assert_eq!(
        b.send(from_a, None, b"x"),
        Err(Error::NoSuchPeer(a.address.clone()))
    );
    // The receive of the partial message takes the next message, before a later receive.
    let later = b.recv(recv_tagged(2));
    let mut c = open_endpoint("end-c");
    let to_b = c.insert_address(&b.address);
    for text in [b"first", b"later"] {
        c.send(to_b, Some(2), text).unwrap();
    }
    (0..20).for_each(|_| {
        b.progress();
    });
    assert_eq!(
        (b.received(partial), b.received(later)),
        (&b"first"[..], &b"later"[..])
    );
}

#[test]
fn peer_close_fails_queued_sends_and_reports_peer_down() {
    let (mut a, b) = (open_endpoint("leave-a"), open_endpoint("leave-b@0+0+1"));
    let to_b = a.insert_address(&b.address);
    let ops: Vec<_> = (0..3)
        .filter_map(|_| a.send(to_b, None, b"x").unwrap())
        .collect();
    assert!(a.arm());
    let address = b.address.clone();
    drop(b);
    assert_eq!((ops.len(), a.take_wakes()), (2, 1));
    assert!(a.progress() && !a.progress());
    assert!(
        ops.iter()
            .all(|&op| a.error(op) == Some(&Error::PeerGone(address.clone())))
    );
    assert!(a.saw_peer_down(&address));
    // Another endpoint reuses the name, and the handle stands for the new endpoint.
    let mut next = open_endpoint("leave-b@0+0+1");
    assert_eq!(a.send(to_b, None, b"y"), Ok(None));
    let op = next.recv(RECV_UNTAGGED);
    next.progress();
    assert_eq!(next.received(op), b"y");
}

#[test]
fn requeued_message_gets_its_current_source() {
    let (mut a, mut b) = (open_endpoint("back-a"), open_endpoint("back-b@0+0"));
    let to_b = a.insert_address(&b.address);
    a.send(to_b, None, b"unknown").unwrap();
    b.progress();
    let op = b.recv(RECV_UNTAGGED);
    let transfer = b.outcome(op).unwrap().transfer;
    assert_eq!(transfer.source, None);
    let from_a = b.insert_address(&a.address);
    b.requeue_message(op);
    let directed = b.recv(RecvSpec {
        from: Some(from_a),
        tag: None,
    });
    assert_eq!(b.received(directed), b"unknown");

    b.context.av.remove(from_a).unwrap();
    b.call(|endpoint, ctx| endpoint.address_removed(ctx, from_a));
    b.requeue_message(directed);
    let op = b.recv(RECV_UNTAGGED);
    assert_eq!(
        (b.received(op), b.outcome(op).unwrap().transfer.source),
        (&b"unknown"[..], None)
    );
}

#[test]
fn only_armed_receiver_is_woken() {
    let (mut a, mut b) = (open_endpoint("arm-a"), open_endpoint("arm-b@1+6"));
    let to_b = a.insert_address(&b.address);
    a.send(to_b, None, b"1").unwrap();
    assert_eq!(b.take_wakes(), 0);
    assert!(!b.arm(), "a message is in flight");
    a.send(to_b, None, b"2").unwrap();
    assert_eq!(
        b.take_wakes(),
        0,
        "a failed arm leaves the doorbell disarmed"
    );
    while !b.arm() {
        b.progress();
    }
    a.send(to_b, None, b"3").unwrap();
    assert_eq!(b.take_wakes(), 1);
    a.send(to_b, None, b"3").unwrap();
    assert_eq!(b.take_wakes(), 1, "the doorbell stays armed");
    b.endpoint.disarm();
    a.send(to_b, None, b"4").unwrap();
    assert_eq!(b.take_wakes(), 0);
}

#[test]
fn delayed_message_keeps_domain_awake() {
    let (mut a, mut b) = (open_endpoint("awake-a"), open_endpoint("awake-b@1+1000"));
    let to_b = a.insert_address(&b.address);
    let connect = TxOp::new(OpKind::Connect, to_b);
    let op = a.new_op(AnyBuf::None);
    a.call(|endpoint, ctx| endpoint.queue_send(ctx, op, &connect))
        .unwrap();
    assert!(b.progress() && b.arm());
    a.send(to_b, None, b"late").unwrap();
    assert_eq!(b.take_wakes(), 1);
    assert!(
        b.progress(),
        "a delayed message counts as progress while armed"
    );
    b.endpoint.disarm();
    assert!(
        !b.progress() && !b.arm(),
        "a delayed message prevents arming"
    );
}

#[test]
fn sender_is_woken_only_when_armed_with_queued_sends() {
    let (mut a, mut b) = (open_endpoint("credit-a"), open_endpoint("credit-b@0+0+1"));
    let to_b = a.insert_address(&b.address);
    a.send(to_b, None, b"1").unwrap();
    assert!(a.arm());
    b.progress();
    assert_eq!(a.take_wakes(), 0, "the sender has nothing queued");
    (0..3).for_each(|_| {
        a.send(to_b, None, b"2").unwrap();
    });
    assert!(a.arm(), "a full channel does not keep the sender awake");
    b.progress();
    assert_eq!(a.take_wakes(), 1);
    assert!(!a.arm(), "the channel has room already");
    a.progress();
    b.progress();
    assert_eq!(a.take_wakes(), 0, "a disarmed sender is not woken");
    while a.progress() || (a.endpoint.describe() != IDLE_DESCRIPTION && b.progress()) {}
    assert!(
        a.arm() && b.progress() && a.take_wakes() == 0,
        "a sender with an empty queue is not woken"
    );
    a.endpoint.disarm();
    a.send(to_b, None, b"3").unwrap();
    let op = a
        .send(to_b, None, b"4")
        .unwrap()
        .expect("the channel is full");
    assert!(a.call(|endpoint, ctx| endpoint.cancel(ctx, op)) && a.arm());
    b.progress();
    assert_eq!(a.take_wakes(), 0, "a canceled send waits for no room");
}

/// Makes passes until `done` returns true. As an engine, arms the domain when a pass moves nothing,
/// and then makes no pass before a wake-up.
fn progress_until(endpoint: &mut SimEndpointFixture, done: impl Fn(&SimEndpointFixture) -> bool) {
    let mut armed = false;
    while !done(endpoint) {
        if endpoint.progress() {
            endpoint.endpoint.disarm();
            armed = false;
        } else if armed || endpoint.arm() {
            armed = true;
            let sleep_start = Instant::now();
            while endpoint.take_wakes() == 0 {
                assert!(
                    sleep_start.elapsed() < Duration::from_secs(20),
                    "no wake-up within 20 s"
                );
                std::thread::yield_now();
            }
        }
    }
}

#[test]
fn two_threads_lose_no_message_and_no_wakeup() {
    let (mut a, mut b) = (open_endpoint("threads-a"), open_endpoint("threads-b@5+2+3"));
    let to_b = a.insert_address(&b.address);
    let ops: Vec<_> = (0..5000).map(|_| b.recv(RECV_UNTAGGED)).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..5000u32 {
                a.send(to_b, None, &n.to_le_bytes()).unwrap();
                if n % 500 == 0 {
                    progress_until(&mut a, |a| a.endpoint.describe() == IDLE_DESCRIPTION);
                }
            }
            progress_until(&mut a, |a| a.endpoint.describe() == IDLE_DESCRIPTION);
        });
        scope.spawn(|| progress_until(&mut b, |b| b.context.outcomes.len() == 5000));
    });
    assert!(
        ops.iter()
            .enumerate()
            .all(|(n, &op)| b.received(op) == (n as u32).to_le_bytes())
    );
}

#[test]
fn domain_opens_only_from_an_offer() {
    let open = |change: fn(&mut Info)| {
        let mut info = SimTransport.offers().swap_remove(0);
        change(&mut info);
        SimTransport
            .open_domain(&info, Arc::new(CountingWaitSet::default()))
            .map(|domain: Box<dyn TransportDomain<SimTestContext>>| domain.describe())
    };
    assert_eq!(open(|_| {}).unwrap(), "sim");
    assert!(
        open(|info| info.fabric.provider = "shm".into())
            .unwrap_err()
            .to_string()
            .contains("shm")
    );
    assert!(matches!(
        open(|info| info.ep.ep_type = EpType::Dgram),
        Err(Error::NotSupported(_))
    ));
    assert!(
        open(|info| info.caps |= Caps::TRIGGER)
            .unwrap_err()
            .to_string()
            .contains("TRIGGER")
    );
}
