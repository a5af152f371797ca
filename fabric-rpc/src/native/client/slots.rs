//! The slots of the calls under way: where answers go, and who receives them.
//!
//! A call takes a slot before its request is sent, and the slot keeps the call's credit until the
//! answer has come or the session has ended. When the future of the call is dropped, its slot stays
//! and the answer is discarded when it comes. So the number of slots is the number of credits, and
//! a late answer waits nowhere.
//!
//! One task at a time polls the receive of answers: the *receiver*. A lone call does it itself,
//! which saves the switch to another task. With several slots in use it is the session's reader
//! task.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use tokio::sync::OwnedSemaphorePermit;

use super::super::Status;
use super::super::wire::ID_BITS;
use super::session::Answer;

/// Ids of calls: the lower bits are the index of the slot, the others count its uses.
const INDEX_BITS: u32 = 20;
/// The most credits of a client.
pub(crate) const MAX_SLOTS: usize = 1 << INDEX_BITS;

/// The slots of a session.
#[derive(Debug, Default)]
pub(super) struct SlotTable {
    slots: Mutex<Slots>,
    /// Whether `slots.ended` is set.
    has_ended: AtomicBool,
}

#[derive(Debug, Default)]
struct Slots {
    entries: Vec<Slot>,
    free: Vec<u32>,
    /// Slots that wait for an answer, abandoned ones included.
    unanswered: usize,
    receiver: Receiver,
    /// Whether the server has answered a call.
    has_served: bool,
    /// Of the reader task, once it has been polled.
    reader: Option<Waker>,
    /// Why the session has ended.
    ended: Option<Status>,
}

/// The task that polls the receive of answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Receiver {
    #[default]
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
    Waiting(Option<Waker>),
    Answered(Result<Answer, Status>),
    /// The call was dropped; the answer has not come yet.
    Abandoned,
}

/// What a call that waits does next.
#[derive(Debug)]
pub(super) enum CallTurn {
    Answered(Result<Answer, Status>),
    /// Poll the receive of answers.
    Receive,
    /// Wait for the wake-up.
    Wait,
}

/// What the reader task does next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReaderTurn {
    Receive,
    Wait,
    End,
}

impl SlotTable {
    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot for a call, and returns its id, and whether no other slot waits for an answer.
    ///
    /// # Errors
    /// The credit, if the session has ended.
    pub(super) fn open(
        &self,
        credit: OwnedSemaphorePermit,
    ) -> Result<(u64, bool), OwnedSemaphorePermit> {
        let mut slots = self.lock();
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
        let slot = &mut slots.entries[index];
        slot.state = SlotState::Waiting(None);
        slot.credit = Some(credit);
        let id = slot.id;
        Ok((id, slots.unanswered == 1))
    }

    /// Frees the slot of a call whose request was not sent, and returns the credit.
    pub(super) fn close_unsent(&self, id: u64) -> Option<OwnedSemaphorePermit> {
        let mut slots = self.lock();
        if let SlotState::Waiting(_) = slots.get_mut(id)?.state {
            slots.unanswered -= 1;
        }
        slots.free(id)
    }

    /// Polls the slot of a call.
    pub(super) fn poll_call(&self, id: u64, cx: &mut Context<'_>) -> CallTurn {
        let mut guard = self.lock();
        let slots = &mut *guard;
        if let Some((answer, credit)) = slots.take_answer(id) {
            drop(guard);
            drop(credit);
            return CallTurn::Answered(answer);
        }
        let Some(Slot {
            state: SlotState::Waiting(waker),
            ..
        }) = slots.get_mut(id)
        else {
            return CallTurn::Wait;
        };
        if !(waker.as_ref()).is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        match slots.receiver {
            Receiver::None if slots.unanswered == 1 => slots.receiver = Receiver::Call(id),
            Receiver::Call(receiver) if receiver == id => {}
            Receiver::Reader => return CallTurn::Wait,
            Receiver::None | Receiver::Call(_) => {
                let reader = slots.hand_to_reader();
                drop(guard);
                if let Some(waker) = reader {
                    waker.wake();
                }
                return CallTurn::Wait;
            }
        }
        CallTurn::Receive
    }

