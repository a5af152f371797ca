//! Valid and malformed streams, split at any byte.

use fabric_core::buf::Payload;
use fabric_core::tcp::{
    ByteOrder, Frame, FrameWriter, MAX_MESSAGE, ProtocolViolation, StopReason, UnexpectedPolicy,
};
use fabric_core::{Error, completion::Transfer};
use proptest::prelude::*;

use crate::receiver::{ANY_TAG, TcpReceiver, UNTAGGED};
use crate::{hex, largest_allocation, supported_tag};

const UNEXPECTED_BUDGET: usize = 1 << 20;

/// Returns the header of a message that announces this length.
fn header_with_len(len: u64) -> Vec<u8> {
    let mut bytes = hex("03 00 0000 00 00 10 00 0000000000000000");
    bytes[8..16].copy_from_slice(&(len + 16).to_le_bytes());
    bytes
}

#[derive(Clone, Debug)]
struct StreamMessage {
    tag: Option<u64>,
    data: Option<u64>,
    len: usize,
    /// The payload is sent from its buffer.
    separate_payload: bool,
    /// The bytes stay in the writer until the next message has been added.
    keep_pending: bool,
}

fn test_pattern(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + number) as u8).collect()
}

prop_compose! {
    fn any_messages()(list in prop::collection::vec(
        (
            any::<Option<u64>>(),
            any::<Option<u64>>(),
            prop_oneof![0..4usize, 0..200usize, 1000..9000usize],
            any::<bool>(),
            any::<bool>(),
        ),
        1..12,
    )) -> Vec<StreamMessage> {
        list.into_iter()
            .map(|(tag, data, len, separate_payload, keep_pending)| StreamMessage {
                tag,
                data,
                len,
                separate_payload,
                keep_pending,
            })
            .collect()
    }
}

/// Returns an acknowledgement that is due.
fn ack_due() -> fabric_core::tcp::AckDue {
    let mut receiver = TcpReceiver::new(ByteOrder::Little, UNEXPECTED_BUDGET);
    let mut outcome = receiver.read(&hex(crate::frames::FIN)).unwrap();
    assert_eq!((outcome.consumed, outcome.acks_due.len()), (20, 1));
    outcome.acks_due.pop().unwrap()
}

/// Encodes the stream of these messages, without acks, which are sent only on request.
fn encode_stream(order: ByteOrder, messages: &[StreamMessage]) -> Vec<u8> {
    let (mut writer, mut bytes) = (FrameWriter::new(order), Vec::new());
    let flush = |writer: &mut FrameWriter, bytes: &mut Vec<u8>, limit: usize| {
        let count = writer.pending().len().min(limit);
        bytes.extend_from_slice(&writer.pending()[..count]);
        writer.advance(count);
    };
    for (number, message) in messages.iter().enumerate() {
        let payload = test_pattern(number, message.len);
        if message.separate_payload {
            assert!(writer.begin_frame(
                &Frame::message(supported_tag(message.tag), message.data, message.len),
                &[]
            ));
            flush(&mut writer, &mut bytes, usize::MAX);
            bytes.extend_from_slice(&payload);
            writer.end_frame();
        } else {
            assert!(writer.push_message(
                supported_tag(message.tag),
                message.data,
                Payload::Contiguous(&payload)
            ));
            flush(&mut writer, &mut bytes, 5);
        }
        assert!(!writer.is_open());
        if !message.keep_pending {
            flush(&mut writer, &mut bytes, usize::MAX);
        }
        if message.separate_payload {
            // Pending bytes are sent before the payload of an open frame.
            flush(&mut writer, &mut bytes, usize::MAX);
        }
        if messages
            .get(number + 1)
            .is_some_and(|next| next.separate_payload)
        {
            flush(&mut writer, &mut bytes, usize::MAX);
        }
    }
    flush(&mut writer, &mut bytes, usize::MAX);
    assert!(writer.pending().is_empty());
    bytes
}

