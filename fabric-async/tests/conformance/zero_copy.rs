//! Messages that the network may take from where they lie: their buffers are given back when nobody
//! reads them any more, so whoever writes into one at that moment changes no message. Whoever has
//! no such network takes no notice.

use std::sync::mpsc::{Receiver, Sender, channel};

use bytes::Bytes;
use fabric_async::{Access, Error, OpKind, SocketOptions};
use futures_util::StreamExt;
use tokio::task::JoinSet;

use crate::payload::{number_of, numbered, pattern};
use crate::setup::Setup;
use crate::station::{Plan, Station, pair_of};

const COUNT: u64 = 24;
/// Long enough for the network to take it, and longer than it has room for when the peer reads
/// nothing.
const LEN: usize = 300_000;

/// Everything long is taken from where it lies, if anything is; and the other side has little room.
fn plans() -> (Plan, Plan) {
    let mut sockets = SocketOptions::new().zero_copy_from(0);
    sockets.insists_on_zero_copy = true;
    let narrow = SocketOptions::new().receive_buffer(64 << 10);
    (
        Plan {
            sockets,
            ..Plan::default()
        },
        Plan {
            sockets: narrow,
            ..Plan::default()
        },
    )
}

/// Of different lengths, each of which says which it is.
fn message(number: u64) -> Vec<u8> {
    numbered(number, LEN + 40_000 * (number as usize % 5))
}

async fn receive_all(b: &Station) {
    for number in 0..COUNT {
        assert_eq!(number_of(&b.ep.recv().await.unwrap()), number);
    }
}

/// Whether what was sent went as it was asked for, where that is known.
fn assert_counted(setup: &Setup, a: &Station, count: u64) {
    let stats = a.ep.stats();
    assert!(stats.zero_copy + stats.copied_anyway <= count, "{stats:?}");
    if setup.has_zero_copy() {
        assert_eq!(stats.zero_copy + stats.copied_anyway, count, "{stats:?}");
    }
}

pub(crate) async fn buffers_may_be_used_when_they_are_back(setup: Setup) {
    let (a, b) = plans();
    let (a, b, to_b) = pair_of(&setup, a, b).await;
    let mut sends = JoinSet::new();
    for number in 0..COUNT {
        let send = a.ep.send(to_b, message(number)).start().unwrap();
        sends.spawn(async move {
            let mut buf = send.await.unwrap().buf;
            buf.fill(0xff);
        });
    }
    receive_all(&b).await;
    while let Some(ended) = sends.join_next().await {
        ended.unwrap();
    }
    assert_counted(&setup, &a, COUNT);
}

/// Bytes that are no longer the same when nobody has them, and say so.
struct Fleeting(Vec<u8>, Sender<()>);