    /// Takes the answer of a call that has polled the receive, if the answer has come.
    ///
    /// The reader task may have become the receiver after [`poll_call`](Self::poll_call), and have
    /// polled the receive before the call did, whose waker has replaced that of the reader. So the
    /// reader is woken to poll again.
    pub(super) fn take_after_receive(&self, id: u64) -> Option<Result<Answer, Status>> {
        let mut slots = self.lock();
        let is_replaced = slots.receiver == Receiver::Reader;
        let reader = slots.reader.clone().filter(|_| is_replaced);
        let taken = slots.take_answer(id);
        drop(slots);
        if let Some(waker) = reader {
            waker.wake();
        }
        let (answer, credit) = taken?;
        drop(credit);
        Some(answer)
    }

    /// Ends a call without its answer, which is discarded when it comes. Returns whether the server
    /// may still work on the request.
    pub(super) fn abandon(&self, id: u64) -> bool {
        let mut slots = self.lock();
        let Some(slot) = slots.get_mut(id) else {
            return false;
        };
        if let SlotState::Waiting(_) = slot.state {
            slot.state = SlotState::Abandoned;
            let reader = slots.hand_to_reader();
            drop(slots);
            if let Some(waker) = reader {
                waker.wake();
            }
            return true;
        }
        let answered = slots.take_answer(id);
        drop(slots);
        drop(answered);
        false
    }

    /// Stores an answer in the slot of its call, and wakes the call; discards the answer if there
    /// is no such call.
    pub(super) fn deliver(&self, id: u64, answer: Result<Answer, Status>) {
        let mut slots = self.lock();
        let is_receiver = slots.receiver == Receiver::Call(id);
        slots.has_served = true;
        let Some(slot) = slots.get_mut(id) else {
            return;
        };
        match &mut slot.state {
            SlotState::Waiting(waker) => {
                let waker = waker.take();
                slot.state = SlotState::Answered(answer);
                slots.unanswered -= 1;
                drop(slots);
                // The receiver takes the answer in the same poll.
                if let Some(waker) = waker.filter(|_| !is_receiver) {
                    waker.wake();
                }
            }
            SlotState::Abandoned => {
                slots.unanswered -= 1;
                let credit = slots.free(id);
                drop(slots);
                drop(credit);
            }
            SlotState::Answered(_) | SlotState::Free => {}
        }
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

    /// Polls what the reader task does next.
    pub(super) fn poll_reader(&self, cx: &mut Context<'_>) -> ReaderTurn {
        let mut slots = self.lock();
        if slots.ended.is_some() {
            return ReaderTurn::End;
        }
        if !(slots.reader.as_ref()).is_some_and(|waker| waker.will_wake(cx.waker())) {
            slots.reader = Some(cx.waker().clone());
        }
        if slots.receiver == Receiver::Reader {
            if slots.unanswered > 0 {
                return ReaderTurn::Receive;
            }
            slots.receiver = Receiver::None;
        }
        ReaderTurn::Wait
    }
}

impl Slots {
    fn get_mut(&mut self, id: u64) -> Option<&mut Slot> {
        let slot = self.entries.get_mut(index_of(id))?;
        (slot.id == id && !matches!(slot.state, SlotState::Free)).then_some(slot)
    }

    /// Takes the answer of a call and frees its slot. If the call was the receiver, and other slots
    /// wait, it wakes the reader.
    #[allow(clippy::type_complexity)]
    fn take_answer(
        &mut self,
        id: u64,
    ) -> Option<(
        Result<Answer, Status>,
        (Option<OwnedSemaphorePermit>, WakeOnDrop),
    )> {
        let slot = self.get_mut(id)?;
        if !matches!(slot.state, SlotState::Answered(_)) {
            return None;
        }
        let state = std::mem::replace(&mut slot.state, SlotState::Free);
        let SlotState::Answered(answer) = state else {
            unreachable!("checked above")
        };
        let credit = self.free(id);
        let mut reader = None;
        if self.receiver == Receiver::Call(id) {
            self.receiver = Receiver::None;
            if self.unanswered > 0 {
                reader = self.hand_to_reader();
            }
        }
        Some((answer, (credit, WakeOnDrop(reader))))
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
        if self.receiver == Receiver::Reader {
            return None;
        }
        self.receiver = Receiver::Reader;
        self.reader.clone()
    }
}

/// Wakes the reader task when it is dropped, after unlocking.
#[derive(Debug)]
struct WakeOnDrop(Option<Waker>);

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        if let Some(waker) = self.0.take() {
            waker.wake();
        }
    }
}

