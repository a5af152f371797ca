//! Byte streams and frames beyond the traits: whole messages, halves, credentials, frames, and
//! peers of other protocols. `async_io.rs` tests the traits.

use std::future::{Future, IntoFuture, poll_fn};
use std::io::{Error, ErrorKind, IoSlice};
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use fabric_async::stream::{
    FabricFrames, FabricListener, FabricStream, MAX_FRAME_LEN, MAX_WRITE_LEN,
};
use fabric_async::{ConnectedEndpoint, Endpoint, PassiveEndpoint};
use futures_util::{FutureExt, Sink, SinkExt, Stream, StreamExt};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

const ADDRESSES: [&str; 2] = ["shm://", "tcp://127.0.0.1:0"];
const STREAM_PROTOCOL: &str = "fabric-stream/1";

/// Runs a test once for each transport. The time limit detects hangs; it is no measurement.
fn run<F: Future<Output = ()>>(test: impl Fn(&'static str) -> F) {
    for address in ADDRESSES {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().unwrap();
        let limited = async { timeout(Duration::from_secs(60), test(address)).await };
        runtime.block_on(limited).expect("the test hangs");
    }
}

async fn streams(address: &str) -> (FabricStream, FabricStream) {
    let mut listener = FabricListener::bind(address).await.unwrap();
    let connect = FabricStream::connect(listener.local_addr().clone());
    tokio::try_join!(connect, listener.accept()).unwrap()
}

async fn frames(address: &str) -> (FabricFrames, FabricFrames) {
    let mut listener = FabricListener::bind_frames(address).await.unwrap();
    let connect = FabricFrames::connect(listener.local_addr().clone());
    tokio::try_join!(connect, listener.accept()).unwrap()
}

/// Connects a stream and an endpoint of the same protocol, which may violate it.
async fn stream_and_endpoint(address: &str) -> (FabricStream, ConnectedEndpoint) {
    let mut listener = FabricListener::bind(address).await.unwrap();
    let connect = ConnectedEndpoint::connect(listener.local_addr()).private_data(STREAM_PROTOCOL);
    let accept = async { Ok(listener.accept().await.unwrap()) };
    let (ep, stream) = tokio::try_join!(connect.into_future(), accept).unwrap();
    (stream, ep)
}

#[test]
fn whole_messages_are_read_without_a_copy() {
    run(async |address| {
        let (mut a, mut b) = streams(address).await;
        for byte in [1, 2] {
            let bytes = [byte; 50_000];
            let slices = [&bytes[..10_000], &bytes[10_000..]].map(IoSlice::new);
            assert_eq!(a.write_vectored(&slices).await.unwrap(), 50_000);
        }
        a.shutdown().await.unwrap();
        let lent = b.fill_buf().await.unwrap();
        let (memory, len) = (lent.as_ptr(), lent.len());
        let message = b.read_message().await.unwrap().expect("a message");
        assert_eq!((message.as_ptr(), message.len()), (memory, len));
        assert_eq!(message, vec![1; 50_000]);
        // The rest of a message that was begun is read without a copy too.
        let begun = b.fill_buf().await.unwrap().as_ptr();
        assert_eq!(b.read_u16().await.unwrap(), 0x0202);
        let rest = b.read_message().await.unwrap().expect("the rest");
        assert_eq!((rest.as_ptr(), rest.len()), (begun.wrapping_add(2), 49_998));
        for _ in 0..2 {
            assert_eq!(b.read_message().await.unwrap(), None);
        }
    });
}

#[test]
fn vectored_write_is_one_message() {
    run(async |address| {
        let (mut a, mut b) = streams(address).await;
        let slices = [&b"one "[..], b"", b"message"].map(IoSlice::new);
        assert_eq!(a.write_vectored(&slices).await.unwrap(), 11);
        assert_eq!(b.read_message().await.unwrap().unwrap(), "one message");
        let long = vec![3; MAX_WRITE_LEN - 10];
        let slices = [IoSlice::new(&long), IoSlice::new(&long)];
        assert_eq!(a.write_vectored(&slices).await.unwrap(), MAX_WRITE_LEN);
        assert_eq!(
            b.read_message().await.unwrap().unwrap().len(),
            MAX_WRITE_LEN
        );
    });
}

#[test]
fn short_write_is_one_message() {
    run(async |address| {
        let (mut a, mut b) = streams(address).await;
        for len in [1, 100, 8192] {
            a.write_all(&vec![4; len]).await.unwrap();
            assert_eq!(b.read_message().await.unwrap().unwrap(), vec![4; len]);
        }
    });
}

#[test]
fn empty_write_sends_nothing() {
    run(async |address| {
        let (mut a, mut b) = streams(address).await;
        assert_eq!(a.write(b"").await.unwrap(), 0);
        assert_eq!(a.write_vectored(&[IoSlice::new(b"")]).await.unwrap(), 0);
        a.write_all(b"bytes").await.unwrap();
        assert_eq!(b.read_message().await.unwrap().unwrap(), "bytes");
    });
}

#[test]
fn halves_on_two_tasks_exchange_messages() {
    run(async |address| {
        let (a, b) = streams(address).await;
        let (mut reader, mut writer) = b.into_split();
        let echo = tokio::spawn(async move {
            while let Some(message) = reader.read_message().await.unwrap() {
                writer.write_all(&message).await.unwrap();
            }
            reader.reunite(writer).expect("halves of one stream")
        });
        let (mut reader, mut writer) = a.into_split();
        let sender = tokio::spawn(async move {
            for number in 0..2000_u32 {
                writer.write_u32(number).await.unwrap();
                if number.is_multiple_of(64) {
                    tokio::task::yield_now().await;
                }
            }
        });
        for number in 0..2000_u32 {
            assert_eq!(reader.read_u32().await.unwrap(), number);
        }
        // The half that was dropped has ended its direction only.
        sender.await.unwrap();
        let mut echo = echo.await.unwrap();
        echo.write_all(b"still open").await.unwrap();
        drop(echo);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "still open");
    });
}