/// Reads a stream in parts of these lengths, each with the unconsumed rest in front. Returns the
/// unconsumed bytes.
fn read_in_pieces(
    receiver: &mut TcpReceiver,
    stream: &[u8],
    cuts: &[usize],
) -> Result<Vec<u8>, ProtocolViolation> {
    let (mut rest, mut at, mut turn) = (Vec::new(), 0, 0);
    while at < stream.len() {
        let count = cuts[turn % cuts.len()].clamp(1, stream.len() - at);
        rest.extend_from_slice(&stream[at..at + count]);
        (at, turn) = (at + count, turn + 1);
        let outcome = receiver.read(&rest)?;
        assert!(outcome.consumed <= rest.len() && outcome.stop_reason != StopReason::Held);
        rest.drain(..outcome.consumed);
    }
    Ok(rest)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 100 }))]

    /// Every message arrives once, whole, in order and with all its fields, however the stream was
    /// split, expected or unexpected.
    #[test]
    fn messages_arrive_once_in_order_at_any_split(
        messages in any_messages(),
        cuts in prop::collection::vec(prop_oneof![1..3usize, 1..40usize, 1..20_000usize], 1..8),
        is_awaited: bool,
        is_big: bool,
    ) {
        let order = if is_big { ByteOrder::Big } else { ByteOrder::Little };
        let mut receiver = TcpReceiver::new(order, UNEXPECTED_BUDGET);
        let spec = |message: &StreamMessage| if message.tag.is_some() { ANY_TAG } else { UNTAGGED };
        let post = |receiver: &mut TcpReceiver| {
            messages
                .iter()
                .map(|message| receiver.post_recv(spec(message), None))
                .collect::<Vec<_>>()
        };
        let posted = is_awaited.then(|| post(&mut receiver));
        let stream = encode_stream(order, &messages);
        prop_assert_eq!(read_in_pieces(&mut receiver, &stream, &cuts), Ok(Vec::new()));
        prop_assert_eq!(receiver.reader.abort(), vec![]);
        let ops = posted.unwrap_or_else(|| post(&mut receiver));
        for (number, (message, op)) in messages.iter().zip(ops).enumerate() {
            let (Transfer { len, tag, data, .. }, bytes) = receiver.received(op);
            prop_assert_eq!((len, tag, data), (message.len, message.tag, message.data));
            prop_assert_eq!(bytes, test_pattern(number, message.len));
        }
    }

    /// Any bytes are accepted or rejected, and an announced length alone uses no memory.
    #[test]
    fn random_bytes_are_rejected_or_wait_for_more_bytes(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        cuts in prop::collection::vec(1..50usize, 1..5),
    ) {
        let mut receiver = TcpReceiver::new(ByteOrder::Little, UNEXPECTED_BUDGET);
        let _ = receiver.post_recv(UNTAGGED, None);
        let largest = largest_allocation(|| {
            let (mut rest, mut at) = (Vec::new(), 0);
            for cut in cuts.iter().cycle() {
                let end = (at + cut).min(bytes.len());
                rest.extend_from_slice(&bytes[at..end]);
                let Ok(outcome) = receiver.read(&rest) else { return };
                assert!(outcome.consumed <= rest.len());
                rest.drain(..outcome.consumed);
                if outcome.stop_reason == StopReason::Held || end == bytes.len() {
                    return;
                }
                at = end;
            }
        });
        prop_assert!(largest <= 256 << 10, "{largest}");
    }
}

/// An ack is due once the whole message has arrived, and only once.
#[test]
fn ack_is_due_after_the_whole_message() {
    let fin = hex(crate::frames::FIN);
    for cut in 1..fin.len() {
        let mut receiver = TcpReceiver::new(ByteOrder::Little, UNEXPECTED_BUDGET);
        let outcome = receiver.read(&fin[..cut]).unwrap();
        assert!(outcome.acks_due.is_empty(), "cut at {cut}");
        let rest = [&fin[outcome.consumed..cut], &fin[cut..]].concat();
        let outcome = receiver.read(&rest).unwrap();
        assert_eq!(
            (outcome.consumed, outcome.acks_due.len()),
            (rest.len(), 1),
            "cut at {cut}"
        );
    }
    let mut writer = FrameWriter::new(ByteOrder::Little);
    let frame = Frame::message(None, None, 4);
    assert!(writer.begin_frame(&frame, &[]));
    let header = writer.pending().len();
    assert!(
        !writer.begin_frame(&frame, &[])
            && !writer.push_message(None, None, Payload::Contiguous(&b"x"[..]))
    );
    assert_eq!(
        writer.pending().len(),
        header,
        "no message begins within an open one"
    );
    writer.push_ack(ack_due());
    writer.advance(writer.pending().len());
    assert!(
        writer.pending().is_empty(),
        "no frame may come between a header and its payload"
    );
    writer.end_frame();
    // The ack is the second header on this stream.
    assert_eq!(
        writer.pending(),
        hex("03 00 0000 02 00 10 01 1000000000000000")
    );
    writer.push_ack(ack_due());
    assert_eq!(writer.pending().len(), 32);
    writer.clear();
    assert!(writer.pending().is_empty());
}

