//! The slots of the calls in flight: where answers go.
//!
//! A call takes a slot before its request is sent, and the slot keeps the call's credit until the
//! answer has come or the session has ended. When the future of the call is dropped, its slot stays
//! and the answer is discarded when it comes. So the number of slots is the number of credits, and
//! a late answer waits nowhere.
//!
//! Nothing here wakes or drops a waker: the drop of a task may end other calls, which lock the
//! slots.

use std::task::{Context, Waker};

use tokio::sync::OwnedSemaphorePermit;

use super::super::Status;
use super::super::wire::ID_BITS;
use super::receive::Answer;

/// Ids of calls: the lower bits are the index of the slot, the others count its uses.
const INDEX_BITS: u32 = 20;
/// The most credits of a client.
pub(crate) const MAX_SLOTS: usize = 1 << INDEX_BITS;

/// The slots of a session.
#[derive(Debug, Default)]
pub(super) struct Slots {
    entries: Vec<Slot>,
    free: Vec<u32>,
    /// Slots that wait for an answer, abandoned ones included.
    unanswered: usize,
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

/// What is woken or dropped after the slots are unlocked.
#[derive(Debug, Default)]
pub(super) struct Released {
    pub(super) waker: Option<Waker>,
    pub(super) credit: Option<OwnedSemaphorePermit>,
    /// An answer that is discarded.
    pub(super) answer: Option<Result<Answer, Status>>,
}

/// The answer of a call, and the call's credit.
pub(super) type TakenAnswer = (Result<Answer, Status>, Option<OwnedSemaphorePermit>);

impl Slots {
    /// Returns how many slots wait for answers.
    pub(super) fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// Takes a slot for a call. Returns the id of the call.
    pub(super) fn insert(&mut self, credit: OwnedSemaphorePermit, waker: Option<Waker>) -> u64 {
        self.unanswered += 1;
        let index = self.free.pop();
        let index = index.map_or(self.entries.len(), |index| index as usize);
        if index == self.entries.len() {
            self.entries.push(Slot {
                id: index as u64,
                state: SlotState::Free,
                credit: None,
            });
        }
        let slot = &mut self.entries[index];
        slot.state = SlotState::Waiting(waker);
        slot.credit = Some(credit);
        slot.id
    }

    /// Frees the slot of a call whose request was not sent.
    pub(super) fn remove_unsent(&mut self, id: u64) -> Released {
        let Some(slot) = self.get_mut(id) else {
            return Released::default();
        };
        let state = std::mem::replace(&mut slot.state, SlotState::Free);
        let waker = match state {
            SlotState::Waiting(waker) => {
                self.unanswered -= 1;
                waker
            }
            _ => None,
        };
        Released {
            waker,
            credit: self.free(id),
            answer: None,
        }
    }

    /// Stores the waker of a call that waits. Returns the waker that it replaces.
    pub(super) fn store_waker(&mut self, id: u64, cx: &mut Context<'_>) -> Option<Waker> {
        match &mut self.get_mut(id)?.state {
            SlotState::Waiting(waker) => store(waker, cx),
            _ => None,
        }
    }

    /// Takes the answer of a call and frees its slot.
    pub(super) fn take_answer(&mut self, id: u64) -> Option<TakenAnswer> {
        let slot = self.get_mut(id)?;
        if !matches!(slot.state, SlotState::Answered(_)) {
            return None;
        }
        let state = std::mem::replace(&mut slot.state, SlotState::Free);
        let SlotState::Answered(answer) = state else {
            unreachable!("checked above")
        };
        Some((answer, self.free(id)))
    }

    /// Stores an answer in the slot of its call. Returns it if there is no such call, or the call
    /// was dropped.
    pub(super) fn deliver(&mut self, id: u64, answer: Result<Answer, Status>) -> Released {
        let mut released = Released::default();
        let Some(slot) = self.get_mut(id) else {
            released.answer = Some(answer);
            return released;
        };
        match &mut slot.state {
            SlotState::Waiting(waker) => {
                released.waker = waker.take();
                slot.state = SlotState::Answered(answer);
                self.unanswered -= 1;
            }
            SlotState::Abandoned => {
                self.unanswered -= 1;
                released.credit = self.free(id);
                released.answer = Some(answer);
            }
            SlotState::Answered(_) | SlotState::Free => released.answer = Some(answer),
        }
        released
    }

    /// Ends a call without its answer, which is discarded when it comes. Returns whether the server
    /// may still work on the request.
    pub(super) fn abandon(&mut self, id: u64) -> (bool, Released) {
        let mut released = Released::default();
        if let Some(slot) = self.get_mut(id)
            && let SlotState::Waiting(waker) = &mut slot.state
        {
            released.waker = waker.take();
            slot.state = SlotState::Abandoned;
            return (true, released);
        }
        if let Some((answer, credit)) = self.take_answer(id) {
            (released.answer, released.credit) = (Some(answer), credit);
        }
        (false, released)
    }

    /// Returns whether the call was dropped and its answer has not come.
    pub(super) fn is_abandoned(&mut self, id: u64) -> bool {
        let slot = self.get_mut(id);
        slot.is_some_and(|slot| matches!(slot.state, SlotState::Abandoned))
    }

    /// Gives all calls that wait the status of the end of the session.
    pub(super) fn end(&mut self, status: &Status) -> Vec<Released> {
        self.unanswered = 0;
        let mut all = Vec::new();
        for index in 0..self.entries.len() {
            let slot = &mut self.entries[index];
            let mut released = Released::default();
            match &mut slot.state {
                SlotState::Waiting(waker) => {
                    released.waker = waker.take();
                    slot.state = SlotState::Answered(Err(status.clone()));
                }
                SlotState::Abandoned => {
                    let id = slot.id;
                    released.credit = self.free(id);
                }
                SlotState::Answered(_) | SlotState::Free => continue,
            }
            all.push(released);
        }
        all
    }

    fn get_mut(&mut self, id: u64) -> Option<&mut Slot> {
        let slot = self.entries.get_mut(index_of(id))?;
        (slot.id == id && !matches!(slot.state, SlotState::Free)).then_some(slot)
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
}

/// Stores the waker of the task that is polled. Returns the waker that it replaces.
pub(super) fn store(waker: &mut Option<Waker>, cx: &mut Context<'_>) -> Option<Waker> {
    match waker {
        Some(stored) if stored.will_wake(cx.waker()) => None,
        _ => waker.replace(cx.waker().clone()),
    }
}

fn index_of(id: u64) -> usize {
    (id & ((1 << INDEX_BITS) - 1)) as usize
}
