//! Messages longer than the buffer of their receive.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fabric_async::Error;
use fabric_async::buf::CustomBuf;

use crate::endpoint_fixture::{EndpointConfig, endpoint_pair, endpoint_pair_with, flush};
use crate::payload::{LONG_LEN, assert_bytes, pattern, yield_times};
use crate::setup::Setup;

/// Lengths of messages and capacities of receive buffers: messages in one segment and in several,
/// truncated in the first segment, in a later segment, and between segments.
const LEN_AND_CAPACITY: [(usize, usize); 9] = [
    (1, 0),
    (100, 10),
    (8000, 7999),
    (20_000, 0),
    (100_000, 100),
    (100_000, 8192),
    (100_000, 99_999),
    (300_000, 16_384),
    (1 << 20, 200_000),
];

pub(crate) async fn expected_messages_are_truncated_to_the_buffer(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for (len, capacity) in LEN_AND_CAPACITY {
        let recv =
            b.ep.recv_into(vec![0; capacity + 1].into_boxed_slice())
                .tag(1)
                .start()
                .unwrap();
        let truncated =
            b.ep.recv_into(vec![0xee; capacity].into_boxed_slice())
                .tag(2)
                .start()
                .unwrap();
        let send = a.ep.send(to_b, pattern(len, 1)).tag(2);
        let other = a.ep.send(to_b, pattern(capacity + 1, 2)).tag(1);
        let (sent, other_sent, truncated, whole) = tokio::join!(send, other, truncated, recv);
        assert_eq!(
            sent.expect("the sender does not learn of the truncation")
                .len(),
            len
        );
        other_sent.unwrap();
        let failed = truncated.unwrap_err();
        assert_eq!(
            failed.error,
            Error::Truncated {
                len: capacity,
                lost: len - capacity
            }
        );
        assert_eq!(
            (failed.transfer.len, failed.buf.len()),
            (capacity, capacity)
        );
        assert_bytes(&failed.buf, &pattern(len, 1)[..capacity]);
        assert_bytes(
            &whole.expect("the capacity suffices"),
            pattern(capacity + 1, 2),
        );
    }
}

pub(crate) async fn unexpected_messages_are_truncated_to_the_buffer(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for (len, capacity) in LEN_AND_CAPACITY {
        let (sent, ()) = tokio::join!(a.ep.send(to_b, pattern(len, 1)), flush(&a, &b, to_b));
        sent.unwrap();
        let failed =
            b.ep.recv_into(vec![0xee; capacity].into_boxed_slice())
                .await
                .unwrap_err();
        assert_eq!(
            failed.error,
            Error::Truncated {
                len: capacity,
                lost: len - capacity
            }
        );
        assert_eq!(
            (failed.transfer.len, failed.buf.len()),
            (capacity, capacity)
        );
        assert_bytes(&failed.buf, &pattern(len, 1)[..capacity]);
    }
}

pub(crate) async fn message_after_a_truncated_one_arrives_whole(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for early in [true, false] {
        let start = |capacity: usize| {
            b.ep.recv_into(Vec::with_capacity(capacity))
                .start()
                .unwrap()
        };
        let early = early.then(|| (start(1000), start(300_000)));
        let sends = async {
            a.ep.send(to_b, pattern(300_000, 3)).await.unwrap();
            a.ep.send(to_b, pattern(300_000, 4)).await.unwrap();
        };
        let receives = async {
            let (truncated, whole) = early.unwrap_or_else(|| (start(1000), start(300_000)));
            let failed = truncated.await.unwrap_err();
            let capacity = failed.buf.capacity();
            assert_eq!(
                failed.error,
                Error::Truncated {
                    len: capacity,
                    lost: 300_000 - capacity
                }
            );
            assert_bytes(&failed.buf, &pattern(300_000, 3)[..capacity]);
            assert_bytes(&whole.await.unwrap(), pattern(300_000, 4));
        };
        tokio::join!(sends, receives);
    }
}

pub(crate) async fn truncated_receive_reports_tag_data_and_source(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let from_a = b.av.insert(a.ep.name()).unwrap();
    for len in [50, 50_000] {
        let send = a.ep.send(to_b, pattern(len, 0)).tag(5).data(6);
        let capacity = vec![0; 4].into_boxed_slice();
        let (sent, got) = tokio::join!(send, b.ep.recv_into(capacity).tag(5));
        sent.unwrap();
        let transfer = got.unwrap_err().transfer;
        let details = (transfer.len, transfer.tag, transfer.data, transfer.source);
        assert_eq!(details, (4, Some(5), Some(6), Some(from_a)));
    }
}

