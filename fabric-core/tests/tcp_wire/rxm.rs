//! Valid and malformed RXM packets, segments and rendezvous messages, split at any byte.

use fabric_core::Error;
use fabric_core::buf::Payload;
use fabric_core::completion::Transfer;
use fabric_core::tcp::rxm::{
    EAGER_LIMIT, MAX_READS_IN_FLIGHT, MAX_SEGMENTED_MESSAGES, PACKET_HEADER_LEN, PacketKind,
    RxmPacket, RxmSender, SegmentType,
};
use fabric_core::tcp::{
    ByteOrder, Frame, FrameWriter, MAX_MESSAGE, ProtocolViolation, RmaIovList, StopReason,
    WireRmaIov,
};
use fabric_core::transport::OpKey;
use proptest::prelude::*;

use crate::receiver::{ANY_TAG, PEER, TcpReceiver, UNTAGGED, context_of};
use crate::{hex, largest_allocation};

pub(crate) const UNEXPECTED_BUDGET: usize = 1 << 20;
/// Connection id of the packets.
pub(crate) const CONNECTION_ID: u32 = 5;

/// Captured from libfabric 1.17: ten bytes; the same with a tag, without a packet header; a
/// rendezvous packet of 20000 bytes.
const EAGER_BYTES: &str = "03 00 0000 00 00 10 00 5a00000000000000 \
    0400 0000 00000000 0500000000000000 0000000000000000 \
    0000000000000000 0200 0000 00000000 0a00000000000000 0000000000000000 0000000000000000 \
    30313233343536373839";
const RAW_TAGGED_BYTES: &str =
    "03 00 8000 00 00 18 00 2200000000000000 d204000000000000 30313233343536373839";
const RENDEZVOUS_BYTES: &str = "03 00 0000 00 00 10 00 b800000000000000 \
    0402 0000 00000000 0500000000000000 0000000000000000 \
    0000000000000000 0200 0100 00000000 204e000000000000 0000000000000000 d204000000000000 \
    0000000000000000 204e000000000000 0000008000000000 \
    000000000000000000000000000000000000000000000000 \
    000000000000000000000000000000000000000000000000 \
    000000000000000000000000000000000000000000000000 \
    0100000000000000";

pub(crate) fn test_pattern(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + number) as u8).collect()
}

fn rxm_receiver() -> TcpReceiver {
    TcpReceiver::rxm(UNEXPECTED_BUDGET, CONNECTION_ID)
}

pub(crate) fn rxm_packet(kind: PacketKind, message_id: u64, len: u64) -> RxmPacket {
    RxmPacket {
        kind,
        connection_id: CONNECTION_ID,
        message_id,
        tag: None,
        data: None,
        len,
    }
}

/// Encodes a packet within its frame.
pub(crate) fn encode_packet(packet: &RxmPacket, body: &[u8]) -> Vec<u8> {
    let mut writer = FrameWriter::new(ByteOrder::NATIVE);
    assert!(writer.push_packet(packet, Payload::Contiguous(body)));
    writer.pending().to_vec()
}

pub(crate) fn encode_segment(
    message_id: u64,
    segment_type: SegmentType,
    body: &[u8],
    len: usize,
) -> Vec<u8> {
    encode_packet(
        &rxm_packet(
            PacketKind::Segment(segment_type, 0, body.len() as u16),
            message_id,
            len as u64,
        ),
        body,
    )
}

/// Encodes the location of a rendezvous message.
fn encode_rma_iovs(iovs: &[WireRmaIov], count: u8) -> Vec<u8> {
    let mut bytes: Vec<u8> = iovs
        .iter()
        .flat_map(|iov| [iov.addr, iov.len, iov.key])
        .flat_map(u64::to_ne_bytes)
        .collect();
    bytes.resize(96, 0);
    bytes.extend([count, 0, 0, 0, 0, 0, 0, 0]);
    bytes
}