#[test]
fn halves_of_other_streams_do_not_reunite() {
    run(async |address| {
        let (a, b) = streams(address).await;
        let ((read_a, write_a), (read_b, write_b)) = (a.into_split(), b.into_split());
        let returned = read_a.reunite(write_b).unwrap_err();
        let b = read_b.reunite(returned.1).unwrap();
        let mut a = returned.0.reunite(write_a).unwrap();
        drop(b);
        assert_eq!(a.read(&mut [0]).await.unwrap(), 0);
    });
}

#[test]
fn addresses_and_credentials_are_those_of_the_peer() {
    run(async |address| {
        let mut listener = FabricListener::bind(address).await.unwrap();
        let name = listener.local_addr().clone();
        let connect = FabricStream::connect(name.clone());
        let (a, b) = tokio::try_join!(connect, listener.next().map(Option::unwrap)).unwrap();
        assert_eq!((a.peer_addr(), b.local_addr()), (&name, &name));
        assert_eq!(a.local_addr(), b.peer_addr());
        for stream in [&a, &b] {
            let credentials = stream.peer_credentials();
            assert_eq!(credentials.is_some(), address.starts_with("shm"));
            if let Some(peer) = credentials {
                let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
                assert_eq!((peer.uid, peer.gid), (uid.as_raw(), gid.as_raw()));
                assert_eq!(peer.pid, Some(std::process::id() as i32));
            }
        }
    });
}

