//! Connected endpoints that share a receive context: programs that know nothing of it call, and are
//! called.

use std::future::{Future, IntoFuture};

use fabric_async::{
    CqBind, Domain, Endpoint, EndpointBuilder, EpType, Fabric, Hints, Info, PassiveEndpoint,
    Progress, Result, SHARED_CONTEXT, SharedRxContext, SocketIo, discover,
};
use tokio::time::timeout;

use crate::libfabric_peer::LibfabricPeer;
use crate::{SCENARIO_TIMEOUT, pattern};

/// Our side: a door, and what all its endpoints receive with.
pub(crate) struct InteropSharedRxFixture {
    pub(crate) passive: PassiveEndpoint,
    pub(crate) shared_rx: SharedRxContext,
    pub(crate) domain: Domain,
    info: Info,
}

impl InteropSharedRxFixture {
    async fn open(progress: Progress, io: SocketIo) -> Result<Self> {
        let hints = Hints::new()
            .provider("tcp")
            .ep_type(EpType::Msg)
            .progress(progress);
        let info = discover(&hints.ep_rx_ctx_cnt(SHARED_CONTEXT))
            .await?
            .swap_remove(0);
        let fabric = Fabric::open(&info)?;
        let domain = fabric.domain_builder(&info).socket_io(io).open()?;
        let shared = domain.shared_rx_context(&info)?.open()?;
        Ok(Self {
            passive: fabric.passive_endpoint(&info)?.listen()?,
            shared_rx: shared,
            domain,
            info,
        })
    }

    fn endpoint_builder(&self) -> Result<EndpointBuilder> {
        let cq = self.domain.completion_queue(64)?;
        self.domain
            .endpoint(&self.info)?
            .bind_cq(&cq, CqBind::TRANSMIT)?
            .bind_shared_rx(&self.shared_rx)
    }

    /// The program calls.
    pub(crate) async fn accept_from(&mut self, program: &LibfabricPeer) -> Endpoint {
        let port = self.passive.name().socket_addr().unwrap().port();
        program
            .expect_reply(format!("connect 127.0.0.1 {port} let-me-in"), "asked")
            .await;
        let ep = self.endpoint_builder().unwrap();
        let accepting = async {
            ep.accept(self.passive.next().await.unwrap(), "welcome")
                .await
                .unwrap()
        };
        let (ep, answer) = tokio::join!(accepting, program.request("event"));
        assert_eq!(answer, "connected welcome");
        ep
    }

    /// The program is called.
    pub(crate) async fn connect_to(&self, program: &LibfabricPeer) -> Endpoint {
        let to = format!("tcp://127.0.0.1:{}", program.port);
        let calling = tokio::spawn(self.endpoint_builder().unwrap().connect(&to).into_future());
        assert_eq!(program.request("event").await, "request");
        program.expect_reply("accept", "accepted").await;
        assert_eq!(program.request("event").await, "connected");
        calling.await.unwrap().unwrap()
    }
}

/// Plays with two programs in every way that our side can be opened.
pub(crate) fn run_against_two_peers<F: Future<Output = ()>>(
    game: impl Fn(InteropSharedRxFixture, [LibfabricPeer; 2]) -> F,
) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    for progress in [Progress::Manual, Progress::Auto] {
        for io in [SocketIo::Epoll, SocketIo::IoUring] {
            let programs = (LibfabricPeer::start_msg(), LibfabricPeer::start_msg());
            let (Some(one), Some(two)) = programs else {
                return;
            };
            let pool = match runtime.block_on(InteropSharedRxFixture::open(progress, io)) {
                Ok(pool) => pool,
                Err(error) if io == SocketIo::IoUring => {
                    eprintln!("skipped {io:?}: {error}");
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            let ended =
                runtime.block_on(async { timeout(SCENARIO_TIMEOUT, game(pool, [one, two])).await });
            assert!(
                ended.is_ok(),
                "{progress:?}, {io:?}: still not done after {SCENARIO_TIMEOUT:?}"
            );
        }
    }
    runtime.shutdown_background();
}

#[test]
fn two_libfabric_peers_send_to_one_shared_rx_context() {
    run_against_two_peers(async |mut pool, [one, two]| {
        let ends = [pool.accept_from(&one).await, pool.connect_to(&two).await];
        let programs = [&one, &two];
        for round in 0..8 {
            let (at, len) = (round % 2, [8, 5000, 1 << 20, 0][round / 2]);
            let waits = (round % 3 == 0).then(|| pool.shared_rx.recv().start().unwrap());
            programs[at]
                .expect_reply(format!("send {round} {len} {round} da 99 0"), "posted")
                .await;
            let receive = waits.unwrap_or_else(|| pool.shared_rx.recv().start().unwrap());
            let (got, _) = tokio::join!(receive, programs[at].expect_done(round as u64));
            let got = got.unwrap();
            assert!(got[..] == pattern(len, round as u8)[..] && got.data() == Some(99));
            assert_eq!(got.source(), ends[at].peer());
            assert_eq!(
                pool.shared_rx.received_by(&got.transfer),
                Some(ends[at].id())
            );
            programs[at]
                .expect_reply(format!("recv 7 {len} - 0"), "posted")
                .await;
            let answer = ends[at]
                .send(got.source().unwrap(), pattern(len, 3))
                .start()
                .unwrap();
            tokio::join!(answer, programs[at].expect_done(7)).0.unwrap();
            programs[at]
                .expect_reply(format!("seen {len} 3"), "same")
                .await;
        }
        // One goes, and the other is served on.
        let waits = pool.shared_rx.recv().start().unwrap();
        one.kill();
        two.expect_reply("send 1 20 4 - 0 0", "posted").await;
        assert!(waits.await.unwrap()[..] == pattern(20, 4)[..]);
    });
}
