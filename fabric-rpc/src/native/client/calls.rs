//! The calls in flight of a session: their slots, the task that receives, and the end.
//!
//! Invariant: if a call that was polled waits, the task that receives (its own, or the reader task)
//! is registered with the receiver or has been woken.
//!
//! Wakers and the receiver are woken and dropped without the lock: the drop of a task may end other
//! calls.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use tokio::sync::OwnedSemaphorePermit;

use super::super::{Code, Status};
use super::receive::{Answer, AnswerReceiver, Received};
use super::receiver_turn::ReceiverTurn;
use super::session::server_left;
use super::slots::{Released, Slots};

/// A session that was idle for less is not checked before a call.
const IDLE_CHECK: Duration = Duration::from_millis(1);

/// The calls in flight of a session. Tests have other receivers (`R`).
#[derive(Debug)]
pub(super) struct Calls<R = AnswerReceiver> {
    state: Mutex<State<R>>,
    /// Whether `state.ended` is set.
    has_ended: AtomicBool,
}

#[derive(Debug)]
struct State<R> {
    slots: Slots,
    turn: ReceiverTurn<R>,
    /// When a call last found the session without other calls; `None` before the first call.
    last_idle: Option<Instant>,
    /// Whether the server has answered a call.
    has_served: bool,
    /// Why the session has ended.
    ended: Option<Status>,
}

/// A call that has a slot.
#[derive(Debug)]
pub(super) struct OpenedCall<'a, R> {
    pub(super) id: u64,
    /// Whether the call waits for a wake-up already: other slots wait for answers too.
    pub(super) is_waiting: bool,
    /// The receiver of a session that was idle: its events must be read before the call.
    pub(super) idle: Option<TakenReceiver<'a, R>>,
}

/// What a call that waits does next.
#[derive(Debug)]
pub(super) enum CallTurn<'a, R> {
    Answered(Result<Answer, Status>),
    /// Poll the receiver and [put it back](Calls::put_received).
    Receive(TakenReceiver<'a, R>),
    /// Wait for the wake-up.
    Wait,
}

/// What the reader task does next.
#[derive(Debug)]
pub(super) enum ReaderTurn<R> {
    /// Poll the receiver and [put it back](Calls::put_received_by_reader).
    Receive(Box<R>),
    Wait,
    End,
}

/// The receiver while the task of a call has it. Ends the session if it is dropped, as by a panic:
/// without the receiver no answer is received.
pub(super) struct TakenReceiver<'a, R> {
    calls: &'a Calls<R>,
    /// `None` after it was put back.
    receiver: Option<Box<R>>,
}

