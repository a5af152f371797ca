//! Tests of the rules 1 to 9 in the documentation of `uring`. The tests are skipped if the kernel
//! refuses io_uring.
#![allow(unsafe_code)] // sends of borrowed bytes

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use super::skip::{Facility, skip};
use super::{CompletionKind, Uring, UringCompletion, UringConfig};
use crate::sys::child_process;

/// Small queues and buffers, which tests can fill.
pub(super) const SMALL_CONFIG: UringConfig = UringConfig {
    sq_entries: 4,
    cq_entries: 8,
    buffer_count: 4,
    buffer_len: 4096,
    coop_taskrun: true,
};

/// Opens a small instance; `None`, and the test is skipped, if the kernel refuses io_uring.
#[track_caller]
pub(super) fn open_uring() -> Option<Uring> {
    open_uring_with(SMALL_CONFIG)
}

/// As [`open_uring`], with another configuration.
#[track_caller]
pub(super) fn open_uring_with(config: UringConfig) -> Option<Uring> {
    match Uring::open(config) {
        Ok(uring) => Some(uring),
        Err(error) => {
            skip(Facility::Uring, format!("io_uring_setup: {error}"));
            None
        }
    }
}

/// Returns both ends of a connection: the socket of the instance, and the peer.
fn tcp_pair() -> (Arc<OwnedFd>, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let socket = listener.accept().unwrap().0;
    (Arc::new(socket.into()), peer)
}

/// Waits for the next completion.
pub(super) fn next_completion(uring: &mut Uring) -> UringCompletion {
    loop {
        if let Some(completion) = uring.next_completion() {
            return completion;
        }
        let mut fds = [PollFd::from_borrowed_fd(uring.event_fd(), PollFlags::IN)];
        let _ = poll(&mut fds, None);
        uring.clear_event();
    }
}

/// Calls `act` while each `io_uring_enter` of the instance fails, because another descriptor
/// replaces that of the instance. In production a seccomp filter may refuse the calls at any time.
pub(super) fn with_broken_fd(uring: &mut Uring, act: impl FnOnce(&mut Uring)) {
    let fd = uring.raw_fd();
    let other = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    // SAFETY: duplicates the instance's descriptor, to restore it below.
    let uring_fd = unsafe { libc::dup(fd) };
    // SAFETY: no other thread uses the instance; its mappings do not depend on the descriptor.
    assert!(unsafe { libc::dup2(other.as_raw_fd(), fd) } == fd);
    act(uring);
    // SAFETY: restores the descriptor.
    assert!(unsafe { libc::dup2(uring_fd, fd) } == fd);
    // SAFETY: the descriptor belongs to this function.
    unsafe { libc::close(uring_fd) };
}

/// Calls `act` on a thread for which `io_uring_setup` is forbidden by seccomp, as in a container.
pub(crate) fn with_uring_forbidden<T: Send>(errno: i32, act: impl FnOnce() -> T + Send) -> T {
    let instruction = |code, k, jt, jf| libc::sock_filter { code, k, jt, jf };
    // BPF_LD | BPF_W | BPF_ABS; BPF_JMP | BPF_JEQ | BPF_K; BPF_RET | BPF_K.
    let (load, jump_if_equal, ret) = (0x20, 0x15, 0x06);
    // The system call number comes first in `seccomp_data`.
    let filter = [
        instruction(load, 0, 0, 0),
        instruction(jump_if_equal, libc::SYS_io_uring_setup as u32, 0, 1),
        instruction(ret, libc::SECCOMP_RET_ERRNO | errno as u32, 0, 0),
        instruction(ret, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let filter = libc::sock_fprog {
                len: filter.len() as u16,
                filter: filter.as_ptr().cast_mut().cast(),
            };
            // SAFETY: the filter applies to this thread only, which ends with this function, and
            // outlives the call.
            unsafe {
                assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
                let mode = libc::SECCOMP_MODE_FILTER;
                assert_eq!(
                    libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter),
                    0
                );
            }
            act()
        });
        thread.join().unwrap()
    })
}

