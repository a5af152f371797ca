//! RXM atomic operations and their responses, and RMA frames between the packets.

use std::sync::Arc;

use fabric_core::Error;
use fabric_core::atomic::{AtomicCall, AtomicOp, AtomicSpec, Datatype};
use fabric_core::buf::{IoBuf, Payload};
use fabric_core::completion::OpKind;
use fabric_core::flags::Access;
use fabric_core::mr::RegisteredMemory;
use fabric_core::tcp::rxm::{
    AtomicHeader, EAGER_LIMIT, MAX_OPERAND_BYTES, PacketKind, RxmPacket, RxmSender,
};
use fabric_core::tcp::{
    ByteOrder, Frame, FrameWriter, ProtocolViolation, ResponseStatus, RmaIovList, StopReason,
    UnexpectedPolicy, WireRmaIov,
};
use fabric_core::transport::{RemoteAccess, RmaIov};
use proptest::prelude::*;

use crate::receiver::{READ_ONLY_KEY, READ_WRITE_KEY, TcpReceiver, UNTAGGED, context_of};
use crate::{hex, largest_allocation};

/// Connection id of the packets.
const CONNECTION_ID: u32 = 5;

/// Captured from libfabric 1.17: a fetching sum of 5 on the value at 8; its response; an error
/// response.
const FETCH_BYTES: &str = "03 00 0000 00 00 10 00 b800000000000000 \
    0404 0000 00000000 0500000000000000 0200000000000000 \
    0000000000000000 0200 0700 00000000 6800000000000000 0000000000000000 0702010000000000 \
    0800000000000000 0100000000000000 0700000000000000 \
    000000000000000000000000000000000000000000000000 \
    000000000000000000000000000000000000000000000000 \
    000000000000000000000000000000000000000000000000 \
    0500000000000000";
const RESPONSE_BYTES: &str = "03 00 0000 00 00 10 00 6000000000000000 \
    0405 0000 00000000 0500000000000000 0200000000000000 \
    0000000000000000 0200 0700 00000000 1000000000000000 0000000000000000 0702000000000000 \
    00000000 00000008 4648474e555c636a";
const ERROR_RESPONSE_BYTES: &str = "03 00 0000 00 00 10 00 5800000000000000 \
    0405 0000 00000000 0500000000000000 0200000000000000 \
    0000000000000000 0200 0700 00000000 0800000000000000 0000000000000000 0702000000000000 \
    fffffff3 00000000";

const FETCH_SUM: AtomicSpec = AtomicSpec {
    op: AtomicOp::Sum,
    datatype: Datatype::U64,
    call: AtomicCall::Fetch,
};
const BASE_SUM: AtomicSpec = AtomicSpec {
    call: AtomicCall::Base,
    ..FETCH_SUM
};

fn rxm_writer() -> FrameWriter {
    FrameWriter::with_rxm(ByteOrder::NATIVE, RxmSender::new(CONNECTION_ID))
}

fn rxm_receiver() -> TcpReceiver {
    TcpReceiver::rxm(1 << 20, CONNECTION_ID)
}

fn rma_iov(addr: u64, len: u64, key: u64) -> WireRmaIov {
    WireRmaIov { addr, len, key }
}

/// Encodes a packet of this type with this length field and body.
fn encode_packet(kind: PacketKind, message_id: u64, len: u64, body: &[u8]) -> Vec<u8> {
    let mut writer = rxm_writer();
    let packet = RxmPacket {
        kind,
        connection_id: CONNECTION_ID,
        message_id,
        tag: None,
        data: None,
        len,
    };
    assert!(writer.push_packet(&packet, Payload::Contiguous(body)));
    writer.pending().to_vec()
}

/// Encodes an atomic operation on these remote ranges.
fn encode_atomic(atomic: AtomicHeader, id: u64, iovs: &[WireRmaIov], operands: &[u8]) -> Vec<u8> {
    let words = iovs
        .iter()
        .flat_map(|iov| [iov.addr, iov.len, iov.key])
        .flat_map(u64::to_ne_bytes);
    let mut body: Vec<u8> = words.collect();
    body.resize(96, 0xaa); // the bytes behind the remote ranges are ignored
    body.extend_from_slice(operands);
    encode_packet(PacketKind::Atomic(atomic), id, body.len() as u64, &body)
}

