//! Memory that is read and written, by peers of every kind, and everything that they must not do to
//! it.

use fabric_core::atomic::{AtomicCall, AtomicOp, AtomicSpec, Datatype};
use fabric_core::buf::{IoBuf, Payload};
use fabric_core::flags::Access;
use fabric_core::mr::{AccessError, RegisteredMemory};
use fabric_core::tcp::{
    AckDue, ByteOrder, Frame, FrameKind, FrameWriter, PeerCaps, ProtocolViolation, ResponseStatus,
    RmaIovList,
};
use fabric_core::transport::{RemoteAccess, RmaIov};
use fabric_core::{Error, FiAddr};
use proptest::prelude::*;
use std::sync::Arc;

use crate::receiver::{READ_ONLY_KEY, READ_WRITE_KEY, REGION_LEN, TcpReceiver, UNTAGGED};
use crate::{hex, largest_allocation};

/// What libfabric's provider has been seen to send: a write with an acknowledgement, and a
/// question, of two places each.
const WRITE_BYTES: &str = "03 04 0400 00 02 40 00 4800000000000000 \
    0a00000000000000 0300000000000000 0700000000000000 1400000000000000 0500000000000000 0700000000000000 \
    6162636465666768";
const READ_BYTES: &str = "03 02 0000 00 02 40 00 4000000000000000 \
    0a00000000000000 0300000000000000 0700000000000000 1400000000000000 0500000000000000 0700000000000000";
const READ_RSP_BYTES: &str = "03 03 0000 00 00 10 00 1800000000000000 6162636465666768";

fn rma_iov(key: u64, offset: u64, len: usize) -> RmaIov {
    RmaIov {
        key,
        offset,
        len,
        atomic: None,
    }
}

fn rma_target(is_kin: bool) -> TcpReceiver {
    let mut receiver = TcpReceiver::with_region_len(ByteOrder::Little, 1 << 20, REGION_LEN);
    if is_kin {
        receiver.reader.set_same_implementation();
    }
    receiver
}

/// The bytes of one frame.
fn encode_frame(frame: &Frame, places: &[RmaIov], bytes: &[u8]) -> Vec<u8> {
    let mut outbox = FrameWriter::new(ByteOrder::Little);
    assert!(outbox.push_frame(
        frame,
        &RmaIovList::from_rma_iovs(places).unwrap(),
        Payload::Contiguous(bytes)
    ));
    outbox.pending().to_vec()
}

fn encode_write(places: &[RmaIov], data: Option<u64>, bytes: &[u8]) -> Vec<u8> {
    encode_frame(
        &Frame::write(
            &RmaIovList::from_rma_iovs(places).unwrap(),
            data,
            bytes.len(),
        ),
        places,
        bytes,
    )
}

fn encode_read(places: &[RmaIov]) -> Vec<u8> {
    encode_frame(
        &Frame::read(&RmaIovList::from_rma_iovs(places).unwrap()),
        places,
        &[],
    )
}

/// What an owed answer says.
fn ack_kind(owed: AckDue) -> FrameKind {
    Frame::ack(owed).kind
}

/// Shows a stream in two pieces; what is owed for it.
fn read_split(
    receiver: &mut TcpReceiver,
    bytes: &[u8],
    at: usize,
) -> Result<Vec<AckDue>, ProtocolViolation> {
    let first = receiver.read(&bytes[..at])?;
    let rest = [&bytes[first.consumed..at], &bytes[at..]].concat();
    let second = receiver.read(&rest)?;
    assert_eq!(second.consumed, rest.len(), "cut at {at}");
    Ok(first.acks_due.into_iter().chain(second.acks_due).collect())
}

