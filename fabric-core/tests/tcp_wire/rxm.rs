//! The other dialect: packets, segments and offers, split anywhere, hostile ones among them.

use fabric_core::Error;
use fabric_core::buf::Payload;
use fabric_core::completion::Transfer;
use fabric_core::provider::OpKey;
use fabric_core::tcp::rxm::{
    EAGER, MESSAGES_IN_SEGMENTS, Outgoing, PREFIX, Packet, PacketKind, Step, WINDOW,
};
use fabric_core::tcp::{Broken, Frame, MAX_MESSAGE, Order, Outbox, Patience, Row, Rows};
use proptest::prelude::*;

use crate::host::{ANY_TAG, PEER, Receiver, UNTAGGED};
use crate::{hex, largest_allocation};

const BUDGET: usize = 1 << 20;
/// What packets quote.
const HERE: u32 = 5;

/// What libfabric 1.17 has been seen to send: ten bytes; the same under a tag, without a packet; an
/// offer of 20000 bytes.
const EAGER_PACKET: &str = "03 00 0000 00 00 10 00 5a00000000000000 0400 0000 00000000 0500000000000000 0000000000000000 \
    0000000000000000 0200 0000 00000000 0a00000000000000 0000000000000000 0000000000000000 30313233343536373839";
const RAW_TAGGED: &str =
    "03 00 8000 00 00 18 00 2200000000000000 d204000000000000 30313233343536373839";
const OFFER: &str = "03 00 0000 00 00 10 00 b800000000000000 0402 0000 00000000 0500000000000000 0000000000000000 \
    0000000000000000 0200 0100 00000000 204e000000000000 0000000000000000 d204000000000000 \
    0000000000000000 204e000000000000 0000008000000000 000000000000000000000000000000000000000000000000 \
    000000000000000000000000000000000000000000000000 000000000000000000000000000000000000000000000000 \
    0100000000000000";

fn contents(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + number) as u8).collect()
}

fn receiver() -> Receiver {
    Receiver::of_rxm(BUDGET, HERE)
}

fn packet(kind: PacketKind, message: u64, len: u64) -> Packet {
    Packet {
        kind,
        connection: HERE,
        message,
        tag: None,
        data: None,
        len,
    }
}

/// A packet within its frame.
fn framed(packet: &Packet, body: &[u8]) -> Vec<u8> {
    let mut outbox = Outbox::new(Order::NATIVE);
    assert!(outbox.packet(packet, Payload::Whole(body)));
    outbox.pending().to_vec()
}

fn segment(message: u64, step: Step, body: &[u8], len: usize) -> Vec<u8> {
    framed(
        &packet(
            PacketKind::Segment(step, 0, body.len() as u16),
            message,
            len as u64,
        ),
        body,
    )
}

/// Where a message lies, as it is written.
fn places(rows: &[Row], count: u8) -> Vec<u8> {
    let mut bytes: Vec<u8> = rows
        .iter()
        .flat_map(|row| [row.addr, row.len, row.key])
        .flat_map(u64::to_ne_bytes)
        .collect();
    bytes.resize(96, 0);
    bytes.extend([count, 0, 0, 0, 0, 0, 0, 0]);
    bytes
}

#[test]
fn packets_read_as_libfabric_writes_them() {
    if Order::NATIVE == Order::Big {
        return;
    }
    let mut receiver = receiver();
    let ops = [
        receiver.post(UNTAGGED, None),
        receiver.post(ANY_TAG, None),
        receiver.post(ANY_TAG, None),
    ];
    let bytes = [hex(EAGER_PACKET), hex(RAW_TAGGED), hex(OFFER)].concat();
    assert_eq!(receiver.take(&bytes).unwrap().bytes, bytes.len());
    for (op, tag) in [(ops[0], None), (ops[1], Some(1234))] {
        let (transfer, bytes) = receiver.got(op);
        assert_eq!(
            (transfer.tag, transfer.data, bytes),
            (tag, None, &b"0123456789"[..])
        );
    }
    let row = Row {
        addr: 0,
        len: 20_000,
        key: 0x8000_0000,
    };
    assert_eq!(receiver.inbox.ask(), Some(row));
    assert_eq!(receiver.inbox.ask(), None);
    let mut outbox = Outbox::of_rxm(Order::NATIVE, Outgoing::new(HERE));
    assert!(outbox.push(None, None, Payload::Whole(&b"0123456789"[..])));
    assert_eq!(outbox.pending(), hex(EAGER_PACKET));
    // The number of the message is the sender's choice: ours is the key.
    let mut theirs = hex(OFFER);
    theirs[16 + 16..][..8].copy_from_slice(&row.key.to_ne_bytes());
    let mut outbox = Outbox::of_rxm(Order::NATIVE, Outgoing::new(HERE));
    assert!(outbox.offer(row, Some(1234), None));
    assert_eq!(outbox.pending(), theirs);
}

