//! Asynchronous registration of memory (`FI_REG_MR`).
//!
//! A [gated buffer](crate::custom_buffers::gated_buf) keeps a registration pending.

use fabric_async::buf::CustomBuf;
use fabric_async::{
    Access, Class, Domain, Error, Event, EventKind, EventQueue, Fabric, FiAddr, Resource,
};

use crate::custom_buffers::gated_buf;
use crate::endpoint_fixture::{EndpointConfig, EndpointFixture, endpoint_pair_with};
use crate::payload::{assert_bytes, let_other_tasks_run, pattern, poll_once};
use crate::setup::Setup;

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
const LEN: usize = 50_000;

/// Opens a peer, and an endpoint whose domain is bound with `FI_REG_MR`.
async fn peer_and_owner(setup: &Setup) -> (EndpointFixture, EndpointFixture, FiAddr) {
    let owner = EndpointConfig {
        reg_mr: true,
        ..EndpointConfig::default()
    };
    endpoint_pair_with(setup, EndpointConfig::default(), owner).await
}

/// Opens a domain without endpoints that is bound with `FI_REG_MR`.
async fn bound_domain(setup: &Setup) -> (Domain, EventQueue, Fabric) {
    let (fabric, info) = setup.fabric().await;
    let domain = setup.open_domain(&fabric, &info);
    let eq = fabric.event_queue(16).unwrap();
    domain.bind_eq_reg_mr(&eq).unwrap();
    (domain, eq, fabric)
}

fn is_registration(event: &Event) -> bool {
    matches!(
        event.kind,
        EventKind::MrComplete { .. } | EventKind::MrFailed { .. }
    )
}

/// Waits for the next event of a registration.
async fn next_event(eq: &mut EventQueue) -> Event {
    loop {
        let event = eq.read().await;
        if is_registration(&event) {
            return event;
        }
    }
}

/// Checks that the queue has no event of a registration.
#[track_caller]
fn assert_no_event(eq: &mut EventQueue) {
    while let Some(event) = eq.try_read() {
        assert!(!is_registration(&event), "{event:?}");
    }
}

/// Returns the number of regions that a domain counts.
fn regions(domain: &Domain) -> u32 {
    domain.children().of(Class::MemoryRegion)
}

/// While the registration is pending, there is no key and no event, and the domain moves messages.
pub(crate) async fn posted_registration_has_no_key_before_its_event(setup: Setup) {
    let (a, mut b, to_b) = peer_and_owner(&setup).await;
    let (buf, gate) = gated_buf(pattern(LEN, 1));
    let request = b.domain.alloc_from_async(buf, READ_WRITE);
    let mut pending = request.context(7).post().unwrap();
    gate.wait_until_reached().await;
    for _ in 0..10 {
        assert!(pending.try_take().is_none());
        assert_no_event(&mut b.eq);
        let (sent, received) = tokio::join!(a.ep.send(to_b, "not delayed"), b.ep.recv());
        sent.unwrap();
        assert_eq!(&received.unwrap()[..], b"not delayed");
    }
    assert_eq!(regions(&b.domain), 1);
    gate.open();
    let event = next_event(&mut b.eq).await;
    let region = pending.try_take().unwrap().unwrap();
    assert_eq!((event.object_id, event.context), (pending.id(), 7));
    assert_eq!(event.kind, EventKind::MrComplete { key: region.key() });
    assert!(pending.try_take().is_none(), "the region was taken");
    drop(pending);
    assert_eq!(regions(&b.domain), 1);

    let progress = b.spawn_progress();
    let read = a.ep.read(to_b, region.remote().slice(..)).await.unwrap();
    assert_bytes(&read, pattern(LEN, 1));
    let news = pattern(LEN, 2);
    let written = a.ep.write(to_b, region.remote().at(0), news).await;
    written.unwrap();
    progress.abort();
    let buf: Box<dyn CustomBuf> = region.into_buf().unwrap();
    assert_bytes(buf.bytes(), news);
    assert_eq!(regions(&b.domain), 0);
    assert_no_event(&mut b.eq);
}

