//! `FI_EP_MSG` endpoints: either side connects, and may be rejected; then both exchange messages,
//! access each other's memory, and shut down.

use std::future::{Future, IntoFuture};
use std::time::Duration;

use fabric_async::{
    Access, BindOptions, ConnectedEndpoint, Endpoint, Error, EventKind, PassiveEndpoint, Progress,
    RemoteAddr, RemoteRegion, SocketIo,
};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::libfabric_peer::LibfabricPeer;

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// Returns the bytes that the peer generates from a seed.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + seed) as u8).collect()
}

/// Runs a scenario against a peer with each progress mode and socket I/O of this library.
fn run_against_msg_peer<F: Future<Output = ()>>(
    scenario: impl Fn(BindOptions, LibfabricPeer) -> F,
) {
    run_with(LibfabricPeer::start_msg, scenario);
}

fn run_with<F: Future<Output = ()>>(
    start: impl Fn() -> Option<LibfabricPeer>,
    scenario: impl Fn(BindOptions, LibfabricPeer) -> F,
) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    for progress in [Progress::Manual, Progress::Auto] {
        for io in [SocketIo::Epoll, SocketIo::IoUring] {
            let Some(peer) = start() else { return };
            let options = Endpoint::options().progress(progress).socket_io(io);
            if let Err(error) = runtime.block_on(options.clone().listen("tcp://")) {
                eprintln!("skipped {io:?}: {error}");
                continue;
            }
            let result = runtime.block_on(async {
                timeout(Duration::from_secs(60), scenario(options, peer)).await
            });
            assert!(
                result.is_ok(),
                "{progress:?}, {io:?}: the scenario did not end within 60 s"
            );
        }
    }
    runtime.shutdown_background();
}

async fn accept_from(
    options: &BindOptions,
    peer: &LibfabricPeer,
) -> (ConnectedEndpoint, PassiveEndpoint) {
    accept_from_with_tags(options, peer, false).await
}

/// The peer connects to a passive endpoint of this library; `peer_supports_tags` sets the option of
/// that name.
async fn accept_from_with_tags(
    options: &BindOptions,
    peer: &LibfabricPeer,
    peer_supports_tags: bool,
) -> (ConnectedEndpoint, PassiveEndpoint) {
    let mut passive = options.clone().listen("tcp://").await.unwrap();
    let port = passive.name().socket_addr().unwrap().port();
    peer.expect_reply(format!("connect 127.0.0.1 {port} let-me-in"), "connecting")
        .await;
    let (ep, reply) = tokio::join!(
        async {
            let request = passive.accept().await.unwrap();
            assert_eq!(request.private_data(), b"let-me-in");
            let request = if peer_supports_tags {
                request.peer_supports_tags()
            } else {
                request
            };
            request.accept("welcome").unwrap()
        },
        peer.request("eq"),
    );
    assert_eq!(reply, "connected welcome");
    assert_eq!(ep.private_data(), b"let-me-in");
    (ep, passive)
}

async fn connect_to(options: &BindOptions, peer: &LibfabricPeer) -> ConnectedEndpoint {
    connect_to_with_tags(options, peer, false).await
}

/// An endpoint of this library connects to the peer; `peer_supports_tags` sets the option of that
/// name.
async fn connect_to_with_tags(
    options: &BindOptions,
    peer: &LibfabricPeer,
    peer_supports_tags: bool,
) -> ConnectedEndpoint {
    let name = format!("tcp://127.0.0.1:{}", peer.port);
    let connecting = options.clone().connect(&name).private_data("let-me-in");
    let connecting = if peer_supports_tags {
        connecting.peer_supports_tags()
    } else {
        connecting
    };
    let connecting = tokio::spawn(connecting.into_future());
    assert_eq!(peer.request("eq").await, "request let-me-in");
    peer.expect_reply("accept welcome", "accepted").await;
    assert_eq!(peer.request("eq").await, "connected");
    let ep = connecting.await.unwrap().unwrap();
    assert_eq!(ep.private_data(), b"welcome");
    ep
}