/// Limits the memory that this process can lock, and drops the capabilities of this thread that
/// override the limit.
pub(super) fn limit_locked_memory(bytes: u64) {
    const VERSION_3: u32 = 0x2008_0522;
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    let (header, capabilities) = ([VERSION_3, 0], [0u32; 6]);
    // SAFETY: the kernel reads both structures and writes neither; header and capabilities have the
    // length of this version.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit), 0);
        assert_eq!(
            libc::syscall(libc::SYS_capset, header.as_ptr(), capabilities.as_ptr()),
            0
        );
    }
}

/// Returns the bytes of a receive.
fn received_bytes(kind: &CompletionKind) -> &[u8] {
    if let CompletionKind::Received(lease) = kind {
        lease
    } else {
        panic!("{kind:?}")
    }
}

#[test]
fn slot_lives_until_the_last_completion() {
    let Some(mut uring) = open_uring() else {
        return;
    };
    let (socket, mut peer) = tcp_pair();
    let op_id = uring.recv_multishot(&socket, 7).unwrap();
    uring.submit().unwrap();
    for round in 0..20u8 {
        peer.write_all(&[round; 100]).unwrap();
        let completion = next_completion(&mut uring);
        assert_eq!(
            (completion.owner, completion.op_id, completion.is_last),
            (7, op_id, false)
        );
        assert_eq!(received_bytes(&completion.kind), [round; 100]);
        assert_eq!(uring.active_ops(), 1);
    }
    peer.shutdown(Shutdown::Write).unwrap();
    let eof = next_completion(&mut uring);
    assert!(
        matches!(eof.kind, CompletionKind::Eof) && eof.is_last,
        "{eof:?}"
    );
    assert_eq!(uring.active_ops(), 0);
}

#[test]
fn unmatched_completion_is_counted_and_ignored() {
    let Some(mut uring) = open_uring() else {
        return;
    };
    let (socket, mut peer) = tcp_pair();
    let old = uring.recv_multishot(&socket, 1).unwrap();
    uring.cancel(old);
    uring.submit().unwrap();
    let ended = next_completion(&mut uring);
    assert!(
        matches!(ended.kind, CompletionKind::Failed(Errno::CANCELED)) && ended.is_last,
        "{ended:?}"
    );
    // The same slot, with another operation.
    let new = uring.recv_multishot(&socket, 2).unwrap();
    assert!(new != old && new.0 as u32 == old.0 as u32);
    uring.inject_cqe(old.0, 5);
    uring.inject_cqe(1 << 40 | 77, 5);
    uring.cancel(old);
    uring.submit().unwrap();
    peer.write_all(b"for the new operation").unwrap();
    let completion = next_completion(&mut uring);
    assert_eq!((completion.owner, completion.op_id), (2, new));
    assert_eq!(received_bytes(&completion.kind), b"for the new operation");
    assert_eq!((uring.unmatched_cqes, uring.active_ops()), (2, 1));
}

#[test]
fn queued_entries_survive_a_failed_submit() {
    let Some(mut uring) = open_uring() else {
        return;
    };
    let (socket, mut peer) = tcp_pair();
    let op_id = uring.recv_multishot(&socket, 3).unwrap();
    with_broken_fd(&mut uring, |uring| {
        assert!(uring.submit().is_err());
        assert_eq!(uring.active_ops(), 1);
    });
    uring.submit().unwrap();
    peer.write_all(b"after all").unwrap();
    let completion = next_completion(&mut uring);
    assert_eq!(
        (completion.op_id, received_bytes(&completion.kind)),
        (op_id, &b"after all"[..])
    );
}

