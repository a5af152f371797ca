//! Memory registration modes (`mr_mode`): the duties of a program in a domain that requires a bit.

use fabric_async::info::MrMode;
use fabric_async::{Access, Caps, Class, CounterBind, Domain, Error, Hints, discover};

use crate::endpoint_fixture::endpoint_pair;
use crate::payload::poll_once;
use crate::regions::open_virt_addr_owner;
use crate::setup::{Setup, domain_requiring};

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// A domain requires the bits of its name from programs that are RMA targets, and no others.
pub(crate) async fn domain_requires_the_bits_of_its_name(setup: Setup) {
    let a = setup.requiring(MrMode::VIRT_ADDR).open_endpoint().await;
    let name = domain_requiring(MrMode::VIRT_ADDR);
    assert_eq!(
        (&a.info.domain.name, a.info.domain.mr_mode),
        (&name, MrMode::VIRT_ADDR)
    );
    let region = a.domain.alloc(8, Access::REMOTE_READ).unwrap();
    assert_ne!(region.remote().base, 0);
    let within = Hints::new().within(&a.domain).mr_mode(MrMode::VIRT_ADDR);
    let child = discover(&within).unwrap().swap_remove(0);
    assert_eq!(child.domain.domain, Some(a.domain.id()));

    let hints = |domain: &str| setup.hints().caps(setup.caps).domain_name(domain);
    let agreed = hints(&name).mr_mode(MrMode::VIRT_ADDR | MrMode::LOCAL | MrMode::ENDPOINT);
    let info = discover(&agreed).unwrap().swap_remove(0);
    assert_eq!(info.domain.mr_mode, MrMode::VIRT_ADDR);
    let Err(Error::NoMatch(refused)) = discover(&hints(&name)) else {
        panic!("the hints agree to no bit");
    };
    assert!(
        refused
            .mismatches
            .iter()
            .any(|of| of.attribute == "mr_mode"),
        "{refused}"
    );
    let messages = hints(&name).caps(Caps::MSG);
    let info = discover(&messages).unwrap().swap_remove(0);
    assert_eq!(info.domain.mr_mode, MrMode::empty());

    let collective = hints("sim+COLLECTIVE").mr_mode(MrMode::COLLECTIVE);
    let refused = discover(&collective).unwrap_err();
    assert!(
        matches!(refused, Error::NotSupported(why) if why.contains("FI_MR_COLLECTIVE")),
        "{refused}"
    );
    let refused = discover(&hints("sim+VIRT_ADDR+HMEM")).unwrap_err();
    assert!(matches!(refused, Error::NotSupported(_)), "{refused}");
    let refused = discover(&hints("sim+SCALABLE")).unwrap_err();
    assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
}

/// With `FI_MR_PROV_KEY`, registrations that request a key fail with the buffer.
pub(crate) async fn requested_key_is_refused_if_the_provider_selects_keys(setup: Setup) {
    let check = |domain: &Domain| {
        assert!(domain.info().domain.mr_mode.contains(MrMode::PROV_KEY));
        let is_refused = |error: &Error| matches!(error, Error::Key { key: 7, .. });
        let refused = domain.alloc_with_key(8, READ_WRITE, 7).unwrap_err();
        assert!(is_refused(&refused), "{refused}");
        let refused = domain
            .alloc_from(vec![1; 8], READ_WRITE, Some(7))
            .unwrap_err();
        assert!(is_refused(&refused.error), "{refused}");
        assert_eq!(refused.buf, [1; 8]);
        let refused = domain
            .register(vec![1; 8], READ_WRITE, Some(7))
            .unwrap_err();
        assert!(is_refused(&refused.error), "{refused}");
        assert_eq!(refused.buf, [1; 8]);
        let [a, b] = [(); 2].map(|()| domain.alloc(8, READ_WRITE).unwrap().key());
        assert_ne!(a, b);
    };
    // `BASIC` includes the bit.
    let (domain, _owner, progress_task) = open_virt_addr_owner(&setup).await;
    check(&domain);
    progress_task.abort();
    if setup.can_choose_mr_mode() {
        check(
            &setup
                .requiring(MrMode::PROV_KEY)
                .open_endpoint()
                .await
                .domain,
        );
    }
}

