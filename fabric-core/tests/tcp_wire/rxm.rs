//! The other dialect: packets, segments and offers, split anywhere, hostile ones among them.

use fabric_core::Error;
use fabric_core::buf::Payload;
use fabric_core::completion::Transfer;
use fabric_core::tcp::rxm::{
    EAGER_LIMIT, MAX_READS_IN_FLIGHT, MAX_SEGMENTED_MESSAGES, PACKET_HEADER_LEN, PacketKind,
    RxmPacket, RxmSender, SegmentType,
};
use fabric_core::tcp::{
    ByteOrder, Frame, FrameWriter, MAX_MESSAGE, ProtocolViolation, RmaIovList, UnexpectedPolicy,
    WireRmaIov,
};
use fabric_core::transport::OpKey;
use proptest::prelude::*;

use crate::receiver::{ANY_TAG, PEER, TcpReceiver, UNTAGGED};
use crate::{hex, largest_allocation};

const UNEXPECTED_BUDGET: usize = 1 << 20;
/// What packets quote.
const CONNECTION_ID: u32 = 5;

/// What libfabric 1.17 has been seen to send: ten bytes; the same under a tag, without a packet; an
/// offer of 20000 bytes.
const EAGER_BYTES: &str = "03 00 0000 00 00 10 00 5a00000000000000 0400 0000 00000000 0500000000000000 0000000000000000 \
    0000000000000000 0200 0000 00000000 0a00000000000000 0000000000000000 0000000000000000 30313233343536373839";
const RAW_TAGGED_BYTES: &str =
    "03 00 8000 00 00 18 00 2200000000000000 d204000000000000 30313233343536373839";
const RENDEZVOUS_BYTES: &str = "03 00 0000 00 00 10 00 b800000000000000 0402 0000 00000000 0500000000000000 0000000000000000 \
    0000000000000000 0200 0100 00000000 204e000000000000 0000000000000000 d204000000000000 \
    0000000000000000 204e000000000000 0000008000000000 000000000000000000000000000000000000000000000000 \
    000000000000000000000000000000000000000000000000 000000000000000000000000000000000000000000000000 \
    0100000000000000";

fn test_pattern(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + number) as u8).collect()
}

fn rxm_receiver() -> TcpReceiver {
    TcpReceiver::rxm(UNEXPECTED_BUDGET, CONNECTION_ID)
}

fn rxm_packet(kind: PacketKind, message: u64, len: u64) -> RxmPacket {
    RxmPacket {
        kind,
        connection_id: CONNECTION_ID,
        message_id: message,
        tag: None,
        data: None,
        len,
    }
}

/// A packet within its frame.
fn encode_packet(packet: &RxmPacket, body: &[u8]) -> Vec<u8> {
    let mut outbox = FrameWriter::new(ByteOrder::NATIVE);
    assert!(outbox.push_packet(packet, Payload::Contiguous(body)));
    outbox.pending().to_vec()
}

fn encode_segment(message: u64, step: SegmentType, body: &[u8], len: usize) -> Vec<u8> {
    encode_packet(
        &rxm_packet(
            PacketKind::Segment(step, 0, body.len() as u16),
            message,
            len as u64,
        ),
        body,
    )
}

/// Where a message lies, as it is written.
fn encode_rma_iovs(rows: &[WireRmaIov], count: u8) -> Vec<u8> {
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
    let row = WireRmaIov {
        addr: 0,
        len: 20_000,
        key: 0x8000_0000,
    };
    assert_eq!(receiver.reader.next_rendezvous_read(), Some(row));
    assert_eq!(receiver.reader.next_rendezvous_read(), None);
    let mut outbox = FrameWriter::with_rxm(ByteOrder::NATIVE, RxmSender::new(CONNECTION_ID));
    assert!(outbox.push_message(None, None, Payload::Contiguous(&b"0123456789"[..])));
    assert_eq!(outbox.pending(), hex(EAGER_BYTES));
    // The number of the message is the sender's choice: ours is the key.
    let mut theirs = hex(RENDEZVOUS_BYTES);
    theirs[16 + 16..][..8].copy_from_slice(&row.key.to_ne_bytes());
    let mut outbox = FrameWriter::with_rxm(ByteOrder::NATIVE, RxmSender::new(CONNECTION_ID));
    assert!(outbox.push_rendezvous(row, Some(1234), None));
    assert_eq!(outbox.pending(), theirs);
}

