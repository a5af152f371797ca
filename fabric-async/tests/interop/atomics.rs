//! Atomic operations with programs that speak RXM, both ways.

use fabric_async::{
    Access, AtomicCall, AtomicOp, AtomicType, CounterBind, Datatype, Error, FiAddr, RemoteAddr,
    RemoteSlice,
};

use crate::libfabric_peer::LibfabricPeer;
use crate::{InteropFixture, pattern, run_against_rxm_peer};

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

fn remote_addr(key: u64, offset: u64) -> RemoteAddr {
    RemoteAddr { key, offset }
}

/// Bytes as the program writes them.
fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn to_bytes<T: AtomicType>(values: &[T]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.bits().to_le_bytes()[..T::DATATYPE.size()].to_vec())
        .collect()
}

fn op_index(op: AtomicOp) -> usize {
    AtomicOp::ALL
        .iter()
        .position(|other| *other == op)
        .expect("one of them")
}

fn datatype_index(datatype: Datatype) -> usize {
    Datatype::ALL
        .iter()
        .position(|other| *other == datatype)
        .expect("one of them")
}

/// What there was, what comes, and what it is compared with: a row of each.
struct AtomicCase<T> {
    initial: Vec<T>,
    operands: Vec<T>,
    comparands: Vec<T>,
}

impl<T: AtomicType> AtomicCase<T> {
    fn from_values([one, two]: [T; 2]) -> Self {
        Self {
            initial: vec![one, two, two, one],
            operands: vec![two, one, two, one],
            comparands: vec![one; 4],
        }
    }

    /// Bytes of the memory afterwards, the values with one on each side that has not changed.
    fn expected_memory(&self, op: AtomicOp) -> Vec<u8> {
        let size = T::DATATYPE.size();
        let compute = |at: usize| {
            let [was, operand, comparand] =
                [&self.initial, &self.operands, &self.comparands].map(|row| row[at].bits());
            op.compute(T::DATATYPE, was, operand, comparand)
                .to_le_bytes()[..size]
                .to_vec()
        };
        [
            vec![0; size],
            (0..4).flat_map(compute).collect(),
            vec![0; size],
        ]
        .concat()
    }
}

/// Every operation that there is for this type, in every call.
fn valid_operations<T: AtomicType>() -> Vec<(AtomicOp, AtomicCall)> {
    let calls = |op: &AtomicOp| {
        AtomicCall::ALL
            .iter()
            .map(|call| (*op, *call))
            .collect::<Vec<_>>()
    };
    let all = AtomicOp::ALL.iter().flat_map(calls);
    all.filter(|(op, call)| op.is_valid(T::DATATYPE, *call))
        .collect()
}

async fn check_our_atomics<T: AtomicType>(us: &InteropFixture, peer: FiAddr, values: [T; 2]) {
    let size = T::DATATYPE.size();
    let there = remote_addr(7, size as u64);
    us.ep
        .write(peer, remote_addr(7, 0), vec![0; 64])
        .await
        .unwrap();
    for (op, call) in valid_operations::<T>() {
        let AtomicCase {
            initial: was,
            operands,
            comparands,
        } = AtomicCase::from_values(values);
        us.ep.write(peer, there, to_bytes(&was)).await.unwrap();
        let fetched = match call {
            AtomicCall::Base => us.ep.atomic(peer, there, op, operands).await.map(|()| None),
            AtomicCall::Fetch => us
                .ep
                .fetch_atomic(peer, there, op, operands)
                .await
                .map(Some),
            AtomicCall::Compare => us
                .ep
                .compare_atomic(peer, there, op, operands, comparands)
                .await
                .map(Some),
        };
        let slice = RemoteSlice {
            key: 7,
            offset: 0,
            len: 6 * size,
        };
        let left = us.ep.read(peer, slice).await.unwrap();
        let what = format!("{op:?} {call:?} on {:?}", T::DATATYPE);
        assert_eq!(
            left[..],
            AtomicCase::from_values(values).expected_memory(op),
            "{what}"
        );
        let expected = (call != AtomicCall::Base).then(|| to_bytes(&was));
        assert_eq!(
            fetched.unwrap().map(|fetched| to_bytes(&fetched)),
            expected,
            "{what}"
        );
    }
}

