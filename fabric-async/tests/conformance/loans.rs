//! Loans: messages in memory that peers map (`Domain::loan`, `recv_loan`).

use std::task::Poll;

use fabric_async::{Access, Error, EventKind, FiAddr, Loan, OpKind};

use crate::endpoint_fixture::{EndpointFixture, endpoint_pair};
use crate::payload::{let_other_tasks_run, pattern, poll_once};
use crate::setup::Setup;

const LENGTHS: [usize; 6] = [0, 1, 4096, 5000, 1 << 20, 3 << 20];

async fn send_loan(from: &EndpointFixture, to: FiAddr, len: usize, which: usize) {
    let mut loan = from.ep.domain().try_loan(len).unwrap();
    loan.copy_from_slice(pattern(len, which));
    from.ep.send(to, loan).await.unwrap();
}

/// Every receive call takes a loan, posted before or after it arrived.
pub(crate) async fn every_length_arrives_whole(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for (which, len) in LENGTHS.into_iter().enumerate() {
        for late in [false, true] {
            let expected = pattern(len, which);
            let arrive = async {
                for _ in 0..3 {
                    send_loan(&a, to_b, len, which).await;
                }
            };
            let receive = async {
                if late {
                    let_other_tasks_run().await;
                }
                let held = b.ep.recv_loan().await.unwrap();
                assert!(held.to_vec() == expected, "{len} bytes held");
                assert_eq!((held.len(), held.source().is_ok()), (len, true));
                let copied = b.ep.recv().await.unwrap();
                assert!(copied[..] == *expected, "{len} bytes copied");
                let own = b.ep.recv_into(Vec::with_capacity(len)).await.unwrap();
                assert!(own[..] == *expected, "{len} bytes in a buffer");
                // The loan is unchanged after later messages have come and gone.
                assert!(held.to_vec() == expected);
            };
            tokio::join!(arrive, receive);
        }
    }
}

/// `recv_loan` also takes an ordinary message, in a pooled buffer.
pub(crate) async fn recv_loan_takes_ordinary_messages(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for (which, len) in LENGTHS.into_iter().enumerate() {
        for late in [false, true] {
            let expected = pattern(len, which);
            let receive = async {
                if late {
                    let_other_tasks_run().await;
                }
                let got = b.ep.recv_loan().await.unwrap();
                assert!(got.to_vec() == expected && !got.is_in_place());
            };
            let (sent, ()) = tokio::join!(a.ep.send(to_b, expected), receive);
            sent.unwrap();
        }
    }
    // The send of a short loan returns an empty loan, because the peer has the memory.
    let mut loan = a.ep.domain().try_loan(100).unwrap();
    loan.fill(7);
    let (sent, got) = tokio::join!(a.ep.send(to_b, loan), b.ep.recv());
    let sent = sent.unwrap();
    assert_eq!(
        (sent.len(), &sent.buf[..], &sent[..]),
        (100, &[][..], &[][..])
    );
    assert_eq!(got.unwrap()[..], [7; 100]);
}

/// Returned loan memory is lent again, and memory that a peer still reads is not.
pub(crate) async fn returned_loan_memory_is_reused(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let mut held = Vec::new();
    for round in 0..50 {
        let mut loan = a.ep.domain().try_loan(10_000).unwrap();
        loan.fill(round);
        let (sent, got) = tokio::join!(a.ep.send(to_b, loan), b.ep.recv_loan());
        sent.unwrap();
        held.push(got.unwrap());
        if held.len() > 3 {
            held.remove(round as usize % 3);
        }
        for message in &held {
            let bytes = message.to_vec();
            assert!(
                bytes.iter().all(|byte| *byte == bytes[0]),
                "memory that a peer reads was lent again"
            );
        }
    }
    if held[0].is_in_place() {
        // At most as many mappings as loans were outstanding at one time.
        drop(held);
        let loans: Vec<_> = (0..5)
            .map(|_| a.ep.domain().try_loan(10_000).unwrap())
            .collect();
        let is_reused = |loan: &Loan| loan[0] != 0;
        assert!(
            loans.iter().filter(|loan| is_reused(loan)).count() >= 4,
            "returned memory was not reused"
        );
    }
}

