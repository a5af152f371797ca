//! Dropping and canceling operations: no message is lost or received twice.

use bytes::BytesMut;
use fabric_async::{CancelOutcome, Class, CompletionQueue, CqBind, Error, FiAddr, OpKind};
use futures_util::StreamExt;

use crate::endpoint_fixture::{
    EndpointConfig, EndpointFixture, endpoint_pair, endpoint_pair_with, flush,
};
use crate::payload::{
    LONG_LEN, assert_bytes, let_other_tasks_run, message_number, numbered_message, pattern,
    poll_once, yield_times,
};
use crate::setup::Setup;
use crate::shared_rx_fixture::SharedRxFixture;

pub(crate) async fn dropped_unmatched_receive_takes_no_message(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let mut polled = b.ep.recv().start().unwrap();
    assert!(poll_once(&mut polled).await.is_pending());
    drop(polled);
    drop(b.ep.recv_into(vec![0; 10]).start().unwrap());
    drop(b.ep.recv().into_future());
    // A request that was never awaited was never posted.
    let _ = b.ep.recv();
    a.ep.send(to_b, "for the next").await.unwrap();
    assert_eq!(&b.ep.recv().await.unwrap()[..], b"for the next");
}

pub(crate) async fn dropped_matched_receive_requeues_its_message(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for len in [0, 10, 5000, 100_000] {
        for pooled in [true, false] {
            let send = a.ep.send(to_b, pattern(len, 1)).data(7);
            if pooled {
                let op = b.ep.recv().start().unwrap();
                tokio::join!(send, flush(&a, &b, to_b)).0.unwrap();
                drop(op);
            } else {
                let op = b.ep.recv_into(Vec::with_capacity(len)).start().unwrap();
                tokio::join!(send, flush(&a, &b, to_b)).0.unwrap();
                drop(op);
            }
            let again = b.ep.recv_into(Vec::with_capacity(len)).start().unwrap();
            drop(again);
            let got = b.ep.recv().await.unwrap();
            assert_bytes(&got, pattern(len, 1));
            assert_eq!(got.data(), Some(7));
        }
    }
}

/// A requeued message precedes messages that arrived later.
pub(crate) async fn requeued_messages_keep_arrival_order(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let first = b.ep.recv().start().unwrap();
    let second = b.ep.recv_into(vec![0; 100]).start().unwrap();
    for number in 0..4 {
        a.ep.send(to_b, numbered_message(number, 20)).await.unwrap();
    }
    flush(&a, &b, to_b).await;
    drop(second);
    drop(first);
    for number in 0..4 {
        assert_eq!(message_number(&b.ep.recv().await.unwrap()), number);
    }
}

/// A requeued message goes to the next posted receive.
pub(crate) async fn requeued_message_goes_to_posted_receive(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let first = b.ep.recv().start().unwrap();
    let mut second = b.ep.recv_into(vec![0; 100]).start().unwrap();
    a.ep.send(to_b, "once").await.unwrap();
    flush(&a, &b, to_b).await;
    assert!(poll_once(&mut second).await.is_pending());
    drop(first);
    assert_eq!(&second.await.unwrap()[..], b"once");
}

pub(crate) async fn dropping_receive_mid_message_loses_nothing(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for (which, polls) in [0, 1, 2, 3, 5, 9, 20, 60].into_iter().enumerate() {
        for into_own_buffer in [false, true] {
            let sending = a.ep.send(to_b, pattern(LONG_LEN, which)).start().unwrap();
            let after =
                a.ep.send(to_b, numbered_message(which as u64, 30))
                    .start()
                    .unwrap();
            let sending =
                tokio::spawn(async move { (sending.await.unwrap(), after.await.unwrap()) });
            let early = if into_own_buffer {
                poll_and_drop(
                    b.ep.recv_into(Vec::with_capacity(LONG_LEN))
                        .start()
                        .unwrap(),
                    polls,
                )
                .await
            } else {
                poll_and_drop(b.ep.recv().start().unwrap(), polls).await
            };
            let got = match early {
                Some(whole) => whole,
                None => b.ep.recv().await.unwrap().into_buf().into_vec(),
            };
            assert_bytes(&got, pattern(LONG_LEN, which));
            assert_eq!(message_number(&b.ep.recv().await.unwrap()), which as u64);
            sending.await.unwrap();
        }
    }
}