#[test]
fn write_is_executed_at_every_split() {
    assert_eq!(
        encode_write(
            &[
                rma_iov(READ_WRITE_KEY, 10, 3),
                rma_iov(READ_WRITE_KEY, 20, 5)
            ],
            None,
            b"abcdefgh"
        ),
        hex(WRITE_BYTES)
    );
    for is_kin in [false, true] {
        for at in 0..hex(WRITE_BYTES).len() {
            let mut owner = rma_target(is_kin);
            let owed = read_split(&mut owner, &hex(WRITE_BYTES), at).unwrap();
            assert_eq!(
                owed.into_iter().map(ack_kind).collect::<Vec<_>>(),
                [FrameKind::Ack],
                "cut at {at}"
            );
            let memory = owner.region_bytes(READ_WRITE_KEY);
            assert_eq!(
                (&memory[10..13], &memory[20..25], memory[13]),
                (&b"abc"[..], &b"defgh"[..], 0)
            );
            assert!(
                owner.context.remote_accesses.is_empty(),
                "nobody asked to be told"
            );
        }
    }
}

#[test]
fn read_is_answered_at_every_split() {
    assert_eq!(
        encode_read(&[
            rma_iov(READ_WRITE_KEY, 10, 3),
            rma_iov(READ_WRITE_KEY, 20, 5)
        ]),
        hex(READ_BYTES)
    );
    let asked = hex(READ_BYTES);
    for at in 0..asked.len() {
        let mut owner = rma_target(false);
        owner.read(&hex(WRITE_BYTES)).unwrap();
        read_split(&mut owner, &asked, at).unwrap();
        let (answer, replying) = owner
            .take_responses(&mut FrameWriter::new(ByteOrder::Little), 1 << 16)
            .unwrap();
        assert_eq!(
            (replying, &answer),
            (ResponseStatus::Idle, &hex(READ_RSP_BYTES))
        );
    }
    for is_kin in [false, true] {
        let mut owner = rma_target(is_kin);
        owner.read(&hex(WRITE_BYTES)).unwrap();
        owner.read(&asked).unwrap();
        let (answer, _) = owner
            .take_responses(&mut FrameWriter::new(ByteOrder::Little), 1 << 16)
            .unwrap();
        for at in 0..answer.len() {
            let mut asks = rma_target(is_kin);
            let op = asks.expect_read(8);
            read_split(&mut asks, &answer, at).unwrap();
            assert_eq!(asks.received(op).1, b"abcdefgh", "cut at {at}");
            assert!(asks.reader.pending.is_empty());
        }
    }
}

/// Long answers are made piece by piece, in order, and what is owed behind them comes behind them.
#[test]
fn read_responses_are_ordered_and_chunked() {
    for is_kin in [false, true] {
        let mut owner = rma_target(is_kin);
        let bytes: Vec<u8> = (0..REGION_LEN)
            .map(|at| (at * 7 + at / 256) as u8)
            .collect();
        owner
            .read(&encode_write(
                &[rma_iov(READ_WRITE_KEY, 0, REGION_LEN)],
                None,
                &bytes,
            ))
            .unwrap();
        let lens = [REGION_LEN, 0, 5, 20_000, REGION_LEN - 7];
        let mut stream: Vec<u8> = lens
            .iter()
            .flat_map(|len| encode_read(&[rma_iov(READ_WRITE_KEY, 0, *len)]))
            .collect();
        stream.extend(encode_write(&[rma_iov(READ_WRITE_KEY, 0, 0)], None, b""));
        let taken = owner.read(&stream).unwrap();
        assert!(
            taken.consumed == stream.len() && taken.acks_due.is_empty(),
            "its turn has not come"
        );
        let mut outbox = FrameWriter::new(ByteOrder::Little);
        let mut said = Vec::new();
        let most = largest_allocation(|| said = owner.take_responses(&mut outbox, 1000).unwrap().0);
        assert!(
            most < 2 * said.len() + 4096 && said.len() > lens.iter().sum(),
            "{most}"
        );
        let mut asks = rma_target(is_kin);
        let ops: Vec<_> = lens
            .iter()
            .map(|len| (asks.expect_read(*len), *len))
            .collect();
        let ack = asks.expect_write_ack(0);
        let mut rest = Vec::new();
        for piece in said.chunks(977) {
            rest.extend_from_slice(piece);
            let taken = asks.read(&rest).unwrap();
            rest.drain(..taken.consumed);
        }
        for (op, len) in ops {
            assert!(asks.received(op).1 == &bytes[..len]);
        }
        assert!(asks.outcome(ack).unwrap().error.is_none() && rest.is_empty());
    }
}

