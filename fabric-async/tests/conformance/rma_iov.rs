//! RMA operations with several remote segments (`rma_iov`).

use fabric_async::buf::{Gather, Scatter};
use fabric_async::{Access, Caps, Completion, CounterBind, Error, OpKind, RemoteSlice, discover};
use futures_util::StreamExt;

use crate::endpoint_fixture::{
    EndpointConfig, EndpointFixture, endpoint_pair, endpoint_pair_with, flush,
};
use crate::payload::{assert_bytes, pattern, poll_once, yield_times};
use crate::regions::open_virt_addr_owner;
use crate::setup::Setup;

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
const REGION_LEN: u64 = 1 << 20;

fn total_len(segments: &[RemoteSlice]) -> usize {
    segments.iter().map(|segment| segment.len).sum()
}

async fn next_entry(fixture: &mut EndpointFixture) -> Completion {
    fixture.cq.next().await.expect("the queue is open")
}

/// Short and long segments, adjacent and apart, in one region and in several, mapped and executed
/// by the owner.
pub(crate) async fn every_length_reaches_its_segments(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let (one, two) = (
        b.domain.alloc(REGION_LEN as usize, READ_WRITE).unwrap(),
        b.domain.alloc(REGION_LEN as usize, READ_WRITE).unwrap(),
    );
    let mut registered = b
        .domain
        .register(vec![0u8; REGION_LEN as usize], READ_WRITE, None)
        .unwrap();
    let (x, y, z) = (one.remote(), two.remote(), registered.remote());
    for (which, segments) in [
        vec![x.slice(0..8), x.slice(8..9)],
        vec![
            x.slice(100..108),
            x.slice(0..50),
            x.slice(7000..7000),
            x.slice(60..99),
        ],
        vec![
            x.slice(..300_000),
            y.slice(5..600_006),
            x.slice(400_000..700_001),
        ],
        vec![
            z.slice(..100_000),
            x.slice(1..70_000),
            z.slice(200_000..300_001),
            y.slice(3..4),
        ],
        vec![y.slice(..0), z.slice(1..1), y.slice(9..9)],
        vec![z.slice(REGION_LEN - 8..), z.slice(..8)],
        vec![y.slice(7..)],
    ]
    .into_iter()
    .enumerate()
    {
        let bytes = pattern(total_len(&segments), which);
        let done = a.ep.write(to_b, &segments, bytes).await.unwrap();
        assert_eq!(
            (done.transfer.len, done.buf.len()),
            (bytes.len(), bytes.len())
        );
        let mut from = 0;
        for segment in &segments {
            let (start, bytes) = (segment.offset as usize, &bytes[from..from + segment.len]);
            let mut there = vec![0; segment.len];
            match segment.key {
                key if key == x.key => one.read(start, &mut there).unwrap(),
                key if key == y.key => two.read(start, &mut there).unwrap(),
                _ => there.copy_from_slice(&registered.lock()[start..start + segment.len]),
            }
            assert_bytes(&there, bytes);
            from += segment.len;
        }
        assert_bytes(&a.ep.read(to_b, &segments).await.unwrap(), bytes);
        let got =
            a.ep.read_into(to_b, &segments, Vec::with_capacity(bytes.len()))
                .await
                .unwrap();
        assert_bytes(&got.into_buf(), bytes);
    }
}

/// Local buffers and remote segments may have different lengths.
pub(crate) async fn local_and_remote_vectors_combine(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let region = b.domain.alloc(10_000, READ_WRITE).unwrap();
    let remote = region.remote();
    let segments = [
        remote.slice(9000..9010),
        remote.slice(..5000),
        remote.slice(6000..6490),
    ];
    let bytes = pattern(5500, 1);
    let parts = [
        bytes[..7].to_vec(),
        bytes[7..5200].to_vec(),
        bytes[5200..].to_vec(),
    ];
    a.ep.write(to_b, segments, Gather::from(parts))
        .await
        .unwrap();
    let target = Scatter::from([
        Vec::with_capacity(20),
        Vec::with_capacity(5479),
        Vec::with_capacity(100),
    ]);
    let got = a.ep.read_into(to_b, segments, target).await.unwrap();
    assert_bytes(&got.buf.pieces().collect::<Vec<_>>().concat(), bytes);
    let small =
        a.ep.read_into(to_b, segments, vec![0; 5499].into_boxed_slice())
            .await
            .unwrap_err();
    assert_eq!(
        small.error,
        Error::BufferTooSmall {
            len: 5500,
            capacity: 5499
        }
    );
    assert_eq!(small.buf.len(), 5499);
}