/// Loans have tags, data and order like messages. The completion of a posted send of a loan has an
/// empty loan.
pub(crate) async fn loans_follow_message_semantics(setup: Setup) {
    let (mut a, b, to_b) = endpoint_pair(&setup).await;
    a.ep.send(to_b, "first").tag(1).await.unwrap();
    let loan = || {
        let mut loan = a.ep.domain().try_loan(6).unwrap();
        loan.copy_from_slice(b"second");
        loan
    };
    a.ep.send(to_b, loan()).tag(1).data(9).await.unwrap();
    a.ep.send(to_b, "third").tag(1).await.unwrap();
    a.ep.send(to_b, loan()).context(5).post().unwrap();
    for expected in ["first", "second", "third"] {
        let got = b.ep.recv_loan().tag(1).await.unwrap();
        assert_eq!(
            (&got.to_vec()[..], got.tag()),
            (expected.as_bytes(), Some(1))
        );
        assert_eq!(got.data(), (expected == "second").then_some(9));
    }
    let small =
        b.ep.recv_into(vec![0; 3].into_boxed_slice())
            .await
            .unwrap_err();
    assert_eq!(
        (small.error, &small.buf[..]),
        (Error::Truncated { len: 3, lost: 3 }, &b"sec"[..])
    );
    let mut out = Vec::new();
    a.cq.read_batch(&mut out, 1).await;
    assert_eq!(
        (out[0].context, out[0].kind, out[0].transfer.len),
        (5, OpKind::Send, 6)
    );
    let sent = out.remove(0).into_result::<Loan>().unwrap();
    assert_eq!(
        (sent.len(), sent.buf.len()),
        (6, 0),
        "the peer has the memory"
    );
    let loan = a.ep.domain().try_loan(8).unwrap();
    let stale = b.av.insert(a.ep.name()).unwrap();
    let refused = a.ep.send(stale, loan).start();
    assert_eq!(
        refused.map(drop).unwrap_err().buf.len(),
        8,
        "a refused loan is returned"
    );
}

/// A dropped `recv_loan` leaves its message to the next receive.
pub(crate) async fn dropped_loan_receive_loses_no_message(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for round in 0..5 {
        let mut receive = b.ep.recv_loan().start().unwrap();
        let _ = poll_once(&mut receive).await;
        send_loan(&a, to_b, 5000, round).await;
        let_other_tasks_run().await;
        drop(receive);
        assert!(b.ep.recv_loan().await.unwrap().to_vec() == pattern(5000, round));
    }
}

/// A loan that a receiver holds stays readable and unchanged after its sender has gone.
pub(crate) async fn held_loan_outlives_its_sender(setup: Setup) {
    let b = setup.open_endpoint().await;
    let mut held = Vec::new();
    for round in 0..5 {
        let a = setup.open_endpoint().await;
        let to_b = a.add_peer(&b).await;
        send_loan(&a, to_b, 100_000, round).await;
        held.push(b.ep.recv_loan().await.unwrap());
        send_loan(&a, to_b, 100_000, round + 10).await;
        drop(a);
        held.push(b.ep.recv_loan().await.unwrap());
    }
    for (number, message) in held.iter().enumerate() {
        assert!(
            message.to_vec() == pattern(100_000, number / 2 + 10 * (number % 2)),
            "message {number}"
        );
    }
}