/// To its own kind it says why, and goes on; of others the connection ends. Nothing has changed
/// either way.
#[test]
fn invalid_access_is_nacked_or_closes_connection() {
    let end = REGION_LEN as u64;
    for (bad, why, reads) in [
        (rma_iov(99, 0, 4), AccessError::UnknownKey, true),
        (rma_iov(READ_ONLY_KEY, 0, 4), AccessError::NotGranted, false),
        (
            rma_iov(READ_WRITE_KEY, end - 3, 4),
            AccessError::OutOfBounds(REGION_LEN),
            true,
        ),
        (
            rma_iov(READ_WRITE_KEY, u64::MAX - 1, 4),
            AccessError::OutOfBounds(REGION_LEN),
            true,
        ),
    ] {
        for row in 0..3u8 {
            let mut places = vec![rma_iov(READ_WRITE_KEY, 0, 2), rma_iov(READ_WRITE_KEY, 4, 2)];
            places.insert(row.into(), bad);
            let stream = encode_write(&places, Some(5), b"abcdefgh");
            for at in 0..stream.len() {
                let mut owner = rma_target(true);
                let owed = read_split(&mut owner, &stream, at).unwrap();
                let [FrameKind::Nack(refusal)] =
                    &owed.into_iter().map(ack_kind).collect::<Vec<_>>()[..]
                else {
                    panic!("{bad:?}")
                };
                assert_eq!(
                    (refusal.is_read, refusal.iov_index, refusal.error),
                    (false, row, why)
                );
                assert!(
                    owner
                        .region_bytes(READ_WRITE_KEY)
                        .iter()
                        .all(|byte| *byte == 0)
                        && owner.context.remote_accesses.is_empty()
                );
            }
            let mut owner = rma_target(false);
            assert!(owner.read(&stream).unwrap_err().0.contains("may not reach"));
            assert!(
                owner
                    .region_bytes(READ_WRITE_KEY)
                    .iter()
                    .all(|byte| *byte == 0)
            );
            if reads {
                assert!(rma_target(false).read(&encode_read(&places)).is_err());
                let mut owner = rma_target(true);
                owner.read(&encode_read(&places)).unwrap();
                let (answer, _) = owner
                    .take_responses(&mut FrameWriter::new(ByteOrder::Little), 1 << 16)
                    .unwrap();
                let mut asks = rma_target(true);
                let op = asks.expect_read(8);
                assert_eq!(asks.read(&answer).unwrap().consumed, answer.len());
                let error = asks.outcome(op).unwrap().error.clone().unwrap();
                assert!(
                    matches!(
                        *error,
                        Error::Key { .. }
                            | Error::TooLong {
                                limit: REGION_LEN,
                                ..
                            }
                    ),
                    "{error}"
                );
            }
        }
    }
}

