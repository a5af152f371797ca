//! The simulated network through the provider traits, with a host that keeps everything in maps.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fabric_core::av::AddressTable;
use fabric_core::buf::{AnyBuf, Payload, Pool, PooledBuf, Source};
use fabric_core::completion::{OpKind, Outcome, Transfer};
use fabric_core::event::{DownReason, EventKind};
use fabric_core::matching::{RecvSpec, TagMatch};
use fabric_core::mr::Region;
use fabric_core::provider::{
    Deed, EpId, Host, Incarnation, OpKey, Provider, ProviderDomain, SendNow, SendSpec, WaitSet,
};
use fabric_core::rx::Receiving;
use fabric_core::sim::SimProvider;
use fabric_core::{Address, Error, FiAddr, Result};

/// A wait set that counts.
#[derive(Default)]
struct Bell(AtomicUsize);

impl WaitSet for Bell {
    fn kick(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn watch(&self, _: BorrowedFd<'_>, _: u64) -> std::io::Result<()> {
        Ok(())
    }
    fn unwatch(&self, _: BorrowedFd<'_>) {}
}

/// One address vector for all endpoints, which takes in no strangers.
struct Maps {
    av: AddressTable,
    bufs: HashMap<OpKey, AnyBuf>,
    ended: HashMap<OpKey, Outcome>,
    /// In the order of completion.
    order: Vec<OpKey>,
    events: Vec<EventKind>,
    pool: Arc<Pool>,
}

impl Host for Maps {
    fn payload(&self, op: OpKey) -> Payload<'_> {
        self.bufs[&op].payload()
    }
    fn expect(&mut self, op: OpKey, len: usize) -> Result<usize> {
        let buf = self.bufs.get_mut(&op).unwrap();
        buf.expect(len)?;
        Ok(buf.room())
    }
    fn place(&mut self, op: OpKey, at: usize, source: &dyn Source, from: usize, count: usize) {
        self.bufs
            .get_mut(&op)
            .unwrap()
            .place(at, source, from, count);
    }
    fn adopt(&mut self, op: OpKey, bytes: PooledBuf) -> usize {
        let placed = bytes.len().min(self.expect(op, bytes.len()).unwrap());
        self.place(op, 0, &&bytes[..], 0, placed);
        placed
    }
    fn reclaim(&mut self, op: OpKey, filled: usize) -> PooledBuf {
        let mut copy = self.pool.take(filled);
        copy.extend_from_slice(&self.bufs.remove(&op).unwrap().bytes()[..filled]);
        copy
    }
    fn complete(&mut self, op: OpKey, outcome: Outcome) {
        assert!(
            self.ended.insert(op, outcome).is_none(),
            "an operation ends once"
        );
        self.order.push(op);
    }
    fn event(&mut self, _: EpId, event: EventKind) {
        self.events.push(event);
    }
    fn address_of(&self, _: EpId, addr: FiAddr) -> Result<Address> {
        self.av.get(addr).cloned()
    }
    fn region(&self, _: u64) -> Option<&Region> {
        None
    }
    fn done_to_us(&mut self, _: EpId, _: u64, _: Deed, _: Transfer) -> bool {
        true
    }
    fn number_of(&self, _: EpId, address: &Address) -> Option<FiAddr> {
        self.av.find(address)
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

    fn leaving(&self, _: FiAddr) -> Option<Address> {
        None
    }
}

/// A domain with one endpoint.
struct Side {
    maps: Maps,
    domain: Box<dyn ProviderDomain>,
    bell: Arc<Bell>,
    address: Address,
    ops: u32,
}

const EP: EpId = EpId(0);
/// How an endpoint describes itself that has nothing to send and has heard of nobody.
const IDLE: &str = "sim: 1 endpoints, 0 peers, 0 sends waiting";
const ANY: RecvSpec = RecvSpec {
    from: None,
    tag: None,
};

fn tagged(tag: u64) -> RecvSpec {
    RecvSpec {
        from: None,
        tag: Some(TagMatch { tag, ignore: 0 }),
    }
}

fn try_open(name: &str) -> Result<Side> {
    let (bell, pool) = (Arc::new(Bell::default()), Pool::new());
    let info = &SimProvider.offers()[0];
    let mut domain = SimProvider.open_domain(info, bell.clone())?;
    let at: Address = format!("sim://{name}").parse()?;
    let address = domain.open_endpoint(EP, info, Some(&at), Receiving::Own(&pool))?;
    let maps = Maps {
        av: AddressTable::new(),
        bufs: HashMap::new(),
        ended: HashMap::new(),
        order: Vec::new(),
        events: Vec::new(),
        pool,
    };
    Ok(Side {
        maps,
        domain,
        bell,
        address,
        ops: 0,
    })
}

fn open(name: &str) -> Side {
    try_open(name).unwrap()
}

impl Side {
    fn knows(&mut self, other: &Address) -> FiAddr {
        let addr = self.maps.av.insert(other.clone());
        self.domain
            .address_inserted(&mut self.maps, EP, addr, other);
        addr
    }
    fn op(&mut self, buf: AnyBuf) -> OpKey {
        self.ops += 1;
        let op = OpKey {
            index: self.ops,
            generation: 0,
        };
        self.maps.bufs.insert(op, buf);
        op
    }
    /// Sends at once, or queues and returns the operation.
    fn send(&mut self, peer: FiAddr, tag: Option<u64>, bytes: &[u8]) -> Result<Option<OpKey>> {
        let spec = SendSpec {
            tag,
            ..SendSpec::new(OpKind::Send, peer)
        };
        if self
            .domain
            .send_now(&mut self.maps, EP, &spec, Payload::Whole(bytes))?
            == SendNow::Done
        {
            return Ok(None);
        }
        let op = self.op(AnyBuf::Vec(bytes.to_vec()));
        self.domain
            .queue_send(&mut self.maps, EP, op, &spec)
            .map(|()| Some(op))
    }
    fn recv(&mut self, spec: RecvSpec) -> OpKey {
        let buf = AnyBuf::Pooled(PooledBuf::empty(&self.maps.pool));
        let op = self.op(buf);
        self.domain.post_recv(&mut self.maps, EP, op, spec);
        op
    }
    fn pass(&mut self) -> bool {
        self.domain.progress(&mut self.maps)
    }
    fn end(&self, op: OpKey) -> Option<&Outcome> {
        self.maps.ended.get(&op)
    }
    fn failed(&self, op: OpKey) -> Option<&Error> {
        self.end(op)?.error.as_deref()
    }
    /// The message of a receive that has ended well.
    fn got(&self, op: OpKey) -> &[u8] {
        let outcome = self.end(op).expect("has ended");
        assert_eq!(outcome.error, None);
        &self.maps.bufs[&op].bytes()[..outcome.transfer.len]
    }
    fn kicks(&self) -> usize {
        self.bell.0.swap(0, Ordering::Relaxed)
    }
    fn down(&self, peer: &Address) -> bool {
        self.maps.events.iter().any(
            |event| matches!(event, EventKind::PeerDown { peer: p, reason: DownReason::Closed, .. } if p == peer),
        )
    }
}

fn message(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 % 251) as u8).collect()
}

