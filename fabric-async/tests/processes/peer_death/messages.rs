//! Victims that die in the middle of messages.

use fabric_async::Endpoint;

/// Longer than what the ring holds and one pass moves.
const LONG_LEN: usize = 64 << 20;
const MESSAGES: u64 = 100;

/// Dies when the first segments of a long message are sent.
pub(super) async fn mid_send(name: &str) -> ! {
    // Through the ring, because a single copy is lost whole when the sender dies before it.
    let ep = Endpoint::options()
        .single_copy_threshold(usize::MAX)
        .bind("shm://")
        .await
        .unwrap();
    let peer = ep.add_peer(name).await.unwrap();
    ep.send(peer, "here").tag(1).await.unwrap();
    ep.recv().tag(2).from(peer).await.unwrap();
    let _long = ep.send(peer, vec![7; LONG_LEN]).tag(3).start().unwrap();
    super::kill_self()
}

/// Dies when the first segments of a long message are received.
pub(super) async fn mid_receive(name: &str) -> ! {
    // Through the ring, because a single copy is lost whole when the sender dies before it.
    let ep = Endpoint::options()
        .single_copy_threshold(usize::MAX)
        .bind("shm://")
        .await
        .unwrap();
    let peer = ep.add_peer(name).await.unwrap();
    ep.send(peer, "here").tag(1).await.unwrap();
    ep.recv().tag(2).from(peer).await.unwrap();
    let _long = ep.recv_into(vec![0; LONG_LEN]).tag(3).start().unwrap();
    while ep.domain().stats().passes < 3 || !ep.domain().progress() {}
    super::kill_self()
}

/// Never receives; the survivor kills this victim.
pub(super) async fn without_reading(name: &str) -> ! {
    let ep = Endpoint::bind("shm://").await.unwrap();
    let peer = ep.add_peer(name).await.unwrap();
    ep.send(peer, "here").tag(1).await.unwrap();
    loop {
        std::thread::park();
    }
}

/// Dies with some messages received, and more that match no receive.
pub(super) async fn with_unreceived_messages(name: &str) -> ! {
    let ep = Endpoint::bind("shm://").await.unwrap();
    let peer = ep.add_peer(name).await.unwrap();
    ep.send(peer, "here").tag(1).await.unwrap();
    for number in 0..MESSAGES {
        assert_eq!(
            ep.recv().tag(3).from(peer).await.unwrap()[..8],
            number.to_le_bytes()
        );
    }
    ep.recv().tag(2).from(peer).await.unwrap();
    super::kill_self()
}

/// Dies after its last send has completed.
pub(super) async fn after_last_send(name: &str) -> ! {
    let ep = Endpoint::bind("shm://").await.unwrap();
    let peer = ep.add_peer(name).await.unwrap();
    for number in 0..MESSAGES {
        ep.send(peer, number.to_le_bytes().to_vec())
            .tag(1)
            .await
            .unwrap();
    }
    super::kill_self()
}

pub(super) mod survives {
    use fabric_async::Endpoint;

    use super::super::{Survivor, assert_peer_gone};
    use super::{LONG_LEN, MESSAGES};
    use crate::test_peer::TestPeer;

    pub(crate) async fn mid_send(survivor: &mut Survivor, victim: TestPeer) {
        let peer = survivor.ep.recv().tag(1).await.unwrap().source().unwrap();
        let is_directed = survivor.round.is_multiple_of(2);
        let request = survivor.ep.recv().tag(3);
        let partial = if is_directed {
            request.from(peer)
        } else {
            request
        };
        let partial = partial.start().unwrap();
        let queued = survivor.ep.recv().tag(3).start().unwrap();
        let directed = survivor.ep.recv().tag(9).from(peer).start().unwrap();
        survivor.ep.send(peer, "go").tag(2).await.unwrap();
        assert_peer_gone(&directed.await.unwrap_err().error);
        survivor.wait_peer_died(victim).await;
        let bystander = Endpoint::bind("shm://").await.unwrap();
        let to_survivor = bystander.add_peer(survivor.ep.name()).await.unwrap();
        if is_directed {
            let failed = partial.await.unwrap_err();
            assert_peer_gone(&failed.error);
            assert!(
                failed.transfer.len < LONG_LEN,
                "{} bytes",
                failed.transfer.len
            );
        } else {
            // The receive still matches before those posted later.
            bystander.send(to_survivor, "first").tag(3).await.unwrap();
            assert_eq!(&partial.await.unwrap()[..], b"first");
        }
        bystander.send(to_survivor, "second").tag(3).await.unwrap();
        assert_eq!(&queued.await.unwrap()[..], b"second");
    }

