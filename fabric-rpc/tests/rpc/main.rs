//! The frameworks over the fabric: calls, errors, deadlines, shutdown, and peers that misbehave. A
//! test that needs a server process starts this program again, with the role in the environment
//! variable `FABRIC_ROLE`.

mod http;
mod interop;
mod processes;
mod tarpc_service;
mod test_service;
mod tonic_server;

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
        runtime.block_on(async {
            tokio::time::timeout(Duration::from_secs(100), test(address))
                .await
                .expect("the test hangs")
        });
    }
}

/// The entry point of server processes; not a test.
#[test]
fn server_entry_point() {
    processes::run_role();
}
