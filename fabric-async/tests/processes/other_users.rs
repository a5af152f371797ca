//! Processes of other users connect without end. They are refused a few at a time, and peers of
//! this user are served meanwhile.

use fabric_async::{Endpoint, Error, EventKind};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};

use crate::connected_shm_hostile::listen;
use crate::health::{assert_still_works, take_refused_count};
use crate::hostile::connect_raw_to;
use crate::leak_check::{ResourceUsage, run_in_own_process};
use crate::run;
use crate::skip::{Facility, skip};
use crate::test_peer::TestPeer;

/// User of the attackers.
const USER: u32 = 65_534;
/// Connections in the backlog before the endpoint makes progress.
const QUEUED: u64 = 100;
/// Connections of another user that one poll refuses.
const REFUSALS_PER_POLL: u64 = 2;
/// Refusals during which peers of this user are served.
const FLOOD: u64 = 2000;
const HONEST_PEERS: usize = 20;

/// Plays an attacker: connects [`QUEUED`] times and stops (`SIGSTOP`). When it is continued, it
/// connects again and again until it is killed.
pub(crate) fn connect_flood(name: &str) {
    let name = name.rsplit("://").next().unwrap();
    let queued: Vec<_> = (0..QUEUED).map(|_| connect_raw_to(name)).collect();
    kill_process(getpid(), Signal::STOP).expect("signal this process");
    drop(queued);
    loop {
        let socket = connect_raw_to(name);
        // Waits for the rejection, or for the end of the connection.
        let received = rustix::net::recv(&socket, &mut [0; 64], RecvFlags::empty());
        assert!(received.is_ok() || received == Err(Errno::CONNRESET));
    }
}

/// Starts an attacker, and waits until it has stopped with [`QUEUED`] connections in the backlog.
/// `None` if no process of another user can be started.
fn start_attacker(name: &str) -> Option<TestPeer> {
    if !rustix::process::geteuid().is_root() {
        skip(
            Facility::Root,
            "root is needed to start a process of another user",
        );
        return None;
    }
    match TestPeer::start_as_user("connect_flood", name, USER) {
        Ok(attacker) => {
            waitpid(Some(Pid::from_child(&attacker.0)), WaitOptions::UNTRACED)
                .expect("wait for a child");
            Some(attacker)
        }
        Err(error) => {
            skip(Facility::Root, format!("start as another user: {error}"));
            None
        }
    }
}

#[test]
fn poll_refuses_few_connections_of_another_user() {
    run_in_own_process(
        "other_users::poll_refuses_few_connections_of_another_user",
        || {
            run(async {
                let ep = Endpoint::bind("shm://").await.unwrap();
                let mut events = ep.take_events().unwrap();
                assert_still_works(&ep).await;
                take_refused_count(&mut events);
                let before = ResourceUsage::wait_stable().await;
                let Some(attacker) = start_attacker(&ep.name().to_string()) else {
                    return;
                };
                for _ in 0..20 {
                    ep.domain().progress();
                    assert_eq!(take_refused_count(&mut events), REFUSALS_PER_POLL);
                }
                // An honest peer waits in the backlog behind the attacker.
                assert_still_works(&ep).await;
                drop(attacker);
                before.wait_restored().await;
            });
        },
    );
}

#[test]
fn poll_of_a_passive_endpoint_refuses_few_connections_of_another_user() {
    run(async {
        let (mut passive, mut events) = listen().await;
        let Some(_attacker) = start_attacker(&passive.name().to_string()) else {
            return;
        };
        for _ in 0..20 {
            assert!(passive.try_accept().is_none());
            assert_eq!(take_refused_count(&mut events), REFUSALS_PER_POLL);
        }
    });
}

#[test]
fn peers_of_this_user_are_served_during_a_flood_of_another_user() {
    run_in_own_process(
        "other_users::peers_of_this_user_are_served_during_a_flood_of_another_user",
        || {
            run(async {
                let ep = Endpoint::bind("shm://").await.unwrap();
                let mut events = ep.take_events().unwrap();
                assert_still_works(&ep).await;
                take_refused_count(&mut events);
                let before = ResourceUsage::wait_stable().await;
                let Some(attacker) = start_attacker(&ep.name().to_string()) else {
                    return;
                };
                attacker.resume();
                for _ in 0..HONEST_PEERS {
                    assert_still_works(&ep).await;
                }
                let (mut connected, mut refusals, mut refused) = (0, 0, 0);
                while refused < FLOOD || connected < HONEST_PEERS {
                    match events.read().await.kind {
                        EventKind::PeerConnected { .. } => connected += 1,
                        EventKind::InboundRefused {
                            error: Error::OtherUser { theirs: USER, .. },
                            count,
                        } => {
                            refusals += 1;
                            refused += count;
                        }
                        EventKind::PeerDown { .. } => {}
                        other => panic!("{other:?}"),
                    }
                }
                assert_eq!(connected, HONEST_PEERS);
                assert!(refusals > 0);
                drop(attacker);
                before.wait_restored().await;
            });
        },
    );
}