fn index_of(id: u64) -> usize {
    (id & ((1 << INDEX_BITS) - 1)) as usize
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use tokio::sync::Semaphore;

    use super::*;

    #[derive(Default)]
    struct CountWakes(AtomicUsize);

    impl Wake for CountWakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl CountWakes {
        fn take(&self) -> usize {
            self.0.swap(0, Ordering::Relaxed)
        }
    }

    /// A call whose turn is to receive may poll the receive after the reader task has done so, and
    /// then its waker is registered. The reader is the receiver, so it must poll again.
    #[test]
    fn reader_is_woken_when_a_call_has_replaced_its_waker() {
        let (slots, credits) = (SlotTable::default(), Arc::new(Semaphore::new(2)));
        let [reader, call] = [(); 2].map(|()| Arc::new(CountWakes::default()));
        let wakers = [&reader, &call].map(|wakes| Waker::from(wakes.clone()));
        let [mut reader_cx, mut call_cx] = [&wakers[0], &wakers[1]].map(Context::from_waker);
        let open = || {
            let credit = credits.clone().try_acquire_owned().unwrap();
            slots.open(credit).unwrap().0
        };

        let first = open();
        assert!(matches!(
            slots.poll_call(first, &mut call_cx),
            CallTurn::Receive
        ));
        let second = open();
        assert!(matches!(
            slots.poll_call(second, &mut call_cx),
            CallTurn::Wait
        ));
        // The first poll of the reader: it polls the receive, then the first call does.
        assert_eq!(slots.poll_reader(&mut reader_cx), ReaderTurn::Receive);
        assert!(slots.take_after_receive(first).is_none());
        assert_eq!(reader.take(), 1);
        assert_eq!(slots.poll_reader(&mut reader_cx), ReaderTurn::Receive);
    }

    /// A call that was the receiver may go on when its answer has come and another call is the
    /// receiver.
    #[test]
    fn former_receiver_has_its_answer() {
        let (slots, credits) = (SlotTable::default(), Arc::new(Semaphore::new(3)));
        let mut cx = Context::from_waker(Waker::noop());
        let open = || {
            let credit = credits.clone().try_acquire_owned().unwrap();
            slots.open(credit).unwrap().0
        };
        let first = open();
        assert!(matches!(slots.poll_call(first, &mut cx), CallTurn::Receive));
        let second = open();
        assert!(matches!(slots.poll_call(second, &mut cx), CallTurn::Wait));
        assert_eq!(slots.poll_reader(&mut cx), ReaderTurn::Receive);
        for id in [first, second] {
            slots.deliver(id, Err(Status::deadline()));
        }
        assert_eq!(slots.poll_reader(&mut cx), ReaderTurn::Wait);
        let third = open();
        assert!(matches!(slots.poll_call(third, &mut cx), CallTurn::Receive));
        for id in [first, second] {
            assert!(matches!(
                slots.poll_call(id, &mut cx),
                CallTurn::Answered(_)
            ));
        }
        assert!(matches!(slots.poll_call(third, &mut cx), CallTurn::Receive));
    }

    #[test]
    fn lone_call_receives_without_the_reader() {
        let (slots, credits) = (SlotTable::default(), Arc::new(Semaphore::new(1)));
        let reader = Arc::new(CountWakes::default());
        let waker = Waker::from(reader.clone());
        let mut cx = Context::from_waker(&waker);
        assert_eq!(slots.poll_reader(&mut cx), ReaderTurn::Wait);
        let mut noop = Context::from_waker(Waker::noop());
        for _ in 0..3 {
            let credit = credits.clone().try_acquire_owned().unwrap();
            let (id, was_idle) = slots.open(credit).unwrap();
            assert!(was_idle);
            assert!(matches!(slots.poll_call(id, &mut noop), CallTurn::Receive));
            assert!(slots.take_after_receive(id).is_none());
            slots.deliver(id, Err(Status::deadline()));
            assert!(slots.take_after_receive(id).is_some());
        }
        assert_eq!(reader.take(), 0);
        assert_eq!(credits.available_permits(), 1);
    }
}