#[test]
fn packets_match_libfabric_bytes() {
    if ByteOrder::NATIVE == ByteOrder::Big {
        return;
    }
    let mut receiver = rxm_receiver();
    let ops = [
        receiver.post_recv(UNTAGGED, None),
        receiver.post_recv(ANY_TAG, None),
        receiver.post_recv(ANY_TAG, None),
    ];
    let bytes = [
        hex(EAGER_BYTES),
        hex(RAW_TAGGED_BYTES),
        hex(RENDEZVOUS_BYTES),
    ]
    .concat();
    assert_eq!(receiver.read(&bytes).unwrap().consumed, bytes.len());
    for (op, tag) in [(ops[0], None), (ops[1], Some(1234))] {
        let (transfer, bytes) = receiver.received(op);
        assert_eq!(
            (transfer.tag, transfer.data, bytes),
            (tag, None, &b"0123456789"[..])
        );
    }
    let iov = WireRmaIov {
        addr: 0,
        len: 20_000,
        key: 0x8000_0000,
    };
    assert_eq!(receiver.next_rendezvous_read(), Some(iov));
    assert_eq!(receiver.next_rendezvous_read(), None);
    let mut writer = FrameWriter::with_rxm(ByteOrder::NATIVE, RxmSender::new(CONNECTION_ID));
    assert!(writer.push_message(None, None, Payload::Contiguous(&b"0123456789"[..])));
    assert_eq!(writer.pending(), hex(EAGER_BYTES));
    // The sender chooses the id of the message: here it is the key.
    let mut expected = hex(RENDEZVOUS_BYTES);
    expected[16 + 16..][..8].copy_from_slice(&iov.key.to_ne_bytes());
    let mut writer = FrameWriter::with_rxm(ByteOrder::NATIVE, RxmSender::new(CONNECTION_ID));
    assert!(writer.push_rendezvous(iov, Some(1234), None));
    assert_eq!(writer.pending(), expected);
}

prop_compose! {
    fn any_packet()(
        kind in prop_oneof![
            Just(PacketKind::Eager), Just(PacketKind::Rendezvous),
            (
                prop_oneof![
                    Just(SegmentType::First), Just(SegmentType::Middle), Just(SegmentType::Last)
                ],
                any::<u32>(),
                any::<u16>(),
            )
                .prop_map(|(segment_type, number, size)| {
                    PacketKind::Segment(segment_type, number, size)
                }),
        ],
        connection_id: u32, message_id: u64, tag: Option<u64>, data: Option<u64>, len: u64,
    ) -> RxmPacket {
        RxmPacket { kind, connection_id, message_id, tag, data, len }
    }
}

/// One end of a connection.
pub(crate) struct RxmPeer {
    pub(crate) receiver: TcpReceiver,
    pub(crate) writer: FrameWriter,
    unread: Vec<u8>,
    /// Largest number of reads requested in one step.
    max_reads: usize,
}

impl RxmPeer {
    pub(crate) fn connected_pair() -> [Self; 2] {
        [(CONNECTION_ID, 6), (6, CONNECTION_ID)].map(|(ours, theirs)| Self {
            receiver: TcpReceiver::rxm(16 * UNEXPECTED_BUDGET, ours),
            writer: FrameWriter::with_rxm(ByteOrder::NATIVE, RxmSender::new(theirs)),
            unread: Vec::new(),
            max_reads: 0,
        })
    }

    pub(crate) fn send(
        &mut self,
        tag: Option<u64>,
        data: Option<u64>,
        bytes: &[u8],
    ) -> Option<OpKey> {
        if bytes.len() <= EAGER_LIMIT {
            assert!(self.writer.push_message(
                crate::supported_tag(tag),
                data,
                Payload::Contiguous(bytes)
            ));
            return None;
        }
        let op = self.receiver.new_send_op(bytes);
        let iov = self.receiver.responses.rendezvous.add(
            op,
            tag,
            bytes.len(),
            &context_of(&mut self.receiver.rx, &mut self.receiver.context),
        );
        assert!(self.writer.push_rendezvous(iov, tag, data));
        Some(op)
    }

    /// Requests reads and writes responses; returns at most `limit` bytes to be sent.
    fn progress(&mut self, limit: usize) -> Vec<u8> {
        let (mut reads, no_bytes) = (0, Payload::Contiguous(&[]));
        while !self.writer.is_open()
            && let Some(iov) = self.receiver.next_rendezvous_read()
        {
            let iovs = RmaIovList::from_rma_iovs(&[iov.to_rma_iov()]).unwrap();
            assert!(self.writer.push_frame(&Frame::read(&iovs), &iovs, no_bytes));
            reads += 1;
        }
        self.max_reads = self.max_reads.max(reads);
        let TcpReceiver {
            rx,
            responses,
            context,
            ..
        } = &mut self.receiver;
        responses
            .write_responses(
                &mut self.writer,
                (64 << 10, usize::MAX),
                PEER,
                &mut context_of(rx, context),
            )
            .unwrap();
        let count = self.writer.pending().len().min(limit);
        let bytes = self.writer.pending()[..count].to_vec();
        self.writer.advance(count);
        bytes
    }

