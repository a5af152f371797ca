//! Single-copy messages: the receiver copies the payload directly from the memory of the sender's
//! process (cross-memory attach).
//!
//! This module is the receiving side; `tx_connection/rendezvous` sends the messages. The sender
//! leaves the payload in place, writes the payload's address and a slot into a record, a *CMA
//! offer*, and keeps the buffer in its operation. The receiver copies the payload with
//! `process_vm_readv`, in chunks: into the buffer of the matched receive, or into pooled memory
//! within the budget. Then it returns the slot by a bit in the segment, as for loans, and rings the
//! doorbell if the sender sleeps. The sender's next pass completes the send. An unexpected message
//! beyond the budget stays with its sender and delays no other message. The price of single copy
//! is that a send waits for progress of its receiver.
//!
//! # Availability
//!
//! The kernel permits `process_vm_readv` between processes of one user that may trace each other.
//! PID namespaces, Yama, seccomp filters and non-dumpable processes may prevent the call. So the
//! handshake tries it: between hello and accept the receiver makes a call that reads nothing. The
//! handshake does not read memory of the sender, because memory that responds slowly would delay
//! the domain. Each direction of a connection is tried by itself. If the call is not permitted,
//! messages go through the ring.
//!
//! # Which bytes can be trusted
//!
//! The kernel finds the process by its pid, and pids are reused. The sender may also have died,
//! have executed another program, or have taken the buffer back because its endpoint closed. So a
//! chunk is used only if three checks succeed after it was copied:
//!
//! 1. The *marker*, a random number in the sender's memory, is read by the same call behind the
//!    chunk and has the published value: the memory is not that of another program or process.
//! 2. The process has not ended, according to the pidfd that was opened when the process connected.
//!    The pid of a process is not reused before the process has ended.
//! 3. The sender has not revoked its offers. The sender sets a flag in the segment *before* it
//!    frees a buffer, so a receiver that read the memory later finds the flag. The sender need not
//!    wait for an answer of its peer, which may never come.
//!
//! Otherwise the chunk is overwritten with zeros and the message is lost. The slot of a lost
//! message is not returned, so its send does not succeed.
//!
//! # Trust
//!
//! A sender may name any address. Memory that cannot be read ends the sender's connection; memory
//! that can be read is the sender's own message. Memory that responds slowly (of a file system in
//! user space) delays the receiver's domain. A peer of the same user can do that only with single
//! copy, which is a reason to turn single copy off among programs that distrust each other. A
//! receiver gains nothing by false returns: a slot that is never returned keeps its buffer until
//! the connection ends, and a slot that is returned early yields a corrupted message.

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

use super::held_slots::HeldSlot;
use super::record::MAX_MSG_SIZE;
use super::segment::{CmaMarker, Segment};
use super::socket::ShmSocket;
use crate::sys::fork_guard::ForkGuard;
use crate::sys::process_memory::{self, ReadTarget};

pub(crate) use policy::SingleCopyPolicy;

/// Returns the marker that peers read from this process.
pub(crate) fn local_marker() -> CmaMarker {
    static VALUE: OnceLock<u64> = OnceLock::new();
    let value = VALUE.get_or_init(|| RandomState::new().hash_one(std::process::id()) | 1);
    CmaMarker {
        address: std::ptr::from_ref(value).expose_provenance() as u64,
        value: *value,
    }
}

/// The process of a sender, whose memory this process can read.
#[derive(Debug)]
pub(crate) struct CmaPeer {
    peer: Address,
    pid: i32,
    /// Pidfd of the process; readable once the process has ended.
    pidfd: OwnedFd,
    marker: CmaMarker,
    segment: Segment,
    /// Whether this side has ended the connection: no more slots are returned.
    closed: AtomicBool,
    /// Whether slots were returned since the last `take_slots_returned`.
    slots_returned: AtomicBool,
    /// Reason why the sender is down, if a copy has failed for it.
    down_reason: OnceLock<DownReason>,
    /// Number of messages copied, and their bytes.
    messages: AtomicU64,
    bytes: AtomicU64,
}

impl CmaPeer {
    /// Creates the peer with this pid, which has connected over `socket`. `None` if the sender does
    /// not permit single copy, or if the kernel does not let this process read its memory.
    pub(crate) fn new(
        peer: &Address,
        pid: i32,
        socket: &ShmSocket,
        segment: &Segment,
    ) -> Option<Self> {
        let marker = segment.cma_marker();
        if marker.value == 0 || !process_memory::is_read_permitted(pid) {
            return None;
        }
        Some(Self {
            peer: peer.clone(),
            pid,
            pidfd: socket.peer_pidfd(pid)?,
            marker,
            segment: segment.clone(),
            closed: AtomicBool::new(false),
            slots_returned: AtomicBool::new(false),
            down_reason: OnceLock::new(),
            messages: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        })
    }