#[test]
fn a_message_arrives_with_all_it_carries() {
    let (mut a, mut b) = (open("carry-a"), open("carry-b@0+0"));
    let (to_b, from_a) = (a.knows(&b.address), b.knows(&a.address));
    let op = b.recv(RecvSpec {
        from: Some(from_a),
        ..tagged(7)
    });
    let spec = SendSpec {
        tag: Some(7),
        data: Some(99),
        ..SendSpec::new(OpKind::Send, to_b)
    };
    assert_eq!(
        a.domain
            .send_now(&mut a.maps, EP, &spec, Payload::Whole(b"hello")),
        Ok(SendNow::Done)
    );
    assert!(b.pass() && !b.pass());
    assert_eq!(b.got(op), b"hello");
    let Transfer {
        tag, source, data, ..
    } = b.end(op).unwrap().transfer;
    assert_eq!((tag, source, data), (Some(7), Some(from_a), Some(99)));
    let source = b.maps.av.find(&a.address);
    assert_eq!(
        b.maps.events,
        [EventKind::PeerConnected {
            peer: a.address.clone(),
            source
        }]
    );
    assert_eq!(
        b.domain.describe(),
        "sim: 1 endpoints, 1 peers, 0 sends waiting"
    );
}

#[test]
fn a_pair_keeps_its_order_under_delay() {
    let (mut a, mut b) = (open("order-a"), open("order-b@3+20+1000"));
    let to_b = a.knows(&b.address);
    let ops: Vec<_> = (0..200).map(|_| b.recv(ANY)).collect();
    for n in 0..200u8 {
        assert_eq!(a.send(to_b, None, &[n]), Ok(None));
    }
    let passes = (1..100)
        .find(|_| {
            b.pass();
            b.maps.ended.len() == 200
        })
        .expect("everything arrives");
    assert!(passes > 5, "{passes}");
    assert_eq!(b.maps.order, ops);
    assert!(
        ops.iter()
            .enumerate()
            .all(|(n, &op)| b.got(op) == [n as u8])
    );
}

