//! Microbenchmarks of empty progress passes with idle peers.

use fabric_async::{Endpoint, Result, WaitPolicy};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Runtime;

use crate::suite::{Microbench, Work};

/// Passes of one repetition.
const PASSES: usize = 64;
/// Passes after which all peers are idle.
const PASSES_UNTIL_IDLE: usize = 3000;

pub(crate) fn all() -> Vec<Microbench> {
    let bench = |name, peers| Microbench::new(name, move || empty_passes(peers)).operations(PASSES);
    vec![
        bench("empty pass/1 idle peer", 1),
        bench("empty pass/16 idle peers", 16),
        bench("empty pass/256 idle peers", 256),
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
        raise_descriptor_limit();
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

/// Raises the soft limit of descriptors, which many shells set low.
pub(crate) fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    );
}

fn empty_passes(peers: usize) -> Work {
    let fixture = IdlePeersFixture::open(peers);
    Box::new(move || {
        let IdlePeersFixture { ep, .. } = &fixture; // with its peers, not `fixture.ep` alone
        let domain = ep.domain();
        (0..PASSES).filter(|_| !domain.progress()).count()
    })
}
