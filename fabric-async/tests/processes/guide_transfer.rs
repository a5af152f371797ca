//! The guide's large transfer, with senders that exit after the last write, fail, or are killed.

include!("../../src/guide/samples/transfer.rs");

use fabric_async::Access;

use crate::guide::{bind_over, unnamed_address};
use crate::peer_death::{kill_self, wait_exit};
use crate::run;
use crate::test_peer::TestPeer;

const REGION_LEN: usize = 3 << 20;
const ROUNDS: usize = 10;

/// Returns the content that a sender with this end writes.
fn content_of(end: &str) -> Bytes {
    let len = match end {
        "fails" => REGION_LEN + 1,
        _ => REGION_LEN - 100_000,
    };
    (0..len).map(|at| (at / 1000) as u8).collect()
}

/// Plays a sender, which ends at once after its last write, or, with `dies`, before it.
pub(crate) async fn sender(names: &str) {
    let (transport, names) = names.split_once('/').expect("a transport");
    let (end, owner) = names.split_once('/').expect("an end and a name");
    let ep = bind_over(transport, unnamed_address(transport)).await;
    let owner = ep.add_peer(owner).await.expect("add_peer");
    ep.send(owner, "hello").await.expect("send");
    let region = ep.recv().from(owner).await.expect("a region");
    let region = RemoteRegion::from_bytes(&region).expect("a description");
    if end == "dies" {
        let part = content_of(end).slice(..CHUNK_LEN);
        ep.write(owner, region.at(0), part).await.expect("write");
        kill_self();
    }
    let pushed = push(&ep, owner, region, content_of(end)).await;
    assert_eq!(pushed.is_ok(), end == "exits", "{pushed:?}");
}

/// Transfers a content from another process, and returns what the receiver reports.
async fn transfer_from(transport: &str, end: &str) -> io::Result<u64> {
    let ep = Endpoint::bind(unnamed_address(transport)).await.unwrap();
    let mut queue = ep.take_completions().unwrap();
    let region = ep.domain().alloc(REGION_LEN, Access::REMOTE_WRITE).unwrap();
    let names = format!("{transport}/{end}/{}", ep.name());
    let mut peer = TestPeer::start("guide sender", &names);
    let sender = ep.recv().await.unwrap().source().unwrap();
    let description = region.remote().to_bytes().to_vec();
    ep.send(sender, description).await.unwrap();
    let received = pushed(&ep, &mut queue, sender).await;
    if let Ok(len) = &received {
        let mut bytes = vec![0; usize::try_from(*len).unwrap()];
        region.read(0, &mut bytes).unwrap();
        assert!(bytes == content_of(end), "{transport}: the content differs");
    }
    wait_exit(&mut peer).await;
    received
}

fn check_transfers(transport: &'static str) {
    run(async move {
        for round in 0..ROUNDS {
            let received = transfer_from(transport, "exits").await;
            assert_eq!(received.unwrap(), REGION_LEN as u64 - 100_000, "{round}");
        }
        let error = transfer_from(transport, "fails").await.unwrap_err();
        assert!(error.to_string().contains("leaves the region"), "{error}");
        let error = transfer_from(transport, "dies").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
    });
}

#[test]
fn guide_transfer_over_shm_survives_the_exit_of_the_sender() {
    check_transfers("shm pieces");
}

#[test]
fn guide_transfer_over_tcp_survives_the_exit_of_the_sender() {
    check_transfers("tcp");
}