/// Sends ten messages each from three endpoints; returns the order in which they were received.
fn interleaving(test: &str, seed: u64) -> Vec<(usize, u8)> {
    let mut b = open(&format!("{test}-b@{seed}+9"));
    let mut senders = ["a", "c", "d"].map(|name| open(&format!("{test}-{name}")));
    let known: Vec<_> = senders
        .iter_mut()
        .map(|side| (b.knows(&side.address), side.knows(&b.address)))
        .collect();
    for n in 0..10u8 {
        for (side, (_, to_b)) in senders.iter_mut().zip(&known) {
            assert_eq!(side.send(*to_b, None, &[n]), Ok(None));
        }
    }
    let ops: Vec<_> = (0..30).map(|_| b.recv(ANY)).collect();
    (0..200).for_each(|_| {
        b.pass();
    });
    let source = |op| b.end(op).unwrap().transfer.source;
    let sender = |op| {
        known
            .iter()
            .position(|(from, _)| Some(*from) == source(op))
            .unwrap()
    };
    ops.into_iter()
        .map(|op| (sender(op), b.got(op)[0]))
        .collect()
}

#[test]
fn the_seed_decides_how_senders_interleave() {
    let runs: Vec<_> = (0..8).map(|seed| interleaving("seed", seed)).collect();
    for (seed, run) in runs.iter().enumerate() {
        assert_eq!(*run, interleaving("seed", seed as u64), "the same again");
        for sender in 0..3 {
            let of_one: Vec<_> = run
                .iter()
                .filter(|(s, _)| *s == sender)
                .map(|(_, n)| *n)
                .collect();
            assert_eq!(of_one, (0..10).collect::<Vec<_>>());
        }
    }
    assert!(
        (1..8).all(|seed| runs[seed] != runs[0]),
        "other seeds, other orders"
    );
}

#[test]
fn busy_senders_take_turns_across_passes() {
    let mut b = open("turns-b@0+0+100");
    let mut senders = ["a", "c", "d"].map(|name| open(&format!("turns-{name}")));
    for (n, side) in senders.iter_mut().enumerate() {
        let to_b = side.knows(&b.address);
        (0..50).for_each(|_| assert_eq!(side.send(to_b, None, &[n as u8]), Ok(None)));
    }
    let ops: Vec<_> = (0..150).map(|_| b.recv(ANY)).collect();
    assert_eq!(
        (0..9).take_while(|_| b.pass()).count(),
        3,
        "a pass is bounded"
    );
    assert!(
        ops.iter()
            .enumerate()
            .all(|(n, &op)| b.got(op) == [n as u8 % 3])
    );
}

