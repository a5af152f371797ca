//! The contract of `AsyncRead` and `AsyncWrite`: one set of tests for `FabricStream` over every
//! transport, and for the sockets of Tokio, whose behaviour is the reference.

#[path = "common/skip.rs"]
mod skip;

use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use fabric_async::stream::{FabricListener, FabricStream};
use fabric_async::{Endpoint, Progress, SocketIo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UnixStream};

use crate::skip::{Facility, skip};

/// A stream under test.
trait TestStream: AsyncRead + AsyncWrite + Sized + Send + Unpin + 'static {
    /// Connects two streams of a kind.
    fn pair(kind: Kind) -> impl Future<Output = (Self, Self)> + Send;
}

/// How a pair is connected.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Socket,
    Shm(Progress),
    Tcp(SocketIo),
}

impl TestStream for UnixStream {
    async fn pair(_: Kind) -> (Self, Self) {
        Self::pair().unwrap()
    }
}

impl TestStream for TcpStream {
    async fn pair(_: Kind) -> (Self, Self) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = Self::connect(listener.local_addr().unwrap());
        let (client, accepted) = tokio::try_join!(client, listener.accept()).unwrap();
        (client, accepted.0)
    }
}

impl TestStream for FabricStream {
    async fn pair(kind: Kind) -> (Self, Self) {
        let (options, at) = match kind {
            Kind::Shm(progress) => (Endpoint::options().progress(progress), "shm://"),
            Kind::Tcp(io) => (Endpoint::options().socket_io(io), "tcp://127.0.0.1:0"),
            Kind::Socket => unreachable!("a socket of Tokio"),
        };
        let listener = FabricListener::bind_with(options.clone(), at).await;
        let mut listener = listener.unwrap();
        let name = listener.local_addr().clone();
        let client = Self::connect_with(options, name);
        tokio::try_join!(client, listener.accept()).unwrap()
    }
}

/// Runs a test on a runtime with two threads. The time limit detects hangs; it is no measurement.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let limited = tokio::time::timeout(Duration::from_secs(60), test);
        limited.await.expect("the test hangs");
    });
}

/// Returns whether streams of this kind exist on this machine; else skips the test.
fn is_available(kind: Kind) -> bool {
    let Kind::Tcp(io) = kind else { return true };
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().unwrap();
    let opened = runtime.block_on(async {
        let options = Endpoint::options().socket_io(io);
        FabricListener::bind_with(options, "tcp://127.0.0.1:0").await
    });
    if let Err(error) = &opened {
        skip(Facility::Uring, error);
    }
    opened.is_ok()
}

/// Bytes whose position in the stream can be told: no block repeats for long.
struct Pattern(Vec<u8>);

impl Pattern {
    /// The length is a prime number, so it divides no length of a buffer.
    const LEN: usize = 262_147;
    /// The most bytes that one call returns.
    const MAX: usize = 200_000;

    fn new() -> Self {
        let mut random = Random(7);
        let mut bytes = (0..Self::LEN)
            .map(|_| random.next() as u8)
            .collect::<Vec<_>>();
        bytes.extend_from_within(..Self::MAX);
        Self(bytes)
    }

    /// Returns the bytes from this position of the stream on.
    fn at(&self, position: usize, len: usize) -> &[u8] {
        let start = position % Self::LEN;
        &self.0[start..start + len.min(Self::MAX)]
    }
}

/// A generator of numbers, always in the same order (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a length from 1 to `max`, short ones as often as long ones.
    fn len(&mut self, max: usize) -> usize {
        let max = max >> (self.next() % 16);
        1 + self.next() as usize % max.max(1)
    }
}

/// Writes this many bytes of the pattern in writes of random lengths.
async fn write_pattern(stream: &mut (impl AsyncWrite + Unpin), total: usize) {
    let (pattern, mut random, mut written) = (Pattern::new(), Random(11), 0);
    while written < total {
        let len = random.len(Pattern::MAX).min(total - written);
        written += stream.write(pattern.at(written, len)).await.unwrap();
    }
}

