//! Private and shared memory, descriptors and mappings of the server.

use std::fs;

use crate::{Error, Result};

/// What a process uses, as `/proc` shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ProcessUsage {
    /// Private resident memory in bytes.
    pub(super) memory: u64,
    /// Shared resident memory in bytes: segments of connections, and the files of the program.
    pub(super) shared_memory: u64,
    /// Open descriptors.
    pub(super) descriptors: usize,
    /// Mappings of memory.
    pub(super) mappings: usize,
}

/// What a process may use above its usage before the attacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UsageLimits {
    /// Private resident memory in bytes.
    pub(super) memory: u64,
    /// Shared resident memory in bytes.
    pub(super) shared_memory: u64,
    /// Open descriptors.
    pub(super) descriptors: usize,
    /// Mappings of memory.
    pub(super) mappings: usize,
}

/// What may remain after an attack, when the server has received or discarded what was left.
/// Memory: up to 52 MiB of free buffers are kept, and the allocator keeps free memory. Shared
/// memory: code of the program that runs for the first time, and segments of the clients.
/// Descriptors and mappings: those of threads that the library starts once, and of the allocator.
/// Over `shm` the free chunks of the server's loans are added.
pub(super) const LIMITS_AFTER: UsageLimits = UsageLimits {
    memory: 64 << 20,
    shared_memory: 16 << 20,
    descriptors: 8,
    mappings: 64,
};

impl ProcessUsage {
    /// Returns the usage of the process with this id.
    ///
    /// # Errors
    /// [`Error::Io`] if the process has ended.
    pub(super) fn of_process(pid: u32) -> Result<Self> {
        let failed = |what: &str| Error::io(format!("reading /proc/{pid}/{what}"));
        let read = |what: &str| fs::read(format!("/proc/{pid}/{what}")).map_err(failed(what));
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).map_err(failed("fd"))?;
        let maps = read("maps")?;
        let (memory, shared_memory) = resident_bytes(&String::from_utf8_lossy(&read("statm")?));
        Ok(Self {
            memory,
            shared_memory,
            descriptors: descriptors.count(),
            mappings: maps.iter().filter(|byte| **byte == b'\n').count(),
        })
    }

    /// Returns the greater of each value.
    pub(super) fn max(self, other: Self) -> Self {
        Self {
            memory: self.memory.max(other.memory),
            shared_memory: self.shared_memory.max(other.shared_memory),
            descriptors: self.descriptors.max(other.descriptors),
            mappings: self.mappings.max(other.mappings),
        }
    }

    /// Returns what exceeds the usage `before` by more than the limits, as text for the user.
    pub(super) fn excesses(self, before: Self, limits: UsageLimits) -> Vec<String> {
        let mebibytes = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        let mut found = Vec::new();
        for (what, used, before, limit) in [
            ("memory", self.memory, before.memory, limits.memory),
            (
                "shared memory",
                self.shared_memory,
                before.shared_memory,
                limits.shared_memory,
            ),
        ] {
            let more = used.saturating_sub(before);
            if more > limit {
                let (more, limit) = (mebibytes(more), mebibytes(limit));
                found.push(format!("{what} grew by {more}, and {limit} are allowed"));
            }
        }
        for (what, used, before, limit) in [
            (
                "descriptors",
                self.descriptors,
                before.descriptors,
                limits.descriptors,
            ),
            ("mappings", self.mappings, before.mappings, limits.mappings),
        ] {
            if used > before + limit {
                let more = used - before;
                found.push(format!("{more} more {what}, and {limit} are allowed"));
            }
        }
        found
    }
}

/// Returns the private and the shared resident memory in bytes, from the text of `statm`: all
/// pages, resident ones, and shared ones of these.
fn resident_bytes(statm: &str) -> (u64, u64) {
    let mut pages = statm
        .split_ascii_whitespace()
        .skip(1)
        .map(|pages| pages.parse::<u64>().unwrap_or(0));
    let (resident, shared) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
    let page = rustix::param::page_size() as u64;
    (resident.saturating_sub(shared) * page, shared * page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_of_this_process_is_read() {
        let usage = ProcessUsage::of_process(std::process::id()).unwrap_or_default();
        assert!(usage.memory > 100_000 && usage.shared_memory > 100_000);
        assert!(usage.descriptors > 2 && usage.mappings > 4);
        let page = rustix::param::page_size() as u64;
        assert_eq!(resident_bytes("9 3 1 1 0 1 0"), (2 * page, page));
        assert!(ProcessUsage::of_process(u32::MAX).is_err());
    }

    #[test]
    fn excesses_name_the_resource() {
        let before = ProcessUsage {
            memory: 5 << 20,
            shared_memory: 7 << 20,
            descriptors: 10,
            mappings: 50,
        };
        let limits = UsageLimits {
            memory: 1 << 20,
            shared_memory: 2 << 20,
            descriptors: 100,
            mappings: 0,
        };
        let used = ProcessUsage {
            memory: 6 << 20,
            shared_memory: 9 << 20,
            descriptors: 10 + 100,
            mappings: 50,
        };
        assert!(used.excesses(before, limits).is_empty());
        let more = ProcessUsage {
            memory: used.memory + 1,
            shared_memory: used.shared_memory + 1,
            descriptors: used.descriptors + 1,
            mappings: used.mappings + 1,
        };
        let found = more.excesses(before, limits);
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(found[0].starts_with("memory") && found[1].starts_with("shared memory"));
        assert!(found[2].contains("101 more descriptors"));
        assert_eq!(used.max(more), more);
        assert!(ProcessUsage::default().excesses(before, limits).is_empty());
    }
}
