//! Handles keep objects open, and operations do not: pending operations are canceled when the last
//! handle of their endpoint is dropped.

use std::future::IntoFuture;

use bytes::BytesMut;
use fabric_async::atomic::AtomicOp;
use fabric_async::{Access, Address, CompletionQueue, Endpoint, Error, OpKind};
use futures_util::StreamExt;

use crate::connected_pair;
use crate::endpoint_fixture::{
    EndpointConfig, EndpointFixture, endpoint_pair, endpoint_pair_with, flush,
};
use crate::payload::{numbered_message, pattern, poll_once};
use crate::setup::Setup;
use crate::shared_rx_fixture::SharedRxFixture;

/// Splits a fixture into its endpoint, its completion queue, and the handles that keep all other
/// objects open.
fn without_endpoint(fixture: EndpointFixture) -> (Endpoint, CompletionQueue, impl Sized) {
    let EndpointFixture {
        ep,
        cq,
        av,
        send_counter: sends,
        recv_counter: recvs,
        domain,
        eq,
        fabric,
        info,
    } = fixture;
    (ep, cq, (av, sends, recvs, domain, eq, fabric, info))
}

pub(crate) async fn receives_end_with_the_last_handle(setup: Setup) {
    let (ep, mut cq, _rest) = without_endpoint(setup.open_endpoint().await);
    let clone = ep.clone();
    let mut polled = ep.recv().start().unwrap();
    assert!(poll_once(&mut polled).await.is_pending());
    let spawned = tokio::spawn(ep.recv_into(vec![1, 2, 3]).start().unwrap());
    let unpolled = ep.recv_into(Vec::with_capacity(40)).start().unwrap();
    ep.recv_into(vec![0; 8]).context(5).post().unwrap();
    drop(ep);
    assert!(
        poll_once(&mut polled).await.is_pending(),
        "a clone keeps the endpoint open"
    );
    drop(clone);
    assert_eq!(polled.await.unwrap_err().error, Error::Canceled);
    let failed = spawned.await.unwrap().unwrap_err();
    assert_eq!((failed.error, failed.buf.capacity()), (Error::Canceled, 3));
    let failed = unpolled.await.unwrap_err();
    assert_eq!((failed.error, failed.buf.capacity()), (Error::Canceled, 40));
    let posted = cq.next().await.unwrap();
    assert_eq!(
        (posted.context, posted.error.as_deref()),
        (5, Some(&Error::Canceled))
    );
}

pub(crate) async fn claimed_messages_end_with_the_last_handle(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for _ in 0..4 {
        a.ep.send(to_b, "kept").await.unwrap();
    }
    let mut claims = Vec::new();
    for _ in 0..4 {
        claims.push(b.ep.probe().claim().await.unwrap());
    }
    let request = claims.pop().unwrap().recv_into(Vec::with_capacity(9));
    let (ep, _cq, _rest) = without_endpoint(b);
    drop(ep);
    let failed = request.await.unwrap_err();
    assert!(matches!(failed.error, Error::Closed(_)), "{}", failed.error);
    assert_eq!(failed.buf.capacity(), 9);
    claims.pop().unwrap().discard();
    drop(claims.pop());
    let failed = claims.pop().unwrap().recv().start().unwrap_err();
    assert!(matches!(failed.error, Error::Closed(_)), "{}", failed.error);
}