#[test]
fn a_long_message_travels_in_pieces_through_a_small_pair() {
    let (mut a, mut b) = (open("long-a"), open("long-b@1+2+2"));
    let to_b = a.knows(&b.address);
    let long = message(300_001);
    let recv = b.recv(ANY);
    let sent = a
        .send(to_b, None, &long)
        .unwrap()
        .expect("more than there is room for");
    let next = a
        .send(to_b, None, b"next")
        .unwrap()
        .expect("behind the long one");
    assert!(!a.domain.cancel(&mut a.maps, EP, sent), "it has begun");
    let mut senders_passes = 0;
    while a.end(next).is_none() {
        a.pass();
        b.pass();
        senders_passes += 1;
    }
    assert!(senders_passes > 5);
    (0..9).for_each(|_| {
        b.pass();
    });
    assert_eq!(a.maps.order, [sent, next]);
    assert_eq!(
        a.end(sent).unwrap().transfer,
        Transfer::sent(long.len(), None)
    );
    assert!(b.got(recv) == long);
    let recv = b.recv(ANY);
    assert_eq!(b.got(recv), b"next", "it waited among the unexpected");
}

#[test]
fn a_receive_abandoned_in_the_middle_passes_the_message_on() {
    let (mut a, mut b) = (open("abandon-a"), open("abandon-b@0+0+2"));
    let to_b = a.knows(&b.address);
    let long = message(100_000);
    let (first, second) = (b.recv(tagged(1)), b.recv(tagged(2)));
    a.send(to_b, Some(1), &long).unwrap();
    a.send(to_b, Some(2), b"later").unwrap();
    b.pass();
    assert!(!b.domain.cancel(&mut b.maps, EP, first), "it has begun");
    b.domain.abandon_recv(&mut b.maps, EP, first);
    (0..2).for_each(|_| {
        a.pass();
        b.pass();
    });
    let third = b.recv(tagged(1));
    (0..8).for_each(|_| {
        a.pass();
        b.pass();
    });
    assert!(b.end(first).is_none() && b.got(third) == long);
    assert_eq!(b.got(second), b"later");
}

#[test]
fn sends_queue_behind_a_full_pair_and_can_be_taken_back() {
    let (mut a, mut b) = (open("full-a"), open("full-b@0+0+2"));
    let to_b = a.knows(&b.address);
    let sends: Vec<_> = (0..6).map(|n| a.send(to_b, None, &[n]).unwrap()).collect();
    assert_eq!(sends.iter().filter(|op| op.is_none()).count(), 2);
    assert!(!a.pass(), "no room, nothing moves");
    assert!(a.domain.cancel(&mut a.maps, EP, sends[4].unwrap()));
    assert!(
        !a.domain.cancel(&mut a.maps, EP, sends[4].unwrap()),
        "it is gone"
    );
    let ops: Vec<_> = (0..6).map(|_| b.recv(ANY)).collect();
    b.pass();
    let last = a.send(to_b, None, &[6]).unwrap();
    assert!(last.is_some(), "there is room, and others were first");
    for moved in [2, 4, 6] {
        assert_eq!(b.maps.ended.len(), moved);
        a.pass();
        b.pass();
    }
    assert_eq!(
        ops.iter().map(|&op| b.got(op)[0]).collect::<Vec<_>>(),
        [0, 1, 2, 3, 5, 6]
    );
    assert_eq!(
        a.maps.order,
        [sends[2], sends[3], sends[5], last].map(Option::unwrap)
    );
}

