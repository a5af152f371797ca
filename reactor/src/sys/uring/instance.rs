//! An io_uring instance: operations in slots, submitted together, reaped, canceled, waited for.
//!
//! # Safety
//!
//! Everything the kernel is given by address lives as long as the kernel may use it: descriptors
//! and message headers in the slot, which lives until the last completion; receive memory until all
//! slots have ended; the borrowed bytes of a send by the contract of [`Uring::send`]. The mappings
//! of the instance do not exist in forked children (`dontfork`), so nothing here touches them in a
//! child.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric_core::buf::AnyBuf;
use fabric_core::transport::OpKey;
use io_uring::types::{CancelBuilder, Fd, Timespec};
use io_uring::{IoUring, Probe, cqueue, opcode, squeue};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use slab::Slab;

use super::buffers::{BUFFER_GROUP, LeasedBuffer, ProvidedBuffers};
use super::completion::{CompletionKind, OpId, SendResult, UringCompletion};
use super::cqe::{CQE_F_NOTIF, Cqe, TIMEOUT_BIT};
use super::orphaned::OrphanedRing;
use super::send_msg::SendMsg;
use super::slot::{
    NOTIF_USAGE_ZC_COPIED, SEND_ZC_REPORT_USAGE, UringSlot, ZeroCopyStage, slot_index,
};
use crate::sys::fork_guard::ForkGuard;

/// The user data of cancellations, whose completions need no handling.
const CANCEL_USER_DATA: u64 = u64::MAX;
/// Maximum number of calls that one submission makes; then the entries stay queued.
const MAX_SUBMIT_ATTEMPTS: u32 = 16;
/// Time for which a dropped instance waits for its operations to end.
const DROP_TIMEOUT: Duration = if cfg!(test) {
    Duration::from_secs(1)
} else {
    Duration::from_secs(5)
};

/// The sizes of an instance, and when its task work runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UringConfig {
    /// The number of submission queue entries.
    pub(crate) sq_entries: u32,
    /// The number of completion queue entries; more completions overflow into kernel memory.
    pub(crate) cq_entries: u32,
    /// The number of receive buffers, a power of two, and their length in bytes.
    pub(crate) buffer_count: u16,
    pub(crate) buffer_len: usize,
    /// Whether task work runs when the submitting thread enters the kernel, instead of interrupting
    /// the thread (`IORING_SETUP_COOP_TASKRUN`).
    pub(crate) coop_taskrun: bool,
}

impl UringConfig {
    /// Returns the configuration for the connections of a domain.
    pub(crate) fn for_connections(coop_taskrun: bool) -> Self {
        Self {
            sq_entries: 128,
            cq_entries: 1024,
            buffer_count: 64,
            buffer_len: 16 << 10,
            coop_taskrun,
        }
    }
}

/// An io_uring instance.
pub(crate) struct Uring {
    io_uring: ManuallyDrop<IoUring>,
    event_fd: OwnedFd,
    buffers: Arc<ProvidedBuffers>,
    pub(super) slots: Slab<UringSlot>,
    /// The generation of the last operation.
    generation: u32,
    /// Completion queue entries that were taken from the kernel and not yet handled.
    pub(super) fetched_cqes: VecDeque<Cqe>,
    /// The user data of operations whose cancellation found no room in the submission queue.
    deferred_cancels: Vec<u64>,
    /// The number of completions that matched no operation.
    pub(super) unmatched_cqes: u64,
    /// Whether the kernel supports zero-copy sends.
    supports_zero_copy: bool,
    fork_guard: ForkGuard,
    /// Errors that the next calls of `io_uring_enter` return.
    #[cfg(all(test, not(loom)))]
    pub(super) injected_errors: VecDeque<Errno>,
}