/// Polls an operation `polls` times and drops it, unless it completes by then.
async fn poll_and_drop<B: fabric_async::buf::FlatBuf>(
    mut op: fabric_async::Operation<B>,
    polls: u64,
) -> Option<Vec<u8>> {
    for _ in 0..polls {
        if let std::task::Poll::Ready(done) = poll_once(&mut op).await {
            return Some(done.unwrap().to_vec());
        }
        yield_times(1).await;
    }
    None
}

pub(crate) async fn cancel_returns_the_buffer_of_an_unmatched_receive(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let buf = vec![1, 2, 3];
    let at = buf.as_ptr();
    let mut op = b.ep.recv_into(buf).start().unwrap();
    assert!(poll_once(&mut op).await.is_pending());
    match op.cancel().await {
        CancelOutcome::Canceled(buf) => assert_eq!(buf.as_ptr(), at),
        CancelOutcome::Completed(ended) => panic!("nothing was sent: {ended:?}"),
    }
    a.ep.send(to_b, "not for the canceled receive")
        .await
        .unwrap();
    assert_eq!(
        &b.ep.recv().await.unwrap()[..],
        b"not for the canceled receive"
    );
}

pub(crate) async fn cancel_reports_a_matched_receive_once(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let (op, truncated) = (
        b.ep.recv().start().unwrap(),
        b.ep.recv_into(vec![0; 4].into_boxed_slice())
            .start()
            .unwrap(),
    );
    a.ep.send(to_b, "matched").await.unwrap();
    a.ep.send(to_b, "matched and cut").await.unwrap();
    a.ep.send(to_b, "next").await.unwrap();
    flush(&a, &b, to_b).await;
    match op.cancel().await {
        CancelOutcome::Completed(Ok(done)) => assert_eq!(&done[..], b"matched"),
        other => panic!("the receive had matched: {other:?}"),
    }
    match truncated.cancel().await {
        CancelOutcome::Completed(Err(failed)) => {
            assert_eq!(failed.error, Error::Truncated { len: 4, lost: 11 });
            assert_eq!(&failed.buf[..], b"matc");
        }
        other => panic!("the receive had matched: {other:?}"),
    }
    assert_eq!(
        &b.ep.recv().await.unwrap()[..],
        b"next",
        "neither message was requeued"
    );
}

pub(crate) async fn cancel_mid_message_waits_for_the_message(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for polls in [0, 1, 4, 16] {
        let mut op =
            b.ep.recv_into(Vec::with_capacity(LONG_LEN))
                .start()
                .unwrap();
        let sending = tokio::spawn(a.ep.send(to_b, pattern(LONG_LEN, 2)).start().unwrap());
        let mut early = None;
        for _ in 0..polls {
            if let std::task::Poll::Ready(done) = poll_once(&mut op).await {
                early = Some(done);
                break;
            }
            yield_times(1).await;
        }
        let whole = match early {
            Some(done) => done.unwrap().into_buf(),
            None => match op.cancel().await {
                CancelOutcome::Completed(done) => done.unwrap().into_buf(),
                CancelOutcome::Canceled(_) => b.ep.recv().await.unwrap().into_buf().into_vec(),
            },
        };
        assert_bytes(&whole, pattern(LONG_LEN, 2));
        sending.await.unwrap().unwrap();
    }
}

/// Opens a pair whose sender has few credits, so that some of many long messages wait for a credit.
async fn pair_with_few_credits(
    setup: &Setup,
) -> (
    crate::endpoint_fixture::EndpointFixture,
    crate::endpoint_fixture::EndpointFixture,
    fabric_async::FiAddr,
) {
    endpoint_pair_with(
        setup,
        EndpointConfig {
            tx_size: Some(4),
            ..EndpointConfig::default()
        },
        EndpointConfig::default(),
    )
    .await
}

