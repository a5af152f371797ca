//! Dropping and cancelling: nothing is lost, nothing comes twice.

use fabric_async::{Canceled, Error};

use crate::payload::{
    LONG, assert_bytes, number_of, numbered, pattern, poll_once, settled, yields,
};
use crate::setup::Setup;
use crate::station::{Plan, fence, pair, pair_of};

pub(crate) async fn dropping_an_unmatched_receive_takes_nothing(setup: Setup) {
    let (a, b, to_b) = pair(&setup).await;
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

pub(crate) async fn dropping_an_arrived_receive_gives_the_message_back(setup: Setup) {
    let (a, b, to_b) = pair(&setup).await;
    for len in [0, 10, 5000, 100_000] {
        for pooled in [true, false] {
            let (send, sent) = (
                a.ep.send(to_b, pattern(len, 1)).data(7),
                "the send was not dropped",
            );
            if pooled {
                let op = b.ep.recv().start().unwrap();
                tokio::join!(send, fence(&a, &b, to_b)).0.expect(sent);
                drop(op);
            } else {
                let op = b.ep.recv_into(Vec::with_capacity(len)).start().unwrap();
                tokio::join!(send, fence(&a, &b, to_b)).0.expect(sent);
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

/// A message that comes back is in front of those that arrived later.
pub(crate) async fn given_back_messages_keep_their_place(setup: Setup) {
    let (a, b, to_b) = pair(&setup).await;
    let first = b.ep.recv().start().unwrap();
    let second = b.ep.recv_into(vec![0; 100]).start().unwrap();
    for number in 0..4 {
        a.ep.send(to_b, numbered(number, 20)).await.unwrap();
    }
    fence(&a, &b, to_b).await;
    drop(second);
    drop(first);
    for number in 0..4 {
        assert_eq!(number_of(&b.ep.recv().await.unwrap()), number);
    }
}

/// A receive that is posted already is next in line for a message that comes back.
pub(crate) async fn a_waiting_receive_takes_what_is_given_back(setup: Setup) {
    let (a, b, to_b) = pair(&setup).await;
    let first = b.ep.recv().start().unwrap();
    let mut second = b.ep.recv_into(vec![0; 100]).start().unwrap();
    a.ep.send(to_b, "once").await.unwrap();
    fence(&a, &b, to_b).await;
    assert!(poll_once(&mut second).await.is_pending());
    drop(first);
    assert_eq!(&second.await.unwrap()[..], b"once");
}

pub(crate) async fn dropping_in_the_middle_of_a_message_loses_nothing(setup: Setup) {
    let (a, b, to_b) = pair(&setup).await;
    for (which, polls) in [0, 1, 2, 3, 5, 9, 20, 60].into_iter().enumerate() {
        for own in [false, true] {
            let sending = a.ep.send(to_b, pattern(LONG, which)).start().unwrap();
            let after = a.ep.send(to_b, numbered(which as u64, 30)).start().unwrap();
            let sending =
                tokio::spawn(async move { (sending.await.unwrap(), after.await.unwrap()) });
            let early = if own {
                poll_and_drop(
                    b.ep.recv_into(Vec::with_capacity(LONG)).start().unwrap(),
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
            assert_bytes(&got, pattern(LONG, which));
            assert_eq!(number_of(&b.ep.recv().await.unwrap()), which as u64);
            sending.await.unwrap();
        }
    }
}

/// Polls a few times and drops the operation, unless it is done by then.
async fn poll_and_drop<B: fabric_async::FlatBuf>(
    mut op: fabric_async::Operation<B>,
    polls: u64,
) -> Option<Vec<u8>> {
    for _ in 0..polls {
        if let std::task::Poll::Ready(done) = poll_once(&mut op).await {
            return Some(done.unwrap().to_vec());
        }
        yields(1).await;
    }
    None
}

pub(crate) async fn cancel_returns_the_buffer_of_an_unmatched_receive(setup: Setup) {
    let (a, b, to_b) = pair(&setup).await;
    let buf = vec![1, 2, 3];
    let at = buf.as_ptr();
    let mut op = b.ep.recv_into(buf).start().unwrap();
    assert!(poll_once(&mut op).await.is_pending());
    match op.cancel().await {
        Canceled::Withdrawn(buf) => assert_eq!(buf.as_ptr(), at),
        Canceled::Completed(ended) => panic!("nothing was sent: {ended:?}"),
    }
    a.ep.send(to_b, "not for that one").await.unwrap();
    assert_eq!(&b.ep.recv().await.unwrap()[..], b"not for that one");
}

pub(crate) async fn cancel_reports_a_matched_receive_once(setup: Setup) {
    let (a, b, to_b) = pair(&setup).await;
    let (op, cut) = (
        b.ep.recv().start().unwrap(),
        b.ep.recv_into(vec![0; 4].into_boxed_slice())
            .start()
            .unwrap(),
    );
    a.ep.send(to_b, "matched").await.unwrap();
    a.ep.send(to_b, "matched and cut").await.unwrap();
    a.ep.send(to_b, "next").await.unwrap();
    fence(&a, &b, to_b).await;
    match op.cancel().await {
        Canceled::Completed(Ok(done)) => assert_eq!(&done[..], b"matched"),
        other => panic!("it had matched: {other:?}"),
    }
    match cut.cancel().await {
        Canceled::Completed(Err(failed)) => {
            assert_eq!(failed.error, Error::Truncated { len: 4, lost: 11 });
            assert_eq!(&failed.buf[..], b"matc");
        }
        other => panic!("it had matched: {other:?}"),
    }
    assert_eq!(
        &b.ep.recv().await.unwrap()[..],
        b"next",
        "neither came back"
    );
}

pub(crate) async fn cancel_in_the_middle_of_a_message_waits_for_it(setup: Setup) {
    let (a, b, to_b) = pair(&setup).await;
    for polls in [0, 1, 4, 16] {
        let mut op = b.ep.recv_into(Vec::with_capacity(LONG)).start().unwrap();
        let sending = tokio::spawn(a.ep.send(to_b, pattern(LONG, 2)).start().unwrap());
        let mut early = None;
        for _ in 0..polls {
            if let std::task::Poll::Ready(done) = poll_once(&mut op).await {
                early = Some(done);
                break;
            }
            yields(1).await;
        }
        let whole = match early {
            Some(done) => done.unwrap().into_buf(),
            None => match op.cancel().await {
                Canceled::Completed(done) => done.unwrap().into_buf(),
                Canceled::Withdrawn(_) => b.ep.recv().await.unwrap().into_buf().into_vec(),
            },
        };
        assert_bytes(&whole, pattern(LONG, 2));
        sending.await.unwrap().unwrap();
    }
}

/// Few credits, and so many long messages that some have to wait for one.
async fn crowded(
    setup: &Setup,
) -> (
    crate::station::Station,
    crate::station::Station,
    fabric_async::FiAddr,
) {
    pair_of(
        setup,
        Plan {
            tx_size: Some(4),
            ..Plan::default()
        },
        Plan::default(),
    )
    .await
}

const CROWD: u64 = 400;
const CROWD_LEN: usize = 100_000;

pub(crate) async fn a_send_without_credit_can_be_taken_back(setup: Setup) {
    let (a, b, to_b) = crowded(&setup).await;
    let mut posted = Vec::new();
    for number in 0..CROWD {
        posted.push((
            number,
            a.ep.send(to_b, numbered(number, CROWD_LEN)).into_future(),
        ));
    }
    let (number, last) = posted.pop().expect("there are many");
    let withdrawn = match last.cancel().await {
        Canceled::Withdrawn(buf) => number_of(&buf),
        Canceled::Completed(ended) => panic!("nobody has received anything: {:?}", ended.map(drop)),
    };
    assert_eq!(withdrawn, number);
    // One in the middle, so that those behind it have to close up.
    let (middle, op) = posted.remove(CROWD as usize - 10);
    assert!(matches!(op.cancel().await, Canceled::Withdrawn(_)));
    let sends = async {
        for (_, op) in posted {
            op.await.unwrap();
        }
        a.ep.send(to_b, numbered(CROWD, 8)).await.unwrap();
    };
    let receives = async {
        for number in (0..=CROWD).filter(|number| ![withdrawn, middle].contains(number)) {
            assert_eq!(number_of(&b.ep.recv().await.unwrap()), number);
        }
    };
    tokio::join!(sends, receives);
}

pub(crate) async fn dropping_a_send_without_credit_sends_nothing(setup: Setup) {
    let (a, b, to_b) = crowded(&setup).await;
    let mut posted = Vec::new();
    for number in 0..CROWD {
        posted.push(a.ep.send(to_b, numbered(number, CROWD_LEN)).into_future());
    }
    drop(posted.split_off(CROWD as usize - 2));
    let sends = async {
        for op in posted {
            op.await.unwrap();
        }
        a.ep.send(to_b, numbered(CROWD, 8)).await.unwrap();
    };
    let receives = async {
        for number in (0..CROWD - 2).chain([CROWD]) {
            assert_eq!(number_of(&b.ep.recv().await.unwrap()), number);
        }
    };
    tokio::join!(sends, receives);
}

pub(crate) async fn a_dropped_send_is_delivered(setup: Setup) {
    let (a, b, to_b) = pair(&setup).await;
    for (which, len) in [8, 5000, 100_000, LONG].into_iter().enumerate() {
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

/// The guarantee of automatic progress: a send goes on although nobody looks at anything of its
/// domain. Under manual progress somebody has to.
pub(crate) async fn a_started_send_goes_on_by_itself(setup: Setup) {
    let (a, b, to_b) = pair(&setup).await;
    for pause in [false, true] {
        if pause {
            settled(|| 0).await;
        }
        let op = a.ep.send(to_b, pattern(LONG, 6)).start().unwrap();
        assert_bytes(&b.ep.recv().await.unwrap(), pattern(LONG, 6));
        op.await.unwrap();
    }
}