impl<R> Calls<R> {
    pub(super) fn new(receiver: R) -> Self {
        Self {
            state: Mutex::new(State {
                slots: Slots::default(),
                turn: ReceiverTurn::new(receiver),
                last_idle: None,
                has_served: false,
                ended: None,
            }),
            has_ended: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot for a call.
    ///
    /// # Errors
    /// The credit, if the session has ended.
    pub(super) fn open(
        &self,
        credit: OwnedSemaphorePermit,
        cx: &mut Context<'_>,
    ) -> Result<OpenedCall<'_, R>, OwnedSemaphorePermit> {
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.ended.is_some() {
            return Err(credit);
        }
        let is_waiting = state.slots.unanswered() > 0;
        let waker = is_waiting.then(|| cx.waker().clone());
        let id = state.slots.insert(credit, waker);
        let (mut idle, mut after) = (None, AfterUnlock::<R>::default());
        if is_waiting {
            after.reader = state.turn.hand_to_reader();
        } else {
            let now = Instant::now();
            let idle_since = state.last_idle.replace(now);
            if idle_since.is_none_or(|since| now.duration_since(since) >= IDLE_CHECK) {
                idle = state.turn.take_idle();
            }
        }
        drop(guard);
        after.finish();
        Ok(OpenedCall {
            id,
            is_waiting,
            idle: idle.map(|receiver| TakenReceiver::new(self, receiver)),
        })
    }

    /// Puts the receiver of a session that was idle back.
    pub(super) fn put_idle(&self, mut taken: TakenReceiver<'_, R>) {
        if let Some(receiver) = taken.receiver.take() {
            let mut after = AfterUnlock::default();
            self.lock().put(receiver, &mut after);
            after.finish();
        }
    }

    /// Frees the slot of a call whose request was not sent, and returns the credit.
    pub(super) fn close_unsent(&self, id: u64) -> Option<OwnedSemaphorePermit> {
        let released = self.lock().slots.remove_unsent(id);
        released.credit
    }

    /// Polls the slot of a call.
    pub(super) fn poll_call(&self, id: u64, cx: &mut Context<'_>) -> CallTurn<'_, R> {
        let mut guard = self.lock();
        let state = &mut *guard;
        if let Some((answer, credit)) = state.slots.take_answer(id) {
            state.turn.end_call(id);
            drop(guard);
            drop(credit);
            return CallTurn::Answered(answer);
        }
        let is_alone = state.slots.unanswered() == 1;
        if let Some(receiver) = state.turn.take_for_call(id, is_alone) {
            drop(guard);
            return CallTurn::Receive(TakenReceiver::new(self, receiver));
        }
        let after = AfterUnlock::<R> {
            unused: state.slots.store_waker(id, cx),
            reader: state.turn.hand_to_reader(),
            ..AfterUnlock::default()
        };
        drop(guard);
        after.finish();
        CallTurn::Wait
    }

    /// Puts the receiver back, which the call with this id has polled, and delivers what was
    /// received. Returns the answer of the call if it has come; otherwise the call waits for a
    /// wake-up.
    pub(super) fn put_received(
        &self,
        id: u64,
        mut taken: TakenReceiver<'_, R>,
        received: Received,
        cx: &mut Context<'_>,
    ) -> Option<Result<Answer, Status>> {
        let receiver = taken.receiver.take()?;
        let mut guard = self.lock();
        let state = &mut *guard;
        let mut after = AfterUnlock::default();
        self.deliver(state, received, &mut after);
        state.put(receiver, &mut after);
        let answer = state.slots.take_answer(id);
        match answer {
            Some(_) => state.turn.end_call(id),
            None => after.unused = state.slots.store_waker(id, cx),
        }
        drop(guard);
        after.finish();
        let (answer, credit) = answer?;
        drop(credit);
        Some(answer)
    }

    /// Polls what the reader task, which has no receiver, does next.
    pub(super) fn poll_reader(&self, cx: &mut Context<'_>) -> ReaderTurn<R> {
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.ended.is_some() {
            return ReaderTurn::End;
        }
        let after = AfterUnlock::<R> {
            unused: state.turn.store_reader(cx),
            ..AfterUnlock::default()
        };
        let receiver = (state.turn).take_for_reader(state.slots.unanswered() > 0);
        drop(guard);
        after.finish();
        receiver.map_or(ReaderTurn::Wait, ReaderTurn::Receive)
    }

    /// Puts the receiver back, which the reader task has polled, and delivers what was received.
    /// Returns the receiver while slots wait for answers.
    pub(super) fn put_received_by_reader(
        &self,
        receiver: Box<R>,
        received: Received,
    ) -> ReaderTurn<R> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let mut after = AfterUnlock::default();
        self.deliver(state, received, &mut after);
        let turn = if state.ended.is_some() {
            after.receiver = Some(receiver);
            ReaderTurn::End
        } else {
            let is_needed = state.slots.unanswered() > 0;
            let kept = state.turn.put_by_reader(receiver, is_needed);
            kept.map_or(ReaderTurn::Wait, ReaderTurn::Receive)
        };
        drop(guard);
        after.finish();
        turn
    }

    /// Stores an answer in the slot of its call, or ends the session.
    fn deliver(&self, state: &mut State<R>, received: Received, after: &mut AfterUnlock<R>) {
        match received {
            Received::Answer(id, answer) => {
                state.has_served = true;
                after.released = state.slots.deliver(id, answer);
                if state.turn.is_call(id) {
                    // The call that receives takes the answer in the same poll.
                    after.unused = after.released.waker.take();
                }
            }
            Received::End(reason) => self.end_locked(state, &server_left(&reason), after),
            Received::Nothing | Received::Other => {}
        }
    }

    /// Ends a call without its answer, which is discarded when it comes. Returns whether the server
    /// may still work on the request.
    pub(super) fn abandon(&self, id: u64) -> bool {
        let mut guard = self.lock();
        let state = &mut *guard;
        let (is_in_flight, mut released) = state.slots.abandon(id);
        let mut after = AfterUnlock::<R> {
            unused: released.waker.take(),
            released,
            ..AfterUnlock::default()
        };
        if is_in_flight {
            after.reader = state.turn.hand_to_reader();
        } else {
            state.turn.end_call(id);
        }
        drop(guard);
        after.finish();
        is_in_flight
    }

    /// Returns whether the call was dropped and its answer has not come.
    pub(super) fn is_abandoned(&self, id: u64) -> bool {
        self.lock().slots.is_abandoned(id)
    }

    /// Ends the session: calls that wait get this status, and later ones no slot.
    pub(super) fn end(&self, status: &Status) {
        let mut guard = self.lock();
        let mut after = AfterUnlock::default();
        self.end_locked(&mut guard, status, &mut after);
        drop(guard);
        after.finish();
    }

    fn end_locked(&self, state: &mut State<R>, status: &Status, after: &mut AfterUnlock<R>) {
        if state.ended.is_some() {
            return;
        }
        state.ended = Some(status.clone());
        self.has_ended.store(true, Ordering::Release);
        (after.receiver, after.reader) = state.turn.end();
        after.ended = state.slots.end(status);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Returns whether the server has answered a call.
    pub(super) fn has_served(&self) -> bool {
        self.lock().has_served
    }
}

impl<R> State<R> {
    /// Takes the receiver back from a call.
    fn put(&mut self, receiver: Box<R>, after: &mut AfterUnlock<R>) {
        if self.ended.is_some() {
            after.receiver = Some(receiver);
        } else {
            after.reader = self.turn.put(receiver);
        }
    }
}

/// What is woken and dropped after the calls are unlocked.
struct AfterUnlock<R> {
    /// The waker of the reader task, which is woken.
    reader: Option<Waker>,
    /// What calls are woken, and what they have left.
    released: Released,
    /// The same of all calls, at the end of the session.
    ended: Vec<Released>,
    /// A waker that is dropped.
    unused: Option<Waker>,
    /// The receiver, after the end of the session.
    receiver: Option<Box<R>>,
}

impl<R> Default for AfterUnlock<R> {
    fn default() -> Self {
        Self {
            reader: None,
            released: Released::default(),
            ended: Vec::new(),
            unused: None,
            receiver: None,
        }
    }
}

impl<R> AfterUnlock<R> {
    /// Wakes the reader first: a waker of a call may panic.
    fn finish(self) {
        let calls = self.ended.into_iter().chain([self.released]);
        let calls = calls.filter_map(|call| call.waker);
        self.reader.into_iter().chain(calls).for_each(Waker::wake);
    }
}

impl<'a, R> TakenReceiver<'a, R> {
    fn new(calls: &'a Calls<R>, receiver: Box<R>) -> Self {
        Self {
            calls,
            receiver: Some(receiver),
        }
    }
}

impl<R> Deref for TakenReceiver<'_, R> {
    type Target = R;

    fn deref(&self) -> &R {
        self.receiver.as_ref().expect("it was not put back")
    }
}

impl<R> DerefMut for TakenReceiver<'_, R> {
    fn deref_mut(&mut self) -> &mut R {
        self.receiver.as_mut().expect("it was not put back")
    }
}

impl<R> Drop for TakenReceiver<'_, R> {
    fn drop(&mut self) {
        if self.receiver.is_some() {
            let message = "the task that received answers has panicked";
            self.calls.end(&Status::new(Code::Unavailable, message));
        }
    }
}

impl<R> fmt::Debug for TakenReceiver<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TakenReceiver")
    }
}

#[cfg(test)]
mod tests;