const MESSAGE_COUNT: u64 = 400;
const MESSAGE_LEN: usize = 100_000;

pub(crate) async fn send_without_credit_can_be_canceled(setup: Setup) {
    let (a, b, to_b) = pair_with_few_credits(&setup).await;
    let mut posted = Vec::new();
    for number in 0..MESSAGE_COUNT {
        let mut send =
            a.ep.send(to_b, numbered_message(number, MESSAGE_LEN))
                .into_future();
        if poll_once(&mut send).await.is_pending() {
            posted.push((number, send));
        }
    }
    let (number, last) = posted.pop().expect("at least one send was posted");
    let last_number = match last.cancel().await {
        CancelOutcome::Canceled(buf) => message_number(&buf),
        CancelOutcome::Completed(ended) => {
            panic!("no message has been received: {:?}", ended.map(drop))
        }
    };
    assert_eq!(last_number, number);
    // A send in the middle of the queue, so that the sends behind it move up.
    let (middle_number, op) = posted.remove(posted.len() - 9);
    assert!(matches!(op.cancel().await, CancelOutcome::Canceled(_)));
    let sends = async {
        for (_, op) in posted {
            op.await.unwrap();
        }
        a.ep.send(to_b, numbered_message(MESSAGE_COUNT, 8))
            .await
            .unwrap();
    };
    let receives = async {
        for number in
            (0..=MESSAGE_COUNT).filter(|number| ![last_number, middle_number].contains(number))
        {
            assert_eq!(message_number(&b.ep.recv().await.unwrap()), number);
        }
    };
    tokio::join!(sends, receives);
}

pub(crate) async fn dropping_a_send_without_credit_sends_nothing(setup: Setup) {
    let (a, b, to_b) = pair_with_few_credits(&setup).await;
    let mut posted = Vec::new();
    for number in 0..MESSAGE_COUNT {
        let mut send =
            a.ep.send(to_b, numbered_message(number, MESSAGE_LEN))
                .into_future();
        if poll_once(&mut send).await.is_pending() {
            posted.push(send);
        }
    }
    drop(posted.split_off(posted.len() - 2));
    let sends = async {
        for op in posted {
            op.await.unwrap();
        }
        a.ep.send(to_b, numbered_message(MESSAGE_COUNT, 8))
            .await
            .unwrap();
    };
    let receives = async {
        for number in (0..MESSAGE_COUNT - 2).chain([MESSAGE_COUNT]) {
            assert_eq!(message_number(&b.ep.recv().await.unwrap()), number);
        }
    };
    tokio::join!(sends, receives);
}

pub(crate) async fn dropped_send_is_delivered(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for (which, len) in [8, 5000, 100_000, LONG_LEN].into_iter().enumerate() {
        let mut op =
            a.ep.send(to_b, pattern(len, which).to_vec())
                .start()
                .unwrap();
        if which % 2 == 0 {
            let _ = poll_once(&mut op).await;
        }
        drop(op);
        assert_bytes(&b.ep.recv().await.unwrap(), pattern(len, which));
    }
}

/// No task polls the sender's domain: its driver sends the message.
pub(crate) async fn started_send_progresses_without_sender_polling(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for pause in [false, true] {
        if pause {
            let_other_tasks_run().await;
        }
        let op = a.ep.send(to_b, pattern(LONG_LEN, 6)).start().unwrap();
        assert_bytes(&b.ep.recv().await.unwrap(), pattern(LONG_LEN, 6));
        op.await.unwrap();
    }
}

/// Takes the next entry of a queue, which must be a canceled receive, and returns its context and
/// the capacity of its buffer.
async fn next_canceled(cq: &mut CompletionQueue) -> (u64, usize) {
    let mut entry = cq.next().await.unwrap();
    assert_eq!(entry.error.as_deref(), Some(&Error::Canceled), "{entry:?}");
    let buf = entry.take_buf::<Vec<u8>>().unwrap();
    assert!(buf.is_empty(), "nothing was received");
    (entry.context, buf.capacity())
}