async fn check_peer_atomics<T: AtomicType>(
    us: &InteropFixture,
    they: &LibfabricPeer,
    values: [T; 2],
) {
    let size = T::DATATYPE.size();
    let region = us.domain.alloc_with_key(6 * size, READ_WRITE, 11).unwrap();
    let case = AtomicCase::from_values(values);
    for (op, call) in valid_operations::<T>() {
        region.write(size, &to_bytes(&case.initial)).unwrap();
        let brings = if op == AtomicOp::Read {
            "-".into()
        } else {
            to_hex(&to_bytes(&case.operands))
        };
        let compares = if call == AtomicCall::Compare {
            to_hex(&to_bytes(&case.comparands))
        } else {
            "-".into()
        };
        let (call_number, op_number) = (call as usize, op_index(op));
        let datatype = datatype_index(T::DATATYPE);
        let line = format!(
            "atomic 1 {call_number} {op_number} {datatype} - {brings} {compares} 11:{size}:4"
        );
        they.expect_reply(line.clone(), "posted").await;
        they.expect_done(1).await;
        let mut left = vec![0; 6 * size];
        region.read(0, &mut left).unwrap();
        assert_eq!(left, case.expected_memory(op), "{line}");
        if call != AtomicCall::Base {
            let was = to_hex(&to_bytes(&case.initial));
            they.expect_reply(format!("got {}", 4 * size), &format!("bytes {was}"))
                .await;
        }
    }
}

#[test]
fn our_atomics_work_on_libfabric_memory() {
    run_against_rxm_peer(true, async |us, they| {
        they.expect_reply("region 7 64", "region").await;
        let peer = us.fi_addr_of(&they);
        macro_rules! all {
            ($($values:expr),*) => {$( check_our_atomics(&us, peer, $values).await; )*};
        }
        all!(
            [1i8, -3],
            [1u8, 200],
            [1i16, -300],
            [1u16, 60_000],
            [1i32, -70_000],
            [1u32, u32::MAX]
        );
        all!(
            [1i64, i64::MIN],
            [1u64, u64::MAX],
            [1f32, -2.5],
            [0f64, -2.5]
        );
    });
}

#[test]
fn libfabric_atomics_work_on_our_memory() {
    run_against_rxm_peer(true, async |us, they| {
        they.expect_reply(format!("to 127.0.0.1 {}", us.port()), "to")
            .await;
        macro_rules! all {
            ($($values:expr),*) => {$( check_peer_atomics(&us, &they, $values).await; )*};
        }
        all!(
            [1i8, -3],
            [1u8, 200],
            [1i16, -300],
            [1u16, 60_000],
            [1i32, -70_000],
            [1u32, u32::MAX]
        );
        all!(
            [1i64, i64::MIN],
            [1u64, u64::MAX],
            [1f32, -2.5],
            [0f64, -2.5]
        );
    });
}

