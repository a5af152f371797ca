//! Tests against libfabric: the tests build `interop/peer.c` and start it as a peer over the
//! providers that speak the native protocol or RXM. Where the program cannot be built, the tests
//! are skipped with a message.
//!
//! | module | subject |
//! |---|---|
//! | `libfabric_peer` | the peer program: built once, started, driven by commands |
//! | `rma` | reads and writes in both directions |
//! | `messages` | CQ data, acknowledgements, truncation |
//! | `connected` | `FI_EP_MSG`: requests, acceptances, rejections, RMA, shutdown |
//! | `rxm_rma` | reads and writes with peers that speak RXM |
//! | `atomics` | atomic operations with peers that speak RXM, in both directions |
//! | `shared_rx` | `FI_EP_MSG` endpoints with a shared receive context |
//! | `reconnect` | restarted peers and simultaneous connects |

mod atomics;
mod connected;
mod libfabric_peer;
mod messages;
mod reconnect;
mod rma;
mod rxm_rma;
mod shared_rx;

use std::future::Future;
use std::time::Duration;

use fabric_async::{
    AddressVector, Caps, CompletionQueue, CqBind, Domain, Endpoint, EpType, Fabric, FiAddr, Hints,
    Progress, SocketIo, discover,
};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use libfabric_peer::LibfabricPeer;

/// Longer than any scenario takes; exceeding it means a hang.
const SCENARIO_TIMEOUT: Duration = Duration::from_secs(60);

/// An endpoint of this library with its objects, and a task that makes progress.
pub(crate) struct InteropFixture {
    pub(crate) domain: Domain,
    pub(crate) ep: Endpoint,
    pub(crate) av: AddressVector,
    pub(crate) cq: CompletionQueue,
    progress_task: JoinHandle<()>,
}

impl InteropFixture {
    /// Opens an endpoint of this provider: `tcp`, or the chain that starts with RXM.
    async fn open(provider: &str, progress: Progress, io: SocketIo) -> fabric_async::Result<Self> {
        let caps =
            Caps::MSG | Caps::TAGGED | Caps::RMA | Caps::ATOMIC | Caps::SOURCE | Caps::RMA_EVENT;
        let hints = Hints::new()
            .provider(provider)
            .ep_type(EpType::Rdm)
            .caps(caps)
            .progress(progress);
        let info = discover(&hints)?.swap_remove(0);
        let fabric = Fabric::open(&info)?;
        let domain = fabric.domain_builder(&info).socket_io(io).open()?;
        let (cq, av) = (
            domain.completion_queue(256)?,
            domain.auto_insert_address_vector()?,
        );
        let ep = domain
            .endpoint(&info)?
            .bind_cq(&cq, CqBind::TRANSMIT | CqBind::RECV)?
            .bind_av(&av)?;
        let ep = ep.enable()?;
        let never = domain.counter()?;
        let progress_task = tokio::spawn(async move { drop(never.wait(1).await) });
        Ok(Self {
            domain,
            ep,
            av,
            cq,
            progress_task,
        })
    }

    /// Returns the port on which the endpoint listens.
    pub(crate) fn port(&self) -> u16 {
        self.ep
            .name()
            .socket_addr()
            .expect("a socket address")
            .port()
    }

    /// Returns the address handle of a peer.
    pub(crate) fn fi_addr_of(&self, peer: &LibfabricPeer) -> FiAddr {
        self.av
            .insert(format!("tcp://127.0.0.1:{}", peer.port))
            .expect("the address is valid")
    }
}

impl Drop for InteropFixture {
    fn drop(&mut self) {
        self.progress_task.abort();
    }
}

/// Runs a scenario against a peer with each progress mode and socket I/O of this library.
pub(crate) fn run_against_peer<F: Future<Output = ()>>(
    scenario: impl Fn(InteropFixture, LibfabricPeer) -> F,
) {
    run_with(|| LibfabricPeer::start(0), |_| "tcp", scenario);
}

/// Runs a scenario against peers that speak RXM, over every provider that has it. The endpoint of
/// this library finds out the protocol when it connects, or has it from its provider chain.
pub(crate) fn run_against_rxm_peer<F: Future<Output = ()>>(
    is_atomic: bool,
    scenario: impl Fn(InteropFixture, LibfabricPeer) -> F,
) {
    for provider in ["tcp;ofi_rxm", "net;ofi_rxm"] {
        let start = || LibfabricPeer::start_rxm(provider, is_atomic);
        let local_provider = |progress| {
            if progress == Progress::Auto {
                "tcp;ofi_rxm"
            } else {
                "tcp"
            }
        };
        run_with(start, local_provider, &scenario);
    }
}

fn run_with<F: Future<Output = ()>>(
    start: impl Fn() -> Option<LibfabricPeer>,
    local_provider: impl Fn(Progress) -> &'static str,
    scenario: impl Fn(InteropFixture, LibfabricPeer) -> F,
) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    for progress in [Progress::Manual, Progress::Auto] {
        for io in [SocketIo::Epoll, SocketIo::IoUring] {
            let Some(peer) = start() else { return };
            let fixture = match runtime.block_on(InteropFixture::open(
                local_provider(progress),
                progress,
                io,
            )) {
                Ok(fixture) => fixture,
                Err(error) if io == SocketIo::IoUring => {
                    eprintln!("skipped {io:?}: {error}");
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            let result = runtime
                .block_on(async { timeout(SCENARIO_TIMEOUT, scenario(fixture, peer)).await });
            assert!(
                result.is_ok(),
                "{progress:?}, {io:?}: the scenario did not end within {SCENARIO_TIMEOUT:?}"
            );
        }
    }
    runtime.shutdown_background();
}

/// Returns the bytes that the peer generates from a seed.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|at| (at * 7) as u8)
        .map(|byte| byte.wrapping_add(seed))
        .collect()
}
