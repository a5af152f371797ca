//! The descriptors, shared-memory mappings, threads and heap bytes of a process, and a helper that
//! runs a test in a process of its own, where they can be counted.

#![allow(unsafe_code)] // a counting allocator

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::DirEntry;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fabric_async::Endpoint;
use fabric_async::stats::EndpointStats;

/// The system's allocator, which counts the bytes that are allocated.
struct CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
static HEAP_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator with the caller's arguments.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HEAP_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        HEAP_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        HEAP_BYTES.fetch_add(len, Ordering::Relaxed);
        HEAP_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(block, layout, len) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        HEAP_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Returns the bytes that this process has allocated on the heap.
pub(crate) fn heap_bytes() -> usize {
    HEAP_BYTES.load(Ordering::Relaxed)
}

/// Timers that the domains of a test may open after its resources were counted: a domain opens its
/// timer of arriving messages with the first message that arrives in pieces, and keeps the timer.
const NEW_TIMERS: usize = 2;

/// The resources that this process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResourceUsage {
    /// Descriptors that are not timers.
    pub(crate) descriptors: usize,
    /// Timers (`timerfd`).
    timers: usize,
    /// Mappings of the shared memory of the fabric.
    pub(crate) mappings: usize,
    pub(crate) threads: usize,
}

impl ResourceUsage {
    pub(crate) fn current() -> Self {
        let entries = |what| {
            let entries = std::fs::read_dir(format!("/proc/self/{what}"));
            entries.expect("read /proc").flatten()
        };
        let is_timer = |fd: &DirEntry| {
            let target = std::fs::read_link(fd.path());
            target.is_ok_and(|target| target == Path::new("anon_inode:[timerfd]"))
        };
        let (timers, others): (Vec<_>, Vec<_>) = entries("fd").partition(is_timer);
        Self {
            descriptors: others.len(),
            timers: timers.len(),
            mappings: count_mappings("memfd:fabric"),
            threads: entries("task").count(),
        }
    }

    /// Returns whether every count is at most that of `other`, with the timers that domains may
    /// have opened since.
    pub(crate) fn is_within(&self, other: &Self) -> bool {
        self.descriptors <= other.descriptors
            && self.timers <= other.timers + NEW_TIMERS
            && self.mappings <= other.mappings
            && self.threads <= other.threads
    }

    /// Waits until the counts have not changed for 50 ms, since descriptors are closed in the
    /// background; returns the counts.
    pub(crate) async fn wait_stable() -> Self {
        let (mut usage, mut same) = (Self::current(), 0);
        while same < 50 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let now = Self::current();
            same = if now == usage { same + 1 } else { 0 };
            usage = now;
        }
        usage
    }

    /// Waits until this process has exactly these descriptors and mappings, and no more threads and
    /// timers than [`is_within`](Self::is_within) permits:
    /// closes happen in the background, and a thread that closes ends later.
    pub(crate) async fn wait_restored(&self) {
        let is_restored = |now: &Self| {
            now.is_within(self)
                && now.descriptors == self.descriptors
                && now.mappings == self.mappings
        };
        self.wait_for(is_restored).await;
    }

    async fn wait_for(&self, test: impl Fn(&Self) -> bool) {
        for attempt in 0.. {
            let now = Self::current();
            if test(&now) {
                return;
            }
            assert!(
                attempt < 5000,
                "resources are not released: {now:?}, expected {self:?}"
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Counts the mappings of memory whose name begins with `name`.
pub(crate) fn count_mappings(name: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("read /proc");
    maps.lines().filter(|line| line.contains(name)).count()
}

/// Returns the private memory of this process, in bytes.
pub(crate) fn private_bytes() -> usize {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").expect("read /proc");
    let line = rollup
        .lines()
        .find_map(|line| line.strip_prefix("Private_Dirty:"))
        .expect("a Private_Dirty line");
    line.trim()
        .trim_end_matches(" kB")
        .parse::<usize>()
        .expect("a number")
        * 1024
}

/// What the process of an endpoint has before an attack.
pub(crate) struct BeforeAttack {
    usage: ResourceUsage,
    heap: usize,
}

impl BeforeAttack {
    /// Waits until no peer is connected, and takes stock. An honest peer should have been served
    /// before, so that threads and pools exist.
    pub(crate) async fn of(ep: &Endpoint) -> Self {
        Self::of_connected(ep, 0).await
    }

    /// As [`of`](Self::of), while this number of honest peers stay connected.
    pub(crate) async fn of_connected(ep: &Endpoint, peers: usize) -> Self {
        wait_until(ep, |stats| stats.peers == peers).await;
        let usage = ResourceUsage::wait_stable().await;
        let heap = heap_bytes();
        Self { usage, heap }
    }

    /// Waits until every peer has left and the process has at most the descriptors, mappings and
    /// threads that it had, timers of arriving messages and the two threads of the process that
    /// close in the background, and checks that its heap has grown by at most `kept` bytes and 1
    /// MiB.
    pub(crate) async fn assert_restored(&self, ep: &Endpoint, kept: usize) {
        self.assert_restored_to(ep, 0, kept).await;
    }

    /// As [`assert_restored`](Self::assert_restored), while this number of honest peers stay
    /// connected.
    pub(crate) async fn assert_restored_to(&self, ep: &Endpoint, peers: usize, kept: usize) {
        wait_until(ep, |stats| stats.peers == peers).await;
        let limit = ResourceUsage {
            threads: self.usage.threads + 2,
            ..self.usage
        };
        limit.wait_for(|now| now.is_within(&limit)).await;
        let grown = heap_bytes().saturating_sub(self.heap);
        assert!(grown <= kept + (1 << 20), "the heap has grown by {grown}");
    }
}

/// Makes progress until the statistics of the endpoint pass this test.
pub(crate) async fn wait_until(ep: &Endpoint, mut test: impl FnMut(&EndpointStats) -> bool) {
    while !test(&ep.stats()) {
        ep.domain().progress();
        tokio::task::yield_now().await;
    }
}

/// Runs the body of the test with this name in a process of its own, which the test starts.
pub(crate) fn run_in_own_process(test: &str, body: impl FnOnce()) {
    if std::env::var("FABRIC_ALONE").is_ok_and(|name| name == test) {
        return body();
    }
    let mut program = Command::new(std::env::current_exe().expect("path of the test program"));
    program
        .args(["--exact", test, "--nocapture", "--test-threads", "1"])
        .env("FABRIC_ALONE", test);
    let output = program.output().expect("start the test program");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && stdout.contains("1 passed"),
        "{test}: {}\n{stdout}\n{stderr}",
        output.status
    );
    // Peers of the test print what they skip.
    eprint!("{stderr}");
}