#[test]
fn restored_pending_bytes_precede_bytes_added_later() {
    let order = ByteOrder::Little;
    let push = |writer: &mut FrameWriter, byte: u8| {
        assert!(writer.push_message(None, None, Payload::Contiguous(&[byte; 10])));
    };
    let mut whole = FrameWriter::new(order);
    (1..=3).for_each(|byte| push(&mut whole, byte));
    let whole = whole.pending().to_vec();
    let mut writer = FrameWriter::new(order);
    push(&mut writer, 1);
    push(&mut writer, 2);
    writer.advance(7);
    let taken = writer.take_pending();
    assert!(taken == whole[7..taken.len() + 7] && writer.pending().is_empty());
    let end = 7 + taken.len() as u64;
    assert_eq!(
        (writer.total_written(), writer.end()),
        (7, end),
        "taken bytes do not count as written"
    );
    // Another message is added meanwhile.
    push(&mut writer, 3);
    assert_eq!(writer.pending(), &whole[7 + taken.len()..]);
    writer.advance(0);
    writer.restore_pending(&taken[3..]);
    assert_eq!(writer.pending(), &whole[10..]);
    assert_eq!(
        (writer.total_written(), writer.end()),
        (10, whole.len() as u64)
    );
    writer.advance(5);
    writer.restore_pending(b"");
    assert_eq!(writer.pending(), &whole[15..]);
    writer.clear();
    assert_eq!(
        (writer.total_written(), writer.end()),
        (15, 15),
        "discarded bytes do not count as written"
    );
}

#[test]
fn message_over_budget_is_held_unread() {
    let mut receiver = TcpReceiver::new(ByteOrder::Little, UNEXPECTED_BUDGET);
    let mut bytes = header_with_len(2 << 20);
    // Less than 4 KiB take neither a receive nor a buffer.
    bytes.resize(16 + 4095, 5);
    let outcome = receiver.read(&bytes).unwrap();
    assert!(outcome.stop_reason == StopReason::NeedsBytes && outcome.consumed == 0);
    bytes.push(5);
    let largest = largest_allocation(|| {
        let outcome = receiver.read(&bytes).unwrap();
        assert!(outcome.stop_reason == StopReason::Held && outcome.consumed == 0);
    });
    assert!(largest < 4096, "{largest}");
    assert_eq!(receiver.rx.unexpected(), (0, 0));
    assert!(!receiver.try_resume(&bytes));
    let op = receiver.post_recv(UNTAGGED, None);
    assert!(receiver.try_resume(&bytes));
    assert_eq!(receiver.read(&bytes).unwrap().consumed, 16 + 4096);
    let part = vec![5; 1 << 20];
    assert_eq!(receiver.read(&part).unwrap().consumed, 1 << 20);
    assert!(receiver.outcome(op).is_none());
    let rest = &part[4096..];
    assert_eq!(receiver.read(rest).unwrap().consumed, rest.len());
    assert_eq!(receiver.received(op).1.len(), 2 << 20);
}

/// Responses are found behind held messages. Bytes that were not read may be responses if more of
/// them follow than the rest of the last frame.
#[test]
fn responses_are_found_behind_held_messages() {
    let mut receiver = TcpReceiver::new(ByteOrder::Little, 0);
    let mut bytes = header_with_len(100);
    bytes.resize(116, 5);
    let outcome = receiver.read(&bytes).unwrap();
    assert!(outcome.stop_reason == StopReason::Held && outcome.consumed == 0);
    let may_contain = |bytes: &[u8], unread| receiver.reader.may_contain_response(bytes, unread);
    assert!(!may_contain(&bytes, 0) && may_contain(&bytes, 1));
    // Part of the message was not read.
    assert!(!may_contain(&bytes[..50], 66) && may_contain(&bytes[..50], 67));
    let messages = bytes.repeat(3);
    assert!(!may_contain(&messages, 0));
    assert!(!may_contain(&messages[..300], 48) && may_contain(&messages[..300], 49));
    let mut writer = FrameWriter::new(ByteOrder::Little);
    writer.push_ack(ack_due());
    assert!(may_contain(&[&messages, writer.pending()].concat(), 0));
    // A header that is incomplete.
    bytes.extend_from_slice(&writer.pending()[..8]);
    assert!(!may_contain(&bytes, 0) && may_contain(&bytes, 8));
}