    pub(crate) fn deliver(&mut self, bytes: &[u8]) {
        self.unread.extend_from_slice(bytes);
        let outcome = self.receiver.read(&self.unread).unwrap();
        assert!(outcome.stop_reason != StopReason::Held);
        self.unread.drain(..outcome.consumed);
        outcome
            .rendezvous_done
            .into_iter()
            .for_each(|message| self.writer.push_rendezvous_done(message));
    }
}

/// Runs both ends until neither has bytes to send.
pub(crate) fn exchange_until_idle([a, b]: &mut [RxmPeer; 2], cuts: &[usize]) {
    for turn in 0.. {
        let cut = cuts[turn % cuts.len()];
        let (to_b, to_a) = (a.progress(cut), b.progress(cut));
        if to_a.is_empty() && to_b.is_empty() {
            return;
        }
        a.deliver(&to_a);
        b.deliver(&to_b);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 60 }))]

    #[test]
    fn packet_headers_round_trip(packet in any_packet()) {
        prop_assert_eq!(RxmPacket::decode(&packet.encode()), Ok(packet));
    }

    /// Messages of all lengths in both directions, eager and rendezvous: each arrives once, whole,
    /// in order and with all its fields, however the streams were split, expected or unexpected;
    /// and every rendezvous send completes.
    #[test]
    fn messages_arrive_once_in_order_at_any_split(
        list in prop::collection::vec(
            (any::<bool>(), any::<Option<u64>>(), any::<Option<u64>>(),
             prop_oneof![
                 0..4usize,
                 0..200usize,
                 EAGER_LIMIT - 2..EAGER_LIMIT + 3,
                 100_000..1_300_000usize,
             ]),
            1..8,
        ),
        cuts in prop::collection::vec(
            prop_oneof![1000..2000usize, 1..100_000usize, Just(usize::MAX)],
            1..6,
        ),
        is_awaited: bool,
    ) {
        let mut peers = RxmPeer::connected_pair();
        let post = |peers: &mut [RxmPeer; 2]| list.iter().map(|(to_b, tag, ..)| {
            let spec = if tag.is_some() { ANY_TAG } else { UNTAGGED };
            peers[usize::from(*to_b)].receiver.post_recv(spec, None)
        }).collect::<Vec<_>>();
        let posted = is_awaited.then(|| post(&mut peers));
        let mut rendezvous_sends = Vec::new();
        for (number, (to_b, tag, data, len)) in list.iter().enumerate() {
            let from = usize::from(!to_b);
            let op = peers[from].send(*tag, *data, &test_pattern(number, *len));
            rendezvous_sends.extend(op.map(|op| (from, op, *len)));
        }
        exchange_until_idle(&mut peers, &cuts);
        let ops = posted.unwrap_or_else(|| post(&mut peers));
        for (number, ((to_b, tag, data, len), op)) in list.iter().zip(ops).enumerate() {
            let (transfer, bytes) = peers[usize::from(*to_b)].receiver.received(op);
            prop_assert_eq!((transfer.len, transfer.tag, transfer.data), (*len, *tag, *data));
            prop_assert!(bytes == test_pattern(number, *len));
        }
        for (from, op, len) in rendezvous_sends {
            prop_assert_eq!(peers[from].receiver.received(op).0.len, len);
        }
        for peer in &mut peers {
            let receiver = &mut peer.receiver;
            prop_assert!(receiver.reader.abort().is_empty());
            prop_assert!(receiver.responses.rendezvous.is_empty());
            prop_assert!(peer.max_reads <= MAX_READS_IN_FLIGHT);
        }
    }

    /// Interleaved messages in segments, split anywhere.
    #[test]
    fn interleaved_segments_are_reassembled(
        lens in prop::collection::vec(2..40_000usize, 1..6),
        parts in prop::collection::vec(1..9_000usize, 1..5),
        cuts in prop::collection::vec(prop_oneof![1..3usize, 1..100usize, 1..30_000usize], 1..8),
        is_awaited: bool,
    ) {
        let mut receiver = rxm_receiver();
        let post = |receiver: &mut TcpReceiver| {
            lens.iter().map(|_| receiver.post_recv(UNTAGGED, None)).collect::<Vec<_>>()
        };
        let posted = is_awaited.then(|| post(&mut receiver));
        let (mut stream, mut sent) = (Vec::new(), vec![0; lens.len()]);
        let mut turn = 0;
        while sent != lens {
            for (number, len) in lens.iter().enumerate() {
                let (from, remaining) = (sent[number], len - sent[number]);
                if remaining == 0 {
                    continue;
                }
                let limit = if from == 0 { remaining - 1 } else { remaining };
                let part = parts[turn % parts.len()].min(limit);
                let segment_type = match from {
                    0 => SegmentType::First,
                    _ if part == remaining => SegmentType::Last,
                    _ => SegmentType::Middle,
                };
                let bytes = &test_pattern(number, *len)[from..from + part];
                stream.extend(encode_segment(number as u64, segment_type, bytes, *len));
                (sent[number], turn) = (from + part, turn + 1);
            }
        }
        let (mut rest, mut at, mut turn) = (Vec::new(), 0, 0);
        while at < stream.len() {
            let count = cuts[turn % cuts.len()].min(stream.len() - at);
            rest.extend_from_slice(&stream[at..at + count]);
            (at, turn) = (at + count, turn + 1);
            let outcome = receiver.read(&rest).unwrap();
            rest.drain(..outcome.consumed);
        }
        prop_assert!(rest.is_empty() && receiver.reader.abort().is_empty());
        let ops = posted.unwrap_or_else(|| post(&mut receiver));
        for (number, (len, op)) in lens.iter().zip(ops).enumerate() {
            prop_assert!(receiver.received(op).1 == test_pattern(number, *len));
        }
    }

    /// Any packet is accepted or rejected.
    #[test]
    fn random_packets_are_rejected_or_wait_for_more_bytes(
        packet in any_packet(),
        is_ours: bool,
        body in prop::collection::vec(any::<u8>(), 0..200),
        cut in 0..300usize,
    ) {
        let mut receiver = rxm_receiver();
        let _ = receiver.post_recv(UNTAGGED, Some(16));
        let connection_id = if is_ours { CONNECTION_ID } else { packet.connection_id };
        let bytes = encode_packet(&RxmPacket { connection_id, ..packet }, &body);
        let cut = cut.min(bytes.len());
        let largest = largest_allocation(|| {
            if let Ok(outcome) = receiver.read(&bytes[..cut])
                && outcome.stop_reason != StopReason::Held
            {
                let _ = receiver.read(&bytes[outcome.consumed..]);
            }
        });
        prop_assert!(largest <= 4 << 20, "{largest}");
        prop_assert!(receiver.rx.unexpected().1 <= UNEXPECTED_BUDGET);
    }
}

