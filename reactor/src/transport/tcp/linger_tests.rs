//! Closing connections whose peer keeps sending, or has shut down one direction.

use std::io::{IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use fabric_core::SocketOptions;
use fabric_core::info::Info;

use super::super::socket::{ReadResult, TcpSocket, WriteResult};
use super::{Lingering, close, close_excess};
use crate::transport::net::SocketConfig;

/// Returns a connected socket, and its peer as a standard stream.
fn connected_pair() -> (TcpSocket, TcpStream) {
    let options = SocketOptions::new().receive_buffer(200_000);
    let config = SocketConfig::from_info(&options, &Info::template("tcp", "tcp", "tcp")).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    let socket = TcpSocket::open(([127, 0, 0, 1], 0).into(), to, &config).unwrap();
    socket.connect(to).unwrap();
    let (peer, _) = listener.accept().unwrap();
    (socket, peer)
}

/// The caller of `close` may hold a lock, so `close` must return even if the peer never
/// stops sending.
#[test]
fn linger_discards_received_bytes_in_bounded_steps() {
    const BYTES: usize = 128 << 10;
    let (socket, mut peer) = connected_pair();
    peer.write_all(&[7; BYTES]).unwrap();
    // Waits until all bytes have arrived.
    while rustix::io::ioctl_fionread(&socket).unwrap() < BYTES as u64 {
        std::thread::yield_now();
    }
    let mut lingering = Lingering::new(socket, b"unsent bytes");
    assert!(lingering.progress());
    let left = rustix::io::ioctl_fionread(&lingering.socket).unwrap();
    assert!(0 < left && left < BYTES as u64, "{left} bytes are left");
    drop(peer);
    let mut calls = 2;
    while lingering.progress() {
        calls += 1;
        std::thread::yield_now();
    }
    assert!(calls >= 3, "{calls} calls of progress");
}

/// When too many connections linger, those with unsent bytes are kept.
#[test]
fn connections_with_unsent_bytes_are_kept_when_too_many_linger() {
    let (sockets, mut peers): (Vec<_>, Vec<_>) = (0..8).map(|_| connected_pair()).unzip();
    let mut lingering = Vec::new();
    for (number, socket) in sockets.into_iter().enumerate() {
        let unsent: &[u8] = if number % 2 == 0 { b"tail" } else { b"" };
        lingering.push(Lingering::new(socket, unsent));
    }
    close_excess(&mut lingering, 1);
    let unsent = lingering.iter().map(|lingering| lingering.unsent.len());
    assert_eq!(unsent.collect::<Vec<_>>(), [4, 4, 4, 4, 0]);
    for one in &mut lingering {
        assert!(one.progress());
    }
    for peer in peers.iter_mut().step_by(2) {
        let mut received = Vec::new();
        peer.read_to_end(&mut received).unwrap();
        assert_eq!(received, b"tail");
    }
}

/// A peer that has shut down its sending direction still receives everything that was sent to it.
#[test]
fn half_closed_peer_receives_all_unsent_bytes() {
    let (mut socket, mut peer) = connected_pair();
    let mut sent = 0;
    while let WriteResult::Bytes(count) = socket.send(&[IoSlice::new(&[1; 64 << 10])]) {
        sent += count;
    }
    peer.shutdown(std::net::Shutdown::Write).unwrap();
    while socket.recv(&mut [0]) != ReadResult::Eof {
        std::thread::yield_now();
    }
    close(socket, &[2; 100_000]);
    peer.set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut received = Vec::new();
    peer.read_to_end(&mut received).unwrap();
    assert_eq!(received.len(), sent + 100_000);
    assert!(received[sent..].iter().all(|byte| *byte == 2));
}