/// Encodes an atomic operation on one remote range.
fn encode_atomic_on(spec: AtomicSpec, id: u64, iov: WireRmaIov, operands: &[u8]) -> Vec<u8> {
    encode_atomic(AtomicHeader::from_spec(spec), id, &[iov], operands)
}

/// Encodes a response with this body.
fn encode_response(id: u64, body: &[u8]) -> Vec<u8> {
    encode_packet(
        PacketKind::AtomicResponse(AtomicHeader::from_spec(FETCH_SUM).for_response()),
        id,
        body.len() as u64,
        body,
    )
}

fn response_body(status: i32, len: u32, fetched: &[u8]) -> Vec<u8> {
    [&status.to_be_bytes()[..], &len.to_be_bytes(), fetched].concat()
}

fn write_region(receiver: &TcpReceiver, at: usize, bytes: &[u8]) {
    receiver.memory_of(READ_WRITE_KEY).write(at, bytes);
}

fn region_bytes(receiver: &TcpReceiver) -> Vec<u8> {
    let mut bytes = vec![0; 200];
    receiver.memory_of(READ_WRITE_KEY).read(0, &mut bytes);
    bytes
}

/// Returns the responses to all requests so far.
fn responses(receiver: &mut TcpReceiver) -> Vec<u8> {
    receiver
        .take_responses(&mut rxm_writer(), 1 << 20)
        .unwrap()
        .0
}

/// Reads the bytes in two parts.
fn read_split(receiver: &mut TcpReceiver, bytes: &[u8], at: usize) {
    let consumed = receiver.read(&bytes[..at]).unwrap().consumed;
    assert_eq!(
        consumed + receiver.read(&bytes[consumed..]).unwrap().consumed,
        bytes.len(),
        "cut at {at}"
    );
}

/// Returns the violation for these bytes while an operation of this kind on eight bytes is pending.
fn violation_of(kind: OpKind, bytes: &[u8]) -> &'static str {
    let mut receiver = rxm_receiver();
    let (op, _) = receiver.expect_atomic(kind, 8);
    let ProtocolViolation(what) = receiver.read(bytes).unwrap_err();
    receiver.pending.fail(
        &mut context_of(&mut receiver.rx, &mut receiver.context),
        &Error::Canceled,
    );
    assert!(receiver.outcome(op).unwrap().error.is_some(), "{what}");
    what
}

