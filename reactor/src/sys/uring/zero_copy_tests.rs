//! Tests of rule 10 in the documentation of `uring`: the ownership of the buffers of zero-copy
//! sends. Over loopback the kernel releases a buffer when the bytes were copied for the peer, so a
//! peer whose receive buffer is full delays the release.
#![allow(unsafe_code)] // a `CustomBuf`

use std::io::Read;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use fabric_core::buf::{AnyBuf, CustomBuf};
use fabric_core::transport::OpKey;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};

use super::skip::{Facility, skip};
use super::tests::{SMALL_CONFIG, limit_locked_memory, next_completion, open_uring};
use super::{CompletionKind, ReleasedBuffer, SendResult, Uring, UringCompletion, ZeroCopyOutcome};
use crate::sys::child_process;

const OP: OpKey = OpKey {
    index: 7,
    generation: 3,
};
/// More bytes than a peer that reads nothing accepts, and fewer than the sending socket buffers.
const SEND_LEN: usize = 120_000;

/// Opens a small instance; `None`, and the test is skipped, if the kernel refuses io_uring or has
/// no zero-copy sends.
#[track_caller]
fn open_zero_copy_uring() -> Option<Uring> {
    let uring = open_uring()?;
    if uring.supports_zero_copy() {
        return Some(uring);
    }
    skip(Facility::Capability, "the kernel has no zero-copy sends");
    None
}

/// Returns both ends of a connection: the socket of the instance, and a peer with a small receive
/// buffer.
fn small_window_pair() -> (Arc<OwnedFd>, TcpStream) {
    let listener = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 16 << 10).unwrap();
    // With larger segments, TCP does not use the rest of the window before a timer fires.
    let segment: i32 = 1000;
    // SAFETY: the option value has this length.
    let set = unsafe {
        let (value, len) = ((&raw const segment).cast(), size_of::<i32>() as u32);
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_MAXSEG,
            value,
            len,
        )
    };
    assert_eq!(set, 0);
    let any_addr = std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 0);
    rustix::net::bind(&listener, &any_addr).unwrap();
    rustix::net::listen(&listener, 1).unwrap();
    let addr =
        std::net::SocketAddr::try_from(rustix::net::getsockname(&listener).unwrap()).unwrap();
    let socket = TcpStream::connect(addr).unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&socket, 1 << 20).unwrap();
    let peer = TcpStream::from(rustix::net::accept(&listener).unwrap());
    (Arc::new(socket.into()), peer)
}

/// Returns `len` bytes that follow a known pattern.
fn test_pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

/// Submits a zero-copy send of a short head and this buffer.
fn begin_send(uring: &mut Uring, socket: &Arc<OwnedFd>, buf: AnyBuf) -> super::OpId {
    let op_id = uring
        .send_zero_copy(socket, 8, (*b"head").into(), (OP, buf))
        .unwrap();
    uring.submit().unwrap();
    op_id
}

/// Returns the end of a send, which is its first completion.
fn expect_sent(completion: UringCompletion) -> SendResult {
    assert!(
        !completion.is_last,
        "the buffer follows in another completion"
    );
    if let CompletionKind::Sent(sent) = completion.kind {
        sent
    } else {
        panic!("{completion:?}")
    }
}

/// Returns the released buffer, which is in the last completion.
fn expect_released(completion: UringCompletion) -> ReleasedBuffer {
    assert!(
        completion.is_last,
        "the release of the buffer is the last completion"
    );
    if let CompletionKind::BufferReleased(released) = completion.kind {
        released
    } else {
        panic!("{completion:?}")
    }
}

/// Checks that there is no completion, after entering the kernel.
fn assert_no_completion(uring: &mut Uring) {
    uring.submit().unwrap();
    let completion = uring.next_completion();
    assert!(completion.is_none(), "{completion:?}");
}

/// Reads and checks the head and `len` bytes of the pattern.
fn assert_received(peer: &mut TcpStream, len: usize) {
    let mut all = vec![0; 4 + len];
    peer.read_exact(&mut all).unwrap();
    assert!(all[..4] == *b"head" && all[4..] == test_pattern(len));
}

#[test]
fn buffer_is_held_until_the_second_completion() {
    let Some(mut uring) = open_zero_copy_uring() else {
        return;
    };
    let (socket, mut peer) = small_window_pair();
    begin_send(&mut uring, &socket, AnyBuf::Vec(test_pattern(SEND_LEN)));
    let sent = expect_sent(next_completion(&mut uring));
    assert_eq!(
        (sent.result, &sent.owned[..]),
        (Ok(4 + SEND_LEN), &b"head"[..])
    );
    assert_no_completion(&mut uring);
    assert_eq!(uring.active_ops(), 1);
    // A later send does not wait for the buffer of an earlier one.
    begin_send(&mut uring, &socket, AnyBuf::Vec(test_pattern(10)));
    assert_eq!(expect_sent(next_completion(&mut uring)).result, Ok(14));
    assert_received(&mut peer, SEND_LEN);
    assert_received(&mut peer, 10);
    for len in [SEND_LEN, 10] {
        let released = expect_released(next_completion(&mut uring));
        assert!(released.op == OP && released.buf.bytes() == test_pattern(len));
        assert_eq!(
            released.zero_copy,
            Some(ZeroCopyOutcome::Copied),
            "over loopback the kernel always copies"
        );
    }
    assert_eq!((uring.active_ops(), uring.unmatched_cqes), (0, 0));
}