#[test]
fn a_receiver_over_its_budget_holds_back_and_loses_nothing() {
    let (mut a, mut c, mut b) = (open("budget-a"), open("budget-c"), open("budget-b@0+0+4"));
    let (to_b, c_to_b) = (a.knows(&b.address), c.knows(&b.address));
    let big = message(1 << 20);
    for _ in 0..6 {
        a.send(to_b, None, &big).unwrap();
    }
    c.send(c_to_b, Some(5), &big).unwrap();
    let run = |a: &mut Side, b: &mut Side, c: &mut Side| while a.pass() | b.pass() | c.pass() {};
    run(&mut a, &mut b, &mut c);
    assert!(b.domain.arm(), "what was declined is no news");
    b.kicks();
    let tag = b.recv(tagged(5));
    assert_eq!(b.kicks(), 1, "a declined message is wanted now");
    run(&mut a, &mut b, &mut c);
    assert!(b.got(tag) == big, "held back by its own pair only");
    for _ in 0..6 {
        let op = b.recv(ANY);
        run(&mut a, &mut b, &mut c);
        assert!(b.got(op) == big);
    }
    let huge = message(5 << 20);
    a.send(to_b, None, &huge).unwrap();
    b.pass();
    assert!(!a.pass(), "a declined packet keeps its place");
    run(&mut a, &mut b, &mut c);
    let op = b.recv(ANY);
    run(&mut a, &mut b, &mut c);
    assert!(
        b.got(op) == huge,
        "more than the budget goes to a receive directly"
    );
}

#[test]
fn a_name_belongs_to_one_endpoint_at_a_time() {
    let taken = open("taken");
    assert_eq!(
        try_open("taken").err(),
        Some(Error::AddressInUse(taken.address.clone()))
    );
    drop(taken);
    let mut again = open("taken");
    again.domain.close_endpoint(&mut again.maps, EP);
    open("taken");
    let (fresh, other) = (open(""), open("@7+0"));
    assert!(fresh.address != other.address && !fresh.address.name().is_empty());
    assert!(other.address.name().ends_with("@7+0") && other.address.name().len() > 4);
    assert!(matches!(try_open("a@b"), Err(Error::BadAddress { .. })));
}

#[test]
fn a_name_nobody_has_is_an_error_for_sends_and_connects() {
    let mut a = open("alone");
    let gone: Address = "sim://nobody-has-this".parse().unwrap();
    let (peer, shm) = (a.knows(&gone), a.knows(&"shm://x".parse().unwrap()));
    assert_eq!(
        a.send(peer, None, b"x"),
        Err(Error::NoSuchPeer(gone.clone()))
    );
    assert!(matches!(
        a.send(shm, None, b"x"),
        Err(Error::WrongScheme { .. })
    ));
    let connect = SendSpec::new(OpKind::Connect, peer);
    let op = a.op(AnyBuf::None);
    assert_eq!(
        a.domain.queue_send(&mut a.maps, EP, op, &connect),
        Err(Error::NoSuchPeer(gone.clone()))
    );

    let mut there = open("nobody-has-this");
    assert_eq!(
        a.domain
            .send_now(&mut a.maps, EP, &connect, Payload::Whole(b"")),
        Ok(SendNow::Queue)
    );
    assert_eq!(a.domain.queue_send(&mut a.maps, EP, op, &connect), Ok(()));
    assert_eq!(a.end(op), Some(&Outcome::ok(Transfer::default())));
    assert!(there.pass());
    assert_eq!(
        there.maps.events,
        [EventKind::PeerConnected {
            peer: a.address.clone(),
            source: None
        }]
    );
    a.maps.av.remove(peer).unwrap();
    assert_eq!(a.send(peer, None, b"x"), Err(Error::StaleAddress(peer)));
    assert!(matches!(
        there
            .domain
            .send_now(&mut there.maps, EpId(9), &connect, Payload::Whole(b"")),
        Err(Error::Closed(_))
    ));
}