#[test]
fn op_without_sq_room_is_returned_to_the_caller() {
    let Some(mut uring) = open_uring() else {
        return;
    };
    let pairs: Vec<_> = (0..4).map(|_| tcp_pair()).collect();
    with_broken_fd(&mut uring, |uring| {
        for (owner, (socket, _)) in pairs.iter().enumerate() {
            uring.recv_multishot(socket, owner as u64).unwrap();
        }
        // The submission queue is full.
        assert!(uring.recv_multishot(&pairs[0].0, 9).is_err());
        // SAFETY: there are no borrowed bytes.
        let refused = unsafe { uring.send(&pairs[0].0, 9, (*b"given away").into(), &[]) };
        assert_eq!(refused.unwrap_err()[..], *b"given away");
        assert_eq!(uring.active_ops(), 4);
    });
    uring.submit().unwrap();
    for (owner, (_, peer)) in pairs.iter().enumerate() {
        let mut peer = peer;
        peer.write_all(&[owner as u8; 10]).unwrap();
        let completion = next_completion(&mut uring);
        assert_eq!(
            (completion.owner, received_bytes(&completion.kind)),
            (owner as u64, &[owner as u8; 10][..])
        );
    }
}

#[test]
fn io_uring_enter_is_retried_when_busy_or_interrupted() {
    let Some(mut uring) = open_uring() else {
        return;
    };
    let ((socket, mut peer), (other, mut other_peer)) = (tcp_pair(), tcp_pair());
    let first = uring.recv_multishot(&socket, 1).unwrap();
    uring.submit().unwrap();
    peer.write_all(b"meanwhile").unwrap();
    uring.recv_multishot(&other, 2).unwrap();
    uring.injected_errors.extend([
        Errno::INTR,
        Errno::BUSY,
        Errno::INTR,
        Errno::AGAIN,
        Errno::BUSY,
    ]);
    uring.submit().unwrap();
    assert!(
        uring.injected_errors.is_empty(),
        "all injected errors were returned"
    );
    other_peer.write_all(b"handed over").unwrap();
    let mut completions = [next_completion(&mut uring), next_completion(&mut uring)];
    completions.sort_by_key(|completion| completion.owner);
    assert_eq!(
        (completions[0].op_id, received_bytes(&completions[0].kind)),
        (first, &b"meanwhile"[..])
    );
    assert_eq!(
        (completions[1].owner, received_bytes(&completions[1].kind)),
        (2, &b"handed over"[..])
    );
    // Waiting retries in the same way.
    uring
        .injected_errors
        .extend([Errno::INTR, Errno::BUSY, Errno::INTR]);
    let body = vec![7; 30_000_000];
    // SAFETY: `body` lives until the send was canceled.
    let op_id = unsafe { uring.send(&socket, 8, Box::new([]), &[&body]) }.unwrap();
    assert!(
        uring
            .cancel_send(op_id)
            .unwrap()
            .result
            .is_ok_and(|count| count < body.len())
    );
}

