//! Operations that have their time: how they end, and that nothing is left of them.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::slot::TIMEOUT_BIT;
use super::tests::{SMALL_CONFIG, next_completion, open_uring, with_broken_fd};
use super::timed::combine_results;
use super::{CompletionKind, OpId, TimedOutcome, Uring, UringConfig};

/// Longer than any test takes.
const LONG_TIMEOUT: Duration = Duration::from_secs(1000);
/// Not long.
const SHORT_TIMEOUT: Duration = Duration::from_millis(20);

/// A socket that is to connect.
fn tcp_socket() -> Arc<OwnedFd> {
    let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
    Arc::new(rustix::net::socket_with(family, kind, SocketFlags::NONBLOCK, None).unwrap())
}

fn tcp_listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    (listener, at)
}

/// Where somebody listens who has no room for more: attempts are not answered, for as long as it
/// accepts nobody.
fn full_backlog_listener() -> (TcpListener, SocketAddr, TcpStream) {
    let (listener, at) = tcp_listener();
    rustix::net::listen(&listener, 0).unwrap();
    (listener, at, TcpStream::connect(at).unwrap())
}

/// Where nobody listens.
fn closed_port() -> SocketAddr {
    tcp_listener().1
}

fn begin_connect(ring: &mut Uring, socket: &Arc<OwnedFd>, to: SocketAddr, time: Duration) -> OpId {
    let ticket = ring.connect(socket, 7, to, time).unwrap();
    ring.submit().unwrap();
    ticket
}

/// How it ends; nothing is left of it then.
fn wait_outcome(ring: &mut Uring, ticket: OpId) -> TimedOutcome {
    let completion = next_completion(ring);
    assert_eq!(
        (completion.owner, completion.op_id, completion.is_last),
        (7, ticket, true)
    );
    assert_eq!(ring.active_ops(), 0);
    if let CompletionKind::Timed(ended) = completion.kind {
        ended
    } else {
        panic!("{completion:?}")
    }
}

/// Nothing more comes, and whatever did belonged to something.
fn assert_all_released(ring: &mut Uring, socket: &Arc<OwnedFd>) {
    ring.submit().unwrap();
    assert!(ring.next_completion().is_none());
    assert_eq!(
        (
            ring.active_ops(),
            ring.unmatched_cqes(),
            Arc::strong_count(socket)
        ),
        (0, 0, 1)
    );
}

#[test]
fn timed_op_completes_or_times_out() {
    let ((_open, open), (_busy, busy, _first)) = (tcp_listener(), full_backlog_listener());
    for cooperative in [true, false] {
        let Ok(mut ring) = Uring::open(UringConfig {
            coop_taskrun: cooperative,
            ..SMALL_CONFIG
        }) else {
            return;
        };
        for (to, time, expected) in [
            (open, LONG_TIMEOUT, TimedOutcome::Completed(Ok(0))),
            (open, Duration::MAX, TimedOutcome::Completed(Ok(0))),
            (
                closed_port(),
                LONG_TIMEOUT,
                TimedOutcome::Completed(Err(Errno::CONNREFUSED)),
            ),
            (busy, SHORT_TIMEOUT, TimedOutcome::TimedOut),
            (busy, Duration::ZERO, TimedOutcome::TimedOut),
        ] {
            let socket = tcp_socket();
            let ticket = begin_connect(&mut ring, &socket, to, time);
            assert_eq!(wait_outcome(&mut ring, ticket), expected, "{to} {time:?}");
            assert_all_released(&mut ring, &socket);
        }
    }
}

/// What the call would have failed with is known as early as there.
#[test]
fn local_connect_failure_is_known_at_once() {
    let Some(mut ring) = open_uring() else { return };
    // A broadcast, and another family.
    for to in ["255.255.255.255:7", "[::1]:7"] {
        let (socket, to) = (tcp_socket(), to.parse().unwrap());
        let errno = rustix::net::connect(&socket, &to).unwrap_err();
        let ticket = begin_connect(&mut ring, &socket, to, LONG_TIMEOUT);
        assert_eq!(ring.early_error(ticket), Some(errno));
        assert_eq!(
            wait_outcome(&mut ring, ticket),
            TimedOutcome::Completed(Err(errno))
        );
        assert_all_released(&mut ring, &socket);
    }
    let (_busy, busy, _first) = full_backlog_listener();
    let ticket = begin_connect(&mut ring, &tcp_socket(), busy, LONG_TIMEOUT);
    assert_eq!(ring.early_error(ticket), None);
    ring.cancel(ticket);
    ring.submit().unwrap();
    while ring.fetched_cqes.is_empty() {
        ring.fetch_cqes();
    }
    assert_eq!(
        ring.early_error(ticket),
        None,
        "a cancellation is no failure"
    );
    assert_eq!(wait_outcome(&mut ring, ticket), TimedOutcome::Interrupted);
}

