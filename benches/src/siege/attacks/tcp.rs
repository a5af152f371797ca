//! Attacks over TCP, by sockets without the library.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fabric_async::{Address, Error as FabricError};
use fabric_core::tcp::rxm::{PacketKind, RxmAccept, RxmConnect, RxmPacket};
use fabric_core::tcp::{
    ByteOrder, CmKind, CmMessage, Frame, MAX_HEADER_LEN, RdmCmData, RmaIovList,
};
use fabric_core::transport::RmaIov;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use super::Attack;
use super::actions::{ActionCounter, NumberSequence, repeat_rounds};
use crate::siege::message::{ATTACK_TAG, REQUEST_TAG};
use crate::{Error, Result};

/// Connections that stall.
const STALLED_CONNECTIONS: usize = 64;
/// Connections of most other attacks.
const CONNECTIONS: usize = 8;
/// Connections without a whole request.
const HALF_OPEN_CONNECTIONS: usize = 512;
/// Connections that one attacker holds at most: as many as the server accepts, and some more.
const MAX_HELD_CONNECTIONS: usize = 4500;
/// Messages of the attack with empty ones.
const EMPTY_MESSAGES: usize = 130_000;
/// Longest message of the stalled ones, in bytes.
const STALLED_LEN: u64 = 1 << 20;
/// How long an attacker waits for the server to read, or to end a connection.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long an attacker waits for the server to answer a request.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long an attacker waits for the server to read messages on a connection that it holds.
const HOLD_TIMEOUT: Duration = Duration::from_millis(50);
/// How long an attacker waits for the refusal of an access to memory.
const REFUSAL_TIMEOUT: Duration = Duration::from_millis(100);

/// Operation code of a tagged message.
const TAGGED_CODE: u8 = 1;
/// Length of the header of an untagged message, in bytes.
const HEADER_LEN: u8 = 16;
/// Length of the header of a tagged message, in bytes.
const TAGGED_HEADER_LEN: u8 = 24;

/// Runs an attack of this file forever.
///
/// # Errors
/// The attack cannot begin.
pub(super) async fn attack(
    attack: Attack,
    target: &str,
    victim: &str,
    actions: &ActionCounter,
) -> Result<()> {
    let counter = actions.clone();
    let peer = Arc::new(RawPeer {
        target: socket_addr(target)?,
        source: IpAddr::V4(attack.source()),
        rounds: AtomicU64::new(1),
        actions: counter,
    });
    match attack {
        Attack::StalledMessages => {
            let round = move |task| stall_message(peer.clone(), task);
            repeat_rounds(STALLED_CONNECTIONS, actions, round).await
        }
        Attack::ClaimedLengths => {
            let round = move |_| claim_length(peer.clone());
            repeat_rounds(CONNECTIONS, actions, round).await
        }
        Attack::UnexpectedMessages => {
            let round = move |_| send_unexpected(peer.clone());
            repeat_rounds(CONNECTIONS, actions, round).await
        }
        Attack::Connections => {
            let held = Arc::new(OpenConnections::new(MAX_HELD_CONNECTIONS));
            let round = move |_| hold_connection(peer.clone(), held.clone());
            repeat_rounds(CONNECTIONS, actions, round).await
        }
        Attack::HeldMessages => {
            let held = Arc::new(OpenConnections::new(MAX_HELD_CONNECTIONS));
            let round = move |_| hold_messages(peer.clone(), held.clone());
            repeat_rounds(CONNECTIONS, actions, round).await
        }
        Attack::HalfOpenHandshakes => {
            let held = Arc::new(OpenConnections::new(HALF_OPEN_CONNECTIONS));
            let round = move |_| half_open(peer.clone(), held.clone());
            repeat_rounds(CONNECTIONS, actions, round).await
        }
        Attack::ClaimedAddresses => {
            let victim = socket_addr(victim)?;
            let peer = Arc::new(RawPeer {
                target: peer.target,
                source: victim.ip(),
                rounds: AtomicU64::new(1),
                actions: actions.clone(),
            });
            let round = move |_| claim_address(peer.clone(), victim.port());
            repeat_rounds(CONNECTIONS, actions, round).await
        }
        Attack::MalformedFrames => {
            let round = move |_| send_malformed(peer.clone());
            repeat_rounds(CONNECTIONS, actions, round).await
        }
        Attack::EmptyMessages => {
            let round = move |_| send_empty(peer.clone());
            repeat_rounds(2, actions, round).await
        }
        Attack::WritesWithoutKeys => {
            let round = move |_| access_without_key(peer.clone());
            repeat_rounds(CONNECTIONS, actions, round).await
        }
        Attack::RxmSetAside => {
            let round = move |_| send_rxm_packets(peer.clone());
            repeat_rounds(Attack::RXM_CONNECTIONS, actions, round).await
        }
        other => Err(Error::InvalidRequest(format!(
            "the attack {} is not for raw TCP peers",
            other.name()
        ))),
    }
}

