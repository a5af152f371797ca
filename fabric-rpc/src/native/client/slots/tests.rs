use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::Wake;

use tokio::sync::Semaphore;

use super::*;
use crate::native::Code;

/// A task that was woken, or not.
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

/// The only receiver of a table that nothing is received by.
fn table_with_receiver() -> SlotTable<()> {
    let slots = SlotTable::default();
    slots.set_receiver(Box::new(()));
    slots
}

fn credit(credits: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    credits.clone().try_acquire_owned().unwrap()
}

/// Takes a slot; a session that was idle has no events.
fn open<R>(slots: &SlotTable<R>, credits: &Arc<Semaphore>, cx: &mut Context<'_>) -> (u64, bool) {
    let slot = slots.open(credit(credits), cx).expect("a session");
    if let Some(receiver) = slot.idle {
        slots.give_back_idle(receiver);
    }
    (slot.id, slot.is_waiting)
}

/// Two calls wait while the first one polls the receiver: the reader gets it afterwards.
#[test]
fn reader_is_woken_when_a_call_gives_the_receiver_back() {
    let (slots, credits) = (table_with_receiver(), Arc::new(Semaphore::new(2)));
    let [reader, call] = [(); 2].map(|()| Arc::new(CountWakes::default()));
    let wakers = [&reader, &call].map(|wakes| Waker::from(wakes.clone()));
    let [mut reader_cx, mut call_cx] = [&wakers[0], &wakers[1]].map(Context::from_waker);

    let (first, is_waiting) = open(&slots, &credits, &mut call_cx);
    assert!(!is_waiting);
    let CallTurn::Receive(receiver) = slots.poll_call(first, &mut call_cx) else {
        panic!("a lone call receives")
    };
    let (second, is_waiting) = open(&slots, &credits, &mut call_cx);
    assert!(is_waiting);
    // The first poll of the reader: a call has the receiver.
    assert!(matches!(
        slots.poll_reader(&mut reader_cx),
        ReaderTurn::Wait
    ));
    assert!(slots.give_back(first, receiver, &mut call_cx).is_none());
    assert_eq!(reader.take(), 1);
    let ReaderTurn::Receive(receiver) = slots.poll_reader(&mut reader_cx) else {
        panic!("the reader receives")
    };
    for (id, unanswered) in [(second, 1), (first, 0)] {
        assert_eq!(slots.deliver(id, Err(Status::deadline())), unanswered);
    }
    assert_eq!(call.take(), 2);
    assert!(slots.give_back_unless_needed(receiver).is_none());
    for id in [first, second] {
        let turn = slots.poll_call(id, &mut call_cx);
        assert!(matches!(turn, CallTurn::Answered(_)));
    }
    let (third, _) = open(&slots, &credits, &mut call_cx);
    let turn = slots.poll_call(third, &mut call_cx);
    assert!(matches!(turn, CallTurn::Receive(_)));
}

#[test]
fn lone_call_receives_without_the_reader() {
    let (slots, credits) = (table_with_receiver(), Arc::new(Semaphore::new(1)));
    let reader = Arc::new(CountWakes::default());
    let waker = Waker::from(reader.clone());
    let mut cx = Context::from_waker(&waker);
    assert!(matches!(slots.poll_reader(&mut cx), ReaderTurn::Wait));
    let mut noop = Context::from_waker(Waker::noop());
    for _ in 0..3 {
        let (id, _) = open(&slots, &credits, &mut noop);
        for is_answered in [false, true] {
            let CallTurn::Receive(receiver) = slots.poll_call(id, &mut noop) else {
                panic!("a lone call receives")
            };
            if is_answered {
                assert_eq!(slots.deliver(id, Err(Status::deadline())), 0);
            }
            let answer = slots.give_back(id, receiver, &mut noop);
            assert_eq!(answer.is_some(), is_answered);
        }
    }
    assert_eq!(reader.take(), 0);
    assert_eq!(credits.available_permits(), 1);
}

/// The waker of a task that has another call, which ends with the task.
struct TaskWithCall(Arc<SlotTable<()>>, u64);

impl Wake for TaskWithCall {
    fn wake(self: Arc<Self>) {}
}

impl Drop for TaskWithCall {
    fn drop(&mut self) {
        self.0.abandon(self.1);
    }
}

