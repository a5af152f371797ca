//! A process kills itself at every stage of its life with a peer. What the peer sees, and that it
//! keeps nothing.
//!
//! For every stage there is a part that the victim plays to its end, and next to it what the
//! survivor does meanwhile.

mod bootstrap;
mod memory;
mod messages;
mod sleep;

use fabric_async::{DownReason, Endpoint, Error, EventKind, EventQueue, FiAddr, Progress};
use rustix::process::Signal;

use crate::census::{Census, alone};
use crate::role::Peer;
use crate::run;
use crate::witness::still_works;

/// How often a victim comes and dies; nothing may grow from the second time on.
const ROUNDS: usize = 3;

/// Who stays alive.
struct Survivor {
    ep: Endpoint,
    events: EventQueue,
    friend: FiAddr,
    round: usize,
    progress: Progress,
}

/// A victim of its own.
pub(crate) fn die() -> ! {
    rustix::process::kill_process(rustix::process::getpid(), Signal::KILL)
        .expect("a process may kill itself");
    unreachable!("nobody survives that")
}

/// Plays the victim of a stage.
pub(crate) async fn play(stage: &str, name: &str) -> ! {
    match stage {
        "connected" | "greeted" | "spoke" => bootstrap::calls(stage, name),
        "unaccepted" | "accepted" | "heard" | "welcomed" | "asked" => {
            bootstrap::listens(stage, name)
        }
        "mid_send" => messages::mid_send(name).await,
        "mid_receive" => messages::mid_receive(name).await,
        "unread" => messages::unread(name).await,
        "unconfirmed" => messages::unconfirmed(name).await,
        "last_words" => messages::last_words(name).await,
        "holding" => memory::holding(name).await,
        "lending" => memory::lending(name).await,
        "writing" => memory::writing(name).await,
        "owning" => memory::owning(name).await,
        "locking" => memory::locking(name).await,
        other => panic!("unknown stage {other}"),
    }
}

/// Plays the victim of a stage that needs a runtime of its own.
pub(crate) fn sleep(stage: &str, name: &str) -> ! {
    sleep::play(stage, name)
}

impl Survivor {
    /// A name for the victim of this round to listen at.
    fn victims_name(&self) -> String {
        format!(
            "shm://victim-{}-{:?}-{}",
            std::process::id(),
            self.progress,
            self.round
        )
    }

    /// Waits for the end of a peer whose name begins like this.
    async fn hears_of_the_end(&mut self, of: &str) -> DownReason {
        loop {
            match self.events.next().await.kind {
                EventKind::PeerDown { peer, reason, .. } if peer.name().starts_with(of) => {
                    return reason;
                }
                EventKind::PeerConnected { .. } | EventKind::PeerDown { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Waits for the death of this peer, then for that of its process.
    async fn hears_of_the_death(&mut self, mut victim: Peer) {
        // With what follows in the names it makes: another process's number may begin with this
        // one.
        let process = format!("{}.", victim.0.id());
        assert_eq!(self.hears_of_the_end(&process).await, DownReason::Died);
        ended(&mut victim).await;
    }

    /// Nobody but the victim is hurt.
    async fn goes_on(&self) {
        let word = (self.round as u64).to_le_bytes();
        self.ep.send(self.friend, word.to_vec()).await.unwrap();
        assert_eq!(
            self.ep.recv().tag(4).from(self.friend).await.unwrap()[..],
            word
        );
        still_works(&self.ep).await;
    }
}

/// Waits until a peer's process is no more.
pub(crate) async fn ended(victim: &mut Peer) {
    while victim.0.try_wait().unwrap().is_none() {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}

/// The failure of an operation whose peer has died.
#[track_caller]
fn assert_gone(error: &Error) {
    assert!(error.is_peer_gone(), "{error}");
}

/// Runs a stage: some rounds of it under each mode of progress, and a census after each.
fn stage(stage: &str, survives: impl AsyncFn(&mut Survivor, Peer)) {
    alone(&format!("stages::{stage}"), || {
        for progress in [Progress::Manual, Progress::Auto] {
            run(async {
                let ep = Endpoint::options()
                    .progress(progress)
                    .bind("shm://")
                    .await
                    .unwrap();
                let events = ep.events().unwrap();
                let _friend = Peer::start("echo", &ep.name().to_string());
                let friend = ep.recv().tag(3).await.unwrap().source().unwrap();
                let mut survivor = Survivor {
                    ep,
                    events,
                    friend,
                    round: 0,
                    progress,
                };
                let mut before: Option<Census> = None;
                for round in 0..ROUNDS {
                    survivor.round = round;
                    let name = match stage {
                        "unaccepted" | "accepted" | "heard" | "welcomed" | "asked" => {
                            survivor.victims_name()
                        }
                        _ => survivor.ep.name().to_string(),
                    };
                    survives(&mut survivor, Peer::start(&format!("dies-{stage}"), &name)).await;
                    survivor.goes_on().await;
                    match before {
                        // The first round leaves what is made once.
                        None => before = Some(Census::settled().await),
                        Some(census) => census.returns().await,
                    }
                }
            });
        }
    });
}

macro_rules! stages {
    ($($module:ident: $($stage:ident),*;)*) => {$($(
        #[test]
        fn $stage() {
            stage(stringify!($stage), $module::survives::$stage);
        }
    )*)*};
}

stages! {
    bootstrap: connected, greeted, spoke, unaccepted, accepted, heard, welcomed, asked;
    messages: mid_send, mid_receive, unread, unconfirmed, last_words;
    memory: holding, lending, writing, owning, locking;
    sleep: parked, parked_thread;
}
