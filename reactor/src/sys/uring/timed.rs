//! Operations with a timeout, which the kernel enforces.
//!
//! A timed operation is two linked entries: the operation, followed by a linked timeout
//! (`IORING_OP_LINK_TIMEOUT`), the *timer*. Both share a slot. Each has its own user data and its
//! own completion; the completions arrive in any order.
//!
//! # What the kernel copies, and when
//!
//! The kernel reads timeout and address within the call that submits the entries, and never again:
//! the timeout when it prepares the entry, the address then (since Linux 6.10) or in the first
//! attempt, which the same call makes. But this module does not track which entries were submitted
//! by a call that failed or submitted only some, and any later call may submit a queued entry. So
//! timeout and address stay in the slot until both completions have arrived.
//!
//! # How two results combine
//!
//! | operation | timer | outcome |
//! |---|---|---|
//! | `ECANCELED`, `EINTR`, `EALREADY`, `EINPROGRESS`, `EAGAIN` | `ETIME`, `ENOENT`, `EALREADY` | timed out; `ENOENT` and `EALREADY` if the operation was being executed, or its submitting thread has exited |
//! | the same | any other | interrupted: the operation was canceled, or its submitting thread has exited |
//! | any other result | any, usually `ECANCELED` | completed with the operation's result, even if the timer fired at the same moment |
//!
//! # Threads that exit
//!
//! The kernel keeps the operations of an exited thread, but does no more work for them. When the
//! socket is ready, the operation ends with `ECANCELED`. When the timer fires, the timer ends with
//! `ECANCELED` or `ENOENT`, and the operation does not end. A timer that was not submitted together
//! with its operation is refused (`EINVAL`), and the operation does not end either. So when a timer
//! ends before its operation with another result than `ETIME`, this module cancels the operation.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::types::Fd;
use io_uring::{opcode, squeue};
use rustix::io::Errno;

use super::completion::{CompletionKind, OpId, UringCompletion};
use super::cqe::{Cqe, TIMEOUT_BIT};
use super::instance::Uring;
use super::slot::{UringSlot, slot_index};
use super::timed_op::{TimedOp, is_cancellation};

impl Uring {
    /// Starts a connect within `timeout` with the next [`submit`](Self::submit). One completion
    /// reports the outcome; until then the socket must not be used otherwise.
    ///
    /// # Errors
    /// The submission queue has no room for two entries and submitting has failed.
    pub(crate) fn connect(
        &mut self,
        socket: &Arc<OwnedFd>,
        owner: u64,
        addr: SocketAddr,
        timeout: Duration,
    ) -> io::Result<OpId> {
        let timed = TimedOp::new(addr, timeout);
        let entry = opcode::Connect::new(
            Fd(socket.as_raw_fd()),
            timed.addr.as_ptr().cast(),
            timed.addr.addr_len(),
        );
        let timer = opcode::LinkTimeout::new(&raw const timed.timeout).build();
        let mut entries = [entry.build().flags(squeue::Flags::IO_LINK), timer];
        self.push_op(
            &mut entries,
            UringSlot {
                timed: Some(timed),
                ..UringSlot::new(socket, owner)
            },
        )
        .map_err(|(error, _)| error)
    }

    /// Returns the error with which a timed operation has failed, if the kernel has reported it
    /// already; not if the operation was canceled or timed out. The completion follows regardless.
    pub(crate) fn early_error(&mut self, op_id: OpId) -> Option<Errno> {
        self.fetch_cqes();
        let cqe = self
            .fetched_cqes
            .iter()
            .find(|cqe| cqe.user_data == op_id.0)?;
        cqe.result().err().filter(|errno| !is_cancellation(*errno))
    }

    /// Inserts a timed operation that was never submitted.
    #[cfg(all(test, not(loom)))]
    pub(super) fn insert_stuck_timed_slot(&mut self, socket: &Arc<OwnedFd>, owner: u64) -> OpId {
        let timed = TimedOp::new(([127, 0, 0, 1], 1).into(), Duration::ZERO);
        OpId(self.slots.insert(UringSlot {
            timed: Some(timed),
            ..UringSlot::new(socket, owner)
        }) as u64)
    }

    /// Handles a completion of a timed operation or of its timer, and returns the completion for
    /// the owner when both have arrived.
    pub(super) fn timed_completion(&mut self, cqe: Cqe) -> Option<UringCompletion> {
        let op_id = OpId(cqe.user_data & !TIMEOUT_BIT);
        let slot = self.slots.get_mut(slot_index(cqe.user_data))?;
        let timed = slot.timed.as_mut()?;
        if !timed.record_result(cqe) {
            self.unmatched_cqes += 1;
        } else if timed.has_lost_timer() {
            self.cancel(op_id);
        } else if let Some(outcome) = timed.outcome() {
            let owner = self.slots.remove(slot_index(cqe.user_data)).owner?;
            return Some(UringCompletion {
                owner,
                op_id,
                kind: CompletionKind::Timed(outcome),
                is_last: true,
            });
        }
        None
    }
}