prop_compose! {
    fn any_packet()(
        kind in prop_oneof![
            Just(PacketKind::Eager), Just(PacketKind::Offer),
            (prop_oneof![Just(Step::First), Just(Step::Middle), Just(Step::Last)], any::<u32>(), any::<u16>())
                .prop_map(|(step, number, size)| PacketKind::Segment(step, number, size)),
        ],
        connection: u32, message: u64, tag: Option<u64>, data: Option<u64>, len: u64,
    ) -> Packet {
        Packet { kind, connection, message, tag, data, len }
    }
}

/// One end of a connection.
struct Side {
    receiver: Receiver,
    outbox: Outbox,
    unread: Vec<u8>,
    /// Reads that were asked for and not answered, at most.
    most_reads: usize,
}

impl Side {
    fn pair() -> [Self; 2] {
        [(HERE, 6), (6, HERE)].map(|(ours, theirs)| Self {
            receiver: Receiver::of_rxm(16 * BUDGET, ours),
            outbox: Outbox::of_rxm(Order::NATIVE, Outgoing::new(theirs)),
            unread: Vec::new(),
            most_reads: 0,
        })
    }

    fn send(&mut self, tag: Option<u64>, data: Option<u64>, bytes: &[u8]) -> Option<OpKey> {
        if bytes.len() <= EAGER {
            assert!(
                self.outbox
                    .push(crate::tag(tag), data, Payload::Whole(bytes))
            );
            return None;
        }
        let op = self.receiver.sending(bytes);
        let row = self
            .receiver
            .inbox
            .replies
            .offers
            .add(op, tag, bytes.len(), &self.receiver.maps);
        assert!(self.outbox.offer(row, tag, data));
        Some(op)
    }

    /// Asks and answers; then so many bytes leave.
    fn work(&mut self, most: usize) -> Vec<u8> {
        let (mut reads, no_bytes) = (0, Payload::Whole(&[]));
        while !self.outbox.is_open()
            && let Some(row) = self.receiver.inbox.ask()
        {
            let rows = Rows::of(&[row.place()]).unwrap();
            assert!(self.outbox.push_frame(&Frame::read(&rows), &rows, no_bytes));
            reads += 1;
        }
        self.most_reads = self.most_reads.max(reads);
        let Receiver { inbox, maps, .. } = &mut self.receiver;
        inbox
            .replies
            .answer(&mut self.outbox, (64 << 10, usize::MAX), PEER, maps)
            .unwrap();
        let count = self.outbox.pending().len().min(most);
        let bytes = self.outbox.pending()[..count].to_vec();
        self.outbox.left(count);
        bytes
    }

    fn hear(&mut self, bytes: &[u8]) {
        self.unread.extend_from_slice(bytes);
        let taken = self.receiver.take(&self.unread).unwrap();
        assert!(!taken.held);
        self.unread.drain(..taken.bytes);
        taken
            .fetched
            .into_iter()
            .for_each(|message| self.outbox.fetched(message));
    }
}

