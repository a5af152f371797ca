//! The slots of the calls under way: where answers go, and who receives them.
//!
//! A call takes a slot before its request is sent, and the slot keeps the call's credit until the
//! answer has come or the session has ended. When the future of the call is dropped, its slot stays
//! and the answer is discarded when it comes. So the number of slots is the number of credits, and
//! a late answer waits nowhere.
//!
//! The task that receives answers has the [`AnswerReceiver`] while it polls it. A lone call
//! receives itself, which saves the switch to another task, and gives the receiver back after each
//! poll. With several slots in use the session's reader task receives, and keeps the receiver until
//! all slots have their answers.
//!
//! Invariant: if a call that was polled waits, the task that receives (its own, or the reader task)
//! is registered with the receiver or has been woken.
//!
//! Wakers are woken and dropped without the lock: the drop of a task may end other calls.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use tokio::sync::OwnedSemaphorePermit;

use super::super::Status;
use super::super::wire::ID_BITS;
use super::receive::{Answer, AnswerReceiver};

/// Ids of calls: the lower bits are the index of the slot, the others count its uses.
const INDEX_BITS: u32 = 20;
/// The most credits of a client.
pub(crate) const MAX_SLOTS: usize = 1 << INDEX_BITS;
/// A session that was idle for less is not checked before a call.
const IDLE_CHECK: Duration = Duration::from_millis(1);

/// The slots of a session. Tests have other receivers (`R`).
#[derive(Debug)]
pub(super) struct SlotTable<R = AnswerReceiver> {
    slots: Mutex<Slots<R>>,
    /// Whether `slots.ended` is set.
    has_ended: AtomicBool,
}

#[derive(Debug)]
struct Slots<R> {
    entries: Vec<Slot>,
    free: Vec<u32>,
    /// Slots that wait for an answer, abandoned ones included.
    unanswered: usize,
    role: ReceiverRole,
    /// `None` while a task has it.
    receiver: Option<Box<R>>,
    /// When a call last found the session without other calls; `None` before the first call.
    last_idle: Option<Instant>,
    /// Whether the server has answered a call.
    has_served: bool,
    /// Waker of the reader task; `None` before its first poll.
    reader: Option<Waker>,
    /// Why the session has ended.
    ended: Option<Status>,
}

/// The task that polls the receiver next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReceiverRole {
    None,
    /// The task of the call with this id.
    Call(u64),
    Reader,
}

