//! What the test programs of this crate share: the addresses that tests serve at, the time limit,
//! processes that start the test program again, and permits that handlers and a test exchange.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

/// The addresses that each test serves at.
pub(crate) const ADDRESSES: [&str; 2] = ["shm://", "tcp://127.0.0.1:0"];

/// Runs a test at each address, on a current-thread runtime. The time limit detects hangs; it is no
/// measurement.
pub(crate) fn run(test: impl AsyncFn(&str)) {
    for address in ADDRESSES {
        let runtime = Builder::new_current_thread().enable_all().build();
        run_on(&runtime.expect("build a runtime"), address, &test);
    }
}

pub(crate) fn run_on(runtime: &Runtime, address: &str, test: &impl AsyncFn(&str)) {
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(100), test(address))
            .await
            .expect("the test hangs")
    });
}

/// What a server process prints when it listens.
const LISTENS: &str = "the server listens";

/// A process of this test program, which is killed with the test.
pub(crate) struct TestProcess(Child);

impl TestProcess {
    /// Starts a process with a role, which [`role`] returns there. The test program has a test
    /// `process_entry_point` for it.
    pub(crate) fn start(role: &str) -> Self {
        let spawned = Command::new(std::env::current_exe().expect("path of the test program"))
            .args(["--exact", "process_entry_point", "--nocapture"])
            .env("FABRIC_ROLE", role)
            .stdout(Stdio::piped())
            .spawn();
        Self(spawned.expect("start the test program"))
    }

    /// Starts a server process, and waits until it [listens](report_listening).
    pub(crate) fn start_server(role: &str) -> Self {
        let mut process = Self::start(role);
        let stdout = BufReader::new(process.0.stdout.take().expect("a pipe"));
        let listens = stdout
            .lines()
            .any(|line| line.expect("text").contains(LISTENS));
        assert!(listens, "the server ended");
        process
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill().expect("kill a child");
        self.0.wait().expect("wait for a child");
    }
}

impl Drop for TestProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the role of this process; `None` in the process of the tests.
pub(crate) fn role() -> Option<String> {
    std::env::var("FABRIC_ROLE").ok()
}

pub(crate) fn report_listening() {
    println!("{LISTENS}");
    std::io::stdout().flush().expect("a pipe");
}

/// Returns a loopback address, with a port, for a server that leaves it and returns. No other test
/// uses the address: it is of this process, and the kernel assigns it to no socket.
pub(crate) fn unassigned_address() -> String {
    static NEXT_PORT: AtomicU16 = AtomicU16::new(10_000);
    let [_, a, b, c] = std::process::id().to_be_bytes();
    let port = NEXT_PORT.fetch_add(1, Ordering::Relaxed);
    format!("127.{}.{b}.{c}:{port}", a + 1)
}

/// Permits that handlers and a test exchange.
pub(crate) struct Probe {
    /// One for each handler that waits.
    pub(crate) waiting: Semaphore,
    /// One for each handler that may go on.
    pub(crate) go_on: Semaphore,
    /// One for each waiting handler that was dropped before it went on.
    pub(crate) dropped: Semaphore,
}

impl Probe {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            waiting: Semaphore::new(0),
            go_on: Semaphore::new(0),
            dropped: Semaphore::new(0),
        })
    }

    /// Waits until a test lets one handler go on.
    pub(crate) async fn wait(&self) {
        self.waiting.add_permits(1);
        let dropped = AddOnDrop(&self.dropped);
        take(&self.go_on).await;
        std::mem::forget(dropped);
    }
}

/// Waits for a permit, and takes it.
pub(crate) async fn take(permits: &Semaphore) {
    permits.acquire().await.expect("an open semaphore").forget();
}

struct AddOnDrop<'a>(&'a Semaphore);

impl Drop for AddOnDrop<'_> {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}