#[test]
fn op_and_timer_results_are_combined() {
    use Errno as E;
    let both =
        |operation: E, timer: E| combine_results(-operation.raw_os_error(), -timer.raw_os_error());
    for timer in [E::CANCELED, E::TIME, E::NOENT, E::ALREADY, E::INVAL] {
        assert_eq!(
            combine_results(0, -timer.raw_os_error()),
            TimedOutcome::Completed(Ok(0))
        );
        assert_eq!(
            both(E::CONNREFUSED, timer),
            TimedOutcome::Completed(Err(E::CONNREFUSED))
        );
        // The kernel's own patience, which is not that of the timer.
        assert_eq!(
            both(E::TIMEDOUT, timer),
            TimedOutcome::Completed(Err(E::TIMEDOUT))
        );
    }
    for operation in [E::CANCELED, E::INTR, E::ALREADY, E::INPROGRESS, E::AGAIN] {
        for timer in [E::TIME, E::NOENT, E::ALREADY] {
            assert_eq!(both(operation, timer), TimedOutcome::TimedOut);
        }
        for timer in [E::CANCELED, E::INVAL] {
            assert_eq!(both(operation, timer), TimedOutcome::Interrupted);
        }
    }
}

/// Before both are in, nothing is said, and address and time stay.
#[test]
fn timed_slot_lives_until_both_completions() {
    let Some(mut ring) = open_uring() else { return };
    let canceled = -Errno::CANCELED.raw_os_error();
    for is_timer_first in [false, true] {
        let socket = tcp_socket();
        // Never handed over.
        let ticket = ring.insert_stuck_timed_slot(&socket, 7);
        let halves = [
            (ticket.0, 0),
            (ticket.0 | TIMEOUT_BIT, -Errno::TIME.raw_os_error()),
        ];
        let [first, second] = if is_timer_first {
            [halves[1], halves[0]]
        } else {
            halves
        };
        ring.inject_cqe(first.0, first.1);
        // The same again, and both of another generation.
        ring.inject_cqe(first.0, canceled);
        ring.inject_cqe(ticket.0 ^ 1 << 40, canceled);
        ring.inject_cqe(ticket.0 ^ 1 << 40 | TIMEOUT_BIT, canceled);
        assert!(ring.next_completion().is_none());
        assert_eq!((ring.active_ops(), Arc::strong_count(&socket)), (1, 2));
        ring.inject_cqe(second.0, second.1);
        assert_eq!(
            wait_outcome(&mut ring, ticket),
            TimedOutcome::Completed(Ok(0))
        );
        assert_eq!(std::mem::take(&mut ring.unmatched_cqes), 3);
        assert_all_released(&mut ring, &socket);
    }
}

#[test]
fn failed_timer_cancels_its_operation() {
    let Some(mut ring) = open_uring() else { return };
    let (_busy, busy, _first) = full_backlog_listener();
    let socket = tcp_socket();
    let ticket = begin_connect(&mut ring, &socket, busy, LONG_TIMEOUT);
    ring.inject_cqe(ticket.0 | TIMEOUT_BIT, -Errno::INVAL.raw_os_error());
    assert!(ring.next_completion().is_none());
    ring.submit().unwrap();
    assert_eq!(wait_outcome(&mut ring, ticket), TimedOutcome::Interrupted);
    // The true one belongs to nothing any more.
    while ring.unmatched_cqes() == 0 {
        assert!(ring.next_completion().is_none());
    }
}

#[test]
fn timed_op_queues_both_entries_or_none() {
    let Some(mut ring) = open_uring() else { return };
    let ((_open, open), (_busy, busy, _first)) = (tcp_listener(), full_backlog_listener());
    let one = tcp_socket();
    with_broken_fd(&mut ring, |ring| {
        // Of four entries three.
        ring.connect(&one, 1, busy, SHORT_TIMEOUT).unwrap();
        let idle = tcp_socket();
        ring.recv_multishot(&idle, 2).unwrap();
        assert!(ring.connect(&tcp_socket(), 3, open, LONG_TIMEOUT).is_err());
        assert_eq!(ring.active_ops(), 2);
        assert!(
            ring.recv_multishot(&idle, 4).is_ok(),
            "there is room for one"
        );
    });
    ring.submit().unwrap();
    // Three again: they are handed over first, and then there is room for both.
    let other = tcp_socket();
    for owner in [5, 6, 7] {
        ring.recv_multishot(&other, owner).unwrap();
    }
    ring.connect(&tcp_socket(), 8, open, LONG_TIMEOUT).unwrap();
    ring.submit().unwrap();
    let mut ends: Vec<_> = (0..7)
        .map(|_| next_completion(&mut ring))
        .map(|end| (end.owner, end.kind))
        .collect();
    ends.sort_by_key(|(owner, _)| *owner);
    assert_eq!(
        ends.iter().map(|(owner, _)| *owner).collect::<Vec<_>>(),
        [1, 2, 4, 5, 6, 7, 8]
    );
    assert!(
        matches!(ends[0].1, CompletionKind::Timed(TimedOutcome::TimedOut)),
        "{ends:?}"
    );
    assert!(
        matches!(
            ends[6].1,
            CompletionKind::Timed(TimedOutcome::Completed(Ok(0)))
        ),
        "{ends:?}"
    );
    assert_eq!((ring.active_ops(), ring.unmatched_cqes()), (0, 0));
}