#[test]
fn what_a_peer_sent_arrives_before_the_news_of_its_end() {
    let (mut a, mut b) = (open("end-a"), open("end-b@0+4+3"));
    let (to_b, from_a) = (a.knows(&b.address), b.knows(&a.address));
    let (whole, part) = (b.recv(tagged(1)), b.recv(tagged(2)));
    let directed = b.recv(RecvSpec {
        from: Some(from_a),
        tag: None,
    });
    a.send(to_b, Some(1), b"whole").unwrap();
    let cut = a
        .send(to_b, Some(2), &message(90_000))
        .unwrap()
        .expect("does not fit");
    a.domain.close_endpoint(&mut a.maps, EP);
    assert_eq!(a.failed(cut), Some(&Error::Canceled));
    assert!(!b.down(&a.address));
    (0..20).for_each(|_| {
        b.pass();
    });
    let gone = Error::PeerGone(a.address.clone());
    assert_eq!(
        (b.got(whole), b.failed(directed)),
        (&b"whole"[..], Some(&gone))
    );
    assert_eq!(b.maps.order, [whole, directed]);
    let down = EventKind::PeerDown {
        peer: a.address.clone(),
        source: Some(from_a),
        reason: DownReason::Closed,
    };
    assert_eq!(b.maps.events.last(), Some(&down));
    assert_eq!(
        b.send(from_a, None, b"x"),
        Err(Error::NoSuchPeer(a.address.clone()))
    );
    // The receive of the message that was cut waits for the next one, in front of a later receive.
    let later = b.recv(tagged(2));
    let mut c = open("end-c");
    let to_b = c.knows(&b.address);
    for text in [b"first", b"later"] {
        c.send(to_b, Some(2), text).unwrap();
    }
    (0..20).for_each(|_| {
        b.pass();
    });
    assert_eq!((b.got(part), b.got(later)), (&b"first"[..], &b"later"[..]));
}

#[test]
fn queued_sends_to_a_departed_peer_fail_and_its_senders_hear_of_it() {
    let (mut a, b) = (open("leave-a"), open("leave-b@0+0+1"));
    let to_b = a.knows(&b.address);
    let ops: Vec<_> = (0..3)
        .filter_map(|_| a.send(to_b, None, b"x").unwrap())
        .collect();
    assert!(a.domain.arm());
    let address = b.address.clone();
    drop(b);
    assert_eq!((ops.len(), a.kicks()), (2, 1));
    assert!(a.pass() && !a.pass());
    assert!(
        ops.iter()
            .all(|&op| a.failed(op) == Some(&Error::PeerGone(address.clone())))
    );
    assert!(a.down(&address));
    // The name is used again by somebody else, who is met anew.
    let mut next = open("leave-b@0+0+1");
    assert_eq!(a.send(to_b, None, b"y"), Ok(None));
    let op = next.recv(ANY);
    next.pass();
    assert_eq!(next.got(op), b"y");
}

#[test]
fn a_message_put_back_shows_its_sender_as_it_is_known_now() {
    let (mut a, mut b) = (open("back-a"), open("back-b@0+0"));
    let to_b = a.knows(&b.address);
    a.send(to_b, None, b"stranger").unwrap();
    b.pass();
    let op = b.recv(ANY);
    let transfer = b.end(op).unwrap().transfer;
    assert_eq!(transfer.source, None);
    let from_a = b.knows(&a.address);
    let bytes = b.maps.reclaim(op, transfer.len);
    b.domain
        .put_back(&mut b.maps, EP, transfer.envelope(0), bytes);
    let directed = b.recv(RecvSpec {
        from: Some(from_a),
        tag: None,
    });
    assert_eq!(b.got(directed), b"stranger");

    let transfer = b.end(directed).unwrap().transfer;
    b.maps.av.remove(from_a).unwrap();
    b.domain.address_removed(&mut b.maps, EP, from_a);
    let bytes = b.maps.reclaim(directed, transfer.len);
    b.domain
        .put_back(&mut b.maps, EP, transfer.envelope(0), bytes);
    let op = b.recv(ANY);
    assert_eq!(
        (b.got(op), b.end(op).unwrap().transfer.source),
        (&b"stranger"[..], None)
    );
}

