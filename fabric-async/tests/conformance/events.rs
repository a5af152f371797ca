//! Event queues: peers that connect and disconnect, and failures of operations that no task awaits.

use fabric_async::{
    Address, ConnectedEndpoint, CqBind, Domain, DownReason, Endpoint, Error, Event, EventKind,
    Fabric, Info, Progress,
};

use futures_util::future::join_all;
use tokio::runtime::{Builder, Runtime};

use crate::endpoint_fixture::{
    ENDPOINT_CONTEXT, EQ_CONTEXT, EndpointConfig, EndpointFixture, endpoint_pair,
    endpoint_pair_with,
};
use crate::payload::{let_other_tasks_run, poll_once};
use crate::setup::Setup;

async fn next_event(fixture: &mut EndpointFixture) -> Event {
    fixture.eq.read().await
}

/// Checks that the error says that this peer is gone or cannot be found.
fn assert_peer_unavailable(error: &Error, name: &Address) {
    let (Error::PeerGone(peer) | Error::NoSuchPeer(peer)) = error else {
        panic!("{error}");
    };
    assert_eq!(peer, name);
}

fn is_peer_connected(event: Event, fixture: &EndpointFixture) -> bool {
    matches!(event.kind, EventKind::PeerConnected { peer, .. } if peer == *fixture.ep.name())
}

/// A program that asks for automatic control progress and manual data progress, and makes no call:
/// a peer connects and its message is received.
pub(crate) async fn automatic_control_progress_needs_no_calls(setup: Setup) {
    let automatic = setup.automatic_control_progress();
    let (a, b) = (setup.open_endpoint().await, automatic.open_endpoint().await);
    let granted = (b.info.domain.control_progress, b.info.domain.data_progress);
    assert_eq!(granted, (Progress::Auto, Progress::Auto));
    let to_b = a.ep.add_peer(b.ep.name()).await.unwrap();
    a.ep.send(to_b, "hello").await.unwrap();
    // Statistics make no progress.
    while b.ep.stats().unexpected == 0 {
        let_other_tasks_run().await;
    }
}

/// A program that reads its event queue only, and neither waits nor reads completions.
pub(crate) async fn event_queue_reads_make_progress(setup: Setup) {
    let (a, mut b, to_b) = endpoint_pair(&setup).await;
    b.ep.recv_into(vec![0; 8]).post().unwrap();
    a.ep.send(to_b, "hello").await.unwrap();
    while b.ep.stats().received.count == 0 {
        while b.eq.try_read().is_some() {}
        tokio::task::yield_now().await;
    }
}

pub(crate) async fn peer_connect_and_close_are_events(setup: Setup) {
    let (a, mut b, to_b) = endpoint_pair(&setup).await;
    let name = a.ep.name().clone();
    a.ep.send(to_b, "hello").await.unwrap();
    let source = b.ep.recv().await.unwrap().source().unwrap();
    // The peer has connected before its message arrives.
    let event = b.eq.try_read().expect("the queue of the domain");
    assert_eq!(
        (event.object_id, event.context),
        (b.ep.id(), ENDPOINT_CONTEXT)
    );
    let EventKind::PeerConnected {
        peer,
        source: event_source,
    } = event.kind
    else {
        panic!("{event:?}")
    };
    assert_eq!((peer, event_source), (name.clone(), Some(source)));
    assert_eq!(b.eq.try_read(), None, "a message caused an event");
    a.ep.close().unwrap();
    let event = next_event(&mut b).await;
    assert_eq!(
        (event.object_id, event.context),
        (b.ep.id(), ENDPOINT_CONTEXT)
    );
    let down = EventKind::PeerDown {
        peer: name,
        source: Some(source),
        reason: DownReason::Closed,
    };
    assert_eq!(event.kind, down);
    // Both directions of a connection go down as one event.
    let_other_tasks_run().await;
    assert_eq!(b.eq.try_read(), None);
}

/// Returns the object id and the context of the next event, and its kind.
async fn next_of(eq: &mut fabric_async::EventQueue) -> (u64, u64, EventKind) {
    let event = eq.read().await;
    (event.object_id, event.context, event.kind)
}

