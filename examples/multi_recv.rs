//! A million messages of several sizes, received into a few buffers.
//!
//! `cargo run --release --example multi_recv`
//!
//! The program starts itself a second time as the sender. The receiver posts no receive per
//! message, and no buffer per message that fits the longest: a buffer takes messages until it is
//! full, and is reused when its messages have been dropped.

use std::process::Command;
use std::time::Instant;

use bytes::BytesMut;
use fabric_async::{Endpoint, Error, MultiRecv, Result};
use futures_util::StreamExt;

const MESSAGES: u64 = 1_000_000;
/// Message lengths, in turn.
const SIZES: [usize; 6] = [8, 200, 16, 64, 1000, 24];
const BUFFERS: usize = 3;
const BUFFER_LEN: usize = 256 << 10;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args[..] {
        [] => receive().await,
        [flag, name] if flag == "--sender" => send(name).await,
        other => {
            eprintln!("multi_recv takes no arguments, not {other:?}");
            std::process::exit(2);
        }
    }
}

async fn receive() -> Result<()> {
    let ep = Endpoint::bind("shm://").await?;
    let os = |call| move |error: std::io::Error| Error::os(call, error.raw_os_error().unwrap_or(0));
    let program = std::env::current_exe().map_err(os("readlink"))?;
    let name = ep.name().to_string();
    // Several buffers are posted: when one is full, messages go to the next.
    let mut posted = std::collections::VecDeque::new();
    for _ in 0..BUFFERS {
        posted.push_back(post(&ep, BytesMut::with_capacity(BUFFER_LEN))?);
    }
    let mut sender = Command::new(program)
        .args(["--sender", &name])
        .spawn()
        .map_err(os("fork"))?;

    let (mut received, mut bytes, mut used, mut again) = (0, 0, 0u64, 0u64);
    let mut began = None;
    while received < MESSAGES {
        let Some(mut messages) = posted.pop_front() else {
            break;
        };
        used += 1;
        while let Some(message) = messages.next().await {
            let message = message?;
            began.get_or_insert_with(Instant::now);
            let number = message.data().unwrap_or(u64::MAX);
            assert!(
                number == received && message.len() == message_len(number),
                "all messages arrive in order"
            );
            bytes += message.len();
            received += 1;
            if received == MESSAGES {
                break;
            }
            // The message is dropped here. `message.into_buf()` would keep it, and its buffer with
            // it.
        }
        let mut rest = messages.into_rest();
        again += u64::from(rest.try_reclaim(BUFFER_LEN));
        rest.reserve(BUFFER_LEN);
        posted.push_back(post(&ep, rest)?);
    }
    let took = began.map_or(0.0, |began| began.elapsed().as_secs_f64());
    println!(
        "{received} messages of {} to {} bytes, {bytes} bytes in all",
        SIZES[0], SIZES[4]
    );
    println!(
        "{:.2} million messages per second",
        received as f64 / took / 1e6
    );
    println!(
        "{used} buffers of {} KiB used, {} messages in each",
        BUFFER_LEN >> 10,
        received / used
    );
    println!("memory reused {again} times");
    sender.wait().map_err(os("wait4"))?;
    Ok(())
}

fn post(ep: &Endpoint, buf: BytesMut) -> Result<MultiRecv> {
    // With less free space, the longest message might not fit.
    Ok(ep.recv_multi(buf).min_free(1000).start()?)
}

fn message_len(number: u64) -> usize {
    SIZES[number as usize % SIZES.len()]
}

async fn send(name: &str) -> Result<()> {
    let ep = Endpoint::bind("shm://").await?;
    let peer = ep.add_peer(name).await?;
    let payload = bytes::Bytes::from_static(&[7; 1000]);
    for number in 0..MESSAGES {
        ep.send(peer, payload.slice(..message_len(number)))
            .data(number)
            .await?;
    }
    Ok(())
}
