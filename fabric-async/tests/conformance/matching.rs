//! Which receive gets which message.

use crate::endpoint_fixture::{endpoint_pair, flush};
use crate::payload::{TestRng, message_number, numbered_message, poll_once};
use crate::setup::Setup;

pub(crate) async fn ignored_tag_bits_do_not_affect_matching(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let upper = b.ep.recv().tag_ignoring(0xab00, 0xff).start().unwrap();
    let exact = b.ep.recv().tag(0xac01).start().unwrap();
    let any = b.ep.recv().tag_ignoring(0, u64::MAX).start().unwrap();
    for tag in [0xac01, 0x1234, 0xab77] {
        a.ep.send(to_b, tag.to_string()).tag(tag).await.unwrap();
    }
    for (op, tag) in [(upper, 0xab77_u64), (exact, 0xac01), (any, 0x1234)] {
        let got = op.await.unwrap();
        assert_eq!(
            (got.tag(), &got[..]),
            (Some(tag), tag.to_string().as_bytes())
        );
    }
    // The same masks with messages that arrive before the receive.
    for tag in [1 << 63, 0x55_0001, 0x55_0002] {
        a.ep.send(to_b, tag.to_string()).tag(tag).await.unwrap();
    }
    assert_eq!(
        b.ep.recv()
            .tag_ignoring(0x55_0000, 0xffff)
            .await
            .unwrap()
            .tag(),
        Some(0x55_0001)
    );
    assert_eq!(
        b.ep.recv().tag_ignoring(0, u64::MAX).await.unwrap().tag(),
        Some(1 << 63)
    );
    assert_eq!(
        b.ep.recv().tag_ignoring(0x2, !0x2).await.unwrap().tag(),
        Some(0x55_0002)
    );
}

pub(crate) async fn tagged_and_untagged_never_match(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let mut untagged = b.ep.recv().start().unwrap();
    a.ep.send(to_b, "tagged").tag(0).await.unwrap();
    flush(&a, &b, to_b).await;
    assert!(
        poll_once(&mut untagged).await.is_pending(),
        "an untagged receive takes no tagged message"
    );
    assert_eq!(&b.ep.recv().tag(0).await.unwrap()[..], b"tagged");
    a.ep.send(to_b, "untagged").await.unwrap();
    assert_eq!(&untagged.await.unwrap()[..], b"untagged");

    let mut tagged = b.ep.recv().tag_ignoring(0, u64::MAX >> 1).start().unwrap();
    a.ep.send(to_b, "untagged").await.unwrap();
    flush(&a, &b, to_b).await;
    assert!(
        poll_once(&mut tagged).await.is_pending(),
        "no mask takes an untagged message"
    );
    a.ep.send(to_b, "tagged").tag(5).await.unwrap();
    assert_eq!(&tagged.await.unwrap()[..], b"tagged");
    assert_eq!(&b.ep.recv().await.unwrap()[..], b"untagged");
}

pub(crate) async fn receive_posted_first_gets_the_message(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let first = b.ep.recv().start().unwrap();
    let second = b.ep.recv_into(Vec::with_capacity(8)).start().unwrap();
    let third = b.ep.recv().start().unwrap();
    for text in ["one", "two", "three"] {
        a.ep.send(to_b, text).await.unwrap();
    }
    // Polled in another order than posted.
    assert_eq!(&third.await.unwrap()[..], b"three");
    assert_eq!(&first.await.unwrap()[..], b"one");
    assert_eq!(&second.await.unwrap()[..], b"two");
}

pub(crate) async fn late_receive_matches_earliest_unexpected(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for (tag, len) in [(1, 3), (2, 20_000), (1, 5), (2, 1)] {
        a.ep.send(to_b, vec![0; len]).tag(tag).await.unwrap();
    }
    flush(&a, &b, to_b).await;
    assert_eq!(b.ep.recv().tag(2).await.unwrap().len(), 20_000);
    assert_eq!(b.ep.recv().tag_ignoring(0, 3).await.unwrap().len(), 3);
    assert_eq!(b.ep.recv().tag_ignoring(0, 3).await.unwrap().len(), 5);
    assert_eq!(b.ep.recv().tag_ignoring(0, 3).await.unwrap().len(), 1);
}

pub(crate) async fn earlier_any_tag_receive_wins_over_exact_tag(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let any = b.ep.recv().tag_ignoring(0, u64::MAX).start().unwrap();
    let exact = b.ep.recv().tag(6).start().unwrap();
    a.ep.send(to_b, "first").tag(6).await.unwrap();
    a.ep.send(to_b, "second").tag(6).await.unwrap();
    assert_eq!(&any.await.unwrap()[..], b"first");
    assert_eq!(&exact.await.unwrap()[..], b"second");
}

