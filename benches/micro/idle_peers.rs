//! Microbenchmarks of empty progress passes with idle peers.

use fabric_async::{Endpoint, Result, WaitPolicy};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Runtime;

use crate::suite::Microbench;

/// Passes of one repetition.
const PASSES: usize = 64;
/// Passes after which all peers are idle.
const PASSES_UNTIL_IDLE: usize = 3000;

pub(crate) fn all() -> Vec<Microbench> {
    vec![
        ("64 empty passes/1 idle peer", empty_passes(1)),
        ("64 empty passes/16 idle peers", empty_passes(16)),
        ("64 empty passes/256 idle peers", empty_passes(256)),
    ]
}

/// An endpoint to which each of its peers has sent a message.
struct IdlePeersFixture {
    ep: Endpoint,
    _peers: Vec<Endpoint>,
    _runtime: Runtime,
}

impl IdlePeersFixture {
    fn open(peers: usize) -> Self {
        // Many shells set a low soft limit.
        let limit = getrlimit(Resource::Nofile);
        let _ = setrlimit(
            Resource::Nofile,
            Rlimit {
                current: limit.maximum,
                ..limit
            },
        );
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let opened: Result<_> = runtime.block_on(async {
            let options = Endpoint::options().wait_policy(WaitPolicy::Spin);
            let ep = options.clone().bind("shm://").await?;
            let mut peers_open = Vec::new();
            for _ in 0..peers {
                let peer = options.clone().bind("shm://").await?;
                let to = peer.add_peer(ep.name()).await?;
                peer.send(to, "here").await?;
                drop(ep.recv().await?);
                peers_open.push(peer);
            }
            Ok((ep, peers_open))
        });
        let (ep, _peers) = opened.expect("shared memory");
        for _ in 0..PASSES_UNTIL_IDLE {
            ep.domain().progress();
        }
        Self {
            ep,
            _peers,
            _runtime: runtime,
        }
    }
}

/// The fixture is opened with the first repetition, so that other benchmarks run without it.
fn empty_passes(peers: usize) -> Box<dyn FnMut() -> usize> {
    let mut fixture = None;
    Box::new(move || {
        let fixture = fixture.get_or_insert_with(|| IdlePeersFixture::open(peers));
        let domain = fixture.ep.domain();
        (0..PASSES).filter(|_| !domain.progress()).count()
    })
}