#[test]
fn aborted_stream_resets_its_peer() {
    run(async |address| {
        let (mut a, mut b) = streams(address).await;
        a.write_all(b"delivered").await.unwrap();
        a.flush().await.unwrap();
        a.abort();
        assert_eq!(b.read_message().await.unwrap().unwrap(), "delivered");
        for _ in 0..3 {
            let error = b.read(&mut [0]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        }
        let error = b.write(b"late").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn messages_after_the_end_are_not_received_and_stay_bounded() {
    run(async |address| {
        let (mut stream, ep) = stream_and_endpoint(address).await;
        ep.send("before").await.unwrap();
        ep.send("").await.unwrap();
        assert_eq!(stream.read_message().await.unwrap().unwrap(), "before");
        assert_eq!(stream.read_message().await.unwrap(), None);
        // A peer that goes on is stopped like one whose messages are not read.
        let mut sends = Vec::new();
        while let Ok(send) = ep.send(vec![0; MAX_WRITE_LEN]).start() {
            sends.push(send);
            tokio::task::yield_now().await;
        }
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
        let held = stream.endpoint().stats().unexpected_bytes;
        assert!(held <= 20 * MAX_WRITE_LEN, "{held} bytes are held");
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
        // The other direction is as before.
        stream.write_all(b"reply").await.unwrap();
        assert_eq!(&ep.recv().await.unwrap()[..], b"reply");
    });
}

#[test]
fn message_above_the_limit_is_invalid_data() {
    run(async |address| {
        let (mut stream, ep) = stream_and_endpoint(address).await;
        ep.send("valid").await.unwrap();
        let too_long = ep.send(vec![0; MAX_WRITE_LEN + 1]).start().unwrap();
        assert_eq!(stream.read_message().await.unwrap().unwrap(), "valid");
        for _ in 0..2 {
            let error = stream.read(&mut [0]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData);
            let text = error.to_string();
            assert!(
                text.contains("65537 bytes") && text.contains("65536 bytes"),
                "{text}"
            );
        }
        too_long.await.unwrap();
    });
}

#[test]
fn listener_rejects_clients_of_other_protocols() {
    run(async |address| {
        let mut listener = FabricListener::bind(address).await.unwrap();
        let name = listener.local_addr().clone();
        let clients = tokio::spawn(async move {
            let frames = FabricFrames::connect(name.clone()).await.unwrap_err();
            assert_eq!(frames.kind(), ErrorKind::ConnectionRefused);
            let plain = ConnectedEndpoint::connect(&name).await.unwrap_err();
            assert_eq!(Error::from(plain).kind(), ErrorKind::ConnectionRefused);
            FabricStream::connect(name).await.unwrap()
        });
        let mut accepted = listener.accept().await.unwrap();
        drop(clients.await.unwrap());
        assert_eq!(accepted.read(&mut [0]).await.unwrap(), 0);
    });
}

#[test]
fn connect_refuses_a_server_of_another_protocol() {
    run(async |address| {
        let mut listener = PassiveEndpoint::bind(address).await.unwrap();
        let connect = FabricStream::connect(listener.name().clone());
        let accept = async { listener.accept().await.unwrap().accept("welcome").unwrap() };
        let (refused, _ep) = tokio::join!(connect, accept);
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert!(error.to_string().contains("welcome"), "{error}");
    });
}

#[test]
fn frames_arrive_as_they_were_sent() {
    run(async |address| {
        let (mut a, mut b) = frames(address).await;
        let lens = [0, 1, 100, 70_000, 0, MAX_FRAME_LEN];
        let sending = async {
            for len in lens {
                a.send(vec![len as u8; len].into()).await.unwrap();
            }
            a.close().await.unwrap();
            let error = a.send(Bytes::new()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        };
        let receiving = async {
            for len in lens {
                let frame: BytesMut = b.next().await.expect("a frame").unwrap();
                assert_eq!(frame, vec![len as u8; len]);
            }
            for _ in 0..2 {
                assert!(b.next().await.is_none());
            }
        };
        tokio::join!(sending, receiving);
        b.send("reply".into()).await.unwrap();
        drop(b);
        assert_eq!(a.next().await.unwrap().unwrap(), "reply");
        assert!(a.next().await.is_none());
    });
}

#[test]
fn frame_above_the_limit_is_refused_by_both_sides() {
    run(async |address| {
        let options = Endpoint::options().max_msg_size(1000);
        let listener = FabricListener::bind_frames_with(options, address).await;
        let mut listener = listener.unwrap();
        let connect = FabricFrames::connect(listener.local_addr().clone());
        let (mut a, mut b) = tokio::try_join!(connect, listener.accept()).unwrap();
        assert_eq!(
            (a.max_frame_len(), b.max_frame_len()),
            (MAX_FRAME_LEN, 1000)
        );
        let error = b.send(vec![0; 1001].into()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let text = error.to_string();
        assert!(
            text.contains("1001 bytes") && text.contains("1000 bytes"),
            "{text}"
        );
        // The sink goes on.
        b.send(vec![0; 1000].into()).await.unwrap();
        assert_eq!(a.next().await.unwrap().unwrap().len(), 1000);

        a.send(vec![0; 1000].into()).await.unwrap();
        a.send(vec![0; 1001].into()).await.unwrap();
        assert_eq!(b.next().await.unwrap().unwrap().len(), 1000);
        let error = b.next().await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        let text = error.to_string();
        assert!(
            text.contains("1001 bytes") && text.contains("1000 bytes"),
            "{text}"
        );
        assert!(b.next().await.is_none());
    });
}

/// Short frames are sent together where that saves system calls, and none is left behind.
#[test]
fn short_frames_are_sent_by_the_next_flush() {
    run(async |address| {
        let (mut a, mut b) = frames(address).await;
        let frame = |index: u32| Bytes::from(index.to_le_bytes().to_vec());
        let sent = |frames: &FabricFrames| frames.endpoint().stats().sent.count;
        let before = sent(&a);
        for index in 0..3 {
            a.feed(frame(index)).await.unwrap();
        }
        let is_held = address.starts_with("tcp");
        assert_eq!(sent(&a) - before, if is_held { 0 } else { 3 });
        a.flush().await.unwrap();
        assert_eq!(sent(&a) - before, 3);
        // More than may be in flight.
        for index in 3..100 {
            a.feed(frame(index)).await.unwrap();
        }
        drop(a);
        for index in 0..100 {
            assert_eq!(b.next().await.unwrap().unwrap(), frame(index));
        }
        assert!(b.next().await.is_none());
    });
}

#[test]
fn frames_are_sent_until_the_reader_is_behind() {
    run(async |address| {
        let (mut a, mut b) = frames(address).await;
        let frame = Bytes::from(vec![5; 100_000]);
        let (mut sent, mut waits) = (0, 0);
        // The peer's side takes frames on its own for a while.
        while waits < 200 {
            match poll_fn(|cx| Poll::Ready(a.poll_ready_unpin(cx))).await {
                Poll::Ready(ready) => {
                    ready.unwrap();
                    a.start_send_unpin(frame.clone()).unwrap();
                    (sent, waits) = (sent + 1, 0);
                }
                Poll::Pending => waits += 1,
            }
            assert!(sent < 1000, "the writer does not wait for its reader");
            tokio::task::yield_now().await;
        }
        drop(a);
        let received = b
            .by_ref()
            .map(|frame| frame.unwrap().len())
            .collect::<Vec<_>>();
        assert_eq!(received.await, vec![100_000; sent]);
    });
}

#[test]
fn tokio_serde_takes_frames_as_its_transport() {
    /// Serializes the items of a connection.
    fn items(
        frames: FabricFrames,
    ) -> impl Stream<Item = Result<Vec<u32>, Error>> + Sink<Vec<u32>, Error = Error> + Unpin {
        let codec = tokio_serde::formats::Json::<Vec<u32>, Vec<u32>>::default();
        tokio_serde::Framed::<_, Vec<u32>, Vec<u32>, _>::new(frames, codec)
    }
    run(async |address| {
        let (a, b) = frames(address).await;
        let (mut a, mut b) = (items(a), items(b));
        a.send(vec![1, 2, 3]).await.unwrap();
        assert_eq!(b.next().await.unwrap().unwrap(), [1, 2, 3]);
        b.send(vec![]).await.unwrap();
        drop(b);
        assert_eq!(a.next().await.unwrap().unwrap(), [0; 0]);
        assert!(a.next().await.is_none());
    });
}
