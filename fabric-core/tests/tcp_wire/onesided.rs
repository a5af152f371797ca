//! Memory that is read and written, by peers of every kind, and everything that they must not do to
//! it.

use fabric_core::atomic::{AtomicCall, AtomicOp, AtomicSpec, Datatype};
use fabric_core::buf::{IoBuf, Payload};
use fabric_core::flags::Access;
use fabric_core::mr::{Denied, Registered};
use fabric_core::provider::{Deed, Remote};
use fabric_core::tcp::{Broken, Frame, FrameKind, Order, Outbox, Owed, Replying, Rows, Takes};
use fabric_core::{Error, FiAddr};
use proptest::prelude::*;
use std::sync::Arc;

use crate::host::{KEY, READABLE, ROOM, Receiver, UNTAGGED};
use crate::{hex, largest_allocation};

/// What libfabric's provider has been seen to send: a write with an acknowledgement, and a
/// question, of two places each.
const WRITE: &str = "03 04 0400 00 02 40 00 4800000000000000 \
    0a00000000000000 0300000000000000 0700000000000000 1400000000000000 0500000000000000 0700000000000000 \
    6162636465666768";
const READ: &str = "03 02 0000 00 02 40 00 4000000000000000 \
    0a00000000000000 0300000000000000 0700000000000000 1400000000000000 0500000000000000 0700000000000000";
const ANSWER: &str = "03 03 0000 00 00 10 00 1800000000000000 6162636465666768";

fn place(key: u64, offset: u64, len: usize) -> Remote {
    Remote {
        key,
        offset,
        len,
        atomic: None,
    }
}

fn server(is_kin: bool) -> Receiver {
    let mut receiver = Receiver::with_memory(Order::Little, 1 << 20, ROOM);
    if is_kin {
        receiver.inbox.kin();
    }
    receiver
}

/// The bytes of one frame.
fn frame(frame: &Frame, places: &[Remote], bytes: &[u8]) -> Vec<u8> {
    let mut outbox = Outbox::new(Order::Little);
    assert!(outbox.push_frame(frame, &Rows::of(places).unwrap(), Payload::Whole(bytes)));
    outbox.pending().to_vec()
}

fn write(places: &[Remote], data: Option<u64>, bytes: &[u8]) -> Vec<u8> {
    frame(
        &Frame::write(&Rows::of(places).unwrap(), data, bytes.len()),
        places,
        bytes,
    )
}

fn read(places: &[Remote]) -> Vec<u8> {
    frame(&Frame::read(&Rows::of(places).unwrap()), places, &[])
}

/// What an owed answer says.
fn said(owed: Owed) -> FrameKind {
    Frame::ack(owed).kind
}

/// Shows a stream in two pieces; what is owed for it.
fn cut(receiver: &mut Receiver, bytes: &[u8], at: usize) -> Result<Vec<Owed>, Broken> {
    let first = receiver.take(&bytes[..at])?;
    let rest = [&bytes[first.bytes..at], &bytes[at..]].concat();
    let second = receiver.take(&rest)?;
    assert_eq!(second.bytes, rest.len(), "cut at {at}");
    Ok(first.owed.into_iter().chain(second.owed).collect())
}

#[test]
fn a_write_arrives_however_it_is_split() {
    assert_eq!(
        write(&[place(KEY, 10, 3), place(KEY, 20, 5)], None, b"abcdefgh"),
        hex(WRITE)
    );
    for is_kin in [false, true] {
        for at in 0..hex(WRITE).len() {
            let mut owner = server(is_kin);
            let owed = cut(&mut owner, &hex(WRITE), at).unwrap();
            assert_eq!(
                owed.into_iter().map(said).collect::<Vec<_>>(),
                [FrameKind::Ack],
                "cut at {at}"
            );
            let memory = owner.memory(KEY);
            assert_eq!(
                (&memory[10..13], &memory[20..25], memory[13]),
                (&b"abc"[..], &b"defgh"[..], 0)
            );
            assert!(owner.maps.told.is_empty(), "nobody asked to be told");
        }
    }
}

