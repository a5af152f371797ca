//! Victims that die while they sleep with an armed doorbell.

use std::sync::OnceLock;

use fabric_async::{Domain, Endpoint, Progress};

/// The victim's domain, set once the victim may die when it sleeps.
static PARKED_DOMAIN: OnceLock<Domain> = OnceLock::new();

pub(super) fn run_victim(stage: &str, name: &str) -> ! {
    match stage {
        "while_parked" => while_parked(name),
        _ => crate::run(while_progress_thread_parked(name)),
    }
}

/// Dies when its runtime parks.
fn while_parked(name: &str) -> ! {
    let on_park = || {
        if PARKED_DOMAIN
            .get()
            .is_some_and(|domain| domain.stats().parks > 0)
        {
            super::kill_self();
        }
    };
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime
        .enable_all()
        .on_thread_park(on_park)
        .build()
        .unwrap()
        .block_on(async {
            let ep = Endpoint::bind("shm://").await.unwrap();
            let peer = ep.add_peer(name).await.unwrap();
            ep.send(peer, "here").tag(1).await.unwrap();
            PARKED_DOMAIN.set(ep.domain().clone()).expect("set once");
            ep.recv().tag(99).await.unwrap();
            unreachable!("no message has this tag")
        })
}

/// Dies when its progress thread sleeps.
async fn while_progress_thread_parked(name: &str) -> ! {
    let ep = Endpoint::options()
        .progress(Progress::Auto)
        .bind("shm://")
        .await
        .unwrap();
    let peer = ep.add_peer(name).await.unwrap();
    ep.send(peer, "here").tag(1).await.unwrap();
    let _posted = ep.recv().tag(99).start().unwrap();
    while !format!("{:?}", ep.domain()).contains("armed, driver asleep") {
        std::thread::yield_now();
    }
    super::kill_self()
}

pub(super) mod survives {
    use super::super::{Survivor, assert_peer_gone};
    use crate::test_peer::TestPeer;

    /// The survivor sleeps as well when its peer dies, and wakes up.
    pub(crate) async fn while_parked(survivor: &mut Survivor, victim: TestPeer) {
        let peer = survivor.ep.recv().tag(1).await.unwrap().source().unwrap();
        assert_peer_gone(
            &survivor
                .ep
                .recv()
                .tag(2)
                .from(peer)
                .await
                .unwrap_err()
                .error,
        );
        // Ringing the doorbell of a dead peer has no effect.
        let error = loop {
            if let Err(failed) = survivor.ep.send(peer, "wake up").await {
                break failed.error;
            }
        };
        assert_peer_gone(&error);
        survivor.wait_peer_died(victim).await;
    }

    pub(crate) use while_parked as while_progress_thread_parked;
}