impl AsRef<[u8]> for Fleeting {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Fleeting {
    fn drop(&mut self) {
        self.0.fill(0xff);
        let _ = self.1.send(());
    }
}

fn fleeting(gone: &Sender<()>, number: u64) -> Bytes {
    Bytes::from_owner(Fleeting(message(number), gone.clone()))
}

/// All of them have gone.
async fn all_gone(gone: Receiver<()>, count: u64) {
    tokio::task::spawn_blocking(move || (0..count).for_each(|_| gone.recv().unwrap()))
        .await
        .unwrap();
}

pub(crate) async fn dropped_futures_leave_buffers_where_they_are(setup: Setup) {
    let (a, b) = plans();
    let (a, b, to_b) = pair_of(&setup, a, b).await;
    let (gone, is_gone) = channel();
    for number in 0..COUNT {
        drop(a.ep.send(to_b, fleeting(&gone, number)).start().unwrap());
    }
    let _moving = a.keep_moving();
    receive_all(&b).await;
    all_gone(is_gone, COUNT).await;
}

/// In the middle of messages: what arrives is whole or nothing, and every buffer comes back, once.
pub(crate) async fn an_endpoint_that_closes_gives_them_back(setup: Setup) {
    let (a, b) = plans();
    let (mut a, b, to_b) = pair_of(&setup, a, b).await;
    a.ep.send(to_b, numbered(0, 8)).await.unwrap();
    let mut futures = Vec::new();
    for number in 1..COUNT {
        if number % 2 == 0 {
            a.ep.send(to_b, message(number))
                .context(number)
                .post()
                .unwrap();
        } else {
            futures.push((number, a.ep.send(to_b, message(number)).start().unwrap()));
        }
    }
    a.ep.close().unwrap();
    let reading = async {
        let mut next = 0;
        loop {
            match b.ep.recv().await {
                Ok(got) => assert_eq!(number_of(&got), next, "in order, and whole"),
                Err(failed) => assert!(matches!(failed.error, Error::PeerGone(_)), "{failed}"),
            }
            next += 1;
        }
    };
    let ending = async {
        for (number, send) in futures {
            let buf = match send.await {
                Ok(done) => done.buf,
                Err(failed) => {
                    assert_eq!(failed.error, Error::Canceled);
                    failed.buf
                }
            };
            assert!(buf == message(number));
        }
        let mut posted = Vec::new();
        while posted.len() < (2..COUNT).step_by(2).count() {
            let done = a.cq.next().await.expect("the queue is open");
            assert!(
                done.kind == OpKind::Send
                    && done
                        .error
                        .as_deref()
                        .is_none_or(|error| *error == Error::Canceled)
            );
            let context = done.context;
            posted.push(context);
            let buf = done
                .into_result::<Vec<u8>>()
                .map_or_else(|failed| failed.buf, |done| done.buf);
            assert!(buf == message(context));
        }
        posted.sort_unstable();
        assert!(
            posted.iter().copied().eq((2..COUNT).step_by(2)),
            "{posted:?}"
        );
        assert_eq!(
            a.sends.value() + a.sends.errors(),
            COUNT,
            "each was counted once"
        );
    };
    tokio::select! {
        () = reading => {}
        () = ending => {}
    }
}

/// In the middle of messages likewise.
pub(crate) async fn a_peer_that_closes_gives_them_back(setup: Setup) {
    let (a, b) = plans();
    let (a, b, to_b) = pair_of(&setup, a, b).await;
    let sends: Vec<_> = (0..COUNT)
        .map(|number| a.ep.send(to_b, message(number)).start().unwrap())
        .collect();
    assert_eq!(number_of(&b.ep.recv().await.unwrap()), 0);
    drop(b);
    for (send, number) in sends.into_iter().zip(0..) {
        let buf = send.await.map_or_else(|failed| failed.buf, |done| done.buf);
        assert!(buf == message(number), "it was not touched");
    }
}

pub(crate) async fn writes_are_taken_likewise(setup: Setup) {
    let (a, b) = plans();
    let (a, b, to_b) = pair_of(&setup, a, b).await;
    let _moving = b.keep_moving();
    let region = b.domain.alloc(16 * LEN, Access::REMOTE_WRITE).unwrap();
    let mut writes = JoinSet::new();
    for number in 0..16 {
        let at = region.remote().at((number * LEN) as u64);
        let write =
            a.ep.write(to_b, at, pattern(LEN, number).to_vec())
                .start()
                .unwrap();
        writes.spawn(async move { write.await.unwrap().buf.fill(0xff) });
    }
    while let Some(ended) = writes.join_next().await {
        ended.unwrap();
    }
    for number in 0..16 {
        let mut there = vec![0; LEN];
        region.read(number * LEN, &mut there).unwrap();
        assert!(there == pattern(LEN, number), "{number}");
    }
    assert_counted(&setup, &a, 16);
}

/// Long and short ones keep their order, whichever way each goes; and a queue and counters hear of
/// each once.
pub(crate) async fn short_ones_go_on_behind_them(setup: Setup) {
    let (a, b) = plans();
    let (mut a, b, to_b) = pair_of(&setup, a, b).await;
    for number in 0..COUNT {
        let len = if number % 3 == 0 { LEN } else { 10 };
        a.ep.send(to_b, numbered(number, len))
            .context(number)
            .post()
            .unwrap();
    }
    let reading = async {
        receive_all(&b).await;
        b.ep.recv().await.unwrap()
    };
    let ending = async {
        let mut seen = vec![false; COUNT as usize];
        for _ in 0..COUNT {
            let done = a.cq.next().await.expect("the queue is open");
            assert!(
                done.error.is_none() && !std::mem::replace(&mut seen[done.context as usize], true)
            );
        }
        assert_eq!((a.sends.value(), a.sends.errors()), (COUNT, 0));
        a.ep.send(to_b, "the end").await.unwrap();
    };
    let (last, ()) = tokio::join!(reading, ending);
    assert_eq!(&last[..], b"the end");
}

/// Inside this machine the kernel copies, and says so: without insisting that is the end of it.
pub(crate) async fn where_the_kernel_copies_it_is_given_up(mut setup: Setup) {
    let plan = Plan {
        sockets: SocketOptions::new().zero_copy_from(100_000),
        ..Plan::default()
    };
    setup.zero_copy = false;
    let (a, b, to_b) = pair_of(&setup, plan, Plan::default()).await;
    for number in 0..5 {
        // The first ones are too short.
        let len = if number < 2 { 99_999 } else { 100_000 };
        let (sent, got) = tokio::join!(a.ep.send(to_b, numbered(number, len)), b.ep.recv());
        sent.unwrap();
        assert_eq!(number_of(&got.unwrap()), number);
        let stats = a.ep.stats();
        assert!(
            stats.zero_copy == 0 && stats.copied_anyway <= u64::from(number >= 2),
            "{number}: {stats:?}"
        );
        if setup.has_zero_copy() && number >= 2 {
            assert_eq!(stats.copied_anyway, 1);
        }
    }
}