/// The duties of asynchronous registrations are the same.
pub(crate) async fn asynchronous_registrations_have_the_same_duties(setup: Setup) {
    let owner = setup.requiring(MrMode::PROV_KEY).open_endpoint().await;
    let request = owner.domain.alloc_async(8, Access::REMOTE_READ);
    let refused = request.key(7).await.unwrap_err();
    assert!(matches!(refused, Error::Key { key: 7, .. }), "{refused}");
    let region = owner.domain.alloc_async(8, Access::REMOTE_READ).await;
    assert_eq!(region.unwrap().remote().len, 8);
}

/// With `FI_MR_ENDPOINT`, peers access a region once it is enabled, through the endpoint that it is
/// bound to.
pub(crate) async fn fi_mr_endpoint_region_is_enabled_for_its_endpoint(setup: Setup) {
    let a = setup.open_endpoint().await;
    let b = setup.requiring(MrMode::ENDPOINT).open_endpoint().await;
    let other = b.domain.endpoint(&b.info).unwrap();
    let other = other.bind_av(&b.av).unwrap().enable().unwrap();
    let _progress = b.spawn_progress();
    let (to_b, to_other) = (
        a.add_peer(&b).await,
        a.ep.add_peer(other.name()).await.unwrap(),
    );

    let mut region = b.domain.alloc(64, READ_WRITE).unwrap();
    let mut registered = b.domain.register(vec![0; 64], READ_WRITE, None).unwrap();
    let counter = b.domain.counter().unwrap();
    let remotes = [region.remote(), registered.remote()];
    let are_refused = async |through| {
        for remote in remotes {
            let refused = a.ep.write(through, remote.at(0), "x").await.unwrap_err();
            assert!(matches!(refused.error, Error::Key { key, .. } if key == remote.key));
            let refused =
                a.ep.fetch_add(through, remote.at(0), 1u64)
                    .await
                    .unwrap_err();
            assert!(matches!(refused, Error::Key { .. }), "{refused}");
        }
    };
    are_refused(to_b).await;
    assert_eq!(region.enable(), Err(Error::Unbound(Class::Endpoint)));
    assert_eq!(registered.enable(), Err(Error::Unbound(Class::Endpoint)));
    let foreign = region.bind_endpoint(&a.ep).unwrap_err();
    assert!(matches!(foreign, Error::WrongParent { .. }), "{foreign}");
    are_refused(to_b).await;
    region.bind_endpoint(&b.ep).unwrap();
    registered.bind_endpoint(&b.ep).unwrap();
    let twice = region.bind_endpoint(&other).unwrap_err();
    assert!(matches!(twice, Error::Invalid { .. }), "{twice}");
    are_refused(to_b).await;

    region.enable().unwrap();
    registered.enable().unwrap();
    for remote in remotes {
        a.ep.write(to_b, remote.at(8), [7; 8]).await.unwrap();
        let read = a.ep.read(to_b, remote.slice(8..16)).await.unwrap();
        assert_eq!(read[..], [7; 8]);
    }
    are_refused(to_other).await;
    for late in [
        region.bind_endpoint(&b.ep),
        region.bind_counter(&counter, CounterBind::REMOTE_WRITE),
        registered.bind_endpoint(&other),
        registered.bind_counter(&counter, CounterBind::REMOTE_WRITE),
    ] {
        assert!(matches!(late, Err(Error::Invalid { .. })), "{late:?}");
    }

    let refused = b.ep.clone().close().unwrap_err();
    assert!(
        matches!(refused.error, Error::Busy(open) if open.of(Class::MemoryRegion) == 2),
        "{}",
        refused.error
    );
    drop((region, registered));
    are_refused(to_b).await;
    b.ep.close().unwrap();
}

/// With `FI_MR_RMA_EVENT`, a region that is bound to a counter is enabled after the bind.
pub(crate) async fn fi_mr_rma_event_region_is_enabled_after_its_counter(setup: Setup) {
    let a = setup.open_endpoint().await;
    let b = setup.requiring(MrMode::RMA_EVENT).open_endpoint().await;
    let _progress = b.spawn_progress();
    let to_b = a.add_peer(&b).await;
    let counter = || b.domain.counter().unwrap();
    let (writes, reads) = (counter(), counter());
    let mut region = b.domain.alloc(64, READ_WRITE).unwrap();
    let mut registered = b.domain.register(vec![0; 64], READ_WRITE, None).unwrap();
    let remotes = [region.remote(), registered.remote()];
    for remote in remotes {
        a.ep.write(to_b, remote.at(0), "x").await.unwrap();
    }
    region
        .bind_counter(&writes, CounterBind::REMOTE_WRITE)
        .unwrap();
    registered
        .bind_counter(&writes, CounterBind::REMOTE_WRITE)
        .unwrap();
    region
        .bind_counter(&reads, CounterBind::REMOTE_READ)
        .unwrap();
    for remote in remotes {
        let refused = a.ep.write(to_b, remote.at(0), "x").await.unwrap_err();
        assert!(matches!(refused.error, Error::Key { .. }), "{refused}");
    }
    region.enable().unwrap();
    registered.enable().unwrap();
    for remote in remotes {
        a.ep.write(to_b, remote.at(0), "x").await.unwrap();
    }
    assert_eq!(writes.wait(2).await, Ok(2));
    let late = registered.bind_counter(&reads, CounterBind::REMOTE_READ);
    assert!(matches!(late, Err(Error::Invalid { .. })), "{late:?}");
}