#[test]
fn a_question_is_answered_however_it_and_the_answer_are_split() {
    assert_eq!(read(&[place(KEY, 10, 3), place(KEY, 20, 5)]), hex(READ));
    let asked = hex(READ);
    for at in 0..asked.len() {
        let mut owner = server(false);
        owner.take(&hex(WRITE)).unwrap();
        cut(&mut owner, &asked, at).unwrap();
        let (answer, replying) = owner
            .answers(&mut Outbox::new(Order::Little), 1 << 16)
            .unwrap();
        assert_eq!((replying, &answer), (Replying::Nothing, &hex(ANSWER)));
    }
    for is_kin in [false, true] {
        let mut owner = server(is_kin);
        owner.take(&hex(WRITE)).unwrap();
        owner.take(&asked).unwrap();
        let (answer, _) = owner
            .answers(&mut Outbox::new(Order::Little), 1 << 16)
            .unwrap();
        for at in 0..answer.len() {
            let mut asks = server(is_kin);
            let op = asks.asks_to_read(8);
            cut(&mut asks, &answer, at).unwrap();
            assert_eq!(asks.got(op).1, b"abcdefgh", "cut at {at}");
            assert!(asks.inbox.asked.is_empty());
        }
    }
}

/// Long answers are made piece by piece, in order, and what is owed behind them comes behind them.
#[test]
fn answers_come_in_order_and_in_pieces() {
    for is_kin in [false, true] {
        let mut owner = server(is_kin);
        let bytes: Vec<u8> = (0..ROOM).map(|at| (at * 7 + at / 256) as u8).collect();
        owner
            .take(&write(&[place(KEY, 0, ROOM)], None, &bytes))
            .unwrap();
        let lens = [ROOM, 0, 5, 20_000, ROOM - 7];
        let mut stream: Vec<u8> = lens
            .iter()
            .flat_map(|len| read(&[place(KEY, 0, *len)]))
            .collect();
        stream.extend(write(&[place(KEY, 0, 0)], None, b""));
        let taken = owner.take(&stream).unwrap();
        assert!(
            taken.bytes == stream.len() && taken.owed.is_empty(),
            "its turn has not come"
        );
        let mut outbox = Outbox::new(Order::Little);
        let mut said = Vec::new();
        let most = largest_allocation(|| said = owner.answers(&mut outbox, 1000).unwrap().0);
        assert!(
            most < 2 * said.len() + 4096 && said.len() > lens.iter().sum(),
            "{most}"
        );
        let mut asks = server(is_kin);
        let ops: Vec<_> = lens
            .iter()
            .map(|len| (asks.asks_to_read(*len), *len))
            .collect();
        let ack = asks.has_written(0);
        let mut rest = Vec::new();
        for piece in said.chunks(977) {
            rest.extend_from_slice(piece);
            let taken = asks.take(&rest).unwrap();
            rest.drain(..taken.bytes);
        }
        for (op, len) in ops {
            assert!(asks.got(op).1 == &bytes[..len]);
        }
        assert!(asks.end(ack).unwrap().error.is_none() && rest.is_empty());
    }
}

/// To its own kind it says why, and goes on; of others the connection ends. Nothing has changed
/// either way.
#[test]
fn what_is_out_of_reach_is_refused() {
    let end = ROOM as u64;
    for (bad, why, reads) in [
        (place(99, 0, 4), Denied::Unknown, true),
        (place(READABLE, 0, 4), Denied::NotGranted, false),
        (place(KEY, end - 3, 4), Denied::Beyond(ROOM), true),
        (place(KEY, u64::MAX - 1, 4), Denied::Beyond(ROOM), true),
    ] {
        for row in 0..3u8 {
            let mut places = vec![place(KEY, 0, 2), place(KEY, 4, 2)];
            places.insert(row.into(), bad);
            let stream = write(&places, Some(5), b"abcdefgh");
            for at in 0..stream.len() {
                let mut owner = server(true);
                let owed = cut(&mut owner, &stream, at).unwrap();
                let [FrameKind::Refused(refusal)] =
                    &owed.into_iter().map(said).collect::<Vec<_>>()[..]
                else {
                    panic!("{bad:?}")
                };
                assert_eq!((refusal.asked, refusal.row, refusal.why), (false, row, why));
                assert!(
                    owner.memory(KEY).iter().all(|byte| *byte == 0) && owner.maps.told.is_empty()
                );
            }
            let mut owner = server(false);
            assert!(owner.take(&stream).unwrap_err().0.contains("may not reach"));
            assert!(owner.memory(KEY).iter().all(|byte| *byte == 0));
            if reads {
                assert!(server(false).take(&read(&places)).is_err());
                let mut owner = server(true);
                owner.take(&read(&places)).unwrap();
                let (answer, _) = owner
                    .answers(&mut Outbox::new(Order::Little), 1 << 16)
                    .unwrap();
                let mut asks = server(true);
                let op = asks.asks_to_read(8);
                assert_eq!(asks.take(&answer).unwrap().bytes, answer.len());
                let error = asks.end(op).unwrap().error.clone().unwrap();
                assert!(
                    matches!(
                        *error,
                        Error::Key { .. } | Error::TooLong { limit: ROOM, .. }
                    ),
                    "{error}"
                );
            }
        }
    }
}