/// Headers that lie: each ends the connection, and nothing has changed.
#[test]
fn inconsistent_headers_close_connection() {
    let mut longer = encode_write(&[rma_iov(READ_WRITE_KEY, 0, 9)], None, b"abcdefgh");
    let short = encode_write(&[rma_iov(READ_WRITE_KEY, 0, 7)], None, b"abcdefgh");
    let overflow = encode_write(
        &[
            rma_iov(READ_WRITE_KEY, 0, usize::MAX),
            rma_iov(READ_WRITE_KEY, 0, 9),
        ],
        None,
        b"abcdefgh",
    );
    let nowhere = encode_write(&[], None, b"abcdefgh");
    let with_bytes = {
        let mut bytes = encode_read(&[rma_iov(READ_WRITE_KEY, 0, 7)]);
        bytes[8] += 1;
        bytes
    };
    longer.push(0);
    for (what, stream) in [
        ("longer", longer),
        ("short", short),
        ("overflow", overflow),
        ("nowhere", nowhere),
        ("bytes", with_bytes),
    ] {
        for is_kin in [false, true] {
            let mut owner = rma_target(is_kin);
            assert!(owner.read(&stream).is_err(), "{what}");
            assert!(
                owner
                    .region_bytes(READ_WRITE_KEY)
                    .iter()
                    .all(|byte| *byte == 0),
                "{what}"
            );
        }
    }
    let frames = [
        ("an answer", hex(READ_RSP_BYTES)),
        ("an acknowledgement", hex(crate::frames::ACK)),
        (
            "a refusal",
            hex("03 f2 0000 00 00 20 00 2000000000000000 0100000000000000 0000000000000000"),
        ),
        (
            "a refusal",
            hex("03 f2 0000 00 00 20 00 2000000000000000 0100010000000000 0000000000000000"),
        ),
        (
            "a checked answer",
            hex("03 f3 0000 00 00 10 00 2000000000000000 00000000000000000000000000000000"),
        ),
    ];
    for (what, stream) in &frames {
        assert!(
            rma_target(true).read(stream).is_err(),
            "{what} to no question"
        );
    }
    // Of another length than was asked for, or without what belongs to it.
    for (len, stream) in [
        (7, hex(READ_RSP_BYTES)),
        (9, hex(READ_RSP_BYTES)),
        (8, hex("03 f3 0000 00 00 10 00 1800000000000000")),
    ] {
        let mut asks = rma_target(true);
        asks.expect_read(len);
        assert!(asks.read(&stream).is_err(), "{len}");
    }
}

/// An acknowledgement may be heard before this side knows that all has left; a second one is
/// nobody's.
#[test]
fn early_ack_waits_for_its_operation() {
    let mut asks = rma_target(false);
    asks.reader.pending.begin_acked_send();
    asks.read(&hex(crate::frames::ACK)).unwrap();
    let op = asks.expect_write_ack(5);
    assert_eq!(
        asks.outcome(op).map(|outcome| outcome.error.is_none()),
        Some(true)
    );
    asks.reader.pending.begin_acked_send();
    asks.read(&hex(crate::frames::ACK)).unwrap();
    assert!(asks.read(&hex(crate::frames::ACK)).is_err());
}

/// What is asked of a connection that ends is not forgotten.
#[test]
fn pending_requests_fail_with_the_connection() {
    let mut asks = rma_target(false);
    let ops = [asks.expect_read(8), asks.expect_write_ack(8)];
    // Half of the answer has come.
    asks.read(&hex(READ_RSP_BYTES)[..20]).unwrap();
    assert_eq!(asks.reader.abort(), []);
    asks.reader
        .pending
        .fail(&mut asks.context, &Error::Canceled);
    for op in ops {
        assert_eq!(
            asks.outcome(op).unwrap().error.as_deref(),
            Some(&Error::Canceled)
        );
    }
}

/// A peer that asks for much and takes nothing waits, with nothing but its questions.
#[test]
fn queued_read_requests_are_bounded() {
    let mut owner = rma_target(false);
    let stream: Vec<u8> = (0..3000)
        .flat_map(|_| encode_read(&[rma_iov(READ_WRITE_KEY, 0, REGION_LEN)]))
        .collect();
    let taken = owner.read(&stream).unwrap();
    assert!(taken.responses_full && !taken.blocked && taken.consumed < stream.len() / 2);
    let mut outbox = FrameWriter::new(ByteOrder::Little);
    let most = largest_allocation(|| {
        let source: Option<FiAddr> = None;
        let who = (fabric_core::matching::PeerKey(1), source);
        let replying = owner
            .reader
            .responses
            .write_responses(&mut outbox, (64 << 10, usize::MAX), who, &mut owner.context)
            .unwrap();
        assert_eq!(replying, ResponseStatus::WriterFull);
    });
    assert!(
        outbox.pending().len() <= 80 << 10 && most <= 256 << 10,
        "{most}"
    );
    // A message behind them is not read before; once they are answered, it is.
    owner.reader.responses.clear();
    assert!(
        owner
            .read(&stream[taken.consumed..])
            .unwrap()
            .responses_full
    );
}

