//! A ring: operations in slots, submitted together, reaped, cancelled, waited for.
//!
//! # Safety
//!
//! What the kernel is told of lives as long as it may look: descriptors and headers in the slot,
//! which lives until the last completion; receive memory until all slots have ended; and the bytes
//! that a send leaves where they lie by the promise of [`Uring::send`]. The maps of the ring are not
//! there in forked children, so nothing here touches them in one.
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
use super::orphaned::OrphanedRing;
use super::send_msg::SendMsg;
use super::slot::{
    CQE_F_NOTIF, Cqe, NOTIF_USAGE_ZC_COPIED, ReleasedBuffer, SEND_ZC_REPORT_USAGE, SendResult,
    TIMEOUT_BIT, UringSlot, ZeroCopyStage, slot_index,
};
use super::timed::TimedOutcome;
use crate::transport::fork_guard::ForkGuard;

/// What the completion of a cancellation is known by: there is nothing to be done about it.
const CANCEL_USER_DATA: u64 = u64::MAX;
/// Attempts to hand over what is queued before that is put off.
const MAX_SUBMIT_ATTEMPTS: u32 = 16;
/// How long a ring that is dropped waits for its operations.
const DROP_TIMEOUT: Duration = if cfg!(test) {
    Duration::from_secs(1)
} else {
    Duration::from_secs(5)
};
/// How large a ring is, and how its work is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UringConfig {
    /// Operations that are handed over together.
    pub(crate) sq_entries: u32,
    /// Completions that wait without the kernel having to keep them elsewhere.
    pub(crate) cq_entries: u32,
    /// Receive buffers, a power of two, and their length in bytes.
    pub(crate) buffer_count: u16,
    pub(crate) buffer_len: usize,
    /// Work is done when whoever submitted enters the kernel, instead of interrupting it.
    pub(crate) coop_taskrun: bool,
}

impl UringConfig {
    /// For the connections of a domain.
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

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpId(pub(super) u64);

/// Something that has come of an operation.
#[derive(Debug)]
pub(crate) struct UringCompletion {
    /// Whom it was for, as was said when it began.
    pub(crate) owner: u64,
    pub(crate) op_id: OpId,
    pub(crate) kind: CompletionKind,
    /// Nothing more comes of it.
    pub(crate) is_last: bool,
}

/// What has come of an operation.
#[derive(Debug)]
pub(crate) enum CompletionKind {
    /// Bytes were received.
    Received(LeasedBuffer),
    /// The peer sends no more.
    Eof,
    /// A send has ended.
    Sent(SendResult),
    /// The kernel does not look any more at the buffer that a send was given, which has ended
    /// before.
    BufferReleased(ReleasedBuffer),
    /// A receive has failed, or was cancelled.
    Failed(Errno),
    /// An operation that had its time has ended.
    Timed(TimedOutcome),
}

/// A ring.
pub(crate) struct Uring {
    io_uring: ManuallyDrop<IoUring>,
    event_fd: OwnedFd,
    buffers: Arc<ProvidedBuffers>,
    pub(super) slots: Slab<UringSlot>,
    generation: u32,
    /// Completions that were fetched and not looked at.
    pub(super) fetched_cqes: VecDeque<Cqe>,
    /// Cancellations that found no room.
    deferred_cancels: Vec<u64>,
    /// Completions that belonged to nothing.
    pub(super) unmatched_cqes: u64,
    /// The kernel knows sends that read from where bytes lie.
    supports_zero_copy: bool,
    fork_guard: ForkGuard,
    /// What the next calls are to end with.
    #[cfg(all(test, not(loom)))]
    pub(super) injected_errors: VecDeque<Errno>,
}

impl Uring {
    /// Opens a ring, with a descriptor that becomes readable when there are completions.
    ///
    /// # Errors
    /// The kernel refuses it, or does not know all that is needed (Linux 6.0 does).
    pub(crate) fn open(shape: UringConfig) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder
            .dontfork()
            .setup_submit_all()
            .setup_cqsize(shape.cq_entries);
        if shape.coop_taskrun {
            builder.setup_coop_taskrun().setup_taskrun_flag();
        }
        let uring = builder.build(shape.sq_entries)?;
        let has_zero_copy = probe_features(&uring)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        uring.submitter().register_eventfd(event.as_raw_fd())?;
        let buffers = Arc::new(ProvidedBuffers::new(shape.buffer_count, shape.buffer_len)?);
        buffers.register(&uring.submitter())?;
        Ok(Self {
            io_uring: ManuallyDrop::new(uring),
            event_fd: event,
            buffers,
            slots: Slab::new(),
            generation: 0,
            fetched_cqes: VecDeque::new(),
            deferred_cancels: Vec::new(),
            unmatched_cqes: 0,
            supports_zero_copy: has_zero_copy,
            fork_guard: ForkGuard::current_process(),
            #[cfg(all(test, not(loom)))]
            injected_errors: VecDeque::new(),
        })
    }

