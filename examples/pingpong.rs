//! Two processes exchange messages over shared memory, tcp or udp with `.await`; prints latencies
//! and rates.
//!
//! `cargo run --release --example pingpong`
//! `cargo run --release --example pingpong -- --provider tcp`
//! `cargo run --release --example pingpong -- --provider udp`
//!
//! The program starts itself a second time as the peer, each process on a core of its own. For
//! every size it measures half the round trip of a message, then the rate of messages in one
//! direction. For comparison it measures limits of this machine in the same run: a cache line
//! bouncing between two cores, and `memcpy`.
//!
//! Over udp a message is a datagram, which has no tag and may be lost: there the peer only echoes
//! datagrams, and no rate is measured.

use std::io::{IsTerminal, Write};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fabric_async::{Endpoint, Error, FiAddr, Result, WaitPolicy};
use fabric_bench::peers::with_loss_timeout;
use fabric_bench::{floor, pin};
use hdrhistogram::Histogram;

const SIZES: [usize; 8] = [8, 64, 256, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Sizes of datagrams: the last fills an Ethernet packet.
const DATAGRAMS: [usize; 5] = [8, 64, 256, 1024, 1472];
/// The udp peer exits after this time without a datagram.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time spent on each size: for the latency, and for the rate.
const LATENCY_TIME: Duration = Duration::from_millis(700);
const STREAM_TIME: Duration = Duration::from_millis(400);
/// Number of pending sends when measuring the rate.
const WINDOW: usize = 64;

/// Requests of the measuring process to the peer: echo or discard a number of messages, or exit.
const ECHO: u64 = 1;
const SINK: u64 = 2;
const END: u64 = 3;
/// The tag of requests; measured messages have no tag.
const CONTROL: u64 = 0xc0;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let (provider, peer_of) = match words[..] {
        [] => ("shm", None),
        ["--provider", provider @ ("shm" | "tcp" | "udp")] => (provider, None),
        // The arguments of the peer process.
        ["--peer", provider, name, core] => (provider, Some((name.to_owned(), core.parse().ok()))),
        _ => {
            eprintln!("usage: pingpong [--provider shm|tcp|udp]");
            std::process::exit(2);
        }
    };
    let provider = provider.to_owned();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Os {
            call: "epoll_create1",
            errno: error.raw_os_error().unwrap_or(0),
        })?;
    match peer_of {
        Some((name, core)) => {
            core.map(pin::pin_to_core);
            runtime.block_on(run_as_task(run_peer(provider, name)))
        }
        None => {
            let floor = (floor::core_to_core(), floor::memcpy(1 << 20));
            let cores = pin::available_cores();
            cores.first().map(|core| pin::pin_to_core(*core));
            runtime.block_on(run_as_task(run_measurements(
                provider,
                floor,
                cores.last().copied(),
            )))
        }
    }
}

/// Runs the work in a spawned task, as services do: that is faster than in the future of
/// `block_on`.
async fn run_as_task(work: impl Future<Output = Result<()>> + Send + 'static) -> Result<()> {
    tokio::spawn(work)
        .await
        .unwrap_or_else(|ended| std::panic::resume_unwind(ended.into_panic()))
}

/// The peer process: executes requests until it is told to exit, or until the other process is
/// gone.
async fn run_peer(provider: String, name: String) -> Result<()> {
    let ep = bind_endpoint(&provider).await?;
    let other = ep.add_peer(&name).await?;
    if provider == "udp" {
        return echo_datagrams(&ep, other).await;
    }
    ep.send(other, "ready").tag(CONTROL).await?;
    loop {
        let request = ep.recv().tag(CONTROL).from(other).await?;
        let [what, size, count] = decode_request(&request);
        let mut buf = vec![0u8; size as usize];
        match what {
            ECHO => {
                for _ in 0..count {
                    buf = ep.recv_into(buf).from(other).await?.into_buf();
                    buf = ep.send(other, buf).await?.into_buf();
                }
            }
            SINK => {
                for _ in 0..count {
                    buf = ep.recv_into(buf).from(other).await?.into_buf();
                }
                ep.send(other, "done").tag(CONTROL).await?;
            }
            _ => return Ok(()),
        }
    }
}

/// Echoes datagrams until none arrives. The first datagram tells the other process this address.
async fn echo_datagrams(ep: &Endpoint, other: FiAddr) -> Result<()> {
    ep.send(other, "ready").await?;
    let mut buf = vec![0; DATAGRAMS[DATAGRAMS.len() - 1]];
    loop {
        buf.resize(DATAGRAMS[DATAGRAMS.len() - 1], 0);
        let Ok(got) = tokio::time::timeout(IDLE_TIMEOUT, ep.recv_into(buf)).await else {
            return Ok(());
        };
        buf = ep.send(other, got?.into_buf()).await?.into_buf();
    }
}