#[derive(Debug)]
struct Slot {
    /// The id of the call that has, or will have, the slot.
    id: u64,
    state: SlotState,
    credit: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
enum SlotState {
    Free,
    /// The waker of the call; `None` if the call is being polled, or receives itself.
    Waiting(Option<Waker>),
    Answered(Result<Answer, Status>),
    /// The call was dropped; the answer has not come yet.
    Abandoned,
}

/// A slot that a call has taken.
#[derive(Debug)]
pub(super) struct OpenedSlot<R> {
    pub(super) id: u64,
    /// Whether the call waits for a wake-up already: other slots wait for answers too.
    pub(super) is_waiting: bool,
    /// The receiver of a session that was idle: its events must be read before the call, and the
    /// receiver [given back](SlotTable::give_back).
    pub(super) idle: Option<Box<R>>,
}

/// What a call that waits does next.
#[derive(Debug)]
pub(super) enum CallTurn<R> {
    Answered(Result<Answer, Status>),
    /// Poll the receiver and give it back.
    Receive(Box<R>),
    /// Wait for the wake-up.
    Wait,
}

/// What the reader task does next.
#[derive(Debug)]
pub(super) enum ReaderTurn<R> {
    /// Poll the receiver.
    Receive(Box<R>),
    Wait,
    End,
}

impl<R> Default for SlotTable<R> {
    fn default() -> Self {
        Self {
            slots: Mutex::new(Slots {
                entries: Vec::new(),
                free: Vec::new(),
                unanswered: 0,
                role: ReceiverRole::None,
                receiver: None,
                last_idle: None,
                has_served: false,
                reader: None,
                ended: None,
            }),
            has_ended: AtomicBool::new(false),
        }
    }
}

impl<R> SlotTable<R> {
    fn lock(&self) -> MutexGuard<'_, Slots<R>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot for a call.
    ///
    /// # Errors
    /// The credit, if the session has ended.
    pub(super) fn open(
        &self,
        credit: OwnedSemaphorePermit,
        cx: &mut Context<'_>,
    ) -> Result<OpenedSlot<R>, OwnedSemaphorePermit> {
        let mut guard = self.lock();
        let slots = &mut *guard;
        if slots.ended.is_some() {
            return Err(credit);
        }
        slots.unanswered += 1;
        let index = slots.free.pop();
        let index = index.map_or(slots.entries.len(), |index| index as usize);
        if index == slots.entries.len() {
            slots.entries.push(Slot {
                id: index as u64,
                state: SlotState::Free,
                credit: None,
            });
        }
        let is_waiting = slots.unanswered > 1;
        let slot = &mut slots.entries[index];
        slot.state = SlotState::Waiting(is_waiting.then(|| cx.waker().clone()));
        slot.credit = Some(credit);
        let id = slot.id;
        let (mut idle, mut reader) = (None, None);
        if is_waiting {
            reader = slots.hand_to_reader();
        } else {
            let now = Instant::now();
            let idle_since = slots.last_idle.replace(now);
            if idle_since.is_none_or(|since| now.duration_since(since) >= IDLE_CHECK) {
                idle = slots.receiver.take();
            }
        }
        drop(guard);
        reader.into_iter().for_each(Waker::wake);
        Ok(OpenedSlot {
            id,
            is_waiting,
            idle,
        })
    }

    /// Frees the slot of a call whose request was not sent, and returns the credit.
    pub(super) fn close_unsent(&self, id: u64) -> Option<OwnedSemaphorePermit> {
        let mut slots = self.lock();
        let state = std::mem::replace(&mut slots.get_mut(id)?.state, SlotState::Free);
        if let SlotState::Waiting(_) = state {
            slots.unanswered -= 1;
        }
        let credit = slots.free(id);
        drop(slots);
        drop(state);
        credit
    }

    /// Polls the slot of a call.
    pub(super) fn poll_call(&self, id: u64, cx: &mut Context<'_>) -> CallTurn<R> {
        let mut guard = self.lock();
        let slots = &mut *guard;
        if let Some((answer, credit)) = slots.take_answer(id) {
            drop(guard);
            drop(credit);
            return CallTurn::Answered(answer);
        }
        let receives = match slots.role {
            ReceiverRole::None => slots.unanswered == 1,
            ReceiverRole::Call(call) => call == id,
            ReceiverRole::Reader => false,
        };
        if receives && let Some(receiver) = slots.receiver.take() {
            slots.role = ReceiverRole::Call(id);
            return CallTurn::Receive(receiver);
        }
        let replaced = slots.store_waker(id, cx);
        let reader = slots.hand_to_reader();
        drop(guard);
        drop(replaced);
        reader.into_iter().for_each(Waker::wake);
        CallTurn::Wait
    }

    /// Gives the receiver back, which the call with this id has polled. Returns the answer of the
    /// call if it has come; otherwise the call waits for a wake-up.
    pub(super) fn give_back(
        &self,
        id: u64,
        receiver: Box<R>,
        cx: &mut Context<'_>,
    ) -> Option<Result<Answer, Status>> {
        let mut guard = self.lock();
        let slots = &mut *guard;
        let reader = slots.put_receiver(receiver);
        let taken = slots.take_answer(id);
        let replaced = match taken {
            None => slots.store_waker(id, cx),
            Some(_) => None,
        };
        drop(guard);
        drop(replaced);
        reader.into_iter().for_each(Waker::wake);
        let (answer, credit) = taken?;
        drop(credit);
        Some(answer)
    }