/// If any segment is invalid, no byte changes, and the next operation works.
pub(crate) async fn invalid_segment_leaves_memory_unchanged(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let (good, no_access) = (
        b.domain.alloc(400_000, READ_WRITE).unwrap(),
        b.domain.alloc(64, Access::REMOTE_READ).unwrap(),
    );
    let mut served = b
        .domain
        .register(vec![0u8; 100_000], READ_WRITE, None)
        .unwrap();
    let locked = b
        .domain
        .register(vec![0u8; 64], Access::REMOTE_WRITE, None)
        .unwrap();
    let (x, z) = (good.remote(), served.remote());
    let beyond = |region: fabric_async::RemoteRegion| RemoteSlice {
        len: 9,
        ..region.slice(region.len - 8..)
    };
    let unknown = RemoteSlice {
        key: x.key ^ 1,
        offset: 0,
        len: 8,
    };
    for round in 0..2 {
        for (is_write, bad) in [
            (true, unknown),
            (false, unknown),
            (true, beyond(x)),
            (false, beyond(z)),
            (true, beyond(z)),
            (true, no_access.remote().slice(..8)),
            (false, locked.remote().slice(..8)),
            (
                true,
                RemoteSlice {
                    len: usize::MAX >> 1,
                    ..x.slice(8..)
                },
            ),
        ] {
            for at in 0..3 {
                let mut segments = vec![x.slice(..300_000), z.slice(..70_000)];
                segments.insert(at, bad);
                let error = if !is_write {
                    let target = vec![7; total_len(&segments)].into_boxed_slice();
                    let failed = a.ep.read_into(to_b, &segments, target).await.unwrap_err();
                    assert!(failed.buf.iter().all(|byte| *byte == 7), "no byte was read");
                    failed.error
                } else if bad.len > 100 {
                    // No local buffer has that length.
                    a.ep.write(to_b, &segments, vec![7; 10])
                        .await
                        .unwrap_err()
                        .error
                } else {
                    let failed =
                        a.ep.write(to_b, &segments, vec![7; total_len(&segments)])
                            .await
                            .unwrap_err();
                    assert_eq!(failed.buf.len(), total_len(&segments));
                    failed.error
                };
                assert!(
                    matches!(
                        error,
                        Error::Key { .. } | Error::OutOfBounds { .. } | Error::Invalid { .. }
                    ),
                    "round {round}, {bad:?}: {error}"
                );
            }
        }
        let mut there = vec![1; 300_000];
        good.read(0, &mut there).unwrap();
        assert!(there.iter().all(|byte| *byte == 0) && served.lock().iter().all(|byte| *byte == 0));
    }
    a.ep.write(to_b, [x.slice(..4), z.slice(..4)], vec![9; 8])
        .await
        .unwrap();
    assert_eq!(
        (good.load::<u32>(0), &served.lock()[..5]),
        (Ok(0x0909_0909), &[9, 9, 9, 9, 0][..])
    );
}