/// Both work until neither has anything to say.
fn talk([a, b]: &mut [Side; 2], cuts: &[usize]) {
    for turn in 0.. {
        let cut = cuts[turn % cuts.len()];
        let (to_b, to_a) = (a.work(cut), b.work(cut));
        if to_a.is_empty() && to_b.is_empty() {
            return;
        }
        a.hear(&to_a);
        b.hear(&to_b);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 60 }))]

    #[test]
    fn prefixes_come_back(packet in any_packet()) {
        prop_assert_eq!(Packet::decode(&packet.encode()), Ok(packet));
    }

    /// Messages of all lengths both ways, short and offered ones: each comes once, whole, in order
    /// and with all it carries, however the streams were cut, whether somebody waits or not; and
    /// what was offered ends.
    #[test]
    fn what_goes_in_comes_out(
        list in prop::collection::vec(
            (any::<bool>(), any::<Option<u64>>(), any::<Option<u64>>(),
             prop_oneof![0..4usize, 0..200usize, EAGER - 2..EAGER + 3, 100_000..1_300_000usize]),
            1..8,
        ),
        cuts in prop::collection::vec(prop_oneof![1000..2000usize, 1..100_000usize, Just(usize::MAX)], 1..6),
        is_awaited: bool,
    ) {
        let mut sides = Side::pair();
        let post = |sides: &mut [Side; 2]| list.iter().map(|(to_b, tag, ..)| {
            let spec = if tag.is_some() { ANY_TAG } else { UNTAGGED };
            sides[usize::from(*to_b)].receiver.post(spec, None)
        }).collect::<Vec<_>>();
        let posted = is_awaited.then(|| post(&mut sides));
        let mut offered = Vec::new();
        for (number, (to_b, tag, data, len)) in list.iter().enumerate() {
            let from = usize::from(!to_b);
            let op = sides[from].send(*tag, *data, &contents(number, *len));
            offered.extend(op.map(|op| (from, op, *len)));
        }
        talk(&mut sides, &cuts);
        let ops = posted.unwrap_or_else(|| post(&mut sides));
        for (number, ((to_b, tag, data, len), op)) in list.iter().zip(ops).enumerate() {
            let (transfer, bytes) = sides[usize::from(*to_b)].receiver.got(op);
            prop_assert_eq!((transfer.len, transfer.tag, transfer.data), (*len, *tag, *data));
            prop_assert!(bytes == contents(number, *len));
        }
        for (from, op, len) in offered {
            prop_assert_eq!(sides[from].receiver.got(op).0.len, len);
        }
        for side in &mut sides {
            prop_assert!(side.receiver.inbox.end().is_empty() && side.receiver.inbox.replies.offers.is_empty());
            prop_assert!(side.most_reads <= WINDOW);
        }
    }

    /// Messages in segments that come between each other, in as many pieces as anybody likes.
    #[test]
    fn segments_find_their_messages(
        lens in prop::collection::vec(2..40_000usize, 1..6),
        parts in prop::collection::vec(1..9_000usize, 1..5),
        cuts in prop::collection::vec(prop_oneof![1..3usize, 1..100usize, 1..30_000usize], 1..8),
        is_awaited: bool,
    ) {
        let mut receiver = receiver();
        let post = |receiver: &mut Receiver| lens.iter().map(|_| receiver.post(UNTAGGED, None)).collect::<Vec<_>>();
        let posted = is_awaited.then(|| post(&mut receiver));
        let (mut stream, mut sent) = (Vec::new(), vec![0; lens.len()]);
        let mut turn = 0;
        while sent != lens {
            for (number, len) in lens.iter().enumerate() {
                let (from, left) = (sent[number], len - sent[number]);
                if left == 0 {
                    continue;
                }
                let part = parts[turn % parts.len()].min(if from == 0 { left - 1 } else { left });
                let step = match from {
                    0 => Step::First,
                    _ if part == left => Step::Last,
                    _ => Step::Middle,
                };
                stream.extend(segment(number as u64, step, &contents(number, *len)[from..from + part], *len));
                (sent[number], turn) = (from + part, turn + 1);
            }
        }
        let (mut rest, mut at, mut turn) = (Vec::new(), 0, 0);
        while at < stream.len() {
            let count = cuts[turn % cuts.len()].min(stream.len() - at);
            rest.extend_from_slice(&stream[at..at + count]);
            (at, turn) = (at + count, turn + 1);
            let taken = receiver.take(&rest).unwrap();
            rest.drain(..taken.bytes);
        }
        prop_assert!(rest.is_empty() && receiver.inbox.end().is_empty());
        let ops = posted.unwrap_or_else(|| post(&mut receiver));
        for (number, (len, op)) in lens.iter().zip(ops).enumerate() {
            prop_assert!(receiver.got(op).1 == contents(number, *len));
        }
    }

    /// Whatever a peer says is taken or refused.
    #[test]
    fn garbage_ends_or_waits(
        packet in any_packet(),
        is_ours: bool,
        body in prop::collection::vec(any::<u8>(), 0..200),
        cut in 0..300usize,
    ) {
        let mut receiver = receiver();
        let _ = receiver.post(UNTAGGED, Some(16));
        let connection = if is_ours { HERE } else { packet.connection };
        let bytes = framed(&Packet { connection, ..packet }, &body);
        let cut = cut.min(bytes.len());
        let most = largest_allocation(|| {
            if let Ok(taken) = receiver.take(&bytes[..cut]) && !taken.held {
                let _ = receiver.take(&bytes[taken.bytes..]);
            }
        });
        prop_assert!(most <= 4 << 20, "{most}");
        prop_assert!(receiver.rx.unexpected().1 <= BUDGET);
    }
}

