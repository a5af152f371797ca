//! Checks that an endpoint still works after an attack, and helpers that kill peers.

use std::thread::JoinHandle;
use std::time::Duration;

use fabric_async::{DownReason, Endpoint, Error, EventKind, EventQueue};

use crate::test_peer::TestPeer;

/// Checks that a new peer can connect to the endpoint, send, and get a reply.
pub(crate) async fn assert_still_works(ep: &Endpoint) {
    let unnamed = format!("{}://", ep.name().scheme().provider());
    let client = Endpoint::bind(&unnamed[..]).await.unwrap();
    let peer = client.add_peer(ep.name()).await.unwrap();
    client.send(peer, "still working").tag(99).await.unwrap();
    let got = ep.recv().tag(99).await.unwrap();
    ep.send(got.source().unwrap(), "yes").await.unwrap();
    assert_eq!(&client.recv().await.unwrap()[..], b"yes");
}

/// Returns the reason of the next connection that the endpoint rejects.
pub(crate) async fn next_rejection(events: &mut EventQueue) -> Error {
    loop {
        if let EventKind::InboundRefused { error, .. } = events.read().await.kind {
            return error;
        }
    }
}

/// Takes all events, and returns how many connections they report as refused.
pub(crate) fn take_refused_count(events: &mut EventQueue) -> u64 {
    let events = std::iter::from_fn(|| events.try_read());
    let counts = events.map(|event| match event.kind {
        EventKind::InboundRefused { count, .. } => count,
        _ => 0,
    });
    counts.sum()
}

/// Returns the reason of the next connection that ends.
pub(crate) async fn next_down_reason(events: &mut EventQueue) -> DownReason {
    loop {
        if let EventKind::PeerDown { reason, .. } = events.read().await.kind {
            return reason;
        }
    }
}

/// Expects that the next connection ends with a protocol violation whose text contains `rule`.
pub(crate) async fn expect_protocol_violation(events: &mut EventQueue, rule: &str) {
    let down = next_down_reason(events).await;
    let DownReason::Protocol(what) = down else {
        panic!("{rule}: {down:?}")
    };
    assert!(what.contains(rule), "{rule}: {what}");
}

/// Kills a peer within two milliseconds, at a delay that depends on the round.
pub(crate) fn kill_within_two_ms(victim: TestPeer, round: u64) -> JoinHandle<()> {
    let micros = round.wrapping_mul(6_364_136_223_846_793_005) >> 33 & 0x7ff;
    kill_after(victim, Duration::from_micros(micros))
}

/// Kills a peer after this delay.
pub(crate) fn kill_after(mut victim: TestPeer, delay: Duration) -> JoinHandle<()> {
    std::thread::spawn(move || {
        std::thread::sleep(delay);
        victim.0.kill().unwrap();
        victim.0.wait().unwrap();
    })
}
