//! A histogram that several processes fill at the same time, by atomic additions to the memory of
//! one of them.
//!
//! `cargo run --release --example atomics`
//!
//! The program starts itself three more times. Each worker adds to the buckets in the collector's
//! memory with `FI_SUM`, keeps the largest value it drew with `FI_MAX`, and reports when it is
//! done. The collector takes no part, no lock is needed, and every value is counted exactly once.

use std::process::Command;

use fabric_async::atomic::AtomicOp;
use fabric_async::{Access, Endpoint, Error, RemoteRegion, Result};

const WORKERS: u64 = 3;
const VALUES: u64 = 100_000;
const BUCKETS: usize = 16;
/// Offset of the largest value that was drawn, after the buckets.
const MAX_OFFSET: u64 = 8 * BUCKETS as u64;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args[..] {
        [] => run_collector().await,
        [flag, name, seed] if flag == "--worker" => {
            run_worker(name, seed.parse().unwrap_or(1)).await
        }
        other => {
            eprintln!("atomics takes no arguments, not {other:?}");
            std::process::exit(2);
        }
    }
}

async fn run_collector() -> Result<()> {
    let ep = Endpoint::bind("shm://").await?;
    let region = ep.domain().alloc(
        MAX_OFFSET as usize + 8,
        Access::REMOTE_READ | Access::REMOTE_WRITE,
    )?;
    let os = |call| move |error: std::io::Error| Error::os(call, error.raw_os_error().unwrap_or(0));
    let program = std::env::current_exe().map_err(os("readlink"))?;
    let mut workers = Vec::new();
    for seed in 1..=WORKERS {
        let args = ["--worker", &ep.name().to_string(), &seed.to_string()];
        workers.push(
            Command::new(&program)
                .args(args)
                .spawn()
                .map_err(os("fork"))?,
        );
    }
    for _ in 0..WORKERS {
        let hello = ep.recv().tag(1).await?;
        ep.send(hello.source()?, region.remote().to_bytes().to_vec())
            .await?;
    }
    for _ in 0..WORKERS {
        ep.recv().tag(2).await?;
    }
    let counts = (0..BUCKETS)
        .map(|bucket| region.load::<u64>(8 * bucket))
        .collect::<Result<Vec<_>>>()?;
    let most = counts.iter().copied().max().unwrap_or(1).max(1);
    for (bucket, count) in counts.iter().enumerate() {
        println!(
            "{bucket:>2}  {count:>7}  {}",
            "#".repeat((count * 50 / most) as usize)
        );
    }
    println!(
        "the largest value drawn: {:.4}",
        region.load::<f64>(MAX_OFFSET as usize)?
    );
    assert_eq!(
        counts.iter().sum::<u64>(),
        WORKERS * VALUES,
        "every value is counted once"
    );
    for mut worker in workers {
        worker.wait().map_err(os("wait4"))?;
    }
    Ok(())
}

/// Draws values, sums of three dice with a thousand faces, and counts them in the collector's
/// memory.
async fn run_worker(collector: &str, seed: u64) -> Result<()> {
    let ep = Endpoint::bind("shm://").await?;
    let peer = ep.add_peer(collector).await?;
    ep.send(peer, "where?").tag(1).await?;
    let remote = RemoteRegion::from_bytes(&ep.recv().from(peer).await?)?;
    let mut state = seed;
    let mut die = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % 1000
    };
    for _ in 0..VALUES {
        let value = (die() + die() + die()) as f64 / 3000.0;
        let bucket = (value * BUCKETS as f64) as u64;
        ep.atomic(peer, remote.at(8 * bucket), AtomicOp::Sum, 1u64)
            .await?;
        ep.atomic(peer, remote.at(MAX_OFFSET), AtomicOp::Max, value)
            .await?;
    }
    ep.send(peer, "done").tag(2).await?;
    Ok(())
}