pub(crate) async fn waiting_futures_end_when_the_endpoint_closes(setup: Setup) {
    let few = EndpointConfig {
        tx_size: Some(8),
        ..EndpointConfig::default()
    };
    let (a, _b, to_b) = endpoint_pair_with(&setup, few, EndpointConfig::default()).await;
    let mut permits = Vec::new();
    let mut reserving = loop {
        let mut next = a.ep.reserve(to_b);
        match poll_once(&mut next).await {
            std::task::Poll::Ready(permit) => permits.push(permit.unwrap()),
            std::task::Poll::Pending => break next,
        }
    };
    assert!(poll_once(&mut reserving).await.is_pending());
    // The send is too long to complete at once, and waits for a credit.
    let mut send = a.ep.send(to_b, pattern(1_000_000, 1)).into_future();
    assert!(poll_once(&mut send).await.is_pending());
    let mut probe = a.ep.probe().into_future();
    assert!(poll_once(&mut probe).await.is_pending());
    let mut claim = a.ep.probe().claim().into_future();
    assert!(poll_once(&mut claim).await.is_pending());
    let late = a.ep.recv_into(vec![0; 3]).into_future();
    a.ep.clone().close().unwrap();
    assert_eq!(reserving.await.map(drop), Err(Error::Canceled));
    let failed = send.await.unwrap_err();
    assert_eq!(
        (failed.error, failed.buf.len()),
        (Error::Canceled, 1_000_000)
    );
    assert_eq!(probe.await, Err(Error::Canceled));
    assert_eq!(claim.await.map(drop), Err(Error::Canceled));
    let failed = late.await.unwrap_err();
    assert!(matches!(failed.error, Error::Closed(_)), "not posted yet");
    assert_eq!(failed.buf, [0; 3]);
    // A permit of a closed endpoint sends nothing.
    let permit = permits.pop().unwrap();
    let failed = permit.send(&a.ep, "not sent").await.unwrap_err();
    assert!(matches!(failed.error, Error::Closed(_)), "{}", failed.error);
}

pub(crate) async fn unreceived_sends_end_with_the_last_handle(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let delivered =
        a.ep.send(to_b, vec![1; 10])
            .delivery_complete()
            .start()
            .unwrap();
    let matched =
        a.ep.send(to_b, vec![2; 9000])
            .match_complete()
            .start()
            .unwrap();
    flush(&a, &b, to_b).await;
    let (ep, _cq, _rest) = without_endpoint(a);
    drop(ep);
    for (send, len) in [(delivered, 10), (matched, 9000)] {
        let failed = send.await.unwrap_err();
        assert_eq!((failed.error, failed.buf.len()), (Error::Canceled, len));
    }
}

pub(crate) async fn streams_end_with_the_last_handle(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let buf = || BytesMut::with_capacity(1000);
    let mut messages = b.ep.recv_multi(buf()).tag(1).start().unwrap();
    let posted = b.ep.recv_multi(buf()).context(2).post().unwrap();
    a.ep.send(to_b, numbered_message(1, 10))
        .tag(1)
        .await
        .unwrap();
    flush(&a, &b, to_b).await;
    let (ep, mut cq, _rest) = without_endpoint(b);
    drop(ep);
    let first = messages.next().await.unwrap().unwrap();
    assert_eq!(
        &first.buf[..],
        numbered_message(1, 10),
        "the messages that had arrived are delivered"
    );
    assert_eq!(
        messages.next().await.unwrap().unwrap_err().error,
        Error::Canceled
    );
    assert!(messages.next().await.is_none());
    assert_eq!(messages.into_rest().capacity(), 990);
    let released = cq.next().await.unwrap();
    assert_eq!(
        (released.kind, released.error.as_deref()),
        (OpKind::MultiRecvRelease, Some(&Error::Canceled))
    );
    posted.cancel();
}

pub(crate) async fn one_sided_operations_end_with_the_last_handle(setup: Setup) {
    const LEN: usize = 1 << 20;
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
    // The owner, whose progress would serve the registered buffer, makes no progress.
    let region = b
        .domain
        .register(vec![0u8; LEN], rights, None)
        .map_err(|failed| failed.error)
        .unwrap();
    let remote = region.remote();
    let (ep, _cq, _rest) = without_endpoint(a);
    let mut writes = Vec::new();
    for _ in 0..4 {
        writes.push(ep.write(to_b, remote.at(0), vec![1; LEN]).start().unwrap());
    }
    let read = ep
        .read_into(to_b, remote.slice(..), Vec::with_capacity(LEN))
        .start()
        .unwrap();
    let atomic = ep
        .atomic(to_b, remote.at(0), AtomicOp::Sum, 1u64)
        .start()
        .unwrap();
    let fetch = ep.fetch_add(to_b, remote.at(0), 1u64).start().unwrap();
    drop(ep);
    // Some writes may have completed before; none stays pending.
    for write in writes {
        if let Err(failed) = write.await {
            assert_eq!((failed.error, failed.buf.len()), (Error::Canceled, LEN));
        }
    }
    if let Err(failed) = read.await {
        assert_eq!(
            (failed.error, failed.buf.capacity()),
            (Error::Canceled, LEN)
        );
    }
    for ended in [atomic.await, fetch.await.map(drop)] {
        assert!(matches!(ended, Ok(()) | Err(Error::Canceled)), "{ended:?}");
    }
}

