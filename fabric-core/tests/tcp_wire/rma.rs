//! RMA operations of peers with and without the vendor extension, and every kind of
//! invalid access.

use fabric_core::buf::{IoBuf, Payload};
use fabric_core::flags::Access;
use fabric_core::mr::{AccessError, RegisteredMemory};
use fabric_core::tcp::{
    AckDue, ByteOrder, Frame, FrameKind, FrameWriter, ProtocolViolation, ResponseStatus,
    RmaIovList, StopReason,
};
use fabric_core::transport::{RemoteAccess, RmaIov};
use fabric_core::{Error, FiAddr};
use proptest::prelude::*;
use std::sync::Arc;

use crate::receiver::{
    READ_ONLY_KEY, READ_WRITE_KEY, REGION_LEN, TcpReceiver, UNTAGGED, context_of,
};
use crate::{hex, largest_allocation};

/// Captured from libfabric's tcp provider: a write that requests an ack, and a read request, of two
/// remote ranges each; and the response.
const WRITE_BYTES: &str = "03 04 0400 00 02 40 00 4800000000000000 \
    0a00000000000000 0300000000000000 0700000000000000 1400000000000000 0500000000000000 \
    0700000000000000 \
    6162636465666768";
const READ_BYTES: &str = "03 02 0000 00 02 40 00 4000000000000000 \
    0a00000000000000 0300000000000000 0700000000000000 1400000000000000 0500000000000000 \
    0700000000000000";
const READ_RSP_BYTES: &str = "03 03 0000 00 00 10 00 1800000000000000 6162636465666768";

pub(crate) fn rma_iov(key: u64, offset: u64, len: usize) -> RmaIov {
    RmaIov {
        key,
        offset,
        len,
        atomic: None,
    }
}

pub(crate) fn rma_target(is_same: bool) -> TcpReceiver {
    let mut receiver = TcpReceiver::with_region_len(ByteOrder::Little, 1 << 20, REGION_LEN);
    if is_same {
        receiver.responses.set_same_implementation();
    }
    receiver
}

/// Encodes one frame.
pub(crate) fn encode_frame(frame: &Frame, iovs: &[RmaIov], bytes: &[u8]) -> Vec<u8> {
    let mut writer = FrameWriter::new(ByteOrder::Little);
    assert!(writer.push_frame(
        frame,
        &RmaIovList::from_rma_iovs(iovs).unwrap(),
        Payload::Contiguous(bytes)
    ));
    writer.pending().to_vec()
}

fn encode_write(iovs: &[RmaIov], data: Option<u64>, bytes: &[u8]) -> Vec<u8> {
    encode_frame(
        &Frame::write(&RmaIovList::from_rma_iovs(iovs).unwrap(), data, bytes.len()),
        iovs,
        bytes,
    )
}

fn encode_read(iovs: &[RmaIov]) -> Vec<u8> {
    encode_frame(
        &Frame::read(&RmaIovList::from_rma_iovs(iovs).unwrap()),
        iovs,
        &[],
    )
}

/// Returns the kind of the frame that acknowledges.
pub(crate) fn ack_kind(due: AckDue) -> FrameKind {
    Frame::ack(due).kind
}