/// Passive and connected endpoints of one queue: each event has the context of its object.
pub(crate) async fn connection_events_have_the_context_of_their_object(setup: Setup) {
    let (fabric, info) = setup.fabric().await;
    let domain = setup.open_domain(&fabric, &info);
    let mut eq = fabric.event_queue(64).unwrap();
    domain.bind_eq(&eq).unwrap();
    let cq = domain.completion_queue(64).unwrap();
    let pep = fabric.passive_endpoint(&info).unwrap().context(1);
    let pep = pep.name(setup.unnamed_address()).unwrap();
    let mut pep = pep.bind_eq(&eq).unwrap().listen().unwrap();
    let builder = |context| {
        let ep = domain.endpoint(&info).unwrap().context(context);
        ep.bind_cq(&cq, CqBind::TRANSMIT | CqBind::RECV).unwrap()
    };
    let initiating = builder(2).connect(pep.name()).into_future();
    let accepting = async { builder(3).accept(pep.accept().await.unwrap(), "").unwrap() };
    let (client, server) = tokio::join!(initiating, accepting);
    let client = client.unwrap();
    assert_eq!(
        [pep.context(), client.context(), server.context()],
        [1, 2, 3]
    );
    let (id, context, kind) = next_of(&mut eq).await;
    assert!(
        matches!(kind, EventKind::ConnectionRequest { .. }),
        "{kind:?}"
    );
    assert_eq!((id, context), (pep.id(), 1));
    let mut connected = Vec::new();
    for _ in 0..2 {
        let (id, context, kind) = next_of(&mut eq).await;
        assert!(matches!(kind, EventKind::Connected { .. }), "{kind:?}");
        connected.push((id, context));
    }
    connected.sort_unstable_by_key(|(_, context)| *context);
    assert_eq!(connected, [(client.id(), 2), (server.id(), 3)]);
    client.close().unwrap();
    let (id, context, kind) = next_of(&mut eq).await;
    assert!(matches!(kind, EventKind::Shutdown { .. }), "{kind:?}");
    assert_eq!((id, context), (server.id(), 3));
    // The endpoint of a failed connect has no handle, but a context.
    let initiating = builder(4).connect(pep.name()).into_future();
    let rejecting = async { pep.accept().await.unwrap().reject("no").unwrap() };
    let (refused, ()) = tokio::join!(initiating, rejecting);
    refused.map(drop).unwrap_err();
    assert_eq!(next_of(&mut eq).await.1, 1);
    let (_, context, kind) = next_of(&mut eq).await;
    assert!(matches!(kind, EventKind::ConnectFailed { .. }), "{kind:?}");
    assert_eq!(context, 4);
}

/// Endpoints that one call opens, with their own queues.
pub(crate) async fn contexts_of_one_call_endpoints_come_with_events(setup: Setup) {
    let options = |context| {
        let options = Endpoint::options().context(context);
        let options = options.wait_policy(setup.wait_policy);
        options.progress(setup.progress).socket_io(setup.socket_io)
    };
    let mut pep = options(1).listen(&setup.unnamed_address()).await.unwrap();
    let name = pep.name().clone();
    let accepting = async { pep.accept().await.unwrap().context(3).accept("").unwrap() };
    let (client, server) = tokio::join!(options(2).connect(&name), accepting);
    let client = client.unwrap();
    let check = async |ep: &ConnectedEndpoint, expected: u64| {
        let mut events = ep.take_events().unwrap();
        let (id, context, kind) = next_of(&mut events).await;
        assert!(matches!(kind, EventKind::Connected { .. }), "{kind:?}");
        assert_eq!((id, context, ep.context()), (ep.id(), expected, expected));
    };
    check(&client, 2).await;
    check(&server, 3).await;
    assert_eq!(pep.context(), 1);
}

