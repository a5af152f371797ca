//! Sends with buffers: whose those are until the kernel has looked for the last time. Inside this
//! machine that is when the bytes have been copied for the peer, so a peer that has no room for
//! them keeps the kernel looking.
#![allow(unsafe_code)] // a buffer of its own kind

use std::io::Read;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use fabric_core::buf::{AnyBuf, CustomBuf};
use fabric_core::transport::OpKey;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};

use super::tests::{SMALL_CONFIG, limit_locked_memory, next_completion, open_uring};
use super::{CompletionKind, ReleasedBuffer, SendResult, Uring, UringCompletion, ZeroCopyOutcome};

const OP: OpKey = OpKey {
    index: 7,
    generation: 3,
};
/// More than a peer takes that reads nothing, less than is kept for it.
const SEND_LEN: usize = 120_000;

/// Two ends of a connection: that of the ring, and one that takes little before it reads.
fn small_window_pair() -> (Arc<OwnedFd>, TcpStream) {
    let listener = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 16 << 10).unwrap();
    // Where segments are larger than that, what is left of it is not used before a timer says so.
    let segment: i32 = 1000;
    // SAFETY: an option of that length.
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
    let any = std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 0);
    rustix::net::bind(&listener, &any).unwrap();
    rustix::net::listen(&listener, 1).unwrap();
    let at = std::net::SocketAddr::try_from(rustix::net::getsockname(&listener).unwrap()).unwrap();
    let near = TcpStream::connect(at).unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&near, 1 << 20).unwrap();
    let far = TcpStream::from(rustix::net::accept(&listener).unwrap());
    (Arc::new(near.into()), far)
}

fn test_pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

/// A send of a short head and of this many bytes in a buffer, which has begun.
fn begin_send(ring: &mut Uring, near: &Arc<OwnedFd>, buf: AnyBuf) -> super::OpId {
    let ticket = ring
        .send_zero_copy(near, 8, (*b"head").into(), (OP, buf))
        .unwrap();
    ring.submit().unwrap();
    ticket
}

fn expect_sent(completion: UringCompletion) -> SendResult {
    assert!(!completion.is_last, "its buffer is still to come");
    if let CompletionKind::Sent(sent) = completion.kind {
        sent
    } else {
        panic!("{completion:?}")
    }
}

fn expect_released(completion: UringCompletion) -> ReleasedBuffer {
    assert!(completion.is_last, "nothing more comes of it");
    if let CompletionKind::BufferReleased(released) = completion.kind {
        released
    } else {
        panic!("{completion:?}")
    }
}

/// Nothing has come, and nothing is about to: the kernel has been asked.
fn assert_no_completion(ring: &mut Uring) {
    ring.submit().unwrap();
    let come = ring.next_completion();
    assert!(come.is_none(), "{come:?}");
}

fn assert_received(far: &mut TcpStream, len: usize) {
    let mut all = vec![0; 4 + len];
    far.read_exact(&mut all).unwrap();
    assert!(all[..4] == *b"head" && all[4..] == test_pattern(len));
}

#[test]
fn buffer_is_held_until_the_second_completion() {
    let Some(mut ring) = open_uring().filter(Uring::supports_zero_copy) else {
        return;
    };
    let (near, mut far) = small_window_pair();
    begin_send(&mut ring, &near, AnyBuf::Vec(test_pattern(SEND_LEN)));
    let done = expect_sent(next_completion(&mut ring));
    assert_eq!(
        (done.result, &done.owned[..]),
        (Ok(4 + SEND_LEN), &b"head"[..])
    );
    assert_no_completion(&mut ring);
    assert_eq!(ring.active_ops(), 1);
    // Who comes behind does not wait.
    begin_send(&mut ring, &near, AnyBuf::Vec(test_pattern(10)));
    assert_eq!(expect_sent(next_completion(&mut ring)).result, Ok(14));
    assert_received(&mut far, SEND_LEN);
    assert_received(&mut far, 10);
    for len in [SEND_LEN, 10] {
        let back = expect_released(next_completion(&mut ring));
        assert!(back.op == OP && back.buf.bytes() == test_pattern(len));
        assert_eq!(
            back.zero_copy,
            Some(ZeroCopyOutcome::Copied),
            "there is no other way inside this machine"
        );
    }
    assert_eq!((ring.active_ops(), ring.unmatched_cqes()), (0, 0));
}