    /// Fills `into` from this address of the process, and verifies that the bytes are the sender's.
    /// Returns the bytes, which must not be used after an error.
    ///
    /// # Errors
    /// `PeerGone`, and `Protocol` if a sender that lives named memory that cannot be read.
    fn read<'d>(&self, address: u64, into: ReadTarget<'d>) -> (&'d mut [u8], Result<()>) {
        let mut marker = [0; 8];
        let (bytes, read) =
            process_memory::read(self.pid, address, into, self.marker.address, &mut marker);
        let marker = read.map(|()| u64::from_ne_bytes(marker));
        (bytes, self.check_read(marker))
    }

    /// Checks that a read, which has returned this marker, has read the sender's bytes.
    fn check_read(&self, marker: Result<u64, Errno>) -> Result<()> {
        let gone = || Err(Error::PeerGone(self.peer.clone()));
        // The call also fails if the process ends or frees what it offered, so these two causes are
        // checked before its error. A sender that has revoked its offers ends the connection, which
        // the socket reports. An unreadable sender is reported by this call only.
        let has_exited = self.has_exited();
        if !has_exited && self.segment.are_cma_offers_revoked() {
            return gone();
        }
        match marker {
            Ok(value) if value == self.marker.value && !has_exited => Ok(()),
            Err(errno) if errno != Errno::SRCH && !has_exited => {
                let what = match errno {
                    Errno::FAULT => "single-copy message is not in the memory of its sender",
                    _ => "memory of the sender cannot be read any more",
                };
                let _ = self.down_reason.set(DownReason::Protocol(what));
                Err(Error::Protocol {
                    peer: self.peer.clone(),
                    what: what.into(),
                })
            }
            // The process has ended, or has executed another program.
            Ok(_) | Err(_) => {
                let _ = self.down_reason.set(DownReason::Died);
                gone()
            }
        }
    }

    /// Returns whether the process has ended.
    fn has_exited(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let no_wait = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        loop {
            match rustix::event::poll(&mut fds, Some(&no_wait)) {
                Ok(ready) => return ready > 0,
                // A signal interrupted this thread; the state of the process is unknown.
                Err(Errno::INTR) => {}
                Err(_) => return true,
            }
        }
    }

    /// Marks the connection as ended by this side: transfers dropped from now on do not return
    /// their slots, so the sender reports an error.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Returns whether slots were returned since the last call.
    ///
    /// # Errors
    /// Reason why the sender is down, if a copy has failed for it.
    pub(crate) fn take_slots_returned(&self) -> Result<bool, DownReason> {
        match self.down_reason.get() {
            Some(reason) => Err(*reason),
            None => Ok(self.slots_returned.swap(false, Ordering::Relaxed)),
        }
    }

    /// Returns the number of messages and bytes copied from the sender.
    pub(crate) fn stats(&self) -> OpStats {
        OpStats {
            count: self.messages.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

/// A message in the memory of its sender. The sender keeps the message until its slot is returned,
/// which the drop of this value does.
pub(crate) struct CmaTransfer {
    peer: Arc<CmaPeer>,
    /// Address of the message in the sender's process.
    address: u64,
    len: usize,
    /// Slot to return on drop; `None` if the slot must not be returned.
    slot: Option<HeldSlot>,
    /// Error of the first copy that failed: the message is lost.
    error: OnceLock<Error>,
    fork_guard: ForkGuard,
}

impl CmaTransfer {
    /// Creates a transfer; `None` if the range is out of bounds.
    pub(crate) fn new(
        peer: Arc<CmaPeer>,
        address: u64,
        len: usize,
        slot: HeldSlot,
    ) -> Option<Self> {
        let is_valid = len <= MAX_MSG_SIZE && address.checked_add(len as u64).is_some();
        is_valid.then(|| Self {
            peer,
            address,
            len,
            slot: Some(slot),
            error: OnceLock::new(),
            fork_guard: ForkGuard::current_process(),
        })
    }

    /// Fills `dst` with bytes of the message from offset `from` on; with zeros if the copy fails.
    fn read_into<'d>(&self, from: usize, dst: ReadTarget<'d>) -> &'d mut [u8] {
        assert!(
            from <= self.len && dst.len() <= self.len - from,
            "read of {} bytes at byte {from} of a message of {} bytes",
            dst.len(),
            self.len
        );
        if self.error.get().is_some() {
            return dst.fill_with_zeros();
        }
        let (bytes, read) = self.peer.read(self.address + from as u64, dst);
        if let Err(error) = read {
            // The bytes may be those of another process and must not be exposed.
            bytes.fill(0);
            let _ = self.error.set(error);
        }
        bytes
    }
}

