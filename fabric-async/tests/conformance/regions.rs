//! What can be agreed on about regions: how their places are called, and who counts what is done there.

use fabric_async::{Access, Error, Fabric, Hints, MrMode, RemoteAddr, RemoteSlice, discover};

use crate::payload::{assert_bytes, pattern};
use crate::setup::Setup;

const BOTH: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// Where the domain has agreed to it, places are called by their addresses, whoever executes; elsewhere by offsets.
pub(crate) async fn places_are_addresses_where_that_was_agreed(setup: Setup) {
    let hints = Hints::new().provider(setup.provider).caps(setup.caps).progress(setup.progress);
    let info = discover(&hints.mr_mode(MrMode::BASIC)).await.unwrap().swap_remove(0);
    assert!(info.domain.mr_mode.contains(MrMode::VIRT_ADDR));
    let fabric = Fabric::open(&info).unwrap();
    let domain = fabric.domain_builder(&info).wait_policy(setup.policy).open().unwrap();
    let av = domain.welcoming_address_vector().unwrap();
    let owner = domain.endpoint(&info).unwrap().bind_av(&av).unwrap().enable().await.unwrap();
    let moving = domain.counter().unwrap();
    let driver = tokio::spawn(async move { moving.wait(1).await.map(drop) });
    let a = setup.station().await;
    let to_b = a.ep.lookup(owner.name()).await.unwrap();

    let mut buf = vec![0u8; 100_000];
    let at = buf.as_ptr().addr() as u64;
    buf[5] = 5;
    let mut registered = domain.register_buffer(buf, BOTH, None).unwrap();
    let region = domain.alloc(100_000, BOTH).unwrap();
    region.write(5, &[5]).unwrap();
    assert_eq!((registered.remote().base, registered.remote().at(7).offset), (at, at + 7));
    assert_ne!(region.remote().base, 0);
    for remote in [registered.remote(), region.remote()] {
        // As a program does that knows an address and a key.
        let place = |offset: u64| RemoteAddr { key: remote.key, offset: remote.base + offset };
        assert_eq!(a.ep.read(to_b, remote.slice(5..6)).await.unwrap()[..], [5]);
        a.ep.write(to_b, place(90_000), pattern(10_000, 1)).await.unwrap();
        let back =
            a.ep.read(to_b, RemoteSlice { key: remote.key, offset: remote.base + 90_000, len: 10_000 });
        assert_bytes(&back.await.unwrap(), pattern(10_000, 1));
        assert_eq!(a.ep.fetch_add(to_b, place(16), 9u64).await.unwrap(), 0);
        for outside in [0, 5, remote.base - 1, remote.base + 100_000, u64::MAX] {
            let to = RemoteAddr { key: remote.key, offset: outside };
            let failed = a.ep.write(to_b, to, "x").await.unwrap_err();
            assert!(matches!(failed.error, Error::TooLong { limit: 100_000, .. }), "{}", failed.error);
        }
    }
    // The owner's own way, and that of a window, count from the start.
    assert_bytes(&registered.look()[90_000..], pattern(10_000, 1));
    assert_eq!(region.load::<u64>(16), Ok(9));
    let window = a.ep.window(to_b, region.remote()).await.unwrap();
    let mut there = [0];
    window.read(5, &mut there).unwrap();
    assert_eq!(there, [5]);
    // Nobody agreed to it there.
    assert_eq!(a.domain.alloc(8, BOTH).unwrap().remote().base, 0);
    driver.abort();
}