/// A peer that holds 256 loans gets copies of further ones, until it returns loans.
pub(crate) async fn loans_are_copied_while_too_many_are_unreturned(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let sends = tokio::spawn(async move {
        for which in 0..400 {
            send_loan(&a, to_b, 16, which).await;
        }
        a
    });
    let mut held = Vec::new();
    for which in 0..400 {
        if held.len() == 256 {
            held.clear();
        }
        let message = b.ep.recv_loan().await.unwrap();
        assert_eq!(message.to_vec(), pattern(16, which));
        held.push(message);
    }
    sends.await.unwrap();
}

/// An operation that is kept after its loan was returned does not return it a second time.
pub(crate) async fn loan_memory_is_returned_once(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let operation =
        a.ep.send(to_b, a.ep.domain().try_loan(8192).unwrap())
            .start()
            .unwrap();
    b.ep.recv().await.unwrap();
    let mut second = a.ep.domain().try_loan(8192).unwrap();
    second.fill(2);
    drop(operation);
    let mut third = a.ep.domain().try_loan(8192).unwrap();
    third.fill(3);
    assert!(
        second.iter().all(|byte| *byte == 2),
        "two loans share memory"
    );
}

/// A loan longer than the limit is refused.
pub(crate) async fn loan_beyond_the_length_limit_is_refused(setup: Setup) {
    let a = setup.open_endpoint().await;
    for len in [usize::MAX, 1 << 50, (1 << 32) + 1] {
        let refused = a.ep.domain().try_loan(len).map(drop).unwrap_err();
        assert!(
            matches!(refused, Error::TooLong { len: requested, .. } if requested == len),
            "{refused}"
        );
    }
}

/// A loan belongs to its own domain: other domains send it as a copy.
pub(crate) async fn loans_of_another_domain_are_copied(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let c = setup.open_endpoint().await;
    let mut secret = a.ep.domain().try_loan(5000).unwrap();
    secret.fill(1);
    for _ in 0..3 {
        let mut foreign = c.ep.domain().try_loan(5000).unwrap();
        foreign.fill(9);
        let (sent, got) = tokio::join!(a.ep.send(to_b, foreign), b.ep.recv_loan());
        sent.unwrap();
        let got = got.unwrap();
        assert!(got.to_vec() == [9; 5000] && !got.is_in_place());
    }
    assert!(secret.iter().all(|byte| *byte == 1));
}

/// `recv_into` with a buffer that `recv_loan` returned receives a copy.
pub(crate) async fn reused_loan_buffer_receives_a_copy(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    send_loan(&a, to_b, 5000, 1).await;
    let first = b.ep.recv_loan().await.unwrap().into_buf();
    send_loan(&a, to_b, 6000, 2).await;
    let second = b.ep.recv_into(first).await.unwrap();
    assert!(second.to_vec() == pattern(6000, 2) && !second.is_in_place());
}

/// A received loan is sent on, as a message and as a write, and keeps its bytes.
pub(crate) async fn received_loans_are_sent_on(setup: Setup) {
    let (a, mut b, to_b) = endpoint_pair(&setup).await;
    let to_a = b.add_peer(&a).await;
    for (which, len) in LENGTHS.into_iter().enumerate() {
        let expected = pattern(len, which);
        let (loan, ()) = tokio::join!(b.ep.recv_loan(), send_loan(&a, to_b, len, which));
        let loan = loan.unwrap().into_buf();
        let (sent, got) = tokio::join!(b.ep.send(to_a, loan), a.ep.recv());
        assert!(got.unwrap()[..] == *expected, "{len} bytes");
        let loan = sent.unwrap().into_buf();
        assert!(loan.to_vec() == expected, "the loan comes back unchanged");
        // The loan is sent in a batch.
        assert_eq!(b.ep.post_all([b.ep.send(to_a, loan)]).unwrap(), 1);
        let mut out = Vec::new();
        let (got, _) = tokio::join!(a.ep.recv_loan(), b.cq.read_batch(&mut out, 1));
        assert!(got.unwrap().to_vec() == expected, "{len} bytes, in a batch");
    }
}