/// Returns IP address and port of the name of an endpoint.
pub(super) fn socket_addr(name: &str) -> Result<SocketAddr> {
    let address: Address = name.parse()?;
    let no_ip = || Error::InvalidRequest(format!("{name:?} has no IP address"));
    address.socket_addr().ok_or_else(no_ip)
}

/// A peer without the library.
#[derive(Debug)]
struct RawPeer {
    target: SocketAddr,
    source: IpAddr,
    /// Numbers of the rounds, which differ between tasks.
    rounds: AtomicU64,
    actions: ActionCounter,
}

impl RawPeer {
    fn next_round(&self) -> u64 {
        self.rounds.fetch_add(1, Ordering::Relaxed)
    }

    /// Connects without a request.
    async fn connect(&self) -> Result<TcpStream> {
        let connect = async {
            let socket = TcpSocket::new_v4()?;
            // Ports of connections that have just ended are used again.
            socket.set_reuseaddr(true)?;
            socket.bind(SocketAddr::new(self.source, 0))?;
            socket.connect(self.target).await
        };
        connect.await.map_err(Error::io("connecting"))
    }

    /// Connects and sends a request with these private data. Returns the private data of the
    /// acceptance; fails if the request is rejected.
    async fn request(&self, private: &[u8]) -> Result<(TcpStream, Vec<u8>)> {
        let mut stream = self.connect().await?;
        let handshake = async {
            stream.write_all(&encode_request(private)).await?;
            let mut bytes = vec![0; 32];
            stream.read_exact(&mut bytes).await?;
            let len = u16::from_be_bytes([bytes[2], bytes[3]]);
            bytes.resize(32 + usize::from(len), 0);
            stream.read_exact(&mut bytes[32..]).await?;
            match CmMessage::decode(&bytes) {
                Ok(Some((reply, _))) if reply.kind == CmKind::Accept => {
                    Ok(reply.private_data().to_vec())
                }
                _ => Err(io::ErrorKind::ConnectionRefused.into()),
            }
        };
        let reply = timeout(HANDSHAKE_TIMEOUT, handshake)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        if reply.is_err() {
            // A request that the server refuses is an action, too.
            self.actions.add_one();
        }
        Ok((stream, reply.map_err(Error::io("requesting"))?))
    }

    /// Connects as an endpoint that listens at the port of the socket.
    async fn handshake(&self) -> Result<TcpStream> {
        // The port only has to differ between the connections of this process.
        let port = 1024 + (self.next_round() % 60_000) as u16;
        Ok(self.request(&RdmCmData::new(port, 7).encode()).await?.0)
    }
}

fn encode_request(private: &[u8]) -> Vec<u8> {
    CmMessage::new(CmKind::Request, private)
        .map(|message| message.encode())
        .unwrap_or_default()
}

/// Encodes the header of a message with this tag, or without one.
fn encode_header(tag: Option<u64>, payload_len: u64) -> Vec<u8> {
    let len = match tag {
        Some(_) => TAGGED_HEADER_LEN,
        None => HEADER_LEN,
    };
    let code = tag.map_or(0, |_| TAGGED_CODE);
    let mut bytes = vec![3, code, 0, 0, 0, 0, len, 0];
    bytes.extend((u64::from(len) + payload_len).to_ne_bytes());
    bytes.extend(tag.into_iter().flat_map(u64::to_ne_bytes));
    bytes
}

/// Encodes a message with this tag.
fn encode_message(tag: u64, payload_len: usize) -> Vec<u8> {
    let mut bytes = encode_header(Some(tag), payload_len as u64);
    bytes.resize(bytes.len() + payload_len, 7);
    bytes
}

/// Writes bytes, or fails if the server does not read them.
async fn write(stream: &mut TcpStream, bytes: &[u8]) -> Result<()> {
    timeout(PATIENCE, stream.write_all(bytes))
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        .map_err(Error::io("writing"))
}

/// Reads until the server ends the connection, or for this time.
async fn read_until_closed(stream: &mut TcpStream, time: Duration) {
    let _ = timeout(time, stream.read_to_end(&mut Vec::new())).await;
}