/// Reads to the end of the stream in reads of random lengths, checks that the bytes are those of
/// the pattern, and returns their number.
async fn read_pattern(stream: &mut (impl AsyncRead + Unpin)) -> usize {
    let (pattern, mut random, mut read) = (Pattern::new(), Random(13), 0);
    let mut buf = vec![0; Pattern::MAX];
    loop {
        let len = random.len(Pattern::MAX);
        match stream.read(&mut buf[..len]).await.unwrap() {
            0 => return read,
            count => {
                assert!(
                    buf[..count] == *pattern.at(read, count),
                    "bytes at {read} differ"
                );
                read += count;
            }
        }
    }
}

/// Defines each test for every kind of stream.
macro_rules! for_every_stream {
    ($($test:ident,)*) => {
        for_every_stream! { @kind unix, UnixStream, Kind::Socket, $($test)* }
        for_every_stream! { @kind tokio_tcp, TcpStream, Kind::Socket, $($test)* }
        for_every_stream! { @kind shm, FabricStream, Kind::Shm(Progress::Manual), $($test)* }
        for_every_stream! { @kind shm_auto, FabricStream, Kind::Shm(Progress::Auto), $($test)* }
        for_every_stream! { @kind tcp_epoll, FabricStream, Kind::Tcp(SocketIo::Epoll), $($test)* }
        for_every_stream! { @kind tcp_uring, FabricStream, Kind::Tcp(SocketIo::IoUring), $($test)* }
    };
    (@kind $module:ident, $stream:ty, $kind:expr, $($test:ident)*) => {
        mod $module {
            use super::*;
            $(#[test]
            fn $test() {
                if !super::is_available($kind) {
                    return;
                }
                run(super::$test::<$stream>($kind));
            })*
        }
    };
}

for_every_stream! {
    read_copies_at_most_the_buffer,
    vectored_write_arrives_in_order,
    shutdown_ends_one_direction,
    end_of_file_stays_end_of_file,
    write_after_shutdown_is_a_broken_pipe,
    shutdown_after_the_peer_has_left_succeeds,
    dropped_stream_delivers_what_was_written,
    dropped_stream_delivers_to_a_peer_that_reads_late,
    transfer_has_the_bytes_in_order,
    both_directions_transfer_at_once,
    canceled_reads_lose_no_byte,
    canceled_writes_double_no_byte,
    copy_bidirectional_forwards_both_directions,
    writer_waits_for_a_reader_and_goes_on,
}

async fn read_copies_at_most_the_buffer<S: TestStream>(kind: Kind) {
    let (mut a, mut b) = S::pair(kind).await;
    a.write_all(b"hello world").await.unwrap();
    assert_eq!(
        b.read(&mut []).await.unwrap(),
        0,
        "an empty buffer gets nothing"
    );
    let (mut got, mut buf) = (Vec::new(), [0; 4]);
    while got.len() < 11 {
        let count = b.read(&mut buf).await.unwrap();
        got.extend_from_slice(&buf[..count]);
    }
    assert_eq!(got, b"hello world");
}

async fn vectored_write_arrives_in_order<S: TestStream>(kind: Kind) {
    let (mut a, mut b) = S::pair(kind).await;
    let pattern = Pattern::new();
    assert!(a.is_write_vectored());
    let mut slices = [(0, 3), (3, 0), (3, 90_000), (90_003, 150_000)]
        .map(|(start, len)| IoSlice::new(pattern.at(start, len)));
    let mut left = &mut slices[..];
    let writing = async move {
        while !left.is_empty() {
            let count = a.write_vectored(left).await.unwrap();
            assert!(count > 0);
            IoSlice::advance_slices(&mut left, count);
        }
    };
    let (count, ()) = tokio::join!(read_pattern(&mut b), writing);
    assert_eq!(count, 240_003);
}