/// Where others wait, no answer begins once there were enough bytes of them; one that has begun
/// ends first.
#[test]
fn responder_yields_between_responses() {
    let mut owner = rma_target(false);
    for len in [8, 8, 80, 8] {
        owner
            .read(&encode_read(&[rma_iov(READ_WRITE_KEY, 0, len)]))
            .unwrap();
    }
    let mut outbox = FrameWriter::new(ByteOrder::Little);
    let who = (fabric_core::matching::PeerKey(1), None);
    let mut answer = |most, turn| {
        let replies = &mut owner.reader.responses;
        let replying = replies
            .write_responses(&mut outbox, (most, turn), who, &mut owner.context)
            .unwrap();
        let made = outbox.pending().len();
        outbox.advance(made);
        (replying, made, replies.is_partial())
    };
    assert_eq!(answer(1000, 0), (ResponseStatus::Yield, 0, false));
    assert_eq!(answer(1000, 30), (ResponseStatus::Yield, 2 * 24, false));
    assert_eq!(answer(50, 1), (ResponseStatus::WriterFull, 50, true));
    assert_eq!(answer(1000, 0), (ResponseStatus::Yield, 46, false));
    assert_eq!(answer(1000, 1), (ResponseStatus::Idle, 24, false));
}

fn register_buffer(owner: &mut TcpReceiver) -> Arc<RegisteredMemory> {
    let own = Arc::new(RegisteredMemory::new(vec![0u8; 64].into_any()).unwrap());
    let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
    owner
        .context
        .regions
        .as_mut()
        .unwrap()
        .insert(own.clone(), both, Some(20), false)
        .unwrap();
    own
}

/// While the owner has its buffer in hand, nothing of a write is taken, nor is a question answered;
/// then both are. A buffer that is closed meanwhile refuses.
#[test]
fn access_waits_while_owner_holds_the_buffer() {
    for closes in [false, true] {
        let mut owner = rma_target(true);
        let own = register_buffer(&mut owner);
        let places = [rma_iov(READ_WRITE_KEY, 0, 2), rma_iov(20, 0, 2)];
        owner.read(&encode_read(&places)).unwrap();
        let buf = own.take().unwrap();
        let mut outbox = FrameWriter::new(ByteOrder::Little);
        let (said, replying) = owner.take_responses(&mut outbox, 1 << 16).unwrap();
        assert!(
            replying == ResponseStatus::RegionBusy
                && said.is_empty()
                && owner.reader.responses.is_blocked_on_region()
        );
        let stream = encode_write(&places, None, b"abcd");
        let taken = owner.read(&stream).unwrap();
        assert!(taken.blocked && taken.consumed == 0 && !owner.would_read_held(&stream));
        assert!(
            owner
                .region_bytes(READ_WRITE_KEY)
                .iter()
                .all(|byte| *byte == 0),
            "not before all of it can be"
        );
        if closes {
            owner.context.regions.as_mut().unwrap().remove(20);
        } else {
            own.put_back(buf);
        }
        assert!(!owner.reader.responses.is_blocked_on_region() && owner.would_read_held(&stream));
        let (answer, replying) = owner.take_responses(&mut outbox, 1 << 16).unwrap();
        assert_eq!(replying, ResponseStatus::Idle);
        let owed = owner
            .read(&stream)
            .unwrap()
            .acks_due
            .into_iter()
            .map(is_ack)
            .collect::<Vec<_>>();
        assert_eq!(owed, [!closes]);
        let mut asks = rma_target(true);
        let op = asks.expect_read(4);
        asks.read(&answer).unwrap();
        assert_eq!(asks.outcome(op).unwrap().error.is_none(), !closes);
        let mut there = [0; 2];
        if !closes {
            fabric_core::mr::RegionMemory::read(&*own, 0, &mut there);
            assert_eq!(&there, b"cd");
        }
    }
}

