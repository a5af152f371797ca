//! A ring: operations in slots, submitted together, reaped, cancelled, waited for.
//!
//! # Safety
//!
//! What the kernel is told of lives as long as it may look: descriptors and headers in the slot,
//! which lives until the last completion; receive memory until all slots have ended; and the bytes
//! that a send leaves where they lie by the promise of [`Ring::send`]. The maps of the ring are not
//! there in forked children, so nothing here touches them in one.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric_core::buf::AnyBuf;
use fabric_core::provider::OpKey;
use io_uring::types::{CancelBuilder, Fd, Timespec};
use io_uring::{IoUring, Probe, cqueue, opcode, squeue};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use slab::Slab;

use super::buffers::{Buffers, GROUP, Lease};
use super::message::Message;
use super::remains::Remains;
use super::slot::{COPIED, NOTIF, REPORT_USAGE, Raw, Released, Sent, Slot, Stage, TIMER, index};
use super::timed::Ended;
use crate::provider::origin::Origin;

/// What the completion of a cancellation is known by: there is nothing to be done about it.
const CANCELLATION: u64 = u64::MAX;
/// Attempts to hand over what is queued before that is put off.
const ATTEMPTS: u32 = 16;
/// How long a ring that is dropped waits for its operations.
const FAREWELL: Duration = if cfg!(test) {
    Duration::from_secs(1)
} else {
    Duration::from_secs(5)
};
/// How large a ring is, and how its work is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Operations that are handed over together.
    pub(crate) submissions: u32,
    /// Completions that wait without the kernel having to keep them elsewhere.
    pub(crate) completions: u32,
    /// Receive buffers, a power of two, and their length in bytes.
    pub(crate) buffers: u16,
    pub(crate) buffer_len: usize,
    /// Work is done when whoever submitted enters the kernel, instead of interrupting it.
    pub(crate) cooperative: bool,
}

impl Shape {
    /// For the connections of a domain.
    pub(crate) fn usual(cooperative: bool) -> Self {
        Self {
            submissions: 128,
            completions: 1024,
            buffers: 64,
            buffer_len: 16 << 10,
            cooperative,
        }
    }
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(pub(super) u64);

/// Something that has come of an operation.
#[derive(Debug)]
pub(crate) struct Completion {
    /// Whom it was for, as was said when it began.
    pub(crate) owner: u64,
    pub(crate) ticket: Ticket,
    pub(crate) what: What,
    /// Nothing more comes of it.
    pub(crate) is_last: bool,
}

/// What has come of an operation.
#[derive(Debug)]
pub(crate) enum What {
    /// Bytes were received.
    Bytes(Lease),
    /// The peer sends no more.
    End,
    /// A send has ended.
    Sent(Sent),
    /// The kernel does not look any more at the buffer that a send was given, which has ended
    /// before.
    Released(Released),
    /// A receive has failed, or was cancelled.
    Failed(Errno),
    /// An operation that had its time has ended.
    Timed(Ended),
}

/// A ring.
pub(crate) struct Ring {
    uring: ManuallyDrop<IoUring>,
    event: OwnedFd,
    buffers: Arc<Buffers>,
    pub(super) slots: Slab<Slot>,
    generation: u32,
    /// Completions that were fetched and not looked at.
    pub(super) fetched: VecDeque<Raw>,
    /// Cancellations that found no room.
    to_cancel: Vec<u64>,
    /// Completions that belonged to nothing.
    pub(super) strays: u64,
    /// The kernel knows sends that read from where bytes lie.
    has_zero_copy: bool,
    origin: Origin,
    /// What the next calls are to end with.
    #[cfg(all(test, not(loom)))]
    pub(super) refusals: VecDeque<Errno>,
}

impl Ring {
    /// Opens a ring, with a descriptor that becomes readable when there are completions.
    ///
    /// # Errors
    /// The kernel refuses it, or does not know all that is needed (Linux 6.0 does).
    pub(crate) fn open(shape: Shape) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder
            .dontfork()
            .setup_submit_all()
            .setup_cqsize(shape.completions);
        if shape.cooperative {
            builder.setup_coop_taskrun().setup_taskrun_flag();
        }
        let uring = builder.build(shape.submissions)?;
        let has_zero_copy = probe(&uring)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        uring.submitter().register_eventfd(event.as_raw_fd())?;
        let buffers = Arc::new(Buffers::new(shape.buffers, shape.buffer_len)?);
        buffers.register(&uring.submitter())?;
        Ok(Self {
            uring: ManuallyDrop::new(uring),
            event,
            buffers,
            slots: Slab::new(),
            generation: 0,
            fetched: VecDeque::new(),
            to_cancel: Vec::new(),
            strays: 0,
            has_zero_copy,
            origin: Origin::here(),
            #[cfg(all(test, not(loom)))]
            refusals: VecDeque::new(),
        })
    }