async fn shutdown_ends_one_direction<S: TestStream>(kind: Kind) {
    let (mut a, mut b) = S::pair(kind).await;
    a.write_all(b"request").await.unwrap();
    a.write_all(b"").await.unwrap();
    a.write_all(b"!").await.unwrap();
    a.shutdown().await.unwrap();
    a.shutdown().await.unwrap();
    let mut got = String::new();
    b.read_to_string(&mut got).await.unwrap();
    assert_eq!(got, "request!");
    b.write_all(b"reply").await.unwrap();
    drop(b);
    got.clear();
    a.read_to_string(&mut got).await.unwrap();
    assert_eq!(got, "reply");
}

async fn end_of_file_stays_end_of_file<S: TestStream>(kind: Kind) {
    let (mut a, b) = S::pair(kind).await;
    drop(b);
    for _ in 0..4 {
        assert_eq!(a.read(&mut [0; 8]).await.unwrap(), 0);
    }
}

async fn write_after_shutdown_is_a_broken_pipe<S: TestStream>(kind: Kind) {
    let (mut a, _b) = S::pair(kind).await;
    a.shutdown().await.unwrap();
    for _ in 0..2 {
        let error = a.write(b"late").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }
    a.flush().await.unwrap();
}

async fn shutdown_after_the_peer_has_left_succeeds<S: TestStream>(kind: Kind) {
    let (mut a, b) = S::pair(kind).await;
    drop(b);
    assert_eq!(a.read(&mut [0; 8]).await.unwrap(), 0);
    a.shutdown().await.unwrap();
}

async fn dropped_stream_delivers_what_was_written<S: TestStream>(kind: Kind) {
    let (mut a, mut b) = S::pair(kind).await;
    a.write_all(Pattern::new().at(0, 100_000)).await.unwrap();
    drop(a);
    assert_eq!(read_pattern(&mut b).await, 100_000);
}

async fn dropped_stream_delivers_to_a_peer_that_reads_late<S: TestStream>(kind: Kind) {
    let (mut a, mut b) = S::pair(kind).await;
    let accepted = fill(&mut a).await;
    drop(a);
    tokio::task::yield_now().await;
    assert_eq!(read_pattern(&mut b).await, accepted);
}

async fn transfer_has_the_bytes_in_order<S: TestStream>(kind: Kind) {
    const TOTAL: usize = 64 << 20;
    let (mut a, mut b) = S::pair(kind).await;
    let writer = tokio::spawn(async move { write_pattern(&mut a, TOTAL).await });
    assert_eq!(read_pattern(&mut b).await, TOTAL);
    writer.await.unwrap();
}

async fn both_directions_transfer_at_once<S: TestStream>(kind: Kind) {
    const TOTAL: usize = 4 << 20;
    let (a, b) = S::pair(kind).await;
    let mut tasks = Vec::new();
    for stream in [a, b] {
        let (mut reader, mut writer) = tokio::io::split(stream);
        tasks.push(tokio::spawn(async move {
            write_pattern(&mut writer, TOTAL).await;
            writer.shutdown().await.unwrap();
            TOTAL
        }));
        tasks.push(tokio::spawn(async move { read_pattern(&mut reader).await }));
    }
    for task in tasks {
        assert_eq!(task.await.unwrap(), TOTAL);
    }
}

async fn canceled_reads_lose_no_byte<S: TestStream>(kind: Kind) {
    const TOTAL: usize = 1 << 20;
    let (mut a, mut b) = S::pair(kind).await;
    let (pattern, mut random, mut read) = (Pattern::new(), Random(17), 0);
    let mut buf = vec![0; 5000];
    for _ in 0..3 {
        tokio::select! {
            biased;
            count = b.read(&mut buf) => panic!("nothing was written, and {count:?} was read"),
            () = tokio::task::yield_now() => {}
        }
    }
    let writer = tokio::spawn(async move { write_pattern(&mut a, TOTAL).await });
    loop {
        let len = random.len(buf.len());
        let count = tokio::select! {
            biased;
            count = b.read(&mut buf[..len]) => count.unwrap(),
            () = tokio::task::yield_now() => continue,
        };
        if count == 0 {
            break;
        }
        assert!(
            buf[..count] == *pattern.at(read, count),
            "bytes at {read} differ"
        );
        read += count;
    }
    assert_eq!(read, TOTAL);
    writer.await.unwrap();
}

