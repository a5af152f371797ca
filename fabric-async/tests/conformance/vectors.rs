//! Vectored buffers: one message from several buffers, and into several.

use bytes::{Bytes, BytesMut};
use fabric_async::buf::{Gather, Scatter};
use fabric_async::{Access, Done, Error};

use crate::endpoint_fixture::{EndpointConfig, endpoint_pair, endpoint_pair_with};
use crate::payload::{LONG_LEN, TestRng, assert_bytes, lengths, pattern, poll_once};
use crate::setup::Setup;

/// Cuts `len` into `count` lengths, some of them 0.
fn split_lengths(len: usize, count: usize, rng: &mut TestRng) -> Vec<usize> {
    let mut borders: Vec<usize> = (1..count)
        .map(|_| (rng.next() % (len as u64 + 1)) as usize)
        .collect();
    borders.extend([0, 0, len]);
    borders.sort_unstable();
    borders.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

/// Returns the bytes in `count` buffers of several types.
fn gather_of(bytes: &'static [u8], count: usize, rng: &mut TestRng) -> Gather {
    let mut rest = bytes;
    split_lengths(bytes.len(), count, rng)
        .into_iter()
        .enumerate()
        .fold(Gather::new(), |gather, (which, len)| {
            let (piece, behind) = rest.split_at(len);
            rest = behind;
            match which % 4 {
                0 => gather.with(piece),
                1 => gather.with(piece.to_vec()),
                2 => gather.with(Bytes::copy_from_slice(piece)),
                _ => gather.with(BytesMut::from(piece)),
            }
        })
}

/// Returns `count` buffers of several types, `len` bytes in all.
fn scatter_of(len: usize, count: usize, rng: &mut TestRng) -> Scatter {
    split_lengths(len, count, rng).into_iter().enumerate().fold(
        Scatter::new(),
        |scatter, (which, len)| match which % 3 {
            0 => scatter.with(vec![7; len].into_boxed_slice()),
            1 => scatter.with(Vec::with_capacity(len)),
            _ => scatter.with(BytesMut::with_capacity(len)),
        },
    )
}

fn concat_bytes(scatter: &Scatter) -> Vec<u8> {
    scatter.pieces().collect::<Vec<_>>().concat()
}

pub(crate) async fn every_length_is_gathered_and_scattered(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let mut rng = TestRng::new(7);
    for (which, len) in lengths().enumerate() {
        let bytes = pattern(len, which);
        let gather = gather_of(bytes, 1 + which % 7, &mut rng);
        let count = gather.count();
        let target = scatter_of(len, 1 + which % 5, &mut rng);
        let (sent, got) = tokio::join!(a.ep.send(to_b, gather), b.ep.recv_into(target));
        let (sent, got) = (sent.unwrap(), got.unwrap());
        assert_eq!((sent.len(), sent.buf.count(), got.len()), (len, count, len));
        assert_bytes(&sent.buf.pieces().collect::<Vec<_>>().concat(), bytes);
        assert_bytes(&concat_bytes(&got.buf), bytes);
    }
}

pub(crate) async fn unexpected_vectors_arrive_whole(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let mut rng = TestRng::new(9);
    let lengths = [0, 1, 60, 4096, 9000, 100_000];
    let operations: Vec<_> = lengths
        .into_iter()
        .map(|len| {
            a.ep.send(to_b, gather_of(pattern(len, 3), 4, &mut rng))
                .tag(1)
                .start()
                .unwrap()
        })
        .collect();
    let gather = gather_of(pattern(200, 4), 3, &mut rng);
    let (last, marker) = tokio::join!(a.ep.send(to_b, gather).tag(2), b.ep.recv().tag(2));
    last.unwrap();
    assert_bytes(&marker.unwrap(), pattern(200, 4));
    for len in lengths {
        let got =
            b.ep.recv_into(scatter_of(len, 3, &mut rng))
                .tag(1)
                .await
                .unwrap();
        assert_bytes(&concat_bytes(&got.buf), pattern(len, 3));
    }
    for operation in operations {
        operation.await.unwrap();
    }
}

pub(crate) async fn completed_ops_return_the_original_buffers(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let (head, body) = (vec![1u8; 16], Bytes::from_static(b"body"));
    let at = (head.as_ptr(), body.as_ptr());
    let mut sent =
        a.ep.send(to_b, Gather::from((head, body)))
            .await
            .unwrap()
            .into_buf();
    let (head, body) = (
        sent.take::<Vec<u8>>(0).unwrap(),
        sent.take::<Bytes>(1).unwrap(),
    );
    assert_eq!((head.as_ptr(), body.as_ptr()), at);
    let pooled = {
        a.ep.send(to_b, "x").await.unwrap();
        let first = b.ep.recv_into(Vec::with_capacity(20)).await.unwrap();
        assert_bytes(&first, &[&head[..], b"body"].concat());
        b.ep.recv().await.unwrap().into_buf()
    };
    // A fixed header, and a pooled buffer for the rest.
    a.ep.send(to_b, pattern(5000, 1)).await.unwrap();
    let target = Scatter::from((vec![0u8; 16].into_boxed_slice(), pooled));
    let mut got = b.ep.recv_into(target).await.unwrap().into_buf();
    assert_bytes(&got.take::<Box<[u8]>>(0).unwrap(), &pattern(5000, 1)[..16]);
    assert_bytes(
        &got.take::<fabric_async::PooledBuf>(1).unwrap(),
        &pattern(5000, 1)[16..],
    );
    assert!(
        got.take::<Vec<u8>>(0).is_none(),
        "the buffer was taken already"
    );
}

pub(crate) async fn empty_vectors_are_sent_and_received(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for gather in [Gather::new(), Gather::from([Vec::new(), Vec::new()])] {
        a.ep.send(to_b, gather).await.unwrap();
    }
    assert_eq!(b.ep.recv().await.unwrap().len(), 0);
    assert_eq!(b.ep.recv_into(Scatter::new()).await.unwrap().len(), 0);
    a.ep.send(to_b, Gather::from(["", "abc", "", "d", ""]))
        .await
        .unwrap();
    let failed = b.ep.recv_into(Scatter::new()).await.unwrap_err();
    assert_eq!(failed.error, Error::Truncated { len: 0, lost: 4 });
}

pub(crate) async fn truncation_fills_every_scatter_buffer(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for len in [10, 9000, 300_000] {
        for unexpected in [false, true] {
            let target = Scatter::from([
                Vec::with_capacity(3),
                Vec::with_capacity(0),
                Vec::with_capacity(5),
            ]);
            let sends = async {
                a.ep.send(to_b, gather_of(pattern(len, 2), 3, &mut TestRng::new(3)))
                    .tag(1)
                    .await
                    .unwrap();
                a.ep.send(to_b, "behind").tag(2).await.unwrap();
            };
            let receives = async {
                if unexpected {
                    b.ep.recv().tag(2).await.unwrap();
                }
                let failed = b.ep.recv_into(target).tag(1).await.unwrap_err();
                if !unexpected {
                    b.ep.recv().tag(2).await.unwrap();
                }
                failed
            };
            let ((), failed) = tokio::join!(sends, receives);
            assert_eq!(
                failed.error,
                Error::Truncated {
                    len: 8,
                    lost: len - 8
                }
            );
            let parts = failed.buf.into_parts::<Vec<u8>>().unwrap();
            assert_eq!(parts, [&pattern(8, 2)[..3], &[], &pattern(8, 2)[3..]]);
        }
    }
}

pub(crate) async fn vector_beyond_iov_limit_is_refused(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let limit = a.info.tx.iov_limit;
    assert!(
        limit > 1 && a.info.rx.iov_limit == limit,
        "the provider supports vectored buffers"
    );
    let one_byte_buffers = |count: usize| {
        (0..count)
            .map(|number| vec![number as u8])
            .collect::<Vec<_>>()
    };
    let refused = |error: Error| {
        assert_eq!(
            error,
            Error::TooMany {
                what: "buffers of one operation (iov_limit)",
                count: limit + 1,
                limit
            }
        );
    };
    let failed =
        a.ep.send(to_b, Gather::from(one_byte_buffers(limit + 1)))
            .await
            .unwrap_err();
    assert_eq!(
        failed.buf.into_parts::<Vec<u8>>().unwrap(),
        one_byte_buffers(limit + 1),
        "the buffers are returned"
    );
    refused(failed.error);
    refused(
        a.ep.send(to_b, Gather::from(one_byte_buffers(limit + 1)))
            .start()
            .unwrap_err()
            .error,
    );
    refused(
        a.ep.recv_into(Scatter::from(one_byte_buffers(limit + 1)))
            .await
            .unwrap_err()
            .error,
    );
    refused(
        a.ep.recv_into(Scatter::from(one_byte_buffers(limit + 1)))
            .post()
            .unwrap_err()
            .error,
    );
    let region = b
        .domain
        .alloc(4096, Access::REMOTE_READ | Access::REMOTE_WRITE)
        .unwrap();
    let remote = region.remote();
    refused(
        a.ep.write(
            to_b,
            remote.at(0),
            Gather::from(one_byte_buffers(limit + 1)),
        )
        .await
        .unwrap_err()
        .error,
    );
    let scatter = Scatter::from(one_byte_buffers(limit + 1));
    refused(
        a.ep.read_into(to_b, remote.slice(..8), scatter)
            .await
            .unwrap_err()
            .error,
    );
    let (sent, got) = tokio::join!(
        a.ep.send(to_b, Gather::from(one_byte_buffers(limit))),
        b.ep.recv_into(Scatter::from(vec![vec![9u8]; limit])),
    );
    sent.unwrap();
    assert_eq!(
        got.unwrap().buf.into_parts::<Vec<u8>>().unwrap(),
        one_byte_buffers(limit)
    );
}

pub(crate) async fn vectors_are_written_and_read_by_rma(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let mut rng = TestRng::new(11);
    let region = b
        .domain
        .alloc((1 << 20) + 16, Access::REMOTE_READ | Access::REMOTE_WRITE)
        .unwrap();
    let remote = region.remote();
    for len in [0, 1, 8, 4096, 100_001, 300_000, 1 << 20] {
        let bytes = pattern(len, 5);
        let done =
            a.ep.write(to_b, remote.at(3), gather_of(bytes, 6, &mut rng))
                .await
                .unwrap();
        assert_eq!((done.len(), done.buf.count()), (len, 7));
        let mut there = vec![0; len];
        region.read(3, &mut there).unwrap();
        assert_bytes(&there, bytes);
        let slice = remote.slice(3..3 + len as u64);
        let done =
            a.ep.read_into(to_b, slice, scatter_of(len, 6, &mut rng))
                .await
                .unwrap();
        assert_eq!(done.len(), len);
        assert_bytes(&concat_bytes(&done.buf), bytes);
    }
    let small = Scatter::from([Vec::with_capacity(4), Vec::with_capacity(3)]);
    let failed =
        a.ep.read_into(to_b, remote.slice(..8), small)
            .await
            .unwrap_err();
    assert_eq!(
        failed.error,
        Error::BufferTooSmall {
            len: 8,
            capacity: 7
        }
    );
    assert_eq!(failed.buf.count(), 2);
}

pub(crate) async fn cq_entries_return_the_vector(setup: Setup) {
    let (mut a, mut b, to_b) = endpoint_pair(&setup).await;
    let (gather, target) = (
        Gather::from(["ab", "cde"]),
        Scatter::from([Vec::with_capacity(1), vec![0; 9]]),
    );
    b.ep.recv_into(target).context(2).post().unwrap();
    a.ep.send(to_b, gather).context(1).post().unwrap();
    let (mut sent, mut got) = (Vec::new(), Vec::new());
    a.cq.read_batch(&mut sent, 1).await;
    b.cq.read_batch(&mut got, 1).await;
    let (mut sent, got) = (sent.pop().unwrap(), got.pop().unwrap());
    assert_eq!(
        (sent.context, sent.transfer.len, sent.bytes()),
        (1, 5, &[][..])
    );
    assert!(
        sent.take_buf::<Scatter>().is_none(),
        "the buffer is of another type"
    );
    assert_eq!(
        sent.take_buf::<Gather>()
            .unwrap()
            .into_parts::<&'static str>()
            .unwrap(),
        ["ab", "cde"]
    );
    let got: Done<Scatter> = got.into_result().unwrap();
    assert_eq!(
        got.into_buf().into_parts::<Vec<u8>>().unwrap(),
        [&b"a"[..], b"bcde"]
    );
}

/// A message whose receive is dropped after some buffers were filled goes to the next receive.
pub(crate) async fn dropped_scatter_receive_loses_no_message(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for len in [7, 5000, LONG_LEN] {
        let sending = async {
            a.ep.send(to_b, gather_of(pattern(len, 6), 5, &mut TestRng::new(1)))
                .await
                .unwrap()
        };
        let receiving = async {
            for polls in 0..20 {
                let boxed = vec![3u8; 3].into_boxed_slice();
                let target =
                    Scatter::from((boxed, Vec::with_capacity(len), Vec::with_capacity(LONG_LEN)));
                let mut receive = b.ep.recv_into(target).start().unwrap();
                for _ in 0..polls % 4 {
                    if let std::task::Poll::Ready(got) = poll_once(&mut receive).await {
                        return concat_bytes(&got.unwrap().buf);
                    }
                }
                drop(receive);
                tokio::task::yield_now().await;
            }
            b.ep.recv().await.unwrap().to_vec()
        };
        let (_, got) = tokio::join!(sending, receiving);
        assert_bytes(&got, pattern(len, 6));
    }
}

/// Vectored sends that hold all credits are sent; a further one is refused with its buffers.
pub(crate) async fn vector_sends_run_out_of_credit(setup: Setup) {
    let config = EndpointConfig {
        tx_size: Some(4),
        ..EndpointConfig::default()
    };
    let (a, b, to_b) = endpoint_pair_with(&setup, config, EndpointConfig::default()).await;
    let mut in_progress = Vec::new();
    let refused = loop {
        match a
            .ep
            .send(to_b, Gather::from([pattern(LONG_LEN, 0), b"end"]))
            .start()
        {
            Ok(operation) => in_progress.push(operation),
            Err(failed) => break failed,
        }
    };
    assert!(
        matches!(refused.error, Error::WouldBlock(_)),
        "{}",
        refused.error
    );
    assert_eq!(refused.buf.len(), LONG_LEN + 3);
    for operation in in_progress {
        let (sent, got) = tokio::join!(operation, b.ep.recv());
        assert_eq!(sent.unwrap().buf.count(), 2);
        assert_bytes(&got.unwrap()[LONG_LEN..], b"end");
    }
}
