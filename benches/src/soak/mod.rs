//! The soak: all operations of an endpoint, mixed, for a long time. In the end every message must
//! be accounted for, and memory must not have grown.
//!
//! | file | subject |
//! |---|---|
//! | `sender` | the side that posts the operations |
//! | `receiver` | the side that receives and keeps the ledger |
//! | `ledger` | which messages have arrived |

mod ledger;
mod receiver;
mod sender;

use std::time::Duration;

use fabric_async::{Caps, Hints, discover};
use serde::{Deserialize, Serialize};

pub use receiver::serve_soak;

use crate::options::RuntimeKind;
use crate::output::print;
use crate::peer_process::{ChildProcess, current_program};
use crate::size::Size;
use crate::stop::Stop;
use crate::{Error, Result, progress_bar};

/// A request of the sender.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum SoakRequest {
    /// Send the remote region.
    GetRegion,
    /// Send the status.
    GetStatus,
    /// Everything was sent: wait for the rest of so many messages, then send the status.
    End { messages: u64, added: u64 },
}

/// What the receiver has counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct SoakStatus {
    /// Distinct messages that have arrived.
    received: u64,
    /// Messages that arrived again.
    duplicates: u64,
    /// Messages whose bytes differ from those sent.
    corrupted: u64,
    /// Value of the counter that atomics increment.
    added: u64,
    /// Resident memory of the process, in bytes.
    memory: u64,
}

/// How much memory may grow between the second quarter of the time and its end, for allocators and
/// page tables.
const MAX_MEMORY_GROWTH: u64 = 16 << 20;

/// What the sender has done and measured.
#[derive(Debug, Default)]
struct SoakTotals {
    messages: u64,
    bytes: u64,
    added: u64,
    /// Memory of both sides, sampled regularly.
    local_memory: Vec<u64>,
    remote_memory: Vec<u64>,
    last_status: SoakStatus,
}

/// Soaks a provider for this long.
///
/// # Errors
/// [`Error::InvalidRequest`] if a message is missing, duplicated or corrupted, or memory has grown;
/// [`Error::ProcessDied`] if the receiver died.
pub fn soak(provider: &str, time: Duration, stop: &Stop) -> Result<()> {
    let hints = Hints::new()
        .provider(provider)
        .caps(Caps::MSG | Caps::TAGGED | Caps::RMA | Caps::ATOMIC);
    discover(&hints)?;
    let mut command = current_program()?;
    command.args(["soak-receiver", "--listen", &format!("{provider}://")]);
    let (mut child, address) = ChildProcess::start("the receiver", command)?;
    let sender = sender::run_sender(provider.to_owned(), address, time, stop.clone());
    let totals = RuntimeKind::Current.run(sender);
    progress_bar::clear();
    let totals = totals.map_err(|error| child.or_death_error(error))?;
    let seconds = time.as_secs_f64();
    print(&format!(
        "{} messages and writes with data, {} in all, {} atomic additions, in {seconds:.0} s",
        totals.messages,
        Size(usize::try_from(totals.bytes >> 20 << 20).unwrap_or(usize::MAX)),
        totals.added,
    ))?;
    let SoakStatus {
        received,
        duplicates,
        corrupted,
        added,
        ..
    } = totals.last_status;
    print(&format!(
        "received {received}, duplicated {duplicates}, corrupted {corrupted}, additions counted \
         {added}"
    ))?;
    let (local_growth, remote_growth) = (
        memory_growth(&totals.local_memory),
        memory_growth(&totals.remote_memory),
    );
    print(&format!(
        "memory of the sender: {}; of the receiver: {}",
        format_memory(&totals.local_memory),
        format_memory(&totals.remote_memory)
    ))?;
    let all_arrived =
        (received, duplicates, corrupted, added) == (totals.messages, 0, 0, totals.added);
    let is_flat = local_growth.max(remote_growth) <= MAX_MEMORY_GROWTH;
    match (all_arrived, is_flat) {
        (true, true) => print("every message is accounted for, and memory has not grown"),
        (false, _) => Err(Error::InvalidRequest(
            "messages are missing, duplicated or corrupted".into(),
        )),
        (_, false) => Err(Error::InvalidRequest(
            "the memory of a process has grown by more than 16 MiB".into(),
        )),
    }
}

/// Returns how much memory grew from the second quarter of the time on.
fn memory_growth(samples: &[u64]) -> u64 {
    let quarter = samples.len() / 4;
    let before = samples
        .get(quarter..2 * quarter.max(1))
        .and_then(|samples| samples.iter().max());
    let last = samples.last().copied().unwrap_or(0);
    last.saturating_sub(before.copied().unwrap_or(last))
}

fn format_memory(samples: &[u64]) -> String {
    let mebibytes = |bytes: Option<&u64>| bytes.copied().unwrap_or(0) as f64 / f64::from(1 << 20);
    format!(
        "{:.1} MiB after a quarter and {:.1} MiB at the end",
        mebibytes(samples.get(samples.len() / 4)),
        mebibytes(samples.last())
    )
}

/// Returns the resident memory of this process, in bytes.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: Option<u64> = text.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_memory_growth_is_detected() {
        assert_eq!(memory_growth(&[1, 50, 60, 55, 58, 60, 57, 61]), 1);
        assert_eq!(memory_growth(&[10, 10, 10, 10, 20, 30, 40, 50]), 40);
        assert_eq!(memory_growth(&[]), 0);
        assert!(resident_bytes() > 100_000);
    }
}
