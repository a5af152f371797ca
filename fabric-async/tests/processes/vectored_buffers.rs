//! Scatter-gather buffers between processes.

use fabric_async::Endpoint;
use fabric_async::buf::{Gather, Scatter};

use crate::run;
use crate::test_peer::TestPeer;

/// A message is gathered from several buffers, echoed by another process, and scattered again.
#[test]
fn gather_and_scatter_round_trip_between_processes() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let _peer = TestPeer::start("echo", &ep.name().to_string());
        let to = ep.recv().tag(3).await.unwrap().source().unwrap();
        for (round, len) in [8, 60, 4096, 100_000, 2 << 20].into_iter().enumerate() {
            let (head, body) = (vec![round as u8; 24], vec![0xb0 | round as u8; len]);
            let gather = Gather::from((head.clone(), "", body.clone()));
            let target = Scatter::from((vec![0u8; 24].into_boxed_slice(), Vec::with_capacity(len)));
            let (sent, got) = tokio::join!(ep.send(to, gather), ep.recv_into(target).tag(4));
            assert_eq!(sent.unwrap().buf.count(), 3);
            let mut got = got.unwrap().into_buf();
            assert_eq!(&*got.take::<Box<[u8]>>(0).unwrap(), head);
            assert!(got.take::<Vec<u8>>(1).unwrap() == body, "{len} bytes");
        }
    });
}