/// Header of a response of 8 bytes to a read.
const READ_RSP_HEADER: &str = "03 03 0000 00 00 10 00 1800000000000000";

/// The rest of a frame that has begun precedes the next frame.
#[test]
fn response_is_found_behind_the_rest_of_a_frame() {
    let mut receiver = TcpReceiver::new(ByteOrder::Little, UNEXPECTED_BUDGET);
    let mut bytes = header_with_len(10_000);
    bytes.resize(16 + 5_000, 5);
    assert_eq!(receiver.read(&bytes).unwrap().consumed, bytes.len());
    let may_contain = |bytes: &[u8], unread| receiver.reader.may_contain_response(bytes, unread);
    assert!(!may_contain(&[], 5_000) && may_contain(&[], 5_001));
    let mut writer = FrameWriter::new(ByteOrder::Little);
    writer.push_ack(ack_due());
    let rest = [&[5; 5_000], writer.pending()].concat();
    assert!(may_contain(&rest, 0) && !may_contain(&rest[..5_000], 0));
    receiver.expect_read(8);
    assert_eq!(receiver.read(&rest[..5_000]).unwrap().consumed, 5_000);
    assert_eq!(receiver.read(&hex(READ_RSP_HEADER)).unwrap().consumed, 16);
    assert!(receiver.reader.may_contain_response(&[], 0));
}

/// Nothing is allocated for an announced length that is invalid or that no receive waits for. A
/// receive reserves that length once.
#[test]
fn length_in_a_header_allocates_no_memory() {
    for (len, is_invalid) in [
        (1 << 60, true),
        (u64::MAX - 16, true),
        (MAX_MESSAGE as u64 + 1, true),
        (MAX_MESSAGE as u64, false),
    ] {
        for is_awaited in [false, true] {
            let mut receiver = TcpReceiver::new(ByteOrder::Little, UNEXPECTED_BUDGET);
            if is_awaited {
                receiver.post_recv(UNTAGGED, None);
            }
            let mut failed = false;
            let largest =
                largest_allocation(|| failed = receiver.read(&header_with_len(len)).is_err());
            assert_eq!(failed, is_invalid, "{len}");
            let limit = if is_awaited && !is_invalid {
                len as usize
            } else {
                4 << 20
            };
            assert!(largest <= limit, "{largest} for a claim of {len}");
        }
    }
}

#[test]
fn message_after_a_truncated_one_arrives() {
    for first in [3, 10] {
        let mut receiver = TcpReceiver::new(ByteOrder::Little, UNEXPECTED_BUDGET);
        let (short, next) = (
            receiver.post_recv(UNTAGGED, Some(4)),
            receiver.post_recv(UNTAGGED, None),
        );
        let message = |len| StreamMessage {
            tag: None,
            data: None,
            len,
            separate_payload: false,
            keep_pending: false,
        };
        let bytes = encode_stream(ByteOrder::Little, &[message(10), message(5)]);
        assert_eq!(
            read_in_pieces(&mut receiver, &bytes, &[16 + first, 100]),
            Ok(Vec::new())
        );
        let cut = receiver.outcome(short).unwrap();
        assert!(
            matches!(
                cut.error.as_deref(),
                Some(Error::Truncated { len: 4, lost: 6 })
            ),
            "{cut:?}"
        );
        assert_eq!(receiver.received(next).1, test_pattern(1, 5));
    }
}