#[test]
fn packet_is_read_at_every_split() {
    let rendezvous = encode_packet(
        &rxm_packet(PacketKind::Rendezvous, 3, 8),
        &encode_rma_iovs(
            &[WireRmaIov {
                addr: 0,
                len: 8,
                key: 1,
            }],
            1,
        ),
    );
    let eager = encode_packet(&rxm_packet(PacketKind::Eager, 0, 10), b"0123456789");
    for (bytes, is_rendezvous) in [(eager, false), (rendezvous, true)] {
        for cut in 0..bytes.len() {
            let mut receiver = rxm_receiver();
            let op = receiver.post_recv(UNTAGGED, None);
            let consumed = receiver.read(&bytes[..cut]).unwrap().consumed;
            assert_eq!(
                consumed + receiver.read(&bytes[consumed..]).unwrap().consumed,
                bytes.len(),
                "cut at {cut}"
            );
            if is_rendezvous {
                assert_eq!(
                    receiver.next_rendezvous_read(),
                    Some(WireRmaIov {
                        addr: 0,
                        len: 8,
                        key: 1
                    })
                );
            } else {
                assert_eq!(receiver.received(op).1, b"0123456789");
            }
        }
    }
}

#[test]
fn invalid_packets_close_connection() {
    use PacketKind::{Eager, Rendezvous, RendezvousDone, Segment};
    let iov = |len| WireRmaIov {
        addr: 0,
        len,
        key: 1,
    };
    let first = |len| encode_segment(1, SegmentType::First, &[0; 10], len);
    let with = |mut bytes: Vec<u8>, at: usize, byte: u8| {
        bytes[16 + at] = byte;
        bytes
    };
    let eager = || encode_packet(&rxm_packet(Eager, 0, 3), b"abc");
    let cases = [
        ("packet header", {
            let mut writer = FrameWriter::new(ByteOrder::NATIVE);
            assert!(writer.push_message(
                None,
                None,
                Payload::Contiguous(&[0; PACKET_HEADER_LEN - 1][..])
            ));
            writer.pending().to_vec()
        }),
        (
            "wrong connection id",
            encode_packet(
                &RxmPacket {
                    connection_id: CONNECTION_ID + 1,
                    ..rxm_packet(Eager, 0, 3)
                },
                b"abc",
            ),
        ),
        ("version", with(eager(), 0, 5)),
        ("version", with(eager(), 32, 3)),
        ("unknown operation code", with(eager(), 34, 6)),
        ("atomic", with(eager(), 1, 4)),
        ("atomic", with(eager(), 1, 5)),
        ("credit", with(eager(), 1, 6)),
        ("rendezvous by writes", with(eager(), 1, 7)),
        ("rendezvous by writes", with(eager(), 1, 8)),
        ("packet of unknown type", with(eager(), 1, 9)),
        (
            "length field",
            encode_packet(&rxm_packet(Eager, 0, 4), b"abc"),
        ),
        (
            "longer than 1 TiB",
            encode_packet(&rxm_packet(Eager, 0, MAX_MESSAGE as u64 + 1), b"abc"),
        ),
        ("segment of unknown type", with(first(100), 24, 0)),
        (
            "has not begun",
            encode_segment(1, SegmentType::Middle, b"abc", 100),
        ),
        (
            "has not begun",
            encode_segment(1, SegmentType::Last, b"abc", 3),
        ),
        ("that has begun", [first(100), first(100)].concat()),
        ("longer than their message", first(9)),
        (
            "longer than their message",
            [first(15), encode_segment(1, SegmentType::Last, &[0; 6], 15)].concat(),
        ),
        (
            "segment type does not match",
            [
                first(100),
                encode_segment(1, SegmentType::Last, &[0; 10], 100),
            ]
            .concat(),
        ),
        (
            "segment type does not match",
            [
                first(20),
                encode_segment(1, SegmentType::Middle, &[0; 10], 20),
            ]
            .concat(),
        ),
        (
            "empty segment",
            [first(100), encode_segment(1, SegmentType::Middle, &[], 100)].concat(),
        ),
        (
            "empty segment",
            encode_segment(1, SegmentType::First, &[], 100),
        ),
        (
            "of the wrong length",
            encode_packet(
                &rxm_packet(Rendezvous, 1, 8),
                &encode_rma_iovs(&[iov(8)], 1)[..103],
            ),
        ),
        (
            "remote ranges is not 1 to 4",
            encode_packet(
                &rxm_packet(Rendezvous, 1, 8),
                &encode_rma_iovs(&[iov(8)], 0),
            ),
        ),
        (
            "remote ranges is not 1 to 4",
            encode_packet(
                &rxm_packet(Rendezvous, 1, 8),
                &encode_rma_iovs(&[iov(8)], 5),
            ),
        ),
        (
            "do not add up",
            encode_packet(
                &rxm_packet(Rendezvous, 1, 9),
                &encode_rma_iovs(&[iov(8)], 1),
            ),
        ),
        (
            "do not add up",
            encode_packet(
                &rxm_packet(Rendezvous, 1, 0),
                &encode_rma_iovs(&[iov(0)], 1),
            ),
        ),
        (
            "do not add up",
            encode_packet(
                &rxm_packet(Rendezvous, 1, 6),
                &encode_rma_iovs(&[iov(u64::MAX), iov(7)], 2),
            ),
        ),
        (
            "overflows",
            encode_packet(
                &rxm_packet(Rendezvous, 1, 8),
                &encode_rma_iovs(
                    &[WireRmaIov {
                        addr: u64::MAX,
                        len: 8,
                        key: 1,
                    }],
                    1,
                ),
            ),
        ),
        (
            "with a payload",
            encode_packet(&rxm_packet(RendezvousDone, 1, 0), b"abc"),
        ),
        (
            "unknown rendezvous message",
            encode_packet(&rxm_packet(RendezvousDone, 1, 0), b""),
        ),
        (
            "unsolicited read response",
            hex("03 03 0000 00 00 10 00 1400000000000000 00000000"),
        ),
    ];
    for (expected, bytes) in cases {
        let mut receiver = rxm_receiver();
        let _ = receiver.post_recv(UNTAGGED, None);
        let ProtocolViolation(what) = receiver.read(&bytes).unwrap_err();
        assert!(what.contains(expected), "{what} for {expected}");
    }
    let mut receiver = TcpReceiver::rxm(4 * UNEXPECTED_BUDGET, CONNECTION_ID);
    for number in 0..=MAX_SEGMENTED_MESSAGES {
        let outcome = receiver.read(&encode_packet(
            &rxm_packet(Segment(SegmentType::First, 0, 1), number as u64, 2),
            b"a",
        ));
        assert_eq!(
            outcome.is_ok(),
            number < MAX_SEGMENTED_MESSAGES,
            "{outcome:?}"
        );
    }
    assert_eq!(receiver.reader.abort().len(), MAX_SEGMENTED_MESSAGES);
}

