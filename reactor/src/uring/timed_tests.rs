//! Operations that have their time: how they end, and that nothing is left of them.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::slot::TIMER;
use super::tests::{SMALL, next, ring, without_kernel};
use super::timed::meaning;
use super::{Ended, Ring, Shape, Ticket, What};

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(1000);
/// Not long.
const SHORT: Duration = Duration::from_millis(20);

/// A socket that is to connect.
fn socket() -> Arc<OwnedFd> {
    let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
    Arc::new(rustix::net::socket_with(family, kind, SocketFlags::NONBLOCK, None).unwrap())
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    (listener, at)
}

/// Where somebody listens who has no room for more: attempts are not answered, for as long as it
/// accepts nobody.
fn busy() -> (TcpListener, SocketAddr, TcpStream) {
    let (listener, at) = listener();
    rustix::net::listen(&listener, 0).unwrap();
    (listener, at, TcpStream::connect(at).unwrap())
}

/// Where nobody listens.
fn nobody() -> SocketAddr {
    listener().1
}

fn begin(ring: &mut Ring, socket: &Arc<OwnedFd>, to: SocketAddr, time: Duration) -> Ticket {
    let ticket = ring.connect(socket, 7, to, time).unwrap();
    ring.submit().unwrap();
    ticket
}

/// How it ends; nothing is left of it then.
fn end(ring: &mut Ring, ticket: Ticket) -> Ended {
    let completion = next(ring);
    assert_eq!(
        (completion.owner, completion.ticket, completion.is_last),
        (7, ticket, true)
    );
    assert_eq!(ring.under_way(), 0);
    if let What::Timed(ended) = completion.what {
        ended
    } else {
        panic!("{completion:?}")
    }
}

/// Nothing more comes, and whatever did belonged to something.
fn assert_over(ring: &mut Ring, socket: &Arc<OwnedFd>) {
    ring.submit().unwrap();
    assert!(ring.next().is_none());
    assert_eq!(
        (ring.under_way(), ring.strays(), Arc::strong_count(socket)),
        (0, 0, 1)
    );
}

#[test]
fn rule_11_an_operation_ends_by_itself_or_by_its_time() {
    let ((_open, open), (_busy, busy, _first)) = (listener(), busy());
    for cooperative in [true, false] {
        let Ok(mut ring) = Ring::open(Shape {
            cooperative,
            ..SMALL
        }) else {
            return;
        };
        for (to, time, expected) in [
            (open, LONG, Ended::Itself(Ok(0))),
            (open, Duration::MAX, Ended::Itself(Ok(0))),
            (nobody(), LONG, Ended::Itself(Err(Errno::CONNREFUSED))),
            (busy, SHORT, Ended::TimedOut),
            (busy, Duration::ZERO, Ended::TimedOut),
        ] {
            let socket = socket();
            let ticket = begin(&mut ring, &socket, to, time);
            assert_eq!(end(&mut ring, ticket), expected, "{to} {time:?}");
            assert_over(&mut ring, &socket);
        }
    }
}

/// What the call would have failed with is known as early as there.
#[test]
fn rule_11_what_fails_here_is_known_at_once() {
    let Some(mut ring) = ring() else { return };
    // A broadcast, and another family.
    for to in ["255.255.255.255:7", "[::1]:7"] {
        let (socket, to) = (socket(), to.parse().unwrap());
        let errno = rustix::net::connect(&socket, &to).unwrap_err();
        let ticket = begin(&mut ring, &socket, to, LONG);
        assert_eq!(ring.failure(ticket), Some(errno));
        assert_eq!(end(&mut ring, ticket), Ended::Itself(Err(errno)));
        assert_over(&mut ring, &socket);
    }
    let (_busy, busy, _first) = busy();
    let ticket = begin(&mut ring, &socket(), busy, LONG);
    assert_eq!(ring.failure(ticket), None);
    ring.cancel(ticket);
    ring.submit().unwrap();
    while ring.fetched.is_empty() {
        ring.fetch();
    }
    assert_eq!(ring.failure(ticket), None, "a cancellation is no failure");
    assert_eq!(end(&mut ring, ticket), Ended::Disturbed);
}