async fn check_messages_and_rma(ep: &ConnectedEndpoint, peer: &LibfabricPeer, key: u64) {
    for (context, len) in [0, 8, 5000, 1 << 20].into_iter().enumerate() {
        peer.expect_reply(format!("recv {context} {len} - 0"), "posted")
            .await;
        let sending = ep
            .send(pattern(len, 3))
            .data(77)
            .delivery_complete()
            .start()
            .unwrap();
        assert_eq!(peer.expect_done(context as u64).await.1, 77);
        sending.await.unwrap();
        peer.expect_reply(format!("check_rx {len} 3"), "same").await;
        peer.expect_reply(format!("send {context} {len} 5 da 99 0"), "posted")
            .await;
        let (got, _) = tokio::join!(ep.recv(), peer.expect_done(context as u64));
        let got = got.unwrap();
        assert!(got[..] == pattern(len, 5)[..] && got.data() == Some(99) && got.source().is_err());
    }
    // RMA in both directions.
    peer.expect_reply(format!("region {key} 100000"), "region")
        .await;
    peer.expect_reply("fill 0 100000 9", "filled").await;
    let remote = RemoteRegion::new(key, 100_000, READ_WRITE);
    let read = ep.read(remote.slice(10..50_000)).start().unwrap();
    let got = read.await.unwrap();
    assert!(got[..] == pattern(50_000, 9)[10..]);
    ep.write(remote.at(0), pattern(60_000, 2))
        .delivery_complete()
        .await
        .unwrap();
    peer.expect_reply("check 0 60000 2", "same").await;
    let region = ep.domain().alloc_with_key(100_000, READ_WRITE, 41).unwrap();
    let _progress = ProgressTask::new(ep);
    peer.expect_reply("write 7 4 a 0 41:100:50000", "posted")
        .await;
    peer.expect_done(7).await;
    let mut written = vec![0; 50_000];
    region.read(100, &mut written).unwrap();
    assert!(written == pattern(50_000, 4));
    peer.expect_reply("read 8 41:100:50000", "posted").await;
    peer.expect_done(8).await;
    peer.expect_reply("check_rx 50000 4", "same").await;
}

/// A task that waits for a counter which never changes, so that manual progress is made while only
/// the peer acts.
struct ProgressTask(JoinHandle<()>);

impl ProgressTask {
    fn new(ep: &ConnectedEndpoint) -> Self {
        let never = ep.domain().counter().unwrap();
        Self(tokio::spawn(async move { drop(never.wait(1).await) }))
    }
}

impl Drop for ProgressTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn assert_disconnected(ep: &ConnectedEndpoint) {
    let mut events = ep.take_events().unwrap();
    assert!(matches!(
        events.read().await.kind,
        EventKind::Connected { .. }
    ));
    assert!(matches!(
        events.read().await.kind,
        EventKind::Shutdown { .. }
    ));
    assert!(ep.recv().await.unwrap_err().error.is_peer_unavailable());
    assert!(
        ep.send("anything")
            .await
            .unwrap_err()
            .error
            .is_peer_unavailable()
    );
}

#[test]
fn libfabric_client_connects_and_shuts_down() {
    run_against_msg_peer(async |options, peer| {
        let (ep, _passive) = accept_from(&options, &peer).await;
        check_messages_and_rma(&ep, &peer, 40).await;
        peer.expect_reply("shutdown", "shut down").await;
        assert_disconnected(&ep).await;
    });
}

#[test]
fn libfabric_server_accepts_again_after_shutdown() {
    run_against_msg_peer(async |options, peer| {
        let ep = connect_to(&options, &peer).await;
        check_messages_and_rma(&ep, &peer, 40).await;
        ep.shutdown().unwrap();
        assert_eq!(peer.request("eq").await, "shutdown");
        // The peer still runs, and accepts a second connection.
        let ep = connect_to(&options, &peer).await;
        check_messages_and_rma(&ep, &peer, 50).await;
        peer.kill();
        assert_disconnected(&ep).await;
    });
}

#[test]
fn both_sides_can_reject_connections() {
    run_against_msg_peer(async |options, peer| {
        let mut passive = options.clone().listen("tcp://").await.unwrap();
        let port = passive.name().socket_addr().unwrap().port();
        peer.expect_reply(format!("connect 127.0.0.1 {port} let-me-in"), "connecting")
            .await;
        let rejecting = async { passive.accept().await.unwrap().reject("not-today").unwrap() };
        let ((), reply) = tokio::join!(rejecting, peer.request("eq"));
        assert_eq!(reply, "rejected 111 not-today");
        let name = format!("tcp://127.0.0.1:{}", peer.port);
        let connecting = tokio::spawn(
            options
                .clone()
                .connect(&name)
                .private_data("hello")
                .into_future(),
        );
        assert_eq!(peer.request("eq").await, "request hello");
        peer.expect_reply("reject go-away", "rejected").await;
        let error = connecting.await.unwrap().unwrap_err();
        assert_eq!(
            error,
            Error::RejectedByPeer {
                peer: name.parse().unwrap(),
                data: b"go-away".to_vec()
            }
        );
    });
}