/// Each kind of region reports with its context, and then peers write and read it.
pub(crate) async fn peers_access_posted_regions_after_their_events(setup: Setup) {
    let (a, mut b, to_b) = peer_and_owner(&setup).await;
    let allocated = b.domain.alloc_async(LEN, READ_WRITE).key(99).context(1);
    let copied = b.domain.alloc_from_async(vec![2; LEN], READ_WRITE);
    let in_place = b.domain.register_async(vec![3; LEN], READ_WRITE);
    let mut allocated = allocated.post().unwrap();
    let mut copied = copied.context(2).post().unwrap();
    let mut in_place = in_place.context(3).post().unwrap();
    let mut keys = [0; 4];
    for _ in 0..3 {
        let event = next_event(&mut b.eq).await;
        let EventKind::MrComplete { key } = event.kind else {
            panic!("{event:?}")
        };
        let ids = [0, allocated.id(), copied.id(), in_place.id()];
        assert_eq!(ids[event.context as usize], event.object_id);
        keys[event.context as usize] = key;
    }
    let allocated = allocated.try_take().unwrap().unwrap();
    let copied = copied.try_take().unwrap().unwrap();
    let mut in_place = in_place.try_take().unwrap().unwrap();
    assert_eq!(keys, [0, 99, copied.key(), in_place.key()]);
    assert_eq!(allocated.key(), 99);

    let progress = b.spawn_progress();
    let remotes = [allocated.remote(), copied.remote(), in_place.remote()];
    for (remote, byte) in remotes.into_iter().zip([0, 2, 3]) {
        let read = a.ep.read(to_b, remote.slice(..)).await.unwrap();
        assert_bytes(&read, &[byte; LEN]);
        let written = a.ep.write(to_b, remote.at(10), pattern(LEN - 10, 4)).await;
        written.unwrap();
    }
    progress.abort();
    let mut there = vec![0; LEN];
    for region in [allocated.read(0, &mut there), copied.read(0, &mut there)] {
        region.unwrap();
        assert_bytes(&there[10..], pattern(LEN - 10, 4));
    }
    assert_bytes(&in_place.lock()[10..], pattern(LEN - 10, 4));
    assert_no_event(&mut b.eq);
}

/// An awaited registration has one consumer, its future, with and without `FI_REG_MR`.
pub(crate) async fn awaited_registration_yields_no_event(setup: Setup) {
    let (a, mut b, to_b) = peer_and_owner(&setup).await;
    let (buf, gate) = gated_buf(pattern(LEN, 1));
    let mut waiting = b.domain.alloc_from_async(buf, READ_WRITE).into_future();
    assert_eq!(
        regions(&b.domain),
        0,
        "nothing begins before the first poll"
    );
    assert!(poll_once(&mut waiting).await.is_pending());
    assert_eq!(regions(&b.domain), 1);
    gate.open();
    let copied = waiting.await.unwrap();
    let allocated = b.domain.alloc_async(LEN, READ_WRITE).await.unwrap();
    let in_place = b.domain.register_async(vec![0; LEN], READ_WRITE);
    let in_place = in_place.await.unwrap();
    let failed = b.domain.alloc_from_async(vec![5; 8], READ_WRITE);
    let failed = failed.key(copied.key()).await.unwrap_err();
    assert!(matches!(failed.error, Error::Key { .. }), "{failed}");
    assert_eq!(failed.buf, [5; 8]);
    let progress = b.spawn_progress();
    for remote in [copied.remote(), allocated.remote(), in_place.remote()] {
        let written = a.ep.write(to_b, remote.at(0), pattern(LEN, 2)).await;
        written.unwrap();
    }
    progress.abort();
    assert_no_event(&mut b.eq);
    // A domain without FI_REG_MR.
    let region = a.domain.alloc_async(LEN, READ_WRITE).await.unwrap();
    assert_eq!(region.remote().len, LEN as u64);
}