pub(crate) async fn directed_and_any_source_match_in_posting_order(setup: Setup) {
    let (a, r, a_to_r) = endpoint_pair(&setup).await;
    let b = setup.open_endpoint().await;
    let b_to_r = b.add_peer(&r).await;
    let (from_a, from_b) = (
        r.av.insert(a.ep.name()).unwrap(),
        r.av.insert(b.ep.name()).unwrap(),
    );

    // The any-source receive is posted first: it gets the first message of any sender.
    let any = r.ep.recv().start().unwrap();
    let directed = r.ep.recv().from(from_a).start().unwrap();
    a.ep.send(a_to_r, "one").await.unwrap();
    a.ep.send(a_to_r, "two").await.unwrap();
    assert_eq!(&any.await.unwrap()[..], b"one");
    assert_eq!(&directed.await.unwrap()[..], b"two");

    // The directed receive is posted first: it gets the first message of its peer, and
    // no message of other peers.
    let directed_a = r.ep.recv().from(from_a).start().unwrap();
    let directed_b = r.ep.recv().from(from_b).start().unwrap();
    let any = r.ep.recv().start().unwrap();
    b.ep.send(b_to_r, "b one").await.unwrap();
    b.ep.send(b_to_r, "b two").await.unwrap();
    let got = any.await.unwrap();
    assert_eq!((&got[..], got.source()), (&b"b two"[..], Ok(from_b)));
    a.ep.send(a_to_r, "a one").await.unwrap();
    assert_eq!(&directed_a.await.unwrap()[..], b"a one");
    assert_eq!(&directed_b.await.unwrap()[..], b"b one");
}

pub(crate) async fn directed_receive_skips_other_sources(setup: Setup) {
    let (a, r, a_to_r) = endpoint_pair(&setup).await;
    let b = setup.open_endpoint().await;
    let b_to_r = b.add_peer(&r).await;
    let (from_a, from_b) = (
        r.av.insert(a.ep.name()).unwrap(),
        r.av.insert(b.ep.name()).unwrap(),
    );
    a.ep.send(a_to_r, "a").tag(4).await.unwrap();
    flush(&a, &r, a_to_r).await;
    b.ep.send(b_to_r, "b").tag(4).await.unwrap();
    flush(&b, &r, b_to_r).await;
    assert_eq!(&r.ep.recv().tag(4).from(from_b).await.unwrap()[..], b"b");
    let mut again = r.ep.recv().tag(4).from(from_b).start().unwrap();
    assert!(poll_once(&mut again).await.is_pending());
    assert_eq!(&r.ep.recv().tag(4).from(from_a).await.unwrap()[..], b"a");
    b.ep.send(b_to_r, "b again").tag(4).await.unwrap();
    assert_eq!(&again.await.unwrap()[..], b"b again");
}

/// Receives that are awaited one by one, while messages wait for them: each takes the earliest
/// message that it accepts, whichever of the ways to receive it takes.
pub(crate) async fn awaited_receives_take_the_earliest_arrived_messages(setup: Setup) {
    const GROUPS: u64 = 40;
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let mut rng = TestRng::new(5);
    let mut number = 0;
    for group in 0..GROUPS {
        // The numbers and tags of the messages that were not received.
        let mut arrived = Vec::new();
        for _ in 0..=rng.below(6) {
            let send = a.ep.send(to_b, numbered_message(number, rng.below(200)));
            let tag = (rng.below(3) > 0).then(|| rng.below(3) as u64);
            let send = match tag {
                Some(tag) => send.tag(tag),
                None => send,
            };
            // Completion data is optional.
            match number % 2 {
                0 => send.await.unwrap(),
                _ => send.data(number).await.unwrap(),
            };
            arrived.push((number, tag));
            number += 1;
        }
        if group % 2 == 0 {
            flush(&a, &b, to_b).await;
        }
        while !arrived.is_empty() {
            let (_, wanted) = arrived[rng.below(arrived.len())];
            let ignore = [0, 1, u64::MAX][rng.below(3)];
            let receive = match wanted {
                Some(tag) => b.ep.recv().tag_ignoring(tag, ignore),
                None => b.ep.recv(),
            };
            let accepts = |tag: Option<u64>| match (wanted, tag) {
                (Some(wanted), Some(tag)) => (wanted ^ tag) & !ignore == 0,
                (wanted, tag) => wanted == tag,
            };
            let first = arrived.iter().position(|(_, tag)| accepts(*tag)).unwrap();
            let (number, tag) = arrived.remove(first);
            let got = receive.await.unwrap();
            assert_eq!((message_number(&got), got.tag()), (number, tag));
            let data = (number % 2 == 1).then_some(number);
            assert_eq!(got.data(), data, "message {number}");
        }
    }
}
