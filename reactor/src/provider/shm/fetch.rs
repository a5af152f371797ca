//! Messages that are fetched: copied once, by the receiver, straight out of the memory of the
//! sender's process.
//!
//! The sender leaves the bytes where they are, says in a record where that is, and keeps the buffer
//! in its operation. The receiver copies them (`process_vm_readv`) when a receive has taken the
//! message, or into memory of its own, piece by piece, and gives the message back by a bit in the
//! segment, as it does with loans. Then the send has ended.
//!
//! # Whether it can be done
//!
//! The kernel lets a process read another one of its user where it may also trace it. Process
//! namespaces, Yama, a filter of system calls and processes that cannot be dumped stand in the way,
//! so it is tried: the sender names a number of its own and where it lies, and the receiver reads
//! it before it welcomes the connection. Each direction is tried by itself. Where it fails,
//! messages go through the ring.
//!
//! # Which bytes can be trusted
//!
//! The kernel finds the process by its number, and numbers are used again. The sender may also have
//! died, have become another program, or have taken the buffer back, because its endpoint closes.
//! So after each piece, before it counts:
//!
//! 1. the probe, which is read behind the piece in the same call, is still there: it is the same
//!    memory, not that of a program that was started in its place, nor of another process;
//! 2. the process has not ended, as the descriptor says that was taken when it connected. As long
//!    as it has not, its number is not another's;
//! 3. the sender has not withdrawn what it offered. It says so in the segment *before* it frees a
//!    buffer, so whoever read what came there later finds the word. It need not wait for its peer,
//!    which may never answer.
//!
//! Otherwise the piece is overwritten with zeros and the message is lost: its sender has not been
//! told that it arrived.
//!
//! # Trust
//!
//! A sender names any address it likes. What cannot be read breaks its connection; what can be read
//! is its own message. Memory that answers slowly (that of a file system of the sender's own) holds
//! up the receiver's domain: the one thing that a peer of the same user can do here that it cannot
//! do otherwise, and a reason to turn this off among programs that distrust each other. A receiver
//! gains nothing from false answers: one that never gives back keeps a buffer of the sender's until
//! its connection ends, and one that does so early gets the message spoilt.
//!
//! # Safety
//!
//! One call of the kernel, which writes only to buffers of this side, of which it is told the
//! length.
#![allow(unsafe_code)]

mod which;