#[test]
fn unsupported_frames_close_connection() {
    for (text, what) in [
        (crate::frames::ACK, "unsolicited acknowledgement"),
        (
            "03 02 0000 00 01 28 00 2800000000000000 \
             0000000000000000 0800000000000000 0000000000000000",
            "may not access",
        ),
        (
            "03 03 0000 00 00 10 00 1400000000000000 00000000",
            "unsolicited read response",
        ),
        (
            "03 05 0000 01 00 20 00 2000000000000000 0000000000000000 0000000000000000",
            "rendezvous",
        ),
        ("03 06 0000 01 00 10 00 1000000000000000", "rendezvous"),
        ("03 c8 0000 00 00 10 00 1000000000000000", "unknown"),
    ] {
        let mut receiver = TcpReceiver::new(ByteOrder::Little, UNEXPECTED_BUDGET);
        let ProtocolViolation(why) = receiver.read(&hex(text)).unwrap_err();
        assert!(why.contains(what), "{why} for {what}");
    }
}

#[test]
fn abort_returns_the_incomplete_message() {
    let mut receiver = TcpReceiver::new(ByteOrder::Little, UNEXPECTED_BUDGET);
    let op = receiver.post_recv(UNTAGGED, None);
    let later = receiver.post_recv(UNTAGGED, None);
    let mut bytes = hex("03 00 0000 00 00 10 00 0020000000000000");
    bytes.resize(16 + 4096, 1);
    receiver.read(&bytes).unwrap();
    let partial = receiver
        .reader
        .abort()
        .pop()
        .expect("the message is incomplete");
    receiver
        .rx
        .fail_partial(&mut receiver.context, partial, Error::Canceled);
    assert_eq!(receiver.reader.abort(), []);
    // The receive waits for another message, before receives that were posted later.
    assert!(receiver.outcome(op).is_none());
    assert!(receiver.rx.cancel(&mut receiver.context, op));
    assert!(receiver.rx.cancel(&mut receiver.context, later));
    assert!(!receiver.rx.has_posted());
}

/// A message that arrives while no receive is posted stays unread for one more pass, and again
/// whenever a receive has taken a message: a program that posts between two passes gets every
/// message without buffering.
#[test]
fn unmatched_message_is_buffered_in_the_second_pass() {
    let mut writer = FrameWriter::new(ByteOrder::Little);
    for byte in 0..4 {
        assert!(writer.push_message(None, None, Payload::Contiguous(&[byte; 10])));
    }
    let stream = writer.pending();
    let one = stream.len() / 4;
    let mut receiver = TcpReceiver::new(ByteOrder::Little, UNEXPECTED_BUDGET);
    let read_at = |receiver: &mut TcpReceiver, at: usize, policy| {
        receiver.reader.set_unexpected_policy(policy);
        let outcome = receiver.read(&stream[at..]).unwrap();
        assert!(outcome.stop_reason != StopReason::Held);
        (
            outcome.consumed,
            outcome.stop_reason == StopReason::Deferred,
        )
    };
    assert_eq!(
        read_at(&mut receiver, 0, UnexpectedPolicy::Defer),
        (0, true)
    );
    let posted = receiver.post_recv(UNTAGGED, None);
    assert_eq!(
        read_at(&mut receiver, 0, UnexpectedPolicy::DeferredOnce),
        (one, true),
        "one message is delivered, the next stays unread"
    );
    assert_eq!(receiver.received(posted).1, [0; 10]);
    let (first, second) = (
        receiver.post_recv(ANY_TAG, None),
        receiver.post_recv(UNTAGGED, None),
    );
    // While a receive is posted, a message that does not match it is buffered: the program is not
    // about to post its first receive.
    assert_eq!(
        read_at(&mut receiver, one, UnexpectedPolicy::DeferredOnce),
        (3 * one, false)
    );
    assert_eq!(receiver.received(second).1, [1; 10]);
    let _ = first;
    for byte in 2..4 {
        let late = receiver.post_recv(UNTAGGED, None);
        assert_eq!(receiver.received(late).1, [byte; 10]);
    }
    let mut other = TcpReceiver::new(ByteOrder::Little, UNEXPECTED_BUDGET);
    assert_eq!(
        read_at(&mut other, 0, UnexpectedPolicy::DeferredOnce),
        (4 * one, false),
        "without posted receives messages are buffered"
    );
    assert_eq!(
        read_at(&mut other, 3 * one, UnexpectedPolicy::Buffer),
        (one, false),
        "the policy for the last read buffers messages"
    );
}