prop_compose! {
    fn any_packet()(
        kind in prop_oneof![
            Just(PacketKind::Eager), Just(PacketKind::Rendezvous),
            (prop_oneof![Just(SegmentType::First), Just(SegmentType::Middle), Just(SegmentType::Last)], any::<u32>(), any::<u16>())
                .prop_map(|(step, number, size)| PacketKind::Segment(step, number, size)),
        ],
        connection_id: u32, message_id: u64, tag: Option<u64>, data: Option<u64>, len: u64,
    ) -> RxmPacket {
        RxmPacket { kind, connection_id, message_id, tag, data, len }
    }
}

/// One end of a connection.
struct RxmPeer {
    receiver: TcpReceiver,
    writer: FrameWriter,
    unread: Vec<u8>,
    /// Reads that were asked for and not answered, at most.
    max_reads: usize,
}

impl RxmPeer {
    fn connected_pair() -> [Self; 2] {
        [(CONNECTION_ID, 6), (6, CONNECTION_ID)].map(|(ours, theirs)| Self {
            receiver: TcpReceiver::rxm(16 * UNEXPECTED_BUDGET, ours),
            writer: FrameWriter::with_rxm(ByteOrder::NATIVE, RxmSender::new(theirs)),
            unread: Vec::new(),
            max_reads: 0,
        })
    }

    fn send(&mut self, tag: Option<u64>, data: Option<u64>, bytes: &[u8]) -> Option<OpKey> {
        if bytes.len() <= EAGER_LIMIT {
            assert!(self.writer.push_message(
                crate::supported_tag(tag),
                data,
                Payload::Contiguous(bytes)
            ));
            return None;
        }
        let op = self.receiver.new_send_op(bytes);
        let row = self.receiver.reader.responses.rendezvous.add(
            op,
            tag,
            bytes.len(),
            &self.receiver.context,
        );
        assert!(self.writer.push_rendezvous(row, tag, data));
        Some(op)
    }

    /// Asks and answers; then so many bytes leave.
    fn progress(&mut self, most: usize) -> Vec<u8> {
        let (mut reads, no_bytes) = (0, Payload::Contiguous(&[]));
        while !self.writer.is_open()
            && let Some(row) = self.receiver.reader.next_rendezvous_read()
        {
            let rows = RmaIovList::from_rma_iovs(&[row.to_rma_iov()]).unwrap();
            assert!(self.writer.push_frame(&Frame::read(&rows), &rows, no_bytes));
            reads += 1;
        }
        self.max_reads = self.max_reads.max(reads);
        let TcpReceiver {
            reader: inbox,
            context: maps,
            ..
        } = &mut self.receiver;
        inbox
            .responses
            .write_responses(&mut self.writer, (64 << 10, usize::MAX), PEER, maps)
            .unwrap();
        let count = self.writer.pending().len().min(most);
        let bytes = self.writer.pending()[..count].to_vec();
        self.writer.advance(count);
        bytes
    }

    fn deliver(&mut self, bytes: &[u8]) {
        self.unread.extend_from_slice(bytes);
        let taken = self.receiver.read(&self.unread).unwrap();
        assert!(!taken.blocked);
        self.unread.drain(..taken.consumed);
        taken
            .rendezvous_done
            .into_iter()
            .for_each(|message| self.writer.push_rendezvous_done(message));
    }
}

