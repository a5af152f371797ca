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
use fabric_core::provider::OpKey;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};

use super::tests::{SMALL, limit_locked_memory, next, ring};
use super::{Completion, Released, Ring, Sent, Way, What};

const OP: OpKey = OpKey {
    index: 7,
    generation: 3,
};
/// More than a peer takes that reads nothing, less than is kept for it.
const LEN: usize = 120_000;

/// Two ends of a connection: that of the ring, and one that takes little before it reads.
fn narrow_pair() -> (Arc<OwnedFd>, TcpStream) {
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

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

/// A send of a short head and of this many bytes in a buffer, which has begun.
fn begin(ring: &mut Ring, near: &Arc<OwnedFd>, buf: AnyBuf) -> super::Ticket {
    let ticket = ring
        .send_zero_copy(near, 8, (*b"head").into(), (OP, buf))
        .unwrap();
    ring.submit().unwrap();
    ticket
}

fn sent(completion: Completion) -> Sent {
    assert!(!completion.is_last, "its buffer is still to come");
    if let What::Sent(sent) = completion.what {
        sent
    } else {
        panic!("{completion:?}")
    }
}

fn released(completion: Completion) -> Released {
    assert!(completion.is_last, "nothing more comes of it");
    if let What::Released(released) = completion.what {
        released
    } else {
        panic!("{completion:?}")
    }
}

/// Nothing has come, and nothing is about to: the kernel has been asked.
fn assert_silent(ring: &mut Ring) {
    ring.submit().unwrap();
    let come = ring.next();
    assert!(come.is_none(), "{come:?}");
}

fn assert_read(far: &mut TcpStream, len: usize) {
    let mut all = vec![0; 4 + len];
    far.read_exact(&mut all).unwrap();
    assert!(all[..4] == *b"head" && all[4..] == content(len));
}

#[test]
fn rule_10_a_buffer_outlives_its_send_until_the_kernel_looks_no_more() {
    let Some(mut ring) = ring().filter(Ring::has_zero_copy) else {
        return;
    };
    let (near, mut far) = narrow_pair();
    begin(&mut ring, &near, AnyBuf::Vec(content(LEN)));
    let done = sent(next(&mut ring));
    assert_eq!((done.result, &done.own[..]), (Ok(4 + LEN), &b"head"[..]));
    assert_silent(&mut ring);
    assert_eq!(ring.under_way(), 1);
    // Who comes behind does not wait.
    begin(&mut ring, &near, AnyBuf::Vec(content(10)));
    assert_eq!(sent(next(&mut ring)).result, Ok(14));
    assert_read(&mut far, LEN);
    assert_read(&mut far, 10);
    for len in [LEN, 10] {
        let back = released(next(&mut ring));
        assert!(back.op == OP && back.buf.bytes() == content(len));
        assert_eq!(
            back.way,
            Some(Way::Copied),
            "there is no other way inside this machine"
        );
    }
    assert_eq!((ring.under_way(), ring.strays()), (0, 0));
}

#[test]
fn rule_10_what_is_taken_back_comes_back_later() {
    let Some(mut ring) = ring().filter(Ring::has_zero_copy) else {
        return;
    };
    let (near, mut far) = narrow_pair();
    let all = 30_000_000;
    let ticket = begin(&mut ring, &near, AnyBuf::Vec(content(all)));
    let came = ring.take_back(ticket).unwrap().result.unwrap();
    assert!(came > 4 && came < all, "{came}");
    assert!(ring.take_back(ticket).is_none(), "it has ended");
    assert_silent(&mut ring);
    assert_eq!(ring.under_way(), 1);
    assert_read(&mut far, came - 4);
    let back = released(next(&mut ring));
    assert!(back.buf.bytes() == content(all) && back.way == Some(Way::Copied));
}

#[test]
fn rule_10_a_connection_that_breaks_gives_buffers_back() {
    for is_this_side in [false, true] {
        let Some(mut ring) = ring().filter(Ring::has_zero_copy) else {
            return;
        };
        let (near, far) = narrow_pair();
        begin(&mut ring, &near, AnyBuf::Vec(content(LEN)));
        sent(next(&mut ring));
        assert_silent(&mut ring);
        if is_this_side {
            rustix::net::connect_unspec(&near).unwrap();
        } else {
            // With something unread: it breaks.
            drop(far);
        }
        assert!(released(next(&mut ring)).buf.bytes() == content(LEN));
    }
}

/// A buffer that says when it is dropped.
struct Watched(Vec<u8>, Sender<()>);

// SAFETY: a vector's bytes stay where they are.
unsafe impl CustomBuf for Watched {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn window(&mut self) -> Option<&mut [u8]> {
        None
    }

    fn set_filled(&mut self, _: usize) {}
}

impl Drop for Watched {
    fn drop(&mut self) {
        // Whoever still reads it sees this.
        self.0.fill(0xff);
        let _ = self.1.send(());
    }
}

fn watched(len: usize) -> (AnyBuf, Receiver<()>) {
    let (gone, is_gone) = channel();
    (
        AnyBuf::Custom(Box::new(Watched(content(len), gone))),
        is_gone,
    )
}

#[test]
fn rule_10_buffers_outlive_a_ring_that_is_dropped() {
    // A send that has ended before, and one that is cut short.
    for len in [LEN, 30_000_000] {
        let Some(mut ring) = ring().filter(Ring::has_zero_copy) else {
            return;
        };
        let (near, mut far) = narrow_pair();
        let (buf, is_gone) = watched(len);
        begin(&mut ring, &near, buf);
        if len == LEN {
            sent(next(&mut ring));
        }
        drop(ring);
        assert!(is_gone.try_recv().is_err(), "it is still being looked at");
        rustix::net::shutdown(&near, rustix::net::Shutdown::Write).unwrap();
        let mut all = Vec::new();
        far.read_to_end(&mut all).unwrap();
        assert!(all[..4] == *b"head" && all[4..] == content(all.len() - 4));
        is_gone.recv().unwrap();
    }
}

#[test]
fn rule_10_a_ring_that_is_dropped_gives_up_what_was_not_begun() {
    let Some(mut ring) = ring().filter(Ring::has_zero_copy) else {
        return;
    };
    let (near, far) = narrow_pair();
    let (buf, is_gone) = watched(LEN);
    ring.send_zero_copy(&near, 8, Box::new([]), (OP, buf))
        .unwrap();
    drop(ring);
    drop(far);
    is_gone.recv().unwrap();
}

/// Sockets inside the machine do not know it, as some of the network's do not.
#[test]
fn rule_10_a_refusal_gives_the_buffer_back_likewise() {
    let Some(mut ring) = ring().filter(Ring::has_zero_copy) else {
        return;
    };
    let (near, mut far) = UnixStream::pair().unwrap();
    let near = Arc::new(OwnedFd::from(near));
    begin(&mut ring, &near, AnyBuf::Vec(content(LEN)));
    let done = sent(next(&mut ring));
    assert_eq!(
        (done.result, &done.own[..]),
        (Err(Errno::OPNOTSUPP), &b"head"[..])
    );
    let back = released(next(&mut ring));
    assert!(back.op == OP && back.way.is_none() && back.buf.bytes() == content(LEN));
    assert_eq!((ring.under_way(), ring.strays()), (0, 0));
    drop(near);
    assert_eq!(far.read(&mut [0; 8]).unwrap(), 0, "nothing has left");
}

#[test]
fn rule_10_what_finds_no_room_comes_back_at_once() {
    let Some(mut ring) = ring().filter(Ring::has_zero_copy) else {
        return;
    };
    let (near, _far) = narrow_pair();
    for _ in 0..SMALL.submissions {
        ring.receive(&near, 0).unwrap();
    }
    ring.refusals.extend([Errno::PERM]);
    let (own, buf) = ring
        .send_zero_copy(&near, 8, (*b"head").into(), (OP, AnyBuf::Vec(content(LEN))))
        .unwrap_err();
    assert!(own[..] == *b"head" && buf.bytes() == content(LEN));
}

/// The limit is one of the process, so it is another one that has it.
#[test]
fn rule_10_beyond_the_limit_of_locked_memory_it_is_refused() {
    const ALONE: &str = "FABRIC_TEST_NO_LOCKED_MEMORY";
    const NAME: &str =
        "uring::zero_copy_tests::rule_10_beyond_the_limit_of_locked_memory_it_is_refused";
    if std::env::var_os(ALONE).is_some() {
        // Enough for the ring.
        limit_locked_memory(2 << 20);
        let mut ring = ring().expect("there was one before");
        let (near, _far) = narrow_pair();
        begin(&mut ring, &near, AnyBuf::Vec(content(30_000_000)));
        let result = sent(next(&mut ring)).result;
        assert!(
            [Err(Errno::NOBUFS), Err(Errno::NOMEM)].contains(&result),
            "{result:?}"
        );
        let back = released(next(&mut ring));
        assert!(back.way.is_none() && back.buf.bytes() == content(30_000_000));
        return println!("refused");
    }
    let Some(_) = ring().filter(Ring::has_zero_copy) else {
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
fn vectors_are_sent_as_far_as_one_send_goes() {
    let Some(mut ring) = ring().filter(Ring::has_zero_copy) else {
        return;
    };
    let (near, mut far) = narrow_pair();
    let parts = |count: usize| {
        let parts: Vec<Vec<u8>> = content(10 * count).chunks(10).map(Vec::from).collect();
        fabric_core::buf::IoBuf::into_any(fabric_core::buf::Gather::from(parts))
    };
    for (count, len) in [(15, 150), (16, 150)] {
        begin(&mut ring, &near, parts(count));
        assert_eq!(sent(next(&mut ring)).result, Ok(4 + len));
        assert_read(&mut far, len);
        assert_eq!(released(next(&mut ring)).buf.payload().len(), 10 * count);
    }
}

/// What was fetched when something was taken back, and not looked at, comes no second time.
#[test]
fn rule_10_a_ring_that_is_dropped_looks_at_what_was_fetched() {
    for len in [LEN, 30_000_000] {
        let Some(mut ring) = ring().filter(Ring::has_zero_copy) else {
            return;
        };
        let (near, far) = narrow_pair();
        let (buf, is_gone) = watched(len);
        // The peer breaks the connection: both completions are there when it is taken back.
        let ticket = ring
            .send_zero_copy(&near, 8, (*b"head").into(), (OP, buf))
            .unwrap();
        ring.submit().unwrap();
        drop(far);
        std::thread::sleep(std::time::Duration::from_millis(100));
        let _ = ring.take_back(ticket);
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