#[test]
fn buffer_of_a_canceled_send_is_returned_later() {
    let Some(mut ring) = open_uring().filter(Uring::supports_zero_copy) else {
        return;
    };
    let (near, mut far) = small_window_pair();
    let all = 30_000_000;
    let ticket = begin_send(&mut ring, &near, AnyBuf::Vec(test_pattern(all)));
    let came = ring.cancel_send(ticket).unwrap().result.unwrap();
    assert!(came > 4 && came < all, "{came}");
    assert!(ring.cancel_send(ticket).is_none(), "it has ended");
    assert_no_completion(&mut ring);
    assert_eq!(ring.active_ops(), 1);
    assert_received(&mut far, came - 4);
    let back = expect_released(next_completion(&mut ring));
    assert!(
        back.buf.bytes() == test_pattern(all) && back.zero_copy == Some(ZeroCopyOutcome::Copied)
    );
}

#[test]
fn buffer_is_returned_when_the_connection_breaks() {
    for is_this_side in [false, true] {
        let Some(mut ring) = open_uring().filter(Uring::supports_zero_copy) else {
            return;
        };
        let (near, far) = small_window_pair();
        begin_send(&mut ring, &near, AnyBuf::Vec(test_pattern(SEND_LEN)));
        expect_sent(next_completion(&mut ring));
        assert_no_completion(&mut ring);
        if is_this_side {
            rustix::net::connect_unspec(&near).unwrap();
        } else {
            // With something unread: it breaks.
            drop(far);
        }
        assert!(expect_released(next_completion(&mut ring)).buf.bytes() == test_pattern(SEND_LEN));
    }
}

/// A buffer that says when it is dropped.
struct DropNotifyBuf(Vec<u8>, Sender<()>);

// SAFETY: a vector's bytes stay where they are.
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
        // Whoever still reads it sees this.
        self.0.fill(0xff);
        let _ = self.1.send(());
    }
}

fn drop_notify_buf(len: usize) -> (AnyBuf, Receiver<()>) {
    let (gone, is_gone) = channel();
    (
        AnyBuf::Custom(Box::new(DropNotifyBuf(test_pattern(len), gone))),
        is_gone,
    )
}

#[test]
fn buffers_outlive_a_dropped_instance() {
    // A send that has ended before, and one that is cut short.
    for len in [SEND_LEN, 30_000_000] {
        let Some(mut ring) = open_uring().filter(Uring::supports_zero_copy) else {
            return;
        };
        let (near, mut far) = small_window_pair();
        let (buf, is_gone) = drop_notify_buf(len);
        begin_send(&mut ring, &near, buf);
        if len == SEND_LEN {
            expect_sent(next_completion(&mut ring));
        }
        drop(ring);
        assert!(is_gone.try_recv().is_err(), "it is still being looked at");
        rustix::net::shutdown(&near, rustix::net::Shutdown::Write).unwrap();
        let mut all = Vec::new();
        far.read_to_end(&mut all).unwrap();
        assert!(all[..4] == *b"head" && all[4..] == test_pattern(all.len() - 4));
        is_gone.recv().unwrap();
    }
}

#[test]
fn drop_releases_unsubmitted_buffers() {
    let Some(mut ring) = open_uring().filter(Uring::supports_zero_copy) else {
        return;
    };
    let (near, far) = small_window_pair();
    let (buf, is_gone) = drop_notify_buf(SEND_LEN);
    ring.send_zero_copy(&near, 8, Box::new([]), (OP, buf))
        .unwrap();
    drop(ring);
    drop(far);
    is_gone.recv().unwrap();
}

/// Sockets inside the machine do not know it, as some of the network's do not.
#[test]
fn buffer_is_returned_when_the_kernel_refuses() {
    let Some(mut ring) = open_uring().filter(Uring::supports_zero_copy) else {
        return;
    };
    let (near, mut far) = UnixStream::pair().unwrap();
    let near = Arc::new(OwnedFd::from(near));
    begin_send(&mut ring, &near, AnyBuf::Vec(test_pattern(SEND_LEN)));
    let done = expect_sent(next_completion(&mut ring));
    assert_eq!(
        (done.result, &done.owned[..]),
        (Err(Errno::OPNOTSUPP), &b"head"[..])
    );
    let back = expect_released(next_completion(&mut ring));
    assert!(
        back.op == OP && back.zero_copy.is_none() && back.buf.bytes() == test_pattern(SEND_LEN)
    );
    assert_eq!((ring.active_ops(), ring.unmatched_cqes()), (0, 0));
    drop(near);
    assert_eq!(far.read(&mut [0; 8]).unwrap(), 0, "nothing has left");
}