#[test]
fn a_packet_may_be_split_anywhere() {
    let offer = framed(
        &packet(PacketKind::Offer, 3, 8),
        &places(
            &[Row {
                addr: 0,
                len: 8,
                key: 1,
            }],
            1,
        ),
    );
    let eager = framed(&packet(PacketKind::Eager, 0, 10), b"0123456789");
    for (bytes, is_offer) in [(eager, false), (offer, true)] {
        for cut in 0..bytes.len() {
            let mut receiver = receiver();
            let op = receiver.post(UNTAGGED, None);
            let taken = receiver.take(&bytes[..cut]).unwrap().bytes;
            assert_eq!(
                taken + receiver.take(&bytes[taken..]).unwrap().bytes,
                bytes.len(),
                "cut at {cut}"
            );
            if is_offer {
                assert_eq!(
                    receiver.inbox.ask(),
                    Some(Row {
                        addr: 0,
                        len: 8,
                        key: 1
                    })
                );
            } else {
                assert_eq!(receiver.got(op).1, b"0123456789");
            }
        }
    }
}

#[test]
fn what_is_no_packet_of_this_connection_ends_it() {
    use PacketKind::{Done, Eager, Offer, Segment};
    let row = |len| Row {
        addr: 0,
        len,
        key: 1,
    };
    let first = |len| segment(1, Step::First, &[0; 10], len);
    let with = |mut bytes: Vec<u8>, at: usize, byte: u8| {
        bytes[16 + at] = byte;
        bytes
    };
    let eager = || framed(&packet(Eager, 0, 3), b"abc");
    let cases = [
        ("prefix", {
            let mut outbox = Outbox::new(Order::NATIVE);
            assert!(outbox.push(None, None, Payload::Whole(&[0; PREFIX - 1][..])));
            outbox.pending().to_vec()
        }),
        (
            "quotes",
            framed(
                &Packet {
                    connection: HERE + 1,
                    ..packet(Eager, 0, 3)
                },
                b"abc",
            ),
        ),
        ("version", with(eager(), 0, 5)),
        ("version", with(eager(), 32, 3)),
        ("no message", with(eager(), 34, 6)),
        ("atomic", with(eager(), 1, 4)),
        ("atomic", with(eager(), 1, 5)),
        ("credit", with(eager(), 1, 6)),
        ("by writing", with(eager(), 1, 7)),
        ("by writing", with(eager(), 1, 8)),
        ("unknown packet", with(eager(), 1, 9)),
        ("as long as it says", framed(&packet(Eager, 0, 4), b"abc")),
        (
            "longer than memory",
            framed(&packet(Eager, 0, MAX_MESSAGE as u64 + 1), b"abc"),
        ),
        ("neither first", with(first(100), 24, 0)),
        ("has not begun", segment(1, Step::Middle, b"abc", 100)),
        ("has not begun", segment(1, Step::Last, b"abc", 3)),
        ("that has begun", [first(100), first(100)].concat()),
        ("longer than their message", first(9)),
        (
            "longer than their message",
            [first(15), segment(1, Step::Last, &[0; 6], 15)].concat(),
        ),
        (
            "last segment",
            [first(100), segment(1, Step::Last, &[0; 10], 100)].concat(),
        ),
        (
            "last segment",
            [first(20), segment(1, Step::Middle, &[0; 10], 20)].concat(),
        ),
        (
            "nothing in it",
            [first(100), segment(1, Step::Middle, &[], 100)].concat(),
        ),
        ("nothing in it", segment(1, Step::First, &[], 100)),
        (
            "longer or shorter",
            framed(&packet(Offer, 1, 8), &places(&[row(8)], 1)[..103]),
        ),
        (
            "places",
            framed(&packet(Offer, 1, 8), &places(&[row(8)], 0)),
        ),
        (
            "places",
            framed(&packet(Offer, 1, 8), &places(&[row(8)], 5)),
        ),
        (
            "as long as its message",
            framed(&packet(Offer, 1, 9), &places(&[row(8)], 1)),
        ),
        (
            "as long as its message",
            framed(&packet(Offer, 1, 0), &places(&[row(0)], 1)),
        ),
        (
            "as long as its message",
            framed(&packet(Offer, 1, 6), &places(&[row(u64::MAX), row(7)], 2)),
        ),
        (
            "beyond the end",
            framed(
                &packet(Offer, 1, 8),
                &places(
                    &[Row {
                        addr: u64::MAX,
                        len: 8,
                        key: 1,
                    }],
                    1,
                ),
            ),
        ),
        ("something in it", framed(&packet(Done, 1, 0), b"abc")),
        ("not offered", framed(&packet(Done, 1, 0), b"")),
        (
            "no question",
            hex("03 03 0000 00 00 10 00 1400000000000000 00000000"),
        ),
    ];
    for (why, bytes) in cases {
        let mut receiver = receiver();
        let _ = receiver.post(UNTAGGED, None);
        let Broken(what) = receiver.take(&bytes).unwrap_err();
        assert!(what.contains(why), "{what} for {why}");
    }
    let mut receiver = receiver();
    for number in 0..=MESSAGES_IN_SEGMENTS {
        let taken = receiver.take(&framed(
            &packet(Segment(Step::First, 0, 1), number as u64, 2),
            b"a",
        ));
        assert_eq!(taken.is_ok(), number < MESSAGES_IN_SEGMENTS, "{taken:?}");
    }
    assert_eq!(receiver.inbox.end().len(), MESSAGES_IN_SEGMENTS);
}