    /// Gives the receiver of a session that was idle back.
    pub(super) fn give_back_idle(&self, receiver: Box<R>) {
        let mut slots = self.lock();
        let reader = slots.put_receiver(receiver);
        drop(slots);
        reader.into_iter().for_each(Waker::wake);
    }

    /// Ends a call without its answer, which is discarded when it comes. Returns whether the server
    /// may still work on the request.
    pub(super) fn abandon(&self, id: u64) -> bool {
        let mut slots = self.lock();
        let Some(slot) = slots.get_mut(id) else {
            return false;
        };
        if let SlotState::Waiting(waker) = &mut slot.state {
            let waker = waker.take();
            slot.state = SlotState::Abandoned;
            let reader = slots.hand_to_reader();
            drop(slots);
            drop(waker);
            reader.into_iter().for_each(Waker::wake);
            return true;
        }
        let answered = slots.take_answer(id);
        drop(slots);
        drop(answered);
        false
    }

    /// Stores an answer in the slot of its call, and wakes the call; discards the answer if there
    /// is no such call. Returns how many slots wait for answers.
    pub(super) fn deliver(&self, id: u64, answer: Result<Answer, Status>) -> usize {
        let mut guard = self.lock();
        let slots = &mut *guard;
        let is_receiver = slots.role == ReceiverRole::Call(id);
        let Some(slot) = slots.get_mut(id) else {
            return slots.unanswered;
        };
        let (mut waker, mut credit) = (None, None);
        match &mut slot.state {
            SlotState::Waiting(waiting) => {
                waker = waiting.take();
                slot.state = SlotState::Answered(answer);
                slots.unanswered -= 1;
            }
            SlotState::Abandoned => {
                slots.unanswered -= 1;
                credit = slots.free(id);
            }
            SlotState::Answered(_) | SlotState::Free => {}
        }
        slots.has_served = true;
        let unanswered = slots.unanswered;
        drop(guard);
        drop(credit);
        // A call that receives takes the answer in the same poll.
        if let Some(waker) = waker.filter(|_| !is_receiver) {
            waker.wake();
        }
        unanswered
    }

    /// Ends the session: calls that wait get this status, and later ones no slot.
    pub(super) fn end(&self, status: &Status) {
        let mut guard = self.lock();
        let slots = &mut *guard;
        if slots.ended.is_some() {
            return;
        }
        slots.ended = Some(status.clone());
        self.has_ended.store(true, Ordering::Release);
        slots.unanswered = 0;
        let mut wakers = vec![slots.reader.take()];
        let mut credits = Vec::new();
        for index in 0..slots.entries.len() {
            let slot = &mut slots.entries[index];
            match &mut slot.state {
                SlotState::Waiting(waker) => {
                    wakers.push(waker.take());
                    slot.state = SlotState::Answered(Err(status.clone()));
                }
                SlotState::Abandoned => {
                    let id = slot.id;
                    credits.push(slots.free(id));
                }
                SlotState::Answered(_) | SlotState::Free => {}
            }
        }
        drop(guard);
        drop(credits);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Returns whether the server has answered a call.
    pub(super) fn has_served(&self) -> bool {
        self.lock().has_served
    }

    /// Returns how many slots wait for answers.
    pub(super) fn unanswered(&self) -> usize {
        self.lock().unanswered
    }

    /// Stores the receiver of a new session.
    pub(super) fn set_receiver(&self, receiver: Box<R>) {
        self.lock().receiver = Some(receiver);
    }

    /// Takes the receiver, which refers to this table, out of the table of a session that is
    /// dropped.
    pub(super) fn take_receiver(&self) -> Option<Box<R>> {
        self.lock().receiver.take()
    }

    /// Polls what the reader task, which has no receiver, does next.
    pub(super) fn poll_reader(&self, cx: &mut Context<'_>) -> ReaderTurn<R> {
        let mut slots = self.lock();
        if slots.ended.is_some() {
            return ReaderTurn::End;
        }
        let replaced = store(&mut slots.reader, cx);
        let mut turn = ReaderTurn::Wait;
        if slots.role == ReceiverRole::Reader
            && let Some(receiver) = slots.receiver.take()
        {
            if slots.unanswered > 0 {
                turn = ReaderTurn::Receive(receiver);
            } else {
                slots.receiver = Some(receiver);
                slots.role = ReceiverRole::None;
            }
        }
        drop(slots);
        drop(replaced);
        turn
    }

    /// Gives the receiver of the reader task back, or returns it while slots wait for answers.
    pub(super) fn give_back_unless_needed(&self, receiver: Box<R>) -> Option<Box<R>> {
        let mut slots = self.lock();
        if slots.unanswered > 0 {
            return Some(receiver);
        }
        slots.receiver = Some(receiver);
        slots.role = ReceiverRole::None;
        None
    }
}

impl<R> Slots<R> {
    fn get_mut(&mut self, id: u64) -> Option<&mut Slot> {
        let slot = self.entries.get_mut(index_of(id))?;
        (slot.id == id && !matches!(slot.state, SlotState::Free)).then_some(slot)
    }

