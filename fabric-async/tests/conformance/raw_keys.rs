//! Raw keys (`FI_MR_RAW`): peers map them before they use a region.

use fabric_async::atomic::AtomicOp;
use fabric_async::info::MrMode;
use fabric_async::{Access, Error, FiAddr, RemoteRegion};

use crate::endpoint_fixture::{EndpointFixture, endpoint_pair};
use crate::payload::poll_once;
use crate::setup::Setup;

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// Opens an initiator and an owner whose domains require raw keys.
async fn raw_pair(setup: &Setup) -> (EndpointFixture, EndpointFixture, FiAddr) {
    endpoint_pair(&setup.requiring(MrMode::RAW)).await
}

/// Checks that an operation is refused because its key is not mapped.
fn assert_not_mapped(error: &Error, expected: u64) {
    assert!(
        matches!(error, Error::Key { key, why } if *key == expected && why.contains("FI_MR_RAW")),
        "{error}"
    );
}

/// Checks that every kind of operation on a region is refused, with its buffer. `mapped` is a
/// region whose key is mapped.
async fn assert_all_refused(
    a: &EndpointFixture,
    peer: FiAddr,
    remote: RemoteRegion,
    mapped: RemoteRegion,
) {
    let (ep, key) = (&a.ep, remote.key);
    let refused = ep.write(peer, remote.at(0), vec![1; 3]).await.unwrap_err();
    assert_not_mapped(&refused.error, key);
    assert_eq!(refused.buf, [1; 3]);
    let refused = ep.write(peer, remote.slice(..3), vec![1; 3]).start();
    assert_not_mapped(&refused.unwrap_err().error, key);
    let list = [mapped.slice(..1), remote.slice(..2)];
    let refused = ep.write(peer, list, vec![1; 3]).await.unwrap_err();
    assert_not_mapped(&refused.error, key);
    let refused = ep.write(peer, remote.at(0), b"x").inject().unwrap_err();
    assert_not_mapped(&refused, key);
    let writes = [mapped, remote].map(|of| ep.write(peer, of.at(0), vec![1; 3]));
    let refused = ep.post_all(writes).unwrap_err();
    assert_not_mapped(&refused.error, key);
    let refused = ep.read_into(peer, remote.slice(..3), vec![0; 3]).await;
    assert_not_mapped(&refused.unwrap_err().error, key);
    let refused = ep.read(peer, list).await.unwrap_err();
    assert_not_mapped(&refused.error, key);
    let refused = ep.atomic(peer, remote.at(0), AtomicOp::Sum, 1u64).await;
    assert_not_mapped(&refused.unwrap_err(), key);
    let refused = ep.fetch_add(peer, remote.at(0), 1u64).await.unwrap_err();
    assert_not_mapped(&refused, key);
    let refused = ep.compare_swap(peer, remote.at(0), 0, 1u64).await;
    assert_not_mapped(&refused.unwrap_err(), key);
    assert_not_mapped(&ep.window(peer, remote).await.unwrap_err(), key);
}

