//! What must not happen under a lock: waking tasks and dropping what belongs to the user.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use fabric_core::buf::AnyBuf;

/// Collected under the lock, carried out after it is gone.
#[derive(Debug, Default)]
pub(crate) struct Later {
    wakes: Vec<Waker>,
    wakers: Vec<Waker>,
    buffers: Vec<AnyBuf>,
}

impl Later {
    /// Wake this task.
    pub(crate) fn wake(&mut self, waker: Waker) {
        self.wakes.push(waker);
    }

    /// Drop this waker: it may be the last owner of a task, and that task may own operations.
    pub(crate) fn discard_waker(&mut self, waker: Waker) {
        self.wakers.push(waker);
    }

    /// Drop this buffer: its type may be the user's.
    pub(crate) fn discard(&mut self, buf: AnyBuf) {
        if !matches!(buf, AnyBuf::None) {
            self.buffers.push(buf);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.wakes.is_empty() && self.wakers.is_empty() && self.buffers.is_empty()
    }

    /// Carries everything out. A panic of user code is logged and does not keep the rest from happening.
    pub(crate) fn run(self) {
        let guarded = |what: &'static str, action: &mut dyn FnMut()| {
            if catch_unwind(AssertUnwindSafe(action)).is_err() {
                tracing::error!(target: "fabric::progress", "{what} panicked");
            }
        };
        for waker in self.wakes {
            let mut waker = Some(waker);
            guarded("a waker", &mut || waker.take().into_iter().for_each(Waker::wake));
        }
        for waker in self.wakers {
            let mut waker = Some(waker);
            guarded("dropping a waker", &mut || drop(waker.take()));
        }
        for buf in self.buffers {
            let mut buf = Some(buf);
            guarded("dropping a buffer", &mut || drop(buf.take()));
        }
    }
}