/// Discarded messages are an event of the shared receive context, the end of their sender is one of
/// the endpoint.
pub(crate) async fn shared_receive_context_reports_its_context(setup: Setup) {
    let info = setup.shared_rx_info();
    let fabric = Fabric::open(&info).unwrap();
    let domain = setup.open_domain(&fabric, &info);
    let mut eq = fabric.event_queue(64).unwrap();
    domain.bind_eq(&eq).unwrap();
    let cq = domain.completion_queue(64).unwrap();
    let av = domain.auto_insert_address_vector().unwrap();
    let shared = domain.shared_rx_context(&info).unwrap().context(9);
    let shared = shared.bind_av(&av).unwrap();
    let shared = shared.bind_cq(&cq, CqBind::RECV).unwrap().open().unwrap();
    assert_eq!(shared.context(), 9);
    let ep = domain.endpoint(&info).unwrap().bind_av(&av).unwrap();
    let ep = ep.bind_shared_rx(&shared).unwrap().context(10);
    let ep = ep.enable().unwrap();
    let sender = setup.open_endpoint().await;
    let to_ep = sender.ep.add_peer(ep.name()).await.unwrap();
    sender.ep.send(to_ep, "not taken").await.unwrap();
    while shared.stats().unexpected == 0 {
        domain.progress();
        let_other_tasks_run().await;
    }
    assert!(ep.disconnect(sender.ep.name()).unwrap());
    let (mut discarded, mut down) = (None, None);
    while discarded.is_none() || down.is_none() {
        let (id, context, kind) = next_of(&mut eq).await;
        match kind {
            EventKind::MessagesDiscarded { .. } => discarded = Some((id, context)),
            EventKind::PeerDown { .. } => down = Some((id, context)),
            _ => assert_eq!((id, context), (ep.id(), 10)),
        }
    }
    assert_eq!(discarded, Some((shared.id(), 9)));
    assert_eq!(down, Some((ep.id(), 10)));
}

/// A runtime that is shut down on drop without waiting for its tasks, also inside another runtime.
struct DriverRuntime(Option<Runtime>);

impl DriverRuntime {
    fn new() -> Self {
        Self(Builder::new_current_thread().enable_all().build().ok())
    }

    /// Opens a domain, with a driver on this runtime.
    fn open_domain(&self, setup: &Setup, fabric: &Fabric, info: &Info) -> Domain {
        let _entered = self.0.as_ref().map(Runtime::enter);
        let builder = fabric.domain_builder(info).context(6);
        builder.wait_policy(setup.wait_policy).open().unwrap()
    }
}

impl Drop for DriverRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// The runtime of a domain's driver ends: the domain reports that with its own context, and still
/// moves messages while the program polls it.
pub(crate) async fn end_of_the_driver_is_an_event_of_the_domain(setup: Setup) {
    let setup = setup.manual();
    let (fabric, info) = setup.fabric().await;
    let runtime = DriverRuntime::new();
    let domain = runtime.open_domain(&setup, &fabric, &info);
    let mut eq = fabric.event_queue(8).unwrap();
    domain.bind_eq(&eq).unwrap();
    let av = domain.address_vector().unwrap();
    let ep = domain.endpoint(&info).unwrap().context(5);
    let ep = ep.bind_av(&av).unwrap().enable().unwrap();
    assert_eq!(eq.try_read(), None);
    drop(runtime);
    let event = eq.try_read().expect("the drop ends the driver");
    assert_eq!((event.object_id, event.context), (domain.id(), 6));
    assert_eq!(event.kind, EventKind::DriverEnded);
    let me = av.insert(ep.name()).unwrap();
    let (sent, got) = tokio::join!(ep.send(me, "polled"), ep.recv());
    sent.unwrap();
    assert_eq!(&got.unwrap()[..], b"polled");
}

/// Closing a domain, or dropping its last handle, removes its events from the queue.
pub(crate) async fn closed_domain_leaves_no_events(setup: Setup) {
    let setup = setup.manual();
    let (fabric, info) = setup.fabric().await;
    let mut eq = fabric.event_queue(8).unwrap();
    for is_dropped in [false, true] {
        let runtime = DriverRuntime::new();
        let domain = runtime.open_domain(&setup, &fabric, &info);
        domain.bind_eq(&eq).unwrap();
        drop(runtime);
        let event = eq.peek().await;
        assert_eq!((event.object_id, event.context), (domain.id(), 6));
        if is_dropped {
            drop(domain);
        } else {
            domain.close().unwrap();
        }
        assert_eq!(eq.try_read(), None);
    }
    eq.close().unwrap();
}