    /// Takes the receiver back from a call. If the reader task is the next one, it has found no
    /// receiver meanwhile: returns its waker, to be woken after unlocking.
    fn put_receiver(&mut self, receiver: Box<R>) -> Option<Waker> {
        self.receiver = Some(receiver);
        (self.role == ReceiverRole::Reader).then(|| self.reader.clone())?
    }

    /// Stores the waker of a call that waits. Returns the waker that it replaces.
    fn store_waker(&mut self, id: u64, cx: &mut Context<'_>) -> Option<Waker> {
        match &mut self.get_mut(id)?.state {
            SlotState::Waiting(waker) => store(waker, cx),
            _ => None,
        }
    }

    /// Takes the answer of a call and frees its slot. Returns the answer and the credit.
    #[allow(clippy::type_complexity)]
    fn take_answer(
        &mut self,
        id: u64,
    ) -> Option<(Result<Answer, Status>, Option<OwnedSemaphorePermit>)> {
        let slot = self.get_mut(id)?;
        if !matches!(slot.state, SlotState::Answered(_)) {
            return None;
        }
        let state = std::mem::replace(&mut slot.state, SlotState::Free);
        let SlotState::Answered(answer) = state else {
            unreachable!("checked above")
        };
        let credit = self.free(id);
        if self.role == ReceiverRole::Call(id) {
            // No other polled call waits: its poll would have made the reader the receiver.
            self.role = ReceiverRole::None;
        }
        Some((answer, credit))
    }

    /// Frees a slot for the next call, and returns the credit of the last one.
    fn free(&mut self, id: u64) -> Option<OwnedSemaphorePermit> {
        let index = index_of(id);
        let slot = &mut self.entries[index];
        slot.state = SlotState::Free;
        slot.id = (id + (1 << INDEX_BITS)) & ((1 << ID_BITS) - 1);
        self.free.push(index as u32);
        slot.credit.take()
    }

    /// Makes the reader task the receiver. Returns its waker, to be woken after unlocking.
    fn hand_to_reader(&mut self) -> Option<Waker> {
        if self.role == ReceiverRole::Reader {
            return None;
        }
        self.role = ReceiverRole::Reader;
        self.reader.clone()
    }
}

/// Stores the waker of the task that is polled. Returns the waker that it replaces.
fn store(waker: &mut Option<Waker>, cx: &mut Context<'_>) -> Option<Waker> {
    match waker {
        Some(stored) if stored.will_wake(cx.waker()) => None,
        _ => waker.replace(cx.waker().clone()),
    }
}

fn index_of(id: u64) -> usize {
    (id & ((1 << INDEX_BITS) - 1)) as usize
}

#[cfg(test)]
mod tests;
