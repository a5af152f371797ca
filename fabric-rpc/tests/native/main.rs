//! Native calls: answers, limits, cancellation, peers that misbehave or die. A test that needs a
//! server process starts this program again, with the role in the environment variable
//! `FABRIC_ROLE`.

mod calls;
mod cancellation;
mod credits;
mod hostile;
mod lending;
mod limits;
mod restart;
mod service;
mod shutdown;

use std::time::Duration;

/// The addresses that each test serves at.
const ADDRESSES: [&str; 2] = ["shm://", "tcp://127.0.0.1:0"];

/// Runs a test at each address, on a current-thread runtime. The time limit detects hangs; it is no
/// measurement.
fn run(test: impl AsyncFn(&str)) {
    for address in ADDRESSES {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("build a runtime");
        run_on(&runtime, address, &test);
    }
}

/// Runs a test at each address, on a runtime of two threads.
fn run_on_two_threads(test: impl AsyncFn(&str)) {
    for address in ADDRESSES {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("build a runtime");
        run_on(&runtime, address, &test);
    }
}

fn run_on(runtime: &tokio::runtime::Runtime, address: &str, test: &impl AsyncFn(&str)) {
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(30), test(address))
            .await
            .expect("the test hangs")
    });
}

/// The entry point of server processes; not a test.
#[test]
fn server_entry_point() {
    restart::run_role();
}