impl Uring {
    /// Opens an instance, with an eventfd that becomes readable when there are completions.
    ///
    /// # Errors
    /// The kernel refuses the instance, or lacks a required operation (Linux 6.0 has all).
    pub(crate) fn open(config: UringConfig) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder
            .dontfork()
            .setup_submit_all()
            .setup_cqsize(config.cq_entries);
        if config.coop_taskrun {
            builder.setup_coop_taskrun().setup_taskrun_flag();
        }
        let uring = builder.build(config.sq_entries)?;
        let supports_zero_copy = probe_features(&uring)?;
        let event_fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        uring.submitter().register_eventfd(event_fd.as_raw_fd())?;
        let buffers = Arc::new(ProvidedBuffers::new(
            config.buffer_count,
            config.buffer_len,
        )?);
        buffers.register(&uring.submitter())?;
        Ok(Self {
            io_uring: ManuallyDrop::new(uring),
            event_fd,
            buffers,
            slots: Slab::new(),
            generation: 0,
            fetched_cqes: VecDeque::new(),
            deferred_cancels: Vec::new(),
            unmatched_cqes: 0,
            supports_zero_copy,
            fork_guard: ForkGuard::current_process(),
            #[cfg(all(test, not(loom)))]
            injected_errors: VecDeque::new(),
        })
    }

    /// Returns the eventfd that becomes readable when there are completions.
    pub(crate) fn event_fd(&self) -> BorrowedFd<'_> {
        self.event_fd.as_fd()
    }

    /// Resets the eventfd. The caller then checks for completions, so that none is missed.
    pub(crate) fn clear_event(&self) {
        let _ = rustix::io::read(&self.event_fd, &mut [0; 8]);
    }

    /// Starts a multishot receive with the next [`submit`](Self::submit). The receive ends when it
    /// is canceled, the peer shuts down its sending direction, or no buffer is left.
    ///
    /// # Errors
    /// The submission queue is full and submitting has failed.
    pub(crate) fn recv_multishot(&mut self, socket: &Arc<OwnedFd>, owner: u64) -> io::Result<OpId> {
        let entry = opcode::RecvMulti::new(Fd(socket.as_raw_fd()), BUFFER_GROUP).build();
        self.push_op(&mut [entry], UringSlot::new(socket, owner))
            .map_err(|(error, _)| error)
    }

    /// Starts a send with the next [`submit`](Self::submit): of the owned bytes, followed by the
    /// borrowed bytes, up to the limits of one send ([`MAX_IOVECS`](super::MAX_IOVECS),
    /// [`MAX_SEND_LEN`](super::MAX_SEND_LEN)). Fewer bytes are sent only if the connection breaks
    /// or the send is canceled.
    ///
    /// # Errors
    /// The owned bytes, when the submission queue is full and submitting has failed.
    ///
    /// # Safety
    /// `borrowed` must stay in place and not be written to until the last completion was returned
    /// by [`next_completion`](Self::next_completion) or [`cancel_send`](Self::cancel_send).
    pub(crate) unsafe fn send(
        &mut self,
        socket: &Arc<OwnedFd>,
        owner: u64,
        owned: Box<[u8]>,
        borrowed: &[&[u8]],
    ) -> Result<OpId, Box<[u8]>> {
        let message = SendMsg::new(owned, borrowed);
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        let entry = opcode::SendMsg::new(Fd(socket.as_raw_fd()), message.header())
            .flags(flags as u32)
            .build();
        self.push_op(
            &mut [entry],
            UringSlot {
                message: Some(message),
                ..UringSlot::new(socket, owner)
            },
        )
        .map_err(|(_, slot)| {
            slot.message
                .map_or_else(Box::default, |message| message.into_parts().0)
        })
    }

    /// Returns whether the kernel supports [`send_zero_copy`](Self::send_zero_copy). Some sockets
    /// still refuse.
    pub(crate) fn supports_zero_copy(&self) -> bool {
        self.supports_zero_copy
    }

    /// Starts a send of owned bytes, followed by the bytes of a buffer, which the kernel does not
    /// copy if possible. The instance owns the buffer until the kernel has released it. The send
    /// has two completions, also when it is canceled or refused: [`CompletionKind::Sent`], then
    /// [`CompletionKind::BufferReleased`].
    ///
    /// # Errors
    /// As [`send`](Self::send), with the owned bytes and the buffer.
    pub(crate) fn send_zero_copy(
        &mut self,
        socket: &Arc<OwnedFd>,
        owner: u64,
        owned: Box<[u8]>,
        (op, buf): (OpKey, AnyBuf),
    ) -> Result<OpId, (Box<[u8]>, AnyBuf)> {
        let message = SendMsg::with_buffer(owned, op, buf);
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        let entry = opcode::SendMsgZc::new(Fd(socket.as_raw_fd()), message.header());
        let entry = entry
            .ioprio(SEND_ZC_REPORT_USAGE)
            .flags(flags as u32)
            .build();
        self.push_op(
            &mut [entry],
            UringSlot {
                message: Some(message),
                ..UringSlot::new(socket, owner)
            },
        )
        .map_err(|(_, slot)| {
            let (owned, buffer) = slot
                .message
                .map(|message| message.into_parts())
                .unwrap_or_default();
            (owned, buffer.map(|(_, buf)| buf).unwrap_or_default())
        })
    }

    /// Queues the entry of an operation, and that of its timer, if there is one: all entries or
    /// none. The memory that the entries point to is in the slot, or valid by the contract of
    /// [`send`](Self::send).
    ///
    /// # Errors
    /// The submission queue is full and submitting has failed, or this is a forked child process.
    /// The slot is returned.
    pub(super) fn push_op(
        &mut self,
        entries: &mut [squeue::Entry],
        slot: UringSlot,
    ) -> Result<OpId, (io::Error, UringSlot)> {
        if !self.fork_guard.in_original_process() {
            return Err((io::ErrorKind::Unsupported.into(), slot));
        }
        self.generation = self.generation.wrapping_add(1) & 0x7fff_ffff;
        let generation = self.generation;
        let index = self.slots.insert(UringSlot { generation, ..slot });
        let user_data = u64::from(generation) << 32 | index as u64;
        for (entry, user_data) in entries.iter_mut().zip([user_data, user_data | TIMEOUT_BIT]) {
            entry.set_user_data(user_data);
        }
        if let Err(error) = self.push_entries(entries) {
            // The entries were not queued, so the kernel does not know the operation.
            return Err((error, self.slots.remove(index)));
        }
        Ok(OpId(user_data))
    }

    /// Queues entries, and submits earlier ones if there is no room: all entries or none.
    fn push_entries(&mut self, entries: &[squeue::Entry]) -> io::Result<()> {
        let submission = self.io_uring.submission();
        let room = submission.capacity() - submission.len();
        drop(submission);
        if room < entries.len() {
            self.submit_queued()?;
        }
        // SAFETY: the memory that the entries point to lives in their slot, or as long as the
        // caller of `send` has promised.
        unsafe { self.io_uring.submission().push_multiple(entries) }
            .map_err(|_| io::ErrorKind::WouldBlock.into())
    }

    /// Detaches an operation from its owner and cancels the operation. Its completions are not
    /// reported. Not for sends, whose memory the owner must keep.
    pub(crate) fn detach(&mut self, op_id: OpId) {
        if let Some(slot) = self.slot(op_id) {
            debug_assert!(
                slot.message.is_none(),
                "a detached send would free bytes that the kernel reads"
            );
            slot.owner = None;
            self.cancel(op_id);
        }
    }

    /// Requests the cancellation of an operation, with the next [`submit`](Self::submit). A
    /// completion reports the operation's end.
    pub(crate) fn cancel(&mut self, op_id: OpId) {
        if !self.fork_guard.in_original_process() || self.slot(op_id).is_none() {
            return;
        }
        let entry = opcode::AsyncCancel::new(op_id.0)
            .build()
            .user_data(CANCEL_USER_DATA);
        if self
            .push_entries(&[entry.flags(squeue::Flags::SKIP_SUCCESS)])
            .is_err()
        {
            self.deferred_cancels.push(op_id.0);
        }
    }

    /// Cancels a send, waits for its end, and returns its result; `None` if the send has ended
    /// before. The buffer of a zero-copy send is released by a later completion.
    ///
    /// The wait is short: the kernel cancels a send at once, or, if a worker executes the send,
    /// after that attempt, which does not wait for room in the socket.
    pub(crate) fn cancel_send(&mut self, op_id: OpId) -> Option<SendResult> {
        if !self.fork_guard.in_original_process() {
            return None;
        }
        if self
            .slot(op_id)
            .is_some_and(|slot| slot.zero_copy_stage != ZeroCopyStage::Pending)
        {
            // The send has ended, and only its buffer is outstanding.
            return None;
        }
        self.cancel(op_id);
        loop {
            self.fetch_cqes();
            let mut fetched = self.fetched_cqes.iter();
            if let Some(index) = fetched.position(|cqe| cqe.user_data == op_id.0) {
                let cqe = self.fetched_cqes.remove(index)?;
                return match self.handle_cqe(cqe)?.kind {
                    CompletionKind::Sent(sent) => Some(sent),
                    _ => None,
                };
            }
            self.slot(op_id)?;
            // The cancellation may have found no room in the submission queue, and a send that
            // waits for room in the socket ends only when canceled.
            let _ = self.submit();
            self.wait_completion();
        }
    }

    /// Cancels a receive, waits for its end, and returns the received bytes that were not reported.
    pub(crate) fn cancel_recv(&mut self, op_id: OpId) -> Vec<LeasedBuffer> {
        let mut leases = Vec::new();
        if !self.fork_guard.in_original_process() {
            return leases;
        }
        self.cancel(op_id);
        while self.slot(op_id).is_some() {
            self.fetch_cqes();
            let index = self
                .fetched_cqes
                .iter()
                .position(|cqe| cqe.user_data == op_id.0);
            if let Some(cqe) = index.and_then(|index| self.fetched_cqes.remove(index)) {
                if let Some(UringCompletion {
                    kind: CompletionKind::Received(lease),
                    ..
                }) = self.handle_cqe(cqe)
                {
                    leases.push(lease);
                }
            } else {
                let _ = self.submit();
                self.wait_completion();
            }
        }
        leases
    }

    /// Submits the queued entries, if there are any.
    ///
    /// # Errors
    /// The kernel does not accept the entries now. They stay queued.
    pub(crate) fn submit(&mut self) -> io::Result<()> {
        if !self.fork_guard.in_original_process() {
            return Ok(());
        }
        for user_data in std::mem::take(&mut self.deferred_cancels) {
            self.cancel(OpId(user_data));
        }
        if self.io_uring.submission().is_empty() {
            Ok(())
        } else {
            self.submit_queued()
        }
    }

    /// Submits the queued entries, in at most [`MAX_SUBMIT_ATTEMPTS`] calls.
    fn submit_queued(&mut self) -> io::Result<()> {
        for _ in 0..MAX_SUBMIT_ATTEMPTS {
            match self.enter(0) {
                Ok(_) if self.io_uring.submission().is_empty() => return Ok(()),
                Ok(_) => {}
                Err(error) => self.prepare_retry(error)?,
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Prepares to repeat a failed call.
    ///
    /// # Errors
    /// The error of the call, if repeating the call would not help.
    fn prepare_retry(&mut self, error: io::Error) -> io::Result<()> {
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::INTR) => Ok(()),
            Some(Errno::BUSY | Errno::AGAIN) => {
                self.fetch_cqes();
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// Waits for a completion or an interruption.
    fn wait_completion(&mut self) {
        if let Err(error) = self.enter(1) {
            let _ = self.prepare_retry(error);
        }
    }

    /// Calls `io_uring_enter`: submits the queued entries, and waits for `min_completions`. Returns
    /// the number of submitted entries.
    fn enter(&mut self, min_completions: usize) -> io::Result<usize> {
        #[cfg(all(test, not(loom)))]
        if let Some(errno) = self.injected_errors.pop_front() {
            return Err(errno.into());
        }
        self.io_uring.submit_and_wait(min_completions)
    }

    /// Returns whether there are completions that were not reported.
    pub(crate) fn has_completions(&mut self) -> bool {
        self.fork_guard.in_original_process()
            && (!self.fetched_cqes.is_empty() || !self.io_uring.completion().is_empty())
    }

    /// Returns the next completion of an operation that has an owner.
    pub(crate) fn next_completion(&mut self) -> Option<UringCompletion> {
        if !self.fork_guard.in_original_process() {
            return None;
        }
        loop {
            let cqe = match self.fetched_cqes.pop_front() {
                Some(cqe) => cqe,
                None => self.next_cqe()?,
            };
            if let Some(completion) = self.handle_cqe(cqe) {
                return Some(completion);
            }
        }
    }

    /// Takes the next entry from the completion queue of the kernel.
    fn next_cqe(&mut self) -> Option<Cqe> {
        let needs_enter = {
            let submission = self.io_uring.submission();
            submission.cq_overflow() || submission.taskrun()
        };
        if needs_enter {
            // Overflowed completions are flushed, and deferred task work runs, only when the kernel
            // is entered.
            let _ = self.io_uring.submit();
        }
        self.io_uring.completion().next().map(Cqe::from_entry)
    }

    /// Takes all entries from the completion queue of the kernel, to be handled later.
    pub(super) fn fetch_cqes(&mut self) {
        while let Some(cqe) = self.next_cqe() {
            self.fetched_cqes.push_back(cqe);
        }
    }

    /// Handles a completion queue entry, and returns the completion for the owner, if there is one.
    fn handle_cqe(&mut self, cqe: Cqe) -> Option<UringCompletion> {
        let is_last = cqe.is_last();
        // The lease exists before any return, so that the buffer always returns to the kernel.
        let lease = cqueue::buffer_select(cqe.flags)
            .map(|id| self.buffers.lease(id, cqe.result.max(0) as usize));
        if cqe.user_data == CANCEL_USER_DATA {
            return None;
        }
        let Some(slot) = self.slot(OpId(cqe.user_data)) else {
            self.unmatched_cqes += 1;
            return None;
        };
        if slot.timed.is_some() {
            return self.timed_completion(cqe);
        }
        let owner = slot.owner;
        if slot
            .message
            .as_ref()
            .is_some_and(|message| message.has_buffer())
        {
            let kind = if cqueue::notif(cqe.flags) {
                let slot = self.slots.remove(slot_index(cqe.user_data));
                CompletionKind::BufferReleased(slot.into_released_buffer(
                    cqe.result.cast_unsigned() & NOTIF_USAGE_ZC_COPIED != 0,
                )?)
            } else {
                let sent = slot.on_send_done(cqe.result())?;
                if is_last {
                    // The kernel has not started the send, and will not report the release of the
                    // buffer. An entry of this side reports the release.
                    self.fetched_cqes.push_front(Cqe {
                        flags: CQE_F_NOTIF,
                        ..cqe
                    });
                }
                CompletionKind::Sent(sent)
            };
            let is_last = matches!(kind, CompletionKind::BufferReleased(_));
            return Some(UringCompletion {
                owner: owner?,
                op_id: OpId(cqe.user_data),
                kind,
                is_last,
            });
        }
        let message = if is_last {
            self.slots.remove(slot_index(cqe.user_data)).message
        } else {
            None
        };
        let kind = match (message, cqe.result(), lease) {
            (Some(message), result, _) => CompletionKind::Sent(SendResult {
                result,
                owned: message.into_parts().0,
            }),
            (None, Err(errno), _) => CompletionKind::Failed(errno),
            (None, Ok(1..), Some(lease)) => CompletionKind::Received(lease),
            (None, Ok(_), _) => CompletionKind::Eof,
        };
        Some(UringCompletion {
            owner: owner?,
            op_id: OpId(cqe.user_data),
            kind,
            is_last,
        })
    }

    /// Returns the slot of an operation; `None` if the operation has ended.
    fn slot(&mut self, op_id: OpId) -> Option<&mut UringSlot> {
        let slot = self.slots.get_mut(slot_index(op_id.0))?;
        (u64::from(slot.generation) == op_id.0 >> 32).then_some(slot)
    }

    /// Returns the number of operations that have not ended.
    #[cfg(all(test, not(loom)))]
    pub(super) fn active_ops(&self) -> usize {
        self.slots.len()
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn raw_fd(&self) -> std::os::fd::RawFd {
        self.io_uring.as_raw_fd()
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn buffers(&self) -> Arc<ProvidedBuffers> {
        self.buffers.clone()
    }

    /// Adds a completion as if the kernel had reported it.
    #[cfg(all(test, not(loom)))]
    pub(super) fn inject_cqe(&mut self, user_data: u64, result: i32) {
        self.fetched_cqes.push_back(Cqe {
            user_data,
            result,
            flags: 0,
        });
    }

    /// Inserts an operation that never ends.
    #[cfg(all(test, not(loom)))]
    pub(super) fn insert_stuck_slot(&mut self, socket: &Arc<OwnedFd>) {
        self.slots.insert(UringSlot {
            owner: None,
            ..UringSlot::new(socket, 0)
        });
    }

    /// Cancels all operations and waits until they have ended, for at most [`DROP_TIMEOUT`]. Does
    /// not wait for the buffers of zero-copy sends that have ended. Returns whether all operations
    /// have ended.
    fn cancel_all(&mut self) -> bool {
        let deadline = Instant::now() + DROP_TIMEOUT;
        let _ = self.submit();
        // The kernel does not report the fetched completions again, so they are handled first.
        self.discard_fetched();
        let has_active = |slots: &Slab<UringSlot>| {
            slots
                .iter()
                .any(|(_, slot)| slot.zero_copy_stage == ZeroCopyStage::Pending)
        };
        while has_active(&self.slots) && Instant::now() < deadline {
            let timeout = Some(Timespec::new().nsec(10_000_000));
            let _ = self
                .io_uring
                .submitter()
                .register_sync_cancel(timeout, CancelBuilder::any());
            self.fetch_cqes();
            self.discard_fetched();
        }
        !has_active(&self.slots)
    }

    /// Handles the fetched completions without reporting them.
    fn discard_fetched(&mut self) {
        while let Some(cqe) = self.fetched_cqes.pop_front() {
            drop(self.handle_cqe(cqe));
        }
    }
}

/// Checks that the kernel supports all required operations. Returns whether the kernel supports
/// zero-copy sends, too.
///
/// # Errors
/// `Unsupported` if a required operation or feature is missing.
fn probe_features(uring: &IoUring) -> io::Result<bool> {
    let mut probe = Probe::new();
    uring.submitter().register_probe(&mut probe)?;
    // Multishot receives have the opcode of single receives, so `SendZc`, which came with the same
    // kernel version, is probed in their place.
    let send_zc = opcode::SendZc::CODE;
    let (recv, send, cancel) = (
        opcode::RecvMulti::CODE,
        opcode::SendMsg::CODE,
        opcode::AsyncCancel::CODE,
    );
    let (connect, timer) = (opcode::Connect::CODE, opcode::LinkTimeout::CODE);
    let needed = [recv, send, cancel, connect, timer, send_zc];
    let known = needed.into_iter().all(|code| probe.is_supported(code));
    let params = uring.params();
    if known && params.is_feature_nodrop() && params.is_feature_skip_cqe_on_success() {
        Ok(probe.is_supported(opcode::SendMsgZc::CODE))
    } else {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        if !self.fork_guard.in_original_process() {
            // The mappings do not exist in a forked child, and other memory may be in their place.
            return;
        }
        let all_ended = self.cancel_all();
        // SAFETY: `io_uring` is not used after this.
        let uring = unsafe { ManuallyDrop::take(&mut self.io_uring) };
        let orphaned =
            OrphanedRing::new(uring, std::mem::take(&mut self.slots), self.buffers.clone());
        // Otherwise dropping `orphaned` leaks the memory of operations that did not end.
        if all_ended {
            orphaned.free_on_completion();
        }
    }
}