/// Nothing is allocated for an announced length before a receive takes the message, and no more
/// than that length then.
#[test]
fn length_in_a_header_allocates_no_memory() {
    let len = 64 << 20;
    let rendezvous = encode_packet(
        &rxm_packet(PacketKind::Rendezvous, 1, len),
        &encode_rma_iovs(
            &[WireRmaIov {
                addr: 0,
                len,
                key: 1,
            }],
            1,
        ),
    );
    for bytes in [
        rendezvous,
        encode_segment(1, SegmentType::First, &[0; 10], len as usize),
    ] {
        let mut receiver = rxm_receiver();
        let largest = largest_allocation(|| {
            let outcome = receiver.read(&bytes).unwrap();
            assert!(outcome.stop_reason != StopReason::Held && outcome.consumed == bytes.len());
        });
        assert!(largest < 4096, "{largest}");
        assert!(receiver.reader.has_set_aside() && receiver.next_rendezvous_read().is_none());
        let _ = receiver.post_recv(UNTAGGED, None);
        let largest = largest_allocation(|| assert_eq!(receiver.read(b"").unwrap().consumed, 0));
        assert_eq!(largest, len as usize);
        assert!(!receiver.reader.has_set_aside());
        assert_eq!(receiver.reader.abort().len(), 1);
    }
}

