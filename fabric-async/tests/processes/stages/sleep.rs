//! Victims that die in their sleep, with their doorbells armed.

use std::sync::OnceLock;

use fabric_async::{Domain, Endpoint, Progress};

/// A victim's domain, from the moment on when it may die in its sleep.
static ASLEEP: OnceLock<Domain> = OnceLock::new();

pub(super) fn play(stage: &str, name: &str) -> ! {
    match stage {
        "parked" => parked(name),
        _ => crate::run(parked_thread(name)),
    }
}

/// Dies when its runtime goes to sleep.
fn parked(name: &str) -> ! {
    let falls_asleep = || {
        if ASLEEP.get().is_some_and(|domain| domain.stats().parks > 0) {
            super::die();
        }
    };
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime
        .enable_all()
        .on_thread_park(falls_asleep)
        .build()
        .unwrap()
        .block_on(async {
            let ep = Endpoint::bind("shm://").await.unwrap();
            let peer = ep.lookup(name).await.unwrap();
            ep.send(peer, "here").tag(1).await.unwrap();
            ASLEEP.set(ep.domain()).expect("once");
            ep.recv().tag(99).await.unwrap();
            unreachable!("nobody sends that")
        })
}

/// Dies when its driver thread has gone to sleep.
async fn parked_thread(name: &str) -> ! {
    let ep = Endpoint::options()
        .progress(Progress::Auto)
        .bind("shm://")
        .await
        .unwrap();
    let peer = ep.lookup(name).await.unwrap();
    ep.send(peer, "here").tag(1).await.unwrap();
    let _waits = ep.recv().tag(99).start().unwrap();
    while !format!("{:?}", ep.domain()).contains("armed, driver asleep") {
        std::thread::yield_now();
    }
    super::die()
}

pub(super) mod survives {
    use super::super::{Survivor, assert_gone};
    use crate::role::Peer;

    /// The survivor is asleep itself when its peer dies, and wakes up for that.
    pub(crate) async fn parked(survivor: &mut Survivor, victim: Peer) {
        let peer = survivor.ep.recv().tag(1).await.unwrap().source().unwrap();
        assert_gone(
            &survivor
                .ep
                .recv()
                .tag(2)
                .from(peer)
                .await
                .unwrap_err()
                .error,
        );
        // To ring at the dead does no harm.
        let error = loop {
            if let Err(failed) = survivor.ep.send(peer, "wake up").await {
                break failed.error;
            }
        };
        assert_gone(&error);
        survivor.hears_of_the_death(victim).await;
    }

    pub(crate) use parked as parked_thread;
}
