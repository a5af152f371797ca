//! Connected endpoints that share a receive context: programs that know nothing of it call, and are
//! called.

use std::future::{Future, IntoFuture};

use fabric_async::{
    CqBind, Domain, Endpoint, EndpointBuilder, EpType, Fabric, Hints, Info, PassiveEndpoint,
    Progress, Result, SHARED_CONTEXT, SharedReceive, SocketIo, discover,
};
use tokio::time::timeout;

use crate::program::Program;
use crate::{HANGS, pattern};

/// Our side: a door, and what all its endpoints receive with.
pub(crate) struct Pool {
    pub(crate) door: PassiveEndpoint,
    pub(crate) shared: SharedReceive,
    pub(crate) domain: Domain,
    info: Info,
}

impl Pool {
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
        let shared = domain.shared_receive(&info)?.open()?;
        Ok(Self {
            door: fabric.passive_endpoint(&info)?.listen()?,
            shared,
            domain,
            info,
        })
    }

    fn endpoint(&self) -> Result<EndpointBuilder> {
        let cq = self.domain.completion_queue(64)?;
        self.domain
            .endpoint(&self.info)?
            .bind_cq(&cq, CqBind::TRANSMIT)?
            .bind_shared(&self.shared)
    }

    /// The program calls.
    pub(crate) async fn called_by(&mut self, program: &Program) -> Endpoint {
        let port = self.door.name().socket().unwrap().port();
        program
            .must(format!("connect 127.0.0.1 {port} let-me-in"), "asked")
            .await;
        let ep = self.endpoint().unwrap();
        let accepting = async {
            ep.accept(self.door.next().await.unwrap(), "welcome")
                .await
                .unwrap()
        };
        let (ep, answer) = tokio::join!(accepting, program.tell("event"));
        assert_eq!(answer, "connected welcome");
        ep
    }

    /// The program is called.
    pub(crate) async fn calls(&self, program: &Program) -> Endpoint {
        let to = format!("tcp://127.0.0.1:{}", program.port);
        let calling = tokio::spawn(self.endpoint().unwrap().connect(&to).into_future());
        assert_eq!(program.tell("event").await, "request");
        program.must("accept", "accepted").await;
        assert_eq!(program.tell("event").await, "connected");
        calling.await.unwrap().unwrap()
    }
}

/// Plays with two programs in every way that our side can be opened.
pub(crate) fn play<F: Future<Output = ()>>(game: impl Fn(Pool, [Program; 2]) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    for progress in [Progress::Manual, Progress::Auto] {
        for io in [SocketIo::Epoll, SocketIo::IoUring] {
            let programs = (Program::start_connected(), Program::start_connected());
            let (Some(one), Some(two)) = programs else {
                return;
            };
            let pool = match runtime.block_on(Pool::open(progress, io)) {
                Ok(pool) => pool,
                Err(error) if io == SocketIo::IoUring => {
                    eprintln!("skipped {io:?}: {error}");
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            let ended = runtime.block_on(async { timeout(HANGS, game(pool, [one, two])).await });
            assert!(
                ended.is_ok(),
                "{progress:?}, {io:?}: still not done after {HANGS:?}"
            );
        }
    }
    runtime.shutdown_background();
}

#[test]
fn two_programs_send_to_one_pool() {
    play(async |mut pool, [one, two]| {
        let ends = [pool.called_by(&one).await, pool.calls(&two).await];
        let programs = [&one, &two];
        for round in 0..8 {
            let (at, len) = (round % 2, [8, 5000, 1 << 20, 0][round / 2]);
            let waits = (round % 3 == 0).then(|| pool.shared.recv().start().unwrap());
            programs[at]
                .must(format!("send {round} {len} {round} da 99 0"), "posted")
                .await;
            let receive = waits.unwrap_or_else(|| pool.shared.recv().start().unwrap());
            let (got, _) = tokio::join!(receive, programs[at].done(round as u64));
            let got = got.unwrap();
            assert!(got[..] == pattern(len, round as u8)[..] && got.data() == Some(99));
            assert_eq!(got.source(), ends[at].peer());
            assert_eq!(pool.shared.received_by(&got.transfer), Some(ends[at].id()));
            programs[at]
                .must(format!("recv 7 {len} - 0"), "posted")
                .await;
            let answer = ends[at]
                .send(got.source().unwrap(), pattern(len, 3))
                .start()
                .unwrap();
            tokio::join!(answer, programs[at].done(7)).0.unwrap();
            programs[at].must(format!("seen {len} 3"), "same").await;
        }
        // One goes, and the other is served on.
        let waits = pool.shared.recv().start().unwrap();
        one.kill();
        two.must("send 1 20 4 - 0 0", "posted").await;
        assert!(waits.await.unwrap()[..] == pattern(20, 4)[..]);
    });
}