/// Rows of values, as long as either side has them, and several places in one operation.
#[test]
fn atomic_value_arrays_work_in_both_directions() {
    run_against_rxm_peer(true, async |us, they| {
        they.expect_reply("region 7 100000", "region").await;
        let peer = us.fi_addr_of(&they);
        let row: Vec<u64> = (0..512).collect();
        us.ep
            .atomic(peer, remote_addr(7, 8), AtomicOp::Write, row.clone())
            .await
            .unwrap();
        let fetched = us
            .ep
            .fetch_atomic(peer, remote_addr(7, 8), AtomicOp::Sum, vec![5u64; 512])
            .await
            .unwrap();
        assert_eq!(fetched, row);
        let added: Vec<u64> = row.iter().map(|value| value + 5).collect();
        let fetched = us
            .ep
            .compare_atomic(
                peer,
                remote_addr(7, 8),
                AtomicOp::Cswap,
                vec![0; 512],
                added.clone(),
            )
            .await
            .unwrap();
        assert_eq!(fetched, added);
        assert_eq!(
            us.ep
                .fetch_atomic(peer, remote_addr(7, 8), AtomicOp::Read, vec![1u64; 512])
                .await
                .unwrap(),
            [0; 512]
        );
        let refused = us
            .ep
            .atomic(peer, remote_addr(7, 8), AtomicOp::Write, vec![0u64; 513])
            .await
            .unwrap_err();
        assert!(matches!(refused, Error::TooLong { .. }), "{refused}");

        // More than this side asks for is taken.
        let region = us.domain.alloc_with_key(20_000, READ_WRITE, 11).unwrap();
        they.expect_reply(format!("to 127.0.0.1 {}", us.port()), "to")
            .await;
        let most = 16_288;
        let before = pattern(20_000, 3);
        region.write(0, &before).unwrap();
        they.expect_reply(
            format!(
                "atomic 1 1 11 1 - {} - 11:5:{most}",
                to_hex(&pattern(most, 77))
            ),
            "posted",
        )
        .await;
        they.expect_done(1).await;
        they.expect_reply(
            format!("got {most}"),
            &format!("bytes {}", to_hex(&before[5..5 + most])),
        )
        .await;
        let mut after = vec![0; 20_000];
        region.read(0, &mut after).unwrap();
        assert!(after[5..5 + most] == pattern(most, 77)[..] && after[..5] == before[..5]);
        assert!(after[5 + most..] == before[5 + most..]);
        // Nothing, too.
        they.expect_reply("atomic 2 0 2 7 - - - 11:8:0", "posted")
            .await;
        they.expect_done(2).await;
        // Four places, and one that is injected, of which nobody hears.
        region.write(0, &[0; 64]).unwrap();
        let line =
            "atomic 3 1 2 4 - 01000000020000000300000004000000 - 11:0:1 11:8:1 11:16:1 11:24:1";
        for _ in 0..2 {
            they.expect_reply(line, "posted").await;
            they.expect_done(3).await;
        }
        they.expect_reply("got 16", "bytes 01000000020000000300000004000000")
            .await;
        they.expect_reply("atomic 4 0 2 4 i 05000000 - 11:24:1", "posted")
            .await;
        they.expect_reply("read 5 11:0:28", "posted").await;
        they.expect_done(5).await;
        let left = "02000000000000000400000000000000060000000000000".to_owned() + "00d000000";
        they.expect_reply("got 28", &format!("bytes {left}")).await;
    });
}

/// A wrong one fails alone: what is under way goes on, and nothing has changed.
#[test]
fn invalid_atomics_fail_alone() {
    run_against_rxm_peer(true, async |us, they| {
        they.expect_reply("region 7 64", "region").await;
        let peer = us.fi_addr_of(&they);
        us.ep
            .write(peer, remote_addr(7, 0), vec![0; 64])
            .await
            .unwrap();
        for place in [
            remote_addr(8, 0),
            remote_addr(7, 64),
            remote_addr(7, u64::MAX),
        ] {
            let around = [
                us.ep.fetch_add(peer, remote_addr(7, 8), 1u64),
                us.ep.fetch_add(peer, remote_addr(7, 8), 1u64),
            ];
            let [before, after] = around;
            let before = before.start().unwrap();
            let wrong = us.ep.fetch_add(peer, place, 1u64).start().unwrap();
            let base = us
                .ep
                .atomic(peer, place, AtomicOp::Sum, 1u64)
                .start()
                .unwrap();
            let after = after.start().unwrap();
            assert_eq!(after.await.unwrap(), before.await.unwrap() + 1);
            for refused in [wrong.await.unwrap_err(), base.await.unwrap_err()] {
                assert!(
                    matches!(refused, Error::Key { key, .. } if key == place.key),
                    "{refused}"
                );
            }
        }
        us.ep
            .read(
                peer,
                RemoteSlice {
                    key: 7,
                    offset: 0,
                    len: 64,
                },
            )
            .await
            .unwrap();

        let region = us.domain.alloc_with_key(64, READ_WRITE, 11).unwrap();
        let _readable = us
            .domain
            .alloc_with_key(64, Access::REMOTE_READ, 12)
            .unwrap();
        they.expect_reply(format!("to 127.0.0.1 {}", us.port()), "to")
            .await;
        let one = "0100000000000000";
        let wrong = [
            // No such key, no such right, no such range, not at a multiple of its size.
            format!("1 2 7 - {one} - 13:0:1"),
            format!("0 2 7 - {one} - 12:0:1"),
            format!("1 2 7 - {one} - 11:64:1"),
            format!("0 2 7 - {one} - 11:4:1"),
            // A type that libfabric has: complex numbers. In the last case the first place would be
            // right.
            format!("0 2 10 - {one} - 11:0:1"),
            format!("0 2 7 - {one}{one} - 11:0:1 13:0:1"),
        ];
        for line in wrong {
            they.expect_reply(format!("atomic 1 {line}"), "posted")
                .await;
            let entry = they.next_entry_for(1).await;
            assert!(entry.starts_with("failed 1 "), "{line}: {entry}");
            they.expect_reply(format!("atomic 2 1 2 7 - {one} - 11:8:1"), "posted")
                .await;
            let entry = they.next_entry_for(2).await;
            assert!(entry.starts_with("done 2 "), "{line}: {entry}");
        }
        assert_eq!(
            (
                region.load::<u64>(0).unwrap(),
                region.load::<u64>(8).unwrap()
            ),
            (0, 6)
        );
    });
}

