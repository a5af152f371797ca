//! Batches and permits of connected endpoints (`FI_EP_MSG`), and their clones.

use std::future::IntoFuture;
use std::task::Poll;

use fabric_async::{Access, Error, OpKind};
use futures_util::StreamExt;

use crate::connected_pair::{MsgDomainFixture, connected_pair};
use crate::payload::{assert_bytes, pattern, poll_once};
use crate::setup::Setup;

pub(crate) async fn batches_arrive_and_report_in_order(setup: Setup) {
    const COUNT: u64 = 100;
    let (mut a, mut b) = connected_pair(&setup).await;
    let receives = (0..COUNT).map(|number| b.ep.recv_into(vec![0; 8]).context(number));
    assert_eq!(b.ep.post_all(receives).unwrap(), 100);
    let sends = (0..COUNT).map(|number| {
        let message = number.to_le_bytes().to_vec();
        a.ep.send(message).context(COUNT + number)
    });
    assert_eq!(a.ep.post_all(sends).unwrap(), 100);
    for number in 0..COUNT {
        let (sent, mut got) = (
            a.domain_fixture.cq.next().await.unwrap(),
            b.domain_fixture.cq.next().await.unwrap(),
        );
        assert_eq!((sent.context, sent.kind), (COUNT + number, OpKind::Send));
        assert_eq!((got.context, got.kind), (number, OpKind::Recv));
        assert_eq!(got.take_buf::<Vec<u8>>().unwrap(), number.to_le_bytes());
    }
    assert_eq!(a.ep.inject_all([&b"one"[..], b"two"]), (2, Ok(())));
    assert_eq!(&b.ep.recv().await.unwrap()[..], b"one");
    assert_eq!(&b.ep.recv().await.unwrap()[..], b"two");
}

pub(crate) async fn batch_of_writes_reaches_peer_memory(setup: Setup) {
    let (mut a, b) = connected_pair(&setup).await;
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let region = b.domain_fixture.domain.alloc(800, access).unwrap();
    let _progress = b.ep.recv().start().unwrap();
    let remote = region.remote();
    let writes = (0..100u64).map(|number| {
        let bytes = number.to_le_bytes().to_vec();
        a.ep.write(remote.at(8 * number), bytes).context(number)
    });
    assert_eq!(a.ep.post_all(writes).unwrap(), 100);
    for number in 0..100u64 {
        // Both domains make progress: the peer may execute the writes.
        let mut written = a.domain_fixture.cq.next();
        let written = loop {
            match poll_once(&mut written).await {
                Poll::Ready(written) => break written.unwrap(),
                Poll::Pending => b.domain_fixture.domain.progress(),
            };
            tokio::task::yield_now().await;
        };
        assert_eq!((written.context, &written.error), (number, &None));
        assert_eq!(region.load(8 * number as usize), Ok(number));
    }
}

/// A batch accepts requests of its own endpoint and of clones of that endpoint.
pub(crate) async fn batch_refuses_requests_of_another_endpoint(setup: Setup) {
    let (a, b) = connected_pair(&setup).await;
    let clone = a.ep.clone();
    assert_eq!(a.ep.post_all([clone.send("of a clone")]).unwrap(), 1);
    assert_eq!(&b.ep.recv().await.unwrap()[..], b"of a clone");
    let refused = a.ep.post_all([b.ep.send("of the peer")]).unwrap_err();
    assert!(matches!(refused.error, Error::Invalid { .. }));
    assert_eq!((refused.posted, refused.unposted.len()), (0, 1));
}

pub(crate) async fn permit_sends_without_a_further_credit(setup: Setup) {
    let (here, there) = (
        MsgDomainFixture::open(&setup).await,
        MsgDomainFixture::open(&setup).await,
    );
    let mut pep = there.listen(&setup);
    let (active, passive) = here.connect_to(&there, &mut pep).await;
    let permit = active.reserve().await.unwrap();
    let (sent, got) = tokio::join!(
        permit.send(&active, pattern(100_000, 1)).into_future(),
        passive.recv()
    );
    sent.unwrap();
    assert_bytes(&got.unwrap(), pattern(100_000, 1));
    let (permit, clone) = (active.reserve().await.unwrap(), active.clone());
    permit.send(&clone, "by a clone").await.unwrap();
    assert_eq!(&passive.recv().await.unwrap()[..], b"by a clone");
}
