//! A process, the victim, kills itself at a stage of its communication with a peer, the survivor.
//! The tests check the events and errors of the survivor, and that the survivor leaks no resources.
//! A stage has a function that the victim runs until it dies, and a function in a `survives` module
//! that the survivor runs.

mod handshake;
mod memory;
mod messages;
mod parked;

use fabric_async::{DownReason, Endpoint, Error, EventKind, EventQueue, FiAddr};
use rustix::process::Signal;

use crate::domain_mode::DomainMode;
use crate::health::assert_still_works;
use crate::leak_check::{ResourceUsage, run_in_own_process};
use crate::run;
use crate::test_peer::TestPeer;

/// Victims of each test in a domain of each mode; resources may grow only with the first.
const ROUNDS: usize = 3;

/// The process that stays alive.
struct Survivor {
    ep: Endpoint,
    events: EventQueue,
    echo_peer: FiAddr,
    round: usize,
    mode: DomainMode,
}

/// Kills this process with SIGKILL.
pub(crate) fn kill_self() -> ! {
    rustix::process::kill_process(rustix::process::getpid(), Signal::KILL).expect("send SIGKILL");
    unreachable!("SIGKILL ends the process")
}

/// Plays the victim of a stage.
pub(crate) async fn run_victim(stage: &str, name: &str) -> ! {
    match stage {
        "after_connect" | "after_hello" | "after_partial_message" => {
            handshake::connect_and_die(stage, name)
        }
        "before_accept"
        | "after_accept"
        | "after_reading_hello"
        | "after_handshake"
        | "after_key_query" => handshake::accept_and_die(stage, name),
        "mid_send" => messages::mid_send(name).await,
        "mid_receive" => messages::mid_receive(name).await,
        "without_reading" => messages::without_reading(name).await,
        "with_unreceived_messages" => messages::with_unreceived_messages(name).await,
        "after_last_send" => messages::after_last_send(name).await,
        "holding_loans" => memory::holding_loans(name).await,
        "with_lent_loans" => memory::with_lent_loans(name).await,
        "mid_write" => memory::mid_write(name).await,
        "owning_rma_target" => memory::owning_rma_target(name).await,
        "holding_remote_lock" => memory::holding_remote_lock(name).await,
        other => panic!("unknown stage {other}"),
    }
}

/// Plays the victim of a stage that needs a runtime of its own.
pub(crate) fn run_sleeping_victim(stage: &str, name: &str) -> ! {
    parked::run_victim(stage, name)
}

impl Survivor {
    /// Returns the address at which the victim of this round listens.
    fn victim_address(&self) -> String {
        format!(
            "shm://victim-{}-{:?}-{}",
            std::process::id(),
            self.mode,
            self.round
        )
    }

    /// Waits for the end of a connection with a peer whose name begins with `prefix`.
    async fn wait_peer_down(&mut self, prefix: &str) -> DownReason {
        loop {
            match self.events.read().await.kind {
                EventKind::PeerDown { peer, reason, .. } if peer.name().starts_with(prefix) => {
                    return reason;
                }
                EventKind::PeerConnected { .. }
                | EventKind::PeerDown { .. }
                | EventKind::PeerOverBudget { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Waits for the death of this peer, then for the end of its process.
    async fn wait_peer_died(&mut self, mut victim: TestPeer) {
        // The dot ends the process ID in the names of its endpoints: another process ID may begin
        // with the same digits.
        let process = format!("{}.", victim.0.id());
        assert_eq!(self.wait_peer_down(&process).await, DownReason::Died);
        wait_exit(&mut victim).await;
    }

    /// Checks that other peers are not affected.
    async fn assert_works(&self) {
        let number = (self.round as u64).to_le_bytes();
        self.ep.send(self.echo_peer, number.to_vec()).await.unwrap();
        assert_eq!(
            self.ep.recv().tag(4).from(self.echo_peer).await.unwrap()[..],
            number
        );
        assert_still_works(&self.ep).await;
    }
}

/// Waits until the process of a peer has ended.
pub(crate) async fn wait_exit(victim: &mut TestPeer) {
    while victim.0.try_wait().unwrap().is_none() {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}

/// Checks that an operation has failed because its peer died.
#[track_caller]
fn assert_peer_gone(error: &Error) {
    assert!(error.is_peer_unavailable(), "{error}");
}

/// Runs a stage several times in a domain of each mode; compares the resources after each round.
fn run_stage(stage: &str, survives: impl AsyncFn(&mut Survivor, TestPeer)) {
    run_in_own_process(&format!("peer_death::{stage}"), || {
        for mode in DomainMode::ALL {
            run(async {
                let ep = mode.options().bind("shm://").await.unwrap();
                let events = ep.take_events().unwrap();
                let _echo_process = TestPeer::start("echo", &ep.name().to_string());
                let echo_peer = ep.recv().tag(3).await.unwrap().source().unwrap();
                let mut survivor = Survivor {
                    ep,
                    events,
                    echo_peer,
                    round: 0,
                    mode,
                };
                let mut before: Option<ResourceUsage> = None;
                for round in 0..ROUNDS {
                    survivor.round = round;
                    let name = match stage {
                        "before_accept"
                        | "after_accept"
                        | "after_reading_hello"
                        | "after_handshake"
                        | "after_key_query" => survivor.victim_address(),
                        _ => survivor.ep.name().to_string(),
                    };
                    survives(
                        &mut survivor,
                        TestPeer::start(&format!("dies-{stage}"), &name),
                    )
                    .await;
                    survivor.assert_works().await;
                    match before {
                        // The first round makes the allocations that are made only once.
                        None => before = Some(ResourceUsage::wait_stable().await),
                        Some(usage) => usage.wait_restored().await,
                    }
                }
            });
        }
    });
}

macro_rules! stage_tests {
    ($($module:ident: $($stage:ident),*;)*) => {$($(
        #[test]
        fn $stage() {
            run_stage(stringify!($stage), $module::survives::$stage);
        }
    )*)*};
}

stage_tests! {
    handshake: after_connect, after_hello, after_partial_message, before_accept, after_accept,
        after_reading_hello, after_handshake, after_key_query;
    messages: mid_send, mid_receive, without_reading, with_unreceived_messages, after_last_send;
    memory: holding_loans, with_lent_loans, mid_write, owning_rma_target, holding_remote_lock;
    parked: while_parked, while_progress_thread_parked;
}
