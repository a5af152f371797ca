//! Buffers of local operations in domains that require `FI_MR_LOCAL`, and in others.

use std::fmt::Debug;

use bytes::BytesMut;
use fabric_async::buf::{Gather, LocalBuffer, Scatter};
use fabric_async::info::MrMode;
use fabric_async::{Access, Class, Error, Failed, OpKind};

use crate::endpoint_fixture::{EndpointFixture, endpoint_pair, flush};
use crate::setup::Setup;

const LOCAL: Access = Access::SEND
    .union(Access::RECV)
    .union(Access::READ)
    .union(Access::WRITE);
const REMOTE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

fn register(of: &EndpointFixture, bytes: &[u8], access: Access) -> LocalBuffer<Vec<u8>> {
    of.domain.register_local(bytes.to_vec(), access).unwrap()
}

fn assert_refused<T: Debug, B: Debug>(result: Result<T, Failed<B>>) -> B {
    let failed = result.unwrap_err();
    let text = failed.to_string();
    assert!(
        matches!(failed.error, Error::Invalid { what: "buffer", .. }) && text.contains("LOCAL"),
        "{text}"
    );
    failed.buf
}

/// Each operation with a buffer that is not registered, or not in this domain, or for another
/// access, fails and returns the buffer. Nothing is sent.
pub(crate) async fn fi_mr_local_refuses_unregistered_buffers(setup: Setup) {
    let setup = setup.requiring(MrMode::LOCAL);
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let region = b.domain.alloc(64, REMOTE).unwrap();
    let remote = region.remote();

    let buf = vec![1u8; 8];
    let buf = assert_refused(a.ep.send(to_b, buf).await);
    let buf = assert_refused(a.ep.send(to_b, buf).tag(1).start());
    let buf = assert_refused(a.ep.send(to_b, buf).post());
    let buf = assert_refused(a.ep.write(to_b, remote.at(0), buf).await);
    let buf = assert_refused(
        a.ep.write(to_b, [remote.slice(..4), remote.slice(8..12)], buf)
            .await,
    );
    let buf = assert_refused(a.ep.read_into(to_b, remote.slice(..8), buf).await);
    let buf = assert_refused(a.ep.recv_into(buf).await);
    let buf = assert_refused(a.ep.recv_into(buf).tag(7).start());
    assert_refused(a.ep.recv_into(buf).post());
    assert_refused(a.ep.send(to_b, "text").await);
    assert_refused(a.ep.send(to_b, [1u8; 8]).await);
    let batch = (0..4).map(|_| a.ep.send(to_b, vec![2u8; 8]));
    let stopped = a.ep.post_all(batch).unwrap_err();
    assert!(
        matches!(stopped.error, Error::Invalid { .. }),
        "{}",
        stopped.error
    );
    let multi = a.ep.recv_multi(BytesMut::with_capacity(4096)).start();
    assert!(matches!(multi.unwrap_err().error, Error::NotSupported(_)));

    let other = setup.open_endpoint().await;
    assert_refused(a.ep.send(to_b, register(&other, b"other", LOCAL)).await);
    assert_refused(
        a.ep.send(to_b, register(&a, b"recv", LOCAL - Access::SEND))
            .await,
    );
    let not_write = register(&a, b"send", LOCAL - Access::WRITE);
    assert_refused(a.ep.write(to_b, remote.at(0), not_write).await);
    let not_read = register(&a, b"send", LOCAL - Access::READ);
    assert_refused(a.ep.read_into(to_b, remote.slice(..4), not_read).await);
    assert_refused(a.ep.recv_into(register(&a, b"send", Access::SEND)).await);
    let half = Gather::from((register(&a, b"one", LOCAL), vec![2u8; 3]));
    assert_refused(a.ep.send(to_b, half).await);
    let half = Scatter::from((register(&a, b"one", LOCAL), vec![2u8; 3]));
    assert_refused(a.ep.recv_into(half).await);

    a.ep.send(to_b, register(&a, b"claim me", LOCAL))
        .await
        .unwrap();
    let claimed = b.ep.probe().claim().await.unwrap();
    assert_refused(claimed.recv_into(vec![0u8; 8]).await);

    let refused = a.domain.register_local(vec![1u8; 8], Access::REMOTE_READ);
    assert!(matches!(refused.unwrap_err().error, Error::BadFlags { .. }));
    let refused = a.domain.register_local("text", Access::RECV).unwrap_err();
    assert!(matches!(refused.error, Error::Invalid { .. }), "{refused}");
    assert_eq!(b.ep.recv().await.unwrap()[..], *b"claim me");
    assert!(
        b.ep.probe().try_probe().unwrap().is_none(),
        "nothing else was sent"
    );
}