/// Begins a message that a receive takes, and holds the connection until the server ends it.
async fn stall_message(peer: Arc<RawPeer>, task: usize) -> Result<()> {
    let mut stream = peer.handshake().await?;
    let tag = task.is_multiple_of(2).then_some(REQUEST_TAG);
    let mut bytes = encode_header(tag, STALLED_LEN);
    bytes.extend([7; 8]);
    write(&mut stream, &bytes).await?;
    peer.actions.add_one();
    read_until_closed(&mut stream, PATIENCE).await;
    Ok(())
}

/// Announces a long message and leaves.
async fn claim_length(peer: Arc<RawPeer>) -> Result<()> {
    let mut stream = peer.handshake().await?;
    let len = [1u64 << 20, 1 << 30, 1 << 39][peer.next_round() as usize % 3];
    let mut bytes = encode_header(Some(ATTACK_TAG), len);
    bytes.extend([7; 64]);
    write(&mut stream, &bytes).await?;
    peer.actions.add_one();
    Ok(())
}

/// Sends messages over one connection while they are accepted.
async fn send_unexpected(peer: Arc<RawPeer>) -> Result<()> {
    let mut stream = peer.handshake().await?;
    let messages = [64 << 10, 100].map(|len| encode_message(ATTACK_TAG, len));
    for message in messages.iter().cycle() {
        write(&mut stream, message).await?;
        peer.actions.add_one();
    }
    Ok(())
}

/// Connections that are held, the oldest first.
#[derive(Debug)]
struct OpenConnections {
    limit: usize,
    streams: Mutex<VecDeque<TcpStream>>,
}

impl OpenConnections {
    fn new(limit: usize) -> Self {
        Self {
            limit,
            streams: Mutex::default(),
        }
    }

    /// Holds a connection. Beyond the limit, ends the oldest one.
    fn push(&self, stream: TcpStream) {
        let mut streams = self
            .streams
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        streams.push_back(stream);
        if streams.len() > self.limit {
            streams.pop_front();
        }
    }
}

/// Holds a connection that the server has accepted.
async fn hold_connection(peer: Arc<RawPeer>, held: Arc<OpenConnections>) -> Result<()> {
    held.push(peer.handshake().await?);
    peer.actions.add_one();
    Ok(())
}

/// Holds a connection that the server has accepted, with messages that no receive takes.
async fn hold_messages(peer: Arc<RawPeer>, held: Arc<OpenConnections>) -> Result<()> {
    let mut stream = peer.handshake().await?;
    let messages = encode_message(ATTACK_TAG, 64 << 10).repeat(3);
    // The server may read only a part of them.
    let _ = timeout(HOLD_TIMEOUT, stream.write_all(&messages)).await;
    peer.actions.add_one();
    held.push(stream);
    Ok(())
}

/// Holds a connection with no request, or with half of one.
async fn half_open(peer: Arc<RawPeer>, held: Arc<OpenConnections>) -> Result<()> {
    let mut stream = peer.connect().await?;
    let round = peer.next_round();
    if round.is_multiple_of(2) {
        let request = encode_request(&RdmCmData::new(9, 7).encode());
        write(&mut stream, &request[..request.len() / 2]).await?;
    }
    peer.actions.add_one();
    held.push(stream);
    Ok(())
}

/// Requests a connection as the endpoint at this port. A live connection is not replaced.
async fn claim_address(peer: Arc<RawPeer>, port: u16) -> Result<()> {
    let instance = 1 + peer.next_round() as u32;
    let private = RdmCmData::new(port, instance).encode();
    let (mut stream, _) = peer.request(&private).await?;
    // An accepted attacker sends messages in the name of the client.
    write(&mut stream, &encode_message(REQUEST_TAG, 64)).await?;
    peer.actions.add_one();
    Ok(())
}

/// Sends random bytes, or frames with random fields, until the server ends the connection.
async fn send_malformed(peer: Arc<RawPeer>) -> Result<()> {
    let mut stream = peer.handshake().await?;
    let round = peer.next_round();
    let mut numbers = NumberSequence::new(round);
    let mut bytes = vec![0; 4096];
    numbers.fill(&mut bytes);
    if round.is_multiple_of(2) {
        for frame in bytes.chunks_exact_mut(64) {
            let codes = [0, 1, 2, 3, 4, 5, 6, 7, 0xf1, 0xf2, 0xf3, 200];
            frame[0] = 3;
            frame[1] = codes[usize::from(frame[1]) % codes.len()];
            (frame[2], frame[3]) = (frame[2] & 0x8d, 0);
            (frame[4], frame[5]) = (frame[4] % 3, frame[5] % 5);
            frame[6] = 16 + frame[6] % 6 * 8;
            let len = 64u64;
            frame[8..16].copy_from_slice(&len.to_ne_bytes());
        }
    }
    write(&mut stream, &bytes).await?;
    peer.actions.add_one();
    read_until_closed(&mut stream, Duration::from_millis(100)).await;
    Ok(())
}