pub(crate) async fn endpoint_can_bind_its_own_event_queue(setup: Setup) {
    let (a, mut b) = (setup.open_endpoint().await, setup.open_endpoint().await);
    let mut endpoint_eq = b.fabric.event_queue(8).unwrap();
    assert_eq!(b.ep.context(), ENDPOINT_CONTEXT);
    let ep = b
        .domain
        .endpoint(&b.info)
        .unwrap()
        .bind_av(&b.av)
        .unwrap()
        .bind_eq(&endpoint_eq)
        .unwrap();
    let ep = ep.context(5).enable().unwrap();
    a.ep.add_peer(ep.name()).await.unwrap();
    let event = tokio::select! {
        event = endpoint_eq.read() => event,
        other = b.eq.read() => panic!("the domain's queue gets {other:?}"),
    };
    assert_eq!((event.object_id, event.context), (ep.id(), 5));
    assert!(matches!(event.kind, EventKind::PeerConnected { peer, .. } if peer == *a.ep.name()));
    assert_eq!(b.eq.try_read(), None, "the domain's queue gets no event");
    a.add_peer(&b).await;
    assert_eq!(next_event(&mut b).await.object_id, b.ep.id());
    assert_eq!(endpoint_eq.try_read(), None);
}

pub(crate) async fn failure_of_dropped_send_is_an_event(setup: Setup) {
    let (mut a, b, to_b) = endpoint_pair_with(
        &setup,
        EndpointConfig {
            tx_size: Some(16),
            ..EndpointConfig::default()
        },
        EndpointConfig::default(),
    )
    .await;
    // The connection is established before the send is dropped.
    a.ep.send(to_b, "first").await.unwrap();
    assert_eq!(&b.ep.recv().await.unwrap()[..], b"first");
    // More bytes than the peer and the transport buffer, so that part of the message is unsent when
    // the peer closes.
    drop(a.ep.send(to_b, vec![0; 96 << 20]).start().unwrap());
    let name = b.ep.name().clone();
    b.ep.close().unwrap();
    loop {
        let event = next_event(&mut a).await;
        if let EventKind::OperationFailed { peer, error } = event.kind {
            assert_eq!(
                (event.object_id, event.context),
                (a.ep.id(), ENDPOINT_CONTEXT)
            );
            assert_eq!((peer, error), (Some(to_b), Error::PeerGone(name)));
            return;
        }
    }
}

pub(crate) async fn event_queue_overrun_is_counted(setup: Setup) {
    let mut r = setup
        .open_endpoint_with(EndpointConfig {
            eq_capacity: 2,
            ..EndpointConfig::default()
        })
        .await;
    let mut peers = Vec::new();
    for _ in 0..5 {
        let peer = setup.open_endpoint().await;
        let to_r = peer.add_peer(&r).await;
        peer.ep.send(to_r, "hello").await.unwrap();
        r.ep.recv().await.unwrap();
        peers.push(peer);
    }
    for peer in &peers[..2] {
        assert!(is_peer_connected(next_event(&mut r).await, peer));
    }
    let event = next_event(&mut r).await;
    assert_eq!(
        (event.object_id, event.context, event.kind),
        (r.eq.id(), EQ_CONTEXT, EventKind::Overrun { lost: 3 })
    );
    assert_eq!(r.eq.try_read(), None);
    let late = setup.open_endpoint().await;
    late.add_peer(&r).await;
    assert!(is_peer_connected(next_event(&mut r).await, &late));
}