    /// What becomes readable when there are completions.
    pub(crate) fn event_fd(&self) -> BorrowedFd<'_> {
        self.event_fd.as_fd()
    }

    /// Forgets that it became readable; to be done before completions are looked for.
    pub(crate) fn clear_event(&self) {
        let _ = rustix::io::read(&self.event_fd, &mut [0; 8]);
    }

    /// Receives from a socket, from the next [`submit`](Self::submit) on, until it is cancelled,
    /// the peer sends no more, or there is no memory.
    ///
    /// # Errors
    /// There is no room, and handing over what is queued has failed.
    pub(crate) fn recv_multishot(&mut self, socket: &Arc<OwnedFd>, owner: u64) -> io::Result<OpId> {
        let entry = opcode::RecvMulti::new(Fd(socket.as_raw_fd()), BUFFER_GROUP).build();
        self.push_op(&mut [entry], UringSlot::new(socket, owner))
            .map_err(|(error, _)| error)
    }

    /// Sends these bytes, from the next [`submit`](Self::submit) on: those given away, and behind
    /// them the others, as many as one send takes. Less is sent only if the connection breaks or
    /// the send is cancelled.
    ///
    /// # Errors
    /// There is no room, and handing over what is queued has failed; with the bytes that were given
    /// away.
    ///
    /// # Safety
    /// `others` must stay where they are, and not be written to, until the last completion was
    /// returned by [`next`](Self::next) or [`take_back`](Self::take_back).
    pub(crate) unsafe fn send(
        &mut self,
        socket: &Arc<OwnedFd>,
        owner: u64,
        own: Box<[u8]>,
        others: &[&[u8]],
    ) -> Result<OpId, Box<[u8]>> {
        let message = SendMsg::new(own, others);
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

    /// Whether the kernel may know [`send_zero_copy`](Self::send_zero_copy).
    pub(crate) fn supports_zero_copy(&self) -> bool {
        self.supports_zero_copy
    }

    /// Likewise, and behind the bytes given away those of a buffer, which the ring has until the
    /// kernel has looked at it for the last time: the kernel need not copy it. The end of the send
    /// comes as one completion, the buffer as another one behind that; also when the send is taken
    /// back, or the kernel does not know this.
    ///
    /// # Errors
    /// As [`send`](Self::send); with what was given away.
    pub(crate) fn send_zero_copy(
        &mut self,
        socket: &Arc<OwnedFd>,
        owner: u64,
        own: Box<[u8]>,
        (op, buf): (OpKey, AnyBuf),
    ) -> Result<OpId, (Box<[u8]>, AnyBuf)> {
        let message = SendMsg::with_buffer(own, op, buf);
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
            let (own, buffer) = slot
                .message
                .map(|message| message.into_parts())
                .unwrap_or_default();
            (own, buffer.map(|(_, buf)| buf).unwrap_or_default())
        })
    }

    /// Queues an operation, which may have a timer behind it: all of its entries, or none. What
    /// they point to is in the slot, or stays by the promise of [`send`](Self::send).
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
        let name = u64::from(generation) << 32 | index as u64;
        for (entry, name) in entries.iter_mut().zip([name, name | TIMEOUT_BIT]) {
            entry.set_user_data(name);
        }
        if let Err(error) = self.push_entries(entries) {
            // The kernel has not been told.
            return Err((error, self.slots.remove(index)));
        }
        Ok(OpId(name))
    }

    fn push_entries(&mut self, entries: &[squeue::Entry]) -> io::Result<()> {
        let room =
            |submission: squeue::SubmissionQueue<'_>| submission.capacity() - submission.len();
        if room(self.io_uring.submission()) < entries.len() {
            self.submit_queued()?;
        }
        // SAFETY: what they point to lives in their slot, or as long as who called `send` has
        // promised.
        unsafe { self.io_uring.submission().push_multiple(entries) }
            .map_err(|_| io::ErrorKind::WouldBlock.into())
    }

    /// Nobody wants to hear of an operation any more: it is cancelled, and ends by itself.
    pub(crate) fn detach(&mut self, ticket: OpId) {
        if let Some(slot) = self.slot(ticket) {
            debug_assert!(
                slot.message.is_none(),
                "what a send leaves where it lies would be freed"
            );
            slot.owner = None;
            self.cancel(ticket);
        }
    }

    /// Asks for the end of an operation, from the next [`submit`](Self::submit) on. It comes as a
    /// completion.
    pub(crate) fn cancel(&mut self, ticket: OpId) {
        if !self.fork_guard.in_original_process() || self.slot(ticket).is_none() {
            return;
        }
        let entry = opcode::AsyncCancel::new(ticket.0)
            .build()
            .user_data(CANCEL_USER_DATA);
        if self
            .push_entries(&[entry.flags(squeue::Flags::SKIP_SUCCESS)])
            .is_err()
        {
            self.deferred_cancels.push(ticket.0);
        }
    }

    /// Ends a send, waits for it, and tells what has become of it. `None` if there is no such send.
    /// The buffer of one that has some comes later.
    ///
    /// The kernel ends a send at once, unless it is about to do it: then when that is done, and it
    /// does not wait for room.
    pub(crate) fn cancel_send(&mut self, ticket: OpId) -> Option<SendResult> {
        if !self.fork_guard.in_original_process() {
            return None;
        }
        if self
            .slot(ticket)
            .is_some_and(|slot| slot.zero_copy_stage != ZeroCopyStage::Pending)
        {
            // It has ended, and only its buffer is outstanding.
            return None;
        }
        self.cancel(ticket);
        loop {
            self.fetch_cqes();
            let mut fetched = self.fetched_cqes.iter();
            if let Some(at) = fetched.position(|raw| raw.user_data == ticket.0) {
                let raw = self.fetched_cqes.remove(at)?;
                return match self.to_completion(raw)?.kind {
                    CompletionKind::Sent(sent) => Some(sent),
                    _ => None,
                };
            }
            self.slot(ticket)?;
            // The cancellation may have found no room, and nothing else would end a send that waits
            // for some.
            let _ = self.submit();
            self.wait_completion();
        }
    }

    /// Ends a receive, waits for that, and hands out what it has received and nobody has looked at.
    pub(crate) fn cancel_recv(&mut self, ticket: OpId) -> Vec<LeasedBuffer> {
        let mut rest = Vec::new();
        if !self.fork_guard.in_original_process() {
            return rest;
        }
        self.cancel(ticket);
        while self.slot(ticket).is_some() {
            self.fetch_cqes();
            let at = self
                .fetched_cqes
                .iter()
                .position(|raw| raw.user_data == ticket.0);
            if let Some(raw) = at.and_then(|at| self.fetched_cqes.remove(at)) {
                if let Some(UringCompletion {
                    kind: CompletionKind::Received(lease),
                    ..
                }) = self.to_completion(raw)
                {
                    rest.push(lease);
                }
            } else {
                let _ = self.submit();
                self.wait_completion();
            }
        }
        rest
    }

    /// Hands over what is queued, if anything is.
    ///
    /// # Errors
    /// It could not be done now. What is queued stays so.
    pub(crate) fn submit(&mut self) -> io::Result<()> {
        if !self.fork_guard.in_original_process() {
            return Ok(());
        }
        for name in std::mem::take(&mut self.deferred_cancels) {
            self.cancel(OpId(name));
        }
        if self.io_uring.submission().is_empty() {
            Ok(())
        } else {
            self.submit_queued()
        }
    }

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

    /// What to do before a call that has failed is made again; the error if that would be of no
    /// use.
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

    /// Waits for a completion, or for an interruption.
    fn wait_completion(&mut self) {
        if let Err(error) = self.enter(1) {
            let _ = self.prepare_retry(error);
        }
    }

    /// Hands over what is queued, and waits for so many completions.
    fn enter(&mut self, want: usize) -> io::Result<usize> {
        #[cfg(all(test, not(loom)))]
        if let Some(errno) = self.injected_errors.pop_front() {
            return Err(errno.into());
        }
        self.io_uring.submit_and_wait(want)
    }

    /// Whether there are completions.
    pub(crate) fn has_completions(&mut self) -> bool {
        self.fork_guard.in_original_process()
            && (!self.fetched_cqes.is_empty() || !self.io_uring.completion().is_empty())
    }

    /// The next completion that somebody wants to hear of.
    pub(crate) fn next_completion(&mut self) -> Option<UringCompletion> {
        if !self.fork_guard.in_original_process() {
            return None;
        }
        loop {
            let raw = match self.fetched_cqes.pop_front() {
                Some(raw) => raw,
                None => self.next_cqe()?,
            };
            if let Some(completion) = self.to_completion(raw) {
                return Some(completion);
            }
        }
    }

    fn next_cqe(&mut self) -> Option<Cqe> {
        let asks = {
            let submission = self.io_uring.submission();
            submission.cq_overflow() || submission.taskrun()
        };
        if asks {
            // Completions that found no room come when they are asked for, and so does work that
            // waits for a call.
            let _ = self.io_uring.submit();
        }
        self.io_uring.completion().next().map(Cqe::from_entry)
    }

    pub(super) fn fetch_cqes(&mut self) {
        while let Some(raw) = self.next_cqe() {
            self.fetched_cqes.push_back(raw);
        }
    }

    /// What a completion means to its owner, if there is one.
    fn to_completion(&mut self, raw: Cqe) -> Option<UringCompletion> {
        let is_last = !cqueue::more(raw.flags);
        let lease = cqueue::buffer_select(raw.flags)
            .map(|id| self.buffers.lease(id, raw.result.max(0) as usize));
        if raw.user_data == CANCEL_USER_DATA {
            return None;
        }
        let Some(slot) = self.slot(OpId(raw.user_data)) else {
            self.unmatched_cqes += 1;
            return None;
        };
        if slot.timed.is_some() {
            return self.timed_completion(raw);
        }
        let owner = slot.owner;
        if slot
            .message
            .as_ref()
            .is_some_and(|message| message.has_buffer())
        {
            let what = if cqueue::notif(raw.flags) {
                let slot = self.slots.remove(slot_index(raw.user_data));
                CompletionKind::BufferReleased(slot.into_released_buffer(
                    raw.result.cast_unsigned() & NOTIF_USAGE_ZC_COPIED != 0,
                )?)
            } else {
                let sent = slot.on_send_done(raw.result())?;
                if is_last {
                    // The kernel has not begun: there will be no word about the buffer.
                    self.fetched_cqes.push_front(Cqe {
                        flags: CQE_F_NOTIF,
                        ..raw
                    });
                }
                CompletionKind::Sent(sent)
            };
            let is_last = matches!(what, CompletionKind::BufferReleased(_));
            return Some(UringCompletion {
                owner: owner?,
                op_id: OpId(raw.user_data),
                kind: what,
                is_last,
            });
        }
        let message = if is_last {
            self.slots.remove(slot_index(raw.user_data)).message
        } else {
            None
        };
        let what = match (message, raw.result(), lease) {
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
            op_id: OpId(raw.user_data),
            kind: what,
            is_last,
        })
    }

    fn slot(&mut self, ticket: OpId) -> Option<&mut UringSlot> {
        let slot = self.slots.get_mut(slot_index(ticket.0))?;
        (u64::from(slot.generation) == ticket.0 >> 32).then_some(slot)
    }

    /// Operations that have not ended.
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

    #[cfg(all(test, not(loom)))]
    pub(super) fn unmatched_cqes(&self) -> u64 {
        self.unmatched_cqes
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn inject_cqe(&mut self, name: u64, result: i32) {
        self.fetched_cqes.push_back(Cqe {
            user_data: name,
            result,
            flags: 0,
        });
    }

    /// An operation that never ends.
    #[cfg(all(test, not(loom)))]
    pub(super) fn insert_stuck_slot(&mut self, socket: &Arc<OwnedFd>) {
        self.slots.insert(UringSlot {
            owner: None,
            ..UringSlot::new(socket, 0)
        });
    }

    /// Cancels everything and waits until all has ended, but for buffers that are still being
    /// looked at, or has not for long. True when it has.
    fn cancel_all(&mut self) -> bool {
        let until = Instant::now() + DROP_TIMEOUT;
        let _ = self.submit();
        // What was fetched before comes no second time, whether anything is under way or not.
        self.discard_fetched();
        let is_under_way = |slots: &Slab<UringSlot>| {
            slots
                .iter()
                .any(|(_, slot)| slot.zero_copy_stage == ZeroCopyStage::Pending)
        };
        while is_under_way(&self.slots) && Instant::now() < until {
            let pause = Some(Timespec::new().nsec(10_000_000));
            let _ = self
                .io_uring
                .submitter()
                .register_sync_cancel(pause, CancelBuilder::any());
            self.fetch_cqes();
            self.discard_fetched();
        }
        !is_under_way(&self.slots)
    }

    /// Looks at what was fetched, of which nobody hears.
    fn discard_fetched(&mut self) {
        while let Some(raw) = self.fetched_cqes.pop_front() {
            drop(self.to_completion(raw));
        }
    }
}

/// Whether the kernel knows everything that is needed here; and if so, whether it knows sends
/// without copies too.
fn probe_features(uring: &IoUring) -> io::Result<bool> {
    let mut probe = Probe::new();
    uring.submitter().register_probe(&mut probe)?;
    // Receives that go on by themselves came with this one, and cannot be asked for by name.
    let since = opcode::SendZc::CODE;
    let (receive, send, cancel) = (
        opcode::RecvMulti::CODE,
        opcode::SendMsg::CODE,
        opcode::AsyncCancel::CODE,
    );
    let (connect, timer) = (opcode::Connect::CODE, opcode::LinkTimeout::CODE);
    let needed = [receive, send, cancel, connect, timer, since];
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
            // The maps are not there in a child, and something else may be where they were.
            return;
        }
        let has_ended = self.cancel_all();
        // SAFETY: not used any more.
        let uring = unsafe { ManuallyDrop::take(&mut self.io_uring) };
        let remains =
            OrphanedRing::new(uring, std::mem::take(&mut self.slots), self.buffers.clone());
        if has_ended {
            remains.free_on_completion();
        }
    }
}
