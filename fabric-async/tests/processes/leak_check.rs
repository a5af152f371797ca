//! What a process has: descriptors, shared memory, threads. And a process for itself to count them
//! in.

use std::process::{Command, Stdio};
use std::time::Duration;

/// What this process has right now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResourceUsage {
    pub(crate) descriptors: usize,
    /// Mappings of shared memory of the fabric's.
    pub(crate) mappings: usize,
    pub(crate) threads: usize,
}

impl ResourceUsage {
    pub(crate) fn current() -> Self {
        let count = |what| {
            std::fs::read_dir(format!("/proc/self/{what}"))
                .expect("procfs")
                .count()
        };
        Self {
            descriptors: count("fd"),
            mappings: count_mappings("memfd:fabric"),
            threads: count("task"),
        }
    }

    /// Whether this is no more than another.
    pub(crate) fn is_within(&self, other: &Self) -> bool {
        self.descriptors <= other.descriptors
            && self.mappings <= other.mappings
            && self.threads <= other.threads
    }

    /// What this process has when nothing is being closed any more.
    pub(crate) async fn wait_stable() -> Self {
        let (mut census, mut same) = (Self::current(), 0);
        while same < 50 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let now = Self::current();
            same = if now == census { same + 1 } else { 0 };
            census = now;
        }
        census
    }

    /// Waits until this process has no more than this: what ended is closed in the background.
    pub(crate) async fn wait_restored(&self) {
        for attempt in 0.. {
            let now = Self::current();
            if now == *self {
                return;
            }
            assert!(attempt < 5000, "left behind: {now:?} instead of {self:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Mappings of memory whose name begins like this.
pub(crate) fn count_mappings(name: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs");
    maps.lines().filter(|line| line.contains(name)).count()
}

/// Bytes of memory that are this process's alone.
pub(crate) fn private_bytes() -> usize {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").expect("procfs");
    let line = rollup
        .lines()
        .find_map(|line| line.strip_prefix("Private_Dirty:"))
        .expect("a line");
    line.trim()
        .trim_end_matches(" kB")
        .parse::<usize>()
        .expect("a number")
        * 1024
}

/// Runs the body of the test of this name in a process of its own, which the test starts.
pub(crate) fn run_in_own_process(test: &str, body: impl FnOnce()) {
    if std::env::var("FABRIC_ALONE").is_ok_and(|name| name == test) {
        return body();
    }
    let mut program = Command::new(std::env::current_exe().expect("a path"));
    program
        .args(["--exact", test, "--nocapture", "--test-threads", "1"])
        .env("FABRIC_ALONE", test);
    let output = program
        .stderr(Stdio::inherit())
        .output()
        .expect("the test program starts again");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{test}: {}\n{said}",
        output.status
    );
}