/// Nothing is allocated for an announced length before a receive takes the message, and no more than
/// that length then.
#[test]
fn claims_cost_no_memory() {
    let long = 64 << 20;
    let offer = framed(
        &packet(PacketKind::Offer, 1, long),
        &places(
            &[Row {
                addr: 0,
                len: long,
                key: 1,
            }],
            1,
        ),
    );
    for bytes in [offer, segment(1, Step::First, &[0; 10], long as usize)] {
        let mut receiver = receiver();
        let most = largest_allocation(|| {
            let taken = receiver.take(&bytes).unwrap();
            assert!(!taken.held && taken.bytes == bytes.len());
        });
        assert!(most < 4096, "{most}");
        assert!(receiver.inbox.has_aside() && receiver.inbox.ask().is_none());
        let _ = receiver.post(UNTAGGED, None);
        let most = largest_allocation(|| assert_eq!(receiver.take(b"").unwrap().bytes, 0));
        assert_eq!(most, long as usize);
        assert!(!receiver.inbox.has_aside());
        assert_eq!(receiver.inbox.end().len(), 1);
    }
}

#[test]
fn what_is_offered_is_read_within_its_bounds_and_ends_once() {
    let [mut a, _] = Side::pair();
    let op = a.send(None, None, &contents(1, 100_000)).unwrap();
    let read = |addr, len, key| {
        let rows = Rows::of(&[Row { addr, len, key }.place()]).unwrap();
        let mut outbox = Outbox::new(Order::NATIVE);
        assert!(outbox.push_frame(&Frame::read(&rows), &rows, Payload::Whole(&[])));
        outbox.pending().to_vec()
    };
    let pending = a.work(usize::MAX);
    let message = u64::from_ne_bytes(*pending[16 + 16..].first_chunk().unwrap());
    let done = framed(&packet(PacketKind::Done, message, 0), b"");
    for (addr, len, key) in [
        (1, 100_000, message),
        (u64::MAX, 2, message),
        (100_001, 0, message),
        (0, 1, message + 1),
    ] {
        assert!(
            a.receiver.take(&read(addr, len, key)).is_err(),
            "{len} bytes at {addr} of {key}"
        );
    }
    a.receiver.take(&read(7, 50, message)).unwrap();
    let answer = a.work(usize::MAX);
    assert_eq!(&answer[16..], &contents(1, 100_000)[7..57]);
    // Word comes while a read is still answered.
    a.receiver.take(&read(0, 90_000, message)).unwrap();
    let _ = a.work(10);
    assert!(a.receiver.end(op).is_none());
    let Broken(what) = a.receiver.take(&done).unwrap_err();
    assert!(what.contains("still being read"), "{what}");
    assert_eq!(a.receiver.got(op).0, Transfer::sent(100_000, None));
    assert!(a.receiver.take(&done).is_err(), "once");
    // A peer that goes leaves nothing behind.
    let [mut a, _] = Side::pair();
    let op = a.send(Some(3), None, &[0; 20_000]).unwrap();
    a.receiver
        .inbox
        .replies
        .fail(&mut a.receiver.maps, &Error::Canceled);
    assert_eq!(
        a.receiver.end(op).unwrap().error.as_deref(),
        Some(&Error::Canceled)
    );
}