pub(crate) async fn invalid_segment_lists_are_refused(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let region = b.domain.alloc(1000, READ_WRITE).unwrap();
    let segment_at = |number: u64| region.remote().slice(number..number + 1);
    let refused = a.ep.write(to_b, [], Vec::new()).start().unwrap_err().error;
    assert!(
        matches!(
            refused,
            Error::Invalid {
                what: "list of remote ranges",
                ..
            }
        ),
        "{refused}"
    );
    let refused = a.ep.read(to_b, []).await.unwrap_err().error;
    assert!(
        matches!(
            refused,
            Error::Invalid {
                what: "list of remote ranges",
                ..
            }
        ),
        "{refused}"
    );
    for bytes in [1, 3] {
        for segments in [
            vec![segment_at(0), segment_at(1)],
            vec![RemoteSlice {
                len: 2,
                ..segment_at(0)
            }],
        ] {
            let refused =
                a.ep.write(to_b, &segments, vec![1; bytes])
                    .post()
                    .unwrap_err();
            assert!(matches!(
                refused.error,
                Error::Invalid { what: "write", .. }
            ));
            assert_eq!(refused.buf, vec![1; bytes]);
        }
    }
    let limit = a.info.tx.rma_iov_limit;
    let segments: Vec<_> = (0..=limit as u64).map(segment_at).collect();
    let refused =
        a.ep.write(to_b, &segments, vec![1; limit + 1])
            .await
            .unwrap_err()
            .error;
    assert_eq!(
        refused,
        Error::TooMany {
            what: "remote ranges of one operation (rma_iov_limit)",
            count: limit + 1,
            limit
        }
    );
    a.ep.write(to_b, &segments[1..], vec![1; limit])
        .await
        .unwrap();
    let got = a.ep.read(to_b, &segments[..limit]).await.unwrap();
    assert_eq!((got[0], got[1], got.len()), (0, 1, limit));
    // An application may ask for a lower limit.
    let hints = setup.hints().caps(setup.caps);
    let info = discover(&hints.clone().rma_iov_limit(2))
        .unwrap()
        .swap_remove(0);
    assert_eq!(info.tx.rma_iov_limit, 2);
    let few = a
        .domain
        .endpoint(&info)
        .unwrap()
        .bind_av(&a.av)
        .unwrap()
        .enable()
        .unwrap();
    let refused = few.read(to_b, &segments[..3]).await.unwrap_err().error;
    assert_eq!(
        refused,
        Error::TooMany {
            what: "remote ranges of one operation (rma_iov_limit)",
            count: 3,
            limit: 2
        }
    );
    let Error::NoMatch(none) = discover(&hints.rma_iov_limit(limit + 1)).unwrap_err() else {
        panic!("discovery refuses with NoMatch")
    };
    assert!(
        none.mismatches
            .iter()
            .any(|refusal| refusal.attribute == "rma_iov_limit"),
        "{none}"
    );
}