pub(crate) async fn peer_close_fails_sends_and_directed_receives(setup: Setup) {
    let (mut a, b, to_b) = endpoint_pair(&setup).await;
    let to_a = b.add_peer(&a).await;
    b.ep.send(to_a, "hello").await.unwrap();
    a.ep.recv().await.unwrap();
    let directed = a.ep.recv_into(vec![1, 2]).from(to_b).start().unwrap();
    let mut any = a.ep.recv().start().unwrap();
    let name = b.ep.name().clone();
    drop(b);
    let failed = directed.await.unwrap_err();
    assert_eq!(failed.error, Error::PeerGone(name.clone()));
    loop {
        if let EventKind::PeerDown {
            peer,
            source,
            reason,
        } = next_event(&mut a).await.kind
        {
            assert_eq!(
                (peer, source, reason),
                (name.clone(), Some(to_b), DownReason::Closed)
            );
            break;
        }
    }
    assert!(
        poll_once(&mut any).await.is_pending(),
        "an any-source receive waits for other peers"
    );
    for len in [8, 100_000] {
        let failed = a.ep.send(to_b, vec![0; len]).await.unwrap_err();
        assert_peer_unavailable(&failed.error, &name);
        assert_eq!(failed.buf.len(), len);
    }
    // The peer's handle stays valid until it is removed.
    assert_eq!(a.av.lookup(to_b), Ok(name));
    let c = setup.open_endpoint().await;
    let to_a = c.add_peer(&a).await;
    c.ep.send(to_a, "from another").await.unwrap();
    assert_eq!(&any.await.unwrap()[..], b"from another");
}

/// A message whose send has completed is received also after the sender has closed.
pub(crate) async fn messages_sent_before_close_arrive(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let progress_task = b.spawn_progress();
    for number in 0..100_u32 {
        a.ep.send(to_b, number.to_le_bytes().to_vec())
            .await
            .unwrap();
    }
    a.ep.send(to_b, vec![5; 50_000]).await.unwrap();
    drop(a);
    let_other_tasks_run().await;
    progress_task.abort();
    for number in 0..100_u32 {
        assert_eq!(&b.ep.recv().await.unwrap()[..], number.to_le_bytes());
    }
    assert_eq!(&b.ep.recv().await.unwrap()[..], [5; 50_000]);
}

/// The handle of an auto-inserted peer stays valid until its last message is received, so that the
/// source of each message is known and directed receives match.
pub(crate) async fn source_stays_valid_until_last_message_is_consumed(setup: Setup) {
    let (a, mut b, to_b) = endpoint_pair(&setup).await;
    for tag in [1, 2, 3, 2] {
        a.ep.send(to_b, vec![tag as u8; 10]).tag(tag).await.unwrap();
    }
    let first = b.ep.recv().tag(1).await.unwrap();
    let auto_addr = first.source().unwrap();
    let name = a.ep.name().clone();
    drop(a);
    while !matches!(next_event(&mut b).await.kind, EventKind::PeerDown { .. }) {}
    let_other_tasks_run().await;
    assert_eq!(b.av.lookup(auto_addr).as_ref(), Ok(&name));
    let second = b.ep.recv().tag(2).from(auto_addr).await.unwrap();
    assert_eq!(
        (&second[..], second.source()),
        (&[2; 10][..], Ok(auto_addr))
    );
    let failed = b.ep.recv().tag(4).from(auto_addr).await.unwrap_err();
    assert_eq!(
        failed.error,
        Error::PeerGone(name),
        "no further message can arrive"
    );
    assert_eq!(b.ep.recv().tag(2).await.unwrap().source(), Ok(auto_addr));
    // A dropped receive requeues its message, and the handle stays valid.
    let taken = b.ep.recv().tag(3).start().unwrap();
    let_other_tasks_run().await;
    drop(taken);
    assert_eq!(
        b.ep.recv().tag(3).from(auto_addr).await.unwrap().source(),
        Ok(auto_addr)
    );
    assert_eq!(
        b.av.lookup(auto_addr),
        Err(Error::StaleAddress(auto_addr)),
        "the last message was received"
    );
    let failed = b.ep.recv().from(auto_addr).await.unwrap_err();
    assert_eq!(failed.error, Error::StaleAddress(auto_addr));
}