#[test]
fn rule_11_what_two_results_say() {
    use Errno as E;
    let both = |operation: E, timer: E| meaning(-operation.raw_os_error(), -timer.raw_os_error());
    for timer in [E::CANCELED, E::TIME, E::NOENT, E::ALREADY, E::INVAL] {
        assert_eq!(meaning(0, -timer.raw_os_error()), Ended::Itself(Ok(0)));
        assert_eq!(
            both(E::CONNREFUSED, timer),
            Ended::Itself(Err(E::CONNREFUSED))
        );
        // The kernel's own patience, which is not that of the timer.
        assert_eq!(both(E::TIMEDOUT, timer), Ended::Itself(Err(E::TIMEDOUT)));
    }
    for operation in [E::CANCELED, E::INTR, E::ALREADY, E::INPROGRESS, E::AGAIN] {
        for timer in [E::TIME, E::NOENT, E::ALREADY] {
            assert_eq!(both(operation, timer), Ended::TimedOut);
        }
        for timer in [E::CANCELED, E::INVAL] {
            assert_eq!(both(operation, timer), Ended::Disturbed);
        }
    }
}

/// Before both are in, nothing is said, and address and time stay.
#[test]
fn rule_11_a_slot_lives_until_both_completions_in_any_order() {
    let Some(mut ring) = ring() else { return };
    let canceled = -Errno::CANCELED.raw_os_error();
    for is_timer_first in [false, true] {
        let socket = socket();
        // Never handed over.
        let ticket = ring.haunt_timed(&socket, 7);
        let halves = [
            (ticket.0, 0),
            (ticket.0 | TIMER, -Errno::TIME.raw_os_error()),
        ];
        let [first, second] = if is_timer_first {
            [halves[1], halves[0]]
        } else {
            halves
        };
        ring.forge(first.0, first.1);
        // The same again, and both of another generation.
        ring.forge(first.0, canceled);
        ring.forge(ticket.0 ^ 1 << 40, canceled);
        ring.forge(ticket.0 ^ 1 << 40 | TIMER, canceled);
        assert!(ring.next().is_none());
        assert_eq!((ring.under_way(), Arc::strong_count(&socket)), (1, 2));
        ring.forge(second.0, second.1);
        assert_eq!(end(&mut ring, ticket), Ended::Itself(Ok(0)));
        assert_eq!(std::mem::take(&mut ring.strays), 3);
        assert_over(&mut ring, &socket);
    }
}

#[test]
fn rule_11_a_timer_that_ends_in_vain_takes_its_operation_along() {
    let Some(mut ring) = ring() else { return };
    let (_busy, busy, _first) = busy();
    let socket = socket();
    let ticket = begin(&mut ring, &socket, busy, LONG);
    ring.forge(ticket.0 | TIMER, -Errno::INVAL.raw_os_error());
    assert!(ring.next().is_none());
    ring.submit().unwrap();
    assert_eq!(end(&mut ring, ticket), Ended::Disturbed);
    // The true one belongs to nothing any more.
    while ring.strays() == 0 {
        assert!(ring.next().is_none());
    }
}

#[test]
fn rule_11_there_is_room_for_both_entries_or_for_none() {
    let Some(mut ring) = ring() else { return };
    let ((_open, open), (_busy, busy, _first)) = (listener(), busy());
    let one = socket();
    without_kernel(&mut ring, |ring| {
        // Of four entries three.
        ring.connect(&one, 1, busy, SHORT).unwrap();
        let idle = socket();
        ring.receive(&idle, 2).unwrap();
        assert!(ring.connect(&socket(), 3, open, LONG).is_err());
        assert_eq!(ring.under_way(), 2);
        assert!(ring.receive(&idle, 4).is_ok(), "there is room for one");
    });
    ring.submit().unwrap();
    // Three again: they are handed over first, and then there is room for both.
    let other = socket();
    for owner in [5, 6, 7] {
        ring.receive(&other, owner).unwrap();
    }
    ring.connect(&socket(), 8, open, LONG).unwrap();
    ring.submit().unwrap();
    let mut ends: Vec<_> = (0..7)
        .map(|_| next(&mut ring))
        .map(|end| (end.owner, end.what))
        .collect();
    ends.sort_by_key(|(owner, _)| *owner);
    assert_eq!(
        ends.iter().map(|(owner, _)| *owner).collect::<Vec<_>>(),
        [1, 2, 4, 5, 6, 7, 8]
    );
    assert!(
        matches!(ends[0].1, What::Timed(Ended::TimedOut)),
        "{ends:?}"
    );
    assert!(
        matches!(ends[6].1, What::Timed(Ended::Itself(Ok(0)))),
        "{ends:?}"
    );
    assert_eq!((ring.under_way(), ring.strays()), (0, 0));
}