/// A loan that is relayed by two endpoints and back to its owner is not copied.
pub(crate) async fn relayed_loans_are_not_copied(setup: Setup) {
    const LEN: usize = 300_000;
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let c = setup.open_endpoint().await;
    let (to_c, to_a) = (b.add_peer(&c).await, c.add_peer(&a).await);
    for which in 0..400 {
        let (loan, ()) = tokio::join!(b.ep.recv_loan(), send_loan(&a, to_b, LEN, which));
        let loan = loan.unwrap().into_buf();
        let (sent, got) = tokio::join!(b.ep.send(to_c, loan), c.ep.recv_loan());
        let (sent, got) = (sent.unwrap().into_buf(), got.unwrap().into_buf());
        assert!(sent.is_in_place() && got.is_in_place());
        // Both hold the same memory.
        assert!(sent.to_vec() == pattern(LEN, which) && got.to_vec() == pattern(LEN, which));
        drop(sent);
        let (sent, back) = tokio::join!(c.ep.send(to_a, got).tag(1), a.ep.recv_loan().tag(1));
        drop(sent.unwrap());
        let back = back.unwrap();
        assert!(back.is_in_place() && back.to_vec() == pattern(LEN, which));
    }
    for (ep, what) in [(&a, "first"), (&b, "second"), (&c, "third")] {
        let stats = ep.ep.stats();
        let copies = [stats.segmented, stats.single_copy_tx, stats.single_copy_rx];
        let copied: u64 = copies.iter().map(|copies| copies.bytes).sum();
        assert_eq!((stats.loaned, copied), (400, 0), "{what}");
    }
}

/// The memory of a relayed loan returns to its owner when the last holder drops the loan, in either
/// order of the drops.
pub(crate) async fn relayed_loan_is_returned_by_its_last_holder(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let c = setup.open_endpoint().await;
    let to_c = b.add_peer(&c).await;
    for (round, relay_holds_longer) in [(1, false), (2, true), (3, false)] {
        let mut loan = a.ep.domain().try_loan(10_000).unwrap();
        loan.fill(round);
        a.ep.send(to_b, loan).await.unwrap();
        let first = b.ep.recv_loan().await.unwrap().into_buf();
        let (sent, second) = tokio::join!(b.ep.send(to_c, first), c.ep.recv_loan());
        let (first, second) = (sent.unwrap().into_buf(), second.unwrap().into_buf());
        let (other, last) = if relay_holds_longer {
            (second, first)
        } else {
            (first, second)
        };
        drop(other);
        let fresh = a.ep.domain().try_loan(10_000).unwrap();
        assert_ne!(fresh[0], round, "memory that is held was lent again");
        let_other_tasks_run().await;
        let fresh = [fresh, a.ep.domain().try_loan(10_000).unwrap()];
        assert!(fresh.iter().all(|loan| loan[0] != round));
        assert!(last.is_in_place() && last.to_vec() == [round; 10_000]);
        drop(last);
        wait_for_reuse(&a, |loan| loan[0] == round).await;
        drop(fresh);
    }
}

/// Waits until a new loan uses memory of a returned loan.
async fn wait_for_reuse(a: &EndpointFixture, is_reused: impl Fn(&Loan) -> bool) {
    let mut others = Vec::new();
    loop {
        let loan = a.ep.domain().try_loan(10_000).unwrap();
        if is_reused(&loan) {
            return;
        }
        others.push(loan);
        let_other_tasks_run().await;
    }
}

