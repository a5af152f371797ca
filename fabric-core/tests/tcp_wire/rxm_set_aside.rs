//! RXM messages that are set aside, because a message over budget waits in front of them.

use fabric_core::Error;
use fabric_core::buf::Payload;
use fabric_core::tcp::rxm::{EAGER_LIMIT, PacketKind, RxmPacket, SegmentType};
use fabric_core::tcp::{ProtocolViolation, StopReason, UnexpectedPolicy};

use crate::receiver::{TcpReceiver, UNTAGGED};
use crate::rxm::{
    CONNECTION_ID, RxmPeer, UNEXPECTED_BUDGET, encode_packet, encode_segment, exchange_until_idle,
    rxm_packet, test_pattern,
};

/// Behind an unexpected message over budget, messages wait, and all other frames are read.
#[test]
fn messages_over_budget_are_set_aside() {
    let mut peers = RxmPeer::connected_pair();
    peers[1].receiver = TcpReceiver::rxm(3 * UNEXPECTED_BUDGET, 6);
    let len = UNEXPECTED_BUDGET - 1000;
    let sends = [0, 1].map(|number| {
        peers[0]
            .send(None, None, &test_pattern(number, len))
            .unwrap()
    });
    assert!(
        peers[0]
            .send(None, Some(9), &test_pattern(2, 5000))
            .is_none()
    );
    for (number, segment_type) in [
        (0, SegmentType::First),
        (1, SegmentType::Middle),
        (2, SegmentType::Last),
    ] {
        let packet = RxmPacket {
            connection_id: 6,
            ..rxm_packet(PacketKind::Segment(segment_type, number, 10), 7, 30)
        };
        assert!(
            peers[0]
                .writer
                .push_packet(&packet, Payload::Contiguous(&[number as u8; 10][..]))
        );
    }
    // And in the other direction.
    let op = peers[1].send(None, None, &test_pattern(4, len)).unwrap();
    let back = peers[0].receiver.post_recv(UNTAGGED, None);
    exchange_until_idle(&mut peers, &[70_000]);
    let [a, b] = &peers;
    assert!(a.receiver.received(sends[0]).0.len == len && a.receiver.outcome(sends[1]).is_none());
    assert!(
        a.receiver.received(back).1 == test_pattern(4, len) && b.receiver.received(op).0.len == len
    );
    assert!(b.receiver.reader.has_set_aside());
    let ops = [0; 4].map(|_| peers[1].receiver.post_recv(UNTAGGED, None));
    assert!(peers[1].receiver.try_resume_set_aside());
    peers[1].deliver(b"");
    exchange_until_idle(&mut peers, &[usize::MAX]);
    let b = &peers[1].receiver;
    assert!(!b.reader.has_set_aside());
    for (number, op) in ops.iter().take(2).enumerate() {
        assert!(b.received(*op).1 == test_pattern(number, len), "{number}");
    }
    assert!(b.received(ops[2]).1 == test_pattern(2, 5000) && b.received(ops[2]).0.data == Some(9));
    assert_eq!(b.received(ops[3]).1, [[0; 10], [1; 10], [2; 10]].concat());
    assert_eq!(peers[0].receiver.received(sends[1]).0.len, len);
}

/// A message that was set aside has waited already: when there is budget, the message is buffered,
/// and not deferred again.
#[test]
fn message_set_aside_is_buffered_when_the_budget_has_room() {
    let mut receiver = TcpReceiver::rxm(1500, CONNECTION_ID);
    let bytes = [1, 2]
        .map(|byte| encode_packet(&rxm_packet(PacketKind::Eager, 0, 1000), &[byte; 1000]))
        .concat();
    assert_eq!(receiver.read(&bytes).unwrap().consumed, bytes.len());
    assert!(receiver.reader.has_set_aside() && !receiver.try_resume_set_aside());
    let first = receiver.post_recv(UNTAGGED, None);
    assert_eq!(receiver.received(first).1, [1; 1000]);
    assert!(receiver.try_resume_set_aside(), "the budget has room again");
    receiver
        .reader
        .set_unexpected_policy(UnexpectedPolicy::Defer);
    let outcome = receiver.read(&[]).unwrap();
    assert!(outcome.stop_reason != StopReason::Deferred && !receiver.reader.has_set_aside());
    let second = receiver.post_recv(UNTAGGED, None);
    assert_eq!(receiver.received(second).1, [2; 1000]);
}

/// Without a budget, a connection sets aside no more than its allowance.
#[test]
fn messages_set_aside_are_bounded_in_bytes() {
    let mut receiver = TcpReceiver::rxm(0, CONNECTION_ID);
    let bytes = encode_packet(
        &rxm_packet(PacketKind::Eager, 0, EAGER_LIMIT as u64),
        &[7; EAGER_LIMIT],
    );
    let mut set_aside = 0;
    loop {
        let outcome = receiver.read(&bytes).unwrap();
        if outcome.stop_reason == StopReason::Held {
            assert_eq!(outcome.consumed, 0);
            break;
        }
        set_aside += outcome.consumed;
        assert!(set_aside <= 256 << 10);
    }
    assert!(set_aside > 200 << 10 && !receiver.try_resume(&bytes));
    let op = receiver.post_recv(UNTAGGED, None);
    assert!(receiver.try_resume(&bytes));
    assert_eq!(
        receiver.read(&bytes).unwrap().consumed,
        bytes.len(),
        "one message set aside was delivered, so another is set aside"
    );
    assert_eq!(receiver.received(op).1, [7; EAGER_LIMIT]);
    // A frame longer than any packet blocks the connection at once.
    let mut receiver = TcpReceiver::rxm(0, CONNECTION_ID);
    let long = encode_packet(
        &rxm_packet(PacketKind::Eager, 0, 2 * EAGER_LIMIT as u64),
        &[7; 2 * EAGER_LIMIT],
    );
    assert_eq!(receiver.read(&long).unwrap().stop_reason, StopReason::Held);
}

/// A packet that is set aside is parsed later, and may be malformed: then the partial message is
/// lost with the connection, and its receive waits for the next message.
#[test]
fn invalid_packet_set_aside_fails_partial_message() {
    let mut receiver = TcpReceiver::rxm(300, CONNECTION_ID);
    let interrupted = receiver.post_recv(UNTAGGED, None);
    let over_budget = encode_packet(&rxm_packet(PacketKind::Eager, 0, 1000), &[1; 1000]);
    let malformed = encode_packet(
        &RxmPacket {
            connection_id: CONNECTION_ID + 1,
            ..rxm_packet(PacketKind::Eager, 0, 3)
        },
        b"abc",
    );
    let first = encode_segment(1, SegmentType::First, &[2; 10], 30);
    let last = encode_segment(1, SegmentType::Last, &[2; 20], 30);
    let bytes = [
        first,
        over_budget,
        malformed,
        last[..last.len() - 5].to_vec(),
    ]
    .concat();
    assert_eq!(receiver.read(&bytes).unwrap().consumed, bytes.len());
    let buffered = receiver.post_recv(UNTAGGED, None);
    let ProtocolViolation(what) = receiver.read(&[]).unwrap_err();
    assert!(what.contains("wrong connection id"), "{what}");
    assert_eq!(receiver.received(buffered).0.len, 1000);
    for partial in receiver.reader.abort() {
        receiver
            .rx
            .fail_partial(&mut receiver.context, partial, Error::Canceled);
    }
    assert!(receiver.outcome(interrupted).is_none() && receiver.rx.has_posted());
}
