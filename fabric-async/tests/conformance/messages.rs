//! Messages of every length, in every kind of buffer.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use fabric_async::buf::{FlatBuf, IoBufMut};
use fabric_async::{Endpoint, FiAddr};

use crate::endpoint_fixture::endpoint_pair;
use crate::payload::{LONG_LEN, assert_bytes, lengths, pattern};
use crate::setup::Setup;

pub(crate) async fn every_length_arrives_whole_in_pooled_memory(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for (which, len) in lengths().enumerate() {
        let message = pattern(len, which).to_vec();
        let at = message.as_ptr();
        let (sent, got) = tokio::join!(a.ep.send(to_b, message), b.ep.recv());
        let (sent, got) = (sent.unwrap(), got.unwrap());
        assert_eq!(
            (sent.len(), sent.buf.as_ptr()),
            (len, at),
            "the buffer is returned unchanged"
        );
        assert_bytes(&sent, pattern(len, which));
        assert_eq!(got.len(), len);
        assert_bytes(&got, pattern(len, which));
        assert_bytes(&got.into_bytes(), pattern(len, which));
    }
}

pub(crate) async fn every_length_arrives_whole_in_own_buffers(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for (which, len) in lengths().enumerate() {
        let recv_buf = Vec::with_capacity(len + which % 3);
        let at = recv_buf.as_ptr();
        // The receive is posted first.
        let (got, sent) = tokio::join!(
            b.ep.recv_into(recv_buf),
            a.ep.send(to_b, pattern(len, which))
        );
        sent.unwrap();
        let got = got.unwrap();
        assert_bytes(&got, pattern(len, which));
        assert_eq!(
            (got.buf.len(), got.buf.as_ptr()),
            (len, at),
            "the buffer is returned with the length of the message"
        );
    }
}

pub(crate) async fn every_length_arrives_whole_under_a_tag(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for (which, len) in lengths().enumerate() {
        let tag = u64::MAX - which as u64;
        let send = a.ep.send(to_b, pattern(len, which)).tag(tag);
        let (sent, got) = tokio::join!(send, b.ep.recv().tag(tag));
        sent.unwrap();
        let got = got.unwrap();
        assert_eq!(got.tag(), Some(tag));
        assert_bytes(&got, pattern(len, which));
    }
}

/// All sends are started before the first receive is posted.
pub(crate) async fn unexpected_messages_arrive_whole(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let lengths: Vec<usize> = lengths().filter(|len| *len < LONG_LEN).collect();
    let sent: Vec<_> = lengths
        .iter()
        .enumerate()
        .map(|(which, &len)| a.ep.send(to_b, pattern(len, which)).start().unwrap())
        .collect();
    let receives = async {
        for (which, &len) in lengths.iter().enumerate() {
            let got = if which % 2 == 0 {
                b.ep.recv().await.unwrap().into_buf().into_vec()
            } else {
                b.ep.recv_into(Vec::with_capacity(len))
                    .await
                    .unwrap()
                    .into_buf()
            };
            assert_bytes(&got, pattern(len, which));
        }
    };
    let sends = async {
        for (sent, len) in sent.into_iter().zip(&lengths) {
            assert_eq!(sent.await.unwrap().len(), *len);
        }
    };
    tokio::join!(sends, receives);
}

pub(crate) async fn every_kind_of_buffer_can_be_sent(setup: Setup) {
    async fn send<B: FlatBuf>(a: &Endpoint, b: &Endpoint, to_b: FiAddr, buf: B) -> B {
        let expected = buf.bytes().to_vec();
        let (sent, got) = tokio::join!(a.send(to_b, buf), b.recv());
        assert_bytes(&got.unwrap(), &expected);
        let sent = sent.unwrap();
        assert_bytes(&sent, &expected);
        sent.into_buf()
    }
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let (a, b) = (&a.ep, &b.ep);
    for len in [0, 8, 3000, 100_000] {
        let bytes = pattern(len, 5);
        let vec = bytes.to_vec();
        let at = vec.as_ptr();
        let back = send(a, b, to_b, vec).await;
        assert_eq!(back.as_ptr(), at);
        let boxed: Box<[u8]> = bytes.into();
        let at = boxed.as_ptr();
        let back = send(a, b, to_b, boxed).await;
        assert_eq!(back.as_ptr(), at);
        let shared = Bytes::copy_from_slice(bytes);
        let at = shared.as_ptr();
        assert_eq!(send(a, b, to_b, shared).await.as_ptr(), at);
        send(a, b, to_b, BytesMut::from(bytes)).await;
        let shared: Arc<[u8]> = bytes.into();
        let back = send(a, b, to_b, shared.clone()).await;
        assert!(Arc::ptr_eq(&back, &shared));
        assert_eq!(send(a, b, to_b, bytes).await.as_ptr(), bytes.as_ptr());
        let text: String = bytes
            .iter()
            .map(|byte| char::from(byte % 26 + b'a'))
            .collect();
        let at = text.as_ptr();
        let back = send(a, b, to_b, text).await;
        assert_eq!(back.as_ptr(), at);
    }
    assert_eq!(send(a, b, to_b, "hello, fabric").await, "hello, fabric");
    assert_eq!(send(a, b, to_b, b"array").await, b"array");
    assert_eq!(send(a, b, to_b, [7; 0]).await, [7; 0]);
    assert_eq!(send(a, b, to_b, [7; 31]).await, [7; 31]);
    assert_eq!(send(a, b, to_b, [7; 32]).await, [7; 32]);
    assert_eq!(send(a, b, to_b, [7; 9000]).await, [7; 9000]);
}