#[test]
fn canceled_send_keeps_buffer_until_the_kernel_releases_it() {
    let Some(mut uring) = open_zero_copy_uring() else {
        return;
    };
    let (socket, mut peer) = small_window_pair();
    let len = 30_000_000;
    let op_id = begin_send(&mut uring, &socket, AnyBuf::Vec(test_pattern(len)));
    let sent = uring.cancel_send(op_id).unwrap().result.unwrap();
    assert!(sent > 4 && sent < len, "{sent}");
    assert!(uring.cancel_send(op_id).is_none(), "the send has ended");
    assert_no_completion(&mut uring);
    assert_eq!(uring.active_ops(), 1);
    assert_received(&mut peer, sent - 4);
    let released = expect_released(next_completion(&mut uring));
    assert!(
        released.buf.bytes() == test_pattern(len)
            && released.zero_copy == Some(ZeroCopyOutcome::Copied)
    );
}

#[test]
fn buffer_is_returned_when_the_connection_breaks() {
    for is_local in [false, true] {
        let Some(mut uring) = open_zero_copy_uring() else {
            return;
        };
        let (socket, peer) = small_window_pair();
        begin_send(&mut uring, &socket, AnyBuf::Vec(test_pattern(SEND_LEN)));
        expect_sent(next_completion(&mut uring));
        assert_no_completion(&mut uring);
        if is_local {
            rustix::net::connect_unspec(&socket).unwrap();
        } else {
            // The peer closes with unread bytes, so the connection is reset.
            drop(peer);
        }
        assert!(expect_released(next_completion(&mut uring)).buf.bytes() == test_pattern(SEND_LEN));
    }
}

/// A buffer that reports its drop.
struct DropNotifyBuf(Vec<u8>, Sender<()>);

// SAFETY: the bytes of a vector do not move with it.
unsafe impl CustomBuf for DropNotifyBuf {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn writable(&mut self) -> Option<&mut [u8]> {
        None
    }

    fn set_filled(&mut self, _: usize) {}
}

impl Drop for DropNotifyBuf {
    fn drop(&mut self) {
        // A reader that still uses the memory would see this.
        self.0.fill(0xff);
        let _ = self.1.send(());
    }
}

fn drop_notify_buf(len: usize) -> (AnyBuf, Receiver<()>) {
    let (drop_tx, drop_rx) = channel();
    (
        AnyBuf::Custom(Box::new(DropNotifyBuf(test_pattern(len), drop_tx))),
        drop_rx,
    )
}

#[test]
fn buffers_outlive_a_dropped_instance() {
    // One send that has ended before the drop, and one that the drop cancels.
    for len in [SEND_LEN, 30_000_000] {
        let Some(mut uring) = open_zero_copy_uring() else {
            return;
        };
        let (socket, mut peer) = small_window_pair();
        let (buf, drop_rx) = drop_notify_buf(len);
        begin_send(&mut uring, &socket, buf);
        if len == SEND_LEN {
            expect_sent(next_completion(&mut uring));
        }
        drop(uring);
        assert!(
            drop_rx.try_recv().is_err(),
            "the kernel still reads the buffer"
        );
        rustix::net::shutdown(&socket, rustix::net::Shutdown::Write).unwrap();
        let mut all = Vec::new();
        peer.read_to_end(&mut all).unwrap();
        assert!(all[..4] == *b"head" && all[4..] == test_pattern(all.len() - 4));
        drop_rx.recv().unwrap();
    }
}

#[test]
fn drop_releases_unsubmitted_buffers() {
    let Some(mut uring) = open_zero_copy_uring() else {
        return;
    };
    let (socket, peer) = small_window_pair();
    let (buf, drop_rx) = drop_notify_buf(SEND_LEN);
    uring
        .send_zero_copy(&socket, 8, Box::new([]), (OP, buf))
        .unwrap();
    drop(uring);
    drop(peer);
    drop_rx.recv().unwrap();
}

