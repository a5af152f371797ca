//! Memory where RXM is spoken: atomic operations and what is said to them, and the frames for reads
//! and writes between packets.

use std::sync::Arc;

use fabric_core::Error;
use fabric_core::atomic::{AtomicCall, AtomicOp, AtomicSpec, Datatype};
use fabric_core::buf::{IoBuf, Payload};
use fabric_core::completion::OpKind;
use fabric_core::flags::Access;
use fabric_core::mr::Registered;
use fabric_core::provider::{Deed, EpId, Host, Remote};
use fabric_core::tcp::rxm::{Atomic, EAGER, MOST_OPERANDS, Outgoing, Packet, PacketKind};
use fabric_core::tcp::{Broken, Frame, Order, Outbox, Patience, Replying, Row, Rows};
use proptest::prelude::*;

use crate::host::{KEY, READABLE, Receiver, UNTAGGED};
use crate::{hex, largest_allocation};

/// What packets quote.
const HERE: u32 = 5;

/// What libfabric 1.17 has been seen to send: 5 is to be added to a number at 8, and what was there
/// is wanted; that, and a refusal.
const FETCH: &str = "03 00 0000 00 00 10 00 b800000000000000 0404 0000 00000000 0500000000000000 0200000000000000 \
    0000000000000000 0200 0700 00000000 6800000000000000 0000000000000000 0702010000000000 \
    0800000000000000 0100000000000000 0700000000000000 000000000000000000000000000000000000000000000000 \
    000000000000000000000000000000000000000000000000 000000000000000000000000000000000000000000000000 \
    0500000000000000";
const RESPONSE: &str = "03 00 0000 00 00 10 00 6000000000000000 0405 0000 00000000 0500000000000000 0200000000000000 \
    0000000000000000 0200 0700 00000000 1000000000000000 0000000000000000 0702000000000000 \
    00000000 00000008 4648474e555c636a";
const REFUSAL: &str = "03 00 0000 00 00 10 00 5800000000000000 0405 0000 00000000 0500000000000000 0200000000000000 \
    0000000000000000 0200 0700 00000000 0800000000000000 0000000000000000 0702000000000000 fffffff3 00000000";

const SUM: AtomicSpec = AtomicSpec {
    op: AtomicOp::Sum,
    datatype: Datatype::U64,
    call: AtomicCall::Fetch,
};
const BASE: AtomicSpec = AtomicSpec {
    call: AtomicCall::Base,
    ..SUM
};

fn outbox() -> Outbox {
    Outbox::of_rxm(Order::NATIVE, Outgoing::new(HERE))
}

fn of_rxm() -> Receiver {
    Receiver::of_rxm(1 << 20, HERE)
}

fn row(addr: u64, len: u64, key: u64) -> Row {
    Row { addr, len, key }
}

/// A packet of this kind that says that it is so long, and is that.
fn packet(kind: PacketKind, message: u64, len: u64, body: &[u8]) -> Vec<u8> {
    let mut outbox = outbox();
    let packet = Packet {
        kind,
        connection: HERE,
        message,
        tag: None,
        data: None,
        len,
    };
    assert!(outbox.packet(&packet, Payload::Whole(body)));
    outbox.pending().to_vec()
}

/// A request for so many places.
fn request(atomic: Atomic, number: u64, rows: &[Row], operands: &[u8]) -> Vec<u8> {
    let words = rows
        .iter()
        .flat_map(|row| [row.addr, row.len, row.key])
        .flat_map(u64::to_ne_bytes);
    let mut body: Vec<u8> = words.collect();
    body.resize(96, 0xaa); // what lies behind the places means nothing
    body.extend_from_slice(operands);
    packet(PacketKind::Atomic(atomic), number, body.len() as u64, &body)
}

/// One on one place.
fn asked(spec: AtomicSpec, number: u64, place: Row, operands: &[u8]) -> Vec<u8> {
    request(Atomic::of(spec), number, &[place], operands)
}

/// A response with this behind its prefix.
fn response(number: u64, body: &[u8]) -> Vec<u8> {
    packet(
        PacketKind::Response(Atomic::of(SUM).answered()),
        number,
        body.len() as u64,
        body,
    )
}

fn body(status: i32, len: u32, fetched: &[u8]) -> Vec<u8> {
    [&status.to_be_bytes()[..], &len.to_be_bytes(), fetched].concat()
}

