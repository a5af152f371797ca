//! Closing connections whose peer keeps sending, or has shut down one direction.

use std::io::{IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use fabric_core::SocketOptions;
use fabric_core::info::Info;

use super::super::socket::{ReadResult, TcpSocket, WriteResult};
use super::{ClosedPhase, Lingering, LingeringConnections, close};
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
    let mut lingering = Lingering::new(socket, ClosedPhase::Established, b"unsent bytes");
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

/// When too many connections linger, those with unsent bytes are kept, and rejected requests are
/// closed first.
#[test]
fn connections_with_unsent_bytes_are_kept_when_too_many_linger() {
    let (sockets, mut peers): (Vec<_>, Vec<_>) = (0..8).map(|_| connected_pair()).unzip();
    let mut lingering = LingeringConnections::default();
    for (number, socket) in sockets.into_iter().enumerate() {
        let (phase, unsent): (_, &[u8]) = match number % 4 {
            0 | 2 => (ClosedPhase::Established, b"tail"),
            1 => (ClosedPhase::Established, b""),
            _ => (ClosedPhase::Rejected, b""),
        };
        lingering.add(Lingering::new(socket, phase, unsent), 8);
    }
    let ids =
        |lingering: &LingeringConnections| lingering.by_id.keys().copied().collect::<Vec<_>>();
    lingering.close_excess(3);
    assert_eq!(ids(&lingering), [1, 2, 3, 5, 6, 7, 8]);
    lingering.close_excess(1);
    assert_eq!(ids(&lingering), [1, 3, 5, 6, 7]);
    assert_eq!(lingering.unsent.values().sum::<usize>(), 4);
    for id in [1, 3, 5, 7] {
        let mut removed = lingering.remove(id).unwrap();
        assert!(removed.progress(), "the peer has not closed");
        assert!(removed.unsent.is_empty());
        lingering.insert(id, removed);
    }
    assert_eq!(ids(&lingering), [1, 3, 5, 6, 7]);
    assert_eq!(lingering.discarding.len(), 5, "the tails were sent");
    assert!(lingering.unsent.is_empty());
    for peer in peers.iter_mut().step_by(2) {
        let mut received = Vec::new();
        peer.read_to_end(&mut received).unwrap();
        assert_eq!(received, b"tail");
    }
}

/// Rejected requests of one address linger up to a limit; the oldest one is closed at once.
#[test]
fn rejected_requests_of_one_source_are_limited() {
    let mut lingering = LingeringConnections::default();
    let mut peers = Vec::new();
    for number in 0..40 {
        let (socket, peer) = connected_pair();
        peers.push(peer);
        lingering.add(Lingering::new(socket, ClosedPhase::Rejected, b""), 1024);
        let oldest = 1 + u64::saturating_sub(number, 15);
        let ids: Vec<_> = lingering.by_id.keys().copied().collect();
        assert_eq!(ids, (oldest..=number + 1).collect::<Vec<_>>());
    }
    let (socket, _peer) = connected_pair();
    lingering.add(Lingering::new(socket, ClosedPhase::Established, b""), 1024);
    assert_eq!(lingering.by_id.len(), 17, "another phase");
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