/// The waker that a slot has may be the last owner of a task, whose drop ends other calls.
#[test]
fn wakers_are_dropped_without_the_lock() {
    let (slots, credits) = (Arc::new(table_with_receiver()), Arc::new(Semaphore::new(3)));
    let mut noop = Context::from_waker(Waker::noop());
    let ends: [fn(&SlotTable<()>, u64); 3] = [
        |slots, id| {
            let mut noop = Context::from_waker(Waker::noop());
            assert!(matches!(slots.poll_call(id, &mut noop), CallTurn::Wait));
        },
        |slots, id| assert!(slots.abandon(id)),
        |slots, id| drop(slots.close_unsent(id)),
    ];
    for end in ends {
        let (held, _) = open(&slots, &credits, &mut noop);
        let task = Waker::from(Arc::new(TaskWithCall(slots.clone(), held)));
        let (id, is_waiting) = open(&slots, &credits, &mut Context::from_waker(&task));
        assert!(is_waiting);
        drop(task);
        end(&slots, id);
        for id in [held, id] {
            slots.deliver(id, Err(Status::deadline()));
        }
        // The call of the task was abandoned.
        assert!(matches!(slots.poll_call(held, &mut noop), CallTurn::Wait));
        drop(slots.poll_call(id, &mut noop));
        assert_eq!(credits.available_permits(), 3);
    }
}

/// Messages of a server, and the waker of the task that waits for them.
#[derive(Default)]
struct Network {
    answers: VecDeque<u64>,
    waker: Option<Waker>,
}

impl Network {
    fn send(&mut self, id: u64) {
        self.answers.push_back(id);
        self.waker.take().into_iter().for_each(Waker::wake);
    }
}

/// Receives from the network of the test.
#[derive(Debug)]
struct TestReceiver;

/// A step of a call: the table is locked once between two of them, so each interleaving of threads
/// is one of steps.
enum CallStep {
    Open,
    Poll,
    Receive(u64, Box<TestReceiver>),
    GiveBack(u64, Box<TestReceiver>),
    Ended,
}

struct TestCall {
    step: CallStep,
    id: Option<u64>,
    wakes: Arc<CountWakes>,
}

enum ReaderStep {
    Poll(Option<Box<TestReceiver>>),
    Deliver(u64, Box<TestReceiver>),
    GiveBack(Box<TestReceiver>),
}

