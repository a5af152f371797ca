//! Allocation counts: small messages are sent and received without an allocation, the memory of a
//! long message is allocated once, and adding a peer does not copy the address vector.

#![allow(unsafe_code)] // a counting allocator

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use bytes::BytesMut;
use fabric_async::{Endpoint, Result, WaitPolicy};
use futures_util::StreamExt;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static ALLOCATED_BYTES: Cell<u64> = const { Cell::new(0) };
    /// Allocations of at least [`LARGE_ALLOCATION`] bytes.
    static LARGE_ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

const LARGE_ALLOCATION: usize = 1 << 20;

/// Counts allocations. A reallocation counts as an allocation, since it may move the memory.
struct CountingAllocator;

// SAFETY: every call is passed on to the system allocator. The counters are thread locals with
// constant initializers and without destructors, so counting does not allocate.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        ALLOCATED_BYTES.with(|bytes| bytes.set(bytes.get() + layout.size() as u64));
        if layout.size() >= LARGE_ALLOCATION {
            LARGE_ALLOCATIONS.with(|count| count.set(count.get() + 1));
        }
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Counts the allocations of round trips in which buffers are reused.
async fn count_round_trip_allocations(a: &Endpoint, b: &Endpoint, count: usize) -> Result<u64> {
    let (to_b, to_a) = (a.add_peer(b.name()).await?, b.add_peer(a.name()).await?);
    let (mut request, mut reply, mut recv_buf) = (vec![1u8; 8], vec![2u8; 200], vec![0u8; 256]);
    let before = ALLOCATIONS.with(Cell::get);
    for _ in 0..count {
        request = a.send(to_b, request).await?.into_buf();
        recv_buf = b.recv_into(recv_buf).await?.into_buf();
        reply = b.send(to_a, reply).tag(7).await?.into_buf();
        recv_buf = a.recv_into(recv_buf).tag(7).await?.into_buf();
        a.send(to_b, b"borrowed").inject()?;
        drop(b.recv().await?);
    }
    Ok(ALLOCATIONS.with(Cell::get) - before)
}

#[test]
fn small_messages_do_not_allocate() {
    for policy in [WaitPolicy::Spin, WaitPolicy::Adaptive] {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let allocations = runtime.block_on(async {
            let options = Endpoint::options().wait_policy(policy);
            let (a, b) = (
                options.clone().bind("shm://").await?,
                options.bind("shm://").await?,
            );
            // The runtime may run the driver of a domain between a send and its receive, which
            // buffers the message. The first buffered message makes the queue grow.
            let (to_b, to_a) = (a.add_peer(b.name()).await?, b.add_peer(a.name()).await?);
            a.send(to_b, vec![1; 8]).await?;
            b.send(to_a, vec![1; 8]).await?;
            for ep in [&a, &b] {
                while ep.stats().unexpected == 0 {
                    ep.domain().progress();
                }
                drop(ep.recv().await?);
            }
            count_round_trip_allocations(&a, &b, 100).await?;
            count_round_trip_allocations(&a, &b, 10_000).await
        });
        assert_eq!(
            allocations.unwrap(),
            0,
            "{policy:?}: allocations in 10,000 round trips"
        );
    }
}

/// Counts the allocations of a multi-receive after its first message; some messages are kept.
async fn count_multi_recv_allocations(a: &Endpoint, b: &Endpoint, count: usize) -> Result<u64> {
    let to_b = a.add_peer(b.name()).await?;
    let (mut send_buf, mut kept) = (vec![1u8; 50], Vec::with_capacity(count));
    let mut messages = b
        .recv_multi(BytesMut::with_capacity(count * 50))
        .min_free(0)
        .start()?;
    let mut before = 0;
    for number in 0..count {
        send_buf = a.send(to_b, send_buf).await?.into_buf();
        let message = messages.next().await.expect("there is room")?;
        if number % 3 == 0 {
            kept.push(message.into_buf());
        }
        if number == 0 {
            before = ALLOCATIONS.with(Cell::get);
        }
    }
    Ok(ALLOCATIONS.with(Cell::get) - before)
}