fn write_memory(receiver: &Receiver, at: usize, bytes: &[u8]) {
    receiver.maps.region(KEY).unwrap().memory.write(at, bytes);
}

fn bytes_of(receiver: &Receiver) -> Vec<u8> {
    let mut bytes = vec![0; 200];
    receiver
        .maps
        .region(KEY)
        .unwrap()
        .memory
        .read(0, &mut bytes);
    bytes
}

/// What it says to all that it was asked.
fn said(receiver: &mut Receiver) -> Vec<u8> {
    receiver.answers(&mut outbox(), 1 << 20).unwrap().0
}

/// Bytes in two pieces.
fn cut(receiver: &mut Receiver, bytes: &[u8], at: usize) {
    let taken = receiver.take(&bytes[..at]).unwrap().bytes;
    assert_eq!(
        taken + receiver.take(&bytes[taken..]).unwrap().bytes,
        bytes.len(),
        "cut at {at}"
    );
}

/// What such a response to an operation on eight bytes is refused with.
fn refused(kind: OpKind, bytes: &[u8]) -> &'static str {
    let mut receiver = of_rxm();
    let (op, _) = receiver.asks_atomically(kind, 8);
    let Broken(what) = receiver.take(bytes).unwrap_err();
    receiver
        .inbox
        .asked
        .fail(&mut receiver.maps, &Error::Canceled);
    assert!(receiver.end(op).unwrap().error.is_some(), "{what}");
    what
}