pub(crate) async fn oldest_posted_receive_of_a_context_is_canceled(setup: Setup) {
    let (a, mut b, to_b) = endpoint_pair(&setup).await;
    for (context, len) in [(1, 110), (2, 120), (1, 130)] {
        b.ep.recv_into(Vec::with_capacity(len))
            .context(context)
            .post()
            .unwrap();
    }
    assert!(
        !b.ep.cancel(3).unwrap(),
        "nothing was posted with context 3"
    );
    assert!(b.ep.cancel(1).unwrap());
    assert_eq!(next_canceled(&mut b.cq).await, (1, 110));
    assert_eq!(b.recv_counter.errors(), 1);
    for context in [2, 1] {
        a.ep.send(to_b, "goes to the next").await.unwrap();
        let entry = b.cq.next().await.unwrap();
        assert_eq!(entry.context, context);
        assert_eq!(entry.bytes(), b"goes to the next");
    }
    assert!(!b.ep.cancel(1).unwrap(), "all of the context have ended");
    let started = b.ep.recv().start().unwrap();
    assert!(
        !b.ep.cancel(0).unwrap(),
        "a future is not canceled by context"
    );
    a.ep.send(to_b, "for the future").await.unwrap();
    assert_eq!(&started.await.unwrap()[..], b"for the future");
    b.ep.clone().close().unwrap();
    assert_eq!(b.ep.cancel(1), Err(Error::Closed(Class::Endpoint)));
}

pub(crate) async fn matched_posted_receive_is_not_canceled(setup: Setup) {
    let (a, mut b, to_b) = endpoint_pair(&setup).await;
    b.ep.recv_into(vec![0; 20]).context(5).post().unwrap();
    a.ep.send(to_b, "matched").await.unwrap();
    flush(&a, &b, to_b).await;
    assert!(!b.ep.cancel(5).unwrap());
    let entry = b.cq.next().await.unwrap();
    assert_eq!((entry.context, entry.bytes()), (5, &b"matched"[..]));
}

pub(crate) async fn posted_sends_are_canceled_until_they_begin(setup: Setup) {
    // No provider lets the peer read messages of this length from the sender's memory, which would
    // begin all sends at once.
    const LEN: usize = 7000;
    let (mut a, b, to_b) = endpoint_pair(&setup).await;
    let mut done = Vec::new();
    // Sends are posted until one waits for the receiver.
    let mut posted = 0;
    let canceled = loop {
        let message = numbered_message(posted, LEN);
        a.ep.send(to_b, message).context(posted).post().unwrap();
        if a.ep.cancel(posted).unwrap() {
            break posted;
        }
        posted += 1;
        assert!(
            posted < 10_000,
            "a receiver that does not read stops its sender"
        );
        a.cq.try_read_batch(&mut done, 64);
    };
    assert!(!a.ep.cancel(canceled).unwrap());
    let mut failed = loop {
        a.cq.read_batch(&mut done, 64).await;
        if let Some(at) = done.iter().position(|entry| entry.error.is_some()) {
            break done.swap_remove(at);
        }
    };
    assert_eq!(failed.error.as_deref(), Some(&Error::Canceled));
    let buf = failed.take_buf::<Vec<u8>>().unwrap();
    assert_eq!((failed.context, message_number(&buf)), (canceled, canceled));
    let progress = a.spawn_progress();
    for number in 0..canceled {
        assert_eq!(message_number(&b.ep.recv().await.unwrap()), number);
    }
    a.ep.send(to_b, numbered_message(canceled + 1, 8))
        .await
        .unwrap();
    let last = b.ep.recv().await.unwrap();
    assert_eq!(
        message_number(&last),
        canceled + 1,
        "the canceled message is not sent"
    );
    progress.abort();
}