/// Headers that lie: each ends the connection, and nothing has changed.
#[test]
fn headers_that_lie_end_the_connection() {
    let mut longer = write(&[place(KEY, 0, 9)], None, b"abcdefgh");
    let short = write(&[place(KEY, 0, 7)], None, b"abcdefgh");
    let overflow = write(
        &[place(KEY, 0, usize::MAX), place(KEY, 0, 9)],
        None,
        b"abcdefgh",
    );
    let nowhere = write(&[], None, b"abcdefgh");
    let with_bytes = {
        let mut bytes = read(&[place(KEY, 0, 7)]);
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
            let mut owner = server(is_kin);
            assert!(owner.take(&stream).is_err(), "{what}");
            assert!(owner.memory(KEY).iter().all(|byte| *byte == 0), "{what}");
        }
    }
    let frames = [
        ("an answer", hex(ANSWER)),
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
        assert!(server(true).take(stream).is_err(), "{what} to no question");
    }
    // Of another length than was asked for, or without what belongs to it.
    for (len, stream) in [
        (7, hex(ANSWER)),
        (9, hex(ANSWER)),
        (8, hex("03 f3 0000 00 00 10 00 1800000000000000")),
    ] {
        let mut asks = server(true);
        asks.asks_to_read(len);
        assert!(asks.take(&stream).is_err(), "{len}");
    }
}

/// An acknowledgement may be heard before this side knows that all has left; a second one is
/// nobody's.
#[test]
fn an_early_acknowledgement_waits_for_its_operation() {
    let mut asks = server(false);
    asks.inbox.asked.send();
    asks.take(&hex(crate::frames::ACK)).unwrap();
    let op = asks.has_written(5);
    assert_eq!(
        asks.end(op).map(|outcome| outcome.error.is_none()),
        Some(true)
    );
    asks.inbox.asked.send();
    asks.take(&hex(crate::frames::ACK)).unwrap();
    assert!(asks.take(&hex(crate::frames::ACK)).is_err());
}

/// What is asked of a connection that ends is not forgotten.
#[test]
fn what_was_asked_fails_with_the_connection() {
    let mut asks = server(false);
    let ops = [asks.asks_to_read(8), asks.has_written(8)];
    // Half of the answer has come.
    asks.take(&hex(ANSWER)[..20]).unwrap();
    assert_eq!(asks.inbox.end(), []);
    asks.inbox.asked.fail(&mut asks.maps, &Error::Canceled);
    for op in ops {
        assert_eq!(
            asks.end(op).unwrap().error.as_deref(),
            Some(&Error::Canceled)
        );
    }
}