/// An auto-inserted handle identifies one endpoint: an endpoint that opens under the same name
/// later gets another handle, while messages of the first keep the old one.
pub(crate) async fn reopened_peer_gets_a_new_handle(setup: Setup) {
    let (mut b, host) = (setup.open_endpoint().await, setup.open_endpoint().await);
    let name: Address = setup.unique_address("reopened").parse().unwrap();
    let b_name = b.ep.name().clone();
    let open = async || {
        let builder = host
            .domain
            .endpoint(&host.info)
            .unwrap()
            .name(&name)
            .unwrap();
        let ep = builder.bind_av(&host.av).unwrap().enable().unwrap();
        let to_b = ep.add_peer(&b_name).await.unwrap();
        (ep, to_b)
    };
    let (first, to_b) = open().await;
    for tag in 1..=4 {
        first.send(to_b, "of the first").tag(tag).await.unwrap();
    }
    let old = b.ep.recv().tag(1).await.unwrap().source().unwrap();
    assert_eq!(b.av.lookup(old).as_ref(), Ok(&name));
    first.close().unwrap();
    while !matches!(next_event(&mut b).await.kind, EventKind::PeerDown { .. }) {}
    let (second, to_b) = open().await;
    let new = loop {
        if let EventKind::PeerConnected { source, .. } = next_event(&mut b).await.kind {
            break source.expect("a handle");
        }
    };
    assert_ne!(old, new);
    second.send(to_b, "of the second").tag(4).await.unwrap();
    assert_eq!(
        b.av.lookup(old).as_ref(),
        Ok(&name),
        "messages of the first are unexpected"
    );
    let failed = b.ep.send(old, "too late").await.unwrap_err();
    assert_eq!(failed.error, Error::PeerGone(name.clone()));
    let sent = b.ep.send(new, "in time").await;
    assert!(sent.is_ok(), "{sent:?}");
    assert_eq!(&second.recv().await.unwrap()[..], b"in time");
    // A requeued message still has the first endpoint as its source.
    drop(b.ep.recv().tag(2).start().unwrap());
    for (tag, from) in [(3, old), (2, old), (4, old), (4, new)] {
        let got = b.ep.recv().tag(tag).await.unwrap();
        assert_eq!(got.source(), Ok(from), "message {tag}");
        let text = if from == old {
            "of the first"
        } else {
            "of the second"
        };
        assert_eq!(&got[..], text.as_bytes());
    }
    while b.av.lookup(old).is_ok() {
        b.domain.progress();
        tokio::task::yield_now().await;
    }
    let failed = b.ep.send(old, "to a stale handle").await.unwrap_err();
    assert_eq!(failed.error, Error::StaleAddress(old));
    assert_eq!(b.av.lookup(new).as_ref(), Ok(&name));
    second.close().unwrap();
    while b.av.lookup(new).is_ok() {
        b.domain.progress();
        tokio::task::yield_now().await;
    }
}

/// A receive that is directed at a closed endpoint takes no message of its successor.
pub(crate) async fn directed_receives_do_not_match_a_successor(setup: Setup) {
    let (mut b, host) = (setup.open_endpoint().await, setup.open_endpoint().await);
    let name: Address = setup.unique_address("reopened").parse().unwrap();
    let b_name = b.ep.name().clone();
    let open = async || {
        let builder = host
            .domain
            .endpoint(&host.info)
            .unwrap()
            .name(&name)
            .unwrap();
        let ep = builder.bind_av(&host.av).unwrap().enable().unwrap();
        let to_b = ep.add_peer(&b_name).await.unwrap();
        (ep, to_b)
    };
    let (first, to_b) = open().await;
    first.send(to_b, "asks").tag(1).await.unwrap();
    first.send(to_b, "kept").tag(2).await.unwrap();
    let old = b.ep.recv().tag(1).await.unwrap().source().unwrap();
    let directed = b.ep.recv().tag(3).from(old).start().unwrap();
    first.close().unwrap();
    let (second, to_b) = open().await;
    second.send(to_b, "of the second").tag(3).await.unwrap();
    let error = directed.await.unwrap_err().error;
    assert!(error.is_peer_unavailable(), "{error}");
    while !matches!(next_event(&mut b).await.kind, EventKind::PeerDown { .. }) {}
    let failed = b.ep.recv().tag(3).from(old).await.unwrap_err();
    assert_eq!(failed.error, Error::PeerGone(name));
    let got = b.ep.recv().tag(3).await.unwrap();
    assert_eq!(&got[..], b"of the second");
    assert_ne!(got.source(), Ok(old));
    let got = b.ep.recv().tag(2).from(old).await.unwrap();
    assert_eq!((&got[..], got.source()), (&b"kept"[..], Ok(old)));
}