/// Nobody hears of it, the peer neither: its descriptor is closed when both are in.
#[test]
fn rule_11_what_is_taken_back_leaves_nothing() {
    let Some(mut ring) = ring() else { return };
    let (_busy, busy, _first) = busy();
    let open = listener().1;
    for to in [busy, open] {
        for is_handed_over in [true, false] {
            let socket = socket();
            let ticket = ring.connect(&socket, 7, to, LONG).unwrap();
            if is_handed_over {
                ring.submit().unwrap();
            }
            ring.abandon(ticket);
            ring.submit().unwrap();
            while ring.under_way() > 0 {
                assert!(ring.next().is_none());
            }
            assert_over(&mut ring, &socket);
        }
    }
}

#[test]
fn rule_11_a_ring_that_is_dropped_waits_for_both() {
    let Some(mut ring) = ring() else { return };
    let (_busy, busy, _first) = busy();
    let [one, other] = [socket(), socket()];
    begin(&mut ring, &one, busy, LONG);
    // And one that was not handed over.
    ring.connect(&other, 7, busy, LONG).unwrap();
    drop(ring);
    assert_eq!((Arc::strong_count(&one), Arc::strong_count(&other)), (1, 1));
}

/// The kernel does no more for it: not when the peer answers, and not when the time is over. But it
/// ends.
#[test]
fn rule_11_the_end_of_a_thread_leaves_nothing_without_an_end() {
    for cooperative in [true, false] {
        let Ok(mut ring) = Ring::open(Shape {
            cooperative,
            ..SMALL
        }) else {
            return;
        };
        let (listener, busy, _first) = busy();
        let begun_by_another = |ring: &mut Ring, time| {
            let socket = socket();
            let begin = || begin(ring, &socket, busy, time);
            let ticket = thread::scope(|scope| scope.spawn(begin).join().unwrap());
            (socket, ticket)
        };
        let (socket, ticket) = begun_by_another(&mut ring, SHORT);
        let ended = end_submitting(&mut ring, ticket);
        assert!(
            matches!(ended, Ended::Disturbed | Ended::TimedOut),
            "{ended:?}"
        );
        assert_over(&mut ring, &socket);
        // It would be the one there is room for.
        drop(socket);
        let (socket, ticket) = begun_by_another(&mut ring, LONG);
        drop(listener.accept().unwrap());
        // There is room now, and the kernel asks once more.
        let ended = end_submitting(&mut ring, ticket);
        assert!(
            matches!(ended, Ended::Disturbed | Ended::Itself(Ok(0))),
            "{ended:?}"
        );
        assert!(
            rustix::net::getpeername(&socket).is_ok(),
            "there is a connection all the same"
        );
        assert_over(&mut ring, &socket);
    }
}

/// Likewise, as a pass does it: what a look has left to be handed over is.
fn end_submitting(ring: &mut Ring, ticket: Ticket) -> Ended {
    use rustix::event::{PollFd, PollFlags, poll};
    loop {
        let ended = ring.next();
        ring.submit().unwrap();
        if let Some(completion) = ended {
            assert_eq!((completion.ticket, ring.under_way()), (ticket, 0));
            return if let What::Timed(ended) = completion.what {
                ended
            } else {
                panic!("{completion:?}")
            };
        }
        let _ = poll(
            &mut [PollFd::from_borrowed_fd(ring.event(), PollFlags::IN)],
            None,
        );
        ring.heard();
    }
}
