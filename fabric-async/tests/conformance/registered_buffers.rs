//! Registered buffers: peers access them in place, executed by the owner's progress.

use std::task::Poll;

use fabric_async::atomic::AtomicOp;
use fabric_async::{Access, CounterBind, Error, OpKind};

use crate::endpoint_fixture::{EndpointFixture, endpoint_pair, flush};
use crate::payload::{
    LONG_LEN, all_bytes_equal, assert_bytes, common_prefix_len, pattern, poll_once,
    wait_until_stable,
};
use crate::setup::Setup;

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
/// Lengths around the size of one request, and beyond.
const LENGTHS: [usize; 9] = [0, 1, 8, 4097, 65_535, 65_536, 65_537, 300_000, 1 << 20];

pub(crate) async fn every_length_is_written_and_read_in_place(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let buf = vec![0u8; LENGTHS[8] + 100];
    let at = buf.as_ptr();
    let mut region = b.domain.register(buf, READ_WRITE, None).unwrap();
    let remote = region.remote();
    for (which, len) in LENGTHS.into_iter().enumerate() {
        for offset in [0, 5, 100] {
            let bytes = pattern(len, which);
            let done = a.ep.write(to_b, remote.at(offset), bytes).await.unwrap();
            assert_eq!(done.len(), len);
            let start = offset as usize;
            assert_bytes(&region.lock()[start..start + len], bytes);
            region.lock()[start..start + len].fill(0xee);
            let slice = remote.slice(offset..offset + len as u64);
            assert_bytes(&a.ep.read(to_b, slice).await.unwrap(), &vec![0xee; len]);
            let own = vec![1; len].into_boxed_slice();
            assert_bytes(
                &a.ep.read_into(to_b, slice, own).await.unwrap(),
                &vec![0xee; len],
            );
        }
    }
    a.ep.write(to_b, remote.at(7), b"injected")
        .inject()
        .unwrap();
    flush(&a, &b, to_b).await;
    assert_eq!(
        &region.lock()[7..15],
        b"injected",
        "a message arrives after earlier writes"
    );
    let back = region.into_buf().unwrap();
    assert_eq!(
        (back.as_ptr(), &back[7..15]),
        (at, &b"injected"[..]),
        "the same memory, not a copy"
    );
}

pub(crate) async fn concurrent_atomic_adds_are_not_lost(setup: Setup) {
    const ADDERS: u64 = 3;
    const EACH: u64 = 40;
    let b = setup.open_endpoint().await;
    let _progress = b.spawn_progress();
    let mut region = b
        .domain
        .register(vec![0u8; 4096].into_boxed_slice(), READ_WRITE, Some(9))
        .unwrap();
    let remote = region.remote();
    assert_eq!((remote.key, remote.len), (9, 4096));
    let mut adders = Vec::new();
    for number in 0..ADDERS {
        let a = setup.open_endpoint().await;
        let to_b = a.add_peer(&b).await;
        adders.push(tokio::spawn(async move {
            for _ in 0..EACH {
                a.ep.atomic(to_b, remote.at(8), AtomicOp::Sum, 1u64)
                    .await
                    .unwrap();
                a.ep.fetch_add(to_b, remote.at(16), number as u32)
                    .await
                    .unwrap();
            }
            a
        }));
    }
    let mut last = None;
    for adder in adders {
        last = Some(adder.await.unwrap());
    }
    let a = last.expect("at least one initiator");
    let to_b = a.add_peer(&b).await;
    assert_eq!(
        a.ep.fetch_add(to_b, remote.at(8), 0u64).await.unwrap(),
        ADDERS * EACH
    );
    assert_eq!(region.lock()[16..20], (3 * EACH as u32).to_le_bytes());
    let swapped =
        a.ep.compare_swap(to_b, remote.at(8), ADDERS * EACH, 7u64)
            .await
            .unwrap();
    assert_eq!((swapped, region.lock()[8]), (ADDERS * EACH, 7));
    let row: Vec<u32> = (0..1024).collect();
    a.ep.atomic(to_b, remote.at(0), AtomicOp::Write, row)
        .await
        .unwrap();
    assert_eq!(region.lock()[4092..], 1023u32.to_le_bytes());
}

