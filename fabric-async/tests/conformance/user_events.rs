//! Event queues: events that the program writes, peeks, and the events of closed objects.

use fabric_async::{Class, CqBind, DownReason, Error, Event, EventKind, EventQueue, Resource};

use crate::endpoint_fixture::{EndpointConfig, EndpointFixture, endpoint_pair};
use crate::payload::{let_other_tasks_run, poll_once};
use crate::setup::Setup;

/// Returns the context and the data of a written event of this queue.
fn written(eq: &EventQueue, event: Event) -> (u64, Vec<u8>) {
    assert_eq!(event.object_id, eq.id());
    match event.kind {
        EventKind::User { data } => (event.context, data),
        kind => panic!("{kind:?}"),
    }
}

/// Waits until this many peers are connected, without reading the event queue.
async fn wait_for_peers(fixture: &EndpointFixture, peers: usize) {
    while fixture.ep.stats().peers < peers {
        fixture.domain.progress();
        let_other_tasks_run().await;
    }
}

/// Written events are read in order with those of endpoints, and wake a waiting reader.
pub(crate) async fn written_events_are_read_in_order(setup: Setup) {
    let (mut a, b) = (setup.open_endpoint().await, setup.open_endpoint().await);
    let writer = a.eq.writer();
    {
        let mut waiting = Box::pin(a.eq.read());
        assert!(poll_once(&mut waiting).await.is_pending());
        let writer = writer.clone();
        tokio::spawn(async move { writer.write(1, "wakes").unwrap() });
        let event = waiting.await;
        assert_eq!(written(&a.eq, event), (1, b"wakes".to_vec()));
    }
    writer.write(2, "before").unwrap();
    b.add_peer(&a).await;
    wait_for_peers(&a, 1).await;
    writer.write(3, Vec::new()).unwrap();
    let first = a.eq.try_read().unwrap();
    assert_eq!(written(&a.eq, first), (2, b"before".to_vec()));
    let second = a.eq.try_read().unwrap();
    assert!(
        matches!(second.kind, EventKind::PeerConnected { .. }),
        "{second:?}"
    );
    let third = a.eq.try_read().unwrap();
    assert_eq!(written(&a.eq, third), (3, Vec::new()));
    assert_eq!(a.eq.try_read(), None);
}

/// A queue holds as many written events as its capacity, and as many others beside them.
pub(crate) async fn written_events_take_no_room_of_other_events(setup: Setup) {
    let config = EndpointConfig {
        eq_capacity: 2,
        ..EndpointConfig::default()
    };
    let mut a = setup.open_endpoint_with(config).await;
    let writer = a.eq.writer();
    writer.write(0, "").unwrap();
    writer.write(1, "").unwrap();
    let refused = writer.write(2, "").unwrap_err();
    let full = Resource::EventEntry { capacity: 2 };
    assert_eq!(refused, Error::WouldBlock(full));
    let peers = [setup.open_endpoint().await, setup.open_endpoint().await];
    for peer in &peers {
        peer.add_peer(&a).await;
    }
    wait_for_peers(&a, 2).await;
    for context in 0..2 {
        let event = a.eq.try_read().unwrap();
        assert_eq!(written(&a.eq, event).0, context);
        writer.write(context + 3, "").unwrap();
    }
    for _ in &peers {
        let event = a.eq.try_read().unwrap();
        assert!(
            matches!(event.kind, EventKind::PeerConnected { .. }),
            "{event:?}"
        );
    }
    for context in 3..5 {
        let event = a.eq.try_read().unwrap();
        assert_eq!(written(&a.eq, event).0, context);
    }
    assert_eq!(a.eq.try_read(), None);
}

/// A writer does not keep its queue open.
pub(crate) async fn writer_of_a_closed_queue_is_refused(setup: Setup) {
    let (fabric, info) = setup.fabric().await;
    let domain = setup.open_domain(&fabric, &info);
    let (closed, bound) = (
        fabric.event_queue(4).unwrap(),
        fabric.event_queue(4).unwrap(),
    );
    domain.bind_eq(&bound).unwrap();
    let writers = [closed.writer(), bound.writer()];
    writers[0].write(1, "lost").unwrap();
    closed.close().unwrap();
    // The domain is still bound to this queue.
    drop(bound);
    for writer in &writers {
        let refused = writer.write(2, "late").unwrap_err();
        assert_eq!(refused, Error::Closed(Class::EventQueue));
    }
    domain.close().unwrap();
    fabric.close().unwrap();
}