#[test]
fn multi_recv_messages_do_not_allocate() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let allocations = runtime.block_on(async {
        let (a, b) = (
            Endpoint::bind("shm://").await?,
            Endpoint::bind("shm://").await?,
        );
        count_round_trip_allocations(&a, &b, 100).await?;
        count_multi_recv_allocations(&a, &b, 10_000).await
    });
    assert_eq!(allocations.unwrap(), 0, "allocations in 10,000 messages");
}

/// Counts the large allocations between the start of a receive of a message of this length and its
/// end.
async fn count_long_recv_allocations(a: &Endpoint, b: &Endpoint, len: usize) -> Result<u64> {
    let to_b = a.add_peer(b.name()).await?;
    a.send(to_b, "the connection exists").await?;
    b.recv().await?;
    let message = vec![7u8; len];
    let before = LARGE_ALLOCATIONS.with(Cell::get);
    let receive = b.recv().start()?;
    let send = a.send(to_b, message).start()?;
    let received = receive.await?;
    let allocations = LARGE_ALLOCATIONS.with(Cell::get) - before;
    assert!(received.len() == len && received.iter().all(|byte| *byte == 7));
    send.await?;
    Ok(allocations)
}

/// The memory for a message is allocated once, when its header arrives. It never grows, so the data
/// is never moved.
#[test]
fn long_pooled_receive_allocates_once() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    for (name, single_copy_from) in [
        ("shm://", usize::MAX),
        ("shm://", 64 << 10),
        ("tcp://127.0.0.1:0", usize::MAX),
    ] {
        let allocations = runtime.block_on(async {
            let options = Endpoint::options().single_copy_threshold(single_copy_from);
            let (a, b) = (options.clone().bind(name).await?, options.bind(name).await?);
            count_long_recv_allocations(&a, &b, 64 << 20).await
        });
        assert_eq!(
            allocations.unwrap(),
            1,
            "{name}, single copy from {single_copy_from}: large allocations"
        );
    }
}

/// Counts the bytes that are allocated by adding a peer to an address vector with `others` in it.
async fn count_add_peer_bytes(name: &str, others: u16) -> Result<u64> {
    let (a, peer) = (Endpoint::bind(name).await?, Endpoint::bind(name).await?);
    let scheme = name.split("://").next().expect("split yields a first part");
    for other in 1..=others {
        let address = match scheme {
            "shm" => format!("shm://absent-{other}"),
            _ => format!("{scheme}://127.1.2.3:{other}"),
        };
        a.address_vector().insert(address)?;
    }
    // The first peers with high indices make tables grow, so the counted peer needs no growth.
    for _ in 0..2 {
        let early = Endpoint::bind(name).await?;
        a.add_peer(early.name()).await?;
    }
    let before = ALLOCATED_BYTES.with(Cell::get);
    let addr = a.add_peer(peer.name()).await?;
    let bytes = ALLOCATED_BYTES.with(Cell::get) - before;
    assert_eq!(a.address_vector().lookup(addr)?, *peer.name());
    Ok(bytes)
}

/// The bytes allocated for a peer do not depend on the number of peers in the address vector. A
/// copy of 20,000 entries would be at least 320,000 bytes.
#[test]
fn adding_a_peer_does_not_copy_the_address_vector() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    for name in ["shm://", "tcp://127.0.0.1:0", "udp://127.0.0.1:0"] {
        let [few, many] = [16, 20_000].map(|others| {
            runtime
                .block_on(count_add_peer_bytes(name, others))
                .unwrap()
        });
        assert!(
            many < few + 100_000,
            "{name}: {few} bytes with 16 other peers, {many} with 20,000"
        );
    }
}