/// Short arrays, which are stored in the operation, stay intact while their operations are queued.
pub(crate) async fn queued_arrays_arrive_whole(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let sends: Vec<_> = (0..50u8)
        .map(|number| a.ep.send(to_b, [number; 20]).start().unwrap())
        .collect();
    let receives: Vec<_> = (0..50u8)
        .map(|_| b.ep.recv_into([0xff; 24]).start().unwrap())
        .collect();
    for (number, receive) in receives.into_iter().enumerate() {
        let got = receive.await.unwrap();
        assert_eq!((got.len(), &got[..]), (20, &[number as u8; 20][..]));
        assert_eq!(got.into_buf()[20..], [0xff; 4], "an array keeps its length");
    }
    for (number, send) in sends.into_iter().enumerate() {
        assert_eq!(send.await.unwrap().into_buf(), [number as u8; 20]);
    }
}

pub(crate) async fn every_kind_of_buffer_can_receive(setup: Setup) {
    async fn receive<B: IoBufMut + FlatBuf>(
        a: &Endpoint,
        b: &Endpoint,
        to_b: FiAddr,
        len: usize,
        recv_buf: B,
    ) -> B {
        let (got, sent) = tokio::join!(b.recv_into(recv_buf), a.send(to_b, pattern(len, 9)));
        sent.unwrap();
        let got = got.unwrap();
        assert_bytes(&got, pattern(len, 9));
        got.into_buf()
    }
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let (a, b) = (&a.ep, &b.ep);
    for len in [0, 8, 3000, 100_000] {
        let boxed = receive(a, b, to_b, len, vec![7; len + 10].into_boxed_slice()).await;
        assert_eq!(
            (boxed.len(), &boxed[len..]),
            (len + 10, &[7; 10][..]),
            "a boxed slice keeps its length"
        );
        // The contents of a vector are replaced: only its capacity counts.
        assert_eq!(receive(a, b, to_b, len, vec![7; len]).await.len(), len);
        assert_eq!(
            receive(a, b, to_b, len, BytesMut::with_capacity(len))
                .await
                .len(),
            len
        );
        let (sent, pooled) = tokio::join!(a.send(to_b, "x"), b.recv());
        sent.unwrap();
        assert_eq!(
            receive(a, b, to_b, len, pooled.unwrap().into_buf())
                .await
                .len(),
            len
        );
    }
}

/// The receiver sends the pooled buffer back, as a `PooledBuf` and as `Bytes`.
pub(crate) async fn received_buffer_can_be_sent_without_copy(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for (which, len) in [0, 60, 9000, 200_000].into_iter().enumerate() {
        for as_bytes in [false, true] {
            let echo = async {
                let message = b.ep.recv().await.unwrap();
                let back = message.source().unwrap();
                if as_bytes {
                    b.ep.send(back, message.into_bytes())
                        .await
                        .map(drop)
                        .unwrap();
                } else {
                    b.ep.send(back, message.into_buf()).await.map(drop).unwrap();
                }
            };
            let ask = async {
                a.ep.send(to_b, pattern(len, which)).await.unwrap();
                a.ep.recv().await.unwrap()
            };
            let (got, ()) = tokio::join!(ask, echo);
            assert_bytes(&got, pattern(len, which));
        }
    }
}

pub(crate) async fn bind_opens_a_working_endpoint(setup: Setup) {
    let options = Endpoint::options()
        .progress(setup.progress)
        .wait_policy(setup.wait_policy);
    let server = options
        .clone()
        .bind(setup.unique_address("bind"))
        .await
        .unwrap();
    let client = options.bind(setup.unnamed_address()).await.unwrap();
    assert_eq!(server.domain().info().domain.data_progress, setup.progress);
    assert!(!client.name().name().is_empty(), "a name was chosen");
    let peer = client.add_peer(server.name()).await.unwrap();
    let serve = async {
        let question = server.recv().await.unwrap();
        assert_eq!(
            question.source(),
            Ok(server.address_vector().insert(client.name()).unwrap())
        );
        server
            .send(question.source().unwrap(), question.into_bytes())
            .await
            .unwrap();
    };
    let ask = async {
        client.send(peer, "hello, fabric").await.unwrap();
        client.recv().await.unwrap()
    };
    let (answer, ()) = tokio::join!(ask, serve);
    assert_eq!(&answer[..], b"hello, fabric");
    assert!(client.take_completions().is_some() && client.take_completions().is_none());
    assert!(client.take_events().is_some() && client.take_events().is_none());
}