    /// What becomes readable when there are completions.
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Forgets that it became readable; to be done before completions are looked for.
    pub(crate) fn heard(&self) {
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }

    /// Receives from a socket, from the next [`submit`](Self::submit) on, until it is cancelled,
    /// the peer sends no more, or there is no memory.
    ///
    /// # Errors
    /// There is no room, and handing over what is queued has failed.
    pub(crate) fn receive(&mut self, socket: &Arc<OwnedFd>, owner: u64) -> io::Result<Ticket> {
        let entry = opcode::RecvMulti::new(Fd(socket.as_raw_fd()), GROUP).build();
        self.begin(&mut [entry], Slot::new(socket, owner))
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
    ) -> Result<Ticket, Box<[u8]>> {
        let message = Message::new(own, others);
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        let entry = opcode::SendMsg::new(Fd(socket.as_raw_fd()), message.header())
            .flags(flags as u32)
            .build();
        self.begin(
            &mut [entry],
            Slot {
                message: Some(message),
                ..Slot::new(socket, owner)
            },
        )
        .map_err(|(_, slot)| {
            slot.message
                .map_or_else(Box::default, |message| message.into_parts().0)
        })
    }

    /// Whether the kernel may know [`send_zero_copy`](Self::send_zero_copy).
    pub(crate) fn has_zero_copy(&self) -> bool {
        self.has_zero_copy
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
    ) -> Result<Ticket, (Box<[u8]>, AnyBuf)> {
        let message = Message::of_buffer(own, op, buf);
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        let entry = opcode::SendMsgZc::new(Fd(socket.as_raw_fd()), message.header());
        let entry = entry.ioprio(REPORT_USAGE).flags(flags as u32).build();
        self.begin(
            &mut [entry],
            Slot {
                message: Some(message),
                ..Slot::new(socket, owner)
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
    pub(super) fn begin(
        &mut self,
        entries: &mut [squeue::Entry],
        slot: Slot,
    ) -> Result<Ticket, (io::Error, Slot)> {
        if !self.origin.is_here() {
            return Err((io::ErrorKind::Unsupported.into(), slot));
        }
        self.generation = self.generation.wrapping_add(1) & 0x7fff_ffff;
        let generation = self.generation;
        let index = self.slots.insert(Slot { generation, ..slot });
        let name = u64::from(generation) << 32 | index as u64;
        for (entry, name) in entries.iter_mut().zip([name, name | TIMER]) {
            entry.set_user_data(name);
        }
        if let Err(error) = self.push(entries) {
            // The kernel has not been told.
            return Err((error, self.slots.remove(index)));
        }
        Ok(Ticket(name))
    }

    fn push(&mut self, entries: &[squeue::Entry]) -> io::Result<()> {
        let room =
            |submission: squeue::SubmissionQueue<'_>| submission.capacity() - submission.len();
        if room(self.uring.submission()) < entries.len() {
            self.submit_queued()?;
        }
        // SAFETY: what they point to lives in their slot, or as long as who called `send` has
        // promised.
        unsafe { self.uring.submission().push_multiple(entries) }
            .map_err(|_| io::ErrorKind::WouldBlock.into())
    }

    /// Nobody wants to hear of an operation any more: it is cancelled, and ends by itself.
    pub(crate) fn abandon(&mut self, ticket: Ticket) {
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
    pub(crate) fn cancel(&mut self, ticket: Ticket) {
        if !self.origin.is_here() || self.slot(ticket).is_none() {
            return;
        }
        let entry = opcode::AsyncCancel::new(ticket.0)
            .build()
            .user_data(CANCELLATION);
        if self
            .push(&[entry.flags(squeue::Flags::SKIP_SUCCESS)])
            .is_err()
        {
            self.to_cancel.push(ticket.0);
        }
    }

    /// Ends a send, waits for it, and tells what has become of it. `None` if there is no such send.
    /// The buffer of one that has some comes later.
    ///
    /// The kernel ends a send at once, unless it is about to do it: then when that is done, and it
    /// does not wait for room.
    pub(crate) fn take_back(&mut self, ticket: Ticket) -> Option<Sent> {
        if !self.origin.is_here() {
            return None;
        }
        if self
            .slot(ticket)
            .is_some_and(|slot| slot.stage != Stage::Whole)
        {
            // It has ended, and only its buffer is outstanding.
            return None;
        }
        self.cancel(ticket);
        loop {
            self.fetch();
            let mut fetched = self.fetched.iter();
            if let Some(at) = fetched.position(|raw| raw.name == ticket.0) {
                let raw = self.fetched.remove(at)?;
                return match self.made_of(raw)?.what {
                    What::Sent(sent) => Some(sent),
                    _ => None,
                };
            }
            self.slot(ticket)?;
            // The cancellation may have found no room, and nothing else would end a send that waits
            // for some.
            let _ = self.submit();
            self.wait();
        }
    }

    /// Ends a receive, waits for that, and hands out what it has received and nobody has looked at.
    pub(crate) fn take_rest(&mut self, ticket: Ticket) -> Vec<Lease> {
        let mut rest = Vec::new();
        if !self.origin.is_here() {
            return rest;
        }
        self.cancel(ticket);
        while self.slot(ticket).is_some() {
            self.fetch();
            let at = self.fetched.iter().position(|raw| raw.name == ticket.0);
            if let Some(raw) = at.and_then(|at| self.fetched.remove(at)) {
                if let Some(Completion {
                    what: What::Bytes(lease),
                    ..
                }) = self.made_of(raw)
                {
                    rest.push(lease);
                }
            } else {
                let _ = self.submit();
                self.wait();
            }
        }
        rest
    }

    /// Hands over what is queued, if anything is.
    ///
    /// # Errors
    /// It could not be done now. What is queued stays so.
    pub(crate) fn submit(&mut self) -> io::Result<()> {
        if !self.origin.is_here() {
            return Ok(());
        }
        for name in std::mem::take(&mut self.to_cancel) {
            self.cancel(Ticket(name));
        }
        if self.uring.submission().is_empty() {
            Ok(())
        } else {
            self.submit_queued()
        }
    }

    fn submit_queued(&mut self) -> io::Result<()> {
        for _ in 0..ATTEMPTS {
            match self.enter(0) {
                Ok(_) if self.uring.submission().is_empty() => return Ok(()),
                Ok(_) => {}
                Err(error) => self.retry(error)?,
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// What to do before a call that has failed is made again; the error if that would be of no
    /// use.
    fn retry(&mut self, error: io::Error) -> io::Result<()> {
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::INTR) => Ok(()),
            Some(Errno::BUSY | Errno::AGAIN) => {
                self.fetch();
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// Waits for a completion, or for an interruption.
    fn wait(&mut self) {
        if let Err(error) = self.enter(1) {
            let _ = self.retry(error);
        }
    }

    /// Hands over what is queued, and waits for so many completions.
    fn enter(&mut self, want: usize) -> io::Result<usize> {
        #[cfg(all(test, not(loom)))]
        if let Some(errno) = self.refusals.pop_front() {
            return Err(errno.into());
        }
        self.uring.submit_and_wait(want)
    }

    /// Whether there are completions.
    pub(crate) fn is_ready(&mut self) -> bool {
        self.origin.is_here() && (!self.fetched.is_empty() || !self.uring.completion().is_empty())
    }

    /// The next completion that somebody wants to hear of.
    pub(crate) fn next(&mut self) -> Option<Completion> {
        if !self.origin.is_here() {
            return None;
        }
        loop {
            let raw = match self.fetched.pop_front() {
                Some(raw) => raw,
                None => self.found()?,
            };
            if let Some(completion) = self.made_of(raw) {
                return Some(completion);
            }
        }
    }

    fn found(&mut self) -> Option<Raw> {
        let asks = {
            let submission = self.uring.submission();
            submission.cq_overflow() || submission.taskrun()
        };
        if asks {
            // Completions that found no room come when they are asked for, and so does work that
            // waits for a call.
            let _ = self.uring.submit();
        }
        self.uring.completion().next().map(Raw::of)
    }

    pub(super) fn fetch(&mut self) {
        while let Some(raw) = self.found() {
            self.fetched.push_back(raw);
        }
    }

    /// What a completion means to its owner, if there is one.
    fn made_of(&mut self, raw: Raw) -> Option<Completion> {
        let is_last = !cqueue::more(raw.flags);
        let lease = cqueue::buffer_select(raw.flags)
            .map(|id| self.buffers.lease(id, raw.result.max(0) as usize));
        if raw.name == CANCELLATION {
            return None;
        }
        let Some(slot) = self.slot(Ticket(raw.name)) else {
            self.strays += 1;
            return None;
        };
        if slot.timed.is_some() {
            return self.made_of_half(raw);
        }
        let owner = slot.owner;
        if slot
            .message
            .as_ref()
            .is_some_and(|message| message.has_buffer())
        {
            let what = if cqueue::notif(raw.flags) {
                let slot = self.slots.remove(index(raw.name));
                What::Released(slot.released(raw.result.cast_unsigned() & COPIED != 0)?)
            } else {
                let sent = slot.ended(raw.result())?;
                if is_last {
                    // The kernel has not begun: there will be no word about the buffer.
                    self.fetched.push_front(Raw {
                        flags: NOTIF,
                        ..raw
                    });
                }
                What::Sent(sent)
            };
            let is_last = matches!(what, What::Released(_));
            return Some(Completion {
                owner: owner?,
                ticket: Ticket(raw.name),
                what,
                is_last,
            });
        }
        let message = if is_last {
            self.slots.remove(index(raw.name)).message
        } else {
            None
        };
        let what = match (message, raw.result(), lease) {
            (Some(message), result, _) => What::Sent(Sent {
                result,
                own: message.into_parts().0,
            }),
            (None, Err(errno), _) => What::Failed(errno),
            (None, Ok(1..), Some(lease)) => What::Bytes(lease),
            (None, Ok(_), _) => What::End,
        };
        Some(Completion {
            owner: owner?,
            ticket: Ticket(raw.name),
            what,
            is_last,
        })
    }

    fn slot(&mut self, ticket: Ticket) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(index(ticket.0))?;
        (u64::from(slot.generation) == ticket.0 >> 32).then_some(slot)
    }

    /// Operations that have not ended.
    #[cfg(all(test, not(loom)))]
    pub(super) fn under_way(&self) -> usize {
        self.slots.len()
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn raw(&self) -> std::os::fd::RawFd {
        self.uring.as_raw_fd()
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn buffers(&self) -> Arc<Buffers> {
        self.buffers.clone()
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn strays(&self) -> u64 {
        self.strays
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn forge(&mut self, name: u64, result: i32) {
        self.fetched.push_back(Raw {
            name,
            result,
            flags: 0,
        });
    }

    /// An operation that never ends.
    #[cfg(all(test, not(loom)))]
    pub(super) fn haunt(&mut self, socket: &Arc<OwnedFd>) {
        self.slots.insert(Slot {
            owner: None,
            ..Slot::new(socket, 0)
        });
    }

    /// Cancels everything and waits until all has ended, but for buffers that are still being
    /// looked at, or has not for long. True when it has.
    fn end(&mut self) -> bool {
        let until = Instant::now() + FAREWELL;
        let _ = self.submit();
        // What was fetched before comes no second time, whether anything is under way or not.
        self.drain();
        let is_under_way =
            |slots: &Slab<Slot>| slots.iter().any(|(_, slot)| slot.stage == Stage::Whole);
        while is_under_way(&self.slots) && Instant::now() < until {
            let pause = Some(Timespec::new().nsec(10_000_000));
            let _ = self
                .uring
                .submitter()
                .register_sync_cancel(pause, CancelBuilder::any());
            self.fetch();
            self.drain();
        }
        !is_under_way(&self.slots)
    }

    /// Looks at what was fetched, of which nobody hears.
    fn drain(&mut self) {
        while let Some(raw) = self.fetched.pop_front() {
            drop(self.made_of(raw));
        }
    }
}

/// Whether the kernel knows everything that is needed here; and if so, whether it knows sends
/// without copies too.
fn probe(uring: &IoUring) -> io::Result<bool> {
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

impl Drop for Ring {
    fn drop(&mut self) {
        if !self.origin.is_here() {
            // The maps are not there in a child, and something else may be where they were.
            return;
        }
        let has_ended = self.end();
        // SAFETY: not used any more.
        let uring = unsafe { ManuallyDrop::take(&mut self.uring) };
        let remains = Remains::new(uring, std::mem::take(&mut self.slots), self.buffers.clone());
        if has_ended {
            remains.await_last_looks();
        }
    }
}
