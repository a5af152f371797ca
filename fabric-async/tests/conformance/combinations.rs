//! The combinations of provider, progress mode, runtime and more that scenarios run with.
//!
//! This is not the full product, most of which would repeat what other combinations cover:
//!
//! * The engine decides which task drives progress, and on which thread: progress modes and
//!   runtimes are combined in full over shm.
//! * A transport knows no runtime and is called under one lock: over the other providers, each
//!   progress mode and each runtime occurs once. Over tcp they are combined in full again, half of
//!   them with epoll and half with io_uring.
//! * A domain of one thread omits locks of the engine and of connections over shm. Its driver is a
//!   task of a current-thread runtime, under manual progress.
//! * A domain that one thread at a time uses has a flag instead of these locks. Its driver is a
//!   thread or a task; the tasks of a scenario are on one thread, and so one user.
//! * A wait policy concerns the engine and what it sleeps on: the policies are combined with shm,
//!   and `park` with both kinds of socket I/O.
//! * The copy path of long messages concerns shm alone; zero-copy sends concern tcp with io_uring.

use crate::setup::Setup;

/// A setup by the name of its provider (or protocol) and of what it sets.
pub(crate) type Combination = (&'static str, &'static str, Setup);

/// Returns all combinations, in the order of execution.
#[rustfmt::skip]
pub(crate) fn combinations() -> Vec<Combination> {
    let (shm, tcp, udp, sim) =
        (Setup::new("shm"), Setup::new("tcp"), Setup::new("udp"), Setup::new("sim"));
    vec![
        ("shm", "manual_current_thread", shm),
        ("shm", "manual_multi_thread", shm.multi_thread()),
        ("shm", "auto_current_thread", shm.auto()),
        ("shm", "auto_multi_thread", shm.auto().multi_thread()),
        ("shm", "spin_manual", shm.spin()),
        ("shm", "spin_auto", shm.spin().auto().multi_thread()),
        ("shm", "park_manual", shm.park()),
        ("shm", "park_auto", shm.park().auto().multi_thread()),
        ("shm", "pinned", shm.pinned()),
        ("shm", "serial", shm.serial().auto()),
        ("shm", "serial_manual", shm.serial()),
        ("shm", "single_copy_always", shm.single_copy_threshold(0).auto().multi_thread()),
        ("shm", "single_copy_never", shm.single_copy_threshold(usize::MAX)),
        ("tcp", "manual_current_thread", tcp),
        ("tcp", "auto_multi_thread", tcp.auto().multi_thread()),
        ("tcp", "pinned", tcp.pinned()),
        ("tcp", "pinned_uring", tcp.pinned().io_uring()),
        ("tcp", "serial_uring", tcp.serial().io_uring().auto()),
        ("tcp", "epoll_park_auto", tcp.epoll().park().auto().multi_thread()),
        ("tcp", "uring_manual_multi_thread", tcp.io_uring().multi_thread()),
        ("tcp", "uring_auto_current_thread", tcp.io_uring().auto()),
        ("tcp", "uring_park_manual", tcp.io_uring().park()),
        ("tcp", "uring_park_auto", tcp.io_uring().park().auto().multi_thread()),
        // Under automatic progress only: a zero-copy send completes when the peer's kernel has
        // acknowledged it, and the peer may make no progress until then.
        ("tcp", "uring_zero_copy", tcp.io_uring().zero_copy().auto().multi_thread()),
        // The RXM protocol, over io_uring under automatic progress only: a long send completes when
        // the receiver has read it, and a receiver under manual progress reads only while polled.
        ("rxm", "manual_current_thread", tcp.rxm()),
        ("rxm", "uring_auto_multi_thread", tcp.rxm().io_uring().auto().multi_thread()),
        ("udp", "manual_multi_thread", udp.multi_thread()),
        ("udp", "auto_current_thread", udp.auto()),
        ("udp", "pinned", udp.pinned()),
        ("udp", "serial", udp.serial()),
        ("sim", "manual_current_thread", sim),
        ("sim", "auto_multi_thread", sim.auto().multi_thread()),
    ]
}
