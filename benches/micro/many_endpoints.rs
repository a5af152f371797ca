//! Microbenchmarks of many endpoints in one domain, and of many active peers of one endpoint.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use fabric_async::{
    Caps, CqBind, Endpoint, EpType, Fabric, FiAddr, Hints, Result, WaitPolicy, discover,
};
use tokio::runtime::Runtime;

use crate::idle_peers::raise_descriptor_limit;
use crate::messages::MESSAGES;
use crate::suite::{Microbench, Work};

/// Peers that send to one endpoint.
const ACTIVE_PEERS: usize = 256;

/// A type that other benchmarks do not send or receive, so that the code for it is inlined as in a
/// program with one place that sends.
type Message = [u8; 8];

pub(crate) fn all() -> Vec<Microbench> {
    vec![
        Microbench::new("awaited/1 endpoint of each domain", || awaited_by_pairs(1))
            .operations(MESSAGES),
        Microbench::new("awaited/8 endpoints of each domain", || awaited_by_pairs(8))
            .operations(MESSAGES),
        Microbench::new("256 active peers, receiving side", || {
            receive_from_peers(ACTIVE_PEERS)
        })
        .operations(ACTIVE_PEERS)
        .counted("*receive_one_from_each*"),
        Microbench::new("1 active peer, receiving side", || receive_from_peers(1))
            .counted("*receive_one_from_each*"),
    ]
}

/// Opens a domain with this many endpoints.
fn open_domain(count: usize) -> Result<Vec<Endpoint>> {
    let hints = Hints::new().ep_type(EpType::Rdm).caps(Caps::MSG);
    let info = discover(&hints.provider("shm"))?.swap_remove(0);
    let fabric = Fabric::open(&info)?;
    let domain = fabric
        .domain_builder(&info)
        .wait_policy(WaitPolicy::Spin)
        .open()?;
    let open_endpoint = |_| {
        let (tx, rx) = (domain.completion_queue(1)?, domain.completion_queue(1)?);
        domain
            .endpoint(&info)?
            .name("shm://")?
            .bind_cq(&tx, CqBind::TRANSMIT)?
            .bind_cq(&rx, CqBind::RECV)?
            .bind_av(&domain.auto_insert_address_vector()?)?
            .enable()
    };
    (0..count).map(open_endpoint).collect()
}

/// Opens a domain with senders and a domain with receivers. Sender `n` is connected to receiver
/// `n`, or to the last one.
fn open_connected(
    senders: usize,
    receivers: usize,
) -> (Runtime, Vec<(Endpoint, FiAddr)>, Vec<Endpoint>) {
    raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let opened: Result<_> = runtime.block_on(async {
        let receiving = open_domain(receivers)?;
        let mut sending = Vec::new();
        for (index, sender) in open_domain(senders)?.into_iter().enumerate() {
            let receiver = &receiving[index.min(receivers - 1)];
            let to = sender.add_peer(receiver.name()).await?;
            sender.send(to, "first").await?;
            drop(receiver.recv().await?);
            sending.push((sender, to));
        }
        Ok((sending, receiving))
    });
    let (senders, receivers) = opened.expect("shared memory");
    (runtime, senders, receivers)
}

/// Each message is awaited on both sides before the next one is sent, by each pair in turn.
fn awaited_by_pairs(pairs: usize) -> Work {
    let (runtime, senders, receivers) = open_connected(pairs, pairs);
    let (mut buf, mut buffer): (Message, Message) = ([7; 8], [0; 8]);
    Box::new(move || {
        let trips = async {
            for _ in 0..MESSAGES / pairs {
                for ((sender, peer), receiver) in senders.iter().zip(&receivers) {
                    let sent = sender.send(*peer, buf).await?;
                    let received = receiver.recv_into(buffer).await?;
                    (buf, buffer) = (sent.into_buf(), received.into_buf());
                }
            }
            Ok::<_, fabric_async::Error>(buf.len())
        };
        runtime.block_on(trips).unwrap_or(0)
    })
}

/// Each peer sends a message; then the endpoint receives all of them.
fn receive_from_peers(peers: usize) -> Work {
    let (runtime, senders, receivers) = open_connected(peers, 1);
    let mut buffer: Message = [0; 8];
    Box::new(move || {
        let _context = runtime.enter();
        for (sender, peer) in &senders {
            let sent = sender.send(*peer, [7u8; 8]).inject();
            assert!(sent.is_ok(), "the ring has room");
        }
        receive_one_from_each(&receivers[0], senders.len(), &mut buffer)
    })
}

/// Receives this many messages, which have arrived.
#[inline(never)] // counted by its name
fn receive_one_from_each(ep: &Endpoint, count: usize, buffer: &mut Message) -> usize {
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..count {
        let mut receive = pin!(ep.recv_into(*buffer).into_future());
        let received = loop {
            if let Poll::Ready(received) = receive.as_mut().poll(&mut cx) {
                break received;
            }
        };
        *buffer = received
            .map(fabric_async::Done::into_buf)
            .unwrap_or_default();
    }
    buffer.len()
}