/// A peer that asks for much and takes nothing waits, with nothing but its questions.
#[test]
fn questions_are_bounded() {
    let mut owner = server(false);
    let stream: Vec<u8> = (0..3000)
        .flat_map(|_| read(&[place(KEY, 0, ROOM)]))
        .collect();
    let taken = owner.take(&stream).unwrap();
    assert!(taken.is_full && !taken.held && taken.bytes < stream.len() / 2);
    let mut outbox = Outbox::new(Order::Little);
    let most = largest_allocation(|| {
        let source: Option<FiAddr> = None;
        let who = (fabric_core::matching::PeerKey(1), source);
        let replying = owner
            .inbox
            .replies
            .answer(&mut outbox, (64 << 10, usize::MAX), who, &mut owner.maps)
            .unwrap();
        assert_eq!(replying, Replying::Full);
    });
    assert!(
        outbox.pending().len() <= 80 << 10 && most <= 256 << 10,
        "{most}"
    );
    // A message behind them is not read before; once they are answered, it is.
    owner.inbox.replies.give_up();
    assert!(owner.take(&stream[taken.bytes..]).unwrap().is_full);
}

/// Where others wait, no answer begins once there were enough bytes of them; one that has begun
/// ends first.
#[test]
fn answers_give_way_between_two_of_them() {
    let mut owner = server(false);
    for len in [8, 8, 80, 8] {
        owner.take(&read(&[place(KEY, 0, len)])).unwrap();
    }
    let mut outbox = Outbox::new(Order::Little);
    let who = (fabric_core::matching::PeerKey(1), None);
    let mut answer = |most, turn| {
        let replies = &mut owner.inbox.replies;
        let replying = replies
            .answer(&mut outbox, (most, turn), who, &mut owner.maps)
            .unwrap();
        let made = outbox.pending().len();
        outbox.left(made);
        (replying, made, replies.is_open())
    };
    assert_eq!(answer(1000, 0), (Replying::Enough, 0, false));
    assert_eq!(answer(1000, 30), (Replying::Enough, 2 * 24, false));
    assert_eq!(answer(50, 1), (Replying::Full, 50, true));
    assert_eq!(answer(1000, 0), (Replying::Enough, 46, false));
    assert_eq!(answer(1000, 1), (Replying::Nothing, 24, false));
}