/// A message that nobody has asked for, and for which there is no room, holds up messages, and
/// nothing else.
#[test]
fn what_waits_is_put_aside() {
    let mut sides = Side::pair();
    sides[1].receiver = Receiver::of_rxm(BUDGET, 6);
    let len = BUDGET - 1000;
    let offers = [0, 1].map(|number| sides[0].send(None, None, &contents(number, len)).unwrap());
    assert!(sides[0].send(None, Some(9), &contents(2, 5000)).is_none());
    for (number, step) in [(0, Step::First), (1, Step::Middle), (2, Step::Last)] {
        let packet = Packet {
            connection: 6,
            ..packet(PacketKind::Segment(step, number, 10), 7, 30)
        };
        assert!(
            sides[0]
                .outbox
                .packet(&packet, Payload::Whole(&[number as u8; 10][..]))
        );
    }
    // The other way round as well.
    let op = sides[1].send(None, None, &contents(4, len)).unwrap();
    let back = sides[0].receiver.post(UNTAGGED, None);
    talk(&mut sides, &[70_000]);
    let [a, b] = &sides;
    assert!(a.receiver.got(offers[0]).0.len == len && a.receiver.end(offers[1]).is_none());
    assert!(a.receiver.got(back).1 == contents(4, len) && b.receiver.got(op).0.len == len);
    assert!(b.receiver.inbox.has_aside());
    let ops = [0; 4].map(|_| sides[1].receiver.post(UNTAGGED, None));
    assert!(
        sides[1]
            .receiver
            .inbox
            .is_aside_wanted(PEER, &sides[1].receiver.rx)
    );
    sides[1].hear(b"");
    talk(&mut sides, &[usize::MAX]);
    let b = &sides[1].receiver;
    assert!(!b.inbox.has_aside());
    for (number, op) in ops.iter().take(2).enumerate() {
        assert!(b.got(*op).1 == contents(number, len), "{number}");
    }
    assert!(b.got(ops[2]).1 == contents(2, 5000) && b.got(ops[2]).0.data == Some(9));
    assert_eq!(b.got(ops[3]).1, [[0; 10], [1; 10], [2; 10]].concat());
    assert_eq!(sides[0].receiver.got(offers[1]).0.len, len);
}

/// What was put aside has waited: when there is room it is taken in, and does not ask for yet
/// another look, for ever.
#[test]
fn what_was_put_aside_is_not_put_off() {
    let mut receiver = Receiver::of_rxm(1500, HERE);
    let bytes = [1, 2]
        .map(|byte| framed(&packet(PacketKind::Eager, 0, 1000), &[byte; 1000]))
        .concat();
    assert_eq!(receiver.take(&bytes).unwrap().bytes, bytes.len());
    assert!(receiver.inbox.has_aside() && !receiver.inbox.is_aside_wanted(PEER, &receiver.rx));
    let first = receiver.post(UNTAGGED, None);
    assert_eq!(receiver.got(first).1, [1; 1000]);
    assert!(
        receiver.inbox.is_aside_wanted(PEER, &receiver.rx),
        "there is room again"
    );
    receiver.inbox.be_patient(Patience::Left);
    let taken = receiver.take(&[]).unwrap();
    assert!(!taken.is_put_off && !receiver.inbox.has_aside());
    let second = receiver.post(UNTAGGED, None);
    assert_eq!(receiver.got(second).1, [2; 1000]);
}