    pub(crate) async fn mid_receive(survivor: &mut Survivor, victim: TestPeer) {
        let peer = survivor.ep.recv().tag(1).await.unwrap().source().unwrap();
        survivor.ep.send(peer, "go").tag(2).await.unwrap();
        let failed = survivor
            .ep
            .send(peer, vec![9; LONG_LEN])
            .tag(3)
            .await
            .unwrap_err();
        assert_peer_gone(&failed.error);
        assert_eq!(failed.buf.len(), LONG_LEN, "the buffer returns");
        survivor.wait_peer_died(victim).await;
    }

    /// Every queued send fails once and returns its buffer.
    pub(crate) async fn without_reading(survivor: &mut Survivor, victim: TestPeer) {
        let ep = survivor.ep.clone();
        let peer = ep.recv().tag(1).await.unwrap().source().unwrap();
        let first = ep.send(peer, vec![1; LONG_LEN]).tag(3).start().unwrap();
        let queued: Vec<_> = (0..50u8)
            .map(|at| ep.send(peer, vec![at; 100]).start().unwrap())
            .collect();
        let process = rustix::process::Pid::from_child(&victim.0);
        rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
        assert_peer_gone(&first.await.unwrap_err().error);
        for (at, send) in queued.into_iter().enumerate() {
            let failed = send.await.unwrap_err();
            assert_peer_gone(&failed.error);
            assert_eq!(failed.buf, vec![at as u8; 100]);
        }
        survivor.wait_peer_died(victim).await;
    }

    /// Sends whose messages were received have completed; all others fail and return their buffers.
    pub(crate) async fn with_unreceived_messages(survivor: &mut Survivor, victim: TestPeer) {
        let ep = survivor.ep.clone();
        let peer = ep.recv().tag(1).await.unwrap().source().unwrap();
        let sends: Vec<_> = (0..2 * MESSAGES)
            .map(|number| {
                let mut message = number.to_le_bytes().to_vec();
                message.resize([8, 100, 20_000][number as usize % 3], 1);
                let request = ep.send(peer, message).tag(3);
                let request = if number % 2 == 0 {
                    request.delivery_complete()
                } else {
                    request.match_complete()
                };
                request.start().unwrap()
            })
            .collect();
        ep.send(peer, "go").tag(2).await.unwrap();
        for (number, send) in sends.into_iter().enumerate() {
            match send.await {
                Ok(_) => assert!(
                    number < MESSAGES as usize,
                    "message {number} was not received"
                ),
                Err(failed) => {
                    assert!(
                        number >= MESSAGES as usize,
                        "message {number} was received: {failed}"
                    );
                    assert_peer_gone(&failed.error);
                    assert_eq!(failed.buf[..8], (number as u64).to_le_bytes());
                }
            }
        }
        survivor.wait_peer_died(victim).await;
    }

    pub(crate) async fn after_last_send(survivor: &mut Survivor, victim: TestPeer) {
        let first = survivor.ep.recv().tag(1).await.unwrap();
        let peer = first.source().unwrap();
        assert_eq!(first[..], 0u64.to_le_bytes());
        // Received only after the death.
        survivor.wait_peer_died(victim).await;
        for number in 1..MESSAGES {
            assert_eq!(
                survivor.ep.recv().tag(1).await.unwrap()[..],
                number.to_le_bytes()
            );
        }
        assert_peer_gone(
            &survivor
                .ep
                .recv()
                .tag(1)
                .from(peer)
                .await
                .unwrap_err()
                .error,
        );
    }
}
