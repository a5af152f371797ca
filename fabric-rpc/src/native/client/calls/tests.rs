use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::Wake;

use fabric_async::Error;

use tokio::sync::Semaphore;

use super::*;

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

fn credit(credits: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    credits.clone().try_acquire_owned().unwrap()
}

/// Takes a slot; a session that was idle has no events.
fn open<R: Debug>(calls: &Calls<R>, credits: &Arc<Semaphore>, cx: &mut Context<'_>) -> (u64, bool) {
    let opened = calls.open(credit(credits), cx).expect("a session");
    if let Some(receiver) = opened.idle {
        calls.put_idle(receiver);
    }
    (opened.id, opened.is_waiting)
}

fn answer(id: u64) -> Received {
    Received::Answer(id, Err(Status::deadline()))
}

/// Two calls wait while the first one polls the receiver: the reader gets it afterwards.
#[test]
fn reader_is_woken_when_a_call_gives_the_receiver_back() {
    let (calls, credits) = (Calls::new(()), Arc::new(Semaphore::new(2)));
    let [reader, call] = [(); 2].map(|()| Arc::new(CountWakes::default()));
    let wakers = [&reader, &call].map(|wakes| Waker::from(wakes.clone()));
    let [mut reader_cx, mut call_cx] = [&wakers[0], &wakers[1]].map(Context::from_waker);

    let (first, is_waiting) = open(&calls, &credits, &mut call_cx);
    assert!(!is_waiting);
    let CallTurn::Receive(receiver) = calls.poll_call(first, &mut call_cx) else {
        panic!("a lone call receives")
    };
    let (second, is_waiting) = open(&calls, &credits, &mut call_cx);
    assert!(is_waiting);
    // The first poll of the reader: a call has the receiver.
    assert!(matches!(
        calls.poll_reader(&mut reader_cx),
        ReaderTurn::Wait
    ));
    let answered = calls.put_received(first, receiver, Received::Nothing, &mut call_cx);
    assert!(answered.is_none());
    assert_eq!(reader.take(), 1);
    let ReaderTurn::Receive(receiver) = calls.poll_reader(&mut reader_cx) else {
        panic!("the reader receives")
    };
    let ReaderTurn::Receive(receiver) = calls.put_received_by_reader(receiver, answer(second))
    else {
        panic!("a call waits")
    };
    let turn = calls.put_received_by_reader(receiver, answer(first));
    assert!(matches!(turn, ReaderTurn::Wait));
    assert_eq!(call.take(), 2);
    for id in [first, second] {
        let turn = calls.poll_call(id, &mut call_cx);
        assert!(matches!(turn, CallTurn::Answered(_)));
    }
    let (third, _) = open(&calls, &credits, &mut call_cx);
    let turn = calls.poll_call(third, &mut call_cx);
    assert!(matches!(turn, CallTurn::Receive(_)));
}

#[test]
fn lone_call_receives_without_the_reader() {
    let (calls, credits) = (Calls::new(()), Arc::new(Semaphore::new(1)));
    let reader = Arc::new(CountWakes::default());
    let waker = Waker::from(reader.clone());
    let mut cx = Context::from_waker(&waker);
    assert!(matches!(calls.poll_reader(&mut cx), ReaderTurn::Wait));
    let mut noop = Context::from_waker(Waker::noop());
    for _ in 0..3 {
        let (id, _) = open(&calls, &credits, &mut noop);
        for is_answered in [false, true] {
            let CallTurn::Receive(receiver) = calls.poll_call(id, &mut noop) else {
                panic!("a lone call receives")
            };
            let received = if is_answered {
                answer(id)
            } else {
                Received::Nothing
            };
            let answered = calls.put_received(id, receiver, received, &mut noop);
            assert_eq!(answered.is_some(), is_answered);
        }
    }
    assert_eq!(reader.take(), 0);
    assert_eq!(credits.available_permits(), 1);
}

