//! The rules of an operation's life, one by one. Where the kernel refuses rings there is nothing to
//! test.
#![allow(unsafe_code)] // sends that leave bytes where they lie

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use super::{CompletionKind, Uring, UringCompletion, UringConfig};

pub(super) const SMALL_CONFIG: UringConfig = UringConfig {
    sq_entries: 4,
    cq_entries: 8,
    buffer_count: 4,
    buffer_len: 4096,
    coop_taskrun: true,
};

pub(super) fn open_uring() -> Option<Uring> {
    match Uring::open(SMALL_CONFIG) {
        Ok(ring) => Some(ring),
        Err(error) => {
            eprintln!("skipped, the kernel refuses a ring: {error}");
            None
        }
    }
}

/// Two ends of a connection: the one the ring works on, and the other.
fn tcp_pair() -> (Arc<OwnedFd>, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let near = listener.accept().unwrap().0;
    (Arc::new(near.into()), far)
}

/// The next completion, whenever it comes.
pub(super) fn next_completion(ring: &mut Uring) -> UringCompletion {
    loop {
        if let Some(completion) = ring.next_completion() {
            return completion;
        }
        let mut fds = [PollFd::from_borrowed_fd(ring.event_fd(), PollFlags::IN)];
        let _ = poll(&mut fds, None);
        ring.clear_event();
    }
}

/// Does something while calls for the ring fail. A filter may refuse them from one moment to the
/// next; here the descriptor is exchanged for another one's.
pub(super) fn with_broken_fd(ring: &mut Uring, act: impl FnOnce(&mut Uring)) {
    let fd = ring.raw_fd();
    let other = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    // SAFETY: the ring's descriptor, kept while another has its place.
    let ring_fd = unsafe { libc::dup(fd) };
    // SAFETY: nobody else uses the ring; its maps do not depend on the descriptor.
    assert!(unsafe { libc::dup2(other.as_raw_fd(), fd) } == fd);
    act(ring);
    // SAFETY: back where it was.
    assert!(unsafe { libc::dup2(ring_fd, fd) } == fd);
    // SAFETY: this test's own.
    unsafe { libc::close(ring_fd) };
}