#[test]
fn buffer_is_returned_at_once_without_sq_room() {
    let Some(mut ring) = open_uring().filter(Uring::supports_zero_copy) else {
        return;
    };
    let (near, _far) = small_window_pair();
    for _ in 0..SMALL_CONFIG.sq_entries {
        ring.recv_multishot(&near, 0).unwrap();
    }
    ring.injected_errors.extend([Errno::PERM]);
    let (own, buf) = ring
        .send_zero_copy(
            &near,
            8,
            (*b"head").into(),
            (OP, AnyBuf::Vec(test_pattern(SEND_LEN))),
        )
        .unwrap_err();
    assert!(own[..] == *b"head" && buf.bytes() == test_pattern(SEND_LEN));
}

/// The limit is one of the process, so it is another one that has it.
#[test]
fn buffer_is_returned_beyond_the_memlock_limit() {
    const ALONE: &str = "FABRIC_TEST_NO_LOCKED_MEMORY";
    const NAME: &str = "uring::zero_copy_tests::buffer_is_returned_beyond_the_memlock_limit";
    if std::env::var_os(ALONE).is_some() {
        // Enough for the ring.
        limit_locked_memory(2 << 20);
        let mut ring = open_uring().expect("there was one before");
        let (near, _far) = small_window_pair();
        begin_send(&mut ring, &near, AnyBuf::Vec(test_pattern(30_000_000)));
        let result = expect_sent(next_completion(&mut ring)).result;
        assert!(
            [Err(Errno::NOBUFS), Err(Errno::NOMEM)].contains(&result),
            "{result:?}"
        );
        let back = expect_released(next_completion(&mut ring));
        assert!(back.zero_copy.is_none() && back.buf.bytes() == test_pattern(30_000_000));
        return println!("refused");
    }
    let Some(_) = open_uring().filter(Uring::supports_zero_copy) else {
        return;
    };
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

/// Vectors go as they are, and what one send cannot tell of is left.
#[test]
fn gather_is_sent_up_to_the_iovec_limit() {
    let Some(mut ring) = open_uring().filter(Uring::supports_zero_copy) else {
        return;
    };
    let (near, mut far) = small_window_pair();
    let parts = |count: usize| {
        let parts: Vec<Vec<u8>> = test_pattern(10 * count).chunks(10).map(Vec::from).collect();
        fabric_core::buf::IoBuf::into_any(fabric_core::buf::Gather::from(parts))
    };
    for (count, len) in [(15, 150), (16, 150)] {
        begin_send(&mut ring, &near, parts(count));
        assert_eq!(expect_sent(next_completion(&mut ring)).result, Ok(4 + len));
        assert_received(&mut far, len);
        assert_eq!(
            expect_released(next_completion(&mut ring))
                .buf
                .payload()
                .len(),
            10 * count
        );
    }
}

/// What was fetched when something was taken back, and not looked at, comes no second time.
#[test]
fn drop_handles_fetched_completions() {
    for len in [SEND_LEN, 30_000_000] {
        let Some(mut ring) = open_uring().filter(Uring::supports_zero_copy) else {
            return;
        };
        let (near, far) = small_window_pair();
        let (buf, is_gone) = drop_notify_buf(len);
        // The peer breaks the connection: both completions are there when it is taken back.
        let ticket = ring
            .send_zero_copy(&near, 8, (*b"head").into(), (OP, buf))
            .unwrap();
        ring.submit().unwrap();
        drop(far);
        std::thread::sleep(std::time::Duration::from_millis(100));
        let _ = ring.cancel_send(ticket);
        drop(near);
        drop(ring);
        assert!(
            is_gone
                .recv_timeout(std::time::Duration::from_secs(3))
                .is_ok(),
            "{len} is kept for ever"
        );
    }
}
