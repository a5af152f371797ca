//! Resource domains: threads that each have a queue and an endpoint of their own.
//!
//!     cargo run --release --example resource_domains
//!
//! Each thread sends messages from its endpoint to the same endpoint, and takes the completions
//! from its queue. First both endpoints are in the domain, which has one lock. Then each thread
//! opens a resource domain for its objects, so that the threads do not wait for each other. The
//! address vector of the domain serves all of them.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use fabric_async::thread_model::{Pinned, ThreadModel};
use fabric_async::{AddressVector, CqBind, Domain, Fabric, Hints, Info, OpKind, Result, discover};

const DEFAULT_THREADS: usize = 2;
const BATCH: u64 = 32;
const DEFAULT_BATCHES: u64 = 5_000;

/// What all threads use.
#[derive(Clone)]
struct Setup {
    info: Info,
    domain: Domain,
    av: AddressVector,
    threads: usize,
    batches: u64,
    start: Arc<Barrier>,
}

impl Setup {
    /// Passes messages through a queue and an endpoint, which are opened in the domain or in a
    /// resource domain.
    async fn pass_messages<M: ThreadModel>(&self, domain: &Domain<M>) -> Result<Duration> {
        let mut cq = domain.completion_queue(4 * BATCH as usize)?;
        let builder = domain.endpoint(&self.info)?.bind_av(&self.av)?;
        let builder = builder.bind_cq(&cq, CqBind::TRANSMIT | CqBind::RECV)?;
        let ep = builder.enable()?;
        let me = self.av.insert(ep.name())?;
        self.start.wait();
        let begin = Instant::now();
        let mut completions = Vec::new();
        for _ in 0..self.batches {
            ep.post_all((0..BATCH).map(|_| ep.recv_into([0u8; 8])))?;
            ep.post_all((0..BATCH).map(|number| ep.send(me, number.to_le_bytes())))?;
            let (mut sent, mut sum) = (0, 0);
            while sent < BATCH || sum < (0..BATCH).sum() {
                cq.read_batch(&mut completions, 2 * BATCH as usize).await;
                for completion in completions.drain(..) {
                    let kind = completion.kind;
                    let message = completion.into_result::<[u8; 8]>()?.into_buf();
                    match kind {
                        OpKind::Recv => sum += u64::from_le_bytes(message),
                        _ => sent += 1,
                    }
                }
            }
        }
        Ok(begin.elapsed())
    }

    /// Runs each thread with objects of the domain, or with a resource domain.
    fn run(&self, with_resource_domains: bool) -> Result<Duration> {
        let spawn = |_| {
            let setup = self.clone();
            thread::spawn(move || {
                let mut runtime = tokio::runtime::Builder::new_current_thread();
                let runtime = runtime.enable_all().build().expect("a runtime");
                runtime.block_on(async {
                    if with_resource_domains {
                        let builder = setup.domain.resource_domain().thread_model::<Pinned>();
                        setup.pass_messages(&builder.open()?).await
                    } else {
                        setup.pass_messages(&setup.domain).await
                    }
                })
            })
        };
        let threads: Vec<_> = (0..self.threads).map(spawn).collect();
        let mut longest = Duration::ZERO;
        for thread in threads {
            longest = longest.max(thread.join().expect("the thread does not panic")?);
        }
        Ok(longest)
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (mut provider, mut threads, mut batches) = ("shm", DEFAULT_THREADS, DEFAULT_BATCHES);
    for option in args.chunks(2) {
        match option {
            [flag, name] if flag == "--provider" => provider = name,
            [flag, count] if flag == "--threads" => threads = number(count) as usize,
            [flag, count] if flag == "--batches" => batches = number(count),
            _ => usage(),
        }
    }
    let info = discover(&Hints::new().provider(provider))?.swap_remove(0);
    let domain = Fabric::open(&info)?.domain(&info)?;
    let setup = Setup {
        av: domain.address_vector()?,
        start: Arc::new(Barrier::new(threads)),
        info,
        domain,
        threads,
        batches,
    };
    let messages = threads as u64 * batches * BATCH;
    for (place, with_resource_domains) in [("one domain", false), ("a resource domain each", true)]
    {
        let time = setup.run(with_resource_domains)?;
        println!("{threads} threads, {place}: {messages} messages in {time:?}");
    }
    assert_eq!(setup.domain.children().to_string(), "1 address vector");
    Ok(())
}

/// Parses a number above 0.
fn number(text: &str) -> u64 {
    match text.parse() {
        Ok(number) if number > 0 => number,
        _ => usage(),
    }
}

fn usage() -> ! {
    eprintln!("usage: resource_domains [--provider shm|tcp|udp] [--threads N] [--batches N]");
    std::process::exit(2);
}