#[test]
fn atomic_packets_match_libfabric_bytes() {
    if ByteOrder::NATIVE == ByteOrder::Big {
        return;
    }
    let mut writer = rxm_writer();
    let five = 5u64.to_ne_bytes();
    assert!(writer.push_atomic(
        (2, AtomicHeader::from_spec(FETCH_SUM)),
        rma_iov(8, 1, 7),
        Payload::Contiguous(&five)
    ));
    assert_eq!(writer.pending(), hex(FETCH_BYTES));
    for at in 0..hex(FETCH_BYTES).len() {
        let mut receiver = rxm_receiver();
        write_region(&receiver, 8, &hex("4648474e555c636a"));
        read_split(&mut receiver, &hex(FETCH_BYTES), at);
        assert_eq!(
            region_bytes(&receiver)[8..16],
            hex("4b48474e555c636a"),
            "cut at {at}"
        );
        assert_eq!(responses(&mut receiver), hex(RESPONSE_BYTES));
        // Without a valid key the operation is rejected, and the connection stays.
        receiver
            .context
            .services
            .regions
            .as_mut()
            .unwrap()
            .remove(READ_WRITE_KEY);
        read_split(&mut receiver, &hex(FETCH_BYTES), at);
        assert_eq!(responses(&mut receiver), hex(ERROR_RESPONSE_BYTES));
    }
    for at in 0..hex(RESPONSE_BYTES).len() {
        let mut receiver = rxm_receiver();
        let ops = [(); 3].map(|()| receiver.expect_atomic(OpKind::FetchAtomic, 8));
        assert_eq!(ops[2].1, 2);
        read_split(&mut receiver, &hex(RESPONSE_BYTES), at);
        assert_eq!(receiver.received(ops[2].0).1, hex("4648474e555c636a"));
        assert!(receiver.outcome(ops[0].0).is_none() && receiver.pending.has_atomics());
    }
    for at in 0..hex(ERROR_RESPONSE_BYTES).len() {
        let mut receiver = rxm_receiver();
        let ops = [(); 3].map(|()| receiver.expect_atomic(OpKind::FetchAtomic, 8));
        read_split(&mut receiver, &hex(ERROR_RESPONSE_BYTES), at);
        let error = receiver.outcome(ops[2].0).unwrap().error.clone();
        assert!(
            matches!(
                error.as_deref(),
                Some(Error::Key {
                    key: READ_WRITE_KEY,
                    ..
                })
            ),
            "{error:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 200 }))]

    #[test]
    fn atomic_packet_headers_round_trip(
        call in prop_oneof![
            Just(AtomicCall::Base), Just(AtomicCall::Fetch), Just(AtomicCall::Compare)
        ],
        datatype: u8, op: u8, rma_iov_count: u8, is_response: bool,
        connection_id: u32, message_id: u64, len: u64,
    ) {
        let atomic = AtomicHeader { call, datatype, op, rma_iov_count };
        let kind = if is_response {
            PacketKind::AtomicResponse(atomic)
        } else {
            PacketKind::Atomic(atomic)
        };
        let packet = RxmPacket { kind, connection_id, message_id, tag: None, data: None, len };
        prop_assert_eq!(RxmPacket::decode(&packet.encode()), Ok(packet));
        prop_assert!(!packet.kind.is_message());
    }

    /// Any request is executed, rejected, or ends the connection; announced lengths use no memory.
    #[test]
    fn random_atomics_are_rejected_or_wait_for_more_bytes(
        call in prop_oneof![
            Just(AtomicCall::Base), Just(AtomicCall::Fetch), Just(AtomicCall::Compare)
        ],
        datatype in 0..12u8, op in 0..22u8, rma_iov_count in 0..6u8,
        iovs in prop::collection::vec(
            (0..220u64, prop_oneof![0..30u64, Just(u64::MAX), any::<u64>()], 6..9u64),
            0..5,
        ),
        operands in prop::collection::vec(any::<u8>(), 0..100),
        response in prop::collection::vec(any::<u8>(), 0..40),
        cut in 0..400usize,
    ) {
        let to_iov = |(addr, len, key)| rma_iov(addr, len, key);
        let iovs: Vec<_> = iovs.into_iter().map(to_iov).collect();
        let atomic = AtomicHeader { call, datatype, op, rma_iov_count };
        let request = encode_atomic(atomic, 0, &iovs, &operands);
        let bytes = [request, encode_response(0, &response)].concat();
        let cut = cut.min(bytes.len());
        let mut receiver = rxm_receiver();
        let (op, _) = receiver.expect_atomic(OpKind::FetchAtomic, 8);
        let largest = largest_allocation(|| {
            if let Ok(outcome) = receiver.read(&bytes[..cut]) {
                assert!(outcome.stop_reason != StopReason::Held);
                let _ = receiver.read(&bytes[outcome.consumed..]);
            }
            let _ = responses(&mut receiver);
        });
        prop_assert!(largest <= 64 << 10, "{largest}");
        let mut ctx = context_of(&mut receiver.rx, &mut receiver.context);
        receiver.pending.fail(&mut ctx, &Error::Canceled);
        prop_assert!(receiver.outcome(op).is_some());
    }
}

#[test]
fn invalid_atomic_requests_close_connection() {
    let iov = rma_iov(0, 1, READ_WRITE_KEY);
    let (one, many) = ([0; 8], vec![0; MAX_OPERAND_BYTES + 8]);
    let with_iov_count = |rma_iov_count| AtomicHeader {
        rma_iov_count,
        ..AtomicHeader::from_spec(FETCH_SUM)
    };
    let compare = AtomicSpec {
        op: AtomicOp::Cswap,
        call: AtomicCall::Compare,
        ..FETCH_SUM
    };
    let read = AtomicSpec {
        op: AtomicOp::Read,
        ..FETCH_SUM
    };
    let with = |mut bytes: Vec<u8>, at: usize, byte: u8| {
        bytes[16 + at] = byte;
        bytes
    };
    let good = || encode_atomic_on(FETCH_SUM, 1, iov, &one);
    let cases = [
        ("version", with(good(), 32, 3)),
        ("unknown operation code", with(good(), 34, 0)),
        ("unknown operation code", with(good(), 34, 5)),
        ("unknown operation code", with(good(), 34, 9)),
        (
            "of the wrong length",
            encode_packet(PacketKind::Atomic(with_iov_count(1)), 1, 95, &[0; 95]),
        ),
        (
            "of the wrong length",
            encode_packet(PacketKind::Atomic(with_iov_count(1)), 1, 0, b""),
        ),
        (
            "longer than the eager limit",
            encode_atomic_on(FETCH_SUM, 1, rma_iov(0, 2037, READ_WRITE_KEY), &many),
        ),
        ("length field", with(good(), 40, 105)),
        (
            "is not 1 to 4",
            encode_atomic(with_iov_count(0), 1, &[], &one),
        ),
        (
            "is not 1 to 4",
            encode_atomic(with_iov_count(5), 1, &[iov; 4], &one),
        ),
        (
            "operands of the wrong length",
            encode_atomic_on(FETCH_SUM, 1, iov, &one[..7]),
        ),
        (
            "operands of the wrong length",
            encode_atomic_on(FETCH_SUM, 1, iov, b""),
        ),
        (
            "operands of the wrong length",
            encode_atomic_on(FETCH_SUM, 1, rma_iov(0, 2, READ_WRITE_KEY), &one),
        ),
        (
            "operands of the wrong length",
            encode_atomic_on(compare, 1, iov, &one),
        ),
        (
            "operands of the wrong length",
            encode_atomic_on(read, 1, iov, &one),
        ),
        (
            "operands of the wrong length",
            encode_atomic(with_iov_count(2), 1, &[iov; 2], &one),
        ),
        (
            "too many bytes",
            encode_atomic_on(read, 1, rma_iov(0, 2037, READ_WRITE_KEY), b""),
        ),
        (
            "too many bytes",
            encode_atomic_on(read, 1, rma_iov(0, u64::MAX, READ_WRITE_KEY), b""),
        ),
        (
            "too many bytes",
            encode_atomic_on(read, 1, rma_iov(0, 1 << 61, READ_WRITE_KEY), b""),
        ),
        (
            "too many bytes",
            encode_atomic(
                AtomicHeader {
                    rma_iov_count: 2,
                    ..AtomicHeader::from_spec(read)
                },
                1,
                &[rma_iov(0, 1019, READ_WRITE_KEY); 2],
                b"",
            ),
        ),
        (
            "unsolicited response",
            encode_response(0, &response_body(0, 8, &one)),
        ),
    ];
    for (expected, bytes) in cases {
        let mut receiver = rxm_receiver();
        let ProtocolViolation(what) = receiver.read(&bytes).unwrap_err();
        assert!(what.contains(expected), "{what} for {expected}");
        assert_eq!(region_bytes(&receiver), [0; 200], "{expected}");
    }
}

#[test]
fn atomic_response_is_found_behind_packets_of_messages() {
    let receiver = rxm_receiver();
    let may_contain = |bytes: &[u8], unread| receiver.reader.may_contain_response(bytes, unread);
    let messages = encode_packet(PacketKind::Eager, 1, 8, &[1; 8]).repeat(2);
    assert!(!may_contain(&messages, 0) && may_contain(&messages, 1));
    let done = encode_packet(PacketKind::RendezvousDone, 1, 0, &[]);
    for response in [hex(RESPONSE_BYTES), done] {
        let bytes = [&messages, &response[..]].concat();
        assert!(may_contain(&bytes, 0));
        // The packet header is incomplete.
        assert!(may_contain(&bytes[..messages.len() + 20], 0));
    }
}

#[test]
fn invalid_atomic_responses_close_connection() {
    let one = [7; 8];
    let cases = [
        (
            "unsolicited response",
            encode_response(1, &response_body(0, 8, &one)),
        ),
        (
            "length field",
            encode_response(0, &response_body(0, 8, &one)[..7]),
        ),
        ("length field", encode_response(0, b"")),
        (
            "length field",
            encode_response(0, &response_body(0, 7, &one)),
        ),
        (
            "length field",
            encode_response(0, &response_body(0, u32::MAX, &one)),
        ),
        (
            "longer than the eager limit",
            encode_response(0, &vec![0; EAGER_LIMIT + 1]),
        ),
        (
            "has the wrong length",
            encode_response(0, &response_body(0, 7, &one[..7])),
        ),
        (
            "has the wrong length",
            encode_response(0, &response_body(0, 0, b"")),
        ),
    ];
    for (expected, bytes) in cases {
        let what = violation_of(OpKind::FetchAtomic, &bytes);
        assert!(what.contains(expected), "{what} for {expected}");
    }
    let what = violation_of(
        OpKind::Atomic,
        &encode_response(0, &response_body(0, 8, &one)),
    );
    assert!(
        what.contains("has the wrong length"),
        "{what}: the operation fetches nothing"
    );
    let twice = [
        encode_response(0, &response_body(0, 8, &one)),
        encode_response(0, &response_body(0, 8, &one)),
    ]
    .concat();
    let mut receiver = rxm_receiver();
    let (op, _) = receiver.expect_atomic(OpKind::FetchAtomic, 8);
    assert!(receiver.read(&twice).is_err());
    assert_eq!(receiver.received(op).1, one);
}

/// Responses carry ids, so they may arrive in any order and complete the operation with that id.
#[test]
fn responses_match_operations_by_id() {
    let mut receiver = rxm_receiver();
    let ops = [
        OpKind::FetchAtomic,
        OpKind::Atomic,
        OpKind::FetchAtomic,
        OpKind::Atomic,
    ]
    .map(|kind| receiver.expect_atomic(kind, 8).0);
    let read = receiver.expect_read(3);
    let stream = [
        encode_response(2, &response_body(0, 8, &[2; 8])),
        encode_response(3, &response_body(-95, 0, b"")),
        hex("03 03 0000 00 00 10 00 1300000000000000 616263"),
        encode_response(1, &response_body(0, 0, b"")),
        encode_response(0, &response_body(-5, 0, b"")),
    ];
    receiver.read(&stream.concat()).unwrap();
    assert_eq!(
        (receiver.received(ops[2]).1, receiver.received(read).1),
        (&[2; 8][..], &b"abc"[..])
    );
    let done = receiver.outcome(ops[1]).unwrap();
    assert_eq!((done.transfer.len, &done.error), (8, &None));
    let error = |op| receiver.outcome(op).unwrap().error.as_deref().cloned();
    assert!(matches!(error(ops[3]), Some(Error::NotSupported(_))));
    assert_eq!(error(ops[0]), Some(Error::os("fi_atomic of the peer", 5)));
    assert!(receiver.pending.is_empty());
}

/// A failed operation changes no remote range, and the operation behind it is executed.
#[test]
fn failed_atomic_returns_error_and_changes_nothing() {
    let one = 1u64.to_ne_bytes();
    let two = [one, one].concat();
    let iov = rma_iov(8, 1, READ_WRITE_KEY);
    let atomic = AtomicHeader::from_spec(FETCH_SUM);
    let cases = [
        (-13, encode_atomic(atomic, 9, &[rma_iov(8, 1, 99)], &one)),
        (
            -13,
            encode_atomic(atomic, 9, &[rma_iov(8, 1, READ_ONLY_KEY)], &one),
        ),
        (
            -13,
            encode_atomic(
                AtomicHeader::from_spec(BASE_SUM),
                9,
                &[rma_iov(8, 1, READ_ONLY_KEY)],
                &one,
            ),
        ),
        (
            -13,
            encode_atomic(atomic, 9, &[rma_iov(200, 1, READ_WRITE_KEY)], &one),
        ),
        (
            -13,
            encode_atomic(atomic, 9, &[rma_iov(u64::MAX, 1, READ_WRITE_KEY)], &one),
        ),
        (
            -22,
            encode_atomic(atomic, 9, &[rma_iov(12, 1, READ_WRITE_KEY)], &one),
        ),
        (
            -13,
            encode_atomic(
                AtomicHeader {
                    rma_iov_count: 2,
                    ..atomic
                },
                9,
                &[iov, rma_iov(8, 1, 99)],
                &two,
            ),
        ),
        (
            -95,
            encode_atomic(
                AtomicHeader {
                    datatype: 12,
                    ..atomic
                },
                9,
                &[iov],
                &two,
            ),
        ),
        (
            -95,
            encode_atomic(AtomicHeader { op: 19, ..atomic }, 9, &[iov], &one),
        ),
        (
            -95,
            encode_atomic(AtomicHeader { op: 12, ..atomic }, 9, &[iov], &one),
        ),
        (
            -95,
            encode_atomic(
                AtomicHeader {
                    datatype: 9,
                    op: 6,
                    ..atomic
                },
                9,
                &[iov],
                &one,
            ),
        ),
    ];
    for (status, bytes) in cases {
        let mut receiver = rxm_receiver();
        let stream = [bytes, encode_atomic_on(FETCH_SUM, 10, iov, &one)].concat();
        assert_eq!(receiver.read(&stream).unwrap().consumed, stream.len());
        assert_eq!(region_bytes(&receiver)[8..16], one, "{status}");
        let sent = responses(&mut receiver);
        assert_eq!(
            sent[16 + 64..][..8],
            response_body(status, 0, b"")[..],
            "{status}"
        );
        assert_eq!(sent[16 + 16..][..8], 9u64.to_ne_bytes());
        assert!(
            sent.len() == 2 * (16 + 64 + 8) + 8
                && receiver.context.services.remote_accesses.is_empty()
        );
    }
    // An endpoint that is no RMA target exposes no memory.
    let mut receiver = rxm_receiver();
    receiver.responses.enable_rma_target(false, false);
    receiver
        .read(&encode_atomic_on(FETCH_SUM, 1, iov, &one))
        .unwrap();
    assert_eq!(responses(&mut receiver)[80..], response_body(-13, 0, b""));
}

/// The maximum number of values in the maximum number of remote ranges, and no value at all; the
/// owner gets an event for each range.
#[test]
fn atomic_arrays_span_several_segments() {
    let mut receiver =
        TcpReceiver::with_region_len(ByteOrder::NATIVE, 1 << 20, 20_000).into_rxm(CONNECTION_ID);
    receiver.responses.enable_rma_target(true, true);
    let values: Vec<u8> = (0..MAX_OPERAND_BYTES).map(|at| at as u8).collect();
    let bytes = AtomicSpec {
        datatype: Datatype::U8,
        op: AtomicOp::Write,
        call: AtomicCall::Fetch,
    };
    let largest = encode_atomic_on(
        bytes,
        1,
        rma_iov(3, MAX_OPERAND_BYTES as u64, READ_WRITE_KEY),
        &values,
    );
    assert_eq!(largest.len(), 16 + 64 + EAGER_LIMIT);
    for _ in 0..2 {
        assert_eq!(receiver.read(&largest).unwrap().consumed, largest.len());
    }
    let response_bytes = responses(&mut receiver);
    let (first, second) = response_bytes.split_at(response_bytes.len() / 2);
    assert!(first[88..].iter().all(|byte| *byte == 0) && second[88..] == values);
    assert_eq!(receiver.context.services.remote_accesses.len(), 2);
    assert_eq!(
        (
            receiver.context.services.remote_accesses[0].1,
            receiver.context.services.remote_accesses[0].2.len
        ),
        (
            RemoteAccess::from_kind(OpKind::FetchAtomic),
            MAX_OPERAND_BYTES
        )
    );

    let compare = AtomicSpec {
        datatype: Datatype::U16,
        op: AtomicOp::Cswap,
        call: AtomicCall::Compare,
    };
    let iovs = [
        rma_iov(0, 1, READ_WRITE_KEY),
        rma_iov(100, 2, READ_WRITE_KEY),
        rma_iov(50, 0, READ_WRITE_KEY),
        rma_iov(200, 1, READ_WRITE_KEY),
    ];
    let current = [7u16, 8, 9, 10].map(u16::to_ne_bytes);
    for (at, value) in [0, 100, 102, 200].into_iter().zip(current) {
        write_region(&receiver, at, &value);
    }
    let (new, old) = (
        [1u16, 2, 3, 4].map(u16::to_ne_bytes),
        [7u16, 8, 0, 10].map(u16::to_ne_bytes),
    );
    let atomic = AtomicHeader {
        rma_iov_count: 4,
        ..AtomicHeader::from_spec(compare)
    };
    receiver
        .read(&encode_atomic(
            atomic,
            1,
            &iovs,
            &[new.concat(), old.concat()].concat(),
        ))
        .unwrap();
    assert_eq!(responses(&mut receiver)[88..], current.concat());
    let mut after = vec![0; 202];
    receiver.memory_of(READ_WRITE_KEY).read(0, &mut after);
    assert_eq!(
        [&after[..2], &after[100..104], &after[200..]].concat(),
        [1u16, 2, 9, 4].map(u16::to_ne_bytes).concat()
    );
    assert_eq!(receiver.context.services.remote_accesses.len(), 6);

    receiver
        .read(&encode_atomic_on(
            BASE_SUM,
            1,
            rma_iov(8, 0, READ_WRITE_KEY),
            b"",
        ))
        .unwrap();
    assert_eq!(responses(&mut receiver)[80..], response_body(0, 0, b""));
}

/// An operation waits for all regions that are locked by their owner before it changes any.
#[test]
fn atomics_wait_while_owner_holds_the_buffer() {
    let mut receiver = rxm_receiver();
    let memory = Arc::new(RegisteredMemory::new(vec![0; 16].into_any()).unwrap());
    let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
    receiver
        .context
        .services
        .regions
        .as_mut()
        .unwrap()
        .insert(memory.clone(), 0, both, Some(9))
        .unwrap();
    let buf = memory.take().unwrap();
    let one = 1u64.to_ne_bytes();
    let two = AtomicHeader {
        rma_iov_count: 2,
        ..AtomicHeader::from_spec(FETCH_SUM)
    };
    let stream = [
        encode_atomic(
            two,
            1,
            &[rma_iov(0, 1, READ_WRITE_KEY), rma_iov(8, 1, 9)],
            &[one, one].concat(),
        ),
        encode_atomic_on(FETCH_SUM, 2, rma_iov(0, 1, READ_WRITE_KEY), &one),
    ]
    .concat();
    for _ in 0..2 {
        let outcome = receiver.read(&stream).unwrap();
        assert!(
            outcome.stop_reason == StopReason::Held
                && outcome.consumed == 0
                && !receiver.reader.has_set_aside()
        );
        assert!(!receiver.try_resume(&stream));
    }
    memory.put_back(buf);
    assert!(receiver.try_resume(&stream));
    assert_eq!(receiver.read(&stream).unwrap().consumed, stream.len());
    assert_eq!(region_bytes(&receiver)[0], 2);
    assert_eq!(memory.take().unwrap().bytes()[8], 1);
    // The owner has its buffer again, and no access is in progress.
    let mut responses = receiver.take_responses(&mut rxm_writer(), 1 << 20).unwrap();
    assert_eq!(
        (responses.1, responses.0.split_off(88 + 16 + 88)),
        (ResponseStatus::Idle, one.to_vec())
    );
}

/// A message set aside blocks no atomic operation, and the number of queued responses is bounded.
#[test]
fn atomics_pass_messages_set_aside_and_are_bounded() {
    let mut receiver = TcpReceiver::rxm(100, CONNECTION_ID);
    let one = 1u64.to_ne_bytes();
    receiver
        .reader
        .set_unexpected_policy(UnexpectedPolicy::Buffer);
    let eager = encode_packet(PacketKind::Eager, 0, 1000, &[1; 1000]);
    let (op, id) = receiver.expect_atomic(OpKind::FetchAtomic, 8);
    let stream = [
        eager,
        encode_atomic_on(FETCH_SUM, 1, rma_iov(0, 1, READ_WRITE_KEY), &one),
        encode_response(id, &response_body(0, 8, &[3; 8])),
    ]
    .concat();
    assert_eq!(receiver.read(&stream).unwrap().consumed, stream.len());
    assert!(receiver.reader.has_set_aside());
    assert_eq!(
        (region_bytes(&receiver)[0], receiver.received(op).1),
        (1, &[3; 8][..])
    );
    let message = receiver.post_recv(UNTAGGED, None);
    receiver.read(b"").unwrap();
    assert_eq!(receiver.received(message).1, [1; 1000]);

    let _ = responses(&mut receiver);
    let request = encode_atomic_on(FETCH_SUM, 1, rma_iov(0, 1, READ_WRITE_KEY), &one);
    let mut count = 0;
    while receiver.read(&request).unwrap().consumed > 0 {
        count += 1;
        assert!(count < 10_000, "the response queue is bounded");
    }
    let outcome = receiver.read(&request).unwrap();
    assert!(outcome.stop_reason == StopReason::ResponsesFull);
    assert_eq!(responses(&mut receiver).len(), count * (16 + 64 + 16));
    assert_eq!(receiver.read(&request).unwrap().consumed, request.len());
}

/// Reads and writes are frames between the packets; an invalid access ends the connection, as in
/// the native protocol.
#[test]
fn rma_frames_interleave_with_packets() {
    let iov = |key, offset, len| RmaIov {
        key,
        offset,
        len,
        atomic: None,
    };
    let frame = |frame: &Frame, iovs: &RmaIovList, bytes: &[u8]| {
        let mut writer = rxm_writer();
        assert!(writer.push_frame(frame, iovs, Payload::Contiguous(bytes)));
        writer.pending().to_vec()
    };
    let write = |key, offset, bytes: &[u8]| {
        let iovs = RmaIovList::from_rma_iovs(&[iov(key, offset, bytes.len())]).unwrap();
        frame(&Frame::write(&iovs, None, bytes.len()), &iovs, bytes)
    };
    let read = |key, offset, len| {
        let iovs = RmaIovList::from_rma_iovs(&[iov(key, offset, len)]).unwrap();
        frame(&Frame::read(&iovs), &iovs, b"")
    };
    let eager = encode_packet(PacketKind::Eager, 0, 3, b"abc");
    let stream = [
        write(READ_WRITE_KEY, 10, b"hello"),
        eager,
        read(READ_WRITE_KEY, 11, 3),
    ]
    .concat();
    for at in 0..stream.len() {
        let mut receiver = rxm_receiver();
        let message = receiver.post_recv(UNTAGGED, None);
        read_split(&mut receiver, &stream, at);
        assert_eq!(receiver.received(message).1, b"abc");
        assert_eq!(responses(&mut receiver)[16..], b"ell"[..]);
    }
    for bytes in [
        write(99, 0, b"x"),
        write(READ_ONLY_KEY, 0, b"x"),
        write(READ_WRITE_KEY, 199, b"xy"),
        read(99, 0, 1),
        read(READ_WRITE_KEY, 200, 1),
    ] {
        let mut receiver = rxm_receiver();
        let ProtocolViolation(what) = receiver.read(&bytes).unwrap_err();
        assert!(what.contains("may not access"), "{what}");
        // A same-implementation peer gets a nack, and the connection stays.
        let mut receiver = rxm_receiver();
        receiver.responses.set_same_implementation();
        assert_eq!(receiver.read(&bytes).unwrap().consumed, bytes.len());
    }
    let mut receiver = rxm_receiver();
    assert!(
        receiver
            .read(&hex("03 00 0000 02 00 10 00 1000000000000000"))
            .is_err(),
        "no write is pending"
    );
}
