//! libfabric itself is the peer: its provider that speaks the native wire, driven by a small program of ours
//! (`interop/peer.c`), which is built here. Skips, and says so, where it cannot be built.
//!
//! | module | subject |
//! |---|---|
//! | `program` | the program: built once, started, told what to do |
//! | `memory` | reads and writes, both ways |
//! | `messages` | data, acknowledgements, truncation |
//! | `connected` | connected endpoints: requests, answers, refusals, memory, the end |
//! | `sharing` | connected endpoints that share a receive context |
//! | `connections` | peers that are killed and come back, and that dial at once |

mod connected;
mod connections;
mod memory;
mod messages;
mod program;
mod sharing;

use std::future::Future;
use std::time::Duration;

use fabric_async::{
    AddressVector, Caps, CompletionQueue, CqBind, Domain, Endpoint, Fabric, FiAddr, Hints, Progress,
    SocketIo, discover,
};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use program::Program;

/// Only tells a hang from the rest.
const HANGS: Duration = Duration::from_secs(60);

/// Our side: an endpoint with everything around it, kept moving.
pub(crate) struct Side {
    pub(crate) domain: Domain,
    pub(crate) ep: Endpoint,
    pub(crate) av: AddressVector,
    pub(crate) cq: CompletionQueue,
    moving: JoinHandle<()>,
}

impl Side {
    async fn open(progress: Progress, io: SocketIo) -> fabric_async::Result<Self> {
        let caps = Caps::MSG | Caps::TAGGED | Caps::RMA | Caps::ATOMIC | Caps::SOURCE | Caps::RMA_EVENT;
        let info =
            discover(&Hints::new().provider("tcp").caps(caps).progress(progress)).await?.swap_remove(0);
        let fabric = Fabric::open(&info)?;
        let domain = fabric.domain_builder(&info).socket_io(io).open()?;
        let (cq, av) = (domain.completion_queue(256)?, domain.welcoming_address_vector()?);
        let ep = domain.endpoint(&info)?.bind_cq(&cq, CqBind::TRANSMIT | CqBind::RECV)?.bind_av(&av)?;
        let ep = ep.enable().await?;
        let never = domain.counter()?;
        let moving = tokio::spawn(async move { drop(never.wait(1).await) });
        Ok(Self { domain, ep, av, cq, moving })
    }

    /// Where it listens.
    pub(crate) fn port(&self) -> u16 {
        self.ep.name().socket().expect("an address of a socket").port()
    }

    /// The number of a program.
    pub(crate) fn number(&self, peer: &Program) -> FiAddr {
        self.av.insert(format!("tcp://127.0.0.1:{}", peer.port)).expect("an address")
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.moving.abort();
    }
}

/// Plays with a program in every way that our side can be opened.
pub(crate) fn play<F: Future<Output = ()>>(game: impl Fn(Side, Program) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for progress in [Progress::Manual, Progress::Auto] {
        for io in [SocketIo::Epoll, SocketIo::IoUring] {
            let Some(program) = Program::start(0) else { return };
            let side = match runtime.block_on(Side::open(progress, io)) {
                Ok(side) => side,
                Err(error) if io == SocketIo::IoUring => {
                    eprintln!("skipped {io:?}: {error}");
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            let ended = runtime.block_on(async { timeout(HANGS, game(side, program)).await });
            assert!(ended.is_ok(), "{progress:?}, {io:?}: still not done after {HANGS:?}");
        }
    }
    runtime.shutdown_background();
}

/// What the program makes of a seed.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at * 7) as u8).map(|byte| byte.wrapping_add(seed)).collect()
}