/// Operations that are posted in batches complete once each, in order; a message that is sent after
/// them arrives when all bytes are written.
pub(crate) async fn multi_range_op_has_one_completion(setup: Setup) {
    let (mut a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let region = b.domain.alloc(4096, READ_WRITE).unwrap();
    let remote = region.remote();
    let segments = |number: u64| {
        [
            remote.slice(number..number + 1),
            remote.slice(1000 + 3 * number..1003 + 3 * number),
        ]
    };
    let mut count = 0;
    while count < 100 {
        // Possibly more operations than there are credits.
        let rest = count..100u64;
        let requests = rest.map(|number| {
            a.ep.write(to_b, segments(number), vec![number as u8; 4])
                .context(number)
        });
        let posted = match a.ep.post_all(requests) {
            Ok(posted) => posted,
            Err(stopped) => {
                assert!(
                    matches!(stopped.error, Error::WouldBlock(_)),
                    "{}",
                    stopped.error
                );
                assert_eq!(
                    stopped.unposted.into_iter().next().unwrap().into_buf(),
                    vec![(count + stopped.posted as u64) as u8; 4]
                );
                stopped.posted
            }
        };
        for _ in 0..posted {
            let entry = next_entry(&mut a).await;
            assert_eq!(
                (entry.kind, entry.context, &entry.error),
                (OpKind::Write, count, &None)
            );
            assert_eq!(entry.transfer.len, 4);
            count += 1;
        }
    }
    a.ep.read_into(to_b, segments(7), vec![0; 4])
        .context(5)
        .post()
        .unwrap();
    let read = next_entry(&mut a).await;
    assert_eq!(
        (read.kind, read.context, read.bytes()),
        (OpKind::Read, 5, &[7; 4][..])
    );
    let last = a.ep.write(to_b, segments(500), vec![8; 4]).start().unwrap();
    let (sent, got) = tokio::join!(a.ep.send(to_b, "behind"), b.ep.recv());
    sent.unwrap();
    got.unwrap();
    assert_eq!(
        (region.load::<u8>(500), region.load::<u8>(2502)),
        (Ok(8), Ok(8))
    );
    last.await.unwrap();
    assert_eq!(
        (region.load::<u8>(99), region.load::<u8>(1299)),
        (Ok(99), Ok(99))
    );
}

pub(crate) async fn write_data_reports_once_after_all_bytes(setup: Setup) {
    let (a, mut b, to_b) = endpoint_pair(&setup).await;
    let (one, two) = (
        b.domain.alloc(400_000, READ_WRITE).unwrap(),
        b.domain.alloc(400_000, READ_WRITE).unwrap(),
    );
    let segments = [
        one.remote().slice(..300_000),
        two.remote().slice(..8),
        one.remote().slice(300_000..300_001),
    ];
    for data in 0..5u64 {
        let bytes = pattern(total_len(&segments), data as usize);
        let (done, entry) = tokio::join!(
            a.ep.write(to_b, segments, bytes).data(data),
            next_entry(&mut b)
        );
        done.unwrap();
        assert_eq!(
            (entry.kind, entry.transfer.data),
            (OpKind::RemoteWrite, Some(data))
        );
        assert_eq!(
            entry.transfer.len,
            bytes.len(),
            "the length of all segments"
        );
        assert_eq!(one.load::<u8>(300_000), Ok(bytes[300_008]));
    }
    assert_eq!(b.ep.stats().remote_ops.count, 5);
}

/// The target's counter counts segments.
pub(crate) async fn target_counts_each_segment(setup: Setup) {
    let (a, b) = (setup.open_endpoint().await, setup.open_endpoint().await);
    let _progress = b.spawn_progress();
    let counters: Vec<_> = (0..2).map(|_| b.domain.counter().unwrap()).collect();
    assert!(b.info.caps.contains(Caps::RMA_EVENT));
    let builder = b
        .domain
        .endpoint(&b.info)
        .unwrap()
        .bind_av(&b.av)
        .unwrap()
        .bind_cq(&b.cq, fabric_async::CqBind::RECV);
    let builder = builder
        .unwrap()
        .bind_counter(&counters[0], CounterBind::REMOTE_WRITE)
        .unwrap();
    let target = builder
        .bind_counter(&counters[1], CounterBind::REMOTE_READ)
        .unwrap()
        .enable()
        .unwrap();
    let region = b.domain.alloc(100, READ_WRITE).unwrap();
    let registered = b.domain.register(vec![0u8; 100], READ_WRITE, None).unwrap();
    let peer = a.ep.add_peer(target.name()).await.unwrap();
    let segments = [
        region.remote().slice(..10),
        registered.remote().slice(..20),
        region.remote().slice(10..40),
    ];
    a.ep.write(peer, segments, vec![1; 60]).await.unwrap();
    assert_eq!(counters[0].wait(3).await, Ok(3));
    a.ep.write(peer, segments, vec![1; 60])
        .data(4)
        .await
        .unwrap();
    assert_eq!(counters[0].wait(6).await, Ok(6));
    a.ep.read(peer, segments).await.unwrap();
    assert_eq!(counters[1].wait(3).await, Ok(3));
    let remote_ops = target.stats().remote_ops;
    assert_eq!(
        (remote_ops.count, remote_ops.bytes),
        (9, 180),
        "each byte once"
    );
}

pub(crate) async fn multi_segment_ops_use_virtual_addresses_with_fi_mr_virt_addr(setup: Setup) {
    let a = setup.open_endpoint().await;
    let (domain, owner, driver) = open_virt_addr_owner(&setup).await;
    let to_b = a.ep.add_peer(owner.name()).await.unwrap();
    let (region, mut registered) = (
        domain.alloc(100, READ_WRITE).unwrap(),
        domain.register(vec![0u8; 100], READ_WRITE, None).unwrap(),
    );
    let segments = [registered.remote().slice(90..), region.remote().slice(3..5)];
    assert!(segments[1].offset > 100, "an address");
    a.ep.write(to_b, segments, vec![6; 12]).await.unwrap();
    assert_eq!(
        (&registered.lock()[89..], region.load::<u8>(4)),
        (&[0, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6][..], Ok(6))
    );
    let low = [
        segments[0],
        RemoteSlice {
            offset: 3,
            ..segments[1]
        },
    ];
    let failed = a.ep.write(to_b, low, vec![7; 12]).await.unwrap_err().error;
    assert!(matches!(failed, Error::OutOfBounds { .. }), "{failed}");
    assert_eq!(registered.lock()[99], 6);
    driver.abort();
}

/// Operations that wait behind others, are canceled, dropped, or lose their region: each completes
/// once, and none is left pending.
pub(crate) async fn multi_segment_ops_fail_as_single_segment_ops(setup: Setup) {
    let config = EndpointConfig {
        tx_size: Some(16),
        ..EndpointConfig::default()
    };
    let (a, b, to_b) = endpoint_pair_with(&setup, config, EndpointConfig::default()).await;
    let _progress = (a.spawn_progress(), b.spawn_progress());
    let mut registered = b
        .domain
        .register(vec![0u8; 300_000], READ_WRITE, None)
        .unwrap();
    let region = b.domain.alloc(300_000, READ_WRITE).unwrap();
    let segments = [
        region.remote().slice(..10),
        registered.remote().slice(..200_000),
        region.remote().slice(10..20),
    ];
    // While the owner holds the lock, the operations wait; those that have not begun can be
    // canceled.
    let guard = registered.lock();
    let mut first =
        a.ep.write(to_b, segments, vec![1; 200_020])
            .start()
            .unwrap();
    let second =
        a.ep.write(to_b, segments, vec![2; 200_020])
            .start()
            .unwrap();
    drop(
        a.ep.write(to_b, segments, vec![3; 200_020])
            .start()
            .unwrap(),
    );
    let mut read = a.ep.read(to_b, segments).start().unwrap();
    assert!(poll_once(&mut first).await.is_pending() && poll_once(&mut read).await.is_pending());
    assert_eq!(
        region.load::<u8>(0),
        Ok(0),
        "no byte is written before all segments are checked"
    );
    let is_remote = !setup.shares_memory();
    let cancel = async {
        match second.cancel().await {
            fabric_async::CancelOutcome::Canceled(buf) => assert_eq!(buf.len(), 200_020),
            // The bytes were sent before the cancel.
            fabric_async::CancelOutcome::Completed(Ok(_)) if is_remote => {}
            other => panic!("{other:?}"),
        }
    };
    let unlock = async { drop(guard) };
    tokio::join!(biased; cancel, unlock);
    first.await.unwrap();
    let got = read.await.unwrap();
    assert!(
        got.len() == 200_020 && got.iter().all(|byte| *byte == 3),
        "the dropped write took effect"
    );
    // Zero-copy: the kernel may still hold the buffer of the dropped write, which keeps its credit.
    while a.domain.stats().operations > 0 {
        yield_times(1).await;
    }
    // The owner closes the buffer while writes are in progress: each write completes in any case.
    let writes: Vec<_> = (0..4)
        .map(|at| {
            a.ep.write(to_b, segments, vec![at; 200_020])
                .start()
                .unwrap()
        })
        .collect();
    registered.close().unwrap();
    for write in writes {
        if let Err(failed) = write.await {
            assert!(
                matches!(failed.error, Error::Key { .. }),
                "{}",
                failed.error
            );
        }
    }
    flush(&a, &b, to_b).await;
    assert_eq!(a.domain.stats().operations, 0);
    // The peer closes, with the endpoint that exposes the buffer.
    let mut registered = b.domain.register(vec![0u8; 100], READ_WRITE, None).unwrap();
    let segments = [registered.remote().slice(..8), region.remote().slice(..8)];
    let _guard = registered.lock();
    let write = a.ep.write(to_b, segments, vec![1; 16]).start().unwrap();
    b.ep.clone().close().unwrap();
    let failed = write.await.unwrap_err();
    assert!(
        failed.error.is_peer_unavailable() || matches!(failed.error, Error::Key { .. }),
        "{}",
        failed.error
    );
    assert_eq!(failed.buf, [1; 16]);
}