/// An endpoint that connects again is the same peer, and keeps its handle.
pub(crate) async fn reconnecting_peer_keeps_its_handle(setup: Setup) {
    let (b, a) = (setup.open_endpoint().await, setup.open_endpoint().await);
    let to_b = a.ep.add_peer(b.ep.name()).await.unwrap();
    a.ep.send(to_b, "one").tag(1).await.unwrap();
    a.ep.send(to_b, "two").tag(2).await.unwrap();
    let auto_addr = b.ep.recv().tag(1).await.unwrap().source().unwrap();
    a.av.remove(to_b).unwrap();
    let_other_tasks_run().await;
    let to_b = a.ep.add_peer(b.ep.name()).await.unwrap();
    a.ep.send(to_b, "three").tag(3).await.unwrap();
    for tag in [3, 2] {
        let got = b.ep.recv().tag(tag).await.unwrap();
        assert_eq!(got.source(), Ok(auto_addr), "message {tag}");
    }
    b.ep.send(auto_addr, "back").await.unwrap();
    assert_eq!(&a.ep.recv().await.unwrap()[..], b"back");
}

/// Sends to an endpoint that is known to have closed fail at once.
pub(crate) async fn sends_to_a_closed_peer_fail_at_once(setup: Setup) {
    let (mut a, b, to_b) = endpoint_pair(&setup).await;
    for len in [8, 100_000] {
        let (sent, got) = tokio::join!(a.ep.send(to_b, vec![0; len]), b.ep.recv());
        sent.unwrap();
        got.unwrap();
    }
    let name = b.ep.name().clone();
    b.ep.close().unwrap();
    if !setup.shares_memory() {
        while !matches!(next_event(&mut a).await.kind, EventKind::PeerDown { .. }) {}
    }
    for len in [8, 8, 100_000] {
        let failed = a.ep.send(to_b, vec![0; len]).await.unwrap_err();
        assert_peer_unavailable(&failed.error, &name);
    }
}

/// The close of the first endpoint under a name does not end connections to the second.
pub(crate) async fn reused_endpoint_name_is_a_new_peer(setup: Setup) {
    let (b, host) = (setup.open_endpoint().await, setup.open_endpoint().await);
    let name: Address = setup.unique_address("again").parse().unwrap();
    let open = async || {
        let builder = host
            .domain
            .endpoint(&host.info)
            .unwrap()
            .name(&name)
            .unwrap();
        builder.bind_av(&host.av).unwrap().enable().unwrap()
    };
    for round in 0..20 {
        let ep = open().await;
        let to_b = ep.add_peer(b.ep.name()).await.unwrap();
        ep.send(to_b, "here").await.unwrap();
        b.ep.recv().await.unwrap();
        // The peer has not processed the disconnect of the previous endpoint yet.
        let to_ep = b.ep.add_peer(&name).await.unwrap();
        let (sent, got) = tokio::join!(b.ep.send(to_ep, "there"), ep.recv());
        assert!(sent.is_ok() && got.is_ok(), "round {round}");
        ep.close().unwrap();
    }
}

/// A receiver may close as soon as it has received a message: the acknowledgement still reaches the
/// sender.
pub(crate) async fn send_succeeds_when_receiver_closes_after_receiving(setup: Setup) {
    let b = setup.open_endpoint().await;
    for round in 0..40 {
        let a = setup.open_endpoint().await;
        let to_a = b.ep.add_peer(a.ep.name()).await.unwrap();
        let receiver = async move {
            a.ep.recv().await.unwrap();
            a.ep.close().unwrap();
        };
        let receiver = tokio::spawn(receiver);
        assert_eq!(
            b.ep.send(to_a, "goodbye")
                .await
                .map(drop)
                .map_err(|failed| failed.error),
            Ok(()),
            "round {round}"
        );
        receiver.await.unwrap();
        b.ep.address_vector().remove(to_a).unwrap();
    }
}