/// Another endpoint of the domain, with the same completion queue and contexts, keeps its receives.
pub(crate) async fn cancel_finds_ops_of_its_endpoint_only(setup: Setup) {
    let mut a = setup.open_endpoint().await;
    let both = CqBind::TRANSMIT | CqBind::RECV;
    let other = a.domain.endpoint(&a.info).unwrap().bind_cq(&a.cq, both);
    let other = other.unwrap().bind_av(&a.av).unwrap().enable().unwrap();
    for (ep, len) in [(&other, 10), (&a.ep, 20), (&other, 30)] {
        ep.recv_into(Vec::with_capacity(len))
            .context(1)
            .post()
            .unwrap();
    }
    assert!(a.ep.cancel(1).unwrap());
    assert_eq!(next_canceled(&mut a.cq).await, (1, 20));
    assert!(!a.ep.cancel(1).unwrap());
    for len in [10, 30] {
        assert!(other.cancel(1).unwrap());
        assert_eq!(next_canceled(&mut a.cq).await, (1, len));
    }
    assert!(!other.cancel(1).unwrap());
}

/// Bytes of a message that no provider lets the peer read from the sender's memory, which would
/// begin it at once.
const FILLER_LEN: usize = 7000;

/// Sends messages to a peer that receives none, until the ring or the socket buffers are full: ten
/// sends in a row have to wait, and are canceled. Returns the number of messages.
async fn fill_until_sends_wait(a: &mut EndpointFixture, to_peer: FiAddr) -> u64 {
    let (mut posted, mut waited) = (0, 0);
    let mut done = Vec::new();
    while waited < 10 {
        let message = numbered_message(posted, FILLER_LEN);
        a.ep.send(to_peer, message).context(posted).post().unwrap();
        tokio::task::yield_now().await;
        if a.ep.cancel(posted).unwrap() {
            waited += 1;
            let_other_tasks_run().await;
        } else {
            (posted, waited) = (posted + 1, 0);
        }
        a.cq.try_read_batch(&mut done, 64);
        done.clear();
    }
    posted
}

/// The context of sends that are canceled, which differs from those of the messages before.
const CANCELED_CONTEXT: u64 = 1 << 40;

/// Cancels the posted sends with [`CANCELED_CONTEXT`] that have not begun. Returns the numbers of
/// their messages, in the order of the completions.
async fn cancel_waiting(a: &mut EndpointFixture) -> Vec<u64> {
    let mut accepted = 0;
    while a.ep.cancel(CANCELED_CONTEXT).unwrap() {
        accepted += 1;
    }
    let mut canceled = Vec::new();
    while canceled.len() < accepted {
        let mut entry = a.cq.next().await.unwrap();
        if let Some(error) = entry.error.as_deref() {
            assert_eq!((entry.context, error), (CANCELED_CONTEXT, &Error::Canceled));
            canceled.push(message_number(&entry.take_buf::<Vec<u8>>().unwrap()));
        }
    }
    canceled
}

/// Sends to two peers that do not read wait with one context: the older is canceled first,
/// whichever peer it is for, and does not arrive. Buffers that were full can take another message
/// meanwhile; such a message arrives, and the sends are made again.
pub(crate) async fn posted_sends_to_several_peers_are_canceled_in_order(setup: Setup) {
    let (mut a, b, to_b) = endpoint_pair(&setup).await;
    let c = setup.open_endpoint().await;
    let to_c = a.add_peer(&c).await;
    let filled_b = fill_until_sends_wait(&mut a, to_b).await;
    let filled_c = fill_until_sends_wait(&mut a, to_c).await;
    let (mut for_b, mut for_c): (Vec<_>, Vec<_>) =
        ((0..filled_b).collect(), (0..filled_c).collect());
    for first in (1_000_000..).step_by(3) {
        let sends = [(to_c, first), (to_b, first + 1), (to_c, first + 2)];
        for (peer, number) in sends {
            let message = numbered_message(number, FILLER_LEN);
            let send = a.ep.send(peer, message).context(CANCELED_CONTEXT);
            send.post().unwrap();
        }
        let canceled = cancel_waiting(&mut a).await;
        assert!(canceled.is_sorted(), "{canceled:?}");
        for (peer, number) in sends {
            if !canceled.contains(&number) {
                if peer == to_b { &mut for_b } else { &mut for_c }.push(number);
            }
        }
        if canceled.len() == 3 {
            break;
        }
    }
    let progress = a.spawn_progress();
    for (receiver, numbers) in [(&b, for_b), (&c, for_c)] {
        for number in numbers {
            assert_eq!(message_number(&receiver.ep.recv().await.unwrap()), number);
        }
    }
    progress.abort();
}

