//! Connected endpoints: either side calls, and may be turned away; then they talk, reach each
//! other's memory, and part.

use std::future::{Future, IntoFuture};
use std::time::Duration;

use fabric_async::{
    Access, BindOptions, Endpoint, Error, EventKind, PassiveEndpoint, Progress, RemoteAddr,
    RemoteRegion, SocketIo,
};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::libfabric_peer::LibfabricPeer;

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// As the program has it.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + seed) as u8).collect()
}

/// Plays with a program in every way that our side can be opened.
fn run_against_msg_peer<F: Future<Output = ()>>(game: impl Fn(BindOptions, LibfabricPeer) -> F) {
    run_with(LibfabricPeer::start_msg, game);
}

fn run_with<F: Future<Output = ()>>(
    start: impl Fn() -> Option<LibfabricPeer>,
    game: impl Fn(BindOptions, LibfabricPeer) -> F,
) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    for progress in [Progress::Manual, Progress::Auto] {
        for io in [SocketIo::Epoll, SocketIo::IoUring] {
            let Some(program) = start() else { return };
            let options = Endpoint::options().progress(progress).socket_io(io);
            if let Err(error) = runtime.block_on(options.clone().listen("tcp://")) {
                eprintln!("skipped {io:?}: {error}");
                continue;
            }
            let ended = runtime
                .block_on(async { timeout(Duration::from_secs(60), game(options, program)).await });
            assert!(ended.is_ok(), "{progress:?}, {io:?}: it hangs");
        }
    }
    runtime.shutdown_background();
}

async fn accept_from(
    options: &BindOptions,
    program: &LibfabricPeer,
) -> (Endpoint, PassiveEndpoint) {
    accept_from_with_tags(options, program, false).await
}

/// The program calls, and is known to take tags, or not.
async fn accept_from_with_tags(
    options: &BindOptions,
    program: &LibfabricPeer,
    takes_tags: bool,
) -> (Endpoint, PassiveEndpoint) {
    let mut door = options.clone().listen("tcp://").await.unwrap();
    let port = door.name().socket_addr().unwrap().port();
    program
        .expect_reply(format!("connect 127.0.0.1 {port} let-me-in"), "asked")
        .await;
    let (ep, answer) = tokio::join!(
        async {
            let request = door.next().await.unwrap();
            assert_eq!(request.private_data(), b"let-me-in");
            let request = if takes_tags {
                request.peer_supports_tags()
            } else {
                request
            };
            request.accept("welcome").await.unwrap()
        },
        program.request("event"),
    );
    assert_eq!(answer, "connected welcome");
    assert_eq!(ep.private_data(), b"let-me-in");
    (ep, door)
}

async fn connect_to(options: &BindOptions, program: &LibfabricPeer) -> Endpoint {
    connect_to_with_tags(options, program, false).await
}

/// The program is called, and is known to take tags, or not.
async fn connect_to_with_tags(
    options: &BindOptions,
    program: &LibfabricPeer,
    takes_tags: bool,
) -> Endpoint {
    let name = format!("tcp://127.0.0.1:{}", program.port);
    let calling = options.clone().connect(&name).private_data("let-me-in");
    let calling = if takes_tags {
        calling.peer_supports_tags()
    } else {
        calling
    };
    let calling = tokio::spawn(calling.into_future());
    assert_eq!(program.request("event").await, "request let-me-in");
    program.expect_reply("accept welcome", "accepted").await;
    assert_eq!(program.request("event").await, "connected");
    let ep = calling.await.unwrap().unwrap();
    assert_eq!(ep.private_data(), b"welcome");
    ep
}