pub(crate) async fn operation_does_not_keep_objects_open(setup: Setup) {
    let fixture = setup.open_endpoint().await;
    // Another test may get a free port of 127.0.0.1 while the name is free.
    let name: Address = setup.unique_address("handles").parse().unwrap();
    let builder = fixture.domain.endpoint(&fixture.info).unwrap();
    let builder = builder.name(&name).unwrap().bind_av(&fixture.av).unwrap();
    let named = builder.enable().unwrap();
    let receive = named.recv().start().unwrap();
    let ended = named.recv().start().unwrap();
    let fabric = fixture.fabric.clone();
    drop((named, fixture));
    assert_eq!(ended.await.unwrap_err().error, Error::Canceled);
    assert_eq!(fabric.children().total(), 0, "{}", fabric.children());
    fabric.close().unwrap();
    // The endpoint's name is free again.
    let other = setup.open_endpoint().await;
    let builder = other.domain.endpoint(&other.info).unwrap();
    let again = builder.name(&name).unwrap().bind_av(&other.av).unwrap();
    again.enable().unwrap();
    assert_eq!(receive.await.unwrap_err().error, Error::Canceled);
}

pub(crate) async fn shared_receives_end_with_the_last_handle(setup: Setup) {
    let fixture = SharedRxFixture::open(&setup, 1, EndpointConfig::default()).await;
    let SharedRxFixture {
        mut endpoints,
        shared_rx,
        cq,
        av,
        domain,
        ..
    } = fixture;
    let mut receive = shared_rx.recv().start().unwrap();
    drop(shared_rx);
    assert!(
        poll_once(&mut receive).await.is_pending(),
        "an endpoint that shares the context keeps it open"
    );
    drop(endpoints.pop());
    assert_eq!(receive.await.unwrap_err().error, Error::Canceled);
    drop((cq, av));
    assert_eq!(domain.children().of(fabric_async::Class::Endpoint), 0);
    assert_eq!(domain.children().of(fabric_async::Class::SharedReceive), 0);
}

pub(crate) async fn connected_operations_end_with_the_last_handle(setup: Setup) {
    let (client, server) = connected_pair::connected_pair(&setup).await;
    let mut receive = client.ep.recv().start().unwrap();
    assert!(poll_once(&mut receive).await.is_pending());
    let sends: Vec<_> = (0..8)
        .map(|_| client.ep.send(pattern(1 << 20, 1)).start().unwrap())
        .collect();
    let client_domain = client.domain_fixture;
    drop(client.ep);
    assert_eq!(receive.await.unwrap_err().error, Error::Canceled);
    for send in sends {
        if let Err(failed) = send.await {
            assert_eq!((failed.error, failed.buf.len()), (Error::Canceled, 1 << 20));
        }
    }
    drop((client_domain, server));
}

pub(crate) async fn multicast_group_does_not_keep_its_endpoint_open(setup: Setup) {
    let fixture = setup.open_endpoint().await;
    let group = fixture
        .ep
        .join_multicast(crate::multicast::unique_group(&setup))
        .unwrap();
    let (ep, _cq, _rest) = without_endpoint(fixture);
    let receive = ep.recv().start().unwrap();
    drop(ep);
    assert_eq!(receive.await.unwrap_err().error, Error::Canceled);
    drop(group);
}