/// A domain that requires `FI_MR_RAW` has no keys for its peers, and refuses operations before
/// their keys are mapped and after they are unmapped.
pub(crate) async fn fi_mr_raw_keys_are_mapped_before_use(setup: Setup) {
    let (a, b, to_b) = raw_pair(&setup).await;
    let _progress = b.spawn_progress();
    assert_eq!(a.info.domain.mr_mode, MrMode::RAW);
    assert_eq!(a.info.domain.mr_key_size, 16);
    let region = b.domain.alloc(64, READ_WRITE).unwrap();
    let registered = b.domain.register(vec![0; 64], READ_WRITE, Some(9)).unwrap();
    let other = b.domain.alloc(64, READ_WRITE).unwrap();
    let keys = [region.key(), registered.key(), other.remote().key];
    assert_eq!(keys, [RemoteRegion::KEY_NOTAVAIL; 3]);
    let other = a.domain.map_raw(other.remote(), &other.raw_key()).unwrap();
    for (remote, raw_key) in [
        (region.remote(), region.raw_key()),
        (registered.remote(), registered.raw_key()),
    ] {
        assert_eq!(raw_key.len(), 16);
        assert_all_refused(&a, to_b, remote, other).await;
        // The encoded description and the raw key are all that a peer gets.
        let described = RemoteRegion::from_bytes(&remote.to_bytes()).unwrap();
        let mapped = a.domain.map_raw(described, &raw_key).unwrap();
        assert_ne!(mapped.key, RemoteRegion::KEY_NOTAVAIL);
        assert_eq!((mapped.len, mapped.access), (64, READ_WRITE));
        assert_all_refused(&a, to_b, remote, other).await;
        for round in 0..2 {
            let write = a.ep.write(to_b, mapped.at(0), "writes");
            write.await.unwrap();
            let read =
                a.ep.read(to_b, [mapped.slice(..3), mapped.slice(3..6)])
                    .await;
            assert_eq!(&read.unwrap()[..], b"writes");
            a.ep.write(to_b, mapped.at(16), [1; 8]).inject().unwrap();
            let added = a.ep.fetch_add(to_b, mapped.at(32), 1u64).await;
            assert_eq!(added, Ok(round));
            let beyond = a.ep.write(to_b, mapped.at(63), "xy").await.unwrap_err();
            assert!(
                matches!(beyond.error, Error::OutOfBounds { limit: 64, .. }),
                "{beyond}"
            );
            if round == 0 {
                // Another mapping ends without an effect on the first one.
                let again = a.domain.map_raw(described, &raw_key).unwrap();
                assert_eq!(again, mapped);
                a.domain.unmap_key(again.key).unwrap();
            }
        }
        // A mapping is of one domain.
        assert_not_mapped(&b.domain.unmap_key(mapped.key).unwrap_err(), mapped.key);
        a.domain.unmap_key(mapped.key).unwrap();
        assert_all_refused(&a, to_b, mapped, other).await;
        assert_not_mapped(&a.domain.unmap_key(mapped.key).unwrap_err(), mapped.key);
    }
    // A region that has been closed stays mapped, and fails at its owner.
    let mapped = a
        .domain
        .map_raw(region.remote(), &region.raw_key())
        .unwrap();
    region.close().unwrap();
    let closed = a.ep.write(to_b, mapped.at(0), "x").await.unwrap_err();
    assert!(
        matches!(
            closed.error,
            Error::Key {
                why: "is unknown",
                ..
            }
        ),
        "{closed}"
    );
}

/// A raw key with other bytes, or of a region with another base address, is refused.
pub(crate) async fn changed_raw_keys_are_not_mapped(setup: Setup) {
    let setup = setup.requiring(MrMode::RAW | MrMode::VIRT_ADDR);
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let [region, other] = [(); 2].map(|()| b.domain.alloc(64, READ_WRITE).unwrap());
    let (remote, raw_key) = (region.remote(), region.raw_key());
    let is_refused = |described, raw_key: &[u8]| {
        let refused = a.domain.map_raw(described, raw_key).unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
    };
    is_refused(other.remote(), &raw_key);
    is_refused(remote, &other.raw_key());
    for len in [0, 7, 8, 15] {
        is_refused(remote, &raw_key[..len]);
    }
    for byte in 0..16 {
        let mut changed = raw_key.clone();
        changed[byte] ^= 1;
        is_refused(remote, &changed);
    }
    let mapped = a.domain.map_raw(remote, &raw_key).unwrap();
    assert_eq!(mapped.base, remote.base);
    a.ep.write(to_b, mapped.at(60), "last").await.unwrap();
}