/// Operations with registered buffers, with memory of the library, and with bytes that the library
/// copies work in a domain that requires registered buffers.
pub(crate) async fn fi_mr_local_accepts_registered_buffers(setup: Setup) {
    let (mut a, b, to_b) = endpoint_pair(&setup.requiring(MrMode::LOCAL)).await;
    let region = b.domain.alloc(64, REMOTE).unwrap();
    let remote = region.remote();
    check_messages(&a, &b, to_b).await;
    let _progress = b.spawn_progress();

    let written = register(&a, b"12345678", LOCAL);
    let written = a.ep.write(to_b, remote.at(8), written).await.unwrap().buf;
    let read =
        a.ep.read_into(to_b, remote.slice(8..12), written)
            .await
            .unwrap();
    assert_eq!(read.buf[..], *b"1234");
    drop(read);
    assert_eq!(
        a.ep.read(to_b, remote.slice(10..12)).await.unwrap()[..],
        *b"34"
    );
    a.ep.write(to_b, remote.at(0), b"injected")
        .inject()
        .unwrap();
    assert_eq!(a.ep.fetch_add(to_b, remote.at(16), 5u64).await, Ok(0));
    a.ep.send(to_b, b"injected").inject().unwrap();
    assert_eq!(b.ep.recv().await.unwrap()[..], *b"injected");
    a.ep.send(to_b, Vec::new()).await.unwrap();
    assert!(b.ep.recv().await.unwrap().is_empty());
    let (accepted, refused) = a.ep.inject_all(to_b, [&b"one"[..], b"two"]);
    assert_eq!((accepted, refused), (2, Ok(())));
    let pooled = b.ep.recv().await.unwrap().into_buf();
    let to_a = b.add_peer(&a).await;
    b.ep.send(to_a, pooled).await.unwrap();
    assert_eq!(a.ep.recv().await.unwrap()[..], *b"one");

    let posted = (0..3).map(|at| {
        a.ep.send(to_b, register(&a, &[at; 9], LOCAL))
            .tag(3)
            .context(at.into())
    });
    assert_eq!(a.ep.post_all(posted).unwrap(), 3);
    flush(&a, &b, to_b).await;
    let mut entries = Vec::new();
    while entries.len() < 3 {
        a.cq.read_batch(&mut entries, 3).await;
    }
    for (at, mut entry) in entries.into_iter().enumerate() {
        assert_eq!((entry.kind, entry.context), (OpKind::Send, at as u64));
        let buf = entry
            .take_buf::<LocalBuffer<Vec<u8>>>()
            .expect("the registered buffer");
        assert_eq!(buf.into_inner(), [at as u8; 9]);
    }
    let kept = register(&a, b"kept", LOCAL);
    assert_eq!(a.domain.children().of(Class::MemoryRegion), 1);
    drop(kept);
    assert_eq!(a.domain.children().of(Class::MemoryRegion), 0);
}

/// Sends registered buffers and receives into registered buffers.
async fn check_messages(a: &EndpointFixture, b: &EndpointFixture, to_b: fabric_async::FiAddr) {
    let mut room = register(b, &[0; 20_000], LOCAL);
    for len in [0, 1, 100, 20_000] {
        let mut message = register(a, &[7; 20_000], LOCAL);
        message.set_len(len).unwrap();
        let (sent, received) = tokio::join!(a.ep.send(to_b, message), b.ep.recv_into(room));
        let message = sent.unwrap().buf;
        assert_eq!((message.len(), message.registered_len()), (len, 20_000));
        room = received.unwrap().buf;
        assert_eq!(room[..], vec![7; len]);
        assert_eq!(message.into_inner(), [7; 20_000]);
    }
    let parts = [&b"gathered "[..], b"parts"].map(|part| register(a, part, Access::SEND));
    let rooms = [4, 100].map(|len| register(b, &vec![0; len], Access::RECV));
    let (sent, received) = tokio::join!(
        a.ep.send(to_b, Gather::from(parts)),
        b.ep.recv_into(Scatter::from(rooms))
    );
    sent.unwrap();
    let received = received.unwrap().buf;
    assert_eq!(
        received.pieces().collect::<Vec<_>>(),
        [&b"gath"[..], b"ered parts"]
    );
    let short = register(b, &[0; 4], Access::RECV);
    let (sent, received) = tokio::join!(
        a.ep.send(to_b, register(a, b"too long", Access::SEND)),
        b.ep.recv_into(short)
    );
    sent.unwrap();
    let truncated = received.unwrap_err();
    assert!(
        matches!(truncated.error, Error::Truncated { len: 4, lost: 4 }),
        "{truncated}"
    );
    assert_eq!(truncated.buf[..], *b"too ");
}

/// Registered buffers are buffers like any other where the domain does not require them.
pub(crate) async fn registered_local_buffers_work_in_every_domain(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    check_messages(&a, &b, to_b).await;
}
