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

mod policy;

use std::hash::{BuildHasher, RandomState};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use fabric_core::buf::{CopySource, PeerMemory};
use fabric_core::event::DownReason;
use fabric_core::stats::OpStats;
use fabric_core::{Address, Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::loans::SLOTS_PER_PEER;
use super::rx_connection::MAX_MSG_SIZE;
use super::segment::Segment;
use super::socket::ShmSocket;
use crate::transport::fork_guard::ForkGuard;

pub(crate) use policy::SingleCopyPolicy;

/// What this process lets others read: the number, and where it lies.
pub(crate) fn local_probe() -> (u64, u64) {
    static VALUE: OnceLock<u64> = OnceLock::new();
    let value = VALUE.get_or_init(|| RandomState::new().hash_one(std::process::id()) | 1);
    (std::ptr::from_ref(value).expose_provenance() as u64, *value)
}

/// The process of a sender, whose memory can be read from here.
#[derive(Debug)]
pub(crate) struct CmaPeer {
    peer: Address,
    pid: i32,
    /// Readable once the process has ended.
    pidfd: OwnedFd,
    /// Where its probe lies, and what is there.
    probe: (u64, u64),
    segment: Segment,
    /// The connection is over: nothing more is given back.
    closed: AtomicBool,
    /// Something was given back since this was asked last.
    slots_returned: AtomicBool,
    /// How the sender ended, if that was found here.
    down_reason: OnceLock<DownReason>,
    messages: AtomicU64,
    bytes: AtomicU64,
}

impl CmaPeer {
    /// Tries whether the memory of the process that made this connection can be read.
    pub(crate) fn new(
        peer: &Address,
        process: i32,
        socket: &ShmSocket,
        segment: &Segment,
    ) -> Option<Self> {
        let probe = segment.cma_probe();
        if probe.1 == 0 {
            return None;
        }
        let reach = Self {
            peer: peer.clone(),
            pid: process,
            pidfd: socket.peer_pidfd(process)?,
            probe,
            segment: segment.clone(),
            closed: AtomicBool::new(false),
            slots_returned: AtomicBool::new(false),
            down_reason: OnceLock::new(),
            messages: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        };
        reach.read(probe.0, &mut []).is_ok().then_some(reach)
    }

    /// Copies from the memory of the process, and makes sure of what it has copied.
    fn read(&self, at: u64, into: &mut [MaybeUninit<u8>]) -> Result<()> {
        let read = self.read_with_probe(at, into);
        let gone = || Err(Error::PeerGone(self.peer.clone()));
        // In this order: a process that ends, or frees what it offered, makes calls fail. Who has
        // withdrawn says by another way how the connection ends. Whoever cannot be read any more
        // ends with it, or would wait for ever.
        let has_ended = self.has_exited();
        if !has_ended && self.segment.is_cma_revoked() {
            return gone();
        }
        match read {
            Ok(value) if value == self.probe.1 && !has_ended => Ok(()),
            Ok(_) | Err(Errno::SRCH) => {
                let _ = self.down_reason.set(DownReason::Died);
                gone()
            }
            Err(_) if has_ended => {
                let _ = self.down_reason.set(DownReason::Died);
                gone()
            }
            Err(errno) => {
                let what = match errno {
                    Errno::FAULT => "a message that is not in its memory",
                    _ => "a message in memory that cannot be read any more",
                };
                let _ = self.down_reason.set(DownReason::Protocol(what));
                Err(Error::Protocol {
                    peer: self.peer.clone(),
                    what: what.into(),
                })
            }
        }
    }

    /// Fills `into`, however many calls that takes, and reads the probe with the last of them.
    fn read_with_probe(&self, at: u64, into: &mut [MaybeUninit<u8>]) -> Result<u64, Errno> {
        let (mut value, len) = ([0; 8], into.len());
        let mut done = 0;
        while done < len + value.len() {
            // How far into the one and the other.
            let (filled, probed) = (done.min(len), done.saturating_sub(len));
            let from = (
                at.wrapping_add(filled as u64),
                self.probe.0.wrapping_add(probed as u64),
            );
            match read_process_memory(self.pid, from, &mut into[filled..], &mut value[probed..])? {
                0 => return Err(Errno::FAULT),
                count => done += count,
            }
        }
        Ok(u64::from_ne_bytes(value))
    }

    fn has_exited(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
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
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Whether something was given back since the last call. How the sender ended is the error.
    pub(crate) fn take_slots_returned(&self) -> Result<bool, DownReason> {
        match self.down_reason.get() {
            Some(reason) => Err(*reason),
            None => Ok(self.slots_returned.swap(false, Ordering::Relaxed)),
        }
    }

    /// What was fetched from there.
    pub(crate) fn stats(&self) -> OpStats {
        OpStats {
            count: self.messages.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

/// One call: how many bytes it has read of the two places of this process, into the one and then
/// the other.
fn read_process_memory(
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
pub(crate) struct CmaTransfer {
    peer: Arc<CmaPeer>,
    remote_addr: u64,
    len: usize,
    /// Under which number it is given back.
    slot: usize,
    error: OnceLock<Error>,
    fork_guard: ForkGuard,
}

impl CmaTransfer {
    /// `None` when such a message cannot be, or there is no such slot.
    pub(crate) fn new(reach: Arc<CmaPeer>, at: u64, len: usize, slot: usize) -> Option<Self> {
        let is_message =
            len <= MAX_MSG_SIZE && at.checked_add(len as u64).is_some() && slot < SLOTS_PER_PEER;
        is_message.then(|| Self {
            peer: reach,
            remote_addr: at,
            len,
            slot,
            error: OnceLock::new(),
            fork_guard: ForkGuard::current_process(),
        })
    }

    fn read_into(&self, from: usize, dst: &mut [MaybeUninit<u8>]) {
        assert!(
            from <= self.len && dst.len() <= self.len - from,
            "within the message"
        );
        let read = match self.error.get() {
            Some(error) => Err(error.clone()),
            None => self.peer.read(self.remote_addr + from as u64, dst),
        };
        if let Err(error) = read {
            // It may be anything by now, and is nobody's to see.
            dst.fill(MaybeUninit::new(0));
            let _ = self.error.set(error);
        }
    }
}

impl CopySource for CmaTransfer {
    fn len(&self) -> usize {
        self.len
    }

    fn copy_to<'d>(&self, from: usize, dst: &'d mut [MaybeUninit<u8>]) -> &'d mut [u8] {
        self.read_into(from, dst);
        // SAFETY: all of it was written: by the kernel, or with zeros.
        unsafe { std::slice::from_raw_parts_mut(dst.as_mut_ptr().cast(), dst.len()) }
    }

    fn copy_to_init(&self, from: usize, dst: &mut [u8]) {
        // SAFETY: a slice of initialised bytes is one of bytes that may be, and `fill` only
        // initialises.
        self.read_into(from, unsafe {
            &mut *(std::ptr::from_mut(dst) as *mut [MaybeUninit<u8>])
        });
    }
}

impl PeerMemory for CmaTransfer {
    fn bytes(&self) -> &[u8] {
        &[]
    }

    fn is_mapped(&self) -> bool {
        false
    }

    fn check(&self) -> Result<()> {
        self.error.get().map_or(Ok(()), |error| Err(error.clone()))
    }
}

impl Drop for CmaTransfer {
    fn drop(&mut self) {
        let reach = &self.peer;
        let is_over =
            reach.closed.load(Ordering::Relaxed) || !self.fork_guard.in_original_process();
        if self.slot < SLOTS_PER_PEER && self.error.get().is_none() && !is_over {
            reach.messages.fetch_add(1, Ordering::Relaxed);
            reach.bytes.fetch_add(self.len as u64, Ordering::Relaxed);
            reach.segment.return_slot(self.slot);
            reach.slots_returned.store(true, Ordering::Relaxed);
        }
    }
}

impl super::loans::ReturnOnDrop for CmaTransfer {
    fn cancel_return(mut self) {
        self.slot = SLOTS_PER_PEER;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use fabric_core::Scheme;

    use super::super::loans::ReturnOnDrop;
    use super::super::socket::ShmListener;
    use super::*;

    /// This process, as it looks to a peer that it has connected to.
    fn peer_with_probe(name: &str, probe: (u64, u64)) -> Option<(CmaPeer, Segment)> {
        let at = Address::new(Scheme::Shm, &format!("{name}-{}", std::process::id())).unwrap();
        let listener = ShmListener::open(&at).unwrap();
        let (_caller, _) = ShmSocket::connect(&at).unwrap();
        let socket = listener.accept().unwrap().unwrap();
        let (segment, _memory) = Segment::create(64).unwrap();
        segment.set_cma_probe(probe.0, probe.1);
        let process = socket.credentials().unwrap().pid.unwrap();
        Some((CmaPeer::new(&at, process, &socket, &segment)?, segment))
    }

    fn local_peer(name: &str) -> (Arc<CmaPeer>, Segment) {
        let (reach, segment) =
            peer_with_probe(name, local_probe()).expect("a process reads its own memory");
        (Arc::new(reach), segment)
    }

    fn address_of(bytes: &[u8]) -> u64 {
        bytes.as_ptr().expose_provenance() as u64
    }

    fn returned_slots(segment: &Segment) -> Vec<u64> {
        (0..SLOTS_PER_PEER / 64)
            .map(|word| segment.take_returned_slots(word))
            .collect()
    }

    #[test]
    fn bytes_are_copied_and_slot_is_returned_once() {
        let (reach, segment) = local_peer("fetch-whole");
        let bytes: Vec<u8> = (0..300_000).map(|at| at as u8).collect();
        let fetch = CmaTransfer::new(reach.clone(), address_of(&bytes), bytes.len(), 70).unwrap();
        let mut copy = vec![0; 100_000];
        fetch.copy_to_init(100_001, &mut copy);
        assert!(copy == bytes[100_001..200_001]);
        let mut copy = Vec::with_capacity(1000);
        assert!(fetch.copy_to(299_000, copy.spare_capacity_mut()) == &bytes[299_000..]);
        fetch.copy_to_init(300_000, &mut []);
        assert_eq!(
            (fetch.check(), reach.take_slots_returned()),
            (Ok(()), Ok(false))
        );
        drop(fetch);
        assert_eq!(
            (reach.take_slots_returned(), reach.take_slots_returned()),
            (Ok(true), Ok(false))
        );
        assert_eq!(returned_slots(&segment), [0, 1 << 6, 0, 0]);
        assert_eq!(
            reach.stats(),
            OpStats {
                count: 1,
                bytes: 300_000
            }
        );
        CmaTransfer::new(reach.clone(), address_of(&bytes), 10, 1)
            .unwrap()
            .cancel_return();
        let late = CmaTransfer::new(reach.clone(), address_of(&bytes), 10, 1).unwrap();
        reach.close();
        drop(late);
        assert_eq!(
            (returned_slots(&segment), reach.take_slots_returned()),
            (vec![0; 4], Ok(false))
        );
        let bounds = [
            (u64::MAX, 1, 0),
            (0, MAX_MSG_SIZE + 1, 0),
            (0, 1, SLOTS_PER_PEER),
        ];
        assert!(
            bounds.into_iter().all(|(at, len, slot)| CmaTransfer::new(
                reach.clone(),
                at,
                len,
                slot
            )
            .is_none())
        );
    }

    /// The bytes were there, but nobody knows whose they are.
    fn assert_reads_zeros(reach: CmaPeer, is: impl Fn(&Error) -> bool) {
        let (reach, bytes) = (Arc::new(reach), [7; 100]);
        let fetch = CmaTransfer::new(reach.clone(), address_of(&bytes), 100, 0).unwrap();
        let mut copy = [1; 100];
        fetch.copy_to_init(0, &mut copy);
        assert_eq!(copy, [0; 100]);
        let lost = fetch.check().unwrap_err();
        assert!(is(&lost), "{lost}");
        copy.fill(1);
        fetch.copy_to_init(50, &mut copy[..50]);
        assert_eq!(copy[..50], [0; 50], "once lost, it stays so");
        let segment = reach.segment.clone();
        drop(fetch);
        assert_eq!(
            returned_slots(&segment),
            [0; 4],
            "and its sender is not told that it arrived"
        );
    }

    #[test]
    fn revoked_message_is_not_read() {
        let (reach, segment) = peer_with_probe("fetch-withdrawn", local_probe()).unwrap();
        segment.revoke_cma();
        assert_reads_zeros(reach, Error::is_peer_gone);
    }

    /// The number leads to a process that lives, and is not the one that had it.
    #[test]
    fn memory_of_a_reused_pid_is_not_read() {
        let (mut reach, _) = peer_with_probe("fetch-another", local_probe()).unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let number = rustix::process::Pid::from_child(&child);
        reach.pidfd = rustix::process::pidfd_open(number, rustix::process::PidfdFlags::empty())
            .expect("not reaped yet");
        child.wait().unwrap();
        assert_reads_zeros(reach, Error::is_peer_gone);
    }

    /// The process has become another program, whose memory is another.
    #[test]
    fn memory_without_the_probe_value_is_not_read() {
        let mut value = Box::new(1u64);
        let at = (&raw mut *value).expose_provenance() as u64;
        let (reach, _) = peer_with_probe("fetch-program", (at, 1)).unwrap();
        // SAFETY: the box is alive, and this is the only thread that looks at it.
        unsafe { std::ptr::write_volatile(&raw mut *value, 2) };
        assert_reads_zeros(reach, Error::is_peer_gone);
        let (at, value) = local_probe();
        assert!(peer_with_probe("fetch-false", (at, value ^ 1)).is_none());
        assert!(peer_with_probe("fetch-nowhere", (8, 1)).is_none());
        assert!(
            peer_with_probe("fetch-none", (0, 0)).is_none(),
            "who lets nobody read"
        );
    }

    #[test]
    fn unmapped_source_address_is_a_protocol_violation() {
        let (reach, _) = local_peer("fetch-nothing");
        let fetch = CmaTransfer::new(reach.clone(), 4096, 100, 0).unwrap();
        let mut copy = [1; 100];
        fetch.copy_to_init(0, &mut copy);
        assert_eq!(
            (copy, matches!(fetch.check(), Err(Error::Protocol { .. }))),
            ([0; 100], true)
        );
        assert_eq!(
            reach.take_slots_returned(),
            Err(DownReason::Protocol("a message that is not in its memory"))
        );
    }
}