/// Operations that were posted before their key was unmapped continue; later ones are refused, also
/// those whose request was made before.
pub(crate) async fn unmapping_does_not_end_posted_operations(setup: Setup) {
    let (a, b, to_b) = raw_pair(&setup).await;
    let _progress = b.spawn_progress();
    let mut region = b.domain.register(vec![0; 64], READ_WRITE, None).unwrap();
    let mapped = a
        .domain
        .map_raw(region.remote(), &region.raw_key())
        .unwrap();
    a.ep.write(to_b, mapped.at(0), "first").await.unwrap();
    let guard = region.lock();
    let mut posted = a.ep.write(to_b, mapped.at(0), "posted").start().unwrap();
    let request = a.ep.write(to_b, mapped.at(0), "late");
    for _ in 0..20 {
        assert!(
            poll_once(&mut posted).await.is_pending(),
            "the owner holds the buffer"
        );
        tokio::task::yield_now().await;
    }
    a.domain.unmap_key(mapped.key).unwrap();
    assert!(poll_once(&mut posted).await.is_pending());
    drop(guard);
    posted.await.unwrap();
    assert_not_mapped(&request.await.unwrap_err().error, mapped.key);
    assert_eq!(&region.lock()[..6], b"posted");
    // A batch posts a request after its iterator has yielded it.
    let again = a.domain.map_raw(region.remote(), &region.raw_key());
    let again = again.unwrap();
    let requests = (0..2).map(|at| {
        let request = a.ep.write(to_b, again.at(at), [7; 1]);
        if at == 1 {
            a.domain.unmap_key(again.key).unwrap();
        }
        request
    });
    let refused = a.ep.post_all(requests).unwrap_err();
    assert_not_mapped(&refused.error, again.key);
    assert_eq!((refused.posted, refused.unposted.len()), (0, 2));
}

/// In other domains a raw key has 8 bytes, is the key, and needs no mapping.
pub(crate) async fn raw_keys_are_keys_in_domains_that_do_not_require_them(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let region = b.domain.alloc_with_key(64, READ_WRITE, 77).unwrap();
    assert_eq!(region.raw_key(), 77u64.to_le_bytes());
    let mapped = a
        .domain
        .map_raw(region.remote(), &region.raw_key())
        .unwrap();
    assert_eq!(mapped, region.remote());
    a.domain.unmap_key(mapped.key).unwrap();
    a.ep.write(to_b, mapped.at(0), "x").await.unwrap();
    let refused = a.domain.map_raw(region.remote(), &[1; 9]).unwrap_err();
    assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
    if setup.can_choose_mr_mode() {
        let c = setup.requiring(MrMode::RAW).open_endpoint().await;
        let _progress = c.spawn_progress();
        let to_c = a.add_peer(&c).await;
        let region = c.domain.alloc(64, READ_WRITE).unwrap();
        let refused = a.ep.write(to_c, region.remote().at(0), "x").await;
        assert!(matches!(refused.unwrap_err().error, Error::Key { .. }));
        let mapped = a
            .domain
            .map_raw(region.remote(), &region.raw_key())
            .unwrap();
        a.ep.write(to_c, mapped.at(0), "x").await.unwrap();
        assert_eq!(region.load::<u8>(0), Ok(b'x'));
    }
}

/// A domain and its resource domains share mappings.
pub(crate) async fn resource_domains_share_mapped_keys(setup: Setup) {
    let (a, b, from_a) = raw_pair(&setup).await;
    let _progress = b.spawn_progress();
    let part = a.domain.resource_domain().open().unwrap();
    let av = part.address_vector().unwrap();
    let ep = part.endpoint(&a.info).unwrap().bind_av(&av).unwrap();
    let ep = ep.enable().unwrap();
    let to_b = ep.add_peer(b.ep.name()).await.unwrap();
    let region = b.domain.alloc(64, READ_WRITE).unwrap();
    let mapped = a
        .domain
        .map_raw(region.remote(), &region.raw_key())
        .unwrap();
    ep.write(to_b, mapped.at(0), "x").await.unwrap();
    part.unmap_key(mapped.key).unwrap();
    for (ep, peer) in [(&a.ep, from_a), (&ep, to_b)] {
        let refused = ep.write(peer, mapped.at(0), "x").await.unwrap_err();
        assert_not_mapped(&refused.error, mapped.key);
    }
}