/// A program that has not asked for atomic operations refuses them.
#[test]
fn peer_without_fi_atomic_refuses_atomics() {
    run_against_rxm_peer(false, async |us, they| {
        they.expect_reply("region 7 64", "region").await;
        let peer = us.fi_addr_of(&they);
        us.ep
            .write(peer, remote_addr(7, 0), vec![9; 64])
            .await
            .unwrap();
        let refused = us
            .ep
            .fetch_add(peer, remote_addr(7, 8), 1u64)
            .await
            .unwrap_err();
        assert!(matches!(refused, Error::Key { key: 7, .. }), "{refused}");
        assert_eq!(
            us.ep
                .read(
                    peer,
                    RemoteSlice {
                        key: 7,
                        offset: 0,
                        len: 64
                    }
                )
                .await
                .unwrap()[..],
            [9; 64]
        );
    });
}

/// The owner is told, and has the memory in hand when it likes.
#[test]
fn atomics_on_registered_buffer_are_counted() {
    run_against_rxm_peer(true, async |us, they| {
        let counted = us.domain.counter().unwrap();
        let mut own = us
            .domain
            .register(vec![0u8; 64], READ_WRITE, Some(12))
            .unwrap();
        own.bind_counter(&counted, CounterBind::REMOTE_WRITE)
            .unwrap();
        they.expect_reply(format!("to 127.0.0.1 {}", us.port()), "to")
            .await;
        for round in 1..=3u8 {
            let look = own.lock();
            they.expect_reply("atomic 1 0 2 7 - 0100000000000000 - 12:8:1", "posted")
                .await;
            assert_eq!(look[8], round - 1);
            drop(look);
            they.expect_done(1).await;
            assert_eq!(counted.wait(u64::from(round)).await, Ok(u64::from(round)));
            assert_eq!(own.lock()[8], round);
        }
    });
}

/// With everything else on the same connection.
#[test]
fn interleaved_atomics_reads_and_messages_match() {
    const LEN: usize = 400_000;
    run_against_rxm_peer(true, async |us, they| {
        they.expect_reply("region 7 1000", "region").await;
        they.expect_reply(format!("to 127.0.0.1 {}", us.port()), "to")
            .await;
        let peer = us.fi_addr_of(&they);
        us.ep
            .write(peer, remote_addr(7, 0), vec![0; 1000])
            .await
            .unwrap();
        let mut next = 0;
        for round in 0..3 {
            they.expect_reply(format!("send 1 {LEN} {round} - 0 0"), "posted")
                .await;
            let message = us.ep.recv().start().unwrap();
            let adds: Vec<_> = (0..100)
                .map(|_| {
                    us.ep
                        .fetch_add(peer, remote_addr(7, 16), 1u64)
                        .start()
                        .unwrap()
                })
                .collect();
            let reads: Vec<_> = (0..20)
                .map(|_| {
                    us.ep
                        .read(
                            peer,
                            RemoteSlice {
                                key: 7,
                                offset: 16,
                                len: 8,
                            },
                        )
                        .start()
                        .unwrap()
                })
                .collect();
            for add in adds {
                assert_eq!(add.await.unwrap(), next);
                next += 1;
            }
            for read in reads {
                assert_eq!(read.await.unwrap()[..], next.to_le_bytes());
            }
            assert!(message.await.unwrap()[..] == pattern(LEN, round)[..]);
            they.expect_done(1).await;
        }
    });
}