impl CopySource for CmaTransfer {
    fn len(&self) -> usize {
        self.len
    }

    fn copy_to<'d>(&self, from: usize, dst: &'d mut [MaybeUninit<u8>]) -> &'d mut [u8] {
        self.read_into(from, dst.into())
    }

    fn copy_to_init(&self, from: usize, dst: &mut [u8]) {
        self.read_into(from, dst.into());
    }
}

impl PeerMemory for CmaTransfer {
    fn is_mapped(&self) -> bool {
        false
    }

    fn check(&self) -> Result<()> {
        self.error.get().map_or(Ok(()), |error| Err(error.clone()))
    }
}

impl Drop for CmaTransfer {
    fn drop(&mut self) {
        let peer = &self.peer;
        // The connections of a forked child belong to its parent.
        let may_return =
            !peer.closed.load(Ordering::Relaxed) && self.fork_guard.in_original_process();
        if let Some(slot) = &self.slot
            && self.error.get().is_none()
            && may_return
        {
            peer.messages.fetch_add(1, Ordering::Relaxed);
            peer.bytes.fetch_add(self.len as u64, Ordering::Relaxed);
            slot.return_to_sender();
            peer.slots_returned.store(true, Ordering::Relaxed);
        }
    }
}

impl super::loans::ReturnOnDrop for CmaTransfer {
    fn cancel_return(mut self) {
        self.slot.take().iter().for_each(HeldSlot::release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use fabric_core::Scheme;

    use super::super::held_slots::tests::hold_slot;
    use super::super::loans::{ReturnOnDrop, SLOTS_PER_PEER};
    use super::super::socket::ShmListener;
    use super::*;

    /// Connects this process to itself. Returns this process as the peer, and the segment, in which
    /// the peer has published `marker`; `None` if the peer permits no single copy.
    fn peer_with_marker(name: &str, marker: CmaMarker) -> Option<(CmaPeer, Segment)> {
        let at = Address::new(Scheme::Shm, &format!("{name}-{}", std::process::id())).unwrap();
        let listener = ShmListener::open(&at).unwrap();
        let _connection = ShmSocket::connect(&at).unwrap();
        let socket = listener.accept().unwrap().unwrap();
        let (segment, _memory) = Segment::create(64).unwrap();
        segment.set_cma_marker(marker);
        let pid = socket.credentials().unwrap().pid.unwrap();
        Some((CmaPeer::new(&at, pid, &socket, &segment)?, segment))
    }

    fn local_peer(name: &str) -> (Arc<CmaPeer>, Segment) {
        let (peer, segment) =
            peer_with_marker(name, local_marker()).expect("a process may read its own memory");
        (Arc::new(peer), segment)
    }

    fn address_of(bytes: &[u8]) -> u64 {
        bytes.as_ptr().expose_provenance() as u64
    }

    /// Returns the words of the bitmap of returned slots.
    fn returned_slots(segment: &Segment) -> Vec<u64> {
        (0..SLOTS_PER_PEER / 64)
            .map(|word| segment.take_returned_slots(word))
            .collect()
    }

    #[test]
    fn bytes_are_copied_and_slot_is_returned_once() {
        let (peer, segment) = local_peer("cma-whole");
        let bytes: Vec<u8> = (0..300_000).map(|at| at as u8).collect();
        let transfer = |len, slot| {
            let slot = hold_slot(&segment, slot);
            CmaTransfer::new(peer.clone(), address_of(&bytes), len, slot).unwrap()
        };
        let whole = transfer(bytes.len(), 70);
        let mut copy = vec![0; 100_000];
        whole.copy_to_init(100_001, &mut copy);
        assert!(copy == bytes[100_001..200_001]);
        let mut copy = Vec::with_capacity(1000);
        assert!(whole.copy_to(299_000, copy.spare_capacity_mut()) == &bytes[299_000..]);
        whole.copy_to_init(300_000, &mut []);
        assert_eq!(
            (whole.check(), peer.take_slots_returned()),
            (Ok(()), Ok(false))
        );
        drop(whole);
        assert_eq!(
            (peer.take_slots_returned(), peer.take_slots_returned()),
            (Ok(true), Ok(false))
        );
        assert_eq!(returned_slots(&segment), [0, 1 << 6, 0, 0]);
        assert_eq!(
            peer.stats(),
            OpStats {
                count: 1,
                bytes: 300_000
            }
        );
        transfer(10, 1).cancel_return();
        let open = transfer(10, 1);
        peer.close();
        drop(open);
        assert_eq!(
            (returned_slots(&segment), peer.take_slots_returned()),
            (vec![0; 4], Ok(false)),
            "neither a canceled return nor a closed connection returns a slot"
        );
        let out_of_bounds = [(u64::MAX, 1), (0, MAX_MSG_SIZE + 1)];
        assert!(out_of_bounds.into_iter().all(|(address, len)| {
            CmaTransfer::new(peer.clone(), address, len, hold_slot(&segment, 0)).is_none()
        }));
    }

    /// Asserts that reads from `peer` fail with the expected error, yield zeros and return no slot.
    fn assert_reads_zeros(peer: CmaPeer, is_expected: impl Fn(&Error) -> bool) {
        let (peer, bytes) = (Arc::new(peer), [7; 100]);
        let slot = hold_slot(&peer.segment, 0);
        let transfer = CmaTransfer::new(peer.clone(), address_of(&bytes), 100, slot).unwrap();
        let mut copy = [1; 100];
        transfer.copy_to_init(0, &mut copy);
        assert_eq!(copy, [0; 100]);
        let error = transfer.check().unwrap_err();
        assert!(is_expected(&error), "{error}");
        copy.fill(1);
        transfer.copy_to_init(50, &mut copy[..50]);
        assert_eq!(copy[..50], [0; 50], "a lost message stays lost");
        let segment = peer.segment.clone();
        drop(transfer);
        assert_eq!(
            returned_slots(&segment),
            [0; 4],
            "the slot of a lost message is not returned"
        );
    }

    #[test]
    fn revoked_message_is_not_read() {
        let (peer, segment) = peer_with_marker("cma-revoked", local_marker()).unwrap();
        segment.revoke_cma_offers();
        assert_reads_zeros(peer, Error::is_peer_unavailable);
    }

    /// The process that connected has ended, and a living process has its pid.
    #[test]
    fn memory_of_a_reused_pid_is_not_read() {
        let (mut peer, _) = peer_with_marker("cma-reused-pid", local_marker()).unwrap();
        let mut child = crate::sys::child_process::spawn(&mut std::process::Command::new("true"));
        let pid = rustix::process::Pid::from_child(&child);
        peer.pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())
            .expect("not reaped yet");
        child.wait().unwrap();
        assert_reads_zeros(peer, Error::is_peer_unavailable);
    }

    /// A process that has executed another program has other memory.
    #[test]
    fn memory_without_the_marker_value_is_not_read() {
        let value = Box::new(AtomicU64::new(1));
        let address = value.as_ptr().expose_provenance() as u64;
        let marker = |address, value| CmaMarker { address, value };
        let (peer, _) = peer_with_marker("cma-program", marker(address, 1)).unwrap();
        value.store(2, Ordering::Relaxed);
        assert_reads_zeros(peer, Error::is_peer_unavailable);
        let CmaMarker { address, value } = local_marker();
        let (peer, _) = peer_with_marker("cma-false", marker(address, value ^ 1)).unwrap();
        assert_reads_zeros(peer, Error::is_peer_unavailable);
        assert!(
            peer_with_marker("cma-none", marker(0, 0)).is_none(),
            "no marker was published"
        );
    }

    /// A marker at an address that is not mapped shows that the handshake does not access the
    /// marker: its memory may respond slowly.
    #[test]
    fn handshake_does_not_access_the_memory_of_the_sender() {
        let nowhere = CmaMarker {
            address: 8,
            value: 1,
        };
        let (peer, _) = peer_with_marker("cma-nowhere", nowhere).unwrap();
        assert_reads_zeros(peer, |error| matches!(error, Error::Protocol { .. }));
    }

    #[test]
    fn process_whose_memory_may_not_be_read_is_no_cma_peer() {
        let (peer, _) = local_peer("cma-permitted");
        assert!(process_memory::is_read_permitted(peer.pid));
        assert!(
            !process_memory::is_read_permitted(i32::MAX),
            "no such process"
        );
    }

    #[test]
    fn unmapped_source_address_is_a_protocol_violation() {
        let (peer, segment) = local_peer("cma-unmapped");
        let slot = hold_slot(&segment, 0);
        let transfer = CmaTransfer::new(peer.clone(), 4096, 100, slot).unwrap();
        let mut copy = [1; 100];
        transfer.copy_to_init(0, &mut copy);
        assert_eq!(
            (
                copy,
                matches!(transfer.check(), Err(Error::Protocol { .. }))
            ),
            ([0; 100], true)
        );
        assert_eq!(
            peer.take_slots_returned(),
            Err(DownReason::Protocol(
                "single-copy message is not in the memory of its sender"
            ))
        );
    }
}