pub(crate) async fn bad_key_or_range_fails_only_its_op(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let mut region = b
        .domain
        .register(vec![0u8; 100_000], READ_WRITE, Some(77))
        .unwrap();
    let readable = b
        .domain
        .register(vec![1u8; 100], Access::REMOTE_READ, None)
        .unwrap();
    let writable = b
        .domain
        .register(vec![1u8; 100], Access::REMOTE_WRITE, None)
        .unwrap();
    let remote = region.remote();
    for _ in 0..2 {
        let why = "does not grant REMOTE_WRITE";
        let failed =
            a.ep.write(to_b, readable.remote().at(0), "x")
                .await
                .unwrap_err();
        assert_eq!(
            (failed.error, failed.buf),
            (
                Error::Key {
                    key: readable.key(),
                    why
                },
                "x"
            )
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
        let failed =
            a.ep.fetch_add(to_b, writable.remote().at(0), 1u64)
                .await
                .unwrap_err();
        assert_eq!(
            failed,
            Error::Key {
                key: writable.key(),
                why: "does not grant both REMOTE_READ and REMOTE_WRITE"
            }
        );
        for (offset, len) in [
            (100_000, 1),
            (0, 100_001),
            (99_999, 2),
            (u64::MAX, 2),
            (1 << 63, 8),
        ] {
            let failed =
                a.ep.write(to_b, remote.at(offset), vec![1; len])
                    .await
                    .unwrap_err();
            assert!(
                matches!(failed.error, Error::OutOfBounds { limit: 100_000, .. }),
                "{}",
                failed.error
            );
        }
        let failed = a.ep.fetch_add(to_b, remote.at(4), 1u64).await.unwrap_err();
        assert!(matches!(failed, Error::Invalid { .. }), "{failed}");
        assert!(matches!(
            a.ep.window(to_b, remote).await.unwrap_err(),
            Error::NotSupported(_)
        ));
        assert!(all_bytes_equal(&region.lock(), 0), "no byte was written");
        a.ep.write(to_b, remote.at(99_999), "y").await.unwrap();
        assert_eq!(
            &a.ep
                .read(to_b, readable.remote().slice(50..))
                .await
                .unwrap()[..],
            [1; 50]
        );
        region.lock()[99_999] = 0;
    }
}

/// While the owner holds the lock, no peer accesses the buffer; afterwards the operations continue
/// in order.
pub(crate) async fn owner_lock_excludes_peers(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let mut region = b
        .domain
        .register(vec![0u8; 200_000], READ_WRITE, None)
        .unwrap();
    let remote = region.remote();
    a.ep.write(to_b, remote.at(0), "first").await.unwrap();
    for round in 1..5u8 {
        let mut guard = region.lock();
        let mut write =
            a.ep.write(to_b, remote.at(0), vec![round; 200_000])
                .start()
                .unwrap();
        let message = a.ep.send(to_b, vec![round]).start().unwrap();
        for _ in 0..20 {
            assert!(
                poll_once(&mut write).await.is_pending(),
                "the owner holds the lock"
            );
            b.domain.progress();
            tokio::task::yield_now().await;
        }
        assert!(guard.iter().all(|byte| *byte != round));
        guard[17] = 99;
        drop(guard);
        let receive = async {
            assert_eq!(b.ep.recv().await.unwrap()[..], [round]);
            assert!(
                all_bytes_equal(&region.lock(), round),
                "a message arrives after earlier writes"
            );
        };
        let (written, sent, ()) = tokio::join!(write, message, receive);
        assert!(written.is_ok() && sent.is_ok());
    }
    // A guard that is leaked keeps the buffer locked, and affects no other buffer.
    std::mem::forget(region.lock());
    assert!(region.lock().is_empty());
    let write = a.ep.write(to_b, remote.at(0), "never").start().unwrap();
    assert!(region.into_buf().is_err());
    assert!(matches!(write.await.unwrap_err().error, Error::Key { .. }));
}

pub(crate) async fn key_is_valid_until_its_buffer_closes(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let unknown = Error::Key {
        key: 5,
        why: "is unknown",
    };
    for round in 0..3u8 {
        let region = b
            .domain
            .register(vec![round; 64], READ_WRITE, Some(5))
            .unwrap();
        let remote = region.remote();
        assert_eq!(
            &a.ep.read(to_b, remote.slice(..)).await.unwrap()[..],
            [round; 64]
        );
        let taken = b
            .domain
            .register(vec![9u8; 3], READ_WRITE, Some(5))
            .unwrap_err();
        assert_eq!(
            (taken.error, taken.buf),
            (
                Error::Key {
                    key: 5,
                    why: "is in use"
                },
                vec![9; 3]
            )
        );
        if round == 1 {
            drop(region);
        } else {
            assert_eq!(region.into_buf().unwrap(), [round; 64]);
        }
        for _ in 0..2 {
            assert_eq!(
                a.ep.write(to_b, remote.at(0), "x").await.unwrap_err().error,
                unknown
            );
        }
        // The key may be used for memory of another kind.
        let other = b.domain.alloc_with_key(64, READ_WRITE, 5).unwrap();
        a.ep.write(to_b, remote.at(0), "here").await.unwrap();
        assert_eq!(other.load::<u8>(0), Ok(b'h'));
        other.close().unwrap();
        assert_eq!(
            a.ep.write(to_b, remote.at(0), "x").await.unwrap_err().error,
            unknown
        );
    }
    let refused = b
        .domain
        .register(vec![1u8], Access::empty(), None)
        .unwrap_err();
    assert!(matches!(
        (refused.error, &refused.buf[..]),
        (Error::BadFlags { .. }, [1])
    ));
}

/// An operation ends when its buffer closes; the operations after it continue.
pub(crate) async fn close_ends_op_in_progress(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    for round in 0..10u64 {
        let region = b
            .domain
            .register(vec![0u8; LONG_LEN], READ_WRITE, None)
            .unwrap();
        let remote = region.remote();
        let mut write =
            a.ep.write(to_b, remote.at(0), pattern(LONG_LEN, 0))
                .start()
                .unwrap();
        let dropped = a.ep.read(to_b, remote.slice(..)).start().unwrap();
        let message = a.ep.send(to_b, "behind").start().unwrap();
        let mut early = None;
        for _ in 0..round {
            if let Poll::Ready(done) = poll_once(&mut write).await {
                early = Some(done);
                break;
            }
        }
        drop(dropped);
        let back = region.into_buf().unwrap();
        let written = common_prefix_len(&back, pattern(LONG_LEN, 0));
        let ended = match early {
            Some(ended) => ended,
            None => write.await,
        };
        match ended {
            Ok(done) => assert_eq!((done.transfer.len, written), (LONG_LEN, LONG_LEN)),
            Err(failed) => {
                assert!(
                    matches!(failed.error, Error::Key { .. }),
                    "{}",
                    failed.error
                );
                assert_bytes(failed.buf, pattern(LONG_LEN, 0));
            }
        }
        assert_eq!(&b.ep.recv().await.unwrap()[..], b"behind");
        message.await.unwrap();
    }
}

async fn next_entry(fixture: &mut EndpointFixture) -> (OpKind, Option<u64>, usize) {
    let mut out = Vec::new();
    fixture.cq.read_batch(&mut out, 1).await;
    let entry = out.pop().expect("the queue is open");
    (entry.kind, entry.transfer.data, entry.transfer.len)
}

pub(crate) async fn write_with_data_completes_at_target_cq(setup: Setup) {
    let (a, mut b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let mut region = b
        .domain
        .register(vec![0u8; 200_000], READ_WRITE, None)
        .unwrap();
    for len in [4, 200_000] {
        let write =
            a.ep.write(to_b, region.remote().at(0), pattern(len, 1))
                .data(len as u64);
        let (written, reported) = tokio::join!(write, next_entry(&mut b));
        written.unwrap();
        assert_eq!(reported, (OpKind::RemoteWrite, Some(len as u64), len));
        assert_bytes(&region.lock()[..len], pattern(len, 1));
    }
}

pub(crate) async fn owner_counts_remote_accesses(setup: Setup) {
    let (a, b) = (setup.open_endpoint().await, setup.open_endpoint().await);
    let counter = || b.domain.counter().unwrap();
    let (writes, reads) = (counter(), counter());
    let ep = b.domain.endpoint(&b.info).unwrap().bind_av(&b.av).unwrap();
    let ep = ep.bind_counter(&writes, CounterBind::REMOTE_WRITE).unwrap();
    let ep = ep
        .bind_counter(&reads, CounterBind::REMOTE_READ)
        .unwrap()
        .enable()
        .unwrap();
    let _progress = b.spawn_progress();
    let to_b = a.ep.add_peer(ep.name()).await.unwrap();
    let region = b
        .domain
        .register(vec![0u8; 100_000], READ_WRITE, None)
        .unwrap();
    for _ in 0..3 {
        a.ep.write(to_b, region.remote().at(0), pattern(100_000, 2))
            .await
            .unwrap();
    }
    a.ep.read(to_b, region.remote().slice(..)).await.unwrap();
    a.ep.fetch_add(to_b, region.remote().at(0), 1u64)
        .await
        .unwrap();
    assert!(writes.wait(3).await.is_ok() && reads.wait(2).await.is_ok());
    wait_until_stable(|| reads.value()).await;
    assert_eq!((writes.value(), reads.value()), (3, 2));
}

/// A response that arrives while the initiator goes to sleep wakes it.
pub(crate) async fn response_wakes_sleeping_initiator(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let region = b.domain.register(vec![0u8; 64], READ_WRITE, None).unwrap();
    for _ in 0..1000 {
        a.ep.write(to_b, region.remote().at(8), vec![1; 8])
            .await
            .unwrap();
    }
}
