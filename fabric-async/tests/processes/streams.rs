//! Byte streams and frames between processes: a peer that is killed in mid-stream, a peer that does
//! not read, a peer that exits after its writes, and peers that violate the protocol.

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::Poll;

use fabric_async::stream::{FabricFrames, FabricListener, FabricStream, MAX_WRITE_LEN};
use fabric_async::{Address, ConnectedEndpoint, Endpoint};
use futures_util::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::domain_mode::DomainMode;
use crate::leak_check::{ResourceUsage, heap_bytes, run_in_own_process};
use crate::run;
use crate::test_peer::TestPeer;

const ADDRESSES: [&str; 2] = ["shm://", "tcp://127.0.0.1:0"];

/// Bytes that the peer of a slow reader wants to write.
const LONG_STREAM: usize = 64 << 20;

/// The most heap that a side of a stream whose reader does not read may use: the writes in flight,
/// the messages read ahead and the budget, each with its rounding.
const MAX_STREAM_HEAP: usize = 4 << 20;

async fn connect(name: &str) -> FabricStream {
    FabricStream::connect(name).await.expect("connect")
}

/// Plays a client that writes without end.
pub(crate) async fn write_forever(name: &str) {
    let mut stream = connect(name).await;
    while stream.write_all(&[7; 30_000]).await.is_ok() {}
}

/// Plays a client that reads without end.
pub(crate) async fn read_forever(name: &str) {
    let mut stream = connect(name).await;
    while let Ok(Some(_)) = stream.read_message().await {}
}

/// Plays a client that writes, shuts the stream down, and exits at once.
pub(crate) async fn write_and_exit(name: &str) {
    let mut stream = connect(name).await;
    stream.write_all(&[7; 1_000_000]).await.expect("write");
    stream.shutdown().await.expect("shut down");
    std::process::exit(0);
}

/// Plays a client that writes until it waits, and checks its heap while its peer does not read.
pub(crate) async fn write_to_a_slow_reader(name: &str) {
    let mut stream = connect(name).await;
    let before = heap_bytes();
    let written = fill(&mut stream).await;
    let used = heap_bytes().saturating_sub(before);
    assert!(used <= MAX_STREAM_HEAP, "the writer uses {used} bytes");
    // Tells the reader by what it reads that the check was passed.
    let rest = vec![1; LONG_STREAM - written];
    stream.write_all(&rest).await.expect("write");
    stream.shutdown().await.expect("shut down");
    assert_eq!(stream.read(&mut [0]).await.expect("read"), 0);
}

/// Plays a client that sends a message above the limit of its peer, and stays.
pub(crate) async fn send_too_long(name: &str) {
    let (address, protocol) = name.split_once('|').expect("an address and a protocol");
    let address = address.parse::<Address>().expect("an address");
    let ep = ConnectedEndpoint::connect(&address).private_data(protocol);
    // A listener of another protocol rejects the request.
    let Ok(ep) = ep.await else { return };
    // The peer ends the connection.
    while ep.send(vec![0; 8 << 20]).await.is_ok() {}
}

/// Writes until the writer waits, and returns the number of bytes written.
async fn fill(stream: &mut FabricStream) -> usize {
    let (mut written, mut waits) = (0, 0);
    // The other process takes bytes on its own for a while.
    while waits < 200 {
        let write = |cx: &mut std::task::Context<'_>| {
            Poll::Ready(Pin::new(&mut *stream).poll_write(cx, &[0; 50_000]))
        };
        match poll_fn(write).await {
            Poll::Ready(count) => (written, waits) = (written + count.expect("write"), 0),
            Poll::Pending => waits += 1,
        }
        assert!(written < LONG_STREAM / 2, "the writer does not wait");
        tokio::task::yield_now().await;
    }
    written
}

async fn listen(mode: DomainMode, address: &str) -> FabricListener {
    let listener = FabricListener::bind_with(mode.options(), address).await;
    listener.expect("listen")
}

/// Starts a client in this role, and accepts its connection.
async fn accept_from(listener: &mut FabricListener, role: &str) -> (FabricStream, TestPeer) {
    let peer = TestPeer::start(role, &listener.local_addr().to_string());
    let stream = listener.accept().await.expect("accept");
    (stream, peer)
}

fn kill(mut peer: TestPeer) {
    peer.0.kill().expect("kill a child");
    peer.0.wait().expect("wait for a child");
}

