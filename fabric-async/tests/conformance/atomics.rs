//! Atomic operations on a peer's memory.

use std::future::IntoFuture;
use std::task::Poll;

use fabric_async::atomic::{
    AtomicCall, AtomicOp, AtomicType, Complex, Datatype, bf16, f16, query_atomic,
};
use fabric_async::{
    Access, CancelOutcome, Caps, Class, CounterBind, Endpoint, Error, FiAddr, OpKind, RemoteAddr,
};

use crate::endpoint_fixture::endpoint_pair;
use crate::payload::poll_once;
use crate::setup::Setup;

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// Runs every operation on values of one type, by every call: the resulting and the fetched values
/// match plain arithmetic.
async fn check_all_ops<T: AtomicType>(setup: &Setup, values: [T; 3]) {
    let (a, b, to_b) = endpoint_pair(setup).await;
    let _progress = b.spawn_progress();
    let region = b.domain.alloc(64, READ_WRITE).unwrap();
    let (remote, size) = (region.remote(), T::DATATYPE.size());
    for &op in AtomicOp::ALL {
        for (value, operand) in values
            .iter()
            .flat_map(|value| values.iter().map(move |other| (*value, *other)))
        {
            let comparand = values[0];
            let computed = op.compute(T::DATATYPE, value.bits(), operand.bits(), comparand.bits());
            let computed = T::from_bits(computed).bits();
            for call in [AtomicCall::Base, AtomicCall::Fetch, AtomicCall::Compare] {
                region.atomic(size, AtomicOp::Write, value).unwrap();
                let at = remote.at(size as u64);
                let fetched = match call {
                    AtomicCall::Base => a.ep.atomic(to_b, at, op, operand).await.map(|()| None),
                    AtomicCall::Fetch => a.ep.fetch_atomic(to_b, at, op, operand).await.map(Some),
                    AtomicCall::Compare => {
                        a.ep.compare_atomic(to_b, at, op, operand, comparand)
                            .await
                            .map(Some)
                    }
                };
                let result: T = region.load(size).unwrap();
                if op.is_valid(T::DATATYPE, call) {
                    assert_eq!(
                        result.bits(),
                        computed,
                        "{op:?} {call:?} on {:?}",
                        T::DATATYPE
                    );
                    let fetched = fetched.unwrap().map(AtomicType::bits);
                    assert_eq!(fetched, (call != AtomicCall::Base).then(|| value.bits()));
                } else {
                    assert!(
                        matches!(fetched, Err(Error::NotSupported(_))),
                        "{op:?} {call:?}"
                    );
                    assert_eq!(result.bits(), value.bits());
                }
            }
        }
    }
    assert_eq!(
        (
            region.load::<T>(0).unwrap().bits(),
            region.load::<T>(2 * size).unwrap().bits()
        ),
        (0, 0)
    );
}

pub(crate) async fn every_operation_works_on_every_type(setup: Setup) {
    check_all_ops(&setup, [1i8, -3, 0]).await;
    check_all_ops(&setup, [1u8, 200, 0]).await;
    check_all_ops(&setup, [1i16, -300, 0]).await;
    check_all_ops(&setup, [1u16, 60_000, 0]).await;
    check_all_ops(&setup, [1i32, -70_000, 0]).await;
    check_all_ops(&setup, [1u32, u32::MAX, 0]).await;
    check_all_ops(&setup, [1i64, i64::MIN, 0]).await;
    check_all_ops(&setup, [1u64, u64::MAX, 0]).await;
    check_all_ops(&setup, [1f32, -2.5, 0.0]).await;
    check_all_ops(&setup, [1f64, -2.5, 0.0]).await;
    check_all_ops(&setup, [1i128, i128::MIN, 0]).await;
    check_all_ops(&setup, [1u128, u128::MAX, 0]).await;
    check_all_ops(&setup, [f16::ONE, f16::from_f32(-2.5), f16::ZERO]).await;
    check_all_ops(&setup, [bf16::ONE, bf16::from_f32(-2.5), bf16::ZERO]).await;
    let complex = Complex::new;
    check_all_ops(
        &setup,
        [complex(1.0f32, 2.0), complex(0.0, -2.5), complex(0.0, 0.0)],
    )
    .await;
    let complex = Complex::new;
    check_all_ops(
        &setup,
        [complex(1.0f64, 2.0), complex(0.0, -2.5), complex(0.0, 0.0)],
    )
    .await;
}