/// A message in segments takes no receive before 4 KiB of its first segment have arrived, or all of
/// a shorter one.
#[test]
fn begun_segment_takes_no_receive() {
    let beginning = 4096;
    for segment_len in [100, beginning, 16_000] {
        let body = test_pattern(1, segment_len);
        let bytes = encode_segment(1, SegmentType::First, &body, 20_000);
        let headers_len = bytes.len() - segment_len;
        let taking = headers_len + segment_len.min(beginning);
        let mut receiver = rxm_receiver();
        let op = receiver.post_recv(UNTAGGED, None);
        for arrived in [0, headers_len, taking - 1] {
            let outcome = receiver.read(&bytes[..arrived]).unwrap();
            assert_eq!(
                (outcome.consumed, outcome.stop_reason),
                (0, StopReason::NeedsBytes)
            );
            assert!(receiver.rx.has_posted(), "{arrived} of {segment_len}");
        }
        assert_eq!(receiver.read(&bytes[..taking]).unwrap().consumed, taking);
        assert!(!receiver.rx.has_posted(), "{segment_len}");
        let rest = &bytes[taking..];
        assert_eq!(receiver.read(rest).unwrap().consumed, rest.len());
        let last = encode_segment(1, SegmentType::Last, &vec![2; 20_000 - segment_len], 20_000);
        assert_eq!(receiver.read(&last).unwrap().consumed, last.len());
        let (_, received) = receiver.received(op);
        assert_eq!(received[..segment_len], body);
    }
}

/// The peer answers the read of a rendezvous message with a response that has a status: all bytes
/// of the message have arrived before the frame ends.
#[test]
fn read_response_with_a_status_is_a_violation_for_a_rendezvous() {
    let [mut a, mut b] = RxmPeer::connected_pair();
    let op = b.receiver.post_recv(UNTAGGED, None);
    a.send(None, None, &[1; 20_000]).unwrap();
    b.deliver(&a.progress(usize::MAX));
    assert!(!b.progress(usize::MAX).is_empty(), "the read request");
    let mut response = hex("03 f3 0000 00 00 10 00");
    response.extend_from_slice(&(16 + 20_000 + 16u64).to_le_bytes());
    response.extend_from_slice(&[1; 20_000]);
    let ProtocolViolation(what) = b.receiver.read(&response).unwrap_err();
    assert!(what.contains("with a status"), "{what}");
    assert!(b.receiver.outcome(op).is_none());
    assert_eq!(b.receiver.reader.abort().len(), 1);
}

