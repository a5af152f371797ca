//! The frameworks over the fabric: calls, errors, deadlines, shutdown, and peers that misbehave. A
//! test that needs a server process starts this program again, with the role in the environment
//! variable `FABRIC_ROLE`.

#[path = "../common/mod.rs"]
mod common;
mod http;
mod interop;
mod processes;
mod tarpc_service;
mod test_service;
mod tonic_server;

use common::run;

/// The entry point of server processes; not a test.
#[test]
fn process_entry_point() {
    processes::run_role();
}