/// The waker of a task that has another call, which ends with the task.
struct TaskWithCall(Arc<Calls<()>>, u64);

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
    let (calls, credits) = (Arc::new(Calls::new(())), Arc::new(Semaphore::new(3)));
    let mut noop = Context::from_waker(Waker::noop());
    let ends: [fn(&Calls<()>, u64); 3] = [
        |calls, id| {
            let mut noop = Context::from_waker(Waker::noop());
            assert!(matches!(calls.poll_call(id, &mut noop), CallTurn::Wait));
        },
        |calls, id| assert!(calls.abandon(id)),
        |calls, id| drop(calls.close_unsent(id)),
    ];
    for end in ends {
        let (held, _) = open(&calls, &credits, &mut noop);
        let task = Waker::from(Arc::new(TaskWithCall(calls.clone(), held)));
        let (id, is_waiting) = open(&calls, &credits, &mut Context::from_waker(&task));
        assert!(is_waiting);
        drop(task);
        end(&calls, id);
        let mut turn = calls.poll_reader(&mut noop);
        for id in [held, id] {
            if let ReaderTurn::Receive(receiver) = turn {
                turn = calls.put_received_by_reader(receiver, answer(id));
            }
        }
        assert!(matches!(turn, ReaderTurn::Wait));
        // The call of the task was abandoned.
        assert!(matches!(calls.poll_call(held, &mut noop), CallTurn::Wait));
        drop(calls.poll_call(id, &mut noop));
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

/// A step of a call: the calls are locked once between two of them, so each interleaving of threads
/// is one of steps.
enum CallStep<'a> {
    Open,
    Poll,
    Put(TakenReceiver<'a, TestReceiver>, Received),
    Ended,
}

struct TestCall<'a> {
    step: CallStep<'a>,
    id: Option<u64>,
    wakes: Arc<CountWakes>,
}

enum ReaderStep {
    Poll(Option<Box<TestReceiver>>),
    Put(Box<TestReceiver>, Received),
}