/// There is an end to that.
#[test]
fn what_is_put_aside_is_bounded() {
    let mut receiver = Receiver::of_rxm(0, HERE);
    let bytes = framed(&packet(PacketKind::Eager, 0, EAGER as u64), &[7; EAGER]);
    let mut kept = 0;
    loop {
        let taken = receiver.take(&bytes).unwrap();
        if taken.held {
            assert_eq!(taken.bytes, 0);
            break;
        }
        kept += taken.bytes;
        assert!(kept <= 8 << 20);
    }
    assert!(kept > 7 << 20 && !receiver.wants(&bytes));
    let op = receiver.post(UNTAGGED, None);
    assert!(receiver.wants(&bytes));
    assert_eq!(
        receiver.take(&bytes).unwrap().bytes,
        bytes.len(),
        "one has made room for another"
    );
    assert_eq!(receiver.got(op).1, [7; EAGER]);
    // What is longer than any packet is held at once.
    let mut receiver = Receiver::of_rxm(0, HERE);
    let long = framed(
        &packet(PacketKind::Eager, 0, 2 * EAGER as u64),
        &[7; 2 * EAGER],
    );
    assert!(receiver.take(&long).unwrap().held);
}

/// Of a peer that has gone comes what it has sent, and nothing that it has only offered.
#[test]
fn what_was_only_offered_goes_with_the_peer() {
    let mut receiver = Receiver::of_rxm(BUDGET, HERE);
    let offer = |len| {
        framed(
            &packet(PacketKind::Offer, 1, len),
            &places(
                &[Row {
                    addr: 0,
                    len,
                    key: 1,
                }],
                1,
            ),
        )
    };
    let bytes = [
        offer(1000),
        offer(2 << 20),
        framed(&packet(PacketKind::Eager, 0, 3), b"abc"),
    ]
    .concat();
    assert_eq!(receiver.take(&bytes).unwrap().bytes, bytes.len());
    assert!(receiver.inbox.has_aside() && receiver.inbox.awaits_fetches());
    let begun = receiver.inbox.end_fetches();
    assert_eq!(begun.len(), 1);
    receiver
        .rx
        .fail(&mut receiver.maps, begun[0], Error::Canceled);
    assert!(!receiver.inbox.awaits_fetches());
    let op = receiver.post(UNTAGGED, None);
    let rest = offer(5);
    assert_eq!(receiver.take(&rest).unwrap().bytes, rest.len());
    assert_eq!(receiver.got(op).1, b"abc");
    assert!(!receiver.inbox.has_aside() && receiver.inbox.end().is_empty());
}

/// What was put aside is looked at later, and may be wrong then: the message that is in the middle
/// of arriving is lost with the connection, as any other, and its receive waits for the next one.
#[test]
fn a_lie_that_was_put_aside_leaves_no_message_behind() {
    let mut receiver = Receiver::of_rxm(300, HERE);
    let halved = receiver.post(UNTAGGED, None);
    let too_much = framed(&packet(PacketKind::Eager, 0, 1000), &[1; 1000]);
    let lie = framed(
        &Packet {
            connection: HERE + 1,
            ..packet(PacketKind::Eager, 0, 3)
        },
        b"abc",
    );
    let begun = segment(1, Step::First, &[2; 10], 30);
    let last = segment(1, Step::Last, &[2; 20], 30);
    let bytes = [begun, too_much, lie, last[..last.len() - 5].to_vec()].concat();
    assert_eq!(receiver.take(&bytes).unwrap().bytes, bytes.len());
    let aside = receiver.post(UNTAGGED, None);
    assert!(matches!(receiver.take(&[]), Err(Broken(what)) if what.contains("quotes")));
    assert_eq!(receiver.got(aside).0.len, 1000);
    for landing in receiver.inbox.end() {
        receiver
            .rx
            .fail(&mut receiver.maps, landing, Error::Canceled);
    }
    assert!(receiver.end(halved).is_none() && receiver.rx.has_receives());
}