/// Both work until neither has anything to say.
fn exchange_until_idle([a, b]: &mut [RxmPeer; 2], cuts: &[usize]) {
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

    /// Messages of all lengths both ways, short and offered ones: each comes once, whole, in order
    /// and with all it carries, however the streams were cut, whether somebody waits or not; and
    /// what was offered ends.
    #[test]
    fn messages_arrive_once_in_order_at_any_split(
        list in prop::collection::vec(
            (any::<bool>(), any::<Option<u64>>(), any::<Option<u64>>(),
             prop_oneof![0..4usize, 0..200usize, EAGER_LIMIT - 2..EAGER_LIMIT + 3, 100_000..1_300_000usize]),
            1..8,
        ),
        cuts in prop::collection::vec(prop_oneof![1000..2000usize, 1..100_000usize, Just(usize::MAX)], 1..6),
        is_awaited: bool,
    ) {
        let mut sides = RxmPeer::connected_pair();
        let post = |sides: &mut [RxmPeer; 2]| list.iter().map(|(to_b, tag, ..)| {
            let spec = if tag.is_some() { ANY_TAG } else { UNTAGGED };
            sides[usize::from(*to_b)].receiver.post_recv(spec, None)
        }).collect::<Vec<_>>();
        let posted = is_awaited.then(|| post(&mut sides));
        let mut offered = Vec::new();
        for (number, (to_b, tag, data, len)) in list.iter().enumerate() {
            let from = usize::from(!to_b);
            let op = sides[from].send(*tag, *data, &test_pattern(number, *len));
            offered.extend(op.map(|op| (from, op, *len)));
        }
        exchange_until_idle(&mut sides, &cuts);
        let ops = posted.unwrap_or_else(|| post(&mut sides));
        for (number, ((to_b, tag, data, len), op)) in list.iter().zip(ops).enumerate() {
            let (transfer, bytes) = sides[usize::from(*to_b)].receiver.received(op);
            prop_assert_eq!((transfer.len, transfer.tag, transfer.data), (*len, *tag, *data));
            prop_assert!(bytes == test_pattern(number, *len));
        }
        for (from, op, len) in offered {
            prop_assert_eq!(sides[from].receiver.received(op).0.len, len);
        }
        for side in &mut sides {
            prop_assert!(side.receiver.reader.abort().is_empty() && side.receiver.reader.responses.rendezvous.is_empty());
            prop_assert!(side.max_reads <= MAX_READS_IN_FLIGHT);
        }
    }

    /// Messages in segments that come between each other, in as many pieces as anybody likes.
    #[test]
    fn interleaved_segments_are_reassembled(
        lens in prop::collection::vec(2..40_000usize, 1..6),
        parts in prop::collection::vec(1..9_000usize, 1..5),
        cuts in prop::collection::vec(prop_oneof![1..3usize, 1..100usize, 1..30_000usize], 1..8),
        is_awaited: bool,
    ) {
        let mut receiver = rxm_receiver();
        let post = |receiver: &mut TcpReceiver| lens.iter().map(|_| receiver.post_recv(UNTAGGED, None)).collect::<Vec<_>>();
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
                    0 => SegmentType::First,
                    _ if part == left => SegmentType::Last,
                    _ => SegmentType::Middle,
                };
                stream.extend(encode_segment(number as u64, step, &test_pattern(number, *len)[from..from + part], *len));
                (sent[number], turn) = (from + part, turn + 1);
            }
        }
        let (mut rest, mut at, mut turn) = (Vec::new(), 0, 0);
        while at < stream.len() {
            let count = cuts[turn % cuts.len()].min(stream.len() - at);
            rest.extend_from_slice(&stream[at..at + count]);
            (at, turn) = (at + count, turn + 1);
            let taken = receiver.read(&rest).unwrap();
            rest.drain(..taken.consumed);
        }
        prop_assert!(rest.is_empty() && receiver.reader.abort().is_empty());
        let ops = posted.unwrap_or_else(|| post(&mut receiver));
        for (number, (len, op)) in lens.iter().zip(ops).enumerate() {
            prop_assert!(receiver.received(op).1 == test_pattern(number, *len));
        }
    }

    /// Whatever a peer says is taken or refused.
    #[test]
    fn random_packets_close_or_wait(
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
        let most = largest_allocation(|| {
            if let Ok(taken) = receiver.read(&bytes[..cut]) && !taken.blocked {
                let _ = receiver.read(&bytes[taken.consumed..]);
            }
        });
        prop_assert!(most <= 4 << 20, "{most}");
        prop_assert!(receiver.rx.unexpected().1 <= UNEXPECTED_BUDGET);
    }
}