async fn check_messages_and_rma(ep: &Endpoint, program: &LibfabricPeer, key: u64) {
    let peer = ep.peer().unwrap();
    for (context, len) in [0, 8, 5000, 1 << 20].into_iter().enumerate() {
        program
            .expect_reply(format!("recv {context} {len} - 0"), "posted")
            .await;
        let sending = ep
            .send(peer, pattern(len, 3))
            .data(77)
            .delivery_complete()
            .start()
            .unwrap();
        assert_eq!(program.expect_done(context as u64).await.1, 77);
        sending.await.unwrap();
        program.expect_reply(format!("seen {len} 3"), "same").await;
        program
            .expect_reply(format!("send {context} {len} 5 da 99 0"), "posted")
            .await;
        let (got, _) = tokio::join!(ep.recv(), program.expect_done(context as u64));
        let got = got.unwrap();
        assert!(
            got[..] == pattern(len, 5)[..] && got.data() == Some(99) && got.source() == ep.peer()
        );
    }
    // Memory on both sides.
    program
        .expect_reply(format!("region {key} 100000"), "region")
        .await;
    program.expect_reply("put 0 100000 9", "put").await;
    let remote = RemoteRegion::new(key, 100_000, READ_WRITE);
    let read = ep.read(peer, remote.slice(10..50_000)).start().unwrap();
    let got = read.await.unwrap();
    assert!(got[..] == pattern(50_000, 9)[10..]);
    ep.write(peer, remote.at(0), pattern(60_000, 2))
        .delivery_complete()
        .await
        .unwrap();
    program.expect_reply("look 0 60000 2", "same").await;
    let region = ep.domain().alloc_with_key(100_000, READ_WRITE, 41).unwrap();
    let _moving = ProgressTask::new(ep);
    program
        .expect_reply("write 7 4 a 0 41:100:50000", "posted")
        .await;
    program.expect_done(7).await;
    let mut there = vec![0; 50_000];
    region.read(100, &mut there).unwrap();
    assert!(there == pattern(50_000, 4));
    program.expect_reply("read 8 41:100:50000", "posted").await;
    program.expect_done(8).await;
    program.expect_reply("seen 50000 4", "same").await;
}

/// Somebody waits on our side for something that never comes, as manual progress wants it where
/// only the program acts.
struct ProgressTask(JoinHandle<()>);

impl ProgressTask {
    fn new(ep: &Endpoint) -> Self {
        let never = ep.domain().counter().unwrap();
        Self(tokio::spawn(async move { drop(never.wait(1).await) }))
    }
}

impl Drop for ProgressTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn assert_disconnected(ep: &Endpoint) {
    let mut events = ep.events().unwrap();
    assert!(matches!(
        events.next().await.kind,
        EventKind::Connected { .. }
    ));
    assert!(matches!(
        events.next().await.kind,
        EventKind::Shutdown { .. }
    ));
    assert!(ep.recv().await.unwrap_err().error.is_peer_gone());
    assert!(
        ep.send(ep.peer().unwrap(), "anything")
            .await
            .unwrap_err()
            .error
            .is_peer_gone()
    );
}

#[test]
fn libfabric_client_connects_and_shuts_down() {
    run_against_msg_peer(async |options, program| {
        let (ep, _door) = accept_from(&options, &program).await;
        check_messages_and_rma(&ep, &program, 40).await;
        program.expect_reply("shutdown", "shut").await;
        assert_disconnected(&ep).await;
    });
}

#[test]
fn libfabric_server_accepts_again_after_shutdown() {
    run_against_msg_peer(async |options, program| {
        let ep = connect_to(&options, &program).await;
        check_messages_and_rma(&ep, &program, 40).await;
        ep.shutdown().unwrap();
        assert_eq!(program.request("event").await, "shutdown");
        // It goes on, and is called again.
        let ep = connect_to(&options, &program).await;
        check_messages_and_rma(&ep, &program, 50).await;
        program.kill();
        assert_disconnected(&ep).await;
    });
}

#[test]
fn both_sides_can_reject_connections() {
    run_against_msg_peer(async |options, program| {
        let mut door = options.clone().listen("tcp://").await.unwrap();
        let port = door.name().socket_addr().unwrap().port();
        program
            .expect_reply(format!("connect 127.0.0.1 {port} let-me-in"), "asked")
            .await;
        let rejecting = async { door.next().await.unwrap().reject("not-today").unwrap() };
        let ((), answer) = tokio::join!(rejecting, program.request("event"));
        assert_eq!(answer, "refused 111 not-today");
        let name = format!("tcp://127.0.0.1:{}", program.port);
        let calling = tokio::spawn(
            options
                .clone()
                .connect(&name)
                .private_data("hello")
                .into_future(),
        );
        assert_eq!(program.request("event").await, "request hello");
        program.expect_reply("reject go-away", "rejected").await;
        let refused = calling.await.unwrap().unwrap_err();
        assert_eq!(
            refused,
            Error::Rejected {
                peer: name.parse().unwrap(),
                data: b"go-away".to_vec()
            }
        );
    });
}

