//! Reads and writes of a peer's memory.

use fabric_async::atomic::AtomicOp;
use fabric_async::{Access, Caps, Class, Completion, CounterBind, Error, OpKind, RemoteRegion};

use crate::endpoint_fixture::{EndpointConfig, EndpointFixture, endpoint_pair, endpoint_pair_with};
use crate::payload::{all_bytes_equal, let_other_tasks_run};
use crate::setup::Setup;

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
/// Lengths around the size of a message, of a segment, and beyond.
const LENGTHS: [usize; 9] = [0, 1, 7, 8, 9, 4096, 65_537, 300_000, 1 << 20];

fn offset_pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 256) as u8).collect()
}

async fn next_entry(fixture: &mut EndpointFixture) -> Completion {
    let mut out = Vec::new();
    fixture.cq.read_batch(&mut out, 1).await;
    out.pop().expect("the queue is open")
}

pub(crate) async fn every_length_is_written_and_read(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let region = b.domain.alloc(LENGTHS[8] + 100, READ_WRITE).unwrap();
    let remote = region.remote();
    for len in LENGTHS {
        for offset in [0, 5, 96] {
            let bytes = offset_pattern(len);
            let done =
                a.ep.write(to_b, remote.at(offset), bytes.clone())
                    .await
                    .unwrap();
            assert_eq!(
                (done.len(), &done.buf),
                (len, &bytes),
                "the buffer comes back"
            );
            let mut there = vec![0; len];
            region.read(offset as usize, &mut there).unwrap();
            assert!(there == bytes, "{len} bytes written to {offset}");
            region.write(offset as usize, &vec![0xee; len]).unwrap();
            let slice = remote.slice(offset..offset + len as u64);
            let back = a.ep.read(to_b, slice).await.unwrap();
            assert!(
                back[..] == vec![0xee; len][..],
                "{len} bytes read from {offset}"
            );
            let own = vec![1; len].into_boxed_slice();
            let back = a.ep.read_into(to_b, slice, own).await.unwrap();
            assert!(back.len() == len && back[..] == vec![0xee; len][..]);
        }
    }
}

/// The first use of a key queries the peer; operations posted meanwhile are queued in order.
pub(crate) async fn ops_queue_until_their_key_is_resolved(setup: Setup) {
    let (a, b) = (setup.open_endpoint().await, setup.open_endpoint().await);
    let to_b = a.av.insert(b.ep.name()).unwrap();
    let _progress = b.spawn_progress();
    let regions: Vec<_> = (0..3)
        .map(|_| b.domain.alloc(1000, READ_WRITE).unwrap())
        .collect();
    let mut in_progress = Vec::new();
    for number in 0..60u64 {
        let remote = regions[number as usize % 3].remote();
        let write = a.ep.write(
            to_b,
            remote.at(8 * (number / 3)),
            number.to_le_bytes().to_vec(),
        );
        in_progress.push(write.start().unwrap());
    }
    let read =
        a.ep.read(to_b, regions[2].remote().slice(8 * 19..8 * 20))
            .start()
            .unwrap();
    for operation in in_progress {
        operation.await.unwrap();
    }
    assert_eq!(&read.await.unwrap()[..], 59u64.to_le_bytes());
    for (at, region) in regions.iter().enumerate() {
        for row in 0..20 {
            assert_eq!(
                region.load::<u64>(8 * row).unwrap(),
                3 * row as u64 + at as u64
            );
        }
    }
}