use std::hash::{BuildHasher, RandomState};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use fabric_core::buf::{LentMemory, Source};
use fabric_core::event::DownReason;
use fabric_core::stats::Moved;
use fabric_core::{Address, Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::incoming::MAX_MESSAGE;
use super::loans::SLOTS;
use super::segment::Segment;
use super::socket::Socket;
use crate::provider::origin::Origin;

pub(crate) use which::Which;

/// What this process lets others read: the number, and where it lies.
pub(crate) fn probe() -> (u64, u64) {
    static VALUE: OnceLock<u64> = OnceLock::new();
    let value = VALUE.get_or_init(|| RandomState::new().hash_one(std::process::id()) | 1);
    (std::ptr::from_ref(value).expose_provenance() as u64, *value)
}

/// The process of a sender, whose memory can be read from here.
#[derive(Debug)]
pub(crate) struct Reach {
    peer: Address,
    process: i32,
    /// Readable once the process has ended.
    alive: OwnedFd,
    /// Where its probe lies, and what is there.
    probe: (u64, u64),
    segment: Segment,
    /// The connection is over: nothing more is given back.
    is_over: AtomicBool,
    /// Something was given back since this was asked last.
    has_given: AtomicBool,
    /// How the sender ended, if that was found here.
    ended: OnceLock<DownReason>,
    count: AtomicU64,
    bytes: AtomicU64,
}

impl Reach {
    /// Tries whether the memory of the process that made this connection can be read.
    pub(crate) fn new(
        peer: &Address,
        process: i32,
        socket: &Socket,
        segment: &Segment,
    ) -> Option<Self> {
        let probe = segment.probe();
        if probe.1 == 0 {
            return None;
        }
        let reach = Self {
            peer: peer.clone(),
            process,
            alive: socket.process(process)?,
            probe,
            segment: segment.clone(),
            is_over: AtomicBool::new(false),
            has_given: AtomicBool::new(false),
            ended: OnceLock::new(),
            count: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        };
        reach.read(probe.0, &mut []).is_ok().then_some(reach)
    }

    /// Copies from the memory of the process, and makes sure of what it has copied.
    fn read(&self, at: u64, into: &mut [MaybeUninit<u8>]) -> Result<()> {
        let read = self.read_all(at, into);
        let gone = || Err(Error::PeerGone(self.peer.clone()));
        // In this order: a process that ends, or frees what it offered, makes calls fail. Who has
        // withdrawn says by another way how the connection ends. Whoever cannot be read any more
        // ends with it, or would wait for ever.
        let has_ended = self.has_ended();
        if !has_ended && self.segment.is_withdrawn() {
            return gone();
        }
        match read {
            Ok(value) if value == self.probe.1 && !has_ended => Ok(()),
            Ok(_) | Err(Errno::SRCH) => {
                let _ = self.ended.set(DownReason::Died);
                gone()
            }
            Err(_) if has_ended => {
                let _ = self.ended.set(DownReason::Died);
                gone()
            }
            Err(errno) => {
                let what = match errno {
                    Errno::FAULT => "a message that is not in its memory",
                    _ => "a message in memory that cannot be read any more",
                };
                let _ = self.ended.set(DownReason::Protocol(what));
                Err(Error::Protocol {
                    peer: self.peer.clone(),
                    what: what.into(),
                })
            }
        }
    }

    /// Fills `into`, however many calls that takes, and reads the probe with the last of them.
    fn read_all(&self, at: u64, into: &mut [MaybeUninit<u8>]) -> Result<u64, Errno> {
        let (mut value, len) = ([0; 8], into.len());
        let mut done = 0;
        while done < len + value.len() {
            // How far into the one and the other.
            let (filled, probed) = (done.min(len), done.saturating_sub(len));
            let from = (
                at.wrapping_add(filled as u64),
                self.probe.0.wrapping_add(probed as u64),
            );
            match read_process(
                self.process,
                from,
                &mut into[filled..],
                &mut value[probed..],
            )? {
                0 => return Err(Errno::FAULT),
                count => done += count,
            }
        }
        Ok(u64::from_ne_bytes(value))
    }

    fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.alive, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        loop {
            match rustix::event::poll(&mut fds, Some(&now)) {
                Ok(ready) => return ready > 0,
                // A signal came to this thread, which says nothing of that process.
                Err(Errno::INTR) => {}
                Err(_) => return true,
            }
        }
    }

    /// The connection is over: what is dropped from now on has not arrived.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Whether something was given back since the last call. How the sender ended is the error.
    pub(crate) fn has_given(&self) -> Result<bool, DownReason> {
        match self.ended.get() {
            Some(reason) => Err(*reason),
            None => Ok(self.has_given.swap(false, Ordering::Relaxed)),
        }
    }

    /// What was fetched from there.
    pub(crate) fn fetched(&self) -> Moved {
        Moved {
            count: self.count.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

/// One call: how many bytes it has read of the two places of this process, into the one and then
/// the other.
fn read_process(
    process: i32,
    from: (u64, u64),
    into: &mut [MaybeUninit<u8>],
    then: &mut [u8],
) -> Result<usize, Errno> {
    let local = [
        libc::iovec {
            iov_base: into.as_mut_ptr().cast(),
            iov_len: into.len(),
        },
        libc::iovec {
            iov_base: then.as_mut_ptr().cast(),
            iov_len: then.len(),
        },
    ];
    let remote = [
        libc::iovec {
            iov_base: std::ptr::without_provenance_mut(from.0 as usize),
            iov_len: into.len(),
        },
        libc::iovec {
            iov_base: std::ptr::without_provenance_mut(from.1 as usize),
            iov_len: then.len(),
        },
    ];
    // SAFETY: the kernel writes to the two slices, within their lengths; the other addresses are
    // only read, in whichever process.
    let count =
        unsafe { libc::process_vm_readv(process, local.as_ptr(), 2, remote.as_ptr(), 2, 0) };
    usize::try_from(count).map_err(|_| {
        let errno = std::io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or_default();
        Errno::from_raw_os_error(errno)
    })
}

/// A message in the memory of its sender, which waits until this is dropped.
pub(crate) struct Fetch {
    reach: Arc<Reach>,
    at: u64,
    len: usize,
    /// Under which number it is given back.
    slot: usize,
    lost: OnceLock<Error>,
    origin: Origin,
}

impl Fetch {
    /// `None` when such a message cannot be, or there is no such slot.
    pub(crate) fn new(reach: Arc<Reach>, at: u64, len: usize, slot: usize) -> Option<Self> {
        let is_message = len <= MAX_MESSAGE && at.checked_add(len as u64).is_some() && slot < SLOTS;
        is_message.then(|| Self {
            reach,
            at,
            len,
            slot,
            lost: OnceLock::new(),
            origin: Origin::here(),
        })
    }

    fn fill(&self, from: usize, dst: &mut [MaybeUninit<u8>]) {
        assert!(
            from <= self.len && dst.len() <= self.len - from,
            "within the message"
        );
        let read = match self.lost.get() {
            Some(error) => Err(error.clone()),
            None => self.reach.read(self.at + from as u64, dst),
        };
        if let Err(error) = read {
            // It may be anything by now, and is nobody's to see.
            dst.fill(MaybeUninit::new(0));
            let _ = self.lost.set(error);
        }
    }
}

impl Source for Fetch {
    fn len(&self) -> usize {
        self.len
    }

    fn copy_to<'d>(&self, from: usize, dst: &'d mut [MaybeUninit<u8>]) -> &'d mut [u8] {
        self.fill(from, dst);
        // SAFETY: all of it was written: by the kernel, or with zeros.
        unsafe { std::slice::from_raw_parts_mut(dst.as_mut_ptr().cast(), dst.len()) }
    }

    fn copy_over(&self, from: usize, dst: &mut [u8]) {
        // SAFETY: a slice of initialised bytes is one of bytes that may be, and `fill` only
        // initialises.
        self.fill(from, unsafe {
            &mut *(std::ptr::from_mut(dst) as *mut [MaybeUninit<u8>])
        });
    }
}

impl LentMemory for Fetch {
    fn bytes(&self) -> &[u8] {
        &[]
    }

    fn is_mapped(&self) -> bool {
        false
    }

    fn check(&self) -> Result<()> {
        self.lost.get().map_or(Ok(()), |error| Err(error.clone()))
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        let reach = &self.reach;
        let is_over = reach.is_over.load(Ordering::Relaxed) || !self.origin.is_here();
        if self.slot < SLOTS && self.lost.get().is_none() && !is_over {
            reach.count.fetch_add(1, Ordering::Relaxed);
            reach.bytes.fetch_add(self.len as u64, Ordering::Relaxed);
            reach.segment.give_back(self.slot);
            reach.has_given.store(true, Ordering::Relaxed);
        }
    }
}

impl super::loans::Keep for Fetch {
    fn keep(mut self) {
        self.slot = SLOTS;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use fabric_core::Scheme;

    use super::super::loans::Keep;
    use super::super::socket::Listener;
    use super::*;

    /// This process, as it looks to a peer that it has connected to.
    fn reach_with(name: &str, probe: (u64, u64)) -> Option<(Reach, Segment)> {
        let at = Address::new(Scheme::Shm, &format!("{name}-{}", std::process::id())).unwrap();
        let listener = Listener::open(&at).unwrap();
        let (_caller, _) = Socket::connect(&at).unwrap();
        let socket = listener.accept().unwrap().unwrap();
        let (segment, _memory) = Segment::create(64).unwrap();
        segment.set_probe(probe.0, probe.1);
        let process = socket.credentials().unwrap().process.unwrap();
        Some((Reach::new(&at, process, &socket, &segment)?, segment))
    }

    fn reach(name: &str) -> (Arc<Reach>, Segment) {
        let (reach, segment) = reach_with(name, probe()).expect("a process reads its own memory");
        (Arc::new(reach), segment)
    }

    fn place(bytes: &[u8]) -> u64 {
        bytes.as_ptr().expose_provenance() as u64
    }

    fn returned(segment: &Segment) -> Vec<u64> {
        (0..SLOTS / 64)
            .map(|word| segment.take_returned(word))
            .collect()
    }

    #[test]
    fn bytes_are_copied_and_given_back_once() {
        let (reach, segment) = reach("fetch-whole");
        let bytes: Vec<u8> = (0..300_000).map(|at| at as u8).collect();
        let fetch = Fetch::new(reach.clone(), place(&bytes), bytes.len(), 70).unwrap();
        let mut copy = vec![0; 100_000];
        fetch.copy_over(100_001, &mut copy);
        assert!(copy == bytes[100_001..200_001]);
        let mut copy = Vec::with_capacity(1000);
        assert!(fetch.copy_to(299_000, copy.spare_capacity_mut()) == &bytes[299_000..]);
        fetch.copy_over(300_000, &mut []);
        assert_eq!((fetch.check(), reach.has_given()), (Ok(()), Ok(false)));
        drop(fetch);
        assert_eq!(
            (reach.has_given(), reach.has_given()),
            (Ok(true), Ok(false))
        );
        assert_eq!(returned(&segment), [0, 1 << 6, 0, 0]);
        assert_eq!(
            reach.fetched(),
            Moved {
                count: 1,
                bytes: 300_000
            }
        );
        Fetch::new(reach.clone(), place(&bytes), 10, 1)
            .unwrap()
            .keep();
        let late = Fetch::new(reach.clone(), place(&bytes), 10, 1).unwrap();
        reach.end();
        drop(late);
        assert_eq!(
            (returned(&segment), reach.has_given()),
            (vec![0; 4], Ok(false))
        );
        let bounds = [(u64::MAX, 1, 0), (0, MAX_MESSAGE + 1, 0), (0, 1, SLOTS)];
        assert!(
            bounds
                .into_iter()
                .all(|(at, len, slot)| Fetch::new(reach.clone(), at, len, slot).is_none())
        );
    }

    /// The bytes were there, but nobody knows whose they are.
    fn nothing_is_seen(reach: Reach, is: impl Fn(&Error) -> bool) {
        let (reach, bytes) = (Arc::new(reach), [7; 100]);
        let fetch = Fetch::new(reach.clone(), place(&bytes), 100, 0).unwrap();
        let mut copy = [1; 100];
        fetch.copy_over(0, &mut copy);
        assert_eq!(copy, [0; 100]);
        let lost = fetch.check().unwrap_err();
        assert!(is(&lost), "{lost}");
        copy.fill(1);
        fetch.copy_over(50, &mut copy[..50]);
        assert_eq!(copy[..50], [0; 50], "once lost, it stays so");
        let segment = reach.segment.clone();
        drop(fetch);
        assert_eq!(
            returned(&segment),
            [0; 4],
            "and its sender is not told that it arrived"
        );
    }

    #[test]
    fn what_was_withdrawn_is_not_seen() {
        let (reach, segment) = reach_with("fetch-withdrawn", probe()).unwrap();
        segment.withdraw();
        nothing_is_seen(reach, Error::is_peer_gone);
    }

    /// The number leads to a process that lives, and is not the one that had it.
    #[test]
    fn memory_of_who_has_the_number_now_is_not_seen() {
        let (mut reach, _) = reach_with("fetch-another", probe()).unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let number = rustix::process::Pid::from_child(&child);
        reach.alive = rustix::process::pidfd_open(number, rustix::process::PidfdFlags::empty())
            .expect("not reaped yet");
        child.wait().unwrap();
        nothing_is_seen(reach, Error::is_peer_gone);
    }

    /// The process has become another program, whose memory is another.
    #[test]
    fn memory_without_the_probe_is_not_seen() {
        let mut value = Box::new(1u64);
        let at = (&raw mut *value).expose_provenance() as u64;
        let (reach, _) = reach_with("fetch-program", (at, 1)).unwrap();
        // SAFETY: the box is alive, and this is the only thread that looks at it.
        unsafe { std::ptr::write_volatile(&raw mut *value, 2) };
        nothing_is_seen(reach, Error::is_peer_gone);
        let (at, value) = probe();
        assert!(reach_with("fetch-false", (at, value ^ 1)).is_none());
        assert!(reach_with("fetch-nowhere", (8, 1)).is_none());
        assert!(
            reach_with("fetch-none", (0, 0)).is_none(),
            "who lets nobody read"
        );
    }

    #[test]
    fn a_bad_address_is_the_senders_fault() {
        let (reach, _) = reach("fetch-nothing");
        let fetch = Fetch::new(reach.clone(), 4096, 100, 0).unwrap();
        let mut copy = [1; 100];
        fetch.copy_over(0, &mut copy);
        assert_eq!(
            (copy, matches!(fetch.check(), Err(Error::Protocol { .. }))),
            ([0; 100], true)
        );
        assert_eq!(
            reach.has_given(),
            Err(DownReason::Protocol("a message that is not in its memory"))
        );
    }
}
