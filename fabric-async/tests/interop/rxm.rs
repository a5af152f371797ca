//! Programs that speak RXM: what is done to memory, both ways.

use crate::memory::{
    a_wrong_key_ends_it, data_is_reported, deeds_are_counted, our_memory_is_reached,
    we_reach_memory,
};
use fabric_async::RemoteSlice;

use crate::{pattern, play_in_rxm};

#[test]
fn we_reach_memory_of_libfabric() {
    play_in_rxm(false, we_reach_memory);
}

#[test]
fn data_of_our_writes_is_reported_by_libfabric() {
    play_in_rxm(false, data_is_reported);
}

#[test]
fn libfabric_reaches_our_memory() {
    play_in_rxm(false, our_memory_is_reached);
}

#[test]
fn what_libfabric_does_is_counted() {
    play_in_rxm(false, deeds_are_counted);
}

#[test]
fn a_wrong_key_ends_the_connection_and_no_more() {
    play_in_rxm(false, a_wrong_key_ends_it);
}

/// Long messages are read by who receives them, with the reads that programs have too: answers come
/// in the order of all of them.
#[test]
fn reads_of_programs_and_of_messages_do_not_mix() {
    const LEN: usize = 700_000;
    play_in_rxm(false, async |us, they| {
        they.must("region 7 1000000", "region").await;
        they.must("put 0 1000000 9", "put").await;
        they.must(format!("to 127.0.0.1 {}", us.port()), "to").await;
        let region = us
            .domain
            .alloc_with_key(LEN, fabric_async::Access::REMOTE_READ, 11)
            .unwrap();
        region.write(0, &pattern(LEN, 5)).unwrap();
        let peer = us.number(&they);
        let slice = |offset, len| RemoteSlice {
            key: 7,
            offset,
            len,
        };
        for round in 0..4 {
            let before = us.ep.read(peer, slice(7, 300_000)).start().unwrap();
            they.must(format!("send 1 {LEN} {round} - 0 0"), "posted")
                .await;
            let message = us.ep.recv().start().unwrap();
            let behind: Vec<_> = (0..20)
                .map(|at| us.ep.read(peer, slice(at, 100_000)).start().unwrap())
                .collect();
            let bytes = pattern(1_000_000, 9);
            assert!(before.await.unwrap()[..] == bytes[7..300_007]);
            assert!(message.await.unwrap()[..] == pattern(LEN, round)[..]);
            for (at, read) in behind.into_iter().enumerate() {
                assert!(read.await.unwrap()[..] == bytes[at..at + 100_000], "{at}");
            }
            they.done(1).await;
            // And the other way round.
            they.must(format!("recv 2 {LEN} - 0"), "posted").await;
            let sending = us.ep.send(peer, pattern(LEN, round + 60)).start().unwrap();
            sending.await.unwrap();
            they.done(2).await;
            they.must(format!("seen {LEN} {}", round + 60), "same")
                .await;
            they.must(format!("read 3 11:0:{LEN}"), "posted").await;
            they.done(3).await;
            they.must(format!("seen {LEN} 5"), "same").await;
        }
    });
}
