//! Atomic frames of peers with the vendor extension.

use fabric_core::atomic::{AtomicCall, AtomicOp, AtomicSpec, Datatype};
use fabric_core::mr::AccessError;
use fabric_core::tcp::{ByteOrder, Frame, FrameKind, FrameWriter, PeerCaps};
use fabric_core::transport::RmaIov;

use crate::receiver::{READ_ONLY_KEY, READ_WRITE_KEY, REGION_LEN};
use crate::rma::{ack_kind, encode_frame, read_split, rma_iov, rma_target};

/// Atomic operations need a same-implementation peer; they are executed whole or not at all, and
/// return the previous values.
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
        let mut target = rma_target(true);
        let acks = read_split(&mut target, &base, split).unwrap();
        assert_eq!(
            acks.into_iter().map(ack_kind).collect::<Vec<_>>(),
            [FrameKind::Ack]
        );
        assert!(read_split(&mut target, &fetch, split).unwrap().is_empty());
        let (response, _) = target
            .take_responses(&mut FrameWriter::new(ByteOrder::Little), 1 << 16)
            .unwrap();
        let mut initiator = rma_target(true);
        let op = initiator.expect_read(8);
        initiator.read(&response).unwrap();
        assert_eq!(initiator.received(op).1, operands);
        assert_eq!(
            target.region_bytes(READ_WRITE_KEY)[8..16],
            [10u32.to_le_bytes(), 12u32.to_le_bytes()].concat()
        );
    }
    assert!(
        rma_target(false).read(&base).is_err(),
        "libfabric peers do not send atomic frames"
    );
    let read_frame = |kind: &Frame, at: RmaIov, bytes: &[u8]| {
        rma_target(true)
            .read(&encode_frame(kind, &[at], bytes))
            .map(drop)
    };
    // Too few operands, a partial value, an ack request on a fetching operation or none on a base
    // operation, too many operands.
    assert!(
        read_frame(
            &Frame::atomic(sums(AtomicCall::Base), false, 4),
            at,
            &operands[..4]
        )
        .is_err()
    );
    assert!(
        read_frame(
            &Frame::atomic(sums(AtomicCall::Base), false, 6),
            RmaIov { len: 6, ..at },
            &operands[..6]
        )
        .is_err()
    );
    assert!(
        read_frame(
            &Frame::atomic(sums(AtomicCall::Base), true, 8),
            at,
            &operands
        )
        .is_err()
    );
    assert!(
        read_frame(
            &Frame::atomic(sums(AtomicCall::Fetch), false, 8),
            at,
            &operands
        )
        .is_err()
    );
    let many = vec![0; 8196];
    assert!(
        read_frame(
            &Frame::atomic(sums(AtomicCall::Base), false, 8196),
            RmaIov { len: 8196, ..at },
            &many
        )
        .is_err()
    );
    // Misaligned, or outside the region: a nack, and the connection stays.
    for (at, expected) in [
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
        let mut target = rma_target(true);
        let stream = encode_frame(
            &Frame::atomic(sums(AtomicCall::Base), false, 8),
            &[at],
            &operands,
        );
        let acks = target
            .read(&stream)
            .unwrap()
            .acks_due
            .into_iter()
            .map(ack_kind)
            .collect::<Vec<_>>();
        assert!(
            matches!(&acks[..], [FrameKind::Nack(nack)] if nack.error == expected),
            "{expected:?}"
        );
    }
}