/// libfabric supports tags with a shared receive context, and does not announce it: the program
/// sets `peer_supports_tags`.
#[test]
fn tags_reach_libfabric_shared_rx_context() {
    run_with(LibfabricPeer::start_srx, async |options, peer| {
        for round in 0..3u64 {
            let mut _passive = None;
            let ep = if round == 1 {
                connect_to_with_tags(&options, &peer, true).await
            } else {
                let (ep, listener) = accept_from_with_tags(&options, &peer, round == 0).await;
                _passive = Some(listener);
                ep
            };
            for (context, len) in [0, 8, 5000, 1 << 20].into_iter().enumerate() {
                let tag = 0xffff_0000_0000_0000 + context as u64;
                // libfabric sends tags to any connected peer.
                peer.expect_reply(format!("send {context} {len} 5 dat 99 {tag}"), "posted")
                    .await;
                let (got, _) = tokio::join!(ep.recv().tag(tag), peer.expect_done(context as u64));
                let got = got.unwrap();
                assert!(
                    got[..] == pattern(len, 5)[..]
                        && got.data() == Some(99)
                        && got.tag() == Some(tag)
                );
                if round == 2 {
                    // Received tags do not prove that the peer supports them.
                    assert_tags_refused(&ep).await;
                    continue;
                }
                peer.expect_reply(format!("recv {context} {len} t {tag}"), "posted")
                    .await;
                let sending = ep
                    .send(pattern(len, 3))
                    .tag(tag)
                    .data(77)
                    .delivery_complete()
                    .start()
                    .unwrap();
                let (sent, got) = tokio::join!(sending, peer.expect_done(context as u64));
                assert_eq!((sent.unwrap().transfer.tag, got.1), (Some(tag), 77));
                peer.expect_reply(format!("check_rx {len} 3"), "same").await;
            }
            peer.expect_reply("recv 9 20 - 0", "posted").await;
            ep.send(pattern(20, 8)).await.unwrap();
            peer.expect_done(9).await;
            peer.expect_reply("check_rx 20 8", "same").await;
            ep.shutdown().unwrap();
            assert_eq!(peer.request("eq").await, "shutdown");
        }
    });
}

async fn assert_tags_refused(ep: &ConnectedEndpoint) {
    let error = ep.send("a tag").tag(1).await.unwrap_err().error;
    assert!(matches!(error, Error::NotSupported(_)), "{error}");
    let error = ep.send(b"a tag").tag(1).inject().unwrap_err();
    assert!(matches!(error, Error::NotSupported(_)), "{error}");
}

/// Tagged sends to a peer that a tagged frame would crash are refused; the connection stays open.
#[test]
fn tagged_send_to_peer_without_tag_support_is_refused() {
    run_against_msg_peer(async |options, peer| {
        let (ep, _passive) = accept_from(&options, &peer).await;
        assert_tags_refused(&ep).await;
        check_messages_and_rma(&ep, &peer, 40).await;
        ep.shutdown().unwrap();
        assert_eq!(peer.request("eq").await, "shutdown");
        let ep = connect_to(&options, &peer).await;
        assert_tags_refused(&ep).await;
        check_messages_and_rma(&ep, &peer, 50).await;
    });
}

/// Atomic frames are not sent to libfabric peers.
#[test]
fn atomics_to_connected_libfabric_peers_are_refused() {
    run_against_msg_peer(async |options, peer| {
        peer.expect_reply("region 7 100", "region").await;
        for peer_connects in [false, true] {
            let mut _passive = None;
            let ep = if peer_connects {
                let (ep, listener) = accept_from(&options, &peer).await;
                _passive = Some(listener);
                ep
            } else {
                connect_to(&options, &peer).await
            };
            let at = RemoteAddr { key: 7, offset: 0 };
            let error = ep.fetch_add(at, 1u64).await.unwrap_err();
            assert!(matches!(error, Error::NotSupported(_)), "{error}");
            ep.write(at, pattern(100, 1)).await.unwrap();
            peer.expect_reply("check 0 100 1", "same").await;
            // An invalid access ends the connection: the native protocol has no error response to
            // libfabric.
            let (never, _progress) = (ep.recv().start().unwrap(), ProgressTask::new(&ep));
            peer.expect_reply("read 1 99:0:10", "posted").await;
            peer.expect_failed(1).await;
            assert_eq!(peer.request("eq").await, "shutdown");
            let error = never.await.unwrap_err().error;
            assert!(matches!(error, Error::Protocol { .. }), "{error}");
        }
    });
}