/// The memory of a relayed loan whose last holder disconnected is not reused: it may still be read.
pub(crate) async fn lost_relayed_loan_is_not_reused(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let mut held = Vec::new();
    for round in 1..=3 {
        let c = setup.open_endpoint().await;
        let to_c = b.add_peer(&c).await;
        let mut loan = a.ep.domain().try_loan(10_000).unwrap();
        loan.fill(round);
        a.ep.send(to_b, loan).await.unwrap();
        let first = b.ep.recv_loan().await.unwrap().into_buf();
        let (sent, second) = tokio::join!(b.ep.send(to_c, first), c.ep.recv_loan());
        drop(sent.unwrap());
        held.push(second.unwrap().into_buf());
        drop(c);
    }
    let_other_tasks_run().await;
    for _ in 0..10 {
        a.ep.domain().try_loan(10_000).unwrap().fill(9);
        let_other_tasks_run().await;
    }
    for (at, loan) in held.iter().enumerate() {
        assert!(loan.is_in_place() && loan.to_vec() == [at as u8 + 1; 10_000]);
    }
}

/// A received loan can be the source of a write, whole and to several ranges.
pub(crate) async fn received_loans_are_written_to_regions(setup: Setup) {
    const LEN: usize = 300_000;
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let to_a = b.add_peer(&a).await;
    let _progress = a.spawn_progress();
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let region = a.ep.domain().alloc(LEN, access).unwrap();
    let mut own = a.ep.domain().register(vec![0; LEN], access, None).unwrap();
    for (which, remote) in [region.remote(), own.remote()].into_iter().enumerate() {
        let (loan, ()) = tokio::join!(b.ep.recv_loan(), send_loan(&a, to_b, LEN, which));
        let loan = loan.unwrap().into_buf();
        b.ep.write(to_a, remote.at(0), loan).await.unwrap();
    }
    let mut bytes = vec![0; LEN];
    region.read(0, &mut bytes).unwrap();
    assert!(bytes == pattern(LEN, 0));
    assert!(own.lock()[..] == *pattern(LEN, 1));
}

/// More loans than a peer keeps mapped, and than are in progress at once.
pub(crate) async fn more_loans_than_mappings_reach_one_peer(setup: Setup) {
    let (mut a, b, to_b) = endpoint_pair(&setup).await;
    let loans: Vec<_> = (0..700)
        .map(|_| a.ep.domain().try_loan(64).unwrap())
        .collect();
    for (number, mut loan) in loans.into_iter().enumerate() {
        loan.copy_from_slice(pattern(64, number));
        let (sent, got) = tokio::join!(a.ep.send(to_b, loan), b.ep.recv());
        sent.unwrap();
        assert!(got.unwrap()[..] == *pattern(64, number), "message {number}");
    }
    assert_eq!(
        a.eq.try_read()
            .filter(|event| matches!(event.kind, EventKind::PeerDown { .. })),
        None
    );
}

/// Long loans that receivers copy, several at a time, with receives that are dropped in between.
pub(crate) async fn long_loans_are_copied_in_chunks(setup: Setup) {
    const LEN: usize = 1 << 20;
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for round in 0..3 {
        // The task ends with the truncated receive, which the counter counts as a failure.
        let _progress = b.spawn_progress();
        let early: Vec<_> = (0..2)
            .map(|_| b.ep.recv_into(vec![0; LEN]).start().unwrap())
            .collect();
        for which in 0..4 {
            send_loan(&a, to_b, LEN, 4 * round + which).await;
        }
        for (which, receive) in early.into_iter().enumerate() {
            assert!(receive.await.unwrap()[..] == *pattern(LEN, 4 * round + which));
        }
        let mut dropped = b.ep.recv().start().unwrap();
        let polled = poll_once(&mut dropped).await;
        drop(dropped);
        let got = match polled {
            Poll::Ready(got) => got.unwrap(),
            Poll::Pending => b.ep.recv().await.unwrap(),
        };
        assert!(got[..] == *pattern(LEN, 4 * round + 2));
        let small =
            b.ep.recv_into(vec![0; 300_000].into_boxed_slice())
                .await
                .unwrap_err();
        assert_eq!(
            small.error,
            Error::Truncated {
                len: 300_000,
                lost: LEN - 300_000
            }
        );
        assert!(small.buf[..] == pattern(LEN, 4 * round + 3)[..300_000]);
    }
}