/// Does something on a thread that is forbidden to open rings, as a container forbids it.
pub(crate) fn with_uring_forbidden<T: Send>(errno: i32, act: impl FnOnce() -> T + Send) -> T {
    let code = |code, k, jt, jf| libc::sock_filter { code, k, jt, jf };
    let (load, jump, end) = (0x20, 0x15, 0x06);
    // The number of the call comes first.
    let filter = [
        code(load, 0, 0, 0),
        code(jump, libc::SYS_io_uring_setup as u32, 0, 1),
        code(end, libc::SECCOMP_RET_ERRNO | errno as u32, 0, 0),
        code(end, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let filter = libc::sock_fprog {
                len: filter.len() as u16,
                filter: filter.as_ptr().cast_mut().cast(),
            };
            // SAFETY: for this thread only, which ends with this function; the program is there for
            // the call.
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

/// From now on this process locks no more memory than this, and this thread has no right to all the
/// same.
pub(super) fn limit_locked_memory(bytes: u64) {
    const VERSION_3: u32 = 0x2008_0522;
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    let (header, rights) = ([VERSION_3, 0], [0u32; 6]);
    // SAFETY: both are read, and nothing is written: header and rights are as long as this version
    // says.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit), 0);
        assert_eq!(
            libc::syscall(libc::SYS_capset, header.as_ptr(), rights.as_ptr()),
            0
        );
    }
}

fn received_bytes(what: &CompletionKind) -> &[u8] {
    if let CompletionKind::Received(lease) = what {
        lease
    } else {
        panic!("{what:?}")
    }
}

#[test]
fn slot_lives_until_the_last_completion() {
    let Some(mut ring) = open_uring() else { return };
    let (near, mut far) = tcp_pair();
    let ticket = ring.recv_multishot(&near, 7).unwrap();
    ring.submit().unwrap();
    for round in 0..20u8 {
        far.write_all(&[round; 100]).unwrap();
        let completion = next_completion(&mut ring);
        assert_eq!(
            (completion.owner, completion.op_id, completion.is_last),
            (7, ticket, false)
        );
        assert_eq!(received_bytes(&completion.kind), [round; 100]);
        assert_eq!(ring.active_ops(), 1);
    }
    far.shutdown(Shutdown::Write).unwrap();
    let end = next_completion(&mut ring);
    assert!(
        matches!(end.kind, CompletionKind::Eof) && end.is_last,
        "{end:?}"
    );
    assert_eq!(ring.active_ops(), 0);
}

#[test]
fn unmatched_completion_is_counted_and_ignored() {
    let Some(mut ring) = open_uring() else { return };
    let (near, mut far) = tcp_pair();
    let old = ring.recv_multishot(&near, 1).unwrap();
    ring.cancel(old);
    ring.submit().unwrap();
    let ended = next_completion(&mut ring);
    assert!(
        matches!(ended.kind, CompletionKind::Failed(Errno::CANCELED)) && ended.is_last,
        "{ended:?}"
    );
    // The same slot, and another operation.
    let new = ring.recv_multishot(&near, 2).unwrap();
    assert!(new != old && new.0 as u32 == old.0 as u32);
    ring.inject_cqe(old.0, 5);
    ring.inject_cqe(1 << 40 | 77, 5);
    ring.cancel(old);
    ring.submit().unwrap();
    far.write_all(b"for the new one").unwrap();
    let completion = next_completion(&mut ring);
    assert_eq!((completion.owner, completion.op_id), (2, new));
    assert_eq!(received_bytes(&completion.kind), b"for the new one");
    assert_eq!((ring.unmatched_cqes(), ring.active_ops()), (2, 1));
}

#[test]
fn queued_entries_survive_a_failed_submit() {
    let Some(mut ring) = open_uring() else { return };
    let (near, mut far) = tcp_pair();
    let ticket = ring.recv_multishot(&near, 3).unwrap();
    with_broken_fd(&mut ring, |ring| {
        assert!(ring.submit().is_err());
        assert_eq!(ring.active_ops(), 1);
    });
    ring.submit().unwrap();
    far.write_all(b"after all").unwrap();
    let completion = next_completion(&mut ring);
    assert_eq!(
        (completion.op_id, received_bytes(&completion.kind)),
        (ticket, &b"after all"[..])
    );
}

#[test]
fn op_without_sq_room_is_returned_to_the_caller() {
    let Some(mut ring) = open_uring() else { return };
    let pairs: Vec<_> = (0..4).map(|_| tcp_pair()).collect();
    with_broken_fd(&mut ring, |ring| {
        for (owner, (near, _)) in pairs.iter().enumerate() {
            ring.recv_multishot(near, owner as u64).unwrap();
        }
        // As many as are handed over together.
        assert!(ring.recv_multishot(&pairs[0].0, 9).is_err());
        // SAFETY: there are no others.
        let refused = unsafe { ring.send(&pairs[0].0, 9, (*b"given away").into(), &[]) };
        assert_eq!(refused.unwrap_err()[..], *b"given away");
        assert_eq!(ring.active_ops(), 4);
    });
    ring.submit().unwrap();
    for (owner, (_, far)) in pairs.iter().enumerate() {
        let mut far = far;
        far.write_all(&[owner as u8; 10]).unwrap();
        let completion = next_completion(&mut ring);
        assert_eq!(
            (completion.owner, received_bytes(&completion.kind)),
            (owner as u64, &[owner as u8; 10][..])
        );
    }
}

#[test]
fn busy_or_interrupted_enter_is_retried() {
    let Some(mut ring) = open_uring() else { return };
    let ((near, mut far), (other, mut other_far)) = (tcp_pair(), tcp_pair());
    let first = ring.recv_multishot(&near, 1).unwrap();
    ring.submit().unwrap();
    far.write_all(b"meanwhile").unwrap();
    ring.recv_multishot(&other, 2).unwrap();
    ring.injected_errors.extend([
        Errno::INTR,
        Errno::BUSY,
        Errno::INTR,
        Errno::AGAIN,
        Errno::BUSY,
    ]);
    ring.submit().unwrap();
    assert!(ring.injected_errors.is_empty(), "all of them were heard");
    other_far.write_all(b"handed over").unwrap();
    let mut got = [next_completion(&mut ring), next_completion(&mut ring)];
    got.sort_by_key(|completion| completion.owner);
    assert_eq!(
        (got[0].op_id, received_bytes(&got[0].kind)),
        (first, &b"meanwhile"[..])
    );
    assert_eq!(
        (got[1].owner, received_bytes(&got[1].kind)),
        (2, &b"handed over"[..])
    );
    // Waiting goes on likewise.
    ring.injected_errors
        .extend([Errno::INTR, Errno::BUSY, Errno::INTR]);
    let body = vec![7; 30_000_000];
    // SAFETY: `body` lives until it was taken back.
    let ticket = unsafe { ring.send(&near, 8, Box::new([]), &[&body]) }.unwrap();
    assert!(
        ring.cancel_send(ticket)
            .unwrap()
            .result
            .is_ok_and(|count| count < body.len())
    );
}

#[test]
fn refused_enter_is_an_error_and_loses_nothing() {
    let Some(mut ring) = open_uring() else { return };
    let (near, mut far) = tcp_pair();
    ring.recv_multishot(&near, 1).unwrap();
    ring.injected_errors.push_back(Errno::PERM);
    assert_eq!(
        ring.submit().unwrap_err().kind(),
        ErrorKind::PermissionDenied
    );
    ring.injected_errors.extend([Errno::BUSY; 100]);
    assert_eq!(ring.submit().unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(!ring.injected_errors.is_empty(), "attempts have an end");
    ring.injected_errors.clear();
    ring.submit().unwrap();
    far.write_all(b"kept").unwrap();
    assert_eq!(received_bytes(&next_completion(&mut ring).kind), b"kept");
}

#[test]
fn overflowed_completions_are_fetched() {
    let Some(mut ring) = open_uring() else { return };
    let pairs: Vec<_> = (0..40).map(|_| tcp_pair()).collect();
    // More than are handed over together, and more than there is room for.
    for (owner, (near, far)) in pairs.iter().enumerate() {
        far.shutdown(Shutdown::Write).unwrap();
        ring.recv_multishot(near, owner as u64).unwrap();
    }
    ring.submit().unwrap();
    let mut owners: Vec<_> = pairs
        .iter()
        .map(|_| next_completion(&mut ring))
        .map(|ended| ended.owner)
        .collect();
    owners.sort_unstable();
    assert_eq!(owners, (0..40).collect::<Vec<_>>());
    assert_eq!(ring.active_ops(), 0);
}

#[test]
fn detached_op_closes_its_descriptor_when_it_ends() {
    let Some(mut ring) = open_uring() else { return };
    let ((near, mut far), (other, mut other_far)) = (tcp_pair(), tcp_pair());
    let ticket = ring.recv_multishot(&near, 5).unwrap();
    ring.submit().unwrap();
    ring.detach(ticket);
    drop(near);
    // Not handed over yet: the peer sees no end, and nothing takes the descriptor's place.
    far.set_nonblocking(true).unwrap();
    assert_eq!(
        far.read(&mut [0; 8]).unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
    far.set_nonblocking(false).unwrap();
    ring.recv_multishot(&other, 6).unwrap();
    ring.submit().unwrap();
    other_far.write_all(b"later").unwrap();
    // Nothing is heard of the one that was abandoned.
    assert_eq!(next_completion(&mut ring).owner, 6);
    assert_eq!(far.read(&mut [0; 8]).unwrap(), 0);
    assert_eq!(ring.active_ops(), 1);
}

#[test]
fn drop_waits_for_active_ops() {
    let Some(mut ring) = open_uring() else { return };
    let pairs: Vec<_> = (0..10).map(|_| tcp_pair()).collect();
    for (near, _) in &pairs {
        ring.recv_multishot(near, 0).unwrap();
    }
    ring.submit().unwrap();
    let buffers = ring.buffers();
    let lease = {
        (&pairs[0].1).write_all(b"kept").unwrap();
        next_completion(&mut ring)
    };
    drop(ring);
    // Nobody but this test and its lease has the memory any more, so the kernel has not either.
    assert_eq!(Arc::strong_count(&buffers), 2);
    assert_eq!(received_bytes(&lease.kind), b"kept");
    for (near, far) in pairs {
        assert_eq!(Arc::strong_count(&near), 1);
        drop(near);
        assert_eq!(
            (&far)
                .read(&mut [0; 8])
                .map_err(|error| error.kind())
                .unwrap_or(0),
            0
        );
    }
}

/// Connections inside the machine end the moment their last owner has gone: so the kernel is none
/// when the ring is.
#[test]
fn drop_leaves_no_active_ops() {
    for _ in 0..50 {
        let Some(mut ring) = open_uring() else { return };
        let (near, far) = UnixStream::pair().unwrap();
        let near = Arc::new(OwnedFd::from(near));
        ring.recv_multishot(&near, 0).unwrap();
        // One that waits for room, and one that was not handed over.
        let body = vec![1; 4 << 20];
        // SAFETY: `body` lives longer than the ring.
        unsafe { ring.send(&near, 0, Box::new([]), &[&body]) }.unwrap();
        ring.submit().unwrap();
        ring.recv_multishot(&near, 0).unwrap();
        drop(ring);
        assert_eq!(Arc::strong_count(&near), 1);
        drop(near);
        far.set_nonblocking(true).unwrap();
        let mut rest = Vec::new();
        (&far).read_to_end(&mut rest).unwrap();
        assert!(rest.len() < body.len());
    }
}

#[test]
fn op_that_never_ends_keeps_its_memory() {
    let Some(mut ring) = open_uring() else { return };
    let (near, _far) = tcp_pair();
    ring.insert_stuck_slot(&near);
    let buffers = ring.buffers();
    drop(ring);
    assert_eq!(
        (Arc::strong_count(&buffers), Arc::strong_count(&near)),
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
    for shape in wrong {
        assert!(Uring::open(shape).is_err(), "{shape:?}");
    }
}

/// What containers do.
#[test]
fn io_uring_forbidden_by_seccomp_is_an_error() {
    for errno in [libc::EPERM, libc::ENOSYS] {
        let refused = with_uring_forbidden(errno, || {
            Uring::open(SMALL_CONFIG).err().expect("it is forbidden")
        });
        assert_eq!(refused.raw_os_error(), Some(errno));
    }
}

#[test]
fn send_length_is_limited_to_a_completion_result() {
    use super::send_msg::{MAX_SEND_LEN, SendMsg};
    // Nothing looks at the bytes, so there is no memory behind them.
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

/// The limit is one of the process, so it is another one that has it.
#[test]
fn exceeding_the_memlock_limit_is_an_error() {
    const ALONE: &str = "FABRIC_TEST_NO_LOCKED_MEMORY";
    const NAME: &str = "uring::tests::exceeding_the_memlock_limit_is_an_error";
    if std::env::var_os(ALONE).is_some() {
        limit_locked_memory(0);
        let refused = Uring::open(UringConfig {
            buffer_count: 1024,
            ..SMALL_CONFIG
        })
        .err()
        .expect("it takes 4 MiB");
        assert!(
            [Some(libc::ENOMEM), Some(libc::EPERM)].contains(&refused.raw_os_error()),
            "{refused}"
        );
        return println!("refused");
    }
    let Some(ring) = open_uring() else { return };
    drop(ring);
    let mut program = Command::new(std::env::current_exe().unwrap());
    let output = program
        .args(["--exact", NAME, "--nocapture"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("refused"),
        "{}\n{said}",
        output.status
    );
}

/// Bytes of all parts, more than a socket holds, in one operation.
#[test]
fn long_send_is_one_operation() {
    let Some(mut ring) = open_uring() else { return };
    let (near, mut far) = tcp_pair();
    let body: Vec<u8> = (0..30_000_000u32).map(|at| (at % 251) as u8).collect();
    let (a, b) = body.split_at(12_345_678);
    // SAFETY: `body` lives until the completion.
    unsafe { ring.send(&near, 8, (*b"head").into(), &[a, b]) }.unwrap();
    ring.submit().unwrap();
    let reader = thread::spawn(move || {
        let mut all = vec![0; 4 + 30_000_000];
        far.read_exact(&mut all).unwrap();
        all
    });
    let sent = next_completion(&mut ring);
    let CompletionKind::Sent(done) = sent.kind else {
        panic!("{sent:?}")
    };
    assert_eq!(
        (done.result, &done.owned[..], sent.is_last),
        (Ok(30_000_004), &b"head"[..], true)
    );
    let all = reader.join().unwrap();
    assert!(all[..4] == *b"head" && all[4..] == body);
}

/// What has left says so when it is taken back: the rest can be sent in another way, and nothing
/// twice.
#[test]
fn canceled_send_reports_the_bytes_sent() {
    let Some(mut ring) = open_uring() else { return };
    let (near, mut far) = tcp_pair();
    let body: Vec<u8> = (0..30_000_000u32).map(|at| (at % 251) as u8).collect();
    // SAFETY: `body` lives until it was taken back.
    let ticket = unsafe { ring.send(&near, 8, Box::new([]), &[&body]) }.unwrap();
    ring.submit().unwrap();
    let sent = ring.cancel_send(ticket).unwrap().result.unwrap();
    assert!(sent > 0 && sent < body.len(), "{sent}");
    assert_eq!(ring.active_ops(), 0);
    drop(near);
    let mut all = Vec::new();
    far.read_to_end(&mut all).unwrap();
    assert!(all == body[..sent]);
}

/// What was begun by a thread that has ended goes on, or says that it does not.
#[test]
fn exit_of_the_submitting_thread_loses_nothing() {
    for cooperative in [true, false] {
        let Ok(ring) = Uring::open(UringConfig {
            coop_taskrun: cooperative,
            ..SMALL_CONFIG
        }) else {
            return;
        };
        let mut ring = ring;
        let (near, mut far) = tcp_pair();
        let mut got = Vec::new();
        for round in 0..20u8 {
            let begin = |ring: &mut Uring| {
                thread::scope(|scope| {
                    scope.spawn(|| {
                        ring.recv_multishot(&near, 0).unwrap();
                        ring.submit().unwrap();
                    });
                });
            };
            if ring.active_ops() == 0 {
                begin(&mut ring);
            }
            far.write_all(&[round; 50]).unwrap();
            while got.len() < 50 * (usize::from(round) + 1) {
                match next_completion(&mut ring).kind {
                    CompletionKind::Received(lease) => got.extend_from_slice(&lease),
                    CompletionKind::Failed(Errno::CANCELED) => begin(&mut ring),
                    other => panic!("{other:?}"),
                }
            }
        }
        assert!(
            got.chunks(50)
                .enumerate()
                .all(|(round, chunk)| chunk == [round as u8; 50])
        );
    }
}

/// Without memory a receive ends, and begins again when there is some; what has come in between is
/// there.
#[test]
fn receive_without_buffers_ends_and_loses_nothing() {
    let Some(mut ring) = open_uring() else { return };
    let (near, mut far) = tcp_pair();
    far.write_all(&[9; 6 * 4096]).unwrap();
    ring.recv_multishot(&near, 0).unwrap();
    ring.submit().unwrap();
    let mut held = Vec::new();
    let last = loop {
        let completion = next_completion(&mut ring);
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
    ring.recv_multishot(&near, 0).unwrap();
    ring.submit().unwrap();
    let mut count: usize = held.iter().map(|lease| lease.len()).sum();
    while count < 6 * 4096 {
        count += received_bytes(&next_completion(&mut ring).kind).len();
    }
    assert_eq!(count, 6 * 4096);
}

#[test]
fn op_id_of_another_instance_is_ignored() {
    let (Some(mut one), Some(mut other)) = (open_uring(), open_uring()) else {
        return;
    };
    let (near, _far) = tcp_pair();
    let ticket = one.recv_multishot(&near, 0).unwrap();
    other.cancel(ticket);
    other.detach(ticket);
    assert!(other.cancel_send(ticket).is_none());
    assert_eq!(one.active_ops(), 1);
}