/// Sends many empty messages, stays for a while, and leaves.
async fn send_empty(peer: Arc<RawPeer>) -> Result<()> {
    const BATCH: usize = 1000;
    let mut stream = peer.handshake().await?;
    let batch = encode_message(ATTACK_TAG, 0).repeat(BATCH);
    for _ in 0..EMPTY_MESSAGES / BATCH {
        write(&mut stream, &batch).await?;
        (0..BATCH).for_each(|_| peer.actions.add_one());
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    Ok(())
}

/// Writes to and reads from regions whose keys are not known, until the server ends the connection.
async fn access_without_key(peer: Arc<RawPeer>) -> Result<()> {
    const LEN: usize = 4096;
    let mut stream = peer.handshake().await?;
    let mut numbers = NumberSequence::new(peer.next_round());
    let mut replies = vec![0; LEN];
    loop {
        let iov = RmaIov {
            key: numbers.next(),
            offset: numbers.next() % 4096,
            len: LEN,
            atomic: None,
        };
        let iovs = RmaIovList::from_rma_iovs(&[iov]).ok_or(FabricError::Canceled)?;
        let (frame, payload_len) = if numbers.next().is_multiple_of(2) {
            (Frame::write(&iovs, Some(7), LEN), LEN)
        } else {
            (Frame::read(&iovs), 0)
        };
        let mut header = [0; MAX_HEADER_LEN];
        let len = frame.encode(&iovs, ByteOrder::NATIVE, 0, &mut header);
        let mut bytes = header[..len].to_vec();
        bytes.resize(len + payload_len, 7);
        write(&mut stream, &bytes).await?;
        peer.actions.add_one();
        // The refusal, or the end of the connection.
        match timeout(REFUSAL_TIMEOUT, stream.read(&mut replies)).await {
            Ok(Ok(1..)) | Err(_) => {}
            Ok(_) => return Ok(()),
        }
    }
}

/// Sends RXM packets over one connection while they are accepted: whole messages, and rendezvous
/// messages whose bytes the attacker does not send.
async fn send_rxm_packets(peer: Arc<RawPeer>) -> Result<()> {
    const PAYLOAD_LEN: usize = 4096;
    let round = peer.next_round();
    let request = RxmConnect {
        port: 1024 + (round % 60_000) as u16,
        instance: 7,
        connection: 3,
    };
    let (mut stream, reply) = peer.request(&request.encode()).await?;
    let no_accept = || Error::Malformed {
        origin: "the server".into(),
        text: "an acceptance that is not of RXM".into(),
    };
    let accept = RxmAccept::decode(&reply).ok_or_else(no_accept)?;
    let packet = RxmPacket {
        kind: PacketKind::Eager,
        connection_id: accept.connection,
        message_id: 0,
        tag: Some(ATTACK_TAG),
        data: None,
        len: PAYLOAD_LEN as u64,
    };
    let packet = packet.encode();
    let frame = Frame::message(None, None, packet.len() + PAYLOAD_LEN);
    let mut header = [0; MAX_HEADER_LEN];
    let len = frame.encode(&[], ByteOrder::NATIVE, 0, &mut header);
    let mut bytes = [&header[..len], &packet].concat();
    bytes.resize(bytes.len() + PAYLOAD_LEN, 7);
    loop {
        write(&mut stream, &bytes).await?;
        peer.actions.add_one();
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn headers_are_those_of_the_library() {
        let mut header = [0; MAX_HEADER_LEN];
        let len = Frame::message(None, None, 99).encode(&[], ByteOrder::NATIVE, 0, &mut header);
        assert_eq!(encode_header(None, 99), header[..len]);
        let tagged = encode_message(5, 3);
        let decoded = Frame::decode(&tagged, ByteOrder::NATIVE);
        assert!(
            matches!(
                &decoded,
                Ok(Some((frame, 24))) if frame.payload_len == 3
                    && frame.kind == fabric_core::tcp::FrameKind::Tagged(5)
            ),
            "{decoded:?}"
        );
        assert_eq!(tagged.len(), 27);
    }

    #[test]
    fn names_without_an_ip_address_are_refused() {
        assert!(matches!(
            socket_addr("shm://a"),
            Err(Error::InvalidRequest(_))
        ));
        let addr = socket_addr("tcp://127.0.0.1:9").ok();
        assert_eq!(addr, Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 9))));
    }
}
