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
        let (mut idle, mut reader) = (None, None);
        if is_waiting {
            reader = state.turn.hand_to_reader();
        } else {
            let now = Instant::now();
            let idle_since = state.last_idle.replace(now);
            if idle_since.is_none_or(|since| now.duration_since(since) >= IDLE_CHECK) {
                idle = state.turn.take_idle();
            }
        }
        drop(guard);
        reader.into_iter().for_each(Waker::wake);
        Ok(OpenedCall {
            id,
            is_waiting,
            idle: idle.map(|receiver| TakenReceiver::new(self, receiver)),
        })
    }

    /// Puts the receiver of a session that was idle back.
    pub(super) fn put_idle(&self, mut taken: TakenReceiver<'_, R>) {
        if let Some(receiver) = taken.receiver.take() {
            let put = self.lock().put(receiver);
            put.finish();
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
        let replaced = state.slots.store_waker(id, cx);
        let reader = state.turn.hand_to_reader();
        drop(guard);
        drop(replaced);
        reader.into_iter().for_each(Waker::wake);
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
        let delivered = self.deliver(state, received);
        let put = state.put(receiver);
        let answer = state.slots.take_answer(id);
        let replaced = match answer {
            Some(_) => {
                state.turn.end_call(id);
                None
            }
            None => state.slots.store_waker(id, cx),
        };
        drop(guard);
        drop(replaced);
        delivered.finish();
        put.finish();
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
        let replaced = state.turn.store_reader(cx);
        let receiver = (state.turn).take_for_reader(state.slots.unanswered() > 0);
        drop(guard);
        drop(replaced);
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
        let delivered = self.deliver(state, received);
        let (mut turn, mut unused) = (ReaderTurn::End, None);
        if state.ended.is_some() {
            unused = Some(receiver);
        } else {
            let is_needed = state.slots.unanswered() > 0;
            let kept = state.turn.put_by_reader(receiver, is_needed);
            turn = kept.map_or(ReaderTurn::Wait, ReaderTurn::Receive);
        }
        drop(guard);
        drop(unused);
        delivered.finish();
        turn
    }

    /// Stores an answer in the slot of its call, or ends the session.
    fn deliver(&self, state: &mut State<R>, received: Received) -> Delivered<R> {
        match received {
            Received::Answer(id, answer) => {
                state.has_served = true;
                let mut released = state.slots.deliver(id, answer);
                // A call that receives takes the answer in the same poll.
                let own = released.waker.take_if(|_| state.turn.is_call(id));
                Delivered::Answer { released, own }
            }
            Received::End(reason) => Delivered::End(self.end_locked(state, &server_left(&reason))),
            Received::Nothing | Received::Other => Delivered::Nothing,
        }
    }

    /// Ends a call without its answer, which is discarded when it comes. Returns whether the server
    /// may still work on the request.
    pub(super) fn abandon(&self, id: u64) -> bool {
        let mut guard = self.lock();
        let state = &mut *guard;
        let (is_in_flight, released) = state.slots.abandon(id);
        let reader = if is_in_flight {
            state.turn.hand_to_reader()
        } else {
            state.turn.end_call(id);
            None
        };
        drop(guard);
        drop(released);
        reader.into_iter().for_each(Waker::wake);
        is_in_flight
    }

    /// Returns whether the call was dropped and its answer has not come.
    pub(super) fn is_abandoned(&self, id: u64) -> bool {
        self.lock().slots.is_abandoned(id)
    }

    /// Ends the session: calls that wait get this status, and later ones no slot.
    pub(super) fn end(&self, status: &Status) {
        let mut guard = self.lock();
        let ended = self.end_locked(&mut guard, status);
        drop(guard);
        ended.finish();
    }

    fn end_locked(&self, state: &mut State<R>, status: &Status) -> EndedSession<R> {
        if state.ended.is_some() {
            return EndedSession::default();
        }
        state.ended = Some(status.clone());
        self.has_ended.store(true, Ordering::Release);
        let (receiver, reader) = state.turn.end();
        EndedSession {
            calls: state.slots.end(status),
            receiver,
            reader,
        }
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
    fn put(&mut self, receiver: Box<R>) -> PutReceiver<R> {
        if self.ended.is_some() {
            return PutReceiver::Ended(receiver);
        }
        PutReceiver::Stored {
            reader: self.turn.put(receiver),
        }
    }
}

/// What is woken or dropped after the receiver was put back, without the lock.
enum PutReceiver<R> {
    Stored {
        /// The waker of the reader task, if it receives next.
        reader: Option<Waker>,
    },
    /// The session has ended.
    Ended(Box<R>),
}

impl<R> PutReceiver<R> {
    fn finish(self) {
        match self {
            Self::Stored { reader } => reader.into_iter().for_each(Waker::wake),
            Self::Ended(receiver) => drop(receiver),
        }
    }
}

/// What is woken or dropped after a delivery, without the lock.
enum Delivered<R> {
    Nothing,
    Answer {
        released: Released,
        /// The waker of the call that has received its own answer.
        own: Option<Waker>,
    },
    End(EndedSession<R>),
}

impl<R> Delivered<R> {
    fn finish(self) {
        match self {
            Self::Nothing => {}
            Self::Answer { released, own } => {
                drop(own);
                released.waker.into_iter().for_each(Waker::wake);
            }
            Self::End(ended) => ended.finish(),
        }
    }
}

/// What is woken or dropped at the end of a session, without the lock.
struct EndedSession<R> {
    calls: Vec<Released>,
    receiver: Option<Box<R>>,
    reader: Option<Waker>,
}

impl<R> Default for EndedSession<R> {
    fn default() -> Self {
        Self {
            calls: Vec::new(),
            receiver: None,
            reader: None,
        }
    }
}

impl<R> EndedSession<R> {
    fn finish(self) {
        drop(self.receiver);
        let calls = self.calls.into_iter().filter_map(|call| call.waker);
        calls.chain(self.reader).for_each(Waker::wake);
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