/// Opens an endpoint at a free address.
async fn bind_endpoint(provider: &str) -> Result<Endpoint> {
    let address = match provider {
        "tcp" => "tcp://127.0.0.1:0",
        "udp" => "udp://127.0.0.1:0",
        _ => "shm://",
    };
    Endpoint::options()
        .wait_policy(WaitPolicy::Spin)
        .bind(address)
        .await
}

async fn run_measurements(
    provider: String,
    (line, memcpy): (Option<Duration>, f64),
    peer_core: Option<usize>,
) -> Result<()> {
    let ep = bind_endpoint(&provider).await?;
    let _child = ChildPeer::start(&provider, &ep.name().to_string(), peer_core)?;
    let datagrams = provider == "udp";
    let ready = if datagrams {
        ep.recv().await?
    } else {
        ep.recv().tag(CONTROL).await?
    };
    let peer = ready.source()?;

    let floor_ns = line.map(|line| line.as_secs_f64() * 1e9);
    let floor = floor_ns.map_or("not measured".to_owned(), |ns| format!("{ns:.0} ns"));
    println!("two processes, {provider}, .await, one core each");
    println!(
        "floor of this machine: a cache line from core to core {floor}, \
         memcpy of 1 MiB {:.1} GB/s\n",
        memcpy / 1e9
    );
    println!(
        "{:>8}  {:>9} {:>9} {:>9}  {:>8}  {:>12} {:>8}  {:>8}",
        "size", "p50 us", "p99 us", "p99.9 us", "x floor", "messages/s", "GB/s", "x memcpy"
    );
    for &size in if datagrams {
        &DATAGRAMS[..]
    } else {
        &SIZES[..]
    } {
        let latency = measure_latency(&ep, peer, size, datagrams).await?;
        let mut rates = ["-".to_owned(), "-".to_owned(), "-".to_owned()];
        if !datagrams {
            let rate = measure_stream(&ep, peer, size).await?;
            let bytes = rate * size as f64;
            rates = [
                format!("{rate:.0}"),
                format!("{:.3}", bytes / 1e9),
                format!("{:.3}", bytes / memcpy),
            ];
        }
        let at = |quantile| latency.value_at_quantile(quantile) as f64 / 1e3;
        show_progress(None);
        let times_floor = floor_ns.map_or("-".to_owned(), |floor| {
            format!("{:.2}", at(0.5) * 1e3 / floor)
        });
        println!(
            "{:>8}  {:>9.3} {:>9.3} {:>9.3}  {:>8}  {:>12} {:>8}  {:>8}",
            format_size(size),
            at(0.5),
            at(0.99),
            at(0.999),
            times_floor,
            rates[0],
            rates[1],
            rates[2],
        );
    }
    if datagrams {
        // The peer process is killed when this process exits.
        return Ok(());
    }
    send_request(&ep, peer, [END, 0, 0]).await
}

