//! Native calls: answers, limits, cancellation, peers that misbehave or die. A test that needs a
//! server process starts this program again, with the role in the environment variable
//! `FABRIC_ROLE`.

mod budget;
mod calls;
mod cancellation;
#[path = "../common/mod.rs"]
mod common;
mod credits;
mod hostile;
mod lending;
mod limits;
mod restart;
mod service;
mod shutdown;

use common::{ADDRESSES, run, run_on};

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

/// The entry point of other processes; not a test.
#[test]
fn process_entry_point() {
    restart::run_role();
}