/// Reads a stream in two parts; returns the acks that are due.
pub(crate) fn read_split(
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
    for is_same in [false, true] {
        for at in 0..hex(WRITE_BYTES).len() {
            let mut target = rma_target(is_same);
            let acks = read_split(&mut target, &hex(WRITE_BYTES), at).unwrap();
            assert_eq!(
                acks.into_iter().map(ack_kind).collect::<Vec<_>>(),
                [FrameKind::Ack],
                "cut at {at}"
            );
            let memory = target.region_bytes(READ_WRITE_KEY);
            assert_eq!(
                (&memory[10..13], &memory[20..25], memory[13]),
                (&b"abc"[..], &b"defgh"[..], 0)
            );
            assert!(
                target.context.services.remote_accesses.is_empty(),
                "no event was requested"
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
    let request = hex(READ_BYTES);
    for at in 0..request.len() {
        let mut target = rma_target(false);
        target.read(&hex(WRITE_BYTES)).unwrap();
        read_split(&mut target, &request, at).unwrap();
        let (response, status) = target
            .take_responses(&mut FrameWriter::new(ByteOrder::Little), 1 << 16)
            .unwrap();
        assert_eq!(
            (status, &response),
            (ResponseStatus::Idle, &hex(READ_RSP_BYTES))
        );
    }
    for is_same in [false, true] {
        let mut target = rma_target(is_same);
        target.read(&hex(WRITE_BYTES)).unwrap();
        target.read(&request).unwrap();
        let (response, _) = target
            .take_responses(&mut FrameWriter::new(ByteOrder::Little), 1 << 16)
            .unwrap();
        for at in 0..response.len() {
            let mut initiator = rma_target(is_same);
            let op = initiator.expect_read(8);
            read_split(&mut initiator, &response, at).unwrap();
            assert_eq!(initiator.received(op).1, b"abcdefgh", "cut at {at}");
            assert!(initiator.pending.is_empty());
        }
    }
}

/// Long responses are written in chunks, in order, and an ack that becomes due meanwhile follows
/// them.
#[test]
fn read_responses_are_ordered_and_chunked() {
    for is_same in [false, true] {
        let mut target = rma_target(is_same);
        let bytes: Vec<u8> = (0..REGION_LEN)
            .map(|at| (at * 7 + at / 256) as u8)
            .collect();
        target
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
        let outcome = target.read(&stream).unwrap();
        assert!(
            outcome.consumed == stream.len() && outcome.acks_due.is_empty(),
            "the ack is queued behind the responses"
        );
        let mut writer = FrameWriter::new(ByteOrder::Little);
        let mut sent = Vec::new();
        let largest =
            largest_allocation(|| sent = target.take_responses(&mut writer, 1000).unwrap().0);
        assert!(
            largest < 2 * sent.len() + 4096 && sent.len() > lens.iter().sum(),
            "{largest}"
        );
        let mut initiator = rma_target(is_same);
        let ops: Vec<_> = lens
            .iter()
            .map(|len| (initiator.expect_read(*len), *len))
            .collect();
        let ack = initiator.expect_write_ack(0);
        let mut rest = Vec::new();
        for part in sent.chunks(977) {
            rest.extend_from_slice(part);
            let outcome = initiator.read(&rest).unwrap();
            rest.drain(..outcome.consumed);
        }
        for (op, len) in ops {
            assert!(initiator.received(op).1 == &bytes[..len]);
        }
        assert!(initiator.outcome(ack).unwrap().error.is_none() && rest.is_empty());
    }
}

/// A same-implementation peer gets a nack, and the connection stays; for other peers the connection
/// ends. No memory has changed either way.
#[test]
fn invalid_access_is_nacked_or_closes_connection() {
    let end = REGION_LEN as u64;
    for (bad, expected, reads) in [
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
        for index in 0..3u8 {
            let mut iovs = vec![rma_iov(READ_WRITE_KEY, 0, 2), rma_iov(READ_WRITE_KEY, 4, 2)];
            iovs.insert(index.into(), bad);
            let stream = encode_write(&iovs, Some(5), b"abcdefgh");
            for at in 0..stream.len() {
                let mut target = rma_target(true);
                let acks = read_split(&mut target, &stream, at).unwrap();
                let [FrameKind::Nack(nack)] =
                    &acks.into_iter().map(ack_kind).collect::<Vec<_>>()[..]
                else {
                    panic!("{bad:?}")
                };
                assert_eq!(
                    (nack.is_read, nack.iov_index, nack.error),
                    (false, index, expected)
                );
                assert!(
                    target
                        .region_bytes(READ_WRITE_KEY)
                        .iter()
                        .all(|byte| *byte == 0)
                        && target.context.services.remote_accesses.is_empty()
                );
            }
            let mut target = rma_target(false);
            assert!(
                target
                    .read(&stream)
                    .unwrap_err()
                    .0
                    .contains("may not access")
            );
            assert!(
                target
                    .region_bytes(READ_WRITE_KEY)
                    .iter()
                    .all(|byte| *byte == 0)
            );
            if reads {
                assert!(rma_target(false).read(&encode_read(&iovs)).is_err());
                let mut target = rma_target(true);
                target.read(&encode_read(&iovs)).unwrap();
                let (response, _) = target
                    .take_responses(&mut FrameWriter::new(ByteOrder::Little), 1 << 16)
                    .unwrap();
                let mut initiator = rma_target(true);
                let op = initiator.expect_read(8);
                assert_eq!(initiator.read(&response).unwrap().consumed, response.len());
                let error = initiator.outcome(op).unwrap().error.clone().unwrap();
                assert!(
                    matches!(
                        *error,
                        Error::Key { .. }
                            | Error::OutOfBounds {
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

/// Headers with inconsistent fields end the connection, and no memory has changed.
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
    let no_iov = encode_write(&[], None, b"abcdefgh");
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
        ("no_iov", no_iov),
        ("bytes", with_bytes),
    ] {
        for is_same in [false, true] {
            let mut target = rma_target(is_same);
            assert!(target.read(&stream).is_err(), "{what}");
            assert!(
                target
                    .region_bytes(READ_WRITE_KEY)
                    .iter()
                    .all(|byte| *byte == 0),
                "{what}"
            );
        }
    }
    let frames = [
        ("a read response", hex(READ_RSP_BYTES)),
        ("an acknowledgement", hex(crate::frames::ACK)),
        (
            "a nack",
            hex("03 f2 0000 00 00 20 00 2000000000000000 0100000000000000 0000000000000000"),
        ),
        (
            "a nack",
            hex("03 f2 0000 00 00 20 00 2000000000000000 0100010000000000 0000000000000000"),
        ),
        (
            "a checked read response",
            hex("03 f3 0000 00 00 10 00 2000000000000000 00000000000000000000000000000000"),
        ),
    ];
    for (what, stream) in &frames {
        assert!(
            rma_target(true).read(stream).is_err(),
            "{what} without a request"
        );
    }
    // Responses of the wrong length, or without a status.
    for (len, stream) in [
        (7, hex(READ_RSP_BYTES)),
        (9, hex(READ_RSP_BYTES)),
        (8, hex("03 f3 0000 00 00 10 00 1800000000000000")),
    ] {
        let mut initiator = rma_target(true);
        initiator.expect_read(len);
        assert!(initiator.read(&stream).is_err(), "{len}");
    }
}

/// An ack may arrive before the engine learns that the payload was sent; a second ack is
/// unsolicited.
#[test]
fn ack_that_precedes_its_operation_completes_it() {
    let mut initiator = rma_target(false);
    initiator.pending.begin_acked_send();
    initiator.read(&hex(crate::frames::ACK)).unwrap();
    let op = initiator.expect_write_ack(5);
    assert_eq!(
        initiator.outcome(op).map(|outcome| outcome.error.is_none()),
        Some(true)
    );
    initiator.pending.begin_acked_send();
    initiator.read(&hex(crate::frames::ACK)).unwrap();
    assert!(initiator.read(&hex(crate::frames::ACK)).is_err());
}

/// When the connection ends, pending requests fail.
#[test]
fn pending_requests_fail_with_the_connection() {
    let mut initiator = rma_target(false);
    let ops = [initiator.expect_read(8), initiator.expect_write_ack(8)];
    // Half of the response has arrived.
    initiator.read(&hex(READ_RSP_BYTES)[..20]).unwrap();
    assert_eq!(initiator.reader.abort(), []);
    initiator.pending.fail(
        &mut context_of(&mut initiator.rx, &mut initiator.context),
        &Error::Canceled,
    );
    for op in ops {
        assert_eq!(
            initiator.outcome(op).unwrap().error.as_deref(),
            Some(&Error::Canceled)
        );
    }
}

/// While a peer reads no responses, only a bounded number of its requests is read, and no response
/// is buffered beyond the limit of the writer.
#[test]
fn queued_read_requests_are_bounded() {
    let mut target = rma_target(false);
    let stream: Vec<u8> = (0..3000)
        .flat_map(|_| encode_read(&[rma_iov(READ_WRITE_KEY, 0, REGION_LEN)]))
        .collect();
    let outcome = target.read(&stream).unwrap();
    assert!(
        outcome.stop_reason == StopReason::ResponsesFull && outcome.consumed < stream.len() / 2
    );
    let mut writer = FrameWriter::new(ByteOrder::Little);
    let largest = largest_allocation(|| {
        let source: Option<FiAddr> = None;
        let sender = (fabric_core::matching::PeerKey(1), source);
        let status = target
            .responses
            .write_responses(
                &mut writer,
                (64 << 10, usize::MAX),
                sender,
                &mut context_of(&mut target.rx, &mut target.context),
            )
            .unwrap();
        assert_eq!(status, ResponseStatus::WriterFull);
    });
    assert!(
        writer.pending().len() <= 80 << 10 && largest <= 256 << 10,
        "{largest}"
    );
    // Further requests are not read before the queue has room; then they are.
    target.responses.clear();
    assert_eq!(
        target
            .read(&stream[outcome.consumed..])
            .unwrap()
            .stop_reason,
        StopReason::ResponsesFull
    );
}

/// If other frames wait, no response begins once the turn is used up; a response that has begun is
/// finished first.
#[test]
fn responder_yields_between_responses() {
    let mut target = rma_target(false);
    for len in [8, 8, 80, 8] {
        target
            .read(&encode_read(&[rma_iov(READ_WRITE_KEY, 0, len)]))
            .unwrap();
    }
    let mut writer = FrameWriter::new(ByteOrder::Little);
    let sender = (fabric_core::matching::PeerKey(1), None);
    let mut write_responses = |limit, turn| {
        let responses = &mut target.responses;
        let status = responses
            .write_responses(
                &mut writer,
                (limit, turn),
                sender,
                &mut context_of(&mut target.rx, &mut target.context),
            )
            .unwrap();
        let written = writer.pending().len();
        writer.advance(written);
        (status, written, responses.is_partial())
    };
    assert_eq!(write_responses(1000, 0), (ResponseStatus::Yield, 0, false));
    assert_eq!(
        write_responses(1000, 30),
        (ResponseStatus::Yield, 2 * 24, false)
    );
    assert_eq!(
        write_responses(50, 1),
        (ResponseStatus::WriterFull, 50, true)
    );
    assert_eq!(write_responses(1000, 0), (ResponseStatus::Yield, 46, false));
    assert_eq!(write_responses(1000, 1), (ResponseStatus::Idle, 24, false));
}

fn register_buffer(target: &mut TcpReceiver) -> Arc<RegisteredMemory> {
    let memory = Arc::new(RegisteredMemory::new(vec![0u8; 64].into_any()).unwrap());
    let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
    target
        .context
        .services
        .regions
        .as_mut()
        .unwrap()
        .insert(memory.clone(), 0, both, Some(20))
        .unwrap();
    memory
}

/// While the owner has locked its buffer, neither a write nor a read request is executed. Both are
/// executed after the owner unlocks the buffer, and fail after the owner closes the region.
#[test]
fn access_waits_while_owner_holds_the_buffer() {
    for closes in [false, true] {
        let mut target = rma_target(true);
        let memory = register_buffer(&mut target);
        let iovs = [rma_iov(READ_WRITE_KEY, 0, 2), rma_iov(20, 0, 2)];
        target.read(&encode_read(&iovs)).unwrap();
        let buf = memory.take().unwrap();
        let mut writer = FrameWriter::new(ByteOrder::Little);
        let (sent, status) = target.take_responses(&mut writer, 1 << 16).unwrap();
        assert!(
            status == ResponseStatus::RegionLocked
                && sent.is_empty()
                && target.responses.is_blocked_on_region()
        );
        let stream = encode_write(&iovs, None, b"abcd");
        let outcome = target.read(&stream).unwrap();
        assert!(
            outcome.stop_reason == StopReason::Held
                && outcome.consumed == 0
                && !target.try_resume(&stream)
        );
        assert!(
            target
                .region_bytes(READ_WRITE_KEY)
                .iter()
                .all(|byte| *byte == 0),
            "nothing is written before all regions are accessible"
        );
        if closes {
            target.context.services.regions.as_mut().unwrap().remove(20);
        } else {
            memory.put_back(buf);
        }
        assert!(!target.responses.is_blocked_on_region() && target.try_resume(&stream));
        let (response, status) = target.take_responses(&mut writer, 1 << 16).unwrap();
        assert_eq!(status, ResponseStatus::Idle);
        let acks = target
            .read(&stream)
            .unwrap()
            .acks_due
            .into_iter()
            .map(is_ack)
            .collect::<Vec<_>>();
        assert_eq!(acks, [!closes]);
        let mut initiator = rma_target(true);
        let op = initiator.expect_read(4);
        initiator.read(&response).unwrap();
        assert_eq!(initiator.outcome(op).unwrap().error.is_none(), !closes);
        let mut bytes = [0; 2];
        if !closes {
            fabric_core::mr::RegionBytes::read(&*memory, 0, &mut bytes);
            assert_eq!(&bytes, b"cd");
        }
    }
}

fn is_ack(due: AckDue) -> bool {
    ack_kind(due) == FrameKind::Ack
}

/// A write whose region is closed meanwhile is read to its end, and gets a nack.
#[test]
fn region_close_mid_transfer_is_nacked() {
    for is_same in [true, false] {
        let mut target = rma_target(is_same);
        let stream = encode_write(&[rma_iov(READ_WRITE_KEY, 0, 8)], Some(1), b"abcdefgh");
        let outcome = target.read(&stream[..stream.len() - 4]).unwrap();
        target
            .context
            .services
            .regions
            .as_mut()
            .unwrap()
            .remove(READ_WRITE_KEY);
        let result = target.read(&stream[outcome.consumed..]);
        if is_same {
            let acks = result
                .unwrap()
                .acks_due
                .into_iter()
                .map(ack_kind)
                .collect::<Vec<_>>();
            let [FrameKind::Nack(nack)] = &acks[..] else {
                panic!("{acks:?}")
            };
            assert_eq!(nack.error, AccessError::UnknownKey);
        } else {
            assert!(result.is_err());
        }
        assert!(target.context.services.remote_accesses.is_empty());
        // The same for a read response that has begun.
        let mut target = rma_target(is_same);
        target
            .read(&encode_read(&[rma_iov(READ_WRITE_KEY, 0, REGION_LEN)]))
            .unwrap();
        let mut writer = FrameWriter::new(ByteOrder::Little);
        let sender = (fabric_core::matching::PeerKey(1), None);
        assert_eq!(
            target.responses.write_responses(
                &mut writer,
                (100, usize::MAX),
                sender,
                &mut context_of(&mut target.rx, &mut target.context)
            ),
            Ok(ResponseStatus::WriterFull)
        );
        target
            .context
            .services
            .regions
            .as_mut()
            .unwrap()
            .remove(READ_WRITE_KEY);
        let result = target.take_responses(&mut writer, 1 << 16);
        if let Ok((response, _)) = &result {
            let mut initiator = rma_target(true);
            let op = initiator.expect_read(REGION_LEN);
            assert_eq!(initiator.read(response).unwrap().consumed, response.len());
            let error = initiator.outcome(op).unwrap().error.clone().unwrap();
            assert!(matches!(
                *error,
                Error::Key {
                    key: READ_WRITE_KEY,
                    ..
                }
            ));
        }
        assert_eq!(result.is_ok(), is_same);
    }
}

/// The owner gets one event, after the bytes. While the completion queue has no room for the event,
/// the connection is blocked, but the ack is due at once.
#[test]
fn write_data_reports_once_and_waits_for_cq_room() {
    let mut target = rma_target(true);
    target.context.services.cq_full = true;
    let stream = encode_write(
        &[rma_iov(READ_WRITE_KEY, 0, 3), rma_iov(READ_WRITE_KEY, 9, 1)],
        Some(77),
        b"abcd",
    );
    let outcome = target.read(&stream).unwrap();
    assert!(
        outcome.stop_reason == StopReason::Held
            && outcome.consumed == stream.len()
            && outcome.acks_due.len() == 1
    );
    assert_eq!(&target.region_bytes(READ_WRITE_KEY)[..3], b"abc");
    assert!(!target.try_resume(b""));
    target.context.services.cq_full = false;
    assert!(target.try_resume(b""));
    let outcome = target.read(b"").unwrap();
    assert!(outcome.stop_reason != StopReason::Held && outcome.acks_due.is_empty());
    let [(key, access, transfer)] = target.context.services.remote_accesses[..] else {
        panic!("{:?}", target.context.services.remote_accesses)
    };
    assert_eq!(
        (key, access, transfer.len, transfer.data),
        (READ_WRITE_KEY, RemoteAccess::Write, 4, Some(77))
    );
    // With RMA events the owner gets one for each remote range, and the CQ data with the last.
    target.context.services.remote_accesses.clear();
    target.responses.enable_rma_target(true, true);
    target.read(&stream).unwrap();
    target
        .read(&encode_read(&[rma_iov(READ_WRITE_KEY, 0, 3)]))
        .unwrap();
    target
        .take_responses(&mut FrameWriter::new(ByteOrder::Little), 1 << 16)
        .unwrap();
    let events: Vec<_> = target
        .context
        .services
        .remote_accesses
        .iter()
        .map(|(_, access, transfer)| (*access, transfer.len, transfer.data))
        .collect();
    assert_eq!(
        events,
        [
            (RemoteAccess::Write, 3, None),
            (RemoteAccess::Write, 1, Some(77)),
            (RemoteAccess::Read, 3, None)
        ]
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 200 }))]

    /// Any frame is executed or rejected, within the region, and announced lengths use no memory.
    #[test]
    fn random_rma_frames_are_rejected_or_wait_for_more_bytes(
        codes in prop::collection::vec(
            prop_oneof![
                Just(2u8), Just(4), Just(3), Just(0xf1), Just(0xf2), Just(0xf3), Just(0)
            ],
            1..6,
        ),
        words in prop::collection::vec(
            prop_oneof![
                0..16u64, any::<u64>(), Just(READ_WRITE_KEY), Just(REGION_LEN as u64)
            ],
            60,
        ),
        flags in prop::collection::vec(0..16u16, 6),
        split in 1..200usize,
    ) {
        let mut words = words.into_iter().cycle();
        let mut stream = Vec::new();
        for (number, code) in codes.into_iter().enumerate() {
            let iov_count = (words.next().unwrap() % 5) as usize;
            let flags = flags[number];
            let data = usize::from(flags & 1 == 1 && [0, 4].contains(&code));
            let extension = match code {
                2 | 4 => iov_count * 3 + data,
                0xf1 => 4,
                0xf2 => 2,
                _ => data,
            };
            let payload = words.next().unwrap() % 40;
            let len = 16 + 8 * extension;
            stream.extend_from_slice(&[3, code, flags as u8, 0, 0, iov_count as u8, len as u8, 0]);
            stream.extend_from_slice(&(len as u64 + payload).to_le_bytes());
            for _ in 0..extension {
                stream.extend_from_slice(&words.next().unwrap().to_le_bytes());
            }
            stream.extend(std::iter::repeat_n(7, payload as usize));
        }
        for is_same in [false, true] {
            let mut target = rma_target(is_same);
            target.expect_read(8);
            target.expect_write_ack(8);
            let _ = target.post_recv(UNTAGGED, None);
            let mut rest = Vec::new();
            'stream: for part in stream.chunks(split) {
                rest.extend_from_slice(part);
                match target.read(&rest) {
                    Ok(outcome) => drop(rest.drain(..outcome.consumed)),
                    Err(_) => break 'stream,
                }
                let mut writer = FrameWriter::new(ByteOrder::Little);
                if target.take_responses(&mut writer, 1 << 16).is_err() {
                    break 'stream;
                }
            }
        }
    }
}

/// A request without a remote range names no key. It ends the connection, is not answered, and does
/// not notify the target.
#[test]
fn request_without_remote_range_closes_connection() {
    for (what, stream) in [
        ("write with data", encode_write(&[], Some(5), b"")),
        ("write", encode_write(&[], None, b"")),
        ("read", encode_read(&[])),
    ] {
        for is_same in [false, true] {
            let mut target = rma_target(is_same);
            let ProtocolViolation(rule) = target.read(&stream).unwrap_err();
            assert!(rule.contains("is not 1 to 4"), "{what}: {rule}");
            assert!(target.context.services.remote_accesses.is_empty(), "{what}");
            assert!(target.responses.is_empty(), "{what}");
        }
    }
}

/// A write of no bytes with CQ data needs a key too, which grants writes. Without one the write
/// does not notify the target, whose completion queue such writes could fill.
#[test]
fn write_with_data_and_no_valid_key_is_refused() {
    for is_same in [false, true] {
        for (iovs, is_target, accepted) in [
            (vec![rma_iov(99, 0, 0)], true, false),
            (vec![rma_iov(READ_ONLY_KEY, 0, 0)], true, false),
            (
                vec![rma_iov(READ_WRITE_KEY, 0, 0), rma_iov(99, 0, 0)],
                true,
                false,
            ),
            (vec![rma_iov(READ_WRITE_KEY, 0, 0)], false, false),
            (vec![rma_iov(READ_WRITE_KEY, 0, 0)], true, true),
        ] {
            let mut target = rma_target(is_same);
            if !is_target {
                target.responses.enable_rma_target(false, false);
            }
            match target.read(&encode_write(&iovs, Some(5), b"")) {
                Err(ProtocolViolation(what)) => {
                    assert!(
                        !is_same && !accepted && what.contains("may not access"),
                        "{what}"
                    )
                }
                Ok(outcome) => {
                    let acks: Vec<_> = outcome.acks_due.into_iter().map(ack_kind).collect();
                    let is_nack = matches!(acks[..], [FrameKind::Nack(_)]);
                    assert!(acks.len() == 1 && is_nack != accepted, "{acks:?}");
                    assert!(is_same || accepted);
                }
            }
            let notified = target.context.services.remote_accesses.len();
            assert_eq!(notified, usize::from(accepted));
        }
    }
}