/// Nobody hears of it, the peer neither: its descriptor is closed when both are in.
#[test]
fn detached_timed_op_is_released() {
    let Some(mut ring) = open_uring() else { return };
    let (_busy, busy, _first) = full_backlog_listener();
    let open = tcp_listener().1;
    for to in [busy, open] {
        for is_handed_over in [true, false] {
            let socket = tcp_socket();
            let ticket = ring.connect(&socket, 7, to, LONG_TIMEOUT).unwrap();
            if is_handed_over {
                ring.submit().unwrap();
            }
            ring.detach(ticket);
            ring.submit().unwrap();
            while ring.active_ops() > 0 {
                assert!(ring.next_completion().is_none());
            }
            assert_all_released(&mut ring, &socket);
        }
    }
}

#[test]
fn drop_waits_for_timed_ops() {
    let Some(mut ring) = open_uring() else { return };
    let (_busy, busy, _first) = full_backlog_listener();
    let [one, other] = [tcp_socket(), tcp_socket()];
    begin_connect(&mut ring, &one, busy, LONG_TIMEOUT);
    // And one that was not handed over.
    ring.connect(&other, 7, busy, LONG_TIMEOUT).unwrap();
    drop(ring);
    assert_eq!((Arc::strong_count(&one), Arc::strong_count(&other)), (1, 1));
}

/// The kernel does no more for it: not when the peer answers, and not when the time is over. But it
/// ends.
#[test]
fn timed_op_ends_when_the_submitting_thread_exits() {
    for cooperative in [true, false] {
        let Ok(mut ring) = Uring::open(UringConfig {
            coop_taskrun: cooperative,
            ..SMALL_CONFIG
        }) else {
            return;
        };
        let (listener, busy, _first) = full_backlog_listener();
        let begun_by_another = |ring: &mut Uring, time| {
            let socket = tcp_socket();
            let begin = || begin_connect(ring, &socket, busy, time);
            let ticket = thread::scope(|scope| scope.spawn(begin).join().unwrap());
            (socket, ticket)
        };
        let (socket, ticket) = begun_by_another(&mut ring, SHORT_TIMEOUT);
        let ended = wait_outcome_submitting(&mut ring, ticket);
        assert!(
            matches!(ended, TimedOutcome::Interrupted | TimedOutcome::TimedOut),
            "{ended:?}"
        );
        assert_all_released(&mut ring, &socket);
        // It would be the one there is room for.
        drop(socket);
        let (socket, ticket) = begun_by_another(&mut ring, LONG_TIMEOUT);
        drop(listener.accept().unwrap());
        // There is room now, and the kernel asks once more.
        let ended = wait_outcome_submitting(&mut ring, ticket);
        assert!(
            matches!(
                ended,
                TimedOutcome::Interrupted | TimedOutcome::Completed(Ok(0))
            ),
            "{ended:?}"
        );
        assert!(
            rustix::net::getpeername(&socket).is_ok(),
            "there is a connection all the same"
        );
        assert_all_released(&mut ring, &socket);
    }
}

/// Likewise, as a pass does it: what a look has left to be handed over is.
fn wait_outcome_submitting(ring: &mut Uring, ticket: OpId) -> TimedOutcome {
    use rustix::event::{PollFd, PollFlags, poll};
    loop {
        let ended = ring.next_completion();
        ring.submit().unwrap();
        if let Some(completion) = ended {
            assert_eq!((completion.op_id, ring.active_ops()), (ticket, 0));
            return if let CompletionKind::Timed(ended) = completion.kind {
                ended
            } else {
                panic!("{completion:?}")
            };
        }
        let _ = poll(
            &mut [PollFd::from_borrowed_fd(ring.event_fd(), PollFlags::IN)],
            None,
        );
        ring.clear_event();
    }
}