/// `FI_PEEK`: the next event is returned and stays in the queue, also the report of lost events.
pub(crate) async fn peeked_event_stays_in_the_queue(setup: Setup) {
    let config = EndpointConfig {
        eq_capacity: 1,
        ..EndpointConfig::default()
    };
    let mut a = setup.open_endpoint_with(config).await;
    assert_eq!(a.eq.try_peek(), None);
    let writer = a.eq.writer();
    {
        let mut waiting = Box::pin(a.eq.peek());
        assert!(poll_once(&mut waiting).await.is_pending());
        writer.write(1, "").unwrap();
        assert_eq!(waiting.await.context, 1);
    }
    assert_eq!(a.eq.peek().await.context, 1);
    assert_eq!(a.eq.try_read().map(|event| event.context), Some(1));
    assert_eq!(a.eq.try_peek(), None);
    let peers = [setup.open_endpoint().await, setup.open_endpoint().await];
    for peer in &peers {
        peer.add_peer(&a).await;
    }
    wait_for_peers(&a, 2).await;
    for kind in ["PeerConnected", "Overrun { lost: 1 }"] {
        let peeked = a.eq.try_peek().unwrap();
        assert!(format!("{peeked:?}").contains(kind), "{peeked:?}");
        assert_eq!(a.eq.try_peek().as_ref(), Some(&peeked));
        assert_eq!(a.eq.try_read(), Some(peeked));
    }
    assert_eq!(a.eq.try_peek(), None);
}

/// Closing an endpoint removes its events. Those of other objects stay, among them the event with
/// which a peer reports the end of the closed endpoint.
pub(crate) async fn closed_endpoint_leaves_no_events(setup: Setup) {
    let (mut a, mut b, to_b) = endpoint_pair(&setup).await;
    let second = b.domain.endpoint(&b.info).unwrap().context(5);
    let second = second.bind_av(&b.av).unwrap().enable().unwrap();
    let name = second.name().clone();
    let to_second = a.ep.add_peer(&name).await.unwrap();
    second.add_peer(a.ep.name()).await.unwrap();
    // Both endpoints have reported their peer.
    while second.stats().peers == 0 {
        b.domain.progress();
        let_other_tasks_run().await;
    }
    wait_for_peers(&b, 1).await;
    a.ep.send(to_second, "arrived").await.unwrap();
    second.recv().await.unwrap();
    b.eq.writer().write(1, "written").unwrap();
    while a.ep.stats().peers == 0 {
        a.domain.progress();
        let_other_tasks_run().await;
    }
    second.close().unwrap();
    let events: Vec<_> = std::iter::from_fn(|| b.eq.try_read()).collect();
    let [connected, user] = &events[..] else {
        panic!("{events:?}")
    };
    assert!(
        matches!(connected.kind, EventKind::PeerConnected { .. }),
        "{connected:?}"
    );
    assert_eq!(connected.object_id, b.ep.id());
    assert_eq!(written(&b.eq, user.clone()), (1, b"written".to_vec()));
    // The peer learns of the end.
    let down = loop {
        if let EventKind::PeerDown { peer, reason, .. } = a.eq.read().await.kind {
            break (peer, reason);
        }
    };
    assert_eq!(down, (name, DownReason::Closed));
    // The first endpoint still reports.
    a.ep.send(to_b, "still open").await.unwrap();
    b.ep.recv().await.unwrap();
    drop(a);
    let down = b.eq.read().await;
    assert!(matches!(down.kind, EventKind::PeerDown { .. }), "{down:?}");
    assert_eq!(down.object_id, b.ep.id());
}

/// The requests of a closed passive endpoint leave the queue with it, as in libfabric; the failure
/// of the refused connect stays, though its endpoint is closed too.
pub(crate) async fn closed_passive_endpoint_leaves_no_requests(setup: Setup) {
    let (fabric, info) = setup.fabric().await;
    let domain = setup.open_domain(&fabric, &info);
    let mut eq = fabric.event_queue(16).unwrap();
    let mut client_eq = fabric.event_queue(16).unwrap();
    domain.bind_eq(&client_eq).unwrap();
    let cq = domain.completion_queue(16).unwrap();
    let pep = fabric.passive_endpoint(&info).unwrap();
    let pep = pep.name(setup.unnamed_address()).unwrap();
    let pep = pep.bind_eq(&eq).unwrap().listen().unwrap();
    let ep = domain.endpoint(&info).unwrap().context(4);
    let ep = ep.bind_cq(&cq, CqBind::TRANSMIT | CqBind::RECV).unwrap();
    let mut connecting = Box::pin(ep.connect(pep.name()).into_future());
    tokio::select! {
        biased;
        connected = &mut connecting => panic!("{connected:?}"),
        event = eq.peek() => {
            assert_eq!(event.object_id, pep.id());
            assert!(matches!(event.kind, EventKind::ConnectionRequest { .. }), "{event:?}");
        }
    }
    pep.close().unwrap();
    assert_eq!(eq.try_read(), None);
    let error = connecting.await.map(drop).unwrap_err();
    let failed = client_eq.try_read().unwrap();
    assert_eq!(failed.context, 4);
    assert_eq!(failed.kind, EventKind::ConnectFailed { error });
    eq.close().unwrap();
}
