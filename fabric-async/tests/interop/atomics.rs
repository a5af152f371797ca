//! Atomic operations with peers that speak RXM, in both directions.

use fabric_async::atomic::{AtomicCall, AtomicOp, AtomicType, Complex, Datatype};
use fabric_async::{Access, CounterBind, Error, FiAddr, RemoteAddr, RemoteSlice};

use crate::libfabric_peer::LibfabricPeer;
use crate::{InteropFixture, pattern, run_against_rxm_peer};

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

fn remote_addr(key: u64, offset: u64) -> RemoteAddr {
    RemoteAddr { key, offset }
}

/// Returns the bytes in the peer's hexadecimal notation.
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
        .expect("the operation is in ALL")
}

fn datatype_index(datatype: Datatype) -> usize {
    Datatype::ALL
        .iter()
        .position(|other| *other == datatype)
        .expect("the data type is in ALL")
}

/// Initial values, operands and comparands.
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

    /// Returns the memory afterwards: the values, with an unchanged value on each side.
    fn expected_memory(&self, op: AtomicOp) -> Vec<u8> {
        let size = T::DATATYPE.size();
        let compute = |at: usize| {
            let [initial, operand, comparand] =
                [&self.initial, &self.operands, &self.comparands].map(|values| values[at].bits());
            op.compute(T::DATATYPE, initial, operand, comparand)
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

/// Returns every valid operation on this type, with every call.
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

async fn check_fabric_async_atomics<T: AtomicType>(
    local: &InteropFixture,
    peer: FiAddr,
    values: [T; 2],
) {
    let size = T::DATATYPE.size();
    let remote = remote_addr(7, size as u64);
    local
        .ep
        .write(peer, remote_addr(7, 0), vec![0; 64])
        .await
        .unwrap();
    for (op, call) in valid_operations::<T>() {
        let AtomicCase {
            initial,
            operands,
            comparands,
        } = AtomicCase::from_values(values);
        local
            .ep
            .write(peer, remote, to_bytes(&initial))
            .await
            .unwrap();
        let fetched = match call {
            AtomicCall::Base => local
                .ep
                .atomic(peer, remote, op, operands)
                .await
                .map(|()| None),
            AtomicCall::Fetch => local
                .ep
                .fetch_atomic(peer, remote, op, operands)
                .await
                .map(Some),
            AtomicCall::Compare => local
                .ep
                .compare_atomic(peer, remote, op, operands, comparands)
                .await
                .map(Some),
        };
        let slice = RemoteSlice {
            key: 7,
            offset: 0,
            len: 6 * size,
        };
        let memory = local.ep.read(peer, slice).await.unwrap();
        let context = format!("{op:?} {call:?} on {:?}", T::DATATYPE);
        assert_eq!(
            memory[..],
            AtomicCase::from_values(values).expected_memory(op),
            "{context}"
        );
        let expected = (call != AtomicCall::Base).then(|| to_bytes(&initial));
        assert_eq!(
            fetched.unwrap().map(|fetched| to_bytes(&fetched)),
            expected,
            "{context}"
        );
    }
}

async fn check_peer_atomics<T: AtomicType>(
    local: &InteropFixture,
    libfabric: &LibfabricPeer,
    values: [T; 2],
) {
    let size = T::DATATYPE.size();
    let region = local
        .domain
        .alloc_with_key(6 * size, READ_WRITE, 11)
        .unwrap();
    let case = AtomicCase::from_values(values);
    for (op, call) in valid_operations::<T>() {
        region.write(size, &to_bytes(&case.initial)).unwrap();
        let operands = if op == AtomicOp::Read {
            "-".into()
        } else {
            to_hex(&to_bytes(&case.operands))
        };
        let comparands = if call == AtomicCall::Compare {
            to_hex(&to_bytes(&case.comparands))
        } else {
            "-".into()
        };
        let (call_number, op_number) = (call as usize, op_index(op));
        let datatype = datatype_index(T::DATATYPE);
        let line = format!(
            "atomic 1 {call_number} {op_number} {datatype} - {operands} {comparands} 11:{size}:4"
        );
        libfabric.expect_reply(line.clone(), "posted").await;
        libfabric.expect_done(1).await;
        let mut memory = vec![0; 6 * size];
        region.read(0, &mut memory).unwrap();
        assert_eq!(memory, case.expected_memory(op), "{line}");
        if call != AtomicCall::Base {
            let initial = to_hex(&to_bytes(&case.initial));
            libfabric
                .expect_reply(format!("dump_rx {}", 4 * size), &format!("bytes {initial}"))
                .await;
        }
    }
}

#[test]
fn fabric_async_atomics_change_libfabric_memory_as_specified() {
    run_against_rxm_peer(true, async |local, libfabric| {
        libfabric.expect_reply("region 7 96", "region").await;
        let peer = local.fi_addr_of(&libfabric);
        macro_rules! all {
            ($($values:expr),*) => {$( check_fabric_async_atomics(&local, peer, $values).await; )*};
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
            [0f64, -2.5],
            // The process of the peer dies of operands of 16 bytes (libfabric 1.17).
            [Complex::new(1f32, -2.5), Complex::new(0.0, 1.0)]
        );
    });
}

#[test]
fn libfabric_atomics_work_on_fabric_async_memory() {
    run_against_rxm_peer(true, async |local, libfabric| {
        libfabric
            .expect_reply(format!("dest 127.0.0.1 {}", local.port()), "dest")
            .await;
        macro_rules! all {
            ($($values:expr),*) => {$( check_peer_atomics(&local, &libfabric, $values).await; )*};
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
            [0f64, -2.5],
            [Complex::new(1f32, -2.5), Complex::new(0.0, 1.0)],
            [Complex::new(1f64, -2.5), Complex::new(0.0, 1.0)],
            [1i128, i128::MIN],
            [1u128, u128::MAX]
        );
    });
}

/// The maximum number of values of either side, and several remote ranges in one operation.
#[test]
fn atomic_value_arrays_work_in_both_directions() {
    run_against_rxm_peer(true, async |local, libfabric| {
        libfabric.expect_reply("region 7 100000", "region").await;
        let peer = local.fi_addr_of(&libfabric);
        let values: Vec<u64> = (0..512).collect();
        local
            .ep
            .atomic(peer, remote_addr(7, 8), AtomicOp::Write, values.clone())
            .await
            .unwrap();
        let fetched = local
            .ep
            .fetch_atomic(peer, remote_addr(7, 8), AtomicOp::Sum, vec![5u64; 512])
            .await
            .unwrap();
        assert_eq!(fetched, values);
        let added: Vec<u64> = values.iter().map(|value| value + 5).collect();
        let fetched = local
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
            local
                .ep
                .fetch_atomic(peer, remote_addr(7, 8), AtomicOp::Read, vec![1u64; 512])
                .await
                .unwrap(),
            [0; 512]
        );
        let error = local
            .ep
            .atomic(peer, remote_addr(7, 8), AtomicOp::Write, vec![0u64; 513])
            .await
            .unwrap_err();
        assert!(matches!(error, Error::TooLong { .. }), "{error}");

        // Operations larger than those of this side are executed.
        let region = local.domain.alloc_with_key(20_000, READ_WRITE, 11).unwrap();
        libfabric
            .expect_reply(format!("dest 127.0.0.1 {}", local.port()), "dest")
            .await;
        let len = 16_288;
        let before = pattern(20_000, 3);
        region.write(0, &before).unwrap();
        libfabric
            .expect_reply(
                format!(
                    "atomic 1 1 11 1 - {} - 11:5:{len}",
                    to_hex(&pattern(len, 77))
                ),
                "posted",
            )
            .await;
        libfabric.expect_done(1).await;
        libfabric
            .expect_reply(
                format!("dump_rx {len}"),
                &format!("bytes {}", to_hex(&before[5..5 + len])),
            )
            .await;
        let mut after = vec![0; 20_000];
        region.read(0, &mut after).unwrap();
        assert!(after[5..5 + len] == pattern(len, 77)[..] && after[..5] == before[..5]);
        assert!(after[5 + len..] == before[5 + len..]);
        // An operation without values.
        libfabric
            .expect_reply("atomic 2 0 2 7 - - - 11:8:0", "posted")
            .await;
        libfabric.expect_done(2).await;
        // Four remote ranges, and an injected operation, which has no completion.
        region.write(0, &[0; 64]).unwrap();
        let line =
            "atomic 3 1 2 4 - 01000000020000000300000004000000 - 11:0:1 11:8:1 11:16:1 11:24:1";
        for _ in 0..2 {
            libfabric.expect_reply(line, "posted").await;
            libfabric.expect_done(3).await;
        }
        libfabric
            .expect_reply("dump_rx 16", "bytes 01000000020000000300000004000000")
            .await;
        libfabric
            .expect_reply("atomic 4 0 2 4 i 05000000 - 11:24:1", "posted")
            .await;
        libfabric.expect_reply("read 5 11:0:28", "posted").await;
        libfabric.expect_done(5).await;
        let memory = "02000000000000000400000000000000060000000000000".to_owned() + "00d000000";
        libfabric
            .expect_reply("dump_rx 28", &format!("bytes {memory}"))
            .await;
    });
}

/// An invalid operation fails alone: operations in flight complete, and memory is unchanged.
#[test]
fn invalid_atomics_fail_alone() {
    run_against_rxm_peer(true, async |local, libfabric| {
        libfabric.expect_reply("region 7 64", "region").await;
        let peer = local.fi_addr_of(&libfabric);
        local
            .ep
            .write(peer, remote_addr(7, 0), vec![0; 64])
            .await
            .unwrap();
        for remote in [
            remote_addr(8, 0),
            remote_addr(7, 64),
            remote_addr(7, u64::MAX),
        ] {
            let around = [
                local.ep.fetch_add(peer, remote_addr(7, 8), 1u64),
                local.ep.fetch_add(peer, remote_addr(7, 8), 1u64),
            ];
            let [before, after] = around;
            let before = before.start().unwrap();
            let invalid = local.ep.fetch_add(peer, remote, 1u64).start().unwrap();
            let base = local
                .ep
                .atomic(peer, remote, AtomicOp::Sum, 1u64)
                .start()
                .unwrap();
            let after = after.start().unwrap();
            assert_eq!(after.await.unwrap(), before.await.unwrap() + 1);
            for error in [invalid.await.unwrap_err(), base.await.unwrap_err()] {
                assert!(
                    matches!(error, Error::Key { key, .. } if key == remote.key),
                    "{error}"
                );
            }
        }
        local
            .ep
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

        let region = local.domain.alloc_with_key(64, READ_WRITE, 11).unwrap();
        let _readable = local
            .domain
            .alloc_with_key(64, Access::REMOTE_READ, 12)
            .unwrap();
        libfabric
            .expect_reply(format!("dest 127.0.0.1 {}", local.port()), "dest")
            .await;
        let one = "0100000000000000";
        let invalid = [
            // Unknown key, missing access right, out of range, misaligned.
            format!("1 2 7 - {one} - 13:0:1"),
            format!("0 2 7 - {one} - 12:0:1"),
            format!("1 2 7 - {one} - 11:64:1"),
            format!("0 2 7 - {one} - 11:4:1"),
            // A type that libfabric has and we do not: `long double`. In the last case only the
            // second remote range is invalid.
            format!("0 2 12 - {one}{one} - 11:0:1"),
            format!("0 2 7 - {one}{one} - 11:0:1 13:0:1"),
        ];
        for line in invalid {
            libfabric
                .expect_reply(format!("atomic 1 {line}"), "posted")
                .await;
            let entry = libfabric.next_entry_for(1).await;
            assert!(entry.starts_with("failed 1 "), "{line}: {entry}");
            libfabric
                .expect_reply(format!("atomic 2 1 2 7 - {one} - 11:8:1"), "posted")
                .await;
            let entry = libfabric.next_entry_for(2).await;
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

/// A peer that was opened without FI_ATOMIC rejects atomic operations.
#[test]
fn peer_without_fi_atomic_refuses_atomics() {
    run_against_rxm_peer(false, async |local, libfabric| {
        libfabric.expect_reply("region 7 64", "region").await;
        let peer = local.fi_addr_of(&libfabric);
        local
            .ep
            .write(peer, remote_addr(7, 0), vec![9; 64])
            .await
            .unwrap();
        let error = local
            .ep
            .fetch_add(peer, remote_addr(7, 8), 1u64)
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Key { key: 7, .. }), "{error}");
        assert_eq!(
            local
                .ep
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

/// The owner gets counter events, and can lock the buffer.
#[test]
fn atomics_on_registered_buffer_are_counted() {
    run_against_rxm_peer(true, async |local, libfabric| {
        let counted = local.domain.counter().unwrap();
        let mut registered = local
            .domain
            .register(vec![0u8; 64], READ_WRITE, Some(12))
            .unwrap();
        registered
            .bind_counter(&counted, CounterBind::REMOTE_WRITE)
            .unwrap();
        libfabric
            .expect_reply(format!("dest 127.0.0.1 {}", local.port()), "dest")
            .await;
        for round in 1..=3u8 {
            let guard = registered.lock();
            libfabric
                .expect_reply("atomic 1 0 2 7 - 0100000000000000 - 12:8:1", "posted")
                .await;
            assert_eq!(guard[8], round - 1);
            drop(guard);
            libfabric.expect_done(1).await;
            assert_eq!(counted.wait(u64::from(round)).await, Ok(u64::from(round)));
            assert_eq!(registered.lock()[8], round);
        }
    });
}

/// Atomic operations, reads and messages share a connection.
#[test]
fn interleaved_atomics_reads_and_messages_have_correct_results() {
    const LEN: usize = 400_000;
    run_against_rxm_peer(true, async |local, libfabric| {
        libfabric.expect_reply("region 7 1000", "region").await;
        libfabric
            .expect_reply(format!("dest 127.0.0.1 {}", local.port()), "dest")
            .await;
        let peer = local.fi_addr_of(&libfabric);
        local
            .ep
            .write(peer, remote_addr(7, 0), vec![0; 1000])
            .await
            .unwrap();
        let mut next = 0;
        for round in 0..3 {
            libfabric
                .expect_reply(format!("send 1 {LEN} {round} - 0 0"), "posted")
                .await;
            let message = local.ep.recv().start().unwrap();
            let adds: Vec<_> = (0..100)
                .map(|_| {
                    local
                        .ep
                        .fetch_add(peer, remote_addr(7, 16), 1u64)
                        .start()
                        .unwrap()
                })
                .collect();
            let reads: Vec<_> = (0..20)
                .map(|_| {
                    local
                        .ep
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
            libfabric.expect_done(1).await;
        }
    });
}