/// A region without a duty is accessible from its registration on, and enabled all the same.
pub(crate) async fn enabled_region_accepts_no_further_bindings(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let mut region = b.domain.alloc(64, READ_WRITE).unwrap();
    region.refresh(8..).unwrap();
    let refused = region.bind_endpoint(&b.ep).unwrap_err();
    assert!(matches!(refused, Error::NotSupported(_)), "{refused}");
    for _ in 0..2 {
        a.ep.write(to_b, region.remote().at(0), "x").await.unwrap();
        region.enable().unwrap();
    }
    let counter = b.domain.counter().unwrap();
    let late = region.bind_counter(&counter, CounterBind::REMOTE_WRITE);
    assert!(matches!(late, Err(Error::Invalid { .. })), "{late:?}");
    counter.close().unwrap();
}

/// With `FI_MR_MMU_NOTIFY`, peers access the pages that the owner has refreshed, and no others.
pub(crate) async fn fi_mr_mmu_notify_pages_are_refreshed_before_access(setup: Setup) {
    const LEN: usize = 4 * 4096;
    let a = setup.open_endpoint().await;
    let b = setup.requiring(MrMode::MMU_NOTIFY).open_endpoint().await;
    let _progress = b.spawn_progress();
    let to_b = a.add_peer(&b).await;
    let mut region = b.domain.alloc(LEN, READ_WRITE).unwrap();
    let mut registered = b.domain.register(vec![0; LEN], READ_WRITE, None).unwrap();
    let remotes = [region.remote(), registered.remote()];
    let check = async |refreshed: std::ops::Range<u64>| {
        for remote in remotes {
            for (at, len) in [
                (0, 1),
                (4095, 1),
                (4096, 8),
                (8192, 4096),
                (4090, 100),
                (0, LEN),
            ] {
                let bytes = vec![1; len];
                let (start, end) = (at as u64, (at + len) as u64);
                let is_refreshed = refreshed.start <= start && end <= refreshed.end;
                let written = a.ep.write(to_b, remote.at(start), bytes).await;
                let read = a.ep.read(to_b, remote.slice(start..end)).await;
                assert_eq!(
                    (written.is_ok(), read.is_ok()),
                    (is_refreshed, is_refreshed)
                );
                if let Err(failed) = written {
                    assert!(matches!(failed.error, Error::Key { key, why }
                        if key == remote.key && why.contains("FI_MR_MMU_NOTIFY")));
                }
            }
            let at = remote.at(4096);
            let added = a.ep.fetch_add(to_b, at, 1u64).await;
            assert_eq!(added.is_ok(), refreshed.contains(&4096));
        }
    };
    check(0..0).await;
    region.refresh(5000..=5000).unwrap();
    registered.refresh(4096..8192).unwrap();
    check(4096..8192).await;
    for range in [LEN..LEN + 1, 0..LEN + 1] {
        let refused = [region.refresh(range.clone()), registered.refresh(range)];
        let is_out = |refused: &_| matches!(refused, Err(Error::OutOfBounds { .. }));
        assert!(refused.iter().all(is_out), "{refused:?}");
    }
    // While the owner holds the buffer, an access waits, and does not close the buffer.
    let read = {
        let _held = registered.lock();
        let mut read =
            a.ep.read(to_b, remotes[1].slice(4096..4097))
                .start()
                .unwrap();
        for _ in 0..50 {
            assert!(poll_once(&mut read).await.is_pending());
            tokio::task::yield_now().await;
        }
        read
    };
    assert_eq!(read.await.unwrap().len(), 1);
    region.refresh(..).unwrap();
    registered.refresh(..).unwrap();
    check(0..LEN as u64).await;
}