/// A fenced send that waits for an earlier one is canceled by its context. If the earlier one has
/// left meanwhile, the fenced send follows, and both are made again.
pub(crate) async fn posted_fenced_send_is_canceled_by_context(setup: Setup) {
    let (mut a, b, to_b) = endpoint_pair(&setup).await;
    let sent = fill_until_sends_wait(&mut a, to_b).await;
    let mut arriving: Vec<_> = (0..sent).collect();
    let mut earlier = Vec::new();
    for number in (sent..).step_by(2) {
        let send = a.ep.send(to_b, numbered_message(number, FILLER_LEN));
        earlier.push(send.start().unwrap());
        arriving.push(number);
        let fenced = a.ep.send(to_b, numbered_message(number + 1, 30));
        fenced.fence().context(CANCELED_CONTEXT).post().unwrap();
        if cancel_waiting(&mut a).await == [number + 1] {
            break;
        }
        arriving.push(number + 1);
    }
    let progress = a.spawn_progress();
    for number in arriving {
        assert_eq!(message_number(&b.ep.recv().await.unwrap()), number);
    }
    for send in earlier {
        send.await.unwrap();
    }
    a.ep.send(to_b, "behind").await.unwrap();
    assert_eq!(&b.ep.recv().await.unwrap()[..], b"behind");
    progress.abort();
}

pub(crate) async fn canceled_posts_are_reported_with_selective_completion(setup: Setup) {
    let config = EndpointConfig {
        selective_completion: true,
        ..EndpointConfig::default()
    };
    let mut b = setup.open_endpoint_with(config).await;
    b.ep.recv_into(Vec::with_capacity(60))
        .context(6)
        .post()
        .unwrap();
    assert!(b.ep.cancel(6).unwrap());
    assert_eq!(next_canceled(&mut b.cq).await, (6, 60));
}

pub(crate) async fn posted_multi_recv_is_canceled_by_context(setup: Setup) {
    let (a, mut b, to_b) = endpoint_pair(&setup).await;
    let buf = BytesMut::with_capacity(1000);
    let _posted = b.ep.recv_multi(buf).context(7).post().unwrap();
    a.ep.send(to_b, "the only message").await.unwrap();
    assert_eq!(b.cq.next().await.unwrap().bytes(), b"the only message");
    assert!(b.ep.cancel(7).unwrap());
    let mut release = b.cq.next().await.unwrap();
    assert_eq!(
        (release.context, release.kind),
        (7, OpKind::MultiRecvRelease)
    );
    assert_eq!(release.error.as_deref(), Some(&Error::Canceled));
    assert!(release.take_buf::<BytesMut>().unwrap().capacity() > 0);
    assert!(!b.ep.cancel(7).unwrap());
    a.ep.send(to_b, "not for the canceled receive")
        .await
        .unwrap();
    assert_eq!(
        &b.ep.recv().await.unwrap()[..],
        b"not for the canceled receive"
    );
}

pub(crate) async fn posted_shared_receive_is_canceled_by_context(setup: Setup) {
    let mut fixture = SharedRxFixture::open(&setup, 2, EndpointConfig::default()).await;
    let shared_rx = fixture.shared_rx.clone();
    for len in [100, 200] {
        shared_rx
            .recv_into(Vec::with_capacity(len))
            .context(4)
            .post()
            .unwrap();
    }
    assert!(!fixture.endpoints[0].cancel(4).unwrap(), "posted elsewhere");
    assert!(shared_rx.cancel(4).unwrap());
    assert_eq!(next_canceled(&mut fixture.cq).await, (4, 100));
    let client = setup.open_endpoint().await;
    let server = client.add_peers(&fixture.endpoints).await;
    client.ep.send(server[1], "for the second").await.unwrap();
    let entry = fixture.cq.next().await.unwrap();
    assert_eq!(entry.bytes(), b"for the second");
    assert!(!shared_rx.cancel(4).unwrap());
}