/// An operation that is out of range or not permitted fails alone; later operations and messages
/// continue.
pub(crate) async fn bad_key_or_range_fails_only_its_op(setup: Setup) {
    let (a, mut b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let region = b.domain.alloc_with_key(100, READ_WRITE, 77).unwrap();
    let readable = b.domain.alloc(100, Access::REMOTE_READ).unwrap();
    let writable = b.domain.alloc(100, Access::REMOTE_WRITE).unwrap();
    let remote = region.remote();
    assert_eq!(remote.key, 77);
    for _ in 0..2 {
        let absent = RemoteRegion::from_bytes(&{
            let mut bytes = remote.to_bytes();
            bytes[0] = 78;
            bytes
        });
        let failed =
            a.ep.write(to_b, absent.unwrap().at(0), "x")
                .await
                .unwrap_err();
        assert_eq!(
            (failed.error, failed.buf),
            (
                Error::Key {
                    key: 78,
                    why: "is unknown"
                },
                "x"
            )
        );
        let why = "does not grant REMOTE_WRITE";
        let failed =
            a.ep.write(to_b, readable.remote().at(0), "x")
                .await
                .unwrap_err();
        assert_eq!(
            failed.error,
            Error::Key {
                key: readable.key(),
                why
            }
        );
        let failed =
            a.ep.read(to_b, writable.remote().slice(..10))
                .await
                .unwrap_err();
        assert_eq!(
            failed.error,
            Error::Key {
                key: writable.key(),
                why: "does not grant REMOTE_READ"
            }
        );
        for (offset, len) in [(100, 1), (0, 101), (u64::MAX, 2), (1 << 63, 8)] {
            let failed =
                a.ep.write(to_b, remote.at(offset), vec![1; len])
                    .await
                    .unwrap_err();
            assert!(
                matches!(failed.error, Error::OutOfBounds { limit: 100, .. }),
                "{}",
                failed.error
            );
        }
        let failed =
            a.ep.read_into(to_b, remote.slice(..), vec![0; 99].into_boxed_slice())
                .await
                .unwrap_err();
        assert!(
            matches!(
                failed.error,
                Error::BufferTooSmall {
                    len: 100,
                    capacity: 99,
                }
            ),
            "{}",
            failed.error
        );
        a.ep.write(to_b, remote.at(99), "y").await.unwrap();
        assert_eq!(
            &a.ep
                .read(to_b, readable.remote().slice(50..))
                .await
                .unwrap()[..],
            [0; 50]
        );
        let (sent, got) = tokio::join!(a.ep.send(to_b, "still works"), b.ep.recv());
        sent.unwrap();
        got.unwrap();
    }
    assert_eq!(region.load::<u8>(99), Ok(b'y'));
    assert_eq!(
        b.eq.try_read()
            .map(|event| event.kind)
            .filter(|kind| format!("{kind:?}").contains("Down")),
        None
    );
}

/// The key of a closed region is unknown, and may be assigned to another region later.
pub(crate) async fn key_is_valid_until_its_region_closes(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    for round in 0..3u64 {
        let region = b.domain.alloc_with_key(64, READ_WRITE, 5).unwrap();
        let taken = b.domain.alloc_with_key(64, READ_WRITE, 5).map(drop);
        assert_eq!(
            taken,
            Err(Error::Key {
                key: 5,
                why: "is in use"
            })
        );
        let remote = region.remote();
        for _ in 0..3 {
            a.ep.write(to_b, remote.at(8), round.to_le_bytes().to_vec())
                .await
                .unwrap();
        }
        assert_eq!(
            (region.load(0), region.load(8)),
            (Ok(0u64), Ok(round)),
            "a new region is zeroed"
        );
        if round == 1 {
            drop(region);
        } else {
            region.close().unwrap();
        }
        for _ in 0..2 {
            let failed =
                a.ep.write(to_b, remote.at(8), "too late")
                    .await
                    .unwrap_err();
            assert_eq!(
                failed.error,
                Error::Key {
                    key: 5,
                    why: "is unknown"
                }
            );
        }
    }
}

/// `close` of a region returns its buffer, with what peers have written.
pub(crate) async fn close_returns_the_registered_buffer(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let region = b
        .domain
        .alloc_from(b"once upon a time".to_vec(), READ_WRITE, None)
        .unwrap();
    let remote = region.remote();
    assert_eq!(remote.len, 16);
    assert_eq!(
        &a.ep.read(to_b, remote.slice(5..9)).await.unwrap()[..],
        b"upon"
    );
    a.ep.write(to_b, remote.at(12), "tide").await.unwrap();
    assert_eq!(region.into_buf().unwrap(), b"once upon a tide");
    let region = b
        .domain
        .alloc_from(vec![1u8; 4].into_boxed_slice(), Access::REMOTE_READ, None)
        .unwrap();
    assert_eq!(*region.into_buf().unwrap(), [1; 4]);
}

/// A window accesses the region's memory without an operation, with the same rights and range,
/// until the owner closes the region.
pub(crate) async fn window_accesses_region_directly(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let region = b.domain.alloc(1000, READ_WRITE).unwrap();
    let window = a.ep.window(to_b, region.remote()).await.unwrap();
    assert_eq!(
        (
            window.key(),
            window.len(),
            window.access(),
            window.is_open()
        ),
        (region.key(), 1000, READ_WRITE, true)
    );
    let bytes = offset_pattern(500);
    window.write(3, &bytes).unwrap();
    assert_eq!(
        &a.ep
            .read(to_b, region.remote().slice(3..503))
            .await
            .unwrap()[..],
        bytes
    );
    let mut back = vec![0; 500];
    window.clone().read(3, &mut back).unwrap();
    assert_eq!(back, bytes);
    region.write(8, &40u64.to_le_bytes()).unwrap();
    assert_eq!(window.atomic(8, AtomicOp::Sum, 2u64), Ok(40));
    assert_eq!((region.load(8), window.load(8)), (Ok(42u64), Ok(42u64)));
    assert_eq!(window.compare_atomic(8, AtomicOp::Cswap, 7u64, 42), Ok(42));
    assert_eq!(
        a.ep.fetch_add(to_b, region.remote().at(8), 1u64).await,
        Ok(7)
    );

    assert!(matches!(
        window.write(999, b"xy"),
        Err(Error::OutOfBounds {
            offset: 999,
            len: 2,
            limit: 1000,
        })
    ));
    assert!(matches!(
        window.read(usize::MAX, &mut [0; 2]),
        Err(Error::OutOfBounds { .. })
    ));
    assert!(matches!(window.load::<u32>(2), Err(Error::Invalid { .. })));
    assert!(
        window.atomic(0, AtomicOp::Band, 1.0f32).is_err(),
        "floating-point types have no bitwise operations"
    );
    let readable = b.domain.alloc(8, Access::REMOTE_READ).unwrap();
    let window_of_readable = a.ep.window(to_b, readable.remote()).await.unwrap();
    let refused = Err(Error::Key {
        key: readable.key(),
        why: "does not grant REMOTE_WRITE",
    });
    assert_eq!(window_of_readable.write(0, b"x"), refused);
    assert_eq!(window_of_readable.read(0, &mut [0]), Ok(()));
    let updated = window_of_readable.atomic(0, AtomicOp::Sum, 1u64);
    assert_eq!(updated.map(drop), refused);
    // A mapping for writing could be read.
    let writable = b.domain.alloc(8, Access::REMOTE_WRITE).unwrap();
    let window_of_writable = a.ep.window(to_b, writable.remote()).await;
    assert!(matches!(window_of_writable, Err(Error::NotSupported(_))));

    let remote = region.remote();
    region.close().unwrap();
    assert!(!window.is_open());
    let closed = |error: Error| matches!(error, Error::Key { why, .. } if why.contains("revoked"));
    assert!(
        closed(window.write(0, b"x").unwrap_err()) && closed(window.read(0, &mut [0]).unwrap_err())
    );
    assert!(closed(window.load::<u8>(0).unwrap_err()));
    assert!(matches!(
        a.ep.window(to_b, remote).await,
        Err(Error::Key {
            why: "is unknown",
            ..
        })
    ));
}

pub(crate) async fn closed_window_reports_the_reason(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let progress_task = b.spawn_progress();
    let (closed_region, open_region) = (
        b.domain.alloc(8, READ_WRITE).unwrap(),
        b.domain.alloc(8, READ_WRITE).unwrap(),
    );
    let window_of_closed = a.ep.window(to_b, closed_region.remote()).await.unwrap();
    let window = a.ep.window(to_b, open_region.remote()).await.unwrap();
    let key = closed_region.key();
    closed_region.close().unwrap();
    let why = "was revoked by its owner";
    assert_eq!(
        window_of_closed.write(0, b"x"),
        Err(Error::Key { key, why })
    );
    let name = b.ep.name().clone();
    b.ep.clone().close().unwrap();
    while window.is_open() {
        a.domain.progress();
        tokio::task::yield_now().await;
    }
    assert_eq!(window.write(0, b"x"), Err(Error::PeerGone(name.clone())));
    assert_eq!(window.load::<u64>(0), Err(Error::PeerGone(name)));
    progress_task.abort();
    // The endpoint of the initiator closes.
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let region = b.domain.alloc(8, READ_WRITE).unwrap();
    let window = a.ep.window(to_b, region.remote()).await.unwrap();
    a.ep.close().unwrap();
    assert_eq!(
        window.write(0, b"x"),
        Err(Error::Closed(Class::Endpoint)),
        "the region itself is open"
    );
}

/// A peer cannot map a region whose owner counts remote accesses, since accesses through windows
/// are not counted.
pub(crate) async fn window_on_counted_region_is_refused(setup: Setup) {
    let (a, b) = (setup.open_endpoint().await, setup.open_endpoint().await);
    let _progress = b.spawn_progress();
    let writes = b.domain.counter().unwrap();
    let builder = b.domain.endpoint(&b.info).unwrap().bind_av(&b.av).unwrap();
    let builder = builder
        .bind_counter(&writes, CounterBind::REMOTE_WRITE)
        .unwrap();
    let target = builder.enable().unwrap();
    let region = b.domain.alloc(64, READ_WRITE).unwrap();
    let peer = a.ep.add_peer(target.name()).await.unwrap();
    let refused = a.ep.window(peer, region.remote()).await.unwrap_err();
    assert!(
        matches!(refused, Error::NotSupported(what) if what.contains("counts")),
        "{refused}"
    );
    a.ep.write(peer, region.remote().at(0), "x").await.unwrap();
    assert_eq!(writes.wait(1).await, Ok(1));
}

/// A write with data makes a completion entry at the target after its bytes, and takes no posted
/// receive.
pub(crate) async fn write_with_data_completes_at_target_cq(setup: Setup) {
    let (a, mut b, to_b) = endpoint_pair(&setup).await;
    let region = b.domain.alloc(300_000, READ_WRITE).unwrap();
    let remote = region.remote();
    b.ep.recv_into(vec![0; 8]).context(1).post().unwrap();
    let writes = tokio::spawn({
        let ep = a.ep.clone();
        async move {
            for (data, len) in [(7, 8), (u64::MAX, 0), (0, 300_000)] {
                ep.write(to_b, remote.at(0), offset_pattern(len))
                    .data(data)
                    .await
                    .unwrap();
            }
            ep.write(to_b, remote.at(0), b"injected")
                .data(9)
                .inject()
                .unwrap();
            ep.write(to_b, remote.at(0), b"silent").inject().unwrap();
            ep.send(to_b, "message").await.unwrap();
        }
    });
    for (data, len) in [(7, 8), (u64::MAX, 0), (0, 300_000), (9, 8)] {
        let entry = next_entry(&mut b).await;
        assert_eq!((entry.kind, entry.context), (OpKind::RemoteWrite, 0));
        assert_eq!(entry.error, None);
        assert_eq!((entry.transfer.data, entry.transfer.len), (Some(data), len));
        assert!(entry.transfer.source.is_some(), "the source has a handle");
        assert_eq!(entry.bytes(), b"");
    }
    let message = next_entry(&mut b).await;
    assert_eq!(
        (message.kind, message.context, message.bytes()),
        (OpKind::Recv, 1, &b"message"[..])
    );
    writes.await.unwrap();
    let mut there = [0; 8];
    region.read(0, &mut there).unwrap();
    assert_eq!(&there, b"silented", "posted behind the other");
    assert_eq!(
        b.recv_counter.value(),
        1,
        "a write is not counted as a receive"
    );
}

/// A target that does not read its queue stalls writes with data, and loses none.
pub(crate) async fn full_cq_stalls_writes_with_data(setup: Setup) {
    let (a, mut b, to_b) = endpoint_pair_with(
        &setup,
        EndpointConfig::default(),
        EndpointConfig {
            cq_capacity: 4,
            ..EndpointConfig::default()
        },
    )
    .await;
    let region = b.domain.alloc(8, READ_WRITE).unwrap();
    let remote = region.remote();
    let writes = tokio::spawn({
        let ep = a.ep.clone();
        async move {
            for number in 0..500u64 {
                ep.write(to_b, remote.at(0), number.to_le_bytes().to_vec())
                    .data(number)
                    .await
                    .unwrap();
            }
            a
        }
    });
    for number in 0..500 {
        let entry = next_entry(&mut b).await;
        assert_eq!(entry.transfer.data, Some(number));
        assert!(
            region.load::<u64>(0).unwrap() >= number,
            "the bytes precede the completion"
        );
        if number % 250 == 0 {
            let_other_tasks_run().await;
        }
    }
    writes.await.unwrap();
}

/// Messages and writes to one peer keep their order: a receiver sees the bytes that were written
/// before.
pub(crate) async fn message_arrives_after_earlier_write(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let region = b.domain.alloc(1 << 20, READ_WRITE).unwrap();
    let remote = region.remote();
    for round in 1..20u8 {
        let write =
            a.ep.write(to_b, remote.at(0), vec![round; 1 << 20])
                .start()
                .unwrap();
        let sent = a.ep.send(to_b, vec![round]).start().unwrap();
        let message = b.ep.recv().await.unwrap();
        let mut there = vec![0; 1 << 20];
        region.read(0, &mut there).unwrap();
        assert!(all_bytes_equal(&there, round), "all bytes of round {round}");
        assert_eq!(message[..], [round]);
        write.await.unwrap();
        sent.await.unwrap();
    }
}

pub(crate) async fn posted_rma_reports_to_transmit_cq(setup: Setup) {
    let (mut a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let region = b.domain.alloc(100, READ_WRITE).unwrap();
    let remote = region.remote();
    a.ep.write(to_b, remote.at(0), b"hello".to_vec())
        .context(1)
        .post()
        .unwrap();
    a.ep.read_into(to_b, remote.slice(1..4), vec![0; 9])
        .context(2)
        .post()
        .unwrap();
    let out_of_bounds = a.ep.read_into(to_b, remote.slice(..101), vec![0; 200]);
    if let Err(refused) = out_of_bounds.context(3).post() {
        assert!(
            matches!(refused.error, Error::OutOfBounds { .. }),
            "{refused}"
        );
    }
    a.ep.write(to_b, remote.at(50), "once more")
        .context(4)
        .post()
        .unwrap();
    let first = next_entry(&mut a).await;
    assert_eq!(
        (first.context, first.kind, first.bytes()),
        (1, OpKind::Write, &b"hello"[..])
    );
    let second = next_entry(&mut a).await;
    assert_eq!((second.context, second.kind), (2, OpKind::Read));
    assert_eq!(&second.into_result::<Vec<u8>>().unwrap()[..], b"ell");
    let mut third = next_entry(&mut a).await;
    if third.context == 3 {
        assert!(matches!(
            third.error.as_deref(),
            Some(Error::OutOfBounds { .. })
        ));
        third = next_entry(&mut a).await;
    }
    assert_eq!(
        (third.context, third.kind, third.error),
        (4, OpKind::Write, None)
    );
}

/// Each side counts its own operations; the target counts remote ones only with a bound counter.
pub(crate) async fn initiator_and_target_count_rma(setup: Setup) {
    let (a, b) = (setup.open_endpoint().await, setup.open_endpoint().await);
    let _progress = b.spawn_progress();
    let counters: Vec<_> = (0..2).map(|_| a.domain.counter().unwrap()).collect();
    let builder = a.domain.endpoint(&a.info).unwrap().bind_av(&a.av).unwrap();
    let builder = builder
        .bind_counter(&counters[0], CounterBind::WRITE)
        .unwrap();
    let ep = builder
        .bind_counter(&counters[1], CounterBind::READ)
        .unwrap()
        .enable()
        .unwrap();
    let remotes: Vec<_> = (0..2).map(|_| b.domain.counter().unwrap()).collect();
    assert!(b.info.caps.contains(Caps::RMA_EVENT));
    let builder = b.domain.endpoint(&b.info).unwrap().bind_av(&b.av).unwrap();
    let builder = builder
        .bind_counter(&remotes[0], CounterBind::REMOTE_WRITE)
        .unwrap();
    let target = builder
        .bind_counter(&remotes[1], CounterBind::REMOTE_READ)
        .unwrap()
        .enable()
        .unwrap();
    let region = b.domain.alloc(64, READ_WRITE).unwrap();
    let (remote, peer) = (region.remote(), ep.add_peer(target.name()).await.unwrap());
    for _ in 0..3 {
        ep.write(peer, remote.at(0), "x").await.unwrap();
    }
    ep.read(peer, remote.slice(..)).await.unwrap();
    ep.write(peer, remote.at(64), "x").await.unwrap_err();
    ep.read(peer, remote.slice(1..66)).await.unwrap_err();
    assert_eq!(remotes[0].wait(3).await, Ok(3));
    assert_eq!(remotes[1].wait(1).await, Ok(1));
    let count = |counters: &[fabric_async::Counter]| {
        counters
            .iter()
            .map(|counter| counter.value())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (count(&counters), count(&remotes)),
        (vec![3, 1], vec![3, 1])
    );

    let mut plain = b.info.clone();
    plain.caps -= Caps::RMA_EVENT;
    let builder = b.domain.endpoint(&plain).unwrap();
    let refused = builder
        .bind_counter(&remotes[0], CounterBind::REMOTE_WRITE)
        .map(drop)
        .unwrap_err();
    assert!(refused.to_string().contains("FI_RMA_EVENT"), "{refused}");
}

pub(crate) async fn ops_without_requested_caps_are_refused(setup: Setup) {
    let (a, b) = (setup.open_endpoint().await, setup.open_endpoint().await);
    let plain = setup.with_caps(Caps::MSG).info().await;
    let ep = a
        .domain
        .endpoint(&plain)
        .unwrap()
        .bind_av(&a.av)
        .unwrap()
        .enable()
        .unwrap();
    let region = b.domain.alloc(16, READ_WRITE).unwrap();
    let to_b = a.av.insert(b.ep.name()).unwrap();
    let refused = ep
        .write(to_b, region.remote().at(0), "x")
        .start()
        .unwrap_err();
    assert!(matches!(refused.error, Error::NotSupported(what) if what.contains("FI_RMA")));
    let refused = ep.read(to_b, region.remote().slice(..)).await.unwrap_err();
    assert!(matches!(refused.error, Error::NotSupported(what) if what.contains("FI_RMA")));
    let refused = ep
        .fetch_add(to_b, region.remote().at(0), 1u64)
        .await
        .unwrap_err();
    assert!(matches!(refused, Error::NotSupported(what) if what.contains("FI_ATOMIC")));
    assert!(matches!(
        b.domain.alloc(8, Access::empty()),
        Err(Error::BadFlags { .. })
    ));
    assert!(b.domain.alloc(usize::MAX, READ_WRITE).is_err());
    assert_eq!(
        region.read(9, &mut [0; 8]).map_err(|error| error.errno()),
        Err(90)
    );
    assert_eq!(
        region.load::<u64>(4).map_err(|error| error.errno()),
        Err(22)
    );
    let domain = b.domain.clone();
    assert_eq!(domain.children().of(Class::MemoryRegion), 1);
}

/// The memory of a domain is accessible through its endpoints with `FI_RMA`, and not through
/// others.
pub(crate) async fn endpoint_without_fi_rma_exposes_no_memory(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let plain = setup.with_caps(Caps::MSG).info().await;
    let msg_only = b
        .domain
        .endpoint(&plain)
        .unwrap()
        .bind_av(&b.av)
        .unwrap()
        .enable()
        .unwrap();
    let to_msg_only = a.ep.add_peer(msg_only.name()).await.unwrap();
    let region = b.domain.alloc(64, READ_WRITE).unwrap();
    let registered = b.domain.register(vec![0u8; 64], READ_WRITE, None).unwrap();
    // The initiator requests the key again after each refusal. A key that one endpoint exposes is
    // unknown at the other.
    for _ in 0..2 {
        for remote in [region.remote(), registered.remote()] {
            let unknown = Error::Key {
                key: remote.key,
                why: "is unknown",
            };
            let (all, half) = (remote.slice(..), remote.slice(..32));
            assert_eq!(
                a.ep.write(to_msg_only, remote.at(0), "x")
                    .await
                    .unwrap_err()
                    .error,
                unknown
            );
            assert_eq!(
                a.ep.read(to_msg_only, all).await.unwrap_err().error,
                unknown
            );
            assert_eq!(
                a.ep.read(to_msg_only, [half, half])
                    .await
                    .unwrap_err()
                    .error,
                unknown
            );
            assert_eq!(
                a.ep.write(to_msg_only, [half], vec![1; 32])
                    .await
                    .unwrap_err()
                    .error,
                unknown
            );
            assert_eq!(
                a.ep.fetch_add(to_msg_only, remote.at(0), 1u64)
                    .await
                    .unwrap_err(),
                unknown
            );
            if setup.shares_memory() && remote.key == region.key() {
                assert_eq!(
                    a.ep.window(to_msg_only, remote).await.map(drop),
                    Err(unknown)
                );
            }
            assert_eq!(a.ep.read(to_b, all).await.unwrap()[..], [0; 64]);
        }
        let (sent, got) = tokio::join!(a.ep.send(to_msg_only, "still works"), msg_only.recv());
        sent.unwrap();
        assert_eq!(&got.unwrap()[..], b"still works");
    }
}

/// Operations that are dropped before their key is resolved: writes take effect, and no operation
/// is left pending.
pub(crate) async fn dropped_rma_ops_complete(setup: Setup) {
    let (a, b) = (setup.open_endpoint().await, setup.open_endpoint().await);
    let to_b = a.av.insert(b.ep.name()).unwrap();
    let _progress = b.spawn_progress();
    let region = b.domain.alloc(64, READ_WRITE).unwrap();
    let remote = region.remote();
    drop(
        a.ep.write(to_b, remote.at(0), 3u64.to_le_bytes().to_vec())
            .start()
            .unwrap(),
    );
    drop(a.ep.read(to_b, remote.slice(..)).start().unwrap());
    // Refused at once or later, as soon as the region is known.
    drop(a.ep.write(to_b, remote.at(60), "too long").start());
    a.ep.write(to_b, remote.at(8), 4u64.to_le_bytes().to_vec())
        .await
        .unwrap();
    assert_eq!((region.load(0), region.load(8)), (Ok(3u64), Ok(4u64)));
    a.ep.close().unwrap();
}

/// Canceling a queued operation leaves its key query without a waiter, and the operations after it
/// continue.
pub(crate) async fn canceled_op_keeps_later_ops_in_order(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    // An operation that was sent to another machine cannot be canceled: the peer executes it.
    let _progress = (!setup.shares_memory()).then(|| b.spawn_progress());
    let first = b.domain.alloc_with_key(64, READ_WRITE, 1).unwrap();
    let second = b.domain.alloc_with_key(64, READ_WRITE, 2).unwrap();
    let absent = RemoteRegion::from_bytes(&{
        let mut bytes = first.remote().to_bytes();
        bytes[0] = 3;
        bytes
    });
    let absent = absent.unwrap();
    for remote in [first.remote(), absent] {
        // Where the read is not queued, there is nothing to cancel.
        if let Ok(operation) = a.ep.read(to_b, remote.slice(..8)).start() {
            drop(operation.cancel().await);
        }
    }
    let read = a.ep.read(to_b, second.remote().slice(..)).start().unwrap();
    let sent = a.ep.send(to_b, "behind").start().unwrap();
    assert_eq!(&b.ep.recv().await.unwrap()[..], b"behind");
    assert_eq!(read.await.unwrap().len(), 64);
    sent.await.unwrap();
    // The reply to the first query of key 3 is not used for the region opened now.
    let _progress = (a.spawn_progress(), b.spawn_progress());
    let_other_tasks_run().await;
    let third = b.domain.alloc_with_key(64, READ_WRITE, 3).unwrap();
    assert_eq!(
        a.ep.read(to_b, third.remote().slice(..))
            .await
            .unwrap()
            .len(),
        64
    );
    a.ep.write(to_b, first.remote().at(0), "x").await.unwrap();
}

/// A long write whose region is closed meanwhile fails, and does not continue in another region
/// with the same key.
pub(crate) async fn region_close_ends_op_in_progress(setup: Setup) {
    const LEN: usize = 4 << 20;
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let first = b.domain.alloc_with_key(LEN, READ_WRITE, 5).unwrap();
    a.ep.write(to_b, first.remote().at(0), vec![1; 8])
        .await
        .unwrap();
    let write =
        a.ep.write(to_b, first.remote().at(0), vec![7; LEN])
            .start()
            .unwrap();
    first.close().unwrap();
    let second = b.domain.alloc_with_key(LEN, READ_WRITE, 5).unwrap();
    let done = write.await;
    let (begin, end) = (
        second.load::<u8>(0).unwrap(),
        second.load::<u8>(LEN - 1).unwrap(),
    );
    match done {
        Ok(_) => assert!(
            (begin, end) == (7, 7) || (begin, end) == (0, 0),
            "the write is whole, in either region"
        ),
        Err(failed) => assert!(
            matches!(failed.error, Error::Key { key: 5, .. }),
            "{}",
            failed.error
        ),
    }
}

/// A task that drains a full queue, and then awaits something else, admits the pending writes.
pub(crate) async fn drained_cq_admits_pending_writes(setup: Setup) {
    let (a, mut b, to_b) = endpoint_pair_with(
        &setup,
        EndpointConfig::default(),
        EndpointConfig {
            cq_capacity: 8,
            ..EndpointConfig::default()
        },
    )
    .await;
    let region = b.domain.alloc(8, READ_WRITE).unwrap();
    let remote = region.remote();
    let writes = async {
        for number in 0..9 {
            a.ep.write(to_b, remote.at(0), vec![0; 8])
                .data(number)
                .await
                .unwrap();
        }
        a.ep.send(to_b, "behind").await.unwrap();
    };
    let (ep, mut out) = (b.ep.clone(), Vec::new());
    let waiting = tokio::spawn(async move { ep.recv().await.map(|message| message.len()) });
    tokio::join!(writes, async {
        // The queue is full, and further writes are pending.
        while b.ep.stats().remote_ops.count < 8 {
            b.domain.progress();
            tokio::task::yield_now().await;
        }
    });
    let_other_tasks_run().await;
    assert!(!waiting.is_finished());
    while out.len() < 8 {
        let left = 8 - out.len();
        b.cq.read_batch(&mut out, left).await;
    }
    assert_eq!(waiting.await.unwrap().unwrap(), 6);
}
