//! Passes that find nothing, with more and more peers that say nothing.

use fabric_async::{Endpoint, Result, WaitPolicy};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Runtime;

use crate::work::Work;

/// Passes of one repetition.
const COUNT: usize = 64;
/// Passes after which all peers that say nothing are left alone.
const UNTIL_QUIET: usize = 3000;

pub(crate) fn all() -> Vec<Work> {
    vec![
        ("64 empty passes/1 idle peer", passes(1)),
        ("64 empty passes/16 idle peers", passes(16)),
        ("64 empty passes/256 idle peers", passes(256)),
    ]
}

/// An endpoint that each of its peers has sent a message to.
struct Host {
    ep: Endpoint,
    _peers: Vec<Endpoint>,
    _runtime: Runtime,
}

impl Host {
    fn open(peers: usize) -> Self {
        // More than many shells allow at first.
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
                let to = peer.lookup(ep.name()).await?;
                peer.send(to, "here").await?;
                drop(ep.recv().await?);
                peers_open.push(peer);
            }
            Ok((ep, peers_open))
        });
        let (ep, _peers) = opened.expect("shared memory");
        for _ in 0..UNTIL_QUIET {
            ep.domain().progress();
        }
        Self {
            ep,
            _peers,
            _runtime: runtime,
        }
    }
}

/// Opened with the first repetition, so that others do without.
fn passes(peers: usize) -> Box<dyn FnMut() -> usize> {
    let mut host = None;
    Box::new(move || {
        let host = host.get_or_insert_with(|| Host::open(peers));
        let domain = host.ep.domain();
        (0..COUNT).filter(|_| !domain.progress()).count()
    })
}