#[test]
fn packet_is_read_at_every_split() {
    let offer = encode_packet(
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
    for (bytes, is_offer) in [(eager, false), (offer, true)] {
        for cut in 0..bytes.len() {
            let mut receiver = rxm_receiver();
            let op = receiver.post_recv(UNTAGGED, None);
            let taken = receiver.read(&bytes[..cut]).unwrap().consumed;
            assert_eq!(
                taken + receiver.read(&bytes[taken..]).unwrap().consumed,
                bytes.len(),
                "cut at {cut}"
            );
            if is_offer {
                assert_eq!(
                    receiver.reader.next_rendezvous_read(),
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
    let row = |len| WireRmaIov {
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
        ("prefix", {
            let mut outbox = FrameWriter::new(ByteOrder::NATIVE);
            assert!(outbox.push_message(
                None,
                None,
                Payload::Contiguous(&[0; PACKET_HEADER_LEN - 1][..])
            ));
            outbox.pending().to_vec()
        }),
        (
            "quotes",
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
        ("no message", with(eager(), 34, 6)),
        ("atomic", with(eager(), 1, 4)),
        ("atomic", with(eager(), 1, 5)),
        ("credit", with(eager(), 1, 6)),
        ("by writing", with(eager(), 1, 7)),
        ("by writing", with(eager(), 1, 8)),
        ("unknown packet", with(eager(), 1, 9)),
        (
            "as long as it says",
            encode_packet(&rxm_packet(Eager, 0, 4), b"abc"),
        ),
        (
            "longer than memory",
            encode_packet(&rxm_packet(Eager, 0, MAX_MESSAGE as u64 + 1), b"abc"),
        ),
        ("neither first", with(first(100), 24, 0)),
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
            "last segment",
            [
                first(100),
                encode_segment(1, SegmentType::Last, &[0; 10], 100),
            ]
            .concat(),
        ),
        (
            "last segment",
            [
                first(20),
                encode_segment(1, SegmentType::Middle, &[0; 10], 20),
            ]
            .concat(),
        ),
        (
            "nothing in it",
            [first(100), encode_segment(1, SegmentType::Middle, &[], 100)].concat(),
        ),
        (
            "nothing in it",
            encode_segment(1, SegmentType::First, &[], 100),
        ),
        (
            "longer or shorter",
            encode_packet(
                &rxm_packet(Rendezvous, 1, 8),
                &encode_rma_iovs(&[row(8)], 1)[..103],
            ),
        ),
        (
            "places",
            encode_packet(
                &rxm_packet(Rendezvous, 1, 8),
                &encode_rma_iovs(&[row(8)], 0),
            ),
        ),
        (
            "places",
            encode_packet(
                &rxm_packet(Rendezvous, 1, 8),
                &encode_rma_iovs(&[row(8)], 5),
            ),
        ),
        (
            "as long as its message",
            encode_packet(
                &rxm_packet(Rendezvous, 1, 9),
                &encode_rma_iovs(&[row(8)], 1),
            ),
        ),
        (
            "as long as its message",
            encode_packet(
                &rxm_packet(Rendezvous, 1, 0),
                &encode_rma_iovs(&[row(0)], 1),
            ),
        ),
        (
            "as long as its message",
            encode_packet(
                &rxm_packet(Rendezvous, 1, 6),
                &encode_rma_iovs(&[row(u64::MAX), row(7)], 2),
            ),
        ),
        (
            "beyond the end",
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
            "something in it",
            encode_packet(&rxm_packet(RendezvousDone, 1, 0), b"abc"),
        ),
        (
            "not offered",
            encode_packet(&rxm_packet(RendezvousDone, 1, 0), b""),
        ),
        (
            "no question",
            hex("03 03 0000 00 00 10 00 1400000000000000 00000000"),
        ),
    ];
    for (why, bytes) in cases {
        let mut receiver = rxm_receiver();
        let _ = receiver.post_recv(UNTAGGED, None);
        let ProtocolViolation(what) = receiver.read(&bytes).unwrap_err();
        assert!(what.contains(why), "{what} for {why}");
    }
    let mut receiver = rxm_receiver();
    for number in 0..=MAX_SEGMENTED_MESSAGES {
        let taken = receiver.read(&encode_packet(
            &rxm_packet(Segment(SegmentType::First, 0, 1), number as u64, 2),
            b"a",
        ));
        assert_eq!(taken.is_ok(), number < MAX_SEGMENTED_MESSAGES, "{taken:?}");
    }
    assert_eq!(receiver.reader.abort().len(), MAX_SEGMENTED_MESSAGES);
}

/// Nothing is allocated for an announced length before a receive takes the message, and no more than
/// that length then.
#[test]
fn claimed_lengths_allocate_nothing() {
    let long = 64 << 20;
    let offer = encode_packet(
        &rxm_packet(PacketKind::Rendezvous, 1, long),
        &encode_rma_iovs(
            &[WireRmaIov {
                addr: 0,
                len: long,
                key: 1,
            }],
            1,
        ),
    );
    for bytes in [
        offer,
        encode_segment(1, SegmentType::First, &[0; 10], long as usize),
    ] {
        let mut receiver = rxm_receiver();
        let most = largest_allocation(|| {
            let taken = receiver.read(&bytes).unwrap();
            assert!(!taken.blocked && taken.consumed == bytes.len());
        });
        assert!(most < 4096, "{most}");
        assert!(receiver.reader.has_deferred() && receiver.reader.next_rendezvous_read().is_none());
        let _ = receiver.post_recv(UNTAGGED, None);
        let most = largest_allocation(|| assert_eq!(receiver.read(b"").unwrap().consumed, 0));
        assert_eq!(most, long as usize);
        assert!(!receiver.reader.has_deferred());
        assert_eq!(receiver.reader.abort().len(), 1);
    }
}

#[test]
fn rendezvous_reads_are_bounded_and_complete_once() {
    let [mut a, _] = RxmPeer::connected_pair();
    let op = a.send(None, None, &test_pattern(1, 100_000)).unwrap();
    let read = |addr, len, key| {
        let rows =
            RmaIovList::from_rma_iovs(&[WireRmaIov { addr, len, key }.to_rma_iov()]).unwrap();
        let mut outbox = FrameWriter::new(ByteOrder::NATIVE);
        assert!(outbox.push_frame(&Frame::read(&rows), &rows, Payload::Contiguous(&[])));
        outbox.pending().to_vec()
    };
    let pending = a.progress(usize::MAX);
    let message = u64::from_ne_bytes(*pending[16 + 16..].first_chunk().unwrap());
    let done = encode_packet(&rxm_packet(PacketKind::RendezvousDone, message, 0), b"");
    for (addr, len, key) in [
        (1, 100_000, message),
        (u64::MAX, 2, message),
        (100_001, 0, message),
        (0, 1, message + 1),
    ] {
        assert!(
            a.receiver.read(&read(addr, len, key)).is_err(),
            "{len} bytes at {addr} of {key}"
        );
    }
    a.receiver.read(&read(7, 50, message)).unwrap();
    let answer = a.progress(usize::MAX);
    assert_eq!(&answer[16..], &test_pattern(1, 100_000)[7..57]);
    // Word comes while a read is still answered.
    a.receiver.read(&read(0, 90_000, message)).unwrap();
    let _ = a.progress(10);
    assert!(a.receiver.outcome(op).is_none());
    let ProtocolViolation(what) = a.receiver.read(&done).unwrap_err();
    assert!(what.contains("still being read"), "{what}");
    assert_eq!(a.receiver.received(op).0, Transfer::sent(100_000, None));
    assert!(a.receiver.read(&done).is_err(), "once");
    // A peer that goes leaves nothing behind.
    let [mut a, _] = RxmPeer::connected_pair();
    let op = a.send(Some(3), None, &[0; 20_000]).unwrap();
    a.receiver
        .reader
        .responses
        .fail(&mut a.receiver.context, &Error::Canceled);
    assert_eq!(
        a.receiver.outcome(op).unwrap().error.as_deref(),
        Some(&Error::Canceled)
    );
}

/// A message that nobody has asked for, and for which there is no room, holds up messages, and
/// nothing else.
#[test]
fn messages_over_budget_are_deferred() {
    let mut sides = RxmPeer::connected_pair();
    sides[1].receiver = TcpReceiver::rxm(UNEXPECTED_BUDGET, 6);
    let len = UNEXPECTED_BUDGET - 1000;
    let offers = [0, 1].map(|number| {
        sides[0]
            .send(None, None, &test_pattern(number, len))
            .unwrap()
    });
    assert!(
        sides[0]
            .send(None, Some(9), &test_pattern(2, 5000))
            .is_none()
    );
    for (number, step) in [
        (0, SegmentType::First),
        (1, SegmentType::Middle),
        (2, SegmentType::Last),
    ] {
        let packet = RxmPacket {
            connection_id: 6,
            ..rxm_packet(PacketKind::Segment(step, number, 10), 7, 30)
        };
        assert!(
            sides[0]
                .writer
                .push_packet(&packet, Payload::Contiguous(&[number as u8; 10][..]))
        );
    }
    // The other way round as well.
    let op = sides[1].send(None, None, &test_pattern(4, len)).unwrap();
    let back = sides[0].receiver.post_recv(UNTAGGED, None);
    exchange_until_idle(&mut sides, &[70_000]);
    let [a, b] = &sides;
    assert!(a.receiver.received(offers[0]).0.len == len && a.receiver.outcome(offers[1]).is_none());
    assert!(
        a.receiver.received(back).1 == test_pattern(4, len) && b.receiver.received(op).0.len == len
    );
    assert!(b.receiver.reader.has_deferred());
    let ops = [0; 4].map(|_| sides[1].receiver.post_recv(UNTAGGED, None));
    assert!(
        sides[1]
            .receiver
            .reader
            .can_resume_deferred(PEER, &sides[1].receiver.rx)
    );
    sides[1].deliver(b"");
    exchange_until_idle(&mut sides, &[usize::MAX]);
    let b = &sides[1].receiver;
    assert!(!b.reader.has_deferred());
    for (number, op) in ops.iter().take(2).enumerate() {
        assert!(b.received(*op).1 == test_pattern(number, len), "{number}");
    }
    assert!(b.received(ops[2]).1 == test_pattern(2, 5000) && b.received(ops[2]).0.data == Some(9));
    assert_eq!(b.received(ops[3]).1, [[0; 10], [1; 10], [2; 10]].concat());
    assert_eq!(sides[0].receiver.received(offers[1]).0.len, len);
}

/// What was put aside has waited: when there is room it is taken in, and does not ask for yet
/// another look, for ever.
#[test]
fn deferred_message_is_taken_without_another_delay() {
    let mut receiver = TcpReceiver::rxm(1500, CONNECTION_ID);
    let bytes = [1, 2]
        .map(|byte| encode_packet(&rxm_packet(PacketKind::Eager, 0, 1000), &[byte; 1000]))
        .concat();
    assert_eq!(receiver.read(&bytes).unwrap().consumed, bytes.len());
    assert!(
        receiver.reader.has_deferred() && !receiver.reader.can_resume_deferred(PEER, &receiver.rx)
    );
    let first = receiver.post_recv(UNTAGGED, None);
    assert_eq!(receiver.received(first).1, [1; 1000]);
    assert!(
        receiver.reader.can_resume_deferred(PEER, &receiver.rx),
        "there is room again"
    );
    receiver
        .reader
        .set_unexpected_policy(UnexpectedPolicy::Defer);
    let taken = receiver.read(&[]).unwrap();
    assert!(!taken.is_deferred && !receiver.reader.has_deferred());
    let second = receiver.post_recv(UNTAGGED, None);
    assert_eq!(receiver.received(second).1, [2; 1000]);
}

/// There is an end to that.
#[test]
fn deferred_bytes_are_bounded() {
    let mut receiver = TcpReceiver::rxm(0, CONNECTION_ID);
    let bytes = encode_packet(
        &rxm_packet(PacketKind::Eager, 0, EAGER_LIMIT as u64),
        &[7; EAGER_LIMIT],
    );
    let mut kept = 0;
    loop {
        let taken = receiver.read(&bytes).unwrap();
        if taken.blocked {
            assert_eq!(taken.consumed, 0);
            break;
        }
        kept += taken.consumed;
        assert!(kept <= 8 << 20);
    }
    assert!(kept > 7 << 20 && !receiver.would_read_held(&bytes));
    let op = receiver.post_recv(UNTAGGED, None);
    assert!(receiver.would_read_held(&bytes));
    assert_eq!(
        receiver.read(&bytes).unwrap().consumed,
        bytes.len(),
        "one has made room for another"
    );
    assert_eq!(receiver.received(op).1, [7; EAGER_LIMIT]);
    // What is longer than any packet is held at once.
    let mut receiver = TcpReceiver::rxm(0, CONNECTION_ID);
    let long = encode_packet(
        &rxm_packet(PacketKind::Eager, 0, 2 * EAGER_LIMIT as u64),
        &[7; 2 * EAGER_LIMIT],
    );
    assert!(receiver.read(&long).unwrap().blocked);
}

/// Of a peer that has gone comes what it has sent, and nothing that it has only offered.
#[test]
fn rendezvous_fails_when_the_peer_disconnects() {
    let mut receiver = TcpReceiver::rxm(UNEXPECTED_BUDGET, CONNECTION_ID);
    let offer = |len| {
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
        offer(1000),
        offer(2 << 20),
        encode_packet(&rxm_packet(PacketKind::Eager, 0, 3), b"abc"),
    ]
    .concat();
    assert_eq!(receiver.read(&bytes).unwrap().consumed, bytes.len());
    assert!(receiver.reader.has_deferred() && receiver.reader.accepts_rendezvous());
    let begun = receiver.reader.end_rendezvous_reads();
    assert_eq!(begun.len(), 1);
    receiver
        .rx
        .fail_partial(&mut receiver.context, begun[0], Error::Canceled);
    assert!(!receiver.reader.accepts_rendezvous());
    let op = receiver.post_recv(UNTAGGED, None);
    let rest = offer(5);
    assert_eq!(receiver.read(&rest).unwrap().consumed, rest.len());
    assert_eq!(receiver.received(op).1, b"abc");
    assert!(!receiver.reader.has_deferred() && receiver.reader.abort().is_empty());
}

/// What was put aside is looked at later, and may be wrong then: the message that is in the middle
/// of arriving is lost with the connection, as any other, and its receive waits for the next one.
#[test]
fn invalid_deferred_packet_fails_partial_message() {
    let mut receiver = TcpReceiver::rxm(300, CONNECTION_ID);
    let halved = receiver.post_recv(UNTAGGED, None);
    let too_much = encode_packet(&rxm_packet(PacketKind::Eager, 0, 1000), &[1; 1000]);
    let lie = encode_packet(
        &RxmPacket {
            connection_id: CONNECTION_ID + 1,
            ..rxm_packet(PacketKind::Eager, 0, 3)
        },
        b"abc",
    );
    let begun = encode_segment(1, SegmentType::First, &[2; 10], 30);
    let last = encode_segment(1, SegmentType::Last, &[2; 20], 30);
    let bytes = [begun, too_much, lie, last[..last.len() - 5].to_vec()].concat();
    assert_eq!(receiver.read(&bytes).unwrap().consumed, bytes.len());
    let aside = receiver.post_recv(UNTAGGED, None);
    assert!(matches!(receiver.read(&[]), Err(ProtocolViolation(what)) if what.contains("quotes")));
    assert_eq!(receiver.received(aside).0.len, 1000);
    for landing in receiver.reader.abort() {
        receiver
            .rx
            .fail_partial(&mut receiver.context, landing, Error::Canceled);
    }
    assert!(receiver.outcome(halved).is_none() && receiver.rx.has_posted());
}
