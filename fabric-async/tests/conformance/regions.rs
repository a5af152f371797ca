//! Memory regions: addressing modes, access rights, and counters of remote accesses.

use fabric_async::atomic::AtomicOp;
use fabric_async::info::MrMode;
use fabric_async::{
    Access, Caps, CounterBind, Domain, Endpoint, Error, Fabric, RemoteAddr, RemoteSlice, discover,
};
use tokio::task::JoinHandle;

use crate::endpoint_fixture::endpoint_pair;
use crate::payload::{assert_bytes, pattern};
use crate::setup::Setup;

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// Opens an endpoint with `FI_MR_VIRT_ADDR` regions, and a task that drives its domain.
pub(crate) async fn open_virt_addr_owner(
    setup: &Setup,
) -> (Domain, Endpoint, JoinHandle<Result<(), Error>>) {
    let hints = setup.hints().caps(setup.caps);
    let info = discover(&hints.mr_mode(MrMode::BASIC))
        .unwrap()
        .swap_remove(0);
    assert!(info.domain.mr_mode.contains(MrMode::VIRT_ADDR));
    let fabric = Fabric::open(&info).unwrap();
    let domain = setup.open_domain(&fabric, &info);
    let av = domain.auto_insert_address_vector().unwrap();
    let owner = domain
        .endpoint(&info)
        .unwrap()
        .bind_av(&av)
        .unwrap()
        .enable()
        .unwrap();
    let counter = domain.counter().unwrap();
    let progress_task = tokio::spawn(async move { counter.wait(1).await.map(drop) });
    (domain, owner, progress_task)
}

/// With `FI_MR_VIRT_ADDR`, every operation addresses the region by virtual addresses; without it,
/// by offsets.
pub(crate) async fn fi_mr_virt_addr_regions_are_addressed_by_virtual_address(setup: Setup) {
    let (domain, owner, progress_task) = open_virt_addr_owner(&setup).await;
    let a = setup.open_endpoint().await;
    let to_b = a.ep.add_peer(owner.name()).await.unwrap();

    let mut buf = vec![0u8; 100_000];
    let at = buf.as_ptr().addr() as u64;
    buf[5] = 5;
    let mut registered = domain.register(buf, READ_WRITE, None).unwrap();
    let region = domain.alloc(100_000, READ_WRITE).unwrap();
    region.write(5, &[5]).unwrap();
    assert_eq!(
        (registered.remote().base, registered.remote().at(7).offset),
        (at, at + 7)
    );
    assert_ne!(region.remote().base, 0);
    for remote in [registered.remote(), region.remote()] {
        // The initiator knows only an address and a key.
        let remote_addr = |offset: u64| RemoteAddr {
            key: remote.key,
            offset: remote.base + offset,
        };
        assert_eq!(a.ep.read(to_b, remote.slice(5..6)).await.unwrap()[..], [5]);
        a.ep.write(to_b, remote_addr(90_000), pattern(10_000, 1))
            .await
            .unwrap();
        let back = a.ep.read(
            to_b,
            RemoteSlice {
                key: remote.key,
                offset: remote.base + 90_000,
                len: 10_000,
            },
        );
        assert_bytes(&back.await.unwrap(), pattern(10_000, 1));
        assert_eq!(
            a.ep.fetch_add(to_b, remote_addr(16), 9u64).await.unwrap(),
            0
        );
        for outside in [0, 5, remote.base - 1, remote.base + 100_000, u64::MAX] {
            let to = RemoteAddr {
                key: remote.key,
                offset: outside,
            };
            let failed = a.ep.write(to_b, to, "x").await.unwrap_err();
            assert!(
                matches!(failed.error, Error::OutOfBounds { limit: 100_000, .. }),
                "{}",
                failed.error
            );
        }
    }
    // The owner's accesses, and those of a window, use offsets.
    assert_bytes(&registered.lock()[90_000..], pattern(10_000, 1));
    assert_eq!(region.load::<u64>(16), Ok(9));
    if setup.shares_memory() {
        let window = a.ep.window(to_b, region.remote()).await.unwrap();
        let mut there = [0];
        window.read(5, &mut there).unwrap();
        assert_eq!(there, [5]);
    }
    // The domain of the initiator did not negotiate `FI_MR_VIRT_ADDR`.
    assert_eq!(a.domain.alloc(8, READ_WRITE).unwrap().remote().base, 0);
    progress_task.abort();
}

