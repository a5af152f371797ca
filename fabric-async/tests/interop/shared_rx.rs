//! `FI_EP_MSG` endpoints with a shared receive context: peers without one connect, and are
//! connected to.

use std::future::{Future, IntoFuture};

use fabric_async::info::SHARED_CONTEXT;
use fabric_async::{
    ConnectedEndpoint, CqBind, Domain, EndpointBuilder, EpType, Error, Fabric, Hints, Info,
    PassiveEndpoint, Progress, Result, SharedRxContext, SocketIo, discover,
};
use tokio::time::timeout;

use crate::libfabric_peer::LibfabricPeer;
use crate::{SCENARIO_TIMEOUT, pattern};

/// The local side: a passive endpoint, and the shared receive context of its endpoints.
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
        let info = discover(&hints.ep_rx_ctx_cnt(SHARED_CONTEXT))?.swap_remove(0);
        let fabric = Fabric::open(&info)?;
        let domain = fabric.domain_builder(&info).socket_io(io).open()?;
        let shared_rx = domain.shared_rx_context(&info)?.open()?;
        Ok(Self {
            passive: fabric.passive_endpoint(&info)?.listen()?,
            shared_rx,
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

    /// The peer connects to the local passive endpoint.
    pub(crate) async fn accept_from(&mut self, peer: &LibfabricPeer) -> ConnectedEndpoint {
        let port = self.passive.name().socket_addr().unwrap().port();
        peer.expect_reply(format!("connect 127.0.0.1 {port} let-me-in"), "connecting")
            .await;
        let ep = self.endpoint_builder().unwrap();
        let accepting = async {
            ep.accept(self.passive.accept().await.unwrap(), "welcome")
                .unwrap()
        };
        let (ep, reply) = tokio::join!(accepting, peer.request("eq"));
        assert_eq!(reply, "connected welcome");
        ep
    }

    /// The local endpoint connects to the peer.
    pub(crate) async fn connect_to(&self, peer: &LibfabricPeer) -> ConnectedEndpoint {
        let to = format!("tcp://127.0.0.1:{}", peer.port);
        let connecting = tokio::spawn(self.endpoint_builder().unwrap().connect(&to).into_future());
        assert_eq!(peer.request("eq").await, "request");
        peer.expect_reply("accept", "accepted").await;
        assert_eq!(peer.request("eq").await, "connected");
        connecting.await.unwrap().unwrap()
    }
}

/// Runs a scenario against two peers in every mode of the local side.
pub(crate) fn run_against_two_peers<F: Future<Output = ()>>(
    scenario: impl Fn(InteropSharedRxFixture, [LibfabricPeer; 2]) -> F,
) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    for progress in [Progress::Manual, Progress::Auto] {
        for io in [SocketIo::Epoll, SocketIo::IoUring] {
            let peers = (LibfabricPeer::start_msg(), LibfabricPeer::start_msg());
            let (Some(one), Some(two)) = peers else {
                return;
            };
            let fixture = match runtime.block_on(InteropSharedRxFixture::open(progress, io)) {
                Ok(fixture) => fixture,
                Err(error) if io == SocketIo::IoUring => {
                    eprintln!("skipped {io:?}: {error}");
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            let result = runtime
                .block_on(async { timeout(SCENARIO_TIMEOUT, scenario(fixture, [one, two])).await });
            assert!(
                result.is_ok(),
                "{progress:?}, {io:?}: not done after {SCENARIO_TIMEOUT:?}"
            );
        }
    }
    runtime.shutdown_background();
}

#[test]
fn two_libfabric_peers_send_to_one_shared_rx_context() {
    run_against_two_peers(async |mut fixture, [one, two]| {
        let endpoints = [
            fixture.accept_from(&one).await,
            fixture.connect_to(&two).await,
        ];
        let peers = [&one, &two];
        for round in 0..8 {
            let (index, len) = (round % 2, [8, 5000, 1 << 20, 0][round / 2]);
            let early_recv = (round % 3 == 0).then(|| fixture.shared_rx.recv().start().unwrap());
            peers[index]
                .expect_reply(format!("send {round} {len} {round} da 99 0"), "posted")
                .await;
            let receive = early_recv.unwrap_or_else(|| fixture.shared_rx.recv().start().unwrap());
            let (got, _) = tokio::join!(receive, peers[index].expect_done(round as u64));
            let got = got.unwrap();
            assert!(got[..] == pattern(len, round as u8)[..] && got.data() == Some(99));
            assert_eq!(got.source(), Err(Error::UnknownSource));
            assert_eq!(
                fixture.shared_rx.received_by(&got.transfer),
                Some(endpoints[index].id())
            );
            peers[index]
                .expect_reply(format!("recv 7 {len} - 0"), "posted")
                .await;
            let send_back = endpoints[index].send(pattern(len, 3)).start().unwrap();
            tokio::join!(send_back, peers[index].expect_done(7))
                .0
                .unwrap();
            peers[index]
                .expect_reply(format!("check_rx {len} 3"), "same")
                .await;
        }
        // One peer is killed, and the other is still served.
        let receive = fixture.shared_rx.recv().start().unwrap();
        one.kill();
        two.expect_reply("send 1 20 4 - 0 0", "posted").await;
        assert!(receive.await.unwrap()[..] == pattern(20, 4)[..]);
    });
}
