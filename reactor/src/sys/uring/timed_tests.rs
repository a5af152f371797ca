//! Tests of rule 11 in the documentation of `uring`: the outcomes of timed operations, and the
//! release of their memory.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::cqe::TIMEOUT_BIT;
use super::tests::{SMALL_CONFIG, next_completion, open_uring, open_uring_with, with_broken_fd};
use super::timed_op::combine_results;
use super::{CompletionKind, OpId, TimedOutcome, Uring, UringConfig};

/// Longer than any test takes.
const LONG_TIMEOUT: Duration = Duration::from_secs(1000);
/// A timeout that expires during the test.
const SHORT_TIMEOUT: Duration = Duration::from_millis(20);

/// Returns a socket to connect.
fn tcp_socket() -> Arc<OwnedFd> {
    let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
    Arc::new(rustix::net::socket_with(family, kind, SocketFlags::NONBLOCK, None).unwrap())
}

fn tcp_listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// Returns a listener with a full backlog, its address, and the connection in the backlog. Attempts
/// to connect are not answered until the listener accepts.
///
/// The listener has a loopback address of its own. At 127.0.0.1 it could get a port to which a
/// client of another process still connects, and that client would take the place in the backlog.
fn full_backlog_listener() -> (TcpListener, SocketAddr, TcpStream) {
    static LISTENERS: AtomicU8 = AtomicU8::new(1);
    let number = LISTENERS.fetch_add(1, Ordering::Relaxed);
    let [.., high, low] = std::process::id().to_be_bytes();
    // Below 127.128.0.0 are the addresses of other tests.
    let ip = Ipv4Addr::new(127, 128 | high, low, number);
    let listener = TcpListener::bind((ip, 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    (listener, addr, TcpStream::connect(addr).unwrap())
}

/// Returns an address at which no socket listens.
fn closed_port() -> SocketAddr {
    tcp_listener().1
}

/// Submits a connect of owner 7.
fn begin_connect(
    uring: &mut Uring,
    socket: &Arc<OwnedFd>,
    addr: SocketAddr,
    timeout: Duration,
) -> OpId {
    let op_id = uring.connect(socket, 7, addr, timeout).unwrap();
    uring.submit().unwrap();
    op_id
}

/// Waits for the outcome, and checks that no operation is left.
fn wait_outcome(uring: &mut Uring, op_id: OpId) -> TimedOutcome {
    let completion = next_completion(uring);
    assert_eq!(
        (completion.owner, completion.op_id, completion.is_last),
        (7, op_id, true)
    );
    assert_eq!(uring.active_ops(), 0);
    if let CompletionKind::Timed(outcome) = completion.kind {
        outcome
    } else {
        panic!("{completion:?}")
    }
}

/// Checks that no completion is left, that all matched an operation, and that the socket was
/// released.
fn assert_all_released(uring: &mut Uring, socket: &Arc<OwnedFd>) {
    uring.submit().unwrap();
    assert!(uring.next_completion().is_none());
    assert_eq!(
        (
            uring.active_ops(),
            uring.unmatched_cqes,
            Arc::strong_count(socket)
        ),
        (0, 0, 1)
    );
}

#[test]
fn timed_op_completes_or_times_out() {
    let ((_listener, open_addr), (_busy_listener, busy_addr, _first)) =
        (tcp_listener(), full_backlog_listener());
    for coop_taskrun in [true, false] {
        let Some(mut uring) = open_uring_with(UringConfig {
            coop_taskrun,
            ..SMALL_CONFIG
        }) else {
            return;
        };
        for (addr, timeout, expected) in [
            (open_addr, LONG_TIMEOUT, TimedOutcome::Completed(Ok(0))),
            (open_addr, Duration::MAX, TimedOutcome::Completed(Ok(0))),
            (
                closed_port(),
                LONG_TIMEOUT,
                TimedOutcome::Completed(Err(Errno::CONNREFUSED)),
            ),
            (busy_addr, SHORT_TIMEOUT, TimedOutcome::TimedOut),
            (busy_addr, Duration::ZERO, TimedOutcome::TimedOut),
        ] {
            let socket = tcp_socket();
            let op_id = begin_connect(&mut uring, &socket, addr, timeout);
            assert_eq!(
                wait_outcome(&mut uring, op_id),
                expected,
                "{addr} {timeout:?}"
            );
            assert_all_released(&mut uring, &socket);
        }
    }
}

/// A failure that `connect(2)` would return is known after the submission.
#[test]
fn local_connect_failure_is_known_after_submission() {
    let Some(mut uring) = open_uring() else {
        return;
    };
    // A broadcast address, and an address of another family.
    for addr in ["255.255.255.255:7", "[::1]:7"] {
        let (socket, addr) = (tcp_socket(), addr.parse().unwrap());
        let errno = rustix::net::connect(&socket, &addr).unwrap_err();
        let op_id = begin_connect(&mut uring, &socket, addr, LONG_TIMEOUT);
        assert_eq!(uring.early_error(op_id), Some(errno));
        assert_eq!(
            wait_outcome(&mut uring, op_id),
            TimedOutcome::Completed(Err(errno))
        );
        assert_all_released(&mut uring, &socket);
    }
    let (_busy_listener, busy_addr, _first) = full_backlog_listener();
    let op_id = begin_connect(&mut uring, &tcp_socket(), busy_addr, LONG_TIMEOUT);
    assert_eq!(uring.early_error(op_id), None);
    uring.cancel(op_id);
    uring.submit().unwrap();
    while uring.fetched_cqes.is_empty() {
        uring.fetch_cqes();
    }
    assert_eq!(
        uring.early_error(op_id),
        None,
        "a cancellation is not a failure of the operation"
    );
    assert_eq!(wait_outcome(&mut uring, op_id), TimedOutcome::Interrupted);
}

#[test]
fn op_and_timer_results_are_combined() {
    use Errno as E;
    let combine =
        |operation: E, timer: E| combine_results(-operation.raw_os_error(), -timer.raw_os_error());
    for timer in [E::CANCELED, E::TIME, E::NOENT, E::ALREADY, E::INVAL] {
        assert_eq!(
            combine_results(0, -timer.raw_os_error()),
            TimedOutcome::Completed(Ok(0))
        );
        assert_eq!(
            combine(E::CONNREFUSED, timer),
            TimedOutcome::Completed(Err(E::CONNREFUSED))
        );
        // ETIMEDOUT is a timeout of TCP, not of the timer.
        assert_eq!(
            combine(E::TIMEDOUT, timer),
            TimedOutcome::Completed(Err(E::TIMEDOUT))
        );
    }
    for operation in [E::CANCELED, E::INTR, E::ALREADY, E::INPROGRESS, E::AGAIN] {
        for timer in [E::TIME, E::NOENT, E::ALREADY] {
            assert_eq!(combine(operation, timer), TimedOutcome::TimedOut);
        }
        for timer in [E::CANCELED, E::INVAL] {
            assert_eq!(combine(operation, timer), TimedOutcome::Interrupted);
        }
    }
}

/// Before both completions have arrived, no outcome is reported, and address and timeout stay in
/// memory.
#[test]
fn slot_is_freed_after_operation_and_timeout_cqes() {
    let Some(mut uring) = open_uring() else {
        return;
    };
    let canceled = -Errno::CANCELED.raw_os_error();
    for is_timer_first in [false, true] {
        let socket = tcp_socket();
        // Never submitted.
        let op_id = uring.insert_stuck_timed_slot(&socket, 7);
        let completions = [
            (op_id.0, 0),
            (op_id.0 | TIMEOUT_BIT, -Errno::TIME.raw_os_error()),
        ];
        let [first, second] = if is_timer_first {
            [completions[1], completions[0]]
        } else {
            completions
        };
        uring.inject_cqe(first.0, first.1);
        // Three unmatched ones: the same completion again, and both with another generation.
        uring.inject_cqe(first.0, canceled);
        uring.inject_cqe(op_id.0 ^ 1 << 40, canceled);
        uring.inject_cqe(op_id.0 ^ 1 << 40 | TIMEOUT_BIT, canceled);
        assert!(uring.next_completion().is_none());
        assert_eq!((uring.active_ops(), Arc::strong_count(&socket)), (1, 2));
        uring.inject_cqe(second.0, second.1);
        assert_eq!(
            wait_outcome(&mut uring, op_id),
            TimedOutcome::Completed(Ok(0))
        );
        assert_eq!(std::mem::take(&mut uring.unmatched_cqes), 3);
        assert_all_released(&mut uring, &socket);
    }
}

#[test]
fn failed_timer_cancels_its_operation() {
    let Some(mut uring) = open_uring() else {
        return;
    };
    let (_busy_listener, busy_addr, _first) = full_backlog_listener();
    let socket = tcp_socket();
    let op_id = begin_connect(&mut uring, &socket, busy_addr, LONG_TIMEOUT);
    uring.inject_cqe(op_id.0 | TIMEOUT_BIT, -Errno::INVAL.raw_os_error());
    assert!(uring.next_completion().is_none());
    uring.submit().unwrap();
    assert_eq!(wait_outcome(&mut uring, op_id), TimedOutcome::Interrupted);
    // The real completion of the timer matches no operation any more.
    while uring.unmatched_cqes == 0 {
        assert!(uring.next_completion().is_none());
    }
}

#[test]
fn timed_op_queues_both_entries_or_none() {
    let Some(mut uring) = open_uring() else {
        return;
    };
    let ((_listener, open_addr), (_busy_listener, busy_addr, _first)) =
        (tcp_listener(), full_backlog_listener());
    let first = tcp_socket();
    with_broken_fd(&mut uring, |uring| {
        // Takes three of the four submission queue entries.
        uring.connect(&first, 1, busy_addr, SHORT_TIMEOUT).unwrap();
        let idle = tcp_socket();
        uring.recv_multishot(&idle, 2).unwrap();
        assert!(
            uring
                .connect(&tcp_socket(), 3, open_addr, LONG_TIMEOUT)
                .is_err()
        );
        assert_eq!(uring.active_ops(), 2);
        assert!(
            uring.recv_multishot(&idle, 4).is_ok(),
            "the submission queue has room for one entry"
        );
    });
    uring.submit().unwrap();
    // Three entries again: the connect submits them first, and then has room for both of its own.
    let second = tcp_socket();
    for owner in [5, 6, 7] {
        uring.recv_multishot(&second, owner).unwrap();
    }
    uring
        .connect(&tcp_socket(), 8, open_addr, LONG_TIMEOUT)
        .unwrap();
    uring.submit().unwrap();
    let mut completions: Vec<_> = (0..7)
        .map(|_| next_completion(&mut uring))
        .map(|end| (end.owner, end.kind))
        .collect();
    completions.sort_by_key(|(owner, _)| *owner);
    assert_eq!(
        completions
            .iter()
            .map(|(owner, _)| *owner)
            .collect::<Vec<_>>(),
        [1, 2, 4, 5, 6, 7, 8]
    );
    assert!(
        matches!(
            completions[0].1,
            CompletionKind::Timed(TimedOutcome::TimedOut)
        ),
        "{completions:?}"
    );
    assert!(
        matches!(
            completions[6].1,
            CompletionKind::Timed(TimedOutcome::Completed(Ok(0)))
        ),
        "{completions:?}"
    );
    assert_eq!((uring.active_ops(), uring.unmatched_cqes), (0, 0));
}

/// A detached connect reports nothing, and its descriptor is closed when both completions have
/// arrived.
#[test]
fn detached_timed_op_is_released() {
    let Some(mut uring) = open_uring() else {
        return;
    };
    let (_busy_listener, busy_addr, _first) = full_backlog_listener();
    let open_addr = tcp_listener().1;
    for addr in [busy_addr, open_addr] {
        for is_submitted in [true, false] {
            let socket = tcp_socket();
            let op_id = uring.connect(&socket, 7, addr, LONG_TIMEOUT).unwrap();
            if is_submitted {
                uring.submit().unwrap();
            }
            uring.detach(op_id);
            uring.submit().unwrap();
            while uring.active_ops() > 0 {
                assert!(uring.next_completion().is_none());
            }
            assert_all_released(&mut uring, &socket);
        }
    }
}

#[test]
fn drop_of_uring_waits_for_ops_with_linked_timeout() {
    let Some(mut uring) = open_uring() else {
        return;
    };
    let (_busy_listener, busy_addr, _first) = full_backlog_listener();
    let [first, second] = [tcp_socket(), tcp_socket()];
    begin_connect(&mut uring, &first, busy_addr, LONG_TIMEOUT);
    // This connect is not submitted.
    uring.connect(&second, 7, busy_addr, LONG_TIMEOUT).unwrap();
    drop(uring);
    assert_eq!(
        (Arc::strong_count(&first), Arc::strong_count(&second)),
        (1, 1)
    );
}

/// After the thread has exited, the kernel does no more work for the operation, neither when the
/// peer replies nor when the timer fires. The operation still ends.
#[test]
fn timed_op_ends_when_the_submitting_thread_exits() {
    for coop_taskrun in [true, false] {
        let Some(mut uring) = open_uring_with(UringConfig {
            coop_taskrun,
            ..SMALL_CONFIG
        }) else {
            return;
        };
        let (listener, busy_addr, _first) = full_backlog_listener();
        let connect_from_thread = |uring: &mut Uring, timeout| {
            let socket = tcp_socket();
            let connect = || begin_connect(uring, &socket, busy_addr, timeout);
            let op_id = thread::scope(|scope| scope.spawn(connect).join().unwrap());
            (socket, op_id)
        };
        let (socket, op_id) = connect_from_thread(&mut uring, SHORT_TIMEOUT);
        let outcome = wait_outcome_submitting(&mut uring, op_id);
        assert!(
            matches!(outcome, TimedOutcome::Interrupted | TimedOutcome::TimedOut),
            "{outcome:?}"
        );
        assert_all_released(&mut uring, &socket);
        drop(socket);
        let (socket, op_id) = connect_from_thread(&mut uring, LONG_TIMEOUT);
        // The backlog has room now, also if the kernel still attempts the connect of the first
        // socket, and the kernel repeats the attempt.
        rustix::net::listen(&listener, 16).unwrap();
        let outcome = wait_outcome_submitting(&mut uring, op_id);
        assert!(
            matches!(
                outcome,
                TimedOutcome::Interrupted | TimedOutcome::Completed(Ok(0))
            ),
            "{outcome:?}"
        );
        assert!(
            rustix::net::getpeername(&socket).is_ok(),
            "the peer accepts the connection all the same"
        );
        assert_all_released(&mut uring, &socket);
    }
}

/// Waits for the outcome, and submits after each poll, as a progress pass does.
fn wait_outcome_submitting(uring: &mut Uring, op_id: OpId) -> TimedOutcome {
    use rustix::event::{PollFd, PollFlags, poll};
    loop {
        let outcome = uring.next_completion();
        uring.submit().unwrap();
        if let Some(completion) = outcome {
            assert_eq!((completion.op_id, uring.active_ops()), (op_id, 0));
            return if let CompletionKind::Timed(outcome) = completion.kind {
                outcome
            } else {
                panic!("{completion:?}")
            };
        }
        let _ = poll(
            &mut [PollFd::from_borrowed_fd(uring.event_fd(), PollFlags::IN)],
            None,
        );
        uring.clear_event();
    }
}