#[test]
fn failed_io_uring_enter_is_returned_and_keeps_submissions() {
    let Some(mut uring) = open_uring() else {
        return;
    };
    let (socket, mut peer) = tcp_pair();
    uring.recv_multishot(&socket, 1).unwrap();
    uring.injected_errors.push_back(Errno::PERM);
    assert_eq!(
        uring.submit().unwrap_err().kind(),
        ErrorKind::PermissionDenied
    );
    uring.injected_errors.extend([Errno::BUSY; 100]);
    assert_eq!(uring.submit().unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(
        !uring.injected_errors.is_empty(),
        "the number of attempts is limited"
    );
    uring.injected_errors.clear();
    uring.submit().unwrap();
    peer.write_all(b"kept").unwrap();
    assert_eq!(received_bytes(&next_completion(&mut uring).kind), b"kept");
}

#[test]
fn overflowed_completions_are_fetched() {
    let Some(mut uring) = open_uring() else {
        return;
    };
    let pairs: Vec<_> = (0..40).map(|_| tcp_pair()).collect();
    // More than the submission queue holds, and more than the completion queue holds.
    for (owner, (socket, peer)) in pairs.iter().enumerate() {
        peer.shutdown(Shutdown::Write).unwrap();
        uring.recv_multishot(socket, owner as u64).unwrap();
    }
    uring.submit().unwrap();
    let mut owners: Vec<_> = pairs
        .iter()
        .map(|_| next_completion(&mut uring))
        .map(|ended| ended.owner)
        .collect();
    owners.sort_unstable();
    assert_eq!(owners, (0..40).collect::<Vec<_>>());
    assert_eq!(uring.active_ops(), 0);
}

#[test]
fn detached_op_closes_its_descriptor_when_it_ends() {
    let Some(mut uring) = open_uring() else {
        return;
    };
    let ((socket, mut peer), (other, mut other_peer)) = (tcp_pair(), tcp_pair());
    let op_id = uring.recv_multishot(&socket, 5).unwrap();
    uring.submit().unwrap();
    uring.detach(op_id);
    drop(socket);
    // The cancellation was not submitted yet: the peer sees no end, and the descriptor is not
    // reused.
    peer.set_nonblocking(true).unwrap();
    assert_eq!(
        peer.read(&mut [0; 8]).unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
    peer.set_nonblocking(false).unwrap();
    uring.recv_multishot(&other, 6).unwrap();
    uring.submit().unwrap();
    other_peer.write_all(b"later").unwrap();
    // The detached operation reports nothing.
    assert_eq!(next_completion(&mut uring).owner, 6);
    assert_eq!(peer.read(&mut [0; 8]).unwrap(), 0);
    assert_eq!(uring.active_ops(), 1);
}

#[test]
fn drop_waits_for_active_ops() {
    let Some(mut uring) = open_uring() else {
        return;
    };
    let pairs: Vec<_> = (0..10).map(|_| tcp_pair()).collect();
    for (socket, _) in &pairs {
        uring.recv_multishot(socket, 0).unwrap();
    }
    uring.submit().unwrap();
    let buffers = uring.buffers();
    let lease = {
        (&pairs[0].1).write_all(b"kept").unwrap();
        next_completion(&mut uring)
    };
    drop(uring);
    // Only `buffers` and the lease refer to the memory: the instance did not leak it.
    assert_eq!(Arc::strong_count(&buffers), 2);
    assert_eq!(received_bytes(&lease.kind), b"kept");
    for (socket, peer) in pairs {
        assert_eq!(Arc::strong_count(&socket), 1);
        drop(socket);
        assert_eq!(
            (&peer)
                .read(&mut [0; 8])
                .map_err(|error| error.kind())
                .unwrap_or(0),
            0
        );
    }
}

/// A Unix socket reports the end of the stream at once when its last descriptor is closed, so the
/// test sees that the kernel refers to no socket after the instance was dropped.
#[test]
fn drop_leaves_no_active_ops() {
    let _no_copies = child_process::exclude();
    for _ in 0..50 {
        let Some(mut uring) = open_uring() else {
            return;
        };
        let (socket, peer) = UnixStream::pair().unwrap();
        let socket = Arc::new(OwnedFd::from(socket));
        uring.recv_multishot(&socket, 0).unwrap();
        // One send that waits for room, and one receive that was not submitted.
        let body = vec![1; 4 << 20];
        // SAFETY: `body` outlives the instance.
        unsafe { uring.send(&socket, 0, Box::new([]), &[&body]) }.unwrap();
        uring.submit().unwrap();
        uring.recv_multishot(&socket, 0).unwrap();
        drop(uring);
        assert_eq!(Arc::strong_count(&socket), 1);
        drop(socket);
        peer.set_nonblocking(true).unwrap();
        let mut rest = Vec::new();
        (&peer).read_to_end(&mut rest).unwrap();
        assert!(rest.len() < body.len());
    }
}

#[test]
fn operation_that_never_ends_keeps_its_memory() {
    let Some(mut uring) = open_uring() else {
        return;
    };
    let (socket, _peer) = tcp_pair();
    uring.insert_stuck_slot(&socket);
    let buffers = uring.buffers();
    drop(uring);
    assert_eq!(
        (Arc::strong_count(&buffers), Arc::strong_count(&socket)),
        (2, 2)
    );
}

#[test]
fn invalid_configuration_is_an_error() {
    let wrong = [
        UringConfig {
            sq_entries: 0,
            ..SMALL_CONFIG
        },
        UringConfig {
            cq_entries: 1,
            ..SMALL_CONFIG
        },
    ];
    for config in wrong {
        assert!(Uring::open(config).is_err(), "{config:?}");
    }
}

/// Container runtimes forbid io_uring in this way.
#[test]
fn io_uring_forbidden_by_seccomp_is_an_error() {
    for errno in [libc::EPERM, libc::ENOSYS] {
        let refused = with_uring_forbidden(errno, || {
            Uring::open(SMALL_CONFIG)
                .err()
                .expect("io_uring_setup is forbidden")
        });
        assert_eq!(refused.raw_os_error(), Some(errno));
    }
}

#[test]
fn send_length_is_limited_to_a_completion_result() {
    use super::send_msg::{MAX_SEND_LEN, SendMsg};
    // The bytes are never read, so no physical memory is used.
    let huge = vec![0; MAX_SEND_LEN + 5];
    assert_eq!(
        SendMsg::new([1, 2, 3].into(), &[&huge, &huge]).len(),
        MAX_SEND_LEN
    );
    assert_eq!(
        SendMsg::new([1, 2, 3].into(), &[&huge[..7], &huge[..9]]).len(),
        19
    );
    let few: Vec<&[u8]> = vec![b"x"; 100];
    assert_eq!(
        SendMsg::new(Box::new([]), &few).len(),
        super::send_msg::MAX_IOVECS
    );
}

#[test]
fn unregistrable_buffers_are_an_error() {
    assert!(
        Uring::open(UringConfig {
            buffer_count: 3,
            ..SMALL_CONFIG
        })
        .is_err()
    );
}

/// The limit applies to the whole process, so a child process sets it.
#[test]
fn exceeding_the_memlock_limit_is_an_error() {
    const CHILD_ENV: &str = "FABRIC_TEST_NO_LOCKED_MEMORY";
    const NAME: &str = "sys::uring::tests::exceeding_the_memlock_limit_is_an_error";
    if std::env::var_os(CHILD_ENV).is_some() {
        limit_locked_memory(0);
        let refused = Uring::open(UringConfig {
            buffer_count: 1024,
            ..SMALL_CONFIG
        })
        .err()
        .expect("the buffers exceed the limit");
        assert!(
            [Some(libc::ENOMEM), Some(libc::EPERM)].contains(&refused.raw_os_error()),
            "{refused}"
        );
        return println!("refused");
    }
    let Some(uring) = open_uring() else { return };
    drop(uring);
    let stdout = child_process::run_test(NAME, CHILD_ENV);
    assert!(stdout.contains("refused"), "{stdout}");
}

/// Sends bytes of several parts, more than a socket buffers, in one operation.
#[test]
fn long_send_is_one_operation() {
    let Some(mut uring) = open_uring() else {
        return;
    };
    let (socket, mut peer) = tcp_pair();
    let body: Vec<u8> = (0..30_000_000u32)
        .map(|index| (index % 251) as u8)
        .collect();
    let (a, b) = body.split_at(12_345_678);
    // SAFETY: `body` lives until the completion.
    unsafe { uring.send(&socket, 8, (*b"head").into(), &[a, b]) }.unwrap();
    uring.submit().unwrap();
    let reader = thread::spawn(move || {
        let mut all = vec![0; 4 + 30_000_000];
        peer.read_exact(&mut all).unwrap();
        all
    });
    let sent = next_completion(&mut uring);
    let CompletionKind::Sent(send) = sent.kind else {
        panic!("{sent:?}")
    };
    assert_eq!(
        (send.result, &send.owned[..], sent.is_last),
        (Ok(30_000_004), &b"head"[..], true)
    );
    let all = reader.join().unwrap();
    assert!(all[..4] == *b"head" && all[4..] == body);
}

/// A canceled send reports the number of bytes sent, so that the caller can send the rest, and no
/// byte twice.
#[test]
fn canceled_send_reports_the_bytes_sent() {
    let Some(mut uring) = open_uring() else {
        return;
    };
    let (socket, mut peer) = tcp_pair();
    let body: Vec<u8> = (0..30_000_000u32)
        .map(|index| (index % 251) as u8)
        .collect();
    // SAFETY: `body` lives until the send was canceled.
    let op_id = unsafe { uring.send(&socket, 8, Box::new([]), &[&body]) }.unwrap();
    uring.submit().unwrap();
    let sent = uring.cancel_send(op_id).unwrap().result.unwrap();
    assert!(sent > 0 && sent < body.len(), "{sent}");
    assert_eq!(uring.active_ops(), 0);
    drop(socket);
    let mut all = Vec::new();
    peer.read_to_end(&mut all).unwrap();
    assert!(all == body[..sent]);
}

/// A receive continues after the thread that submitted it has exited, or ends with a completion.
#[test]
fn receive_survives_or_reports_the_exit_of_its_submitting_thread() {
    for coop_taskrun in [true, false] {
        let Some(mut uring) = open_uring_with(UringConfig {
            coop_taskrun,
            ..SMALL_CONFIG
        }) else {
            return;
        };
        let (socket, mut peer) = tcp_pair();
        let mut received = Vec::new();
        for round in 0..20u8 {
            let start_recv = |uring: &mut Uring| {
                thread::scope(|scope| {
                    scope.spawn(|| {
                        uring.recv_multishot(&socket, 0).unwrap();
                        uring.submit().unwrap();
                    });
                });
            };
            if uring.active_ops() == 0 {
                start_recv(&mut uring);
            }
            peer.write_all(&[round; 50]).unwrap();
            while received.len() < 50 * (usize::from(round) + 1) {
                match next_completion(&mut uring).kind {
                    CompletionKind::Received(lease) => received.extend_from_slice(&lease),
                    CompletionKind::Failed(Errno::CANCELED) => start_recv(&mut uring),
                    other => panic!("{other:?}"),
                }
            }
        }
        assert!(
            received
                .chunks(50)
                .enumerate()
                .all(|(round, chunk)| chunk == [round as u8; 50])
        );
    }
}

/// Without buffers a receive ends. A receive that starts when there are buffers again gets the
/// bytes that arrived in between.
#[test]
fn receive_ends_without_buffers_and_later_receive_gets_pending_bytes() {
    let Some(mut uring) = open_uring() else {
        return;
    };
    let (socket, mut peer) = tcp_pair();
    peer.write_all(&[9; 6 * 4096]).unwrap();
    uring.recv_multishot(&socket, 0).unwrap();
    uring.submit().unwrap();
    let mut held = Vec::new();
    let last = loop {
        let completion = next_completion(&mut uring);
        match completion.kind {
            CompletionKind::Received(lease) => held.push(lease),
            other => break other,
        }
    };
    assert!(
        matches!(last, CompletionKind::Failed(Errno::NOBUFS)),
        "{last:?}"
    );
    assert_eq!(held.len(), 4);
    held = held
        .into_iter()
        .map(super::LeasedBuffer::into_owned)
        .collect();
    uring.recv_multishot(&socket, 0).unwrap();
    uring.submit().unwrap();
    let mut count: usize = held.iter().map(|lease| lease.len()).sum();
    while count < 6 * 4096 {
        count += received_bytes(&next_completion(&mut uring).kind).len();
    }
    assert_eq!(count, 6 * 4096);
}

#[test]
fn unknown_op_id_is_ignored() {
    let (Some(mut one), Some(mut other)) = (open_uring(), open_uring()) else {
        return;
    };
    let (socket, _peer) = tcp_pair();
    // `other` has no operation with this id.
    let op_id = one.recv_multishot(&socket, 0).unwrap();
    other.cancel(op_id);
    other.detach(op_id);
    assert!(other.cancel_send(op_id).is_none());
    assert_eq!((one.active_ops(), other.active_ops()), (1, 0));
}