/// Failures are events with the error and the context. The handle returns the buffer.
pub(crate) async fn failed_registration_is_an_error_event(setup: Setup) {
    let (domain, mut eq, fabric) = bound_domain(&setup).await;
    let too_long = domain.alloc_async(usize::MAX, READ_WRITE).context(1);
    let mut too_long = too_long.post().unwrap();
    let event = next_event(&mut eq).await;
    let error = too_long.try_take().unwrap().unwrap_err();
    assert_eq!((event.object_id, event.context), (too_long.id(), 1));
    assert_eq!(
        event.kind,
        EventKind::MrFailed {
            error: error.clone()
        }
    );
    let is_expected = match setup.shares_memory() {
        true => matches!(error, Error::TooLong { .. }),
        false => matches!(error, Error::Os { errno: 12, .. }),
    };
    assert!(is_expected, "{error}");

    let first = domain.register_async(vec![1; 8], READ_WRITE).await.unwrap();
    let taken = domain
        .register_async(vec![2; 8], READ_WRITE)
        .key(first.key());
    let mut taken = taken.context(2).post().unwrap();
    let no_right = domain.alloc_async(8, Access::empty()).context(3);
    let mut no_right = no_right.post().unwrap();
    let (buf, gate) = gated_buf(&[4; 8]);
    let panics = domain.alloc_from_async(buf, READ_WRITE).context(4);
    let mut panics = panics.post().unwrap();
    gate.open_with_panic();
    let mut errors = [const { None }; 5];
    for _ in 0..3 {
        let event = next_event(&mut eq).await;
        let EventKind::MrFailed { error } = event.kind else {
            panic!("{event:?}")
        };
        errors[event.context as usize] = Some(error);
    }
    assert_eq!(regions(&domain), 1);
    let failed = taken.try_take().unwrap().unwrap_err();
    assert_eq!(failed.buf, [2; 8]);
    assert!(matches!(failed.error, Error::Key { .. }), "{failed}");
    assert_eq!(errors[2], Some(failed.error));
    let error = no_right.try_take().unwrap().unwrap_err();
    assert!(matches!(error, Error::BadFlags { .. }), "{error}");
    assert_eq!(errors[3], Some(error));
    let failed = panics.try_take().unwrap().unwrap_err();
    assert!(matches!(failed.error, Error::Invalid { .. }), "{failed}");
    assert_eq!(errors[4], Some(failed.error));
    first.close().unwrap();
    domain.close().unwrap();
    assert_no_event(&mut eq);
    eq.close().unwrap();
    fabric.close().unwrap();
}

/// A region that is closed while its registration is pending has no event, keeps no object open,
/// and its memory is released when the thread has prepared it.
pub(crate) async fn region_closed_while_pending_has_no_event(setup: Setup) {
    for is_awaited in [false, true] {
        let (domain, mut eq, fabric) = bound_domain(&setup).await;
        let (buf, gate) = gated_buf(&[1; LEN]);
        let request = domain.alloc_from_async(buf, READ_WRITE).key(5);
        if is_awaited {
            let mut waiting = request.into_future();
            assert!(poll_once(&mut waiting).await.is_pending());
            gate.wait_until_reached().await;
            drop(waiting);
        } else {
            let pending = request.post().unwrap();
            gate.wait_until_reached().await;
            let refused = domain.clone().close().unwrap_err().error;
            assert!(matches!(&refused, Error::Busy(children)
                if children.total() == 1 && children.of(Class::MemoryRegion) == 1));
            drop(pending);
        }
        assert_eq!(domain.children().total(), 0);
        // The key is free.
        let other = domain.alloc_async(8, READ_WRITE).key(5).await.unwrap();
        other.close().unwrap();
        domain.close().unwrap();
        assert!(!gate.is_buffer_dropped());
        gate.open();
        while !gate.is_buffer_dropped() {
            let_other_tasks_run().await;
        }
        assert_no_event(&mut eq);
        eq.close().unwrap();
        fabric.close().unwrap();
    }
}

/// Closing a region removes its unread event, also if the program has taken the region.
pub(crate) async fn closed_region_leaves_no_event(setup: Setup) {
    let (domain, mut eq, _fabric) = bound_domain(&setup).await;
    for takes in [false, true] {
        let request = domain.alloc_async(8, READ_WRITE).key(5).context(1);
        let mut closed = request.post().unwrap();
        assert_eq!(eq.peek().await.context, 1);
        let request = domain.alloc_async(8, READ_WRITE).context(2);
        let stays = request.post().unwrap();
        if takes {
            let region = closed.try_take().unwrap().unwrap();
            region.close().unwrap();
        } else {
            drop(closed);
        }
        let event = next_event(&mut eq).await;
        assert_eq!((event.object_id, event.context), (stays.id(), 2));
        assert_no_event(&mut eq);
        drop(stays);
        assert_eq!(regions(&domain), 0);
    }
}