#[test]
fn rendezvous_reads_are_bounded_and_complete_once() {
    let [mut a, _] = RxmPeer::connected_pair();
    let op = a.send(None, None, &test_pattern(1, 100_000)).unwrap();
    let read = |addr, len, key| {
        let iovs =
            RmaIovList::from_rma_iovs(&[WireRmaIov { addr, len, key }.to_rma_iov()]).unwrap();
        let mut writer = FrameWriter::new(ByteOrder::NATIVE);
        assert!(writer.push_frame(&Frame::read(&iovs), &iovs, Payload::Contiguous(&[])));
        writer.pending().to_vec()
    };
    let pending = a.progress(usize::MAX);
    let message_id = u64::from_ne_bytes(*pending[16 + 16..].first_chunk().unwrap());
    let done = encode_packet(&rxm_packet(PacketKind::RendezvousDone, message_id, 0), b"");
    for (addr, len, key) in [
        (1, 100_000, message_id),
        (u64::MAX, 2, message_id),
        (100_001, 0, message_id),
        (0, 1, message_id + 1),
    ] {
        assert!(
            a.receiver.read(&read(addr, len, key)).is_err(),
            "{len} bytes at {addr} of {key}"
        );
    }
    a.receiver.read(&read(7, 50, message_id)).unwrap();
    let response = a.progress(usize::MAX);
    assert_eq!(&response[16..], &test_pattern(1, 100_000)[7..57]);
    // The acknowledgement arrives while a read is being answered.
    a.receiver.read(&read(0, 90_000, message_id)).unwrap();
    let _ = a.progress(10);
    assert!(a.receiver.outcome(op).is_none());
    let ProtocolViolation(what) = a.receiver.read(&done).unwrap_err();
    assert!(what.contains("while a read of it is pending"), "{what}");
    assert_eq!(a.receiver.received(op).0, Transfer::sent(100_000, None));
    assert!(
        a.receiver.read(&done).is_err(),
        "the message completes once"
    );
    // A peer that disconnects fails the send.
    let [mut a, _] = RxmPeer::connected_pair();
    let op = a.send(Some(3), None, &[0; 20_000]).unwrap();
    a.receiver.responses.fail(
        &mut context_of(&mut a.receiver.rx, &mut a.receiver.context),
        &Error::Canceled,
    );
    assert_eq!(
        a.receiver.outcome(op).unwrap().error.as_deref(),
        Some(&Error::Canceled)
    );
}

/// After a disconnect, eager messages that were sent arrive, and rendezvous messages fail.
#[test]
fn rendezvous_fails_when_the_peer_disconnects() {
    let mut receiver = TcpReceiver::rxm(UNEXPECTED_BUDGET, CONNECTION_ID);
    let rendezvous = |len| {
        encode_packet(
            &rxm_packet(PacketKind::Rendezvous, 1, len),
            &encode_rma_iovs(
                &[WireRmaIov {
                    addr: 0,
                    len,
                    key: 1,
                }],
                1,
            ),
        )
    };
    let bytes = [
        rendezvous(1000),
        rendezvous(2 << 20),
        encode_packet(&rxm_packet(PacketKind::Eager, 0, 3), b"abc"),
    ]
    .concat();
    assert_eq!(receiver.read(&bytes).unwrap().consumed, bytes.len());
    assert!(receiver.reader.has_set_aside() && receiver.reader.accepts_rendezvous());
    let partial = receiver.end_rendezvous_reads();
    assert_eq!(partial.len(), 1);
    receiver
        .rx
        .fail_partial(&mut receiver.context, partial[0], Error::Canceled);
    assert!(!receiver.reader.accepts_rendezvous());
    let op = receiver.post_recv(UNTAGGED, None);
    let rest = rendezvous(5);
    assert_eq!(receiver.read(&rest).unwrap().consumed, rest.len());
    assert_eq!(receiver.received(op).1, b"abc");
    assert!(!receiver.reader.has_set_aside() && receiver.reader.abort().is_empty());
}
