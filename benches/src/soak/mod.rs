//! The soak: all operations of an endpoint, mixed, for a long time. In the end every message must be
//! accounted for, and memory must not have grown.
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
    RuntimeKind::Current.run(async move { Ok(discover(&hints).await.map(drop)?) })?;
    let mut command = current_program()?;
    command.args(["soak-receiver", "--listen", &format!("{provider}://")]);
    let (mut child, at) = ChildProcess::start("the receiver", command)?;
    let near = sender::run_sender(provider.to_owned(), at, time, stop.clone());
    let done = RuntimeKind::Current.run(near);
    progress_bar::clear();
    let done = done.map_err(|error| child.or_death_error(error))?;
    let seconds = time.as_secs_f64();
    print(&format!(
        "{} messages and writes with data, {} in all, {} atomic additions, in {seconds:.0} s",
        done.messages,
        Size(usize::try_from(done.bytes >> 20 << 20).unwrap_or(usize::MAX)),
        done.added,
    ))?;
    let SoakStatus {
        received,
        duplicates: twice,
        corrupted: damaged,
        added,
        ..
    } = done.last_status;
    print(&format!(
        "received {received}, twice {twice}, damaged {damaged}, additions counted {added}"
    ))?;
    let (here, there) = (
        memory_growth(&done.local_memory),
        memory_growth(&done.remote_memory),
    );
    print(&format!(
        "memory: {} here, {} there",
        format_memory(&done.local_memory),
        format_memory(&done.remote_memory)
    ))?;
    let whole = (received, twice, damaged, added) == (done.messages, 0, 0, done.added);
    let flat = here.max(there) <= MAX_MEMORY_GROWTH;
    match (whole, flat) {
        (true, true) => print("every message is accounted for, and memory is flat"),
        (false, _) => Err(Error::InvalidRequest(
            "messages are missing, came twice or are damaged".into(),
        )),
        (_, false) => Err(Error::InvalidRequest("memory has grown".into())),
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
