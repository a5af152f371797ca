//! libfabric itself is the peer: its providers that speak the native wire, or RXM, driven by a
//! small program of ours (`interop/peer.c`), which is built here. Skips, and says so, where it
//! cannot be built.
//!
//! | module | subject |
//! |---|---|
//! | `program` | the program: built once, started, told what to do |
//! | `memory` | reads and writes, both ways |
//! | `messages` | data, acknowledgements, truncation |
//! | `connected` | connected endpoints: requests, answers, refusals, memory, the end |
//! | `rxm` | programs that speak RXM: reads and writes |
//! | `atomics` | the same: atomic operations, both ways |
//! | `shared_rx_info` | connected endpoints that share a receive context |
//! | `connections` | peers that are killed and come back, and that dial at once |

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

/// Only tells a hang from the rest.
const SCENARIO_TIMEOUT: Duration = Duration::from_secs(60);

/// Our side: an endpoint with everything around it, kept moving.
pub(crate) struct InteropFixture {
    pub(crate) domain: Domain,
    pub(crate) ep: Endpoint,
    pub(crate) av: AddressVector,
    pub(crate) cq: CompletionQueue,
    progress_task: JoinHandle<()>,
}

impl InteropFixture {
    /// An endpoint of this provider, which is `tcp`, or the chain that begins in RXM.
    async fn open(provider: &str, progress: Progress, io: SocketIo) -> fabric_async::Result<Self> {
        let caps =
            Caps::MSG | Caps::TAGGED | Caps::RMA | Caps::ATOMIC | Caps::SOURCE | Caps::RMA_EVENT;
        let hints = Hints::new()
            .provider(provider)
            .ep_type(EpType::Rdm)
            .caps(caps)
            .progress(progress);
        let info = discover(&hints).await?.swap_remove(0);
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
        let ep = ep.enable().await?;
        let never = domain.counter()?;
        let moving = tokio::spawn(async move { drop(never.wait(1).await) });
        Ok(Self {
            domain,
            ep,
            av,
            cq,
            progress_task: moving,
        })
    }

    /// Where it listens.
    pub(crate) fn port(&self) -> u16 {
        self.ep
            .name()
            .socket_addr()
            .expect("an address of a socket")
            .port()
    }

    /// The number of a program.
    pub(crate) fn fi_addr_of(&self, peer: &LibfabricPeer) -> FiAddr {
        self.av
            .insert(format!("tcp://127.0.0.1:{}", peer.port))
            .expect("an address")
    }
}

impl Drop for InteropFixture {
    fn drop(&mut self) {
        self.progress_task.abort();
    }
}

/// Plays with a program in every way that our side can be opened.
pub(crate) fn run_against_peer<F: Future<Output = ()>>(
    game: impl Fn(InteropFixture, LibfabricPeer) -> F,
) {
    run_with(|| LibfabricPeer::start(0), |_| "tcp", game);
}

/// The same with programs that speak RXM, over every provider that they have for it. Our side finds
/// that out when it asks, or knows it.
pub(crate) fn run_against_rxm_peer<F: Future<Output = ()>>(
    is_atomic: bool,
    game: impl Fn(InteropFixture, LibfabricPeer) -> F,
) {
    for provider in ["tcp;ofi_rxm", "net;ofi_rxm"] {
        let start = || LibfabricPeer::start_rxm(provider, is_atomic);
        let ours = |progress| {
            if progress == Progress::Auto {
                "tcp;ofi_rxm"
            } else {
                "tcp"
            }
        };
        run_with(start, ours, &game);
    }
}

fn run_with<F: Future<Output = ()>>(
    start: impl Fn() -> Option<LibfabricPeer>,
    ours: impl Fn(Progress) -> &'static str,
    game: impl Fn(InteropFixture, LibfabricPeer) -> F,
) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    for progress in [Progress::Manual, Progress::Auto] {
        for io in [SocketIo::Epoll, SocketIo::IoUring] {
            let Some(program) = start() else { return };
            let side = match runtime.block_on(InteropFixture::open(ours(progress), progress, io)) {
                Ok(side) => side,
                Err(error) if io == SocketIo::IoUring => {
                    eprintln!("skipped {io:?}: {error}");
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            let ended =
                runtime.block_on(async { timeout(SCENARIO_TIMEOUT, game(side, program)).await });
            assert!(
                ended.is_ok(),
                "{progress:?}, {io:?}: still not done after {SCENARIO_TIMEOUT:?}"
            );
        }
    }
    runtime.shutdown_background();
}

/// What the program makes of a seed.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|at| (at * 7) as u8)
        .map(|byte| byte.wrapping_add(seed))
        .collect()
}
