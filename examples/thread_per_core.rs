//! One domain for each core: each thread opens a domain of model `Pinned`, whose messages take no
//! lock, and passes messages to the next thread.
//!
//!     cargo run --release --example thread_per_core
//!
//! The first thread sends a message around the ring of threads, and waits until it is back.

use std::collections::VecDeque;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Instant;

use fabric_async::thread_model::Pinned;
use fabric_async::{Address, Endpoint, Result};

const DEFAULT_ROUNDS: u64 = 1_000;

/// The place of a thread in the ring.
struct Core {
    number: usize,
    scheme: String,
    rounds: u64,
    /// Tells the thread before the address of this one.
    announce: Sender<Address>,
    next: Receiver<Address>,
}

impl Core {
    /// Opens a domain of this thread, and passes messages on.
    async fn run(self) -> Result<u64> {
        let options = Endpoint::options().thread_model::<Pinned>();
        let ep = options.bind(format!("{}://", self.scheme)).await?;
        self.announce
            .send(ep.name().clone())
            .expect("the thread before waits for the address");
        let next = self.next.recv().expect("the next thread sends its address");
        let next = ep.add_peer(&next).await?;
        let begin = Instant::now();
        let mut sum = 0;
        for round in 0..self.rounds {
            if self.number == 0 {
                ep.send(next, round.to_le_bytes()).await?;
            }
            let message = ep.recv_into([0u8; 8]).await?.into_buf();
            sum += u64::from_le_bytes(message);
            if self.number != 0 {
                ep.send(next, message).await?;
            }
        }
        if self.number == 0 {
            println!("{} rounds in {:?}", self.rounds, begin.elapsed());
        }
        // The last message may still be on its way to a thread that sleeps.
        ep.flush().await?;
        Ok(sum)
    }
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mut scheme = "shm";
    // Also on a machine with one core there is a ring.
    let mut threads = thread::available_parallelism().map_or(2, |cores| cores.get().max(2));
    let mut rounds = DEFAULT_ROUNDS;
    for option in args.chunks(2) {
        match option {
            [flag, name] if flag == "--provider" => scheme = name,
            [flag, count] if flag == "--threads" => threads = number(count),
            [flag, count] if flag == "--rounds" => rounds = number(count) as u64,
            _ => usage(),
        }
    }

    let (senders, receivers): (Vec<_>, Vec<_>) = (0..threads).map(|_| mpsc::channel()).unzip();
    // Channel `n` has the address of thread `n`, for thread `n - 1`.
    let mut receivers: VecDeque<_> = receivers.into();
    receivers.rotate_left(1);
    let running: Vec<_> = senders
        .into_iter()
        .enumerate()
        .map(|(number, announce)| {
            let core = Core {
                number,
                scheme: scheme.to_owned(),
                rounds,
                announce,
                next: receivers.pop_front().expect("as many as threads"),
            };
            thread::spawn(move || {
                let mut runtime = tokio::runtime::Builder::new_current_thread();
                let runtime = runtime.enable_all().build().expect("a runtime");
                runtime.block_on(core.run())
            })
        })
        .collect();
    for (number, thread) in running.into_iter().enumerate() {
        let sum = thread.join().expect("the thread does not panic")?;
        assert_eq!(
            sum,
            (0..rounds).sum(),
            "each message came to each thread once"
        );
        println!("thread {number}: {rounds} messages");
    }
    Ok(())
}

/// Parses a number above 0.
fn number(text: &str) -> usize {
    match text.parse() {
        Ok(number) if number > 0 => number,
        _ => usage(),
    }
}

fn usage() -> ! {
    eprintln!("usage: thread_per_core [--provider shm|tcp|udp] [--threads N] [--rounds N]");
    std::process::exit(2);
}