#[test]
fn only_an_armed_receiver_is_kicked() {
    let (mut a, mut b) = (open("arm-a"), open("arm-b@1+6"));
    let to_b = a.knows(&b.address);
    a.send(to_b, None, b"1").unwrap();
    assert_eq!(b.kicks(), 0);
    assert!(!b.domain.arm(), "a message is on its way");
    a.send(to_b, None, b"2").unwrap();
    assert_eq!(b.kicks(), 0, "the request was withdrawn");
    while !b.domain.arm() {
        b.pass();
    }
    a.send(to_b, None, b"3").unwrap();
    assert_eq!(b.kicks(), 1);
    a.send(to_b, None, b"3").unwrap();
    assert_eq!(b.kicks(), 1, "armed until it says otherwise");
    b.domain.disarm();
    a.send(to_b, None, b"4").unwrap();
    assert_eq!(b.kicks(), 0);
}

#[test]
fn a_delay_keeps_an_armed_domain_awake() {
    let (mut a, mut b) = (open("awake-a"), open("awake-b@1+1000"));
    let to_b = a.knows(&b.address);
    let connect = SendSpec::new(OpKind::Connect, to_b);
    let op = a.op(AnyBuf::None);
    a.domain.queue_send(&mut a.maps, EP, op, &connect).unwrap();
    assert!(b.pass() && b.domain.arm());
    a.send(to_b, None, b"late").unwrap();
    assert_eq!(b.kicks(), 1);
    assert!(b.pass(), "woken, and not to sleep before it is due");
    b.domain.disarm();
    assert!(
        !b.pass() && !b.domain.arm(),
        "nothing has moved, and something will"
    );
}

#[test]
fn only_an_armed_sender_that_waits_is_kicked() {
    let (mut a, mut b) = (open("credit-a"), open("credit-b@0+0+1"));
    let to_b = a.knows(&b.address);
    a.send(to_b, None, b"1").unwrap();
    assert!(a.domain.arm());
    b.pass();
    assert_eq!(a.kicks(), 0, "it has nothing queued");
    (0..3).for_each(|_| {
        a.send(to_b, None, b"2").unwrap();
    });
    assert!(a.domain.arm(), "no room, no news");
    b.pass();
    assert_eq!(a.kicks(), 1);
    assert!(!a.domain.arm(), "there is room already");
    a.pass();
    b.pass();
    assert_eq!(a.kicks(), 0, "not armed");
    while a.pass() || (a.domain.describe() != IDLE && b.pass()) {}
    assert!(
        a.domain.arm() && b.pass() && a.kicks() == 0,
        "it has sent everything"
    );
    a.domain.disarm();
    a.send(to_b, None, b"3").unwrap();
    let op = a.send(to_b, None, b"4").unwrap().expect("no room");
    assert!(a.domain.cancel(&mut a.maps, EP, op) && a.domain.arm());
    b.pass();
    assert_eq!(a.kicks(), 0, "it does not wait any more");
}

/// Passes and sleeps as an engine does: armed until something moves, and no pass without a kick
/// meanwhile.
fn drive(side: &mut Side, done: impl Fn(&Side) -> bool) {
    let mut armed = false;
    while !done(side) {
        if side.pass() {
            side.domain.disarm();
            armed = false;
        } else if armed || side.domain.arm() {
            armed = true;
            let asleep = Instant::now();
            while side.kicks() == 0 {
                assert!(asleep.elapsed() < Duration::from_secs(20), "nobody rings");
                std::thread::yield_now();
            }
        }
    }
}

#[test]
fn two_threads_lose_neither_messages_nor_wake_ups() {
    let (mut a, mut b) = (open("threads-a"), open("threads-b@5+2+3"));
    let to_b = a.knows(&b.address);
    let ops: Vec<_> = (0..5000).map(|_| b.recv(ANY)).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..5000u32 {
                a.send(to_b, None, &n.to_le_bytes()).unwrap();
                if n % 500 == 0 {
                    drive(&mut a, |a| a.domain.describe() == IDLE);
                }
            }
            drive(&mut a, |a| a.domain.describe() == IDLE);
        });
        scope.spawn(|| drive(&mut b, |b| b.maps.ended.len() == 5000));
    });
    assert!(
        ops.iter()
            .enumerate()
            .all(|(n, &op)| b.got(op) == (n as u32).to_le_bytes())
    );
}