fn registered(owner: &mut Receiver) -> Arc<Registered> {
    let own = Arc::new(Registered::new(vec![0u8; 64].into_any()).unwrap());
    let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
    owner
        .maps
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
fn what_is_in_hand_is_waited_for() {
    for closes in [false, true] {
        let mut owner = server(true);
        let own = registered(&mut owner);
        let places = [place(KEY, 0, 2), place(20, 0, 2)];
        owner.take(&read(&places)).unwrap();
        let buf = own.take().unwrap();
        let mut outbox = Outbox::new(Order::Little);
        let (said, replying) = owner.answers(&mut outbox, 1 << 16).unwrap();
        assert!(
            replying == Replying::InHand && said.is_empty() && owner.inbox.replies.is_in_hand()
        );
        let stream = write(&places, None, b"abcd");
        let taken = owner.take(&stream).unwrap();
        assert!(taken.held && taken.bytes == 0 && !owner.wants(&stream));
        assert!(
            owner.memory(KEY).iter().all(|byte| *byte == 0),
            "not before all of it can be"
        );
        if closes {
            owner.maps.regions.as_mut().unwrap().remove(20);
        } else {
            own.put(buf);
        }
        assert!(!owner.inbox.replies.is_in_hand() && owner.wants(&stream));
        let (answer, replying) = owner.answers(&mut outbox, 1 << 16).unwrap();
        assert_eq!(replying, Replying::Nothing);
        let owed = owner
            .take(&stream)
            .unwrap()
            .owed
            .into_iter()
            .map(said_of)
            .collect::<Vec<_>>();
        assert_eq!(owed, [!closes]);
        let mut asks = server(true);
        let op = asks.asks_to_read(4);
        asks.take(&answer).unwrap();
        assert_eq!(asks.end(op).unwrap().error.is_none(), !closes);
        let mut there = [0; 2];
        if !closes {
            fabric_core::mr::Memory::read(&*own, 0, &mut there);
            assert_eq!(&there, b"cd");
        }
    }
}

fn said_of(owed: Owed) -> bool {
    said(owed) == FrameKind::Ack
}

/// A write whose memory is closed in the middle of it is taken to its end, and refused.
#[test]
fn memory_that_closes_midway_refuses() {
    for is_kin in [true, false] {
        let mut owner = server(is_kin);
        let stream = write(&[place(KEY, 0, 8)], Some(1), b"abcdefgh");
        let taken = owner.take(&stream[..stream.len() - 4]).unwrap();
        owner.maps.regions.as_mut().unwrap().remove(KEY);
        let ended = owner.take(&stream[taken.bytes..]);
        if is_kin {
            let owed = ended
                .unwrap()
                .owed
                .into_iter()
                .map(said)
                .collect::<Vec<_>>();
            assert!(
                matches!(&owed[..], [FrameKind::Refused(refusal)] if refusal.why == Denied::Unknown)
            );
        } else {
            assert!(ended.is_err());
        }
        assert!(owner.maps.told.is_empty());
        // And an answer that has begun.
        let mut owner = server(is_kin);
        owner.take(&read(&[place(KEY, 0, ROOM)])).unwrap();
        let mut outbox = Outbox::new(Order::Little);
        let who = (fabric_core::matching::PeerKey(1), None);
        assert_eq!(
            owner
                .inbox
                .replies
                .answer(&mut outbox, (100, usize::MAX), who, &mut owner.maps),
            Ok(Replying::Full)
        );
        owner.maps.regions.as_mut().unwrap().remove(KEY);
        let answered = owner.answers(&mut outbox, 1 << 16);
        if let Ok((answer, _)) = &answered {
            let mut asks = server(true);
            let op = asks.asks_to_read(ROOM);
            assert_eq!(asks.take(answer).unwrap().bytes, answer.len());
            let error = asks.end(op).unwrap().error.clone().unwrap();
            assert!(matches!(*error, Error::Key { key: KEY, .. }));
        }
        assert_eq!(answered.is_ok(), is_kin);
    }
}

/// The owner is told once, behind the bytes, and until there is room for that the connection waits;
/// the writer does not.
#[test]
fn data_is_told_once_and_waited_for() {
    let mut owner = server(true);
    owner.maps.is_full = true;
    let stream = write(&[place(KEY, 0, 3), place(KEY, 9, 1)], Some(77), b"abcd");
    let taken = owner.take(&stream).unwrap();
    assert!(taken.held && taken.bytes == stream.len() && taken.owed.len() == 1);
    assert_eq!(&owner.memory(KEY)[..3], b"abc");
    assert!(!owner.wants(b""));
    owner.maps.is_full = false;
    assert!(owner.wants(b""));
    let taken = owner.take(b"").unwrap();
    assert!(!taken.held && taken.owed.is_empty());
    let [(key, deed, transfer)] = owner.maps.told[..] else {
        panic!("{:?}", owner.maps.told)
    };
    assert_eq!(
        (key, deed, transfer.len, transfer.data),
        (KEY, Deed::Write, 4, Some(77))
    );
    // Who wants to hear of everything hears of each place, and of data with the last.
    owner.maps.told.clear();
    owner
        .inbox
        .serve(fabric_core::provider::EpId(0), true, true);
    owner.take(&stream).unwrap();
    owner.take(&read(&[place(KEY, 0, 3)])).unwrap();
    owner
        .answers(&mut Outbox::new(Order::Little), 1 << 16)
        .unwrap();
    let told: Vec<_> = owner
        .maps
        .told
        .iter()
        .map(|(_, deed, of)| (*deed, of.len, of.data))
        .collect();
    assert_eq!(
        told,
        [
            (Deed::Write, 3, None),
            (Deed::Write, 1, Some(77)),
            (Deed::Read, 3, None)
        ]
    );
}

/// Atomic operations are for kin, whole or not at all, and say what was there.
#[test]
fn atomics_are_executed_where_they_arrive() {
    let sum = |call| AtomicSpec {
        op: AtomicOp::Sum,
        datatype: Datatype::U32,
        call,
    };
    let sums = |call| Takes::of_many(true).atomic(sum(call)).unwrap();
    let at = Remote {
        atomic: Some(sum(AtomicCall::Fetch)),
        ..place(KEY, 8, 8)
    };
    let operands = [5u32.to_le_bytes(), 6u32.to_le_bytes()].concat();
    let fetch = frame(
        &Frame::atomic(sums(AtomicCall::Fetch), true, 8),
        &[at],
        &operands,
    );
    let base = frame(
        &Frame::atomic(sums(AtomicCall::Base), false, 8),
        &[at],
        &operands,
    );
    for split in 0..base.len() {
        let mut owner = server(true);
        let owed = cut(&mut owner, &base, split).unwrap();
        assert_eq!(
            owed.into_iter().map(said).collect::<Vec<_>>(),
            [FrameKind::Ack]
        );
        assert!(cut(&mut owner, &fetch, split).unwrap().is_empty());
        let (answer, _) = owner
            .answers(&mut Outbox::new(Order::Little), 1 << 16)
            .unwrap();
        let mut asks = server(true);
        let op = asks.asks_to_read(8);
        asks.take(&answer).unwrap();
        assert_eq!(asks.got(op).1, operands);
        assert_eq!(
            owner.memory(KEY)[8..16],
            [10u32.to_le_bytes(), 12u32.to_le_bytes()].concat()
        );
    }
    assert!(
        server(false).take(&base).is_err(),
        "libfabric does not say this"
    );
    let bad = |kind: &Frame, at: Remote, bytes: &[u8]| {
        server(true).take(&frame(kind, &[at], bytes)).map(drop)
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
            Remote { len: 6, ..at },
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
            Remote { len: 8196, ..at },
            &many
        )
        .is_err()
    );
    // Misplaced, or out of reach: refused, and the connection goes on.
    for (at, why) in [
        (Remote { offset: 2, ..at }, Denied::Across),
        (Remote { key: 9, ..at }, Denied::Unknown),
        (
            Remote {
                key: READABLE,
                ..at
            },
            Denied::NotGranted,
        ),
        (
            Remote {
                offset: ROOM as u64,
                ..at
            },
            Denied::Beyond(ROOM),
        ),
    ] {
        let mut owner = server(true);
        let stream = frame(
            &Frame::atomic(sums(AtomicCall::Base), false, 8),
            &[at],
            &operands,
        );
        let owed = owner
            .take(&stream)
            .unwrap()
            .owed
            .into_iter()
            .map(said)
            .collect::<Vec<_>>();
        assert!(
            matches!(&owed[..], [FrameKind::Refused(refusal)] if refusal.why == why),
            "{why:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 200 }))]

    /// Whatever a peer says of memory is done or refused, within that memory, and what it claims
    /// costs none.
    #[test]
    fn garbage_ends_or_waits(
        codes in prop::collection::vec(prop_oneof![Just(2u8), Just(4), Just(3), Just(0xf1), Just(0xf2), Just(0xf3), Just(0)], 1..6),
        words in prop::collection::vec(prop_oneof![0..16u64, any::<u64>(), Just(KEY), Just(ROOM as u64)], 60),
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
            let mut owner = server(is_kin);
            owner.asks_to_read(8);
            owner.has_written(8);
            let _ = owner.post(UNTAGGED, None);
            let mut rest = Vec::new();
            'stream: for piece in stream.chunks(split) {
                rest.extend_from_slice(piece);
                match owner.take(&rest) {
                    Ok(taken) => drop(rest.drain(..taken.bytes)),
                    Err(_) => break 'stream,
                }
                if owner.answers(&mut Outbox::new(Order::Little), 1 << 16).is_err() {
                    break 'stream;
                }
            }
        }
    }
}

/// Where peers reach no memory they cannot fill the owner's queue with data that comes with none
/// either.
#[test]
fn data_alone_is_for_targets_only() {
    for is_kin in [false, true] {
        let mut owner = server(is_kin);
        assert_eq!(owner.take(&write(&[], Some(5), b"")).unwrap().owed.len(), 1);
        assert_eq!(owner.maps.told.len(), 1);
        owner
            .inbox
            .serve(fabric_core::provider::EpId(0), false, false);
        match owner.take(&write(&[], Some(5), b"")) {
            Err(Broken(what)) => assert!(!is_kin && what.contains("may not reach"), "{what}"),
            Ok(taken) => {
                let said: Vec<_> = taken.owed.into_iter().map(said).collect();
                assert!(
                    is_kin && matches!(said[..], [FrameKind::Refused(_)]),
                    "{said:?}"
                );
            }
        }
        assert_eq!(owner.maps.told.len(), 1);
    }
}