fn is_ack(owed: AckDue) -> bool {
    ack_kind(owed) == FrameKind::Ack
}

/// A write whose memory is closed in the middle of it is taken to its end, and refused.
#[test]
fn region_close_mid_transfer_is_nacked() {
    for is_kin in [true, false] {
        let mut owner = rma_target(is_kin);
        let stream = encode_write(&[rma_iov(READ_WRITE_KEY, 0, 8)], Some(1), b"abcdefgh");
        let taken = owner.read(&stream[..stream.len() - 4]).unwrap();
        owner
            .context
            .regions
            .as_mut()
            .unwrap()
            .remove(READ_WRITE_KEY);
        let ended = owner.read(&stream[taken.consumed..]);
        if is_kin {
            let owed = ended
                .unwrap()
                .acks_due
                .into_iter()
                .map(ack_kind)
                .collect::<Vec<_>>();
            assert!(
                matches!(&owed[..], [FrameKind::Nack(refusal)] if refusal.error == AccessError::UnknownKey)
            );
        } else {
            assert!(ended.is_err());
        }
        assert!(owner.context.remote_accesses.is_empty());
        // And an answer that has begun.
        let mut owner = rma_target(is_kin);
        owner
            .read(&encode_read(&[rma_iov(READ_WRITE_KEY, 0, REGION_LEN)]))
            .unwrap();
        let mut outbox = FrameWriter::new(ByteOrder::Little);
        let who = (fabric_core::matching::PeerKey(1), None);
        assert_eq!(
            owner.reader.responses.write_responses(
                &mut outbox,
                (100, usize::MAX),
                who,
                &mut owner.context
            ),
            Ok(ResponseStatus::WriterFull)
        );
        owner
            .context
            .regions
            .as_mut()
            .unwrap()
            .remove(READ_WRITE_KEY);
        let answered = owner.take_responses(&mut outbox, 1 << 16);
        if let Ok((answer, _)) = &answered {
            let mut asks = rma_target(true);
            let op = asks.expect_read(REGION_LEN);
            assert_eq!(asks.read(answer).unwrap().consumed, answer.len());
            let error = asks.outcome(op).unwrap().error.clone().unwrap();
            assert!(matches!(
                *error,
                Error::Key {
                    key: READ_WRITE_KEY,
                    ..
                }
            ));
        }
        assert_eq!(answered.is_ok(), is_kin);
    }
}

/// The owner is told once, behind the bytes, and until there is room for that the connection waits;
/// the writer does not.
#[test]
fn write_data_reports_once_and_waits_for_cq_room() {
    let mut owner = rma_target(true);
    owner.context.cq_full = true;
    let stream = encode_write(
        &[rma_iov(READ_WRITE_KEY, 0, 3), rma_iov(READ_WRITE_KEY, 9, 1)],
        Some(77),
        b"abcd",
    );
    let taken = owner.read(&stream).unwrap();
    assert!(taken.blocked && taken.consumed == stream.len() && taken.acks_due.len() == 1);
    assert_eq!(&owner.region_bytes(READ_WRITE_KEY)[..3], b"abc");
    assert!(!owner.would_read_held(b""));
    owner.context.cq_full = false;
    assert!(owner.would_read_held(b""));
    let taken = owner.read(b"").unwrap();
    assert!(!taken.blocked && taken.acks_due.is_empty());
    let [(key, deed, transfer)] = owner.context.remote_accesses[..] else {
        panic!("{:?}", owner.context.remote_accesses)
    };
    assert_eq!(
        (key, deed, transfer.len, transfer.data),
        (READ_WRITE_KEY, RemoteAccess::Write, 4, Some(77))
    );
    // Who wants to hear of everything hears of each place, and of data with the last.
    owner.context.remote_accesses.clear();
    owner
        .reader
        .enable_rma_target(fabric_core::transport::EpId(0), true, true);
    owner.read(&stream).unwrap();
    owner
        .read(&encode_read(&[rma_iov(READ_WRITE_KEY, 0, 3)]))
        .unwrap();
    owner
        .take_responses(&mut FrameWriter::new(ByteOrder::Little), 1 << 16)
        .unwrap();
    let told: Vec<_> = owner
        .context
        .remote_accesses
        .iter()
        .map(|(_, deed, of)| (*deed, of.len, of.data))
        .collect();
    assert_eq!(
        told,
        [
            (RemoteAccess::Write, 3, None),
            (RemoteAccess::Write, 1, Some(77)),
            (RemoteAccess::Read, 3, None)
        ]
    );
}

