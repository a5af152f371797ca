//! Two processes talk over shared memory, or over tcp or udp, through `.await`; prints what it
//! takes.
//!
//! `cargo run --release --example pingpong`
//! `cargo run --release --example pingpong -- --provider tcp`
//! `cargo run --release --example pingpong -- --provider udp`
//!
//! The program starts itself a second time as the peer, each process on a core of its own. For
//! every size it measures the half round trip of a message, then how fast messages stream in one
//! direction. Beside it stands what this machine can do at all, measured in the same run: a cache
//! line bouncing between two cores, and `memcpy`.
//!
//! Over udp a message is a datagram, which has no tag and may be lost: there the peer only sends
//! back what comes, and nothing is streamed.

use std::io::{IsTerminal, Write};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fabric_async::{Endpoint, Error, FiAddr, Result, WaitPolicy};
use fabric_bench::peers::with_loss_timeout;
use fabric_bench::{floor, pin};
use hdrhistogram::Histogram;

const SIZES: [usize; 8] = [8, 64, 256, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Those of datagrams: the last fills a packet of Ethernet.
const DATAGRAMS: [usize; 5] = [8, 64, 256, 1024, 1472];
/// A peer that hears nothing for so long is alone.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time spent on one size: for the latency, and for the stream.
const LATENCY_TIME: Duration = Duration::from_millis(700);
const STREAM_TIME: Duration = Duration::from_millis(400);
/// Messages of a stream that may be under way.
const WINDOW: usize = 64;

/// What the measuring side asks of the peer: a round of so many messages.
const ECHO: u64 = 1;
const SINK: u64 = 2;
const END: u64 = 3;
/// The tag of such a request; the messages themselves are not tagged.
const CONTROL: u64 = 0xc0;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let (provider, peer_of) = match words[..] {
        [] => ("shm", None),
        ["--provider", provider @ ("shm" | "tcp" | "udp")] => (provider, None),
        // How the program starts itself.
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

/// Runs the work as services run: a task of its own is quicker than the future that `block_on`
/// polls.
async fn run_as_task(work: impl Future<Output = Result<()>> + Send + 'static) -> Result<()> {
    tokio::spawn(work)
        .await
        .unwrap_or_else(|ended| std::panic::resume_unwind(ended.into_panic()))
}

/// The peer: does what it is asked until told to end, or until the other process is gone.
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

/// Sends back what comes, until nothing does; the first word says where.
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

/// An endpoint at an address that the provider finds.
async fn bind_endpoint(provider: &str) -> Result<Endpoint> {
    let anywhere = match provider {
        "tcp" => "tcp://127.0.0.1:0",
        "udp" => "udp://127.0.0.1:0",
        _ => "shm://",
    };
    Endpoint::options()
        .wait_policy(WaitPolicy::Spin)
        .bind(anywhere)
        .await
}

async fn run_measurements(
    provider: String,
    (line, memcpy): (Duration, f64),
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

    let floor_ns = line.as_secs_f64() * 1e9;
    println!("two processes, {provider}, .await, one core each");
    println!(
        "floor of this machine: a cache line from core to core {floor_ns:.0} ns, memcpy of 1 MiB {:.1} GB/s\n",
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
        println!(
            "{:>8}  {:>9.3} {:>9.3} {:>9.3}  {:>8.2}  {:>12} {:>8}  {:>8}",
            format_size(size),
            at(0.5),
            at(0.99),
            at(0.999),
            at(0.5) * 1e3 / floor_ns,
            rates[0],
            rates[1],
            rates[2],
        );
    }
    if datagrams {
        // The mirror is ended with this process.
        return Ok(());
    }
    send_request(&ep, peer, [END, 0, 0]).await
}

/// Half round trips, in nanoseconds.
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
        // The clock is looked at once a trip, which is a tenth of what is measured; what is done
        // with the time waits.
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
        // Rounds of about a tenth of the time.
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
        "what comes back is as long as what was sent"
    );
    Ok(histogram)
}

/// Messages per second in one direction.
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

/// A line that is overwritten while work goes on; nothing when nobody watches.
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

/// The second process; ended with this one.
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
        // It ends by itself when it was asked to, or when this process goes; this is for errors in
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
