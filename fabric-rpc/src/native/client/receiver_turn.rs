//! Which task receives answers.
//!
//! The task that receives has the receiver while it polls it. A lone call receives itself, which
//! saves the switch to another task, and gives the receiver back after each poll. With several
//! slots in use the session's reader task receives, and keeps the receiver until all slots have
//! their answers.

use std::task::{Context, Waker};

use super::slots::store;

/// The receiver of a session, and the task whose turn it is.
#[derive(Debug)]
pub(super) struct ReceiverTurn<R> {
    role: ReceiverRole,
    /// `None` while a task has it, and after the end of the session.
    receiver: Option<Box<R>>,
    /// Waker of the reader task; `None` before its first poll.
    reader: Option<Waker>,
}

/// The task that polls the receiver next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReceiverRole {
    None,
    /// The task of the call with this id.
    Call(u64),
    Reader,
}

impl<R> ReceiverTurn<R> {
    pub(super) fn new(receiver: R) -> Self {
        Self {
            role: ReceiverRole::None,
            receiver: Some(Box::new(receiver)),
            reader: None,
        }
    }

    /// Returns the receiver if it is the turn of this call, which may be the only one.
    pub(super) fn take_for_call(&mut self, id: u64, is_alone: bool) -> Option<Box<R>> {
        let receives = match self.role {
            ReceiverRole::None => is_alone,
            ReceiverRole::Call(call) => call == id,
            ReceiverRole::Reader => false,
        };
        let receiver = self.receiver.take_if(|_| receives)?;
        self.role = ReceiverRole::Call(id);
        Some(receiver)
    }

    /// Returns the receiver to look for events, if no task has it.
    pub(super) fn take_idle(&mut self) -> Option<Box<R>> {
        self.receiver.take()
    }

    /// Takes the receiver back from a call. If the reader task is the next one, it has found no
    /// receiver meanwhile: returns its waker, to be woken after unlocking.
    pub(super) fn put(&mut self, receiver: Box<R>) -> Option<Waker> {
        self.receiver = Some(receiver);
        (self.role == ReceiverRole::Reader).then(|| self.reader.clone())?
    }

    /// Returns whether the call with this id receives.
    pub(super) fn is_call(&self, id: u64) -> bool {
        self.role == ReceiverRole::Call(id)
    }

    /// Ends the turn of a call that has its answer. No other call that was polled waits: its poll
    /// would have made the reader the receiver.
    pub(super) fn end_call(&mut self, id: u64) {
        if self.is_call(id) {
            self.role = ReceiverRole::None;
        }
    }

    /// Makes the reader task the receiver. Returns its waker, to be woken after unlocking.
    pub(super) fn hand_to_reader(&mut self) -> Option<Waker> {
        if self.role == ReceiverRole::Reader {
            return None;
        }
        self.role = ReceiverRole::Reader;
        self.reader.clone()
    }

    /// Stores the waker of the reader task. Returns the waker that it replaces.
    pub(super) fn store_reader(&mut self, cx: &mut Context<'_>) -> Option<Waker> {
        store(&mut self.reader, cx)
    }

    /// Returns the receiver if it is the turn of the reader task; ends the turn if no slot waits.
    pub(super) fn take_for_reader(&mut self, is_needed: bool) -> Option<Box<R>> {
        if self.role != ReceiverRole::Reader || self.receiver.is_none() {
            return None;
        }
        if !is_needed {
            self.role = ReceiverRole::None;
            return None;
        }
        self.receiver.take()
    }

    /// Takes the receiver back from the reader task, which keeps it while slots wait.
    pub(super) fn put_by_reader(&mut self, receiver: Box<R>, is_needed: bool) -> Option<Box<R>> {
        if is_needed {
            return Some(receiver);
        }
        self.receiver = Some(receiver);
        self.role = ReceiverRole::None;
        None
    }

    /// Returns what is dropped at the end of the session: the receiver, and the waker of the reader
    /// task, to be woken.
    pub(super) fn end(&mut self) -> (Option<Box<R>>, Option<Waker>) {
        (self.receiver.take(), self.reader.take())
    }
}
