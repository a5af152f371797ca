//! Counts what an attacker did.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tokio::task::JoinSet;

use super::BEGUN_LINE;
use crate::{Error, Result};

/// Rounds that may fail in turn before the first action of the process.
const MAX_FAILED_ROUNDS: u32 = 1000;
/// Pause after a round that failed.
const FAILURE_PAUSE: Duration = Duration::from_millis(1);

/// The number of actions of this process.
#[derive(Clone, Debug)]
pub(super) struct ActionCounter(Arc<AtomicU64>);

impl ActionCounter {
    /// Creates a counter. When stdin ends, its value is printed and this process exits.
    ///
    /// # Errors
    /// [`Error::Io`] if the system has no thread left.
    pub(super) fn exit_on_stdin_eof() -> Result<Self> {
        let counter = Self(Arc::default());
        let counted = counter.clone();
        let watch = move || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            println!("{}", counted.get());
            std::process::exit(0);
        };
        thread::Builder::new()
            .name("stdin".into())
            .spawn(watch)
            .map_err(Error::io("starting a thread"))?;
        Ok(counter)
    }

    /// Adds an action. The first one is reported on stdout.
    pub(super) fn add_one(&self) {
        if self.0.fetch_add(1, Ordering::Relaxed) == 0 {
            println!("{BEGUN_LINE}");
        }
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Repeats rounds in this number of tasks, also after failures: the server may end a connection at
/// any time. `round` gets the number of its task.
///
/// # Errors
/// That of a round, if many fail before the first action of the process.
pub(super) async fn repeat_rounds<F>(
    tasks: usize,
    actions: &ActionCounter,
    round: impl Fn(usize) -> F + Clone + Send + 'static,
) -> Result<()>
where
    F: Future<Output = Result<()>> + Send,
{
    let mut running = JoinSet::new();
    for number in 0..tasks {
        let (round, actions) = (round.clone(), actions.clone());
        running.spawn(async move {
            let mut failed = 0;
            loop {
                if let Err(error) = round(number).await {
                    failed += 1;
                    if failed >= MAX_FAILED_ROUNDS && actions.get() == 0 {
                        return Err(error);
                    }
                    tokio::time::sleep(FAILURE_PAUSE).await;
                }
                tokio::task::yield_now().await;
            }
        });
    }
    match running.join_next().await {
        Some(Ok(ended)) => ended,
        Some(Err(panic)) => Err(Error::io("attacking")(panic.into())),
        None => Ok(()),
    }
}

/// A sequence of numbers that look random, the same in every run.
#[derive(Debug)]
pub(super) struct NumberSequence(u64);

impl NumberSequence {
    /// Creates the sequence with this number.
    pub(super) fn new(number: u64) -> Self {
        Self(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns the next number.
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Fills a buffer.
    pub(super) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_differ_and_repeat() {
        let sequence = |number| {
            let mut bytes = [0; 13];
            NumberSequence::new(number).fill(&mut bytes);
            bytes
        };
        assert_eq!(sequence(3), sequence(3));
        assert_ne!(sequence(3), sequence(4));
        assert_ne!(sequence(0)[..8], [0; 8]);
    }
}