/// The queue has reserved an entry for each posted registration, and none is lost.
pub(crate) async fn posted_registrations_are_limited_to_the_entries(setup: Setup) {
    let config = EndpointConfig {
        eq_capacity: 2,
        reg_mr: true,
        ..EndpointConfig::default()
    };
    let mut owner = setup.open_endpoint_with(config).await;
    let request = || owner.domain.register_async(vec![1; 8], READ_WRITE);
    let first = request().context(0).post().unwrap();
    let second = request().context(1).post().unwrap();
    let refused = request().context(2).post().unwrap_err();
    let full = Resource::EventEntry { capacity: 2 };
    assert_eq!(refused.error, Error::WouldBlock(full));
    assert_eq!(refused.buf, [1; 8]);
    assert_eq!(regions(&owner.domain), 2);
    // Other events find the room of the capacity.
    let peers = [setup.open_endpoint().await, setup.open_endpoint().await];
    for peer in &peers {
        peer.add_peer(&owner).await;
    }
    while owner.ep.stats().peers < 2 {
        owner.domain.progress();
        let_other_tasks_run().await;
    }
    let mut contexts = Vec::new();
    for _ in 0..4 {
        let event = owner.eq.read().await;
        match event.kind {
            EventKind::MrComplete { .. } => contexts.push(event.context),
            kind => assert!(matches!(kind, EventKind::PeerConnected { .. }), "{kind:?}"),
        }
    }
    contexts.sort_unstable();
    assert_eq!(contexts, [0, 1]);
    assert_eq!(owner.eq.try_read(), None);
    // The entries are free, also that of a handle that is dropped.
    for context in 3..10 {
        let request = owner.domain.register_async(vec![1; 8], READ_WRITE);
        drop(request.context(context).post().unwrap());
    }
    drop((first, second));
    assert_no_event(&mut owner.eq);

    let (fabric, mut info) = setup.fabric().await;
    info.domain.mr_cnt = 1;
    let domain = setup.open_domain(&fabric, &info);
    domain
        .bind_eq_reg_mr(&fabric.event_queue(16).unwrap())
        .unwrap();
    let pending = domain.alloc_async(8, READ_WRITE).post().unwrap();
    let refused = domain.alloc_async(8, READ_WRITE).post().unwrap_err();
    assert!(matches!(refused, Error::TooMany { .. }), "{refused}");
    let refused = domain.alloc_async(8, READ_WRITE).await.unwrap_err();
    assert!(matches!(refused, Error::TooMany { .. }), "{refused}");
    drop(pending);
    domain.alloc_async(8, READ_WRITE).await.unwrap();
}

/// A domain registers asynchronously only, from the bind on; without `FI_REG_MR` no registration
/// can be posted.
pub(crate) async fn domain_registers_as_it_is_bound(setup: Setup) {
    let (fabric, info) = setup.fabric().await;
    let domain = setup.open_domain(&fabric, &info);
    let post = |domain: &Domain| {
        let posted = domain.alloc_async(8, READ_WRITE).post();
        posted.map(drop)
    };
    assert_eq!(post(&domain), Err(Error::Unbound(Class::EventQueue)));
    let eq = fabric.event_queue(16).unwrap();
    let before = domain.alloc(8, READ_WRITE).unwrap();
    domain.bind_eq_reg_mr(&eq).unwrap();
    let is_refused = |error: Error| {
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        assert!(error.to_string().contains("FI_REG_MR"), "{error}");
    };
    is_refused(domain.alloc(8, READ_WRITE).unwrap_err());
    is_refused(domain.alloc_with_key(8, READ_WRITE, 1).unwrap_err());
    let refused = domain.alloc_from(vec![1], READ_WRITE, None).unwrap_err();
    is_refused(refused.error);
    let refused = domain.register(vec![1; 8], READ_WRITE, None).unwrap_err();
    assert_eq!(refused.buf, [1; 8]);
    is_refused(refused.error);
    assert_eq!(before.read(0, &mut [0; 8]), Ok(()));
    for bound in [domain.bind_eq_reg_mr(&eq), domain.bind_eq(&eq)] {
        assert!(matches!(bound, Err(Error::Invalid { .. })), "{bound:?}");
    }
    let synchronous = setup.open_domain(&fabric, &info);
    synchronous.bind_eq(&eq).unwrap();
    is_refused(post(&synchronous).unwrap_err());
    assert_eq!(regions(&synchronous), 0);
    drop(before);
    domain.clone().close().unwrap();
    assert_eq!(post(&domain), Err(Error::Closed(Class::Domain)));
}