/// An endpoint receives at most `max_msg_size` bytes, of expected and unexpected messages, and
/// sends no more.
pub(crate) async fn messages_are_limited_to_max_msg_size(setup: Setup) {
    const LIMIT: usize = 3000;
    let limited = EndpointConfig {
        max_msg_size: Some(LIMIT),
        ..EndpointConfig::default()
    };
    let (a, b, to_b) = endpoint_pair_with(&setup, EndpointConfig::default(), limited).await;
    for len in [LIMIT, LIMIT + 1, LONG_LEN] {
        for expected in [true, false] {
            let receive = expected.then(|| b.ep.recv().start().unwrap());
            let sent = async {
                a.ep.send(to_b, pattern(len, 1)).await.unwrap();
            };
            let received = async {
                match receive {
                    Some(operation) => operation.await,
                    None => {
                        yield_times(20).await;
                        b.ep.recv().await
                    }
                }
            };
            match tokio::join!(sent, received).1 {
                Ok(message) => {
                    assert_eq!(len, LIMIT);
                    assert_bytes(&message, pattern(LIMIT, 1));
                }
                Err(failed) => {
                    assert_eq!(
                        failed.error,
                        Error::Truncated {
                            len: LIMIT,
                            lost: len - LIMIT
                        }
                    );
                    assert_bytes(&failed.buf, pattern(LIMIT, 1));
                }
            }
        }
    }
    let to_a = b.add_peer(&a).await;
    let refused = b.ep.send(to_a, vec![0; LIMIT + 1]).start().unwrap_err();
    assert!(
        matches!(refused.error, Error::TooLong { limit: LIMIT, .. }),
        "{refused}"
    );
}

/// A panic in a method of a custom buffer fails the receive with that buffer. Other receives go on.
pub(crate) async fn custom_buffer_that_panics_fails_its_receive_only(setup: Setup) {
    #[derive(Debug)]
    struct PanickingBuf;
    // SAFETY: there are no bytes.
    #[allow(unsafe_code)]
    unsafe impl CustomBuf for PanickingBuf {
        fn bytes(&self) -> &[u8] {
            &[]
        }
        fn writable(&mut self) -> Option<&mut [u8]> {
            std::panic::panic_any(())
        }
        fn set_filled(&mut self, _: usize) {
            std::panic::panic_any(())
        }
    }
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for len in [10, 20_000] {
        for awaited in [false, true] {
            let buf: Box<dyn CustomBuf> = Box::new(PanickingBuf);
            let request = b.ep.recv_into(buf);
            let started = if awaited {
                Err(request)
            } else {
                Ok(request.start().unwrap())
            };
            let send = a.ep.send(to_b, pattern(len, 1));
            let (sent, received) = match started {
                Ok(receive) => tokio::join!(send, receive),
                Err(request) => tokio::join!(send, request),
            };
            sent.unwrap();
            assert_eq!(
                received.map(drop).unwrap_err().error,
                Error::Truncated { len: 0, lost: len }
            );
            let (sent, received) = tokio::join!(a.ep.send(to_b, pattern(len, 2)), b.ep.recv());
            sent.unwrap();
            assert_bytes(&received.unwrap(), pattern(len, 2));
        }
    }
}

/// A panic in a method of a custom buffer unwinds through the post. The endpoint works on.
pub(crate) async fn custom_buffer_that_panics_fails_its_post_only(setup: Setup) {
    /// Bytes that can be read this often.
    #[derive(Debug)]
    struct PanickingBuf(Arc<AtomicUsize>);
    // SAFETY: the bytes are static.
    #[allow(unsafe_code)]
    unsafe impl CustomBuf for PanickingBuf {
        fn bytes(&self) -> &[u8] {
            if self.0.fetch_sub(1, Ordering::Relaxed) == 0 {
                std::panic::panic_any(());
            }
            b"custom"
        }
        fn writable(&mut self) -> Option<&mut [u8]> {
            None
        }
        fn set_filled(&mut self, _: usize) {}
    }
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let mut panics = 0;
    for reads in 0..8 {
        let reads = Arc::new(AtomicUsize::new(reads));
        let buf: Box<dyn CustomBuf> = Box::new(PanickingBuf(reads.clone()));
        let post = AssertUnwindSafe(|| a.ep.send(to_b, buf).start().unwrap());
        let posted = catch_unwind(post);
        panics += usize::from(posted.is_err());
        if let Ok(sent) = posted {
            // Passes may read the bytes too.
            reads.store(usize::MAX, Ordering::Relaxed);
            let (sent, received) = tokio::join!(sent, b.ep.recv());
            sent.unwrap();
            assert_bytes(&received.unwrap(), b"custom");
            break;
        }
        let (sent, received) = tokio::join!(a.ep.send(to_b, pattern(10, 2)), b.ep.recv());
        sent.unwrap();
        assert_bytes(&received.unwrap(), pattern(10, 2));
    }
    assert!(panics > 0, "a post reads the bytes");
}