/// Runs calls, the reader and a server in a random order of their steps, until no task has work.
/// Each call must have its answer then, and each credit must be back.
fn run_interleaving(seed: u64, call_count: usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    let calls = Calls::new(TestReceiver);
    let credits = Arc::new(Semaphore::new(call_count));
    let network = RefCell::new(Network::default());
    let mut unsent = Vec::new();
    let mut tasks: Vec<_> = (0..call_count)
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
        match network.answers.pop_front() {
            Some(id) => answer(id),
            None => {
                network.waker = Some(cx.waker().clone());
                Received::Nothing
            }
        }
    };
    loop {
        let reader_runs =
            !matches!(reader, ReaderStep::Poll(_)) || reader_wakes.0.load(Ordering::Relaxed) > 0;
        let call_runs = |call: &TestCall<'_>| match call.step {
            CallStep::Ended => false,
            CallStep::Open | CallStep::Poll => call.wakes.0.load(Ordering::Relaxed) > 0,
            CallStep::Put(..) => true,
        };
        let mut runnable: Vec<_> = (0..call_count).filter(|i| call_runs(&tasks[*i])).collect();
        // The numbers behind the calls: the reader and the server.
        runnable.extend(reader_runs.then_some(call_count));
        runnable.extend((!unsent.is_empty()).then_some(call_count + 1));
        let Some(&task) = random.choice(&runnable) else {
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
            let turn = match std::mem::replace(&mut reader, ReaderStep::Poll(None)) {
                ReaderStep::Poll(kept) => {
                    reader_wakes.take();
                    let turn = kept.map_or_else(|| calls.poll_reader(&mut cx), ReaderTurn::Receive);
                    if let ReaderTurn::Receive(receiver) = turn {
                        reader = ReaderStep::Put(receiver, receive(&mut cx));
                        continue;
                    }
                    turn
                }
                ReaderStep::Put(receiver, received) => {
                    if !matches!(received, Received::Nothing) {
                        waker.wake_by_ref();
                    }
                    calls.put_received_by_reader(receiver, received)
                }
            };
            reader = match turn {
                ReaderTurn::Receive(receiver) => ReaderStep::Poll(Some(receiver)),
                ReaderTurn::Wait => ReaderStep::Poll(None),
                ReaderTurn::End => unreachable!("the session does not end"),
            };
            continue;
        }
        let call = &mut tasks[task];
        let waker = Waker::from(call.wakes.clone());
        let mut cx = Context::from_waker(&waker);
        call.step = match std::mem::replace(&mut call.step, CallStep::Ended) {
            CallStep::Open => {
                let (id, is_waiting) = open(&calls, &credits, &mut cx);
                call.id = Some(id);
                match random.u8(..8) {
                    0 => {
                        drop(calls.close_unsent(id));
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
                calls.abandon(call.id.unwrap());
                CallStep::Ended
            }
            CallStep::Poll => {
                call.wakes.take();
                match calls.poll_call(call.id.unwrap(), &mut cx) {
                    CallTurn::Answered(_) => CallStep::Ended,
                    CallTurn::Wait => CallStep::Poll,
                    CallTurn::Receive(receiver) => CallStep::Put(receiver, receive(&mut cx)),
                }
            }
            CallStep::Put(receiver, received) => {
                // After a message, the call polls again.
                if !matches!(received, Received::Nothing) {
                    waker.wake_by_ref();
                }
                match calls.put_received(call.id.unwrap(), receiver, received, &mut cx) {
                    Some(_) => CallStep::Ended,
                    None => CallStep::Poll,
                }
            }
            CallStep::Ended => unreachable!("not runnable"),
        };
    }
    let waiting = tasks
        .iter()
        .filter(|call| !matches!(call.step, CallStep::Ended));
    assert_eq!(waiting.count(), 0, "calls wait for ever with seed {seed}");
    assert_eq!(credits.available_permits(), call_count, "seed {seed}");
    let mut state = calls.lock();
    assert_eq!(state.slots.unanswered(), 0, "seed {seed}");
    assert!(state.turn.take_idle().is_some(), "seed {seed}");
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
    let (calls, credits) = (Calls::new(()), Arc::new(Semaphore::new(3)));
    let call = Arc::new(CountWakes::default());
    let waker = Waker::from(call.clone());
    let mut cx = Context::from_waker(&waker);
    let opened = [(); 2].map(|()| open(&calls, &credits, &mut cx).0);
    assert!(calls.abandon(opened[0]));
    calls.end(&Status::new(Code::Unavailable, "ended"));
    assert_eq!(call.take(), 1);
    let CallTurn::Answered(Err(status)) = calls.poll_call(opened[1], &mut cx) else {
        panic!("the call has ended")
    };
    assert_eq!(status.message(), "ended");
    assert_eq!(credits.available_permits(), 3);
    assert!(calls.open(credit(&credits), &mut cx).is_err());
    assert!(matches!(calls.poll_reader(&mut cx), ReaderTurn::End));
}

/// The task that receives sees the end of the session; the receiver is dropped then, and later the
/// reader task ends.
#[test]
fn end_that_is_received_ends_the_calls() {
    let (calls, credits) = (Calls::new(()), Arc::new(Semaphore::new(2)));
    let mut noop = Context::from_waker(Waker::noop());
    let (id, _) = open(&calls, &credits, &mut noop);
    let CallTurn::Receive(receiver) = calls.poll_call(id, &mut noop) else {
        panic!("a lone call receives")
    };
    let end = Received::End(Error::Canceled);
    let answer = calls.put_received(id, receiver, end, &mut noop);
    assert_eq!(answer.unwrap().unwrap_err().code(), Code::Unavailable);
    assert!(calls.lock().turn.take_idle().is_none());
    assert!(matches!(calls.poll_reader(&mut noop), ReaderTurn::End));
}

/// Without the receiver no call gets an answer.
#[test]
fn receiver_that_is_dropped_ends_the_calls() {
    let (calls, credits) = (Calls::new(()), Arc::new(Semaphore::new(2)));
    let mut noop = Context::from_waker(Waker::noop());
    let [first, second] = [(); 2].map(|()| open(&calls, &credits, &mut noop).0);
    assert!(calls.abandon(second));
    calls.lock().turn = ReceiverTurn::new(());
    drop(TakenReceiver::new(&calls, Box::new(())));
    let turn = calls.poll_call(first, &mut noop);
    assert!(matches!(turn, CallTurn::Answered(Err(_))));
    assert_eq!(credits.available_permits(), 2);
}