/// Runs calls, the reader and a server in a random order of their steps, until no task has work.
/// Each call must have its answer then, and each credit must be back.
fn run_interleaving(seed: u64, call_count: usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    let slots = SlotTable::<TestReceiver>::default();
    slots.set_receiver(Box::new(TestReceiver));
    let credits = Arc::new(Semaphore::new(call_count));
    let network = RefCell::new(Network::default());
    let mut unsent = Vec::new();
    let mut calls: Vec<_> = (0..call_count)
        .map(|_| TestCall {
            step: CallStep::Open,
            id: None,
            wakes: Arc::new(CountWakes(AtomicUsize::new(1))),
        })
        .collect();
    let reader_wakes = Arc::new(CountWakes(AtomicUsize::new(1)));
    let mut reader = ReaderStep::Poll(None);
    let receive = |cx: &mut Context<'_>| {
        let mut network = network.borrow_mut();
        let answer = network.answers.pop_front();
        if answer.is_none() {
            network.waker = Some(cx.waker().clone());
        }
        answer
    };
    loop {
        let reader_runs =
            !matches!(reader, ReaderStep::Poll(_)) || reader_wakes.0.load(Ordering::Relaxed) > 0;
        let call_runs = |call: &TestCall| match call.step {
            CallStep::Ended => false,
            CallStep::Open | CallStep::Poll => call.wakes.0.load(Ordering::Relaxed) > 0,
            CallStep::Receive(..) | CallStep::GiveBack(..) => true,
        };
        let mut runnable: Vec<_> = (0..call_count).filter(|i| call_runs(&calls[*i])).collect();
        // The numbers behind the calls: the reader and the server.
        runnable.extend(reader_runs.then_some(call_count));
        runnable.extend((!unsent.is_empty()).then_some(call_count + 1));
        let Some(&task) = (!runnable.is_empty()).then(|| random.choice(&runnable).unwrap()) else {
            break;
        };
        if task == call_count + 1 {
            let answered = random.usize(..unsent.len());
            network.borrow_mut().send(unsent.swap_remove(answered));
            continue;
        }
        if task == call_count {
            let waker = Waker::from(reader_wakes.clone());
            let mut cx = Context::from_waker(&waker);
            let polled = |receiver: Box<TestReceiver>, cx: &mut Context<'_>| match receive(cx) {
                Some(id) => ReaderStep::Deliver(id, receiver),
                None => ReaderStep::GiveBack(receiver),
            };
            reader = match std::mem::replace(&mut reader, ReaderStep::Poll(None)) {
                ReaderStep::Poll(receiver) => {
                    reader_wakes.take();
                    match receiver.map_or_else(|| slots.poll_reader(&mut cx), ReaderTurn::Receive) {
                        ReaderTurn::Receive(receiver) => polled(receiver, &mut cx),
                        ReaderTurn::Wait => ReaderStep::Poll(None),
                        ReaderTurn::End => unreachable!("the session does not end"),
                    }
                }
                ReaderStep::Deliver(id, receiver) => {
                    waker.wake_by_ref();
                    match slots.deliver(id, Err(Status::deadline())) {
                        0 => ReaderStep::GiveBack(receiver),
                        _ => ReaderStep::Poll(Some(receiver)),
                    }
                }
                ReaderStep::GiveBack(receiver) => {
                    ReaderStep::Poll(slots.give_back_unless_needed(receiver))
                }
            };
            continue;
        }
        let call = &mut calls[task];
        let waker = Waker::from(call.wakes.clone());
        let mut cx = Context::from_waker(&waker);
        call.step = match std::mem::replace(&mut call.step, CallStep::Ended) {
            CallStep::Open => {
                let (id, is_waiting) = open(&slots, &credits, &mut cx);
                call.id = Some(id);
                match random.u8(..8) {
                    0 => {
                        drop(slots.close_unsent(id));
                        CallStep::Ended
                    }
                    _ => {
                        unsent.push(id);
                        if is_waiting {
                            call.wakes.take();
                        }
                        CallStep::Poll
                    }
                }
            }
            CallStep::Poll if random.u8(..16) == 0 => {
                slots.abandon(call.id.unwrap());
                CallStep::Ended
            }
            CallStep::Poll => {
                call.wakes.take();
                match slots.poll_call(call.id.unwrap(), &mut cx) {
                    CallTurn::Answered(_) => CallStep::Ended,
                    CallTurn::Wait => CallStep::Poll,
                    CallTurn::Receive(receiver) => match receive(&mut cx) {
                        Some(answered) => CallStep::Receive(answered, receiver),
                        None => CallStep::GiveBack(call.id.unwrap(), receiver),
                    },
                }
            }
            CallStep::Receive(answered, receiver) => {
                slots.deliver(answered, Err(Status::deadline()));
                // After a message, the call polls again.
                waker.wake_by_ref();
                CallStep::GiveBack(call.id.unwrap(), receiver)
            }
            CallStep::GiveBack(id, receiver) => match slots.give_back(id, receiver, &mut cx) {
                Some(_) => CallStep::Ended,
                None => CallStep::Poll,
            },
            CallStep::Ended => unreachable!("not runnable"),
        };
    }
    let waiting = calls
        .iter()
        .filter(|call| !matches!(call.step, CallStep::Ended));
    assert_eq!(waiting.count(), 0, "calls wait for ever with seed {seed}");
    assert_eq!(credits.available_permits(), call_count, "seed {seed}");
    assert_eq!(slots.unanswered(), 0, "seed {seed}");
    assert!(slots.take_receiver().is_some(), "seed {seed}");
}

/// A wake-up that is lost, or a receiver that no task has, leaves a call waiting.
#[test]
fn calls_end_in_every_order_of_steps() {
    for seed in 0..20_000 {
        run_interleaving(seed, 1 + (seed % 4) as usize);
    }
}

/// Calls that wait get the status of the end of the session, and later ones no slot.
#[test]
fn end_answers_calls_that_wait() {
    let (slots, credits) = (table_with_receiver(), Arc::new(Semaphore::new(3)));
    let call = Arc::new(CountWakes::default());
    let waker = Waker::from(call.clone());
    let mut cx = Context::from_waker(&waker);
    let opened = [(); 2].map(|()| open(&slots, &credits, &mut cx).0);
    assert!(slots.abandon(opened[0]));
    slots.end(&Status::new(Code::Unavailable, "ended"));
    assert_eq!(call.take(), 1);
    let CallTurn::Answered(Err(status)) = slots.poll_call(opened[1], &mut cx) else {
        panic!("the call has ended")
    };
    assert_eq!(status.message(), "ended");
    assert_eq!(credits.available_permits(), 3);
    assert!(slots.open(credit(&credits), &mut cx).is_err());
    assert!(matches!(slots.poll_reader(&mut cx), ReaderTurn::End));
}