#[test]
fn packets_are_those_of_libfabric() {
    if Order::NATIVE == Order::Big {
        return;
    }
    let mut outbox = outbox();
    let five = 5u64.to_ne_bytes();
    assert!(outbox.atomic((2, Atomic::of(SUM)), row(8, 1, 7), Payload::Whole(&five)));
    assert_eq!(outbox.pending(), hex(FETCH));
    for at in 0..hex(FETCH).len() {
        let mut receiver = of_rxm();
        write_memory(&receiver, 8, &hex("4648474e555c636a"));
        cut(&mut receiver, &hex(FETCH), at);
        assert_eq!(
            bytes_of(&receiver)[8..16],
            hex("4b48474e555c636a"),
            "cut at {at}"
        );
        assert_eq!(said(&mut receiver), hex(RESPONSE));
        // Without the right it is refused, and that is all.
        receiver.maps.regions.as_mut().unwrap().remove(KEY);
        cut(&mut receiver, &hex(FETCH), at);
        assert_eq!(said(&mut receiver), hex(REFUSAL));
    }
    for at in 0..hex(RESPONSE).len() {
        let mut receiver = of_rxm();
        let ops = [(); 3].map(|()| receiver.asks_atomically(OpKind::FetchAtomic, 8));
        assert_eq!(ops[2].1, 2);
        cut(&mut receiver, &hex(RESPONSE), at);
        assert_eq!(receiver.got(ops[2].0).1, hex("4648474e555c636a"));
        assert!(receiver.end(ops[0].0).is_none() && receiver.inbox.asked.has_atomics());
    }
    for at in 0..hex(REFUSAL).len() {
        let mut receiver = of_rxm();
        let ops = [(); 3].map(|()| receiver.asks_atomically(OpKind::FetchAtomic, 8));
        cut(&mut receiver, &hex(REFUSAL), at);
        let error = receiver.end(ops[2].0).unwrap().error.clone();
        assert!(
            matches!(error.as_deref(), Some(Error::Key { key: KEY, .. })),
            "{error:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 200 }))]

    #[test]
    fn prefixes_come_back(
        call in prop_oneof![Just(AtomicCall::Base), Just(AtomicCall::Fetch), Just(AtomicCall::Compare)],
        datatype: u8, op: u8, rows: u8, is_response: bool, connection: u32, message: u64, len: u64,
    ) {
        let atomic = Atomic { call, datatype, op, rows };
        let kind = if is_response { PacketKind::Response(atomic) } else { PacketKind::Atomic(atomic) };
        let packet = Packet { kind, connection, message, tag: None, data: None, len };
        prop_assert_eq!(Packet::decode(&packet.encode()), Ok(packet));
        prop_assert!(!packet.kind.is_message());
    }

    /// Whatever a peer asks for is done, refused, or ends the connection; what it says has no claim
    /// on memory.
    #[test]
    fn garbage_ends_or_waits(
        call in prop_oneof![Just(AtomicCall::Base), Just(AtomicCall::Fetch), Just(AtomicCall::Compare)],
        datatype in 0..12u8, op in 0..22u8, rows in 0..6u8,
        places in prop::collection::vec((0..220u64, prop_oneof![0..30u64, Just(u64::MAX), any::<u64>()], 6..9u64), 0..5),
        operands in prop::collection::vec(any::<u8>(), 0..100),
        answer in prop::collection::vec(any::<u8>(), 0..40),
        cut in 0..400usize,
    ) {
        let places: Vec<_> = places.into_iter().map(|(addr, len, key)| row(addr, len, key)).collect();
        let atomic = Atomic { call, datatype, op, rows };
        let bytes = [request(atomic, 0, &places, &operands), response(0, &answer)].concat();
        let cut = cut.min(bytes.len());
        let mut receiver = of_rxm();
        let (op, _) = receiver.asks_atomically(OpKind::FetchAtomic, 8);
        let most = largest_allocation(|| {
            if let Ok(taken) = receiver.take(&bytes[..cut]) {
                assert!(!taken.held);
                let _ = receiver.take(&bytes[taken.bytes..]);
            }
            let _ = said(&mut receiver);
        });
        prop_assert!(most <= 64 << 10, "{most}");
        receiver.inbox.asked.fail(&mut receiver.maps, &Error::Canceled);
        prop_assert!(receiver.end(op).is_some());
    }
}

#[test]
fn what_is_no_operation_ends_the_connection() {
    let place = row(0, 1, KEY);
    let (one, many) = ([0; 8], vec![0; MOST_OPERANDS + 8]);
    let all = |rows| Atomic {
        rows,
        ..Atomic::of(SUM)
    };
    let compare = AtomicSpec {
        op: AtomicOp::Cswap,
        call: AtomicCall::Compare,
        ..SUM
    };
    let read = AtomicSpec {
        op: AtomicOp::Read,
        ..SUM
    };
    let with = |mut bytes: Vec<u8>, at: usize, byte: u8| {
        bytes[16 + at] = byte;
        bytes
    };
    let good = || asked(SUM, 1, place, &one);
    let cases = [
        ("version", with(good(), 32, 3)),
        ("called as none is", with(good(), 34, 0)),
        ("called as none is", with(good(), 34, 5)),
        ("called as none is", with(good(), 34, 9)),
        (
            "longer or shorter",
            packet(PacketKind::Atomic(all(1)), 1, 95, &[0; 95]),
        ),
        (
            "longer or shorter",
            packet(PacketKind::Atomic(all(1)), 1, 0, b""),
        ),
        (
            "longer than a packet",
            asked(SUM, 1, row(0, 2037, KEY), &many),
        ),
        ("as long as it says", with(good(), 40, 105)),
        ("no place", request(all(0), 1, &[], &one)),
        ("too many", request(all(5), 1, &[place; 4], &one)),
        ("other operands", asked(SUM, 1, place, &one[..7])),
        ("other operands", asked(SUM, 1, place, b"")),
        ("other operands", asked(SUM, 1, row(0, 2, KEY), &one)),
        ("other operands", asked(compare, 1, place, &one)),
        ("other operands", asked(read, 1, place, &one)),
        ("other operands", request(all(2), 1, &[place; 2], &one)),
        (
            "more than there may be",
            asked(read, 1, row(0, 2037, KEY), b""),
        ),
        (
            "more than there may be",
            asked(read, 1, row(0, u64::MAX, KEY), b""),
        ),
        (
            "more than there may be",
            asked(read, 1, row(0, 1 << 61, KEY), b""),
        ),
        (
            "more than there may be",
            request(
                Atomic {
                    rows: 2,
                    ..Atomic::of(read)
                },
                1,
                &[row(0, 1019, KEY); 2],
                b"",
            ),
        ),
        ("no atomic operation", response(0, &body(0, 8, &one))),
    ];
    for (why, bytes) in cases {
        let mut receiver = of_rxm();
        let Broken(what) = receiver.take(&bytes).unwrap_err();
        assert!(what.contains(why), "{what} for {why}");
        assert_eq!(bytes_of(&receiver), [0; 200], "{why}");
    }
}

#[test]
fn what_is_no_response_ends_the_connection() {
    let one = [7; 8];
    let cases = [
        ("no atomic operation", response(1, &body(0, 8, &one))),
        ("as long as it says", response(0, &body(0, 8, &one)[..7])),
        ("as long as it says", response(0, b"")),
        ("as long as it says", response(0, &body(0, 7, &one))),
        ("as long as it says", response(0, &body(0, u32::MAX, &one))),
        ("longer than a packet", response(0, &vec![0; EAGER + 1])),
        ("another length", response(0, &body(0, 7, &one[..7]))),
        ("another length", response(0, &body(0, 0, b""))),
    ];
    for (why, bytes) in cases {
        let what = refused(OpKind::FetchAtomic, &bytes);
        assert!(what.contains(why), "{what} for {why}");
    }
    let what = refused(OpKind::Atomic, &response(0, &body(0, 8, &one)));
    assert!(
        what.contains("another length"),
        "{what}: nothing was to be fetched"
    );
    let twice = [
        response(0, &body(0, 8, &one)),
        response(0, &body(0, 8, &one)),
    ]
    .concat();
    let mut receiver = of_rxm();
    let (op, _) = receiver.asks_atomically(OpKind::FetchAtomic, 8);
    assert!(receiver.take(&twice).is_err());
    assert_eq!(receiver.got(op).1, one);
}

/// Responses bear numbers, so they may come in any order, and end the operation that they are to.
#[test]
fn every_operation_has_its_response() {
    let mut receiver = of_rxm();
    let ops = [
        OpKind::FetchAtomic,
        OpKind::Atomic,
        OpKind::FetchAtomic,
        OpKind::Atomic,
    ]
    .map(|kind| receiver.asks_atomically(kind, 8).0);
    let read = receiver.asks_to_read(3);
    let stream = [
        response(2, &body(0, 8, &[2; 8])),
        response(3, &body(-95, 0, b"")),
        hex("03 03 0000 00 00 10 00 1300000000000000 616263"),
        response(1, &body(0, 0, b"")),
        response(0, &body(-5, 0, b"")),
    ];
    receiver.take(&stream.concat()).unwrap();
    assert_eq!(
        (receiver.got(ops[2]).1, receiver.got(read).1),
        (&[2; 8][..], &b"abc"[..])
    );
    let done = receiver.end(ops[1]).unwrap();
    assert_eq!((done.transfer.len, &done.error), (8, &None));
    let error = |op| receiver.end(op).unwrap().error.as_deref().cloned();
    assert!(matches!(error(ops[3]), Some(Error::NotSupported(_))));
    assert_eq!(error(ops[0]), Some(Error::os("fi_atomic of the peer", 5)));
    assert!(receiver.inbox.asked.is_empty());
}

/// A wrong one changes nothing, in none of its places, and what comes behind it is done.
#[test]
fn what_is_wrong_is_refused_alone() {
    let one = 1u64.to_ne_bytes();
    let two = [one, one].concat();
    let place = row(8, 1, KEY);
    let atomic = Atomic::of(SUM);
    let cases = [
        (-13, request(atomic, 9, &[row(8, 1, 99)], &one)),
        (-13, request(atomic, 9, &[row(8, 1, READABLE)], &one)),
        (
            -13,
            request(Atomic::of(BASE), 9, &[row(8, 1, READABLE)], &one),
        ),
        (-13, request(atomic, 9, &[row(200, 1, KEY)], &one)),
        (-13, request(atomic, 9, &[row(u64::MAX, 1, KEY)], &one)),
        (-22, request(atomic, 9, &[row(12, 1, KEY)], &one)),
        (
            -13,
            request(
                Atomic { rows: 2, ..atomic },
                9,
                &[place, row(8, 1, 99)],
                &two,
            ),
        ),
        (
            -95,
            request(
                Atomic {
                    datatype: 10,
                    ..atomic
                },
                9,
                &[place],
                &two,
            ),
        ),
        (-95, request(Atomic { op: 19, ..atomic }, 9, &[place], &one)),
        (-95, request(Atomic { op: 12, ..atomic }, 9, &[place], &one)),
        (
            -95,
            request(
                Atomic {
                    datatype: 9,
                    op: 6,
                    ..atomic
                },
                9,
                &[place],
                &one,
            ),
        ),
    ];
    for (number, bytes) in cases {
        let mut receiver = of_rxm();
        let stream = [bytes, asked(SUM, 10, place, &one)].concat();
        assert_eq!(receiver.take(&stream).unwrap().bytes, stream.len());
        assert_eq!(bytes_of(&receiver)[8..16], one, "{number}");
        let said = said(&mut receiver);
        assert_eq!(said[16 + 64..][..8], body(number, 0, b"")[..], "{number}");
        assert_eq!(said[16 + 16..][..8], 9u64.to_ne_bytes());
        assert!(said.len() == 2 * (16 + 64 + 8) + 8 && receiver.maps.told.is_empty());
    }
    // An endpoint that is nobody's target has no memory.
    let mut receiver = of_rxm();
    receiver.inbox.serve(EpId(0), false, false);
    receiver.take(&asked(SUM, 1, place, &one)).unwrap();
    assert_eq!(said(&mut receiver)[80..], body(-13, 0, b""));
}

/// As many values as libfabric sends, in as many places, and none at all; the owner is told of
/// each.
#[test]
fn rows_and_places() {
    let mut receiver = Receiver::with_memory(Order::NATIVE, 1 << 20, 20_000).in_rxm(HERE);
    receiver.inbox.serve(EpId(0), true, true);
    let values: Vec<u8> = (0..MOST_OPERANDS).map(|at| at as u8).collect();
    let bytes = AtomicSpec {
        datatype: Datatype::U8,
        op: AtomicOp::Write,
        call: AtomicCall::Fetch,
    };
    let most = asked(bytes, 1, row(3, MOST_OPERANDS as u64, KEY), &values);
    assert_eq!(most.len(), 16 + 64 + EAGER);
    for _ in 0..2 {
        assert_eq!(receiver.take(&most).unwrap().bytes, most.len());
    }
    let answers = said(&mut receiver);
    let (first, second) = answers.split_at(answers.len() / 2);
    assert!(first[88..].iter().all(|byte| *byte == 0) && second[88..] == values);
    assert_eq!(receiver.maps.told.len(), 2);
    assert_eq!(
        (receiver.maps.told[0].1, receiver.maps.told[0].2.len),
        (Deed::of(OpKind::FetchAtomic), MOST_OPERANDS)
    );

    let compare = AtomicSpec {
        datatype: Datatype::U16,
        op: AtomicOp::Cswap,
        call: AtomicCall::Compare,
    };
    let places = [
        row(0, 1, KEY),
        row(100, 2, KEY),
        row(50, 0, KEY),
        row(200, 1, KEY),
    ];
    let there = [7u16, 8, 9, 10].map(u16::to_ne_bytes);
    for (at, value) in [0, 100, 102, 200].into_iter().zip(there) {
        write_memory(&receiver, at, &value);
    }
    let (new, old) = (
        [1u16, 2, 3, 4].map(u16::to_ne_bytes),
        [7u16, 8, 0, 10].map(u16::to_ne_bytes),
    );
    let atomic = Atomic {
        rows: 4,
        ..Atomic::of(compare)
    };
    receiver
        .take(&request(
            atomic,
            1,
            &places,
            &[new.concat(), old.concat()].concat(),
        ))
        .unwrap();
    assert_eq!(said(&mut receiver)[88..], there.concat());
    let mut left = vec![0; 202];
    receiver.maps.region(KEY).unwrap().memory.read(0, &mut left);
    assert_eq!(
        [&left[..2], &left[100..104], &left[200..]].concat(),
        [1u16, 2, 9, 4].map(u16::to_ne_bytes).concat()
    );
    assert_eq!(receiver.maps.told.len(), 6);

    receiver.take(&asked(BASE, 1, row(8, 0, KEY), b"")).unwrap();
    assert_eq!(said(&mut receiver)[80..], body(0, 0, b""));
}

/// Memory that its owner has in hand is waited for, in all places, before anything is done.
#[test]
fn the_owner_has_it_in_hand() {
    let mut receiver = of_rxm();
    let memory = Arc::new(Registered::new(vec![0; 16].into_any()).unwrap());
    let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
    receiver
        .maps
        .regions
        .as_mut()
        .unwrap()
        .insert(memory.clone(), both, Some(9), false)
        .unwrap();
    let taken = memory.take().unwrap();
    let one = 1u64.to_ne_bytes();
    let two = Atomic {
        rows: 2,
        ..Atomic::of(SUM)
    };
    let stream = [
        request(
            two,
            1,
            &[row(0, 1, KEY), row(8, 1, 9)],
            &[one, one].concat(),
        ),
        asked(SUM, 2, row(0, 1, KEY), &one),
    ]
    .concat();
    for _ in 0..2 {
        let taken = receiver.take(&stream).unwrap();
        assert!(taken.held && taken.bytes == 0 && !receiver.inbox.has_aside());
        assert!(!receiver.wants(&stream));
    }
    memory.put(taken);
    assert!(receiver.wants(&stream));
    assert_eq!(receiver.take(&stream).unwrap().bytes, stream.len());
    assert_eq!(bytes_of(&receiver)[0], 2);
    assert_eq!(memory.take().unwrap().bytes()[8], 1);
    // It is the owner's again, and no access is left under way.
    let mut both = receiver.answers(&mut outbox(), 1 << 20).unwrap();
    assert_eq!(
        (both.1, both.0.split_off(88 + 16 + 88)),
        (Replying::Nothing, one.to_vec())
    );
}

/// A message that nobody wants holds up no atomic operation, and a peer that reads no responses is
/// not listened to for ever.
#[test]
fn what_else_goes_on() {
    let mut receiver = Receiver::of_rxm(100, HERE);
    let one = 1u64.to_ne_bytes();
    receiver.inbox.be_patient(Patience::None);
    let eager = packet(PacketKind::Eager, 0, 1000, &[1; 1000]);
    let (op, number) = receiver.asks_atomically(OpKind::FetchAtomic, 8);
    let stream = [
        eager,
        asked(SUM, 1, row(0, 1, KEY), &one),
        response(number, &body(0, 8, &[3; 8])),
    ]
    .concat();
    assert_eq!(receiver.take(&stream).unwrap().bytes, stream.len());
    assert!(receiver.inbox.has_aside());
    assert_eq!(
        (bytes_of(&receiver)[0], receiver.got(op).1),
        (1, &[3; 8][..])
    );
    let message = receiver.post(UNTAGGED, None);
    receiver.take(b"").unwrap();
    assert_eq!(receiver.got(message).1, [1; 1000]);

    let _ = said(&mut receiver);
    let request = asked(SUM, 1, row(0, 1, KEY), &one);
    let mut count = 0;
    while receiver.take(&request).unwrap().bytes > 0 {
        count += 1;
        assert!(count < 10_000, "it is not listened to for ever");
    }
    let taken = receiver.take(&request).unwrap();
    assert!(taken.is_full && !taken.held);
    assert_eq!(said(&mut receiver).len(), count * (16 + 64 + 16));
    assert_eq!(receiver.take(&request).unwrap().bytes, request.len());
}

/// Reads and writes are frames between the packets; what they must not do ends the connection, as
/// natively.
#[test]
fn reads_and_writes_are_frames() {
    let place = |key, offset, len| Remote {
        key,
        offset,
        len,
        atomic: None,
    };
    let frame = |frame: &Frame, rows: &Rows, bytes: &[u8]| {
        let mut outbox = outbox();
        assert!(outbox.push_frame(frame, rows, Payload::Whole(bytes)));
        outbox.pending().to_vec()
    };
    let write = |key, offset, bytes: &[u8]| {
        let rows = Rows::of(&[place(key, offset, bytes.len())]).unwrap();
        frame(&Frame::write(&rows, None, bytes.len()), &rows, bytes)
    };
    let read = |key, offset, len| {
        let rows = Rows::of(&[place(key, offset, len)]).unwrap();
        frame(&Frame::read(&rows), &rows, b"")
    };
    let eager = packet(PacketKind::Eager, 0, 3, b"abc");
    let stream = [write(KEY, 10, b"hello"), eager, read(KEY, 11, 3)].concat();
    for at in 0..stream.len() {
        let mut receiver = of_rxm();
        let message = receiver.post(UNTAGGED, None);
        cut(&mut receiver, &stream, at);
        assert_eq!(receiver.got(message).1, b"abc");
        assert_eq!(said(&mut receiver)[16..], b"ell"[..]);
    }
    for bytes in [
        write(99, 0, b"x"),
        write(READABLE, 0, b"x"),
        write(KEY, 199, b"xy"),
        read(99, 0, 1),
        read(KEY, 200, 1),
    ] {
        let mut receiver = of_rxm();
        let Broken(what) = receiver.take(&bytes).unwrap_err();
        assert!(what.contains("may not reach"), "{what}");
        // Kin are told, and go on.
        let mut receiver = of_rxm();
        receiver.inbox.kin();
        assert_eq!(receiver.take(&bytes).unwrap().bytes, bytes.len());
    }
    let mut receiver = of_rxm();
    assert!(
        receiver
            .take(&hex("03 00 0000 02 00 10 00 1000000000000000"))
            .is_err(),
        "nothing was written"
    );
}