/// Returns half round-trip times in nanoseconds.
async fn measure_latency(
    ep: &Endpoint,
    peer: FiAddr,
    size: usize,
    datagrams: bool,
) -> Result<Histogram<u64>> {
    let mut histogram = Histogram::new_with_bounds(1, 60_000_000_000, 3)
        .unwrap_or_else(|_| unreachable!("a minute in nanoseconds, to 3 digits, is allowed"));
    let (mut ping, mut pong) = (vec![7u8; size], vec![0u8; size]);
    let mut batch = 200;
    let start = Instant::now();
    let mut warm = false;
    while start.elapsed() < LATENCY_TIME || histogram.is_empty() {
        if !datagrams {
            send_request(ep, peer, [ECHO, size as u64, batch]).await?;
        }
        // The clock is read once per round trip, which is about a tenth of the measured time; the
        // times are evaluated afterwards.
        let mut times = Vec::with_capacity(batch as usize + 1);
        times.push(Instant::now());
        let done = AtomicU64::new(0);
        let trips = async {
            for _ in 0..batch {
                ping = ep.send(peer, std::mem::take(&mut ping)).await?.into_buf();
                pong = ep.recv_into(std::mem::take(&mut pong)).await?.into_buf();
                times.push(Instant::now());
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<_, Error>(())
        };
        if datagrams {
            with_loss_timeout(trips, &done)
                .await
                .expect("a datagram was lost, which ends a ping-pong")?;
        } else {
            trips.await?;
        }
        for trip in times.windows(2).filter(|_| warm) {
            histogram.saturating_record((trip[1] - trip[0]).as_nanos() as u64 / 2);
        }
        // Rounds take about a tenth of the time.
        let per_trip = (times[times.len() - 1] - times[0]).as_secs_f64() / batch as f64;
        batch = ((LATENCY_TIME.as_secs_f64() / 10.0 / per_trip) as u64).clamp(10, 1 << 20);
        warm = true;
        show_progress(Some((
            size,
            "latency",
            start.elapsed().as_secs_f64() / LATENCY_TIME.as_secs_f64(),
        )));
    }
    assert_eq!(
        ping.len(),
        pong.len(),
        "echoes have the length of the message"
    );
    Ok(histogram)
}

/// Returns the messages per second in one direction.
async fn measure_stream(ep: &Endpoint, peer: FiAddr, size: usize) -> Result<f64> {
    let mut buffers: Vec<Vec<u8>> = (0..WINDOW).map(|_| vec![7u8; size]).collect();
    let mut count = 2000.min((256 << 20) / size as u64).max(64);
    let (start, mut rates) = (Instant::now(), Vec::new());
    while start.elapsed() < STREAM_TIME {
        send_request(ep, peer, [SINK, size as u64, count]).await?;
        let began = Instant::now();
        let mut under_way = std::collections::VecDeque::with_capacity(WINDOW);
        for _ in 0..count {
            let buf = match buffers.pop() {
                Some(buf) => buf,
                None => await_oldest(&mut under_way).await?,
            };
            under_way.push_back(ep.send(peer, buf).start()?);
        }
        while !under_way.is_empty() {
            buffers.push(await_oldest(&mut under_way).await?);
        }
        ep.recv().tag(CONTROL).from(peer).await?;
        let elapsed = began.elapsed().as_secs_f64();
        rates.push(count as f64 / elapsed);
        count =
            ((count as f64 * STREAM_TIME.as_secs_f64() / 5.0 / elapsed) as u64).clamp(64, 1 << 22);
        show_progress(Some((
            size,
            "stream ",
            start.elapsed().as_secs_f64() / STREAM_TIME.as_secs_f64(),
        )));
    }
    rates.sort_by(f64::total_cmp);
    Ok(rates[rates.len() / 2])
}

async fn await_oldest(
    under_way: &mut std::collections::VecDeque<fabric_async::Operation<Vec<u8>>>,
) -> Result<Vec<u8>> {
    match under_way.pop_front() {
        Some(operation) => Ok(operation.await?.into_buf()),
        None => Ok(Vec::new()),
    }
}

async fn send_request(ep: &Endpoint, peer: FiAddr, request: [u64; 3]) -> Result<()> {
    let bytes: Vec<u8> = request
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect();
    ep.send(peer, bytes).tag(CONTROL).await?;
    Ok(())
}

fn decode_request(bytes: &[u8]) -> [u64; 3] {
    let mut numbers = [END, 0, 0];
    for (number, bytes) in numbers.iter_mut().zip(bytes.chunks_exact(8)) {
        *number = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    }
    numbers
}

fn format_size(size: usize) -> String {
    match size {
        _ if size >= 1 << 20 => format!("{} MiB", size >> 20),
        _ if size >= 1 << 10 => format!("{} KiB", size >> 10),
        _ => format!("{size} B"),
    }
}

/// Overwrites one line with the progress; prints nothing unless stderr is a terminal.
fn show_progress(at: Option<(usize, &str, f64)>) {
    let mut out = std::io::stderr();
    if !out.is_terminal() {
        return;
    }
    let _ = match at {
        Some((size, what, part)) => {
            write!(
                out,
                "\r{:>8}  {what} {:>3.0} %",
                format_size(size),
                part * 100.0
            )
        }
        None => write!(out, "\r{:30}\r", ""),
    };
    let _ = out.flush();
}

/// The peer process; killed on drop.
struct ChildPeer(Child);

impl ChildPeer {
    fn start(provider: &str, name: &str, core: Option<usize>) -> Result<Self> {
        let failed = |error: std::io::Error| Error::Os {
            call: "execve",
            errno: error.raw_os_error().unwrap_or(0),
        };
        let program = std::env::current_exe().map_err(failed)?;
        let core = core.map_or_else(|| "any".into(), |core| core.to_string());
        Command::new(program)
            .args(["--peer", provider, name, &core])
            .spawn()
            .map(Self)
            .map_err(failed)
    }
}

impl Drop for ChildPeer {
    fn drop(&mut self) {
        // The peer exits on request, or when this process is gone; killing it is for errors in
        // between.
        for _ in 0..100 {
            if let Ok(Some(_)) = self.0.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
