//! The soak: everything an endpoint can do, mixed, for a long time; in the end every message is
//! accounted for, and memory has not grown.
//!
//! | file | subject |
//! |---|---|
//! | `near` | the side that does it |
//! | `far` | the side it is done to, and that keeps the book |
//! | `book` | which messages have come |

mod book;
mod far;
mod near;

use std::time::Duration;

use fabric_async::{Caps, Hints, discover};
use serde::{Deserialize, Serialize};

pub use far::serve;

use crate::choice::Runtime;
use crate::output::print;
use crate::pair::{Child, program};
use crate::size::Size;
use crate::stop::Stop;
use crate::{Error, Result, progress};

/// What the near side asks the far one.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Ask {
    /// Where is your memory?
    Region,
    /// How is it going?
    Status,
    /// That was all, so many messages and so many additions: wait for those that are missing.
    End { messages: u64, added: u64 },
}

/// What the far side has found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Status {
    /// Different messages that have come.
    received: u64,
    /// Messages that came once more.
    twice: u64,
    /// Messages whose bytes are not those that were sent.
    damaged: u64,
    /// Additions to the counter.
    added: u64,
    /// Memory of the process, in bytes.
    memory: u64,
}

/// Memory may grow by so much between the second quarter of the time and its end: what allocators
/// and page tables do.
const GROWTH: u64 = 16 << 20;

/// What the near side has done and seen.
#[derive(Debug, Default)]
struct Done {
    messages: u64,
    bytes: u64,
    added: u64,
    /// Memory of both sides, from time to time.
    here: Vec<u64>,
    there: Vec<u64>,
    last: Status,
}

/// Soaks a provider for so long.
///
/// # Errors
/// A message is missing, came twice or was damaged; memory grew; the other side died.
pub fn soak(provider: &str, time: Duration, stop: &Stop) -> Result<()> {
    let hints = Hints::new()
        .provider(provider)
        .caps(Caps::MSG | Caps::TAGGED | Caps::RMA | Caps::ATOMIC);
    Runtime::Current.run(async move { Ok(discover(&hints).await.map(drop)?) })?;
    let mut command = program()?;
    command.args(["soak-far", "--listen", &format!("{provider}://")]);
    let (mut child, at) = Child::start("the other side", command)?;
    let near = near::run(provider.to_owned(), at, time, stop.clone());
    let done = Runtime::Current.run(near);
    progress::clear();
    let done = done.map_err(|error| child.explain(error))?;
    let seconds = time.as_secs_f64();
    print(&format!(
        "{} messages and writes with data, {} in all, {} atomic additions, in {seconds:.0} s",
        done.messages,
        Size(usize::try_from(done.bytes >> 20 << 20).unwrap_or(usize::MAX)),
        done.added,
    ))?;
    let Status {
        received,
        twice,
        damaged,
        added,
        ..
    } = done.last;
    print(&format!(
        "received {received}, twice {twice}, damaged {damaged}, additions counted {added}"
    ))?;
    let (here, there) = (grown(&done.here), grown(&done.there));
    print(&format!(
        "memory: {} here, {} there",
        described(&done.here),
        described(&done.there)
    ))?;
    let whole = (received, twice, damaged, added) == (done.messages, 0, 0, done.added);
    let flat = here.max(there) <= GROWTH;
    match (whole, flat) {
        (true, true) => print("every message is accounted for, and memory is flat"),
        (false, _) => Err(Error::Refused(
            "messages are missing, came twice or are damaged".into(),
        )),
        (_, false) => Err(Error::Refused("memory has grown".into())),
    }
}

/// By how much memory grew from the second quarter of the time on.
fn grown(samples: &[u64]) -> u64 {
    let quarter = samples.len() / 4;
    let before = samples
        .get(quarter..2 * quarter.max(1))
        .and_then(|samples| samples.iter().max());
    let last = samples.last().copied().unwrap_or(0);
    last.saturating_sub(before.copied().unwrap_or(last))
}

fn described(samples: &[u64]) -> String {
    let mebibytes = |bytes: Option<&u64>| bytes.copied().unwrap_or(0) as f64 / f64::from(1 << 20);
    format!(
        "{:.1} MiB after a quarter and {:.1} MiB at the end",
        mebibytes(samples.get(samples.len() / 4)),
        mebibytes(samples.last())
    )
}

/// Memory of this process, in bytes.
fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: Option<u64> = text.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_grows_late_is_seen() {
        assert_eq!(grown(&[1, 50, 60, 55, 58, 60, 57, 61]), 1);
        assert_eq!(grown(&[10, 10, 10, 10, 20, 30, 40, 50]), 40);
        assert_eq!(grown(&[]), 0);
        assert!(memory() > 100_000);
    }
}