/// Atomic operations are for kin, whole or not at all, and say what was there.
#[test]
fn atomics_execute_on_arrival_and_return_old_values() {
    let sum = |call| AtomicSpec {
        op: AtomicOp::Sum,
        datatype: Datatype::U32,
        call,
    };
    let sums = |call| PeerCaps::rdm(true).atomic(sum(call)).unwrap();
    let at = RmaIov {
        atomic: Some(sum(AtomicCall::Fetch)),
        ..rma_iov(READ_WRITE_KEY, 8, 8)
    };
    let operands = [5u32.to_le_bytes(), 6u32.to_le_bytes()].concat();
    let fetch = encode_frame(
        &Frame::atomic(sums(AtomicCall::Fetch), true, 8),
        &[at],
        &operands,
    );
    let base = encode_frame(
        &Frame::atomic(sums(AtomicCall::Base), false, 8),
        &[at],
        &operands,
    );
    for split in 0..base.len() {
        let mut owner = rma_target(true);
        let owed = read_split(&mut owner, &base, split).unwrap();
        assert_eq!(
            owed.into_iter().map(ack_kind).collect::<Vec<_>>(),
            [FrameKind::Ack]
        );
        assert!(read_split(&mut owner, &fetch, split).unwrap().is_empty());
        let (answer, _) = owner
            .take_responses(&mut FrameWriter::new(ByteOrder::Little), 1 << 16)
            .unwrap();
        let mut asks = rma_target(true);
        let op = asks.expect_read(8);
        asks.read(&answer).unwrap();
        assert_eq!(asks.received(op).1, operands);
        assert_eq!(
            owner.region_bytes(READ_WRITE_KEY)[8..16],
            [10u32.to_le_bytes(), 12u32.to_le_bytes()].concat()
        );
    }
    assert!(
        rma_target(false).read(&base).is_err(),
        "libfabric does not say this"
    );
    let bad = |kind: &Frame, at: RmaIov, bytes: &[u8]| {
        rma_target(true)
            .read(&encode_frame(kind, &[at], bytes))
            .map(drop)
    };
    // Too few operands, not a whole value, an answer to what has none, more than there may be.
    assert!(
        bad(
            &Frame::atomic(sums(AtomicCall::Base), false, 4),
            at,
            &operands[..4]
        )
        .is_err()
    );
    assert!(
        bad(
            &Frame::atomic(sums(AtomicCall::Base), false, 6),
            RmaIov { len: 6, ..at },
            &operands[..6]
        )
        .is_err()
    );
    assert!(
        bad(
            &Frame::atomic(sums(AtomicCall::Base), true, 8),
            at,
            &operands
        )
        .is_err()
    );
    assert!(
        bad(
            &Frame::atomic(sums(AtomicCall::Fetch), false, 8),
            at,
            &operands
        )
        .is_err()
    );
    let many = vec![0; 8196];
    assert!(
        bad(
            &Frame::atomic(sums(AtomicCall::Base), false, 8196),
            RmaIov { len: 8196, ..at },
            &many
        )
        .is_err()
    );
    // Misplaced, or out of reach: refused, and the connection goes on.
    for (at, why) in [
        (RmaIov { offset: 2, ..at }, AccessError::Misaligned),
        (RmaIov { key: 9, ..at }, AccessError::UnknownKey),
        (
            RmaIov {
                key: READ_ONLY_KEY,
                ..at
            },
            AccessError::NotGranted,
        ),
        (
            RmaIov {
                offset: REGION_LEN as u64,
                ..at
            },
            AccessError::OutOfBounds(REGION_LEN),
        ),
    ] {
        let mut owner = rma_target(true);
        let stream = encode_frame(
            &Frame::atomic(sums(AtomicCall::Base), false, 8),
            &[at],
            &operands,
        );
        let owed = owner
            .read(&stream)
            .unwrap()
            .acks_due
            .into_iter()
            .map(ack_kind)
            .collect::<Vec<_>>();
        assert!(
            matches!(&owed[..], [FrameKind::Nack(refusal)] if refusal.error == why),
            "{why:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 200 }))]

    /// Whatever a peer says of memory is done or refused, within that memory, and what it claims
    /// costs none.
    #[test]
    fn random_rma_frames_close_or_wait(
        codes in prop::collection::vec(prop_oneof![Just(2u8), Just(4), Just(3), Just(0xf1), Just(0xf2), Just(0xf3), Just(0)], 1..6),
        words in prop::collection::vec(prop_oneof![0..16u64, any::<u64>(), Just(READ_WRITE_KEY), Just(REGION_LEN as u64)], 60),
        flags in prop::collection::vec(0..16u16, 6),
        split in 1..200usize,
    ) {
        let mut words = words.into_iter().cycle();
        let mut stream = Vec::new();
        for (number, code) in codes.into_iter().enumerate() {
            let rows = (words.next().unwrap() % 5) as usize;
            let flags = flags[number];
            let data = usize::from(flags & 1 == 1 && [0, 4].contains(&code));
            let extension = match code {
                2 | 4 => rows * 3 + data,
                0xf1 => 4,
                0xf2 => 2,
                _ => data,
            };
            let payload = words.next().unwrap() % 40;
            let len = 16 + 8 * extension;
            stream.extend_from_slice(&[3, code, flags as u8, 0, 0, rows as u8, len as u8, 0]);
            stream.extend_from_slice(&(len as u64 + payload).to_le_bytes());
            for _ in 0..extension {
                stream.extend_from_slice(&words.next().unwrap().to_le_bytes());
            }
            stream.extend(std::iter::repeat_n(7, payload as usize));
        }
        for is_kin in [false, true] {
            let mut owner = rma_target(is_kin);
            owner.expect_read(8);
            owner.expect_write_ack(8);
            let _ = owner.post_recv(UNTAGGED, None);
            let mut rest = Vec::new();
            'stream: for piece in stream.chunks(split) {
                rest.extend_from_slice(piece);
                match owner.read(&rest) {
                    Ok(taken) => drop(rest.drain(..taken.consumed)),
                    Err(_) => break 'stream,
                }
                if owner.take_responses(&mut FrameWriter::new(ByteOrder::Little), 1 << 16).is_err() {
                    break 'stream;
                }
            }
        }
    }
}

/// Where peers reach no memory they cannot fill the owner's queue with data that comes with none
/// either.
#[test]
fn data_without_segments_needs_an_rma_target() {
    for is_kin in [false, true] {
        let mut owner = rma_target(is_kin);
        assert_eq!(
            owner
                .read(&encode_write(&[], Some(5), b""))
                .unwrap()
                .acks_due
                .len(),
            1
        );
        assert_eq!(owner.context.remote_accesses.len(), 1);
        owner
            .reader
            .enable_rma_target(fabric_core::transport::EpId(0), false, false);
        match owner.read(&encode_write(&[], Some(5), b"")) {
            Err(ProtocolViolation(what)) => {
                assert!(!is_kin && what.contains("may not reach"), "{what}")
            }
            Ok(taken) => {
                let said: Vec<_> = taken.acks_due.into_iter().map(ack_kind).collect();
                assert!(
                    is_kin && matches!(said[..], [FrameKind::Nack(_)]),
                    "{said:?}"
                );
            }
        }
        assert_eq!(owner.context.remote_accesses.len(), 1);
    }
}