/// Concurrent additions of several peers and of the owner are all applied.
pub(crate) async fn concurrent_adds_are_not_lost(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let c = setup.open_endpoint().await;
    let c_to_b = c.add_peer(&b).await;
    let _progress = b.spawn_progress();
    let region = b.domain.alloc(64, READ_WRITE).unwrap();
    let remote = region.remote();
    let add = |ep: fabric_async::Endpoint, peer| {
        tokio::spawn(async move {
            for _ in 0..500 {
                ep.atomic(peer, remote.at(0), AtomicOp::Sum, [1u64, 2, 3])
                    .await
                    .unwrap();
                ep.fetch_add(peer, remote.at(32), 0.5f64).await.unwrap();
            }
        })
    };
    let tasks = [add(a.ep.clone(), to_b), add(c.ep.clone(), c_to_b)];
    for _ in 0..500 {
        region.atomic(0, AtomicOp::Sum, 1u64).unwrap();
        region.atomic(32, AtomicOp::Sum, 0.5f64).unwrap();
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(
        (region.load(0), region.load(8), region.load(16)),
        (Ok(1500u64), Ok(2000u64), Ok(3000u64))
    );
    assert_eq!(region.load(32), Ok(750.0f64));
}

/// A lock made of compare-and-swap excludes other peers from the memory that it guards.
pub(crate) async fn compare_and_swap_implements_a_lock(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let c = setup.open_endpoint().await;
    let c_to_b = c.add_peer(&b).await;
    let _progress = b.spawn_progress();
    let region = b.domain.alloc(64, READ_WRITE).unwrap();
    let remote = region.remote();
    let work = |ep: fabric_async::Endpoint, peer, me: u64| {
        tokio::spawn(async move {
            for _ in 0..200 {
                while ep.compare_swap(peer, remote.at(0), 0u64, me).await.unwrap() != 0 {
                    tokio::task::yield_now().await;
                }
                let count = ep.read(peer, remote.slice(8..16)).await.unwrap();
                let count = u64::from_le_bytes(count[..].try_into().unwrap()) + 1;
                ep.write(peer, remote.at(8), count.to_le_bytes().to_vec())
                    .await
                    .unwrap();
                assert_eq!(ep.compare_swap(peer, remote.at(0), me, 0u64).await, Ok(me));
            }
        })
    };
    for task in [work(a.ep.clone(), to_b, 1), work(c.ep.clone(), c_to_b, 2)] {
        task.await.unwrap();
    }
    assert_eq!((region.load(0), region.load(8)), (Ok(0u64), Ok(400u64)));
}

pub(crate) async fn atomics_operate_on_arrays(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let region = b.domain.alloc(8192, READ_WRITE).unwrap();
    let remote = region.remote();
    let long: Vec<u32> = (0..1024).collect();
    a.ep.atomic(to_b, remote.at(0), AtomicOp::Write, long.clone())
        .await
        .unwrap();
    let was =
        a.ep.fetch_atomic(to_b, remote.at(0), AtomicOp::Sum, vec![1u32; 1024])
            .await
            .unwrap();
    assert_eq!(was, long);
    assert_eq!(region.load(4 * 1023), Ok(1024u32));
    let was =
        a.ep.compare_atomic(to_b, remote.at(0), AtomicOp::Cswap, [7u32, 8], [1, 1])
            .await
            .unwrap();
    assert_eq!(
        (was, region.load(0), region.load(4)),
        ([1, 2], Ok(7u32), Ok(2u32))
    );
    let too_long =
        a.ep.atomic(to_b, remote.at(0), AtomicOp::Sum, vec![1u64; 513])
            .await;
    assert!(matches!(
        too_long,
        Err(Error::TooLong {
            len: 4104,
            limit: 4096,
            ..
        })
    ));
    let uneven =
        a.ep.compare_atomic(
            to_b,
            remote.at(0),
            AtomicOp::Cswap,
            vec![1u8; 2],
            vec![1; 3],
        )
        .await;
    assert!(matches!(uneven, Err(Error::Invalid { .. })));
    assert_eq!(
        a.ep.fetch_atomic(to_b, remote.at(0), AtomicOp::Sum, Vec::<u64>::new())
            .await,
        Ok(vec![])
    );
}

pub(crate) async fn misaligned_atomic_fails_only_its_op(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let region = b.domain.alloc(64, READ_WRITE).unwrap();
    let readable = b.domain.alloc(64, Access::REMOTE_READ).unwrap();
    let remote = region.remote();
    for _ in 0..2 {
        let misaligned = a.ep.fetch_add(to_b, remote.at(4), 1u64).await;
        assert!(
            matches!(&misaligned, Err(Error::Invalid { what, .. }) if what.contains("atomic")),
            "{misaligned:?}"
        );
        assert!(matches!(
            a.ep.fetch_add(to_b, remote.at(64), 1u8).await,
            Err(Error::OutOfBounds { .. })
        ));
        let sum =
            a.ep.atomic(to_b, readable.remote().at(0), AtomicOp::Sum, 1u64)
                .await;
        assert!(matches!(sum, Err(Error::Key { why, .. }) if why.contains("grant")));
        assert_eq!(
            a.ep.fetch_atomic(to_b, readable.remote().at(0), AtomicOp::Read, 9u64)
                .await,
            Ok(0)
        );
        let wide =
            a.ep.fetch_atomic(to_b, readable.remote().at(0), AtomicOp::Read, 9u128)
                .await;
        // A process cannot load 16 bytes atomically from a mapping that it may only read.
        if setup.provider == "shm" {
            assert!(matches!(wide, Err(Error::NotSupported(_))), "{wide:?}");
        } else {
            assert_eq!(wide, Ok(0));
        }
        a.ep.fetch_add(to_b, remote.at(56), 1u64).await.unwrap();
    }
    assert_eq!(region.load(56), Ok(2u64));
}

/// Adds `count` values to zeros, with an operation of each call that takes no comparand.
async fn add_values<T: AtomicType>(
    (a, to_b): (&Endpoint, FiAddr),
    at: RemoteAddr,
    one: T,
    count: usize,
) -> [Result<(), Error>; 2] {
    let values = vec![one; count];
    let added = a.atomic(to_b, at, AtomicOp::Sum, values.clone()).await;
    let fetched = a.fetch_atomic(to_b, at, AtomicOp::Sum, values).await;
    [added, fetched.map(drop)]
}

/// Checks the queried number of values against operations with as many values, and one more.
async fn check_count<T: AtomicType>(a: (&Endpoint, FiAddr), at: RemoteAddr, one: T) {
    for call in [AtomicCall::Base, AtomicCall::Fetch] {
        let attr = query_atomic(a.0, AtomicOp::Sum, T::DATATYPE, call).unwrap();
        assert_eq!(attr.size, size_of::<T>());
        for result in add_values(a, at, one, attr.count).await {
            result.unwrap();
        }
        for refused in add_values(a, at, one, attr.count + 1).await {
            assert!(matches!(refused, Err(Error::TooLong { .. })), "{refused:?}");
        }
    }
}

/// A query refuses what the operations refuse, for the type or because of the endpoint.
pub(crate) async fn query_agrees_with_operations(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let region = b.domain.alloc(8192, READ_WRITE).unwrap();
    for &op in AtomicOp::ALL {
        for &datatype in Datatype::ALL {
            for call in [AtomicCall::Base, AtomicCall::Fetch, AtomicCall::Compare] {
                let queried = query_atomic(&a.ep, op, datatype, call);
                assert_eq!(queried.is_ok(), op.is_valid(datatype, call));
                if matches!(datatype, Datatype::LongDouble | Datatype::ComplexLongDouble) {
                    let refused = queried.unwrap_err();
                    assert!(refused.to_string().contains("FI_LONG_DOUBLE"), "{refused}");
                }
            }
        }
    }
    let (ep, at) = ((&a.ep, to_b), region.remote().at(0));
    check_count(ep, at, 1u8).await;
    check_count(ep, at, 1i16).await;
    check_count(ep, at, 1f32).await;
    check_count(ep, at, 1u64).await;

    for (caps, what) in [
        (Caps::MSG | Caps::RMA, "FI_ATOMIC"),
        (Caps::MSG | Caps::ATOMIC | Caps::REMOTE_WRITE, "FI_READ"),
    ] {
        let info = setup.with_caps(caps).info().await;
        let builder = a.domain.endpoint(&info).unwrap();
        let ep = builder.bind_av(&a.av).unwrap().enable().unwrap();
        let refused = query_atomic(&ep, AtomicOp::Read, Datatype::U64, AtomicCall::Fetch);
        assert!(matches!(refused, Err(Error::NotSupported(why)) if why.contains(what)));
        let failed = ep.fetch_atomic(to_b, at, AtomicOp::Read, 0u64).await;
        assert_eq!(failed.map(drop), refused.map(drop));
    }
    let closed = a.ep.clone();
    a.ep.close().unwrap();
    let refused = query_atomic(&closed, AtomicOp::Sum, Datatype::U64, AtomicCall::Base);
    assert_eq!(refused, Err(Error::Closed(Class::Endpoint)));
}

pub(crate) async fn posted_atomics_report_fetched_values(setup: Setup) {
    let (mut a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let region = b.domain.alloc(64, READ_WRITE).unwrap();
    let remote = region.remote();
    region.atomic(8, AtomicOp::Write, 40i32).unwrap();
    a.ep.atomic(to_b, remote.at(0), AtomicOp::Sum, 2i32)
        .context(1)
        .post()
        .unwrap();
    a.ep.fetch_atomic(to_b, remote.at(8), AtomicOp::Sum, [2i32, 3])
        .context(2)
        .post()
        .unwrap();
    let mut out = Vec::new();
    while out.len() < 2 {
        a.cq.read_batch(&mut out, 2).await;
    }
    assert_eq!((out[0].context, out[0].kind), (1, OpKind::Atomic));
    assert_eq!((out[1].context, out[1].kind), (2, OpKind::FetchAtomic));
    assert_eq!(out[1].values::<i32>().collect::<Vec<_>>(), [40, 0]);
    assert_eq!(
        (region.load(0), region.load(8), region.load(12)),
        (Ok(2i32), Ok(42i32), Ok(3i32))
    );
}

pub(crate) async fn canceled_atomic_returns_operands_without_effect(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let region = b.domain.alloc(64, READ_WRITE).unwrap();
    let add = || a.ep.fetch_add(to_b, region.remote().at(0), 5u64);
    let unposted = add().into_future().cancel().await;
    assert!(matches!(unposted, CancelOutcome::Canceled(5)));
    assert_eq!(region.load(0), Ok(0u64));

    let _progress = b.spawn_progress();
    let started = add().start().unwrap().cancel().await;
    let mut awaited = add().into_future();
    // A future that has resolved cannot be canceled.
    let awaited = match poll_once(&mut awaited).await {
        Poll::Ready(result) => CancelOutcome::Completed(result),
        Poll::Pending => awaited.cancel().await,
    };
    let mut sum = 0;
    for outcome in [started, awaited] {
        match outcome {
            CancelOutcome::Canceled(operand) => assert_eq!(operand, 5),
            CancelOutcome::Completed(previous) => {
                assert_eq!(previous, Ok(sum));
                sum += 5;
            }
        }
    }
    assert_eq!(region.load(0), Ok(sum));
}

/// An atomic operation of which the owner of the region cannot be notified is executed at most
/// once.
pub(crate) async fn failed_atomic_executes_at_most_once(setup: Setup) {
    let (a, b) = (setup.open_endpoint().await, setup.open_endpoint().await);
    // An endpoint without counters uses the fast path.
    let ep = a
        .domain
        .endpoint(&a.info)
        .unwrap()
        .bind_av(&a.av)
        .unwrap()
        .enable()
        .unwrap();
    let to_b = ep.add_peer(b.ep.name()).await.unwrap();
    let mut region = b.domain.alloc(64, READ_WRITE).unwrap();
    let counter = b.domain.counter().unwrap();
    region
        .bind_counter(&counter, CounterBind::REMOTE_WRITE)
        .unwrap();
    let remote = region.remote();
    let progress_task = b.spawn_progress();
    assert_eq!(ep.fetch_add(to_b, remote.at(0), 1u64).await, Ok(0));
    progress_task.abort();
    b.ep.clone().close().unwrap();
    for _ in 0..10 {
        let before: u64 = region.load(0).unwrap();
        let fetched = ep.fetch_add(to_b, remote.at(0), 1u64).await;
        let executed = region.load::<u64>(0).unwrap() - before;
        match fetched {
            Ok(old) => assert_eq!((old, executed), (before, 1)),
            Err(error) => {
                assert!(
                    error.is_peer_unavailable() || error == Error::StaleAddress(to_b),
                    "{error}"
                );
                assert!(executed <= 1, "executed {executed} times");
            }
        }
    }
}