/// Asserts that the connection was reset.
fn assert_reset<T: std::fmt::Debug>(result: io::Result<T>) {
    assert_eq!(result.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn killed_writer_resets_the_stream() {
    run_in_own_process("streams::killed_writer_resets_the_stream", || {
        for address in ADDRESSES {
            for mode in [DomainMode::Manual, DomainMode::Auto] {
                run(async {
                    let mut listener = listen(mode, address).await;
                    // The first connection starts threads that stay.
                    let (stream, peer) = accept_from(&mut listener, "stream write_forever").await;
                    kill(peer);
                    drop(stream);
                    let before = ResourceUsage::wait_stable().await;
                    for _ in 0..3 {
                        let (mut stream, peer) =
                            accept_from(&mut listener, "stream write_forever").await;
                        stream.read_exact(&mut vec![0; 1 << 20]).await.unwrap();
                        kill(peer);
                        let ended = loop {
                            match stream.read_message().await {
                                Ok(Some(message)) => assert!(message.iter().all(|byte| *byte == 7)),
                                ended => break ended,
                            }
                        };
                        assert_reset(ended);
                        assert_reset(stream.read(&mut [0]).await);
                        assert_reset(stream.write(b"late").await);
                        assert_reset(stream.flush().await);
                    }
                    before.wait_restored().await;
                });
            }
        }
    });
}

#[test]
fn killed_reader_resets_a_writer_that_waits() {
    for address in ADDRESSES {
        run(async {
            let mut listener = listen(DomainMode::Manual, address).await;
            let (mut stream, peer) = accept_from(&mut listener, "stream read_forever").await;
            stream.write_all(&[1; 1 << 20]).await.unwrap();
            peer.stop();
            fill(&mut stream).await;
            kill(peer);
            let failed = loop {
                if let Err(error) = stream.write(&[0; 50_000]).await {
                    break error;
                }
            };
            assert_eq!(failed.kind(), ErrorKind::ConnectionReset);
            assert_reset(stream.read(&mut [0]).await);
        });
    }
}

/// A writer in a task that is dropped keeps nothing of the connection to a killed peer.
#[test]
fn dropped_stream_to_a_killed_reader_is_released() {
    run_in_own_process(
        "streams::dropped_stream_to_a_killed_reader_is_released",
        || {
            for address in ADDRESSES {
                run(async {
                    let mut listener = listen(DomainMode::Manual, address).await;
                    let (stream, peer) = accept_from(&mut listener, "stream read_forever").await;
                    kill(peer);
                    drop(stream);
                    let before = ResourceUsage::wait_stable().await;
                    let (mut stream, peer) =
                        accept_from(&mut listener, "stream read_forever").await;
                    peer.stop();
                    fill(&mut stream).await;
                    // The writes in flight go on.
                    drop(stream);
                    tokio::task::yield_now().await;
                    kill(peer);
                    before.wait_restored().await;
                });
            }
        },
    );
}

#[test]
fn process_may_exit_after_shutdown() {
    for address in ADDRESSES {
        run(async {
            let mut listener = listen(DomainMode::Manual, address).await;
            let (mut stream, mut peer) = accept_from(&mut listener, "stream write_and_exit").await;
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).await.unwrap();
            assert!(bytes.len() == 1_000_000 && bytes.iter().all(|byte| *byte == 7));
            assert!(peer.0.wait().unwrap().success());
        });
    }
}

#[test]
fn slow_reader_bounds_the_memory_of_both_sides() {
    run_in_own_process(
        "streams::slow_reader_bounds_the_memory_of_both_sides",
        || {
            for address in ADDRESSES {
                for mode in [DomainMode::Manual, DomainMode::Auto] {
                    run(async {
                        let mut listener = listen(mode, address).await;
                        let (mut stream, mut peer) =
                            accept_from(&mut listener, "stream write_to_a_slow_reader").await;
                        let before = heap_bytes();
                        // The writer continues after it has checked its own memory.
                        let first = stream.read_message().await.unwrap().expect("a message");
                        assert!(!first.is_empty());
                        let mut most = 0;
                        for _ in 0..300 {
                            most = most.max(heap_bytes().saturating_sub(before));
                            tokio::time::sleep(std::time::Duration::from_micros(100)).await;
                        }
                        assert!(most <= MAX_STREAM_HEAP, "the reader uses {most} bytes");
                        let mut total = first.len();
                        while let Some(message) = stream.read_message().await.unwrap() {
                            total += message.len();
                        }
                        assert_eq!(total, LONG_STREAM);
                        drop(stream);
                        assert!(peer.0.wait().unwrap().success(), "the writer failed");
                    });
                }
            }
        },
    );
}

#[test]
fn message_above_the_limit_ends_the_stream_in_bounded_memory() {
    run_in_own_process(
        "streams::message_above_the_limit_ends_the_stream_in_bounded_memory",
        || {
            for address in ADDRESSES {
                run(async {
                    let mut listener = listen(DomainMode::Manual, address).await;
                    let before = heap_bytes();
                    let name = format!("{}|fabric-stream/1", listener.local_addr());
                    let _peer = TestPeer::start("stream send_too_long", &name);
                    let mut stream = listener.accept().await.unwrap();
                    let error = stream.read(&mut [0]).await.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
                    let limit = format!("{} bytes exceeds the limit of {MAX_WRITE_LEN}", 8 << 20);
                    assert!(error.to_string().contains(&limit), "{error}");
                    let used = heap_bytes().saturating_sub(before);
                    assert!(used <= MAX_STREAM_HEAP, "{used} bytes are used");
                });
                run(async {
                    let options = Endpoint::options().max_msg_size(1000);
                    let listener = FabricListener::bind_frames_with(options, address).await;
                    let mut listener = listener.unwrap();
                    let name = format!("{}|fabric-frames/1", listener.local_addr());
                    let _peer = TestPeer::start("stream send_too_long", &name);
                    let mut frames: FabricFrames = listener.accept().await.unwrap();
                    let error = frames.next().await.unwrap().unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
                    assert!(frames.next().await.is_none());
                });
            }
        },
    );
}

#[test]
fn clients_of_other_protocols_do_not_disturb_the_listener() {
    for address in ADDRESSES {
        run(async {
            let mut listener = listen(DomainMode::Manual, address).await;
            let name = listener.local_addr().to_string();
            let scheme = if address.starts_with("shm") {
                "shm"
            } else {
                "tcp"
            };
            // A client without the protocol, and one of bytes that are no protocol.
            let _refused = [
                TestPeer::start(&format!("{scheme} connect_and_echo"), &name),
                TestPeer::start("stream send_too_long", &format!("{name}|garbage")),
            ];
            let (mut stream, _peer) = accept_from(&mut listener, "stream write_forever").await;
            stream.read_exact(&mut [0; 100_000]).await.unwrap();
        });
    }
}