/// A peer that sends more than the budget for unexpected messages is reported once, and counted as
/// long as its messages wait.
pub(crate) async fn peer_over_budget_is_reported(setup: Setup) {
    const LEN: usize = 1 << 20;
    let setup = setup.single_copy_threshold(usize::MAX);
    let (a, mut b, to_b) = endpoint_pair(&setup).await;
    let mut reported = Vec::new();
    for _ in 0..2 {
        let sends = (0..12).map(|_| a.ep.send(to_b, vec![7; LEN]).tag(9).start().unwrap());
        let sending = join_all(sends.collect::<Vec<_>>());
        let receiving = async {
            while b.ep.stats().held_connections == 0 {
                b.domain.progress();
                let_other_tasks_run().await;
            }
            assert_eq!(b.ep.stats().held_connections, 1);
            for _ in 0..12 {
                assert_eq!(b.ep.recv().tag(9).await.unwrap()[..], [7; LEN]);
            }
            assert_eq!(b.ep.stats().held_connections, 0);
        };
        let (sent, ()) = tokio::join!(sending, receiving);
        sent.into_iter().for_each(|sent| drop(sent.unwrap()));
        reported.extend(std::iter::from_fn(|| b.eq.try_read()).filter_map(peer_over_budget));
    }
    // Once in each round, because all messages of the first one were received.
    assert_eq!(reported.len(), 2, "{reported:?}");
    for (peer, len, buffered) in reported {
        assert_eq!((&peer, len), (a.ep.name(), LEN));
        // A peer alone may use seven sixteenths of the budget of 16 MiB.
        assert!((6 << 20..=7 << 20).contains(&buffered), "{buffered}");
    }
}

/// Returns the name of the peer that the event reports, the length of its message, and what it uses
/// of the budget.
fn peer_over_budget(event: Event) -> Option<(Address, usize, usize)> {
    match event.kind {
        EventKind::PeerOverBudget {
            peer,
            len,
            buffered,
            ..
        } => Some((peer, len, buffered)),
        _ => None,
    }
}

/// Returns the reason why the endpoint of this name is down, from the next such event.
async fn next_down_reason(fixture: &mut EndpointFixture, name: &Address) -> DownReason {
    loop {
        if let EventKind::PeerDown { peer, reason, .. } = next_event(fixture).await.kind {
            assert_eq!(peer, *name);
            return reason;
        }
    }
}

/// A program ends the connections with a peer, in both directions: what the peer has sent is
/// discarded, a directed receive fails, and the peer sees closed connections and can connect again.
pub(crate) async fn disconnect_discards_the_messages_of_a_peer(setup: Setup) {
    let (mut a, mut b, to_b) = endpoint_pair(&setup).await;
    let name = a.ep.name().clone();
    for number in 0..3u64 {
        a.ep.send(to_b, number.to_le_bytes().to_vec())
            .tag(9)
            .await
            .unwrap();
    }
    a.ep.send(to_b, "hello").await.unwrap();
    // The messages before this one are whole.
    let source = b.ep.recv().await.unwrap().source().unwrap();
    assert_eq!(b.ep.stats().unexpected, 3);
    b.ep.send(source, "back").await.unwrap();
    a.ep.recv().await.unwrap();
    let directed = b.ep.recv().from(source).start().unwrap();
    let from_any = b.ep.recv().start().unwrap();
    assert!(b.ep.disconnect(&name).unwrap());
    assert!(!b.ep.disconnect(&name).unwrap());
    let stats = b.ep.stats();
    assert_eq!((stats.unexpected, stats.unexpected_bytes), (0, 0));
    assert_eq!((stats.discarded, stats.peers), (3, 0));
    assert!(directed.await.unwrap_err().error.is_peer_unavailable());
    let local = next_down_reason(&mut b, &name).await;
    assert_eq!(local, DownReason::Disconnected);
    let remote = next_down_reason(&mut a, b.ep.name()).await;
    assert_eq!(remote, DownReason::Closed);
    // Over shm, sends fail until the sending end has noticed the end.
    let sending = async {
        loop {
            let _ = a.ep.send(to_b, "again").await;
            let_other_tasks_run().await;
        }
    };
    let got = tokio::select! {
        got = from_any => got.unwrap(),
        () = sending => unreachable!("the sends go on"),
    };
    assert_eq!(&got[..], b"again");
}