/// Unix sockets do not support zero-copy sends, nor do some network sockets.
#[test]
fn buffer_is_returned_when_the_kernel_refuses() {
    let Some(mut uring) = open_zero_copy_uring() else {
        return;
    };
    let (socket, mut peer) = UnixStream::pair().unwrap();
    let socket = Arc::new(OwnedFd::from(socket));
    begin_send(&mut uring, &socket, AnyBuf::Vec(test_pattern(SEND_LEN)));
    let sent = expect_sent(next_completion(&mut uring));
    assert_eq!(
        (sent.result, &sent.owned[..]),
        (Err(Errno::OPNOTSUPP), &b"head"[..])
    );
    let released = expect_released(next_completion(&mut uring));
    assert!(
        released.op == OP
            && released.zero_copy.is_none()
            && released.buf.bytes() == test_pattern(SEND_LEN)
    );
    assert_eq!((uring.active_ops(), uring.unmatched_cqes), (0, 0));
    drop(socket);
    assert_eq!(peer.read(&mut [0; 8]).unwrap(), 0, "no byte was sent");
}

#[test]
fn buffer_is_returned_to_the_caller_without_sq_room() {
    let Some(mut uring) = open_zero_copy_uring() else {
        return;
    };
    let (socket, _peer) = small_window_pair();
    for _ in 0..SMALL_CONFIG.sq_entries {
        uring.recv_multishot(&socket, 0).unwrap();
    }
    uring.injected_errors.extend([Errno::PERM]);
    let (owned, buf) = uring
        .send_zero_copy(
            &socket,
            8,
            (*b"head").into(),
            (OP, AnyBuf::Vec(test_pattern(SEND_LEN))),
        )
        .unwrap_err();
    assert!(owned[..] == *b"head" && buf.bytes() == test_pattern(SEND_LEN));
}

/// The limit applies to the whole process, so a child process sets it.
#[test]
fn zero_copy_send_over_memlock_limit_returns_buffer() {
    const CHILD_ENV: &str = "FABRIC_TEST_NO_LOCKED_MEMORY";
    const NAME: &str =
        "sys::uring::zero_copy_tests::zero_copy_send_over_memlock_limit_returns_buffer";
    if std::env::var_os(CHILD_ENV).is_some() {
        // Enough for the instance, not for the buffer.
        limit_locked_memory(2 << 20);
        let mut uring = open_uring().expect("the parent process opened one");
        let (socket, _peer) = small_window_pair();
        begin_send(&mut uring, &socket, AnyBuf::Vec(test_pattern(30_000_000)));
        let result = expect_sent(next_completion(&mut uring)).result;
        assert!(
            [Err(Errno::NOBUFS), Err(Errno::NOMEM)].contains(&result),
            "{result:?}"
        );
        let released = expect_released(next_completion(&mut uring));
        assert!(released.zero_copy.is_none() && released.buf.bytes() == test_pattern(30_000_000));
        return println!("refused");
    }
    let Some(_) = open_zero_copy_uring() else {
        return;
    };
    let stdout = child_process::run_test(NAME, CHILD_ENV);
    assert!(stdout.contains("refused"), "{stdout}");
}

/// The parts of a gather buffer are sent in place, up to the iovec limit of one send.
#[test]
fn gather_is_sent_up_to_the_iovec_limit() {
    let Some(mut uring) = open_zero_copy_uring() else {
        return;
    };
    let (socket, mut peer) = small_window_pair();
    let parts = |count: usize| {
        let parts: Vec<Vec<u8>> = test_pattern(10 * count).chunks(10).map(Vec::from).collect();
        fabric_core::buf::IoBuf::into_any(fabric_core::buf::Gather::from(parts))
    };
    // The owned bytes take one of the 16 iovecs.
    for (count, len) in [(15, 150), (16, 150)] {
        begin_send(&mut uring, &socket, parts(count));
        assert_eq!(expect_sent(next_completion(&mut uring)).result, Ok(4 + len));
        assert_received(&mut peer, len);
        assert_eq!(
            expect_released(next_completion(&mut uring))
                .buf
                .payload()
                .len(),
            10 * count
        );
    }
}

/// Dropping an instance handles the completions that a cancellation has fetched and not handled:
/// the kernel does not report them again.
#[test]
fn drop_handles_fetched_completions() {
    for len in [SEND_LEN, 30_000_000] {
        let Some(mut uring) = open_zero_copy_uring() else {
            return;
        };
        let (socket, peer) = small_window_pair();
        let (buf, drop_rx) = drop_notify_buf(len);
        // The peer resets the connection, so both completions are fetched by the cancellation.
        let op_id = uring
            .send_zero_copy(&socket, 8, (*b"head").into(), (OP, buf))
            .unwrap();
        uring.submit().unwrap();
        drop(peer);
        // No interest: `poll` returns for an error or a hang-up.
        let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::empty())];
        poll(&mut fds, None).unwrap();
        let _ = uring.cancel_send(op_id);
        drop(socket);
        drop(uring);
        drop_rx.recv().unwrap();
    }
}