/// Each region has counters of its own, whether peers map its memory or the owner executes, and
/// independent of the endpoint's counters.
pub(crate) async fn remote_accesses_are_counted_per_region(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let counter = || b.domain.counter().unwrap();
    let counters = [counter(), counter(), counter()];
    let [writes, reads, served] = &counters;
    let (write, read) = (CounterBind::REMOTE_WRITE, CounterBind::REMOTE_READ);
    let mut mapped = b.domain.alloc(300_000, READ_WRITE).unwrap();
    mapped.bind_counter(writes, write).unwrap();
    mapped.bind_counter(reads, read).unwrap();
    let mut registered = b
        .domain
        .register(vec![0u8; 100_000], READ_WRITE, None)
        .unwrap();
    registered.bind_counter(served, read | write).unwrap();
    let uncounted = b.domain.alloc(100, READ_WRITE).unwrap();
    let values = || counters.each_ref().map(|counter| counter.value());
    for round in 1..4 {
        for remote in [mapped.remote(), registered.remote(), uncounted.remote()] {
            let len = remote.len as usize;
            a.ep.write(to_b, remote.at(0), pattern(len, 1))
                .await
                .unwrap();
            a.ep.write(to_b, remote.at(0), b"more").inject().unwrap();
            a.ep.read(to_b, remote.slice(..10)).await.unwrap();
            a.ep.fetch_add(to_b, remote.at(0), 1u64).await.unwrap();
            // A failed operation is not counted.
            a.ep.write(to_b, remote.at(remote.len), "x")
                .await
                .unwrap_err();
        }
        assert!(writes.wait(2 * round).await.is_ok() && reads.wait(2 * round).await.is_ok());
        assert!(served.wait(4 * round).await.is_ok());
        assert_eq!(values(), [2 * round, 2 * round, 4 * round]);
    }
    assert!(matches!(
        a.ep.window(to_b, mapped.remote()).await.unwrap_err(),
        Error::NotSupported(_)
    ));

    let foreign = a.domain.counter().unwrap();
    let bind =
        |region: &mut fabric_async::MemoryRegion, counter, what| region.bind_counter(counter, what);
    assert!(matches!(
        bind(&mut mapped, writes, write).unwrap_err(),
        Error::Invalid { .. }
    ));
    assert!(matches!(
        bind(&mut mapped, &foreign, read).unwrap_err(),
        Error::WrongParent { .. }
    ));
    for what in [
        CounterBind::empty(),
        CounterBind::SEND,
        write | CounterBind::RECV,
    ] {
        assert!(matches!(
            bind(&mut mapped, writes, what).unwrap_err(),
            Error::BadFlags { .. }
        ));
    }
    // A counter is busy while a region is bound to it.
    let refused = writes.clone().close().unwrap_err();
    assert!(
        matches!(refused.error, Error::Busy { .. }),
        "{}",
        refused.error
    );
    mapped.close().unwrap();
    writes.clone().close().unwrap();
}

pub(crate) async fn region_counters_require_fi_rma_event(setup: Setup) {
    let (fabric, mut info) = setup.fabric().await;
    info.caps -= Caps::RMA_EVENT;
    let domain = fabric.domain_builder(&info).open().unwrap();
    let counter = domain.counter().unwrap();
    let mut region = domain.alloc(8, READ_WRITE).unwrap();
    let refused = region
        .bind_counter(&counter, CounterBind::REMOTE_WRITE)
        .unwrap_err();
    assert!(matches!(refused, Error::NotSupported(_)), "{refused}");
    counter.close().unwrap();
}

/// Peers write and change a region without `REMOTE_READ`, in order with their messages, and cannot
/// read it.
pub(crate) async fn region_without_remote_read_is_written_and_not_read(setup: Setup) {
    let (a, mut b, to_b) = endpoint_pair(&setup).await;
    let region = b.domain.alloc(300_000, Access::REMOTE_WRITE).unwrap();
    let remote = region.remote();
    let not_granted = Error::Key {
        key: region.key(),
        why: "does not grant REMOTE_READ",
    };
    let peer = tokio::spawn(async move {
        let bytes: Vec<u8> = (0..200_001).map(|at| (at % 251) as u8).collect();
        a.ep.write(to_b, remote.at(99), bytes.clone())
            .data(7)
            .await
            .unwrap();
        a.ep.write(to_b, remote.at(0), b"injected")
            .inject()
            .unwrap();
        a.ep.atomic(to_b, remote.at(8), AtomicOp::Sum, 5u64)
            .await
            .unwrap();
        for _ in 0..2 {
            let read = a.ep.read(to_b, remote.slice(..8)).await.unwrap_err();
            assert_eq!(read.error, not_granted);
            let fetched = a.ep.fetch_add(to_b, remote.at(8), 1u64).await.unwrap_err();
            assert!(matches!(fetched, Error::Key { key, .. } if key == remote.key));
            let beyond =
                a.ep.write(to_b, remote.at(299_999), "xy")
                    .await
                    .unwrap_err();
            assert!(matches!(beyond.error, Error::OutOfBounds { .. }));
        }
        a.ep.send(to_b, "written").await.unwrap();
        bytes
    });
    b.ep.recv().await.unwrap();
    let bytes = peer.await.unwrap();
    let mut written = vec![0; bytes.len()];
    region.read(99, &mut written).unwrap();
    assert!(written == bytes, "the bytes of the long write");
    let mut injected = [0; 8];
    region.read(0, &mut injected).unwrap();
    assert_eq!(&injected, b"injected");
    assert_eq!(region.load(8), Ok(5u64));
    let mut entries = Vec::new();
    b.cq.read_batch(&mut entries, 1).await;
    let transfer = &entries[0].transfer;
    assert_eq!((transfer.data, transfer.len), (Some(7), bytes.len()));
}