async fn canceled_writes_double_no_byte<S: TestStream>(kind: Kind) {
    const TOTAL: usize = 16 << 20;
    let (mut a, mut b) = S::pair(kind).await;
    let reader = tokio::spawn(async move {
        tokio::task::yield_now().await;
        read_pattern(&mut b).await
    });
    let (pattern, mut random, mut written) = (Pattern::new(), Random(19), 0);
    while written < TOTAL {
        let len = random.len(Pattern::MAX).min(TOTAL - written);
        tokio::select! {
            biased;
            count = a.write(pattern.at(written, len)) => written += count.unwrap(),
            () = tokio::task::yield_now() => {}
        }
        if random.next().is_multiple_of(8) {
            tokio::select! {
                biased;
                flushed = a.flush() => flushed.unwrap(),
                () = tokio::task::yield_now() => {}
            }
        }
    }
    drop(a);
    assert_eq!(reader.await.unwrap(), TOTAL);
}

async fn copy_bidirectional_forwards_both_directions<S: TestStream>(kind: Kind) {
    const REQUEST: usize = 3 << 20;
    const REPLY: usize = 1 << 20;
    let ((mut client, mut near), (mut far, mut server)) =
        (S::pair(kind).await, S::pair(kind).await);
    let proxy = tokio::spawn(async move { copy_bidirectional(&mut near, &mut far).await });
    let serving = tokio::spawn(async move {
        assert_eq!(read_pattern(&mut server).await, REQUEST);
        write_pattern(&mut server, REPLY).await;
        server.shutdown().await.unwrap();
    });
    write_pattern(&mut client, REQUEST).await;
    client.shutdown().await.unwrap();
    assert_eq!(read_pattern(&mut client).await, REPLY);
    let copied = proxy.await.unwrap().unwrap();
    assert_eq!(copied, (REQUEST as u64, REPLY as u64));
    serving.await.unwrap();
}

/// Writes the pattern until the writer waits, and returns the number of bytes written.
async fn fill<S: TestStream>(stream: &mut S) -> usize {
    const MOST: usize = 32 << 20;
    let (pattern, mut written, mut waits) = (Pattern::new(), 0, 0);
    // The peer's side takes bytes on its own for a while.
    while waits < 200 {
        let write = poll_fn(|cx| {
            let bytes = pattern.at(written, 10_000);
            Poll::Ready(match Pin::new(&mut *stream).poll_write(cx, bytes) {
                Poll::Ready(count) => count.map(Some),
                Poll::Pending => Ok(None),
            })
        });
        match write.await.unwrap() {
            Some(count) => (written, waits) = (written + count, 0),
            None => waits += 1,
        }
        assert!(written <= MOST, "the writer does not wait for its reader");
        tokio::task::yield_now().await;
    }
    written
}

async fn writer_waits_for_a_reader_and_goes_on<S: TestStream>(kind: Kind) {
    let (mut a, mut b) = S::pair(kind).await;
    let filled = fill(&mut a).await;
    let writer = tokio::spawn(async move {
        let pattern = Pattern::new();
        let mut written = filled;
        while written < filled + (1 << 20) {
            written += a.write(pattern.at(written, 50_000)).await?;
        }
        a.shutdown().await?;
        io::Result::Ok(written)
    });
    let read = read_pattern(&mut b).await;
    assert_eq!(writer.await.unwrap().unwrap(), read);
}