/// libfabric takes tags where it has a shared receive context, and does not say so: the program
/// here knows it.
#[test]
fn tags_reach_libfabric_shared_rx_context() {
    run_with(LibfabricPeer::start_srx, async |options, program| {
        for round in 0..3u64 {
            let mut _door = None;
            let ep = if round == 1 {
                connect_to_with_tags(&options, &program, true).await
            } else {
                let (ep, at) = accept_from_with_tags(&options, &program, round == 0).await;
                _door = Some(at);
                ep
            };
            let peer = ep.peer().unwrap();
            for (context, len) in [0, 8, 5000, 1 << 20].into_iter().enumerate() {
                let tag = 0xffff_0000_0000_0000 + context as u64;
                // It sends them to anybody who connects with it.
                program
                    .expect_reply(format!("send {context} {len} 5 dat 99 {tag}"), "posted")
                    .await;
                let (got, _) =
                    tokio::join!(ep.recv().tag(tag), program.expect_done(context as u64));
                let got = got.unwrap();
                assert!(
                    got[..] == pattern(len, 5)[..]
                        && got.data() == Some(99)
                        && got.tag() == Some(tag)
                );
                if round == 2 {
                    // What it sends is no proof of what it takes.
                    assert_tags_refused(&ep).await;
                    continue;
                }
                program
                    .expect_reply(format!("recv {context} {len} t {tag}"), "posted")
                    .await;
                let sending = ep
                    .send(peer, pattern(len, 3))
                    .tag(tag)
                    .data(77)
                    .delivery_complete()
                    .start()
                    .unwrap();
                let (sent, got) = tokio::join!(sending, program.expect_done(context as u64));
                assert_eq!((sent.unwrap().transfer.tag, got.1), (Some(tag), 77));
                program.expect_reply(format!("seen {len} 3"), "same").await;
            }
            program.expect_reply("recv 9 20 - 0", "posted").await;
            ep.send(peer, pattern(20, 8)).await.unwrap();
            program.expect_done(9).await;
            program.expect_reply("seen 20 8", "same").await;
            ep.shutdown().unwrap();
            assert_eq!(program.request("event").await, "shutdown");
        }
    });
}

async fn assert_tags_refused(ep: &Endpoint) {
    let refused = ep
        .send(ep.peer().unwrap(), "a tag")
        .tag(1)
        .await
        .unwrap_err()
        .error;
    assert!(matches!(refused, Error::NotSupported(_)), "{refused}");
    let refused = ep
        .inject_tagged(ep.peer().unwrap(), 1, b"a tag")
        .unwrap_err();
    assert!(matches!(refused, Error::NotSupported(_)), "{refused}");
}

/// A program that would not survive a tag is sent none, and goes on.
#[test]
fn tags_are_refused_to_peers_without_tag_support() {
    run_against_msg_peer(async |options, program| {
        let (ep, _door) = accept_from(&options, &program).await;
        assert_tags_refused(&ep).await;
        check_messages_and_rma(&ep, &program, 40).await;
        ep.shutdown().unwrap();
        assert_eq!(program.request("event").await, "shutdown");
        let ep = connect_to(&options, &program).await;
        assert_tags_refused(&ep).await;
        check_messages_and_rma(&ep, &program, 50).await;
    });
}

/// What libfabric does not know is not said to it.
#[test]
fn atomics_to_libfabric_are_refused() {
    run_against_msg_peer(async |options, program| {
        program.expect_reply("region 7 100", "region").await;
        for calls_us in [false, true] {
            let mut _door = None;
            let ep = if calls_us {
                let (ep, at) = accept_from(&options, &program).await;
                _door = Some(at);
                ep
            } else {
                connect_to(&options, &program).await
            };
            let (peer, at) = (ep.peer().unwrap(), RemoteAddr { key: 7, offset: 0 });
            let refused = ep.fetch_add(peer, at, 1u64).await.unwrap_err();
            assert!(matches!(refused, Error::NotSupported(_)), "{refused}");
            ep.write(peer, at, pattern(100, 1)).await.unwrap();
            program.expect_reply("look 0 100 1", "same").await;
            // What it must not do ends the connection, as there is no word for it on its wire.
            let (never, _moving) = (ep.recv().start().unwrap(), ProgressTask::new(&ep));
            program.expect_reply("read 1 99:0:10", "posted").await;
            program.failed(1).await;
            assert_eq!(program.request("event").await, "shutdown");
            let error = never.await.unwrap_err().error;
            assert!(matches!(error, Error::Protocol { .. }), "{error}");
        }
    });
}
